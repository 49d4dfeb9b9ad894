//! Whole stores: checks, and holds after a restore.

use std::sync::Arc;
use std::time::SystemTime;

use super::JobId;

/// A part of a check that is about to begin: `SqliteReader::check` and `PostgresReader::check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckStep {
    /// The number of the part, from 1.
    pub number: usize,
    /// The number of all parts.
    pub of: usize,
    /// What this part reads, in English.
    pub what: &'static str,
}

/// A store whose handlers are all paused, since its past may have run already: it was restored from
/// a backup.
///
/// A hold is begun by `SqliteStore::hold` or `PostgresOptions::hold`, and copies made by
/// `SqliteReader::backup` are held from the start. Jobs of a held store wait. They can be looked
/// at, cancelled and moved meanwhile. A handler that the store learns of later is not paused.
///
/// A hold moves all numbers on: no job that is put from then on has the number of a job that the
/// lost store has taken after the backup, and so no run has the [`run_id`](crate::Run::run_id) of
/// one of its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hold {
    /// When the hold began: of a copy, when the copy was made.
    pub since: SystemTime,
    /// The last number of a job at the begin of the hold: jobs with greater numbers were accepted
    /// during it, and are no part of the past.
    pub last: JobId,
    /// The handlers that the hold has paused, by name. Others were paused before.
    pub handlers: Vec<Arc<str>>,
}
