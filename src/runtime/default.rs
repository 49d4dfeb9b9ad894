//! The default runtime, and the current runtime of a thread.
//!
//! Ground rules. The default runtime starts once: on first use, or before by
//! [`RuntimeBuilder::start_global`] with settings of the program. Its clock is settled at the first
//! reading, which need not start the runtime; from then on no default runtime with another clock
//! can be started. [`STARTING`] is held while the runtime starts and while its clock is settled.

#![allow(unsafe_code)] // a pointer to a value that is never freed

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;

use super::{
    CallbackJob, ManualClock, Runtime, RuntimeBuilder, RuntimeError, RuntimeHandle, ShutdownError, StartError, usable,
};
use crate::engine::current::{self, Scope};
use crate::sync::Ordering;
use crate::sync::unmodelled::{AtomicPtr, AtomicU8, Mutex};
use crate::time::Timestamp;

/// Null before the start. A forked child may start a default runtime of its own, which takes the
/// place of the parent's in the memory of the child alone.
static GLOBAL: AtomicPtr<Runtime> = AtomicPtr::new(std::ptr::null_mut());
static STARTING: Mutex<()> = Mutex::new(());
/// The clock of the default runtime: [`OPEN`], [`USUAL`], [`OTHER`] or [`FORBIDDEN`].
static CLOCK: AtomicU8 = AtomicU8::new(OPEN);
/// Not settled.
const OPEN: u8 = 0;
/// The system's clock that stands still in suspend, for good.
const USUAL: u8 = 1;
/// The clock of the runtime in `GLOBAL`, or of a runtime that is being started.
const OTHER: u8 = 2;
/// None: the program forbids the default runtime, for good.
const FORBIDDEN: u8 = 3;

/// Makes this the default runtime. The caller holds [`STARTING`].
fn set(runtime: Runtime) -> &'static Runtime {
    let runtime = Box::into_raw(Box::new(runtime));
    GLOBAL.store(runtime, Ordering::Release);
    // SAFETY: just allocated, and never freed.
    unsafe { &*runtime }
}

/// The default runtime, if started: of this process, or of the parent from which this process was
/// forked.
#[inline]
pub(super) fn started() -> Option<&'static Runtime> {
    // SAFETY: null, or a runtime of `set`, which is never freed.
    unsafe { GLOBAL.load(Ordering::Acquire).as_ref() }
}

/// Settles the clock of the default runtime. `None`: the usual clock.
///
/// # Errors
/// [`StartError::Forbidden`].
pub(super) fn settle_clock() -> Result<Option<&'static Runtime>, StartError> {
    loop {
        match CLOCK.compare_exchange(OPEN, USUAL, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(USUAL) => return Ok(None),
            Err(FORBIDDEN) => return Err(StartError::Forbidden),
            Err(_) => {}
        }
        // Being started: `STARTING` is held until the runtime is in its place, or the start has
        // failed.
        drop(STARTING.lock());
        if let Some(runtime) = started() {
            return Ok(Some(runtime));
        }
    }
}

impl RuntimeBuilder {
    /// Starts the default runtime with these settings: [`Runtime::global`], which all functions use
    /// that name no runtime.
    ///
    /// To be called before the first use of the default runtime, as a rule at the beginning of
    /// `main`. The settings may be any: a name, limits, a panic handler,
    /// [`Alarm::Portable`](crate::Alarm::Portable), a [`ManualClock`](crate::ManualClock).
    ///
    /// # Errors
    /// [`StartError::AlreadyStarted`] if the default runtime has been started by this process (a
    /// forked child may start one of its own); also, for settings with another clock than the usual
    /// one, if a delay, interval or cancellation source was made on the default runtime before.
    /// Else as [`start`](Self::start).
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::{Runtime, error::StartError};
    ///
    /// let runtime = Runtime::builder().thread_name("my-timers").max_threads(64).start_global()?;
    /// assert!(std::ptr::eq(runtime, Runtime::global()));
    /// assert!(matches!(Runtime::builder().start_global(), Err(StartError::AlreadyStarted)));
    /// # Ok::<(), StartError>(())
    /// ```
    pub fn start_global(mut self) -> Result<&'static Runtime, StartError> {
        // Released before `self` is dropped, which is a parameter: destructors of the hooks may use
        // the default runtime.
        let _one_at_a_time = STARTING.lock();
        let inherited = started();
        if inherited.is_some_and(|runtime| !runtime.engine().is_inherited()) {
            return Err(StartError::AlreadyStarted);
        }
        if CLOCK.load(Ordering::Acquire) == FORBIDDEN {
            return Err(StartError::Forbidden);
        }
        let mut settles = false;
        if !self.has_usual_clock() {
            match CLOCK.compare_exchange(OPEN, OTHER, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => settles = true,
                Err(OTHER) if inherited.is_some() => {} // settled by the parent
                Err(_) => return Err(StartError::AlreadyStarted),
            }
        }
        self.launch().map(set).inspect_err(|_| {
            if settles {
                CLOCK.store(OPEN, Ordering::Release);
            }
        })
    }
}

