//! Jobs as a store shows them: claimed ones, and those of a scan.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize, Serializer};

use super::{Invalid, Micros, NodeId, PredecessorEnd, Until, form};
use crate::{Occurrence as Exact, Schedule};

/// A job in its store. Numbers grow in the order of the puts, are not used again, and some are
/// never used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct JobId(pub u64);

/// The holder of a run: a settle of an earlier holder is refused (J6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// The job.
    pub id: JobId,
    /// The scheduler that claimed the job.
    pub owner: u64,
    /// The claim, counted for each job.
    pub claim: u64,
}

impl Held {
    /// For the function `done` of the schema of a server.
    #[cfg(feature = "postgres")]
    pub(crate) fn fence(self) -> String {
        let Self { id, owner, claim } = self;
        format!("{}/{}/{claim}", id.0, owner as i64)
    }
}

/// An occurrence of a schedule, as stores keep it. Both instants are rounded up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "Pair", into = "Pair")]
pub struct Occurrence {
    /// Identifies the occurrence. In each recurring job, nominal instants grow.
    pub nominal: Micros,
    /// When to run.
    pub due: Micros,
}

/// An occurrence as it is stored: nominal and due instant.
#[derive(Serialize, Deserialize)]
struct Pair(Micros, Micros);

impl From<Pair> for Occurrence {
    fn from(Pair(nominal, due): Pair) -> Self {
        Self { nominal, due }
    }
}

impl From<Occurrence> for Pair {
    fn from(Occurrence { nominal, due }: Occurrence) -> Self {
        Self(nominal, due)
    }
}

impl Occurrence {
    /// Both instants rounded up.
    pub(crate) fn of(exact: Exact) -> Result<Self, Invalid> {
        Ok(Self { nominal: Micros::ceil(exact.nominal())?, due: Micros::ceil(exact.due())? })
    }
}

/// Which of the missed occurrences of a schedule run. An occurrence is missed if a later one is due
/// already, or if it is later than the grace.
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::Catchup;
///
/// assert_eq!(Catchup::default(), Catchup::RunLast);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Catchup {
    /// The last one, however late.
    #[default]
    RunLast,
    /// The last ones, one after another, up to a number (1 to [`Catchup::MOST`]).
    #[serde(serialize_with = "u32::serialize", deserialize_with = "u32::deserialize")]
    RunAll {
        /// The number.
        at_most: u32,
    },
    /// None. Where no grace is set, an occurrence that is late by more than [`Catchup::SKIP_GRACE`]
    /// is missed.
    Skip,
}

impl Catchup {
    /// The largest number of missed occurrences that run.
    pub const MOST: u32 = 1_000;
    /// The grace of [`Catchup::Skip`] where none is set.
    pub const SKIP_GRACE: Duration = Duration::from_secs(60);
}

/// What happens when an occurrence comes while a run of the same recurring job waits, runs or is to
/// be retried. With [`Skip`](Self::Skip) and [`QueueOne`](Self::QueueOne) a run that waits for
/// another attempt is due again with the occurrence; one of a fixed delay waits for no longer than
/// the delay. So a schedule goes on at its own pace as soon as its handler can.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Overlap {
    /// The occurrence is skipped, and counted.
    #[default]
    Skip,
    /// One occurrence waits for the end of the run. Further ones are skipped, and counted.
    QueueOne,
    /// Runs side by side, up to [`Overlap::MOST`].
    Allow,
}

impl Overlap {
    /// The largest number of runs of a recurring job that wait and run at a time.
    pub const MOST: usize = 1_000;
}

