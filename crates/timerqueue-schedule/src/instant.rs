//! Instants as signed nanoseconds since the Unix epoch, and their text.
//!
//! An `i128` holds every `SystemTime` of every platform and every sum that this crate forms, so
//! arithmetic on it does not overflow. Only the way back to `SystemTime` can fail, at the end of
//! what the platform can represent.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Nanoseconds in a second.
pub(crate) const SECOND: i128 = 1_000_000_000;

/// The steps of `SystemTime` on the coarsest supported platform, which is Windows.
const COARSEST_STEP: Duration = Duration::from_nanos(100);

pub(crate) fn to_nanos(instant: SystemTime) -> i128 {
    match instant.duration_since(UNIX_EPOCH) {
        Ok(since) => duration_nanos(since),
        Err(before) => -duration_nanos(before.duration()),
    }
}

pub(crate) fn duration_nanos(duration: Duration) -> i128 {
    i128::from(duration.as_secs()) * SECOND + i128::from(duration.subsec_nanos())
}

/// The instant, rounded up to a step of the platform. `None`: the platform cannot represent the
/// instant.
pub(crate) fn to_system(nanos: i128) -> Option<SystemTime> {
    let distance = nanos.unsigned_abs();
    let seconds = u64::try_from(distance / SECOND.unsigned_abs()).ok()?;
    let distance = Duration::new(seconds, (distance % SECOND.unsigned_abs()) as u32);
    let instant = if nanos < 0 { UNIX_EPOCH.checked_sub(distance)? } else { UNIX_EPOCH.checked_add(distance)? };
    if to_nanos(instant) < nanos { instant.checked_add(COARSEST_STEP) } else { Some(instant) }
}

/// RFC 3339 in UTC for the years 0 to 9999, such as `2026-03-29T01:00:00Z`. Seconds since the Unix
/// epoch for all other instants, such as `@253402300800.5`.
pub(crate) fn to_text(instant: SystemTime) -> String {
    let nanos = to_nanos(instant);
    match Timestamp::from_nanosecond(nanos) {
        Ok(timestamp) if (0..=9999).contains(&jiff::tz::Offset::UTC.to_datetime(timestamp).year()) => {
            timestamp.to_string()
        }
        _ => format!("@{}", decimal(nanos)),
    }
}

/// The instant of a text in one of the two forms of [`to_text`]. RFC 3339 may have an offset.
pub(crate) fn from_text(text: &str) -> Option<SystemTime> {
    let nanos = match text.strip_prefix('@') {
        Some(seconds) => match seconds.strip_prefix('-') {
            Some(seconds) => -from_decimal(seconds)?,
            None => from_decimal(seconds)?,
        },
        None => text.parse::<Timestamp>().ok()?.as_nanosecond(),
    };
    to_system(nanos)
}

/// A duration in seconds, such as `90s` and `0.25s`.
pub(crate) fn duration_to_text(duration: Duration) -> String {
    format!("{}s", decimal(duration_nanos(duration)))
}

/// A duration for people, such as `1 h 30 min`. Parts of a second stay a decimal number.
pub(crate) fn duration_words(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if duration.subsec_nanos() > 0 || seconds == 0 {
        return format!("{duration:?}");
    }
    let units = [("d", 86_400, u64::MAX), ("h", 3_600, 24), ("min", 60, 60), ("s", 1, 60)];
    let parts = units.map(|(unit, size, of)| (unit, seconds / size % of));
    let words: Vec<String> =
        parts.iter().filter(|(_, number)| *number > 0).map(|(unit, number)| format!("{number} {unit}")).collect();
    words.join(" ")
}

pub(crate) fn duration_from_text(text: &str) -> Option<Duration> {
    let nanos = from_decimal(text.strip_suffix('s')?)?;
    Some(Duration::new(u64::try_from(nanos / SECOND).ok()?, (nanos % SECOND) as u32))
}

/// Nanoseconds as a decimal number of seconds, without zeros at the end.
fn decimal(nanos: i128) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let (seconds, rest) = (nanos.unsigned_abs() / 1_000_000_000, nanos.unsigned_abs() % 1_000_000_000);
    let text = format!("{sign}{seconds}.{rest:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// At most 20 digits, and at most 9 behind the point.
fn from_decimal(text: &str) -> Option<i128> {
    let (seconds, rest) = text.split_once('.').unwrap_or((text, "0"));
    let digits =
        |part: &str, most: usize| (1..=most).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(seconds, 20) || !digits(rest, 9) {
        return None;
    }
    Some(seconds.parse::<i128>().ok()? * SECOND + format!("{rest:0<9}").parse::<i128>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_survive_the_way_to_text_and_back() {
        for nanos in [0, 1, -1, -SECOND, 1_774_746_000 * SECOND, -62_200_000_000 * SECOND, 260_000_000_000 * SECOND + 5]
        {
            let instant = to_system(nanos).unwrap();
            assert_eq!(to_nanos(instant), nanos);
            assert_eq!(from_text(&to_text(instant)), Some(instant), "{}", to_text(instant));
        }
        assert_eq!(to_text(to_system(1_774_746_000 * SECOND).unwrap()), "2026-03-29T01:00:00Z");
        assert_eq!(to_text(to_system(253_402_300_800 * SECOND + SECOND / 2).unwrap()), "@253402300800.5");
        assert_eq!(from_text("2026-03-29T03:00:00+02:00"), to_system(1_774_746_000 * SECOND));
    }

    #[test]
    fn durations_survive_the_way_to_text_and_back() {
        for duration in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(250), Duration::MAX] {
            assert_eq!(duration_from_text(&duration_to_text(duration)), Some(duration));
        }
        assert_eq!(duration_to_text(Duration::from_secs(90)), "90s");
        assert_eq!(duration_to_text(Duration::from_millis(250)), "0.25s");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "s", "10", "-1s", "1.s", ".5s", "1.0000000001s", "1e3s", "99999999999999999999s", " 1s"] {
            assert_eq!(duration_from_text(text), None, "{text}");
        }
        for text in ["", "@", "@-", "@--1", "@1.2.3", "@99999999999999999999", "2026-03-29", "tomorrow", "@+1"] {
            assert_eq!(from_text(text), None, "{text}");
        }
    }
}
