//! The fine rings: one crowded short slot, cut into three levels of 64 slots, down to a nanosecond.
//!
//! Ground rules: as for [`super::ring`]. Each level holds the timers of one *group*, the span that the 64 slots of the level
//! divide: 2^18 ns (a short slot), 2^12 ns, 2^6 ns. A level that is empty may take up any group, and keeps it until it is empty
//! again. So the first occupied slot of a level is its earliest, and the earliest of all is in one of three slots.
//!
//! Timers are dealt from the short slot to the coarsest level, and from a slot of one level to the level below: no timer is
//! looked at more often than there are levels, however many share its microsecond.

use std::ptr::NonNull;

use super::list::Chain;
use super::node::{Key, Node};
use super::ring::Ring;

/// Levels, the finest first.
pub(crate) const LEVELS: usize = 3;
/// Each level has 2^6 slots.
const BITS: usize = 6;
type Level<X> = Ring<X, { 1 << BITS }>;

const _: () = assert!(
    LEVELS * BITS == super::timer_queue::SLOT_SHIFT as usize,
    "the levels divide a short slot, to a nanosecond"
);

/// See the module's ground rules. All zeroes are an empty one.
pub(crate) struct Fine<X> {
    levels: [Level<X>; LEVELS],
    /// Of each level that is not empty: what the instants in it have in common, without the bits below.
    groups: [u64; LEVELS],
}

/// A slot of a level.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    pub(crate) level: usize,
    pub(crate) index: usize,
}

/// The group of an instant in a level.
fn group(level: usize, at: u64) -> u64 {
    at >> (BITS * (level + 1))
}

impl<X> Fine<X> {
    /// Files a node that has been dealt from level `from` ([`LEVELS`]: from the short slot), one level below that if it can be had.
    /// `None`: the coarsest level holds another short slot's timers, and nothing was done.
    ///
    /// # Safety
    /// As [`super::list::List::push`].
    #[allow(unsafe_code)] // hands the contract of the list through
    pub(crate) unsafe fn file(&mut self, node: NonNull<Node<X>>, due: u64, from: usize, key: &Key) -> Option<Spot> {
        let level = (0..LEVELS).find(|&level| {
            let takes_up = level + 1 >= from && self.levels[level].is_empty();
            takes_up || (!self.levels[level].is_empty() && self.groups[level] == group(level, due))
        })?;
        let index = Level::<X>::index(due >> (BITS * level));
        // SAFETY: the caller's contract.
        unsafe { self.levels[level].push(index, node, due, key) };
        self.groups[level] = group(level, due);
        Some(Spot { level, index })
    }

    /// # Safety
    /// As [`Ring::unlink`].
    #[allow(unsafe_code)] // hands the contract of the list through
    pub(crate) unsafe fn unlink(&mut self, spot: Spot, node: NonNull<Node<X>>, taken: &mut Chain<X>, key: &Key) {
        // SAFETY: the caller's contract.
        unsafe { self.levels[spot.level].unlink(spot.index, node, taken, key) };
    }

    /// The slot with the earliest bound, and the bound.
    pub(crate) fn first(&self) -> Option<(u64, Spot)> {
        let first_of = |(level, ring): (usize, &Level<X>)| {
            let index = ring.first_at_or_after(0)? as usize;
            Some((ring.earliest(index), Spot { level, index }))
        };
        self.levels.iter().enumerate().filter_map(first_of).min_by_key(|&(bound, _)| bound)
    }

    /// Whether the bound of a slot may be too early. In the finest level all timers of a slot are due at one instant.
    pub(crate) fn is_loose(&self, spot: Spot) -> bool {
        spot.level > 0 && self.levels[spot.level].is_loose(spot.index)
    }

    pub(crate) fn take(&mut self, spot: Spot) -> Chain<X> {
        self.levels[spot.level].take(spot.index)
    }

    /// Calls `visit` with spot and node for every node, and asserts what must hold.
    #[cfg(any(test, timerqueue_check))]
    pub(crate) fn for_each(&self, key: &Key, mut visit: impl FnMut(Spot, NonNull<Node<X>>) -> u64) {
        for (level, ring) in self.levels.iter().enumerate() {
            ring.for_each(key, |index, node| {
                let due = visit(Spot { level, index }, node);
                assert_eq!(self.groups[level], group(level, due), "one group in level {level}");
                assert_eq!(index, Level::<X>::index(due >> (BITS * level)), "the slot of its instant in level {level}");
                assert!(ring.earliest(index) <= due, "the bound of a slot is a bound");
            });
        }
    }
}
