//! A counted value in the memory of a timer: an `Arc` whose allocation is an entry. The timer fires
//! at an instant, and calls a function of the value.
//!
//! Ground rules. All [`TimerArc`]s of a value together have one reference to the entry, and each
//! [`TimerWeak`] has one. So the entry outlives the value, as the memory of an `Arc` does: the last
//! `TimerArc` drops the value and disposes the entry. The payload itself has nothing to drop: the
//! end of the runtime disposes the entry of a living value.
//!
//! The entry is started when the timer is first set, and belongs to no shard before. It is started
//! once; only a [`TimerGuard`] starts, changes and disposes it.

#![allow(unsafe_code)] // the value behind the header

use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::num::NonZeroU64;
use std::ops::Deref;
use std::process::abort;
use std::ptr::NonNull;

use super::Engine;
use super::entry::{self, EntryPayload, EntryRef, Firing, dispose_last, is_started, payload};
use super::observe::Context;
use super::shard::Changed;
use crate::queue::Kind;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering, unmodelled};

/// A value that a [`TimerArc`] holds.
pub(crate) trait Timed: Send + Sync + Sized + 'static {
    /// The timer fires.
    fn fire(this: &TimerArc<Self>);

    /// The last handle is being dropped.
    fn unhandled(this: &TimerArc<Self>);
}

/// The payload.
#[repr(C)]
struct Counted<T> {
    /// The number of [`TimerArc`]s; all handles count as one. Zero: no value yet, or no more. (64
    /// bits: no program counts through them. The models do not check it, as with `Arc`.)
    arcs: unmodelled::AtomicU64,
    body: MaybeUninit<Body<T>>,
}

/// In this order, so that a value can keep apart from the count what is read beside it.
#[repr(C)]
struct Body<T> {
    /// Written by each clone and drop of a handle.
    handles: AtomicU64,
    /// The instant for which the timer is set, for the value's use.
    deadline: Mutex<Option<NonZeroU64>>,
    value: T,
}

// SAFETY: `Timed` is `Send` and `Sync`, and so is what stands beside the value.
unsafe impl<T: Timed> EntryPayload for Counted<T> {
    const KIND: Kind = Kind::Overlapping;
    /// The crate's own, which calls callbacks of the program's.
    const IS_OF_PROGRAM: bool = false;
    /// The last arc drops the value.
    const DROP: Option<unsafe fn(NonNull<Self>)> = None;

    unsafe fn call(_: NonNull<Self>, firing: &Firing, _: Option<&Context>) {
        // SAFETY: the payload of the firing's entry is a `Counted<T>`, as the caller promises.
        let Some(arc) = (unsafe { TimerArc::<T>::upgrade(&firing.entry) }) else { return };
        match firing.missed {
            Firing::DROPPED => *arc.lock().deadline = None,
            _ => T::fire(&arc),
        }
    }
}

/// As an `Arc`.
pub(crate) struct TimerArc<T: Timed> {
    /// The reference of all arcs.
    entry: ManuallyDrop<EntryRef>,
    value: PhantomData<T>,
}

impl<T: Timed> TimerArc<T> {
    /// As [`Arc::new_cyclic`](std::sync::Arc::new_cyclic).
    #[inline]
    pub(crate) fn new_cyclic(make: impl FnOnce(&TimerWeak<T>) -> T) -> Self {
        let none = Counted::<T> { arcs: unmodelled::AtomicU64::new(0), body: MaybeUninit::uninit() };
        let weak = TimerWeak { entry: entry::make_unstarted(none), value: PhantomData };
        let value = make(&weak);
        let this = Self { entry: ManuallyDrop::new(weak.entry), value: PhantomData };
        let body = Body { handles: AtomicU64::new(1), deadline: Mutex::new(None), value };
        // SAFETY: alive, and with no arc no other thread looks at the body.
        unsafe { this.body().write(body) };
        this.arcs().store(1, Ordering::Release);
        this
    }

    /// The count of the arcs.
    #[inline]
    fn arcs(&self) -> &unmodelled::AtomicU64 {
        // SAFETY: the arcs, or a caller in this file, have a reference to the entry, and
        // `new_cyclic` made it with this payload.
        unsafe { &(*payload::<(), Counted<T>>(self.entry.as_ptr()).as_ptr()).arcs }
    }

    #[inline]
    fn body(&self) -> *mut Body<T> {
        // SAFETY: as in `arcs`, there is a reference, and this is the payload.
        unsafe { (&raw mut (*payload::<(), Counted<T>>(self.entry.as_ptr()).as_ptr()).body).cast() }
    }

    /// An arc that is not counted. Caller: has a reference to the entry while the result is used,
    /// or has counted it.
    #[inline]
    fn alias(entry: &EntryRef) -> ManuallyDrop<Self> {
        // SAFETY: the reference of all arcs, which the last one that is counted gives back.
        let entry = ManuallyDrop::new(unsafe { EntryRef::from_raw(entry.as_ptr()) });
        ManuallyDrop::new(Self { entry, value: PhantomData })
    }

    /// A further arc, unless there is none any more.
    ///
    /// # Safety
    /// The payload of the entry is a `Counted<T>`.
    unsafe fn upgrade(entry: &EntryRef) -> Option<Self> {
        let alias = Self::alias(entry);
        // Acquire pairs with the release in `new_cyclic`.
        let more = |arcs| (arcs > 0).then_some(arcs + 1);
        alias.arcs().fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        Some(ManuallyDrop::into_inner(alias))
    }

    #[inline]
    pub(crate) fn downgrade(&self) -> TimerWeak<T> {
        TimerWeak { entry: EntryRef::clone(&self.entry), value: PhantomData }
    }

