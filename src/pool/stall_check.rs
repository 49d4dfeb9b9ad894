//! The probe: an alarm of the pool's own that makes the last poller look while jobs wait; and what it does then.
//!
//! Ground rules. One lock, a leaf but for the one that an alarm may have of its own. It is never held while a thread is started or told.
//! The decision how many threads to add is [`super::stall`]'s.

use std::time::Duration;

use super::sleep::{Notified, SearchToken};
use super::stall::{Moment, Sample, StallDetector};
use super::{Counts, Driver, LocalQueue, Pool, STALL_CHECK, STALL_CHECK_AFTER_REFUSAL};
use crate::alarm::OFF;
use crate::sync::{Arc, Ordering};

/// The alarm that makes the last poller look while jobs wait. One rule: *it is armed from the first demand until it comes*, and a look
/// that finds jobs waiting demands it anew. A worker that made the last demand itself, and has run out of jobs, may call it off.
#[derive(Default)]
pub(super) struct StallCheck {
    pub(super) armed: bool,
    /// Names the last demand.
    demand: u64,
    pub(super) stall: StallDetector,
    /// The token of the thread that was searching at the last look.
    searcher: Option<SearchToken>,
}

impl<J: Send + 'static> Pool<J> {
    /// The probe is to come, after this time if it is not armed already. Names the demand.
    pub(super) fn demand_stall_check<W: Driver<Job = J>>(&self, work: &W, after: Duration) -> u64 {
        let mut stall_check = self.stall_check.lock();
        stall_check.demand += 1;
        if !std::mem::replace(&mut stall_check.armed, true) {
            work.arm_stall_check(after);
        }
        stall_check.demand
    }

    /// The calling worker, which had rested for so long before, has no jobs any more. Calls the probe off if its own demand was the
    /// last: to set an alarm is cheaper than to be woken by it. But where some thread is up more often than that anyway, the
    /// probe may come.
    pub(super) fn cancel_stall_check<W: Driver<Job = J>>(&self, work: &W, demand: u64, rested: Duration) {
        let mut stall_check = self.stall_check.lock();
        // Time does not pass in a model: there it always is.
        let seldom = rested > STALL_CHECK || cfg!(all(test, timerqueue_loom));
        if seldom && stall_check.armed && stall_check.demand == demand {
            stall_check.armed = false;
            stall_check.stall.nothing_waits();
            work.arm_stall_check(OFF);
        }
    }

    /// The probe has come.
    ///
    /// Cleared before the caller looks for work: a thread that has pushed some and seen the probe armed had the lock before,
    /// and its work is seen.
    pub(super) fn stall_check_has_come(&self) {
        self.stall_check.lock().armed = false;
    }

    /// The last poller was probed, and jobs wait.
    pub(super) fn look<W: Driver<Job = J>>(&self, work: &Arc<W>, local: &LocalQueue<J>) {
        match self.idle.notify() {
            Notified::WakePoller(token) => {
                self.send_token(work.as_ref(), token);
                self.demand_stall_check(work.as_ref(), STALL_CHECK);
                return;
            }
            Notified::Covered(token) => {
                let before = self.stall_check.lock().searcher.replace(token);
                if before == Some(token) {
                    // Told at the last look or before it, and it has not come: it is kept from it. Another one is told.
                    self.idle.stop_searching(token);
                    self.notify(work.as_ref());
                } else {
                    self.demand_stall_check(work.as_ref(), STALL_CHECK);
                }
                return;
            }
            Notified::Nobody => {}
        }
        if self.is_full() {
            return; // any thread that comes back looks for jobs
        }
        let threads = self.threads_to_add(local);
        self.demand_stall_check(work.as_ref(), STALL_CHECK);
        if threads > 0 {
            self.grow(work, threads);
        }
    }

    fn threads_to_add(&self, local: &LocalQueue<J>) -> usize {
        let workers = Arc::clone(&self.workers.lock());
        // The newest number, which a plain load need not give: to read it is to write it unchanged.
        let job = |counts: &Counts| counts.jobs.fetch_add(0, Ordering::Relaxed);
        let others = || workers.iter().filter(|seat| !Arc::ptr_eq(seat, &local.seat));
        let samples: Vec<Sample> =
            others().map(|seat| Sample { thread: seat.serial, job: job(&seat.counts) }).collect();
        let busy = samples.iter().filter(|sample| sample.job % 2 == 1).count();
        let threads = self.threads.load(Ordering::Relaxed);
        let moment = Moment {
            now_ns: self.began.elapsed().as_nanos() as u64,
            waiting: self.injector.len() + workers.iter().map(|seat| seat.jobs()).sum::<usize>(),
            // In a model no time passes in which they could come.
            coming: if cfg!(all(test, timerqueue_loom)) { 0 } else { threads.saturating_sub(busy + 1) },
            target: self.config.workers.saturating_sub(1).max(1),
        };
        let sleeps = |sample: Sample| {
            let at = workers.binary_search_by_key(&sample.thread, |seat| seat.serial).ok()?;
            workers[at].thread.sleeps()
        };
        self.stall_check.lock().stall.look(&samples, moment, sleeps)
    }

    /// No thread can be added.
    pub(super) fn is_full(&self) -> bool {
        self.threads.load(Ordering::Relaxed) >= self.config.max_threads
    }

    /// Adds threads. The caller starts one, and each new thread starts further ones before it looks for jobs: starting a thread
    /// takes a while, and the caller is to watch again.
    fn grow<W: Driver<Job = J>>(&self, work: &Arc<W>, threads: usize) {
        self.growth.store(threads, Ordering::Relaxed);
        self.start_one_more(work);
    }

    /// Starts one of the threads that are still to be started. Whether there was one.
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
        if started.is_err() {
            self.demand_stall_check(work.as_ref(), STALL_CHECK_AFTER_REFUSAL);
        }
        room && started.is_ok()
    }
}
