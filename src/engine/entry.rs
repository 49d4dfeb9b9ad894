//! Entries: a timer as the engine knows it, from its allocation to the end of its memory. An entry
//! is a single allocation: a header ([`Node`]), then [`Annotations`] if there are any, then the
//! payload, which is usually the callback.
//!
//! Ground rules. The engine uses an entry through its header. The type of the payload, a
//! [`EntryPayload`], gives a table of functions ([`VTable`]) for the rest.
//!
//! An operation of an owner (start, change, dispose) holds the lock of the entry's shard for one
//! section, and takes the [`AfterUnlock`] of the section after it. The clock is read before the
//! lock is taken, so that no thread waits for the reading; see [`Clock::reading_under_lock`].
//!
//! The state word decides which thread drops the payload, and when (I12): [`drop_payload`] drops it
//! at the end of a disposed timer, or else when the entry is freed. The destructor may run any
//! code.
//!
//! The thread that gives back the last reference frees the entry, with no lock held (I15):
//!
//! - [`EntryRef`]'s drop: of a job whose timer has no handle any more, of a waiter, of the list of
//!   wall timers, of a handle after [`dispose`];
//! - [`dispose_last`]: a handle is dropped while at most the queue has another reference, the hot
//!   path;
//! - [`free_empty`]: a future is dropped after its entry has fired.
//!
//! Other places give a reference back while a further one is held, and assert so.

#![allow(unsafe_code)] // lifetime of entries, and the payload behind the header

use std::alloc::{Layout, dealloc};
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, needs_drop, offset_of};
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::Duration;

use super::Engine;
use super::frames::inside;
use super::observe::{Context, EngineNumber, Label, Settings};
use super::shard::{Changed, Notice, Shard, ShardState, end_section, end_section_apart};
use crate::alarm::Clock;
use crate::queue::list::Linked;
use crate::queue::node::Location;
use crate::queue::state::Dispose;
use crate::queue::tick_policy::TickPolicy;
use crate::queue::{Kind, MissedTicks, Node, Period, Schedule};
use crate::sync::Arc;
use crate::sync::unmodelled::AtomicU32;
use crate::time::{NEVER, instant, later, whole_ns};
use crate::unwind::{Payload, contain};

/// The engine's part of the header: the shard of the entry, and the functions for its payload.
pub(crate) struct EntryMeta {
    /// `None`: the entry has never been started: see [`TimerArc`](super::TimerArc).
    shard: Cell<Option<NonNull<Shard>>>,
    vtable: &'static VTable,
}

impl EntryMeta {
    /// # Safety
    /// The entry has been started, or is just being started.
    #[inline]
    unsafe fn shard(&self) -> NonNull<Shard> {
        // SAFETY: set before the start.
        unsafe { self.shard.get().unwrap_unchecked() }
    }
}

// SAFETY: `Shard` is `Sync`, and a shard outlives its entries (see `LocalRefs`). The cell is
// written before any other thread reads it: by the thread that makes the entry, or by `start_at`.
unsafe impl Send for EntryMeta {}
// SAFETY: see `Send`.
unsafe impl Sync for EntryMeta {}

/// The header of an entry.
pub(crate) type Entry = Node<EntryMeta>;

/// A due tick on its way to the callback, and what the callback learns of the tick. Carries a
/// reference.
pub(crate) struct Firing {
    pub(crate) entry: EntryRef,
    /// The instant at which the tick was due.
    pub(crate) scheduled: u64,
    /// Ticks left out before this tick; or [`Self::GIVEN_BACK`], [`Self::DROPPED`].
    pub(crate) missed: u64,
}

impl Firing {
    /// Of a wall timer: the program runs the callback after the end of the runtime, whether its
    /// time has come or not.
    pub(super) const GIVEN_BACK: u64 = u64::MAX;
    /// Of a [`TimerArc`](super::TimerArc), which outlives its job: the program has dropped the job.
    pub(super) const DROPPED: u64 = u64::MAX - 1;
}

// ---------------------------------------------------------------- payloads

