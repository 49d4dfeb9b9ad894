//! A life of a scheduler on a file: it puts jobs, runs and cancels them, and says in a ledger what
//! it was told.
//!
//! Ground rules. An operation that the store has refused is asked for again, as a user would. A job
//! is accepted when a put, or the commit of a transaction, has been answered; that its key is taken
//! is an answer as well. A life ends at its end, or when the power is cut.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use timerqueue::Runtime;
use timerqueue_scheduler::rusqlite::{Connection, TransactionBehavior};
use timerqueue_scheduler::store::{Fault, SqliteOptions, SqliteStore};
use timerqueue_scheduler::{Clash, Error, Handler, Query, Run, Schedule, Scheduler, State};

use crate::layer::Faults;
use crate::ledger::{self, Ledger};

/// A folder of its own, in memory where the system has such a file system.
pub(crate) struct Folder {
    root: PathBuf,
    pub(crate) path: PathBuf,
}

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir().canonicalize().unwrap() };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = place.join(format!("timerqueue-faults-{}-{number}", std::process::id()));
        let path = root.join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self { root, path }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.path.join("jobs.db")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        Faults::forget(&self.path);
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// What is said of the jobs, and the nominal instants of the recurring job.
#[derive(Clone, Default)]
pub(crate) struct Said {
    pub(crate) lines: Arc<Mutex<Vec<String>>>,
    ticks: Arc<Mutex<BTreeMap<SystemTime, u32>>>,
}

impl Said {
    fn say(&self, line: String) {
        self.lines.lock().unwrap().push(line);
    }

    pub(crate) fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::default();
        self.lines.lock().unwrap().iter().for_each(|line| ledger.read(line));
        ledger
    }

    /// A copy of its own.
    pub(crate) fn copied(&self) -> Self {
        let lines = self.lines.lock().unwrap().clone();
        Self { lines: Arc::new(Mutex::new(lines)), ticks: Arc::default() }
    }

    pub(crate) fn runs_of(&self, key: &str) -> usize {
        let words = format!("run {key} ");
        self.lines.lock().unwrap().iter().filter(|line| line.starts_with(&words)).count()
    }

    /// The last line with this begin, without it.
    fn last_of(&self, begin: &str) -> Option<String> {
        let lines = self.lines.lock().unwrap();
        lines.iter().rev().find_map(|line| line.strip_prefix(begin)).map(|rest| rest.trim_end().to_owned())
    }

    /// Occurrences that were run more than once.
    pub(crate) fn repeated_ticks(&self) -> usize {
        self.ticks.lock().unwrap().values().filter(|&&runs| runs > 1).count()
    }
}

/// The power was cut.
#[derive(Debug)]
pub(crate) struct Cut;

pub(crate) struct Life {
    file: PathBuf,
    process: u64,
    faults: Arc<Faults>,
    pub(crate) said: Said,
    /// Operations that the store has refused.
    pub(crate) refused: AtomicU64,
}

impl Life {
    pub(crate) fn new(folder: &Folder, process: u64, said: &Said) -> Self {
        let (file, faults) = (folder.file(), Faults::of(&folder.path));
        Self { file, process, faults, said: said.clone(), refused: AtomicU64::new(0) }
    }

    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Asks until the answer is no failure of the store. One call fails, so it may be asked for
    /// three times at most.
    fn surely<T>(&self, what: &str, mut ask: impl FnMut() -> Result<T, Error>) -> Result<T, Cut> {
        for _ in 0..3 {
            match ask() {
                Ok(answer) => return Ok(answer),
                Err(_) if self.faults.is_cut() => return Err(Cut),
                Err(Error::Store { fault, reason }) => {
                    let is_typed = matches!(fault, Fault::Io | Fault::Full | Fault::CannotOpen | Fault::Locked);
                    assert!(is_typed, "{what}: {fault:?}: {reason}");
                    self.refused.fetch_add(1, Ordering::Relaxed);
                }
                Err(other) => panic!("{what}: {other}"),
            }
        }
        panic!("{what}: the store does not go on")
    }

    fn open(&self) -> Result<(SqliteStore, Scheduler), Cut> {
        let store = self.surely("open", || SqliteOptions::new().open(Runtime::global(), &self.file))?;
        let (said, ticks) = (self.said.clone(), Arc::clone(&self.said.ticks));
        let handler = ledger::handler(self.process, move |line| said.say(line));
        let tick = Handler::new("tick", move |_: (), run: &Run| {
            *ticks.lock().unwrap().entry(run.nominal().unwrap()).or_default() += 1;
        });
        let scheduler = Scheduler::builder().store(store.clone()).register(handler).register(tick).start().unwrap();
        Ok((store, scheduler))
    }

