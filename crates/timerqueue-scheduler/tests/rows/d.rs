//! D: a ring of 3,600 slots for delay messages.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use timerqueue::Delay;
use timerqueue_scheduler::{Cancel, Error, Job, Placed, Run, Scheduler, State};

use crate::bench::{Bench, DAY, HOUR, clock, expect, secs, wall};

#[derive(Serialize, Deserialize)]
struct AutoReview {
    ride: u64,
    stars: u8,
}

impl Job for AutoReview {
    const NAME: &'static str = "auto-review";
}

#[test]
fn d1_d2_a_ride_is_rated_after_48_hours_unless_the_user_has() {
    let (clock, runtime) = clock();
    let rated = Arc::new(Mutex::new(Vec::new()));
    let (seen, own) = (Arc::clone(&rated), runtime.clone());
    let scheduler = Scheduler::builder()
        .runtime(&runtime)
        .on(move |review: AutoReview, _: &Run| {
            seen.lock().unwrap().push((review.ride, review.stars, own.now().as_duration().as_secs()));
        })
        .start()
        .unwrap();
    for ride in [17, 18] {
        let review = AutoReview { ride, stars: 5 };
        let _ = scheduler.put(&review).key(&format!("review/{ride}")).due(48 * HOUR).send().wait().unwrap();
    }
    clock.advance(30 * HOUR);
    assert_eq!(scheduler.cancel("review/18").wait(), Ok(Cancel::Cancelled), "the user has rated ride 18");
    clock.advance(30 * HOUR);
    assert_eq!(*rated.lock().unwrap(), [(17, 5, 48 * 3_600)]);
}

#[test]
fn d3_d13_a_duplicate_key_is_refused_at_any_second() {
    let bench = Bench::new();
    let id = bench.put("a", secs(10)).added().unwrap();
    for second in [10, 11, 3_610, 86_400] {
        assert_eq!(bench.put("a", secs(second)), Placed::Refused(id));
    }
    bench.clock.advance(2 * DAY);
    assert_eq!(bench.log.take(), expect(&[("a", 10)]));
    assert!(bench.put("a", secs(1)).added().is_some(), "after its run the key is free");
    assert_eq!(bench.scheduler.cancel("a").wait(), Ok(Cancel::Cancelled), "and removal is by key");
}

#[test]
fn d4_d11_a_due_time_in_the_past_is_refused_on_request() {
    let bench = Bench::new();
    bench.advance(5_000);
    // Also between the start and now.
    for second in [-1, 0, 1, 4_999] {
        assert_eq!(bench.job("a").due(wall(second)).refuse_overdue().send().wait(), Ok(Placed::Overdue));
    }
    assert!(bench.job("a").due(wall(5_000)).refuse_overdue().send().wait().unwrap().added().is_some());
    bench.go();
    assert_eq!(bench.log.keys(), ["a"]);
}

#[test]
fn d5_d14_close_ends_all_and_can_be_called_again() {
    let executor = Arc::new(smol::Executor::new());
    let tasks = Arc::clone(&executor);
    let bench = Bench::with(|builder, runtime, _| {
        let runtime = runtime.clone();
        let slow = move |_: (), _: Run| Delay::on(&runtime, secs(20));
        builder.async_handler("slow", slow).spawner(move |future| tasks.spawn(future).detach())
    });
    let _ = bench.put("waits", HOUR);
    let _ = bench.to("slow", "runs").send().wait().unwrap();
    bench.go();
    while executor.try_tick() {}
    // The run ends within the limit, and the close waits for it.
    let close = bench.scheduler.close(secs(60));
    let mut close = Box::pin(close);
    let mut poll = || close.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    bench.advance(19);
    while executor.try_tick() {}
    assert!(poll().is_pending());
    bench.advance(1);
    while executor.try_tick() {}
    let Poll::Ready(Ok(report)) = poll() else { panic!("the run has ended") };
    assert!(report.is_drained());
    assert_eq!(report.jobs.of(State::Waiting), 1, "pending tasks do not vanish");
    for _ in 0..3 {
        assert!(bench.scheduler.close(secs(60)).wait().unwrap().is_drained());
    }
    // A scheduler that never ran anything closes too.
    assert!(Bench::new().scheduler.close(Duration::MAX).wait().unwrap().is_drained());
}

#[test]
fn d6_each_task_runs_once_on_its_second_without_scans() {
    let bench = Bench::new();
    for n in 0..3_600 {
        let _ = bench.put(&n.to_string(), secs(n));
    }
    bench.go();
    let fired = bench.runtime.metrics().fired();
    bench.advance(3_600);
    assert_eq!(bench.log.seconds(), (0..3_600).collect::<Vec<u64>>());
    // A firing of the timer and a job of the pool for each task, and nothing else.
    assert!(bench.runtime.metrics().fired() - fired <= 2 * 3_600);
}

#[test]
fn d7_d8_48_hours_are_48_hours_and_cost_nothing() {
    let bench = Bench::new();
    let _ = bench.put("a", 48 * HOUR);
    bench.go();
    let fired = bench.runtime.metrics().fired();
    bench.clock.advance(48 * HOUR - Duration::from_micros(1));
    assert_eq!((bench.log.len(), bench.runtime.metrics().fired()), (0, fired), "no thread wakes up");
    bench.clock.advance(Duration::from_micros(1));
    assert_eq!(bench.log.len(), 1);
}

#[test]
fn d9_puts_from_many_threads() {
    let bench = Bench::new();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let bench = &bench;
            scope.spawn(move || {
                for n in 0..250 {
                    let _ = bench.put(&format!("{thread}/{n}"), secs(n % 10));
                    if n % 5 == 0 {
                        let _ = bench.scheduler.cancel(&format!("{thread}/{n}")).wait();
                    }
                }
            });
        }
    });
    bench.advance(20);
    assert_eq!(bench.log.len(), 800);
}

#[test]
fn d10_d12_a_delay_counts_from_its_put() {
    let bench = Bench::new();
    bench.clock.advance(5 * HOUR);
    let _ = bench.put("a", secs(10));
    bench.clock.advance(6 * HOUR);
    assert_eq!(bench.log.take(), expect(&[("a", 5 * 3_600 + 10)]));
}

#[test]
fn d15_parameters_are_typed_and_a_bad_one_is_dead_at_once() {
    let sums = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sums);
    let bench = Bench::with(move |builder, _, _| {
        builder.handler("sum", move |numbers: Vec<u64>, _: &Run| seen.lock().unwrap().push(numbers.iter().sum::<u64>()))
    });
    let _ = bench.scheduler.put_to("sum", &[10, 20, 30]).send().wait().unwrap();
    let _ = bench.scheduler.put_to("sum", "ten").key("bad").send().wait().unwrap();
    let _ = bench.scheduler.put_to("sum", &[1]).send().wait().unwrap();
    bench.go();
    assert_eq!(*sums.lock().unwrap(), [60, 1]);
    let bad = bench.get("bad").unwrap();
    assert_eq!((bad.state, bad.attempt), (State::Dead, 1));
    assert!(bad.error.unwrap().starts_with("the payload cannot be read"));
}

#[test]
fn d16_a_put_after_close_is_refused() {
    let bench = Bench::new();
    let _ = bench.scheduler.close(Duration::ZERO).wait().unwrap();
    assert_eq!(bench.job("a").send().wait(), Err(Error::Closed));
    assert_eq!(bench.scheduler.cancel("a").wait(), Err(Error::Closed));
    assert_eq!(bench.stats().jobs.of(State::Waiting), 0);
}
