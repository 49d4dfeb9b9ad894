//! Places that go from a run to the next job in one commit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use timerqueue::Runtime;
use timerqueue_scheduler::{Handler, Run, Scheduler, State};

use crate::support::{Folder, LONG, until};

#[test]
fn a_run_that_outlives_its_runtime_gives_its_place_to_none() {
    let folder = Folder::new();
    let runtime = Runtime::builder().start().unwrap();
    let (go, gate) = mpsc::channel::<()>();
    let (gate, begun) = (Mutex::new(gate), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&begun);
    let handler = move |_: (), _: &Run| {
        count.fetch_add(1, Ordering::SeqCst);
        let _ = gate.lock().unwrap().recv();
    };
    let builder = Scheduler::open(folder.file()).runtime(&runtime);
    let scheduler = builder.register(Handler::new("h", handler).parallel(1)).start().unwrap();
    for key in ["a", "b", "c"] {
        let _ = scheduler.put_to("h", &()).key(key).send().wait().unwrap();
    }
    until(|| begun.load(Ordering::SeqCst) == 1);
    let _ = runtime.shutdown(Duration::ZERO);
    go.send(()).unwrap();
    until(|| scheduler.get("a").wait().unwrap().is_none());
    let db = rusqlite::Connection::open(folder.file()).unwrap();
    let version = || db.query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0)).unwrap();
    until(|| scheduler.stats().wait().unwrap().jobs.of(State::Waiting) == 2);
    // Few commits are left: a place that is given on without end would make one after the other.
    until(|| {
        let before = version();
        std::thread::sleep(Duration::from_millis(200));
        version() == before
    });
    assert_eq!(begun.load(Ordering::SeqCst), 1);
}

/// Closes when dropped, and waits.
struct Closes(Arc<OnceLock<Scheduler>>, mpsc::Sender<usize>);

impl Drop for Closes {
    fn drop(&mut self) {
        if let Some(scheduler) = self.0.get() {
            let report = scheduler.close(Duration::MAX).wait().unwrap();
            self.1.send(report.running.len()).unwrap();
        }
    }
}

/// The callback goes with the token, which goes when the place is given on.
#[test]
fn j11_j14_a_destructor_that_closes_does_not_wait_for_the_next_run() {
    let folder = Folder::new();
    let slot: Arc<OnceLock<Scheduler>> = Arc::default();
    let (closed, is_closed) = mpsc::channel();
    let (own, begun) = (Arc::clone(&slot), Arc::new(AtomicUsize::new(0)));
    let (count, (go, gate)) = (Arc::clone(&begun), mpsc::channel::<()>());
    let gate = Mutex::new(gate);
    let handler = move |_: (), run: &Run| {
        count.fetch_add(1, Ordering::SeqCst);
        let closes = Closes(Arc::clone(&own), closed.clone());
        run.token().register(move || drop(closes)).detach();
        let _ = gate.lock().unwrap().recv();
    };
    let scheduler = Scheduler::open(folder.file()).register(Handler::new("h", handler).parallel(1)).start().unwrap();
    for key in ["a", "b"] {
        let _ = scheduler.put_to("h", &()).key(key).send().wait().unwrap();
    }
    until(|| begun.load(Ordering::SeqCst) == 1);
    let _ = slot.set(scheduler.clone());
    go.send(()).unwrap();
    assert!(is_closed.recv_timeout(LONG).is_ok(), "the close came to its end");
    until(|| scheduler.stats().wait().unwrap().jobs.of(State::Waiting) == 1);
    assert_eq!(begun.load(Ordering::SeqCst), 1, "no run begins after the close");
    assert_eq!(scheduler.get("b").wait().unwrap().unwrap().attempt, 0);
}
