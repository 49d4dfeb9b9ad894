//! The jobs of a place: to look at, and to change.

use std::path::Path;
use std::time::Duration;

use timerqueue::Runtime;
use timerqueue_scheduler::store::{Hold, Reply, SqliteReader, SqliteStore, Store};
use timerqueue_scheduler::{
    Builder, Counts, FinishedJob, HistoryQuery, JobId, JobInfo, Node, Query, Scheduler, StartError,
};

use crate::exit::{Fail, PLACE};
use crate::place::Place;

#[cfg(feature = "postgres")]
use timerqueue_scheduler::store::PostgresReader;

/// Reads the jobs of a place, and writes nothing.
pub(crate) enum Reader {
    File(Box<SqliteReader>),
    #[cfg(feature = "postgres")]
    Server(Box<PostgresReader>),
}

/// The same question to either reader.
macro_rules! forward {
    ($($ask:ident(&self $(, $of:ident: $kind:ty)*) -> $answer:ty;)+) => {$(
        pub(crate) fn $ask(&self $(, $of: $kind)*) -> Result<$answer, Fail> {
            match self {
                Self::File(reader) => Ok(reader.$ask($($of),*)?),
                #[cfg(feature = "postgres")]
                Self::Server(reader) => Ok(reader.$ask($($of),*)?),
            }
        }
    )+};
}

pub(crate) fn exists(file: &Path) -> Result<(), Fail> {
    file.metadata().map(drop).map_err(|error| Fail::new(PLACE, error.to_string()))
}

impl Reader {
    pub(crate) fn open(place: &Place) -> Result<Self, Fail> {
        let opened = match place {
            Place::File(file) => {
                exists(file).and_then(|()| SqliteReader::open(file).map(Box::new).map(Self::File).map_err(Fail::from))
            }
            #[cfg(feature = "postgres")]
            Place::Server(server) => {
                let reader = PostgresReader::connect(&server.options(), &server.address);
                reader.map(|reader| Self::Server(Box::new(reader))).map_err(Fail::from)
            }
        };
        opened.map_err(|fail| place.named(fail))
    }

    forward! {
        get(&self, key: &str) -> Option<JobInfo>;
        get_by_id(&self, id: JobId) -> Option<JobInfo>;
        list(&self, query: &Query) -> Vec<JobInfo>;
        near(&self, within: Duration, limit: usize) -> Vec<JobInfo>;
        counts(&self) -> Counts;
        last_id(&self) -> JobId;
        nodes(&self) -> Vec<Node>;
        held(&self) -> Option<Hold>;
        history(&self, query: &HistoryQuery) -> Vec<FinishedJob>;
        finished_by_id(&self, id: JobId) -> Option<FinishedJob>;
    }

    pub(crate) fn has_changed(&mut self) -> Result<bool, Fail> {
        match self {
            Self::File(reader) => Ok(reader.has_changed()?),
            #[cfg(feature = "postgres")]
            Self::Server(reader) => Ok(reader.has_changed()?),
        }
    }

    /// Whether jobs appear in the order of their numbers, and each number is that of a job.
    pub(crate) fn is_in_order(&self) -> bool {
        matches!(self, Self::File(_))
    }
}

/// A scheduler on a place. Its drop waits until the store has come to the end of what it was told:
/// that other nodes are to look, and that this scheduler is no member any more. The end of this
/// process would come first.
pub(crate) struct Scheduling {
    scheduler: Option<Scheduler>,
    store: Box<dyn Store>,
}

impl Scheduling {
    /// Starts a scheduler on this store.
    pub(crate) fn on<S: Store + Clone>(builder: Builder, store: &S) -> Result<Self, Fail> {
        Ok(Self { scheduler: Some(builder.store(store.clone()).start()?), store: Box::new(store.clone()) })
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
        /// A store that is away or locked is told nothing.
        const LONGEST: Duration = Duration::from_secs(3);
        drop(self.scheduler.take());
        let (send, done) = std::sync::mpsc::channel();
        self.store.apply(Vec::new(), Reply::new(move |_| _ = send.send(())));
        let _ = done.recv_timeout(LONGEST);
    }
}

/// A scheduler on a place that runs no job. `make`: the file or the tables are made if there are
/// none.
pub(crate) fn open(place: &Place, make: bool) -> Result<Scheduling, Fail> {
    let runtime = Runtime::try_current().map_err(StartError::Runtime)?;
    let builder = Scheduler::builder().runtime(&runtime);
    let opened = match place {
        Place::File(file) => (if make { Ok(()) } else { exists(file) })
            .and_then(|()| Ok(SqliteStore::open(&runtime, file)?))
            .and_then(|store| Scheduling::on(builder, &store)),
        #[cfg(feature = "postgres")]
        Place::Server(server) => {
            if !make {
                drop(Reader::open(place)?);
            }
            let store = server.options().connect(&runtime, &server.address);
            store.map_err(Fail::from).and_then(|store| Scheduling::on(builder, &store))
        }
    };
    opened.map_err(|fail| place.named(fail))
}
