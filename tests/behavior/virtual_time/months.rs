//! Many timers over months take seconds (S53).

use super::*;

/// In debug builds the work is scaled down to a tenth, to keep the whole run short; in release
/// builds it is the full million.
const TIMERS: u64 = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };

#[test]
fn s53_many_timers_over_months_take_seconds() {
    const MONTHS: Duration = Duration::from_secs(180 * 24 * 60 * 60);
    let begin = Instant::now();
    let clock = ManualClock::new();
    let runtime = on(&clock, 2);
    let mut random = Random(53);
    let fired: Arc<Vec<AtomicU32>> = Arc::new((0..TIMERS).map(|_| AtomicU32::new(0)).collect());
    let (last, wrong) = (Arc::new(AtomicU64::new(0)), Count::new());
    let timers: Vec<Timer> = (0..TIMERS)
        .map(|i| {
            let due = ns(random.below(MONTHS.as_nanos() as u64));
            let at = clock.now() + due;
            let (fired, last, wrong) = (Arc::clone(&fired), Arc::clone(&last), wrong.clone());
            Timer::on(&runtime, due, NEVER, move |tick| {
                let now = tick.now().as_duration().as_nanos() as u64;
                if tick.now() != at || last.swap(now, Ordering::Relaxed) > now {
                    wrong.bump();
                }
                fired[i as usize].fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    assert_eq!(runtime.metrics().active as u64, TIMERS);
    let heartbeat = Timer::on(&runtime, secs(60 * 60), secs(60 * 60), |_| {});
    assert_eq!(clock.advance(MONTHS), TIMERS + 180 * 24);
    assert_eq!((wrong.get(), runtime.metrics().active), (0, 1), "each at its instant, in order");
    assert!(fired.iter().all(|fired| fired.load(Ordering::Relaxed) == 1), "each once");
    drop((timers, heartbeat));
    let took = begin.elapsed();
    assert!(took < secs(60), "months in seconds: {took:?}");
}

#[test]
fn s53_a_million_ticks_of_long_lived_timers() {
    // Timers a minute apart, with periods of days: they pass through all levels of the queue
    // repeatedly.
    const DAY: u64 = 24 * 60 * 60;
    let (clock, runtime) = manual();
    let count = TIMERS / 100;
    let ticks = Count::new();
    let timers: Vec<Timer> =
        (0..count).map(|i| Timer::on(&runtime, secs(60 * i % DAY), secs(DAY + i % 7), ticks.callback())).collect();
    let days = 100;
    clock.advance(secs(days * DAY));
    let want: u64 = (0..count).map(|i| (days * DAY - 60 * i % DAY) / (DAY + i % 7) + 1).sum();
    assert_eq!(ticks.get() as u64, want);
    drop(timers);
}
