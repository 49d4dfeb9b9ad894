//! Each kind of schedule, its bounds, and what is refused.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::{at, civil, cron, seconds, unix};
use timerqueue_schedule::{CalendarUnit, Occurrence, Rule, Schedule, ScheduleBuilder, ScheduleError};

fn nominal(occurrence: Option<Occurrence>) -> Option<SystemTime> {
    occurrence.map(|occurrence| occurrence.nominal())
}

fn refused(builder: ScheduleBuilder) -> ScheduleError {
    builder.build().expect_err("refused")
}

/// The first and the last instant of `SystemTime`, to the second.
fn ends() -> (SystemTime, SystemTime) {
    let (mut first, mut last) = (UNIX_EPOCH, UNIX_EPOCH);
    for bit in (0..64).rev() {
        first = first.checked_sub(seconds(1 << bit)).unwrap_or(first);
        last = last.checked_add(seconds(1 << bit)).unwrap_or(last);
    }
    (first, last)
}

#[test]
fn a_period_without_a_first_instant_has_the_epoch_as_its_anchor() {
    let hourly = Schedule::every(seconds(3600)).build().unwrap();
    assert_eq!(nominal(hourly.next_after(at("2026-03-29T01:23:45Z"))), Some(at("2026-03-29T02:00:00Z")));
    assert_eq!(nominal(hourly.next_after(at("1969-12-31T22:30:00Z"))), Some(at("1969-12-31T23:00:00Z")));
    assert_eq!(nominal(hourly.previous_before(at("1969-12-31T23:00:00Z"))), Some(at("1969-12-31T22:00:00Z")));
}

#[test]
fn a_period_is_on_the_grid_of_its_first_instant() {
    let first = at("2026-01-01T00:00:07.5Z");
    let schedule = Schedule::every(seconds(10)).from(first).build().unwrap();
    assert_eq!(nominal(schedule.next_after(UNIX_EPOCH)), Some(first));
    assert_eq!(nominal(schedule.first_at(first)), Some(first));
    assert_eq!(nominal(schedule.next_after(first)), Some(first + seconds(10)));
    assert_eq!(schedule.previous_before(first), None);
    // The grid stays, however late the question is.
    let later = first + seconds(1_000_000_003);
    assert_eq!(nominal(schedule.next_after(later)), Some(first + seconds(1_000_000_010)));
}

#[test]
fn the_last_instant_is_included_and_times_are_counted_from_the_first() {
    let schedule = |builder: ScheduleBuilder| builder.build().unwrap();
    let until = schedule(Schedule::every(seconds(10)).from(unix(0)).until(unix(20)));
    assert_eq!(until.after(unix(-1)).map(|o| o.nominal()).collect::<Vec<_>>(), [unix(0), unix(10), unix(20)]);
    assert_eq!(until.previous_before(unix(1_000_000)), until.next_after(unix(19)));
    let times = schedule(Schedule::every(seconds(10)).from(unix(0)).times(3).until(unix(1_000)));
    assert_eq!(times.preview(unix(-1), 10), until.preview(unix(-1), 10));
    assert_eq!(nominal(times.latest_due(unix(1_000_000))), Some(unix(20)));
    let times = schedule(Schedule::cron("@daily").from(at("2026-01-01T00:00:00.1Z")).times(2));
    assert_eq!(civil(&times.preview(unix(0), 9), "UTC"), ["01-02 00:00 +00:00", "01-03 00:00 +00:00"]);
    assert_eq!(times.next_after(at("2026-01-03T00:00:00Z")), None);
    // More times than there are occurrences.
    let few = schedule(Schedule::cron("@daily").from(unix(0)).until(unix(86_400)).times(5_000));
    assert_eq!(few.after(unix(-1)).count(), 2);
    let most = schedule(Schedule::every(Duration::MAX).from(unix(0)).times(u64::MAX));
    assert_eq!(most.after(unix(-1)).count(), 1);
}