/// A schedule, and its rules for late occurrences.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Recurrence {
    /// When to run.
    pub schedule: Schedule,
    /// Which missed occurrences run.
    pub catchup: Catchup,
    /// An occurrence later than this does not run. `None`: no limit.
    #[serde(rename = "grace_seconds", serialize_with = "form::seconds_or_none")]
    pub grace: Option<Duration>,
    /// Occurrences during a run.
    pub overlap: Overlap,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunEnd {
    /// The handler was done.
    Done,
    /// The handler asked for another run.
    Again,
    /// The attempt failed, and another follows.
    Failed,
    /// The attempt failed, and none follows; or the handler said so; or the payload could not be
    /// read.
    Dead,
    /// The last instant had passed, so the handler was not called: [`JobInfo::expires`]. The job is
    /// dead.
    Expired,
    /// The job was to be begun at most once ([`Terms::at_most_once`]), and its run was cut off: by
    /// the end of its process, of its lease or of its executor. The job is dead, and may have done
    /// all of its work, a part or none.
    CutOff,
    /// The job was put [after](crate::Put::after) another one that was not done: the handler was
    /// not called, and the job is dead.
    Blocked,
}

/// In words: `cut off`.
impl fmt::Display for RunEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CutOff => f.pad("cut off"),
            end => end.serialize(f),
        }
    }
}

/// What a job asks for its runs and its end, beside the settings of its handler:
/// [`Put::at_most_once`], [`Put::attempts`], [`Put::limit`], [`Put::unique_for`] and
/// [`Put::kept_for`]. The default asks for nothing.
///
/// [`Put::at_most_once`]: crate::Put::at_most_once
/// [`Put::attempts`]: crate::Put::attempts
/// [`Put::limit`]: crate::Put::limit
/// [`Put::unique_for`]: crate::Put::unique_for
/// [`Put::kept_for`]: crate::Put::kept_for
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Terms {
    /// A run is not begun again: neither after a failure, nor after the end of its process.
    #[serde(skip_serializing_if = "form::is_default")]
    pub at_most_once: bool,
    /// The attempts before the job is dead, instead of those of its handler.
    #[serde(rename = "most_attempts", skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// The limit of time of each run, instead of that of its handler.
    #[serde(rename = "limit_seconds", skip_serializing_if = "Option::is_none")]
    #[serde(serialize_with = "form::seconds_or_none")]
    pub limit: Option<Duration>,
    /// How long the key stays taken once the job is done, instead of what its handler says.
    #[serde(rename = "unique_for_seconds", skip_serializing_if = "Option::is_none")]
    #[serde(serialize_with = "form::seconds_or_none")]
    pub unique_for: Option<Duration>,
    /// How long the done job is kept, instead of what its handler says if that is less.
    #[serde(rename = "kept_for_seconds", skip_serializing_if = "Option::is_none")]
    #[serde(serialize_with = "form::seconds_or_none")]
    pub kept_for: Option<Duration>,
}

/// One of the [`Terms`] of a job, and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Term {
    /// [`Terms::at_most_once`].
    AtMostOnce(bool),
    /// [`Terms::attempts`].
    Attempts(Option<u32>),
    /// [`Terms::limit`].
    Limit(Option<Duration>),
    /// [`Terms::unique_for`].
    UniqueFor(Option<Duration>),
    /// [`Terms::kept_for`].
    KeptFor(Option<Duration>),
}

impl Terms {
    /// Those with another value of one.
    pub(crate) fn with(self, term: Term) -> Self {
        match term {
            Term::AtMostOnce(at_most_once) => Self { at_most_once, ..self },
            Term::Attempts(attempts) => Self { attempts, ..self },
            Term::Limit(limit) => Self { limit, ..self },
            Term::UniqueFor(unique_for) => Self { unique_for, ..self },
            Term::KeptFor(kept_for) => Self { kept_for, ..self },
        }
    }

    /// As stores keep them: at least one attempt, and times in whole microseconds, rounded up.
    pub(crate) fn kept(self) -> Self {
        let rounded = |time| Duration::from_micros(form::micros_of(time).min(i64::MAX as u64));
        let (limit, unique_for) = (self.limit.map(rounded), self.unique_for.map(rounded));
        let kept_for = self.kept_for.map(rounded);
        Self { attempts: self.attempts.map(|attempts| attempts.max(1)), limit, unique_for, kept_for, ..self }
    }
}

