//! The life of a thread of the pool: it rests (polls or parks) and runs jobs, in turn, until the
//! pool stops or the thread has been parked for too long.
//!
//! Ground rules. Registrations (as poller, as searcher) stand in [`WorkerLocal`]. After a panic out
//! of any function here, the thread continues from its registrations. Ticks catch the panics of
//! callbacks themselves; all other panics are caught here. [`super::jobs`] has the running of jobs.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crossbeam_deque::{Stealer, Worker};
use crossbeam_utils::CachePadded;

use super::jobs::{Batch, Job, SPARES, SharedBatch, discard, run_jobs};
use super::metrics::Counts;
use super::pace::Pace;
use super::sleep::{SearchToken, Unparked};
use super::{Driver, News, POOL, STALL_CHECK, Swept};
use crate::alarm::{Backend, Event};
use crate::sync::{Arc, AtomicBool, Ordering, fence};
use crate::sys::thread::OsThread;

/// A deque is made with this much room and never grows (I17).
pub(super) const ROOM: usize = 64;

/// The part of a worker that other threads see.
pub(super) struct WorkerShared<T> {
    pub(super) stealer: Stealer<Job<T>>,
    /// False: the deque is empty, or its worker is about to write true. Written by the worker
    /// alone, when that changes. A look reads this word first: a look into a deque takes a fence,
    /// and other cores' lines come one after the other then.
    pub(super) may_have_jobs: CachePadded<AtomicBool>,
    /// Numbers the threads in the order in which they began.
    pub(super) serial: usize,
    pub(super) thread: OsThread,
    /// Written by the worker alone.
    pub(super) counts: CachePadded<Counts>,
}

impl<T> WorkerShared<T> {
    /// Whether there are jobs to steal. The worker that has pushed a job has told so, with a fence
    /// after that; so a look after a fence sees either both or the worker's next look at this
    /// thread (I14).
    pub(super) fn has_jobs(&self) -> bool {
        self.may_have_jobs.load(Ordering::Relaxed) && !self.stealer.is_empty()
    }

    /// The number of jobs in the deque; each tick of a batch counts as a job.
    pub(super) fn jobs(&self) -> usize {
        match self.stealer.len() {
            0 => 0,
            jobs => jobs + self.counts.rest_of_batch(),
        }
    }
}

/// A worker, as its own thread has it.
pub(super) struct WorkerLocal<T> {
    pub(super) deque: Worker<Job<T>>,
    pub(super) shared: Arc<WorkerShared<T>>,
    /// The list of workers that this worker last read, with the version of the list.
    pub(super) workers: RefCell<(usize, Workers<T>)>,
    /// The worker to steal from first: each in turn.
    pub(super) scan: Cell<usize>,
    /// Whether the worker is registered as a poller.
    pub(super) polling: Cell<bool>,
    /// The search token, if the worker holds the token.
    pub(super) token: Cell<Option<SearchToken>>,
    /// The worker held the search token when it took its present job.
    pub(super) searched: Cell<bool>,
    /// The length of the worker's jobs, and the turns of other queues.
    pub(super) pace: Pace,
    /// The turn of other queues came in the middle of a batch: the next job comes from them.
    pub(super) turn: Cell<bool>,
    /// At the next turn of other queues, the deques come before the inbox.
    pub(super) others_first: Cell<bool>,
    /// Batches of the worker's sweeps; at most [`SPARES`].
    spares: RefCell<Vec<Arc<SharedBatch<T>>>>,
    /// A queue that the worker has swept, whose new alarm covers the stall check.
    pub(super) covered_by: Cell<Option<usize>>,
    /// The worker has taken or replaced an alarm that covered the stall check.
    pub(super) took_cover: Cell<bool>,
    /// The instant at which the worker last ran out of jobs, by the clock of the pool.
    pub(super) rests_since: Cell<u64>,
}

/// All workers, in order of their serial numbers.
pub(super) type Workers<T> = Arc<Vec<Arc<WorkerShared<T>>>>;