#[test]
fn what_never_fires_is_refused() {
    for line in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31W 2 *", "0 0 0 29 2 * 2023", "0 0 0 1 1 * 5000"] {
        assert_eq!(refused(Schedule::cron(line)), ScheduleError::NeverFires, "{line}");
    }
    let never = [
        Schedule::every(seconds(1)).from(unix(1)).until(unix(0)),
        Schedule::every(seconds(1)).from(unix(1)).times(0),
        Schedule::every(seconds(1)).times(0),
        Schedule::fixed_delay(seconds(1)).times(0),
        Schedule::fixed_delay(seconds(1)).from(unix(1)).until(unix(0)),
        Schedule::cron("0 0 29 2 *").from(at("2097-01-01T00:00:00Z")).until(at("2103-01-01T00:00:00Z")),
        Schedule::cron("0 0 0 1 1 * 2020").from(at("2021-01-01T00:00:00Z")),
        Schedule::cron("0 0 0 1 1 * 2020").until(at("2019-01-01T00:00:00Z")),
        Schedule::cron("* * * * *").from(at("6000-01-01T00:00:00Z")),
        Schedule::cron("* * * * *").until(at("0000-01-01T00:00:00Z")),
        Schedule::rule("none", |_| None),
        Schedule::rule("not after", Some),
    ];
    for builder in never {
        assert_eq!(refused(builder.clone()), ScheduleError::NeverFires, "{builder:?}");
    }
    // Past occurrences are occurrences: a schedule has no clock to tell the past by.
    assert!(Schedule::cron("0 0 0 1 1 * 1999").build().is_ok());
}

#[test]
fn what_makes_no_sense_is_refused() {
    for period in [Duration::ZERO, Duration::from_nanos(999)] {
        assert_eq!(refused(Schedule::every(period)), ScheduleError::PeriodTooShort { period });
        assert_eq!(refused(Schedule::fixed_delay(period)), ScheduleError::PeriodTooShort { period });
    }
    assert_eq!(refused(Schedule::every(seconds(1)).zone("UTC")), ScheduleError::ZoneWithoutCron);
    assert_eq!(refused(Schedule::every(seconds(1)).times(3)), ScheduleError::TimesWithoutFrom);
    assert_eq!(refused(Schedule::cron("@daily").times(3)), ScheduleError::TimesWithoutFrom);
    let times = Schedule::MAX_TIMES + 1;
    let many = Schedule::cron("@daily").from(unix(0)).times(times);
    assert_eq!(refused(many), ScheduleError::TooManyTimes { times });
    let unknown = Schedule::cron("@daily").zone("Europe/Atlantis");
    assert_eq!(refused(unknown), ScheduleError::UnknownZone { name: String::from("Europe/Atlantis") });
    assert!(matches!(refused(Schedule::cron("hello")), ScheduleError::InvalidCron(_)));
    for error in [ScheduleError::NotOneKind, refused(Schedule::cron("60 * * * *"))] {
        assert!(!error.to_string().is_empty());
    }
}

#[test]
fn a_fixed_delay_counts_from_the_end_of_the_run() {
    let schedule = Schedule::fixed_delay(seconds(60)).from(unix(1_000)).until(unix(2_000)).build().unwrap();
    assert!(schedule.is_fixed_delay());
    assert_eq!(nominal(schedule.first_at(unix(0))), Some(unix(1_000)));
    assert_eq!(nominal(schedule.first_at(unix(1_500))), Some(unix(1_500)));
    assert_eq!(schedule.first_at(unix(2_001)), None);
    assert_eq!(nominal(schedule.next_after_run(unix(1_000), unix(1_005), 1)), Some(unix(1_065)));
    assert_eq!(schedule.next_after_run(unix(1_900), unix(1_941), 1), None);
    // The wall clock stepped back during the run: the interval goes on within one delay.
    let stepped = Schedule::fixed_delay(seconds(60)).build().unwrap();
    assert_eq!(nominal(stepped.next_after_run(unix(100_000), unix(500), 1)), Some(unix(560)));
    // It never answers with the nominal instant of the run itself.
    let next = stepped.next_after_run(unix(560), unix(500), 1);
    assert_eq!(nominal(next), Some(unix(560) + Duration::from_nanos(1)));
    assert_eq!(nominal(schedule.latest_due(unix(5_000))), Some(unix(1_000)));
    assert_eq!(stepped.latest_due(unix(5_000)), None);
}

