//! Entries: a timer as the engine knows it. An entry is a single allocation: a header ([`Node`]),
//! followed by the payload, which is usually the callback.
//!
//! Ground rules. The engine uses an entry through its header. Code with knowledge of the payload's
//! type provides a table of functions ([`VTable`]). The payload is a `ManuallyDrop`: the state word
//! decides which thread drops it, and when (I12).
//!
//! The thread that gives back the last reference frees the entry, with no lock held (I15). This
//! thread also drops a payload that was neither dropped before nor consumed (I12), and the
//! destructor may run any code.

#![allow(unsafe_code)] // lifetime of entries, and the payload behind the header

use std::alloc::{Layout, dealloc};
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, offset_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::Duration;

use super::Engine;
use super::label::{self, Carrier, Label, Named, Plain, Settings};
use super::number::EngineNumber;
use super::ops::{dispose_last, start_new};
use super::shard::{Shard, ShardState};
use crate::queue::list::Linked;
use crate::queue::state::{Begin, End};
use crate::queue::tick_policy::TickPolicy;
use crate::queue::{Kind, Node};
use crate::sync::{Arc, Ordering};
use crate::unwind::Payload;

/// The engine's part of the header: the shard of the entry, and the functions for its payload.
pub(crate) struct EntryMeta {
    pub(super) shard: NonNull<Shard>,
    pub(super) vtable: &'static VTable,
}

// SAFETY: `Shard` is `Sync`, and a shard outlives its entries (see `shard_refs`).
unsafe impl Send for EntryMeta {}
// SAFETY: see `Send`.
unsafe impl Sync for EntryMeta {}

/// The header of an entry.
pub(crate) type Entry = Node<EntryMeta>;

/// The functions for the payload behind a header.
pub(crate) struct VTable {
    /// Runs the callback. Caller: between `begin` and `end` of the state word, which ensure
    /// exclusiveness.
    pub(super) call: unsafe fn(NonNull<Entry>, &Firing),
    /// Drops the payload in place; `None`: there is nothing to drop. Caller: once, when no callback
    /// runs or will run (I12).
    pub(super) drop_payload: Option<unsafe fn(NonNull<Entry>)>,
    /// The layout with which header and payload were allocated.
    pub(super) layout: Layout,
    /// The payload is a callback of the program's, which may run on an executor of the program's.
    pub(super) is_callback: bool,
    /// The place of the name in the allocation, an `Arc<Label>`; `None`: no such timer has a name.
    /// Unlike the callback, the name stays until the entry is freed.
    pub(super) label_at: Option<usize>,
    /// Takes a disposed timer out of further lists than the queue's; `None`: there are none.
    /// Caller: holds no lock.
    pub(super) leave_lists: Option<unsafe fn(&EntryRef)>,
}

/// A due tick on its way to the callback, and what the callback learns of the tick. Carries a
/// reference.
pub(crate) struct Firing {
    pub(crate) entry: EntryRef,
    /// The instant at which the tick was due.
    pub(crate) scheduled: u64,
    /// Ticks left out before this tick.
    pub(crate) missed: u64,
}

// ---------------------------------------------------------------- header and payload

#[repr(C)]
struct Allocation<P> {
    header: Entry,
    payload: UnsafeCell<ManuallyDrop<P>>,
}

/// Allocates a header with its payload. The thread with the last reference frees both.
#[inline]
pub(super) fn allocate<P>(header: Entry, payload: P) -> NonNull<Entry> {
    let all = Box::new(Allocation { header, payload: UnsafeCell::new(ManuallyDrop::new(payload)) });
    NonNull::from(Box::leak(all)).cast()
}

/// The payload of an entry.
///
/// # Safety
/// `entry` was made by [`allocate`] with a `P`, and is alive.
#[inline]
pub(super) unsafe fn payload<P>(entry: NonNull<Entry>) -> *mut ManuallyDrop<P> {
    // SAFETY: the header is the first field of the allocation (`repr(C)`), and the pointer was made
    // from the whole allocation.
    unsafe { UnsafeCell::raw_get(&raw const (*entry.cast::<Allocation<P>>().as_ptr()).payload) }
}

/// The place of the payload in the allocation.
pub(super) const fn payload_at<P>() -> usize {
    offset_of!(Allocation<P>, payload)
}

