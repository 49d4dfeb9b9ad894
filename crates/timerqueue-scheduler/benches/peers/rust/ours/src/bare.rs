//! A bare loop of SQLite on the tables of the scheduler, with its settings: what the file itself
//! costs.
//!
//! Callers hand their rows to one thread, which commits all that has come during its last commit.
//! Nothing else is done: no clock, no check of a key, no counts, no notices.

use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use timerqueue::Runtime;
use timerqueue_scheduler::rusqlite::{Connection, params};
use timerqueue_scheduler::store::SqliteStore;

use crate::common::{self, Arguments, MANY};

/// A row, in the columns that the scheduler writes.
const INSERT: &str = "INSERT INTO timerqueue_jobs (id, key, handler, payload, recurs, state, due, wake, earliest, holds_key, paused, \
    cancelled, span, nominal, parent, attempt, claims, turn, owner, process, lease, died, error, last, recurring, failures) VALUES \
    (?1, ?2, 1, ?3, 0, 0, ?4, ?4, NULL, 1, 0, 0, NULL, NULL, NULL, 0, 0, 0, 0, NULL, NULL, 0, NULL, NULL, NULL, NULL)";
const DUE: &str = "SELECT id, key, payload, due FROM timerqueue_jobs WHERE handler = 1 AND recurs = 0 AND wake <= ?1 \
    ORDER BY wake, id LIMIT ?2";
const CLAIM: &str =
    "UPDATE timerqueue_jobs SET state = 2, wake = NULL, attempt = 1, claims = 1, owner = 1, process = 1 WHERE id = ?1";
const SETTLE: &str = "DELETE FROM timerqueue_jobs WHERE id = ?1";

fn open(path: &str) -> Connection {
    drop(SqliteStore::open(Runtime::global(), path).expect("tables"));
    let db = Connection::open(path).expect("a file");
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL").expect("settings");
    db
}

struct Row {
    key: String,
    payload: String,
    due: i64,
}

fn row(key: String, after: Duration) -> Row {
    Row { key, payload: format!("\"{}\"", common::payload()), due: common::micros_now() + after.as_micros() as i64 }
}

fn insert<'r>(db: &Connection, id: &mut i64, rows: impl Iterator<Item = &'r Row>) {
    db.execute_batch("BEGIN IMMEDIATE").expect("a transaction");
    for row in rows {
        *id += 1;
        let mut insert = db.prepare_cached(INSERT).expect("a statement");
        insert.execute(params![*id, row.key, row.payload, row.due]).expect("a row");
    }
    db.execute_batch("COMMIT").expect("a commit");
}

fn put_many(db: &Connection, id: &mut i64, name: &str, after: Duration) {
    let rows: Vec<Row> = (0..MANY).map(|n| row(format!("{name}/{n}"), after)).collect();
    insert(db, id, rows.iter());
}

fn puts(arguments: &Arguments) -> f64 {
    let db = open(&arguments.place);
    let mut id = 0;
    if arguments.number == 0 {
        let (begun, mut calls) = (Instant::now(), 0);
        while begun.elapsed() < arguments.time() {
            put_many(&db, &mut id, &calls.to_string(), common::FAR);
            calls += 1;
        }
        return f64::from(calls) * MANY as f64 / begun.elapsed().as_secs_f64();
    }
    let (send, rows) = channel::<(Row, SyncSender<()>)>();
    let writer = std::thread::spawn(move || {
        while let Ok(first) = rows.recv() {
            let batch: Vec<_> = std::iter::once(first).chain(rows.try_iter()).take(1_024).collect();
            insert(&db, &mut id, batch.iter().map(|(row, _)| row));
            batch.into_iter().for_each(|(_, done)| _ = done.send(()));
        }
    });
    let call = |caller: usize, n: u64| {
        let (done, answer) = sync_channel(1);
        let send: &Sender<_> = &send;
        send.send((row(format!("{caller}/{n}"), common::FAR), done)).expect("a writer");
        answer.recv().expect("a commit");
    };
    let rate = common::call_on_threads(arguments.number, arguments.time(), call);
    drop(send);
    writer.join().expect("no panic");
    rate
}

