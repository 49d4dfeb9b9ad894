//! Item wheels: a safe owner of a timing wheel, for values with a due point.
//!
//! Ground rules. A wheel ([`TimerWheel`]) does not own its nodes. An [`ItemWheel`] does: each node
//! in the wheel holds a counted reference, [`ItemRef`]. An item has two parts. Its *shared* part
//! never changes, and each holder of a reference may read it. Its *body* belongs to the
//! [`ItemWheel`] that has adopted the item, and is reached through `&mut ItemWheel` alone. In a
//! delay queue that means: under the lock of the queue. No function here runs user code, but the
//! drop of the last reference.

#![allow(unsafe_code)] // lifetime of items, and the contract of the wheel

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::queue::tick_policy::TickPolicy;
use crate::queue::{Kind, Next, Node, TimerWheel};
use crate::sync::Ordering;
use crate::sync::unmodelled::AtomicUsize;
use crate::time::END;

/// The owner of an item that no wheel has adopted.
const FREE: usize = 0;

/// The part of a node behind the wheel's fields.
struct Item<S, B> {
    /// The address of the owner's [`ItemWheel::identity`], or [`FREE`]. Written by the owner alone,
    /// so a thread that reads its own identity reads a value that stays.
    owner: AtomicUsize,
    shared: S,
    /// Under the owner's `&mut`; of a free item, of the thread with the only reference.
    body: UnsafeCell<B>,
}

// SAFETY: threads share `shared`, which is `Sync`. One thread at a time uses `body`: the thread
// with `&mut` of the owner, or the thread with the last reference.
unsafe impl<S: Send + Sync, B: Send> Send for Item<S, B> {}
// SAFETY: see `Send`.
unsafe impl<S: Send + Sync, B: Send> Sync for Item<S, B> {}

type ItemNode<S, B> = Node<Item<S, B>>;

/// A counted reference to an item.
pub(super) struct ItemRef<S, B>(NonNull<ItemNode<S, B>>);

// SAFETY: as an `Arc` of an item. The fields of the node beside the item are atomics, constant, or
// under the owner's `&mut`.
unsafe impl<S: Send + Sync, B: Send> Send for ItemRef<S, B> {}
// SAFETY: see `Send`.
unsafe impl<S: Send + Sync, B: Send> Sync for ItemRef<S, B> {}

impl<S, B> ItemRef<S, B> {
    /// A free item.
    pub(super) fn new(shared: S, body: B, policy: TickPolicy) -> Self {
        let item = Item { owner: AtomicUsize::new(FREE), shared, body: UnsafeCell::new(body) };
        Self(NonNull::from(Box::leak(Box::new(Node::with(1, Kind::Once, policy, item)))))
    }

    fn node(&self) -> &ItemNode<S, B> {
        // SAFETY: the counted reference keeps the node alive.
        unsafe { self.0.as_ref() }
    }