/// The layout of the allocation that [`allocate`] makes for this payload.
pub(super) const fn layout<P>() -> Layout {
    Layout::new::<Allocation<P>>()
}

/// Frees the memory; the payload is not dropped.
///
/// # Safety
/// `entry` was made by [`allocate`] with a payload of this [`layout`]; the caller has the last
/// reference.
#[inline]
pub(super) unsafe fn deallocate(entry: NonNull<Entry>, layout: Layout) {
    // SAFETY: a box leaked by `allocate`, so allocated with this layout; no other reference is
    // left, and the header has nothing to drop.
    unsafe { dealloc(entry.as_ptr().cast(), layout) }
}

const _: () = assert!(!std::mem::needs_drop::<Entry>(), "`deallocate` drops nothing");

// ---------------------------------------------------------------- callbacks

/// The three ways in which the callback in this payload is called.
struct Calls<P>(PhantomData<P>);

impl<P: Carrier> Calls<P> {
    const fn table(call: unsafe fn(NonNull<Entry>, &Firing)) -> VTable {
        let drop_payload: Option<unsafe fn(NonNull<Entry>)> =
            if std::mem::needs_drop::<P::Callback>() { Some(Self::drop_callback) } else { None };
        let label_at = label::plus(P::LABEL_AT, payload_at::<P>());
        VTable { call, drop_payload, layout: layout::<P>(), is_callback: true, label_at, leave_lists: None }
    }

    /// Drops the callback, and leaves the label.
    ///
    /// # Safety
    /// As [`VTable::drop_payload`]; the payload is a `P`.
    unsafe fn drop_callback(entry: NonNull<Entry>) {
        // SAFETY: called once, when no callback runs or will run, as the caller promises.
        unsafe { std::ptr::drop_in_place(Self::callback(entry)) }
    }

    /// # Safety
    /// As [`payload`], with a `P`.
    #[inline]
    unsafe fn callback(entry: NonNull<Entry>) -> *mut P::Callback {
        // SAFETY: the payload is alive, as the caller promises, and the place is that of the field.
        unsafe { payload::<P>(entry).byte_add(P::CALLBACK_AT).cast() }
    }
}

impl<P: Carrier<Callback: Fn(&Firing)>> Calls<P> {
    const OVERLAPPING: &'static VTable = &Self::table(Self::call);

    /// # Safety
    /// As [`VTable::call`]; the payload is a `P`.
    unsafe fn call(entry: NonNull<Entry>, firing: &Firing) {
        // SAFETY: the payload is alive between `begin` and `end`; only overlapping calls share it,
        // and `overlapping` asks for `F: Sync`.
        unsafe { (*Self::callback(entry))(firing) }
    }
}

impl<P: Carrier<Callback: FnMut(&Firing)>> Calls<P> {
    const EXCLUSIVE: &'static VTable = &Self::table(Self::call_mut);

    /// # Safety
    /// As [`VTable::call`]; the payload is a `P`, and the entry is exclusive.
    unsafe fn call_mut(entry: NonNull<Entry>, firing: &Firing) {
        // SAFETY: the payload is alive between `begin` and `end`, and an exclusive timer runs one
        // callback at a time.
        unsafe { (*Self::callback(entry))(firing) }
    }
}

impl<P: Carrier<Callback: FnOnce(&Firing)>> Calls<P> {
    const ONCE: &'static VTable = &Self::table(Self::call_once);

    /// # Safety
    /// As [`VTable::call`]; the payload is a `P`, and the entry fires once.
    unsafe fn call_once(entry: NonNull<Entry>, firing: &Firing) {
        // SAFETY: `begin` marks the callback as consumed in the same step that allows this call. So
        // the callback is taken once, and no thread drops it in place (I12).
        unsafe { Self::callback(entry).read()(firing) }
    }
}

#[inline]
fn start<P>(
    engine: &Engine,
    kind: Kind,
    tick_policy: TickPolicy,
    vtable: &'static VTable,
    (due, period): (Duration, Duration),
    payload: P,
) -> OwnedEntry {
    let entry = allocate(engine.header(kind, tick_policy, vtable), payload);
    // SAFETY: just made; `start_new` places one of the two references, the owner has the second.
    unsafe {
        start_new(entry, due, period);
        OwnedEntry::new(EntryRef::from_raw(entry))
    }
}

