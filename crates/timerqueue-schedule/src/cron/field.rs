//! The fields of a cron line: their grammar, and their values as bit sets.
//!
//! The crate documentation has the grammar. The functions here take text in upper case.

use std::ops::RangeInclusive;

use super::error::{CronField, Wrong};

/// A step of years behind a star counts from here, as in Quartz and croniter.
const FIRST_STEPPED_YEAR: u16 = 1970;

pub(super) const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
pub(super) const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// The value `first`, and each `step`-th one up to `last`.
#[derive(Clone, Copy, Debug)]
struct Values {
    first: u16,
    /// Above the last value of the field: the values go on with the first one of the field.
    last: u16,
    step: u16,
}

/// The days of the month by number: bit n is the day n, or the day n days before the last one.
#[derive(Debug, Default)]
pub(super) struct MonthDays {
    pub(super) days: u64,
    pub(super) from_last: u64,
    /// The weekday nearest to such a day.
    pub(super) nearest: u64,
    pub(super) nearest_from_last: u64,
}

/// The days of the week, bit 0 is Sunday: all of a month at index 0, the n-th of a month at index
/// n, the last at [`LAST`].
pub(super) type Weekdays = [u8; 7];
pub(super) const LAST: usize = 6;

/// No line has an occurrence in a later year.
pub(super) const LAST_YEAR: u16 = 4999;

/// The years as bits: the year n is the bit n % 64 of the word n / 64.
pub(super) type Years = [u64; LAST_YEAR as usize / 64 + 1];

/// Vixie's star: a field that begins with one.
pub(super) fn begins_with_star(text: &str) -> bool {
    text.starts_with(['*', '?'])
}

/// Seconds, minutes, hours and months.
pub(super) fn set(field: CronField, text: &str) -> Result<u64, Wrong<'_>> {
    text.split(',').try_fold(0, |set, item| Ok(set | bits(field, values(field, item)?)))
}

pub(super) fn years(text: &str) -> Result<Box<Years>, Wrong<'_>> {
    let mut found: Box<Years> = Box::new([0; LAST_YEAR as usize / 64 + 1]);
    for item in text.split(',') {
        let Values { first, last, step } = values(CronField::Year, item)?;
        for year in (first.into()..usize::from(last.min(LAST_YEAR)) + 1).step_by(step.into()) {
            found[year / 64] |= 1 << (year % 64);
        }
    }
    Ok(found)
}

pub(super) fn month_days(text: &str) -> Result<MonthDays, Wrong<'_>> {
    let field = CronField::DayOfMonth;
    let mut found = MonthDays::default();
    for item in text.split(',') {
        if let Some(rest) = item.strip_prefix('L') {
            let (rest, set) = match rest.strip_suffix('W') {
                Some(rest) => (rest, &mut found.nearest_from_last),
                None => (rest, &mut found.from_last),
            };
            let back = match rest.strip_prefix('-') {
                Some(back) => number(back, 1..=30)?,
                None if rest.is_empty() => 0,
                None => return Err(Wrong::of_field(item, field)),
            };
            *set |= 1 << back;
        } else if let Some(day) = item.strip_suffix('W') {
            found.nearest |= 1 << value(field, day)?;
        } else {
            found.days |= bits(field, values(field, item)?);
        }
    }
    Ok(found)
}

pub(super) fn weekdays(text: &str) -> Result<Weekdays, Wrong<'_>> {
    let field = CronField::DayOfWeek;
    let mut found = Weekdays::default();
    for item in text.split(',') {
        let (days, nth) = match (item.split_once('#'), item.strip_suffix('L')) {
            (Some((days, "L")), _) => (values(field, days)?, LAST),
            (Some((days, nth)), _) => (values(field, days)?, usize::from(number(nth, 1..=5)?)),
            (None, Some(day)) if !day.is_empty() => {
                let day = value(field, day)?;
                (Values { first: day, last: day, step: 1 }, LAST)
            }
            _ => (values(field, item)?, 0),
        };
        found[nth] |= bits(field, days) as u8;
    }
    Ok(found)
}

/// The values as bits. Both 0 and 7 are Sunday.
fn bits(field: CronField, values: Values) -> u64 {
    let (lowest, highest) = own_values(field);
    let size = highest - lowest + 1;
    (values.first..=values.last)
        .step_by(usize::from(values.step))
        .fold(0, |set, value| set | 1 << (lowest + (value - lowest) % size))
}

/// The values that a star stands for.
fn own_values(field: CronField) -> (u16, u16) {
    let values = field.values();
    (*values.start(), if field == CronField::DayOfWeek { 6 } else { *values.end() })
}

/// A star, a value or a range, with or without a step.
fn values(field: CronField, text: &str) -> Result<Values, Wrong<'_>> {
    let (range, step) = match text.split_once('/') {
        Some((range, step)) => (range, Some(number(step, 1..=u16::MAX)?)),
        None => (text, None),
    };
    let (lowest, highest) = own_values(field);
    let is_day = matches!(field, CronField::DayOfMonth | CronField::DayOfWeek);
    let (first, last) = if range == "*" || range == "?" && is_day {
        (if field == CronField::Year && step.is_some() { FIRST_STEPPED_YEAR } else { lowest }, highest)
    } else if let Some((from, to)) = range.split_once('-') {
        let first = value(field, from)?;
        // A range from Monday to Sunday does not wrap.
        let last = if field == CronField::DayOfWeek && to == "SUN" { 7 } else { value(field, to)? };
        match (last < first, field) {
            (false, _) => (first, last),
            (true, CronField::Year) => return Err(Wrong::new(range, "ends before it begins")),
            (true, _) => (first, last + highest - lowest + 1),
        }
    } else {
        let first = value(field, range)?;
        // From Sunday as 7 the days go on to the next Saturday.
        let end = if first > highest { first + highest } else { highest };
        (first, if step.is_some() { end } else { first })
    };
    Ok(Values { first, last, step: step.unwrap_or(1) })
}

/// A number, or a name in the fields that have names.
fn value(field: CronField, text: &str) -> Result<u16, Wrong<'_>> {
    let (names, first): (&[&str], u16) = match field {
        CronField::Month => (&MONTHS, 1),
        CronField::DayOfWeek => (&WEEKDAYS, 0),
        _ => (&[], 0),
    };
    if let Some(index) = names.iter().position(|name| *name == text) {
        return Ok(first + index as u16);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        number(text, field.values())
    } else {
        Err(Wrong::of_field(text, field))
    }
}

fn number(text: &str, values: RangeInclusive<u16>) -> Result<u16, Wrong<'_>> {
    if text.is_empty() {
        return Err(Wrong::new(text, "a number is missing"));
    }
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| is_number && values.contains(number));
    number.ok_or_else(|| Wrong::new(text, format!("is not in {}-{}", values.start(), values.end())))
}
