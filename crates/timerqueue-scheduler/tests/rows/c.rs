//! C: a cron scheduler in one process, with a heap or a wheel.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use timerqueue::Delay;
use timerqueue_scheduler::store::MemoryStore;
use timerqueue_scheduler::{
    Cancel, Catchup, Clash, Error, Handler, Overlap, Query, Retry, Run, RunEnd, Schedule, Scheduler, State,
};

use crate::bench::{self, Bench, DAY, HOUR, clock, expect, secs, wall};

fn every(period: Duration) -> Schedule {
    Schedule::every(period).build().unwrap()
}

#[test]
fn c1_jobs_are_added_removed_and_counted_by_name() {
    let bench = Bench::new();
    for key in ["report", "backup", "mail"] {
        let _ = bench.job(key).schedule(every(secs(60))).send().wait().unwrap();
    }
    assert_eq!(bench.stats().jobs.of(State::Recurring), 3);
    assert_eq!(bench.scheduler.cancel("backup").wait(), Ok(Cancel::Cancelled));
    let names = bench.scheduler.list(Query::new().state(State::Recurring)).wait().unwrap();
    assert_eq!(names.iter().map(|job| &*job.key).collect::<Vec<_>>(), ["report", "mail"]);
    let info = bench.get("mail").unwrap();
    assert_eq!((info.due, info.last.is_none()), (Some(wall(0)), true));
    bench.advance(90);
    let info = bench.get("mail").unwrap();
    let last = info.last.unwrap();
    assert_eq!((info.due, last.nominal, last.end), (Some(wall(120)), Some(wall(60)), RunEnd::Done));
}

#[test]
fn c2_a_rule_of_the_user_is_a_schedule() {
    let bench = Bench::new();
    let doubling = |t: SystemTime| {
        let seconds = t.duration_since(wall(0)).map_or(0, |since| since.as_secs());
        Some(wall(0) + secs((seconds + 1).next_power_of_two()))
    };
    let _ = bench.job("r").schedule(Schedule::rule("doubling", doubling).build().unwrap()).send().wait().unwrap();
    bench.advance(100);
    assert_eq!(bench.log.seconds(), [1, 2, 4, 8, 16, 32, 64]);
}

#[test]
fn c3_once_every_from_and_a_number_of_runs() {
    let bench = Bench::new();
    let _ = bench.put("once", wall(45));
    let from = Schedule::every(secs(20)).from(wall(25)).build().unwrap();
    let _ = bench.job("from").schedule(from).send().wait().unwrap();
    let thrice = Schedule::every(secs(10)).from(wall(5)).times(3).build().unwrap();
    let _ = bench.job("thrice").schedule(thrice).send().wait().unwrap();
    let rest = Schedule::fixed_delay(secs(30)).times(2).build().unwrap();
    let _ = bench.job("rest").schedule(rest).send().wait().unwrap();
    bench.advance(70);
    let runs = |key: &str| -> Vec<u64> {
        bench.log.all().iter().filter(|seen| seen.key == key).map(|seen| seen.at.as_secs()).collect()
    };
    assert_eq!(runs("once"), [45]);
    assert_eq!(runs("from"), [25, 45, 65]);
    assert_eq!(runs("thrice"), [5, 15, 25]);
    assert_eq!(runs("rest"), [0, 30]);
    assert_eq!((bench.get("thrice"), bench.get("rest")), (None, None), "they have left");
    assert!(bench.get("from").is_some());
}

#[test]
fn c4_cron_lines_in_zones() {
    let bench = Bench::new();
    let line = Schedule::cron("0 9 * * MON-FRI").zone("America/New_York").build().unwrap();
    let _ = bench.job("open").schedule(line).send().wait().unwrap();
    bench.clock.advance(7 * DAY);
    // Thursday to Wednesday, at 14:00 UTC, without Saturday and Sunday.
    assert_eq!(bench.log.seconds(), [0, 1, 4, 5, 6].map(|day| day * 86_400 + 14 * 3_600));
}

#[test]
fn c6_an_earlier_job_rearms_the_sleeper() {
    let bench = Bench::new();
    for (key, second) in [("late", 3_000), ("earlier", 300), ("earliest", 30)] {
        let _ = bench.put(key, secs(second));
        bench.go();
    }
    let _ = bench.scheduler.move_to("late", secs(3)).wait().unwrap();
    bench.advance(400);
    assert_eq!(bench.log.take(), expect(&[("late", 3), ("earliest", 30), ("earlier", 300)]));
}

