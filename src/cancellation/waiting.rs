//! Futures that wait for the cancellation of a token.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

#[cfg(feature = "stream")]
use futures_core::FusedFuture;

use super::children::Link;
use super::registry::{Entry, Id};
use super::{CancellationToken, Cancelled, Handle};
use crate::budget;
use crate::sync::{Ordering, fence};
use crate::unwind::contain_drop;

pin_project_lite::pin_project! {
    /// A future that runs another future until a token is cancelled. Made by
    /// [`CancellationToken::run_until_cancelled`].
    ///
    /// # Examples
    ///
    /// A future ready in time, then a future never ready:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::CancellationTokenSource;
    ///
    /// # smol::block_on(async {
    /// let source = CancellationTokenSource::after(Duration::from_millis(2));
    /// let token = source.token();
    /// assert_eq!(token.run_until_cancelled(async { 7 }).await, Some(7));
    /// assert_eq!(token.run_until_cancelled(std::future::pending::<()>()).await, None);
    /// # });
    /// ```
    #[must_use = "futures do nothing until they are awaited or polled"]
    pub struct RunUntilCancelled<F> {
        #[pin]
        pub(super) future: F,
        pub(super) cancelled: CancelledOwned,
    }
}

pin_project_lite::pin_project! {
    /// A future that is given up when a token is cancelled. Made by
    /// [`TimerFutureExt::with_token`](crate::TimerFutureExt::with_token).
    ///
    /// Each poll asks the future first, so a result found together with the cancellation is not
    /// lost. The first to come removes the waker from the token at once. **Dropping** does the
    /// same, and drops the future.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::{Cancelled, CancellationTokenSource, TimerFutureExt};
    ///
    /// # smol::block_on(async {
    /// let source = CancellationTokenSource::new();
    /// let token = source.token();
    /// std::thread::spawn(move || source.cancel());
    /// let given_up: Result<(), Cancelled> = std::future::pending().with_token(&token).await;
    /// assert!(given_up.is_err());
    /// # });
    /// ```
    #[must_use = "futures do nothing until they are awaited or polled"]
    pub struct WithToken<F> {
        #[pin]
        pub(super) future: F,
        pub(super) cancelled: CancelledOwned,
    }
}

impl<F> WithToken<F> {
    /// Returns the future, without its token.
    pub fn into_inner(self) -> F {
        self.future
    }
}

impl<F: Future> Future for WithToken<F> {
    type Output = Result<F::Output, Cancelled>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(value) = this.future.poll(context) {
            this.cancelled.withdraw();
            return Poll::Ready(Ok(value));
        }
        Pin::new(this.cancelled).poll(context).map(Err)
    }
}

impl<F> fmt::Debug for WithToken<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithToken").field("cancelled", &self.cancelled).finish_non_exhaustive()
    }
}

/// A future, ready when a token is cancelled. Made by [`CancellationToken::cancelled`].
///
/// **Dropping** the future removes its waker at once. Once ready, the future stays ready.
///
/// # Examples
///
/// A task that reports the reason:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::CancellationTokenSource;
///
/// # smol::block_on(async {
/// let source = CancellationTokenSource::after(Duration::from_millis(1));
/// let token = source.token();
/// let cancelled = token.cancelled().await;
/// assert_eq!(cancelled.to_string(), "cancelled by a timeout");
/// # });
/// ```
#[must_use = "futures do nothing until they are awaited or polled"]
pub struct CancelledFuture<'a> {
    pub(super) token: &'a CancellationToken,
    pub(super) at: Option<Place>,
}

/// A future, ready when a token is cancelled, which owns the token. Made by
/// [`CancellationToken::cancelled_owned`].
///
/// **Dropping** the future removes its waker at once. Once ready, the future stays ready.
///
/// # Examples
///
/// A future spawned as a task of its own:
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
    pub(super) at: Option<Place>,
}

/// The place of a future's waker.
pub(super) enum Place {
    Registry(Id),
    Shard(Link),
    /// No waker: a poll has been ready.
    Returned,
}

