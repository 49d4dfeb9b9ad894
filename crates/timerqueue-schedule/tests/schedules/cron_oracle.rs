//! A brute-force oracle for cron lines: it walks over time minute by minute, converts each instant
//! to civil time, and applies the documented rules for daylight saving to what it sees. It knows
//! neither the parser nor transitions.
//!
//! `cargo test` runs a sample of zones and lines for two days around each transition. All zones and
//! all minutes of seven years, which take some minutes: `cargo test --release -p
//! timerqueue-scheduler --test schedules cron_oracle:: -- --ignored`.

use std::collections::BTreeMap;

use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan};

use crate::support::{Random, at, cron, second, unix};
use timerqueue_schedule::Schedule;

const MINUTE: i64 = 60;
const DAY: i64 = 86_400;

/// The values of the five fields as bit sets, beside the line.
struct Line {
    text: String,
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// A day has to match both fields.
    both: bool,
    wildcard: bool,
}

impl Line {
    /// One field: a star, a star with steps, a value, a range, a range with steps, or a list of two
    /// values.
    fn field(random: &mut Random, first: u64, last: u64) -> (String, u64) {
        let (a, b) = (random.between(first, last), random.between(first, last));
        let (a, b, step) = (a.min(b), a.max(b), random.between(1, (last - first).div_ceil(2)));
        let set = |from: u64, to: u64, step: u64| (from..=to).step_by(step as usize).fold(0, |set, v| set | 1 << v);
        match random.below(8) {
            0..2 => (String::from("*"), set(first, last, 1)),
            2 => (format!("*/{step}"), set(first, last, step)),
            3..5 => (a.to_string(), 1 << a),
            5 => (format!("{a}-{b}"), set(a, b, 1)),
            6 => (format!("{a}-{b}/{step}"), set(a, b, step)),
            _ => (format!("{a},{b}"), 1 << a | 1 << b),
        }
    }

    fn of_fields(fields: [(String, u64); 5]) -> Self {
        let [minutes, hours, days, months, weekdays] = &fields;
        let star = |field: &(String, u64)| field.0.starts_with('*');
        Self {
            text: fields.each_ref().map(|(text, _)| text.as_str()).join(" "),
            minutes: minutes.1,
            hours: hours.1,
            days: days.1,
            months: months.1,
            weekdays: weekdays.1,
            both: star(days) || star(weekdays),
            wildcard: star(minutes) || star(hours),
        }
    }

    /// A random line. Days and months are often stars, so that most lines run around a given
    /// transition.
    fn random(random: &mut Random) -> Self {
        let mut open = |first, last| match random.below(3) {
            0 => Self::field(random, first, last),
            _ => (String::from("*"), (first..=last).fold(0, |set, value| set | 1 << value)),
        };
        let (days, months, weekdays) = (open(1, 31), open(1, 12), open(0, 6));
        Self::of_fields([Self::field(random, 0, 59), Self::field(random, 0, 23), days, months, weekdays])
    }

    /// A line at fixed times, or a wildcard, in the hours of most transitions.
    fn at_night(random: &mut Random) -> Self {
        let all = |first: u64, last: u64| (first..=last).fold(0, |set, value| set | 1 << value);
        let star = |first, last| (String::from("*"), all(first, last));
        let minutes = if random.below(3) == 0 {
            (String::from("*/15"), 1 | 1 << 15 | 1 << 30 | 1 << 45)
        } else {
            let minute = random.below(4) * 15;
            (minute.to_string(), 1 << minute)
        };
        let first = (23 + random.below(5)) % 24;
        let hours =
            if random.below(2) == 0 { (first.to_string(), 1 << first) } else { (String::from("0-4"), 0b1_1111) };
        Self::of_fields([minutes, hours, star(1, 31), star(1, 12), star(0, 6)])
    }

