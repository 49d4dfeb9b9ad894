//! Timeouts: S38, the part of S50 for timeouts, and the end of the runtime (S33).
//!
//! Ground rules. The tests poll on virtual time. The inner futures are delays, gates and journals,
//! so a test can assert which future was polled, woken and dropped, and when.

use std::error::Error as _;
use std::future::{Future, pending, poll_fn, ready};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use crate::support::poll::{CountingWaker, panics, poll, poll_pinned, poll_with};
use crate::support::{
    Canary, Count, Gate, Journal, NEVER, PATIENCE, block_on, manual, ms, native, ns, secs, us, within,
};
use timerqueue::{
    CancelReason, CancellationToken, CancellationTokenSource, Delay, Runtime, Timeout, TimerFutureExt,
    error::{Elapsed, TimeoutError},
    futures::CancellableTimeout,
    timeout, timeout_at,
};

/// A future that is ready with a value from a given instant on, without waking its task: like a
/// socket that turns out to be readable.
fn ready_from(runtime: &Runtime, after: Duration, value: u32) -> impl Future<Output = u32> + Unpin + use<> {
    let (runtime, at) = (runtime.clone(), runtime.now() + after);
    poll_fn(move |_| if runtime.now() >= at { Poll::Ready(value) } else { Poll::Pending })
}

fn is_elapsed<T>(outcome: &Poll<Result<T, Elapsed>>) -> bool {
    matches!(outcome, Poll::Ready(Err(_)))
}

// --------------------------------------------------------------------------------------------------- S38: a limit in time

#[test]
fn s38_the_future_is_polled_first() {
    let (clock, runtime) = manual();
    let polls = Count::new();
    let counter = CountingWaker::new();
    let mut limited = Timeout::on(
        &runtime,
        Duration::ZERO,
        poll_fn(|_| if polls.bump() == 1 { Poll::Ready("polled") } else { Poll::Pending }),
    );
    clock.advance(secs(1));
    assert_eq!(poll(&mut limited, &counter), Poll::Ready(Ok("polled")), "though the limit has long passed");
}

#[test]
fn s38_a_future_that_is_ready_at_the_first_poll_touches_no_queue() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut limited = Timeout::on(&runtime, secs(1), ready(7));
    assert_eq!(poll(&mut limited, &counter), Poll::Ready(Ok(7)));
    assert_eq!((runtime.metrics().active, counter.kept(), clock.advance(secs(10))), (0, 0, 0));
}

#[test]
fn s38_on_expiry_it_gives_elapsed() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut limited = Timeout::on(&runtime, secs(5), pending::<()>());
    clock.advance(secs(2));
    assert!(poll(&mut limited, &counter).is_pending());
    assert_eq!(runtime.next_due(), Some(clock.now() + secs(3)), "counted from the making");
    clock.advance(secs(3) - ns(1));
    assert!(poll(&mut limited, &counter).is_pending());
    assert_eq!(counter.wakes(), 0);
    clock.advance(ns(1));
    assert_eq!(counter.wakes(), 1);
    assert!(is_elapsed(&poll(&mut limited, &counter)));
    assert_eq!((runtime.metrics().active, counter.kept()), (0, 0));
}

#[test]
fn s38_elapsed_is_an_io_error_of_kind_timed_out() {
    let (_clock, runtime) = manual();
    let elapsed = block_on(Timeout::on(&runtime, Duration::ZERO, pending::<()>())).expect_err("no time at all");
    assert_eq!(elapsed.to_string(), "the time limit has passed");
    assert!(elapsed.source().is_none());
    let error = io::Error::from(elapsed);
    assert_eq!((error.kind(), error.to_string()), (io::ErrorKind::TimedOut, elapsed.to_string()));
    assert_eq!(error.get_ref().and_then(|inner| inner.downcast_ref()), Some(&elapsed));

    fn with_a_question_mark(runtime: &Runtime) -> io::Result<u8> {
        Ok(block_on(Timeout::on(runtime, Duration::ZERO, pending::<u8>()))?)
    }
    assert_eq!(with_a_question_mark(&runtime).map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
}

#[test]
fn s38_a_result_that_is_ready_together_with_the_deadline_is_not_lost() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    // In either order of the two timers.
    let mut inner_first = Delay::on(&runtime, secs(1));
    assert!(poll(&mut inner_first, &counter).is_pending());
    let mut limited = Timeout::on(&runtime, secs(1), inner_first);
    assert!(poll(&mut limited, &counter).is_pending());
    let mut limit_first = Timeout::on(&runtime, secs(1), ready_from(&runtime, secs(1), 3));
    assert!(poll(&mut limit_first, &counter).is_pending());
    clock.advance(secs(1));
    assert_eq!(poll(&mut limited, &counter), Poll::Ready(Ok(())));
    assert_eq!(poll(&mut limit_first, &counter), Poll::Ready(Ok(3)));
    // However late the task is polled.
    let mut late = Timeout::on(&runtime, secs(1), ready_from(&runtime, secs(50), 4));
    assert!(poll(&mut late, &counter).is_pending());
    clock.advance(secs(100));
    assert_eq!(poll(&mut late, &counter), Poll::Ready(Ok(4)));
}

