//! Cron lines: the text of a line, its civil times, and the instants of these in a time zone.
//!
//! * `field` reads the fields, by the grammar in the documentation of the crate, and `error` tells
//!   what is wrong with one.
//! * `line` reads a line, and searches its civil times (calendar and clock, without a zone).
//! * `dates` leaves out dates, and `words` describes a line.
//! * `zone` maps civil times to instants, and holds the rules for daylight saving.

mod dates;
mod error;
mod field;
mod line;
mod words;
mod zone;

use jiff::tz::TimeZone;

pub use self::dates::CalendarUnit;
use self::dates::Dates;
pub(crate) use self::dates::Each;
pub use self::error::{CronError, CronField};
use self::line::Line;
use crate::ScheduleError;
use crate::instant::SECOND;

/// A cron line in a time zone.
#[derive(Debug)]
pub(crate) struct Cron {
    line: Line,
    zone: TimeZone,
}

impl Cron {
    pub(crate) fn new(line: &str, zone: TimeZone) -> Result<Self, ScheduleError> {
        Ok(Self { line: Line::parse(line)?, zone })
    }

    /// Takes each n-th day, week or month alone, counted from the one of an instant in the zone,
    /// and leaves out dates.
    pub(crate) fn only(self, each: Option<(Each, i128)>, except: &[String]) -> Result<Self, ScheduleError> {
        let date = |(each, from): (Each, i128)| {
            let second = i64::try_from(from.div_euclid(SECOND)).unwrap_or(if from < 0 { i64::MIN } else { i64::MAX });
            let date = self.zone.to_datetime(zone::timestamp(second)).date();
            (each, (date.year().into(), date.month().into(), date.day().into()))
        };
        let dates = Dates::new(each.map(date), except).map_err(|text| ScheduleError::InvalidDate { text })?;
        Ok(Self { line: self.line.only(dates), zone: self.zone })
    }

    /// The line, with single blanks between its fields.
    pub(crate) fn text(&self) -> &str {
        self.line.text()
    }

    /// The line in words.
    pub(crate) fn words(&self) -> String {
        words::words(self.line.text())
    }

    /// The first instant after `t`; both are nanoseconds since the Unix epoch.
    pub(crate) fn next(&self, t: i128) -> Option<i128> {
        let second = i64::try_from(t.div_euclid(SECOND)).unwrap_or(if t < 0 { i64::MIN } else { i64::MAX });
        Some(i128::from(zone::at_or_after(&self.line, &self.zone, second.checked_add(1)?)?) * SECOND)
    }

    /// The last instant before `t`; both are nanoseconds since the Unix epoch.
    pub(crate) fn previous(&self, t: i128) -> Option<i128> {
        let second = i64::try_from((t - 1).div_euclid(SECOND)).unwrap_or(if t < 0 { i64::MIN } else { i64::MAX });
        Some(i128::from(zone::at_or_before(&self.line, &self.zone, second)?) * SECOND)
    }
}
