//! The statistics of the pool's threads.
//!
//! Ground rules. A thread writes its own statistics, and no other's: no cache line is shared by
//! writers. A reader gets the sum of all threads, each at a slightly different moment. The atomics
//! are not modelled: no other access pairs with them, so a model need not explore their reads.

use super::{Counts, LocalQueue, Pool};
use crate::histogram::{Histogram, Recorder};
use crate::sync::Ordering;
use crate::sync::unmodelled::AtomicU64;

/// The statistics of a thread, written by the thread alone.
#[derive(Default)]
pub(super) struct Statistics {
    /// Of the jobs in [`Counts::jobs`], those without a tick or waker of their own.
    other: AtomicU64,
    /// Of the useful jobs, those that called a waker.
    wakers: AtomicU64,
    /// Returns from the alarms, and ends of parking.
    wake_ups: AtomicU64,
    /// The reading of the clock at the begin of the last job.
    began: AtomicU64,
    lateness: Recorder,
}

impl Statistics {
    fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    /// A job begins.
    pub(super) fn begin(&self, now: u64) {
        self.began.store(now, Ordering::Relaxed);
    }

    /// The thread was woken.
    pub(super) fn woken(&self) {
        Self::add(&self.wake_ups, 1);
    }
}

impl<J> LocalQueue<J> {
    fn statistics(&self) -> &Statistics {
        &self.shared.counts.statistics
    }

    /// The present part of a job begins no callback and calls no waker here.
    #[inline]
    pub(crate) fn count_other(&self) {
        Statistics::add(&self.statistics().other, 1);
    }

    /// A part of the present job calls a waker.
    #[inline]
    pub(crate) fn count_waker(&self) {
        Statistics::add(&self.statistics().wakers, 1);
    }

    /// This many parts of the present job have run, which were due at `due` or later.
    #[inline]
    pub(crate) fn record_lateness(&self, due: u64, parts: u64) {
        let statistics = self.statistics();
        if parts > 0 {
            statistics.lateness.record(statistics.began.load(Ordering::Relaxed).saturating_sub(due), parts);
        }
    }

    /// The useful jobs that the worker has counted.
    pub(crate) fn useful(&self) -> u64 {
        self.shared.counts.useful.load(Ordering::Relaxed)
    }
}

/// The sum over threads that have ended.
#[derive(Default)]
pub(super) struct Ended {
    pub(super) useful: u64,
    taken: u64,
    wakers: u64,
    wake_ups: u64,
    lateness: Histogram,
}

impl Ended {
    pub(super) fn add(&mut self, counts: &Counts) {
        let statistics = &counts.statistics;
        self.useful += counts.useful.load(Ordering::Relaxed);
        let begun = counts.jobs.load(Ordering::Relaxed).div_ceil(2);
        self.taken += begun.saturating_sub(statistics.other.load(Ordering::Relaxed));
        self.wakers += statistics.wakers.load(Ordering::Relaxed);
        self.wake_ups += statistics.wake_ups.load(Ordering::Relaxed);
        statistics.lateness.add_to(&mut self.lateness);
    }
}

/// The statistics of a pool, read at a moment.
#[derive(Default)]
pub(crate) struct PoolMetrics {
    pub(crate) useful: u64,
    /// Parts of jobs that have begun, with those found void.
    pub(crate) taken: u64,
    pub(crate) wakers: u64,
    pub(crate) wake_ups: u64,
    pub(crate) lateness: Histogram,
    pub(crate) threads: usize,
    pub(crate) busy: usize,
    pub(crate) polling: usize,
    pub(crate) parked: usize,
    pub(crate) limit: usize,
    pub(crate) started: u64,
    pub(crate) refused: u64,
    /// The earliest begin among the jobs that run.
    pub(crate) earliest_begin: Option<u64>,
}

impl<J: Send + 'static> Pool<J> {
    pub(crate) fn metrics(&self) -> PoolMetrics {
        let mut sum = Ended::default();
        let (mut busy, mut earliest_begin) = (0, None::<u64>);
        {
            // With the lock held no leaving thread moves its statistics to `ended`.
            let workers = self.workers.lock();
            let ended = self.ended.lock();
            sum.lateness = ended.lateness.clone();
            (sum.useful, sum.taken, sum.wakers, sum.wake_ups) =
                (ended.useful, ended.taken, ended.wakers, ended.wake_ups);
            for worker in workers.iter() {
                sum.add(&worker.counts);
                if worker.counts.jobs.load(Ordering::Relaxed) % 2 == 1 {
                    busy += 1;
                    let began = worker.counts.statistics.began.load(Ordering::Relaxed);
                    earliest_begin = Some(earliest_begin.map_or(began, |earliest| earliest.min(began)));
                }
            }
        }
        let refused = self.refused.load(Ordering::Relaxed);
        PoolMetrics {
            useful: sum.useful,
            taken: sum.taken,
            wakers: sum.wakers,
            wake_ups: sum.wake_ups,
            lateness: sum.lateness,
            threads: self.threads(),
            busy,
            polling: self.idle.pollers(),
            parked: self.idle.parked(),
            limit: self.config.max_threads,
            started: (self.serial.load(Ordering::Relaxed) as u64).saturating_sub(refused),
            refused,
            earliest_begin,
        }
    }
}
