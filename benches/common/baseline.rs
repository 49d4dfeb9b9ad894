//! The baseline of creating, changing and disposing a timer: the least that any timer could do on
//! this machine.
//!
//! Steps: core number, clock, lock, link; lock, unlink; with or without an allocation. List and
//! node come from the crate. A timer also needs slots, alarms, state, references and a callback,
//! all of which are missing here.

#![allow(unsafe_code)] // the contract of the list
#![allow(dead_code)] // each bench uses only a part

use std::hint::black_box;
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use crate::common::clock_ns;
use crate::queue::list::List;
use crate::queue::node::Key;
use crate::queue::{Kind, MissedTicks, Node, TimerWheel};

/// A node of the size of a timer's.
type Plain = Node<[usize; 2]>;

const DUE_NS: u64 = 30_000_000_000;

/// A key lent by a wheel that stays: the locks here are the baseline's own.
static KEY: LazyLock<&Key> = LazyLock::new(|| Box::leak(Box::new(TimerWheel::<()>::new(0))).key());

/// A list per core, each behind its own lock.
pub(crate) struct Baseline {
    lists: Vec<CachePadded<Mutex<List<[usize; 2]>>>>,
}

// SAFETY: a node is reached only under the lock of its list, and only a single thread has its
// pointer.
unsafe impl Sync for Baseline {}

fn node() -> Plain {
    Node::with(1, Kind::Overlapping, MissedTicks::default(), [0; 2])
}

impl Baseline {
    pub(crate) fn new() -> Self {
        let cores = core_affinity::get_core_ids().map_or(1, |cores| cores.len());
        Self { lists: (0..cores).map(|_| CachePadded::new(Mutex::new(List::new()))).collect() }
    }

    fn here(&self) -> &Mutex<List<[usize; 2]>> {
        // SAFETY: no arguments.
        let core = unsafe { libc::sched_getcpu() } as usize;
        &self.lists[core % self.lists.len()]
    }

    /// Core number, clock, lock, link. Returns the list.
    ///
    /// # Safety
    /// `node` is in no list, and stays alive and in place until the returned list has unlinked it.
    unsafe fn link(&self, node: NonNull<Plain>) -> &Mutex<List<[usize; 2]>> {
        let key = *KEY;
        let list = self.here();
        let due = clock_ns() + DUE_NS;
        let mut links = list.lock();
        // SAFETY: the caller promises a live node that is in no list; the lock of the list is held.
        unsafe {
            node.as_ref().set_due(due, key);
            links.push(node, key);
        }
        list
    }

    /// Link and unlink an existing node.
    pub(crate) fn without_allocation(&self, times: u64) -> Duration {
        let plain = Box::new(node());
        let at = NonNull::from(&*plain);
        let start = Instant::now();
        for _ in 0..times {
            // SAFETY: the box outlives both calls, and the node is unlinked before it is linked
            // again.
            unsafe { self.link(black_box(at)).lock().unlink(at, *KEY) };
        }
        start.elapsed()
    }

    /// Allocate, link, unlink, free.
    pub(crate) fn with_allocation(&self, times: u64) -> Duration {
        let start = Instant::now();
        for _ in 0..times {
            let at = NonNull::from(Box::leak(Box::new(node())));
            // SAFETY: this thread alone has the pointer, and frees the node after it is unlinked.
            unsafe {
                self.link(black_box(at)).lock().unlink(at, *KEY);
                drop(Box::from_raw(at.as_ptr()));
            }
        }
        start.elapsed()
    }

    /// Allocate and link a node; unlink and free the node linked `lag` operations before.
    pub(crate) fn with_lag(&self, lag: usize, times: u64) -> Duration {
        let make = || {
            let at = NonNull::from(Box::leak(Box::new(node())));
            // SAFETY: `end` frees the node after it is unlinked.
            (at, unsafe { self.link(black_box(at)) })
        };
        let end = |(at, list): (NonNull<Plain>, &Mutex<List<[usize; 2]>>)| {
            // SAFETY: the node was linked in this list, and `end` is called once for each node.
            unsafe {
                list.lock().unlink(at, *KEY);
                drop(Box::from_raw(at.as_ptr()));
            }
        };
        let mut linked: Vec<_> = (0..lag).map(|_| make()).collect();
        let (start, mut next) = (Instant::now(), 0);
        for _ in 0..times {
            end(std::mem::replace(&mut linked[next], make()));
            next = if next + 1 == lag { 0 } else { next + 1 };
        }
        let took = start.elapsed();
        linked.into_iter().for_each(end);
        took
    }

    /// Clock, lock, unlink and link again.
    pub(crate) fn relink(&self, times: u64) -> Duration {
        self.relink_and(times, |_| {})
    }

    /// As [`Self::relink`], and calls `also` under the lock.
    pub(crate) fn relink_and(&self, times: u64, mut also: impl FnMut(u64)) -> Duration {
        let plain = Box::new(node());
        let (at, key) = (NonNull::from(&*plain), *KEY);
        // SAFETY: the box outlives the list's use of the node, which ends below.
        let list = unsafe { self.link(at) };
        let start = Instant::now();
        for _ in 0..times {
            let due = clock_ns() + DUE_NS;
            let mut links = black_box(list).lock();
            // SAFETY: the node is in this list, then in none, then in this list again.
            unsafe {
                links.unlink(at, key);
                plain.set_due(due, key);
                links.push(at, key);
            }
            also(due);
        }
        let took = start.elapsed();
        // SAFETY: the node is in this list.
        unsafe { list.lock().unlink(at, key) };
        took
    }
}
