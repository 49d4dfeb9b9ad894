//! Each n-th day, week or month, days left out, and unions: against the occurrences of the plain
//! lines, filtered and merged here.

use std::time::SystemTime;

use jiff::civil::Date;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::support::{Random, at, civil, seconds, unix};
use timerqueue_schedule::{CalendarUnit, Schedule, ScheduleBuilder, ScheduleError, Zones};

fn built(builder: ScheduleBuilder) -> Schedule {
    builder.clone().build_in(&Zones::bundled()).unwrap_or_else(|error| panic!("{builder:?}: {error}"))
}

fn refused(builder: ScheduleBuilder) -> ScheduleError {
    builder.build_in(&Zones::bundled()).expect_err("refused")
}

fn date(at: SystemTime, zone: &TimeZone) -> Date {
    jiff::Timestamp::try_from(at).expect("in range").to_zoned(zone.clone()).date()
}

/// Whole weeks from Monday on, whole months, days.
fn distance(unit: CalendarUnit, from: Date, to: Date) -> i64 {
    let days = |from: Date, to: Date| i64::from((to - from).get_days());
    let monday = |date: Date| date - jiff::Span::new().days(date.weekday().to_monday_zero_offset());
    match unit {
        CalendarUnit::Day => days(from, to),
        CalendarUnit::Week => days(monday(from), monday(to)) / 7,
        CalendarUnit::Month => {
            i64::from(to.year() - from.year()) * 12 + i64::from(to.month()) - i64::from(from.month())
        }
    }
}

#[test]
fn each_nth_unit_without_some_days_is_the_plain_line_filtered() {
    const LINES: [&str; 6] =
        ["0 9 * * MON", "30 2 * * *", "0 0 15,31,L * *", "*/30 22-3 * * MON-FRI", "0 12 * * 2#2", "15 1 1 */2 *"];
    let mut random = Random(31);
    let mut compared = 0;
    for round in 0..96 {
        let zone = ["UTC", "Europe/Berlin", "America/Santiago", "Pacific/Chatham"][round % 4];
        let time_zone = TimeZoneDatabase::bundled().get(zone).expect("a zone");
        let from = unix(1_700_000_000 + random.below(100_000_000) as i64);
        let until = from + seconds(2 * 365 * 86_400);
        let line = LINES[round % LINES.len()];
        let plain = || Schedule::cron(line).zone(zone).from(from).until(until);
        let unit = [CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month][random.below(3) as usize];
        let n = random.between(1, 9);
        // Some days with occurrences, and some of each year.
        let all: Vec<SystemTime> = built(plain()).after(from - seconds(1)).map(|next| next.nominal()).collect();
        let except: Vec<String> = (0..random.below(20))
            .map(|index| {
                let text = date(all[random.below(all.len() as u64) as usize], &time_zone).to_string();
                if index % 3 == 0 { text[5..].to_owned() } else { text }
            })
            .collect();
        let begin = date(from, &time_zone);
        let stays = |&at: &SystemTime| {
            // The civil time of a skipped time is before its instant, on the same day in these
            // zones and lines.
            let date = date(at, &time_zone);
            let text = date.to_string();
            distance(unit, begin, date) % n as i64 == 0 && !except.iter().any(|day| text.ends_with(&**day))
        };
        let expected: Vec<SystemTime> = all.iter().copied().filter(stays).collect();
        let builder = plain().each(n as u16, unit).except(except.clone());
        if expected.is_empty() {
            assert_eq!(refused(builder), ScheduleError::NeverFires);
            continue;
        }
        let schedule = built(builder);
        let found: Vec<SystemTime> = schedule.after(from - seconds(1)).map(|next| next.nominal()).collect();
        assert_eq!(found, expected, "{schedule:?}");
        let mut back: Vec<SystemTime> = schedule.before(until + seconds(1)).map(|next| next.nominal()).collect();
        back.reverse();
        assert_eq!(back, expected, "{schedule:?}, back");
        compared += found.len();
    }
    assert!(compared > 3_000, "{compared} occurrences");
}

