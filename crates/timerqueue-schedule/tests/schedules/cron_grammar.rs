//! Cron lines against the grammar in the documentation of the crate, read here by other code: which
//! texts are lines, what a line means, and how errors name the place.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::support::{Random, at, cron, second, unix};
use timerqueue_schedule::{CronError, CronField, Schedule, ScheduleError, Zones};

const DAY: i64 = 86_400;
const MONTHS: &[&str] = &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// The rules of a field: the first and the last value, the greatest number, the names.
#[derive(Clone, Copy)]
struct Rules(u32, u32, u32, &'static [&'static str]);

const SECOND: Rules = Rules(0, 59, 59, &[]);
const HOUR: Rules = Rules(0, 23, 23, &[]);
const MONTH_DAY: Rules = Rules(1, 31, 31, &[]);
const MONTH: Rules = Rules(1, 12, 12, MONTHS);
const WEEKDAY: Rules = Rules(0, 6, 7, WEEKDAYS);
const YEAR: Rules = Rules(1, 9999, 9999, &[]);

fn number(text: &str, lowest: u32, highest: u32) -> Option<u32> {
    let digits = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    let number = text.trim_start_matches('0');
    let number: u32 = if digits && number.is_empty() { 0 } else { number.parse().ok()? };
    (digits && (lowest..=highest).contains(&number)).then_some(number)
}

impl Rules {
    /// A number or a name, as a value of the field.
    fn value(self, text: &str) -> Option<u32> {
        let name = self.3.iter().position(|name| name.eq_ignore_ascii_case(text));
        let value = name.map(|index| index as u32 + self.0).or_else(|| number(text, self.0, self.2))?;
        Some(if value > self.1 { self.0 } else { value })
    }

    /// `*`, `a`, `a-b`, each with `/n`.
    fn set(self, text: &str) -> Option<BTreeSet<u32>> {
        let (range, step) = match text.split_once('/') {
            Some((range, step)) => (range, Some(number(step, 1, 65_535)?)),
            None => (text, None),
        };
        let is_day = self.0 == 1 && self.1 == 31 || self.1 == 6;
        let (mut value, last) = match range {
            "*" if self.1 == 9999 && step.is_some() => (1970, 9999),
            "*" => (self.0, self.1),
            "?" if is_day => (self.0, self.1),
            _ => match range.split_once('-') {
                Some((from, to)) => {
                    let (from, to) =
                        (self.value(from).map(|value| (value, from))?, self.value(to).map(|value| (value, to))?);
                    // As the end of a range Sunday is the day after Saturday, by its name and as 7.
                    let all = self.1 == 6 && to.0 == 0 && to.1 != "0" && number(to.1, 0, 0).is_none();
                    let begins_as_7 = from.0 == 0 && number(from.1, 7, 7).is_some();
                    if all && from.0 == 0 && !begins_as_7 {
                        (0, 6)
                    } else if all && begins_as_7 {
                        (0, 0)
                    } else {
                        (from.0, to.0)
                    }
                }
                None if step.is_some() => (self.value(range)?, self.1),
                None => (self.value(range)?, self.value(range)?),
            },
        };
        if self.1 == 9999 && last < value {
            return None;
        }
        let (mut set, mut count, step) = (BTreeSet::new(), 0, step.unwrap_or(1));
        loop {
            if count % step == 0 {
                set.insert(value);
            }
            if value == last {
                return Some(set);
            }
            (value, count) = (if value == self.1 { self.0 } else { value + 1 }, count + 1);
        }
    }

    fn field(self, text: &str) -> Option<BTreeSet<u32>> {
        text.split(',').try_fold(BTreeSet::new(), |set, item| Some(&set | &self.set(item)?))
    }
}

/// An item of the day of the month, or of the day of the week.
enum Day {
    Days(BTreeSet<u32>),
    /// So many days before the last one.
    FromLast(u32),
    Nearest(u32),
    NearestFromLast(u32),
    /// The n-th of a month.
    Nth(BTreeSet<u32>, u32),
    LastOf(BTreeSet<u32>),
}

