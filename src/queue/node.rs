//! The timer node: the header of an entry, with the links, the schedule, the state word and the
//! engine's part, `extra`.
//!
//! Ground rules. `links`, `due`, `period` and `location` belong to the lock of the node's queue;
//! they are reached with a [`Key`], which only a locked queue lends. Without the lock a node's
//! owner may postpone its due point ([`Node::postpone`]). So `due` is an atomic, and code under the
//! lock may find it later each time that it looks, but never earlier. `state` and `refs` are
//! atomics, used with and without the lock. `tick_policy` and `kind` never change after
//! construction. The queue knows nothing of `extra`.
//!
//! The header is 64 bytes on 64-bit systems with two words of `extra`: one cache line, with the
//! callback right behind.

#![allow(unsafe_code)] // the end of a node is its owner's

use std::cell::Cell;
use std::marker::PhantomPinned;
use std::ptr::NonNull;

#[cfg(test)]
use super::missed_ticks::MissedTicks;
use super::schedule::{Period, Schedule};
use super::state::{Begin, Claim, End, StateWord};
use super::tick_policy::TickPolicy;
use crate::sync::unmodelled::AtomicU64;
use crate::sync::{AtomicU32, Ordering};
use crate::time::NEVER;

/// A count of references above this limit ends the process (I15). The upper half of the range is
/// for threads that raise the count after a thread has found it too high and before the process has
/// ended.
const MOST_REFS: u32 = u32::MAX / 2;

/// Shows that the lock of some queue is held. That the queue is the node's own is the caller's
/// duty. A `&TimerWheel` lends a key: the wheel is not `Sync`, and stands inside the mutex of its
/// shard. Only `queue` can make keys.
pub(crate) struct Key {
    _private: (),
}

impl Key {
    /// For queues alone: code with a reference to a queue holds the queue's lock.
    pub(super) const fn new() -> Self {
        Self { _private: () }
    }

    #[cfg(test)]
    pub(crate) const fn for_tests() -> Self {
        Self { _private: () }
    }
}

/// The kind of callback of a timer, as far as the state word must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Any number of callbacks may run at once.
    Overlapping,
    /// One callback at a time; a tick that comes due meanwhile is deferred (I11).
    Exclusive,
    /// Runs once in its life.
    Once,
    /// No callback: the payload is the waker of a task. The state word knows only of disposal.
    Waker,
}

/// The location of a node: a slot of the wheel, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location(u16);

impl Location {
    pub(crate) const IDLE: Self = Self(0);
    /// Idle, and no longer counted by its shard (see `crate::engine::shard`); the queue treats the
    /// node as idle.
    pub(crate) const COUNTED_OUT: Self = Self(1);

    /// Slots have the numbers from 2 on.
    pub(crate) const fn slot(slot: usize) -> Self {
        debug_assert!(slot > Self::COUNTED_OUT.0 as usize && slot <= u16::MAX as usize);
        Self(slot as u16)
    }

    /// The slot, unless the timer is idle.
    pub(crate) const fn as_slot(self) -> Option<usize> {
        if self.0 > Self::COUNTED_OUT.0 { Some(self.0 as usize) } else { None }
    }
}

pub(crate) struct Links<X> {
    pub(crate) next: Cell<Option<NonNull<Node<X>>>>,
    pub(crate) prev: Cell<Option<NonNull<Node<X>>>>,
}

/// See the module's ground rules. Location and references come first: a future that has fired reads
/// no more of its node than these, and they share a cache line with the allocator's header.
#[repr(C)]
pub(crate) struct Node<X> {
    location: Cell<Location>,
    rule: u8,
    kind_and_seed: u8,
    refs: AtomicU32,
    links: Links<X>,
    due: AtomicU64,
    period: Cell<Period>,
    pub(crate) state: StateWord,
    extra: X,
    /// Neighbours point here.
    _pinned: PhantomPinned,
}

impl<X> Node<X> {
    /// An idle, overlapping node.
    #[cfg(test)]
    pub(crate) fn new(refs: u32, extra: X) -> Self {
        Self::with(refs, Kind::Overlapping, MissedTicks::default(), extra)
    }

