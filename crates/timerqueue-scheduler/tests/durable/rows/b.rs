//! B: a ring with a count of revolutions, whose rows are in a database.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use serde::{Deserialize, Serialize};
use timerqueue_scheduler::rusqlite::Connection;
use timerqueue_scheduler::{Cancel, Handler, Query, Retry, Run, Schedule, Scheduler, State};

use super::{Bench, HOUR, Seen, expect, secs, wall};
use crate::support::{Folder, LONG, answer, go_until, until};

const DAY: i64 = 86_400;

#[test]
fn b1_b2_b3_a_date_any_horizon_and_removal_across_restarts() {
    let folder = Folder::new();
    {
        let bench = Bench::at(&folder, 0);
        let _ = bench.put("campaign/1", wall(90 * DAY));
        let _ = bench.put("campaign/2", wall(90 * DAY));
        let _ = bench.put("in ten years", wall(3_650 * DAY));
    }
    {
        let bench = Bench::at(&folder, 10 * DAY);
        assert_eq!(bench.cancel("campaign/2"), Cancel::Cancelled);
        bench.go(secs(80 * 86_400 - 1), 0);
        bench.go(secs(1), 1);
        assert_eq!(bench.seen.take(), expect(&[("campaign/1", 90 * 86_400)]));
    }
    let bench = Bench::at(&folder, 3_650 * DAY - 1);
    bench.settle();
    assert_eq!(bench.seen.len(), 0);
    bench.go(secs(1), 1);
    assert_eq!(bench.seen.keys(), ["in ten years"]);
}

#[derive(Serialize, Deserialize)]
struct Campaign {
    id: u64,
    sent: u32,
    amount: u32,
}

#[test]
fn b4_a_restart_finds_typed_fields_and_the_progress() {
    let folder = Folder::new();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let start = |second| {
        let sent = Arc::clone(&sent);
        Bench::with(&folder, second, |builder, _, _| {
            builder.handler("send", move |mut campaign: Campaign, run: &Run| {
                campaign.sent += 100;
                sent.lock().unwrap().push((campaign.id, campaign.sent));
                if campaign.sent < campaign.amount {
                    let key = format!("campaign/7/{}", campaign.sent);
                    drop(run.scheduler().put_to("send", &campaign).key(&key).due(secs(60)).send());
                }
            })
        })
    };
    {
        let bench = start(0);
        let campaign = Campaign { id: 7, sent: 0, amount: 300 };
        let _ = answer(bench.scheduler.put_to("send", &campaign).key("campaign/7/0").send()).unwrap();
        go_until(&bench.clock, || bench.get("campaign/7/100").is_some());
        bench.settle();
    }
    let bench = start(60);
    go_until(&bench.clock, || bench.get("campaign/7/200").is_some());
    bench.go(secs(60), 2);
    assert_eq!(*sent.lock().unwrap(), [(7, 100), (7, 200), (7, 300)]);
}

#[test]
fn b5_a_slow_handler_holds_neither_the_timer_nor_the_file() {
    let folder = Folder::new();
    let (send, go) = mpsc::channel::<()>();
    let go = Mutex::new(go);
    let threads = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&threads);
    let slow = move |_: (), _: &Run| _ = go.lock().unwrap().recv();
    let other = move |_: (), _: &Run| seen.lock().unwrap().push(thread::current().name().map(str::to_owned));
    let scheduler = Scheduler::open(folder.file()).handler("slow", slow).handler("other", other).start().unwrap();
    let _ = scheduler.put_to("slow", &()).key("slow").send().wait().unwrap();
    until(|| scheduler.get("slow").wait().unwrap().unwrap().state == State::Running);
    for _ in 0..3 {
        let _ = scheduler.put_to("other", &()).send().wait().unwrap();
    }
    until(|| scheduler.stats().wait().unwrap().done == 3);
    let writer = |name: &Option<String>| name.as_deref().is_some_and(|name| name.starts_with("timerqueue-write"));
    assert!(!threads.lock().unwrap().iter().any(writer), "no handler runs on the thread that writes");
    send.send(()).unwrap();
    until(|| scheduler.stats().wait().unwrap().done == 4);
}

