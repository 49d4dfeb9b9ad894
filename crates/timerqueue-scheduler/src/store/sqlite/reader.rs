//! The thread that reads: lists and counts, beside the writer.
//!
//! Ground rules. A connection of its own: a long list holds no lock that a commit needs. A list is
//! read in sections, so that the log of SQLite can be written back in between, and other questions
//! are answered. A statement whose caller waits no longer is interrupted. Once all schedulers of
//! the store have left, so is one that takes longer than [`HURRY`]: their ends wait for counts.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension, params};
use timerqueue::Runtime;

use super::error::Failure;
use super::{FinishedJob, place, rows, schema};
use crate::store::questions::{Asked, Listing, Questions, SECTION};
use crate::store::reply::Awaited;
use crate::store::sql::{history, looks};
use crate::store::{Counts, HistoryQuery, JobId, JobInfo, Micros, NodeId, Query, Scan, Scanned, State};
use crate::unwind::quietly;

/// How long a statement may take that the end of a store waits for.
const HURRY: Duration = Duration::from_secs(1);

/// The instructions of SQLite between two looks whether a statement is to go on: some milliseconds.
const INSTRUCTIONS: std::ffi::c_int = 50_000;

pub(super) struct Reader {
    pub(super) path: PathBuf,
    /// The file that was opened, by device and number.
    pub(super) file: (u64, u64),
    pub(super) busy: Duration,
    pub(super) runtime: Runtime,
    /// Opened again after a failure.
    pub(super) db: Option<Connection>,
    pub(super) guard: Arc<Guard>,
}

/// Whether the statement under way is to go on.
#[derive(Default)]
pub(super) struct Guard {
    /// All schedulers of the store have left.
    pub(super) leaving: AtomicBool,
    /// When the question was taken, and whether its caller waits.
    current: Mutex<Option<(Instant, Option<Awaited>)>>,
}

impl Guard {
    fn is_over(&self) -> bool {
        self.current.lock().as_ref().is_some_and(|(begun, is_awaited)| {
            let hurries = self.leaving.load(Ordering::Acquire) && begun.elapsed() > HURRY;
            hurries || is_awaited.as_ref().is_some_and(|is_awaited| !is_awaited())
        })
    }
}

impl Reader {
    pub(super) fn run(mut self, questions: &Questions) {
        while let Some(question) = questions.next() {
            *self.guard.current.lock() = Some((Instant::now(), question.reply.awaited()));
            let scanned = self.answer(&question.asked);
            *self.guard.current.lock() = None;
            if scanned.is_err() {
                self.db = None;
            }
            match (scanned, &question.asked) {
                (Ok(Scanned::Jobs(jobs)), Asked::List(_)) => {
                    quietly(|| question.take_in(jobs).into_iter().for_each(|rest| questions.go_on(rest)));
                }
                (scanned, _) => quietly(|| question.reply.send(scanned.map_err(|failure| failure.error()))),
            }
        }
    }

    fn answer(&mut self, asked: &Asked) -> Result<Scanned, Failure> {
        place::is_still(&self.path, self.file)?;
        let db = match self.db.take() {
            Some(db) => db,
            None => schema::open_reader(&self.path, self.busy)?,
        };
        let guard = Arc::clone(&self.guard);
        let db = self.db.insert(db);
        db.progress_handler(INSTRUCTIONS, Some(move || guard.is_over()))?;
        let scan = match asked {
            Asked::List(listing) => {
                let (query, most) = listing.rest();
                return section(db, query, most).map(Scanned::Jobs);
            }
            Asked::Scan(scan) => scan,
        };
        match scan {
            Scan::Get(key) => get(db, key).map(|job| Scanned::Jobs(job.into_iter().collect())),
            Scan::Job(id) => get_by_id(db, *id).map(|job| Scanned::Jobs(job.into_iter().collect())),
            Scan::Finished(id) => history::one(db, *id).map(|job| Scanned::Finished(job.map(Box::new))),
            Scan::History(query) => history::list(db, query).map(Scanned::History),
            Scan::List(query) => list(db, query).map(Scanned::Jobs),
            Scan::Zoned { name, after, limit } => zoned(db, name, *after, *limit).map(Scanned::Jobs),
            Scan::Counts => counts(db, Micros::floor(self.runtime.wall_now()), u64::MAX).map(Scanned::Counts),
            Scan::SomeCounts { most } => counts(db, Micros::floor(self.runtime.wall_now()), *most).map(Scanned::Counts),
            Scan::Activity { since, window } => looks::activity(db, *since, *window).map(Scanned::Activity),
            Scan::Groups { after, limit } => looks::groups(db, *after, *limit).map(Scanned::Groups),
            Scan::Nodes { owner } => looks::nodes(db, *owner).map(Scanned::Nodes),
        }
    }
}

