//! How long a job takes on one thread, and how often that thread takes a job from elsewhere.
//!
//! Ground rules. Used by one thread alone. Time in which the thread rests does not count: only what [`Pace::begin`] and the next
//! measurement enclose.

use std::cell::Cell;
use std::time::Instant;

use super::{FAIR_JOBS, FAIR_NS, WORTH_WAKING_NS};

pub(super) struct Pace {
    /// How long a job takes, a moving average. At first it is unknown, and so assumed to be long.
    job_ns: Cell<u64>,
    /// Jobs that have returned since `since`.
    jobs: Cell<u64>,
    since: Cell<Instant>,
    /// Jobs until the thread takes one from elsewhere.
    until_fair_turn: Cell<u32>,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            job_ns: Cell::new(WORTH_WAKING_NS),
            jobs: Cell::new(0),
            since: Cell::new(now),
            until_fair_turn: Cell::new(2),
        }
    }

    pub(super) fn job_ns(&self) -> u64 {
        self.job_ns.get()
    }

    /// The thread begins to run jobs.
    pub(super) fn begin(&self, now: Instant) {
        self.jobs.set(0);
        self.since.set(now);
    }

    /// A job has returned.
    pub(super) fn count(&self) {
        self.jobs.set(self.jobs.get() + 1);
    }

    /// Takes the jobs since the last measurement into the average, and begins the next one.
    pub(super) fn measure(&self, now: Instant) {
        let took = now.saturating_duration_since(self.since.replace(now)).as_nanos() as u64;
        if let Some(job_ns) = took.checked_div(self.jobs.replace(0)) {
            self.job_ns.set((self.job_ns.get().saturating_mul(3).saturating_add(job_ns)) / 4);
        }
    }

    /// Whether the next job is to come from elsewhere: about every [`FAIR_NS`], and every second job at most.
    pub(super) fn is_fair_turn(&self, now: impl FnOnce() -> Instant) -> bool {
        let left = self.until_fair_turn.get();
        // In a model nothing depends on how long a job takes.
        if left > 1 || cfg!(all(test, timerqueue_loom)) {
            self.until_fair_turn.set(left.saturating_sub(1));
            return false;
        }
        self.measure(now());
        self.until_fair_turn.set((FAIR_NS / self.job_ns.get().max(1)).clamp(2, u64::from(FAIR_JOBS)) as u32);
        true
    }

    #[cfg(all(test, not(timerqueue_loom)))]
    pub(super) fn set_job_ns(&self, job_ns: u64) {
        self.job_ns.set(job_ns);
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_pace_is_a_moving_average() {
        let start = Instant::now();
        let pace = Pace::new(start);
        pace.set_job_ns(30_000);
        pace.count();
        pace.count();
        pace.measure(start + Duration::from_nanos(20_000));
        assert_eq!(pace.job_ns(), 25_000);
        pace.measure(start + Duration::from_secs(1));
        assert_eq!(pace.job_ns(), 25_000, "no jobs tell nothing");
    }

    #[test]
    fn rest_does_not_count() {
        let mut now = Instant::now();
        let pace = Pace::new(now);
        for _ in 0..100 {
            pace.begin(now);
            for _ in 0..7 {
                pace.is_fair_turn(|| now);
                now += Duration::from_nanos(100);
                pace.count();
            }
            pace.measure(now);
            now += Duration::from_secs(1);
        }
        assert!(pace.job_ns() < 200, "{}", pace.job_ns());
    }

    /// A job from elsewhere comes about every [`FAIR_NS`], however long the jobs are, and whatever came before.
    #[test]
    fn s31_the_turn_of_others_comes_by_time() {
        for (job_ns, every) in [(1, FAIR_JOBS), (FAIR_NS / 10, 10), (FAIR_NS, 2), (50 * FAIR_NS, 2)] {
            let mut now = Instant::now();
            let pace = Pace::new(now);
            let mut turns = Vec::new();
            for job in 0..10 * FAIR_JOBS {
                if pace.is_fair_turn(|| now) {
                    turns.push(job);
                }
                now += Duration::from_nanos(job_ns);
                pace.count();
            }
            let gaps: Vec<u32> = turns.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(gaps.iter().all(|&gap| (2..=FAIR_JOBS).contains(&gap)), "{job_ns}: {gaps:?}");
            assert_eq!(gaps.last(), Some(&every), "{job_ns}: {gaps:?}");
        }
    }
}
