//! Why a store failed.

use std::fmt;

/// Why a store could not do what it was asked for. What was accepted before is kept in each case.
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::{Error, store::Fault};
///
/// let error = Error::Store { fault: Fault::Full, reason: "database or disk is full".into() };
/// assert!(matches!(error, Error::Store { fault, .. } if fault.heals()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The disk is full, or the file has the greatest size that was allowed. Nothing was done.
    Full,
    /// Another program has locked the file, or another transaction the rows or the key, for longer
    /// than the time limit. Nothing was done.
    Locked,
    /// The file, its folder or the disk is read-only; or the server is, such as a standby. Nothing
    /// was done.
    ReadOnly,
    /// The file is damaged, or is no database. The store writes nothing any more.
    Damaged,
    /// The file is on a network file system, whose locks and flushes cannot be relied on.
    NetworkFileSystem,
    /// The tables were made by a newer version of this crate.
    TooNew {
        /// The version of the tables.
        found: u32,
        /// The newest version that this crate knows.
        known: u32,
    },
    /// The certificate of the server is for another name than that of the address. Nothing was
    /// sent.
    WrongName,
    /// The certificate of the server is of an authority that this node does not know. Nothing was
    /// sent.
    UnknownAuthority,
    /// The certificate of the server is refused: it has expired, or is not for a server, or was
    /// changed. Nothing was sent.
    BadCertificate,
    /// The server offers no TLS, which the address asks for, as does each address of another
    /// machine without an `sslmode`. Nothing was sent.
    NoTls,
    /// The file cannot be opened: it or its folder does not exist, or permission is missing, or the
    /// process has no descriptor left.
    CannotOpen,
    /// Reading, writing or flushing failed. Whether the operation was done is known only once the
    /// file works again.
    Io,
    /// Too many operations wait for the store's answers
    /// ([`Builder::backlog`](crate::Builder::backlog)), or too many lists and other looks; or the
    /// store is about to end and the look took too long. Nothing was done.
    Busy,
    /// This process is a fork of the one that opened the store, whose threads are that one's alone.
    /// Nothing was done. The fork opens a store of its own.
    Forked,
    /// Another failure.
    Other,
}

impl Fault {
    /// Whether an operation may succeed later without a new store. The scheduler goes on by itself
    /// when it does.
    #[must_use]
    pub fn heals(self) -> bool {
        !matches!(self, Self::Damaged | Self::NetworkFileSystem | Self::TooNew { .. } | Self::Forked)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the disk is full"),
            Self::Locked => f.write_str("another program has locked the file or the row"),
            Self::ReadOnly => f.write_str("the store is read-only"),
            Self::Damaged => f.write_str("the file is damaged"),
            Self::NetworkFileSystem => f.write_str("the file is on a network file system"),
            Self::TooNew { found, known } => {
                write!(f, "the tables have version {found}, and this version knows {known}")
            }
            Self::WrongName => f.write_str("the server's certificate is for another name"),
            Self::UnknownAuthority => f.write_str("the authority of the server's certificate is unknown"),
            Self::BadCertificate => f.write_str("the server's certificate is refused"),
            Self::NoTls => f.write_str("the server offers no TLS"),
            Self::CannotOpen => f.write_str("the file cannot be opened"),
            Self::Io => f.write_str("reading or writing failed"),
            Self::Busy => f.write_str("the store is busy"),
            Self::Forked => f.write_str("the store was opened by the process that this one was forked from"),
            Self::Other => f.write_str("the store failed"),
        }
    }
}
