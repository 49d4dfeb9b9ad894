//! Destructors, wakers and panic handlers run outside of locks (S24).

use super::*;

/// Uses the only queue of a runtime in every way; hangs if the lock of the queue is held.
fn use_everything(runtime: &Runtime) {
    let timer = Timer::on(runtime, secs(500), secs(1), |_| {});
    let _ = timer.change(secs(400), NEVER);
    let _ = (runtime.metrics().active, runtime.next_due());
    let _ = timer.dispose_and_wait();
    drop(TimerBuilder::on(runtime).due(secs(500)).period(secs(1)).start_exclusive(|_| {}));
    OnceTimer::on(runtime, NEVER, |_| {}).detach();
}

/// A payload that uses the runtime when it is dropped.
fn reentrant(runtime: &Runtime, drops: &Count) -> OnDrop<impl FnMut() + Send + Sync + use<>> {
    let (runtime, drops) = (runtime.clone(), drops.clone());
    OnDrop(move || {
        use_everything(&runtime);
        drops.bump();
    })
}

/// Drops the payload of a callback in every possible way. `run` makes time pass until all due
/// timers have run.
fn drop_in_every_way(runtime: &Runtime, run: impl Fn()) {
    let drops = Count::new();
    let timer = |due| {
        let owned = reentrant(runtime, &drops);
        Timer::on(runtime, due, NEVER, move |_| owned.hold())
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
    OnceTimer::on(runtime, ms(1), move |_| owned.hold()).detach();
    run();
    check("by a once-callback");
    let owned = reentrant(runtime, &drops);
    TimerBuilder::on(runtime)
        .period(ms(1))
        .start_exclusive(move |tick| {
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
        let timer = Timer::on(&runtime, Duration::ZERO, NEVER, {
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
        Timer::on(&runtime, ms(1), NEVER, |_| panic!("handled")).detach();
        assert_eq!((clock.advance(ms(1)), handled.get()), (1, 1));
    });
}
