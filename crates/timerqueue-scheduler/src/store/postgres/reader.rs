//! The thread that reads: lists and counts, beside the writer.
//!
//! Ground rules. A connection of its own, so that no settle waits for a list. A list is read in
//! sections, between which other questions are answered. A statement whose caller waits no longer
//! is cancelled. Once all schedulers of the store have left, each answer may take no longer than
//! [`HURRY`]: their ends wait for counts.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::error::{Failure, Remedy};
use super::link::{HURRY, Link};
use super::rows;
use super::{Settings, Shared};
use crate::store::columns::{joined, read_names};
use crate::store::questions::{Asked, Listing, Question, Questions};
use crate::store::sql::{history, looks};
use crate::store::{Counts, FinishedJob, HistoryQuery, JobId, JobInfo, Micros, NodeId, Query, Scan, Scanned, State};
use crate::unwind::quietly;

pub(super) struct Reader {
    pub(super) shared: Arc<Shared>,
    /// Opened again after a failure.
    pub(super) link: Option<Link>,
}

/// A connection for lists. The first rows of a list stand in the order of an index. By its
/// statistics the server takes a condition such as `wake = due` for a rare one, and would fetch all
/// rows of a handler, by a bitmap, to sort them.
pub(super) fn open(settings: &Settings, within: Duration) -> Result<Link, Failure> {
    Link::open_with(settings, within, &[("enable_bitmapscan", "off".to_owned())])
}

/// The columns of a row and the name of its handler.
macro_rules! infos {
    ($condition:expr) => {
        joined!([
            "SELECT ",
            read_names!(Server, "job."),
            ", CASE WHEN job.state = 2 THEN (SELECT m.id FROM members AS m WHERE m.owner = job.owner AND NOT m.dead LIMIT 1) END, \
             handler.name FROM jobs AS job JOIN handlers AS handler ON handler.id = job.handler WHERE ",
            $condition
        ])
    };
    ($which:expr, $begin:expr, $end:expr) => {
        joined!([
            infos!($which),
            " AND ",
            $begin,
            " AND ($2::bigint IS NULL OR job.state = $2) AND ($3::text IS NULL OR handler.name = $3) \
             AND ($4::text IS NULL OR starts_with(job.key, $4)) \
             AND (NOT $6::boolean OR (job.state = 0 AND job.error IS NOT NULL))",
            $end
        ])
    };
}

/// The list of some jobs, in both orders. A condition that is known when the statement is planned
/// finds its index.
macro_rules! lists {
    ($which:literal) => {
        [
            infos!($which, "job.id > $1", " ORDER BY job.id LIMIT $5"),
            infos!($which, "job.id < $1", " ORDER BY job.id DESC LIMIT $5"),
        ]
    };
}

impl Reader {
    pub(super) fn run(mut self, questions: &Questions) {
        while let Some(question) = questions.next() {
            let mut scanned = self.scan(&question);
            // A connection may have been lost long ago.
            let is_hurried = self.shared.leaving.load(Ordering::Acquire) || !question.reply.is_awaited();
            if scanned.as_ref().is_err_and(|failure| failure.remedy == Remedy::Reconnect) && !is_hurried {
                self.link = None;
                scanned = self.scan(&question);
            }
            if scanned.is_err() {
                self.link = None;
            }
            match (scanned, &question.asked) {
                (Ok(Scanned::Jobs(jobs)), Asked::List(_)) => {
                    quietly(|| question.take_in(jobs).into_iter().for_each(|rest| questions.go_on(rest)));
                }
                (scanned, _) => quietly(|| question.reply.send(scanned.map_err(|failure| failure.error()))),
            }
        }
    }

