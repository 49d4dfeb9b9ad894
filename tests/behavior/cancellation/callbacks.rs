//! Callbacks: registered, called, unregistered (S41 to S44).

use super::*;

// ---------------------------------------------------------------------------------------------------------- S41: callbacks

#[test]
fn s41_last_registered_first_each_once_on_the_cancelling_thread() {
    let source = CancellationTokenSource::new();
    let calls = Journal::new();
    let mut kept = Vec::new();
    for i in 0..10 {
        let calls = calls.clone();
        let registration = source.token().register(move || calls.push((i, thread::current().id())));
        if i % 3 == 0 {
            registration.detach();
        } else {
            kept.push(registration);
        }
    }
    drop(kept.remove(2)); // number 4
    let me = thread::spawn(move || {
        source.cancel();
        source.cancel();
        thread::current().id()
    });
    let me: ThreadId = me.join().expect("no panic");
    assert_eq!(calls.take(), [9, 8, 7, 6, 5, 3, 2, 1, 0].map(|i| (i, me)));
}

#[test]
fn s41_waiting_tasks_are_woken_before_a_callback_runs() {
    let source = CancellationTokenSource::new();
    let calls = Journal::new();
    let token = source.token();
    let mut waiting = [token.cancelled(), token.cancelled()];
    let noting = |what: &'static str| {
        let calls = calls.clone();
        move || calls.push(what)
    };
    assert!(poll_with(&mut waiting[0], &waker_that(noting("first task"))).is_pending());
    token.register(noting("callback")).detach();
    assert!(poll_with(&mut waiting[1], &waker_that(noting("second task"))).is_pending());
    source.cancel();
    let mut calls = calls.take();
    assert_eq!(calls.pop(), Some("callback"), "it may block");
    calls.sort_unstable();
    assert_eq!(calls, ["first task", "second task"]);
}

#[test]
fn s41_outside_locks_a_callback_may_do_everything() {
    within(PATIENCE, "a callback that uses its own source", || {
        let source = CancellationTokenSource::new();
        let token = source.token();
        let done = Count::new();
        let never = token.register(|| unreachable!("unregistered by a callback that runs before"));
        token
            .register({
                let (source, token, done) = (source.clone(), source.token(), done.clone());
                let never = Mutex::new(Some(never));
                move || {
                    assert!(!source.cancel(), "inside its own callback the source is cancelled already");
                    assert!(token.is_cancelled() && token.wait_timeout(PATIENCE).is_err());
                    assert!(lock(&never).take().is_some_and(Registration::unregister), "not begun yet");
                    let called = Count::new();
                    token.register(counting(&called)).detach();
                    assert_eq!(called.get(), 1, "registered on a cancelled token: at once");
                    assert!(!source.try_reset());
                    source.try_cancel_after(secs(1)).expect("does nothing");
                    assert!(token.child_source().is_cancelled());
                    assert!(poll(&mut token.cancelled_owned(), &CountingWaker::new()).is_ready());
                    done.bump();
                }
            })
            .detach();
        assert!(source.cancel());
        assert_eq!(done.get(), 1);
    });
}

#[test]
fn s41_callbacks_of_a_timed_cancel_run_on_the_pool() {
    let runtime = native();
    let source = CancellationTokenSource::on(&runtime);
    let (send, receive) = mpsc::channel();
    source.token().register(move || send.send(thread::current().name().map(String::from)).expect("awaited")).detach();
    source.try_cancel_after(ms(1)).expect("a runtime of its own");
    let name = receive.recv_timeout(PATIENCE).expect("is cancelled").expect("threads of the pool have names");
    assert!(name.starts_with("tq-test"), "{name}");
}