#[test]
fn s38_dropping_drops_the_future_and_unlinks() {
    let (_clock, runtime) = manual();
    let counter = CountingWaker::new();
    let (canary, fate) = Canary::new();
    let mut limited = Timeout::on(
        &runtime,
        secs(1),
        poll_fn(move |_| -> Poll<()> {
            canary.sing();
            Poll::Pending
        }),
    );
    assert!(poll(&mut limited, &counter).is_pending());
    assert_eq!((runtime.metrics().active, fate.is_dropped()), (1, false));
    drop(limited);
    assert_eq!((runtime.metrics().active, counter.kept(), fate.is_dropped()), (0, 0, true));
}

#[test]
fn s38_the_limit_can_be_moved_and_taken_off() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut limited = Timeout::on(&runtime, secs(30), pending::<u8>());
    for _ in 0..10 {
        assert!(poll(&mut limited, &counter).is_pending());
        clock.advance(secs(20));
        limited.delay_mut().reset(secs(30));
    }
    assert_eq!(counter.wakes(), 0, "an idle limit that is moved by each activity");
    clock.advance(secs(30));
    assert!(is_elapsed(&poll(&mut limited, &counter)));
    let mut endless = limited.into_inner();
    assert!(poll(&mut endless, &counter).is_pending());
    assert_eq!((runtime.metrics().active, counter.kept()), (0, 0));
}

#[test]
fn s38_limits_nest() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut inner_shorter = pin!(Timeout::on(&runtime, secs(2), Timeout::on(&runtime, secs(1), pending::<()>())));
    let mut outer_shorter = pin!(Timeout::on(&runtime, secs(1), Timeout::on(&runtime, secs(2), pending::<()>())));
    assert!(poll_pinned(inner_shorter.as_mut(), &counter).is_pending());
    assert!(poll_pinned(outer_shorter.as_mut(), &counter).is_pending());
    clock.advance(secs(1));
    assert!(matches!(poll_pinned(inner_shorter.as_mut(), &counter), Poll::Ready(Ok(Err(_)))), "the inner one");
    assert!(matches!(poll_pinned(outer_shorter.as_mut(), &counter), Poll::Ready(Err(_))), "the outer one");
}

#[test]
fn s38_any_future_will_do() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    // Neither `Send` nor `Unpin`, and borrowing.
    let local = Rc::new(5);
    let mut limited = pin!(Timeout::on(&runtime, secs(1), async {
        Delay::on(&runtime, ms(10)).await;
        *local
    }));
    assert!(poll_pinned(limited.as_mut(), &counter).is_pending());
    clock.advance(ms(10));
    assert_eq!(poll_pinned(limited.as_mut(), &counter), Poll::Ready(Ok(5)));
    // A future that is kept: the limit ends, the future goes on.
    let mut kept = Delay::on(&runtime, secs(2));
    let mut limited = Timeout::on(&runtime, secs(1), &mut kept);
    assert!(poll(&mut limited, &counter).is_pending());
    clock.advance(secs(1));
    assert!(is_elapsed(&poll(&mut limited, &counter)));
    clock.advance(secs(1));
    assert_eq!(poll(&mut kept, &counter), Poll::Ready(()));
    // A value that can be turned into a future.
    struct Request;
    impl IntoFuture for Request {
        type Output = &'static str;
        type IntoFuture = std::future::Ready<&'static str>;
        fn into_future(self) -> Self::IntoFuture {
            ready("response")
        }
    }
    assert_eq!(block_on(Timeout::on(&runtime, secs(1), Request)), Ok("response"));
    // And a task can be sent if the future can.
    fn send_and_sync<T: Send + Sync>(_: &T) {}
    send_and_sync(&Timeout::on(&runtime, secs(1), ready(1)));
    send_and_sync(&Timeout::on(&runtime, secs(1), ready(1)).with_token(&CancellationToken::none()));
}

