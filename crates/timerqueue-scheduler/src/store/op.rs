//! Operations on a store, and their answers.
//!
//! Ground rules. An operation is a value: a store may queue operations, and commit several at once.
//! Times that count from now are added to the store's clock at the commit (J9). Each conditional
//! operation names its condition: the caller never reads first.

use std::sync::Arc;
use std::time::Duration;

use super::{
    After, GroupId, Held, Invalid, JobId, Keep, LastRun, Micros, NodeId, Occurrence, Recurrence, StoreCallKind, Term,
    Terms, Unfollowed,
};

/// When a job is due: an instant, or a time that the store adds to its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum When {
    /// A time from the commit.
    After(Duration),
    /// An instant.
    At(Micros),
}

/// The last instant at which a run of a job begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Expiry {
    /// An instant. Of a job that does not recur.
    At(When),
    /// A time after the due time; of a recurring job, after that of each run.
    AfterDue(Duration),
}

/// What a put does if its key is taken by a job that waits or runs. (Dead jobs take no key.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Clash {
    /// The new job is refused: [`Placed::Refused`].
    #[default]
    Refuse,
    /// The old job stays, and the answer says so: [`Placed::Kept`]. For "make sure that there is
    /// such a job".
    Keep,
    /// The old job is cancelled, and the new one takes its place: [`Placed::Replaced`]. A recurring
    /// job that is the same in all its parts stays as it is: [`Placed::Kept`].
    Replace,
    /// A recurring job stays, and takes over what the new one says: [`Placed::Updated`], or
    /// [`Placed::Kept`] if nothing differs. For schedules that a program states at each start. The
    /// last occurrence and the runs stay, so what was missed meanwhile runs. With another schedule,
    /// occurrences up to now do not run. A job that is not recurring is replaced, or replaces.
    ///
    /// # Examples
    ///
    /// A schedule that a program states at each start:
    ///
    /// ```
    /// # use timerqueue::{ManualClock, Runtime};
    /// # use timerqueue_scheduler::*;
    /// # let clock = ManualClock::new();
    /// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let scheduler = Scheduler::builder().runtime(&runtime).handler("report", |_: (), _| {}).start()?;
    /// let state = |line: &str| {
    ///     let schedule = Schedule::cron(line).build()?;
    ///     let put = scheduler.put_to("report", &()).key("report").schedule(schedule).clash(Clash::Update);
    ///     Ok::<_, Box<dyn std::error::Error>>(put.send().wait()?)
    /// };
    /// assert!(matches!(state("0 6 * * *")?, Placed::Added(_)));
    /// assert!(matches!(state("0 6 * * *")?, Placed::Kept(_))); // the next start: nothing changes
    /// assert!(matches!(state("0 7 * * *")?, Placed::Updated(_))); // after a change of the program
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Update,
}

/// A job to be put.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// The key.
    pub key: Arc<str>,
    /// The name of the handler.
    pub name: Arc<str>,
    /// JSON text.
    pub payload: Arc<str>,
    /// The group: one member runs all jobs of the handler with this text.
    pub group: Option<Arc<str>>,
    /// Of a recurring job, that of its runs.
    pub priority: i8,
    /// The context of the trace in which the job is put: a text, of which a store knows no more.
    pub trace: Option<Arc<str>>,
    /// The jobs that it is put after.
    pub after: Option<Box<After>>,
    /// The last instant at which a run of the job begins.
    pub expires: Option<Expiry>,
    /// What the job asks for its runs; a recurring job, for each of them.
    pub terms: Terms,
    /// When the job is due; of a recurring job: its first look.
    pub when: When,
    /// The schedule and its rules, of a recurring job.
    pub recurrence: Option<Box<Recurrence>>,
    /// The first occurrence of the schedule, as far as the caller knows it.
    pub first: Option<Occurrence>,
    /// The longest time to wait for the first occurrence, as in [`Step::At`].
    pub span: Option<Duration>,
    /// If the key is taken.
    pub clash: Clash,
    /// Refuse a job that is overdue at the commit: [`Placed::Overdue`]. A time from the commit is
    /// never overdue.
    pub refuse_overdue: bool,
}

