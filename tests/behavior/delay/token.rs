//! A delay with a cancellation token (S50).

use super::*;

/// The reason of the token, if the token ended the delay.
fn ended_by(outcome: Poll<Result<(), Cancelled>>) -> Option<CancelReason> {
    match outcome {
        Poll::Ready(Err(cancelled)) => Some(cancelled.reason()),
        _ => None,
    }
}

/// A delay of a second with a token, polled once with the counting waker.
fn guarded(runtime: &Runtime, source: &CancellationTokenSource, counter: &CountingWaker) -> CancellableDelay {
    let mut delay = Delay::on(runtime, secs(1)).with_token(&source.token());
    assert!(poll(&mut delay, counter).is_pending());
    assert_eq!((runtime.metrics().active, counter.kept()), (1, 2), "it waits for both");
    delay
}

#[test]
fn s50_the_token_comes_first() {
    let (clock, runtime) = manual();
    let (source, counter) = (CancellationTokenSource::new(), CountingWaker::new());
    let mut delay = guarded(&runtime, &source, &counter);
    assert!(source.cancel());
    assert_eq!(counter.wakes(), 1);
    assert_eq!(ended_by(poll(&mut delay, &counter)), Some(CancelReason::Cancelled));
    assert_eq!((runtime.metrics().active, counter.kept()), (0, 0), "the other is cleaned up at once");
    clock.advance(secs(2));
    assert_eq!(ended_by(poll(&mut delay, &counter)), Some(CancelReason::Cancelled), "fused, whatever happens later");
    assert_eq!(counter.wakes(), 1);
}

#[test]
fn s50_the_time_comes_first() {
    let (clock, runtime) = manual();
    let (source, counter) = (CancellationTokenSource::new(), CountingWaker::new());
    let mut delay = guarded(&runtime, &source, &counter);
    clock.advance(secs(1));
    assert_eq!((counter.wakes(), poll(&mut delay, &counter)), (1, Poll::Ready(Ok(()))));
    assert_eq!((runtime.metrics().active, counter.kept()), (0, 0), "the other is cleaned up at once");
    assert!(source.cancel());
    assert_eq!(
        (counter.wakes(), poll(&mut delay, &counter)),
        (1, Poll::Ready(Ok(()))),
        "fused, whatever happens later"
    );
}

#[test]
fn s50_a_cancelled_token_and_a_token_that_is_never_cancelled() {
    let (clock, runtime) = manual();
    let (source, counter) = (CancellationTokenSource::new(), CountingWaker::new());
    source.cancel();
    let mut delay = Delay::on(&runtime, secs(1)).with_token(&source.token());
    assert_eq!(ended_by(poll(&mut delay, &counter)), Some(CancelReason::Cancelled));
    assert_eq!((runtime.metrics().active, counter.kept()), (0, 0), "no queue was touched");
    let mut delay = Delay::on(&runtime, secs(1)).with_token(&CancellationToken::none());
    assert!(poll(&mut delay, &counter).is_pending());
    clock.advance(secs(1));
    assert_eq!((counter.wakes(), poll(&mut delay, &counter)), (1, Poll::Ready(Ok(()))));
}

#[test]
fn s50_a_timed_cancel_or_a_parent_gives_its_reason() {
    let (clock, runtime) = manual();
    let (source, counter) = (CancellationTokenSource::on(&runtime), CountingWaker::new());
    source.try_cancel_after(ms(500)).expect("a runtime of its own");
    let child = source.token().child_source();
    let mut timed = Delay::on(&runtime, secs(1)).with_token(&source.token());
    let mut linked = Delay::on(&runtime, secs(1)).with_token(&child.token());
    assert!(poll(&mut timed, &counter).is_pending() && poll(&mut linked, &counter).is_pending());
    clock.advance(ms(500));
    assert_eq!(ended_by(poll(&mut timed, &counter)), Some(CancelReason::Timeout));
    assert_eq!(ended_by(poll(&mut linked, &counter)), Some(CancelReason::Parent));
    assert_eq!((counter.wakes(), counter.kept(), runtime.metrics().active), (2, 0, 0));
}

#[test]
fn s50_dropped_it_leaves_both() {
    let (_clock, runtime) = manual();
    let (source, counter) = (CancellationTokenSource::new(), CountingWaker::new());
    drop(guarded(&runtime, &source, &counter));
    assert_eq!((runtime.metrics().active, counter.kept()), (0, 0));
    source.cancel();
    assert_eq!(counter.wakes(), 0);
}

#[test]
fn s33_s50_after_the_end_of_the_runtime_only_the_token_is_waited_for() {
    let (clock, runtime) = manual();
    let (source, counter) = (CancellationTokenSource::new(), CountingWaker::new());
    let mut delay = guarded(&runtime, &source, &counter);
    runtime.shutdown(PATIENCE).expect("no callback runs");
    clock.advance(secs(10));
    let rings = counter.wakes();
    assert!(poll(&mut delay, &counter).is_pending());
    assert_eq!(counter.kept(), 1, "with the token alone");
    assert!(source.cancel());
    assert_eq!((counter.wakes(), counter.kept()), (rings + 1, 0));
    assert_eq!(ended_by(poll(&mut delay, &counter)), Some(CancelReason::Cancelled));
}

#[test]
fn s50_token_against_time_on_real_time_exactly_one_wins() {
    within(PATIENCE, "cancelling delays that are about to fire", || {
        let runtime = native();
        let (mut by_token, mut by_time) = (0, 0);
        for round in 0..1_500_u64 {
            let source = CancellationTokenSource::new();
            let delay = Delay::on(&runtime, us(40)).with_token(&source.token());
            let gate = Gate::new();
            thread::scope(|scope| {
                scope.spawn(|| {
                    gate.wait();
                    let until = runtime.now() + us(round % 80);
                    while runtime.now() < until {
                        std::hint::spin_loop();
                    }
                    source.cancel();
                });
                gate.open();
                match block_on(delay) {
                    Ok(()) => by_time += 1,
                    Err(_) => by_token += 1,
                }
            });
        }
        assert_eq!((by_token + by_time, runtime.metrics().active), (1_500, 0));
    });
}
