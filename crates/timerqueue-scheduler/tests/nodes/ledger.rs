//! What the processes said, and what must be true of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

#[derive(Clone, Debug)]
struct Ran {
    host: String,
    attempt: u32,
    due: i64,
    begun: i64,
    /// Whether the handler was done. `None`: it has not said.
    done: Option<bool>,
    /// Zero: it has not said.
    ended: i64,
}

/// A fault that may have kept a node from renewing leases. Microseconds of the machine's clock.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) host: &'static str,
    pub(crate) begun: i64,
    pub(crate) ended: i64,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    accepted: BTreeSet<String>,
    unknown: usize,
    /// By key and nominal instant, in the order of the begins.
    runs: BTreeMap<(String, i64), Vec<Ran>>,
    /// Settles that were refused.
    pub(crate) refused: u64,
    wrong: Vec<String>,
}

impl Ledger {
    /// Reads the files of all processes.
    pub(crate) fn read(folder: &Path) -> Self {
        let mut ledger = Self::default();
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let host = path.file_name().unwrap().to_str().unwrap().split('-').next().unwrap().to_owned();
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                ledger.take(&host, line);
            }
        }
        ledger.runs.values_mut().for_each(|runs| runs.sort_by_key(|run| run.begun));
        ledger
    }

    fn take(&mut self, host: &str, line: &str) {
        let number = |text: &str| text.parse::<i64>().unwrap();
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["accepted", key, ..] => _ = self.accepted.insert(key.to_owned()),
            ["unknown", ..] => self.unknown += 1,
            ["begin", key, attempt, nominal, due, at] => {
                let run = Ran {
                    host: host.to_owned(),
                    attempt: attempt.parse().unwrap(),
                    due: number(due),
                    begun: number(at),
                    done: None,
                    ended: 0,
                };
                self.runs.entry((key.to_owned(), number(nominal))).or_default().push(run);
            }
            ["end", key, attempt, nominal, done, at] => {
                let runs = self.runs.get_mut(&(key.to_owned(), number(nominal))).unwrap();
                let is_it = |run: &&mut Ran| run.host == host && run.attempt == attempt.parse::<u32>().unwrap();
                let run = runs.iter_mut().rev().find(is_it).unwrap();
                (run.done, run.ended) = (Some(done == "true"), number(at));
            }
            ["closed", drained, lost] => {
                self.refused += lost.parse::<u64>().unwrap();
                if drained != "true" {
                    self.wrong.push(line.to_owned());
                }
            }
            ["wrong", ..] => self.wrong.push(line.to_owned()),
            _ => {}
        }
    }

    /// The processes that ran a job, in order.
    pub(crate) fn hosts(&self, key: &str) -> Vec<&str> {
        self.runs.get(&(key.to_owned(), 0)).into_iter().flatten().map(|run| &*run.host).collect()
    }

    /// The processes that ran jobs of a group, in the order of the begins, each once in a row.
    pub(crate) fn hosts_of(&self, group: &str) -> Vec<&str> {
        let runs = self.runs.iter().filter(|((key, _), _)| key.rsplit('/').next() == Some(group));
        let mut runs: Vec<&Ran> = runs.flat_map(|(_, runs)| runs).collect();
        runs.sort_by_key(|run| run.begun);
        let mut hosts: Vec<&str> = runs.into_iter().map(|run| &*run.host).collect();
        hosts.dedup();
        hosts
    }

    /// The runs of a group that began while another process ran one.
    pub(crate) fn overlaps(&self, groups: &[String]) -> Vec<String> {
        let mut overlaps = Vec::new();
        for group in groups {
            let runs = self.runs.iter().filter(|((key, _), _)| key.rsplit('/').next() == Some(group));
            let mut runs: Vec<&Ran> = runs.flat_map(|(_, runs)| runs).collect();
            runs.sort_by_key(|run| run.begun);
            let is_overlap = |pair: &&[&Ran]| pair[0].host != pair[1].host && pair[0].ended > pair[1].begun;
            overlaps.extend(runs.windows(2).filter(is_overlap).map(|pair| format!("{group}: {pair:?}")));
        }
        overlaps
    }

    /// Whether all accepted jobs are done.
    pub(crate) fn lost(&self) -> Vec<&String> {
        let is_done = |key: &str| {
            self.runs.get(&(key.to_owned(), 0)).is_some_and(|runs| runs.iter().any(|run| run.done == Some(true)))
        };
        self.accepted.iter().filter(|key| !is_done(key)).collect()
    }

    /// Fails if something was lost, was early, or ran twice without a reason.
    #[track_caller]
    pub(crate) fn judge(&self, name: &str, troubles: &[Trouble]) {
        let mut faults = self.wrong.clone();
        let lost = self.lost();
        if !lost.is_empty() {
            faults.push(format!("{} of {} accepted jobs are not done: {lost:?}", lost.len(), self.accepted.len()));
        }
        let mut doubles = 0;
        for ((key, nominal), runs) in &self.runs {
            for run in runs.iter().filter(|run| run.begun < run.due) {
                faults.push(format!("early: {key} {nominal} {run:?}"));
            }
            // A node that was stopped may begin a run after another one has got its job.
            let mut runs: Vec<&Ran> = runs.iter().collect();
            runs.sort_by_key(|run| (run.attempt, run.begun));
            for pair in runs.windows(2) {
                let is_explained = troubles.iter().any(|trouble| trouble.explains(pair[0], pair[1]));
                if pair[0].attempt == pair[1].attempt {
                    faults.push(format!("an attempt ran twice: {key} {nominal} {pair:?}"));
                }
                if pair[0].begun > pair[1].begun && !is_explained {
                    faults.push(format!("an attempt began after the next one: {key} {nominal} {pair:?}"));
                }
                if pair[0].done == Some(false) {
                    // A retry. An attempt in between was given to a node that was in trouble before
                    // the run began.
                    let skips = pair[0].attempt + 1 < pair[1].attempt;
                    if skips && !troubles.iter().any(|trouble| trouble.is_between(pair[0], pair[1])) {
                        faults.push(format!("an attempt that no node ran: {key} {nominal} {pair:?}"));
                    }
                    continue;
                }
                doubles += 1;
                if !is_explained {
                    faults.push(format!("a double without a reason: {key} {nominal} {pair:?}"));
                }
            }
        }
        assert!(faults.is_empty(), "{name}: {faults:#?}\n{troubles:?}");
        assert!(!self.accepted.is_empty(), "{name}: no put was accepted");
        let (accepted, unknown, refused) = (self.accepted.len(), self.unknown, self.refused);
        let ticks = self.runs.keys().filter(|(_, nominal)| *nominal > 0).count();
        println!(
            "{name}: {accepted} puts accepted, {unknown} not answered, {ticks} occurrences, {doubles} runs repeated, \
             {refused} late settles refused"
        );
    }
}

impl Trouble {
    /// Whether the first run was its node's until the trouble came, and the second one came after.
    fn explains(&self, first: &Ran, second: &Ran) -> bool {
        self.host == first.host && self.is_between(first, second)
    }

    /// Whether the trouble came before the second run, and had not ended before the first. A lease
    /// is given before its run begins.
    fn is_between(&self, first: &Ran, second: &Ran) -> bool {
        self.begun <= second.begun && self.ended >= first.begun - 1_000_000
    }
}
