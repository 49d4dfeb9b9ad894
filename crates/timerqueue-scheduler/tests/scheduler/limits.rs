//! Limits of runs and of time; retries; rows that cost nothing (J10, J13, J15).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use timerqueue::Delay;
use timerqueue_scheduler::{Handler, Outcome, Permanent, Retry, Run, Schedule, State, Stats};

use crate::bench::{Bench, DAY, HOUR, expect, secs};

/// A handler that holds its place for a time, and the most that ran at a time.
fn counted(name: &str, hold: Duration, runtime: &timerqueue::Runtime) -> (Handler, Arc<AtomicUsize>) {
    let (runtime, now, most) = (runtime.clone(), AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let now = Arc::new(now);
    let handler = Handler::new_async(name, move |_: serde_json::Value, _: Run| {
        seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let (rest, now) = (Delay::on(&runtime, hold), Arc::clone(&now));
        async move {
            rest.await;
            now.fetch_sub(1, Ordering::SeqCst);
        }
    });
    (handler, most)
}

/// Advances second by second, with the tasks of the executor.
fn advance(bench: &Bench, executor: &smol::Executor<'_>, seconds: u64) {
    for _ in 0..seconds {
        bench.advance(1);
        while executor.try_tick() {
            bench.go();
        }
    }
}

#[test]
fn limits_of_runs_hold_per_handler_and_in_all() {
    let executor = Arc::new(smol::Executor::new());
    let (tasks, mosts) = (Arc::clone(&executor), Arc::new(Mutex::new(Vec::new())));
    let bench = Bench::with(|mut builder, runtime, _| {
        for (name, parallel) in [("a", 2), ("b", 3), ("c", 100)] {
            let (handler, most) = counted(name, secs(10), runtime);
            mosts.lock().unwrap().push(most);
            builder = builder.register(handler.parallel(parallel));
        }
        builder.parallel(6).spawner(move |future| tasks.spawn(future).detach())
    });
    for n in 0..10 {
        for name in ["a", "b", "c"] {
            let _ = bench.to(name, &format!("{name}{n}")).send().wait().unwrap();
        }
    }
    bench.go();
    while executor.try_tick() {
        bench.go();
    }
    assert_eq!(bench.stats().jobs.of(State::Running), 6);
    advance(&bench, &executor, 120);
    assert_eq!(bench.stats().done, 30);
    let mosts: Vec<usize> = mosts.lock().unwrap().iter().map(|most| most.load(Ordering::SeqCst)).collect();
    assert!(mosts[0] == 2 && mosts[1] <= 3 && mosts.iter().sum::<usize>() >= 6, "{mosts:?}");
}

#[test]
fn a_full_handler_delays_no_other_and_is_not_looked_at() {
    let executor = Arc::new(smol::Executor::new());
    let tasks = Arc::clone(&executor);
    let bench = Bench::with(|builder, runtime, _| {
        let (handler, _) = counted("slow", HOUR, runtime);
        builder.register(handler.parallel(1)).spawner(move |future| tasks.spawn(future).detach())
    });
    for n in 0..1_000 {
        let _ = bench.to("slow", &format!("s{n}")).send().wait().unwrap();
    }
    bench.go();
    while executor.try_tick() {}
    let fired = bench.runtime.metrics().fired();
    let _ = bench.put("other", secs(5));
    bench.advance(600);
    assert_eq!(bench.log.take(), expect(&[("other", 5)]));
    assert!(
        bench.runtime.metrics().fired() - fired <= 4,
        "nothing else wakes up: {}",
        bench.runtime.metrics().fired() - fired
    );
}

#[test]
fn a_run_that_ignores_its_limit_keeps_its_place_for_its_grace() {
    let executor = Arc::new(smol::Executor::new());
    let (tasks, tokens) = (Arc::clone(&executor), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&tokens);
    let bench = Bench::with(|builder, runtime, _| {
        let runtime = runtime.clone();
        let stubborn = Handler::new_async("stubborn", move |_: (), run: Run| {
            seen.lock().unwrap().push(run.token().clone());
            Delay::on(&runtime, secs(100))
        });
        let stubborn = stubborn.parallel(1).limit(secs(30)).grace(HOUR);
        builder.register(stubborn).spawner(move |future| tasks.spawn(future).detach())
    });
    for key in ["a", "b"] {
        let _ = bench.to("stubborn", key).send().wait().unwrap();
    }
    bench.go();
    advance(&bench, &executor, 29);
    assert!(!tokens.lock().unwrap()[0].is_cancelled());
    advance(&bench, &executor, 2);
    assert!(tokens.lock().unwrap()[0].is_cancelled());
    advance(&bench, &executor, 60);
    assert_eq!(tokens.lock().unwrap().len(), 1, "the other job waits");
    assert_eq!(bench.get("a").unwrap().state, State::Running);
    advance(&bench, &executor, 20);
    assert_eq!(tokens.lock().unwrap().len(), 2);
    assert_eq!(bench.stats().done, 1, "what it returns counts");
}

#[test]
fn a_run_that_heeds_its_limit_is_repeated() {
    let bench = Bench::with(|builder, runtime, _| {
        let runtime = runtime.clone();
        let handler = Handler::new("long", move |_: (), run: &Run| {
            runtime.enter(|| run.token().wait_timeout(HOUR)).map_err(|cancelled| cancelled.to_string())
        });
        builder.register(handler.limit(secs(10)).retry(Retry::new(3).first(secs(5)).jitter(0.0)))
    });
    let _ = bench.to("long", "a").send().wait().unwrap();
    bench.clock.advance(HOUR);
    let dead = bench.get("a").unwrap();
    assert_eq!((dead.state, dead.attempt), (State::Dead, 3));
    let last = dead.last.unwrap();
    assert_eq!((last.duration, last.error), (secs(10), dead.error));
}

#[test]
fn waits_between_attempts_grow_and_their_random_part_has_a_seed() {
    let instants = |jitter: f64| {
        let bench = Bench::with(|builder, runtime, log| {
            let (runtime, log) = (runtime.clone(), log.clone());
            let fails = move |_: (), run: &Run| {
                log.add(&runtime, run);
                Err::<Outcome, _>("no")
            };
            let retry = Retry::new(5).first(secs(10)).factor(3.0).longest(secs(100)).jitter(jitter);
            builder.register(Handler::new("fails", fails).retry(retry))
        });
        let _ = bench.to("fails", "a").send().wait().unwrap();
        bench.advance(1_000);
        bench.log.all().iter().map(|seen| (seen.attempt, seen.at.as_secs())).collect::<Vec<_>>()
    };
    assert_eq!(instants(0.0), [(1, 0), (2, 10), (3, 40), (4, 130), (5, 230)]);
    let random = instants(0.5);
    assert_eq!(random, instants(0.5), "the same seed gives the same waits");
    assert_ne!(random, instants(0.0));
    for (pair, wait) in random.windows(2).zip([10, 30, 90, 100]) {
        let gap = pair[1].1 - pair[0].1;
        assert!((wait..=wait * 3 / 2 + 1).contains(&gap), "{random:?}");
    }
}

/// A service that is away for the first days.
fn away_for(days: u32, retry: Option<Retry>) -> Bench {
    Bench::with(move |builder, runtime, log| {
        let (runtime, log, back) = (runtime.clone(), log.clone(), runtime.wall_now() + days * DAY);
        let call = move |_: (), run: &Run| {
            log.add(&runtime, run);
            if runtime.wall_now() < back { Err("away") } else { Ok(()) }
        };
        let handler = Handler::new("call", call);
        builder.register(match retry {
            Some(retry) => handler.retry(retry),
            None => handler,
        })
    })
}

#[test]
fn j19_a_job_outlives_an_outage_by_default() {
    let bench = away_for(14, None);
    let _ = bench.to("call", "a").send().wait().unwrap();
    bench.clock.advance(14 * DAY);
    assert_eq!(bench.get("a").unwrap().state, State::Waiting);
    bench.clock.advance(4 * DAY);
    assert_eq!(bench.stats().done, 1);
    let bench = away_for(99, None);
    let _ = bench.to("call", "a").send().wait().unwrap();
    bench.clock.advance(21 * DAY);
    assert_eq!(bench.get("a").unwrap().state, State::Waiting);
    bench.clock.advance(6 * DAY);
    assert_eq!(bench.get("a").unwrap().state, State::Dead);
    assert_eq!(bench.log.all().len(), Retry::ATTEMPTS as usize);
}

/// A schedule whose handler fails for days goes on at its own pace once the handler can.
#[test]
fn j19_waits_between_attempts_keep_no_schedule_back() {
    let minute = secs(60);
    let schedules = [
        Schedule::every(minute).build().unwrap(),
        Schedule::cron("* * * * *").build().unwrap(),
        Schedule::fixed_delay(minute).build().unwrap(),
    ];
    for schedule in schedules {
        let bench = away_for(1, None);
        let _ = bench.to("call", "r").schedule(schedule.clone()).send().wait().unwrap();
        bench.clock.advance(DAY + minute);
        let done = bench.stats().done;
        assert!(done >= 1, "{schedule:?}");
        bench.clock.advance(10 * minute);
        assert_eq!(bench.stats().done, done + 10, "{schedule:?}");
        let failed = bench.stats().retried;
        assert!((1_440..1_800).contains(&failed), "{failed} attempts in the 1,440 minutes of the outage");
    }
}

#[test]
fn j19_waits_come_from_a_list() {
    let bench = away_for(99, Some(Retry::waits([5, 100, 30].map(secs))));
    let _ = bench.to("call", "a").send().wait().unwrap();
    bench.advance(1_000);
    let instants: Vec<_> = bench.log.all().iter().map(|seen| (seen.attempt, seen.at.as_secs())).collect();
    assert_eq!(instants, [(1, 0), (2, 5), (3, 105), (4, 135)]);
    assert_eq!(bench.get("a").unwrap().state, State::Dead);
    assert_eq!(Retry::waits([]).wait_after(1, 0), None);
    assert_eq!(Retry::waits([Duration::MAX]).jitter(1.0).wait_after(1, u64::MAX), Some(Duration::MAX));
}

#[derive(Debug)]
enum Trouble {
    Busy(u64),
    Closed(Permanent),
    Other,
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Busy(seconds) => write!(f, "busy for {seconds} s"),
            Self::Closed(why) => write!(f, "closed: {why}"),
            Self::Other => write!(f, "trouble"),
        }
    }
}