    fn put(&self, scheduler: &Scheduler, key: &str, due: Duration) -> Result<(), Cut> {
        let _ = self.surely("put", || scheduler.put_to("h", &1).key(key).due(due).send().wait())?;
        self.said.say(format!("accepted {key}\n"));
        Ok(())
    }

    /// A job that is begun at most once. It may be dead instead of done.
    fn put_once(&self, scheduler: &Scheduler, key: &str) -> Result<(), Cut> {
        let _ = self.surely("put", || scheduler.put_to("h", &1).key(key).at_most_once().send().wait())?;
        self.said.say(format!("once {key}\n"));
        Ok(())
    }

    /// A put in a transaction of the user's.
    fn put_in(&self, scheduler: &Scheduler, key: &str) -> Result<(), Cut> {
        for _ in 0..3 {
            match self.try_put_in(scheduler, key) {
                Ok(()) => {
                    self.said.say(format!("accepted {key}\n"));
                    return Ok(());
                }
                Err(_) if self.faults.is_cut() => return Err(Cut),
                Err(_) => _ = self.refused.fetch_add(1, Ordering::Relaxed),
            }
        }
        panic!("put in a transaction: the file does not go on")
    }

    fn try_put_in(&self, scheduler: &Scheduler, key: &str) -> Result<(), Box<dyn std::error::Error>> {
        let mut db = Connection::open(&self.file)?;
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let _ = scheduler.put_to("h", &1).key(key).send_in(&transaction)?;
        Ok(transaction.commit()?)
    }

    /// A whole life: an opening, puts, a cancel, a recurring job, a checkpoint, further puts, the
    /// end of all jobs, a check, and a second opening.
    pub(crate) fn live(&self, in_transactions: bool) -> Result<(), Cut> {
        let (store, scheduler) = self.open()?;
        let key = |name: &str| format!("{}-{name}", self.process);
        let every = || Schedule::every(Duration::from_millis(5)).build().unwrap();
        let tick = || scheduler.put_to("tick", &()).key("tick").schedule(every()).clash(Clash::Keep).send().wait();
        let _ = self.surely("recurring", tick)?;
        let far = || scheduler.put_to("h", &1).key("far").due(Duration::from_secs(3_600)).send().wait();
        let _ = self.surely("put", far)?;
        self.said.say("far is there\n".to_owned());
        for n in 0..8 {
            self.put(&scheduler, &key(&n.to_string()), Duration::from_millis(n % 4))?;
        }
        if in_transactions {
            self.put_in(&scheduler, &key("in"))?;
        }
        self.said.say("far is to be cancelled\n".to_owned());
        let _ = self.surely("cancel", || scheduler.cancel("far").wait())?;
        self.said.say("far is cancelled\n".to_owned());
        if let Ok(db) = Connection::open(&self.file) {
            let _ = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
        for n in 8..12 {
            self.put(&scheduler, &key(&n.to_string()), Duration::ZERO)?;
            self.put_once(&scheduler, &key(&format!("once{n}")))?;
        }
        let _ = self.surely("cancel", || scheduler.cancel("tick").wait())?;
        self.drain(&scheduler)?;
        self.surely("check", || store.check())?;
        drop((scheduler, store));
        let (store, scheduler) = self.open()?;
        self.drain(&scheduler)?;
        self.surely("check", || store.check())
    }

    /// A later life: what is left runs, and the file is right.
    pub(crate) fn finish(&self) {
        let (store, scheduler) = self.open().unwrap();
        let far = scheduler.get("far").wait().unwrap().is_some();
        match self.said.last_of("far is ").as_deref() {
            Some("there") => assert!(far, "an accepted job is lost"),
            Some("cancelled") => assert!(!far, "a cancelled job is there again"),
            _ => {}
        }
        let _ = scheduler.cancel("tick").wait().unwrap();
        self.drain(&scheduler).unwrap();
        for key in self.said.ledger().once {
            let job = scheduler.get(&key).wait().unwrap();
            assert!(self.said.runs_of(&key) == 1 || job.is_some(), "a job that is begun at most once is lost: {key}");
        }
        store.check().unwrap();
    }

    fn drain(&self, scheduler: &Scheduler) -> Result<(), Cut> {
        let begun = Instant::now();
        loop {
            let jobs = self.surely("list", || scheduler.list(Query::new().limit(9)).wait())?;
            if jobs.iter().all(|job| &*job.key == "far" || (job.terms.at_most_once && job.state == State::Dead)) {
                return Ok(());
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "the scheduler does not go on: {jobs:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