/// As [`start`], with the label, if there is one.
#[inline(always)]
fn start_named<F>(
    engine: &Engine,
    (kind, settings): (Kind, Settings),
    (plain, named): (&'static VTable, &'static VTable),
    when: (Duration, Duration),
    callback: F,
) -> OwnedEntry {
    let Settings { tick_policy, label } = settings;
    match label {
        None => start(engine, kind, tick_policy, plain, when, Plain(callback)),
        Some(label) => start(engine, kind, tick_policy, named, when, Named::new(callback, label)),
    }
}

/// Makes and starts a timer whose callbacks may overlap.
#[inline]
pub(crate) fn overlapping<F: Fn(&Firing) + Send + Sync + 'static>(
    engine: &Engine,
    settings: impl Into<Settings>,
    when: (Duration, Duration),
    callback: F,
) -> OwnedEntry {
    let tables = (Calls::<Plain<F>>::OVERLAPPING, Calls::<Named<F>>::OVERLAPPING);
    start_named(engine, (Kind::Overlapping, settings.into()), tables, when, callback)
}

/// Makes and starts a timer with one callback at a time.
#[inline]
pub(crate) fn exclusive<F: FnMut(&Firing) + Send + 'static>(
    engine: &Engine,
    settings: impl Into<Settings>,
    when: (Duration, Duration),
    callback: F,
) -> OwnedEntry {
    let tables = (Calls::<Plain<F>>::EXCLUSIVE, Calls::<Named<F>>::EXCLUSIVE);
    start_named(engine, (Kind::Exclusive, settings.into()), tables, when, callback)
}

/// Makes and starts a timer that fires once.
#[inline]
pub(crate) fn once<F>(engine: &Engine, settings: impl Into<Settings>, due: Duration, callback: F) -> OwnedEntry
where
    F: FnOnce(&Firing) + Send + 'static,
{
    let tables = (Calls::<Plain<F>>::ONCE, Calls::<Named<F>>::ONCE);
    start_named(engine, (Kind::Once, settings.into()), tables, (due, Duration::ZERO), callback)
}

/// The place of the name of a timer, which no thread writes.
///
/// # Safety
/// The entry is alive.
unsafe fn label_place(entry: NonNull<Entry>) -> Option<*mut Arc<Label>> {
    // SAFETY: alive, as the caller promises. The pointer was made from the whole allocation, and
    // the place is that of the field.
    unsafe { entry.as_ref().extra().vtable.label_at.map(|at| entry.as_ptr().byte_add(at).cast()) }
}

/// The name of a queued timer; `lock` proves that the entry's lock is held.
pub(super) fn label_of(linked: Linked<'_, EntryMeta>, _lock: &ShardState) -> Option<Arc<Label>> {
    // SAFETY: linked, so alive by the reference of the list, while the lock is held. (The callback
    // may be gone: a thread drops it without the lock, perhaps before the disposing thread unlinks
    // the entry. The label stays.)
    unsafe { label_place(linked.as_ptr()).map(|label| Arc::clone(&*label)) }
}

// ---------------------------------------------------------------- references

impl Entry {
    /// Gives back a reference; true: the last reference, and the caller frees the entry (I15).
    ///
    /// Release publishes the caller's use of the entry to the thread that frees the entry; the
    /// acquire load there pairs with all these releases. (An acquire load instead of a fence, since
    /// race detectors understand loads.) The owner of the only reference need not count down.
    ///
    /// The argument is a pointer: a `&Node` would have to stay valid until this returns, but
    /// another thread may free the entry right after the subtraction.
    ///
    /// # Safety
    /// The caller owns the reference. After `false` the caller uses the entry by a further
    /// reference, or not at all.
    #[must_use]
    pub(crate) unsafe fn release(node: NonNull<Self>) -> bool {
        // SAFETY: the caller's reference keeps the entry alive up to the subtraction. Only the
        // atomic is borrowed.
        let refs = unsafe { &(*node.as_ptr()).refs };
        if refs.load(Ordering::Acquire) == 1 {
            return true;
        }
        let last = refs.fetch_sub(1, Ordering::Release) == 1;
        if last {
            refs.load(Ordering::Acquire);
        }
        last
    }
}