    fn matches(&self, civil: jiff::civil::DateTime) -> bool {
        let has = |set: u64, value: i8| set >> value & 1 == 1;
        let weekday = civil.weekday().to_sunday_zero_offset();
        let (day, weekday) = (has(self.days, civil.day()), has(self.weekdays, weekday));
        has(self.minutes, civil.minute())
            && has(self.hours, civil.hour())
            && has(self.months, civil.month())
            && (if self.both { day && weekday } else { day || weekday })
    }
}

/// One minute of elapsed time in a zone.
struct Minute {
    instant: i64,
    civil: jiff::civil::DateTime,
    /// The civil time was there before.
    repeated: bool,
    /// Civil minutes between the latest one before and this one, that no instant has. Empty where
    /// dates are missing.
    skipped: Vec<jiff::civil::DateTime>,
}

/// Each minute from the begin to the end, with what happened to the clock.
fn minutes(zone: &TimeZone, begin: i64, end: i64) -> Vec<Minute> {
    let civil = |instant: i64| zone.to_datetime(Timestamp::from_second(instant).expect("in range"));
    // The latest civil time so far. A day before the begin counts, for transitions just before it.
    let mut latest = (begin - DAY..begin).step_by(60).map(civil).max().expect("a day");
    let mut minutes = Vec::new();
    for instant in (begin..end).step_by(60) {
        let now = civil(instant);
        let mut skipped = Vec::new();
        let mut between = latest + 1.minute();
        while between < now {
            skipped.push(between);
            between += 1.minute();
        }
        if skipped.len() as i64 >= DAY / MINUTE {
            skipped.clear();
        }
        minutes.push(Minute { instant, civil: now, repeated: now <= latest, skipped });
        latest = latest.max(now);
    }
    minutes
}

/// The instants of a line, by the documented rules.
fn expected<'a>(line: &'a Line, minutes: &'a [Minute]) -> impl Iterator<Item = i64> + 'a {
    let runs = |minute: &&Minute| match line.wildcard {
        true => line.matches(minute.civil),
        false => {
            let in_the_gap = minute.skipped.iter().any(|&civil| line.matches(civil));
            in_the_gap || (!minute.repeated && line.matches(minute.civil))
        }
    };
    minutes.iter().filter(runs).map(|minute| minute.instant)
}

/// Compares a schedule with the oracle, in both directions, and from instants between.
fn compare(schedule: &Schedule, line: &Line, zone: &str, minutes: &[Minute], random: &mut Random) -> usize {
    let (begin, end) = (minutes[0].instant, minutes[minutes.len() - 1].instant + MINUTE);
    let expected: Vec<i64> = expected(line, minutes).collect();
    let nominal = |occurrence: timerqueue_schedule::Occurrence| second(occurrence.nominal());
    let within = |instant: &i64| (begin..end).contains(instant);
    let next: Vec<i64> = schedule.after(unix(begin - 1)).map(nominal).take_while(within).collect();
    assert!(next == expected, "{} in {zone}: {}", line.text, first_difference(&next, &expected));
    let mut previous: Vec<i64> = schedule.before(unix(end)).map(nominal).take_while(within).collect();
    previous.reverse();
    assert!(previous == expected, "{} in {zone}, backwards: {}", line.text, first_difference(&previous, &expected));
    for round in 0..60 {
        let mut t = begin + random.below((end - begin) as u64) as i64;
        if round % 3 > 0 && !expected.is_empty() {
            // At an occurrence, a second before, a second behind.
            t = expected[random.below(expected.len() as u64) as usize] + random.below(3) as i64 - 1;
        }
        let index = expected.partition_point(|&instant| instant <= t);
        let next = schedule.next_after(unix(t)).map(nominal).filter(within);
        assert_eq!(next, expected.get(index).copied(), "{} in {zone} after {t}", line.text);
        let index = expected.partition_point(|&instant| instant < t);
        let previous = schedule.previous_before(unix(t)).map(nominal).filter(within);
        assert_eq!(previous, expected[..index].last().copied(), "{} in {zone} before {t}", line.text);
    }
    expected.len()
}

