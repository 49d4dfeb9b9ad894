//! The entry of a waiting future: the payload is a waker.
//!
//! Ground rules. The lock of the entry's shard guards the waker; wakers are cloned, called and
//! dropped outside of the lock. The entry's due point is the deadline of the future, which alone
//! sets it: to later without the lock (`Node::postpone`).

#![allow(unsafe_code)] // the payload behind the header

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::task::Waker;

use super::Engine;
use super::entry::{self, Entry, EntryPayload, EntryRef, Firing, dispose_last, free_empty, payload};
use super::observe::Context;
use super::shard::{AfterUnlock, ShardState, end_section};
use crate::alarm::Clock;
use crate::queue::tick_policy::TickPolicy;
use crate::queue::{Kind, MissedTicks, Schedule};
use crate::sync::{AtomicBool, Ordering};
use crate::sys::os::fetch_line;
use crate::time::END;
use crate::unwind::contain_drop;

/// The payload of a future's entry, which has no annotations.
struct Waiting {
    /// Under the lock of the shard.
    waker: UnsafeCell<Option<Waker>>,
    /// The future itself lets go of the entry: no task is woken when the payload is dropped.
    abandoned: AtomicBool,
}

// SAFETY: the lock of the shard guards the waker, and a waker may be used on any thread.
unsafe impl EntryPayload for Waiting {
    const KIND: Kind = Kind::Waker;
    const IS_CALLBACK: bool = false;
    const DROP: Option<unsafe fn(NonNull<Self>)> = Some(end);

    /// Never called: no tick of an entry of [`Kind::Waker`] is claimed.
    unsafe fn call(_: NonNull<Self>, _: &Firing, _: Option<&Context>) {
        debug_assert!(false, "a waker has no callback");
    }
}

/// The payload of an entry.
///
/// # Safety
/// `entry` was made by [`WakerEntry::start`]; the entry is alive while the result is used.
unsafe fn payload_of<'a>(entry: NonNull<Entry>) -> &'a Waiting {
    // SAFETY: `start` made the entry with this payload, without annotations. Shared: only the cell
    // and the atomic are written.
    unsafe { payload::<(), Waiting>(entry).as_ref() }
}

/// The waker of the waiting task, which the lock guards.
///
/// # Safety
/// As [`payload_of`]; the lock of the entry's shard is held for `'a`, and the payload has not been
/// dropped.
#[allow(clippy::mut_from_ref)] // the lock makes it exclusive
unsafe fn waiting<'a>(entry: NonNull<Entry>) -> &'a mut Option<Waker> {
    // SAFETY: the caller promises a live payload and holds the lock, which makes the access
    // exclusive.
    unsafe { &mut *payload_of(entry).waker.get() }
}

impl ShardState {
    /// The entry of a future has come due, and is in no list: takes the waker of the task. `None`:
    /// no task waits. Takes over a reference.
    ///
    /// Afterwards the future has the only reference. The entry is counted out, so that the future
    /// frees the entry without the lock.
    ///
    /// # Safety
    /// The entry is alive, due, in no list, and of [`Kind::Waker`]; its shard is this one. The
    /// caller owns a reference, which is not the last.
    pub(super) unsafe fn take_waker(&mut self, node: NonNull<Entry>) -> Option<Waker> {
        // SAFETY: an entry is unlinked before its payload is dropped, and this entry was in the
        // queue when the caller took the lock, or its future calls. So the payload is alive, and
        // the lock is held.
        let waker = unsafe { waiting(node) }.take();
        if let Some(waker) = &waker {
            // The task has rested for long. The wakers of a batch are called after the lock: by
            // then the first words of all its tasks are on their way, side by side.
            fetch_line(waker.data().cast());
        }
        // SAFETY: alive by the reference that was taken over.
        let entry = unsafe { node.as_ref() };
        self.count_out(entry);
        // SAFETY: the reference that was taken over, given back last: the future may free the entry
        // from here on.
        let last = unsafe { Entry::release(node) };
        debug_assert!(!last, "a future gives its reference back with the lock held while a list has another");
        waker
    }
}

