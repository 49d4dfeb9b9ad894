//! How many still need a home: a count that costs no atomic operation while the home is open.
//!
//! Ground rules. The count is split, like the kernel's per-CPU references. [`Residents`] lies under the home's lock: those
//! who hold the lock anyway count there. [`Strays`] lies beside it: whoever leaves without the lock counts there. While the
//! home is open strays are zero or negative, so nobody takes himself for the last. Closing moves the residents, and one
//! for the runtime, into the strays in one step; from then on whoever brings them to zero frees the home.
//!
//! Who is sure that the runtime, which is counted in to the last, outlives him may be counted out early: a detached timer is,
//! when its last tick is claimed and the lock is held, since only threads that hold the runtime have to do with it from then on.
//!
//! Neither part can come to its end. Each step of a count goes with the making or freeing of a timer, so 63 bits last for centuries;
//! and what safe code forgets stays in memory, which is full long before.
//!
//! Nobody here knows what is counted, or how it is freed. `loom-tests/shard_teardown.rs` runs the end of a home.

use crate::sync::{AtomicI64, Ordering};

/// The part under the lock: a number while the home is open, nothing once it is closed.
pub(crate) struct Residents(Option<i64>);

impl Residents {
    /// Of an open home.
    pub(crate) fn new() -> Self {
        Self(Some(0))
    }

    /// Counts a new timer in. In a closed home it is a stray from the start; whoever makes it there keeps the runtime, and
    /// so the home, alive meanwhile.
    pub(crate) fn arrive(&mut self, strays: &Strays) {
        match &mut self.0 {
            Some(residents) => *residents += 1,
            None => strays.add(1),
        }
    }

    /// Counts a timer out if the home is open. False: the caller is a stray and departs after the lock is released.
    #[must_use]
    pub(crate) fn leave(&mut self) -> bool {
        match &mut self.0 {
            Some(residents) => *residents -= 1,
            None => return false,
        }
        true
    }

    /// Makes all residents strays, and the runtime one more. The first call closes, later ones do nothing.
    pub(crate) fn close(&mut self, strays: &Strays) {
        if let Some(residents) = self.0.take() {
            strays.add(residents + 1);
        }
    }
}

/// The part beside the lock.
pub(crate) struct Strays(AtomicI64);

impl Strays {
    pub(crate) fn new() -> Self {
        Self(AtomicI64::new(0))
    }

    /// Relaxed: additions are made with the lock held, which orders them, and nobody can bring the sum to zero before
    /// one that is counted in here, and whose turn comes later, departs.
    fn add(&self, strays: i64) {
        self.0.fetch_add(strays, Ordering::Relaxed);
    }

    /// Counts one out who does not hold the lock, and may not touch the home any more. True: that was the last one of a
    /// closed home, and the caller frees it.
    ///
    /// Release publishes the caller's use of the home to whoever frees it; the acquire load pairs with the releases of all
    /// others. (An acquire load instead of a fence: race detectors understand it.)
    ///
    /// It takes a pointer: a `&Strays` argument would have to stay valid until this returns, but another thread may free
    /// the home right after the subtraction.
    ///
    /// # Safety
    /// The caller is counted in, so `strays` is alive until the subtraction. After `false` the caller does not use it.
    #[must_use]
    pub(crate) unsafe fn depart(strays: *const Self) -> bool {
        // SAFETY: the caller is counted in, and that keeps the home alive up to the subtraction.
        let count = unsafe { &(*strays).0 };
        let last = count.fetch_sub(1, Ordering::Release) == 1;
        if last {
            count.load(Ordering::Acquire);
        }
        last
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/shard_teardown.rs"]
mod loom_models;
