//! Texts for people: hostile names, instants, durations.
//!
//! Ground rules. Templates escape each text. What is left to do here is what escaping does not:
//! characters that a reader does not see, or that turn the text around them, are shown by their
//! numbers.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use timerqueue_scheduler::{Counts, KindCounts, State, is_visible};

/// Whether a character is shown as it is.
fn is_plain(c: char, lines: bool) -> bool {
    match c {
        '\n' | '\t' => lines,
        c => is_visible(c),
    }
}

fn shown(text: &str, lines: bool) -> Cow<'_, str> {
    if text.chars().all(|c| is_plain(c, lines)) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if is_plain(c, lines) => shown.push(c),
            '\r' if lines => {}
            c => _ = write!(shown, "⟨U+{:04X}⟩", u32::from(c)),
        }
    }
    Cow::Owned(shown)
}

/// A text on one line.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    shown(text, false)
}

/// A text with its lines.
pub(crate) fn visible_lines(text: &str) -> Cow<'_, str> {
    shown(text, true)
}

/// The beginning of a text, on one line.
pub(crate) fn short(text: &str, characters: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    let mut short: String = line.chars().take(characters).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    visible(&short).into_owned()
}

/// A key of a query of a URL, with its value.
pub(crate) fn pair(name: &str, value: &str) -> String {
    form_urlencoded::Serializer::new(String::new()).append_pair(name, value).finish()
}

/// An instant by RFC 3339, in seconds.
pub(crate) fn rfc3339(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| "?".to_owned(), |at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// An instant as a field of a form has it, in UTC.
pub(crate) fn input(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| String::new(), |at| at.strftime("%Y-%m-%dT%H:%M:%S").to_string())
}

/// An instant of a form: a date, with or without a time of day, in UTC, or by RFC 3339.
pub(crate) fn read_instant(text: &str) -> Option<SystemTime> {
    let text = text.trim();
    let civil = || text.parse::<jiff::civil::DateTime>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok();
    let instant = text.parse::<Timestamp>().ok().or_else(|| Some(civil()?.timestamp()))?;
    (instant >= Timestamp::UNIX_EPOCH).then(|| instant.into())
}

/// The characters of JSON without white space outside of its texts, and whether each is inside of
/// one.
pub(crate) fn compact(json: &str) -> impl Iterator<Item = (char, bool)> {
    let (mut in_text, mut escaped) = (false, false);
    json.chars().filter_map(move |c| {
        let was_in_text = in_text;
        in_text = if in_text { escaped || c != '"' } else { c == '"' };
        escaped = was_in_text && c == '\\' && !escaped;
        (was_in_text || !matches!(c, ' ' | '\n' | '\r' | '\t')).then_some((c, was_in_text))
    })
}

