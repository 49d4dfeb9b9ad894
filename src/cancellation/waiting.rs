//! Futures that wait for a token.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::registry::{Entry, Id};
use super::{CancellationToken, Cancelled};

pin_project_lite::pin_project! {
    /// Runs a future until a token is cancelled. Made by [`CancellationToken::run_until_cancelled`].
    ///
    /// # Examples
    ///
    /// A future that ends in time, and one that does not:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::CancellationTokenSource;
    ///
    /// # smol::block_on(async {
    /// let source = CancellationTokenSource::after(Duration::from_millis(2))?;
    /// let token = source.token();
    /// assert_eq!(token.run_until_cancelled(async { 7 }).await, Some(7));
    /// assert_eq!(token.run_until_cancelled(std::future::pending::<()>()).await, None);
    /// # Ok::<(), timerqueue::StartError>(())
    /// # }).unwrap();
    /// ```
    #[must_use = "futures do nothing until they are awaited or polled"]
    pub struct RunUntilCancelled<F> {
        #[pin]
        pub(super) future: F,
        pub(super) cancelled: CancelledOwned,
    }
}

/// Waits for a token to be cancelled. Made by [`CancellationToken::cancelled`].
///
/// **Dropping** it takes the waker out at once. Once ready, it stays ready.
///
/// # Examples
///
/// A task that says why it ends:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::CancellationTokenSource;
///
/// # smol::block_on(async {
/// let source = CancellationTokenSource::after(Duration::from_millis(1))?;
/// let token = source.token();
/// let cancelled = token.cancelled().await;
/// assert_eq!(cancelled.to_string(), "cancelled by a timeout");
/// # Ok::<(), timerqueue::StartError>(())
/// # }).unwrap();
/// ```
#[must_use = "futures do nothing until they are awaited or polled"]
pub struct CancelledFuture<'a> {
    pub(super) token: &'a CancellationToken,
    pub(super) id: Option<Id>,
}

/// Waits for a token to be cancelled, without borrowing it. Made by [`CancellationToken::cancelled_owned`].
///
/// **Dropping** it takes the waker out at once. Once ready, it stays ready.
///
/// # Examples
///
/// A future that can be sent to a task of its own:
///
/// ```
/// use timerqueue::{CancelReason, CancellationTokenSource};
///
/// # smol::block_on(async {
/// let source = CancellationTokenSource::new();
/// let task = smol::spawn(source.token().cancelled_owned());
/// source.cancel();
/// assert_eq!(task.await.reason(), CancelReason::Cancelled);
/// # });
/// ```
#[must_use = "futures do nothing until they are awaited or polled"]
pub struct CancelledOwned {
    pub(super) token: CancellationToken,
    pub(super) id: Option<Id>,
}

fn poll_cancelled(token: &CancellationToken, id: &mut Option<Id>, context: &mut Context<'_>) -> Poll<Cancelled> {
    let Some(handle) = &token.handle else { return Poll::Pending };
    if let Some(reason) = handle.reason() {
        return Poll::Ready(Cancelled { reason });
    }
    // Cloned and dropped outside the lock: it is the executor's code.
    let mut waker = context.waker().clone();
    let mut registered = handle.registered.lock();
    if let Some(reason) = handle.reason() {
        drop(registered);
        return Poll::Ready(Cancelled { reason });
    }
    match id.and_then(|id| registered.registry.get_mut(id)) {
        Some(Entry::Waker(stored)) => std::mem::swap(stored, &mut waker),
        _ => {
            *id = Some(registered.registry.push(Entry::Waker(waker)));
            return Poll::Pending;
        }
    }
    drop(registered);
    drop(waker);
    Poll::Pending
}

fn withdraw(token: &CancellationToken, id: &mut Option<Id>) {
    if let (Some(handle), Some(id)) = (&token.handle, id.take()) {
        handle.unregister(id);
    }
}

impl CancelledOwned {
    /// Nobody waits any more.
    pub(crate) fn withdraw(&mut self) {
        withdraw(&self.token, &mut self.id);
    }
}

impl Future for CancelledFuture<'_> {
    type Output = Cancelled;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Cancelled> {
        let this = &mut *self;
        poll_cancelled(this.token, &mut this.id, context)
    }
}

impl Future for CancelledOwned {
    type Output = Cancelled;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Cancelled> {
        let this = &mut *self;
        poll_cancelled(&this.token, &mut this.id, context)
    }
}

impl Drop for CancelledFuture<'_> {
    fn drop(&mut self) {
        withdraw(self.token, &mut self.id);
    }
}

impl Drop for CancelledOwned {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl fmt::Debug for CancelledFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelledFuture").field("token", self.token).finish_non_exhaustive()
    }
}

impl fmt::Debug for CancelledOwned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelledOwned").field("token", &self.token).finish_non_exhaustive()
    }
}

impl<F: Future> Future for RunUntilCancelled<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(value) = this.future.poll(context) {
            return Poll::Ready(Some(value));
        }
        Pin::new(this.cancelled).poll(context).map(|_| None)
    }
}

impl<F> fmt::Debug for RunUntilCancelled<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunUntilCancelled").field("cancelled", &self.cancelled).finish_non_exhaustive()
    }
}
