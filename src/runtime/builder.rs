//! The builder of a runtime: its settings and its start.
//!
//! Ground rules. Every number is checked before a descriptor is opened or a thread started. If the
//! system refuses a resource, the resources obtained so far are released before the error is
//! returned.

use std::time::Duration;
use std::{fmt, io};

use super::{CallbackJob, CallbackPanic, ManualClock, Observer, Runtime, SlowCallback, StartError};
use crate::alarm::{self, Clock, SystemClock};
use crate::engine::shared_alarm::alarms;
use crate::engine::{Engine, Executor, Hooks, NativeParts, Owner};
use crate::one_drop::OneDrop;
use crate::pool::{Pool, PoolConfig, Timing};
use crate::sync::Arc;
use crate::sys::topology::Cores;

/// The largest number of queues; further cores share queues.
const MAX_QUEUES: usize = 1024;
const DEFAULT_MAX_THREADS: usize = 512;
const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The clock of the system on which a runtime counts: whether time in suspend counts.
///
/// Setting the wall clock moves neither. On a machine without suspend the two are the same.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{OnceTimer, Runtime, RuntimeClock};
///
/// // Sessions that end after eight hours, whether the lid was closed or not.
/// let runtime = Runtime::builder().clock(RuntimeClock::Boot).start()?;
/// let session = OnceTimer::on(&runtime, Duration::from_secs(8 * 3600), |_| println!("good-bye"));
/// # drop(session);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RuntimeClock {
    /// Stands still while the system is suspended (on Linux, `CLOCK_MONOTONIC`).
    #[default]
    Monotonic,
    /// Goes on while the system is suspended (on Linux, `CLOCK_BOOTTIME`). A timer due in suspend
    /// does not wake the system up; the timer fires late, when the system resumes.
    Boot,
}

/// The mechanism that wakes a runtime when a timer is due.
///
/// # Examples
///
/// The system's own timers, and timed waits where a sandbox refuses timers:
///
/// ```
/// use timerqueue::{Alarm, Runtime, error::StartError};
///
/// let runtime = match Runtime::builder().start() {
///     Err(StartError::Alarm(refused)) => {
///         eprintln!("no timers of the system's: {refused}");
///         Runtime::builder().alarm(Alarm::Portable).start()?
///     }
///     started => started?,
/// };
/// # drop(runtime);
/// # Ok::<(), StartError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Alarm {
    /// Timers of the kernel. On Linux: a timerfd for each queue and one more for each eight, in an
    /// epoll set, with three further descriptors; no more timers than a quarter of the descriptors
    /// that the process may open, and fewer where descriptors are out: queues then share timers,
    /// and [`Metrics::kernel_timers`](crate::observe::Metrics::kernel_timers) tells. On BSD and
    /// macOS: a kqueue timer for each queue and one more for each eight, with a single descriptor.
    /// On Windows: a single waitable timer of high resolution for all queues. Where the system
    /// refuses timers, starting ends in [`StartError::Alarm`].
    ///
    /// A program that closes unknown descriptors (`closefrom` in a daemon) must do so before
    /// starting a runtime. Else the runtime ends, and reports the loss
    /// ([`RuntimeBuilder::on_panic`]).
    #[default]
    Native,
    /// Timed waits of the pool's threads on a condition variable: no descriptors, and once started
    /// no system call that a sandbox refuses to a program with threads. (The start reads the cores
    /// and the quota of the process, where it may.) Never early either, but somewhat later and
    /// dearer: a thread is woken up whenever a timer becomes the earliest, and a further thread
    /// whenever an alarm expires.
    ///
    /// On [`RuntimeClock::Boot`] a wait lasts at most 5 s, since timed waits may not count time in
    /// suspend. A timer due in suspend fires within 5 s of the end of the suspend, and the process
    /// wakes up every 5 s while timers are pending.
    Portable,
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
///     .on_panic(|panic| eprintln!("a timer panicked: {panic}"))
///     .start()?;
/// # drop(runtime);
/// # Ok::<(), timerqueue::error::StartError>(())
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
    hooks: OneDrop<Hooks>,
    manual: Option<Box<dyn StartsEngines>>,
    clock: RuntimeClock,
    alarm: Alarm,
    /// Of `alarm`; `None`: native.
    open: Option<alarm::Open>,
    executor: Option<Box<Executor>>,
    /// After a failed start: the engine whose threads were refused, which has the hooks and the
    /// executor.
    failed: Option<Arc<Engine>>,
}

