//! Item wheels: a safe owner of a timing wheel, for values with a due point.
//!
//! Ground rules. A wheel ([`TimerWheel`]) does not own its nodes. An [`ItemWheel`] does: each node
//! in the wheel holds a counted reference, [`ItemRef`]. An item has two parts. Its *shared* part
//! never changes, and each holder of a reference may read it. Its *body* belongs to the
//! [`ItemWheel`] that has made the item, and is reached through `&mut ItemWheel` alone, or by the
//! owner of the only reference. In a delay queue that means: under the lock of the queue, or after
//! the entry has left the queue. No function here runs user code, but the drop of the last
//! reference.

#![allow(unsafe_code)] // lifetime of items, and the contract of the wheel

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{ControlFlow, Deref};
use std::ptr::{NonNull, null};

use crate::ordered_map::{Key as MapKey, OrderedMap, Value};
use crate::queue::node::Key;
use crate::queue::tick_policy::TickPolicy;
use crate::queue::{Kind, Next, Node, Period, TimerWheel};
use crate::time::{END, NEVER};

/// The part of a node behind the wheel's fields.
struct Item<S, B> {
    /// The address of the owner's [`ItemWheel::identity`].
    owner: usize,
    shared: S,
    /// Under the owner's `&mut`, or of the thread with the only reference.
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

    /// Both parts of an item with a single reference; else the reference is given back.
    pub(super) fn into_parts(self) -> Result<(S, B), Self> {
        // Acquire, in `has_only`, pairs with the release of each dropped reference.
        if !self.node().has_only(1) {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        // SAFETY: made from a box; the only reference, which is not used any more. An item in a
        // wheel has the wheel's reference, so the item is in none.
        let item = unsafe { Box::from_raw(this.0.as_ptr()) }.into_extra();
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
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this reference is the one given back, and is not used afterwards.
        if unsafe { Node::release(self.0) } {
            // SAFETY: this was the last reference.
            unsafe { free(self.0) };
        }
    }
}

/// # Safety
/// `node` is an item's, and no reference to the item is left.
#[inline(never)] // most often a further reference is left
unsafe fn free<S, B>(node: NonNull<ItemNode<S, B>>) {
    // SAFETY: made from a box; no reference is left (the caller says so). An item in a wheel has
    // the wheel's reference, so the item is in none.
    drop(unsafe { Box::from_raw(node.as_ptr()) });
}

/// An [`OrderedMap`] of items. Each has a counted reference.
pub(super) struct ItemMap<S, B> {
    map: OrderedMap,
    of: PhantomData<ItemRef<S, B>>,
}

impl<S, B> ItemMap<S, B> {
    pub(super) const fn new() -> Self {
        Self { map: OrderedMap::new(), of: PhantomData }
    }

    pub(super) fn keys(&self) -> &OrderedMap {
        &self.map
    }

    /// `key` is not in the map.
    pub(super) fn insert(&mut self, key: MapKey, item: ItemRef<S, B>) {
        let item = ManuallyDrop::new(item);
        let before = self.map.insert(key, [item.0.as_ptr().cast_const().cast(), null()]);
        debug_assert!(before.is_none(), "each item has a number of its own");
    }

    pub(super) fn remove(&mut self, key: MapKey) -> Option<ItemRef<S, B>> {
        self.map.remove(key).and_then(Self::item)
    }

    pub(super) fn pop_first(&mut self) -> Option<ItemRef<S, B>> {
        self.map.pop_first().and_then(|(_, value)| Self::item(value))
    }

    pub(super) fn first(&self) -> Option<(MapKey, ItemRef<S, B>)> {
        let (key, value) = self.map.first()?;
        let item = ManuallyDrop::new(Self::item(value)?);
        Some((key, ItemRef::clone(&item)))
    }

    /// The reference of the map. The caller drops it if the value has left the map, and only then.
    fn item([address, _]: Value) -> Option<ItemRef<S, B>> {
        NonNull::new(address.cast_mut().cast()).map(ItemRef) // as `insert` has put it there
    }
}

impl<S, B> Drop for ItemMap<S, B> {
    fn drop(&mut self) {
        while let Some(item) = self.pop_first() {
            drop(item);
        }
    }
}

/// See the module's ground rules.
pub(super) struct ItemWheel<S, B> {
    /// Its address is the owner in the items. Not of size zero, so no two live wheels have the same
    /// address.
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

