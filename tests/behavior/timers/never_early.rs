//! Never early: no callback runs inside the constructor, and no callback runs before its instant
//! (S4, S5).

use super::*;

#[test]
fn s04_due_time_zero_never_fires_inside_the_constructor() {
    let (clock, runtime) = manual();
    let fired = Count::new();
    let timer = Timer::on(&runtime, Duration::ZERO, NEVER, fired.callback());
    assert_eq!(fired.get(), 0);
    assert_eq!(timer.change(Duration::ZERO, NEVER), Changed::WasWaiting);
    assert_eq!(fired.get(), 0, "nor inside change");
    assert_eq!(clock.advance(Duration::ZERO), 1);

    let runtime = native();
    let (send, receive) = mpsc::channel::<ThreadId>();
    for _ in 0..100 {
        // This lock is held while the timer is made: a callback on this thread would wait for the
        // lock for ever.
        let held = Arc::new(Mutex::new(()));
        let guard = lock(&held);
        let timer = OnceTimer::on(&runtime, Duration::ZERO, {
            let (held, send) = (Arc::clone(&held), send.clone());
            move |_| {
                drop(lock(&held));
                let _ = send.send(thread::current().id());
            }
        });
        drop(guard);
        assert_ne!(receive.recv_timeout(PATIENCE).expect("fires"), thread::current().id());
        drop(timer);
    }
}

#[test]
fn s05_never_early_on_virtual_time() {
    let mut random = Random(5);
    let (clock, runtime) = manual();
    let early = Count::new();
    let mut timers = Vec::new();
    for _ in 0..2_000 {
        let due = random.below(3_000_000_000);
        let period = 1 + random.below(700_000_000);
        let earliest = clock.now() + ns(due);
        let early = early.clone();
        timers.push(Timer::on(&runtime, ns(due), ns(period), move |tick| {
            let right = tick.now() >= tick.scheduled() && tick.scheduled() >= earliest;
            if !right {
                early.bump();
            }
        }));
        if random.below(8) == 0 {
            clock.stall(ns(random.below(500_000_000)));
        } else {
            clock.advance(ns(random.below(3_000_000)));
        }
    }
    assert!(clock.advance(secs(5)) > 10_000);
    assert_eq!((early.get(), runtime.metrics().panics), (0, 0));
}

#[test]
fn s05_never_early_on_real_time_and_near_at_best() {
    let runtime = native();
    let samples = Journal::new();
    let mut random = Random(55);
    let mut timers = Vec::new();
    for _ in 0..300 {
        let due = us(random.below(150_000));
        let before = (Instant::now(), runtime.now());
        let samples = samples.clone();
        timers.push(Timer::on(&runtime, due, NEVER, move |tick| {
            let (instant, now) = (Instant::now(), tick.now());
            let late = instant.checked_duration_since(before.0 + due);
            // No callback is early, by the clock of the runtime or by the clock of the standard
            // library.
            let early = tick.scheduled() < before.1 + due || now < tick.scheduled();
            samples.push(if early { None } else { late });
        }));
    }
    eventually("all have fired", || samples.len() == 300);
    let late: Option<Vec<Duration>> = samples.take().into_iter().collect();
    let best = late.expect("none is early").into_iter().min();
    assert!(best < Some(ms(20)), "near, at least once: {best:?}");
}

#[test]
fn s05_periodic_ticks_are_never_early_on_real_time() {
    let runtime = native();
    let early = Count::new();
    let ticks = Count::new();
    let timers: Vec<Timer> = (1..=20)
        .map(|n| {
            let (early, ticks) = (early.clone(), ticks.clone());
            Timer::on(&runtime, us(170 * n), us(330 * n), move |tick| {
                let now = tick.now();
                if now < tick.scheduled() {
                    early.bump();
                }
                ticks.bump();
            })
        })
        .collect();
    eventually("2,000 ticks", || ticks.get() >= 2_000);
    drop(timers);
    assert_eq!(early.get(), 0);
}
