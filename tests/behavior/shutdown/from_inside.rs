//! A shutdown from inside a callback, a panic handler or a destructor (S33).

use super::*;

#[test]
fn s33_shutdown_from_inside_a_callback() {
    within(PATIENCE, "a callback that ends its runtime", || {
        let (runtime, gate, finished, timers) = with_blocked_callbacks("tq-inside", 2);
        let (send, receive) = mpsc::channel();
        let closer = OnceTimer::on(&runtime, Duration::ZERO, {
            let (runtime, gate, finished) = (runtime.clone(), gate.clone(), finished.clone());
            move |_| {
                let short = runtime.shutdown(ms(5)).map_err(|late| late.threads() >= 2);
                gate.open();
                // The shutdown awaits all callbacks but this.
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
fn s33_shutdown_from_inside_several_callbacks_at_once() {
    within(PATIENCE, "callbacks that end their runtime together", || {
        let runtime =
            Runtime::builder().queues(1).workers(4).thread_name("tq-both").start().expect("the system has threads");
        let (send, receive) = mpsc::channel();
        let together = Arc::new(Barrier::new(3));
        for _ in 0..3 {
            let (own, send, together) = (runtime.clone(), send.clone(), Arc::clone(&together));
            let closer = move |_: &timerqueue::Tick<'_>| {
                together.wait();
                // No callback can wait for the rest to return.
                send.send(own.shutdown(PATIENCE)).expect("the test listens");
            };
            OnceTimer::on(&runtime, ms(1), closer).detach();
        }
        for _ in 0..3 {
            assert_eq!(receive.recv_timeout(PATIENCE / 2), Ok(Ok(())));
        }
        assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
        all_gone("tq-both");
    });
}

#[test]
fn s33_shutdown_from_a_destructor_on_a_thread_of_the_program() {
    within(PATIENCE, "a destructor that ends the runtime", || {
        let (runtime, gate, finished, timers) = with_blocked_callbacks("tq-destruct", 1);
        let results = Journal::new();
        let closer = |limit| {
            let (own, results) = (runtime.clone(), results.clone());
            let owned = OnDrop(move || results.push(own.shutdown(limit).map_err(|late| late.threads() > 0)));
            Timer::on(&runtime, NEVER, NEVER, move |_| owned.hold())
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
fn s33_shutdown_from_inside_a_callback_on_virtual_time() {
    let (clock, runtime) = manual();
    let fired = Count::new();
    let before = Timer::on(&runtime, ms(10), NEVER, fired.callback());
    let closer = OnceTimer::on(&runtime, ms(10), {
        let runtime = runtime.clone();
        move |_| runtime.shutdown(Duration::ZERO).expect("no threads")
    });
    // Timers due at the same instant, so they are claimed already; and later timers, which are in
    // the queue.
    let claimed =
        [Timer::on(&runtime, ms(10), NEVER, fired.callback()), Timer::on(&runtime, ms(10), ms(1), fired.callback())];
    let filed = Timer::on(&runtime, ms(11), NEVER, fired.callback());
    assert_eq!(clock.advance(secs(1)), 2, "the one before and the one that ends it");
    assert_eq!((fired.get(), runtime.metrics().panics), (1, 0));
    assert_eq!(claimed[1].change(ms(1), NEVER), Changed::Ended);
    drop((before, closer, claimed, filed));
}

#[test]
fn s33_shutdown_from_inside_a_panic_handler_and_a_destructor() {
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
        OnceTimer::on(&runtime, Duration::ZERO, |_| panic!("handled")).detach();
        assert_eq!(receive.recv_timeout(PATIENCE), Ok(Ok(())), "a handler does not wait for its own thread");
        lock(&own).take(); // a handler that owns its runtime is a cycle

        let runtime = native();
        let owned = OnDrop({
            let runtime = runtime.clone();
            move || send.send(runtime.shutdown(secs(2))).expect("the test listens")
        });
        Timer::on(&runtime, Duration::ZERO, NEVER, move |_| owned.hold()).detach();
        assert_eq!(receive.recv_timeout(PATIENCE), Ok(Ok(())), "nor does a destructor");
    });
}

/// A callback that ends its own runtime is awaited by a caller outside, even while it waits in
/// `shutdown` itself.
#[test]
fn s33_a_caller_outside_waits_for_a_callback_that_is_in_shutdown() {
    within(PATIENCE, "a shutdown beside one from inside", || {
        for _ in 0..10 {
            let runtime = Runtime::builder().queues(1).workers(3).start().expect("the system has threads");
            let (gate, entered, ended) = (Gate::new(), Count::new(), Count::new());
            let (held, running) = (gate.clone(), entered.clone());
            let blocked = OnceTimer::on(&runtime, Duration::ZERO, move |_| {
                running.bump();
                held.wait();
            });
            // Else the shutdown might come first, and the callback would not begin.
            eventually("it runs", || entered.get() == 1);
            let (own, running, returned) = (runtime.clone(), entered.clone(), ended.clone());
            let closer = OnceTimer::on(&runtime, Duration::ZERO, move |_| {
                running.bump();
                own.shutdown(PATIENCE).expect("it waits for the other callback alone");
                std::thread::sleep(ms(30));
                returned.bump();
            });
            eventually("both run", || entered.get() == 2);
            let opener = std::thread::spawn(move || {
                std::thread::sleep(ms(5));
                gate.open();
            });
            assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
            assert_eq!(ended.get(), 1, "no callback runs any more");
            opener.join().expect("no panic");
            drop((blocked, closer));
        }
    });
}
