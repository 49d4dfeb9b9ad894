//! Tokens in every wait.

use super::*;

#[test]
fn s67_any_future_takes_a_token_and_its_result_counts_first() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    assert_eq!(block_on(async { 7 }.with_token(&token)), Ok(7));
    let waiting = thread::spawn({
        let token = token.clone();
        move || block_on(pending::<()>().with_token(&token))
    });
    source.cancel();
    assert_eq!(waiting.join().expect("no panic").map_err(|cancelled| cancelled.reason()), Err(CancelReason::Cancelled));
    assert!(block_on(async { 7 }.with_token(&token)).is_err(), "after the cancellation it does not begin (S86)");
    let (canary, fate) = Canary::new();
    let future = async move {
        canary.sing();
        pending::<()>().await;
    };
    assert!(block_on(future.with_token(&token)).is_err() && fate.is_dropped());
    assert_eq!(block_on(async { 1 }.with_token(&CancellationToken::none()).into_inner()), 1);
}

#[test]
fn s67_a_future_with_a_token_keeps_no_waker_once_it_is_ready_or_dropped() {
    let source = CancellationTokenSource::new();
    let counter = crate::support::poll::CountingWaker::new();
    let (clock, runtime) = manual();
    let mut ready = Box::pin(Delay::on(&runtime, secs(1)).with_token_of(&source.token()));
    assert!(crate::support::poll::poll(&mut ready, &counter).is_pending());
    clock.advance(secs(1));
    assert!(crate::support::poll::poll(&mut ready, &counter).is_ready());
    let mut dropped = Box::pin(pending::<()>().with_token(&source.token()));
    assert!(crate::support::poll::poll(&mut dropped, &counter).is_pending());
    drop(dropped);
    let wakes = counter.wakes();
    source.cancel();
    assert_eq!(counter.wakes(), wakes, "no task waits");
}

/// The method of the trait, where the future has one of its own.
trait WithTokenOf: std::future::IntoFuture + Sized {
    fn with_token_of(self, token: &CancellationToken) -> timerqueue::futures::WithToken<Self::IntoFuture> {
        TimerFutureExt::with_token(self, token)
    }
}
impl<F: std::future::IntoFuture> WithTokenOf for F {}

#[test]
fn s67_an_interval_with_a_token_tells_of_the_cancellation_before_a_tick_that_is_due() {
    let (clock, runtime) = manual();
    let source = runtime.enter(|| CancellationTokenSource::after(ms(3_500)));
    let mut ticks = Interval::on(&runtime, secs(1)).with_token(&source.token());
    for second in 1..=3 {
        let tick = clock.block_on(ticks.tick()).expect("not cancelled").expect("not stopped");
        assert_eq!(tick.scheduled().as_duration(), secs(second));
    }
    assert_eq!(clock.block_on(ticks.tick()).map_err(|cancelled| cancelled.reason()), Err(CancelReason::Timeout));
    assert_eq!((clock.now().as_duration(), runtime.metrics().active), (ms(3_500), 0));
    clock.advance(secs(5));
    assert!(block_on(ticks.tick()).is_err(), "ticks are due, and the cancellation stays");
    // Without the token the ticks go on.
    let mut interval = ticks.into_inner();
    assert_eq!(block_on(interval.tick()).map(|tick| tick.scheduled().as_duration()), Some(secs(4)));
    // A stop ends the ticks, too.
    let mut ticks = Interval::on(&runtime, secs(1)).with_token(&CancellationToken::none());
    ticks.interval_mut().stop_handle().stop();
    assert_eq!(block_on(ticks.tick()), Ok(None));
}

#[test]
fn s67_tokens_are_keys_and_cross_the_edge_of_a_panic() {
    fn unwinds<T: UnwindSafe + RefUnwindSafe>() {}
    unwinds::<CancellationToken>();
    unwinds::<CancellationTokenSource>();
    unwinds::<(Runtime, ManualClock, Timer, OnceTimer, WallTimer)>();
    let [one, other] = [(); 2].map(|()| CancellationTokenSource::new());
    // hash and equality are those of the source, whatever its state
    #[allow(clippy::mutable_key_type)]
    let tokens = HashSet::from([
        one.token(),
        one.token(),
        other.token(),
        CancellationToken::none(),
        CancellationToken::default(),
    ]);
    assert_eq!(tokens.len(), 3);
    let token = one.token();
    assert!(catch_unwind(move || token.register(|| ()).unregister()).expect("no panic"));
}

#[test]
fn s67_a_thread_waits_without_a_limit() {
    let source = CancellationTokenSource::new();
    let token = source.token();
    let waiting = within(PATIENCE, "wait", move || {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| token.wait());
            source.cancel();
            waiting.join().expect("no panic")
        })
    });
    assert_eq!(waiting.reason(), CancelReason::Cancelled);
    assert_eq!(CancellationToken::new_cancelled().wait().reason(), CancelReason::Cancelled);
}

/// A reset drops the callbacks of the past. A thread that waits is none of them.
#[test]
fn s67_a_thread_that_waits_is_woken_by_a_cancel_after_a_reset() {
    within(PATIENCE, "waits that outlast a reset", || {
        let source = CancellationTokenSource::new();
        let token = source.token();
        thread::scope(|scope| {
            scope.spawn(|| token.wait());
            scope.spawn(|| token.wait_timeout(NEVER).expect_err("cancelled"));
            thread::sleep(ms(20)); // both wait by now, as a rule
            assert!(source.try_reset());
            source.cancel();
        });
    });
}
