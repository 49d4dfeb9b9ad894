//! The scheduler: jobs by key, run by handlers when they are due.
//!
//! Ground rules. What users call is here. It checks nothing itself: each method is one operation
//! of the store, whose answer is a [`Pending`]. The rest is the engine's.

mod builder;
mod edit;
mod error;
mod figures;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod joint;
mod put;
#[cfg(test)]
#[path = "../../tests/unit/simulation/mod.rs"]
mod simulation;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use timerqueue::Due;

pub use self::builder::Builder;
pub use self::edit::{ById, EditJob};
pub use self::error::StartError;
pub use self::figures::{Figure, FigureKind, Figures};
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use self::joint::Joint;
#[cfg(feature = "postgres")]
pub use self::joint::Sql;
pub use self::put::Put;
use crate::Schedule;
use crate::debug::debug_of;
use crate::engine::{Core, Job, JobEnd, Pending, Report, Run, Stats, only};
use crate::store::{
    Activity, Applied, Cancel, Change, Counts, FinishedJob, HistoryQuery, JobId, JobInfo, Micros, Mutation, Node, Op,
    Placed, Query, Recurrence, Revive, Scan, Scanned,
};
#[cfg(doc)]
use crate::{Error, Handler, History, Retry};

/// Runs jobs when they are due: once, or on a [`Schedule`].
///
/// A job has a key, a payload and the name of its handler. It can be cancelled, moved, paused and
/// run at once by its key, also while the process that put it has forgotten all else. Each
/// operation answers with a [`Pending`]: await it, or wait for it on any thread.
///
/// **Precision.** Never early by the store's wall clock. A waiting job costs no timer, no task and
/// no thread: one timer is set to the first instant at which a job is to be looked at. Nothing
/// polls, and an idle scheduler does not wake up.
///
/// **Clock.** Jobs wait for the wall clock, and follow it when it is set. After a step forward,
/// overdue jobs run. After a step back, jobs wait longer, and what has started is not started
/// again: a schedule repeats no nominal instant, and an interval or a fixed delay goes on within
/// one period, at most two after the run before.
///
/// **Failure.** A handler that returns an error or panics has failed an attempt; another follows
/// after a wait ([`Retry`]). A job without attempts left is dead: kept, listed, and
/// [revived](Self::revive) on request. A handler runs at most [`Handler::parallel`] jobs at a time.
/// So a slow or failing handler delays its own jobs alone.
///
/// **Threads.** Blocking handlers run on the pool of the runtime; async ones where a
/// [spawner](Builder::spawner) puts them. A handler may call each method of the scheduler, on its
/// own key as well. No lock is held while handlers, rules, hooks, payloads or callbacks of tokens
/// run. [`cancel`](Self::cancel) and a put that [replaces](crate::Clash::Replace) run the callbacks
/// of the token of a running job. Panics of hooks, wakers and such callbacks are swallowed.
///
/// **Handles.** A `Scheduler` is a handle: clones are the same scheduler. Dropping the last one
/// stops the scheduler without waiting: no further run begins, those under way go on, and jobs in
/// memory are lost. [`close`](Self::close) waits and reports.
///
/// # Examples
///
/// On virtual time:
///
/// ```
/// use std::time::Duration;
/// use serde::{Deserialize, Serialize};
/// use timerqueue::{ManualClock, Runtime};
/// use timerqueue_scheduler::{Cancel, Job, Run, Scheduler};
///
/// #[derive(Serialize, Deserialize)]
/// struct Remind {
///     user: u32,
/// }
///
/// impl Job for Remind {
///     const NAME: &'static str = "remind";
/// }
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let scheduler = Scheduler::builder()
///     .runtime(&runtime)
///     .on(|remind: Remind, run: &Run| println!("{}: {}", run.key(), remind.user))
///     .start()?;
///
/// const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// let _ = scheduler.put(&Remind { user: 17 }).key("remind/17").due(2 * DAY).send().wait()?;
/// let _ = scheduler.put(&Remind { user: 18 }).key("remind/18").due(2 * DAY).send().wait()?;
/// assert_eq!(scheduler.cancel("remind/18").wait()?, Cancel::Cancelled);
/// clock.advance(2 * DAY);
/// assert_eq!(scheduler.stats().wait()?.done, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Scheduler {
    pub(crate) core: Arc<Core>,
    /// `None` in handles that runs give out.
    owner: Option<Arc<Owner>>,
    /// Operations by this handle wait for room.
    waits: bool,
}

