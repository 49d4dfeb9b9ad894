//! An idle scheduler on real time wakes no thread (J13). In a process of its own, whose threads are
//! counted.
#![cfg(target_os = "linux")]

use std::time::Duration;

use timerqueue::Runtime;
use timerqueue_scheduler::{Builder, Overlap, Run, Schedule, Scheduler};

/// How often threads of the runtime have gone to sleep so far.
fn sleeps() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let of = |path: std::path::PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let name = status.lines().next()?.to_owned();
        let count = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
        let count: u64 = count.split_whitespace().nth(1)?.parse().ok()?;
        name.contains("timerqueue").then_some(count)
    };
    tasks.filter_map(|task| of(task.ok()?.path())).sum()
}

#[test]
fn an_idle_scheduler_wakes_no_thread() {
    idle(Scheduler::builder(), 10_000);
    // A file with a second store on it, whose changes the first one is told of.
    #[cfg(feature = "sqlite")]
    {
        let folder = std::env::temp_dir().join(format!("timerqueue-idle-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let other = Scheduler::open(folder.join("jobs.db")).start().unwrap();
        idle(Scheduler::open(folder.join("jobs.db")), 100);
        drop(other);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

fn idle(builder: Builder, jobs: u32) {
    let runtime = Runtime::builder().start().unwrap();
    let scheduler = builder.runtime(&runtime).handler("h", |_: u32, _: &Run| {}).start().unwrap();
    for n in 0..jobs {
        let _ = scheduler.put_to("h", &n).due(Duration::from_secs(3_600)).send().wait().unwrap();
    }
    let rest = Schedule::fixed_delay(Duration::from_secs(3_600)).build().unwrap();
    let _ = scheduler.put_to("h", &0).key("r").schedule(rest).overlap(Overlap::Skip).send().wait().unwrap();
    while scheduler.stats().wait().unwrap().done == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The pool settles, and its threads look at their descriptors at an age of 1 s, 2 s, 4 s and so
    // on, on a busy machine later. What polls wakes up in each of the windows.
    let is_at_rest = (0..20).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        let before = sleeps();
        std::thread::sleep(Duration::from_millis(400));
        sleeps() == before
    });
    assert!(is_at_rest, "threads wake up in each window of 400 ms");
    assert_eq!(scheduler.stats().wait().unwrap().done, 1);
}
