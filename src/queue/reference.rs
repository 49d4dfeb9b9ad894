//! The reference model: a timer queue as in .NET, two unordered lists and an advancing threshold.
//!
//! Ground rules. Same nodes and same calls as [`crate::queue::TimerWheel`], without its slots. A
//! timer is short when due at or before the threshold. Each sweep walks the whole short list, and
//! the long list when the threshold has passed. Tests compare both queues; a bench shows the gain
//! of the slots.

use std::ptr::NonNull;

use crate::queue::list::List;
use crate::queue::node::{Key, Location, Node};
use crate::time::NEVER;

/// The list of a node, as a location; any two except idle serve.
fn list_of(short: bool) -> Location {
    Location::slot(2 + usize::from(short))
}

const THRESHOLD_NS: u64 = 333_000_000;

/// Two lists and a threshold.
pub(crate) struct TwoLists<X> {
    short: List<X>,
    long: List<X>,
    threshold: u64,
    len: usize,
}

impl<X> TwoLists<X> {
    pub(crate) fn new(now: u64) -> Self {
        Self { short: List::new(), long: List::new(), threshold: now.saturating_add(THRESHOLD_NS), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// # Safety
    /// As [`crate::queue::TimerWheel::insert`].
    #[allow(unsafe_code)] // contract of the lists
    pub(crate) unsafe fn insert(&mut self, node: NonNull<Node<X>>) {
        let key = &Key::new();
        // SAFETY: the caller says that `node` is alive, kept alive, and in no list.
        unsafe {
            if node.as_ref().fires_at(key) <= self.threshold {
                node.as_ref().set_location(list_of(true), key);
                self.short.push(node, key);
            } else {
                node.as_ref().set_location(list_of(false), key);
                self.long.push(node, key);
            }
        }
        self.len += 1;
    }

    /// # Safety
    /// As [`crate::queue::TimerWheel::unlink`].
    #[allow(unsafe_code)] // contract of the lists
    pub(crate) unsafe fn unlink(&mut self, node: NonNull<Node<X>>) -> bool {
        let key = &Key::new();
        // SAFETY: the caller says that `node` is alive and in no queue but this; `location` names
        // its list (I1).
        unsafe {
            match node.as_ref().location(key) {
                Location::IDLE => return false,
                location if location == list_of(true) => self.short.unlink(node, key),
                _ => self.long.unlink(node, key),
            };
            node.as_ref().set_location(Location::IDLE, key);
        }
        self.len -= 1;
        true
    }

    /// Unlinks all timers due at `now` into `due`; returns the instant of the next sweep.
    #[allow(unsafe_code)] // contract of the lists
    pub(crate) fn sweep(&mut self, now: u64, due: &mut Vec<NonNull<Node<X>>>) -> u64 {
        let key = &Key::new();
        let before = due.len();
        let mut next = NEVER;
        // SAFETY (all): linked nodes are alive (promise of the caller of `insert`), each in the
        // list named by its location (I1).
        #[allow(clippy::undocumented_unsafe_blocks)]
        self.short.for_each(key, |node| {
            let at = unsafe { node.as_ref().fires_at(key) };
            if at <= now { due.push(node) } else { next = next.min(at) }
        });
        if now >= self.threshold {
            self.threshold = now.saturating_add(THRESHOLD_NS);
            let mut became_short = Vec::new();
            self.long.for_each(key, |node| {
                // SAFETY: linked, hence alive (promise of the caller of `insert`).
                let at = unsafe { node.as_ref().fires_at(key) };
                if at <= now {
                    due.push(node);
                } else {
                    next = next.min(at);
                    if at <= self.threshold {
                        became_short.push(node);
                    }
                }
            });
            for node in became_short {
                // SAFETY: linked in the long list, then in none.
                unsafe {
                    self.long.unlink(node, key);
                    node.as_ref().set_location(list_of(true), key);
                    self.short.push(node, key);
                }
            }
        } else if !self.long.is_empty() {
            next = next.min(self.threshold.saturating_add(1));
        }
        for &node in &due[before..] {
            // SAFETY: found in a list of this queue above, and not unlinked since.
            unsafe { self.unlink(node) };
        }
        next
    }
}