/// Stops the engine with the last handle.
struct Owner {
    core: Arc<Core>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.core.stop();
    }
}

impl Scheduler {
    /// Settings for a new scheduler.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Settings with the jobs in this file, which is made if there is none. Its folder must exist.
    /// A job whose put was answered survives the process, the kernel and the power.
    /// [`SqliteStore`](crate::store::SqliteStore) has the rest.
    ///
    /// The file is opened by [`Builder::start`]. [`Builder::store`] has precedence.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue_scheduler::Scheduler;
    ///
    /// # let folder = std::env::temp_dir().join(format!("timerqueue-open-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("jobs.db");
    /// let scheduler = Scheduler::open(&path).handler("mail", |to: String, _| println!("to {to}")).start()?;
    /// let _ = scheduler.put_to("mail", &"ann").due(std::time::Duration::from_secs(3_600)).send().wait()?;
    /// drop(scheduler);
    /// // In another process, or after the power has come back:
    /// let scheduler = Scheduler::open(&path).handler("mail", |to: String, _| println!("to {to}")).start()?;
    /// assert_eq!(scheduler.stats().wait()?.jobs.kind("mail").map(|kind| kind.name.to_string()), Some("mail".into()));
    /// # drop(scheduler);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "sqlite")]
    pub fn open(path: impl AsRef<std::path::Path>) -> Builder {
        Builder::new().file(path.as_ref())
    }

    fn owning(core: Arc<Core>) -> Self {
        Self { owner: Some(Arc::new(Owner { core: Arc::clone(&core) })), core, waits: false }
    }

    pub(crate) fn of(core: Arc<Core>) -> Self {
        Self { core, owner: None, waits: false }
    }

    /// A handle of the same scheduler, whose operations wait for room as by
    /// [`Put::wait_for_room`]: puts, cancels and all other changes. Without it they are refused
    /// with [`Fault::Busy`](crate::store::Fault::Busy) while the
    /// [backlog](crate::Builder::backlog) is full. Operations that wait begin in the order of
    /// their calls. Dropping the answer gives up one that has not begun.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::{Cancel, Change, Scheduler};
    /// # let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let builder = Scheduler::builder().runtime(&runtime).backlog(1_000);
    /// let scheduler = builder.handler("mail", |_: u32, _| {}).start()?.waiting_for_room();
    /// let hour = Duration::from_secs(3_600);
    /// let _ = scheduler.put_to("mail", &17).key("a").due(hour).send().wait()?;
    /// assert_eq!(scheduler.move_to("a", 2 * hour).wait()?, Change::Changed);
    /// assert_eq!(scheduler.edit("a").priority(3).send().wait()?, Change::Changed);
    /// assert_eq!(scheduler.cancel("a").wait()?, Cancel::Cancelled);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "operations by the new handle wait"]
    pub fn waiting_for_room(&self) -> Self {
        Self { waits: true, ..self.clone() }
    }

    /// Applies one operation.
    fn mutate<T: Send + 'static>(
        &self,
        op: Op,
        pick: impl FnOnce(Applied) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        self.core.mutate(op, self.waits, pick)
    }

    /// A job for the handler of its type. The payload is written as JSON in this call.
    pub fn put<J: Job>(&self, job: &J) -> Put<'_> {
        self.put_to(J::NAME, job)
    }

    /// A job for the handler of this name. The payload is written as JSON in this call.
    pub fn put_to(&self, name: &str, payload: &(impl Serialize + ?Sized)) -> Put<'_> {
        Put::new(self, name, self.core.encoded(payload))
    }
}