#[test]
fn s41_a_panic_surfaces_after_all_have_run() {
    let source = CancellationTokenSource::new();
    let child = source.token().child_source();
    let calls = Journal::new();
    for i in 0..6_u32 {
        let calls = calls.clone();
        let parent_or_child = if i < 4 { source.token() } else { child.token() };
        parent_or_child
            .register(move || {
                calls.push(i);
                if i % 2 == 0 {
                    panic_any(i);
                }
            })
            .detach();
    }
    let payload = catch_unwind(AssertUnwindSafe(|| source.cancel())).expect_err("callbacks have panicked");
    assert_eq!(payload.downcast_ref::<u32>(), Some(&2), "the first panic of three");
    assert_eq!(calls.take(), [3, 2, 1, 0, 5, 4], "all have run, those of linked sources too");
    assert!(source.is_cancelled() && child.is_cancelled());
    assert!(!source.cancel(), "and the source is as good as any other");
}

#[test]
fn s41_a_panic_of_a_timed_cancel_goes_to_the_panic_handler() {
    let told = Journal::new();
    let clock = timerqueue::ManualClock::new();
    let runtime = Runtime::builder()
        .manual_clock(&clock)
        .on_panic({
            let told = told.clone();
            move |panic| told.push(panic.payload().downcast_ref::<&str>().copied())
        })
        .start()
        .expect("nothing to refuse");
    let source = CancellationTokenSource::on(&runtime);
    let calls = Count::new();
    for i in 0..3 {
        let calls = calls.clone();
        source
            .token()
            .register(move || {
                calls.bump();
                assert!(i == 1, "a callback of a timed cancel");
            })
            .detach();
    }
    source.try_cancel_after(secs(1)).expect("a runtime of its own");
    clock.advance(secs(1));
    assert_eq!((calls.get(), runtime.metrics().panics), (3, 2));
    assert_eq!(told.take(), [Some("a callback of a timed cancel"); 2]);
}

#[test]
fn s12_s24_destructors_that_panic_keep_nothing_from_being_dropped_and_are_told() {
    let (_clock, runtime) = manual();
    struct Spiteful(Count);
    impl Drop for Spiteful {
        fn drop(&mut self) {
            self.0.bump();
            panic_any("on purpose");
        }
    }
    let dropped = Count::new();
    let register = |source: &CancellationTokenSource| {
        for _ in 0..3 {
            let owned = Spiteful(dropped.clone());
            source.token().register(move || drop(owned)).detach();
        }
    };
    // Two panics at once would end the process.
    let parent = CancellationTokenSource::on(&runtime);
    let source = parent.token().child_source();
    register(&source);
    assert!(source.try_reset());
    assert_eq!((dropped.get(), runtime.metrics().panics), (3, 3), "a reset");
    register(&source);
    drop(source);
    assert_eq!((dropped.get(), runtime.metrics().panics), (6, 6), "the end of the source");
    // A middle source that only its child keeps alive ends with the child.
    let middle = parent.token().child_source();
    register(&middle);
    let child = middle.token().child_source();
    drop(middle);
    assert_eq!(dropped.get(), 6);
    drop(child);
    assert_eq!((dropped.get(), runtime.metrics().panics), (9, 9), "the end of a chain");
    // An unregistered callback panics on this thread.
    let owned = Spiteful(dropped.clone());
    let registration = parent.token().register(move || drop(owned));
    assert!(panics(|| registration.unregister()));
    assert_eq!((dropped.get(), runtime.metrics().panics), (10, 9));
    // While the thread panics already, a second panic would end the process: the runtime is told.
    let owned = Spiteful(dropped.clone());
    let registration = parent.token().register(move || drop(owned));
    let unwinding = OnDrop({
        let mut registration = Some(registration);
        move || drop(registration.take())
    });
    assert!(panics(move || {
        unwinding.hold();
        panic!("on purpose");
    }));
    assert_eq!((dropped.get(), runtime.metrics().panics), (11, 10));
    // The called callbacks panic: the first panic surfaces, the others are told.
    register(&parent);
    assert!(panics(|| parent.cancel()));
    assert_eq!((dropped.get(), runtime.metrics().panics), (14, 12));
}

