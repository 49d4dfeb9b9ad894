//! Names of timers, and the hooks that are told of them.
//!
//! Ground rules. A timer without a name pays nothing: only an entry with a name has a place for it
//! (`Annotations` in [`super::entry`]).

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use super::observe::{CallbackContext, ThreadsChanged};
use crate::queue::MissedTicks;
use crate::queue::tick_policy::TickPolicy;
use crate::sync::Arc;

/// The name of a timer, and the place in the source at which the timer was named.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    pub(crate) name: Cow<'static, str>,
    pub(crate) site: &'static Location<'static>,
}

/// The settings of a new entry.
pub(crate) struct Settings {
    pub(crate) tick_policy: TickPolicy,
    pub(crate) label: Option<Arc<Label>>,
}

impl From<TickPolicy> for Settings {
    #[inline]
    fn from(tick_policy: TickPolicy) -> Self {
        Self { tick_policy, label: None }
    }
}

impl From<MissedTicks> for Settings {
    #[inline]
    fn from(policy: MissedTicks) -> Self {
        TickPolicy::from(policy).into()
    }
}

/// Called with a panic of a callback, a destructor of user data or a waker.
pub(crate) type PanicHandler = dyn Fn(CallbackPanic) + Send + Sync;

/// Called with each callback that took longer than `limit`.
pub(crate) struct SlowHandler {
    pub(crate) limit: Duration,
    pub(crate) handler: Box<dyn Fn(&SlowCallback) + Send + Sync>,
}

/// Called by a thread that makes a timer: the context for the callbacks.
pub(crate) type ContextHook = dyn Fn() -> Option<CallbackContext> + Send + Sync;

/// Called by a timer on the pool.
pub(crate) type ThreadsHook = dyn Fn(ThreadsChanged) + Send + Sync;

/// Called on a thread of the pool, before its first job or after its last.
pub(crate) type ThreadHook = dyn Fn() + Send + Sync;

/// What the program wants to be told.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) panicked: Option<Box<PanicHandler>>,
    pub(crate) slow: Option<SlowHandler>,
    pub(crate) context: Option<Box<ContextHook>>,
    pub(crate) threads: Option<Box<ThreadsHook>>,
    pub(crate) thread_begins: Option<Box<ThreadHook>>,
    pub(crate) thread_ends: Option<Box<ThreadHook>>,
}

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
pub struct CallbackPanic {
    pub(super) payload: Box<dyn Any + Send>,
    /// Of the timer whose callback panicked, if it has a name.
    pub(super) label: Option<Arc<Label>>,
}

impl CallbackPanic {
    /// The value that the panic carries.
    #[must_use]
    pub fn payload(&self) -> &(dyn Any + Send) {
        &*self.payload
    }

    /// As [`payload`](Self::payload), by value, as [`resume_unwind`](std::panic::resume_unwind)
    /// takes it.
    #[must_use]
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.payload
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
        self.label.as_ref().map(|label| &*label.name)
    }

    /// The place in the source at which the timer was named.
    #[must_use]
    pub fn timer_site(&self) -> Option<&'static Location<'static>> {
        self.label.as_ref().map(|label| label.site)
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
        if self.label.is_some() {
            f.write_str(", in the callback")?;
        }
        write_label(f, self.label.as_deref())
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
pub struct SlowCallback {
    pub(super) took: Duration,
    /// By how much the callback began after its due point.
    pub(super) late: Duration,
    pub(super) label: Option<Arc<Label>>,
}

impl SlowCallback {
    /// How long the callback ran, in real time.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.took
    }

    /// How late the callback began, by the clock of the runtime.
    #[must_use]
    pub fn lateness(&self) -> Duration {
        self.late
    }

    /// The [name](crate::TimerBuilder::name) of the timer.
    #[must_use]
    pub fn timer_name(&self) -> Option<&str> {
        self.label.as_ref().map(|label| &*label.name)
    }

    /// The place in the source at which the timer was named.
    #[must_use]
    pub fn timer_site(&self) -> Option<&'static Location<'static>> {
        self.label.as_ref().map(|label| label.site)
    }
}

/// A line for logs.
impl fmt::Display for SlowCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a callback")?;
        write_label(f, self.label.as_deref())?;
        write!(f, " took {:.1?}, and began {:.1?} late", self.took, self.late)
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