#[test]
fn after_a_step_back_no_nominal_instant_is_repeated() {
    let schedule = cron("*/10 * * * *", "Europe/Berlin");
    let last_run = at("2026-10-25T00:50:00Z");
    // Whatever the clock shows, the next run is the one after the last.
    assert_eq!(nominal(schedule.next_after(last_run)), Some(at("2026-10-25T01:00:00Z")));
    let now = last_run - seconds(7_200);
    assert!(schedule.missed(last_run, now, 10).occurrences().is_empty());
    assert_eq!(schedule.count_missed(last_run, now, 10), 0);
}

#[test]
fn missed_occurrences_are_not_enumerated() {
    let (first, last) = ends();
    let start = Instant::now();
    let schedule = Schedule::every(Duration::from_micros(1)).build().unwrap();
    assert_eq!(schedule.count_missed(first, last, u64::MAX), u64::MAX);
    assert_eq!(schedule.missed(first, last - seconds(1), 5).occurrences().len(), 5);
    let minutely = cron("* * * * *", "Europe/Berlin");
    let (down, up) = (at("0300-01-01T00:00:00Z"), at("2200-01-01T00:00:00Z"));
    let missed = minutely.missed(down, up, 100);
    assert_eq!((missed.occurrences().len(), missed.has_older()), (100, true));
    assert_eq!(missed.occurrences().last().copied(), minutely.latest_due(up));
    assert_eq!(minutely.count_missed(down, up, 1_000), 1_000);
    assert!(start.elapsed() < seconds(5), "{:?}", start.elapsed());
}

#[test]
fn missed_occurrences_are_the_latest_in_order() {
    let schedule = Schedule::every(seconds(10)).build().unwrap();
    let list = |after, now, at_most| {
        let missed = schedule.missed(unix(after), unix(now), at_most);
        let nominals = missed.occurrences().iter().map(|occurrence| occurrence.nominal()).collect::<Vec<_>>();
        (nominals, missed.has_older())
    };
    assert_eq!(list(0, 35, 9), (vec![unix(10), unix(20), unix(30)], false));
    assert_eq!(list(0, 35, 3), (vec![unix(10), unix(20), unix(30)], false));
    assert_eq!(list(0, 35, 2), (vec![unix(20), unix(30)], true));
    assert_eq!(list(0, 35, 0), (vec![], true));
    assert_eq!(list(0, 9, 0), (vec![], false));
    assert_eq!(list(30, 35, 5), (vec![], false));
    assert_eq!(schedule.count_missed(unix(0), unix(35), 2), 2);
    assert_eq!(schedule.count_missed(unix(0), unix(35), 9), 3);
}

#[test]
fn a_spread_delays_all_occurrences_alike_and_never_past_the_end() {
    let builder = Schedule::cron("@hourly").key("report/42").spread(seconds(600)).from(unix(0)).until(unix(7_200));
    let schedule = builder.build().unwrap();
    let delay = |o: &Occurrence| o.due().duration_since(o.nominal()).unwrap();
    let occurrences: Vec<Occurrence> = schedule.after(unix(-1)).collect();
    assert_eq!(occurrences.len(), 3);
    assert_eq!(delay(&occurrences[0]), delay(&occurrences[1]));
    assert_eq!(delay(&occurrences[0]).as_secs(), 485);
    assert_eq!(occurrences[2].due(), unix(7_200)); // the end of the schedule leaves no room
    // Between the nominal and the due instant, the occurrence before is the latest due one.
    assert_eq!(schedule.latest_due(unix(3_700)), Some(occurrences[0]));
    assert_eq!(schedule.latest_due(occurrences[1].due()), Some(occurrences[1]));
    assert_eq!(schedule.latest_due(unix(100)), None);
    // The number of times ends the schedule without cutting the delay.
    let times = Schedule::every(seconds(3_600)).key("report/42").spread(seconds(600)).from(unix(0)).times(1);
    assert_eq!(delay(&times.build().unwrap().next_after(unix(-1)).unwrap()).as_secs(), 485);
}

