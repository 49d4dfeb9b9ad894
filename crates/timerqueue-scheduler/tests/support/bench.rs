//! A scheduler on virtual time, whose handlers write down what ran when.
#![allow(dead_code)] // each test file uses a part of it

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use timerqueue::{Due, ManualClock, Runtime};
use timerqueue_scheduler::store::{MemoryStore, Micros};
use timerqueue_scheduler::{Builder, JobInfo, Placed, Put, Run, Scheduler, Stats};

/// 2026-01-01T00:00:00Z, a Thursday.
pub(crate) const BEGIN: i64 = 1_767_225_600;

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const HOUR: Duration = Duration::from_secs(3_600);
pub(crate) const DAY: Duration = Duration::from_secs(86_400);

/// The wall clock at the begin, plus seconds.
pub(crate) fn wall(second: i64) -> SystemTime {
    Micros::new((BEGIN + second) * 1_000_000).to_system()
}

/// A run that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) key: String,
    /// Since the begin, on the running clock.
    pub(crate) at: Duration,
    pub(crate) attempt: u32,
    pub(crate) nominal: Option<SystemTime>,
}

#[derive(Clone, Default)]
pub(crate) struct Log {
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Log {
    pub(crate) fn add(&self, runtime: &Runtime, run: &Run) {
        assert!(runtime.wall_now() >= run.due(), "never early");
        let seen = Seen {
            key: run.key().to_owned(),
            at: runtime.now().as_duration(),
            attempt: run.attempt(),
            nominal: run.nominal(),
        };
        self.seen.lock().unwrap().push(seen);
    }

    pub(crate) fn all(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The runs since the last call: keys, with seconds since the begin.
    pub(crate) fn take(&self) -> Vec<(String, u64)> {
        let mut seen = self.seen.lock().unwrap();
        seen.drain(..).map(|seen| (seen.key, seen.at.as_secs())).collect()
    }

    pub(crate) fn seconds(&self) -> Vec<u64> {
        self.take().into_iter().map(|(_, second)| second).collect()
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.take().into_iter().map(|(key, _)| key).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

/// A handler that panics.
pub(crate) fn panics(_: (), _: &Run) {
    panic!("no");
}

/// A scheduler with a handler `log`.
pub(crate) struct Bench {
    pub(crate) clock: ManualClock,
    pub(crate) runtime: Runtime,
    pub(crate) store: MemoryStore,
    pub(crate) scheduler: Scheduler,
    pub(crate) log: Log,
}

/// A clock whose wall shows [`BEGIN`], and a runtime on it.
pub(crate) fn clock() -> (ManualClock, Runtime) {
    let clock = ManualClock::new();
    clock.set_wall(wall(0));
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    (clock, runtime)
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(|builder, _, _| builder)
    }

    /// With further handlers.
    pub(crate) fn with(more: impl FnOnce(Builder, &Runtime, &Log) -> Builder) -> Self {
        let (clock, runtime) = clock();
        let log = Log::default();
        let store = MemoryStore::new(&runtime);
        let builder = Scheduler::builder().runtime(&runtime).store(store.clone()).seed(1);
        let (own, notes) = (runtime.clone(), log.clone());
        let builder = builder.handler("log", move |_: serde_json::Value, run: &Run| notes.add(&own, run));
        let scheduler = more(builder, &runtime, &log).start().unwrap();
        Self { clock, runtime, store, scheduler, log }
    }

    pub(crate) fn job(&self, key: &str) -> Put<'_> {
        self.scheduler.put_to("log", &()).key(key)
    }

    pub(crate) fn to(&self, name: &str, key: &str) -> Put<'_> {
        self.scheduler.put_to(name, &()).key(key)
    }

    /// Puts a job for the handler `log`.
    pub(crate) fn put(&self, key: &str, due: impl Into<Due>) -> Placed {
        self.job(key).due(due).send().wait().unwrap()
    }

    /// Runs what is due now.
    pub(crate) fn go(&self) {
        self.clock.advance(Duration::ZERO);
    }

    pub(crate) fn advance(&self, seconds: u64) {
        self.clock.advance(secs(seconds));
    }

    pub(crate) fn get(&self, key: &str) -> Option<JobInfo> {
        self.scheduler.get(key).wait().unwrap()
    }

    pub(crate) fn stats(&self) -> Stats {
        self.scheduler.stats().wait().unwrap()
    }

    /// Moves the wall clock, forward or back.
    pub(crate) fn step(&self, seconds: i64) {
        let wall = self.clock.wall();
        let by = secs(seconds.unsigned_abs());
        self.clock.set_wall(if seconds < 0 { wall - by } else { wall + by });
        self.go();
    }
}

pub(crate) fn expect(runs: &[(&str, u64)]) -> Vec<(String, u64)> {
    runs.iter().map(|&(key, second)| (key.to_owned(), second)).collect()
}