/// The last run of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LastRun {
    /// When the run was due.
    #[serde(serialize_with = "form::rfc3339")]
    pub due: SystemTime,
    /// The nominal instant of its occurrence.
    #[serde(serialize_with = "form::rfc3339_or_none")]
    pub nominal: Option<SystemTime>,
    /// When the run was claimed, on the store's clock.
    #[serde(serialize_with = "form::rfc3339")]
    pub started: SystemTime,
    /// How long the handler ran, on the clock of the runtime.
    #[serde(rename = "seconds", serialize_with = "form::seconds")]
    pub duration: Duration,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// How the run ended.
    pub end: RunEnd,
    /// The error of a failed attempt.
    pub error: Option<Arc<str>>,
}

impl LastRun {
    /// A first attempt that took no time: for [`Settle`](super::Settle).
    #[must_use]
    pub fn new(due: SystemTime, started: SystemTime, end: RunEnd) -> Self {
        Self { due, nominal: None, started, duration: Duration::ZERO, attempt: 1, end, error: None }
    }
}

/// The state of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum State {
    /// Waits for its due time, or for a place to run.
    #[default]
    Waiting,
    /// Waits for the end of other jobs: of a run of the same recurring job, or of those that it was
    /// put [after](crate::Put::after).
    Queued,
    /// A handler runs.
    Running,
    /// Failed for good, and kept.
    Dead,
    /// A recurring job: waits for its next occurrence. Its runs are jobs of their own, with the
    /// same key.
    Recurring,
}

impl State {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Waiting, Self::Queued, Self::Running, Self::Dead, Self::Recurring];

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// The word of its JSON form: `waiting`.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A job that another one was put after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Predecessor {
    /// The number of the job.
    pub id: JobId,
    /// Its key.
    pub key: Arc<str>,
    /// How it has ended. `None`: it has not.
    pub end: Option<PredecessorEnd>,
}

