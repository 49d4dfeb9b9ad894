//! Sources: cancelled once and for good, with a reason (S40, S48); guards.

use super::*;

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
fn s40_a_thread_that_sees_the_cancel_sees_all_that_happened_before_it() {
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

// --------------------------------------------------------------------------------------------------------- S48: the reason

#[test]
fn s48_the_reason_is_known() {
    let (clock, runtime) = manual();
    let make = || CancellationTokenSource::on(&runtime);
    let (open, by_hand, by_time, by_zero, by_guard) = (make(), make(), make(), make(), make());
    by_hand.cancel();
    by_time.try_cancel_after(secs(1)).expect("a runtime of its own");
    by_zero.try_cancel_after(Duration::ZERO).expect("no timer is needed");
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
    by_time.try_cancel_after(Duration::ZERO).expect("no timer is needed");
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

// ----------------------------------------------------------------------------------------------------- guards and the rest

#[test]
fn s40_a_drop_guard_cancels_when_it_is_dropped() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    let guard = source.drop_guard();
    assert!(!token.is_cancelled());
    drop(guard);
    assert!(token.is_cancelled());
    let source = CancellationTokenSource::new();
    let token = source.token();
    let source = source.drop_guard().disarm();
    assert!(!token.is_cancelled());
    source.cancel();
    assert!(token.is_cancelled(), "it is the same source");
    drop(source.drop_guard());
    // A plain source cancels nothing.
    let token = CancellationTokenSource::new().token();
    assert!(!token.is_cancelled());
}

#[test]
fn s41_a_destructor_may_cancel_while_its_thread_panics() {
    let source = CancellationTokenSource::new();
    let called = Count::new();
    for _ in 0..3 {
        let called = called.clone();
        source
            .token()
            .register(move || {
                called.bump();
                panic_any("a callback");
            })
            .detach();
    }
    let payload = catch_unwind(AssertUnwindSafe(|| {
        let _cancels = OnDrop(|| {
            source.cancel();
        });
        panic_any("the code around it");
    }));
    // A second panic would have ended the process.
    assert_eq!(payload.expect_err("it panics").downcast_ref::<&str>(), Some(&"the code around it"));
    assert_eq!((called.get(), source.is_cancelled()), (3, true));
}

#[test]
fn s41_a_drop_guard_calls_all_callbacks_also_while_the_thread_panics() {
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
fn s40_all_types_implement_debug() {
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
