//! Batches: the claimed ticks and the wakers of a lock section of a sweep, on their way to the
//! threads that run them.
//!
//! Ground rules. A [`Batch`] belongs to the sweeping thread, which fills it under the lock of the
//! shard and empties it after the lock is released: into a job for a lone tick, else into a
//! [`SharedBatch`], from which any thread takes ticks (I19).

#![allow(unsafe_code)] // places that are filled later, and are read once

use std::mem::MaybeUninit;

use super::{Expired, Job};
use crate::sync::{Arc, AtomicUsize, Ordering};
use crate::time::NEVER;

/// The entries looked at in a lock section of a sweep, which takes some microseconds. A
/// [`SharedBatch`] of them takes less than the kilobyte up to which usual allocators keep freed
/// memory at hand for each thread.
pub(super) const BATCH: usize = 40;
/// The claimed ticks and the wakers of a lock section of a sweep. Of fixed size, on the stack:
/// under the lock nothing is allocated, and the queues of the pool, which may run code of other
/// crates, are not touched.
pub(super) struct Batch<T = Expired> {
    fires: [MaybeUninit<T>; BATCH],
    filled: usize,
    /// The earliest due point of the batch.
    earliest: u64,
}

impl<T> Batch<T> {
    #[inline]
    pub(super) fn new() -> Self {
        Self { fires: [const { MaybeUninit::uninit() }; BATCH], filled: 0, earliest: NEVER }
    }

    /// Called at most [`BATCH`] times: each call uses a unit of the section's work.
    #[inline]
    pub(super) fn push(&mut self, fire: T, due: u64) {
        self.fires[self.filled].write(fire);
        self.filled += 1;
        self.earliest = self.earliest.min(due);
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        let filled = std::mem::take(&mut self.filled);
        // SAFETY: `push` has written the first `filled`; each is read once, since `filled` is zero
        // for any later call.
        self.fires[..filled].iter().map(|fire| unsafe { fire.assume_init_read() })
    }
}

impl Batch {
    /// Empties the batch into a job of the pool, in the memory of `spare` if no other thread has
    /// `spare`. `None`: the batch was empty.
    ///
    /// By reference, as [`SharedBatch::fill`]: otherwise a single tick would be copied together
    /// with the unused memory of the batch.
    #[inline]
    pub(super) fn take_job(&mut self, spare: impl FnOnce() -> Option<Arc<SharedBatch>>) -> Option<Job> {
        if self.filled <= 1 {
            let due = self.earliest;
            return self.drain().next().map(|expired| Job::One { expired, due });
        }
        Some(Job::Batch(self.take_shared(spare())))
    }

    /// Empties the batch into one that threads share. A function of its own, so that the path of a
    /// lone tick is straight.
    #[inline(never)]
    fn take_shared(&mut self, spare: Option<Arc<SharedBatch>>) -> Arc<SharedBatch> {
        let own = spare.and_then(|mut spare| Arc::get_mut(&mut spare).is_some().then_some(spare));
        let mut shared = own.unwrap_or_else(|| Arc::new(SharedBatch::new()));
        Arc::get_mut(&mut shared).expect("no other thread has this memory").fill(self);
        shared
    }
}

/// A batch that several threads run together: each takes ticks until none is left.
pub(crate) struct SharedBatch<T = Expired> {
    batch: Batch<T>,
    /// The place of the next tick; beyond the last place, no tick is left.
    next: AtomicUsize,
}

impl<T> SharedBatch<T> {
    pub(super) fn new() -> Self {
        Self { batch: Batch::new(), next: AtomicUsize::new(0) }
    }

    /// Empties `batch` into this one, of which all ticks have been taken.
    pub(super) fn fill(&mut self, batch: &mut Batch<T>) {
        debug_assert!(self.take().is_none(), "a batch that has been run");
        self.next = AtomicUsize::new(0);
        let filled = std::mem::take(&mut batch.filled);
        // SAFETY: `push` has written the first `filled` places of `batch`, which does not read them
        // again. Those of this batch have been read.
        unsafe { self.batch.fires.as_mut_ptr().copy_from_nonoverlapping(batch.fires.as_ptr(), filled) };
        (self.batch.filled, self.batch.earliest) = (filled, batch.earliest);
    }

    /// The earliest due point of the batch.
    pub(super) fn earliest(&self) -> u64 {
        self.batch.earliest
    }

    /// Takes the next tick. Returns how many ticks are left as well.
    #[inline]
    pub(super) fn take(&self) -> Option<(T, usize)> {
        // Relaxed: the ticks were published with the batch. The load keeps the number from growing
        // without end.
        if self.next.load(Ordering::Relaxed) >= self.batch.filled {
            return None;
        }
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        let left = self.batch.filled.checked_sub(at + 1)?;
        // SAFETY: `Batch::push` has written the first `filled` places. This call alone reads this
        // place, since the exchange gives each place to a single call.
        Some((unsafe { self.batch.fires[at].assume_init_read() }, left))
    }
}

impl<T> Drop for SharedBatch<T> {
    /// A batch that was not run to its end gives back the references of its ticks.
    fn drop(&mut self) {
        while self.take().is_some() {}
    }
}
