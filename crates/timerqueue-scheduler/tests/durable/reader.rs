//! Looks from outside, which take no part.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant, SystemTime};

use timerqueue::Runtime;
use timerqueue_scheduler::rusqlite::Connection;
use timerqueue_scheduler::store::{Fault, SqliteOptions, SqliteReader, SqliteStore};
use timerqueue_scheduler::{Error, JobId, JobInfo, Pending, Query, Scheduler, State, Until};

use crate::support::{Folder, Log, until};

const HOUR: Duration = Duration::from_secs(3_600);

fn fault<T>(result: Result<T, Error>) -> Fault {
    match result {
        Err(Error::Store { fault, .. }) => fault,
        _ => panic!("no fault of the store"),
    }
}

#[test]
fn a_reader_sees_what_a_scheduler_sees_and_is_no_process_of_the_file() {
    let folder = Folder::new();
    let scheduler = Scheduler::open(folder.file()).start().unwrap();
    let _ = scheduler.cancel("no such key").wait().unwrap(); // after the commit of its start
    let mut reader = SqliteReader::open(folder.file()).unwrap();
    assert!(!reader.has_changed().unwrap());
    for (key, due) in [("a", Duration::ZERO), ("b", Duration::from_secs(60)), ("c", HOUR)] {
        let _ = scheduler.put_to("h", &key).key(key).due(due).send().wait().unwrap();
    }
    assert!(reader.has_changed().unwrap() && !reader.has_changed().unwrap());
    assert_eq!(reader.list(&Query::new()).unwrap(), scheduler.list(Query::new()).wait().unwrap());
    assert_eq!(reader.get("b").unwrap(), scheduler.get("b").wait().unwrap());
    assert_eq!(reader.get_by_id(JobId(2)).unwrap(), reader.get("b").unwrap());
    assert_eq!((reader.get("z").unwrap(), reader.get_by_id(JobId(9)).unwrap()), (None, None));
    assert_eq!(reader.last_id().unwrap(), JobId(3));
    let near = |within, limit| -> Vec<String> {
        reader.near(within, limit).unwrap().iter().map(|job| job.key.to_string()).collect()
    };
    assert_eq!(near(Duration::from_secs(90), 9), ["a", "b"]);
    assert_eq!(near(Duration::from_secs(90), 1), ["a"]);
    let counts = reader.counts().unwrap();
    assert_eq!(counts.kinds, scheduler.stats().wait().unwrap().jobs.kinds);
    assert!(counts.oldest_overdue.is_some_and(|oldest| oldest < SystemTime::now()));
    let db = Connection::open(folder.file()).unwrap();
    let processes: i64 = db.query_row("SELECT count(*) FROM timerqueue_processes", [], |row| row.get(0)).unwrap();
    assert_eq!(processes, 1, "the scheduler");
}

#[test]
fn a_reader_sees_runs_and_done_jobs() {
    let folder = Folder::new();
    let (send, go) = std::sync::mpsc::channel::<()>();
    let go = std::sync::Mutex::new(go);
    let store = SqliteOptions::new().keep_finished(HOUR).open(Runtime::global(), folder.file()).unwrap();
    let handler = move |_: (), _: &timerqueue_scheduler::Run| _ = go.lock().unwrap().recv();
    let scheduler = Scheduler::builder().store(store).handler("h", handler).start().unwrap();
    let _ = scheduler.put_to("h", &()).key("a").send().wait().unwrap();
    let reader = SqliteReader::open(folder.file()).unwrap();
    until(|| reader.near(Duration::ZERO, 0).unwrap().first().is_some_and(|job| job.state == State::Running));
    send.send(()).unwrap();
    until(|| reader.finished(Some("a"), 9).unwrap().len() == 1);
    assert!(reader.near(HOUR, 9).unwrap().is_empty());
}

#[test]
fn a_reader_refuses_what_is_no_file_of_jobs() {
    let folder = Folder::new();
    assert_eq!(fault(SqliteReader::open(folder.file())), Fault::CannotOpen);
    assert!(!folder.file().exists(), "a reader makes no file");
    Connection::open(folder.file()).unwrap().execute_batch("CREATE TABLE mine (x)").unwrap();
    assert_eq!(fault(SqliteReader::open(folder.file())), Fault::Other);
    let db = Connection::open(folder.file()).unwrap();
    db.execute_batch("CREATE TABLE timerqueue_store (version); INSERT INTO timerqueue_store VALUES (99)").unwrap();
    assert!(matches!(fault(SqliteReader::open(folder.file())), Fault::TooNew { found: 99, .. }));
    std::fs::write(folder.file(), "no database, and longer than a header of a hundred bytes. ".repeat(9)).unwrap();
    assert_eq!(fault(SqliteReader::open(folder.file())), Fault::Damaged);
}