/// A counted reference to an entry.
pub(crate) struct EntryRef(NonNull<Entry>);

// SAFETY: the fields of a header are atomics, constant, or under the lock of the shard: a `Key` is
// needed to reach those, and only a locked queue lends one. The functions that make entries ask for
// a callback that is `Send`, and `Sync` where callbacks may overlap.
unsafe impl Send for EntryRef {}
// SAFETY: see `Send`.
unsafe impl Sync for EntryRef {}

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
        // engine, and so the shard, uses an entry that was counted out.
        unsafe { self.get().extra().shard.as_ref() }
    }

    /// Whether the payload is a callback of the program's.
    pub(super) fn is_callback(&self) -> bool {
        self.get().extra().vtable.is_callback
    }

    /// The address that identifies the entry, for [`inside`].
    pub(crate) fn address(&self) -> *const () {
        self.0.as_ptr().cast_const().cast()
    }

    /// Turns the reference into a pointer without counting: the caller passes on the ownership.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<Entry> {
        let node = self.0;
        std::mem::forget(self);
        node
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

impl Firing {
    /// A queued job begins: edge 3 of the state word.
    #[inline]
    pub(super) fn begin(&self) -> Begun<'_> {
        match self.entry.get().begin() {
            Begin::Run => Begun::Run(Running(self)),
            Begin::RunAndSettle => Begun::RunAndSettle(Running(self)),
            Begin::Settle => Begun::Settle,
            Begin::Refused => Begun::Refused,
        }
    }
}

/// The next step of a job; see [`Begin`].
pub(super) enum Begun<'a> {
    Run(Running<'a>),
    RunAndSettle(Running<'a>),
    Settle,
    Refused,
}

/// The right to run the callback once, given by the state word.
pub(super) struct Running<'a>(&'a Firing);

impl Running<'_> {
    #[inline]
    pub(super) fn call(&self) {
        let Self(firing) = self;
        let entry = &firing.entry;
        // SAFETY: between `begin`, which made this value, and `end`, which takes it.
        // (`Engine::run_firing`, the only caller, calls once.)
        unsafe { (entry.get().extra().vtable.call)(entry.as_ptr(), firing) }
    }

    /// The name of the timer.
    #[inline]
    pub(super) fn label(&self) -> Option<Arc<Label>> {
        // SAFETY: alive by this reference.
        unsafe { label_place(self.0.entry.as_ptr()).map(|label| Arc::clone(&*label)) }
    }

    /// The callback has returned, or panicked: edge 5 of the state word.
    #[inline]
    pub(super) fn end(self) -> End {
        self.0.entry.get().end()
    }
}

/// The reference of a handle: dropping it disposes the timer.
pub(crate) struct OwnedEntry {
    entry: ManuallyDrop<EntryRef>,
}