impl<T> WorkerLocal<T> {
    /// The worker of this thread, made at this instant.
    pub(super) fn new(serial: usize, now: u64, first_look: u32) -> Self {
        let deque = Worker::new_fifo();
        let shared = WorkerShared {
            stealer: deque.stealer(),
            may_have_jobs: CachePadded::default(),
            serial,
            thread: OsThread::current(),
            counts: CachePadded::default(),
        };
        Self {
            deque,
            shared: Arc::new(shared),
            workers: RefCell::new((0, Arc::default())),
            scan: Cell::new(0),
            polling: Cell::new(false),
            token: Cell::new(None),
            searched: Cell::new(false),
            pace: Pace::new(now, first_look),
            turn: Cell::new(false),
            others_first: Cell::new(false),
            spares: RefCell::new(Vec::with_capacity(SPARES)),
            covered_by: Cell::new(None),
            took_cover: Cell::new(false),
            rests_since: Cell::new(now),
        }
    }

    /// Jobs have been put into the deque, or the deque was found empty. A fence follows before the
    /// worker notifies or rests.
    pub(super) fn tell(&self, may_have_jobs: bool) {
        let told = &*self.shared.may_have_jobs;
        if told.load(Ordering::Relaxed) != may_have_jobs {
            told.store(may_have_jobs, Ordering::Relaxed);
        }
    }

    /// Drops the only job in the deque, if `is_it` recognizes the job. `Some(false)`: the job is
    /// another, and was out of the deque for a moment.
    pub(super) fn drop_if_alone(&self, is_it: impl FnOnce(&Job<T>) -> bool) -> Option<bool> {
        let job = if self.deque.len() == 1 { self.deque.pop() } else { None }?;
        let dropped = is_it(&job);
        if !dropped {
            self.deque.push(job);
        }
        Some(dropped)
    }

    /// The worker has swept this queue.
    pub(super) fn note(&self, queue: usize, swept: Swept) {
        if swept.gives_cover {
            self.covered_by.set(Some(queue));
        }
        if swept.took_cover {
            self.took_cover.set(true);
        }
    }
}

/// The reason why an idle thread continues.
pub(super) enum WakeReason<T> {
    /// Look for jobs; `Some`: run this job first.
    Run { first: Option<Job<T>> },
    /// The thread ends.
    End,
}

/// The life of a thread of the pool.
pub(super) fn worker<W: Driver>(work: &Arc<W>) {
    let pool = work.pool();
    let local = pool.join();
    POOL.with(|own| own.set(pool.id));
    // Threads that are still to be started: see `Pool::start_one_more`. Before code of the program
    // runs.
    while pool.start_one_more(work) {}
    work.tell(News::ThreadBegins);
    while let Err(payload) = catch_unwind(AssertUnwindSafe(|| live(work, &local))) {
        crate::unwind::discard(payload);
        recover(work.as_ref(), &local);
    }
    if pool.leave(&local) {
        // No thread is left that waits for events, nor will any.
        pool.alarms.release();
    }
    if pool.is_stopping() {
        while let Some(job) = local.deque.pop() {
            discard(work.as_ref(), job);
        }
        pool.discard_all(work.as_ref());
    }
    work.tell(News::ThreadEnds);
}

fn live<W: Driver>(work: &Arc<W>, local: &WorkerLocal<W::Tick>) {
    // Rest first: a thread must poll before any thread runs jobs.
    loop {
        local.polling.set(local.polling.get() || work.pool().idle.join_poll());
        match if local.polling.get() { wait(work, local) } else { park(work, local) } {
            WakeReason::Run { first } => run_jobs(work.as_ref(), local, first),
            WakeReason::End => return,
        }
    }
}

/// Code of this thread has panicked. Its registration as a poller stays; a search ends.
fn recover<W: Driver>(work: &W, local: &WorkerLocal<W::Tick>) {
    let (pool, counts) = (work.pool(), &local.shared.counts);
    counts.count_edges(counts.edges() % 2);
    if let Some(token) = local.token.take() {
        pool.idle.stop_searching(token);
    }
    // Other threads may take the jobs in its deque.
    pool.notify(work);
}

// ---------------------------------------------------------------- resting

