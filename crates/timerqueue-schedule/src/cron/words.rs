//! A cron line in words: `at 02:30, on Monday to Friday`.

use super::field::{MONTHS, WEEKDAYS};
use super::line::{Fields, fields};

/// Times of day that are listed one by one.
const LISTED: usize = 6;

/// The words of a valid line.
pub(super) fn words(line: &str) -> String {
    let upper = line.to_ascii_uppercase();
    let Some(fields) = fields(&upper) else { return line.to_owned() };
    let mut words = times(&fields).unwrap_or_else(|| rhythm(&fields));
    words += &days(&fields);
    if fields.month != "*" {
        words += &format!(", in {}", list(fields.month, |item| span("month", item, |text| name(&MONTHS, 1, text))));
    }
    match fields.year {
        None | Some("*") => words,
        Some(year) => words + &format!(", in {}", list(year, |item| span("year", item, |text| Some(text.to_owned())))),
    }
}

/// `at 02:30 and 14:30`, for a few fixed times.
fn times(fields: &Fields<'_>) -> Option<String> {
    let numbers = |text: &str| text.split(',').map(|item| item.parse::<u8>().ok()).collect::<Option<Vec<u8>>>();
    let (hours, minutes) = (numbers(fields.hour)?, numbers(fields.minute)?);
    let seconds = numbers(fields.second.unwrap_or("0"))?;
    if hours.len() * minutes.len() * seconds.len() > LISTED {
        return None;
    }
    let mut times = Vec::new();
    for (hour, minute) in hours.iter().flat_map(|hour| minutes.iter().map(move |minute| (hour, minute))) {
        for second in &seconds {
            let second = if seconds == [0] { String::new() } else { format!(":{second:02}") };
            times.push(format!("{hour:02}:{minute:02}{second}"));
        }
    }
    times.sort_unstable();
    Some(format!("at {}", joined(&times)))
}

/// `each 15th minute of hour 9 to 17`.
fn rhythm(fields: &Fields<'_>) -> String {
    let all = [("second", fields.second.unwrap_or("0")), ("minute", fields.minute), ("hour", fields.hour)];
    let first = usize::from(fields.second.is_none_or(|second| second == "0"));
    let mut parts = all[first..].to_vec();
    // Each minute of each hour is each minute.
    while parts.len() > 1 && parts[parts.len() - 2..].iter().all(|(_, text)| *text == "*") {
        parts.pop();
    }
    parts.iter().map(|(unit, text)| number(unit, text)).collect::<Vec<_>>().join(" of ")
}

/// `, on day 13 of the month or on Friday`.
fn days(fields: &Fields<'_>) -> String {
    let (both, of_week) = match fields.weekday.strip_prefix('+') {
        Some(rest) => (true, rest),
        None => (fields.day.starts_with(['*', '?']) || fields.weekday.starts_with(['*', '?']), fields.weekday),
    };
    let day = (!matches!(fields.day, "*" | "?")).then(|| list(fields.day, month_day));
    let weekday = (!matches!(of_week, "*" | "?")).then(|| list(of_week, weekday));
    match (day, weekday) {
        (None, None) => String::new(),
        (Some(day), Some(weekday)) if both => format!(", on {day} if it is {weekday}"),
        (Some(day), Some(weekday)) => format!(", on {day} or on {weekday}"),
        // Either of them alone with a star, which matches each day.
        (Some(days), None) | (None, Some(days)) => format!(", on {days}"),
    }
}

fn month_day(item: &str) -> String {
    let near = item.strip_suffix('W');
    let day = match near.unwrap_or(item).strip_prefix('L') {
        Some("") => "the last day of the month".to_owned(),
        Some(back) => format!("the {} day before the last of the month", nth(back.trim_start_matches('-'))),
        None => format!("{} of the month", number("day", near.unwrap_or(item))),
    };
    match near {
        Some("L") => "the last weekday of the month".to_owned(),
        Some(_) => format!("the weekday nearest to {day}"),
        None => day,
    }
}

fn weekday(item: &str) -> String {
    let days = |item: &str| span("day of the week", item, |text| name(&WEEKDAYS, 0, text));
    match (item.split_once('#'), item.strip_suffix('L')) {
        (Some((item, "L")), _) | (None, Some(item)) => format!("the last {} of the month", days(item)),
        (Some((item, number)), _) => format!("the {} {} of the month", nth(number), days(item)),
        _ => days(item),
    }
}

/// `minute 5 to 20` and `each 15th minute`.
fn number(unit: &str, text: &str) -> String {
    let item = |item: &str| {
        let has_number = item != "*" && !item.contains('/');
        let text = span(unit, item, |text| {
            Some(text.trim_start_matches('0')).map(|text| if text.is_empty() { "0" } else { text }.to_owned())
        });
        if has_number { format!("{unit} {text}") } else { text }
    };
    list(text, item)
}

