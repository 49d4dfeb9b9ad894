//! Waits for the ends of jobs.
//!
//! Ground rules. A wait looks at its job when it begins, when the store tells of an end, and at its
//! limit. One look of a wait is under way at a time; a notice meanwhile asks for another one. So a
//! notice that comes after a look has begun is not lost. A notice that names no job is one question
//! for all jobs that are awaited, and a look for those that have ended. No thread polls. The timer
//! of the limit owns what ends the wait, and does so when it is dropped too, as by a runtime that
//! ends. Waits are completed with no lock held.

use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use timerqueue::OnceTimer;

use super::core::{Core, LONGEST, if_alive, surely};
use super::operations::wrong_answer;
use super::pending::{Completer, Pending};
use crate::store::{Error, FinishedJob, JobId, JobInfo, Reply, Scan, Scanned, State};

/// What a wait for the end of a job has found: [`Scheduler::wait_for`](crate::Scheduler::wait_for).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobEnd {
    /// The job is done, and its store keeps it.
    Done(Box<FinishedJob>),
    /// The job is dead.
    Dead(Box<JobInfo>),
    /// The job has left the store: it was cancelled, replaced or discarded, or is done and not
    /// kept.
    Gone,
    /// The job had not ended at the limit.
    Pending,
}

#[derive(Default)]
pub(super) struct Waits {
    /// By job and number.
    one: BTreeMap<(JobId, u64), Wait>,
    /// Which jobs have ended is asked for, and is to be asked for again.
    asks: bool,
    asks_again: bool,
}

#[cfg(test)]
impl Waits {
    pub(super) fn count(&self) -> usize {
        self.one.len()
    }
}

struct Wait {
    completer: Completer<JobEnd>,
    limit: Option<OnceTimer>,
    /// A look is under way.
    looks: bool,
    /// Another one follows.
    again: bool,
    /// The limit has passed: the next look is the last one.
    is_over: bool,
}

impl Core {
    pub(crate) fn wait_for(self: &Arc<Self>, id: JobId, limit: Duration) -> Pending<JobEnd> {
        let (completer, pending) = Pending::new(&self.runtime);
        let key = (id, self.keys.fetch_add(1, Ordering::Relaxed));
        let wait = Wait { completer, limit: None, looks: false, again: false, is_over: false };
        self.waits.lock().one.insert(key, wait);
        if limit.is_zero() || self.is_closing() || self.runtime.is_shut_down() {
            self.look_for(key, true);
            return pending;
        }
        self.look_for(key, false);
        let core = Arc::downgrade(self);
        let passes = surely(move || if_alive(&core, |core| core.look_for(key, true)));
        let timer = OnceTimer::on(&self.runtime, limit.min(LONGEST), move |_| passes());
        let unused = match self.waits.lock().one.get_mut(&key) {
            Some(wait) => wait.limit.replace(timer),
            None => Some(timer), // complete already
        };
        drop(unused);
        pending
    }

    /// A job may have ended.
    pub(super) fn may_have_ended(self: &Arc<Self>, id: JobId) {
        self.look_for_each((id, 0)..=(id, u64::MAX), false);
    }

    /// Each wait ends.
    pub(super) fn end_waits(self: &Arc<Self>) {
        self.look_for_each(.., true);
    }

    fn look_for_each(self: &Arc<Self>, range: impl RangeBounds<(JobId, u64)>, is_over: bool) {
        let keys: Vec<_> = self.waits.lock().one.range(range).map(|(&key, _)| key).collect();
        keys.into_iter().for_each(|key| self.look_for(key, is_over));
    }