impl Runtime {
    /// The process-wide default runtime. It starts on first use, with the default settings unless
    /// [`RuntimeBuilder::start_global`] has started it before, and never shuts itself down.
    ///
    /// If the default runtime was [shut down](Self::shutdown_global), it stays so: timers made on
    /// it never fire.
    ///
    /// # Panics
    /// When the runtime cannot be started, as `std::thread::spawn` does;
    /// [`try_global`](Self::try_global) returns the reason.
    ///
    /// # Examples
    ///
    /// ```
    /// let runtime = timerqueue::Runtime::global();
    /// println!("{} queues", runtime.queues());
    /// ```
    #[inline]
    #[track_caller]
    pub fn global() -> &'static Self {
        match started() {
            Some(runtime) => runtime,
            None => Self::started(),
        }
    }

    #[cold]
    #[track_caller]
    fn started() -> &'static Self {
        match Self::start_default() {
            Ok(runtime) => runtime,
            Err(error) => RuntimeError::NotStarted(error).not_started(), // names the caller
        }
    }

    /// As [`global`](Self::global), with an error instead of a panic.
    ///
    /// # Errors
    /// When the runtime cannot be started, was shut down, or belongs to the parent of this process
    /// ([`StartError::Forked`]). After a failed start a later call tries again.
    ///
    /// # Examples
    ///
    /// ```
    /// let runtime = timerqueue::Runtime::try_global()?;
    /// println!("{} queues", runtime.queues());
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn try_global() -> Result<&'static Self, StartError> {
        let runtime = Self::start_default()?;
        match usable(runtime.engine()) {
            Ok(()) => Ok(runtime),
            Err(RuntimeError::Forked) => Err(StartError::Forked),
            Err(_) => Err(StartError::ShutDown),
        }
    }

    /// The default runtime, which may have ended, or belong to the parent of this process.
    pub(super) fn start_default() -> Result<&'static Self, StartError> {
        if let Some(runtime) = started() {
            return Ok(runtime);
        }
        let _one_at_a_time = STARTING.lock();
        if let Some(runtime) = started() {
            return Ok(runtime);
        }
        // Only a builder, which holds `STARTING`, settles on another clock.
        if CLOCK.compare_exchange(OPEN, USUAL, Ordering::AcqRel, Ordering::Acquire) == Err(FORBIDDEN) {
            return Err(StartError::Forbidden);
        }
        let runtime = Self::builder().start()?;
        Ok(set(runtime))
    }

    /// Forbids the default runtime in this process, for good: for tests, of which each runs on
    /// virtual time. From then on a function that needs the default runtime panics and names the
    /// place that called it, and `try_` forms return [`StartError::Forbidden`]. So a task or thread
    /// of the code under test that has left the [scope](Self::scope) of the test fails, instead of
    /// waiting in real time.
    ///
    /// A second call does nothing. Tests that need the default runtime are in another process: in
    /// another file of `tests/`, or each in its own under cargo-nextest.
    ///
    /// # Errors
    /// [`StartError::AlreadyStarted`] if the default runtime has been started or used before.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, ManualClock, Runtime, Timer, error::RuntimeError};
    ///
    /// Runtime::forbid_global()?;
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// clock.block_on(runtime.scope(async { Delay::new(Duration::from_secs(3600)).await }));
    ///
    /// let left = std::thread::spawn(|| Delay::new(Duration::from_secs(3600)));
    /// assert!(left.join().is_err());
    /// let left = Timer::try_new(Duration::from_secs(3600), Duration::MAX, |_| {});
    /// assert!(matches!(left, Err(RuntimeError::NotStarted(_))));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn forbid_global() -> Result<(), StartError> {
        let _one_at_a_time = STARTING.lock();
        match CLOCK.compare_exchange(OPEN, FORBIDDEN, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(FORBIDDEN) => Ok(()),
            Err(_) => Err(StartError::AlreadyStarted),
        }
    }

    /// Whether this is the default runtime.
    pub fn is_global(&self) -> bool {
        started().is_some_and(|global| std::sync::Arc::ptr_eq(&global.owner, &self.owner))
    }

    /// Shuts the default runtime down, for the whole process and for good; see
    /// [`shutdown`](Self::shutdown), which refuses the default runtime. For the end of `main`. Does
    /// nothing if the default runtime has not been started.
    ///
    /// A library does not call this: timers, delays and timeouts of the whole process would stop.
    ///
    /// # Errors
    /// [`ShutdownError::TimedOut`] when callbacks still run after `limit`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Runtime, Timer};
    ///
    /// let timer = Timer::once(Duration::from_secs(3600), |_| unreachable!());
    /// Runtime::shutdown_global(Duration::from_secs(5))?;
    /// assert!(Runtime::global().is_shut_down());
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::ShutdownError>(())
    /// ```
    pub fn shutdown_global(limit: Duration) -> Result<(), ShutdownError> {
        started().map_or(Ok(()), |runtime| runtime.end(limit))
    }

    /// As [`shutdown_global`](Self::shutdown_global), and hands back the callbacks that never ran:
    /// see [`shutdown_now`](Self::shutdown_now).
    #[must_use = "dropping the jobs disposes their timers"]
    pub fn shutdown_global_now(limit: Duration) -> (Vec<CallbackJob>, Result<(), ShutdownError>) {
        started().map_or_else(|| (Vec::new(), Ok(())), |runtime| runtime.end_now(limit))
    }

    /// The current runtime of the calling thread: the runtime that functions use which name none.
    ///
    /// - In a callback of a timer: the runtime of the timer. (In all code on a thread of a
    ///   runtime's pool: this runtime.)
    /// - Else in [`enter`](Self::enter), or in a poll of [`scope`](Self::scope): the runtime named
    ///   there; of several, the innermost.
    /// - Else the [default runtime](Self::global).
    ///
    /// # Panics
    /// When the default runtime is the current runtime, and cannot be started.
    ///
    /// # Examples
    ///
    /// A callback that makes a further timer on its own runtime:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, OnceTimer, Runtime, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// OnceTimer::on(&runtime, Duration::from_secs(1), |_| {
    ///     Timer::once(Duration::from_secs(1), |_| println!("two seconds")).detach();
    /// }).detach();
    /// assert_eq!(clock.advance(Duration::from_secs(2)), 2);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[track_caller]
    pub fn current() -> Self {
        RuntimeHandle::current().runtime()
    }

    /// As [`current`](Self::current), with an error instead of a panic.
    ///
    /// # Errors
    /// When the current runtime has ended or belongs to the parent of this process
    /// ([`RuntimeError::Forked`]), or the default runtime is the current runtime and cannot be
    /// started.
    ///
    /// # Examples
    ///
    /// ```
    /// let runtime = timerqueue::Runtime::try_current()?;
    /// println!("{} queues", runtime.queues());
    /// # Ok::<(), timerqueue::error::RuntimeError>(())
    /// ```
    pub fn try_current() -> Result<Self, RuntimeError> {
        let current = RuntimeHandle::try_current()?;
        current.engine()?;
        Ok(current.runtime())
    }

    /// Runs `code` with this runtime as the [current](Self::current) runtime of the calling thread:
    /// functions that name no runtime, such as [`Timer::new`](crate::Timer::new),
    /// [`Delay::new`](crate::Delay::new) and [`timeout`](crate::timeout()), use this one. So code
    /// that never names a runtime can be tested on virtual time, in several tests at once.
    ///
    /// Holds for this thread and until `code` returns or panics. A delay, an interval or a source
    /// keeps the runtime that was current when it was made, also when it is polled elsewhere. At
    /// the end of a thread, in the destructors of its thread-local values, the call may have no
    /// effect: destructors should name their runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timer};
    ///
    /// fn code_under_test() -> Timer {
    ///     Timer::every(Duration::from_secs(60), |_| println!("a minute"))
    /// }
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timer = runtime.enter(code_under_test);
    /// assert_eq!(clock.advance(Duration::from_secs(3600)), 60);
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn enter<R>(&self, code: impl FnOnce() -> R) -> R {
        let _scope = Scope::enter(self.core());
        code()
    }

    /// Makes this runtime the [current](Self::current) runtime of the calling thread until the
    /// guard is dropped; see [`enter`](Self::enter). For tests that are functions, with or without
    /// a runtime of another crate.
    ///
    /// Guards and calls of `enter` may end in any order: what is left goes out of effect, and what
    /// was current before it is current again. A guard made within `enter` or within a poll of
    /// [`scope`](Self::scope) has no effect after that. A guard that is forgotten stays in effect
    /// for the life of its thread. An `async` function holds no guard across an `.await`: other
    /// tasks of the thread would run in it, and the future would not be `Send`; see
    /// [`scope`](Self::scope).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timer, Timestamp};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let guard = runtime.enter_guard();
    /// let timer = Timer::every(Duration::from_secs(60), |_| println!("a minute"));
    /// assert_eq!(clock.advance(Duration::from_secs(3600)), 60);
    /// assert_eq!(Timestamp::now(), clock.now());
    /// drop(guard);
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn enter_guard(&self) -> EnterGuard<'_> {
        EnterGuard { _guard: Scope::guard(self.engine()), runtime: self }
    }

    /// A future that polls `future` with this runtime as the [current](Self::current) runtime, and
    /// gives its output; see [`enter`](Self::enter). The future may move between threads. Tasks
    /// that it spawns are futures of their own: they leave the scope, unless they are spawned with
    /// [`in_current_runtime`](crate::TimerFutureExt::in_current_runtime).
    ///
    /// # Examples
    ///
    /// A day, in no time:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, ManualClock, Runtime, timeout};
    ///
    /// async fn code_under_test() -> bool {
    ///     Delay::new(Duration::from_secs(24 * 3600)).await;
    ///     timeout(Duration::from_secs(5), std::future::pending::<()>()).await.is_err()
    /// }
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// assert!(clock.block_on(runtime.scope(code_under_test())));
    /// assert_eq!(clock.now().as_duration(), Duration::from_secs(24 * 3600 + 5));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> Scoped<F> {
        Scoped { future, runtime: Some(self.clone()) }
    }
}