/// A job, as it was at a moment. Made by [`Scheduler::get`](crate::Scheduler::get) and
/// [`Scheduler::list`](crate::Scheduler::list).
///
/// Serializes for people and programs, as `timerqueue show --json` does: instants in RFC 3339,
/// durations in seconds, the payload as JSON, the handler's name as `handler`, and the recurrence
/// as `recurring`. A priority of zero, and a tally without counts, are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JobInfo {
    /// The number of the job.
    pub id: JobId,
    /// The key. A run of a recurring job has the key of the recurring job.
    pub key: Arc<str>,
    /// The name of the handler.
    #[serde(rename = "handler")]
    pub name: Arc<str>,
    /// The [group](crate::Put::group).
    pub group: Option<Arc<str>>,
    /// The [priority](crate::Put::priority).
    #[serde(skip_serializing_if = "form::is_default")]
    pub priority: i8,
    /// The last instant at which a run begins: [`Put::expires`](crate::Put::expires).
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "form::rfc3339_or_none")]
    pub expires: Option<SystemTime>,
    /// Of a recurring job: how long after its due time each run begins at the latest.
    #[serde(rename = "expires_after_seconds", skip_serializing_if = "Option::is_none")]
    #[serde(serialize_with = "form::seconds_or_none")]
    pub expires_after: Option<Duration>,
    /// What the job asks for its runs; of a recurring job, for each of them.
    #[serde(flatten)]
    pub terms: Terms,
    /// The context of the trace in which the job was put: [`Put::trace`](crate::Put::trace).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<Arc<str>>,
    /// Of a job that was put [after](crate::Put::after) others: until when it waits for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
    /// The jobs that it was put after, in the order of their numbers, without those that were done
    /// then. Lists leave them out: [`Scheduler::get`](crate::Scheduler::get) has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub predecessors: Vec<Predecessor>,
    /// The payload, as JSON text.
    #[serde(serialize_with = "form::json")]
    pub payload: Arc<str>,
    /// The state.
    pub state: State,
    /// Whether the job was paused by its key.
    pub paused: bool,
    /// When the job was put, on the store's clock; of a run of a recurring job, its occurrence.
    /// `None`: by a version that did not note it.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "form::rfc3339_or_none")]
    pub added: Option<SystemTime>,
    /// When the run under way began, on the store's clock.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "form::rfc3339_or_none")]
    pub begun: Option<SystemTime>,
    /// What the last attempts have left to the next one, as JSON text:
    /// [`Run::save_progress`](crate::Run::save_progress).
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "form::json_or_none")]
    pub progress: Option<Arc<str>>,
    /// The [node](crate::Scheduler::nodes) of the run under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// When the job is due; of a recurring job: its next occurrence. `None`: it waits for no
    /// instant.
    #[serde(serialize_with = "form::rfc3339_or_none")]
    pub due: Option<SystemTime>,
    /// The nominal instant of the occurrence.
    #[serde(serialize_with = "form::rfc3339_or_none")]
    pub nominal: Option<SystemTime>,
    /// The recurring job that this job is a run of.
    pub parent: Option<JobId>,
    /// The attempts that have begun, since the last success.
    pub attempt: u32,
    /// How many of these attempts the end of their process has cut off. They do not count as
    /// failures.
    pub crashes: u32,
    /// The error of the last attempt, if it failed.
    pub error: Option<Arc<str>>,
    /// The last run: of this job, or of a recurring job.
    pub last: Option<Box<LastRun>>,
    /// The last failed attempts at this job, or at the runs of a recurring job: the latest last, at
    /// most [`MOST_FAILURES`](Self::MOST_FAILURES). Texts of errors are cut at
    /// [`LONGEST_FAILURE`](Self::LONGEST_FAILURE). Another run at the request of a handler begins
    /// with none.
    pub failures: Vec<LastRun>,
    /// The schedule and its rules.
    #[serde(rename = "recurring", skip_serializing_if = "Option::is_none")]
    pub recurrence: Option<Box<Recurrence>>,
    /// Of a recurring job: how many runs were put, and how many occurrences did not run.
    #[serde(skip_serializing_if = "form::is_default")]
    pub tally: Tally,
    /// Of a recurring job: the instant after which the next occurrence is awaited. That is the last
    /// occurrence, or when the schedule began.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "form::rfc3339_or_none")]
    pub after: Option<SystemTime>,
    /// Of a recurring job: a look is asked for.
    #[serde(skip)]
    pub(crate) looks: bool,
}

impl JobInfo {
    /// The most failed attempts that a job keeps.
    pub const MOST_FAILURES: usize = 8;
    /// The longest text of an error among the failed attempts, in bytes.
    pub const LONGEST_FAILURE: usize = 1_024;
    /// The next runs of a job as it is [shown](Self::shown).
    const SHOWN_RUNS: usize = 5;

