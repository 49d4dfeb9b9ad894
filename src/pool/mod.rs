//! The pool: threads that take expiries of alarms and run jobs, with work stealing.
//!
//! Ground rules. The pool is generic over its job and knows no timers. A [`Driver`] defines the
//! meaning of an expiry, the effect of a job, and how a thread blocks for an expiry. The pool holds
//! no lock while a job runs or is stolen.
//!
//! A thread is in one of three states. A *running* thread takes jobs from its own deque, from the
//! inbox and from other deques. A *polling* thread blocks in the alarm set. The kernel wakes a
//! single poller, which sweeps, puts all but the first due job into its deque, and runs the first
//! job itself, provided that another thread still polls. All further idle threads are *parked*.
//! [`sleep`] has the protocol between these states, [`worker`] the life of a thread, [`threads`]
//! the threads that have not ended.
//!
//! The last poller never runs jobs: it sweeps, and puts due jobs into the inbox. While jobs wait and
//! no thread takes them, an alarm of the pool, the *stall check*, wakes the last poller every
//! [`STALL_CHECK`]. [`stall`] computes how many threads to add. So a callback that blocks for ever
//! delays no other callback, and the usual path needs no second thread.
//!
//! **Code of other crates.** The deques share the process-wide epoch collector of
//! `crossbeam-epoch`. Stealing from a deque pins the collector, and so does growing or shrinking a
//! deque. Pinning runs closures deferred by any other crate. Three rules contain them. A deque
//! never holds more than [`ROOM`] jobs, so it never grows; further jobs go to the inbox, which pins
//! nothing. No lock is held while stealing. A panic in such a closure ends in [`Pool::steal_from`].

mod inbox;
mod metrics;
mod pace;
pub(crate) mod sleep;
mod stall;
mod stall_check;
mod threads;
mod worker;

use std::cell::{Cell, Ref, RefCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crossbeam_deque::{Steal, Stealer, Worker};
use crossbeam_utils::CachePadded;

use self::inbox::Inbox;
pub(crate) use self::metrics::PoolMetrics;
use self::metrics::{Ended, Statistics};
use self::pace::Pace;
use self::sleep::{Notified, SearchToken, Sleep};
pub(crate) use self::stall_check::Cover;
use self::stall_check::{Demanded, StallCheck};
use self::threads::Threads;
#[cfg(all(test, timerqueue_loom))]
pub(crate) use self::worker::worker;
use crate::alarm::Event;
use crate::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, fence, unmodelled};
use crate::sys::os::fetch_line;
use crate::sys::thread::OsThread;
use crate::sys::topology::{CoreId, Mask, confine};
use crate::unwind::discard;

/// Jobs wait for this long before the pool checks whether to add threads.
const STALL_CHECK: Duration = Duration::from_micros(500);
/// An alarm of a queue that comes within this time covers the stall check.
pub(crate) const COVERS_WITHIN_NS: u64 = 2 * STALL_CHECK.as_nanos() as u64;
/// The pause before a further try to start a thread, after the system has refused a thread.
const STALL_CHECK_AFTER_REFUSAL: Duration = Duration::from_millis(20);
/// On machines with many cores, so many workers add a poller. (Two in a build for tests of such
/// machines.)
const WORKERS_PER_POLLER: usize = if cfg!(timerqueue_apart) { 2 } else { 32 };
/// The most jobs that a worker brings from the inbox into its deque at once. A worker does so only
/// when its deque is empty, and the deque has room for so many.
const BROUGHT_AT_ONCE: usize = 32;
/// A thread wakes another thread for its jobs if the jobs take longer than this: some times the
/// cost of a wake-up. If a job of a shorter queue blocks, the stall check finds another thread for
/// the rest.
const WORTH_WAKING_NS: u64 = 100_000;
/// A thread with jobs of its own takes a job from another queue about this often, so that no queue
/// starves.
const FAIR_NS: u64 = 200_000;
/// The thread reads the clock once in this many jobs at least.
const FAIR_JOBS: u64 = 61;
/// The jobs whose memory a worker keeps.
const SPARES: usize = 2;
/// The further jobs whose memory the pool keeps.
const SHARED_SPARES: usize = 32;
/// A deque is made with this much room and never grows (I17).
const ROOM: usize = 64;

