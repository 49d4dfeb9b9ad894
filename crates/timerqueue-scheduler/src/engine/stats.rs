//! What a scheduler counts.
//!
//! Ground rules. The counts of a scheduler are its own, from its start; the counts of jobs are the
//! store's.

use crate::histogram::Histogram;
use crate::store::{Counts, StoreTimes};

/// The work of a scheduler so far, and the jobs of its store. Made by
/// [`Scheduler::stats`](crate::Scheduler::stats).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The jobs of the store, by handler and state.
    pub jobs: Counts,
    /// Runs that ended with [`Outcome::Done`](crate::Outcome::Done).
    pub done: u64,
    /// Runs that ended with [`Outcome::Again`](crate::Outcome::Again).
    pub again: u64,
    /// Failed attempts with another attempt to follow.
    pub retried: u64,
    /// Jobs that died: no attempt left, a payload that cannot be read, or
    /// [`Outcome::Dead`](crate::Outcome::Dead).
    pub died: u64,
    /// Jobs that died without a run, since their last instant had passed:
    /// [`Put::expires`](crate::Put::expires).
    pub expired: u64,
    /// Jobs that died without another run, since they are begun at most once and their run was cut
    /// off: [`Put::at_most_once`](crate::Put::at_most_once).
    pub cut_off: u64,
    /// Jobs that died without a run, since a job that they were put [after](crate::Put::after) was
    /// not done.
    pub blocked: u64,
    /// Panics among the failed attempts.
    pub panics: u64,
    /// Settles that were refused, since the run was another scheduler's by then.
    pub lost: u64,
    /// How long after its due time each run began, by the wall clock.
    pub lateness: Histogram,
    /// How long each handler ran, on the clock of the runtime.
    pub durations: Histogram,
    /// How long the store took to answer each call of this scheduler, on the clock of the runtime:
    /// the wait for the store's own threads is a part of it.
    pub store: StoreTimes,
}
