//! The reference count of a shard, split in two so that counting costs no atomic operation while
//! the shard is open.
//!
//! Ground rules. The count is split like the kernel's `percpu_ref`. [`LocalRefs`] is a plain number
//! under the shard's lock, for threads that hold the lock anyway. [`SharedRefs`] is an atomic
//! beside the lock, for timers freed without the lock. While the shard is open, the shared count is
//! zero or negative, so no decrement finds itself the last. Closing adds the local count, and 1 for
//! the runtime, to the shared count in a single step. Afterwards the thread that brings the shared
//! count to zero frees the shard.
//!
//! A timer that the runtime is sure to outlive may be counted out early, since the runtime is
//! counted until its end. A detached timer is counted out with the lock held when its last tick is
//! claimed: from then on only threads that hold the runtime use the timer.
//!
//! Neither part can overflow. Each step goes with the making or freeing of a timer, so 63 bits last
//! for centuries; and forgotten timers stay in memory, which is full long before.
//!
//! This module knows neither timers nor how a shard is freed. `loom-tests/shard_teardown.rs` runs
//! the end of a shard.

use crate::sync::{AtomicI64, Ordering};

/// The part under the lock: a number while the shard is open, nothing once it is closed.
pub(crate) struct LocalRefs(Option<i64>);

impl LocalRefs {
    /// The count of an open shard.
    pub(crate) fn new() -> Self {
        Self(Some(0))
    }

    /// Counts a new timer in: in the shared count if the shard is closed. The thread that makes the
    /// timer keeps the runtime, and so the shard, alive meanwhile.
    pub(crate) fn arrive(&mut self, shared_refs: &SharedRefs) {
        match &mut self.0 {
            Some(local_refs) => *local_refs += 1,
            None => shared_refs.add(1),
        }
    }

    /// Counts a timer out if the shard is open. False: the shard is closed, and the caller departs
    /// after the lock is released.
    #[must_use]
    pub(crate) fn leave(&mut self) -> bool {
        match &mut self.0 {
            Some(local_refs) => *local_refs -= 1,
            None => return false,
        }
        true
    }

    /// The number of timers counted in here and in `shared_refs`; `None`: closed.
    #[cfg(all(test, timerqueue_loom))]
    pub(super) fn total(&self, shared_refs: &SharedRefs) -> Option<i64> {
        self.0.map(|local_refs| local_refs + shared_refs.0.load(Ordering::Relaxed))
    }

    /// Moves the local count, and 1 for the runtime, into the shared count. The first call closes,
    /// later calls do nothing.
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

    /// Relaxed: additions are made with the lock held, which orders them. The sum cannot come to
    /// zero before the last of the timers added here departs, and each departs later than this.
    fn add(&self, shared_refs: i64) {
        self.0.fetch_add(shared_refs, Ordering::Relaxed);
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/shard_teardown.rs"]
mod loom_models;
