//! Real threads and real time: nothing early, nothing lost, nothing twice (J1, J5).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use timerqueue::Runtime;
use timerqueue_scheduler::store::MemoryStore;
use timerqueue_scheduler::{Cancel, Clash, Handler, Run, Schedule, Scheduler, State};

use crate::bench::secs;

/// Waits on real time.
fn until(what: &str, condition: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !condition() {
        assert!(begun.elapsed() < secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn threads_put_move_and_cancel_while_jobs_run() {
    let runtime = Runtime::builder().start().unwrap();
    let store = MemoryStore::new(&runtime);
    let runs: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
    let make = || {
        let runs = Arc::clone(&runs);
        let handler = move |_: u64, run: &Run| {
            assert!(SystemTime::now() >= run.due(), "never early");
            *runs.lock().unwrap().entry(run.key().to_owned()).or_default() += 1;
        };
        let handler = Handler::new("h", handler).parallel(3);
        Scheduler::builder().runtime(&runtime).store(store.clone()).register(handler).start().unwrap()
    };
    let (one, two) = (make(), make());
    let (cancelled, accepted) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let scheduler = if thread % 2 == 0 { &one } else { &two };
            let (cancelled, accepted) = (&cancelled, &accepted);
            scope.spawn(move || {
                for n in 0..1_000_u64 {
                    let key = format!("{thread}/{n}");
                    let due = Duration::from_micros((n * 7_919) % 3_000);
                    let placed = scheduler.put_to("h", &n).key(&key).due(due).send().wait().unwrap();
                    accepted.fetch_add(usize::from(placed.added().is_some()), Ordering::Relaxed);
                    match n % 5 {
                        0 => _ = scheduler.move_to(&key, Duration::from_micros(n)).wait().unwrap(),
                        1 if scheduler.cancel(&key).wait() == Ok(Cancel::Cancelled) => {
                            cancelled.fetch_add(1, Ordering::Relaxed);
                        }
                        _ => {}
                    }
                }
            });
        }
    });
    let left = || one.stats().wait().unwrap().jobs;
    until("all have run", || left().of(State::Waiting) + left().of(State::Running) == 0);
    let runs = runs.lock().unwrap();
    assert!(runs.values().all(|&count| count == 1), "none ran twice");
    assert_eq!(runs.len() + cancelled.load(Ordering::Relaxed), accepted.load(Ordering::Relaxed), "none was lost");
    for scheduler in [one, two] {
        assert!(scheduler.close(secs(10)).wait().unwrap().is_drained());
    }
}

#[test]
fn an_idle_wait_ends_with_a_put_from_another_thread() {
    let runtime = Runtime::builder().start().unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    let handler = move |_: (), run: &Run| send.send(run.due()).unwrap();
    let scheduler = Scheduler::builder().runtime(&runtime).handler("h", handler).start().unwrap();
    let _ = scheduler.put_to("h", &()).due(secs(3_600)).send().wait().unwrap();
    let mut best = Duration::MAX;
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(2));
        let _ = scheduler.put_to("h", &()).due(Duration::from_millis(1)).send().wait().unwrap();
        let due = receive.recv_timeout(secs(30)).unwrap();
        let late = SystemTime::now().duration_since(due).expect("never early");
        best = best.min(late);
    }
    assert!(best < Duration::from_millis(20), "the best of them is late by {best:?}");
}

#[test]
fn replaced_and_recurring_jobs_on_real_threads() {
    let runtime = Runtime::builder().start().unwrap();
    let (ticks, last) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(None)));
    let (count, nominal) = (Arc::clone(&ticks), Arc::clone(&last));
    let scheduler = Scheduler::builder()
        .runtime(&runtime)
        .handler("tick", move |_: (), run: &Run| {
            let before = nominal.lock().unwrap().replace(run.nominal().unwrap());
            assert!(before < run.nominal(), "nominal instants grow");
            count.fetch_add(1, Ordering::Relaxed);
        })
        .handler("h", |_: u32, _: &Run| {})
        .start()
        .unwrap();
    let schedule = Schedule::every(Duration::from_millis(2)).build().unwrap();
    let _ = scheduler.put_to("tick", &()).key("t").schedule(schedule).send().wait().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for n in 0..500_u32 {
                    let put = scheduler.put_to("h", &n).key("same").due(Duration::from_micros(u64::from(n) % 50));
                    let placed = put.clash(Clash::Replace).send().wait().unwrap();
                    assert!(placed.added().is_some());
                }
            });
        }
    });
    until("ticks come", || ticks.load(Ordering::Relaxed) > 20);
    assert!(scheduler.close(secs(10)).wait().unwrap().is_drained());
}
