//! The stall detector: the number of threads to add while jobs wait and no thread is idle.
//!
//! Ground rules. Pure: no lock, no thread, no clock. While jobs wait, the pool calls
//! [`StallDetector::look`] every [`super::STALL_CHECK`], with a sample of each thread. A thread
//! that blocks must be replaced. A thread that computes, or waits for a processor, must not be
//! replaced, since a further thread would not help.
//!
//! Two rules.
//!
//! 1. **No thread of the pool is awake.** Each thread has a job and sleeps in the job, at two looks
//!    in a row or in the same jobs as at the look before. So the processors wait for the pool. A
//!    thread is added; at further such looks two, four, eight, up to [`MAX_GROWTH`] threads. This
//!    absorbs any number of callbacks that block, and a flood of callbacks that sleep for short
//!    times.
//! 2. **Some threads are stuck, and others return.** A stuck thread has slept in the same job for
//!    longer than the *patience*, or has computed for longer than [`COMPUTES_LONG_NS`]. Each stuck
//!    thread is replaced, up to the number of workers that run jobs in a pool without stuck
//!    threads.
//!
//! The patience tells a callback that blocks from a callback that waits for a lock, while the owner
//! of the lock waits for a processor. A thread that was taken for stuck and returned soon after
//! doubles the patience; a stuck thread that stayed halves it.
//!
//! At most as many threads are added as jobs wait, without the threads that are about to take a
//! job.

use super::STALL_CHECK;

/// The limit of threads added at a look.
const MAX_GROWTH: usize = 16;
/// A thread that computes in the same job for this long counts as stuck: some time slices of a
/// scheduler.
const COMPUTES_LONG_NS: u64 = 20_000_000;
/// The most patience.
const MOST_PATIENCE_NS: u64 = 100_000_000;
/// Replacing a thread that returns within this time was a mistake.
const SOON_NS: u64 = 50_000_000;

/// What proves that a thread is stuck. (In a model of the pool no time passes, so a single look is
/// proof.)
#[derive(Clone, Copy, Debug)]
pub(super) struct StallRules {
    /// The least patience.
    pub(super) least_patience_ns: u64,
    /// The least patience on systems that do not report whether a thread sleeps.
    pub(super) unknown_patience_ns: u64,
    /// A thread is found asleep at a second look, not at the first.
    pub(super) second_look: bool,
    /// The threads that are about to take a job count as awake.
    pub(super) awaits_coming: bool,
}

impl StallRules {
    pub(super) const REAL: Self = Self {
        least_patience_ns: STALL_CHECK.as_nanos() as u64,
        unknown_patience_ns: 2_000_000,
        second_look: true,
        awaits_coming: true,
    };
}

/// The state of a thread at a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// The serial number of the thread.
    pub(super) thread: usize,
    /// The number of the thread's job; odd while a job runs.
    pub(super) job: u64,
}

impl Sample {
    fn is_busy(self) -> bool {
        self.job % 2 == 1
    }
}

/// The history of a thread over the last looks.
#[derive(Clone, Copy, Debug)]
struct Seen {
    sample: Sample,
    /// The time of the look that first saw this job.
    since_ns: u64,
    /// The time of the look that first took the thread for stuck in this job.
    stuck_ns: Option<u64>,
}

/// The state of the pool at a look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) now_ns: u64,
    /// The number of jobs in the queues of the pool.
    pub(super) waiting: usize,
    /// The number of threads that are about to take a job.
    pub(super) coming: usize,
    /// The number of threads that run jobs in a pool without blocked threads.
    pub(super) target: usize,
}

/// The memory between looks.
#[derive(Debug)]
pub(super) struct StallDetector {
    rules: StallRules,
    /// Ordered by thread.
    seen: Vec<Seen>,
    /// The threads added when the first rule last held.
    growth: usize,
    /// All threads slept at the last look.
    all_slept: bool,
    patience_ns: u64,
}

impl StallDetector {
    pub(super) fn new(rules: StallRules) -> Self {
        Self { rules, seen: Vec::new(), growth: 0, all_slept: false, patience_ns: rules.least_patience_ns }
    }