#[test]
fn s41_after_a_waker_that_panics_all_others_are_still_called() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    let (counter, panicking, called) = (CountingWaker::new(), PanickingWaker::on_wake(), Count::new());
    let mut tasks: Vec<CancelledFuture<'_>> = (0..6).map(|_| token.cancelled()).collect();
    for (i, task) in tasks.iter_mut().enumerate() {
        let waker = if i % 2 == 0 { panicking.waker() } else { counter.waker() };
        assert!(poll_with(task, &waker).is_pending());
    }
    token.register(counting(&called)).detach();
    assert!(panics(|| source.cancel()));
    assert_eq!((counter.wakes(), panicking.panics(), called.get()), (3, 3, 1));
    assert!(tasks.iter_mut().all(|task| poll(task, &counter).is_ready()), "theirs are ready as well");
    assert_eq!((counter.kept(), panicking.kept()), (0, 0));
}

#[test]
fn s41_a_hundred_thousand_registrations_at_once() {
    const MANY: usize = 100_000;
    let source = CancellationTokenSource::new();
    let token = source.token();
    let next = Arc::new(AtomicUsize::new(MANY));
    let in_order = Arc::new(AtomicBool::new(true));
    let mut registrations: Vec<Registration> = (0..MANY)
        .map(|i| {
            let (next, in_order) = (Arc::clone(&next), Arc::clone(&in_order));
            token.register(move || {
                if next.swap(i, Ordering::Relaxed) <= i {
                    in_order.store(false, Ordering::Relaxed);
                }
            })
        })
        .collect();
    // Every third registration is removed, in the middle of the rest.
    let mut i = 0;
    registrations.retain(|_| {
        i += 1;
        i % 3 != 0
    });
    source.cancel();
    assert!(in_order.load(Ordering::Relaxed), "last registered first");
    assert_eq!((next.load(Ordering::Relaxed), Arc::strong_count(&next)), (0, 1), "the first is the last to run");
    assert!(registrations.into_iter().all(|registration| !registration.unregister()));
}

#[test]
fn s41_callbacks_that_are_never_called_are_dropped_with_the_source() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    let (canary, fate) = Canary::new();
    token.register(move || canary.sing()).detach();
    drop(source);
    assert!(!fate.is_dropped(), "there is a token");
    drop(token);
    assert!(fate.is_dropped());
}

#[test]
fn s41_a_source_dropped_in_its_own_callback() {
    let (clock, runtime) = manual();
    for by_hand in [true, false] {
        let source = CancellationTokenSource::on(&runtime);
        let token = source.token();
        let child = token.child_source();
        let called = Count::new();
        let slot: Arc<Mutex<Option<CancellationTokenSource>>> = Arc::default();
        let canary = Canary::new();
        token.register(move || canary.0.sing()).detach();
        token
            .register({
                let (slot, called) = (Arc::clone(&slot), called.clone());
                let token = Mutex::new(Some(token.clone()));
                move || {
                    drop(lock(&slot).take());
                    drop(lock(&token).take());
                    called.bump();
                }
            })
            .detach();
        drop(token);
        if by_hand {
            *lock(&slot) = Some(source.clone());
            assert!(source.cancel());
            drop(source);
        } else {
            // On the pool this is the last handle.
            source.try_cancel_after(secs(1)).expect("a runtime of its own");
            *lock(&slot) = Some(source);
            clock.advance(secs(1));
        }
        assert_eq!((called.get(), canary.1.is_dropped(), reason(&child)), (1, true, Some(CancelReason::Parent)));
    }
    assert_eq!((runtime.metrics().panics, runtime.metrics().active), (0, 0));
}

// ----------------------------------------------------------------------------------- S42: registering on a cancelled token

#[test]
fn s42_on_a_cancelled_token_the_callback_runs_at_once_on_the_caller() {
    let source = CancellationTokenSource::new();
    source.cancel();
    let calls = Journal::new();
    let noting = calls.clone();
    let registration = source.token().register(move || noting.push(thread::current().id()));
    assert_eq!(calls.take(), [thread::current().id()]);
    assert!(!registration.unregister());
    let token = source.token();
    assert!(panics(|| token.register(|| panic!("a callback that panics"))), "to the caller");
    assert!(!token.register(|| ()).unregister_and_wait());
}

