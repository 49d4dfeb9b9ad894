//! The table of keys: a linear hash table, whose buckets are chains through the entries.
//!
//! Ground rules. Under the lock of the queue. No user code: the caller compares keys. The table
//! holds a reference to each of its entries.
//!
//! **Linear hashing** (Litwin, 1980). An insertion into a full table adds one bucket, and splits
//! the one bucket that shares its low bits. A removal from a sparse table merges two. So the table
//! is not rebuilt under the lock: an operation works on a chain or two, and copies an array of
//! words when that doubles. A bucket is a word, where a map from hash to entry takes 17 bytes for
//! each of its places, up to half of them free.
//!
//! **A walk** ([`KeyTable::walk`]) visits the entries in the order of their hashes, read from
//! the lowest bit on. Splitting and merging keep this order: the entries of a bucket always are
//! those of an interval. So a walk over many lock sections meets each entry that stays exactly
//! once, also while entries are inserted and removed. (Insertions that add buckets faster than the
//! walk visits buckets make the walk long.)

use super::item_wheel::ItemWheel;
use super::state::{Body, Keyed, QueueEntry};

/// A table with more buckets than two for each entry, and these, merges some.
const SPARE: usize = 64;

type Entries<K, V> = ItemWheel<Keyed<K>, Body<K, V>>;

/// See the module's ground rules.
pub(super) struct KeyTable<K, V> {
    buckets: Vec<Option<QueueEntry<K, V>>>,
    len: usize,
}

impl<K, V> KeyTable<K, V> {
    pub(super) const fn new() -> Self {
        Self { buckets: Vec::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The bucket of a hash: by its low bits, and by one bit less where that bucket is not yet
    /// split off. Caller: there is a bucket.
    #[inline]
    fn bucket_of(&self, hash: u64) -> usize {
        let mask = (2 << self.top()) - 1;
        let bucket = hash as usize & mask;
        if bucket < self.buckets.len() { bucket } else { bucket & (mask >> 1) }
    }

    /// The number of the highest bit that chooses a bucket.
    #[inline]
    fn top(&self) -> u32 {
        (self.buckets.len() - 1).max(1).ilog2()
    }

    /// The entries in the bucket of a hash, in no order.
    #[inline]
    pub(super) fn chain<'a>(&'a self, entries: &'a Entries<K, V>, hash: u64) -> Chain<'a, K, V> {
        let first = if self.buckets.is_empty() { None } else { self.buckets[self.bucket_of(hash)].as_ref() };
        Chain { entries, next: first }
    }

    /// Adds an entry.
    #[inline]
    pub(super) fn insert(&mut self, entries: &mut Entries<K, V>, entry: QueueEntry<K, V>) {
        if self.len >= self.buckets.len() {
            self.split(entries);
        }
        self.len += 1;
        self.push(entries, entry);
    }

    #[inline]
    fn push(&mut self, entries: &mut Entries<K, V>, entry: QueueEntry<K, V>) {
        let bucket = self.bucket_of(entry.shared().hash);
        let first = self.buckets[bucket].take();
        entries.body(&entry).next = first;
        self.buckets[bucket] = Some(entry);
    }

    /// Removes an entry of the table, whose reference the caller has. The reference of the table
    /// goes.
    #[inline]
    pub(super) fn remove(&mut self, entries: &mut Entries<K, V>, entry: &QueueEntry<K, V>) {
        let bucket = self.bucket_of(entry.shared().hash);
        // The entries before it in the chain: taken off, and put back in reverse.
        let (mut before, mut at) = (None, self.buckets[bucket].take());
        while let Some(here) = at {
            at = entries.body(&here).next.take();
            if here.is(entry) {
                self.len -= 1;
                break;
            }
            entries.body(&here).next = before;
            before = Some(here);
        }
        while let Some(here) = before {
            before = std::mem::replace(&mut entries.body(&here).next, at);
            at = Some(here);
        }
        self.buckets[bucket] = at;
        if self.buckets.len() > 2 * self.len + SPARE {
            self.merge(entries);
            self.merge(entries);
        }
    }

    /// Adds a bucket, with its share of another.
    fn split(&mut self, entries: &mut Entries<K, V>) {
        let added = self.buckets.len();
        self.buckets.push(None);
        if added > 0 {
            // The bucket that has had the entries of the new one.
            let chain = self.buckets[added & !(1 << added.ilog2())].take();
            self.push_all(entries, chain);
        }
    }

    /// Gives up the last bucket.
    fn merge(&mut self, entries: &mut Entries<K, V>) {
        if let Some(chain) = self.buckets.pop() {
            self.push_all(entries, chain);
        }
        // As a `HashMap` that shrinks, a table that is copied has a word for each entry, and more.
        if self.buckets.capacity() / 4 > self.buckets.len() {
            self.buckets.shrink_to(2 * self.buckets.len());
        }
    }

    fn push_all(&mut self, entries: &mut Entries<K, V>, mut chain: Option<QueueEntry<K, V>>) {
        while let Some(entry) = chain {
            chain = entries.body(&entry).next.take();
            self.push(entries, entry);
        }
    }

    /// A step of a walk that begins with a cursor of zero: calls `visit` with the entries of a
    /// bucket that the walk has not visited. Returns the cursor of the next step. `None`: the walk
    /// is over.
    pub(super) fn walk(
        &self,
        entries: &Entries<K, V>,
        cursor: u64,
        visit: impl FnMut(&QueueEntry<K, V>),
    ) -> Option<u64> {
        if self.buckets.is_empty() {
            return None;
        }
        let bucket = self.bucket_of(cursor.reverse_bits());
        // The number of bits that choose the bucket: one less where it is not split yet.
        let top = self.top();
        let is_whole = bucket < 1 << top && bucket + (1 << top) >= self.buckets.len();
        let bits = top + u32::from(!is_whole);
        let chain = Chain { entries, next: self.buckets[bucket].as_ref() };
        chain.filter(|entry| entry.shared().hash.reverse_bits() >= cursor).for_each(visit);
        // `None`: all hashes, in a table with a single bucket.
        let width = 1_u64.checked_shl(u64::BITS - bits)?;
        (cursor & !(width - 1)).checked_add(width)
    }
}

/// The entries of a bucket.
pub(super) struct Chain<'a, K, V> {
    entries: &'a Entries<K, V>,
    next: Option<&'a QueueEntry<K, V>>,
}

impl<'a, K, V> Iterator for Chain<'a, K, V> {
    type Item = &'a QueueEntry<K, V>;

    #[inline]
    fn next(&mut self) -> Option<&'a QueueEntry<K, V>> {
        let here = self.next?;
        self.next = self.entries.body_ref(here).next.as_ref();
        Some(here)
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
#[path = "key_table_tests.rs"]
mod tests;
