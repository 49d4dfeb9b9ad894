//! The levels of the timing wheel: one table of slots, each an intrusive list, under a bitmap that
//! finds the next occupied slot of a level.
//!
//! Ground rules: as for [`super::list`]. A level is a row of the table ([`LEVELS`]): slots of one
//! width. The *position* of an instant in a level is the instant divided by the width. A slot
//! serves the positions that are a whole turn of its level apart; that the occupied positions of a
//! level lie within one turn is the duty of the wheel (I5). Each slot keeps a lower bound of the
//! due points of its nodes (I3): exact until a node is unlinked or moved (`is_loose`), then perhaps
//! too low until the slot is emptied. Too low costs an empty sweep; too high would lose a timer,
//! and cannot happen.

#![allow(unsafe_code)] // passes on the safety conditions of the list

use std::ops::{ControlFlow, Range};
use std::ptr::NonNull;

use super::list::{Linked, List, TakenList};
use super::node::{Key, Node};
use crate::sys::os::{Zeroable, fetch_line};
use crate::time::NEVER;

/// The width of a window: how far the threshold advances each time. .NET's constant.
pub(crate) const WINDOW_NS: u64 = 333_000_000;
/// A short slot is 2^18 ns = 262 us wide: 1,271 slots to a window, so the bitmaps stay within a
/// page and the slots within a second-level cache. Narrower slots gained nothing in the bench.
/// Deadlines inside a slot are exact, and the fine levels order a crowded slot.
pub(super) const SLOT_SHIFT: u32 = 18;
/// The windows of a far slot.
pub(super) const GROUP: u64 = 1024;

/// A row of the table: slots of one width.
pub(super) struct Level {
    /// The first slot: a multiple of `slots`.
    first: usize,
    /// A power of two.
    pub(super) slots: u64,
    /// The bits of its words in their half of the summary.
    words: u64,
    pub(super) width_ns: u64,
}

/// The rows, the finest first.
pub(super) const LEVELS: [Level; 8] = [
    // The fine levels: a crowded short slot, cut down to a nanosecond.
    Level::new(64, 64, 1),
    Level::new(128, 64, 1 << 6),
    Level::new(192, 64, 1 << 12),
    // Two windows may be open at once (the second ahead of time), and a bit more.
    Level::new(4096, 4096, 1 << SLOT_SHIFT),
    // Twice a group, so a group can cascade while the group before is still in use.
    Level::new(2048, 2 * GROUP, WINDOW_NS),
    Level::new(1024, 1024, GROUP * WINDOW_NS),
    // The overflow list: what is beyond the far level, at position 0.
    Level::new(256, 64, NEVER),
    // Timers queued for ever, at position 0: found at the end of the runtime, and never looked at
    // before.
    Level::new(320, 64, NEVER),
];

pub(super) const SHORT: usize = 3;
pub(super) const LONG: usize = 4;
pub(super) const FAR: usize = 5;
pub(super) const OVERFLOW: usize = 6;
pub(super) const ENDLESS: usize = 7;

const _: () = {
    let (fine, short, window) = (&LEVELS[SHORT - 1], &LEVELS[SHORT], WINDOW_NS);
    assert!(fine.slots * fine.width_ns == short.width_ns, "the fine levels divide a short slot");
    assert!(
        short.slots * short.width_ns > 3 * window + 2 * short.width_ns,
        "two open windows, and one that the cursor lags behind, fit the short level without two instants sharing a slot"
    );
};

impl Level {
    const fn new(first: usize, slots: u64, width_ns: u64) -> Self {
        assert!(slots.is_power_of_two() && slots >= 64, "a level has words of the bitmap of its own");
        assert!(first % slots as usize == 0 && first > 0 && first / 4096 == (first + slots as usize - 1) / 4096);
        let words = (!0 >> (64 - slots / 64)) << (first / 64 % 64);
        Self { first, slots, words, width_ns }
    }

    /// The slot that serves a position.
    #[inline]
    pub(super) const fn slot(&self, position: u64) -> usize {
        self.first + (position & (self.slots - 1)) as usize
    }

    /// The position that a slot serves, at or after `from` by less than a turn.
    #[inline]
    pub(super) const fn position_of(&self, slot: usize, from: u64) -> u64 {
        from.wrapping_add((slot as u64).wrapping_sub(from) & (self.slots - 1))
    }

    /// The first position of the turn of a position.
    #[inline]
    pub(super) const fn turn_of(&self, position: u64) -> u64 {
        position & !(self.slots - 1)
    }

    #[inline]
    pub(super) const fn position_at(&self, at: u64) -> u64 {
        at / self.width_ns
    }

    /// The first instant of a position.
    #[inline]
    pub(super) const fn begins(&self, position: u64) -> u64 {
        position * self.width_ns
    }

