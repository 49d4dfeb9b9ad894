//! Durations and instants as people write and read them, and texts of others that must not control
//! a terminal.

use std::borrow::Cow;
use std::path::Path;
use std::time::{Duration, SystemTime};

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan, Zoned};
use timerqueue_scheduler::is_visible;

/// Units of a duration, longest name first.
const UNITS: &[(&str, u64)] =
    &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000)];

/// A duration such as `90s`, `1h30m`, `2d` (of 24 hours each) and `250ms`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration such as 90s, 1h30m, 2d or 250ms");
    let mut rest = text.trim();
    let mut millis = 0_u64;
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (_, unit) = UNITS.iter().find(|(name, _)| *name == &rest[..letters]).ok_or_else(wrong)?;
        rest = rest[letters..].trim_start();
        millis = number.checked_mul(*unit).and_then(|part| millis.checked_add(part)).ok_or_else(wrong)?;
    }
    Ok(Duration::from_millis(millis))
}

/// A time zone by its name, or that of the system.
pub(crate) fn zone(name: Option<&str>) -> Result<TimeZone, String> {
    match name {
        None => system(),
        Some(name) => TimeZone::get(name).map_err(|_| format!("unknown time zone {name:?}")),
    }
}

/// The time zone of the system. It is UTC where nothing says otherwise, as for the C library.
fn system() -> Result<TimeZone, String> {
    match TimeZone::try_system() {
        Ok(zone) if !zone.is_unknown() => Ok(zone),
        _ if std::env::var_os("TZ").is_none() && !Path::new("/etc/localtime").exists() => Ok(TimeZone::UTC),
        _ => Err("the time zone of the system cannot be read: name one with --zone".to_owned()),
    }
}

/// The name of the system's time zone, for schedules: a store keeps the name, and each machine
/// reads it alike.
pub(crate) fn system_zone() -> Result<String, String> {
    let name = system()?.iana_name().map(str::to_owned);
    name.ok_or_else(|| {
        "the time zone of the system has no name to store (/etc/localtime is a copy, or TZ a rule or a path): name one with \
         --zone, such as --zone Europe/Berlin"
            .to_owned()
    })
}

/// An instant: `2026-12-24T18:00`, `2026-12-24`, `18:00` (the next one), all in the time zone;
/// RFC 3339 with an offset; or as `at` has it ([`Words`]).
pub(crate) fn instant(text: &str, zone_name: Option<&str>, now: SystemTime) -> Result<SystemTime, String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return match zone_name {
            None => Ok(at.into()),
            Some(_) => Err(format!("{text:?} has an offset of its own, so --zone says nothing")),
        };
    }
    let zone = zone(zone_name)?;
    let far = |_| format!("{text:?} is out of range");
    if let Ok(civil) = text.parse::<DateTime>().or_else(|_| text.parse::<Date>().map(DateTime::from)) {
        return Ok(civil.to_zoned(zone).map_err(far)?.into());
    }
    let now = Timestamp::try_from(now).map_err(far)?.to_zoned(zone);
    let words = text.to_ascii_lowercase().replace('+', " + ");
    let words: Vec<&str> = words.split_whitespace().collect();
    let when = Words::of(&words).filter(|_| !words.is_empty()).ok_or_else(|| {
        format!("{text:?} is no time such as 2026-12-24T18:00, 18:00, noon tomorrow, now + 2 hours or 2026-12-24T18:00:00+01:00")
    })?;
    Ok(when.after(&now).map_err(far)?.into())
}

/// A time as `at` reads it: a time of day, a day and what is added to them, each of which may be
/// left out.
#[derive(Default)]
struct Words {
    time: Option<Time>,
    day: Option<Day>,
    added: Vec<Span>,
}

enum Day {
    On(Date),
    /// Today and so many days.
    In(i32),
    Next(Weekday),
}

impl Words {
    fn of(words: &[&str]) -> Option<Self> {
        const DAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
        let (mut found, mut rest) = (Self::default(), words);
        if let ["now", behind @ ..] = rest {
            rest = behind;
            if !rest.is_empty() && !matches!(rest[0], "+" | "next") {
                return None;
            }
        }
        while let [word, behind @ ..] = rest {
            rest = behind;
            let weekday = DAYS.iter().position(|day| day == word || (word.len() == 3 && day.starts_with(word)));
            let day = match *word {
                "+" => {
                    let [number, unit, behind @ ..] = rest else { return None };
                    found.added.push(span(number.parse().ok()?, unit)?);
                    rest = behind;
                    continue;
                }
                "next" if matches!(rest, [unit, ..] if span(1, unit).is_some()) => {
                    found.added.push(span(1, rest[0])?);
                    rest = &rest[1..];
                    continue;
                }
                "next" => continue,
                "today" => Some(Day::In(0)),
                "tomorrow" => Some(Day::In(1)),
                word => match (weekday, word.parse::<Date>()) {
                    (Some(day), _) => Some(Day::Next(Weekday::from_monday_zero_offset(day as i8).ok()?)),
                    (None, day) => day.ok().map(Day::On),
                },
            };
            if day.is_some() {
                if found.day.is_some() || !found.added.is_empty() {
                    return None;
                }
                found.day = day;
                continue;
            }
            let half = matches!(rest, ["am" | "pm", ..]).then(|| rest[0]);
            rest = &rest[usize::from(half.is_some())..];
            let time = time(&format!("{word}{}", half.unwrap_or_default()))?;
            if found.time.replace(time).is_some() || !found.added.is_empty() {
                return None;
            }
        }
        Some(found)
    }

