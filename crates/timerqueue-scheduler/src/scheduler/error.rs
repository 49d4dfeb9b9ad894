//! Why a scheduler did not start.

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
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The default runtime could not be started.
    #[error("{0}")]
    Runtime(#[source] RuntimeError),
    /// The file could not be opened: [`Error::Store`](crate::Error::Store).
    #[error("{0}")]
    Store(#[source] Error),
    /// Two handlers have this name.
    #[error("two handlers have the name {name:?}")]
    DuplicateHandler {
        /// The name.
        name: String,
    },
    /// An async handler, and no [spawner](crate::Builder::spawner). With the feature `tokio`: nor
    /// is this thread in the context of a runtime of tokio.
    #[error("the handler {name:?} is async, and there is no spawner")]
    NoSpawner {
        /// The name of the handler.
        name: String,
    },
    /// The name of a handler is invalid.
    #[error("the name {name:?}: {reason}")]
    InvalidName {
        /// The name.
        name: String,
        /// Why.
        reason: Invalid,
    },
}
