//! Tables, their versions, and the settings of a connection.
//!
//! Ground rules. The file may have tables of the user beside these: all names begin with
//! `timerqueue`, and the version stands in a table of its own, since `user_version` may be the
//! user's. Migrations run in one commit, under the lock of writers.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use super::error::Failure;
use super::{hold, place};
use crate::store::Fault;

/// Each step leads from its index to the next version.
const STEPS: &[&str] = &[
    include_str!("schema1.sql"),
    include_str!("schema2.sql"),
    include_str!("schema3.sql"),
    include_str!("schema4.sql"),
    include_str!("schema5.sql"),
    include_str!("schema6.sql"),
    include_str!("schema7.sql"),
];

pub(super) const VERSION: u32 = STEPS.len() as u32;

/// Prepared statements kept for each connection.
const STATEMENTS: usize = 64;

/// The size to which the log shrinks when it begins anew, in bytes. A reader that stays in one
/// transaction for long lets it grow without a limit.
const LONGEST_LOG: u64 = 16 << 20;

/// Between two attempts to get a lock.
const SHORT: Duration = Duration::from_millis(1);

/// Opens a connection for the writer: makes the file and the tables, if need be.
pub(super) fn open_writer(path: &Path, busy: Duration, most_bytes: Option<u64>) -> Result<Connection, Failure> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(busy)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    keep_plans(&db)?;
    // A row of the user's that names a job would keep the job from its end, and its run would go on
    // for ever.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, false)?;
    // SQLite has opened it for reading alone.
    if place::is_read_only(path) {
        return Err(Failure::new(Fault::ReadOnly, "the file is read-only"));
    }
    when_free(busy, || use_log(&db))?;
    // An answer means that the commit is on the disk (K1). Apple: through the cache of the drive.
    db.execute_batch("PRAGMA synchronous = FULL; PRAGMA fullfsync = 1; PRAGMA checkpoint_fullfsync = 1;")?;
    db.query_row(&format!("PRAGMA journal_size_limit = {LONGEST_LOG}"), [], |_| Ok(()))?;
    if let Some(bytes) = most_bytes {
        let page: u32 = db.query_row("PRAGMA page_size", [], |row| row.get(0))?;
        let pages = (bytes / u64::from(page.max(1))).clamp(1, 1 << 30);
        db.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
    }
    migrate(&mut db)?;
    hold::note_place(&mut db, path)?;
    Ok(db)
}

/// Tries again until no other connection is in the way. No queue stands before a lock of SQLite: a
/// process that writes without a pause takes it again at once, and a waiter with long pauses would
/// rarely find it free.
pub(super) fn when_free<R>(limit: Duration, attempt: impl Fn() -> Result<R, Failure>) -> Result<R, Failure> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(failure) if failure.fault == Fault::Locked && begun.elapsed() < limit => std::thread::sleep(SHORT),
            done => return done,
        }
    }
}

/// Brings the file to a write-ahead log, if it has none. SQLite does not wait here: of two
/// connections that make the same file, one is told at once that the file is locked.
fn use_log(db: &Connection) -> Result<(), Failure> {
    // This commit has a rollback journal. `EXTRA` syncs the folder after its deletion: after a
    // power cut the journal would be there again, and undo all that the file has taken since then
    // (K1).
    db.execute_batch("PRAGMA synchronous = EXTRA")?;
    let mut statement = db.prepare("PRAGMA journal_mode = WAL")?;
    // To the end of the statement: the commit comes after the row, and only its failure tells that
    // the mode is still the old one.
    let modes = statement.query_map([], |row| row.get(0))?.collect::<Result<Vec<String>, _>>()?;
    match modes.first() {
        Some(mode) if mode.eq_ignore_ascii_case("wal") => Ok(()),
        mode => Err(Failure::new(Fault::Other, format!("the file system takes no write-ahead log: {mode:?}"))),
    }
}

/// Each statement has an index that suits all values. Without this, SQLite compiles a statement
/// anew when a small integer is bound to it.
fn keep_plans(db: &Connection) -> Result<(), Failure> {
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// Opens a connection that only reads.
pub(super) fn open_reader(path: &Path, busy: Duration) -> Result<Connection, Failure> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(busy)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    keep_plans(&db)?;
    // A row of the user's that breaks a constraint of its table is no damage of the file.
    db.execute_batch("PRAGMA query_only = 1; PRAGMA ignore_check_constraints = 1")?;
    Ok(db)
}

/// The version of the tables; zero without tables. Fails for one that this crate does not know.
pub(super) fn version(db: &Connection) -> Result<u32, Failure> {
    let exists = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'timerqueue_store'";
    if db.query_row(exists, [], |_| Ok(())).optional()?.is_none() {
        return Ok(0);
    }
    let found = db.query_row("SELECT version FROM timerqueue_store", [], |row| row.get(0))?;
    if found > VERSION {
        let fault = Fault::TooNew { found, known: VERSION };
        return Err(Failure::new(fault, fault.to_string()));
    }
    Ok(found)
}

