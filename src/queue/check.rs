//! A walk over a whole queue, which asserts the invariants I1 to I5 of the queue. In tests, and
//! with `--cfg timerqueue_check`.

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
        // The slot at hand, and whether its bound is exact, marked, or one that may be postponed.
        let (mut last, mut is_met) = (0, true);
        let mut see = |node: NonNull<Node<X>>| {
            // SAFETY: linked, hence alive (promise of the caller of `insert`).
            let shared = unsafe { node.as_ref() };
            let due = shared.fires_at(key);
            seen += 1;
            earliest = earliest.min(due);
            (shared, due)
        };
        self.levels.for_each(key, |slot, node| {
            let (node, due) = see(node);
            let level = level_of(slot);
            let (row, front) = (&LEVELS[level], self.front[level]);
            let position = row.position_of(slot, front);
            let bound = self.levels.earliest(slot);
            assert_eq!(node.location(key).as_slot(), Some(slot), "the location names the slot");
            assert!(bound <= due, "the bound of a slot is a bound");
            let at_cursor = level == SHORT && position == front;
            assert!(due >= row.begins(position) || at_cursor, "no timer is due before its slot, of level {level}");
            assert!(row.position_at(bound) == position || at_cursor, "the bound of a slot lies in its span");
            let is_later = row.position_at(due) > position;
            let is_marked = self.levels.is_loose(slot) && (SHORT..=FAR).contains(&level);
            assert!(!is_later || is_marked || node.kind() == Kind::Waker, "a slot with a moved timer is marked");
            if slot != last {
                assert!(is_met, "a bound that may be too early is marked");
                (last, is_met) = (slot, false);
            }
            is_met |= due == bound || self.levels.is_loose(slot) || node.kind() == Kind::Waker;
            match level {
                // A slot may reach beyond the threshold, and a timer that is moved later within its
                // slot goes along. A late sweep moves the cursor past the threshold, and opens the
                // windows up to there afterwards.
                SHORT => assert!(
                    at_cursor || due.min(row.begins(position)) <= self.threshold(),
                    "a short timer is due at or before the threshold"
                ),
                ENDLESS => assert_eq!(due, END, "what is there has no end"),
                LONG.. => assert!(bound > self.threshold(), "a long timer is due after the threshold"),
                _ => {
                    assert_eq!(front, row.turn_of(position), "the timers of a fine level are of one turn");
                    assert!(bound >> SLOT_SHIFT <= self.cursor(), "they are of the slot at the cursor");
                }
            }
        });
        assert!(is_met, "a bound that may be too early is marked");
        assert_eq!((self.front[FAR], self.open_until), (self.open() / GROUP, end_of(self.open())));
        for (chain, is_fine) in [(&self.expiring, true), (&self.cascading, false)] {
            chain.list.for_each(key, |node| {
                let (node, due) = see(node);
                let slot = node.location(key).as_slot().expect("a location");
                assert!(chain.has_nodes_of(slot) && is_short_or_fine(slot) == is_fine, "nodes of one slot");
                let level = level_of(slot);
                let position = LEVELS[level].position_of(slot, self.front[level]);
                let is_here = level < SHORT || level == SHORT && position == self.cursor();
                assert!(is_here || due >= LEVELS[level].begins(position), "the slot still serves the same span");
            });
        }
        assert_eq!(seen, self.len, "every timer is in exactly one list");
        if earliest < END { earliest } else { NEVER }
    }
}
