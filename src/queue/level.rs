//! A level of the timing wheel: slots, each an intrusive list, under a bitmap that finds the next
//! occupied slot.
//!
//! Ground rules: as for [`super::list`]. A level knows slot indices, not time; its user maps
//! instants to slots. Each slot keeps a lower bound of the due points of its nodes (I3): exact
//! until a node is unlinked or moved (`is_loose`), then perhaps too low until the slot is emptied.
//! Too low costs an empty sweep; too high would lose a timer, and cannot happen.

#![allow(unsafe_code)] // passes on the safety conditions of the list

use std::ops::ControlFlow;
use std::ptr::NonNull;

use super::list::{Linked, List, TakenList};
use super::node::{Key, Node};
use crate::sys::os::fetch_line;
use crate::time::NEVER;

/// All zeroes are an empty slot.
struct Slot<X> {
    list: List<X>,
    /// Counted back from [`NEVER`]: at or before the due point of every node in `list`. Zero when
    /// empty.
    earliness: u64,
    /// Twice the count of its nodes, and the flag [`LOOSE`].
    ///
    /// A single word holds both, so the count has 63 bits in a slot of 48 bytes: memory is full
    /// before the count overflows.
    tally: u64,
}

/// In a tally: a single node.
const ONE: u64 = 2;
/// In a tally: nodes were unlinked or moved since the slot was last empty, so the bound may be too
/// early, and nodes may be due in the span of a later slot.
const LOOSE: u64 = 1;

impl<X> Slot<X> {
    fn earliest(&self) -> u64 {
        NEVER - self.earliness
    }

    fn lower(&mut self, due: u64) {
        self.earliness = self.earliness.max(NEVER - due);
    }

    fn count(&self) -> u64 {
        self.tally / ONE
    }
}

/// All zeroes are an empty level, and [`crate::sys::os`] is the only way to make a level.
///
/// A mask cuts each index down to the length of its array, so the machine code has no bounds check.
pub(crate) struct Level<X, const SLOTS: usize> {
    slots: [Slot<X>; SLOTS],
    /// A bit per slot, set while its list is occupied.
    occupied: [u64; WORDS],
    /// A bit per word of `occupied`, set while the word is not zero.
    summary: u64,
}

/// Words of a bitmap, as many as the summary word has bits.
const WORDS: usize = 64;

impl<X, const SLOTS: usize> Level<X, SLOTS> {
    const SHAPE: () =
        assert!(SLOTS.is_power_of_two() && SLOTS >= 64 && SLOTS <= 64 * WORDS, "one summary word is enough");

    pub(crate) fn is_empty(&self) -> bool {
        self.summary == 0
    }

    /// The index of the slot that serves the absolute position `at`.
    #[inline]
    pub(crate) fn index(at: u64) -> usize {
        const { Self::SHAPE };
        at as usize & (SLOTS - 1)
    }

    /// The slot, and its word and its bit in the bitmap.
    #[inline]
    fn cut(index: usize) -> (usize, usize, u64) {
        debug_assert!(index < SLOTS, "slot {index} of {SLOTS}");
        let index = index & (SLOTS - 1);
        (index, (index / 64) % WORDS, 1 << (index % 64))
    }

    pub(crate) fn earliest(&self, index: usize) -> u64 {
        self.slots[index].earliest()
    }

    /// About how many nodes the slot holds: never too low.
    pub(crate) fn count(&self, index: usize) -> u64 {
        self.slots[index].count()
    }

    /// # Safety
    /// As [`List::push`].
    pub(crate) unsafe fn push(&mut self, index: usize, node: NonNull<Node<X>>, due: u64, key: &Key) {
        let (index, word, bit) = Self::cut(index);
        let slot = &mut self.slots[index];
        // SAFETY: the caller says that `node` is alive, kept alive, and in no list.
        unsafe { slot.list.push(node, key) };
        if slot.earliness == 0 {
            self.occupied[word] |= bit;
            self.summary |= 1 << word;
        }
        slot.lower(due);
        slot.tally += ONE;
    }

    /// A node of this slot is now due at `due`, in this slot's span or after it: keeps the bound of
    /// the slot a bound (I3).
    #[inline]
    pub(crate) fn stay(&mut self, index: usize, due: u64) {
        let slot = &mut self.slots[Self::cut(index).0];
        if slot.earliness == 0 {
            return; // the node is in a taken chain
        }
        slot.lower(due);
        slot.tally |= LOOSE;
    }

