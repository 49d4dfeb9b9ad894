//! Stores: where a scheduler keeps its jobs.
//!
//! A [`Store`] keeps jobs as rows, and *each row has a wake instant*: when to look at it. A waiting
//! job, a retry and a recurring job differ in the work of the look, not in how the row is found. So
//! a store has one ordered index, and a scheduler has one timer, set to the first wake instant.
//!
//! The trait is sealed, since it will change with the stores to come. What stores and schedulers
//! say to each other is public for tests of the stores alone, and not shown.
//!
//! Ground rules. A store answers by [`Reply`], so that memory, a thread with a file, and
//! connections to a server fit without an async runtime. A store runs no user code, and holds no
//! lock while it drops values that have user code (J11).

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod columns;
mod error;
mod fault;
mod follow;
mod form;
pub(crate) mod gate;
mod history;
mod invalid;
mod limits;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod look;
mod memory;
mod micros;
mod minutes;
mod node;
mod op;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod origin;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod questions;
pub(crate) mod reply;
mod row;
pub(crate) mod rules;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
#[cfg_attr(not(all(feature = "postgres", feature = "sqlite")), allow(dead_code))] // each of them uses a part
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod text;
mod times;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

// What users need. Names that are hidden here are those of the crate, or of its stores and tests.
#[doc(hidden)]
pub use self::error::Error;
pub use self::fault::Fault;
#[doc(hidden)]
pub use self::follow::{After, PredecessorEnd, Unfollowed, Until};
pub(crate) use self::follow::{Fate, LinkEnds};
pub(crate) use self::history::Finished;
#[doc(hidden)]
pub use self::history::{FinishedJob, History, HistoryQuery, Keep};
pub use self::invalid::{
    Invalid, MAX_ERROR_BYTES, MAX_KEY_BYTES, MAX_LINKS, MAX_PAYLOAD_BYTES, MAX_PRIORITY, MAX_TRACE_BYTES,
};
pub use self::limits::{check_group, check_key, check_name, check_payload, check_trace};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use self::look::{CheckStep, Hold};
pub use self::memory::{FaultyStore, MemoryStore, StoreCall, Trouble};
#[doc(hidden)]
pub use self::micros::Micros;
#[doc(hidden)]
pub use self::minutes::Activity;
#[doc(hidden)]
pub use self::node::{
    Bound, Candidate, Entry, EntryHandler, GroupId, Limits, Node, NodeHandler, NodeId, Rate, Unbound,
};
pub(crate) use self::op::kind_of;
#[doc(hidden)]
pub use self::op::{
    Advance, Applied, Bind, Cancel, Change, Clash, Edit, Expiry, Mutation, NewJob, Op, Placed, Revive, Settle, Step,
    Verdict, When,
};
#[cfg(feature = "postgres")]
pub use self::postgres::{
    AddressError, PostgresAddress, PostgresOptions, PostgresReader, PostgresStore, ServerReport, Standby,
};
#[doc(hidden)]
pub use self::reply::Reply;
#[doc(hidden)]
pub use self::row::{
    Catchup, ClaimedJob, ClaimedSchedule, Counts, Held, JobId, JobInfo, KindCounts, LastRun, Occurrence, Overlap,
    Predecessor, Query, Recurrence, RunEnd, State, Tally, Term, Terms,
};
#[cfg(feature = "sqlite")]
pub use self::sqlite::{SqliteOptions, SqliteReader, SqliteStore};
pub(crate) use self::times::Timing;
pub use self::times::{StoreCallKind, StoreTimes};

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// The room that a scheduler has for the jobs of a handler.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Room {
    /// The name of the handler.
    pub name: Arc<str>,
    /// How many more jobs may run. With zero, recurring jobs are looked at all the same.
    pub places: usize,
}

/// A request for due jobs. Handlers without a [`Room`] are not looked at: their jobs wait for a
/// scheduler with such a handler.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Claim {
    /// The scheduler.
    pub owner: u64,
    /// The handlers.
    pub rooms: Vec<Room>,
    /// The largest number of jobs.
    pub at_most: usize,
}

