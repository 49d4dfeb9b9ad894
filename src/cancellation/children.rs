//! The shards of a source: linked sources (children), and wakers when many futures wait for the
//! source.
//!
//! Ground rules. A source has no shard before its first child, then a single shard. When a thread
//! finds the lock of this shard taken, the source *spreads*, for good. From then on each core has a
//! shard of its own, made at its first use. So threads that make and drop children of a long-lived
//! source do not contend, and a source with few children costs the same on a machine of any size.
//! Entries of the first shard stay in the first shard.
//!
//! A child holds its shard, not its parent: the parent's reference count would be a cache line
//! contended by all cores. The shard holds the child weakly. If children remain when
//! the last handle of the parent is dropped, each shard with children takes a reference to the
//! parent (`keep`) until its last child is unlinked. So the parents and the timed cancel of a
//! parent still cancel the child, however short the handles of the parent live.
//!
//! The wakers of waiting futures lie beside the callbacks, until two threads meet at their lock.
//! Then the source spreads, and later wakers are stored in the shards of the cores. (Most tokens
//! have few waiting futures and need no shards.)
//!
//! A child locks shards only to link and to unlink, a single shard at a time. A cancelling parent
//! takes a bounded number of entries in a lock section, and marks these children after the section.
//! A child linked between two sections sees the parent cancelled: the child's lock section comes
//! after a section of the canceller, which comes after the parent's mark.

use std::sync::Arc;
use std::task::Waker;

use super::Inner;
use crate::engine::{TimerArc, TimerWeak};
use crate::slab::{PAGE, Slab};
use crate::sync::{Mutex, OnceLock};

/// A shard of a source. Aligned so that two shards never share a cache line.
#[repr(align(128))]
struct Shard {
    members: Mutex<Members>,
    /// In the first shard: the shards of the cores, once the source has spread.
    spread: OnceLock<Box<[OnceLock<Arc<Shard>>]>>,
    /// The source, for the deadlines of its children. Alive while the shard has a child: either the
    /// source has a handle, or `keep` is set.
    source: TimerWeak<Inner>,
}

#[derive(Default)]
struct Members {
    children: Slab<TimerWeak<Inner>>,
    /// The wakers of futures that wait for the source. (A future has a handle of its own.)
    wakers: Slab<Waker>,
    /// The parent, kept alive for its children after its last handle was dropped.
    keep: Option<TimerArc<Inner>>,
}

impl Shard {
    fn new(source: TimerWeak<Inner>) -> Arc<Self> {
        Arc::new(Self { members: Mutex::new(Members::default()), spread: OnceLock::new(), source })
    }

    /// Gives each core a shard of its own, made at its first use.
    fn spread(&self) -> &[OnceLock<Arc<Self>>] {
        self.spread.get_or_init(|| (0..crate::sys::cpu::count()).map(|_| OnceLock::new()).collect())
    }

    /// The shard of the core that the calling thread runs on, with its number.
    fn here(&self) -> (usize, &Arc<Self>) {
        let spread = self.spread();
        let core = crate::sys::cpu::current() % spread.len();
        (core, spread[core].get_or_init(|| Self::new(self.source.clone())))
    }

    /// The shards of the cores.
    fn by_core(&self) -> impl Iterator<Item = &Arc<Self>> {
        self.spread.get().into_iter().flat_map(|spread| spread.iter().filter_map(OnceLock::get))
    }
}

/// The shards of a source. A shard that the canceller does not see is made after the mark: see the
/// fences in `Inner::cancel`.
pub(super) struct Shards {
    first: OnceLock<Arc<Shard>>,
}

/// The link of a child to a parent. Dropping the link unlinks.
pub(super) struct ParentLink {
    /// `None`: unlinked.
    shard: Option<Arc<Shard>>,
    index: u32,
}

/// The place of a waker: the core of the shard, and the index there.
#[derive(Clone, Copy)]
pub(super) struct InShard {
    core: u32,
    index: u32,
}

impl Shards {
    pub(super) fn new() -> Self {
        Self { first: OnceLock::new() }
    }

    /// The first shard of this source.
    #[inline]
    fn first_of(source: &TimerArc<Inner>) -> &Arc<Shard> {
        source.children.first.get_or_init(|| Shard::new(source.downgrade()))
    }

    /// Links a child to this source.
    pub(super) fn link(parent: &TimerArc<Inner>, child: TimerWeak<Inner>) -> ParentLink {
        let first = Self::first_of(parent);
        if first.spread.get().is_none() {
            if let Some(mut members) = first.members.try_lock() {
                let index = members.children.insert(child);
                return ParentLink { shard: Some(Arc::clone(first)), index };
            }
        }
        let (_, shard) = first.here();
        let index = shard.members.lock().children.insert(child);
        ParentLink { shard: Some(Arc::clone(shard)), index }
    }

