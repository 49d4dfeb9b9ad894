//! Receiving: by `.await`, as a stream, blocking, and without waiting.
//!
//! Ground rules. A receiver takes an entry in the poll that returns it, never before: a dropped
//! future loses nothing. A sleeping receiver has a ticket of the wait list; a dropped receiver
//! gives it back, and passes on a wake-up that it has not used.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
#[cfg(feature = "stream")]
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::shared::{Section, SharedQueue};
use super::state::{Taken, parts};
use super::types::due_at;
use super::{Expired, TryRecvError};
use crate::budget;
use crate::queue::Next;
use crate::unwind::contain_drop;

impl<K, V> Taken<K, V> {
    /// Called without the lock.
    fn into_expired(self) -> Expired<K, V> {
        let Self { entry, due, lateness } = self;
        let (key, value) = parts(entry);
        Expired { key, value, due: due_at(due), lateness }
    }
}

impl<K, V> SharedQueue<K, V> {
    /// A poll of a receiver: takes the entry that is due first, or sleeps.
    fn poll_recv(&self, ticket: &mut Option<u64>, context: &mut Context<'_>) -> Poll<Option<Expired<K, V>>> {
        let mut waker = None;
        loop {
            let now = self.clock.now();
            let mut section = self.lock();
            let taken = if self.has_ended() { Next::Nothing } else { section.take(&self.clock, now) };
            match taken {
                Next::Exhausted => continue,
                Next::Due(taken) => {
                    self.leave(section, ticket);
                    contain_drop(&self.runtime, waker);
                    return Poll::Ready(Some(taken.into_expired()));
                }
                Next::Nothing if section.is_over() || self.has_ended() => {
                    self.leave(section, ticket);
                    contain_drop(&self.runtime, waker);
                    return Poll::Ready(None);
                }
                Next::Nothing if section.receivers.sleeps_with(*ticket, context.waker()) => {
                    section.settle();
                    return Poll::Pending;
                }
                Next::Nothing => {}
            }
            // Cloning runs code of the executor: not under the lock.
            let Some(fresh) = waker.take() else {
                drop(section);
                waker = Some(context.waker().clone());
                continue;
            };
            let (own, before) = section.receivers.sleep(*ticket, fresh);
            *ticket = Some(own);
            section.outbox.wakers.extend(before);
            section.settle();
            return Poll::Pending;
        }
    }

    /// The receiver waits no more. Its unused wake-up goes to the next.
    fn leave(&self, mut section: Section<'_, K, V>, ticket: &mut Option<u64>) {
        if let Some(ticket) = ticket.take() {
            let waker = section.receivers.leave(ticket);
            section.outbox.wakers.extend(waker);
        }
        section.settle();
    }

    /// Takes an entry without waiting.
    pub(super) fn try_recv(&self) -> Result<Expired<K, V>, TryRecvError> {
        loop {
            if self.has_ended() {
                return Err(TryRecvError::Closed);
            }
            let now = self.clock.now();
            let mut section = self.lock();
            match section.take(&self.clock, now) {
                Next::Exhausted => {}
                Next::Due(taken) => {
                    section.settle();
                    return Ok(taken.into_expired());
                }
                Next::Nothing if section.is_over() => return Err(TryRecvError::Closed),
                Next::Nothing => return Err(TryRecvError::Empty),
            }
        }
    }
}

/// A waiting receiver.
struct Receiver<Q, K, V>
where
    Q: AsRef<SharedQueue<K, V>>,
{
    queue: Q,
    ticket: Option<u64>,
    of: std::marker::PhantomData<fn() -> (K, V)>,
}

impl<Q: AsRef<SharedQueue<K, V>>, K, V> Receiver<Q, K, V> {
    fn new(queue: Q) -> Self {
        Self { queue, ticket: None, of: std::marker::PhantomData }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Expired<K, V>>> {
        if self.ticket.is_none() {
            ready!(budget::spend(context));
        }
        self.queue.as_ref().poll_recv(&mut self.ticket, context)
    }
}

impl<Q: AsRef<SharedQueue<K, V>>, K, V> Drop for Receiver<Q, K, V> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            let queue = self.queue.as_ref();
            queue.leave(queue.lock(), &mut self.ticket);
        }
    }
}

impl<K, V> AsRef<Self> for SharedQueue<K, V> {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// Waits for the next entry of a queue. Made by [`DelayQueue::recv`](crate::DelayQueue::recv).
///
/// Works under any executor, or polled by hand. Dropping the future loses no entry.
#[must_use = "futures do nothing unless polled"]
pub struct Recv<'a, K, V> {
    receiver: Receiver<&'a SharedQueue<K, V>, K, V>,
    /// A poll has been ready.
    has_returned: bool,
}

impl<'a, K, V> Recv<'a, K, V> {
    pub(super) fn new(queue: &'a SharedQueue<K, V>) -> Self {
        Self { receiver: Receiver::new(queue), has_returned: false }
    }
}

impl<K, V> Future for Recv<'_, K, V> {
    type Output = Option<Expired<K, V>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let next = ready!(self.receiver.poll(context));
        self.has_returned = true;
        Poll::Ready(next)
    }
}

/// Terminated when a poll has been ready.
#[cfg(feature = "stream")]
#[cfg_attr(docsrs, doc(cfg(feature = "stream")))]
impl<K, V> futures_core::FusedFuture for Recv<'_, K, V> {
    fn is_terminated(&self) -> bool {
        self.has_returned
    }
}

impl<K, V> fmt::Debug for Recv<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recv").field("waits", &self.receiver.ticket.is_some()).finish_non_exhaustive()
    }
}

/// The deliveries of a queue as a stream, with the feature `stream`. Made by
/// [`DelayQueue::stream`](crate::DelayQueue::stream).
///
/// The stream ends when the queue is closed and empty, or its runtime has ended. Dropping the
/// stream loses no entry.
#[cfg(feature = "stream")]
#[cfg_attr(docsrs, doc(cfg(feature = "stream")))]
#[must_use = "streams do nothing unless polled"]
pub struct Expirations<K, V> {
    receiver: Receiver<Arc<SharedQueue<K, V>>, K, V>,
    /// The stream has ended. A closed queue takes no further entry.
    ended: bool,
}

#[cfg(feature = "stream")]
impl<K, V> Expirations<K, V> {
    pub(super) fn new(queue: &Arc<SharedQueue<K, V>>) -> Self {
        Self { receiver: Receiver::new(Arc::clone(queue)), ended: false }
    }
}

#[cfg(feature = "stream")]
impl<K, V> futures_core::Stream for Expirations<K, V> {
    type Item = Expired<K, V>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.receiver.poll(context));
        self.ended = next.is_none();
        Poll::Ready(next)
    }
}

/// Terminated when the stream has ended.
#[cfg(feature = "stream")]
#[cfg_attr(docsrs, doc(cfg(feature = "stream")))]
impl<K, V> futures_core::FusedStream for Expirations<K, V> {
    fn is_terminated(&self) -> bool {
        self.ended
    }
}

#[cfg(feature = "stream")]
impl<K, V> fmt::Debug for Expirations<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expirations").field("waits", &self.receiver.ticket.is_some()).finish_non_exhaustive()
    }
}
