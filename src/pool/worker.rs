//! The life of a thread of the pool: rest, watch or park, run jobs, rest again.
//!
//! Ground rules. What a thread is registered for (watching, the search token) stands in its [`Local`], so that a panic which comes
//! out of anything here leaves nothing behind: the thread goes on from what it is registered for. Jobs contain the panics of
//! user code themselves; this is for whatever else may unwind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::idle::{Token, Unparked};
use super::{Counts, Local, POOL, Work};
use crate::alarm::Event;
use crate::sync::{Arc, Ordering, fence};
use crate::unwind::contained;

/// What made an idle thread go on.
enum Roused<J> {
    /// Look for jobs; `Some`: run this one first.
    Run { first: Option<J> },
    /// The thread ends.
    End,
}

/// The life of a thread of the pool.
pub(crate) fn worker<W: Work>(work: &Arc<W>) {
    let pool = work.pool();
    let local = pool.join();
    POOL.with(|own| own.set(pool.id));
    // Threads that are still to be started: see `Pool::grow`.
    while pool.start_one_more(work) {}
    while let Err(payload) = catch_unwind(AssertUnwindSafe(|| live(work, &local))) {
        contained(|| drop(payload));
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

fn live<W: Work>(work: &Arc<W>, local: &Local<W::Job>) {
    // Rest first: some thread must watch before any runs.
    while let Roused::Run { first } = rest(work, local) {
        run_jobs(work.as_ref(), local, first);
    }
}

/// Runs jobs until none is left.
pub(super) fn run_jobs<W: Work>(work: &W, local: &Local<W::Job>, first: Option<W::Job>) {
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
        pool.call_off(work, demand, rested);
    }
    if let Some(token) = local.token.take() {
        pool.idle.stop_searching(token);
    }
}

/// Watches or parks until there is something to do.
fn rest<W: Work>(work: &Arc<W>, local: &Local<W::Job>) -> Roused<W::Job> {
    let pool = work.pool();
    if local.watching.get() || pool.idle.join_watch() {
        local.watching.set(true);
        return watch(work, local);
    }
    let spare = pool.threads.load(Ordering::Relaxed) > pool.shape.workers;
    let limit = spare.then_some(pool.shape.keep_alive);
    match pool.idle.park(limit, || pool.is_stopping() || pool.has_work(local)) {
        Unparked::Stopped => Roused::End,
        Unparked::Searcher(_) | Unparked::Withdrawn if pool.is_stopping() => Roused::End,
        Unparked::Searcher(token) => {
            local.token.set(Some(token));
            Roused::Run { first: None }
        }
        Unparked::Withdrawn => Roused::Run { first: None },
        Unparked::TimedOut => {
            let retired = pool
                .threads
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n > pool.shape.workers).then(|| n - 1))
                .is_ok();
            // A thread that pushed meanwhile may have seen no idle thread, and no room for another.
            fence(Ordering::SeqCst);
            if retired && pool.has_work(local) {
                pool.notify(work.as_ref());
            }
            if retired { Roused::End } else { Roused::Run { first: None } }
        }
    }
}

/// The life of a poller, from joining to leaving.
fn watch<W: Work>(work: &Arc<W>, local: &Local<W::Job>) -> Roused<W::Job> {
    let pool = work.pool();
    // Registered; what was published before is seen now, what comes later finds this thread.
    if pool.has_work(local) && !pool.is_stopping() {
        if leave_watch(work.as_ref(), local) {
            return Roused::Run { first: None };
        }
        pool.notify(work.as_ref());
    }
    loop {
        if pool.is_stopping() {
            local.watching.set(false);
            pool.idle.quit_watch();
            work.wake(); // the next one
            return Roused::End;
        }
        let Polled { first, probed } = poll(work.as_ref(), local);
        if pool.is_stopping() {
            if let Some(job) = first {
                work.discard(job);
            }
            continue;
        }
        if probed {
            pool.probe_has_come();
        }
        let token = local.token.get();
        let has_work = first.is_some() || ((token.is_some() || probed) && pool.has_work(local));
        if probed && !has_work {
            pool.probe.lock().stall.nothing_waits();
        }
        if has_work && leave_watch(work.as_ref(), local) {
            // With the token, the next thread is told when the first job has been found. What was swept is seen by a thread that
            // stops the pool, or this thread sees the stop: see `Pool::share`.
            fence(Ordering::SeqCst);
            match token {
                Some(_) => {}
                None if probed => pool.notify(work.as_ref()),
                None => pool.share(work.as_ref(), local),
            }
            return Roused::Run { first };
        }
        if has_work {
            stay(work, local, first, probed);
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
    probed: bool,
}

/// Waits for events, and sweeps the queues whose alarms have expired.
fn poll<W: Work>(work: &W, local: &Local<W::Job>) -> Polled<W::Job> {
    let pool = work.pool();
    let mut polled = Polled { first: None, probed: false };
    work.watch(|event| match event {
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
            let sent = Token::from_word(pool.token_sent.swap(0, Ordering::AcqRel));
            if let Some(before) = sent.and_then(|token| local.token.replace(Some(token))) {
                pool.idle.stop_searching(before); // revoked since, or there would be no second one
            }
        }
        Event::Probe => polled.probed = true,
        Event::WallSet | Event::Lost => {} // nothing of the pool's; the engine has heard
    });
    polled
}

/// The last poller stays, and sees to it that another thread runs the jobs: its own deque is for jobs that it runs itself.
fn stay<W: Work>(work: &Arc<W>, local: &Local<W::Job>, first: Option<W::Job>, probed: bool) {
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
    if probed {
        pool.look(work, local);
    } else {
        pool.notify(work.as_ref());
    }
}

/// Goes from watching to running, unless this is the last watcher.
fn leave_watch<W: Work>(work: &W, local: &Local<W::Job>) -> bool {
    let left = work.pool().idle.leave_watch();
    local.watching.set(!left);
    left
}

impl<J: Send + 'static> super::Pool<J> {
    /// A panic has come out of the life of this thread. What it was registered for still holds, but for a search.
    fn recover<W: Work<Job = J>>(&self, work: &W, local: &Local<J>) {
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
