//! The registry of a source: a stack of callbacks, with O(1) removal from the middle.
//!
//! Ground rules. Pure: no lock, no thread; the source keeps its registry behind a lock. The
//! callbacks lie in a [slab](Slab) and are linked by index. A freed index is used again, under a
//! new serial number, so a stale id finds nothing. The registry drops no callback: the caller gets
//! each removed callback, and drops it after releasing the lock.

use crate::slab::{More, NONE, Slab};

pub(super) type Callback = Box<dyn FnOnce() + Send>;

/// Identifies a callback while it is in the registry, and never a later callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id {
    index: u32,
    pub(super) serial: u64,
}

/// A callback and its neighbours in the stack.
pub(super) struct Registered {
    callback: Callback,
    serial: u64,
    /// The callback registered before.
    below: u32,
    /// The callback registered after.
    above: u32,
}

pub(super) struct Registry {
    callbacks: Slab<Registered>,
    /// The last registered callback.
    top: u32,
    last_serial: u64,
}

impl Default for Registry {
    fn default() -> Self {
        Self { callbacks: Slab::new(), top: NONE, last_serial: 0 }
    }
}

impl Registry {
    #[inline]
    pub(super) fn push(&mut self, callback: Callback) -> Id {
        self.last_serial += 1;
        let (serial, below) = (self.last_serial, self.top);
        let index = self.callbacks.insert(Registered { callback, serial, below, above: NONE });
        if let Some(below) = self.at(below) {
            below.above = index;
        }
        self.top = index;
        Id { index, serial }
    }

    #[inline]
    fn at(&mut self, index: u32) -> Option<&mut Registered> {
        if index == NONE { None } else { self.callbacks.get_mut(index) }
    }

    #[inline]
    pub(super) fn remove(&mut self, id: Id) -> Option<Callback> {
        self.callbacks.get_mut(id.index).filter(|found| found.serial == id.serial)?;
        let Registered { callback, below, above, .. } = self.callbacks.remove(id.index)?;
        if let Some(below) = self.at(below) {
            below.above = above;
        }
        match self.at(above) {
            Some(above) => above.below = below,
            None => self.top = below,
        }
        Some(callback)
    }

    /// Takes out the last registered callback.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(Id, Callback)> {
        let id = Id { index: self.top, serial: self.callbacks.get_mut(self.top)?.serial };
        self.remove(id).map(|callback| (id, callback))
    }

    /// Takes out all callbacks, in a single step. The serial numbers go on.
    pub(super) fn take(&mut self) -> Self {
        let left = Self { last_serial: self.last_serial, ..Self::default() };
        std::mem::replace(self, left)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.top == NONE
    }

    /// Memory that the registry no longer needs. The caller drops it outside the lock.
    #[inline]
    pub(super) fn leftover(&mut self) -> Option<Box<More<Registered>>> {
        self.callbacks.leftover()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(registry: &mut Registry) -> Id {
        registry.push(Box::new(|| ()))
    }

    #[test]
    fn pops_last_registered_first_whatever_was_removed() {
        for gone in 0..5 {
            let mut registry = Registry::default();
            let ids: Vec<Id> = (0..5).map(|_| push(&mut registry)).collect();
            assert!(registry.remove(ids[gone]).is_some());
            assert!(registry.remove(ids[gone]).is_none(), "removed once");
            let again = push(&mut registry);
            assert_eq!(again.index, ids[gone].index, "the index is used again");
            assert!(registry.remove(ids[gone]).is_none(), "a stale id finds nothing");
            let order: Vec<Id> = std::iter::from_fn(|| registry.pop()).map(|(id, _)| id).collect();
            let mut want: Vec<Id> = ids.iter().copied().filter(|&id| id != ids[gone]).collect();
            want.push(again);
            want.reverse();
            assert_eq!(order, want);
            assert!(registry.is_empty());
        }
    }

    #[test]
    fn what_a_reset_has_taken_is_not_found_any_more() {
        let mut registry = Registry::default();
        let old = [push(&mut registry), push(&mut registry)];
        let mut taken = registry.take();
        let new = push(&mut registry);
        assert_eq!(new.index, old[0].index);
        assert!(old.into_iter().all(|id| registry.remove(id).is_none()), "a stale id finds nothing");
        let order = |registry: &mut Registry| Vec::from_iter(std::iter::from_fn(|| registry.pop()).map(|(id, _)| id));
        assert_eq!((order(&mut taken), order(&mut registry)), (vec![old[1], old[0]], vec![new]));
    }
}
