//! What cancellation promises: S40 to S49, and what is left of it when a runtime ends (S33).
//!
//! Ground rules. Most of it needs no clock at all; timed cancels run on virtual time. Races are run many times over with the
//! two sides started together, and what is asserted is that exactly one of the possible outcomes holds, whichever it is.

mod common;
mod hand;

use std::error::Error as _;
use std::future::{pending, ready};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::Poll;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use common::{Canary, Count, Gate, Journal, NEVER, OnDrop, PATIENCE, Random, block_on, eventually, lock, manual, ms};
use common::{native, secs, us, within};
use hand::{Bell, Grumpy, panics, poll, poll_pinned, poll_with, waker_that};
use timerqueue::{
    CancelReason, CancellationToken, CancellationTokenSource, Cancelled, CancelledFuture, CancelledOwned, DropGuard,
    Registration, RunUntilCancelled, Runtime,
};

/// Runs both at the same time, as nearly as two threads can, the second one a little later.
fn race<A: Send, B: Send>(
    skew: Duration,
    first: impl FnOnce() -> A + Send,
    second: impl FnOnce() -> B + Send,
) -> (A, B) {
    let here = AtomicUsize::new(0);
    let meet = || {
        here.fetch_add(1, Ordering::SeqCst);
        while here.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            meet();
            first()
        });
        meet();
        let until = Instant::now() + skew;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let second = second();
        (other.join().expect("no panic"), second)
    })
}

/// A callback that counts its calls.
fn counting(count: &Count) -> impl FnMut() + Send + use<> {
    let count = count.clone();
    move || {
        count.bump();
    }
}

fn reason(source: &CancellationTokenSource) -> Option<CancelReason> {
    source.token().reason()
}

// ----------------------------------------------------------------------------------------------------- S40: once, for good

#[test]
fn s40_everything_can_be_sent_and_shared() {
    fn crosses_threads<T: Send + Sync + Unpin + 'static>() {}
    crosses_threads::<CancellationTokenSource>();
    crosses_threads::<CancellationToken>();
    crosses_threads::<Registration>();
    crosses_threads::<DropGuard>();
    crosses_threads::<Cancelled>();
    crosses_threads::<CancelledFuture<'static>>();
    crosses_threads::<CancelledOwned>();
    crosses_threads::<RunUntilCancelled<std::future::Ready<()>>>();
}

#[test]
fn s40_the_first_cancel_wins_and_says_so() {
    let source = CancellationTokenSource::new();
    let (token, clone) = (source.token(), source.clone());
    assert!(!source.is_cancelled() && !token.is_cancelled() && token.check().is_ok());
    assert!(source.cancel());
    assert!(source.is_cancelled() && clone.is_cancelled() && token.is_cancelled() && token.check().is_err());
    assert!(!source.cancel() && !clone.cancel());
    assert!(source.token().is_cancelled(), "and for tokens made later");
}

#[test]
fn s40_of_many_threads_exactly_one_cancels() {
    for _ in 0..300 {
        let source = CancellationTokenSource::new();
        let (start, called) = (Barrier::new(4), Count::new());
        source.token().register(counting(&called)).detach();
        let winners: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        usize::from(source.cancel())
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!((winners, called.get()), (1, 1));
    }
}

#[test]
fn s40_it_is_cancelled_before_any_callback_runs() {
    let source = CancellationTokenSource::new();
    let seen = Journal::new();
    for _ in 0..3 {
        let (token, seen) = (source.token(), seen.clone());
        source.token().register(move || seen.push(token.is_cancelled())).detach();
    }
    source.cancel();
    assert_eq!(seen.take(), [true; 3]);
}

#[test]
fn s40_who_sees_it_cancelled_sees_what_was_done_before() {
    for _ in 0..300 {
        let source = CancellationTokenSource::new();
        let token = source.token();
        let written = AtomicUsize::new(0);
        let ((), seen) = race(
            Duration::ZERO,
            || {
                written.store(1, Ordering::Relaxed);
                source.cancel();
            },
            || {
                while !token.is_cancelled() {
                    thread::yield_now();
                }
                written.load(Ordering::Relaxed)
            },
        );
        assert_eq!(seen, 1);
    }
}

#[test]
fn s40_tokens_are_equal_when_their_source_is_the_same() {
    let (one, other) = (CancellationTokenSource::new(), CancellationTokenSource::new());
    assert_eq!(one.token(), one.clone().token());
    assert_ne!(one.token(), other.token());
    assert_ne!(one.token(), CancellationToken::none());
    assert_eq!(CancellationToken::default(), CancellationToken::none());
}

// --------------------------------------------------------------------------------------------------------- S41: callbacks

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
fn s41_wakers_and_callbacks_stand_in_one_order() {
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
    assert_eq!(calls.take(), ["second task", "callback", "first task"]);
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
                    assert!(!source.cancel(), "inside its own callback somebody has cancelled already");
                    assert!(token.is_cancelled() && token.wait_timeout(PATIENCE).is_err());
                    assert!(lock(&never).take().is_some_and(Registration::unregister), "not begun yet");
                    let called = Count::new();
                    token.register(counting(&called)).detach();
                    assert_eq!(called.get(), 1, "registered on a cancelled token: at once");
                    assert!(!source.try_reset());
                    source.cancel_after(secs(1)).expect("does nothing");
                    assert!(token.child_source().is_cancelled());
                    assert!(poll(&mut token.cancelled_owned(), &Bell::new()).is_ready());
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
    let source = runtime.cancellation_source();
    let (send, receive) = mpsc::channel();
    source.token().register(move || send.send(thread::current().name().map(String::from)).expect("awaited")).detach();
    source.cancel_after(ms(1)).expect("a runtime of its own");
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
            move |payload| told.push(payload.downcast_ref::<&str>().copied())
        })
        .start()
        .expect("nothing to refuse");
    let source = runtime.cancellation_source();
    let calls = Count::new();
    for i in 0..3 {
        let calls = calls.clone();
        source
            .token()
            .register(move || {
                calls.bump();
                assert!(i != 1, "a callback of a timed cancel");
            })
            .detach();
    }
    source.cancel_after(secs(1)).expect("a runtime of its own");
    clock.advance(secs(1));
    assert_eq!((calls.get(), runtime.panics()), (3, 1));
    assert_eq!(told.take(), [Some("a callback of a timed cancel")]);
}

