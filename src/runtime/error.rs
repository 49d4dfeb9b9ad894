//! The errors of a runtime: failed starts, use after the end, and shutdowns that time out.

use std::fmt;
use std::io;
use std::task::Poll;

/// Callbacks were still running at the end of the time limit of a shutdown.
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
    pub(super) threads: usize,
}

impl ShutdownTimedOut {
    /// The number of threads that had not ended, most likely because a callback does not return.
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
        /// The number asked for.
        asked: usize,
        /// The largest number possible.
        max: usize,
    },
    /// The number of workers or of threads asked for is too small or too large.
    #[non_exhaustive]
    Threads {
        /// The number asked for.
        asked: usize,
        /// The smallest number possible.
        min: usize,
        /// The largest number possible.
        max: usize,
    },
    /// The system refused a timer of the system, or a means to wait for timers. The error says why: out of descriptors (`EMFILE`,
    /// `ENFILE`), or not available in this sandbox or on this system (`EPERM`, `ENOSYS`). A runtime on
    /// [`Alarm::Portable`](crate::Alarm::Portable) needs no descriptors. On either, the system may refuse the memory for a
    /// handler of forks (`ENOMEM`).
    Alarm(io::Error),
    /// The system refused a thread, or the thread's name.
    Thread(io::Error),
    /// This system has no clock that goes on in suspend ([`RuntimeClock::Boot`](crate::RuntimeClock::Boot)).
    NoBootClock,
    /// The default runtime was shut down, or foreign code closed its descriptors; the runtime does not start again.
    ShutDown,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queues { asked, max } => write!(f, "a timer runtime has 1 to {max} queues, not {asked}"),
            Self::Threads { asked, min, max } => {
                write!(f, "a timer runtime with these settings has {min} to {max} threads, not {asked}")
            }
            Self::Alarm(_) => f.write_str(
                "the system refused one of its timers to the timer runtime (`RuntimeBuilder::alarm(Alarm::Portable)` needs none)",
            ),
            Self::Thread(_) => f.write_str("the system refused a thread for the timer runtime"),
            Self::NoBootClock => f.write_str("this system has no clock that goes on while it is suspended"),
            Self::ShutDown => f.write_str("the default timer runtime was shut down, or its descriptors were closed"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Alarm(error) | Self::Thread(error) => Some(error),
            Self::Queues { .. } | Self::Threads { .. } | Self::NoBootClock | Self::ShutDown => None,
        }
    }
}

/// A runtime cannot tell the time: the runtime has ended, or could not be started (S33, S34).
///
/// Converts into an [`io::Error`] of kind `Other`, never of kind `TimedOut`: no time has passed.
///
/// # Examples
///
/// A timed cancel on a runtime that has ended:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, RuntimeError};
///
/// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
/// let source = runtime.cancellation_source();
/// runtime.shutdown(Duration::ZERO).unwrap();
/// let refused = source.cancel_after(Duration::from_secs(1));
/// assert!(matches!(refused, Err(RuntimeError::Ended)));
/// # Ok::<(), RuntimeError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The runtime was shut down, and does not start again.
    Ended,
    /// The default runtime could not be started. A later try may work.
    NotStarted(StartError),
}

impl RuntimeError {
    /// The poll of a future without an error to return: after the end the clock stands still.
    ///
    /// # Panics
    /// When there is no runtime, and so no clock: as `std::thread::spawn` panics when there is no thread.
    pub(crate) fn stands_still<T>(self) -> Poll<T> {
        match self {
            Self::Ended => Poll::Pending,
            Self::NotStarted(error) => panic!("failed to start the default timer runtime: {error:?}"),
        }
    }
}

impl fmt::Display for RuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("the timer runtime was shut down"),
            Self::NotStarted(_) => f.write_str("the default timer runtime could not be started"),
        }
    }
}

impl std::error::Error for RuntimeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Ended => None,
            Self::NotStarted(error) => Some(error),
        }
    }
}

impl From<StartError> for RuntimeError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::ShutDown => Self::Ended,
            error => Self::NotStarted(error),
        }
    }
}

impl From<RuntimeError> for io::Error {
    fn from(error: RuntimeError) -> Self {
        Self::other(error)
    }
}
