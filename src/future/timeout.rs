//! Timeouts: a time limit for any future.
//!
//! Ground rules. Each poll asks the future first. So a result found together with the deadline is
//! never lost, and a future ready at its first poll touches no queue. With a token the order is:
//! result, token, limit; but a future whose token is cancelled before its first poll is not polled.
//! The first to come removes the delay from its queue and the waker from the token.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;

use super::delay::{CancellableDelay, Delay};
use crate::cancellation::{CancellationToken, Cancelled};
use crate::runtime::Runtime;
use crate::time::Deadline;

/// Limits `future` to `limit`, counted from this call, on the [current runtime](Runtime::current).
/// [`Timeout::on`] does so on a chosen runtime.
///
/// Each poll asks the future first. A future ready at its first poll touches no queue. When the
/// limit has elapsed and the future is still pending, the result is [`Elapsed`]; dropping the
/// `Timeout` then drops the future. When the runtime ends before the limit, the limit never
/// elapses, and the future goes on without a limit.
///
/// # Panics
/// When the future is pending at its first poll and the default runtime cannot be started.
///
/// # Examples
///
/// A limit for an operation that can fail by itself, with the same error type for both:
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
#[doc(alias("WaitAsync", "WithTimeout", "deadline"))]
#[track_caller]
pub fn timeout<F: IntoFuture>(limit: Duration, future: F) -> Timeout<F::IntoFuture> {
    Timeout::new(future.into_future(), Delay::new(limit))
}

/// Limits `future` to end by `deadline`, a [`Timestamp`](crate::Timestamp) of the current runtime's
/// clock or a `std::time::Instant`; see [`timeout()`].
///
/// # Examples
///
/// The same deadline for several steps:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{Timestamp, timeout_at};
///
/// # async fn step() {}
/// # smol::block_on(async {
/// let deadline = Timestamp::now() + Duration::from_secs(2);
/// timeout_at(deadline, step()).await?;
/// timeout_at(deadline, step()).await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[doc(alias("WithDeadline", "deadline"))]
#[track_caller]
pub fn timeout_at<F: IntoFuture>(deadline: impl Into<Deadline>, future: F) -> Timeout<F::IntoFuture> {
    Timeout::new(future.into_future(), Delay::until(deadline))
}

/// The error of a future that was still pending when its limit had elapsed.
///
/// # Examples
///
/// The error converts into an I/O error of kind `TimedOut`:
///
/// ```
/// use std::io;
/// use std::time::Duration;
/// use timerqueue::timeout;
///
/// # smol::block_on(async {
/// let elapsed =
///     timeout(Duration::from_millis(1), std::future::pending::<()>()).await.unwrap_err();
/// assert_eq!(io::Error::from(elapsed).kind(), io::ErrorKind::TimedOut);
/// # });
/// ```
#[doc(alias = "TimedOut")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elapsed(pub(super) ());

error!([] Elapsed, |elapsed, f| f.write_str("the time limit has passed"), io std::io::ErrorKind::TimedOut);

pin_project! {
    /// A future with a time limit. Made by [`timeout()`], [`timeout_at`], [`Timeout::on`] and
    /// [`TimerFutureExt`](crate::TimerFutureExt).
    ///
    /// **Dropping** the timeout drops the future, and removes the limit from its queue at once. The
    /// result of the future removes the limit from its queue too.
    ///
    /// # Examples
    ///
    /// Taking the limit off again:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Timeout, TimerFutureExt};
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

impl<F: Future> Timeout<F> {
    /// As [`timeout()`], on a runtime of the caller's choice.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Runtime, Timeout};
    ///
    /// # async fn example(runtime: &Runtime) {
    /// let answer = Timeout::on(runtime, Duration::from_secs(1), async { 42 }).await;
    /// assert_eq!(answer, Ok(42));
    /// # }
    /// ```
    #[doc(alias("WaitAsync", "WithTimeout"))]
    pub fn on(runtime: &Runtime, limit: Duration, future: impl IntoFuture<IntoFuture = F>) -> Self {
        Self::new(future.into_future(), Delay::on(runtime, limit))
    }
}

impl<F> Timeout<F> {
    pub(crate) fn new(future: F, delay: Delay) -> Self {
        Self { future, delay }
    }

    /// Returns the future, without its limit.
    pub fn into_inner(self) -> F {
        self.future
    }

    /// Lets the limit elapse up to `leeway` late, so that limits share wake-ups; see
    /// [`Delay::leeway`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::timeout;
    ///
    /// # smol::block_on(async {
    /// let answer =
    ///     timeout(Duration::from_secs(30), async { 42 }).leeway(Duration::from_millis(100)).await;
    /// assert_eq!(answer, Ok(42));
    /// # });
    /// ```
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.delay.set_leeway(leeway);
        self
    }

    /// The delay that limits the future. The caller may read or reset the delay.
    ///
    /// # Examples
    ///
    /// More time for a future after progress:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timeout};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut limited =
    ///     Timeout::on(&runtime, Duration::from_secs(10), std::future::pending::<()>());
    /// clock.advance(Duration::from_secs(9));
    /// limited.delay_mut().reset(Duration::from_secs(10));
    /// clock.advance(Duration::from_secs(9));
    /// assert!(!limited.delay_mut().is_elapsed());
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias = "reset")]
    pub fn delay_mut(&mut self) -> &mut Delay {
        &mut self.delay
    }

    /// [`delay_mut`](Self::delay_mut) of a pinned timeout.
    ///
    /// # Examples
    ///
    /// More time for a pinned future after progress:
    ///
    /// ```
    /// use std::pin::pin;
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timeout};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut limited =
    ///     pin!(Timeout::on(&runtime, Duration::from_secs(10), std::future::pending::<()>()));
    /// clock.advance(Duration::from_secs(9));
    /// limited.as_mut().delay_pin_mut().reset(Duration::from_secs(10));
    /// clock.advance(Duration::from_secs(9));
    /// assert!(!limited.delay_pin_mut().is_elapsed());
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn delay_pin_mut(self: Pin<&mut Self>) -> &mut Delay {
        self.project().delay
    }

    /// Ends the future also when `token` is cancelled; see [`CancellableTimeout`].
    ///
    /// # Examples
    ///
    /// Work limited to a minute, and by the shutdown of the program:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationTokenSource, error::TimeoutError, timeout};
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
        CancellableTimeout { future: self.future, limit: self.delay.with_token(token) }
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