    /// The next such time.
    fn after(self, now: &Zoned) -> Result<Zoned, jiff::Error> {
        let time = self.time.unwrap_or_else(|| now.time());
        let at = |date: Date| date.to_datetime(time).to_zoned(now.time_zone().clone());
        let today = now.date();
        let begin = match self.day {
            None if self.time.is_none() => now.clone(),
            None if at(today)? > *now => at(today)?,
            None => at(today.checked_add(1.day())?)?,
            Some(Day::On(date)) => at(date)?,
            Some(Day::In(days)) => at(today.checked_add(days.days())?)?,
            Some(Day::Next(day)) if day == today.weekday() && at(today)? > *now => at(today)?,
            Some(Day::Next(day)) => at(today.nth_weekday(1, day)?)?,
        };
        self.added.into_iter().try_fold(begin, |at, span| at.checked_add(span))
    }
}

/// A number of units: hours and minutes elapse, days and more are those of the calendar.
fn span(number: i64, unit: &str) -> Option<Span> {
    let span = Span::new();
    match unit.strip_suffix('s').unwrap_or(unit) {
        "minute" | "min" => span.try_minutes(number),
        "hour" => span.try_hours(number),
        "day" => span.try_days(number),
        "week" => span.try_weeks(number),
        "month" => span.try_months(number),
        "year" => span.try_years(number),
        _ => return None,
    }
    .ok()
}

/// A time of day: `18:00`, `6pm`, `6:30pm`, `noon`.
fn time(word: &str) -> Option<Time> {
    let hour = |hour| Time::new(hour, 0, 0, 0).ok();
    match word {
        "midnight" => return hour(0),
        "noon" => return hour(12),
        "teatime" => return hour(16),
        _ => {}
    }
    let (clock, later) = match (word.strip_suffix("am"), word.strip_suffix("pm")) {
        (Some(clock), _) => (clock, 0),
        (_, Some(clock)) => (clock, 12),
        _ => return word.contains(':').then(|| word.parse().ok())?,
    };
    let (hours, minutes) = clock.split_once(':').unwrap_or((clock, "0"));
    let hours: i8 = hours.parse().ok().filter(|hours| (1..=12).contains(hours))?;
    Time::new(hours % 12 + later, minutes.parse().ok()?, 0, 0).ok()
}

/// An instant for people, in a time zone.
pub(crate) fn at_in(at: SystemTime, zone: &TimeZone) -> String {
    match Timestamp::try_from(at) {
        Ok(at) => shown(&at.to_zoned(zone.clone())),
        Err(_) => "beyond all calendars".to_owned(),
    }
}

fn shown(at: &Zoned) -> String {
    let whole = at.subsec_nanosecond() == 0;
    at.strftime(if whole { "%Y-%m-%d %H:%M:%S %:z" } else { "%Y-%m-%d %H:%M:%S%.3f %:z" }).to_string()
}

/// An instant for people, in the time zone of the system.
pub(crate) fn at(at: SystemTime) -> String {
    at_in(at, &TimeZone::system())
}

/// An instant for programs: RFC 3339 in UTC.
pub(crate) fn rfc3339(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| format!("{at:?}"), |at| at.to_string())
}

/// How far ahead an instant is, or how long ago: `in 5m 3s`, `2h 10m ago`.
pub(crate) fn relative(at: SystemTime, now: SystemTime) -> String {
    match at.duration_since(now) {
        Ok(ahead) => format!("in {}", rough(ahead)),
        Err(ago) => format!("{} ago", rough(ago.duration())),
    }
}

/// A duration in its two greatest units.
pub(crate) fn rough(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3_600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h {}m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// A text from elsewhere on one line, without characters that control a terminal.
pub(crate) fn tame(text: &str) -> String {
    tamed(text, is_visible).into_owned()
}

/// A text of several lines, without other characters that control a terminal. All that is written
/// for people goes through here.
pub(crate) fn tame_lines(text: &str) -> Cow<'_, str> {
    tamed(text, |c| c == '\n' || is_visible(c))
}