    /// The half of the summary that has the level's words, and their bits in it.
    #[inline]
    const fn words(&self) -> (usize, u64) {
        (self.first / 4096, self.words)
    }
}

/// Some of the levels, as their words in the summary.
#[derive(Clone, Copy)]
pub(super) struct Rows([u64; WORDS / 64]);

impl Rows {
    pub(super) const fn of(levels: Range<usize>) -> Self {
        let (mut rows, mut level) = ([0; WORDS / 64], levels.start);
        while level < levels.end {
            let (half, words) = LEVELS[level].words();
            rows[half] |= words;
            level += 1;
        }
        Self(rows)
    }
}

/// Slots of the table, of which a few belong to no level.
const SLOTS: usize = 8192;
/// Words of the bitmap.
const WORDS: usize = SLOTS / 64;

/// The level of a slot.
#[inline]
pub(super) const fn level_of(slot: usize) -> usize {
    const LEVEL_OF_WORD: [u8; WORDS] = {
        let (mut of_word, mut level) = ([0; WORDS], 0);
        while level < LEVELS.len() {
            let (first, mut word) = (LEVELS[level].first / 64, 0);
            while word < LEVELS[level].slots as usize / 64 {
                of_word[first + word] = level as u8;
                word += 1;
            }
            level += 1;
        }
        of_word
    };
    LEVEL_OF_WORD[slot / 64 % WORDS] as usize
}

/// Whether a slot is of the fine levels or of the short level. (Coarser slots come between.)
#[inline]
pub(super) const fn is_short_or_fine(slot: usize) -> bool {
    slot < LEVELS[OVERFLOW].first || slot >= LEVELS[SHORT].first
}

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
    fn lower(&mut self, due: u64) {
        self.earliness = self.earliness.max(NEVER - due);
    }
}

/// The table. All zeroes are an empty table. Of a queue with little use, few of its pages are in
/// memory.
///
/// A mask cuts each slot number down to the length of its array, so the machine code has no bounds
/// check.
#[repr(C)] // the bitmaps and the fine levels share the first pages
pub(super) struct Levels<X> {
    /// A bit per word of `occupied`, set while the word is not zero.
    summary: [u64; WORDS / 64],
    /// A bit per slot, set while its list is occupied.
    occupied: [u64; WORDS],
    slots: [Slot<X>; SLOTS],
}

// SAFETY: all zeroes are an empty table: a `List` is an array of `Option<NonNull>`, of which zero
// is `None`; the rest are numbers.
unsafe impl<X> Zeroable for Levels<X> {}

/// A slot number, its word, and its bit in the bitmap.
#[inline]
fn cut(slot: usize) -> (usize, usize, u64) {
    debug_assert!(slot < SLOTS, "slot {slot} of {SLOTS}");
    let slot = slot % SLOTS;
    (slot, slot / 64, 1 << (slot % 64))
}

impl<X> Levels<X> {
    /// Whether a level among `rows` has nodes.
    #[inline]
    pub(super) fn any(&self, Rows([low, high]): Rows) -> bool {
        self.summary[0] & low != 0 || self.summary[1] & high != 0
    }

    /// Calls `see` with the levels among `rows` that have nodes, in no order of time.
    #[inline(always)] // so that the short level is a constant
    pub(super) fn for_each_occupied(&self, Rows([low, high]): Rows, mut see: impl FnMut(usize)) {
        let mut words = self.summary[0] & low;
        while words != 0 {
            let level = level_of(words.trailing_zeros() as usize * 64);
            words &= !LEVELS[level].words;
            see(level);
        }
        if self.summary[1] & high != 0 {
            see(SHORT); // has this half alone
        }
    }

    /// At or before the due point of each node of the slot; [`NEVER`] if it is empty.
    #[inline]
    pub(super) fn earliest(&self, slot: usize) -> u64 {
        NEVER - self.slots[cut(slot).0].earliness
    }

    /// About how many nodes the slot holds: never too low.
    #[inline]
    pub(super) fn count(&self, slot: usize) -> u64 {
        self.slots[cut(slot).0].tally / ONE
    }

    /// Whether the bound of the slot may be too early.
    pub(super) fn is_loose(&self, slot: usize) -> bool {
        self.slots[cut(slot).0].tally & LOOSE != 0
    }

    /// # Safety
    /// As [`List::push`].
    #[inline]
    pub(super) unsafe fn push(&mut self, slot: usize, node: NonNull<Node<X>>, due: u64, key: &Key) {
        let (slot, word, bit) = cut(slot);
        let slot = &mut self.slots[slot];
        // SAFETY: the caller says that `node` is alive, kept alive, and in no list.
        unsafe { slot.list.push(node, key) };
        if slot.earliness == 0 {
            self.occupied[word] |= bit;
            self.summary[word / 64] |= 1 << (word % 64);
        }
        slot.lower(due);
        slot.tally += ONE;
    }

