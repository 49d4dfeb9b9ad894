//! Runtimes: the process-wide default, explicit ones, shutdown.
//!
//! Ground rules. A [`Runtime`] is a counted handle to an engine; the engine lives on in its own threads and shards until
//! the last handle is dropped or `shutdown` is called, and is closed then. Starting is in [`builder`], what can go wrong in
//! [`error`], virtual time in [`manual_clock`], and what a future keeps of a runtime in [`handle`].

mod builder;
mod error;
mod handle;
mod manual_clock;

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

pub use self::builder::{Alarm, RuntimeBuilder, RuntimeClock};
pub use self::error::{RuntimeError, ShutdownTimedOut, StartError};
pub(crate) use self::handle::{CoreRefs, RuntimeHandle};
use self::manual_clock::LOOK_AGAIN;
pub use self::manual_clock::ManualClock;
use crate::alarm::{Backend, Loss};
use crate::engine::Engine;
use crate::sync::Arc;
use crate::sys::fork::ForkGuard;
use crate::time::{NEVER, Timestamp};

/// A set of timer queues, one per core, with the threads that serve them.
///
/// Most programs use the default one, [`Runtime::global`]. Several can live side by side, each with its own clock (S52).
/// A `Runtime` is a handle: clones share the same runtime. **Dropping** the last handle shuts it down without waiting
/// for running callbacks; pending timers do not fire any more. (A callback that owns a clone of its own runtime keeps it
/// alive until [`shutdown`](Self::shutdown).)
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::Runtime;
///
/// let runtime = Runtime::builder().queues(1).workers(2).thread_name("example").start()?;
/// let (send, receive) = std::sync::mpsc::channel();
/// let timer = runtime.once(Duration::from_millis(1), move |_| send.send("fired").unwrap());
/// assert_eq!(receive.recv().unwrap(), "fired");
/// # drop(timer);
/// # Ok::<(), timerqueue::StartError>(())
/// ```
#[derive(Clone)]
pub struct Runtime {
    owner: std::sync::Arc<Owner>,
}

/// Closes the engine when the last handle is gone.
struct Owner {
    engine: Arc<Engine>,
    /// For what counts on this runtime without a `Runtime`: makers on different cores write to no line that they share.
    refs: CoreRefs,
    /// The process that made it. `None`: the system could not tell of forks, so this one.
    origin: Option<ForkGuard>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.engine.close();
    }
}

static GLOBAL: OnceLock<Runtime> = OnceLock::new();

impl Runtime {
    fn of(engine: Arc<Engine>) -> Self {
        let refs = CoreRefs::new(&engine);
        Self { owner: std::sync::Arc::new(Owner { engine, refs, origin: ForkGuard::here().ok() }) }
    }