/// Changes by key.
impl Scheduler {
    /// Cancels a job. After [`Cancel::Cancelled`] no attempt at it starts. After
    /// [`Cancel::Running`] the run goes on with its token cancelled, and no attempt follows; the
    /// key is free at its end. Of a recurring job, its waiting runs are cancelled as well.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Invalid`], [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    /// use timerqueue_scheduler::{Cancel, Run, Scheduler};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder()
    ///     .runtime(&runtime)
    ///     .handler("once", |_: (), run: &Run| {
    ///         let answer = run.scheduler().cancel(run.key()).wait();
    ///         assert_eq!((answer, run.token().is_cancelled()), (Ok(Cancel::Running), true));
    ///     })
    ///     .start()?;
    /// let _ = scheduler.put_to("once", &()).key("a").send().wait()?;
    /// clock.advance(Duration::ZERO);
    /// assert_eq!(scheduler.cancel("a").wait()?, Cancel::Absent);
    /// # assert_eq!(scheduler.stats().wait()?.done, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel(&self, key: &str) -> Pending<Cancel> {
        self.mutate(key_op(key, Mutation::Cancel), cancelled)
    }

    /// Gives a waiting job another due time, in one step: also one that waits for its next attempt,
    /// or is paused. A recurring job is
    /// [`Change::WrongKind`]: see [`reschedule`](Self::reschedule).
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Invalid`], [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
    /// let hour = Duration::from_secs(3600);
    /// let _ = scheduler.put_to("mail", &1).key("a").due(hour).send().wait()?;
    /// assert_eq!(scheduler.move_to("a", 2 * hour).wait()?, Change::Changed);
    /// clock.advance(hour);
    /// assert_eq!(scheduler.stats().wait()?.done, 0);
    /// clock.advance(hour);
    /// assert_eq!(scheduler.move_to("a", hour).wait()?, Change::Absent);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn move_to(&self, key: &str, due: impl Into<Due>) -> Pending<Change> {
        Pending::begun(self.core.when(due.into()).map(|when| self.change(key, Mutation::Move(when))))
    }

    /// Makes a waiting job due now; a paused one is resumed. A recurring job gets a run beside its
    /// schedule, unless its [overlap](crate::Overlap) forbids: then the answer is
    /// [`Change::Running`].
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Invalid`], [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
    /// let daily = Schedule::cron("@daily").build()?;
    /// let _ = scheduler.put_to("mail", &1).key("daily").schedule(daily).send().wait()?;
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(scheduler.run_now("daily").wait()?, Change::Changed);
    /// clock.advance(Duration::ZERO);
    /// assert_eq!(scheduler.stats().wait()?.done, 2); // at midnight, and now
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_now(&self, key: &str) -> Pending<Change> {
        self.change(key, Mutation::RunNow)
    }

    /// Keeps a job from starting until it is resumed. A run goes on; a further attempt waits. Of a
    /// recurring job, waiting runs are paused as well, and occurrences are missed:
    /// [`resume`](Self::resume) applies its [`Catchup`](crate::Catchup).
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Invalid`], [`Error::Store`].
    pub fn pause(&self, key: &str) -> Pending<Change> {
        self.change(key, Mutation::Pause)
    }

    /// Lets a paused job go on. If its due time has passed, it is due now.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Invalid`], [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
    /// let minute = Duration::from_secs(60);
    /// let _ = scheduler.put_to("mail", &1).key("a").due(minute).send().wait()?;
    /// let _ = scheduler.pause("a").wait()?;
    /// clock.advance(10 * minute);
    /// assert_eq!(scheduler.stats().wait()?.done, 0);
    /// let _ = scheduler.resume("a").wait()?;
    /// clock.advance(Duration::ZERO);
    /// assert_eq!(scheduler.stats().wait()?.done, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(&self, key: &str) -> Pending<Change> {
        self.change(key, Mutation::Resume)
    }

    /// Gives a recurring job another schedule, or the same one with newer zone data
    /// ([`Schedule::to_builder`]). Its rules, runs and counts stay. Occurrences of the new schedule
    /// up to now do not run. The same schedule changes nothing else: what has been missed runs, and
    /// what is not due yet is waited for.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Invalid`], [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
    /// let hourly = Schedule::cron("@hourly").zone("Asia/Tokyo").build()?;
    /// let _ = scheduler.put_to("mail", &1).key("report").schedule(hourly.clone()).send().wait()?;
    /// // The zone data of the system was updated.
    /// assert_eq!(scheduler.reschedule("report", hourly.to_builder().build()?).wait()?, Change::Changed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reschedule(&self, key: &str, schedule: Schedule) -> Pending<Change> {
        let recurrence = Recurrence { schedule, catchup: Default::default(), grace: None, overlap: Default::default() };
        self.change(key, Mutation::Reschedule(Box::new(recurrence)))
    }

    /// Lets a recurring job go on from now. Occurrences up to now do not run; runs under way go on.
    /// And the job waits for its first occurrence after now, also if the clock was ahead before and
    /// the job has waited [further ahead](crate::JobInfo::is_ahead) since then. The last occurrence
    /// that has run is not repeated.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Invalid`], [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::{Duration, UNIX_EPOCH};
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("tidy", |_: (), _| {}).start()?;
    /// let hours = |hours: u64| UNIX_EPOCH + Duration::from_secs(hours * 3_600);
    /// clock.set_wall(hours(500_000));
    /// let hourly = Schedule::cron("@hourly").build()?;
    /// let _ = scheduler.put_to("tidy", &()).key("tidy").schedule(hourly).send().wait()?;
    /// clock.set_wall(hours(500_002)); // wrong
    /// clock.advance(Duration::from_secs(1));
    /// clock.set_wall(hours(500_000) + Duration::from_secs(60));
    /// assert!(scheduler.get("tidy").wait()?.is_some_and(|job| job.is_ahead(runtime.wall_now())));
    ///
    /// assert_eq!(scheduler.realign("tidy").wait()?, Change::Changed);
    /// clock.advance(Duration::ZERO);
    /// assert_eq!(scheduler.get("tidy").wait()?.unwrap().due, Some(hours(500_001)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn realign(&self, key: &str) -> Pending<Change> {
        self.change(key, Mutation::Realign)
    }

    fn change(&self, key: &str, mutation: Mutation) -> Pending<Change> {
        self.mutate(key_op(key, mutation), changed)
    }
}