/// One item, without marks.
fn span(unit: &str, item: &str, name: impl Fn(&str) -> Option<String>) -> String {
    let name = |text: &str| name(text).unwrap_or_else(|| text.to_owned());
    let (range, step) = item.split_once('/').map_or((item, None), |(range, step)| (range, Some(nth(step))));
    let ends = range.split_once('-').map(|(first, last)| (name(first), name(last)));
    match (range, ends, step) {
        ("*" | "?", _, None) => format!("each {unit}"),
        ("*" | "?", _, Some(step)) if unit == "year" => format!("each {step} year from 1970"),
        ("*" | "?", _, Some(step)) => format!("each {step} {unit}"),
        (_, Some((first, last)), None) => format!("{first} to {last}"),
        (_, Some((first, last)), Some(step)) => format!("each {step} {unit} from {first} to {last}"),
        (_, None, None) => name(range),
        (_, None, Some(step)) => format!("each {step} {unit} from {}", name(range)),
    }
}

fn list(text: &str, words: impl Fn(&str) -> String) -> String {
    joined(&text.split(',').map(words).collect::<Vec<_>>())
}

/// `a, b and c`.
fn joined(texts: &[String]) -> String {
    match texts {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => texts.concat(),
    }
}

/// The whole name of a number or of a name with three letters.
fn name(names: &[&str], first: usize, text: &str) -> Option<String> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
    let index = names.iter().position(|name| *name == text);
    let index = index.or_else(|| text.parse::<usize>().ok()?.checked_sub(first))? % names.len();
    if names.len() == 12 { MONTHS.get(index) } else { WEEKDAYS.get(index) }.map(|&name| name.to_owned())
}

/// `1st`, `2nd`, `3rd`, `4th`.
fn nth(number: &str) -> String {
    let number = number.trim_start_matches('0');
    let ending = match number.as_bytes() {
        [.., b'1', _] => "th",
        [.., b'1'] => "st",
        [.., b'2'] => "nd",
        [.., b'3'] => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_words() {
        for (line, expected) in [
            ("30 2 * * *", "at 02:30"),
            ("0,30 9,17 * * MON-FRI", "at 09:00, 09:30, 17:00 and 17:30, on Monday to Friday"),
            ("15 30 2 * * *", "at 02:30:15"),
            ("* * * * *", "each minute"),
            ("* * * * * *", "each second"),
            ("*/15 * * * *", "each 15th minute of each hour"),
            ("0 * * * *", "minute 0 of each hour"),
            ("@hourly", "minute 0 of each hour"),
            ("@weekly", "at 00:00, on Sunday"),
            ("@yearly", "at 00:00, on day 1 of the month, in January"),
            ("*/15 9-17 * * 1-5", "each 15th minute of hour 9 to 17, on Monday to Friday"),
            ("5/15 */2 * * *", "each 15th minute from 5 of each 2nd hour"),
            ("* 2 * * *", "each minute of hour 2"),
            ("30 * * * * *", "second 30 of each minute"),
            ("*/10 30 2 * * *", "each 10th second of minute 30 of hour 2"),
            ("0 0 13 * 5", "at 00:00, on day 13 of the month or on Friday"),
            ("0 0 13 * +5", "at 00:00, on day 13 of the month if it is Friday"),
            ("0 0 */10 * 1", "at 00:00, on each 10th day of the month if it is Monday"),
            (
                "0 0 L,15W,LW * ?",
                "at 00:00, on the last day of the month, the weekday nearest to day 15 of the month and the last weekday of the month",
            ),
            ("0 0 L-3 * *", "at 00:00, on the 3rd day before the last of the month"),
            (
                "0 0 * * 5#2,1L,TUE#L",
                "at 00:00, on the 2nd Friday of the month, the last Monday of the month and the last Tuesday of the month",
            ),
            ("0 0 1 jan,JUN-sep *", "at 00:00, on day 1 of the month, in January and June to September"),
            (
                "0 0 0 1 */3 * 2026-2030,*/2",
                "at 00:00, on day 1 of the month, in each 3rd month, in 2026 to 2030 and each 2nd year from 1970",
            ),
            ("0 0 * * 7", "at 00:00, on Sunday"),
        ] {
            assert_eq!(words(line), expected, "{line}");
        }
        assert_eq!(
            ["1", "2", "3", "4", "11", "12", "13", "21", "111", "102"].map(nth).join(" "),
            "1st 2nd 3rd 4th 11th 12th 13th 21st 111th 102nd"
        );
    }
}
