//! What is left to do after the lock of a shard has been released; and how a change ended.

use super::entry::{dispose, free_last};
use super::shard::ShardState;
use super::{EntryRef, Fire};
use crate::sync::Arc;

/// Releases the lock, then hands a job to the pool, if there is one.
#[inline(always)] // most often there is none
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

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rescheduled {
    WasWaiting,
    WasIdle,
    Refused,
}

/// Disposes and gives the handle's reference back. Of a timer that nobody else knows this is one lock section and no
/// atomic operation besides.
#[inline]
pub(super) fn dispose_last(handle: EntryRef) {
    if let Err(handle) = free_last(handle, |_| 0, |_| {}) {
        dispose(&handle);
    }
}
