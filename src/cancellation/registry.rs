//! What is to be called or woken when a token is cancelled: a stack with O(1) removal from the middle.
//!
//! Ground rules. Pure: no lock, no thread; a token keeps one behind its lock. Entries live in a [slab](Slab) and are linked by
//! index, last registered first. An index that has been freed is used again, under a new serial number, so a stale id
//! finds nothing. Nothing of the user's is dropped in here: what is taken out is handed to the caller, who drops it
//! after the lock is released.

use std::task::Waker;

use super::slab::{NONE, Slab};

/// What stands in a registry.
pub(super) enum Entry {
    Callback(Box<dyn FnOnce() + Send>),
    Waker(Waker),
}

/// Names an entry for as long as it stands in the registry, and never another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    index: u32,
    serial: u64,
}

struct Slot {
    entry: Entry,
    serial: u64,
    /// Towards those registered earlier.
    below: u32,
    /// Towards those registered later.
    above: u32,
}

pub(super) struct Registry {
    slots: Slab<Slot>,
    top: u32,
    next_serial: u64,
}

impl Registry {
    pub(super) const fn new() -> Self {
        Self { slots: Slab::new(), top: NONE, next_serial: 0 }
    }

    pub(super) fn push(&mut self, entry: Entry) -> Id {
        let serial = self.next_serial;
        self.next_serial += 1;
        let index = self.slots.insert(Slot { entry, serial, below: self.top, above: NONE });
        if let Some(below) = self.slots.get_mut(self.top) {
            below.above = index;
        }
        self.top = index;
        Id { index, serial }
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut Entry> {
        self.slots.get_mut(id.index).filter(|slot| slot.serial == id.serial).map(|slot| &mut slot.entry)
    }

    pub(super) fn remove(&mut self, id: Id) -> Option<Entry> {
        self.get_mut(id)?;
        let Slot { entry, below, above, .. } = self.slots.remove(id.index)?;
        if let Some(slot) = self.slots.get_mut(below) {
            slot.above = above;
        }
        match self.slots.get_mut(above) {
            Some(slot) => slot.below = below,
            None => self.top = below,
        }
        Some(entry)
    }

    /// Takes out the entry that was registered last.
    pub(super) fn pop(&mut self) -> Option<(Id, Entry)> {
        let slot = self.slots.get(self.top)?;
        let id = Id { index: self.top, serial: slot.serial };
        self.remove(id).map(|entry| (id, entry))
    }

    /// Takes out all callbacks; wakers stay.
    pub(super) fn take_callbacks(&mut self) -> Vec<Entry> {
        let callbacks: Vec<Id> = self
            .slots
            .iter()
            .filter(|(_, slot)| matches!(slot.entry, Entry::Callback(_)))
            .map(|(index, slot)| Id { index, serial: slot.serial })
            .collect();
        callbacks.into_iter().filter_map(|id| self.remove(id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waker(registry: &mut Registry) -> Id {
        registry.push(Entry::Waker(Waker::noop().clone()))
    }

    #[test]
    fn pops_last_registered_first_whatever_was_removed() {
        for gone in 0..5 {
            let mut registry = Registry::new();
            let ids: Vec<Id> = (0..5).map(|_| waker(&mut registry)).collect();
            assert!(registry.remove(ids[gone]).is_some());
            assert!(registry.remove(ids[gone]).is_none(), "removed once");
            let again = waker(&mut registry);
            assert_eq!(again.index, ids[gone].index, "the slot is used again");
            assert!(registry.remove(ids[gone]).is_none(), "a stale id finds nothing");
            let order: Vec<Id> = std::iter::from_fn(|| registry.pop()).map(|(id, _)| id).collect();
            let mut want: Vec<Id> = ids.iter().copied().filter(|&id| id != ids[gone]).collect();
            want.push(again);
            want.reverse();
            assert_eq!(order, want);
        }
    }

    #[test]
    fn only_callbacks_are_taken() {
        let mut registry = Registry::new();
        let kept = waker(&mut registry);
        let taken = registry.push(Entry::Callback(Box::new(|| ())));
        assert_eq!(registry.take_callbacks().len(), 1);
        assert!(registry.get_mut(taken).is_none());
        assert!(registry.get_mut(kept).is_some());
        assert_eq!(registry.pop().map(|(id, _)| id), Some(kept));
        assert!(registry.pop().is_none());
    }
}
