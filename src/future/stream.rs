//! Limits for streams, throttled streams, and chunks within a time (feature `stream`).
//!
//! Ground rules. Each adapter is a stream and a delay, with no lock and no entry of its own. The
//! inner stream is polled first, as the future of a timeout is: an item is never lost to a limit
//! that has passed.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::{FusedStream, Stream};
use pin_project_lite::pin_project;

use super::delay::Delay;
use super::interval::Interval;
use super::timeout::Elapsed;

/// Limits, throttling, and chunks as methods of any stream; the time counts on the [current
/// runtime](crate::Runtime::current).
///
/// # Examples
///
/// Readings of a sensor, with an error when it is silent:
///
/// ```
/// use smol::stream::StreamExt;
/// use std::pin::pin;
/// use std::time::Duration;
/// use timerqueue::stream::TimerStreamExt;
/// use timerqueue::{Interval, ManualClock, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let readings = Interval::on(&runtime, Duration::from_secs(10));
/// runtime.enter(|| {
///     let mut readings = pin!(readings.timeout(Duration::from_secs(3)));
///     assert!(clock.block_on(readings.next()).unwrap().is_err()); // at 3 s
///     assert!(clock.block_on(readings.next()).unwrap().is_ok()); // at 10 s
/// });
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[doc(alias = "StreamExt")]
pub trait TimerStreamExt: Stream + Sized {
    /// Gives [`Elapsed`] when `limit` has passed since the last item, or, before the first, since
    /// this call; once, until a further item has come. The stream goes on.
    fn timeout(self, limit: Duration) -> StreamTimeout<Self> {
        StreamTimeout { stream: self, delay: Delay::new(limit), limit, counts: true }
    }

    /// Gives [`Elapsed`] with each tick of `ticks` for which no item has come; an item starts
    /// `ticks` again.
    ///
    /// # Examples
    ///
    /// ```
    /// use smol::stream::{self, StreamExt};
    /// use std::pin::pin;
    /// use std::time::Duration;
    /// use timerqueue::stream::TimerStreamExt;
    /// use timerqueue::{Interval, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let silence = Interval::on(&runtime, Duration::from_secs(1));
    /// let mut stream = pin!(stream::pending::<()>().timeout_repeating(silence));
    /// for second in 1..=3 {
    ///     assert!(clock.block_on(stream.next()).unwrap().is_err());
    ///     assert_eq!(clock.now().as_duration(), Duration::from_secs(second));
    /// }
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    fn timeout_repeating(self, ticks: Interval) -> StreamTimeoutRepeating<Self> {
        StreamTimeoutRepeating { stream: self, ticks }
    }

    /// Lets at least `period` pass between two items. The first passes at once. Meanwhile the inner
    /// stream is not polled.
    ///
    /// # Examples
    ///
    /// ```
    /// use smol::stream::{self, StreamExt};
    /// use std::time::Duration;
    /// use timerqueue::stream::TimerStreamExt;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let items = runtime.enter(|| stream::iter(1..=4).throttle(Duration::from_secs(1)));
    /// assert_eq!(clock.block_on(items.collect::<Vec<_>>()), [1, 2, 3, 4]);
    /// assert_eq!(clock.now().as_duration(), Duration::from_secs(4)); // the end comes later too
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    fn throttle(self, period: Duration) -> Throttled<Self> {
        Throttled { stream: self, delay: Delay::new(Duration::ZERO), period }
    }

    /// Collects items into chunks. A chunk is delivered when it has `most` items (zero counts as
    /// one), or `limit` after its first item, or at the end of the stream.
    ///
    /// # Examples
    ///
    /// ```
    /// use smol::stream::StreamExt;
    /// use std::time::Duration;
    /// use timerqueue::stream::TimerStreamExt;
    /// use timerqueue::{Interval, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let ticks = Interval::on(&runtime, Duration::from_secs(4)).take(5).map(|_| ());
    /// let chunks = runtime.enter(|| ticks.chunks_timeout(100, Duration::from_secs(10)));
    /// let sizes = clock.block_on(chunks.map(|chunk| chunk.len()).collect::<Vec<_>>());
    /// assert_eq!(sizes, [3, 2]); // at 4, 8, 12 s; at 16, 20 s
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    fn chunks_timeout(self, most: usize, limit: Duration) -> ChunksTimeout<Self> {
        ChunksTimeout { stream: self, delay: Delay::new(limit), limit, most, items: Vec::new(), ended: false }
    }
}

impl<S: Stream> TimerStreamExt for S {}

