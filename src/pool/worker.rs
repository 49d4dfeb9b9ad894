//! The life of a thread of the pool: poll or park, run jobs, poll or park again.
//!
//! Ground rules. The registrations of a thread (poller, search token) stand in its [`LocalQueue`].
//! So after a panic out of any function here, the thread continues from its registrations. Jobs
//! catch the panics of callbacks themselves; all other panics are caught here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::sleep::{SearchToken, Unparked};
use super::{Counts, Driver, LocalQueue, POOL, STALL_CHECK};
use crate::alarm::Event;
use crate::sync::{Arc, Ordering, fence};
use crate::unwind::discard;

/// The reason why an idle thread continues.
pub(super) enum WakeReason<J> {
    /// Look for jobs; `Some`: run this job first.
    Run { first: Option<J> },
    /// The thread ends.
    End,
}

/// The life of a thread of the pool.
pub(crate) fn worker<W: Driver>(work: &Arc<W>) {
    let pool = work.pool();
    let local = pool.join(work.now());
    POOL.with(|own| own.set(pool.id));
    W::adopt(work);
    // Threads that are still to be started: see `Pool::grow`.
    while pool.start_one_more(work) {}
    while let Err(payload) = catch_unwind(AssertUnwindSafe(|| live(work, &local))) {
        discard(payload);
        pool.recover(work.as_ref(), &local);
    }
    if pool.leave(&local) {
        work.no_more_waits();
    }
    if pool.is_stopping() {
        while let Some(job) = local.deque.pop() {
            work.discard(job);
        }
        pool.discard_all(work.as_ref());
    }
    work.release();
}

fn live<W: Driver>(work: &Arc<W>, local: &LocalQueue<W::Job>) {
    // Rest first: a thread must poll before any thread runs jobs.
    while let WakeReason::Run { first } = rest(work, local) {
        run_jobs(work.as_ref(), local, first);
    }
}

/// Runs jobs until none is left.
pub(super) fn run_jobs<W: Driver>(work: &W, local: &LocalQueue<W::Job>, first: Option<W::Job>) {
    let pool = work.pool();
    let began = work.now();
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
        local.shared.counts.statistics.begin(begins.take().unwrap_or_else(|| work.now()));
        Counts::add(&local.shared.counts.jobs, 1);
        let useful = work.run(job, local);
        Counts::add(&local.shared.counts.jobs, 1);
        Counts::add(&local.shared.counts.useful, u64::from(useful));
        local.pace.count();
    }
    if let Some(job) = next {
        work.discard(job);
    }
    let ended = work.now();
    local.pace.measure(ended);
    let rested = Duration::from_nanos(began.saturating_sub(local.rests_since.replace(ended)));
    pool.cancel_stall_check(work, local, rested);
    if let Some(token) = local.token.take() {
        pool.idle.stop_searching(token);
    }
}

/// The searcher has found a job: the next thread may search for further jobs.
#[inline(never)]
fn pass_on<W: Driver>(work: &W, local: &LocalQueue<W::Job>, token: SearchToken) {
    let pool = work.pool();
    pool.idle.stop_searching(token);
    if pool.has_work(local) {
        pool.notify(work);
    }
}

/// Polls or parks until there is a job.
fn rest<W: Driver>(work: &Arc<W>, local: &LocalQueue<W::Job>) -> WakeReason<W::Job> {
    let pool = work.pool();
    if local.polling.get() || pool.idle.join_poll() {
        local.polling.set(true);
        return wait(work, local);
    }
    park(work, local)
}

/// Parks until there is a job. A function of its own, so that the path of a poller is straight.
#[inline(never)]
fn park<W: Driver>(work: &Arc<W>, local: &LocalQueue<W::Job>) -> WakeReason<W::Job> {
    let pool = work.pool();
    let spare = pool.threads.load(Ordering::Relaxed) > pool.config.workers;
    let limit = spare.then_some(pool.config.keep_alive);
    let unparked = pool.idle.park(limit, || pool.is_stopping() || pool.has_work(local));
    if unparked != Unparked::Withdrawn {
        local.shared.counts.statistics.woken();
    }
    match unparked {
        Unparked::Stopped => WakeReason::End,
        Unparked::Searcher(_) | Unparked::Withdrawn if pool.is_stopping() => WakeReason::End,
        Unparked::Searcher(token) => {
            local.token.set(Some(token));
            WakeReason::Run { first: None }
        }
        Unparked::Withdrawn => WakeReason::Run { first: None },
        Unparked::TimedOut => {
            let retired = pool
                .threads
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n > pool.config.workers).then(|| n - 1))
                .is_ok();
            // A thread that pushed a job meanwhile may have seen no idle thread, and no room for a
            // further thread.
            fence(Ordering::SeqCst);
            if retired && pool.has_work(local) {
                pool.notify(work.as_ref());
            }
            if retired { WakeReason::End } else { WakeReason::Run { first: None } }
        }
    }
}

