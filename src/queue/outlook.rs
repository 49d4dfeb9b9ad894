//! What comes next: the next coarse slots, the next deadline, and a walk over the timers that are
//! due next. Nothing here changes the queue.
//!
//! Ground rules of the walk. Slots are visited in order of time, so the walk can end early. Within
//! a slot there is no order. The taken chains and the fine levels come first, whatever they hold.

use std::ops::ControlFlow;

use super::super::list::Linked;
use super::*;

/// When the cascade of a slot of `count` nodes must begin, with the earliest node due at
/// `earliest`.
fn cascade_at(earliest: u64, count: u64) -> u64 {
    if count <= CROWDED { earliest } else { earliest.saturating_sub(count * CASCADE_NS) }
}

impl<X> TimerWheel<X> {
    /// The next window with timers in the long level. (Open windows have no timers there.)
    pub(super) fn next_window(&self) -> Option<u64> {
        self.levels.long.first_at_or_after(self.open)
    }

    /// The next group with timers in the far level.
    pub(super) fn next_group(&self) -> Option<u64> {
        self.levels.far.first_at_or_after(self.open / GROUP)
    }

    /// The first window that may have timers in the far level or the overflow list.
    pub(super) fn first_unopened_window(&self) -> u64 {
        let far = self.next_group().map_or(NEVER, |group| group * GROUP);
        // An empty list has no first window: the window of `NEVER` is the clock's last, which may
        // hold timers.
        let overflow = if self.overflow.is_empty() { NEVER } else { self.overflow_earliest / WINDOW_NS };
        far.min(overflow)
    }

    /// When to open a window: at its earliest due point, or earlier if its cascade takes a while,
    /// but not before the window in front has begun (the short level has room for two, I5).
    pub(super) fn window_opens_at(&self, window: u64) -> u64 {
        let index = LongLevel::<X>::index(window);
        cascade_at(self.levels.long.earliest(index), self.levels.long.count(index)).max((window - 1) * WINDOW_NS)
    }

    /// The instant at which this queue must be swept next, [`NEVER`] when no queued timer comes
    /// due.
    ///
    /// At or before the earliest due point (I6). Before it only for slots that are crowded or whose
    /// earliest timer was unlinked or moved later. Meaningful when [`Self::next_due`] has answered
    /// [`Next::Nothing`].
    pub(crate) fn next_deadline(&self) -> u64 {
        if self.len == 0 {
            return NEVER; // without a look into the levels, which lie in memory of their own
        }
        let short = self
            .levels
            .short
            .first_at_or_after(self.cursor)
            .map_or(NEVER, |slot| self.levels.short.earliest(ShortLevel::<X>::index(slot)));
        // A crowded window after the next must perhaps be opened before the first timer of the next
        // is due.
        let long = self
            .next_window()
            .map_or(NEVER, |window| self.window_opens_at(window).min(self.window_opens_at(window + 1)));
        let far = self.next_group().map_or(NEVER, |group| {
            let index = FarLevel::<X>::index(group);
            cascade_at(self.levels.far.earliest(index), self.levels.far.count(index))
        });
        let fine = self.first_fine().map_or(NEVER, |(bound, _)| bound);
        let next = short.min(fine).min(long).min(far).min(self.overflow_earliest);
        if next < END { next } else { NEVER }
    }

    /// Calls `visit` with queued timers, until `visit` breaks. Before each slot, `ends` is called
    /// with an instant: no timer that has not been visited is due before it. If `ends` returns
    /// true, the walk is over. Returns whether it came to its end.
    pub(crate) fn walk<'a>(
        &'a self,
        mut ends: impl FnMut(u64) -> bool,
        mut visit: impl FnMut(Linked<'a, X>) -> ControlFlow<()>,
    ) -> bool {
        let key = &self.key;
        let mut walk = || {
            self.expiring.visit(key, &mut visit)?;
            self.cascading.visit(key, &mut visit)?;
            if self.fine {
                self.levels.fine.visit(key, &mut visit)?;
            }
            let mut slot = self.levels.short.first_at_or_after(self.cursor);
            while let Some(at) = slot.filter(|&at| at < self.cursor + SHORT_SLOTS as u64) {
                // The slot at the cursor may hold timers that were due before it.
                if at > self.cursor && ends(at << SLOT_SHIFT) {
                    return ControlFlow::Continue(());
                }
                self.levels.short.visit(ShortLevel::<X>::index(at), key, &mut visit)?;
                slot = self.levels.short.first_at_or_after(at + 1);
            }
            let mut window = self.next_window();
            while let Some(at) = window.filter(|&at| at < self.open + LONG_SLOTS as u64) {
                if ends(at * WINDOW_NS) {
                    return ControlFlow::Continue(());
                }
                self.levels.long.visit(LongLevel::<X>::index(at), key, &mut visit)?;
                window = self.levels.long.first_at_or_after(at + 1);
            }
            let mut group = self.next_group();
            while let Some(at) = group.filter(|&at| at < self.open / GROUP + FAR_SLOTS as u64) {
                if ends(at * GROUP * WINDOW_NS) {
                    return ControlFlow::Continue(());
                }
                self.levels.far.visit(FarLevel::<X>::index(at), key, &mut visit)?;
                group = self.levels.far.first_at_or_after(at + 1);
            }
            if ends(self.overflow_earliest) { ControlFlow::Continue(()) } else { self.overflow.visit(key, &mut visit) }
        };
        walk().is_continue()
    }
}
