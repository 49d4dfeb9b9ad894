//! Cancellation: sources, their tokens, and registrations of callbacks.
//!
//! Ground rules. A source and its tokens share an [`Inner`]. `status` goes from zero to a reason
//! once, by an atomic step. The thread that takes this step is the canceller.
//!
//! - The canceller first marks all linked sources, direct and indirect.
//! - Then the canceller wakes the tasks that wait for the source, and calls its callbacks, last
//!   registered first, outside all locks.
//! - The canceller does the same for each linked source that it has marked.
//!
//! The lock of the listeners is a leaf lock. A registering thread checks `status` under this lock.
//! The canceller takes callbacks and wakers out under the same lock, after the step. So either the
//! registering thread sees the cancellation, or the canceller finds the callback.
//!
//! [`registry`] is the stack of callbacks; [`children`] holds the linked sources; [`cancel_async`]
//! leaves the waking and the calling to the pool.

mod cancel_async;
mod children;
mod registration;
mod registry;
mod source;
mod token;
mod waiting;

use std::error::Error;
use std::io::ErrorKind;
use std::num::NonZeroU64;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::Waker;

pub use self::cancel_async::Cancellation;
pub use self::registration::Registration;
pub use self::source::{CancellationTokenSource, DropGuard};
pub use self::token::CancellationToken;
pub use self::waiting::{CancelledFuture, CancelledOwned, RunUntilCancelled, WithToken};

use self::children::{ParentLink, Shards};
use self::registry::{Callback, Id, Registry};
use crate::engine::{Timed, TimerArc, TimerHandle, Waits, inside};
use crate::ordered_map::{Key, OrderedMap};
use crate::runtime::RuntimeHandle;
use crate::slab::Slab;
use crate::sync::{AtomicU32, Mutex, Ordering, fence, unmodelled};
use crate::time::{NEVER, later};
use crate::unwind::{Payload, catch_first, contain_drop};

/// The reason of a cancellation. The first reason stays.
///
/// A linked source has a reason of its own, [`Parent`](Self::Parent), and the *root reason* of the
/// source where the cancellation began, through any number of linked sources:
/// [`CancellationToken::root_reason`].
///
/// # Examples
///
/// A source cancelled by hand, and a source linked to it:
///
/// ```
/// use timerqueue::{CancelReason, CancellationTokenSource};
///
/// let source = CancellationTokenSource::new();
/// let linked = source.token().child_source().token();
/// source.cancel();
/// assert_eq!(source.token().reason(), Some(CancelReason::Cancelled));
/// assert_eq!(linked.reason(), Some(CancelReason::Parent));
/// assert_eq!(linked.root_reason(), Some(CancelReason::Cancelled));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CancelReason {
    /// By a call of [`CancellationTokenSource::cancel`] or a similar method, or by a [`DropGuard`].
    Cancelled,
    /// By a timed cancel: [`CancellationTokenSource::cancel_after`],
    /// [`cancel_at`](CancellationTokenSource::cancel_at).
    Timeout,
    /// By a parent: see [`CancellationTokenSource::linked`]. Never a root reason.
    Parent,
}

/// The error of a cancelled operation, with the reason, and the reason of the source where the
/// cancellation began. Also the output of [`CancellationToken::cancelled`].
///
/// Converts into an [`io::Error`](std::io::Error): of kind `TimedOut` if the root reason is a
/// timeout, also if a parent timed out; else of kind `Other`.
///
/// # Examples
///
/// A step of some work that can be cancelled:
///
/// ```
/// use timerqueue::{CancellationToken, error::Cancelled};
///
/// fn step(token: &CancellationToken) -> Result<(), Cancelled> {
///     token.check()?;
///     Ok(())
/// }
/// assert!(step(&CancellationToken::none()).is_ok());
/// ```
#[doc(alias("Canceled", "OperationCanceledException"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cancelled {
    reason: CancelReason,
    root: CancelReason,
}

impl Cancelled {
    /// The reason of the cancellation.
    pub fn reason(&self) -> CancelReason {
        self.reason
    }

    /// The reason of the source where the cancellation began; see
    /// [`CancellationToken::root_reason`].
    pub fn root_reason(&self) -> CancelReason {
        self.root
    }
}

