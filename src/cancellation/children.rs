//! The shards of a source: linked sources, to be cancelled with it, and wakers of futures in a crowd.
//!
//! Ground rules. A source has no shard before its first child, and then one. When a thread finds the lock of that one
//! taken, the source *spreads*, for good: from then on each core has a shard of its own, made at its first use, and
//! threads that make and drop children of one long-lived source do not meet. What stands in the first shard stays there.
//! So a source with few children costs the same on a machine of any size.
//!
//! A child holds its shard, not its parent: a parent's own reference count would be a cache line that all cores fight
//! for. The shard's list holds the child weakly. When the last handle of the parent is gone while children are left, each
//! shard that has some takes a reference to the parent (`keep`) until its last child has left; so a child is cancelled by
//! what its parent was linked to, or timed to, however short the handles live.
//!
//! Futures that wait are registered with the callbacks, until two of them meet at that lock; then the source spreads, and
//! they come here. (A token that few wait for needs no shards, and most are of that kind.)
//!
//! A child locks shards only to link and to unlink, one at a time. A cancelling parent looks at a bounded number of places
//! in one lock section, and marks what it found after the section. A child that is linked between two sections sees the
//! parent cancelled: its own section comes after one of the canceller's, and that comes after the parent's mark.

use std::sync::{Arc, Weak};
use std::task::Waker;

use super::Inner;
use super::slab::{PAGE, Slab};
use crate::sync::{Mutex, OnceLock};

/// One shard of a source. Aligned so that two shards never share a cache line.
#[repr(align(128))]
struct Shard {
    list: Mutex<Children>,
    /// Of the first shard: those by core. There once two threads have met.
    spread: OnceLock<Box<[OnceLock<Arc<Shard>>]>>,
}

struct Children {
    slots: Slab<Slot>,
    /// Children. (A future keeps its token by a handle of its own.)
    live: usize,
    keep: Option<Arc<Inner>>,
}

enum Slot {
    Child(Weak<Inner>),
    Waker(Waker),
    /// The waker has been taken to be called.
    Called,
}

impl Shard {
    fn new() -> Arc<Self> {
        let list = Mutex::new(Children { slots: Slab::new(), live: 0, keep: None });
        Arc::new(Self { list, spread: OnceLock::new() })
    }

    /// From now on each core has a shard of its own.
    fn spread(&self) -> &[OnceLock<Arc<Self>>] {
        self.spread.get_or_init(|| (0..crate::sys::cpu::count()).map(|_| OnceLock::new()).collect())
    }

    /// Those by core.
    fn by_core(&self) -> impl Iterator<Item = &Arc<Self>> {
        self.spread.get().into_iter().flat_map(|spread| spread.iter().filter_map(OnceLock::get))
    }
}

impl Children {
    fn insert(&mut self, slot: Slot) -> u32 {
        self.live += usize::from(matches!(slot, Slot::Child(_)));
        self.slots.insert(slot)
    }
}

/// The shards of a source. Those that a canceller does not see are made after its mark: see the fences in `Inner::cancel`.
pub(super) struct Shards {
    first: OnceLock<Arc<Shard>>,
}

/// The place of a child with one of its parents, or of a future with its token. Dropping it unlinks.
pub(super) struct Link {
    /// `None`: unlinked.
    shard: Option<Arc<Shard>>,
    index: u32,
}

impl Shards {
    pub(super) fn new() -> Self {
        Self { first: OnceLock::new() }
    }

    /// Links a child.
    pub(super) fn link(&self, child: Weak<Inner>) -> Link {
        self.put(Slot::Child(child))
    }

    /// Keeps the waker of a future that has met another thread.
    pub(super) fn wait(&self, waker: Waker) -> Link {
        self.spread();
        self.put(Slot::Waker(waker))
    }

    /// From now on each core has a shard of its own.
    pub(super) fn spread(&self) {
        self.first.get_or_init(Shard::new).spread();
    }

    #[inline]
    pub(super) fn is_spread(&self) -> bool {
        self.first.get().is_some_and(|first| first.spread.get().is_some())
    }

    /// False: nothing was ever linked to this source, and no future has waited here.
    #[inline]
    pub(super) fn are_there(&self) -> bool {
        self.first.get().is_some()
    }

