//! The process that opened a store: its forks have none of the threads of the store.
//!
//! Ground rules. A fork leaves what it has inherited alone. A descriptor is shared, so a write to
//! it may stop a thread of the first process. A thread that is not there cannot be waited for, and
//! may have held the lock of a channel at the fork.

use std::thread::{self, JoinHandle};

use super::{Fault, Reply};
use crate::Error;

/// The process that opened a store, by its number.
pub(super) struct Origin(u32);

impl Origin {
    pub(super) fn here() -> Self {
        Self(std::process::id())
    }

    /// Why this process may not use the store: it is a fork of the one that opened it.
    pub(super) fn refusal(&self) -> Option<Error> {
        self.reason().map(|reason| Error::Store { fault: Fault::Forked, reason: reason.into() })
    }

    /// The reply of an operation, unless this process may not use the store: then it is told so.
    pub(super) fn admits<T>(&self, reply: Reply<T>) -> Option<Reply<T>> {
        match self.refusal() {
            None => Some(reply),
            Some(refusal) => {
                reply.send(Err(refusal));
                None
            }
        }
    }

    /// The text of the refusal.
    pub(super) fn reason(&self) -> Option<String> {
        let here = std::process::id();
        (here != self.0).then(|| format!("process {} opened the store, and process {here} is a fork of it", self.0))
    }
}

/// Waits for the threads of a store. The last handle may be dropped by a reply, on one of them.
pub(super) fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    let others = threads.into_iter().filter(|thread| thread.thread().id() != thread::current().id());
    others.for_each(|thread| _ = thread.join());
}
