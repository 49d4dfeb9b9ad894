//! Instants on the clock of a runtime: [`Timestamp`] in the public interface, nanoseconds inside
//! the crate.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::{Duration, Instant};

/// "Never": the due point of an idle timer, the period of a one-shot, the instant of an alarm not
/// set.
pub(crate) const NEVER: u64 = u64::MAX;
/// The due point of a delay that never ends. The delay is in the queue, so that the end of its
/// runtime finds the delay. No clock shows this instant, and no alarm is set to this instant.
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
    later(now, whole_ns(after))
}

/// A length in nanoseconds; [`NEVER`] if longer.
#[inline]
pub(crate) fn whole_ns(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(NEVER)
}

/// An instant on the clock of a runtime, exact to the nanosecond.
///
/// Different runtimes may count on different clocks, so programs should not compare timestamps of
/// different runtimes. On the default clock a timestamp counts from an arbitrary point (on Linux:
/// `CLOCK_MONOTONIC`, which stands still while the system is suspended); on a
/// [`ManualClock`](crate::ManualClock), from the making of the clock. Setting the wall clock
/// changes no timestamp.
///
/// Operators saturate: at the origin of the clock, and at an instant beyond the range of the clock,
/// 584 years. No clock shows this last instant: a delay until it does not end. Subtracting a time
/// from it leaves it as it is. The `checked_` forms return `None` instead.
///
/// `Display` shows seconds since the origin of the clock, or `never`.
/// [`Runtime::elapsed`](crate::Runtime::elapsed) gives the time since a timestamp, and
/// [`Runtime::instant`](crate::Runtime::instant) converts a timestamp into a `std::time::Instant`.
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
///
/// let mut deadline = clock.now() + Duration::from_secs(2);
/// deadline -= Duration::from_millis(500);
/// assert_eq!(deadline.to_string(), "1.500001500s");
/// // Before the origin of the clock:
/// assert_eq!(deadline.checked_sub(Duration::from_secs(60)), None);
/// ```
#[doc(alias = "Instant")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    pub(crate) fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// `None` if no clock shows `ns`.
    pub(crate) fn shown(ns: u64) -> Option<Self> {
        (ns <= LAST).then_some(Self(ns))
    }

    pub(crate) fn as_ns(self) -> u64 {
        self.0
    }

    /// The time since the origin of the clock.
    pub fn as_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The time from `earlier` to this instant; zero if `earlier` is later.
    #[must_use]
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The time from `earlier` to this instant; `None` if `earlier` is later.
    #[must_use]
    pub fn checked_duration_since(self, earlier: Self) -> Option<Duration> {
        self.0.checked_sub(earlier.0).map(Duration::from_nanos)
    }

    /// The instant `after` later; `None` if no clock shows the sum.
    #[must_use]
    pub fn checked_add(self, after: Duration) -> Option<Self> {
        Self::shown(instant(self.0, after))
    }

    /// The instant `before` earlier; `None` if the difference lies before the origin of the clock,
    /// or if no clock shows this instant.
    #[must_use]
    pub fn checked_sub(self, before: Duration) -> Option<Self> {
        let before = u64::try_from(before.as_nanos()).ok()?;
        Self::shown(self.0)?.0.checked_sub(before).map(Self)
    }

    /// The instant `after` later; an instant that never comes if no clock shows the sum. The same
    /// as `+`.
    #[must_use]
    pub fn saturating_add(self, after: Duration) -> Self {
        Self(instant(self.0, after).min(END))
    }

    /// The instant `before` earlier; the origin of the clock if the difference lies before the
    /// origin. The same as `-`.
    #[must_use]
    pub fn saturating_sub(self, before: Duration) -> Self {
        if self.0 > LAST { self } else { self.checked_sub(before).unwrap_or(Self(0)) }
    }
}

/// Seconds since the origin of the clock, with nine decimals: `1.500000000s`. An instant that no
/// clock shows is `never`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 > LAST {
            return f.pad("never");
        }
        let since = self.as_duration();
        f.pad(&format!("{}.{:09}s", since.as_secs(), since.subsec_nanos()))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    /// See [`saturating_add`](Self::saturating_add).
    fn add(self, after: Duration) -> Self {
        self.saturating_add(after)
    }
}

impl AddAssign<Duration> for Timestamp {
    fn add_assign(&mut self, after: Duration) {
        *self = *self + after;
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    /// See [`saturating_sub`](Self::saturating_sub).
    fn sub(self, before: Duration) -> Self {
        self.saturating_sub(before)
    }
}

impl SubAssign<Duration> for Timestamp {
    fn sub_assign(&mut self, before: Duration) {
        *self = *self - before;
    }
}

impl Sub for Timestamp {
    type Output = Duration;