    /// Returns the number of threads to add. `samples` has all threads but the caller, ordered by
    /// thread. `sleeps` returns whether the system has put a thread to sleep; `None`: the system
    /// does not report this.
    pub(super) fn look(
        &mut self,
        samples: &[Sample],
        moment: Moment,
        mut sleeps: impl FnMut(Sample) -> Option<bool>,
    ) -> usize {
        let coming = if self.rules.awaits_coming { moment.coming } else { 0 };
        let (mut busy, mut awake, mut stuck, mut stand_still) = (0, 0, 0, true);
        let mut now_seen = Vec::with_capacity(samples.len());
        for &sample in samples {
            let before = self.seen.binary_search_by_key(&sample.thread, |seen| seen.sample.thread).ok();
            let before = before.map(|at| self.seen[at]);
            let same = before.filter(|seen| seen.sample.job == sample.job);
            if same.is_none() {
                self.learn(before, moment.now_ns);
            }
            let mut seen = same.unwrap_or(Seen { sample, since_ns: moment.now_ns, stuck_ns: None });
            if sample.is_busy() {
                busy += 1;
                stand_still &= same.is_some();
                // A stuck thread stays so until its next job.
                if seen.stuck_ns.is_none() {
                    let told = sleeps(sample);
                    let is_asleep = told.unwrap_or(same.is_some() || !self.rules.second_look);
                    awake += usize::from(!is_asleep);
                    let has_lasted_ns = moment.now_ns.saturating_sub(seen.since_ns);
                    let is_stuck = same.is_some() && has_lasted_ns >= self.patience_ns(told);
                    seen.stuck_ns = is_stuck.then_some(moment.now_ns);
                }
                stuck += usize::from(seen.stuck_ns.is_some());
            }
            now_seen.push(seen);
        }
        self.seen = now_seen;
        let all_sleep = busy > 0 && awake == 0 && coming == 0;
        let wanted = if all_sleep && (self.all_slept || stand_still || !self.rules.second_look) {
            self.growth = (self.growth * 2).clamp(1, MAX_GROWTH);
            self.growth
        } else {
            moment.target.saturating_sub(busy - stuck + coming).min(MAX_GROWTH)
        };
        self.all_slept = all_sleep;
        wanted.min(moment.waiting.saturating_sub(coming))
    }

    /// The patience with a thread that sleeps, does not, or may.
    fn patience_ns(&self, sleeps: Option<bool>) -> u64 {
        match sleeps {
            Some(true) => self.patience_ns,
            Some(false) => self.patience_ns.max(COMPUTES_LONG_NS),
            None => self.patience_ns.max(self.rules.unknown_patience_ns),
        }
    }

    /// A thread has another job than at the last look: adapts the patience.
    fn learn(&mut self, before: Option<Seen>, now_ns: u64) {
        if let Some(stuck_ns) = before.and_then(|seen| seen.stuck_ns) {
            let soon = now_ns.saturating_sub(stuck_ns) < SOON_NS;
            let patience_ns = if soon { self.patience_ns * 2 } else { self.patience_ns / 2 };
            self.patience_ns = patience_ns.clamp(self.rules.least_patience_ns, MOST_PATIENCE_NS);
        }
    }

