//! Several stores on a file. Each has its own lock, as each process has.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use timerqueue::Runtime;
use timerqueue_scheduler::rusqlite::Connection;
use timerqueue_scheduler::store::{SqliteOptions, SqliteStore};
use timerqueue_scheduler::{Cancel, Handler, JobEnd, Returned, Run, RunEnd, Scheduler, State};

use crate::support::{Folder, LONG, Log, until};

#[test]
fn k3_a_job_of_two_stores_runs_once() {
    let folder = Folder::new();
    let log = Log::default();
    let (one, two) = (folder.scheduler(&log), folder.scheduler(&log));
    let pending: Vec<_> = (0..400)
        .map(|n| {
            let by = if n % 2 == 0 { &one } else { &two };
            by.put_to("log", &n).key(&format!("{n:03}")).due(Duration::from_millis(n / 4)).send()
        })
        .collect();
    for pending in pending {
        assert!(pending.wait().unwrap().added().is_some());
    }
    until(|| log.all().len() >= 400 && one.stats().wait().unwrap().jobs.of(State::Running) == 0);
    assert_eq!(log.keys(), (0..400).map(|n| format!("{n:03}")).collect::<Vec<_>>());
    let done = one.stats().wait().unwrap().done + two.stats().wait().unwrap().done;
    assert_eq!(done, 400);
}

#[test]
fn k4_a_put_by_another_store_is_seen_at_once() {
    let folder = Folder::new();
    let (send, ran) = mpsc::channel();
    let handler = move |_: u32, _: &Run| send.send(Instant::now()).unwrap();
    let worker = Scheduler::open(folder.file()).handler("h", handler).start().unwrap();
    let front = Scheduler::open(folder.file()).start().unwrap();
    // Something to wait for, far ahead.
    let _ = front.put_to("h", &0).key("far").due(Duration::from_secs(86_400)).send().wait().unwrap();
    let mut waits: Vec<Duration> = (0..40)
        .map(|n| {
            let _ = front.put_to("h", &n).key(&n.to_string()).send().wait().unwrap();
            let put = Instant::now();
            ran.recv_timeout(LONG).unwrap().saturating_duration_since(put)
        })
        .collect();
    waits.sort();
    println!("p50 {:?}, p99 {:?}", waits[20], waits[39]);
    assert!(waits[0] < Duration::from_millis(500), "it is told, and looks once a second at most otherwise: {waits:?}");
    drop(worker);
}

/// The store of the run has read the row before the cancel.
#[test]
fn k4_after_a_cancel_by_another_store_no_attempt_follows() {
    let folder = Folder::new();
    let (send, begun) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let ends = std::sync::Mutex::new(ends);
    let handler = move |_: (), _: &Run| {
        send.send(()).unwrap();
        ends.lock().unwrap().recv().map_err(|_| "the test is over")?;
        Err::<(), _>("a failure, after which an attempt follows")
    };
    let worker = Scheduler::open(folder.file()).handler("h", handler).start().unwrap();
    let front = Scheduler::open(folder.file()).start().unwrap();
    let _ = worker.put_to("h", &()).key("a").send().wait().unwrap();
    begun.recv_timeout(LONG).unwrap();
    assert_eq!(front.cancel("a").wait(), Ok(Cancel::Running));
    end.send(()).unwrap();
    until(|| worker.get("a").wait().unwrap().is_none_or(|job| job.state != State::Running));
    assert!(worker.get("a").wait().unwrap().is_none(), "it waits for another attempt");
    drop(end);
}

#[test]
fn k4_a_cancel_by_another_store_reaches_the_run() {
    let folder = Folder::new();
    let (send, begun) = mpsc::channel();
    let handler = move |_: (), run: &Run| {
        send.send(()).unwrap();
        run.token().wait();
    };
    let worker = Scheduler::open(folder.file()).handler("h", handler).start().unwrap();
    let front = Scheduler::open(folder.file()).start().unwrap();
    let _ = front.put_to("h", &()).key("a").send().wait().unwrap();
    begun.recv_timeout(LONG).unwrap();
    assert_eq!(front.cancel("a").wait().unwrap(), Cancel::Running);
    until(|| front.get("a").wait().unwrap().is_none());
    assert_eq!(worker.stats().wait().unwrap().done, 1);
}

#[test]
fn k2_the_runs_of_a_store_that_is_gone_are_taken_back() {
    let folder = Folder::new();
    let (send, attempts) = mpsc::channel();
    // A scheduler whose executor keeps the future for ever, and whose store goes.
    let front = Scheduler::open(folder.file()).start().unwrap();
    let _ = front.put_to("h", &()).key("a").send().wait().unwrap();
    let runtime = Runtime::builder().start().unwrap();
    let store = SqliteStore::open(&runtime, folder.file()).unwrap();
    claim_and_forget(&store);
    assert_eq!(front.get("a").wait().unwrap().unwrap().state, State::Running);
    let handler = move |_: (), run: &Run| send.send(run.attempt()).unwrap();
    let worker = Scheduler::open(folder.file()).handler("h", handler).start().unwrap();
    assert!(attempts.recv_timeout(Duration::from_millis(100)).is_err(), "the store holds its run");
    let gone = Instant::now();
    drop(store);
    assert_eq!(attempts.recv_timeout(LONG).unwrap(), 2, "the attempt counts");
    println!("taken back after {:?}", gone.elapsed());
    drop(worker);
}

