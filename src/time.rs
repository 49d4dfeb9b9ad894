//! Instants on the clock of a runtime.

use std::ops::{Add, Sub};
use std::time::Duration;

use crate::queue::END;

/// An instant on the clock of a runtime, exact to the nanosecond.
///
/// Clocks of different runtimes may have nothing to do with each other, so timestamps of different runtimes should not be
/// compared. On the default clock it counts from an arbitrary point (on Linux, `CLOCK_MONOTONIC`, which stands still
/// while the system is suspended); on a [`ManualClock`](crate::ManualClock) from the making of the clock. Setting the
/// wall clock changes neither (S55).
///
/// Arithmetic saturates. An instant that no clock shows any more never comes: a delay until then does not end.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::ManualClock;
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_nanos(1_500));
/// assert_eq!(clock.now() - before, Duration::from_nanos(1_500));
/// assert_eq!(before - clock.now(), Duration::ZERO); // saturates
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    pub(crate) fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    pub(crate) fn as_ns(self) -> u64 {
        self.0
    }

    /// The time since the origin of the clock.
    pub fn as_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    /// What no clock shows any more (it shows 584 years) becomes one instant that never comes.
    fn add(self, after: Duration) -> Self {
        Self(crate::engine::instant(self.0, after).min(END))
    }
}

impl Sub for Timestamp {
    type Output = Duration;

    /// As [`saturating_duration_since`](Self::saturating_duration_since).
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}