/// In a file that no process has open, the table of processes is empty.
#[test]
fn k8_a_check_from_outside_tells_its_parts() {
    let folder = Folder::new();
    {
        let scheduler = folder.scheduler(&Log::default());
        let _ = scheduler.put_to("log", &()).due(HOUR).send().wait().unwrap();
    }
    let reader = SqliteReader::open(folder.file()).unwrap();
    let mut parts = Vec::new();
    reader.check(|step| parts.push((step.number, step.of))).unwrap();
    assert_eq!(parts, (1..=14).map(|number| (number, 14)).collect::<Vec<_>>());
    let db = Connection::open(folder.file()).unwrap();
    db.execute("UPDATE timerqueue_jobs SET process = 99", []).unwrap();
    assert_eq!(fault(reader.check(|_| {})), Fault::Damaged);
}

#[test]
fn k8_a_wrong_row_of_the_users_is_no_damage() {
    let folder = Folder::new();
    let scheduler = folder.scheduler(&Log::default());
    let rows = "CREATE TABLE ages (age INTEGER CHECK (age > 0)); PRAGMA ignore_check_constraints = 1;
                INSERT INTO ages VALUES (-1)";
    Connection::open(folder.file()).unwrap().execute_batch(rows).unwrap();
    SqliteReader::open(folder.file()).unwrap().check(|_| {}).unwrap();
    SqliteStore::open(Runtime::global(), folder.file()).unwrap().check().unwrap();
    let _ = scheduler.put_to("log", &()).send().wait().unwrap();
}

/// Each change of a row by hand that would keep a job from running, or a binding from holding, is
/// found.
#[test]
fn k8_a_check_finds_what_is_wrong_in_rows_members_and_groups() {
    let folder = Folder::new();
    let scheduler = folder.scheduler(&Log::default());
    for (key, group) in [("a", Some("room 1")), ("b", None)] {
        let put = scheduler.put_to("log", &()).key(key).due(HOUR);
        let put = if let Some(group) = group { put.group(group) } else { put };
        let _ = put.send().wait().unwrap();
    }
    let _ = scheduler.put_to("log", &()).key("c").after(["b"], Until::AllDone).send().wait().unwrap();
    let file = Connection::open(folder.file()).unwrap();
    let copy = folder.file().with_file_name("copy.db");
    for wrong in [
        "UPDATE timerqueue_handlers SET waiting = 3",
        "UPDATE timerqueue_jobs SET handler = 77",
        "UPDATE timerqueue_jobs SET wake = NULL WHERE key = 'b'",
        "UPDATE timerqueue_jobs SET wake = wake + 1 WHERE key = 'b'",
        "UPDATE timerqueue_jobs SET apart = NULL WHERE key = 'a'",
        "UPDATE timerqueue_store SET last_id = 1",
        "UPDATE timerqueue_jobs SET process = 99",
        "UPDATE timerqueue_members SET process = 99",
        "UPDATE timerqueue_jobs SET affinity = 'room 2' WHERE key = 'a'",
        "UPDATE timerqueue_jobs SET affinity_id = NULL, wake = apart, apart = NULL WHERE key = 'a'",
        "DELETE FROM timerqueue_affinities",
        "UPDATE timerqueue_affinities SET member = 99",
        "UPDATE timerqueue_affinities SET head = NULL",
        "UPDATE timerqueue_affinities SET head = head + 1",
        "UPDATE timerqueue_affinities SET handler = 77",
        "DELETE FROM timerqueue_links",
        "UPDATE timerqueue_links SET ended = 1, seen = 1",
        "UPDATE timerqueue_jobs SET links = links & 7",
        "INSERT INTO timerqueue_finished (id, key, handler, payload, ended, last, keep_until, key_until) VALUES (9, 'k', 77, 'null', 0, NULL, 0, 0)",
    ] {
        file.execute("VACUUM INTO ?1", [copy.to_str()]).unwrap();
        let reader = SqliteReader::open(&copy).unwrap();
        reader.check(|_| {}).unwrap();
        Connection::open(&copy).unwrap().execute_batch(wrong).unwrap();
        assert_eq!(fault(reader.check(|_| {})), Fault::Damaged, "{wrong}");
        std::fs::remove_file(&copy).unwrap();
    }
    drop(scheduler);
}

