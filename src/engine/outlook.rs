//! The state of a timer, and the timers that are due next with their names: for displays.
//!
//! Ground rules. A walk changes nothing. It holds the lock of one shard at a time, and looks at
//! [`LOOKED_AT`] timers there at most.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::Location;

use super::entry::label_of;
use super::{Engine, EntryMeta, EntryRef, Label};
use crate::queue::Kind;
use crate::queue::list::Linked;
use crate::sync::Arc;
use crate::time::{END, Timestamp};

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

/// A timer that waits: a part of a [`TimerDump`](crate::TimerDump).
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
