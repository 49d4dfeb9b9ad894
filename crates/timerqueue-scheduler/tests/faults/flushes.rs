//! Which commits wait for the disk.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use timerqueue::Runtime;
use timerqueue_scheduler::rusqlite::Connection;
use timerqueue_scheduler::store::{SqliteReader, SqliteStore};
use timerqueue_scheduler::{Change, Error, Handler, Run, RunEnd, Scheduler, State};

use crate::layer::{Call, Faults};
use crate::life::Folder;

/// A scheduler whose handler says its attempt, and ends when it is told to.
struct Held {
    scheduler: Scheduler,
    attempts: Receiver<u32>,
    go_on: Sender<()>,
}

fn held(folder: &Folder) -> Held {
    let ((say, attempts), (go_on, wait)) = (channel(), channel());
    let (say, wait) = (Mutex::new(say), Mutex::new(wait));
    let handler = Handler::new("held", move |_: (), run: &Run| {
        say.lock().unwrap().send(run.attempt()).unwrap();
        let _ = wait.lock().unwrap().recv();
    });
    let scheduler = Scheduler::open(folder.file()).register(handler.parallel(1)).start().unwrap();
    Held { scheduler, attempts, go_on }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn flushes(faults: &Arc<Faults>) -> u64 {
    faults.count(Call::Sync)
}

/// The begin of a run is flushed later, and no end of a run needs two flushes.
#[test]
fn k2_the_begin_of_a_run_waits_for_no_flush_and_counts_after_a_cut_once_it_is_flushed() {
    let folder = Folder::new("disk");
    let faults = Faults::of(&folder.path);
    let Held { scheduler, attempts, go_on } = held(&folder);
    for key in ["a", "b"] {
        let _ = scheduler.put_to("held", &()).key(key).due(Duration::from_millis(200)).send().wait().unwrap();
    }
    let before = flushes(&faults);
    assert_eq!(attempts.recv(), Ok(1));
    assert_eq!(flushes(&faults), before, "the begin of the first run");
    go_on.send(()).unwrap();
    assert_eq!(attempts.recv(), Ok(1));
    assert_eq!(flushes(&faults), before + 1, "the end of the first run, and the begin of the other one");

    // A third job begins by a claim of its own.
    go_on.send(()).unwrap();
    wait_until("the runs end", || scheduler.get("b").wait().unwrap().is_none());
    let _ = scheduler.put_to("held", &()).key("c").due(Duration::from_millis(100)).send().wait().unwrap();
    let before = flushes(&faults);
    assert_eq!(attempts.recv(), Ok(1));
    wait_until("a run that goes on is flushed", || flushes(&faults) > before);
    faults.cut();
    let after = Folder::new("disk");
    for (name, bytes) in faults.after_cut(7).files {
        std::fs::write(after.path.join(name), bytes).unwrap();
    }
    let second = held(&after);
    assert_eq!(second.attempts.recv(), Ok(2), "the attempt before the cut counts");
    let _ = (go_on.send(()), second.go_on.send(()));
}

/// A job that is begun at most once has begun on the disk before its handler does.
#[test]
fn j24_the_begin_of_a_job_that_is_begun_at_most_once_is_flushed() {
    let folder = Folder::new("disk");
    let faults = Faults::of(&folder.path);
    let Held { scheduler, attempts, go_on } = held(&folder);
    let once = |key: &str, due| {
        let put = scheduler.put_to("held", &()).key(key).at_most_once().due(Duration::from_millis(due));
        let _ = put.send().wait().unwrap();
    };
    once("a", 200);
    let before = flushes(&faults);
    assert_eq!(attempts.recv(), Ok(1));
    assert_eq!(flushes(&faults), before + 1);
    // In the place of a run that ends: with its end.
    once("b", 0);
    let before = flushes(&faults);
    go_on.send(()).unwrap();
    assert_eq!(attempts.recv(), Ok(1));
    assert!(flushes(&faults) > before);
    faults.cut();
    for seed in 0..20 {
        let after = Folder::new("disk");
        for (name, bytes) in faults.after_cut(seed).files {
            std::fs::write(after.path.join(name), bytes).unwrap();
        }
        let second = held(&after);
        let is_dead = || second.scheduler.get("b").wait().unwrap().is_some_and(|job| job.state == State::Dead);
        wait_until("the job is dead", is_dead);
        let last = second.scheduler.get("b").wait().unwrap().unwrap().last.unwrap();
        assert_eq!((last.end, last.attempt), (RunEnd::CutOff, 1));
        assert!(second.attempts.try_recv().is_err(), "begun again");
    }
    let _ = go_on.send(());
}

/// What a cut of the power has left, opened again.
fn after_cut(faults: &Faults, seed: u64) -> (Folder, SqliteReader) {
    let folder = Folder::new("disk");
    for (name, bytes) in faults.after_cut(seed).files {
        std::fs::write(folder.path.join(name), bytes).unwrap();
    }
    let store = SqliteStore::open(Runtime::global(), folder.file()).unwrap();
    store.check().unwrap();
    let reader = SqliteReader::open(folder.file()).unwrap();
    (folder, reader)
}

fn put(scheduler: &Scheduler, key: &str, due: Duration) -> Result<(), Error> {
    scheduler.put_to("held", &()).key(key).due(due).send().wait().map(drop)
}

const LONG: Duration = Duration::from_secs(3_600);

/// The begin of a run is in the log and not flushed. The flush of the next commit fails, and the
/// disk never sees the pages of the begin, unless they are written again. Then `second` puts a job;
/// it is there after each cut.
fn is_whole_after_a_flush_that_failed(faults: &Arc<Faults>, held: &Held, second: impl FnOnce(&str)) {
    put(&held.scheduler, "runs", Duration::from_millis(200)).unwrap();
    assert_eq!(held.attempts.recv(), Ok(1));
    faults.fail(Call::Sync, flushes(faults) + 1);
    // On a busy machine the flush that fails is the one of the begin alone, and the put is
    // accepted.
    let first = put(&held.scheduler, "first", LONG);
    wait_until("a flush fails", || faults.has_failed());
    second("second");
    faults.cut();
    for seed in 0..50 {
        let (_folder, reader) = after_cut(faults, seed);
        assert!(reader.get("second").unwrap().is_some(), "an accepted job is lost: {seed}");
        assert!(first.is_err() || reader.get("first").unwrap().is_some(), "an accepted job is lost: {seed}");
    }
    let _ = held.go_on.send(());
}

#[test]
fn k7_after_a_flush_that_failed_the_log_has_no_hole() {
    let folder = Folder::new("disk");
    let faults = Faults::of(&folder.path);
    let held = held(&folder);
    is_whole_after_a_flush_that_failed(&faults, &held, |key| put(&held.scheduler, key, LONG).unwrap());
}

/// A process that is gone may have had a flush that failed. Here its row is all there is of it, and
/// the store whose flush fails is another one.
#[test]
fn k7_after_the_end_of_a_process_the_log_has_no_hole() {
    let folder = Folder::new("disk");
    let faults = Faults::of(&folder.path);
    let held = held(&folder);
    let db = Connection::open(folder.file()).unwrap();
    db.execute("INSERT INTO timerqueue_processes (pid, opened) VALUES (1, 1)", []).unwrap();
    is_whole_after_a_flush_that_failed(&faults, &held, |key| {
        let other = Scheduler::open(folder.file()).start().unwrap();
        put(&other, key, LONG).unwrap();
    });
}

/// A checkpoint flushes the log, and would keep it to itself if that failed.
#[test]
fn k7_no_checkpoint_follows_the_begin_of_a_run() {
    let folder = Folder::new("disk");
    let faults = Faults::of(&folder.path);
    let Held { scheduler, attempts, go_on } = held(&folder);
    let asked = Instant::now();
    put(&scheduler, "runs", Duration::from_millis(1_500)).unwrap();
    // With a reader in its way, no checkpoint ends, and the log becomes long enough for one after
    // each commit.
    let reader = Connection::open(folder.file()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM timerqueue_jobs").unwrap();
    let text = "x".repeat(200_000);
    let long = |n: u32| scheduler.put_to("held", &text).key(&n.to_string()).due(LONG);
    assert!(scheduler.put_many((0..30).map(long)).wait().unwrap().iter().all(Result::is_ok));
    reader.execute_batch("COMMIT").unwrap();
    drop(reader);
    let before = flushes(&faults);
    assert_eq!(attempts.recv(), Ok(1));
    // A checkpoint comes soon, and the flush of the begin a second after it.
    std::thread::sleep(Duration::from_millis(300));
    let flushed = flushes(&faults);
    assert!(flushed == before || asked.elapsed() > Duration::from_millis(2_400), "{before}, {flushed}");
    let _ = go_on.send(());
}

/// SQLite writes no page that stays as it is, so a commit that sets what is set already flushes
/// nothing.
#[test]
fn k2_a_change_that_changes_nothing_is_no_flush_of_the_begin_before() {
    let folder = Folder::new("disk");
    let faults = Faults::of(&folder.path);
    let Held { scheduler, attempts, go_on } = held(&folder);
    put(&scheduler, "later", LONG).unwrap();
    assert_eq!(scheduler.pause("later").wait().unwrap(), Change::Changed);
    put(&scheduler, "runs", Duration::from_millis(300)).unwrap();
    assert_eq!(attempts.recv(), Ok(1));
    let before = flushes(&faults);
    assert_eq!(scheduler.pause("later").wait().unwrap(), Change::Changed);
    assert_eq!(flushes(&faults), before, "nothing was written");
    wait_until("the begin is flushed", || flushes(&faults) > before);
    let _ = go_on.send(());
}

/// The kernel does not tell a process of a failure before that process opened the log.
#[test]
fn k7_a_store_that_is_opened_after_a_flush_that_failed_leaves_no_hole() {
    let folder = Folder::new("disk");
    let faults = Faults::of(&folder.path);
    let held = held(&folder);
    is_whole_after_a_flush_that_failed(&faults, &held, |key| {
        let other = Scheduler::open(folder.file()).start().unwrap();
        put(&other, key, LONG).unwrap();
    });
}