    pub(super) fn shared(&self) -> &S {
        &self.node().extra().shared
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Both parts of a free item with a single reference; else the reference is given back.
    pub(super) fn into_parts(self) -> Result<(S, B), Self> {
        // Acquire, in `has_only`, pairs with the release of each dropped reference.
        if !self.node().has_only(1) || self.node().extra().owner.load(Ordering::Relaxed) != FREE {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        // SAFETY: made by `new` from a box; the only reference, which is not used any more.
        let node = unsafe { Box::from_raw(this.0.as_ptr()) };
        let item = node.into_extra();
        Ok((item.shared, item.body.into_inner()))
    }
}

impl<S, B> Clone for ItemRef<S, B> {
    fn clone(&self) -> Self {
        self.node().retain();
        Self(self.0)
    }
}

impl<S, B> Drop for ItemRef<S, B> {
    fn drop(&mut self) {
        let node = self.node();
        // Release publishes this thread's use of the item to the thread that frees the item; the
        // acquire load there pairs with all these releases. The owner of the only reference need
        // not count down. After the subtraction another thread may free the node, so the node is
        // used no more.
        if !node.has_only(1) {
            // SAFETY: alive up to the subtraction by this reference. Only the atomic is borrowed.
            let refs = unsafe { &(*self.0.as_ptr()).refs };
            if refs.fetch_sub(1, Ordering::Release) != 1 {
                return;
            }
            refs.load(Ordering::Acquire);
        }
        // SAFETY: made by `new` from a box; this was the last reference. An item in a wheel has the
        // wheel's reference, so the item is in none.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Outcome of [`ItemWheel::next_due`].
#[must_use]
pub(super) enum NextItem<S, B> {
    /// This item is due, and has left the wheel.
    Due(ItemRef<S, B>),
    /// No further item is due.
    Nothing,
    /// The work allowed is used up; more items may be due.
    Exhausted,
}

/// See the module's ground rules.
pub(super) struct ItemWheel<S, B> {
    /// Its address is the owner in the adopted items. Not of size zero, so no two live wheels have
    /// the same address.
    identity: Box<u8>,
    /// Made with the first item.
    wheel: Option<TimerWheel<Item<S, B>>>,
}

impl<S, B> ItemWheel<S, B> {
    pub(super) fn new() -> Self {
        Self { identity: Box::new(0), wheel: None }
    }

    fn identity(&self) -> usize {
        std::ptr::from_ref(&*self.identity).addr()
    }

    /// Asserts that the item is adopted by this wheel: then `&mut self` is the right to its fields.
    #[inline]
    fn own<'a>(&self, item: &'a ItemRef<S, B>) -> &'a ItemNode<S, B> {
        let node = item.node();
        assert_eq!(node.extra().owner.load(Ordering::Relaxed), self.identity(), "an item of this wheel");
        node
    }

    /// Makes a free item an item of this wheel.
    pub(super) fn adopt(&mut self, item: &ItemRef<S, B>) {
        let owner = &item.node().extra().owner;
        // Acquire pairs with the release in `disown`: the former owner's writes come first.
        let before = owner.compare_exchange(FREE, self.identity(), Ordering::Acquire, Ordering::Relaxed);
        assert!(before.is_ok(), "a free item");
    }

    /// Makes an item free, which is not in the wheel.
    pub(super) fn disown(&mut self, item: &ItemRef<S, B>) {
        let node = self.own(item);
        let is_queued = self.wheel.as_ref().is_some_and(|wheel| node.is_queued(wheel.key()));
        assert!(!is_queued, "the item has left the wheel");
        node.extra().owner.store(FREE, Ordering::Release);
    }

    /// The body of an adopted item.
    #[inline]
    pub(super) fn body<'a>(&'a mut self, item: &'a ItemRef<S, B>) -> &'a mut B {
        let body = self.own(item).extra().body.get();
        // SAFETY: adopted, so only `&mut self` leads to the body, and the result borrows `self`: no
        // second borrow of a body of this wheel exists. The result borrows the reference too, so
        // the item is alive, and not the only one to be dropped.
        unsafe { &mut *body }
    }

    /// Puts an adopted item into the wheel. A due point beyond the range of the clock is [`END`],
    /// which never comes. `now` is a reading of the clock.
    pub(super) fn insert(&mut self, item: ItemRef<S, B>, due: u64, now: u64) {
        let node = self.own(&item);
        let wheel = self.wheel.get_or_insert_with(|| TimerWheel::new(now));
        assert!(!node.is_queued(wheel.key()), "an item is in the wheel once");
        node.set_due(due.min(END), wheel.key());
        wheel.advance(now);
        let item = ManuallyDrop::new(item);
        // SAFETY: not in the wheel (asserted), and no other owner has the item, so in no wheel.
        // Alive until unlinked or emitted by the reference just forgotten, which `taken_out` takes
        // up again.
        let _ = unsafe { wheel.insert(item.0) };
    }

    /// Takes an item out of the wheel. `None`: it is not there.
    pub(super) fn unlink(&mut self, item: &ItemRef<S, B>) -> Option<ItemRef<S, B>> {
        self.own(item);
        // SAFETY: alive by the caller's reference, and in no wheel but this, as adopted.
        let was_queued = unsafe { self.wheel.as_mut()?.unlink(item.0) };
        was_queued.then(|| Self::taken_out(item.0))
    }

    /// The reference of the wheel, for an item that has just left it.
    fn taken_out(node: NonNull<ItemNode<S, B>>) -> ItemRef<S, B> {
        ItemRef(node)
    }

    /// Takes an item that is due at `now` out of the wheel. Each node looked at costs a unit of
    /// `work`.
    pub(super) fn next_due(&mut self, now: u64, work: &mut usize) -> NextItem<S, B> {
        match self.wheel.as_mut().map_or(Next::Nothing, |wheel| wheel.next_due(now, work)) {
            Next::Due(node) => NextItem::Due(Self::taken_out(node)),
            Next::Nothing => NextItem::Nothing,
            Next::Exhausted => NextItem::Exhausted,
        }
    }

    /// At or before the earliest instant at which an item fires; [`END`]: none does. Meaningful
    /// after [`NextItem::Nothing`].
    pub(super) fn next_deadline(&self) -> u64 {
        self.wheel.as_ref().map_or(END, TimerWheel::next_deadline).min(END)
    }

    /// As [`Self::next_deadline`], exactly. `None`: the work is used up.
    pub(super) fn earliest_due(&mut self, work: &mut usize) -> Option<u64> {
        self.wheel.as_mut().map_or(Some(END), |wheel| wheel.earliest_due(work)).map(|due| due.min(END))
    }

    /// Takes any item out of the wheel: for the end of a queue, and for draining.
    pub(super) fn pop_any(&mut self) -> Option<ItemRef<S, B>> {
        self.wheel.as_mut()?.pop_any().map(Self::taken_out)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.wheel.as_ref().map_or(0, TimerWheel::len)
    }
}

impl<S, B> Drop for ItemWheel<S, B> {
    fn drop(&mut self) {
        // A destructor of the user may panic: the caller empties the wheel before. What is left is
        // dropped here.
        while let Some(item) = self.pop_any() {
            drop(item);
        }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
#[path = "item_wheel_tests.rs"]
mod tests;