    /// Locks the timer.
    #[inline]
    pub(crate) fn lock(&self) -> TimerGuard<'_, T> {
        // SAFETY: an arc keeps the value alive.
        TimerGuard { deadline: unsafe { &(*self.body()).deadline }.lock(), arc: self }
    }

    /// Drops the arc. The last one calls `last` with the value, before it drops the value.
    #[inline]
    pub(crate) fn end<R>(self, last: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut this = ManuallyDrop::new(self);
        // The only arc, without a weak reference, a queue or a job, need not count down.
        let is_only = this.arcs().load(Ordering::Acquire) == 1 && this.entry.get().has_only(1);
        // Release and acquire as in any reference count.
        if !is_only && this.arcs().fetch_sub(1, Ordering::Release) != 1 {
            return None;
        }
        this.arcs().load(Ordering::Acquire);
        // SAFETY: the last arc, so this thread alone uses the value, and none starts the timer; and
        // the arcs' reference is given back once.
        unsafe {
            let body = this.body();
            let result = last(&mut (*body).value);
            drop_body(body);
            let entry = ManuallyDrop::take(&mut this.entry);
            if is_started(&entry) {
                dispose_last(entry);
            }
            Some(result)
        }
    }
}

/// Written once, where the drop of a value would be copied to each place with a last arc.
///
/// # Safety
/// As of [`drop_in_place`](std::ptr::drop_in_place).
#[inline(never)]
unsafe fn drop_body<T>(body: *mut Body<T>) {
    // SAFETY: the caller's promise.
    unsafe { body.drop_in_place() }
}

impl<T: Timed> Deref for TimerArc<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: an arc keeps the value alive.
        unsafe { &(*self.body()).value }
    }
}

impl<T: Timed> Clone for TimerArc<T> {
    fn clone(&self) -> Self {
        self.arcs().fetch_add(1, Ordering::Relaxed);
        ManuallyDrop::into_inner(Self::alias(&self.entry))
    }
}

impl<T: Timed> Drop for TimerArc<T> {
    #[inline]
    fn drop(&mut self) {
        ManuallyDrop::into_inner(Self::alias(&self.entry)).end(|_| ());
    }
}

/// As a `Weak`.
pub(crate) struct TimerWeak<T: Timed> {
    entry: EntryRef,
    value: PhantomData<T>,
}

impl<T: Timed> TimerWeak<T> {
    pub(crate) fn upgrade(&self) -> Option<TimerArc<T>> {
        // SAFETY: made from a `TimerArc<T>`, or for one.
        unsafe { TimerArc::upgrade(&self.entry) }
    }
}

impl<T: Timed> Clone for TimerWeak<T> {
    fn clone(&self) -> Self {
        Self { entry: self.entry.clone(), value: PhantomData }
    }
}

/// A counted handle. All handles together have one [`TimerArc`], so that a clone costs one step.
pub(crate) struct TimerHandle<T: Timed>(ManuallyDrop<TimerArc<T>>);

impl<T: Timed> TimerHandle<T> {
    /// The limit on the handles of a value, so that a program that forgets handles cannot wrap the
    /// count. As with `Arc`, no other program comes near the limit.
    pub(crate) const MOST: u64 = i64::MAX as u64;

    /// The first handle of a value.
    #[inline]
    pub(crate) fn new(arc: TimerArc<T>) -> Self {
        Self(ManuallyDrop::new(arc))
    }

    #[inline]
    pub(crate) fn count(&self) -> &AtomicU64 {
        // SAFETY: the handles' arc keeps the value alive.
        unsafe { &(*self.0.body()).handles }
    }
}

impl<T: Timed> Deref for TimerHandle<T> {
    type Target = TimerArc<T>;

    #[inline]
    fn deref(&self) -> &TimerArc<T> {
        &self.0
    }
}

impl<T: Timed> Clone for TimerHandle<T> {
    #[inline]
    fn clone(&self) -> Self {
        if self.count().fetch_add(1, Ordering::Relaxed) > Self::MOST {
            abort(); // as `Arc` does
        }
        Self(TimerArc::alias(&self.0.entry))
    }
}

impl<T: Timed> Drop for TimerHandle<T> {
    #[inline]
    fn drop(&mut self) {
        // Release and acquire as in any reference count. (A look before the step, as in `end`,
        // would fetch the cache line twice where threads share a token.)
        if self.count().fetch_sub(1, Ordering::AcqRel) == 1 {
            T::unhandled(&self.0);
            // SAFETY: the last handle drops the handles' arc, once.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

/// The timer of a value, with its lock held.
pub(crate) struct TimerGuard<'a, T: Timed> {
    pub(crate) deadline: MutexGuard<'a, Option<NonZeroU64>>,
    arc: &'a TimerArc<T>,
}

impl<T: Timed> TimerGuard<'_, T> {
    /// The entry, if it has been started.
    fn started(&self) -> Option<&EntryRef> {
        // SAFETY: entries are started with the lock held.
        Some(&*self.arc.entry).filter(|entry| unsafe { is_started(entry) })
    }

    /// Moves the timer. [`Changed::Ended`] also if the timer was never set. `before`: a reading of
    /// the clock, shortly before.
    pub(crate) fn change_at(&self, due: u64, before: u64) -> Changed {
        self.started().map_or(Changed::Ended, |entry| entry::change_at(entry, due, before))
    }

    /// Sets the timer for the first time. A timer that was set before has ended, and stays so.
    pub(crate) fn start_at(&self, engine: &Engine, due: u64, before: u64) {
        if self.started().is_none() {
            // SAFETY: not started, and entries are started with the lock held.
            unsafe { entry::start_at(&self.arc.entry, engine, due, before) };
        }
    }

    /// The value needs no timer any more.
    pub(crate) fn dispose(&self) {
        self.started().into_iter().for_each(entry::dispose);
    }
}
