//! Tokens: the asking handles.

use std::future::IntoFuture;
use std::hash::{Hash, Hasher};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use super::waiting::Wait;
use super::{
    CancelReason, CancellationTokenSource, Cancelled, CancelledFuture, CancelledOwned, Handle, Registration,
    RunUntilCancelled, WithToken,
};
use crate::runtime::RuntimeHandle;
use crate::runtime::wait::{NO_LIMIT, wait};

/// Tells whether its source has been cancelled. Code can poll a token, block on it, await it, or
/// register a callback.
///
/// Clones are cheap and equal. [`CancellationToken::none`] is never cancelled and costs nothing.
/// **Dropping** a token cancels nothing.
///
/// # Examples
///
/// A computation that checks its token in each step:
///
/// ```
/// use timerqueue::{CancellationToken, CancellationTokenSource, error::Cancelled};
///
/// fn sum(numbers: &[u64], token: &CancellationToken) -> Result<u64, Cancelled> {
///     let mut sum = 0;
///     for n in numbers {
///         token.check()?;
///         sum += n;
///     }
///     Ok(sum)
/// }
///
/// let source = CancellationTokenSource::new();
/// assert_eq!(sum(&[1, 2, 3], &source.token()), Ok(6));
/// source.cancel();
/// assert!(sum(&[1, 2, 3], &source.token()).is_err());
/// assert_eq!(sum(&[1, 2, 3], &CancellationToken::none()), Ok(6));
/// ```
#[doc(alias("AbortSignal", "Context"))]
#[derive(Clone)]
pub struct CancellationToken {
    pub(super) handle: Option<Handle>,
}

impl CancellationToken {
    /// A token that is never cancelled.
    pub const fn none() -> Self {
        Self { handle: None }
    }

    /// A token that is cancelled already, by hand. For calls that are to give up at once, and for
    /// tests.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::{CancelReason, CancellationToken};
    ///
    /// assert_eq!(CancellationToken::new_cancelled().reason(), Some(CancelReason::Cancelled));
    /// ```
    #[must_use]
    pub fn new_cancelled() -> Self {
        let source = CancellationTokenSource::new();
        source.cancel();
        source.token()
    }

