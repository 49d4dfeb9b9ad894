//! The end of a scheduler.
//!
//! Ground rules. A close forbids further runs at once, and is complete when no run is left, or at
//! its limit. No close waits for a run whose code has called close: so runs that close do not wait
//! for each other. The timer of the limit owns what completes the close, and does so when it is
//! dropped too, as by a runtime that ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use timerqueue::OnceTimer;

use super::core::{Core, LONGEST, surely};
use super::pending::{Completer, Pending};
use super::runs::inside;
use crate::store::{Counts, Error, JobId, Reply, Scan, Scanned};
use crate::unwind::quietly;

/// What was left when a scheduler closed. Made by [`Scheduler::close`](crate::Scheduler::close).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Runs that go on: their handlers had not returned within the limit. Their tokens were
    /// cancelled.
    pub running: Vec<StillRunning>,
    /// The jobs of the store. In memory they are lost when the last handle of the store and of the
    /// scheduler is dropped; until then, [`list`](crate::Scheduler::list) has them.
    pub jobs: Counts,
}

impl Report {
    /// Whether no handler ran at the end of the close.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.running.is_empty()
    }
}

/// A run that goes on after a close.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StillRunning {
    /// The number of the job.
    pub id: JobId,
    /// The key of the job.
    pub key: Arc<str>,
    /// The name of the handler.
    pub name: Arc<str>,
    /// For how long it had run.
    pub since: Duration,
}

/// A close that waits.
pub(super) struct Closer {
    number: u64,
    completer: Completer<Report>,
    limit: Option<OnceTimer>,
}

impl Core {
    pub(crate) fn close(self: &Arc<Self>, limit: Duration) -> Pending<Report> {
        let (completer, pending) = Pending::new(&self.runtime);
        let number = self.keys.fetch_add(1, Ordering::Relaxed);
        self.stop();
        {
            let mut state = self.state.lock();
            for run in inside(self) {
                if let Some(run) = state.runs.get_mut(&run) {
                    run.closing = true;
                }
            }
            state.closers.push(Closer { number, completer, limit: None });
        }
        if limit.is_zero() || self.runtime.is_shut_down() {
            self.limit_passed(number);
            return pending;
        }
        let core = Arc::clone(self);
        let passes = surely(move || core.limit_passed(number)); // finds no closer if the close was earlier
        let timer = OnceTimer::on(&self.runtime, limit.min(LONGEST), move |_| passes());
        let unused = {
            let mut state = self.state.lock();
            match state.closers.iter_mut().find(|closer| closer.number == number) {
                Some(closer) => {
                    closer.limit = Some(timer);
                    None
                }
                None => Some(timer), // complete already
            }
        };
        drop(unused);
        self.close_if_done();
        pending
    }

    /// No further run begins, and no further job is accepted.
    pub(crate) fn stop(self: &Arc<Self>) {
        let first = !std::mem::replace(&mut self.state.lock().handshake.closing, true);
        if first {
            self.disarm();
            self.give_up_waiting(None);
            self.end_waits();
            self.refuse_waiting();
            self.store.leave(self.settings.owner);
            quietly(|| _ = self.closing.cancel());
        }
    }

    /// A scheduler whose handlers run on this runtime of tokio closes when the runtime ends.
    #[cfg(feature = "tokio")]
    pub(crate) fn stop_with(self: &Arc<Self>, tokio: &tokio::runtime::Handle) {
        // Made before the task: a runtime that has ended drops the task at once.
        let (core, closing) = (Arc::downgrade(self), self.closing.token());
        let ends = surely(move || super::core::if_alive(&core, |core| core.stop()));
        tokio.spawn(async move {
            closing.cancelled().await;
            ends();
        });
    }

    /// Completes the closes, if all awaited runs have ended.
    pub(super) fn close_if_done(self: &Arc<Self>) {
        let closers = {
            let mut state = self.state.lock();
            if state.closers.is_empty() || state.handshake.claiming || state.runs.values().any(|run| !run.closing) {
                return;
            }
            std::mem::take(&mut state.closers)
        };
        for closer in closers {
            self.complete(closer);
        }
    }

    /// The limit of a close has passed: asks the remaining runs to stop.
    fn limit_passed(self: &Arc<Self>, number: u64) {
        let (closer, sources) = {
            let mut state = self.state.lock();
            let Some(at) = state.closers.iter().position(|closer| closer.number == number) else { return };
            let sources: Vec<_> = state.runs.values().map(|run| Arc::clone(&run.source)).collect();
            (state.closers.swap_remove(at), sources)
        };
        for source in sources {
            quietly(|| _ = source.cancel());
        }
        self.complete(closer);
    }

    fn complete(self: &Arc<Self>, closer: Closer) {
        let Closer { completer, limit, .. } = closer;
        drop(limit);
        let running: Vec<StillRunning> = {
            let state = self.state.lock();
            let still = |(&(id, _), run): (&super::core::RunKey, &super::core::Live)| StillRunning {
                id,
                key: Arc::clone(&run.key),
                name: Arc::clone(&self.settings.handlers[run.handler].name),
                since: self.runtime.elapsed(run.begun),
            };
            state.runs.iter().map(still).collect()
        };
        let reply = Reply::new(move |scanned: Result<Scanned, Error>| {
            let jobs = match scanned {
                Ok(Scanned::Counts(counts)) => counts,
                _ => Counts::default(),
            };
            completer.complete(Ok(Report { running, jobs }));
        });
        self.store.scan(Scan::Counts, reply);
    }
}
