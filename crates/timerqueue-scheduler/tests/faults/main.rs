//! Files that fail at each of their calls, and power cuts that tear writes and leave out some of
//! them.
//!
//! Ground rules. A layer between SQLite and the system ([`layer`]) counts the calls of a life
//! ([`life`]), and makes one of them fail, or cuts the power before one of them. Then what the life
//! has said is judged ([`ledger`]). The lives of a sweep run on some threads, in an order of
//! chance, for [`SECONDS`]; `.ci/faults` runs all of them.

mod disk;
mod flushes;
mod layer;
#[path = "../kill/ledger.rs"]
#[allow(dead_code)] // what the kills alone need
mod ledger;
mod life;
#[path = "../support/lowered.rs"]
mod lowered;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use timerqueue::Runtime;
use timerqueue_scheduler::rusqlite::{Connection, ffi};
use timerqueue_scheduler::store::SqliteStore;

use crate::disk::Random;
use crate::layer::{Call, Faults};
use crate::life::{Folder, Life, Said};

/// How long a sweep goes on, in seconds, unless `TIMERQUEUE_FAULTS` sets it.
const SECONDS: u64 = 5;
/// The fewest items of a sweep, also on a busy machine.
const FEWEST: usize = 20;
/// The threads of a sweep: most of a life is waiting.
const THREADS: usize = 4;

/// Calls `check` with all items in a random order, until the time is over.
fn sweep<T: Send>(what: &str, mut items: Vec<T>, check: impl Fn(T, u64) + Sync) {
    let mut random = Random(ledger::seed("TIMERQUEUE_FAULTS"));
    for at in (1..items.len()).rev() {
        items.swap(at, random.below(at + 1));
    }
    let (all, done) = (items.len(), AtomicUsize::new(0));
    let end = Instant::now() + Duration::from_secs(ledger::number("TIMERQUEUE_FAULTS", SECONDS));
    let items = Mutex::new(items);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while Instant::now() < end || done.load(Ordering::Relaxed) < FEWEST {
                    let Some(item) = items.lock().unwrap().pop() else { return };
                    check(item, done.fetch_add(1, Ordering::Relaxed) as u64);
                }
            });
        }
    });
    println!("{what}: {} of {all}", done.load(Ordering::Relaxed));
}

/// A life in which nothing fails.
fn undisturbed() -> Life {
    let (folder, said) = (Folder::new("disk"), Said::default());
    let life = Life::new(&folder, 1, &said);
    life.live(true).unwrap();
    life
}

