//! What disposing, waiting, dropping and detaching promise: S19 to S24.
//!
//! Ground rules. Virtual time where a state can be held still; real time where threads must meet, always under a
//! watchdog, since what fails here hangs.

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use common::{
    Canary, Count, Fate, Gate, Journal, NEVER, OnDrop, Own, PATIENCE, block_on, claimed, eventually, lock, manual, ms,
    native, own, secs, us, within,
};
use timerqueue::{Changed, Disposal, ManualClock, OnceTimer, Runtime, Tick, Timer, Waited};

// --------------------------------------------------------------------------------------------------- S19, S20: dispose

/// A timer of each kind, as the things one can do to all of them.
struct Any {
    kind: &'static str,
    dispose: Box<dyn Fn() + Send + Sync>,
    wait: Box<dyn Fn() -> Waited + Send + Sync>,
    change: Box<dyn Fn() -> Changed + Send + Sync>,
}

fn any_of(timer: Timer, kind: &'static str) -> Any {
    let timer = Arc::new(timer);
    let (a, b, c) = (Arc::clone(&timer), Arc::clone(&timer), timer);
    Any {
        kind,
        dispose: Box::new(move || a.dispose()),
        wait: Box::new(move || b.dispose_and_wait()),
        change: Box::new(move || c.change(ms(1), ms(1))),
    }
}

fn any_of_once(timer: OnceTimer) -> Any {
    let timer = Arc::new(timer);
    let (a, b, c) = (Arc::clone(&timer), Arc::clone(&timer), timer);
    Any {
        kind: "once",
        dispose: Box::new(move || a.dispose()),
        wait: Box::new(move || b.dispose_and_wait()),
        change: Box::new(move || c.change(ms(1))),
    }
}

/// One timer of each kind with this schedule (once: without the period), and the fate of what each callback owns.
fn one_of_each(
    runtime: &Runtime,
    due: Duration,
    period: Duration,
    run: impl Fn() + Clone + Send + Sync + 'static,
) -> Vec<(Any, Fate)> {
    let (a, a_fate) = Canary::new();
    let (b, b_fate) = Canary::new();
    let (c, c_fate) = Canary::new();
    let (run_a, run_b, run_c) = (run.clone(), run.clone(), run);
    vec![
        (
            any_of(
                runtime.timer(due, period, move |_| {
                    a.sing();
                    run_a();
                }),
                "overlapping",
            ),
            a_fate,
        ),
        (
            any_of(
                runtime.exclusive_timer(due, period, move |_| {
                    b.sing();
                    run_b();
                }),
                "exclusive",
            ),
            b_fate,
        ),
        (
            any_of_once(runtime.once(due, move |_| {
                c.sing();
                run_c();
            })),
            c_fate,
        ),
    ]
}

#[test]
fn s19_dispose_is_idempotent_and_takes_effect_at_once() {
    let (clock, runtime) = manual();
    for due in [ms(0), ms(1), ms(333), ms(400), secs(1_000), secs(1_000_000), NEVER] {
        for (timer, fate) in one_of_each(&runtime, due, ms(7), || unreachable!("disposed in time")) {
            let others = runtime.active_timers();
            (timer.dispose)();
            assert_eq!(runtime.active_timers(), others - usize::from(due != NEVER), "{}: out of its list", timer.kind);
            assert!(fate.is_dropped(), "{}: nothing runs, so what it owned is gone", timer.kind);
            (timer.dispose)();
            assert_eq!((timer.change)(), Changed::Ended);
            assert_eq!((timer.wait)(), Waited::Ended);
            (timer.dispose)();
        }
        assert_eq!((runtime.active_timers(), runtime.next_due()), (0, None));
    }
    assert_eq!(clock.advance(secs(10_000_000)), 0);
}

#[test]
fn s19_dispose_after_firing_and_from_many_threads() {
    let (clock, runtime) = manual();
    let fired = Count::new();
    let run = {
        let fired = fired.clone();
        move || {
            fired.bump();
        }
    };
    let timers = one_of_each(&runtime, ms(10), NEVER, run);
    assert_eq!(clock.advance(ms(10)), 3);
    for (timer, fate) in &timers {
        assert_eq!(
            fate.is_dropped(),
            timer.kind == "once",
            "{}: only a once-callback is consumed by its firing",
            timer.kind
        );
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (timer.dispose)());
            }
        });
        assert!(fate.is_dropped());
        assert_eq!((timer.change)(), Changed::Ended);
    }
    assert_eq!((clock.advance(secs(1)), fired.get()), (0, 3));
}

