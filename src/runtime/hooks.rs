//! The hooks and the observer of a runtime: what they are told.

use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{CallbackContext, Hooks, Label, Panicked, Slow, SlowHandler, ThreadsChanged};
use crate::unwind::{catch_all, discard};

/// A panic that the runtime has caught: see
/// [`RuntimeBuilder::on_panic`](crate::RuntimeBuilder::on_panic).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, TimerBuilder};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder()
///     .manual_clock(&clock)
///     .on_panic(|panic| {
///         assert_eq!(
///             (panic.timer_name(), panic.message()),
///             (Some("nightly report"), Some("no paper"))
///         );
///         // "no paper", in the callback of the timer "nightly report" (src/main.rs:14:10)
///         eprintln!("{panic}");
///     })
///     .start()?;
/// let timer = TimerBuilder::on(&runtime)
///     .name("nightly report")
///     .due(Duration::ZERO)
///     .start(|_| panic!("no paper"));
/// clock.advance(Duration::ZERO);
/// assert_eq!(runtime.metrics().panics, 1);
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
pub struct CallbackPanic(pub(super) Panicked);

impl CallbackPanic {
    /// The value that the panic carries.
    #[must_use]
    pub fn payload(&self) -> &(dyn Any + Send) {
        &*self.0.payload
    }

    /// As [`payload`](Self::payload), by value, as [`resume_unwind`](std::panic::resume_unwind)
    /// takes it.
    #[must_use]
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.0.payload
    }

    /// The message of the panic; `None` if the panic carries another value than a text.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        let payload = self.payload();
        payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str))
    }

    /// The [name](crate::TimerBuilder::name) of the timer whose callback panicked, or whose
    /// callback's destructor did.
    #[must_use]
    pub fn timer_name(&self) -> Option<&str> {
        self.0.label.as_ref().map(|label| &*label.name)
    }

    /// The place in the source at which the timer was named.
    #[must_use]
    pub fn timer_site(&self) -> Option<&'static Location<'static>> {
        self.0.label.as_ref().map(|label| label.site)
    }
}

/// ` of the timer "name" (site)`, or nothing.
fn write_label(f: &mut fmt::Formatter<'_>, label: Option<&Label>) -> fmt::Result {
    label.map_or(Ok(()), |Label { name, site }| write!(f, " of the timer {name:?} ({site})"))
}

/// Message, name and site, for logs.
impl fmt::Display for CallbackPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message() {
            Some(message) => write!(f, "{message:?}")?,
            None => f.write_str("a panic without a text")?,
        }
        if self.0.label.is_some() {
            f.write_str(", in the callback")?;
        }
        write_label(f, self.0.label.as_deref())
    }
}

impl fmt::Debug for CallbackPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallbackPanic")
            .field("message", &self.message())
            .field("timer_name", &self.timer_name())
            .field("timer_site", &self.timer_site().map(ToString::to_string))
            .finish()
    }
}

/// A callback that took long: see
/// [`RuntimeBuilder::on_slow_callback`](crate::RuntimeBuilder::on_slow_callback).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, TimerBuilder};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder()
///     .manual_clock(&clock)
///     .on_slow_callback(Duration::from_millis(1), |slow| {
///         assert!(slow.took() > Duration::from_millis(1) && slow.timer_name() == Some("sweeper"));
///         // a callback of the timer "sweeper" (src/main.rs:12:42) took 5.1ms, and began 0ns late
///         eprintln!("{slow}");
///     })
///     .start()?;
/// let timer = TimerBuilder::on(&runtime).name("sweeper").due(Duration::ZERO).start(|_| {
///     std::thread::sleep(Duration::from_millis(5));
/// });
/// clock.advance(Duration::ZERO);
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
pub struct SlowCallback(pub(super) Slow);

impl SlowCallback {
    /// How long the callback ran, in real time.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.0.took
    }

    /// How late the callback began, by the clock of the runtime.
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.0.late
    }

    /// The [name](crate::TimerBuilder::name) of the timer.
    #[must_use]
    pub fn timer_name(&self) -> Option<&str> {
        self.0.label.as_ref().map(|label| &*label.name)
    }

    /// The place in the source at which the timer was named.
    #[must_use]
    pub fn timer_site(&self) -> Option<&'static Location<'static>> {
        self.0.label.as_ref().map(|label| label.site)
    }
}

/// A line for logs.
impl fmt::Display for SlowCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a callback")?;
        write_label(f, self.0.label.as_deref())?;
        write!(f, " took {:.1?}, and began {:.1?} late", self.0.took, self.0.late)
    }
}

