//! Tokens: the asking handles.

use std::error::Error;
use std::future::IntoFuture;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use super::waiting::Wait;
use super::{
    CancelReason, CancellationTokenSource, Cancelled, CancelledFuture, CancelledOwned, Handle, Registration,
    RunUntilCancelled, WithToken,
};
use crate::runtime::RuntimeHandle;
use crate::runtime::wait::{NO_LIMIT, wait};
use crate::time::Timestamp;

/// Tells whether its source has been cancelled. Code can poll a token, block on it, await it, or
/// register a callback. A token is made by a [`CancellationTokenSource`], which cancels.
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
#[derive(Clone, Default)]
pub struct CancellationToken {
    pub(super) handle: Option<Handle>,
}

impl CancellationToken {
    /// A token that is never cancelled.
    #[doc(alias("None", "Background"))]
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
    #[doc(alias("aborted", "IsCancellationRequested"))]
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.handle.as_ref().is_some_and(|handle| handle.is_cancelled())
    }

    /// The reason of the cancellation; `None` if the source is not cancelled.
    #[inline]
    pub fn reason(&self) -> Option<CancelReason> {
        self.check().err().map(|cancelled| cancelled.reason())
    }

    /// The reason of the source where the cancellation began, through any number of linked sources:
    /// [`Timeout`](CancelReason::Timeout) or [`Cancelled`](CancelReason::Cancelled), never
    /// [`Parent`](CancelReason::Parent). `None` if the source is not cancelled.
    ///
    /// # Examples
    ///
    /// A step below a request that has timed out:
    ///
    /// ```
    /// use std::io;
    /// use std::time::Duration;
    /// use timerqueue::{CancelReason, CancellationTokenSource};
    ///
    /// let request = CancellationTokenSource::after(Duration::ZERO);
    /// let step = request.token().child_source().token();
    /// assert_eq!(step.reason(), Some(CancelReason::Parent));
    /// assert_eq!(step.root_reason(), Some(CancelReason::Timeout));
    /// assert_eq!(io::Error::from(step.check().unwrap_err()).kind(), io::ErrorKind::TimedOut);
    /// ```
    #[inline]
    pub fn root_reason(&self) -> Option<CancelReason> {
        self.check().err().map(|cancelled| cancelled.root_reason())
    }

    /// The cause given to [`CancellationTokenSource::cancel_with_cause`], by this token's source or
    /// a parent that has cancelled it. `None` if there is no cause, or the source is not cancelled.
    #[doc(alias = "Cause")]
    pub fn cause(&self) -> Option<Arc<dyn Error + Send + Sync>> {
        self.handle.as_ref()?.cause()
    }

    /// The instant of the timed cancel by which this token is cancelled at the latest: the earliest
    /// of its own source's and of the sources linked to, direct and indirect. `None` if there is
    /// none. On a cancelled token the deadline has passed: it is now at the latest.
    ///
    /// The timestamp is of the clock on which the timed cancels of the token's own source count. Of
    /// a parent on another clock the time counts that is left on that clock.
    ///
    /// The call locks each of these sources in turn. It is meant for the edge of a system, where a
    /// deadline is handed on.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationTokenSource, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let request = CancellationTokenSource::on(&runtime);
    /// request.cancel_after(Duration::from_secs(5));
    /// let step = request.token().child_source();
    /// assert_eq!(step.token().deadline(), Some(clock.now() + Duration::from_secs(5)));
    /// step.cancel_after(Duration::from_secs(2)); // earlier than the request
    /// assert_eq!(step.token().deadline(), Some(clock.now() + Duration::from_secs(2)));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias = "Deadline")]
    pub fn deadline(&self) -> Option<Timestamp> {
        self.deadline_and_now().map(|(deadline, _)| deadline)
    }

    /// The time that is left until the [`deadline`](Self::deadline): zero if the token is
    /// cancelled, `None` if there is no deadline.
    ///
    /// # Examples
    ///
    /// A request to another system, with the time that is left in a header:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationToken, CancellationTokenSource};
    ///
    /// fn header(token: &CancellationToken) -> Option<String> {
    ///     token.remaining().map(|left| format!("grpc-timeout: {}m", left.as_millis()))
    /// }
    ///
    /// let request = CancellationTokenSource::after(Duration::from_secs(5));
    /// println!("{}", header(&request.token()).unwrap());
    /// assert_eq!(header(&CancellationToken::none()), None);
    /// assert_eq!(header(&CancellationToken::new_cancelled()).unwrap(), "grpc-timeout: 0m");
    /// ```
    pub fn remaining(&self) -> Option<Duration> {
        self.deadline_and_now().map(|(deadline, now)| deadline - now)
    }

    fn deadline_and_now(&self) -> Option<(Timestamp, Timestamp)> {
        let handle = self.handle.as_ref()?;
        let (deadline, now) = (handle.deadline(), handle.source.now());
        let deadline = if handle.is_cancelled() { deadline.min(now) } else { deadline };
        Timestamp::shown(deadline).map(|deadline| (deadline, Timestamp::from_ns(now)))
    }

    /// An error if the source has been cancelled, for use with `?`.
    ///
    /// # Errors
    /// [`Cancelled`], if the source is cancelled.
    #[doc(alias = "ThrowIfCancellationRequested")]
    #[inline]
    pub fn check(&self) -> Result<(), Cancelled> {
        self.handle.as_ref().and_then(|handle| handle.cancelled()).map_or(Ok(()), Err)
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
    #[doc(alias("AfterFunc", "UnsafeRegister", "addEventListener"))]
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
    ///
    /// # Examples
    ///
    /// A function that asks for a future without a result, such as axum's `with_graceful_shutdown`,
    /// gets an `async` block (the future itself ends with [`Cancelled`]):
    ///
    /// ```
    /// use std::future::Future;
    /// use timerqueue::CancellationTokenSource;
    ///
    /// async fn serve_until(signal: impl Future<Output = ()> + Send + 'static) {
    ///     signal.await;
    /// }
    ///
    /// # smol::block_on(async {
    /// let shutdown = CancellationTokenSource::new();
    /// let signal = shutdown.token().cancelled_owned();
    /// shutdown.cancel();
    /// serve_until(async { _ = signal.await }).await;
    /// # });
    /// ```
    #[doc(alias = "with_graceful_shutdown")]
    pub fn cancelled_owned(&self) -> CancelledOwned {
        CancelledOwned(Wait::new(self.clone()))
    }

    /// Runs `future` until `future` is ready or the source is cancelled. A cancellation gives
    /// `None`; dropping the returned future then drops `future`. If the source is cancelled before
    /// the first poll, `future` is not polled at all. If a later poll finds both, the result of
    /// `future` counts.
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
    #[doc(alias = "run_until_cancelled_owned")]
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

    /// The address that identifies the source.
    pub(super) fn address(&self) -> Option<*const ()> {
        self.handle.as_ref().map(|handle| handle.address())
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
            super::children::Shards::spread(handle);
        }
    }
}

/// Tokens are equal when they belong to the same source, or are both never cancelled.
impl PartialEq for CancellationToken {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl Eq for CancellationToken {}

/// By the source, so clones have the same hash.
impl Hash for CancellationToken {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

// A panic of user code leaves no state of a source half changed: no callback, waker or destructor
// runs under its locks.
unwind_safe!(CancellationToken, CancellationTokenSource);

shown!([] CancellationToken, |this| "reason" => this.reason());