/// The part of an entry behind its header: a callback of some kind, or the waker of a task.
///
/// # Safety
/// The payload may be used and dropped on any thread; of [`Kind::Overlapping`], used on several at
/// once. An `AtomicU32` stands at [`Self::WALL_INDEX_AT`].
pub(crate) unsafe trait EntryPayload: Sized + 'static {
    const KIND: Kind;
    /// The payload is a callback of the program's, which may run on an executor of the program's.
    const IS_CALLBACK: bool = true;
    /// At the end of the runtime the program may have the callback back: see
    /// [`Engine::keep_unfired`].
    const IS_OF_PROGRAM: bool = Self::IS_CALLBACK;
    /// Drops the payload in place; `None`: there is nothing to drop. Caller: once, when no callback
    /// runs or will run (I12).
    const DROP: Option<unsafe fn(NonNull<Self>)> =
        if needs_drop::<Self>() { Some(NonNull::drop_in_place) } else { None };
    /// Of a wall timer, the place in the payload of its index in the list of its shard, which
    /// [`Self::DROP`] leaves alone.
    const WALL_INDEX_AT: Option<usize> = None;

    /// Runs the callback, in the context in which its timer was made: see [`run_in`].
    ///
    /// # Safety
    /// The payload is that of the firing's entry. The caller is between `begin` and `end` of the
    /// state word, which ensure that no thread drops the payload, that a callback runs alone if it
    /// is exclusive, and once if it fires once.
    unsafe fn call(this: NonNull<Self>, firing: &Firing, context: Option<&Context>);
}

/// A callback that may run several times at once.
pub(crate) struct Overlapping<F>(pub(crate) F);

// SAFETY: the bounds say so.
unsafe impl<F: Fn(&Firing) + Send + Sync + 'static> EntryPayload for Overlapping<F> {
    const KIND: Kind = Kind::Overlapping;

    #[inline(always)]
    unsafe fn call(this: NonNull<Self>, firing: &Firing, context: Option<&Context>) {
        // SAFETY: alive between `begin` and `end`; only overlapping calls share it, and it is
        // `Sync`.
        let Self(callback) = unsafe { this.as_ref() };
        run_in(context, &firing.entry, || firing.lateness(), || callback(firing));
    }
}

/// A callback that runs once at a time. `OWN`: a job of the crate's own, which runs on the pool
/// also where callbacks are handed over to an executor of the program's.
pub(crate) struct Exclusive<F, const OWN: bool>(pub(crate) F);

// SAFETY: the bounds say so.
unsafe impl<F: FnMut(&Firing) + Send + 'static, const OWN: bool> EntryPayload for Exclusive<F, OWN> {
    const KIND: Kind = Kind::Exclusive;
    const IS_CALLBACK: bool = !OWN;

    #[inline(always)]
    unsafe fn call(mut this: NonNull<Self>, firing: &Firing, context: Option<&Context>) {
        // SAFETY: alive between `begin` and `end`, and an exclusive timer runs one callback at a
        // time.
        let Self(callback) = unsafe { this.as_mut() };
        run_in(context, &firing.entry, || firing.lateness(), || callback(firing));
    }
}

/// A callback that is consumed by its call.
pub(crate) struct Once<F>(pub(crate) F);

// SAFETY: the bounds say so.
unsafe impl<F: FnOnce(&Firing) + Send + 'static> EntryPayload for Once<F> {
    const KIND: Kind = Kind::Once;

    #[inline(always)]
    unsafe fn call(this: NonNull<Self>, firing: &Firing, context: Option<&Context>) {
        // SAFETY: `begin` marks the callback as consumed in the same step that allows this call. So
        // the callback is taken once, and no thread drops it in place (I12).
        let Self(callback) = unsafe { this.read() };
        run_in(context, &firing.entry, || firing.lateness(), || callback(firing));
    }
}

/// Runs a callback in the context in which its timer was made, if there is one.
#[inline(always)]
pub(super) fn run_in(
    context: Option<&Context>,
    entry: &EntryRef,
    late: impl FnOnce() -> Option<Duration>,
    callback: impl FnOnce(),
) {
    match context {
        None => callback(),
        Some(context) => {
            let mut callback = Some(callback);
            context.run(entry, late(), &mut || callback.take().into_iter().for_each(|callback| callback()));
        }
    }
}

impl Firing {
    /// By how much the callback is late, now.
    fn lateness(&self) -> Option<Duration> {
        let now = self.entry.shard().clock.now();
        Some(Duration::from_nanos(now.saturating_sub(self.scheduled)))
    }
}

