//! The scheduler on a file: puts with 1, 16 and 256 callers, against a bare loop of SQLite with the
//! same rows and indexes in the same run.
//!
//! A plain program: `cargo bench -p timerqueue-scheduler --features sqlite --bench durable`.
//! Arguments: the seconds of each part, and a folder on the disk to be measured. The bare loop has
//! a connection for one caller, and commits the rows of all callers together.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use timerqueue_scheduler::Scheduler;
use timerqueue_scheduler::rusqlite::{Connection, params};

const CALLERS: [usize; 3] = [1, 16, 256];
const PAYLOAD: usize = 200;

/// Puts a second, by this number of callers that wait for each answer.
fn scheduler(path: &Path, callers: usize, time: Duration) -> f64 {
    let scheduler = Scheduler::open(path).start().expect("a scheduler");
    let (stop, puts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for caller in 0..callers {
            let (scheduler, stop, puts) = (&scheduler, &stop, &puts);
            scope.spawn(move || {
                let payload = "x".repeat(PAYLOAD);
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let put = scheduler.put_to("h", &payload).key(&format!("{callers}/{caller}/{n}"));
                    let _ = put.due(Duration::from_secs(3_600)).send().wait().expect("put");
                    puts.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    puts.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
}

/// Rows a second of a loop that commits this number of rows at a time.
fn bare(path: &Path, rows: usize, time: Duration) -> f64 {
    let mut db = Connection::open(path).expect("a file");
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA fullfsync = 1").expect("settings");
    db.execute_batch(
        "CREATE TABLE IF NOT EXISTS jobs (id INTEGER PRIMARY KEY, key TEXT NOT NULL, handler INTEGER NOT NULL, \
         payload TEXT NOT NULL, wake INTEGER, recurs INTEGER NOT NULL) STRICT; \
         CREATE INDEX IF NOT EXISTS due ON jobs (handler, recurs, wake) WHERE wake IS NOT NULL; \
         CREATE UNIQUE INDEX IF NOT EXISTS keys ON jobs (key)",
    )
    .expect("tables");
    let payload = "x".repeat(PAYLOAD);
    let (mut count, begun) = (0_u64, Instant::now());
    while begun.elapsed() < time {
        let commit = db.transaction().expect("a transaction");
        for _ in 0..rows {
            count += 1;
            let sql = "INSERT INTO jobs (key, handler, payload, wake, recurs) VALUES (?1, 1, ?2, ?3, 0)";
            let values = params![format!("{rows}/0/{count}"), payload, count as i64];
            commit.prepare_cached(sql).and_then(|mut insert| insert.execute(values)).expect("a row");
        }
        commit.commit().expect("a commit");
    }
    count as f64 / begun.elapsed().as_secs_f64()
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let is_test = std::env::args().any(|argument| argument == "--test");
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(if is_test { 0.1 } else { 3.0 });
    let folder = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = folder.join(format!("timerqueue-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let time = Duration::from_secs_f64(seconds);
    for callers in CALLERS {
        // In turns, since the speed of a disk changes.
        let mut best = [0.0_f64; 2];
        for round in 0..3 {
            let name = |what: &str| folder.join(format!("{what}-{callers}-{round}.db"));
            best[0] = best[0].max(bare(&name("bare"), callers, time));
            best[1] = best[1].max(scheduler(&name("jobs"), callers, time));
        }
        let [bare, own] = best;
        println!("{callers} callers: {own:.0} puts a second; bare loop {bare:.0}; {:.2} of it", own / bare);
    }
    std::fs::remove_dir_all(&folder).expect("the folder");
}
