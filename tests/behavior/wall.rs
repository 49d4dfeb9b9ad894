//! Wall timers on virtual time (S56), and the effect of steps and suspends on all further timers
//! (S54, S55).
//!
//! Ground rules. The wall clock of a manual clock is stepped both ways at will.
//! `tests/process/wall_clock.rs` has the tests with the machine's own wall clock.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, SystemTime};

use crate::support::{Canary, Count, Journal, NEVER, PATIENCE, Random, block_on, manual, ms, ns, secs, us, within};
use timerqueue::{Changed, ManualClock, Runtime, RuntimeClock, Timer, Waited, WallTick, WallTimer};

/// A callback that records the wall time at each call.
fn noting(journal: &Journal<SystemTime>) -> impl FnMut(&WallTick<'_>) + Send + 'static {
    let journal = journal.clone();
    move |tick| journal.push(tick.now())
}

#[test]
fn s56_fires_once_when_the_wall_clock_shows_the_time() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let at = clock.wall() + secs(10);
    let timer = WallTimer::on(&runtime, at, noting(&journal));
    assert_eq!(runtime.wall_now(), clock.wall());
    assert_eq!(clock.advance(secs(10) - ns(1)), 0);
    assert_eq!(clock.advance(ns(1)), 1);
    assert_eq!(clock.advance(secs(1_000)), 0);
    assert_eq!(journal.take(), [at]);
    assert_eq!(timer.reset_at(at), Changed::WasIdle, "passed: it fires at once");
    assert_eq!(clock.advance(Duration::ZERO), 1);
    assert_eq!(journal.take(), [clock.wall()]);
}

#[test]
fn s56_follows_steps_in_both_directions() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let start = clock.wall();
    let timer = WallTimer::on(&runtime, start + secs(100), noting(&journal));
    clock.advance(secs(50));
    // Back: it waits longer.
    clock.set_wall(start);
    assert_eq!(clock.advance(secs(99)), 0);
    // Forward, short of it: it waits shorter.
    clock.set_wall(start);
    clock.set_wall(start + secs(90));
    assert_eq!(clock.advance(secs(10) - ns(1)), 0);
    assert_eq!(clock.advance(ns(1)), 1);
    assert_eq!(journal.take(), [start + secs(100)]);
    // Past it: at once.
    assert_eq!(timer.reset_at(start + secs(200)), Changed::WasIdle);
    clock.set_wall(start + secs(5_000));
    assert_eq!(clock.advance(Duration::ZERO), 1);
    assert_eq!(journal.take(), [start + secs(5_000)]);
    // And back again: it has fired, and does not fire twice.
    clock.set_wall(start);
    assert_eq!(clock.advance(secs(10_000)), 0);
    // Past the time and back before a sweep could run: no thread has seen the time.
    let now = clock.wall();
    assert_eq!(timer.reset_at(now + secs(10)), Changed::WasIdle);
    clock.set_wall(now + secs(20));
    clock.set_wall(now);
    assert_eq!(clock.advance(secs(10) - ns(1)), 0);
    assert_eq!(clock.advance(ns(1)), 1);
}

#[test]
fn s56_a_callback_that_is_queued_does_not_run_early_after_a_step_back() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let at = clock.wall() + secs(10);
    // Both timers are due at the same instant; the first callback sets the clock back.
    let first = Timer::on(&runtime, secs(10), NEVER, {
        let clock = clock.clone();
        move |_| clock.set_wall(clock.wall() - secs(3))
    });
    let timer = WallTimer::on(&runtime, at, noting(&journal));
    clock.advance(secs(13) - ns(1));
    assert_eq!(journal.len(), 0);
    clock.advance(ns(1));
    assert_eq!(journal.take(), [at]);
    drop((first, timer));
}

#[test]
fn s54_s56_a_suspend_counts_on_the_wall_and_on_the_boot_clock() {
    let (clock, runtime) = manual();
    let boot = Runtime::builder().manual_clock(&clock).clock(RuntimeClock::Boot).start().expect("nothing to refuse");
    let (walls, counted, slept) = (Journal::new(), Count::new(), Count::new());
    for runtime in [&runtime, &boot] {
        WallTimer::on(runtime, clock.wall() + secs(100), noting(&walls)).detach();
    }
    let awake = Timer::on(&runtime, secs(100), NEVER, counted.callback());
    let always = Timer::on(&boot, secs(100), NEVER, slept.callback());
    let before = clock.wall();
    clock.suspend(secs(60));
    assert_eq!((clock.now().as_duration(), boot.now().as_duration()), (secs(0), secs(60)));
    assert_eq!((runtime.now(), clock.wall()), (clock.now(), before + secs(60)));
    assert_eq!(clock.next_due().expect("three wait").as_duration(), secs(40));
    assert_eq!(clock.advance(secs(40) - ns(1)), 0);
    assert_eq!(clock.advance(ns(1)), 3);
    assert_eq!((walls.len(), slept.get(), counted.get()), (2, 1, 0));
    assert_eq!(clock.advance(secs(60)), 1);
    assert_eq!(counted.get(), 1);
    // Due within a suspend: late, at once when it is over, and in order.
    let order = Journal::new();
    let timers: Vec<_> = [30, 10, 20]
        .into_iter()
        .map(|due| {
            let order = order.clone();
            Timer::on(&boot, secs(due), NEVER, move |tick| order.push((due, tick.lateness())))
        })
        .collect();
    clock.suspend(secs(25));
    assert_eq!(clock.advance(Duration::ZERO), 2);
    assert_eq!(clock.advance(secs(5)), 1);
    assert_eq!(order.take(), [(10, secs(15)), (20, secs(5)), (30, secs(0))]);
    drop((timers, awake, always));
}

