//! A delay with a cancellation token (S50).

use super::*;

/// By what the token ended it, if the token did.
fn ended_by(outcome: Poll<Result<(), Cancelled>>) -> Option<CancelReason> {
    match outcome {
        Poll::Ready(Err(cancelled)) => Some(cancelled.reason()),
        _ => None,
    }
}

/// A delay of a second with a token, polled once on behalf of the bell.
fn guarded(runtime: &Runtime, source: &CancellationTokenSource, bell: &Bell) -> CancellableDelay {
    let mut delay = runtime.delay(secs(1)).with_token(&source.token());
    assert!(poll(&mut delay, bell).is_pending());
    assert_eq!((runtime.active_timers(), bell.kept()), (1, 2), "it waits for both");
    delay
}

#[test]
fn s50_the_token_comes_first() {
    let (clock, runtime) = manual();
    let (source, bell) = (CancellationTokenSource::new(), Bell::new());
    let mut delay = guarded(&runtime, &source, &bell);
    assert!(source.cancel());
    assert_eq!(bell.rings(), 1);
    assert_eq!(ended_by(poll(&mut delay, &bell)), Some(CancelReason::Cancelled));
    assert_eq!((runtime.active_timers(), bell.kept()), (0, 0), "the other is cleaned up at once");
    clock.advance(secs(2));
    assert_eq!(ended_by(poll(&mut delay, &bell)), Some(CancelReason::Cancelled), "fused, whatever happens later");
    assert_eq!(bell.rings(), 1);
}

#[test]
fn s50_the_time_comes_first() {
    let (clock, runtime) = manual();
    let (source, bell) = (CancellationTokenSource::new(), Bell::new());
    let mut delay = guarded(&runtime, &source, &bell);
    clock.advance(secs(1));
    assert_eq!((bell.rings(), poll(&mut delay, &bell)), (1, Poll::Ready(Ok(()))));
    assert_eq!((runtime.active_timers(), bell.kept()), (0, 0), "the other is cleaned up at once");
    assert!(source.cancel());
    assert_eq!((bell.rings(), poll(&mut delay, &bell)), (1, Poll::Ready(Ok(()))), "fused, whatever happens later");
}

#[test]
fn s50_a_cancelled_token_and_a_token_that_is_never_cancelled() {
    let (clock, runtime) = manual();
    let (source, bell) = (CancellationTokenSource::new(), Bell::new());
    source.cancel();
    let mut delay = runtime.delay(secs(1)).with_token(&source.token());
    assert_eq!(ended_by(poll(&mut delay, &bell)), Some(CancelReason::Cancelled));
    assert_eq!((runtime.active_timers(), bell.kept()), (0, 0), "no queue was touched");
    let mut delay = runtime.delay(secs(1)).with_token(&CancellationToken::none());
    assert!(poll(&mut delay, &bell).is_pending());
    clock.advance(secs(1));
    assert_eq!((bell.rings(), poll(&mut delay, &bell)), (1, Poll::Ready(Ok(()))));
}

#[test]
fn s50_a_timed_cancel_or_a_parent_gives_its_reason() {
    let (clock, runtime) = manual();
    let (source, bell) = (runtime.cancellation_source(), Bell::new());
    source.cancel_after(ms(500)).expect("a runtime of its own");
    let child = source.token().child_source();
    let mut timed = runtime.delay(secs(1)).with_token(&source.token());
    let mut linked = runtime.delay(secs(1)).with_token(&child.token());
    assert!(poll(&mut timed, &bell).is_pending() && poll(&mut linked, &bell).is_pending());
    clock.advance(ms(500));
    assert_eq!(ended_by(poll(&mut timed, &bell)), Some(CancelReason::Timeout));
    assert_eq!(ended_by(poll(&mut linked, &bell)), Some(CancelReason::Parent));
    assert_eq!((bell.rings(), bell.kept(), runtime.active_timers()), (2, 0, 0));
}

#[test]
fn s50_dropped_it_leaves_both() {
    let (_clock, runtime) = manual();
    let (source, bell) = (CancellationTokenSource::new(), Bell::new());
    drop(guarded(&runtime, &source, &bell));
    assert_eq!((runtime.active_timers(), bell.kept()), (0, 0));
    source.cancel();
    assert_eq!(bell.rings(), 0);
}

#[test]
fn s33_s50_after_the_end_of_the_runtime_only_the_token_is_waited_for() {
    let (clock, runtime) = manual();
    let (source, bell) = (CancellationTokenSource::new(), Bell::new());
    let mut delay = guarded(&runtime, &source, &bell);
    runtime.shutdown(PATIENCE).expect("no callback runs");
    clock.advance(secs(10));
    let rings = bell.rings();
    assert!(poll(&mut delay, &bell).is_pending());
    assert_eq!(bell.kept(), 1, "with the token alone");
    assert!(source.cancel());
    assert_eq!((bell.rings(), bell.kept()), (rings + 1, 0));
    assert_eq!(ended_by(poll(&mut delay, &bell)), Some(CancelReason::Cancelled));
}

#[test]
fn s50_token_against_time_on_real_time_exactly_one_wins() {
    within(PATIENCE, "cancelling delays that are about to fire", || {
        let runtime = native();
        let (mut by_token, mut by_time) = (0, 0);
        for round in 0..1_500_u64 {
            let source = CancellationTokenSource::new();
            let delay = runtime.delay(us(40)).with_token(&source.token());
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
        assert_eq!((by_token + by_time, runtime.active_timers()), (1_500, 0));
    });
}
