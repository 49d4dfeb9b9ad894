//! A look into a server from outside: for tools.
//!
//! Ground rules. One connection, on the caller's thread. It only reads, makes no tables and is no
//! node. A standby is enough.

use std::cell::RefCell;
use std::time::Duration;

use tokio_postgres::config::TargetSessionAttrs;

use super::check::{self, ServerReport};
use super::error::{Failure, Remedy};
use super::link::Link;
use super::{PostgresAddress, PostgresOptions, Settings, reader, schema};
use crate::Error;
use crate::debug::debug_of;
use crate::store::sql::history;
use crate::store::sql::looks::{self, Look as _, public_looks};
use crate::store::{CheckStep, Counts, Fault, FinishedJob, HistoryQuery, Hold, JobId, JobInfo, Node, Query};

/// Reads the jobs of a server without taking part: it runs no job, writes nothing, and makes no
/// tables. A role that may only read is enough, and so is a standby. For tools beside a service.
/// All methods block, also within a task of tokio, where another thread waits meanwhile: there,
/// `tokio::task::spawn_blocking` keeps the others going. A lost connection is made again.
///
/// # Examples
///
/// ```no_run
/// use timerqueue_scheduler::store::{PostgresOptions, PostgresReader};
/// use timerqueue_scheduler::{Query, State};
///
/// let reader = PostgresReader::connect(&PostgresOptions::new(), "postgres://viewer@db.example/app")?;
/// for job in reader.list(&Query::new().state(State::Dead))? {
///     println!("{} is dead: {:?}", job.key, job.error);
/// }
/// let report = reader.check(|step| println!("{} of {}: {}", step.number, step.of, step.what))?;
/// println!("{} jobs, {} cannot be read", report.jobs, report.unreadable.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PostgresReader {
    settings: Settings,
    link: RefCell<Option<Link>>,
    /// As of the last question whether anything has changed.
    seen: RefCell<Option<String>>,
}

impl PostgresReader {
    /// Connects. `address`: as for [`PostgresStore::connect`](super::PostgresStore::connect). Of
    /// several servers, the first that answers is read.
    ///
    /// # Errors
    ///
    /// [`Error::Store`]: [`Fault::TooNew`] if the tables are of a later version, [`Fault::Other`]
    /// if there are none or older ones, and the other kinds.
    pub fn connect(
        options: &PostgresOptions,
        address: impl TryInto<PostgresAddress, Error: Into<Error>>,
    ) -> Result<Self, Error> {
        let address = address.try_into().map_err(Into::into)?;
        Self::try_connect(options, address).map_err(|failure| failure.error())
    }

    fn try_connect(options: &PostgresOptions, address: PostgresAddress) -> Result<Self, Failure> {
        let mut settings = Settings::of(options, address)?;
        for (place, _) in &mut settings.places {
            place.config.target_session_attrs(TargetSessionAttrs::Any);
        }
        let link = reader::open(&settings, settings.patience)?;
        let found = schema::find(&settings, |sql, params| link.ask(sql, params))?;
        if found.version == 0 {
            return Err(Failure::new(Fault::Other, "the database has no tables of a scheduler"));
        }
        if found.version < schema::VERSION {
            let reason = "the tables are of an older version: a node of this version brings them up to date";
            return Err(Failure::new(Fault::Other, reason));
        }
        Ok(Self { settings, link: RefCell::new(Some(link)), seen: RefCell::default() })
    }

    /// Asks the server, once more on a new connection if the connection is lost.
    fn ask<T>(&self, question: impl Fn(&Link) -> Result<T, Failure>) -> Result<T, Error> {
        let mut link = self.link.borrow_mut();
        let mut fresh = link.is_none();
        loop {
            let open = match link.take() {
                Some(open) => open,
                None => reader::open(&self.settings, self.settings.patience).map_err(|failure| failure.error())?,
            };
            match question(&open) {
                Ok(answer) => {
                    *link = Some(open);
                    return Ok(answer);
                }
                Err(failure) if failure.remedy == Remedy::Reconnect && !fresh => fresh = true,
                Err(failure) => return Err(failure.error()),
            }
        }
    }

    /// Whether a transaction has written anything since this was asked, or since the connection was
    /// made. Other tables of the server count too. Costs one short query.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    pub fn has_changed(&self) -> Result<bool, Error> {
        // What is visible, and not what is in the log: a commit is in the log, and then on the
        // disk, before others see its rows. A look in between would find nothing, and the next one
        // would not take place.
        let sql = "SELECT pg_current_snapshot()::text";
        let now: Option<String> = self.ask(|link| Ok(link.ask(sql, &[])?.first().and_then(|row| row.get(0))))?;
        let before = self.seen.replace(now.clone());
        Ok(now.is_none() || before != now)
    }

    /// Reads all rows, and reports on the server: clock, size, replication. `begins` is called
    /// before each part.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] with [`Fault::Damaged`] if rows or indexes contradict each other, or with
    /// another fault if the server cannot be read.
    pub fn check(&self, begins: impl FnMut(CheckStep)) -> Result<ServerReport, Error> {
        let begins = RefCell::new(begins);
        self.ask(|link| check::check(link, &self.settings.schema, &mut *begins.borrow_mut()))
    }
}

public_looks!(PostgresReader);

debug_of!(PostgresReader, |reader| schema: reader.settings.schema);