/// Date and time of day, in UTC.
pub(crate) fn date_time(at: SystemTime) -> String {
    Timestamp::try_from(at).map_or_else(|_| "?".to_owned(), |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// The time of day, in UTC; in long spans with the day.
pub(crate) fn clock(at: SystemTime, days: bool) -> String {
    let form = if days { "%b %d" } else { "%H:%M" };
    Timestamp::try_from(at).map_or_else(|_| "?".to_owned(), |at| at.strftime(form).to_string())
}

/// A duration with two units at most.
pub(crate) fn duration(duration: Duration) -> String {
    let (seconds, micros) = (duration.as_secs(), duration.subsec_micros());
    match seconds {
        0 if micros < 1_000 => format!("{micros} µs"),
        0 if micros < 10_000 => format!("{}.{} ms", micros / 1_000, micros % 1_000 / 100),
        0 => format!("{} ms", micros / 1_000),
        1..10 => format!("{seconds}.{} s", micros / 100_000),
        10..60 => format!("{seconds} s"),
        60..3_600 => two(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

fn two(many: u64, unit: &str, few: u64, small: &str) -> String {
    if few == 0 { format!("{many} {unit}") } else { format!("{many} {unit} {few} {small}") }
}

/// How far an instant is from now.
pub(crate) fn relative(at: SystemTime, now: SystemTime) -> String {
    let whole = |distance: Duration| Duration::from_secs(distance.as_secs());
    match at.duration_since(now) {
        Ok(ahead) if ahead < Duration::from_secs(1) => "now".to_owned(),
        Ok(ahead) => format!("in {}", coarse(whole(ahead))),
        Err(behind) if behind.duration() < Duration::from_secs(1) => "now".to_owned(),
        Err(behind) => format!("{} ago", coarse(whole(behind.duration()))),
    }
}

/// A duration of whole seconds.
fn coarse(time: Duration) -> String {
    if time < Duration::from_secs(10) { format!("{} s", time.as_secs()) } else { duration(time) }
}

/// A number with thin spaces between its thousands.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push('\u{2009}');
        }
        text.push(digit);
    }
    text
}

/// How many there are, and whether this is exact.
#[derive(Clone, Copy)]
pub(crate) struct Count {
    pub(crate) number: u64,
    mark: Option<char>,
}

impl Count {
    /// There may be more in truth.
    pub(crate) fn at_least(number: u64, is_bounded: bool) -> Self {
        Self { number, mark: is_bounded.then_some('+') }
    }

    /// The jobs in a state.
    pub(crate) fn of(counts: &Counts, state: State) -> Self {
        let exact = Self::at_least(counts.of(state), counts.is_bounded(state));
        exact.or_about(counts.estimate().filter(|_| state == State::Waiting))
    }

    /// The jobs of a handler in a state.
    pub(crate) fn of_kind(kind: &KindCounts, state: State) -> Self {
        let exact = Self::at_least(kind.of(state), kind.is_bounded(state));
        exact.or_about(kind.estimate().filter(|_| state == State::Waiting))
    }

    fn or_about(self, estimate: Option<u64>) -> Self {
        estimate.map_or(self, |number| Self { number, mark: Some('≈') })
    }

    pub(crate) fn is_none(self) -> bool {
        self.number == 0 && self.mark.is_none()
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mark {
            // Two digits of an estimate say all that it knows.
            Some('≈') => {
                let unit = 10_u64.pow(self.number.checked_ilog10().unwrap_or_default().saturating_sub(1));
                write!(f, "≈{}", number(self.number / unit * unit))
            }
            Some(mark) => write!(f, "{}{mark}", number(self.number)),
            None => f.write_str(&number(self.number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn what_a_reader_does_not_see_is_shown() {
        assert_eq!(visible("review/17 über 雨 👩‍🚀"), "review/17 über 雨 👩‍🚀");
        assert_eq!(visible("a\u{202e}b\nc\u{7}"), "a⟨U+202E⟩b⟨U+000A⟩c⟨U+0007⟩");
        assert_eq!(visible_lines("a\r\n\tb\u{feff}"), "a\n\tb⟨U+FEFF⟩");
        assert_eq!(short("one\ntwo", 10), "one…");
        assert_eq!(short("ünüsual", 3), "ünü…");
        assert_eq!(short("same", 4), "same");
        assert_eq!(pair("key", "a&b=<\"'>/..\n"), "key=a%26b%3D%3C%22%27%3E%2F..%0A");
    }

    #[test]
    fn instants_of_forms_are_read() {
        let at = UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        for text in ["2026-01-01", "2026-01-01T00:00", " 2026-01-01T00:00:00 ", "2026-01-01T01:00:00+01:00", &input(at)]
        {
            assert_eq!(read_instant(text), Some(at), "{text}");
        }
        for wrong in ["", "yesterday", "2026-13-01", "1969-12-31", "2026-01-01T25:00"] {
            assert_eq!(read_instant(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn json_loses_its_lines_and_nothing_else() {
        let compact = |json: &str| compact(json).map(|(c, _)| c).collect::<String>();
        let lines = "{\r\n  \"a b\": [ 1.50,\t\"x \\\" y\" ],\n \"c\\\\\": { }\n}";
        assert_eq!(compact(lines), r#"{"a b":[1.50,"x \" y"],"c\\":{}}"#);
        assert_eq!(compact("\"open \\\""), "\"open \\\"");
    }

    #[test]
    fn times_are_short() {
        let durations =
            [(0, "0 µs"), (1_500, "1.5 ms"), (64_000, "64 ms"), (1_250_000, "1.2 s"), (61_000_000, "1 min 1 s")];
        for (micros, text) in durations {
            assert_eq!(duration(Duration::from_micros(micros)), text);
        }
        assert_eq!(duration(Duration::from_secs(2 * 86_400)), "2 d");
        let now = UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        assert_eq!(rfc3339(now), "2026-01-01T00:00:00Z");
        assert_eq!(relative(now + Duration::from_secs(3_661), now), "in 1 h 1 min");
        assert_eq!(relative(now - Duration::from_millis(5_900), now), "5 s ago");
        assert_eq!(relative(now - Duration::from_millis(900), now), "now");
        assert_eq!(number(1_234_567), "1\u{2009}234\u{2009}567");
        assert_eq!((number(12), Count::at_least(12, false).to_string()), ("12".to_owned(), "12".to_owned()));
        assert_eq!(Count::at_least(50_000, true).to_string(), "50\u{2009}000+");
        assert_eq!(Count::at_least(50_000, true).or_about(Some(1_043_210)).to_string(), "≈1\u{2009}000\u{2009}000");
        assert_eq!(Count::at_least(0, true).or_about(Some(0)).to_string(), "≈0");
    }
}
