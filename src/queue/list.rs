//! The intrusive doubly-linked list: head pointers here, the links in the nodes.
//!
//! Ground rules. A list owns nothing and allocates nothing; the caller that pushes a node keeps the
//! node alive until it is unlinked. All functions touch the links of the node and of its direct
//! neighbours, so the caller holds the lock of the list's queue; the [`Key`] argument is the proof.
//! No reference to a node outlives a call.
//!
//! A list has no tail and keeps no order, for the queue needs none: due points order the firings,
//! arming numbers break ties. So a list can be several chains, the *stripes*; a node's address
//! picks the stripe. Timers fire in a different order than they were created in, so walking a
//! single chain waits for memory at each step: only a loaded node tells where its successor is. Of
//! several chains the processor fetches the next nodes side by side.

#![allow(unsafe_code)] // the links are raw pointers by design

use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::ptr::NonNull;

use super::node::{Key, Node};
use crate::sys::os::fetch_line;

/// More stripes fetch more nodes at once, and make each slot larger: docs/BENCHMARKS.md has figures
/// of one, four and eight.
const STRIPES: usize = 4;

/// The first node of each stripe.
type Heads<X> = [Option<NonNull<Node<X>>>; STRIPES];

/// The stripe of a node.
#[inline]
fn stripe<X>(node: NonNull<Node<X>>) -> usize {
    // Allocations of 80 or 96 bytes in a row take turns.
    (node.addr().get() >> 6) % STRIPES
}

/// Prefetches a node: two cache lines, since a node is wider than a line and need not begin at a
/// line.
#[inline]
fn fetch<X>(node: Option<NonNull<Node<X>>>) {
    if let Some(node) = node {
        let (first, second) = (node.as_ptr().cast::<u8>(), node.as_ptr().cast::<u8>().wrapping_add(64));
        fetch_line(first);
        fetch_line(second);
    }
}

/// A node that is linked for `'a`.
pub(crate) struct Linked<'a, X> {
    node: NonNull<Node<X>>,
    of: PhantomData<&'a Node<X>>,
}

impl<X> Clone for Linked<'_, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X> Copy for Linked<'_, X> {}

impl<X> Linked<'_, X> {
    /// The pointer with which the node was pushed.
    pub(crate) fn as_ptr(self) -> NonNull<Node<X>> {
        self.node
    }
}

impl<X> std::ops::Deref for Linked<'_, X> {
    type Target = Node<X>;

    fn deref(&self) -> &Node<X> {
        // SAFETY: linked for as long as this value lives, hence alive (condition of `push`).
        unsafe { self.node.as_ref() }
    }
}

/// Heads of chains of nodes.
pub(crate) struct List<X> {
    heads: Heads<X>,
}

impl<X> List<X> {
    pub(crate) const fn new() -> Self {
        Self { heads: [None; STRIPES] }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.heads == [None; STRIPES]
    }

    /// Links `node` in.
    ///
    /// # Safety
    /// `node` is alive, stays alive until it is unlinked, and is linked in no list.
    #[inline]
    pub(crate) unsafe fn push(&mut self, node: NonNull<Node<X>>, key: &Key) {
        let head = &mut self.heads[stripe(node)];
        // SAFETY: the caller says that `node` is alive; the callers of earlier pushes say the same
        // of all linked nodes.
        unsafe {
            let links = node.as_ref().links(key);
            debug_assert!(links.next.get().is_none() && links.prev.get().is_none(), "a node is in one list at most");
            links.next.set(*head);
            if let Some(old) = *head {
                old.as_ref().links(key).prev.set(Some(node));
            }
        }
        *head = Some(node);
    }

    /// Unlinks `node` and clears its links. True when its stripe is empty now.
    ///
    /// # Safety
    /// `node` is linked in this list, or in a [`TakenList`] in which it is no head (I16).
    #[inline]
    pub(crate) unsafe fn unlink(&mut self, node: NonNull<Node<X>>, key: &Key) -> bool {
        // SAFETY: linked, so the node and both neighbours are alive (condition of `push`).
        unsafe {
            let links = node.as_ref().links(key);
            let (next, prev) = (links.next.take(), links.prev.take());
            match prev {
                Some(prev) => prev.as_ref().links(key).next.set(next),
                None => {
                    let head = &mut self.heads[stripe(node)];
                    debug_assert_eq!(*head, Some(node), "a node without predecessor is the head of its chain");
                    *head = next;
                }
            }
            if let Some(next) = next {
                next.as_ref().links(key).prev.set(prev);
            }
            next.is_none() && prev.is_none()
        }
    }

    /// Takes all nodes, leaving this list, that of `slot`, empty.
    pub(crate) fn take(&mut self, slot: usize) -> TakenList<X> {
        let list = std::mem::replace(self, Self::new());
        list.heads.into_iter().for_each(fetch);
        TakenList { list, turn: 0, slot }
    }

    /// Calls `visit` for each node, until `visit` breaks.
    pub(crate) fn visit<'a>(
        &'a self,
        key: &Key,
        mut visit: impl FnMut(Linked<'a, X>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for head in &self.heads {
            let mut at = *head;
            while let Some(node) = at {
                // Unlinking needs a `&mut` of the list.
                let linked = Linked { node, of: PhantomData };
                visit(linked)?;
                at = linked.links(key).next.get();
            }
        }
        ControlFlow::Continue(())
    }

    /// Calls `visit` for each node.
    #[cfg(any(test, timerqueue_check))]
    pub(crate) fn for_each(&self, key: &Key, mut visit: impl FnMut(NonNull<Node<X>>)) {
        let mut before = None;
        let _ = self.visit(key, |linked| {
            let (node, prev) = (linked.as_ptr(), linked.links(key).prev.get());
            let is_head = self.heads[stripe(node)] == Some(node);
            assert!(is_head || prev.is_some() && prev == before, "both links agree");
            before = Some(node);
            visit(node);
            ControlFlow::Continue(())
        });
    }
}

