//! Jobs: what the deques and the inbox of the pool hold, and how a worker runs them.
//!
//! Ground rules. A tick is the smallest unit of work: [`Tick::run`] runs it, once, or
//! [`Tick::discard`] ends it. A job is a single tick, a batch of ticks, or the rest of a sweep. A
//! [`Batch`] belongs to the sweeping thread, which fills it with a lock of the driver held, and
//! empties it after the lock is released: into a job for a lone tick, else into a [`SharedBatch`],
//! from which any thread takes ticks.
//!
//! **A batch is one job (I19).** A worker that takes up a batch puts the batch back into its deque
//! before the first tick runs, unless a single tick is left. From there any other worker takes the
//! batch, and does the same. While a tick of a batch runs and ticks are left, the batch is in a
//! queue of the pool, so a tick that blocks delays no other tick (S31).

#![allow(unsafe_code)] // places that are filled later, and are read once

use std::mem::MaybeUninit;
use std::time::Duration;

use super::sleep::SearchToken;
use super::{Driver, Tick, WorkerLocal, worker};
use crate::sync::{Arc, AtomicUsize, Ordering};
use crate::time::NEVER;

/// The most ticks of a lock section of a sweep, which takes some microseconds. A [`SharedBatch`] of
/// them takes less than the kilobyte up to which usual allocators keep freed memory at hand for
/// each thread.
pub(crate) const BATCH: usize = 40;
/// A worker keeps the memory of so many batches of its sweeps, and allocates only when all of them
/// are under way at once: then other threads have lost their processors in the middle of each.
pub(super) const SPARES: usize = 4;

/// A job of the pool.
pub(super) enum Job<T> {
    /// A tick, due at this instant.
    One { tick: T, due: u64 },
    /// The ticks of a lock section of a sweep.
    Batch(Arc<SharedBatch<T>>),
    /// The batch was full: continue the sweep of this queue.
    Sweep(usize),
}

/// How a tick ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ran {
    /// A callback ran.
    Callback,
    /// A waker was called.
    Waker,
    /// Neither: the tick was void, or runs elsewhere.
    Void,
}

// ---------------------------------------------------------------- batches

/// The ticks of a lock section of a sweep. Of fixed size, on the stack: under the lock nothing is
/// allocated, and the queues of the pool, which may run code of other crates, are not touched.
pub(crate) struct Batch<T> {
    ticks: [MaybeUninit<T>; BATCH],
    filled: usize,
    /// The earliest due point of the batch.
    earliest: u64,
}

impl<T> Batch<T> {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { ticks: [const { MaybeUninit::uninit() }; BATCH], filled: 0, earliest: NEVER }
    }

    /// Called at most [`BATCH`] times.
    #[inline]
    pub(crate) fn push(&mut self, tick: T, due: u64) {
        self.ticks[self.filled].write(tick);
        self.filled += 1;
        self.earliest = self.earliest.min(due);
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        let filled = std::mem::take(&mut self.filled);
        // SAFETY: `push` has written the first `filled`; each is read once, since `filled` is zero
        // for any later call.
        self.ticks[..filled].iter().map(|tick| unsafe { tick.assume_init_read() })
    }

    /// Empties the batch into a job. `spares`: the batches that the worker keeps. `None`: the batch
    /// was empty.
    ///
    /// By reference, as [`SharedBatch::fill`]: otherwise a single tick would be copied together
    /// with the unused memory of the batch.
    #[inline]
    pub(super) fn take_job(&mut self, spares: &mut Vec<Arc<SharedBatch<T>>>) -> Option<Job<T>> {
        if self.filled <= 1 {
            let due = self.earliest;
            return self.drain().next().map(|tick| Job::One { tick, due });
        }
        Some(Job::Batch(self.take_shared(spares)))
    }

    /// Empties the batch into one that threads share: one that was run to its end, if there is one.
    /// The thread that sweeps keeps it, not the thread that ends it: else memory would go from the
    /// former to the latter, and firing would allocate. A function of its own, so that the path of
    /// a lone tick is straight.
    #[inline(never)]
    fn take_shared(&mut self, spares: &mut Vec<Arc<SharedBatch<T>>>) -> Arc<SharedBatch<T>> {
        for spare in &mut *spares {
            if let Some(unused) = Arc::get_mut(spare) {
                unused.fill(self);
                return Arc::clone(spare);
            }
        }
        let mut shared = SharedBatch { batch: Batch::new(), next: AtomicUsize::new(0) };
        shared.fill(self);
        let shared = Arc::new(shared);
        if spares.len() < SPARES {
            spares.push(Arc::clone(&shared));
        }
        shared
    }
}

