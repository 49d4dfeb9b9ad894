//! Shared intervals: the same ticks for several receivers, with a period that any of them can
//! change while the others wait.
//!
//! Ground rules. A receiver is an [`Interval`] of its own, which follows the common schedule. The
//! schedule is under a lock, and has a source of cancellation that means *replaced*. A change
//! writes the new schedule, with a new source, in one lock section, and then cancels the source of
//! the old one. A poll waits for that token before it waits for a tick. So a task that waits by an
//! old schedule is woken: cancelling a source wakes each task that waits for its token, or the task
//! finds the token cancelled, and takes the schedule that stands by then. Tokens are cancelled and
//! dropped without the lock.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::interval::{Interval, IntervalTick, StopHandle, period_ns, period_of};
use crate::cancellation::{CancellationTokenSource, CancelledOwned};
use crate::queue::{MissedTicks, Period, Schedule, next_tick};
use crate::runtime::{RuntimeError, RuntimeHandle};
use crate::sync::{Arc, Mutex};
use crate::time::{Deadline, Timestamp, later};

/// An interval with several receivers, whose period can be changed while a task waits. Made by
/// [`Interval::shared`].
///
/// Each clone is a receiver, and gets each tick once: ticks are not divided among the receivers. A
/// receiver that is late gets a tick with the number of [missed](IntervalTick::missed) ones, by the
/// interval's policy. A new clone begins with the next tick. With the feature `stream` a receiver
/// is a `futures_core::Stream` of ticks.
///
/// [`set_period`](Self::set_period), [`reset`](Self::reset) and [`stop`](Self::stop) act on all
/// receivers, from any thread, also while tasks wait. **Dropping** a receiver ends the receiver
/// alone, and leaves the queue at once. For the end of the runtime see [`Interval`].
///
/// # Examples
///
/// A poller that is sped up while it waits:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{Interval, ManualClock, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let mut ticks = Interval::on(&runtime, Duration::from_secs(3_600)).shared();
/// let control = ticks.clone();
/// let poller = async {
///     while let Some(tick) = ticks.tick().await {
///         println!("{tick:?}");
///     }
/// };
/// let operator = async {
///     control.set_period(Duration::from_secs(1)); // the poller waits already
///     timerqueue::Delay::on(&runtime, Duration::from_secs(10)).await;
///     control.stop();
/// };
/// clock.block_on(smol::future::zip(poller, operator));
/// assert_eq!(clock.now().as_duration(), Duration::from_secs(10));
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[must_use = "an interval does nothing until its ticks are taken"]
pub struct SharedInterval {
    common: Arc<Mutex<Common>>,
    interval: Interval,
    stop: StopHandle,
    /// Ready when the schedule that `interval` follows is replaced.
    replaced: CancelledOwned,
}

/// What all receivers share.
struct Common {
    /// The due point of the schedule's first tick.
    first: u64,
    /// As in [`Interval`].
    period: u64,
    /// Cancelled when this schedule is replaced.
    replaced: CancellationTokenSource,
}

impl Common {
    /// For a receiver that follows this schedule.
    fn replaced(&self) -> CancelledOwned {
        self.replaced.token().cancelled_owned()
    }
}

impl Interval {
    /// Lets several receivers have the ticks of this interval, and its period be changed while a
    /// task waits. See [`SharedInterval`].
    ///
    /// # Examples
    ///
    /// Two tasks, each with each tick:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Interval, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut first = Interval::on(&runtime, Duration::from_secs(1)).shared();
    /// let mut second = first.clone();
    /// let (a, b) = clock.block_on(smol::future::zip(first.tick(), second.tick()));
    /// assert!(a.is_some() && a == b);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias = "broadcast")]
    pub fn shared(mut self) -> SharedInterval {
        let stop = self.stop_handle();
        let source = CancellationTokenSource::of(self.delay.source().clone());
        let common = Common { first: self.delay.deadline().as_ns(), period: self.period, replaced: source };
        let replaced = common.replaced();
        SharedInterval { common: Arc::new(Mutex::new(common)), interval: self, stop, replaced }
    }
}

impl SharedInterval {
    /// Waits for the next tick of this receiver; `None` when the interval has been stopped.
    /// Dropping the future loses no tick.
    ///
    /// # Panics
    /// If the default runtime cannot be started; [`try_tick`](Self::try_tick) gives the reason as
    /// an error.
    pub async fn tick(&mut self) -> Option<IntervalTick> {
        poll_fn(|context| self.poll_tick(context)).await
    }

