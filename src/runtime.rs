//! Runtimes: the builder, the process-wide default, shutdown, and the manual clock.
//!
//! Ground rules. A [`Runtime`] is a counted handle to an engine; the engine lives on in its own threads and homes until
//! the last handle is dropped or `shutdown` is called, and is closed then. A manual clock knows the engines that run on
//! it, weakly, and drives them on the thread that moves its hands.

use std::any::Any;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError, Weak};
use std::thread::ThreadId;
use std::time::Duration;

use crate::alarm::manual::Hands;
use crate::alarm::{Clock, Native};
use crate::cancellation::CancellationTokenSource;
use crate::delay::{Delay, Source};
use crate::engine::{Engine, Fire, NativeParts, PanicHandler};
use crate::interval::Interval;
use crate::pool::{Pool, Shape};
use crate::queue::state::MAX_RUNNING;
use crate::queue::{LAST, MissedTicks, NEVER};
use crate::sync::Arc;
use crate::time::Timestamp;
use crate::timeout::Timeout;
use crate::timer::{self, OnceTimer, Tick, Timer};

/// Queues a runtime can have: more cores than that share queues.
const MAX_QUEUES: usize = 1024;
const DEFAULT_MAX_THREADS: usize = 512;
const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(10);

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
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.engine.close();
    }
}

impl Runtime {
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
        static GLOBAL: OnceLock<Runtime> = OnceLock::new();
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

