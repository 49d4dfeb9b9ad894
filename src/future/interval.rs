//! Intervals: periodic ticks taken by `.await`, as .NET's `PeriodicTimer`.
//!
//! Ground rules. An interval is a delay with the arithmetic of [`crate::queue::missed_ticks`].
//! While no task waits, no timer fires. Ticks never overlap, since an interval has a single
//! consumer; ticks without a waiting task are counted, not queued.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::delay::Delay;
use crate::budget;
use crate::cancellation::{CancellationToken, CancellationTokenSource, Cancelled, CancelledOwned};
use crate::queue::{MissedTicks, Period, Schedule, next_tick};
use crate::runtime::wait::wait_until;
use crate::runtime::{Runtime, RuntimeError, RuntimeHandle};
use crate::time::{Deadline, NEVER, Timestamp, later, whole_ns};

/// A tick of an [`Interval`].
///
/// # Examples
///
/// The due point of a tick, and the ticks missed since:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{Interval, ManualClock, Runtime};
///
/// # smol::block_on(async {
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let mut interval = Interval::on(&runtime, Duration::from_secs(10));
/// clock.advance(Duration::from_secs(35)); // no task waits for the ticks at 10, 20 and 30 s
/// let tick = interval.tick().await.unwrap();
/// assert_eq!(tick.scheduled().as_duration(), Duration::from_secs(10));
/// assert_eq!(tick.missed(), 2);
/// # Ok::<(), timerqueue::error::StartError>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IntervalTick {
    scheduled: Timestamp,
    missed: u64,
}

impl IntervalTick {
    /// The due point of this tick.
    pub fn scheduled(&self) -> Timestamp {
        self.scheduled
    }

    /// The number of missed ticks: later ticks of the schedule, passed when the task took this
    /// tick, and coalesced into it.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

/// Periodic ticks, taken by `.await`.
///
/// The first tick is due a period after the making of the interval. Each later tick is due a period
/// after the due point of the previous tick: no drift. Ticks due while no task waits coalesce into
/// a single tick, which the next call takes at once. The following tick comes at its point of the
/// original grid ([`MissedTicks::Skip`]; [`missed_ticks`](Self::missed_ticks) sets a different
/// policy). While no task waits, no timer fires.
///
/// An interval ends, with `None`, when its [`StopHandle`] stops the interval. When the runtime has
/// ended, time stands still for an interval: a tick stays pending, and [`try_tick`](Self::try_tick)
/// returns the reason. **Dropping** an interval removes the interval from its queue at once. With
/// the feature `stream` an interval is a `futures_core::Stream` of ticks.
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
#[doc(alias("PeriodicTimer", "setInterval", "Ticker"))]
#[must_use = "an interval does nothing until its ticks are taken"]
pub struct Interval {
    /// Its deadline is the due point of the next tick.
    pub(super) delay: Delay,
    /// [`NEVER`] for an infinite period.
    pub(super) period: u64,
    policy: MissedTicks,
    /// A token that a stop handle cancels, and the wait of this interval for it.
    stop: Option<(StopHandle, CancelledOwned)>,
    pub(super) ended: bool,
}

impl Interval {
    /// An interval on the [current runtime](Runtime::current). A period of zero counts as one
    /// nanosecond; `Duration::MAX` never ticks.
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
    #[doc(alias("setInterval", "NewTicker"))]
    #[track_caller]
    pub fn new(period: Duration) -> Self {
        Self::every(RuntimeHandle::current(), period)
    }

    /// As [`new`](Self::new), on a runtime of the caller's choice.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Interval, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut interval = Interval::on(&runtime, Duration::from_millis(20));
    /// let tick = clock.block_on(interval.tick()).unwrap();
    /// assert_eq!(tick.scheduled().as_duration(), Duration::from_millis(20));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias = "setInterval")]
    pub fn on(runtime: &Runtime, period: Duration) -> Self {
        Self::every(runtime.handle(), period)
    }

    pub(crate) fn every(source: RuntimeHandle, period: Duration) -> Self {
        let next = later(source.now(), period_ns(period));
        Self::from(source, next, period)
    }