#[test]
fn k7_each_call_of_the_file_fails_once_and_the_scheduler_goes_on() {
    let life = undisturbed();
    // Lives differ in their commits: some calls more than in this one.
    let counts = Call::ALL.map(|call| (call, life.faults().count(call)));
    println!("{counts:?}");
    let calls = counts.iter().flat_map(|&(call, count)| (1..=count).map(move |number| (call, number)));
    let (met, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    sweep("calls that failed", calls.collect(), |(call, number), _| {
        let (folder, said) = (Folder::new("disk"), Said::default());
        let life = Life::new(&folder, 1, &said);
        life.faults().fail(call, number);
        life.live(true).unwrap();
        let faults = said.ledger().faults();
        assert!(faults.is_empty(), "{call:?} {number}: {faults:#?}");
        for key in &said.ledger().accepted {
            assert_eq!(said.runs_of(key), 1, "{call:?} {number}: {key}");
        }
        assert_eq!((said.runs_of("far"), said.repeated_ticks()), (0, 0), "{call:?} {number}");
        met.fetch_add(usize::from(life.faults().has_failed()), Ordering::Relaxed);
        refused.fetch_add(life.refused.load(Ordering::Relaxed) as usize, Ordering::Relaxed);
    });
    println!("{met:?} lives met their failure, {refused:?} operations were refused");
    assert!(met.into_inner() > 0 && refused.into_inner() > 0);
}

/// A failure to open what SQLite needs during an operation (a process without free descriptors)
/// passes like others.
#[test]
fn k7_a_call_that_finds_no_file_fails_once_and_the_scheduler_goes_on() {
    let life = undisturbed();
    let writes = life.faults().count(Call::Write);
    sweep("writes that failed", (40..writes).step_by(20).collect(), |number, _| {
        let (folder, said) = (Folder::new("disk"), Said::default());
        let life = Life::new(&folder, 1, &said);
        life.faults().fail_as(Call::Write, number, ffi::SQLITE_CANTOPEN);
        life.live(true).unwrap();
        let faults = said.ledger().faults();
        assert!(faults.is_empty(), "{number}: {faults:#?}");
    });
}

/// A life that ends with a cut before a change of the disk; a call may have failed before. Then
/// what two cuts of chance have left is brought to its end. The answer: what is wrong.
fn cut(name: &str, change: u64, fails: Option<(Call, u64)>) -> Vec<String> {
    let (folder, said) = (Folder::new(name), Said::default());
    let life = Life::new(&folder, 1, &said);
    if let Some((call, number)) = fails {
        life.faults().fail(call, number);
    }
    life.faults().cut_at(change);
    let lived = life.live(name == "disk");
    life.faults().cut(); // if the life had fewer changes
    drop(lived);
    let mut wrong = Vec::new();
    for seed in 0..2 {
        let left = life.faults().after_cut(change << 8 | seed);
        let (after, said) = (Folder::new("disk"), said.copied());
        for (name, bytes) in left.files {
            std::fs::write(after.path.join(name), bytes).unwrap();
        }
        let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| Life::new(&after, 2, &said).finish()));
        if let Err(panic) = end {
            let text = panic.downcast_ref::<String>().cloned();
            wrong.push(text.or(panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default());
        }
        let mut ledger = said.ledger();
        ledger.after_cut = true;
        wrong.extend(ledger.faults());
    }
    wrong
}

#[test]
fn k1_a_cut_before_each_change_loses_nothing_that_was_accepted() {
    let life = undisturbed();
    sweep("cuts", (1..=life.faults().changes()).collect(), |change, number| {
        let mut random = Random(number << 20 | change);
        let call = Call::ALL[random.below(Call::ALL.len())];
        let count = life.faults().count(call) as usize;
        let fails = (number % 2 == 1).then(|| (call, 1 + random.below(count) as u64));
        let wrong = cut("disk", change, fails);
        assert!(wrong.is_empty(), "before change {change}, {fails:?} had failed: {wrong:#?}");
    });
}

/// The sweep of cuts can fail: with connections that sync less, accepted jobs are lost.
fn control(level: &str) {
    lowered::install();
    let wrong: Vec<String> = (10..)
        .step_by(7)
        .take(40)
        .find_map(|change| {
            let wrong = cut(level, change, None);
            (!wrong.is_empty()).then_some(wrong)
        })
        .unwrap_or_default();
    println!("{level}: {wrong:?}");
    assert!(!wrong.is_empty(), "nothing was lost");
}

#[test]
fn a_cut_with_synchronous_off_loses_jobs() {
    control("synchronous-off");
}

#[test]
fn a_cut_with_synchronous_normal_loses_jobs() {
    control("synchronous-normal");
}

/// SQLite answers the step to a log with its new mode before the commit, which may fail.
#[test]
fn k1_a_file_whose_opening_failed_has_a_log_all_the_same() {
    for (call, number) in Call::ALL.into_iter().flat_map(|call| (1..=6).map(move |number| (call, number))) {
        let folder = Folder::new("disk");
        let faults = Faults::of(&folder.path);
        faults.fail(call, number);
        let mut openings = (0..2).map(|_| SqliteStore::open(Runtime::global(), folder.file()));
        let store = openings.find_map(Result::ok).unwrap();
        faults.heal();
        let db = Connection::open(folder.file()).unwrap();
        let mode: String = db.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal", "{call:?} {number}");
        drop(store);
    }
}