    /// Whether a recurring job waits for an occurrence though there are earlier ones: the clock was
    /// ahead of `now`, and was set back. [`Scheduler::realign`](crate::Scheduler::realign) lets the
    /// schedule go on from now. By itself it goes on when the clock has caught up, or once the
    /// clock is more than three hours behind. Intervals and fixed delays go on at once.
    ///
    /// # Examples
    ///
    /// A clock that was ahead by an hour:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # clock.set_wall(std::time::UNIX_EPOCH + Duration::from_secs(1_767_225_600));
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("tidy", |_: (), _| {}).start()?;
    /// let _ = scheduler.put_to("tidy", &()).key("tidy").schedule(Schedule::cron("*/5 * * * *").build()?).send().wait()?;
    /// clock.advance(Duration::from_secs(600)); // two runs
    /// clock.set_wall(runtime.wall_now() - Duration::from_secs(3_600));
    /// let is_ahead = || Ok::<_, Error>(scheduler.get("tidy").wait()?.unwrap().is_ahead(runtime.wall_now()));
    /// assert!(is_ahead()?);
    /// assert_eq!(scheduler.realign("tidy").wait()?, Change::Changed);
    /// clock.advance(Duration::ZERO);
    /// assert!(!is_ahead()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_ahead(&self, now: SystemTime) -> bool {
        let waits = self.state == State::Recurring && self.due.is_some();
        waits
            && self.recurrence.as_ref().is_some_and(|rules| rules.schedule.period().is_none())
            && self.after > Some(now)
    }

    /// Whether the job waits for another occurrence than the first one after `now`, which is the
    /// store's clock.
    pub(crate) fn waits_elsewhere(&self, now: Micros) -> bool {
        let (Some(rules), Some(nominal), Some(due)) = (&self.recurrence, self.nominal, self.due) else { return false };
        let at = now.to_system();
        let first = || rules.schedule.next_after(at).and_then(|first| Occurrence::of(first).ok());
        let is_first = |first: Occurrence| (first.nominal.to_system(), first.due.to_system()) == (nominal, due);
        self.state == State::Recurring && nominal > at && due > at && !first().is_some_and(is_first)
    }

    /// The next runs of a recurring job that are known: at most this number. None while it is
    /// paused, or waits for the end of a run; of a fixed delay the next one alone. `now`: the
    /// store's clock, for a schedule that no scheduler has looked at yet. Calls a rule of the
    /// user's. Whether the handler is paused, the job does not know.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("tidy", |_: (), _| {}).start()?;
    /// let hour = Duration::from_secs(3_600);
    /// let _ = scheduler.put_to("tidy", &()).key("tidy").schedule(Schedule::fixed_delay(hour).build()?).send().wait()?;
    /// clock.advance(Duration::ZERO); // the first run
    /// let job = scheduler.get("tidy").wait()?.unwrap();
    /// assert_eq!(job.next_runs(runtime.wall_now(), 5), [runtime.wall_now() + hour]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn next_runs(&self, now: SystemTime, at_most: usize) -> Vec<SystemTime> {
        let Some(rules) = self.recurrence.as_ref().filter(|_| self.state == State::Recurring && !self.paused) else {
            return Vec::new();
        };
        let schedule = &rules.schedule;
        let (first, from) = match (self.due, self.nominal) {
            // After a step back of the clock the nominal instant of an interval is ahead of its due
            // time.
            (Some(due), Some(nominal)) => (due, nominal.min(due)),
            _ if self.looks => match schedule.first_at(now) {
                Some(first) => (first.due(), first.nominal()),
                None => return Vec::new(),
            },
            _ => return Vec::new(),
        };
        let later = schedule.after(from).map(|next| next.due());
        std::iter::once(first)
            .chain(later)
            .take(if schedule.is_fixed_delay() { at_most.min(1) } else { at_most })
            .collect()
    }

    /// The job as programs are shown it, by the command line (`timerqueue ls --json`) and by the
    /// page: serialized as it is, and a recurring job with the next five runs in `next` and
    /// [`is_ahead`](Self::is_ahead) in `ahead`. `now`: the store's clock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("tidy", |_: (), _| {}).start()?;
    /// let daily = Schedule::cron("@daily").build()?;
    /// let _ = scheduler.put_to("tidy", &()).key("tidy").schedule(daily).send().wait()?;
    /// let job = scheduler.get("tidy").wait()?.unwrap();
    /// let json = serde_json::to_value(job.shown(runtime.wall_now()))?;
    /// assert_eq!((&json["key"], json["next"].as_array().map(Vec::len)), (&"tidy".into(), Some(5)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shown(&self, now: SystemTime) -> impl Serialize + '_ {
        #[derive(Serialize)]
        struct Shown<'a> {
            #[serde(flatten)]
            job: &'a JobInfo,
            #[serde(flatten)]
            coming: Option<Coming>,
        }
        #[derive(Serialize)]
        struct Coming {
            ahead: bool,
            next: Vec<form::Instant>,
        }
        let next = || self.next_runs(now, Self::SHOWN_RUNS).into_iter().map(form::Instant).collect();
        let coming = self.recurrence.as_ref().map(|_| Coming { ahead: self.is_ahead(now), next: next() });
        Shown { job: self, coming }
    }

    /// Whether the job waits after a failed attempt.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.state == State::Waiting && self.error.is_some()
    }
}

