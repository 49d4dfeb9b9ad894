//! How long the answers of a store take, by kind of call.
//!
//! Ground rules. An answer is timed on the runtime's clock, where it is given: before the code
//! behind it runs. A reply that was dropped is no answer, and is not timed.

use std::sync::Arc;

use parking_lot::Mutex;
use timerqueue::{Runtime, Timestamp};

use crate::histogram::Histogram;

/// What a store is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreCallKind {
    /// A put, a cancel or another change, by a user or by the scheduler: `put_many` is one call.
    Change,
    /// Due jobs, by the scheduler.
    Claim,
    /// The end of a run. The scheduler repeats it until the store has taken it.
    End,
    /// A list, a job by its key, counts.
    Look,
}

/// How long a store took to answer a scheduler, by kind of call: part of [`Stats`](crate::Stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreTimes {
    /// Puts and other changes.
    pub changes: Histogram,
    /// Claims of due jobs.
    pub claims: Histogram,
    /// Ends of runs.
    pub ends: Histogram,
    /// Lists, jobs by key and counts.
    pub looks: Histogram,
}

/// An answer that is timed.
pub(crate) struct Timing {
    pub(crate) times: Arc<Mutex<StoreTimes>>,
    pub(crate) runtime: Runtime,
    pub(crate) kind: StoreCallKind,
    pub(crate) asked: Timestamp,
}

impl Timing {
    pub(super) fn end(self) {
        let took = self.runtime.elapsed(self.asked);
        let mut times = self.times.lock();
        let histogram = match self.kind {
            StoreCallKind::Change => &mut times.changes,
            StoreCallKind::Claim => &mut times.claims,
            StoreCallKind::End => &mut times.ends,
            StoreCallKind::Look => &mut times.looks,
        };
        histogram.add(took);
    }
}