#[test]
fn s38_a_future_that_panics_leaves_nothing_behind() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let polls = Count::new();
    let mut limited = Timeout::on(
        &runtime,
        secs(1),
        poll_fn({
            let polls = polls.clone();
            move |_| -> Poll<()> {
                assert!(polls.bump() < 2, "a future that panics at its second poll");
                Poll::Pending
            }
        }),
    );
    assert!(poll(&mut limited, &counter).is_pending());
    assert!(panics(|| poll(&mut limited, &counter)));
    assert_eq!(runtime.metrics().active, 1);
    drop(limited);
    assert_eq!((runtime.metrics().active, counter.kept(), clock.advance(secs(5))), (0, 0, 0));
}

#[test]
fn s38_the_inner_future_is_polled_with_the_waker_of_the_task() {
    let (_clock, runtime) = manual();
    let seen = Journal::new();
    let mut limited = Timeout::on(
        &runtime,
        secs(1),
        poll_fn(|context: &mut Context<'_>| -> Poll<()> {
            seen.push(context.waker().clone());
            Poll::Pending
        }),
    );
    let counter = CountingWaker::new();
    let waker = counter.waker();
    assert!(poll_with(&mut limited, &waker).is_pending());
    assert!(seen.take().iter().all(|used| used.will_wake(&waker)));
}

#[test]
fn s38_on_the_default_runtime_by_function_and_by_method() {
    let before = Runtime::global().now();
    let deadline = before + ms(2);
    assert_eq!(block_on(timeout(secs(60), ready(1))), Ok(1));
    assert_eq!(block_on(timeout_at(before, ready(2))), Ok(2));
    assert_eq!(block_on(ready(3).timeout(secs(60))), Ok(3));
    assert_eq!(block_on(ready(4).timeout_at(before)), Ok(4));
    assert!(block_on(timeout(ms(1), pending::<()>())).is_err());
    assert!(block_on(pending::<()>().timeout(ms(1))).is_err());
    assert!(block_on(timeout_at(deadline, pending::<()>())).is_err());
    assert!(Runtime::global().now() >= deadline, "never early");
    assert!(block_on(pending::<()>().timeout_at(deadline)).is_err());
    assert_eq!(block_on(timeout(NEVER, Delay::new(ms(1)))), Ok(()));
}

#[test]
fn s38_a_value_against_the_limit_on_real_time() {
    within(PATIENCE, "values that come at about the deadline", || {
        let runtime = native();
        let (mut values, mut limits) = (0, 0);
        for round in 0..1_000_u64 {
            let source = CancellationTokenSource::new();
            let token = source.token();
            let (gate, begun) = (Gate::new(), runtime.now());
            thread::scope(|scope| {
                scope.spawn(|| {
                    gate.wait();
                    while runtime.now() < begun + us(round % 90) {
                        std::hint::spin_loop();
                    }
                    source.cancel();
                });
                gate.open();
                match block_on(Timeout::on(&runtime, us(50), token.cancelled())) {
                    Ok(cancelled) => {
                        assert_eq!(cancelled.reason(), CancelReason::Cancelled);
                        values += 1;
                    }
                    Err(_) => {
                        assert!(runtime.now() >= begun + us(50));
                        limits += 1;
                    }
                }
            });
        }
        assert_eq!((values + limits, runtime.metrics().active), (1_000, 0));
    });
}

// --------------------------------------------------------------------------------------- S33: the end of the runtime

#[test]
fn s33_when_the_runtime_has_ended_the_future_goes_on_without_a_limit() {
    for mut runtime in [Some(manual().1), Some(native())] {
        let owner = runtime.take().expect("just made");
        let (counter, polls) = (CountingWaker::new(), Count::new());
        let answers_at_last = || {
            let polls = polls.clone();
            poll_fn(move |_| if polls.bump() > 8 { Poll::Ready(9) } else { Poll::Pending })
        };
        let mut polled = Timeout::on(&owner, ms(1), answers_at_last());
        let mut unpolled = Timeout::on(&owner, Duration::ZERO, pending::<u8>());
        let mut has_a_value = Timeout::on(&owner, secs(1), ready(9));
        let far = Duration::from_secs(60);
        polled.delay_mut().reset(far);
        assert!(poll(&mut polled, &counter).is_pending());
        owner.shutdown(PATIENCE).expect("no callback runs");
        polled.delay_mut().reset(us(1));
        std::thread::sleep(ms(2));
        let mut later = Timeout::on(&owner, us(1), pending::<u8>());
        drop(owner);
        assert_eq!(counter.kept(), 0);
        std::thread::sleep(ms(2));
        while poll(&mut polled, &counter).is_pending() {
            assert!(poll(&mut later, &counter).is_pending());
        }
        assert!(polls.get() > 8, "the future gives the result");
        assert!(is_elapsed(&poll(&mut unpolled, &counter)), "a limit that had passed by then has passed");
        assert_eq!(poll(&mut has_a_value, &counter), Poll::Ready(Ok(9)), "which needs no runtime");
    }
}

