//! `Interval`: a periodic timer to be awaited, .NET's `PeriodicTimer`.
//!
//! Ground rules. An interval is a delay and the arithmetic of [`crate::queue::missed_ticks`]; no timer fires while no task waits.
//! Ticks never overlap, since there is one consumer; ticks without a waiting task are counted, not queued.

use std::fmt;
use std::future::poll_fn;
#[cfg(feature = "stream")]
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use super::delay::Delay;
use crate::budget;
use crate::queue::{MissedTicks, Period, Schedule, next_tick};
use crate::runtime::RuntimeError;
use crate::runtime::{Runtime, RuntimeHandle};
use crate::sync::{Arc, Mutex};
use crate::time::Timestamp;
use crate::time::{NEVER, later};

/// One tick of an [`Interval`].
///
/// # Examples
///
/// What a tick knows of itself:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime};
///
/// # smol::block_on(async {
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let mut interval = runtime.interval(Duration::from_secs(10));
/// clock.advance(Duration::from_secs(35)); // no task waits for the ticks at 10, 20 and 30 s
/// let tick = interval.tick().await.unwrap();
/// assert_eq!(tick.scheduled().as_duration(), Duration::from_secs(10));
/// assert_eq!(tick.missed(), 2);
/// # Ok::<(), timerqueue::StartError>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IntervalTick {
    scheduled: Timestamp,
    missed: u64,
}

impl IntervalTick {
    /// When this tick was due.
    pub fn scheduled(&self) -> Timestamp {
        self.scheduled
    }

    /// Later ticks of the schedule that had passed when this one was taken, and are coalesced into it.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

impl Runtime {
    /// An [`Interval`] on this runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Runtime;
    ///
    /// # async fn example(runtime: &Runtime) {
    /// let mut interval = runtime.interval(Duration::from_millis(20));
    /// while let Some(tick) = interval.tick().await {
    ///     println!("{tick:?}");
    /// }
    /// # }
    /// ```
    pub fn interval(&self, period: Duration) -> Interval {
        Interval::on(self.handle(), period)
    }
}

/// Ticks at a fixed period, taken by `.await` (S39).
///
/// The first tick comes one period after the making of the interval, each later one a period after the instant at which the
/// one before was *due*: no drift. Ticks without a waiting task coalesce into one, which is there at once when a task asks,
/// and the next comes at its place on the original grid ([`MissedTicks::Skip`]; other policies by
/// [`missed_ticks`](Self::missed_ticks)). While no task waits, no timer fires.
///
/// Ends, with `None`, when a [`StopHandle`] says so. When the runtime has ended, time stands still for an interval: a tick stays
/// pending, and [`try_tick`](Self::try_tick) says why (S33). With the feature `stream` it is a
/// `futures_core::Stream` of ticks.
///
/// # Examples
///
/// A loop that ends when another thread stops the interval:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::Interval;
///
/// # smol::block_on(async {
/// let mut interval = Interval::new(Duration::from_millis(1));
/// let handle = interval.stop_handle();
/// let mut ticks = 0;
/// while let Some(tick) = interval.tick().await {
///     ticks += 1 + tick.missed();
///     if ticks >= 3 {
///         handle.stop(); // from here, or from anywhere else
///     }
/// }
/// # });
/// ```
#[doc(alias = "PeriodicTimer")]
pub struct Interval {
    delay: Delay,
    /// When the next tick is due; [`NEVER`] while the period is infinite.
    next: u64,
    /// [`NEVER`] for an infinite period.
    period: u64,
    policy: MissedTicks,
    stop: Option<Arc<Stop>>,
    ended: bool,
}

impl Interval {
    /// An interval on the default runtime. A period of zero counts as one nanosecond; `Duration::MAX` never ticks.
    ///
    /// # Examples
    ///
    /// Once a second, from now:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Interval;
    ///
    /// let interval = Interval::new(Duration::from_secs(1));
    /// assert_eq!(interval.period(), Duration::from_secs(1));
    /// ```
    pub fn new(period: Duration) -> Self {
        Self::on(RuntimeHandle::Global, period)
    }

    pub(crate) fn on(source: RuntimeHandle, period: Duration) -> Self {
        let period = whole_ns(period);
        let next = later(source.now(), period);
        let delay = Delay::on_until(source, next);
        Self { delay, next, period, policy: MissedTicks::Skip, stop: None, ended: false }
    }