/// Brings the tables to this crate's version.
pub(super) fn migrate(db: &mut Connection) -> Result<(), Failure> {
    if version(db)? == VERSION {
        return Ok(());
    }
    let place = db.path().and_then(|path| place::birth(Path::new(path)).ok());
    let commit = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been first.
    let found = version(&commit)?;
    for step in &STEPS[found as usize..] {
        commit.execute_batch(step)?;
    }
    if found == 0 {
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0u8) as i64;
        let sql = "INSERT INTO timerqueue_store (one, version, seed, place) VALUES (1, ?1, ?2, ?3)";
        commit.execute(sql, (VERSION, seed, place))?;
    } else {
        commit.execute("UPDATE timerqueue_store SET version = ?1", [VERSION])?;
    }
    Ok(commit.commit()?)
}

#[cfg(test)]
mod tests {
    use timerqueue::Runtime;

    use super::*;
    use crate::store::SqliteStore;
    use crate::{Query, Retry, Scheduler, State};

    /// The tables of version 1, with a job that waits, a dead one and a done one.
    fn make_version_1(path: &Path) {
        let db = Connection::open(path).unwrap();
        db.execute_batch("PRAGMA journal_mode = WAL").unwrap();
        db.execute_batch(STEPS[0]).unwrap();
        let rows = "INSERT INTO timerqueue_store (one, version, seed, last_id, deaths) VALUES (1, 1, 7, 3, 1);
            INSERT INTO timerqueue_handlers (id, name, waiting, dead) VALUES (1, 'mail', 1, 1);
            INSERT INTO timerqueue_jobs (id, key, handler, payload, state, due, wake, recurs, holds_key, paused, cancelled,
                attempt, claims, turn, owner, died, error) VALUES
                (1, 'waits', 1, '\"ann\"', 0, 1000000, 1000000, 0, 1, 0, 0, 1, 1, 0, 0, 0, 'no'),
                (2, 'dead', 1, '\"bob\"', 3, 1000000, NULL, 0, 0, 0, 0, 5, 5, 0, 0, 1, 'never');
            INSERT INTO timerqueue_finished (id, key, handler, payload, ended, keep_until, key_until)
                VALUES (3, 'done', 1, 'null', 1000000, 9000000000000000, 0);";
        db.execute_batch(rows).unwrap();
    }

    #[test]
    fn several_connections_make_a_file_at_once() {
        let folder = std::env::temp_dir().join(format!("timerqueue-make-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for round in 0..200 {
            let path = folder.join(format!("{round}.db"));
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        let mut db = open_writer(&path, Duration::from_secs(60), None).unwrap();
                        assert_eq!(version(&db).unwrap(), VERSION);
                        migrate(&mut db).unwrap();
                    });
                }
            });
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_of_version_1_is_migrated_with_all_that_it_has() {
        let folder = std::env::temp_dir().join(format!("timerqueue-migrate-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("jobs.db");
        make_version_1(&path);
        let store = SqliteStore::open(Runtime::global(), &path).unwrap();
        store.check().unwrap();
        assert_eq!(version(&Connection::open(&path).unwrap()).unwrap(), VERSION);
        assert_eq!(store.finished(None, 10).unwrap().len(), 1);
        let scheduler = Scheduler::builder().store(store.clone()).start().unwrap();
        let jobs = scheduler.list(Query::new()).wait().unwrap();
        let seen: Vec<_> = jobs.iter().map(|job| (&*job.key, job.state, job.error.as_deref())).collect();
        assert_eq!(seen, [("waits", State::Waiting, Some("no")), ("dead", State::Dead, Some("never"))]);
        assert!(jobs.iter().all(|job| job.failures.is_empty()));
        assert_eq!(scheduler.list(Query::new().failing()).wait().unwrap().len(), 1);
        drop(scheduler);
        // The job runs, fails, and is counted.
        let fails =
            crate::Handler::new("mail", |_: String, _: &crate::Run| Err::<(), _>("still not")).retry(Retry::never());
        let scheduler = Scheduler::builder().store(store.clone()).register(fails).start().unwrap();
        let dead = || scheduler.list(Query::new().state(State::Dead)).wait().unwrap();
        while dead().len() < 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(dead()[0].failures[0].error.as_deref(), Some("still not"));
        let activity = scheduler.activity(std::time::UNIX_EPOCH, Duration::from_secs(60)).wait().unwrap();
        assert_eq!((activity.len(), activity[0].died), (1, 1));
        store.check().unwrap();
        drop((scheduler, store));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
