//! Entries: a timer as the engine knows it. One allocation holds the header ([`Node`]), and behind it the payload, which is the callback
//! or whatever else is told of a firing.
//!
//! Ground rules. The engine knows an entry by its header. Code that knows the payload's type hands over a table of functions
//! ([`VTable`]). The payload is a `ManuallyDrop`: the state word decides which thread drops it, and when.
//!
//! An entry is freed by the thread that gives the last reference back, with no lock held: the payload is dropped on that thread, and its
//! destructor may do anything.

#![allow(unsafe_code)] // lifetime of entries, and the payload behind the header

use std::alloc::{Layout, dealloc};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::Duration;

use super::shard::Shard;
use super::{Engine, ops};
use crate::queue::leeway::Manner;
use crate::queue::{Kind, MissedTicks, Node};
use crate::user_code::{contained, inside};

/// What the engine keeps in an entry: the shard that it belongs to, and what it is.
pub(crate) struct EntryMeta {
    pub(super) shard: NonNull<Shard>,
    pub(super) vtable: &'static VTable,
}

// SAFETY: shards are shared between threads, and outlive their entries (see `shard`).
unsafe impl Send for EntryMeta {}
// SAFETY: as above.
unsafe impl Sync for EntryMeta {}

/// The header of an entry.
pub(crate) type Entry = Node<EntryMeta>;

/// What can be done with the payload behind a header.
pub(crate) struct VTable {
    /// Runs the callback. Caller: between `begin` and `end` of the state word, which see to exclusiveness.
    pub(super) call: unsafe fn(NonNull<Entry>, &Firing<'_>),
    /// Drops the payload in place; `None`: there is nothing to drop. Caller: once, when nothing runs and nothing will.
    pub(super) drop_payload: Option<unsafe fn(NonNull<Entry>)>,
    /// What header and payload were allocated with.
    pub(super) layout: Layout,
}

/// What a callback is told of its firing.
pub(crate) struct Firing<'a> {
    pub(crate) entry: &'a EntryRef,
    /// The instant at which it was due.
    pub(crate) scheduled: u64,
    /// Ticks left out before it.
    pub(crate) missed: u64,
}

// ---------------------------------------------------------------- header and payload

#[repr(C)]
struct Allocation<P> {
    header: Entry,
    payload: UnsafeCell<ManuallyDrop<P>>,
}

/// Allocates a header with its payload. The thread that has the last reference frees both.
#[inline]
pub(super) fn allocate<P>(header: Entry, payload: P) -> NonNull<Entry> {
    let all = Box::new(Allocation { header, payload: UnsafeCell::new(ManuallyDrop::new(payload)) });
    NonNull::from(Box::leak(all)).cast()
}

/// The payload of an entry.
///
/// # Safety
/// `entry` was made by [`allocate`] with a `P`, and is alive.
#[inline]
pub(super) unsafe fn payload<P>(entry: NonNull<Entry>) -> *mut ManuallyDrop<P> {
    // SAFETY: the header is the first field of the allocation (`repr(C)`), and the pointer was made from the whole of it.
    unsafe { UnsafeCell::raw_get(&raw const (*entry.cast::<Allocation<P>>().as_ptr()).payload) }
}

/// The function that drops a payload of this type, if there is anything to drop.
const fn dropper<P>() -> Option<unsafe fn(NonNull<Entry>)> {
    if std::mem::needs_drop::<P>() { Some(drop_payload::<P>) } else { None }
}

/// Drops the payload in place.
///
/// # Safety
/// As [`payload`]; called once, and the payload is not used any more.
pub(super) unsafe fn drop_payload<P>(entry: NonNull<Entry>) {
    // SAFETY: the contract.
    unsafe { ManuallyDrop::drop(&mut *payload::<P>(entry)) }
}

/// What [`allocate`] allocates for this payload.
pub(super) const fn layout<P>() -> Layout {
    Layout::new::<Allocation<P>>()
}

