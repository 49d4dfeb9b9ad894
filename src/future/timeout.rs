//! `timeout`: a limit around any future.
//!
//! Ground rules. The future is polled first, always: a result that is there together with the deadline is never lost, and
//! a future that is ready at once costs no queue anything. With a token the order is: result, token, limit. What comes first
//! takes the others out of their queues and lists.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;

use super::delay::Delay;
use crate::cancellation::{CancellationToken, Cancelled, CancelledOwned};
use crate::runtime::Runtime;
use crate::time::Timestamp;

impl Runtime {
    /// [`timeout`](crate::timeout()) on this runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Runtime;
    ///
    /// # async fn example(runtime: &Runtime) {
    /// let answer = runtime.timeout(Duration::from_secs(1), async { 42 }).await;
    /// assert_eq!(answer, Ok(42));
    /// # }
    /// ```
    pub fn timeout<F: IntoFuture>(&self, limit: Duration, future: F) -> Timeout<F::IntoFuture> {
        Timeout::new(future.into_future(), self.delay(limit))
    }
}

/// Gives `future` up to `limit`, counted from this call (S38). On the default runtime; [`Runtime::timeout`] for another.
///
/// The future is polled first. If it is ready then, no queue is touched. When the limit is over and the future is still
/// not ready, the result is [`Elapsed`]; dropping the `Timeout` then drops the future. When the runtime has ended, a limit that
/// has not come by then never does, and the future goes on without it (S33).
///
/// # Panics
/// When the future is pending at its first poll and the default runtime cannot be started.
///
/// [`Runtime::timeout`]: crate::Runtime::timeout
///
/// # Examples
///
/// A limit on something that can fail by itself, with one error for both:
///
/// ```
/// use std::io;
/// use std::time::Duration;
/// use timerqueue::timeout;
///
/// async fn read_request() -> io::Result<String> {
///     Ok(String::from("GET /")) // ... from a socket ...
/// }
///
/// # smol::block_on(async {
/// // `Elapsed` converts into an `io::Error` of kind `TimedOut`.
/// let request = timeout(Duration::from_secs(5), read_request()).await??;
/// assert_eq!(request, "GET /");
/// # Ok::<(), io::Error>(())
/// # }).unwrap();
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
/// use timerqueue::{Runtime, timeout_at};
///
/// # async fn step() {}
/// # smol::block_on(async {
/// let deadline = Runtime::global()?.now() + Duration::from_secs(2);
/// timeout_at(deadline, step()).await?;
/// timeout_at(deadline, step()).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub fn timeout_at<F: IntoFuture>(deadline: Timestamp, future: F) -> Timeout<F::IntoFuture> {
    Timeout::new(future.into_future(), Delay::until(deadline))
}

/// The time was over before the future was ready.
///
/// # Examples
///
/// It converts into an I/O error of the usual kind:
///
/// ```
/// use std::io;
/// use std::time::Duration;
/// use timerqueue::timeout;
///
/// # smol::block_on(async {
/// let elapsed = timeout(Duration::from_millis(1), std::future::pending::<()>()).await.unwrap_err();
/// assert_eq!(io::Error::from(elapsed).kind(), io::ErrorKind::TimedOut);
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elapsed(());

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the time limit has passed")
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
    /// **Dropping** it drops the future and takes the limit out of its queue at once; the result of the future does the latter, too.
    ///
    /// # Examples
    ///
    /// A limit that is taken off again:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{FutureExt, Timeout};
    ///
    /// # smol::block_on(async {
    /// let limited: Timeout<_> = async { 1 }.timeout(Duration::from_secs(1));
    /// let unlimited = limited.into_inner();
    /// assert_eq!(unlimited.await, 1);
    /// # });
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
    ///
    /// # Examples
    ///
    /// More time for a future that makes progress:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut limited = runtime.timeout(Duration::from_secs(10), std::future::pending::<()>());
    /// clock.advance(Duration::from_secs(9));
    /// limited.delay_mut().reset(Duration::from_secs(10));
    /// clock.advance(Duration::from_secs(9));
    /// assert!(!limited.delay_mut().is_elapsed());
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn delay_mut(&mut self) -> &mut Delay {
        &mut self.delay
    }

    /// [`delay_mut`](Self::delay_mut) of a timeout that is pinned.
    ///
    /// # Examples
    ///
    /// A future that is polled, and gets more time whenever there is progress:
    ///
    /// ```
    /// use std::pin::pin;
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut limited = pin!(runtime.timeout(Duration::from_secs(10), std::future::pending::<()>()));
    /// clock.advance(Duration::from_secs(9));
    /// limited.as_mut().delay_pin_mut().reset(Duration::from_secs(10));
    /// clock.advance(Duration::from_secs(9));
    /// assert!(!limited.delay_pin_mut().is_elapsed());
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn delay_pin_mut(self: Pin<&mut Self>) -> &mut Delay {
        self.project().delay
    }

    /// Ends also when `token` is cancelled (S50).
    ///
    /// # Examples
    ///
    /// Work that has a minute, unless the program ends before:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationTokenSource, TimeoutError, timeout};
    ///
    /// # smol::block_on(async {
    /// let shutdown = CancellationTokenSource::new();
    /// let work = std::future::pending::<()>();
    /// let limited = timeout(Duration::from_secs(60), work).with_token(&shutdown.token());
    /// std::thread::spawn(move || shutdown.cancel());
    /// assert!(matches!(limited.await, Err(TimeoutError::Cancelled(_))));
    /// # });
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
            this.delay.withdraw();
            return Poll::Ready(Ok(value));
        }
        Pin::new(this.delay).poll(context).map(|()| Err(Elapsed(())))
    }
}