#[test]
fn s24_destructors_that_panic_keep_nothing_from_being_dropped() {
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
    // Two at once would end the process.
    let parent = CancellationTokenSource::new();
    let source = parent.token().child_source();
    register(&source);
    assert!(source.try_reset());
    assert_eq!(dropped.get(), 3, "a reset");
    register(&source);
    drop(source);
    assert_eq!(dropped.get(), 6, "the end of the source");
    // A middle one that lives for its child alone ends with it.
    let middle = parent.token().child_source();
    register(&middle);
    let child = middle.token().child_source();
    drop(middle);
    assert_eq!(dropped.get(), 6);
    drop(child);
    assert_eq!(dropped.get(), 9, "the end of a chain");
    // One that is taken out by hand panics here.
    let owned = Spiteful(dropped.clone());
    let registration = parent.token().register(move || drop(owned));
    assert!(panics(|| registration.unregister()));
    assert_eq!(dropped.get(), 10);
    // Those that are called are callbacks that panic.
    register(&parent);
    assert!(panics(|| parent.cancel()));
    assert_eq!(dropped.get(), 13);
}

#[test]
fn s41_a_waker_that_panics_keeps_nobody_from_being_told() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    let (bell, grumpy, called) = (Bell::new(), Grumpy::on_wake(), Count::new());
    let mut tasks: Vec<CancelledFuture<'_>> = (0..6).map(|_| token.cancelled()).collect();
    for (i, task) in tasks.iter_mut().enumerate() {
        let waker = if i % 2 == 0 { grumpy.waker() } else { bell.waker() };
        assert!(poll_with(task, &waker).is_pending());
    }
    token.register(counting(&called)).detach();
    assert!(panics(|| source.cancel()));
    assert_eq!((bell.rings(), grumpy.outbursts(), called.get()), (3, 3, 1));
    assert!(tasks.iter_mut().all(|task| poll(task, &bell).is_ready()), "theirs are ready as well");
    assert_eq!((bell.kept(), grumpy.kept()), (0, 0));
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
    // Every third is taken out again, in the middle of the others.
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
        let source = runtime.cancellation_source();
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
            // On the pool nobody else has a handle any more.
            source.cancel_after(secs(1)).expect("a runtime of its own");
            *lock(&slot) = Some(source);
            clock.advance(secs(1));
        }
        assert_eq!((called.get(), canary.1.is_dropped(), reason(&child)), (1, true, Some(CancelReason::Parent)));
    }
    assert_eq!((runtime.panics(), runtime.active_timers()), (0, 0));
}

// ------------------------------------------------------------------------------------- S42: registering on a cancelled token

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
fn s43_unregistering_from_inside_a_callback_does_not_wait_for_oneself() {
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
fn s43_what_a_callback_owns_may_use_the_source_when_it_is_dropped() {
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

// ------------------------------------------------------------------------------------- S44: exactly one of the two holds

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
        let bells: Vec<Bell> = (0..4).map(|_| Bell::new()).collect();
        let mut tasks: Vec<CancelledOwned> = bells.iter().map(|_| source.token().cancelled_owned()).collect();
        for (task, bell) in tasks.iter_mut().zip(&bells) {
            assert!(poll(task, bell).is_pending());
        }
        race(Duration::from_nanos(round % 800), || source.cancel(), || drop(tasks));
        assert!(bells.iter().all(|bell| bell.rings() <= 1 && bell.kept() == 0));
    }
}

// --------------------------------------------------------------------------------------------------- S45: timed cancels

#[test]
fn s45_a_timed_cancel_comes_at_its_instant() {
    let (clock, runtime) = manual();
    let source = runtime.cancellation_source();
    let seen = Journal::new();
    source
        .token()
        .register({
            let (clock, seen) = (clock.clone(), seen.clone());
            move || seen.push(clock.now().as_duration())
        })
        .detach();
    source.cancel_after(secs(5)).expect("a runtime of its own");
    assert_eq!((runtime.active_timers(), runtime.next_due()), (1, Some(clock.now() + secs(5))));
    clock.advance(secs(5) - Duration::from_nanos(1));
    assert!(!source.is_cancelled(), "a nanosecond before");
    clock.advance(Duration::from_nanos(1));
    assert_eq!((reason(&source), seen.take()), (Some(CancelReason::Timeout), vec![secs(5)]));
    assert_eq!(runtime.active_timers(), 0);
}

#[test]
fn s45_there_is_one_timed_cancel_and_a_further_call_moves_it() {
    let (clock, runtime) = manual();
    for (first, then) in [(10, 3), (3, 10), (5, 5)] {
        let source = runtime.cancellation_source();
        source.cancel_after(secs(first)).expect("a runtime of its own");
        clock.advance(secs(1));
        source.cancel_after(secs(then)).expect("a runtime of its own");
        assert_eq!((runtime.active_timers(), runtime.next_due()), (1, Some(clock.now() + secs(then))), "from now");
        clock.advance(secs(then) - Duration::from_nanos(1));
        assert!(!source.is_cancelled());
        clock.advance(Duration::from_nanos(1));
        assert_eq!(reason(&source), Some(CancelReason::Timeout));
    }
}

#[test]
fn s45_an_infinite_one_withdraws() {
    let (clock, runtime) = manual();
    for never in [NEVER, Duration::from_nanos(u64::MAX), secs(u64::MAX / 2)] {
        let source = runtime.cancellation_source();
        source.cancel_after(never).expect("nothing to do");
        source.cancel_after(secs(1)).expect("a runtime of its own");
        source.cancel_after(never).expect("a runtime of its own");
        assert_eq!(runtime.active_timers(), 0);
        clock.advance(secs(1000));
        assert!(!source.is_cancelled());
        source.cancel_after(secs(1)).expect("a runtime of its own");
        clock.advance(secs(1));
        assert!(source.is_cancelled(), "and can be set again");
    }
}

