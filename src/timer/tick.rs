//! The tick passed to a callback, and the outcome of a change.

use std::fmt;
use std::time::Duration;

use super::TimerSnapshot;
pub use crate::engine::Changed;
use crate::engine::{self, EntryPayload, EntryRef, Exclusive, Firing, Once, Overlapping};
use crate::time::Timestamp;

/// The tick for which a callback runs, passed to the callback. Also lets the callback change or
/// dispose its own timer.
///
/// # Examples
///
/// A timer that stops itself:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, TimerBuilder};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let mut left = 3;
/// let timer =
///     TimerBuilder::on(&runtime).period(Duration::from_secs(1)).start_exclusive(move |tick| {
///         assert_eq!(tick.lateness(), Duration::ZERO);
///         left -= 1;
///         if left == 0 {
///             tick.dispose();
///         }
///     });
/// assert_eq!(clock.advance(Duration::from_secs(60)), 3);
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
pub struct Tick<'a> {
    pub(super) firing: &'a Firing,
}

/// A callback that may run several times at once.
#[inline]
pub(crate) fn overlapping(callback: impl Fn(&Tick<'_>) + Send + Sync + 'static) -> impl EntryPayload {
    Overlapping(move |firing: &Firing| callback(&Tick { firing }))
}

/// A callback that runs once at a time.
#[inline]
pub(crate) fn exclusive(mut callback: impl FnMut(&Tick<'_>) + Send + 'static) -> impl EntryPayload {
    Exclusive::<_, false>(move |firing: &Firing| callback(&Tick { firing }))
}

/// A callback that is consumed by its call.
#[inline]
pub(super) fn once(callback: impl FnOnce(&Tick<'_>) + Send + 'static) -> impl EntryPayload {
    Once(move |firing: &Firing| callback(&Tick { firing }))
}

impl Tick<'_> {
    /// The due point of this tick. The callback never starts before its due point.
    pub fn scheduled(&self) -> Timestamp {
        Timestamp::from_ns(self.firing.scheduled)
    }

    /// Reads the clock of the timer's runtime.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_ns(self.firing.entry.shard().clock.now())
    }

    /// The time since the tick was due. Reads the clock: at the top of a callback, this is the
    /// lateness of the callback.
    pub fn lateness(&self) -> Duration {
        self.now() - self.scheduled()
    }

    /// The number of missed ticks: later ticks of the schedule that had passed already when a
    /// thread took up this tick, and that never run. The timer's policy decides: see
    /// [`MissedTicks`](crate::MissedTicks).
    pub fn missed(&self) -> u64 {
        self.firing.missed
    }

    /// The state of the callback's own timer now, such as the due point of its next tick; see
    /// [`Timer::snapshot`](crate::Timer::snapshot).
    #[must_use]
    pub fn snapshot(&self) -> TimerSnapshot {
        TimerSnapshot::of(&self.firing.entry)
    }

    /// Changes the callback's own timer; see [`Timer::change`](crate::Timer::change). For a
    /// [`OnceTimer`](crate::OnceTimer) the call is too late: [`Changed::Ended`].
    #[doc(alias = "reset")]
    pub fn change(&self, due: Duration, period: Duration) -> Changed {
        engine::change(&self.firing.entry, due, period)
    }

    /// Stops the callback's own timer, which can be started again; see
    /// [`Timer::stop`](crate::Timer::stop).
    #[doc(alias = "pause")]
    pub fn stop(&self) -> Changed {
        engine::restart(&self.firing.entry, Duration::MAX)
    }

    /// Starts the callback's own timer again; see [`Timer::reset`](crate::Timer::reset).
    ///
    /// # Examples
    ///
    /// A fixed delay after each run, however long the run takes:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timer};
    ///
    /// const SECOND: Duration = Duration::from_secs(1);
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let work = clock.clone();
    /// let _timer = Timer::on(&runtime, 5 * SECOND, Duration::MAX, move |tick| {
    ///     work.stall(2 * SECOND);
    ///     tick.reset(5 * SECOND);
    /// });
    /// assert_eq!(clock.advance(21 * SECOND), 3); // at 5 s, 12 s and 19 s
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias = "scheduleWithFixedDelay")]
    #[doc(alias = "restart")]
    pub fn reset(&self, due: Duration) -> Changed {
        engine::restart(&self.firing.entry, due)
    }

    /// The identity of the timer: the same as [`Timer::id`](crate::Timer::id).
    ///
    /// # Examples
    ///
    /// The same callback for several timers:
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, OnceTimer, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let (send, receive) = mpsc::channel();
    /// let timers = [2, 1].map(|seconds| {
    ///     let send = send.clone();
    ///     OnceTimer::on(&runtime, Duration::from_secs(seconds), move |tick| {
    ///         send.send(tick.timer_id()).unwrap()
    ///     })
    /// });
    /// clock.advance(Duration::from_secs(2));
    /// assert_eq!(receive.try_iter().collect::<Vec<_>>(), [timers[1].id(), timers[0].id()]);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn timer_id(&self) -> TimerId {
        TimerId::of(&self.firing.entry)
    }

    /// Disposes the callback's own timer; see [`Timer::dispose`](crate::Timer::dispose). The values
    /// owned by the callback are dropped after the callback has returned.
    #[doc(alias("stop", "cancel"))]
    pub fn dispose(&self) {
        engine::dispose(&self.firing.entry);
    }
}

shown!([] Tick [<'_>], |this|
    "timer_id" => this.timer_id(), "scheduled" => format_args!("{}", this.scheduled()), "missed" => this.firing.missed
);

/// The identity of a timer. No two timers of a process that exist at the same time have the same.
/// After a timer is gone, with its handle, a later timer may get its identity.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, TimerBuilder};
///
/// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
/// let [one, other] = [(); 2].map(|()| {
///     TimerBuilder::on(&runtime).period(Duration::from_secs(1)).start_exclusive(|_| {})
/// });
/// assert!(one.id() == one.id() && one.id() != other.id());
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerId(usize);

impl TimerId {
    pub(super) fn of(entry: &EntryRef) -> Self {
        Self(entry.address().addr())
    }
}

impl fmt::Debug for TimerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TimerId({:x})", self.0)
    }
}