/// A future with a limit and a token ended without its result.
///
/// # Examples
///
/// Three ways to end:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{CancellationToken, TimeoutError, timeout};
///
/// # smol::block_on(async {
/// # let token = CancellationToken::none();
/// # let work = std::future::pending::<()>();
/// match timeout(Duration::from_millis(1), work).with_token(&token).await {
///     Ok(()) => println!("done"),
///     Err(TimeoutError::Elapsed(_)) => println!("too slow"),
///     Err(TimeoutError::Cancelled(cancelled)) => println!("given up: {:?}", cancelled.reason()),
/// }
/// # });
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
    /// The future is polled first, then the token, then the limit: the first of them that is there gives the result (S50). The others
    /// are taken out of their queues and lists at once.
    ///
    /// # Examples
    ///
    /// A result that is there is not lost to a token that was cancelled before:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellableTimeout, CancellationTokenSource, timeout};
    ///
    /// # smol::block_on(async {
    /// let source = CancellationTokenSource::new();
    /// source.cancel();
    /// let work = async { 1 };
    /// let limited: CancellableTimeout<_> = timeout(Duration::from_secs(1), work).with_token(&source.token());
    /// assert_eq!(limited.await, Ok(1));
    /// # });
    /// ```
    #[derive(Debug)]
    #[must_use = "a timeout does nothing until it is awaited or polled"]
    pub struct CancellableTimeout<F> {
        #[pin]
        timeout: Timeout<F>,
        cancelled: CancelledOwned,
    }
}

impl<F> CancellableTimeout<F> {
    /// The delay that limits it, to be looked at or reset; see [`Timeout::delay_mut`].
    pub fn delay_mut(&mut self) -> &mut Delay {
        self.timeout.delay_mut()
    }

    /// As [`delay_mut`](Self::delay_mut), of a timeout that is pinned; see [`Timeout::delay_pin_mut`].
    pub fn delay_pin_mut(self: Pin<&mut Self>) -> &mut Delay {
        self.project().timeout.delay_pin_mut()
    }
}

impl<F: Future> Future for CancellableTimeout<F> {
    type Output = Result<F::Output, TimeoutError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let timeout = this.timeout.project();
        if let Poll::Ready(value) = timeout.future.poll(context) {
            timeout.delay.withdraw();
            this.cancelled.withdraw();
            return Poll::Ready(Ok(value));
        }
        if !timeout.delay.is_done() {
            if let Some(cancelled) = ready!(this.cancelled.poll_first(context)) {
                timeout.delay.withdraw();
                return Poll::Ready(Err(TimeoutError::Cancelled(cancelled)));
            }
        }
        ready!(Pin::new(timeout.delay).poll(context));
        this.cancelled.withdraw();
        Poll::Ready(Err(TimeoutError::Elapsed(Elapsed(()))))
    }
}

/// Limits as methods of any future. On the default runtime.
///
/// # Examples
///
/// A limit at the end of a chain of calls:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::FutureExt;
///
/// # smol::block_on(async {
/// let answer = async { 42 }.timeout(Duration::from_secs(1)).await?;
/// assert_eq!(answer, 42);
/// # Ok::<(), timerqueue::Elapsed>(())
/// # }).unwrap();
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