/// A chain taken out of a list, to be popped node by node, from each stripe in turn.
///
/// The backward link of a head may be stale (I16): clearing it earlier would load the node before
/// its turn.
pub(crate) struct TakenList<X> {
    pub(super) list: List<X>,
    /// The stripe to be popped next.
    turn: usize,
    /// Where the nodes were taken.
    slot: usize,
}

impl<X> TakenList<X> {
    pub(crate) const fn new() -> Self {
        Self { list: List::new(), turn: 0, slot: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether nodes taken from this slot are left.
    #[inline]
    pub(crate) fn has_nodes_of(&self, slot: usize) -> bool {
        self.slot == slot && !self.is_empty()
    }

    /// Unlinks and returns a node.
    #[inline]
    pub(crate) fn pop(&mut self, key: &Key) -> Option<NonNull<Node<X>>> {
        let stripe =
            (self.turn..self.turn + STRIPES).find(|stripe| self.list.heads[stripe % STRIPES].is_some())? % STRIPES;
        let node = self.list.heads[stripe]?;
        self.turn = (stripe + 1) % STRIPES;
        self.pop_head(stripe, node, key);
        Some(node)
    }

    /// Unlinks `node` if `node` is the head of a stripe. True: it was.
    #[inline]
    pub(crate) fn unlink_leader(&mut self, node: NonNull<Node<X>>, key: &Key) -> bool {
        let stripe = stripe(node);
        let leads = self.list.heads[stripe] == Some(node);
        if leads {
            self.pop_head(stripe, node, key);
        }
        leads
    }

    /// Unlinks `node`, the head of `stripe`, and prefetches its successor.
    #[inline]
    fn pop_head(&mut self, stripe: usize, node: NonNull<Node<X>>, key: &Key) {
        debug_assert_eq!(self.list.heads[stripe % STRIPES], Some(node));
        // SAFETY: linked here, hence alive (condition of `push`).
        let links = unsafe { node.as_ref().links(key) };
        links.prev.set(None);
        let next = links.next.take();
        fetch(next);
        self.list.heads[stripe % STRIPES] = next;
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    fn nodes(n: usize) -> Vec<Node<usize>> {
        (0..n).map(|i| Node::new(0, i)).collect()
    }

    fn contents(walk: impl FnOnce(&mut dyn FnMut(NonNull<Node<usize>>))) -> Vec<usize> {
        let mut seen = Vec::new();
        // SAFETY: the nodes outlive the list in every test.
        walk(&mut |node| seen.push(unsafe { *node.as_ref().extra() }));
        seen.sort_unstable();
        seen
    }

    fn filled(nodes: &[Node<usize>], key: &Key) -> List<usize> {
        let mut list = List::new();
        for node in nodes {
            // SAFETY: nodes outlive the list in every test; each is pushed once.
            unsafe { list.push(NonNull::from(node), key) };
        }
        list
    }

    /// All permutations of `n` numbers.
    fn orders(n: usize) -> Vec<Vec<usize>> {
        if n == 0 {
            return vec![Vec::new()];
        }
        let shorter = orders(n - 1);
        shorter.iter().flat_map(|order| (0..n).map(move |at| [&order[..at], &[n - 1], &order[at..]].concat())).collect()
    }

    /// Several to a stripe: the first, middle, last and only node of a stripe leave in all orders.
    const NODES: usize = 6;

    #[test]
    fn unlinks_in_any_order() {
        let key = Key::for_tests();
        let nodes = nodes(NODES);
        for order in orders(NODES) {
            let mut list = filled(&nodes, &key);
            let mut left: Vec<usize> = (0..NODES).collect();
            for gone in order {
                let at = NonNull::from(&nodes[gone]);
                // SAFETY: still linked.
                let emptied = unsafe { list.unlink(at, &key) };
                left.retain(|&i| i != gone);
                assert_eq!(emptied, !left.iter().any(|&i| stripe(NonNull::from(&nodes[i])) == stripe(at)));
                assert_eq!(contents(|visit| list.for_each(&key, visit)), left);
            }
            assert!(list.is_empty());
        }
    }

    /// Some nodes are popped, the rest are unlinked, from the front of a stripe and from behind.
    #[test]
    fn a_chain_is_popped_while_nodes_leave_it() {
        let key = Key::for_tests();
        let nodes = nodes(NODES);
        for order in orders(NODES) {
            let mut list = filled(&nodes, &key);
            let mut chain = list.take(7);
            assert!(list.is_empty());
            let mut left: Vec<usize> = (0..NODES).collect();
            for (i, gone) in order.into_iter().enumerate() {
                let gone = if i % 2 == 0 || !left.contains(&gone) {
                    let Some(node) = chain.pop(&key) else { break };
                    // SAFETY: the nodes are alive.
                    unsafe { *node.as_ref().extra() }
                } else {
                    let node = NonNull::from(&nodes[gone]);
                    if !chain.unlink_leader(node, &key) {
                        // SAFETY: linked in the chain, and no head, as tested above.
                        unsafe { list.unlink(node, &key) };
                    }
                    gone
                };
                left.retain(|&i| i != gone);
                let links = nodes[gone].links(&key);
                assert!(links.next.get().is_none() && links.prev.get().is_none());
                assert_eq!(contents(|visit| chain.list.for_each(&key, visit)), left);
            }
            assert!(chain.is_empty() && chain.pop(&key).is_none() && list.is_empty());
        }
    }
}