    /// With another policy for ticks that were missed.
    ///
    /// # Examples
    ///
    /// Every missed tick, one after the other:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, MissedTicks, Runtime};
    ///
    /// # smol::block_on(async {
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut interval = runtime.interval(Duration::from_secs(1)).missed_ticks(MissedTicks::Burst);
    /// clock.advance(Duration::from_secs(3));
    /// for second in 1..=3 {
    ///     let tick = interval.tick().await.unwrap();
    ///     assert_eq!(tick.scheduled().as_duration(), Duration::from_secs(second));
    /// }
    /// # Ok::<(), timerqueue::StartError>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn missed_ticks(mut self, policy: MissedTicks) -> Self {
        self.policy = policy;
        self
    }

    /// The period; `Duration::MAX` if it never ticks.
    pub fn period(&self) -> Duration {
        if self.period == NEVER { Duration::MAX } else { Duration::from_nanos(self.period) }
    }

    /// Changes the period. The next tick comes one new period from now; one that is due but has not been taken is given up.
    ///
    /// # Examples
    ///
    /// From once a second to once in five:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut interval = runtime.interval(Duration::from_secs(1));
    /// interval.set_period(Duration::from_secs(5));
    /// assert_eq!(interval.next_due(), Some(clock.now() + Duration::from_secs(5)));
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn set_period(&mut self, period: Duration) {
        self.period = whole_ns(period);
        self.go_to(later(self.delay.source().now(), self.period));
    }

    /// When the next tick is due; in the past if it is there to be taken.
    pub fn next_due(&self) -> Option<Timestamp> {
        (self.next != NEVER).then(|| Timestamp::from_ns(self.next))
    }

    fn go_to(&mut self, next: u64) {
        self.next = next;
        self.delay.reset_to(next);
    }