/// Counts of a recurring job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tally {
    /// Runs put for occurrences.
    pub runs: u64,
    /// Occurrences skipped because of a run: [`Overlap`].
    pub skipped: u64,
    /// Occurrences missed: [`Catchup`]. Counted up to 1,000 at a time.
    pub missed: u64,
}

/// A claimed job: the caller runs it.
#[derive(Clone, Debug)]
pub struct ClaimedJob {
    /// For the settle.
    pub held: Held,
    /// The key.
    pub key: Arc<str>,
    /// The name of the handler.
    pub name: Arc<str>,
    /// JSON text.
    pub payload: Arc<str>,
    /// When the job was due.
    pub due: Micros,
    /// The nominal instant of the occurrence.
    pub nominal: Option<Micros>,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// How many of the attempts before the end of their process has cut off.
    pub crashes: u32,
    /// How many of the last attempts in a row the end of their process has cut off, as far as this
    /// speaks against the job. From two on the job is to run alone in its process.
    pub suspicion: u32,
    /// The same text for all attempts at this run, and for no other run.
    pub run: Arc<str>,
    /// The context of the trace in which the job was put, as the put has given it.
    pub trace: Option<Arc<str>>,
    /// The last instant has passed: the caller calls no handler, and ends the run by
    /// [`RunEnd::Expired`]. The attempt does not count.
    pub expired: bool,
    /// The job is to be begun at most once, and has begun: the caller calls no handler, and ends
    /// the run by [`RunEnd::CutOff`]. The attempt does not count.
    pub cut_off: bool,
    /// The job was put after another one that was not done: the caller calls no handler, and ends
    /// the run by [`RunEnd::Blocked`]. The attempt does not count.
    pub blocked: bool,
    /// What the job asks for the run.
    pub terms: Terms,
    /// What the attempts before have left, as JSON text.
    pub progress: Option<Arc<str>>,
}

/// A recurring job to be looked at: the caller computes an [`Advance`](super::Advance).
#[derive(Clone, Debug)]
pub struct ClaimedSchedule {
    /// The recurring job.
    pub id: JobId,
    /// Counts the changes of what the job waits for.
    pub version: u64,
    /// The schedule and its rules.
    pub recurrence: Box<Recurrence>,
    /// The occurrence that the job waits for.
    pub next: Option<Occurrence>,
    /// The last nominal instant that was run, skipped or missed, or the instant after which the
    /// first one is awaited.
    pub last: Option<Micros>,
    /// The last nominal instant that was run, skipped or missed before the clock was set back, and
    /// `last` with it.
    pub reached: Option<Micros>,
    /// The end of the last run, of a fixed delay.
    pub ended: Option<Micros>,
    /// The number of runs put.
    pub runs: u64,
}

/// The place of a due time in the order of due times.
fn due_key(due: Option<SystemTime>) -> i64 {
    due.map_or(i64::MAX, |due| Micros::floor(due).as_i64())
}

/// Which jobs a list has. Made by [`Query::new`]; the default is all jobs.
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::{Query, State};
///
/// let dead_mails = Query::new().state(State::Dead).name("mail").limit(100);
/// # drop(dead_mails);
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Query {
    pub(crate) state: Option<State>,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) prefix: Option<Arc<str>>,
    pub(crate) after: Option<JobId>,
    /// With `after`, in the order of due times: [`due_key`].
    pub(crate) after_due: Option<i64>,
    pub(crate) limit: Option<usize>,
    pub(crate) failing: bool,
    pub(crate) newest_first: bool,
    pub(crate) soonest_first: bool,
}

impl Query {
    /// All jobs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only jobs in this state.
    pub fn state(self, state: State) -> Self {
        Self { state: Some(state), ..self }
    }

    /// Only jobs of this handler.
    pub fn name(self, name: &str) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Only keys that begin with this text.
    pub fn key_prefix(self, prefix: &str) -> Self {
        Self { prefix: Some(prefix.into()), ..self }
    }