    /// Prefetches a slot, and the words of the bitmap that find it.
    pub(crate) fn fetch(&self, index: usize) {
        let (index, word, _) = Self::cut(index);
        let slot = (&raw const self.slots[index]).cast::<u8>();
        fetch_line(slot);
        fetch_line(slot.wrapping_add(size_of::<Slot<X>>() - 1));
        fetch_line((&raw const self.occupied[word]).cast());
        fetch_line((&raw const self.summary).cast());
    }

    /// Whether the bound of the slot may be too early.
    pub(crate) fn is_loose(&self, index: usize) -> bool {
        self.slots[index].tally & LOOSE != 0
    }

    /// Unlinks a node that was pushed to slot `index`. If the slot's chain has been taken
    /// meanwhile, the node is in `taken`: this matters only when the node is the head of a stripe
    /// (I16).
    ///
    /// # Safety
    /// `node` is linked in the slot's list or in `taken`.
    #[inline(always)] // cancelling is the hot path
    pub(crate) unsafe fn unlink(&mut self, index: usize, node: NonNull<Node<X>>, taken: &mut TakenList<X>, key: &Key) {
        let slot = &mut self.slots[Self::cut(index).0];
        if taken.unlink_leader(node, key) {
            return;
        }
        // SAFETY: the caller says that `node` is in the slot's list or in `taken`; there it is not
        // a head, as tested above.
        let emptied = unsafe { slot.list.unlink(node, key) };
        slot.tally = slot.tally.saturating_sub(ONE);
        if emptied && slot.list.is_empty() {
            self.mark_empty(index);
        } else if slot.earliness != 0 {
            slot.tally |= LOOSE; // an empty slot has no bound: the node was in the taken chain
        }
    }

    /// Takes the chain of a slot; the slot is empty afterwards.
    pub(crate) fn take(&mut self, index: usize) -> TakenList<X> {
        let list = self.slots[index].list.take();
        self.mark_empty(index);
        list
    }

    #[inline(always)] // as `unlink`
    fn mark_empty(&mut self, index: usize) {
        let (index, word, bit) = Self::cut(index);
        self.slots[index].earliness = 0;
        self.slots[index].tally = 0;
        self.occupied[word] &= !bit;
        if self.occupied[word] == 0 {
            self.summary &= !(1 << word);
        }
    }

    /// The first occupied absolute position at or after `from`, provided that all occupied
    /// positions lie within a turn.
    pub(crate) fn first_at_or_after(&self, from: u64) -> Option<u64> {
        if self.summary == 0 {
            return None;
        }
        let start = Self::index(from);
        let (word, bit) = ((start / 64) % WORDS, start % 64);
        let here = self.occupied[word] >> bit;
        if here != 0 {
            return Some(from + u64::from(here.trailing_zeros()));
        }
        // Later words first, then round the turn up to and including this word.
        let later = self.summary & (!0 << word) & !(1 << word);
        let word = if later != 0 { later } else { self.summary }.trailing_zeros() as usize;
        let index = word * 64 + self.occupied[word].trailing_zeros() as usize;
        let distance = (index + SLOTS - start) & (SLOTS - 1);
        Some(from + distance as u64)
    }

    /// Calls `visit` for each node of a slot, until `visit` breaks.
    pub(crate) fn visit<'a>(
        &'a self,
        index: usize,
        key: &Key,
        visit: impl FnMut(Linked<'a, X>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.slots[index].list.visit(key, visit)
    }

    /// Calls `visit` with slot index and node for every node.
    #[cfg(any(test, timerqueue_check))]
    pub(crate) fn for_each(&self, key: &Key, mut visit: impl FnMut(usize, NonNull<Node<X>>)) {
        for (index, slot) in self.slots.iter().enumerate() {
            let marked = self.occupied[index / 64] >> (index % 64) & 1 == 1;
            assert_eq!(marked, !slot.list.is_empty(), "bit and list of slot {index} agree");
            assert_eq!(slot.list.is_empty(), slot.earliness == 0, "an empty slot {index} has no bound, a full one has");
            assert!(slot.tally == 0 || !slot.list.is_empty(), "an empty slot {index} has no flags");
            slot.list.for_each(key, |node| visit(index, node));
        }
        for (i, word) in self.occupied.iter().enumerate() {
            assert_eq!(self.summary >> i & 1 == 1, *word != 0, "summary bit {i} agrees");
        }
    }
}

