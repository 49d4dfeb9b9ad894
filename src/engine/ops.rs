//! The steps after the lock of a shard has been released, and the outcome of a change.

use super::entry::{dispose, free_last};
use super::shard::ShardState;
use super::{EntryRef, Fire};
use crate::sync::Arc;

/// Releases the lock of the shard, then hands the job, if any, to the pool.
#[inline(always)] // most often there is no job
pub(super) fn hand_over(state: impl std::ops::Deref<Target = ShardState>, job: Option<Fire>) {
    if let Some(fire) = job {
        submit(state, fire);
    }
}

#[cold]
#[inline(never)]
fn submit(state: impl std::ops::Deref<Target = ShardState>, fire: Fire) {
    let engine = state.engine().map(Arc::clone);
    drop(state);
    if let Some(engine) = engine {
        engine.submit(fire);
    }
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rescheduled {
    WasWaiting,
    WasIdle,
    Refused,
}

/// Disposes the timer and gives the handle's reference back. If only the handle and the queue refer to the timer, this takes a
/// single lock section and no further atomic operation.
#[inline]
pub(super) fn dispose_last(handle: EntryRef) {
    if let Err(handle) = free_last(handle, |_| 0, |_| {}) {
        dispose(&handle);
    }
}
