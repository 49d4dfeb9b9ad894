//! Futures that wait for the cancellation of a token.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use super::children::{InShard, Shards};
use super::{CancellationToken, Cancelled, Handle};
use crate::budget;
use crate::sync::{Ordering, fence};
use crate::unwind::contain_drop;

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
#[doc(alias = "WaitForCancellationFuture")]
#[must_use = "futures do nothing until they are awaited or polled"]
pub struct CancelledFuture<'a>(pub(super) Wait<&'a CancellationToken>);

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
#[doc(alias = "WaitForCancellationFutureOwned")]
#[must_use = "futures do nothing until they are awaited or polled"]
pub struct CancelledOwned(pub(super) Wait<CancellationToken>);

/// A wait for a token: the state of both futures.
pub(super) struct Wait<T: Borrow<CancellationToken>> {
    token: T,
    stored: Option<StoredWaker>,
}

/// The place of a future's waker.
enum StoredWaker {
    /// Beside the callbacks.
    Listener(u32),
    Shard(InShard),
    /// No waker: the future beside this one has been polled.
    Begun,
    /// No waker: a poll has been ready.
    Returned,
}

impl<T: Borrow<CancellationToken>> Wait<T> {
    pub(super) fn new(token: T) -> Self {
        Self { token, stored: None }
    }

    /// Whether a poll has been ready.
    #[cfg(feature = "stream")]
    fn has_returned(&self) -> bool {
        matches!(self.stored, Some(StoredWaker::Returned))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Cancelled> {
        let Some(handle) = &self.token.borrow().handle else { return Poll::Pending };
        if handle.is_cancelled() {
            if matches!(self.stored, None | Some(StoredWaker::Begun | StoredWaker::Returned)) {
                ready!(budget::spend(context));
            }
        } else {
            // The waker is cloned and dropped outside all locks, since both run code of the
            // executor.
            let unused = store(handle, &mut self.stored, context.waker().clone());
            contain_drop(&handle.source, unused);
        }
        let Some(cancelled) = handle.cancelled() else { return Poll::Pending };
        self.withdraw();
        self.stored = Some(StoredWaker::Returned);
        Poll::Ready(cancelled)
    }

    /// Removes the waker: no task waits any more.
    fn withdraw(&mut self) {
        let (Some(handle), Some(stored)) = (&self.token.borrow().handle, self.stored.take()) else { return };
        let waker = match stored {
            StoredWaker::Listener(index) => {
                let mut listeners = handle.listeners.lock();
                let (waker, _after_the_lock) = listeners.wakers.take_out(index);
                drop(listeners);
                waker
            }
            StoredWaker::Shard(at) => handle.children.remove_waker(at),
            StoredWaker::Begun | StoredWaker::Returned => None,
        };
        contain_drop(&handle.source, waker);
    }
}

/// Stores a task's waker beside the callbacks or in a shard, unless the source is cancelled. The
/// task is woken if the caller then finds the source not cancelled. Returns the previous waker, or
/// the waker that is not needed.
#[inline]
fn store(handle: &Handle, stored: &mut Option<StoredWaker>, mut waker: Waker) -> Option<Waker> {
    let unused = if let Some(StoredWaker::Shard(at)) = stored {
        handle.children.renew_waker(*at, &mut waker);
        Some(waker)
    } else {
        let listeners = match stored {
            Some(StoredWaker::Listener(_)) => Some(handle.listeners.lock()),
            _ if handle.children.is_spread() => None,
            _ => handle.listeners.try_lock(),
        };
        if let Some(mut listeners) = listeners {
            // No fence is needed: the canceller takes the wakers with this lock held.
            if handle.is_cancelled() {
                return Some(waker);
            }
            if let Some(StoredWaker::Listener(index)) = *stored {
                return listeners.wakers.get_mut(index).map(|stored| std::mem::replace(stored, waker));
            }
            *stored = Some(StoredWaker::Listener(listeners.wakers.insert(waker)));
            return None;
        }
        *stored = Some(StoredWaker::Shard(Shards::insert_waker(handle, waker)));
        None
    };
    // The canceller marks, then looks for wakers. This thread stores a waker, then looks for the
    // mark. The fences of both threads make sure that the canceller finds the waker, or this thread
    // sees the mark.
    fence(Ordering::SeqCst);
    unused
}

impl CancelledOwned {
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.0.token
    }

    /// Removes the waker: no task waits any more.
    pub(crate) fn withdraw(&mut self) {
        self.0.withdraw();
    }

