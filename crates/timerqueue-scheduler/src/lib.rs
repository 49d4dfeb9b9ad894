//! A scheduler for jobs that are due once or again and again, and schedules as values.
//!
//! A [`Scheduler`] runs jobs by handlers when they are due: jobs with a key, which can be
//! cancelled, moved, paused and run at once. It keeps them in memory ([`store::MemoryStore`]), in a
//! file (feature `sqlite`) or on a server (feature `postgres`), and waits with one timer of
//! `timerqueue`.
//!
//! ```
//! use std::time::Duration;
//! use timerqueue::{ManualClock, Runtime};
//! use timerqueue_scheduler::{Run, Schedule, Scheduler};
//!
//! let clock = ManualClock::new(); // virtual time; without these lines, real time
//! let runtime = Runtime::builder().manual_clock(&clock).start()?;
//! let scheduler = Scheduler::builder()
//!     .runtime(&runtime)
//!     .handler("mail", |to: String, run: &Run| println!("{}: to {to}", run.key()))
//!     .start()?;
//! let _ = scheduler.put_to("mail", "ann").key("welcome/ann").due(Duration::from_secs(60)).send().wait()?;
//! let daily = Schedule::cron("0 8 * * *").zone("Europe/Berlin").build()?;
//! let _ = scheduler.put_to("mail", "bob").key("daily/bob").schedule(daily).send().wait()?;
//! clock.advance(Duration::from_secs(24 * 60 * 60));
//! assert_eq!(scheduler.stats().wait()?.done, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! - `postgres`: `PostgresStore` keeps the jobs on a server of PostgreSQL, for any number of nodes.
//! - `sqlite`: `Scheduler::open` keeps the jobs in a file of SQLite: they survive the process, the
//!   kernel and the power. SQLite is built along, which needs a C compiler. On Unix; on Linux the
//!   kernel tells of other processes on the file, elsewhere the store looks once a second. It needs
//!   the Rust version that `rusqlite` needs: 1.85 for `rusqlite` 0.40, and 1.89 for later ones.
//!   Earlier ones are not taken: their SQLite has a rare race of processes that could damage a file
//!   with a log.
//! - `tokio`: async handlers run on the runtime of tokio in which the scheduler is started, or on
//!   that of `Builder::tokio`.
//! - `tracing`: a span named `run` for each run, with handler, key, attempt and identity; events
//!   for failed attempts and dead jobs, and for a store that fails a claim or the end of a run.
//!
//! # Schedules
//!
//! A [`Schedule`] is a period on an anchor grid, a cron line in a time zone, a fixed delay between
//! runs, a rule of your own, or a union of these. Schedules are values of the crate
//! [`timerqueue_schedule`], whose names are those of this crate too. Its documentation has the
//! [syntax of cron lines](timerqueue_schedule#cron-lines), the rules for
//! [daylight saving](timerqueue_schedule#daylight-saving) and the source of
//! [zone data](timerqueue_schedule#time-zones).
//!
//! Where to go from here: [`Scheduler`] for its promises, [`Handler`] for limits and retries,
//! [`Put`] for catch-up and overlap, [`ScheduleBuilder`] for bounds, spread and jitter.

#![forbid(unsafe_code)]

#[cfg(all(feature = "sqlite", not(unix)))]
compile_error!("the feature `sqlite` needs a Unix: its locks on files are those of `flock`");

mod debug;
mod engine;
mod histogram;
mod scheduler;
pub mod store;
mod unwind;

/// The library behind the store on a file, for transactions of your own ([`Joint`]). An update to
/// its next minor version is a breaking change of this crate.
#[cfg(feature = "sqlite")]
pub use rusqlite;
/// The library behind the store on a server, for transactions of your own ([`Joint`]). An update to
/// its next minor version is a breaking change of this crate.
#[cfg(feature = "postgres")]
pub use tokio_postgres;

pub use engine::{
    Binding, Codec, Ended, Failed, Handler, HandlerError, IntoOutcome, Job, JobEnd, LeastLoaded, Next, Outcome,
    Pending, Permanent, Rendezvous, Report, Retry, Returned, RoundRobin, Run, RunRecord, Stats, StillRunning,
};
pub use histogram::Histogram;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use scheduler::Joint;
#[cfg(feature = "postgres")]
pub use scheduler::Sql;
pub use scheduler::{Builder, ById, EditJob, Figure, FigureKind, Figures, Put, Scheduler, StartError};
pub use store::{
    Activity, Cancel, Candidate, Catchup, Change, Clash, Counts, Error, FinishedJob, History, HistoryQuery, JobId,
    JobInfo, KindCounts, LastRun, Node, NodeHandler, NodeId, Overlap, Placed, Predecessor, PredecessorEnd, Query,
    Recurrence, Revive, RunEnd, State, Tally, Terms, Unfollowed, Until,
};
pub use timerqueue::Due;
#[doc(inline)]
pub use timerqueue_schedule::{
    After, Before, CalendarUnit, CronError, CronField, Loader, Missed, Occurrence, Rule, Schedule, ScheduleBuilder,
    ScheduleError, Zones, is_visible,
};

/// The examples of the README, as tests: they compile as they stand, without warnings.
#[cfg(all(doctest, feature = "postgres", feature = "sqlite", feature = "tokio"))]
#[doc(test(attr(deny(warnings))))]
#[doc = include_str!("../README.md")]
struct Readme;
