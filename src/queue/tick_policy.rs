//! The tick policy of a timer: its rule for missed ticks, and its leeway, which lets timers share
//! wake-ups, or its jitter, which keeps timers apart.
//!
//! Ground rules. Pure. Leeway is kept as a *grid*: the timer fires at the first grid point at or
//! after its exact due point. Timers of the same grid fire together, however their due points are
//! scattered. Timers of different grids fire together where points coincide: the steps are 1, 2, 5,
//! 10, ... and all grids begin with the clock. Jitter has the same steps as widths, and adds to
//! each due point a part of its width that looks random, and depends on due point and seed alone.
//! The schedule counts from the exact due point.

use std::time::Duration;

use super::missed_ticks::MissedTicks;
use crate::time::LAST;

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

/// Policy, grid or jitter, and seed of a timer: a byte and six bits of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TickPolicy {
    /// From the lowest bit: the policy, the step, whether the step is a jitter's.
    pub(super) rule: u8,
    /// Of a jitter; below [`Self::SEEDS`].
    pub(super) seed: u8,
}

impl TickPolicy {
    const POLICY_BITS: u32 = 2;
    const JITTER: u8 = 1 << 7;
    /// Powers of two, to be a part of a byte.
    pub(super) const SEEDS: u8 = 1 << 6;

    /// With the widest grid whose step is at most `leeway`.
    pub(crate) fn new(policy: MissedTicks, leeway: Duration) -> Self {
        let leeway = u64::try_from(leeway.as_nanos()).unwrap_or(u64::MAX);
        // Most timers have no leeway. The first step is zero, so at least one step is counted.
        let grid = if leeway == 0 { 0 } else { STEPS.partition_point(|&step| step <= leeway) - 1 };
        Self { rule: policy as u8 | (grid as u8) << Self::POLICY_BITS, seed: 0 }
    }

    /// With a jitter of the widest step that is at most `width`.
    pub(crate) fn with_jitter(policy: MissedTicks, width: Duration, seed: u64) -> Self {
        let plain = Self::new(policy, width);
        let is_none = plain.rule < 1 << Self::POLICY_BITS;
        let seed = (mixed(seed) % u64::from(Self::SEEDS)) as u8;
        if is_none { plain } else { Self { rule: plain.rule | Self::JITTER, seed } }
    }

    pub(crate) fn has_jitter(self) -> bool {
        self.rule & Self::JITTER != 0
    }

    pub(crate) fn policy(self) -> MissedTicks {
        const ALL: [MissedTicks; 4] = [MissedTicks::Rebase, MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay];
        ALL[usize::from(self.rule & ((1 << Self::POLICY_BITS) - 1))]
    }

    /// The instant at which a timer due at `due` fires: never before `due`, and later by its leeway
    /// or jitter at most.
    #[inline]
    pub(crate) fn fires_at(self, due: u64) -> u64 {
        if self.rule < 1 << Self::POLICY_BITS { due } else { self.fires_later(due) }
    }

    /// A cold function, out of the path of timers without leeway and jitter. The end of the clock
    /// is on every grid.
    #[cold]
    #[inline(never)]
    fn fires_later(self, due: u64) -> u64 {
        let step = STEPS[usize::from(self.rule >> Self::POLICY_BITS) % STEPS.len()];
        if !self.has_jitter() {
            return due.checked_next_multiple_of(step).unwrap_or(due);
        }
        let part = mixed(due ^ u64::from(self.seed) << 58);
        let offset = (u128::from(part) * u128::from(step)) >> 64; // below `step`
        if due > LAST { due } else { due.saturating_add(offset as u64).min(LAST) }
    }
}

/// A number whose bits all depend on all bits of `x`: the last steps of Vigna's splitmix64.
fn mixed(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Without leeway and jitter.
impl From<MissedTicks> for TickPolicy {
    fn from(policy: MissedTicks) -> Self {
        Self { rule: policy as u8, seed: 0 }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;
    use crate::time::NEVER;

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
    fn jitter_is_below_its_width_and_differs_by_seed_and_due_point() {
        for policy in POLICIES {
            assert_eq!(TickPolicy::from(policy), TickPolicy::with_jitter(policy, Duration::from_nanos(999), 7));
            for width in [1_000, 1_500_000, 5_000_000, u64::MAX] {
                let tick_policy = TickPolicy::with_jitter(policy, Duration::from_nanos(width), 7);
                assert_eq!(tick_policy.policy(), policy);
                for due in [0, 1, 999_999, 123_456_789_012, LAST - 1, LAST] {
                    let at = tick_policy.fires_at(due);
                    assert!(at >= due && at - due < width && at <= LAST, "{due} by {width} at {at}");
                }
                assert_eq!(tick_policy.fires_at(NEVER), NEVER);
            }
        }
        let width = Duration::from_secs(1);
        let offset = |seed, due| TickPolicy::with_jitter(MissedTicks::Skip, width, seed).fires_at(due) - due;
        // The offsets of many due points, and of many seeds, spread over the whole width.
        let spread = |offsets: Vec<u64>| {
            let tenth = |tenth: u64| offsets.iter().filter(|&&offset| offset / 100_000_000 == tenth).count();
            assert!((0..10).all(|i| tenth(i) * 20 > offsets.len()), "{:?}", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(tenth));
        };
        spread((0..1_000).map(|i| offset(1, i)).collect());
        spread((0..1_000).map(|i| offset(1, 60_000_000_000 * i)).collect());
        spread((0..1_000).map(|seed| offset(seed, 60_000_000_000)).collect());
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
