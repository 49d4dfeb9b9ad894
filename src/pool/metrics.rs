//! The figures of a runtime: what a thread counts, and what a program reads.
//!
//! Ground rules. A thread of the pool writes its own counts, and no other's: no cache line is
//! shared by writers. An engine has [`Counts`] for the threads that are not of its pool: the driver
//! of a manual clock, and those of an executor of the program's, which may write at once. A shard
//! counts its operations under its lock. A reader gets the sum, each part at a slightly different
//! moment. The atomics are not modelled: no other access pairs with them, so a model need not
//! explore their reads.

use std::fmt;
use std::time::Duration;

use super::Ran;
use crate::histogram::{Histogram, Recorder};
use crate::sync::Ordering;
use crate::sync::unmodelled::AtomicU64;

/// The counts of a thread.
#[derive(Default)]
pub(crate) struct Counts {
    /// Begins and ends of jobs: odd while a job runs. (Each tick of a batch counts as a job. So
    /// does stealing, which may run code of other crates.)
    edges: AtomicU64,
    /// The number of useful jobs.
    useful: AtomicU64,
    /// The ticks left of the batch that this thread last took up. The batch is a single job of a
    /// deque.
    batched: AtomicU64,
    /// Of the jobs, those without a tick that a shard has counted as claimed.
    other: AtomicU64,
    /// Of the useful jobs, those that called a waker.
    wakers: AtomicU64,
    /// Returns from the alarms, and ends of parking.
    wake_ups: AtomicU64,
    /// The reading of the clock at the begin of the last job.
    began: AtomicU64,
    lateness: Recorder,
}