pin_project! {
    /// A stream with a limit between its items. Made by [`TimerStreamExt::timeout`].
    #[derive(Debug)]
    #[must_use = "streams do nothing unless polled"]
    pub struct StreamTimeout<S> {
        #[pin]
        stream: S,
        delay: Delay,
        limit: Duration,
        // The limit has not passed since the last item.
        counts: bool,
    }
}

impl<S: Stream> Stream for StreamTimeout<S> {
    type Item = Result<S::Item, Elapsed>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if let Poll::Ready(item) = this.stream.poll_next(context) {
            *this.counts = item.is_some();
            match &item {
                Some(_) => this.delay.reset(*this.limit),
                None => this.delay.withdraw(),
            }
            return Poll::Ready(item.map(Ok));
        }
        if !*this.counts {
            return Poll::Pending;
        }
        ready!(Pin::new(this.delay).poll(context));
        *this.counts = false;
        Poll::Ready(Some(Err(Elapsed(()))))
    }
}

pin_project! {
    /// A stream with a limit that repeats. Made by [`TimerStreamExt::timeout_repeating`].
    #[derive(Debug)]
    #[must_use = "streams do nothing unless polled"]
    pub struct StreamTimeoutRepeating<S> {
        #[pin]
        stream: S,
        ticks: Interval,
    }
}

impl<S: Stream> Stream for StreamTimeoutRepeating<S> {
    type Item = Result<S::Item, Elapsed>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        if let Poll::Ready(item) = this.stream.poll_next(context) {
            match &item {
                Some(_) => this.ticks.reset(),
                None => this.ticks.withdraw(),
            }
            return Poll::Ready(item.map(Ok));
        }
        match ready!(this.ticks.poll_tick(context)) {
            Some(_) => Poll::Ready(Some(Err(Elapsed(())))),
            // Stopped: from now on without a limit.
            None => Poll::Pending,
        }
    }
}

pin_project! {
    /// A stream with a time between its items. Made by [`TimerStreamExt::throttle`].
    #[derive(Debug)]
    #[must_use = "streams do nothing unless polled"]
    pub struct Throttled<S> {
        #[pin]
        stream: S,
        delay: Delay,
        period: Duration,
    }
}

impl<S: Stream> Stream for Throttled<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let this = self.project();
        ready!(Pin::new(&mut *this.delay).poll(context));
        let item = ready!(this.stream.poll_next(context));
        if item.is_some() {
            this.delay.reset(*this.period);
        }
        Poll::Ready(item)
    }
}

pin_project! {
    /// A stream of chunks. Made by [`TimerStreamExt::chunks_timeout`].
    ///
    /// **Dropping** it drops the items of the chunk that it collects;
    /// [`into_remainder`](Self::into_remainder) hands them back.
    #[must_use = "streams do nothing unless polled"]
    pub struct ChunksTimeout<S: Stream> {
        #[pin]
        stream: S,
        delay: Delay,
        limit: Duration,
        most: usize,
        items: Vec<S::Item>,
        ended: bool,
    }
}

impl<S: Stream> ChunksTimeout<S> {
    /// The items of the chunk that was not delivered yet.
    pub fn into_remainder(self) -> Vec<S::Item> {
        self.items
    }
}

impl<S: Stream> Stream for ChunksTimeout<S> {
    type Item = Vec<S::Item>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut this = self.project();
        while !*this.ended {
            match this.stream.as_mut().poll_next(context) {
                Poll::Pending if this.items.is_empty() => return Poll::Pending,
                Poll::Pending => {
                    ready!(Pin::new(&mut *this.delay).poll(context));
                    return Poll::Ready(Some(std::mem::take(this.items)));
                }
                Poll::Ready(Some(item)) => {
                    if this.items.is_empty() {
                        this.delay.reset(*this.limit);
                    }
                    this.items.push(item);
                    if this.items.len() >= *this.most {
                        this.delay.withdraw();
                        return Poll::Ready(Some(std::mem::take(this.items)));
                    }
                }
                Poll::Ready(None) => {
                    *this.ended = true;
                    this.delay.withdraw();
                }
            }
        }
        let last = std::mem::take(this.items);
        Poll::Ready((!last.is_empty()).then_some(last))
    }
}

fused!([S: Stream] FusedStream for ChunksTimeout<S>, |this| this.ended && this.items.is_empty());
fused!([S: FusedStream] FusedStream for StreamTimeout<S>, |this| this.stream.is_terminated());
fused!([S: FusedStream] FusedStream for StreamTimeoutRepeating<S>, |this| this.stream.is_terminated());
fused!([S: FusedStream] FusedStream for Throttled<S>, |this| this.stream.is_terminated());

shown!([S: Stream] ChunksTimeout [<S>], |this| "items" => this.items.len());
