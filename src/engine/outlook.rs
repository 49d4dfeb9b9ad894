//! The state of a timer, and the timers that are due next with their names: for displays.
//!
//! Ground rules. A walk changes nothing. It holds the lock of one shard at a time, and looks at
//! [`LOOKED_AT`] timers there at most.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::Location;
use std::time::SystemTime;

use super::entry::label_of;
use super::{Engine, EntryMeta, EntryRef, Label};
use crate::queue::Kind;
use crate::queue::list::Linked;
use crate::queue::state::Look;
use crate::sync::Arc;
use crate::time::{END, Timestamp};

/// The timers of a shard that a walk looks at: some hundred microseconds.
const LOOKED_AT: usize = 4096;

/// A timer at a moment.
pub(crate) struct Outline {
    /// The due point, if the timer is in its queue.
    pub(crate) due: Option<u64>,
    /// The time of the wall clock that a wall timer waits for.
    pub(crate) wall: Option<SystemTime>,
    /// [`NEVER`](crate::time::NEVER) for a one-shot.
    pub(crate) period: u64,
    pub(crate) word: Look,
    /// No callback starts any more: disposed, or consumed, or the runtime has ended.
    pub(crate) is_over: bool,
}

impl Outline {
    /// Reads all of it in a section of the lock of the timer's shard.
    pub(crate) fn of(node: &EntryRef) -> Self {
        let mut inner = node.shard().lock();
        let word = node.get().state.look();
        let is_over = word.disposed || !inner.is_open() || (word.consumed && word.running == 0);
        let wall = inner.walls.time(node).filter(|_| !is_over);
        let (entry, key) = (node.get(), inner.queue.key());
        let due = (entry.is_queued(key) && !is_over).then(|| entry.due(key));
        Self { due, wall, period: entry.period(key).as_ns(), word, is_over }
    }
}

/// A timer that waits: a part of a [`TimerDump`](crate::observe::TimerDump).
///
/// # Examples
///
/// See [`Runtime::dump`](crate::Runtime::dump).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PendingTimer {
    /// The due point, without leeway.
    pub due: Timestamp,
    /// The number of its queue.
    pub queue: usize,
    /// The entry of a future ([`Delay`](crate::Delay), timeout, interval), and not a timer with a
    /// callback.
    pub is_future: bool,
    /// The [name](crate::TimerBuilder::name) of the timer.
    pub name: Option<String>,
    /// The place in the source at which the timer was named.
    pub site: Option<&'static Location<'static>>,
}

/// The `n` timers that are due first, in order. False: some queue has too many timers to look
/// at, and an earlier one may be missing.
pub(crate) fn soonest(engine: &Engine, n: usize) -> (Vec<PendingTimer>, bool) {
    let (mut all, mut complete) = (Vec::new(), true);
    for (queue, shard) in engine.shards().enumerate() {
        let state = shard.lock();
        // By due point, and by the order in which they were found.
        let found = RefCell::new(BTreeMap::<(u64, usize), Linked<'_, EntryMeta>>::new());
        let mut looked_at = 0;
        let ends = |instant: u64| {
            let found = found.borrow();
            found.len() >= n && found.last_key_value().is_none_or(|(&(last, _), _)| last <= instant)
        };
        complete &= state.queue.walk(ends, |linked| {
            looked_at += 1;
            let due = linked.due(state.queue.key());
            let mut found = found.borrow_mut();
            if due < END {
                found.insert((due, looked_at), linked);
                if found.len() > n {
                    found.pop_last();
                }
            }
            if looked_at < LOOKED_AT { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let found = found.into_inner().into_iter();
        all.extend(found.map(|((due, _), linked)| (due, queue, linked.kind(), label_of(linked, &state))));
    }
    all.sort_by_key(|&(due, ..)| due);
    all.truncate(n);
    let timer = |(due, queue, kind, label): (u64, usize, Kind, Option<Arc<Label>>)| PendingTimer {
        due: Timestamp::from_ns(due),
        queue,
        is_future: kind == Kind::Waker,
        name: label.as_ref().map(|label| label.name.to_string()),
        site: label.map(|label| label.site),
    };
    (all.into_iter().map(timer).collect(), complete)
}
