//! Item wheels: a safe owner of timing wheels, for values with a due point. The wheels of a delay
//! queue.
//!
//! Ground rules. A wheel ([`TimerWheel`]) does not own its nodes. An [`ItemWheel`] does: each node
//! in a wheel holds a counted reference, [`ItemRef`]. An item has two parts. Its *shared* part
//! never changes, and each holder of a reference may read it. Its *body* belongs to the
//! [`ItemWheel`] that has adopted the item, and is reached through `&mut ItemWheel` alone. In a
//! delay queue that means: under the lock of the queue. No function here runs user code, but the
//! drop of the last reference.
//!
//! An [`ItemWheel`] has two axes, each with a wheel of its own: an item is due by the runtime's
//! clock, or by the wall clock. A wheel does not go back in time. After a step back of the wall
//! clock, [`ItemWheel::restart`] begins a new wheel, and the items of the old one move over, some
//! with each call of [`ItemWheel::next_due`].

#![allow(unsafe_code)] // lifetime of items, and the contract of the wheel

use std::cell::{Cell, UnsafeCell};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::queue::tick_policy::TickPolicy;
use crate::queue::{Kind, Next, Node, TimerWheel};
use crate::sync::Ordering;
use crate::sync::unmodelled::AtomicUsize;
use crate::time::END;

/// A clock by which items are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Axis {
    /// The runtime's clock.
    Running,
    /// The wall clock.
    Wall,
}

/// Both axes.
pub(crate) const AXES: [Axis; 2] = [Axis::Running, Axis::Wall];

/// The owner of an item that no wheel has adopted.
const FREE: usize = 0;

/// The part of a node behind the wheel's fields.
struct Item<S, B> {
    /// The address of the owner's [`ItemWheel::identity`], or [`FREE`]. Written by the owner alone,
    /// so a thread that reads its own identity reads a value that stays.
    owner: AtomicUsize,
    /// Under the owner's `&mut`.
    axis: Cell<Axis>,
    /// The number of the wheel that the item is in, if it is in one. Under the owner's `&mut`.
    turn: Cell<u32>,
    shared: S,
    /// Under the owner's `&mut`; of a free item, of the thread with the only reference.
    body: UnsafeCell<B>,
}

// SAFETY: threads share `shared`, which is `Sync`. `axis`, `turn` and `body` are used by one thread
// at a time: the thread with `&mut` of the owner, or the thread with the last reference.
unsafe impl<S: Send + Sync, B: Send> Send for Item<S, B> {}
// SAFETY: see `Send`.
unsafe impl<S: Send + Sync, B: Send> Sync for Item<S, B> {}

type ItemNode<S, B> = Node<Item<S, B>>;

/// A counted reference to an item.
pub(crate) struct ItemRef<S, B>(NonNull<ItemNode<S, B>>);

// SAFETY: as an `Arc` of an item. The fields of the node beside the item are atomics, constant, or
// under the owner's `&mut`.
unsafe impl<S: Send + Sync, B: Send> Send for ItemRef<S, B> {}
// SAFETY: see `Send`.
unsafe impl<S: Send + Sync, B: Send> Sync for ItemRef<S, B> {}

impl<S, B> ItemRef<S, B> {
    /// A free item.
    pub(crate) fn new(shared: S, body: B, policy: TickPolicy) -> Self {
        let item = Item {
            owner: AtomicUsize::new(FREE),
            axis: Cell::new(Axis::Running),
            turn: Cell::new(0),
            shared,
            body: UnsafeCell::new(body),
        };
        Self(NonNull::from(Box::leak(Box::new(Node::with(1, Kind::Once, policy, item)))))
    }

