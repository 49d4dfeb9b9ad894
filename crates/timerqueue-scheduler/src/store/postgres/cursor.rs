//! Where a walk for rows begins in their index: behind the rows that have left it.
//!
//! Ground rules. While some session holds a snapshot (a long report, a forgotten transaction, a
//! standby), the server removes no version of a row. The entries of all jobs that have run since
//! stand before the first due row, and a walk from the begin of the index reads a row for each. So
//! each writer keeps, for each [`Walk`], an instant below which no row stands ([`Cursors::low`]),
//! but for those with the mark `early`. These stand in an index of their own, which is read as
//! well.
//!
//! # Why no row is below a cursor
//!
//! A trigger marks a row as *early* that is written with a wake instant more than [`SLACK`] before
//! its transaction got its number: a run that was taken back, a resumed job. (Where that instant is
//! not known, the trigger reads the clock.) So all other rows of a transaction have wake instants
//! from the begin of its number on, less the slack. A cursor is set by one statement, with one
//! snapshot, to the earlier of two instants:
//!
//! - The first wake instant in the index. Of the rows that the snapshot has, none is before it.
//! - An instant that this connection has read before a transaction of its own had the number `x`,
//!   less twice the slack. `x` is below each number under way ([`Cursors::found`]). So a row that
//!   the snapshot has not is of a transaction whose number came after that instant.
//!
//! A statement may follow what its own transaction has written. So cursors are set once that
//! transaction is committed ([`Cursors::commit`]).
//!
//! A run that goes on for long would hold the cursor of those that are counted. So a connection
//! keeps the numbers of the first ones ([`Cursors::long`]), and the cursor passes by them. All runs
//! below it that a statement has seen are among these; the others begin above it, as above.
//!
//! The snapshot of a session that only reads has no number and holds no cursor up. A transaction
//! that has written does, for as long as it is open.
//!
//! # Done jobs that are removed
//!
//! Those whose time is over stand in the order of that instant, which is not before the end of the
//! run. So the same holds, but no row is marked: one of a transaction that took longer than the
//! slack stays until a walk from the begin. Those beyond the most of a handler stand in the order
//! of numbers of a sequence. A statement finds the first number `n`, and then what the clock shows.
//! All numbers below `n` were given before that instant, to transactions that had their own numbers
//! already. Once these have ended, another statement has all rows below `n`. The cursor is set to
//! the first of these rows, or to `n`.
//!
//! # Steps of the clock
//!
//! A step of the clock back by more than the slack breaks the second point. The server compares its
//! clock with what it showed at the last transaction ([`Cursors::since`]), and begins at the begin
//! if it shows less. Two steps between two transactions, back and forth, are seen by no one: a walk
//! from the begin in each [`WHOLE`] finds what was put between them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::store::sql::history::Removal;

/// How far before the number of its transaction a row is early, in microseconds. The trigger has
/// the same number. A node's transaction reads the clock, and then gets its number.
pub(super) const SLACK: i64 = 250_000;
/// How often a walk begins at the begin.
const WHOLE: Duration = Duration::from_secs(300);
/// Numbers of transactions that are kept, and how far apart they are, in microseconds.
const MARKS: usize = 64;
const APART: i64 = 20_000;
/// The most walks that are known.
const WALKS: usize = 10_000;
/// Before all rows.
const BEGIN: i64 = i64::MIN;

/// Rows that are claimed in the order of their wake instants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Due {
    /// The jobs of a handler, or its recurring jobs.
    Handler(Arc<str>, bool),
    /// The jobs of a handler with a priority.
    Priority(i64, i8),
}

/// Rows that stand in an index in the order of an instant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Walk {
    Due(Due),
    /// The jobs of a group that wait, by its number.
    Group(i64),
    /// The runs of a group, in the order of their begins.
    Runs(i64),
    /// The runs of a handler among those of all members, in the order of their begins.
    Counted(i64),
    /// The groups of a handler and a member, in the order of their heads.
    Heads(i64, i64),
    /// Done jobs that are to be removed.
    Done(Removal),
}

/// Where a walk begins.
#[derive(Debug)]
struct Cursor {
    low: i64,
    /// The runs below it that go on: they are looked at by their numbers.
    long: Vec<i64>,
}

/// The most runs of a walk that go on below its cursor.
const LONG: usize = 16;

/// The cursors of a connection.
#[derive(Debug)]
pub(super) struct Cursors {
    lows: HashMap<Walk, Cursor>,
    /// What the transaction has found.
    found: Vec<(Walk, Cursor)>,
    /// Instants, with the number that a transaction had after each.
    marks: VecDeque<(i64, i64)>,
    /// The last instant whose number is below all that were under way.
    reached: i64,
    /// What the clock showed last, and when the answer came.
    seen: Option<(i64, Instant)>,
    since: i64,
    whole: Instant,
    /// What [`Self::found_number`] was told once, until it counts.
    numbers: HashMap<Walk, (i64, i64)>,
}

