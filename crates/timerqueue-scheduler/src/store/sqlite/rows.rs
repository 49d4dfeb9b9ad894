//! A row of the file as a [`Row`], by the table of columns.

use std::sync::{Arc, LazyLock};

use rusqlite::types::ValueRef;
use rusqlite::{Params, params};

use super::statements::Statements;
use crate::store::columns::{Cell, Column, Read, columns, joined, names, read_names};
use crate::store::rules::Row;
use crate::store::{JobId, Micros, NewJob};

const READ: &[&Column] = &columns!(File, Read);
const PUT: &[&Column] = &columns!(File, Put);
const CHANGED: &[&Column] = &columns!(File, Changed);
const BEGUN: &[&Column] = &columns!(File, Begun);
const LEFT: [&Column; columns!(File, Left).len()] = columns!(File, Left);

/// What [`read`] reads, of the table `job`.
pub(super) const COLUMNS: &str = read_names!(File, "job.");

/// How many these are.
pub(super) const COUNT: usize = READ.len();

pub(super) const LOAD: &str = joined!(["SELECT ", COLUMNS, " FROM timerqueue_jobs AS job WHERE id = ?1"]);
pub(super) const HELD: &str =
    joined!(["SELECT ", COLUMNS, " FROM timerqueue_jobs AS job WHERE key = ?1 AND holds_key = 1"]);
/// The due rows of a handler.
pub(super) const DUE: &str = joined!([
    "SELECT ",
    COLUMNS,
    " FROM timerqueue_jobs AS job WHERE handler = ?1 AND recurs = ?2 AND wake <= ?3 ORDER BY wake, id LIMIT ?4"
]);

