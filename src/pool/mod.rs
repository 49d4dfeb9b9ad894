//! The pool: threads that take alarms and run jobs, stealing from each other.
//!
//! Ground rules. Generic over its job; knows no timers. What an alarm means, what a job does, and how to block for an
//! alarm is told by [`Work`]. No lock of the pool is held while a job runs.
//!
//! A thread is one of three things. It *runs*: takes jobs from its own deque, the injector and other deques. It *watches*:
//! blocks in the alarm set; the one that the kernel wakes sweeps, hands all but the first due job to its deque, and runs
//! that first one itself, provided that somebody else still watches. Or it is *parked*. [`idle`] says who is which.
//!
//! The last watcher never runs jobs. It sweeps and enqueues; while jobs are queued that nobody has taken up, an alarm of
//! the pool's own (the *probe*) makes it look every [`PROBE`]: when no job has returned since the last look, everybody is
//! blocked, and it brings in another thread, then two, then four, up to the limit. This is how a callback that blocks
//! for ever delays nobody, without a second thread in the ordinary path.

pub(crate) mod idle;

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

use crossbeam_deque::{Injector, Steal, Stealer, Worker};
use crossbeam_utils::CachePadded;

use self::idle::{Idle, Notified, Unparked};
use crate::alarm::{Event, OFF};
use crate::sync::{Arc, AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, RwLock, fence};

/// How long queued jobs may make no progress before another thread is brought in.
const PROBE: Duration = Duration::from_micros(500);
/// How long to wait before trying again to start a thread that the system has refused.
const PROBE_AFTER_REFUSAL: Duration = Duration::from_millis(20);
/// At most this many threads are started at one probe, so that the one who starts them soon watches again.
const MAX_GROWTH: usize = 16;
/// Threads that watch at once: one to take an alarm, one to take the next, one to stay. With more, the kernel would
/// spread alarms over ever colder threads.
const MAX_WATCHERS: usize = 3;
/// Jobs that the thread at hand will have run sooner than that are not worth waking another one for: some times what that costs,
/// in its own time and in the waker's. Should one of them block after all, the probe sees to the rest.
const WORTH_WAKING_NS: u64 = 100_000;
/// A thread looks into the injector before its own deque once in so many jobs, so that neither starves.
const INJECTOR_EVERY: u32 = 61;

/// How many threads, and how they are named.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) workers: usize,
    pub(crate) max_threads: usize,
    pub(crate) keep_alive: Duration,
    pub(crate) name: String,
    /// Core ids to pin the first `workers` threads to, in turn; empty for no pinning.
    pub(crate) pin_to: Vec<core_affinity::CoreId>,
}

impl Shape {
    /// The core that the thread of this number stays on.
    fn core_of(&self, serial: usize) -> Option<core_affinity::CoreId> {
        if serial < self.workers { self.pin_to.iter().cycle().nth(serial).copied() } else { None }
    }
}

/// What the pool is told by whoever uses it.
pub(crate) trait Work: Send + Sync + Sized + 'static {
    /// Something to run once, or to be discarded.
    type Job: Send + 'static;

    /// The pool itself.
    fn pool(&self) -> &Pool<Self::Job>;
    /// Blocks until events are there; see the contract in [`crate::alarm`].
    fn watch(&self, report: impl FnMut(Event));
    /// Makes one `watch` return [`Event::Wake`].
    fn wake(&self);
    /// Reports [`Event::Probe`] after this time.
    fn arm_probe(&self, after: Duration);
    /// An alarm has expired: pushes what is due to `local`, but returns the first.
    fn sweep(&self, queue: usize, local: &Local<Self::Job>) -> Option<Self::Job>;
    /// The pool stops, and this job will not run.
    fn discard(&self, job: Self::Job);
    /// Runs a job; whether it came to something, for the statistics. Does not unwind.
    fn run(&self, job: Self::Job, local: &Local<Self::Job>) -> bool;
}

/// What other threads see of a worker.
struct Seat<J> {
    stealer: Stealer<J>,
    /// Written by the owner alone.
    counts: CachePadded<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Jobs that have returned: tells a pool that gets on from one that is stuck.
    done: AtomicU64,
    /// Jobs that came to something.
    useful: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }
}

/// A worker's own deque: first in, first out; others steal from it.
pub(crate) struct Local<J> {
    deque: Worker<J>,
    seat: Arc<Seat<J>>,
    /// How long a job takes on this thread, a moving average. At first it is unknown, and so assumed to be long.
    pace_ns: Cell<u64>,
    /// It counts among those who rely on the probe.
    relies: Cell<bool>,
    /// When it last ran out of jobs.
    rests_since: Cell<Instant>,
}

