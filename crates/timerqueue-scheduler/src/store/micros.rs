//! Instants of a store: whole microseconds since the Unix epoch, in the years 1970 to 9999.
//!
//! Ground rules. A due time is rounded up and a reading of a clock is rounded down, so that no job
//! is early (J1).

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Invalid;

const NANOS: u128 = 1_000;

/// An instant as stores keep it: microseconds since the Unix epoch, from 1970 to the end of 9999.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use timerqueue_scheduler::store::{Invalid, Micros};
///
/// let at = Micros::ceil(UNIX_EPOCH + Duration::from_nanos(1_001))?;
/// assert_eq!(at.to_system(), UNIX_EPOCH + Duration::from_micros(2));
/// assert_eq!(Micros::ceil(UNIX_EPOCH - Duration::from_nanos(1)), Err(Invalid::InstantOutOfRange));
/// # Ok::<(), Invalid>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "i64")]
pub struct Micros(i64);

impl From<i64> for Micros {
    /// [`Micros::new`].
    fn from(micros: i64) -> Self {
        Self::new(micros)
    }
}

impl Micros {
    /// 1970-01-01T00:00:00Z.
    pub const FIRST: Self = Self(0);
    /// 9999-12-31T23:59:59.999999Z.
    pub const LAST: Self = Self(253_402_300_799_999_999);

    /// 4900-01-01T00:00:00Z. A clock that shows this or more is taken for wrong: no recurring job
    /// is looked at. Cron lines end in the year 4999, and a line may have forty years between two
    /// occurrences.
    pub(crate) const BEYOND_SCHEDULES: Self = Self(92_461_824_000_000_000);

    /// This number of microseconds since the Unix epoch, moved into the range.
    #[must_use]
    pub fn new(micros: i64) -> Self {
        Self(micros).clamp(Self::FIRST, Self::LAST)
    }

    /// The instant, rounded up: for due times.
    ///
    /// # Errors
    ///
    /// [`Invalid::InstantOutOfRange`] before 1970 and after 9999.
    pub fn ceil(at: SystemTime) -> Result<Self, Invalid> {
        Self::FIRST.checked_add(at.duration_since(UNIX_EPOCH).map_err(|_| Invalid::InstantOutOfRange)?)
    }

    /// The instant, rounded down, and moved into the range: for readings of a clock.
    #[must_use]
    pub fn floor(at: SystemTime) -> Self {
        let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_micros()).unwrap_or(i64::MAX)).min(Self::LAST)
    }

    /// The number of microseconds since the Unix epoch.
    #[must_use]
    pub fn as_i64(self) -> i64 {
        self.0
    }

    /// The instant as a `SystemTime`.
    #[must_use]
    pub fn to_system(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.0.unsigned_abs())
    }

    /// The instant `after` later, rounded up.
    ///
    /// # Errors
    ///
    /// [`Invalid::InstantOutOfRange`] after 9999.
    pub fn checked_add(self, after: Duration) -> Result<Self, Invalid> {
        let micros = after.as_nanos().div_ceil(NANOS);
        let sum = i64::try_from(micros).ok().and_then(|micros| self.0.checked_add(micros));
        sum.map(Self).filter(|&sum| sum <= Self::LAST).ok_or(Invalid::InstantOutOfRange)
    }

    /// The instant `after` later, rounded up; the end of 9999 where the sum is later.
    #[must_use]
    pub fn saturating_add(self, after: Duration) -> Self {
        self.checked_add(after).unwrap_or(Self::LAST)
    }

    /// The time from `earlier` to this instant; zero where `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }
}

impl fmt::Debug for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(at) => fmt::Display::fmt(&at, f),
            Err(_) => write!(f, "{} us", self.0),
        }
    }
}