/// The numbers of threads, their names and their cores.
#[derive(Clone, Debug)]
pub(crate) struct PoolConfig {
    pub(crate) workers: usize,
    pub(crate) max_threads: usize,
    pub(crate) keep_alive: Duration,
    pub(crate) name: String,
    /// Core ids to pin the first `workers` threads to, in turn; empty for no pinning.
    pub(crate) pin_to: Vec<CoreId>,
    /// The affinity mask of all other threads; `None`: the inherited mask.
    pub(crate) mask: Option<Mask>,
}

impl PoolConfig {
    /// The most pollers. Three on most machines: the first takes an expiry, the second takes the
    /// next expiry, the third stays. With more pollers the kernel would spread expiries over
    /// threads with cold caches. But from 96 workers on three pollers are late, since the pollers
    /// sweep all queues (DESIGN.md, section 10).
    fn max_pollers(&self) -> usize {
        (1 + self.workers / WORKERS_PER_POLLER).max(3).min(self.workers)
    }

    /// The core to which the thread of this number is pinned.
    fn core_of(&self, serial: usize) -> Option<CoreId> {
        if serial < self.workers { self.pin_to.iter().cycle().nth(serial).copied() } else { None }
    }
}

/// The user of the pool: jobs, alarms and sweeps.
pub(crate) trait Driver: Send + Sync + Sized + 'static {
    /// A unit of work, to be run once or discarded.
    type Job: Send + 'static;

    /// The pool itself.
    fn pool(&self) -> &Pool<Self::Job>;
    /// Blocks until there are events; see the contract in [`crate::alarm`].
    fn wait(&self, report: impl FnMut(Event));
    /// Makes a single call of `wait` return [`Event::Wake`].
    fn wake(&self);
    /// The clock on which jobs come due, in nanoseconds.
    fn now(&self) -> u64;
    /// Reports [`Event::StallCheck`] after this time.
    fn arm_stall_check(&self, after: Duration);
    /// The alarm of a shard has expired: returns one job with all due ticks. If the sweep must go
    /// on, that is a second job, given to [`Pool::push_local`].
    fn sweep(&self, queue: usize, local: &LocalQueue<Self::Job>) -> Option<Self::Job>;
    /// Whether the system may be asked whether a thread sleeps, which opens a file. Else time
    /// decides.
    fn may_open_files(&self) -> bool {
        true
    }
    /// Whether the alarm of this queue is set and covers the stall check: the poller that takes the
    /// alarm looks for jobs.
    fn is_covered(&self, _: usize) -> bool {
        false
    }
    /// The alarm of this queue has been taken: calls `sweep` for each queue that may rely on it.
    fn sweep_relying(&self, _: usize, _: impl FnMut(usize)) {}
    /// The pool stops: this job will not run.
    fn discard(&self, job: Self::Job);
    /// Called by a thread of the pool before its first job.
    fn adopt(_: &Arc<Self>) {}
    /// Called by a thread of the pool after its last job.
    fn release(&self) {}
    /// The pool has stopped, and its last thread waits for no event any more: nor will any. Called
    /// with no lock held.
    fn no_more_waits(&self) {}
    /// A thread was added to those of the start, or the system has refused one with this error.
    /// Called with no lock held, by a thread that must go on.
    fn threads_changed(_: &Arc<Self>, _: Option<&io::Error>) {}
    /// Runs a job. Returns whether the job was useful, for the statistics. Does not unwind.
    fn run(&self, job: Self::Job, local: &LocalQueue<Self::Job>) -> bool;
}

