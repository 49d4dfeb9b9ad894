//! The check of a server: its rows, and how the server is.

use std::time::{Duration, Instant, SystemTime};

use serde::{Serialize, Serializer};

use super::error::Failure;
use super::link::Link;
use super::schema;
use crate::store::{CheckStep, Fault, JobId, Micros, State, form, text};

/// The rows that are read at a time.
const SECTION: i64 = 512;
/// The most rows that cannot be read which are listed.
const LISTED: usize = 10;

/// What [`PostgresReader::check`](super::PostgresReader::check) has found on a server whose rows do
/// not contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ServerReport {
    /// The version of the server, as `SHOW server_version` has it.
    pub server_version: String,
    /// The version of the tables.
    pub schema_version: u32,
    /// The number of rows that were read.
    pub jobs: u64,
    /// The first ten rows that this version cannot read, with the reason. A node leaves such a row
    /// alone.
    #[serde(serialize_with = "with_reasons")]
    pub unreadable: Vec<(JobId, String)>,
    /// By how many microseconds the server's clock is ahead of this machine's; negative if it is
    /// behind. Jobs follow the server's clock.
    #[serde(rename = "clock_ahead_seconds", serialize_with = "seconds")]
    pub clock_ahead_micros: i64,
    /// How far the difference may be wrong: half of the time that the question took.
    #[serde(rename = "clock_within_seconds", serialize_with = "form::seconds")]
    pub clock_within: Duration,
    /// The bytes of the table of jobs, without its indexes.
    pub table_bytes: u64,
    /// The bytes of the indexes of that table.
    pub index_bytes: u64,
    /// Dead rows that no vacuum has removed, as the server's statistics have it.
    pub dead_rows: u64,
    /// When autovacuum or a vacuum by hand last ended on the table of jobs.
    #[serde(serialize_with = "form::rfc3339_or_none")]
    pub vacuumed: Option<SystemTime>,
    /// Whether the server is a standby, which nodes do not use.
    #[serde(rename = "standby")]
    pub is_standby: bool,
    /// Of a standby: how long ago the last transaction that it has replayed was committed. Grows
    /// while nothing is written.
    #[serde(rename = "replay_age_seconds", serialize_with = "form::seconds_or_none")]
    pub replay_age: Option<Duration>,
    /// Of a primary: its standbys. Empty without any, and if the role may not see them (`GRANT
    /// pg_monitor`).
    pub standbys: Vec<Standby>,
}

fn seconds<S: Serializer>(micros: &i64, to: S) -> Result<S::Ok, S::Error> {
    (*micros as f64 / 1e6).serialize(to)
}

fn with_reasons<S: Serializer>(unreadable: &[(JobId, String)], to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Unreadable<'a> {
        id: JobId,
        reason: &'a str,
    }
    to.collect_seq(unreadable.iter().map(|(id, reason)| Unreadable { id: *id, reason }))
}

/// A standby, as its primary sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Standby {
    /// Its name: `application_name`.
    pub name: String,
    /// Whether a commit waits for it: `sync` or `quorum`.
    #[serde(rename = "synchronous")]
    pub is_synchronous: bool,
    /// The bytes of the log that it has yet to replay.
    pub behind_bytes: u64,
    /// How long it takes until a recent commit is replayed there. None if nothing was written for
    /// some time.
    #[serde(rename = "behind_seconds", serialize_with = "form::seconds_or_none")]
    pub behind: Option<Duration>,
}

