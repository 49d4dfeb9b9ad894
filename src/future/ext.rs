//! Limits and tokens as methods of any future.
//!
//! Ground rules. The trait has no state: its methods make the futures of [`super::timeout`] and of
//! the cancellation layer.

use std::future::IntoFuture;
use std::time::Duration;

use super::timeout::{Timeout, timeout, timeout_at};
use crate::cancellation::{CancellationToken, WithToken};
use crate::runtime::Scoped;
use crate::time::Deadline;

/// Time limits and cancellation tokens as methods of any future; the time counts on the [current
/// runtime](crate::Runtime::current).
///
/// # Examples
///
/// A limit at the end of a chain of calls, and work given up when a token is cancelled:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{CancellationToken, TimerFutureExt, error::TimeoutError};
///
/// # async fn other_work() -> u32 { 2 }
/// async fn work(token: &CancellationToken) -> Result<u32, TimeoutError> {
///     let first = async { 40 }.timeout(Duration::from_secs(1)).await?;
///     let second = other_work().with_token(token).await?;
///     Ok(first + second)
/// }
///
/// # smol::block_on(async {
/// assert_eq!(work(&CancellationToken::none()).await, Ok(42));
/// # });
/// ```
#[doc(alias = "FutureExt")]
pub trait TimerFutureExt: IntoFuture + Sized {
    /// Limits this future to `limit`; see [`timeout()`](crate::timeout()).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::TimerFutureExt;
    ///
    /// # smol::block_on(async {
    /// assert!(std::future::pending::<()>().timeout(Duration::from_millis(1)).await.is_err());
    /// # });
    /// ```
    #[track_caller]
    fn timeout(self, limit: Duration) -> Timeout<Self::IntoFuture> {
        timeout(limit, self)
    }

    /// Limits this future to end by `deadline`; see [`timeout_at`](crate::timeout_at()).
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::{TimerFutureExt, Timestamp};
    ///
    /// # smol::block_on(async {
    /// assert!(std::future::pending::<()>().timeout_at(Timestamp::now()).await.is_err());
    /// # });
    /// ```
    #[track_caller]
    fn timeout_at(self, deadline: impl Into<Deadline>) -> Timeout<Self::IntoFuture> {
        timeout_at(deadline, self)
    }

    /// Gives this future up when `token` is cancelled; see [`WithToken`].
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::{CancellationToken, TimerFutureExt};
    ///
    /// # smol::block_on(async {
    /// assert_eq!(async { 42 }.with_token(&CancellationToken::none()).await, Ok(42));
    /// let given_up =
    ///     std::future::pending::<()>().with_token(&CancellationToken::new_cancelled()).await;
    /// assert_eq!(given_up.unwrap_err().to_string(), "cancelled");
    /// # });
    /// ```
    fn with_token(self, token: &CancellationToken) -> WithToken<Self::IntoFuture> {
        token.limit(self.into_future())
    }

    /// Carries the [current runtime](crate::Runtime::current) of the calling thread along: each
    /// poll of the future has it as its current runtime, as in
    /// [`Runtime::scope`](crate::Runtime::scope). For tasks that code under test spawns, which
    /// would count in real time else. Where the default runtime is the current one, the future
    /// stays as it is, and nothing is started.
    ///
    /// # Examples
    ///
    /// A task of an executor, on the virtual time of the test that spawns it:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, ManualClock, Runtime, TimerFutureExt};
    ///
    /// async fn code_under_test() {
    ///     let task = async { Delay::new(Duration::from_secs(3600)).await };
    ///     smol::spawn(task.in_current_runtime()).await;
    /// }
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// smol::block_on(clock.run(runtime.scope(code_under_test())));
    /// assert_eq!(clock.now().as_duration(), Duration::from_secs(3600));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias = "in_scope")]
    #[doc(alias = "spawn")]
    fn in_current_runtime(self) -> Scoped<Self::IntoFuture> {
        Scoped::in_current(self.into_future())
    }
}

impl<F: IntoFuture> TimerFutureExt for F {}