#[test]
fn s20_after_dispose_no_callback_starts() {
    for kind in ["overlapping", "exclusive"] {
        for period in [NEVER, ms(50)] {
            let (_, runs) = claimed(kind, period, Timer::dispose);
            assert_eq!(runs, [], "{kind}, {period:?}");
            let (waited, runs) = claimed(kind, period, Timer::dispose_and_wait);
            assert_eq!((waited, runs), (vec![Waited::Ended], vec![]), "{kind}, {period:?}: claimed is not running");
        }
    }
    // A once-timer, too.
    let (clock, runtime) = manual();
    let victim: Own<OnceTimer> = Arc::default();
    let first = runtime.once(ms(10), {
        let victim = Arc::downgrade(&victim);
        move |_| own(&victim).get().expect("set").dispose()
    });
    let (canary, fate) = Canary::new();
    let timer = runtime.once(ms(10), move |_| canary.sing());
    victim.set(timer).expect("once");
    assert_eq!(clock.advance(ms(10)), 1);
    assert!(fate.is_dropped());
    drop(first);
}

#[test]
fn s20_a_running_callback_finishes() {
    within(PATIENCE, "dispose during a callback", || {
        let runtime = native();
        let (entered, gate) = (Count::new(), Gate::new());
        let finished = Count::new();
        let run = {
            let (entered, gate, finished) = (entered.clone(), gate.clone(), finished.clone());
            move || {
                entered.bump();
                gate.wait();
                finished.bump();
            }
        };
        let timers = one_of_each(&runtime, Duration::ZERO, NEVER, run);
        eventually("all three run", || entered.get() == 3);
        for (timer, fate) in &timers {
            (timer.dispose)();
            assert!(!fate.is_dropped(), "{}: what runs keeps what it owns", timer.kind);
            assert_eq!((timer.change)(), Changed::Ended);
        }
        assert_eq!(finished.get(), 0, "dispose does not wait");
        gate.open();
        eventually("they finish", || finished.get() == 3);
        eventually("and let go", || timers.iter().all(|(_, fate)| fate.is_dropped()));
        assert_eq!(entered.get(), 3);
    });
}

#[test]
fn s20_nothing_starts_after_dispose_and_wait_on_real_time() {
    within(2 * PATIENCE, "disposing what fires", || {
        let runtime = native();
        let late = Count::new();
        for round in 0..400 {
            let closed = Arc::new(AtomicBool::new(false));
            let timer = runtime.timer(us(round % 90), us(3 + round % 7), {
                let (closed, late) = (Arc::clone(&closed), late.clone());
                move |_| {
                    if closed.load(Ordering::SeqCst) {
                        late.bump();
                    }
                }
            });
            // Dispose at every possible moment of the first firings.
            let until = runtime.now() + us(round % 97);
            while runtime.now() < until {
                std::hint::spin_loop();
            }
            assert_eq!(timer.dispose_and_wait(), Waited::Ended);
            closed.store(true, Ordering::SeqCst);
            drop(timer);
        }
        runtime.shutdown(PATIENCE).expect("nothing runs");
        assert_eq!(late.get(), 0);
    });
}

// ------------------------------------------------------------------------------------------ S21, S22: dispose and wait

#[test]
fn s21_every_waiter_waits_for_every_running_callback() {
    within(2 * PATIENCE, "waiting for callbacks", || {
        for kind in ["overlapping", "exclusive", "once"] {
            let runtime = native();
            let (entered, finished, gate) = (Count::new(), Count::new(), Gate::new());
            let (canary, fate) = Canary::new();
            let run = {
                let (entered, finished, gate) = (entered.clone(), finished.clone(), gate.clone());
                move |_: &Tick<'_>| {
                    canary.sing();
                    entered.bump();
                    gate.wait();
                    finished.bump();
                }
            };
            // Several callbacks at once where that can be.
            let (timer, running) = match kind {
                "overlapping" => (Arc::new(runtime.timer(ms(1), ms(1), run)), 3),
                "exclusive" => (Arc::new(runtime.exclusive_timer(ms(1), ms(1), run)), 1),
                _ => {
                    let timer = runtime.once(Duration::ZERO, run);
                    eventually("the callback runs", || entered.get() == 1);
                    waiters_see_the_end(&finished, &entered, &fate, &gate, {
                        let timer = Arc::new(timer);
                        move |blocking| match blocking {
                            true => timer.dispose_and_wait(),
                            false => block_on(timer.dispose_async()),
                        }
                    });
                    continue;
                }
            };
            eventually("callbacks run", || entered.get() >= running);
            waiters_see_the_end(&finished, &entered, &fate, &gate, move |blocking| match blocking {
                true => timer.dispose_and_wait(),
                false => block_on(timer.dispose_async()),
            });
        }
    });
}