    /// Polls for [`tick`](Self::tick).
    ///
    /// # Panics
    /// As for [`tick`](Self::tick).
    pub fn poll_tick(&mut self, context: &mut Context<'_>) -> Poll<Option<IntervalTick>> {
        self.poll_with(context, Interval::poll_tick)
    }

    /// Waits for the next tick, or for the end of the runtime, which is an error. `None` when the
    /// interval has been stopped.
    ///
    /// # Errors
    /// As for [`Interval::try_tick`].
    pub async fn try_tick(&mut self) -> Result<Option<IntervalTick>, RuntimeError> {
        poll_fn(|context| self.poll_with(context, Interval::poll_try_tick)).await
    }

    fn poll_with<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: impl Fn(&mut Interval, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        loop {
            let Self { interval, replaced, .. } = self;
            if let Ok(polled) = ready!(replaced.or_poll(context, |context| poll(interval, context))) {
                return Poll::Ready(polled);
            }
            self.follow();
        }
    }

    /// Takes over the common schedule.
    fn follow(&mut self) {
        let common = self.common.lock();
        let (first, period, replaced) = (common.first, common.period, common.replaced());
        drop(common);
        self.interval.set_schedule(first, period);
        self.replaced = replaced;
    }

    /// Gives all receivers a new schedule.
    fn change(&self, schedule: impl FnOnce(&Common) -> (u64, u64)) {
        let fresh = CancellationTokenSource::of(self.source().clone());
        let mut common = self.common.lock();
        (common.first, common.period) = schedule(&common);
        let before = std::mem::replace(&mut common.replaced, fresh);
        drop(common);
        before.cancel();
    }

    fn source(&self) -> &RuntimeHandle {
        self.interval.delay.source()
    }

    /// The period of all receivers; `Duration::MAX` if the interval never ticks.
    pub fn period(&self) -> Duration {
        period_of(self.common.lock().period)
    }

    /// Changes the period, for all receivers, also for tasks that wait. The next tick is due a new
    /// period from now; a tick already due, but not taken, is lost. The call wakes the waiting
    /// tasks, on this thread; a panic of a waker surfaces here, after all were woken.
    ///
    /// A period of zero counts as one nanosecond; `Duration::MAX` never ticks.
    #[doc(alias = "change")]
    pub fn set_period(&self, period: Duration) {
        let (now, period) = (self.source().now(), period_ns(period));
        self.change(|_| (later(now, period), period));
    }

    /// Starts the interval again, for all receivers: the next tick is due a period from now; a tick
    /// already due, but not taken, is lost. Wakes tasks as [`set_period`](Self::set_period) does.
    pub fn reset(&self) {
        let now = self.source().now();
        self.change(|common| (later(now, common.period), common.period));
    }

    /// As [`reset`](Self::reset), with the next tick due at `next`.
    pub fn reset_at(&self, next: impl Into<Deadline>) {
        let next = self.source().deadline(next.into());
        self.change(|common| (next, common.period));
    }

    /// The due point of the next tick of this receiver, in the past if a task can take the tick
    /// now. `None` if the interval never ticks.
    pub fn next_due(&self) -> Option<Timestamp> {
        if !self.replaced.token().is_cancelled() {
            return self.interval.next_due();
        }
        Timestamp::shown(self.common.lock().first)
    }

    /// Ends the interval for all receivers, as [`StopHandle::stop`] does.
    #[doc(alias = "cancel")]
    pub fn stop(&self) {
        self.stop.stop();
    }
}

impl Clone for SharedInterval {
    /// A further receiver. It begins with the next tick.
    fn clone(&self) -> Self {
        let now = self.source().now();
        let common = self.common.lock();
        let (first, period, replaced) = (common.first, common.period, common.replaced());
        drop(common);
        let schedule = Schedule { due: first, period: Period::from_ns(period) };
        let next = if first > now { first } else { next_tick(MissedTicks::Skip, schedule, now).next };
        Self {
            common: Arc::clone(&self.common),
            interval: self.interval.receiver(next, period),
            stop: self.stop.clone(),
            replaced,
        }
    }
}

stream_of_ticks!(SharedInterval, |this| this.interval.ended, |tick| tick);

shown!([] SharedInterval, |this| "period" => this.period(), "next_due" => this.next_due());

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/follow_vs_change.rs"]
mod loom_models;
