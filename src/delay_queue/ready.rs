//! The ready entries of an axis: due, taken out of the wheel, and not delivered yet. In order of delivery.
//!
//! Ground rules. Under the lock of the queue. A heap of plain numbers, by due point and then by order of insertion; the entries
//! stand in a slab. Removing an entry leaves its numbers in the heap, where they are void: the slab's place is free, or has an
//! entry with another number of insertion. When more than half of the heap is void, it is built anew.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::state::Entry;

/// With fewer numbers than this, the heap is not built anew.
const SMALL: usize = 64;

/// Due point, number of insertion, place in the slab.
type Numbers = Reverse<(u64, u64, u32)>;

/// See the module's ground rules.
pub(super) struct Ready<K, V> {
    heap: BinaryHeap<Numbers>,
    slab: Vec<(u64, Option<Entry<K, V>>)>,
    free: Vec<u32>,
}

impl<K, V> Ready<K, V> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), slab: Vec::new(), free: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len() - self.free.len()
    }

    /// Returns the entry's place, for [`Self::remove`].
    pub(super) fn push(&mut self, due: u64, number: u64, entry: Entry<K, V>) -> u32 {
        let place = match self.free.pop() {
            Some(place) => {
                self.slab[place as usize] = (number, Some(entry));
                place
            }
            None => {
                self.slab.push((number, Some(entry)));
                u32::try_from(self.slab.len() - 1).expect("memory is full before four billion entries are ready")
            }
        };
        self.heap.push(Reverse((due, number, place)));
        place
    }

    fn is_void(slab: &[(u64, Option<Entry<K, V>>)], &Reverse((_, number, place)): &Numbers) -> bool {
        let (now, entry) = &slab[place as usize];
        *now != number || entry.is_none()
    }

    /// The due point and number of the first entry.
    pub(super) fn first(&mut self) -> Option<(u64, u64)> {
        loop {
            let item = *self.heap.peek()?;
            if !Self::is_void(&self.slab, &item) {
                return Some((item.0.0, item.0.1));
            }
            self.heap.pop();
        }
    }

    /// Takes the first entry.
    pub(super) fn pop(&mut self) -> Option<Entry<K, V>> {
        self.first()?;
        let Reverse((.., place)) = self.heap.pop()?;
        self.free_place(place)
    }

    /// Takes the entry at `place`.
    pub(super) fn remove(&mut self, place: u32) -> Option<Entry<K, V>> {
        let entry = self.free_place(place);
        if self.heap.len() > SMALL && self.heap.len() > 2 * self.len() {
            let slab = &self.slab;
            self.heap.retain(|item| !Self::is_void(slab, item));
        }
        entry
    }

    fn free_place(&mut self, place: u32) -> Option<Entry<K, V>> {
        let entry = self.slab[place as usize].1.take();
        self.free.push(place);
        if self.len() == 0 {
            // A backlog may have been large; its memory goes.
            self.heap.clear();
            self.slab.clear();
            self.free.clear();
            self.heap.shrink_to(SMALL);
            self.slab.shrink_to(SMALL);
            self.free.shrink_to(SMALL);
        }
        entry
    }
}
