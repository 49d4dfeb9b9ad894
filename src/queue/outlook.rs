//! A walk over the timers that are due next, which changes nothing.
//!
//! Ground rules. Slots are visited in order of time, so the walk can end early. Within a slot there is no order. The taken chains
//! and the fine levels come first, whatever they hold.

use std::ops::ControlFlow;

use super::super::list::Linked;
use super::*;

impl<X> TimerWheel<X> {
    /// Calls `visit` with queued timers, until `visit` breaks. Before each slot, `ends` is called with an instant: no timer that has
    /// not been visited is due before it. If `ends` returns true, the walk is over. Returns whether it came to its end.
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
