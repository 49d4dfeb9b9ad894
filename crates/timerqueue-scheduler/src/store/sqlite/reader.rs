//! The thread that reads: lists and counts, beside the writer.
//!
//! Ground rules. A connection of its own: a long list holds no lock that a commit needs. A list is
//! read in sections, so that the log of SQLite can be written back in between.

use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use timerqueue::Runtime;

use super::error::Failure;
use super::{FinishedJob, members, minutes, place, rows, schema, text};
use crate::scheduler::quietly;
use crate::store::rules::{WRONG_BY, span_of};
use crate::store::{Counts, JobId, JobInfo, KindCounts, Micros, Query, Reply, Scan, Scanned, State};

/// The rows of a section.
const SECTION: usize = 512;

pub(super) type Question = (Scan, Reply<Scanned>);

pub(super) struct Reader {
    pub(super) path: PathBuf,
    /// The file that was opened, by device and number.
    pub(super) file: (u64, u64),
    pub(super) busy: Duration,
    pub(super) runtime: Runtime,
    /// Opened again after a failure.
    pub(super) db: Option<Connection>,
}

impl Reader {
    pub(super) fn run(mut self, questions: &Receiver<Question>) {
        while let Ok((scan, reply)) = questions.recv() {
            let scanned = self.scan(&scan);
            if scanned.is_err() {
                self.db = None;
            }
            quietly(|| reply.send(scanned.map_err(|failure| failure.error())));
        }
    }

    fn scan(&mut self, scan: &Scan) -> Result<Scanned, Failure> {
        place::is_still(&self.path, self.file)?;
        let db = match self.db.take() {
            Some(db) => db,
            None => schema::open_reader(&self.path, self.busy)?,
        };
        let db = self.db.insert(db);
        match scan {
            Scan::Get(key) => get(db, key).map(|job| Scanned::Jobs(job.into_iter().collect())),
            Scan::List(query) => list(db, query).map(Scanned::Jobs),
            Scan::Zoned { name, after, limit } => zoned(db, name, *after, *limit).map(Scanned::Jobs),
            Scan::Counts => counts(db, Micros::floor(self.runtime.wall_now())).map(Scanned::Counts),
            Scan::Activity { since, window } => minutes::read(db, *since, *window).map(Scanned::Activity),
            Scan::Affinities { after, limit } => members::affinities(db, *after, *limit).map(Scanned::Affinities),
            Scan::Nodes { owner } => members::nodes(db, *owner).map(Scanned::Nodes),
        }
    }
}

pub(super) fn columns(index: &str) -> String {
    let columns = rows::COLUMNS.split(", ").map(|column| format!("job.{}", column.trim())).collect::<Vec<_>>();
    format!(
        "SELECT {}, handler.name FROM timerqueue_jobs AS job {index} \
         JOIN timerqueue_handlers AS handler ON handler.id = job.handler",
        columns.join(", ")
    )
}