// ---------------------------------------------------------------- allocation

/// The facts of a timer that has a name, or was made in a context.
struct Annotations {
    /// Stays until the entry is freed, unlike the callback.
    label: Option<Arc<Label>>,
    /// Dropped with the payload.
    context: UnsafeCell<Option<Context>>,
}

/// `A`: [`Annotations`], or `()`.
#[repr(C)]
struct Allocation<A, P> {
    header: Entry,
    annotations: A,
    payload: P,
}

/// The beginning of an allocation that has annotations: the fields lie in the order of `repr(C)`.
type Beginning = Allocation<Annotations, ()>;

/// The functions for the payload behind a header.
struct VTable {
    /// As [`EntryPayload::call`].
    call: unsafe fn(NonNull<Entry>, &Firing),
    /// As [`EntryPayload::DROP`], also of the context.
    drop_payload: Option<unsafe fn(NonNull<Entry>)>,
    /// As [`EntryPayload::WALL_INDEX_AT`], in the whole allocation.
    wall_index_at: Option<NonZeroUsize>,
    /// The layout of the whole allocation.
    layout: Layout,
    is_callback: bool,
    is_of_program: bool,
    /// The entry has [`Annotations`].
    is_annotated: bool,
}

/// The table for a payload, in an entry with or without annotations.
struct Table<A, P>(PhantomData<(A, P)>);

/// The contract of the unsafe functions, beside that of the fields of [`VTable`]: [`make_as`] made
/// the entry with these types.
impl<A, P: EntryPayload> Table<A, P> {
    const IS_ANNOTATED: bool = size_of::<A>() > 0;

    const VTABLE: &'static VTable = &VTable {
        call: Self::call,
        drop_payload: if Self::IS_ANNOTATED || P::DROP.is_some() { Some(Self::drop_payload) } else { None },
        wall_index_at: match P::WALL_INDEX_AT {
            Some(at) => NonZeroUsize::new(offset_of!(Allocation<A, P>, payload) + at),
            None => None,
        },
        layout: Layout::new::<Allocation<A, P>>(),
        is_callback: P::IS_CALLBACK,
        is_of_program: P::IS_OF_PROGRAM,
        is_annotated: Self::IS_ANNOTATED,
    };

    unsafe fn call(entry: NonNull<Entry>, firing: &Firing) {
        // SAFETY: the payload of this entry, and the caller is between `begin` and `end`. Meanwhile
        // the context is written by the thread alone that consumes the callback (I12).
        unsafe {
            let payload = payload::<A, P>(entry);
            if !Self::IS_ANNOTATED {
                P::call(payload, firing, None);
            } else if P::KIND == Kind::Once {
                let consumed = (*context_of(entry)).take();
                P::call(payload, firing, consumed.as_ref());
            } else {
                P::call(payload, firing, (*context_of(entry)).as_ref());
            }
        }
    }

    unsafe fn drop_payload(entry: NonNull<Entry>) {
        // SAFETY: called once, when no callback runs or will run, as the caller promises.
        unsafe {
            let _context = if Self::IS_ANNOTATED { (*context_of(entry)).take() } else { None };
            if let Some(drop) = P::DROP {
                drop(payload::<A, P>(entry));
            }
        }
    }
}

/// The payload of an entry.
///
/// # Safety
/// `entry` was made by [`make_as`] with these types, and is alive.
#[inline]
pub(super) unsafe fn payload<A, P>(entry: NonNull<Entry>) -> NonNull<P> {
    // SAFETY: the header is the first field of the allocation (`repr(C)`), and the pointer was made
    // from the whole allocation.
    unsafe { NonNull::new_unchecked(&raw mut (*entry.cast::<Allocation<A, P>>().as_ptr()).payload) }
}

/// The annotations of an entry, if it has any.
///
/// # Safety
/// The entry is alive while the result is used.
unsafe fn annotations<'a>(entry: NonNull<Entry>) -> Option<&'a Annotations> {
    // SAFETY: alive, as the caller promises, and the table was made for this entry. The pointer was
    // made from the whole allocation.
    unsafe {
        let is_annotated = entry.as_ref().extra().vtable.is_annotated;
        is_annotated.then(|| &(*entry.cast::<Beginning>().as_ptr()).annotations)
    }
}