impl<J> Local<J> {
    pub(crate) fn new() -> Self {
        let deque = Worker::new_fifo();
        let seat = Arc::new(Seat { stealer: deque.stealer(), counts: CachePadded::default() });
        let (pace_ns, relies) = (Cell::new(WORTH_WAKING_NS), Cell::new(false));
        Self { deque, seat, pace_ns, relies, rests_since: Cell::new(Instant::now()) }
    }

    pub(crate) fn push(&self, job: J) {
        self.deque.push(job);
    }

    /// `jobs` were run in `took`.
    fn note_pace(&self, jobs: u64, took: Duration) {
        if let Some(pace_ns) = (took.as_nanos() as u64).checked_div(jobs) {
            self.pace_ns.set((self.pace_ns.get().saturating_mul(3).saturating_add(pace_ns)) / 4);
        }
    }
}

pub(crate) struct Pool<J> {
    shape: Shape,
    idle: Idle,
    injector: Injector<J>,
    seats: RwLock<Vec<Arc<Seat<J>>>>,
    /// The counts of threads that have ended.
    ended: Counts,
    stopping: AtomicBool,
    /// The search token is on its way to a watcher. (A wake-up alone does not prove it: a forked child may have caused one.)
    token_sent: AtomicBool,
    probe: Mutex<Probe>,
    threads: AtomicUsize,
    roster: Arc<Roster>,
    serial: AtomicUsize,
}

/// Threads that have not ended, and where their end is announced. Shared, since a thread signs off after it has let go of
/// the pool and of all that stands behind it.
#[derive(Default)]
struct Roster {
    present: Mutex<Present>,
    ended: Condvar,
}

#[derive(Default)]
struct Present {
    alive: usize,
    /// Those of them that wait for the others to end.
    waiting: usize,
}

impl Roster {
    fn sign_off(&self) {
        self.present.lock().alive -= 1;
        self.ended.notify_all();
    }
}

/// The alarm that finds jobs whose threads are stuck.
#[derive(Default)]
struct Probe {
    armed: bool,
    /// It is to come whatever becomes of those who rely on it.
    must_come: bool,
    /// Workers that have told nobody of the jobs in their deques, since these are few and short.
    relying: usize,
    /// What the last one saw.
    done: u64,
    growth: usize,
}