#[test]
fn s45_what_does_not_fit_the_clock_withdraws_as_well() {
    let (clock, runtime) = manual();
    let source = runtime.cancellation_source();
    source.cancel_after(secs(u64::MAX)).expect("it runs");
    assert_eq!(runtime.active_timers(), 0);
    source.cancel_after(secs(5)).expect("it runs");
    source.cancel_after(secs(u64::MAX)).expect("it runs");
    clock.advance(secs(10));
    assert!(!source.is_cancelled());
    // What was withdrawn in time is no cancel that can still come (S46).
    source.cancel_after(secs(5)).expect("it runs");
    assert!(source.try_reset());
}

#[test]
fn s45_zero_cancels_here_and_now() {
    let (_clock, runtime) = manual();
    let source = runtime.cancellation_source();
    let seen = Journal::new();
    let noting = seen.clone();
    source.token().register(move || noting.push(thread::current().id())).detach();
    source.cancel_after(secs(9)).expect("a runtime of its own");
    source.cancel_after(Duration::ZERO).expect("no timer is needed");
    assert_eq!((reason(&source), seen.take()), (Some(CancelReason::Timeout), vec![thread::current().id()]));
    assert_eq!(runtime.active_timers(), 0, "the one before has no purpose any more");
}

#[test]
fn s45_on_a_cancelled_source_it_does_nothing() {
    let (clock, runtime) = manual();
    let source = runtime.cancellation_source();
    source.cancel_after(secs(5)).expect("a runtime of its own");
    source.cancel();
    assert_eq!(runtime.active_timers(), 0, "a cancel by hand takes the timed one out");
    for after in [secs(1), Duration::ZERO, NEVER] {
        source.cancel_after(after).expect("does nothing");
    }
    assert_eq!(
        (runtime.active_timers(), clock.advance(secs(10)), reason(&source)),
        (0, 0, Some(CancelReason::Cancelled))
    );
}

#[test]
fn s45_it_comes_for_tokens_whose_source_was_dropped_and_goes_with_the_last_of_them() {
    let (clock, runtime) = manual();
    let source = runtime.cancellation_source();
    source.cancel_after(secs(1)).expect("a runtime of its own");
    let token = source.token();
    drop(source);
    clock.advance(secs(1));
    assert_eq!(token.reason(), Some(CancelReason::Timeout));

    let source = runtime.cancellation_source();
    source.cancel_after(secs(1)).expect("a runtime of its own");
    let token = source.token();
    drop((source, token));
    assert_eq!(runtime.active_timers(), 0);
}

#[test]
fn s45_on_the_default_runtime() {
    let source = CancellationTokenSource::after(ms(2)).expect("starts");
    let made = Instant::now();
    let cancelled = source.token().wait_timeout(PATIENCE).expect_err("in time");
    assert_eq!(cancelled.reason(), CancelReason::Timeout);
    assert!(made.elapsed() < PATIENCE);
    let source = CancellationTokenSource::default();
    let before = Instant::now();
    source.cancel_after(ms(2)).expect("started");
    assert!(source.token().wait_timeout(PATIENCE).is_err());
    assert!(before.elapsed() >= ms(2), "never early");
    assert!(CancellationTokenSource::after(Duration::ZERO).expect("needs none").is_cancelled());
}

#[test]
fn s45_moving_a_timed_cancel_against_its_firing_and_a_cancel() {
    within(PATIENCE, "moving timed cancels", || {
        let runtime = native();
        for round in 0..1_000_u64 {
            let source = runtime.cancellation_source();
            source.cancel_after(us(30 + round % 60)).expect("a runtime of its own");
            race(
                us(round % 70),
                || {
                    for _ in 0..20 {
                        source.cancel_after(us(round % 90)).expect("a runtime of its own");
                    }
                },
                || round % 2 == 0 && source.cancel() || source.cancel_after(ms(1)).is_ok(),
            );
            let cancelled = source.token().wait_timeout(PATIENCE).expect_err("one of them comes");
            assert!(round % 2 == 0 || cancelled.reason() == CancelReason::Timeout);
        }
        eventually("no timer is left", || runtime.active_timers() == 0);
        assert_eq!(runtime.panics(), 0);
    });
}

// ---------------------------------------------------------------------------------------------------------- S46: try_reset

#[test]
fn s46_an_uncancelled_source_can_be_used_again() {
    let (clock, runtime) = manual();
    let source = runtime.cancellation_source();
    let token = source.token();
    let bell = Bell::new();
    let mut task = token.cancelled();
    for _request in 0..3 {
        source.cancel_after(secs(10)).expect("a runtime of its own");
        let (canary, fate) = Canary::new();
        let registration = token.register(move || canary.sing());
        assert!(poll(&mut task, &bell).is_pending());
        clock.advance(secs(9));
        assert!(source.try_reset());
        assert!(fate.is_dropped(), "callbacks are dropped uncalled");
        assert!(!registration.unregister());
        clock.advance(secs(100));
        assert!(!source.is_cancelled(), "the timed cancel is withdrawn");
    }
    assert!(source.try_reset(), "also when there is nothing to reset");
    assert_eq!(bell.rings(), 0);
    source.cancel();
    assert_eq!(bell.rings(), 1, "a task that waits goes on waiting");
    assert!(!source.try_reset(), "a cancelled one never");
}

#[test]
fn s46_false_from_the_moment_the_timed_cancel_has_begun() {
    let (clock, runtime) = manual();
    let source = runtime.cancellation_source();
    let answers = Journal::new();
    source
        .token()
        .register({
            let (source, answers) = (source.clone(), answers.clone());
            move || answers.push(source.try_reset())
        })
        .detach();
    source.cancel_after(secs(1)).expect("a runtime of its own");
    clock.advance(secs(1));
    assert_eq!((answers.take(), source.try_reset()), (vec![false], false));
}