/// The part of a worker that other threads see.
struct WorkerShared<J> {
    stealer: Stealer<J>,
    /// False: the deque is empty, or its worker is about to write true. Written by the worker
    /// alone, when that changes. A look reads this word first: a look into a deque takes a fence,
    /// and other cores' lines come one after the other then.
    may_have_jobs: CachePadded<AtomicBool>,
    /// Numbers the threads in the order in which they began.
    serial: usize,
    thread: OsThread,
    /// Written by the worker alone.
    counts: CachePadded<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Twice the number of jobs that have returned; odd while a job runs. (Stealing counts as a
    /// job, since stealing may run code of other crates.)
    jobs: AtomicU64,
    /// The number of useful jobs.
    useful: AtomicU64,
    /// The parts left of the batch that this thread last took up. The batch is a single job of a
    /// deque.
    batched: AtomicU64,
    statistics: Statistics,
}

impl Counts {
    fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}

/// All workers, in order of their serial numbers.
type Workers<J> = Arc<Vec<Arc<WorkerShared<J>>>>;

pub(crate) struct LocalQueue<J> {
    deque: Worker<J>,
    shared: Arc<WorkerShared<J>>,
    /// The list of workers that this worker last read, with the version of the list.
    workers: RefCell<(usize, Workers<J>)>,
    /// The worker to steal from first: each in turn.
    scan: Cell<usize>,
    /// Whether the worker is registered as a poller.
    polling: Cell<bool>,
    /// The search token, if the worker holds the token.
    token: Cell<Option<SearchToken>>,
    /// The worker held the search token when it took its present job.
    searched: Cell<bool>,
    /// The length of the worker's jobs, and the turns of other queues.
    pace: Pace,
    /// The turn of other queues came in the middle of a batch: the next job comes from them.
    turn: Cell<bool>,
    /// At the next turn of other queues, the deques come before the inbox.
    others_first: Cell<bool>,
    /// Jobs that have been run, whose memory is to be used again; at most [`SPARES`].
    spares: RefCell<Vec<J>>,
    /// A queue that the worker has swept, whose new alarm covers the stall check: see [`Cover`].
    covered_by: Cell<Option<usize>>,
    /// The worker has taken or replaced an alarm that covered the stall check.
    took_cover: Cell<bool>,
    /// The instant at which the worker last ran out of jobs, by [`Driver::now`].
    rests_since: Cell<u64>,
}

impl<J> LocalQueue<J> {
    /// A worker from which no other thread can steal, made at this instant.
    pub(crate) fn new(now: u64) -> Self {
        let deque = Worker::new_fifo();
        let shared = WorkerShared {
            stealer: deque.stealer(),
            may_have_jobs: CachePadded::default(),
            serial: 0,
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
            pace: Pace::new(now),
            turn: Cell::new(false),
            others_first: Cell::new(false),
            spares: RefCell::new(Vec::with_capacity(SPARES)),
            covered_by: Cell::new(None),
            took_cover: Cell::new(false),
            rests_since: Cell::new(now),
        }
    }

    /// Puts a job into the deque, unless that is full.
    pub(crate) fn push_local(&self, job: J) -> Result<(), J> {
        if self.deque.len() < ROOM {
            self.deque.push(job);
            self.tell(true);
            Ok(())
        } else {
            Err(job)
        }
    }

    /// Jobs have been put into the deque, or the deque was found empty. A fence follows before the
    /// worker notifies or rests.
    fn tell(&self, may_have_jobs: bool) {
        let told = &*self.shared.may_have_jobs;
        if told.load(Ordering::Relaxed) != may_have_jobs {
            told.store(may_have_jobs, Ordering::Relaxed);
        }
    }

    /// The worker has taken a part of a batch, which is a single job of a deque; this many parts
    /// are left.
    pub(crate) fn set_rest_of_batch(&self, left: usize) {
        self.shared.counts.batched.store(left as u64, Ordering::Relaxed);
    }

    /// Drops the only job in the deque, if `is_it` recognizes the job. `Some(false)`: the job is
    /// another, and was out of the deque for a moment.
    pub(crate) fn drop_if_alone(&self, is_it: impl FnOnce(&J) -> bool) -> Option<bool> {
        let job = if self.deque.len() == 1 { self.deque.pop() } else { None }?;
        let dropped = is_it(&job);
        if !dropped {
            self.deque.push(job);
        }
        Some(dropped)
    }

    /// Whether the worker held the search token when it took its present job.
    pub(crate) fn is_searcher(&self) -> bool {
        self.searched.get()
    }
}

impl<J> WorkerShared<J> {
    /// Whether there are jobs to steal. The worker that has pushed a job has told so, with a fence
    /// after that; so a look after a fence sees either both or the worker's next look at this
    /// thread (I14).
    fn has_jobs(&self) -> bool {
        self.may_have_jobs.load(Ordering::Relaxed) && !self.stealer.is_empty()
    }

