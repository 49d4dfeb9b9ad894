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

static INSERT: LazyLock<String> =
    LazyLock::new(|| format!("INSERT INTO jobs ({}) SELECT * FROM {}", names(PUT), arrays(PUT)));

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
    chunks(rows).map(|rows| Step::Run(&UPDATE, params(CHANGED, rows)))
}

/// Writes new rows.
pub(super) fn insert(rows: &[Values]) -> impl Iterator<Item = Step<'_>> {
    chunks(rows).map(|rows| Step::Run(&INSERT, params(PUT, rows)))
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

/// The values of each column as an array.
fn params<'a>(columns: &[&Column], rows: &'a [Values]) -> Vec<Owned<'a>> {
    let array = |(at, column): (usize, &&Column)| -> Owned<'a> {
        let cells = rows.iter().map(|Values(cells)| &cells[at]);
        match column.kind {
            Kind::Number(..) => Box::new(
                cells
                    .map(|cell| if let Cell::Number(number) = cell { Some(*number) } else { None })
                    .collect::<Vec<_>>(),
            ),
            Kind::Flag(..) => Box::new(cells.map(|cell| *cell == Cell::Flag(true)).collect::<Vec<_>>()),
            Kind::Text(..) => Box::new(
                cells.map(|cell| if let Cell::Text(text) = cell { Some(&**text) } else { None }).collect::<Vec<_>>(),
            ),
        }
    };
    columns.iter().enumerate().map(array).collect()
}