    /// Waits for the next tick; `None` when the interval was stopped. Dropping the future loses no tick.
    ///
    /// # Panics
    /// If the default runtime cannot be started; [`try_tick`](Self::try_tick) gives the reason as an error.
    ///
    /// # Examples
    ///
    /// Ticks keep their grid, however long the work takes:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Interval;
    ///
    /// # smol::block_on(async {
    /// let period = Duration::from_millis(1);
    /// let mut interval = Interval::new(period);
    /// let first = interval.tick().await.unwrap();
    /// // ... work ...
    /// let second = interval.tick().await.unwrap();
    /// let passed_over = u32::try_from(first.missed()).unwrap();
    /// assert_eq!(second.scheduled() - first.scheduled(), period * (1 + passed_over));
    /// # });
    /// ```
    pub async fn tick(&mut self) -> Option<IntervalTick> {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// [`tick`](Self::tick), polled.
    ///
    /// # Panics
    /// As there.
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Option<IntervalTick>> {
        match ready!(self.poll_next_tick(context)) {
            Ok(tick) => Poll::Ready(tick),
            Err(error) => error.stands_still(),
        }
    }

    /// Waits for the next tick, and also for the end of the runtime, which is an error. `None` when the interval was stopped.
    ///
    /// # Errors
    /// [`RuntimeError::Ended`] when the runtime ends first, or has ended; [`RuntimeError::NotStarted`] when the default runtime
    /// cannot be started, and a later call tries again.
    ///
    /// # Examples
    ///
    /// A loop that ends with its runtime:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Runtime;
    ///
    /// # smol::block_on(async {
    /// let runtime = Runtime::builder().workers(2).start().unwrap();
    /// let mut interval = runtime.interval(Duration::from_millis(1));
    /// let closer = std::thread::spawn(move || runtime.shutdown(Duration::from_secs(5)));
    /// while let Ok(Some(tick)) = interval.try_tick().await {
    ///     println!("{tick:?}");
    /// }
    /// # closer.join().unwrap().unwrap();
    /// # });
    /// ```
    pub async fn try_tick(&mut self) -> Result<Option<IntervalTick>, RuntimeError> {
        poll_fn(|context| self.poll_try_tick(context)).await
    }

    /// [`try_tick`](Self::try_tick), polled.
    ///
    /// # Errors
    /// As there.
    pub fn poll_try_tick(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<IntervalTick>, RuntimeError>> {
        let next = ready!(self.poll_next_tick(context));
        if next.is_err() {
            self.waits_no_more();
        }
        Poll::Ready(next)
    }

    /// The next tick. After an error, the task is still woken by a stop.
    fn poll_next_tick(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<IntervalTick>, RuntimeError>> {
        if self.ended {
            ready!(budget::spend(context));
            return Poll::Ready(Ok(None));
        }
        if self.stop.as_ref().is_some_and(|stop| stop.stopped(context.waker())) {
            self.ended = true;
            self.delay.withdraw();
            return Poll::Ready(Ok(None));
        }
        if let Err(error) = ready!(self.delay.poll_try_wait(context)) {
            return Poll::Ready(Err(error));
        }
        self.waits_no_more();
        let scheduled = self.next;
        let now = self.delay.source().now().max(scheduled);
        let schedule = Schedule { due: scheduled, period: Period::from_ns(self.period) };
        let taken = next_tick(self.policy, schedule, now);
        self.go_to(taken.next);
        Poll::Ready(Ok(Some(IntervalTick { scheduled: Timestamp::from_ns(scheduled), missed: taken.missed })))
    }

    /// A stop has no task to wake.
    fn waits_no_more(&self) {
        if let Some(stop) = &self.stop {
            let waker = stop.state.lock().waker.take();
            drop(waker);
        }
    }

    /// A handle that ends this interval from anywhere. Dropping it ends nothing.
    ///
    /// A task that waits for a tick already is woken once, so that it waits for the handle as well. (On a runtime that has ended
    /// such a task is woken by handles that were there before it waited.)
    ///
    /// # Examples
    ///
    /// Stopped by another thread while a task waits:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Interval;
    ///
    /// # smol::block_on(async {
    /// let mut interval = Interval::new(Duration::from_secs(3600));
    /// let handle = interval.stop_handle();
    /// std::thread::spawn(move || handle.stop());
    /// assert_eq!(interval.tick().await, None);
    /// # });
    /// ```
    pub fn stop_handle(&mut self) -> StopHandle {
        if let Some(stop) = &self.stop {
            return StopHandle { stop: Arc::clone(stop) };
        }
        let stop = Arc::new(Stop { state: Mutex::new(StopState::default()) });
        self.stop = Some(Arc::clone(&stop));
        self.delay.wake_task();
        StopHandle { stop }
    }
}

/// A period as the policy arithmetic wants it: at least a nanosecond, [`NEVER`] if it does not fit.
fn whole_ns(period: Duration) -> u64 {
    u64::try_from(period.as_nanos()).unwrap_or(NEVER).max(1)
}

#[cfg(feature = "stream")]
impl futures_core::Stream for Interval {
    type Item = IntervalTick;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<IntervalTick>> {
        self.poll_tick(context)
    }
}

/// Handles may live on: none of them keeps a task's waker, nor wakes it.
impl Drop for Interval {
    fn drop(&mut self) {
        self.waits_no_more();
    }
}

impl fmt::Debug for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interval")
            .field("period", &self.period())
            .field("next_due", &self.next_due())
            .finish_non_exhaustive()
    }
}

/// Ends an [`Interval`], from any thread. Clones end the same one.
///
/// # Examples
///
/// Stopping comes before a tick that is there already:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, StopHandle};
///
/// # smol::block_on(async {
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let mut interval = runtime.interval(Duration::from_secs(1));
/// let handle: StopHandle = interval.stop_handle();
/// clock.advance(Duration::from_secs(1));
/// handle.stop();
/// assert_eq!(interval.tick().await, None);
/// # Ok::<(), timerqueue::StartError>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct StopHandle {
    stop: Arc<Stop>,
}

struct Stop {
    state: Mutex<StopState>,
}

#[derive(Default)]
struct StopState {
    stopped: bool,
    waker: Option<Waker>,
}

impl Stop {
    /// Whether it was stopped; if not, `waker` is woken when it is.
    fn stopped(&self, waker: &Waker) -> bool {
        let clone = waker.clone();
        let mut state = self.state.lock();
        let stopped = state.stopped;
        let old = if stopped { Some(clone) } else { state.waker.replace(clone) };
        drop(state);
        drop(old);
        stopped
    }
}

impl StopHandle {
    /// The interval ends: the pending tick, or the next one asked for, is `None`. A task that waits is woken on this thread.
    pub fn stop(&self) {
        let waker = {
            let mut state = self.stop.state.lock();
            state.stopped = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl fmt::Debug for StopHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StopHandle").finish_non_exhaustive()
    }
}
