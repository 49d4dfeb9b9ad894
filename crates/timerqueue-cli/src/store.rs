//! The jobs of a place: to look at, and to change.

use std::path::Path;
use std::time::Duration;

use timerqueue::Runtime;
use timerqueue_scheduler::store::{FinishedJob, Hold, SqliteReader, SqliteStore};
use timerqueue_scheduler::{Builder, Counts, JobId, JobInfo, Node, Query, Scheduler, StartError};

use crate::exit::Fail;
use crate::place::Place;

#[cfg(feature = "postgres")]
use timerqueue_scheduler::store::{PostgresReader, PostgresStore, Reply, Store};

/// Reads the jobs of a place, and writes nothing.
pub(crate) enum Reader {
    File(SqliteReader),
    #[cfg(feature = "postgres")]
    Server(Box<PostgresReader>),
}

/// The same call on either reader.
macro_rules! either {
    ($reader:expr, $name:ident => $call:expr) => {
        match $reader {
            Reader::File($name) => Ok($call?),
            #[cfg(feature = "postgres")]
            Reader::Server($name) => Ok($call?),
        }
    };
}

pub(crate) fn exists(file: &Path) -> Result<(), Fail> {
    match file.metadata() {
        Ok(_) => Ok(()),
        Err(error) => Err(Fail::Place(error.to_string())),
    }
}

impl Reader {
    pub(crate) fn open(place: &Place) -> Result<Self, Fail> {
        let opened = match place {
            Place::File(file) => {
                exists(file).and_then(|()| SqliteReader::open(file).map(Self::File).map_err(Fail::from))
            }
            #[cfg(feature = "postgres")]
            Place::Server(server) => {
                let reader = PostgresReader::connect(&server.options(), server.address());
                reader.map(|reader| Self::Server(Box::new(reader))).map_err(Fail::from)
            }
        };
        opened.map_err(|fail| place.named(fail))
    }

    pub(crate) fn has_changed(&mut self) -> Result<bool, Fail> {
        either!(self, reader => reader.has_changed())
    }

    pub(crate) fn get(&self, key: &str) -> Result<Option<JobInfo>, Fail> {
        either!(self, reader => reader.get(key))
    }

    pub(crate) fn get_by_id(&self, id: JobId) -> Result<Option<JobInfo>, Fail> {
        either!(self, reader => reader.get_by_id(id))
    }

    pub(crate) fn list(&self, query: &Query) -> Result<Vec<JobInfo>, Fail> {
        either!(self, reader => reader.list(query))
    }

    pub(crate) fn near(&self, within: Duration, limit: usize) -> Result<Vec<JobInfo>, Fail> {
        either!(self, reader => reader.near(within, limit))
    }

    pub(crate) fn counts(&self) -> Result<Counts, Fail> {
        either!(self, reader => reader.counts())
    }

    pub(crate) fn last_id(&self) -> Result<JobId, Fail> {
        either!(self, reader => reader.last_id())
    }

    pub(crate) fn nodes(&self) -> Result<Vec<Node>, Fail> {
        either!(self, reader => reader.nodes())
    }

    pub(crate) fn held(&self) -> Result<Option<Hold>, Fail> {
        either!(self, reader => reader.held())
    }

    /// The done jobs that are kept. A server keeps none.
    pub(crate) fn finished(&self, key: Option<&str>, limit: usize) -> Result<Vec<FinishedJob>, Fail> {
        match self {
            Self::File(reader) => Ok(reader.finished(key, limit)?),
            #[cfg(feature = "postgres")]
            Self::Server(_) => Ok(Vec::new()),
        }
    }

    /// Whether jobs appear in the order of their numbers, and each number is that of a job.
    pub(crate) fn is_in_order(&self) -> bool {
        matches!(self, Self::File(_))
    }
}

/// A scheduler on a place. It is dropped when other nodes were told of what it has done: on a server they are told after the answer, and the end of
/// this process would come first.
pub(crate) struct Scheduling {
    scheduler: Option<Scheduler>,
    #[cfg(feature = "postgres")]
    server: Option<PostgresStore>,
}

impl Scheduling {
    /// Starts a scheduler whose store is the file's.
    pub(crate) fn on_file(builder: Builder, store: SqliteStore) -> Result<Self, Fail> {
        let scheduler = Some(builder.store(store).start()?);
        Ok(Self {
            scheduler,
            #[cfg(feature = "postgres")]
            server: None,
        })
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn on_server(builder: Builder, store: PostgresStore) -> Result<Self, Fail> {
        Ok(Self { scheduler: Some(builder.store(store.clone()).start()?), server: Some(store) })
    }
}

impl std::ops::Deref for Scheduling {
    type Target = Scheduler;

    fn deref(&self) -> &Scheduler {
        self.scheduler.as_ref().expect("it is taken by the drop alone")
    }
}

impl Drop for Scheduling {
    fn drop(&mut self) {
        drop(self.scheduler.take());
        #[cfg(feature = "postgres")]
        if let Some(store) = self.server.take() {
            /// A server that is away is told nothing.
            const LONGEST: Duration = Duration::from_secs(3);
            let (send, done) = std::sync::mpsc::channel();
            // The writer comes to this when it has told the others.
            store.apply(Vec::new(), Reply::new(move |_| _ = send.send(())));
            let _ = done.recv_timeout(LONGEST);
        }
    }
}

/// A scheduler on a place that runs no job. `make`: the file or the tables are made if there are none.
pub(crate) fn open(place: &Place, make: bool) -> Result<Scheduling, Fail> {
    let runtime = Runtime::try_current().map_err(StartError::Runtime)?;
    let builder = Scheduler::builder().runtime(&runtime);
    let opened = match place {
        Place::File(file) => (if make { Ok(()) } else { exists(file) })
            .and_then(|()| Ok(SqliteStore::open(&runtime, file)?))
            .and_then(|store| Scheduling::on_file(builder, store)),
        #[cfg(feature = "postgres")]
        Place::Server(server) => {
            if !make {
                drop(Reader::open(place)?);
            }
            let store = server.options().connect(&runtime, server.address());
            store.map_err(Fail::from).and_then(|store| Scheduling::on_server(builder, store))
        }
    };
    opened.map_err(|fail| place.named(fail))
}