error!(
    [] Cancelled, |this, f| f.write_str(match (this.reason, this.root) {
        (CancelReason::Cancelled, _) => "cancelled",
        (CancelReason::Timeout, _) => "cancelled by a timeout",
        (CancelReason::Parent, CancelReason::Timeout) => "cancelled by the timeout of a linked source",
        (CancelReason::Parent, _) => "cancelled by a linked source",
    }),
    /// `TimedOut` if the root reason is [`CancelReason::Timeout`], else `Other`.
    io if this.root == CancelReason::Timeout { ErrorKind::TimedOut } else { ErrorKind::Other }
);

/// A cause of the program's, shared by the sources of a tree.
type Cause = Arc<dyn Error + Send + Sync>;

/// How a source was cancelled: the value of `Inner::status`, which is zero before.
///
/// ```text
///   bits 0, 1: the reason    bits 2, 3: the root reason    bit 4: `CAUSE`    bit 5: `TREE_MARKED`
/// ```
#[derive(Clone, Copy)]
struct Mark(u32);

impl Mark {
    const REASONS: [CancelReason; 3] = [CancelReason::Cancelled, CancelReason::Timeout, CancelReason::Parent];
    const PARENT: u32 = Self::code(CancelReason::Parent);
    /// The listeners have a cause.
    const CAUSE: u32 = 1 << 4;
    /// All sources linked to this source, direct and indirect, are marked.
    const TREE_MARKED: u32 = 1 << 5;

    /// Not zero; 3 has the bits of all.
    const fn code(reason: CancelReason) -> u32 {
        reason as u32 + 1
    }

    /// Of the source where a cancellation begins.
    fn root(reason: CancelReason, has_cause: bool) -> Self {
        let code = Self::code(reason);
        Self(code | code << 2 | if has_cause { Self::CAUSE } else { 0 })
    }

    /// Of a source linked to a source with this mark.
    fn of_child(self) -> Self {
        Self(self.0 & !Self::TREE_MARKED | Self::PARENT)
    }

    fn has_cause(self) -> bool {
        self.0 & Self::CAUSE != 0
    }

    fn is_tree_marked(self) -> bool {
        self.0 & Self::TREE_MARKED != 0
    }

    fn cancelled(self) -> Cancelled {
        let reason = |code: u32| Self::REASONS[(code & 3).saturating_sub(1) as usize];
        Cancelled { reason: reason(self.0), root: reason(self.0 >> 2) }
    }
}

/// The state shared by a source and its tokens, and the callback of the timed cancel: the memory of
/// its timer. The deadline beside it is later than the time at which it is set; `None` if no timed
/// cancel is in force. It stays after a cancellation.
///
/// Each poll reads `status`, `source` and `children`. The count of handles, which threads that
/// share a token write, stands before this state. So these three come last, in another cache line:
/// else threads that poll under one token take this line from each other several times a poll.
#[repr(C)]
struct Inner {
    listeners: Mutex<Listeners>,
    /// The links to the parents. Dropping this state unlinks them.
    links: Box<[ParentLink]>,
    /// Zero, or a [`Mark`]. The step is a release, and a read is an acquire: a thread that sees a
    /// token cancelled sees everything that the canceller did before.
    status: AtomicU32,
    /// Not zero: a callback of the timed cancel has begun, and the source is cancelled or about to
    /// be. Under the lock of the timer; but here it takes no memory, and no store of its own.
    timed_begun: unmodelled::AtomicU32,
    source: RuntimeHandle,
    children: Shards,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(std::mem::offset_of!(Inner, status) >= 64);

/// The callbacks and the waiting tasks that a cancellation reaches.
#[derive(Default)]
struct Listeners {
    callbacks: Registry,
    /// The wakers of futures, unless a shard has them.
    wakers: Slab<Waker>,
    /// The serial number of the running callback; zero, which no callback has, if none runs.
    running: u64,
    /// `None`: all of it is `None`. Most sources need none of it, and are smaller by a box.
    late: Option<Box<Late>>,
}

/// What some sources have.
#[derive(Default)]
struct Late {
    /// The waker of the thread that waits for the end of the running callback. At most one does: a
    /// callback has one registration, which the waiting call consumes.
    awaiting: Option<Waker>,
    /// Set in the lock section of the step from not cancelled to cancelled, if the mark has a
    /// cause; then it stays.
    cause: Option<Cause>,
    /// The cause that the timed cancel will give.
    timeout_cause: Option<Cause>,
}

/// The end of a source whose callbacks are never called.
impl Drop for Inner {
    #[inline]
    fn drop(&mut self) {
        let Listeners { callbacks, wakers, late, .. } = self.listeners.get_mut();
        if !(callbacks.is_empty() && wakers.is_empty() && late.is_none()) || self.children.is_spread() {
            self.drop_listeners();
        }
    }
}

impl Inner {
    fn new(source: RuntimeHandle, links: Box<[ParentLink]>) -> Self {
        Self {
            status: AtomicU32::new(0),
            timed_begun: unmodelled::AtomicU32::new(0),
            listeners: Mutex::new(Listeners::default()),
            source,
            children: Shards::new(),
            links,
        }
    }