    /// A timer whose callbacks may overlap when one runs longer than the period (S9).
    ///
    /// The meaning of `due` and `period` is that of [`Timer::new`]. After [`shutdown`](Self::shutdown) the timer is born
    /// disposed: it never fires, and changing it answers [`Changed::Ended`](crate::Changed::Ended).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timer = runtime.timer(Duration::from_millis(250), Duration::from_micros(200), |tick| {
    ///     println!("due at {:?}", tick.scheduled());
    /// });
    /// assert_eq!(clock.advance(Duration::from_millis(251)), 6);
    /// # drop(timer);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    #[inline]
    pub fn timer(
        &self,
        due: Duration,
        period: Duration,
        callback: impl Fn(&Tick<'_>) + Send + Sync + 'static,
    ) -> Timer {
        timer::overlapping(&self.owner.engine, MissedTicks::default(), (due, period), callback)
    }

    /// A timer whose callbacks never overlap; ticks that come due while one runs are coalesced into one (S9).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut ticks = 0;
    /// let timer = runtime.exclusive_timer(Duration::ZERO, Duration::from_secs(1), move |_| ticks += 1);
    /// clock.advance(Duration::from_secs(3));
    /// # drop(timer);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    #[inline]
    pub fn exclusive_timer(
        &self,
        due: Duration,
        period: Duration,
        callback: impl FnMut(&Tick<'_>) + Send + 'static,
    ) -> Timer {
        timer::exclusive(&self.owner.engine, MissedTicks::default(), (due, period), callback)
    }

    /// A timer that fires once and consumes its callback. `Duration::MAX` makes it idle until it is changed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let resource = Box::new(5);
    /// runtime.once(Duration::from_secs(2), move |_| drop(resource)).detach();
    /// assert_eq!(clock.advance(Duration::from_secs(2)), 1);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    #[inline]
    pub fn once(&self, due: Duration, callback: impl FnOnce(&Tick<'_>) + Send + 'static) -> OnceTimer {
        timer::once(&self.owner.engine, due, callback)
    }

    /// A timer with a missed-tick policy of its own.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, MissedTicks, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timer = runtime
    ///     .timer_builder()
    ///     .period(Duration::from_secs(1))
    ///     .missed_ticks(MissedTicks::Burst)
    ///     .start(|tick| println!("{tick:?}"));
    /// clock.stall(Duration::from_secs(5));
    /// assert_eq!(clock.advance(Duration::ZERO), 5);
    /// # drop(timer);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn timer_builder(&self) -> TimerBuilder<'_> {
        TimerBuilder { runtime: self, due: None, period: Duration::MAX, policy: MissedTicks::default() }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.owner.engine
    }

    /// A [`Delay`] on this runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let delay = runtime.delay(Duration::from_secs(5));
    /// clock.advance(Duration::from_secs(5));
    /// assert!(delay.is_elapsed());
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn delay(&self, after: Duration) -> Delay {
        Delay::on(self.source(), after)
    }

    /// A [`Delay`] on this runtime that ends at an instant of its clock.
    pub fn delay_until(&self, deadline: Timestamp) -> Delay {
        Delay::on_until(self.source(), deadline.as_ns())
    }

    /// [`timeout`](crate::timeout()) on this runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Runtime;
    ///
    /// # async fn example(runtime: &Runtime) {
    /// let answer = runtime.timeout(Duration::from_secs(1), async { 42 }).await;
    /// assert_eq!(answer, Ok(42));
    /// # }
    /// ```
    pub fn timeout<F: IntoFuture>(&self, limit: Duration, future: F) -> Timeout<F::IntoFuture> {
        Timeout::new(future.into_future(), self.delay(limit))
    }

    /// An [`Interval`] on this runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Runtime;
    ///
    /// # async fn example(runtime: &Runtime) {
    /// let mut interval = runtime.interval(Duration::from_millis(20));
    /// while let Some(tick) = interval.tick().await {
    ///     println!("{tick:?}");
    /// }
    /// # }
    /// ```
    pub fn interval(&self, period: Duration) -> Interval {
        Interval::on(self.source(), period)
    }

    /// A cancellation source whose [`cancel_after`](CancellationTokenSource::cancel_after) counts on this runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let source = runtime.cancellation_source();
    /// source.cancel_after(Duration::from_secs(10))?;
    /// clock.advance(Duration::from_secs(10));
    /// assert!(source.is_cancelled());
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn cancellation_source(&self) -> CancellationTokenSource {
        CancellationTokenSource::on(self.source())
    }

    fn source(&self) -> Source {
        Source::Engine(Arc::clone(&self.owner.engine))
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

    /// Timers that are waiting to fire: neither idle nor disposed. Each queue is counted under its own lock, so this is
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

    /// The earliest due point of all timers that wait, or `None`. Walks the next occupied slot of each queue under its
    /// lock: for tests and displays, not for hot paths.
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
        self.owner.engine.homes().count()
    }

    /// Callbacks begun so far.
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

    /// Shuts the runtime down: pending timers never fire again and are dropped with what their callbacks own, queued
    /// callbacks are discarded, running ones are awaited for up to `limit`, threads end (S33).
    ///
    /// Calling it again waits again. Called from inside a callback of this runtime it does not wait for that one. Handles
    /// of timers stay valid: disposing works, changing answers [`Changed::Ended`](crate::Changed::Ended).
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
        let Some(native) = engine.native() else { return Ok(()) };
        let own = engine.inside_callback();
        match native.pool.wait_until_ended(Some(limit), own) {
            0 => Ok(()),
            threads => Err(ShutdownTimedOut { threads }),
        }
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

/// Callbacks were still running when the time for a shutdown was over.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::Runtime;
///
/// let runtime = Runtime::builder().start()?;
/// if let Err(late) = runtime.shutdown(Duration::from_millis(100)) {
///     eprintln!("{late}");
/// }
/// # Ok::<(), timerqueue::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownTimedOut {
    threads: usize,
}

impl ShutdownTimedOut {
    /// Threads that had not ended, most likely because a callback does not return.
    pub fn threads(&self) -> usize {
        self.threads
    }
}

impl fmt::Display for ShutdownTimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} timer threads were still running callbacks when the time for the shutdown was over", self.threads)
    }
}

impl std::error::Error for ShutdownTimedOut {}

