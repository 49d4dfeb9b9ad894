//! Cancel, move, pause, run now, dead jobs, schedules that are replaced (J3, J4).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use timerqueue::OnceTimer;
use timerqueue_scheduler::store::Invalid;
use timerqueue_scheduler::{
    Cancel, Change, Clash, Error, Handler, Outcome, Overlap, Placed, Query, Retry, Revive, Run, Schedule, Scheduler,
    State,
};

use crate::bench::{Bench, HOUR, clock, expect, secs, wall};

#[test]
fn a_cancelled_run_sees_its_token_and_is_not_repeated() {
    let bench = Bench::with(|builder, runtime, _| {
        let runtime = runtime.clone();
        builder.handler("long", move |_: (), run: &Run| match runtime.enter(|| run.token().wait_timeout(HOUR)) {
            Ok(()) => Ok(Outcome::Done),
            Err(cancelled) => Err(cancelled),
        })
    });
    let _ = bench.to("long", "a").send().wait().unwrap();
    let scheduler = bench.scheduler.clone();
    let answer = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&answer);
    let canceller =
        OnceTimer::on(&bench.runtime, secs(5), move |_| *seen.lock().unwrap() = Some(scheduler.cancel("a").wait()));
    bench.clock.advance(10 * HOUR);
    drop(canceller);
    assert_eq!(*answer.lock().unwrap(), Some(Ok(Cancel::Running)));
    let stats = bench.stats();
    assert_eq!((stats.retried, stats.durations.longest()), (1, secs(5)), "it failed at once, with an attempt left");
    assert_eq!(bench.get("a"), None, "and none follows");
}

#[test]
fn replace_moves_key_and_payload_in_one_step() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sent);
    let bench = Bench::with(|builder, _, _| {
        builder.handler("send", move |text: String, _: &Run| seen.lock().unwrap().push(text))
    });
    let put = |text: &str, due: u64, clash: Clash| {
        bench.scheduler.put_to("send", text).key("k").due(secs(due)).clash(clash).send().wait().unwrap()
    };
    let first = put("one", 10, Clash::Refuse).added().unwrap();
    assert_eq!(put("two", 20, Clash::Keep), Placed::Kept(first));
    assert!(matches!(put("three", 30, Clash::Replace), Placed::Replaced { was_running: false, .. }));
    bench.advance(100);
    assert_eq!(*sent.lock().unwrap(), ["three"]);
}

#[test]
fn a_paused_handler_takes_jobs_and_runs_them_later() {
    let bench = Bench::new();
    let _ = bench.scheduler.pause_handler("log").wait().unwrap();
    for n in 0..3 {
        let _ = bench.put(&n.to_string(), secs(n));
    }
    let _ = bench.job("r").schedule(Schedule::every(secs(10)).build().unwrap()).send().wait().unwrap();
    bench.advance(60);
    assert_eq!(bench.log.len(), 0);
    assert_eq!(bench.stats().jobs.oldest_overdue, None, "a paused handler is not overdue");
    let _ = bench.scheduler.resume_handler("log").wait().unwrap();
    bench.go();
    assert_eq!(
        bench.log.take(),
        expect(&[("0", 60), ("1", 60), ("2", 60), ("r", 60)]),
        "the schedule ran its last one"
    );
}

#[test]
fn a_paused_schedule_misses_its_occurrences() {
    let bench = Bench::new();
    let _ = bench.job("r").schedule(Schedule::every(secs(10)).build().unwrap()).send().wait().unwrap();
    bench.advance(20);
    let _ = bench.scheduler.pause("r").wait().unwrap();
    bench.advance(100);
    assert_eq!(bench.log.seconds(), [0, 10, 20]);
    let _ = bench.scheduler.resume("r").wait().unwrap();
    bench.advance(15);
    assert_eq!(bench.log.seconds(), [120, 130]);
    assert_eq!(bench.get("r").unwrap().tally.missed, 9);
}

#[test]
fn run_now_runs_beside_the_schedule() {
    let bench = Bench::new();
    let _ = bench.job("r").schedule(Schedule::every(HOUR).from(wall(3_600)).build().unwrap()).send().wait().unwrap();
    bench.advance(60);
    assert_eq!(bench.scheduler.run_now("r").wait(), Ok(Change::Changed));
    bench.clock.advance(2 * HOUR);
    assert_eq!(bench.log.seconds(), [60, 3_600, 7_200]);
    assert_eq!(bench.scheduler.run_now("none").wait(), Ok(Change::Absent));
    // A fixed delay counts from the end of its own runs.
    let _ = bench.job("d").schedule(Schedule::fixed_delay(HOUR).build().unwrap()).send().wait().unwrap();
    bench.go();
    let _ = bench.scheduler.cancel("r").wait().unwrap();
    let _ = bench.log.take();
    bench.advance(60);
    let _ = bench.scheduler.run_now("d").wait().unwrap();
    bench.clock.advance(HOUR);
    assert_eq!(bench.log.seconds(), [7_320, 10_860]);
}