#[test]
fn b6_due_times_are_kept_to_the_microsecond() {
    let folder = Folder::new();
    let micro = std::time::Duration::from_micros(1);
    {
        let bench = Bench::at(&folder, 0);
        let _ = bench.put("a", wall(60) + 7 * micro);
    }
    let bench = Bench::at(&folder, 60);
    bench.go(6 * micro, 0);
    bench.go(micro, 1);
}

#[test]
fn b7_b12_a_job_that_was_overdue_by_1_2_or_100_seconds_at_the_restart_runs_once() {
    for late in [1, 2, 100] {
        let folder = Folder::new();
        {
            let bench = Bench::at(&folder, 0);
            let _ = bench.put("a", wall(60));
            let _ = bench.put("later", wall(3_600));
        }
        let bench = Bench::at(&folder, 60 + late);
        go_until(&bench.clock, || bench.stats().done == 1);
        assert_eq!(bench.seen.keys(), ["a"], "late by {late} s");
        bench.go(HOUR, 2);
        assert_eq!(bench.seen.keys(), ["later"]);
    }
}

#[test]
fn b8_b20_far_jobs_of_a_file_are_not_looked_at() {
    let folder = Folder::new();
    {
        let bench = Bench::at(&folder, 0);
        let puts: Vec<_> = (0..500).map(|n| bench.job(&n.to_string()).due(48 * HOUR).send()).collect();
        puts.into_iter().for_each(|put| _ = answer(put).unwrap());
    }
    let bench = Bench::at(&folder, 1);
    bench.settle();
    let fired = bench.runtime.metrics().fired();
    bench.clock.advance(47 * HOUR);
    assert_eq!(bench.runtime.metrics().fired(), fired, "no timer fires before the first due time");
}

/// Unpaid orders are closed, receipts confirmed, and messages sent, unless the user was first.
#[test]
fn b9_orders_receipts_and_messages_on_one_file() {
    let folder = Folder::new();
    let done = Arc::new(Mutex::new(Vec::new()));
    let start = |second| {
        Bench::with(&folder, second, |mut builder, _, _| {
            for name in ["close-unpaid", "confirm-receipt", "sms"] {
                let done = Arc::clone(&done);
                builder = builder.handler(name, move |n: u64, _: &Run| done.lock().unwrap().push((name, n)));
            }
            builder
        })
    };
    {
        let bench = start(0);
        for (name, due) in [("close-unpaid", secs(1_800)), ("confirm-receipt", 10 * 24 * HOUR), ("sms", HOUR)] {
            for n in [1, 2] {
                let put = bench.scheduler.put_to(name, &n).key(&format!("{name}/{n}")).due(due);
                assert!(answer(put.send()).unwrap().added().is_some());
            }
        }
        assert_eq!(bench.cancel("close-unpaid/1"), Cancel::Cancelled, "paid");
    }
    let bench = start(900);
    assert_eq!(bench.cancel("confirm-receipt/2"), Cancel::Cancelled, "the user has confirmed");
    bench.go(secs(900), 1);
    bench.go(secs(1_800), 3);
    bench.go(10 * 24 * HOUR, 4);
    let mut done = done.lock().unwrap();
    done[1..3].sort_unstable();
    assert_eq!(*done, [("close-unpaid", 2), ("sms", 1), ("sms", 2), ("confirm-receipt", 1)]);
}

#[test]
fn b11_every_delay_is_exact() {
    let folder = Folder::new();
    {
        let bench = Bench::at(&folder, 0);
        let puts: Vec<_> = (1..=121).map(|n| bench.job(&n.to_string()).due(secs(n)).send()).collect();
        puts.into_iter().for_each(|put| _ = answer(put).unwrap());
    }
    let bench = Bench::at(&folder, 0);
    for second in 1..=121 {
        bench.clock.advance(secs(1));
        go_until(&bench.clock, || bench.stats().done == second);
    }
    let seconds: Vec<(String, u64)> = (1..=121).map(|n: u64| (n.to_string(), n)).collect();
    assert_eq!(bench.seen.take(), seconds);
}