#[test]
fn j19_a_rule_looks_at_the_error() {
    let closes = Arc::new(Mutex::new(None::<timerqueue_scheduler::Scheduler>));
    let bench = Bench::with(|builder, _, _| {
        let closes = Arc::clone(&closes);
        let retry = Retry::new(3).first(secs(7)).jitter(0.0).adjust(move |failed| {
            assert_eq!((failed.key(), failed.name()), ("a", "call"));
            match failed.downcast_ref::<Trouble>() {
                Some(Trouble::Busy(seconds)) => Some(secs(*seconds)),
                Some(Trouble::Closed(_)) => unreachable!("not for a permanent error"),
                Some(Trouble::Other) => panic!("the rule"),
                None if failed.is_panic() => {
                    // A rule may use the scheduler, and end the job.
                    assert_eq!((failed.error(), failed.wait(), failed.attempt()), ("panic: at last", None, 4));
                    let scheduler = closes.lock().unwrap().take().unwrap();
                    let _ = scheduler.close(HOUR).wait();
                    None
                }
                None => failed.wait(),
            }
        });
        let call = |_: (), run: &Run| match run.attempt() {
            1 => Err::<(), _>(Trouble::Busy(100)),
            2 => Err(Trouble::Other),
            3 => Err(Trouble::Busy(10)),
            _ => panic!("at last"),
        };
        builder.register(Handler::new("call", call).retry(retry))
    });
    *closes.lock().unwrap() = Some(bench.scheduler.clone());
    let _ = bench.to("call", "a").send().wait().unwrap();
    for (after, attempt) in [(0, 1), (99, 1), (1, 2), (13, 2), (1, 3), (9, 3)] {
        bench.advance(after);
        assert_eq!(bench.get("a").unwrap().attempt, attempt);
    }
    bench.advance(1);
    assert_eq!(bench.stats().died, 1);
}

