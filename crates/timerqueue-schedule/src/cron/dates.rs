//! The dates of a cron line that count: each n-th day, week or month, without the dates left out.
//!
//! A date is the number of days since 1970-01-01, as in `line`.

use std::fmt;
use std::str::FromStr;

use super::line::{first_of_month, month_length};

/// Days, weeks or months, for [`ScheduleBuilder::each`](crate::ScheduleBuilder::each).
///
/// # Examples
///
/// A review in each third month:
///
/// ```
/// use std::time::{Duration, UNIX_EPOCH};
/// use timerqueue_schedule::{CalendarUnit, Schedule};
///
/// let january = UNIX_EPOCH + Duration::from_secs(1_767_225_600); // 2026-01-01
/// let review = Schedule::cron("0 9 15 * *").from(january).each(3, CalendarUnit::Month).build()?;
/// let days: Vec<u64> = review
///     .preview(january, 3)
///     .iter()
///     .map(|next| next.nominal().duration_since(january).unwrap().as_secs() / 86_400)
///     .collect();
/// assert_eq!(days, [14, 104, 195]); // the 15th of January, April and July
/// # Ok::<(), timerqueue_schedule::ScheduleError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// Dates of the calendar.
    Day,
    /// Weeks from Monday to Sunday.
    Week,
    /// Months of the calendar.
    Month,
}

/// Each n-th unit. Its text is such as `2 weeks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Each {
    pub(crate) n: u16,
    pub(crate) unit: CalendarUnit,
}

impl CalendarUnit {
    const NAMES: [(Self, &'static str); 3] = [(Self::Day, "days"), (Self::Week, "weeks"), (Self::Month, "months")];

    /// The number of the unit that contains a date.
    fn index(self, date: i64, year: i64, month: i64) -> i64 {
        match self {
            Self::Day => date,
            // 1970-01-01 was a Thursday.
            Self::Week => (date + 3).div_euclid(7),
            Self::Month => year * 12 + month,
        }
    }
}

impl fmt::Display for Each {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = CalendarUnit::NAMES.iter().find(|(unit, _)| *unit == self.unit).map_or("", |(_, name)| name);
        write!(f, "{} {name}", self.n)
    }
}

impl FromStr for Each {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (n, name) = text.split_once(' ').ok_or(())?;
        let (unit, _) = CalendarUnit::NAMES.iter().find(|(_, known)| *known == name).ok_or(())?;
        Ok(Self { n: n.parse().map_err(|_| ())?, unit: *unit })
    }
}

/// A date that is left out, such as `2026-12-25`, or in each year: `12-25`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Day {
    /// 0: each year.
    year: i64,
    month: i64,
    day: i64,
}

impl FromStr for Day {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = |text: &str, digits: usize| {
            let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<i64>().ok().filter(|_| is_number).ok_or(())
        };
        let (year, date) = match text.len() {
            10 => {
                (number(text.get(..4).ok_or(())?, 4)?, text.get(4..).and_then(|text| text.strip_prefix('-')).ok_or(())?)
            }
            _ => (0, text),
        };
        let (month, day) = date.split_once('-').ok_or(())?;
        let (month, day) = (number(month, 2)?, number(day, 2)?);
        // February 29 is a date of some years.
        let longest =
            if (1..=12).contains(&month) { month_length(if text.len() == 10 { year } else { 4 }, month) } else { 0 };
        let exists = (1..=longest).contains(&day) && (text.len() != 10 || year > 0);
        exists.then_some(Self { year, month, day }).ok_or(())
    }
}

/// Which dates count.
#[derive(Debug, Default)]
pub(super) struct Dates {
    /// With the number of a unit that counts.
    pub(super) each: Option<(Each, i64)>,
    /// In order.
    except: Vec<Day>,
}

impl Dates {
    /// The date of `from` is in a unit that counts. `Err`: the text is no date.
    pub(super) fn new(each: Option<(Each, (i64, i64, i64))>, except: &[String]) -> Result<Self, String> {
        let each = each.map(|(each, (year, month, day))| {
            (each, each.unit.index(first_of_month(year, month) + day - 1, year, month))
        });
        let days = except.iter().map(|text| text.parse().map_err(|()| text.clone()));
        let mut except: Vec<Day> = days.collect::<Result<_, _>>()?;
        except.sort_unstable();
        Ok(Self { each, except })
    }

    /// The nearest date of a unit that counts, before the dates left out.
    pub(super) fn counted(&self, date: i64, (year, month): (i64, i64), forward: bool) -> i64 {
        let Some((each, counts)) = self.each else { return date };
        let index = each.unit.index(date, year, month);
        let n = i64::from(each.n);
        let to_next = (counts - index).rem_euclid(n);
        let found = match (to_next, forward) {
            (0, _) => return date,
            (_, true) => index + to_next,
            (_, false) => index + to_next - n,
        };
        // Forward to the first day of the unit, back to the last one.
        match (each.unit, i64::from(!forward)) {
            (CalendarUnit::Day, _) => found,
            (CalendarUnit::Week, last) => (found + last) * 7 - 3 - last,
            (CalendarUnit::Month, last) => {
                let month = found - 1 + last; // months from January of the year zero
                first_of_month(month.div_euclid(12), month.rem_euclid(12) + 1) - last
            }
        }
    }

    /// The days of a month that count: bit n is the day n.
    pub(super) fn of(&self, year: i64, month: i64) -> u64 {
        let mut days = u64::MAX;
        if let Some((each, counts)) = self.each {
            let first = first_of_month(year, month);
            let is_one = |day: &i64| {
                let index = each.unit.index(first + day - 1, year, month);
                (index - counts).rem_euclid(i64::from(each.n)) == 0
            };
            days = (1..=month_length(year, month)).filter(is_one).fold(0, |days, day| days | 1 << day);
        }
        for year in [0, year] {
            let begin = self.except.partition_point(|day| (day.year, day.month) < (year, month));
            let of_month = self.except[begin..].iter().take_while(|day| (day.year, day.month) == (year, month));
            days = of_month.fold(days, |days, day| days & !(1 << day.day));
        }
        days
    }
}
