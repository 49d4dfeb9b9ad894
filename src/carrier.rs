//! A node and its payload, in one allocation.
//!
//! Ground rules. The engine knows nodes by their header alone; the rooms that make timers (timers, delays) know the type
//! behind it and hand the engine a table of functions for it. The payload is a `ManuallyDrop`: the state word decides who
//! drops it, and when.

#![allow(unsafe_code)] // the payload behind the node

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

/// Drops the payload in place.
///
/// # Safety
/// As [`payload`]; called once, and nobody uses the payload any more.
pub(crate) unsafe fn drop_payload<P>(node: NonNull<TimerNode>) {
    // SAFETY: the contract.
    unsafe { ManuallyDrop::drop(&mut *payload::<P>(node)) }
}

/// Frees the memory; the payload is not dropped.
///
/// # Safety
/// As [`payload`]; the caller has the last reference.
pub(crate) unsafe fn free<P>(node: NonNull<TimerNode>) {
    // SAFETY: leaked by `carry`, and nobody else knows it any more.
    drop(unsafe { Box::from_raw(node.cast::<Carrier<P>>().as_ptr()) });
}