/// The entry is disposed: by its future, or because its runtime ends. At the end of the runtime the
/// task is woken, since a `try_` form may wait for the error.
///
/// # Safety
/// As [`EntryPayload::DROP`].
unsafe fn end(payload: NonNull<Waiting>) {
    // SAFETY: called once, by the state word's right to drop the payload (I12): no thread but this
    // uses it.
    let Waiting { waker, abandoned } = unsafe { payload.read() };
    match waker.into_inner() {
        Some(waker) if !abandoned.load(Ordering::Relaxed) => waker.wake(),
        other => drop(other),
    }
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Looked {
    /// The deadline has come. A waker that a sweep has taken out already is still called.
    HasCome,
    /// The task is woken at the deadline.
    Waits,
    /// The runtime has ended.
    Closed,
}

/// The entry that a pending future owns.
pub(crate) struct WakerEntry(ManuallyDrop<EntryRef>);

impl WakerEntry {
    /// Makes an entry, `own`, and puts it into the queue of the CPU that the calling thread runs
    /// on. `now` was read shortly before.
    pub(crate) fn start(
        own: &mut Option<Self>,
        engine: &Engine,
        tick_policy: TickPolicy,
        waker: &Waker,
        deadline: u64,
        now: u64,
    ) -> Looked {
        let payload = Waiting { waker: UnsafeCell::new(Some(waker.clone())), abandoned: AtomicBool::new(false) };
        let mut has_come = false;
        let entry = entry::make_as(Some(engine), tick_policy, (), payload);
        // SAFETY: just made.
        let is_open = unsafe {
            entry::enter(&entry, |state, shard| {
                let now = state.now(shard, now);
                // the entry may not fire any more: see `Clock::reading_under_lock`
                has_come = now >= deadline;
                (Schedule::once(deadline), now)
            })
        };
        let entry = own.insert(Self(ManuallyDrop::new(entry)));
        if is_open && !has_come { Looked::Waits } else { entry.look(waker, deadline, now) }
    }

    /// Polls the entry, which is made first if there is none: see [`Self::look`].
    pub(crate) fn poll(own: &mut Option<Self>, engine: &Engine, waker: &Waker, deadline: u64, now: u64) -> Looked {
        match own {
            Some(entry) => entry.look(waker, deadline, now),
            None => Self::start(own, engine, MissedTicks::Skip.into(), waker, deadline, now),
        }
    }

    /// A poll: if the deadline has come, removes the waker; else stores the latest waker, and
    /// inserts the entry unless the entry is queued. `deadline`: of the start or the last reset.
    pub(crate) fn look(&self, waker: &Waker, deadline: u64, now: u64) -> Looked {
        let entry = &self.0;
        let shard = entry.shard();
        let mut fresh = None;
        loop {
            let mut state = shard.lock();
            if !state.is_open() {
                drop(state);
                contain_drop(&shard.number, fresh);
                return Looked::Closed;
            }
            if state.now(shard, now) >= deadline {
                let waker = self.take(&mut state);
                drop(state);
                contain_drop(&shard.number, waker); // outside the lock
                contain_drop(&shard.number, fresh);
                return Looked::HasCome;
            }
            // SAFETY: the shard is open, so only the future disposes the entry: the payload is
            // alive. The lock is held.
            let waiting = unsafe { waiting(entry.as_ptr()) };
            let left = if waiting.as_ref().is_some_and(|stored| stored.will_wake(waker)) {
                AfterUnlock::NOTHING
            } else {
                // Cloning runs code of the executor's: not under the lock.
                let Some(clone) = fresh.take() else {
                    drop(state);
                    fresh = Some(waker.clone());
                    continue;
                };
                fresh = waiting.replace(clone);
                if entry.get().is_queued(state.queue.key()) {
                    AfterUnlock::NOTHING
                } else {
                    // SAFETY: alive by the future's reference, and of this shard, whose lock is
                    // held.
                    unsafe { state.aim(shard, entry.as_ptr(), deadline, now, ShardState::number(shard)) }
                }
            };
            end_section(state, left);
            contain_drop(&shard.number, fresh); // the old one, outside the lock
            return Looked::Waits;
        }
    }

    /// Whether a sweep has taken the entry out of the queue. Needs no lock. Says nothing of a
    /// deadline that was set after the last look: the entry may have fired for the one before, and
    /// the runtime may have ended since.
    #[inline]
    pub(crate) fn has_fired(&mut self) -> bool {
        // SAFETY: with the only reference, no other thread uses the entry; `&mut self` excludes
        // further users of this reference.
        self.0.get().has_only(1) && unsafe { (*self.0.as_ptr().as_ptr()).is_counted_out() }
    }

    /// Moves the deadline to the result of `deadline`, and returns the new deadline. To later on a
    /// clock of the system needs no lock. Otherwise `deadline` runs with the lock held. `before`: a
    /// reading of the clock, shortly before.
    #[inline]
    pub(crate) fn reset(&self, before: Option<u64>, deadline: impl Fn(&Clock) -> u64) -> u64 {
        let clock = &self.0.shard().clock;
        // The driver of a manual clock relies on exact due points.
        if matches!(clock, Clock::System(_)) {
            let deadline = deadline(clock).min(END);
            if self.0.get().postpone(deadline) {
                return deadline;
            }
        }
        self.reset_under_lock(before, deadline)
    }

    #[inline(never)]
    fn reset_under_lock(&self, before: Option<u64>, deadline: impl Fn(&Clock) -> u64) -> u64 {
        let entry = &self.0;
        let shard = entry.shard();
        let mut state = shard.lock();
        state.touch(shard);
        let deadline = deadline(&shard.clock).min(END);
        if !state.is_open() {
            // the next poll finds the shard closed; the end of the runtime wakes a waiting task
            return deadline;
        }
        let is_later = entry.get().due(state.queue.key()) <= deadline;
        state.tally.changed += u64::from(!is_later);
        // SAFETY: the shard is open, so only the future disposes the entry: the payload is alive.
        // The lock is held.
        let waits = unsafe { waiting(entry.as_ptr()) }.is_some();
        // Without a waker no task waits, and the next poll inserts the entry.
        if waits {
            let now = before.map_or_else(|| shard.clock.now(), |before| shard.clock.reading_under_lock(before));
            // To earlier on a manual clock needs a new arming number.
            if is_later || matches!(shard.clock, Clock::System(_)) {
                // SAFETY: alive by the future's reference, and of this shard, whose lock is held.
                if let Some(at) = unsafe { state.queue.reschedule_lazily(entry.as_ptr(), deadline) } {
                    state.arm_earlier(shard, at, now);
                    return deadline;
                }
            }
            let number = if is_later { entry.get().state.number() } else { ShardState::number(shard) };
            // SAFETY: alive by the future's reference, and of this shard, whose lock is held.
            let left = unsafe { state.aim(shard, entry.as_ptr(), deadline, now, number) };
            end_section(state, left);
        }
        deadline
    }

    /// Takes the waker of the waiting task, if any: the entry leaves the queue.
    pub(crate) fn take_waker(&self) -> Option<Waker> {
        let mut state = self.0.shard().lock();
        if state.is_open() { self.take(&mut state) } else { None }
    }

    /// Takes the waker out; the entry leaves the queue.
    fn take(&self, state: &mut ShardState) -> Option<Waker> {
        debug_assert!(state.is_open());
        let entry = &self.0;
        // SAFETY: in an open shard only the future disposes the entry, and the future is the
        // caller; the lock is held.
        let waker = unsafe { waiting(entry.as_ptr()) }.take();
        if waker.is_some() {
            // The entry is queued: a sweep that takes the entry out takes the waker as well.
            // SAFETY: alive by the future's reference, and of this shard, whose lock is held.
            if unsafe { state.withdraw(entry.shard(), entry.as_ptr()) } {
                // SAFETY: the list's reference, which unlinking has given to this function.
                let last = unsafe { Entry::release(entry.as_ptr()) };
                debug_assert!(!last, "the future has a reference");
            }
        }
        waker
    }
}

impl Drop for WakerEntry {
    /// The future does not wait any more: the entry leaves the queue, and is freed with its waker.
    #[inline]
    fn drop(&mut self) {
        if self.has_fired() {
            // The thread that swept has written the entry, perhaps on another core: only the line
            // of its first words is read here.
            let entry = self.0.as_ptr();
            // SAFETY: alive, and used by this thread alone: see `has_fired`.
            debug_assert!(unsafe { waiting(entry) }.is_none(), "the waker was taken with the entry");
            // SAFETY: `start` made the entry with this payload, and the only reference is given up
            // here. Nothing is left to drop: the sweep took the waker, and a waker stored later
            // puts the entry into the queue, so that it counts as not fired.
            return unsafe { free_empty::<Waiting>(entry) };
        }
        // SAFETY: alive by the future's reference; this atomic needs no lock, and stays readable
        // until the entry is freed.
        unsafe { payload_of(self.0.as_ptr()) }.abandoned.store(true, Ordering::Relaxed);
        // SAFETY: taken once: the future's reference is being dropped.
        dispose_last(unsafe { ManuallyDrop::take(&mut self.0) });
    }
}
