//! Cost of one answer of a schedule: next, previous and latest due, for periods and cron lines.

use std::hint::black_box;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use criterion::Criterion;
use timerqueue_schedule::{Schedule, ScheduleBuilder, Zones};

/// Instants with a step of 1,009 s, from 2026 on: around the clock, across all transitions.
fn instants() -> impl Iterator<Item = SystemTime> {
    (0_u64..).map(|index| UNIX_EPOCH + Duration::from_secs(1_767_225_600 + index % 100_000 * 1_009))
}

fn schedule(builder: ScheduleBuilder) -> Schedule {
    builder.build_in(&Zones::bundled()).expect("a valid schedule")
}

fn next(c: &mut Criterion) {
    let spread = |builder: ScheduleBuilder| builder.key("report/42").spread(Duration::from_secs(30));
    let cases = [
        ("every 10 s", Schedule::every(Duration::from_secs(10))),
        ("every 10 s, spread", spread(Schedule::every(Duration::from_secs(10)))),
        ("daily, UTC", Schedule::cron("30 2 * * *")),
        ("daily, Berlin", Schedule::cron("30 2 * * *").zone("Europe/Berlin")),
        ("daily, Berlin, spread", spread(Schedule::cron("30 2 * * *").zone("Europe/Berlin"))),
        ("each minute, Berlin", Schedule::cron("* * * * *").zone("Europe/Berlin")),
        ("working days, Berlin", Schedule::cron("0 9-17 * * MON-FRI").zone("Europe/Berlin")),
        ("leap days, Berlin", Schedule::cron("0 0 29 2 *").zone("Europe/Berlin")),
    ];
    for (name, builder) in cases {
        let (schedule, mut instants) = (schedule(builder), instants());
        c.bench_function(&format!("next: {name}"), |b| {
            b.iter(|| black_box(schedule.next_after(instants.next().expect("endless"))));
        });
    }
}

fn others(c: &mut Criterion) {
    let berlin = schedule(Schedule::cron("30 2 * * *").zone("Europe/Berlin"));
    let mut at = instants();
    c.bench_function("previous: daily, Berlin", |b| {
        b.iter(|| black_box(berlin.previous_before(at.next().expect("endless"))));
    });
    let every = schedule(Schedule::every(Duration::from_secs(10)));
    c.bench_function("count missed since 1970: every 10 s", |b| {
        b.iter(|| black_box(every.count_missed(UNIX_EPOCH, at.next().expect("endless"), u64::MAX)));
    });
    c.bench_function("missed since 1970, last 10: daily, Berlin", |b| {
        b.iter(|| black_box(berlin.missed(UNIX_EPOCH, at.next().expect("endless"), 10)));
    });
    let rule = berlin.clone();
    let rule = schedule(Schedule::rule("daily", move |t| rule.next_after(t).map(|next| next.nominal())));
    c.bench_function("previous: rule, by bisection", |b| {
        b.iter(|| black_box(rule.previous_before(at.next().expect("endless"))));
    });
    c.bench_function("build: daily, Berlin", |b| {
        b.iter(|| schedule(Schedule::cron("30 2 * * *").zone("Europe/Berlin")));
    });
    c.bench_function("refuse: February 30", |b| {
        b.iter(|| black_box(Schedule::cron("0 0 30 2 *").build()).is_err());
    });
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    next(&mut criterion);
    others(&mut criterion);
    criterion.final_summary();
}