#[test]
fn s55_setting_the_wall_clock_moves_no_other_timer() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timer = Timer::on(&runtime, ms(10), ms(10), crate::support::recording(&journal));
    for (by, forward) in [(1_000, true), (500, false), (100_000, true), (200_000, false)] {
        let wall = clock.wall();
        clock.set_wall(if forward { wall + secs(by) } else { wall - secs(by) });
        clock.advance(ms(10));
    }
    assert_eq!(journal.take(), [10, 20, 30, 40]);
    drop(timer);
}

#[test]
fn s56_change_dispose_drop_detach_and_shutdown() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let soon = clock.wall() + secs(10);
    let timer = WallTimer::on(&runtime, soon, noting(&journal));
    assert_eq!(timer.reset_at(soon + secs(10)), Changed::WasWaiting);
    assert_eq!(clock.advance(secs(19)), 0);
    assert_eq!(timer.reset_at(soon), Changed::WasWaiting, "passed: at once");
    assert_eq!(clock.advance(Duration::ZERO), 1);
    timer.dispose();
    assert_eq!(timer.reset_at(clock.wall() + secs(1)), Changed::Ended);
    assert_eq!(timer.dispose_and_wait(), Waited::Ended);
    journal.take();
    // After any end of a timer, neither time nor steps fire it again, and its payload is dropped.
    type End = fn(WallTimer, &Runtime);
    let ends: [(&str, End); 5] = [
        ("dispose", |timer, _| timer.dispose()),
        ("dispose_and_wait", |timer, _| assert_eq!(timer.dispose_and_wait(), Waited::Ended)),
        ("dispose_async", |timer, _| assert_eq!(block_on(timer.dispose_async()), Waited::Ended)),
        ("drop", |timer, _| drop(timer)),
        ("shutdown", |timer, runtime| {
            timer.detach();
            assert_eq!(runtime.shutdown(secs(1)), Ok(()));
        }),
    ];
    for (how, end) in ends {
        for far in [secs(10), Duration::from_secs(4_000_000_000)] {
            let clock = ManualClock::new();
            let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
            let (canary, fate) = Canary::new();
            let fired = Count::new();
            let timer = WallTimer::on(&runtime, clock.wall() + far, {
                let fired = fired.clone();
                move |_| {
                    canary.sing();
                    fired.bump();
                }
            });
            end(timer, &runtime);
            assert!(fate.is_dropped(), "{how}");
            clock.set_wall(clock.wall() + secs(5_000_000_000));
            assert_eq!((clock.advance(secs(100)), fired.get(), runtime.metrics().active), (0, 0, 0), "{how}");
        }
    }
    // Detached: fires, and is gone.
    let (canary, fate) = Canary::new();
    WallTimer::on(&runtime, clock.wall() + secs(1), move |_| canary.sing()).detach();
    assert!(!fate.is_dropped());
    assert_eq!(clock.advance(secs(1)), 1);
    assert!(fate.is_dropped());
    // Disposed from the start.
    runtime.shutdown(secs(1)).expect("nothing runs");
    let (canary, fate) = Canary::new();
    let timer = WallTimer::on(&runtime, clock.wall(), move |_| canary.sing());
    assert!(fate.is_dropped());
    assert_eq!(timer.reset_at(clock.wall()), Changed::Ended);
}

#[test]
fn s56_the_callback_changes_and_disposes_its_own_timer() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let start = clock.wall();
    let (canary, fate) = Canary::new();
    let timer = WallTimer::on(&runtime, start + secs(60), {
        let journal = journal.clone();
        move |tick| {
            canary.sing();
            journal.push(tick.scheduled());
            if tick.scheduled() == start + secs(180) {
                tick.dispose();
            } else {
                assert_eq!(tick.reset_at(tick.scheduled() + secs(60)), Changed::WasIdle);
            }
        }
    });
    clock.set_wall(start + secs(90)); // the first is late, the second is not
    assert_eq!(clock.advance(secs(1_000)), 3);
    assert_eq!(journal.take(), [start + secs(60), start + secs(120), start + secs(180)]);
    assert!(fate.is_dropped());
    assert_eq!(timer.reset_at(start), Changed::Ended);
}

