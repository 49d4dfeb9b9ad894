//! Jobs that wait for others, over restarts and processes.

use std::time::Duration;

use timerqueue_scheduler::rusqlite::{Connection, TransactionBehavior};
use timerqueue_scheduler::store::SqliteReader;
use timerqueue_scheduler::{Cancel, Scheduler, State, Until};

use crate::support::{Folder, LONG, Log, until};

/// A process with an older version of this library takes rows out by these statements.
#[test]
fn j36_ends_by_processes_of_older_versions_are_seen() {
    let folder = Folder::new();
    let log = Log::default();
    let scheduler = folder.scheduler(&log);
    let far = Duration::from_secs(3_600);
    for key in ["a", "b"] {
        assert!(scheduler.put_to("log", &()).key(key).due(far).send().wait().unwrap().added().is_some());
    }
    let put = |key: &str, of: &str| scheduler.put_to("log", &()).key(key).after([of], Until::AllEnded).send();
    assert!(put("after a", "a").wait().unwrap().added().is_some());
    assert!(put("after b", "b").wait().unwrap().added().is_some());
    let take_out = |key: &str| {
        let mut old = Connection::open(folder.file()).unwrap();
        old.busy_timeout(LONG).unwrap();
        let transaction = old.transaction().unwrap();
        transaction.execute("DELETE FROM timerqueue_jobs WHERE key = ?1", [key]).unwrap();
        transaction.execute("UPDATE timerqueue_handlers SET waiting = waiting - 1 WHERE name = 'log'", []).unwrap();
        transaction.commit().unwrap();
    };
    take_out("a");
    // Such a process gives a notice of its commit; here the next commit of this one finds it.
    let _ = scheduler.put_to("other", &()).due(far).send().wait().unwrap();
    until(|| log.keys() == ["after a"]);
    drop(scheduler);
    // And while no process of this version has the file open.
    take_out("b");
    let scheduler = folder.scheduler(&log);
    until(|| log.keys() == ["after a", "after b"]);
    until(|| scheduler.stats().wait().unwrap().jobs.of(State::Running) == 0);
    drop(scheduler);
    SqliteReader::open(folder.file()).unwrap().check(|_| ()).unwrap();
}

/// The predecessor, its end and its follower are one commit.
#[test]
fn j36_a_follower_waits_over_restarts() {
    let folder = Folder::new();
    let log = Log::default();
    let scheduler = Scheduler::open(folder.file()).start().unwrap();
    let a = scheduler.put_to("log", &()).key("a");
    let b = scheduler.put_to("log", &()).key("b").after(["a"], Until::AllDone);
    assert!(scheduler.put_many([a, b]).wait().unwrap().into_iter().all(|placed| placed.unwrap().added().is_some()));
    drop(scheduler);
    let front = Scheduler::open(folder.file()).start().unwrap();
    let job = front.get("b").wait().unwrap().unwrap();
    assert_eq!((job.state, job.predecessors.len(), job.predecessors[0].end), (State::Queued, 1, None));
    drop(front);
    let worker = folder.scheduler(&log);
    until(|| log.keys() == ["a", "b"]);
    drop(worker);
}

/// Of a copy with what its followers wait for, these wait again; what a copy has lost has left
/// undone.
#[test]
fn j36_what_a_copy_has_lost_leaves_no_follower_waiting() {
    let folder = Folder::new();
    let log = Log::default();
    let scheduler = Scheduler::open(folder.file()).start().unwrap();
    let put = |key: &str| scheduler.put_to("log", &()).key(key);
    let puts = [
        put("there"),
        put("lost"),
        put("after there").after(["there"], Until::AllDone),
        put("after lost").after(["there", "lost"], Until::AllEnded),
        put("strict").after(["lost"], Until::AllDone),
    ];
    assert!(scheduler.put_many(puts).wait().unwrap().into_iter().all(|placed| placed.unwrap().added().is_some()));
    drop(scheduler);
    let copy = folder.file().with_file_name("copy.db");
    let db = Connection::open(folder.file()).unwrap();
    db.execute("VACUUM INTO ?1", [copy.to_str()]).unwrap();
    drop(db);
    let db = Connection::open(&copy).unwrap();
    db.execute_batch(
        "UPDATE timerqueue_jobs SET links = NULL WHERE key = 'lost'; DELETE FROM timerqueue_jobs WHERE key = 'lost'; \
         UPDATE timerqueue_handlers SET waiting = waiting - 1",
    )
    .unwrap();
    drop(db);
    let reader = SqliteReader::open(&copy).unwrap();
    assert!(reader.check(|_| ()).is_err());
    let worker = log.handler(Scheduler::open(&copy)).start().unwrap();
    until(|| log.keys() == ["after lost", "after there", "there"]);
    until(|| worker.get("strict").wait().unwrap().is_some_and(|job| job.state == State::Dead));
    drop(worker);
    reader.check(|_| ()).unwrap();
}

/// In a transaction of the user's: the put, and the end of the predecessor.
#[test]
fn j36_k5_a_transaction_of_the_users_puts_followers_and_lets_them_go_on() {
    let folder = Folder::new();
    let log = Log::default();
    let mut db = Connection::open(folder.file()).unwrap();
    db.busy_timeout(LONG).unwrap();
    db.pragma_update(None, "journal_mode", "wal").unwrap();
    let scheduler = folder.scheduler(&log);
    let far = Duration::from_secs(3_600);
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let _ = scheduler.put_to("log", &()).key("a").due(far).send_in(&transaction).unwrap().added().unwrap();
    let end = scheduler.put_to("log", &()).key("end").after(["a"], Until::AllEnded);
    let _ = end.send_in(&transaction).unwrap().added().unwrap();
    transaction.commit().unwrap();
    assert_eq!(scheduler.get("end").wait().unwrap().unwrap().state, State::Queued);
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    assert_eq!(scheduler.cancel_in("a", &transaction).unwrap(), Cancel::Cancelled);
    transaction.commit().unwrap();
    until(|| log.keys() == ["end"]);
}
