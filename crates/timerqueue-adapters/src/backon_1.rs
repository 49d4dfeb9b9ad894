//! Sleepers for backon 1.
//!
//! backon retries functions with pauses, and leaves the pauses to a sleeper. [`BackonSleeper`] is
//! one for both kinds of retries: futures, given to `Retry::sleep`, and blocking functions, given
//! to `BlockingRetry::sleep`.

use std::time::Duration;

use backon::{BlockingSleeper, Sleeper};
use timerqueue::{CancellationToken, Delay, Runtime};

/// A sleeper on a [`Runtime`], for `Retry::sleep` and `BlockingRetry::sleep` of backon.
///
/// A pause of a future counts from the call of `sleep`, ends never early, and needs no executor of
/// a certain kind. **Dropping** the retry drops the pause, which leaves its queue at once.
///
/// A blocking pause blocks the calling thread. On a manual clock the blocked thread moves the clock
/// to the end of the pause, and runs the callbacks that are due until then; see
/// [`ManualClock::block_on`](timerqueue::ManualClock::block_on).
///
/// **When the runtime ends**, the pause of a future stays pending, and so does the retry. A
/// blocking pause ends as on a running runtime; on a manual clock, at once.
///
/// # Examples
///
/// Three attempts, 1 s and 2 s apart, on virtual time:
///
/// ```
/// use std::time::Duration;
///
/// use backon::{ExponentialBuilder, Retryable};
/// use timerqueue::{ManualClock, Runtime};
/// use timerqueue_adapters::backon_1::BackonSleeper;
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let mut attempts = 0;
/// let answer = (|| {
///     attempts += 1;
///     std::future::ready(if attempts < 3 { Err("not now") } else { Ok(attempts) })
/// })
/// .retry(ExponentialBuilder::new().with_min_delay(Duration::from_secs(1)))
/// .sleep(BackonSleeper::on(&runtime));
/// assert_eq!(clock.block_on(async { answer.await }), Ok(3));
/// assert_eq!(clock.now().as_duration(), Duration::from_secs(1 + 2));
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BackonSleeper {
    runtime: Runtime,
}

impl BackonSleeper {
    /// A sleeper on the [current runtime](Runtime::current) of the calling thread.
    ///
    /// # Panics
    /// When the default runtime is the current runtime, and cannot be started.
    ///
    /// # Examples
    ///
    /// A function that blocks:
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use backon::{BlockingRetryable, ConstantBuilder};
    /// use timerqueue_adapters::backon_1::BackonSleeper;
    ///
    /// let mut attempts = 0;
    /// let answer = (|| {
    ///     attempts += 1;
    ///     if attempts < 3 { Err("not now") } else { Ok(attempts) }
    /// })
    /// .retry(ConstantBuilder::new().with_delay(Duration::from_millis(1)))
    /// .sleep(BackonSleeper::new())
    /// .call();
    /// assert_eq!(answer, Ok(3));
    /// ```
    // A runtime may be started, so there is no `Default`.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Self { runtime: Runtime::current() }
    }

    /// A sleeper on this runtime.
    ///
    /// # Examples
    ///
    /// See [`BackonSleeper`].
    pub fn on(runtime: &Runtime) -> Self {
        Self { runtime: runtime.clone() }
    }
}

impl Sleeper for BackonSleeper {
    type Sleep = Delay;

    fn sleep(&self, pause: Duration) -> Delay {
        Delay::on(&self.runtime, pause)
    }
}

impl BlockingSleeper for BackonSleeper {
    fn sleep(&self, pause: Duration) {
        // Cannot be cancelled: the token has no source.
        let _ = self.runtime.enter(|| CancellationToken::none().wait_timeout(pause));
    }
}
