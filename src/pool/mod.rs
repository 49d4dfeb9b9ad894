//! The pool: threads that take expiries of alarms and run ticks, with work stealing.
//!
//! Ground rules. The pool is generic over its ticks and knows no timers. A [`Driver`] has queues:
//! it sweeps a queue whose alarm has expired, and a sweep gives [`Tick`]s. The pool waits for the
//! alarms itself, and has the protocol of jobs ([`jobs`]): how ticks of a sweep become a job, which
//! thread runs the job, and where the rest of the job waits. It holds no lock while a tick runs or
//! a job is stolen.
//!
//! A thread is in one of three states. A *running* thread takes jobs from its own deque, from the
//! inbox and from other deques. A *polling* thread blocks in the alarm set. The kernel wakes a
//! single poller, which sweeps, puts all but the first job into its deque, and runs the first job
//! itself, provided that another thread still polls. All further idle threads are *parked*.
//! [`sleep`] has the protocol between these states, [`worker`] the life of a thread, [`threads`]
//! the threads that have not ended.
//!
//! The last poller never runs jobs: it sweeps, and puts due jobs into the inbox. While jobs wait
//! and no thread takes them, an alarm of the pool, the *stall check*, wakes the last poller every
//! [`STALL_CHECK`]. [`stall`] computes how many threads to add. So a callback that blocks for ever
//! delays no other callback, and the usual path needs no second thread.
//!
//! **Code of other crates.** The deques share the process-wide epoch collector of
//! `crossbeam-epoch`. Stealing from a deque pins the collector, and so does growing or shrinking a
//! deque. Pinning runs closures deferred by any other crate. Three rules contain them. A deque
//! never holds more than [`ROOM`] jobs, so it never grows; further jobs go to the inbox, which pins
//! nothing. No lock is held while stealing. A panic in such a closure ends in [`Pool::steal_from`].

mod inbox;
mod jobs;
mod metrics;
mod pace;
pub(crate) mod sleep;
mod stall;
mod stall_check;
mod threads;
mod worker;

use std::cell::{Cell, Ref};
use std::io;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crossbeam_deque::Steal;
use crossbeam_utils::CachePadded;

use self::inbox::Inbox;
use self::jobs::Job;
pub(crate) use self::jobs::{BATCH, Batch, Ran};
pub(crate) use self::metrics::Counts;
pub use self::metrics::{Metrics, ThreadMetrics};
use self::sleep::{Notified, SearchToken, Sleep};
use self::stall::{Moment, Sample, StallRules};
use self::stall_check::StallCheck;
use self::threads::Threads;
use self::worker::{ROOM, WorkerLocal, WorkerShared, Workers};
use crate::alarm::{Backend, Loss, SystemClock};
use crate::one_drop::OneDrop;
use crate::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Mutex, Ordering, fence, unmodelled};
use crate::sys::os::fetch_line;
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
    /// The system may be asked whether a thread sleeps, which opens a file. Else time decides.
    pub(crate) may_open_files: bool,
    pub(crate) timing: Timing,
}

/// What the pool takes for long, and for short. A model, in which no time passes, has a timing of
/// its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    stall: StallRules,
    /// A worker that has rested for a shorter time leaves the stall check armed.
    short_rest: Duration,
    /// The jobs until a worker first looks at the clock: see [`pace`].
    first_look: u32,
}

impl Timing {
    pub(crate) const REAL: Self = Self { stall: StallRules::REAL, short_rest: STALL_CHECK, first_look: 2 };
    #[cfg(all(test, timerqueue_loom))]
    pub(crate) const MODEL: Self = Self {
        stall: StallRules { least_patience_ns: 0, unknown_patience_ns: 0, second_look: false, awaits_coming: false },
        short_rest: Duration::ZERO,
        first_look: u32::MAX,
    };
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

/// The user of the pool: queues of ticks, whose alarms the pool waits for.
pub(crate) trait Driver: Send + Sync + Sized + 'static {
    type Tick: Tick<Self>;
    type Alarms: Deref<Target: Backend> + Send + Sync;