    /// No job waits any more.
    pub(super) fn nothing_waits(&mut self) {
        self.growth = 0;
        self.all_slept = false;
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    const LOOK_NS: u64 = STALL_CHECK.as_nanos() as u64;
    const MS: u64 = 1_000_000;

    /// The behaviour of a scripted thread.
    #[derive(Clone, Copy)]
    enum Does {
        /// Sleeps in one job, for ever.
        Sleeps,
        /// Computes in one job, for ever.
        Computes,
        /// Runs a new job between any two looks; asleep or awake at each look.
        Returns { asleep: bool },
        /// Sleeps in each job for this many looks.
        SleepsFor(u64),
    }

    /// A pool of scripted threads.
    struct Script {
        stall: StallDetector,
        threads: Vec<Does>,
        waiting: usize,
        target: usize,
        looks: u64,
        known: bool,
    }

    impl Script {
        fn new(threads: &[Does], target: usize) -> Self {
            let threads = threads.to_vec();
            Self { stall: StallDetector::new(StallRules::REAL), threads, waiting: 1_000, target, looks: 0, known: true }
        }

        /// A look; each added thread takes a job at once.
        fn look(&mut self, added_do: Does) -> usize {
            let looks = self.looks;
            let job = |does: &Does| match does {
                Does::Sleeps | Does::Computes => 1,
                Does::Returns { .. } => 2 * looks + 1,
                Does::SleepsFor(n) => 2 * (looks / n) + 1,
            };
            let samples: Vec<Sample> =
                self.threads.iter().enumerate().map(|(thread, does)| Sample { thread, job: job(does) }).collect();
            let (threads, known) = (&self.threads, self.known);
            let now_ns = looks * LOOK_NS;
            let moment = Moment { now_ns, waiting: self.waiting, coming: 0, target: self.target };
            let added = self.stall.look(&samples, moment, |sample| {
                known.then(|| match threads[sample.thread] {
                    Does::Sleeps | Does::SleepsFor(_) | Does::Returns { asleep: true } => true,
                    Does::Computes | Does::Returns { asleep: false } => false,
                })
            });
            self.looks += 1;
            self.waiting -= added;
            self.threads.extend(std::iter::repeat_n(added_do, added));
            added
        }

        fn looks(&mut self, looks: u64, added_do: Does) -> Vec<usize> {
            (0..looks).map(|_| self.look(added_do)).collect()
        }
    }

    #[test]
    fn s31_threads_that_all_sleep_are_joined_by_more_and_more() {
        let mut script = Script::new(&[Does::Sleeps, Does::Sleeps], 2);
        assert_eq!(script.looks(8, Does::Sleeps), [0, 1, 2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn s31_no_more_threads_are_added_than_jobs_wait() {
        let mut script = Script::new(&[Does::Sleeps, Does::Sleeps], 2);
        script.waiting = 38;
        assert_eq!(script.looks(9, Does::Sleeps), [0, 1, 2, 4, 8, 16, 7, 0, 0]);
    }

    #[test]
    fn s31_threads_that_are_on_their_way_to_a_job_are_awake() {
        let mut stall = StallDetector { growth: 8, all_slept: true, ..StallDetector::new(StallRules::REAL) };
        let mut look = |coming| {
            let moment = Moment { now_ns: 0, waiting: 5, coming, target: 2 };
            stall.look(&[Sample { thread: 0, job: 1 }], moment, |_| Some(true))
        };
        assert_eq!((look(4), look(1), look(0), look(0)), (0, 0, 5, 5));
    }

    #[test]
    fn s31_one_thread_that_sleeps_beside_one_that_returns_is_replaced() {
        for (known, looks) in [(true, 2), (false, 5)] {
            let mut script = Script::new(&[Does::Sleeps, Does::Returns { asleep: false }], 2);
            script.known = known;
            let added = script.looks(looks, Does::Returns { asleep: false });
            assert_eq!((added.last(), added.iter().sum()), (Some(&1), 1), "{added:?}");
            assert_eq!(script.looks(1_000, Does::Returns { asleep: false }).iter().sum::<usize>(), 0);
        }
    }

    #[test]
    fn s31_jobs_that_sleep_for_a_short_time_each_do_not_hide_that_no_thread_is_awake() {
        let mut script = Script::new(&[Does::Returns { asleep: true }; 2], 2);
        assert_eq!(script.looks(4, Does::Returns { asleep: true }), [0, 1, 2, 4]);
    }

    /// Page faults, locks held for a moment: no thread is awake at every second look.
    #[test]
    fn threads_that_return_and_sleep_for_a_moment_are_not_helped() {
        let mut stall = StallDetector::new(StallRules::REAL);
        for look in 0..1_000 {
            let samples = [0, 1].map(|thread| Sample { thread, job: 2 * look + 1 });
            let moment = Moment { now_ns: look * LOOK_NS, waiting: 9, coming: 0, target: 2 };
            assert_eq!(stall.look(&samples, moment, |_| Some(look % 2 == 0)), 0, "look {look}");
        }
    }

    #[test]
    fn s31_threads_that_compute_are_not_helped_by_another_unless_they_compute_for_long() {
        let mut script = Script::new(&[Does::Returns { asleep: false }; 2], 2);
        assert_eq!(script.looks(10_000, Does::Returns { asleep: false }).iter().sum::<usize>(), 0, "overload");
        let mut script = Script::new(&[Does::Computes; 2], 2);
        let added = script.looks(39, Does::Returns { asleep: false });
        assert_eq!(added.iter().sum::<usize>(), 0, "within 20 ms");
        assert_eq!(script.looks(3, Does::Returns { asleep: false }), [0, 2, 0]);
    }

    /// The owner of the lock is awake; a second thread sleeps until the lock is free.
    #[test]
    fn s31_threads_that_wait_for_a_lock_are_not_taken_for_blocked_for_long() {
        let waits = Does::SleepsFor(3);
        let mut script = Script::new(&[Does::Returns { asleep: false }, waits], 2);
        let added: usize = script.looks(10_000, waits).iter().sum();
        assert!(added <= 8, "{added} threads in five seconds");
        assert!(script.stall.patience_ns > 2 * LOOK_NS);
    }

    #[test]
    fn patience_that_has_grown_does_not_keep_the_pool_from_growing_where_no_thread_is_awake() {
        let mut script = Script::new(&[Does::Sleeps, Does::Sleeps], 2);
        script.stall.patience_ns = MOST_PATIENCE_NS;
        assert_eq!(script.looks(4, Does::Sleeps), [0, 1, 2, 4]);
    }

    #[test]
    fn patience_falls_with_each_thread_that_was_rightly_replaced() {
        let mut stall = StallDetector { patience_ns: MOST_PATIENCE_NS, ..StallDetector::new(StallRules::REAL) };
        let moment = |now_ns| Moment { now_ns, waiting: 0, coming: 0, target: 2 };
        let thread = |job| [Sample { thread: 7, job }];
        for (now_ms, job, patience_ms) in [(0, 1, 100), (100, 1, 100), (160, 3, 50), (210, 3, 50), (220, 5, 100)] {
            let _ = stall.look(&thread(job), moment(now_ms * MS), |_| Some(true));
            assert_eq!(stall.patience_ns, patience_ms * MS, "after {now_ms} ms");
        }
    }
}
