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
    each: Option<Cycle>,
    /// In order.
    except: Vec<Day>,
}

/// The units that count, among all days or all months.
#[derive(Clone, Copy, Debug)]
struct Cycle {
    is_month: bool,
    /// The first day, or the month, of a unit that counts.
    begin: i64,
    /// The days of a unit; one month.
    unit: i64,
    /// The distance between two units that count.
    length: i64,
    /// The first 64 days from the begin: those of units that count.
    days: u64,
}

impl Cycle {
    fn new(each: Each, (year, month, day): (i64, i64, i64)) -> Self {
        let date = first_of_month(year, month) + day - 1;
        let (is_month, begin, unit) = match each.unit {
            CalendarUnit::Day => (false, date, 1),
            // 1970-01-01 was a Thursday.
            CalendarUnit::Week => (false, date - (date + 3).rem_euclid(7), 7),
            CalendarUnit::Month => (true, year * 12 + month, 1),
        };
        let length = unit * i64::from(each.n);
        let days = (0..64).filter(|day| day % length < unit).fold(0, |days, day| days | 1 << day);
        Self { is_month, begin, unit, length, days }
    }

    /// The days or months from the begin of the last unit that counts.
    fn phase(&self, at: i64) -> i64 {
        (at - self.begin).rem_euclid(self.length)
    }

    /// The nearest day or month of a unit that counts.
    fn nearest(&self, at: i64, forward: bool) -> i64 {
        match (self.phase(at), forward) {
            (phase, _) if phase < self.unit => at,
            (phase, true) => at + self.length - phase,
            (phase, false) => at - phase + self.unit - 1,
        }
    }

    /// The days of a month that count: bit n is the day n.
    fn of(&self, year: i64, month: i64) -> u64 {
        if self.is_month {
            return if self.phase(year * 12 + month) == 0 { u64::MAX } else { 0 };
        }
        // From the last unit that counts on, and from the next one on. A unit has 7 days at most.
        let phase = self.phase(first_of_month(year, month));
        let last = self.days.checked_shr(phase as u32).unwrap_or(0);
        let next = self.days.checked_shl((self.length - phase) as u32).unwrap_or(0);
        (last | next) << 1
    }
}

impl Dates {
    /// The date of `from` is in a unit that counts. `Err`: the text is no date.
    pub(super) fn new(each: Option<(Each, (i64, i64, i64))>, except: &[String]) -> Result<Self, String> {
        let each = each.map(|(each, from)| Cycle::new(each, from));
        let days = except.iter().map(|text| text.parse().map_err(|()| text.clone()));
        let mut except: Vec<Day> = days.collect::<Result<_, _>>()?;
        except.sort_unstable();
        Ok(Self { each, except })
    }

    /// The nearest date of a unit that counts, before the dates left out. `None`: the month of the
    /// date may have one.
    pub(super) fn beyond(&self, date: i64, (year, month): (i64, i64), forward: bool) -> Option<i64> {
        let cycle = self.each?;
        if !cycle.is_month {
            return (cycle.length > 31).then(|| cycle.nearest(date, forward));
        }
        let at = year * 12 + month;
        let found = cycle.nearest(at, forward);
        // Forward to the first day of the month, back to the last one.
        let last = i64::from(!forward);
        let after = found - 1 + last; // months from January of the year zero
        (found != at).then(|| first_of_month(after.div_euclid(12), after.rem_euclid(12) + 1) - last)
    }

    /// The days of a month that count: bit n is the day n.
    pub(super) fn of(&self, year: i64, month: i64) -> u64 {
        let mut days = self.each.map_or(u64::MAX, |cycle| cycle.of(year, month));
        for year in [0, year] {
            let begin = self.except.partition_point(|day| (day.year, day.month) < (year, month));
            let of_month = self.except[begin..].iter().take_while(|day| (day.year, day.month) == (year, month));
            days = of_month.fold(days, |days, day| days & !(1 << day.day));
        }
        days
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Walks over each date of some years, forward and back.
    #[test]
    fn each_nth_unit_has_the_days_found_by_walking() {
        let (first, last) = (first_of_month(2023, 1), first_of_month(2029, 1) - 1);
        let months: Vec<(i64, i64)> = (2023..2029).flat_map(|year| (1..=12).map(move |month| (year, month))).collect();
        let (mut long, mut short) = (0, 0);
        for (unit, days) in [(CalendarUnit::Day, 1), (CalendarUnit::Week, 7), (CalendarUnit::Month, 0)] {
            for n in [1, 2, 3, 4, 5, 6, 7, 9, 13, 30, 31, 32, 33, 63, 64, 65, 100, 365, 1_000] {
                // 2026-03-05 was a Thursday; the Monday of its week was March 2.
                let dates = Dates::new(Some((Each { n, unit }, (2026, 3, 5))), &[]).unwrap();
                let counts = |date: i64, (year, month): (i64, i64)| {
                    let distance = match unit {
                        CalendarUnit::Day => date - (first_of_month(2026, 3) + 4),
                        CalendarUnit::Week => (date - (first_of_month(2026, 3) + 1)).div_euclid(days),
                        CalendarUnit::Month => (year - 2026) * 12 + month - 3,
                    };
                    distance % i64::from(n) == 0
                };
                let walked = |month: (i64, i64)| {
                    let dates = first_of_month(month.0, month.1)..;
                    let dates = dates.take(month_length(month.0, month.1) as usize);
                    dates.map(move |date| (date, counts(date, month)))
                };
                let all: Vec<(i64, bool)> = months.iter().flat_map(|&month| walked(month)).collect();
                for &(year, month) in &months {
                    let begin = first_of_month(year, month);
                    for (date, counts) in walked((year, month)) {
                        let day = date - begin + 1;
                        assert_eq!(dates.of(year, month) >> day & 1 == 1, counts, "{n} {unit:?}: {year}-{month}-{day}");
                        let index = (date - first) as usize;
                        let next = all[index..].iter().find(|day| day.1).map_or(last + 1, |day| day.0);
                        let previous = all[..=index].iter().rfind(|day| day.1).map_or(first - 1, |day| day.0);
                        let forward = dates.beyond(date, (year, month), true);
                        let back = dates.beyond(date, (year, month), false);
                        // A leap passes no date that counts, and comes to one.
                        let next_is_right = forward.is_none_or(|date| date.min(last + 1) == next);
                        let previous_is_right = back.is_none_or(|date| date.max(first - 1) == previous);
                        assert!(next_is_right && previous_is_right, "{n} {unit:?}: {year}-{month}-{day}");
                        long += usize::from(forward.is_some());
                        short += usize::from(forward.is_none());
                    }
                }
            }
        }
        assert!(long > 50_000 && short > 20_000, "{long} leaps, {short} without");
    }
}
