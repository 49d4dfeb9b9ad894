//! How many still need a shard: a count that costs no atomic operation while the shard is open.
//!
//! Ground rules. The count is split, like the kernel's per-CPU references. [`LocalRefs`] lies under the shard's lock: those
//! who hold the lock anyway count there. [`SharedRefs`] lies beside it: whoever leaves without the lock counts there. While the
//! shard is open shared_refs are zero or negative, so nobody takes himself for the last. Closing moves the local_refs, and one
//! for the runtime, into the shared_refs in one step; from then on whoever brings them to zero frees the shard.
//!
//! Who is sure that the runtime, which is counted in to the last, outlives him may be counted out early: a detached timer is,
//! when its last tick is claimed and the lock is held, since only threads that hold the runtime have to do with it from then on.
//!
//! Neither part can come to its end. Each step of a count goes with the making or freeing of a timer, so 63 bits last for centuries;
//! and what safe code forgets stays in memory, which is full long before.
//!
//! Nobody here knows what is counted, or how it is freed. `loom-tests/shard_teardown.rs` runs the end of a shard.

use crate::sync::{AtomicI64, Ordering};

/// The part under the lock: a number while the shard is open, nothing once it is closed.
pub(crate) struct LocalRefs(Option<i64>);

impl LocalRefs {
    /// Of an open shard.
    pub(crate) fn new() -> Self {
        Self(Some(0))
    }

    /// Counts a new timer in. In a closed shard it is a stray from the start; whoever makes it there keeps the runtime, and
    /// so the shard, alive meanwhile.
    pub(crate) fn arrive(&mut self, shared_refs: &SharedRefs) {
        match &mut self.0 {
            Some(local_refs) => *local_refs += 1,
            None => shared_refs.add(1),
        }
    }

    /// Counts a timer out if the shard is open. False: the caller is a stray and departs after the lock is released.
    #[must_use]
    pub(crate) fn leave(&mut self) -> bool {
        match &mut self.0 {
            Some(local_refs) => *local_refs -= 1,
            None => return false,
        }
        true
    }

    /// Makes all local_refs shared_refs, and the runtime one more. The first call closes, later ones do nothing.
    pub(crate) fn close(&mut self, shared_refs: &SharedRefs) {
        if let Some(local_refs) = self.0.take() {
            shared_refs.add(local_refs + 1);
        }
    }
}

/// The part beside the lock.
pub(crate) struct SharedRefs(pub(super) AtomicI64);

impl SharedRefs {
    pub(crate) fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    /// Relaxed: additions are made with the lock held, which orders them, and nobody can bring the sum to zero before
    /// one that is counted in here, and whose turn comes later, departs.
    fn add(&self, shared_refs: i64) {
        self.0.fetch_add(shared_refs, Ordering::Relaxed);
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/shard_teardown.rs"]
mod loom_models;