fn key_op(key: &str, mutation: Mutation) -> Op {
    Op::Key { key: key.into(), mutation }
}

fn cancelled(applied: Applied) -> Option<Cancel> {
    if let Applied::Cancel(cancel) = applied { Some(cancel) } else { None }
}

fn changed(applied: Applied) -> Option<Change> {
    if let Applied::Change(change) = applied { Some(change) } else { None }
}

fn placed(applied: Applied) -> Option<Placed> {
    if let Applied::Placed(placed) = applied { Some(placed) } else { None }
}

/// Changes of handlers and of dead jobs.
impl Scheduler {
    /// Keeps all jobs of a handler from starting, also those to come, in one step. Recurring jobs
    /// are not looked at.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Invalid`], [`Error::Store`].
    pub fn pause_handler(&self, name: &str) -> Pending<Change> {
        self.mutate(Op::PauseHandler { name: self.core.name(name), paused: true }, changed)
    }

    /// Lets the jobs of a handler go on.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Invalid`], [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
    /// let _ = scheduler.pause_handler("mail").wait()?;
    /// let _ = scheduler.put_to("mail", &1).send().wait()?;
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(scheduler.stats().wait()?.jobs.of(State::Waiting), 1);
    /// let _ = scheduler.resume_handler("mail").wait()?;
    /// clock.advance(Duration::ZERO);
    /// assert_eq!(scheduler.stats().wait()?.done, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume_handler(&self, name: &str) -> Pending<Change> {
        self.mutate(Op::PauseHandler { name: self.core.name(name), paused: false }, changed)
    }

    /// Lets a dead job run again: due now, with all its attempts. A list of
    /// [`State::Dead`](crate::State::Dead) has them.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let flaky = Handler::new("flaky", |_: u32, _: &Run| Err::<(), _>("the first attempt fails")).retry(Retry::never());
    /// let scheduler = Scheduler::builder().runtime(&runtime).register(flaky).start()?;
    /// let _ = scheduler.put_to("flaky", &1).key("a").send().wait()?;
    /// clock.advance(Duration::ZERO);
    /// let dead = scheduler.list(Query::new().state(State::Dead)).wait()?;
    /// assert_eq!(dead[0].error.as_deref(), Some("the first attempt fails"));
    /// assert_eq!(scheduler.revive(dead[0].id).wait()?, Revive::Revived);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn revive(&self, id: JobId) -> Pending<Revive> {
        self.mutate(Op::Revive(id), only!(Applied::Revive(revive) => revive))
    }

    /// Removes a dead job. False: there is no such dead job. Of a dead recurring job, its waiting
    /// runs leave as well, and no attempt follows a run that goes on.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Store`].
    pub fn discard(&self, id: JobId) -> Pending<bool> {
        self.mutate(Op::Discard(id), only!(Applied::Held(held) => held))
    }
}