/// The place of the context of an entry with annotations.
///
/// # Safety
/// The entry is alive and has annotations.
unsafe fn context_of(entry: NonNull<Entry>) -> *mut Option<Context> {
    // SAFETY: alive, with annotations, as the caller promises; the pointer was made from the whole
    // allocation.
    UnsafeCell::raw_get(unsafe { &raw const (*entry.cast::<Beginning>().as_ptr()).annotations.context })
}

/// The name of a queued timer; `lock` proves that the entry's lock is held.
pub(super) fn label_of(linked: Linked<'_, EntryMeta>, _lock: &ShardState) -> Option<Arc<Label>> {
    // SAFETY: linked, so alive by the reference of the list, while the lock is held. (The callback
    // may be gone: a thread drops it without the lock, perhaps before the disposing thread unlinks
    // the entry. The label stays.)
    unsafe { annotations(linked.as_ptr()) }?.label.clone()
}

/// Frees the memory; nothing is dropped.
///
/// # Safety
/// `layout` is that of the entry's allocation; the caller has the last reference.
#[inline]
unsafe fn deallocate(entry: NonNull<Entry>, layout: Layout) {
    // SAFETY: a box leaked by `make_as`, so allocated with this layout; no other reference is
    // left, and the header has nothing to drop.
    unsafe { dealloc(entry.as_ptr().cast(), layout) }
}

const _: () = assert!(!needs_drop::<Entry>(), "`deallocate` drops nothing");

// ---------------------------------------------------------------- start

/// Makes an entry with two references: the handle's, and that of the queue or of the job, which
/// [`enter`] takes over. The only part of a start that each type of callback has a copy of.
#[inline]
pub(super) fn make<P: EntryPayload>(
    engine: &Engine,
    (Settings { tick_policy, label }, context): (Settings, Option<Context>),
    payload: P,
) -> EntryRef {
    if label.is_none() && context.is_none() {
        return make_as(Some(engine), tick_policy, (), payload);
    }
    make_as(Some(engine), tick_policy, Annotations { label, context: UnsafeCell::new(context) }, payload)
}

/// As [`make`], for one form of entry. Without an engine it belongs to no shard yet, and has one
/// reference.
#[inline]
pub(super) fn make_as<A, P: EntryPayload>(
    engine: Option<&Engine>,
    tick_policy: TickPolicy,
    annotations: A,
    payload: P,
) -> EntryRef {
    let shard = engine.map(|engine| engine.shard_here().as_ptr());
    let meta = EntryMeta { shard: Cell::new(shard), vtable: Table::<A, P>::VTABLE };
    let header = Node::with(1 + u32::from(shard.is_some()), P::KIND, tick_policy, meta);
    let all = NonNull::from(Box::leak(Box::new(Allocation { header, annotations, payload })));
    // SAFETY: just made, and the first reference is given to the result.
    unsafe { EntryRef::from_raw(all.cast()) }
}

/// Makes an entry that is not started, and is freed as an entry that was counted out.
#[inline]
pub(super) fn make_unstarted<P: EntryPayload>(payload: P) -> EntryRef {
    let entry = make_as(None, MissedTicks::Skip.into(), (), payload);
    // SAFETY: just made, so no other thread uses it.
    unsafe { entry.get().set_location_alone(Location::COUNTED_OUT) };
    entry
}

/// Whether the entry has been started.
///
/// # Safety
/// No other thread starts the entry meanwhile.
#[inline]
pub(super) unsafe fn is_started(entry: &EntryRef) -> bool {
    entry.get().extra().shard.get().is_some()
}

/// Starts an entry made by [`make_unstarted`], on the shard of this core, for a single firing at an
/// instant; at once if it has passed. `before`: a reading of the clock, shortly before.
///
/// # Safety
/// The entry has not been started, and no other thread starts it meanwhile, or asks [`is_started`].
/// The caller has a reference.
#[inline]
pub(super) unsafe fn start_at(entry: &EntryRef, engine: &Engine, due: u64, before: u64) {
    entry.get().extra().shard.set(Some(engine.shard_here().as_ptr()));
    entry.get().retain(); // for the queue
    // SAFETY: never entered before, so no other thread looks at the location, and no queue has the
    // entry. The second reference is that just taken.
    unsafe {
        entry.get().set_location_alone(Location::IDLE);
        enter(entry, |state, shard| {
            let now = state.now(shard, before);
            (Schedule::once(due.max(now)), now)
        })
    };
}

