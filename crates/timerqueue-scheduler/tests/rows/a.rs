//! A: a wheel of seconds and minutes for delayed tasks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use timerqueue::Delay;
use timerqueue_scheduler::store::MemoryStore;
use timerqueue_scheduler::{Cancel, Error, Handler, Job, Retry, Run, Scheduler, State};

use crate::bench::{self, Bench, DAY, HOUR, clock, expect, secs};

#[test]
fn a1_a_task_without_a_handle_runs_once_after_its_delay() {
    let bench = Bench::new();
    let _ = bench.scheduler.put_to("log", &()).due(secs(160)).send().wait().unwrap();
    bench.advance(159);
    assert_eq!(bench.log.len(), 0);
    bench.advance(1);
    assert_eq!(bench.log.len(), 1);
    bench.advance(10_000);
    assert_eq!(bench.log.len(), 1);
}

#[derive(Serialize, Deserialize)]
struct Thumbnail {
    path: String,
    width: u32,
}

impl Job for Thumbnail {
    const NAME: &'static str = "thumbnail";
}

#[test]
fn a2_a_typed_payload_reaches_an_async_handler() {
    let (clock, runtime) = clock();
    let executor = Arc::new(smol::Executor::new());
    let (tasks, done) = (Arc::clone(&executor), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&done);
    let pause = runtime.clone();
    let scheduler = Scheduler::builder()
        .runtime(&runtime)
        .on_async(move |job: Thumbnail, run: Run| {
            let (seen, pause) = (Arc::clone(&seen), Delay::on(&pause, secs(5)));
            async move {
                pause.await;
                seen.lock().unwrap().push((job.path, job.width, run.key().to_owned()));
            }
        })
        .spawner(move |future| tasks.spawn(future).detach())
        .start()
        .unwrap();
    let _ = scheduler.put(&Thumbnail { path: "a.png".into(), width: 64 }).key("t").due(secs(1)).send().wait().unwrap();
    clock.advance(secs(1));
    while executor.try_tick() {}
    assert!(done.lock().unwrap().is_empty());
    clock.advance(secs(5));
    while executor.try_tick() {}
    assert_eq!(*done.lock().unwrap(), [("a.png".to_owned(), 64, "t".to_owned())]);
    assert_eq!(scheduler.stats().wait().unwrap().done, 1);
}

#[test]
fn a3_delays_of_seconds_minutes_hours_and_years() {
    let bench = Bench::new();
    let delays = [1, 61, 3_661, 48 * 3_600, 400 * 86_400, 10 * 366 * 86_400];
    for seconds in delays {
        let _ = bench.put(&seconds.to_string(), secs(seconds));
    }
    bench.clock.advance(11 * 366 * DAY);
    assert_eq!(bench.log.seconds(), delays);
}

#[test]
fn a4_delay_zero_runs_now() {
    let bench = Bench::new();
    bench.advance(5);
    let _ = bench.put("a", Duration::ZERO);
    bench.go();
    assert_eq!(bench.log.take(), expect(&[("a", 5)]));
}

#[test]
fn a5_far_tasks_cost_nothing_until_they_are_due() {
    let bench = Bench::new();
    for n in 0..10_000 {
        let _ = bench.put(&n.to_string(), 48 * HOUR);
    }
    bench.go();
    let fired = bench.runtime.metrics().fired();
    bench.clock.advance(47 * HOUR);
    assert_eq!(bench.runtime.metrics().fired(), fired, "no callback runs while they wait");
    bench.clock.advance(HOUR);
    assert_eq!(bench.log.len(), 10_000);
}

#[test]
fn a6_a_close_says_what_is_lost() {
    let bench = Bench::new();
    let _ = bench.put("a", HOUR);
    let report = bench.scheduler.close(secs(1)).wait().unwrap();
    assert_eq!((report.is_drained(), report.jobs.of(State::Waiting)), (true, 1));
    assert_eq!(bench.scheduler.list(Default::default()).wait().unwrap().len(), 1, "and which");
}

