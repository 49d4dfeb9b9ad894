//! The error of a cron line: the place, and what would be right there.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Range, RangeInclusive};

use crate::is_visible;

/// A field of a cron line.
///
/// # Examples
///
/// The field that an error is about:
///
/// ```
/// use timerqueue_schedule::{CronField, Schedule, ScheduleError};
///
/// let Err(ScheduleError::InvalidCron(error)) = Schedule::cron("0 9 * JANUARY *").build() else { panic!() };
/// assert_eq!(error.field(), Some(CronField::Month));
/// assert_eq!(CronField::Month.values(), 1..=12);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CronField {
    /// Of six or seven fields the first.
    Second,
    /// Of five fields the first.
    Minute,
    /// The hour.
    Hour,
    /// The day of the month.
    DayOfMonth,
    /// The month, with names from `JAN` to `DEC`.
    Month,
    /// The day of the week, with names from `SUN` to `SAT`. Both 0 and 7 are Sunday.
    DayOfWeek,
    /// Of seven fields the last.
    Year,
}

impl CronField {
    /// The numbers that the field takes.
    #[must_use]
    pub fn values(self) -> RangeInclusive<u16> {
        match self {
            Self::Second | Self::Minute => 0..=59,
            Self::Hour => 0..=23,
            Self::DayOfMonth => 1..=31,
            Self::Month => 1..=12,
            Self::DayOfWeek => 0..=7,
            Self::Year => 1..=9999,
        }
    }
}

impl fmt::Display for CronField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::DayOfMonth => "day of month",
            Self::Month => "month",
            Self::DayOfWeek => "day of week",
            Self::Year => "year",
        })
    }
}

/// A text is no cron line: the place of the fault in it, and what would be right.
///
/// The texts of `Display` have no control characters, also if the line has some. `{}` is one
/// sentence; `{:#}` adds the line with a mark under the place, and the hint.
///
/// # Examples
///
/// An hour that does not exist:
///
/// ```
/// use timerqueue_schedule::{Schedule, ScheduleError};
///
/// let Err(ScheduleError::InvalidCron(error)) = Schedule::cron("30 24 * * *").build() else { panic!() };
/// assert_eq!((error.value(), &error.line()[error.place()]), ("24", "24"));
/// assert_eq!(error.to_string(), r#"invalid cron line "30 24 * * *": hour "24" is not in 0-23"#);
/// assert_eq!(
///     format!("{error:#}"),
///     "invalid cron line: hour \"24\" is not in 0-23
///   30 24 * * *
///      ^^"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronError {
    line: String,
    field: Option<CronField>,
    place: Range<usize>,
    reason: Cow<'static, str>,
    hint: Option<&'static str>,
}

/// Characters of the line that an error shows.
const SHOWN: usize = 80;

impl CronError {
    /// The line, with single blanks, and cut if it is too long for a cron line.
    #[must_use]
    pub fn line(&self) -> &str {
        &self.line
    }

    /// The field with the fault. `None`: the line as a whole.
    #[must_use]
    pub fn field(&self) -> Option<CronField> {
        self.field
    }

    /// The bytes of the [line](Self::line) with the fault. Empty where something is missing.
    #[must_use]
    pub fn place(&self) -> Range<usize> {
        self.place.clone()
    }

    /// The text at the [place](Self::place).
    #[must_use]
    pub fn value(&self) -> &str {
        &self.line[self.place()]
    }

    /// What is wrong with the value, in English, such as `is not in 0-59`.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// What may have been meant, in English.
    #[must_use]
    pub fn hint(&self) -> Option<&str> {
        self.hint
    }

    /// The line as a whole.
    pub(super) fn of_line(line: &str, reason: &'static str) -> Self {
        let line: String = line.chars().take(SHOWN).collect();
        Self { place: 0..line.len(), line, field: None, reason: reason.into(), hint: None }
    }

    /// A part of the upper case of the line. The place is found by its address, which is that of a
    /// part of `upper`.
    pub(super) fn at(line: &str, upper: &str, field: Option<CronField>, wrong: Wrong<'_>) -> Self {
        let start = (wrong.at.as_ptr().addr()).saturating_sub(upper.as_ptr().addr()).min(line.len());
        let end = (start + wrong.at.len()).min(line.len());
        Self { line: line.to_owned(), field, place: start..end, reason: wrong.reason, hint: wrong.hint }
    }

    pub(super) fn hinted(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }
}

impl fmt::Display for CronError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // From here on the line is shown: the place is among the first characters, also in a long
        // line.
        let from = self.place.start.saturating_sub(SHOWN / 2);
        let from = if self.line.is_char_boundary(from) && self.line.len() > SHOWN { from } else { 0 };
        let value = shown(self.value());
        f.write_str("invalid cron line")?;
        if !f.alternate() {
            write!(f, " \"{}\"", shown(&self.line[from..]))?;
        }
        match (self.field, value.is_empty()) {
            (Some(field), false) => write!(f, ": {field} \"{value}\" {}", self.reason)?,
            (Some(field), true) => write!(f, ": {field}: {}", self.reason)?,
            (None, _) => write!(f, ": {}", self.reason)?,
        }
        if !f.alternate() {
            return Ok(());
        }
        let before = shown(&self.line[from..self.place.start]).chars().count();
        let mark = "^".repeat(value.chars().count().max(1));
        write!(f, "\n  {}\n  {:before$}{mark}", shown(&self.line[from..]), "")?;
        self.hint.map_or(Ok(()), |hint| write!(f, "\n  {hint}"))
    }
}

impl std::error::Error for CronError {}

/// The beginning of a text, without characters that control a terminal.
fn shown(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars().take(SHOWN) {
        if is_visible(c) { shown.push(c) } else { shown.extend(c.escape_default()) }
    }
    shown
}

/// What is wrong, and the part of the line that is.
pub(super) struct Wrong<'a> {
    at: &'a str,
    reason: Cow<'static, str>,
    hint: Option<&'static str>,
}

impl<'a> Wrong<'a> {
    pub(super) fn new(at: &'a str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { at, reason: reason.into(), hint: None }
    }

    /// A text that no value of the field has.
    pub(super) fn of_field(at: &'a str, field: CronField) -> Self {
        let values = field.values();
        let (reason, hint) = match field {
            CronField::Month => (" or JAN-DEC", "names of months have three letters"),
            CronField::DayOfWeek => {
                (" or SUN-SAT", "FRI#2 is the second Friday, FRIL the last one; + in front stands for both day fields")
            }
            CronField::DayOfMonth => (
                "",
                "L is the last day, L-3 three days before, 15W the weekday nearest to the 15th, LW the last weekday",
            ),
            _ => ("", "names stand for months and days of the week; L and W, for days of the month"),
        };
        let reason = format!("is none of {}-{}{reason}", values.start(), values.end());
        Self { at, reason: reason.into(), hint: Some(hint) }
    }
}
