//! The registry of a source: a stack of callbacks and wakers, with O(1) removal from the middle.
//!
//! Ground rules. Pure: no lock, no thread; the source keeps its registry behind a lock. Callbacks
//! and wakers each have a list, last registered first, so a reset takes out all callbacks in a
//! single step. Serial numbers order the entries of both lists. The entries live in a [slab](Slab)
//! and are linked by index. A freed index is used again, under a new serial number, so a stale id
//! finds nothing. The registry drops no callback and no waker: the caller gets each removed entry,
//! and drops the entry after releasing the lock.

use std::task::Waker;

use super::slab::{More, NONE, Slab};

pub(super) type Callback = Box<dyn FnOnce() + Send>;

/// An entry of a registry.
pub(super) enum Entry {
    Callback(Callback),
    Waker(Waker),
}

impl Entry {
    const CALLBACK: usize = 0;
    const WAKER: usize = 1;

    fn kind(&self) -> usize {
        match self {
            Self::Callback(_) => Self::CALLBACK,
            Self::Waker(_) => Self::WAKER,
        }
    }
}

/// Identifies an entry while the entry is in the registry, and never a later entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    index: u32,
    serial: u64,
}

struct Slot {
    entry: Entry,
    serial: u64,
    /// The next entry of the same kind, registered earlier.
    below: u32,
    /// The next entry of the same kind, registered later.
    above: u32,
}

pub(super) struct Registry {
    slots: Slab<Slot>,
    /// The last registered callback, and the last registered waker.
    tops: [u32; 2],
    last_serial: u64,
    /// A reset took out the callbacks up to this serial number.
    reset: u64,
}

/// The callbacks that a reset took out and that still wait to be dropped, as a list: the index of
/// the last registered callback.
#[must_use]
pub(super) struct Orphans(u32);

/// Memory that the registry no longer needs. The caller drops this outside the lock.
pub(super) struct Leftover(#[allow(dead_code)] Option<Box<More<Slot>>>);

impl Registry {
    pub(super) const fn new() -> Self {
        Self { slots: Slab::new(), tops: [NONE; 2], last_serial: 0, reset: 0 }
    }

    #[inline]
    pub(super) fn push(&mut self, entry: Entry) -> Id {
        self.last_serial += 1;
        let (kind, serial) = (entry.kind(), self.last_serial);
        let below = self.tops[kind];
        let index = self.slots.insert(Slot { entry, serial, below, above: NONE });
        if below != NONE {
            self.slot(below, |below| below.above = index);
        }
        self.tops[kind] = index;
        Id { index, serial }
    }

    fn slot(&mut self, index: u32, set: impl FnOnce(&mut Slot)) {
        if let Some(slot) = self.slots.get_mut(index) {
            set(slot);
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut Entry> {
        let slot = self.slots.get_mut(id.index)?;
        let is_orphan = id.serial <= self.reset && slot.entry.kind() == Entry::CALLBACK;
        (slot.serial == id.serial && !is_orphan).then_some(&mut slot.entry)
    }

    #[inline]
    pub(super) fn remove(&mut self, id: Id) -> Option<Entry> {
        self.get_mut(id)?;
        let Slot { entry, below, above, .. } = self.slots.remove(id.index)?;
        if below != NONE {
            self.slot(below, |slot| slot.above = above);
        }
        if above != NONE {
            self.slot(above, |slot| slot.below = below);
        } else {
            self.tops[entry.kind()] = below;
        }
        Some(entry)
    }

    /// Takes out the last registered entry.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(Id, Entry)> {
        let [callback, waker] = self.tops;
        let kind = if waker == NONE {
            Entry::CALLBACK
        } else if callback == NONE || self.serial_at(callback) < self.serial_at(waker) {
            Entry::WAKER
        } else {
            Entry::CALLBACK
        };
        let index = self.tops[kind];
        if index == NONE {
            return None;
        }
        let id = Id { index, serial: self.serial_at(index) };
        self.remove(id).map(|entry| (id, entry))
    }

    fn serial_at(&mut self, index: u32) -> u64 {
        self.slots.get_mut(index).map_or(0, |slot| slot.serial)
    }

    /// Takes out all callbacks, in a single step; wakers stay.
    pub(super) fn orphan_callbacks(&mut self) -> Orphans {
        self.reset = self.last_serial;
        Orphans(std::mem::replace(&mut self.tops[Entry::CALLBACK], NONE))
    }

    /// The next callback that a reset took out of this registry.
    pub(super) fn next_orphan(&mut self, orphans: &mut Orphans) -> Option<Entry> {
        let Slot { entry, below, .. } = self.slots.remove(orphans.0)?;
        orphans.0 = below;
        Some(entry)
    }

    #[inline]
    pub(super) fn leftover(&mut self) -> Leftover {
        Leftover(self.slots.leftover())
    }
}

impl Orphans {
    pub(super) fn are_left(&self) -> bool {
        self.0 != NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waker(registry: &mut Registry) -> Id {
        registry.push(Entry::Waker(Waker::noop().clone()))
    }

    fn callback(registry: &mut Registry) -> Id {
        registry.push(Entry::Callback(Box::new(|| ())))
    }

    #[test]
    fn pops_last_registered_first_whatever_was_removed_and_of_which_kind() {
        for pattern in 0..32_u32 {
            let push = |registry: &mut Registry, i: usize| {
                if pattern & 1 << i == 0 { waker(registry) } else { callback(registry) }
            };
            for gone in 0..5 {
                let mut registry = Registry::new();
                let ids: Vec<Id> = (0..5).map(|i| push(&mut registry, i)).collect();
                assert!(registry.remove(ids[gone]).is_some());
                assert!(registry.remove(ids[gone]).is_none(), "removed once");
                let again = push(&mut registry, gone);
                assert_eq!(again.index, ids[gone].index, "the slot is used again");
                assert!(registry.remove(ids[gone]).is_none(), "a stale id finds nothing");
                let order: Vec<Id> = std::iter::from_fn(|| registry.pop()).map(|(id, _)| id).collect();
                let mut want: Vec<Id> = ids.iter().copied().filter(|&id| id != ids[gone]).collect();
                want.push(again);
                want.reverse();
                assert_eq!(order, want);
            }
        }
    }

    #[test]
    fn only_callbacks_are_taken_by_a_reset() {
        let mut registry = Registry::new();
        let (kept, taken) = (waker(&mut registry), [callback(&mut registry), callback(&mut registry)]);
        let mut orphans = registry.orphan_callbacks();
        let again = callback(&mut registry);
        assert!(taken.into_iter().all(|id| registry.remove(id).is_none()), "taken out already");
        assert!(matches!(registry.next_orphan(&mut orphans), Some(Entry::Callback(_))) && orphans.are_left());
        assert!(matches!(registry.next_orphan(&mut orphans), Some(Entry::Callback(_))) && !orphans.are_left());
        assert!(registry.next_orphan(&mut orphans).is_none());
        let late = waker(&mut registry);
        assert!(taken.into_iter().all(|id| registry.remove(id).is_none()), "a stale id finds nothing");
        assert!(registry.get_mut(kept).is_some() && registry.get_mut(again).is_some());
        let order: Vec<Id> = std::iter::from_fn(|| registry.pop()).map(|(id, _)| id).collect();
        assert_eq!(order, [late, again, kept]);
    }
}
