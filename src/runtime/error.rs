//! The errors of a runtime: failed starts, use after the end, and failed shutdowns.

use std::io;
use std::task::Poll;

/// A runtime was not shut down, or not within the time limit.
///
/// Converts into an [`io::Error`]: [`TimedOut`](Self::TimedOut) of kind `TimedOut`, a further
/// variant of kind `Other`.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{Runtime, error::ShutdownError};
///
/// let runtime = Runtime::builder().start()?;
/// if let Err(late) = runtime.shutdown(Duration::from_millis(100)) {
///     eprintln!("{late}");
/// }
///
/// // The default runtime is not shut down by accident.
/// assert_eq!(Runtime::global().shutdown(Duration::ZERO), Err(ShutdownError::DefaultRuntime));
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShutdownError {
    /// Callbacks were still running at the end of the time limit.
    #[non_exhaustive]
    TimedOut {
        /// The number of threads that had not ended, most likely because a callback does not
        /// return.
        threads: usize,
    },
    /// The runtime is the default runtime, which goes on: see
    /// [`Runtime::shutdown_global`](crate::Runtime::shutdown_global).
    DefaultRuntime,
}

impl ShutdownError {
    /// The number of threads that had not ended, most likely because a callback does not return;
    /// zero if none was to end.
    pub fn threads(&self) -> usize {
        match self {
            Self::TimedOut { threads } => *threads,
            Self::DefaultRuntime => 0,
        }
    }
}

error!(
    [] ShutdownError, |this, f| match this {
        Self::TimedOut { threads } =>
            write!(f, "{threads} timer threads were still running callbacks when the time for the shutdown was over"),
        Self::DefaultRuntime =>
            f.write_str("the default timer runtime is shut down by `Runtime::shutdown_global` only, not by a handle"),
    },
    io if this == ShutdownError::DefaultRuntime { io::ErrorKind::Other } else { io::ErrorKind::TimedOut }
);

/// Why a runtime could not be started. Nothing is left behind; a later try may work.
///
/// # Examples
///
/// ```
/// use timerqueue::{Runtime, error::StartError};
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
    /// The system refused a timer of the system, or a means to wait for timers. The error says why:
    /// out of descriptors (`EMFILE`, `ENFILE`), or not available in this sandbox or on this system
    /// (`EPERM`, `ENOSYS`). A runtime on [`Alarm::Portable`](crate::Alarm::Portable) needs no
    /// descriptors. On either, the system may refuse the memory for a handler of forks (`ENOMEM`).
    Alarm(io::Error),
    /// The system refused a thread, or the thread's name.
    Thread(io::Error),
    /// This system has no clock that goes on in suspend
    /// ([`RuntimeClock::Boot`](crate::RuntimeClock::Boot)).
    NoBootClock,
    /// The default runtime was shut down, or has lost its alarms (see
    /// [`RuntimeBuilder::on_panic`](crate::RuntimeBuilder::on_panic)); the runtime does not start
    /// again.
    ShutDown,
    /// The default runtime has been started before, or has been used in a way that has settled its
    /// clock; see [`RuntimeBuilder::start_global`](crate::RuntimeBuilder::start_global).
    AlreadyStarted,
    /// The default runtime belongs to the parent of this process, which was forked: its threads did
    /// not come along, and no timer on it fires here.
    /// [`RuntimeBuilder::start_global`](crate::RuntimeBuilder::start_global) starts one for this
    /// process.
    Forked,
    /// The program forbids the default runtime; see
    /// [`Runtime::forbid_global`](crate::Runtime::forbid_global).
    Forbidden,
}

