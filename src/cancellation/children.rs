//! The linked sources of a source: to be cancelled with it.
//!
//! Ground rules. One shard per core, each with a lock and a count of its own, so that threads which make and drop children
//! of one long-lived source do not meet. A child holds its shard, not its parent: a parent's own reference count would be
//! a cache line that all cores fight for. The shard's list holds the child weakly. When the last handle of the parent is gone
//! while children are left, each shard that has some takes a reference to the parent (`keep`) until its last child has
//! left; so a child is cancelled by what its parent was linked to, or timed to, however short the handles live.
//!
//! A child locks shards only to link and to unlink, one at a time; a cancelling parent takes the children out under the
//! lock and cancels them after it.

use std::sync::{Arc, Weak};

use super::Inner;
use crate::sync::Mutex;

/// One shard of a parent's children. Aligned so that two shards never share a cache line.
#[repr(align(128))]
struct Shard {
    list: Mutex<Children>,
}

#[derive(Default)]
struct Children {
    slots: Vec<Slot>,
    free: Option<u32>,
    live: usize,
    keep: Option<Arc<Inner>>,
}

enum Slot {
    Child(Weak<Inner>),
    Free { next: Option<u32> },
}

/// All children of a source.
pub(super) struct Shards {
    shards: Box<[Arc<Shard>]>,
}

/// A child's place with one of its parents. Dropping it unlinks.
pub(super) struct Link {
    shard: Arc<Shard>,
    index: u32,
}

impl Shards {
    pub(super) fn new() -> Self {
        let shard = || Arc::new(Shard { list: Mutex::new(Children::default()) });
        Self { shards: (0..crate::sync::cores()).map(|_| shard()).collect() }
    }

    /// Links a child, at the shard of this core.
    pub(super) fn link(&self, child: Weak<Inner>) -> Link {
        let shard = &self.shards[crate::here::core_id() % self.shards.len()];
        let mut list = shard.list.lock();
        list.live += 1;
        let slot = Slot::Child(child);
        let index = match list.free {
            Some(index) => {
                let old = std::mem::replace(&mut list.slots[index as usize], slot);
                if let Slot::Free { next } = old {
                    list.free = next;
                }
                index
            }
            None => {
                list.slots.push(slot);
                (list.slots.len() - 1) as u32
            }
        };
        Link { shard: Arc::clone(shard), index }
    }

    /// All children that are alive. They stay linked.
    pub(super) fn all(&self) -> Vec<Arc<Inner>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let list = shard.list.lock();
            all.extend(list.slots.iter().filter_map(|slot| match slot {
                Slot::Child(child) => child.upgrade(),
                Slot::Free { .. } => None,
            }));
        }
        all
    }

    /// The last handle of the parent is gone: shards with children keep it alive.
    pub(super) fn keep(&self, parent: &Arc<Inner>) {
        for shard in &self.shards {
            let mut list = shard.list.lock();
            if list.live > 0 {
                list.keep = Some(Arc::clone(parent));
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let (child, keep) = {
            let mut list = self.shard.list.lock();
            let freed = Slot::Free { next: list.free };
            let child = std::mem::replace(&mut list.slots[self.index as usize], freed);
            list.free = Some(self.index);
            list.live -= 1;
            (child, if list.live == 0 { list.keep.take() } else { None })
        };
        drop(child);
        drop(keep); // perhaps the end of the parent, with links of its own
    }
}