    /// An idle node that starts with `refs` references.
    pub(crate) fn with(refs: u32, kind: Kind, tick_policy: impl Into<TickPolicy>, extra: X) -> Self {
        let tick_policy: TickPolicy = tick_policy.into();
        Self {
            links: Links { next: Cell::new(None), prev: Cell::new(None) },
            due: AtomicU64::new(NEVER),
            period: Cell::new(Period::NONE),
            location: Cell::new(Location::IDLE),
            rule: tick_policy.rule,
            kind_and_seed: kind as u8 * TickPolicy::SEEDS + tick_policy.seed,
            refs: AtomicU32::new(refs),
            state: StateWord::new(),
            extra,
            _pinned: PhantomPinned,
        }
    }

    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        match self.kind_and_seed / TickPolicy::SEEDS {
            0 => Kind::Overlapping,
            1 => Kind::Exclusive,
            2 => Kind::Once,
            _ => Kind::Waker,
        }
    }

    #[inline]
    pub(crate) fn tick_policy(&self) -> TickPolicy {
        TickPolicy { rule: self.rule, seed: self.kind_and_seed % TickPolicy::SEEDS }
    }

    pub(crate) fn links(&self, _: &Key) -> &Links<X> {
        &self.links
    }

    pub(crate) fn due(&self, _: &Key) -> u64 {
        self.due.load(Ordering::Relaxed)
    }

    /// The instant at which the timer fires: its due point, or up to its leeway later.
    #[inline]
    pub(crate) fn fires_at(&self, key: &Key) -> u64 {
        self.tick_policy().fires_at(self.due(key))
    }

    pub(crate) fn period(&self, _: &Key) -> Period {
        self.period.get()
    }

    pub(crate) fn set_due(&self, due: u64, _: &Key) {
        self.due.store(due, Ordering::Relaxed);
    }

    /// Sets a later due point, without the lock. The node stays where it is: its slot comes too
    /// early, and then the queue looks at the due point (I20). A sweep that reads the old due point
    /// meanwhile fires as if the call came later. Relaxed: nothing else is told by it. False: the
    /// due point is earlier than before, and nothing was done.
    ///
    /// Caller: the owner of the node, the only one to set its due point, with the lock or without.
    #[inline]
    pub(crate) fn postpone(&self, due: u64) -> bool {
        debug_assert_eq!(self.kind(), Kind::Waker, "other timers have handles that share them");
        debug_assert!(!self.tick_policy().has_jitter(), "with a jitter, what is due later may fire earlier");
        let is_later = due >= self.due.load(Ordering::Relaxed);
        if is_later {
            self.due.store(due, Ordering::Relaxed);
        }
        is_later
    }

    pub(crate) fn set_period(&self, period: Period, _: &Key) {
        self.period.set(period);
    }

    pub(crate) fn schedule(&self, key: &Key) -> Schedule {
        Schedule { due: self.due(key), period: self.period(key) }
    }

    pub(crate) fn location(&self, _: &Key) -> Location {
        self.location.get()
    }

    pub(crate) fn set_location(&self, location: Location, _: &Key) {
        self.location.set(location);
    }

    /// As [`Self::set_location`], of a node that belongs to no queue yet.
    ///
    /// # Safety
    /// No other thread reads or sets the location meanwhile.
    #[inline]
    pub(crate) unsafe fn set_location_alone(&self, location: Location) {
        self.location.set(location);
    }

    pub(crate) fn is_queued(&self, _: &Key) -> bool {
        self.location.get().as_slot().is_some()
    }

    /// Whether the location is [`Location::COUNTED_OUT`]. Called by the last owner, which needs no
    /// lock.
    pub(crate) fn is_counted_out(&mut self) -> bool {
        self.location.get() == Location::COUNTED_OUT
    }

    pub(crate) fn extra(&self) -> &X {
        &self.extra
    }

    /// The engine's part of a node that is in no queue and not referred to any more.
    pub(crate) fn into_extra(self) -> X {
        self.extra
    }

    /// Takes a further reference. The caller already has a reference, so no earlier write needs to
    /// be visible: relaxed.
    ///
    /// Safe code can forget references and so raise the count without end. Far below the end of the
    /// count the process is aborted, as `Arc` does (I15): a wrapped count would free a node in use.
    pub(crate) fn retain(&self) {
        let before = self.refs.fetch_add(1, Ordering::Relaxed);
        debug_assert!(before > 0, "the caller has a reference");
        if before > MOST_REFS {
            std::process::abort();
        }
    }

    /// Gives back a reference; true: the last reference, and the caller frees the node (I15).
    ///
    /// Release publishes the caller's use of the node to the thread that frees the node; the
    /// acquire load there pairs with all these releases. (An acquire load instead of a fence, since
    /// race detectors understand loads.) The owner of the only reference need not count down.
    ///
    /// The argument is a pointer: a `&Node` would have to stay valid until this returns, but
    /// another thread may free the node right after the subtraction.
    ///
    /// # Safety
    /// The caller owns the reference. After `false` the caller uses the node by a further
    /// reference, or not at all.
    #[must_use]
    pub(crate) unsafe fn release(node: NonNull<Self>) -> bool {
        // SAFETY: the caller's reference keeps the node alive up to the subtraction. Only the
        // atomic is borrowed.
        let refs = unsafe { &(*node.as_ptr()).refs };
        if refs.load(Ordering::Acquire) == 1 {
            return true;
        }
        let last = refs.fetch_sub(1, Ordering::Release) == 1;
        if last {
            refs.load(Ordering::Acquire);
        }
        last
    }

    /// Edge 1 of the state word. Caller: holds the lock, and owns a reference.
    #[inline]
    pub(crate) fn claim(&self, _: &Key) -> Claim {
        self.state.claim(self.kind(), self.has_only(1))
    }

    /// Edge 3 of the state word. Caller: has the queued job, and with it a reference.
    #[inline(always)] // into the one place where callbacks begin
    pub(crate) fn begin(&self) -> Begin {
        self.state.begin(self.kind(), self.has_only(1))
    }

    /// Edge 5 of the state word. Caller: has run the callback, and owns a reference.
    #[inline]
    pub(crate) fn end(&self) -> End {
        self.state.end(self.has_only(1))
    }

    /// True when exactly `refs` references are left. If the caller owns all of them, no further
    /// thread can add references, so the answer is stable. Acquire pairs with the release of each
    /// dropped reference.
    pub(crate) fn has_only(&self, refs: u32) -> bool {
        self.refs.load(Ordering::Acquire) == refs
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/last_reference.rs"]
mod loom_models;

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;
    use crate::sys::assert_aborts;

    /// Safe code has forgotten so many references of a node that the count would wrap: the process
    /// ends instead.
    #[test]
    #[cfg_attr(miri, ignore = "starts a process")]
    fn s19_a_count_of_references_ends_the_process_far_below_its_wrap() {
        let node = Node::new(MOST_REFS, ());
        node.retain();
        let test = "queue::node::tests::s19_a_count_of_references_ends_the_process_far_below_its_wrap";
        assert_aborts(test, || node.retain());
    }
}