#[test]
fn b13_a_schedule_of_a_file_keeps_its_zone() {
    let folder = Folder::new();
    {
        let bench = Bench::at(&folder, 80 * DAY);
        let nightly = Schedule::cron("30 2 * * *").zone("Europe/Berlin").build().unwrap();
        let _ = answer(bench.job("nightly").schedule(nightly).send()).unwrap();
    }
    // 02:30 from winter time to summer time: 2026-03-28, 29 (no such time: 03:00) and 30.
    for hours in [1.5, 25.0, 48.5] {
        let second = 86 * DAY + (hours * 3_600.0) as i64;
        let bench = Bench::at(&folder, second - 1);
        bench.settle();
        let due = bench.get("nightly").unwrap().due;
        let caught_up = bench.stats().done;
        assert_eq!(due, Some(wall(second)));
        bench.go(secs(1), caught_up + 1);
    }
}

#[test]
fn b14_a_file_follows_the_clock_that_it_finds() {
    let folder = Folder::new();
    {
        let bench = Bench::at(&folder, 0);
        let _ = bench.put("a", wall(3_600));
        let _ = bench.put("b", wall(10_800));
        bench.clock.set_wall(wall(7_200));
        bench.go(secs(0), 1);
        assert_eq!(bench.seen.keys(), ["a"]);
    }
    // Another machine, two hours behind.
    let bench = Bench::at(&folder, 5_200);
    bench.go(secs(5_599), 0);
    bench.go(secs(1), 1);
    assert_eq!(bench.seen.take(), expect(&[("b", 10_800)]));
}

#[test]
fn b15_handlers_that_change_the_file_start_nothing_twice() {
    let folder = Folder::new();
    let seen = Seen::default();
    let notes = seen.clone();
    let bench = Bench::with(&folder, 0, |builder, runtime, _| {
        let runtime = runtime.clone();
        builder.handler("busy", move |n: u32, run: &Run| {
            notes.add(&runtime, run);
            let scheduler = run.scheduler();
            drop(scheduler.cancel(&format!("{}", n + 1)));
            drop(scheduler.move_to(&format!("{}", n + 2), secs(5)));
            drop(scheduler.put_to("log", &()).key(&format!("new/{n}")).send());
        })
    });
    for n in 0..30_u32 {
        drop(bench.scheduler.put_to("busy", &n).key(&n.to_string()).due(secs(60)).send());
    }
    bench.settle();
    let left = || answer(bench.scheduler.list(Query::new())).unwrap().len();
    for _ in 0..60 {
        bench.clock.advance(secs(5));
        bench.settle();
    }
    go_until(&bench.clock, || left() == 0);
    let mut keys = [seen.keys(), bench.seen.keys()].concat();
    let runs = keys.len();
    keys.sort();
    keys.dedup();
    assert_eq!((keys.len(), bench.stats().done as usize), (runs, runs), "each started once");
}

#[test]
fn b16_the_same_object_twice_is_two_jobs_and_removal_is_by_key() {
    let folder = Folder::new();
    {
        let bench = Bench::at(&folder, 0);
        let _ = bench.put("one", secs(10));
        let _ = bench.put("two", secs(20));
    }
    let bench = Bench::at(&folder, 5);
    assert_eq!(bench.cancel("one"), Cancel::Cancelled, "after a reload");
    bench.go(secs(60), 1);
    assert_eq!(bench.seen.keys(), ["two"]);
}

#[test]
fn b17_jobs_are_found_again_by_the_name_of_their_handler() {
    let folder = Folder::new();
    {
        let scheduler = Scheduler::open(folder.file()).start().unwrap();
        for (name, payload) in [("mail", "ann"), ("sms", "bob"), ("unknown", "eve")] {
            let _ = scheduler.put_to(name, payload).key(payload).send().wait().unwrap();
        }
    }
    let (send, ran) = mpsc::channel();
    let handler = |name: &'static str| {
        let send = send.clone();
        move |to: String, _: &Run| send.send((name, to)).unwrap()
    };
    let scheduler =
        Scheduler::open(folder.file()).handler("mail", handler("mail")).handler("sms", handler("sms")).start().unwrap();
    let mut found = [ran.recv_timeout(LONG).unwrap(), ran.recv_timeout(LONG).unwrap()];
    found.sort();
    assert_eq!(found, [("mail", "ann".to_owned()), ("sms", "bob".to_owned())]);
    until(|| scheduler.list(Query::new()).wait().unwrap().len() == 1);
    assert_eq!(scheduler.get("eve").wait().unwrap().unwrap().state, State::Waiting, "it waits for its handler");
    // A process that knows the name comes later.
    let later = Scheduler::open(folder.file()).handler("unknown", handler("unknown")).start().unwrap();
    assert_eq!(ran.recv_timeout(LONG).unwrap(), ("unknown", "eve".to_owned()));
    drop(later);
}

