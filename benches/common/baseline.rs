//! The baseline under creating, changing and disposing a timer: what cannot be left out of a queue per core behind a lock.
//!
//! Core number, clock, lock, link; lock, unlink; with or without an allocation. The list and the node are those of the
//! crate, everything else that a timer needs (due points, rings, alarms, state, references, a callback) is missing.

#![allow(unsafe_code)] // the contract of the list
#![allow(dead_code)] // no bench uses everything

use std::hint::black_box;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use crate::common::clock_ns;
use crate::queue::list::List;
use crate::queue::node::Key;
use crate::queue::{Kind, MissedTicks, Node};

/// As large as the node of a timer.
type Plain = Node<[usize; 2]>;

const DUE_NS: u64 = 30_000_000_000;

/// One list per core, each behind its lock.
pub(crate) struct Baseline {
    lists: Vec<CachePadded<Mutex<List<[usize; 2]>>>>,
}

// SAFETY: nodes are reached under the lock of the one list that they are in, and each is known to one thread only.
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

    /// Core number, clock, lock, link.
    ///
    /// # Safety
    /// `node` is alive, and linked nowhere, until the list it goes to has unlinked it.
    unsafe fn link(&self, node: NonNull<Plain>) -> &Mutex<List<[usize; 2]>> {
        let key = Key::new();
        let list = self.here();
        let due = clock_ns() + DUE_NS;
        let mut links = list.lock();
        // SAFETY: the caller's contract.
        unsafe {
            node.as_ref().set_due(due, &key);
            links.push(node, &key);
        }
        list
    }

    /// Link and unlink a node that is there already.
    pub(crate) fn without_allocation(&self, times: u64) -> Duration {
        let plain = Box::new(node());
        let at = NonNull::from(&*plain);
        let start = Instant::now();
        for _ in 0..times {
            // SAFETY: the box outlives both calls, and the node is unlinked before it is linked again.
            unsafe { self.link(black_box(at)).lock().unlink(at, &Key::new()) };
        }
        start.elapsed()
    }

    /// Allocate, link, unlink, free.
    pub(crate) fn with_allocation(&self, times: u64) -> Duration {
        let start = Instant::now();
        for _ in 0..times {
            let at = NonNull::from(Box::leak(Box::new(node())));
            // SAFETY: freed after it is unlinked, by the one who knows it.
            unsafe {
                self.link(black_box(at)).lock().unlink(at, &Key::new());
                drop(Box::from_raw(at.as_ptr()));
            }
        }
        start.elapsed()
    }

    /// Allocate and link; unlink and free the one that was linked `lag` before.
    pub(crate) fn with_lag(&self, lag: usize, times: u64) -> Duration {
        let make = || {
            let at = NonNull::from(Box::leak(Box::new(node())));
            // SAFETY: freed by `end`, after it is unlinked.
            (at, unsafe { self.link(black_box(at)) })
        };
        let end = |(at, list): (NonNull<Plain>, &Mutex<List<[usize; 2]>>)| {
            // SAFETY: each is ended once, and was linked in that list.
            unsafe {
                list.lock().unlink(at, &Key::new());
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

    /// As [`Self::relink`], with something done under the lock as well.
    pub(crate) fn relink_and(&self, times: u64, mut also: impl FnMut(u64)) -> Duration {
        let plain = Box::new(node());
        let (at, key) = (NonNull::from(&*plain), Key::new());
        // SAFETY: the box outlives the list's use of the node, which ends below.
        let list = unsafe { self.link(at) };
        let start = Instant::now();
        for _ in 0..times {
            let due = clock_ns() + DUE_NS;
            let mut links = black_box(list).lock();
            // SAFETY: linked here, then nowhere, then here again.
            unsafe {
                links.unlink(at, &key);
                plain.set_due(due, &key);
                links.push(at, &key);
            }
            also(due);
        }
        let took = start.elapsed();
        // SAFETY: linked here.
        unsafe { list.lock().unlink(at, &key) };
        took
    }
}