/// Looks, which a closed scheduler answers as well.
impl Scheduler {
    /// The job with this key: the one that waits, runs or recurs, or else the one that died last.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    pub fn get(&self, key: &str) -> Pending<Option<JobInfo>> {
        self.core.look_up(Scan::Get(key.into()), only!(Scanned::Jobs(jobs) => jobs.into_iter().next()))
    }

    /// The done jobs of a query that the store keeps, as the [`History`] of their handlers says.
    /// The last ones to end come first, unless the query says otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    ///
    /// # Examples
    ///
    /// What has ended since the last look:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let builder = Scheduler::builder().runtime(&runtime).history(History::new(Duration::from_secs(86_400)));
    /// let scheduler = builder.handler("mail", |_: u32, _| {}).start()?;
    /// let since = HistoryQuery::new().oldest_first();
    /// let _ = scheduler.put_to("mail", &1).key("a").send().wait()?;
    /// clock.advance(Duration::ZERO);
    /// let done = scheduler.history(since.clone()).wait()?;
    /// assert_eq!(&*done[0].key, "a");
    /// let _ = scheduler.put_to("mail", &2).key("b").send().wait()?;
    /// clock.advance(Duration::ZERO);
    /// let done = scheduler.history(since.after(done[0].seq)).wait()?;
    /// assert_eq!((done.len(), &*done[0].key), (1, "b"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn history(&self, query: HistoryQuery) -> Pending<Vec<FinishedJob>> {
        self.core.look_up(Scan::History(query), only!(Scanned::History(jobs) => jobs))
    }

    /// Waits for the end of a job, up to a limit on the runtime's clock: for the value of its
    /// handler. The job may run on any node. For jobs that were put with
    /// [`Put::kept_for`]: their ends are told at once, on a server within twice the safety look if
    /// the notice is lost. The end of another job is seen at the limit at the latest. A close of
    /// this scheduler answers by [`JobEnd::Pending`]. Of a recurring job the end is that of its
    /// schedule.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] at the limit, if the store does not answer then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let minute = Duration::from_secs(60);
    /// let sum = |parts: Vec<u32>, _: &Run| Returned(parts.iter().sum::<u32>());
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("sum", sum).start()?;
    /// let id = scheduler.put_to("sum", &[1, 2, 3]).kept_for(minute).send().wait()?.added().unwrap();
    /// match scheduler.wait_for(id, minute).wait()? {
    ///     JobEnd::Done(job) => assert_eq!(job.value::<u32>().unwrap()?, 6),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_for(&self, id: JobId, limit: Duration) -> Pending<JobEnd> {
        self.core.wait_for(id, limit)
    }

    /// The done job with this number, if the store keeps it: [`History`].
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    pub fn get_finished(&self, id: JobId) -> Pending<Option<FinishedJob>> {
        self.core.look_up(Scan::Finished(id), only!(Scanned::Finished(job) => job.map(|job| *job)))
    }

    /// The jobs of a query, in the order of their numbers unless the query says otherwise. The list
    /// is no snapshot: jobs may come and go while it is made.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
    /// for n in 0..10 {
    ///     let _ = scheduler.put_to("mail", &n).key(&format!("user/{n}")).due(Duration::from_secs(60)).send().wait()?;
    /// }
    /// let first = scheduler.list(Query::new().key_prefix("user/").limit(4)).wait()?;
    /// let next = scheduler.list(Query::new().key_prefix("user/").limit(4).after(first[3].id)).wait()?;
    /// assert_eq!(&*next[0].key, "user/4");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn list(&self, query: Query) -> Pending<Vec<JobInfo>> {
        self.core.look_up(Scan::List(query), only!(Scanned::Jobs(jobs) => jobs))
    }

    /// What this scheduler has done, and what its store has.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
    /// let _ = scheduler.put_to("mail", &1).send().wait()?;
    /// let _ = scheduler.put_to("mail", &2).due(Duration::from_secs(60)).send().wait()?;
    /// clock.advance(Duration::ZERO);
    /// let stats = scheduler.stats().wait()?;
    /// assert_eq!((stats.done, stats.jobs.of(State::Waiting)), (1, 1));
    /// assert!(stats.lateness.at_most(0.99) < Duration::from_millis(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stats(&self) -> Pending<Stats> {
        self.stats_by(Scan::Counts)
    }

    /// `scan`: for counts, perhaps at a [bounded cost](Self::some_counts).
    pub(crate) fn stats_by(&self, scan: Scan) -> Pending<Stats> {
        let core = Arc::clone(&self.core);
        self.core.look_up(
            scan,
            only!(Scanned::Counts(jobs) => Stats { jobs, store: core.store.times(), ..core.stats.lock().clone() }),
        )
    }

    /// The counts of the jobs at a bounded cost, for pages that are asked for often. A file and a
    /// memory keep their counts, and answer as [`stats`](Self::stats) does. A server walks an index
    /// for each: up to `most` entries of those that all handlers share, and as many in sum of those
    /// of the handlers, but 1,000 of each. A count that ends there is
    /// [bounded](crate::Counts::is_bounded): there are as many jobs at least, and about as many as
    /// the server's statistics [say](crate::Counts::estimate).
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
    /// let _ = scheduler.put_to("mail", &1).send().wait()?;
    /// let counts = scheduler.some_counts(10_000).wait()?;
    /// let more = if counts.is_bounded(State::Waiting) { "+" } else { "" };
    /// assert_eq!(format!("{}{more}", counts.of(State::Waiting)), "1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn some_counts(&self, most: u64) -> Pending<Counts> {
        self.core.look_up(Scan::SomeCounts { most }, only!(Scanned::Counts(counts) => counts))
    }

    /// How many runs ended, and how late they began: of all schedulers on the store, by handler and
    /// window of time, from the window with this instant on. A window has whole minutes, at least
    /// one and at most a week; windows begin at multiples of their length since 1970. What has no
    /// end of a run is left out.
    ///
    /// The counts are written in the commit that settles a run. A store keeps them for a week, by
    /// minutes.
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
    /// let begin = runtime.wall_now();
    /// for n in 0..5 {
    ///     let _ = scheduler.put_to("mail", &n).due(Duration::from_secs(60)).send().wait()?;
    /// }
    /// clock.advance(Duration::from_secs(60));
    /// let activity = scheduler.activity(begin, Duration::from_secs(3_600)).wait()?;
    /// assert_eq!(activity.iter().map(|window| window.done).sum::<u64>(), 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn activity(&self, since: SystemTime, window: Duration) -> Pending<Vec<Activity>> {
        let since = Micros::floor(since);
        self.core.look_up(Scan::Activity { since, window }, only!(Scanned::Activity(activity) => activity))
    }

    /// The schedulers that are alive on the store: since when, with which handlers, and how many
    /// runs each has, in the order of their joins. In memory these are the schedulers that share
    /// the store, on a file those of all its processes, on a server those of all its nodes.
    ///
    /// A scheduler is a node from its start until its [close](Self::close) or the drop of its last
    /// owner. A process that ends without a close is no node any more as soon as the others see its
    /// end: at once on a file, at the end of its lease on a server. There the answer may still have
    /// a node whose lease is over, until another node has noticed it: compare
    /// [`Node::until`](crate::Node::until).
    ///
    /// # Errors
    ///
    /// [`Error::Store`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::{*, store::MemoryStore};
    /// # let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let store = MemoryStore::new(&runtime);
    /// let front = Scheduler::builder().runtime(&runtime).store(store.clone()).node_name("front").start()?;
    /// let back = Scheduler::builder().runtime(&runtime).store(store).handler("mail", |_: u32, _| {}).start()?;
    /// let nodes = front.nodes().wait()?;
    /// assert_eq!((&*nodes[0].name, nodes[0].is_this, nodes[1].is_this), ("front", true, false));
    /// assert_eq!((&*nodes[1].handlers[0].name, nodes[1].running()), ("mail", 0));
    /// # drop(back);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn nodes(&self) -> Pending<Vec<Node>> {
        self.core.look_up(Scan::Nodes { owner: self.core.settings.owner }, only!(Scanned::Nodes(nodes) => nodes))
    }

    /// Whether the scheduler was closed, or its last owner dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.core.is_closing()
    }

    /// Closes the scheduler: from this call on no run begins, and changes are refused. The answer
    /// comes when the handlers that run have returned, or at the limit, with a report of what is
    /// left. At the limit the tokens of runs are cancelled. The limit counts on the runtime's
    /// clock. Jobs that wait stay in the store. If a server does not count them within a second,
    /// the report has none.
    ///
    /// A handler may close its scheduler: neither this close nor another one waits for its run,
    /// which the report names if it goes on. A second close waits as the first does.
    ///
    /// # Errors
    ///
    /// None on a memory store.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    /// use timerqueue_scheduler::{Error, Scheduler, State};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
    /// let _ = scheduler.put_to("mail", &1).due(Duration::from_secs(60)).send().wait()?;
    /// let report = scheduler.close(Duration::from_secs(10)).wait()?;
    /// assert!(report.is_drained());
    /// assert_eq!(report.jobs.of(State::Waiting), 1);
    /// assert_eq!(scheduler.put_to("mail", &2).send().wait(), Err(Error::Closed));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&self, limit: Duration) -> Pending<Report> {
        self.core.close(limit)
    }
}

