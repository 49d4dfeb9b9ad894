//! `timeout`: a limit around any future.
//!
//! Ground rules. The future is polled first, always: a result that is there together with the deadline is never lost, and
//! a future that is ready at once costs no queue anything.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;

use crate::cancellation::{CancellationToken, Cancelled, CancelledOwned};
use crate::delay::{Delay, DelayError};
use crate::time::Timestamp;

/// Gives `future` up to `limit`, counted from this call (S38). On the default runtime; [`Runtime::timeout`] for another.
///
/// The future is polled first. If it is ready then, no queue is touched. When the limit is over and the future is still
/// not ready, the result is [`Elapsed`]; dropping the `Timeout` then drops the future.
///
/// [`Runtime::timeout`]: crate::Runtime::timeout
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::timeout;
///
/// # async fn read_request() -> std::io::Result<String> { Ok(String::new()) }
/// # async fn example() -> std::io::Result<()> {
/// // `Elapsed` converts into an `io::Error` of kind `TimedOut`.
/// let request = timeout(Duration::from_secs(5), read_request()).await??;
/// # drop(request);
/// # Ok(())
/// # }
/// ```
pub fn timeout<F: IntoFuture>(limit: Duration, future: F) -> Timeout<F::IntoFuture> {
    Timeout::new(future.into_future(), Delay::new(limit))
}

/// Gives `future` until `deadline`, an instant of the default runtime's clock; see [`timeout()`].
///
/// # Examples
///
/// One deadline for several steps:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{Elapsed, Runtime, timeout_at};
///
/// # async fn step() {}
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let deadline = Runtime::global()?.now() + Duration::from_secs(2);
/// timeout_at(deadline, step()).await?;
/// timeout_at(deadline, step()).await?;
/// # Ok(())
/// # }
/// ```
pub fn timeout_at<F: IntoFuture>(deadline: Timestamp, future: F) -> Timeout<F::IntoFuture> {
    Timeout::new(future.into_future(), Delay::until(deadline))
}

/// The time was over before the future was ready.
///
/// # Examples
///
/// ```
/// use std::io;
/// use std::time::Duration;
/// use timerqueue::timeout;
///
/// # async fn example() {
/// let elapsed = timeout(Duration::from_millis(1), std::future::pending::<()>()).await.unwrap_err();
/// assert_eq!(io::Error::from(elapsed).kind(), io::ErrorKind::TimedOut);
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elapsed {
    early: Option<DelayError>,
}

impl Elapsed {
    /// Why the wait ended before its time, if it did: the runtime was shut down, or could not be started. `None`: the
    /// limit has passed.
    pub fn interrupted(&self) -> Option<DelayError> {
        self.early
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.early {
            None => f.write_str("the time limit has passed"),
            Some(error) => write!(f, "the time limit cannot be kept: {error}"),
        }
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}

pin_project! {
    /// A future with a time limit. Made by [`timeout()`] and its relatives.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{FutureExt, Timeout};
    ///
    /// let limited: Timeout<_> = async { 1 }.timeout(Duration::from_secs(1));
    /// let _future = limited.into_inner();
    /// ```
    #[derive(Debug)]
    #[must_use = "a timeout does nothing until it is awaited or polled"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        delay: Delay,
    }
}

impl<F> Timeout<F> {
    pub(crate) fn new(future: F, delay: Delay) -> Self {
        Self { future, delay }
    }

    /// The future, without its limit.
    pub fn into_inner(self) -> F {
        self.future
    }

    /// The delay that limits it, to be looked at or reset.
    pub fn delay_mut(&mut self) -> &mut Delay {
        &mut self.delay
    }

    /// Ends also when `token` is cancelled (S50).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationTokenSource, TimeoutError, timeout};
    ///
    /// # async fn example() {
    /// let source = CancellationTokenSource::new();
    /// source.cancel();
    /// let work = std::future::pending::<()>();
    /// let result = timeout(Duration::from_secs(1), work).with_token(&source.token()).await;
    /// assert!(matches!(result, Err(TimeoutError::Cancelled(_))));
    /// # }
    /// ```
    pub fn with_token(self, token: &CancellationToken) -> CancellableTimeout<F> {
        CancellableTimeout { timeout: self, cancelled: token.cancelled_owned() }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(value) = this.future.poll(context) {
            return Poll::Ready(Ok(value));
        }
        Pin::new(this.delay).poll(context).map(|ended| Err(Elapsed { early: ended.err() }))
    }
}

/// A future with a limit and a token ended without its result.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{CancellationToken, TimeoutError, timeout};
///
/// # async fn example(token: CancellationToken) {
/// match timeout(Duration::from_secs(1), std::future::pending::<()>()).with_token(&token).await {
///     Ok(()) => println!("done"),
///     Err(TimeoutError::Elapsed(_)) => println!("too slow"),
///     Err(TimeoutError::Cancelled(cancelled)) => println!("given up: {:?}", cancelled.reason()),
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeoutError {
    /// The time was over.
    Elapsed(Elapsed),
    /// The token was cancelled.
    Cancelled(Cancelled),
}

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elapsed(elapsed) => elapsed.fmt(f),
            Self::Cancelled(cancelled) => cancelled.fmt(f),
        }
    }
}

impl std::error::Error for TimeoutError {}

impl From<TimeoutError> for std::io::Error {
    fn from(error: TimeoutError) -> Self {
        match error {
            TimeoutError::Elapsed(elapsed) => elapsed.into(),
            TimeoutError::Cancelled(cancelled) => cancelled.into(),
        }
    }
}

pin_project! {
    /// A future with a time limit and a token. Made by [`Timeout::with_token`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellableTimeout, CancellationToken, timeout};
    ///
    /// # fn example(token: &CancellationToken) {
    /// let _limited: CancellableTimeout<_> = timeout(Duration::from_secs(1), async { 1 }).with_token(token);
    /// # }
    /// ```
    #[derive(Debug)]
    #[must_use = "a timeout does nothing until it is awaited or polled"]
    pub struct CancellableTimeout<F> {
        #[pin]
        timeout: Timeout<F>,
        cancelled: CancelledOwned,
    }
}

impl<F: Future> Future for CancellableTimeout<F> {
    type Output = Result<F::Output, TimeoutError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(result) = this.timeout.poll(context) {
            return Poll::Ready(result.map_err(TimeoutError::Elapsed));
        }
        Pin::new(this.cancelled).poll(context).map(|cancelled| Err(TimeoutError::Cancelled(cancelled)))
    }
}

/// Limits as methods of any future. On the default runtime.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::FutureExt;
///
/// # async fn example() -> Result<(), timerqueue::Elapsed> {
/// let answer = async { 42 }.timeout(Duration::from_secs(1)).await?;
/// assert_eq!(answer, 42);
/// # Ok(())
/// # }
/// ```
pub trait FutureExt: IntoFuture + Sized {
    /// As [`timeout()`].
    fn timeout(self, limit: Duration) -> Timeout<Self::IntoFuture> {
        timeout(limit, self)
    }

    /// As [`timeout_at`].
    fn timeout_at(self, deadline: Timestamp) -> Timeout<Self::IntoFuture> {
        timeout_at(deadline, self)
    }
}

impl<F: IntoFuture> FutureExt for F {}
