//! Why an operation was not done.

use std::fmt;
use std::sync::Arc;

use super::{Fault, Invalid};

/// Why an operation of a [`Scheduler`](crate::Scheduler) was not done.
///
/// Expected answers are no errors: a key that is taken, or absent, is a value
/// ([`Placed`](crate::Placed), [`Cancel`](crate::Cancel), [`Change`](crate::Change)).
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::{Error, store::Invalid};
///
/// assert_eq!(Error::Invalid(Invalid::EmptyKey).to_string(), "the key is empty");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The scheduler is closed.
    Closed,
    /// The runtime of the scheduler has ended: no job would run.
    RuntimeEnded,
    /// A key, a name, a payload or an instant that no store accepts.
    Invalid(Invalid),
    /// The payload could not be written as JSON.
    NotSerializable {
        /// The reason, in English.
        reason: String,
    },
    /// No handler has this name, and no further scheduler uses the store.
    UnknownHandler {
        /// The name.
        name: String,
    },
    /// The schedule has no occurrence any more.
    NoOccurrence,
    /// The run is not the job's any more: another one has begun, or the job is gone.
    NotHeld,
    /// The store failed. Whether the operation was done stands at each [`Fault`].
    Store {
        /// The kind of the failure.
        fault: Fault,
        /// The reason, in English.
        reason: Arc<str>,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the scheduler is closed"),
            Self::RuntimeEnded => f.write_str("the runtime of the scheduler has ended"),
            Self::Invalid(invalid) => invalid.fmt(f),
            Self::NotSerializable { reason } => write!(f, "the payload cannot be written as JSON: {reason}"),
            Self::UnknownHandler { name } => write!(f, "no handler has the name {name:?}"),
            Self::NotHeld => f.write_str("the run is not the job's any more"),
            Self::NoOccurrence => f.write_str("the schedule has no occurrence any more"),
            Self::Store { reason, .. } => write!(f, "the store failed: {reason}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        match invalid {
            Invalid::NoOccurrence => Self::NoOccurrence,
            invalid => Self::Invalid(invalid),
        }
    }
}
