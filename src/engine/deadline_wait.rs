//! The wait of a future for a deadline.
//!
//! Ground rules. Before its first pending look a wait takes no memory and no lock; from then on it
//! owns an entry with the waker ([`WakerEntry`]). Dropping the wait removes the entry from its
//! queue.

use std::task::Waker;

use super::{Engine, Looked, WakerEntry};
use crate::queue::tick_policy::TickPolicy;

/// See the module's ground rules.
#[derive(Default)]
pub(crate) struct DeadlineWait {
    pub(crate) entry: Option<WakerEntry>,
}

impl DeadlineWait {
    /// The first pending look, or the first since the wait was withdrawn: makes an entry.
    pub(crate) fn start(
        &mut self,
        engine: &Engine,
        tick_policy: TickPolicy,
        waker: &Waker,
        deadline: u64,
        now: u64,
    ) -> Looked {
        let (entry, looked) = WakerEntry::start(engine, tick_policy, waker, deadline, now);
        self.entry = Some(entry);
        looked
    }

    /// No task waits any more: removes the entry from its queue, and drops entry and waker.
    #[inline]
    pub(crate) fn withdraw(&mut self) {
        if let Some(entry) = self.entry.take() {
            entry.abandon();
        }
    }
}

impl Drop for DeadlineWait {
    #[inline]
    fn drop(&mut self) {
        self.withdraw();
    }
}