/// Parts of the check: what each reads, what it finds wrong, and a query that finds nothing in
/// tables that are right.
const PARTS: &[(&str, &str, &str)] = &[
    (
        "the handlers of the jobs",
        "a job has no handler",
        "SELECT 1 FROM jobs j WHERE NOT EXISTS (SELECT FROM handlers h WHERE h.id = j.handler) LIMIT 1",
    ),
    (
        "the wake instants of the jobs",
        "a job that waits has no wake instant",
        "SELECT 1 FROM jobs WHERE state = 0 AND NOT paused \
         AND CASE WHEN affinity_id IS NULL AND priority = 0 THEN wake ELSE apart END IS NULL LIMIT 1",
    ),
    // A head that is too early costs a look, and nothing else.
    (
        "the heads of the groups",
        "a group has not one head, or its jobs would be looked at too late",
        "SELECT 1 FROM affinities a WHERE (SELECT count(*) FROM heads h WHERE h.id = a.id) <> 1 OR (next = 0 AND (most = 0 OR most > \
         (SELECT count(*) FROM jobs j WHERE j.affinity_id = a.id AND j.state = 2)) \
         AND coalesce((SELECT max(head) FROM heads h WHERE h.id = a.id), 9223372036854775807) > \
         (SELECT min(apart) FROM jobs j WHERE j.affinity_id = a.id AND j.state = 0)) LIMIT 1",
    ),
    ("the keys of dead jobs", "a dead job holds its key", "SELECT 1 FROM jobs WHERE state = 3 AND holds_key LIMIT 1"),
    (
        "the numbers of the jobs",
        "a job has a number that was not given",
        "SELECT 1 FROM jobs WHERE id > (SELECT last_value FROM ids) LIMIT 1",
    ),
    (
        "the members of runs",
        "a run has no member",
        "SELECT 1 FROM jobs j WHERE state = 2 AND lease IS NULL AND ended IS NULL \
         AND NOT EXISTS (SELECT FROM members m WHERE m.owner = j.owner AND NOT m.dead) LIMIT 1",
    ),
    (
        "the jobs that wait for others",
        "a job waits for another one that is not there or has ended",
        "SELECT 1 FROM jobs j WHERE state = 1 AND until IS NOT NULL AND (NOT EXISTS (SELECT FROM links l WHERE l.follower = j.id \
         AND (l.ended IS NULL OR (l.ended = 2 AND j.until = 1))) OR EXISTS (SELECT FROM links l WHERE l.follower = j.id AND l.ended IS NULL \
         AND NOT EXISTS (SELECT FROM jobs o WHERE o.id = l.predecessor AND o.followed = 1 AND o.state <> 3))) LIMIT 1",
    ),
    (
        "the indexes",
        "an index is not valid",
        "SELECT 1 FROM pg_index WHERE indrelid = 'jobs'::regclass AND NOT (indisvalid AND indisready) LIMIT 1",
    ),
    (
        "the triggers",
        "a trigger is disabled",
        "SELECT 1 FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid \
         WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'jobs'::regclass) \
         AND p.pronamespace = c.relnamespace AND tgenabled = 'D' LIMIT 1",
    ),
];

/// The number of all parts: the rows and the server follow.
const ALL: usize = PARTS.len() + 2;

pub(super) fn check(link: &Link, schema: &str, begins: &mut dyn FnMut(CheckStep)) -> Result<ServerReport, Failure> {
    let mut step = |number, what| begins(CheckStep { number, of: ALL, what });
    for (at, (what, wrong, sql)) in PARTS.iter().enumerate() {
        step(at + 1, what);
        if !link.ask(sql, &[])?.is_empty() {
            return Err(Failure::new(Fault::Damaged, *wrong));
        }
    }
    step(ALL - 1, "all rows");
    let (jobs, unreadable) = rows(link)?;
    step(ALL, "clock, sizes and replication of the server");
    let mut report = server(link, schema)?;
    (report.jobs, report.unreadable) = (jobs, unreadable);
    Ok(report)
}

/// Why this version cannot read a row.
fn fault_of(row: &tokio_postgres::Row) -> Option<String> {
    let state: i64 = row.get(1);
    if usize::try_from(state).ok().and_then(|state| State::ALL.get(state)).is_none() {
        return Some(format!("unknown state {state}"));
    }
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(row.get(2)) {
        return Some(format!("the payload is no JSON: {error}"));
    }
    let recurring: Option<&str> = row.get(3);
    if (state == State::Recurring as i64) != recurring.is_some() {
        return Some("a recurring job without a schedule, or a schedule of another job".to_owned());
    }
    if let Some(Err(reason)) = recurring.map(text::read_recurring) {
        return Some(format!("the schedule: {reason}"));
    }
    if row.get::<_, Option<&str>>(4).is_some_and(|last| text::read_last(last).is_none()) {
        return Some("the last run".to_owned());
    }
    None
}

