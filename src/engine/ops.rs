//! What the owners of timers ask for: to start, change and dispose them.
//!
//! Ground rules as in [`super`]. The clock is read before the lock is taken, so that nobody waits for it; see [`Clock::with_lock`].
//!
//! [`Clock::with_lock`]: crate::alarm::Clock::with_lock

#![allow(unsafe_code)] // lifetime of nodes

use std::ptr::NonNull;
use std::time::Duration;

use super::Fire;
use super::entry::{Entry, EntryRef, free};
use super::shard::{Shard, ShardState};
use crate::queue::state::Dispose;
use crate::sync::Arc;
use crate::time::{instant, period_ns};
use crate::user_code::{contained, inside};

/// Puts a new timer under its first schedule; on a closed runtime it is born disposed.
///
/// # Safety
/// `node` has just been made from [`Engine::header`] and nobody else knows it. One of its two references is placed here.
#[inline]
pub(crate) unsafe fn start(node: NonNull<Entry>, due: Duration, period: Duration) {
    // SAFETY: alive; a shard outlives its nodes.
    let shard = unsafe { node.as_ref().extra().shard.as_ref() };
    // Read before the lock is taken, so that nobody waits for it. A sweep that is a little ahead does no harm.
    let now = shard.clock.now();
    // SAFETY: the contract.
    unsafe { start_at(node, |now| instant(now, due), period_ns(period), now) };
}

/// As [`start`], with a due point reckoned from now. False: born disposed.
///
/// # Safety
/// As [`start`].
#[inline]
pub(crate) unsafe fn start_at(node: NonNull<Entry>, due: impl FnOnce(u64) -> u64, period: u64, now: u64) -> bool {
    let schedule = |inner: &mut ShardState, shard: &Shard| {
        let now = inner.now(shard, now);
        // SAFETY: idle, and one of the two references is for this.
        unsafe { inner.schedule(shard, node, due(now), period, now) }
    };
    // SAFETY: the contract.
    unsafe { start_with(node, schedule) }
}

/// As [`start`], under the schedule that `schedule` gives the timer with the lock of its shard held. False: born disposed.
///
/// # Safety
/// As [`start`]; `schedule` takes over one of the two references, as [`ShardState::schedule`] does.
#[inline]
pub(crate) unsafe fn start_with(
    node: NonNull<Entry>,
    schedule: impl FnOnce(&mut ShardState, &Shard) -> Option<Fire>,
) -> bool {
    // SAFETY: alive; a shard outlives its nodes.
    let (shared, shard) = unsafe { (node.as_ref(), node.as_ref().extra().shard.as_ref()) };
    let mut inner = shard.lock();
    inner.arrive(shard);
    if !inner.is_open() {
        drop(inner);
        // SAFETY: one of the two references of a new node.
        let last = unsafe { Entry::release(node) };
        debug_assert!(!last, "the handle has one");
        // SAFETY: the handle's reference stays with the caller.
        let handle = std::mem::ManuallyDrop::new(unsafe { EntryRef::from_raw(node) });
        dispose(&handle);
        return false;
    }
    shared.state.first_number(ShardState::number(shard));
    let job = schedule(&mut inner, shard);
    hand_over(inner, job);
    true
}

/// Releases the lock, then hands a job to the pool, if there is one.
#[inline]
pub(crate) fn hand_over(inner: impl std::ops::Deref<Target = ShardState>, job: Option<Fire>) {
    if let Some(fire) = job {
        let engine = inner.engine().map(Arc::clone);
        drop(inner);
        if let Some(engine) = engine {
            engine.submit(fire);
        }
    }
}

/// What a change did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rescheduled {
    WasWaiting,
    WasIdle,
    Refused,
}

/// Replaces due time and period, counting from now (S15 to S18).
pub(crate) fn change(node: &EntryRef, due: Duration, period: Duration) -> Rescheduled {
    let shard = node.shard();
    let now = shard.clock.now();
    let mut inner = shard.lock();
    if !inner.is_open() {
        return Rescheduled::Refused;
    }
    let now = inner.now(shard, now);
    // SAFETY: alive and at shard here; the caller has a reference.
    let done = unsafe { inner.reschedule(shard, node.as_ptr(), instant(now, due), period_ns(period), now) };
    let Some((was_waiting, job)) = done else { return Rescheduled::Refused };
    hand_over(inner, job);
    if was_waiting { Rescheduled::WasWaiting } else { Rescheduled::WasIdle }
}

/// Stops the timer for good, without waiting (S19, S20).
pub(crate) fn dispose(node: &EntryRef) {
    let outcome = node.get().state.dispose();
    if outcome == Dispose::Already {
        return;
    }
    // SAFETY: at shard here.
    let filed = unsafe { node.shard().lock().queue.unlink(node.as_ptr()) };
    if outcome == Dispose::DropPayload {
        finish_disposal(node);
    }
    if filed {
        // SAFETY: the list's reference, which came with unlinking.
        let last = unsafe { Entry::release(node.as_ptr()) };
        debug_assert!(!last, "the caller has a reference");
    }
}

/// Disposes and gives the handle's reference back. Of a timer that nobody else knows this is one lock section and no
/// atomic operation besides.
#[inline]
pub(crate) fn dispose_last(handle: EntryRef) {
    if let Err(handle) = free_last(handle, |_| 0, |_| {}) {
        dispose(&handle);
    }
}

/// Frees a timer that only the caller and lists under the lock of its shard refer to. `held` counts the references of lists other
/// than the queue's; `unlink` takes the timer out of those lists, and the references with it. `Err`: others refer to the timer.
#[inline]
pub(crate) fn free_last(
    handle: EntryRef,
    held: impl FnOnce(&ShardState) -> u32,
    unlink: impl FnOnce(&mut ShardState),
) -> Result<(), EntryRef> {
    let node = handle.into_raw();
    // SAFETY: the handle's reference keeps it alive; a shard outlives its nodes.
    let (shared, shard) = unsafe { (node.as_ref(), node.as_ref().extra().shard.as_ref()) };
    // The lock is released at the end of a block, not by `drop(inner)`: a guard that is an argument would have to stay valid
    // until `drop` returns, but another thread may free the shard once this timer is counted out and the lock is free.
    let counted_out = {
        let mut inner = shard.lock();
        let filed = shared.is_filed(inner.queue.key());
        if shared.has_only(1 + u32::from(filed) + held(&inner)) {
            // The handle and the lists: no job is queued, no callback runs, nobody waits, and no new reference can be made
            // since nobody else has one and the lock is held.
            if filed {
                // SAFETY: filed here.
                unsafe { inner.queue.unlink(node) };
            }
            unlink(&mut inner);
            Some(inner.count_out())
        } else {
            None
        }
    };
    match counted_out {
        Some(counted_out) => {
            // SAFETY: all references are ours.
            unsafe { free(node, !counted_out) };
            Ok(())
        }
        // SAFETY: the handle's reference, taken out above.
        None => Err(unsafe { EntryRef::from_raw(node) }),
    }
}

/// Nothing runs and nothing will: drops what the callback owned and tells who waits.
pub(super) fn finish_disposal(node: &EntryRef) {
    let shared = node.get();
    if let Some(drop_payload) = shared.extra().vtable.drop_payload {
        if !shared.state.is_spent() {
            // SAFETY: the state word gave this right to exactly one caller, after the last callback.
            contained(|| inside(node.address(), || unsafe { drop_payload(node.as_ptr()) }));
        }
    }
    if shared.state.gone() {
        for waker in node.shard().waiters.take(node) {
            contained(|| waker.wake());
        }
    }
}
