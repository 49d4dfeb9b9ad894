//! The intrusive doubly-linked list: a head pointer here, the links in the nodes.
//!
//! Ground rules. A list owns nothing and allocates nothing; whoever files a node keeps it alive until it is unlinked.
//! All functions touch the links of the node and of its direct neighbours, so the caller holds the lock of the queue
//! that the list belongs to; the [`Key`] argument is the proof. No reference to a node outlives a call.
//!
//! A list has no tail and keeps no order: nothing in the queue asks for one (due points order the firings, arming
//! numbers break ties), and a head alone keeps a slot at 16 bytes.

use std::ptr::NonNull;

use super::node::{Key, Node};

/// Head of a chain of nodes.
pub(crate) struct List<X> {
    head: Option<NonNull<Node<X>>>,
}

impl<X> List<X> {
    pub(crate) const fn new() -> Self {
        Self { head: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_none()
    }

    /// Links `node` in front.
    ///
    /// # Safety
    /// `node` is alive, stays alive until it is unlinked, and is linked in no list.
    #[allow(unsafe_code)] // the links are raw pointers by design
    pub(crate) unsafe fn push(&mut self, node: NonNull<Node<X>>, key: &Key) {
        // SAFETY: alive by the contract; all linked nodes are alive by the same contract of their own `push`.
        unsafe {
            let links = node.as_ref().links(key);
            debug_assert!(links.next.get().is_none() && links.prev.get().is_none(), "a node is in one list at most");
            links.next.set(self.head);
            if let Some(old) = self.head {
                old.as_ref().links(key).prev.set(Some(node));
            }
        }
        self.head = Some(node);
    }

    /// Unlinks `node` and clears its links.
    ///
    /// # Safety
    /// `node` is linked in this very list.
    #[allow(unsafe_code)] // the links are raw pointers by design
    pub(crate) unsafe fn unlink(&mut self, node: NonNull<Node<X>>, key: &Key) {
        // SAFETY: linked here, so the node and both neighbours are alive (contract of `push`).
        unsafe {
            let links = node.as_ref().links(key);
            let (next, prev) = (links.next.take(), links.prev.take());
            match prev {
                Some(prev) => prev.as_ref().links(key).next.set(next),
                None => {
                    debug_assert_eq!(self.head, Some(node), "a node without predecessor is the head of its list");
                    self.head = next;
                }
            }
            if let Some(next) = next {
                next.as_ref().links(key).prev.set(prev);
            }
        }
    }

    /// Unlinks and returns the first node.
    #[allow(unsafe_code)] // the links are raw pointers by design
    pub(crate) fn pop(&mut self, key: &Key) -> Option<NonNull<Node<X>>> {
        let node = self.head?;
        // SAFETY: the head of this list is linked in it.
        unsafe { self.unlink(node, key) };
        Some(node)
    }

    /// Whether `node` is the first of this list.
    pub(crate) fn leads(&self, node: NonNull<Node<X>>) -> bool {
        self.head == Some(node)
    }

    /// Takes the whole chain, leaving this list empty.
    pub(crate) fn take(&mut self) -> Self {
        Self { head: self.head.take() }
    }

    /// Calls `visit` for each node, front to back.
    #[allow(unsafe_code)] // the links are raw pointers by design
    pub(crate) fn for_each(&self, key: &Key, mut visit: impl FnMut(NonNull<Node<X>>)) {
        let mut at = self.head;
        while let Some(node) = at {
            visit(node);
            // SAFETY: linked here, hence alive.
            at = unsafe { node.as_ref().links(key).next.get() };
        }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    fn nodes(n: usize) -> Vec<Node<usize>> {
        (0..n).map(|i| Node::new(0, i)).collect()
    }

    fn contents(list: &List<usize>, key: &Key) -> Vec<usize> {
        let mut seen = Vec::new();
        // SAFETY: the nodes outlive the list in every test.
        list.for_each(key, |n| seen.push(unsafe { *n.as_ref().extra() }));
        seen
    }

    #[test]
    fn unlinks_first_middle_last_and_only() {
        let key = Key::for_tests();
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let nodes = nodes(3);
            let mut list = List::new();
            for node in &nodes {
                // SAFETY: nodes outlive the list; each is pushed once.
                unsafe { list.push(NonNull::from(node), &key) };
            }
            let mut left = vec![2, 1, 0];
            assert_eq!(contents(&list, &key), left);
            for gone in order {
                // SAFETY: still linked.
                unsafe { list.unlink(NonNull::from(&nodes[gone]), &key) };
                left.retain(|&i| i != gone);
                assert_eq!(contents(&list, &key), left);
            }
            assert!(list.is_empty());
        }
    }

    #[test]
    fn take_moves_the_chain_and_pop_empties_it() {
        let key = Key::for_tests();
        let nodes = nodes(4);
        let mut list = List::new();
        for node in &nodes {
            // SAFETY: nodes outlive the list; each is pushed once.
            unsafe { list.push(NonNull::from(node), &key) };
        }
        let mut taken = list.take();
        assert!(list.is_empty());
        let mut seen = Vec::new();
        while let Some(node) = taken.pop(&key) {
            // SAFETY: the nodes are alive.
            seen.push(unsafe { *node.as_ref().extra() });
        }
        assert_eq!(seen, [3, 2, 1, 0]);
        assert!(taken.is_empty());
    }
}