    fn scan(&mut self, question: &Question) -> Result<Scanned, Failure> {
        let link = match self.link.take() {
            Some(link) => link,
            None => {
                let (settings, leaving) = (&self.shared.settings, &self.shared.leaving);
                let is_hurried = leaving.load(Ordering::Acquire);
                let within = if is_hurried { HURRY.min(settings.patience) } else { settings.patience };
                let mut link = open(settings, within).map_err(Failure::while_open)?;
                link.hurry = Some(Arc::clone(leaving));
                link
            }
        };
        let link = self.link.insert(link);
        *link.awaited.borrow_mut() = question.reply.awaited();
        let scan = match &question.asked {
            Asked::List(listing) => {
                let (query, most) = listing.rest();
                return section(link, query, most).map(Scanned::Jobs);
            }
            Asked::Scan(scan) => scan,
        };
        match scan {
            // No text of the server has a NUL.
            Scan::Get(key) if key.contains('\0') => Ok(Scanned::Jobs(Vec::new())),
            Scan::Job(id) => get_by_id(link, *id).map(|job| Scanned::Jobs(job.into_iter().collect())),
            Scan::Finished(id) => history::one(link, *id).map(|job| Scanned::Finished(job.map(Box::new))),
            Scan::History(query) => history(link, query).map(Scanned::History),
            Scan::Zoned { name, .. } if name.contains('\0') => Ok(Scanned::Jobs(Vec::new())),
            Scan::Zoned { name, after, limit } => zoned(link, name, *after, *limit).map(Scanned::Jobs),
            Scan::Get(key) => get(link, key).map(|job| Scanned::Jobs(job.into_iter().collect())),
            Scan::List(query) => list(link, query).map(Scanned::Jobs),
            Scan::Counts => counts(link, u64::MAX).map(Scanned::Counts),
            Scan::SomeCounts { most } => counts(link, *most).map(Scanned::Counts),
            Scan::Activity { since, window } => looks::activity(link, *since, *window).map(Scanned::Activity),
            Scan::Groups { after, limit } => looks::groups(link, *after, *limit).map(Scanned::Groups),
            Scan::Nodes { owner } => looks::nodes(link, *owner).map(Scanned::Nodes),
        }
    }
}

/// The done jobs of a query.
pub(super) fn history(link: &Link, query: &HistoryQuery) -> Result<Vec<FinishedJob>, Failure> {
    // No text of the server has a NUL.
    let texts = [&query.key, &query.name, &query.prefix];
    let is_none = texts.into_iter().flatten().any(|text| text.contains('\0'));
    if is_none { Ok(Vec::new()) } else { history::list(link, query) }
}

fn info(row: &tokio_postgres::Row) -> JobInfo {
    let node = row.get::<_, Option<i64>>(row.len() - 2).map(|id| NodeId(id as u64));
    JobInfo { node, ..rows::read(row).row.info(&row.get::<_, &str>(row.len() - 1).into()) }
}

/// The job that holds the key, or the last dead one.
pub(super) fn get(link: &Link, key: &str) -> Result<Option<JobInfo>, Failure> {
    let held = link.ask(infos!("job.key = $1 AND job.holds_key"), &[&key])?;
    if let Some(row) = held.first() {
        return Ok(Some(info(row)));
    }
    let dead = link.ask(infos!("job.key = $1 AND job.state = 3 ORDER BY job.died DESC LIMIT 1"), &[&key])?;
    Ok(dead.first().map(info))
}

pub(super) fn get_by_id(link: &Link, JobId(id): JobId) -> Result<Option<JobInfo>, Failure> {
    Ok(link.ask(infos!("job.id = $1"), &[&(id as i64)])?.first().map(info))
}