/// Its handler does not begin again, and its end is told of.
#[test]
fn j24_a_job_that_is_begun_at_most_once_is_dead_with_its_process() {
    let folder = Folder::new();
    let front = Scheduler::open(folder.file()).start().unwrap();
    let _ = front.put_to("h", &()).key("a").at_most_once().send().wait().unwrap();
    let runtime = Runtime::builder().start().unwrap();
    let store = SqliteStore::open(&runtime, folder.file()).unwrap();
    claim_and_forget(&store);
    drop(store);
    let (send, ends) = mpsc::channel();
    let send = std::sync::Mutex::new(send);
    let worker = Scheduler::open(folder.file())
        .handler("h", |_: (), run: &Run| assert!(run.attempt() == 0, "begun again: {run:?}"))
        .on_run_end(move |record| send.lock().unwrap().send((record.key.to_string(), record.run.end)).unwrap())
        .start()
        .unwrap();
    assert_eq!(ends.recv_timeout(LONG).unwrap(), ("a".to_owned(), RunEnd::CutOff));
    until(|| front.get("a").wait().unwrap().is_some_and(|job| job.state == State::Dead));
    let job = front.get("a").wait().unwrap().unwrap();
    assert_eq!((job.attempt, job.error.as_deref().map(|error| error.contains("cut off"))), (1, Some(true)));
    assert_eq!(worker.stats().wait().unwrap().cut_off, 1);
    // The key is free.
    let _ = front.put_to("other", &()).key("a").send().wait().unwrap().added().unwrap();
}

/// The file is locked for longer than the looks after the end of a process go on.
#[test]
fn k2_runs_are_taken_back_once_the_file_is_free() {
    let folder = Folder::new();
    let runtime = Runtime::builder().start().unwrap();
    let options = SqliteOptions::new().busy_timeout(Duration::from_millis(10));
    let store = options.open(&runtime, folder.file()).unwrap();
    let front = Scheduler::builder().runtime(&runtime).store(store).start().unwrap();
    let _ = front.put_to("h", &()).key("a").send().wait().unwrap();
    let gone = options.open(&runtime, folder.file()).unwrap();
    claim_and_forget(&gone);
    let (send, attempts) = mpsc::channel();
    let handler = move |_: (), run: &Run| send.send(run.attempt()).unwrap();
    let store = options.open(&runtime, folder.file()).unwrap();
    let worker = Scheduler::builder().runtime(&runtime).store(store).handler("h", handler).start().unwrap();
    let locked = Connection::open(folder.file()).unwrap();
    locked.execute_batch("BEGIN IMMEDIATE").unwrap();
    drop(gone);
    std::thread::sleep(Duration::from_millis(2_000));
    locked.execute_batch("COMMIT").unwrap();
    assert_eq!(attempts.recv_timeout(LONG).unwrap(), 2, "the attempt counts");
    drop((front, worker));
}

/// The kernel tells nothing any more.
#[test]
fn k4_a_put_is_seen_after_the_folder_of_the_processes_was_moved() {
    let folder = Folder::new();
    let (send, ran) = mpsc::channel();
    let handler = move |_: (), _: &Run| send.send(()).unwrap();
    let worker = Scheduler::open(folder.file()).handler("h", handler).start().unwrap();
    let front = Scheduler::open(folder.file()).start().unwrap();
    let processes = folder.file().with_file_name("jobs.db-processes");
    std::fs::rename(&processes, processes.with_extension("old")).unwrap();
    let _ = front.put_to("h", &()).key("a").send().wait().unwrap();
    ran.recv_timeout(LONG).unwrap();
    drop(worker);
}

/// Claims a job of the handler `h`, for a run that never ends.
pub(crate) fn claim_and_forget(store: &SqliteStore) {
    use timerqueue_scheduler::store::{Claim, Reply, Room, Store};
    let (send, receive) = mpsc::channel();
    let rooms = vec![Room { name: "h".into(), places: 1 }];
    let reply = Reply::new(move |claimed| send.send(claimed).unwrap());
    store.claim(Claim { owner: 7, rooms, at_most: 1 }, reply);
    assert_eq!(receive.recv().unwrap().unwrap().jobs.len(), 1);
}

#[test]
fn k3_a_handler_that_is_full_in_one_store_has_places_in_another() {
    let folder = Folder::new();
    let running = Arc::new(AtomicU32::new(0));
    let handler = || {
        let running = Arc::clone(&running);
        let wait = move |_: u32, run: &Run| {
            running.fetch_add(1, Ordering::SeqCst);
            run.token().wait();
        };
        Handler::new("h", wait).parallel(1)
    };
    let one = Scheduler::open(folder.file()).register(handler()).start().unwrap();
    let two = Scheduler::open(folder.file()).register(handler()).start().unwrap();
    for n in 0..3 {
        let _ = one.put_to("h", &n).key(&n.to_string()).send().wait().unwrap();
    }
    until(|| running.load(Ordering::SeqCst) == 2);
    for n in 0..3 {
        let _ = two.cancel(&n.to_string()).wait().unwrap();
    }
    until(|| one.stats().wait().unwrap().jobs.of(State::Running) == 0);
}

#[test]
fn j32_the_end_of_a_run_of_another_store_is_awaited() {
    let folder = Folder::new();
    let front = Scheduler::open(folder.file()).start().unwrap();
    let _worker = Scheduler::open(folder.file()).handler("h", |n: u32, _: &Run| Returned(n + 1)).start().unwrap();
    for n in 0..20 {
        let put = front.put_to("h", &n).due(Duration::from_millis(n.into())).kept_for(LONG).send().wait().unwrap();
        match front.wait_for(put.added().unwrap(), LONG).wait().unwrap() {
            JobEnd::Done(job) => assert_eq!(job.value::<u32>().unwrap().unwrap(), n + 1),
            other => panic!("{other:?}"),
        }
    }
}
