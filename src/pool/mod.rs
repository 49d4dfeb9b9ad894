//! The pool: threads that take alarms and run jobs, stealing from each other.
//!
//! Ground rules. Generic over its job; knows no timers. What an alarm means, what a job does, and how to block for an
//! alarm is told by [`Driver`]. No lock of the pool is held while a job runs, and none while a job is stolen.
//!
//! A thread is one of three things. It *runs*: takes jobs from its own deque, the injector and other deques. It *watches*:
//! blocks in the alarm set; the one that the kernel wakes sweeps, hands all but the first due job to its deque, and runs
//! that first one itself, provided that another thread still watches. Or it is *parked*. [`idle`] says which is which,
//! [`worker`] is the life of a thread, [`threads_alive`] knows the threads that have not ended.
//!
//! The last poller never runs jobs. It sweeps, and puts what is due into the injector. While jobs wait that no thread has
//! taken up, an alarm of the pool's own (the *probe*) makes it look every [`STALL_CHECK`]: [`stall`] says how many threads to add.
//! This is how a callback that blocks for ever delays no other, without a second thread in the ordinary path.
//!
//! **Foreign code.** The deques share the process-wide epoch collector of `crossbeam-epoch`. Pinning it, which stealing from a
//! deque does, and growing or shrinking a deque, runs closures that any other crate has deferred. So a deque never holds
//! more than [`ROOM`] jobs, which never makes it grow, and what does not fit goes to the injector, which pins nothing; no lock
//! is held while stealing; and a panic that comes out of it ends there ([`Pool::steal_from`]).

mod pace;
pub(crate) mod sleep;
mod stall;
mod stall_check;
mod threads;
mod worker;

use std::cell::{Cell, Ref, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64 as StaticAtomicU64;
use std::time::{Duration, Instant};

use crossbeam_deque::{Injector, Steal, Stealer, Worker};
use crossbeam_utils::CachePadded;

use self::pace::Pace;
use self::sleep::{Notified, SearchToken, Sleep};
use self::stall_check::StallCheck;
use self::threads::Threads;
#[cfg(all(test, timerqueue_loom))]
pub(crate) use self::worker::worker;
use crate::alarm::Event;
use crate::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, fence};
use crate::sys::thread::OsThread;
use crate::sys::topology::{Mask, confine};
use crate::unwind::catch_all;

/// How long jobs may wait before the pool looks whether a thread must be added.
const STALL_CHECK: Duration = Duration::from_micros(500);
/// How long to wait before trying again to start a thread that the system has refused.
const STALL_CHECK_AFTER_REFUSAL: Duration = Duration::from_millis(20);
/// Threads that watch at once: one to take an alarm, one to take the next, one to stay. With more, the kernel would
/// spread alarms over ever colder threads.
const MAX_POLLERS: usize = 3;
/// Jobs that the thread at hand will have run sooner than that are not worth waking another one for: some times what that costs,
/// in its own time and in the waker's. Should one of them block after all, the probe sees to the rest.
const WORTH_WAKING_NS: u64 = 100_000;
/// A thread that has jobs of its own takes one from elsewhere about this often, so that no queue starves.
const FAIR_NS: u64 = 200_000;
/// It looks at the clock once in this many jobs at least.
const FAIR_JOBS: u64 = 61;
/// A deque is made with this much room and never grows (I17).
const ROOM: usize = 64;

/// How many threads, and how they are named.
#[derive(Clone, Debug)]
pub(crate) struct PoolConfig {
    pub(crate) workers: usize,
    pub(crate) max_threads: usize,
    pub(crate) keep_alive: Duration,
    pub(crate) name: String,
    /// Core ids to pin the first `workers` threads to, in turn; empty for no pinning.
    pub(crate) pin_to: Vec<core_affinity::CoreId>,
    /// The cores that the others set for themselves; `None`: those that they inherit.
    pub(crate) mask: Option<Mask>,
}

impl PoolConfig {
    /// The core that the thread of this number stays on.
    fn core_of(&self, serial: usize) -> Option<core_affinity::CoreId> {
        if serial < self.workers { self.pin_to.iter().cycle().nth(serial).copied() } else { None }
    }
}

