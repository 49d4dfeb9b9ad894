//! Instants on the clock of a runtime: [`Timestamp`] in the public interface, nanoseconds inside the crate.

use std::ops::{Add, Sub};
use std::time::Duration;

/// "Never": the due point of an idle timer, the period of a one-shot, the instant of an alarm not set.
pub(crate) const NEVER: u64 = u64::MAX;
/// The due point of a delay that never ends. The delay is in the queue, so that the end of its runtime finds the delay. No clock
/// shows this instant, and no alarm is set to this instant.
pub(crate) const END: u64 = NEVER - 1;
/// The last instant that a clock shows. A timer with a later due point never fires.
pub(crate) const LAST: u64 = NEVER - 2;

/// The instant `ns` after `at`; [`NEVER`] if later than [`LAST`].
#[inline]
pub(crate) fn later(at: u64, ns: u64) -> u64 {
    let sum = at.saturating_add(ns);
    if sum > LAST { NEVER } else { sum }
}

/// The instant `after` from `now`; [`NEVER`] if no clock shows it.
#[inline]
pub(crate) fn instant(now: u64, after: Duration) -> u64 {
    u64::try_from(after.as_nanos()).map_or(NEVER, |ns| later(now, ns))
}

/// An instant on the clock of a runtime, exact to the nanosecond.
///
/// Different runtimes may count on different clocks, so programs should not compare timestamps of different runtimes. On the
/// default clock a timestamp counts from an arbitrary point (on Linux: `CLOCK_MONOTONIC`, which stands still while the system is
/// suspended); on a [`ManualClock`](crate::ManualClock), from the making of the clock. Setting the wall clock changes no
/// timestamp.
///
/// Arithmetic saturates. An instant beyond the range of the clock never comes: a delay until this instant does not end.
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
#[doc(alias = "Instant")]
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

    /// A sum beyond the range of the clock, 584 years, becomes a single instant that never comes.
    fn add(self, after: Duration) -> Self {
        Self(instant(self.0, after).min(END))
    }
}

impl Sub for Timestamp {
    type Output = Duration;

    /// The time between two instants; see [`saturating_duration_since`](Self::saturating_duration_since).
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}
