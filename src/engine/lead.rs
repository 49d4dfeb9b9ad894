//! Early alarms: by how much a shard that is not busy sets its alarm ahead of the deadline, so that
//! the thread is awake when the timer is due.
//!
//! Ground rules. Pure arithmetic under the shard's lock. The system takes some microseconds from an
//! alarm to the sweep by the woken thread. A shard learns this time, and sets its alarm earlier by
//! it. No timer fires early: a sweep trusts the clock, and a thread that comes before the deadline
//! waits for the rest with the lock released, [`Lead::MOST_NS`] at most, or [`Lead::MOST_LOOKS`]
//! readings of the clock.
//!
//! A clock may stand behind the clock of the kernel's timers, or stand still. Then each alarm comes
//! before its instant, is set again, and comes again at once. The shard counts these; from the
//! [`OFTEN_EARLY`]th on the shard pauses between two alarms, and
//! [`Backend::distrust`](crate::alarm::Backend::distrust) is called.

use crate::alarm::OFTEN_EARLY;

/// See the module's ground rules.
#[derive(Default)]
pub(crate) struct Lead {
    /// The time from an alarm to its sweep: below most of those seen.
    learnt_ns: u64,
    /// The instant to which the alarm is set; zero: the alarm has been taken, or was never set.
    set_to: u64,
    /// The number of sweeps in a row that came before the instant of the alarm, and set the alarm
    /// to the same instant.
    early: u8,
}

impl Lead {
    /// A thread waits awake for this long at most.
    pub(super) const MOST_NS: u64 = 10_000;
    /// A thread that waits awake reads the clock this often at most: a clock may stand still.
    pub(super) const MOST_LOOKS: usize = 1_000;

    /// A sweep sets the alarm again: to the instant for which the alarm came (`same`), or to
    /// another. Returns whether the alarms for this instant come early again and again.
    #[inline]
    pub(super) fn is_often_early(&mut self, same: bool) -> bool {
        self.early = if same { self.early.saturating_add(1) } else { 0 };
        self.early >= OFTEN_EARLY
    }

    /// The instant of the alarm for a deadline at `at`. `exact`: the alarm is not set early.
    #[inline]
    pub(super) fn aim(&mut self, at: u64, now: u64, exact: bool) -> u64 {
        // To set an alarm to an instant that has just passed is dearer than all that can be gained.
        let early = !exact && at.saturating_sub(now) > 2 * Self::MOST_NS;
        self.set_to = if early { at - self.learnt_ns } else { at };
        self.set_to
    }

    /// A shared alarm is set instead: a sweep by it teaches nothing.
    #[inline]
    pub(super) fn rest(&mut self) {
        self.set_to = 0;
    }

    /// A sweep begins, with the deadline for which the alarm was set. Returns whether the thread
    /// waits until then.
    #[inline]
    pub(super) fn is_early(&mut self, deadline: u64, now: u64) -> bool {
        let set_to = std::mem::take(&mut self.set_to);
        if set_to == 0 || now < set_to {
            return false; // not by the alarm
        }
        let took_ns = (now - set_to).min(Self::MOST_NS);
        // Down at once, and up slowly: to be early costs processor time, to be late is what would
        // be without.
        self.learnt_ns =
            if took_ns < self.learnt_ns { took_ns } else { self.learnt_ns + (took_ns - self.learnt_ns) / 8 };
        now < deadline && deadline - now <= Self::MOST_NS
    }
}

#[cfg(all(test, timerqueue_loom))]
impl Lead {
    /// Alarms are early by this, until a sweep has been quicker.
    pub(super) fn learnt(learnt_ns: u64) -> Self {
        Self { learnt_ns, ..Self::default() }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
impl Lead {
    /// As if the alarm had expired already.
    pub(super) fn has_expired(&mut self) {
        self.set_to = 1;
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const MS: u64 = 1_000 * US;

    /// The alarm for a deadline, and whether a thread that sweeps so long after the alarm waits.
    fn wake(lead: &mut Lead, deadline: u64, took_ns: u64) -> (u64, bool) {
        let alarm = lead.aim(deadline, deadline - MS, false);
        (deadline - alarm, lead.is_early(deadline, alarm + took_ns))
    }

    #[test]
    fn an_alarm_is_early_by_the_time_that_a_wake_up_takes() {
        let mut lead = Lead::default();
        assert_eq!(wake(&mut lead, MS, 6 * US), (0, false), "nothing is known yet");
        (2..100).for_each(|i| _ = wake(&mut lead, i * MS, 6 * US));
        let (early, waits) = wake(&mut lead, 100 * MS, 6 * US);
        assert!(early > 5 * US && early <= 6 * US && !waits, "{early}");
        // A slow wake-up counts for little, and a quick one at once.
        wake(&mut lead, 101 * MS, 500 * US);
        let (early, waits) = wake(&mut lead, 102 * MS, 2 * US);
        assert!(early < 7 * US && waits, "{early}");
        assert_eq!(wake(&mut lead, 103 * MS, 2 * US), (2 * US, false));
    }

    #[test]
    fn no_alarm_is_early_by_more_than_a_thread_waits() {
        let mut lead = Lead::default();
        (1..100).for_each(|i| _ = wake(&mut lead, i * MS, MS / 2));
        let (early, waits) = wake(&mut lead, 100 * MS, 0);
        assert!(early <= Lead::MOST_NS && waits, "{early}");
        let mut lead = Lead { learnt_ns: Lead::MOST_NS, set_to: 0, early: 0 };
        assert_eq!(wake(&mut lead, MS, 0), (Lead::MOST_NS, true), "the thread that is early by most waits");
    }

    #[test]
    fn an_alarm_soon_or_on_a_common_grid_is_exact_and_other_sweeps_teach_nothing() {
        let mut lead = Lead { learnt_ns: 5 * US, set_to: 0, early: 0 };
        assert_eq!(lead.aim(MS + 2 * Lead::MOST_NS, MS, false), MS + 2 * Lead::MOST_NS);
        assert_eq!(lead.aim(2 * MS, MS, true), 2 * MS);
        assert!(!lead.is_early(2 * MS, 2 * MS - 1), "another alarm has led to this sweep");
        assert!(!lead.is_early(2 * MS, 2 * MS - 1) && lead.learnt_ns == 5 * US);
        assert_eq!(lead.aim(4 * MS, 3 * MS, false), 4 * MS - 5 * US);
        assert!(!lead.is_early(5 * MS, 4 * MS), "the timer has been moved");
        assert!(!lead.is_early(5 * MS, 5 * MS) && lead.learnt_ns == 5 * US, "an alarm leads to one sweep");
        lead.aim(7 * MS, 6 * MS, false);
        lead.rest();
        assert!(!lead.is_early(7 * MS, 7 * MS - US) && lead.learnt_ns == 5 * US, "a shared alarm was set instead");
    }

    #[test]
    fn alarms_that_come_early_once_are_no_sign_and_a_row_of_them_is() {
        let mut lead = Lead::default();
        for _ in 0..3 {
            assert!((1..OFTEN_EARLY).all(|_| !lead.is_often_early(true)));
            assert!(!lead.is_often_early(false));
        }
        assert_eq!((0..1_000).filter(|_| lead.is_often_early(true)).count(), 1_001 - usize::from(OFTEN_EARLY));
    }
}
