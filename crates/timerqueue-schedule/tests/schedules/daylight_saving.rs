//! The documented rules for daylight saving, on both sides, by civil times that a reader can check
//! on a calendar.

use crate::support::{at, civil, cron, second};
use timerqueue_schedule::{Schedule, ScheduleError, Zones};

/// The next `n` occurrences after an instant, as civil times; the occurrences before must be the
/// same, in reverse.
fn preview(line: &str, zone: &str, from: &str, n: usize) -> Vec<String> {
    let schedule = cron(line, zone);
    let next = schedule.preview(at(from), n);
    let after = next.last().expect("an occurrence").nominal() + std::time::Duration::from_nanos(1);
    let mut before: Vec<_> = schedule.before(after).take(n).collect();
    before.reverse();
    assert_eq!(next, before, "{line} in {zone}");
    civil(&next, zone)
}

#[test]
fn a_fixed_time_in_the_gap_runs_at_the_end_of_the_gap() {
    let runs = preview("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", 3);
    assert_eq!(runs, ["03-28 02:30 +01:00", "03-29 03:00 +02:00", "03-30 02:30 +02:00"]);
    let runs = preview("30 2 * * *", "America/New_York", "2026-03-07T00:00:00Z", 3);
    assert_eq!(runs, ["03-07 02:30 -05:00", "03-08 03:00 -04:00", "03-09 02:30 -04:00"]);
}

#[test]
fn the_end_of_the_gap_is_found_from_the_second_before() {
    let (schedule, end) = (cron("30 2 * * *", "Europe/Berlin"), at("2026-03-29T01:00:00Z"));
    for t in [end - std::time::Duration::from_secs(1), end - std::time::Duration::from_nanos(1)] {
        assert_eq!(schedule.next_after(t).unwrap().nominal(), end);
    }
    assert_eq!(schedule.first_at(end).unwrap().nominal(), end);
    assert_eq!(schedule.latest_due(end).unwrap().nominal(), end);
}

#[test]
fn several_fixed_times_in_the_gap_run_together_once() {
    // 02:00 and 02:30 are in the gap, and 03:00 is its end.
    let runs = preview("0,30 1-3 * * *", "Europe/Berlin", "2026-03-28T23:00:00Z", 4);
    assert_eq!(runs, ["03-29 01:00 +01:00", "03-29 01:30 +01:00", "03-29 03:00 +02:00", "03-29 03:30 +02:00"]);
}

#[test]
fn a_fixed_time_in_the_repeated_hour_runs_the_first_time_only() {
    let runs = preview("30 2 * * *", "Europe/Berlin", "2026-10-24T00:00:00Z", 3);
    assert_eq!(runs, ["10-24 02:30 +02:00", "10-25 02:30 +02:00", "10-26 02:30 +01:00"]);
    let runs = preview("0 1-3 * * *", "Europe/Berlin", "2026-10-24T22:00:00Z", 4);
    assert_eq!(runs, ["10-25 01:00 +02:00", "10-25 02:00 +02:00", "10-25 03:00 +01:00", "10-26 01:00 +01:00"]);
}

#[test]
fn a_fixed_time_is_not_repeated_when_asked_within_the_second_pass() {
    let schedule = cron("15,45 2 * * *", "Europe/Berlin");
    // 02:30 of the second pass.
    let second_pass = at("2026-10-25T01:30:00Z");
    let next = schedule.next_after(second_pass).unwrap();
    assert_eq!(civil(&[next], "Europe/Berlin"), ["10-26 02:15 +01:00"]);
    let previous = schedule.previous_before(second_pass).unwrap();
    assert_eq!(civil(&[previous], "Europe/Berlin"), ["10-25 02:45 +02:00"]);
}

#[test]
fn a_wildcard_counts_elapsed_time() {
    let runs = preview("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", 4);
    assert_eq!(runs, ["03-29 01:30 +01:00", "03-29 03:00 +02:00", "03-29 03:30 +02:00", "03-29 04:00 +02:00"]);
    let runs = preview("*/30 * * * *", "Europe/Berlin", "2026-10-25T00:00:00Z", 4);
    assert_eq!(runs, ["10-25 02:30 +02:00", "10-25 02:00 +01:00", "10-25 02:30 +01:00", "10-25 03:00 +01:00"]);
    // A wildcard in the minutes: nothing in the gap, twice in the repeated hour.
    let runs = preview("*/30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", 3);
    assert_eq!(runs, ["03-28 02:00 +01:00", "03-28 02:30 +01:00", "03-30 02:00 +02:00"]);
    let runs = preview("*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", 4);
    assert_eq!(runs, ["10-25 02:00 +02:00", "10-25 02:30 +02:00", "10-25 02:00 +01:00", "10-25 02:30 +01:00"]);
}

