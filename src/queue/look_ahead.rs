//! Looks ahead that insert timers anew where bounds may be too early: for the next wake-up, and for
//! an exact answer.

use super::*;

impl<X> TimerWheel<X> {
    /// Inserts timers anew where the next wake-up would else find no due timer, since the bound of
    /// the next slot is too early. A sweep calls this after [`Self::next_due`] has answered
    /// [`Next::Nothing`]. False: the work is used up, and slots are left.
    ///
    /// No flag tells of nodes that were postponed without the lock. So where a sweep has found a
    /// node in a slot before its due point, any slot may have such nodes, until one has been
    /// inserted anew and is still the first. A crowded slot is worth a wake-up, and cascades in
    /// steps.
    #[must_use]
    pub(crate) fn look_ahead(&mut self, work: &mut usize) -> bool {
        let mut exact = None;
        // Timers of the fine levels are due soon anyway.
        while self.first_fine().is_none() {
            let (slot, is_loose, count) = if let Some(slot) = self.levels.short.first_at_or_after(self.cursor) {
                let index = ShortLevel::<X>::index(slot);
                ((SHORT, index), self.levels.short.is_loose(index), self.levels.short.count(index))
            } else if let Some(window) = self.next_window() {
                let index = LongLevel::<X>::index(window);
                ((LONG, index), self.levels.long.is_loose(index), self.levels.long.count(index))
            } else {
                break;
            };
            if exact == Some(slot) || !(is_loose || self.found_later) || count > CROWDED {
                break;
            }
            if *work == 0 {
                return false;
            }
            *work = work.saturating_sub(count as usize);
            let chain = match slot {
                (SHORT, index) => self.levels.short.take(index),
                (_, index) => self.levels.long.take(index),
            };
            self.insert_again(chain);
            exact = Some(slot);
        }
        self.found_later = false;
        true
    }

    /// The earliest due point, exactly (but for a node that was postponed without the lock: perhaps
    /// its old one); [`NEVER`] when no queued timer comes due. Where the earliest bound may be too
    /// early, the nodes of its slot are inserted anew, for a unit of `work` each. `None`: the work
    /// is used up before the answer is found; the caller may release the lock and ask again.
    pub(crate) fn earliest_due(&mut self, work: &mut usize) -> Option<u64> {
        loop {
            self.finish_chains(work)?;
            let (fine, slot) = (self.first_fine(), self.levels.short.first_at_or_after(self.cursor));
            let (window, group) = (self.next_window(), self.next_group());
            let short_at = slot.map_or(NEVER, |slot| self.levels.short.earliest(ShortLevel::<X>::index(slot)));
            let long_at = window.map_or(NEVER, |window| self.levels.long.earliest(LongLevel::<X>::index(window)));
            let far_at = group.map_or(NEVER, |group| self.levels.far.earliest(FarLevel::<X>::index(group)));
            let fine_at = fine.map_or(NEVER, |(bound, _)| bound);
            let earliest = fine_at.min(short_at).min(long_at).min(far_at).min(self.overflow_earliest);
            if earliest >= END {
                return Some(NEVER);
            }
            match (fine, slot, window, group) {
                (Some((_, spot)), ..) if earliest == fine_at && self.levels.fine.is_loose(spot) => {
                    self.expiring = self.levels.fine.take(spot);
                }
                (_, Some(slot), ..)
                    if earliest == short_at && self.levels.short.is_loose(ShortLevel::<X>::index(slot)) =>
                {
                    self.take_short(slot);
                }
                (.., Some(window), _)
                    if earliest == long_at && self.levels.long.is_loose(LongLevel::<X>::index(window)) =>
                {
                    self.cascading = self.levels.long.take(LongLevel::<X>::index(window));
                }
                (.., Some(group)) if earliest == far_at && self.levels.far.is_loose(FarLevel::<X>::index(group)) => {
                    self.cascading = self.levels.far.take(FarLevel::<X>::index(group));
                }
                _ if earliest == self.overflow_earliest && self.overflow_is_loose => {
                    self.cascading = self.take_overflow()
                }
                _ => return Some(earliest),
            }
        }
    }
}