    /// A node of this slot is now due at `due`, in this slot's span or after it: keeps the bound of
    /// the slot a bound (I3).
    #[inline]
    pub(super) fn stay(&mut self, slot: usize, due: u64) {
        let slot = &mut self.slots[cut(slot).0];
        if slot.earliness == 0 {
            return; // the node is in a taken chain
        }
        slot.lower(due);
        slot.tally |= LOOSE;
    }

    /// Prefetches a slot, and the words of the bitmap that find it.
    pub(super) fn fetch(&self, slot: usize) {
        let (slot, word, _) = cut(slot);
        let at = (&raw const self.slots[slot]).cast::<u8>();
        fetch_line(at);
        fetch_line(at.wrapping_add(size_of::<Slot<X>>() - 1));
        fetch_line((&raw const self.occupied[word]).cast());
        fetch_line((&raw const self.summary).cast());
    }

    /// Unlinks a node that was pushed to this slot. If the slot's chain has been taken meanwhile,
    /// the node is in `taken`: this matters only when the node is the head of a stripe (I16).
    ///
    /// # Safety
    /// `node` is linked in the slot's list or in `taken`.
    #[inline(always)] // cancelling is the hot path
    pub(super) unsafe fn unlink(&mut self, slot: usize, node: NonNull<Node<X>>, taken: &mut TakenList<X>, key: &Key) {
        if taken.unlink_leader(node, key) {
            return;
        }
        let its = &mut self.slots[cut(slot).0];
        // SAFETY: the caller says that `node` is in the slot's list or in `taken`; there it is not
        // a head, as tested above.
        let emptied = unsafe { its.list.unlink(node, key) };
        // While the chain of the slot is still being dealt with, nothing tells which of the two the
        // node was in. A new slot that is crowded must not look empty.
        if !taken.has_nodes_of(slot) {
            its.tally = its.tally.saturating_sub(ONE);
        }
        if emptied && its.list.is_empty() {
            self.mark_empty(slot);
        } else if its.earliness != 0 {
            its.tally |= LOOSE; // an empty slot has no bound: the node was in the taken chain
        }
    }

    /// Takes the chain of a slot; the slot is empty afterwards.
    pub(super) fn take(&mut self, slot: usize) -> TakenList<X> {
        let list = self.slots[cut(slot).0].list.take(slot);
        self.mark_empty(slot);
        list
    }

    #[inline(always)] // as `unlink`
    fn mark_empty(&mut self, slot: usize) {
        let (slot, word, bit) = cut(slot);
        self.slots[slot].earliness = 0;
        self.slots[slot].tally = 0;
        self.occupied[word] &= !bit;
        if self.occupied[word] == 0 {
            self.summary[word / 64] &= !(1 << (word % 64));
        }
    }

    /// The first occupied position of a level at or after `from`, provided that all occupied
    /// positions lie within a turn from there.
    #[inline]
    pub(super) fn first(&self, level: usize, from: u64) -> Option<u64> {
        let level = &LEVELS[level];
        let (half, words) = level.words();
        let words = self.summary[half] & words;
        if words == 0 {
            return None;
        }
        let start = level.slot(from);
        let (_, word, _) = cut(start);
        let here = self.occupied[word] >> (start % 64);
        if here != 0 {
            return Some(from + u64::from(here.trailing_zeros()));
        }
        // Later words first, then round the turn up to and including this word.
        let later = words & (!1 << (word % 64));
        let word = (half * 64 + if later != 0 { later } else { words }.trailing_zeros() as usize) % WORDS;
        let slot = word * 64 + self.occupied[word].trailing_zeros() as usize;
        Some(level.position_of(slot, from))
    }

    /// Calls `visit` for each node of a slot, until `visit` breaks.
    pub(super) fn visit<'a>(
        &'a self,
        slot: usize,
        key: &Key,
        visit: impl FnMut(Linked<'a, X>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.slots[cut(slot).0].list.visit(key, visit)
    }

