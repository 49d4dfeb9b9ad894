//! The answer of a store: a callback, called once.
//!
//! Ground rules. A store calls a reply with no lock held, on any thread, also inside of the call
//! with the reply (J11). A dropped reply answers [`Error::Closed`], so no caller waits for ever.

use std::sync::Arc;

use super::times::Timing;
use crate::Error;
use crate::debug::debug_of;

type Callback<T> = Box<dyn FnOnce(Result<T, Error>) + Send>;

/// The way back for the answer of a [`Store`](super::Store): called once, or dropped, which answers
/// [`Error::Closed`].
///
/// # Examples
///
/// ```
/// use std::sync::mpsc;
/// use timerqueue_scheduler::store::Reply;
///
/// let (send, receive) = mpsc::channel();
/// let reply = Reply::new(move |answer| send.send(answer).unwrap());
/// reply.send(Ok(17));
/// assert!(matches!(receive.recv().unwrap(), Ok(17)));
/// ```
#[must_use = "a dropped reply answers that the store is closed"]
pub struct Reply<T> {
    callback: Option<Callback<T>>,
    /// Whether a caller waits for the answer. `None`: the engine does.
    awaited: Option<Awaited>,
    /// `None`: it is not timed.
    timing: Option<Timing>,
}

/// Whether a caller waits for an answer. Asked with locks of a store held.
pub(crate) type Awaited = Arc<dyn Fn() -> bool + Send + Sync>;

impl<T> Reply<T> {
    /// A reply that calls `callback`.
    pub fn new(callback: impl FnOnce(Result<T, Error>) + Send + 'static) -> Self {
        Self { callback: Some(Box::new(callback)), awaited: None, timing: None }
    }

    /// The caller may stop waiting for the answer; `is_awaited` says whether it still waits.
    pub(crate) fn awaited_while(mut self, is_awaited: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.awaited = Some(Arc::new(is_awaited));
        self
    }

    pub(crate) fn timed(mut self, timing: Timing) -> Self {
        self.timing = Some(timing);
        self
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn awaited(&self) -> Option<Awaited> {
        self.awaited.clone()
    }

    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited.as_ref().is_none_or(|is_awaited| is_awaited())
    }

    /// Whether the answer is for a caller, and not for the engine.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn is_callers(&self) -> bool {
        self.awaited.is_some()
    }

    /// Gives the answer.
    pub fn send(mut self, answer: Result<T, Error>) {
        self.timing.take().into_iter().for_each(Timing::end);
        if let Some(callback) = self.callback.take() {
            callback(answer);
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(callback) = self.callback.take() {
            callback(Err(Error::Closed));
        }
    }
}

debug_of!(Reply<T> of T);