#[test]
fn s46_a_timed_cancel_that_is_due_but_has_not_begun_is_withdrawn() {
    // Two timers of one instant: the first resets the source that the second would cancel.
    let (clock, runtime) = manual();
    let source = runtime.cancellation_source();
    let answers = Journal::new();
    let resetting = runtime.once(secs(1), {
        let (source, answers) = (source.clone(), answers.clone());
        move |_| answers.push(source.try_reset())
    });
    source.cancel_after(secs(1)).expect("a runtime of its own");
    clock.advance(secs(1));
    assert_eq!((answers.take(), source.is_cancelled()), (vec![true], false));
    // Late, with the hands past the instant, but nobody has swept.
    source.cancel_after(secs(1)).expect("a runtime of its own");
    clock.stall(secs(2));
    assert!(source.try_reset());
    assert_eq!((clock.advance(secs(5)), source.is_cancelled()), (0, false));
    drop(resetting);
}

#[test]
fn s46_true_means_that_no_earlier_timed_cancel_comes_any_more() {
    within(PATIENCE, "resetting sources whose time is up", || {
        let runtime = native();
        let (mut reset, mut too_late) = (Vec::new(), Vec::new());
        for round in 0..1_500 {
            let source = runtime.cancellation_source();
            source.cancel_after(us(40)).expect("a runtime of its own");
            let until = runtime.now() + us(round % 90);
            while runtime.now() < until {
                std::hint::spin_loop();
            }
            if source.try_reset() { reset.push(source) } else { too_late.push(source) }
        }
        for source in &too_late {
            let cancelled = source.token().wait_timeout(PATIENCE).expect_err("it was on its way");
            assert_eq!(cancelled.reason(), CancelReason::Timeout);
        }
        // Whatever was under way has ended when the runtime has.
        runtime.shutdown(PATIENCE).expect("no callback blocks");
        assert!(reset.iter().all(|source| !source.is_cancelled()));
        assert!(reset.len() + too_late.len() == 1_500 && !reset.is_empty());
    });
}

#[test]
fn s46_try_reset_against_cancel_and_register() {
    for round in 0..1_000 {
        let source = CancellationTokenSource::new();
        let token = source.token();
        let (called, dropped) = (Count::new(), Count::new());
        let ((), reset) = race(
            Duration::from_nanos(round),
            || {
                for _ in 0..3 {
                    let (called, dropped) = (called.clone(), dropped.clone());
                    let owned = OnDrop(counting(&dropped));
                    token
                        .register(move || {
                            owned.hold();
                            called.bump();
                        })
                        .detach();
                }
                source.cancel();
            },
            || source.try_reset(),
        );
        assert_eq!(dropped.get(), 3, "called or dropped, each of them");
        assert!(reset || called.get() == 3, "only a reset drops one uncalled");
        assert!(source.is_cancelled());
    }
}

// ----------------------------------------------------------------------------------------------------- S47: linked sources

#[test]
fn s47_cancelled_when_any_parent_is_and_not_the_other_way_round() {
    for which in 0..4 {
        let parents: Vec<CancellationTokenSource> = (0..4).map(|_| CancellationTokenSource::new()).collect();
        let tokens: Vec<CancellationToken> = parents.iter().map(CancellationTokenSource::token).collect();
        let linked = CancellationTokenSource::linked(&tokens);
        let alone = CancellationTokenSource::linked(&tokens);
        let called = Count::new();
        linked.token().register(counting(&called)).detach();
        alone.cancel();
        assert!(parents.iter().all(|parent| !parent.is_cancelled()) && !linked.is_cancelled(), "one-way");
        parents[which].cancel();
        assert_eq!((reason(&linked), called.get()), (Some(CancelReason::Parent), 1));
        assert_eq!(parents.iter().filter(|parent| parent.cancel()).count(), 3);
        assert_eq!(called.get(), 1);
        assert_eq!(reason(&alone), Some(CancelReason::Cancelled), "the first reason stays");
    }
}

#[test]
fn s47_born_cancelled_if_a_parent_already_is() {
    let (living, dead) = (CancellationTokenSource::new(), CancellationTokenSource::new());
    dead.cancel();
    let linked = CancellationTokenSource::linked([&living.token(), &dead.token()]);
    assert_eq!(reason(&linked), Some(CancelReason::Parent));
    assert!(!living.is_cancelled() && !linked.cancel());
    assert!(dead.token().child_source().token().child_source().is_cancelled());
}

#[test]
fn s47_linked_to_nothing_to_none_and_twice_to_the_same() {
    let nothing = CancellationTokenSource::linked([]);
    let none = CancellationTokenSource::linked([&CancellationToken::none(), &CancellationToken::none()]);
    assert!(!nothing.is_cancelled() && !none.is_cancelled());
    assert!(nothing.cancel() && none.cancel());
    let parent = CancellationTokenSource::new();
    let token = parent.token();
    let twice = CancellationTokenSource::linked([&token, &token, &CancellationToken::none()]);
    let called = Count::new();
    twice.token().register(counting(&called)).detach();
    parent.cancel();
    assert_eq!(called.get(), 1);
    drop(twice);
    // A diamond: each is told once.
    let top = CancellationTokenSource::new();
    let (left, right) = (top.token().child_source(), top.token().child_source());
    let bottom = CancellationTokenSource::linked([&left.token(), &right.token()]);
    let called = Count::new();
    bottom.token().register(counting(&called)).detach();
    top.cancel();
    assert_eq!((called.get(), reason(&bottom)), (1, Some(CancelReason::Parent)));
}

