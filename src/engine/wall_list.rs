//! The list of the waiting wall timers of a queue: doubly linked, intrusive, in the order of
//! aiming.
//!
//! Ground rules. The lock of the queue guards the list and the links of the queue's timers. A link
//! lies in the allocation of its timer. While linked, it holds a counted reference to the timer, so
//! the timer outlives its place in the list.
//!
//! Each link carries the number of the step of the wall clock by which the timer was aimed. An
//! aimed timer goes to the end of the list, and numbers of steps only grow. So the links that a
//! step has yet to reach are at the front, and the list needs no cursor: links may come and go
//! between the lock sections of a step.

#![allow(unsafe_code)] // links under the lock of their queue

use std::ptr::NonNull;
use std::time::{Duration, SystemTime};

use super::EntryRef;
use crate::alarm::Clock;
use crate::time::instant;

/// The clock of a runtime and the wall clock, read one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) now: u64,
    pub(crate) wall: SystemTime,
}

impl Reading {
    /// In this order: if the thread is preempted in between, timers are aimed too early, and aimed
    /// again when they fire.
    pub(crate) fn of(clock: &Clock) -> Self {
        let now = clock.now();
        Self { now, wall: clock.wall() }
    }

    /// The instant at which the wall clock will show `at`, unless the clock is set.
    pub(crate) fn due(&self, at: SystemTime) -> u64 {
        instant(self.now, at.duration_since(self.wall).unwrap_or(Duration::ZERO))
    }

    /// By how many nanoseconds the wall clock is ahead. A preempted reading is too high, and never
    /// too low.
    pub(crate) fn offset(&self) -> i128 {
        let since_epoch = match self.wall.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(after) => after.as_nanos() as i128,
            Err(before) => -(before.duration().as_nanos() as i128),
        };
        since_epoch - i128::from(self.now)
    }
}

/// The link of a wall timer, within the timer's own allocation.
pub(crate) struct WallLink {
    /// The time that the timer waits for, or waited for last.
    at: SystemTime,
    /// The step of the wall clock by which the timer was aimed.
    step: u64,
    /// The list's reference to the timer, while linked.
    node: Option<EntryRef>,
    prev: Link,
    next: Link,
}

type Link = Option<NonNull<WallLink>>;

impl WallLink {
    pub(crate) fn new(at: SystemTime) -> Self {
        Self { at, step: 0, node: None, prev: None, next: None }
    }
}

/// A pointer to the link of a wall timer. The code that has a `LinkRef` keeps the timer alive: by a
/// counted reference, or by the lock while linked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkRef(NonNull<WallLink>);

// SAFETY: a link is reached with the lock of its queue held, and `SystemTime`, numbers, pointers
// and counted references may be used on any thread.
unsafe impl Send for LinkRef {}
// SAFETY: a link is reached with the lock of its queue held.
unsafe impl Sync for LinkRef {}

impl LinkRef {
    pub(crate) fn new(entry: NonNull<WallLink>) -> Self {
        Self(entry)
    }
}

/// See the module's ground rules.
#[derive(Default)]
pub(crate) struct WallList {
    first: Link,
    last: Link,
    /// The latest step by which a timer was aimed here, and the lowest offset of the wall clock
    /// among the readings by which timers were aimed since. Not updated when a link leaves, so the
    /// offset may be lower than of any link.
    step: u64,
    lowest: i128,
}

/// The contract of the unsafe functions: the link belongs to a live timer, and the timer belongs to
/// the queue whose lock guards this list. `&mut self` is the proof that the lock is held.
impl WallList {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Whether some timer may have been aimed when the wall clock was less far ahead than `offset`
    /// by more than `drift`.
    pub(crate) fn is_behind(&self, offset: i128, drift: Duration) -> bool {
        !self.is_empty() && offset - self.lowest > drift.as_nanos() as i128
    }

    /// # Safety
    /// See the contract of the list.
    pub(crate) unsafe fn waits(&self, entry: LinkRef) -> bool {
        // SAFETY: the timer is alive (contract of the list), and `&self` lies under the lock.
        unsafe { entry.0.as_ref() }.node.is_some()
    }

    /// The time for which a timer waits; `None`: the timer does not wait.
    ///
    /// # Safety
    /// See the contract of the list.
    pub(crate) unsafe fn time(&self, entry: LinkRef) -> Option<SystemTime> {
        // SAFETY: the timer is alive (contract of the list), and `&self` lies under the lock.
        let entry = unsafe { entry.0.as_ref() };
        entry.node.is_some().then_some(entry.at)
    }

