//! Queues and their locks: S26, S29 and S30.
//!
//! Ground rules. Where threads must meet, tests run on real time, under a watchdog.

use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use crate::support::{
    Count, Journal, NEVER, PATIENCE, Random, blocked, eventually, lock, manual, native, ns, secs, us, within,
};
use timerqueue::{Changed, ManualClock, Runtime, Timer};

const WINDOW_NS: u64 = 333_000_000;

// -------------------------------------------------------------------------------------- S26: the lists and their edges

#[test]
fn s26_due_points_on_every_edge_fire_on_the_nanosecond() {
    // Windows of 333 ms, levels of 2,048 windows, groups of 1,024, and the overflow list beyond
    // 1,024 groups.
    let mut edges: Vec<u64> =
        [1, 2, 3, 1023, 1024, 1025, 2047, 2048, 2049, 1024 * 511, 1024 * 1023, 1024 * 1024, 1024 * 4096]
            .into_iter()
            .flat_map(|windows| (0..3).map(move |d| windows * WINDOW_NS + d - 1))
            .collect();
    edges.extend([1, 262_143, 262_144, 262_145]);
    for origin in [0, 1, WINDOW_NS - 1, 7 * WINDOW_NS + 12_345, 1024 * WINDOW_NS - 1, 3000 * WINDOW_NS] {
        let (clock, runtime) = manual();
        clock.advance(ns(origin));
        let journal = Journal::new();
        let arm = |due: u64| {
            let journal = journal.clone();
            Timer::on(&runtime, ns(due), NEVER, move |tick| {
                journal.push((tick.scheduled().as_duration(), tick.now().as_duration()));
            })
        };
        // Each due point twice, counted from now and placed on the grid of the clock, and a
        // neighbour that is removed again.
        let mut timers = Vec::new();
        for &edge in &edges {
            timers.push(arm(edge));
            drop(arm(edge));
            timers.push(arm(edge.next_multiple_of(WINDOW_NS) - origin % WINDOW_NS));
        }
        assert_eq!(runtime.metrics().active, timers.len());
        clock.advance(NEVER);
        let seen = journal.take();
        assert_eq!(seen.len(), timers.len(), "origin {origin}");
        assert!(seen.iter().all(|(scheduled, now)| scheduled == now), "origin {origin}");
        assert!(seen.windows(2).all(|pair| pair[0] <= pair[1]), "origin {origin}");
    }
}

#[test]
fn s26_random_insertions_and_removals_lose_no_timer() {
    let mut random = Random(26);
    for round in 0..20 {
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).queues(1 + round % 3).start().expect("nothing to refuse");
        clock.advance(ns(random.next() >> 20));
        let fired: Arc<Vec<Mutex<Vec<Duration>>>> = Arc::new((0..100).map(|_| Mutex::default()).collect());
        let timers: Vec<Timer> = (0..100)
            .map(|i| {
                let fired = Arc::clone(&fired);
                Timer::on(&runtime, NEVER, NEVER, move |tick| lock(&fired[i]).push(tick.now().as_duration()))
            })
            .collect();
        let mut want: Vec<Vec<Duration>> = vec![Vec::new(); 100];
        let mut due: Vec<Option<Duration>> = vec![None; 100];
        for _ in 0..2_000 {
            let (i, now) = (random.below(100) as usize, clock.now().as_duration());
            let after = ns(random.next() >> (14 + random.below(40)));
            match random.below(10) {
                0 => {
                    // Each by its model: a list of due points.
                    clock.advance(after);
                    let now = clock.now().as_duration();
                    for (due, want) in due.iter_mut().zip(&mut want) {
                        want.extend(due.take_if(|due| *due <= now));
                    }
                }
                1 => {
                    assert_eq!(timers[i].change(NEVER, NEVER).was_waiting(), due[i].take().is_some());
                }
                _ => {
                    assert_eq!(timers[i].change(after, NEVER).was_waiting(), due[i].replace(now + after).is_some());
                }
            }
            assert_eq!(runtime.metrics().active, due.iter().flatten().count());
            assert_eq!(runtime.next_due().map(|next| next.as_duration()), due.iter().flatten().min().copied());
        }
        for (i, want) in want.iter().enumerate() {
            assert_eq!(*lock(&fired[i]), *want);
        }
    }
}

// -------------------------------------------------------------------------------------------- S29, S30: the queue lock

#[test]
fn s29_no_callback_runs_under_a_lock() {
    within(PATIENCE, "using a queue whose timers are running", || {
        let runtime = native();
        let (blocked, gate) = blocked(&runtime, 4);
        // Further threads use the queue meanwhile.
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for k in 0..1_000 {
                        let timer = Timer::on(&runtime, secs(10 + k), NEVER, |_| {});
                        assert_eq!(timer.change(secs(5), NEVER), Changed::WasWaiting);
                        assert!(runtime.metrics().active > 0 && runtime.next_due().is_some());
                    }
                    for timer in &blocked {
                        let _ = timer.change(secs(1_000), NEVER);
                    }
                });
            }
        });
        assert_eq!(runtime.metrics().active, 4);
        blocked.iter().for_each(Timer::dispose);
        assert_eq!(runtime.metrics().active, 0);
        gate.open();
        runtime.shutdown(PATIENCE).expect("all return");
    });
}

#[test]
fn s29_callbacks_of_many_timers_use_each_other() {
    within(2 * PATIENCE, "timers that change each other", || {
        let runtime = Runtime::builder().queues(3).workers(4).start().expect("the system has threads");
        let timers: Arc<OnceLock<Vec<Timer>>> = Arc::default();
        let ticks = Count::new();
        let made = (0..64)
            .map(|i| {
                let (timers, ticks) = (Arc::downgrade(&timers), ticks.clone());
                let random = Mutex::new(Random(i));
                Timer::on(&runtime, NEVER, NEVER, move |tick| {
                    let Some(timers) = timers.upgrade() else { return };
                    let (a, b) = {
                        let mut random = lock(&random);
                        (random.below(64) as usize, random.below(64) as usize)
                    };
                    let timers = timers.get().expect("set");
                    let _ = timers[a].change(us(30), NEVER);
                    let _ = timers[b].change(us(20), us(400));
                    let _ = tick.change(us(50), NEVER);
                    ticks.bump();
                })
            })
            .collect();
        assert!(timers.set(made).is_ok());
        let _ = timers.get().expect("set")[0].change(Duration::ZERO, NEVER);
        eventually("5,000 ticks", || ticks.get() >= 5_000);
        runtime.shutdown(PATIENCE).expect("all return");
        assert_eq!(runtime.metrics().panics, 0);
    });
}

#[test]
fn s30_a_full_window_is_cascaded_in_steps_too() {
    // Without steps a million timers of a window of 333 ms would be cascaded at once; the test
    // checks exactness on virtual time.
    let (clock, runtime) = manual();
    let fired = Count::new();
    let late = Count::new();
    let timers: Vec<Timer> = (0..20_000u64)
        .map(|i| {
            let (fired, late) = (fired.clone(), late.clone());
            Timer::on(&runtime, ns(10 * WINDOW_NS + i % 1_000), NEVER, move |tick| {
                fired.bump();
                if !tick.lateness().is_zero() {
                    late.bump();
                }
            })
        })
        .collect();
    clock.advance(ns(11 * WINDOW_NS));
    assert_eq!((fired.get(), late.get()), (20_000, 0));
    drop(timers);
}
