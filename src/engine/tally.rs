//! Counts of operations: those of a shard, under its lock, and those of firings that no thread of
//! the pool runs.

use crate::histogram::Recorder;
use crate::pool::PoolMetrics;
use crate::sync::Ordering;
use crate::sync::unmodelled::AtomicU64;

/// The operations of a shard since its start.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) created: u64,
    pub(crate) changed: u64,
    /// Disposed while queued.
    pub(crate) disposed: u64,
    /// Claimed ticks, and wakers taken out.
    pub(crate) claimed: u64,
    /// Saturates: a tick may have missed as many as the count holds.
    pub(crate) missed_ticks: u64,
    /// Alarms set.
    pub(crate) alarms: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.created += other.created;
        self.changed += other.changed;
        self.disposed += other.disposed;
        self.claimed += other.claimed;
        self.missed_ticks = self.missed_ticks.saturating_add(other.missed_ticks);
        self.alarms += other.alarms;
    }
}

/// The firings on the driver of a manual clock, or on an executor of the program's. The atomics are
/// not modelled: no other access pairs with them.
#[derive(Default)]
pub(crate) struct ByHand {
    claimed: AtomicU64,
    taken: AtomicU64,
    fired: AtomicU64,
    wakers: AtomicU64,
    lateness: Recorder,
}

impl ByHand {
    /// A tick or waker that no shard has counted goes to the pool, or on to an executor.
    pub(super) fn count_claimed(&self) {
        self.claimed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn claimed(&self) -> u64 {
        self.claimed.load(Ordering::Relaxed)
    }

    /// A claimed tick or a waker begins, or is given up.
    pub(super) fn begin(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// A callback has returned, or a waker been called, which began this late.
    pub(super) fn ran(&self, late_ns: u64, is_waker: bool) {
        self.fired.fetch_add(1, Ordering::Relaxed);
        self.wakers.fetch_add(u64::from(is_waker), Ordering::Relaxed);
        self.lateness.record_shared(late_ns, 1);
    }

    pub(crate) fn fired(&self) -> u64 {
        self.fired.load(Ordering::Relaxed)
    }

    /// Adds these firings to those of the pool.
    pub(crate) fn add_to(&self, pool: &mut PoolMetrics) {
        pool.taken += self.taken.load(Ordering::Relaxed);
        pool.useful += self.fired();
        pool.wakers += self.wakers.load(Ordering::Relaxed);
        self.lateness.add_to(&mut pool.lateness);
    }
}