    /// Only jobs that wait after a failed attempt.
    pub fn failing(self) -> Self {
        Self { failing: true, ..self }
    }

    /// The jobs with the greatest numbers first: those that were put last.
    pub fn newest_first(self) -> Self {
        Self { newest_first: true, soonest_first: false, ..self }
    }

    /// The jobs that are due first come first, and so those that are overdue: in the order of
    /// [`JobInfo::due`], those without a due time last, ties in the order of the numbers. Of the
    /// jobs that wait, a store on a file or a server reads no more than the list shows.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("h", |(): (), _: &Run| {}).start()?;
    /// for (key, seconds) in [("a", 30), ("b", 10), ("c", 20)] {
    ///     let _ = scheduler.put_to("h", &()).key(key).due(Duration::from_secs(seconds)).send().wait()?;
    /// }
    /// let soonest = Query::new().state(State::Waiting).soonest_first();
    /// let first = scheduler.list(soonest.clone().limit(2)).wait()?;
    /// assert_eq!([&*first[0].key, &*first[1].key], ["b", "c"]);
    /// let next = scheduler.list(soonest.after_job(&first[1])).wait()?;
    /// assert_eq!(&*next[0].key, "a");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn soonest_first(self) -> Self {
        Self { soonest_first: true, newest_first: false, ..self }
    }

    /// Only jobs behind this one in the order of the list: to go on after the last job of a list
    /// with a limit. For lists in the order of the numbers.
    pub fn after(self, id: JobId) -> Self {
        Self { after: Some(id), after_due: None, ..self }
    }

    /// Only jobs behind the job with this due time and number, in the order of due times.
    pub fn after_due(self, due: Option<SystemTime>, id: JobId) -> Self {
        Self { after: Some(id), after_due: Some(due_key(due)), ..self }
    }

    /// Only jobs behind this one in the order of the list: to go on after the last job of a list
    /// with a limit. The job may have left by now.
    pub fn after_job(self, last: &JobInfo) -> Self {
        if self.soonest_first { self.after_due(last.due, last.id) } else { self.after(last.id) }
    }

    /// The due key and the number behind which a list in the order of due times begins.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn cursor(&self) -> (i64, i64) {
        let id = self.after.filter(|_| self.after_due.is_some());
        (self.after_due.unwrap_or(i64::MIN), id.map_or(-1, |JobId(id)| i64::try_from(id).unwrap_or(i64::MAX)))
    }

    /// At most this number of jobs, the first ones in the order of the list.
    pub fn limit(self, jobs: usize) -> Self {
        Self { limit: Some(jobs), ..self }
    }
}

/// The counts of the jobs of a handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KindCounts {
    /// The name of the handler.
    #[serde(rename = "handler")]
    pub name: Arc<str>,
    /// Whether the handler is paused.
    pub paused: bool,
    /// The number of jobs that wait after a failed attempt.
    pub failing: u64,
    #[serde(flatten, serialize_with = "by_state")]
    pub(crate) states: [u64; State::ALL.len()],
    /// Numbers that are greater in truth, by state.
    #[serde(skip_serializing_if = "form::is_default", serialize_with = "bounded_states")]
    pub(crate) bounded: [bool; State::ALL.len()],
    #[serde(skip_serializing_if = "form::is_default")]
    pub(crate) failing_bounded: bool,
    #[serde(rename = "waiting_estimate", skip_serializing_if = "Option::is_none")]
    pub(crate) estimate: Option<u64>,
}

fn bounded_states<S: Serializer>(states: &[bool; State::ALL.len()], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(State::ALL.iter().zip(states).filter(|(_, is)| **is).map(|(state, _)| state))
}

fn by_state<S: Serializer>(states: &[u64; State::ALL.len()], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(State::ALL.iter().zip(states))
}

impl KindCounts {
    pub(crate) fn new(name: Arc<str>, paused: bool, states: [u64; State::ALL.len()], failing: u64) -> Self {
        Self { name, paused, failing, states, bounded: Default::default(), failing_bounded: false, estimate: None }
    }