fn month_day(item: &str) -> Option<Day> {
    let back = |text: &str| text.strip_prefix("L-").and_then(|back| number(back, 1, 30));
    Some(match (item, item.strip_suffix('W')) {
        ("L", _) => Day::FromLast(0),
        ("LW", _) => Day::NearestFromLast(0),
        (_, None) if item.starts_with("L-") => Day::FromLast(back(item)?),
        (_, Some(day)) if day.starts_with("L-") => Day::NearestFromLast(back(day)?),
        (_, Some(day)) => Day::Nearest(MONTH_DAY.value(day)?),
        _ => Day::Days(MONTH_DAY.set(item)?),
    })
}

fn weekday(item: &str) -> Option<Day> {
    Some(match item.split_once('#') {
        Some((days, "L")) => Day::LastOf(WEEKDAY.set(days)?),
        Some((days, nth)) => Day::Nth(WEEKDAY.set(days)?, number(nth, 1, 5)?),
        None => match WEEKDAY.set(item) {
            Some(days) => Day::Days(days),
            None => Day::LastOf(BTreeSet::from([WEEKDAY.value(item.strip_suffix('L')?)?])),
        },
    })
}

impl Day {
    /// Whether the date is one of the item. `of_week`: the item is one of days of the week.
    fn matches(&self, date: Date, of_week: bool) -> bool {
        let (day, length) = (date.day() as u32, date.days_in_month() as u32);
        let in_week = |set: &BTreeSet<u32>| set.contains(&(date.weekday().to_sunday_zero_offset() as u32));
        // The one of Monday to Friday that is the fewest days away.
        let nearest = |to: u32| {
            let is_weekday = |day: &u32| {
                let date = Date::new(date.year(), date.month(), *day as i8).expect("a day of the month");
                !matches!(date.weekday().to_sunday_zero_offset(), 0 | 6)
            };
            (1..=length).contains(&to)
                && (1..=length).filter(is_weekday).min_by_key(|day| day.abs_diff(to)) == Some(day)
        };
        match self {
            Self::Days(days) if of_week => in_week(days),
            Self::Days(days) => days.contains(&day),
            Self::FromLast(back) => day + back == length,
            Self::Nearest(to) => nearest(*to),
            Self::NearestFromLast(back) => length > *back && nearest(length - back),
            Self::Nth(days, nth) => in_week(days) && (day - 1) / 7 + 1 == *nth,
            Self::LastOf(days) => in_week(days) && day + 7 > length,
        }
    }
}

/// The meaning of a line.
struct Meaning {
    seconds: BTreeSet<u32>,
    minutes: BTreeSet<u32>,
    hours: BTreeSet<u32>,
    days: Vec<Day>,
    months: BTreeSet<u32>,
    weekdays: Vec<Day>,
    both: bool,
    years: Option<BTreeSet<u32>>,
}

impl Meaning {
    /// `None`: the text is no line.
    fn of(text: &str) -> Option<Self> {
        let upper = text.to_ascii_uppercase();
        let mut fields: Vec<&str> = upper.split_ascii_whitespace().collect();
        match fields.len() {
            5 => {
                fields.insert(0, "0");
                fields.push("*");
            }
            6 => fields.push("*"),
            7 => {}
            _ => return None,
        }
        let (plus, weekdays) = match fields[5].strip_prefix('+') {
            Some(rest) => (true, rest),
            None => (false, fields[5]),
        };
        Some(Self {
            seconds: SECOND.field(fields[0])?,
            minutes: SECOND.field(fields[1])?,
            hours: HOUR.field(fields[2])?,
            days: fields[3].split(',').map(month_day).collect::<Option<_>>()?,
            months: MONTH.field(fields[4])?,
            weekdays: weekdays.split(',').map(weekday).collect::<Option<_>>()?,
            both: plus || fields[3].starts_with(['*', '?']) || weekdays.starts_with(['*', '?']),
            years: if fields[6] == "*" { None } else { Some(YEAR.field(fields[6])?) },
        })
    }

    fn has(&self, date: Date) -> bool {
        let day = self.days.iter().any(|item| item.matches(date, false));
        let weekday = self.weekdays.iter().any(|item| item.matches(date, true));
        self.years.as_ref().is_none_or(|years| years.contains(&(date.year() as u32)))
            && self.months.contains(&(date.month() as u32))
            && if self.both { day && weekday } else { day || weekday }
    }

