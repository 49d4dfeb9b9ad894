//! Changes of parts of a job, and changes by its number.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use timerqueue::Due;

use super::{Scheduler, cancelled, changed};
use crate::debug::debug_of;
use crate::engine::Pending;
use crate::store::{Cancel, Change, Edit, Error, Expiry, JobId, Mutation, Op, Term};

/// Which job is to be changed.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Key(Arc<str>),
    Id(JobId),
}

impl Target {
    fn op(self, mutation: Mutation) -> Op {
        match self {
            Self::Key(key) => Op::Key { key, mutation },
            Self::Id(id) => Op::Job { id, mutation },
        }
    }
}

/// A change of parts of a job. Made by [`Scheduler::edit`] and [`ById::edit`].
///
/// # Examples
///
/// An address that was wrong, before the mail is sent:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime};
/// use timerqueue_scheduler::{Change, Scheduler};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: String, _| {}).start()?;
/// let hour = Duration::from_secs(3_600);
/// let _ = scheduler.put_to("mail", &"ann@exmaple.com").key("welcome").due(hour).send().wait()?;
/// let edit = scheduler.edit("welcome").payload(&"ann@example.com").priority(3).due(2 * hour).attempts(2);
/// assert_eq!(edit.send().wait()?, Change::Changed);
/// let job = scheduler.get("welcome").wait()?.unwrap();
/// assert_eq!((&*job.payload, job.priority, job.terms.attempts), ("\"ann@example.com\"", 3, Some(2)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "`send` changes the job"]
pub struct EditJob<'a> {
    scheduler: &'a Scheduler,
    target: Target,
    edit: Result<Edit, Error>,
}

impl<'a> EditJob<'a> {
    fn new(scheduler: &'a Scheduler, target: Target) -> Self {
        Self { scheduler, target, edit: Ok(Edit::default()) }
    }

    /// Sets a part. The first error stays.
    fn set<T>(mut self, part: Result<T, impl Into<Error>>, set: impl FnOnce(&mut Edit, T)) -> Self {
        match (&mut self.edit, part) {
            (Ok(edit), Ok(part)) => set(edit, part),
            (Ok(_), Err(error)) => self.edit = Err(error.into()),
            (Err(_), _) => {}
        }
        self
    }

    fn with(self, set: impl FnOnce(&mut Edit)) -> Self {
        self.set(Ok::<_, Error>(()), |edit, ()| set(edit))
    }

    fn term(self, term: Term) -> Self {
        self.with(|edit| edit.terms.push(term))
    }

    /// Another payload, which is written as JSON in this call. Of a recurring job, that of its runs
    /// to come.
    pub fn payload(self, payload: &(impl Serialize + ?Sized)) -> Self {
        let json = self.scheduler.core.encoded(payload).map_err(|reason| Error::NotSerializable { reason });
        self.set(json, |edit, json| edit.payload = Some(json.into()))
    }

    /// Another [priority](crate::Put::priority). Of a recurring job, that of its runs to come.
    pub fn priority(self, priority: i8) -> Self {
        self.with(|edit| edit.priority = Some(priority))
    }

    /// Another due time, as by [`Scheduler::move_to`]. Not of a recurring job:
    /// [`Change::WrongKind`], and nothing is changed.
    pub fn due(self, due: impl Into<Due>) -> Self {
        let when = self.scheduler.core.when(due.into());
        self.set(when, |edit, when| edit.when = Some(when))
    }

    /// Another [last instant](crate::Put::expires) at which the job begins. Not of a recurring job:
    /// [`Invalid::ExpiresWithSchedule`](crate::store::Invalid::ExpiresWithSchedule).
    pub fn expires(self, last: impl Into<Due>) -> Self {
        let when = self.scheduler.core.when(last.into());
        self.set(when, |edit, when| edit.expires = Some(Some(Expiry::At(when))))
    }

    /// As [`expires`](Self::expires), by a time after the due time, which may be another one
    /// by the same edit; of a recurring job, after that of each run to come. `None`: the job begins
    /// however late it is.
    pub fn expires_after(self, after_due: impl Into<Option<Duration>>) -> Self {
        let expires = after_due.into().map(Expiry::AfterDue);
        self.with(|edit| edit.expires = Some(expires))
    }

    /// Whether the job is begun [at most once](crate::Put::at_most_once) from now on: one that has
    /// begun before, and waits for another attempt, is dead instead.
    pub fn at_most_once(self, is: bool) -> Self {
        self.term(Term::AtMostOnce(is))
    }

