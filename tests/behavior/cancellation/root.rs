//! The root of a cancellation: the reason and the cause of the source where it began (S85).

use super::*;

/// An error of the program's.
struct Deploy(#[allow(dead_code)] Option<Canary>);

impl std::fmt::Debug for Deploy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Deploy")
    }
}

impl std::fmt::Display for Deploy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a new version is deployed")
    }
}

impl std::error::Error for Deploy {}

fn deploy() -> Arc<dyn std::error::Error + Send + Sync> {
    Arc::new(Deploy(None))
}

fn deploy_says() -> Option<String> {
    Some(deploy().to_string())
}

fn says(token: &CancellationToken) -> Option<String> {
    token.cause().map(|cause| cause.to_string())
}

fn kind(token: &CancellationToken) -> io::ErrorKind {
    io::Error::from(token.check().expect_err("cancelled")).kind()
}

#[test]
fn s85_a_child_of_a_request_that_timed_out_knows_that_its_time_is_up() {
    let (clock, runtime) = manual();
    let request = timed(&runtime, secs(1));
    let step = request.token().child_source();
    let inner = CancellationTokenSource::linked([&CancellationToken::none(), &step.token()]);
    let token = inner.token();
    assert_eq!((token.reason(), token.root_reason()), (None, None));
    let mut waiting = token.cancelled();
    assert!(poll(&mut waiting, &CountingWaker::new()).is_pending());
    clock.advance(secs(1));
    let born = token.child_source().token();
    for token in [&step.token(), &token, &born] {
        assert_eq!((token.reason(), token.root_reason()), (Some(CancelReason::Parent), Some(CancelReason::Timeout)));
        assert_eq!(kind(token), io::ErrorKind::TimedOut);
        assert_eq!(token.wait().to_string(), "cancelled by the timeout of a linked source");
        let error = TimeoutError::from(token.check().expect_err("cancelled"));
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
    }
    let Poll::Ready(cancelled) = poll(&mut waiting, &CountingWaker::new()) else { panic!("cancelled") };
    assert_eq!((cancelled.reason(), cancelled.root_reason()), (CancelReason::Parent, CancelReason::Timeout));
    assert_eq!(request.token().root_reason(), Some(CancelReason::Timeout));
}

#[test]
fn s85_a_child_of_a_source_cancelled_by_hand_has_not_timed_out() {
    let source = CancellationTokenSource::new();
    let child = source.token().child_source().token();
    source.cancel();
    for token in [&child, &child.child_source().token(), &source.token()] {
        assert_eq!(token.root_reason(), Some(CancelReason::Cancelled));
        assert_eq!(kind(token), io::ErrorKind::Other);
    }
    assert_eq!(child.wait().to_string(), "cancelled by a linked source");
}

#[test]
fn s85_the_first_of_several_parents_is_the_root() {
    let (clock, runtime) = manual();
    let [timed, by_hand] = [timed(&runtime, secs(1)), CancellationTokenSource::on(&runtime)];
    let tokens = [timed.token(), by_hand.token()];
    let child = CancellationTokenSource::linked(&tokens).token();
    by_hand.cancel_with_cause(deploy());
    clock.advance(secs(1));
    assert_eq!((child.root_reason(), says(&child)), (Some(CancelReason::Cancelled), says(&by_hand.token())));
    // Born under two cancelled parents: the first that is named.
    let born = CancellationTokenSource::linked(&tokens).token();
    assert_eq!((born.root_reason(), says(&born)), (Some(CancelReason::Timeout), None));
    let born = CancellationTokenSource::linked(tokens.iter().rev()).token();
    assert_eq!((born.root_reason(), says(&born)), (Some(CancelReason::Cancelled), says(&by_hand.token())));
}

