//! Waiting for the end of a disposed timer.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::engine::{EntryRef, Waits, is_inside};
use crate::runtime::wait::park_on;

/// The outcome of waiting for the end of a disposed timer.
///
/// # Examples
///
/// A callback that waits for its own timer does not hang:
///
/// ```
/// use std::sync::{Arc, OnceLock};
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, Timer, Waited};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let own = Arc::new(OnceLock::<Timer>::new());
/// let timer = Timer::on(&runtime, Duration::from_secs(1), Duration::ZERO, {
///     let own = Arc::downgrade(&own);
///     move |_| {
///         let own = own.upgrade().unwrap();
///         assert_eq!(own.get().unwrap().dispose_and_wait(), Waited::InsideCallback);
///     }
/// });
/// own.set(timer).unwrap();
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(own.get().unwrap().dispose_and_wait(), Waited::Ended);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
#[non_exhaustive]
pub enum Waited {
    /// No callback runs, none will start, and everything the callback owned has been dropped.
    Ended,
    /// The caller is inside a callback of this timer, or inside a callback for whose end a callback
    /// of this timer waits, and did not wait. The timer is disposed.
    InsideCallback,
}

/// A future for any executor, ready when a disposed timer has ended. Made by
/// [`Timer::dispose_async`](crate::Timer::dispose_async).
///
/// Any number of tasks and threads may wait for the same timer. Polled inside a callback of the
/// timer, the future is ready at once with [`Waited::InsideCallback`]. **Dropping** the future ends
/// the waiting, and leaves the timer disposed.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{OnceTimer, Runtime, Waited};
///
/// # async fn example(runtime: &Runtime) {
/// let timer = OnceTimer::on(runtime, Duration::from_secs(1), |_| {});
/// let waiting = timer.dispose_async();
/// assert_eq!(waiting.await, Waited::Ended);
/// # }
/// ```
#[must_use = "the timer is disposed already; waiting for its end happens when this is awaited"]
pub struct Disposal {
    entry: EntryRef,
    /// This waiter's number among the waiters for ends of timers, from the first pending poll on.
    waiter: Option<u64>,
    /// A poll has been ready.
    has_returned: bool,
}

impl Disposal {
    /// Waits for the end of a disposed timer.
    pub(super) fn of(entry: &EntryRef) -> Self {
        Self { entry: EntryRef::clone(entry), waiter: None, has_returned: false }
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<Waited> {
        if self.entry.get().state.is_dropped() {
            return Poll::Ready(Waited::Ended);
        }
        if is_inside(self.entry.address()) {
            return Poll::Ready(Waited::InsideCallback);
        }
        let waker = context.waker().clone();
        if self.entry.shard().waiters.wait(&self.entry, &mut self.waiter, waker) {
            Poll::Pending
        } else {
            Poll::Ready(Waited::Ended)
        }
    }

    /// Blocks the calling thread until the timer has ended.
    pub(super) fn wait(self) -> Waited {
        if self.entry.get().state.is_dropped() {
            return Waited::Ended;
        }
        match Waits::begin(self.entry.address()) {
            Some(_waits) => park_on(self),
            None => Waited::InsideCallback,
        }
    }
}

impl Future for Disposal {
    type Output = Waited;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Waited> {
        let polled = self.poll_end(context);
        self.has_returned |= polled.is_ready();
        polled
    }
}

fused!([] FusedFuture for Disposal, |this| this.has_returned);

impl Drop for Disposal {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            self.entry.shard().waiters.leave(&self.entry, waiter);
        }
    }
}

shown!([] Disposal, |this| "ended" => this.entry.get().state.is_dropped());