/// The life of a poller, from joining to leaving.
pub(super) fn wait<W: Driver>(work: &Arc<W>, local: &LocalQueue<W::Job>) -> WakeReason<W::Job> {
    let pool = work.pool();
    // Registered: jobs published before are seen now, and jobs published later find this thread.
    if pool.has_work(local) && !pool.is_stopping() {
        if leave_poll(work.as_ref(), local) {
            return WakeReason::Run { first: None };
        }
        pool.notify(work.as_ref());
    }
    loop {
        if pool.is_stopping() {
            return quit(work.as_ref(), local);
        }
        let Polled { first, checks } = poll(work.as_ref(), local);
        if pool.is_stopping() {
            if let Some(job) = first {
                work.discard(job);
            }
            continue;
        }
        if checks {
            pool.stall_check_has_come();
        }
        let token = local.token.get();
        let has_work = first.is_some() || ((token.is_some() || checks) && pool.has_work(local));
        if checks && !has_work {
            pool.stall_check.lock().stall.nothing_waits();
        }
        if has_work && leave_poll(work.as_ref(), local) {
            // With the token, this thread wakes the next thread after finding its first job. Either
            // a thread that stops the pool sees the swept jobs, or this thread sees the stop: see
            // `Pool::share`.
            fence(Ordering::SeqCst);
            match token {
                // The expired stall check was for this search as well. Stealing may block, so a
                // further stall check must follow.
                Some(_) if checks => pool.demand_stall_check(work.as_ref(), None, STALL_CHECK),
                Some(_) => {}
                None if checks => pool.notify(work.as_ref()),
                None => pool.share(work.as_ref(), local),
            }
            return WakeReason::Run { first };
        }
        if has_work {
            stay(work, local, first, checks);
        } else if let Some(token) = local.token.take() {
            pool.idle.stop_searching(token);
            if pool.has_work(local) {
                pool.notify(work.as_ref());
            }
        }
    }
}

/// The pool stops: a poller ends.
#[cold]
fn quit<W: Driver>(work: &W, local: &LocalQueue<W::Job>) -> WakeReason<W::Job> {
    local.polling.set(false);
    work.pool().idle.quit_poll();
    work.wake(); // the next poller
    WakeReason::End
}

/// The result of a call to the alarms.
struct Polled<J> {
    /// The first of the swept jobs.
    first: Option<J>,
    /// The stall check has expired, or an alarm that covered it.
    checks: bool,
}

/// Waits for events, and sweeps the queues whose alarms have expired.
fn poll<W: Driver>(work: &W, local: &LocalQueue<W::Job>) -> Polled<W::Job> {
    let pool = work.pool();
    let mut polled = Polled { first: None, checks: false };
    local.covered_by.set(None);
    let sweep = |first: &mut Option<W::Job>, queue| {
        if let Some(job) = work.sweep(queue, local) {
            if first.is_none() {
                *first = Some(job);
            } else {
                pool.push_local(local, job);
            }
        }
    };
    work.wait(|event| match event {
        Event::Shard(queue) => {
            pool.fetch(local);
            sweep(&mut polled.first, queue);
            work.sweep_relying(queue, |relying| sweep(&mut polled.first, relying));
        }
        Event::Wake => {
            let sent = SearchToken::from_word(pool.token_sent.swap(0, Ordering::AcqRel));
            if let Some(before) = sent.and_then(|token| local.token.replace(Some(token))) {
                pool.idle.stop_searching(before); // revoked: else there would be no second token
            }
        }
        Event::StallCheck => polled.checks = true,
        Event::WallSet | Event::Lost => {} // the engine has seen these
    });
    polled.checks |= pool.took_cover(local);
    local.shared.counts.statistics.woken();
    polled
}

/// The last poller stays, and moves its jobs to the inbox, for other threads: a deque is for jobs
/// that its own thread runs (I18).
#[inline(never)]
pub(super) fn stay<W: Driver>(work: &Arc<W>, local: &LocalQueue<W::Job>, first: Option<W::Job>, checks: bool) {
    let pool = work.pool();
    if let Some(job) = first {
        pool.inject(job);
    }
    while let Some(job) = local.deque.pop() {
        pool.inject(job);
    }
    local.tell(false);
    if let Some(token) = local.token.take() {
        pool.idle.stop_searching(token);
    }
    if checks {
        pool.look(work, local);
    } else {
        pool.notify(work.as_ref());
    }
}

/// Changes from polling to running, unless this thread is the last poller.
fn leave_poll<W: Driver>(work: &W, local: &LocalQueue<W::Job>) -> bool {
    let left = work.pool().idle.leave_poll();
    local.polling.set(!left);
    left
}

impl<J: Send + 'static> super::Pool<J> {
    /// Code of this thread has panicked. Its registration as a poller stays; a search ends.
    fn recover<W: Driver<Job = J>>(&self, work: &W, local: &LocalQueue<J>) {
        let jobs = &local.shared.counts.jobs;
        Counts::add(jobs, jobs.load(Ordering::Relaxed) % 2);
        if let Some(token) = local.token.take() {
            self.idle.stop_searching(token);
        }
        // Other threads may take the jobs in its deque.
        self.notify(work);
    }
}
