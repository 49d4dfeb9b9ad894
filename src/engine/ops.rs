//! The steps after the lock of a shard has been released, and the outcome of a change.

use super::entry::{dispose, free_last};
use super::shard::ShardState;
use super::{EntryRef, Expired};
use crate::sync::Arc;

/// The step that is left after the lock of the shard has been released: a due tick goes to the pool.
#[must_use = "a tick that has been claimed is lost: see `hand_over`"]
#[derive(Default)]
pub(crate) struct AfterUnlock(Option<Expired>);

impl AfterUnlock {
    pub(super) const NOTHING: Self = Self(None);

    #[inline]
    pub(super) fn submit(expired: Option<Expired>) -> Self {
        Self(expired)
    }

    /// For a caller with several timers under one lock.
    pub(super) fn into_job(self) -> Option<Expired> {
        self.0
    }
}

/// Releases the lock of the shard, then takes the step that is left.
#[inline(always)] // most often nothing is left
pub(super) fn hand_over(state: impl std::ops::Deref<Target = ShardState>, left: AfterUnlock) {
    if let Some(expired) = left.0 {
        submit(state, expired);
    }
}

#[cold]
#[inline(never)]
fn submit(state: impl std::ops::Deref<Target = ShardState>, expired: Expired) {
    let engine = state.engine().map(Arc::clone);
    drop(state);
    if let Some(engine) = engine {
        engine.submit(expired);
    }
}

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rescheduled {
    /// A tick of the old schedule was still to come.
    WasWaiting,
    WasIdle,
    /// Disposed, consumed, or the runtime has ended: nothing has changed.
    Refused,
}

impl Rescheduled {
    #[inline]
    pub(super) fn waited(waited: bool) -> Self {
        if waited { Self::WasWaiting } else { Self::WasIdle }
    }
}

/// Disposes the timer and gives the handle's reference back. If only the handle and the queue refer to the timer, this takes a
/// single lock section and no further atomic operation.
#[inline]
pub(super) fn dispose_last(handle: EntryRef) {
    if let Err(handle) = free_last(handle, |_| 0, |_| {}) {
        dispose(&handle);
    }
}
