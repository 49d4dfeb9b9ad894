//! Runtimes: the process-wide default, explicit ones, shutdown.
//!
//! Ground rules. A [`Runtime`] is a counted handle to an engine. The engine's threads and shards
//! keep the engine alive; dropping the last handle, or `shutdown`, closes the engine. Starting is
//! in [`builder`], the default runtime in [`default`], errors in [`error`], virtual time in
//! [`manual_clock`], and the handle that futures keep in [`handle`].

mod builder;
mod default;
mod error;
mod handle;
mod manual_clock;
pub(crate) mod wait;

use std::time::{Duration, Instant, SystemTime};

pub use self::builder::{Alarm, RuntimeBuilder, RuntimeClock};
pub use self::default::{EnterGuard, Scoped};
pub use self::error::{RuntimeError, ShutdownError, StartError};
pub(crate) use self::handle::RuntimeHandle;
pub use self::manual_clock::ManualClock;
pub use crate::engine::{
    CallbackContext, CallbackJob, CallbackPanic, ObservedCallback, Observer, PendingTimer, SlowCallback,
    ThreadsChanged, TimerDump,
};
use crate::engine::{CoreRef, Engine, Firing, Once, OwnedEntry, Owner, soonest};
pub use crate::pool::{Metrics, ThreadMetrics};
use crate::queue::MissedTicks;
use crate::sync::Arc;
use crate::time::{NEVER, Timestamp};

/// A set of timer queues, one per core, with the threads that serve them.
///
/// Most programs use the default runtime, [`Runtime::global`]. Several can live side by side, each
/// with its own clock. A `Runtime` is a handle: clones share the same runtime. **Dropping** the
/// last handle shuts the runtime down without waiting for running callbacks; pending timers do not
/// fire any more. (A callback that owns a clone of its own runtime keeps the runtime alive until
/// [`shutdown`](Self::shutdown).)
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{OnceTimer, Runtime};
///
/// let runtime = Runtime::builder().queues(1).workers(2).thread_name("example").start()?;
/// let (send, receive) = std::sync::mpsc::channel();
/// let timer =
///     OnceTimer::on(&runtime, Duration::from_millis(1), move |_| send.send("fired").unwrap());
/// assert_eq!(receive.recv().unwrap(), "fired");
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone)]
pub struct Runtime {
    owner: std::sync::Arc<Owner>,
}

/// Whether timers of this engine fire.
///
/// # Errors
/// [`RuntimeError::Ended`], or [`RuntimeError::Forked`].
#[inline]
fn usable(engine: &Engine) -> Result<(), RuntimeError> {
    if engine.ended_at() != NEVER {
        Err(RuntimeError::Ended)
    } else if engine.is_forked() {
        Err(RuntimeError::Forked)
    } else {
        Ok(())
    }
}

/// Runs a job as the callback of a timer that is due now (S62).
pub(crate) fn execute(engine: &Engine, job: impl FnOnce() + Send + 'static) {
    let now = (Duration::ZERO, Duration::ZERO);
    let timer = OwnedEntry::start(engine, MissedTicks::default(), now, Once(move |_: &Firing| job()));
    drop(timer.into_entry());
}

impl Runtime {
    /// Settings for a new runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// let runtime = timerqueue::Runtime::builder().max_threads(16).start()?;
    /// # drop(runtime);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// The wall clock of this runtime: the system's, or the [`ManualClock`]'s.
    pub fn wall_now(&self) -> SystemTime {
        self.owner.engine.clock.wall()
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.owner.engine
    }

    /// Whether timers of this runtime fire; see [`usable`].
    pub(crate) fn usable(&self) -> Result<(), RuntimeError> {
        usable(self.engine())
    }

    pub(crate) fn handle(&self) -> RuntimeHandle {
        RuntimeHandle::Engine(self.core())
    }

    /// A reference counted on the core of the calling thread.
    pub(crate) fn core(&self) -> Arc<CoreRef> {
        self.owner.core()
    }