/// Claims as many jobs as there are workers in one commit, and settles them in another one.
fn runs(arguments: &Arguments) -> f64 {
    let db = open(&arguments.place);
    let mut id = 0;
    for n in 0..common::jobs(arguments) / MANY {
        put_many(&db, &mut id, &n.to_string(), Duration::ZERO);
    }
    let (begun, mut ran) = (Instant::now(), 0);
    while begun.elapsed() < arguments.time() {
        db.execute_batch("BEGIN IMMEDIATE").expect("a transaction");
        let mut due = db.prepare_cached(DUE).expect("a statement");
        let values = params![common::micros_now(), arguments.number as i64];
        let ids: Vec<i64> =
            due.query_map(values, |row| row.get(0)).expect("rows").collect::<Result<_, _>>().expect("numbers");
        let each = |sql| {
            for id in &ids {
                db.prepare_cached(sql).expect("a statement").execute([id]).expect("a row");
            }
            db.execute_batch("COMMIT").expect("a commit");
        };
        each(CLAIM);
        db.execute_batch("BEGIN IMMEDIATE").expect("a transaction");
        each(SETTLE);
        ran += ids.len();
        if ids.is_empty() {
            break;
        }
    }
    ran as f64 / begun.elapsed().as_secs_f64()
}

/// The same with workers: one thread hands each claimed job to a thread of its own, and a commit
/// settles all that have come back during the last one, and claims jobs for the workers that are
/// free.
fn runs_on_workers(arguments: &Arguments) -> f64 {
    let db = open(&arguments.place);
    let mut id = 0;
    for n in 0..common::jobs(arguments) / MANY {
        put_many(&db, &mut id, &n.to_string(), Duration::ZERO);
    }
    let (done, ended) = channel::<(usize, i64)>();
    let workers: Vec<Sender<i64>> = (0..arguments.number)
        .map(|worker| {
            let (hand, jobs) = channel();
            let done = done.clone();
            std::thread::spawn(move || jobs.into_iter().all(|id| done.send((worker, id)).is_ok()));
            hand
        })
        .collect();
    let (begun, mut ran) = (Instant::now(), 0);
    let mut free: Vec<usize> = (0..workers.len()).collect();
    let mut settled: Vec<i64> = Vec::new();
    while begun.elapsed() < arguments.time() {
        db.execute_batch("BEGIN IMMEDIATE").expect("a transaction");
        for id in settled.drain(..) {
            db.prepare_cached(SETTLE).expect("a statement").execute([id]).expect("a row");
            ran += 1;
        }
        let mut due = db.prepare_cached(DUE).expect("a statement");
        let values = params![common::micros_now(), free.len() as i64];
        let ids: Vec<i64> =
            due.query_map(values, |row| row.get(0)).expect("rows").collect::<Result<_, _>>().expect("numbers");
        for id in &ids {
            db.prepare_cached(CLAIM).expect("a statement").execute([id]).expect("a row");
        }
        db.execute_batch("COMMIT").expect("a commit");
        for id in ids {
            let worker = free.pop().expect("as many as were asked for");
            workers[worker].send(id).expect("a worker");
        }
        if free.len() == workers.len() {
            break; // no job is left
        }
        for (worker, id) in ended.recv().into_iter().chain(ended.try_iter()) {
            free.push(worker);
            settled.push(id);
        }
    }
    f64::from(ran) / begun.elapsed().as_secs_f64()
}

pub(crate) fn drive(arguments: &Arguments) {
    match (&*arguments.contender, &*arguments.work) {
        ("bare-workers", "run") => common::answer("rate", runs_on_workers(arguments)),
        (_, "put") => common::answer("rate", puts(arguments)),
        (_, "run") => common::answer("rate", runs(arguments)),
        _ => println!("none"),
    }
}