/// Why a runtime could not be started (S34). Nothing is left behind; a later try may work.
///
/// # Examples
///
/// ```
/// use timerqueue::{Runtime, StartError};
///
/// assert!(matches!(Runtime::builder().queues(0).start(), Err(StartError::Queues { .. })));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The number of queues asked for is zero or too large.
    #[non_exhaustive]
    Queues {
        /// What was asked for.
        asked: usize,
        /// The largest number possible.
        max: usize,
    },
    /// The number of workers or of threads asked for is too small or too large.
    #[non_exhaustive]
    Threads {
        /// What was asked for.
        asked: usize,
        /// The smallest number possible.
        min: usize,
        /// The largest number possible.
        max: usize,
    },
    /// The system refused a timer, an event or a poll descriptor (out of descriptors, most likely).
    Alarm(io::Error),
    /// The system refused a thread, or the name for it.
    Thread(io::Error),
    /// The default runtime was shut down; it does not start again.
    ShutDown,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queues { asked, max } => write!(f, "a timer runtime has 1 to {max} queues, not {asked}"),
            Self::Threads { asked, min, max } => {
                write!(f, "a timer runtime with these settings has {min} to {max} threads, not {asked}")
            }
            Self::Alarm(_) => f.write_str("the system refused an alarm for the timer runtime"),
            Self::Thread(_) => f.write_str("the system refused a thread for the timer runtime"),
            Self::ShutDown => f.write_str("the default timer runtime was shut down"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Alarm(error) | Self::Thread(error) => Some(error),
            Self::Queues { .. } | Self::Threads { .. } | Self::ShutDown => None,
        }
    }
}

/// Settings for a runtime. The defaults follow the machine; every setting is optional.
///
/// # Examples
///
/// ```
/// use timerqueue::Runtime;
///
/// let runtime = Runtime::builder()
///     .thread_name("billing-timer")
///     .on_panic(|payload| eprintln!("a timer panicked: {:?}", payload.downcast_ref::<&str>()))
///     .start()?;
/// # drop(runtime);
/// # Ok::<(), timerqueue::StartError>(())
/// ```
#[must_use = "a builder does nothing until `start`"]
#[derive(Default)]
pub struct RuntimeBuilder {
    queues: Option<usize>,
    workers: Option<usize>,
    max_threads: Option<usize>,
    keep_alive: Option<Duration>,
    name: Option<String>,
    pin: bool,
    panic_handler: Option<Arc<PanicHandler>>,
    manual: Option<ManualClock>,
}

impl RuntimeBuilder {
    /// The number of queues, 1 to 1,024. Default: the cores that the calling thread may use (affinity and cpuset respected);
    /// one on a manual clock. A thread that has pinned itself to one core should not be the one that starts a runtime for
    /// all: its threads would inherit that.
    pub fn queues(mut self, queues: usize) -> Self {
        self.queues = Some(queues);
        self
    }

    /// Threads that are always there: at least 2, since one must watch the alarms while another runs a callback.
    /// Default: one more than the cores that the process may use, if `max_threads` allows. Without meaning on a manual clock.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Up to this many threads are there when callbacks block (S31); at most 4,000. Default: 512, or the number of workers
    /// if that is larger. When all of them are blocked, due timers wait.
    pub fn max_threads(mut self, max_threads: usize) -> Self {
        self.max_threads = Some(max_threads);
        self
    }

    /// How long a thread beyond the workers stays idle before it ends. Default: 10 s.
    pub fn keep_alive(mut self, keep_alive: Duration) -> Self {
        self.keep_alive = Some(keep_alive);
        self
    }

