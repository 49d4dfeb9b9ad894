//! Kills of processes.
//!
//! Ground rules. The test runs itself twice at a time as a child: each child puts jobs, says on its
//! output which were accepted, and runs jobs of both. Each run writes a line into the ledger. After
//! the last round the ledger is judged. `TIMERQUEUE_KILLS=200` sets the number of rounds.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use timerqueue::Runtime;
use timerqueue_scheduler::store::SqliteStore;
use timerqueue_scheduler::{Query, Run, Scheduler, State};

use crate::ledger::{self, Ledger, next};

const ROUNDS: u64 = 50;
const FOLDER: &str = "TIMERQUEUE_KILL_FOLDER";

/// A scheduler whose handler writes lines into the ledger.
fn worker(folder: &Path) -> Scheduler {
    let file = OpenOptions::new().create(true).append(true).open(folder.join("ledger")).unwrap();
    let say = move |line: String| (&file).write_all(line.as_bytes()).unwrap();
    let handler = ledger::handler(std::process::id().into(), say);
    Scheduler::open(folder.join("jobs.db")).register(handler).start().unwrap()
}

/// Not a test: a child of `k1_every_accepted_job_runs_and_only_runs_under_way_are_repeated`.
#[test]
#[ignore = "a part of another test"]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let scheduler = worker(&folder);
    let mut random = u64::from(std::process::id());
    for n in 0.. {
        let key = format!("{}-{n}", std::process::id());
        let due = Duration::from_millis(next(&mut random) % 60);
        let _ = scheduler.put_to("h", &n).key(&key).due(due).send().wait().unwrap();
        println!("accepted {key}");
        std::io::stdout().flush().unwrap();
    }
}

struct Process {
    child: Child,
    reader: JoinHandle<()>,
}

fn start(folder: &Path, ledger: &Arc<Mutex<Ledger>>) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["processes::child", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (output, ledger) = (child.stdout.take().unwrap(), Arc::clone(ledger));
    let reader = std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        while output.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            ledger.lock().unwrap().read(&line);
            line.clear();
        }
    });
    Process { child, reader }
}

impl Process {
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.reader.join().unwrap();
    }
}

const POISON: &str = "TIMERQUEUE_KILL_POISON";

/// Not a test: a child of `k2_a_job_that_ends_its_process_takes_no_other_one_along`.
#[test]
#[ignore = "a part of another test"]
fn child_with_a_poison_job() {
    let Some(folder) = std::env::var_os(POISON).map(PathBuf::from) else { return };
    let file = OpenOptions::new().create(true).append(true).open(folder.join("ledger")).unwrap();
    let slow = move |n: u64, _: &Run| {
        std::thread::sleep(Duration::from_millis(150));
        (&file).write_all(format!("{n}\n").as_bytes()).unwrap();
    };
    let poison = |_: u64, _: &Run| -> () { std::process::abort() };
    let scheduler = Scheduler::open(folder.join("jobs.db")).handler("slow", slow).handler("poison", poison);
    let scheduler = scheduler.start().unwrap();
    let left = || {
        let jobs = scheduler.stats().wait().unwrap().jobs; // at one moment
        jobs.of(State::Waiting) + jobs.of(State::Running)
    };
    while left() > 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    scheduler.close(Duration::from_secs(10)).wait().unwrap();
}

/// The poison job is the first, one in the middle, or the last; on one process and on three.
#[test]
fn k2_a_job_that_ends_its_process_takes_no_other_one_along() {
    const SLOW: u64 = 10;
    for (at, processes) in [(0, 1), (5, 1), (SLOW, 1), (0, 3), (SLOW, 3)] {
        let folder = std::env::temp_dir().join(format!("timerqueue-poison-{}-{at}-{processes}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("jobs.db");
        {
            let scheduler = Scheduler::open(&file).start().unwrap();
            for n in 0..=SLOW {
                let name = if n == at { "poison" } else { "slow" };
                let _ = scheduler.put_to(name, &n).key(&n.to_string()).send().wait().unwrap();
            }
        }
        let start = || {
            Command::new(std::env::current_exe().unwrap())
                .args(["processes::child_with_a_poison_job", "--exact", "--ignored", "--test-threads=1"])
                .env(POISON, &folder)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let mut children: Vec<Child> = (0..processes).map(|_| start()).collect();
        let mut crashes = 0;
        while let Some(mut child) = children.pop() {
            match child.try_wait().unwrap() {
                Some(status) if status.success() => {}
                Some(_) => {
                    crashes += 1;
                    assert!(crashes <= 5, "the poison job is dead after its fifth process");
                    children.push(start());
                }
                None => {
                    children.insert(0, child);
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
        let mut ran: Vec<u64> =
            std::fs::read_to_string(folder.join("ledger")).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        ran.sort_unstable();
        ran.dedup();
        let others: Vec<u64> = (0..=SLOW).filter(|&n| n != at).collect();
        assert_eq!(ran, others, "poison at {at} of {processes} processes");
        let scheduler = Scheduler::open(&file).start().unwrap();
        let left = scheduler.list(Query::new()).wait().unwrap();
        assert_eq!((left.len(), &*left[0].key, left[0].state), (1, &*at.to_string(), State::Dead));
        assert_eq!((crashes, left[0].crashes), (5, 5));
        assert!(left[0].error.as_ref().unwrap().contains("the process ended during the run, 5 times"));
        drop(scheduler);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn k1_every_accepted_job_runs_and_only_runs_under_way_are_repeated() {
    let rounds = ledger::number("TIMERQUEUE_KILLS", ROUNDS);
    let folder = std::env::temp_dir().join(format!("timerqueue-kill-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let ledger = Arc::default();
    let mut random = ledger::seed("TIMERQUEUE_KILLS");
    // One is killed in each round, and the other one goes on.
    let mut other = start(&folder, &ledger);
    for _ in 0..rounds {
        let process = std::mem::replace(&mut other, start(&folder, &ledger));
        std::thread::sleep(Duration::from_millis(10 + next(&mut random) % 190));
        process.kill();
    }
    other.kill();
    ledger::drain(&worker(&folder));
    let mut ledger = ledger.lock().unwrap();
    for line in std::fs::read_to_string(folder.join("ledger")).unwrap().split_inclusive('\n') {
        ledger.read(line);
    }
    ledger.judge(rounds + 1);
    SqliteStore::open(Runtime::global(), folder.join("jobs.db")).unwrap().check().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}