fn waiters_see_the_end(
    finished: &Count,
    entered: &Count,
    fate: &Fate,
    gate: &Gate,
    wait: impl Fn(bool) -> Waited + Clone + Send + 'static,
) {
    let (about_to_wait, waiting) = mpsc::channel();
    let waiters: Vec<_> = (0..8)
        .map(|i| {
            let (wait, about_to_wait) = (wait.clone(), about_to_wait.clone());
            let (finished, entered, fate) = (finished.clone(), entered.clone(), fate.clone());
            thread::spawn(move || {
                about_to_wait.send(()).expect("the test listens");
                let waited = wait(i % 2 == 0);
                (waited, finished.get() == entered.get(), fate.is_dropped())
            })
        })
        .collect();
    for _ in 0..8 {
        waiting.recv().expect("all begin to wait");
    }
    assert!(!fate.is_dropped());
    gate.open();
    for waiter in waiters {
        let (waited, all_finished, dropped) = waiter.join().expect("no panic");
        assert_eq!(waited, Waited::Ended);
        assert!(all_finished, "no callback runs when the wait returns");
        assert!(dropped, "and what they owned is gone");
    }
    assert_eq!(wait(true), Waited::Ended, "a late waiter does not wait");
}

#[test]
fn s21_a_slow_destructor_is_waited_for() {
    within(PATIENCE, "a destructor that takes its time", || {
        let runtime = native();
        let (dropping, gate) = (Gate::new(), Gate::new());
        let dropped = Count::new();
        let slow = {
            let (dropping, gate, dropped) = (dropping.clone(), gate.clone(), dropped.clone());
            OnDrop(move || {
                dropping.open();
                gate.wait();
                dropped.bump();
            })
        };
        let timer = Arc::new(runtime.timer(secs(1_000), NEVER, move |_| slow.hold()));
        let disposer = thread::spawn({
            let timer = Arc::clone(&timer);
            move || timer.dispose()
        });
        dropping.wait();
        let mut waiting = timer.dispose_async();
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(Pin::new(&mut waiting).poll(&mut context), Poll::Pending, "another thread is still dropping");
        let waiter = thread::spawn({
            let (timer, dropped) = (Arc::clone(&timer), dropped.clone());
            move || (timer.dispose_and_wait(), dropped.get())
        });
        gate.open();
        assert_eq!(waiter.join().expect("no panic"), (Waited::Ended, 1));
        assert_eq!(block_on(waiting), Waited::Ended);
        disposer.join().expect("no panic");
    });
}

/// A waker that counts.
struct Bell(Count);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.bump();
    }
}

#[test]
fn s21_the_waker_of_the_latest_poll_is_called() {
    within(PATIENCE, "wakers", || {
        let runtime = native();
        let (entered, gate) = (Gate::new(), Gate::new());
        let timer = runtime.timer(Duration::ZERO, NEVER, {
            let (entered, gate) = (entered.clone(), gate.clone());
            move |_| {
                entered.open();
                gate.wait();
            }
        });
        entered.wait();
        let bells: Vec<Count> = (0..4).map(|_| Count::new()).collect();
        let wakers: Vec<Waker> = bells.iter().map(|count| Waker::from(Arc::new(Bell(count.clone())))).collect();
        let mut moved = timer.dispose_async();
        let mut other = timer.dispose_async();
        let mut dropped = timer.dispose_async();
        let pend = |future: &mut Disposal, bell: usize| {
            assert_eq!(Pin::new(future).poll(&mut Context::from_waker(&wakers[bell])), Poll::Pending);
        };
        pend(&mut moved, 0);
        pend(&mut other, 2);
        pend(&mut dropped, 3);
        pend(&mut moved, 1);
        pend(&mut moved, 1);
        drop(dropped);
        gate.open();
        eventually("both are woken", || bells[1].get() == 1 && bells[2].get() == 1);
        let mut context = Context::from_waker(Waker::noop());
        assert_eq!(Pin::new(&mut moved).poll(&mut context), Poll::Ready(Waited::Ended));
        assert_eq!(Pin::new(&mut other).poll(&mut context), Poll::Ready(Waited::Ended));
        runtime.shutdown(PATIENCE).expect("nothing runs");
        assert_eq!(bells.iter().map(Count::get).collect::<Vec<_>>(), [0, 1, 1, 0]);
    });
}