    /// The time between two instants; see
    /// [`saturating_duration_since`](Self::saturating_duration_since).
    fn sub(self, earlier: Self) -> Duration {
        self.saturating_duration_since(earlier)
    }
}

/// A deadline: a [`Timestamp`] of the runtime's clock, or an [`Instant`] of the standard library.
///
/// Functions that wait until a deadline take `impl Into<Deadline>`, and so either. The runtime
/// converts an `Instant` when the function is called; see
/// [`Runtime::timestamp`](crate::Runtime::timestamp).
///
/// A `Timestamp` is a number, and does not know its clock: one of a runtime on another clock is
/// taken as it is, and means another time. [`Timestamp::now`] reads the clock of the current
/// runtime, which is that of the functions that name none. An `Instant` is right on any clock.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, Instant};
/// use timerqueue::{Delay, Runtime};
///
/// let by_instant = Delay::until(Instant::now() + Duration::from_secs(1));
/// let by_timestamp = Delay::until(by_instant.deadline());
/// assert_eq!(by_instant.deadline(), by_timestamp.deadline());
/// # drop((by_instant, by_timestamp));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deadline(pub(crate) At);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum At {
    Timestamp(Timestamp),
    Instant(Instant),
}

impl From<Timestamp> for Deadline {
    fn from(at: Timestamp) -> Self {
        Self(At::Timestamp(at))
    }
}

impl From<Instant> for Deadline {
    fn from(at: Instant) -> Self {
        Self(At::Instant(at))
    }
}

/// A moment on two clocks: the clock of `std::time::Instant`, and nanoseconds of a clock of this
/// crate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) instant: Instant,
    pub(crate) ns: u64,
}

impl Moment {
    /// `ns` as an `Instant`; `None` if no clock shows `ns`, or if an `Instant` cannot express it.
    pub(crate) fn instant(self, ns: u64) -> Option<Instant> {
        let (ahead, behind) = (ns.saturating_sub(self.ns), self.ns.saturating_sub(ns));
        if ns > LAST {
            return None;
        }
        self.instant.checked_add(Duration::from_nanos(ahead))?.checked_sub(Duration::from_nanos(behind))
    }

    /// `instant` in nanoseconds: at least zero; [`END`] if later than [`LAST`].
    pub(crate) fn ns(self, at: Instant) -> u64 {
        match at.checked_duration_since(self.instant) {
            Some(ahead) => instant(self.ns, ahead).min(END),
            None => {
                let behind = self.instant.saturating_duration_since(at);
                self.ns.saturating_sub(whole_ns(behind))
            }
        }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn moments_convert_both_ways_up_to_the_ends_of_the_clock() {
        let moment = Moment { instant: Instant::now(), ns: 5_000_000_000 };
        for ns in [0, 1, 4_999_999_999, 5_000_000_000, 5_000_000_001, 3_600_000_000_000] {
            assert_eq!(moment.instant(ns).map(|instant| moment.ns(instant)), Some(ns));
        }
        assert_eq!(moment.ns(moment.instant + SECOND), 6_000_000_000);
        assert_eq!((moment.instant(END), moment.instant(NEVER)), (None, None));
        // Before the origin of the clock, and after its end.
        let late = Moment { ns: LAST - 10, ..moment };
        assert_eq!(late.ns(late.instant + SECOND), END);
        if let Some(before) = moment.instant.checked_sub(6 * SECOND) {
            assert_eq!(moment.ns(before), 0);
        }
    }

    #[test]
    fn arithmetic_saturates_at_the_origin_and_at_the_end() {
        let [origin, last, end] = [0, LAST, END].map(Timestamp);
        let nanosecond = Duration::from_nanos(1);
        assert_eq!((origin + Duration::from_nanos(LAST), last + nanosecond, last + Duration::MAX), (last, end, end));
        assert_eq!((origin - nanosecond, end - SECOND, last - nanosecond), (origin, end, Timestamp(LAST - 1)));
        assert_eq!((last.checked_add(nanosecond), last.checked_add(Duration::ZERO)), (None, Some(last)));
        assert_eq!((end.checked_add(Duration::ZERO), end.checked_sub(SECOND)), (None, None));
        assert_eq!((origin.checked_sub(nanosecond), last.checked_sub(Duration::MAX)), (None, None));
        assert_eq!(
            (origin.checked_duration_since(last), last.checked_duration_since(last)),
            (None, Some(Duration::ZERO))
        );
        let mut at = origin;
        at += SECOND;
        at -= nanosecond;
        assert_eq!((at.to_string(), end.to_string()), ("0.999999999s".to_owned(), "never".to_owned()));
        assert_eq!(format!("{:>15}|{:<7}|", at, end), "   0.999999999s|never  |");
    }
}