    fn node(&self) -> &ItemNode<S, B> {
        // SAFETY: the counted reference keeps the node alive.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn shared(&self) -> &S {
        &self.node().extra().shared
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Both parts of a free item with a single reference; else the reference is given back.
    pub(crate) fn into_parts(self) -> Result<(S, B), Self> {
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

/// The wheels of an axis.
struct Wheels<S, B> {
    wheel: TimerWheel<Item<S, B>>,
    /// Its items are on their way to `wheel`.
    old: Option<TimerWheel<Item<S, B>>>,
    /// The number of `wheel`; `old` has the number before.
    turn: u32,
}

/// Outcome of [`ItemWheel::next_due`].
#[must_use]
pub(crate) enum NextItem<S, B> {
    /// This item is due, and has left its wheel.
    Due(ItemRef<S, B>),
    /// No further item is due.
    Nothing,
    /// The work allowed is used up; more items may be due.
    Exhausted,
}

/// See the module's ground rules.
pub(crate) struct ItemWheel<S, B> {
    /// Its address is the owner in the adopted items. Not of size zero, so no two live wheels have
    /// the same address.
    identity: Box<u8>,
    /// Made with the first item of the axis.
    axes: [Option<Wheels<S, B>>; 2],
}

impl<S, B> ItemWheel<S, B> {
    pub(crate) fn new() -> Self {
        Self { identity: Box::new(0), axes: [None, None] }
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
    pub(crate) fn adopt(&mut self, item: &ItemRef<S, B>) {
        let owner = &item.node().extra().owner;
        // Acquire pairs with the release in `disown`: the former owner's writes come first.
        let before = owner.compare_exchange(FREE, self.identity(), Ordering::Acquire, Ordering::Relaxed);
        assert!(before.is_ok(), "a free item");
    }

    /// Makes an item free, which is in no wheel.
    pub(crate) fn disown(&mut self, item: &ItemRef<S, B>) {
        let node = self.own(item);
        let wheels = self.axes[node.extra().axis.get() as usize].as_ref();
        assert!(!wheels.is_some_and(|wheels| node.is_queued(wheels.wheel.key())), "the item has left its wheel");
        node.extra().owner.store(FREE, Ordering::Release);
    }

    /// The body of an adopted item.
    #[inline]
    pub(crate) fn body<'a>(&'a mut self, item: &'a ItemRef<S, B>) -> &'a mut B {
        let body = self.own(item).extra().body.get();
        // SAFETY: adopted, so only `&mut self` leads to the body, and the result borrows `self`: no
        // second borrow of a body of this wheel exists. The result borrows the reference too, so
        // the item is alive, and not the only one to be dropped.
        unsafe { &mut *body }
    }

    /// The axis and the due point of an adopted item.
    #[inline]
    pub(crate) fn due(&self, item: &ItemRef<S, B>) -> (Axis, u64) {
        let node = self.own(item);
        let axis = node.extra().axis.get();
        (axis, self.axes[axis as usize].as_ref().map_or(END, |wheels| node.due(wheels.wheel.key())))
    }

    /// Puts an adopted item, which is in no wheel, into the wheel of `axis`. A due point beyond the
    /// range of the clock is [`END`], which never comes. `now` is a reading of the clock of the
    /// axis.
    pub(crate) fn insert(&mut self, item: ItemRef<S, B>, axis: Axis, due: u64, now: u64) {
        let node = self.own(&item);
        let fresh = || Wheels { wheel: TimerWheel::new(now), old: None, turn: 0 };
        let wheels = self.axes[axis as usize].get_or_insert_with(fresh);
        let key = wheels.wheel.key();
        assert!(!node.is_queued(key), "an item is in one wheel");
        node.set_due(due.min(END), key);
        node.extra().axis.set(axis);
        node.extra().turn.set(wheels.turn);
        wheels.wheel.advance(now);
        let item = ManuallyDrop::new(item);
        // SAFETY: in no wheel (asserted: an item in a wheel of this owner is queued, and no other
        // owner has the item). Alive until unlinked or emitted by the reference just forgotten,
        // which `taken_out` takes up again.
        let _ = unsafe { wheels.wheel.insert(item.0) };
    }

    /// Takes an item out of its wheel. `None`: it is in none.
    pub(crate) fn unlink(&mut self, item: &ItemRef<S, B>) -> Option<ItemRef<S, B>> {
        let node = self.own(item);
        let wheels = self.axes[node.extra().axis.get() as usize].as_mut()?;
        let current = node.extra().turn.get() == wheels.turn;
        let wheel = if current { &mut wheels.wheel } else { wheels.old.as_mut()? };
        // SAFETY: alive by the caller's reference. The item is in no wheel but the one named by
        // `axis` and `turn`, since `insert` and `move_over` set both.
        let was_queued = unsafe { wheel.unlink(item.0) };
        was_queued.then(|| Self::taken_out(item.0))
    }

    /// The reference of a wheel, for an item that has just left it.
    fn taken_out(node: NonNull<ItemNode<S, B>>) -> ItemRef<S, B> {
        ItemRef(node)
    }

    /// Takes an item that is due at `now` out of the wheel of `axis`. Each node looked at costs a
    /// unit of `work`.
    pub(crate) fn next_due(&mut self, axis: Axis, now: u64, work: &mut usize) -> NextItem<S, B> {
        let Some(wheels) = &mut self.axes[axis as usize] else { return NextItem::Nothing };
        if !wheels.move_over(now, work) {
            return NextItem::Exhausted;
        }
        match wheels.wheel.next_due(now, work) {
            Next::Due(node) => NextItem::Due(Self::taken_out(node)),
            Next::Nothing => NextItem::Nothing,
            Next::Exhausted => NextItem::Exhausted,
        }
    }

    /// At or before the earliest instant at which an item of the axis is due. Meaningful after
    /// [`NextItem::Nothing`].
    pub(crate) fn next_deadline(&self, axis: Axis) -> u64 {
        self.axes[axis as usize].as_ref().map_or(END, |wheels| wheels.wheel.next_deadline()).min(END)
    }

    /// The earliest instant at which an item of the axis is due, exactly; [`END`]: no item comes
    /// due. `None`: the work is used up.
    pub(crate) fn earliest_due(&mut self, axis: Axis, now: u64, work: &mut usize) -> Option<u64> {
        let Some(wheels) = &mut self.axes[axis as usize] else { return Some(END) };
        if !wheels.move_over(now, work) {
            return None;
        }
        Some(wheels.wheel.earliest_due(work)?.min(END))
    }

    /// The clock of the axis has been set back to `now`: begins a new wheel.
    pub(crate) fn restart(&mut self, axis: Axis, now: u64) {
        let Some(wheels) = &mut self.axes[axis as usize] else { return };
        if wheels.old.is_some() {
            // a second step during the move: the wheel is right, if perhaps slow, until the next
            // restart
            return;
        }
        if wheels.wheel.len() > 0 {
            wheels.old = Some(std::mem::replace(&mut wheels.wheel, TimerWheel::new(now)));
            wheels.turn = wheels.turn.wrapping_add(1);
        } else {
            wheels.wheel = TimerWheel::new(now);
        }
    }

    /// Takes any item out of a wheel: for the end of a queue, and for draining.
    pub(crate) fn pop_any(&mut self) -> Option<ItemRef<S, B>> {
        let pop = |wheels: &mut Wheels<S, B>| wheels.wheel.pop_any().or_else(|| wheels.old.as_mut()?.pop_any());
        self.axes.iter_mut().flatten().find_map(pop).map(Self::taken_out)
    }

    /// Items in the wheels of an axis.
    #[cfg(test)]
    pub(crate) fn len(&self, axis: Axis) -> usize {
        let old = |wheels: &Wheels<S, B>| wheels.old.as_ref().map_or(0, TimerWheel::len);
        self.axes[axis as usize].as_ref().map_or(0, |wheels| wheels.wheel.len() + old(wheels))
    }
}

impl<S, B> Wheels<S, B> {
    /// Moves items of the old wheel to the new one. False: the work is used up, and items are left.
    fn move_over(&mut self, now: u64, work: &mut usize) -> bool {
        let Some(old) = &mut self.old else { return true };
        self.wheel.advance(now);
        while let Some(node) = old.pop_any() {
            // SAFETY: alive by the reference of the wheel, which goes over to the new wheel with
            // the node.
            unsafe {
                node.as_ref().extra().turn.set(self.turn);
                let _ = self.wheel.insert(node);
            }
            if *work == 0 {
                return false;
            }
            *work -= 1;
        }
        self.old = None;
        true
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
