//! The columns of a job, in a file and on a server: one table.
//!
//! Ground rules. From [`COLUMNS`] come the lists of columns in statements, what a statement binds,
//! and what a reader sets, for both stores. A new column is a line there, a field of [`Row`], and a
//! step of the schema of each store, where it has a default or may be null. A number is a `bigint`
//! on a server, and a flag is 0 or 1 in a file.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use self::Written::{Always, Begin, Change, Once};
use super::rules::{Lane, Row, Tie, span_of};
use super::{JobId, Micros, State, Until, text};

/// All columns, the number of the row first.
const COLUMNS: &[Column] = &[
    number("id", Always, |row| Some(row.id.0 as i64), |read, id| read.row.id = JobId(id as u64)),
    text("key", Once, |row| borrowed(&row.key), |read, key| read.row.key = key.into()),
    number("handler", Once, |row| Some(row.kind as i64), |read, id| read.row.kind = id.try_into().unwrap_or_default()),
    text("payload", Once, |row| borrowed(&row.payload), |read, json| read.row.payload = json.into()),
    flag("recurs", Once, |row| row.recurring.is_some(), |_, _| ()).computed(),
    number("state", Begin, |row| Some(row.state as i64), |read, number| read.row.state = state(number)),
    number("due", Change, |row| Some(row.due.as_i64()), |read, at| read.row.due = Micros::new(at)),
    number("wake", Begin, |row| wake_in(row, true), |_, _| ()).computed().only(Store::File),
    number("apart", Begin, |row| wake_in(row, false), |_, _| ()).computed().only(Store::File),
    // A trigger of the server moves it to `apart`.
    number("wake", Begin, |row| micros(row.wake()), |_, _| ()).computed().only(Store::Server),
    number("earliest", Begin, Row::earliest, |_, _| ()).computed(),
    flag("holds_key", Change, |row| row.holds_key, |read, holds| read.row.holds_key = holds),
    flag("paused", Change, |row| row.paused, |read, is| read.row.paused = is),
    flag("cancelled", Change, |row| row.cancelled, |read, is| read.row.cancelled = is),
    text("ended", Change, ended, |read, json| read.row.ended = text::read_ended(json)).only(Store::Server),
    number("span", Begin, |row| row.span, |read, span| read.row.span = Some(span)),
    number("nominal", Once, |row| micros(row.nominal), |read, at| read.row.nominal = Some(Micros::new(at))),
    number("parent", Change, |row| Some(row.parent?.0 as i64), |read, id| read.row.parent = Some(JobId(id as u64))),
    number("attempt", Begin, |row| Some(row.attempt.into()), |read, n| read.row.attempt = small(n)),
    number("crashes", Change, |row| Some(row.crashes.into()), |read, n| read.row.crashes = small(n)),
    number("suspicion", Change, |row| Some(row.suspicion.into()), |read, n| read.row.suspicion = small(n)),
    number("claims", Begin, |row| Some(row.claims as i64), |read, n| read.row.claims = count(n)),
    number("turn", Change, |row| Some(row.turn as i64), |read, n| read.row.turn = count(n)),
    number("owner", Begin, |row| Some(row.owner as i64), |read, owner| read.row.owner = owner as u64),
    number("process", Begin, process, |read, id| read.row.process = id).only(Store::File),
    number("lease", Begin, |row| micros(row.lease), |read, at| read.row.lease = Some(Micros::new(at))),
    number("died", Change, |row| Some(row.died as i64), |read, n| read.row.died = count(n)),
    text("error", Change, |row| borrowed(&row.error), |read, error| read.row.error = Some(error.into())),
    text("last", Change, last, |read, json| read.row.last = text::read_last(json)),
    text("failures", Change, failures, |read, json| read.row.failures = text::read_failures(json)),
    text("recurring", Change, recurring, |read, json| match text::read_recurring(json) {
        Ok(recurring) => read.row.recurring = Some(recurring),
        Err(reason) => read.unreadable = Some(reason),
    }),
    number("affinity_id", Once, |row| Some(row.tie.as_ref()?.group as i64), |read, id| read.row.tie = tie(id)),
    text("affinity", Once, |row| borrowed(&row.tie.as_ref()?.text), tie_to),
    flag("counted", Begin, |row| row.counted, |read, is| read.row.counted = is),
    number("priority", Change, |row| Some(row.priority.into()), |read, n| read.row.priority = clamped(n)),
    number("expires", Change, |row| row.expires, |read, last| read.row.expires = Some(last)),
    number("keep", Change, |row| row.terms.kept_for.map(span_of), |read, n| read.row.terms.kept_for = time(n)),
    text("progress", Change, |row| borrowed(&row.progress), |read, json| read.row.progress = Some(json.into())),
    text("trace", Once, |row| borrowed(&row.trace), |read, text| read.row.trace = Some(text.into())),
    number("added", Once, |row| micros(row.added), |read, at| read.row.added = Some(Micros::new(at))),
    number("begun", Begin, |row| micros(row.begun), |read, at| read.row.begun = Some(Micros::new(at))),
    flag("at_most_once", Change, |row| row.terms.at_most_once, |read, is| read.row.terms.at_most_once = is),
    number(
        "most_attempts",
        Change,
        |row| row.terms.attempts.map(i64::from),
        |read, n| read.row.terms.attempts = Some(small(n)),
    ),
    number("time_limit", Change, |row| row.terms.limit.map(span_of), |read, n| read.row.terms.limit = time(n)),
    number(
        "unique_for",
        Change,
        |row| row.terms.unique_for.map(span_of),
        |read, n| read.row.terms.unique_for = time(n),
    ),
    // None of these has a value in a row of a plain job.
    number("until", Once, |row| Some(row.until? as i64 + 1), |read, n| read.row.until = until(n)).only(Store::Server),
    number("followed", Change, |row| row.followed.then_some(1), |read, is| read.row.followed = is != 0)
        .only(Store::Server),
    number("blocked", Change, |row| row.blocked.then_some(1), |read, is| read.row.blocked = is != 0)
        .only(Store::Server),
    // The same three in one: each column costs a run on a file most of a hundredth.
    number("links", Change, links, |read, n| {
        (read.row.until, read.row.followed, read.row.blocked) = (until(n & 7), n & 8 != 0, n & 16 != 0)
    })
    .only(Store::File),
];

