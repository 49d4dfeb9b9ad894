//! Why an operation was not done.

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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The scheduler is closed.
    #[error("the scheduler is closed")]
    Closed,
    /// The runtime of the scheduler has ended: no job would run.
    #[error("the runtime of the scheduler has ended")]
    RuntimeEnded,
    /// A key, a name, a payload or an instant that no store accepts.
    #[error("{0}")]
    Invalid(Invalid),
    /// The payload could not be written as JSON.
    #[error("the payload cannot be written as JSON: {reason}")]
    NotSerializable {
        /// The reason, in English.
        reason: String,
    },
    /// No handler has this name, and no further scheduler uses the store.
    #[error("no handler has the name {name:?}")]
    UnknownHandler {
        /// The name.
        name: String,
    },
    /// The schedule has no occurrence any more.
    #[error("the schedule has no occurrence any more")]
    NoOccurrence,
    /// The run is not the job's any more: another one has begun, or the job is gone.
    #[error("the run is not the job's any more")]
    NotHeld,
    /// The store failed. Whether the operation was done stands at each [`Fault`].
    #[error("the store failed: {reason}")]
    Store {
        /// The kind of the failure.
        fault: Fault,
        /// The reason, in English.
        reason: Arc<str>,
    },
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        match invalid {
            Invalid::NoOccurrence => Self::NoOccurrence,
            invalid => Self::Invalid(invalid),
        }
    }
}
