//! B: a ring with a count of revolutions, for a campaign of text messages.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use timerqueue_scheduler::store::MemoryStore;
use timerqueue_scheduler::{Cancel, Handler, Outcome, Retry, Run, Schedule, Scheduler, State};

use crate::bench::{Bench, DAY, HOUR, clock, expect, secs, wall};

#[test]
fn b1_b2_b3_a_date_any_horizon_and_removal() {
    let bench = Bench::new();
    let _ = bench.put("campaign/1", wall(90 * 86_400));
    let _ = bench.put("campaign/2", wall(90 * 86_400));
    assert_eq!(bench.scheduler.cancel("campaign/2").wait(), Ok(Cancel::Cancelled));
    bench.clock.advance(100 * DAY);
    assert_eq!(bench.log.take(), expect(&[("campaign/1", 90 * 86_400)]));
}

#[derive(Serialize, Deserialize)]
struct Campaign {
    id: u64,
    sent: u32,
    amount: u32,
}

#[test]
fn b4_progress_is_kept_with_the_item() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&sent);
    let bench = Bench::with(move |builder, _, _| {
        builder.handler("send", move |mut campaign: Campaign, run: &Run| {
            campaign.sent += 100;
            seen.lock().unwrap().push((campaign.id, campaign.sent));
            if campaign.sent < campaign.amount {
                let key = format!("campaign/{}/{}", campaign.id, campaign.sent);
                let _ = run.scheduler().put_to("send", &campaign).key(&key).due(secs(60)).send().wait();
            }
        })
    });
    let campaign = Campaign { id: 7, sent: 0, amount: 300 };
    let _ = bench.scheduler.put_to("send", &campaign).key("campaign/7/0").due(HOUR).send().wait().unwrap();
    bench.clock.advance(2 * HOUR);
    assert_eq!(*sent.lock().unwrap(), [(7, 100), (7, 200), (7, 300)]);
}

#[test]
fn b7_b17_jobs_reach_the_handler_of_their_name_after_a_restart() {
    let (clock, runtime) = clock();
    let store = MemoryStore::new(&runtime);
    let before = Scheduler::builder().runtime(&runtime).store(store.clone());
    let before = before.handler("send", |n: u32, _: &Run| assert_eq!(n, u32::MAX, "not yet due")).start().unwrap();
    for n in 0..3_u32 {
        let _ = before.put_to("send", &n).key(&n.to_string()).due(secs(10)).send().wait().unwrap();
    }
    let _ = before.close(Duration::ZERO).wait().unwrap();
    clock.advance(secs(60));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sent = Arc::clone(&seen);
    let after = Scheduler::builder().runtime(&runtime).store(store);
    let _after = after.handler("send", move |n: u32, _: &Run| sent.lock().unwrap().push(n)).start().unwrap();
    clock.advance(Duration::ZERO);
    assert_eq!(*seen.lock().unwrap(), [0, 1, 2]);
}

#[test]
fn b11_b20_every_delay_is_exact_and_far_items_are_not_visited() {
    let bench = Bench::new();
    for seconds in 1..=300 {
        let _ = bench.put(&seconds.to_string(), secs(seconds));
    }
    bench.advance(400);
    assert_eq!(bench.log.seconds(), (1..=300).collect::<Vec<u64>>());
    let _ = bench.put("far", 48 * HOUR);
    bench.go();
    let fired = bench.runtime.metrics().fired();
    bench.clock.advance(48 * HOUR - secs(1));
    assert_eq!(bench.runtime.metrics().fired(), fired);
}

#[test]
fn b12_overdue_items_run_at_once() {
    for phase in 0..60 {
        let bench = Bench::new();
        bench.advance(phase);
        for overdue in [1, 2, 59, 60, 100, 3_600] {
            let _ = bench.put(&overdue.to_string(), wall(phase as i64 - overdue));
        }
        bench.go();
        assert_eq!(bench.log.keys(), ["1", "2", "59", "60", "100", "3600"], "as they were put: each is due at its put");
    }
}

#[test]
fn b13_a_date_is_no_local_time() {
    let bench = Bench::new();
    // 02:30 in Berlin, from winter time to summer time: 2026-03-28, 29 (no such time: 03:00)
    // and 30.
    let schedule = Schedule::cron("30 2 * * *").zone("Europe/Berlin").build().unwrap();
    let _ = bench.job("nightly").schedule(schedule).send().wait().unwrap();
    bench.clock.advance(86 * DAY); // to 2026-03-28T00:00:00Z
    let _ = bench.log.take();
    bench.clock.advance(3 * DAY);
    let hours: Vec<f64> = bench.log.seconds().iter().map(|&s| (s - 86 * 86_400) as f64 / 3_600.0).collect();
    assert_eq!(hours, [1.5, 25.0, 48.5]);
}

