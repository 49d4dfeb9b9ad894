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
//! [`registry`] is the stack of callbacks; [`children`] holds the linked sources.

mod children;
mod registration;
mod registry;
mod source;
mod token;
mod waiting;

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

pub use self::registration::Registration;
pub use self::source::{CancellationTokenSource, DropGuard};
pub use self::token::CancellationToken;
pub use self::waiting::{CancelledFuture, CancelledOwned, RunUntilCancelled, WithToken};

use self::children::{ParentLink, Shards};
use self::registry::{Callback, Id, Registry};
use crate::engine::{OwnedEntry, Waits, inside};
use crate::runtime::RuntimeHandle;
use crate::slab::Slab;
use crate::sync::{AtomicU64, Mutex, Ordering, fence};
use crate::unwind::{catch_first, contain_drop};

/// The reason of a cancellation. The first reason stays.
///
/// # Examples
///
/// A source cancelled by hand:
///
/// ```
/// use timerqueue::{CancelReason, CancellationTokenSource};
///
/// let source = CancellationTokenSource::new();
/// source.cancel();
/// assert_eq!(source.token().reason(), Some(CancelReason::Cancelled));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CancelReason {
    /// By a call of [`CancellationTokenSource::cancel`], or by a [`DropGuard`].
    Cancelled,
    /// By a timed cancel: [`CancellationTokenSource::cancel_after`].
    Timeout,
    /// By a parent: see [`CancellationTokenSource::linked`].
    Parent,
}

impl CancelReason {
    fn code(self) -> u64 {
        match self {
            Self::Cancelled => 1,
            Self::Timeout => 2,
            Self::Parent => 3,
        }
    }

    fn from_code(code: u64) -> Option<Self> {
        match code & !TREE_MARKED {
            1 => Some(Self::Cancelled),
            2 => Some(Self::Timeout),
            3 => Some(Self::Parent),
            _ => None,
        }
    }
}

/// The error of a cancelled operation, with the reason. Also the output of
/// [`CancellationToken::cancelled`].
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cancelled {
    reason: CancelReason,
}

impl Cancelled {
    /// The reason of the cancellation.
    pub fn reason(&self) -> CancelReason {
        self.reason
    }
}

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            CancelReason::Cancelled => "cancelled",
            CancelReason::Timeout => "cancelled by a timeout",
            CancelReason::Parent => "cancelled by a linked source",
        })
    }
}

impl std::error::Error for Cancelled {}

/// [`CancelReason::Timeout`] becomes `TimedOut`, any further reason `Other`.
impl From<Cancelled> for std::io::Error {
    fn from(cancelled: Cancelled) -> Self {
        let kind = match cancelled.reason {
            CancelReason::Timeout => std::io::ErrorKind::TimedOut,
            _ => std::io::ErrorKind::Other,
        };
        Self::new(kind, cancelled)
    }
}

/// A bit of `Inner::status`, beside the reason: all sources linked to this source, direct and
/// indirect, are marked.
const TREE_MARKED: u64 = 4;

/// The limit on the handles of a source, so that a program that forgets handles cannot wrap the
/// count. As with `Arc`, no other program comes near the limit.
const MOST_HANDLES: u64 = i64::MAX as u64;

/// The state shared by a source and its tokens.
struct Inner {
    /// Zero, or the code of the reason, and [`TREE_MARKED`]. The step is a release, and a read is
    /// an acquire: a thread that sees a token cancelled sees everything that the canceller did
    /// before.
    status: AtomicU64,
    /// The number of handles: see [`Handle`].
    handles: AtomicU64,
    listeners: Mutex<Listeners>,
    timed: Mutex<Timed>,
    source: RuntimeHandle,
    children: Shards,
    /// The links to the parents. Dropping this state unlinks them.
    links: Box<[ParentLink]>,
}

/// The callbacks and the waiting tasks that a cancellation reaches.
#[derive(Default)]
struct Listeners {
    callbacks: Registry,
    /// The wakers of futures, unless a shard has them.
    wakers: Slab<Waker>,
    /// The serial number of the running callback; zero, which no callback has, if none runs.
    running: u64,
    /// The waker of the thread that waits for the end of the running callback. At most one does: a
    /// callback has one registration, which the waiting call consumes.
    awaiting: Option<Waker>,
}

/// The timed cancel.
#[derive(Default)]
struct Timed {
    timer: Option<OwnedEntry>,
    /// A finite `cancel_after` is in force.
    armed: bool,
    /// A callback of the timer has begun: the source is cancelled, or about to be.
    begun: bool,
}

/// The end of a source whose callbacks are never called.
impl Drop for Inner {
    #[inline]
    fn drop(&mut self) {
        let Listeners { callbacks, wakers, .. } = self.listeners.get_mut();
        if !(callbacks.is_empty() && wakers.is_empty()) || self.children.is_spread() {
            self.drop_listeners();
        }
    }
}

impl Inner {
    fn new(source: RuntimeHandle, links: Box<[ParentLink]>) -> Self {
        Self {
            status: AtomicU64::new(0),
            handles: AtomicU64::new(1),
            listeners: Mutex::new(Listeners::default()),
            timed: Mutex::new(Timed::default()),
            source,
            children: Shards::new(),
            links,
        }
    }

