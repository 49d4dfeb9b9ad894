//! A look into a file from outside: for tools.
//!
//! Ground rules. One connection that cannot write. The process is not registered, so it gets no
//! notices and holds nothing: a reader asks whether the file has changed.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use super::error::Failure;
use super::{BUSY, FinishedJob, check, hold, place, reader, schema};
use crate::Error;
use crate::debug::debug_of;
use crate::store::sql::history;
use crate::store::sql::looks::{self, Look as _, public_looks};
use crate::store::{CheckStep, Counts, Fault, HistoryQuery, Hold, JobId, JobInfo, Node, Query};

/// Reads the jobs of a file without taking part: it runs no job, writes nothing, and needs no
/// permission to write. For tools beside a service. All methods block. On a read-only disk SQLite
/// cannot open a file with a log that no process has open; a copy by [`backup`](Self::backup) has
/// no log, and can be read there.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue_scheduler::store::SqliteReader;
/// use timerqueue_scheduler::{Query, Scheduler, State};
///
/// # let folder = std::env::temp_dir().join(format!("timerqueue-reader-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let path = folder.join("jobs.db");
/// let scheduler = Scheduler::open(&path).start()?;
/// let mut reader = SqliteReader::open(&path)?;
/// let _ = scheduler.put_to("mail", &"ann").key("a").due(Duration::from_secs(60)).send().wait()?;
/// assert!(reader.has_changed()?);
/// assert_eq!(reader.list(&Query::new().state(State::Waiting))?.len(), 1);
/// assert_eq!(reader.get("a")?.map(|job| job.id), reader.near(Duration::from_secs(90), 100)?.first().map(|job| job.id));
/// reader.check(|step| println!("{} of {}: {}", step.number, step.of, step.what))?;
/// # drop((reader, scheduler));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SqliteReader {
    path: PathBuf,
    /// The file that was opened, by device and number.
    file: (u64, u64),
    db: Connection,
    /// As of the last question whether the file has changed.
    version: Cell<Option<i64>>,
}

fn answer<T>(found: Result<T, Failure>) -> Result<T, Error> {
    found.map_err(|failure| failure.error())
}

impl SqliteReader {
    /// Opens a file that a scheduler has made.
    ///
    /// # Errors
    ///
    /// [`Error::Store`]: [`Fault::CannotOpen`] if there is no such file, [`Fault::Damaged`] if it
    /// is no database, [`Fault::Other`] if it has no jobs of a scheduler, and the other kinds.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        answer(Self::try_open(path.as_ref()))
    }

    fn try_open(path: &Path) -> Result<Self, Failure> {
        place::check(path)?;
        let file = place::identity(path)?;
        let db = schema::open_reader(path, BUSY)?;
        // A log that a killed process has left stays: the next process that takes part brings it
        // into the file.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        let version = schema::version(&db)?;
        if version == 0 {
            return Err(Failure::new(Fault::Other, "the file has no tables of a scheduler"));
        }
        if version < schema::VERSION {
            return Err(Failure::new(
                Fault::Other,
                "the tables are of an older version: a scheduler of this version brings them up to date",
            ));
        }
        let reader = Self { path: path.to_owned(), file, db, version: Cell::new(None) };
        reader.moved()?;
        Ok(reader)
    }

    fn ask<T>(&self, question: impl Fn(&Connection) -> Result<T, Failure>) -> Result<T, Error> {
        answer(question(&self.db))
    }

    /// Whether the file has changed since this was asked, or since the opening. Costs some
    /// microseconds.
    ///
    /// # Errors
    ///
    /// [`Error::Store`]: [`Fault::CannotOpen`] if the file was deleted, moved or replaced, and the
    /// other kinds. All that the reader shows is of the file that it has opened.
    pub fn has_changed(&mut self) -> Result<bool, Error> {
        answer(self.moved())
    }

    fn moved(&self) -> Result<bool, Failure> {
        place::is_still(&self.path, self.file)?;
        let version = self.db.query_row("PRAGMA data_version", [], |row| row.get(0))?;
        Ok(self.version.replace(Some(version)) != Some(version))
    }

    /// The done jobs that the file keeps, the last ones first: at most this number, of a key or of
    /// all.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    pub fn finished(&self, key: Option<&str>, limit: usize) -> Result<Vec<FinishedJob>, Error> {
        answer(reader::finished(&self.db, key, limit))
    }

    /// Copies the file as it is now to a new file, while schedulers use it. The copy is on the disk
    /// when this returns, without free pages and without a log beside it, and it is [held](Hold):
    /// nothing of it runs until the hold is released. Until the copy is complete it has another
    /// name. Writers wait for nothing; the log of the file is not cut while this runs.
    ///
    /// # Errors
    ///
    /// [`Error::Store`]: [`Fault::CannotOpen`] if there is a file of this name, and the other
    /// kinds.
    pub fn backup(&self, to: impl AsRef<Path>) -> Result<(), Error> {
        answer(hold::backup(&self.path, to.as_ref()))
    }

    /// Reads the whole file, and compares indexes and counts with the rows. `begins` is called
    /// before each part.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] with [`Fault::Damaged`], or with another fault if the file cannot be read.
    pub fn check(&self, begins: impl FnMut(CheckStep)) -> Result<(), Error> {
        answer(check::check(&self.db, begins))
    }
}

public_looks!(SqliteReader);

debug_of!(SqliteReader, |reader| path: reader.path);
