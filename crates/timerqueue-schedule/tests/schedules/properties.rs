//! Laws that hold for every schedule and every instant, on random ones.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use crate::support::unix;
use timerqueue_schedule::{CalendarUnit, Loader, Occurrence, Schedule, ScheduleBuilder, Zones};

const LINES: &[&str] = &[
    "* * * * *",
    "*/7 * * * *",
    "30 2 * * *",
    "15,45 0-4 * * *",
    "0 0 29 2 *",
    "0 0 L * *",
    "0 9 * * MON#1",
    "5 30 23 * * SAT",
    "*/20 * 1-3 * * *",
    "@hourly",
];

const ZONES: &[&str] =
    &["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Nuuk", "Pacific/Apia", "Africa/Casablanca"];

/// Seconds from 1900 to 2100, some with a fraction.
fn instant() -> impl Strategy<Value = SystemTime> {
    let second = prop_oneof![
        -2_200_000_000_i64..4_100_000_000,
        1_325_000_000_i64..1_325_400_000, // Apia, in the last days of 2011
        1_774_650_000_i64..1_774_850_000, // Europe, in the last days of March 2026
    ];
    (second, prop_oneof![Just(0_u32), 0..1_000_000_000_u32])
        .prop_map(|(second, nanos)| unix(second) + Duration::from_nanos(u64::from(nanos)))
}

fn period() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (1..100_000_u64).prop_map(Duration::from_secs),
        (1_000..10_000_000_000_u64).prop_map(Duration::from_nanos),
        any::<u64>().prop_map(|seconds| Duration::from_secs(seconds.max(1))),
    ]
}

/// Every 1,000 s, as a rule.
fn kiloseconds(t: SystemTime) -> Option<SystemTime> {
    Schedule::every(Duration::from_secs(1_000)).build().ok()?.next_after(t).map(|next| next.nominal())
}

fn kind() -> impl Strategy<Value = ScheduleBuilder> {
    let cron = (prop::sample::select(LINES), prop::sample::select(ZONES))
        .prop_map(|(line, zone)| Schedule::cron(line).zone(zone));
    let each = || {
        (prop::sample::select(LINES), prop::sample::select(ZONES), instant(), 1..5_u16, any::<bool>()).prop_map(
            |(line, zone, from, n, weeks)| {
                let unit = if weeks { CalendarUnit::Week } else { CalendarUnit::Month };
                Schedule::cron(line).zone(zone).from(from).each(n, unit).except(["03-29", "2026-03-30"])
            },
        )
    };
    let part = prop_oneof![period().prop_map(Schedule::every), cron.clone(), each().boxed()];
    prop_oneof![
        3 => period().prop_map(Schedule::every),
        4 => cron,
        1 => each(),
        1 => prop::collection::vec(part, 1..4).prop_map(Schedule::any),
        1 => Just(Schedule::rule("kiloseconds", kiloseconds)),
    ]
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let window = || prop_oneof![3 => Just(Duration::ZERO), 1 => period()];
    let bounds = (prop::option::of(instant()), prop::option::of(instant()), prop::option::of(1..50_u64));
    (kind(), bounds, window(), window(), "[a-z]{0,3}").prop_filter_map(
        "never fires",
        |(mut builder, (from, until, times), spread, jitter, key)| {
            if let Some(from) = from {
                builder = builder.from(from);
                builder = times.into_iter().fold(builder, ScheduleBuilder::times);
            }
            builder = until.into_iter().fold(builder, ScheduleBuilder::until);
            builder.spread(spread).jitter(jitter).key(&key).build_in(&Zones::bundled()).ok()
        },
    )
}