    /// The pool itself.
    fn pool(&self) -> &Pool<Self>;
    /// The alarm of this queue has expired: puts due ticks into the batch, at most [`BATCH`], and
    /// sets the next alarm unless the sweep must go on.
    fn sweep(&self, queue: usize, batch: &mut Batch<Self::Tick>) -> Swept;
    /// The queues to be swept, now that this alarm has expired: the queue of the same index, or
    /// those that share the alarm.
    fn queues(&self, alarm: usize) -> impl Iterator<Item = usize> {
        std::iter::once(alarm)
    }
    /// Whether the alarm of this queue is set and covers the stall check ([`Swept::gives_cover`]).
    fn is_covered(&self, _: usize) -> bool {
        false
    }
    /// Something has happened that is not the pool's business.
    fn tell(&self, _: News<'_>) {}
}

/// A unit of work, to be run once or discarded. Neither function unwinds.
pub(crate) trait Tick<W>: Send + 'static {
    fn run(self, work: &W) -> Ran;
    /// The pool stops: the tick will not run.
    fn discard(self, work: &W);
}

/// How a sweep ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Swept {
    /// The batch was full, and the sweep must go on.
    pub(crate) more: bool,
    /// The alarm before covered the stall check: see [`stall_check`].
    pub(crate) took_cover: bool,
    /// The new alarm covers it.
    pub(crate) gives_cover: bool,
}

/// What the pool tells its driver. The thread that tells must go on.
pub(crate) enum News<'a> {
    /// A thread of the pool begins: told by itself, before its first job.
    ThreadBegins,
    /// A thread of the pool has run its last job: told by itself.
    ThreadEnds,
    /// A thread was added to those of the start, or the system has refused one with this error.
    /// Told with no lock held.
    ThreadsChanged(Option<&'a io::Error>),
    /// A poller has got this event of the alarms. It holds no lock.
    WallSet,
    /// A poller has got this event of the alarms. It holds no lock.
    Lost,
    /// A call to the alarms has found them lost, perhaps with the lock of the stall check held.
    LossFound,
}

pub(crate) struct Pool<W: Driver> {
    pub(crate) alarms: W::Alarms,
    /// The clock on which ticks come due.
    clock: SystemClock,
    config: PoolConfig,
    idle: Sleep,
    /// On lines of its own: all cores that submit jobs write to it.
    inbox: CachePadded<Inbox<Job<W::Tick>>>,
    workers: Mutex<Workers<W::Tick>>,
    /// Raised by each change of `workers`.
    workers_version: AtomicUsize,
    /// The statistics of threads that have ended. A leaf lock.
    ended: Mutex<Metrics>,
    /// The number of threads that the system has refused.
    refused: AtomicU64,
    stopping: AtomicBool,
    /// The search token sent to a poller, or zero. (A wake-up alone proves no token: a forked child
    /// may have caused the wake-up.)
    token_sent: AtomicUsize,
    stall_check: StallCheck,
    threads: AtomicUsize,
    /// The number of threads still to be started, by threads that are new themselves.
    growth: AtomicUsize,
    threads_alive: Arc<Threads>,
    serial: AtomicUsize,
    began: Instant,
    id: u64,
}

