//! The arithmetic of a periodic timer: its next tick, and the count of missed ticks (S7, S8).
//!
//! Ground rules. Pure functions of (due, period, now); no state, no lock.

use super::schedule::{Period, Schedule};
use crate::time::{NEVER, later};

/// The rule of a periodic timer for whole periods that pass before a tick can run.
///
/// Under every policy, a tick that is late by less than a period keeps the phase: the next tick is
/// due at its point of the original grid. The policies differ once a tick is late by a period or
/// more. An example: ticks are due at 100, 150, 200, 250, ... ms, and the tick of 100 ms runs only
/// at 220 ms:
///
/// | policy | this tick | then at |
/// |---|---|---|
/// | [`Rebase`](Self::Rebase) | runs, 1 missed | 221 ms (the catch-up tick), 271, 321, ... |
/// | [`Skip`](Self::Skip) | runs, 2 missed | 250, 300, ... |
/// | [`Burst`](Self::Burst) | runs, 0 missed | at once for 150, at once for 200, then 250, ... |
/// | [`Delay`](Self::Delay) | runs, 2 missed | 270, 320, ... |
///
/// # Examples
///
/// Two periods pass while no callback can run; `Skip` returns to the grid:
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
/// use timerqueue::{ManualClock, MissedTicks, Runtime, TimerBuilder};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// let timer = TimerBuilder::on(&runtime)
///     .due(Duration::from_millis(100))
///     .period(Duration::from_millis(50))
///     .missed_ticks(MissedTicks::Skip)
///     .start({
///         let seen = seen.clone();
///         move |tick| {
///             seen.lock().unwrap().push((tick.now().as_duration().as_millis(), tick.missed()))
///         }
///     });
/// clock.stall(Duration::from_millis(220)); // time passes, nothing runs
/// clock.advance(Duration::from_millis(80));
/// assert_eq!(*seen.lock().unwrap(), [(220, 2), (250, 0), (300, 0)]);
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum MissedTicks {
    /// The rule of .NET's `Timer` (the default): one catch-up tick 1 ms later (a period later where
    /// that is shorter), and the schedule starts again from there.
    #[default]
    Rebase,
    /// The next point of the original grid that is still to come.
    Skip,
    /// Every missed tick, in order, each with its own scheduled instant.
    Burst,
    /// A full period after this late tick runs.
    Delay,
}

/// How far after `now` the catch-up tick of [`MissedTicks::Rebase`] lies: .NET's smallest wait, 1
/// ms.
const CATCH_UP_NS: u64 = 1_000_000;

/// Outcome of [`next_tick`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextTick {
    /// Ticks of the schedule that will not run.
    pub(crate) missed: u64,
    /// The next due point, [`NEVER`] for a one-shot. At or before `now` only under
    /// [`MissedTicks::Burst`].
    pub(crate) next: u64,
}

