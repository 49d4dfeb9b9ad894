//! D: a ring of 3,600 slots for delay messages. What its design lacks is a file.

use timerqueue_scheduler::rusqlite::Connection;
use timerqueue_scheduler::{Cancel, Error, Placed, Run, State};

use super::{Bench, HOUR, expect, secs, wall};
use crate::support::{Folder, answer, go_until};

#[test]
fn d1_d2_d7_a_ride_is_rated_after_48_hours_of_restarts() {
    let folder = Folder::new();
    {
        let bench = Bench::at(&folder, 0);
        for ride in ["review/17", "review/18"] {
            assert!(bench.put(ride, 48 * HOUR).added().is_some());
        }
    }
    for hour in [1, 20, 47] {
        let bench = Bench::at(&folder, hour * 3_600);
        bench.settle();
        assert_eq!(bench.seen.len(), 0, "not at once");
        if hour == 20 {
            assert_eq!(bench.cancel("review/18"), Cancel::Cancelled, "the user has rated ride 18");
        }
    }
    let bench = Bench::at(&folder, 47 * 3_600);
    bench.go(HOUR - secs(1), 0);
    bench.go(secs(1), 1);
    assert_eq!(bench.seen.take(), expect(&[("review/17", 48 * 3_600)]));
}

#[test]
fn d3_d13_a_duplicate_key_is_refused_at_any_second_after_a_restart() {
    let folder = Folder::new();
    let id = Bench::at(&folder, 0).put("a", secs(10)).added().unwrap();
    let bench = Bench::at(&folder, 5);
    for second in [10, 11, 3_610, 86_400] {
        assert_eq!(bench.put("a", secs(second)), Placed::Refused(id));
    }
    bench.go(secs(5), 1);
    assert_eq!(bench.seen.take(), expect(&[("a", 10)]));
    assert!(bench.put("a", secs(1)).added().is_some(), "after its run the key is free");
    assert_eq!(bench.cancel("a"), Cancel::Cancelled, "and removal is by key");
}

#[test]
fn d4_d11_a_due_time_in_the_past_is_refused_on_request() {
    let folder = Folder::new();
    drop(Bench::at(&folder, 0));
    let bench = Bench::at(&folder, 5_000);
    for second in [-1, 0, 4_999] {
        assert_eq!(answer(bench.job("a").due(wall(second)).refuse_overdue().send()), Ok(Placed::Overdue));
    }
    assert!(answer(bench.job("a").due(wall(5_001)).refuse_overdue().send()).unwrap().added().is_some());
}

#[test]
fn d5_d14_d16_what_waits_at_a_close_is_in_the_file_and_what_comes_after_it_is_not() {
    let folder = Folder::new();
    {
        let bench = Bench::at(&folder, 0);
        let _ = bench.put("waits", HOUR);
        for _ in 0..2 {
            let report = answer(bench.scheduler.close(secs(60))).unwrap();
            assert!(report.is_drained());
        }
        assert_eq!(answer(bench.job("late").send()), Err(Error::Closed));
    }
    let bench = Bench::at(&folder, 3_600);
    go_until(&bench.clock, || bench.stats().done == 1);
    bench.settle();
    assert_eq!(bench.seen.keys(), ["waits"]);
}

#[test]
fn d6_d8_each_job_runs_once_in_two_lives_and_idle_time_costs_nothing() {
    let folder = Folder::new();
    {
        let bench = Bench::at(&folder, 0);
        let puts: Vec<_> = (0..60).map(|n| bench.job(&n.to_string()).due(secs(n)).send()).collect();
        puts.into_iter().for_each(|put| _ = answer(put).unwrap());
        bench.go(secs(29), 30);
    }
    let bench = Bench::at(&folder, 30);
    go_until(&bench.clock, || bench.stats().done == 1);
    bench.go(secs(29), 30);
    let mut second_life: Vec<u32> = bench.seen.keys().iter().map(|key| key.parse().unwrap()).collect();
    second_life.sort_unstable();
    assert_eq!(second_life, (30..60).collect::<Vec<_>>());
    let fired = bench.runtime.metrics().fired();
    bench.clock.advance(48 * HOUR);
    assert_eq!(bench.runtime.metrics().fired(), fired);
}

#[test]
fn d9_puts_from_many_threads_are_all_in_the_file() {
    let folder = Folder::new();
    {
        let bench = Bench::at(&folder, 0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let bench = &bench;
                scope.spawn(move || {
                    let puts: Vec<_> =
                        (0..50).map(|n| bench.job(&format!("{thread}/{n}")).due(secs(60)).send()).collect();
                    puts.into_iter().for_each(|put| assert!(answer(put).unwrap().added().is_some()));
                    for n in (0..50).step_by(5) {
                        assert_eq!(bench.cancel(&format!("{thread}/{n}")), Cancel::Cancelled);
                    }
                });
            }
        });
    }
    let bench = Bench::at(&folder, 0);
    bench.go(secs(60), 160);
}

#[test]
fn d10_d12_a_delay_counts_from_its_put_and_not_from_a_start() {
    let folder = Folder::new();
    {
        let bench = Bench::at(&folder, 0);
        bench.clock.advance(5 * HOUR);
        let _ = bench.put("a", secs(10));
    }
    let bench = Bench::at(&folder, 5 * 3_600 + 7);
    bench.go(secs(2), 0);
    bench.go(secs(1), 1);
    assert_eq!(bench.seen.take(), expect(&[("a", 5 * 3_600 + 10)]));
}

#[test]
fn d15_a_bad_payload_is_dead_and_in_no_other_jobs_way() {
    let folder = Folder::new();
    let start = || {
        Bench::with(&folder, 0, |builder, runtime, seen| {
            let (runtime, seen) = (runtime.clone(), seen.clone());
            builder.handler("sum", move |numbers: Vec<u64>, run: &Run| {
                assert_eq!(numbers.iter().sum::<u64>(), 60);
                seen.add(&runtime, run);
            })
        })
    };
    {
        let bench = start();
        for (key, payload) in [("typed", "ten"), ("torn", "")] {
            let _ = answer(bench.scheduler.put_to("sum", payload).key(key).due(HOUR).send()).unwrap();
        }
        let _ = answer(bench.scheduler.put_to("sum", &[10, 20, 30]).key("good").due(HOUR).send()).unwrap();
    }
    // One payload is no JSON at all.
    let stranger = Connection::open(folder.file()).unwrap();
    stranger.execute("UPDATE timerqueue_jobs SET payload = '[10, 2' WHERE key = 'torn'", []).unwrap();
    {
        let bench = start();
        bench.go(HOUR, 1);
        go_until(&bench.clock, || bench.stats().jobs.of(State::Dead) == 2);
        assert_eq!(bench.seen.keys(), ["good"]);
    }
    let bench = start();
    for key in ["typed", "torn"] {
        let dead = bench.get(key).unwrap();
        assert_eq!((dead.state, dead.attempt), (State::Dead, 1));
        assert!(dead.error.unwrap().starts_with("the payload cannot be read"));
    }
}
