//! Which processes have the file open: each holds a lock, for as long as it lives.
//!
//! Ground rules. Beside the file is a folder with a file for each process. The process holds an
//! exclusive lock on its file (of the open file description, so each store of a program has its
//! own). The kernel releases the lock when the process ends, however it ends, so a run of a process
//! whose lock is free goes on nowhere. No clock is asked: clocks can be set, processes can be
//! stopped for hours, and a machine can start again. A process whose row is in the table has its
//! lock: the lock is taken before the commit.

use std::collections::{BTreeSet, HashSet};
use std::fs::{File, Metadata, OpenOptions, metadata, read_link, read_to_string};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
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

/// How often the list of locks is read: a lock that it has each time is missing in none.
const READS: usize = 4;

/// The files with locks of all processes of the machine, by device and number. `None`: a process of
/// a container sees its own alone.
fn all_locks() -> Option<HashSet<(u64, u64)>> {
    /// Of the first one, which sees all.
    const FIRST_NAMESPACE: &str = "pid:[4026531836]";
    if read_link("/proc/self/ns/pid").ok()?.to_str() != Some(FIRST_NAMESPACE) {
        return None;
    }
    let list = read_to_string("/proc/locks").ok()?;
    // 1: FLOCK  ADVISORY  WRITE 1234 fe:00:10047530 0 EOF
    let file = |line: &str| {
        let mut numbers = line.split_whitespace().find(|word| word.matches(':').count() == 2)?.split(':');
        let mut device = || u64::from_str_radix(numbers.next()?, 16).ok();
        let (major, minor) = (device()?, device()?);
        // As `stat` shows it.
        let device = (major & 0xfff) << 8 | (major & !0xfff) << 32 | minor & 0xff | (minor & !0xff) << 12;
        Some((device, numbers.next()?.parse().ok()?))
    };
    Some(list.lines().filter_map(file).collect())
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
        self.lock = None; // that of an attempt whose commit has failed: its number comes again
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
            // Made by an older version, for its user alone.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => self.is_listed(other) == Some(false),
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }

    /// Whether the kernel lists a lock of another process's file. `None`: it does not list all.
    fn is_listed(&self, other: i64) -> Option<bool> {
        let own = metadata(self.file_of(self.number)).ok().filter(|_| self.lock.is_some())?;
        let other = metadata(self.file_of(other)).ok()?;
        let mut is_listed = false;
        // The list is read in parts, and changes meanwhile.
        for _ in 0..READS {
            let list = all_locks()?;
            let has = |file: &Metadata| list.contains(&(file.dev(), file.ino()));
            // Without our own lock the numbers of this file system are others there.
            if !has(&own) {
                return None;
            }
            is_listed |= has(&other);
        }
        Some(is_listed)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's list tells whether another process's file is locked, without opening it.
    #[test]
    fn k2_a_lock_is_found_in_the_list_of_the_kernel() {
        let folder = std::env::temp_dir().join(format!("timerqueue-alive-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let open = |number: i64| {
            let file = File::create(folder.join(number.to_string())).unwrap();
            flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
            file
        };
        let other = open(2);
        let own =
            |lock| Alive { file: PathBuf::new(), folder: folder.clone(), number: 1, lock, others: BTreeSet::new() };
        assert_eq!(own(None).is_listed(2), None, "no lock to compare with");
        let alive = own(Some(open(1)));
        match alive.is_listed(2) {
            None => eprintln!("NOT RUN: this process does not see the locks of the whole machine."),
            listed => {
                assert_eq!(listed, Some(true));
                drop(other);
                assert_eq!(alive.is_listed(2), Some(false));
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