    /// The number of jobs in a state.
    #[must_use]
    pub fn of(&self, state: State) -> u64 {
        self.states[state.index()]
    }

    /// Whether there may be more jobs in a state than [`of`](Self::of) says: the counts are
    /// [bounded](crate::Scheduler::some_counts).
    #[must_use]
    pub fn is_bounded(&self, state: State) -> bool {
        self.bounded[state.index()]
    }

    /// Whether more jobs may wait after a failed attempt than [`failing`](Self::failing) says.
    #[must_use]
    pub fn is_failing_bounded(&self) -> bool {
        self.failing_bounded
    }

    /// About how many jobs wait, by the statistics of the server, if their count is
    /// [bounded](Self::is_bounded).
    #[must_use]
    pub fn estimate(&self) -> Option<u64> {
        self.estimate
    }
}

/// How many jobs a store has.
///
/// Serializes for people and programs, with the [overdue](Self::overdue) time in seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// By handler, in the order of the names.
    pub kinds: Vec<KindCounts>,
    /// The due time of the job that waits longest, if one is overdue. Paused jobs do not count.
    pub oldest_overdue: Option<SystemTime>,
    /// How many recurring jobs wait for an occurrence though there are earlier ones:
    /// [`JobInfo::is_ahead`].
    pub ahead: u64,
    /// The store's clock.
    pub now: Option<SystemTime>,
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown<'a> {
            handlers: &'a [KindCounts],
            #[serde(serialize_with = "form::rfc3339_or_none")]
            oldest_overdue: Option<SystemTime>,
            #[serde(serialize_with = "form::seconds_or_none")]
            overdue_seconds: Option<Duration>,
            ahead: u64,
            #[serde(serialize_with = "form::rfc3339_or_none")]
            now: Option<SystemTime>,
        }
        let Self { kinds, oldest_overdue, ahead, now } = self;
        let (oldest_overdue, ahead, now) = (*oldest_overdue, *ahead, *now);
        Shown { handlers: kinds, oldest_overdue, overdue_seconds: self.overdue(), ahead, now }.serialize(to)
    }
}

impl Counts {
    /// For how long the job that waits longest has been due, on the store's clock.
    #[must_use]
    pub fn overdue(&self) -> Option<Duration> {
        Some(self.now?.duration_since(self.oldest_overdue?).unwrap_or_default())
    }

    /// The number of jobs in a state, of all handlers.
    #[must_use]
    pub fn of(&self, state: State) -> u64 {
        self.kinds.iter().map(|kind| kind.of(state)).sum()
    }

    /// Whether there may be more jobs in a state than [`of`](Self::of) says: the counts are
    /// [bounded](crate::Scheduler::some_counts).
    #[must_use]
    pub fn is_bounded(&self, state: State) -> bool {
        self.kinds.iter().any(|kind| kind.is_bounded(state))
    }

    /// Whether more jobs may wait after a failed attempt than [`failing`](Self::failing) says.
    #[must_use]
    pub fn is_failing_bounded(&self) -> bool {
        self.kinds.iter().any(KindCounts::is_failing_bounded)
    }

    /// About how many jobs wait, by the statistics of the server, if the count of some handler is
    /// [bounded](KindCounts::estimate).
    #[must_use]
    pub fn estimate(&self) -> Option<u64> {
        let about = |kind: &KindCounts| kind.estimate.unwrap_or_else(|| kind.of(State::Waiting));
        self.kinds.iter().any(|kind| kind.estimate.is_some()).then(|| self.kinds.iter().map(about).sum())
    }

    /// The number of jobs that wait after a failed attempt, of all handlers.
    #[must_use]
    pub fn failing(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.failing).sum()
    }

    /// The counts of a handler.
    #[must_use]
    pub fn kind(&self, name: &str) -> Option<&KindCounts> {
        self.kinds.iter().find(|kind| &*kind.name == name)
    }
}