fn until(number: i64) -> Option<Until> {
    Until::ALL.into_iter().find(|&until| until as i64 + 1 == number)
}

fn links(row: &Row) -> Option<i64> {
    let until = row.until.map_or(0, |until| until as i64 + 1);
    let number = until | i64::from(row.followed) << 3 | i64::from(row.blocked) << 4;
    (number != 0).then_some(number)
}

fn micros(at: Option<Micros>) -> Option<i64> {
    at.map(Micros::as_i64)
}

fn borrowed<'r>(text: impl Into<Option<&'r Arc<str>>>) -> Option<Cow<'r, str>> {
    Some(Cow::Borrowed(text.into()?))
}

fn state(number: i64) -> State {
    usize::try_from(number).ok().and_then(|number| State::ALL.get(number)).copied().unwrap_or(State::Dead)
}

/// A number that grows by one: below zero it was written by hand.
fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

fn small(number: i64) -> u32 {
    count(number).try_into().unwrap_or(u32::MAX)
}

fn clamped(priority: i64) -> i8 {
    priority.clamp(i8::MIN.into(), i8::MAX.into()) as i8
}

fn tie(group: i64) -> Option<Box<Tie>> {
    Some(Box::new(Tie { group: group as u64, text: Arc::default() }))
}

fn tie_to(read: &mut Read, text: &str) {
    read.row.tie.iter_mut().for_each(|tie| tie.text = text.into());
}

fn time(micros: i64) -> Option<Duration> {
    Some(Duration::from_micros(count(micros)))
}