#[test]
fn half_an_hour_in_lord_howe() {
    let zone = "Australia/Lord_Howe"; // forward from 02:00 to 02:30, back from 02:00 to 01:30
    let runs = preview("15 2 * * *", zone, "2026-10-03T00:00:00Z", 2);
    assert_eq!(runs, ["10-04 02:30 +11:00", "10-05 02:15 +11:00"]);
    let runs = preview("45 1 * * *", zone, "2026-04-04T00:00:00Z", 2);
    assert_eq!(runs, ["04-05 01:45 +11:00", "04-06 01:45 +10:30"]);
    let runs = preview("*/15 * * * *", zone, "2026-04-04T14:15:00Z", 5);
    assert_eq!(
        runs,
        ["04-05 01:30 +11:00", "04-05 01:45 +11:00", "04-05 01:30 +10:30", "04-05 01:45 +10:30", "04-05 02:00 +10:30"]
    );
    let runs = preview("0 * * * *", zone, "2026-10-03T14:00:00Z", 3);
    assert_eq!(runs, ["10-04 01:00 +10:30", "10-04 03:00 +11:00", "10-04 04:00 +11:00"]);
}

#[test]
fn two_hours_in_troll() {
    let zone = "Antarctica/Troll"; // forward from 01:00 to 03:00, back from 03:00 to 01:00
    assert_eq!(preview("0 1 * * *", zone, "2026-03-28T12:00:00Z", 1), ["03-29 03:00 +02:00"]);
    assert_eq!(preview("30 2 * * *", zone, "2026-03-28T12:00:00Z", 1), ["03-29 03:00 +02:00"]);
    let runs = preview("30 1 * * *", zone, "2026-10-24T12:00:00Z", 2);
    assert_eq!(runs, ["10-25 01:30 +02:00", "10-26 01:30 +00:00"]);
}

#[test]
fn midnight_is_in_the_gap_in_cairo() {
    let runs = preview("@daily", "Africa/Cairo", "2026-04-23T12:00:00Z", 2);
    assert_eq!(runs, ["04-24 01:00 +03:00", "04-25 00:00 +03:00"]);
}

#[test]
fn the_gap_ends_on_the_next_day_in_nuuk() {
    // Saturday 23:00 to Sunday 00:00. The job of the Saturday is not lost.
    let runs = preview("30 23 * * SAT", "America/Nuuk", "2026-03-23T00:00:00Z", 2);
    assert_eq!(runs, ["03-29 00:00 -01:00", "04-04 23:30 -01:00"]);
}

#[test]
fn a_missing_date_is_stepped_over() {
    let zone = "Pacific/Apia"; // from 2011-12-29 24:00 to 2011-12-31 00:00
    let runs = preview("0 12 * * *", zone, "2011-12-29T00:00:00Z", 2);
    assert_eq!(runs, ["12-29 12:00 -10:00", "12-31 12:00 +14:00"]);
    let runs = preview("*/30 * * * *", zone, "2011-12-30T09:00:00Z", 3);
    assert_eq!(runs, ["12-29 23:30 -10:00", "12-31 00:00 +14:00", "12-31 00:30 +14:00"]);
    let runs = preview("0 0 * * *", zone, "2011-12-29T12:00:00Z", 3);
    assert_eq!(runs, ["12-31 00:00 +14:00", "01-01 00:00 +14:00", "01-02 00:00 +14:00"]);
    // Also by other dates of the same kind.
    let runs = preview("0 12 30-31 12 *", zone, "2011-12-01T00:00:00Z", 2);
    assert_eq!(runs, ["12-31 12:00 +14:00", "12-30 12:00 +14:00"]);
    let kwajalein = cron("0 12 21 8 *", "Pacific/Kwajalein"); // without 1993-08-21
    let next = kwajalein.next_after(at("1993-08-01T00:00:00Z")).unwrap();
    assert_eq!(next.nominal(), at("1994-08-21T00:00:00Z"));
    // A schedule for the missing date alone never fires.
    let only_then = Schedule::cron("0 0 12 30 12 * 2011").zone(zone).build_in(&Zones::bundled());
    assert_eq!(only_then.unwrap_err(), ScheduleError::NeverFires);
}