impl Timestamp {
    /// The present time on the clock of the [current runtime](Runtime::current): of a manual clock,
    /// where the code runs on one. Starts no runtime.
    ///
    /// # Panics
    /// When the default runtime is the current runtime, and is
    /// [forbidden](Runtime::forbid_global).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, Timestamp};
    ///
    /// let deadline = Timestamp::now() + Duration::from_secs(5);
    /// assert_eq!(Delay::until(deadline).deadline(), deadline);
    /// ```
    #[must_use]
    #[track_caller]
    pub fn now() -> Self {
        Self::from_ns(RuntimeHandle::current().now())
    }
}

/// Makes a runtime the current runtime of a thread, until it is dropped. Made by
/// [`Runtime::enter_guard`].
///
/// Stays on its thread: not `Send`.
#[must_use = "the runtime is current until the guard is dropped: keep it (`let _guard = ..`; `let _ = ..` drops it at once)"]
pub struct EnterGuard<'a> {
    _guard: Scope,
    runtime: &'a Runtime,
}

shown!([] EnterGuard [<'_>], |this| "runtime" => this.runtime);

impl<F> Scoped<F> {
    /// With the current runtime of this thread, unless that is the default runtime.
    pub(crate) fn in_current(future: F) -> Self {
        Self { future, runtime: current::get().map(|core| RuntimeHandle::Engine(core).runtime()) }
    }
}

pin_project! {
    /// A future whose polls have a runtime of their own as the current runtime. Made by
    /// [`Runtime::scope`] and [`TimerFutureExt::in_current_runtime`].
    ///
    /// [`TimerFutureExt::in_current_runtime`]: crate::TimerFutureExt::in_current_runtime
    ///
    /// Keeps the runtime: the runtime does not end before this future is dropped, unless it is shut
    /// down. The destructor of the inner future runs with the runtime that is current where this
    /// future is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timer, futures::Scoped};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scoped: Scoped<_> =
    ///     runtime.scope(async { Timer::once(Duration::from_secs(1), |_| {}) });
    /// let timer = clock.block_on(scoped);
    /// assert_eq!(clock.advance(Duration::from_secs(1)), 1);
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[derive(Debug)]
    #[must_use = "futures do nothing until they are awaited or polled"]
    pub struct Scoped<F> {
        #[pin]
        future: F,
        // `None`: what is current where the future is polled.
        runtime: Option<Runtime>,
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _scope = this.runtime.as_ref().map(|runtime| Scope::enter(runtime.core()));
        this.future.poll(context)
    }
}

fused!([F: futures_core::FusedFuture] FusedFuture for Scoped<F>, |this| this.future.is_terminated());

// No callback, waker or destructor of the user's runs while the state of a runtime is half changed.
unwind_safe!(Runtime, ManualClock);
