//! A cron line, and the search for its civil times.
//!
//! A civil time is a date and a time of day without a zone. Here it is a number: the seconds since
//! 1970-01-01 00:00 on a calendar without gaps and repeats. A date is the number of days since
//! 1970-01-01.
//!
//! # The search
//!
//! The values of a field are bits of a word, and so are the matching days of one month. The search
//! goes from year to year and from month to month that the line names. It reads no day and no
//! second one by one.

use super::dates::Dates;
use super::error::{CronError, CronField, Wrong};
use super::field::{self, LAST as LAST_WEEKDAY, MonthDays, Weekdays, Years};
use crate::ScheduleError;

const DAY: i64 = 86_400;
/// 0001-01-01 00:00:00.
const FIRST: i64 = -62_135_596_800;
/// 4999-12-31 23:59:59.
const LAST: i64 = 95_617_583_999;
const YEARS: std::ops::RangeInclusive<i64> = 1..=field::LAST_YEAR as i64;

/// 28 years in a row without a year such as 1900: each calendar (seven first weekdays, leap year or
/// not) is among them.
const CYCLE: std::ops::Range<i64> = 1972..2000;

/// Bytes of a line. The longest useful line, with every value of every field, is shorter.
const LONGEST: usize = 1024;

const FIELDS: &str =
    "5 fields: minute, hour, day of month, month, day of week; 6: seconds in front; 7: years behind, too";

/// The number of the calendar of a year: by its first weekday, and whether it has a February 29.
fn calendar(year: i64) -> i64 {
    first_of_month(year, 1).rem_euclid(7) * 2 + month_length(year, 2) - 28
}

/// A cron line.
#[derive(Debug)]
pub(super) struct Line {
    text: String,
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: MonthDays,
    months: u64,
    weekdays: Weekdays,
    /// A day has to match both fields of days.
    both: bool,
    /// `None`: each year.
    years: Option<Box<Years>>,
    /// The calendars with a day of the line, as [`calendar`] numbers them.
    calendars: u16,
    wildcard: bool,
    /// `None`: all.
    dates: Option<Dates>,
}

impl Line {
    /// Reads five fields, six with seconds in front, seven with years behind, or a nickname.
    pub(super) fn parse(line: &str) -> Result<Self, ScheduleError> {
        let mut line = Self::read(line)?;
        // A date such as February 30 would be searched for in all years up to the last.
        let matches = |&year: &i64| bits(line.months).any(|month| line.days_of(year, month) != 0);
        line.calendars = CYCLE.filter(matches).fold(0, |found, year| found | 1 << calendar(year));
        if line.calendars != 0 { Ok(line) } else { Err(ScheduleError::NeverFires) }
    }

    fn read(line: &str) -> Result<Self, CronError> {
        if line.len() > LONGEST {
            return Err(CronError::of_line(line, "the line is longer than 1024 bytes"));
        }
        let text = line.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        let upper = text.to_ascii_uppercase();
        let fields = fields(&upper).ok_or_else(|| match text.strip_prefix('@') {
            Some(name) => unknown_nickname(&text, name),
            None => CronError::of_line(&text, "a line has 5, 6 or 7 fields").hinted(FIELDS),
        })?;
        let Fields { second: seconds, minute: minutes, hour: hours, day: days, month: months, .. } = fields;
        let Fields { weekday: weekdays, year: years, .. } = fields;
        let (text, upper) = (&*text, &*upper);
        let wrong = |field| move |wrong: Wrong<'_>| CronError::at(text, upper, Some(field), wrong);
        let set = |field, text| field::set(field, text).map_err(wrong(field));
        let star = field::begins_with_star;
        let (both, of_week) = match weekdays.strip_prefix('+') {
            Some(rest) => (true, rest),
            // Vixie: days of month and days of week are alternatives, unless one of the fields
            // begins with a star.
            None => (star(days) || star(weekdays), weekdays),
        };
        Ok(Self {
            seconds: seconds.map_or(Ok(1), |text| set(CronField::Second, text))?,
            minutes: set(CronField::Minute, minutes)?,
            hours: set(CronField::Hour, hours)?,
            days: field::month_days(days).map_err(wrong(CronField::DayOfMonth))?,
            months: set(CronField::Month, months)?,
            weekdays: field::weekdays(of_week).map_err(wrong(CronField::DayOfWeek))?,
            years: match years {
                None | Some("*") => None,
                Some(years) => Some(field::years(years).map_err(wrong(CronField::Year))?),
            },
            both,
            wildcard: star(minutes) || star(hours) || seconds.is_some_and(star),
            text: text.to_owned(),
            calendars: 0,
            dates: None,
        })
    }