impl Default for Cursors {
    fn default() -> Self {
        let (lows, found, marks, numbers) = (HashMap::new(), Vec::new(), VecDeque::new(), HashMap::new());
        Self { lows, found, marks, reached: BEGIN, seen: None, since: BEGIN, whole: Instant::now(), numbers }
    }
}

impl Cursors {
    /// A transaction begins. The cursors count if the clock does not show less than this.
    pub(super) fn since(&mut self) -> i64 {
        self.found.clear();
        if self.whole.elapsed() >= WHOLE {
            self.lows.clear();
            self.whole = Instant::now();
        }
        let passed = |at: Instant| i64::try_from(at.elapsed().as_micros()).unwrap_or(i64::MAX);
        self.since = self.seen.map_or(BEGIN, |(seen, at)| seen.saturating_add(passed(at)) - SLACK);
        self.since
    }

    /// What the clock shows in the transaction.
    pub(super) fn saw(&mut self, now: i64) {
        if now < self.since {
            (self.lows, self.marks, self.reached) = (HashMap::new(), VecDeque::new(), BEGIN);
            self.numbers.clear();
        }
        self.seen = Some((now, Instant::now()));
    }

    /// Where a walk begins. `None`: at the begin.
    pub(super) fn low(&self, walk: &Walk) -> Option<i64> {
        Some(self.lows.get(walk)?.low)
    }

    /// The runs below the cursor of a walk that may go on.
    pub(super) fn long(&self, walk: &Walk) -> &[i64] {
        self.lows.get(walk).map_or(&[], |cursor| &cursor.long)
    }

    /// Those of groups: each with its group.
    pub(super) fn long_of(&self, groups: &[i64]) -> (Vec<i64>, Vec<i64>) {
        let of = |&group: &i64| self.long(&Walk::Runs(group)).iter().map(move |&run| (group, run));
        groups.iter().flat_map(of).unzip()
    }

    /// The handlers, the members and the begins of the walks for groups.
    pub(super) fn heads(&self) -> (Vec<i64>, Vec<i64>, Vec<i64>) {
        let (mut kinds, mut members, mut lows) = (Vec::new(), Vec::new(), Vec::new());
        for (walk, cursor) in &self.lows {
            if let Walk::Heads(kind, member) = *walk {
                kinds.push(kind);
                members.push(member);
                lows.push(cursor.low);
            }
        }
        (kinds, members, lows)
    }

    /// A transaction has read the instant `at`, and then got its number.
    pub(super) fn mark(&mut self, at: i64, number: i64) {
        let is_apart = self.marks.back().is_none_or(|&(last, _)| at >= last.saturating_add(APART));
        if is_apart && self.marks.len() < MARKS {
            self.marks.push_back((at, number));
        }
    }

    /// What one statement has found: the first wake instant from the cursor on, and the first
    /// number under way.
    pub(super) fn found(&mut self, walk: &Walk, first: i64, under_way: i64) {
        self.move_to(walk.clone(), first, under_way, |_| Vec::new());
    }

    /// The same of runs that are counted: the numbers and the begins of the first ones, in the
    /// order of their begins. The cursor passes by [`LONG`] of them.
    pub(super) fn found_runs(&mut self, walk: Walk, (mut runs, begins): (Vec<i64>, Vec<i64>), under_way: i64) {
        let first = begins.get(LONG).copied().unwrap_or(i64::MAX);
        self.move_to(walk, first, under_way, |low| {
            runs.truncate(begins.partition_point(|&begun| begun < low));
            runs
        });
    }

    fn move_to(&mut self, walk: Walk, first: i64, under_way: i64, long: impl FnOnce(i64) -> Vec<i64>) {
        self.reach(under_way);
        if self.reached > BEGIN {
            let low = first.min(self.reached - 2 * SLACK);
            self.found.push((walk, Cursor { low, long: long(low) }));
        }
    }

    /// The same of a walk in the order of numbers: the first one, and what the clock showed then.
    pub(super) fn found_number(&mut self, walk: &Walk, (first, at): (i64, i64), under_way: i64) {
        self.reach(under_way);
        let before = self.numbers.get(walk).copied();
        if before.is_none_or(|(_, at)| at <= self.reached) {
            self.numbers.insert(walk.clone(), (first, at));
            let cursor = before.map(|(before, _)| Cursor { low: before.min(first), long: Vec::new() });
            self.found.extend(cursor.map(|cursor| (walk.clone(), cursor)));
        }
    }

    fn reach(&mut self, under_way: i64) {
        while let Some(&(at, _)) = self.marks.front().filter(|&&(_, number)| number < under_way) {
            self.reached = at;
            self.marks.pop_front();
        }
    }

    /// The transaction is committed.
    pub(super) fn commit(&mut self) {
        if self.lows.len() > WALKS {
            self.lows.clear();
            self.numbers.clear();
        }
        for (walk, found) in self.found.drain(..) {
            let known = self.lows.entry(walk).or_insert(Cursor { low: BEGIN, long: Vec::new() });
            if found.low >= known.low {
                *known = found;
            }
        }
    }
}