#[test]
fn c7_run_stop_and_a_log_of_durations_and_errors() {
    let records = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&records);
    let bench = Bench::with(|builder, runtime, _| {
        let runtime = runtime.clone();
        let work = move |fails: bool, run: &Run| {
            let _ = runtime.enter(|| run.token().wait_timeout(secs(3)));
            if fails { Err("disk full") } else { Ok(()) }
        };
        builder
            .register(Handler::new("work", work).retry(Retry::never()))
            .on_run_end(move |record| seen.lock().unwrap().push(record.clone()))
    });
    for (key, fails) in [("good", false), ("bad", true)] {
        let _ = bench.scheduler.put_to("work", &fails).key(key).send().wait().unwrap();
        bench.advance(10);
    }
    let records = records.lock().unwrap();
    let summary: Vec<_> =
        records.iter().map(|r| (&*r.key, &*r.name, r.run.duration, r.run.end, r.run.error.as_deref())).collect();
    assert_eq!(
        summary,
        [("good", "work", secs(3), RunEnd::Done, None), ("bad", "work", secs(3), RunEnd::Dead, Some("disk full")),]
    );
    let report = bench.scheduler.close(secs(1)).wait().unwrap();
    assert!(report.is_drained());
}

#[test]
fn c9_a_fired_entry_is_not_doubled() {
    let bench = Bench::new();
    let _ = bench.job("tick").schedule(every(secs(1))).send().wait().unwrap();
    bench.advance(1_000);
    assert_eq!(bench.log.len(), 1_001);
    assert_eq!(bench.scheduler.list(Query::new()).wait().unwrap().len(), 1);
}

#[test]
fn c10_a_job_removed_while_it_is_the_head_never_runs() {
    let bench = Bench::new();
    let _ = bench.put("head", secs(10));
    bench.advance(9);
    assert_eq!(bench.scheduler.cancel("head").wait(), Ok(Cancel::Cancelled));
    bench.advance(100);
    assert_eq!(bench.log.len(), 0);
    // Removed and added again: only the new one runs.
    let _ = bench.put("head", secs(10));
    assert_eq!(bench.scheduler.cancel("head").wait(), Ok(Cancel::Cancelled));
    let _ = bench.put("head", secs(20));
    bench.advance(100);
    assert_eq!(bench.log.take(), expect(&[("head", 129)]));
    // Also a recurring one, at the instant of its occurrence.
    let _ = bench.job("r").schedule(every(secs(10))).send().wait().unwrap();
    assert_eq!(bench.scheduler.cancel("r").wait(), Ok(Cancel::Cancelled));
    bench.advance(100);
    assert_eq!(bench.log.len(), 0);
}

#[test]
fn c11_removed_entries_leave_at_once() {
    let bench = Bench::new();
    for n in 0..1_000 {
        let _ = bench.put(&n.to_string(), 1_000 * DAY);
        assert_eq!(bench.scheduler.cancel(&n.to_string()).wait(), Ok(Cancel::Cancelled));
    }
    assert_eq!(bench.stats().jobs.of(State::Waiting), 0);
    assert!(bench.scheduler.list(Query::new()).wait().unwrap().is_empty());
}

#[test]
fn c12_removal_removes_and_stop_returns() {
    let bench = Bench::new();
    let _ = bench.job("tick").schedule(every(secs(1))).send().wait().unwrap();
    bench.advance(2);
    let runs = bench.log.len();
    assert_eq!(bench.scheduler.cancel("tick").wait(), Ok(Cancel::Cancelled));
    bench.advance(100);
    assert_eq!(bench.log.len(), runs);
    assert!(bench.scheduler.close(secs(5)).wait().unwrap().is_drained());
}

#[test]
fn c13_an_overdue_job_runs_in_any_phase() {
    for phase in 0..61 {
        let bench = Bench::new();
        bench.advance(phase);
        let _ = bench.put("a", wall(-1_000));
        bench.go();
        assert_eq!(bench.log.take(), expect(&[("a", phase)]));
    }
}