    /// Name of the threads; a number is appended. Default: `timerqueue`. (Linux shows the first 15 bytes.)
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Whether the workers are pinned, each to one core. Default: no; DESIGN.md tells why.
    pub fn pin_workers(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// Called with the payload of each panic that a callback ends in, on the thread it ran on (S12). Default: nothing is
    /// called; the panic hook of the process has printed its message already. A panic of the handler itself is ignored.
    pub fn on_panic(mut self, handler: impl Fn(Box<dyn Any + Send>) + Send + Sync + 'static) -> Self {
        self.panic_handler = Some(std::sync::Arc::new(handler));
        self
    }

    /// Runs on this clock instead of real time: no threads, no alarms; callbacks run on the thread that advances it.
    pub fn manual_clock(mut self, clock: &ManualClock) -> Self {
        self.manual = Some(clock.clone());
        self
    }

    /// Starts the runtime.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left behind then.
    pub fn start(self) -> Result<Runtime, StartError> {
        // The calling thread's affinity mask; where it cannot be read, what std makes of the machine.
        let cores = core_affinity::get_core_ids().filter(|cores| !cores.is_empty()).unwrap_or_else(|| {
            let n = std::thread::available_parallelism().map_or(1, usize::from);
            (0..n).map(|id| core_affinity::CoreId { id }).collect()
        });
        let default_queues = if self.manual.is_some() { 1 } else { cores.len().min(MAX_QUEUES) };
        let queues = self.queues.unwrap_or(default_queues);
        if queues == 0 || queues > MAX_QUEUES {
            return Err(StartError::Queues { asked: queues, max: MAX_QUEUES });
        }
        if let Some(clock) = self.manual {
            let engine =
                Engine::new(queues, &cores, Clock::Manual(clock.inner.hands.clone()), None, self.panic_handler);
            clock.inner.join(&engine);
            return Ok(Runtime { owner: std::sync::Arc::new(Owner { engine }) });
        }

        const MIN_WORKERS: usize = 2;
        // Below the width of the count of running callbacks, with room for threads of the program itself.
        const MAX_THREADS: usize = MAX_RUNNING - 95;
        let most = self.max_threads.unwrap_or(MAX_THREADS).clamp(MIN_WORKERS, MAX_THREADS);
        let workers = self.workers.unwrap_or((cores.len() + 1).clamp(MIN_WORKERS, most));
        if !(MIN_WORKERS..=MAX_THREADS).contains(&workers) {
            return Err(StartError::Threads { asked: workers, min: MIN_WORKERS, max: MAX_THREADS });
        }
        let max_threads = self.max_threads.unwrap_or(DEFAULT_MAX_THREADS.max(workers));
        if !(workers..=MAX_THREADS).contains(&max_threads) {
            return Err(StartError::Threads { asked: max_threads, min: workers, max: MAX_THREADS });
        }
        let name = self.name.unwrap_or_else(|| String::from("timerqueue"));
        if name.contains('\0') {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "a thread name cannot contain a zero byte");
            return Err(StartError::Thread(error));
        }
        let shape = Shape {
            workers,
            max_threads,
            keep_alive: self.keep_alive.unwrap_or(DEFAULT_KEEP_ALIVE),
            name,
            pin_to: if self.pin { cores.clone() } else { Vec::new() },
        };
        let alarms = Native::new(queues).map_err(StartError::Alarm)?;
        let native = NativeParts { alarms, pool: Pool::new(shape) };
        let engine = Engine::new(queues, &cores, Clock::Native, Some(native), self.panic_handler);
        if let Err(error) = Pool::start(&engine) {
            engine.close();
            return Err(StartError::Thread(error));
        }
        Ok(Runtime { owner: std::sync::Arc::new(Owner { engine }) })
    }
}

impl fmt::Debug for RuntimeBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeBuilder")
            .field("queues", &self.queues)
            .field("workers", &self.workers)
            .field("max_threads", &self.max_threads)
            .finish_non_exhaustive()
    }
}

