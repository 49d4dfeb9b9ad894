//! The error of a schedule that cannot be made.

use std::fmt;
use std::time::Duration;

use crate::CronError;

/// A schedule could not be built or deserialized, and why.
///
/// `{:#}` shows the place in a cron line, on lines of its own. No text of `Display` has control
/// characters of the user.
///
/// A schedule that has been made has no errors: its methods return `None` where it has no
/// occurrence.
///
/// # Examples
///
/// A cron line that never fires is refused:
///
/// ```
/// use timerqueue_schedule::{Schedule, ScheduleError};
///
/// let error = Schedule::cron("0 0 30 2 *").build().unwrap_err(); // February 30
/// assert_eq!(error, ScheduleError::NeverFires);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The text is no cron line.
    InvalidCron(CronError),
    /// The time zone database has no zone of this name.
    UnknownZone {
        /// The name.
        name: String,
    },
    /// The data of a time zone could not be read.
    InvalidZoneData {
        /// The name of the zone, or the folder of the database.
        name: String,
    },
    /// A time zone was given for a schedule that is no cron line. Periods are counted in elapsed
    /// time, which is the same in all zones.
    ZoneWithoutCron,
    /// The line names a zone (`CRON_TZ=…`), and the builder another one.
    TwoZones {
        /// The zone of the line.
        line: String,
        /// The zone of the builder.
        builder: String,
    },
    /// [`each`](crate::ScheduleBuilder::each) or [`except`](crate::ScheduleBuilder::except) was
    /// given for a schedule that is no cron line.
    DatesWithoutCron,
    /// The number of [`each`](crate::ScheduleBuilder::each) is not in 1 to
    /// [`Schedule::MAX_EACH`](crate::Schedule::MAX_EACH).
    InvalidEach {
        /// The number, or the text of a serialized schedule.
        text: String,
    },
    /// [`each`](crate::ScheduleBuilder::each) was given without a first instant to count from.
    EachWithoutFrom,
    /// A day left out is no date such as `2026-12-25` or `12-25`.
    InvalidDate {
        /// The text.
        text: String,
    },
    /// More days are left out than [`Schedule::MAX_EXCEPT`](crate::Schedule::MAX_EXCEPT).
    TooManyDates {
        /// The number.
        dates: usize,
    },
    /// A union has no schedule or too many, or one that cannot be a part of it: see
    /// [`Schedule::any`](crate::Schedule::any).
    InvalidUnion {
        /// The reason, in English.
        reason: &'static str,
    },
    /// The period is shorter than [`Schedule::MIN_PERIOD`](crate::Schedule::MIN_PERIOD).
    PeriodTooShort {
        /// The period.
        period: Duration,
    },
    /// A number of times was given without a first instant to count from.
    TimesWithoutFrom,
    /// A number of times above [`Schedule::MAX_TIMES`](crate::Schedule::MAX_TIMES), which holds for
    /// cron lines and rules.
    TooManyTimes {
        /// The number.
        times: u64,
    },
    /// The schedule has no occurrence: a date that does not exist, or bounds without an occurrence
    /// between them.
    NeverFires,
    /// A text is not the JSON text of a schedule.
    InvalidForm {
        /// The reason, in English.
        reason: String,
    },
    /// A serialized schedule names a rule that the [`Loader`](crate::Loader) does not have.
    UnknownRule {
        /// The name.
        name: String,
    },
    /// A serialized schedule has none, or several, of the fields `every`, `fixed_delay`, `cron`,
    /// `rule` and `any`.
    NotOneKind,
    /// A serialized schedule has an instant that is malformed or that the platform cannot
    /// represent.
    InvalidInstant {
        /// The text.
        text: String,
    },
    /// A serialized schedule has a malformed duration.
    InvalidDuration {
        /// The text.
        text: String,
    },
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidCron(error) => error.fmt(f),
            Self::UnknownZone { name } => write!(f, "unknown time zone {name:?}"),
            Self::InvalidZoneData { name } => write!(f, "the time zone data of {name:?} cannot be read"),
            Self::ZoneWithoutCron => f.write_str("only cron lines have a time zone"),
            Self::TwoZones { line, builder } => write!(f, "the line names the time zone {line:?}, and not {builder:?}"),
            Self::DatesWithoutCron => {
                f.write_str("only cron lines take each n-th day, week or month, and leave out days")
            }
            Self::InvalidEach { text } => write!(f, "{text:?} is no number of days, weeks or months from 1 to 1000"),
            Self::EachWithoutFrom => f.write_str("each n-th day, week or month needs a first instant"),
            Self::InvalidDate { text } => write!(f, "{text:?} is no date such as 2026-12-25 or 12-25"),
            Self::TooManyDates { dates } => write!(f, "{dates} days are too many to be left out"),
            Self::InvalidUnion { reason } => f.write_str(reason),
            Self::PeriodTooShort { period } => write!(f, "the period {period:?} is too short"),
            Self::TimesWithoutFrom => f.write_str("a number of times needs a first instant"),
            Self::TooManyTimes { times } => write!(f, "{times} times are too many for a cron line or a rule"),
            Self::NeverFires => f.write_str("the schedule never fires"),
            Self::InvalidForm { reason } => write!(f, "no serialized schedule: {reason}"),
            Self::UnknownRule { name } => write!(f, "unknown rule {name:?}"),
            Self::NotOneKind => {
                f.write_str("exactly one of `every`, `fixed_delay`, `cron`, `rule` and `any` is needed")
            }
            Self::InvalidInstant { text } => write!(f, "invalid instant {text:?}"),
            Self::InvalidDuration { text } => write!(f, "invalid duration {text:?}"),
        }
    }
}

impl std::error::Error for ScheduleError {}

impl From<CronError> for ScheduleError {
    fn from(error: CronError) -> Self {
        Self::InvalidCron(error)
    }
}