    /// The first timer that was aimed before `step`.
    pub(crate) fn before(&self, step: u64) -> Option<(LinkRef, &EntryRef, SystemTime)> {
        let first = self.first?;
        // SAFETY: linked, so alive by the list's reference; `&self` lies under the lock.
        let entry = unsafe { first.as_ref() };
        let node = entry.node.as_ref().filter(|_| entry.step < step)?;
        Some((LinkRef(first), node, entry.at))
    }

    /// The timer has been aimed at `at`, at this step and by this reading of the clocks: moves its
    /// link to the end of the list. Returns whether the timer waited before.
    ///
    /// # Safety
    /// See the contract of the list; `node` is the timer of the link. The step is read with the
    /// lock held.
    pub(crate) unsafe fn aimed(
        &mut self,
        entry: LinkRef,
        node: &EntryRef,
        at: SystemTime,
        step: u64,
        reading: Reading,
    ) -> bool {
        // SAFETY: the contract of the list, and the link has been taken out when `link` is called.
        unsafe {
            let held = self.unlink(entry);
            let waited = held.is_some();
            self.link(entry, held.unwrap_or_else(|| node.clone()), at, step, reading);
            waited
        }
    }

    /// Puts an unlinked timer at the end.
    ///
    /// # Safety
    /// As [`aimed`](Self::aimed).
    unsafe fn link(&mut self, entry: LinkRef, node: EntryRef, at: SystemTime, step: u64, reading: Reading) {
        debug_assert!(step >= self.step, "steps are counted up");
        let offset = reading.offset();
        let others = !self.is_empty() && step == self.step;
        (self.step, self.lowest) = (step, if others { self.lowest.min(offset) } else { offset });
        let prev = self.last.replace(entry.0);
        // SAFETY: the timer is alive (contract of the list), and `&mut self` lies under the lock.
        // The neighbour is linked, so alive by the list's reference. The overwritten link is not in
        // the list, and owns nothing.
        unsafe {
            entry.0.write(WallLink { at, step, node: Some(node), prev, next: None });
            match prev {
                Some(prev) => (*prev.as_ptr()).next = Some(entry.0),
                None => self.first = Some(entry.0),
            }
        }
    }

    /// As [`aimed`](Self::aimed), for a waiting timer, at the same time as before.
    ///
    /// # Safety
    /// As [`aimed`](Self::aimed); the timer is linked.
    pub(crate) unsafe fn aimed_again(&mut self, entry: LinkRef, step: u64, reading: Reading) {
        // SAFETY: the contract of the list, and the link has been taken out when `link` is called.
        unsafe {
            if let (Some(at), Some(node)) = (self.time(entry), self.unlink(entry)) {
                self.link(entry, node, at, step, reading);
            }
        }
    }

    /// Takes a link out, and returns the list's reference, to be dropped after the lock has been
    /// released.
    ///
    /// # Safety
    /// See the contract of the list.
    #[must_use]
    pub(crate) unsafe fn unlink(&mut self, entry: LinkRef) -> Option<EntryRef> {
        // SAFETY: the timer is alive (contract of the list), and `&mut self` lies under the lock;
        // the neighbours are linked, so alive by the list's references.
        unsafe {
            let this = entry.0.as_ptr();
            let node = (*this).node.take()?;
            let (prev, next) = ((*this).prev.take(), (*this).next.take());
            match prev {
                Some(prev) => (*prev.as_ptr()).next = next,
                None => self.first = next,
            }
            match next {
                Some(next) => (*next.as_ptr()).prev = prev,
                None => self.last = prev,
            }
            Some(node)
        }
    }

    /// Takes the first link out, as [`unlink`](Self::unlink).
    #[must_use]
    pub(crate) fn pop(&mut self) -> Option<EntryRef> {
        let first = self.first?;
        // SAFETY: linked here, so alive by the list's reference, and `&mut self` lies under the
        // lock.
        unsafe { self.unlink(LinkRef(first)) }
    }

    /// The number of waiting timers. Checks all links, forth and back.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let (mut forth, mut last, mut at, mut step) = (0, None, self.first, 0);
        while let Some(entry) = at {
            // SAFETY: linked, so alive by the list's reference; `&self` lies under the lock.
            let entry_ref = unsafe { entry.as_ref() };
            assert!(entry_ref.prev == last && entry_ref.node.is_some() && entry_ref.step >= step, "entry {forth}");
            (forth, last, at, step) = (forth + 1, Some(entry), entry_ref.next, entry_ref.step);
        }
        assert!(last == self.last && step <= self.step);
        forth
    }
}
