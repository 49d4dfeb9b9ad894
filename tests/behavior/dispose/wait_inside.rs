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
            TimerBuilder::on(&runtime).period(ms(1)).start_exclusive(callback)
        } else {
            Timer::on(&runtime, ms(1), ms(1), callback)
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
        let timer = Timer::on(&runtime, Duration::ZERO, ms(1), {
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
        let timer = OnceTimer::on(&runtime, NEVER, {
            let (me, results) = (Arc::downgrade(&once), results.clone());
            move |_| results.push(own(&me).get().expect("set").dispose_and_wait())
        });
        once.set(timer).expect("once");
        start.open();
        let _ = once.get().expect("set").reset(Duration::ZERO);
        eventually("both return", || results.len() >= 2);
        assert_eq!(periodic.get().expect("set").dispose_and_wait(), Waited::Ended);
        assert_eq!(once.get().expect("set").dispose_and_wait(), Waited::Ended);
        assert!(results.take().into_iter().all(|waited| waited == Waited::InsideCallback));
        runtime.shutdown(PATIENCE).expect("nothing runs");
    });
}

#[test]
fn s22_an_outer_callback_on_the_same_thread_counts() {
    // A callback drives a second clock: the inner callback waits for the outer timer, whose
    // callback runs below it on this thread.
    let (outer_clock, outer) = manual();
    let (inner_clock, inner) = manual();
    let results = Journal::new();
    let me: Own<Timer> = Arc::default();
    let inner_timer = Timer::on(&inner, ms(1), NEVER, {
        let (me, results) = (Arc::downgrade(&me), results.clone());
        move |_| results.push(own(&me).get().expect("set").dispose_and_wait())
    });
    let timer = Timer::on(&outer, ms(1), NEVER, {
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
    assert_eq!(outer.metrics().panics + inner.metrics().panics, 0);
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
        me.set(Timer::on(&runtime, ms(1), ms(1), |_| panic!("handled"))).expect("once");
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
        me.set(Timer::on(&runtime, ms(1), ms(1), move |_| owned.hold())).expect("once");
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
        let other = Timer::on(&runtime, Duration::ZERO, NEVER, {
            let (entered, gate, finished) = (entered.clone(), gate.clone(), finished.clone());
            move |_| {
                entered.open();
                gate.wait();
                finished.bump();
            }
        });
        entered.wait();
        let (send, receive) = mpsc::channel();
        let waiter = OnceTimer::on(&runtime, Duration::ZERO, move |_| {
            gate.open();
            let waited = other.dispose_and_wait();
            let _ = send.send((waited, finished.get()));
        });
        assert_eq!(receive.recv(), Ok((Waited::Ended, 1)));
        drop(waiter);
    });
}

/// Callbacks of a ring of timers, each of which waits for the end of the next timer. Returns the
/// answers.
fn ring(runtimes: &[Runtime]) -> Vec<Waited> {
    let timers: Vec<Own<Timer>> = runtimes.iter().map(|_| Own::default()).collect();
    let (send, receive) = mpsc::channel();
    let together = Arc::new(Barrier::new(timers.len()));
    for (i, runtime) in runtimes.iter().enumerate() {
        let next = Arc::clone(&timers[(i + 1) % timers.len()]);
        let (send, together) = (send.clone(), Arc::clone(&together));
        let timer = Timer::on(runtime, NEVER, NEVER, move |_| {
            together.wait();
            send.send(next.get().expect("set").dispose_and_wait()).expect("the test listens");
        });
        timers[i].set(timer).expect("once");
    }
    timers.iter().for_each(|timer| _ = timer.get().expect("set").change(Duration::ZERO, NEVER));
    timers.iter().map(|_| receive.recv().expect("each callback ends")).collect()
}

#[test]
fn s22_callbacks_that_wait_for_each_other_do_not_hang() {
    within(PATIENCE, "callbacks that wait for each other", || {
        for n in [2, 3] {
            let runtime = Runtime::builder().queues(1).workers(4).start().expect("the system has threads");
            let mut answers = ring(&vec![runtime.clone(); n]);
            // The last to come would close the cycle, and is told so. The others wait for its end.
            answers.sort_by_key(|&waited| waited == Waited::Ended);
            assert_eq!(answers[0], Waited::InsideCallback);
            assert!(answers[1..].iter().all(|&waited| waited == Waited::Ended), "{answers:?}");
        }
        // Callbacks of several runtimes wait for each other as well.
        let answers = ring(&[native(), native()]);
        assert!(answers.contains(&Waited::InsideCallback) && answers.contains(&Waited::Ended), "{answers:?}");
    });
}

/// The callback of a timer unregisters a callback of a token, which waits for the timer.
#[test]
fn s22_a_callback_of_a_token_and_one_of_a_timer_that_wait_for_each_other_do_not_hang() {
    within(PATIENCE, "a timer and a token", || {
        let runtime = native();
        let source = CancellationTokenSource::on(&runtime);
        let timer: Own<Timer> = Own::default();
        let together = Arc::new(Barrier::new(2));
        let (waited, unregistered) = (mpsc::channel(), mpsc::channel());
        let registration = source.token().register({
            let (timer, together, send) = (Arc::clone(&timer), Arc::clone(&together), waited.0);
            move || {
                together.wait();
                send.send(timer.get().expect("set").dispose_and_wait()).expect("the test listens");
            }
        });
        let registration = Mutex::new(Some(registration));
        let callback = move |_: &Tick<'_>| {
            together.wait();
            let registration = lock(&registration).take().expect("once");
            unregistered.0.send(registration.unregister_and_wait()).expect("the test listens");
        };
        timer.set(Timer::on(&runtime, Duration::ZERO, NEVER, callback)).expect("once");
        source.cancel();
        let (waited, unregistered) = (waited.1.recv(), unregistered.1.recv());
        assert!(waited.is_ok(), "the one or the other does not wait: {waited:?}");
        assert_eq!(unregistered, Ok(false), "the callback has begun");
    });
}

