//! What the operations do, for each store that keeps its rows itself.
//!
//! Ground rules. [`Rows`] is the storage: a row by its number, the indexes, the counters.
//! [`Changes`], [`Claims`], [`Bindings`] and [`Runs`] are what the operations, the claims and the
//! settles mean, written once, so that two stores cannot differ. A row is changed by
//! [`Rows::edit`], [`Rows::insert`] and [`Rows::take_out`] alone, and each keeps the indexes right.
//! A storage that fails remembers its failure, answers as if it was empty, and undoes the commit.

mod claim;
mod follow;
mod group;
mod keys;
mod look;
mod pace;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod places;
mod runs;
mod stored;

use std::collections::VecDeque;
use std::fmt::Debug;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Finished, History, JobId, JobInfo, Keep, LastRun, LinkEnds, MAX_ERROR_BYTES, Micros, NewJob, Notice, Occurrence,
    Predecessor, Query, Recurrence, RunEnd, State, Tally, Terms, Until,
};

pub(crate) use self::claim::Claims;
pub(crate) use self::follow::{Follows, end_of_leaving};
pub(crate) use self::group::{Bindings, Group, KEPT_MICROS, Member, Tie};
pub(crate) use self::keys::Changes;
pub(crate) use self::look::{first_occurrence, look};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use self::places::{Dealer, merged};
pub(crate) use self::runs::Runs;

/// The most dead jobs kept; the first to have died makes way.
pub(crate) const MOST_DEAD: u64 = 100_000;

/// What is the same in all commits of a storage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoreFacts {
    /// The process of the commits, of a store on a file.
    pub(crate) process: i64,
    /// How long the store itself keeps done jobs.
    pub(crate) history: Option<History>,
    /// For how long no other scheduler looks at a recurring job that one looks at. `None`: until
    /// that one has ended.
    pub(crate) look_time: Option<Duration>,
}

/// The storage of a commit.
pub(crate) trait Rows: LinkRows + GroupRows {
    /// The clock of this commit, rounded up: times from now are added to this reading, and so are
    /// not shortened (J1).
    fn up(&self) -> Micros;
    fn facts(&self) -> StoreFacts;
    fn effects(&mut self) -> &mut Effects;
    /// A row by its number.
    fn row(&mut self, id: JobId) -> Option<&Row>;
    /// The job that holds the key.
    fn holder(&mut self, key: &str) -> Option<JobId>;
    /// Puts a plain job whose key is free. `None`: nothing was put; another way finds out why.
    fn insert_plain(&mut self, _new: &NewJob, _due: Micros) -> Option<JobId> {
        None
    }
    /// Puts a new row.
    fn insert(&mut self, row: Box<Row>);
    /// Changes a row. `None`: there is no such row.
    fn edit<R>(&mut self, id: JobId, change: impl FnOnce(&mut Row) -> R) -> Option<R>;
    /// Changes what is written once for most rows: handler, payload and group.
    fn rewrite(&mut self, id: JobId, kind: usize, payload: &Arc<str>, tie: Option<Box<Tie>>);
    /// Takes a row out. It is dropped after the commit.
    fn take_out(&mut self, id: JobId);
    /// Takes a row out. Of a dead recurring job its runs go too, unless they have begun; then no
    /// attempt follows.
    fn remove(&mut self, id: JobId) {
        let has_runs = |row: &Row| {
            row.recurring.as_ref().is_some_and(|recurring| !(recurring.live.is_empty() && recurring.queued.is_empty()))
        };
        let found = self.row(id).map(|row| (has_runs(row), row.terms.kept_for.is_some()));
        let (has_runs, is_awaited) = found.unwrap_or_default();
        if is_awaited {
            self.effects().ended.push(id);
        }
        if has_runs {
            let runs = self.edit(id, |row| {
                let runs =
                    row.recurring.as_mut().map(|recurring| (take(&mut recurring.live), take(&mut recurring.queued)));
                runs.unwrap_or_default()
            });
            for run in runs.into_iter().flat_map(|(live, queued)| live.into_iter().chain(queued)) {
                if self.row(run).is_some_and(|row| row.state == State::Running) {
                    self.edit(run, |row| row.cancelled = true);
                } else {
                    self.take_out(run);
                }
            }
        }
        self.take_out(id);
    }
    fn next_id(&mut self) -> JobId;
    /// The number of a handler, made at the first call.
    fn kind(&mut self, name: &Arc<str>) -> usize;
    /// The number of a handler that has had a job or a pause.
    fn known(&mut self, name: &str) -> Option<usize>;
    fn name_of(&mut self, kind: usize) -> Arc<str>;
    fn is_paused(&mut self, kind: usize) -> bool;
    fn set_paused(&mut self, kind: usize, paused: bool);
    /// The first job of the handler with a wake instant, among those of a priority.
    fn first_job(&mut self, kind: usize, priority: i8) -> Option<(Micros, JobId)>;
    /// The priorities, other than zero, of the jobs of the handler that wait. There may be more
    /// here than there are jobs of.
    fn priorities(&mut self, kind: usize) -> Vec<i8>;
    /// A job of the handler has this priority, which is not zero.
    fn note_priority(&mut self, _kind: usize, _priority: i8) {}
    /// The first wake instant of a job of the handler.
    fn first_wake(&mut self, kind: usize) -> Option<Micros> {
        let mut priorities = self.priorities(kind);
        priorities.push(0);
        priorities.into_iter().filter_map(|priority| Some(self.first_job(kind, priority)?.0)).min()
    }
    /// The first recurring job of the handler with a wake instant.
    fn first_schedule(&mut self, kind: usize) -> Option<(Micros, JobId)>;
    /// Rows that wait longer than their spans: the clock was set back.
    fn behind(&mut self, now: Micros, at_most: usize) -> Vec<JobId>;
    /// Takes a dead row away that cannot be read.
    fn discard_unreadable(&mut self, _id: JobId) -> bool {
        false
    }
    /// Keeps a done job, which is about to leave.
    fn keep(&mut self, done: Finished);
    /// The last one of the done jobs with this key that are kept, unless a later job with it is
    /// dead.
    fn last_done(&mut self, key: &str) -> Option<JobId>;
    /// The done job whose key is still taken.
    fn remembered(&mut self, key: &str, now: Micros) -> Option<JobId>;
    /// A run has ended: a store that counts by minutes adds it to the minute and the handler (J17).
    fn ended(&mut self, _kind: usize, _minute: i64, _record: &LastRun) {}
    /// The counted runs of a handler. From now to the end of the commit no other one counts them.
    fn counted(&mut self, kind: usize) -> u64;
    /// When the rate of a handler allows a full burst again.
    fn full_at(&mut self, kind: usize) -> Option<Micros>;
    fn set_full_at(&mut self, kind: usize, at: Micros);
    /// The number of the next death. Called once the dead of before have made way.
    fn next_death(&mut self) -> u64;
}