/// Settings for one timer. Made by [`Runtime::timer_builder`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, MissedTicks, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let mut samples = Vec::new();
/// let timer = runtime
///     .timer_builder()
///     .due(Duration::from_millis(5))
///     .period(Duration::from_millis(20))
///     .missed_ticks(MissedTicks::Skip)
///     .start_exclusive(move |tick| samples.push(tick.scheduled()));
/// assert_eq!(clock.advance(Duration::from_millis(45)), 3);
/// # drop(timer);
/// # Ok::<(), timerqueue::StartError>(())
/// ```
#[must_use = "a builder does nothing until `start`"]
#[derive(Clone, Debug)]
pub struct TimerBuilder<'a> {
    runtime: &'a Runtime,
    due: Option<Duration>,
    period: Duration,
    policy: MissedTicks,
}

impl TimerBuilder<'_> {
    /// Time to the first firing. Default: one period, so a timer without either is idle.
    pub fn due(mut self, due: Duration) -> Self {
        self.due = Some(due);
        self
    }

    /// Time between later firings; zero or `Duration::MAX` for a one-shot. Default: one-shot.
    pub fn period(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// What happens when whole periods were missed (S8). Default: [`MissedTicks::Rebase`], as in .NET.
    pub fn missed_ticks(mut self, policy: MissedTicks) -> Self {
        self.policy = policy;
        self
    }

    fn when(&self) -> (Duration, Duration) {
        let due = self.due.unwrap_or(if self.period.is_zero() { Duration::MAX } else { self.period });
        (due, self.period)
    }

    /// Starts a timer whose callbacks may overlap; see [`Runtime::timer`].
    pub fn start(self, callback: impl Fn(&Tick<'_>) + Send + Sync + 'static) -> Timer {
        timer::overlapping(&self.runtime.owner.engine, self.policy, self.when(), callback)
    }

    /// Starts a timer whose callbacks never overlap; see [`Runtime::exclusive_timer`].
    pub fn start_exclusive(self, callback: impl FnMut(&Tick<'_>) + Send + 'static) -> Timer {
        timer::exclusive(&self.runtime.owner.engine, self.policy, self.when(), callback)
    }
}

/// A clock that stands still until it is told to move, for tests and simulations (S51 to S53).
///
/// Runtimes built on it have no threads: [`advance`](Self::advance) steps from due point to due point and runs everything
/// that comes due on the calling thread, ordered by due point and then by the order in which the timers were armed. The code
/// under it is the code that ships; only the clock and the alarm are replaced.
///
/// A `ManualClock` is a handle: clones share the same clock. Several runtimes can run on one clock, and several clocks
/// can live in one process.
///
/// # Examples
///
/// A month in no time:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// let daily = runtime.timer(DAY, DAY, |tick| assert_eq!(tick.lateness(), Duration::ZERO));
/// assert_eq!(clock.advance(30 * DAY), 30);
/// # drop(daily);
/// # Ok::<(), timerqueue::StartError>(())
/// ```
#[derive(Clone, Default)]
pub struct ManualClock {
    inner: std::sync::Arc<ManualInner>,
}

#[derive(Default)]
struct ManualInner {
    hands: std::sync::Arc<Hands>,
    engines: Mutex<Vec<Weak<Engine>>>,
    driver: Mutex<Driver>,
    free: std::sync::Condvar,
}

/// Who moves the hands.
#[derive(Default)]
struct Driver {
    thread: Option<ThreadId>,
    /// How far the running advance goes.
    target: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing under these locks panics; if it did, the data would still be whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ManualInner {
    fn join(&self, engine: &Arc<Engine>) {
        let mut engines = lock(&self.engines);
        engines.retain(|engine| engine.strong_count() > 0);
        engines.push(std::sync::Arc::downgrade(engine));
    }

    fn engines(&self) -> Vec<Arc<Engine>> {
        lock(&self.engines).iter().filter_map(Weak::upgrade).collect()
    }

    /// Runs all that is due now, ordered by due point and arming. The number of callbacks run.
    fn run_due(&self) -> u64 {
        let mut due = BinaryHeap::new();
        let mut swept = Vec::new();
        for engine in self.engines() {
            engine.sweep_all(&mut swept);
            due.extend(swept.drain(..).map(|fire| Due::new(&engine, fire)));
        }
        let mut run = 0;
        while let Some(Due { engine, fire, .. }) = due.pop() {
            run += u64::from(engine.run_by_hand(fire, &mut swept));
            // Further ticks of the same timer that are due as well take their place in the order.
            due.extend(swept.drain(..).map(|fire| Due::new(&engine, fire)));
        }
        run
    }
}

/// A claimed tick in the order of its instant. (The order is read once: a change from another thread may move it.)
struct Due {
    order: Reverse<(u64, u64)>,
    engine: Arc<Engine>,
    fire: Fire,
}

impl Due {
    fn new(engine: &Arc<Engine>, fire: Fire) -> Self {
        let order = Reverse((fire.scheduled, fire.node.get().state.number()));
        Self { order, engine: Arc::clone(engine), fire }
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order.cmp(&other.order)
    }
}

impl ManualClock {
    /// A clock that stands at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the clock shows.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_ns(self.inner.hands.now())
    }

    /// Moves the clock by `by`, from due point to due point, and runs every callback that comes due on the way, each at
    /// its exact instant, on this thread. A timer that a callback arms within the span fires within the same advance.
    /// Returns the number of callbacks run.
    ///
    /// A second thread that advances the same clock waits for the first. Called from inside a callback that the clock
    /// runs, it makes the running advance go on for `by` longer and returns 0. A callback that arms a timer with due time
    /// zero each time it runs keeps the clock where it is: the advance does not come to an end.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let ticks = runtime.timer(Duration::from_millis(10), Duration::from_millis(10), |_| {});
    /// assert_eq!(clock.advance(Duration::from_millis(35)), 3);
    /// assert_eq!(clock.advance(Duration::from_millis(5)), 1);
    /// # drop(ticks);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn advance(&self, by: Duration) -> u64 {
        let inner = &*self.inner;
        let me = std::thread::current().id();
        {
            let mut driver = lock(&inner.driver);
            if driver.thread == Some(me) {
                driver.target = crate::engine::instant(driver.target, by).min(LAST);
                return 0;
            }
            while driver.thread.is_some() {
                driver = inner.free.wait(driver).unwrap_or_else(PoisonError::into_inner);
            }
            driver.thread = Some(me);
            driver.target = crate::engine::instant(inner.hands.now(), by).min(LAST);
        }
        let mut run = 0;
        loop {
            run += inner.run_due();
            let next = inner.engines().iter().map(|engine| engine.next_deadline()).min().unwrap_or(NEVER);
            let mut driver = lock(&inner.driver);
            let now = inner.hands.now();
            if next <= driver.target {
                inner.hands.set(next.max(now));
            } else {
                inner.hands.set(driver.target.max(now));
                driver.thread = None;
                inner.free.notify_all();
                return run;
            }
        }
    }

    /// Moves the clock by `by` at once, as if the process had been stopped: nothing runs on the way. What came due is late,
    /// and runs at the next [`advance`](Self::advance), be it by zero. For testing [`MissedTicks`] policies.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timer = runtime.timer(Duration::from_secs(1), Duration::ZERO, |tick| {
    ///     assert_eq!(tick.lateness(), Duration::from_secs(4));
    /// });
    /// clock.stall(Duration::from_secs(5));
    /// assert_eq!(clock.advance(Duration::ZERO), 1);
    /// # drop(timer);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn stall(&self, by: Duration) {
        let inner = &*self.inner;
        let _driver = lock(&inner.driver);
        inner.hands.set(crate::engine::instant(inner.hands.now(), by).min(LAST));
    }

    /// The earliest due point of all runtimes on this clock; see [`Runtime::next_due`].
    pub fn next_due(&self) -> Option<Timestamp> {
        let earliest = self.inner.engines().iter().map(|engine| engine.earliest_due()).min().unwrap_or(NEVER);
        (earliest != NEVER).then(|| Timestamp::from_ns(earliest))
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("now", &self.now()).finish_non_exhaustive()
    }
}
