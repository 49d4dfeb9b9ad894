//! A rate: a token bucket as one instant.
//!
//! Ground rules. The bucket holds `runs` tokens, and gets one each `per / runs`. Its state is the
//! instant at which it would be full again: each run moves the instant one step on. No thread fills
//! it.

use crate::store::{Micros, Rate};

/// The tokens of a handler at an instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    step: i64,
    runs: i64,
    now: i64,
    full_at: i64,
}

impl Pace {
    /// `full_at`: when the bucket is full again, as the store has it.
    pub(crate) fn new(rate: Rate, full_at: Option<Micros>, now: Micros) -> Self {
        let (runs, now) = (i64::from(rate.runs.max(1)), now.as_i64());
        let per = i64::try_from(rate.per.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX).min(Self::LONGEST_MICROS);
        let step = (per + runs - 1) / runs;
        // Further ahead only if the clock was set back, or the rate is another one by now.
        let full_at = full_at.map_or(now, Micros::as_i64).clamp(now, now.saturating_add(step * runs));
        Self { step: step.max(1), runs, now, full_at }
    }

    /// A hundred years.
    const LONGEST_MICROS: i64 = 100 * 366 * 86_400 * 1_000_000;

    /// When the bucket is full again.
    pub(crate) fn full_at(&self) -> Micros {
        Micros::new(self.full_at)
    }

    /// The tokens that the bucket has.
    pub(crate) fn tokens(&self) -> usize {
        let ahead = self.full_at - self.now;
        usize::try_from(self.runs - (ahead + self.step - 1) / self.step).unwrap_or_default()
    }

    /// Takes tokens. Returns when the bucket is full again.
    pub(crate) fn take(&mut self, runs: usize) -> Micros {
        self.full_at = self.full_at.saturating_add(self.step.saturating_mul(runs as i64));
        Micros::new(self.full_at)
    }

    /// When there is a token again.
    pub(crate) fn next(&self) -> Micros {
        Micros::new((self.full_at - self.step * (self.runs - 1)).max(self.now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Runs as many as the bucket lets, at random instants: in no window more than the rate allows.
    #[test]
    fn m8_a_window_has_at_most_the_burst_and_what_was_filled_meanwhile() {
        for (runs, per) in [(1, SECOND), (3, SECOND), (10, Duration::from_micros(7)), (7, 60 * SECOND)] {
            let rate = Rate { runs, per };
            let (mut random, mut now, mut full_at) = (17_u64, 1_000_000_i64, None);
            let mut starts: Vec<i64> = Vec::new();
            for _ in 0..2_000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                now += ((random >> 33) % (2 * per.as_micros() as u64 / u64::from(runs) + 1)) as i64;
                let mut pace = Pace::new(rate, full_at, Micros::new(now));
                let tokens = pace.tokens();
                if tokens == 0 {
                    let next = pace.next();
                    assert!(next > Micros::new(now));
                    assert_eq!(Pace::new(rate, full_at, next).tokens(), 1, "the next token comes when it was said");
                    continue;
                }
                full_at = Some(pace.take(tokens));
                starts.extend(std::iter::repeat_n(now, tokens));
            }
            assert!(starts.len() > 100);
            for (at, begin) in starts.iter().enumerate() {
                for (until, end) in starts.iter().enumerate().skip(at).take(100) {
                    let filled = (end - begin) as u128 * u128::from(runs) / per.as_micros();
                    assert!((until - at + 1) as u128 <= u128::from(runs) + filled, "{rate:?}: {begin} to {end}");
                }
            }
        }
    }

    #[test]
    fn m8_a_step_back_costs_no_more_than_a_full_bucket() {
        let rate = Rate { runs: 2, per: SECOND };
        let mut pace = Pace::new(rate, None, Micros::new(3_600_000_000));
        assert_eq!(pace.tokens(), 2);
        let full_at = pace.take(2);
        let back = Pace::new(rate, Some(full_at), Micros::new(0));
        assert_eq!((back.tokens(), back.next()), (0, Micros::new(500_000)));
    }
}
