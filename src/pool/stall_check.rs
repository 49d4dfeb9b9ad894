//! The stall check: an alarm of the pool that makes the last poller look while jobs wait.
//!
//! Ground rules. A single lock; below it only the lock of an alarm, if the alarm has a lock. The
//! lock is not held while a thread is started or woken. A demand takes the lock only if it changes
//! something. [`Pool::look`](super::Pool) is the look, and [`super::stall`] computes the number of
//! threads to add.
//!
//! The rule: *the alarm is armed from the first demand until it expires, or the alarm of a queue
//! covers it*, and a look that finds jobs demands the stall check again. A worker without jobs may
//! cancel the stall check if each demand was its own.
//!
//! **Cover.** The alarm of a queue *covers* the stall check if it comes within
//! [`COVERS_WITHIN_NS`](super::COVERS_WITHIN_NS): then the poller that takes it looks for jobs, as
//! at a stall check, and a demand sets no alarm. The queue has a mark, under its lock: set by the
//! sweep that sets such an alarm, taken by the next sweep, whichever thread makes it. A poller that
//! has taken the mark looks. Any other thread that has taken it arms the stall check. Both do so
//! only if a demand relies on a cover ([`StallCheck::is_covered`]).
//!
//! The bad interleaving: a poller takes the mark and sees no demand; then a demand relies on the
//! mark. So a demand is written first, and then its thread reads the mark, with the lock of the
//! queue held ([`Driver::is_covered`]). If the mark is gone, it arms the stall check. If not, the
//! thread that takes the mark does so after this section, and sees the demand.

use std::time::Duration;

use super::sleep::SearchToken;
use super::stall::{Moment, Sample, StallDetector};
use super::{Driver, STALL_CHECK, Timing, WorkerLocal};
use crate::alarm::OFF;
use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, fence};

pub(super) struct StallCheck {
    /// The threads that have demanded the stall check since it was armed. Written with the lock
    /// held, and read without.
    ///
    /// A thread that finds its demand here already demands nothing. It has published its jobs, and
    /// a fence follows, before it reads. The thread at which the alarm expires clears the word, and
    /// a fence follows, before it looks for jobs. So one of the two sees the other.
    demanded: AtomicUsize,
    looks: Mutex<Looks>,
    /// A worker that had rested for a shorter time leaves the alarm set.
    short_rest: Duration,
}

/// The memory of the looks, under the lock of the stall check.
struct Looks {
    stall: StallDetector,
    /// The token of the searching thread at the last look.
    searcher: Option<SearchToken>,
}

/// No look is to come.
const NO_DEMAND: usize = 0;
/// Demanded by several threads, or by a thread outside of the pool. The look comes.
const BY_MANY: usize = 2;
/// Added to a demand for which no alarm was set, since the alarm of a queue covers it.
const COVERED: usize = 1;

/// Demanded by a single worker, with this serial number.
fn by_worker(serial: usize) -> usize {
    serial.saturating_mul(2).saturating_add(4) & !COVERED
}

/// By which threads: without the mark of a cover.
fn by_whom(word: usize) -> usize {
    word & !COVERED
}

impl StallCheck {
    pub(super) fn new(timing: Timing) -> Self {
        let looks = Looks { stall: StallDetector::new(timing.stall), searcher: None };
        Self { demanded: AtomicUsize::new(NO_DEMAND), looks: Mutex::new(looks), short_rest: timing.short_rest }
    }

    fn demanded(&self) -> usize {
        self.demanded.load(Ordering::Relaxed)
    }

    fn set(&self, to: usize, _lock: &mut MutexGuard<'_, Looks>) {
        self.demanded.store(to, Ordering::Relaxed);
    }

    /// A look is to come.
    #[cfg(all(test, timerqueue_loom))]
    pub(super) fn is_demanded(&self) -> bool {
        self.demanded() != NO_DEMAND
    }

    /// A demand relies on the alarm of a queue.
    pub(super) fn is_covered(&self) -> bool {
        self.demanded() & COVERED != 0
    }