#[test]
fn a_reader_leaves_the_log_of_a_killed_process() {
    let (folder, copy) = (Folder::new(), Folder::new());
    let scheduler = Scheduler::open(folder.file()).start().unwrap();
    let _ = scheduler.put_to("h", &()).key("a").due(HOUR).send().wait().unwrap();
    // As a kill would leave them.
    let log = |folder: &Folder| folder.file().with_extension("db-wal");
    std::fs::copy(folder.file(), copy.file()).unwrap();
    std::fs::copy(log(&folder), log(&copy)).unwrap();
    let files = || (std::fs::read(copy.file()).unwrap(), std::fs::read(log(&copy)).unwrap());
    let before = files();
    let reader = SqliteReader::open(copy.file()).unwrap();
    assert_eq!(reader.list(&Query::new()).unwrap().len(), 1, "what is in the log is seen");
    reader.check(|_| {}).unwrap();
    drop(reader);
    assert!(files() == before, "neither file has changed");
    let scheduler = Scheduler::open(copy.file()).start().unwrap();
    assert_eq!(scheduler.list(Query::new()).wait().unwrap().len(), 1);
}

/// A file with this number of jobs that wait.
fn many(folder: &Folder, jobs: u32) -> Scheduler {
    let scheduler = Scheduler::open(folder.file()).start().unwrap();
    let _ = scheduler.put_to("h", &()).key("first").due(HOUR).send().wait().unwrap();
    let db = Connection::open(folder.file()).unwrap();
    let rows = format!(
        "INSERT INTO timerqueue_jobs (id, key, handler, payload, state, due, wake, recurs, holds_key, paused, cancelled, attempt, \
         claims, turn, owner, died)
         WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {jobs})
         SELECT n + 1000, 'k' || n, 1, 'null', 0, 9000000000000000 - n, 9000000000000000 - n, 0, 1, 0, 0, 0, 0, 0, 0, 0 FROM n;
         UPDATE timerqueue_store SET last_id = {jobs} + 2000; UPDATE timerqueue_handlers SET waiting = {jobs} + 1"
    );
    db.execute_batch(&rows).unwrap();
    scheduler
}

#[test]
fn j14_a_long_list_holds_up_no_other_look_and_no_close() {
    let folder = Folder::new();
    drop(many(&folder, 150_000));
    let is_ready =
        |list: &mut Pending<Vec<JobInfo>>| Pin::new(list).poll(&mut Context::from_waker(Waker::noop())).is_ready();
    let passes = |_| {
        let scheduler = Scheduler::open(folder.file()).start().unwrap();
        let mut list = scheduler.list(Query::new());
        assert!(scheduler.get("first").wait().unwrap().is_some());
        let passed_by_look = !is_ready(&mut list);
        assert!(scheduler.close(Duration::from_millis(1)).wait().unwrap().is_drained());
        let passed = passed_by_look && !is_ready(&mut list);
        assert!(!passed || list.wait().unwrap().len() == 150_001);
        passed
    };
    // This thread may lose its processor until the list is there.
    assert!((0..5).any(passes), "a look and a close pass the list");
}

/// The shortest of several times.
fn best(mut run: impl FnMut()) -> Duration {
    let time = |_| {
        let begun = Instant::now();
        run();
        begun.elapsed()
    };
    (0..3).map(time).min().unwrap()
}

#[test]
fn j13_a_look_that_nobody_waits_for_is_given_up() {
    let folder = Folder::new();
    let scheduler = many(&folder, 150_000);
    let walk = || scheduler.list(Query::new().key_prefix("none"));
    let one = best(|| assert!(walk().wait().unwrap().is_empty()));
    let hundred = best(|| {
        drop((0..100).map(|_| walk()).collect::<Vec<_>>());
        assert!(scheduler.get("first").wait().unwrap().is_some());
    });
    assert!(hundred < one * 10, "{one:?} for one, {hundred:?} for a hundred");
}

#[test]
fn j13_the_first_jobs_of_a_long_list_are_those_that_are_due_first() {
    let folder = Folder::new();
    let scheduler = many(&folder, 150_000);
    let list = || scheduler.list(Query::new().state(State::Waiting)).wait().unwrap();
    let whole = best(|| assert_eq!(list().len(), 150_001));
    let mut keys: Vec<String> = Vec::new();
    let four = best(|| {
        keys.clear();
        let mut query = Query::new().soonest_first().limit(50);
        for _ in 0..4 {
            let page = scheduler.list(query.clone()).wait().unwrap();
            query = query.after_due(page[49].due, page[49].id);
            keys.extend(page.iter().map(|job| job.key.to_string()));
        }
    });
    assert!(four < whole / 2, "{four:?} for four parts, {whole:?} for all");
    let expected = ["first".to_owned()].into_iter().chain((0..199).map(|n| format!("k{}", 150_000 - n)));
    assert_eq!(keys, expected.collect::<Vec<_>>());
}