/// A batch that several threads run together: each takes ticks until none is left.
pub(super) struct SharedBatch<T> {
    batch: Batch<T>,
    /// The place of the next tick; beyond the last place, no tick is left.
    next: AtomicUsize,
}

impl<T> SharedBatch<T> {
    /// Empties `batch` into this one, of which all ticks have been taken.
    fn fill(&mut self, batch: &mut Batch<T>) {
        debug_assert!(self.take().is_none(), "a batch that has been run");
        self.next = AtomicUsize::new(0);
        let filled = std::mem::take(&mut batch.filled);
        // SAFETY: `push` has written the first `filled` places of `batch`, which does not read them
        // again. Those of this batch have been read.
        unsafe { self.batch.ticks.as_mut_ptr().copy_from_nonoverlapping(batch.ticks.as_ptr(), filled) };
        (self.batch.filled, self.batch.earliest) = (filled, batch.earliest);
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
        Some((unsafe { self.batch.ticks[at].assume_init_read() }, left))
    }
}

impl<T> Drop for SharedBatch<T> {
    /// A batch that was not run to its end gives back the references of its ticks.
    fn drop(&mut self) {
        while self.take().is_some() {}
    }
}

// ---------------------------------------------------------------- running

/// Runs jobs until none is left, first of all `first`.
pub(super) fn run_jobs<W: Driver>(work: &W, local: &WorkerLocal<W::Tick>, first: Option<Job<W::Tick>>) {
    let pool = work.pool();
    let began = pool.now();
    local.pace.begin(began);
    // The first job begins at once; to find another may take a while.
    let mut begins = first.is_some().then_some(began);
    let mut next = first;
    while !pool.is_stopping() {
        let Some(job) = next.take().or_else(|| pool.next_job(work, local)) else { break };
        let token = local.token.take();
        local.searched.set(token.is_some());
        if let Some(token) = token {
            pass_on(work, local, token);
        }
        // Again: the thread that stops the pool may have searched the queues while this job, and
        // jobs taken with it, were in none. (The fence is in `stop_searching`, or in `share` and
        // `notify`.)
        if pool.is_stopping() {
            next = Some(job);
            break;
        }
        let counts = &local.shared.counts;
        counts.begin(begins.take().unwrap_or_else(|| pool.now()));
        let useful = run(work, local, job);
        counts.count_edges(1);
        counts.count_useful(useful);
        local.pace.count();
    }
    if let Some(job) = next {
        discard(work, job);
    }
    let ended = pool.now();
    local.pace.measure(ended);
    let rested = Duration::from_nanos(began.saturating_sub(local.rests_since.replace(ended)));
    pool.stall_check.cancel(work, local, rested);
    if let Some(token) = local.token.take() {
        pool.idle.stop_searching(token);
    }
}

/// The searcher has found a job: the next thread may search for further jobs.
#[inline(never)]
fn pass_on<W: Driver>(work: &W, local: &WorkerLocal<W::Tick>, token: SearchToken) {
    let pool = work.pool();
    pool.idle.stop_searching(token);
    if pool.has_work(local) {
        pool.notify(work);
    }
}

/// Runs a job. Returns whether its last tick was useful; those before have been counted.
fn run<W: Driver>(work: &W, local: &WorkerLocal<W::Tick>, job: Job<W::Tick>) -> bool {
    let pool = work.pool();
    let job = match job {
        Job::Sweep(queue) => {
            let first = worker::sweep(work, local, queue);
            pool.stall_check.replace_cover(work, local);
            let Some(first) = first else {
                local.shared.counts.count_other();
                return false;
            };
            pool.share(work, local);
            first
        }
        job => job,
    };
    match job {
        Job::One { tick, due } => {
            let useful = local.shared.counts.note(tick.run(work));
            local.shared.counts.record_lateness(due, u64::from(useful));
            useful
        }
        Job::Batch(batch) => {
            let counts = &local.shared.counts;
            let before = counts.useful();
            let useful = run_batch(work, local, &batch);
            let more = counts.useful() - before;
            counts.record_lateness(batch.batch.earliest, more + u64::from(useful));
            useful
        }
        Job::Sweep(_) => {
            // No tick was claimed in that section.
            local.shared.counts.count_other();
            pool.push_local(local, job);
            pool.share(work, local);
            false
        }
    }
}

