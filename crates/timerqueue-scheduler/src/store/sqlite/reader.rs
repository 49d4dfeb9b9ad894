//! The thread that reads: lists and counts, beside the writer.
//!
//! Ground rules. A connection of its own: a long list holds no lock that a commit needs. A list is
//! read in sections, so that the log of SQLite can be written back in between, and other questions
//! are answered. A statement whose caller waits no longer is interrupted. Once all schedulers of
//! the store have left, so is one that takes longer than [`HURRY`]: their ends wait for counts.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rusqlite::Connection;
use timerqueue::Runtime;

use super::error::Failure;
use super::{FinishedJob, place, rows, schema};
use crate::store::columns::joined;
use crate::store::questions::{Asked, Questions};
use crate::store::reply::Awaited;
use crate::store::sql::looks::Look;
use crate::store::sql::{FILE, history, looks, values};
use crate::store::{HistoryQuery, JobInfo, Micros, NodeId, Scanned};

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
            questions.answer(question, scanned.map_err(|failure| failure.error()));
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
        looks::answer(db, asked, Some(Micros::floor(self.runtime.wall_now())))
    }
}

/// A job for people.
pub(super) fn info(row: &rusqlite::Row<'_>) -> rusqlite::Result<JobInfo> {
    let behind = rows::COUNT;
    let (node, name) = (row.get::<_, Option<i64>>(behind)?, rows::text(row, behind + 1)?);
    let node = node.map(|id| NodeId(id as u64));
    Ok(JobInfo { node, ..rows::read(row)?.row.info(&name) })
}

/// The statement for the jobs of an index.
macro_rules! infos {
    ($index:literal, $condition:literal) => {
        joined!([
            FILE.infos,
            " INDEXED BY timerqueue_",
            $index,
            " JOIN timerqueue_handlers AS handler ON handler.id = job.handler WHERE ",
            $condition
        ])
    };
}

const RUNNING: &str = infos!("held", "job.process IS NOT NULL AND job.state = 2");

/// The waiting jobs that are due by an instant: of each handler, and with a group or a priority.
const DUE: [&str; 2] = [
    infos!(
        "due",
        "job.recurs = 0 AND job.state = 0 AND job.handler IN (SELECT id FROM timerqueue_handlers) AND job.wake <= $1 LIMIT $2"
    ),
    infos!("apart_due", "job.recurs = 0 AND job.state = 0 AND job.apart <= $1 LIMIT $2"),
];

/// The jobs that run, and some of those that are due by an instant, without recurring ones.
pub(super) fn near(db: &Connection, until: Micros, limit: usize) -> Result<Vec<JobInfo>, Failure> {
    let mut found = db.jobs(RUNNING, &[])?;
    let most = found.len().saturating_add(limit);
    for sql in DUE {
        let left = i64::try_from(most - found.len()).unwrap_or(i64::MAX);
        found.extend(db.jobs(sql, values![until, left])?);
    }
    Ok(found)
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
    use super::super::members::FIRST_GROUP;
    use super::*;
    use crate::store::sql::OF_FILE;

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
        for sql in [FILE.soonest, FILE.soonest_apart, FILE.soonest_rest, FILE.soonest_dead] {
            let plan = plan(&db, sql);
            assert!(plan.contains("SEARCH job USING") && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
        for sql in DUE.into_iter().chain([RUNNING]) {
            let plan = plan(&db, sql);
            assert!(plan.contains("SEARCH job USING") && !plan.contains("SCAN job"), "{sql}: {plan}");
        }
        // What sorts has few rows, or an order that no index has.
        let sorts = [FILE.runs, FILE.list_running, FILE.list_running_back, FILE.running, FILE.windows];
        let sorted = [FILE.soonest_failing, FILE.soonest_queued, FILE.soonest_running, FILE.soonest_recurring];
        for &sql in OF_FILE {
            if db.prepare(sql).is_err() {
                continue; // a part of a statement, or a table that comes later
            }
            let plan = plan(&db, sql) + ";";
            let scans = ["timerqueue_jobs", "job", "j"].map(|jobs| plan.contains(&format!("SCAN {jobs};")));
            assert_eq!(scans, [false; 3], "{sql}: {plan}");
            assert!(!plan.contains("TEMP B-TREE") || sorts.contains(&sql) || sorted.contains(&sql), "{sql}: {plan}");
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
        let plan_of_groups = plan(&db, FIRST_GROUP);
        assert!(
            plan_of_groups.contains("INDEX timerqueue_affinity_heads (handler=? AND member=? AND"),
            "{plan_of_groups}"
        );
        let done = [FILE.done_last, FILE.done_first, FILE.done_last_of, FILE.done_first_of, FILE.done_last_with];
        for sql in done.into_iter().chain([FILE.done_first_with, FILE.finished_over, FILE.finished_surplus]) {
            let plan = plan(&db, sql);
            let searches = plan.contains("INDEX timerqueue_finished_") && !plan.contains("SCAN ");
            assert!(searches && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
        let lists =
            [FILE.list_dead, FILE.list_queued, FILE.list_recurring, FILE.list_failing].map(|sql| (sql, "rowid>?"));
        let back = [FILE.list_dead_back, FILE.list_queued_back, FILE.list_recurring_back, FILE.list_failing_back];
        for (sql, behind) in lists.into_iter().chain(back.map(|sql| (sql, "rowid<?"))) {
            let plan = plan(&db, sql);
            let searches = plan.contains("SEARCH job USING INDEX") && plan.contains(behind);
            assert!(searches && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
        drop(db);
        for beside in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{beside}", path.display()));
        }
    }
}