    /// The first second of a day at or after `from`.
    fn time(&self, from: i64) -> Option<i64> {
        let minutes = self.hours.iter().flat_map(|hour| self.minutes.iter().map(move |minute| hour * 60 + minute));
        let near = minutes.filter(|&minute| i64::from(minute) * 60 + 59 >= from).take(2);
        let mut seconds =
            near.flat_map(|minute| self.seconds.iter().map(move |second| i64::from(minute * 60 + second)));
        seconds.find(|&second| second >= from)
    }
}

/// Compares a schedule with the meaning, on each day of some months. The answer is the number of
/// days that match.
fn compare(text: &str, schedule: &Schedule, meaning: &Meaning, random: &mut Random) -> usize {
    let first = meaning.time(0).expect("a time of day");
    let mut found = 0;
    for _ in 0..3 {
        let (year, month) = (random.between(1999, 2033) as i16, random.between(1, 12) as i8);
        let mut date = Date::new(year, month, 1).expect("a date");
        while date.month() == month {
            let midnight = date.to_zoned(TimeZone::UTC).expect("in range").timestamp().as_second();
            let next = schedule.first_at(unix(midnight)).map(|next| second(next.nominal()));
            let expected = meaning.has(date).then_some(midnight + first);
            assert_eq!(next.filter(|&next| next < midnight + DAY), expected, "{text} on {date}");
            if expected.is_some() {
                found += 1;
                let from = random.below(DAY as u64) as i64;
                let next = schedule.first_at(unix(midnight + from)).map(|next| second(next.nominal()));
                let expected = meaning.time(from).map(|time| midnight + time);
                assert_eq!(next.filter(|&next| next < midnight + DAY), expected, "{text} on {date} from second {from}");
                let back = expected.and_then(|at| schedule.previous_before(unix(at + 1)));
                assert_eq!(back.map(|back| second(back.nominal())), expected, "{text}, back");
            }
            date = date.tomorrow().expect("in range");
        }
    }
    found
}

/// An item that is often of the field.
fn item(random: &mut Random, rules: Rules, marks: bool) -> String {
    let value = |random: &mut Random| {
        let value = random.between(rules.0.into(), rules.2.into());
        match rules.3.get((value as u32 - rules.0) as usize) {
            Some(name) if random.below(3) == 0 => (*name).to_owned(),
            _ => value.to_string(),
        }
    };
    let mut text = match random.below(5) {
        0 => String::from("*"),
        1 | 2 => value(random),
        _ => format!("{}-{}", value(random), value(random)),
    };
    if random.below(4) == 0 {
        text += &format!("/{}", random.between(1, 9));
    }
    match random.below(8) {
        0 if marks => String::from(["L", "LW", "L-3", "L-2W", "31W", "1W", "15W", "?"][random.below(8) as usize]),
        1 if marks => format!("{}L", random.between(0, 7)),
        2 if marks => text + ["#1", "#5", "#L", "W"][random.below(4) as usize],
        _ => text,
    }
}

fn line(random: &mut Random) -> String {
    let fields = [SECOND, SECOND, HOUR, MONTH_DAY, MONTH, WEEKDAY, YEAR];
    let fields = match random.below(4) {
        0 => &fields[..],
        1 => &fields[..6],
        _ => &fields[1..6],
    };
    let field = |rules: &Rules| {
        let day = rules.1 == 31 || rules.1 == 6;
        let items: Vec<String> = (0..=random.below(6) / 4).map(|_| item(random, *rules, day)).collect();
        items.join(",")
    };
    fields.iter().map(field).collect::<Vec<_>>().join(" ")
}

/// One change of a text: a part that is removed, doubled, or comes from elsewhere.
fn changed(random: &mut Random, line: &str) -> String {
    const PARTS: &[&str] = &[
        "L", "W", "#", "*", "?", "+", "/", "-", ",", " ", "0", "1", "5", "7", "60", "JAN", "MON", "SUN", "mon", "L-3",
        "#2", "-SUN", "\t", "\u{1b}", "é", "@daily", "99999", "00", "LW", "R", "H", "−",
    ];
    let mut chars: Vec<char> = line.chars().collect();
    let at = random.below(chars.len() as u64 + 1) as usize;
    let part = PARTS[random.below(PARTS.len() as u64) as usize].chars();
    let end = (at + random.below(2) as usize).min(chars.len());
    match random.below(3) {
        0 => drop(chars.splice(at..at, part)),
        1 => drop(chars.splice(at..end, part)),
        _ => drop(chars.drain(at..end)),
    }
    chars.into_iter().collect()
}

