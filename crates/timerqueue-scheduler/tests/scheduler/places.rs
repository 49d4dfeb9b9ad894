//! Places that go from a run to the next job: what must not follow from it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use timerqueue::Runtime;
use timerqueue_scheduler::store::MemoryStore;
use timerqueue_scheduler::{Handler, Run, Scheduler, State};

use crate::bench::secs;

#[test]
fn j14_a_run_that_outlives_its_runtime_gives_its_place_to_none() {
    let runtime = Runtime::builder().start().unwrap();
    let (go, gate) = mpsc::channel::<()>();
    let (gate, begun) = (Mutex::new(gate), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&begun);
    let handler = move |_: (), _: &Run| {
        count.fetch_add(1, Ordering::SeqCst);
        let _ = gate.lock().unwrap().recv();
    };
    let builder = Scheduler::builder().runtime(&runtime).store(MemoryStore::new(&runtime));
    let scheduler = builder.register(Handler::new("h", handler).parallel(1)).start().unwrap();
    for key in ["a", "b", "c"] {
        let _ = scheduler.put_to("h", &()).key(key).send().wait().unwrap();
    }
    while begun.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    let _ = runtime.shutdown(Duration::ZERO);
    go.send(()).unwrap();
    while scheduler.stats().wait().unwrap().jobs.of(State::Running) > 0 {
        std::thread::yield_now();
    }
    std::thread::sleep(secs(1));
    assert_eq!(begun.load(Ordering::SeqCst), 1);
    assert_eq!(scheduler.stats().wait().unwrap().jobs.of(State::Waiting), 2);
}
