//! Copies of a file while it is in use, and holds: a restored past does not run again unasked.
//!
//! Ground rules. The table of a hold is no part of the versioned tables: it exists while the store
//! is held. A copy is held before it has its name, so no process can run its jobs by mistake.
//!
//! A restored store has numbers ahead that the lost one has given already, and tokens of runs are
//! made of them (K14). So all numbers go on by a step at random: when a hold begins, and when the
//! tables are found in another file than before ([`note_place`]), held or not.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

use super::error::Failure;
use super::{BUSY, place, schema};
use crate::store::sql::looks;
use crate::store::{Fault, Hold, Micros};

/// The row of handler 0, which is none, has the instant of the hold; the row of -1 the last number
/// of a job at that time.
const HOLD: &str = "CREATE TABLE IF NOT EXISTS timerqueue_hold (handler INTEGER PRIMARY KEY, since INTEGER NOT NULL)";

/// Moves the numbers on that are given to jobs, members, groups and processes, and the versions
/// of schedules: by more than a lost store can have given, and by another step each time, since one
/// copy may be restored twice.
fn renumber(commit: &Transaction<'_>) -> Result<(), Failure> {
    let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0u8);
    let step = (1_i64 << 32) + (random >> 24) as i64;
    commit.execute("UPDATE timerqueue_store SET last_id = last_id + ?1", [step])?;
    for table in ["timerqueue_members", "timerqueue_affinities", "timerqueue_processes"] {
        // No row: no number was given yet, as far as this store knows.
        if commit.execute("UPDATE sqlite_sequence SET seq = seq + ?1 WHERE name = ?2", (step, table))? == 0 {
            commit.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?2, ?1)", (step, table))?;
        }
    }
    let versions = "UPDATE timerqueue_jobs SET recurring = \
                    json_set(recurring, '$.version', json_extract(recurring, '$.version') + ?1) \
                    WHERE state = 4 AND json_valid(recurring) AND json_type(recurring, '$.version') = 'integer'";
    commit.execute(versions, [step])?;
    Ok(())
}

/// A copy may have lost rows. What a job waits for that is not there has left undone; the process
/// that opens the file decides on the followers.
const END_LOST: &str = "UPDATE timerqueue_links SET ended = 3, seen = 0 WHERE ended IS NULL \
                        AND NOT EXISTS (SELECT 1 FROM timerqueue_jobs AS job WHERE job.id = predecessor)";

/// Finds out whether the tables stand in another file than before, which then is a copy.
pub(super) fn note_place(db: &mut Connection, path: &Path) -> Result<(), Failure> {
    let birth = place::birth(path)?;
    let noted = |db: &Connection| db.query_row("SELECT place FROM timerqueue_store", [], |row| row.get(0));
    if noted(db)? == Some(birth) {
        return Ok(());
    }
    let commit = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have been first.
    match noted(&commit)? {
        Some(noted) if noted == birth => return Ok(()),
        Some(_) => {
            renumber(&commit)?;
            commit.execute(END_LOST, [])?;
        }
        None => {}
    }
    commit.execute("UPDATE timerqueue_store SET place = ?1", [birth])?;
    Ok(commit.commit()?)
}

/// Pauses all handlers in one commit, and keeps which of them it has paused.
fn begin(db: &mut Connection) -> Result<Hold, Failure> {
    let now = Micros::floor(SystemTime::now()).as_i64();
    let commit = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    commit.execute_batch(HOLD)?;
    commit.execute("INSERT OR IGNORE INTO timerqueue_hold VALUES (0, ?1)", [now])?;
    if commit.execute("INSERT OR IGNORE INTO timerqueue_hold SELECT -1, last_id FROM timerqueue_store", [])? > 0 {
        renumber(&commit)?;
    }
    let sql = "INSERT OR IGNORE INTO timerqueue_hold SELECT id, ?1 FROM timerqueue_handlers WHERE NOT paused";
    commit.execute(sql, [now])?;
    commit.execute("UPDATE timerqueue_handlers SET paused = 1", [])?;
    commit.commit()?;
    looks::held(db)?.ok_or_else(|| Failure::new(Fault::Other, "the hold was ended by another process"))
}

/// A connection that writes to a file which exists.
fn open(path: &Path) -> Result<Connection, Failure> {
    place::check(path)?;
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    drop(db);
    schema::open_writer(path, BUSY, None)
}

pub(super) fn hold(path: &Path) -> Result<Hold, Failure> {
    begin(&mut open(path)?)
}

pub(super) fn forget(path: &Path) -> Result<(), Failure> {
    Ok(open(path)?.execute_batch("DROP TABLE IF EXISTS timerqueue_hold")?)
}

/// Removes the file that a copy has before it is complete, also after a failure.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Copies the file as it is now into another one, which is held.
pub(super) fn backup(from: &Path, to: &Path) -> Result<(), Failure> {
    let taken = || Failure::new(Fault::CannotOpen, format!("{} exists", to.display()));
    if to.symlink_metadata().is_ok() {
        return Err(taken());
    }
    let name = to.file_name().ok_or_else(|| Failure::new(Fault::CannotOpen, "the copy needs a name"))?;
    let mut unfinished = name.to_owned();
    unfinished.push(format!(".unfinished-{}", std::process::id()));
    let unfinished = Unfinished(to.with_file_name(unfinished));
    let _ = fs::remove_file(&unfinished.0);
    let target =
        unfinished.0.to_str().ok_or_else(|| Failure::new(Fault::CannotOpen, "the name of the copy is no UTF-8"))?;
    // A user that may not read the file may not read the copy. SQLite writes into a file that is
    // empty.
    File::create_new(&unfinished.0).map_err(|error| Failure::at(&unfinished.0, error))?;
    place::take_after(&unfinished.0, from);
    let source = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .or_else(|_| Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_ONLY))?;
    source.busy_timeout(BUSY)?;
    source.execute("VACUUM INTO ?1", [target])?;
    let mut copy = Connection::open_with_flags(&unfinished.0, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    begin(&mut copy)?;
    drop(copy);
    File::open(&unfinished.0)?.sync_all()?;
    // Fails if there is such a file by now.
    fs::hard_link(&unfinished.0, to).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => taken(),
        _ => error.into(),
    })?;
    drop(unfinished);
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(File::open(folder)?.sync_all()?)
}
