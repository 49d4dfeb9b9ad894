//! The check of a whole file.

use rusqlite::Connection;

use super::error::Failure;
use crate::store::Fault;

/// The most faults of SQLite's own check that are listed.
const LISTED: u32 = 10;

/// A part of a check that is about to begin: [`SqliteReader::check`](super::SqliteReader::check).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckStep {
    /// The number of the part, from 1.
    pub number: usize,
    /// The number of all parts.
    pub of: usize,
    /// What this part reads, in English.
    pub what: &'static str,
}

/// Queries that find nothing in a file that is right, with what they find otherwise.
const WRONG: &[(&str, &str)] = &[
    (
        "a count of a handler differs from its rows",
        "SELECT handler.name FROM timerqueue_handlers AS handler WHERE (waiting, queued, running, dead, recurring) IS NOT ( \
         SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1), count(*) FILTER (WHERE state = 2), \
         count(*) FILTER (WHERE state = 3), count(*) FILTER (WHERE state = 4) FROM timerqueue_jobs AS job \
         WHERE job.handler = handler.id)",
    ),
    (
        "a job has no handler",
        "SELECT id FROM timerqueue_jobs WHERE handler NOT IN (SELECT id FROM timerqueue_handlers) LIMIT 1",
    ),
    ("a dead job holds its key", "SELECT id FROM timerqueue_jobs WHERE state = 3 AND holds_key = 1 LIMIT 1"),
    (
        "a job has a number that was not given",
        "SELECT id FROM timerqueue_jobs WHERE id > (SELECT last_id FROM timerqueue_store) LIMIT 1",
    ),
    (
        "a run is held by a process that is not registered",
        "SELECT id FROM timerqueue_jobs WHERE process IS NOT NULL AND process NOT IN (SELECT id FROM timerqueue_processes) LIMIT 1",
    ),
];

/// What the parts of a check read: the whole file, and each of [`WRONG`].
const PARTS: [&str; 6] = [
    "all pages, rows and indexes",
    "the counts of the handlers",
    "the handlers of the jobs",
    "the keys of dead jobs",
    "the numbers of the jobs",
    "the holders of runs",
];

const _: () = assert!(PARTS.len() == WRONG.len() + 1);

pub(super) fn check(db: &Connection, mut begins: impl FnMut(CheckStep)) -> Result<(), Failure> {
    let mut step = |number, what| begins(CheckStep { number, of: PARTS.len(), what });
    // One snapshot for all queries.
    let snapshot = db.unchecked_transaction()?;
    step(1, PARTS[0]);
    let mut statement = snapshot.prepare(&format!("PRAGMA integrity_check({LISTED})"))?;
    let found = statement.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
    if found != ["ok"] {
        return Err(Failure::new(Fault::Damaged, found.join("; ")));
    }
    for (at, (wrong, sql)) in WRONG.iter().enumerate() {
        step(at + 2, PARTS[at + 1]);
        if snapshot.prepare(sql)?.exists([])? {
            return Err(Failure::new(Fault::Damaged, *wrong));
        }
    }
    Ok(())
}
