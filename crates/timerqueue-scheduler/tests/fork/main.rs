//! Forks without an exec, of a process that has a file open.
//!
//! Ground rules. Each test runs this program again as a *process*, which opens the file, runs jobs
//! of the handler `h`, and forks. Each run writes a line into a ledger. A forked child must harm
//! neither the jobs of the process nor its sight of others, whether the child ends at once, drops
//! what it has inherited, or uses it; and a run must not be lost with a process whose child lives
//! on.
#![cfg(target_os = "linux")]
#![allow(unsafe_code)] // fork

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use timerqueue::Runtime;
use timerqueue_scheduler::store::{Fault, SqliteStore};
use timerqueue_scheduler::{Error, Query, Run, Scheduler};

const FOLDER: &str = "TIMERQUEUE_FORK_FOLDER";
const MODE: &str = "TIMERQUEUE_FORK_MODE";
const LONG: Duration = Duration::from_secs(30);

/// A scheduler whose handler writes its runs into the ledger. A payload of true keeps its first run
/// for ever.
fn worker(folder: &Path) -> Scheduler {
    let ledger = folder.join("ledger");
    let handler = move |stays: bool, run: &Run| {
        let mut ledger = OpenOptions::new().create(true).append(true).open(&ledger).unwrap();
        writeln!(ledger, "{} {}", run.key(), run.attempt()).unwrap();
        while stays && run.attempt() == 1 {
            std::thread::sleep(LONG);
        }
    };
    Scheduler::open(folder.join("jobs.db")).handler("h", handler).start().unwrap()
}

/// Forks. The child does its work and ends with the code of the answer; returns its number.
fn fork(work: impl FnOnce() -> i32) -> libc::pid_t {
    // SAFETY: the child uses of the state that other threads may have left half changed the
    // allocator alone, which glibc makes whole after a fork.
    match unsafe { libc::fork() } {
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(101);
            // SAFETY: ends this process without its destructors.
            unsafe { libc::_exit(code) }
        }
        child => child,
    }
}

/// The code of a child that has ended by itself. A child that hangs is killed.
fn code_of(child: libc::pid_t) -> Option<i32> {
    let (begun, mut status) = (Instant::now(), 0);
    loop {
        // SAFETY: `status` lives as long as the call.
        if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
            return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        }
        if begun.elapsed() > LONG / 3 {
            // SAFETY: `child` is a child of this process that has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_forked<T: std::fmt::Debug>(answer: Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Store { fault: Fault::Forked, .. }))
}

/// Not a test: the process of the tests below. Its last line says what has become of its child.
#[test]
#[ignore = "a part of other tests"]
fn process() {
    let (Some(folder), Ok(mode)) = (std::env::var_os(FOLDER).map(PathBuf::from), std::env::var(MODE)) else { return };
    let mut scheduler = Some(worker(&folder));
    // Idle at the fork: no claim under way holds the store, so the drop of a child is that of the
    // last handle.
    std::thread::sleep(Duration::from_millis(300));
    let child = match &*mode {
        "ends" => fork(|| 0),
        "exits" => fork(|| std::process::exit(0)),
        "drops" => fork(|| {
            drop(scheduler.take());
            0
        }),
        "uses" => fork(|| {
            let scheduler = scheduler.as_ref().unwrap();
            let refused = [
                is_forked(scheduler.put_to("h", &false).key("of a child").send().wait()),
                is_forked(scheduler.list(Query::new()).wait()),
                is_forked(scheduler.pause_handler("h").wait()),
            ];
            // What the child opens by itself is its own.
            let own = Scheduler::builder().runtime(&Runtime::builder().start().unwrap());
            let store = SqliteStore::open(&Runtime::builder().start().unwrap(), folder.join("jobs.db")).unwrap();
            let own = own.store(store).start().unwrap();
            let put = own.put_to("h", &false).key("own").send().wait();
            drop(own);
            refused.iter().position(|refused| !refused).map_or(i32::from(put.is_err()) * 9, |at| at as i32 + 1)
        }),
        "lives on" => {
            let child = fork(|| {
                loop {
                    std::thread::sleep(LONG);
                }
            });
            println!("child {child}");
            loop {
                std::thread::sleep(LONG);
            }
        }
        other => panic!("{other}"),
    };
    println!("child ended {:?}", code_of(child));
    loop {
        std::thread::sleep(LONG);
    }
}

struct Process {
    folder: PathBuf,
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn new(mode: &str) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("timerqueue-fork-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["process", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .envs([(FOLDER, folder.as_os_str()), (MODE, mode.as_ref())])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { folder, child, output }
    }

    /// The rest of the line that begins with this.
    fn said(&mut self, begin: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(at) = line.find(begin) {
                return line[at + begin.len()..].trim().to_owned();
            }
            line.clear();
        }
        panic!("the process has ended");
    }

    fn ledger(&self) -> String {
        std::fs::read_to_string(self.folder.join("ledger")).unwrap_or_default()
    }

    /// Another process puts a job, without a handler of its own for it.
    fn put_from_outside(&self, key: &str, stays: bool) {
        let store = SqliteStore::open(Runtime::global(), self.folder.join("jobs.db")).unwrap();
        let scheduler = Scheduler::builder().store(store).start().unwrap();
        let _ = scheduler.put_to("h", &stays).key(key).send().wait().unwrap();
    }

    #[track_caller]
    fn awaits(&self, line: &str) {
        let begun = Instant::now();
        while !self.ledger().contains(line) {
            assert!(begun.elapsed() < LONG, "no {line:?} in {:?}", self.ledger());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait(), std::fs::remove_dir_all(&self.folder));
    }
}

/// The process goes on after its child, and sees what others put and end.
fn goes_on(mode: &str) -> Process {
    let mut process = Process::new(mode);
    assert_eq!(process.said("child ended "), "Some(0)", "{mode}");
    // A thread that was told to end may see one more notice.
    for key in ["first", "second"] {
        process.put_from_outside(key, false);
        process.awaits(&format!("{key} 1\n"));
    }
    process
}

#[test]
fn k2_a_child_that_ends_harms_nothing() {
    goes_on("ends");
    goes_on("exits");
}

#[test]
fn k2_a_child_that_drops_the_scheduler_harms_nothing() {
    goes_on("drops");
}

#[test]
fn k7_a_child_that_uses_the_store_is_refused_and_one_that_opens_its_own_is_not() {
    let process = goes_on("uses");
    process.awaits("own 1\n");
    assert!(!process.ledger().contains("of a child"));
}

#[test]
fn k2_runs_of_a_process_wait_for_the_end_of_its_children() {
    let mut process = Process::new("lives on");
    let child: libc::pid_t = process.said("child ").parse().unwrap();
    process.put_from_outside("stays", true);
    process.awaits("stays 1\n");
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    // The child has the lock of the process, and might run the job for all that others know.
    let scheduler = worker(&process.folder);
    let _ = scheduler.put_to("h", &false).key("next").send().wait().unwrap();
    process.awaits("next 1\n");
    assert!(!process.ledger().contains("stays 2"));
    // SAFETY: the child was forked by a process that is gone, and sleeps.
    unsafe { libc::kill(child, libc::SIGKILL) };
    process.awaits("stays 2\n");
    assert_eq!(process.ledger().matches("stays").count(), 2);
}
