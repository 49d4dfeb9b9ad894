//! Failures of SQLite, by kind.

use std::path::Path;

use rusqlite::{ErrorCode, ffi};

use crate::Error;
use crate::store::Fault;

/// A failure, with its text.
#[derive(Clone, Debug)]
pub(in crate::store) struct Failure {
    pub(super) fault: Fault,
    pub(super) reason: String,
}

impl Failure {
    pub(super) fn new(fault: Fault, reason: impl Into<String>) -> Self {
        Self { fault, reason: reason.into() }
    }

    /// The failure of a call of the system for this path.
    pub(super) fn at(path: &Path, error: std::io::Error) -> Self {
        let Self { fault, reason } = error.into();
        Self { fault, reason: format!("{}: {reason}", path.display()) }
    }

    pub(super) fn error(&self) -> Error {
        Error::Store { fault: self.fault, reason: self.reason.as_str().into() }
    }
}

fn extended(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        let fault = match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Fault::Full,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Fault::Locked,
            Some(ErrorCode::ReadOnly) => Fault::ReadOnly,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Fault::Damaged,
            Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => Fault::CannotOpen,
            // The disk has no room for the file `-shm`, which connections map.
            Some(ErrorCode::SystemIoFailure) if extended(&error) == Some(ffi::SQLITE_IOERR_SHMSIZE) => Fault::Full,
            Some(ErrorCode::SystemIoFailure) => Fault::Io,
            _ => Fault::Other,
        };
        // Otherwise the text would say that the disk has failed.
        let reason = match fault {
            Fault::Full if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure) => {
                format!("the disk has no room for the shared memory of the processes ({error})")
            }
            _ => error.to_string(),
        };
        Self { fault, reason }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let fault = match error.kind() {
            std::io::ErrorKind::StorageFull => Fault::Full,
            std::io::ErrorKind::ReadOnlyFilesystem => Fault::ReadOnly,
            std::io::ErrorKind::NotFound | std::io::ErrorKind::PermissionDenied => Fault::CannotOpen,
            _ => Fault::Io,
        };
        Self { fault, reason: error.to_string() }
    }
}