fn tamed(text: &str, shown: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.chars().all(&shown) {
        return Cow::Borrowed(text);
    }
    let mut tame = String::with_capacity(text.len());
    for c in text.chars() {
        if shown(c) { tame.push(c) } else { tame.extend(c.escape_default()) }
    }
    Cow::Owned(tame)
}

/// As [`tame`], and cut to this number of characters.
pub(crate) fn short(text: &str, most: usize) -> String {
    let tame = tame(text);
    match tame.char_indices().nth(most) {
        Some((end, _)) => format!("{}...", &tame[..end]),
        None => tame,
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn durations_have_units() {
        let millis = |text| duration(text).map(|found| found.as_millis());
        assert_eq!(millis("250ms"), Ok(250));
        assert_eq!(millis("1h30m"), Ok(5_400_000));
        assert_eq!(millis("1d 2h"), Ok(93_600_000));
        for wrong in ["", "5", "m", "5 m", "-5m", "5x", "1h30", "99999999999999999999s", "9999999999999999w", "5µ"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn instants_are_of_their_zone() {
        let now = UNIX_EPOCH + Duration::from_secs(1_790_000_000); // 2026-09-21T14:13:20Z
        let at = |text, zone| instant(text, zone, now).map(rfc3339);
        let berlin = Some("Europe/Berlin");
        assert_eq!(at("2026-12-24T18:00", berlin).unwrap(), "2026-12-24T17:00:00Z");
        assert_eq!(at("2026-12-24 18:00:30", Some("UTC")).unwrap(), "2026-12-24T18:00:30Z");
        assert_eq!(at("2026-12-24", berlin).unwrap(), "2026-12-23T23:00:00Z");
        assert_eq!(at("2026-12-24T18:00:00+05:00", None).unwrap(), "2026-12-24T13:00:00Z");
        // The next one: today, or tomorrow.
        assert_eq!(at("17:00", berlin).unwrap(), "2026-09-21T15:00:00Z");
        assert_eq!(at("16:00", berlin).unwrap(), "2026-09-22T14:00:00Z");
        for (wrong, zone) in [("2026-12-24T18:00", Some("Mars/Base")), ("2026-12-24T18:00Z", berlin)] {
            assert!(at(wrong, zone).is_err(), "{wrong}");
        }
    }

    #[test]
    fn instants_are_told_as_at_has_them() {
        let now = UNIX_EPOCH + Duration::from_secs(1_790_000_000); // Monday, 2026-09-21T16:13:20 in Berlin
        let at = |text| instant(text, Some("Europe/Berlin"), now).map(rfc3339);
        for (text, found) in [
            ("now", "2026-09-21T14:13:20Z"),
            ("now + 2 hours", "2026-09-21T16:13:20Z"),
            ("Now +90minutes + 1 day", ""),
            ("now + 90 minutes + 1 day", "2026-09-22T15:43:20Z"),
            ("noon", "2026-09-22T10:00:00Z"),
            ("midnight", "2026-09-21T22:00:00Z"),
            ("6pm", "2026-09-21T16:00:00Z"),
            ("6:30 PM tomorrow", "2026-09-22T16:30:00Z"),
            ("12am", "2026-09-21T22:00:00Z"),
            ("tomorrow", "2026-09-22T14:13:20Z"),
            ("tomorrow noon", "2026-09-22T10:00:00Z"),
            ("monday", "2026-09-28T14:13:20Z"),
            ("18:00 mon", "2026-09-21T16:00:00Z"),
            ("16:00 next monday", "2026-09-28T14:00:00Z"),
            ("next week", "2026-09-28T14:13:20Z"),
            ("teatime + 3 days", "2026-09-25T14:00:00Z"),
            ("18:00 2026-12-24", "2026-12-24T17:00:00Z"),
            // The clock goes back in between: a day has 25 hours.
            ("noon 2026-10-24 + 1 day", "2026-10-25T11:00:00Z"),
            ("noon 2026-10-24 + 24 hours", "2026-10-25T10:00:00Z"),
        ] {
            let wanted = Some(found.to_owned()).filter(|found| !found.is_empty());
            assert_eq!(at(text).ok(), wanted, "{text}");
        }
        for wrong in [
            "",
            "+",
            "+ 1 day day",
            "noon noon",
            "now noon",
            "13pm",
            "tomorrow today",
            "25:00",
            "now + 1",
            "never",
            "7",
        ] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
        assert!(at("now + 999999999 years").is_err());
    }

    #[test]
    fn texts_do_not_control_the_terminal() {
        assert_eq!(tame("a\x1b[31m\nb\u{202e}"), "a\\u{1b}[31m\\nb\\u{202e}");
        assert_eq!(tame_lines("a\x1b[31m\nb\u{9b}\u{200b}"), "a\\u{1b}[31m\nb\\u{9b}\\u{200b}");
        assert_eq!(short("abcdef", 3), "abc...");
        assert_eq!(short("abc", 3), "abc");
    }
}
