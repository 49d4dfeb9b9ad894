//! Why a store failed.

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The disk is full, or the file has the greatest size that was allowed. Nothing was done.
    #[error("the disk is full")]
    Full,
    /// Another program has locked the file, or another transaction the rows or the key, for longer
    /// than the time limit. Nothing was done.
    #[error("another program has locked the file or the row")]
    Locked,
    /// The file, its folder or the disk is read-only; or the server is, such as a standby. Nothing
    /// was done.
    #[error("the store is read-only")]
    ReadOnly,
    /// The file is damaged, or is no database. The store writes nothing any more.
    #[error("the file is damaged")]
    Damaged,
    /// The file is on a network file system, whose locks and flushes cannot be relied on.
    #[error("the file is on a network file system")]
    NetworkFileSystem,
    /// The tables were made by a newer version of this crate.
    #[error("the tables have version {found}, and this version knows {known}")]
    TooNew {
        /// The version of the tables.
        found: u32,
        /// The newest version that this crate knows.
        known: u32,
    },
    /// The certificate of the server is for another name than that of the address. Nothing was
    /// sent.
    #[error("the server's certificate is for another name")]
    WrongName,
    /// The certificate of the server is of an authority that this node does not know. Nothing was
    /// sent.
    #[error("the authority of the server's certificate is unknown")]
    UnknownAuthority,
    /// The certificate of the server is refused: it has expired, or is not for a server, or was
    /// changed. Nothing was sent.
    #[error("the server's certificate is refused")]
    BadCertificate,
    /// The server offers no TLS, which the address asks for, as does each address of another
    /// machine without an `sslmode`. Nothing was sent.
    #[error("the server offers no TLS")]
    NoTls,
    /// The file cannot be opened: it or its folder does not exist, or permission is missing, or the
    /// process has no descriptor left.
    #[error("the file cannot be opened")]
    CannotOpen,
    /// Reading, writing or flushing failed. Whether the operation was done is known only once the
    /// file works again.
    #[error("reading or writing failed")]
    Io,
    /// Too many operations wait for the store's answers
    /// ([`Builder::backlog`](crate::Builder::backlog)), or too many lists and other looks; or the
    /// store is about to end and the look took too long. Nothing was done.
    #[error("the store is busy")]
    Busy,
    /// This process is a fork of the one that opened the store, whose threads are that one's alone.
    /// Nothing was done. The fork opens a store of its own.
    #[error("the store was opened by the process that this one was forked from")]
    Forked,
    /// Another failure.
    #[error("the store failed")]
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