/// A permanent error is found wherever the error shows it.
#[test]
fn j19_after_a_permanent_error_no_attempt_follows() {
    type Boxed = Box<dyn std::error::Error>;
    let bench = Bench::with(|builder, _, _| {
        let call = |kind: u8, _: &Run| -> Result<(), Boxed> {
            let gone = || Permanent::new("gone");
            match kind {
                0 => Err(gone())?,
                1 => Err(format!("{}", gone()))?,
                _ => Err("busy")?,
            }
        };
        let shown = |(): (), _: &Run| Err::<(), _>(Trouble::Closed(Permanent::new(std::fmt::Error)));
        let later = |(): (), _: Run| async { Err::<(), _>(Permanent::new("gone")) };
        builder
            .handler("call", call)
            .handler("shown", shown)
            .register(Handler::new_async("later", later).spawner(|run| _ = std::thread::spawn(|| smol::block_on(run))))
    });
    let put = |name: &str, payload: &serde_json::Value| {
        let _ = bench.scheduler.put_to(name, payload).key(&format!("{name}{payload}")).send().wait().unwrap();
    };
    put("call", &0.into());
    put("call", &1.into());
    put("call", &2.into());
    put("shown", &().into());
    put("later", &().into());
    bench.advance(0);
    // An end is counted before it is stored.
    let have_ended = |stats: Stats| stats.died + stats.retried == 5 && stats.jobs.of(State::Running) == 0;
    while !have_ended(bench.stats()) {
        std::thread::yield_now();
    }
    let state = |key: &str| bench.get(key).map(|job| (job.state, job.error.unwrap().to_string()));
    assert_eq!(state("call0"), Some((State::Dead, "gone".to_owned())));
    assert_eq!(state("call1"), Some((State::Waiting, "gone".to_owned())), "a text is no permanent error");
    assert_eq!(state("call2"), Some((State::Waiting, "busy".to_owned())));
    let closed = format!("closed: {}", std::fmt::Error);
    assert_eq!(state("shownnull"), Some((State::Dead, closed)));
    assert_eq!(state("laternull").unwrap().0, State::Dead);
}

