//! Failures of a server, by kind.

use tokio_postgres::error::SqlState;

use crate::Error;
use crate::store::Fault;

/// A failure, with its text, and what may help.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    pub(super) reason: String,
    pub(super) remedy: Remedy,
}

/// What may help against a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// The same transaction again: another one was in its way.
    Again,
    /// Another connection.
    Reconnect,
    None,
}

impl Failure {
    pub(super) fn new(fault: Fault, reason: impl Into<String>) -> Self {
        Self { fault, reason: reason.into(), remedy: Remedy::None }
    }

    pub(super) fn lost(reason: impl Into<String>) -> Self {
        Self { fault: Fault::Io, reason: reason.into(), remedy: Remedy::Reconnect }
    }

    pub(super) fn error(&self) -> Error {
        Error::Store { fault: self.fault, reason: self.reason.as_str().into() }
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        let mut reason = error.to_string();
        if let Some(source) = std::error::Error::source(&error) {
            reason = format!("{reason}: {source}");
        }
        let Some(code) = error.code() else { return Self::lost(reason) };
        let (fault, remedy) = match *code {
            SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED | SqlState::UNIQUE_VIOLATION => {
                (Fault::Locked, Remedy::Again)
            }
            SqlState::LOCK_NOT_AVAILABLE => (Fault::Locked, Remedy::None),
            SqlState::DISK_FULL => (Fault::Full, Remedy::None),
            // A primary that has become a standby: the next connection finds the new one, if the address names both.
            SqlState::READ_ONLY_SQL_TRANSACTION => (Fault::ReadOnly, Remedy::Reconnect),
            SqlState::INVALID_PASSWORD
            | SqlState::INVALID_AUTHORIZATION_SPECIFICATION
            | SqlState::INVALID_CATALOG_NAME
            | SqlState::INSUFFICIENT_PRIVILEGE => (Fault::CannotOpen, Remedy::None),
            _ if ["08", "57", "53"].contains(&&code.code()[..2]) => (Fault::Io, Remedy::Reconnect),
            _ => (Fault::Other, Remedy::None),
        };
        Self { fault, reason, remedy }
    }
}