#[test]
fn s21_a_disposal_outlives_its_handle_and_may_be_dropped() {
    let (clock, runtime) = manual();
    let (canary, fate) = Canary::new();
    let timer = runtime.timer(ms(1), ms(1), move |_| canary.sing());
    let first = timer.dispose_async();
    assert!(fate.is_dropped(), "disposed by the call, not by the first poll");
    let second = timer.dispose_async();
    drop(timer);
    drop(first);
    drop(runtime);
    assert_eq!(block_on(second), Waited::Ended);
    assert_eq!(clock.advance(secs(1)), 0);
}

#[test]
fn s22_waiting_for_oneself_says_so() {
    let (clock, runtime) = manual();
    for exclusive in [false, true] {
        let journal = Journal::new();
        let me: Own<Timer> = Arc::default();
        let callback = {
            let (me, journal) = (Arc::downgrade(&me), journal.clone());
            move |_: &Tick<'_>| {
                let me = own(&me);
                let me = me.get().expect("set");
                let mut waiting = me.dispose_async();
                let polled = Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop()));
                journal.push((me.dispose_and_wait(), polled));
            }
        };
        let timer = if exclusive {
            runtime.exclusive_timer(ms(1), ms(1), callback)
        } else {
            runtime.timer(ms(1), ms(1), callback)
        };
        me.set(timer).expect("once");
        assert_eq!(clock.advance(secs(1)), 1, "disposed all the same");
        assert_eq!(journal.take(), [(Waited::InsideCallback, Poll::Ready(Waited::InsideCallback))]);
        assert_eq!(me.get().expect("set").dispose_and_wait(), Waited::Ended);
    }
}

#[test]
fn s22_on_the_pool_and_for_once_timers() {
    within(PATIENCE, "waiting for oneself on the pool", || {
        let runtime = native();
        let results = Journal::new();
        let periodic: Own<Timer> = Arc::default();
        let (ready, start) = (Gate::new(), Gate::new());
        let timer = runtime.timer(Duration::ZERO, ms(1), {
            let (me, results, ready, start) =
                (Arc::downgrade(&periodic), results.clone(), ready.clone(), start.clone());
            move |_| {
                ready.open();
                start.wait();
                results.push(own(&me).get().expect("set").dispose_and_wait());
            }
        });
        ready.wait();
        periodic.set(timer).expect("once");
        let once: Own<OnceTimer> = Arc::default();
        let timer = runtime.once(NEVER, {
            let (me, results) = (Arc::downgrade(&once), results.clone());
            move |_| results.push(own(&me).get().expect("set").dispose_and_wait())
        });
        once.set(timer).expect("once");
        start.open();
        let _ = once.get().expect("set").change(Duration::ZERO);
        eventually("both return", || results.len() >= 2);
        assert_eq!(periodic.get().expect("set").dispose_and_wait(), Waited::Ended);
        assert_eq!(once.get().expect("set").dispose_and_wait(), Waited::Ended);
        assert!(results.take().into_iter().all(|waited| waited == Waited::InsideCallback));
        runtime.shutdown(PATIENCE).expect("nothing runs");
    });
}

#[test]
fn s22_an_outer_callback_on_the_same_thread_counts() {
    // A callback that drives another clock: the inner one waits for the outer timer, which runs below it on this
    // thread.
    let (outer_clock, outer) = manual();
    let (inner_clock, inner) = manual();
    let results = Journal::new();
    let me: Own<Timer> = Arc::default();
    let inner_timer = inner.timer(ms(1), NEVER, {
        let (me, results) = (Arc::downgrade(&me), results.clone());
        move |_| results.push(own(&me).get().expect("set").dispose_and_wait())
    });
    let timer = outer.timer(ms(1), NEVER, {
        let results = results.clone();
        move |_| {
            assert_eq!(inner_clock.advance(ms(1)), 1);
            // The other timer has ended its callback; waiting for it is fine.
            results.push(inner_timer.dispose_and_wait());
        }
    });
    me.set(timer).expect("once");
    assert_eq!(outer_clock.advance(ms(1)), 1);
    assert_eq!(results.take(), [Waited::InsideCallback, Waited::Ended]);
    assert_eq!(outer.panics() + inner.panics(), 0);
}

