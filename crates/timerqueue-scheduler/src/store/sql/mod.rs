//! Storage in tables: what the file and the server have in common.
//!
//! Ground rules. A [`Work`] is the rows of a transaction ([`Rows`](super::rules::Rows)), written
//! once for both. In what the two differ is a [`Dialect`]. Statements of both are written once, in
//! [`texts`]: a parameter is `$1`, and those of a statement appear in the order of their numbers,
//! since SQLite counts them so.

mod groups;
pub(super) mod history;
pub(super) mod links;
pub(super) mod looks;
mod texts;
mod work;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::columns::Read;
use super::minutes::{Ends, KEPT};
use super::rules::Row;
use super::{Finished, Invalid, JobId, LinkEnds, MAX_PRIORITY, Micros, Mutation, NewJob, Op, State};

#[cfg(feature = "postgres")]
pub(super) use self::groups::{Claimable, group_of};
#[cfg(feature = "sqlite")]
pub(super) use self::texts::FILE;
#[cfg(all(test, feature = "sqlite"))]
pub(super) use self::texts::OF_FILE;
pub(super) use self::texts::Texts;
#[cfg(feature = "postgres")]
pub(super) use self::texts::{SERVER, next_due};
pub(super) use self::work::{Changed, Heads, Index, Work, index_of};

/// An operation, or the reason why it is none.
pub(super) type Checked = Result<Op, Invalid>;

/// An operation that tables can keep. A rule of the user's is dropped here, on the caller's thread.
pub(super) fn checked(op: Op) -> Checked {
    let schedule = match &op {
        Op::Put(new) => new.recurrence.as_ref(),
        Op::Key { mutation: Mutation::Reschedule(recurrence), .. }
        | Op::Job { mutation: Mutation::Reschedule(recurrence), .. } => Some(recurrence),
        _ => None,
    };
    match schedule {
        Some(recurrence) if recurrence.schedule.has_rule() => Err(Invalid::RuleNotStorable),
        _ => Ok(op),
    }
}

/// A value of a statement.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'v> {
    Number(Option<i64>),
    Flag(bool),
    Text(Option<&'v str>),
    /// A list: an array on a server, a text of JSON in a file.
    Numbers(&'v [i64]),
}

macro_rules! value_of {
    ($($from:ty: |$value:ident| $to:expr),+ $(,)?) => {$(
        impl<'v> From<$from> for Value<'v> {
            fn from($value: $from) -> Self {
                $to
            }
        }
    )+};
}

value_of! {
    bool: |flag| Value::Flag(flag),
    i64: |number| Value::Number(Some(number)),
    Option<i64>: |number| Value::Number(number),
    u32: |number| Value::Number(Some(number.into())),
    u64: |number| Value::Number(Some(number as i64)),
    usize: |number| Value::Number(Some(number as i64)),
    JobId: |id| Value::Number(Some(id.0 as i64)),
    Micros: |at| Value::Number(Some(at.as_i64())),
    Option<Micros>: |at| Value::Number(at.map(Micros::as_i64)),
    &'v str: |text| Value::Text(Some(text)),
    Option<&'v str>: |text| Value::Text(text),
    &'v [i64]: |numbers| Value::Numbers(numbers),
}

/// The values of a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => {
        &[$($crate::store::sql::Value::from($value)),*]
    };
}
pub(super) use values;

/// A priority in the column `priorities` of a handler: those other than zero that its jobs have
/// had.
pub(super) fn bit(priority: i8) -> i64 {
    1 << (priority + MAX_PRIORITY)
}

/// The priorities of the column.
pub(super) fn priorities_in(bits: i64) -> Vec<i8> {
    match bits {
        0 => Vec::new(),
        bits => (-MAX_PRIORITY..=MAX_PRIORITY).filter(|&one| one != 0 && bits & bit(one) != 0).collect(),
    }
}

/// The ends of runs that a transaction has counted, by minute and handler.
pub(super) type Counted = BTreeMap<(i64, usize), Ends>;

/// What adds the counts of a transaction. The first one of a minute removes what is older than a
/// week. A transaction that fails may have removed nothing: the next minute does. `writer`: on a
/// server, the name of the rows. `pruned`: the minute of the last removal.
pub(super) fn minutes(
    texts: &Texts,
    counted: &Counted,
    writer: Option<i64>,
    pruned: &mut i64,
) -> Vec<(&'static str, Vec<Value<'static>>)> {
    let mut statements = Vec::new();
    for (&(minute, handler), ends) in counted {
        let Ends { done, again, failed, died, expired, longest, late } = *ends;
        let mut values = values![minute, handler, done, again, failed, died, expired, longest].to_vec();
        values.extend(late.map(Value::from).into_iter().chain(writer.map(Value::from)));
        statements.push((texts.count, values));
    }
    if let Some((&(minute, _), _)) = counted.last_key_value().filter(|((minute, _), _)| minute > pruned) {
        *pruned = minute;
        statements.push((texts.prune, values![minute - KEPT].to_vec()));
    }
    statements
}

/// A row of an answer. What a person has written into a table is no reason to fail: a value of
/// another type is none.
pub(super) trait Answer {
    fn number(&self, column: usize) -> Option<i64>;
    fn text(&self, column: usize) -> Option<Arc<str>>;
    fn flag(&self, column: usize) -> bool;

    fn count(&self, column: usize) -> u64 {
        self.number(column).unwrap_or_default() as u64
    }

    fn instant(&self, column: usize) -> Option<Micros> {
        self.number(column).map(Micros::new)
    }
}

/// The handlers, as a transaction knows them.
#[derive(Debug, Default)]
pub(super) struct Handlers {
    kinds: HashMap<usize, (Arc<str>, bool)>,
    by_name: HashMap<Arc<str>, usize>,
}