/// Counts a new entry in, and gives it its first schedule: `schedule` says when it is due, with the
/// lock held, and what the clock shows then. False: the runtime has ended, and the entry is
/// disposed.
///
/// # Safety
/// `entry` is just made, and its second reference is for this call.
#[inline(always)] // into functions that have no copies
pub(super) unsafe fn enter(
    entry: &EntryRef,
    schedule: impl FnOnce(&mut ShardState, &Shard) -> (Schedule, u64),
) -> bool {
    // The engine, which the caller has, keeps the shard alive until the timer is counted in.
    let shard = entry.shard();
    let mut state = shard.lock();
    state.arrive(shard);
    if !state.is_open() {
        drop(state);
        // SAFETY: the second reference, which the queue would have taken over.
        let last = unsafe { Entry::release(entry.as_ptr()) };
        debug_assert!(!last, "the handle has one");
        dispose(entry);
        return false;
    }
    state.tally.created += 1;
    if let Clock::Manual { virtual_time, .. } = &shard.clock {
        entry.get().state.first_number(virtual_time.next_number());
    }
    let (schedule, now) = schedule(&mut state, shard);
    // SAFETY: new, so alive and idle, with a reference for the queue (the caller says so).
    let left = unsafe { state.insert_or_claim(shard, entry.as_ptr(), schedule, now) };
    end_section(state, left);
    true
}

/// As [`enter`], for a timer with a due time and a period, whose handle is returned.
///
/// # Safety
/// As [`enter`].
#[inline(never)] // one copy, however many types of callbacks there are
unsafe fn enter_after(entry: EntryRef, due_ns: u64, period: Period) -> OwnedEntry {
    // A sweep with a slightly later reading does no harm.
    let before = entry.shard().clock.now();
    // SAFETY: the caller says so.
    unsafe {
        enter(&entry, |state, shard| {
            let now = state.now(shard, before);
            (Schedule { due: later(now, due_ns), period }, now)
        })
    };
    OwnedEntry::of(entry)
}

/// The reference of a handle: dropping it disposes the timer.
pub(crate) struct OwnedEntry {
    entry: ManuallyDrop<EntryRef>,
}

impl OwnedEntry {
    /// Makes and starts a timer of the program, in the context of the calling thread. `when`: due
    /// time and period.
    #[inline]
    pub(crate) fn start<P: EntryPayload>(
        engine: &Engine,
        settings: impl Into<Settings>,
        (due, period): (Duration, Duration),
        callback: P,
    ) -> Self {
        let entry = make(engine, (settings.into(), Context::here(engine)), callback);
        // SAFETY: just made.
        unsafe { enter_after(entry, whole_ns(due), Period::new(period)) }
    }

    /// As [`Self::start`], for an idle timer of the crate's own, which keeps no context.
    pub(crate) fn start_own<P: EntryPayload>(engine: &Engine, callback: P) -> Self {
        let entry = make_as(Some(engine), MissedTicks::default().into(), (), callback);
        // SAFETY: just made.
        unsafe { enter_after(entry, NEVER, Period::NONE) }
    }

    /// The handle of a new timer.
    pub(super) fn of(entry: EntryRef) -> Self {
        Self { entry: ManuallyDrop::new(entry) }
    }

    /// Gives up the handle; the timer is not disposed.
    pub(crate) fn into_entry(mut self) -> EntryRef {
        // SAFETY: taken once: `forget` below keeps the handle's own drop from running.
        let entry = unsafe { ManuallyDrop::take(&mut self.entry) };
        std::mem::forget(self);
        entry
    }
}

impl std::ops::Deref for OwnedEntry {
    type Target = EntryRef;

    #[inline]
    fn deref(&self) -> &EntryRef {
        &self.entry
    }
}

impl Drop for OwnedEntry {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken once: the handle is being dropped.
        dispose_last(unsafe { ManuallyDrop::take(&mut self.entry) });
    }
}

// ---------------------------------------------------------------- references

/// A counted reference to an entry.
pub(crate) struct EntryRef(NonNull<Entry>);