/// The links between followers and the jobs that they wait for.
pub(crate) trait LinkRows {
    /// A job follows others: their links.
    fn link(&mut self, follower: JobId, links: &[Predecessor]);
    /// How many jobs were put after this one.
    fn followers_of(&mut self, id: JobId) -> u64;
    /// Some of the followers whose predecessors have ended since this was asked.
    fn with_new_ends(&mut self) -> Vec<JobId>;
    /// The ends of the predecessors of a follower.
    fn ends_of(&mut self, follower: JobId) -> LinkEnds;
}

/// The groups, and the members to which they are bound.
pub(crate) trait GroupRows {
    /// The number of a live member.
    fn member_of(&mut self, owner: u64) -> Option<u64>;
    /// The members, dead ones too.
    fn members(&mut self) -> Vec<Member>;
    /// The number of the group with this text, made at the first call.
    fn group_of(&mut self, kind: usize, text: &Arc<str>, now: Micros) -> u64;
    fn group(&mut self, id: u64) -> Option<Group>;
    /// Changes a group, and settles it.
    fn edit_group(&mut self, id: u64, change: impl FnOnce(&mut Group));
    /// The runs of a group.
    fn runs_of(&mut self, group: u64) -> u64;
    /// The first waiting job of a group.
    fn first_of(&mut self, group: u64) -> Option<(Micros, JobId)>;
    /// The open groups of these handlers that are bound to this member (zero: to none) and have
    /// due jobs: wake instant, number and handler, in order.
    fn due_groups(&mut self, kinds: &[usize], member: u64, now: Micros, at_most: usize) -> Vec<(Micros, u64, usize)>;
    /// The first wake instant among the open groups of these handlers: of this member and of
    /// none; without a member, of all. With an instant, the first one after it.
    fn next_group(&mut self, kinds: &[usize], of: Option<(u64, Micros)>) -> Option<Micros>;
    /// How many groups are bound to a member.
    fn bound_to(&mut self, member: u64) -> u64;
    /// Forgets some of the groups whose last job has long gone. A store that looks at them at
    /// other times does nothing.
    fn forget_idle(&mut self, _now: Micros) {}
    /// Settles some of the groups of dead members. True: there are more.
    fn unbind_some(&mut self) -> bool;
}

