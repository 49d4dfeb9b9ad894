//! Tables, their versions, and the settings of a connection.
//!
//! Ground rules. The file may have tables of the user beside these: all names begin with `timerqueue`, and the version stands in a table
//! of its own, since `user_version` may be the user's. Migrations run in one commit, under the lock of writers.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use super::error::Failure;
use crate::store::Fault;

/// Each step leads from its index to the next version.
const STEPS: &[&str] = &[include_str!("schema1.sql")];

pub(super) const VERSION: u32 = STEPS.len() as u32;

/// Prepared statements kept for each connection.
const STATEMENTS: usize = 64;

/// Opens a connection for the writer: makes the file and the tables, if need be.
pub(super) fn open_writer(path: &Path, busy: Duration, most_bytes: Option<u64>) -> Result<Connection, Failure> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(busy)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    if db.is_readonly(rusqlite::MAIN_DB)? {
        return Err(Failure::new(Fault::ReadOnly, "the file is read-only"));
    }
    let mode: String = db.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(Failure::new(Fault::Other, format!("the file system takes no write-ahead log: {mode}")));
    }
    // An answer means that the commit is on the disk (K1). Apple: through the cache of the drive.
    db.execute_batch("PRAGMA synchronous = FULL; PRAGMA fullfsync = 1; PRAGMA checkpoint_fullfsync = 1;")?;
    if let Some(bytes) = most_bytes {
        let page: u32 = db.query_row("PRAGMA page_size", [], |row| row.get(0))?;
        let pages = (bytes / u64::from(page.max(1))).clamp(1, 1 << 30);
        db.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
    }
    migrate(&mut db)?;
    Ok(db)
}

/// Opens a connection that only reads.
pub(super) fn open_reader(path: &Path, busy: Duration) -> Result<Connection, Failure> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(busy)?;
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    db.execute_batch("PRAGMA query_only = 1")?;
    Ok(db)
}

/// The version of the tables; zero without tables.
pub(super) fn version(db: &Connection) -> Result<u32, Failure> {
    let exists = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'timerqueue_store'";
    if db.query_row(exists, [], |_| Ok(())).optional()?.is_none() {
        return Ok(0);
    }
    Ok(db.query_row("SELECT version FROM timerqueue_store", [], |row| row.get(0))?)
}

/// Brings the tables to this crate's version.
pub(super) fn migrate(db: &mut Connection) -> Result<(), Failure> {
    check_version(version(db)?)?;
    if version(db)? == VERSION {
        return Ok(());
    }
    let commit = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been first.
    let found = version(&commit)?;
    check_version(found)?;
    for step in &STEPS[found as usize..] {
        commit.execute_batch(step)?;
    }
    if found == 0 {
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0u8) as i64;
        commit.execute("INSERT INTO timerqueue_store (one, version, seed) VALUES (1, ?1, ?2)", (VERSION, seed))?;
    } else {
        commit.execute("UPDATE timerqueue_store SET version = ?1", [VERSION])?;
    }
    Ok(commit.commit()?)
}

pub(super) fn check_version(found: u32) -> Result<(), Failure> {
    if found <= VERSION {
        return Ok(());
    }
    let fault = Fault::TooNew { found, known: VERSION };
    Err(Failure::new(fault, fault.to_string()))
}