#[test]
fn dead_jobs_are_listed_revived_and_discarded() {
    let tries = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tries);
    let bench = Bench::with(|builder, _, _| {
        let flaky = move |_: (), _: &Run| match count.fetch_add(1, Ordering::Relaxed) {
            2.. => Ok(Outcome::Done),
            _ => Err("down"),
        };
        builder
            .register(Handler::new("flaky", flaky).retry(Retry::never()))
            .handler("verdict", |_: (), _: &Run| Outcome::Dead("no such user".to_owned()))
    });
    let _ = bench.to("flaky", "f").send().wait().unwrap();
    let _ = bench.to("verdict", "v").send().wait().unwrap();
    bench.go();
    let dead = bench.scheduler.list(Query::new().state(State::Dead)).wait().unwrap();
    let errors: Vec<_> = dead.iter().map(|job| (&*job.key, job.error.as_deref())).collect();
    assert_eq!(errors, [("f", Some("down")), ("v", Some("no such user"))]);
    assert_eq!(bench.scheduler.revive(dead[0].id).wait(), Ok(Revive::Revived));
    bench.go(); // fails again
    assert_eq!(bench.scheduler.revive(dead[0].id).wait(), Ok(Revive::Revived));
    bench.go();
    assert_eq!((bench.get("f"), bench.stats().done), (None, 1));
    assert_eq!(bench.scheduler.discard(dead[1].id).wait(), Ok(true));
    assert_eq!(bench.scheduler.revive(dead[1].id).wait(), Ok(Revive::Absent));
}

/// The new line has had its hour today, after the last run of the old one.
#[test]
fn a_changed_cron_line_makes_up_for_nothing() {
    for clash in [Clash::Replace, Clash::Update] {
        let bench = Bench::new();
        let put = |line: &str| {
            let schedule = Schedule::cron(line).build().unwrap();
            bench.job("daily").schedule(schedule).clash(clash).send().wait().unwrap()
        };
        let _ = put("0 1 * * *");
        bench.clock.advance(15 * HOUR);
        let _ = put("0 2 * * *");
        bench.clock.advance(24 * HOUR);
        assert_eq!(bench.log.seconds(), [3_600, 26 * 3_600]);
    }
}

#[test]
fn a_handler_says_when_to_run_again() {
    let bench = Bench::with(|builder, runtime, log| {
        let (runtime, log) = (runtime.clone(), log.clone());
        builder.handler("poll", move |_: (), run: &Run| {
            log.add(&runtime, run);
            match log.len() {
                1 => Outcome::again(secs(30)),
                2 => Outcome::again(wall(100)),
                3 => Outcome::again(runtime.now() + secs(7)),
                4 => Outcome::again(wall(0)), // has passed: at once
                _ => Outcome::Done,
            }
        })
    });
    let _ = bench.to("poll", "p").due(secs(1)).send().wait().unwrap();
    bench.advance(200);
    let seen = bench.log.all();
    assert_eq!(seen.iter().map(|seen| seen.at.as_secs()).collect::<Vec<_>>(), [1, 31, 100, 107, 107]);
    assert!(seen.iter().all(|seen| seen.attempt == 1));
    assert_eq!((bench.stats().again, bench.stats().done), (4, 1));
}

#[test]
fn a_rescheduled_job_keeps_its_rules_and_repeats_no_nominal_instant() {
    let bench = Bench::new();
    let hourly = Schedule::every(HOUR).build().unwrap();
    let _ = bench.job("r").schedule(hourly).overlap(Overlap::Allow).send().wait().unwrap();
    bench.advance(60);
    assert_eq!(bench.log.seconds(), [0]);
    let often = Schedule::every(secs(45)).build().unwrap();
    assert_eq!(bench.scheduler.reschedule("r", often.clone()).wait(), Ok(Change::Changed));
    bench.advance(100);
    assert_eq!(bench.log.seconds(), [90, 135]);
    let recurrence = bench.get("r").unwrap().recurrence.unwrap();
    assert_eq!((recurrence.schedule, recurrence.overlap), (often, Overlap::Allow));
    let _ = bench.put("once", HOUR);
    assert_eq!(bench.scheduler.reschedule("once", recurrence_of(secs(1))).wait(), Ok(Change::WrongKind));
    assert_eq!(bench.scheduler.move_to("r", HOUR).wait(), Ok(Change::WrongKind));
}

fn recurrence_of(period: Duration) -> Schedule {
    Schedule::every(period).build().unwrap()
}

