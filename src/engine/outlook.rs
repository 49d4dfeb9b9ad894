//! The state of a timer, and the timers that are due next with their names: for displays.
//!
//! Ground rules. A walk changes nothing. It holds the lock of one shard at a time, and looks at
//! [`LOOKED_AT`] timers there at most.

use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use super::entry::label_of;
use super::{Engine, EntryMeta, EntryRef, Label};
use crate::queue::Kind;
use crate::queue::list::Linked;
use crate::sync::Arc;
use crate::time::END;

/// The timers of a shard that a walk looks at: some hundred microseconds.
const LOOKED_AT: usize = 4096;

/// A timer as `Debug` shows it.
pub(crate) struct Outline {
    /// The due point, if the timer waits.
    pub(crate) due: Option<u64>,
    /// [`NEVER`](crate::time::NEVER) for a one-shot.
    pub(crate) period: u64,
    pub(crate) disposed: bool,
    pub(crate) running: u64,
}

impl Outline {
    /// The state of a timer at a moment, under the lock of its shard.
    pub(crate) fn of(node: &EntryRef) -> Self {
        let inner = node.shard().lock();
        let (entry, key) = (node.get(), inner.queue.key());
        Self {
            due: entry.is_queued(key).then(|| entry.due(key)),
            period: entry.period(key).as_ns(),
            disposed: entry.state.is_disposed(),
            running: entry.state.running(),
        }
    }
}

/// A queued timer.
pub(crate) struct Queued {
    pub(crate) due: u64,
    pub(crate) queue: usize,
    pub(crate) is_future: bool,
    pub(crate) label: Option<Arc<Label>>,
}

/// A timer of the walk, ordered by due point.
struct Found<'a> {
    due: u64,
    linked: Linked<'a, EntryMeta>,
}

impl PartialEq for Found<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Found<'_> {}

impl PartialOrd for Found<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Found<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

/// The `n` timers that are due first, in order. False: some queue has too many timers to look
/// at, and an earlier one may be missing.
pub(crate) fn soonest(engine: &Engine, n: usize) -> (Vec<Queued>, bool) {
    let (mut all, mut complete) = (Vec::new(), true);
    for (queue, shard) in engine.shards().enumerate() {
        let state = shard.lock();
        // The latest on top.
        let found = std::cell::RefCell::new(BinaryHeap::<Found<'_>>::new());
        let mut looked_at = 0;
        let ends = |instant: u64| {
            let found = found.borrow();
            found.len() >= n && found.peek().is_none_or(|last| last.due <= instant)
        };
        complete &= state.queue.walk(ends, |linked| {
            looked_at += 1;
            let due = linked.due(state.queue.key());
            let mut found = found.borrow_mut();
            if due < END && n > 0 {
                found.push(Found { due, linked });
                if found.len() > n {
                    found.pop();
                }
            }
            if looked_at < LOOKED_AT { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        all.extend(found.into_inner().into_iter().map(|Found { due, linked }| Queued {
            due,
            queue,
            is_future: linked.kind() == Kind::Waker,
            label: label_of(linked, &state),
        }));
    }
    all.sort_by_key(|queued| queued.due);
    all.truncate(n);
    (all, complete)
}