#[test]
fn a_text_is_a_line_where_the_grammar_says_so_and_means_what_it_says() {
    let mut random = Random(0x5eed);
    let (mut lines, mut others, mut days) = (0, 0, 0);
    for round in 0..4_000 {
        let mut text = line(&mut random);
        for _ in 0..round % 3 {
            text = changed(&mut random, &text);
        }
        match (Schedule::cron(&text).build(), Meaning::of(&text)) {
            (Ok(schedule), Some(meaning)) => {
                lines += 1;
                assert_eq!(schedule.to_string().parse::<Schedule>().as_ref(), Ok(&schedule), "{text}");
                assert!(!schedule.describe().chars().any(char::is_control), "{text}");
                if lines % 4 == 0 {
                    days += compare(&text, &schedule, &meaning, &mut random);
                }
            }
            (Err(ScheduleError::NeverFires), Some(_)) => {}
            (Err(ScheduleError::InvalidCron(error)), None) => {
                others += 1;
                whole(&error);
            }
            (found, meaning) => panic!("{text:?}: {found:?}, but by the grammar a line: {}", meaning.is_some()),
        }
    }
    assert!(lines > 500 && others > 1_000 && days > 1_000, "{lines} lines, {others} other texts, {days} days");
}

/// An error points into its line, and its texts have no control characters.
fn whole(error: &CronError) {
    assert!(error.line().get(error.place()).is_some(), "{error:?}");
    let (sentence, lines) = (error.to_string(), format!("{error:#}"));
    assert!(!sentence.chars().any(char::is_control), "{sentence:?}");
    assert!(!lines.replace('\n', "").chars().any(char::is_control), "{lines:?}");
    assert!(!error.reason().is_empty());
}

#[test]
fn an_error_names_field_value_and_range() {
    for (line, field, value, reason) in [
        ("60 * * * *", CronField::Minute, "60", "is not in 0-59"),
        ("60 0 * * * *", CronField::Second, "60", "is not in 0-59"),
        ("* 24 * * *", CronField::Hour, "24", "is not in 0-23"),
        ("* * 0 * *", CronField::DayOfMonth, "0", "is not in 1-31"),
        ("* * * 5,13 *", CronField::Month, "13", "is not in 1-12"),
        ("* * * * 8", CronField::DayOfWeek, "8", "is not in 0-7"),
        ("0 0 0 1 1 * 0", CronField::Year, "0", "is not in 1-9999"),
        ("0 0 0 1 1 * 2030-2020", CronField::Year, "2030-2020", "ends before it begins"),
        ("*/0 * * * *", CronField::Minute, "0", "is not in 1-65535"),
        ("99999999999 * * * *", CronField::Minute, "99999999999", "is not in 0-59"),
        ("-1 * * * *", CronField::Minute, "", "a number is missing"),
        ("1,,2 * * * *", CronField::Minute, "", "a number is missing"),
        ("*/ * * * *", CronField::Minute, "", "a number is missing"),
        ("* * * * +", CronField::DayOfWeek, "", "a number is missing"),
        ("1.5 * * * *", CronField::Minute, "1.5", "is none of 0-59"),
        ("−5 * * * *", CronField::Minute, "−5", "is none of 0-59"),
        ("* * * * *\0", CronField::DayOfWeek, "*\0", "is none of 0-7 or SUN-SAT"),
        // Names of other fields, and names that touch.
        ("0 9 MON * *", CronField::DayOfMonth, "MON", "is none of 1-31"),
        ("0 9 * * JAN", CronField::DayOfWeek, "JAN", "is none of 0-7 or SUN-SAT"),
        ("0 9 * JAN2 *", CronField::Month, "JAN2", "is none of 1-12 or JAN-DEC"),
        ("0 9 * january *", CronField::Month, "january", "is none of 1-12 or JAN-DEC"),
        ("0 9 * JANFEB *", CronField::Month, "JANFEB", "is none of 1-12 or JAN-DEC"),
        // Text behind marks, and marks of other fields.
        ("0 0 15W5 * *", CronField::DayOfMonth, "15W5", "is none of 1-31"),
        ("0 0 15WL * *", CronField::DayOfMonth, "15WL", "is none of 1-31"),
        ("0 0 LW5 * *", CronField::DayOfMonth, "LW5", "is none of 1-31"),
        ("0 0 32W * *", CronField::DayOfMonth, "32", "is not in 1-31"),
        ("0 0 L-31 * *", CronField::DayOfMonth, "31", "is not in 1-30"),
        ("0 0 * * 5#2L", CronField::DayOfWeek, "2L", "is not in 1-5"),
        ("0 0 * * 5#99L", CronField::DayOfWeek, "99L", "is not in 1-5"),
        ("0 0 * * 1#6", CronField::DayOfWeek, "6", "is not in 1-5"),
        ("0 0 * * 5LL", CronField::DayOfWeek, "5L", "is none of 0-7 or SUN-SAT"),
        ("0 0 * * 1,L", CronField::DayOfWeek, "L", "is none of 0-7 or SUN-SAT"),
        ("0 L * * *", CronField::Hour, "L", "is none of 0-23"),
        ("? * * * *", CronField::Minute, "?", "is none of 0-59"),
    ] {
        let Err(ScheduleError::InvalidCron(error)) = Schedule::cron(line).build() else { panic!("{line}") };
        assert_eq!((error.field(), error.value(), error.reason()), (Some(field), value, reason), "{line}");
        whole(&error);
    }
    for line in ["", " ", "* * * *", "* * * * * * * *", "@", "@reboot", "@every 5m", "@daily 0 0 * * *", "hello"] {
        let Err(ScheduleError::InvalidCron(error)) = Schedule::cron(line).build() else { panic!("{line}") };
        assert_eq!((error.field(), error.value()), (None, line.trim()), "{line}");
        assert!(error.hint().is_some(), "{line}");
        whole(&error);
    }
    assert!(Schedule::cron(&"1,".repeat(100_000)).build().unwrap_err().to_string().len() < 200);
}