    /// Asserts that the item was made by this wheel: then `&mut self` is the right to its fields.
    #[inline]
    fn own<'a>(&self, item: &'a ItemRef<S, B>) -> &'a ItemNode<S, B> {
        let node = item.node();
        assert_eq!(node.extra().owner, self.identity(), "an item of this wheel");
        node
    }

    /// Proof of `&mut self`, or `&self`, for the fields of an item of this wheel, whose first item
    /// has made the wheel.
    fn key(&self) -> &Key {
        self.wheel.as_ref().expect("a wheel with an item").key()
    }

    /// A new item, which is not in the wheel. `now` is a reading of the clock.
    pub(super) fn item(&mut self, shared: S, body: B, policy: TickPolicy, now: u64) -> ItemRef<S, B> {
        self.wheel.get_or_insert_with(|| TimerWheel::new(now));
        let item = Item { owner: self.identity(), shared, body: UnsafeCell::new(body) };
        ItemRef(NonNull::from(Box::leak(Box::new(Node::with(1, Kind::Once, policy, item)))))
    }

    /// The body of an item of this wheel.
    #[inline]
    pub(super) fn body<'a>(&'a mut self, item: &'a ItemRef<S, B>) -> &'a mut B {
        let body = self.own(item).extra().body.get();
        // SAFETY: an item of this wheel, so only `&mut self` leads to the body, and the result
        // borrows `self`: no second borrow of a body of this wheel exists. The result borrows the
        // reference too, so the item is alive, and `into_parts` does not take it apart.
        unsafe { &mut *body }
    }

    /// Puts an item of this wheel into it. A due point beyond the range of the clock is [`END`],
    /// which never comes. `now` is a reading of the clock.
    pub(super) fn insert(&mut self, item: ItemRef<S, B>, due: u64, now: u64) {
        let node = self.own(&item);
        let wheel = self.wheel.as_mut().expect("a wheel with an item");
        assert!(!node.is_queued(wheel.key()), "an item is in the wheel once");
        node.set_due(due.min(END), wheel.key());
        wheel.advance(now);
        let item = ManuallyDrop::new(item);
        // SAFETY: not in the wheel (asserted), and in no other, whose item it is not. Alive until
        // unlinked or emitted by the reference just forgotten, which a new one takes up again.
        let _ = unsafe { wheel.insert(item.0) };
    }

    /// As [`Self::body`], to read.
    #[inline]
    pub(super) fn body_ref<'a>(&'a self, item: &'a ItemRef<S, B>) -> &'a B {
        let body = self.own(item).extra().body.get();
        // SAFETY: an item of this wheel, so a `&mut` of the body needs `&mut self`, and the result
        // borrows `self`. The result borrows the reference too, so the item is alive.
        unsafe { &*body }
    }

    /// The due point of an item of this wheel.
    #[inline]
    pub(super) fn due(&self, item: &ItemRef<S, B>) -> u64 {
        self.own(item).due(self.key())
    }

    /// Sets the due point of an item of this wheel that is not in it.
    pub(super) fn set_due(&mut self, item: &ItemRef<S, B>, due: u64) {
        let node = self.own(item);
        assert!(!node.is_queued(self.key()), "the wheel sets the due points of its items");
        node.set_due(due, self.key());
    }

    /// The word of an item of this wheel: a number of the caller's, never zero. It stands in the
    /// field of the node that has a timer's period.
    #[inline]
    pub(super) fn word(&self, item: &ItemRef<S, B>) -> u64 {
        self.own(item).period(self.key()).as_ns()
    }

    #[inline]
    pub(super) fn set_word(&mut self, item: &ItemRef<S, B>, word: u64) {
        debug_assert_ne!(word, 0);
        self.own(item).set_period(Period::from_ns(word), self.key());
    }

    /// Gives an item in the wheel a new due point, where the item may stay in its slot: no other
    /// item is touched. False: nothing was done.
    #[inline]
    pub(super) fn reschedule_lazily(&mut self, item: &ItemRef<S, B>, due: u64) -> bool {
        self.own(item);
        let Some(wheel) = self.wheel.as_mut().filter(|_| due < END) else { return false };
        // SAFETY: alive by the caller's reference, and in no wheel but this, whose item it is.
        unsafe { wheel.reschedule_lazily(item.0, due) }.is_some()
    }

    /// Takes an item out of the wheel. `None`: it is not there.
    pub(super) fn unlink(&mut self, item: &ItemRef<S, B>) -> Option<ItemRef<S, B>> {
        self.own(item);
        // SAFETY: alive by the caller's reference, and in no wheel but this, whose item it is.
        let was_queued = unsafe { self.wheel.as_mut()?.unlink(item.0) };
        was_queued.then(|| ItemRef(item.0)) // the reference of the wheel
    }

    /// Takes an item that is due at `now` out of the wheel. Each node looked at costs a unit of
    /// `work`.
    pub(super) fn next_due(&mut self, now: u64, work: &mut usize) -> Next<ItemRef<S, B>> {
        match self.wheel.as_mut().map_or(Next::Nothing, |wheel| wheel.next_due(now, work)) {
            Next::Due(node) => Next::Due(ItemRef(node)),
            Next::Nothing => Next::Nothing,
            Next::Exhausted => Next::Exhausted,
        }
    }

    /// At or before the earliest instant at which an item fires; [`END`]: none does. Meaningful
    /// after [`Next::Nothing`].
    pub(super) fn next_deadline(&self) -> u64 {
        self.wheel.as_ref().map_or(END, TimerWheel::next_deadline).min(END)
    }

    /// As [`Self::next_deadline`], exactly. `None`: the work is used up.
    pub(super) fn earliest_due(&mut self, work: &mut usize) -> Option<u64> {
        self.wheel.as_mut().map_or(Some(END), |wheel| wheel.earliest_due(work)).map(|due| due.min(END))
    }

    /// The item that comes first, by due point and word, of those that fire at `at`, the earliest
    /// instant. Looks at the items of a slot, and more.
    pub(super) fn first(&self, at: u64) -> Option<ItemRef<S, B>> {
        let (wheel, key) = (self.wheel.as_ref()?, self.key());
        let (mut first, mut least) = (None, (NEVER, NEVER));
        wheel.walk(
            |instant| instant > at,
            |node| {
                let order = (node.due(key), node.period(key).as_ns());
                if node.fires_at(key) == at && order < least {
                    (first, least) = (Some(node.as_ptr()), order);
                }
                ControlFlow::Continue(())
            },
        );
        // Of the wheel: given back to it.
        first.map(|node| ManuallyDrop::new(ItemRef(node)).deref().clone())
    }

    /// Takes any item out of the wheel: for the end of a queue, and for draining.
    pub(super) fn pop_any(&mut self) -> Option<ItemRef<S, B>> {
        self.wheel.as_mut()?.pop_any().map(ItemRef)
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
