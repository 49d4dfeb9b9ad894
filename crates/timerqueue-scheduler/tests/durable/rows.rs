//! The rows of the hand-made systems B and D that a scheduler on a file replaces, on virtual time
//! and across restarts.
//!
//! Ground rules. `b1_...` to `d16_...` show that the scheduler has the feature, or not the defect,
//! of that row, also after a restart. `tests/rows` has the same rows in memory. A clock does not
//! move while a test waits for the file, so each run is at the instant of its claim.

#[path = "rows/b.rs"]
mod b;
#[path = "rows/d.rs"]
mod d;

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use timerqueue::{Due, ManualClock, Runtime};
use timerqueue_scheduler::{Builder, Cancel, JobInfo, Placed, Put, Run, Scheduler, Stats};

use crate::support::{Folder, answer, go_until, virtual_at};

pub(crate) const HOUR: Duration = secs(3_600);

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// 2026-01-01T00:00:00Z, plus seconds.
pub(crate) fn wall(second: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + secs(1_767_225_600_u64.checked_add_signed(second).unwrap())
}

/// Key and second of each run.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<Vec<(String, u64)>>>);

impl Seen {
    pub(crate) fn add(&self, runtime: &Runtime, run: &Run) {
        let now = runtime.wall_now();
        assert!(now >= run.due(), "never early");
        let second = now.duration_since(wall(0)).unwrap().as_secs();
        self.0.lock().unwrap().push((run.key().to_owned(), second));
    }

    pub(crate) fn take(&self) -> Vec<(String, u64)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.take().into_iter().map(|(key, _)| key).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// A scheduler on a file, whose handler `log` writes down its runs.
pub(crate) struct Bench {
    pub(crate) clock: ManualClock,
    pub(crate) runtime: Runtime,
    pub(crate) scheduler: Scheduler,
    pub(crate) seen: Seen,
}

impl Bench {
    /// A start at this second.
    pub(crate) fn at(folder: &Folder, second: i64) -> Self {
        Self::with(folder, second, |builder, _, _| builder)
    }

    /// With further handlers.
    pub(crate) fn with(folder: &Folder, second: i64, more: impl FnOnce(Builder, &Runtime, &Seen) -> Builder) -> Self {
        let (clock, runtime) = virtual_at(wall(second));
        let seen = Seen::default();
        let (own, notes) = (runtime.clone(), seen.clone());
        let builder = Scheduler::open(folder.file()).runtime(&runtime).seed(1);
        let builder = builder.handler("log", move |_: serde_json::Value, run: &Run| notes.add(&own, run));
        let scheduler = more(builder, &runtime, &seen).start().unwrap();
        Self { clock, runtime, scheduler, seen }
    }

    pub(crate) fn job(&self, key: &str) -> Put<'_> {
        self.scheduler.put_to("log", &()).key(key)
    }

    pub(crate) fn put(&self, key: &str, due: impl Into<Due>) -> Placed {
        answer(self.job(key).due(due).send()).unwrap()
    }

    pub(crate) fn cancel(&self, key: &str) -> Cancel {
        answer(self.scheduler.cancel(key)).unwrap()
    }

    pub(crate) fn get(&self, key: &str) -> Option<JobInfo> {
        answer(self.scheduler.get(key)).unwrap()
    }

    pub(crate) fn stats(&self) -> Stats {
        answer(self.scheduler.stats()).unwrap()
    }

    /// Waits until all that was asked of the file is done, without moving the clock.
    pub(crate) fn settle(&self) {
        for _ in 0..4 {
            self.clock.advance(Duration::ZERO);
            assert_eq!(self.cancel("no such key"), Cancel::Absent); // after all claims before it
        }
    }

    /// Moves the clock, and waits until so many runs have ended in this process.
    #[track_caller]
    pub(crate) fn go(&self, by: Duration, done: u64) {
        self.clock.advance(by);
        go_until(&self.clock, || self.stats().done >= done);
        self.settle();
        assert_eq!(self.stats().done, done);
    }
}

pub(crate) fn expect(runs: &[(&str, u64)]) -> Vec<(String, u64)> {
    runs.iter().map(|&(key, second)| (key.to_owned(), second)).collect()
}
