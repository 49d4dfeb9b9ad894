//! A row of the file as a [`Row`].

use std::sync::Arc;

use rusqlite::types::Value;
use rusqlite::{OptionalExtension, params};

use super::statements::Statements;
use super::text;
use crate::store::rules::{Lane, Recurring, Row, Tie};
use crate::store::{JobId, Micros, NewJob, State};

macro_rules! columns {
    () => {
        "id, key, handler, payload, state, due, holds_key, paused, cancelled, span, nominal, parent, attempt, claims, turn, owner, \
         process, lease, died, error, last, recurring, failures, affinity, affinity_id, counted"
    };
}

pub(super) const COLUMNS: &str = columns!();

const LOAD: &str = concat!("SELECT ", columns!(), " FROM timerqueue_jobs WHERE id = ?1");

/// A row, and the text of a schedule that cannot be read here.
pub(super) struct Read {
    pub(super) row: Box<Row>,
    pub(super) unreadable: Option<String>,
}

fn state(number: i64) -> State {
    usize::try_from(number).ok().and_then(|number| State::ALL.get(number)).copied().unwrap_or(State::Dead)
}

fn instant(micros: Option<i64>) -> Option<Micros> {
    micros.map(Micros::new)
}

/// Texts that a person has written into the file may be no UTF-8, and are shown all the same: no
/// text of the file is read in another way.
pub(super) fn text(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Arc<str>> {
    Ok(String::from_utf8_lossy(row.get_ref(column)?.as_bytes()?).into())
}

pub(super) fn text_or_null(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Option<Arc<str>>> {
    Ok(row.get_ref(column)?.as_bytes_or_null()?.map(|bytes| String::from_utf8_lossy(bytes).into()))
}

/// A number that grows by one: below zero it was written by hand.
fn count(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or_default())
}

fn tie(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<Box<Tie>>> {
    let Some(affinity) = row.get::<_, Option<i64>>(24)? else { return Ok(None) };
    let text = text_or_null(row, 23)?.unwrap_or_default();
    Ok(Some(Box::new(Tie { affinity: affinity as u64, text })))
}

/// Columns in the order of [`COLUMNS`].
pub(super) fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Read> {
    let recurring = text_or_null(row, 21)?;
    let (recurring, unreadable) = match recurring.as_deref().map(text::read_recurring) {
        None => (None, None),
        Some(Ok(recurring)) => (Some(recurring), None),
        Some(Err(reason)) => (None, Some(reason)),
    };
    let row = Row {
        id: JobId(row.get::<_, i64>(0)? as u64),
        key: text(row, 1)?,
        kind: usize::try_from(row.get::<_, i64>(2)?).unwrap_or_default(),
        payload: text(row, 3)?,
        state: state(row.get(4)?),
        due: Micros::new(row.get(5)?),
        holds_key: row.get(6)?,
        paused: row.get(7)?,
        cancelled: row.get(8)?,
        span: row.get(9)?,
        nominal: instant(row.get(10)?),
        parent: row.get::<_, Option<i64>>(11)?.map(|id| JobId(id as u64)),
        attempt: row.get::<_, i64>(12)?.try_into().unwrap_or(u32::MAX),
        claims: count(row, 13)?,
        turn: count(row, 14)?,
        owner: row.get::<_, i64>(15)? as u64,
        process: row.get::<_, Option<i64>>(16)?.unwrap_or_default(),
        lease: instant(row.get(17)?),
        died: count(row, 18)?,
        error: text_or_null(row, 19)?,
        last: text_or_null(row, 20)?.as_deref().and_then(text::read_last),
        failures: text_or_null(row, 22)?.as_deref().and_then(text::read_failures),
        recurring,
        tie: tie(row)?,
        counted: row.get(25)?,
    };
    Ok(Read { row: Box::new(row), unreadable })
}

/// The row with this number, with the runs of a recurring job.
pub(super) fn load(statements: &mut Statements<'_>, id: JobId) -> rusqlite::Result<Option<Read>> {
    let Some(mut found) = statements.get(LOAD)?.query_row([id.0 as i64], read).optional()? else { return Ok(None) };
    if let Some(recurring) = &mut found.row.recurring {
        load_runs(statements, id, recurring)?;
    }
    Ok(Some(found))
}

fn load_runs(statements: &mut Statements<'_>, id: JobId, recurring: &mut Recurring) -> rusqlite::Result<()> {
    let sql = "SELECT id, state FROM timerqueue_jobs WHERE parent = ?1 AND state <> 3 ORDER BY id";
    let statement = statements.get(sql)?;
    let mut runs = statement.query([id.0 as i64])?;
    while let Some(run) = runs.next()? {
        let (run, queued) = (JobId(run.get::<_, i64>(0)? as u64), run.get::<_, i64>(1)? == State::Queued as i64);
        if queued {
            recurring.queued.push_back(run);
        } else {
            recurring.live.push(run);
        }
    }
    Ok(())
}

fn micros(at: Option<Micros>) -> Option<i64> {
    at.map(Micros::as_i64)
}

/// The columns `wake` and `apart`.
fn wakes(row: &Row) -> (Option<i64>, Option<i64>) {
    let wake = micros(row.wake());
    if row.lane() == Lane::Handler { (wake, None) } else { (None, wake) }
}

fn process(row: &Row) -> Option<i64> {
    let held = row.state == State::Running || row.recurring.as_ref().is_some_and(|recurring| recurring.looked);
    (held && row.process != 0).then_some(row.process)
}

fn recurring(row: &Row) -> Value {
    let text = row.recurring.as_deref().and_then(|recurring| text::write_recurring(recurring).ok());
    text.map_or(Value::Null, Value::Text)
}

const INSERT: &str = "INSERT INTO timerqueue_jobs (id, key, handler, payload, recurs, state, due, wake, earliest, \
     holds_key, paused, cancelled, span, nominal, parent, attempt, claims, turn, owner, process, lease, died, error, \
     last, recurring, failures, apart, affinity, affinity_id, counted) VALUES \
     (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25, ?26, \
     ?27, ?28, ?29, ?30)";

/// A plain job that is put: most columns are the same in all of these, and a value that is bound
/// costs more than a constant.
const INSERT_PLAIN: &str = "INSERT INTO timerqueue_jobs (id, key, handler, payload, due, wake, recurs, state, holds_key, paused, cancelled, \
     attempt, claims, turn, owner, died) VALUES (?1, ?2, ?3, ?4, ?5, ?5, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0) \
     ON CONFLICT (key) WHERE holds_key = 1 DO NOTHING";

/// False: the key is taken.
pub(super) fn insert_plain(
    statements: &mut Statements<'_>,
    id: JobId,
    kind: usize,
    new: &NewJob,
    due: Micros,
) -> rusqlite::Result<bool> {
    let values = params![id.0 as i64, new.key, kind as i64, new.payload, due.as_i64()];
    Ok(statements.get(INSERT_PLAIN)?.execute(values)? == 1)
}

/// The columns of a row that the begin of a run leaves as they are. None: the row has more than a
/// plain job has.
#[derive(PartialEq, Eq)]
pub(super) struct Settled {
    due: Micros,
    flags: [bool; 3],
    parent: Option<JobId>,
    numbers: (u64, u64),
}

impl Settled {
    pub(super) fn of(row: &Row) -> Option<Self> {
        let is_plain = row.error.is_none() && row.last.is_none() && row.failures.is_none() && row.recurring.is_none();
        is_plain.then_some(Self {
            due: row.due,
            flags: [row.holds_key, row.paused, row.cancelled],
            parent: row.parent,
            numbers: (row.turn, row.died),
        })
    }
}

/// The begin of a run of a plain job: the other columns are bound and compared with their indexes
/// for nothing. No constraint of it can fail, and with `OR ROLLBACK` SQLite keeps no journal for
/// the statement.
const BEGIN: &str = "UPDATE OR ROLLBACK timerqueue_jobs SET state = ?2, wake = ?3, apart = ?4, earliest = ?5, span = ?6, attempt = ?7, \
     claims = ?8, owner = ?9, process = ?10, lease = ?11, counted = ?12 WHERE id = ?1";

fn begin(statements: &mut Statements<'_>, row: &Row) -> rusqlite::Result<()> {
    let (wake, apart) = wakes(row);
    statements.get(BEGIN)?.execute(params![
        row.id.0 as i64,
        row.state as i64,
        wake,
        apart,
        row.earliest(),
        row.span,
        row.attempt,
        row.claims as i64,
        row.owner as i64,
        process(row),
        micros(row.lease),
        row.counted,
    ])?;
    Ok(())
}

const UPDATE: &str = "UPDATE timerqueue_jobs SET state = ?2, due = ?3, wake = ?4, earliest = ?5, holds_key = ?6, \
     paused = ?7, cancelled = ?8, span = ?9, parent = ?10, attempt = ?11, claims = ?12, turn = ?13, owner = ?14, \
     process = ?15, lease = ?16, died = ?17, error = ?18, last = ?19, recurring = ?20, failures = ?21, \
     apart = ?22, counted = ?23 WHERE id = ?1";

pub(super) fn insert(statements: &mut Statements<'_>, row: &Row) -> rusqlite::Result<()> {
    statements.get(INSERT)?.execute(params![
        row.id.0 as i64,
        row.key,
        row.kind as i64,
        row.payload,
        row.recurring.is_some(),
        row.state as i64,
        row.due.as_i64(),
        wakes(row).0,
        row.earliest(),
        row.holds_key,
        row.paused,
        row.cancelled,
        row.span,
        micros(row.nominal),
        row.parent.map(|parent| parent.0 as i64),
        row.attempt,
        row.claims as i64,
        row.turn as i64,
        row.owner as i64,
        process(row),
        micros(row.lease),
        row.died as i64,
        row.error,
        row.last.as_deref().and_then(text::write_last),
        recurring(row),
        row.failures.as_deref().and_then(text::write_failures),
        wakes(row).1,
        row.tie.as_ref().map(|tie| &tie.text),
        row.tie.as_ref().map(|tie| tie.affinity as i64),
        row.counted,
    ])?;
    Ok(())
}

/// `before`: of the row as it stands in the file.
pub(super) fn update(statements: &mut Statements<'_>, row: &Row, before: Option<Settled>) -> rusqlite::Result<()> {
    if before.is_some() && before == Settled::of(row) {
        return begin(statements, row);
    }
    statements.get(UPDATE)?.execute(params![
        row.id.0 as i64,
        row.state as i64,
        row.due.as_i64(),
        wakes(row).0,
        row.earliest(),
        row.holds_key,
        row.paused,
        row.cancelled,
        row.span,
        row.parent.map(|parent| parent.0 as i64),
        row.attempt,
        row.claims as i64,
        row.turn as i64,
        row.owner as i64,
        process(row),
        micros(row.lease),
        row.died as i64,
        row.error,
        row.last.as_deref().and_then(text::write_last),
        recurring(row),
        row.failures.as_deref().and_then(text::write_failures),
        wakes(row).1,
        row.counted,
    ])?;
    Ok(())
}
