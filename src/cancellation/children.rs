//! Who hangs on a source by the core: linked sources, to be cancelled with it, and futures that wait for it in a crowd.
//!
//! Ground rules. One shard per core, each with a lock and a count of its own, so that threads which make and drop children
//! of one long-lived source do not meet. A child holds its shard, not its parent: a parent's own reference count would be
//! a cache line that all cores fight for. The shard's list holds the child weakly. When the last handle of the parent is gone
//! while children are left, each shard that has some takes a reference to the parent (`keep`) until its last child has
//! left; so a child is cancelled by what its parent was linked to, or timed to, however short the handles live.
//!
//! Futures that wait are registered with the callbacks, until two of them get into each other's way there; from then on
//! they come here. (A token that few wait for needs no shards, and most are of that kind.)
//!
//! A child locks shards only to link and to unlink, one at a time; a cancelling parent takes the children out under the
//! lock and cancels them after it.

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::task::Waker;

use super::Inner;
use super::slab::Slab;
use crate::sync::{AtomicBool, Mutex, Ordering};

/// One shard of a parent's children. Aligned so that two shards never share a cache line.
#[repr(align(128))]
struct Shard {
    list: Mutex<Children>,
}

struct Children {
    slots: Slab<Slot>,
    /// Children; futures need nobody to keep their token, they have a handle.
    live: usize,
    keep: Option<Arc<Inner>>,
}

enum Slot {
    Child(Weak<Inner>),
    Waker(Waker),
    /// The waker has been taken to be called.
    Called,
}

/// All children of a source, and futures that wait for it.
pub(super) struct Shards {
    shards: Box<[Arc<Shard>]>,
    /// Futures that wait come here.
    crowded: AtomicBool,
}

/// The place of a child with one of its parents, or of a future with its token. Dropping it unlinks.
pub(super) struct Link {
    shard: Arc<Shard>,
    index: u32,
}

impl Shards {
    pub(super) fn new() -> Self {
        let shard = || Arc::new(Shard { list: Mutex::new(Children { slots: Slab::new(), live: 0, keep: None }) });
        Self { shards: (0..crate::here::cores()).map(|_| shard()).collect(), crowded: AtomicBool::new(false) }
    }

    /// Links a child, at the shard of this core.
    pub(super) fn link(&self, child: Weak<Inner>) -> Link {
        self.put(Slot::Child(child))
    }

    /// Keeps the waker of a future, at the shard of this core.
    pub(super) fn wait(&self, waker: Waker) -> Link {
        self.put(Slot::Waker(waker))
    }

    /// Futures got into each other's way: they come here from now on.
    pub(super) fn crowd(&self) {
        if !self.is_crowded() {
            self.crowded.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Relaxed) // a hint
    }

    fn put(&self, slot: Slot) -> Link {
        let shard = &self.shards[crate::here::core_id() % self.shards.len()];
        let mut list = shard.list.lock();
        list.live += usize::from(matches!(slot, Slot::Child(_)));
        let index = list.slots.insert(slot);
        Link { shard: Arc::clone(shard), index }
    }

    /// All children that are alive. They stay linked.
    pub(super) fn all(&self) -> Vec<Arc<Inner>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let list = shard.list.lock();
            all.extend(list.slots.iter().filter_map(|(_, slot)| match slot {
                Slot::Child(child) => child.upgrade(),
                Slot::Waker(_) | Slot::Called => None,
            }));
        }
        all
    }

    /// Takes out all wakers.
    pub(super) fn take_wakers(&self) -> Vec<Waker> {
        let mut all = Vec::new();
        for shard in &self.shards {
            for slot in shard.list.lock().slots.values_mut() {
                if let Slot::Waker(_) = slot {
                    if let Slot::Waker(waker) = std::mem::replace(slot, Slot::Called) {
                        all.push(waker);
                    }
                }
            }
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

impl Link {
    /// Exchanges the waker of a future for the latest. Without effect once it has been taken to be called.
    pub(super) fn renew(&self, waker: &mut Waker) {
        if let Some(Slot::Waker(stored)) = self.shard.list.lock().slots.get_mut(self.index) {
            std::mem::swap(stored, waker);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let (left, keep) = {
            let mut list = self.shard.list.lock();
            let left = list.slots.remove(self.index);
            list.live -= usize::from(matches!(left, Some(Slot::Child(_))));
            (left, if list.live == 0 { list.keep.take() } else { None })
        };
        drop(left);
        if let Some(parent) = keep {
            let_go(parent);
        }
    }
}

thread_local! {
    /// Parents that are to be let go by the outermost [`let_go`] of this thread; none while nobody is at it.
    static PARENTS: RefCell<Option<Vec<Arc<Inner>>>> = const { RefCell::new(None) };
}

/// Perhaps the end of the parent, with links of its own, and so on up a chain of any length: a loop and not a recursion.
fn let_go(parent: Arc<Inner>) {
    let mut parent = Some(parent);
    // In a thread that is about to end, and has none of its own any more, it is a recursion.
    let outermost = PARENTS.try_with(|parents| match &mut *parents.borrow_mut() {
        Some(waiting) => {
            waiting.extend(parent.take());
            false
        }
        none => {
            *none = Some(Vec::new());
            true
        }
    });
    // The end of a parent does not unwind: what callbacks and panic handlers own is dropped in there, and contained.
    drop(parent.take());
    if outermost == Ok(true) {
        while let Ok(Some(next)) = PARENTS.try_with(|parents| parents.borrow_mut().as_mut().and_then(Vec::pop)) {
            drop(next);
        }
        let _ = PARENTS.try_with(|parents| *parents.borrow_mut() = None);
    }
}