/// When to look at a row, in the index of its handler or in another one.
fn wake_in(row: &Row, of_handler: bool) -> Option<i64> {
    micros(row.wake().filter(|_| (row.lane() == Lane::Priority(0)) == of_handler))
}

fn process(row: &Row) -> Option<i64> {
    let held = row.state == State::Running || row.recurring.as_ref().is_some_and(|recurring| recurring.looked);
    (held && row.process != 0).then_some(row.process)
}

fn last(row: &Row) -> Option<Cow<'_, str>> {
    text::write_last(row.last.as_deref()?).map(Cow::Owned)
}

fn ended(row: &Row) -> Option<Cow<'_, str>> {
    text::write_ended(row.ended.as_deref()?).map(Cow::Owned)
}

fn failures(row: &Row) -> Option<Cow<'_, str>> {
    text::write_failures(row.failures.as_deref()?).map(Cow::Owned)
}

fn recurring(row: &Row) -> Option<Cow<'_, str>> {
    text::write_recurring(row.recurring.as_deref()?).ok().map(Cow::Owned)
}

/// A value as statements have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell<'r> {
    Null,
    Number(i64),
    Flag(bool),
    Text(Cow<'r, str>),
}

/// The type of a column, with what gets its value from a row, and what sets one that is not null.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Number(fn(&Row) -> Option<i64>, fn(&mut Read, i64)),
    Flag(fn(&Row) -> bool, fn(&mut Read, bool)),
    Text(fn(&Row) -> Option<Cow<'_, str>>, fn(&mut Read, &str)),
}

/// Which statements have a column, beside the one that puts a row.
#[derive(Clone, Copy)]
pub(crate) enum Written {
    /// All, since it names the row.
    Always,
    /// None.
    Once,
    /// Each change of a row.
    Change,
    /// Each change, and the begin of a run of a plain job, which changes no others.
    Begin,
}

/// A store that has columns.
#[derive(Clone, Copy)]
pub(crate) enum Store {
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code))]
    File,
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
    Server,
}

/// Some columns of a store, in the order of the table.
#[derive(Clone, Copy)]
pub(crate) enum List {
    /// Those that a reader sets.
    Read,
    /// Those of a new row: all.
    Put,
    /// Those of a change, and so the number of the row first.
    Changed,
    /// Those of the begin of a run, and so the number of the row first.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code))]
    Begun,
    /// Those of a change that are none of the begin of a run.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code))]
    Left,
}

#[derive(Clone, Copy)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    written: Written,
    /// Computed from others, for an index: no reader sets it.
    is_computed: bool,
    only: Option<Store>,
}

const fn column(name: &'static str, written: Written, kind: Kind) -> Column {
    Column { name, kind, written, is_computed: false, only: None }
}

const fn number(name: &'static str, written: Written, get: fn(&Row) -> Option<i64>, set: fn(&mut Read, i64)) -> Column {
    column(name, written, Kind::Number(get, set))
}

const fn flag(name: &'static str, written: Written, get: fn(&Row) -> bool, set: fn(&mut Read, bool)) -> Column {
    column(name, written, Kind::Flag(get, set))
}

const fn text(
    name: &'static str,
    written: Written,
    get: fn(&Row) -> Option<Cow<'_, str>>,
    set: fn(&mut Read, &str),
) -> Column {
    column(name, written, Kind::Text(get, set))
}

impl Column {
    const fn computed(self) -> Self {
        Self { is_computed: true, ..self }
    }

    const fn only(self, store: Store) -> Self {
        Self { only: Some(store), ..self }
    }

    const fn is_in(&self, store: Store, list: List) -> bool {
        let is_there = matches!(
            (self.only, store),
            (None, _) | (Some(Store::File), Store::File) | (Some(Store::Server), Store::Server)
        );
        is_there
            && match list {
                List::Read => !self.is_computed,
                List::Put => true,
                List::Changed => matches!(self.written, Always | Change | Begin),
                List::Begun => matches!(self.written, Always | Begin),
                List::Left => matches!(self.written, Change),
            }
    }