#[test]
fn c14_a_job_put_again_by_its_handler_runs_once_more() {
    let bench = Bench::with(|builder, runtime, log| {
        let (runtime, log) = (runtime.clone(), log.clone());
        builder.handler("again", move |left: u32, run: &Run| {
            log.add(&runtime, run);
            if left > 0 {
                // Its own key is taken until the run ends, so it is replaced.
                let put = run.scheduler();
                let put = put.put_to("again", &(left - 1)).key(run.key()).clash(Clash::Replace);
                let _ = put.due(Duration::from_micros(700)).send().wait();
            }
        })
    });
    let _ = bench.scheduler.put_to("again", &9).key("a").due(Duration::from_micros(999_999)).send().wait().unwrap();
    bench.advance(2);
    assert_eq!(bench.log.len(), 10);
    let micros: Vec<u128> = bench.log.all().iter().map(|seen| seen.at.as_micros()).collect();
    assert_eq!(micros, (0..10).map(|n| 999_999 + n * 700).collect::<Vec<u128>>());
}

#[test]
fn c15_periods_of_exactly_a_revolution() {
    for period in [60, 3_600] {
        let bench = Bench::new();
        bench.advance(17);
        let schedule = Schedule::every(secs(period)).from(wall(17)).build().unwrap();
        let _ = bench.job("r").schedule(schedule).send().wait().unwrap();
        bench.clock.advance(secs(period * 10));
        assert_eq!(bench.log.seconds(), (0..=10).map(|n| 17 + n * period).collect::<Vec<u64>>());
    }
}

#[test]
fn c16_an_interval_does_not_drift_and_from_counts() {
    let bench = Bench::with(|builder, runtime, log| {
        let (runtime, log) = (runtime.clone(), log.clone());
        builder.handler("slow", move |_: (), run: &Run| {
            log.add(&runtime, run);
            let _ = runtime.enter(|| run.token().wait_timeout(secs(3)));
        })
    });
    let schedule = Schedule::every(secs(10)).from(wall(7)).build().unwrap();
    let _ = bench.to("slow", "r").schedule(schedule).send().wait().unwrap();
    bench.advance(60);
    assert_eq!(bench.log.seconds(), [7, 17, 27, 37, 47, 57]);
}

#[test]
fn c17_missed_occurrences_follow_their_policy_and_are_counted() {
    for (catchup, grace, runs, missed) in [
        (Catchup::RunLast, None, vec![60], 5),
        (Catchup::RunAll { at_most: 3 }, None, vec![40, 50, 60], 3),
        (Catchup::RunAll { at_most: 100 }, None, vec![10, 20, 30, 40, 50, 60], 0),
        (Catchup::RunAll { at_most: 100 }, Some(secs(20)), vec![50, 60], 4),
        (Catchup::Skip, None, vec![60], 5),
        (Catchup::Skip, Some(secs(1)), vec![], 6),
        (Catchup::RunLast, Some(secs(1)), vec![], 6),
    ] {
        let bench = Bench::new();
        let put = bench.job("r").schedule(every(secs(10))).catchup(catchup);
        let put = if let Some(grace) = grace { put.grace(grace) } else { put };
        let _ = put.send().wait().unwrap();
        bench.go();
        let _ = bench.log.take();
        bench.clock.stall(secs(65));
        bench.go();
        let nominals: Vec<Option<SystemTime>> = bench.log.all().iter().map(|seen| seen.nominal).collect();
        assert_eq!(nominals, runs.iter().map(|&s| Some(wall(s))).collect::<Vec<_>>(), "{catchup:?} {grace:?}");
        let info = bench.get("r").unwrap();
        assert_eq!((info.tally.missed, info.due), (missed, Some(wall(70))), "{catchup:?} {grace:?}");
    }
    // A hundred years of seconds are not walked over.
    let bench = Bench::new();
    let _ = bench.job("r").schedule(every(secs(1))).catchup(Catchup::RunAll { at_most: 2 }).send().wait().unwrap();
    bench.go();
    let _ = bench.log.take();
    bench.clock.set_wall(wall(100 * 366 * 86_400));
    bench.go();
    assert_eq!(bench.log.len(), 2);
    assert_eq!(bench.get("r").unwrap().tally.missed, 998, "counted up to a thousand");
}

