//! A node and its payload, in one allocation.
//!
//! Ground rules. The engine knows nodes by their header alone; the rooms that make timers (timers, delays) know the type
//! behind it and hand the engine a table of functions for it. The payload is a `ManuallyDrop`: the state word decides who
//! drops it, and when.

#![allow(unsafe_code)] // the payload behind the node

use std::alloc::{Layout, dealloc};
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::engine::TimerNode;

#[repr(C)]
struct Carrier<P> {
    node: TimerNode,
    payload: UnsafeCell<ManuallyDrop<P>>,
}

/// Allocates a node with its payload. Whoever has the last reference frees it with [`free`].
#[inline]
pub(crate) fn carry<P>(node: TimerNode, payload: P) -> NonNull<TimerNode> {
    let carrier = Box::new(Carrier { node, payload: UnsafeCell::new(ManuallyDrop::new(payload)) });
    NonNull::from(Box::leak(carrier)).cast()
}

/// The payload of a node.
///
/// # Safety
/// `node` was made by [`carry`] with a `P`, and is alive.
#[inline]
pub(crate) unsafe fn payload<P>(node: NonNull<TimerNode>) -> *mut ManuallyDrop<P> {
    // SAFETY: the node is the first field of the carrier (`repr(C)`), and the pointer was made from the whole carrier.
    unsafe { UnsafeCell::raw_get(&raw const (*node.cast::<Carrier<P>>().as_ptr()).payload) }
}

/// What drops a payload of this type, if there is anything to drop.
pub(crate) const fn dropper<P>() -> Option<unsafe fn(NonNull<TimerNode>)> {
    if std::mem::needs_drop::<P>() { Some(drop_payload::<P>) } else { None }
}

/// Drops the payload in place.
///
/// # Safety
/// As [`payload`]; called once, and nobody uses the payload any more.
pub(crate) unsafe fn drop_payload<P>(node: NonNull<TimerNode>) {
    // SAFETY: the contract.
    unsafe { ManuallyDrop::drop(&mut *payload::<P>(node)) }
}

/// What [`carry`] allocates for this payload.
pub(crate) const fn layout<P>() -> Layout {
    Layout::new::<Carrier<P>>()
}

/// Frees the memory; the payload is not dropped.
///
/// # Safety
/// `node` was made by [`carry`] with a payload of this [`layout`]; the caller has the last reference.
#[inline]
pub(crate) unsafe fn free(node: NonNull<TimerNode>, layout: Layout) {
    // SAFETY: a box leaked by `carry`, so allocated with this layout; nobody else knows it any more, and the header has
    // nothing to drop.
    unsafe { dealloc(node.as_ptr().cast(), layout) }
}

const _: () = assert!(!std::mem::needs_drop::<TimerNode>(), "`free` drops nothing");
