//! Nodes as the engine knows them, and counted references to them.
//!
//! Ground rules. A node is freed by whoever gives the last reference back, with no lock held: what the callback owns is dropped
//! on that thread, and may do anything.

#![allow(unsafe_code)] // lifetime of nodes

use std::alloc::Layout;
use std::ptr::NonNull;

use crate::home::Home;
use crate::queue::Node;
use crate::timer::Tick;
use crate::user_code::{contained, inside};

/// What the engine keeps in a node: where it is at home and what it is.
pub(crate) struct Hook {
    pub(super) home: NonNull<Home>,
    pub(super) vtable: &'static VTable,
}

// SAFETY: homes are shared between threads, and outlive their nodes (see `home`).
unsafe impl Send for Hook {}
// SAFETY: as above.
unsafe impl Sync for Hook {}

pub(crate) type TimerNode = Node<Hook>;

/// What can be done with the callback that stands behind a node's header.
pub(crate) struct VTable {
    /// Runs the callback. Caller: between `begin` and `end` of the state word, which see to exclusiveness.
    pub(crate) call: unsafe fn(NonNull<TimerNode>, &Tick<'_>),
    /// Drops the callback in place; `None`: there is nothing to drop. Caller: once, when nothing runs and nothing will.
    pub(crate) drop_payload: Option<unsafe fn(NonNull<TimerNode>)>,
    /// What node and callback were allocated with.
    pub(crate) layout: Layout,
}

/// One counted reference to a node.
pub(crate) struct NodeRef(NonNull<TimerNode>);

// SAFETY: nodes are made for crossing threads: atomics, and fields under the lock of their home. What the callback must
// be (`Send`, and `Sync` where it may overlap) is demanded where nodes are made.
unsafe impl Send for NodeRef {}
// SAFETY: as above.
unsafe impl Sync for NodeRef {}

impl NodeRef {
    /// # Safety
    /// The caller hands over a reference that it owns.
    pub(crate) unsafe fn from_raw(node: NonNull<TimerNode>) -> Self {
        Self(node)
    }

    pub(crate) fn get(&self) -> &TimerNode {
        // SAFETY: alive while the reference is counted.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn as_ptr(&self) -> NonNull<TimerNode> {
        self.0
    }

    pub(crate) fn home(&self) -> &Home {
        // SAFETY: a home outlives its nodes.
        unsafe { self.get().extra().home.as_ref() }
    }

    /// Names the node, for [`crate::user_code`].
    pub(crate) fn address(&self) -> *const () {
        self.0.as_ptr().cast_const().cast()
    }

    /// Gives the reference back without counting: somebody else owns it now.
    pub(crate) fn into_raw(self) -> NonNull<TimerNode> {
        let node = self.0;
        std::mem::forget(self);
        node
    }
}

impl Clone for NodeRef {
    fn clone(&self) -> Self {
        self.get().retain();
        Self(self.0)
    }
}

impl Drop for NodeRef {
    fn drop(&mut self) {
        // SAFETY: this is the reference given back, and it is not used afterwards.
        if unsafe { TimerNode::release(self.0) } {
            // SAFETY: that was the last one.
            unsafe { free(self.0, true) };
        }
    }
}

/// Frees a node: drops what the callback still owns, then the memory, then leaves the home if `depart` says so and it has not been
/// counted out before.
///
/// # Safety
/// Nobody else has a reference, and no lock of ours is held.
pub(super) unsafe fn free(node: NonNull<TimerNode>, depart: bool) {
    // SAFETY: the last owner.
    unsafe {
        let &Hook { home, vtable } = node.as_ref().extra();
        let depart = depart && !(*node.as_ptr()).has_left();
        if let Some(drop_payload) = vtable.drop_payload {
            if node.as_ref().state.has_payload() {
                contained(|| inside(node.as_ptr().cast_const().cast(), || drop_payload(node)));
            }
        }
        crate::carrier::free(node, vtable.layout);
        if depart {
            Home::depart(home);
        }
    }
}