/// The answer to a claim.
#[doc(hidden)]
#[derive(Debug)]
pub struct Claimed {
    /// The store's clock.
    pub now: Micros,
    /// Due jobs, in the order of their due times less an hour for each step of the priority, ties
    /// in order of their numbers. They are running now.
    pub jobs: Vec<ClaimedJob>,
    /// Groups without a member, whose jobs are due: the caller chooses a member, and answers by
    /// [`Op::Bind`].
    pub unbound: Vec<Unbound>,
    /// Recurring jobs to be looked at, the first to be due first. A store may leave some for the
    /// next claim.
    pub schedules: Vec<ClaimedSchedule>,
    /// The first wake instant of a job that is left, among the handlers with places left. Not after
    /// `now`: there are more due jobs.
    pub next_job: Option<Micros>,
    /// The first wake instant of a recurring job that is left. Not after `now`: there are more to
    /// be looked at.
    pub next_schedule: Option<Micros>,
}

/// The answer to the end of a run.
#[doc(hidden)]
#[derive(Debug)]
pub struct Settled {
    /// As of [`Store::apply`].
    pub applied: Vec<Applied>,
    /// The job that has the place of the run from now on.
    pub next: Option<ClaimedJob>,
}

/// A request that changes nothing.
#[doc(hidden)]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Scan {
    /// The job with this key: waiting, running or recurring, or else the last dead job of the key.
    Get(Arc<str>),
    /// The job with this number, unless it has left.
    Job(JobId),
    /// Which of these jobs are dead or have left.
    Ended(Vec<JobId>),
    /// The done job with this number, if the store keeps it.
    Finished(JobId),
    /// The done jobs of a query.
    History(HistoryQuery),
    /// The jobs of a query.
    List(Query),
    /// The recurring jobs of a handler that wait for an occurrence in a time zone whose data is not
    /// the store's, in the order of their numbers.
    Zoned {
        /// The name of the handler.
        name: Arc<str>,
        /// Behind this one.
        after: JobId,
        /// At most this number.
        limit: usize,
    },
    /// How many jobs there are.
    Counts,
    /// The same, at a bounded cost: [`Counts::is_bounded`].
    SomeCounts {
        /// How many rows of an index a store walks that keeps no counts.
        most: u64,
    },
    /// The ends of runs from an instant on, by handler and window of time.
    Activity {
        /// The first window is the one with this instant.
        since: Micros,
        /// The length of a window, rounded up to whole minutes.
        window: Duration,
    },
    /// The groups, with the members that have their handlers.
    Groups {
        /// Behind this one.
        after: GroupId,
        /// At most this number.
        limit: usize,
    },
    /// The schedulers that are alive. `is_this` is set for this one.
    Nodes {
        /// The scheduler that asks.
        owner: u64,
    },
}

/// The answer to a scan.
#[doc(hidden)]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Scanned {
    /// To [`Scan::Get`], [`Scan::Job`], [`Scan::List`] and [`Scan::Zoned`].
    Jobs(Vec<JobInfo>),
    /// To [`Scan::Ended`].
    Ended(Vec<JobId>),
    /// To [`Scan::Finished`].
    Finished(Option<Box<FinishedJob>>),
    /// To [`Scan::History`].
    History(Vec<FinishedJob>),
    /// To [`Scan::Counts`] and [`Scan::SomeCounts`].
    Counts(Counts),
    /// To [`Scan::Activity`]: in the order of the windows, and then of the names. What has no end
    /// of a run is left out.
    Activity(Vec<Activity>),
    /// To [`Scan::Groups`]: in the order of their numbers.
    Groups(Vec<Bound>),
    /// To [`Scan::Nodes`]: in the order of their numbers.
    Nodes(Vec<Node>),
}

/// A message of a store to its schedulers.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// A row has this wake instant now.
    Wake {
        /// The instant.
        at: Micros,
    },
    /// A running job was cancelled or replaced: its token is to be cancelled.
    Cancelled(JobId),
    /// A job has ended that is [kept](crate::Put::kept_for): it is done, dead, or has left. `None`:
    /// another process may have ended some.
    Ended(Option<JobId>),
    /// A day has passed: there may be new zone data.
    Day,
    /// The scheduler with this number was taken for dead, and is a member again: it looks for its
    /// share of the groups.
    Joined(u64),
}

/// A statement for a server, with parameters that are texts. Its answer is a row with a text.
#[cfg(feature = "postgres")]
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Statement {
    pub text: String,
    pub parameters: Vec<Option<String>>,
}

/// Called by a store after a commit, with no lock held. False: the scheduler is gone, and the store
/// forgets the watcher.
#[doc(hidden)]
pub type Watcher = Arc<dyn Fn(Notice) -> bool + Send + Sync>;

