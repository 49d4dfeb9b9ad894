//! Tests of wall timers that need private parts: the list, sections, jobs, and the runtime's own
//! look at the clocks.

use super::*;
use crate::alarm::Clock;
use crate::alarm::virtual_time::VirtualTime;
use crate::queue::MissedTicks;
use crate::runtime::{ManualClock, Runtime};
use crate::sync::AtomicU64;
use crate::timer::{Changed, Waited, WallTimer};

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `so` returns true.
#[track_caller]
fn eventually(what: &str, so: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "not yet: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether the last step has reached all timers.
fn is_followed(engine: &Engine) -> bool {
    !engine.walls.stepped.load(Ordering::Acquire) && engine.shards().all(|shard| shard.lock().walls.next.is_none())
}

#[test]
fn s30_a_step_is_followed_in_sections_between_which_the_lock_is_free() {
    const TIMERS: usize = 10 * PAGE + 1;
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
    let hour = Duration::from_secs(3600);
    let timers: Vec<_> = (0..TIMERS).map(|_| WallTimer::on(&runtime, clock.wall() + hour, |_| {})).collect();
    let engine = runtime.engine();
    let shard = engine.shards().next().expect("one queue");
    shard.lock().walls.begin();
    let mut sections = 1;
    while engine.walls.follow_section(engine, shard) {
        assert!(shard.inner.try_lock().is_some_and(|inner| inner.walls.next.is_some()), "{sections}");
        sections += 1;
    }
    assert!(is_followed(engine) && sections == TIMERS.div_ceil(PAGE), "{sections} sections");
    drop(timers);
}

/// The list of waiting timers holds a reference, and so the memory of each timer.
#[test]
fn s69_a_dropped_job_takes_its_wall_timer_out_of_the_list() {
    let runtime = Runtime::builder().callback_executor(drop).start().expect("the system has threads and timers");
    let kept = WallTimer::on(&runtime, SystemTime::now(), |_| {});
    for _ in 0..100 {
        WallTimer::on(&runtime, SystemTime::now(), |_| {}).detach();
    }
    let waiting = || runtime.engine().shards().map(|shard| shard.lock().walls.len()).sum::<usize>();
    eventually("no timer waits", || waiting() == 0);
    assert_eq!(kept.reset_at(SystemTime::now()), Changed::Ended);
    assert_eq!((waiting(), kept.dispose_and_wait()), (0, Waited::Ended));
}

/// The thread that learns of a step goes on at once: jobs of the pool follow the step in turn.
#[test]
fn s56_a_step_is_followed_by_jobs_of_the_pool() {
    const AT_ONCE: usize = PAGE * SECTIONS_AT_ONCE;
    for queues in [1, 2] {
        let runtime = Runtime::builder().queues(queues).start().expect("the system has threads and timers");
        let far = SystemTime::now() + Duration::from_secs(3600);
        // This thread may move meanwhile: the last page of each queue ends no job.
        let timers: Vec<_> = (0..3 * AT_ONCE + 2 * PAGE).map(|_| WallTimer::on(&runtime, far, |_| {})).collect();
        let engine = runtime.engine();
        // Another program may have set the clock.
        eventually("no step is left to be followed", || is_followed(engine));
        let before = runtime.metrics().fired();
        engine.walls.step();
        eventually("the pool has followed the step", || is_followed(engine));
        eventually("in four jobs", || runtime.metrics().fired() >= before + 4);
        // A step during a step.
        for _ in 0..50 {
            engine.walls.step();
        }
        eventually("the pool has followed the last step", || is_followed(engine));
        assert_eq!(runtime.metrics().active, timers.len());
        drop(timers);
    }
}

#[test]
fn s56_timers_are_made_and_changed_and_disposed_and_fire_while_steps_are_followed() {
    for alarm in [crate::Alarm::Native, crate::Alarm::Portable] {
        let runtime = Runtime::builder().queues(2).alarm(alarm).start().expect("the system has threads");
        let far = SystemTime::now() + Duration::from_secs(3600);
        let others: Vec<_> = (0..2_000).map(|_| WallTimer::on(&runtime, far, |_| {})).collect();
        let (fired, early) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        std::thread::scope(|scope| {
            let churns: Vec<_> = (0..2)
                .map(|_| {
                    let (runtime, fired, early) = (&runtime, &fired, &early);
                    scope.spawn(move || {
                        for i in 0..2_000 {
                            let soon = SystemTime::now() + Duration::from_micros(i % 300);
                            let (fired, early) = (Arc::clone(fired), Arc::clone(early));
                            let timer = WallTimer::on(runtime, if i % 3 == 0 { far } else { soon }, move |tick| {
                                early.fetch_add(u64::from(tick.now() < tick.scheduled()), Ordering::Relaxed);
                                fired.fetch_add(1, Ordering::Relaxed);
                            });
                            match i % 4 {
                                0 => drop(timer),
                                1 => assert_eq!(timer.dispose_and_wait(), Waited::Ended),
                                _ => {
                                    let _ = timer.reset_at(soon);
                                    timer.detach();
                                }
                            }
                        }
                    })
                })
                .collect();
            while churns.iter().any(|churn| !churn.is_finished()) {
                runtime.engine().walls.step();
                std::thread::yield_now();
            }
        });
        eventually("those that were left alone fire", || runtime.metrics().active == others.len());
        eventually("they have run", || fired.load(Ordering::Relaxed) >= 2_000);
        assert_eq!((early.load(Ordering::Relaxed), runtime.metrics().panics), (0, 0));
        drop(others);
    }
}

/// Slewing, or many small steps, on a system without notice of steps.
#[test]
fn s56_what_the_wall_clock_gains_is_followed_when_it_is_more_than_a_millisecond() {
    let virtual_time = std::sync::Arc::new(VirtualTime::default());
    let clock = Clock::Manual { virtual_time: std::sync::Arc::clone(&virtual_time), boot: false };
    let engine = Engine::new(1, &[crate::sys::topology::CoreId { id: 0 }], clock, None, Default::default());
    let walls = &engine.walls;
    walls.told.store(false, Ordering::Relaxed);
    walls.own.get_or_init(|| Own::new(&engine));
    let (start, hour) = (virtual_time.wall(), Duration::from_secs(3600));
    let timer = WallTimer::start(&engine, start + hour, MissedTicks::default().into(), |_| {});
    let run = || {
        let mut fires = Vec::new();
        engine.sweep_by_hand(0, &mut fires);
        fires.into_iter().for_each(|fire| _ = engine.run_by_hand(fire, |_| {}));
    };
    // The due point of the wall timer; the look at the clocks comes sooner.
    let due = || {
        let mut inner = engine.shards().next().expect("one queue").lock();
        let first = inner.walls.waiting.get_mut(0)?.entry.clone();
        Some(first.get().due(inner.queue.key()))
    };
    let hour_ns = hour.as_nanos() as u64;
    let deadline = engine.shards().next().expect("one queue").lock().queue.next_deadline();
    assert_eq!((due(), engine.active(), deadline), (Some(hour_ns), 1, RECHECK.as_nanos() as u64));
    let mut shown = Duration::ZERO;
    // Microseconds by which the wall clock gains, and by which the timer is then aimed earlier.
    for (gains, less) in
        [(900, 0), (100, 0), (1, 1_001), (1_000, 1_001), (1, 2_002), (-700i64, 2_002), (1_600, 2_002), (101, 3_003)]
    {
        shown =
            if gains < 0 { shown - Duration::from_micros(700) } else { shown + Duration::from_micros(gains as u64) };
        virtual_time.set_wall(start + shown);
        walls.look(&engine);
        run();
        assert_eq!(due().map(|due| (hour_ns - due) / 1_000), Some(less), "after {gains}");
    }
    // A timer is made while the clock is set back; then the clock is set forth again. Between two
    // looks nothing has changed.
    drop(timer);
    virtual_time.set_wall(start);
    let timer = WallTimer::start(&engine, start + 2 * hour, MissedTicks::default().into(), |_| {});
    virtual_time.set_wall(start + hour);
    let another = WallTimer::start(&engine, start + 9 * hour, MissedTicks::default().into(), |_| {});
    walls.look(&engine);
    run();
    assert_eq!(due(), Some(hour_ns), "the first of the two");
    drop((timer, another));
    engine.close();
}

/// The index lies beside the callback, at any alignment of the callback.
#[test]
fn a_callback_may_be_aligned_to_anything() {
    #[repr(align(256))]
    struct Wide(u8);
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
    let wide = Wide(7);
    let timer = WallTimer::on(&runtime, clock.wall() + Duration::from_secs(1), move |_| {
        let wide = &wide;
        assert!(std::ptr::from_ref(wide).addr() % 256 == 0 && wide.0 == 7);
    });
    clock.set_wall(clock.wall() + Duration::from_secs(9));
    assert_eq!((clock.advance(Duration::ZERO), runtime.metrics().panics), (1, 0));
    drop(timer);
}

/// Timers leave from all places of a list of several pages, also in the middle of a walk; each that
/// is left is aimed by the new clock.
#[test]
fn s56_a_walk_reaches_all_timers_while_others_come_and_go() {
    const TIMERS: u64 = 12 * PAGE as u64 + 7;
    let virtual_time = std::sync::Arc::new(VirtualTime::default());
    let clock = Clock::Manual { virtual_time: std::sync::Arc::clone(&virtual_time), boot: false };
    let engine = Engine::new(1, &[crate::sys::topology::CoreId { id: 0 }], clock, None, Default::default());
    let shard = engine.shards().next().expect("one queue");
    let start = virtual_time.wall();
    let at = |i: u64| start + Duration::from_secs(10_000 + i);
    let start_timer = |i: u64| WallTimer::start(&engine, at(i), MissedTicks::default().into(), |_| {});
    let mut timers: std::collections::BTreeMap<u64, WallTimer> = (0..TIMERS).map(|i| (i, start_timer(i))).collect();
    let mut random = 1_u64;
    for round in 1..=4 {
        // The clock gains a second, and the walk begins.
        virtual_time.set_wall(start + Duration::from_secs(round));
        shard.lock().walls.begin();
        let mut next = 1_000 * round;
        while engine.walls.follow_section(&engine, shard) {
            for _ in 0..40 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let pick = (random >> 33) as usize % timers.len();
                let id = *timers.keys().nth(pick).expect("a timer");
                match random >> 62 {
                    0 => drop(timers.remove(&id)),
                    1 => timers.remove(&id).expect("a timer").dispose(),
                    2 => _ = timers[&id].reset_at(at(id)),
                    _ => {
                        next += 1;
                        timers.insert(next, start_timer(next));
                    }
                }
            }
        }
        let inner = &mut *shard.lock();
        let (mut reached, mut next, key) = (0, Some(0), inner.queue.key());
        while let Some(from) = next {
            next = inner.walls.waiting.scan(from, |waiting| {
                reached += 1;
                let due = waiting.at.duration_since(start).expect("later") - Duration::from_secs(round);
                assert_eq!(waiting.entry.get().due(key), due.as_nanos() as u64, "round {round}");
            });
        }
        assert_eq!((reached, inner.walls.len()), (timers.len(), timers.len()));
    }
    drop(timers);
    let left = shard.lock().walls.len();
    assert_eq!((left, engine.active()), (0, 0));
    assert!(shard.lock().walls.waiting.leftover().is_none(), "memory follows the timers");
    engine.close();
}

