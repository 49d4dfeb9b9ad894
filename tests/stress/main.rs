//! Stress tests on real time: a million one-shots, threads that create, change and dispose at
//! random, and callbacks that block beside a few hundred fast timers (S5, S16, S20, S21, S31).
//!
//! Ground rules. The test keeps its own ledger of the callbacks that must run. The random test runs
//! for three seconds, or for `TIMERQUEUE_STRESS_SECONDS`. The tests run one at a time, since each
//! needs the whole machine.

#[path = "../support/mod.rs"]
#[allow(dead_code)] // this binary uses a part of it
mod support;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Count, Gate, NEVER, PATIENCE, Random, eventually, lock, ms, secs, us, within};
use timerqueue::{Changed, MissedTicks, OnceTimer, Runtime, Tick, Timer, TimerBuilder, Timestamp, Waited};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

// ------------------------------------------------------------------------------------------- a million one-shot timers

#[test]
fn a_million_one_shots_fire_once_each_and_never_early() {
    const MILLION: usize = 1_000_000;
    let _alone = lock(&ONE_AT_A_TIME);
    within(4 * PATIENCE, "a million timers", || {
        let runtime = Runtime::builder().start().expect("the system has threads");
        // Leaked, so that a callback captures no more than its number and its instant.
        let fired: &'static [AtomicU8] = Vec::leak((0..MILLION).map(|_| AtomicU8::new(0)).collect());
        let early: &'static AtomicU64 = Box::leak(Box::default());
        let total: &'static AtomicUsize = Box::leak(Box::default());
        let mut random = Random(1_000_000);
        let mut timers = Vec::with_capacity(MILLION / 2);
        for (i, count) in fired.iter().enumerate() {
            let due = Duration::from_nanos(random.below(1_000_000_000));
            let not_before = runtime.now() + due;
            let run = move |tick: &Tick<'_>| {
                let now = tick.now();
                if now < not_before || tick.scheduled() < not_before || now < tick.scheduled() {
                    early.fetch_add(1, Ordering::Relaxed);
                }
                count.fetch_add(1, Ordering::Relaxed);
                total.fetch_add(1, Ordering::Relaxed);
            };
            // Some with a handle and some without; some that could fire again and some that could
            // not.
            match i % 4 {
                0 => timers.push(Timer::on(&runtime, due, NEVER, run)),
                1 => timers.push(TimerBuilder::on(&runtime).due(due).period(NEVER).start_exclusive(run)),
                2 => Timer::on(&runtime, due, NEVER, run).detach(),
                _ => OnceTimer::on(&runtime, due, run).detach(),
            }
        }
        let deadline = Instant::now() + 3 * PATIENCE;
        while total.load(Ordering::Relaxed) < MILLION && Instant::now() < deadline {
            thread::sleep(ms(1));
        }
        runtime.shutdown(PATIENCE).expect("no callback blocks");
        assert_eq!(total.load(Ordering::SeqCst), MILLION, "none lost, none doubled");
        assert!(fired.iter().all(|fired| fired.load(Ordering::SeqCst) == 1), "each exactly once");
        assert_eq!((early.load(Ordering::SeqCst), runtime.metrics().panics), (0, 0), "none early");
        assert_eq!((runtime.metrics().fired(), runtime.metrics().active), (MILLION as u64, 0));
        drop(timers);
    });
}

// ----------------------------------------------------------------------- create, change and dispose from eight threads

/// The accounting rule for the callbacks of a timer.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Style {
    /// Exact: every arming that is not withdrawn fires once.
    OneShot,
    /// At most as many callbacks as the schedule has ticks.
    Periodic,
}

/// The ledger page of a timer. `armed` is raised before each arming, and lowered after a change or
/// disposal that has withdrawn an arming. So at any time `armed - begun` is at least the number of
/// firings to come.
struct Page {
    armed: AtomicI64,
    begun: AtomicI64,
    running: AtomicI64,
    /// Nanoseconds on the clock; no one-shot may run before the earliest of its armings.
    not_before: AtomicU64,
    /// No callback arms its own timer any more.
    settling: AtomicBool,
    /// No callback may start, nor run, any more.
    closed: AtomicBool,
}

/// The faults seen by callbacks.
#[derive(Default)]
struct Faults {
    early: AtomicU32,
    after_the_end: AtomicU32,
    overlapped: AtomicU32,
}

struct Entry {
    page: Arc<Page>,
    style: Style,
    /// Read by the threads that use the timer, written by the thread that ends it.
    timer: RwLock<Option<Timer>>,
}

fn nanos(at: Timestamp) -> u64 {
    at.as_duration().as_nanos() as u64
}