// SAFETY: the fields of a header are atomics, constant, or under the lock of the shard: a `Key` is
// needed to reach those, and only a locked queue lends one. An `EntryPayload` may be used and
// dropped on any thread. Annotations are `Send` and `Sync`: see `annotations_are_for_any_thread`.
unsafe impl Send for EntryRef {}
// SAFETY: see `Send`.
unsafe impl Sync for EntryRef {}

const _: fn() = || {
    fn annotations_are_for_any_thread<T: Send + Sync>() {}
    annotations_are_for_any_thread::<(Option<Arc<Label>>, Option<Context>)>();
};

impl EntryRef {
    /// # Safety
    /// The caller owns a reference, and gives it to the result.
    #[inline]
    pub(crate) unsafe fn from_raw(node: NonNull<Entry>) -> Self {
        Self(node)
    }

    #[inline]
    pub(crate) fn get(&self) -> &Entry {
        // SAFETY: the counted reference keeps the entry alive.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(crate) fn as_ptr(&self) -> NonNull<Entry> {
        self.0
    }

    #[inline]
    pub(crate) fn shard(&self) -> &Shard {
        // SAFETY: a shard outlives its entries, which are counted in. Only a thread that holds the
        // engine, and so the shard, uses an entry that was counted out. Only `TimerArc` has entries
        // that were not started, and asks first.
        unsafe { self.get().extra().shard().as_ref() }
    }

    /// The name of the timer.
    pub(super) fn label(&self) -> Option<&Arc<Label>> {
        // SAFETY: alive by this reference.
        unsafe { annotations(self.0) }?.label.as_ref()
    }

    /// The name of the timer, as text.
    pub(crate) fn name(&self) -> Option<&str> {
        self.label().map(|label| &*label.name)
    }

    /// The function that runs the callback: see [`EntryPayload::call`].
    #[inline]
    pub(super) fn callback(&self) -> unsafe fn(NonNull<Entry>, &Firing) {
        self.get().extra().vtable.call
    }

    /// Whether the payload is a callback of the program's.
    pub(super) fn is_callback(&self) -> bool {
        self.get().extra().vtable.is_callback
    }

    /// See [`EntryPayload::IS_OF_PROGRAM`].
    pub(super) fn is_of_program(&self) -> bool {
        self.get().extra().vtable.is_of_program
    }

    /// Of a wall timer, its index in the list of its shard. The thread with the lock of the shard
    /// reads and writes it.
    #[inline]
    pub(super) fn wall_index(&self) -> Option<&AtomicU32> {
        let at = self.get().extra().vtable.wall_index_at?;
        // SAFETY: alive by this reference. The pointer was made from the whole allocation, and the
        // place is that of the payload's field, which no thread drops before the entry is freed.
        Some(unsafe { self.0.byte_add(at.get()).cast().as_ref() })
    }

    /// The address that identifies the entry, for [`inside`].
    pub(crate) fn address(&self) -> *const () {
        self.0.as_ptr().cast_const().cast()
    }
}

impl Clone for EntryRef {
    fn clone(&self) -> Self {
        self.get().retain();
        Self(self.0)
    }
}

impl Drop for EntryRef {
    fn drop(&mut self) {
        // SAFETY: this reference is the one given back, and is not used afterwards.
        if unsafe { Entry::release(self.0) } {
            // SAFETY: `release` says that the reference was the last.
            unsafe { free(self.0, None) };
        }
    }
}

// ---------------------------------------------------------------- change

/// Replaces due time and period, counting from now (S15 to S18).
#[inline(never)] // one copy
pub(crate) fn change(node: &EntryRef, due: Duration, period: Duration) -> Changed {
    change_to::<false>(node, Clock::now, |now| instant(now, due), |_| Period::new(period)).0
}

/// Replaces the due time by an instant, at once if it has passed; the timer fires once. `before`: a
/// reading of the clock, shortly before.
pub(super) fn change_at(node: &EntryRef, due: u64, before: u64) -> Changed {
    change_to::<false>(node, |_| before, |now| due.max(now), |_| Period::NONE).0
}

/// Replaces the due time, counting from now, and leaves the period.
pub(crate) fn restart(node: &EntryRef, due: Duration) -> Changed {
    restart_under_lock(node, due).0
}

/// As [`restart`], for a caller with a lock of its own.
#[inline(never)] // one copy
pub(crate) fn restart_under_lock(node: &EntryRef, due: Duration) -> (Changed, Notice) {
    change_to::<true>(node, Clock::now, |now| instant(now, due), |inner| node.get().period(inner.queue.key()))
}

