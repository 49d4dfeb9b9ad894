//! The text of a cron line, and the search for its civil times.
//!
//! A civil time is a date and a time of day without a zone. Here it is a number: the seconds since 1970-01-01 00:00 on a
//! calendar without gaps and repeats.

use std::fmt;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};

use crate::ScheduleError;

/// 0001-01-01 00:00:00: croner knows no earlier year.
const FIRST: i64 = -62_135_596_800;
/// 4999-12-31 23:59:59: croner ends its search in the year 5000.
const LAST: i64 = 95_617_583_999;

/// 28 years in a row without a year such as 1900: each calendar (seven first weekdays, leap year or not) is among them.
const CYCLE: &str = "1972-1999";

/// Bytes of a line. The longest useful line, with every value of every field, is shorter.
const LONGEST: usize = 1024;

/// A cron line.
pub(super) struct Line {
    text: String,
    cron: Cron,
    wildcard: bool,
}

impl Line {
    /// Reads five fields, six with seconds in front, seven with years behind, or a nickname.
    pub(super) fn parse(line: &str) -> Result<Self, ScheduleError> {
        let invalid = |reason: &str| ScheduleError::InvalidCron { line: excerpt(line), reason: reason.to_owned() };
        if line.len() > LONGEST {
            return Err(invalid("longer than 1024 bytes"));
        }
        if !line.is_ascii() {
            return Err(invalid("not ASCII"));
        }
        let text = line.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        let expanded = match text.strip_prefix('@') {
            Some(name) => nickname(name).ok_or_else(|| invalid("unknown nickname"))?,
            None => &text,
        };
        let fields: Vec<&str> = expanded.split(' ').collect();
        if !(5..=7).contains(&fields.len()) {
            return Err(invalid("a line has 5 fields, 6 with seconds, 7 with seconds and years"));
        }
        // croner takes nothing between two commas for no value.
        if fields.iter().any(|field| field.split(',').any(str::is_empty)) {
            return Err(invalid("an empty item in a list"));
        }
        // The fields from seconds to days of the week. A line of five has no field for seconds.
        let of_time = &fields[..fields.len().min(6)];
        let [.., minutes, hours, days, _, weekdays] = of_time else { return Err(invalid("too few fields")) };
        let seconds = (of_time.len() == 6).then(|| of_time[0]);
        let star = |field: &&str| field.starts_with(['*', '?']);
        let wildcard = star(minutes) || star(hours) || seconds.as_ref().is_some_and(star);
        let parser = CronParser::builder()
            .seconds(Seconds::Optional)
            .year(Year::Optional)
            // Vixie: days of month and days of week are alternatives, unless one of the fields begins with a star.
            .dom_and_dow(star(days) || star(weekdays))
            .build();
        let cron = parser.parse(expanded).map_err(|error| invalid(&error.to_string()))?;
        // A date such as February 30 would be searched for in all years up to the last.
        if fields.len() < 7 {
            let seconds = if fields.len() == 5 { "0 " } else { "" };
            let cycle = parser.parse(&format!("{seconds}{expanded} {CYCLE}"));
            let cycle = cycle.map_err(|error| invalid(&error.to_string()))?;
            if cycle.find_next_occurrence(&DateTime::constant(1972, 1, 1, 0, 0, 0, 0), true).is_err() {
                return Err(ScheduleError::NeverFires);
            }
        }
        Ok(Self { text, cron, wildcard })
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Vixie's distinction: a line whose seconds, minutes or hours begin with a star counts elapsed time. All other lines
    /// name fixed times of day.
    pub(super) fn is_wildcard(&self) -> bool {
        self.wildcard
    }

    /// The first civil time of the line at or after `from`.
    pub(super) fn at_or_after(&self, from: i64) -> Option<i64> {
        let found = self.cron.find_next_occurrence(&civil(from.max(FIRST))?, true).ok()?;
        Some(number(found)).filter(|&found| found <= LAST)
    }

    /// The last civil time of the line at or before `upto`.
    pub(super) fn at_or_before(&self, upto: i64) -> Option<i64> {
        let found = self.cron.find_previous_occurrence(&civil(upto.min(LAST))?, true).ok()?;
        Some(number(found)).filter(|&found| found >= FIRST)
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Line").field(&self.text).finish()
    }
}

/// The five fields of a nickname without its `@`.
fn nickname(name: &str) -> Option<&'static str> {
    let names = [
        ("yearly", "0 0 1 1 *"),
        ("annually", "0 0 1 1 *"),
        ("monthly", "0 0 1 * *"),
        ("weekly", "0 0 * * 0"),
        ("daily", "0 0 * * *"),
        ("midnight", "0 0 * * *"),
        ("hourly", "0 * * * *"),
    ];
    names.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, fields)| *fields)
}

