//! Which processes have the file open: each holds a lock, for as long as it lives.
//!
//! Ground rules. Beside the file is a folder with a file for each process. The process holds an
//! exclusive lock on its file (of the open file description, so each store of a program has its
//! own). The kernel releases the lock when the process ends, however it ends, so a run of a process
//! whose lock is free goes on nowhere. No clock is asked: clocks can be set, processes can be
//! stopped for hours, and a machine can start again. A process whose row is in the table has its
//! lock: the lock is taken before the commit.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rustix::fs::{FlockOperation, Timespec, Timestamps, UTIME_NOW, flock, futimens};

use super::error::Failure;
use super::place::take_after;
use crate::store::Micros;

/// This process among those that have the file open.
pub(super) struct Alive {
    /// The file with the jobs.
    file: PathBuf,
    folder: PathBuf,
    number: i64,
    lock: Option<File>,
    /// The other processes, as of the last look at the table.
    others: BTreeSet<i64>,
}

/// The folder beside the file.
pub(super) fn folder_of(path: &Path) -> PathBuf {
    let mut folder = path.as_os_str().to_owned();
    folder.push("-processes");
    folder.into()
}

impl Alive {
    pub(super) fn new(file: &Path) -> Result<Self, Failure> {
        let (file, folder) = (file.to_owned(), folder_of(file));
        match std::fs::create_dir(&folder) {
            Ok(()) => take_after(&folder, &file),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Failure::at(&folder, error)),
        }
        Ok(Self { file, folder, number: 0, lock: None, others: BTreeSet::new() })
    }

    /// Zero: not registered.
    pub(super) fn number(&self) -> i64 {
        self.number
    }

    fn file_of(&self, number: i64) -> PathBuf {
        self.folder.join(number.to_string())
    }

    /// Takes a number, in a transaction. The lock is held before the commit, so no other process
    /// sees the number without its lock.
    pub(super) fn register(&mut self, db: &Connection, now: Micros) -> Result<(), Failure> {
        let sql = "INSERT INTO timerqueue_processes (pid, opened) VALUES (?1, ?2) RETURNING id";
        loop {
            let number = db.query_row(sql, (std::process::id(), now.as_i64()), |row| row.get(0))?;
            let path = self.file_of(number);
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
            let file = file.map_err(|error| Failure::at(&path, error))?;
            // Each user of the file asks for the lock.
            take_after(&path, &self.file);
            // Held by a process of an older copy of the file: its number is no longer free.
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                (self.number, self.lock) = (number, Some(file));
                return self.count(db);
            }
            db.execute("DELETE FROM timerqueue_processes WHERE id = ?1", [number])?;
        }
    }

    /// Reads the table.
    pub(super) fn count(&mut self, db: &Connection) -> Result<(), Failure> {
        let mut statement = db.prepare_cached("SELECT id FROM timerqueue_processes WHERE id <> ?1")?;
        self.others = statement.query_map([self.number], |row| row.get(0))?.collect::<Result<_, _>>()?;
        Ok(())
    }

    /// The processes in the table that have ended.
    pub(super) fn gone(&mut self, db: &Connection) -> Result<Vec<i64>, Failure> {
        self.count(db)?;
        Ok(self.others.iter().copied().filter(|&other| self.is_gone(other)).collect())
    }

    fn is_gone(&self, other: i64) -> bool {
        match File::open(self.file_of(other)) {
            // The lock is released when `file` is dropped.
            Ok(file) => flock(&file, FlockOperation::NonBlockingLockShared).is_ok(),
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }

    /// Takes a process out of the table, and its file away.
    pub(super) fn forget(&mut self, db: &Connection, number: i64) -> Result<(), Failure> {
        db.execute("DELETE FROM timerqueue_processes WHERE id = ?1", [number])?;
        if number != self.number {
            let _ = std::fs::remove_file(self.file_of(number));
            self.others.remove(&number);
        }
        Ok(())
    }

    /// Tells the other processes, if there are any, that a commit may concern them: their watchers
    /// see that this file was touched.
    pub(super) fn ring(&self) {
        if let Some(lock) = self.lock.as_ref().filter(|_| !self.others.is_empty()) {
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let _ = futimens(lock, &Timestamps { last_access: now, last_modification: now });
        }
    }

    pub(super) fn leave(&mut self) {
        if self.lock.take().is_some() {
            let _ = std::fs::remove_file(self.file_of(self.number));
        }
    }
}