impl RuntimeBuilder {
    /// The number of queues, 1 to 1,024. Default: the number of cores that the process may use, or
    /// the quota of its control group in whole processors, if smaller; 1 on a manual clock. The
    /// cores share fewer queues evenly.
    ///
    /// On Linux the process may use each core which some thread of the process may use when the
    /// runtime starts. So the thread that starts the runtime may be pinned: threads of the pool use
    /// all these cores. A process with all threads pinned at the start looks restricted to their
    /// cores. (On other systems the affinity of the calling thread counts, and threads inherit it.)
    pub fn queues(mut self, queues: usize) -> Self {
        self.queues = Some(queues);
        self
    }

    /// The number of permanent threads: at least 2, since a thread must wait for alarms while
    /// another runs a callback. Default: 1 more than the default number of
    /// [`queues`](Self::queues), if `max_threads` allows. Without meaning on a manual clock.
    ///
    /// All of them are started with the runtime, some 55 us and 35 kB each on Linux: if the system
    /// refuses one, the start fails, and no firing later on. A program whose callbacks are short
    /// needs fewer, of which two fire the timers of all queues.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// The largest number of threads, reached when callbacks block; at most 4,000. Default: 512, or
    /// the number of workers if larger. A thread always waits for alarms and runs no callback: so
    /// when callbacks block all threads but one, due timers wait.
    pub fn max_threads(mut self, max_threads: usize) -> Self {
        self.max_threads = Some(max_threads);
        self
    }

    /// The idle time after which a thread beyond the workers ends. Default: 10 s.
    pub fn keep_alive(mut self, keep_alive: Duration) -> Self {
        self.keep_alive = Some(keep_alive);
        self
    }