#[test]
fn invalid_values_are_typed_errors() {
    let bench = Bench::new();
    let error = |put: timerqueue_scheduler::Put<'_>| put.send().wait().unwrap_err();
    assert_eq!(error(bench.job("")), Error::Invalid(Invalid::EmptyKey));
    assert_eq!(error(bench.job("a\0")), Error::Invalid(Invalid::NulInKey));
    assert_eq!(error(bench.job("a").due(Duration::MAX)), Error::Invalid(Invalid::InstantOutOfRange));
    let before = std::time::UNIX_EPOCH - secs(1);
    assert_eq!(error(bench.job("a").due(before)), Error::Invalid(Invalid::InstantOutOfRange));
    assert_eq!(bench.scheduler.move_to("a", before).wait(), Err(Error::Invalid(Invalid::InstantOutOfRange)));
    assert_eq!(error(bench.scheduler.put_to("log", "a\0")), Error::Invalid(Invalid::NulInPayload));
    let long = "x".repeat(300_000);
    assert!(matches!(error(bench.scheduler.put_to("log", &long)), Error::Invalid(Invalid::PayloadTooLong { .. })));
    let map = std::collections::HashMap::from([((1, 2), 3)]);
    assert!(matches!(error(bench.scheduler.put_to("log", &map)), Error::NotSerializable { .. }));
    let over = Schedule::every(secs(1)).from(wall(-10)).until(wall(-5)).build().unwrap();
    assert_eq!(error(bench.job("a").schedule(over)), Error::NoOccurrence);
    let far = wall(0) + 8_000 * 366 * crate::bench::DAY;
    let far = Schedule::every(secs(1)).from(far).build().unwrap();
    assert_eq!(error(bench.job("a").schedule(far)), Error::NoOccurrence);
    assert!(bench.scheduler.list(Query::new()).wait().unwrap().is_empty());
    // A store of its own has no other scheduler that might know the handler.
    let (_clock, runtime) = clock();
    let alone = Scheduler::builder().runtime(&runtime).start().unwrap();
    let unknown = alone.put_to("none", &()).send().wait();
    assert_eq!(unknown, Err(Error::UnknownHandler { name: "none".to_owned() }));
}

#[test]
fn many_puts_are_answered_one_by_one_in_their_order() {
    let bench = Bench::new();
    let long = "x".repeat(300_000);
    let puts = [
        bench.job("a").due(secs(1)),
        bench.job("\0"),
        bench.job("b").due(secs(2)),
        bench.job("a").due(secs(3)),
        bench.job("c").due(wall(0) - 100 * 366 * crate::bench::DAY),
        bench.scheduler.put_to("log", &long),
        bench.job("d"),
    ];
    let placed = bench.scheduler.put_many(puts).wait().unwrap();
    let kinds: Vec<_> = placed
        .iter()
        .map(|placed| match placed {
            Ok(placed) if placed.is_refused() => "refused",
            Ok(placed) => placed.added().map_or("kept", |_| "added"),
            Err(Error::Invalid(Invalid::NulInKey)) => "nul",
            Err(Error::Invalid(Invalid::InstantOutOfRange)) => "too early",
            Err(Error::Invalid(Invalid::PayloadTooLong { .. })) => "too long",
            Err(_) => "another error",
        })
        .collect();
    assert_eq!(kinds, ["added", "nul", "added", "refused", "too early", "too long", "added"]);
    bench.advance(10);
    assert_eq!(bench.log.take(), expect(&[("d", 0), ("a", 1), ("b", 2)]));
    assert_eq!(bench.scheduler.put_many([]).wait().unwrap(), []);
    // Another scheduler's put: the answers are those of the scheduler that takes it.
    let (_clock, runtime) = clock();
    let other = Scheduler::builder().runtime(&runtime).handler("other", |_: (), _: &Run| {}).start().unwrap();
    let placed =
        bench.scheduler.put_many([other.put_to("log", &()).key("e"), other.put_to("other", &())]).wait().unwrap();
    assert!(placed.iter().all(|placed| placed.as_ref().is_ok_and(|placed| placed.added().is_some())));
    bench.go();
    assert_eq!(bench.log.keys(), ["e"]);
    assert!(other.list(Query::new()).wait().unwrap().is_empty());
    let _ = bench.scheduler.close(secs(1)).wait();
    assert_eq!(bench.scheduler.put_many([bench.job("f")]).wait(), Err(Error::Closed));
}

#[test]
fn last_run_and_next_run_are_known() {
    let bench = Bench::with(|builder, runtime, _| {
        let runtime = runtime.clone();
        builder.handler("slow", move |_: (), run: &Run| _ = runtime.enter(|| run.token().wait_timeout(secs(2))))
    });
    let daily = Schedule::cron("0 6 * * *").build().unwrap();
    let _ = bench.to("slow", "r").schedule(daily).send().wait().unwrap();
    bench.clock.advance(8 * HOUR);
    let info = bench.get("r").unwrap();
    let last = info.last.unwrap();
    assert_eq!((last.started, last.duration, last.attempt), (wall(6 * 3_600), secs(2), 1));
    assert_eq!((info.due, info.tally.runs), (Some(wall(30 * 3_600)), 1));
}
