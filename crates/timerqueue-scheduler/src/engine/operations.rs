//! Operations of the user's: each is one call of the store, whose answer is a [`Pending`].

use timerqueue::{Runtime, error::RuntimeError};

use super::core::Core;
use super::pending::Pending;
use crate::store::{Applied, Error, Fault, Op, Reply, Scan, Scanned};

/// Whether the runtime belongs to the parent of this process.
fn is_forked(runtime: &Runtime) -> bool {
    matches!(runtime.enter(Runtime::try_current), Err(RuntimeError::Forked))
}

impl Core {
    /// No run begins any more, and changes are refused.
    pub(crate) fn is_closing(&self) -> bool {
        self.state.lock().handshake.closing
    }

    /// Applies one operation.
    pub(crate) fn mutate<T: Send + 'static>(
        &self,
        op: Op,
        pick: impl FnOnce(Applied) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        self.mutate_all(vec![op], move |applied| match applied.into_iter().next() {
            Some(Applied::Invalid(invalid)) => Err(invalid.into()),
            Some(applied) => pick(applied).ok_or_else(wrong_answer),
            None => Err(wrong_answer()),
        })
    }

    /// Applies operations in one commit.
    pub(crate) fn mutate_all<T: Send + 'static>(
        &self,
        ops: Vec<Op>,
        pick: impl FnOnce(Vec<Applied>) -> Result<T, Error> + Send + 'static,
    ) -> Pending<T> {
        if self.is_closing() {
            return Pending::ready(Err(Error::Closed));
        }
        // The store of a forked child refuses by itself, and says why.
        if self.runtime.is_shut_down() && !is_forked(&self.runtime) {
            return Pending::ready(Err(Error::RuntimeEnded));
        }
        let (completer, pending) = Pending::new(&self.runtime);
        let answer = move |applied: Result<Vec<Applied>, Error>| completer.complete(applied.and_then(pick));
        self.store.apply(ops, Reply::new(answer));
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

pub(crate) fn wrong_answer() -> Error {
    Error::Store { fault: Fault::Other, reason: "an answer of another kind".into() }
}
