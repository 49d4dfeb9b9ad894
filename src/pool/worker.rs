//! The life of a thread of the pool: rest, watch or park, run jobs, rest again.
//!
//! Ground rules. What a thread is registered for (watching, the search token) stands in its [`LocalQueue`], so that a panic which comes
//! out of anything here leaves nothing behind: the thread goes on from what it is registered for. Jobs contain the panics of
//! user code themselves; this is for whatever else may unwind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::sleep::{SearchToken, Unparked};
use super::{Counts, Driver, LocalQueue, POOL, STALL_CHECK};
use crate::alarm::Event;
use crate::sync::{Arc, Ordering, fence};
use crate::unwind::catch_all;

/// What made an idle thread go on.
enum WakeReason<J> {
    /// Look for jobs; `Some`: run this one first.
    Run { first: Option<J> },
    /// The thread ends.
    End,
}

/// The life of a thread of the pool.
pub(crate) fn worker<W: Driver>(work: &Arc<W>) {
    let pool = work.pool();
    let local = pool.join();
    POOL.with(|own| own.set(pool.id));
    // Threads that are still to be started: see `Pool::grow`.
    while pool.start_one_more(work) {}
    while let Err(payload) = catch_unwind(AssertUnwindSafe(|| live(work, &local))) {
        catch_all(|| drop(payload));
        pool.recover(work.as_ref(), &local);
    }
    pool.leave(&local);
    if pool.is_stopping() {
        while let Some(job) = local.deque.pop() {
            work.discard(job);
        }
        pool.discard_all(work.as_ref());
    }
}

fn live<W: Driver>(work: &Arc<W>, local: &LocalQueue<W::Job>) {
    // Rest first: some thread must watch before any runs.
    while let WakeReason::Run { first } = rest(work, local) {
        run_jobs(work.as_ref(), local, first);
    }
}

/// Runs jobs until none is left.
pub(super) fn run_jobs<W: Driver>(work: &W, local: &LocalQueue<W::Job>, first: Option<W::Job>) {
    let pool = work.pool();
    let mut next = first;
    let began = Instant::now();
    local.pace.begin(began);
    let rested = began.saturating_duration_since(local.rests_since.get());
    while !pool.is_stopping() {
        let Some(job) = next.take().or_else(|| pool.next_job(work, local)) else { break };
        if let Some(token) = local.token.take() {
            // Found something: the next one may search for what is left.
            pool.idle.stop_searching(token);
            if pool.has_work(local) {
                pool.notify(work);
            }
        }
        Counts::add(&local.seat.counts.jobs, 1);
        let useful = work.run(job, local);
        Counts::add(&local.seat.counts.jobs, 1);
        Counts::add(&local.seat.counts.useful, u64::from(useful));
        local.pace.count();
    }
    if let Some(job) = next {
        work.discard(job);
    }
    let ended = Instant::now();
    local.pace.measure(ended);
    local.rests_since.set(ended);
    if let Some(demand) = local.demand.take() {
        pool.cancel_stall_check(work, demand, rested);
    }
    if let Some(token) = local.token.take() {
        pool.idle.stop_searching(token);
    }
}

/// Watches or parks until there is something to do.
fn rest<W: Driver>(work: &Arc<W>, local: &LocalQueue<W::Job>) -> WakeReason<W::Job> {
    let pool = work.pool();
    if local.polling.get() || pool.idle.join_poll() {
        local.polling.set(true);
        return wait(work, local);
    }
    let spare = pool.threads.load(Ordering::Relaxed) > pool.config.workers;
    let limit = spare.then_some(pool.config.keep_alive);
    match pool.idle.park(limit, || pool.is_stopping() || pool.has_work(local)) {
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
            // A thread that pushed meanwhile may have seen no idle thread, and no room for another.
            fence(Ordering::SeqCst);
            if retired && pool.has_work(local) {
                pool.notify(work.as_ref());
            }
            if retired { WakeReason::End } else { WakeReason::Run { first: None } }
        }
    }
}

/// The life of a poller, from joining to leaving.
fn wait<W: Driver>(work: &Arc<W>, local: &LocalQueue<W::Job>) -> WakeReason<W::Job> {
    let pool = work.pool();
    // Registered; what was published before is seen now, what comes later finds this thread.
    if pool.has_work(local) && !pool.is_stopping() {
        if leave_poll(work.as_ref(), local) {
            return WakeReason::Run { first: None };
        }
        pool.notify(work.as_ref());
    }
    loop {
        if pool.is_stopping() {
            local.polling.set(false);
            pool.idle.quit_poll();
            work.wake(); // the next one
            return WakeReason::End;
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
            // With the token, the next thread is told when the first job has been found. What was swept is seen by a thread that
            // stops the pool, or this thread sees the stop: see `Pool::share`.
            fence(Ordering::SeqCst);
            match token {
                // The stall check that came along was for this search, too: stealing may block, so another one must follow.
                Some(_) if checks => _ = pool.demand_stall_check(work.as_ref(), STALL_CHECK),
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

/// What one call to the alarms has brought.
struct Polled<J> {
    /// The first job of what was swept.
    first: Option<J>,
    /// The stall check has come.
    checks: bool,
}

/// Waits for events, and sweeps the queues whose alarms have expired.
fn poll<W: Driver>(work: &W, local: &LocalQueue<W::Job>) -> Polled<W::Job> {
    let pool = work.pool();
    let mut polled = Polled { first: None, checks: false };
    work.wait(|event| match event {
        Event::Queue(queue) => {
            if let Some(job) = work.sweep(queue, local) {
                if polled.first.is_none() {
                    polled.first = Some(job);
                } else {
                    pool.keep(local, job);
                }
            }
        }
        Event::Wake => {
            let sent = SearchToken::from_word(pool.token_sent.swap(0, Ordering::AcqRel));
            if let Some(before) = sent.and_then(|token| local.token.replace(Some(token))) {
                pool.idle.stop_searching(before); // revoked since, or there would be no second one
            }
        }
        Event::StallCheck => polled.checks = true,
        Event::WallSet | Event::Lost => {} // nothing of the pool's; the engine has heard
    });
    polled
}

/// The last poller stays, and sees to it that another thread runs the jobs. Its own deque is for jobs that it runs itself (I18).
fn stay<W: Driver>(work: &Arc<W>, local: &LocalQueue<W::Job>, first: Option<W::Job>, checks: bool) {
    let pool = work.pool();
    if let Some(job) = first {
        pool.inject(job);
    }
    while let Some(job) = local.deque.pop() {
        pool.inject(job);
    }
    if let Some(token) = local.token.take() {
        pool.idle.stop_searching(token);
    }
    if checks {
        pool.look(work, local);
    } else {
        pool.notify(work.as_ref());
    }
}

/// Goes from watching to running, unless this is the last poller.
fn leave_poll<W: Driver>(work: &W, local: &LocalQueue<W::Job>) -> bool {
    let left = work.pool().idle.leave_poll();
    local.polling.set(!left);
    left
}

impl<J: Send + 'static> super::Pool<J> {
    /// A panic has come out of the life of this thread. What it was registered for still holds, but for a search.
    fn recover<W: Driver<Job = J>>(&self, work: &W, local: &LocalQueue<J>) {
        let jobs = &local.seat.counts.jobs;
        Counts::add(jobs, jobs.load(Ordering::Relaxed) % 2);
        local.demand.set(None);
        if let Some(token) = local.token.take() {
            self.idle.stop_searching(token);
        }
        // Jobs in its deque are there for all.
        self.notify(work);
    }
}
