//! Rules of the user's own: the next instant after an instant, as code.

use std::time::{Duration, SystemTime};

use crate::instant::{to_nanos, to_system};

/// A rule for instants that no period and no cron line describes, such as working days without
/// holidays.
///
/// A rule is a pure function: the same instant gives the same answer on every call and on every
/// machine. A schedule calls the rule on the thread of the schedule's caller. A panic of the rule
/// reaches this caller.
///
/// A `Scheduler` of the crate `timerqueue-scheduler` calls the rule of a recurring job on a thread
/// of its runtime's pool, with no lock held and apart from its other work. A rule that blocks
/// delays its own jobs alone, and a panic makes a dead job of the recurring one.
///
/// Every closure from `SystemTime` to `Option<SystemTime>` is a rule.
///
/// # Examples
///
/// Instants that double, counted from the Unix epoch:
///
/// ```
/// use std::time::{Duration, SystemTime, UNIX_EPOCH};
/// use timerqueue_schedule::{Rule, Schedule};
///
/// struct Doubling;
///
/// impl Rule for Doubling {
///     fn next_after(&self, t: SystemTime) -> Option<SystemTime> {
///         let seconds = t.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
///         Some(UNIX_EPOCH + Duration::from_secs((seconds + 1).next_power_of_two()))
///     }
/// }
///
/// let schedule = Schedule::rule("doubling", Doubling).build()?;
/// let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
/// assert_eq!(schedule.next_after(at(5)).unwrap().nominal(), at(8));
/// assert_eq!(schedule.previous_before(at(5)).unwrap().nominal(), at(4)); // found by bisection
/// # Ok::<(), timerqueue_schedule::ScheduleError>(())
/// ```
pub trait Rule: Send + Sync {
    /// The earliest instant of the rule after `t`, and never `t` itself. `None`: no instant
    /// follows.
    ///
    /// For `a <= b`, the answer for `a` is at most the answer for `b`. A schedule takes an answer
    /// at or before `t` for the end of the rule.
    fn next_after(&self, t: SystemTime) -> Option<SystemTime>;

    /// The latest instant of the rule before `t`. `None`: no instant precedes.
    ///
    /// The default bisects [`next_after`](Self::next_after): about 100 calls, however many instants
    /// there are. A rule with a faster way back implements this method too.
    fn previous_before(&self, t: SystemTime) -> Option<SystemTime> {
        bisect(|x| self.next_after(x), t)
    }
}

impl<F: Fn(SystemTime) -> Option<SystemTime> + Send + Sync> Rule for F {
    fn next_after(&self, t: SystemTime) -> Option<SystemTime> {
        self(t)
    }
}

/// The latest value of `next` before `t`: `next(x) < t` holds up to some x, and not behind it.
fn bisect(next: impl Fn(SystemTime) -> Option<SystemTime>, t: SystemTime) -> Option<SystemTime> {
    let earlier = |x: SystemTime| next(x).filter(|&instant| instant < t && instant > x);
    // Gallop: distances of 1 s, 2 s, 4 s, until an instant lies between or `SystemTime` ends.
    let mut high = to_nanos(t);
    let mut distance = Duration::from_secs(1);
    let (mut low, mut found) = loop {
        let x = t.checked_sub(distance)?;
        match earlier(x) {
            Some(instant) => break (to_nanos(x), instant),
            None => high = to_nanos(x),
        }
        distance = distance.checked_mul(2)?;
    };
    // From `low`, an instant before `t` follows; from `high`, none does.
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match to_system(middle).and_then(earlier) {
            Some(instant) => (low, found) = (middle, instant),
            None => high = middle,
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::time::UNIX_EPOCH;

    fn at(seconds: i64) -> SystemTime {
        to_system(i128::from(seconds) * 1_000_000_000).unwrap()
    }

    #[test]
    fn bisection_finds_the_latest_instant_with_few_calls() {
        let instants: Vec<SystemTime> = [-5_000_000_000, -7, 0, 1, 2, 100, 1_000_000_000].map(at).to_vec();
        let calls = Cell::new(0);
        let next = |t| {
            calls.set(calls.get() + 1);
            instants.iter().copied().find(|&instant| instant > t)
        };
        for t in [at(-5_000_000_000), at(-6), at(0), at(1), at(3), at(5_000_000_000)] {
            calls.set(0);
            assert_eq!(bisect(next, t), instants.iter().copied().rfind(|&instant| instant < t));
            assert!(calls.get() < 150, "{} calls", calls.get());
        }
    }

    #[test]
    fn rules_that_break_their_contract_end_the_search() {
        assert_eq!(bisect(|_| None, at(0)), None);
        assert_eq!(bisect(Some, at(0)), None); // not after
        assert_eq!(bisect(|_| Some(UNIX_EPOCH), at(-5)), None); // before nothing
        bisect(|t| if to_nanos(t) % 2 == 0 { t.checked_add(Duration::from_nanos(1)) } else { None }, at(0));
    }
}
