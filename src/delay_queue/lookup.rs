//! Finding an entry by its key, with the user's `Hash` and `Eq` called outside of the lock.
//!
//! Ground rules. `Hash` is called before the lock is taken. If no entry has the same hash, no key
//! is compared. Else the entries with this hash are pinned, the lock is released, and the keys are
//! compared. A second lock section gives the pins back, and checks the result:
//!
//! - The matching entry must still be in the queue, else the search begins anew.
//! - If no key has matched, all entries with this hash must be among the compared ones, else the
//!   search begins anew.
//!
//! Keys whose `Eq` is the standard library's ([`is_plain`]) are compared at once, in the first
//! section.
//!
//! Else `Eq` may panic (the pins go back on the way), take long, or call the queue. A pinned entry
//! can be removed, replaced and moved. It is not delivered before the comparison ends; `drain`
//! waits for that. A call of `drain` inside of `Eq` would wait for itself, so on a thread that
//! compares ([`COMPARING`]) it leaves pinned entries in the queue.

use std::any::TypeId;
use std::borrow::Borrow;
use std::cell::Cell;
use std::hash::{BuildHasher, Hash};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::shared::{Section, Shared};
use super::state::Entry;

crate::sync::thread_local! {
    /// Comparisons of keys that this thread is inside of.
    static COMPARING: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread is inside of a comparison of keys.
pub(super) fn is_comparing() -> bool {
    COMPARING.try_with(Cell::get).unwrap_or(0) > 0
}

/// The hash of a key for the table. Mixed, since the table uses the low and the high bits, and a
/// hasher may be weak.
#[inline]
pub(super) fn hash_of<Q: Hash + ?Sized>(hasher: &impl BuildHasher, key: &Q) -> u64 {
    let hash = hasher.hash_one(key);
    let hash = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}

/// Whether comparing such values runs no code but the standard library's, and takes no time to
/// speak of: so it may run under the lock. Known to the compiler: costs nothing at run time.
#[inline]
fn is_plain<T: ?Sized + 'static>() -> bool {
    let id = TypeId::of::<T>();
    let is = |plain: &[TypeId]| plain.contains(&id);
    is(&[TypeId::of::<u8>(), TypeId::of::<u16>(), TypeId::of::<u32>(), TypeId::of::<u64>(), TypeId::of::<u128>()])
        || is(&[
            TypeId::of::<i8>(),
            TypeId::of::<i16>(),
            TypeId::of::<i32>(),
            TypeId::of::<i64>(),
            TypeId::of::<i128>(),
        ])
        || is(&[TypeId::of::<usize>(), TypeId::of::<isize>(), TypeId::of::<char>(), TypeId::of::<bool>()])
        || is(&[TypeId::of::<str>(), TypeId::of::<String>(), TypeId::of::<&str>(), TypeId::of::<Box<str>>()])
        || is(&[TypeId::of::<Arc<str>>(), TypeId::of::<[u8]>(), TypeId::of::<Vec<u8>>(), TypeId::of::<[u8; 16]>()])
        || is(&[TypeId::of::<[u8; 32]>(), TypeId::of::<IpAddr>(), TypeId::of::<SocketAddr>()])
}

/// The pinned entries of a search. Dropped by a panic of `Eq`: gives the pins back.
struct Pinned<'a, K, V> {
    shared: &'a Shared<K, V>,
    first: Option<Entry<K, V>>,
    /// Hashes of 64 bits are seldom equal, unless the keys are.
    more: Vec<Entry<K, V>>,
}

impl<K, V> Pinned<'_, K, V> {
    fn iter(&self) -> impl Iterator<Item = &Entry<K, V>> {
        self.first.iter().chain(&self.more)
    }

    /// Gives the pins back, and all references but one to `found`.
    fn unpin(&mut self, section: &mut Section<'_, K, V>, found: Option<usize>) -> (Option<Entry<K, V>>, bool) {
        let (mut kept, mut ready) = (None, false);
        for (at, entry) in self.first.take().into_iter().chain(self.more.drain(..)).enumerate() {
            if found == Some(at) {
                kept = Some(entry.clone());
            }
            ready |= section.unpin(entry);
        }
        (kept, ready)
    }
}

impl<K, V> Drop for Pinned<'_, K, V> {
    fn drop(&mut self) {
        if self.first.is_some() {
            let mut section = self.shared.lock();
            let _ = self.unpin(&mut section, None);
            section.settle();
        }
    }
}

/// Marks the thread as inside of a comparison.
struct Inside;

impl Inside {
    fn enter() -> Self {
        let _ = COMPARING.try_with(|depth| depth.set(depth.get() + 1));
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = COMPARING.try_with(|depth| depth.set(depth.get() - 1));
    }
}

impl<K, V> Shared<K, V> {
    /// A lock section, and the entry with this key. The caller gives the entry's reference back
    /// before the section ends, unless it has removed the entry.
    #[inline]
    pub(super) fn find<Q>(&self, hash: u64, key: &Q) -> (Section<'_, K, V>, Option<Entry<K, V>>)
    where
        K: Borrow<Q> + 'static,
        Q: Eq + ?Sized + 'static,
    {
        let mut section = self.lock();
        if section.first_with(hash).is_none() {
            return (section, None);
        }
        if is_plain::<K>() && is_plain::<Q>() {
            let found = section.first_equal(hash, |other| other.borrow() == key);
            return (section, found);
        }
        self.compare(section, hash, key)
    }

    fn compare<'a, Q>(
        &'a self,
        mut section: Section<'a, K, V>,
        hash: u64,
        key: &Q,
    ) -> (Section<'a, K, V>, Option<Entry<K, V>>)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        loop {
            let mut pinned = Pinned { shared: self, first: None, more: Vec::new() };
            let mut at = section.first_with(hash).cloned();
            while let Some(entry) = at {
                section.pin(&entry);
                at = section.next_with(&entry);
                match &pinned.first {
                    None => pinned.first = Some(entry),
                    Some(_) => pinned.more.push(entry),
                }
            }
            drop(section);

            let inside = Inside::enter();
            let found = pinned.iter().position(|entry| entry.shared().key.borrow() == key);
            drop(inside);

            section = self.lock();
            let is_current = match found {
                Some(at) => pinned.iter().nth(at).is_some_and(|entry| section.is_in(entry)),
                None => section.all_are_among(hash, &pinned),
            };
            let (entry, ready) = pinned.unpin(&mut section, found.filter(|_| is_current));
            if ready {
                section.will_settle(); // an entry came due while its key was compared
            }
            if is_current {
                return (section, entry);
            }
            section.breathe();
        }
    }
}

impl<K, V> Section<'_, K, V> {
    /// Whether each entry with this hash is one of the pinned. A new entry becomes the first, and
    /// the order of the others stays: so if the first is known, all are.
    fn all_are_among(&self, hash: u64, pinned: &Pinned<'_, K, V>) -> bool {
        self.first_with(hash).is_none_or(|first| pinned.iter().any(|known| known.is(first)))
    }
}