    /// Any job may have ended.
    pub(super) fn any_may_have_ended(self: &Arc<Self>) {
        let (ids, given_up) = {
            let mut waits = self.waits.lock();
            if waits.one.is_empty() || std::mem::replace(&mut waits.asks, true) {
                waits.asks_again = true;
                return;
            }
            waits.asks_again = false;
            let one = &mut waits.one;
            let is_given_up = |(&key, wait): (&_, &Wait)| (!wait.completer.is_awaited()).then_some(key);
            let given_up: Vec<_> = one.iter().filter_map(is_given_up).collect();
            let given_up: Vec<_> = given_up.iter().filter_map(|key| one.remove(key)).collect();
            let mut ids: Vec<JobId> = one.keys().map(|&(id, _)| id).collect();
            ids.dedup();
            (ids, given_up)
        };
        drop(given_up); // their timers look for their waits
        let (core, all) = (Arc::clone(self), ids.clone());
        let reply = Reply::new(move |scanned| {
            let ended = if let Ok(Scanned::Ended(ended)) = scanned { ended } else { all };
            let again = {
                let mut waits = core.waits.lock();
                waits.asks = false;
                waits.asks_again
            };
            ended.into_iter().for_each(|id| core.may_have_ended(id));
            if again {
                core.any_may_have_ended();
            }
        });
        self.store.scan(Scan::Ended(ids), reply);
    }

    /// `is_over`: for the last time.
    fn look_for(self: &Arc<Self>, key: (JobId, u64), is_over: bool) {
        {
            let mut waits = self.waits.lock();
            let Some(wait) = waits.one.get_mut(&key) else { return };
            wait.is_over |= is_over;
            if std::mem::replace(&mut wait.looks, true) {
                wait.again = true;
                return;
            }
        }
        let core = Arc::clone(self);
        let reply = Reply::new(move |scanned| match scanned {
            Ok(Scanned::Jobs(jobs)) => match jobs.into_iter().next() {
                None => core.look_for_done(key),
                Some(job) if job.state == State::Dead => core.looked(key, Some(Ok(JobEnd::Dead(Box::new(job))))),
                Some(_) => core.looked(key, None),
            },
            Ok(_) => core.looked(key, Some(Err(wrong_answer()))),
            Err(error) => core.could_not_look(key, error),
        });
        self.store.scan(Scan::Job(key.0), reply);
    }

    /// The job has left. Its done row came in the same commit, so it is there by now.
    fn look_for_done(self: &Arc<Self>, key: (JobId, u64)) {
        let core = Arc::clone(self);
        let reply = Reply::new(move |scanned| match scanned {
            Ok(Scanned::Finished(Some(job))) => core.looked(key, Some(Ok(JobEnd::Done(job)))),
            Ok(Scanned::Finished(None)) => core.looked(key, Some(Ok(JobEnd::Gone))),
            Ok(_) => core.looked(key, Some(Err(wrong_answer()))),
            Err(error) => core.could_not_look(key, error),
        });
        self.store.scan(Scan::Finished(key.0), reply);
    }

    /// A store that does not answer now may do so before the limit.
    fn could_not_look(self: &Arc<Self>, key: (JobId, u64), error: Error) {
        let is_over = self.waits.lock().one.get(&key).is_some_and(|wait| wait.is_over && !wait.again);
        self.looked(key, (is_over || error == Error::Closed).then_some(Err(error)));
    }

    fn looked(self: &Arc<Self>, key: (JobId, u64), mut end: Option<Result<JobEnd, Error>>) {
        let ended = {
            let mut waits = self.waits.lock();
            let Some(wait) = waits.one.get_mut(&key) else { return };
            wait.looks = false;
            let again = std::mem::take(&mut wait.again);
            let is_awaited = wait.completer.is_awaited();
            if end.is_none() && wait.is_over && !again {
                end = Some(Ok(JobEnd::Pending));
            }
            if end.is_some() || !is_awaited {
                waits.one.remove(&key)
            } else if again {
                None
            } else {
                return;
            }
        };
        match ended {
            Some(Wait { completer, limit, .. }) => {
                completer.complete(end.unwrap_or(Ok(JobEnd::Pending)));
                drop(limit);
            }
            None => self.look_for(key, false),
        }
    }
}
