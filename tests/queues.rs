//! Queues, the pool and the end of a runtime: S26, S29 to S33. (S25, S27, S28 and S32 are about system calls and have a
//! binary of their own; S34 is with the faults.)
//!
//! Ground rules. Most of this is about threads, so it runs on real time, under a watchdog. A callback that "blocks for
//! ever" waits at a gate that the test opens at its end.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{
    Canary, Count, Gate, Journal, NEVER, OnDrop, PATIENCE, Random, block_on, blocked, eventually, lock, manual, ms,
    native, ns, open_descriptors, secs, threads_named, us, within,
};
use timerqueue::{Changed, ManualClock, Runtime, Timer, Waited};

const WINDOW_NS: u64 = 333_000_000;

// -------------------------------------------------------------------------------------- S26: the lists and their edges

#[test]
fn s26_due_points_on_every_edge_fire_on_the_nanosecond() {
    // Windows of 333 ms, rings of 2,048 windows, groups of 1,024, and what lies beyond 1,024 groups.
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
            runtime.timer(ns(due), NEVER, move |tick| {
                journal.push((tick.scheduled().as_duration(), tick.now().as_duration()));
            })
        };
        // Each one twice, counted from now and placed on the grid of the clock, and a neighbour that is taken out
        // again.
        let mut timers = Vec::new();
        for &edge in &edges {
            timers.push(arm(edge));
            drop(arm(edge));
            timers.push(arm(edge.next_multiple_of(WINDOW_NS) - origin % WINDOW_NS));
        }
        assert_eq!(runtime.active_timers(), timers.len());
        clock.advance(NEVER);
        let seen = journal.take();
        assert_eq!(seen.len(), timers.len(), "origin {origin}");
        assert!(seen.iter().all(|(scheduled, now)| scheduled == now), "origin {origin}");
        assert!(seen.windows(2).all(|pair| pair[0] <= pair[1]), "origin {origin}");
    }
}

#[test]
fn s26_random_filing_and_unlinking_loses_nothing() {
    let mut random = Random(26);
    for round in 0..20 {
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).queues(1 + round % 3).start().expect("nothing to refuse");
        clock.advance(ns(random.next() >> 20));
        let fired: Arc<Vec<Mutex<Vec<Duration>>>> = Arc::new((0..100).map(|_| Mutex::default()).collect());
        let timers: Vec<Timer> = (0..100)
            .map(|i| {
                let fired = Arc::clone(&fired);
                runtime.timer(NEVER, NEVER, move |tick| lock(&fired[i]).push(tick.now().as_duration()))
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
            assert_eq!(runtime.active_timers(), due.iter().flatten().count());
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
        // Other threads have the queue for themselves meanwhile.
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for k in 0..1_000 {
                        let timer = runtime.timer(secs(10 + k), NEVER, |_| {});
                        assert_eq!(timer.change(secs(5), NEVER), Changed::WasWaiting);
                        assert!(runtime.active_timers() > 0 && runtime.next_due().is_some());
                    }
                    for timer in &blocked {
                        let _ = timer.change(secs(1_000), NEVER);
                    }
                });
            }
        });
        assert_eq!(runtime.active_timers(), 4);
        blocked.iter().for_each(Timer::dispose);
        assert_eq!(runtime.active_timers(), 0);
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
                runtime.timer(NEVER, NEVER, move |tick| {
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
        assert_eq!(runtime.panics(), 0);
    });
}