    pub(crate) fn get<'r>(&self, row: &'r Row) -> Cell<'r> {
        match self.kind {
            Kind::Number(get, _) => get(row).map_or(Cell::Null, Cell::Number),
            Kind::Flag(get, _) => Cell::Flag(get(row)),
            Kind::Text(get, _) => get(row).map_or(Cell::Null, Cell::Text),
        }
    }

    fn set(&self, read: &mut Read, cell: Cell<'_>) {
        match (self.kind, cell) {
            (Kind::Number(_, set), Cell::Number(number)) => set(read, number),
            (Kind::Flag(_, set), Cell::Flag(is)) => set(read, is),
            (Kind::Flag(_, set), Cell::Number(number)) => set(read, number != 0),
            (Kind::Text(_, set), Cell::Text(text)) => set(read, &text),
            _ => {}
        }
    }
}

/// A row that a reader has made, and the reason why its schedule cannot be read.
pub(crate) struct Read {
    pub(crate) row: Box<Row>,
    pub(crate) unreadable: Option<String>,
}

impl Read {
    /// From the values of [`List::Read`].
    pub(crate) fn from_cells<'c, E>(
        columns: &[&Column],
        mut cell: impl FnMut(usize, &Column) -> Result<Cell<'c>, E>,
    ) -> Result<Self, E> {
        let row = Box::new(Row { state: State::Dead, ..Row::default() });
        let mut read = Self { row, unreadable: None };
        for (at, column) in columns.iter().enumerate() {
            column.set(&mut read, cell(at, column)?);
        }
        Ok(read)
    }
}

/// The number of the columns of a list.
pub(crate) const fn count_of(store: Store, list: List) -> usize {
    let (mut at, mut count) = (0, 0);
    while at < COLUMNS.len() {
        count += COLUMNS[at].is_in(store, list) as usize;
        at += 1;
    }
    count
}

/// The columns of a list, as many as [`count_of`] says.
pub(crate) const fn listed<const N: usize>(store: Store, list: List) -> [&'static Column; N] {
    let (mut at, mut found, mut columns) = (0, 0, [&COLUMNS[0]; N]);
    while at < COLUMNS.len() {
        if COLUMNS[at].is_in(store, list) {
            columns[found] = &COLUMNS[at];
            found += 1;
        }
        at += 1;
    }
    columns
}

/// The columns of a list of a store.
macro_rules! columns {
    ($store:ident, $list:ident) => {{
        use $crate::store::columns::{List, Store, count_of, listed};
        const LISTED: [&$crate::store::columns::Column; count_of(Store::$store, List::$list)] =
            listed(Store::$store, List::$list);
        LISTED
    }};
}
pub(crate) use columns;

/// The names of columns, separated by commas.
pub(crate) fn names(columns: &[&Column]) -> String {
    columns.iter().map(|column| column.name).collect::<Vec<_>>().join(", ")
}

/// The names of columns, when the program is compiled.
pub(crate) const fn names_of<const N: usize>(columns: [&Column; N]) -> [&'static str; N] {
    let (mut at, mut names) = (0, [""; N]);
    while at < N {
        names[at] = columns[at].name;
        at += 1;
    }
    names
}

/// Texts as one text, when the program is compiled.
macro_rules! joined {
    ($parts:expr) => {
        const_str::join!(&$parts, "")
    };
}
pub(crate) use joined;

/// The names of the columns that a reader sets, each behind a prefix, for [`joined`].
macro_rules! read_names {
    ($store:ident, $prefix:literal) => {
        const_str::concat!(
            $prefix,
            const_str::join!(
                &$crate::store::columns::names_of($crate::store::columns::columns!($store, Read)),
                concat!(", ", $prefix)
            )
        )
    };
}
pub(crate) use read_names;