    /// Whether the source has been cancelled. A single atomic load.
    #[doc(alias = "aborted")]
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.reason().is_some()
    }

    /// The reason of the cancellation; `None` if the source is not cancelled.
    #[inline]
    pub fn reason(&self) -> Option<CancelReason> {
        self.handle.as_ref()?.reason()
    }

    /// An error if the source has been cancelled, for use with `?`.
    ///
    /// # Errors
    /// [`Cancelled`], if the source is cancelled.
    #[doc(alias = "ThrowIfCancellationRequested")]
    #[inline]
    pub fn check(&self) -> Result<(), Cancelled> {
        self.reason().map_or(Ok(()), |reason| Err(Cancelled { reason }))
    }

    /// Registers `callback`, to be called once when the source is cancelled: on the cancelling
    /// thread, last registered first. If the token is cancelled already, the callback runs at once,
    /// on this thread.
    ///
    /// **Dropping** the registration unregisters the callback, without waiting. A callback that
    /// owns a handle of the same source keeps the source alive until the callback is called or
    /// unregistered.
    ///
    /// # Examples
    ///
    /// A message to another thread:
    ///
    /// ```
    /// use timerqueue::CancellationTokenSource;
    ///
    /// let source = CancellationTokenSource::new();
    /// let (send, receive) = std::sync::mpsc::channel();
    /// let registration = source.token().register(move || send.send("stop").unwrap());
    /// source.cancel();
    /// assert_eq!(receive.recv().unwrap(), "stop");
    /// assert!(!registration.unregister()); // too late
    /// ```
    #[doc(alias("AfterFunc", "addEventListener"))]
    pub fn register(&self, callback: impl FnOnce() + Send + 'static) -> Registration {
        let Some(handle) = &self.handle else { return Registration { at: None } };
        // Cancelled already: the callback needs no box.
        if self.is_cancelled() {
            callback();
            return Registration { at: None };
        }
        match handle.register(Box::new(callback)) {
            Ok(id) => Registration { at: Some((handle.clone(), id)) },
            Err(callback) => {
                callback();
                Registration { at: None }
            }
        }
    }

    /// A source that is cancelled with this token: [`CancellationTokenSource::linked`] with a
    /// single parent. Its timed cancels count on the runtime of this token's source.
    ///
    /// # Examples
    ///
    /// A child cancelled without its parent:
    ///
    /// ```
    /// use timerqueue::CancellationTokenSource;
    ///
    /// let parent = CancellationTokenSource::new();
    /// let child = parent.token().child_source();
    /// child.cancel();
    /// assert!(!parent.is_cancelled());
    /// ```
    #[doc(alias = "child_token")]
    pub fn child_source(&self) -> CancellationTokenSource {
        CancellationTokenSource::linked([self])
    }

    /// Waits for the cancellation. Never ready for [`none`](Self::none).
    ///
    /// # Examples
    ///
    /// A task that waits until another thread cancels:
    ///
    /// ```
    /// use timerqueue::{CancelReason, CancellationTokenSource};
    ///
    /// # smol::block_on(async {
    /// let source = CancellationTokenSource::new();
    /// let token = source.token();
    /// std::thread::spawn(move || source.cancel());
    /// assert_eq!(token.cancelled().await.reason(), CancelReason::Cancelled);
    /// # });
    /// ```
    #[doc(alias("wait", "Done"))]
    pub fn cancelled(&self) -> CancelledFuture<'_> {
        CancelledFuture(Wait::new(self))
    }

    /// As [`cancelled`](Self::cancelled), without borrowing the token.
    pub fn cancelled_owned(&self) -> CancelledOwned {
        CancelledOwned(Wait::new(self.clone()))
    }

    /// Runs `future` until `future` is ready or the source is cancelled. A cancellation gives
    /// `None`; dropping the returned future then drops `future`. If a poll finds both, the result
    /// of `future` counts.
    ///
    /// # Examples
    ///
    /// A server that takes requests until its shutdown:
    ///
    /// ```
    /// use timerqueue::CancellationTokenSource;
    ///
    /// # async fn next_request() -> u32 { 1 }
    /// # smol::block_on(async {
    /// let shutdown = CancellationTokenSource::new();
    /// let token = shutdown.token();
    /// let mut served = 0;
    /// while let Some(request) = token.run_until_cancelled(next_request()).await {
    ///     served += request;
    ///     if served == 3 {
    ///         shutdown.cancel();
    /// #       break;
    ///     }
    /// }
    /// assert_eq!(served, 3);
    /// # });
    /// ```
    pub fn run_until_cancelled<F: IntoFuture>(&self, future: F) -> RunUntilCancelled<F::IntoFuture> {
        RunUntilCancelled { with_token: self.limit(future.into_future()) }
    }

    /// Gives `future` up when the source is cancelled.
    pub(crate) fn limit<F>(&self, future: F) -> WithToken<F> {
        WithToken { future, cancelled: self.cancelled_owned() }
    }

    /// Blocks the thread until the source is cancelled; for [`none`](Self::none), for ever. Returns
    /// the reason.
    ///
    /// If the [current runtime](crate::Runtime::current) is on a manual clock, the call moves the
    /// clock, as [`ManualClock::block_on`](crate::ManualClock::block_on) does.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::{CancelReason, CancellationTokenSource};
    ///
    /// let source = CancellationTokenSource::new();
    /// let token = source.token();
    /// std::thread::spawn(move || source.cancel());
    /// assert_eq!(token.wait().reason(), CancelReason::Cancelled);
    /// ```
    pub fn wait(&self) -> Cancelled {
        self.block(None).expect(NO_LIMIT)
    }

    /// Blocks the thread until the source is cancelled, or for `limit`; for [`none`](Self::none),
    /// always for `limit`.
    ///
    /// The limit counts in real time, without the time in suspend; also if the source's runtime is
    /// on a manual clock. But if the [current runtime](crate::Runtime::current) is on a manual
    /// clock, the limit counts on this clock: the call moves the clock, as
    /// [`ManualClock::block_on`](crate::ManualClock::block_on) does. (When that runtime ends, the
    /// call returns as at its limit.)
    ///
    /// # Errors
    /// [`Cancelled`], if the source was cancelled in time. (An error, so that `?` leaves the
    /// function.)
    ///
    /// # Examples
    ///
    /// A pause that a cancellation ends early:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::CancellationTokenSource;
    ///
    /// let source = CancellationTokenSource::new();
    /// assert!(source.token().wait_timeout(Duration::from_millis(1)).is_ok());
    /// source.cancel();
    /// assert!(source.token().wait_timeout(Duration::from_secs(60)).is_err());
    /// ```
    #[doc(alias("sleep", "WaitOne"))]
    pub fn wait_timeout(&self, limit: Duration) -> Result<(), Cancelled> {
        self.block(Some(limit)).map_or(Ok(()), Err)
    }

    fn block(&self, limit: Option<Duration>) -> Option<Cancelled> {
        wait(&RuntimeHandle::Global, limit, self.cancelled())
    }
}

#[cfg(all(test, timerqueue_loom))]
impl CancellationToken {
    /// Spreads the source, as if two threads had met at its lock.
    pub(crate) fn spread(&self) {
        if let Some(handle) = &self.handle {
            handle.children.spread();
        }
    }
}

/// Tokens are equal when they belong to the same source, or are both never cancelled.
impl PartialEq for CancellationToken {
    fn eq(&self, other: &Self) -> bool {
        match (&self.handle, &other.handle) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Eq for CancellationToken {}

/// By the source, so clones have the same hash.
impl Hash for CancellationToken {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.handle.as_ref().map(|handle| Arc::as_ptr(handle)).hash(state);
    }
}

// A panic of user code leaves no state of a source half changed: no callback, waker or destructor
// runs under its locks.
impl UnwindSafe for CancellationToken {}
impl RefUnwindSafe for CancellationToken {}
impl UnwindSafe for CancellationTokenSource {}
impl RefUnwindSafe for CancellationTokenSource {}

/// [`CancellationToken::none`].
impl Default for CancellationToken {
    fn default() -> Self {
        Self::none()
    }
}

shown!([] CancellationToken, |this| "reason" => this.reason());
