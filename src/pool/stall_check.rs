//! The stall check: an alarm of the pool that makes the last poller look while jobs wait, and the
//! effect of that look.
//!
//! Ground rules. A single lock; below it only the lock of an alarm, if the alarm has a lock. The
//! lock is not held while a thread is started or woken. A demand takes the lock only if it changes
//! something. [`super::stall`] computes the number of threads to add.
//!
//! **Cover.** The alarm of a queue *covers* the stall check if it comes within
//! [`COVERS_WITHIN_NS`](super::COVERS_WITHIN_NS): then the poller that takes it looks for jobs, as
//! at a stall check, and a demand sets no alarm. The queue has a mark, under its lock: set by the
//! sweep that sets such an alarm, taken by the next sweep, whichever thread makes it. A poller that
//! has taken the mark looks. Any other thread that has taken it arms the stall check. Both do so
//! only if a demand relies on a cover ([`Demanded::is_covered`]).
//!
//! The bad interleaving: a poller takes the mark and sees no demand; then a demand relies on the
//! mark. So a demand is written first, and then its thread reads the mark, with the lock of the
//! queue held ([`Driver::is_covered`]). If the mark is gone, it arms the stall check. If not, the
//! thread that takes the mark does so after this section, and sees the demand.

use std::time::Duration;

use super::sleep::{Notified, SearchToken};
use super::stall::{Moment, Sample, StallDetector};
use super::{Counts, Driver, LocalQueue, Pool, STALL_CHECK, STALL_CHECK_AFTER_REFUSAL};
use crate::alarm::OFF;
use crate::sync::{Arc, AtomicUsize, Ordering, fence};

/// The threads that have demanded the stall check since it was armed. The word is written with the
/// lock of the stall check held, and read without.
///
/// A thread that finds its demand here already demands nothing. It has published its jobs, and a
/// fence follows, before it reads. The thread at which the alarm expires clears the word, and a
/// fence follows, before it looks for jobs. So one of the two sees the other.
#[derive(Debug)]
pub(super) struct Demanded(AtomicUsize);

impl Demanded {
    /// No look is to come.
    const NO: usize = 0;
    /// By several threads, or by a thread outside of the pool. The look comes.
    const BY_MANY: usize = 2;
    /// Added to a demand for which no alarm was set, since the alarm of a queue covers it.
    const COVERED: usize = 1;

    pub(super) fn new() -> Self {
        Self(AtomicUsize::new(Self::NO))
    }

    /// By a single worker, with this serial number.
    fn by(serial: usize) -> usize {
        serial.saturating_mul(2).saturating_add(4) & !Self::COVERED
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// By which threads: without the mark of a cover.
    fn by_whom(word: usize) -> usize {
        word & !Self::COVERED
    }

    /// A demand relies on the alarm of a queue.
    pub(super) fn is_covered(&self) -> bool {
        self.get() & Self::COVERED != 0
    }

    fn set(&self, to: usize, _lock: &mut StallCheck) {
        self.0.store(to, Ordering::Relaxed);
    }
}

/// What the sweep of a queue means for the stall check: see the module's ground rules.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cover {
    /// The alarm before covered the stall check.
    pub(crate) taken: bool,
    /// The new alarm covers it.
    pub(crate) given: bool,
}

impl<J> LocalQueue<J> {
    /// The worker has swept this queue.
    pub(crate) fn cover(&self, queue: usize, cover: Cover) {
        if cover.given {
            self.covered_by.set(Some(queue));
        }
        if cover.taken {
            self.took_cover.set(true);
        }
    }
}

/// The rule of the stall check: *the alarm is armed from the first demand until it expires, or the
/// alarm of a queue covers it*, and a look that finds jobs demands the stall check again. A worker
/// without jobs may cancel the stall check if each demand was its own.
#[derive(Default)]
pub(super) struct StallCheck {
    pub(super) stall: StallDetector,
    /// The token of the searching thread at the last look.
    searcher: Option<SearchToken>,
}

