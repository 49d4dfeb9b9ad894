//! Waiting inside a callback (S22).

use super::*;

#[test]
fn s22_a_callback_that_waits_for_its_own_timer_is_told_so() {
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
fn s22_a_callback_on_the_pool_that_waits_for_its_own_timer_is_told_so() {
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
    // A callback drives a second clock: the inner callback waits for the outer timer, whose callback runs below it on
    // this thread.
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
            // The callback of the second timer has ended, so waiting for this timer is allowed.
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
fn s22_a_destructor_of_the_payload_does_not_wait_for_itself() {
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
