//! Processes that are killed at random moments, with a ledger outside of the file.
//!
//! Ground rules. The test runs itself twice at a time as a child: each child puts jobs, says on its output which were accepted, and runs jobs of both.
//! Each run writes a line into the ledger. After the last round: each accepted job has run, none was early, and a job ran twice only if its
//! first run was under way when its process was killed. `TIMERQUEUE_KILLS=200` sets the number of rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use timerqueue::Runtime;
use timerqueue_scheduler::store::SqliteStore;
use timerqueue_scheduler::{Handler, Query, Run, Scheduler};

const ROUNDS: u64 = 50;
/// Runs at a time in a process: no more can be under way when it is killed.
const PARALLEL: usize = 4;
const FOLDER: &str = "TIMERQUEUE_KILL_FOLDER";

fn micros(at: SystemTime) -> u128 {
    at.duration_since(UNIX_EPOCH).unwrap().as_micros()
}

fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// A scheduler whose handler writes a line: key, attempt, due time, start, process.
fn worker(folder: &Path) -> Scheduler {
    let ledger = OpenOptions::new().create(true).append(true).open(folder.join("ledger")).unwrap();
    let handler = move |_: u64, run: &Run| {
        let (due, start) = (micros(run.due()), micros(SystemTime::now()));
        let line = format!("{} {} {due} {start} {}\n", run.key(), run.attempt(), std::process::id());
        (&ledger).write_all(line.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    };
    Scheduler::open(folder.join("jobs.db")).register(Handler::new("h", handler).parallel(PARALLEL)).start().unwrap()
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

fn start(folder: &Path, accepted: &Arc<Mutex<BTreeSet<String>>>) -> Process {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (output, accepted) = (child.stdout.take().unwrap(), Arc::clone(accepted));
    let reader = std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        while output.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            // A line without its end was cut by the kill.
            if let Some(key) = line.strip_suffix('\n').and_then(|line| line.split_once("accepted ")) {
                accepted.lock().unwrap().insert(key.1.to_owned());
            }
            line.clear();
        }
    });
    Process { child, reader }
}

#[test]
fn k1_every_accepted_job_runs_and_only_runs_under_way_are_repeated() {
    let rounds = std::env::var("TIMERQUEUE_KILLS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    let folder = std::env::temp_dir().join(format!("timerqueue-kill-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let accepted = Arc::default();
    let mut random = u64::from(std::process::id());
    // One is killed in each round, and the other one goes on.
    let mut other = start(&folder, &accepted);
    for _ in 0..rounds {
        let mut process = std::mem::replace(&mut other, start(&folder, &accepted));
        std::thread::sleep(Duration::from_millis(10 + next(&mut random) % 190));
        process.child.kill().unwrap();
        process.child.wait().unwrap();
        process.reader.join().unwrap();
    }
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    other.reader.join().unwrap();
    drain(&folder);
    let accepted: &BTreeSet<String> = &accepted.lock().unwrap();
    judge(&folder, accepted, rounds as usize + 1);
    SqliteStore::open(Runtime::global(), folder.join("jobs.db")).unwrap().check().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

fn drain(folder: &Path) {
    let scheduler = worker(folder);
    let begin = Instant::now();
    while !scheduler.list(Query::new().limit(1)).wait().unwrap().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(60), "jobs are left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn judge(folder: &Path, accepted: &BTreeSet<String>, kills: usize) {
    let mut runs: BTreeMap<String, Vec<(u32, u32)>> = BTreeMap::new();
    for line in std::fs::read_to_string(folder.join("ledger")).unwrap().lines() {
        let mut words = line.split(' ');
        let key = words.next().unwrap().to_owned();
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        let (attempt, due, start, process) = (number(), number(), number(), number());
        assert!(start >= due, "early: {line}");
        runs.entry(key).or_default().push((attempt as u32, process as u32));
    }
    let lost: Vec<&String> = accepted.iter().filter(|&key| !runs.contains_key(key)).collect();
    assert!(lost.is_empty(), "{} of {} accepted jobs have not run: {lost:?}", lost.len(), accepted.len());
    let mut repeated: BTreeMap<u32, usize> = BTreeMap::new();
    for (key, runs) in &runs {
        for pair in runs.windows(2) {
            assert!(pair[0].0 < pair[1].0, "an attempt ran twice: {key} {runs:?}");
            assert_ne!(pair[0].1, pair[1].1, "a process repeated a run of its own: {key} {runs:?}");
            *repeated.entry(pair[0].1).or_default() += 1;
        }
    }
    // A place is free once the end of its run is in the file.
    assert!(
        repeated.values().all(|&runs| runs <= PARALLEL),
        "runs that were not under way were repeated: {repeated:?}"
    );
    let repeats: usize = repeated.values().sum();
    println!("{kills} kills, {} jobs accepted, {} ran, {repeats} runs repeated", accepted.len(), runs.len());
    assert!(!accepted.is_empty());
}
