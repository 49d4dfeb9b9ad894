//! What processes said of their jobs before they were killed, and what must be true of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use timerqueue_scheduler::{Handler, Query, Run, Scheduler, State};

/// Runs at a time in a process: no more can be under way when it is killed.
pub(crate) const PARALLEL: usize = 4;

pub(crate) fn micros(at: SystemTime) -> u128 {
    at.duration_since(UNIX_EPOCH).unwrap().as_micros()
}

pub(crate) fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// The number in an environment variable.
pub(crate) fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |number| number.parse().unwrap())
}

/// The seed of choices: the same in each run of the tests, and another one in a longer run, which
/// this variable asks for.
pub(crate) fn seed(variable: &str) -> u64 {
    if std::env::var_os(variable).is_some() { std::process::id().into() } else { 1 }
}

/// A handler that says a line about each run: key, attempt, due time, start, process.
pub(crate) fn handler(process: u64, say: impl Fn(String) + Send + Sync + 'static) -> Handler {
    let handler = move |_: u64, run: &Run| {
        let (due, start) = (micros(run.due()), micros(SystemTime::now()));
        say(format!("run {} {} {due} {start} {process}\n", run.key(), run.attempt()));
        std::thread::sleep(Duration::from_millis(2));
    };
    Handler::new("h", handler).parallel(PARALLEL)
}

/// Waits until all jobs have run. One may be dead: where processes are killed before a slow machine
/// has ended a run, it was the last run of too many (J22).
pub(crate) fn drain(scheduler: &Scheduler) {
    let (mut left, mut since) = (usize::MAX, Instant::now());
    while left > 0 {
        let mut jobs = scheduler.list(Query::new()).wait().unwrap();
        jobs.retain(|job| !(job.state == State::Dead && job.crashes >= 5));
        if jobs.len() < left {
            (left, since) = (jobs.len(), Instant::now());
        }
        assert!(since.elapsed() < Duration::from_secs(60), "jobs are left: {jobs:#?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The keys of the jobs whose put has returned.
    pub(crate) accepted: BTreeSet<String>,
    /// The keys of jobs that are begun at most once.
    pub(crate) once: BTreeSet<String>,
    /// By key: the attempt and the process of each run.
    runs: BTreeMap<String, Vec<(u64, u64)>>,
    early: Vec<String>,
    /// The power was cut, which may take with it that a run had begun: its attempt has the same
    /// number again.
    pub(crate) after_cut: bool,
}

impl Ledger {
    /// Takes a line in. A line without its end was cut by the kill.
    pub(crate) fn read(&mut self, line: &str) {
        let Some(line) = line.strip_suffix('\n').map(|line| line.trim_end_matches('\r')) else { return };
        if let Some((_, key)) = line.split_once("accepted ") {
            self.accepted.insert(key.to_owned());
        } else if let Some((_, key)) = line.split_once("once ") {
            self.once.insert(key.to_owned());
        } else if let Some((_, run)) = line.split_once("run ") {
            let words: Vec<&str> = run.split(' ').collect();
            let [key, numbers @ ..] = &words[..] else { return };
            let numbers: Vec<u64> = numbers.iter().map_while(|number| number.parse().ok()).collect();
            let [attempt, due, start, process] = numbers[..] else { return };
            if start < due {
                self.early.push(line.to_owned());
            }
            self.runs.entry((*key).to_owned()).or_default().push((attempt, process));
        }
    }

    /// What is wrong, in words. Each accepted job has run, none was early, and a job ran twice only
    /// if its first run was under way when its process was killed, and if it may (J24).
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults: Vec<String> = self.early.iter().map(|line| format!("early: {line}")).collect();
        let lost: Vec<&String> = self.accepted.iter().filter(|&key| !self.runs.contains_key(key)).collect();
        if !lost.is_empty() {
            faults.push(format!("{} of {} accepted jobs have not run: {lost:?}", lost.len(), self.accepted.len()));
        }
        for (key, runs) in &self.runs {
            if self.once.contains(key) && runs.len() > 1 {
                faults.push(format!("begun again: {key} {runs:?}"));
            }
            for pair in runs.windows(2) {
                if pair[0].0 + u64::from(!self.after_cut) > pair[1].0 {
                    faults.push(format!("an attempt ran twice: {key} {runs:?}"));
                }
                if pair[0].1 == pair[1].1 {
                    faults.push(format!("a process repeated a run of its own: {key} {runs:?}"));
                }
            }
        }
        // A place is free once the end of its run is in the file.
        let repeated = self.repeated();
        if repeated.values().any(|&runs| runs > PARALLEL) {
            faults.push(format!("runs that were not under way were repeated: {repeated:?}"));
        }
        faults
    }

    /// How many runs of each process were repeated by another one.
    fn repeated(&self) -> BTreeMap<u64, usize> {
        let mut repeated = BTreeMap::new();
        for pair in self.runs.values().flat_map(|runs| runs.windows(2)) {
            *repeated.entry(pair[0].1).or_default() += 1;
        }
        repeated
    }

    /// Fails if something is wrong.
    pub(crate) fn judge(&self, kills: u64) {
        let faults = self.faults();
        assert!(faults.is_empty(), "{faults:#?}");
        assert!(!self.accepted.is_empty());
        let repeats: usize = self.repeated().values().sum();
        let (accepted, ran) = (self.accepted.len(), self.runs.len());
        println!("{kills} kills, {accepted} jobs accepted, {ran} ran, {repeats} runs repeated");
    }
}