#[test]
fn a17_tasks_of_one_instant_start_in_the_order_of_insertion() {
    let bench = Bench::with(|builder, runtime, log| {
        let (runtime, log) = (runtime.clone(), log.clone());
        builder.register(Handler::new("one", move |_: (), run: &Run| log.add(&runtime, run)).parallel(1))
    });
    let keys: Vec<String> = (0..100).map(|n| format!("k{}", n * 37 % 100)).collect();
    for key in &keys {
        let _ = bench.to("one", key).due(secs(7)).send().wait().unwrap();
    }
    bench.advance(7);
    assert_eq!(bench.log.keys(), keys);
}

#[test]
fn a7_a_scheduler_goes_on_until_its_last_handle_is_dropped() {
    let Bench { clock, scheduler, log, runtime, store } = Bench::new();
    let _ = scheduler.put_to("log", &()).key("a").due(secs(10)).send().wait().unwrap();
    let other = scheduler.clone();
    drop(scheduler);
    clock.advance(secs(10));
    assert_eq!(log.keys(), ["a"]);
    let _ = other.put_to("log", &()).key("b").due(secs(10)).send().wait().unwrap();
    drop(other);
    clock.advance(secs(100));
    assert!(log.keys().is_empty());
    // The job is in its store, for the next scheduler.
    let (notes, own) = (log.clone(), runtime.clone());
    let next = Scheduler::builder().runtime(&runtime).store(store);
    let next = next.handler("log", move |_: (), run: &Run| notes.add(&own, run)).start().unwrap();
    clock.advance(Duration::ZERO);
    assert_eq!(log.keys(), ["b"]);
    assert!(!next.is_closed());
}

#[test]
fn a8_jobs_that_are_there_before_the_start_run_at_the_start() {
    let (clock, runtime) = clock();
    let store = MemoryStore::new(&runtime);
    let first = Scheduler::builder().runtime(&runtime).store(store.clone()).start().unwrap();
    let _ = first.put_to("log", &()).send().wait().unwrap();
    clock.advance(secs(3));
    let ran = Arc::new(Mutex::new(0));
    let count = Arc::clone(&ran);
    let second = Scheduler::builder().runtime(&runtime).store(store);
    let _second = second.handler("log", move |_: (), _: &Run| *count.lock().unwrap() += 1).start().unwrap();
    clock.advance(Duration::ZERO);
    assert_eq!(*ran.lock().unwrap(), 1);
}

#[test]
fn a9_delays_that_wrap_a_wheel_keep_their_hour() {
    let delays = [59, 60, 61, 119, 120, 3_599, 3_600, 3_601, 7_199, 7_200, 7_201, 86_400];
    for phase in [0, 1, 30, 59, 3_599] {
        let bench = Bench::new();
        bench.advance(phase);
        for seconds in delays {
            let _ = bench.put(&seconds.to_string(), secs(seconds));
        }
        bench.clock.advance(2 * DAY);
        assert_eq!(bench.log.seconds(), delays.map(|seconds| phase + seconds));
    }
}

#[test]
fn a10_no_task_is_early_by_a_part_of_a_second() {
    let bench = Bench::new();
    for nanos in [1, 999, 1_000, 1_001, 999_999_999, 1_000_000_001] {
        bench.clock.advance(Duration::from_nanos(7));
        let begun = bench.runtime.now();
        let _ = bench.put("a", Duration::from_nanos(nanos));
        bench.clock.advance(Duration::from_nanos(nanos - 1));
        assert_eq!(bench.log.len(), 0, "{nanos}");
        bench.clock.advance(Duration::from_micros(2));
        assert_eq!(bench.log.len(), 1, "{nanos}");
        assert!(bench.log.all()[0].at >= begun.as_duration() + Duration::from_nanos(nanos));
        let _ = bench.log.take();
    }
}