/// What becomes of a job after a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// The job is done, and leaves the store.
    Done,
    /// The same, and the store keeps it for a while.
    Kept(Box<Keep>),
    /// The job runs again, as a new run with its attempts at zero.
    Again(When),
    /// The attempt failed, and the next one comes after this time.
    Retry(Duration),
    /// The handler was not called: the next attempt comes after this time, and this one does not
    /// count. The error of the record is kept.
    Unbegun(Duration),
    /// The job is dead: kept, and not run again.
    Dead,
    /// The run did not take place: the job waits as before, and the attempt does not count.
    Unrun,
}

/// The end of a run.
#[derive(Clone, Debug)]
pub struct Settle {
    /// The condition.
    pub held: Held,
    /// What becomes of the job.
    pub verdict: Verdict,
    /// What is kept of the run, with the error of a failed one. `None`: it did not take place.
    pub record: Option<Box<LastRun>>,
}

/// The next look at a recurring job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// At this occurrence. With a span, the job is looked at again as soon as the occurrence lies
    /// further ahead than the span: the clock was set back.
    At {
        /// The occurrence.
        next: Occurrence,
        /// The longest time to wait for it.
        span: Option<Duration>,
    },
    /// After the end of the run (of a fixed delay).
    AfterRun,
    /// Never: the schedule has ended. The job leaves the store after its last run.
    Ended,
    /// Never: the rule of the schedule panicked. The recurring job is dead.
    Failed(Arc<str>),
}

/// The cursor of a recurring job moves on, and its runs are put, in the same commit.
#[derive(Clone, Debug)]
pub struct Advance {
    /// The recurring job.
    pub id: JobId,
    /// The condition: [`ClaimedSchedule::version`](super::ClaimedSchedule::version).
    pub version: u64,
    /// The next look.
    pub step: Step,
    /// The last nominal instant that was looked at: run, skipped or missed. Of a look that waits
    /// for none: the instant after which the next one was searched for.
    pub last: Option<Micros>,
    /// The occurrences to run, earliest first.
    pub runs: Vec<Occurrence>,
    /// How many occurrences were missed, and are not to run.
    pub missed: u64,
}

/// Binds a group to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The group.
    pub group: GroupId,
    /// The condition: [`Unbound::version`](super::Unbound::version).
    pub version: u64,
    /// The member.
    pub node: NodeId,
}

/// What becomes another one in a job that waits, or in a recurring job and its runs to come. What
/// is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// JSON text.
    pub payload: Option<Arc<str>>,
    /// The priority.
    pub priority: Option<i8>,
    /// The due time, of a job that does not recur.
    pub when: Option<When>,
    /// The last instant at which a run of the job begins; of a recurring job, [`Expiry::AfterDue`].
    /// `Some(None)`: any instant.
    pub expires: Option<Option<Expiry>>,
    /// Others of the job's [`Terms`], in this order.
    pub terms: Vec<Term>,
}

/// A change of the job with a key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Mutation {
    /// No attempt starts any more.
    Cancel,
    /// Another due time.
    Move(When),
    /// Due now.
    RunNow,
    /// Not looked at until resumed.
    Pause,
    /// Looked at again.
    Resume,
    /// The schedule of this value; the rules for late occurrences stay. Occurrences up to now do
    /// not run. The same schedule changes nothing.
    Reschedule(Box<Recurrence>),
    /// Other parts, of a job that waits or recurs.
    Edit(Box<Edit>),
    /// The next occurrence is computed again, after the same last one: with the zone data of now.
    Look,
    /// The schedule goes on from now: what it has missed does not run, and it waits for no instant
    /// of a clock that was ahead.
    Realign,
}

