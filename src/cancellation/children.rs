//! The shards of a source: lists of linked sources (children), and of wakers when many futures wait
//! for the source.
//!
//! Ground rules. A source has no shard before its first child, then a single shard. When a thread
//! finds the lock of this shard taken, the source *spreads*, for good. From then on each core has a
//! shard of its own, made at its first use. So threads that make and drop children of a long-lived
//! source do not contend, and a source with few children costs the same on a machine of any size.
//! Entries of the first shard stay in the first shard.
//!
//! A child holds its shard, not its parent: the parent's reference count would be a cache line
//! contended by all cores. The list of the shard holds the child weakly. If children remain when
//! the last handle of the parent is dropped, each shard with children takes a reference to the
//! parent (`keep`) until its last child is unlinked. So the parents and the timed cancel of a
//! parent still cancel the child, however short the handles of the parent live.
//!
//! Wakers of waiting futures are registered with the callbacks, until two threads meet at the lock
//! of the registry. Then the source spreads, and later wakers are stored in the shards. (Most
//! tokens have few waiting futures and need no shards.)
//!
//! A child locks shards only to link and to unlink, a single shard at a time. A cancelling parent
//! takes a bounded number of entries in a lock section, and marks these children after the section.
//! A child linked between two sections sees the parent cancelled: the child's lock section comes
//! after a section of the canceller, which comes after the parent's mark.

use std::sync::{Arc, Weak};
use std::task::Waker;

use super::Inner;
use super::slab::{PAGE, Slab};
use crate::sync::{Mutex, OnceLock};

/// A shard of a source. Aligned so that two shards never share a cache line.
#[repr(align(128))]
struct Shard {
    list: Mutex<Children>,
    /// In the first shard: the shards of the cores, once the source has spread.
    spread: OnceLock<Box<[OnceLock<Arc<Shard>>]>>,
}

struct Children {
    slots: Slab<Slot>,
    /// The number of children. (A future has a handle of its own, and is not counted.)
    live: usize,
    /// The parent, kept alive for its children after its last handle was dropped.
    keep: Option<Arc<Inner>>,
}

enum Slot {
    Child(Weak<Inner>),
    Waker(Waker),
    /// A canceller has taken the waker.
    Called,
}

impl Shard {
    fn new() -> Arc<Self> {
        let list = Mutex::new(Children { slots: Slab::new(), live: 0, keep: None });
        Arc::new(Self { list, spread: OnceLock::new() })
    }

    /// Gives each core a shard of its own, made at its first use.
    fn spread(&self) -> &[OnceLock<Arc<Self>>] {
        self.spread.get_or_init(|| (0..crate::sys::cpu::count()).map(|_| OnceLock::new()).collect())
    }

    /// The shards of the cores.
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

/// The shards of a source. A shard that the canceller does not see is made after the mark: see the
/// fences in `Inner::cancel`.
pub(super) struct Shards {
    first: OnceLock<Arc<Shard>>,
}

/// The link of a child to a parent, or of a waiting future to its token. Dropping the link unlinks.
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

    /// Stores the waker of a future that found the lock of the registry taken, or the source
    /// spread.
    pub(super) fn wait(&self, waker: Waker) -> Link {
        self.spread();
        self.put(Slot::Waker(waker))
    }

    /// Gives each core a shard of its own.
    pub(super) fn spread(&self) {
        self.first.get_or_init(Shard::new).spread();
    }

    #[inline]
    pub(super) fn is_spread(&self) -> bool {
        self.first.get().is_some_and(|first| first.spread.get().is_some())
    }

    /// False: no child was ever linked to this source, and no waker was stored here.
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

    /// Calls `see` with each living child, outside the locks. The children stay linked.
    pub(super) fn children(&self, see: impl FnMut(Arc<Inner>)) {
        let child = |slot: &mut Slot| match slot {
            Slot::Child(child) => child.upgrade(),
            Slot::Waker(_) | Slot::Called => None,
        };
        pick(self.all(), child, see);
    }

    /// Takes out all wakers, and calls `see` with each, outside the locks.
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

    /// The last handle of the parent is dropped: shards with children keep the parent alive.
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

/// Applies `choose` to all slots, in lock sections of at most [`PAGE`] slots. Calls `see` with the
/// results after each section.
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
    /// Stores the latest waker of a future, and returns the previous in `waker`. No effect once a
    /// canceller has taken the waker.
    pub(super) fn renew(&self, waker: &mut Waker) {
        let Some(shard) = &self.shard else { return };
        if let Some(Slot::Waker(stored)) = shard.list.lock().slots.get_mut(self.index) {
            std::mem::swap(stored, waker);
        }
    }

    /// Frees the slot. Returns the reference to the parent if this was the last child; the caller
    /// passes it to [`let_go`].
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

/// Drops a reference to a parent. The last reference ends the parent and its links, then perhaps
/// the parents of the parent, up a chain of any length: a loop, not a recursion.
///
/// Each call drops all these sources before it returns, also a nested call made by a destructor.
fn let_go(parent: Arc<Inner>) {
    let mut parents = Vec::new();
    let mut next = Some(parent);
    while let Some(parent) = next {
        if let Some(mut inner) = Arc::into_inner(parent) {
            let links = std::mem::take(&mut inner.links);
            // Dropping the state does not unwind: panics in destructors of callbacks and of panic
            // handlers are caught there.
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

    /// A later cancel of a further parent walks the linked sources: it must not walk sources that
    /// were born cancelled.
    #[test]
    fn s47_a_cancelled_source_links_no_children() {
        let linked = |source: &CancellationTokenSource| {
            source.handle.children.all().map(|shard| shard.list.lock().live).sum::<usize>()
        };
        let cancelled = CancellationTokenSource::new();
        cancelled.cancel();
        let (parent, further) = (CancellationTokenSource::new(), CancellationTokenSource::new());
        let tokens = [&parent, &further].map(CancellationTokenSource::token);
        let born = CancellationTokenSource::linked([&tokens[1], &cancelled.token()]);
        let by_parent = CancellationTokenSource::linked(&tokens);
        let before = by_parent.token().child_source();
        assert!(parent.cancel());
        for source in [&cancelled, &born, &parent, &by_parent] {
            let was = linked(source);
            let children: Vec<_> = (0..100).map(|_| source.token().child_source()).collect();
            assert!(children.iter().all(CancellationTokenSource::is_cancelled));
            assert_eq!(linked(source), was);
        }
        assert_eq!([&born, &by_parent, &further].map(linked), [0, 1, 1], "linked to parents before any was cancelled");
        assert!(further.cancel() && before.is_cancelled());
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