    /// Demands a stall check, after this time unless a stall check is armed already. `by`: a worker
    /// that has jobs in its own deque, or any thread. The jobs were published before a fence.
    pub(super) fn demand<W: Driver>(&self, work: &W, by: Option<&WorkerLocal<W::Tick>>, after: Duration) {
        let own = by.map_or(BY_MANY, |worker| by_worker(worker.shared.serial));
        if matches!(by_whom(self.demanded()), whom if whom == own || whom == BY_MANY) {
            return;
        }
        let cover = by.and_then(|worker| worker.covered_by.get());
        {
            let mut looks = self.looks.lock();
            let word = self.demanded();
            if word != NO_DEMAND {
                return self.set(BY_MANY | word & COVERED, &mut looks);
            }
            if cover.is_none() {
                self.set(own, &mut looks);
                return work.pool().arm_stall_check(work, after);
            }
            self.set(own | COVERED, &mut looks);
        }
        if cover.is_some_and(|queue| !work.is_covered(queue)) {
            self.arm_uncovered(work);
        }
    }

    /// Whether the worker has taken or replaced an alarm that covered a demand.
    pub(super) fn took_cover<T>(&self, local: &WorkerLocal<T>) -> bool {
        local.took_cover.take() && self.is_covered()
    }

    /// The calling worker does not poll, and has swept a queue. If the alarm that it replaced
    /// covered a demand, the stall check is armed.
    pub(super) fn replace_cover<W: Driver>(&self, work: &W, local: &WorkerLocal<W::Tick>) {
        if self.took_cover(local) {
            self.arm_uncovered(work);
        }
    }

    /// A demand relies on an alarm that may have been taken or replaced.
    #[cold]
    fn arm_uncovered<W: Driver>(&self, work: &W) {
        let mut looks = self.looks.lock();
        if self.is_covered() {
            self.set(by_whom(self.demanded()), &mut looks);
            work.pool().arm_stall_check(work, STALL_CHECK);
        }
    }

    /// The calling worker, which had rested for this long before, has no jobs any more. Cancels the
    /// stall check if each demand was the worker's own: setting an alarm is cheaper than a wake-up.
    /// A worker that rests for shorter times leaves the alarm set, since some thread is awake then
    /// anyway. (A covered demand has set no alarm, and is always cancelled.)
    pub(super) fn cancel<W: Driver>(&self, work: &W, local: &WorkerLocal<W::Tick>, rested: Duration) {
        let own = by_worker(local.shared.serial);
        let word = self.demanded();
        if by_whom(word) != own || rested < self.short_rest && word == own {
            return;
        }
        let mut looks = self.looks.lock();
        let word = self.demanded();
        if by_whom(word) == own {
            self.set(NO_DEMAND, &mut looks);
            looks.stall.nothing_waits();
            if word == own {
                work.pool().arm_stall_check(work, OFF);
            }
        }
    }

    /// The alarm of the stall check has expired, or an alarm that covered it. The caller looks for
    /// jobs next.
    pub(super) fn has_come(&self) {
        self.set(NO_DEMAND, &mut self.looks.lock());
        fence(Ordering::SeqCst);
    }

    /// The look has found no job.
    pub(super) fn nothing_waits(&self) {
        self.looks.lock().stall.nothing_waits();
    }

    /// The look has found this thread searching. Returns whether the look before has found the same
    /// search.
    pub(super) fn still_searches(&self, token: SearchToken) -> bool {
        self.looks.lock().searcher.replace(token) == Some(token)
    }

    /// The number of threads to add: see [`StallDetector::look`].
    pub(super) fn threads_to_add(
        &self,
        samples: &[Sample],
        moment: Moment,
        sleeps: impl FnMut(Sample) -> Option<bool>,
    ) -> usize {
        self.looks.lock().stall.look(samples, moment, sleeps)
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/cover_vs_take.rs"]
mod loom_models;
