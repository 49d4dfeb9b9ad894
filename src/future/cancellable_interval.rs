//! Cancellable intervals: an interval with a token.

use std::future::poll_fn;
#[cfg(feature = "stream")]
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::interval::{Interval, IntervalTick};
use crate::cancellation::{CancellationToken, Cancelled, CancelledOwned};

/// An interval with a token. Made by [`Interval::with_token`].
///
/// Each call waits for the next tick, or for the cancellation of the token, the first to come. If a
/// poll finds both, the cancellation counts: so a task that is late with its ticks learns of the
/// cancellation at once. **Dropping** removes interval and waker from their lists at once. With the
/// feature `stream` it is a `futures_core::Stream` of ticks, which ends at the cancellation.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{CancelReason, CancellationTokenSource, Interval};
///
/// # smol::block_on(async {
/// let source = CancellationTokenSource::after(Duration::from_millis(5));
/// let mut ticks = Interval::new(Duration::from_millis(1)).with_token(&source.token());
/// let cancelled = loop {
///     match ticks.tick().await {
///         Ok(Some(tick)) => println!("{tick:?}"),
///         Ok(None) => unreachable!("no stop handle"),
///         Err(cancelled) => break cancelled,
///     }
/// };
/// assert_eq!(cancelled.reason(), CancelReason::Timeout);
/// # });
/// ```
#[derive(Debug)]
#[must_use = "an interval does nothing until its ticks are taken"]
pub struct CancellableInterval {
    interval: Interval,
    cancelled: CancelledOwned,
}

impl Interval {
    /// Takes ticks until `token` is cancelled; see [`CancellableInterval`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationToken, Interval};
    ///
    /// # smol::block_on(async {
    /// let mut ticks = Interval::new(Duration::from_secs(3600))
    ///     .with_token(&CancellationToken::new_cancelled());
    /// assert!(ticks.tick().await.is_err());
    /// # });
    /// ```
    pub fn with_token(self, token: &CancellationToken) -> CancellableInterval {
        CancellableInterval { interval: self, cancelled: token.cancelled_owned() }
    }
}

impl CancellableInterval {
    /// Waits for the next tick. `Ok(None)` when a [`StopHandle`](crate::StopHandle) has stopped the
    /// interval. Dropping the future loses no tick.
    ///
    /// # Errors
    /// [`Cancelled`], when the token is cancelled.
    ///
    /// # Panics
    /// If the default runtime cannot be started.
    pub async fn tick(&mut self) -> Result<Option<IntervalTick>, Cancelled> {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// Polls for [`tick`](Self::tick).
    ///
    /// # Errors
    /// As for [`tick`](Self::tick).
    ///
    /// # Panics
    /// As for [`tick`](Self::tick).
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<IntervalTick>, Cancelled>> {
        let first = ready!(self.cancelled.or_poll(context, |context| self.interval.poll_tick(context)));
        if first.is_err() {
            self.interval.withdraw();
        }
        Poll::Ready(first)
    }

    /// The interval: to change its period, to start it again, or for a stop handle.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationToken, Interval};
    ///
    /// let mut ticks =
    ///     Interval::new(Duration::from_secs(1)).with_token(&CancellationToken::none());
    /// ticks.interval_mut().set_period(Duration::from_secs(5));
    /// assert_eq!(ticks.interval_mut().period(), Duration::from_secs(5));
    /// ```
    pub fn interval_mut(&mut self) -> &mut Interval {
        &mut self.interval
    }

    /// Returns the interval, without the token.
    pub fn into_inner(self) -> Interval {
        self.interval
    }
}

#[cfg(feature = "stream")]
impl futures_core::Stream for CancellableInterval {
    type Item = IntervalTick;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<IntervalTick>> {
        self.poll_tick(context).map(|tick| tick.ok().flatten())
    }
}

fused!(
    [] FusedStream for CancellableInterval, |this| this.cancelled.has_returned() || futures_core::FusedStream::is_terminated(&this.interval)
);