#[test]
fn a_union_is_its_parts_merged() {
    let mut random = Random(32);
    let begin = at("2026-03-20T00:00:00Z");
    let parts = |random: &mut Random| -> Vec<ScheduleBuilder> {
        let part = |random: &mut Random| match random.below(5) {
            0 => Schedule::every(seconds(random.between(3_600, 90_000))),
            1 => Schedule::cron("30 2 * * *").zone("Europe/Berlin").until(begin + seconds(random.below(2_000_000))),
            2 => Schedule::cron("*/20 1-3 * * *").zone("America/New_York"),
            3 => Schedule::cron("0 0 * * *").from(begin + seconds(random.below(2_000_000))).times(5),
            _ => Schedule::cron("30 1 * * SUN").except(["2026-03-29"]),
        };
        (0..random.between(1, 5)).map(|_| part(random)).collect()
    };
    for _ in 0..40 {
        let parts = parts(&mut random);
        let end = begin + seconds(2_000_000);
        let of_part = |part: &ScheduleBuilder| {
            let schedule = built(part.clone());
            let within: Vec<SystemTime> =
                schedule.after(begin).map(|next| next.nominal()).take_while(|&at| at < end).collect();
            within
        };
        let mut expected: Vec<SystemTime> = parts.iter().flat_map(of_part).collect();
        expected.sort_unstable();
        expected.dedup();
        let union = built(Schedule::any(parts));
        let found: Vec<SystemTime> = union.after(begin).map(|next| next.nominal()).take_while(|&at| at < end).collect();
        assert_eq!(found, expected, "{union:?}");
        let mut back: Vec<SystemTime> =
            union.before(end).map(|next| next.nominal()).take_while(|&at| at > begin).collect();
        back.reverse();
        assert_eq!(back, expected, "{union:?}, back");
        assert_eq!(union.count_missed(begin, end - seconds(1), u64::MAX), expected.len() as u64);
        let again = built(union.to_builder());
        assert_eq!((again.preview(begin, 5), &again), (union.preview(begin, 5), &union));
    }
}

#[test]
fn weeks_begin_on_monday_and_months_are_those_of_the_zone() {
    let preview = |builder: ScheduleBuilder, from: &str| {
        let schedule = built(builder.zone("Europe/Berlin").from(at(from)));
        civil(&schedule.preview(at(from), 3), "Europe/Berlin")
    };
    // The first week has the Sunday of the begin alone.
    let monday = || Schedule::cron("0 9 * * MON").each(2, CalendarUnit::Week);
    assert_eq!(
        preview(monday(), "2026-03-01T12:00:00Z"),
        ["03-09 09:00 +01:00", "03-23 09:00 +01:00", "04-06 09:00 +02:00"]
    );
    // In Berlin it is Monday already.
    assert_eq!(
        preview(monday(), "2026-03-01T23:30:00Z"),
        ["03-02 09:00 +01:00", "03-16 09:00 +01:00", "03-30 09:00 +02:00"]
    );
    let quarter = || Schedule::cron("0 0 L * *").each(3, CalendarUnit::Month);
    assert_eq!(
        preview(quarter(), "2026-01-31T23:30:00Z"),
        ["02-28 00:00 +01:00", "05-31 00:00 +02:00", "08-31 00:00 +02:00"]
    );
    // Over the end of a year.
    let fifth = || Schedule::cron("0 12 * * *").each(250, CalendarUnit::Day);
    assert_eq!(
        preview(fifth(), "2026-10-01T00:00:00Z"),
        ["10-01 12:00 +02:00", "06-08 12:00 +02:00", "02-13 12:00 +01:00"]
    );
}

#[test]
fn parts_that_make_no_sense_are_refused() {
    let daily = || Schedule::cron("@daily");
    for n in [0, Schedule::MAX_EACH + 1, u16::MAX] {
        let error = refused(daily().from(unix(0)).each(n, CalendarUnit::Week));
        assert_eq!(error, ScheduleError::InvalidEach { text: format!("{n} weeks") });
    }
    assert_eq!(refused(daily().each(2, CalendarUnit::Day)), ScheduleError::EachWithoutFrom);
    let every = || Schedule::every(seconds(60)).from(unix(0));
    assert_eq!(refused(every().each(2, CalendarUnit::Day)), ScheduleError::DatesWithoutCron);
    assert_eq!(refused(every().except(["12-25"])), ScheduleError::DatesWithoutCron);
    assert_eq!(refused(Schedule::any([daily()]).except(["12-25"])), ScheduleError::DatesWithoutCron);
    assert_eq!(refused(Schedule::any([daily()]).zone("UTC")), ScheduleError::ZoneWithoutCron);
    for text in [
        "",
        "2026-02-29",
        "02-30",
        "2026-13-01",
        "13-01",
        "12-00",
        "0000-01-01",
        "12-5",
        "2026-1-01",
        "tomorrow",
        "é2-25",
        "2026+12-25",
        "-12-25",
    ] {
        assert_eq!(refused(daily().except([text])), ScheduleError::InvalidDate { text: text.to_owned() });
    }
    assert!(daily().except(["02-29", "2028-02-29", "12-31"]).build().is_ok());
    let dates = Schedule::MAX_EXCEPT + 1;
    assert_eq!(refused(daily().except(vec!["12-25"; dates])), ScheduleError::TooManyDates { dates });
    assert_eq!(refused(Schedule::cron("0 0 25 12 *").except(["12-25"])), ScheduleError::NeverFires);
    for union in [
        Schedule::any([]),
        Schedule::any(vec![daily(); Schedule::MAX_PARTS + 1]),
        Schedule::any([Schedule::any([daily()])]),
        Schedule::any([Schedule::fixed_delay(seconds(60))]),
        Schedule::any([daily().spread(seconds(60))]),
        Schedule::any([daily().key("a")]),
    ] {
        assert!(matches!(refused(union.clone()), ScheduleError::InvalidUnion { .. }), "{union:?}");
    }
    // The next point of the grid is beyond `SystemTime`.
    let beyond = Schedule::any([Schedule::every(seconds(1 << 63))]).from(unix(1));
    assert_eq!(refused(beyond), ScheduleError::NeverFires);
    assert!(matches!(refused(Schedule::any([daily(), Schedule::cron("61 * * * *")])), ScheduleError::InvalidCron(_)));
}

