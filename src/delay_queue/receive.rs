//! Receiving: by `.await`, blocking, without waiting, and by a receiver that is also a stream.
//!
//! Ground rules. A receiver takes an entry in the poll that returns it, never before: a dropped
//! future loses nothing. A sleeping receiver has a ticket of the wait list; a dropped receiver
//! gives it back, and passes on a wake-up that it has not used.

use std::borrow::Borrow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::shared::{Section, SharedQueue};
use super::state::{SECTION, Taken, parts};
use super::types::due_at;
use super::{Expired, RecvTimeoutError, TryRecvError};
use crate::budget;
use crate::queue::Next;
use crate::runtime::wait::wait;
use crate::sync::Arc;
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
    /// Takes the entry that is due first. `None`: that is more work than for one section.
    fn take(&self, section: &mut Section<'_, K, V>, now: u64) -> Option<Result<Taken<K, V>, TryRecvError>> {
        if self.has_ended() {
            return Some(Err(TryRecvError::Closed));
        }
        match section.take(&self.clock, now) {
            Next::Due(taken) => Some(Ok(taken)),
            Next::Nothing if section.is_over() => Some(Err(TryRecvError::Closed)),
            Next::Nothing => Some(Err(TryRecvError::Empty)),
            Next::Exhausted => None,
        }
    }

    /// A poll of a receiver: takes the entry that is due first, or sleeps.
    fn poll_recv(&self, ticket: &mut Option<u64>, context: &mut Context<'_>) -> Poll<Option<Expired<K, V>>> {
        let mut waker = None;
        loop {
            let now = self.clock.now();
            let mut section = self.lock();
            let Some(taken) = self.take(&mut section, now) else { continue };
            if !matches!(taken, Err(TryRecvError::Empty)) {
                self.leave(section, ticket);
                contain_drop(&self.runtime, waker);
                return Poll::Ready(taken.ok().map(Taken::into_expired));
            }
            if section.receivers.sleeps_with(*ticket, context.waker()) {
                section.settle();
                return Poll::Pending;
            }
            // Cloning runs code of the executor: not under the lock.
            let Some(fresh) = waker.take() else {
                drop(section);
                waker = Some(context.waker().clone());
                continue;
            };
            let before = section.receivers.sleep(ticket, fresh);
            section.outbox.wakers.extend(before);
            section.settle();
            return Poll::Pending;
        }
    }

    /// The receiver waits no more. Its unused wake-up goes to the next.
    fn leave(&self, mut section: Section<'_, K, V>, ticket: &mut Option<u64>) {
        let waker = section.receivers.leave(ticket);
        section.outbox.wakers.extend(waker);
        section.settle();
    }

    pub(super) fn block<T>(&self, limit: Option<Duration>, future: impl Future<Output = T>) -> Option<T> {
        wait(&self.runtime, limit, future)
    }
}

/// A waiting receiver.
struct Receiver<Q: Borrow<SharedQueue<K, V>>, K, V> {
    queue: Q,
    ticket: Option<u64>,
    of: std::marker::PhantomData<fn() -> (K, V)>,
}