#[test]
fn s22_a_panic_handler_is_inside_the_callback() {
    within(PATIENCE, "a panic handler that waits for the timer", || {
        let (me, results): (Own<Timer>, _) = (Own::default(), Journal::new());
        let clock = ManualClock::new();
        let runtime = Runtime::builder()
            .manual_clock(&clock)
            .on_panic({
                let (me, results) = (me.clone(), results.clone());
                move |_| results.push(me.get().expect("set").dispose_and_wait())
            })
            .start()
            .expect("nothing to refuse");
        me.set(runtime.timer(ms(1), ms(1), |_| panic!("handled"))).expect("once");
        assert_eq!(clock.advance(ms(5)), 1);
        assert_eq!(results.take(), [Waited::InsideCallback]);
        assert_eq!(me.get().expect("set").dispose_and_wait(), Waited::Ended);
    });
}

#[test]
fn s22_a_destructor_of_what_the_callback_owned_does_not_wait_for_itself() {
    within(PATIENCE, "a destructor that waits for the timer", || {
        let (_clock, runtime) = manual();
        let (me, results): (Own<Timer>, _) = (Own::default(), Journal::new());
        let owned = OnDrop({
            let (me, results) = (me.clone(), results.clone());
            move || results.push(me.get().expect("set").dispose_and_wait())
        });
        me.set(runtime.timer(ms(1), ms(1), move |_| owned.hold())).expect("once");
        assert_eq!(me.get().expect("set").dispose_and_wait(), Waited::Ended);
        assert_eq!(results.take(), [Waited::InsideCallback]);
    });
}

#[test]
fn s22_a_callback_may_wait_for_another_timer() {
    within(PATIENCE, "one callback waits for another", || {
        let runtime = native();
        let (entered, gate) = (Gate::new(), Gate::new());
        let finished = Count::new();
        let other = runtime.timer(Duration::ZERO, NEVER, {
            let (entered, gate, finished) = (entered.clone(), gate.clone(), finished.clone());
            move |_| {
                entered.open();
                gate.wait();
                finished.bump();
            }
        });
        entered.wait();
        let (send, receive) = mpsc::channel();
        let waiter = runtime.once(Duration::ZERO, move |_| {
            gate.open();
            let waited = other.dispose_and_wait();
            let _ = send.send((waited, finished.get()));
        });
        assert_eq!(receive.recv(), Ok((Waited::Ended, 1)));
        drop(waiter);
    });
}

// ------------------------------------------------------------------------------------------------ S23: drop and detach

#[test]
fn s23_dropping_the_handle_disposes() {
    let (clock, runtime) = manual();
    for due in [ms(0), ms(333), secs(1_000_000), NEVER] {
        let (canary, fate) = Canary::new();
        drop(runtime.timer(due, ms(1), move |_| canary.sing()));
        assert!(fate.is_dropped());
        let (canary, fate) = Canary::new();
        drop(runtime.once(due, move |_| canary.sing()));
        assert!(fate.is_dropped());
    }
    assert_eq!((runtime.active_timers(), clock.advance(secs(2_000_000))), (0, 0));
}

#[test]
fn s23_dropping_the_handle_of_a_running_timer_does_not_wait() {
    within(PATIENCE, "dropping a running timer", || {
        let runtime = native();
        let (entered, gate) = (Gate::new(), Gate::new());
        let (canary, fate) = Canary::new();
        let calls = Count::new();
        let timer = runtime.timer(Duration::ZERO, secs(1_000), {
            let (entered, gate, calls) = (entered.clone(), gate.clone(), calls.clone());
            move |_| {
                canary.sing();
                calls.bump();
                entered.open();
                gate.wait();
            }
        });
        entered.wait();
        drop(timer);
        assert!(!fate.is_dropped(), "still in use");
        assert_eq!(runtime.active_timers(), 0, "but out of its list");
        gate.open();
        eventually("let go by its last callback", || fate.is_dropped());
        assert_eq!(calls.get(), 1);
    });
}