#[test]
fn a_union_has_bounds_times_and_spread_and_knows_its_rules() {
    let union = || Schedule::any([Schedule::every(seconds(60)), Schedule::every(seconds(90))]);
    let schedule = built(union().from(unix(1)).times(4));
    let instants: Vec<_> = schedule.after(unix(0)).map(|next| next.nominal()).collect();
    assert_eq!(instants, [unix(60), unix(90), unix(120), unix(180)]);
    assert_eq!(built(union().until(unix(90))).previous_before(unix(1_000)).map(|last| last.nominal()), Some(unix(90)));
    let spread = built(union().key("a").spread(seconds(600)));
    assert!(spread.preview(unix(0), 9).windows(2).all(|pair| pair[0].due() < pair[1].nominal()));
    assert!(!schedule.has_rule() && schedule.line().is_none());
    let rule = |t: SystemTime| t.checked_add(seconds(7));
    assert!(built(Schedule::any([Schedule::rule("mine", rule), Schedule::every(seconds(60))])).has_rule());
}

#[test]
fn a_line_may_name_its_zone() {
    let zoned = |line: &str| Schedule::cron(line).build_in(&Zones::bundled());
    for line in
        ["CRON_TZ=Europe/Berlin 30 2 * * *", "TZ=europe/berlin  30 2 * * *", " CRON_TZ=Europe/Berlin\t30 2 * * *"]
    {
        let schedule = zoned(line).unwrap();
        assert_eq!((schedule.zone(), schedule.line()), (Some("Europe/Berlin"), Some("30 2 * * *")));
        assert_eq!(schedule.to_string(), "CRON_TZ=Europe/Berlin 30 2 * * *");
    }
    assert!(zoned("CRON_TZ=UTC @daily").is_ok());
    let twice = Schedule::cron("CRON_TZ=Europe/Berlin @daily");
    assert!(twice.clone().zone("europe/Berlin").build().is_ok());
    let error = ScheduleError::TwoZones { line: String::from("Europe/Berlin"), builder: String::from("UTC") };
    assert_eq!(refused(twice.zone("UTC")), error);
    assert_eq!(zoned("CRON_TZ= @daily").unwrap_err(), ScheduleError::UnknownZone { name: String::new() });
    assert!(matches!(zoned("CRON_TZ=UTC"), Err(ScheduleError::InvalidCron(_))));
    assert!(matches!(zoned("TZ=UTC TZ=UTC @daily"), Err(ScheduleError::InvalidCron(_))));
}

#[test]
fn a_schedule_matches_the_second_of_an_occurrence() {
    let half = built(Schedule::every(seconds(10)).from(unix(0) + seconds(1) / 2));
    assert!(half.matches(unix(10)) && half.matches(unix(10) + seconds(1) / 4) && !half.matches(unix(11)));
    assert!(!half.matches(unix(-10)));
    let schedule = built(Schedule::cron("30 2 * * *").zone("Europe/Berlin"));
    assert!(schedule.matches(at("2026-03-29T01:00:00.9Z")), "a skipped time runs at the first instant after the gap");
    assert!(!schedule.matches(at("2026-03-29T01:30:00Z")));
}