pub(super) fn columns(index: &str) -> String {
    format!(
        "SELECT {}, CASE WHEN job.state = 2 THEN (SELECT id FROM timerqueue_members AS m WHERE m.owner = job.owner AND m.dead = 0) END \
         AS node, handler.name FROM timerqueue_jobs AS job {index} \
         JOIN timerqueue_handlers AS handler ON handler.id = job.handler",
        rows::COLUMNS
    )
}

pub(super) fn info(row: &rusqlite::Row<'_>) -> rusqlite::Result<JobInfo> {
    let behind = rows::COUNT;
    let (node, name) = (row.get::<_, Option<i64>>(behind)?, rows::text(row, behind + 1)?);
    let node = node.map(|id| NodeId(id as u64));
    Ok(JobInfo { node, ..rows::read(row)?.row.info(&name) })
}

/// The job that holds the key, or the last dead one.
pub(super) fn get(db: &Connection, key: &str) -> Result<Option<JobInfo>, Failure> {
    for condition in
        ["job.key = ?1 AND job.holds_key = 1", "job.key = ?1 AND job.state = 3 ORDER BY job.died DESC LIMIT 1"]
    {
        let mut statement = db.prepare_cached(&format!("{} WHERE {condition}", columns("")))?;
        if let Some(job) = statement.query_row([key], info).optional()? {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

/// The job with a number.
pub(super) fn get_by_id(db: &Connection, JobId(id): JobId) -> Result<Option<JobInfo>, Failure> {
    let mut statement = db.prepare_cached(&format!("{} WHERE job.id = ?1", columns("")))?;
    Ok(statement.query_row([id as i64], info).optional()?)
}

pub(super) fn list(db: &Connection, query: &Query) -> Result<Vec<JobInfo>, Failure> {
    Listing::new(query.clone()).read(|rest, most| section(db, rest, most))
}

/// The next jobs of a list, at most this number.
fn section(db: &Connection, query: &Query, most: usize) -> Result<Vec<JobInfo>, Failure> {
    if most == 0 {
        return Ok(Vec::new());
    }
    if query.soonest_first {
        return soonest(db, query, most);
    }
    let first = if query.newest_first { i64::MAX } else { -1 };
    let after = query.after.map_or(first, |JobId(id)| i64::try_from(id).unwrap_or(i64::MAX));
    let mut statement = db.prepare_cached(&list_sql(query, query.limit.unwrap_or(usize::MAX)))?;
    let state = query.state.map(|state| state as i64);
    let params = params![after, state, query.name, query.prefix, most as i64];
    Ok(statement.query_map(params, info)?.collect::<Result<Vec<_>, _>>()?)
}

/// The first jobs of a list in the order of due times. Each source has its rows in that order or is
/// small, and is asked for no more than the list may still have.
fn soonest(db: &Connection, query: &Query, most: usize) -> Result<Vec<JobInfo>, Failure> {
    let (due, id) = query.cursor();
    let mut first: BTreeSet<(i64, i64)> = BTreeSet::new();
    let mut ask = |sql: &str, handler: Option<i64>| -> Result<(), Failure> {
        let last = first.last().filter(|_| first.len() >= most).map_or(i64::MAX, |&(due, _)| due);
        let mut statement = db.prepare_cached(sql)?;
        let params = params![handler, query.prefix, due, id, last, most as i64];
        for row in statement.query_map(params, |row| Ok((row.get(0)?, row.get(1)?)))? {
            first.insert(row?);
        }
        while first.len() > most {
            first.pop_last();
        }
        Ok(())
    };
    let mut handlers =
        db.prepare_cached("SELECT id, waiting FROM timerqueue_handlers WHERE ?1 IS NULL OR name = ?1")?;
    let handlers: Vec<(i64, i64)> =
        handlers.query_map([&query.name], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    let one = match (&query.name, &*handlers) {
        (None, _) => None,
        (Some(_), &[(id, _)]) => Some(id),
        (Some(_), _) => return Ok(Vec::new()), // no such handler
    };
    if query.waits() && !query.failing {
        let waiting = handlers.iter().filter(|&&(_, waiting)| waiting > 0);
        waiting.map(|&(id, _)| id).try_for_each(|id| ask(&source(OF_HANDLER), Some(id)))?;
    }
    let others = sources(query);
    others.iter().try_for_each(|sql| ask(sql, one))?;
    let mut job = db.prepare_cached(&format!("{} WHERE job.id = ?1", columns("")))?;
    // Between two statements a job may leave.
    let jobs = first.iter().filter_map(|(_, id)| job.query_row([id], info).optional().transpose());
    Ok(jobs.collect::<Result<_, _>>()?)
}

/// An index, the place of its rows in the order of due times, and its condition.
type Source = (&'static str, &'static str, &'static str);

const OF_HANDLER: Source =
    ("timerqueue_due", "job.wake", "job.handler = ?1 AND job.recurs = 0 AND job.state = 0 AND job.wake = job.due");

/// All sources but the waiting jobs of each handler. What waits is in one of the first three.
fn sources(query: &Query) -> Vec<String> {
    const APART: Source =
        ("timerqueue_apart_due", "job.apart", "job.state = 0 AND job.apart IS NOT NULL AND job.apart = job.due");
    const REST: Source =
        ("timerqueue_unlooked", "job.due", "job.state = 0 AND coalesce(job.wake, job.apart) IS NOT job.due");
    const FAILING: Source = ("timerqueue_failing_list", "job.due", "job.state = 0 AND job.error IS NOT NULL");
    const QUEUED: Source = ("timerqueue_queued_list", "job.due", "job.state = 1");
    const RUNNING: Source = ("timerqueue_held", "job.due", "job.process IS NOT NULL AND job.state = 2");
    const DEAD: Source = ("timerqueue_dead_list", LAST, "job.state = 3");
    /// A text that is no JSON has no occurrence.
    const RECURRING: Source = (
        "timerqueue_recurring",
        "coalesce(CASE WHEN json_valid(job.recurring) THEN json_extract(job.recurring, '$.next[1]') END, 9223372036854775807)",
        "job.state = 4",
    );
    let all: &[Source] = match query.state {
        _ if query.failing => &[FAILING],
        Some(State::Waiting) => &[APART, REST],
        Some(State::Queued) => &[QUEUED],
        Some(State::Running) => &[RUNNING],
        Some(State::Dead) => &[DEAD],
        Some(State::Recurring) => &[RECURRING],
        None => &[APART, REST, QUEUED, RUNNING, RECURRING, DEAD],
    };
    all.iter().map(|&one| source(one)).collect()
}

/// Behind those that are due some day.
const LAST: &str = "9223372036854775807";

fn source((index, due, condition): Source) -> String {
    // Each place is a number of a row, so an index of a constant has its rows in their order.
    let (behind, order) = match due {
        LAST => {
            ("(?3 < 9223372036854775807 OR job.id > ?4) AND ?5 = 9223372036854775807".to_owned(), "job.id".to_owned())
        }
        _ => (format!("({due}, job.id) > (?3, ?4) AND {due} <= ?5"), format!("{due}, job.id")),
    };
    format!(
        "SELECT {due}, job.id FROM timerqueue_jobs AS job INDEXED BY {index} WHERE {condition} AND (?1 IS NULL OR job.handler = ?1) \
         AND (?2 IS NULL OR substr(job.key, 1, length(?2)) = ?2) AND {behind} ORDER BY {order} LIMIT ?6"
    )
}

fn zoned(db: &Connection, name: &str, JobId(after): JobId, limit: usize) -> Result<Vec<JobInfo>, Failure> {
    let sql = format!(
        "{} WHERE job.state = 4 AND job.id > ?1 AND job.paused = 0 AND handler.name = ?2 AND job.recurring LIKE '%\"zone\":\"%' \
         ORDER BY job.id LIMIT ?3",
        columns("INDEXED BY timerqueue_recurring")
    );
    let mut statement = db.prepare_cached(&sql)?;
    let params = params![i64::try_from(after).unwrap_or(i64::MAX), name, i64::try_from(limit).unwrap_or(i64::MAX)];
    Ok(statement.query_map(params, info)?.collect::<Result<_, _>>()?)
}

fn list_sql(query: &Query, limit: usize) -> String {
    let (beyond, order) = if query.newest_first { ("<", "DESC") } else { (">", "ASC") };
    let (index, rows) = few(query, limit);
    format!(
        "{} WHERE job.id {beyond} ?1 AND (?2 IS NULL OR job.state = ?2) AND (?3 IS NULL OR handler.name = ?3) \
         AND (?4 IS NULL OR substr(job.key, 1, length(?4)) = ?4) {rows} ORDER BY job.id {order} LIMIT ?5",
        columns(index)
    )
}

/// The index that has the rows of a query and few others, in the order of their numbers, with the
/// condition of that index. Running jobs have none, since each begin of a run would write into it:
/// a short list of them sorts those that run, and a long one, which would sort them for each
/// section, reads all rows.
fn few(query: &Query, limit: usize) -> (&'static str, &'static str) {
    match query.state {
        _ if query.failing => ("INDEXED BY timerqueue_failing_list", "AND job.state = 0 AND job.error IS NOT NULL"),
        Some(State::Dead) => ("INDEXED BY timerqueue_dead_list", "AND job.state = 3"),
        Some(State::Recurring) => ("INDEXED BY timerqueue_recurring", "AND job.state = 4"),
        Some(State::Queued) => ("INDEXED BY timerqueue_queued_list", "AND job.state = 1"),
        Some(State::Running) if limit <= SECTION => ("INDEXED BY timerqueue_held", "AND job.process IS NOT NULL"),
        Some(State::Running | State::Waiting) | None => ("", ""),
    }
}

/// The jobs that run, and some of those that are due by an instant, without recurring ones.
pub(super) fn near(db: &Connection, until: Micros, limit: usize) -> Result<Vec<JobInfo>, Failure> {
    let mut found: Vec<JobInfo> = db.prepare_cached(&running())?.query_map([], info)?.collect::<Result<_, _>>()?;
    let most = found.len().saturating_add(limit);
    for sql in due_soon() {
        let left = i64::try_from(most - found.len()).unwrap_or(i64::MAX);
        let mut due = db.prepare_cached(&sql)?;
        for job in due.query_map(params![until.as_i64(), left], info)? {
            found.push(job?);
        }
    }
    Ok(found)
}

fn running() -> String {
    format!("{} WHERE job.process IS NOT NULL AND job.state = 2", columns("INDEXED BY timerqueue_held"))
}

/// The waiting jobs that are due by an instant: of each handler, and with a group.
fn due_soon() -> [String; 2] {
    let of_handlers = "job.handler IN (SELECT id FROM timerqueue_handlers) AND job.wake <= ?1";
    [("timerqueue_due", of_handlers), ("timerqueue_apart_due", "job.apart <= ?1")].map(|(index, due)| {
        let columns = columns(&format!("INDEXED BY {index}"));
        format!("{columns} WHERE job.recurs = 0 AND job.state = 0 AND {due} LIMIT ?2")
    })
}

pub(super) fn counts(db: &Connection, now: Micros, most: u64) -> Result<Counts, Failure> {
    // One snapshot for all counts.
    let snapshot = db.unchecked_transaction()?;
    looks::counts(&*snapshot, now, most)
}

/// Done jobs, the last ones first.
pub(super) fn finished(db: &Connection, key: Option<&str>, limit: usize) -> Result<Vec<FinishedJob>, Failure> {
    let mut query = HistoryQuery { key: key.map(Into::into), ..HistoryQuery::new() };
    let mut found = Vec::new();
    while found.len() < limit {
        let page = history::list(db, &query.clone().limit(limit - found.len()))?;
        let Some(last) = page.last() else { break };
        query = query.after(last.seq);
        found.extend(page);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::FILE;

    /// The plans of SQLite for a statement.
    fn plan(db: &Connection, sql: &str) -> String {
        let mut statement = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let none = vec![None::<i64>; statement.parameter_count()];
        let steps = statement.query_map(rusqlite::params_from_iter(none), |row| row.get::<_, String>(3)).unwrap();
        steps.map(Result::unwrap).collect::<Vec<_>>().join("; ")
    }

    /// A page of a list, and a look at the jobs that are due soon, cost what they find.
    #[test]
    fn no_list_reads_or_sorts_more_than_it_shows() {
        let path = std::env::temp_dir().join(format!("timerqueue-plans-{}.db", std::process::id()));
        let db = schema::open_writer(&path, Duration::from_secs(30), None).unwrap();
        let waits = [source(OF_HANDLER)].into_iter().chain(sources(&Query::new().state(State::Waiting)));
        for sql in waits.chain(sources(&Query::new().state(State::Dead))) {
            let plan = plan(&db, &sql);
            assert!(plan.contains("SEARCH job USING") && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
        for sql in due_soon().into_iter().chain([running()]) {
            let plan = plan(&db, &sql);
            assert!(plan.contains("SEARCH job USING") && !plan.contains("SCAN job"), "{sql}: {plan}");
        }
        // A claim reads an index alone, and that of jobs without a priority as before.
        let (first, of_priority) = (FILE.first, FILE.first_of_priority);
        for (sql, index) in [(first, "timerqueue_due"), (of_priority, "timerqueue_priorities")] {
            let plan = plan(&db, sql);
            assert!(
                plan.contains("SEARCH") && plan.contains(&format!("INDEX {index} ")) && !plan.contains("TEMP B-TREE"),
                "{plan}"
            );
        }
        let done = [FILE.done_last, FILE.done_first, FILE.done_last_of, FILE.done_first_of, FILE.done_last_with];
        for sql in done.into_iter().chain([FILE.done_first_with, FILE.finished_over, FILE.finished_surplus]) {
            let plan = plan(&db, sql);
            let searches = plan.contains("INDEX timerqueue_finished_") && !plan.contains("SCAN ");
            assert!(searches && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
        let states = [State::Dead, State::Queued, State::Recurring].map(|state| Query::new().state(state));
        for query in states.into_iter().chain([Query::new().failing()]) {
            let sql = list_sql(&query, 10);
            let plan = plan(&db, &sql);
            let searches = plan.contains("SEARCH job USING INDEX") && plan.contains("rowid>?");
            assert!(searches && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
        drop(db);
        for beside in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{beside}", path.display()));
        }
    }
}