/// A job, or a recurring job.
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) id: JobId,
    pub(crate) key: Arc<str>,
    pub(crate) kind: usize,
    pub(crate) payload: Arc<str>,
    pub(crate) state: State,
    pub(crate) paused: bool,
    /// Of a running job: no attempt follows.
    pub(crate) cancelled: bool,
    /// Of a running job: a transaction of the user's has ended the run as done.
    pub(crate) ended: Option<Box<Ended>>,
    pub(crate) due: Micros,
    /// The longest time to wait for `due`, in microseconds: more means that the clock was set back.
    pub(crate) span: Option<i64>,
    pub(crate) nominal: Option<Micros>,
    pub(crate) parent: Option<JobId>,
    pub(crate) attempt: u32,
    /// How many of the attempts the end of the process has cut off.
    pub(crate) crashes: u32,
    /// The last ones of these in a row, as far as they speak against the job: see
    /// [`take_back_run`](Bindings::take_back_run).
    pub(crate) suspicion: u32,
    /// Counts claims, for [`Held`](crate::store::Held).
    pub(crate) claims: u64,
    /// Counts the further runs at a handler's request.
    pub(crate) turn: u64,
    pub(crate) owner: u64,
    /// The process that runs the job or looks at it, of a store on a file.
    pub(crate) process: i64,
    /// Of a recurring job during a look: when another scheduler may look.
    pub(crate) lease: Option<Micros>,
    /// Whether the key is this row's.
    pub(crate) holds_key: bool,
    pub(crate) died: u64,
    pub(crate) error: Option<Arc<str>>,
    pub(crate) last: Option<Box<LastRun>>,
    /// The last failed attempts (J18). A box, since most rows have none.
    pub(crate) failures: Option<Box<Failures>>,
    pub(crate) recurring: Option<Box<Recurring>>,
    pub(crate) tie: Option<Box<Tie>>,
    /// Of a running job: it has a place among those of all members.
    pub(crate) counted: bool,
    /// Of a recurring job, that of its runs.
    pub(crate) priority: i8,
    /// The last instant at which a run begins; of a recurring job, the time from the due time of
    /// each run to that. In microseconds.
    pub(crate) expires: Option<i64>,
    /// What an attempt has written down for the next one, as JSON text.
    pub(crate) progress: Option<Arc<str>>,
    /// The context of the trace in which the job was put.
    pub(crate) trace: Option<Arc<str>>,
    /// When the job was put. `None`: by a version that did not note it.
    pub(crate) added: Option<Micros>,
    /// When the last run began.
    pub(crate) begun: Option<Micros>,
    /// Of a recurring job, those of its runs.
    pub(crate) terms: Terms,
    /// Of a job that was put after others: until when it waits for them.
    pub(crate) until: Option<Until>,
    /// Other jobs were put after it.
    pub(crate) followed: bool,
    /// What the job waited for cannot come: it is not run, and dies with its claim.
    pub(crate) blocked: bool,
}

/// The index that has a row with a wake instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Of its handler and its priority.
    Priority(i8),
    /// Of its group.
    Group(u64),
}

/// The end of a run, by a transaction of the user's.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) record: LastRun,
    pub(crate) keep: Option<Keep>,
}

/// Failed attempts, the latest last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures {
    pub(crate) attempts: Vec<LastRun>,
}

/// What a recurring job has beside.
///
/// Its form is stored, in the order of the fields.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Recurring {
    #[serde(flatten, with = "stored::StoredRecurrence")]
    pub(crate) recurrence: Recurrence,
    /// Counts the changes of `next`.
    pub(crate) version: u64,
    /// The awaited occurrence.
    pub(crate) next: Option<Occurrence>,
    /// When to look, independent of the job's due time. The span of the row is zero then, so a look
    /// that was due stays due if the clock is set back.
    pub(crate) look: Option<Micros>,
    /// A scheduler looks: not again until then, or until the scheduler has ended.
    pub(crate) looked: bool,
    /// Or the instant after which the first occurrence was searched for.
    pub(crate) last_nominal: Option<Micros>,
    /// The greatest `last_nominal` before it went back: the clock had been ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reached: Option<Micros>,
    /// The end of the last run of a fixed delay.
    pub(crate) ended: Option<Micros>,
    /// Runs waiting or running. They are rows of their own.
    #[serde(skip)]
    pub(crate) live: Vec<JobId>,
    /// Runs waiting for the end of the live run, in order of their puts.
    #[serde(skip)]
    pub(crate) queued: VecDeque<JobId>,
    /// No occurrence follows: the row leaves with the last run.
    pub(crate) ending: bool,
    #[serde(flatten)]
    pub(crate) tally: Tally,
}