fn first_difference(found: &[i64], expected: &[i64]) -> String {
    let at = found.iter().zip(expected).take_while(|(a, b)| a == b).count();
    let text = |list: &[i64]| list.get(at).map(|&second| Timestamp::from_second(second).expect("in range"));
    format!("found {:?}, expected {:?}", text(found), text(expected))
}

/// The instants at which the offset of a zone changes.
fn transitions(zone: &TimeZone, begin: i64, end: i64) -> Vec<i64> {
    let begin = Timestamp::from_second(begin).expect("in range");
    zone.following(begin).map(|change| change.timestamp().as_second()).take_while(|&at| at < end).collect()
}

fn database() -> TimeZoneDatabase {
    TimeZoneDatabase::bundled()
}

/// Compares lines around each transition of a zone.
fn around_transitions(name: &str, begin: &str, end: &str, lines: usize, random: &mut Random) -> usize {
    let zone = database().get(name).expect("a zone");
    let mut compared = 0;
    for transition in transitions(&zone, second(at(begin)), second(at(end))) {
        let minutes = minutes(&zone, transition - DAY, transition + DAY);
        for index in 0..lines {
            let line = if index % 2 == 0 { Line::random(random) } else { Line::at_night(random) };
            compared += compare(&cron(&line.text, name), &line, name, &minutes, random);
        }
    }
    compared
}

#[test]
fn a_sample_agrees_with_the_oracle_around_transitions() {
    let mut random = Random(17);
    let mut compared =
        around_transitions("Pacific/Apia", "2011-01-01T00:00:00Z", "2012-12-31T00:00:00Z", 8, &mut random);
    for zone in [
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Antarctica/Troll",
        "Africa/Cairo",
        "Africa/Casablanca",
        "America/Nuuk",
        "America/Santiago",
        "Asia/Almaty",
        "Pacific/Chatham",
    ] {
        compared += around_transitions(zone, "2024-01-01T00:00:00Z", "2027-01-01T00:00:00Z", 4, &mut random);
    }
    assert!(compared > 10_000, "{compared} occurrences");
}

/// All zones, each minute of 2024 to 2030, and Apia in 2011: some minutes in a release build.
#[test]
#[ignore = "takes minutes"]
fn all_zones_agree_with_the_oracle() {
    let mut random = Random(2024);
    // Zones with the same clock in these years, such as Europe/Berlin and Europe/Paris, are
    // compared once.
    let mut clocks = BTreeMap::new();
    let (mut zones, mut compared) = (0, 0_usize);
    let mut run = |name: &str, begin: &str, end: &str| {
        let zone = database().get(name).expect("a zone");
        let (begin, end) = (second(at(begin)), second(at(end)));
        let transitions = transitions(&zone, begin, end);
        if transitions.is_empty() {
            return;
        }
        zones += 1;
        let offset = |&at: &i64| (at, zone.to_offset(Timestamp::from_second(at).expect("in range")).seconds());
        let clock: Vec<(i64, i32)> = std::iter::once(&begin).chain(&transitions).map(offset).collect();
        if clocks.insert(clock, name.to_owned()).is_some() {
            return;
        }
        let minutes = minutes(&zone, begin, end);
        for index in 0..16 {
            let line = if index % 2 == 0 { Line::random(&mut random) } else { Line::at_night(&mut random) };
            compared += compare(&cron(&line.text, name), &line, name, &minutes, &mut random);
        }
    };
    run("Pacific/Apia", "2011-01-01T00:00:00Z", "2012-12-31T00:00:00Z");
    for name in database().available() {
        run(name.as_str(), "2024-01-01T00:00:00Z", "2031-01-01T00:00:00Z");
    }
    println!("{compared} occurrences in {zones} zones with {} clocks", clocks.len());
    assert!(zones > 150, "{zones} zones");
}