impl OwnedEntry {
    #[inline]
    pub(super) fn new(entry: EntryRef) -> Self {
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

/// Frees an entry: drops the payload if it is still there, then frees the memory. Then, if the
/// entry has not been counted out, departs from the shard. `counted_out`: the caller has counted
/// the entry out, of a shard of this runtime, which may be freed meanwhile.
///
/// # Safety
/// The caller has the last reference, and holds no lock of this crate. If another thread has
/// counted the entry out, the caller holds the runtime.
pub(super) unsafe fn free(node: NonNull<Entry>, counted_out: Option<EngineNumber>) {
    // SAFETY: with the last reference, the caller alone uses header and payload.
    unsafe {
        let vtable = node.as_ref().extra().vtable;
        let counted_in = counted_out.is_none() && !(*node.as_ptr()).is_counted_out();
        if counted_in || vtable.drop_payload.is_some() || vtable.label_at.is_some() {
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
    // the entry, which is counted in until `depart` or `is_counted_out`.
    unsafe {
        let &EntryMeta { shard, vtable } = node.as_ref().extra();
        if vtable.drop_payload.is_some() && node.as_ref().state.has_payload() {
            drop_payload(node, counted_out);
        }
        if let Some(label) = label_place(node) {
            std::ptr::drop_in_place(label);
        }
        deallocate(node, vtable.layout);
        if counted_in {
            Shard::depart(shard);
        }
    }
}

/// Drops the payload, if its table has a function for that. The panic handler is told of a panic,
/// before the timer counts as ended: a handler that waits for that end does not wait for itself.
///
/// # Safety
/// As [`VTable::drop_payload`]; the entry is alive. Without `counted_out`, so is its shard.
#[inline]
pub(super) unsafe fn drop_payload(node: NonNull<Entry>, counted_out: Option<EngineNumber>) {
    let timer = node.as_ptr().cast_const().cast();
    // SAFETY: the caller's promises are the same.
    let dropped = catch_unwind(AssertUnwindSafe(|| unsafe {
        if let Some(drop_payload) = node.as_ref().extra().vtable.drop_payload {
            inside(timer, || drop_payload(node));
        }
    }));
    if let Err(panicked) = dropped {
        // SAFETY: alive, as the caller promises, and the label stays until the entry is freed.
        inside(timer, || unsafe { tell_of(node, counted_out, panicked) });
    }
}

/// The destructor of the payload has panicked.
///
/// # Safety
/// As [`drop_payload`].
#[cold]
unsafe fn tell_of(node: NonNull<Entry>, counted_out: Option<EngineNumber>, panicked: Payload) {
    // SAFETY: the entry and, unless it was counted out, the shard are alive, as the caller
    // promises.
    let (number, label) = unsafe {
        let number = counted_out.unwrap_or_else(|| node.as_ref().extra().shard.as_ref().number);
        (number, label_place(node).map(|label| Arc::clone(&*label)))
    };
    number.tell_of(panicked, label);
}

// ---------------------------------------------------------------- the code that a thread is inside of

/// Code that the current thread is inside of: the callback of a timer or its payload's destructor;
/// a handed-over callback of an engine; the callbacks of a source; the driving of a manual clock.
/// Frames nest where a callback drives a manual clock or runs another handed-over callback, or a
/// destructor disposes another timer.
struct Frame {
    /// The address of the timer's entry, of the engine, of the source, of the agenda, or, for a
    /// panic handler, the engine's plus 1; compared, never followed. All are alive meanwhile, so no
    /// two are equal.
    of: *const (),
    outer: *const Frame,
}

crate::sync::thread_local! {
    static INNERMOST: Cell<*const Frame> = const { Cell::new(std::ptr::null()) };
}

/// Runs `code` with the thread marked as inside of the code at an address.
#[inline(always)] // a call would pass what `code` has captured through memory, for each firing
pub(crate) fn inside<R>(of: *const (), code: impl FnOnce() -> R) -> R {
    /// Restores the outer frame, also when the code unwinds.
    struct Restore(*const Frame);
    impl Drop for Restore {
        fn drop(&mut self) {
            INNERMOST.with(|innermost| innermost.set(self.0));
        }
    }
    let frame = Frame { of, outer: INNERMOST.with(Cell::get) };
    let _restore = Restore(frame.outer);
    INNERMOST.with(|innermost| innermost.set(&frame));
    code()
}

/// Visits the addresses of all the code that the current thread is inside of.
pub(super) fn each_frame(mut visit: impl FnMut(*const ())) {
    let mut at = INNERMOST.with(Cell::get);
    // SAFETY: frames live on this thread's stack, and `Restore` unlinks each frame before its end.
    while let Some(frame) = unsafe { at.as_ref() } {
        visit(frame.of);
        at = frame.outer;
    }
}

/// Whether the current thread is inside of the code at an address.
pub(crate) fn is_inside(of: *const ()) -> bool {
    times_inside(of) > 0
}

/// How many times the current thread is inside of the code at an address.
pub(super) fn times_inside(of: *const ()) -> usize {
    let mut times = 0;
    each_frame(|frame| times += usize::from(frame == of));
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unwind::catch_all;

    #[test]
    fn frames_nest_and_are_left_by_a_panic() {
        let (one, other) = (&raw const *Box::new(1) as *const (), 8 as *const ());
        inside(one, || {
            catch_all(|| inside(other, || panic!("on purpose")));
            assert!(is_inside(one) && !is_inside(other));
            inside(other, || assert!(is_inside(one) && is_inside(other)));
            inside(one, || assert_eq!((times_inside(one), times_inside(other)), (2, 0)));
        });
        assert!(!is_inside(one));
    }
}