pub(super) fn info(row: &rusqlite::Row<'_>) -> rusqlite::Result<JobInfo> {
    let name = rows::text(row, row.as_ref().column_index("name")?)?;
    Ok(rows::read(row)?.row.info(&name))
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

pub(super) fn list(db: &Connection, query: &Query) -> Result<Vec<JobInfo>, Failure> {
    let mut found = Vec::new();
    let limit = query.limit.unwrap_or(usize::MAX);
    let first = if query.newest_first { i64::MAX } else { -1 };
    let mut after = query.after.map_or(first, |JobId(id)| i64::try_from(id).unwrap_or(i64::MAX));
    let sql = list_sql(query, limit);
    while found.len() < limit {
        let section = SECTION.min(limit - found.len());
        let mut statement = db.prepare_cached(&sql)?;
        let state = query.state.map(|state| state as i64);
        let params = params![after, state, query.name, query.prefix, section as i64];
        let jobs = statement.query_map(params, info)?.collect::<Result<Vec<_>, _>>()?;
        let whole = jobs.len() == section;
        found.extend(jobs);
        match found.last().filter(|_| whole) {
            Some(last) => after = last.id.0 as i64,
            None => break,
        }
    }
    Ok(found)
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

/// The waiting jobs that are due by an instant: of each handler, and with an affinity.
fn due_soon() -> [String; 2] {
    let of_handlers = "job.handler IN (SELECT id FROM timerqueue_handlers) AND job.wake <= ?1";
    [("timerqueue_due", of_handlers), ("timerqueue_apart_due", "job.apart <= ?1")].map(|(index, due)| {
        let columns = columns(&format!("INDEXED BY {index}"));
        format!("{columns} WHERE job.recurs = 0 AND job.state = 0 AND {due} LIMIT ?2")
    })
}

pub(super) fn counts(db: &Connection, now: Micros) -> Result<Counts, Failure> {
    // One snapshot for all counts.
    let snapshot = db.unchecked_transaction()?;
    let sql = "SELECT handler.name, handler.paused, waiting, queued, running, dead, recurring, (SELECT min(wake) FROM \
               timerqueue_jobs AS job WHERE job.handler = handler.id AND job.recurs = 0 AND job.wake IS NOT NULL), \
               (SELECT count(*) FROM timerqueue_jobs AS job WHERE job.handler = handler.id AND job.state = 0 AND \
               job.error IS NOT NULL), (SELECT min(head) FROM timerqueue_affinities AS one WHERE one.handler = handler.id \
               AND head IS NOT NULL) FROM timerqueue_handlers AS handler ORDER BY handler.name";
    let mut statement = snapshot.prepare_cached(sql)?;
    let mut kinds = Vec::new();
    let mut oldest: Option<i64> = None;
    let mut handlers = statement.query([])?;
    while let Some(handler) = handlers.next()? {
        let mut states = [0; State::ALL.len()];
        for (at, count) in states.iter_mut().enumerate() {
            *count = u64::try_from(handler.get::<_, i64>(at + 2)?).unwrap_or_default();
        }
        let paused: bool = handler.get(1)?;
        let (wake, bound): (Option<i64>, Option<i64>) = (handler.get(7)?, handler.get(9)?);
        if !paused {
            oldest = [oldest, wake, bound].into_iter().flatten().min();
        }
        let failing = u64::try_from(handler.get::<_, i64>(8)?).unwrap_or_default();
        kinds.push(KindCounts::new(rows::text(handler, 0)?, paused, states).with_failing(failing));
    }
    let oldest = oldest.map(Micros::new).filter(|&wake| wake < now).map(Micros::to_system);
    // A text that is no JSON has no cursor.
    let sql = "SELECT count(*) FROM timerqueue_jobs WHERE earliest > ?1 - ?2 AND state = 4 AND json_valid(recurring) \
               AND json_extract(recurring, '$.schedule.cron') IS NOT NULL \
               AND json_extract(recurring, '$.last_nominal') > ?1";
    let ahead: i64 = snapshot.query_row(sql, (now.as_i64(), span_of(WRONG_BY)), |row| row.get(0))?;
    Ok(Counts::new(kinds, oldest, now.to_system()).with_ahead(ahead.unsigned_abs()))
}

/// Done jobs, the last ones first.
pub(super) fn finished(db: &Connection, key: Option<&str>, limit: usize) -> Result<Vec<FinishedJob>, Failure> {
    let sql = "SELECT job.id, job.key, handler.name, job.payload, job.ended, job.last FROM timerqueue_finished AS job \
               JOIN timerqueue_handlers AS handler ON handler.id = job.handler WHERE ?1 IS NULL OR job.key = ?1 \
               ORDER BY job.ended DESC, job.id DESC LIMIT ?2";
    let mut statement = db.prepare(sql)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let jobs = statement.query_map(params![key, limit], |row| {
        Ok(FinishedJob {
            id: JobId(row.get::<_, i64>(0)? as u64),
            key: rows::text(row, 1)?,
            name: rows::text(row, 2)?,
            payload: rows::text(row, 3)?,
            ended: Micros::new(row.get(4)?).to_system(),
            last: rows::text_or_null(row, 5)?.as_deref().and_then(text::read_last),
        })
    })?;
    Ok(jobs.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for sql in due_soon().into_iter().chain([running()]) {
            let plan = plan(&db, &sql);
            assert!(plan.contains("SEARCH job USING") && !plan.contains("SCAN job"), "{sql}: {plan}");
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