impl<J: Send + 'static> Pool<J> {
    /// Demands a stall check, after this time unless a stall check is armed already. `by`: a worker
    /// that has jobs in its own deque, or any thread. The jobs were published before a fence.
    pub(super) fn demand_stall_check<W: Driver<Job = J>>(&self, work: &W, by: Option<&LocalQueue<J>>, after: Duration) {
        let own = by.map_or(Demanded::BY_MANY, |worker| Demanded::by(worker.shared.serial));
        if matches!(Demanded::by_whom(self.demanded.get()), whom if whom == own || whom == Demanded::BY_MANY) {
            return;
        }
        let cover = by.and_then(|worker| worker.covered_by.get());
        {
            let mut stall_check = self.stall_check.lock();
            let word = self.demanded.get();
            if word != Demanded::NO {
                return self.demanded.set(Demanded::BY_MANY | word & Demanded::COVERED, &mut stall_check);
            }
            if cover.is_none() {
                self.demanded.set(own, &mut stall_check);
                return work.arm_stall_check(after);
            }
            self.demanded.set(own | Demanded::COVERED, &mut stall_check);
        }
        if cover.is_some_and(|queue| !work.is_covered(queue)) {
            self.arm_uncovered(work);
        }
    }

    /// Whether the worker has taken or replaced an alarm that covered a demand.
    pub(super) fn took_cover(&self, local: &LocalQueue<J>) -> bool {
        local.took_cover.take() && self.demanded.is_covered()
    }

    /// The calling worker does not poll, and has swept a queue. If the alarm that it replaced
    /// covered a demand, the stall check is armed.
    pub(crate) fn replace_cover<W: Driver<Job = J>>(&self, work: &W, local: &LocalQueue<J>) {
        if self.took_cover(local) {
            self.arm_uncovered(work);
        }
    }

    /// A demand relies on an alarm that may have been taken or replaced.
    #[cold]
    fn arm_uncovered<W: Driver<Job = J>>(&self, work: &W) {
        let mut stall_check = self.stall_check.lock();
        if self.demanded.is_covered() {
            self.demanded.set(Demanded::by_whom(self.demanded.get()), &mut stall_check);
            work.arm_stall_check(STALL_CHECK);
        }
    }

    /// The calling worker, which had rested for this long before, has no jobs any more. Cancels the
    /// stall check if each demand was the worker's own: setting an alarm is cheaper than a wake-up.
    /// A worker that rests for shorter times leaves the alarm set, since some thread is awake then
    /// anyway. (A covered demand has set no alarm, and is always cancelled.)
    pub(super) fn cancel_stall_check<W: Driver<Job = J>>(&self, work: &W, local: &LocalQueue<J>, rested: Duration) {
        let own = Demanded::by(local.shared.serial);
        // Time does not pass in a model: there the worker has always rested for long.
        let seldom = rested > STALL_CHECK || cfg!(all(test, timerqueue_loom));
        let word = self.demanded.get();
        if Demanded::by_whom(word) != own || !seldom && word == own {
            return;
        }
        let mut stall_check = self.stall_check.lock();
        let word = self.demanded.get();
        if Demanded::by_whom(word) == own {
            self.demanded.set(Demanded::NO, &mut stall_check);
            stall_check.stall.nothing_waits();
            if word == own {
                work.arm_stall_check(OFF);
            }
        }
    }

    /// The alarm of the stall check has expired, or an alarm that covered it. The caller looks for
    /// jobs next.
    pub(super) fn stall_check_has_come(&self) {
        self.demanded.set(Demanded::NO, &mut self.stall_check.lock());
        fence(Ordering::SeqCst);
    }

    /// The look of the last poller, at a stall check while jobs wait.
    pub(super) fn look<W: Driver<Job = J>>(&self, work: &Arc<W>, local: &LocalQueue<J>) {
        match self.idle.notify() {
            Notified::WakePoller(token) => {
                self.send_token(work.as_ref(), token);
                self.demand_stall_check(work.as_ref(), None, STALL_CHECK);
                return;
            }
            Notified::Covered(token) => {
                let before = self.stall_check.lock().searcher.replace(token);
                if before == Some(token) {
                    // Woken at the last look or before, and still not searching. Another thread is
                    // woken.
                    self.idle.stop_searching(token);
                    self.notify(work.as_ref());
                } else {
                    self.demand_stall_check(work.as_ref(), None, STALL_CHECK);
                }
                return;
            }
            Notified::AllBusy => {}
        }
        if self.is_full() {
            return; // any thread that returns from its job looks for jobs
        }
        let threads = self.threads_to_add(work.as_ref(), local);
        if threads > 0 {
            self.grow(work, threads); // a refusal demands the next look for later
        }
        self.demand_stall_check(work.as_ref(), None, STALL_CHECK);
    }

    fn threads_to_add<W: Driver<Job = J>>(&self, work: &W, local: &LocalQueue<J>) -> usize {
        let workers = Arc::clone(&self.workers.lock());
        // An exchange reads the newest number; a plain load need not.
        let job = |counts: &Counts| counts.jobs.fetch_add(0, Ordering::Relaxed);
        let others = || workers.iter().filter(|worker| !Arc::ptr_eq(worker, &local.shared));
        let samples: Vec<Sample> =
            others().map(|worker| Sample { thread: worker.serial, job: job(&worker.counts) }).collect();
        let busy = samples.iter().filter(|sample| sample.job % 2 == 1).count();
        let threads = self.threads.load(Ordering::Relaxed);
        let moment = Moment {
            now_ns: self.began.elapsed().as_nanos() as u64,
            waiting: self.inbox.len() + workers.iter().map(|worker| worker.jobs()).sum::<usize>(),
            // In a model, time does not pass in which these threads could arrive.
            coming: if cfg!(all(test, timerqueue_loom)) { 0 } else { threads.saturating_sub(busy + 1) },
            target: self.config.workers.saturating_sub(1).max(1),
        };
        let may_ask = work.may_open_files();
        let sleeps = |sample: Sample| {
            if !may_ask {
                return None;
            }
            let at = workers.binary_search_by_key(&sample.thread, |worker| worker.serial).ok()?;
            workers[at].thread.sleeps()
        };
        self.stall_check.lock().stall.look(&samples, moment, sleeps)
    }

    /// Whether the limit of threads is reached.
    pub(super) fn is_full(&self) -> bool {
        self.threads.load(Ordering::Relaxed) >= self.config.max_threads
    }

    /// Adds threads. The caller starts the first thread, and each new thread starts further threads
    /// before it looks for jobs. Starting a thread takes long, and the caller must poll again.
    fn grow<W: Driver<Job = J>>(&self, work: &Arc<W>, threads: usize) {
        self.growth.store(threads, Ordering::Relaxed);
        self.start_one_more(work);
    }

    /// Starts a thread, if threads are still to be started. Returns whether a thread was started.
    pub(super) fn start_one_more<W: Driver<Job = J>>(&self, work: &Arc<W>) -> bool {
        let one = |n: usize| n.checked_sub(1);
        if self.growth.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one).is_err() {
            return false;
        }
        let room = !self.is_stopping() && self.reserve_thread();
        let started = if room { self.spawn(work) } else { Ok(()) };
        if !room || started.is_err() {
            self.growth.store(0, Ordering::Relaxed);
        }
        if let Err(error) = &started {
            self.refused.fetch_add(1, Ordering::Relaxed);
            W::threads_changed(work, Some(error));
            self.demand_stall_check(work.as_ref(), None, STALL_CHECK_AFTER_REFUSAL);
        }
        let added = room && started.is_ok();
        if added {
            W::threads_changed(work, None);
        }
        added
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/cover_vs_take.rs"]
mod loom_models;