/// What an error shows of a line.
fn excerpt(line: &str) -> String {
    line.chars().take(80).collect()
}

/// `None`: outside the years that croner searches.
fn civil(number: i64) -> Option<DateTime> {
    if !(FIRST..=LAST).contains(&number) {
        return None;
    }
    Some(Offset::UTC.to_datetime(Timestamp::from_second(number).ok()?))
}

fn number(civil: DateTime) -> i64 {
    TimeZone::UTC.to_timestamp(civil).map_or(i64::MAX, Timestamp::as_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> i64 {
        number(text.parse().unwrap())
    }

    #[test]
    fn civil_times_are_found_in_both_directions() {
        let line = Line::parse("30 2 29 2 *").unwrap();
        assert_eq!(line.at_or_after(at("2024-02-29T02:30")), Some(at("2024-02-29T02:30")));
        assert_eq!(line.at_or_after(at("2024-02-29T02:30:01")), Some(at("2028-02-29T02:30")));
        assert_eq!(line.at_or_before(at("2024-02-29T02:29:59")), Some(at("2020-02-29T02:30")));
        assert_eq!(line.at_or_after(at("2096-03-01T00:00")), Some(at("2104-02-29T02:30"))); // 2100 is no leap year
    }

    #[test]
    fn the_ends_of_the_calendar_have_no_civil_times_beyond() {
        let line = Line::parse("* * * * * *").unwrap();
        assert_eq!((FIRST, LAST), (at("0001-01-01T00:00"), at("4999-12-31T23:59:59")));
        assert_eq!(line.at_or_after(i64::MIN), Some(FIRST));
        assert_eq!(line.at_or_after(LAST), Some(LAST));
        assert_eq!(line.at_or_after(LAST + 1), None);
        assert_eq!(line.at_or_before(i64::MAX), Some(LAST));
        assert_eq!(line.at_or_before(FIRST), Some(FIRST));
        assert_eq!(line.at_or_before(FIRST - 1), None);
        let yearly = Line::parse("@yearly").unwrap();
        assert_eq!(yearly.at_or_after(LAST), None);
        assert_eq!(yearly.at_or_before(FIRST), Some(FIRST));
    }

    #[test]
    fn fields_that_begin_with_a_star_make_a_wildcard() {
        for (line, wildcard) in [
            ("30 2 * * *", false),
            ("0,30 1-5 * * *", false),
            ("*/15 2 * * *", true),
            ("0 * * * *", true),
            ("*/10 30 2 * * *", true),
            ("0 30 2 * * *", false),
            ("0 30 2 * * * 2030", false),
            ("@daily", false),
            ("@Hourly", true),
        ] {
            assert_eq!(Line::parse(line).unwrap().is_wildcard(), wildcard, "{line}");
        }
    }

    #[test]
    fn days_are_alternatives_unless_one_field_begins_with_a_star() {
        let days = |line| {
            let (line, mut from) = (Line::parse(line).unwrap(), at("2026-06-01T00:00"));
            let mut days = Vec::new();
            while let Some(found) = line.at_or_after(from).filter(|&found| found < at("2026-07-01T00:00")) {
                days.push(civil(found).unwrap().day());
                from = found + 1;
            }
            days
        };
        assert_eq!(days("0 0 13 * 5"), [5, 12, 13, 19, 26]); // Fridays, and the 13th
        assert_eq!(days("0 0 */10 * 1"), [1]); // the 1st, 11th, 21st, where they are Mondays
        assert_eq!(days("0 0 13 * +5"), [0_i8; 0]); // a Friday the 13th
        assert_eq!(days("0 0 L * ?"), [30]);
        assert_eq!(days("0 0 13W * ?"), [12]);
        assert_eq!(days("0 0 * * 1#2"), [8]);
        assert_eq!(days("0 0 * * FRIL"), [26]);
        assert_eq!(days("0 0 * * 7"), days("0 0 * * SUN"));
    }

    #[test]
    fn other_texts_are_refused() {
        for line in [
            "",
            " ",
            "@",
            "@reboot",
            "@daily 0 0 * * *",
            "* * * *",
            "* * * * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "*/0 * * * *",
            "5/15 * * * *",
            "10-5 * * * *",
            "* * * * FRI-MON",
            "TZ=UTC * * * * *",
            "−5 * * * *",
            "1.5 * * * *",
            "-1 * * * *",
            "99999999999 * * * *",
            "* * * * *\0",
            ", * * * *",
            "1,,2 * * * *",
            "* * * * 1#6",
            "* * 32W * *",
        ] {
            let error = Line::parse(line).expect_err(line);
            assert!(matches!(error, ScheduleError::InvalidCron { .. }), "{line}");
        }
        assert!(Line::parse(&"1,".repeat(100_000)).is_err());
    }
}
