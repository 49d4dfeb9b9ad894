//! The tick policy of a timer: its rule for missed ticks, and its leeway, which lets timers share wake-ups.
//!
//! Ground rules. Pure. Leeway is kept as a *grid*: the timer fires at the first grid point at or after its exact due point.
//! Timers of the same grid fire together, however their due points are scattered. Timers of different grids fire together where
//! points coincide: the steps are 1, 2, 5, 10, ... and all grids begin with the clock. The schedule counts from the exact due
//! point.

use std::time::Duration;

use super::missed_ticks::MissedTicks;

/// Steps in nanoseconds, from 1 us to 10,000 s (2 h 47 min); the first means none.
const STEPS: [u64; 32] = {
    let mut steps = [0; 32];
    let (mut i, mut decade) = (1, 1_000);
    while i < 32 {
        steps[i] = [5, 1, 2][i % 3] * decade;
        if i % 3 == 0 {
            decade *= 10;
        }
        i += 1;
    }
    steps
};

/// Policy and grid of a timer, in a byte of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TickPolicy(u8);

impl TickPolicy {
    const POLICY_BITS: u32 = 2;

    /// With the widest grid whose step is at most `leeway`.
    pub(crate) fn new(policy: MissedTicks, leeway: Duration) -> Self {
        let leeway = u64::try_from(leeway.as_nanos()).unwrap_or(u64::MAX);
        // Most timers have no leeway. The first step is zero, so at least one step is counted.
        let grid = if leeway == 0 { 0 } else { STEPS.partition_point(|&step| step <= leeway) - 1 };
        Self(policy as u8 | (grid as u8) << Self::POLICY_BITS)
    }

    pub(crate) fn policy(self) -> MissedTicks {
        const ALL: [MissedTicks; 4] = [MissedTicks::Rebase, MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay];
        ALL[usize::from(self.0 & ((1 << Self::POLICY_BITS) - 1))]
    }

    /// The instant at which a timer due at `due` fires: never before `due`, and later by its leeway at most.
    #[inline]
    pub(crate) fn fires_at(self, due: u64) -> u64 {
        if self.0 < 1 << Self::POLICY_BITS { due } else { self.round_up(due) }
    }

    /// A cold function, out of the path of timers without leeway. The end of the clock is on every grid.
    #[cold]
    #[inline(never)]
    fn round_up(self, due: u64) -> u64 {
        let step = STEPS[usize::from(self.0 >> Self::POLICY_BITS) % STEPS.len()];
        due.checked_next_multiple_of(step).unwrap_or(due)
    }
}

/// Without leeway.
impl From<MissedTicks> for TickPolicy {
    fn from(policy: MissedTicks) -> Self {
        Self(policy as u8)
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;
    use crate::time::{LAST, NEVER};

    const POLICIES: [MissedTicks; 4] = [MissedTicks::Rebase, MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay];

    #[test]
    fn steps_are_those_of_people() {
        assert_eq!(STEPS[..8], [0, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000]);
        assert!(STEPS.is_sorted() && STEPS[31] >= 3_600_000_000_000);
    }

    #[test]
    fn never_early_and_never_later_than_allowed() {
        for policy in POLICIES {
            assert_eq!(TickPolicy::from(policy), TickPolicy::new(policy, Duration::ZERO));
            for leeway in [0, 999, 1_000, 1_500_000, 5_000_000, 7_777_777_777, u64::MAX] {
                let tick_policy = TickPolicy::new(policy, Duration::from_nanos(leeway));
                assert_eq!(tick_policy.policy(), policy);
                for due in [0, 1, 999_999, 1_000_000, 1_000_001, 123_456_789_012, LAST - 1, LAST] {
                    let at = tick_policy.fires_at(due);
                    assert!(at >= due && at - due <= leeway && at != NEVER, "{due} by {leeway} at {at}");
                }
            }
        }
    }

    #[test]
    fn a_millisecond_of_leeway_is_a_grid_of_milliseconds() {
        let tick_policy = TickPolicy::new(MissedTicks::Rebase, Duration::from_millis(1));
        assert_eq!(
            [1, 999_999, 1_000_000, 1_000_001].map(|due| tick_policy.fires_at(due)),
            [1_000_000, 1_000_000, 1_000_000, 2_000_000]
        );
    }
}