/// What the pool is told by its user.
pub(crate) trait Driver: Send + Sync + Sized + 'static {
    /// Something to run once, or to be discarded.
    type Job: Send + 'static;

    /// The pool itself.
    fn pool(&self) -> &Pool<Self::Job>;
    /// Blocks until events are there; see the contract in [`crate::alarm`].
    fn wait(&self, report: impl FnMut(Event));
    /// Makes one `wait` return [`Event::Wake`].
    fn wake(&self);
    /// Reports [`Event::StallCheck`] after this time.
    fn arm_stall_check(&self, after: Duration);
    /// An alarm has expired: hands what is due to [`Pool::keep`], but returns the first.
    fn sweep(&self, queue: usize, local: &LocalQueue<Self::Job>) -> Option<Self::Job>;
    /// The pool stops, and this job will not run.
    fn discard(&self, job: Self::Job);
    /// Runs a job; whether it came to something, for the statistics. Does not unwind.
    fn run(&self, job: Self::Job, local: &LocalQueue<Self::Job>) -> bool;
}

/// What other threads see of a worker.
struct WorkerShared<J> {
    stealer: Stealer<J>,
    /// In the order in which the threads began.
    serial: usize,
    thread: OsThread,
    /// Written by the owner alone.
    counts: CachePadded<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Twice the jobs that have returned; odd while one runs. (To steal counts as a job: it may run foreign code.)
    jobs: AtomicU64,
    /// Jobs that came to something.
    useful: AtomicU64,
    /// The rest of the batch of which this thread last took a part, while that stands in its deque as a single job.
    batched: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}

/// All seats, in order of their serial numbers.
type Workers<J> = Arc<Vec<Arc<WorkerShared<J>>>>;

/// A worker's own deque: first in, first out; others steal from it. And what the worker knows of itself.
pub(crate) struct LocalQueue<J> {
    deque: Worker<J>,
    seat: Arc<WorkerShared<J>>,
    /// The seats as this worker last saw them, and the version of that.
    workers: RefCell<(usize, Workers<J>)>,
    /// Where it looks first when it steals: each in turn.
    scan: Cell<usize>,
    /// It is registered as a poller.
    polling: Cell<bool>,
    /// It holds the search token.
    token: Cell<Option<SearchToken>>,
    /// How long its jobs take, and when it takes one from elsewhere.
    pace: Pace,
    /// The next job comes from elsewhere: its turn has come in the middle of a batch.
    turn: Cell<bool>,
    /// At the next turn of jobs from elsewhere, the other deques come before the injector.
    others_first: Cell<bool>,
    /// Names its own demand for the probe.
    demand: Cell<Option<u64>>,
    /// When it last ran out of jobs.
    rests_since: Cell<Instant>,
}

impl<J> LocalQueue<J> {
    /// A worker that no other thread can steal from.
    pub(crate) fn new() -> Self {
        let deque = Worker::new_fifo();
        let seat = WorkerShared {
            stealer: deque.stealer(),
            serial: 0,
            thread: OsThread::current(),
            counts: CachePadded::default(),
        };
        let now = Instant::now();
        Self {
            deque,
            seat: Arc::new(seat),
            workers: RefCell::new((0, Arc::default())),
            scan: Cell::new(0),
            polling: Cell::new(false),
            token: Cell::new(None),
            pace: Pace::new(now),
            turn: Cell::new(false),
            others_first: Cell::new(false),
            demand: Cell::new(None),
            rests_since: Cell::new(now),
        }
    }

    /// Puts a job into the deque, unless that is full.
    pub(crate) fn keep(&self, job: J) -> Result<(), J> {
        if self.deque.len() < ROOM {
            self.deque.push(job);
            Ok(())
        } else {
            Err(job)
        }
    }

    /// The worker has taken a part of a batch, which is one job in the deques; so many parts are left.
    pub(crate) fn set_rest_of_batch(&self, left: usize) {
        self.seat.counts.batched.store(left as u64, Ordering::Relaxed);
    }

    /// Takes the only job out of the deque again, if it is this one.
    pub(crate) fn drop_if_alone(&self, is_it: impl FnOnce(&J) -> bool) {
        if self.deque.len() == 1 {
            match self.deque.pop() {
                Some(job) if !is_it(&job) => self.deque.push(job),
                _ => {}
            }
        }
    }
}

impl<J> WorkerShared<J> {
    /// Jobs in the deque, with the parts of a batch counted one by one.
    fn jobs(&self) -> usize {
        match self.stealer.len() {
            0 => 0,
            jobs => jobs + self.counts.batched.load(Ordering::Relaxed) as usize,
        }
    }
}

