//! The operations of owners of a timer: start, change, dispose; and the steps after the lock of the
//! shard has been released.
//!
//! Ground rules. An operation holds the lock of the timer's shard for one section; what is left is
//! done after it. The clock is read before the lock is taken, so that no thread waits for the
//! reading; see [`crate::alarm::Clock::reading_under_lock`].

#![allow(unsafe_code)] // entries that are new, or that no other thread knows any more

use std::ops::Deref;
use std::ptr::NonNull;
use std::time::Duration;

use super::entry::{Entry, EntryRef, drop_payload, free};
use super::shard::{Shard, ShardState};
use super::{Engine, Expired};
use crate::alarm::Clock;
use crate::queue::node::Location;
use crate::queue::state::Dispose;
use crate::queue::{Period, Schedule};
use crate::sync::Arc;
use crate::time::instant;
use crate::unwind::contain;

/// The step that is left when the lock of the shard is released: a due tick goes to the pool.
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

/// A job has been put into the pool: dropping this has a thread of the pool look for it. Perhaps
/// the last reference to the runtime: so a caller with a lock of its own drops this after that
/// lock.
#[must_use = "dropped while a lock is held, it may run destructors of hooks"]
pub(crate) struct Notice(Option<Arc<Engine>>);

impl Drop for Notice {
    fn drop(&mut self) {
        if let Some(engine) = &self.0 {
            engine.notify();
        }
    }
}

/// Takes the step that is left, and releases the lock of the shard.
#[inline(always)] // most often nothing is left
pub(super) fn hand_over(state: impl Deref<Target = ShardState>, left: AfterUnlock) {
    if let Some(expired) = left.0 {
        put_and_notify(state, expired);
    }
}

/// As [`hand_over`], for a caller with a lock of its own.
fn hand_over_apart(state: impl Deref<Target = ShardState>, left: AfterUnlock) -> Notice {
    left.0.map_or(Notice(None), |expired| put(state, expired))
}

#[cold]
#[inline(never)]
fn put_and_notify(state: impl Deref<Target = ShardState>, expired: Expired) {
    drop(put(state, expired));
}

