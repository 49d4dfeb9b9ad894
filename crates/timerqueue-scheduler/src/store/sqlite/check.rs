//! The check of a whole file.

use rusqlite::{Connection, ffi};

use super::error::Failure;
use crate::store::{CheckStep, Fault};

/// The most faults of SQLite's own check that are listed.
const LISTED: u32 = 10;

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

/// Whether a line of SQLite's own check says that a page could not be read: the file may be right, and what follows from that page in
/// further lines proves nothing.
fn is_unread(line: &str) -> bool {
    let codes = line.split("unable to get the page. error code=").skip(1);
    codes
        .filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<i32>().ok())
        .any(|code| !matches!(code & 0xff, ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB))
}

pub(super) fn check(db: &Connection, mut begins: impl FnMut(CheckStep)) -> Result<(), Failure> {
    let mut step = |number, what| begins(CheckStep { number, of: PARTS.len(), what });
    // One snapshot for all queries.
    let snapshot = db.unchecked_transaction()?;
    step(1, PARTS[0]);
    let mut statement = snapshot.prepare(&format!("PRAGMA integrity_check({LISTED})"))?;
    let found = statement.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
    if found != ["ok"] {
        let fault = if found.iter().any(|line| is_unread(line)) { Fault::Io } else { Fault::Damaged };
        return Err(Failure::new(fault, found.join("; ")));
    }
    for (at, (wrong, sql)) in WRONG.iter().enumerate() {
        step(at + 2, PARTS[at + 1]);
        if snapshot.prepare(sql)?.exists([])? {
            return Err(Failure::new(Fault::Damaged, *wrong));
        }
    }
    Ok(())
}

#[test]
fn a_page_that_cannot_be_read_is_no_damage() {
    assert!(is_unread("*** in database main ***\nTree 9 page 9: unable to get the page. error code=266"));
    assert!(!is_unread("Tree 9 page 9: unable to get the page. error code=11; wrong # of entries in index a"));
    assert!(!is_unread("wrong # of entries in index a"));
}