    /// The line, with single blanks between its fields.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Vixie's distinction: a line whose seconds, minutes or hours begin with a star counts elapsed
    /// time. All other lines name fixed times of day.
    pub(super) fn is_wildcard(&self) -> bool {
        self.wildcard
    }

    /// Takes some dates alone.
    pub(super) fn only(self, dates: Dates) -> Self {
        Self { dates: Some(dates), ..self }
    }

    /// The first civil time of the line at or after `from`.
    pub(super) fn at_or_after(&self, from: i64) -> Option<i64> {
        self.search(from.max(FIRST), Way::Forward)
    }

    /// The last civil time of the line at or before `upto`.
    pub(super) fn at_or_before(&self, upto: i64) -> Option<i64> {
        self.search(upto.min(LAST), Way::Back)
    }

    fn search(&self, from: i64, way: Way) -> Option<i64> {
        if !(FIRST..=LAST).contains(&from) {
            return None;
        }
        let (today, second) = (from.div_euclid(DAY), from.rem_euclid(DAY));
        let time = self.time(second, way);
        let date = self.date(if time.is_some() { today } else { today + way.one() }, way)?;
        let time = time.filter(|_| date == today);
        Some(date * DAY + time.or_else(|| self.time(way.first_of(0, DAY - 1), way))?)
    }

    /// The nearest second of a day.
    fn time(&self, second: i64, way: Way) -> Option<i64> {
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let first_minute = || way.nearest(self.minutes, way.first_of(0, 59));
        let first_second = || way.nearest(self.seconds, way.first_of(0, 59));
        let found = way.nearest(self.hours, hour)?;
        if found == hour {
            let found = way.nearest(self.minutes, minute);
            if found == Some(minute) {
                if let Some(second) = way.nearest(self.seconds, second) {
                    return Some(hour * 3600 + minute * 60 + second);
                }
            }
            let later = if found == Some(minute) { way.nearest(self.minutes, minute + way.one()) } else { found };
            if let Some(minute) = later {
                return Some(hour * 3600 + minute * 60 + first_second()?);
            }
        }
        let hour = if found == hour { way.nearest(self.hours, hour + way.one())? } else { found };
        Some(hour * 3600 + first_minute()? * 60 + first_second()?)
    }

    /// The nearest date.
    fn date(&self, from: i64, way: Way) -> Option<i64> {
        let (first_year, first_month, first_day) = civil(from);
        let (mut year, mut month, mut day) = (first_year, first_month, first_day);
        loop {
            let found = self.year(year, way)?;
            if found != year {
                (year, month, day) = (found, way.first_of(1, 12), way.first_of(1, 31));
            }
            if !self.has_day_in(year) {
                (year, month, day) = (year + way.one(), way.first_of(1, 12), way.first_of(1, 31));
                continue;
            }
            match way.nearest(self.months, month) {
                Some(found) => {
                    if found != month {
                        (month, day) = (found, way.first_of(1, 31));
                    }
                    if let Some(dates) = &self.dates {
                        let date = first_of_month(year, month) + day.min(month_length(year, month)) - 1;
                        let beyond = dates.beyond(date, (year, month), way == Way::Forward).map(civil);
                        if let Some(date) = beyond.filter(|date| (date.0, date.1) != (year, month)) {
                            (year, month, day) = date;
                            continue;
                        }
                    }
                    if let Some(day) = way.nearest(self.days_of(year, month), day) {
                        return Some(first_of_month(year, month) + day - 1);
                    }
                    (month, day) = (month + way.one(), way.first_of(1, 31));
                }
                None => (year, month, day) = (year + way.one(), way.first_of(1, 12), way.first_of(1, 31)),
            }
        }
    }