pub(crate) struct Pool<J> {
    config: PoolConfig,
    idle: Sleep,
    injector: Injector<J>,
    workers: Mutex<Workers<J>>,
    /// Goes up with each change of `workers`.
    workers_version: AtomicUsize,
    /// Jobs that came to something on threads that have ended.
    ended_useful: AtomicU64,
    stopping: AtomicBool,
    /// The search token that is on its way to a poller, or zero. (A wake-up alone does not prove it: a forked child may have
    /// caused one.)
    token_sent: AtomicUsize,
    stall_check: Mutex<StallCheck>,
    threads: AtomicUsize,
    /// Threads still to be started; each new one starts some of them.
    growth: AtomicUsize,
    threads_alive: Arc<Threads>,
    serial: AtomicUsize,
    began: Instant,
    id: u64,
}

impl<J: Send + 'static> Pool<J> {
    pub(crate) fn new(config: PoolConfig) -> Self {
        Self {
            idle: Sleep::new(MAX_POLLERS.min(config.workers)),
            config,
            injector: Injector::new(),
            workers: Mutex::default(),
            workers_version: AtomicUsize::new(0),
            ended_useful: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            token_sent: AtomicUsize::new(0),
            stall_check: Mutex::default(),
            threads: AtomicUsize::new(0),
            growth: AtomicUsize::new(0),
            threads_alive: Arc::default(),
            serial: AtomicUsize::new(0),
            began: Instant::now(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Starts the workers, all or none.
    pub(crate) fn start<W: Driver<Job = J>>(work: &Arc<W>) -> io::Result<()> {
        let pool = work.pool();
        for _ in 0..pool.config.workers {
            pool.threads.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = pool.spawn(work) {
                Self::stop(work.as_ref());
                pool.wait_until_ended(None);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Counts one thread more, unless the limit is reached. Threads that are being started each start further ones, at once: to
    /// look at the number first and to raise it then would let each of them through.
    fn reserve_thread(&self) -> bool {
        let one_more = |n: usize| (n < self.config.max_threads).then_some(n + 1);
        self.threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// Starts a thread that has been counted; one that is refused is counted no more.
    fn spawn<W: Driver<Job = J>>(&self, work: &Arc<W>) -> io::Result<()> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let (pin, mask) = (self.config.core_of(serial), self.config.mask);
        let theirs = Arc::clone(work);
        let body = move || {
            confine(pin, mask);
            worker::worker(&theirs);
        };
        let name = format!("{}-{serial}", self.config.name);
        let leave = || POOL.with(|pool| pool.set(0));
        let started = self.threads_alive.start(name, serial, self.config.max_threads, body, leave);
        if started.is_err() {
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
        started
    }

    /// A job from outside the pool, or one that goes on by itself: it goes to the back.
    pub(crate) fn submit<W: Driver<Job = J>>(work: &W, job: J) {
        let pool = work.pool();
        pool.injector.push(job);
        pool.notify(work); // with a fence, which pairs with the one in `stop`
        if pool.is_stopping() {
            pool.discard_all(work);
        }
    }

    /// Puts a job into the deque of the calling worker, or, where that is full, into the injector. The caller calls
    /// [`Self::share`] when all are there.
    pub(crate) fn keep(&self, local: &LocalQueue<J>, job: J) {
        if let Err(job) = local.keep(job) {
            self.inject(job);
        }
    }

    /// Puts a job into the injector, where any thread takes it. No thread is told.
    pub(crate) fn inject(&self, job: J) {
        self.injector.push(job);
    }

    /// Work has been published; tells one idle thread, which tells the next.
    pub(crate) fn notify<W: Driver<Job = J>>(&self, work: &W) {
        match self.idle.notify() {
            Notified::Covered(_) => {}
            Notified::WakePoller(token) => self.send_token(work, token),
            Notified::Nobody if self.is_full() => return,
            Notified::Nobody => {}
        }
        // A thread that was told to look may be kept from it.
        self.demand_stall_check(work, STALL_CHECK);
    }

    /// The calling worker has put jobs into its own deque and goes on to run them: tells another thread if that will take
    /// longer than it takes the other to come.
    pub(crate) fn share<W: Driver<Job = J>>(&self, work: &W, local: &LocalQueue<J>) {
        let jobs = local.seat.jobs() as u64;
        if jobs == 0 {
            return;
        }
        if local.pace.job_ns().saturating_mul(jobs) > WORTH_WAKING_NS {
            self.notify(work);
        } else {
            // Also at the limit of threads: there may be an idle one, which is not told now.
            local.demand.set(Some(self.demand_stall_check(work, STALL_CHECK)));
            // The jobs are seen by a thread that stops the pool, or the caller sees that it stops; see `stop`.
            fence(Ordering::SeqCst);
        }
    }

    /// A part of a batch has returned, and is counted as a job. Whether the calling worker goes on with the batch: not if the pool
    /// stops, nor if a job from elsewhere has its turn.
    pub(crate) fn continues_batch(&self, local: &LocalQueue<J>, useful: bool) -> bool {
        Counts::add(&local.seat.counts.jobs, 2);
        Counts::add(&local.seat.counts.useful, u64::from(useful));
        local.pace.count();
        local.turn.set(local.pace.is_fair_turn(Instant::now));
        !local.turn.get() && !self.is_stopping()
    }

    fn send_token<W: Driver<Job = J>>(&self, work: &W, token: SearchToken) {
        self.token_sent.store(token.to_word(), Ordering::Release);
        work.wake();
    }

    /// Jobs so far that came to something.
    pub(crate) fn useful(&self) -> u64 {
        // The lock also guards the move of a thread's count to those that have ended.
        let workers = self.workers.lock();
        let now: u64 = workers.iter().map(|seat| seat.counts.useful.load(Ordering::Relaxed)).sum();
        now + self.ended_useful.load(Ordering::Relaxed)
    }

    /// Threads that have not ended.
    pub(crate) fn threads(&self) -> usize {
        self.threads_alive.alive()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// A worker that others can steal from.
    fn join(&self) -> LocalQueue<J> {
        let mut local = LocalQueue::new();
        let mut workers = self.workers.lock();
        let serial = workers.last().map_or(0, |last| last.serial + 1);
        if let Some(seat) = Arc::get_mut(&mut local.seat) {
            seat.serial = serial;
        }
        let mut all = Vec::with_capacity(workers.len() + 1);
        all.extend(workers.iter().cloned());
        all.push(Arc::clone(&local.seat));
        *workers = Arc::new(all);
        self.workers_version.fetch_add(1, Ordering::Release);
        drop(workers);
        local
    }

    /// The worker ends: its counts are kept.
    fn leave(&self, local: &LocalQueue<J>) {
        let mut workers = self.workers.lock();
        let others = workers.iter().filter(|seat| !Arc::ptr_eq(seat, &local.seat)).cloned().collect();
        *workers = Arc::new(others);
        self.workers_version.fetch_add(1, Ordering::Release);
        self.ended_useful.fetch_add(local.seat.counts.useful.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// The seats, without a lock where none has come or gone.
    fn workers_for<'a>(&self, local: &'a LocalQueue<J>) -> Ref<'a, [Arc<WorkerShared<J>>]> {
        let version = self.workers_version.load(Ordering::Acquire);
        if local.workers.borrow().0 != version {
            *local.workers.borrow_mut() = (version, Arc::clone(&self.workers.lock()));
        }
        Ref::map(local.workers.borrow(), |(_, workers)| workers.as_slice())
    }

    fn has_work(&self, local: &LocalQueue<J>) -> bool {
        !self.injector.is_empty() || self.workers_for(local).iter().any(|seat| !seat.stealer.is_empty())
    }

    /// The next job for a worker: its own, then those from the injector, then those of others; and at a fair turn the other way
    /// round.
    fn next_job<W: Driver<Job = J>>(&self, work: &W, local: &LocalQueue<J>) -> Option<J> {
        if local.turn.take() || local.pace.is_fair_turn(Instant::now) {
            if let Some(job) = self.one_from_elsewhere(local) {
                return Some(job);
            }
        }
        if let Some(job) = local.deque.pop() {
            return Some(job);
        }
        let brought = until_settled(|| self.injector.steal_batch_and_pop(&local.deque))
            .or_else(|| self.steal_elsewhere(local, |seat| seat.stealer.steal_batch_and_pop(&local.deque)));
        if brought.is_some() && local.token.get().is_none() {
            // While a batch is on its way from one deque to another no thread sees it: one that has looked meanwhile is told now.
            // (With the token, the caller sees to it.)
            self.share(work, local);
        }
        brought
    }

    /// One job that waits anywhere but here: by turns first the injector, first the other deques.
    fn one_from_elsewhere(&self, local: &LocalQueue<J>) -> Option<J> {
        let injected = || until_settled(|| self.injector.steal());
        let stolen = || self.steal_elsewhere(local, |seat| seat.stealer.steal());
        let others_first = local.others_first.get();
        local.others_first.set(!others_first);
        if others_first { stolen().or_else(injected) } else { injected().or_else(stolen) }
    }

    /// Steals from the first other worker that has something, beginning with another one each time. No lock is held.
    fn steal_elsewhere(&self, local: &LocalQueue<J>, steal: impl Fn(&WorkerShared<J>) -> Steal<J>) -> Option<J> {
        let workers = self.workers_for(local);
        let start = local.scan.replace(local.scan.get().wrapping_add(1)) % workers.len().max(1);
        let (before, from) = workers.split_at(start);
        let others = from.iter().chain(before).filter(|seat| !Arc::ptr_eq(seat, &local.seat));
        let mut candidates = others.filter(|seat| !seat.stealer.is_empty()).peekable();
        candidates.peek()?;
        // What may run in there belongs to others, and may block: to the stall check it is a job.
        Counts::add(&local.seat.counts.jobs, 1);
        let job = candidates.find_map(|seat| Self::steal_from(|| steal(seat)));
        Counts::add(&local.seat.counts.jobs, 1);
        job
    }

    /// Stealing pins the epoch collector, which may run what other crates have deferred, before it takes anything: if that panics, the
    /// panic ends here and nothing is lost. The next try pins anew.
    fn steal_from(steal: impl Fn() -> Steal<J>) -> Option<J> {
        loop {
            match catch_unwind(AssertUnwindSafe(|| until_settled(&steal))) {
                Ok(job) => return job,
                Err(payload) => catch_all(|| drop(payload)),
            }
        }
    }

    /// No further job runs; threads end as soon as they are idle. What waits in the queues is discarded, also that of threads which
    /// are blocked.
    pub(crate) fn stop<W: Driver<Job = J>>(work: &W) {
        let pool = work.pool();
        pool.stopping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        pool.idle.unpark_all();
        work.wake();
        pool.discard_all(work);
    }

    /// Discards what is in the injector and in the deques of all threads.
    fn discard_all<W: Driver<Job = J>>(&self, work: &W) {
        while let Some(job) = until_settled(|| self.injector.steal()) {
            work.discard(job);
        }
        let workers = Arc::clone(&self.workers.lock());
        for seat in workers.iter() {
            while !seat.stealer.is_empty() {
                if let Some(job) = Self::steal_from(|| seat.stealer.steal()) {
                    work.discard(job);
                }
            }
        }
    }

    /// Waits until all threads have ended, but for those that wait here themselves. The number of those that are still there.
    pub(crate) fn wait_until_ended(&self, limit: Option<Duration>) -> usize {
        self.wait_until_ended_or(limit, || 0)
    }

    /// The same, but for so many threads more: these block in [`Driver::wait`], and cannot be woken.
    pub(crate) fn wait_until_ended_or(&self, limit: Option<Duration>, stranded: impl Fn() -> usize) -> usize {
        let own = POOL.with(Cell::get) == self.id;
        self.threads_alive.wait_until_ended(own, limit, stranded)
    }
}

/// Numbers pools, from one on. Never given twice: a thread may outlive its pool, and must not take another for it.
static NEXT_ID: StaticAtomicU64 = StaticAtomicU64::new(1);

crate::sync::thread_local! {
    /// The number of the pool that this thread belongs to, or zero. It has no destructor, so it can be read to the very end.
    static POOL: Cell<u64> = const { Cell::new(0) };
}

fn until_settled<T>(attempt: impl Fn() -> Steal<T>) -> Option<T> {
    loop {
        match attempt() {
            Steal::Success(job) => return Some(job),
            Steal::Empty => return None,
            Steal::Retry => std::hint::spin_loop(),
        }
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/worker_life.rs"]
mod loom_models;

#[cfg(all(test, not(timerqueue_loom)))]
mod tests;