impl<W: Driver> Pool<W> {
    pub(crate) fn new(config: PoolConfig, alarms: W::Alarms, clock: SystemClock) -> Self {
        Self {
            alarms,
            clock,
            idle: Sleep::new(config.max_pollers()),
            inbox: CachePadded::new(Inbox::new()),
            workers: Mutex::default(),
            workers_version: AtomicUsize::new(0),
            ended: Mutex::default(),
            refused: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            token_sent: AtomicUsize::new(0),
            stall_check: StallCheck::new(config.timing),
            threads: AtomicUsize::new(0),
            growth: AtomicUsize::new(0),
            threads_alive: Arc::default(),
            serial: AtomicUsize::new(0),
            began: Instant::now(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            config,
        }
    }

    /// Starts the workers, all or none.
    pub(crate) fn start(work: &Arc<W>) -> io::Result<()> {
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

    /// Starts a thread that has been counted; one that is refused is counted no more.
    fn spawn(&self, work: &Arc<W>) -> io::Result<()> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let (pin, mask) = (self.config.core_of(serial), self.config.mask);
        let theirs = Arc::clone(work);
        let body = Box::new(move || {
            confine(pin, mask);
            worker::worker(&theirs);
        });
        let name = format!("{}-{serial}", self.config.name);
        let leave = || POOL.with(|pool| pool.set(0));
        let started = self.threads_alive.start(name, serial, self.config.max_threads, body, leave);
        if started.is_err() {
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
        started
    }

    /// A reading of the clock on which ticks come due.
    #[inline]
    fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Puts a job into the deque of the calling worker, or, if the deque is full, into the inbox.
    /// After the last job the caller calls [`Self::share`].
    fn push_local(&self, local: &WorkerLocal<W::Tick>, job: Job<W::Tick>) {
        if local.deque.len() < ROOM {
            local.deque.push(job);
            local.tell(true);
        } else {
            self.inbox.push(job);
        }
    }

    /// Puts a tick, due at this instant, into the inbox, where any thread takes it. No thread is
    /// woken: [`Self::notify`] follows.
    ///
    /// Caller: is a thread of the pool, or comes before [`Self::stop`] (the engine: by the lock of
    /// an open shard). Each of them looks for jobs to discard at its end, so the caller itself
    /// discards none, least of all those of others.
    pub(crate) fn submit(&self, tick: W::Tick, due: u64) {
        self.inbox.push(Job::One { tick, due });
    }

    /// Jobs have been published: wakes an idle thread, which wakes the next.
    pub(crate) fn notify(&self, work: &W) {
        match self.idle.notify() {
            Notified::Covered(_) => {}
            Notified::WakePoller(token) => self.send_token(work, token),
            Notified::AllBusy if self.is_full() => return,
            Notified::AllBusy => {}
        }
        // A thread that was woken to search may be delayed for long.
        self.stall_check.demand(work, None, STALL_CHECK);
    }

    /// The calling worker has put jobs into its own deque and is about to run them. Wakes another
    /// thread if the jobs take longer than the wake-up.
    fn share(&self, work: &W, local: &WorkerLocal<W::Tick>) {
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
            self.stall_check.demand(work, Some(local), STALL_CHECK);
        }
    }

    fn send_token(&self, work: &W, token: SearchToken) {
        self.token_sent.store(token.to_word(), Ordering::Release);
        self.wake(work);
    }

    /// Makes a poller return from its wait.
    fn wake(&self, work: &W) {
        self.alarms.wake();
        self.look_for_loss(work);
    }

    /// Caller: holds the lock of the stall check.
    fn arm_stall_check(&self, work: &W, after: Duration) {
        self.alarms.arm_stall_check(after);
        self.look_for_loss(work);
    }

    fn look_for_loss(&self, work: &W) {
        if self.alarms.loss_record().is_some_and(Loss::is_noted) {
            work.tell(News::LossFound);
        }
    }

    /// The threads, and the sum of their counts: see [`Counts::add_to`].
    pub(crate) fn metrics(&self, now: u64) -> Metrics {
        let mut metrics = {
            // With the lock held no leaving thread adds its counts to `ended`.
            let workers = self.workers.lock();
            let mut metrics = self.ended.lock().clone();
            workers.iter().for_each(|worker| worker.counts.add_alive_to(&mut metrics, now));
            metrics
        };
        let refused = self.refused.load(Ordering::Relaxed);
        metrics.threads = ThreadMetrics {
            alive: self.threads(),
            busy: metrics.threads.busy,
            polling: self.idle.pollers(),
            parked: self.idle.parked(),
            limit: self.config.max_threads,
            started: (self.serial.load(Ordering::Relaxed) as u64).saturating_sub(refused),
            refused,
        };
        metrics
    }

    /// The number of threads that have not ended.
    pub(crate) fn threads(&self) -> usize {
        self.threads_alive.alive()
    }

    /// A poller has been woken by an alarm: prefetches the words that it reads after the sweep, on
    /// its way to the first job.
    #[inline]
    fn fetch(&self, local: &WorkerLocal<W::Tick>) {
        let words: [*const u8; 2] = [(&raw const self.idle).cast(), (&raw const self.stopping).cast()];
        words.into_iter().for_each(fetch_line);
        fetch_line((&raw const self.inbox).cast());
        fetch_line((&raw const *local.shared.counts).cast());
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The look of the last poller, at a stall check while jobs wait.
    fn look(&self, work: &Arc<W>, local: &WorkerLocal<W::Tick>) {
        match self.idle.notify() {
            Notified::WakePoller(token) => self.send_token(work.as_ref(), token),
            Notified::Covered(token) if self.stall_check.still_searches(token) => {
                // Woken at the last look or before, and still not searching. Another thread is
                // woken.
                self.idle.stop_searching(token);
                return self.notify(work.as_ref());
            }
            Notified::Covered(_) => {}
            // Any thread that returns from its job looks for jobs.
            Notified::AllBusy if self.is_full() => return,
            Notified::AllBusy => {
                let threads = self.threads_to_add(local);
                if threads > 0 {
                    // This thread must poll again, and starting a thread takes long: it starts one,
                    // which starts the next before it looks for jobs. A refusal demands the next
                    // look for later.
                    self.growth.store(threads, Ordering::Relaxed);
                    self.start_one_more(work);
                }
            }
        }
        self.stall_check.demand(work.as_ref(), None, STALL_CHECK);
    }

    fn threads_to_add(&self, local: &WorkerLocal<W::Tick>) -> usize {
        let workers = Arc::clone(&self.workers.lock());
        // An exchange reads the newest number; a plain load need not.
        let others = || workers.iter().filter(|worker| !Arc::ptr_eq(worker, &local.shared));
        let samples: Vec<Sample> =
            others().map(|worker| Sample { thread: worker.serial, job: worker.counts.edges() }).collect();
        let busy = samples.iter().filter(|sample| sample.job % 2 == 1).count();
        let threads = self.threads.load(Ordering::Relaxed);
        let moment = Moment {
            now_ns: self.began.elapsed().as_nanos() as u64,
            waiting: self.inbox.len() + workers.iter().map(|worker| worker.jobs()).sum::<usize>(),
            coming: threads.saturating_sub(busy + 1),
            target: self.config.workers.saturating_sub(1).max(1),
        };
        let may_ask = self.config.may_open_files;
        let sleeps = |sample: Sample| {
            if !may_ask {
                return None;
            }
            let at = workers.binary_search_by_key(&sample.thread, |worker| worker.serial).ok()?;
            workers[at].thread.sleeps()
        };
        self.stall_check.threads_to_add(&samples, moment, sleeps)
    }

    /// Whether the limit of threads is reached.
    fn is_full(&self) -> bool {
        self.threads.load(Ordering::Relaxed) >= self.config.max_threads
    }

    /// Starts a thread, if threads are still to be started. Returns whether a thread was started.
    fn start_one_more(&self, work: &Arc<W>) -> bool {
        let one = |n: usize| n.checked_sub(1);
        if self.growth.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one).is_err() {
            return false;
        }
        // Each thread that is being started starts a further one at once: to look at the number
        // first and to raise it then would let each of them through.
        let reserve = |n: usize| (n < self.config.max_threads).then_some(n + 1);
        let reserved = || self.threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve).is_ok();
        let started = (!self.is_stopping() && reserved()).then(|| self.spawn(work));
        if let Some(Ok(())) = started {
            work.tell(News::ThreadsChanged(None));
            return true;
        }
        self.growth.store(0, Ordering::Relaxed);
        if let Some(Err(error)) = started {
            self.refused.fetch_add(1, Ordering::Relaxed);
            work.tell(News::ThreadsChanged(Some(&error)));
            self.stall_check.demand(work.as_ref(), None, STALL_CHECK_AFTER_REFUSAL);
        }
        false
    }