/// Arms a one-shot through `change`, and updates its page.
fn arm(page: &Page, runtime: &Runtime, due: Duration, change: impl FnOnce(Duration) -> Changed) {
    page.not_before.fetch_min(nanos(runtime.now() + due), Ordering::SeqCst);
    page.armed.fetch_add(1, Ordering::SeqCst);
    match change(due) {
        Changed::WasIdle => {}
        // One was withdrawn; or none was armed.
        _ => {
            page.armed.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

fn new_entry(runtime: &Runtime, faults: &Arc<Faults>, random: &mut Random) -> Arc<Entry> {
    let style = if random.below(4) == 0 { Style::Periodic } else { Style::OneShot };
    let exclusive = random.below(2) == 0;
    let due = some_time(random);
    let period = if style == Style::Periodic { us(20 + random.below(3_000)) } else { NEVER };
    let page = Arc::new(Page {
        armed: AtomicI64::new(1),
        begun: AtomicI64::new(0),
        running: AtomicI64::new(0),
        not_before: AtomicU64::new(nanos(runtime.now() + due)),
        settling: AtomicBool::new(false),
        closed: AtomicBool::new(false),
    });
    let callback = {
        let (page, faults, runtime, luck) = (Arc::clone(&page), Arc::clone(faults), runtime.clone(), random.next());
        move |tick: &Tick<'_>| {
            let others = page.running.fetch_add(1, Ordering::SeqCst);
            let begun = page.begun.fetch_add(1, Ordering::SeqCst);
            if exclusive && others > 0 {
                faults.overlapped.fetch_add(1, Ordering::SeqCst);
            }
            let now = tick.now();
            if now < tick.scheduled() || nanos(tick.scheduled()) < page.not_before.load(Ordering::SeqCst) {
                faults.early.fetch_add(1, Ordering::SeqCst);
            }
            match (luck.wrapping_add(begun as u64 * 7)) % 16 {
                0 => thread::yield_now(),
                1 => thread::sleep(us(50)),
                2 if style == Style::OneShot && !page.settling.load(Ordering::SeqCst) => {
                    arm(&page, &runtime, us(luck % 300), |due| tick.change(due, NEVER));
                }
                _ => {}
            }
            if page.closed.load(Ordering::SeqCst) {
                faults.after_the_end.fetch_add(1, Ordering::SeqCst);
            }
            page.running.fetch_sub(1, Ordering::SeqCst);
        }
    };
    let timer = if exclusive {
        TimerBuilder::on(runtime).due(due).period(period).start_exclusive(callback)
    } else {
        Timer::on(runtime, due, period, callback)
    };
    Arc::new(Entry { page, style, timer: RwLock::new(Some(timer)) })
}

/// Mostly soon, sometimes at once, sometimes beyond the window of 333 ms.
fn some_time(random: &mut Random) -> Duration {
    match random.below(8) {
        0 => Duration::ZERO,
        1 => ms(300 + random.below(100)),
        2 | 3 => us(random.below(100)),
        _ => us(random.below(5_000)),
    }
}

/// Changes the timer of an entry, if it has not been ended.
fn use_it(entry: &Entry, runtime: &Runtime, random: &mut Random) {
    let timer = entry.timer.read().expect("no panic under it");
    let Some(timer) = timer.as_ref() else { return };
    match (entry.style, random.below(3)) {
        (Style::OneShot, 0) => {
            if timer.change(NEVER, NEVER).was_waiting() {
                entry.page.armed.fetch_sub(1, Ordering::SeqCst);
            }
        }
        (Style::OneShot, _) => arm(&entry.page, runtime, some_time(random), |due| timer.change(due, NEVER)),
        (Style::Periodic, _) => {
            let due = some_time(random);
            entry.page.not_before.fetch_min(nanos(runtime.now() + due), Ordering::SeqCst);
            let _ = timer.change(due, us(20 + random.below(3_000)));
        }
    }
}

/// Ends the timer of an entry in one of several ways, and checks its page.
fn end_it(entry: &Entry, runtime: &Runtime, random: &mut Random) {
    // From here on no other thread uses the handle.
    let mut slot = entry.timer.write().expect("no panic under it");
    let Some(timer) = slot.take() else { return };
    let page = &*entry.page;
    let way = random.below(6);
    if way <= 1 && entry.style == Style::OneShot {
        page.settling.store(true, Ordering::SeqCst);
        arm(page, runtime, Duration::ZERO, |due| timer.change(due, NEVER));
        let settled = || {
            let even = || page.armed.load(Ordering::SeqCst) == page.begun.load(Ordering::SeqCst);
            even() && page.running.load(Ordering::SeqCst) == 0 && even()
        };
        eventually("every arming fires", settled);
    }
    match way {
        0 | 2 => assert_eq!(timer.dispose_and_wait(), Waited::Ended),
        1 | 3 => assert_eq!(crate::support::block_on(timer.dispose_async()), Waited::Ended),
        4 => {
            timer.dispose();
            timer.dispose();
            assert_eq!(timer.change(Duration::ZERO, us(1)), Changed::Ended);
            assert_eq!(timer.dispose_and_wait(), Waited::Ended);
        }
        _ => {
            // Without waiting: what runs may go on for a moment.
            drop(timer);
            return;
        }
    }
    page.closed.store(true, Ordering::SeqCst);
    assert_eq!(page.running.load(Ordering::SeqCst), 0, "nothing runs after the wait");
    let (armed, begun) = (page.armed.load(Ordering::SeqCst), page.begun.load(Ordering::SeqCst));
    if entry.style == Style::OneShot {
        assert!(begun <= armed, "{begun} firings of {armed} armings");
        assert!(way > 1 || begun == armed, "{begun} firings of {armed} armings");
    }
}

#[test]
fn eight_threads_create_change_and_dispose_at_random() {
    const THREADS: u64 = 8;
    const SLOTS: u64 = 400;
    let _alone = lock(&ONE_AT_A_TIME);
    let seconds = std::env::var("TIMERQUEUE_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3);
    within(secs(seconds) + 3 * PATIENCE, "the random test", move || {
        let runtime = Runtime::builder().queues(3).start().expect("the system has threads");
        let faults: Arc<Faults> = Arc::default();
        let retired: Mutex<Vec<Arc<Entry>>> = Mutex::default();
        let mut random = Random(seconds);
        let slots: Vec<Mutex<Arc<Entry>>> =
            (0..SLOTS).map(|_| Mutex::new(new_entry(&runtime, &faults, &mut random))).collect();
        let until = Instant::now() + secs(seconds);
        let steps = Count::new();
        thread::scope(|scope| {
            for i in 0..THREADS {
                let (runtime, faults, retired, slots, steps) = (&runtime, &faults, &retired, &slots, &steps);
                scope.spawn(move || {
                    let mut random = Random(i);
                    while Instant::now() < until {
                        let slot = &slots[random.below(SLOTS) as usize];
                        steps.bump();
                        if random.below(4) > 0 {
                            let entry = Arc::clone(&lock(slot));
                            use_it(&entry, runtime, &mut random);
                        } else {
                            let fresh = new_entry(runtime, faults, &mut random);
                            let old = std::mem::replace(&mut *lock(slot), fresh);
                            end_it(&old, runtime, &mut random);
                            let mut retired = lock(retired);
                            retired.push(old);
                            if retired.len() > 10_000 {
                                retired.drain(..5_000).for_each(|entry| check(&entry));
                            }
                        }
                    }
                });
            }
        });
        for slot in &slots {
            end_it(&lock(slot), &runtime, &mut random);
        }
        assert_eq!(runtime.metrics().active, 0, "all have been disposed");
        runtime.shutdown(PATIENCE).expect("no callback blocks");
        retired.into_inner().expect("no panic under it").iter().for_each(|entry| check(entry));
        assert!(steps.get() > 1_000, "{} steps", steps.get());
        assert_eq!(runtime.metrics().panics, 0);
        let Faults { early, after_the_end, overlapped } = &*faults;
        assert_eq!([early, after_the_end, overlapped].map(|count| count.load(Ordering::SeqCst)), [0, 0, 0]);
    });
}

/// Checks the page of an entry whose timer has ended a while ago.
fn check(entry: &Entry) {
    let (armed, begun) = (entry.page.armed.load(Ordering::SeqCst), entry.page.begun.load(Ordering::SeqCst));
    if entry.style == Style::OneShot {
        assert!(begun <= armed, "{begun} firings of {armed} armings");
    }
}

// ----------------------------------------------------------------------------------- blocked callbacks and fast timers

const FAST: usize = 240;
const PERIOD: Duration = ms(10);

/// The record of a fast timer: the instants of its callbacks, and the number of ticks of each, with
/// missed ticks.
#[derive(Default)]
struct Trace {
    first_ns: AtomicU64,
    last_ns: AtomicU64,
    stands_for: AtomicU64,
    longest_gap_ns: AtomicU64,
}

/// Runs the fast timers beside 64 callbacks that block for a second. Returns the longest gap
/// between two ticks of a timer.
fn isolation() -> Duration {
    let runtime = Runtime::builder().start().expect("the system has threads");
    let traces: Arc<Vec<Trace>> = Arc::new((0..FAST).map(|_| Trace::default()).collect());
    let timers: Vec<Timer> = (0..FAST)
        .map(|i| {
            let traces = Arc::clone(&traces);
            let policy = if i % 2 == 0 { MissedTicks::Skip } else { MissedTicks::Burst };
            let mut before_ns = None;
            TimerBuilder::on(&runtime).due(PERIOD).period(PERIOD).missed_ticks(policy).start_exclusive(move |tick| {
                let (trace, now_ns, scheduled_ns) = (&traces[i], nanos(tick.now()), nanos(tick.scheduled()));
                if before_ns.is_none() {
                    trace.first_ns.store(scheduled_ns, Ordering::Relaxed);
                }
                let gap_ns = now_ns - before_ns.replace(now_ns).unwrap_or(scheduled_ns);
                trace.longest_gap_ns.fetch_max(gap_ns, Ordering::Relaxed);
                trace.last_ns.store(scheduled_ns, Ordering::Relaxed);
                trace.stands_for.fetch_add(1 + tick.missed(), Ordering::Relaxed);
            })
        })
        .collect();
    eventually("all tick", || traces.iter().all(|trace| trace.stands_for.load(Ordering::Relaxed) > 3));
    let (entered, gate) = (Count::new(), Gate::new());
    let blockers: Vec<Timer> = (0..64)
        .map(|i| {
            let (entered, gate) = (entered.clone(), gate.clone());
            // Some at once, some one after the other.
            Timer::on(&runtime, ms(i / 16 * 20), NEVER, move |_| {
                entered.bump();
                gate.wait();
            })
        })
        .collect();
    // A thread of our own ends the second, so that nothing here depends on the timers under test.
    let begin = Instant::now();
    eventually("all 64 are blocked", || entered.get() == 64);
    thread::sleep(secs(1).saturating_sub(begin.elapsed()));
    gate.open();
    for timer in timers.iter().chain(&blockers) {
        assert_eq!(timer.dispose_and_wait(), Waited::Ended);
    }
    runtime.shutdown(PATIENCE).expect("nothing blocks any more");
    for trace in traces.iter() {
        let [first, last, stands_for] =
            [&trace.first_ns, &trace.last_ns, &trace.stands_for].map(|n| n.load(Ordering::SeqCst));
        let period = PERIOD.as_nanos() as u64;
        // The last tick may stand for some that come after it on the grid.
        assert!(stands_for > (last - first) / period, "no tick is lost");
        assert_eq!((last - first) % period, 0, "and the phase is kept");
    }
    let longest = traces.iter().map(|trace| trace.longest_gap_ns.load(Ordering::SeqCst)).max();
    Duration::from_nanos(longest.expect("not empty"))
}

/// Runs `body`. Also returns how long the machine stood still meanwhile, as seen by a thread on
/// each core that sleeps for a millisecond at a time. (These threads get the cores also while the
/// pool is stuck.)
fn witnessed<T>(body: impl FnOnce() -> T) -> (T, Duration) {
    let on = Arc::new(());
    let watch = |core| {
        let on = Arc::downgrade(&on);
        thread::spawn(move || {
            core_affinity::set_for_current(core);
            let (mut stood_still, mut before) = (Duration::ZERO, Instant::now());
            while on.strong_count() > 0 {
                thread::sleep(ms(1));
                let gap = before.elapsed();
                before += gap;
                stood_still += if gap > ms(20) { gap } else { Duration::ZERO };
            }
            stood_still
        })
    };
    let witnesses: Vec<_> = core_affinity::get_core_ids().unwrap_or_default().into_iter().map(watch).collect();
    let result = body();
    drop(on);
    (result, witnesses.into_iter().map(|witness| witness.join().expect("no panic")).sum())
}

#[test]
fn fast_timers_tick_on_beside_callbacks_that_block() {
    let _alone = lock(&ONE_AT_A_TIME);
    within(4 * PATIENCE, "fast timers beside blocked callbacks", || {
        // Losing nothing is checked in every run; being near at all times in the best of three,
        // since the machine may have other things to do.
        let mut gaps = Vec::new();
        while gaps.len() < 3 && !gaps.iter().any(|gap| *gap < ms(250)) {
            let (gap, stood_still) = witnessed(isolation);
            gaps.push(gap.saturating_sub(stood_still));
        }
        assert!(gaps.iter().any(|gap| *gap < ms(250)), "longest gaps between two ticks of one timer: {gaps:?}");
    });
}