// ---------------------------------------------------------------- the fine levels
//
// A crowded short slot, cut into three levels of 64 slots, down to a nanosecond. Each level holds
// the timers of a single *group*, the span of the level's 64 slots together: 2^18 ns (a short
// slot), 2^12 ns, 2^6 ns. An empty level may take any group, and keeps this group until the level
// is empty again. So the first occupied slot of a level is its earliest, and the earliest timer of
// all is in one of three slots.
//
// Timers cascade from the short slot to the coarsest level, and from a slot of a level to the level
// below. No timer is looked at more often than there are levels, however many timers share its
// microsecond.

/// Levels, the finest first.
pub(crate) const FINE_LEVELS: usize = 3;
/// Each level has 2^6 slots.
const FINE_BITS: usize = 6;
type FineLevel<X> = Level<X, { 1 << FINE_BITS }>;

const _: () = assert!(
    FINE_LEVELS * FINE_BITS == super::wheel::SLOT_SHIFT as usize,
    "the levels divide a short slot, to a nanosecond"
);

/// The fine levels. All zeroes are empty levels.
pub(crate) struct Fine<X> {
    levels: [FineLevel<X>; FINE_LEVELS],
    /// Of each level that is not empty: the common high bits of its instants.
    groups: [u64; FINE_LEVELS],
}

/// A slot of a level.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    pub(crate) level: usize,
    pub(crate) index: usize,
}

/// The group of an instant in a level.
fn group(level: usize, at: u64) -> u64 {
    at >> (FINE_BITS * (level + 1))
}

impl<X> Fine<X> {
    /// Inserts a node popped from a slot of level `from` ([`FINE_LEVELS`]: of the short slot), into
    /// the level below if possible. `None`: no level could take the node (the coarsest holds timers
    /// of a different short slot), and nothing was done.
    ///
    /// # Safety
    /// As [`super::list::List::push`].
    pub(crate) unsafe fn insert(&mut self, node: NonNull<Node<X>>, due: u64, from: usize, key: &Key) -> Option<Spot> {
        let level = (0..FINE_LEVELS).find(|&level| {
            let takes_up = level + 1 >= from && self.levels[level].is_empty();
            takes_up || (!self.levels[level].is_empty() && self.groups[level] == group(level, due))
        })?;
        let index = FineLevel::<X>::index(due >> (FINE_BITS * level));
        // SAFETY: the caller says that `node` is alive, kept alive, and in no list.
        unsafe { self.levels[level].push(index, node, due, key) };
        self.groups[level] = group(level, due);
        Some(Spot { level, index })
    }

    /// # Safety
    /// As [`Level::unlink`].
    pub(crate) unsafe fn unlink(&mut self, spot: Spot, node: NonNull<Node<X>>, taken: &mut TakenList<X>, key: &Key) {
        // SAFETY: the caller says that `node` is in the slot `spot` or in `taken`.
        unsafe { self.levels[spot.level].unlink(spot.index, node, taken, key) };
    }

    /// The slot with the earliest bound, and the bound.
    pub(crate) fn first(&self) -> Option<(u64, Spot)> {
        let first_of = |(level, slots): (usize, &FineLevel<X>)| {
            let index = slots.first_at_or_after(0)? as usize;
            Some((slots.earliest(index), Spot { level, index }))
        };
        self.levels.iter().enumerate().filter_map(first_of).min_by_key(|&(bound, _)| bound)
    }

    #[cfg(any(test, timerqueue_check))]
    pub(crate) fn bound(&self, spot: Spot) -> u64 {
        self.levels[spot.level].earliest(spot.index)
    }

    /// Whether the bound of a slot may be too early. In the finest level all timers of a slot are
    /// due at the same instant.
    pub(crate) fn is_loose(&self, spot: Spot) -> bool {
        spot.level > 0 && self.levels[spot.level].is_loose(spot.index)
    }

    pub(crate) fn take(&mut self, spot: Spot) -> TakenList<X> {
        self.levels[spot.level].take(spot.index)
    }

