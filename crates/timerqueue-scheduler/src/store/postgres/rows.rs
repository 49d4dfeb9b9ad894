//! A row of the server as a [`Row`].

use tokio_postgres::types::Type;

use super::params::Owned;
use super::wire::Step;
use crate::store::rules::{Recurring, Row, Tie};
use crate::store::{JobId, Micros, State, text};

/// The columns of a statement, from its text with `*` in their place.
macro_rules! with_columns {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            "id, key, handler, payload, state, due, holds_key, paused, cancelled, span, nominal, \
             parent, attempt, claims, turn, owner, lease, died, error, last, recurring, failures, affinity, \
             affinity_id, counted",
            $after
        )
    };
}
pub(super) use with_columns;

/// A row, and the text of a schedule that cannot be read here.
pub(super) struct Read {
    pub(super) row: Box<Row>,
    pub(super) unreadable: Option<String>,
}

fn instant(micros: Option<i64>) -> Option<Micros> {
    micros.map(Micros::new)
}

/// Columns in the order of [`with_columns`].
pub(super) fn read(row: &tokio_postgres::Row) -> Read {
    debug_assert_eq!(*row.columns()[0].type_(), Type::INT8);
    let (recurring, unreadable) = match row.get::<_, Option<&str>>(20).map(text::read_recurring) {
        None => (None, None),
        Some(Ok(recurring)) => (Some(recurring), None),
        Some(Err(reason)) => (None, Some(reason)),
    };
    let number = |column: usize| row.get::<_, i64>(column) as u64;
    let state = usize::try_from(row.get::<_, i64>(4)).ok().and_then(|state| State::ALL.get(state)).copied();
    let found = Row {
        id: JobId(number(0)),
        key: row.get::<_, &str>(1).into(),
        kind: usize::try_from(row.get::<_, i64>(2)).unwrap_or_default(),
        payload: row.get::<_, &str>(3).into(),
        state: state.unwrap_or(State::Dead),
        due: Micros::new(row.get(5)),
        holds_key: row.get(6),
        paused: row.get(7),
        cancelled: row.get(8),
        span: row.get(9),
        nominal: instant(row.get(10)),
        parent: row.get::<_, Option<i64>>(11).map(|id| JobId(id as u64)),
        attempt: u32::try_from(row.get::<_, i64>(12)).unwrap_or(u32::MAX),
        claims: number(13),
        turn: number(14),
        owner: number(15),
        process: 0,
        lease: instant(row.get(16)),
        died: number(17),
        error: row.get::<_, Option<&str>>(18).map(Into::into),
        last: row.get::<_, Option<&str>>(19).and_then(text::read_last),
        failures: row.get::<_, Option<&str>>(21).and_then(text::read_failures),
        recurring,
        tie: row.get::<_, Option<i64>>(23).map(|affinity| {
            let text = row.get::<_, Option<&str>>(22).unwrap_or_default().into();
            Box::new(Tie { affinity: affinity as u64, text })
        }),
        counted: row.get(24),
    };
    Read { row: Box::new(found), unreadable }
}

fn micros(at: Option<Micros>) -> Option<i64> {
    at.map(Micros::as_i64)
}

/// The values of a row, for [`insert`] and [`update`].
pub(super) struct Values {
    id: i64,
    key: String,
    kind: i64,
    payload: String,
    recurs: bool,
    nominal: Option<i64>,
    state: i64,
    due: i64,
    wake: Option<i64>,
    earliest: Option<i64>,
    pub(super) holds_key: bool,
    paused: bool,
    cancelled: bool,
    span: Option<i64>,
    parent: Option<i64>,
    attempt: i64,
    claims: i64,
    turn: i64,
    owner: i64,
    lease: Option<i64>,
    died: i64,
    error: Option<String>,
    last: Option<String>,
    recurring: Option<String>,
    failures: Option<String>,
    counted: bool,
    affinity: Option<String>,
    affinity_id: Option<i64>,
}

/// Rows as arrays, one for each column.
macro_rules! from_arrays {
    ($before:literal, $last:literal, $after:literal) => {
        concat!(
            $before,
            "unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::boolean[], \
             $8::boolean[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], \
             $15::bigint[], $16::bigint[], $17::text[], $18::text[], $19::text[], $20::text[], $21::boolean[]",
            $last,
            ")",
            $after
        )
    };
}

const INSERT: &str = from_arrays!(
    "INSERT INTO jobs (id, state, due, wake, earliest, holds_key, paused, cancelled, span, parent, attempt, claims, turn, \
     owner, lease, died, error, last, recurring, failures, counted, key, handler, payload, recurs, nominal, affinity, \
     affinity_id) SELECT * FROM ",
    ", $22::text[], $23::bigint[], $24::text[], $25::boolean[], $26::bigint[], $27::text[], $28::bigint[]",
    ""
);

