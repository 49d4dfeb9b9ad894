//! Streams with limits, throttled, and in chunks (feature `stream`, S92). The cases are those of
//! tokio-stream's own tests.

use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::{self, FusedStream, Stream};
use timerqueue::error::Elapsed;
use timerqueue::stream::TimerStreamExt;
use timerqueue::{Delay, Interval, ManualClock, Runtime};

use super::support::poll::{CountingWaker, poll_pinned};
use super::support::*;

/// The numbers from 1 on, each as long after the one before as `after` says, on the current
/// runtime.
fn numbers(after: impl IntoIterator<Item = Duration>) -> impl Stream<Item = usize> {
    stream::iter(after).enumerate().then(|(i, after)| async move {
        Delay::new(after).await;
        i + 1
    })
}

/// No item, and the end after a while.
fn end(after: Duration) -> impl Stream<Item = usize> {
    stream::once(Delay::new(after)).filter_map(async |()| None)
}

fn with<T>(body: impl FnOnce(&ManualClock, &Runtime) -> T) -> T {
    let (clock, runtime) = manual();
    runtime.enter(|| body(&clock, &runtime))
}

/// The items of a stream, each with the time of its delivery in milliseconds.
fn collect<T>(clock: &ManualClock, stream: impl Stream<Item = T>) -> Vec<(T, u128)> {
    clock.block_on(stream.map(|item| (item, clock.now().as_duration().as_millis())).collect())
}

fn ok<T>(item: T) -> Result<T, Elapsed> {
    Ok(item)
}

/// tokio-stream, `stream_timeout`: basic usage.
#[test]
fn s92_items_within_the_limit_pass_and_a_silence_is_an_error() {
    with(|clock, _| {
        // Items 1 to 4: two after 100 ms, the third after 300, the fourth after 100.
        let stream = numbers([ms(0), ms(100), ms(300), ms(100)]).timeout(ms(200));
        let items: Vec<_> = collect(clock, stream).into_iter().map(|(item, at)| (item.ok(), at)).collect();
        assert_eq!(items, [(Some(1), 0), (Some(2), 100), (None, 300), (Some(3), 400), (Some(4), 500)]);
    });
}

/// tokio-stream, `stream_timeout`: errors are returned once.
#[test]
fn s92_a_silence_is_told_once_and_leaves_no_timer() {
    with(|clock, runtime| {
        let mut stream = pin!(numbers([ms(0), ms(500), ms(500)]).chain(end(ms(1_020))).timeout(ms(50)));
        let mut next = || clock.block_on(stream.next()).map(|item| item.ok());
        assert_eq!(
            [next(), next(), next(), next(), next()],
            [Some(Some(1)), Some(None), Some(Some(2)), Some(None), Some(Some(3))]
        );
        assert_eq!(next(), None);
        assert_eq!((clock.now().as_duration(), runtime.metrics().active), (ms(1_020), 0));
    });
}

/// tokio-stream, `stream_timeout`: no timeouts.
#[test]
fn s92_a_stream_that_is_fast_enough_has_no_errors() {
    with(|clock, _| {
        let items = collect(clock, numbers([ms(1), ms(1), ms(1), ms(1)]).timeout(ms(20)));
        assert_eq!(items, [(ok(1), 1), (ok(2), 2), (ok(3), 3), (ok(4), 4)]);
    });
}

#[test]
fn s92_a_limit_may_repeat_and_an_item_starts_it_again() {
    with(|clock, runtime| {
        let ticks = Interval::on(runtime, ms(100));
        let mut stream = pin!(numbers([ms(0), ms(350), ms(80)]).timeout_repeating(ticks));
        let items: Vec<_> = collect(clock, stream.as_mut()).into_iter().map(|(item, at)| (item.ok(), at)).collect();
        assert_eq!(items, [(Some(1), 0), (None, 100), (None, 200), (None, 300), (Some(2), 350), (Some(3), 430)]);
        assert_eq!(runtime.metrics().active, 0);
        let mut ticks = Interval::on(runtime, ms(100));
        let stop = ticks.stop_handle();
        let mut stream = pin!(numbers([ms(0), ms(150)]).timeout_repeating(ticks));
        assert_eq!(clock.block_on(stream.next()), Some(ok(1)));
        stop.stop();
        assert_eq!(clock.block_on(stream.next()), Some(ok(2)), "without a limit");
    });
}

/// tokio-stream, `time_throttle`: usage.
#[test]
fn s92_throttled_items_are_a_period_apart_at_least() {
    with(|clock, _| {
        let stream = futures_util::stream::iter(1..=3).throttle(ms(100));
        assert_eq!(collect(clock, stream), [(1, 0), (2, 100), (3, 200)]);
        let begun = clock.now().as_duration().as_millis();
        let items = collect(clock, numbers([ms(10), ms(250), ms(20)]).throttle(ms(100)));
        // The inner stream is asked a period after the item before, and takes its own time then.
        assert_eq!(items, [(1, begun + 10), (2, begun + 360), (3, begun + 480)]);
        assert_eq!(collect(clock, stream::iter(1..=3).throttle(ms(0))).len(), 3);
    });
}