/// Parks until there is a job. A function of its own, so that the path of a poller is straight.
#[inline(never)]
fn park<W: Driver>(work: &Arc<W>, local: &WorkerLocal<W::Tick>) -> WakeReason<W::Tick> {
    let pool = work.pool();
    let spare = pool.threads.load(Ordering::Relaxed) > pool.config.workers;
    let limit = spare.then_some(pool.config.keep_alive);
    let unparked = pool.idle.park(limit, || pool.is_stopping() || pool.has_work(local));
    if unparked != Unparked::Withdrawn {
        local.shared.counts.count_wake_up();
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
pub(super) fn wait<W: Driver>(work: &Arc<W>, local: &WorkerLocal<W::Tick>) -> WakeReason<W::Tick> {
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
                discard(work.as_ref(), job);
            }
            continue;
        }
        if checks {
            pool.stall_check.has_come();
        }
        let token = local.token.get();
        let has_work = first.is_some() || ((token.is_some() || checks) && pool.has_work(local));
        if checks && !has_work {
            pool.stall_check.nothing_waits();
        }
        if has_work && leave_poll(work.as_ref(), local) {
            // With the token, this thread wakes the next thread after finding its first job. Either
            // a thread that stops the pool sees the swept jobs, or this thread sees the stop: see
            // `Pool::share`.
            fence(Ordering::SeqCst);
            match token {
                // The expired stall check was for this search as well. Stealing may block, so a
                // further stall check must follow.
                Some(_) if checks => pool.stall_check.demand(work.as_ref(), None, STALL_CHECK),
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
fn quit<W: Driver>(work: &W, local: &WorkerLocal<W::Tick>) -> WakeReason<W::Tick> {
    local.polling.set(false);
    work.pool().idle.quit_poll();
    work.pool().wake(work); // the next poller
    WakeReason::End
}

/// The result of a call to the alarms.
struct Polled<T> {
    /// The first of the swept jobs.
    first: Option<Job<T>>,
    /// The stall check has expired, or an alarm that covered it.
    checks: bool,
}

/// Waits for events, and sweeps the queues whose alarms have expired.
fn poll<W: Driver>(work: &W, local: &WorkerLocal<W::Tick>) -> Polled<W::Tick> {
    let pool = work.pool();
    let mut polled = Polled { first: None, checks: false };
    local.covered_by.set(None);
    let take = |first: &mut Option<Job<W::Tick>>, queue| {
        if let Some(job) = sweep(work, local, queue) {
            if first.is_none() {
                *first = Some(job);
            } else {
                pool.push_local(local, job);
            }
        }
    };
    pool.alarms.wait(&mut |event| match event {
        Event::Alarm(alarm) => {
            pool.fetch(local);
            work.queues(alarm).for_each(|queue| take(&mut polled.first, queue));
        }
        Event::Wake => {
            let sent = SearchToken::from_word(pool.token_sent.swap(0, Ordering::AcqRel));
            if let Some(before) = sent.and_then(|token| local.token.replace(Some(token))) {
                pool.idle.stop_searching(before); // revoked: else there would be no second token
            }
        }
        Event::StallCheck => polled.checks = true,
        Event::WallSet => work.tell(News::WallSet),
        Event::Lost => work.tell(News::Lost),
    });
    polled.checks |= pool.stall_check.took_cover(local);
    local.shared.counts.count_wake_up();
    polled
}

/// Sweeps a queue into a job: all ticks of a section. If the sweep must go on, that is a second
/// job, in the deque: another worker takes it, and so sweeps a batch of its own.
#[inline(never)] // one copy: with the driver's part it is the longest function of the crate
pub(super) fn sweep<W: Driver>(work: &W, local: &WorkerLocal<W::Tick>, queue: usize) -> Option<Job<W::Tick>> {
    let mut batch = Batch::new();
    let swept = work.sweep(queue, &mut batch);
    local.note(queue, swept);
    let first = batch.take_job(&mut local.spares.borrow_mut());
    if !swept.more {
        return first;
    }
    let more = Job::Sweep(queue);
    if first.is_none() {
        return Some(more);
    }
    work.pool().push_local(local, more);
    first
}

/// The last poller stays, and moves its jobs to the inbox, for other threads: a deque is for jobs
/// that its own thread runs (I18).
#[inline(never)]
pub(super) fn stay<W: Driver>(work: &Arc<W>, local: &WorkerLocal<W::Tick>, first: Option<Job<W::Tick>>, checks: bool) {
    let pool = work.pool();
    if let Some(job) = first {
        pool.inbox.push(job);
    }
    while let Some(job) = local.deque.pop() {
        pool.inbox.push(job);
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
fn leave_poll<W: Driver>(work: &W, local: &WorkerLocal<W::Tick>) -> bool {
    let left = work.pool().idle.leave_poll();
    local.polling.set(!left);
    left
}