#[test]
fn s47_a_parent_tells_its_own_callbacks_first() {
    let parent = CancellationTokenSource::new();
    let child = parent.token().child_source();
    let grandchild = child.token().child_source();
    let calls = Journal::new();
    for (who, source) in [("grandchild", &grandchild), ("child", &child), ("parent", &parent)] {
        let calls = calls.clone();
        source.token().register(move || calls.push(who)).detach();
    }
    parent.cancel();
    assert_eq!(calls.take(), ["parent", "child", "grandchild"]);
}

#[test]
fn s47_dropping_a_linked_source_takes_it_out_of_its_parents_at_once() {
    let parent = CancellationTokenSource::new();
    let token = parent.token();
    for _ in 0..100 {
        let child = token.child_source();
        let (canary, fate) = Canary::new();
        child.token().register(move || canary.sing()).detach();
        assert!(!fate.is_dropped());
        drop(child);
        assert!(fate.is_dropped(), "nobody keeps it");
    }
    let child = token.child_source();
    drop((parent, token));
    assert!(child.cancel(), "and a child does without its parents");
}

#[test]
fn s47_a_dropped_source_in_the_middle_hands_on() {
    let (clock, runtime) = manual();
    // The parent is cancelled through a middle that nobody holds any more.
    let parent = runtime.cancellation_source();
    let grandchild = parent.token().child_source().token().child_source();
    assert!(!grandchild.is_cancelled());
    parent.cancel();
    assert_eq!(reason(&grandchild), Some(CancelReason::Parent));
    // The middle has a time of its own.
    let parent = runtime.cancellation_source();
    let middle = parent.token().child_source();
    middle.cancel_after(secs(1)).expect("the runtime of its parent");
    let grandchild = middle.token().child_source();
    drop(middle);
    assert_eq!(runtime.active_timers(), 1, "its child waits for it");
    clock.advance(secs(1));
    assert_eq!((reason(&grandchild), parent.is_cancelled()), (Some(CancelReason::Parent), false));
    // And it goes, timer and all, with the last of its children.
    let middle = parent.token().child_source();
    middle.cancel_after(secs(1)).expect("the runtime of its parent");
    let (canary, fate) = Canary::new();
    middle.token().register(move || canary.sing()).detach();
    let children = [middle.token().child_source(), middle.token().child_source()];
    drop(middle);
    let [first, second] = children;
    drop(first);
    assert_eq!((runtime.active_timers(), fate.is_dropped()), (1, false));
    drop(second);
    assert_eq!((runtime.active_timers(), fate.is_dropped()), (0, true));
}

#[test]
fn s47_a_destructor_that_panics_at_the_end_of_a_parent_keeps_no_other_alive() {
    // A chain whose links have a callback each, and whose handles are gone but for the last: it ends with that one.
    fn chain<const N: usize>(callbacks: [Box<dyn FnOnce() + Send>; N]) -> CancellationTokenSource {
        let mut last = CancellationTokenSource::new();
        for callback in callbacks {
            last.token().register(callback).detach();
            last = CancellationTokenSource::linked([&last.token()]);
        }
        last
    }
    fn holds<T: Send + 'static>(owned: T) -> Box<dyn FnOnce() + Send> {
        Box::new(move || drop(owned))
    }

    let (canary, fate) = Canary::new();
    let bomb = || holds(OnDrop(|| panic!("dropped")));
    let last = chain([holds(canary), bomb(), bomb()]);
    assert!(!fate.is_dropped());
    drop(last);
    assert!(fate.is_dropped(), "the others are let go of all the same");

    let (canary, fate) = Canary::new();
    drop(chain([holds(canary)]));
    assert!(fate.is_dropped(), "and so are later ones on this thread");
}

#[test]
fn s47_the_timed_cancel_of_a_child_goes_with_the_cancel_of_its_parent() {
    let (clock, runtime) = manual();
    let parent = runtime.cancellation_source();
    let child = parent.token().child_source();
    child.cancel_after(secs(10)).expect("the runtime of its parent");
    assert_eq!(runtime.active_timers(), 1);
    parent.cancel();
    assert_eq!((runtime.active_timers(), reason(&child)), (0, Some(CancelReason::Parent)));
    child.cancel_after(secs(10)).expect("does nothing");
    assert!(!child.try_reset());
    assert_eq!((runtime.active_timers(), clock.advance(secs(60))), (0, 0));
}

#[test]
fn s47_a_chain_of_a_hundred_thousand_is_cancelled_to_its_end() {
    const LONG: usize = 100_000;
    let root = CancellationTokenSource::new();
    let mut chain = vec![root.token().child_source()];
    while chain.len() < LONG {
        chain.push(chain[chain.len() - 1].token().child_source());
    }
    let called = Count::new();
    chain[LONG - 1].token().register(counting(&called)).detach();
    assert!(root.cancel());
    assert!(chain.iter().all(CancellationTokenSource::is_cancelled));
    assert_eq!(called.get(), 1);
    // The last first, so that none is kept alive by the one after it.
    while let Some(last) = chain.pop() {
        drop(last);
    }
}

#[test]
fn s47_a_hundred_thousand_children() {
    let parent = CancellationTokenSource::new();
    let token = parent.token();
    let mut children: Vec<CancellationTokenSource> = (0..100_000).map(|_| token.child_source()).collect();
    let mut random = Random(47);
    for _ in 0..50_000 {
        let at = random.below(children.len() as u64) as usize;
        drop(children.swap_remove(at));
    }
    children.extend((0..1_000).map(|_| token.child_source()));
    parent.cancel();
    assert!(children.iter().all(|child| reason(child) == Some(CancelReason::Parent)));
}

#[test]
fn s47_linking_against_cancelling_misses_nobody() {
    for round in 0..2_000 {
        let (parent, other) = (CancellationTokenSource::new(), CancellationTokenSource::new());
        let tokens = [other.token(), parent.token()];
        let called = Count::new();
        let (_, children) = race(
            Duration::from_nanos(round),
            || parent.cancel(),
            || {
                let make = |_| {
                    let child = CancellationTokenSource::linked(&tokens);
                    child.token().register(counting(&called)).detach();
                    (child.token().child_source(), child)
                };
                (0..3).map(make).collect::<Vec<_>>()
            },
        );
        assert!(children.iter().all(|(grandchild, child)| child.is_cancelled() && grandchild.is_cancelled()));
        assert_eq!(called.get(), 3);
    }
}