    /// Calls `visit` for each node, until `visit` breaks.
    pub(crate) fn visit<'a>(
        &'a self,
        key: &Key,
        visit: &mut impl FnMut(Linked<'a, X>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for slots in &self.levels {
            let mut slot = slots.first_at_or_after(0);
            while let Some(at) = slot.filter(|&at| at < 1 << FINE_BITS) {
                slots.visit(at as usize, key, &mut *visit)?;
                slot = slots.first_at_or_after(at + 1);
            }
        }
        ControlFlow::Continue(())
    }

    /// Calls `visit` with spot and node for every node, and asserts the bound, and group and slot
    /// as well if `visit` says so.
    #[cfg(any(test, timerqueue_check))]
    pub(crate) fn for_each(&self, key: &Key, mut visit: impl FnMut(Spot, NonNull<Node<X>>) -> (u64, bool)) {
        for (level, slots) in self.levels.iter().enumerate() {
            slots.for_each(key, |index, node| {
                let (due, is_exact) = visit(Spot { level, index }, node);
                assert_eq!(self.groups[level], group(level, slots.earliest(index)), "the group of level {level}");
                if is_exact {
                    assert_eq!(self.groups[level], group(level, due), "one group in level {level}");
                    let its_slot = FineLevel::<X>::index(due >> (FINE_BITS * level));
                    assert_eq!(index, its_slot, "the slot of its instant in level {level}");
                }
                assert!(slots.earliest(index) <= due, "the bound of a slot is a bound");
            });
        }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::sys::os::{Pages, Zeroable};

    #[test]
    fn finds_the_next_occupied_slot_from_everywhere() {
        type Small = Level<u32, 256>;
        // SAFETY: all zeroes are an empty level (documented at `Level`).
        unsafe impl Zeroable for Small {}
        let key = Key::for_tests();
        let node = Node::new(1, 0u32);
        let at = NonNull::from(&node);
        let mut none = TakenList::new();
        for index in 0..256usize {
            let mut level = Pages::<Small>::zeroed();
            // SAFETY: `node` outlives the level and is in at most one list at a time.
            unsafe { level.push(index, at, 5, &key) };
            for from in 0..512u64 {
                let want = (from..from + 256).find(|&p| Small::index(p) == index);
                assert_eq!(level.first_at_or_after(from), want, "slot {index} from {from}");
            }
            assert_eq!((level.earliest(index), level.count(index)), (5, 1));
            // SAFETY: linked in this level.
            unsafe { level.unlink(index, at, &mut none, &key) };
            assert!(level.is_empty());
            assert_eq!((level.earliest(index), level.count(index)), (NEVER, 0));
        }
    }

    /// The count goes on beyond 32 bits, and the mark for moved nodes leaves the count alone.
    #[test]
    fn the_count_of_a_slot_is_exact_beyond_32_bits() {
        type Small = Level<(), 128>;
        // SAFETY: all zeroes are an empty level (documented at `Level`).
        unsafe impl Zeroable for Small {}
        let key = Key::for_tests();
        let nodes: [Node<()>; 4] = std::array::from_fn(|_| Node::new(1, ()));
        let mut none = TakenList::new();
        let mut level = Pages::<Small>::zeroed();
        let push = |level: &mut Small, i: usize| {
            // SAFETY: the nodes outlive the level, and each is linked once.
            unsafe { level.push(7, NonNull::from(&nodes[i]), 5, &key) };
        };
        let mut unlink = |level: &mut Small, i: usize| {
            // SAFETY: linked in this slot before.
            unsafe { level.unlink(7, NonNull::from(&nodes[i]), &mut none, &key) };
        };
        const MANY: u64 = u32::MAX as u64 - 1;
        push(&mut level, 0);
        level.slots[7].tally = MANY * ONE; // as if so many nodes were in the slot
        for i in 1..4 {
            push(&mut level, i);
            assert_eq!(level.count(7), MANY + i as u64);
        }
        assert!(!level.is_loose(7));
        level.stay(7, 6);
        for i in 1..4 {
            assert!(level.is_loose(7));
            unlink(&mut level, i);
            assert_eq!(level.count(7), MANY + 3 - i as u64);
        }
        unlink(&mut level, 0);
        assert_eq!((level.count(7), level.is_loose(7)), (0, false), "empty");
    }
}