impl Handlers {
    pub(super) fn add(&mut self, id: usize, name: Arc<str>, paused: bool) {
        self.by_name.insert(Arc::clone(&name), id);
        self.kinds.insert(id, (name, paused));
    }

    pub(super) fn number(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    fn name(&self, id: usize) -> Arc<str> {
        self.kinds.get(&id).map_or_else(|| "".into(), |(name, _)| Arc::clone(name))
    }

    fn is_paused(&self, id: usize) -> bool {
        self.kinds.get(&id).is_some_and(|&(_, paused)| paused)
    }

    fn set_paused(&mut self, id: usize, paused: bool) {
        if let Some(kind) = self.kinds.get_mut(&id) {
            kind.1 = paused;
        }
    }

    /// Those that are not paused.
    pub(super) fn active(&self) -> impl Iterator<Item = usize> {
        self.kinds.iter().filter(|(_, (_, paused))| !paused).map(|(&id, _)| id)
    }
}

/// In what the databases differ.
pub(super) trait Dialect: Sized {
    type Failure;
    type Answer: Answer;
    /// What the statement that writes a changed row depends on, of the row as it was.
    type Before;

    const TEXTS: Texts;
    /// The row with a number, and the one that holds a key.
    const BY_ID: &'static str;
    const BY_KEY: &'static str;
    /// Other transactions are under way at the same time.
    const LOCKS: bool;

    /// Runs a statement.
    fn ask(&mut self, sql: &'static str, values: &[Value<'_>]) -> Result<Vec<Self::Answer>, Self::Failure>;
    /// Reads rows of jobs, and locks them: by one of these statements.
    fn read(&mut self, sql: &'static str, of: Value<'_>) -> Result<Vec<Read>, Self::Failure>;
    /// Writes rows of jobs, in the order of [`Changed`].
    fn write(&mut self, changed: &Changed<'_, Self::Before>) -> Result<(), Self::Failure>;
    fn before(row: &Row) -> Self::Before;
    fn handlers(&mut self) -> &mut Handlers;

    /// A text as the database takes it.
    fn clean(text: &str) -> String {
        text.to_owned()
    }

    /// A row is there, was changed, or is gone (`by` is below zero): a file has counts.
    fn count(&mut self, _kind: usize, _state: State, _by: i64) {}
    /// A row was put or changed. `at`: others are told of this wake instant.
    fn noted(&mut self, _row: &Row, _at: Option<Micros>) {}
    /// The first wake instant of an index behind those that [`Work`] has in its heads. `None`: it
    /// is asked for.
    fn rest(&self, _index: Index) -> Option<Option<Micros>> {
        None
    }
    /// As [`Rows::priorities`](super::rules::Rows::priorities).
    fn priorities(work: &mut Work<Self>, kind: usize) -> Vec<i8>;
    /// As [`Rows::note_priority`](super::rules::Rows::note_priority).
    fn note_priority(_work: &mut Work<Self>, _kind: usize, _priority: i8) {}
    /// As [`Rows::insert_plain`].
    fn insert_plain(_work: &mut Work<Self>, _new: &NewJob, _due: Micros) -> Option<JobId> {
        None
    }
    fn next_id(work: &mut Work<Self>) -> JobId;
    fn next_death(work: &mut Work<Self>) -> u64;
    /// Whether some row may wait longer than its span.
    fn may_be_behind(&self) -> bool {
        true
    }
    /// A done job is kept, and perhaps its key.
    fn kept(&mut self, _done: &Finished) {}
    /// As [`Rows::with_new_ends`](super::rules::Rows::with_new_ends). None where the database
    /// itself decides on followers.
    fn with_new_ends(_work: &mut Work<Self>) -> Vec<JobId> {
        Vec::new()
    }
    /// As [`Rows::ends_of`](super::rules::Rows::ends_of), where the database does not decide.
    fn ends_of(_work: &mut Work<Self>, _follower: JobId) -> LinkEnds {
        LinkEnds::default()
    }
    /// As [`Rows::remembered`](super::rules::Rows::remembered), of earlier transactions.
    fn remembered(work: &mut Work<Self>, key: &str, now: Micros) -> Option<JobId>;
    /// The number of a live member.
    fn member_of(work: &mut Work<Self>, owner: u64) -> Option<u64>;
    /// As [`Rows::forget_idle`]; also before a group is added.
    fn forget_idle(_work: &mut Work<Self>, _now: Micros) {}
    /// Locks groups whose jobs have changed.
    fn lock_groups(_work: &mut Work<Self>, _ids: &[i64]) {}
    /// The runs among those of all members, of a handler whose row is locked.
    fn counted(work: &mut Work<Self>, kind: usize) -> u64 {
        work.number(Self::TEXTS.counted, values![kind]).unwrap_or_default() as u64
    }
    /// What groups are settled by, which are locked.
    fn facts(work: &mut Work<Self>, ids: &[i64]) -> Vec<Self::Answer> {
        work.ask(Self::TEXTS.facts, values![ids])
    }
    /// As [`Rows::due_groups`].
    fn due_groups(
        work: &mut Work<Self>,
        kinds: &[usize],
        member: u64,
        now: Micros,
        at_most: usize,
    ) -> Vec<(Micros, u64, usize)>;
    /// As [`Rows::next_group`].
    fn next_group(work: &mut Work<Self>, kinds: &[usize], of: Option<(u64, Micros)>) -> Option<Micros>;
    /// Whether some member is gone.
    fn any_gone(work: &mut Work<Self>) -> bool;
    /// A run that this process has begun, as it stands in the table.
    fn remembered_run(&mut self, _id: JobId) -> Option<Box<Row>> {
        None
    }
}