#[test]
fn s47_dropping_against_cancelling_runs_each_callback_once_or_drops_it() {
    for round in 0..1_500 {
        let parent = CancellationTokenSource::new();
        let (called, dropped) = (Count::new(), Count::new());
        let child = |parent: &CancellationToken| {
            let child = parent.child_source();
            let (called, dropped) = (called.clone(), dropped.clone());
            let owned = OnDrop(counting(&dropped));
            child
                .token()
                .register(move || {
                    owned.hold();
                    called.bump();
                })
                .detach();
            child
        };
        let middle = child(&parent.token());
        let children = [child(&middle.token()), child(&middle.token()), child(&parent.token())];
        race(
            Duration::from_nanos(round),
            || parent.cancel(),
            || {
                drop(middle);
                drop(children);
            },
        );
        assert_eq!(dropped.get(), 4, "nothing leaks, nothing is dropped twice");
        assert!(called.get() <= 4);
    }
}

#[test]
fn s47_children_made_and_dropped_on_all_sides_while_the_parent_is_cancelled() {
    within(PATIENCE, "children against a cancel", || {
        for round in 0..40 {
            let parent = CancellationTokenSource::new();
            let token = parent.token();
            thread::scope(|scope| {
                for who in 0..3 {
                    let token = &token;
                    scope.spawn(move || {
                        let mut random = Random(round * 3 + who);
                        let mut kept: Vec<CancellationTokenSource> = Vec::new();
                        let mut after = 0;
                        while after < 10 {
                            after += usize::from(token.is_cancelled());
                            match random.below(3) {
                                0 if !kept.is_empty() => {
                                    let at = random.below(kept.len() as u64) as usize;
                                    kept.swap_remove(at);
                                }
                                1 if !kept.is_empty() => {
                                    // The middle is dropped at once half of the time.
                                    let at = random.below(kept.len() as u64) as usize;
                                    kept[at] = kept[at].token().child_source();
                                }
                                _ => kept.push(token.child_source()),
                            }
                        }
                        eventually("all are cancelled", || kept.iter().all(CancellationTokenSource::is_cancelled));
                    });
                }
                let until = Instant::now() + us(200 + round * 10);
                while Instant::now() < until {
                    thread::yield_now();
                }
                parent.cancel();
            });
        }
    });
}

// ------------------------------------------------------------------------------------------------------- S48: the reason

#[test]
fn s48_the_reason_is_known() {
    let (clock, runtime) = manual();
    let make = || runtime.cancellation_source();
    let (open, by_hand, by_time, by_zero, by_guard) = (make(), make(), make(), make(), make());
    by_hand.cancel();
    by_time.cancel_after(secs(1)).expect("a runtime of its own");
    by_zero.cancel_after(Duration::ZERO).expect("no timer is needed");
    drop(by_guard.clone().drop_guard());
    let by_parent = by_time.token().child_source();
    clock.advance(secs(1));
    assert_eq!(reason(&open), None);
    assert_eq!(reason(&by_hand), Some(CancelReason::Cancelled));
    assert_eq!(reason(&by_time), Some(CancelReason::Timeout));
    assert_eq!(reason(&by_zero), Some(CancelReason::Timeout));
    assert_eq!(reason(&by_guard), Some(CancelReason::Cancelled));
    assert_eq!(reason(&by_parent), Some(CancelReason::Parent));
    by_parent.cancel();
    by_time.cancel();
    assert_eq!(reason(&by_parent), Some(CancelReason::Parent), "the first stays");
    assert_eq!(by_parent.token().check().map_err(|cancelled| cancelled.reason()), Err(CancelReason::Parent));
}

#[test]
fn s48_a_cancelled_operation_is_an_io_error_that_knows_its_reason() {
    let kinds = [
        (CancelReason::Cancelled, io::ErrorKind::Other, "cancelled"),
        (CancelReason::Timeout, io::ErrorKind::TimedOut, "cancelled by a timeout"),
        (CancelReason::Parent, io::ErrorKind::Other, "cancelled by a linked source"),
    ];
    let (by_hand, by_time) = (CancellationTokenSource::new(), CancellationTokenSource::new());
    by_hand.cancel();
    by_time.cancel_after(Duration::ZERO).expect("no timer is needed");
    let by_parent = by_hand.token().child_source();
    for (source, (reason, kind, text)) in [by_hand, by_time, by_parent].iter().zip(kinds) {
        let cancelled = source.token().check().expect_err("cancelled");
        assert_eq!((cancelled.reason(), cancelled.to_string().as_str()), (reason, text));
        assert!(cancelled.source().is_none());
        let error = io::Error::from(cancelled);
        assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
        assert_eq!(error.get_ref().and_then(|inner| inner.downcast_ref()), Some(&cancelled));
    }
}

// ------------------------------------------------------------------------------------------------------------ S49: tokens

#[test]
fn s49_a_token_can_be_awaited() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    let bells = [Bell::new(), Bell::new()];
    let mut borrowing = token.cancelled();
    let mut owning = token.cancelled_owned();
    assert!(poll(&mut borrowing, &bells[0]).is_pending() && poll(&mut owning, &bells[0]).is_pending());
    assert_eq!(bells[0].kept(), 2);
    assert!(poll(&mut borrowing, &bells[1]).is_pending());
    assert_eq!(bells.each_ref().map(Bell::kept), [1, 1], "the waker of the latest poll");
    source.cancel();
    assert_eq!(bells.each_ref().map(Bell::rings), [1, 1]);
    for _ in 0..2 {
        assert_eq!(
            poll(&mut borrowing, &bells[1]).map(|cancelled| cancelled.reason()),
            Poll::Ready(CancelReason::Cancelled)
        );
        assert_eq!(
            poll(&mut owning, &bells[1]).map(|cancelled| cancelled.reason()),
            Poll::Ready(CancelReason::Cancelled)
        );
    }
    assert_eq!(bells.each_ref().map(Bell::kept), [0, 0]);
    assert!(poll(&mut token.cancelled(), &bells[0]).is_ready(), "at once when it was before");
}