    /// Whether a year of this calendar has a day of the line, before the dates left out.
    fn has_day_in(&self, year: i64) -> bool {
        self.calendars >> calendar(year) & 1 != 0
    }

    /// The nearest year.
    fn year(&self, year: i64, way: Way) -> Option<i64> {
        let Some(years) = &self.years else { return Some(year).filter(|year| YEARS.contains(year)) };
        let (mut word, mut from) = (year / 64, year % 64);
        loop {
            let set = *years.get(usize::try_from(word).ok()?)?;
            if let Some(bit) = way.nearest(set, from) {
                return Some(word * 64 + bit);
            }
            (word, from) = (word + way.one(), way.first_of(0, 63));
        }
    }

    /// The days of a month that match: bit n is the day n.
    fn days_of(&self, year: i64, month: i64) -> u64 {
        let length = month_length(year, month);
        let in_month = (2 << length) - 2;
        let first = first_of_month(year, month);
        // The days of these weekdays. Both 1970-01-01 and bit 4 are a Thursday.
        let turn = (first + 4).rem_euclid(7);
        let of_week = |set: u8| {
            let set = u64::from(set) << 7 | u64::from(set);
            ((set >> turn & 0x7f) * 0x1020_4081) << 1 // five weeks
        };
        let from_last = |set: u64| set.reverse_bits() >> (63 - length);
        let near = (self.days.nearest | from_last(self.days.nearest_from_last)) & in_month;
        let days = self.days.days
            | from_last(self.days.from_last)
            | if near == 0 { 0 } else { nearest(near, length, of_week) };
        let mut weekdays = of_week(self.weekdays[0]);
        if self.weekdays[1..] != [0; 6] {
            for nth in 1..=5 {
                weekdays |= of_week(self.weekdays[nth]) & 0xfe << (7 * (nth - 1));
            }
            weekdays |= of_week(self.weekdays[LAST_WEEKDAY]) & 0xfe << (length - 7);
        }
        let matching = in_month & if self.both { days & weekdays } else { days | weekdays };
        match &self.dates {
            Some(dates) if matching != 0 => matching & dates.of(year, month),
            _ => matching,
        }
    }
}

/// Monday to Friday nearest to these days, in the same month.
fn nearest(days: u64, length: i64, of_week: impl Fn(u8) -> u64) -> u64 {
    let (saturdays, sundays) = (days & of_week(1 << 6), days & of_week(1));
    let (first, last) = (1 << 1, 1 << length);
    days & !saturdays & !sundays
        | (saturdays & !first) >> 1
        | (saturdays & first) << 2
        | (sundays & !last) << 1
        | (sundays & last) >> 2
}

/// Up or down the calendar.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Forward,
    Back,
}

impl Way {
    fn one(self) -> i64 {
        match self {
            Self::Forward => 1,
            Self::Back => -1,
        }
    }

    /// The value that comes first on this way.
    fn first_of(self, lowest: i64, highest: i64) -> i64 {
        match self {
            Self::Forward => lowest,
            Self::Back => highest,
        }
    }

    /// The nearest bit of a set, from `from` (-1 to 63) on.
    fn nearest(self, set: u64, from: i64) -> Option<i64> {
        let set = match self {
            Self::Forward => set & u64::MAX << from.max(0),
            Self::Back if from < 0 => 0,
            Self::Back => set & u64::MAX >> (63 - from),
        };
        (set != 0).then(|| match self {
            Self::Forward => i64::from(set.trailing_zeros()),
            Self::Back => i64::from(63 - set.leading_zeros()),
        })
    }
}