    /// The address that identifies the callbacks, for [`inside`].
    fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }

    /// The address as a key.
    fn key(&self) -> Key {
        (self.address().addr() as u64, 0)
    }

    #[inline]
    fn is_cancelled(&self) -> bool {
        self.status.load(Ordering::Acquire) != 0
    }

    fn mark(&self) -> Option<Mark> {
        Some(self.status.load(Ordering::Acquire)).filter(|&status| status != 0).map(Mark)
    }

    fn cancelled(&self) -> Option<Cancelled> {
        self.mark().map(Mark::cancelled)
    }

    /// The cause that was given with the cancellation.
    fn cause(&self) -> Option<Cause> {
        self.mark().filter(|mark| mark.has_cause()).and_then(|_| self.listeners.lock().late.as_ref()?.cause.clone())
    }

    /// The step from not cancelled to cancelled. False: cancelled before. A mark with a cause is
    /// set with the lock of the listeners held: a thread that sees the mark finds the cause under
    /// this lock, and no cause is stored by a thread that comes too late.
    fn try_mark(&self, mark: Mark, cause: Option<&Cause>) -> bool {
        let step = || self.status.compare_exchange(0, mark.0, Ordering::AcqRel, Ordering::Acquire).is_ok();
        let Some(cause) = cause else { return step() };
        let mut listeners = self.listeners.lock();
        let first = step();
        if first {
            listeners.late.get_or_insert_default().cause = Some(Arc::clone(cause));
        }
        first
    }

    /// Drops what a cancellation would reach: callbacks, and the wakers of futures that were
    /// forgotten; and the cause. A destructor that panics keeps nothing from being dropped.
    #[cold]
    fn drop_listeners(&self) {
        let (mut callbacks, late) = {
            let mut listeners = self.listeners.lock();
            (listeners.callbacks.take(), listeners.late.take())
        };
        contain_drop(&self.source, std::iter::from_fn(|| callbacks.pop()));
        contain_drop(&self.source, late);
        self.take_wakers(&mut |waker| contain_drop(&self.source, [waker]));
    }

    /// Takes out the wakers of all waiting tasks, and calls `see` with each, outside the locks.
    fn take_wakers(&self, see: &mut dyn FnMut(Waker)) {
        let wakers = std::mem::take(&mut self.listeners.lock().wakers);
        wakers.take_each(see);
        self.children.take_wakers(see);
    }
}

impl TimerArc<Inner> {
    /// As [`Self::cancel`], for the timed cancel.
    fn cancel_in_time(&self) -> (bool, Option<Payload>) {
        let cause = self.listeners.lock().late.as_ref().and_then(|late| late.timeout_cause.clone());
        self.cancel(CancelReason::Timeout, cause)
    }

    /// Replaces the cause of the timed cancel, and returns the one before: the caller drops it
    /// with no lock held.
    fn set_timeout_cause(&self, cause: Option<Cause>) -> Option<Cause> {
        let late = &mut self.listeners.lock().late;
        match cause {
            Some(cause) => late.get_or_insert_default().timeout_cause.replace(cause),
            None => late.as_mut()?.timeout_cause.take(),
        }
    }

    /// Cancels this source and all linked sources. False: the source was cancelled before. Returns
    /// the payload of the first panic, after all callbacks have been called.
    fn cancel(&self, reason: CancelReason, cause: Option<Cause>) -> (bool, Option<Payload>) {
        let Some(marked) = self.mark_all(reason, cause) else { return (false, None) };
        (true, self.tell_all(marked))
    }

