//! A walk over a whole queue, which asserts I1, I2, I3 and I4. In tests, and with
//! `--cfg timerqueue_check`.

#![allow(unsafe_code)] // contract of the lists

use std::ptr::NonNull;

use super::super::node::Kind;
use super::*;

impl<X> TimerWheel<X> {
    /// Asserts the invariants that hold between two calls. Entries of futures may be later than
    /// their slots, by [`Node::postpone`]. Returns the earliest due point, [`NEVER`] when no timer
    /// comes due.
    pub(crate) fn check(&self) -> u64 {
        let key = &Key::new();
        let (mut seen, mut earliest) = (0, NEVER);
        let mut see = |node: NonNull<Node<X>>| {
            // SAFETY: linked, hence alive (promise of the caller of `insert`).
            let due = unsafe { node.as_ref().fires_at(key) };
            seen += 1;
            earliest = earliest.min(due);
            due
        };
        // SAFETY: as above.
        let is_future = |node: NonNull<Node<X>>| unsafe { node.as_ref() }.kind() == Kind::Waker;
        // SAFETY (all): linked nodes are alive (promise of the caller of `insert`).
        #[allow(clippy::undocumented_unsafe_blocks)]
        {
            self.levels.short.for_each(key, |index, node| {
                let due = see(node);
                let ahead = ShortLevel::<X>::index((index as u64).wrapping_sub(self.cursor)) as u64;
                let later = due >> SLOT_SHIFT > self.cursor + ahead;
                assert!(
                    !later || self.levels.short.is_loose(index) || is_future(node),
                    "a slot with a timer that was moved later is marked"
                );
                // A slot may reach beyond the threshold, and a timer that is moved later within its
                // slot goes along.
                let same_slot = due >> SLOT_SHIFT == self.threshold() >> SLOT_SHIFT;
                assert!(
                    later || same_slot || due <= self.threshold(),
                    "a short timer is due at or before the threshold"
                );
                assert_eq!(unsafe { node.as_ref().location(key) }, Location::slot(SHORT, index));
                assert!(self.levels.short.earliest(index) <= due, "the bound of a slot is a bound");
                let slot = self.levels.short.first_at_or_after(self.cursor).expect("occupied");
                assert!(slot <= (due >> SLOT_SHIFT).max(self.cursor), "no short timer is behind the cursor");
            });
            self.levels.long.for_each(key, |index, node| {
                let due = see(node);
                assert!(due > self.threshold(), "a long timer is due after the threshold");
                let ahead = LongLevel::<X>::index((index as u64).wrapping_sub(self.open)) as u64;
                let later =
                    (due / WINDOW_NS).checked_sub(self.open + ahead).expect("no long timer is due before its slot");
                assert!(ahead > 0, "what stands in the open window is short");
                assert!(
                    later == 0 || self.levels.long.is_loose(index) || is_future(node),
                    "a slot with a timer that was moved later is marked"
                );
                let bound = self.levels.long.earliest(index);
                assert!(
                    bound <= due && bound / WINDOW_NS == self.open + ahead,
                    "the bound of a slot lies in its window"
                );
                assert!(self.levels.long.count(index) > 0);
            });
            self.levels.far.for_each(key, |index, node| {
                let due = see(node);
                let group = due / WINDOW_NS / GROUP;
                assert!(group * GROUP > self.open, "a far timer's group has not begun");
                if !is_future(node) {
                    assert!(group - self.open / GROUP < FAR_SLOTS as u64, "one turn at the most");
                    assert_eq!(FarLevel::<X>::index(group), index);
                }
                assert!(self.levels.far.earliest(index) <= due && self.levels.far.count(index) > 0);
            });
            self.overflow.for_each(key, |node| assert!(self.overflow_earliest <= see(node)));
            self.endless.for_each(key, |node| assert_eq!(see(node), END, "what is there has no end"));
            self.levels.fine.for_each(key, |spot, node| {
                assert_eq!(
                    unsafe { node.as_ref().location(key) },
                    Location::slot(FINE + spot.level as u16, spot.index)
                );
                assert!(self.fine, "what is there is known of");
                assert!(
                    self.levels.fine.bound(spot) >> SLOT_SHIFT <= self.cursor,
                    "what is there is of the slot at the cursor"
                );
                (see(node), !is_future(node))
            });
            self.expiring.for_each(key, |node| _ = see(node));
            self.cascading.for_each(key, |node| _ = see(node));
        }
        assert_eq!(seen, self.len, "every timer is in exactly one list");
        if earliest < END { earliest } else { NEVER }
    }
}