/// The tick of a schedule is claimed at `now`: the next tick, and the ticks missed. After a step
/// back the clock may show less than the due point: the tick is then on time.
pub(crate) fn next_tick(policy: MissedTicks, schedule: Schedule, now: u64) -> NextTick {
    if schedule.period == Period::NONE {
        return NextTick { missed: 0, next: NEVER };
    }
    let (due, period) = (schedule.due, schedule.period.as_ns());
    let late = now.saturating_sub(due);
    if late < period || policy == MissedTicks::Burst {
        return NextTick { missed: 0, next: later(due, period) };
    }
    let passed = late / period;
    match policy {
        MissedTicks::Rebase => NextTick { missed: passed - 1, next: later(now, period.min(CATCH_UP_NS)) },
        MissedTicks::Skip => {
            NextTick { missed: passed, next: later(due, passed.saturating_add(1).saturating_mul(period)) }
        }
        MissedTicks::Delay => NextTick { missed: passed, next: later(now, period) },
        MissedTicks::Burst => unreachable!("handled above"),
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::time::LAST;

    fn tick(policy: MissedTicks, due: u64, period_ns: u64, now: u64) -> NextTick {
        next_tick(policy, Schedule { due, period: Period::from_ns(period_ns) }, now)
    }

    const ALL: [MissedTicks; 4] = [MissedTicks::Rebase, MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay];

    #[test]
    fn a_tick_late_by_less_than_a_period_keeps_the_phase() {
        for policy in ALL {
            for now in [100, 101, 149] {
                assert_eq!(tick(policy, 100, 50, now), NextTick { missed: 0, next: 150 });
            }
        }
    }

    #[test]
    fn whole_missed_periods_follow_the_policy() {
        const MS: u64 = 1_000_000;
        let at = |policy| tick(policy, 100 * MS, 50 * MS, 220 * MS);
        assert_eq!(at(MissedTicks::Rebase), NextTick { missed: 1, next: 221 * MS });
        assert_eq!(at(MissedTicks::Skip), NextTick { missed: 2, next: 250 * MS });
        assert_eq!(at(MissedTicks::Burst), NextTick { missed: 0, next: 150 * MS });
        assert_eq!(at(MissedTicks::Delay), NextTick { missed: 2, next: 270 * MS });
        // Exactly one period late is a whole period missed.
        let at = |policy| tick(policy, 100 * MS, 50 * MS, 150 * MS);
        assert_eq!(at(MissedTicks::Rebase), NextTick { missed: 0, next: 151 * MS });
        assert_eq!(at(MissedTicks::Skip), NextTick { missed: 1, next: 200 * MS });
    }

    #[test]
    fn the_catch_up_tick_is_never_further_than_a_period() {
        assert_eq!(tick(MissedTicks::Rebase, 0, 200_000, 1_000_000).next, 1_200_000);
    }

    #[test]
    fn the_end_of_time_saturates() {
        for policy in ALL {
            assert_eq!(tick(policy, LAST - 5, 10, LAST).next, NEVER, "{policy:?}");
            assert_eq!(tick(policy, LAST - 5, 5, LAST - 1).next, LAST, "{policy:?}");
            assert_eq!(tick(policy, LAST - 5, 6, LAST - 1).next, NEVER, "no clock shows it: {policy:?}");
            assert_eq!(tick(policy, 7, NEVER, 9), NextTick { missed: 0, next: NEVER });
        }
        assert_eq!(tick(MissedTicks::Skip, 1, NEVER / 2, LAST).next, NEVER);
        assert_eq!(tick(MissedTicks::Delay, 0, 1 << 63, LAST).next, NEVER);
        for policy in ALL {
            let taken = tick(policy, 0, 1, LAST);
            assert!(taken.next == NEVER || policy == MissedTicks::Burst, "{policy:?}: {taken:?}");
        }
    }

    /// The clock has stepped back between the sweep that found the tick due and the call.
    #[test]
    fn s07_a_tick_taken_up_before_it_is_due_keeps_the_phase() {
        for policy in ALL {
            for now in [0, 1, 50, 99, 100] {
                assert_eq!(tick(policy, 100, 10, now), NextTick { missed: 0, next: 110 }, "{policy:?} at {now}");
            }
        }
    }

    fn instant() -> impl Strategy<Value = u64> {
        prop_oneof![0..=LAST, 0..1_000u64, LAST - 1_000..=LAST, (0..64u32).prop_map(|bits| 1 << bits)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// For every reading of the clock, before the due point or after, up to both ends.
        #[test]
        fn s07_the_next_tick_is_after_this_one_and_after_now(
            due in instant(),
            now in instant(),
            period in prop_oneof![1..=LAST, 1..1_000u64, LAST - 1_000..=LAST],
        ) {
            // Whole periods between the two instants, none if the clock shows less than the due
            // point.
            let passed = u128::from(now).saturating_sub(u128::from(due)) / u128::from(period);
            let on_grid = |ticks: u128| u64::try_from(u128::from(due) + ticks * u128::from(period)).map_or(NEVER, |at| if at > LAST { NEVER } else { at });
            for policy in ALL {
                let NextTick { missed, next } = tick(policy, due, period, now);
                prop_assert!(next > due, "{:?}", policy);
                prop_assert!(next > now || policy == MissedTicks::Burst, "{:?}", policy);
                match policy {
                    MissedTicks::Burst => prop_assert_eq!((missed, next), (0, on_grid(1))),
                    MissedTicks::Skip => prop_assert_eq!((u128::from(missed), next), (passed, on_grid(passed + 1))),
                    _ if passed == 0 => prop_assert_eq!((missed, next), (0, on_grid(1))),
                    MissedTicks::Delay => prop_assert_eq!(next, later(now, period)),
                    MissedTicks::Rebase => prop_assert_eq!(next, later(now, period.min(CATCH_UP_NS))),
                }
            }
        }
    }
}
