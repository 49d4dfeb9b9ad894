//! Tests of the table of keys, against a set.

use std::collections::BTreeSet;

use super::*;
use crate::queue::MissedTicks;

struct Rig {
    entries: Entries<u64, ()>,
    table: KeyTable<u64, ()>,
    random: u64,
}

impl Rig {
    fn new() -> Self {
        Self { entries: ItemWheel::new(), table: KeyTable::new(), random: 7 }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % n
    }

    /// Adds an entry with this hash, which is its key too.
    fn insert(&mut self, hash: u64) -> QueueEntry<u64, ()> {
        let body = Body { value: (), next: None };
        let entry = self.entries.item(Keyed { hash, key: hash }, body, MissedTicks::default().into(), 0);
        self.table.insert(&mut self.entries, entry.clone());
        entry
    }

    fn remove(&mut self, entry: &QueueEntry<u64, ()>) {
        self.table.remove(&mut self.entries, entry);
    }

    fn has(&self, hash: u64) -> bool {
        self.table.chain(&self.entries, hash).any(|entry| entry.shared().hash == hash)
    }

    /// The hashes of a whole walk, and what `meanwhile` does after each step.
    fn walk(&mut self, mut meanwhile: impl FnMut(&mut Self)) -> Vec<u64> {
        let (mut met, mut next) = (Vec::new(), Some(0));
        while let Some(cursor) = next {
            next = self.table.walk(&self.entries, cursor, |entry| met.push(entry.shared().hash));
            meanwhile(self);
        }
        met
    }
}

/// Spreads small numbers over all bits.
fn hash(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[test]
fn entries_are_found_as_the_table_grows_and_shrinks() {
    let mut rig = Rig::new();
    assert!(!rig.has(0) && rig.walk(|_| {}).is_empty());
    let mut entries: Vec<_> = (0..3_000).map(|n| rig.insert(hash(n))).collect();
    assert_eq!(rig.table.buckets.len(), 3_000);
    assert!((0..3_000).all(|n| rig.has(hash(n))) && !rig.has(hash(3_001)));
    for left in (0..3_000_usize).rev() {
        let at = rig.below(left as u64 + 1) as usize;
        let gone = entries.swap_remove(at);
        rig.remove(&gone);
        assert!(!rig.has(gone.shared().hash));
        assert!(rig.table.buckets.len() <= 2 * left + SPARE + 2 && rig.table.len() == left);
        if left % 100 == 0 {
            assert!(entries.iter().all(|entry| rig.has(entry.shared().hash)));
        }
    }
    assert!(rig.table.buckets.capacity() <= 8 * SPARE, "{} places left", rig.table.buckets.capacity());
}

#[test]
fn no_insertion_or_removal_at_rest_changes_the_number_of_buckets() {
    let mut rig = Rig::new();
    let mut entries: Vec<_> = (0..500).map(|n| rig.insert(hash(n))).collect();
    let buckets = rig.table.buckets.len();
    for n in 500..900 {
        rig.remove(&entries.swap_remove(n as usize % 500));
        entries.push(rig.insert(hash(n)));
        assert_eq!(rig.table.buckets.len(), buckets);
    }
}

#[test]
fn entries_with_the_same_hash_are_all_there() {
    let mut rig = Rig::new();
    let same: Vec<_> = (0..300).map(|_| rig.insert(5)).collect();
    let others: Vec<_> = (0..300).map(|n| rig.insert(n << 32)).collect();
    assert_eq!(rig.table.chain(&rig.entries, 5).filter(|entry| entry.shared().hash == 5).count(), 300);
    for gone in [0, 299, 150] {
        rig.remove(&same[gone]);
    }
    assert_eq!(rig.walk(|_| {}).len(), 597);
    others.iter().for_each(|entry| rig.remove(entry));
    assert_eq!(rig.walk(|_| {}), [5; 297]);
}

/// Without the comparison with the cursor, buckets that merge are met twice; in the order of the
/// buckets, entries that a split moves are met twice or not at all.
#[test]
fn a_walk_meets_what_stays_once_whatever_comes_and_goes() {
    for (growing, shrinking) in [(1, 0), (2, 1), (5, 5), (0, 9), (0, 40)] {
        let mut rig = Rig::new();
        let staying: BTreeSet<u64> = (0..400).map(hash).collect();
        let kept: Vec<_> = staying.iter().map(|&hash| rig.insert(hash)).collect();
        let mut others: Vec<_> = (1_000..4_000).map(|n| rig.insert(hash(n))).collect();
        let mut fresh = 10_000;
        let met = rig.walk(|rig| {
            for _ in 0..growing {
                fresh += 1;
                let entry = rig.insert(hash(fresh));
                others.push(entry);
            }
            for _ in 0..shrinking.min(others.len()) {
                let at = rig.below(others.len() as u64) as usize;
                rig.remove(&others.swap_remove(at));
            }
        });
        let stayed: Vec<u64> = met.iter().copied().filter(|hash| staying.contains(hash)).collect();
        assert_eq!((stayed.len(), BTreeSet::from_iter(stayed)), (400, staying), "+{growing} -{shrinking}");
        let once: BTreeSet<u64> = met.iter().copied().collect();
        assert_eq!(once.len(), met.len(), "none twice");
        drop(kept);
    }
}