#[test]
fn a_window_longer_than_the_period_shrinks() {
    let mut dues = std::collections::BTreeSet::new();
    for key in 0..1_000 {
        let builder = Schedule::every(seconds(10)).key(&key.to_string()).spread(seconds(3_600)).jitter(seconds(60));
        let occurrence = builder.build().unwrap().next_after(unix(0)).unwrap();
        assert!(occurrence.due() >= unix(10) && occurrence.due() < unix(20));
        dues.insert(occurrence.due());
    }
    assert!(dues.len() > 990, "{}", dues.len());
    let widest = Schedule::every(seconds(10)).spread(Duration::MAX).jitter(Duration::MAX).build().unwrap();
    assert!(widest.next_after(unix(0)).unwrap().due() < unix(20));
    let unlimited = Schedule::cron("0 0 0 1 1 * 2026").spread(Duration::MAX).build().unwrap();
    let occurrence = unlimited.next_after(unix(0)).unwrap();
    assert!(occurrence.due() >= occurrence.nominal());
}

#[test]
fn the_ends_of_time_are_ends() {
    let (first, last) = ends();
    let daily = Schedule::cron("@daily").zone("Pacific/Kiritimati").build().unwrap();
    let schedules = [
        Schedule::every(seconds(7)).build().unwrap(),
        Schedule::every(Duration::MAX).from(first).build().unwrap(),
        Schedule::every(Duration::from_micros(1)).from(last).build().unwrap(),
        Schedule::every(seconds(7)).until(first + seconds(100)).build().unwrap(),
        Schedule::fixed_delay(Duration::MAX).build().unwrap(),
        Schedule::fixed_delay(seconds(1)).from(last).build().unwrap(),
        Schedule::cron("* * * * * *").jitter(seconds(1)).build().unwrap(),
        Schedule::cron("@daily").from(first).until(last).spread(Duration::MAX).build().unwrap(),
        Schedule::rule("daily", move |t| daily.next_after(t).map(|o| o.nominal()))
            .from(first)
            .until(last)
            .build()
            .unwrap(),
        Schedule::rule("add", |t: SystemTime| t.checked_add(seconds(1))).build().unwrap(),
        Schedule::cron("@hourly").from(first).each(7, CalendarUnit::Month).except(["12-25"]).build().unwrap(),
        Schedule::any([Schedule::every(Duration::MAX).from(first), Schedule::cron("@daily")]).build().unwrap(),
    ];
    for schedule in &schedules {
        for t in [first, first + seconds(1), unix(i64::from(i32::MIN)), unix(0), last - seconds(1), last] {
            for occurrence in [schedule.next_after(t), schedule.first_at(t), schedule.next_after_run(t, t, 1)] {
                assert!(occurrence.is_none_or(|o| o.nominal() >= t && o.due() >= o.nominal()), "{schedule:?}");
            }
            assert!(schedule.previous_before(t).is_none_or(|o| o.nominal() < t), "{schedule:?}");
            assert!(schedule.latest_due(t).is_none_or(|o| o.due() <= t), "{schedule:?}");
            assert!(schedule.preview(t, 3).len() <= 3);
            let _ = (schedule.missed(first, t, 3), schedule.missed(t, last, 3), schedule.count_missed(t, last, 3));
            let _ = (schedule.before(t).take(3).count(), schedule.missed(last, first, 3));
        }
    }
    let daily = Schedule::cron("@daily").build().unwrap();
    assert_eq!(nominal(daily.next_after(first)), Some(at("0001-01-01T00:00:00Z")));
    assert_eq!(nominal(daily.previous_before(last)), Some(at("4999-12-31T00:00:00Z")));
    assert_eq!(daily.next_after(last), None);
    assert_eq!(daily.previous_before(first), None);
}