/// Texts that a person has written into the file may be no UTF-8, and are shown all the same: no
/// text of the file is read in another way.
pub(super) fn text(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Arc<str>> {
    Ok(String::from_utf8_lossy(row.get_ref(column)?.as_bytes()?).into())
}

/// [`COLUMNS`], and perhaps others behind them.
pub(super) fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Read> {
    Read::from_cells(READ, |at, _| match row.get_ref(at)? {
        ValueRef::Null => Ok(Cell::Null),
        ValueRef::Integer(number) => Ok(Cell::Number(number)),
        other => Ok(Cell::Text(String::from_utf8_lossy(other.as_bytes()?))),
    })
}

/// The rows of a query.
pub(super) fn load(
    statements: &mut Statements<'_>,
    sql: &'static str,
    params: impl Params,
) -> rusqlite::Result<Vec<Read>> {
    statements.get(sql)?.query_map(params, read)?.collect()
}

/// Runs a statement whose parameters are these columns.
fn execute(statements: &mut Statements<'_>, sql: &'static str, columns: &[&Column], row: &Row) -> rusqlite::Result<()> {
    let statement = statements.get(sql)?;
    for (at, column) in columns.iter().enumerate() {
        match column.get(row) {
            Cell::Null => statement.raw_bind_parameter(at + 1, None::<i64>)?,
            Cell::Number(number) => statement.raw_bind_parameter(at + 1, number)?,
            Cell::Flag(is) => statement.raw_bind_parameter(at + 1, is)?,
            Cell::Text(text) => statement.raw_bind_parameter(at + 1, &*text)?,
        }
    }
    statement.raw_execute()?;
    Ok(())
}

static INSERT: LazyLock<String> = LazyLock::new(|| {
    let values = vec!["?"; PUT.len()].join(", ");
    format!("INSERT INTO timerqueue_jobs ({}) VALUES ({values})", names(PUT))
});

pub(super) fn insert(statements: &mut Statements<'_>, row: &Row) -> rusqlite::Result<()> {
    execute(statements, &INSERT, PUT, row)
}

/// A plain job that is put: most columns are the same in all of these, and a value that is bound
/// costs more than a constant.
static INSERT_PLAIN: LazyLock<String> = LazyLock::new(|| {
    let plain = Row { holds_key: true, ..Row::default() };
    let (mut columns, mut values) = (Vec::new(), Vec::new());
    for column in PUT {
        values.push(match (column.name, column.get(&plain)) {
            ("id", _) => "?1".to_owned(),
            ("key", _) => "?2".to_owned(),
            ("handler", _) => "?3".to_owned(),
            ("payload", _) => "?4".to_owned(),
            ("due" | "wake", _) => "?5".to_owned(),
            ("added", _) => "?6".to_owned(),
            (_, Cell::Number(number)) => number.to_string(),
            (_, Cell::Flag(is)) => u8::from(is).to_string(),
            (_, Cell::Null | Cell::Text(_)) => continue,
        });
        columns.push(column.name);
    }
    format!(
        "INSERT INTO timerqueue_jobs ({}) VALUES ({}) ON CONFLICT (key) WHERE holds_key = 1 DO NOTHING",
        columns.join(", "),
        values.join(", ")
    )
});

/// False: the key is taken.
pub(super) fn insert_plain(
    statements: &mut Statements<'_>,
    id: JobId,
    kind: usize,
    new: &NewJob,
    due: Micros,
    added: Micros,
) -> rusqlite::Result<bool> {
    let values = params![id.0 as i64, new.key, kind as i64, new.payload, due.as_i64(), added.as_i64()];
    Ok(statements.get(&INSERT_PLAIN)?.execute(values)? == 1)
}

/// What the begin of a run of a plain job leaves as it is. None: the row has more than a plain job
/// has.
#[derive(PartialEq, Eq)]
pub(super) struct Settled([Cell<'static>; LEFT.len()]);

impl Settled {
    pub(super) fn of(row: &Row) -> Option<Self> {
        let is_plain = row.error.is_none() && row.last.is_none() && row.failures.is_none() && row.recurring.is_none();
        if !is_plain {
            return None;
        }
        let mut cells = [const { Cell::Null }; LEFT.len()];
        for (cell, column) in cells.iter_mut().zip(LEFT) {
            *cell = match column.get(row) {
                Cell::Text(_) => return None,
                Cell::Number(number) => Cell::Number(number),
                Cell::Flag(is) => Cell::Flag(is),
                Cell::Null => Cell::Null,
            };
        }
        Some(Self(cells))
    }
}

/// A change of these columns. The first one is the number of the row.
fn set(update: &str, columns: &[&Column]) -> String {
    let values = columns.iter().enumerate().skip(1).map(|(at, column)| format!("{} = ?{}", column.name, at + 1));
    format!("{update} timerqueue_jobs SET {} WHERE id = ?1", values.collect::<Vec<_>>().join(", "))
}

/// The begin of a run of a plain job: the other columns are bound and compared with their indexes
/// for nothing. No constraint of it can fail, and with `OR ROLLBACK` SQLite keeps no journal for
/// the statement.
static BEGIN: LazyLock<String> = LazyLock::new(|| set("UPDATE OR ROLLBACK", BEGUN));

static UPDATE: LazyLock<String> = LazyLock::new(|| set("UPDATE", CHANGED));

/// `before`: of the row as it stands in the file.
pub(super) fn update(statements: &mut Statements<'_>, row: &Row, before: Option<&Settled>) -> rusqlite::Result<()> {
    if before.is_some() && before == Settled::of(row).as_ref() {
        return execute(statements, &BEGIN, BEGUN, row);
    }
    execute(statements, &UPDATE, CHANGED, row)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::store::rules::Tie;
    use crate::store::sqlite::schema;
    use crate::store::{LastRun, RunEnd, State, Until};

    /// What is written once.
    fn put() -> Row {
        let (id, key, payload, tie) = (JobId(7), "k".into(), "[1]".into(), Tie { group: 13, text: "a".into() });
        let (due, nominal, added) = (Micros::new(1), Some(Micros::new(3)), Some(Micros::new(13)));
        Row { id, key, kind: 3, payload, due, nominal, tie: Some(Box::new(tie)), added, ..Row::default() }
    }

    /// A row in which each field differs from that of a plain job.
    fn full() -> Box<Row> {
        let mut row = Box::new(Row { state: State::Running, ..put() });
        (row.paused, row.cancelled, row.holds_key, row.counted) = (true, true, true, true);
        (row.span, row.parent) = (Some(2), Some(JobId(4)));
        (row.attempt, row.claims, row.turn, row.owner, row.process, row.died) = (5, 6, 7, u64::MAX, 9, 10);
        (row.crashes, row.suspicion) = (11, 12);
        row.begun = Some(Micros::new(14));
        (row.lease, row.error) = (Some(Micros::new(11)), Some("no".into()));
        row.progress = Some("{}".into());
        (row.until, row.followed, row.blocked) = (Some(Until::AnyDead), true, true);
        let mut run = LastRun::new(SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH, RunEnd::Failed);
        run.duration = Duration::from_micros(12);
        row.end_with(Some(Box::new(run)));
        row
    }

    #[test]
    fn the_table_of_columns_is_that_of_the_file_and_each_comes_back() {
        let path = std::env::temp_dir().join(format!("timerqueue-columns-{}.db", std::process::id()));
        let db = schema::open_writer(&path, Duration::from_secs(30), None).unwrap();
        let mut statements = Statements::new(&db);
        let name = |row: &rusqlite::Row<'_>| row.get::<_, String>(0);
        let sql = "SELECT name FROM pragma_table_info('timerqueue_jobs') ORDER BY 1";
        let found = statements.get(sql).unwrap().query_map([], name).unwrap();
        let table: Vec<String> = found.map(Result::unwrap).collect();
        let mut known: Vec<&str> = PUT.iter().map(|column| column.name).collect();
        known.sort_unstable();
        assert_eq!(table, known);

        let (row, put) = (full(), put());
        let seen = |statements: &mut Statements<'_>| format!("{:?}", load(statements, LOAD, [7]).unwrap()[0].row);
        insert(&mut statements, &put).unwrap();
        assert_eq!(seen(&mut statements), format!("{put:?}"));
        update(&mut statements, &row, None).unwrap();
        assert_eq!(seen(&mut statements), format!("{row:?}"));
        drop(statements);
        drop(db);
        for beside in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{beside}", path.display()));
        }
    }
}