/// `APART`: the caller drops the notice later; else there is nothing left to do. `read` reads the
/// clock, or has just done so.
#[inline(always)] // into all callers, so that `change` costs as much as without the others
fn change_to<const APART: bool>(
    node: &EntryRef,
    read: impl FnOnce(&Clock) -> u64,
    due: impl FnOnce(u64) -> u64,
    period: impl FnOnce(&ShardState) -> Period,
) -> (Changed, Notice) {
    let shard = node.shard();
    let now = read(&shard.clock);
    let mut inner = shard.lock();
    if !inner.is_open() {
        return (Changed::Ended, Notice::NOTHING);
    }
    inner.tally.changed += 1;
    let now = inner.now(shard, now);
    let schedule = Schedule { due: due(now), period: period(&inner) };
    // SAFETY: alive by the caller's reference, and belongs to this shard, whose lock is held.
    let (rescheduled, left) =
        unsafe { inner.reschedule(shard, node.as_ptr(), schedule, now, ShardState::number(shard)) };
    if APART {
        return (rescheduled, end_section_apart(inner, left));
    }
    end_section(inner, left);
    (rescheduled, Notice::NOTHING)
}

// ---------------------------------------------------------------- the end

/// Disposes the timer and gives the handle's reference back. If only the handle and the queue refer
/// to the timer, this takes a single lock section and no further atomic operation. (A wall timer
/// that waits has a further reference, of its list.)
#[inline(never)] // one copy, however many places drop a timer
pub(super) fn dispose_last(handle: EntryRef) {
    let handle = ManuallyDrop::new(handle);
    let node = handle.as_ptr();
    // SAFETY: alive by the handle's reference; a shard outlives its entries, which are counted in.
    let (shared, shard) = unsafe { (node.as_ref(), node.as_ref().extra().shard().as_ref()) };
    // The end of a block releases the lock, not `drop(inner)`: a guard passed as an argument would
    // have to stay valid until `drop` returns. But another thread may free the shard once this
    // timer is counted out and the lock is free.
    let counted_out = {
        let mut inner = shard.lock();
        let was_queued = shared.is_queued(inner.queue.key());
        // Only the handle and the queue refer to the entry: no job, no running callback, no waiter
        // (I15). No reference can be added, since the handle is this thread's and the lock guards
        // the queue.
        shared.has_only(1 + u32::from(was_queued)).then(|| {
            // SAFETY: alive, and of this shard, whose lock is held.
            unsafe { inner.unlink_disposed(node) };
            inner.count_out(shared).then_some(shard.number)
        })
    };
    match counted_out {
        // SAFETY: all references were the handle's and the queue's, which has been taken out; the
        // lock is free.
        Some(counted_out) => unsafe { free(node, counted_out) },
        None => dispose(&ManuallyDrop::into_inner(handle)),
    }
}

/// Stops the timer for good, without waiting (S19, S20).
#[inline(never)] // one copy
pub(crate) fn dispose(node: &EntryRef) {
    let shared = node.get();
    let outcome = shared.state.dispose();
    if outcome == Dispose::Already {
        return;
    }
    // A sweep may have claimed a tick and inserted the entry again after the step above. No later
    // section inserts the entry: `settle` and `rearm` look at DISPOSED with the lock held.
    let (was_queued, waited) = {
        let mut state = node.shard().lock();
        // SAFETY: alive by the caller's reference; the lock of its own shard is held.
        (unsafe { state.unlink_disposed(node.as_ptr()) }, state.walls.remove(node))
    };
    drop(waited); // the reference of the list of wall timers, after the lock
    if outcome == Dispose::DropPayload {
        finish_disposal(node);
    }
    if was_queued {
        // SAFETY: the list's reference, which unlinking has given to this function.
        let last = unsafe { Entry::release(node.as_ptr()) };
        debug_assert!(!last, "the caller has a reference");
    }
}

/// The end of a disposed timer, when no callback runs or will run: drops the payload and wakes the
/// waiters.
#[inline(never)] // one copy
pub(super) fn finish_disposal(node: &EntryRef) {
    // SAFETY: alive by the reference, and so is its shard. The state word gives this right to a
    // single caller, after the last callback (I12).
    unsafe { drop_payload(node.as_ptr(), None) };
    if node.get().state.mark_dropped() {
        for waker in node.shard().waiters.take(node) {
            contain(&node.shard().number, || waker.wake());
        }
    }
}

