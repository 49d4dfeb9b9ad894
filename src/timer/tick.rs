//! What a callback learns of its firing, and what a change did.

use std::fmt;
use std::time::Duration;

use crate::engine::{self, Firing, Rescheduled};
use crate::time::Timestamp;

/// What a callback learns about the tick that it runs for, and its hold on its own timer (S11, S13).
///
/// # Examples
///
/// A timer that stops itself:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let mut left = 3;
/// let timer = runtime.exclusive_timer(Duration::from_secs(1), Duration::from_secs(1), move |tick| {
///     assert_eq!(tick.lateness(), Duration::ZERO);
///     left -= 1;
///     if left == 0 {
///         tick.dispose();
///     }
/// });
/// assert_eq!(clock.advance(Duration::from_secs(60)), 3);
/// # drop(timer);
/// # Ok::<(), timerqueue::StartError>(())
/// ```
pub struct Tick<'a> {
    pub(super) firing: &'a Firing<'a>,
}

impl Tick<'_> {
    /// The instant this tick was due. The callback never starts before it (S5).
    pub fn scheduled(&self) -> Timestamp {
        Timestamp::from_ns(self.firing.scheduled)
    }

    /// The clock of the timer's runtime, read now.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_ns(self.firing.entry.shard().clock.now())
    }

    /// How long ago the tick was due. Reads the clock; at the top of a callback it is how late the callback started.
    pub fn lateness(&self) -> Duration {
        self.now() - self.scheduled()
    }

    /// How many later ticks of the schedule had passed already when this one was taken up, and will never run.
    /// What happens to those is the timer's [`MissedTicks`](crate::MissedTicks) policy (S8).
    pub fn missed(&self) -> u64 {
        self.firing.missed
    }

    /// Changes the timer this callback belongs to; see [`Timer::change`](crate::Timer::change). For a [`OnceTimer`](crate::OnceTimer) it is too late: `Ended`.
    pub fn change(&self, due: Duration, period: Duration) -> Changed {
        engine::change(self.firing.entry, due, period).into()
    }

    /// Disposes the timer this callback belongs to; see [`Timer::dispose`](crate::Timer::dispose). What the callback owns is dropped when it
    /// has returned.
    pub fn dispose(&self) {
        engine::dispose(self.firing.entry);
    }
}

impl fmt::Debug for Tick<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tick").field("scheduled", &self.scheduled()).field("missed", &self.firing.missed).finish()
    }
}

/// What a change found (S15).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{Changed, ManualClock, Runtime};
///
/// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
/// let timer = runtime.timer(Duration::MAX, Duration::ZERO, |_| {});
/// assert_eq!(timer.change(Duration::from_secs(1), Duration::ZERO), Changed::WasIdle);
/// assert_eq!(timer.change(Duration::from_secs(2), Duration::ZERO), Changed::WasWaiting);
/// timer.dispose();
/// assert_eq!(timer.change(Duration::from_secs(3), Duration::ZERO), Changed::Ended);
/// # Ok::<(), timerqueue::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Changed {
    /// The timer was waiting to fire; that firing will not take place.
    WasWaiting,
    /// The timer was idle: never started, stopped, or a one-shot that has fired (its callback may still run).
    WasIdle,
    /// Nothing was changed: the timer is disposed, its runtime is shut down, or its callback is spent.
    Ended,
}

impl Changed {
    /// Whether the timer was waiting to fire.
    pub fn was_waiting(self) -> bool {
        self == Self::WasWaiting
    }
}

impl From<Rescheduled> for Changed {
    fn from(outcome: Rescheduled) -> Self {
        match outcome {
            Rescheduled::WasWaiting => Self::WasWaiting,
            Rescheduled::WasIdle => Self::WasIdle,
            Rescheduled::Refused => Self::Ended,
        }
    }
}