// -------------------------------------------------------------------------------------- S50: a limit in time and a token

/// A timeout of a second around a future without end, with a token; polled once with the counting
/// waker.
fn guarded(
    runtime: &Runtime,
    source: &CancellationTokenSource,
    counter: &CountingWaker,
) -> CancellableTimeout<std::future::Pending<u8>> {
    let mut limited = Timeout::on(runtime, secs(1), pending()).with_token(&source.token());
    assert!(poll(&mut limited, counter).is_pending());
    assert_eq!((runtime.metrics().active, counter.kept()), (1, 2), "it waits for both");
    limited
}

#[test]
fn s50_the_token_comes_first() {
    let (_clock, runtime) = manual();
    let (source, counter) = (CancellationTokenSource::new(), CountingWaker::new());
    let mut limited = guarded(&runtime, &source, &counter);
    source.cancel();
    assert_eq!(counter.wakes(), 1);
    let Poll::Ready(Err(error)) = poll(&mut limited, &counter) else { panic!("the token was cancelled") };
    assert_eq!(error, TimeoutError::Cancelled(source.token().check().expect_err("cancelled")));
    assert_eq!(error.to_string(), "cancelled");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::Other);
    assert_eq!((runtime.metrics().active, counter.kept()), (0, 0), "the limit is taken out at once");
    assert_eq!(poll(&mut limited, &counter), Poll::Ready(Err(error)), "once ready, it stays ready");
    assert_eq!(runtime.metrics().active, 0);
}

#[test]
fn s50_the_limit_comes_first() {
    let (clock, runtime) = manual();
    let (source, counter) = (CancellationTokenSource::new(), CountingWaker::new());
    let mut limited = guarded(&runtime, &source, &counter);
    clock.advance(secs(1));
    assert_eq!(counter.wakes(), 1);
    let Poll::Ready(Err(error @ TimeoutError::Elapsed(elapsed))) = poll(&mut limited, &counter) else {
        panic!("the limit has passed")
    };
    assert_eq!(error.to_string(), elapsed.to_string());
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::TimedOut);
    assert_eq!(counter.kept(), 0, "the token knows of it no more, at once");
    source.cancel();
    assert_eq!((runtime.metrics().active, counter.kept(), counter.wakes()), (0, 0, 1));
    assert_eq!(poll(&mut limited, &counter), Poll::Ready(Err(error)), "once ready, it stays ready");
}

#[test]
fn s50_the_value_comes_first_also_together_with_both() {
    let (clock, runtime) = manual();
    let (source, counter) = (CancellationTokenSource::new(), CountingWaker::new());
    let value = ready_from(&runtime, secs(1), 8);
    let mut limited = Timeout::on(&runtime, secs(1), value).with_token(&source.token());
    assert!(poll(&mut limited, &counter).is_pending());
    source.cancel();
    clock.advance(secs(1));
    assert_eq!(poll(&mut limited, &counter), Poll::Ready(Ok(8)));
}

#[test]
fn s50_a_cancelled_token_and_a_token_that_is_never_cancelled() {
    let (clock, runtime) = manual();
    let (source, counter) = (CancellationTokenSource::on(&runtime), CountingWaker::new());
    source.try_cancel_after(ms(1)).expect("a runtime of its own");
    clock.advance(ms(1));
    let token = source.token();
    let mut limited = Timeout::on(&runtime, secs(1), pending::<u8>()).with_token(&token);
    let Poll::Ready(Err(TimeoutError::Cancelled(cancelled))) = poll(&mut limited, &counter) else {
        panic!("the token was cancelled before")
    };
    assert_eq!(cancelled.reason(), CancelReason::Timeout);
    assert_eq!(io::Error::from(TimeoutError::Cancelled(cancelled)).kind(), io::ErrorKind::TimedOut);
    let mut with_a_value = Timeout::on(&runtime, secs(1), ready(1)).with_token(&token);
    assert!(matches!(poll(&mut with_a_value, &counter), Poll::Ready(Err(_))), "not begun (S86)");
    let mut never = Timeout::on(&runtime, secs(1), pending::<u8>()).with_token(&CancellationToken::none());
    assert!(poll(&mut never, &counter).is_pending());
    clock.advance(secs(1));
    assert!(matches!(poll(&mut never, &counter), Poll::Ready(Err(TimeoutError::Elapsed(_)))));
}

