//! A row of the server as a [`Row`].

use tokio_postgres::types::Type;

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

/// The values of a row, as parameters of [`INSERT`] and [`UPDATE`].
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

pub(super) const INSERT: &str = "INSERT INTO jobs (id, state, due, wake, earliest, holds_key, paused, cancelled, span, parent, \
     attempt, claims, turn, owner, lease, died, error, last, recurring, failures, counted, key, handler, payload, recurs, nominal, affinity, affinity_id) VALUES \
     ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, \
     $28)";

pub(super) const UPDATE: &str = "UPDATE jobs SET state = $2, due = $3, wake = $4, earliest = $5, holds_key = $6, paused = $7, \
     cancelled = $8, span = $9, parent = $10, attempt = $11, claims = $12, turn = $13, owner = $14, lease = $15, \
     died = $16, error = $17, last = $18, recurring = $19, failures = $20, counted = $21 WHERE id = $1";

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

    pub(super) fn update(&self) -> [super::params::Param<'_>; 21] {
        [
            &self.id,
            &self.state,
            &self.due,
            &self.wake,
            &self.earliest,
            &self.holds_key,
            &self.paused,
            &self.cancelled,
            &self.span,
            &self.parent,
            &self.attempt,
            &self.claims,
            &self.turn,
            &self.owner,
            &self.lease,
            &self.died,
            &self.error,
            &self.last,
            &self.recurring,
            &self.failures,
            &self.counted,
        ]
    }

    pub(super) fn insert(&self) -> Vec<super::params::Param<'_>> {
        let rest: [super::params::Param<'_>; 7] =
            [&self.key, &self.kind, &self.payload, &self.recurs, &self.nominal, &self.affinity, &self.affinity_id];
        self.update().into_iter().chain(rest).collect()
    }
}