#[test]
fn s23_the_own_callback_may_drop_the_last_handle() {
    let (clock, runtime) = manual();
    let slot: Arc<Mutex<Option<Timer>>> = Arc::default();
    let (canary, fate) = Canary::new();
    let used_after = Count::new();
    let timer = runtime.timer(ms(1), ms(1), {
        let (slot, fate, used_after) = (Arc::clone(&slot), fate.clone(), used_after.clone());
        move |_| {
            drop(lock(&slot).take());
            if !fate.is_dropped() {
                used_after.bump(); // what the callback owns is still there
            }
            canary.sing();
        }
    });
    *lock(&slot) = Some(timer);
    assert_eq!(clock.advance(secs(1)), 1);
    assert_eq!(used_after.get(), 1);
    assert!(fate.is_dropped());
}

#[test]
fn s23_a_detached_timer_goes_on() {
    let (clock, runtime) = manual();
    let fired = Count::new();
    runtime.timer(ms(5), ms(5), fired.callback()).detach();
    let (canary, fate) = Canary::new();
    runtime
        .timer(ms(10), ms(5), {
            let calls = Count::new();
            move |tick| {
                canary.sing();
                if calls.bump() == 2 {
                    tick.dispose();
                }
            }
        })
        .detach();
    let (once, once_fate) = Canary::new();
    runtime.once(ms(400), move |_| once.sing()).detach();
    let (one_shot, one_shot_fate) = Canary::new();
    runtime.timer(ms(400), Duration::ZERO, move |_| one_shot.sing()).detach();
    assert_eq!(clock.advance(ms(14)), 2 + 1);
    assert!(!fate.is_dropped());
    assert_eq!(clock.advance(ms(1)), 2);
    assert!(fate.is_dropped(), "until it disposes itself");
    assert!(!once_fate.is_dropped() && !one_shot_fate.is_dropped());
    clock.advance(ms(385));
    assert!(once_fate.is_dropped() && one_shot_fate.is_dropped(), "a one-shot until it has fired");
    assert_eq!(runtime.active_timers(), 1);
    runtime.shutdown(Duration::ZERO).expect("no threads");
    assert_eq!((clock.advance(secs(1)), fired.get()), (0, 80), "the rest until the runtime ends");
}

#[test]
fn s23_a_detached_one_shot_that_restarts_itself_lives_on() {
    let (clock, runtime) = manual();
    let (canary, fate) = Canary::new();
    runtime
        .timer(ms(5), NEVER, {
            let calls = Count::new();
            move |tick| {
                canary.sing();
                if calls.bump() < 3 {
                    let _ = tick.change(ms(400), NEVER);
                }
            }
        })
        .detach();
    assert_eq!(clock.advance(ms(804)), 2);
    assert!(!fate.is_dropped());
    assert_eq!(clock.advance(ms(1)), 1);
    assert!(fate.is_dropped());
}

#[test]
fn s23_an_idle_timer_that_is_detached_is_freed() {
    let (_clock, runtime) = manual();
    let (canary, fate) = Canary::new();
    runtime.timer(NEVER, ms(1), move |_| canary.sing()).detach();
    assert!(fate.is_dropped());
    let (canary, fate) = Canary::new();
    let timer = runtime.timer(ms(1), ms(1), move |_| canary.sing());
    timer.dispose();
    timer.detach();
    assert!(fate.is_dropped());
}

// --------------------------------------------------------------------------------------------- S24: drop outside locks

/// Does everything there is to do on the one queue of a runtime: hangs if its lock is held.
fn use_everything(runtime: &Runtime) {
    let timer = runtime.timer(secs(500), secs(1), |_| {});
    let _ = timer.change(secs(400), NEVER);
    let _ = (runtime.active_timers(), runtime.next_due());
    let _ = timer.dispose_and_wait();
    drop(runtime.exclusive_timer(secs(500), secs(1), |_| {}));
    runtime.once(NEVER, |_| {}).detach();
}

/// Something to own that uses the runtime when it is dropped.
fn reentrant(runtime: &Runtime, drops: &Count) -> OnDrop<impl FnMut() + Send + Sync + use<>> {
    let (runtime, drops) = (runtime.clone(), drops.clone());
    OnDrop(move || {
        use_everything(&runtime);
        drops.bump();
    })
}

