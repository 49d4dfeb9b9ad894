//! Changes of a timer: S15 to S17. (S18 counts system calls, and is in
//! `tests/process/syscalls.rs`.)
//!
//! Ground rules. On virtual time a test can hold a timer in the state "claimed, not begun": of two
//! timers due at the same instant, the second is claimed while the callback of the first runs.
//! Tests of several threads run on real time, always under a watchdog.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{
    Count, Gate, Journal, NEVER, PATIENCE, Random, claimed, eventually, manual, millis, ms, native, ns, recording,
    secs, us, within,
};
use timerqueue::{Changed, MissedTicks, OnceTimer, Tick, Timer, TimerBuilder, Waited};

// --------------------------------------------------------------------------------------------------------- S15: change

#[test]
fn s15_change_replaces_both_counting_from_now() {
    for (due, period) in [(1, 1), (50, 400), (400, 50), (333, 333), (100_000, 7)] {
        let (clock, runtime) = manual();
        let journal = Journal::new();
        let timer = Timer::on(&runtime, ms(77), ms(11), recording(&journal));
        clock.advance(ms(90)); // 77, 88
        assert_eq!(timer.change(ms(due), ms(period)), Changed::WasWaiting);
        assert_eq!(runtime.next_due(), Some(clock.now() + ms(due)));
        clock.advance(ms(due + 2 * period));
        assert_eq!(journal.take(), [77, 88, 90 + due, 90 + due + period, 90 + due + 2 * period]);
        drop(timer);
    }
}

#[test]
fn s15_change_says_whether_the_timer_was_waiting() {
    use Changed::{WasIdle, WasWaiting};
    let (clock, runtime) = manual();
    let timer = Timer::on(&runtime, NEVER, ms(1), |_| {});
    assert_eq!(timer.change(NEVER, ms(1)), WasIdle, "never started");
    assert_eq!(timer.change(ms(5), NEVER), WasIdle);
    assert_eq!(timer.change(ms(6), NEVER), WasWaiting);
    clock.stall(ms(6));
    assert_eq!(timer.change(ms(5), NEVER), WasWaiting, "due, but not swept yet");
    assert_eq!(clock.advance(Duration::ZERO), 0);
    assert_eq!(clock.advance(ms(5)), 1);
    assert_eq!(timer.change(ms(5), ms(5)), WasIdle, "a one-shot that has fired");
    assert_eq!(clock.advance(ms(11)), 2);
    assert_eq!(timer.change(NEVER, NEVER), WasWaiting, "a periodic one waits for the next tick");
    assert_eq!(timer.change(ms(1), NEVER), WasIdle, "stopped");
    assert!(timer.change(ms(1), NEVER).was_waiting());

    let once = OnceTimer::on(&runtime, NEVER, |_| {});
    assert_eq!([once.reset(ms(1)), once.reset(NEVER), once.reset(ms(2))], [WasIdle, WasWaiting, WasIdle]);
    assert_eq!((clock.advance(ms(1)), clock.advance(ms(1))), (1, 1), "the timer's, then the once");
    assert_eq!(once.reset(ms(1)), Changed::Ended, "its callback is spent");
    drop((timer, once));
}

#[test]
fn s15_change_from_the_own_callback() {
    let (clock, runtime) = manual();
    for exclusive in [false, true] {
        let journal = Journal::new();
        let callback = {
            let (journal, calls) = (journal.clone(), AtomicU64::new(0));
            move |tick: &Tick<'_>| {
                let changed = match calls.fetch_add(1, Ordering::Relaxed) {
                    // was periodic: waits for its next tick already
                    0 => tick.change(ms(400), NEVER),
                    1 => tick.change(Duration::ZERO, NEVER), // was a one-shot: idle while it runs
                    2 => tick.change(ms(5), ms(7)),
                    3 => tick.change(NEVER, ms(7)),
                    n => unreachable!("call {n}"),
                };
                journal.push((millis(tick.now()), changed));
            }
        };
        let start = millis(clock.now());
        let timer = if exclusive {
            TimerBuilder::on(&runtime).period(ms(50)).start_exclusive(callback)
        } else {
            Timer::on(&runtime, ms(50), ms(50), callback)
        };
        assert_eq!(clock.advance(secs(2)), 4);
        use Changed::{WasIdle, WasWaiting};
        let seen: Vec<_> = journal.take().into_iter().map(|(at, changed)| (at - start, changed)).collect();
        assert_eq!(seen, [(50, WasWaiting), (450, WasIdle), (450, WasIdle), (455, WasWaiting)]);
        drop(timer);
    }
    assert_eq!(runtime.metrics().panics, 0);
}

#[test]
fn s15_the_last_of_several_changes_holds() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timer = Timer::on(&runtime, ms(1), ms(1), recording(&journal));
    let mut random = Random(15);
    for _ in 0..1_000 {
        // Far and near, so the timer enters every kind of list.
        let _ = timer.change(ns(random.next() >> random.below(60)), ns(random.next() >> random.below(60)));
    }
    assert_eq!(runtime.metrics().active, 1);
    assert_eq!(timer.change(ms(400), ms(333)), Changed::WasWaiting);
    assert_eq!(clock.advance(ms(1_066)), 3);
    assert_eq!(journal.take(), [400, 733, 1_066]);
    drop(timer);
}

