//! A cancellation whose callbacks run on the pool.
//!
//! Ground rules. The cancelling thread marks the sources, and gives the rest to the pool as a job:
//! to wake the tasks, and to call the callbacks. The job owns a [`Rest`], whose destructor does the
//! work: a runtime that ends drops its jobs, and no callback is lost. The end of the work is the
//! cancellation of a further source, whose token the returned future awaits.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::waiting::CancelledOwned;
use super::{CancelReason, CancellationTokenSource, Inner};
use crate::budget;
use crate::engine::{TimerArc, inside, is_inside};
use crate::runtime::execute;
use crate::unwind::Tell;

/// A future, ready when the callbacks of a cancellation have run. Made by
/// [`CancellationTokenSource::cancel_async`].
///
/// The output says whether that call has cancelled the source, rather than an earlier cancel or a
/// parent: if not, the future is ready at once, and does not wait for callbacks that run for the
/// earlier cancel. Polled inside one of the callbacks, the future is ready at once.
///
/// **Dropping** the future changes nothing: the callbacks run all the same.
///
/// # Examples
///
/// ```
/// use timerqueue::{CancellationTokenSource, futures::Cancellation};
///
/// # smol::block_on(async {
/// let source = CancellationTokenSource::new();
/// let cancellation: Cancellation = source.cancel_async();
/// assert!(cancellation.await);
/// assert!(!source.cancel_async().await, "cancelled before");
/// # });
/// ```
pub struct Cancellation {
    /// `None`: an earlier call has cancelled.
    ended: Option<CancelledOwned>,
    has_returned: bool,
}

impl Cancellation {
    /// Gives the rest of a cancellation to the pool. `marked`: what `mark_all` returned.
    pub(super) fn start(source: &TimerArc<Inner>, marked: Option<Vec<TimerArc<Inner>>>) -> Self {
        let Some(marked) = marked else { return Self { ended: None, has_returned: false } };
        let runtime = &source.source;
        let ended = CancellationTokenSource::of(runtime.clone());
        let waiting = ended.token().cancelled_owned();
        let rest = Rest { source: source.clone(), marked, ended };
        match runtime.engine() {
            Ok(engine) => execute(engine, move || drop(rest)),
            Err(_) => drop(rest),
        }
        Self { ended: Some(waiting), has_returned: false }
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let Some(ended) = &mut self.ended else {
            ready!(budget::spend(context));
            return Poll::Ready(false);
        };
        if !ended.is_inside() {
            ready!(Pin::new(ended).poll(context));
        }
        Poll::Ready(true)
    }
}

impl Future for Cancellation {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let polled = self.poll_end(context);
        self.has_returned |= polled.is_ready();
        polled
    }
}

fused!([] FusedFuture for Cancellation, |this| this.has_returned);

shown!([] Cancellation, |this| "ended" => this.ended);

impl CancelledOwned {
    /// Whether the thread is inside of a callback whose end this future awaits.
    fn is_inside(&self) -> bool {
        self.token().address().is_some_and(is_inside)
    }
}

/// The rest of a cancellation, done by the destructor: by the job, or in its place.
struct Rest {
    source: TimerArc<Inner>,
    marked: Vec<TimerArc<Inner>>,
    ended: CancellationTokenSource,
}

impl Drop for Rest {
    fn drop(&mut self) {
        let (runtime, ended) = (&self.source.source, &self.ended.handle);
        let marked = std::mem::take(&mut self.marked);
        // No call here unwinds: panics of callbacks and wakers are caught, and told to the panic
        // handler, whose panics are caught too.
        let panic = inside(ended.address(), || self.source.tell_all(marked));
        panic.into_iter().for_each(|payload| runtime.tell(payload));
        let (_, panic) = ended.cancel(CancelReason::Cancelled, None);
        panic.into_iter().for_each(|payload| runtime.tell(payload));
    }
}