/// Whether a poll has been ready.
#[cfg(feature = "stream")]
fn has_returned(at: &Option<Place>) -> bool {
    matches!(at, Some(Place::Returned))
}

fn poll_cancelled(token: &CancellationToken, at: &mut Option<Place>, context: &mut Context<'_>) -> Poll<Cancelled> {
    let Some(handle) = &token.handle else { return Poll::Pending };
    if matches!(at, None | Some(Place::Returned)) && handle.reason().is_some() {
        ready!(budget::spend(context));
    }
    let polled = wait(handle, at, context);
    if polled.is_ready() {
        withdraw(token, at);
        *at = Some(Place::Returned);
    }
    polled
}

/// Stores the task's waker in the registry or in a shard, unless the source is cancelled.
fn wait(handle: &Handle, at: &mut Option<Place>, context: &mut Context<'_>) -> Poll<Cancelled> {
    if let Some(reason) = handle.reason() {
        return Poll::Ready(Cancelled { reason });
    }
    // The waker is cloned and dropped outside all locks, since both run code of the executor.
    let mut waker = Some(context.waker().clone());
    let polled = store(handle, at, &mut waker);
    contain_drop(&handle.source, waker);
    polled
}

/// Stores the waker. Afterwards `waker` is the one before, or the one that is not needed.
#[inline]
fn store(handle: &Handle, at: &mut Option<Place>, waker: &mut Option<Waker>) -> Poll<Cancelled> {
    if let Some(Place::Shard(link)) = at {
        waker.iter_mut().for_each(|waker| link.renew(waker));
    } else {
        let registered = match at {
            Some(_) => Some(handle.registered.lock()),
            None if handle.children.is_spread() => None,
            None => handle.registered.try_lock(),
        };
        if let Some(mut registered) = registered {
            if let Some(reason) = handle.reason() {
                drop(registered);
                return Poll::Ready(Cancelled { reason });
            }
            if let Some(Place::Registry(id)) = at {
                if let Some(Entry::Waker(stored)) = registered.registry.get_mut(*id) {
                    waker.iter_mut().for_each(|waker| std::mem::swap(stored, waker));
                    return Poll::Pending;
                }
            }
            let id = waker.take().map(|waker| registered.registry.push(Entry::Waker(waker)));
            *at = id.map(Place::Registry);
            return Poll::Pending;
        }
        *at = waker.take().map(|waker| Place::Shard(handle.children.wait(waker)));
    }
    // The canceller marks, then looks for wakers. This thread stores a waker, then looks for the
    // mark. The fences of both threads make sure that the canceller finds the waker, or this thread
    // sees the mark.
    fence(Ordering::SeqCst);
    match handle.reason() {
        Some(reason) => Poll::Ready(Cancelled { reason }),
        None => Poll::Pending,
    }
}

fn withdraw(token: &CancellationToken, at: &mut Option<Place>) {
    match (&token.handle, at.take()) {
        (Some(handle), Some(Place::Registry(id))) => _ = handle.unregister(id),
        (Some(handle), link) => contain_drop(&handle.source, link),
        (None, _) => {}
    }
}

impl CancelledOwned {
    /// Removes the waker: no task waits any more.
    pub(crate) fn withdraw(&mut self) {
        withdraw(&self.token, &mut self.at);
    }

    /// Whether a poll has been ready.
    #[cfg(feature = "stream")]
    pub(crate) fn has_returned(&self) -> bool {
        has_returned(&self.at)
    }

    /// Polls this future, before the caller polls a second future. `None`: not cancelled, so the
    /// caller polls the second future. Pending: cancelled, but the task's budget is spent. The task
    /// is woken, and must not poll the second future before.
    pub(crate) fn poll_first(&mut self, context: &mut Context<'_>) -> Poll<Option<Cancelled>> {
        match poll_cancelled(&self.token, &mut self.at, context) {
            Poll::Ready(cancelled) => Poll::Ready(Some(cancelled)),
            Poll::Pending if self.token.is_cancelled() => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        }
    }
}