#[test]
fn s85_a_cause_is_found_in_all_children() {
    let server = CancellationTokenSource::new();
    let request = server.token().child_source();
    let step = CancellationTokenSource::linked([&request.token(), &CancellationTokenSource::new().token()]);
    let alone = CancellationTokenSource::new();
    let seen = Journal::new();
    step.token()
        .register({
            let (seen, token) = (seen.clone(), step.token());
            move || seen.push(says(&token))
        })
        .detach();
    assert_eq!(says(&server.token()), None);
    let cause = deploy();
    assert!(server.cancel_with_cause(Arc::clone(&cause)));
    assert_eq!(seen.take(), [says(&server.token())], "before any callback runs");
    for token in [server.token(), request.token(), step.token(), step.token().child_source().token()] {
        let found = token.cause().expect("the cause");
        assert!(Arc::ptr_eq(&found, &cause) && found.downcast_ref::<Deploy>().is_some());
    }
    assert!(!server.cancel_with_cause(Arc::new(io::Error::other("too late"))));
    assert_eq!(says(&request.token()).as_deref(), Some("a new version is deployed"));
    alone.cancel();
    assert!(!alone.cancel_with_cause(deploy()) && says(&alone.token()).is_none(), "cancelled without a cause");
    assert!(says(&CancellationToken::none()).is_none());
}

/// Go's `WithTimeoutCause`; and a cause of a cancellation whose callbacks run on the pool.
#[test]
fn s85_a_timed_cancel_and_one_on_the_pool_have_a_cause() {
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    let (canary, replaced) = Canary::new();
    source.set_timeout_cause(Arc::new(Deploy(Some(canary))));
    source.cancel_after(secs(1));
    source.set_timeout_cause(deploy()); // of the pending one
    assert!(replaced.is_dropped());
    let child = source.token().child_source().token();
    assert_eq!(says(&source.token()), None, "not before it is cancelled");
    clock.advance(secs(1));
    for token in [source.token(), child] {
        assert_eq!((token.root_reason(), says(&token)), (Some(CancelReason::Timeout), deploy_says()));
    }
    let (canary, late) = Canary::new();
    source.set_timeout_cause(Arc::new(Deploy(Some(canary))));
    assert!(late.is_dropped());

    // At once, and not that of another cancellation.
    let sources: [_; 3] = std::array::from_fn(|_| CancellationTokenSource::on(&runtime));
    sources.iter().for_each(|source| source.set_timeout_cause(deploy()));
    sources[0].cancel_after(Duration::ZERO);
    sources[1].cancel();
    assert!(sources[2].try_reset());
    sources[2].cancel_after(Duration::ZERO);
    assert_eq!(sources.each_ref().map(|source| says(&source.token())), [deploy_says(), None, None]);

    let source = CancellationTokenSource::on(&runtime);
    drop(source.cancel_async_with_cause(deploy()));
    assert_eq!(says(&source.token()), deploy_says());
}

#[test]
fn s85_a_cause_ends_with_the_last_source_and_is_dropped_outside_locks() {
    let (_clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    let child = source.token().child_source();
    let (canary, fate) = Canary::new();
    source.cancel_with_cause(Arc::new(Deploy(Some(canary))));
    drop(source);
    assert!(!fate.is_dropped());
    let cause = child.token().cause();
    drop(child);
    assert!(!fate.is_dropped(), "the program has it still");
    drop(cause);
    assert!(fate.is_dropped());

    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    impl std::fmt::Debug for Bomb {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Bomb")
        }
    }
    impl std::fmt::Display for Bomb {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("bomb")
        }
    }
    impl std::error::Error for Bomb {}
    let source = CancellationTokenSource::on(&runtime);
    source.cancel_with_cause(Arc::new(Bomb));
    assert!(panics(|| source.cancel_with_cause(Arc::new(Bomb))), "one that comes too late surfaces in its call");
    assert_eq!(runtime.metrics().panics, 0);
    drop(source);
    assert_eq!(runtime.metrics().panics, 1, "that of the source goes to the panic handler");
}

#[test]
fn s85_of_two_causes_the_one_of_the_canceller_is_seen() {
    for round in 0..1_000 {
        let source = CancellationTokenSource::new();
        let child = source.token().child_source().token();
        let cause = |text: &str| -> Arc<dyn std::error::Error + Send + Sync> { Arc::new(io::Error::other(text)) };
        let (first, second) = race(
            Duration::from_nanos(round),
            || (source.cancel_with_cause(cause("first")), says(&source.token())),
            || (source.cancel_with_cause(cause("second")), says(&source.token())),
        );
        assert_ne!(first.0, second.0);
        let want = Some(if first.0 { "first" } else { "second" }.to_owned());
        assert_eq!([first.1, second.1], [want.clone(), want.clone()]);
        // The child is marked when the canceller returns.
        assert_eq!(says(&child), want);
    }
}