/// The schedulers of a store.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<Vec<Watcher>>);

impl Watchers {
    pub(crate) fn add(&self, watcher: Watcher) {
        self.0.lock().push(watcher);
    }

    pub(crate) fn tell(&self, notice: Notice) {
        let watchers = self.0.lock().clone();
        for watcher in watchers {
            if !watcher(notice) {
                self.0.lock().retain(|other| !Arc::ptr_eq(other, &watcher));
            }
        }
    }
}

/// Where a scheduler keeps its jobs: for [`Builder::store`](crate::Builder::store). Sealed:
/// implemented by [`MemoryStore`], `SqliteStore` and `PostgresStore`.
///
/// All answers come by [`Reply`]. A scan has a lane of its own: settling and renewal never wait for
/// a scan. A scan whose caller waits no longer ends early.
pub trait Store: sealed::Sealed + fmt::Debug + Send + Sync + 'static {
    /// Applies all operations in one commit, in their order.
    #[doc(hidden)]
    fn apply(&self, ops: Vec<Op>, reply: Reply<Vec<Applied>>);

    /// Takes due jobs.
    #[doc(hidden)]
    fn claim(&self, claim: Claim, reply: Reply<Claimed>);

    /// Applies the end of a run, and takes a due job for its place in the same commit. The answer
    /// may have none although there is one: then a claim follows.
    #[doc(hidden)]
    fn settle(&self, end: Op, place: Claim, reply: Reply<Settled>);

    /// Looks.
    #[doc(hidden)]
    fn scan(&self, scan: Scan, reply: Reply<Scanned>);

    /// A scheduler starts: the store makes it a member, and again whenever a claim finds that it is
    /// none any more.
    #[doc(hidden)]
    fn enter(&self, _entry: Arc<Entry>) {}

    /// A scheduler begins no more runs. Its runs under way stay its own.
    #[doc(hidden)]
    fn leave(&self, _owner: u64) {}

    /// Registers a scheduler.
    #[doc(hidden)]
    fn watch(&self, watcher: Watcher);

    /// The store's clock, if it can be read without a server.
    #[doc(hidden)]
    fn now(&self) -> Option<Micros>;

    /// Whether further schedulers may use this store, so a handler unknown here may be known
    /// elsewhere.
    #[doc(hidden)]
    fn is_shared(&self) -> bool {
        true
    }

    /// Whether an operation may fail, so the scheduler keeps operations in order to repeat them.
    #[doc(hidden)]
    fn can_fail(&self) -> bool {
        true
    }

    /// Whether answers and notices come on a thread of the store's, so that code of users must run
    /// elsewhere.
    #[doc(hidden)]
    fn has_thread(&self) -> bool {
        false
    }

    /// A claimed job is its member's until the settle, or until the member has ended. This is the
    /// least time from the claim to such an end, as long as the store cannot renew the lease of the
    /// member. `None`: members have no lease.
    #[doc(hidden)]
    fn lease(&self) -> Option<Duration> {
        None
    }

    /// By how many microseconds the store's clock is ahead of the runtime's wall clock, as last
    /// seen.
    #[doc(hidden)]
    fn skew(&self) -> i64 {
        0
    }

    /// Whether the store itself keeps done jobs, beside those of handlers that ask for it.
    #[doc(hidden)]
    fn keeps_done(&self) -> bool {
        false
    }

    /// The gate of all schedulers on this store value. `None`: each has its own.
    #[doc(hidden)]
    fn gate(&self) -> Option<&Arc<gate::Gate>> {
        None
    }

    /// An operation as a statement, for a transaction of the user's on the server of the store.
    #[cfg(feature = "postgres")]
    #[doc(hidden)]
    fn statement(&self, _op: Op) -> Result<Statement, Error> {
        Err(Error::Store { fault: Fault::Other, reason: "the store of the scheduler is on no server".into() })
    }

    /// Applies operations in a transaction of the user's, on the file of the store.
    #[cfg(feature = "sqlite")]
    #[doc(hidden)]
    fn apply_in(&self, _transaction: &rusqlite::Transaction<'_>, _ops: Vec<Op>) -> Result<Vec<Applied>, Error> {
        Err(Error::Store { fault: Fault::Other, reason: "the store of the scheduler is on no file".into() })
    }
}