fn put(state: impl Deref<Target = ShardState>, expired: Expired) -> Notice {
    let engine = state.engine().map(Arc::clone);
    match &engine {
        Some(engine) => engine.put(expired, &state),
        None => debug_assert!(false, "a closed shard claims no tick"),
    }
    drop(state);
    Notice(engine)
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

/// Disposes the timer and gives the handle's reference back. If only the handle and the queue refer
/// to the timer, this takes a single lock section and no further atomic operation.
#[inline]
pub(super) fn dispose_last(handle: EntryRef) {
    if let Err(handle) = free_last(handle, |_| 0, |_| {}) {
        dispose(&handle);
    }
}

/// Gives a new timer its first schedule; on a closed runtime the timer is disposed at once.
///
/// # Safety
/// `node` has just been made from [`Engine::header`], and no further reference exists. One of its
/// two references is placed here.
#[inline]
pub(super) unsafe fn start_new(node: NonNull<Entry>, due: Duration, period: Duration) {
    // SAFETY: alive by its two references; the engine keeps the shard alive meanwhile.
    let shard = unsafe { node.as_ref().extra().shard.as_ref() };
    // A sweep with a slightly later reading does no harm.
    let now = shard.clock.now();
    // SAFETY: the caller's promises are the same.
    unsafe { start_at(node, |now| Schedule { due: instant(now, due), period: Period::new(period) }, now) };
}

/// As [`start_new`], with a schedule computed from now. False: the runtime is closed, and the timer
/// disposed.
///
/// # Safety
/// As [`start_new`].
#[inline]
pub(crate) unsafe fn start_at(node: NonNull<Entry>, schedule: impl FnOnce(u64) -> Schedule, now: u64) -> bool {
    let insert = |inner: &mut ShardState, shard: &Shard| {
        let now = inner.now(shard, now);
        // SAFETY: new, so alive and idle; one of the two references is for `schedule`.
        unsafe { inner.insert_or_claim(shard, node, schedule(now), now) }
    };
    // SAFETY: the caller's promises, and `schedule` takes over a reference.
    unsafe { start_with(node, insert) }
}

/// As [`start_new`], with the schedule given by `schedule`, which runs with the lock of the shard
/// held. False: the runtime is closed, and the timer disposed.
///
/// # Safety
/// As [`start_new`]; `schedule` takes over one of the two references, as
/// [`ShardState::insert_or_claim`] does.
#[inline]
pub(crate) unsafe fn start_with(
    node: NonNull<Entry>,
    schedule: impl FnOnce(&mut ShardState, &Shard) -> AfterUnlock,
) -> bool {
    // SAFETY: alive by its two references; the engine keeps the shard alive until the timer is
    // counted in below.
    let (shared, shard) = unsafe { (node.as_ref(), node.as_ref().extra().shard.as_ref()) };
    let mut inner = shard.lock();
    inner.arrive(shard);
    if !inner.is_open() {
        drop(inner);
        // SAFETY: one of the two references of a new entry, which `schedule` would have taken over.
        let last = unsafe { Entry::release(node) };
        debug_assert!(!last, "the handle has one");
        // SAFETY: the handle's reference, borrowed: `ManuallyDrop` does not give it back.
        let handle = std::mem::ManuallyDrop::new(unsafe { EntryRef::from_raw(node) });
        dispose(&handle);
        return false;
    }
    inner.tally.created += 1;
    if let Clock::Manual { virtual_time, .. } = &shard.clock {
        shared.state.first_number(virtual_time.next_number());
    }
    let left = schedule(&mut inner, shard);
    hand_over(inner, left);
    true
}

/// Replaces due time and period, counting from now (S15 to S18).
pub(crate) fn change(node: &EntryRef, due: Duration, period: Duration) -> Rescheduled {
    change_to::<false>(node, due, |_| Period::new(period)).0
}

/// Replaces the due time, counting from now, and leaves the period.
pub(crate) fn restart(node: &EntryRef, due: Duration) -> Rescheduled {
    restart_under_lock(node, due).0
}

/// As [`restart`], for a caller with a lock of its own.
pub(crate) fn restart_under_lock(node: &EntryRef, due: Duration) -> (Rescheduled, Notice) {
    change_to::<true>(node, due, |inner| node.get().period(inner.queue.key()))
}

/// `APART`: the caller drops the notice later; else there is nothing left to do.
#[inline(always)] // into both callers, so that `change` costs as much as without the other
fn change_to<const APART: bool>(
    node: &EntryRef,
    due: Duration,
    period: impl FnOnce(&ShardState) -> Period,
) -> (Rescheduled, Notice) {
    let shard = node.shard();
    let now = shard.clock.now();
    let mut inner = shard.lock();
    if !inner.is_open() {
        return (Rescheduled::Refused, Notice(None));
    }
    inner.tally.changed += 1;
    let now = inner.now(shard, now);
    let schedule = Schedule { due: instant(now, due), period: period(&inner) };
    // SAFETY: alive by the caller's reference, and belongs to this shard, whose lock is held.
    let (rescheduled, left) = unsafe { inner.reschedule(shard, node.as_ptr(), schedule, now) };
    if APART {
        return (rescheduled, hand_over_apart(inner, left));
    }
    hand_over(inner, left);
    (rescheduled, Notice(None))
}

/// Stops the timer for good, without waiting (S19, S20).
pub(crate) fn dispose(node: &EntryRef) {
    let outcome = node.get().state.dispose();
    if outcome == Dispose::Already {
        return;
    }
    // A sweep may have claimed a tick and inserted the entry again after the step above. No later
    // section inserts the entry: `settle` and `rearm` look at DISPOSED with the lock held.
    // SAFETY: alive by the caller's reference; the lock of its own shard is held.
    let was_queued = unsafe { node.shard().lock().unlink_disposed(node.as_ptr()) };
    if outcome == Dispose::DropPayload {
        finish_disposal(node);
    }
    if was_queued {
        // SAFETY: the list's reference, which unlinking has given to this function.
        let last = unsafe { Entry::release(node.as_ptr()) };
        debug_assert!(!last, "the caller has a reference");
    }
}

/// Frees a timer if only the caller, and lists under the lock of the shard, refer to the timer.
/// `held` counts the references of further lists than the queue's; `unlink` takes the timer and
/// these references out of them. `Err`: there are further references.
#[inline]
pub(crate) fn free_last(
    handle: EntryRef,
    held: impl FnOnce(&ShardState) -> u32,
    unlink: impl FnOnce(&mut ShardState),
) -> Result<(), EntryRef> {
    let node = handle.into_raw();
    // SAFETY: alive by the handle's reference; a shard outlives its entries, which are counted in.
    let (shared, shard) = unsafe { (node.as_ref(), node.as_ref().extra().shard.as_ref()) };
    // The end of a block releases the lock, not `drop(inner)`: a guard passed as an argument would
    // have to stay valid until `drop` returns. But another thread may free the shard once this
    // timer is counted out and the lock is free.
    let counted_out = {
        let mut inner = shard.lock();
        let was_queued = shared.is_queued(inner.queue.key());
        if shared.has_only(1 + u32::from(was_queued) + held(&inner)) {
            // Only the handle and the lists refer to the entry: no job, no running callback, no
            // waiter (I15). No reference can be added, since the handle is this thread's and the
            // lock guards the lists.
            // A sweep that took the waker of a future just before has counted the entry out.
            let mut counted_out = false;
            if was_queued {
                // SAFETY: queued in this shard, whose lock is held.
                unsafe { inner.queue.unlink(node) };
                inner.tally.disposed += 1;
            } else {
                counted_out = shared.location(inner.queue.key()) == Location::COUNTED_OUT;
            }
            unlink(&mut inner);
            Some((counted_out || inner.count_out()).then_some(shard.number))
        } else {
            None
        }
    };
    match counted_out {
        Some(counted_out) => {
            // SAFETY: all references were the handle's and the lists', which have been taken out;
            // the lock is free.
            unsafe { free(node, counted_out) };
            Ok(())
        }
        // SAFETY: the handle's reference, which `into_raw` took out above.
        None => Err(unsafe { EntryRef::from_raw(node) }),
    }
}

/// The end of a disposed timer, when no callback runs or will run: drops the payload and wakes the
/// waiters.
pub(super) fn finish_disposal(node: &EntryRef) {
    let shared = node.get();
    if shared.extra().vtable.drop_payload.is_some() && !shared.state.is_consumed() {
        // SAFETY: the state word gives this right to a single caller, after the last callback
        // (I12).
        unsafe { drop_payload(node.as_ptr(), None) };
    }
    if shared.state.mark_dropped() {
        for waker in node.shard().waiters.take(node) {
            contain(&node.shard().number, || waker.wake());
        }
    }
}
