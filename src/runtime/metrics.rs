//! A snapshot of what a runtime does.

use std::fmt;
use std::time::Duration;

use super::Runtime;
use crate::alarm::Backend;
use crate::histogram::Histogram;
use crate::pool::PoolMetrics;
pub use crate::pool::ThreadMetrics;

/// What a runtime has done since its start, and what it does now: see [`Runtime::metrics`].
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
/// # Ok::<(), timerqueue::StartError>(())
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
    /// Timers of the kernel that the queues have. Fewer than [queues](Runtime::queues) where
    /// descriptors were scarce at the start: then several queues share a timer, and their timers
    /// are somewhat later. Zero on a manual clock, with the portable alarm, and on Windows.
    pub kernel_timers: usize,
    /// How often a thread of the pool was woken: by an alarm, or for a job.
    pub wake_ups: u64,
    /// Timers that wait *now* for a tick: see [`Runtime::active_timers`].
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

impl Runtime {
    /// What the runtime has done so far, and what it does now. Locks each queue for some
    /// nanoseconds, and copies some kilobytes: for a display or a scrape, not for a hot path.
    /// Counting is always on, and writes no memory that threads share.
    ///
    /// # Examples
    ///
    /// A line in the log for callbacks that hold up others:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Runtime;
    ///
    /// let metrics = Runtime::global().metrics();
    /// if metrics.threads.alive == metrics.threads.limit && metrics.longest_running > Duration::from_secs(1) {
    ///     println!("callbacks block\n{metrics}");
    /// }
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let engine = self.engine();
        let mut pool: PoolMetrics = engine.native().map(|native| native.pool.metrics()).unwrap_or_default();
        let now = engine.clock().now();
        engine.by_hand().add_to(&mut pool);
        // What was taken is read before what was claimed: so a tick that is claimed and taken
        // meanwhile is not counted as taken alone.
        let tally = engine.tally();
        Metrics {
            threads: pool.threads,
            created: tally.created,
            changed: tally.changed,
            disposed: tally.disposed,
            callbacks: pool.useful.saturating_sub(pool.wakers),
            wakers: pool.wakers,
            panics: engine.panics(),
            missed_ticks: tally.missed_ticks,
            lateness: pool.lateness,
            alarms_set: tally.alarms,
            kernel_timers: engine.native().map_or(0, |native| native.pool.alarms.timers()).min(engine.shards().count()),
            wake_ups: pool.wake_ups,
            active: engine.active(),
            waiting: if engine.is_closed() { 0 } else { tally.claimed.saturating_sub(pool.taken) },
            longest_running: pool
                .earliest_begin
                .map_or(Duration::ZERO, |begin| Duration::from_nanos(now.saturating_sub(begin))),
        }
    }
}