/// Runs the ticks of a batch until none is left, or until the thread has another job to run first.
/// Returns whether the last tick was useful; those before have been counted.
pub(super) fn run_batch<W: Driver>(work: &W, local: &WorkerLocal<W::Tick>, batch: &Arc<SharedBatch<W::Tick>>) -> bool {
    let (pool, counts) = (work.pool(), &local.shared.counts);
    let mut shared = false;
    while let Some((tick, left)) = batch.take() {
        counts.set_rest_of_batch(left);
        if left > 0 && !shared {
            pool.push_local(local, Job::Batch(Arc::clone(batch)));
            if local.searched.get() {
                // The thread that began the batch may be blocked, and this thread may be blocked
                // soon: the next thread is woken.
                pool.notify(work);
            } else {
                pool.share(work, local);
            }
            shared = true;
            if pool.is_stopping() {
                // The thread that stops the pool may have searched the deques while the batch was
                // in none.
                tick.discard(work);
                return false;
            }
        } else if left == 0 && shared {
            let is_batch = |job: &Job<W::Tick>| matches!(job, Job::Batch(other) if Arc::ptr_eq(batch, other));
            if local.drop_if_alone(is_batch) == Some(false) {
                pool.share(work, local); // a search may have found the deque empty meanwhile
            }
        }
        let useful = counts.note(tick.run(work));
        if left == 0 || !continues(work, local, useful) {
            counts.set_rest_of_batch(0);
            return useful;
        }
    }
    counts.set_rest_of_batch(0);
    counts.count_other();
    false
}

/// A tick of a batch has returned. Returns whether the calling worker continues the batch, and then
/// counts the tick as a job. Otherwise the pool stops, or the turn of other queues has come.
#[inline(always)] // for each tick
fn continues<W: Driver>(work: &W, local: &WorkerLocal<W::Tick>, useful: bool) -> bool {
    let pool = work.pool();
    local.turn.set(local.pace.is_fair_turn(|| pool.now()));
    let continues = !local.turn.get() && !pool.is_stopping();
    if continues {
        local.shared.counts.count_edges(2);
        local.shared.counts.count_useful(useful);
        local.pace.count();
    }
    continues
}

/// The pool stops: the ticks of this job will not run.
pub(super) fn discard<W: Driver>(work: &W, job: Job<W::Tick>) {
    match job {
        Job::One { tick, .. } => tick.discard(work),
        Job::Batch(batch) => {
            while let Some((tick, _)) = batch.take() {
                tick.discard(work);
            }
        }
        Job::Sweep(_) => {}
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    /// Pushed with due points that fall: the last one is the earliest.
    fn job(ticks: u64, spares: &mut Vec<Arc<SharedBatch<u64>>>) -> Option<Job<u64>> {
        let mut batch = Batch::new();
        (0..ticks).for_each(|tick| batch.push(tick, 100 - tick));
        batch.take_job(spares)
    }

    fn shared(ticks: u64, spares: &mut Vec<Arc<SharedBatch<u64>>>) -> Arc<SharedBatch<u64>> {
        let Some(Job::Batch(batch)) = job(ticks, spares) else { panic!("a batch of {ticks}") };
        batch
    }

    #[test]
    fn a_batch_of_one_tick_is_the_tick_and_a_larger_one_is_shared() {
        let mut spares = Vec::new();
        assert!(job(0, &mut spares).is_none());
        assert!(matches!(job(1, &mut spares), Some(Job::One { tick: 0, due: 100 })));
        assert!(spares.is_empty());
        for ticks in [BATCH as u64, 2, 3] {
            let batch = shared(ticks, &mut spares);
            assert_eq!(batch.batch.earliest, 101 - ticks);
            for tick in 0..ticks {
                assert_eq!(batch.take(), Some((tick, (ticks - tick - 1) as usize)));
            }
            assert!(batch.take().is_none() && batch.take().is_none());
        }
        assert_eq!(spares.len(), 1, "used again");
    }

    #[test]
    fn a_worker_keeps_a_few_batches_and_drops_what_is_left_in_others() {
        let mut spares = Vec::new();
        let under_way: Vec<_> = (0..=SPARES).map(|_| shared(2, &mut spares)).collect();
        assert_eq!(spares.len(), SPARES);
        drop(under_way);
        let held = std::sync::Arc::new(());
        let mut batch = Batch::new();
        (0..3).for_each(|_| batch.push(std::sync::Arc::clone(&held), 0));
        drop(batch.take_job(&mut Vec::new()));
        assert_eq!(std::sync::Arc::strong_count(&held), 1);
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/batch_vs_stop.rs"]
mod loom_models;