impl Counts {
    fn raise(counter: &AtomicU64, n: u64) {
        counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    /// A job begins.
    pub(super) fn begin(&self, now: u64) {
        self.began.store(now, Ordering::Relaxed);
        self.count_edges(1);
    }

    /// A job begins or ends; two edges: one ends and the next begins.
    pub(super) fn count_edges(&self, edges: u64) {
        Self::raise(&self.edges, edges);
    }

    /// A number that changes with each begin and end of a job, and is odd while a job runs.
    pub(super) fn edges(&self) -> u64 {
        self.edges.load(Ordering::Relaxed)
    }

    pub(super) fn count_useful(&self, useful: bool) {
        Self::raise(&self.useful, u64::from(useful));
    }

    pub(crate) fn useful(&self) -> u64 {
        self.useful.load(Ordering::Relaxed)
    }

    /// The present job has no tick of its own.
    pub(super) fn count_other(&self) {
        Self::raise(&self.other, 1);
    }

    /// A tick of the present job has run like this. Returns whether it was useful.
    #[inline]
    pub(super) fn note(&self, ran: Ran) -> bool {
        if ran == Ran::Waker {
            Self::raise(&self.wakers, 1);
        }
        ran != Ran::Void
    }

    /// The thread was woken.
    pub(super) fn count_wake_up(&self) {
        Self::raise(&self.wake_ups, 1);
    }

    /// The thread has taken a tick of a batch; this many are left.
    pub(super) fn set_rest_of_batch(&self, left: usize) {
        self.batched.store(left as u64, Ordering::Relaxed);
    }

    pub(super) fn rest_of_batch(&self) -> usize {
        self.batched.load(Ordering::Relaxed) as usize
    }

    /// So many useful ticks of the present job have run, which were due at `due` or later.
    #[inline]
    pub(super) fn record_lateness(&self, due: u64, ticks: u64) {
        if ticks > 0 {
            self.lateness.record(self.began.load(Ordering::Relaxed).saturating_sub(due), ticks);
        }
    }

    // ---------------------------------------------------------------- threads that are not of the
    // pool

    /// A tick or waker that no shard has counted as claimed goes to the pool, or on to an executor.
    pub(crate) fn share_other(&self) {
        self.other.fetch_add(1, Ordering::Relaxed);
    }

    /// A claimed tick or a waker begins, or is given up.
    pub(crate) fn share_begin(&self) {
        self.edges.fetch_add(2, Ordering::Relaxed);
    }

    /// A callback has returned, or a waker been called, which began this late.
    pub(crate) fn share_ran(&self, ran: Ran, late_ns: u64) {
        self.useful.fetch_add(1, Ordering::Relaxed);
        self.wakers.fetch_add(u64::from(ran == Ran::Waker), Ordering::Relaxed);
        self.lateness.record_shared(late_ns, 1);
    }

    // ---------------------------------------------------------------- reading

    /// Adds these counts: to [`Metrics::callbacks`] all useful jobs, and to [`Metrics::waiting`],
    /// which wraps meanwhile, the ticks that have begun as a negative number.
    pub(crate) fn add_to(&self, sum: &mut Metrics) {
        sum.callbacks += self.useful();
        sum.wakers += self.wakers.load(Ordering::Relaxed);
        sum.wake_ups += self.wake_ups.load(Ordering::Relaxed);
        let begun = self.edges().div_ceil(2);
        sum.waiting = sum.waiting.wrapping_add(self.other.load(Ordering::Relaxed)).wrapping_sub(begun);
        self.lateness.add_to(&mut sum.lateness);
    }

    /// As [`Self::add_to`], of a thread of the pool that goes on at `now`.
    pub(super) fn add_alive_to(&self, sum: &mut Metrics, now: u64) {
        self.add_to(sum);
        if self.edges() % 2 == 1 {
            sum.threads.busy += 1;
            let runs_ns = now.saturating_sub(self.began.load(Ordering::Relaxed));
            sum.longest_running = sum.longest_running.max(Duration::from_nanos(runs_ns));
        }
    }
}

/// What a runtime has done since its start, and what it does now: see
/// [`Runtime::metrics`](crate::Runtime::metrics).
///
/// The numbers count operations since the start of the runtime, unless their description says
/// *now*. Each queue and thread is read at a slightly different moment, so sums of several numbers
/// may be off by what happened in between.
///
/// # Examples
///
/// What happened between two snapshots:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, Timer};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let timer = Timer::on(&runtime, Duration::from_secs(1), Duration::from_secs(1), |_| {});
/// let before = runtime.metrics();
/// clock.advance(Duration::from_secs(60));
/// timer.dispose();
/// let after = runtime.metrics();
/// assert_eq!(after.callbacks - before.callbacks, 60);
/// assert_eq!((after.created, after.disposed, after.active), (1, 1, 0));
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Metrics {
    /// Timers made, with the entries of futures: a [`Delay`](crate::Delay) makes its entry at the
    /// first poll that is pending.
    pub created: u64,
    /// Changes of the due time of a timer, and of a delay or timeout to earlier. (To later takes no
    /// lock, and is not counted.)
    pub changed: u64,
    /// Timers and entries of futures that were disposed or dropped while a tick was still to come.
    /// Most timeouts end so.
    pub disposed: u64,
    /// Callbacks that have returned, with those that panicked.
    pub callbacks: u64,
    /// Wakers of futures that have been called.
    pub wakers: u64,
    /// Panics caught in callbacks, wakers, hooks and their destructors: what
    /// [`on_panic`](crate::RuntimeBuilder::on_panic) is told of.
    pub panics: u64,
    /// Ticks that a [policy for missed ticks](crate::MissedTicks) left out. Those of an
    /// [`Interval`](crate::Interval) are not counted.
    pub missed_ticks: u64,
    /// How late callbacks and wakers began: from the due point to the instant at which their thread
    /// took them up. A thread reads the clock once for the callbacks of a batch (at most 40, due
    /// close together), so those may begin later by what the callbacks before took.
    /// [Leeway](crate::TimerBuilder::leeway) that was used counts as lateness. Callbacks that have
    /// not returned yet are not contained.
    pub lateness: Histogram,
    /// How often a queue set its alarm: a system call each, but on a manual clock and with the
    /// portable alarm.
    pub alarms_set: u64,
    /// Timers of the kernel that the queues have. Fewer than [queues](crate::Runtime::queues) where
    /// descriptors were scarce at the start: then several queues share a timer, and their timers
    /// are somewhat later. Zero on a manual clock, with the portable alarm, and on Windows.
    pub kernel_timers: usize,
    /// How often a thread of the pool was woken: by an alarm, or for a job.
    pub wake_ups: u64,
    /// Timers that wait *now* for a tick: neither idle nor disposed, and without the runtime's own.
    /// Each queue is counted under its own lock, so the sum is no snapshot of a single instant.
    pub active: usize,
    /// Ticks and wakers that are due and taken out of their queue, but have not begun *now*. A
    /// number that stays high says that the threads do not keep up.
    pub waiting: u64,
    /// The threads of the pool. All zero on a manual clock.
    pub threads: ThreadMetrics,
    /// How long the callback that has run the longest has been running *now*; zero if none runs.
    /// Too great by what the callbacks before took in the same batch. Callbacks on an [executor of
    /// the program's](crate::RuntimeBuilder::callback_executor) and on a manual clock are not seen.
    pub longest_running: Duration,
}

impl Metrics {
    /// Callbacks and wakers so far, with the runtime's own: looks at the wall clock, and jobs that
    /// follow a step of the wall clock.
    #[must_use]
    pub fn fired(&self) -> u64 {
        self.callbacks + self.wakers
    }
}

/// Some lines, for logs.
impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ThreadMetrics { alive, busy, limit, refused, .. } = self.threads;
        writeln!(
            f,
            "timers: {} active, {} created, {} changed, {} disposed",
            self.active, self.created, self.changed, self.disposed
        )?;
        writeln!(
            f,
            "fired: {} callbacks, {} wakers, {} waiting, {} ticks missed, {} panics",
            self.callbacks, self.wakers, self.waiting, self.missed_ticks, self.panics
        )?;
        writeln!(f, "lateness: {}", self.lateness)?;
        write!(
            f,
            "threads: {busy} busy of {alive}, limit {limit}, {refused} refused, {} wake-ups, {} alarms set, longest callback {:.1?}",
            self.wake_ups, self.alarms_set, self.longest_running
        )
    }
}

/// The threads of a runtime's pool: a part of [`Metrics`](crate::observe::Metrics).
///
/// # Examples
///
/// ```
/// use timerqueue::Runtime;
///
/// let runtime = Runtime::builder().workers(2).max_threads(8).start()?;
/// let threads = runtime.metrics().threads;
/// assert_eq!((threads.alive, threads.limit, threads.started, threads.refused), (2, 8, 2, 0));
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadMetrics {
    /// Threads that have not ended *now*.
    pub alive: usize,
    /// Threads that run a callback *now*.
    pub busy: usize,
    /// Threads that wait for an alarm *now*.
    pub polling: usize,
    /// Threads that are idle *now*, and do not wait for an alarm.
    pub parked: usize,
    /// The greatest number of threads allowed: see
    /// [`RuntimeBuilder::max_threads`](crate::RuntimeBuilder::max_threads). If `alive` is at this
    /// limit and [`Metrics::waiting`](crate::observe::Metrics::waiting) stays high, callbacks wait
    /// for others that block.
    pub limit: usize,
    /// Threads started. More than the workers: callbacks blocked, and the pool grew.
    pub started: u64,
    /// Threads that the system refused.
    pub refused: u64,
}