/// An operation of [`Store::apply`](super::Store::apply).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Op {
    /// A new job. Answer: [`Applied::Placed`].
    Put(Box<NewJob>),
    /// A change by key. Answer: [`Applied::Cancel`] or [`Applied::Change`].
    Key {
        /// The key.
        key: Arc<str>,
        /// The change.
        mutation: Mutation,
    },
    /// A change of the job with this number, as long as it has its key: no change of a run of a
    /// recurring job, or of a job that was replaced. Answer: as of [`Op::Key`].
    Job {
        /// The number.
        id: JobId,
        /// The change.
        mutation: Mutation,
    },
    /// Pauses or resumes all jobs of a handler, also those to come. Answer: [`Applied::Change`].
    PauseHandler {
        /// The name of the handler.
        name: Arc<str>,
        /// Pause; else resume.
        paused: bool,
    },
    /// The end of a run. Answer: [`Applied::Held`].
    Settle(Box<Settle>),
    /// What a run leaves to the next attempt, instead of what it has left before. Answer:
    /// [`Applied::Held`].
    Progress {
        /// The condition.
        held: Held,
        /// JSON text.
        progress: Arc<str>,
    },
    /// The next look at a recurring job. Answer: [`Applied::Held`].
    Advance(Box<Advance>),
    /// A dead job waits again, due now, with its attempts at zero. Answer: [`Applied::Revive`].
    Revive(JobId),
    /// A dead job leaves the store. Answer: [`Applied::Held`].
    Discard(JobId),
    /// A job that is to be begun at most once may have begun, in a past that the store has lost: it
    /// is not begun any more, and ends as [`RunEnd::CutOff`](super::RunEnd::CutOff) once it is due.
    /// Answer: [`Applied::Held`]; false: no such job waits.
    Doubt(JobId),
    /// A group is a member's from now on, or once its runs under way have ended. Answer:
    /// [`Applied::Held`].
    Bind(Bind),
}

/// The answer to a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use = "a put may have been refused"]
pub enum Placed {
    /// The job is there.
    Added(JobId),
    /// The job is there, and the former job of the key was cancelled.
    Replaced {
        /// The new job.
        id: JobId,
        /// Whether a run of the former job goes on. Its token was cancelled, and no attempt
        /// follows.
        was_running: bool,
    },
    /// The former job of the key stays: [`Clash::Keep`], or nothing differs.
    Kept(JobId),
    /// The former job of the key stays, with what the new one says: [`Clash::Update`].
    Updated(JobId),
    /// The former job of the key stays, and the new one was refused: [`Clash::Refuse`].
    Refused(JobId),
    /// The due time had passed, and the put asked for [refusal](crate::Put::refuse_overdue).
    Overdue,
    /// The job was to be put [after](crate::Put::after) another one which cannot be followed.
    Unfollowed {
        /// The place of that job among the keys, from 0.
        nth: usize,
        /// Why.
        why: Unfollowed,
    },
}

impl Placed {
    /// The new job, if there is one.
    #[must_use]
    pub fn added(self) -> Option<JobId> {
        match self {
            Self::Added(id) | Self::Replaced { id, .. } => Some(id),
            Self::Kept(_) | Self::Updated(_) | Self::Refused(_) | Self::Overdue | Self::Unfollowed { .. } => None,
        }
    }

    /// Whether the put was refused: the key was taken, the job overdue, or another one cannot be
    /// followed.
    #[must_use]
    pub fn is_refused(self) -> bool {
        matches!(self, Self::Refused(_) | Self::Overdue | Self::Unfollowed { .. })
    }
}

/// The answer to a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cancel {
    /// No attempt will start.
    Cancelled,
    /// A run goes on. Its token was cancelled, and no further attempt will start.
    Running,
    /// No job that waits or runs has the key.
    Absent,
}

/// The answer to a change by key, or by the name of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Change {
    /// Done.
    Changed,
    /// The job runs, and is as it was.
    Running,
    /// The job is recurring, and this change is for other jobs; or the other way round.
    WrongKind,
    /// No job that waits or runs has the key.
    Absent,
}

/// The answer to a revival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Revive {
    /// The job waits, and is due now.
    Revived,
    /// Another job has the key by now, and the dead one stays dead.
    Taken,
    /// There is no such dead job.
    Absent,
}

/// The answer to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Applied {
    /// To a put.
    Placed(Placed),
    /// To a cancel.
    Cancel(Cancel),
    /// To a change.
    Change(Change),
    /// To a conditional operation: whether the condition held.
    Held(bool),
    /// To a revival.
    Revive(Revive),
    /// To an operation with a value that no store accepts. Nothing was done for it.
    Invalid(Invalid),
}

/// What these operations are for a store.
pub(crate) fn kind_of(ops: &[Op]) -> StoreCallKind {
    if let [Op::Settle(_), ..] = ops { StoreCallKind::End } else { StoreCallKind::Change }
}