#[test]
fn b14_later_steps_of_the_clock_are_followed() {
    let bench = Bench::new();
    let _ = bench.put("a", wall(3_600));
    bench.advance(600);
    bench.step(7_200);
    assert_eq!(bench.log.take(), expect(&[("a", 600)]));
    let _ = bench.put("b", wall(10_800));
    bench.step(-7_200);
    bench.advance(3_600);
    assert_eq!(bench.log.len(), 0, "two hours later by its clock");
    bench.advance(7_200);
    assert_eq!(bench.log.keys(), ["b"]);
}

#[test]
fn b15_handlers_that_change_the_queue_start_nothing_twice() {
    let bench = Bench::with(|builder, runtime, log| {
        let (runtime, log) = (runtime.clone(), log.clone());
        builder.handler("busy", move |n: u32, run: &Run| {
            log.add(&runtime, run);
            let scheduler = run.scheduler();
            let _ = scheduler.cancel(&format!("{}", n + 1)).wait();
            let _ = scheduler.move_to(&format!("{}", n + 2), secs(5)).wait();
            let _ = scheduler.put_to("log", &()).key(&format!("new/{n}")).send().wait();
        })
    });
    for n in 0..30_u32 {
        let _ = bench.scheduler.put_to("busy", &n).key(&n.to_string()).due(secs(60)).send().wait().unwrap();
    }
    bench.advance(600);
    let mut keys = bench.log.keys();
    let runs = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), runs, "each started once");
    let stats = bench.stats();
    assert_eq!(stats.done as usize, runs);
    assert_eq!(stats.jobs.of(State::Waiting), 0);
}

#[test]
fn b16_the_same_object_twice_is_two_jobs() {
    let bench = Bench::new();
    let _ = bench.put("one", secs(10));
    let _ = bench.put("two", secs(20));
    // Removal needs the key, not the object.
    assert_eq!(bench.scheduler.cancel("one").wait(), Ok(Cancel::Cancelled));
    bench.advance(60);
    assert_eq!(bench.log.keys(), ["two"]);
}

#[test]
fn b18_b10_two_schedulers_run_each_job_once() {
    let (clock, runtime) = clock();
    let store = MemoryStore::new(&runtime);
    let runs = Arc::new(AtomicUsize::new(0));
    let make = |_| {
        let runs = Arc::clone(&runs);
        let handler = move |_: (), _: &Run| _ = runs.fetch_add(1, Ordering::Relaxed);
        Scheduler::builder().runtime(&runtime).store(store.clone()).handler("h", handler).start().unwrap()
    };
    let both: Vec<Scheduler> = (0..2).map(make).collect();
    for n in 0..500_usize {
        let _ = both[n % 2].put_to("h", &()).due(secs(n as u64 % 7)).send().wait().unwrap();
    }
    clock.advance(secs(10));
    assert_eq!(runs.load(Ordering::Relaxed), 500);
    let stats: Vec<_> = both.iter().map(|scheduler| scheduler.stats().wait().unwrap()).collect();
    assert_eq!(stats.iter().map(|stats| stats.done).sum::<u64>(), 500);
    assert_eq!(stats.iter().map(|stats| stats.lost).sum::<u64>(), 0);
}

#[test]
fn b19_errors_are_kept_repeated_and_limited() {
    let most = Arc::new(AtomicUsize::new(0));
    let (now, seen) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&most));
    let bench = Bench::with(move |builder, runtime, log| {
        let (runtime, log) = (runtime.clone(), log.clone());
        let notes = log.clone();
        let own = runtime.clone();
        let failing = Handler::new("failing", move |_: (), run: &Run| {
            notes.add(&own, run);
            Err::<Outcome, _>("no connection")
        });
        let slow = Handler::new("slow", move |_: (), run: &Run| {
            seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let _ = runtime.enter(|| run.token().wait_timeout(secs(1)));
            now.fetch_sub(1, Ordering::SeqCst);
        });
        builder.register(failing.retry(Retry::new(4).jitter(0.0))).register(slow.parallel(3))
    });
    let _ = bench.to("failing", "f").send().wait().unwrap();
    bench.advance(100);
    assert_eq!(bench.log.seconds(), [0, 1, 3, 7], "after 1, 2 and 4 seconds");
    let dead = bench.get("f").unwrap();
    assert_eq!((dead.state, dead.error.as_deref()), (State::Dead, Some("no connection")));
    for n in 0..20 {
        let _ = bench.to("slow", &format!("s{n}")).send().wait().unwrap();
    }
    bench.advance(60);
    assert_eq!((most.load(Ordering::SeqCst), bench.stats().done), (3, 20));
}

#[test]
fn b21_one_late_look_shifts_nothing_after_it() {
    let bench = Bench::new();
    let every = Schedule::every(secs(1)).build().unwrap();
    let _ = bench.job("tick").schedule(every).send().wait().unwrap();
    bench.advance(5);
    bench.clock.stall(Duration::from_millis(2_300));
    bench.advance(3);
    let instants: Vec<u128> = bench.log.all().iter().map(|seen| seen.at.as_millis()).collect();
    assert_eq!(instants, [0, 1_000, 2_000, 3_000, 4_000, 5_000, 7_300, 8_000, 9_000, 10_000]);
}