fused!(
    [F: futures_core::FusedFuture] FusedFuture for Timeout<F>, |this| this.future.is_terminated() || this.delay.is_done()
);

/// The error of a [`CancellableTimeout`]: the limit elapsed, or the token was cancelled, before the
/// future was ready.
///
/// # Examples
///
/// Three outcomes:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{CancellationToken, error::TimeoutError, timeout};
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
    /// The limit has elapsed.
    Elapsed(Elapsed),
    /// The token was cancelled.
    Cancelled(Cancelled),
}

error!([] TimeoutError, |this, f| match this {
    Self::Elapsed(elapsed) => elapsed.fmt(f),
    Self::Cancelled(cancelled) => cancelled.fmt(f),
});

from!(TimeoutError: Elapsed => TimeoutError::Elapsed, Cancelled => TimeoutError::Cancelled);

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
    /// If the token is cancelled before the first poll, the future is not polled at all. Later each
    /// poll asks the future first, then the token, then the limit; the first that is ready gives
    /// the result. The result removes the delay from its queue and the waker from the token at
    /// once. **Dropping** does the same, and drops the future.
    ///
    /// # Examples
    ///
    /// Work that does not begin under a cancelled token:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationToken, futures::CancellableTimeout, timeout};
    ///
    /// # smol::block_on(async {
    /// let token = CancellationToken::new_cancelled();
    /// let work = async { unreachable!("not begun") };
    /// let limited: CancellableTimeout<_> =
    ///     timeout(Duration::from_secs(1), work).with_token(&token);
    /// assert!(limited.await.is_err());
    /// # });
    /// ```
    #[derive(Debug)]
    #[must_use = "a timeout does nothing until it is awaited or polled"]
    pub struct CancellableTimeout<F> {
        #[pin]
        future: F,
        limit: CancellableDelay,
    }
}

impl<F> CancellableTimeout<F> {
    /// The delay that limits the future; see [`Timeout::delay_mut`].
    pub fn delay_mut(&mut self) -> &mut Delay {
        &mut self.limit.delay
    }

    /// [`delay_mut`](Self::delay_mut) of a pinned timeout; see [`Timeout::delay_pin_mut`].
    pub fn delay_pin_mut(self: Pin<&mut Self>) -> &mut Delay {
        &mut self.project().limit.delay
    }
}

impl<F: Future> Future for CancellableTimeout<F> {
    type Output = Result<F::Output, TimeoutError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(value) = this.limit.cancelled.poll_before(this.future, context) {
            this.limit.delay.withdraw();
            return Poll::Ready(Ok(value));
        }
        Poll::Ready(Err(match ready!(Pin::new(this.limit).poll(context)) {
            Ok(()) => TimeoutError::Elapsed(Elapsed(())),
            Err(cancelled) => TimeoutError::Cancelled(cancelled),
        }))
    }
}

fused!(
    [F: futures_core::FusedFuture] FusedFuture for CancellableTimeout<F>, |this| this.future.is_terminated() || this.limit.is_done()
);
