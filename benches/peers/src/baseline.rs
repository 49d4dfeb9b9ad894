//! The baseline under making and ending a timer: a list per core behind a lock, and nothing else.
//!
//! Clock, core number, lock, link, unlock; lock, unlink, unlock. No order, no wheel, no alarm, no state, no callback.
//!
//! Ground rules. Nodes are linked and unlinked with the lock of their list held; whoever links one keeps it where it is
//! until it is unlinked.

#![allow(unsafe_code)] // an intrusive list

use std::hint::black_box;
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use parking_lot::Mutex;

use crate::measure::{clock_ns, lagged, repeat};

/// As large as a timer with a callback of a word.
struct Node {
    next: *mut Node,
    prev: *mut Node,
    due: u64,
    _rest: [u64; 6],
}

impl Node {
    /// Not all zero: the compiler would ask for zeroed memory then, which comes from the allocator's slow path.
    fn new() -> Self {
        Self { next: null_mut(), prev: null_mut(), due: u64::MAX, _rest: [0; 6] }
    }
}

/// A list of one core. Aligned so that two never share a cache line.
#[repr(align(128))]
struct List {
    head: Mutex<Head>,
}

struct Head(*mut Node);

// SAFETY: nodes are reached under the list's lock only.
unsafe impl Send for Head {}

impl Head {
    /// # Safety
    /// `node` is alive and in no list, and stays where it is until it is unlinked.
    unsafe fn link(&mut self, node: NonNull<Node>) {
        let at = node.as_ptr();
        // SAFETY: the contract; the old head is linked, hence alive.
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
        // SAFETY: linked, and so are its neighbours.
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

// SAFETY: whoever has it is the one who ends the node, under the list's lock.
unsafe impl Send for Linked<'_> {}

impl Linked<'_> {
    /// Unlinks and frees it.
    pub(crate) fn end(self) {
        // SAFETY: made and linked by `Baseline::make`, and ended once.
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

    /// Links `node` into the list of this core, and says which one that is.
    ///
    /// # Safety
    /// As [`Head::link`].
    unsafe fn link(&self, node: NonNull<Node>, after_ns: u64) -> &List {
        // SAFETY: no arguments.
        let core = unsafe { libc::sched_getcpu() } as usize;
        let list = &self.lists[core % self.lists.len()];
        // SAFETY: not linked yet, so this thread's alone.
        unsafe { (*node.as_ptr()).due = clock_ns() + after_ns };
        // SAFETY: the contract.
        unsafe { list.head.lock().link(node) };
        list
    }

    /// Allocate and link.
    pub(crate) fn make(&self, after: Duration) -> Linked<'_> {
        let node = NonNull::from(Box::leak(Box::new(Node::new())));
        // SAFETY: freed by `Linked::end`, after it has been unlinked.
        Linked { node, list: unsafe { self.link(black_box(node), after.as_nanos() as u64) } }
    }

    /// Link and unlink a node that is there already.
    pub(crate) fn without_allocation(&self, after: Duration, times: u64) -> Duration {
        let mut node = Node::new();
        let at = NonNull::from(&mut node);
        let after_ns = after.as_nanos() as u64;
        repeat(times, || {
            // SAFETY: the node outlives both calls and is linked once at a time.
            unsafe { self.link(black_box(at), after_ns).head.lock().unlink(at) };
        })
    }

    /// Allocate, link, unlink, free.
    pub(crate) fn with_allocation(&self, after: Duration, times: u64) -> Duration {
        repeat(times, || self.make(after).end())
    }

    /// Allocate and link; unlink and free the one that was linked `lag` before.
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
            // SAFETY: linked here before and after, and changed under the lock.
            unsafe {
                head.unlink(at);
                (*at.as_ptr()).due = due;
                head.link(at);
            }
        });
        // SAFETY: linked here.
        unsafe { list.head.lock().unlink(at) };
        took
    }
}