const UPDATE: &str = from_arrays!(
    "UPDATE jobs SET state = v.state, due = v.due, wake = v.wake, earliest = v.earliest, holds_key = v.holds_key, \
     paused = v.paused, cancelled = v.cancelled, span = v.span, parent = v.parent, attempt = v.attempt, \
     claims = v.claims, turn = v.turn, owner = v.owner, lease = v.lease, died = v.died, error = v.error, last = v.last, \
     recurring = v.recurring, failures = v.failures, counted = v.counted FROM ",
    "",
    " AS v (id, state, due, wake, earliest, holds_key, paused, cancelled, span, parent, attempt, claims, turn, owner, \
     lease, died, error, last, recurring, failures, counted) WHERE jobs.id = v.id"
);

/// The most bytes of text in a statement, apart from its last row: a parameter of the server's has
/// 1 GiB at most.
const MOST_BYTES: usize = 4 << 20;

/// Writes changed rows.
pub(super) fn update(rows: &[Values]) -> impl Iterator<Item = Step<'_>> {
    chunks(rows).map(|rows| Step::Run(UPDATE, changeable(rows)))
}

/// Writes new rows.
pub(super) fn insert(rows: &[Values]) -> impl Iterator<Item = Step<'_>> {
    chunks(rows).map(|rows| {
        let mut params = changeable(rows);
        params.extend([
            texts(rows, |row| Some(&row.key)),
            numbers(rows, |row| Some(row.kind)),
            texts(rows, |row| Some(&row.payload)),
            flags(rows, |row| row.recurs),
            numbers(rows, |row| row.nominal),
            texts(rows, |row| row.affinity.as_deref()),
            numbers(rows, |row| row.affinity_id),
        ]);
        Step::Run(INSERT, params)
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

fn numbers<'a>(rows: &'a [Values], of: impl Fn(&Values) -> Option<i64>) -> Owned<'a> {
    Box::new(rows.iter().map(of).collect::<Vec<Option<i64>>>())
}

fn flags<'a>(rows: &'a [Values], of: impl Fn(&Values) -> bool) -> Owned<'a> {
    Box::new(rows.iter().map(of).collect::<Vec<bool>>())
}

fn texts<'a>(rows: &'a [Values], of: impl Fn(&'a Values) -> Option<&'a str>) -> Owned<'a> {
    Box::new(rows.iter().map(of).collect::<Vec<Option<&str>>>())
}

/// The number, and the columns that change.
fn changeable(rows: &[Values]) -> Vec<Owned<'_>> {
    vec![
        numbers(rows, |row| Some(row.id)),
        numbers(rows, |row| Some(row.state)),
        numbers(rows, |row| Some(row.due)),
        numbers(rows, |row| row.wake),
        numbers(rows, |row| row.earliest),
        flags(rows, |row| row.holds_key),
        flags(rows, |row| row.paused),
        flags(rows, |row| row.cancelled),
        numbers(rows, |row| row.span),
        numbers(rows, |row| row.parent),
        numbers(rows, |row| Some(row.attempt)),
        numbers(rows, |row| Some(row.claims)),
        numbers(rows, |row| Some(row.turn)),
        numbers(rows, |row| Some(row.owner)),
        numbers(rows, |row| row.lease),
        numbers(rows, |row| Some(row.died)),
        texts(rows, |row| row.error.as_deref()),
        texts(rows, |row| row.last.as_deref()),
        texts(rows, |row| row.recurring.as_deref()),
        texts(rows, |row| row.failures.as_deref()),
        flags(rows, |row| row.counted),
    ]
}

impl Values {
    pub(super) fn of(row: &Row) -> Self {
        let recurring = row.recurring.as_deref();
        // PostgreSQL takes no NUL in a text: errors are the user's texts.
        let clean = |text: &str| text.replace('\0', "\u{FFFD}");
        Self {
            id: row.id.0 as i64,
            key: row.key.to_string(),
            kind: row.kind as i64,
            payload: row.payload.to_string(),
            recurs: recurring.is_some(),
            nominal: micros(row.nominal),
            state: row.state as i64,
            due: row.due.as_i64(),
            wake: micros(row.wake()),
            earliest: row.earliest(),
            holds_key: row.holds_key,
            paused: row.paused,
            cancelled: row.cancelled,
            span: row.span,
            parent: row.parent.map(|parent| parent.0 as i64),
            attempt: i64::from(row.attempt),
            claims: row.claims as i64,
            turn: row.turn as i64,
            owner: row.owner as i64,
            lease: micros(row.lease),
            died: row.died as i64,
            error: row.error.as_deref().map(clean),
            last: row.last.as_deref().and_then(text::write_last).as_deref().map(clean),
            recurring: recurring.and_then(|recurring: &Recurring| text::write_recurring(recurring).ok()),
            failures: row.failures.as_deref().and_then(text::write_failures).as_deref().map(clean),
            counted: row.counted,
            affinity: row.tie.as_ref().map(|tie| tie.text.to_string()),
            affinity_id: row.tie.as_ref().map(|tie| tie.affinity as i64),
        }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    fn bytes(&self) -> usize {
        let optional = [&self.error, &self.last, &self.recurring, &self.failures, &self.affinity];
        let optional = optional.into_iter().flatten().map(String::len).sum::<usize>();
        256 + self.key.len() + self.payload.len() + optional
    }
}