    /// Settings for a new runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// let runtime = timerqueue::Runtime::builder().max_threads(16).start()?;
    /// # drop(runtime);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    /// The process-wide default runtime. It starts on first use (S34) and is never shut down by itself.
    ///
    /// # Errors
    /// When it cannot be started. Nothing is kept then, and a later call tries again.
    ///
    /// # Examples
    ///
    /// ```
    /// let runtime = timerqueue::Runtime::global()?;
    /// println!("{} queues", runtime.queues());
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn global() -> Result<&'static Self, StartError> {
        static STARTING: Mutex<()> = Mutex::new(());
        if let Some(runtime) = GLOBAL.get() {
            return if runtime.engine().is_closed() { Err(StartError::ShutDown) } else { Ok(runtime) };
        }
        let _one_at_a_time = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = GLOBAL.get() {
            return Ok(runtime);
        }
        let runtime = Self::builder().start()?;
        Ok(GLOBAL.get_or_init(|| runtime))
    }

    /// The default runtime, if it was started; it may have ended.
    pub(crate) fn global_if_started() -> Option<&'static Self> {
        GLOBAL.get()
    }

    /// The wall clock of this runtime: the system's, or that of its [`ManualClock`].
    pub fn wall_now(&self) -> SystemTime {
        self.owner.engine.clock().wall()
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.owner.engine
    }

    pub(crate) fn handle(&self) -> RuntimeHandle {
        self.owner.refs.here(&self.owner.engine)
    }

    /// The clock of this runtime, read now.
    ///
    /// # Examples
    ///
    /// ```
    /// let runtime = timerqueue::Runtime::global()?;
    /// let before = runtime.now();
    /// assert!(runtime.now() >= before);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn now(&self) -> Timestamp {
        Timestamp::from_ns(self.owner.engine.clock().now())
    }

    /// Timers that are waiting to fire: neither idle nor disposed, and none of the runtime's own. Each queue is counted under its own lock, so this is
    /// no snapshot of one instant.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let timer = runtime.timer(Duration::from_secs(1), Duration::ZERO, |_| {});
    /// assert_eq!(runtime.active_timers(), 1);
    /// timer.dispose();
    /// assert_eq!(runtime.active_timers(), 0);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn active_timers(&self) -> usize {
        self.owner.engine.active()
    }

    /// The instant at which the next of all timers that wait fires, or `None`: its due point, or with
    /// [leeway](crate::TimerBuilder::leeway) the point of the grid that it waits for. A [`Delay`](crate::Delay) that was moved later, or a wall timer, may
    /// only look again then, and so may the runtime, where it compares the clocks for wall timers. Walks the next occupied slot of each queue under its
    /// lock, and files anew what has been moved later and is in the way: for tests and displays, not for hot paths.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let timer = runtime.timer(Duration::from_secs(1), Duration::ZERO, |_| {});
    /// assert_eq!(runtime.next_due(), Some(runtime.now() + Duration::from_secs(1)));
    /// # drop(timer);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn next_due(&self) -> Option<Timestamp> {
        let earliest = self.owner.engine.earliest_due();
        (earliest != NEVER).then(|| Timestamp::from_ns(earliest))
    }

    /// The number of queues.
    pub fn queues(&self) -> usize {
        self.owner.engine.shards().count()
    }

    /// Callbacks begun so far, the runtime's own included: wakers of delays, looks at the wall clock, and what follows a step
    /// of it.
    pub fn fired(&self) -> u64 {
        self.owner.engine.fired()
    }

    /// Panics caught in callbacks so far (S12).
    pub fn panics(&self) -> u64 {
        self.owner.engine.panics()
    }

    /// Threads of the pool now; zero on a manual clock.
    pub fn threads(&self) -> usize {
        self.owner.engine.native().map_or(0, |native| native.pool.threads())
    }

    /// Walks all queues and panics when an invariant does not hold. For soak tests, in builds with
    /// `--cfg timerqueue_check`; each queue is locked for as long as its walk takes.
    #[cfg(timerqueue_check)]
    #[doc(hidden)]
    pub fn check(&self) {
        self.owner.engine.shards().for_each(crate::engine::Shard::check);
    }

    /// Whether the runtime was shut down: timers do not fire any more, and for delays, timeouts and intervals time stands still
    /// (S33).
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
        self.owner.engine.ended_at() != NEVER
    }

    /// Shuts the runtime down: pending timers never fire again and are dropped with what their callbacks own, queued
    /// callbacks are discarded, running ones are awaited for up to `limit`, threads end, with the destructors of their thread-local
    /// values (S33). When it returns `Ok`, none of their code runs any more.
    ///
    /// Calling it again waits again. Called from inside a callback of this runtime it does not wait for that one; on a manual clock, in
    /// the thread that drives the clock, it does not wait for any. In a forked child there is nothing to wait for. Handles
    /// of timers stay valid: disposing works, changing answers [`Changed::Ended`](crate::Changed::Ended).
    ///
    /// For futures an ended runtime is a clock that has stopped: a [`Delay`](crate::Delay) or a tick that has not come by then stays pending, and
    /// a timeout goes on with its future, without a limit. What gives a `Result`, as [`Delay::try_wait`](crate::Delay::try_wait),
    /// [`Interval::try_tick`](crate::Interval::try_tick) and [`cancel_after`](crate::CancellationTokenSource::cancel_after) do, answers [`RuntimeError::Ended`].
    ///
    /// # Errors
    /// [`ShutdownTimedOut`] when callbacks still run after `limit`. They are not interrupted; their threads end when they
    /// return.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Runtime;
    ///
    /// let runtime = Runtime::builder().start()?;
    /// let timer = runtime.timer(Duration::from_secs(3600), Duration::ZERO, |_| unreachable!());
    /// runtime.shutdown(Duration::from_secs(5))?;
    /// # drop(timer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown(&self, limit: Duration) -> Result<(), ShutdownTimedOut> {
        let engine = &self.owner.engine;
        engine.close();
        if self.owner.origin.is_some_and(|origin| !origin.is_here()) {
            return Ok(()); // forked: the threads that ran callbacks are the parent's
        }
        let threads = match engine.native() {
            Some(native) => {
                let stranded = || native.alarms.loss().map_or(0, Loss::stranded);
                native.pool.wait_until_ended_or(Some(limit), stranded)
            }
            None => usize::from(!engine.wait_for_driver(limit, LOOK_AGAIN)),
        };
        if threads == 0 { Ok(()) } else { Err(ShutdownTimedOut { threads }) }
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("queues", &self.queues())
            .field("threads", &self.threads())
            .field("active_timers", &self.active_timers())
            .finish()
    }
}
