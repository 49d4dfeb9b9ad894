//! The check of a whole file.

use rusqlite::{Connection, ffi};

use super::error::Failure;
use crate::store::{CheckStep, Fault};

/// The most faults of SQLite's own check that are listed.
const LISTED: u32 = 10;

/// A part of the check, what it finds wrong, and a query that finds nothing in a file that is
/// right.
type Part = (&'static str, &'static str, &'static str);

const ROWS: &[Part] = &[
    (
        "the counts of the handlers",
        "a count of a handler differs from its rows",
        "SELECT handler.name FROM timerqueue_handlers AS handler WHERE (waiting, queued, running, dead, recurring) IS NOT ( \
         SELECT count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 1), count(*) FILTER (WHERE state = 2), \
         count(*) FILTER (WHERE state = 3), count(*) FILTER (WHERE state = 4) FROM timerqueue_jobs AS job \
         WHERE job.handler = handler.id)",
    ),
    (
        "the handlers of the jobs",
        "a job has no handler",
        "SELECT id FROM timerqueue_jobs WHERE handler NOT IN (SELECT id FROM timerqueue_handlers) LIMIT 1",
    ),
    (
        "the wake instants of the jobs",
        "a job that waits has no wake instant, or one that is not its due time",
        "SELECT id FROM timerqueue_jobs WHERE state = 0 AND \
         (CASE WHEN affinity_id IS NULL AND priority = 0 THEN wake ELSE apart END) IS NOT (CASE WHEN paused THEN NULL ELSE due END) LIMIT 1",
    ),
    (
        "the priorities of the jobs",
        "a job has a priority that its handler does not know",
        "SELECT job.id FROM timerqueue_jobs AS job JOIN timerqueue_handlers AS handler ON handler.id = job.handler \
         WHERE priority <> 0 AND state IN (0, 4) AND affinity_id IS NULL AND (priorities >> (priority + 9)) & 1 = 0 LIMIT 1",
    ),
    (
        "the keys of dead jobs",
        "a dead job holds its key",
        "SELECT id FROM timerqueue_jobs WHERE state = 3 AND holds_key = 1 LIMIT 1",
    ),
    (
        "the numbers of the jobs",
        "a job has a number that was not given",
        "SELECT id FROM timerqueue_jobs WHERE id > (SELECT last_id FROM timerqueue_store) LIMIT 1",
    ),
    (
        "the holders of runs",
        "a run is held by a process that is not registered",
        "SELECT id FROM timerqueue_jobs WHERE process IS NOT NULL AND process NOT IN (SELECT id FROM timerqueue_processes) LIMIT 1",
    ),
    (
        "the members",
        "a member is of a process that is not registered",
        "SELECT id FROM timerqueue_members WHERE dead = 0 AND process NOT IN (SELECT id FROM timerqueue_processes) LIMIT 1",
    ),
    (
        "the groups of the jobs",
        "a job has a group that is none of its handler",
        "SELECT job.id FROM timerqueue_jobs AS job LEFT JOIN timerqueue_affinities AS one ON one.id = job.affinity_id \
         WHERE (job.affinity IS NOT NULL OR job.affinity_id IS NOT NULL) \
         AND (one.handler, one.affinity) IS NOT (job.handler, job.affinity) LIMIT 1",
    ),
    (
        "the members of the groups",
        "a group is bound to a member that does not exist",
        "SELECT id FROM timerqueue_affinities WHERE member <> 0 AND member NOT IN (SELECT id FROM timerqueue_members) LIMIT 1",
    ),
    // A head that is too early costs a look, and nothing else.
    (
        "the heads of the groups",
        "the jobs of a group would be looked at too late",
        "SELECT one.id FROM timerqueue_affinities AS one WHERE next = 0 AND (most = 0 OR most > \
         (SELECT count(*) FROM timerqueue_jobs AS job WHERE job.affinity_id = one.id AND job.state = 2)) \
         AND coalesce(head, 9223372036854775807) > (SELECT min(apart) FROM timerqueue_jobs AS job \
         WHERE job.affinity_id = one.id AND job.state = 0 AND job.apart IS NOT NULL) LIMIT 1",
    ),
    // An end that was not looked at is of a process with an older version.
    (
        "the jobs that wait for others",
        "a job waits for another one that is not there or has ended",
        "SELECT id FROM timerqueue_jobs AS job WHERE state = 1 AND links & 7 AND (NOT EXISTS (SELECT 1 FROM timerqueue_links \
         WHERE follower = job.id AND (ended IS NULL OR seen = 0 OR (ended = 2 AND job.links & 7 = 1))) \
         OR EXISTS (SELECT 1 FROM timerqueue_links AS link WHERE follower = job.id AND ended IS NULL \
         AND NOT EXISTS (SELECT 1 FROM timerqueue_jobs AS one WHERE one.id = link.predecessor AND one.links & 8 AND one.state <> 3))) LIMIT 1",
    ),
    (
        "the handlers of counts and of done jobs",
        "a count of a minute, a group or a done job has no handler",
        "SELECT handler FROM (SELECT handler FROM timerqueue_minutes UNION SELECT handler FROM timerqueue_affinities \
         UNION SELECT handler FROM timerqueue_finished) WHERE handler NOT IN (SELECT id FROM timerqueue_handlers) LIMIT 1",
    ),
];

/// All parts: the first one is SQLite's own.
const PARTS: usize = ROWS.len() + 1;

/// Whether a line of SQLite's own check says that a page could not be read: the file may be right,
/// and what follows from that page in further lines proves nothing.
fn is_unread(line: &str) -> bool {
    let codes = line.split("unable to get the page. error code=").skip(1);
    codes
        .filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<i32>().ok())
        .any(|code| !matches!(code & 0xff, ffi::SQLITE_CORRUPT | ffi::SQLITE_NOTADB))
}

pub(super) fn check(db: &Connection, mut begins: impl FnMut(CheckStep)) -> Result<(), Failure> {
    let mut step = |number, what| begins(CheckStep { number, of: PARTS, what });
    // One snapshot for all queries.
    let snapshot = db.unchecked_transaction()?;
    step(1, "all pages, rows and indexes");
    let mut statement = snapshot.prepare(&format!("PRAGMA integrity_check({LISTED})"))?;
    let found = statement.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
    if found != ["ok"] {
        let fault = if found.iter().any(|line| is_unread(line)) { Fault::Io } else { Fault::Damaged };
        return Err(Failure::new(fault, found.join("; ")));
    }
    for (at, (what, wrong, sql)) in ROWS.iter().enumerate() {
        step(at + 2, what);
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