#[test]
fn s56_times_that_no_clock_reaches() {
    let (clock, runtime) = manual();
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(i64::MAX as u64);
    let fired = Count::new();
    let far = WallTimer::on(&runtime, end, fired.wall_callback());
    clock.advance(Duration::from_secs(3_600_000_000));
    assert_eq!(fired.get(), 0);
    // A step past it counts all the same.
    clock.set_wall(end);
    assert_eq!(clock.advance(Duration::ZERO), 1);
    // The wall clock is at its end and stands still; nothing panics.
    clock.advance(secs(10));
    let before_all = SystemTime::UNIX_EPOCH - Duration::from_secs(1_000_000);
    clock.set_wall(before_all);
    assert_eq!(far.reset_at(before_all + secs(1)), Changed::WasIdle);
    assert_eq!(clock.advance(secs(1)), 1);
}

/// Random steps, suspends, advances and changes, against a model: a list of times and a wall clock.
#[test]
fn s56_agrees_with_a_plain_list() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let clock = ManualClock::new();
        let builder = Runtime::builder().manual_clock(&clock).queues(1 + seed as usize % 3);
        let on = if seed % 2 == 0 { RuntimeClock::Monotonic } else { RuntimeClock::Boot };
        let runtime = builder.clock(on).start().expect("nothing to refuse");
        let journal = Journal::new();
        let mut wall = SystemTime::UNIX_EPOCH + secs(1_000_000);
        clock.set_wall(wall);
        let mut timers: BTreeMap<u64, WallTimer> = BTreeMap::new();
        let mut waiting: BTreeMap<u64, SystemTime> = BTreeMap::new();
        let mut made = 0;
        for _ in 0..600 {
            let some_time = || ns(1 + random.0 % 100_000_000_000);
            let time = some_time();
            let near = if random.below(2) == 0 { wall + time } else { wall - time / 4 };
            match random.below(8) {
                0 | 1 => {
                    let (journal, id) = (journal.clone(), made);
                    let timer = WallTimer::on(&runtime, near, move |tick| journal.push((id, tick.now())));
                    timers.insert(made, timer);
                    waiting.insert(made, near);
                    made += 1;
                }
                2 if !timers.is_empty() => {
                    let id = *timers.keys().nth(random.below(timers.len() as u64) as usize).expect("some");
                    let was = if waiting.insert(id, near).is_some() { Changed::WasWaiting } else { Changed::WasIdle };
                    assert_eq!(timers[&id].reset_at(near), was, "seed {seed}");
                }
                3 if timers.len() > 20 => {
                    let id = *timers.keys().nth(random.below(timers.len() as u64) as usize).expect("some");
                    timers.remove(&id);
                    waiting.remove(&id);
                }
                4 => {
                    wall = near;
                    clock.set_wall(wall);
                }
                5 => {
                    wall += time / 8;
                    clock.suspend(time / 8);
                }
                _ => {}
            }
            // Due timers fire now, the rest when the clock reaches their time.
            let by = time / 16;
            let mut expected = Vec::new();
            waiting.retain(|&id, &mut at| {
                let fires = at <= wall + by;
                if fires {
                    expected.push((id, at.max(wall)));
                }
                !fires
            });
            wall += by;
            clock.advance(by);
            let mut seen = journal.take();
            seen.sort();
            expected.sort();
            assert_eq!(seen, expected, "seed {seed}");
            assert_eq!(clock.wall(), wall, "seed {seed}");
        }
    }
}

#[test]
fn s56_threads_that_change_and_dispose_while_the_clock_is_set() {
    within(PATIENCE, "wall timers of many threads", || {
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).queues(2).start().expect("nothing to refuse");
        const THREADS: u64 = 3;
        let (done, early) = (Count::new(), Count::new());
        thread::scope(|scope| {
            for seed in 0..THREADS {
                let (runtime, clock, done, early) = (&runtime, &clock, &done, &early);
                scope.spawn(move || {
                    let mut random = Random(seed);
                    for _ in 0..800 {
                        let fired = Count::new();
                        let timer =
                            WallTimer::on(runtime, clock.wall() + us(random.below(2_000)), fired.wall_callback());
                        if random.below(2) == 0 {
                            let _ = timer.reset_at(clock.wall() + us(random.below(2_000)));
                        }
                        if random.below(8) == 0 {
                            timer.detach();
                        } else {
                            assert_eq!(timer.dispose_and_wait(), Waited::Ended);
                            let after = fired.get();
                            thread::yield_now();
                            if fired.get() != after {
                                early.bump();
                            }
                        }
                    }
                    done.bump();
                });
            }
            let mut random = Random(99);
            while done.get() < THREADS as usize {
                clock.advance(us(random.below(500)));
                let wall = clock.wall();
                let by = us(random.below(1_000));
                clock.set_wall(if random.below(2) == 0 { wall + by } else { wall - by });
            }
        });
        assert_eq!(early.get(), 0, "after it has been waited for");
        clock.set_wall(clock.wall() + secs(10));
        clock.advance(Duration::ZERO);
        assert_eq!(runtime.metrics().active, 0, "all detached ones have fired, the others are gone");
    });
}
