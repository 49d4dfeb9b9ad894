//! The baseline of making and ending a timer: a list per core behind a lock, the least that any
//! timer could do on this machine.
//!
//! Steps: clock, core number, lock, link, unlock; lock, unlink, unlock. No order, no wheel, no
//! alarm, no state, no callback.
//!
//! Ground rules. Nodes are linked and unlinked with the lock of their list held. The thread that
//! links a node keeps it in place until the node is unlinked.

#![allow(unsafe_code)] // an intrusive list

use std::hint::black_box;
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use parking_lot::Mutex;

use crate::measure::{clock_ns, lagged, repeat};

/// A node of the size of a timer with a callback of one word.
struct Node {
    next: *mut Node,
    prev: *mut Node,
    due: u64,
    _rest: [u64; 6],
}

impl Node {
    /// Not all zero: for zeroes the compiler would call the allocator's slow path for zeroed
    /// memory.
    fn new() -> Self {
        Self { next: null_mut(), prev: null_mut(), due: u64::MAX, _rest: [0; 6] }
    }
}

/// The list of a core. Aligned, so two lists never share a cache line.
#[repr(align(128))]
struct List {
    head: Mutex<Head>,
}

struct Head(*mut Node);

// SAFETY: the nodes are reached only with the list's lock held.
unsafe impl Send for Head {}

impl Head {
    /// # Safety
    /// `node` is alive and in no list, and stays in place until it is unlinked.
    unsafe fn link(&mut self, node: NonNull<Node>) {
        let at = node.as_ptr();
        // SAFETY: the caller promises a live node that is in no list; the old head is linked, hence
        // alive.
        unsafe {
            (*at).next = self.0;
            (*at).prev = null_mut();
            if let Some(old) = self.0.as_mut() {
                old.prev = at;
            }
        }
        self.0 = at;
    }

    /// # Safety
    /// `node` is linked in this list.
    unsafe fn unlink(&mut self, node: NonNull<Node>) {
        // SAFETY: the caller promises a linked node; its neighbours are linked too, hence alive.
        unsafe {
            let (next, prev) = ((*node.as_ptr()).next, (*node.as_ptr()).prev);
            match prev.as_mut() {
                Some(prev) => prev.next = next,
                None => self.0 = next,
            }
            if let Some(next) = next.as_mut() {
                next.prev = prev;
            }
        }
    }
}

/// One list per core.
pub(crate) struct Baseline {
    lists: Vec<List>,
}

/// A node in its list.
pub(crate) struct Linked<'a> {
    node: NonNull<Node>,
    list: &'a List,
}

// SAFETY: the owner of this value alone ends the node, with the list's lock held.
unsafe impl Send for Linked<'_> {}

impl Linked<'_> {
    /// Unlinks and frees the node.
    pub(crate) fn end(self) {
        // SAFETY: `Baseline::make` allocated and linked the node; `end` takes `self`, so it runs
        // once.
        unsafe {
            self.list.head.lock().unlink(self.node);
            drop(Box::from_raw(self.node.as_ptr()));
        }
    }
}

impl Baseline {
    pub(crate) fn new() -> Self {
        let cores = core_affinity::get_core_ids().map_or(1, |cores| cores.len());
        Self { lists: (0..cores).map(|_| List { head: Mutex::new(Head(null_mut())) }).collect() }
    }

    /// Links `node` into the list of this core, and returns the list.
    ///
    /// # Safety
    /// As [`Head::link`].
    unsafe fn link(&self, node: NonNull<Node>, after_ns: u64) -> &List {
        // SAFETY: no arguments.
        let core = unsafe { libc::sched_getcpu() } as usize;
        let list = &self.lists[core % self.lists.len()];
        // SAFETY: the caller promises a node in no list, so only this thread reaches it.
        unsafe { (*node.as_ptr()).due = clock_ns() + after_ns };
        // SAFETY: the caller keeps the contract of `Head::link`; the lock is held.
        unsafe { list.head.lock().link(node) };
        list
    }

    /// Allocate and link.
    pub(crate) fn make(&self, after: Duration) -> Linked<'_> {
        let node = NonNull::from(Box::leak(Box::new(Node::new())));
        // SAFETY: `Linked::end` frees the node after it is unlinked.
        Linked { node, list: unsafe { self.link(black_box(node), after.as_nanos() as u64) } }
    }

    /// Link and unlink an existing node.
    pub(crate) fn without_allocation(&self, after: Duration, times: u64) -> Duration {
        let mut node = Node::new();
        let at = NonNull::from(&mut node);
        let after_ns = after.as_nanos() as u64;
        repeat(times, || {
            // SAFETY: the node outlives both calls, and is unlinked before it is linked again.
            unsafe { self.link(black_box(at), after_ns).head.lock().unlink(at) };
        })
    }

    /// Allocate, link, unlink, free.
    pub(crate) fn with_allocation(&self, after: Duration, times: u64) -> Duration {
        repeat(times, || self.make(after).end())
    }

    /// Allocate and link a node; unlink and free the node linked `lag` operations before.
    pub(crate) fn with_lag(&self, after: Duration, lag: usize, times: u64) -> Duration {
        lagged(&mut (), lag, times, |()| self.make(after), |(), linked| linked.end())
    }

    /// Unlink and link again.
    pub(crate) fn relink(&self, after: Duration, times: u64) -> Duration {
        let mut node = Node::new();
        let at = NonNull::from(&mut node);
        let after_ns = after.as_nanos() as u64;
        // SAFETY: the node outlives its time in the list, which ends below.
        let list = unsafe { self.link(at, after_ns) };
        let took = repeat(times, || {
            let due = clock_ns() + after_ns;
            let mut head = black_box(list).head.lock();
            // SAFETY: the node is in this list before and after, and is changed with the lock held.
            unsafe {
                head.unlink(at);
                (*at.as_ptr()).due = due;
                head.link(at);
            }
        });
        // SAFETY: the node is in this list.
        unsafe { list.head.lock().unlink(at) };
        took
    }
}
