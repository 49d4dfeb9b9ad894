//! Shared intervals: the same ticks for several receivers, with a period that any of them can
//! change while the others wait.
//!
//! Ground rules. A receiver is an [`Interval`] of its own, which follows the common schedule. The
//! schedule and the wakers of the waiting tasks are under one lock. A poll registers its waker and
//! reads the schedule in one section of that lock. A change writes the schedule and takes all
//! wakers out in one section as well. So a task that waits by an old schedule is woken: either its
//! section came first, and the change finds the waker, or it reads the new schedule. Wakers are
//! cloned, called and dropped without the lock. A change ends the places of all wakers that it has
//! taken: a place counts for the schedule under which it was given.

use std::future::poll_fn;
#[cfg(feature = "stream")]
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::interval::{Interval, IntervalTick, StopHandle};
use crate::queue::{MissedTicks, Period, Schedule, next_tick};
use crate::runtime::{RuntimeError, RuntimeHandle};
use crate::slab::Slab;
use crate::sync::{Arc, Mutex};
use crate::time::{Deadline, LAST, NEVER, Timestamp, later};
use crate::unwind::{catch_first, resume};

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
    common: Arc<Common>,
    interval: Interval,
    stop: StopHandle,
    /// The number of the schedule that `interval` follows.
    follows: u64,
    /// The number of a schedule, and the place of the waker under it.
    place: Option<(u64, u32)>,
}

/// What all receivers share.
struct Common {
    state: Mutex<State>,
    source: RuntimeHandle,
}

/// Under the lock.
struct State {
    /// The number of the schedule.
    number: u64,
    /// The due point of its first tick; [`NEVER`]: no tick comes.
    first: u64,
    /// In nanoseconds; [`NEVER`] if infinite.
    period: u64,
    /// The wakers of tasks that wait by this schedule.
    wakers: Slab<Waker>,
}

impl Common {
    /// Gives all receivers a new schedule.
    fn change(&self, schedule: impl FnOnce(&State) -> (u64, u64)) {
        let mut state = self.state.lock();
        (state.first, state.period) = schedule(&state);
        state.number += 1;
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        let mut first = None;
        wakers.take_each(&mut |waker| catch_first(&mut first, &self.source, || waker.wake()));
        resume(first, &self.source);
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
        let (first, period, source) = self.parts();
        let state = State { number: 0, first, period, wakers: Slab::new() };
        let common = Arc::new(Common { state: Mutex::new(state), source });
        SharedInterval { common, interval: self, stop, follows: 0, place: None }
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
        poll: impl FnOnce(&mut Interval, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.follow(context.waker());
        let polled = poll(&mut self.interval, context);
        if polled.is_ready() {
            self.withdraw();
        }
        polled
    }

    /// Takes over the common schedule, and has a change of it wake the task.
    fn follow(&mut self, waker: &Waker) {
        let mut fresh = None;
        loop {
            let mut state = self.common.state.lock();
            if self.follows != state.number {
                self.follows = state.number;
                self.interval.set_schedule(state.first, state.period);
            }
            let stored = self.place.filter(|&(number, _)| number == state.number);
            let stored = stored.and_then(|(_, place)| state.wakers.get_mut(place));
            let Some(fresh) = fresh.take() else {
                if stored.is_some_and(|stored| stored.will_wake(waker)) {
                    return;
                }
                drop(state);
                fresh = Some(waker.clone()); // user code: not under the lock
                continue;
            };
            let before = match stored {
                Some(stored) => Some(std::mem::replace(stored, fresh)),
                None => {
                    self.place = Some((state.number, state.wakers.insert(fresh)));
                    None
                }
            };
            drop(state);
            drop(before);
            return;
        }
    }

    /// No task waits any more.
    fn withdraw(&mut self) {
        let Some((number, place)) = self.place.take() else { return };
        let mut state = self.common.state.lock();
        let _after_the_lock = (state.number == number).then(|| state.wakers.take_out(place));
        drop(state);
    }

    /// The period of all receivers; `Duration::MAX` if the interval never ticks.
    pub fn period(&self) -> Duration {
        let period = self.common.state.lock().period;
        if period == NEVER { Duration::MAX } else { Duration::from_nanos(period) }
    }

    /// Changes the period, for all receivers, also for tasks that wait. The next tick is due a new
    /// period from now; a tick already due, but not taken, is lost. The call wakes the waiting
    /// tasks, on this thread; a panic of a waker surfaces here, after all were woken.
    ///
    /// A period of zero counts as one nanosecond; `Duration::MAX` never ticks.
    #[doc(alias = "change")]
    pub fn set_period(&self, period: Duration) {
        let period = super::interval::period_ns(period);
        let now = self.common.source.now();
        self.common.change(|_| (later(now, period), period));
    }

    /// Starts the interval again, for all receivers: the next tick is due a period from now; a tick
    /// already due, but not taken, is lost. Wakes tasks as [`set_period`](Self::set_period) does.
    pub fn reset(&self) {
        let now = self.common.source.now();
        self.common.change(|state| (later(now, state.period), state.period));
    }

    /// As [`reset`](Self::reset), with the next tick due at `next`.
    pub fn reset_at(&self, next: impl Into<Deadline>) {
        let next = self.common.source.deadline(next.into());
        self.common.change(|state| (if next > LAST { NEVER } else { next }, state.period));
    }

    /// The due point of the next tick of this receiver, in the past if a task can take the tick
    /// now. `None` if the interval never ticks.
    pub fn next_due(&self) -> Option<Timestamp> {
        let state = self.common.state.lock();
        if self.follows == state.number {
            return self.interval.next_due();
        }
        (state.first != NEVER).then(|| Timestamp::from_ns(state.first))
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
        let now = self.common.source.now();
        let state = self.common.state.lock();
        let schedule = Schedule { due: state.first, period: Period::from_ns(state.period) };
        let next = if state.first > now { state.first } else { next_tick(MissedTicks::Skip, schedule, now).next };
        let (number, period) = (state.number, state.period);
        drop(state);
        Self {
            common: Arc::clone(&self.common),
            interval: self.interval.receiver(next, period),
            stop: self.stop.clone(),
            follows: number,
            place: None,
        }
    }
}

impl Drop for SharedInterval {
    fn drop(&mut self) {
        self.withdraw();
    }
}

#[cfg(feature = "stream")]
#[cfg_attr(docsrs, doc(cfg(feature = "stream")))]
impl futures_core::Stream for SharedInterval {
    type Item = IntervalTick;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<IntervalTick>> {
        self.poll_tick(context)
    }
}

fused!([] FusedStream for SharedInterval, |this| futures_core::FusedStream::is_terminated(&this.interval));

shown!([] SharedInterval, |this| "period" => this.period(), "next_due" => this.next_due());

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/follow_vs_change.rs"]
mod loom_models;
