//! Fused futures and streams (feature `stream`): terminated once a poll has been ready, and not
//! before.

use std::future::{pending, ready};
use std::pin::pin;

use futures_util::future::FutureExt;
use futures_util::stream::{FusedStream, StreamExt};
use futures_util::{future::FusedFuture, select};
use timerqueue::{
    CancellationToken, CancellationTokenSource, Delay, DelayQueue, DelayQueueBuilder, Interval, OnceTimer, Timeout,
    TimerFutureExt, Waited,
};

use super::support::poll::{CountingWaker, poll_pinned};
use super::support::*;

/// Polls until ready. The future is terminated then, and was not before.
fn ends<F: FusedFuture>(what: &str, clock: &timerqueue::ManualClock, future: F) -> F::Output {
    let mut future = pin!(future);
    assert!(!future.is_terminated(), "{what}: terminated before the first poll");
    let output = clock.block_on(future.as_mut());
    assert!(future.is_terminated(), "{what}: not terminated");
    output
}

#[test]
fn s78_a_delay_is_terminated_until_its_reset() {
    let (clock, runtime) = manual();
    let mut delay = Delay::on(&runtime, secs(1));
    clock.advance(secs(2));
    assert!(delay.is_elapsed() && !delay.is_terminated(), "elapsed, but no poll was ready");
    block_on(&mut delay);
    assert!(delay.is_terminated());
    delay.reset(secs(1));
    assert!(!delay.is_terminated());
}

#[test]
fn s78_timeouts_and_waits_for_tokens_are_terminated_when_ready() {
    let (clock, runtime) = manual();
    let token = || CancellationToken::new_cancelled();
    let timed = || runtime.enter(|| CancellationTokenSource::after(secs(1)));
    let none = CancellationToken::none();
    ends("timeout, elapsed", &clock, Timeout::on(&runtime, secs(1), pending::<()>().fuse())).unwrap_err();
    ends("timeout, in time", &clock, Timeout::on(&runtime, secs(1), ready(()).fuse())).unwrap();
    ends("delay, cancelled", &clock, Delay::on(&runtime, secs(1)).with_token(&token())).unwrap_err();
    ends("delay, elapsed", &clock, Delay::on(&runtime, secs(1)).with_token(&none)).unwrap();
    let limited = || Timeout::on(&runtime, secs(2), pending::<()>().fuse());
    ends("timeout, cancelled", &clock, limited().with_token(&token())).unwrap_err();
    let source = timed();
    ends("timeout, cancelled later", &clock, limited().with_token(&source.token())).unwrap_err();
    ends("timeout with token, elapsed", &clock, limited().with_token(&none)).unwrap_err();
    ends("future with token", &clock, pending::<()>().fuse().with_token(&token())).unwrap_err();
    ends("future with token, ready", &clock, ready(()).fuse().with_token(&none)).unwrap();
    ends("cancelled, owned", &clock, token().cancelled_owned());
    let (token, source) = (token(), timed());
    ends("cancelled", &clock, token.cancelled());
    let later = source.token();
    ends("cancelled later", &clock, later.cancelled());
    ends("run until cancelled", &clock, token.run_until_cancelled(pending::<()>().fuse()));
}

#[test]
fn s78_waits_at_delay_queues_for_timers_and_in_scopes_are_terminated_when_ready() {
    let (clock, runtime) = manual();
    let queue = DelayQueueBuilder::on(&runtime).capacity(1).build();
    ends("insert, in time", &clock, queue.insert_wait(1, "first", secs(1))).unwrap();
    let mut full = pin!(queue.insert_wait(2, "second", secs(1)));
    let pending = poll_pinned(full.as_mut(), &CountingWaker::new()).is_pending();
    assert!(pending && !full.is_terminated(), "no room yet");
    assert_eq!(ends("receive", &clock, queue.recv()).expect("an entry").value, "first");
    clock.block_on(full.as_mut()).unwrap();
    assert!(full.is_terminated());
    queue.close();
    ends("insert, closed", &clock, queue.insert_wait(3, "third", secs(1))).unwrap_err();
    ends("receive the last", &clock, queue.recv()).expect("an entry");
    assert!(ends("receive, closed", &clock, queue.recv()).is_none());
    let timer = OnceTimer::on(&runtime, secs(1), |_| {});
    assert_eq!(ends("disposal", &clock, timer.dispose_async()), Waited::Ended);
    assert_eq!(ends("disposal, again", &clock, timer.dispose_async()), Waited::Ended);
    ends("scope", &clock, runtime.scope(Delay::on(&runtime, secs(1))));
    let mut run = pin!(clock.run(Delay::on(&runtime, secs(1))));
    assert!(!run.is_terminated());
    block_on(run.as_mut());
    assert!(run.is_terminated());
}

#[test]
fn s78_streams_are_terminated_when_they_have_ended() {
    let (clock, runtime) = manual();
    let mut interval = Interval::on(&runtime, secs(1));
    let handle = interval.stop_handle();
    clock.block_on(interval.next()).expect("a tick");
    handle.stop();
    assert!(!interval.is_terminated(), "the end was not yet returned");
    assert_eq!(block_on(interval.next()), None);
    assert!(interval.is_terminated());

    let source = CancellationTokenSource::new();
    let mut interval = Interval::on(&runtime, secs(1)).with_token(&source.token());
    clock.block_on(interval.next()).expect("a tick");
    source.cancel();
    assert!(!interval.is_terminated());
    assert!(block_on(interval.next()).is_none());
    assert!(interval.is_terminated());

    let queue = DelayQueue::on(&runtime);
    queue.insert(1, "first", secs(1)).unwrap();
    let mut stream = queue.receiver();
    assert_eq!(clock.block_on(stream.next()).expect("an entry").value, "first");
    assert!(!stream.is_terminated());
    queue.close();
    assert!(block_on(stream.next()).is_none());
    assert!(stream.is_terminated());
}

/// `select!` in a loop asks for fused futures, and skips those that are terminated.
#[test]
fn s78_a_loop_of_select_takes_delays_intervals_and_tokens() {
    let (clock, runtime) = manual();
    let source = runtime.enter(|| CancellationTokenSource::after(ms(3_500)));
    let token = source.token();
    let (mut ticks, mut cancelled) = (Interval::on(&runtime, secs(1)), token.cancelled());
    let mut delay = Delay::on(&runtime, ms(1_500));
    let mut seen = Vec::new();
    clock.block_on(async {
        loop {
            select! {
                tick = ticks.select_next_some() => seen.push(tick.scheduled().as_duration().as_millis()),
                () = delay => seen.push(1_500),
                _ = cancelled => break,
            }
        }
    });
    assert_eq!(seen, [1_000, 1_500, 2_000, 3_000], "the delay is taken once");
}