#[test]
fn a11_a_task_added_while_others_fire_is_on_time() {
    let bench = Bench::with(|builder, _, _| {
        builder.handler("chain", |left: u32, run: &Run| {
            let next = if left % 2 == 0 { Duration::ZERO } else { Duration::from_micros(1) };
            let to = if left == 0 { "log" } else { "chain" };
            let _ = run.scheduler().put_to(to, &left.saturating_sub(1)).due(next).send().wait()?;
            Ok::<(), Error>(())
        })
    });
    for n in 0..10 {
        let _ = bench.scheduler.put_to("chain", &20).key(&n.to_string()).due(secs(60)).send().wait().unwrap();
    }
    bench.clock.advance(secs(60) + Duration::from_micros(10));
    assert_eq!(bench.log.seconds(), [60; 10]);
}

#[test]
fn a12_a_slow_handler_strands_no_neighbour() {
    let bench = Bench::with(|builder, runtime, _| {
        let runtime = runtime.clone();
        builder.handler("slow", move |_: (), run: &Run| {
            // Blocks its thread for 90 s, in which virtual time goes on.
            let _ = runtime.enter(|| run.token().wait_timeout(secs(90)));
        })
    });
    let _ = bench.to("slow", "slow").due(secs(10)).send().wait().unwrap();
    for (key, second) in [("same", 10), ("next", 11), ("later", 70)] {
        let _ = bench.put(key, secs(second));
    }
    bench.advance(200);
    assert_eq!(bench.log.take(), expect(&[("same", 10), ("next", 11), ("later", 70)]));
    assert_eq!(bench.stats().done, 4);
}

#[test]
fn a13_a_handler_that_panics_harms_itself_only() {
    let bench = Bench::with(|builder, _, _| {
        builder.register(Handler::new("bad", bench::panics).retry(Retry::new(2).jitter(0.0)))
    });
    let _ = bench.to("bad", "bad").due(secs(5)).send().wait().unwrap();
    for n in 0..5 {
        let _ = bench.put(&n.to_string(), secs(5));
    }
    bench.advance(60);
    assert_eq!(bench.log.len(), 5);
    let dead = bench.get("bad").unwrap();
    assert_eq!((dead.state, dead.attempt, dead.error.as_deref()), (State::Dead, 2, Some("panic: no")));
    assert_eq!((bench.stats().panics, bench.stats().retried, bench.stats().died), (2, 1, 1));
}

#[test]
fn a14_delay_zero_does_not_run_inside_of_the_put() {
    let bench = Bench::new();
    let _ = bench.put("a", Duration::ZERO);
    assert_eq!(bench.log.len(), 0);
    bench.go();
    assert_eq!(bench.log.len(), 1);
}

#[test]
fn a15_a_pause_of_the_process_shifts_no_later_task() {
    let bench = Bench::new();
    let _ = bench.put("during", secs(30));
    let _ = bench.put("after", secs(100));
    bench.clock.stall(secs(60)); // the process stood still
    bench.advance(100);
    assert_eq!(bench.log.take(), expect(&[("during", 60), ("after", 100)]));
    // In suspend the wall clock goes on, so less of the running clock is left.
    let _ = bench.put("suspended", secs(100));
    bench.clock.suspend(secs(40));
    bench.advance(60);
    assert_eq!(bench.log.keys(), ["suspended"]);
}

#[test]
fn a16_tasks_have_identity_cancel_count_and_stop() {
    let bench = Bench::new();
    let id = bench.put("a", secs(10)).added().unwrap();
    let _ = bench.put("b", secs(10));
    assert_eq!(bench.get("a").unwrap().id, id);
    assert_eq!(bench.stats().jobs.of(State::Waiting), 2);
    assert_eq!(bench.scheduler.cancel("a").wait(), Ok(Cancel::Cancelled));
    assert_eq!(bench.stats().jobs.of(State::Waiting), 1);
    let _ = bench.scheduler.close(Duration::ZERO).wait().unwrap();
    bench.advance(100);
    assert_eq!(bench.log.len(), 0);
}