#[test]
fn leap_days_come_every_four_years_and_not_in_2100() {
    let schedule = Schedule::cron("0 12 29 FEB *").build().unwrap();
    let years: Vec<i16> = schedule
        .after(at("2090-01-01T00:00:00Z"))
        .map(|o| jiff::Timestamp::try_from(o.due()).unwrap().to_zoned(jiff::tz::TimeZone::UTC).year())
        .take(4)
        .collect();
    assert_eq!(years, [2092, 2096, 2104, 2108]);
}

#[test]
fn fractions_of_a_second_do_not_move_cron_lines() {
    let schedule = Schedule::cron("* * * * * *").build().unwrap();
    let half = unix(100) + Duration::from_millis(500);
    assert_eq!(nominal(schedule.next_after(half)), Some(unix(101)));
    assert_eq!(nominal(schedule.previous_before(half)), Some(unix(100)));
    assert_eq!(nominal(schedule.previous_before(unix(100) + Duration::from_nanos(1))), Some(unix(100)));
    assert_eq!(nominal(schedule.previous_before(unix(100))), Some(unix(99)));
    assert_eq!(nominal(schedule.next_after(unix(-100) - Duration::from_nanos(1))), Some(unix(-100)));
    assert_eq!(nominal(schedule.latest_due(half)), Some(unix(100)));
}

#[test]
fn a_rule_has_bounds_times_and_spread_like_the_others() {
    struct Squares;
    impl Rule for Squares {
        fn next_after(&self, t: SystemTime) -> Option<SystemTime> {
            let second = t.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
            let root = second.isqrt() + 1;
            Some(UNIX_EPOCH + seconds(root.checked_mul(root)?))
        }
    }
    let schedule = Schedule::rule("squares", Squares).from(unix(5)).times(3).build().unwrap();
    let nominals: Vec<SystemTime> = schedule.after(unix(0)).map(|o| o.nominal()).collect();
    assert_eq!(nominals, [unix(9), unix(16), unix(25)]);
    assert_eq!(nominal(schedule.latest_due(unix(1_000_000))), Some(unix(25)));
    assert_eq!(nominal(schedule.previous_before(unix(16))), Some(unix(9)));
    assert_eq!(schedule.previous_before(unix(9)), None);
    assert_eq!(schedule.count_missed(unix(0), unix(20), 10), 2);
    let spread = Schedule::rule("squares", Squares).key("a").spread(seconds(1_000)).build().unwrap();
    for occurrence in spread.preview(unix(0), 20) {
        let next = spread.next_after(occurrence.nominal()).unwrap();
        assert!(occurrence.due() < next.nominal());
    }
}

#[test]
fn a_schedule_is_a_value() {
    fn value<T: Clone + Send + Sync + std::fmt::Debug + PartialEq>(_: &T) {}
    let schedule = Schedule::cron(" 30  2 * * * ").zone("europe/BERLIN").key("a").build().unwrap();
    value(&schedule);
    assert_eq!(schedule, Schedule::cron("30 2 * * *").zone("Europe/Berlin").key("a").build().unwrap());
    assert_ne!(schedule, Schedule::cron("30 2 * * *").zone("Europe/Berlin").key("b").build().unwrap());
    assert_eq!((schedule.zone(), schedule.key()), (Some("Europe/Berlin"), Some("a")));
    let moved = schedule.to_builder().zone("Asia/Tokyo").build().unwrap();
    assert_ne!(moved.next_after(unix(0)), schedule.next_after(unix(0)));
    assert_eq!(moved.to_builder().zone("Europe/Berlin").build().unwrap(), schedule);
}