#[test]
fn the_day_repeated_in_kwajalein_is_not_run_twice() {
    // Offset +11 to -12 in 1969: 23 hours of civil time are repeated.
    let runs = preview("0 12 * * *", "Pacific/Kwajalein", "1969-09-29T00:00:00Z", 4);
    assert_eq!(runs, ["09-29 12:00 +11:00", "09-30 12:00 +11:00", "10-01 12:00 -12:00", "10-02 12:00 -12:00"]);
}

#[test]
fn a_distant_occurrence_is_found_across_all_transitions_between() {
    let schedule = cron("0 30 2 31 3 * 4002", "Europe/Berlin"); // a Sunday with a gap, as in 2002
    let next = schedule.next_after(at("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(second(next.nominal()), second(at("4002-03-31T01:00:00Z")));
    assert_eq!(schedule.previous_before(at("4900-01-01T00:00:00Z")), Some(next));
    assert_eq!(schedule.next_after(next.nominal()), None);
    assert_eq!(schedule.previous_before(next.nominal()), None);
}

#[test]
fn a_line_whose_civil_times_are_all_skipped_ends() {
    // From 1981 on, the last Sunday of March has no minute from 02:00 to 02:59 in Berlin.
    let schedule = cron("* 2 * 3 SUNL", "Europe/Berlin");
    assert_eq!(schedule.next_after(at("2026-01-01T00:00:00Z")), None);
    assert_eq!(schedule.next_after(at("4000-01-01T00:00:00Z")), None);
    assert_eq!(
        civil(&schedule.before(at("2026-01-01T00:00:00Z")).take(1).collect::<Vec<_>>(), "Europe/Berlin"),
        ["03-30 02:59 +01:00"]
    );
    let with_years = Schedule::cron("0 * 2 * 3 SUNL 2000-4999").zone("Europe/Berlin").build_in(&Zones::bundled());
    assert_eq!(with_years.unwrap_err(), ScheduleError::NeverFires);
}

/// In both lines the day is a Sunday in 2026, and then in 2037.
#[test]
fn a_search_does_not_leap_over_what_a_transition_is_near_to() {
    let next = |line: &str, from: &str| second(cron(line, "Europe/Berlin").next_after(at(from)).unwrap().nominal());
    // The clock goes back at 03:00: 02:00 comes again a quarter of an hour after 02:45.
    assert_eq!(next("*/30 2 25 10 +SUN", "2026-10-25T00:45:00Z"), second(at("2026-10-25T01:00:00Z")));
    // The clock goes forward at 02:00, which is half an hour after the occurrence.
    assert_eq!(next("30 1 29 3 +SUN", "2021-01-01T00:00:00Z"), second(at("2026-03-29T00:30:00Z")));
}

#[test]
fn sparse_occurrences_are_those_of_utc_moved_by_the_offset() {
    // At noon, when no zone changes its clock. Searches leap over hundreds of transitions.
    for line in ["0 12 29 2 *", "0 0 12 29 2 +MON", "0 0 12 1 7 * 1900-2600/50", "0 12 31 12 *"] {
        for zone in ["Europe/Berlin", "America/Nuuk", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kathmandu"] {
            let time_zone = jiff::tz::TimeZoneDatabase::bundled().get(zone).expect("a zone");
            let moved = |occurrence: timerqueue_schedule::Occurrence| {
                let utc = jiff::Timestamp::try_from(occurrence.nominal()).expect("in range");
                let civil = utc.to_zoned(jiff::tz::TimeZone::UTC).datetime();
                time_zone.to_ambiguous_timestamp(civil).unambiguous().expect("noon").as_second()
            };
            let (begin, end) = (at("1905-01-02T00:00:00Z"), at("2600-01-02T00:00:00Z"));
            let utc: Vec<i64> = cron(line, "UTC").after(begin).take_while(|o| o.nominal() < end).map(moved).collect();
            let schedule = cron(line, zone);
            let next: Vec<i64> = schedule.after(begin).map(|o| second(o.nominal())).take(utc.len()).collect();
            assert_eq!(next, utc, "{line} in {zone}");
            let mut previous: Vec<i64> = schedule.before(end).map(|o| second(o.nominal())).take(utc.len()).collect();
            previous.reverse();
            assert_eq!(previous, utc, "{line} in {zone}, backwards");
        }
    }
}