#[test]
fn an_idle_scheduler_does_not_wake_up() {
    let bench = Bench::new();
    let yearly = Schedule::cron("@yearly").build().unwrap();
    let _ = bench.job("r").schedule(yearly).send().wait().unwrap();
    let _ = bench.put("far", 300 * crate::bench::DAY);
    let _ = bench.put("paused", secs(1));
    let _ = bench.scheduler.pause("paused").wait().unwrap();
    bench.advance(2);
    let fired = bench.runtime.metrics().fired();
    bench.clock.advance(299 * crate::bench::DAY);
    assert_eq!(bench.runtime.metrics().fired(), fired);
}

#[test]
fn lateness_and_durations_are_counted() {
    let bench = Bench::new();
    for n in 1..=100 {
        let _ = bench.put(&n.to_string(), secs(n));
    }
    bench.clock.stall(secs(50));
    bench.advance(100);
    let stats = bench.stats();
    assert_eq!((stats.lateness.count(), stats.durations.count()), (100, 100));
    assert_eq!(stats.lateness.longest(), secs(49));
    assert!(stats.lateness.at_most(0.4) <= Duration::from_micros(1));
    assert!(stats.lateness.at_most(0.9) >= secs(32));
    let _ = bench.scheduler.pause_handler("log").wait().unwrap();
    let _ = bench.put("late", secs(1));
    bench.advance(10);
    let _ = bench.scheduler.resume_handler("log").wait().unwrap();
    let due = bench.stats().jobs.oldest_overdue.unwrap();
    assert_eq!(bench.clock.wall().duration_since(due).unwrap(), secs(9));
}