    fn put(&self, slot: Slot) -> Link {
        let first = self.first.get_or_init(Shard::new);
        if first.spread.get().is_none() {
            if let Some(mut list) = first.list.try_lock() {
                let index = list.insert(slot);
                return Link { shard: Some(Arc::clone(first)), index };
            }
        }
        let spread = first.spread();
        let shard = spread[crate::sys::cpu::current() % spread.len()].get_or_init(Shard::new);
        let index = shard.list.lock().insert(slot);
        Link { shard: Some(Arc::clone(shard)), index }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Shard>> {
        self.first.get().into_iter().flat_map(|first| std::iter::once(first).chain(first.by_core()))
    }

    /// Shows all children that are alive, outside the locks. They stay linked.
    pub(super) fn children(&self, see: impl FnMut(Arc<Inner>)) {
        let child = |slot: &mut Slot| match slot {
            Slot::Child(child) => child.upgrade(),
            Slot::Waker(_) | Slot::Called => None,
        };
        pick(self.all(), child, see);
    }

    /// Takes out all wakers, and hands them on outside the locks.
    pub(super) fn take_wakers(&self, see: impl FnMut(Waker)) {
        let waker = |slot: &mut Slot| match slot {
            Slot::Waker(_) => match std::mem::replace(slot, Slot::Called) {
                Slot::Waker(waker) => Some(waker),
                _ => None,
            },
            Slot::Child(_) | Slot::Called => None,
        };
        pick(self.first.get().into_iter().flat_map(|first| first.by_core()), waker, see);
    }

    /// The last handle of the parent is gone: shards with children keep it alive.
    #[inline]
    pub(super) fn keep(&self, parent: &Arc<Inner>) {
        if !self.are_there() {
            return;
        }
        for shard in self.all() {
            let mut list = shard.list.lock();
            if list.live > 0 {
                list.keep = Some(Arc::clone(parent));
            }
        }
    }
}

/// Picks from all slots, in lock sections of at most [`PAGE`] of them, and hands on what was picked after each section.
fn pick<'a, T>(
    shards: impl Iterator<Item = &'a Arc<Shard>>,
    choose: impl Fn(&mut Slot) -> Option<T>,
    mut see: impl FnMut(T),
) {
    let mut batch = Vec::new();
    for shard in shards {
        let mut next = Some(0);
        while let Some(from) = next {
            batch.reserve(PAGE); // no allocation under the lock
            next = shard.list.lock().slots.scan(from, |slot| batch.extend(choose(slot)));
            batch.drain(..).for_each(&mut see);
        }
    }
}

impl Link {
    /// Exchanges the waker of a future for the latest. Without effect once it has been taken to be called.
    pub(super) fn renew(&self, waker: &mut Waker) {
        let Some(shard) = &self.shard else { return };
        if let Some(Slot::Waker(stored)) = shard.list.lock().slots.get_mut(self.index) {
            std::mem::swap(stored, waker);
        }
    }

    /// Gives the place back. What comes back is a reference to the parent, for [`let_go`].
    fn unlink(&mut self) -> Option<Arc<Inner>> {
        let shard = self.shard.take()?;
        let mut list = shard.list.lock();
        let left = list.slots.remove(self.index);
        let leftover = list.slots.leftover();
        list.live -= usize::from(matches!(left, Some(Slot::Child(_))));
        let keep = if list.live == 0 { list.keep.take() } else { None };
        drop(list);
        drop((left, leftover));
        keep
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(parent) = self.unlink() {
            let_go(parent);
        }
    }
}

/// Drops a reference to a parent. If it is the last, that ends the parent and its links, and perhaps parents of its own, and
/// so on up a chain of any length: a loop and not a recursion.
///
/// Each call ends what it has to end before it returns, also one that a destructor makes in here.
fn let_go(parent: Arc<Inner>) {
    let mut parents = Vec::new();
    let mut next = Some(parent);
    while let Some(parent) = next {
        if let Some(mut inner) = Arc::into_inner(parent) {
            let links = std::mem::take(&mut inner.links);
            // The end of a source does not unwind: what callbacks and panic handlers own is dropped in there, and contained.
            drop(inner);
            parents.extend(links.into_iter().filter_map(|mut link| link.unlink()));
        }
        next = parents.pop();
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use crate::cancellation::CancellationTokenSource;
    use crate::sys::cpu;

    fn shards(source: &CancellationTokenSource) -> usize {
        source.handle.children.all().count()
    }

    #[test]
    fn s47_a_parent_of_few_children_has_one_shard() {
        cpu::as_if(1024, || {
            let parent = CancellationTokenSource::new();
            let token = parent.token();
            assert_eq!(shards(&parent), 0, "none before the first child");
            let children: Vec<_> = (0..100).map(|_| token.child_source()).collect();
            assert_eq!((shards(&parent), parent.handle.children.is_spread()), (1, false));
            parent.cancel();
            assert!(children.iter().all(CancellationTokenSource::is_cancelled));
        });
    }

    #[test]
    fn s47_threads_that_meet_have_a_shard_each_and_all_children_are_found() {
        cpu::as_if(1024, || {
            let parent = CancellationTokenSource::new();
            let token = parent.token();
            let mut children = vec![token.child_source()];
            {
                let first = parent.handle.children.first.get().expect("it has a child");
                let _other_thread = first.list.lock();
                children.push(token.child_source());
            }
            assert!(parent.handle.children.is_spread());
            children.extend((0..100).map(|_| token.child_source()));
            let used = shards(&parent);
            assert!((2..=103).contains(&used), "one for each core that was used: {used}");
            drop(children.swap_remove(0));
            drop(children.swap_remove(0));
            parent.cancel();
            assert!(children.iter().all(CancellationTokenSource::is_cancelled));
        });
    }
}