    fn from(source: RuntimeHandle, next: u64, period: Duration) -> Self {
        let (delay, period) = (Delay::at(source, next), period_ns(period));
        Self { delay, period, policy: MissedTicks::Skip, stop: None, ended: false }
    }

    /// An interval on the [current runtime](Runtime::current) whose first tick is due at `first`, a
    /// [`Timestamp`] of the runtime's clock or a `std::time::Instant`. If `first` has passed, the
    /// first tick is due at once.
    ///
    /// # Examples
    ///
    /// The first tick at once, then once an hour:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Interval, Timestamp};
    ///
    /// # smol::block_on(async {
    /// let mut interval = Interval::at(Timestamp::now(), Duration::from_secs(3600));
    /// let first = interval.tick().await.unwrap();
    /// assert_eq!(interval.next_due(), Some(first.scheduled() + Duration::from_secs(3600)));
    /// # });
    /// ```
    #[doc(alias = "interval_at")]
    #[track_caller]
    pub fn at(first: impl Into<Deadline>, period: Duration) -> Self {
        let source = RuntimeHandle::current();
        let first = source.deadline(first.into());
        Self::from(source, first, period)
    }

    /// Lets a waiting task be woken up to `leeway` after a tick is due, so that intervals, delays
    /// and timers share wake-ups; see [`TimerBuilder::leeway`](crate::TimerBuilder::leeway).
    /// Default: zero. Ticks are counted from their exact due points.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Interval, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut interval =
    ///     Interval::on(&runtime, Duration::from_micros(3_100)).leeway(Duration::from_millis(1));
    /// let tick = clock.block_on(interval.tick()).unwrap();
    /// assert_eq!(tick.scheduled().as_duration(), Duration::from_micros(3_100));
    /// assert_eq!(clock.now().as_duration(), Duration::from_millis(4));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("slack", "tolerance"))]
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.delay.set_leeway(leeway);
        self
    }