    /// A worker from which other workers can steal.
    fn join(&self) -> OneDrop<WorkerLocal<W::Tick>> {
        let mut workers = self.workers.lock();
        let serial = workers.last().map_or(0, |last| last.serial + 1);
        let local = OneDrop::new(WorkerLocal::new(serial, self.now(), self.config.timing.first_look));
        let mut all = Vec::clone(&workers);
        all.push(Arc::clone(&local.shared));
        *workers = Arc::new(all);
        self.workers_version.fetch_add(1, Ordering::Release);
        drop(workers);
        local
    }

    /// The worker ends; its counts are added to those of ended workers. Returns whether it was the
    /// last of a pool that stops: a thread that still begins finds that the pool stops before it
    /// waits.
    fn leave(&self, local: &WorkerLocal<W::Tick>) -> bool {
        let mut workers = self.workers.lock();
        let mut others = Vec::clone(&workers);
        let own = others.iter().position(|worker| Arc::ptr_eq(worker, &local.shared));
        own.map(|own| others.remove(own));
        let last = others.is_empty() && self.is_stopping();
        *workers = Arc::new(others);
        self.workers_version.fetch_add(1, Ordering::Release);
        local.shared.counts.add_to(&mut self.ended.lock());
        last
    }

    /// The list of workers; takes the lock only if the list has changed since the last call.
    fn workers_for<'a>(&self, local: &'a WorkerLocal<W::Tick>) -> Ref<'a, [Arc<WorkerShared<W::Tick>>]> {
        let version = self.workers_version.load(Ordering::Acquire);
        if local.workers.borrow().0 != version {
            *local.workers.borrow_mut() = (version, Arc::clone(&self.workers.lock()));
        }
        Ref::map(local.workers.borrow(), |(_, workers)| workers.as_slice())
    }

    fn has_work(&self, local: &WorkerLocal<W::Tick>) -> bool {
        !self.inbox.is_empty() || self.workers_for(local).iter().any(|worker| worker.has_jobs())
    }

    /// The next job for a worker: first from its own deque, then from the inbox, then from other
    /// deques. At the turn of other queues these come first.
    fn next_job(&self, work: &W, local: &WorkerLocal<W::Tick>) -> Option<Job<W::Tick>> {
        let turn = local.turn.take() || local.pace.is_fair_turn(|| self.now());
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
        let brought = (self.inbox.take(BROUGHT_AT_ONCE, &mut |job| local.deque.push(job)))
            .or_else(|| self.steal_elsewhere(local, &|worker| worker.stealer.steal_batch_and_pop(&local.deque)));
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
    fn one_from_elsewhere(&self, local: &WorkerLocal<W::Tick>) -> Option<Job<W::Tick>> {
        let injected = || self.inbox.take(0, &mut |_| {});
        let stolen = || self.steal_elsewhere(local, &|worker| worker.stealer.steal());
        let others_first = local.others_first.get();
        local.others_first.set(!others_first);
        if others_first { stolen().or_else(injected) } else { injected().or_else(stolen) }
    }

    /// Steals from the first other worker with jobs, starting with another worker each time. No
    /// lock is held.
    fn steal_elsewhere(&self, local: &WorkerLocal<W::Tick>, steal: &Steals<'_, W::Tick>) -> Option<Job<W::Tick>> {
        let workers = self.workers_for(local);
        let has_jobs = |worker: &&Arc<WorkerShared<W::Tick>>| !Arc::ptr_eq(worker, &local.shared) && worker.has_jobs();
        workers.iter().find(has_jobs)?; // usually there are none
        let start = local.scan.replace(local.scan.get().wrapping_add(1)) % workers.len().max(1);
        let (before, from) = workers.split_at(start);
        let mut candidates = from.iter().chain(before).filter(has_jobs);
        // Stealing may run closures of other crates, which may block: the stall check takes the
        // theft for a job.
        local.shared.counts.count_edges(1);
        let job = candidates.find_map(|worker| Self::steal_from(worker, steal));
        local.shared.counts.count_other();
        local.shared.counts.count_edges(1);
        job
    }

    /// Stealing pins the epoch collector before taking a job, and pinning may run closures deferred
    /// by other crates. A panic in such a closure ends here, and no job is lost. The next try pins
    /// anew.
    fn steal_from(worker: &WorkerShared<W::Tick>, steal: &Steals<'_, W::Tick>) -> Option<Job<W::Tick>> {
        loop {
            match catch_unwind(AssertUnwindSafe(|| steal(worker))) {
                Ok(Steal::Success(job)) => return Some(job),
                Ok(Steal::Empty) => return None,
                Ok(Steal::Retry) => std::hint::spin_loop(),
                Err(payload) => discard(payload),
            }
        }
    }

    /// No further job starts; each thread ends when it is idle. Jobs in all queues are discarded,
    /// also those in the deques of blocked threads.
    pub(crate) fn stop(work: &W) {
        let pool = work.pool();
        pool.stopping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        pool.idle.unpark_all();
        pool.wake(work);
        pool.discard_all(work);
    }

    /// Discards what is in the inbox and in the deques of all threads.
    fn discard_all(&self, work: &W) {
        while let Some(job) = self.inbox.take(0, &mut |_| {}) {
            jobs::discard(work, job);
        }
        let workers = Arc::clone(&self.workers.lock());
        for worker in workers.iter() {
            while !worker.stealer.is_empty() {
                if let Some(job) = Self::steal_from(worker, &|worker| worker.stealer.steal()) {
                    jobs::discard(work, job);
                }
            }
        }
    }

    /// Waits until all threads have ended, except threads of the pool that wait here, and those
    /// that block in [`Backend::wait`] and cannot be woken. Returns the number of threads left.
    pub(crate) fn wait_until_ended(&self, limit: Option<Duration>) -> usize {
        let own = POOL.with(Cell::get) == self.id;
        let stranded = || self.alarms.loss_record().map_or(0, Loss::stranded);
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

/// Steals from a worker.
type Steals<'a, T> = dyn Fn(&WorkerShared<T>) -> Steal<Job<T>> + 'a;

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/worker_life.rs"]
mod loom_models;

#[cfg(all(test, not(timerqueue_loom)))]
mod tests;