impl<J: Send + 'static> Pool<J> {
    pub(crate) fn new(shape: Shape) -> Self {
        Self {
            idle: Idle::new(MAX_WATCHERS.min(shape.workers)),
            shape,
            injector: Injector::new(),
            seats: RwLock::new(Vec::new()),
            ended: Counts::default(),
            stopping: AtomicBool::new(false),
            token_sent: AtomicBool::new(false),
            probe: Mutex::default(),
            threads: AtomicUsize::new(0),
            roster: Arc::default(),
            serial: AtomicUsize::new(0),
        }
    }

    /// Starts the workers, all or none.
    pub(crate) fn start<W: Work<Job = J>>(work: &Arc<W>) -> io::Result<()> {
        let pool = work.pool();
        for _ in 0..pool.shape.workers {
            if let Err(error) = pool.spawn(work) {
                Self::stop(work.as_ref());
                pool.wait_until_ended(None);
                return Err(error);
            }
        }
        Ok(())
    }

    fn spawn<W: Work<Job = J>>(&self, work: &Arc<W>) -> io::Result<()> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let pin = self.shape.core_of(serial);
        self.threads.fetch_add(1, Ordering::Relaxed);
        let (theirs, roster) = (Arc::clone(work), Arc::clone(&self.roster));
        // Locked until it is known whether there is one more: nobody sees a thread that the system has refused, and it cannot
        // sign off before it is counted.
        let mut present = self.roster.present.lock();
        let started = crate::sync::spawn(format!("{}-{serial}", self.shape.name), move || {
            if let Some(core) = pin {
                // Refused (a cpuset changed, say): an unpinned worker is as good.
                core_affinity::set_for_current(core);
            }
            worker(&theirs);
            drop(theirs);
            roster.sign_off();
        });
        match started {
            Ok(()) => present.alive += 1,
            Err(_) => _ = self.threads.fetch_sub(1, Ordering::Relaxed),
        }
        started
    }

    /// A job from outside the pool.
    pub(crate) fn submit<W: Work<Job = J>>(work: &W, job: J) {
        let pool = work.pool();
        pool.injector.push(job);
        pool.notify(work); // with a fence, which pairs with the one in `stop`
        if pool.is_stopping() {
            pool.discard_injected(work);
        }
    }

    /// Work has been published; tells one idle thread, who tells the next.
    pub(crate) fn notify<W: Work<Job = J>>(&self, work: &W) {
        match self.idle.notify() {
            Notified::Covered => {}
            Notified::WakeWatcher => self.send_token(work),
            Notified::Nobody => self.arm_probe(work, PROBE),
        }
    }

    /// The calling worker has put jobs into its own deque and goes on to run them: tells another thread if that will take
    /// longer than it takes the other to come.
    pub(crate) fn share<W: Work<Job = J>>(&self, work: &W, local: &Local<J>) {
        let jobs = local.deque.len() as u64;
        if jobs == 0 {
            return;
        }
        if local.pace_ns.get().saturating_mul(jobs) > WORTH_WAKING_NS {
            self.notify(work);
        } else {
            // Also at the limit of threads: there may be an idle one that nobody tells now.
            let mut probe = self.probe.lock();
            probe.relying += usize::from(!local.relies.replace(true));
            if !std::mem::replace(&mut probe.armed, true) {
                work.arm_probe(PROBE);
            }
        }
    }

    /// The calling worker, who had rested so long before, has no jobs any more. Calls the probe off if nobody else needs it: to set
    /// an alarm is cheaper than to be woken by it. But where somebody is up more often than that anyway, it may come. (Whoever is
    /// stuck in a job relies on it until that ends.)
    fn call_off<W: Work<Job = J>>(&self, work: &W, rested: Duration) {
        let mut probe = self.probe.lock();
        probe.relying -= 1;
        // Time does not pass in a model: there it always is.
        let seldom = rested > PROBE || cfg!(all(test, timerqueue_loom));
        if seldom && probe.armed && probe.relying == 0 && !probe.must_come {
            probe.armed = false;
            probe.growth = 0;
            work.arm_probe(OFF);
        }
    }

    fn send_token<W: Work<Job = J>>(&self, work: &W) {
        self.token_sent.store(true, Ordering::Release);
        work.wake();
    }

    fn arm_probe<W: Work<Job = J>>(&self, work: &W, after: Duration) {
        // At the limit there is nothing to be done but wait for a thread to come back.
        if self.threads.load(Ordering::Relaxed) < self.shape.max_threads {
            let mut probe = self.probe.lock();
            probe.must_come = true;
            if !std::mem::replace(&mut probe.armed, true) {
                work.arm_probe(after);
            }
        }
    }

    /// The last watcher was probed, and jobs are queued.
    fn probe<W: Work<Job = J>>(&self, work: &Arc<W>) {
        match self.idle.notify() {
            Notified::Covered => return,
            Notified::WakeWatcher => return self.send_token(work.as_ref()),
            Notified::Nobody => {}
        }
        let done = self.done();
        let growth = {
            let mut probe = self.probe.lock();
            let stuck = probe.done == done;
            probe.done = done;
            if stuck {
                probe.growth = (probe.growth * 2).clamp(1, MAX_GROWTH);
                probe.growth
            } else {
                0 // but the next time it is stuck with these jobs, growth goes on from where it was
            }
        };
        for _ in 0..growth {
            if self.threads.load(Ordering::Relaxed) >= self.shape.max_threads {
                return;
            }
            if self.spawn(work).is_err() {
                self.arm_probe(work.as_ref(), PROBE_AFTER_REFUSAL);
                return;
            }
        }
        self.arm_probe(work.as_ref(), PROBE);
    }

    fn done(&self) -> u64 {
        self.sum(|counts| &counts.done)
    }

    /// Jobs so far that came to something.
    pub(crate) fn useful(&self) -> u64 {
        self.sum(|counts| &counts.useful)
    }

    fn sum(&self, which: impl Fn(&Counts) -> &AtomicU64) -> u64 {
        let seats = self.seats.read();
        let now: u64 = seats.iter().map(|seat| which(&seat.counts).load(Ordering::Relaxed)).sum();
        now + which(&self.ended).load(Ordering::Relaxed)
    }

    /// Threads that have not ended.
    pub(crate) fn threads(&self) -> usize {
        self.roster.present.lock().alive
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn has_work(&self) -> bool {
        !self.injector.is_empty() || self.seats.read().iter().any(|seat| !seat.stealer.is_empty())
    }

    fn next_job<W: Work<Job = J>>(&self, work: &W, local: &Local<J>, turn: &mut u32) -> Option<J> {
        *turn = turn.wrapping_add(1);
        let own_first = *turn % INJECTOR_EVERY != 0;
        if own_first {
            if let Some(job) = local.deque.pop() {
                return Some(job);
            }
        }
        let brought = until_settled(|| self.injector.steal_batch_and_pop(&local.deque));
        if brought.is_none() && !own_first {
            if let Some(job) = local.deque.pop() {
                return Some(job);
            }
        }
        let brought = brought.or_else(|| {
            let seats = self.seats.read();
            let start = seats.iter().position(|seat| Arc::ptr_eq(seat, &local.seat)).unwrap_or(0);
            let (before, after) = seats.split_at(start);
            after
                .iter()
                .skip(1)
                .chain(before)
                .find_map(|seat| until_settled(|| seat.stealer.steal_batch_and_pop(&local.deque)))
        });
        if brought.is_some() && !local.deque.is_empty() {
            // While a batch is on its way from one deque to another nobody sees it: who looked meanwhile is told now.
            self.notify(work);
        }
        brought
    }

    /// No further job runs; threads end as soon as they are idle.
    pub(crate) fn stop<W: Work<Job = J>>(work: &W) {
        let pool = work.pool();
        pool.stopping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        pool.idle.unpark_all();
        work.wake();
        pool.discard_injected(work);
    }

    fn discard_injected<W: Work<Job = J>>(&self, work: &W) {
        while let Some(job) = until_settled(|| self.injector.steal()) {
            work.discard(job);
        }
    }

    /// Waits until all threads have ended, but for those that wait here themselves. The number of those that are still there.
    pub(crate) fn wait_until_ended(&self, limit: Option<Duration>) -> usize {
        let own = POOL.with(Cell::get) == std::ptr::from_ref(self).cast();
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let roster = &*self.roster;
        let mut present = roster.present.lock();
        present.waiting += usize::from(own);
        roster.ended.notify_all();
        while present.alive > present.waiting {
            match until {
                Some(until) if roster.ended.wait_until(&mut present, until).timed_out() => break,
                Some(_) => {}
                None => roster.ended.wait(&mut present),
            }
        }
        let left = present.alive - present.waiting;
        present.waiting -= usize::from(own);
        left
    }
}