/// The number of rows, and those that cannot be read.
fn rows(link: &Link) -> Result<(u64, Vec<(JobId, String)>), Failure> {
    let sql = "SELECT id, state, payload, recurring, last FROM jobs WHERE id > $1 ORDER BY id LIMIT $2";
    let (mut after, mut number, mut unreadable) = (i64::MIN, 0, Vec::new());
    loop {
        let rows = link.ask(sql, &[&after, &SECTION])?;
        number += rows.len() as u64;
        for row in &rows {
            after = row.get(0);
            if let Some(reason) = fault_of(row).filter(|_| unreadable.len() < LISTED) {
                unreadable.push((JobId(after as u64), reason));
            }
        }
        if (rows.len() as i64) < SECTION {
            return Ok((number, unreadable));
        }
    }
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

fn server(link: &Link, schema: &str) -> Result<ServerReport, Failure> {
    let clock = "SELECT clock()";
    link.ask(clock, &[])?; // prepares it
    let (begun, before) = (Instant::now(), Micros::floor(SystemTime::now()).as_i64());
    let server: i64 = link.ask(clock, &[])?.first().map_or(before, |row| row.get(0));
    let within = begun.elapsed() / 2;
    let sql = "SELECT current_setting('server_version'), pg_table_size('jobs'), pg_indexes_size('jobs'), \
               (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relid = 'jobs'::regclass), \
               (SELECT (extract(epoch FROM greatest(last_vacuum, last_autovacuum)) * 1000000)::bigint \
                FROM pg_stat_user_tables WHERE relid = 'jobs'::regclass), pg_is_in_recovery(), \
               (extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) * 1000000)::bigint, \
               (SELECT version FROM store)";
    let rows = link.ask(sql, &[])?;
    let row = rows.first().ok_or_else(|| Failure::new(Fault::Damaged, format!("{schema}: no row of the store")))?;
    let age: Option<i64> = row.get(6);
    Ok(ServerReport {
        server_version: row.get(0),
        schema_version: row.get::<_, Option<i64>>(7).map_or(schema::VERSION, |version| version as u32),
        jobs: 0,
        unreadable: Vec::new(),
        clock_ahead_micros: server - before - i64::try_from(within.as_micros()).unwrap_or_default(),
        clock_within: within,
        table_bytes: unsigned(row.get(1)),
        index_bytes: unsigned(row.get(2)),
        dead_rows: unsigned(row.get::<_, Option<i64>>(3).unwrap_or_default()),
        vacuumed: row.get::<_, Option<i64>>(4).map(|at| Micros::new(at).to_system()),
        is_standby: row.get(5),
        replay_age: age.map(|age| Duration::from_micros(unsigned(age))),
        standbys: standbys(link)?,
    })
}

/// Other roles than `pg_monitor` see standbys without their figures.
fn standbys(link: &Link) -> Result<Vec<Standby>, Failure> {
    let sql = "SELECT application_name, sync_state IN ('sync', 'quorum'), \
               (CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn) END)::bigint, \
               (extract(epoch FROM replay_lag) * 1000000)::bigint \
               FROM pg_stat_replication WHERE replay_lsn IS NOT NULL ORDER BY application_name";
    let standby = |row: &tokio_postgres::Row| Standby {
        name: row.get::<_, Option<String>>(0).unwrap_or_default(),
        is_synchronous: row.get::<_, Option<bool>>(1).unwrap_or_default(),
        behind_bytes: unsigned(row.get::<_, Option<i64>>(2).unwrap_or_default()),
        behind: row.get::<_, Option<i64>>(3).map(|lag| Duration::from_micros(unsigned(lag))),
    };
    Ok(link.ask(sql, &[])?.iter().map(standby).collect())
}
