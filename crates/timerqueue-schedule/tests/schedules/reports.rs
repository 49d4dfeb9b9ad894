//! Cases of the public reports of other libraries, and lines that took long.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use timerqueue_schedule::{CalendarUnit, Schedule};

/// Seconds since 1970 of a civil time in UTC.
fn at(text: &str) -> u64 {
    let time: jiff::civil::DateTime = text.parse().unwrap();
    time.to_zoned(jiff::tz::TimeZone::UTC).unwrap().timestamp().as_second() as u64
}

fn second(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

#[track_caller]
fn next(line: &str, after: &str, expected: &str) {
    let line = Schedule::cron(line).build().unwrap();
    let next = line.next_after(second(at(after))).unwrap().nominal();
    assert_eq!(next, second(at(expected)));
    // And back again.
    assert_eq!(line.previous_before(next + Duration::from_nanos(1)).unwrap().nominal(), next);
}

#[test]
fn the_last_day_of_short_months_comes() {
    next("0 0 0 L 2 ?", "2024-01-01T00:00", "2024-02-29T00:00");
    next("0 0 0 L 2 ? 2025/3", "2024-01-01T00:00", "2025-02-28T00:00");
    next("0 0 11 L * ?", "2017-02-28T05:00", "2017-02-28T11:00");
    for (month, day) in [(2, 28), (4, 30), (6, 30), (9, 30), (11, 30), (12, 31)] {
        let first = format!("2025-{month:02}-{day}T23:15");
        next(&format!("0 15 23 L {month} ? *"), "2025-01-31T23:15", &first);
        next(&format!("0 15 23 28-31 {month} ? *"), &format!("2025-{month:02}-{:02}T23:15", day - 1), &first);
    }
}

#[test]
fn the_29th_and_the_31st_are_days_like_others() {
    next("0 * * * 1-5", "2016-02-29T11:00", "2016-02-29T12:00");
    next("* * * * *", "2020-02-29T12:00", "2020-02-29T12:01");
    next("0 * * ? * *", "2016-08-30T23:59", "2016-08-31T00:00");
    next("0 * * ? * *", "2016-08-31T12:00", "2016-08-31T12:01");
    next("0 0 8 31 * ?", "2017-04-10T08:00", "2017-05-31T08:00");
    next("0 0 12 31 12 ? *", "2016-12-27T00:00", "2016-12-31T12:00");
    // The days of both fields, and those that are in both.
    next("0 2 29 2 0", "2018-05-14T00:00", "2019-02-03T02:00");
    next("0 2 29 2 +0", "2018-05-14T00:00", "2032-02-29T02:00");
    next("0 * * ? 5 7 *", "2016-01-11T00:00", "2016-05-01T00:00");
}

/// Without a walk over all days up to the year 4999: the time of an ordinary line is the measure.
#[test]
fn no_line_takes_long() {
    let from = second(at("2026-01-01T00:00"));
    let least = |build: &dyn Fn() -> Option<SystemTime>| {
        let tries = (0..50).map(|_| {
            let begun = Instant::now();
            let _ = build();
            begun.elapsed()
        });
        tries.min().unwrap()
    };
    let next = |schedule: Schedule| schedule.next_after(from).map(|next| next.nominal());
    let ordinary = least(&|| next(Schedule::cron("0 0 29 2 *").build().ok()?));
    for unit in [CalendarUnit::Week, CalendarUnit::Month] {
        let rare = least(&|| next(Schedule::cron("0 0 29 2 *").from(from).each(999, unit).build().ok()?));
        assert!(rare < ordinary * 50, "{rare:?} for each 999th {unit:?}, {ordinary:?} for an ordinary line");
    }
}

/// Each n-th unit by steps is what a walk over all days finds.
#[test]
fn each_nth_unit_is_found_in_both_directions() {
    let begin = at("2024-05-17T00:00");
    let all = Schedule::cron("0 0 29-31 * *").build().unwrap();
    for (n, unit) in
        [(7, CalendarUnit::Day), (61, CalendarUnit::Day), (5, CalendarUnit::Week), (11, CalendarUnit::Month)]
    {
        let each = Schedule::cron("0 0 29-31 * *").from(second(begin)).each(n, unit).build().unwrap();
        let counts = |time: SystemTime| {
            let days = time.duration_since(UNIX_EPOCH).unwrap().as_secs() / 86_400;
            let first = begin / 86_400;
            let (one, other) = match unit {
                CalendarUnit::Day => (days, first),
                CalendarUnit::Week => ((days + 3) / 7, (first + 3) / 7),
                CalendarUnit::Month => {
                    let month = |days: u64| {
                        let date =
                            jiff::civil::date(1970, 1, 1).checked_add(jiff::Span::new().days(days as i64)).unwrap();
                        date.year() as u64 * 12 + date.month() as u64
                    };
                    (month(days), month(first))
                }
            };
            one.abs_diff(other) % u64::from(n) == 0
        };
        let mut expected: Vec<SystemTime> = Vec::new();
        let mut time = second(begin);
        while expected.len() < 30 {
            time = all.next_after(time).unwrap().nominal();
            expected.extend(counts(time).then_some(time));
        }
        let found: Vec<_> = each.preview(second(begin), 30).iter().map(|next| next.nominal()).collect();
        assert_eq!(found, expected, "{n} {unit:?}");
        for pair in expected.windows(2) {
            assert_eq!(each.previous_before(pair[1]).unwrap().nominal(), pair[0], "{n} {unit:?}");
        }
    }
}
