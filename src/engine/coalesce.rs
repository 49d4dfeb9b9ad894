//! Timer coalescing: by how much a busy shard delays its alarm, so that timers share wake-ups.
//!
//! Ground rules. Pure arithmetic under the shard's lock: input is when sweeps end and how many
//! timers they fired, output is the delay of the next alarm. This module knows neither queue nor
//! alarm.

use crate::time::NEVER;

/// The coalescing delay of a shard. A wake-up costs some ten microseconds of processor time, so a
/// busy shard delays the alarm: by [`Coalescer::PER_RATE_NS`] for each timer fired per millisecond,
/// up to [`Coalescer::LONGEST_NS`].
pub(crate) struct Coalescer {
    /// Time per timer fired, a moving average over sweeps.
    gap_ns: u64,
    /// The end of the last sweep that fired a timer.
    seen_at: u64,
    /// The number of timers that the running sweep has fired.
    fired: u64,
    /// The shortest period among the timers that fired lately, and the instant until which it
    /// counts.
    period_ns: u64,
    period_until: u64,
}

impl Coalescer {
    /// The longest coalescing delay: timers are late by no more on its account, and never early.
    pub(super) const LONGEST_NS: u64 = 200_000;
    const PER_RATE_NS: u64 = 15_000;
    /// A shard with at most a single firing in this time is not busy, and its alarm is not delayed.
    const SPARSE_NS: u64 = 1_000_000;
    /// With less time per timer, the timers of a wake-up are worth a thread for each shard.
    const DENSE_NS: u64 = 8_000;

    pub(super) fn new() -> Self {
        Self { gap_ns: 2 * Self::SPARSE_NS, seen_at: 0, fired: 0, period_ns: NEVER, period_until: 0 }
    }

    /// A lock section of a sweep has fired `timers`; `period_ns` is their shortest period.
    pub(crate) fn fired(&mut self, now: u64, timers: u64, period_ns: u64) {
        self.fired += timers;
        if period_ns <= self.period_ns || now > self.period_until {
            self.period_ns = period_ns;
            self.period_until = now.saturating_add(period_ns.saturating_mul(2));
        }
    }

    /// The sweep has ended. Returns whether it fired a timer.
    pub(crate) fn end(&mut self, now: u64) -> bool {
        let fired = std::mem::take(&mut self.fired);
        let Some(gap) = now.saturating_sub(self.seen_at).checked_div(fired) else { return false };
        self.gap_ns = (self.gap_ns * 3 + gap.min(2 * Self::SPARSE_NS)) / 4;
        self.seen_at = now;
        true
    }

    /// The instant of the next alarm, with the next deadline at `next`. A shard with the longest
    /// delay, and without so many timers that it fills a thread, sets its alarm to a point of a
    /// grid: so such shards wake one thread.
    pub(crate) fn aim(&self, next: u64, now: u64) -> u64 {
        let wait_ns = self.wait_ns();
        if wait_ns == Self::LONGEST_NS && self.gap_ns >= Self::DENSE_NS {
            next.max(now).checked_next_multiple_of(Self::LONGEST_NS).unwrap_or(next)
        } else {
            next.max(now.saturating_add(wait_ns))
        }
    }

