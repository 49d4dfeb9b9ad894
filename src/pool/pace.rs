//! The average length of a thread's jobs, and the turns at which the thread takes a job from
//! another queue.
//!
//! Ground rules. Used by a single thread. Idle time does not count: only the time between
//! [`Pace::begin`] and the next measurement. Instants are readings of
//! the clock of the pool.

use std::cell::Cell;

use super::{FAIR_JOBS, FAIR_NS, WORTH_WAKING_NS};

pub(super) struct Pace {
    /// The length of a job, a moving average. At first unknown, and assumed to be long.
    job_ns: Cell<u64>,
    /// Jobs that have returned since `since`.
    jobs: Cell<u64>,
    since: Cell<u64>,
    /// Jobs until the thread looks at the clock again.
    until_look: Cell<u32>,
    /// The instant of the last turn of other queues.
    turned: Cell<u64>,
}

impl Pace {
    /// `first_look`: the jobs until the thread looks at the clock first.
    pub(super) fn new(now: u64, first_look: u32) -> Self {
        Self {
            job_ns: Cell::new(WORTH_WAKING_NS),
            jobs: Cell::new(0),
            since: Cell::new(now),
            until_look: Cell::new(first_look),
            turned: Cell::new(now),
        }
    }

    pub(super) fn job_ns(&self) -> u64 {
        self.job_ns.get()
    }

    /// The thread begins to run jobs.
    pub(super) fn begin(&self, now: u64) {
        self.jobs.set(0);
        self.since.set(now);
    }

    /// A job has returned.
    pub(super) fn count(&self) {
        self.jobs.set(self.jobs.get() + 1);
    }

    /// Adds the jobs since the last measurement to the average, and begins the next measurement.
    pub(super) fn measure(&self, now: u64) {
        let took = now.saturating_sub(self.since.replace(now));
        if let Some(job_ns) = took.checked_div(self.jobs.replace(0)) {
            self.job_ns.set((self.job_ns.get().saturating_mul(3).saturating_add(job_ns)) / 4);
        }
    }

    /// Whether the next job comes from another queue: every [`FAIR_NS`], or every second job where
    /// jobs are longer. The clock is read at least once in [`FAIR_JOBS`] jobs.
    pub(super) fn is_fair_turn(&self, now: impl FnOnce() -> u64) -> bool {
        let left = self.until_look.get();
        if left > 1 {
            self.until_look.set(left - 1);
            return false;
        }
        let now = now();
        self.measure(now);
        self.until_look.set((FAIR_NS / self.job_ns.get().max(1)).clamp(2, FAIR_JOBS) as u32);
        let is_turn = now.saturating_sub(self.turned.get()) >= FAIR_NS;
        if is_turn {
            self.turned.set(now);
        }
        is_turn
    }

    #[cfg(all(test, not(timerqueue_loom)))]
    pub(super) fn set_job_ns(&self, job_ns: u64) {
        self.job_ns.set(job_ns);
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_a_moving_average() {
        let start = 1_000_000;
        let pace = Pace::new(start, 2);
        pace.set_job_ns(30_000);
        pace.count();
        pace.count();
        pace.measure(start + 20_000);
        assert_eq!(pace.job_ns(), 25_000);
        pace.measure(start + 1_000_000_000);
        assert_eq!(pace.job_ns(), 25_000, "no jobs tell nothing");
    }

    #[test]
    fn rest_does_not_count() {
        let mut now = 1_000_000;
        let pace = Pace::new(now, 2);
        for _ in 0..100 {
            pace.begin(now);
            for _ in 0..7 {
                pace.is_fair_turn(|| now);
                now += 100;
                pace.count();
            }
            pace.measure(now);
            now += 1_000_000_000;
        }
        assert!(pace.job_ns() < 200, "{}", pace.job_ns());
    }

    /// A job from elsewhere comes about every [`FAIR_NS`], however long the jobs are.
    #[test]
    fn s31_the_turn_of_others_comes_by_time() {
        for job_ns in [100, 1_000, FAIR_NS / 10, FAIR_NS, 50 * FAIR_NS] {
            let mut now = 1_000_000;
            let pace = Pace::new(now, 2);
            let mut turns = Vec::new();
            for job in 0..20_000 {
                if pace.is_fair_turn(|| now) {
                    turns.push(job);
                }
                now += job_ns;
                pace.count();
            }
            let ideal = FAIR_NS / job_ns;
            let gaps = || turns.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(gaps().all(|gap| gap >= ideal.max(2) && gap <= ideal + FAIR_JOBS), "{job_ns}: {turns:?}");
            assert!(turns.len() > 2 && turns[0] <= ideal + FAIR_JOBS, "{job_ns}: {turns:?}");
        }
    }

    #[test]
    fn s31_jobs_that_become_long_are_found_out_within_some_of_them() {
        let mut now = 1_000_000;
        let pace = Pace::new(now, 2);
        let mut run = |jobs: u64, job_ns| {
            (0..jobs)
                .filter(|_| {
                    let is_turn = pace.is_fair_turn(|| now);
                    now += job_ns;
                    pace.count();
                    is_turn
                })
                .count() as u64
        };
        run(10_000, 100);
        let turns = run(3 * FAIR_JOBS, 1_000_000);
        assert!(turns >= FAIR_JOBS - 2, "{turns}");
    }
}