/// The occurrences after an instant and due by another, by walking over all of them; `None` where
/// there are too many.
fn walk(schedule: &Schedule, after: SystemTime, now: SystemTime) -> Option<Vec<Occurrence>> {
    let walked: Vec<_> = schedule.after(after).take_while(|occurrence| occurrence.due() <= now).take(500).collect();
    (walked.len() < 500).then_some(walked)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn next_and_previous_are_inverse(schedule in schedule(), t in instant()) {
        if let Some(next) = schedule.next_after(t) {
            prop_assert!(next.nominal() > t);
            prop_assert!(schedule.previous_before(next.nominal()).is_none_or(|previous| previous.nominal() <= t));
            prop_assert_eq!(schedule.first_at(next.nominal()), Some(next));
            prop_assert_eq!(schedule.previous_before(next.nominal() + Duration::from_nanos(1)), Some(next));
        }
        if let Some(previous) = schedule.previous_before(t) {
            prop_assert!(previous.nominal() < t);
            prop_assert!(schedule.next_after(previous.nominal()).is_none_or(|next| next.nominal() >= t));
        }
    }

    #[test]
    fn each_occurrence_is_due_before_the_next_nominal_instant(schedule in schedule(), t in instant()) {
        let occurrences = schedule.preview(t, 5);
        for occurrence in &occurrences {
            prop_assert!(occurrence.due() >= occurrence.nominal());
        }
        for pair in occurrences.windows(2) {
            prop_assert!(pair[0].due() < pair[1].nominal());
        }
        if let Some(last) = occurrences.last() {
            // Backwards, the same occurrences with the same delays.
            let end = last.nominal() + Duration::from_nanos(1);
            let mut before: Vec<_> = schedule.before(end).take(occurrences.len()).collect();
            before.reverse();
            prop_assert_eq!(occurrences, before);
        }
    }

    #[test]
    fn no_occurrence_is_outside_of_the_bounds(schedule in schedule(), t in instant()) {
        let text = serde_json::to_value(&schedule).unwrap();
        let bound = |field: &str| {
            text.get(field).map(|text| crate::support::at(text.as_str().unwrap()))
        };
        for occurrence in schedule.preview(t, 5) {
            prop_assert!(bound("from").is_none_or(|from| occurrence.nominal() >= from));
            prop_assert!(bound("until").is_none_or(|until| occurrence.due() <= until));
        }
        if let Some(times) = text.get("times") {
            let count = schedule.after(bound("from").unwrap() - Duration::from_nanos(1)).count() as u64;
            prop_assert!(count > 0 && count <= times.as_u64().unwrap());
        }
    }

    #[test]
    fn missed_occurrences_are_those_found_by_walking(
        schedule in schedule(), after in instant(), distance in 0..10_000_000_u64, at_most in 0..20_usize,
    ) {
        let now = after + Duration::from_millis(distance);
        if let Some(walked) = walk(&schedule, after, now) {
            let missed = schedule.missed(after, now, at_most);
            let skipped = walked.len().saturating_sub(at_most);
            prop_assert_eq!(missed.occurrences(), &walked[skipped..]);
            prop_assert_eq!(missed.has_older(), skipped > 0);
            prop_assert_eq!(schedule.count_missed(after, now, u64::MAX), walked.len() as u64);
            if let Some(last) = walked.last() {
                prop_assert_eq!(schedule.latest_due(now), Some(*last));
            }
        }
    }

    #[test]
    fn a_schedule_survives_serialization(schedule in schedule(), t in instant()) {
        use serde::de::DeserializeSeed;
        let loader = Loader::new().rule("kiloseconds", kiloseconds).zones(Zones::bundled());
        let text = serde_json::to_string(&schedule).unwrap();
        let read = loader.deserialize(&mut serde_json::Deserializer::from_str(&text)).unwrap();
        prop_assert_eq!(&read, &schedule);
        prop_assert_eq!(read.preview(t, 3), schedule.preview(t, 3));
        let bytes = postcard::to_stdvec(&schedule).unwrap();
        let read = loader.deserialize(&mut postcard::Deserializer::from_bytes(&bytes)).unwrap();
        prop_assert_eq!(read, schedule);
    }

    #[test]
    fn no_text_makes_the_parser_panic(line in "[-*/,0-9LW#?+@A-Za-z ]{0,40}", any in ".{0,40}") {
        for line in [line, any] {
            if let Ok(schedule) = Schedule::cron(&line).build() {
                prop_assert!(schedule.next_after(unix(0)).or(schedule.previous_before(unix(1))).is_some());
            }
        }
    }

    #[test]
    fn no_line_of_plausible_fields_panics(
        fields in prop::collection::vec("\\*|\\*/[0-9]{1,2}|[0-9]{1,2}|[0-9]{1,2}-[0-9]{1,2}(/[0-9])?|L|LW|[0-9]{1,2}W|[0-7](#[0-6]|L)|\\?|MON|FEB", 5..8),
        zone in prop::sample::select(ZONES), second in any::<i64>(),
    ) {
        if let Ok(schedule) = Schedule::cron(&fields.join(" ")).zone(zone).build_in(&Zones::bundled()) {
            let distance = Duration::from_secs(second.unsigned_abs());
            let t = if second < 0 { SystemTime::UNIX_EPOCH.checked_sub(distance) } else { SystemTime::UNIX_EPOCH.checked_add(distance) };
            for t in t.into_iter().chain([unix(second >> 30)]) {
                if let Some(next) = schedule.next_after(t) {
                    prop_assert!(next.nominal() > t);
                    prop_assert!(schedule.previous_before(next.nominal()).is_none_or(|previous| previous.nominal() <= t));
                }
                let _ = schedule.previous_before(t);
            }
        }
    }

    #[test]
    fn no_serialized_form_panics(text in "[-0-9.@sTZ:+]{0,24}", number in any::<u64>()) {
        for form in [
            format!(r#"{{"every":"{text}"}}"#),
            format!(r#"{{"every":"1s","from":"{text}","times":{number}}}"#),
            format!(r#"{{"fixed_delay":"{number}s","until":"{text}"}}"#),
            format!(r#"{{"cron":"@daily","from":"@-{number}","jitter":"{number}.5s"}}"#),
        ] {
            if let Ok(schedule) = serde_json::from_str::<Schedule>(&form) {
                let _ = (schedule.preview(unix(0), 3), schedule.latest_due(unix(0)));
            }
        }
    }
}
