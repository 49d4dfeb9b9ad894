//! Cancellable delays: a delay with a token.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::delay::Delay;
use crate::cancellation::{Cancelled, CancelledOwned};

/// A delay with a token. Made by [`Delay::with_token`].
///
/// Ready with `Ok(())` at the deadline, or with [`Cancelled`] when the token is cancelled first. If
/// a poll finds both, the cancellation counts. The first result removes the delay from its queue
/// and the waker from the token at once, and stays. **Dropping** the future does the same.
///
/// # Examples
///
/// A cancellable pause in a loop:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{CancellationToken, CancellationTokenSource, Delay, error::Cancelled};
///
/// async fn heartbeat(token: &CancellationToken) -> Cancelled {
///     loop {
///         // ... a heartbeat ...
///         if let Err(cancelled) = Delay::new(Duration::from_millis(1)).with_token(token).await {
///             return cancelled;
///         }
///     }
/// }
///
/// # smol::block_on(async {
/// let source = CancellationTokenSource::after(Duration::from_millis(5));
/// let cancelled = heartbeat(&source.token()).await;
/// assert_eq!(cancelled.to_string(), "cancelled by a timeout");
/// # });
/// ```
#[derive(Debug)]
#[must_use = "a delay does nothing until it is awaited or polled"]
pub struct CancellableDelay {
    pub(super) cancelled: CancelledOwned,
    pub(super) delay: Delay,
}

impl CancellableDelay {
    /// A poll has been ready.
    #[cfg(feature = "stream")]
    pub(super) fn is_done(&self) -> bool {
        self.delay.is_done() || self.cancelled.has_returned()
    }

    /// No task waits any more.
    pub(super) fn withdraw(&mut self) {
        self.delay.withdraw();
        self.cancelled.withdraw();
    }
}

impl Future for CancellableDelay {
    type Output = Result<(), Cancelled>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { cancelled, delay } = &mut *self;
        if delay.is_done() {
            return Pin::new(delay).poll(context).map(Ok);
        }
        let first = ready!(cancelled.or_poll(context, |context| Pin::new(&mut *delay).poll(context)));
        if first.is_err() {
            delay.withdraw();
        }
        Poll::Ready(first)
    }
}

fused!([] FusedFuture for CancellableDelay, |this| this.is_done());