    /// The clock of this runtime, read now.
    ///
    /// # Examples
    ///
    /// ```
    /// let runtime = timerqueue::Runtime::global();
    /// let before = runtime.now();
    /// assert!(runtime.now() >= before);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn now(&self) -> Timestamp {
        Timestamp::from_ns(self.owner.engine.clock.now())
    }

    /// The time since a timestamp of this runtime's clock; zero if the timestamp lies in the
    /// future.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let begun = runtime.now();
    /// clock.advance(Duration::from_millis(20));
    /// assert_eq!(runtime.elapsed(begun), Duration::from_millis(20));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[must_use]
    pub fn elapsed(&self, since: Timestamp) -> Duration {
        self.now() - since
    }

    /// A timestamp of this runtime's clock as an [`Instant`] of the standard library; `None` if no
    /// clock shows the timestamp, or if an `Instant` cannot express it.
    ///
    /// Where both count on the same clock (the default clock on Linux, macOS, FreeBSD, NetBSD,
    /// DragonFly), the conversions are inverse to each other, and exact but for a constant below a
    /// microsecond. On a further clock of the system a conversion compares the present readings of
    /// both clocks. The result is then right as of now: a later suspend, or a different rate of the
    /// clocks, moves the two apart.
    ///
    /// On a [`ManualClock`], the zero of the clock is the `Instant` at which the clock was made.
    /// The conversions are inverse to each other and exact, however much real time has passed. So
    /// `runtime.instant(runtime.now())` is the present time for code that counts in `Instant`s;
    /// `Instant::now()` is not, since real time goes on while the manual clock stands. After a
    /// [suspend](ManualClock::suspend), a runtime on [`RuntimeClock::Boot`] converts by the time in
    /// suspend so far.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let begun = runtime.instant(runtime.now()).unwrap();
    /// clock.advance(Duration::from_secs(3600));
    /// let now = runtime.instant(runtime.now()).unwrap();
    /// assert_eq!(now - begun, Duration::from_secs(3600));
    /// assert_eq!(runtime.timestamp(now), runtime.now());
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[must_use]
    pub fn instant(&self, at: Timestamp) -> Option<Instant> {
        self.owner.engine.clock.instant(at.as_ns())
    }

    /// An [`Instant`] of the standard library as a timestamp of this runtime's clock;
    /// [`instant`](Self::instant) is the way back, and says how exact both are. An instant before
    /// the origin of the clock becomes the origin; an instant beyond the range of the clock becomes
    /// one that never comes.
    ///
    /// A timer due at the result is not early by the clock of `Instant`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// let runtime = timerqueue::Runtime::global();
    /// let deadline = runtime.timestamp(Instant::now() + Duration::from_secs(60));
    /// assert!(deadline > runtime.now());
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[must_use]
    pub fn timestamp(&self, at: Instant) -> Timestamp {
        Timestamp::from_ns(self.owner.engine.clock.ns(at.into()))
    }

    /// The instant at which the next timer fires; `None`: no timer waits. The instant is the due
    /// point, or the point of the grid with [leeway](crate::TimerBuilder::leeway). It may be the
    /// instant of a mere look: at the clock by a wall timer, or by the runtime, which compares the
    /// clocks for wall timers; or at a delay that was reset to later (but not on a manual clock).
    /// Walks the next occupied slot of each queue under its lock, and re-inserts timers that were
    /// moved later: for tests and displays, not for hot paths.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timer};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let timer = Timer::on(&runtime, Duration::from_secs(1), Duration::ZERO, |_| {});
    /// assert_eq!(runtime.next_due(), Some(runtime.now() + Duration::from_secs(1)));
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn next_due(&self) -> Option<Timestamp> {
        Timestamp::shown(self.owner.engine.earliest_due())
    }

    /// The number of queues.
    pub fn queues(&self) -> usize {
        self.owner.engine.shards().count()
    }

    /// Walks all queues and panics when an invariant does not hold. For soak tests, in builds with
    /// `--cfg timerqueue_check`; each queue is locked during its walk.
    #[cfg(timerqueue_check)]
    #[doc(hidden)]
    pub fn check(&self) {
        self.owner.engine.shards().for_each(crate::engine::Shard::check);
    }

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
    /// if metrics.threads.alive == metrics.threads.limit
    ///     && metrics.longest_running > Duration::from_secs(1)
    /// {
    ///     println!("callbacks block\n{metrics}");
    /// }
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.engine().metrics()
    }

    /// The next `n` timers to fire, with their names: to see what a program waits for.
    ///
    /// The queues are looked at one after the other, so the result is no snapshot of a single
    /// instant. Each queue is locked for as long as it takes to look at a few thousand timers, some
    /// hundred microseconds at most. Wall timers appear with the instant at which the runtime looks
    /// at the wall clock for them.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timer, TimerBuilder};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let heartbeat = TimerBuilder::on(&runtime)
    ///     .name("heartbeat")
    ///     .period(Duration::from_secs(5))
    ///     .start(|_| {});
    /// let other = Timer::on(&runtime, Duration::from_secs(1), Duration::ZERO, |_| {});
    /// let dump = runtime.dump(10);
    /// assert_eq!(dump.timers.len(), 2);
    /// assert_eq!(dump.timers[1].name.as_deref(), Some("heartbeat"));
    /// assert_eq!(dump.timers[1].due, runtime.now() + Duration::from_secs(5));
    /// println!("{dump}");
    /// # drop((heartbeat, other));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[must_use]
    pub fn dump(&self, n: usize) -> TimerDump {
        let (timers, complete) = soonest(self.engine(), n);
        TimerDump { timers, complete, now: self.now() }
    }

    /// Whether the runtime was shut down: timers do not fire any more, and for delays, timeouts and
    /// intervals time stands still. Also true in a forked child, for a runtime of its parent (but
    /// not on a manual clock).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Runtime;
    ///
    /// let runtime = Runtime::builder().start()?;
    /// assert!(!runtime.is_shut_down());
    /// runtime.shutdown(Duration::from_secs(5))?;
    /// assert!(runtime.is_shut_down());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_shut_down(&self) -> bool {
        self.usable().is_err()
    }

    /// Shuts the runtime down: pending timers never fire and are dropped with their callbacks,
    /// queued callbacks are discarded. Waits up to `limit` for running callbacks and the end of the
    /// threads, with the destructors of their thread-local values. After `Ok`, no code of callbacks
    /// or threads runs any more. The calling thread itself drops the callbacks of pending timers,
    /// and wakes the tasks of pending delays; how long these destructors and wakers take, `limit`
    /// does not bound.
    ///
    /// A further call waits again. A call inside a callback of this runtime does not wait for this
    /// callback (but it waits, up to `limit`, for a callback that waits for this callback); on a
    /// manual clock, a call in the thread that drives the clock does not wait at all. In a forked
    /// child there is nothing to wait for. Handles of timers stay valid: disposing works, changing
    /// answers [`Changed::Ended`](crate::Changed::Ended).
    ///
    /// For futures an ended runtime is a clock that has stopped: a [`Delay`](crate::Delay) or a
    /// tick still to come stays pending, and a timeout continues with its future, without a limit.
    /// Functions with a `Result`, [`Delay::try_wait`](crate::Delay::try_wait),
    /// [`Interval::try_tick`](crate::Interval::try_tick) and
    /// [`cancel_after`](crate::CancellationTokenSource::cancel_after), answer
    /// [`RuntimeError::Ended`].
    ///
    /// **The default runtime** belongs to the whole process, and is not shut down by accident: a
    /// handle of it is refused. The program itself may call
    /// [`shutdown_global`](Self::shutdown_global).
    ///
    /// # Errors
    /// [`ShutdownError::TimedOut`] when callbacks still run after `limit`. Callbacks are not
    /// interrupted; their threads end when the callbacks return. [`ShutdownError::DefaultRuntime`]
    /// for the default runtime, which goes on.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Runtime, Timer};
    ///
    /// let runtime = Runtime::builder().start()?;
    /// let timer =
    ///     Timer::on(&runtime, Duration::from_secs(3600), Duration::ZERO, |_| unreachable!());
    /// runtime.shutdown(Duration::from_secs(5))?;
    /// # drop(timer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown(&self, limit: Duration) -> Result<(), ShutdownError> {
        if self.is_global() { Err(ShutdownError::DefaultRuntime) } else { self.end(limit) }
    }

    /// As [`shutdown`](Self::shutdown), and hands back the callbacks that never ran: of timers that
    /// waited, of ticks that were due and had no thread yet, and jobs of
    /// [`execute`](Self::execute), in the order of their due points. Of each a [`CallbackJob`]
    /// tells the name, the due point and the period; the program may [run](CallbackJob::run) it, on
    /// the calling thread, whether due or not. **Dropping** a job disposes its timer, as `shutdown`
    /// does.
    ///
    /// Each callback of a one-shot has run, runs, or is handed back, exactly once, unless its timer
    /// is disposed or stopped before. A timer whose callbacks run is handed back too if a further
    /// tick waits; an exclusive one, if its callback ends within the limit. Timed cancels are not
    /// handed back, nor are futures, nor jobs that an
    /// [executor of the program's](RuntimeBuilder::callback_executor) has. After
    /// [`ShutdownError::TimedOut`] callbacks that a thread was about to begin may be missing.
    ///
    /// # Errors
    /// Beside the callbacks: as for [`shutdown`](Self::shutdown). For the default runtime, see
    /// [`shutdown_global_now`](Self::shutdown_global_now).
    ///
    /// # Examples
    ///
    /// What is pending is flushed at once:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Runtime, TimerBuilder};
    ///
    /// let runtime = Runtime::builder().start()?;
    /// let (send, receive) = std::sync::mpsc::channel();
    /// let flush = TimerBuilder::on(&runtime)
    ///     .name("flush")
    ///     .due(Duration::from_secs(60))
    ///     .start_once(move |_| send.send("flushed").unwrap());
    /// let (unfired, ended) = runtime.shutdown_now(Duration::from_secs(5));
    /// ended?;
    /// for job in unfired {
    ///     println!("{:?} was due at {}", job.timer_name(), job.scheduled());
    ///     job.run();
    /// }
    /// assert_eq!(receive.recv().unwrap(), "flushed");
    /// # drop(flush);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias("shutdownNow", "stop"))]
    #[must_use = "dropping the jobs disposes their timers"]
    pub fn shutdown_now(&self, limit: Duration) -> (Vec<CallbackJob>, Result<(), ShutdownError>) {
        if self.is_global() { (Vec::new(), Err(ShutdownError::DefaultRuntime)) } else { self.end_now(limit) }
    }

    fn end_now(&self, limit: Duration) -> (Vec<CallbackJob>, Result<(), ShutdownError>) {
        let engine = self.engine();
        engine.keep_unfired();
        let ended = self.end(limit);
        (engine.take_unfired(), ended)
    }

    /// Runs `job` on the pool now, as the callback of a timer with a due time of zero: on a thread
    /// of the pool, never in this call; on a manual clock in the next
    /// [`advance`](ManualClock::advance), even by zero. A panic is caught and counted. The job is
    /// counted as a callback, and may block.
    ///
    /// A job that has not begun when the runtime ends is dropped. On a runtime that has ended it is
    /// dropped at once; [`try_execute`](Self::try_execute) tells.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::Runtime;
    ///
    /// let (send, receive) = std::sync::mpsc::channel();
    /// Runtime::global().execute(move || send.send(6 * 7).unwrap());
    /// assert_eq!(receive.recv().unwrap(), 42);
    /// ```
    #[doc(alias("spawn", "QueueUserWorkItem"))]
    pub fn execute(&self, job: impl FnOnce() + Send + 'static) {
        execute(self.engine(), job);
    }

    /// As [`execute`](Self::execute), with an error if the runtime has ended.
    ///
    /// # Errors
    /// [`RuntimeError::Ended`] or [`RuntimeError::Forked`]: the runtime has ended, or belongs to
    /// the parent of this process; the job has been dropped. (If the runtime ends right after this
    /// call, the job may be dropped all the same.)
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, error::RuntimeError};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// runtime.shutdown(Duration::ZERO)?;
    /// assert!(matches!(runtime.try_execute(|| unreachable!()), Err(RuntimeError::Ended)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_execute(&self, job: impl FnOnce() + Send + 'static) -> Result<(), RuntimeError> {
        self.usable()?;
        self.execute(job);
        Ok(())
    }

    /// Closes the engine, and waits; see [`shutdown`](Self::shutdown).
    fn end(&self, limit: Duration) -> Result<(), ShutdownError> {
        let engine = &self.owner.engine;
        engine.close();
        if engine.is_inherited() {
            return Ok(()); // forked: the threads that ran callbacks are the parent's
        }
        let threads = match &engine.native {
            Some(native) => {
                let begun = Instant::now();
                let threads = native.pool.wait_until_ended(Some(limit));
                // Callbacks that were handed over run on threads of the program's.
                let handed_over = engine.wait_for_driver(limit.saturating_sub(begun.elapsed()));
                threads + usize::from(!handed_over)
            }
            None => usize::from(!engine.wait_for_driver(limit)),
        };
        if threads == 0 { Ok(()) } else { Err(ShutdownError::TimedOut { threads }) }
    }
}

shown!([] Runtime, |this|
    "queues" => this.queues(), "threads" => this.engine().native.as_ref().map_or(0, |native| native.pool.threads()),
    "active" => this.engine().active(), "now" => format_args!("{}", this.now()), "global" => this.is_global(),
    "shut_down" => this.is_shut_down()
);