fn bits(set: u64) -> impl Iterator<Item = i64> {
    (0..64).filter(move |bit| set >> bit & 1 == 1)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

pub(super) fn month_length(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The date of the first day of a month.
pub(super) fn first_of_month(year: i64, month: i64) -> i64 {
    const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    let before = year - 1;
    let leap_days = before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400);
    before * 365 + leap_days + BEFORE[month as usize - 1] + i64::from(month > 2 && is_leap(year)) - 719_162
}

/// Year, month and day of a date.
fn civil(date: i64) -> (i64, i64, i64) {
    // Here a year begins in March, so that its leap day is its last one. 400 years, which have
    // 146,097 days, begin on 0000-03-01. All lengths of months from March on are those of
    // 153 days in 5 months.
    let since = date + 719_468;
    let (cycle, of_cycle) = (since.div_euclid(146_097), since.rem_euclid(146_097));
    let year = (of_cycle - of_cycle / 1_460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (year * 365 + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let next = i64::from(month >= 10);
    (cycle * 400 + year + next, month + 3 - 12 * next, day)
}

/// The texts of the fields.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    pub(super) second: Option<&'a str>,
    pub(super) minute: &'a str,
    pub(super) hour: &'a str,
    pub(super) day: &'a str,
    pub(super) month: &'a str,
    pub(super) weekday: &'a str,
    pub(super) year: Option<&'a str>,
}

/// The fields of a line in upper case, with single blanks. `None`: it has another number of them,
/// and is no nickname.
pub(super) fn fields(upper: &str) -> Option<Fields<'_>> {
    let names = [
        ("@YEARLY", "0 0 1 1 *"),
        ("@ANNUALLY", "0 0 1 1 *"),
        ("@MONTHLY", "0 0 1 * *"),
        ("@WEEKLY", "0 0 * * 0"),
        ("@DAILY", "0 0 * * *"),
        ("@MIDNIGHT", "0 0 * * *"),
        ("@HOURLY", "0 * * * *"),
    ];
    let text = match names.iter().find(|(name, _)| *name == upper) {
        Some((_, fields)) => fields,
        None if upper.starts_with('@') => return None,
        None => upper,
    };
    let fields: Vec<&str> = text.split(' ').collect();
    let (second, fields, year) = match *fields.as_slice() {
        [second, ref fields @ .., year] if fields.len() == 5 => (Some(second), fields, Some(year)),
        [second, ref fields @ ..] if fields.len() == 5 => (Some(second), fields, None),
        ref fields => (None, fields, None),
    };
    let &[minute, hour, day, month, weekday] = fields else { return None };
    Some(Fields { second, minute, hour, day, month, weekday, year })
}

fn unknown_nickname(text: &str, name: &str) -> CronError {
    let error = CronError::of_line(text, "the nickname is unknown");
    error.hinted(match name.split(' ').next().unwrap_or_default().to_ascii_lowercase().as_str() {
        "every" => "a period is no cron line: Schedule::every, or `every 5m` on the command line",
        "reboot" => "a cron line has times alone; a program can put a job when it starts",
        _ => "there are @yearly, @annually, @monthly, @weekly, @daily, @midnight and @hourly",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        Line::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn at(text: &str) -> i64 {
        let civil: jiff::civil::DateTime = text.parse().unwrap();
        jiff::tz::Offset::UTC.to_timestamp(civil).unwrap().as_second()
    }

    /// The days of June 2026, which begins on a Monday, or of another month.
    fn days(text: &str, month: &str) -> Vec<i64> {
        let (line, year, month) = (line(text), month[..4].parse().unwrap(), month[5..].parse().unwrap());
        bits(line.days_of(year, month)).collect()
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let mut date = first_of_month(1, 1);
        assert_eq!(date * DAY, FIRST);
        for year in 1..=5000 {
            for month in 1..=12 {
                assert_eq!(first_of_month(year, month), date, "{year}-{month}");
                for day in [1, 2, 15, month_length(year, month)] {
                    assert_eq!(civil(date + day - 1), (year, month, day));
                }
                date += month_length(year, month);
            }
        }
        let jiff = |text: &str| at(text) / DAY;
        assert_eq!([first_of_month(2024, 3), first_of_month(1900, 3)], [jiff("2024-03-01"), jiff("1900-03-01")]);
        assert_eq!(civil(first_of_month(1, 1) - 1), (0, 12, 31));
    }

    #[test]
    fn civil_times_are_found_in_both_directions() {
        let line = line("30 2 29 2 *");
        assert_eq!(line.at_or_after(at("2024-02-29T02:30")), Some(at("2024-02-29T02:30")));
        assert_eq!(line.at_or_after(at("2024-02-29T02:30:01")), Some(at("2028-02-29T02:30")));
        assert_eq!(line.at_or_before(at("2024-02-29T02:29:59")), Some(at("2020-02-29T02:30")));
        // 2100 is no leap year
        assert_eq!(line.at_or_after(at("2096-03-01T00:00")), Some(at("2104-02-29T02:30")));
    }

    #[test]
    fn the_ends_of_the_calendar_have_no_civil_times_beyond() {
        let each = line("* * * * * *");
        assert_eq!((FIRST, LAST), (at("0001-01-01T00:00"), at("4999-12-31T23:59:59")));
        assert_eq!(each.at_or_after(i64::MIN), Some(FIRST));
        assert_eq!(each.at_or_after(LAST), Some(LAST));
        assert_eq!(each.at_or_after(LAST + 1), None);
        assert_eq!(each.at_or_before(i64::MAX), Some(LAST));
        assert_eq!(each.at_or_before(FIRST), Some(FIRST));
        assert_eq!(each.at_or_before(FIRST - 1), None);
        let yearly = line("@yearly");
        assert_eq!(yearly.at_or_after(LAST), None);
        assert_eq!(yearly.at_or_before(FIRST), Some(FIRST));
        assert_eq!(yearly.at_or_before(at("0001-12-31T00:00")), Some(FIRST));
    }

    #[test]
    fn fields_that_begin_with_a_star_make_a_wildcard() {
        for (text, wildcard) in [
            ("30 2 * * *", false),
            ("0,30 1-5 * * *", false),
            ("0-59/30 2 * * *", false),
            ("5,* 2 * * *", false),
            ("*/30 2 * * *", true),
            ("*,5 2 * * *", true),
            ("0 * * * *", true),
            ("*/10 30 2 * * *", true),
            ("0 30 2 * * *", false),
            ("0 30 2 * * * 2030", false),
            ("@daily", false),
            ("@Hourly", true),
        ] {
            assert_eq!(line(text).is_wildcard(), wildcard, "{text}");
        }
    }

    #[test]
    fn days_are_alternatives_unless_one_field_begins_with_a_star() {
        let june = |text| days(text, "2026-06");
        assert_eq!(june("0 0 13 * 5"), [5, 12, 13, 19, 26]); // Fridays, and the 13th
        assert_eq!(june("0 0 */10 * 1"), [1]); // the 1st, 11th, 21st, 31st, where they are Mondays
        assert_eq!(june("0 0 12 * +5"), [12]); // a Friday the 12th
        assert_eq!(june("0 0 * * 7"), june("0 0 * * SUN"));
        assert_eq!(june("0 0 1,* * 5").len(), 30);
    }

    #[test]
    fn marks_of_days_mean_days_of_their_month() {
        let june = |text| days(text, "2026-06"); // from Monday the 1st to Tuesday the 30th
        assert_eq!(june("0 0 L * ?"), [30]);
        assert_eq!(june("0 0 L-3,L-29,L-30 * *"), [1, 27]);
        assert_eq!(june("0 0 13W,14W,16W * ?"), [12, 15, 16]);
        assert!(june("0 0 31W * ?").is_empty());
        assert_eq!(june("0 0 LW,L-2W * *"), [29, 30]); // the 28th is a Sunday
        assert_eq!(june("0 0 * * 1#2,1#5,FRIL,TUE#L"), [8, 26, 29, 30]);
        assert_eq!(june("0 0 * * MON-FRI#1"), [1, 2, 3, 4, 5]);
        // The first is a Saturday, the last a Sunday: the nearest weekday stays in the month.
        assert_eq!(days("0 0 1W,31W,L * *", "2026-08"), [3, 31]);
        assert_eq!(days("0 0 1W,28W * *", "2026-02"), [2, 27]);
        assert_eq!(days("0 0 31W * *", "2027-10"), [29]);
        // The last day and the last weekday are two days.
        assert_eq!(days("0 0 L,LW * *", "2026-10"), [30, 31]);
    }

    #[test]
    fn ranges_wrap_and_values_have_steps() {
        let weekdays = |text: &str| line(&format!("0 0 * * {text}")).weekdays[0];
        let set = |days: &[u8]| days.iter().fold(0, |set, day| set | 1 << day);
        assert_eq!(weekdays("FRI-MON"), set(&[5, 6, 0, 1]));
        assert_eq!(weekdays("SAT-SUN"), set(&[6, 0]));
        assert_eq!(weekdays("SUN-SUN"), set(&[0, 1, 2, 3, 4, 5, 6]));
        assert_eq!([weekdays("0-0"), weekdays("7-7"), weekdays("SUN-0")], [1, 1, 1]);
        assert_eq!([weekdays("7-2"), weekdays("0-2")], [set(&[0, 1, 2]); 2]);
        assert_eq!([weekdays("7/2"), weekdays("SUN/2"), weekdays("*/2")], [set(&[0, 2, 4, 6]); 3]);
        assert_eq!(weekdays("5-2/2"), set(&[5, 0, 2]));
        let bits = |set: u64| bits(set).collect::<Vec<_>>();
        assert_eq!(bits(line("0 22-2 * * *").hours), [0, 1, 2, 22, 23]);
        assert_eq!(bits(line("5/15 * * * *").minutes), [5, 20, 35, 50]);
        assert_eq!(bits(line("50-20/10 * * * *").minutes), [0, 10, 20, 50]);
        assert_eq!(bits(line("*/90 * * * *").minutes), [0]);
        assert_eq!(bits(line("0 0 1 NOV-FEB *").months), [1, 2, 11, 12]);
        assert_eq!(bits(line("0 0 30-2 * *").days.days), [1, 2, 30, 31]);
    }

    #[test]
    fn years_are_values_and_steps_from_1970() {
        let years = |text: &str, from: &str| {
            let (line, mut from) = (line(&format!("0 0 0 1 1 * {text}")), at(from));
            let next = |_| {
                let next = line.at_or_after(from)?;
                from = next + 1;
                Some(civil(next.div_euclid(DAY)).0)
            };
            (0..3).map_while(next).collect::<Vec<_>>()
        };
        assert_eq!(years("*/2", "2026-05-01T00:00"), [2028, 2030, 2032]);
        assert_eq!(years("*/3", "1900-01-01T00:00"), [1970, 1973, 1976]);
        assert_eq!(years("2027/100,2030", "2026-01-01T00:00"), [2027, 2030, 2127]);
        assert_eq!(years("1999-2001", "2000-01-01T00:00"), [2000, 2001]);
        assert_eq!(years("*,2000", "2000-01-02T00:00"), [2001, 2002, 2003]);
        let back = line("0 0 0 1 1 * 2000-2010/3");
        assert_eq!(back.at_or_before(at("4000-01-01T00:00")), Some(at("2009-01-01T00:00")));
        assert_eq!(back.at_or_before(at("2008-12-31T00:00")), Some(at("2006-01-01T00:00")));
        assert_eq!(back.at_or_before(at("1999-12-31T00:00")), None);
    }
}