/// Drops what a callback owns in every way there is. `run` makes time pass until everything due has run.
fn drop_in_every_way(runtime: &Runtime, run: impl Fn()) {
    let drops = Count::new();
    let timer = |due| {
        let owned = reentrant(runtime, &drops);
        runtime.timer(due, NEVER, move |_| owned.hold())
    };
    let mut want = 0;
    let mut check = |how: &str| {
        want += 1;
        eventually(how, || drops.get() == want);
    };
    timer(secs(1_000)).dispose();
    check("dispose");
    assert_eq!(timer(secs(1_000)).dispose_and_wait(), Waited::Ended);
    check("dispose and wait");
    drop(timer(secs(1_000)));
    check("drop of a waiting timer");
    drop(timer(NEVER));
    check("drop of an idle timer");
    timer(NEVER).detach();
    check("detach of an idle timer");
    timer(ms(1)).detach();
    run();
    check("after the last firing of a detached timer");
    let owned = reentrant(runtime, &drops);
    runtime.once(ms(1), move |_| owned.hold()).detach();
    run();
    check("by a once-callback");
    let owned = reentrant(runtime, &drops);
    runtime
        .exclusive_timer(ms(1), ms(1), move |tick| {
            owned.hold();
            tick.dispose();
        })
        .detach();
    run();
    check("after its own disposal");
    let (filed, idle) = (timer(secs(1_000)), timer(NEVER));
    runtime.shutdown(PATIENCE).expect("nothing runs");
    check("of a pending timer at shutdown");
    drop((filed, idle));
    check("of an idle timer after shutdown");
    let born_disposed = timer(ms(1));
    check("of a timer made after shutdown");
    drop(born_disposed);
}

#[test]
fn s24_destructors_run_outside_locks_on_virtual_time() {
    within(PATIENCE, "destructors that use the runtime", || {
        let (clock, runtime) = manual();
        drop_in_every_way(&runtime, || {
            clock.advance(ms(2));
        });
    });
}

#[test]
fn s24_destructors_run_outside_locks_on_the_pool() {
    within(PATIENCE, "destructors that use the runtime", || {
        let runtime = native();
        drop_in_every_way(&runtime, || {});
    });
}

#[test]
fn s24_wakers_are_called_and_dropped_outside_locks() {
    /// Uses the runtime when it is woken and when it is dropped.
    struct Busy(Runtime, Count);
    impl Wake for Busy {
        fn wake(self: Arc<Self>) {
            use_everything(&self.0);
            self.1.bump();
        }
    }
    impl Drop for Busy {
        fn drop(&mut self) {
            use_everything(&self.0);
            self.1.bump();
        }
    }
    within(PATIENCE, "wakers that use the runtime", || {
        let runtime = native();
        let (entered, gate) = (Gate::new(), Gate::new());
        let timer = runtime.timer(Duration::ZERO, NEVER, {
            let (entered, gate) = (entered.clone(), gate.clone());
            move |_| {
                entered.open();
                gate.wait();
            }
        });
        entered.wait();
        let uses = Count::new();
        let busy = || Waker::from(Arc::new(Busy(runtime.clone(), uses.clone())));
        let (mut woken, mut dropped) = (timer.dispose_async(), timer.dispose_async());
        let pend = |future: &mut Disposal| {
            assert_eq!(Pin::new(future).poll(&mut Context::from_waker(&busy())), Poll::Pending);
        };
        pend(&mut woken);
        pend(&mut woken);
        pend(&mut dropped);
        assert_eq!(uses.get(), 1, "the first waker was replaced");
        drop(dropped);
        assert_eq!(uses.get(), 2, "the future was dropped");
        gate.open();
        eventually("woken, then dropped", || uses.get() == 4);
        assert_eq!(block_on(woken), Waited::Ended);
    });
}

#[test]
fn s24_a_panic_handler_runs_outside_locks() {
    within(PATIENCE, "a handler that uses the runtime", || {
        let own: Own<Runtime> = Arc::default();
        let handled = Count::new();
        let clock = ManualClock::new();
        let runtime = Runtime::builder()
            .manual_clock(&clock)
            .on_panic({
                let (own, handled) = (Arc::downgrade(&own), handled.clone());
                move |_| {
                    use_everything(self::own(&own).get().expect("set"));
                    handled.bump();
                }
            })
            .start()
            .expect("nothing to refuse");
        own.set(runtime.clone()).expect("once");
        runtime.timer(ms(1), NEVER, |_| panic!("handled")).detach();
        assert_eq!((clock.advance(ms(1)), handled.get()), (1, 1));
    });
}