    /// Name of the threads; a number is appended. Default: `timerqueue`. (Linux shows the first 15
    /// bytes.)
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Called on each thread of the pool when it begins, before its first callback: for a name, a
    /// priority, an affinity or a timer slack of the program's own, which the hook sets for the
    /// calling thread. [`std::thread::current`] has the [name](Self::thread_name) with its number.
    ///
    /// **When.** Before `start` returns, the threads of the start have been made, but their hooks
    /// may still run. Threads that are added while callbacks block call the hook too. The default
    /// runtime has the hook only if [`start_global`](Self::start_global) starts it. Without meaning
    /// on a manual clock.
    ///
    /// **In the hook** the runtime is the [current](Runtime::current) one, and timers can be made;
    /// the thread takes part in the pool when the hook returns, so the hook should not wait for a
    /// timer of this runtime. A panic is caught, counted and told as that of a callback
    /// ([`on_panic`](Self::on_panic)), and the thread goes on. The affinity that
    /// `pin_workers` gives is set before the hook is called. A later call replaces the hook.
    ///
    /// **Priorities.** No lock of this crate inherits priorities. The locks of the queues are held
    /// for some tens of nanoseconds by a call, and for some microseconds by a sweep, never while a
    /// callback runs. But a thread that the scheduler takes from its processor meanwhile keeps the
    /// lock: a thread of a higher real-time priority, which makes or changes a timer of the same
    /// core, then waits until the other has run on. So all threads of the pool should have one
    /// priority, at least that of the most urgent thread that uses the runtime; and urgent work may
    /// have a runtime of its own, whose locks other threads never take. A callback that holds a
    /// lock of the program's is up to the program.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::Runtime;
    ///
    /// let runtime = Runtime::builder()
    ///     .thread_name("control")
    ///     .on_thread_start(|| {
    ///         // For example `libc::sched_setscheduler(0, libc::SCHED_FIFO, ..)`.
    ///         println!("{:?} begins", std::thread::current().name());
    ///     })
    ///     .on_thread_stop(|| println!("{:?} ends", std::thread::current().name()))
    ///     .start()?;
    /// # drop(runtime);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn on_thread_start(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.hooks.thread_begins = Some(Box::new(hook));
        self
    }

    /// Called on each thread of the pool when it ends, after its last callback: at the shutdown,
    /// which waits for it, and when a thread beyond the workers has been idle for
    /// [`keep_alive`](Self::keep_alive). As [`on_thread_start`](Self::on_thread_start).
    pub fn on_thread_stop(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.hooks.thread_ends = Some(Box::new(hook));
        self
    }

    /// Runs callbacks on an executor of the program's instead of the pool: `executor` gets a job
    /// for each due callback, on a thread of the pool, and passes the job on to a thread that calls
    /// [`CallbackJob::run`]. Without meaning on a manual clock.
    ///
    /// Callbacks of timers, of timed cancels and of wall timers, and jobs of
    /// [`Runtime::execute`](crate::Runtime::execute), are handed over. Wakers of delays, timeouts
    /// and intervals are not.
    ///
    /// **What stays.** No callback starts early, nor after a change or disposal. A timer has at
    /// most one job at a time with the executor; ticks that come due meanwhile are deferred and
    /// counted. A job that begins late passes the deferred tick to the executor first, so a
    /// callback that blocks does not keep the ticks of its timer. Panics are contained. A shutdown
    /// waits for the callbacks that run; a job that has not begun by then does nothing.
    ///
    /// **What the executor decides.** How late a callback is, and in which order callbacks run.
    /// That a callback that blocks delays no other holds only as far as the executor has a further
    /// thread. A job that waits in the executor's queue keeps the memory of its timer.
    ///
    /// If `executor` panics, the panic is counted as that of a callback, and the job is dropped.
    ///
    /// # Examples
    ///
    /// Callbacks that block, on the threads that tokio has for this:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{OnceTimer, Runtime};
    ///
    /// # let executor = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # executor.block_on(async {
    /// let tokio = tokio::runtime::Handle::current();
    /// let runtime = Runtime::builder()
    ///     .callback_executor(move |job| _ = tokio.spawn_blocking(move || job.run()))
    ///     .start()?;
    /// let (send, receive) = tokio::sync::oneshot::channel();
    /// let timer = OnceTimer::on(&runtime, Duration::from_millis(1), move |_| {
    ///     send.send("on a thread of tokio's").unwrap()
    /// });
    /// println!("{}", receive.await.unwrap());
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// # }).unwrap();
    /// ```
    #[doc(alias = "spawn_blocking")]
    pub fn callback_executor(mut self, executor: impl Fn(CallbackJob) + Send + Sync + 'static) -> Self {
        self.executor = Some(Box::new(executor));
        self
    }

    /// Whether each worker is pinned to a core that the process may use. Default: no; DESIGN.md
    /// tells why. Threads beyond the workers are not pinned. Needs the feature `affinity`.
    #[cfg(feature = "affinity")]
    pub fn pin_workers(mut self, pin: bool) -> Self {
        self.pin = pin;
        self
    }

    /// Called with each panic of the program's code that the runtime has caught: of a callback, a
    /// job, a waker that is called, the [executor](Self::callback_executor), the hook for [slow
    /// callbacks](Self::on_slow_callback), and of the destructors of all these.
    /// [`Metrics::panics`](crate::observe::Metrics::panics) counts the same. Default: no handler;
    /// the panic hook of the process has already printed the message.
    ///
    /// **Threads.** Called on the thread that has caught the panic, after the code has unwound,
    /// with no lock held. Where a call of the program drops or disposes a timer, a future or a
    /// source, that is inside of the call. A panic of the handler itself is ignored. What else
    /// panics inside of the handler is counted, and not told.
    ///
    /// **After the end** of the runtime the handler is called all the same: for what a shutdown
    /// wakes and drops, and later. The handler is dropped with the runtime: with the last
    /// [`Runtime`], thread, delay, interval, source and delay queue.
    ///
    /// **What surfaces in a call** is not told: a panic out of
    /// [`cancel`](crate::CancellationTokenSource::cancel),
    /// [`unregister`](crate::Registration::unregister) or [`stop`](crate::StopHandle::stop); a
    /// waker that panics when a poll clones it; `Hash` and `Eq` of a key; the values of a delay
    /// queue that are dropped with it. Of several panics in one call the first surfaces, and the
    /// others are told. All are told if the thread panics already.
    ///
    /// Also called, once, when the runtime has ended because foreign code of the process closed its
    /// descriptors, or because a sandbox that the program entered later refuses its calls: with a
    /// `String` that says so, on a thread of the runtime. Default: the message goes to the
    /// [observer](Self::observer), or else to standard error.
    pub fn on_panic(mut self, handler: impl Fn(CallbackPanic) + Send + Sync + 'static) -> Self {
        self.hooks.panicked = Some(Box::new(handler));
        self
    }

    /// Called after each callback that ran for longer than `limit`, on its thread. A callback that
    /// does not return is not reported here;
    /// [`Metrics::longest_running`](crate::observe::Metrics::longest_running) shows it. Wakers of futures
    /// are not measured.
    ///
    /// Default: no hook. With a hook, each callback costs three readings of a clock more. The limit
    /// also holds for the [observer](Self::observer).
    pub fn on_slow_callback(mut self, limit: Duration, hook: impl Fn(&SlowCallback) + Send + Sync + 'static) -> Self {
        self.hooks.slow = Some(Box::new(hook));
        self.hooks.slow_limit = Some(limit);
        self
    }

    /// Is told of panics, slow callbacks and threads, and may give new timers a context: see
    /// [`Observer`]. Beside the hooks [`on_panic`](Self::on_panic) and
    /// [`on_slow_callback`](Self::on_slow_callback), and dropped with them. Default: none.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::{Runtime, observe::{CallbackPanic, Observer, ThreadsChanged}};
    ///
    /// struct ToStderr;
    ///
    /// impl Observer for ToStderr {
    ///     fn panicked(&self, panic: &CallbackPanic) {
    ///         eprintln!("a timer panicked: {panic}");
    ///     }
    ///     fn threads_changed(&self, change: &ThreadsChanged) {
    ///         eprintln!("callbacks block: {change:?}");
    ///     }
    /// }
    ///
    /// let runtime = Runtime::builder().observer(ToStderr).start()?;
    /// # drop(runtime);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.hooks.observer = Some(Box::new(observer));
        self
    }

    /// The clock of the system on which the runtime counts. Default: [`RuntimeClock::Monotonic`].
    /// On a manual clock the two differ by [`ManualClock::suspend`].
    pub fn clock(mut self, clock: RuntimeClock) -> Self {
        self.clock = clock;
        self
    }

    /// The mechanism that wakes the runtime when a timer is due. Default: [`Alarm::Native`].
    /// Without meaning on a manual clock.
    pub fn alarm(mut self, alarm: Alarm) -> Self {
        self.alarm = alarm;
        self.open = Some(match alarm {
            Alarm::Native => alarm::native,
            Alarm::Portable => alarm::portable,
        });
        self
    }

    /// Runs on this clock instead of real time: no threads, no alarms; callbacks run on the thread
    /// that advances the clock.
    pub fn manual_clock(mut self, clock: &ManualClock) -> Self {
        self.manual = Some(Box::new(clock.clone()));
        self
    }

    /// Whether the runtime counts on the clock of a runtime with the default settings.
    pub(super) fn has_usual_clock(&self) -> bool {
        self.manual.is_none() && self.clock == RuntimeClock::Monotonic
    }

    /// The numbers of queues and threads, on this many processors.
    fn sizes(&self, processors: usize) -> Result<Sizes, StartError> {
        const MIN_WORKERS: usize = 2;
        // More would hardly be meant: each thread has a stack, and systems refuse threads at some
        // ten thousand.
        const MAX_THREADS: usize = 4_000;
        let queues = checked_queues(self.queues.unwrap_or(processors.min(MAX_QUEUES)))?;
        let most = self.max_threads.unwrap_or(MAX_THREADS).clamp(MIN_WORKERS, MAX_THREADS);
        let workers = self.workers.unwrap_or((processors + 1).clamp(MIN_WORKERS, most));
        if !(MIN_WORKERS..=MAX_THREADS).contains(&workers) {
            return Err(StartError::Threads { asked: workers, min: MIN_WORKERS, max: MAX_THREADS });
        }
        let max_threads = self.max_threads.unwrap_or(DEFAULT_MAX_THREADS.max(workers));
        if !(workers..=MAX_THREADS).contains(&max_threads) {
            return Err(StartError::Threads { asked: max_threads, min: workers, max: MAX_THREADS });
        }
        Ok(Sizes { queues, workers, max_threads })
    }

    /// Starts the runtime.
    ///
    /// # Errors
    /// See [`StartError`]. Nothing is left behind then.
    pub fn start(mut self) -> Result<Runtime, StartError> {
        self.launch()
    }

    fn take(hooks: &mut OneDrop<Hooks>) -> OneDrop<Hooks> {
        let Hooks { slow_limit, observer, .. } = &mut **hooks;
        *slow_limit = slow_limit.or_else(|| observer.as_ref()?.slow_limit());
        std::mem::take(hooks)
    }

    /// As [`Self::start`]. If the start fails, the hooks and the executor stay in `self`: their
    /// destructors are code of the program's, and the caller may hold a lock.
    pub(super) fn launch(&mut self) -> Result<Runtime, StartError> {
        if let Some(clock) = &self.manual {
            let queues = checked_queues(self.queues.unwrap_or(1))?;
            let engine = clock.start_engine(queues, self.clock == RuntimeClock::Boot, Self::take(&mut self.hooks));
            return Ok(Runtime { owner: Owner::new(engine) });
        }
        let cores = Cores::of_process();
        let processors = match (self.queues, self.workers) {
            (Some(_), Some(_)) => 1, // not used
            _ => cores.processors(),
        };
        let Sizes { queues, workers, max_threads } = self.sizes(processors)?;
        let name = self.name.take().unwrap_or_else(|| String::from("timerqueue"));
        if name.contains('\0') {
            let error = io::Error::new(io::ErrorKind::InvalidInput, "a thread name cannot contain a zero byte");
            return Err(StartError::Thread(error));
        }
        let config = PoolConfig {
            workers,
            max_threads,
            keep_alive: self.keep_alive.unwrap_or(DEFAULT_KEEP_ALIVE),
            name,
            mask: cores.mask_to_set(self.pin),
            pin_to: if self.pin { cores.ids.clone() } else { Vec::new() },
            may_open_files: self.alarm == Alarm::Native,
            timing: Timing::REAL,
        };
        let clock = match self.clock {
            RuntimeClock::Monotonic => SystemClock::MONOTONIC,
            RuntimeClock::Boot => SystemClock::BOOT.ok_or(StartError::NoBootClock)?,
        };
        let alarms = self.open.unwrap_or(alarm::native)(clock, alarms(queues)).map_err(StartError::Alarm)?;
        let hooks = Self::take(&mut self.hooks);
        let native =
            NativeParts { pool: OneDrop::new(Pool::new(config, alarms, clock)), executor: self.executor.take() };
        let engine = Engine::new(queues, &cores.ids, Clock::System(clock), Some(Box::new(native)), hooks);
        if let Err(error) = Pool::start(&engine) {
            engine.close();
            self.failed = Some(engine);
            return Err(StartError::Thread(error));
        }
        Ok(Runtime { owner: Owner::new(engine) })
    }
}