/// Frees the memory; the payload is not dropped.
///
/// # Safety
/// `entry` was made by [`allocate`] with a payload of this [`layout`]; the caller has the last reference.
#[inline]
unsafe fn deallocate(entry: NonNull<Entry>, layout: Layout) {
    // SAFETY: a box leaked by `allocate`, so allocated with this layout; no other reference is left, and the header has nothing to
    // drop.
    unsafe { dealloc(entry.as_ptr().cast(), layout) }
}

const _: () = assert!(!std::mem::needs_drop::<Entry>(), "`deallocate` drops nothing");

// ---------------------------------------------------------------- callbacks

/// The three ways in which a callback of this type is called.
struct Calls<F>(PhantomData<F>);

impl<F: Fn(&Firing<'_>)> Calls<F> {
    const OVERLAPPING: &'static VTable =
        &VTable { call: Self::call, drop_payload: dropper::<F>(), layout: layout::<F>() };

    /// # Safety
    /// As [`VTable::call`]; the payload is an `F`.
    unsafe fn call(entry: NonNull<Entry>, firing: &Firing<'_>) {
        // SAFETY: alive between `begin` and `end`; shared among overlapping calls only, and `F` is `Sync`.
        unsafe { (*payload::<F>(entry))(firing) }
    }
}

impl<F: FnMut(&Firing<'_>)> Calls<F> {
    const EXCLUSIVE: &'static VTable =
        &VTable { call: Self::call_mut, drop_payload: dropper::<F>(), layout: layout::<F>() };

    /// # Safety
    /// As [`VTable::call`]; the payload is an `F`, and the entry is exclusive.
    unsafe fn call_mut(entry: NonNull<Entry>, firing: &Firing<'_>) {
        // SAFETY: alive between `begin` and `end`, and an exclusive timer has one callback at a time.
        unsafe { (*payload::<F>(entry))(firing) }
    }
}

impl<F: FnOnce(&Firing<'_>)> Calls<F> {
    const ONCE: &'static VTable =
        &VTable { call: Self::call_once, drop_payload: dropper::<F>(), layout: layout::<F>() };

    /// # Safety
    /// As [`VTable::call`]; the payload is an `F`, and the entry fires once.
    unsafe fn call_once(entry: NonNull<Entry>, firing: &Firing<'_>) {
        // SAFETY: `begin` marks the callback as consumed in the step that allows this call. So it is taken once, and no thread drops
        // it in place.
        unsafe { ManuallyDrop::take(&mut *payload::<F>(entry))(firing) }
    }
}

#[inline]
fn start<F>(
    engine: &Engine,
    kind: Kind,
    manner: impl Into<Manner>,
    vtable: &'static VTable,
    (due, period): (Duration, Duration),
    f: F,
) -> OwnedEntry {
    let entry = allocate(engine.header(kind, manner, vtable), f);
    // SAFETY: just made; of its two references one is placed by `start`, the other is the owner's.
    unsafe {
        ops::start(entry, due, period);
        OwnedEntry::new(EntryRef::from_raw(entry))
    }
}