#[test]
fn s30_moving_a_crowded_window_is_done_in_steps_too() {
    // A million would be dealt from the window of 333 ms in one go; here the effect is exactness on virtual time.
    let (clock, runtime) = manual();
    let fired = Count::new();
    let late = Count::new();
    let timers: Vec<Timer> = (0..20_000u64)
        .map(|i| {
            let (fired, late) = (fired.clone(), late.clone());
            runtime.timer(ns(10 * WINDOW_NS + i % 1_000), NEVER, move |tick| {
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

// ---------------------------------------------------------------------------------- S31: callbacks that block for ever

#[test]
fn s31_callbacks_that_block_delay_nobody_else() {
    within(2 * PATIENCE, "timers beside blocked callbacks", || {
        let runtime =
            Runtime::builder().queues(2).workers(2).thread_name("tq-s31").start().expect("the system has threads");
        let (entered, gate) = (Count::new(), Gate::new());
        let block = || {
            let (entered, gate) = (entered.clone(), gate.clone());
            move |_: &timerqueue::Tick<'_>| {
                entered.bump();
                gate.wait();
            }
        };
        let mut blocked = Vec::new();
        // One by one, all at once from a sweep, and all at once from outside.
        for k in 0..8 {
            blocked.push(runtime.once(ms(1), block()));
            eventually("one by one", || entered.get() > k);
        }
        blocked.extend((0..30).map(|_| runtime.once(ms(5), block())));
        eventually("from a sweep", || entered.get() == 38);
        blocked.extend((0..30).map(|_| runtime.once(Duration::ZERO, block())));
        eventually("from outside", || entered.get() == 68);
        let ticks = Count::new();
        let free = runtime.timer(ms(1), ms(1), ticks.callback());
        let (send, receive) = mpsc::channel();
        for due in [0, 1, 10, 340] {
            let send = send.clone();
            runtime.once(ms(due), move |_| send.send(due).expect("the test listens")).detach();
        }
        // In no order that is promised.
        let mut seen: Vec<u64> = (0..4).map(|_| receive.recv_timeout(PATIENCE).expect("fires")).collect();
        seen.sort();
        assert_eq!(seen, [0, 1, 10, 340]);
        eventually("100 ticks", || ticks.get() >= 100);
        gate.open();
        drop((blocked, free));
        runtime.shutdown(PATIENCE).expect("all return");
    });
}

#[test]
fn s31_up_to_a_number_of_threads() {
    within(2 * PATIENCE, "the limit of threads", || {
        let runtime = Runtime::builder()
            .queues(1)
            .workers(2)
            .max_threads(5)
            .keep_alive(ms(50))
            .thread_name("tq-limit")
            .start()
            .expect("the system has threads");
        let (entered, gate) = (Count::new(), Gate::new());
        let blocked: Vec<_> = (0..20)
            .map(|_| {
                let (entered, gate) = (entered.clone(), gate.clone());
                runtime.once(ms(1), move |_| {
                    entered.bump();
                    gate.wait();
                })
            })
            .collect();
        // One of the five watches the alarms; the other four may be blocked.
        eventually("as many as there may be", || entered.get() == 4);
        assert_eq!((runtime.threads(), threads_named("tq-limit")), (5, 5));
        let (send, receive) = mpsc::channel();
        let waiting = runtime.once(Duration::ZERO, move |_| send.send(()).expect("the test listens"));
        assert!(receive.recv_timeout(ms(100)).is_err(), "all threads there may be are blocked: due timers wait");
        assert_eq!((entered.get(), runtime.threads()), (4, 5));
        gate.open();
        receive.recv_timeout(PATIENCE).expect("and run when one comes back");
        eventually("all have run", || entered.get() == 20);
        eventually("threads beyond the workers end when they are idle", || threads_named("tq-limit") == 2);
        assert_eq!(runtime.threads(), 2);
        drop((blocked, waiting));
    });
}

#[test]
fn s31_idle_threads_take_over_at_the_limit_too() {
    within(2 * PATIENCE, "callbacks behind a blocked one", || {
        // No thread can be brought in; three of the four are idle.
        let runtime = Runtime::builder().queues(1).workers(4).max_threads(4).start().expect("the system has threads");
        for round in 0..20 {
            // The pool has learnt that callbacks here are quick, and may want to run a few on one thread.
            let quick = Count::new();
            let timers: Vec<Timer> = (0..50).map(|i| runtime.timer(us(20 * i), NEVER, quick.callback())).collect();
            eventually("quick ones", || quick.get() == 50);
            drop(timers);
            let (met, gate) = (Count::new(), Gate::new());
            let at = runtime.now() + ms(3);
            let timers: Vec<Timer> = (0..3)
                .map(|_| {
                    let (met, gate) = (met.clone(), gate.clone());
                    runtime.timer(at - runtime.now(), NEVER, move |_| {
                        // None returns before all have begun.
                        if met.bump() == 3 {
                            gate.open();
                        }
                        gate.wait();
                    })
                })
                .collect();
            eventually("three at the same time", || met.get() == 3);
            for timer in &timers {
                assert_eq!(timer.dispose_and_wait(), Waited::Ended, "round {round}");
            }
        }
    });
}

/// Waves of blocked callbacks, so that threads come and go.
fn waves(keep_alive: Duration) {
    within(2 * PATIENCE, "waves of blocked callbacks", move || {
        let runtime =
            Runtime::builder().queues(1).workers(2).keep_alive(keep_alive).start().expect("the system has threads");
        for wave in 0..5 {
            let (entered, gate) = (Count::new(), Gate::new());
            let timers: Vec<_> = (0..10)
                .map(|_| {
                    let (entered, gate) = (entered.clone(), gate.clone());
                    runtime.once(Duration::ZERO, move |_| {
                        entered.bump();
                        gate.wait();
                    })
                })
                .collect();
            eventually("the wave", || entered.get() == 10);
            gate.open();
            for timer in &timers {
                assert_eq!(timer.dispose_and_wait(), Waited::Ended, "wave {wave}");
            }
        }
        runtime.shutdown(PATIENCE).expect("all threads end");
    });
}

#[test]
fn s31_threads_come_and_go_again_and_again() {
    waves(Duration::ZERO);
    waves(ms(1));
}

#[test]
fn s31_threads_may_stay_for_ever() {
    waves(NEVER);
}

// -------------------------------------------------------------------------------------------------------- S33: the end

#[test]
fn s33_pending_timers_never_fire_again() {
    let (clock, runtime) = manual();
    let fired = Count::new();
    let (canary, fate) = Canary::new();
    let timers: Vec<Timer> = [0, 1, 333, 400, 1_000_000_000]
        .into_iter()
        .flat_map(|due| {
            [
                runtime.timer(ms(due), ms(7), fired.callback()),
                runtime.exclusive_timer(ms(due), NEVER, {
                    let fired = fired.clone();
                    move |_| {
                        fired.bump();
                    }
                }),
            ]
        })
        .collect();
    let once = runtime.once(secs(5), move |_| canary.sing());
    runtime.timer(ms(1), ms(1), fired.callback()).detach();
    let idle = runtime.timer(NEVER, NEVER, |_| {});
    assert_eq!(runtime.shutdown(Duration::ZERO), Ok(()));
    assert_eq!((runtime.active_timers(), clock.next_due()), (0, None));
    assert_eq!(clock.advance(NEVER), 0);
    assert!(fate.is_dropped(), "dropped with what they own");
    // Handles stay valid.
    for timer in &timers {
        assert_eq!(timer.change(ms(1), ms(1)), Changed::Ended);
        timer.dispose();
        assert_eq!(timer.dispose_and_wait(), Waited::Ended);
        assert_eq!(block_on(timer.dispose_async()), Waited::Ended);
    }
    assert_eq!((idle.change(ms(1), NEVER), once.change(ms(1))), (Changed::Ended, Changed::Ended));
    assert_eq!((idle.dispose_and_wait(), fired.get()), (Waited::Ended, 0));
}

#[test]
fn s33_timers_made_after_the_end_are_born_disposed() {
    for runtime in [manual().1, native()] {
        let maker = runtime.clone();
        runtime.shutdown(PATIENCE).expect("nothing runs");
        let (canary, fate) = Canary::new();
        let timer = maker.timer(Duration::ZERO, ms(1), move |_| canary.sing());
        assert!(fate.is_dropped());
        assert_eq!((timer.change(ms(1), ms(1)), timer.dispose_and_wait()), (Changed::Ended, Waited::Ended));
        let (canary, fate) = Canary::new();
        let once = maker.once(Duration::ZERO, move |_| canary.sing());
        assert!(fate.is_dropped());
        assert_eq!(once.change(ms(1)), Changed::Ended);
        maker.exclusive_timer(ms(1), ms(1), |_| {}).detach();
        assert_eq!((maker.active_timers(), maker.next_due(), maker.fired()), (0, None, 0));
    }
}

/// A runtime with `running` callbacks that wait at the gate, and what tells of them.
fn with_blocked_callbacks(name: &str, running: usize) -> (Runtime, Gate, Count, Vec<Timer>) {
    let runtime = Runtime::builder().queues(1).workers(3).thread_name(name).start().expect("the system has threads");
    let (entered, finished, gate) = (Count::new(), Count::new(), Gate::new());
    let timers = (0..running)
        .map(|_| {
            let (entered, finished, gate) = (entered.clone(), finished.clone(), gate.clone());
            runtime.timer(ms(1), NEVER, move |_| {
                entered.bump();
                gate.wait();
                finished.bump();
            })
        })
        .collect();
    eventually("callbacks run", || entered.get() == running);
    (runtime, gate, finished, timers)
}

/// A thread has let go of everything when it is counted out, and is gone from the system's list a moment later.
fn all_gone(name: &str) {
    eventually("threads end", || threads_named(name) == 0);
}

#[test]
fn s33_running_callbacks_are_awaited_and_threads_end() {
    within(PATIENCE, "a shutdown", || {
        let (runtime, gate, finished, timers) = with_blocked_callbacks("tq-await", 5);
        let (about, begin) = mpsc::channel();
        let closer = thread::spawn({
            let (runtime, finished) = (runtime.clone(), finished.clone());
            move || {
                about.send(()).expect("the test listens");
                (runtime.shutdown(PATIENCE), finished.get())
            }
        });
        begin.recv().expect("it begins");
        gate.open();
        assert_eq!(closer.join().expect("no panic"), (Ok(()), 5));
        all_gone("tq-await");
        drop(timers);
    });
}

#[test]
fn s33_with_a_limit() {
    within(PATIENCE, "shutdowns with a limit", || {
        let (runtime, gate, finished, timers) = with_blocked_callbacks("tq-late", 2);
        for limit in [Duration::ZERO, ms(1), ms(20)] {
            let begin = Instant::now();
            let late = runtime.shutdown(limit).expect_err("two callbacks are blocked");
            assert!(begin.elapsed() >= limit && late.threads() >= 2, "{late:?}");
            assert!(late.to_string().contains(&late.threads().to_string()), "{late}");
        }
        eventually("idle threads are gone", || threads_named("tq-late") == 2);
        assert_eq!(runtime.shutdown(ms(1)).map_err(|late| late.threads()), Err(2));
        gate.open();
        assert_eq!(runtime.shutdown(NEVER), Ok(()), "a later call waits again");
        assert_eq!((finished.get(), runtime.threads()), (2, 0));
        all_gone("tq-late");
        assert_eq!(runtime.shutdown(Duration::ZERO), Ok(()));
        drop(timers);
    });
}

#[test]
fn s33_from_several_threads_at_once() {
    within(PATIENCE, "shutdowns from several threads", || {
        let (runtime, gate, finished, timers) = with_blocked_callbacks("tq-several", 3);
        let closers: Vec<_> = (0..4)
            .map(|_| {
                let (runtime, finished) = (runtime.clone(), finished.clone());
                thread::spawn(move || (runtime.shutdown(PATIENCE), finished.get()))
            })
            .collect();
        gate.open();
        for closer in closers {
            assert_eq!(closer.join().expect("no panic"), (Ok(()), 3));
        }
        drop(timers);
    });
}

#[test]
fn s33_from_inside_a_callback() {
    within(PATIENCE, "a callback that ends its runtime", || {
        let (runtime, gate, finished, timers) = with_blocked_callbacks("tq-inside", 2);
        let (send, receive) = mpsc::channel();
        let closer = runtime.once(Duration::ZERO, {
            let (runtime, gate, finished) = (runtime.clone(), gate.clone(), finished.clone());
            move |_| {
                let short = runtime.shutdown(ms(5)).map_err(|late| late.threads() >= 2);
                gate.open();
                // The others are awaited, this one is not.
                send.send((short, runtime.shutdown(PATIENCE), finished.get())).expect("the test listens");
            }
        });
        assert_eq!(receive.recv_timeout(PATIENCE), Ok((Err(true), Ok(()), 2)));
        assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
        all_gone("tq-inside");
        drop((timers, closer));
    });
}

#[test]
fn s33_from_inside_several_callbacks_at_once() {
    within(PATIENCE, "callbacks that end their runtime together", || {
        let runtime =
            Runtime::builder().queues(1).workers(4).thread_name("tq-both").start().expect("the system has threads");
        let (send, receive) = mpsc::channel();
        let together = Arc::new(Barrier::new(3));
        for _ in 0..3 {
            let (own, send, together) = (runtime.clone(), send.clone(), Arc::clone(&together));
            let closer = move |_: &timerqueue::Tick<'_>| {
                together.wait();
                // None can wait for the others to return.
                send.send(own.shutdown(PATIENCE)).expect("the test listens");
            };
            runtime.once(ms(1), closer).detach();
        }
        for _ in 0..3 {
            assert_eq!(receive.recv_timeout(PATIENCE / 2), Ok(Ok(())));
        }
        assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
        all_gone("tq-both");
    });
}

#[test]
fn s33_from_a_destructor_on_a_thread_of_the_program() {
    within(PATIENCE, "a destructor that ends the runtime", || {
        let (runtime, gate, finished, timers) = with_blocked_callbacks("tq-destruct", 1);
        let results = Journal::new();
        let closer = |limit| {
            let (own, results) = (runtime.clone(), results.clone());
            let owned = OnDrop(move || results.push(own.shutdown(limit).map_err(|late| late.threads() > 0)));
            runtime.timer(NEVER, NEVER, move |_| owned.hold())
        };
        let (early, late, last) = (closer(ms(20)), closer(PATIENCE), closer(PATIENCE));
        early.dispose();
        assert_eq!(results.take(), [Err(true)], "this is no thread of the pool: the blocked callback is waited for");
        gate.open();
        drop(late);
        assert_eq!((results.take(), finished.get()), (vec![Ok(())], 1));
        drop(last);
        assert_eq!(results.take(), [Ok(())], "nothing is left to wait for");
        drop(timers);
    });
}

#[test]
fn s33_from_inside_a_callback_on_virtual_time() {
    let (clock, runtime) = manual();
    let fired = Count::new();
    let before = runtime.timer(ms(10), NEVER, fired.callback());
    let closer = runtime.once(ms(10), {
        let runtime = runtime.clone();
        move |_| runtime.shutdown(Duration::ZERO).expect("no threads")
    });
    // Due at the same instant, so they are claimed already; and others, which are filed.
    let claimed = [runtime.timer(ms(10), NEVER, fired.callback()), runtime.timer(ms(10), ms(1), fired.callback())];
    let filed = runtime.timer(ms(11), NEVER, fired.callback());
    assert_eq!(clock.advance(secs(1)), 2, "the one before and the one that ends it");
    assert_eq!((fired.get(), runtime.panics()), (1, 0));
    assert_eq!(claimed[1].change(ms(1), NEVER), Changed::Ended);
    drop((before, closer, claimed, filed));
}

#[test]
fn s33_from_inside_a_panic_handler_and_a_destructor() {
    within(PATIENCE, "user code on a thread of the pool that ends its runtime", || {
        let own: Arc<Mutex<Option<Runtime>>> = Arc::default();
        let (send, receive) = mpsc::channel();
        let runtime = Runtime::builder()
            .queues(1)
            .on_panic({
                let (own, send) = (Arc::clone(&own), send.clone());
                move |_| {
                    let runtime = lock(&own).clone().expect("set");
                    send.send(runtime.shutdown(secs(2))).expect("the test listens");
                }
            })
            .start()
            .expect("the system has threads");
        *lock(&own) = Some(runtime.clone());
        runtime.once(Duration::ZERO, |_| panic!("handled")).detach();
        assert_eq!(receive.recv_timeout(PATIENCE), Ok(Ok(())), "a handler does not wait for its own thread");
        lock(&own).take(); // a handler that owns its runtime is a cycle

        let runtime = native();
        let owned = OnDrop({
            let runtime = runtime.clone();
            move || send.send(runtime.shutdown(secs(2))).expect("the test listens")
        });
        runtime.timer(Duration::ZERO, NEVER, move |_| owned.hold()).detach();
        assert_eq!(receive.recv_timeout(PATIENCE), Ok(Ok(())), "nor does a destructor");
    });
}

#[test]
fn s33_queued_callbacks_are_discarded_and_their_waits_end() {
    within(PATIENCE, "a shutdown with queued callbacks", || {
        // Two threads, of which one watches: the second callback cannot start while the first runs.
        let runtime = Runtime::builder().queues(1).workers(2).max_threads(2).start().expect("the system has threads");
        let (entered, gate) = (Gate::new(), Gate::new());
        let first = runtime.once(Duration::ZERO, {
            let (entered, gate) = (entered.clone(), gate.clone());
            move |_| {
                entered.open();
                gate.wait();
            }
        });
        entered.wait();
        let started = Count::new();
        let (canary, fate) = Canary::new();
        let queued = runtime.timer(Duration::ZERO, NEVER, {
            let started = started.clone();
            move |_| {
                canary.sing();
                started.bump();
            }
        });
        let periodic = runtime.timer(us(1), us(1), started.callback());
        let (forgotten, forgotten_fate) = Canary::new();
        let forgotten = runtime.once(Duration::ZERO, move |_| forgotten.sing());
        assert_eq!(runtime.shutdown(ms(1)).map_err(|late| late.threads() > 0), Err(true));
        // Begun while the first callback still runs; that one's wait ends with it.
        let mut running = Box::pin(first.dispose_async());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(running.as_mut().poll(&mut context).is_pending());
        assert_eq!(queued.dispose_and_wait(), Waited::Ended);
        assert!(fate.is_dropped());
        assert_eq!(periodic.dispose_and_wait(), Waited::Ended);
        gate.open();
        assert_eq!(block_on(running), Waited::Ended);
        assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
        assert_eq!(started.get(), 0);
        assert!(
            forgotten_fate.is_dropped(),
            "what was queued is dropped with what it owned, though its handle is there"
        );
        drop(forgotten);
    });
}

#[test]
fn s33_dropping_the_last_handle_ends_the_runtime() {
    within(PATIENCE, "dropping runtimes", || {
        let (entered, gate) = (Gate::new(), Gate::new());
        let fired = Count::new();
        let (pending, pending_fate) = Canary::new();
        let (running, running_fate) = Canary::new();
        let runtime = Runtime::builder().queues(2).thread_name("tq-last").start().expect("the system has threads");
        let clone = runtime.clone();
        let blocked = runtime.timer(Duration::ZERO, ms(1), {
            let (entered, gate) = (entered.clone(), gate.clone());
            move |tick| {
                running.sing();
                let _ = tick.change(NEVER, NEVER);
                entered.open();
                gate.wait();
            }
        });
        runtime.once(secs(1_000), move |_| pending.sing()).detach();
        let mut idle = runtime.timer(NEVER, NEVER, fired.callback());
        entered.wait();
        drop(runtime);
        assert_eq!(idle.change(secs(1_000), NEVER), Changed::WasIdle, "another handle is left");
        drop(clone);
        assert!(pending_fate.is_dropped(), "pending timers go at once");
        assert_eq!(idle.change(ms(1), NEVER), Changed::Ended);
        assert_eq!(blocked.change(ms(1), NEVER), Changed::Ended);
        assert!(!running_fate.is_dropped(), "running callbacks are not waited for");
        // A handle may be dropped and used in any order with the rest.
        let waiter = thread::spawn(move || blocked.dispose_and_wait());
        gate.open();
        assert_eq!(waiter.join().expect("no panic"), Waited::Ended);
        all_gone("tq-last");
        assert!(running_fate.is_dropped());
        idle = within(PATIENCE, "a handle on another thread", move || {
            idle.dispose();
            idle
        });
        drop(idle);
        assert_eq!(fired.get(), 0);
    });
}

#[test]
fn s33_the_last_handle_may_be_dropped_by_a_callback() {
    within(PATIENCE, "a callback with the last handle", || {
        for due in [Duration::ZERO, ms(1)] {
            let runtime =
                Runtime::builder().queues(1).thread_name("tq-suicide").start().expect("the system has threads");
            let slot = Arc::new(Mutex::new(None));
            let (send, receive) = mpsc::channel();
            let timer = runtime.timer(due, ms(1), {
                let slot = Arc::clone(&slot);
                move |tick| {
                    let last: Option<Runtime> = lock(&slot).take();
                    let had = last.is_some();
                    drop(last);
                    let _ = send.send((had, tick.change(ms(1), ms(1))));
                }
            });
            // Not before the timer is made, or it might be born disposed.
            *lock(&slot) = Some(runtime);
            let last = receive.iter().find(|(had, _)| *had);
            assert_eq!(last, Some((true, Changed::Ended)));
            all_gone("tq-suicide");
            assert_eq!(timer.dispose_and_wait(), Waited::Ended);
        }
        let (clock, runtime) = manual();
        let slot = Arc::new(Mutex::new(None));
        let fired = Count::new();
        let timers = [
            runtime.once(ms(1), {
                let slot: Arc<Mutex<Option<Runtime>>> = Arc::clone(&slot);
                move |_| drop(lock(&slot).take())
            }),
            runtime.once(ms(2), {
                let fired = fired.clone();
                move |_| {
                    fired.bump();
                }
            }),
        ];
        *lock(&slot) = Some(runtime);
        assert_eq!((clock.advance(secs(1)), fired.get()), (1, 0));
        drop(timers);
    });
}

#[test]
fn s33_a_callback_that_owns_its_runtime_keeps_it_until_shutdown() {
    let (clock, runtime) = manual();
    let ticks = Count::new();
    let owner = runtime.clone();
    runtime
        .timer(ms(1), ms(1), {
            let ticks = ticks.clone();
            move |_| {
                let _ = owner.active_timers();
                ticks.bump();
            }
        })
        .detach();
    let closer = runtime.once(ms(10), {
        let slot = Mutex::new(Some(runtime.clone()));
        move |_| lock(&slot).take().expect("once").shutdown(Duration::ZERO).expect("no threads")
    });
    drop(runtime);
    clock.advance(secs(1));
    assert_eq!(ticks.get(), 10);
    drop(closer);
}

#[test]
fn s33_nothing_of_a_runtime_is_left() {
    // Other tests of this binary open and close descriptors at the same time, so compare over many rounds.
    let leaked_by = |rounds: usize| {
        let before = open_descriptors();
        for _ in 0..rounds {
            let runtime = Runtime::builder().queues(4).workers(2).start().expect("the system has threads");
            let timers: Vec<Timer> = (0..50).map(|i| runtime.timer(us(i * 100), ms(1), |_| {})).collect();
            if rounds % 2 == 0 {
                runtime.shutdown(PATIENCE).expect("nothing blocks");
            }
            drop(runtime);
            drop(timers);
        }
        open_descriptors().saturating_sub(before)
    };
    leaked_by(1);
    eventually("forty runtimes of seven descriptors leave none", || leaked_by(40) < 7 * 40 / 4);
}

#[test]
fn s33_shutdown_races_with_everything() {
    within(2 * PATIENCE, "shutdowns in the middle of it all", || {
        let mut random = Random(33);
        for round in 0..60 {
            let runtime = Runtime::builder().queues(2).workers(2).start().expect("the system has threads");
            let over = Arc::new(AtomicBool::new(false));
            let (started_late, running) = (Count::new(), Arc::new(AtomicUsize::new(0)));
            let busy: Vec<_> = (0..2)
                .map(|_| {
                    let (runtime, over) = (runtime.clone(), Arc::clone(&over));
                    let (late, running) = (started_late.clone(), Arc::clone(&running));
                    let mut random = Random(random.next());
                    thread::spawn(move || {
                        let mut kept = Vec::new();
                        loop {
                            let (over, late, running) = (Arc::clone(&over), late.clone(), Arc::clone(&running));
                            let timer = runtime.timer(us(random.below(80)), us(1 + random.below(50)), move |tick| {
                                running.fetch_add(1, Ordering::SeqCst);
                                if over.load(Ordering::SeqCst) {
                                    late.bump();
                                }
                                let _ = tick.change(us(7), us(9));
                                running.fetch_sub(1, Ordering::SeqCst);
                            });
                            if timer.change(us(random.below(60)), NEVER) == Changed::Ended {
                                return kept;
                            }
                            match random.below(3) {
                                0 => timer.detach(),
                                1 => drop(timer),
                                _ => kept.push(timer),
                            }
                        }
                    })
                })
                .collect();
            let until = runtime.now() + us(random.below(2_000));
            while runtime.now() < until {
                thread::yield_now();
            }
            runtime.shutdown(PATIENCE).expect("no callback blocks");
            assert_eq!(running.load(Ordering::SeqCst), 0, "round {round}: running callbacks are awaited");
            over.store(true, Ordering::SeqCst);
            let kept: Vec<_> = busy.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect();
            for timer in &kept {
                assert_eq!(timer.change(ns(1), NEVER), Changed::Ended);
            }
            assert_eq!((started_late.get(), runtime.active_timers()), (0, 0), "round {round}");
        }
    });
}