/// A clock that shows less than the last nominal instant by more than this was wrong before, and
/// the schedule goes on from what it shows now. After a smaller step back no occurrence comes
/// twice. Cron daemons tell a correction from a step of an hour in the same way.
pub(crate) const WRONG_BY: Duration = Duration::from_secs(3 * 3_600);

/// A span in microseconds, rounded up.
pub(crate) fn span_of(longest: Duration) -> i64 {
    i64::try_from(longest.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// The text of an error, as it is kept.
pub(crate) fn kept_error(error: Arc<str>) -> Arc<str> {
    match error.len() {
        bytes if bytes > MAX_ERROR_BYTES => format!("{} … ({bytes} bytes)", cut(&error, MAX_ERROR_BYTES)).into(),
        _ => error,
    }
}

/// The beginning of a text, at most this number of bytes.
fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or_default()]
}

impl Row {
    /// Keeps a failed attempt.
    pub(crate) fn remember(&mut self, record: &LastRun) {
        if !matches!(record.end, RunEnd::Failed | RunEnd::Dead) {
            return;
        }
        let mut failure = record.clone();
        failure.error = failure.error.map(|error| match error.len() {
            bytes if bytes > JobInfo::LONGEST_FAILURE => cut(&error, JobInfo::LONGEST_FAILURE).into(),
            _ => error,
        });
        let attempts = &mut self.failures.get_or_insert_default().attempts;
        attempts.push(failure);
        let surplus = attempts.len().saturating_sub(JobInfo::MOST_FAILURES);
        attempts.drain(..surplus);
    }

    /// An attempt has ended, if there is a record.
    pub(crate) fn end_with(&mut self, record: Option<Box<LastRun>>) {
        if let Some(record) = record {
            self.remember(&record);
            self.last = Some(record);
        }
    }

    /// Whether the job waits after a failed attempt.
    pub(crate) fn is_failing(&self) -> bool {
        self.state == State::Waiting && self.error.is_some()
    }

    /// When to look at the row.
    pub(crate) fn wake(&self) -> Option<Micros> {
        match (self.state, &self.recurring) {
            (State::Recurring, Some(recurring)) if recurring.looked => self.lease,
            (State::Recurring, Some(recurring)) if !self.paused => {
                recurring.look.or(recurring.next.map(|next| next.due))
            }
            (State::Waiting, _) if !self.paused => Some(self.due),
            _ => None,
        }
    }

    pub(crate) fn lane(&self) -> Lane {
        match (self.state, &self.tie) {
            (State::Waiting, Some(tie)) => Lane::Group(tie.group),
            (State::Waiting, None) => Lane::Priority(self.priority),
            _ => Lane::Priority(0),
        }
    }

    /// Whether a recurring job waits for an occurrence though there are earlier ones.
    pub(crate) fn is_ahead(&self, now: Micros) -> bool {
        let is_ahead = |recurring: &Recurring| {
            let is_civil = recurring.recurrence.schedule.period().is_none();
            recurring.next.is_some() && is_civil && recurring.last_nominal > Some(now)
        };
        self.state == State::Recurring && self.recurring.as_deref().is_some_and(is_ahead)
    }

    /// The last reading of the clock before which the clock must have been set back.
    pub(crate) fn earliest(&self) -> Option<i64> {
        let looked = self.recurring.as_ref().is_some_and(|recurring| recurring.looked);
        let waits = matches!(self.state, State::Waiting | State::Recurring) && !looked;
        Some(self.wake()?.as_i64().saturating_sub(self.span.filter(|_| waits)?))
    }

    /// Whether the row waits longer than its span.
    pub(crate) fn is_behind(&self, now: Micros) -> bool {
        self.earliest() > Some(now.as_i64())
    }

    /// When the job is due, as users see it.
    fn due(&self) -> Option<Micros> {
        match &self.recurring {
            _ if self.state == State::Dead => None,
            Some(recurring) => recurring.next.map(|next| next.due),
            None => Some(self.due),
        }
    }