    /// Starts the interval again: the next tick is due a period from now; a tick already due, but
    /// not taken, is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Interval, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut interval = Interval::on(&runtime, Duration::from_secs(10));
    /// clock.advance(Duration::from_secs(9));
    /// interval.reset();
    /// assert_eq!(interval.next_due(), Some(clock.now() + Duration::from_secs(10)));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn reset(&mut self) {
        self.delay.reset_to(later(self.delay.source().now(), self.period));
    }

    /// Starts the interval again: the next tick is due at `next`, and later ticks follow by the
    /// period. A tick already due, but not taken, is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Interval, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut interval = Interval::on(&runtime, Duration::from_secs(10));
    /// interval.reset_at(clock.now()); // at once
    /// assert_eq!(interval.next_due(), Some(clock.now()));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn reset_at(&mut self, next: impl Into<Deadline>) {
        self.delay.reset_at(next);
    }

    /// Sets the policy for missed ticks. Default: [`MissedTicks::Skip`]. (A callback timer has a
    /// different default: see [`TimerBuilder::missed_ticks`](crate::TimerBuilder::missed_ticks).)
    ///
    /// # Examples
    ///
    /// Every missed tick, in order:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Interval, ManualClock, MissedTicks, Runtime};
    ///
    /// # smol::block_on(async {
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut interval =
    ///     Interval::on(&runtime, Duration::from_secs(1)).missed_ticks(MissedTicks::Burst);
    /// clock.advance(Duration::from_secs(3));
    /// for second in 1..=3 {
    ///     let tick = interval.tick().await.unwrap();
    ///     assert_eq!(tick.scheduled().as_duration(), Duration::from_secs(second));
    /// }
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// # }).unwrap();
    /// ```
    #[doc(alias = "MissedTickBehavior")]
    pub fn missed_ticks(mut self, policy: MissedTicks) -> Self {
        self.policy = policy;
        self
    }

    /// The period; `Duration::MAX` if the interval never ticks.
    pub fn period(&self) -> Duration {
        period_of(self.period)
    }

    /// Changes the period. (While a task waits:
    /// [`SharedInterval::set_period`](crate::SharedInterval::set_period).) The next tick is due a new period from now; a tick already due, but not
    /// taken, is lost.
    ///
    /// # Examples
    ///
    /// From a period of a second to a period of five:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Interval, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut interval = Interval::on(&runtime, Duration::from_secs(1));
    /// interval.set_period(Duration::from_secs(5));
    /// assert_eq!(interval.next_due(), Some(clock.now() + Duration::from_secs(5)));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("reset", "change"))]
    pub fn set_period(&mut self, period: Duration) {
        let period = period_ns(period);
        self.set_schedule(later(self.delay.source().now(), period), period);
    }

    /// The due point of the next tick, in the past if a task can take the tick now. `None` if the
    /// interval never ticks.
    pub fn next_due(&self) -> Option<Timestamp> {
        Timestamp::shown(self.delay.deadline().as_ns())
    }

    /// Another interval with this policy, leeway and stop handle.
    pub(super) fn receiver(&self, next: u64, period: u64) -> Self {
        let stop = self.stop.as_ref().map(|(handle, _)| (handle.clone(), handle.source.token().cancelled_owned()));
        Self { delay: self.delay.like(next), period, policy: self.policy, stop, ended: self.ended }
    }

    pub(super) fn set_schedule(&mut self, next: u64, period: u64) {
        self.period = period;
        self.delay.reset_to(next);
    }

    /// Waits for the next tick; `None` when the interval has been stopped. Dropping the future
    /// loses no tick.
    ///
    /// # Panics
    /// If the default runtime cannot be started; [`try_tick`](Self::try_tick) gives the reason as
    /// an error.
    ///
    /// # Examples
    ///
    /// Ticks keep to their grid, also if the work takes long:
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
    #[doc(alias = "WaitForNextTickAsync")]
    pub async fn tick(&mut self) -> Option<IntervalTick> {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// Polls for [`tick`](Self::tick).
    ///
    /// # Panics
    /// As for [`tick`](Self::tick).
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Option<IntervalTick>> {
        // After an error, time stands still, and a stop still wakes the task.
        let wait =
            |delay: &mut Delay, context: &mut Context<'_>| Pin::new(delay).poll(context).map(Ok::<_, Infallible>);
        let Ok(tick) = ready!(self.poll_next(context, wait));
        Poll::Ready(tick)
    }

    /// Waits for the next tick, or for the end of the runtime, which is an error. `None` when the
    /// interval has been stopped.
    ///
    /// # Errors
    /// [`RuntimeError::Ended`] when the runtime has ended before the tick.
    /// [`RuntimeError::NotStarted`] when the default runtime cannot be started; a later call tries
    /// again.
    ///
    /// # Examples
    ///
    /// A loop that ends with its runtime:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Interval, Runtime};
    ///
    /// # smol::block_on(async {
    /// let runtime = Runtime::builder().workers(2).start().unwrap();
    /// let mut interval = Interval::on(&runtime, Duration::from_millis(1));
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

    /// Polls for [`try_tick`](Self::try_tick).
    ///
    /// # Errors
    /// As for [`try_tick`](Self::try_tick).
    pub fn poll_try_tick(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<IntervalTick>, RuntimeError>> {
        self.poll_next(context, Delay::poll_try_wait)
    }

    /// Waits for the next tick, and blocks the thread meanwhile; `None` when the interval has been
    /// stopped, or its runtime has ended. For a loop on a thread of its own, as of a controller; a
    /// task awaits [`tick`](Self::tick).
    ///
    /// **Threads.** On a clock of the system the thread keeps the time itself: no other thread has
    /// a part in a tick, and the default runtime is not started for it. So the tick is as late as a
    /// timed wait of this thread, as its priority and its timer slack have it: usually by less than
    /// 100 us, and never early. The [leeway](Self::leeway) has no meaning.
    ///
    /// **On virtual time** the call moves the [`ManualClock`](crate::ManualClock) of the [current
    /// runtime](Runtime::current), as [`block_on`](crate::ManualClock::block_on); without such a
    /// current runtime it waits until another thread moves the clock.
    ///
    /// # Panics
    /// On a manual clock as [`ManualClock::block_on`](crate::ManualClock::block_on).
    ///
    /// # Examples
    ///
    /// A loop of 200 Hz, tested on virtual time:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Interval, ManualClock, Runtime};
    ///
    /// fn control(mut step: impl FnMut(u64) -> bool) {
    ///     let mut interval = Interval::new(Duration::from_millis(5));
    ///     while let Some(tick) = interval.blocking_tick() {
    ///         if !step(1 + tick.missed()) {
    ///             break;
    ///         }
    ///     }
    /// }
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut steps = 0;
    /// runtime.enter(|| {
    ///     control(|passed| {
    ///         steps += passed;
    ///         steps < 200
    ///     });
    /// });
    /// assert_eq!(clock.now().as_duration(), Duration::from_secs(1));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("wait", "recv"))]
    pub fn blocking_tick(&mut self) -> Option<IntervalTick> {
        let source = self.delay.source().clone();
        let look = |delay: &mut Delay, _: &mut Context<'_>| match delay.is_elapsed() {
            true => Poll::Ready(Ok::<_, Infallible>(())),
            false => Poll::Pending,
        };
        let ticked =
            wait_until(&source, self.delay.deadline().as_ns(), poll_fn(|context| self.poll_next(context, look)));
        let Ok(Ok(tick)) = ticked else { return None }; // the runtime has ended
        tick
    }

    /// Polls for the next tick, with this poll of the delay. Once that is ready, no task waits for
    /// a stop any more.
    fn poll_next<E>(
        &mut self,
        context: &mut Context<'_>,
        wait: impl FnOnce(&mut Delay, &mut Context<'_>) -> Poll<Result<(), E>>,
    ) -> Poll<Result<Option<IntervalTick>, E>> {
        if self.ended {
            ready!(budget::spend(context));
            return Poll::Ready(Ok(None));
        }
        let Self { delay, stop, .. } = self;
        let waited = match stop {
            Some((_, stopped)) => ready!(stopped.or_poll(context, |context| wait(delay, context))),
            None => Ok(ready!(wait(delay, context))),
        };
        match waited {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Poll::Ready(Err(error)),
            Err(_stopped) => {
                self.ended = true;
                self.delay.withdraw();
                return Poll::Ready(Ok(None));
            }
        }
        let scheduled = self.delay.deadline();
        let due = scheduled.as_ns();
        let now = self.delay.source().now().max(due);
        let taken = next_tick(self.policy, Schedule { due, period: Period::from_ns(self.period) }, now);
        self.delay.reset_to(taken.next);
        Poll::Ready(Ok(Some(IntervalTick { scheduled, missed: taken.missed })))
    }

    /// No task waits any more: the interval leaves its queue until the next poll.
    pub(crate) fn withdraw(&mut self) {
        self.delay.withdraw();
        if let Some((_, stopped)) = &mut self.stop {
            stopped.withdraw();
        }
    }

    /// A handle that ends this interval, from any thread. **Dropping** the handle ends nothing.
    ///
    /// A task already waiting for a tick is woken once, so that the task also waits for the stop.
    /// (On a runtime that has ended, only handles made before the task waited can wake the task.)
    ///
    /// # Examples
    ///
    /// An interval stopped by another thread while a task waits:
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
    #[doc(alias("cancel", "clearInterval"))]
    pub fn stop_handle(&mut self) -> StopHandle {
        if let Some((handle, _)) = &self.stop {
            return handle.clone();
        }
        let handle = StopHandle { source: CancellationTokenSource::of(self.delay.source().clone()) };
        self.stop = Some((handle.clone(), handle.source.token().cancelled_owned()));
        self.delay.wake_task();
        handle
    }

    /// Takes ticks until `token` is cancelled; see [`CancellableInterval`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationToken, Interval};
    ///
    /// # smol::block_on(async {
    /// let mut ticks = Interval::new(Duration::from_secs(3600))
    ///     .with_token(&CancellationToken::new_cancelled());
    /// assert!(ticks.tick().await.is_err());
    /// # });
    /// ```
    pub fn with_token(self, token: &CancellationToken) -> CancellableInterval {
        CancellableInterval { interval: self, cancelled: token.cancelled_owned() }
    }
}

/// The period in nanoseconds, for the arithmetic of the policies: at least 1, and [`NEVER`] if too
/// long for the clock.
pub(super) fn period_ns(period: Duration) -> u64 {
    whole_ns(period).max(1)
}

/// The reverse of [`period_ns`].
pub(super) fn period_of(ns: u64) -> Duration {
    if ns == NEVER { Duration::MAX } else { Duration::from_nanos(ns) }
}

stream_of_ticks!(Interval, |this| this.ended, |tick| tick);

shown!([] Interval, |this|
    "period" => this.period(), "next_due" => format_args!("{}", this.delay.deadline()), "ended" => this.ended
);

/// Ends an [`Interval`], from any thread. Made by [`Interval::stop_handle`]. Clones end the same
/// interval; **dropping** a handle ends nothing.
///
/// # Examples
///
/// A stop counts before a tick already due:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{Interval, ManualClock, Runtime, StopHandle};
///
/// # smol::block_on(async {
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let mut interval = Interval::on(&runtime, Duration::from_secs(1));
/// let handle: StopHandle = interval.stop_handle();
/// clock.advance(Duration::from_secs(1));
/// handle.stop();
/// assert_eq!(interval.tick().await, None);
/// # Ok::<(), timerqueue::error::StartError>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct StopHandle {
    source: CancellationTokenSource,
}