    /// Gives each core a shard of its own.
    #[cfg(all(test, timerqueue_loom))]
    pub(super) fn spread(source: &TimerArc<Inner>) {
        Self::first_of(source).spread();
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

    fn all(&self) -> impl Iterator<Item = &Arc<Shard>> {
        self.first.get().into_iter().flat_map(|first| std::iter::once(first).chain(first.by_core()))
    }

    /// Calls `see` with each living child, outside the locks. The children stay linked. A lock
    /// section looks at [`PAGE`] children at most.
    pub(super) fn children(&self, mut see: impl FnMut(TimerArc<Inner>)) {
        let mut batch = Vec::new();
        for shard in self.all() {
            let mut next = Some(0);
            while let Some(from) = next {
                batch.reserve(PAGE); // no allocation under the lock
                next = shard.members.lock().children.scan(from, |child| batch.extend(child.upgrade()));
                batch.drain(..).for_each(&mut see);
            }
        }
    }

    /// Stores the waker of a future that found the lock of the callbacks taken, or the source
    /// spread.
    pub(super) fn insert_waker(source: &TimerArc<Inner>, waker: Waker) -> InShard {
        let (core, shard) = Self::first_of(source).here();
        InShard { core: core as u32, index: shard.members.lock().wakers.insert(waker) }
    }

    /// Stores the latest waker of a future, and returns the previous in `waker`.
    ///
    /// A canceller may have taken the waker, and a later future may have the index. Both futures
    /// store their wakers after the section of the canceller then, and find the source cancelled.
    pub(super) fn renew_waker(&self, at: InShard, waker: &mut Waker) {
        let Some(shard) = self.shard(at) else { return };
        if let Some(stored) = shard.members.lock().wakers.get_mut(at.index) {
            std::mem::swap(stored, waker);
        }
    }

    /// Removes the waker of a future that waits no more. (Of a cancelled source, perhaps another
    /// one, which is not needed either: see [`Self::renew_waker`].) The caller drops the result.
    pub(super) fn remove_waker(&self, at: InShard) -> Option<Waker> {
        let mut members = self.shard(at)?.members.lock();
        let (waker, _after_the_lock) = members.wakers.take_out(at.index);
        drop(members);
        waker
    }

    fn shard(&self, at: InShard) -> Option<&Arc<Shard>> {
        self.first.get()?.spread.get()?.get(at.core as usize)?.get()
    }

    /// Takes out all wakers, and calls `see` with each, outside the locks.
    pub(super) fn take_wakers(&self, see: &mut dyn FnMut(Waker)) {
        for shard in self.first.get().into_iter().flat_map(|first| first.by_core()) {
            let wakers = std::mem::take(&mut shard.members.lock().wakers);
            wakers.take_each(see);
        }
    }

    /// The last handle of the parent is dropped: shards with children keep the parent alive.
    #[inline]
    pub(super) fn keep(&self, parent: &TimerArc<Inner>) {
        if !self.are_there() {
            return;
        }
        for shard in self.all() {
            let mut members = shard.members.lock();
            if !members.children.is_empty() {
                members.keep = Some(parent.clone());
            }
        }
    }
}

impl ParentLink {
    /// The parent, unless the link has been removed.
    pub(super) fn parent(&self) -> Option<TimerArc<Inner>> {
        self.shard.as_ref()?.source.upgrade()
    }

    /// Removes the child. Returns the reference to the parent if this was the last child; the
    /// caller passes it to [`let_go`].
    fn unlink(&mut self) -> Option<TimerArc<Inner>> {
        let shard = self.shard.take()?;
        let mut members = shard.members.lock();
        let _after_the_lock = members.children.take_out(self.index);
        let keep = if members.children.is_empty() { members.keep.take() } else { None };
        drop(members);
        keep
    }
}

impl Drop for ParentLink {
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
fn let_go(parent: TimerArc<Inner>) {
    let mut parents = Vec::new();
    let mut next = Some(parent);
    while let Some(parent) = next {
        // Dropping the state does not unwind: panics in destructors of callbacks and of panic
        // handlers are caught there.
        if let Some(links) = parent.end(|inner| std::mem::take(&mut inner.links)) {
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
            source.handle.children.all().map(|shard| shard.members.lock().children.len()).sum::<usize>()
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
                let _other_thread = first.members.lock();
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
