//! The operations of users that the store has not answered: a bounded number.
//!
//! Ground rules. An operation has [`Room`] from its call to its answer. Without room it is refused,
//! or waits in the order of the calls; what waits has not begun. Operations of the engine take no
//! room: runs are bounded by their places. One lock, under which no code of users runs and no value
//! of users is dropped (J11).

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::core::Core;
use crate::store::Op;
use crate::store::reply::Awaited;
use crate::unwind::quietly;

/// The bytes of payload that count as one operation more.
const BYTES: usize = 4_096;
/// From this number of waiting operations on, those that no caller awaits any more are looked for.
const SWEEP: usize = 64;

pub(super) struct Backlog {
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: usize,
    waiting: VecDeque<Waiting>,
    /// A thread begins what waits: so answers that come inside of a call nest no deeper.
    is_serving: bool,
    /// How many may wait before those that are not awaited are looked for.
    sweep_at: usize,
}

/// Begins an operation that has waited. Without room: the scheduler closes.
type Begin = Box<dyn FnOnce(&Arc<Core>, Option<Room>) + Send>;

struct Waiting {
    size: usize,
    is_awaited: Awaited,
    begin: Begin,
}

/// The room of an operation, until it is dropped.
pub(super) struct Room {
    core: Arc<Core>,
    size: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.core.give_back(self.size);
    }
}

/// How many operations these count as.
pub(super) fn size_of(ops: &[Op]) -> usize {
    let size = |op: &Op| match op {
        Op::Put(new) => 1 + new.payload.len() / BYTES,
        _ => 1,
    };
    ops.iter().map(size).sum()
}

impl State {
    fn has_room(&self, size: usize, most: usize) -> bool {
        // One that is larger than the limit goes alone.
        self.used == 0 || self.used.saturating_add(size) <= most
    }
}

impl Backlog {
    pub(super) fn new(most: usize) -> Self {
        Self { most, state: Mutex::new(State { sweep_at: SWEEP, ..State::default() }) }
    }

    /// How many operations wait for room.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.state.lock().waiting.len()
    }
}

impl Core {
    /// Begins an operation: at once, or when it has room, if its caller waits for that. `None`: it
    /// has neither.
    pub(super) fn with_room(
        self: &Arc<Self>,
        size: usize,
        is_awaited: Option<Awaited>,
        begin: impl FnOnce(&Arc<Self>, Option<Room>) + Send + 'static,
    ) -> Option<()> {
        let mut abandoned = VecDeque::new(); // dropped after unlocking
        {
            let mut state = self.backlog.state.lock();
            if !state.waiting.is_empty() || !state.has_room(size, self.backlog.most) {
                let is_awaited = is_awaited?;
                if state.waiting.len() >= state.sweep_at {
                    let (kept, given_up) = std::mem::take(&mut state.waiting).into_iter().partition(Waiting::is_kept);
                    (state.waiting, abandoned) = (kept, given_up);
                    state.sweep_at = SWEEP.max(2 * state.waiting.len());
                }
                state.waiting.push_back(Waiting { size, is_awaited, begin: Box::new(begin) });
                drop(state);
                quietly(|| drop::<VecDeque<Waiting>>(abandoned));
                return Some(());
            }
            state.used += size;
        }
        begin(self, Some(Room { core: Arc::clone(self), size }));
        Some(())
    }

    fn give_back(self: &Arc<Self>, size: usize) {
        {
            let mut state = self.backlog.state.lock();
            state.used -= size;
            if state.waiting.is_empty() || std::mem::replace(&mut state.is_serving, true) {
                return;
            }
        }
        while let Some((waiting, has_room)) = self.next_waiting() {
            let room = has_room.then(|| Room { core: Arc::clone(self), size: waiting.size });
            quietly(|| match room {
                Some(room) => (waiting.begin)(self, Some(room)),
                None => drop(waiting), // no caller awaits it
            });
        }
    }

    /// The first one that waits, if there is room for it, or if it is not awaited any more.
    fn next_waiting(&self) -> Option<(Waiting, bool)> {
        let mut state = self.backlog.state.lock();
        let first = state.waiting.front().map(|first| (first.size, first.is_kept()));
        let next = match first {
            Some((_, false)) => state.waiting.pop_front().map(|waiting| (waiting, false)),
            Some((size, true)) if state.has_room(size, self.backlog.most) => {
                state.used += size;
                state.waiting.pop_front().map(|waiting| (waiting, true))
            }
            _ => None,
        };
        state.is_serving = next.is_some();
        next
    }

    /// The scheduler closes: nothing waits for room any more.
    pub(super) fn refuse_waiting(self: &Arc<Self>) {
        let waiting = std::mem::take(&mut self.backlog.state.lock().waiting);
        for waiting in waiting {
            quietly(|| (waiting.begin)(self, None));
        }
    }
}

impl Waiting {
    fn is_kept(&self) -> bool {
        (self.is_awaited)()
    }
}