/// Makes and starts a timer whose callbacks may overlap.
#[inline]
pub(crate) fn overlapping<F>(
    engine: &Engine,
    manner: impl Into<Manner>,
    when: (Duration, Duration),
    callback: F,
) -> OwnedEntry
where
    F: Fn(&Firing<'_>) + Send + Sync + 'static,
{
    start(engine, Kind::Overlapping, manner, Calls::<F>::OVERLAPPING, when, callback)
}

/// Makes and starts a timer with one callback at a time.
#[inline]
pub(crate) fn exclusive<F>(
    engine: &Engine,
    manner: impl Into<Manner>,
    when: (Duration, Duration),
    callback: F,
) -> OwnedEntry
where
    F: FnMut(&Firing<'_>) + Send + 'static,
{
    start(engine, Kind::Exclusive, manner, Calls::<F>::EXCLUSIVE, when, callback)
}

/// Makes and starts a timer that fires once.
#[inline]
pub(crate) fn once<F>(engine: &Engine, due: Duration, callback: F) -> OwnedEntry
where
    F: FnOnce(&Firing<'_>) + Send + 'static,
{
    start(engine, Kind::Once, MissedTicks::default(), Calls::<F>::ONCE, (due, Duration::ZERO), callback)
}

// ---------------------------------------------------------------- references

/// One counted reference to an entry.
pub(crate) struct EntryRef(NonNull<Entry>);

// SAFETY: nodes are made for crossing threads: atomics, and fields under the lock of their shard. What the callback must
// be (`Send`, and `Sync` where it may overlap) is demanded where nodes are made.
unsafe impl Send for EntryRef {}
// SAFETY: as above.
unsafe impl Sync for EntryRef {}

impl EntryRef {
    /// # Safety
    /// The caller hands over a reference that it owns.
    #[inline]
    pub(crate) unsafe fn from_raw(node: NonNull<Entry>) -> Self {
        Self(node)
    }

    #[inline]
    pub(crate) fn get(&self) -> &Entry {
        // SAFETY: alive while the reference is counted.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> NonNull<Entry> {
        self.0
    }

    #[inline]
    pub(crate) fn shard(&self) -> &Shard {
        // SAFETY: a shard outlives its nodes.
        unsafe { self.get().extra().shard.as_ref() }
    }

    /// Names the node, for [`crate::user_code`].
    pub(crate) fn address(&self) -> *const () {
        self.0.as_ptr().cast_const().cast()
    }

    /// Gives the reference back without counting: somebody else owns it now.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<Entry> {
        let node = self.0;
        std::mem::forget(self);
        node
    }
}

impl Clone for EntryRef {
    fn clone(&self) -> Self {
        self.get().retain();
        Self(self.0)
    }
}

impl Drop for EntryRef {
    fn drop(&mut self) {
        // SAFETY: this is the reference given back, and it is not used afterwards.
        if unsafe { Entry::release(self.0) } {
            // SAFETY: that was the last one.
            unsafe { free(self.0, true) };
        }
    }
}

/// The reference of a handle: to drop it disposes the timer.
pub(crate) struct OwnedEntry {
    entry: ManuallyDrop<EntryRef>,
}

impl OwnedEntry {
    #[inline]
    pub(super) fn new(entry: EntryRef) -> Self {
        Self { entry: ManuallyDrop::new(entry) }
    }

    /// Gives up the handle; the timer is not disposed.
    pub(crate) fn into_entry(mut self) -> EntryRef {
        // SAFETY: taken once; the handle's own drop does not run.
        let entry = unsafe { ManuallyDrop::take(&mut self.entry) };
        std::mem::forget(self);
        entry
    }
}

impl std::ops::Deref for OwnedEntry {
    type Target = EntryRef;

    #[inline]
    fn deref(&self) -> &EntryRef {
        &self.entry
    }
}

impl Drop for OwnedEntry {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        ops::dispose_last(unsafe { ManuallyDrop::take(&mut self.entry) });
    }
}

/// Frees a node: drops what the callback still owns, then the memory, then leaves the shard if `depart` says so and it has not been
/// counted out before.
///
/// # Safety
/// The caller has the last reference, and holds no lock of this crate.
pub(super) unsafe fn free(node: NonNull<Entry>, release: bool) {
    // SAFETY: the last owner.
    unsafe {
        let &EntryMeta { shard, vtable } = node.as_ref().extra();
        let release = release && !(*node.as_ptr()).has_left();
        if let Some(drop_payload) = vtable.drop_payload {
            if node.as_ref().state.has_payload() {
                contained(|| inside(node.as_ptr().cast_const().cast(), || drop_payload(node)));
            }
        }
        deallocate(node, vtable.layout);
        if release {
            Shard::depart(shard);
        }
    }
}