crate::sync::thread_local! {
    /// The pool that this thread belongs to; compared, never followed.
    static POOL: Cell<*const ()> = const { Cell::new(std::ptr::null()) };
}

fn until_settled<T>(mut attempt: impl FnMut() -> Steal<T>) -> Option<T> {
    loop {
        match attempt() {
            Steal::Success(job) => return Some(job),
            Steal::Empty => return None,
            Steal::Retry => std::hint::spin_loop(),
        }
    }
}

/// What made an idle thread go on.
enum Roused<J> {
    /// Look for jobs; `Some`: run this one first. `token`: holds the search token.
    Run { first: Option<J>, token: bool },
    /// The thread ends.
    End,
}

/// The life of a thread of the pool.
fn worker<W: Work>(work: &Arc<W>) {
    let pool = work.pool();
    let local = Local::new();
    pool.seats.write().push(Arc::clone(&local.seat));

    POOL.with(|own| own.set(std::ptr::from_ref(pool).cast()));
    // Rest first: somebody must watch before anybody runs.
    let mut turn = 0;
    while let Roused::Run { first, token } = rest(work, &local) {
        run_jobs(work.as_ref(), &local, first, token, &mut turn);
    }

    let mut seats = pool.seats.write();
    seats.retain(|seat| !Arc::ptr_eq(seat, &local.seat));
    pool.ended.done.fetch_add(local.seat.counts.done.load(Ordering::Relaxed), Ordering::Relaxed);
    pool.ended.useful.fetch_add(local.seat.counts.useful.load(Ordering::Relaxed), Ordering::Relaxed);
    drop(seats);
    if pool.is_stopping() {
        while let Some(job) = local.deque.pop() {
            work.discard(job);
        }
        pool.discard_injected(work.as_ref());
    }
}

