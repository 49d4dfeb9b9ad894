//! Which commits wait for the disk.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use timerqueue_scheduler::{Handler, Run, Scheduler};

use crate::layer::{Call, Faults};
use crate::life::Folder;

/// A scheduler whose handler says its attempt, and ends when it is told to.
struct Held {
    scheduler: Scheduler,
    attempts: Receiver<u32>,
    go_on: Sender<()>,
}

fn held(folder: &Folder) -> Held {
    let ((say, attempts), (go_on, wait)) = (channel(), channel());
    let (say, wait) = (Mutex::new(say), Mutex::new(wait));
    let handler = Handler::new("held", move |_: (), run: &Run| {
        say.lock().unwrap().send(run.attempt()).unwrap();
        let _ = wait.lock().unwrap().recv();
    });
    let scheduler = Scheduler::open(folder.file()).register(handler.parallel(1)).start().unwrap();
    Held { scheduler, attempts, go_on }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn flushes(faults: &Arc<Faults>) -> u64 {
    faults.count(Call::Sync)
}

/// The begin of a run is flushed later, and no end of a run needs two flushes.
#[test]
fn k2_the_begin_of_a_run_waits_for_no_flush_and_counts_after_a_cut_once_it_is_flushed() {
    let folder = Folder::new("disk");
    let faults = Faults::of(&folder.path);
    let Held { scheduler, attempts, go_on } = held(&folder);
    for key in ["a", "b"] {
        let _ = scheduler.put_to("held", &()).key(key).due(Duration::from_millis(200)).send().wait().unwrap();
    }
    let before = flushes(&faults);
    assert_eq!(attempts.recv(), Ok(1));
    assert_eq!(flushes(&faults), before, "the begin of the first run");
    go_on.send(()).unwrap();
    assert_eq!(attempts.recv(), Ok(1));
    assert_eq!(flushes(&faults), before + 1, "the end of the first run, and the begin of the other one");

    // A third job begins by a claim of its own.
    go_on.send(()).unwrap();
    wait_until("the runs end", || scheduler.get("b").wait().unwrap().is_none());
    let _ = scheduler.put_to("held", &()).key("c").due(Duration::from_millis(100)).send().wait().unwrap();
    let before = flushes(&faults);
    assert_eq!(attempts.recv(), Ok(1));
    wait_until("a run that goes on is flushed", || flushes(&faults) > before);
    faults.cut();
    let after = Folder::new("disk");
    for (name, bytes) in faults.after_cut(7).files {
        std::fs::write(after.path.join(name), bytes).unwrap();
    }
    let second = held(&after);
    assert_eq!(second.attempts.recv(), Ok(2), "the attempt before the cut counts");
    let _ = (go_on.send(()), second.go_on.send(()));
}
