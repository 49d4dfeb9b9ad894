//! The engine of a scheduler: what claims, runs and settles jobs.
//!
//! Ground rules. The engine knows the vocabulary of stores and their trait, and no store. [`core`]
//! has the timer and the claims, [`runs`] the runs, [`look`] the looks at schedules, [`binding`]
//! the rules for groups, [`close`] the end, [`operations`] what users ask for.

mod around;
mod backlog;
mod binding;
mod calls;
mod close;
mod codec;
mod core;
mod handshake;
mod job;
mod look;
mod operations;
mod pending;
mod retry;
mod runs;
mod stats;
#[cfg(test)]
#[path = "../../tests/unit/engine/mod.rs"]
mod tests;
mod waits;

pub use self::around::{Ended, Next};
pub use self::binding::{Binding, LeastLoaded, Rendezvous, RoundRobin};
pub use self::close::{Report, StillRunning};
pub use self::codec::Codec;
pub use self::job::{Handler, IntoOutcome, Job, Outcome, Returned, Run};
pub use self::pending::Pending;
pub(crate) use self::pending::block_on;
pub use self::retry::{Failed, HandlerError, Permanent, Retry};
pub use self::runs::RunRecord;
pub use self::stats::Stats;
pub use self::waits::JobEnd;

pub(crate) use self::binding::Rule;
pub(crate) use self::core::{Core, Settings};
pub(crate) use self::job::{Call, Spawner};
pub(crate) use self::operations::{only, picked};
#[cfg(test)]
pub(crate) use self::retry::mixed;
