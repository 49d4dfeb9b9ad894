//! Looks that change nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Texts, Value, values};
use crate::store::minutes::{self, Activity, minute_of, minutes_of};
use crate::store::rules::{WRONG_BY, span_of};
use crate::store::{Bound, Counts, Entry, GroupId, KindCounts, Micros, Node, NodeId, State, text};

/// A connection that looks.
pub(in crate::store) trait Look {
    type Failure;
    type Answer: Answer;

    const TEXTS: Texts;
    /// The rows of handlers have their counts by state.
    const KEEPS_COUNTS: bool;

    fn look(&self, sql: &'static str, values: &[Value<'_>]) -> Result<Vec<Self::Answer>, Self::Failure>;
}

fn named(row: &impl Answer, column: usize) -> Arc<str> {
    row.text(column).unwrap_or_default()
}

/// What a person has written may be anything.
fn counted(row: &impl Answer, column: usize) -> u64 {
    row.number(column).and_then(|count| u64::try_from(count).ok()).unwrap_or_default()
}

/// The nodes, as this scheduler sees them.
pub(in crate::store) fn nodes<L: Look>(db: &L, owner: u64) -> Result<Vec<Node>, L::Failure> {
    let running = db.look(L::TEXTS.running, &[])?;
    let running: HashMap<(u64, Arc<str>), u64> =
        running.iter().map(|row| ((row.count(0), named(row, 1)), row.count(2))).collect();
    let node = |row: &L::Answer| {
        let entry = Entry { owner: row.count(1), name: named(row, 2), handlers: text::read_handlers(&named(row, 5)) };
        let (since, until) = (Micros::new(row.count(3) as i64).to_system(), row.instant(4).map(Micros::to_system));
        let runs = |name: &str| running.get(&(entry.owner, name.into())).copied().unwrap_or_default();
        let node = Node::of(row.count(0), &entry, since, until, runs);
        Node { is_this: entry.owner == owner && owner != 0, ..node }
    };
    Ok(db.look(L::TEXTS.nodes, &[])?.iter().map(node).collect())
}

/// The groups behind one, in the order of their numbers.
pub(in crate::store) fn groups<L: Look>(db: &L, after: GroupId, limit: usize) -> Result<Vec<Bound>, L::Failure> {
    let (after, limit) = (i64::try_from(after.0).unwrap_or(i64::MAX), i64::try_from(limit).unwrap_or(i64::MAX));
    let bound = |row: &L::Answer| Bound {
        id: GroupId(row.count(0)),
        version: row.count(1),
        group: named(row, 2),
        name: named(row, 3),
        node: Some(NodeId(row.count(4))).filter(|&NodeId(member)| member != 0),
    };
    Ok(db.look(L::TEXTS.groups, values![after, limit])?.iter().map(bound).collect())
}

/// The ends of runs from an instant on, by window and handler.
pub(in crate::store) fn activity<L: Look>(
    db: &L,
    since: Micros,
    window: Duration,
) -> Result<Vec<Activity>, L::Failure> {
    let (window, first) = (minutes_of(window), minute_of(since));
    let activity = |row: &L::Answer| {
        let count = |column: usize| counted(row, column);
        let number = |column: usize| row.number(column).unwrap_or_default();
        let (counts, late) = (std::array::from_fn(|n| count(3 + n)), std::array::from_fn(|class| count(8 + class)));
        minutes::activity(number(0), named(row, 1), counts, late, number(2))
    };
    let values = values![window, first - first % window];
    Ok(db.look(L::TEXTS.windows, values)?.iter().map(activity).collect())
}

/// The counts of all jobs. `now`: the clock, unless it is the server's. `most`: of each index, how
/// many rows are walked.
pub(in crate::store) fn counts<L: Look>(db: &L, mut now: Micros, most: u64) -> Result<Counts, L::Failure> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let (mut kinds, mut oldest): (Vec<KindCounts>, Option<Micros>) = (Vec::new(), None);
    let mut apart = 0;
    for row in db.look(L::TEXTS.counts, values![most])? {
        let count = |column: usize| counted(&row, column);
        let (paused, states) = (row.flag(1), std::array::from_fn(|state| count(3 + state)));
        oldest = oldest.into_iter().chain(row.instant(2).filter(|_| !paused)).min();
        now = row.instant(9).unwrap_or(now);
        let mut kind = KindCounts::new(named(&row, 0), paused, states).with_failing(count(8));
        apart += count(11);
        kind.bounded[State::Waiting.index()] = count(10) >= count(12);
        // A file keeps its other counts.
        kind.failing_bounded = L::KEEPS_COUNTS && count(8) >= count(12);
        kinds.push(kind);
    }
    if !L::KEEPS_COUNTS {
        // Of the indexes of all handlers, each handler has some part.
        let is_whole = |sum: u64| sum < most as u64;
        let of = |state: State| kinds.iter().map(|kind| kind.of(state)).sum::<u64>();
        let walked = [State::Queued, State::Running, State::Dead, State::Recurring].map(|state| (state, of(state)));
        let failing = kinds.iter().map(|kind| kind.failing).sum();
        for kind in &mut kinds {
            for (state, sum) in walked {
                kind.bounded[state.index()] = !is_whole(sum);
            }
            kind.bounded[State::Waiting.index()] |= !is_whole(apart);
            kind.failing_bounded = !is_whole(failing);
        }
    }
    let oldest = oldest.filter(|&wake| wake < now).map(Micros::to_system);
    let ahead = db.look(L::TEXTS.ahead, values![now.as_i64() - span_of(WRONG_BY), now])?;
    let ahead = ahead.first().map_or(0, |row| row.count(0));
    Ok(Counts::new(kinds, oldest, now.to_system()).with_ahead(ahead))
}