#[test]
fn s50_the_token_comes_before_the_limit() {
    let (clock, runtime) = manual();
    let (source, counter) = (CancellationTokenSource::new(), CountingWaker::new());
    let mut limited = guarded(&runtime, &source, &counter);
    let mut delay = Delay::on(&runtime, secs(1)).with_token(&source.token());
    assert!(poll(&mut delay, &counter).is_pending());
    clock.advance(secs(1));
    source.cancel();
    assert!(matches!(poll(&mut limited, &counter), Poll::Ready(Err(TimeoutError::Cancelled(_)))), "both have come");
    assert!(matches!(poll(&mut delay, &counter), Poll::Ready(Err(_))), "one rule for both");
    assert_eq!((runtime.metrics().active, counter.kept()), (0, 0));
}

#[test]
fn s38_s50_a_value_takes_limit_and_token_out_at_once() {
    let (clock, runtime) = manual();
    let (source, counter) = (CancellationTokenSource::new(), CountingWaker::new());
    let value = || ready_from(&runtime, secs(1), 8);
    let mut limited = Timeout::on(&runtime, secs(5), value());
    let mut both = Timeout::on(&runtime, secs(5), value()).with_token(&source.token());
    let token = source.token();
    let mut until = token.run_until_cancelled(value());
    assert!(poll(&mut limited, &counter).is_pending());
    assert!(poll(&mut both, &counter).is_pending() && poll(&mut until, &counter).is_pending());
    assert_eq!((runtime.metrics().active, counter.kept()), (2, 4));
    clock.advance(secs(1));
    assert_eq!(poll(&mut limited, &counter), Poll::Ready(Ok(8)));
    assert_eq!((runtime.metrics().active, counter.kept()), (1, 3), "the limit");
    assert_eq!(poll(&mut both, &counter), Poll::Ready(Ok(8)));
    assert_eq!((runtime.metrics().active, counter.kept()), (0, 1), "limit and token");
    assert_eq!(poll(&mut until, &counter), Poll::Ready(Some(8)));
    assert_eq!(counter.kept(), 0, "the token");
    source.cancel();
    clock.advance(secs(10));
    assert_eq!((counter.wakes(), runtime.metrics().fired()), (0, 0), "no task is woken for nothing");
}

#[test]
fn s38_the_limit_of_a_pinned_timeout_can_be_reset() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut limited = pin!(Timeout::on(&runtime, secs(1), async { pending::<u8>().await }));
    let token = CancellationToken::none();
    let mut guarded = pin!(Timeout::on(&runtime, secs(1), async { pending::<u8>().await }).with_token(&token));
    assert!(
        poll_pinned(limited.as_mut(), &counter).is_pending() && poll_pinned(guarded.as_mut(), &counter).is_pending()
    );
    limited.as_mut().delay_pin_mut().reset(secs(3));
    guarded.as_mut().delay_pin_mut().reset(secs(3));
    clock.advance(secs(3) - ns(1));
    assert_eq!(counter.wakes(), 0);
    clock.advance(ns(1));
    assert_eq!(counter.wakes(), 2);
    assert!(is_elapsed(&poll_pinned(limited.as_mut(), &counter)) && poll_pinned(guarded.as_mut(), &counter).is_ready());
    let mut owned = Timeout::on(&runtime, secs(1), pending::<u8>()).with_token(&token);
    owned.delay_mut().reset(Duration::ZERO);
    assert!(poll(&mut owned, &counter).is_ready());
}

#[test]
fn s50_dropped_it_leaves_both() {
    let (_clock, runtime) = manual();
    let (source, counter) = (CancellationTokenSource::new(), CountingWaker::new());
    drop(guarded(&runtime, &source, &counter));
    source.cancel();
    assert_eq!((runtime.metrics().active, counter.kept(), counter.wakes()), (0, 0, 0));
}

#[test]
fn s38_a_timeout_implements_debug() {
    let (_clock, runtime) = manual();
    let limited: Timeout<_> = Timeout::on(&runtime, secs(1), ready(1));
    let shown =
        format!("{limited:?} {:?}", Timeout::on(&runtime, secs(1), ready(1)).with_token(&CancellationToken::none()));
    assert!(shown.contains("Timeout") && shown.contains("CancellableTimeout"), "{shown}");
}