    /// The place in the order of due times, as a cursor of a list has it.
    pub(crate) fn due_key(&self) -> i64 {
        self.due().map_or(i64::MAX, Micros::as_i64)
    }

    /// The row as users see it.
    pub(crate) fn info(&self, name: &Arc<str>) -> JobInfo {
        let recurring = self.recurring.as_deref();
        let (recurs, expires) = (recurring.is_some(), self.expires);
        let nominal = match recurring {
            Some(recurring) => recurring.next.map(|next| next.nominal),
            None => self.nominal,
        };
        JobInfo {
            id: self.id,
            key: Arc::clone(&self.key),
            group: self.tie.as_ref().map(|tie| Arc::clone(&tie.text)),
            priority: self.priority,
            expires: expires.filter(|_| !recurs && !self.blocked).map(|at| Micros::new(at).to_system()),
            expires_after: expires.filter(|_| recurs).map(|n| Duration::from_micros(n.unsigned_abs())),
            terms: self.terms,
            until: self.until,
            predecessors: Vec::new(),
            progress: self.progress.clone(),
            name: Arc::clone(name),
            trace: self.trace.clone(),
            payload: Arc::clone(&self.payload),
            state: self.state,
            paused: self.paused,
            added: self.added.map(Micros::to_system),
            begun: self.begun.filter(|_| self.state == State::Running).map(Micros::to_system),
            node: None,
            due: self.due().map(Micros::to_system),
            nominal: nominal.map(Micros::to_system),
            parent: self.parent,
            attempt: self.attempt,
            crashes: self.crashes,
            error: self.error.clone(),
            last: self.last.clone(),
            failures: self.failures.as_ref().map(|failures| failures.attempts.clone()).unwrap_or_default(),
            recurrence: recurring.map(|recurring| Box::new(recurring.recurrence.clone())),
            looks: recurring.is_some_and(|recurring| recurring.look.is_some() && !recurring.ending),
            after: recurring.and_then(|recurring| recurring.last_nominal).map(Micros::to_system),
            tally: recurring.map(|recurring| recurring.tally).unwrap_or_default(),
        }
    }
}

/// Work for the time after unlocking.
#[derive(Debug, Default)]
pub(crate) struct Effects {
    /// The first wake instant given to a row.
    wake: Option<Micros>,
    /// The first one that no single node can be told of: a place among those of all nodes is free,
    /// or a member may claim other rows now.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))] // the other stores tell all
    pub(crate) for_all: Option<Micros>,
    pub(crate) cancelled: Vec<JobId>,
    /// Jobs whose ends may be awaited.
    pub(crate) ended: Vec<JobId>,
    /// A run has begun of a job that is begun at most once: it is not known to have begun before
    /// this commit is on the disk.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code))] // other stores flush each commit, or none
    pub(crate) begins_once: bool,
    /// Dropped after unlocking: each may have a rule of a user, whose destructor is the user's
    /// code.
    garbage: Vec<Box<dyn Debug + Send>>,
}

impl Effects {
    pub(crate) fn wake(&mut self, at: Option<Micros>) {
        self.wake = [self.wake, at].into_iter().flatten().min();
    }

    /// As [`wake`](Self::wake), for all nodes.
    pub(crate) fn wake_all(&mut self, at: Micros) {
        self.wake(Some(at));
        self.for_all = self.for_all.into_iter().chain([at]).min();
    }

    /// A row was written. If it waits longer than its span, the clock was set back while it was
    /// paused or looked at, and a claim looks at once.
    pub(crate) fn notice_step(&mut self, row: &Row, now: Micros) {
        if row.is_behind(now) {
            self.wake(Some(now));
        }
    }

    pub(crate) fn drop_later(&mut self, garbage: Box<impl Debug + Send + 'static>) {
        self.garbage.push(garbage);
    }

    pub(crate) fn notices(&self) -> impl Iterator<Item = Notice> + '_ {
        let cancelled = self.cancelled.iter().copied().map(Notice::Cancelled);
        let ended = self.ended.iter().map(|&id| Notice::Ended(Some(id)));
        self.wake.map(|at| Notice::Wake { at }).into_iter().chain(cancelled).chain(ended)
    }
}

impl Query {
    /// Whether the list has this job, as far as the handler's name and the bounds go for
    /// themselves.
    pub(crate) fn takes(&self, row: &Row) -> bool {
        self.state.is_none_or(|state| state == row.state)
            && (!self.failing || row.is_failing())
            && self.prefix.as_ref().is_none_or(|prefix| row.key.starts_with(&**prefix))
    }
}