impl<Q: Borrow<SharedQueue<K, V>>, K, V> Receiver<Q, K, V> {
    fn new(queue: Q) -> Self {
        Self { queue, ticket: None, of: std::marker::PhantomData }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Expired<K, V>>> {
        if self.ticket.is_none() {
            ready!(budget::spend(context));
        }
        self.queue.borrow().poll_recv(&mut self.ticket, context)
    }
}

impl<Q: Borrow<SharedQueue<K, V>>, K, V> Drop for Receiver<Q, K, V> {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            let queue = self.queue.borrow();
            queue.leave(queue.lock(), &mut self.ticket);
        }
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

fused!([K, V] FusedFuture for Recv<'_, K, V>, |this| this.has_returned);

shown!([K, V] Recv [<'_, K, V>], |this| "waits" => this.receiver.ticket.is_some());

/// A receiver of a queue that does not keep the queue open. Made by
/// [`DelayQueue::receiver`](crate::DelayQueue::receiver).
///
/// It ends, with `None`, when the queue is closed and empty, or its runtime has ended. The last
/// handle that is dropped closes the queue: so a loop over a receiver ends when no entry is left
/// and no producer that could insert one. With the feature `stream` it is a `futures_core::Stream`
/// of the deliveries. Clones receive from the same queue; each entry goes to one of them.
/// **Dropping** a receiver loses no entry, while another receiver or a handle is left.
///
/// # Examples
///
/// A task that ends by itself:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{DelayQueue, ManualClock, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let queue = DelayQueue::on(&runtime);
/// let receiver = queue.receiver();
/// let producer = std::thread::spawn(move || {
///     for n in 0..3 {
///         queue.insert(n, (), Duration::from_secs(n)).unwrap();
///     }
/// }); // the only handle is dropped here
/// producer.join().unwrap();
/// let keys = clock.block_on(async {
///     let mut keys = Vec::new();
///     while let Some(expired) = receiver.recv().await {
///         keys.push(expired.key);
///     }
///     keys
/// });
/// assert_eq!(keys, [0, 1, 2]);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
pub struct DelayReceiver<K, V> {
    receiver: Receiver<Arc<SharedQueue<K, V>>, K, V>,
    /// The stream has ended. A closed queue takes no further entry.
    #[cfg(feature = "stream")]
    ended: bool,
}

impl<K, V> DelayReceiver<K, V> {
    pub(super) fn new(queue: Arc<SharedQueue<K, V>>) -> Self {
        Self {
            receiver: Receiver::new(queue),
            #[cfg(feature = "stream")]
            ended: false,
        }
    }

    pub(super) fn shared(&self) -> &Arc<SharedQueue<K, V>> {
        &self.receiver.queue
    }

    /// As [`DelayQueue::recv`](crate::DelayQueue::recv).
    pub fn recv(&self) -> Recv<'_, K, V> {
        Recv::new(self.shared())
    }

    /// As [`DelayQueue::recv_blocking`](crate::DelayQueue::recv_blocking).
    pub fn recv_blocking(&self) -> Option<Expired<K, V>> {
        self.shared().block(None, self.recv()).flatten()
    }

    /// As [`DelayQueue::recv_timeout`](crate::DelayQueue::recv_timeout).
    ///
    /// # Errors
    /// As for that method.
    pub fn recv_timeout(&self, limit: Duration) -> Result<Expired<K, V>, RecvTimeoutError> {
        let received = self.shared().block(Some(limit), self.recv());
        received.map_or(Err(RecvTimeoutError::Timeout), |expired| expired.ok_or(RecvTimeoutError::Closed))
    }

    /// As [`DelayQueue::try_recv`](crate::DelayQueue::try_recv).
    ///
    /// # Errors
    /// As for that method.
    pub fn try_recv(&self) -> Result<Expired<K, V>, TryRecvError> {
        let shared = self.shared();
        loop {
            let now = shared.clock.now();
            let mut section = shared.lock();
            let Some(taken) = shared.take(&mut section, now) else { continue };
            let taken = taken?;
            section.settle();
            return Ok(taken.into_expired());
        }
    }

    /// As [`DelayQueue::try_recv_all`](crate::DelayQueue::try_recv_all).
    pub fn try_recv_all(&self) -> Vec<Expired<K, V>> {
        let (shared, mut taken, mut is_over) = (self.shared(), Vec::new(), false);
        let now = shared.clock.now();
        let most = shared.lock().len(); // so insertions meanwhile do not prolong the call
        while !is_over && taken.len() < most && !shared.has_ended() {
            let mut section = shared.lock();
            for _ in 0..SECTION.min(most - taken.len()) {
                match section.take(&shared.clock, now) {
                    Next::Due(entry) => taken.push(entry),
                    Next::Exhausted => break,
                    Next::Nothing => {
                        is_over = true;
                        break;
                    }
                }
            }
            section.settle();
        }
        taken.into_iter().map(Taken::into_expired).collect()
    }
}

impl<K, V> Clone for DelayReceiver<K, V> {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(self.shared()))
    }
}

#[cfg(feature = "stream")]
impl<K, V> futures_core::Stream for DelayReceiver<K, V> {
    type Item = Expired<K, V>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.receiver.poll(context));
        self.ended = next.is_none();
        Poll::Ready(next)
    }
}

fused!([K, V] FusedStream for DelayReceiver<K, V>, |this| this.ended);

shown!([K, V] DelayReceiver [<K, V>], |this| "waits" => this.receiver.ticket.is_some());