/// Two sources, whose callbacks unregister each other.
#[test]
fn s43_callbacks_of_tokens_that_unregister_each_other_do_not_hang() {
    within(PATIENCE, "two sources", || {
        for _ in 0..50 {
            let sources = [CancellationTokenSource::new(), CancellationTokenSource::new()];
            let registrations: Arc<[Mutex<Option<Registration>>; 2]> = Arc::default();
            let together = Arc::new(Barrier::new(2));
            for (i, source) in sources.iter().enumerate() {
                let (registrations, together) = (Arc::clone(&registrations), Arc::clone(&together));
                let others = Arc::clone(&registrations);
                let registration = source.token().register(move || {
                    together.wait();
                    let other = lock(&others[1 - i]).take().expect("once");
                    assert!(!other.unregister_and_wait());
                });
                *lock(&registrations[i]) = Some(registration);
            }
            thread::scope(|scope| sources.iter().for_each(|source| _ = scope.spawn(|| source.cancel())));
        }
    });
}

/// A chain of waits that does not lead back is none of the kind, however long.
#[test]
fn s22_callbacks_that_wait_in_a_row_wait() {
    within(PATIENCE, "a chain of callbacks", || {
        const LONG: usize = 6;
        let runtime = Runtime::builder().queues(1).workers(LONG + 1).start().expect("the system has threads");
        let (entered, gate) = (Count::new(), Gate::new());
        let (send, receive) = mpsc::channel();
        let mut last = Timer::on(&runtime, Duration::ZERO, NEVER, {
            let (entered, gate) = (entered.clone(), gate.clone());
            move |_| {
                entered.bump();
                gate.wait();
            }
        });
        for _ in 1..LONG {
            let (entered, send, before) = (entered.clone(), send.clone(), last);
            eventually("the previous callback runs", || entered.get() > 0);
            let begun = entered.get();
            let callback = {
                let entered = entered.clone();
                move |_: &Tick<'_>| {
                    entered.bump();
                    send.send(before.dispose_and_wait()).expect("the test listens");
                }
            };
            last = Timer::on(&runtime, Duration::ZERO, NEVER, callback);
            eventually("the callback runs", || entered.get() > begun);
        }
        assert!(receive.recv_timeout(ms(10)).is_err(), "all of them wait");
        gate.open();
        assert!((1..LONG).all(|_| receive.recv() == Ok(Waited::Ended)));
        assert_eq!(last.dispose_and_wait(), Waited::Ended);
    });
}

/// The driver of a manual clock waits, in a callback, for a callback that advances the clock.
#[test]
fn s22_a_callback_that_waits_for_the_driver_of_a_clock_does_not_hang() {
    within(PATIENCE, "a timer and a clock", || {
        let ((clock, virtually), real) = (manual(), native());
        let timer: Own<Timer> = Own::default();
        let together = Arc::new(Barrier::new(2));
        let (send, receive) = mpsc::channel();
        let waits = OnceTimer::on(&virtually, ms(1), {
            let (timer, together) = (Arc::clone(&timer), Arc::clone(&together));
            move |_| {
                together.wait();
                send.send(timer.get().expect("set").dispose_and_wait()).expect("the test listens");
            }
        });
        let advances = clock.clone();
        let callback = move |_: &Tick<'_>| {
            together.wait();
            advances.advance(ms(1));
        };
        timer.set(Timer::on(&real, Duration::ZERO, NEVER, callback)).expect("once");
        clock.advance(ms(1));
        let refused = receive.recv() == Ok(Waited::InsideCallback);
        let _ = timer.get().expect("set").dispose_and_wait();
        assert_eq!(u64::from(refused) + real.metrics().panics, 1, "the one is told, or the other panics");
        drop(waits);
    });
}

/// Callbacks that wait at random: a wait is refused only where there is a cycle, and none hangs.
#[test]
fn s22_callbacks_that_wait_for_others_at_random_all_end() {
    within(PATIENCE, "waits at random", || {
        const MANY: u64 = 6;
        let runtime = Runtime::builder().queues(1).workers(8).start().expect("the system has threads");
        let mut random = Random(22);
        for round in 0..40 {
            let has_cycles = round % 2 == 0;
            let timers: Arc<[OnceLock<Timer>; MANY as usize]> = Arc::default();
            let together = Arc::new(Barrier::new(timers.len()));
            let (send, receive) = mpsc::channel();
            for i in 0..MANY {
                // Without cycles: for a timer with a higher number, the last for none.
                let awaited = if has_cycles { random.below(MANY) } else { i + 1 + random.below(MANY - i) };
                let (all, together, send) = (Arc::downgrade(&timers), Arc::clone(&together), send.clone());
                let timer = Timer::on(&runtime, NEVER, NEVER, move |_| {
                    together.wait();
                    let all = all.upgrade().expect("the test keeps them");
                    let awaited = all.get(awaited as usize).map(|timer| timer.get().expect("set"));
                    let waited = awaited.map(Timer::dispose_and_wait);
                    send.send(waited == Some(Waited::InsideCallback)).expect("the test listens");
                });
                timers[i as usize].set(timer).expect("once");
            }
            timers.iter().for_each(|timer| _ = timer.get().expect("set").change(Duration::ZERO, NEVER));
            let refused = timers.iter().filter(|_| receive.recv().expect("each callback ends")).count();
            assert_eq!(refused > 0, has_cycles, "each waits for one, so there is a cycle or none can be");
        }
    });
}