#[test]
fn c18_a_job_overlaps_itself_only_if_allowed() {
    for (overlap, begun) in [
        (Overlap::Skip, vec![0, 30, 60, 90]),
        (Overlap::QueueOne, vec![0, 25, 50, 75]),
        (Overlap::Allow, vec![0, 10, 20, 30, 40, 50, 60, 70, 80, 90]),
    ] {
        // Futures end in any order, as nested waits of threads on a manual clock do not.
        let executor = Arc::new(smol::Executor::new());
        let tasks = Arc::clone(&executor);
        let bench = Bench::with(|builder, runtime, log| {
            let (runtime, log) = (runtime.clone(), log.clone());
            let slow = move |_: (), run: Run| {
                log.add(&runtime, &run);
                Delay::on(&runtime, secs(25))
            };
            builder.async_handler("slow", slow).spawner(move |future| tasks.spawn(future).detach())
        });
        let put = bench.to("slow", "r").schedule(Schedule::every(secs(10)).until(wall(90)).build().unwrap());
        let _ = put.overlap(overlap).send().wait().unwrap();
        for _ in 0..95 {
            bench.go();
            while executor.try_tick() {}
            bench.go();
            while executor.try_tick() {}
            bench.advance(1);
        }
        assert_eq!(bench.log.seconds(), begun, "{overlap:?}");
    }
    // A panic ends neither the schedule nor the process.
    let bench = Bench::with(|builder, _, _| builder.register(Handler::new("bad", bench::panics).retry(Retry::never())));
    let _ = bench.to("bad", "r").schedule(every(secs(10))).send().wait().unwrap();
    bench.advance(100);
    assert_eq!(bench.stats().died, 11);
}

#[test]
fn c19_a_put_during_a_close_is_answered() {
    let bench = Bench::new();
    let scheduler = &bench.scheduler;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let mut accepted = 0;
                for n in 0.. {
                    match scheduler.put_to("log", &()).key(&format!("{thread}/{n}")).due(HOUR).send().wait() {
                        Ok(placed) => accepted += usize::from(placed.added().is_some()),
                        Err(Error::Closed) => return accepted,
                        Err(error) => panic!("{error}"),
                    }
                }
                accepted
            });
        }
        std::thread::sleep(Duration::from_millis(20));
        let _ = scheduler.close(Duration::ZERO).wait().unwrap();
    });
    assert!(scheduler.is_closed());
}

#[test]
fn c20_a_slow_receiver_causes_no_lag_afterwards() {
    let bench = Bench::with(|builder, runtime, log| {
        let (runtime, log) = (runtime.clone(), log.clone());
        builder.handler("slow once", move |_: (), run: &Run| {
            log.add(&runtime, run);
            if run.nominal() == Some(wall(20)) {
                let _ = runtime.enter(|| run.token().wait_timeout(Duration::from_millis(34_500)));
            }
        })
    });
    let _ = bench.to("slow once", "r").schedule(every(secs(10))).send().wait().unwrap();
    bench.advance(100);
    assert_eq!(bench.log.seconds(), [0, 10, 20, 60, 70, 80, 90, 100]);
    assert_eq!(bench.get("r").unwrap().tally.skipped, 3);
}

#[test]
fn c21_two_schedulers_run_each_occurrence_once() {
    let (clock, runtime) = clock();
    let store = MemoryStore::new(&runtime);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let make = || {
        let seen = Arc::clone(&seen);
        let handler = move |_: (), run: &Run| seen.lock().unwrap().push((run.nominal(), run.run_id().to_owned()));
        Scheduler::builder().runtime(&runtime).store(store.clone()).handler("h", handler).start().unwrap()
    };
    let (one, two) = (make(), make());
    let put = one.put_to("h", &()).key("r").schedule(every(secs(1)));
    let _ = put.send().wait().unwrap();
    let again = two.put_to("h", &()).key("r").schedule(every(secs(1))).send().wait().unwrap();
    assert!(again.is_refused(), "a key belongs to one job, on any number of schedulers");
    clock.advance(secs(100));
    drop(one); // one of them goes
    clock.advance(secs(100));
    let seen = seen.lock().unwrap();
    let mut nominals: Vec<_> = seen.iter().map(|(nominal, _)| nominal.unwrap()).collect();
    assert_eq!(nominals.len(), 201);
    assert!(nominals.is_sorted());
    nominals.dedup();
    assert_eq!(nominals.len(), 201);
    let mut ids: Vec<_> = seen.iter().map(|(_, id)| id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 201, "each with a token of its own");
}