    /// Marks this source and all linked sources, before the first call of a callback: so a callback
    /// that blocks leaves no linked source uncancelled. `None`: the source was cancelled before.
    /// Else the caller passes the result to [`Self::tell_all`].
    fn mark_all(&self, reason: CancelReason, cause: Option<Cause>) -> Option<Vec<Self>> {
        if !self.try_mark(Mark::root(reason, cause.is_some()), cause.as_ref()) {
            return None;
        }
        // Pairs with the fences in `linked` and `wait`: either this thread sees `children`, or the
        // linking or waiting thread sees the cancellation.
        fence(Ordering::SeqCst);
        Some(if self.children.are_there() { self.mark_tree() } else { Vec::new() })
    }

    /// Wakes the tasks and calls the callbacks of this source, then those of the linked sources
    /// that this thread has marked. Returns the payload of the first panic.
    fn tell_all(&self, marked: Vec<Self>) -> Option<Payload> {
        let mut panic = None;
        self.tell(&mut panic);
        marked.into_iter().for_each(|source| source.tell(&mut panic));
        panic
    }

    /// The mark and the cause of a source linked to this cancelled source.
    fn for_children(&self) -> Option<(Mark, Option<Cause>)> {
        Some((self.mark()?.of_child(), self.cause()))
    }

    /// Marks the sources linked to this source, direct and indirect. Returns the sources that this
    /// call has marked, each after the parent through which this call found the source. Loops, not
    /// a recursion: chains of sources may be long.
    #[inline(never)]
    fn mark_tree(&self) -> Vec<Self> {
        let mut marked = Vec::new();
        // Sources marked by another canceller, which may still be marking their trees.
        let (mut others, mut seen) = (Vec::new(), OrderedMap::new());
        self.mark_children(&mut marked, &mut others, &mut seen);
        let (mut looked_at, mut parents) = (0, Vec::new());
        loop {
            while let Some(source) = marked.get(looked_at) {
                // Read after the fence that follows the mark of `source`.
                if source.children.are_there() {
                    let parent = source.clone();
                    parent.mark_children(&mut marked, &mut others, &mut seen);
                    parents.push(parent);
                }
                looked_at += 1;
            }
            match others.pop() {
                Some(other) => other.mark_children(&mut marked, &mut others, &mut seen),
                None => break,
            }
        }
        // Release: a thread that sees the bit sees the marks. Sources without shards need no bit:
        // they have no children.
        for parent in parents.iter().chain([self]) {
            parent.status.fetch_or(Mark::TREE_MARKED, Ordering::Release);
        }
        marked
    }

    /// Marks the sources linked directly to this source.
    fn mark_children(&self, marked: &mut Vec<Self>, others: &mut Vec<Self>, seen: &mut OrderedMap) {
        // Not those of the canceller: another canceller may have marked this source.
        let Some((mark, cause)) = self.for_children() else { return };
        self.children.children(|child| {
            if child.try_mark(mark, cause.as_ref()) {
                marked.push(child);
            } else if !child.mark().is_some_and(Mark::is_tree_marked) {
                // as in `cancel`: between the mark that this thread has seen and the children
                fence(Ordering::SeqCst);
                if child.children.are_there() && seen.insert_key(child.key()) {
                    others.push(child);
                }
            }
        });
        fence(Ordering::SeqCst); // as in `cancel`, for each marked child
    }

    /// Called by the callback of the timed cancel. False: the timed cancel was withdrawn. The
    /// callback must ask here, since a runtime that has ended cannot tell the withdrawing thread
    /// whether the callback was still under way.
    fn begin_timed(&self) -> bool {
        let timer = self.lock();
        if timer.deadline.is_some() {
            self.timed_begun.store(1, Ordering::Relaxed);
        }
        self.timed_begun.load(Ordering::Relaxed) != 0
    }

    /// The earliest deadline of this source and of its parents, direct and indirect, on this
    /// source's clock; [`NEVER`] if there is none.
    fn deadline(&self) -> u64 {
        let mut earliest = self.deadline_on(&self.source);
        // All are kept to the end, so no address is used twice. Loops, not a recursion, as in
        // `mark_tree`.
        let (mut above, mut seen) = (Vec::new(), OrderedMap::new());
        let mut look_above = |source: &Self, above: &mut Vec<Self>| {
            let parents = source.links.iter().filter_map(ParentLink::parent);
            above.extend(parents.filter(|parent| seen.insert_key(parent.key())));
        };
        look_above(self, &mut above);
        let mut looked_at = 0;
        while let Some(source) = above.get(looked_at).cloned() {
            earliest = earliest.min(source.deadline_on(&self.source));
            look_above(&source, &mut above);
            looked_at += 1;
        }
        earliest
    }

