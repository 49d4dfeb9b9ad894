//! The answer of a store: a callback, called once.
//!
//! Ground rules. A store calls a reply with no lock held, on any thread, also inside of the call
//! with the reply (J11). A dropped reply answers [`Error::Closed`], so no caller waits for ever.

use std::fmt;

use crate::Error;

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
}

impl<T> Reply<T> {
    /// A reply that calls `callback`.
    pub fn new(callback: impl FnOnce(Result<T, Error>) + Send + 'static) -> Self {
        Self { callback: Some(Box::new(callback)) }
    }

    /// Gives the answer.
    pub fn send(mut self, answer: Result<T, Error>) {
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

impl<T> fmt::Debug for Reply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").finish_non_exhaustive()
    }
}