    /// The delay of the next alarm: at most a quarter of the shortest period, so that ticks of a
    /// fast timer neither bunch up nor are missed.
    pub(crate) fn wait_ns(&self) -> u64 {
        if self.gap_ns >= Self::SPARSE_NS {
            return 0;
        }
        let wait = (Self::PER_RATE_NS * 1_000_000 / self.gap_ns.max(1)).min(Self::LONGEST_NS);
        wait.min(self.period_ns / 4)
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    /// The delay after many sweeps, `every_ns` apart, each of which fired this many timers.
    fn wait_ns(timers: u64, every_ns: u64, period_ns: u64) -> u64 {
        let mut coalescer = Coalescer::new();
        for sweep in 1..100 {
            coalescer.fired(sweep * every_ns, timers, period_ns);
            assert!(coalescer.end(sweep * every_ns));
        }
        coalescer.wait_ns()
    }

    #[test]
    fn sparse_timers_do_not_wait_and_others_the_longer_the_more_there_are() {
        assert_eq!(wait_ns(1, 1_000 * US, NEVER), 0);
        assert_eq!(wait_ns(1, 3_600_000_000 * US, NEVER), 0);
        let waits: Vec<u64> = [500, 200, 100, 50, 20, 1].map(|gap_us| wait_ns(1, gap_us * US, NEVER) / US).into();
        assert_eq!(waits, [30, 75, 150, 200, 200, 200]);
        assert_eq!(wait_ns(10, 2_000 * US, NEVER), wait_ns(1, 200 * US, NEVER), "the rate counts");
    }

    #[test]
    fn busy_shards_set_their_alarms_to_a_grid_unless_they_fill_a_thread() {
        let aim = |gap_us: u64, per_gap: u64, next: u64| {
            let mut coalescer = Coalescer::new();
            for sweep in 1..100 {
                coalescer.fired(sweep * gap_us * US, per_gap, NEVER);
                coalescer.end(sweep * gap_us * US);
            }
            coalescer.aim(next * US, 99 * gap_us * US) / US
        };
        assert_eq!(aim(200, 10, 19_801), 20_000);
        assert_eq!(aim(200, 10, 20_000), 20_000);
        assert_eq!(aim(200, 10, 20_001), 20_200);
        assert_eq!(aim(200, 2, 19_801), 19_950, "a moderate rate has an alarm of its own");
        assert_eq!(aim(200, 25, 20_001), 20_200, "as many as a thread has time for");
        assert_eq!(aim(200, 100, 20_001), 20_001, "so many timers too");
        assert_eq!(aim(200, 100, 19_801), 20_000, "with the longest delay from now");
        assert_eq!(aim(2_000, 1, 300_001), 300_001, "few timers fire at once");
        let mut coalescer = Coalescer::new();
        (1..100).for_each(|sweep| _ = (coalescer.fired(sweep * US, 0, NEVER), coalescer.end(sweep * US)));
        assert_eq!(coalescer.aim(NEVER, 99 * US), NEVER);
    }

    #[test]
    fn a_burst_alone_is_not_coalesced_however_many_sections_it_takes() {
        let mut coalescer = Coalescer::new();
        let begin = 7_000_000 * US;
        for section in 0..100 {
            coalescer.fired(begin + section * 10 * US, 48, NEVER);
        }
        assert!(coalescer.end(begin + 1_000 * US));
        assert!(!coalescer.end(begin + 1_000 * US), "counted once");
        assert_eq!(coalescer.wait_ns(), 0);
    }

    #[test]
    fn a_storm_is_forgotten_by_the_first_that_comes_after_a_while() {
        let mut coalescer = Coalescer::new();
        for sweep in 1..100 {
            coalescer.fired(sweep * 300 * US, 1, NEVER);
            coalescer.end(sweep * 300 * US);
        }
        assert!(coalescer.wait_ns() > 0);
        for late in [1, 2, 3] {
            coalescer.fired(late * 3_600_000_000 * US, 1, NEVER);
            coalescer.end(late * 3_600_000_000 * US);
        }
        assert_eq!(coalescer.wait_ns(), 0);
    }

    #[test]
    fn a_fast_timer_keeps_the_wait_below_a_quarter_of_its_period() {
        assert_eq!(wait_ns(1, 50 * US, 50 * US), 50 * US / 4);
        // A fast timer between slow timers that fire in sweeps of their own.
        let mut coalescer = Coalescer::new();
        for sweep in 1..100 {
            let period = if sweep % 3 == 0 { 100 * US } else { NEVER };
            coalescer.fired(sweep * 33 * US, 1, period);
            coalescer.end(sweep * 33 * US);
            assert!(sweep < 3 || coalescer.wait_ns() <= 25 * US);
        }
        // When the fast timer has stopped, the alarm is delayed for the slow timers again.
        coalescer.fired(10_000 * US, 1, NEVER);
        coalescer.end(10_000 * US);
        assert!(coalescer.wait_ns() == 0 || coalescer.wait_ns() > 25 * US);
        assert_eq!(coalescer.period_ns, NEVER);
    }
}