    /// Calls `visit` with slot and node for every node, and asserts that bitmaps, lists, bounds
    /// and counts agree.
    #[cfg(any(test, timerqueue_check))]
    pub(super) fn for_each(&self, key: &Key, mut visit: impl FnMut(usize, NonNull<Node<X>>)) {
        for (index, slot) in self.slots.iter().enumerate() {
            let marked = self.occupied[index / 64] >> (index % 64) & 1 == 1;
            assert_eq!(marked, !slot.list.is_empty(), "bit and list of slot {index} agree");
            assert_eq!(slot.list.is_empty(), slot.earliness == 0, "an empty slot {index} has no bound, a full one has");
            assert!(slot.tally == 0 || !slot.list.is_empty(), "an empty slot {index} has no flags");
            let mut nodes = 0;
            slot.list.for_each(key, |node| {
                nodes += 1;
                visit(index, node);
            });
            assert!(slot.tally / ONE >= nodes, "slot {index} has at most as many nodes as it counts");
        }
        for (i, word) in self.occupied.iter().enumerate() {
            assert_eq!(self.summary[i / 64] >> (i % 64) & 1 == 1, *word != 0, "summary bit {i} agrees");
        }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::sys::os::Pages;

    #[test]
    fn no_slot_is_of_two_levels() {
        for (level, row) in LEVELS.iter().enumerate() {
            for position in 0..row.slots {
                let slot = row.slot(position);
                assert_eq!((level_of(slot), is_short_or_fine(slot)), (level, level <= SHORT), "slot {slot}");
                assert_eq!(row.position_of(slot, position), position);
                assert_eq!(row.position_of(slot, position + 1), position + row.slots);
            }
        }
    }

    #[test]
    fn finds_the_next_occupied_slot_from_everywhere() {
        let key = Key::for_tests();
        let nodes: [Node<u32>; 2] = std::array::from_fn(|i| Node::new(1, i as u32));
        let mut none = TakenList::new();
        let mut levels = Pages::<Levels<u32>>::zeroed();
        for (level, row) in LEVELS.iter().enumerate() {
            // A neighbour in another level makes no difference.
            let other = LEVELS[(level + 1) % LEVELS.len()].slot(7);
            // SAFETY: the nodes outlive the table; each is in at most one list at a time.
            unsafe { levels.push(other, NonNull::from(&nodes[1]), 9, &key) };
            for position in (0..row.slots).step_by(if cfg!(miri) { 61 } else { row.slots as usize / 64 }) {
                let slot = row.slot(position);
                assert!(levels.first(level, position).is_none());
                assert!(!levels.any(Rows::of(level..level + 1)));
                // SAFETY: the nodes outlive the table; each is in at most one list at a time.
                unsafe { levels.push(slot, NonNull::from(&nodes[0]), 5, &key) };
                for from in (0..2 * row.slots).step_by(row.slots as usize / 64).flat_map(|at| [at, at + 1]) {
                    let want = from + (position + 2 * row.slots - from) % row.slots;
                    assert_eq!(levels.first(level, from), Some(want), "slot {slot} from {from}");
                }
                assert_eq!((levels.earliest(slot), levels.count(slot)), (5, 1));
                assert!(levels.any(Rows::of(level..level + 1)));
                let mut occupied = Vec::new();
                levels.for_each_occupied(Rows::of(0..level + 1), |level| occupied.push(level));
                occupied.retain(|&level| level_of(other) != level);
                assert_eq!(occupied, [level]);
                // SAFETY: linked in this slot.
                unsafe { levels.unlink(slot, NonNull::from(&nodes[0]), &mut none, &key) };
                assert_eq!((levels.earliest(slot), levels.count(slot)), (NEVER, 0));
            }
            // SAFETY: linked in this slot.
            unsafe { levels.unlink(other, NonNull::from(&nodes[1]), &mut none, &key) };
        }
        levels.for_each(&key, |slot, _| unreachable!("a node in slot {slot}"));
    }

    /// The count goes on beyond 32 bits, and the mark for moved nodes leaves the count alone.
    #[test]
    fn the_count_of_a_slot_is_exact_beyond_32_bits() {
        let key = Key::for_tests();
        let nodes: [Node<()>; 4] = std::array::from_fn(|_| Node::new(1, ()));
        let mut none = TakenList::new();
        let mut levels = Pages::<Levels<()>>::zeroed();
        let push = |levels: &mut Levels<()>, i: usize| {
            // SAFETY: the nodes outlive the table, and each is linked once.
            unsafe { levels.push(70, NonNull::from(&nodes[i]), 5, &key) };
        };
        let mut unlink = |levels: &mut Levels<()>, i: usize| {
            // SAFETY: linked in this slot before.
            unsafe { levels.unlink(70, NonNull::from(&nodes[i]), &mut none, &key) };
        };
        const MANY: u64 = u32::MAX as u64 - 1;
        push(&mut levels, 0);
        levels.slots[70].tally = MANY * ONE; // as if so many nodes were in the slot
        for i in 1..4 {
            push(&mut levels, i);
            assert_eq!(levels.count(70), MANY + i as u64);
        }
        assert!(!levels.is_loose(70));
        levels.stay(70, 6);
        for i in 1..4 {
            assert!(levels.is_loose(70));
            unlink(&mut levels, i);
            assert_eq!(levels.count(70), MANY + 3 - i as u64);
        }
        unlink(&mut levels, 0);
        assert_eq!((levels.count(70), levels.is_loose(70)), (0, false), "empty");
    }
}