impl Future for CancelledFuture<'_> {
    type Output = Cancelled;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Cancelled> {
        let this = &mut *self;
        poll_cancelled(this.token, &mut this.at, context)
    }
}

impl Future for CancelledOwned {
    type Output = Cancelled;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Cancelled> {
        let this = &mut *self;
        poll_cancelled(&this.token, &mut this.at, context)
    }
}

#[cfg(feature = "stream")]
#[cfg_attr(docsrs, doc(cfg(feature = "stream")))]
impl FusedFuture for CancelledFuture<'_> {
    fn is_terminated(&self) -> bool {
        has_returned(&self.at)
    }
}

#[cfg(feature = "stream")]
#[cfg_attr(docsrs, doc(cfg(feature = "stream")))]
impl FusedFuture for CancelledOwned {
    fn is_terminated(&self) -> bool {
        self.has_returned()
    }
}

#[cfg(feature = "stream")]
#[cfg_attr(docsrs, doc(cfg(feature = "stream")))]
impl<F: FusedFuture> FusedFuture for WithToken<F> {
    fn is_terminated(&self) -> bool {
        self.future.is_terminated() || self.cancelled.has_returned()
    }
}

#[cfg(feature = "stream")]
#[cfg_attr(docsrs, doc(cfg(feature = "stream")))]
impl<F: FusedFuture> FusedFuture for RunUntilCancelled<F> {
    fn is_terminated(&self) -> bool {
        self.future.is_terminated() || self.cancelled.has_returned()
    }
}

impl Drop for CancelledFuture<'_> {
    fn drop(&mut self) {
        withdraw(self.token, &mut self.at);
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
            this.cancelled.withdraw();
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

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::cancellation::CancellationTokenSource;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Woken {
        fn poll(self: &Arc<Self>, future: &mut (impl Future<Output = Cancelled> + Unpin)) -> Poll<Cancelled> {
            Pin::new(future).poll(&mut Context::from_waker(&Waker::from(Arc::clone(self))))
        }

        fn times(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn futures_that_contend_for_the_registry_wait_in_shards() {
        let source = CancellationTokenSource::new();
        let token = source.token();
        let [first, second, third, fourth, latest] = std::array::from_fn(|_| Arc::<Woken>::default());
        let (mut alone, mut crowded, mut late, mut gone) =
            (token.cancelled_owned(), token.cancelled_owned(), token.cancelled_owned(), token.cancelled_owned());
        assert!(first.poll(&mut alone).is_pending());
        assert!(matches!(alone.at, Some(Place::Registry(_))));
        {
            let inner = &token.handle.as_ref().unwrap();
            let _other_thread = inner.registered.lock();
            assert!(second.poll(&mut crowded).is_pending());
        }
        for (woken, future) in [(&third, &mut late), (&fourth, &mut gone)] {
            assert!(woken.poll(future).is_pending());
        }
        for future in [&crowded, &late, &gone] {
            assert!(matches!(future.at, Some(Place::Shard(_))), "from then on");
        }
        // The waker of the latest poll counts, in the registry and in a shard (S37).
        assert!(latest.poll(&mut crowded).is_pending());
        assert_eq!(Arc::strong_count(&second), 1);
        drop(gone);
        assert_eq!(Arc::strong_count(&fourth), 1, "its waker goes along");
        // A callback that blocks delays none that waits in a shard.
        let (woken, before) = (Arc::clone(&third), Arc::new(AtomicUsize::new(0)));
        let seen = Arc::clone(&before);
        let callback = token.register(move || seen.store(woken.times(), Ordering::Relaxed));
        assert!(source.cancel());
        assert_eq!([&first, &second, &third, &fourth, &latest].map(|woken| woken.times()), [1, 0, 1, 0, 1]);
        assert_eq!(before.load(Ordering::Relaxed), 1);
        drop(callback);
        for future in [&mut alone, &mut crowded, &mut late] {
            assert!(first.poll(future).is_ready());
        }
    }
}