#[test]
fn the_mark_stands_under_the_place_also_behind_control_characters_and_in_long_lines() {
    let shown = |line: &str| format!("{:#}", Schedule::cron(line).build().unwrap_err());
    assert_eq!(
        shown("  0  9 * jan2 *"),
        "invalid cron line: month \"jan2\" is none of 1-12 or JAN-DEC\n  0 9 * jan2 *\n        ^^^^\n  \
         names of months have three letters"
    );
    assert_eq!(
        shown("\u{1b}[31m 61 * * *"),
        "invalid cron line: minute \"\\u{1b}[31m\" is none of 0-59\n  \\u{1b}[31m 61 * * *\n  ^^^^^^^^^^\n  \
         names stand for months and days of the week; L and W, for days of the month"
    );
    let long = format!("{} * * * 8", ["0"; 200].join(","));
    let shown = shown(&long);
    let [_, line, mark] = shown.lines().collect::<Vec<_>>()[..] else { panic!("{shown}") };
    assert_eq!(line.find('8'), mark.find('^'));
    assert!(line.len() < 100);
}

#[test]
fn a_line_whose_day_matches_no_month_is_refused_at_once() {
    let lines = ["0 0 30 2 *", "0 0 31 2,4,6,9,11 +MON", "0 0 L-30 2 *", "* * * 30 2 * *", "* * * 30 2 * 1970-4000"];
    let refused = |line| {
        let start = Instant::now();
        assert_eq!(Schedule::cron(line).build().unwrap_err(), ScheduleError::NeverFires, "{line}");
        start.elapsed()
    };
    for line in lines {
        let best = (0..100).map(|_| refused(line)).min().unwrap();
        assert!(best < Duration::from_millis(5), "{line}: {best:?}"); // 20 us without optimization
    }
}

#[test]
fn zones_that_differ_between_machines_are_refused() {
    for zone in ["localtime", "posixrules", "Factory", "right/Europe/Berlin"] {
        for builder in [
            Schedule::cron("@daily").zone(zone).build(),
            Schedule::cron("@daily").zone(zone).build_in(&Zones::bundled()),
        ] {
            assert_eq!(builder.unwrap_err(), ScheduleError::UnknownZone { name: zone.to_owned() });
        }
    }
}

#[test]
fn the_last_day_and_the_last_weekday_stand_in_one_list() {
    let schedule = cron("0 0 L,LW * *", "UTC");
    let days: Vec<_> = schedule.after(at("2026-10-02T00:00:00Z")).take(2).map(|day| day.nominal()).collect();
    assert_eq!(days, [at("2026-10-30T00:00:00Z"), at("2026-10-31T00:00:00Z")]);
}