    /// Whether a poll has been ready.
    #[cfg(feature = "stream")]
    pub(crate) fn has_returned(&self) -> bool {
        self.0.has_returned()
    }

    /// Polls a future whose result counts before the cancellation, and removes the waker from the
    /// token. The future is not polled if the token was cancelled before its first poll, or if the
    /// cancellation was returned.
    #[inline]
    pub(crate) fn poll_before<F: Future>(&mut self, future: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
        if matches!(self.0.stored, None | Some(StoredWaker::Returned)) && self.0.token.is_cancelled() {
            return Poll::Pending;
        }
        let polled = future.poll(context);
        if polled.is_ready() {
            self.withdraw();
        } else {
            self.0.stored.get_or_insert(StoredWaker::Begun);
        }
        polled
    }

    /// Polls this future, and then, unless the token is cancelled, a second one. The second is not
    /// polled either when the cancellation is withheld, since the task's budget is spent: then the
    /// task is woken. The result of the second removes the waker from the token.
    pub(crate) fn or_poll<T>(
        &mut self,
        context: &mut Context<'_>,
        second: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<Result<T, Cancelled>> {
        match self.0.poll(context) {
            Poll::Ready(cancelled) => return Poll::Ready(Err(cancelled)),
            Poll::Pending if self.0.token.is_cancelled() => return Poll::Pending,
            Poll::Pending => {}
        }
        let value = ready!(second(context));
        self.withdraw();
        Poll::Ready(Ok(value))
    }
}

impl<T: Borrow<CancellationToken>> Drop for Wait<T> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// The traits of a future that is a [`Wait`].
macro_rules! future_of_wait {
    ($name:ident $(<$lifetime:lifetime>)?) => {
        impl Future for $name $(<$lifetime>)? {
            type Output = Cancelled;

            fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Cancelled> {
                self.0.poll(context)
            }
        }

        fused!([] FusedFuture for $name $(<$lifetime>)?, |this| this.0.has_returned());

        shown!([] $name [$(<$lifetime>)?], |this| "token" => this.0.token);
    };
}

future_of_wait!(CancelledFuture<'_>);
future_of_wait!(CancelledOwned);

pin_project_lite::pin_project! {
    /// A future that is given up when a token is cancelled. Made by
    /// [`TimerFutureExt::with_token`](crate::TimerFutureExt::with_token).
    ///
    /// If the token is cancelled before the first poll, the future is not polled at all. Later each
    /// poll asks the future first, so a result found together with the cancellation is not lost.
    /// The first to come removes the waker from the token at once. **Dropping** does the same, and
    /// drops the future.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::{CancellationTokenSource, TimerFutureExt, error::Cancelled};
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
        match this.cancelled.poll_before(this.future, context) {
            Poll::Ready(value) => Poll::Ready(Ok(value)),
            Poll::Pending => Pin::new(this.cancelled).poll(context).map(Err),
        }
    }
}

fused!(
    [F: futures_core::FusedFuture] FusedFuture for WithToken<F>, |this| this.future.is_terminated() || this.cancelled.has_returned()
);

shown!([F] WithToken [<F>], |this| "cancelled" => this.cancelled);

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
    /// let source = CancellationTokenSource::new();
    /// let token = source.token();
    /// assert_eq!(token.run_until_cancelled(async { 7 }).await, Some(7));
    /// source.cancel_after(Duration::from_millis(2));
    /// assert_eq!(token.run_until_cancelled(std::future::pending::<()>()).await, None);
    /// # });
    /// ```
    #[must_use = "futures do nothing until they are awaited or polled"]
    pub struct RunUntilCancelled<F> {
        #[pin]
        pub(super) with_token: WithToken<F>,
    }
}

impl<F: Future> Future for RunUntilCancelled<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().with_token.poll(context).map(Result::ok)
    }
}

fused!(
    [F: futures_core::FusedFuture] FusedFuture for RunUntilCancelled<F>, |this| futures_core::FusedFuture::is_terminated(&this.with_token)
);

shown!([F] RunUntilCancelled [<F>], |this| "cancelled" => this.with_token.cancelled);

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
        assert!(matches!(alone.0.stored, Some(StoredWaker::Listener(_))));
        {
            let inner = &token.handle.as_ref().unwrap();
            let _other_thread = inner.listeners.lock();
            assert!(second.poll(&mut crowded).is_pending());
        }
        for (woken, future) in [(&third, &mut late), (&fourth, &mut gone)] {
            assert!(woken.poll(future).is_pending());
        }
        for future in [&crowded, &late, &gone] {
            assert!(matches!(future.0.stored, Some(StoredWaker::Shard(_))), "from then on");
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