#[test]
fn s42_register_against_cancel_runs_exactly_once() {
    for round in 0..2_000 {
        let source = CancellationTokenSource::new();
        let token = source.token();
        let called = Count::new();
        let (_, registrations) = race(
            Duration::from_nanos(round),
            || source.cancel(),
            || {
                let register = |_| token.register(counting(&called));
                (0..3).map(register).collect::<Vec<Registration>>()
            },
        );
        assert_eq!(called.get(), 3, "by the canceller, or here");
        assert!(registrations.into_iter().all(|registration| !registration.unregister()));
    }
}

// ------------------------------------------------------------------------------------------------------ S43: unregistering

#[test]
fn s43_unregister_says_whether_it_came_first() {
    let source = CancellationTokenSource::new();
    let (canary, fate) = Canary::new();
    let called = Count::new();
    let removed = source.token().register(move || canary.sing());
    let run = source.token().register(counting(&called));
    assert!(removed.unregister());
    assert!(fate.is_dropped(), "what it owned is dropped at once");
    source.cancel();
    assert_eq!((called.get(), run.unregister()), (1, false));
}

#[test]
fn s43_dropping_unregisters_and_detaching_does_not() {
    let source = CancellationTokenSource::new();
    let called = Journal::new();
    let noting = |what: &'static str| {
        let called = called.clone();
        move || called.push(what)
    };
    drop(source.token().register(noting("dropped")));
    source.token().register(noting("detached")).detach();
    let _kept = source.token().register(noting("kept"));
    source.cancel();
    assert_eq!(called.take(), ["kept", "detached"]);
}

#[test]
fn s43_unregister_and_drop_do_not_wait_for_a_running_callback() {
    within(PATIENCE, "unregistering a callback that blocks", || {
        let source = CancellationTokenSource::new();
        let (begun, gate) = (Gate::new(), Gate::new());
        let other = source.token().register(|| ());
        let blocks = source.token().register({
            let (begun, gate) = (begun.clone(), gate.clone());
            move || {
                begun.open();
                gate.wait();
            }
        });
        let canceller = thread::spawn({
            let source = source.clone();
            move || source.cancel()
        });
        begun.wait();
        assert!(!blocks.unregister(), "it has begun");
        assert!(other.unregister_and_wait(), "and is no reason to wait for another one");
        gate.open();
        assert!(canceller.join().expect("no panic"));
    });
}

#[test]
fn s43_the_waiting_form_waits_for_a_callback_on_another_thread() {
    within(2 * PATIENCE, "waiting for callbacks", || {
        let mut random = Random(43);
        for round in 0..600 {
            let source = CancellationTokenSource::new();
            let ended = Arc::new(AtomicUsize::new(0));
            let registrations: Vec<Registration> = (0..3)
                .map(|i| {
                    let (ended, busy) = (Arc::clone(&ended), us(random.below(40)));
                    source.token().register(move || {
                        let until = Instant::now() + busy;
                        while Instant::now() < until {
                            std::hint::spin_loop();
                        }
                        ended.fetch_add(1 << (8 * i), Ordering::Relaxed);
                        assert!(round % 7 != 0 || i != 1, "a callback that is waited for may panic");
                    })
                })
                .collect();
            let (_, ()) = race(
                us(random.below(100)),
                || panics(|| source.cancel()),
                || {
                    for (i, registration) in registrations.into_iter().enumerate() {
                        let removed = registration.unregister_and_wait();
                        let ended = ended.load(Ordering::Relaxed) >> (8 * i) & 0xff;
                        assert_eq!(ended, usize::from(!removed), "neither removed nor at its end");
                    }
                },
            );
        }
    });
}