impl Run {
    /// The scheduler, for jobs that follow from this one. The handle does not keep the scheduler
    /// open.
    #[must_use]
    pub fn scheduler(&self) -> Scheduler {
        Scheduler::of(Arc::clone(&self.inner.core))
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl crate::store::Hold {
    /// Resumes the handlers that the hold has paused, and no others. Their jobs run, on this
    /// scheduler and on others. Blocks. Afterwards the store is to forget the hold:
    /// `SqliteStore::forget_hold`, `PostgresOptions::forget_hold`.
    ///
    /// Jobs of the restored past that are begun [at most once](crate::Put::at_most_once) and are
    /// due by now may have begun in the lost store. So they do not begin: each is dead once a
    /// scheduler with its handler claims it, with [`RunEnd::CutOff`](crate::RunEnd::CutOff).
    /// Recurring jobs of this kind go on from now.
    ///
    /// # Errors
    ///
    /// [`Error::Store`]. Some handlers may be resumed by then; the call may be repeated.
    pub fn release(&self, scheduler: &Scheduler) -> Result<(), crate::Error> {
        let scheduler = &scheduler.waiting_for_room();
        for state in [crate::State::Waiting, crate::State::Queued, crate::State::Recurring] {
            self.doubt(scheduler, state)?;
        }
        self.handlers.iter().try_for_each(|name| scheduler.resume_handler(name).wait().map(drop))
    }

    /// Jobs that are due later have begun nowhere, and those that were put later begin here first.
    fn doubt(&self, scheduler: &Scheduler, state: crate::State) -> Result<(), crate::Error> {
        const PAGE: usize = 256;
        let now = scheduler.stats().wait()?.jobs.now;
        let mut query = Query::new().state(state).soonest_first().limit(PAGE);
        loop {
            let mut page = scheduler.list(query.clone()).wait()?;
            let last = page.pop();
            let is_end = page.len() + 1 < PAGE || last.as_ref().is_none_or(|last| last.due.is_none() || last.due > now);
            let ops: Vec<Op> = page
                .iter()
                .chain(&last)
                .filter(|job| job.terms.at_most_once && job.id <= self.last && job.due.is_some() && job.due <= now)
                .map(|job| match job.state {
                    crate::State::Recurring => Op::Key { key: Arc::clone(&job.key), mutation: Mutation::Realign },
                    _ => Op::Doubt(job.id),
                })
                .collect();
            if !ops.is_empty() {
                scheduler.core.mutate_all(ops, scheduler.waits, |_| Ok(())).wait()?;
            }
            match last {
                Some(last) if !is_end => query = query.after_job(&last),
                _ => return Ok(()),
            }
        }
    }
}

debug_of!(Scheduler, |one| store: &*one.core.store, closed: one.is_closed(), owns: one.owner.is_some());