#[test]
fn s15_change_from_other_threads_while_the_callback_runs() {
    within(PATIENCE, "changes during a callback", || {
        let runtime = native();
        let (entered, gate) = (Gate::new(), Gate::new());
        let runs = Journal::new();
        let timer = Timer::on(&runtime, Duration::ZERO, NEVER, {
            let (entered, gate, runs, calls) = (entered.clone(), gate.clone(), runs.clone(), Count::new());
            move |tick| {
                runs.push(tick.scheduled());
                if calls.bump() == 1 {
                    entered.open();
                    gate.wait();
                }
            }
        });
        entered.wait();
        let last = thread::scope(|scope| {
            let changers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..500).map(|k| timer.change(secs(1_000 + k), NEVER)).filter(|c| !c.was_waiting()).count()
                    })
                })
                .collect();
            changers.into_iter().map(|changer| changer.join().expect("no panic")).sum::<usize>()
        });
        assert_eq!(last, 1, "only the very first of all changes found the running one-shot idle");
        let before = runtime.now();
        assert_eq!(timer.change(ms(1), NEVER), Changed::WasWaiting);
        eventually("the new schedule holds while the old callback still runs", || runs.len() == 2);
        gate.open();
        assert_eq!(timer.dispose_and_wait(), Waited::Ended);
        let runs = runs.take();
        assert!(runs.len() == 2 && runs[1] >= before + ms(1));
    });
}

// ---------------------------------------------------------------------------------------------- S16, S17: what is void

#[test]
fn s16_after_change_no_old_callback_starts() {
    for kind in ["overlapping", "exclusive"] {
        for period in [NEVER, ms(50)] {
            let (results, runs) = claimed(kind, period, |timer| timer.change(ms(400), NEVER));
            assert_eq!((results, runs), (vec![Changed::WasWaiting], vec![500]), "{kind}, {period:?}");
            let (results, runs) = claimed(kind, period, |timer| timer.change(NEVER, ms(1)));
            assert_eq!((results, runs), (vec![Changed::WasWaiting], vec![]), "{kind}, {period:?}");
            let (results, runs) = claimed(kind, period, |timer| {
                (timer.change(NEVER, NEVER), timer.change(ms(1), NEVER), timer.change(Duration::ZERO, NEVER))
            });
            assert_eq!(results, [(Changed::WasWaiting, Changed::WasIdle, Changed::WasWaiting)]);
            assert_eq!(runs, [100], "{kind}, {period:?}: once, under the schedule of the last change");
        }
    }
}

#[test]
fn s16_a_change_from_another_thread_voids_claimed_ticks() {
    within(PATIENCE, "a change during an advance", || {
        let (clock, runtime) = manual();
        let (entered, gate) = (Gate::new(), Gate::new());
        let journal = Journal::new();
        let blocker = OnceTimer::on(&runtime, ms(10), {
            let (entered, gate) = (entered.clone(), gate.clone());
            move |_| {
                entered.open();
                gate.wait();
            }
        });
        let timers: Vec<Timer> = (0..300).map(|_| Timer::on(&runtime, ms(10), ms(10), recording(&journal))).collect();
        let driver = thread::spawn(move || clock.advance(ms(55)));
        entered.wait();
        for timer in &timers {
            assert_eq!(timer.change(ms(40), NEVER), Changed::WasWaiting);
        }
        gate.open();
        assert_eq!(driver.join().expect("no panic"), 1 + 300);
        assert_eq!(journal.take(), [50; 300]);
        drop(blocker);
    });
}

#[test]
fn s16_deferred_ticks_of_a_running_exclusive_callback_are_void_too() {
    within(PATIENCE, "an exclusive timer that changes itself", || {
        let runtime = native();
        let journal = Journal::new();
        // The period is much shorter than the callback, so a tick of the old schedule is always
        // deferred.
        let timer =
            TimerBuilder::on(&runtime).due(us(20)).period(us(20)).missed_ticks(MissedTicks::Burst).start_exclusive({
                let (journal, mut calls, mut earliest) = (journal.clone(), 0, None);
                move |tick| {
                    calls += 1;
                    let early = earliest.is_some_and(|earliest| tick.scheduled() < earliest);
                    earliest = None;
                    if calls % 10 == 0 {
                        while tick.lateness() < us(100) {
                            thread::yield_now();
                        }
                        earliest = Some(tick.now() + us(700));
                        let changed = tick.change(us(700), us(20));
                        journal.push((early, Some(changed)));
                    } else {
                        journal.push((early, None));
                    }
                }
            });
        eventually("300 calls", || journal.len() >= 300);
        drop(timer);
        for (early, changed) in journal.take() {
            assert!(!early, "a tick of the old schedule started after the change");
            assert_ne!(changed, Some(Changed::WasIdle), "owed or filed, it was waiting to fire");
        }
    });
}

#[test]
fn s17_change_to_infinite_stops_and_the_timer_can_be_started_again() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timer = Timer::on(&runtime, ms(10), ms(10), recording(&journal));
    clock.advance(ms(25));
    for period in [Duration::ZERO, ms(10), NEVER] {
        let _ = timer.change(NEVER, period);
        assert_eq!((runtime.metrics().active, runtime.next_due()), (0, None), "unlinked at once");
        assert_eq!(clock.advance(secs(3600)), 0);
    }
    assert_eq!(timer.change(ms(1), ms(400)), Changed::WasIdle);
    assert_eq!(clock.advance(ms(801)), 3);
    assert_eq!(journal.len(), 2 + 3);
    drop(timer);
}