    /// The address that identifies the callbacks, for [`inside`].
    fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }

    fn reason(&self) -> Option<CancelReason> {
        CancelReason::from_code(self.status.load(Ordering::Acquire))
    }

    /// The step from not cancelled to cancelled.
    fn mark(&self, reason: CancelReason) -> bool {
        self.status.compare_exchange(0, reason.code(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Cancels this source and all linked sources. False: the source was cancelled before. Returns
    /// the payload of the first panic, after all callbacks have been called.
    fn cancel(&self, reason: CancelReason) -> (bool, Option<Box<dyn Any + Send>>) {
        if !self.mark(reason) {
            return (false, None);
        }
        // Pairs with the fences in `linked` and `wait`: either this thread sees `children`, or the
        // linking or waiting thread sees the cancellation.
        fence(Ordering::SeqCst);
        // All marks before the first call: so a callback that blocks leaves no linked source
        // uncancelled.
        let marked = if self.children.are_there() { self.mark_tree() } else { Vec::new() };
        let mut panic = None;
        self.tell(&mut panic);
        marked.into_iter().for_each(|source| source.tell(&mut panic));
        (true, panic)
    }

    /// Marks the sources linked to this source, direct and indirect. Returns the sources that this
    /// call has marked, each after the parent through which this call found the source. Loops, not
    /// a recursion: chains of sources may be long.
    #[inline(never)]
    fn mark_tree(&self) -> Vec<Arc<Self>> {
        let mut marked = Vec::new();
        // Sources marked by another canceller, which may still be marking their trees.
        let (mut others, mut seen) = (Vec::new(), BTreeSet::new());
        self.mark_children(&mut marked, &mut others, &mut seen);
        let (mut looked_at, mut parents) = (0, Vec::new());
        loop {
            while let Some(source) = marked.get(looked_at) {
                // Read after the fence that follows the mark of `source`.
                if source.children.are_there() {
                    let parent = Arc::clone(source);
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
        for parent in parents.iter().map(|parent| &**parent).chain([self]) {
            parent.status.fetch_or(TREE_MARKED, Ordering::Release);
        }
        marked
    }

    /// Marks the sources linked directly to this source.
    fn mark_children(
        &self,
        marked: &mut Vec<Arc<Self>>,
        others: &mut Vec<Arc<Self>>,
        seen: &mut BTreeSet<*const Self>,
    ) {
        self.children.children(|child| {
            if child.mark(CancelReason::Parent) {
                marked.push(child);
            } else if child.status.load(Ordering::Acquire) & TREE_MARKED == 0 {
                // as in `cancel`: between the mark that this thread has seen and the children
                fence(Ordering::SeqCst);
                if child.children.are_there() && seen.insert(Arc::as_ptr(&child)) {
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
        let mut timed = self.timed.lock();
        timed.begun |= timed.armed;
        timed.begun
    }

    /// Wakes all waiting tasks, and calls all registered callbacks.
    fn tell(&self, panic: &mut Option<Box<dyn Any + Send>>) {
        // The source needs no timed cancel any more. (Dropping a timer does not wait, also not in
        // its own callback.)
        let timer = self.timed.lock().timer.take();
        drop(timer);
        // Before the callbacks, one of which may block. A future that registers later sees that the
        // token is cancelled: see the fence in `cancel`.
        self.take_wakers(|waker| catch_first(panic, &self.source, || waker.wake()));
        loop {
            let (next, awaiting) = {
                let mut listeners = self.listeners.lock();
                let next = listeners.callbacks.pop();
                listeners.running = next.as_ref().map_or(0, |(id, _)| id.serial);
                // The previous callback has ended.
                let awaiting = listeners.awaiting.take();
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

    /// Drops what a cancellation would reach: callbacks, and the wakers of futures that were
    /// forgotten. A destructor that panics keeps nothing from being dropped.
    #[cold]
    fn drop_listeners(&self) {
        let mut callbacks = self.listeners.lock().callbacks.take();
        contain_drop(&self.source, std::iter::from_fn(|| callbacks.pop()));
        self.take_wakers(|waker| contain_drop(&self.source, [waker]));
    }

    /// Takes out the wakers of all waiting tasks, and calls `see` with each, outside the locks.
    fn take_wakers(&self, mut see: impl FnMut(Waker)) {
        let wakers = std::mem::take(&mut self.listeners.lock().wakers);
        wakers.into_values().for_each(&mut see);
        self.children.take_wakers(see);
    }

    /// Registers the callback, or gives the callback back if the source is cancelled.
    fn register(&self, callback: Callback) -> Result<Id, Callback> {
        let mut listeners = self.listeners.lock();
        if self.reason().is_some() {
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
///
/// `Inner::handles` counts the handles, beside the count of the `Arc`: dropping the last handle
/// makes an [`Inner`] with linked children stay alive for the children.
struct Handle(Arc<Inner>);

impl Handle {
    fn new(inner: Arc<Inner>) -> Self {
        Self(inner)
    }
}

impl std::ops::Deref for Handle {
    type Target = Arc<Inner>;

    fn deref(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        if self.handles.fetch_add(1, Ordering::Relaxed) > MOST_HANDLES {
            std::process::abort(); // as `Arc` does
        }
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Release and acquire as in any reference count.
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.children.keep(&self.0);
        }
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
        source.handle.handles.store(MOST_HANDLES - 1, Ordering::Relaxed);
        let tokens = [source.token(), source.token()];
        assert_eq!(source.handle.handles.load(Ordering::Relaxed), MOST_HANDLES + 1, "as many as may be");
        let test = "cancellation::tests::handles_that_are_forgotten_do_not_wrap_their_count";
        assert_aborts(test, || std::mem::forget(source.clone()));
        // The forgotten handles are counted out: the last three are here.
        source.handle.handles.store(3, Ordering::Relaxed);
        drop(tokens);
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/cancellation_harness.rs"]
mod loom_models;