#[test]
fn s49_waiting_ends_with_the_future_that_waits() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    let bell = Bell::new();
    for _ in 0..100 {
        let (mut borrowing, mut owning) = (token.cancelled(), token.cancelled_owned());
        assert!(poll(&mut borrowing, &bell).is_pending() && poll(&mut owning, &bell).is_pending());
    }
    assert_eq!(bell.kept(), 0);
    source.cancel();
    assert_eq!(bell.rings(), 0);
}

#[test]
fn s49_a_thread_can_wait_with_a_limit() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    for limit in [Duration::ZERO, ms(1), ms(5)] {
        let begun = Instant::now();
        assert!(token.wait_timeout(limit).is_ok());
        assert!(begun.elapsed() >= limit, "never early");
    }
    within(PATIENCE, "waiting for a cancellation", || {
        for round in 0..200 {
            let source = CancellationTokenSource::new();
            let token = source.token();
            let limit = if round % 2 == 0 { NEVER } else { 2 * PATIENCE };
            let (_, waited) = race(us(round), || source.cancel(), || token.wait_timeout(limit));
            assert_eq!(waited.map_err(|cancelled| cancelled.reason()), Err(CancelReason::Cancelled));
        }
    });
    source.cancel();
    assert!(token.wait_timeout(Duration::ZERO).is_err() && token.wait_timeout(NEVER).is_err());
}

#[test]
fn s49_a_token_turns_into_an_error() {
    fn step(token: &CancellationToken) -> io::Result<u32> {
        token.check()?;
        Ok(1)
    }
    let source = CancellationTokenSource::new();
    assert_eq!(step(&source.token()).expect("goes on"), 1);
    source.cancel();
    assert_eq!(step(&source.token()).map_err(|error| error.kind()), Err(io::ErrorKind::Other));
}

#[test]
fn s49_none_is_never_cancelled() {
    const NONE: CancellationToken = CancellationToken::none();
    let none = NONE;
    let bell = Bell::new();
    assert!(!none.is_cancelled() && none.reason().is_none() && none.check().is_ok());
    let (canary, fate) = Canary::new();
    let registration = none.register(move || canary.sing());
    assert!(fate.is_dropped(), "a callback that is never called is not kept");
    assert!(!registration.unregister());
    assert!(poll(&mut none.cancelled(), &bell).is_pending() && poll(&mut none.cancelled_owned(), &bell).is_pending());
    assert_eq!(bell.kept(), 0);
    let begun = Instant::now();
    assert!(none.wait_timeout(ms(3)).is_ok() && begun.elapsed() >= ms(3));
    assert_eq!(block_on(none.run_until_cancelled(ready(4))), Some(4));
    assert!(!none.child_source().is_cancelled());
}

#[test]
fn s49_a_future_runs_until_it_is_cancelled() {
    let (clock, runtime) = manual();
    let (source, bell) = (runtime.cancellation_source(), Bell::new());
    let token = source.token();
    assert_eq!(block_on(token.run_until_cancelled(async { 7 })), Some(7));
    // Ready in time.
    let mut in_time = token.run_until_cancelled(runtime.delay(secs(1)));
    assert!(poll(&mut in_time, &bell).is_pending());
    clock.advance(secs(1));
    assert_eq!(poll(&mut in_time, &bell), Poll::Ready(Some(Ok(()))));
    drop(in_time);
    assert_eq!(bell.kept(), 0);
    // Ready together with the cancellation: not lost. (The delay is ready when the task is polled.)
    let mut together = token.run_until_cancelled(runtime.delay(secs(1)));
    assert!(poll(&mut together, &bell).is_pending());
    let (canary, fate) = Canary::new();
    let mut too_late = Box::pin(token.run_until_cancelled(async move {
        let _owned = canary;
        pending::<()>().await;
    }));
    assert!(poll_pinned(too_late.as_mut(), &bell).is_pending());
    source.cancel_after(secs(1)).expect("a runtime of its own");
    clock.advance(secs(1));
    assert_eq!(poll(&mut together, &bell), Poll::Ready(Some(Ok(()))));
    assert_eq!(poll_pinned(too_late.as_mut(), &bell), Poll::Ready(None));
    drop(too_late);
    assert!(fate.is_dropped());
    // Cancelled before: polled once all the same.
    let mut ready_at_once = token.run_until_cancelled(ready(1));
    assert_eq!(poll(&mut ready_at_once, &bell), Poll::Ready(Some(1)));
    assert_eq!(poll_pinned(pin!(token.run_until_cancelled(pending::<()>())), &bell), Poll::Ready(None));
}

#[test]
fn s49_wakers_that_panic_when_cloned_or_dropped_leave_the_token_usable() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    let (grumpy, bell) = (Grumpy::new(), Bell::new());
    let waker = grumpy.waker();
    let mut waiting = token.cancelled();
    Grumpy::set(&grumpy.on_clone, true);
    assert!(panics(|| poll_with(&mut waiting, &waker)));
    Grumpy::set(&grumpy.on_clone, false);
    assert!(poll_with(&mut waiting, &waker).is_pending());
    Grumpy::set(&grumpy.on_drop, true);
    assert!(panics(|| poll(&mut waiting, &bell)), "the one before is dropped");
    assert_eq!(bell.kept(), 1, "the new one has taken its place");
    Grumpy::set(&grumpy.on_drop, false);
    let mut dropped = token.cancelled();
    assert!(poll_with(&mut dropped, &waker).is_pending());
    Grumpy::set(&grumpy.on_drop, true);
    assert!(panics(|| drop(dropped)));
    Grumpy::set(&grumpy.on_drop, false);
    drop(waker);
    assert!(source.cancel());
    assert_eq!((bell.rings(), grumpy.kept()), (1, 0));
    assert!(poll(&mut waiting, &bell).is_ready());
}