    /// The number of jobs in the deque; each part of a batch counts as a job.
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
    /// On lines of its own: all cores that submit jobs write to it.
    inbox: CachePadded<Inbox<J>>,
    workers: Mutex<Workers<J>>,
    /// Raised by each change of `workers`.
    workers_version: AtomicUsize,
    /// The statistics of threads that have ended. A leaf lock.
    ended: Mutex<Ended>,
    /// The number of threads that the system has refused.
    refused: AtomicU64,
    stopping: AtomicBool,
    /// The search token sent to a poller, or zero. (A wake-up alone proves no token: a forked child
    /// may have caused the wake-up.)
    token_sent: AtomicUsize,
    stall_check: Mutex<StallCheck>,
    demanded: Demanded,
    threads: AtomicUsize,
    /// The number of threads still to be started, by threads that are new themselves.
    growth: AtomicUsize,
    /// Spare jobs that workers with enough spare jobs have left to others. A leaf lock.
    spares: Mutex<Vec<J>>,
    threads_alive: Arc<Threads>,
    serial: AtomicUsize,
    began: Instant,
    id: u64,
}

impl<J: Send + 'static> Pool<J> {
    pub(crate) fn new(config: PoolConfig) -> Self {
        Self {
            idle: Sleep::new(config.max_pollers()),
            config,
            inbox: CachePadded::new(Inbox::new()),
            workers: Mutex::default(),
            workers_version: AtomicUsize::new(0),
            ended: Mutex::default(),
            refused: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            token_sent: AtomicUsize::new(0),
            stall_check: Mutex::default(),
            demanded: Demanded::new(),
            threads: AtomicUsize::new(0),
            growth: AtomicUsize::new(0),
            spares: Mutex::default(),
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

    /// Counts one thread more, unless the limit is reached. Threads that are being started each
    /// start further ones, at once: to look at the number first and to raise it then would let each
    /// of them through.
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

    /// Puts a job into the deque of the calling worker, or, if the deque is full, into the inbox.
    /// After the last job the caller calls [`Self::share`].
    pub(crate) fn push_local(&self, local: &LocalQueue<J>, job: J) {
        if let Err(job) = local.push_local(job) {
            self.inject(job);
        }
    }

    /// Puts a job into the inbox, where any thread takes the job. No thread is woken:
    /// [`Self::notify`] follows.
    ///
    /// Caller: is a thread of the pool, or comes before [`Self::stop`] (the engine: by the lock of
    /// an open shard). Each of them looks for jobs to discard at its end, so the caller itself
    /// discards none, least of all those of others.
    pub(crate) fn inject(&self, job: J) {
        self.inbox.push(job);
    }

    /// Jobs have been published: wakes an idle thread, which wakes the next.
    pub(crate) fn notify<W: Driver<Job = J>>(&self, work: &W) {
        match self.idle.notify() {
            Notified::Covered(_) => {}
            Notified::WakePoller(token) => self.send_token(work, token),
            Notified::AllBusy if self.is_full() => return,
            Notified::AllBusy => {}
        }
        // A thread that was woken to search may be delayed for long.
        self.demand_stall_check(work, None, STALL_CHECK);
    }

    /// The calling worker has put jobs into its own deque and is about to run them. Wakes another
    /// thread if the jobs take longer than the wake-up.
    pub(crate) fn share<W: Driver<Job = J>>(&self, work: &W, local: &LocalQueue<J>) {
        let jobs = local.shared.jobs() as u64;
        if jobs == 0 && self.inbox.is_empty() {
            return;
        }
        if local.pace.job_ns().saturating_mul(jobs) > WORTH_WAKING_NS {
            self.notify(work);
        } else {
            // Either a thread that stops the pool sees the jobs, or the caller sees the stop; see
            // `stop`. Likewise the thread at which the stall check expires.
            fence(Ordering::SeqCst);
            // Also at the limit of threads: an idle thread may exist, and is not woken now.
            self.demand_stall_check(work, Some(local), STALL_CHECK);
        }
    }

    /// A part of a batch has returned. Returns whether the calling worker continues the batch, and
    /// then counts the part as a job. Otherwise the pool stops, or the turn of other queues has
    /// come.
    #[inline(always)] // for each tick
    pub(crate) fn continues_batch<W: Driver<Job = J>>(&self, work: &W, local: &LocalQueue<J>, useful: bool) -> bool {
        local.turn.set(local.pace.is_fair_turn(|| work.now()));
        let continues = !local.turn.get() && !self.is_stopping();
        if continues {
            Counts::add(&local.shared.counts.jobs, 2);
            Counts::add(&local.shared.counts.useful, u64::from(useful));
            local.pace.count();
        }
        continues
    }

    /// Keeps a job that has been run, so that its memory is used again: for the calling worker, or
    /// else for all workers.
    pub(crate) fn keep_spare(&self, local: &LocalQueue<J>, job: J) {
        let mut own = local.spares.borrow_mut();
        if own.len() < SPARES {
            return own.push(job);
        }
        let mut shared = self.spares.lock();
        if shared.len() < SHARED_SPARES {
            shared.push(job);
        }
    }

    pub(crate) fn take_spare(&self, local: &LocalQueue<J>) -> Option<J> {
        local.spares.borrow_mut().pop().or_else(|| self.spares.lock().pop())
    }

    fn send_token<W: Driver<Job = J>>(&self, work: &W, token: SearchToken) {
        self.token_sent.store(token.to_word(), Ordering::Release);
        work.wake();
    }

    /// The number of useful jobs so far.
    pub(crate) fn useful(&self) -> u64 {
        // With the lock held no leaving thread adds its count to `ended`.
        let workers = self.workers.lock();
        let now: u64 = workers.iter().map(|worker| worker.counts.useful.load(Ordering::Relaxed)).sum();
        now + self.ended.lock().useful
    }

    /// The number of threads that have not ended.
    pub(crate) fn threads(&self) -> usize {
        self.threads_alive.alive()
    }

    /// A poller has been woken by an alarm: prefetches the words that it reads after the sweep, on
    /// its way to the first job.
    #[inline]
    fn fetch(&self, local: &LocalQueue<J>) {
        let words: [*const u8; 2] = [(&raw const self.idle).cast(), (&raw const self.stopping).cast()];
        words.into_iter().for_each(fetch_line);
        fetch_line((&raw const self.inbox).cast());
        fetch_line((&raw const *local.shared.counts).cast());
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// A worker from which other workers can steal.
    fn join(&self, now: u64) -> LocalQueue<J> {
        let mut local = LocalQueue::new(now);
        let mut workers = self.workers.lock();
        let serial = workers.last().map_or(0, |last| last.serial + 1);
        if let Some(shared) = Arc::get_mut(&mut local.shared) {
            shared.serial = serial;
        }
        let mut all = Vec::with_capacity(workers.len() + 1);
        all.extend(workers.iter().cloned());
        all.push(Arc::clone(&local.shared));
        *workers = Arc::new(all);
        self.workers_version.fetch_add(1, Ordering::Release);
        drop(workers);
        local
    }

    /// The worker ends; its counts are added to those of ended workers. Returns whether it was the
    /// last of a pool that stops: a thread that still begins finds that the pool stops before it
    /// waits.
    fn leave(&self, local: &LocalQueue<J>) -> bool {
        let mut workers = self.workers.lock();
        let others: Vec<_> = workers.iter().filter(|worker| !Arc::ptr_eq(worker, &local.shared)).cloned().collect();
        let last = others.is_empty() && self.is_stopping();
        *workers = Arc::new(others);
        self.workers_version.fetch_add(1, Ordering::Release);
        self.ended.lock().add(&local.shared.counts);
        last
    }

    /// The list of workers; takes the lock only if the list has changed since the last call.
    fn workers_for<'a>(&self, local: &'a LocalQueue<J>) -> Ref<'a, [Arc<WorkerShared<J>>]> {
        let version = self.workers_version.load(Ordering::Acquire);
        if local.workers.borrow().0 != version {
            *local.workers.borrow_mut() = (version, Arc::clone(&self.workers.lock()));
        }
        Ref::map(local.workers.borrow(), |(_, workers)| workers.as_slice())
    }

    fn has_work(&self, local: &LocalQueue<J>) -> bool {
        !self.inbox.is_empty() || self.workers_for(local).iter().any(|worker| worker.has_jobs())
    }

    /// The next job for a worker: first from its own deque, then from the inbox, then from other
    /// deques. At the turn of other queues these come first.
    fn next_job<W: Driver<Job = J>>(&self, work: &W, local: &LocalQueue<J>) -> Option<J> {
        let turn = local.turn.take() || local.pace.is_fair_turn(|| work.now());
        if turn {
            if let Some(job) = self.one_from_elsewhere(local) {
                return Some(job);
            }
        }
        if let Some(job) = local.deque.pop() {
            return Some(job);
        }
        local.tell(false);
        if turn {
            // all other queues have just been looked into; the caller looks once more before it
            // rests
            return None;
        }
        let brought = (self.inbox.take(BROUGHT_AT_ONCE, |job| local.deque.push(job)))
            .or_else(|| self.steal_elsewhere(local, |worker| worker.stealer.steal_batch_and_pop(&local.deque)));
        if !local.deque.is_empty() {
            local.tell(true);
        }
        if brought.is_some() && local.token.get().is_none() {
            // Stolen jobs on their way between two deques are in neither. A thread that searched
            // meanwhile is woken now. (If the worker holds the token, the caller wakes a thread.)
            self.share(work, local);
        }
        brought
    }

    /// A job from another queue than the worker's own; the inbox and the other deques take turns
    /// in coming first.
    fn one_from_elsewhere(&self, local: &LocalQueue<J>) -> Option<J> {
        let injected = || self.inbox.take(0, |_| {});
        let stolen = || self.steal_elsewhere(local, |worker| worker.stealer.steal());
        let others_first = local.others_first.get();
        local.others_first.set(!others_first);
        if others_first { stolen().or_else(injected) } else { injected().or_else(stolen) }
    }

    /// Steals from the first other worker with jobs, starting with another worker each time. No
    /// lock is held.
    fn steal_elsewhere(&self, local: &LocalQueue<J>, steal: impl Fn(&WorkerShared<J>) -> Steal<J>) -> Option<J> {
        let workers = self.workers_for(local);
        let has_jobs = |worker: &&Arc<WorkerShared<J>>| !Arc::ptr_eq(worker, &local.shared) && worker.has_jobs();
        workers.iter().find(has_jobs)?; // usually there are none
        let start = local.scan.replace(local.scan.get().wrapping_add(1)) % workers.len().max(1);
        let (before, from) = workers.split_at(start);
        let mut candidates = from.iter().chain(before).filter(has_jobs);
        // Stealing may run closures of other crates, which may block: the stall check takes the
        // theft for a job.
        Counts::add(&local.shared.counts.jobs, 1);
        let job = candidates.find_map(|worker| Self::steal_from(|| steal(worker)));
        local.count_other();
        Counts::add(&local.shared.counts.jobs, 1);
        job
    }

    /// Stealing pins the epoch collector before taking a job, and pinning may run closures deferred
    /// by other crates. A panic in such a closure ends here, and no job is lost. The next try pins
    /// anew.
    fn steal_from(steal: impl Fn() -> Steal<J>) -> Option<J> {
        loop {
            match catch_unwind(AssertUnwindSafe(|| until_settled(&steal))) {
                Ok(job) => return job,
                Err(payload) => discard(payload),
            }
        }
    }

    /// No further job starts; each thread ends when it is idle. Jobs in all queues are discarded,
    /// also those in the deques of blocked threads.
    pub(crate) fn stop<W: Driver<Job = J>>(work: &W) {
        let pool = work.pool();
        pool.stopping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        pool.idle.unpark_all();
        work.wake();
        pool.discard_all(work);
    }

    /// Discards what is in the inbox and in the deques of all threads.
    fn discard_all<W: Driver<Job = J>>(&self, work: &W) {
        while let Some(job) = self.inbox.take(0, |_| {}) {
            work.discard(job);
        }
        let workers = Arc::clone(&self.workers.lock());
        for worker in workers.iter() {
            while !worker.stealer.is_empty() {
                if let Some(job) = Self::steal_from(|| worker.stealer.steal()) {
                    work.discard(job);
                }
            }
        }
    }

    /// Waits until all threads have ended, except threads of the pool that wait here. Returns the
    /// number of threads left.
    pub(crate) fn wait_until_ended(&self, limit: Option<Duration>) -> usize {
        self.wait_until_ended_or(limit, || 0)
    }

    /// The same, except this many further threads, which block in [`Driver::wait`] and cannot be
    /// woken.
    pub(crate) fn wait_until_ended_or(&self, limit: Option<Duration>, stranded: impl Fn() -> usize) -> usize {
        let own = POOL.with(Cell::get) == self.id;
        self.threads_alive.wait_until_ended(own, limit, stranded)
    }
}

/// Numbers pools from 1. No number is given twice: a thread may outlive its pool, and must not
/// mistake another pool for it.
static NEXT_ID: unmodelled::AtomicU64 = unmodelled::AtomicU64::new(1);

crate::sync::thread_local! {
    /// The number of this thread's pool, or zero. Without a destructor, so readable until the
    /// thread has ended.
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