error!(
    [] StartError, |this, f| match this {
        Self::Queues { asked, max } => write!(f, "a timer runtime has 1 to {max} queues, not {asked}"),
        Self::Threads { asked, min, max } => {
            write!(f, "a timer runtime with these settings has {min} to {max} threads, not {asked}")
        }
        Self::Alarm(_) => f.write_str(
            "the system refused one of its timers to the timer runtime (`RuntimeBuilder::alarm(Alarm::Portable)` needs none)",
        ),
        Self::Thread(_) => f.write_str("the system refused a thread for the timer runtime"),
        Self::NoBootClock => f.write_str("this system has no clock that goes on while it is suspended"),
        Self::ShutDown => f.write_str("the default timer runtime was shut down, or has lost its alarms"),
        Self::AlreadyStarted => f.write_str("the default timer runtime has been started or used before"),
        Self::Forked => f.write_str("the default timer runtime belongs to the parent of this process, which was forked"),
        Self::Forbidden => f.write_str(
            "`Runtime::forbid_global` forbids it; call this within `Runtime::enter` or `scope`, and spawn tasks with `in_current_runtime`",
        ),
    },
    source match this {
        Self::Alarm(error) | Self::Thread(error) => Some(error),
        _ => None,
    },
    /// Keeps the kind of the system's error, as far as there is one; else `Other`, never
    /// `TimedOut`. (Numbers out of range: `InvalidInput`.)
    io match &this {
        // No time has passed.
        StartError::Alarm(refused) | StartError::Thread(refused) if refused.kind() != io::ErrorKind::TimedOut => {
            refused.kind()
        }
        StartError::Queues { .. } | StartError::Threads { .. } => io::ErrorKind::InvalidInput,
        StartError::NoBootClock => io::ErrorKind::Unsupported,
        _ => io::ErrorKind::Other,
    }
);

/// A runtime cannot tell the time: the runtime has ended, could not be started, or is that of a
/// parent process.
///
/// Converts into an [`io::Error`] of kind `Other`, never of kind `TimedOut`: no time has passed.
///
/// # Examples
///
/// A timed cancel on a runtime that has ended:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{CancellationTokenSource, ManualClock, Runtime, error::RuntimeError};
///
/// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
/// let source = CancellationTokenSource::on(&runtime);
/// runtime.shutdown(Duration::ZERO).unwrap();
/// let refused = source.try_cancel_after(Duration::from_secs(1));
/// assert!(matches!(refused, Err(RuntimeError::Ended)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The runtime was shut down, and does not start again.
    Ended,
    /// The default runtime could not be started. A later try may work.
    NotStarted(StartError),
    /// The runtime belongs to the parent of this process, which was forked: its threads did not
    /// come along, and no timer on it fires here. This process may start a runtime of its own, also
    /// as its default runtime
    /// ([`RuntimeBuilder::start_global`](crate::RuntimeBuilder::start_global)).
    Forked,
}

impl RuntimeError {
    /// The poll of a future without an error to return: after the end the clock stands still.
    ///
    /// # Panics
    /// When there is no runtime, and so no clock: as `std::thread::spawn` panics when there is no
    /// thread.
    pub(crate) fn stands_still<T>(self) -> Poll<T> {
        match self {
            Self::Ended | Self::Forked => Poll::Pending,
            error @ Self::NotStarted(_) => error.not_started(),
        }
    }

    /// For a call without an error to return: after the end it does nothing.
    ///
    /// # Panics
    /// As [`Self::stands_still`].
    pub(crate) fn or_none(result: Result<(), Self>) {
        if let Err(error @ Self::NotStarted(_)) = result {
            error.not_started();
        }
    }

    /// # Panics
    /// Always: the default runtime cannot be started.
    #[track_caller]
    pub(crate) fn not_started(self) -> ! {
        match &self {
            // No use of `source`, whose table has the text for `Debug` as well.
            Self::NotStarted(error @ (StartError::Alarm(source) | StartError::Thread(source))) => {
                panic!("failed to start the default timer runtime: {error}: {source}")
            }
            Self::NotStarted(error) => panic!("failed to start the default timer runtime: {error}"),
            Self::Ended | Self::Forked => panic!("{self}"),
        }
    }
}

error!(
    [] RuntimeError, |this, f| f.write_str(match this {
        Self::Ended => "the timer runtime was shut down",
        Self::NotStarted(_) => "the default timer runtime could not be started",
        Self::Forked => "the timer runtime belongs to the parent of this process, which was forked",
    }),
    source match this {
        Self::NotStarted(error) => Some(error),
        _ => None,
    },
    io io::ErrorKind::Other
);

impl From<StartError> for RuntimeError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::ShutDown => Self::Ended,
            StartError::Forked => Self::Forked,
            error => Self::NotStarted(error),
        }
    }
}