/// Runs jobs until none is left.
fn run_jobs<W: Work>(work: &W, local: &Local<W::Job>, first: Option<W::Job>, mut token: bool, turn: &mut u32) {
    let pool = work.pool();
    let mut next = first;
    let (mut jobs, began) = (0, Instant::now());
    let rested = began.saturating_duration_since(local.rests_since.get());
    while !pool.is_stopping() {
        let Some(job) = next.take().or_else(|| pool.next_job(work, local, turn)) else { break };
        if token {
            // Found something: the next one may search for what is left.
            token = false;
            pool.idle.stop_searching();
            if pool.has_work() {
                pool.notify(work);
            }
        }
        jobs += 1;
        let useful = work.run(job, local);
        Counts::add(&local.seat.counts.done, 1);
        Counts::add(&local.seat.counts.useful, u64::from(useful));
    }
    if let Some(job) = next {
        work.discard(job);
    }
    let took = began.elapsed();
    local.note_pace(jobs, took);
    local.rests_since.set(began + took);
    if local.relies.take() {
        pool.call_off(work, rested);
    }
    if token {
        pool.idle.stop_searching();
    }
}

/// Watches or parks until there is something to do.
fn rest<W: Work>(work: &Arc<W>, local: &Local<W::Job>) -> Roused<W::Job> {
    let pool = work.pool();
    if pool.idle.join_watch() {
        return watch(work, local);
    }
    let spare = pool.threads.load(Ordering::Relaxed) > pool.shape.workers;
    let limit = spare.then_some(pool.shape.keep_alive);
    match pool.idle.park(limit, || pool.is_stopping() || pool.has_work()) {
        Unparked::Searcher if pool.is_stopping() => Roused::End,
        Unparked::Searcher => Roused::Run { first: None, token: true },
        Unparked::Withdrawn if pool.is_stopping() => Roused::End,
        Unparked::Withdrawn => Roused::Run { first: None, token: false },
        Unparked::TimedOut => {
            let retired = pool
                .threads
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n > pool.shape.workers).then(|| n - 1))
                .is_ok();
            // Who pushed meanwhile may have seen no idle thread, and no room for another.
            fence(Ordering::SeqCst);
            if retired && pool.has_work() {
                pool.notify(work.as_ref());
            }
            if retired { Roused::End } else { Roused::Run { first: None, token: false } }
        }
    }
}

/// The life of a watcher, from joining to leaving.
fn watch<W: Work>(work: &Arc<W>, local: &Local<W::Job>) -> Roused<W::Job> {
    let pool = work.pool();
    // Registered; what was published before is seen now, what comes later finds us.
    if pool.has_work() && !pool.is_stopping() {
        if pool.idle.leave_watch() {
            return Roused::Run { first: None, token: false };
        }
        pool.notify(work.as_ref());
    }
    loop {
        if pool.is_stopping() {
            pool.idle.quit_watch();
            work.wake(); // the next one
            return Roused::End;
        }
        let (mut token, mut probed) = (false, false);
        let mut first = None;
        work.watch(|event| match event {
            Event::Queue(queue) => {
                if let Some(job) = work.sweep(queue, local) {
                    if first.is_none() {
                        first = Some(job);
                    } else {
                        local.push(job);
                    }
                }
            }
            Event::Wake => token |= pool.token_sent.swap(false, Ordering::AcqRel),
            Event::Probe => probed = true,
            Event::WallSet => {} // nothing of ours; whoever cares for it has heard
        });
        if pool.is_stopping() {
            if let Some(job) = first {
                work.discard(job);
            }
            continue;
        }
        if probed {
            // Before work is looked for: who has pushed some and seen it armed had the lock before, and is seen.
            let mut probe = pool.probe.lock();
            (probe.armed, probe.must_come) = (false, false);
        }
        let has_work = first.is_some() || ((token || probed) && pool.has_work());
        if probed && !has_work {
            pool.probe.lock().growth = 0;
        }
        if has_work {
            if pool.idle.leave_watch() {
                // With the token, whoever is next is told when the first job has been found.
                if !token {
                    if probed {
                        pool.notify(work.as_ref());
                    } else {
                        pool.share(work.as_ref(), local);
                    }
                }
                return Roused::Run { first, token };
            }
            // The last watcher stays, and sees to it that somebody runs them.
            if let Some(job) = first {
                local.push(job);
            }
            if token {
                pool.idle.stop_searching();
            }
            if probed {
                pool.probe(work);
            } else {
                pool.notify(work.as_ref());
            }
        } else if token {
            pool.idle.stop_searching();
            if pool.has_work() {
                pool.notify(work.as_ref());
            }
        }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests;
