//! Backoffs for the retry policies of tower 0.5.
//!
//! tower's own backoffs pause on tokio's timers. [`DelayBackoffMaker`] makes backoffs that pause on
//! a [`Runtime`] of this project, for as long as an iterator says: a list, a formula, or a backoff
//! of another library.

use std::fmt;
use std::time::Duration;

use timerqueue::{Delay, Runtime};
use tower::retry::backoff::{Backoff, MakeBackoff};

/// Makes a [`DelayBackoff`] for each request.
///
/// # Examples
///
/// A policy that tries three times, with pauses of 1, 2, 4, ... seconds:
///
/// ```
/// use std::future::ready;
/// use std::iter;
/// use std::time::Duration;
///
/// use timerqueue::{Delay, ManualClock, Runtime};
/// use timerqueue_adapters::tower_retry_0_5::{DelayBackoff, DelayBackoffMaker};
/// use tower::retry::backoff::{Backoff, MakeBackoff};
/// use tower::retry::{Policy, RetryLayer};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// #[derive(Clone)]
/// struct ThreeTimes<B> {
///     left: u32,
///     backoff: B,
/// }
///
/// impl<B: Backoff> Policy<u32, u32, String> for ThreeTimes<B> {
///     type Future = B::Future;
///
///     fn retry(&mut self, _: &mut u32, result: &mut Result<u32, String>) -> Option<B::Future> {
///         self.left -= 1;
///         (result.is_err() && self.left > 0).then(|| self.backoff.next_backoff())
///     }
///
///     fn clone_request(&mut self, request: &u32) -> Option<u32> {
///         Some(*request)
///     }
/// }
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let doubling = || iter::successors(Some(Duration::from_secs(1)), |pause| pause.checked_mul(2));
/// let backoff = DelayBackoffMaker::on(&runtime, doubling).make_backoff();
/// let service = ServiceBuilder::new()
///     .layer(RetryLayer::new(ThreeTimes { left: 3, backoff }))
///     .service(service_fn(|_: u32| ready(Err::<u32, _>(String::from("not now")))));
/// assert!(clock.block_on(service.oneshot(1)).is_err());
/// assert_eq!(clock.now().as_duration(), Duration::from_secs(1 + 2));
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone)]
pub struct DelayBackoffMaker<F> {
    runtime: Runtime,
    pauses: F,
}

impl<F, I> DelayBackoffMaker<F>
where
    F: FnMut() -> I,
    I: Iterator<Item = Duration>,
{
    /// Backoffs with these pauses, on the [current runtime](Runtime::current) of the calling
    /// thread. `pauses` is called for each backoff. After the last pause of the iterator, this last
    /// pause repeats; without any pause, there is no pause.
    ///
    /// # Panics
    /// When the default runtime is the current runtime, and cannot be started.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue_adapters::tower_retry_0_5::DelayBackoffMaker;
    ///
    /// let maker = DelayBackoffMaker::new(|| [10, 50, 250].map(Duration::from_millis).into_iter());
    /// # drop(maker);
    /// ```
    pub fn new(pauses: F) -> Self {
        Self { runtime: Runtime::current(), pauses }
    }

    /// As [`new`](Self::new), on this runtime.
    ///
    /// # Examples
    ///
    /// See [`DelayBackoffMaker`].
    pub fn on(runtime: &Runtime, pauses: F) -> Self {
        Self { runtime: runtime.clone(), pauses }
    }
}

impl<F> fmt::Debug for DelayBackoffMaker<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayBackoffMaker").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

impl<F, I> MakeBackoff for DelayBackoffMaker<F>
where
    F: FnMut() -> I,
    I: Iterator<Item = Duration>,
{
    type Backoff = DelayBackoff<I>;

    fn make_backoff(&mut self) -> DelayBackoff<I> {
        DelayBackoff { runtime: self.runtime.clone(), pauses: (self.pauses)(), last: Duration::ZERO }
    }
}

/// The pauses between the attempts of a request. Made by a [`DelayBackoffMaker`].
///
/// A pause counts from `next_backoff`. **Dropping** a pause removes its delay from the queue at
/// once. **When the runtime ends**, a pause stays pending, and so does the request.
///
/// # Examples
///
/// See [`DelayBackoffMaker`].
#[derive(Clone, Debug)]
pub struct DelayBackoff<I> {
    runtime: Runtime,
    pauses: I,
    last: Duration,
}

impl<I: Iterator<Item = Duration>> Backoff for DelayBackoff<I> {
    type Future = Delay;

    fn next_backoff(&mut self) -> Delay {
        self.last = self.pauses.next().unwrap_or(self.last);
        Delay::on(&self.runtime, self.last)
    }
}