    /// The deadline of this source alone, on the clock of a runtime. On another clock than the
    /// source's, as much time is left as by the source's clock.
    fn deadline_on(&self, runtime: &RuntimeHandle) -> u64 {
        let deadline = self.lock().deadline.map_or(NEVER, NonZeroU64::get);
        if deadline == NEVER || self.source.shares_clock(runtime) {
            return deadline;
        }
        later(runtime.now(), deadline.saturating_sub(self.source.now()))
    }

    /// Wakes all waiting tasks, and calls all registered callbacks.
    fn tell(&self, panic: &mut Option<Payload>) {
        // The source needs no timed cancel any more. (Disposing a timer does not wait, also not in
        // its own callback.)
        self.lock().dispose();
        // Before the callbacks, one of which may block. A future that registers later sees that the
        // token is cancelled: see the fence in `cancel`.
        self.take_wakers(&mut |waker| catch_first(panic, &self.source, || waker.wake()));
        loop {
            let (next, awaiting) = {
                let mut listeners = self.listeners.lock();
                let next = listeners.callbacks.pop();
                listeners.running = next.as_ref().map_or(0, |(id, _)| id.serial);
                // The previous callback has ended.
                let awaiting = listeners.late.as_mut().and_then(|late| late.awaiting.take());
                if awaiting.is_some() {
                    Waits::are_over(self.address());
                }
                (next, awaiting)
            };
            awaiting.into_iter().for_each(Waker::wake); // of a thread: see `unregister_and_wait`
            let Some((_, callback)) = next else { break };
            catch_first(panic, &self.source, || inside(self.address(), callback));
        }
    }

    /// Registers the callback, or gives the callback back if the source is cancelled.
    fn register(&self, callback: Callback) -> Result<Id, Callback> {
        let mut listeners = self.listeners.lock();
        if self.is_cancelled() {
            return Err(callback);
        }
        Ok(listeners.callbacks.push(callback))
    }

    fn unregister(&self, id: Id) -> bool {
        let mut listeners = self.listeners.lock();
        let callback = listeners.callbacks.remove(id);
        let leftover = listeners.callbacks.leftover();
        drop(listeners);
        drop(leftover);
        let in_time = callback.is_some();
        // A panic of the destructor surfaces, but a second panic of the thread would abort the
        // process.
        if std::thread::panicking() {
            contain_drop(&self.source, callback);
        } else {
            drop(callback);
        }
        in_time
    }
}

/// A counted handle of an [`Inner`], held by sources, tokens and registrations.
type Handle = TimerHandle<Inner>;

impl Timed for Inner {
    /// The timed cancel.
    fn fire(this: &TimerArc<Self>) {
        if this.begin_timed() {
            if let (_, Some(payload)) = this.cancel_in_time() {
                resume_unwind(payload); // caught by the pool, which calls the panic handler
            }
        }
    }

    /// An [`Inner`] with linked children stays alive for the children.
    #[inline]
    fn unhandled(this: &TimerArc<Self>) {
        this.children.keep(this);
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;
    use crate::sys::assert_aborts;

    /// Safe code can forget handles. Too many handles abort the process long before the count
    /// wraps, as with an `Arc`.
    #[test]
    fn handles_that_are_forgotten_do_not_wrap_their_count() {
        let source = CancellationTokenSource::new();
        source.handle.count().store(Handle::MOST - 1, Ordering::Relaxed);
        let tokens = [source.token(), source.token()];
        assert_eq!(source.handle.count().load(Ordering::Relaxed), Handle::MOST + 1, "as many as may be");
        let test = "cancellation::tests::handles_that_are_forgotten_do_not_wrap_their_count";
        assert_aborts(test, || std::mem::forget(source.clone()));
        // The forgotten handles are counted out: the last three are here.
        source.handle.count().store(3, Ordering::Relaxed);
        drop(tokens);
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/cancellation_harness.rs"]
mod loom_models;