#[test]
fn s43_unregistering_from_inside_a_callback_does_not_wait_for_itself() {
    within(PATIENCE, "a callback that waits for itself", || {
        for waiting in [true, false] {
            let source = CancellationTokenSource::new();
            let own: Arc<Mutex<Option<Registration>>> = Arc::default();
            let earlier: Arc<Mutex<Option<Registration>>> = Arc::default();
            let answers = Journal::new();
            let unregister = move |registration: Registration| {
                if waiting { registration.unregister_and_wait() } else { registration.unregister() }
            };
            let runs_last = source.token().register({
                let (earlier, answers) = (Arc::clone(&earlier), answers.clone());
                move || answers.push(("one that has run before", lock(&earlier).take().map(unregister)))
            });
            let registration = source.token().register({
                let (own, answers) = (Arc::clone(&own), answers.clone());
                move || answers.push(("itself", lock(&own).take().map(unregister)))
            });
            *lock(&own) = Some(registration);
            *lock(&earlier) = Some(source.token().register(|| ()));
            source.cancel();
            assert_eq!(answers.take(), [("itself", Some(false)), ("one that has run before", Some(false))]);
            drop(runs_last);
        }
    });
}

#[test]
fn s43_the_payload_of_a_callback_may_use_the_source_when_it_is_dropped() {
    within(PATIENCE, "a destructor that uses the source", || {
        let source = CancellationTokenSource::new();
        let done = Count::new();
        let owned = |cancels: bool| {
            let (weak, done) = (source.token(), done.clone());
            let source = cancels.then(|| source.clone());
            OnDrop(move || {
                drop(weak.register(|| ()));
                if let Some(source) = &source {
                    source.cancel();
                }
                done.bump();
            })
        };
        let (by_hand, by_drop, by_reset) = (owned(false), owned(false), owned(true));
        let token = source.token();
        assert!(token.register(move || by_hand.hold()).unregister());
        drop(token.register(move || by_drop.hold()));
        token.register(move || by_reset.hold()).detach();
        assert!(source.try_reset());
        assert_eq!((done.get(), source.is_cancelled()), (3, true));
    });
}

// --------------------------------------------------------------------------------------- S44: exactly one of the two holds

#[test]
fn s44_invoked_or_unregistered_but_not_both_and_not_neither() {
    let mut outcomes = [0, 0];
    for round in 0..2_000_u64 {
        let source = CancellationTokenSource::new();
        let calls: Vec<Count> = (0..4).map(|_| Count::new()).collect();
        let registrations: Vec<Registration> =
            calls.iter().map(|count| source.token().register(counting(count))).collect();
        let waiting = round % 2 == 0;
        let (_, removed) = race(
            Duration::from_nanos(round % 1_000),
            || source.cancel(),
            || {
                let end = |registration: Registration| match waiting {
                    true => registration.unregister_and_wait(),
                    false => registration.unregister(),
                };
                registrations.into_iter().map(end).collect::<Vec<bool>>()
            },
        );
        for (call, removed) in calls.iter().zip(removed) {
            assert_eq!(call.get() + usize::from(removed), 1);
            outcomes[usize::from(removed)] += 1;
        }
    }
    assert_eq!(outcomes.iter().sum::<usize>(), 8_000);
}

#[test]
fn s44_waiting_tasks_that_are_dropped_against_a_cancel() {
    for round in 0..1_500_u64 {
        let source = CancellationTokenSource::new();
        let counters: Vec<CountingWaker> = (0..4).map(|_| CountingWaker::new()).collect();
        let mut tasks: Vec<CancelledOwned> = counters.iter().map(|_| source.token().cancelled_owned()).collect();
        for (task, counter) in tasks.iter_mut().zip(&counters) {
            assert!(poll(task, counter).is_pending());
        }
        race(Duration::from_nanos(round % 800), || source.cancel(), || drop(tasks));
        assert!(counters.iter().all(|counter| counter.wakes() <= 1 && counter.kept() == 0));
    }
}