/// The jobs that run, and up to a number of those that are due within this time, without recurring
/// ones. The clock is read once, so that indexes are used.
pub(super) fn near(link: &Link, within: Micros, limit: usize) -> Result<Vec<JobInfo>, Failure> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let sql = infos!(
        "job.id IN (SELECT near.id FROM handlers h CROSS JOIN LATERAL (SELECT j.id FROM jobs j WHERE j.handler = h.id \
         AND NOT j.recurs AND j.wake <= (SELECT clock() + $1) AND j.state = 0 ORDER BY j.wake LIMIT $2) AS near) \
         OR job.id IN (SELECT bound.id FROM affinities a CROSS JOIN LATERAL (SELECT j.id FROM jobs j WHERE j.affinity_id = a.id \
         AND j.state = 0 AND j.apart <= (SELECT clock() + $1) ORDER BY j.apart LIMIT $2) AS bound \
         WHERE a.head <= (SELECT clock() + $1)) \
         OR job.id IN (SELECT other.id FROM handlers h CROSS JOIN LATERAL priorities_of(h.id) AS p (priority) \
         CROSS JOIN LATERAL (SELECT j.id FROM jobs j WHERE j.handler = h.id AND j.priority = p.priority AND j.priority <> 0 \
         AND j.state = 0 AND j.affinity_id IS NULL AND j.apart <= (SELECT clock() + $1) ORDER BY j.apart LIMIT $2) AS other) \
         OR job.id IN (SELECT held.id FROM jobs held WHERE held.state = 2)"
    );
    Ok(link.ask(sql, &[&within.as_i64(), &limit])?.iter().map(info).collect())
}

pub(super) fn list(link: &Link, query: &Query) -> Result<Vec<JobInfo>, Failure> {
    Listing::new(query.clone()).read(|rest, most| section(link, rest, most))
}

/// The next jobs of a list, at most this number.
fn section(link: &Link, query: &Query, most: usize) -> Result<Vec<JobInfo>, Failure> {
    // No text of the server has a NUL.
    let is_none = [&query.name, &query.prefix].into_iter().flatten().any(|text| text.contains('\0'));
    if is_none || most == 0 {
        return Ok(Vec::new());
    }
    if query.soonest_first {
        return soonest(link, query, most);
    }
    let lists = match query.state {
        _ if query.failing => lists!("job.state = 0 AND job.error IS NOT NULL"),
        Some(State::Queued) => lists!("job.state = 1"),
        Some(State::Running) => lists!("job.state = 2"),
        Some(State::Dead) => lists!("job.state = 3"),
        Some(State::Recurring) => lists!("job.state = 4"),
        Some(State::Waiting) | None => lists!("true"),
    };
    let (first, sql) = if query.newest_first { (i64::MAX, lists[1]) } else { (-1, lists[0]) };
    let after = query.after.map_or(first, |JobId(id)| i64::try_from(id).unwrap_or(i64::MAX));
    let state = query.state.map(|state| state as i64);
    let (name, prefix) = (query.name.as_deref(), query.prefix.as_deref());
    let rows = link.ask(sql, &[&after, &state, &name, &prefix, &(most as i64), &query.failing])?;
    Ok(rows.iter().map(info).collect())
}

/// The places and numbers of rows in the order of due times, from their place and their condition.
macro_rules! places {
    ($due:literal, $condition:literal) => {
        concat!(
            "SELECT ",
            $due,
            ", job.id FROM jobs AS job WHERE ",
            $condition,
            " AND ($1::text IS NULL OR job.handler = (SELECT id FROM handlers WHERE name = $1)) \
             AND ($2::text IS NULL OR starts_with(job.key, $2)) AND (",
            $due,
            ", job.id) > ($3::bigint, $4::bigint) ORDER BY 1, 2 LIMIT $5"
        )
    };
}

