//! Jobs that wait for the ends of others.
//!
//! Ground rules. A *follower* is put after other jobs, its *predecessors*, which are in the store
//! before it: so no chain of them is a circle. A link is one such pair. It has the end of the
//! predecessor, once there is one, and leaves with the follower.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// Until when a job waits that was put [after](crate::Put::after) others, its predecessors.
///
/// A predecessor *ends* when it is done or dead, and when it leaves the store undone: cancelled,
/// replaced, or discarded when it was dead. A job that was cancelled during its run counts as
/// cancelled, however the run ends. Another attempt is no end, and neither is another run that a
/// handler asks for. A job that was put to wait for what cannot come is not run: it is dead, with
/// [`RunEnd::Blocked`](crate::RunEnd::Blocked) as the end of its last run.
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::Until;
///
/// assert_eq!(Until::default(), Until::AllDone);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Until {
    /// All are done. While one is dead, the job waits for its
    /// [revival](crate::Scheduler::revive). If one has left undone, the job is dead.
    #[default]
    AllDone,
    /// All are done. If one is dead or has left undone, the job is dead.
    AllDoneOrDead,
    /// All have ended, done or not: the end of a batch.
    AllEnded,
    /// One is dead, or has left undone. If all are done, the job leaves the store without a run.
    AnyDead,
}

/// What becomes of a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Waits,
    Begins,
    /// It is not run, and dies with its claim.
    Dies,
    Leaves,
}

/// Whether a follower has predecessors that have not ended, are dead, and have left undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkEnds {
    pub(crate) open: bool,
    pub(crate) dead: bool,
    pub(crate) gone: bool,
}

impl Until {
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) const ALL: [Self; 4] = [Self::AllDone, Self::AllDoneOrDead, Self::AllEnded, Self::AnyDead];

    /// The function `fate` of the schema of a server says the same.
    pub(crate) fn fate(self, LinkEnds { open, dead, gone }: LinkEnds) -> Fate {
        match self {
            Self::AllDone if gone => Fate::Dies,
            Self::AllDone if open || dead => Fate::Waits,
            Self::AllDoneOrDead if dead || gone => Fate::Dies,
            Self::AnyDead if dead || gone => Fate::Begins,
            Self::AllDoneOrDead | Self::AllEnded | Self::AnyDead if open => Fate::Waits,
            Self::AnyDead => Fate::Leaves,
            Self::AllDone | Self::AllDoneOrDead | Self::AllEnded => Fate::Begins,
        }
    }
}

/// In words, of the jobs that were named before: `all of these are done`.
impl fmt::Display for Until {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::AllDone => "all of these are done",
            Self::AllDoneOrDead => "all of these are done, or dead with one",
            Self::AllEnded => "all of these have ended",
            Self::AnyDead => "any of these is dead",
        })
    }
}

/// The end of a predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PredecessorEnd {
    /// It is done.
    Done,
    /// It is dead. A [revival](crate::Scheduler::revive) takes this back, as long as the follower
    /// waits.
    Dead,
    /// It has left the store undone: cancelled, replaced, or discarded when it was dead.
    Cancelled,
}

impl PredecessorEnd {
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) const ALL: [Self; 3] = [Self::Done, Self::Dead, Self::Cancelled];
}

/// The word of its JSON form: `done`.
impl fmt::Display for PredecessorEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The jobs that a new one is put after.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct After {
    /// Their keys.
    pub keys: Vec<Arc<str>>,
    /// Until when it waits for them.
    pub until: Until,
}

/// Why a job cannot be put after another one: [`Placed::Unfollowed`](super::Placed::Unfollowed).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unfollowed {
    /// No job that waits or runs has the key, and no done job with it is
    /// [kept](crate::History).
    Absent,
    /// It is recurring, and so has no end.
    Recurring,
    /// [`MAX_LINKS`](super::MAX_LINKS) jobs were put after it already.
    Full,
}