#[test]
fn s49_no_lock_is_held_while_a_waker_is_cloned_woken_or_dropped() {
    within(PATIENCE, "wakers that use their token", || {
        let source = CancellationTokenSource::new();
        let token = source.token();
        let uses = Count::new();
        let task = || {
            let (token, uses) = (source.token(), uses.clone());
            Grumpy::that(move || {
                drop(token.register(|| ()));
                drop(token.child_source());
                uses.bump();
            })
        };
        let wakers = [task().waker(), task().waker()];
        let (mut waiting, mut dropped) = (token.cancelled(), token.cancelled_owned());
        for waker in &wakers {
            assert!(poll_with(&mut waiting, waker).is_pending() && poll_with(&mut dropped, waker).is_pending());
        }
        drop(dropped);
        assert!(source.cancel());
        assert!(poll_with(&mut waiting, &wakers[0]).is_ready());
        // Cloned 4 times, replaced twice, dropped with its future, woken.
        assert!(uses.get() >= 8, "{}", uses.get());
    });
}

#[test]
fn s49_a_waker_may_drop_what_it_waits_for() {
    let source = CancellationTokenSource::new();
    let slot: Arc<Mutex<Option<CancelledOwned>>> = Arc::default();
    let waker = waker_that({
        let slot = Arc::clone(&slot);
        move || drop(lock(&slot).take())
    });
    for _ in 0..2 {
        let mut waiting = source.token().cancelled_owned();
        assert!(poll_with(&mut waiting, &waker).is_pending());
        *lock(&slot) = Some(waiting);
    }
    assert!(source.cancel());
    assert!(lock(&slot).is_none());
}

#[test]
fn s49_a_task_that_waits_against_the_cancel_is_always_woken() {
    within(PATIENCE, "awaiting a token", || {
        for round in 0..1_000 {
            let source = CancellationTokenSource::new();
            let token = source.token();
            let (_, cancelled) = race(Duration::from_nanos(round), || source.cancel(), || block_on(token.cancelled()));
            assert_eq!(cancelled.reason(), CancelReason::Cancelled);
        }
    });
}

// -------------------------------------------------------------------------------------------------- guards and the rest

#[test]
fn s40_a_drop_guard_cancels_when_it_is_dropped() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    let guard = source.drop_guard();
    assert!(!token.is_cancelled());
    drop(guard);
    assert!(token.is_cancelled());
    let source = CancellationTokenSource::new().drop_guard().disarm();
    assert!(!source.is_cancelled());
    source.cancel();
    drop(source.drop_guard());
    // A plain source cancels nothing.
    let token = CancellationTokenSource::new().token();
    assert!(!token.is_cancelled());
}

#[test]
fn s41_a_drop_guard_tells_everybody_also_while_the_thread_panics() {
    for callback_panics in [false, true] {
        let source = CancellationTokenSource::new();
        let token = source.token();
        let calls = Journal::new();
        for i in 0..3 {
            let calls = calls.clone();
            token
                .register(move || {
                    calls.push((i, thread::panicking()));
                    assert!(!callback_panics || i != 1, "a callback");
                })
                .detach();
        }
        let payload = catch_unwind(AssertUnwindSafe(move || {
            let _guard = source.drop_guard();
            panic_any("the task itself");
        }));
        assert_eq!(payload.expect_err("panics").downcast_ref::<&str>(), Some(&"the task itself"));
        assert_eq!(calls.take(), [(2, true), (1, true), (0, true)]);
        assert!(token.is_cancelled());
    }
    // Without a panic under way, that of a callback surfaces.
    let source = CancellationTokenSource::new();
    source.token().register(|| panic!("a callback")).detach();
    assert!(panics(|| drop(source.drop_guard())));
}

#[test]
fn s33_a_timed_cancel_ends_with_its_runtime_and_the_source_goes_on() {
    let (clock, runtime) = manual();
    let source = runtime.cancellation_source();
    let token = source.token();
    let bell = Bell::new();
    source.cancel_after(secs(1)).expect("a runtime of its own");
    let mut waiting = token.cancelled();
    assert!(poll(&mut waiting, &bell).is_pending());
    runtime.shutdown(PATIENCE).expect("no callback runs");
    clock.advance(secs(5));
    source.cancel_after(secs(1)).expect("which never comes");
    clock.advance(secs(5));
    assert_eq!((reason(&source), bell.rings()), (None, 0));
    assert!(source.cancel());
    assert_eq!((reason(&source), bell.rings()), (Some(CancelReason::Cancelled), 1));
    let after = runtime.cancellation_source();
    after.cancel_after(Duration::ZERO).expect("no timer is needed");
    assert!(after.is_cancelled());
}

#[test]
fn s40_everything_can_be_shown() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    let shown = format!(
        "{source:?} {token:?} {:?} {:?} {:?} {:?} {:?}",
        token.register(|| ()),
        token.cancelled(),
        token.cancelled_owned(),
        token.run_until_cancelled(ready(1)),
        source.clone().drop_guard(),
    );
    for what in ["CancellationTokenSource", "reason: None", "Registration", "CancelledFuture", "CancelledOwned"] {
        assert!(shown.contains(what), "{what}: {shown}");
    }
    assert!(shown.contains("RunUntilCancelled") && shown.contains("DropGuard"), "{shown}");
}

#[test]
fn s47_a_chain_of_a_hundred_thousand_is_dropped_from_any_end() {
    within(PATIENCE, "the end of a long chain", || {
        let top = CancellationTokenSource::new();
        let mut last = top.clone();
        for _ in 0..100_000 {
            last = last.token().child_source(); // the one before lives on for its child
        }
        drop(top);
        drop(last); // and now nobody needs any of them
    });
}