/// A manual clock, called by its table: so a program without such a clock is linked without its
/// code.
trait StartsEngines: fmt::Debug + Send + Sync {
    fn start_engine(&self, queues: usize, boot: bool, hooks: OneDrop<Hooks>) -> Arc<Engine>;
}

impl StartsEngines for ManualClock {
    fn start_engine(&self, queues: usize, boot: bool, hooks: OneDrop<Hooks>) -> Arc<Engine> {
        let agenda = self.agenda();
        let ticking = Clock::Manual { virtual_time: agenda.virtual_time.clone(), boot };
        let engine = Engine::new(queues, &[], ticking, None, hooks);
        agenda.join(&engine, boot);
        engine
    }
}

/// The numbers of queues and threads of a runtime.
#[derive(Debug, PartialEq, Eq)]
struct Sizes {
    queues: usize,
    workers: usize,
    max_threads: usize,
}

fn checked_queues(queues: usize) -> Result<usize, StartError> {
    if queues == 0 || queues > MAX_QUEUES {
        return Err(StartError::Queues { asked: queues, max: MAX_QUEUES });
    }
    Ok(queues)
}

shown!([] RuntimeBuilder, |this|
    "queues" => this.queues, "workers" => this.workers, "max_threads" => this.max_threads,
    "keep_alive" => this.keep_alive, "thread_name" => this.name, "clock" => this.clock, "alarm" => this.alarm,
    "manual_clock" => this.manual
);

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    #[test]
    fn s25_queues_and_workers_follow_the_processors() {
        let sizes = |builder: &RuntimeBuilder, processors| {
            let Sizes { queues, workers, max_threads } = builder.sizes(processors).expect("in range");
            (queues, workers, max_threads)
        };
        let builder = Runtime::builder();
        for (processors, expected) in
            [(1, (1, 2, 512)), (2, (2, 3, 512)), (128, (128, 129, 512)), (2_000, (1_024, 2_001, 2_001))]
        {
            assert_eq!(sizes(&builder, processors), expected);
        }
        // Given numbers stand on any machine.
        assert_eq!(sizes(&Runtime::builder().queues(7).workers(3), 128), (7, 3, 512));
        assert_eq!(sizes(&Runtime::builder().queues(7), 2), (7, 3, 512));
        assert_eq!(sizes(&Runtime::builder().max_threads(4), 128), (128, 4, 4));
        assert!(Runtime::builder().max_threads(1).sizes(2).is_err());
    }
}