#[test]
fn b18_the_status_of_a_job_changes_in_one_step_with_its_run() {
    let folder = Folder::new();
    let (begun, is_running) = mpsc::channel();
    let (end, may_end) = mpsc::channel::<()>();
    let may_end = Mutex::new(may_end);
    let handler = move |_: (), _: &Run| {
        begun.send(()).unwrap();
        may_end.lock().unwrap().recv().unwrap();
    };
    let scheduler = Scheduler::open(folder.file()).handler("wait", handler).start().unwrap();
    let _ = scheduler.put_to("wait", &()).key("a").send().wait().unwrap();
    is_running.recv_timeout(LONG).unwrap();
    // A stranger sees it as running from before the handler's first instruction, and as nothing
    // after its end.
    let stranger = Connection::open(folder.file()).unwrap();
    let state = || stranger.query_row("SELECT state FROM timerqueue", [], |row| row.get::<_, String>(0));
    assert_eq!(state().unwrap(), "running");
    end.send(()).unwrap();
    until(|| state().is_err());
}

#[test]
fn b19_errors_attempts_and_limits_outlast_a_restart() {
    let folder = Folder::new();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let start = |second| {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        Bench::with(&folder, second, |builder, runtime, seen| {
            let (runtime, seen) = (runtime.clone(), seen.clone());
            let failing = move |_: (), run: &Run| {
                seen.add(&runtime, run);
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                now.fetch_sub(1, Ordering::SeqCst);
                Err::<(), _>(format!("no connection in attempt {}", run.attempt()))
            };
            builder.register(Handler::new("failing", failing).retry(Retry::new(4).jitter(0.0)).parallel(1))
        })
    };
    let ended = |bench: &Bench| bench.stats().retried + bench.stats().died;
    {
        let bench = start(0);
        let _ = answer(bench.scheduler.put_to("failing", &()).key("f").send()).unwrap();
        // An end is counted before it is in the file, and the wait for the next attempt begins
        // then.
        go_until(&bench.clock, || ended(&bench) == 1);
        bench.settle();
        bench.clock.advance(secs(1));
        go_until(&bench.clock, || ended(&bench) == 2);
        bench.settle();
        assert_eq!(bench.seen.take(), expect(&[("f", 0), ("f", 1)]));
    }
    let bench = start(2);
    assert_eq!(bench.get("f").unwrap().error.as_deref(), Some("no connection in attempt 2"));
    bench.clock.advance(secs(1));
    go_until(&bench.clock, || ended(&bench) == 1);
    bench.settle();
    bench.clock.advance(secs(4));
    go_until(&bench.clock, || bench.get("f").unwrap().state == State::Dead);
    assert_eq!(bench.seen.take(), expect(&[("f", 3), ("f", 7)]), "after 1, 2 and 4 seconds");
    let dead = bench.get("f").unwrap();
    assert_eq!((dead.attempt, dead.failures.len(), most.load(Ordering::SeqCst)), (4, 4, 1));
}

#[test]
fn b21_an_outage_shifts_nothing_after_it() {
    let folder = Folder::new();
    {
        let bench = Bench::at(&folder, 0);
        let every = Schedule::every(secs(60)).build().unwrap();
        let _ = answer(bench.job("tick").schedule(every).send()).unwrap();
        go_until(&bench.clock, || bench.stats().done == 1);
        bench.settle();
    }
    // The process was away from 0 to 150.
    let bench = Bench::at(&folder, 150);
    go_until(&bench.clock, || bench.stats().done >= 1);
    bench.settle();
    let caught_up = bench.stats().done;
    bench.go(secs(30), caught_up + 1);
    bench.go(secs(60), caught_up + 2);
    let seconds: Vec<u64> = bench.seen.take().into_iter().map(|(_, second)| second).collect();
    assert_eq!(seconds[caught_up as usize..], [180, 240], "on the grid of the first run");
}
