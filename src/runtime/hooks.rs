//! What the hooks of a runtime are told: panics, and callbacks that take long.

use std::any::Any;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use crate::engine::{Label, Panicked, Slow};

/// A panic that the runtime has caught: see
/// [`RuntimeBuilder::on_panic`](crate::RuntimeBuilder::on_panic).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder()
///     .manual_clock(&clock)
///     .on_panic(|panic| {
///         assert_eq!((panic.timer_name(), panic.message()), (Some("nightly report"), Some("no paper")));
///         eprintln!("{panic}"); // "no paper", in the callback of the timer "nightly report" (src/main.rs:14:10)
///     })
///     .start()?;
/// let timer = runtime.timer_builder().name("nightly report").due(Duration::ZERO).start(|_| panic!("no paper"));
/// clock.advance(Duration::ZERO);
/// assert_eq!(runtime.panics(), 1);
/// # drop(timer);
/// # Ok::<(), timerqueue::StartError>(())
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
/// use timerqueue::{ManualClock, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder()
///     .manual_clock(&clock)
///     .on_slow_callback(Duration::from_millis(1), |slow| {
///         assert!(slow.took() > Duration::from_millis(1) && slow.timer_name() == Some("sweeper"));
///         eprintln!("{slow}"); // a callback of the timer "sweeper" (src/main.rs:12:42) took 5.1ms, and began 0ns late
///     })
///     .start()?;
/// let timer = runtime.timer_builder().name("sweeper").due(Duration::ZERO).start(|_| {
///     std::thread::sleep(Duration::from_millis(5));
/// });
/// clock.advance(Duration::ZERO);
/// # drop(timer);
/// # Ok::<(), timerqueue::StartError>(())
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