impl StopHandle {
    /// Ends the interval: the pending tick, or the next tick, is `None`. The call wakes a waiting
    /// task, on this thread; a panic of its waker surfaces here.
    #[doc(alias("cancel", "clearInterval"))]
    pub fn stop(&self) {
        self.source.cancel();
    }
}

shown!([] StopHandle, |this| "stopped" => this.source.is_cancelled());

/// An interval with a token. Made by [`Interval::with_token`].
///
/// Each call waits for the next tick, or for the cancellation of the token, the first to come. If a
/// poll finds both, the cancellation counts: so a task that is late with its ticks learns of the
/// cancellation at once. **Dropping** removes interval and waker from their lists at once. With the
/// feature `stream` it is a `futures_core::Stream` of ticks, which ends at the cancellation.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{CancelReason, CancellationTokenSource, Interval};
///
/// # smol::block_on(async {
/// let source = CancellationTokenSource::after(Duration::from_millis(5));
/// let mut ticks = Interval::new(Duration::from_millis(1)).with_token(&source.token());
/// let cancelled = loop {
///     match ticks.tick().await {
///         Ok(Some(tick)) => println!("{tick:?}"),
///         Ok(None) => unreachable!("no stop handle"),
///         Err(cancelled) => break cancelled,
///     }
/// };
/// assert_eq!(cancelled.reason(), CancelReason::Timeout);
/// # });
/// ```
#[derive(Debug)]
#[must_use = "an interval does nothing until its ticks are taken"]
pub struct CancellableInterval {
    interval: Interval,
    cancelled: CancelledOwned,
}