/// The first jobs of a list in the order of due times. Each source has its rows in that order or is
/// small, and is asked for no more than the list may still have.
fn soonest(link: &Link, query: &Query, most: usize) -> Result<Vec<JobInfo>, Failure> {
    const OF_HANDLERS: &str = "SELECT near.wake, near.id FROM handlers AS h CROSS JOIN LATERAL (SELECT job.wake, job.id \
         FROM jobs AS job WHERE job.handler = h.id AND NOT job.recurs AND job.wake IS NOT NULL AND job.state = 0 \
         AND job.wake = job.due AND ($2::text IS NULL OR starts_with(job.key, $2)) \
         AND (job.wake, job.id) > ($3::bigint, $4::bigint) ORDER BY job.wake, job.id LIMIT $5) AS near \
         WHERE $1::text IS NULL OR h.name = $1 ORDER BY 1, 2 LIMIT $5";
    const APART: &str = places!("job.apart", "job.state = 0 AND job.apart IS NOT NULL AND job.apart = job.due");
    const REST: &str = places!("job.due", "job.state = 0 AND coalesce(job.wake, job.apart) IS DISTINCT FROM job.due");
    const FAILING: &str = places!("job.due", "job.state = 0 AND job.error IS NOT NULL");
    const QUEUED: &str = places!("job.due", "job.state = 1");
    const RUNNING: &str = places!("job.due", "job.state = 2");
    const DEAD: &str = places!("9223372036854775807", "job.state = 3");
    const RECURRING: &str = places!(
        "coalesce(substring(job.recurring FROM '\"next\": ?\\[[0-9]{1,18}, ?([0-9]{1,18})\\]')::bigint, 9223372036854775807)",
        "job.state = 4"
    );
    let sources: &[&'static str] = match query.state {
        _ if query.failing => &[FAILING],
        Some(State::Waiting) => &[OF_HANDLERS, APART, REST],
        Some(State::Queued) => &[QUEUED],
        Some(State::Running) => &[RUNNING],
        Some(State::Dead) => &[DEAD],
        Some(State::Recurring) => &[RECURRING],
        None => &[OF_HANDLERS, APART, REST, QUEUED, RUNNING, RECURRING, DEAD],
    };
    let (due, id) = query.cursor();
    let (name, prefix) = (query.name.as_deref(), query.prefix.as_deref());
    let mut first: BTreeSet<(i64, i64)> = BTreeSet::new();
    for &sql in sources {
        if sql == DEAD && first.len() >= most {
            break; // they are the last ones
        }
        let rows = link.ask(sql, &[&name, &prefix, &due, &id, &(most as i64)])?;
        first.extend(rows.iter().map(|row| (row.get::<_, i64>(0), row.get::<_, i64>(1))));
        while first.len() > most {
            first.pop_last();
        }
    }
    let ids: Vec<i64> = first.iter().map(|&(_, id)| id).collect();
    // Between two statements a job may leave.
    let rows = link.ask(infos!("job.id = ANY($1::bigint[])"), &[&ids])?;
    let mut jobs: HashMap<i64, JobInfo> = rows.iter().map(|row| (row.get(0), info(row))).collect();
    Ok(ids.iter().filter_map(|id| jobs.remove(id)).collect())
}

/// The numbers come from the index of recurring rows that wait.
fn zoned(link: &Link, name: &str, JobId(after): JobId, limit: usize) -> Result<Vec<JobInfo>, Failure> {
    let sql = infos!(
        "job.id = ANY(ARRAY(SELECT j.id FROM jobs j WHERE j.handler = (SELECT id FROM handlers WHERE name = $1) AND j.recurs \
         AND j.wake IS NOT NULL AND j.id > $2 AND j.recurring ~ '\"zone\": ?\"' ORDER BY j.id + 0 LIMIT $3)) ORDER BY job.id"
    );
    let (after, limit) = (i64::try_from(after).unwrap_or(i64::MAX), i64::try_from(limit).unwrap_or(i64::MAX));
    Ok(link.ask(sql, &[&name, &after, &limit])?.iter().map(info).collect())
}

pub(super) fn counts(link: &Link, most: u64) -> Result<Counts, Failure> {
    let now = link.ask("SELECT clock()", &[])?;
    looks::counts(link, Micros::new(now.first().map_or(0, |row| row.get(0))), most)
}
