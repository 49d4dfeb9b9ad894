//! A row of the server as a [`Row`], by the table of columns.

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::LazyLock;

use super::params::Owned;
use super::wire::Step;
use crate::store::columns::{Cell, Column, Kind, Read, columns, names};
use crate::store::rules::Row;

const READ: &[&Column] = &columns!(Server, Read);
const PUT: &[&Column] = &columns!(Server, Put);
const CHANGED: &[&Column] = &columns!(Server, Changed);

/// The columns of a statement, from the texts before and behind them.
macro_rules! with_columns {
    ($before:expr, $after:expr) => {
        $crate::store::columns::joined!([$before, $crate::store::columns::read_names!(Server, ""), $after])
    };
}
pub(super) use with_columns;

/// Columns in the order of [`with_columns`], and perhaps others behind them.
pub(super) fn read(row: &tokio_postgres::Row) -> Read {
    let cell = |at: usize, column: &Column| {
        let cell = match column.kind {
            Kind::Number(..) => row.get::<_, Option<i64>>(at).map(Cell::Number),
            Kind::Flag(..) => row.get::<_, Option<bool>>(at).map(Cell::Flag),
            Kind::Text(..) => row.get::<_, Option<&str>>(at).map(|text| Cell::Text(text.into())),
        };
        Ok::<_, Infallible>(cell.unwrap_or(Cell::Null))
    };
    let Ok(read) = Read::from_cells(READ, cell);
    read
}

/// The values of a row, for [`insert`] or for [`update`].
pub(super) struct Values(Vec<Cell<'static>>);

impl Values {
    /// Of a new row.
    pub(super) fn of_new(row: &Row) -> Self {
        Self::of(PUT, row)
    }

    /// Of a changed row.
    pub(super) fn of_changed(row: &Row) -> Self {
        Self::of(CHANGED, row)
    }

    fn of(columns: &[&Column], row: &Row) -> Self {
        Self(columns.iter().map(|column| owned(column.get(row))).collect())
    }

    /// Whether [`PLAIN`] has all that the table has no defaults for.
    fn is_plain(&self) -> bool {
        let mut others = (0..PUT.len()).filter(|at| !PLAIN.places.contains(at));
        others.all(|at| self.0[at] == DEFAULTS.0[at])
    }

    fn bytes(&self) -> usize {
        256 + self.0.iter().map(|cell| if let Cell::Text(text) = cell { text.len() } else { 0 }).sum::<usize>()
    }
}

/// PostgreSQL takes no NUL in a text: errors are the user's texts.
fn owned(cell: Cell<'_>) -> Cell<'static> {
    match cell {
        Cell::Null => Cell::Null,
        Cell::Number(number) => Cell::Number(number),
        Cell::Flag(is) => Cell::Flag(is),
        Cell::Text(text) if text.contains('\0') => Cell::Text(text.replace('\0', "\u{FFFD}").into()),
        Cell::Text(text) => Cell::Text(Cow::Owned(text.into_owned())),
    }
}

/// Rows as arrays, one for each column.
fn arrays(columns: &[&Column]) -> String {
    let array = |(at, column): (usize, &&Column)| {
        let kind = match column.kind {
            Kind::Number(..) => "bigint",
            Kind::Flag(..) => "boolean",
            Kind::Text(..) => "text",
        };
        format!("${}::{kind}[]", at + 1)
    };
    let arrays: Vec<_> = columns.iter().enumerate().map(array).collect();
    format!("unnest({})", arrays.join(", "))
}

/// A statement that puts rows.
struct Insert {
    sql: String,
    /// The places of its columns among those of [`PUT`].
    places: Vec<usize>,
}

impl Insert {
    fn of(is_there: impl Fn(&Column) -> bool) -> Self {
        let places: Vec<_> = (0..PUT.len()).filter(|&at| is_there(PUT[at])).collect();
        let columns: Vec<_> = places.iter().map(|&at| PUT[at]).collect();
        Self { sql: format!("INSERT INTO jobs ({}) SELECT * FROM {}", names(&columns), arrays(&columns)), places }
    }
}

static ALL: LazyLock<Insert> = LazyLock::new(|| Insert::of(|_| true));

/// Of jobs that ask for nothing special. A column with its default costs a put as much as another
/// one, and most jobs have the default in most columns.
static PLAIN: LazyLock<Insert> = LazyLock::new(|| {
    const OWN: [&str; 9] = ["id", "key", "handler", "payload", "due", "wake", "earliest", "span", "added"];
    Insert::of(|column| OWN.contains(&column.name))
});

/// The values that are the defaults of the table, where a column is not one of [`PLAIN`].
static DEFAULTS: LazyLock<Values> = LazyLock::new(|| Values::of_new(&Row { holds_key: true, ..Row::default() }));

/// With `jobs.id = v.id` the server may read the whole index of numbers, since its order is that of
/// a merge, and compare each row with the few values: by the statistics of an empty table, that is
/// cheap. A comparison with an array has no such order.
static UPDATE: LazyLock<String> = LazyLock::new(|| {
    let set: Vec<_> = CHANGED[1..].iter().map(|column| format!("{0} = v.{0}", column.name)).collect();
    let (set, arrays, names) = (set.join(", "), arrays(CHANGED), names(CHANGED));
    format!("UPDATE jobs SET {set} FROM {arrays} AS v ({names}) WHERE jobs.id = ANY(ARRAY[v.id])")
});

/// The most bytes of text in a statement, apart from its last row: a parameter of the server's has
/// 1 GiB at most.
const MOST_BYTES: usize = 4 << 20;

/// Writes changed rows.
pub(super) fn update(rows: &[Values]) -> impl Iterator<Item = Step<'_>> {
    chunks(rows).map(|rows| Step::Run(&UPDATE, (0..CHANGED.len()).map(|at| array(CHANGED[at], at, rows)).collect()))
}

/// Writes new rows.
pub(super) fn insert(rows: &[Values]) -> impl Iterator<Item = Step<'_>> {
    chunks(rows).map(|rows| {
        let insert = if rows.iter().all(Values::is_plain) { &PLAIN } else { &ALL };
        Step::Run(&insert.sql, insert.places.iter().map(|&at| array(PUT[at], at, rows)).collect())
    })
}

fn chunks(rows: &[Values]) -> impl Iterator<Item = &[Values]> {
    let mut rest = rows;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let mut fits = |row: &Values| {
            let before = bytes;
            bytes += row.bytes();
            before < MOST_BYTES
        };
        let (chunk, after) = rest.split_at(rest.iter().position(|row| !fits(row)).unwrap_or(rest.len()));
        rest = after;
        (!chunk.is_empty()).then_some(chunk)
    })
}

/// The values of a column.
fn array<'a>(column: &Column, at: usize, rows: &'a [Values]) -> Owned<'a> {
    let cells = rows.iter().map(|Values(cells)| &cells[at]);
    match column.kind {
        Kind::Number(..) => Box::new(
            cells.map(|cell| if let Cell::Number(number) = cell { Some(*number) } else { None }).collect::<Vec<_>>(),
        ),
        Kind::Flag(..) => Box::new(cells.map(|cell| *cell == Cell::Flag(true)).collect::<Vec<_>>()),
        Kind::Text(..) => Box::new(
            cells.map(|cell| if let Cell::Text(text) = cell { Some(&**text) } else { None }).collect::<Vec<_>>(),
        ),
    }
}