impl CancellableInterval {
    /// Waits for the next tick. `Ok(None)` when a [`StopHandle`](crate::StopHandle) has stopped the
    /// interval. Dropping the future loses no tick.
    ///
    /// # Errors
    /// [`Cancelled`], when the token is cancelled.
    ///
    /// # Panics
    /// If the default runtime cannot be started.
    pub async fn tick(&mut self) -> Result<Option<IntervalTick>, Cancelled> {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// Polls for [`tick`](Self::tick).
    ///
    /// # Errors
    /// As for [`tick`](Self::tick).
    ///
    /// # Panics
    /// As for [`tick`](Self::tick).
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<IntervalTick>, Cancelled>> {
        let first = ready!(self.cancelled.or_poll(context, |context| self.interval.poll_tick(context)));
        if first.is_err() {
            self.interval.withdraw();
        }
        Poll::Ready(first)
    }

    /// The interval: to change its period, to start it again, or for a stop handle.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationToken, Interval};
    ///
    /// let mut ticks =
    ///     Interval::new(Duration::from_secs(1)).with_token(&CancellationToken::none());
    /// ticks.interval_mut().set_period(Duration::from_secs(5));
    /// assert_eq!(ticks.interval_mut().period(), Duration::from_secs(5));
    /// ```
    pub fn interval_mut(&mut self) -> &mut Interval {
        &mut self.interval
    }

    /// Returns the interval, without the token.
    pub fn into_inner(self) -> Interval {
        self.interval
    }
}

stream_of_ticks!(CancellableInterval, |this| this.cancelled.has_returned() || this.interval.ended, |tick| tick
    .ok()
    .flatten());
