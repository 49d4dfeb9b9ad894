//! Operations of the user's: each is one call of the store, whose answer is a [`Pending`].

use std::sync::Arc;

use timerqueue::{Runtime, error::RuntimeError};

use super::backlog;
use super::core::Core;
use super::pending::Pending;
use crate::store::reply::Awaited;
use crate::store::{Applied, Error, Fault, Held, Op, Reply, Scan, Scanned};

/// Picks what an answer has, if it is the one that was asked for.
macro_rules! only {
    ($answer:pat => $has:expr) => {
        move |answer| match answer {
            $answer => Some($has),
            _ => None,
        }
    };
}
pub(crate) use only;

/// Whether the runtime belongs to the parent of this process.
fn is_forked(runtime: &Runtime) -> bool {
    matches!(runtime.enter(Runtime::try_current), Err(RuntimeError::Forked))
}

impl Core {
    /// No run begins any more, and changes are refused.
    pub(crate) fn is_closing(&self) -> bool {
        self.state.lock().handshake.closing
    }

    /// Applies one operation. `waits`: for room among those that are not answered.
    pub(crate) fn mutate<T: Send + 'static>(
        self: &Arc<Self>,
        op: Op,
        waits: bool,
        pick: impl FnOnce(Applied) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        self.mutate_all(vec![op], waits, move |applied| picked(applied.into_iter().next(), pick))
    }

    /// Applies operations in one commit. `waits`: for room among those that are not answered.
    pub(crate) fn mutate_all<T: Send + 'static>(
        self: &Arc<Self>,
        ops: Vec<Op>,
        waits: bool,
        pick: impl FnOnce(Vec<Applied>) -> Result<T, Error> + Send + 'static,
    ) -> Pending<T> {
        if let Err(error) = self.check_open() {
            return Pending::ready(Err(error));
        }
        let (completer, pending) = Pending::new(&self.runtime);
        let is_awaited = waits.then(|| Arc::new(completer.watch()) as Awaited);
        let begun = self.with_room(backlog::size_of(&ops), is_awaited, move |core, room| {
            // Closed while it has waited, or its runtime has ended.
            if let Err(error) = core.check_open() {
                return completer.complete(Err(error));
            }
            let answer = move |applied: Result<Vec<Applied>, Error>| {
                drop(room);
                completer.complete(applied.and_then(pick));
            };
            core.store.apply(ops, Reply::new(answer));
        });
        let reason = "too many operations wait for the answers of the store";
        begun.map_or_else(
            || Pending::ready(Err(Error::Store { fault: Fault::Busy, reason: reason.into() })),
            |()| pending,
        )
    }

    /// Whether changes are accepted.
    fn check_open(&self) -> Result<(), Error> {
        if self.is_closing() {
            return Err(Error::Closed);
        }
        // The store of a forked child refuses by itself, and says why.
        if self.runtime.is_shut_down() && !is_forked(&self.runtime) { Err(Error::RuntimeEnded) } else { Ok(()) }
    }

    /// A run leaves something to the next attempt; also while the scheduler closes, as the end of
    /// the run does.
    pub(crate) fn save_progress(self: &Arc<Self>, held: Held, progress: Arc<str>) -> Pending<bool> {
        let (completer, pending) = Pending::new(&self.runtime);
        let reply = Reply::new(move |applied: Result<Vec<Applied>, Error>| {
            completer.complete(
                applied.and_then(|applied| picked(applied.into_iter().next(), only!(Applied::Held(held) => held))),
            );
        });
        self.store.apply(vec![Op::Progress { held, progress }], reply);
        pending
    }

    pub(crate) fn look_up<T: Send + 'static>(
        &self,
        scan: Scan,
        pick: impl FnOnce(Scanned) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        let (completer, pending) = Pending::new(&self.runtime);
        let is_awaited = completer.watch();
        let reply = Reply::new(move |scanned: Result<Scanned, Error>| {
            completer.complete(scanned.and_then(|scanned| pick(scanned).ok_or_else(wrong_answer)));
        });
        self.store.scan(scan, reply.awaited_while(is_awaited));
        pending
    }
}

/// What the answer to an operation says.
pub(crate) fn picked<T>(applied: Option<Applied>, pick: impl FnOnce(Applied) -> Option<T>) -> Result<T, Error> {
    match applied {
        Some(Applied::Invalid(invalid)) => Err(invalid.into()),
        applied => applied.and_then(pick).ok_or_else(wrong_answer),
    }
}

pub(super) fn wrong_answer() -> Error {
    Error::Store { fault: Fault::Other, reason: "an answer of another kind".into() }
}
