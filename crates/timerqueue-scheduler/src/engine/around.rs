//! Hooks around all runs.
//!
//! Ground rules. A hook is code of the user's, and a part of the run: it runs where the handler
//! runs, with no lock held (J11), and its panic is a failed attempt. What follows a failed attempt
//! is decided where the handler has ended, since the error may be of a type that cannot go to
//! another thread; the hook sees the decision, and may change it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::core::Core;
use super::job::{Answer, BoxFuture, IntoOutcome, Outcome, Run, dropped, polled};
use super::retry::HandlerError;
use crate::debug::debug_of;
use crate::unwind::quietly;

/// A hook of [`Builder::around`](crate::Builder::around).
pub(crate) type Around = Arc<dyn Fn(Run, Next) -> BoxFuture<Answer> + Send + Sync>;

/// How the code of a run has ended, as a hook of [`Builder::around`](crate::Builder::around) sees
/// it. The hook returns it, or another end.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// The handler has said this about its run.
    Outcome(Outcome),
    /// The attempt has failed.
    Failed {
        /// The text of the error, or of the panic.
        error: String,
        /// How long the job waits for the next attempt, by the handler's
        /// [`Retry`](crate::Retry). `None`: the job is dead.
        wait: Option<Duration>,
        /// Whether the handler panicked.
        is_panic: bool,
    },
}

impl Ended {
    /// Whether the job is done.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Outcome(Outcome::Done | Outcome::Returned(_)))
    }

    /// The text of the error of a failed attempt, or of [`Outcome::Dead`].
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Failed { error, .. } | Self::Outcome(Outcome::Dead(error)) => Some(error),
            Self::Outcome(_) => None,
        }
    }
}

impl IntoOutcome for Ended {
    fn into_outcome(self) -> Answer {
        match self {
            Self::Outcome(outcome) => Ok(outcome),
            Self::Failed { error, wait, is_panic } => Err(HandlerError::decided(error, wait, is_panic)),
        }
    }
}

/// The rest of a run, for a hook of [`Builder::around`](crate::Builder::around): the hooks that
/// were registered later, and the handler. A future that begins when it is polled first. A panic of
/// the rest is its end. Dropped before its first poll: the handler is not called.
#[must_use = "the handler runs when this is awaited"]
pub struct Next {
    run: Run,
    rest: Option<BoxFuture<Answer>>,
}

impl Future for Next {
    type Output = Ended;

    /// Ready once. Afterwards pending for good.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Ended> {
        let this = &mut *self;
        let Some(rest) = &mut this.rest else { return Poll::Pending };
        let Poll::Ready(answer) = polled(rest, context) else { return Poll::Pending };
        let dropped = dropped(this.rest.take());
        Poll::Ready(this.run.inner.core.ended(&this.run, answer.and_then(|outcome| dropped.map(|()| outcome))))
    }
}

debug_of!(Next, |next| run: next.run);

impl Core {
    /// The code of a run inside of all hooks, of which the first one is the outermost.
    pub(super) fn wrapped(&self, run: &Run, code: BoxFuture<Answer>) -> BoxFuture<Answer> {
        self.settings.around.iter().rev().fold(code, |rest, hook| {
            let (hook, run) = (Arc::clone(hook), run.clone());
            let next = Next { run: run.clone(), rest: Some(rest) };
            // The hook is called inside of the one before.
            Box::pin(async move { hook(run, next).await })
        })
    }

    fn ended(&self, run: &Run, answer: Answer) -> Ended {
        match answer {
            Ok(outcome) => Ended::Outcome(outcome),
            Err(mut error) => {
                let wait = self.wait_after(&run.inner, &error);
                let (text, is_panic) = (std::mem::take(&mut error.text), error.is_panic);
                quietly(|| drop(error));
                Ended::Failed { error: text, wait, is_panic }
            }
        }
    }
}
