//! The figures of the pool's threads.
//!
//! Ground rules. A thread writes its own counts, and no other's: no cache line is shared by
//! writers. A reader gets the sum of all threads, each at a slightly different moment. The atomics
//! of figures alone are not modelled: no other access pairs with them, so a model need not explore
//! their reads.

use super::Ran;
use crate::histogram::{Histogram, Recorder};
use crate::sync::unmodelled;
use crate::sync::{AtomicU64, Ordering};

/// The counts of a thread, written by the thread alone.
#[derive(Default)]
pub(super) struct Counts {
    /// Twice the number of jobs that have returned; odd while a job runs. (Each tick of a batch
    /// counts as a job. So does stealing, which may run code of other crates.)
    pub(super) jobs: AtomicU64,
    /// The number of useful jobs.
    pub(super) useful: AtomicU64,
    /// The ticks left of the batch that this thread last took up. The batch is a single job of a
    /// deque.
    batched: AtomicU64,
    /// Of the jobs, those without a tick of their own.
    other: unmodelled::AtomicU64,
    /// Of the useful jobs, those that called a waker.
    wakers: unmodelled::AtomicU64,
    /// Returns from the alarms, and ends of parking.
    wake_ups: unmodelled::AtomicU64,
    /// The reading of the clock at the begin of the last job.
    began: unmodelled::AtomicU64,
    lateness: Recorder,
}

impl Counts {
    pub(super) fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    fn raise(counter: &unmodelled::AtomicU64) {
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// A job begins.
    pub(super) fn begin(&self, now: u64) {
        self.began.store(now, Ordering::Relaxed);
    }

    /// The present job has no tick of its own.
    pub(super) fn count_other(&self) {
        Self::raise(&self.other);
    }

    /// A tick of the present job has run like this. Returns whether it was useful.
    #[inline]
    pub(super) fn note(&self, ran: Ran) -> bool {
        if ran == Ran::Waker {
            Self::raise(&self.wakers);
        }
        ran != Ran::Void
    }

    /// The thread was woken.
    pub(super) fn count_wake_up(&self) {
        Self::raise(&self.wake_ups);
    }

    /// The thread has taken a tick of a batch; this many are left.
    pub(super) fn set_rest_of_batch(&self, left: usize) {
        self.batched.store(left as u64, Ordering::Relaxed);
    }

    pub(super) fn rest_of_batch(&self) -> usize {
        self.batched.load(Ordering::Relaxed) as usize
    }

    /// So many useful ticks of the present job have run, which were due at `due` or later.
    #[inline]
    pub(super) fn record_lateness(&self, due: u64, ticks: u64) {
        if ticks > 0 {
            self.lateness.record(self.began.load(Ordering::Relaxed).saturating_sub(due), ticks);
        }
    }
}

/// The threads of a runtime's pool: a part of [`Metrics`](crate::Metrics).
///
/// # Examples
///
/// ```
/// use timerqueue::Runtime;
///
/// let runtime = Runtime::builder().workers(2).max_threads(8).start()?;
/// let threads = runtime.metrics().threads;
/// assert_eq!((threads.alive, threads.limit, threads.started, threads.refused), (2, 8, 2, 0));
/// # Ok::<(), timerqueue::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadMetrics {
    /// Threads that have not ended *now*.
    pub alive: usize,
    /// Threads that run a callback *now*.
    pub busy: usize,
    /// Threads that wait for an alarm *now*.
    pub polling: usize,
    /// Threads that are idle *now*, and do not wait for an alarm.
    pub parked: usize,
    /// The greatest number of threads allowed: see
    /// [`RuntimeBuilder::max_threads`](crate::RuntimeBuilder::max_threads). If `alive` is at this
    /// limit and [`Metrics::waiting`](crate::Metrics::waiting) stays high, callbacks wait for
    /// others that block.
    pub limit: usize,
    /// Threads started. More than the workers: callbacks blocked, and the pool grew.
    pub started: u64,
    /// Threads that the system refused.
    pub refused: u64,
}

/// The figures of a pool, read at a moment.
#[derive(Clone, Default)]
pub(crate) struct PoolMetrics {
    pub(crate) useful: u64,
    /// Ticks that have begun, with those found void.
    pub(crate) taken: u64,
    pub(crate) wakers: u64,
    pub(crate) wake_ups: u64,
    pub(crate) lateness: Histogram,
    pub(crate) threads: ThreadMetrics,
    /// The earliest begin among the jobs that run.
    pub(crate) earliest_begin: Option<u64>,
}

impl PoolMetrics {
    /// Adds the counts of a thread that has ended.
    pub(super) fn add(&mut self, counts: &Counts) {
        self.useful += counts.useful.load(Ordering::Relaxed);
        let begun = counts.jobs.load(Ordering::Relaxed).div_ceil(2);
        self.taken += begun.saturating_sub(counts.other.load(Ordering::Relaxed));
        self.wakers += counts.wakers.load(Ordering::Relaxed);
        self.wake_ups += counts.wake_ups.load(Ordering::Relaxed);
        counts.lateness.add_to(&mut self.lateness);
    }

    /// Adds the counts of a thread that goes on.
    pub(super) fn add_alive(&mut self, counts: &Counts) {
        self.add(counts);
        if counts.jobs.load(Ordering::Relaxed) % 2 == 1 {
            self.threads.busy += 1;
            let began = counts.began.load(Ordering::Relaxed);
            self.earliest_begin = Some(self.earliest_begin.map_or(began, |earliest| earliest.min(began)));
        }
    }
}
