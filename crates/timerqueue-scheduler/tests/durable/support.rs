//! Folders that go with their test, and schedulers on a file.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant, SystemTime};

use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::{Builder, Error, Pending, Run, Scheduler};

pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A folder that goes with its test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("timerqueue-durable-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("jobs.db")
    }

    /// A scheduler on the file and on the system's clocks, whose handler `log` writes down its
    /// runs.
    pub(crate) fn scheduler(&self, log: &Log) -> Scheduler {
        log.handler(Scheduler::open(self.file())).start().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Key and attempt of each run that has begun.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<(String, u32)>>>);

impl Log {
    pub(crate) fn add(&self, run: &Run) {
        self.0.lock().unwrap().push((run.key().to_owned(), run.attempt()));
    }

    pub(crate) fn handler(&self, builder: Builder) -> Builder {
        let log = self.clone();
        builder.handler("log", move |_: serde_json::Value, run: &Run| {
            log.add(run);
        })
    }

    pub(crate) fn all(&self) -> Vec<(String, u32)> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.all().into_iter().map(|(key, _)| key).collect();
        keys.sort();
        keys
    }
}

/// Waits until this is so.
#[track_caller]
pub(crate) fn until(mut so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !so() {
        assert!(begin.elapsed() < LONG, "too long");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A runtime on virtual time, whose wall clock shows this instant.
pub(crate) fn virtual_at(wall: SystemTime) -> (ManualClock, Runtime) {
    let clock = ManualClock::new();
    clock.set_wall(wall);
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    (clock, runtime)
}

/// Runs what is due on a virtual clock until this is so: the answers of a file come on their own
/// time.
#[track_caller]
pub(crate) fn go_until(clock: &ManualClock, mut so: impl FnMut() -> bool) {
    until(|| {
        clock.advance(Duration::ZERO);
        so()
    });
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The answer, without moving a virtual clock: `Pending::wait` would.
pub(crate) fn answer<T>(mut pending: Pending<T>) -> Result<T, Error> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        if let Poll::Ready(answer) = Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)) {
            return answer;
        }
        std::thread::park_timeout(LONG);
    }
}