/// Frees an entry: drops the payload if it is still there, then frees the memory. Then, if the
/// entry has not been counted out, departs from the shard. `counted_out`: the caller has counted
/// the entry out of its shard, which may be freed meanwhile, and this is the number of its runtime.
///
/// # Safety
/// The caller has the last reference, and holds no lock of this crate. If another thread has
/// counted the entry out, the caller holds the runtime.
unsafe fn free(node: NonNull<Entry>, counted_out: Option<EngineNumber>) {
    // SAFETY: with the last reference, the caller alone uses header and payload.
    unsafe {
        let vtable = node.as_ref().extra().vtable;
        let counted_in = !(*node.as_ptr()).is_counted_out();
        if counted_in || vtable.drop_payload.is_some() || vtable.is_annotated {
            return free_with_payload(node, counted_in, counted_out);
        }
        deallocate(node, vtable.layout);
    }
}

/// The rest of [`free`], where `counted_in` says whether the entry is counted in still. A function
/// of its own, so that the path of a timer with nothing to drop is straight.
///
/// # Safety
/// As [`free`].
#[inline(never)]
unsafe fn free_with_payload(node: NonNull<Entry>, counted_in: bool, counted_out: Option<EngineNumber>) {
    // SAFETY: with the last reference, the caller alone uses header and payload. The shard outlives
    // the entry, which is counted in until `depart` or `is_counted_out`. The entry was started: one
    // that never was is counted out and has nothing to drop, so `free` does not come here.
    unsafe {
        let meta = node.as_ref().extra();
        let (shard, vtable) = (meta.shard(), meta.vtable);
        drop_payload(node, counted_out);
        if vtable.is_annotated {
            (&raw mut (*node.cast::<Beginning>().as_ptr()).annotations).drop_in_place();
        }
        deallocate(node, vtable.layout);
        if counted_in {
            Shard::depart(shard);
        }
    }
}

/// Frees the memory of an entry with nothing left to drop, which was counted out.
///
/// # Safety
/// The entry has this payload and no annotations; the caller has the last reference.
#[inline]
pub(super) unsafe fn free_empty<P>(node: NonNull<Entry>) {
    // SAFETY: the caller's promises, and this is the layout of such an entry.
    unsafe { deallocate(node, Layout::new::<Allocation<(), P>>()) }
}

/// Drops the payload, unless its callback was consumed, or it was dropped before. The panic handler
/// is told of a panic, before the timer counts as ended: a handler that waits for that end does not
/// wait for itself.
///
/// # Safety
/// No callback runs or will run, and no other thread drops the payload (I12). The entry is alive.
/// Without `counted_out`, so is its shard.
#[inline]
unsafe fn drop_payload(node: NonNull<Entry>, counted_out: Option<EngineNumber>) {
    // SAFETY: alive, as the caller promises.
    let shared = unsafe { node.as_ref() };
    let Some(drop_payload) = shared.extra().vtable.drop_payload.filter(|_| shared.state.has_payload()) else { return };
    let timer = node.as_ptr().cast_const().cast();
    // SAFETY: the table of this entry; dropped once, as the caller promises.
    let dropped = catch_unwind(AssertUnwindSafe(|| inside(timer, || unsafe { drop_payload(node) })));
    if let Err(panic) = dropped {
        // SAFETY: alive, as the caller promises, and the label stays until the entry is freed.
        inside(timer, || unsafe { tell_of(node, counted_out, panic) });
    }
}

/// The destructor of the payload has panicked.
///
/// # Safety
/// As [`drop_payload`].
#[cold]
unsafe fn tell_of(node: NonNull<Entry>, counted_out: Option<EngineNumber>, panic: Payload) {
    // SAFETY: the entry and, unless it was counted out, the shard are alive, as the caller
    // promises.
    let (number, label) = unsafe {
        let number = counted_out.unwrap_or_else(|| node.as_ref().extra().shard().as_ref().number);
        (number, annotations(node).and_then(|annotations| annotations.label.clone()))
    };
    number.tell_of(panic, label);
}