/// tokio-stream, `chunks_timeout`: usage.
#[test]
fn s92_chunks_come_when_full_or_at_their_limit_or_at_the_end() {
    with(|clock, _| {
        let stream = numbers([ms(0), ms(0), ms(0), ms(0), ms(2_000), ms(0), ms(4_000)]).chunks_timeout(4, secs(2));
        let expected = [(vec![1, 2, 3, 4], 0), (vec![5, 6], 4_000), (vec![7], 6_000)];
        assert_eq!(collect(clock, stream), expected);
    });
}

/// tokio-stream, `chunks_timeout`: a full chunk after an expired one.
#[test]
fn s92_the_limit_of_a_chunk_counts_from_its_first_item() {
    with(|clock, runtime| {
        let items = numbers([ms(1_000), ms(0), ms(0), ms(3_000), ms(1_500), ms(4_000)]);
        let mut stream = pin!(items.chain(end(ms(9_600))).chunks_timeout(3, secs(2)));
        let expected = [(vec![1, 2, 3], 1_000), (vec![4, 5], 6_000), (vec![6], 9_600)];
        assert_eq!((collect(clock, stream.as_mut()), runtime.metrics().active), (expected.into(), 0));
        let begun = clock.now();
        let stream = numbers([ms(900), ms(900), ms(900)]).chunks_timeout(0, secs(9));
        assert_eq!(collect(clock, stream).len(), 3, "chunks of one");
        assert_eq!(clock.now() - begun, ms(2_700));
    });
}

/// tokio-stream, `chunks_timeout`: real time.
#[test]
fn s92_chunks_on_real_time_lose_no_item() {
    within(PATIENCE, "an end", || {
        let runtime = native();
        let chunks: Vec<Vec<usize>> = runtime.enter(|| {
            block_on(
                numbers((0..200).map(|i| us(if i % 7 == 0 { 300 } else { 0 }))).chunks_timeout(10, us(200)).collect(),
            )
        });
        assert!(chunks.iter().all(|chunk| (1..=10).contains(&chunk.len())));
        assert!(chunks.into_iter().flatten().eq(1..=200));
    });
}

/// tokio-stream, `chunks_timeout`: the remainder.
#[test]
fn s92_what_was_collected_can_be_taken_back() {
    with(|_, _| {
        let mut chunks = Box::pin(numbers([ms(0), ms(0), secs(60)]).boxed().chunks_timeout(10, secs(5)));
        let counter = CountingWaker::new();
        assert!(poll_next(chunks.as_mut(), &counter).is_pending());
        let chunks = Pin::into_inner(chunks);
        assert_eq!(chunks.into_remainder(), [1, 2]);
    });
}

fn poll_next<S: Stream>(mut stream: Pin<&mut S>, counter: &CountingWaker) -> Poll<Option<S::Item>> {
    poll_pinned(pin!(stream.next()), counter)
}

/// An item that has come is not lost to a limit that has passed.
#[test]
fn s92_an_item_goes_before_a_limit_that_has_passed() {
    with(|clock, _| {
        let (mut limited, counter) = (pin!(numbers([secs(1), secs(1)]).timeout(secs(1))), CountingWaker::new());
        assert!(poll_next(limited.as_mut(), &counter).is_pending());
        clock.advance(secs(1));
        assert_eq!(poll_next(limited.as_mut(), &counter), Poll::Ready(Some(ok(1))));
    });
}

#[test]
fn s78_streams_with_limits_are_fused_as_their_inner_stream() {
    with(|clock, runtime| {
        let mut chunks = stream::iter(1..=3).chunks_timeout(2, secs(1));
        let mut limited = stream::iter(1..=1).fuse().timeout(secs(1));
        let mut repeating = stream::iter(1..=1).fuse().timeout_repeating(Interval::on(runtime, secs(1)));
        let mut throttled = stream::iter(1..=1).fuse().throttle(secs(1));
        assert_eq!(clock.block_on(chunks.next()), Some(vec![1, 2]));
        assert!(!chunks.is_terminated() && !limited.is_terminated());
        assert_eq!((clock.block_on(chunks.next()), clock.block_on(chunks.next())), (Some(vec![3]), None));
        clock.block_on(async {
            while limited.next().await.is_some() {}
            while repeating.next().await.is_some() {}
            while throttled.next().await.is_some() {}
        });
        assert!(chunks.is_terminated() && limited.is_terminated());
        assert!(repeating.is_terminated() && throttled.is_terminated());
    });
}
