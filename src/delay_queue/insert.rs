//! Inserting: once, with a wait for room, and in numbers.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::shared::SharedQueue;
use super::state::New;
use super::types::{Axis, due_at, wall_instant};
use super::{Due, Refusal, Refused};
use crate::budget;
use crate::time::instant;

/// Entries linked in a lock section of `insert_many`.
const AT_ONCE: usize = 64;

/// The action on a key that the queue has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum IfOccupied {
    Refuse,
    Replace,
}

impl<K, V> New<K, V> {
    fn refused(self, reason: Refusal) -> Refused<K, V> {
        Refused { key: self.key, value: self.value, due: due_at(self.due), reason }
    }
}

impl<K, V> SharedQueue<K, V> {
    /// The axis and instant of a due time that counts from `now`.
    pub(super) fn instant_of(&self, due: Due, now: u64) -> (Axis, u64) {
        match due {
            Due::After(after) => (Axis::Running, instant(now, after).min(crate::time::END)),
            Due::At(at) => (Axis::Running, at.as_ns().min(crate::time::END)),
            Due::Wall(at) => (Axis::Wall, wall_instant(at)),
        }
    }

    /// Whether the entry is refused as overdue.
    fn is_refused(&self, (axis, due): (Axis, u64), now: u64) -> bool {
        self.refuses_overdue
            && match axis {
                Axis::Running => due < now,
                Axis::Wall => due < wall_instant(self.clock.wall()),
            }
    }
}

impl<K: Eq, V> SharedQueue<K, V> {
    /// Inserts or replaces. On success: the former value.
    pub(super) fn put(&self, new: New<K, V>, now: u64, occupied: IfOccupied) -> Result<Option<V>, Refused<K, V>> {
        if self.is_refused(new.due, now) {
            return Err(new.refused(Refusal::Overdue));
        }
        let mut new = Some(new);
        let put = self.put_any(&mut new, now, occupied);
        put.map_err(|reason| new.expect("given back").refused(reason))
    }

    /// As [`Self::put`], also of an overdue entry. Where it is not inserted, or `Eq` panics, it
    /// stays in `new`.
    fn put_any(&self, new: &mut Option<New<K, V>>, now: u64, occupied: IfOccupied) -> Result<Option<V>, Refusal> {
        let &New { hash, ref key, due, .. } = new.as_ref().expect("a new entry");
        let mut section = self.lock();
        let found = section.find(hash, key);
        if section.closed || self.has_ended() {
            return Err(Refusal::Closed);
        }
        let Some(found) = found else {
            if section.is_full() {
                return Err(Refusal::Full);
            }
            section.link(new.take().expect("seen above"), now);
            section.settle_for(due);
            return Ok(None);
        };
        if occupied == IfOccupied::Refuse {
            return Err(Refusal::Occupied);
        }
        let New { key, value, .. } = new.take().expect("seen above");
        let before = std::mem::replace(section.value_mut(&found), value);
        section.reschedule(&found, due, now);
        drop(found);
        section.settle_for(due);
        drop(key); // after the lock: the entry keeps its own
        Ok(Some(before))
    }

    /// Inserts entries with few lock sections. Returns those refused.
    pub(super) fn put_many(&self, entries: Vec<New<K, V>>, now: u64) -> Vec<Refused<K, V>> {
        let mut slow = Vec::new();
        let mut entries = entries.into_iter().peekable();
        while entries.peek().is_some() {
            let mut section = self.lock();
            for new in entries.by_ref().take(AT_ONCE) {
                let known = section.with_hash(new.hash).next().is_some();
                if known || section.closed || section.is_full() || self.refuses_overdue || self.has_ended() {
                    slow.push(new);
                } else {
                    section.link(new, now);
                }
            }
            section.settle();
        }
        slow.into_iter().filter_map(|new| self.put(new, now, IfOccupied::Refuse).err()).collect()
    }
}

/// Inserts an entry once the queue has room. Made by
/// [`DelayQueue::insert_wait`](crate::DelayQueue::insert_wait).
///
/// Works under any executor. **Dropping** the future before it is ready drops the key and the
/// value: nothing was inserted.
#[must_use = "futures do nothing unless polled"]
pub struct InsertWait<'a, K, V> {
    queue: &'a SharedQueue<K, V>,
    new: Option<New<K, V>>,
    ticket: Option<u64>,
    /// Overdue at the call. An entry that becomes overdue in the wait is inserted.
    overdue: bool,
}

impl<'a, K, V> InsertWait<'a, K, V> {
    pub(super) fn new(queue: &'a SharedQueue<K, V>, new: New<K, V>, now: u64) -> Self {
        let overdue = queue.is_refused(new.due, now);
        Self { queue, new: Some(new), ticket: None, overdue }
    }

    fn leave(&mut self) {
        if self.ticket.is_some() {
            let mut section = self.queue.lock();
            let waker = section.inserters.leave(&mut self.ticket);
            section.outbox.wakers.extend(waker);
            // A wake-up that was not used goes to the next.
            section.admit(0);
            section.settle();
        }
    }
}

impl<K: Eq, V> Future for InsertWait<'_, K, V> {
    type Output = Result<(), Refused<K, V>>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.ticket.is_none() {
            ready!(budget::spend(context));
        }
        assert!(this.new.is_some(), "polled after it was ready");
        loop {
            let put = if this.overdue {
                Err(Refusal::Overdue)
            } else {
                this.queue.put_any(&mut this.new, this.queue.clock.now(), IfOccupied::Refuse)
            };
            if !matches!(put, Err(Refusal::Full)) {
                this.leave();
                let refused = |reason| this.new.take().expect("not inserted").refused(reason);
                return Poll::Ready(put.map(drop).map_err(refused));
            }
            let waker = context.waker().clone();
            let mut section = this.queue.lock();
            if !section.is_full() || section.closed || this.queue.has_ended() {
                section.outbox.wakers.push(waker);
                drop(section);
                continue;
            }
            let before = section.inserters.sleep(&mut this.ticket, waker);
            section.outbox.wakers.extend(before);
            section.settle();
            return Poll::Pending;
        }
    }
}

fused!([K: Eq, V] FusedFuture for InsertWait<'_, K, V>, |this| this.new.is_none());

impl<K, V> Drop for InsertWait<'_, K, V> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<K, V> Unpin for InsertWait<'_, K, V> {}

shown!([K, V] InsertWait [<'_, K, V>], |this| "waits" => this.ticket.is_some());
