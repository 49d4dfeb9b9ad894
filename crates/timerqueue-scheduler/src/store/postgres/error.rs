//! Failures of a server, by kind.

use std::error::Error as _;
use std::io;

use tokio_postgres::error::SqlState;

use super::tls;
use crate::Error;
use crate::store::Fault;

/// A failure, with its text, and what may help.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) fault: Fault,
    pub(super) reason: String,
    pub(super) remedy: Remedy,
}

/// How often a transaction is run again because of others.
pub(super) const TRIES: u32 = 50;

/// What may help against a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// The same transaction again: another one was in its way.
    Again,
    /// The same transaction later: another one holds a lock, and may hold it for long.
    Later,
    /// Another connection.
    Reconnect,
    /// Whether it was done is not known, so it must not be done again.
    Unknown,
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

    /// Names the server.
    pub(super) fn at(mut self, place: &str) -> Self {
        self.reason = format!("{place}: {}", self.reason);
        self
    }

    /// This server has failed, and another one: the kind is the one that says more than that a
    /// server is away.
    pub(super) fn and(self, other: Self) -> Self {
        let reason = format!("{}; {}", self.reason, other.reason);
        let more = if other.fault == Fault::Io { self } else { other };
        Self { reason, ..more }
    }

    /// Of a store that was connected before: what an administrator has changed can be changed
    /// again, so no refusal is the last word.
    pub(super) fn while_open(mut self) -> Self {
        if self.fault == Fault::CannotOpen {
            (self.fault, self.remedy) = (Fault::Io, Remedy::Reconnect);
        }
        self
    }
}

/// A failure without a code of the server's: of the connection, or of making it.
fn unconnected(error: &tokio_postgres::Error) -> Fault {
    let Some(source) = error.source() else { return Fault::Io };
    let Some(source) = source.downcast_ref::<io::Error>() else {
        // tokio-postgres has no type for it.
        return if source.to_string() == "server does not support TLS" { Fault::NoTls } else { Fault::Io };
    };
    // An error of the system's has a number; this one is about a server that takes no writes.
    if source.kind() == io::ErrorKind::PermissionDenied && source.raw_os_error().is_none() {
        return Fault::ReadOnly;
    }
    let tls = source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    tls.and_then(tls::refusal).unwrap_or(Fault::Io)
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        let mut reason = error.to_string();
        if let Some(source) = error.source() {
            reason = format!("{reason}: {source}");
        }
        let Some(code) = error.code() else {
            let fault = unconnected(&error);
            if fault == Fault::NoTls {
                reason.push_str(" (`sslmode=disable` in the address, if the network is to be trusted)");
            }
            return Self { fault, reason, remedy: Remedy::Reconnect };
        };
        let (fault, remedy) = match *code {
            SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED | SqlState::UNIQUE_VIOLATION => {
                (Fault::Locked, Remedy::Again)
            }
            SqlState::LOCK_NOT_AVAILABLE => (Fault::Locked, Remedy::Later),
            SqlState::DISK_FULL => (Fault::Full, Remedy::None),
            // A primary that has become a standby: the next connection finds the new one, if the
            // address names both.
            SqlState::READ_ONLY_SQL_TRANSACTION => (Fault::ReadOnly, Remedy::Reconnect),
            SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => (Fault::Io, Remedy::Reconnect),
            SqlState::INVALID_PASSWORD
            | SqlState::INVALID_AUTHORIZATION_SPECIFICATION
            | SqlState::INVALID_CATALOG_NAME
            | SqlState::INSUFFICIENT_PRIVILEGE => (Fault::CannotOpen, Remedy::None),
            // Another node's, or of a former connection of the pooler's.
            SqlState::INVALID_SQL_STATEMENT_NAME | SqlState::DUPLICATE_PSTATEMENT => {
                reason.push_str(" (behind a pooler in transaction mode: `PostgresOptions::pooled`)");
                (Fault::Other, Remedy::Reconnect)
            }
            _ if ["08", "57", "53"].contains(&&code.code()[..2]) => (Fault::Io, Remedy::Reconnect),
            _ => (Fault::Other, Remedy::None),
        };
        Self { fault, reason, remedy }
    }
}