impl fmt::Debug for SlowCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlowCallback")
            .field("took", &self.took())
            .field("lateness", &self.lateness())
            .field("timer_name", &self.timer_name())
            .field("timer_site", &self.timer_site().map(ToString::to_string))
            .finish()
    }
}

/// Is told what a runtime does, and may give the callbacks of new timers a context: see
/// [`RuntimeBuilder::observer`](crate::RuntimeBuilder::observer).
///
/// The crate `timerqueue-adapters` has an observer for subscribers of the crate tracing. Every
/// method has a default that does nothing.
///
/// **Threads.** An observer runs with no lock held. It may block and make timers, as a callback
/// may. Panics of [`panicked`](Self::panicked) are ignored; those of the other methods are panics
/// of the code that calls: see each.
///
/// # Examples
///
/// The tenant that makes a timer is the tenant of its callbacks:
///
/// ```
/// use std::cell::Cell;
/// use std::time::Duration;
/// use timerqueue::{
///     ManualClock, OnceTimer, Runtime, observe::{CallbackContext, ObservedCallback, Observer},
/// };
///
/// thread_local! { static TENANT: Cell<u32> = const { Cell::new(0) } }
///
/// struct Tenants;
///
/// impl Observer for Tenants {
///     fn timer_created(&self) -> Option<CallbackContext> {
///         let tenant = TENANT.get();
///         (tenant != 0).then(|| -> CallbackContext {
///             Box::new(move |callback: ObservedCallback<'_>| {
///                 let outer = TENANT.replace(tenant);
///                 callback.run();
///                 TENANT.set(outer);
///             })
///         })
///     }
/// }
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).observer(Tenants).start()?;
/// TENANT.set(7);
/// let timer = OnceTimer::on(&runtime, Duration::from_secs(1), |_| assert_eq!(TENANT.get(), 7));
/// TENANT.set(0);
/// clock.advance(Duration::from_secs(1));
/// assert_eq!((runtime.metrics().fired(), runtime.metrics().panics, TENANT.get()), (1, 0, 0));
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
pub trait Observer: Send + Sync + 'static {
    /// The calling thread makes a timer, or calls [`Runtime::execute`](crate::Runtime::execute).
    /// `Some`: the context in which the callbacks run. Futures and tokens have no context, and the
    /// timers of this crate itself have none. A panic goes to the caller of the constructor.
    fn timer_created(&self) -> Option<CallbackContext> {
        None
    }

    /// The runtime has caught a panic: told when and where
    /// [`on_panic`](crate::RuntimeBuilder::on_panic) is, right before that.
    fn panicked(&self, panic: &CallbackPanic) {
        let _ = panic;
    }

    /// A callback ran for longer than the limit of
    /// [`on_slow_callback`](crate::RuntimeBuilder::on_slow_callback), or without that hook for
    /// longer than [`slow_limit`](Self::slow_limit). Called on the thread of the callback, right
    /// before that hook. A panic is told as one of that hook.
    fn slow_callback(&self, slow: &SlowCallback) {
        let _ = slow;
    }

    /// The limit for [`slow_callback`](Self::slow_callback) where the runtime has no hook of its
    /// own; asked once, at the start. `None`: nothing is measured. With a limit each callback costs
    /// three readings of a clock more.
    fn slow_limit(&self) -> Option<Duration> {
        None
    }

    /// The pool has grown since callbacks block, or the system has refused it a thread. Called by a
    /// timer of the runtime, a single one at a time, which is counted as a callback: so an observer
    /// that blocks takes one thread, and a panic is one of a callback.
    fn threads_changed(&self, change: &ThreadsChanged) {
        let _ = change;
    }
}

/// Tells the observer too.
pub(super) fn observe(hooks: &mut Hooks, observer: Arc<dyn Observer>) {
    let (told, handler) = (Arc::clone(&observer), hooks.panicked.take());
    hooks.panicked = Some(Box::new(move |panicked| {
        let panic = CallbackPanic(panicked);
        catch_all(|| told.panicked(&panic));
        match &handler {
            Some(handler) => handler(panic.0),
            None => discard(panic.0.payload),
        }
    }));
    let hook = hooks.slow.take();
    if let Some(limit) = hook.as_ref().map(|hook| hook.limit).or_else(|| observer.slow_limit()) {
        let told = Arc::clone(&observer);
        let handler = Box::new(move |slow| {
            let slow = SlowCallback(slow);
            told.slow_callback(&slow);
            if let Some(hook) = &hook {
                (hook.handler)(slow.0);
            }
        });
        hooks.slow = Some(SlowHandler { limit, handler });
    }
    let told = Arc::clone(&observer);
    hooks.context = Some(Box::new(move || told.timer_created()));
    hooks.threads = Some(Box::new(move |change| observer.threads_changed(&change)));
}