    /// Another number of [attempts](crate::Put::attempts), those that have begun among them.
    /// `None`: as the handler says. Of a recurring job, this and the following terms are those of
    /// its runs to come.
    pub fn attempts(self, attempts: impl Into<Option<u32>>) -> Self {
        self.term(Term::Attempts(attempts.into()))
    }

    /// Another [limit](crate::Put::limit) of each run. `None`: as the handler says.
    pub fn limit(self, limit: impl Into<Option<Duration>>) -> Self {
        self.term(Term::Limit(limit.into()))
    }

    /// Another time for which the [key stays taken](crate::Put::unique_for). `None`: as the handler
    /// says.
    pub fn unique_for(self, time: impl Into<Option<Duration>>) -> Self {
        self.term(Term::UniqueFor(time.into()))
    }

    /// Another time for which the [done job is kept](crate::Put::kept_for). `None`: as the handler
    /// says.
    pub fn kept_for(self, time: impl Into<Option<Duration>>) -> Self {
        self.term(Term::KeptFor(time.into()))
    }

    /// Changes the job, in one step. A run under way goes on with what it has begun with:
    /// [`Change::Running`], and nothing is changed.
    ///
    /// # Errors
    ///
    /// [`Error::Closed`], [`Error::Invalid`], [`Error::NotSerializable`], [`Error::Store`].
    pub fn send(self) -> Pending<Change> {
        let op = self.edit.map(|edit| self.target.op(Mutation::Edit(Box::new(edit))));
        Pending::begun(op.map(|op| self.scheduler.mutate(op, changed)))
    }
}

debug_of!(EditJob<'_>, |edit| target: edit.target, edit: edit.edit);

/// Changes of the job with a number. Made by [`Scheduler::job`].
///
/// A key names whichever job has it by then, and a number one job alone. So what a person or a
/// program has seen a while ago is changed, or nothing. The job must have its key: a run of a
/// recurring job, a job that was replaced, and a dead one are [absent](Change::Absent) here. Dead
/// jobs are changed by [`Scheduler::revive`] and [`Scheduler::discard`].
///
/// # Errors
///
/// Of each method: [`Error::Closed`], [`Error::Invalid`], [`Error::Store`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime};
/// use timerqueue_scheduler::{Cancel, Scheduler};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
/// let put = || scheduler.put_to("mail", &1).key("a").due(Duration::from_secs(60)).send().wait();
/// let seen = put()?.added().unwrap();
/// clock.advance(Duration::from_secs(60)); // the job has run
/// let next = put()?.added().unwrap();
/// assert_eq!(scheduler.job(seen).cancel().wait()?, Cancel::Absent); // the next one stays
/// assert_eq!(scheduler.job(next).cancel().wait()?, Cancel::Cancelled);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
#[must_use = "a change is one of its methods"]
pub struct ById<'a> {
    scheduler: &'a Scheduler,
    id: JobId,
}

impl<'a> ById<'a> {
    fn change(self, mutation: Mutation) -> Pending<Change> {
        self.scheduler.mutate(Target::Id(self.id).op(mutation), changed)
    }

    /// As [`Scheduler::cancel`].
    pub fn cancel(self) -> Pending<Cancel> {
        self.scheduler.mutate(Target::Id(self.id).op(Mutation::Cancel), cancelled)
    }

    /// As [`Scheduler::move_to`].
    pub fn move_to(self, due: impl Into<Due>) -> Pending<Change> {
        Pending::begun(self.scheduler.core.when(due.into()).map(|when| self.change(Mutation::Move(when))))
    }

    /// As [`Scheduler::run_now`].
    pub fn run_now(self) -> Pending<Change> {
        self.change(Mutation::RunNow)
    }

    /// As [`Scheduler::pause`].
    pub fn pause(self) -> Pending<Change> {
        self.change(Mutation::Pause)
    }

    /// As [`Scheduler::resume`].
    pub fn resume(self) -> Pending<Change> {
        self.change(Mutation::Resume)
    }

    /// As [`Scheduler::edit`].
    pub fn edit(self) -> EditJob<'a> {
        EditJob::new(self.scheduler, Target::Id(self.id))
    }
}

debug_of!(ById<'_>, |job| id: job.id);

impl Scheduler {
    /// Other parts for a job that waits, or for a recurring job and its runs to come: payload,
    /// priority, due time, terms. Handler and group of a job stay.
    pub fn edit(&self, key: &str) -> EditJob<'_> {
        EditJob::new(self, Target::Key(key.into()))
    }

    /// Changes of the job with this number, and of no other.
    pub fn job(&self, id: JobId) -> ById<'_> {
        ById { scheduler: self, id }
    }
}
