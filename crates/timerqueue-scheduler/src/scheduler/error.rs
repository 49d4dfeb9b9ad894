//! Why a scheduler did not start.

use std::fmt;

use timerqueue::error::RuntimeError;

use crate::store::{Error, Invalid};

/// Why a scheduler could not be started.
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::{Scheduler, StartError};
///
/// let twice = Scheduler::builder().handler("mail", |_: u32, _| {}).handler("mail", |_: u32, _| {});
/// assert!(matches!(twice.start(), Err(StartError::DuplicateHandler { .. })));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The default runtime could not be started.
    Runtime(RuntimeError),
    /// The file could not be opened: [`Error::Store`](crate::Error::Store).
    Store(Error),
    /// Two handlers have this name.
    DuplicateHandler {
        /// The name.
        name: String,
    },
    /// An async handler, and no [spawner](crate::Builder::spawner). With the feature `tokio`: nor
    /// is this thread in the context of a runtime of tokio.
    NoSpawner {
        /// The name of the handler.
        name: String,
    },
    /// The name of a handler is invalid.
    InvalidName {
        /// The name.
        name: String,
        /// Why.
        reason: Invalid,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runtime(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
            Self::DuplicateHandler { name } => write!(f, "two handlers have the name {name:?}"),
            Self::NoSpawner { name } => write!(f, "the handler {name:?} is async, and there is no spawner"),
            Self::InvalidName { name, reason } => write!(f, "the name {name:?}: {reason}"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Runtime(error) => Some(error),
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}