/// A wall timer waits exactly while it is in the list.
#[test]
fn a_timer_that_does_not_wait_is_not_in_the_list() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
    let engine = Arc::clone(runtime.engine());
    let waiting = || engine.shards().map(|shard| shard.lock().walls.len()).sum::<usize>();
    let soon = clock.wall() + Duration::from_secs(1);
    let timer = || WallTimer::on(&runtime, soon, |tick| tick.dispose());
    let (dropped, disposed, waited, fired) = (timer(), timer(), timer(), timer());
    timer().detach();
    assert_eq!(waiting(), 5);
    drop(dropped);
    assert_eq!(waiting(), 4);
    disposed.dispose();
    assert_eq!(waiting(), 3);
    assert_eq!(waited.dispose_and_wait(), Waited::Ended);
    assert_eq!(waiting(), 2);
    assert_eq!(disposed.reset_at(soon), Changed::Ended);
    assert_eq!(waiting(), 2);
    assert_eq!(clock.advance(Duration::from_secs(1)), 2);
    assert_eq!(waiting(), 0);
    // A callback that takes its new time back.
    let undecided = WallTimer::on(&runtime, soon, move |tick| {
        let _ = tick.reset_at(soon + Duration::from_secs(1));
        tick.dispose();
    });
    assert_eq!(clock.advance(Duration::ZERO), 1);
    assert_eq!((waiting(), fired.reset_at(soon)), (0, Changed::Ended));
    let closed = WallTimer::on(&runtime, soon + Duration::from_secs(9), |_| {});
    assert_eq!(waiting(), 1);
    runtime.shutdown(Duration::ZERO).expect("no threads");
    assert_eq!((waiting(), closed.reset_at(soon)), (0, Changed::Ended));
    assert_eq!(waiting(), 0);
    drop((undecided, closed));
}
