//! Cancellation: sources that cancel, tokens that tell, registrations that are called.
//!
//! Ground rules. A source and its tokens share one [`Inner`]. `status` goes from zero to a reason once, by one atomic step.
//! The thread that takes that step, the canceller, first marks all sources that are linked to this one, directly or not.
//! Then it calls, outside all locks: what is registered with the source, last in first out, then the same for each of the
//! linked sources that it has marked. `registry` has a leaf lock. A registration checks `status` with that lock held, and
//! the canceller empties the registry with it held after the step, so either the registration sees the cancellation or the
//! canceller finds it.
//!
//! [`registry`] is the stack of callbacks and wakers; [`children`] knows the linked sources.

mod children;
mod registration;
mod registry;
mod slab;
mod source;
mod token;
mod waiting;

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

pub use self::registration::Registration;
pub use self::source::{CancellationTokenSource, DropGuard};
pub use self::token::CancellationToken;
pub use self::waiting::{CancelledFuture, CancelledOwned, RunUntilCancelled};

use self::children::{Link, Shards};
use self::registry::{Callback, Entry, Id, Orphans, Registry};
use self::slab::PAGE;
use crate::runtime::RuntimeHandle;
use crate::sync::{AtomicU64, Condvar, Mutex, Ordering, ThreadId, fence, thread_id};
use crate::timer::Timer;
use crate::unwind::{catch_all, catch_first};

/// Why a token was cancelled (S48). The first reason stays.
///
/// # Examples
///
/// A source that is cancelled by hand:
///
/// ```
/// use timerqueue::{CancelReason, CancellationTokenSource};
///
/// let source = CancellationTokenSource::new();
/// source.cancel();
/// assert_eq!(source.token().reason(), Some(CancelReason::Cancelled));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CancelReason {
    /// By hand: [`CancellationTokenSource::cancel`], or a [`DropGuard`].
    Cancelled,
    /// By the time given to [`CancellationTokenSource::cancel_after`].
    Timeout,
    /// By a source it is linked to.
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

/// A token was cancelled: the error of [`CancellationToken::check`], and what awaiting a token gives.
///
/// # Examples
///
/// A step of some work that stops when it is asked to:
///
/// ```
/// use timerqueue::{CancellationToken, Cancelled};
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
    /// Why.
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

/// A timeout becomes `TimedOut`, any other reason `Other`.
impl From<Cancelled> for std::io::Error {
    fn from(cancelled: Cancelled) -> Self {
        let kind = match cancelled.reason {
            CancelReason::Timeout => std::io::ErrorKind::TimedOut,
            _ => std::io::ErrorKind::Other,
        };
        Self::new(kind, cancelled)
    }
}

/// A bit of `Inner::status`, beside the reason: all that is linked to this source, directly or not, is marked.
const TREE_MARKED: u64 = 4;

/// Handles of one source, as many as may be there: code that forgets them cannot wrap the count. As for `Arc`, there are
/// more than any program has that does not mean to.
const MOST_HANDLES: u64 = i64::MAX as u64;

/// What a source and its tokens share.
struct Inner {
    /// Zero, or the code of the reason, and [`TREE_MARKED`]. The step is a release; reading it non-zero an acquire: a thread that sees
    /// a token cancelled sees what its canceller did before.
    status: AtomicU64,
    /// Sources and tokens. The `Arc` that they stand for is counted once for all of them.
    handles: AtomicU64,
    registered: Mutex<Registered>,
    callback_ended: Condvar,
    timed: Mutex<Timed>,
    source: RuntimeHandle,
    children: Shards,
    /// Places with the parents. Dropped, and so unlinked, with this.
    links: Vec<Link>,
}

struct Registered {
    registry: Registry,
    /// The callback that runs now, and on which thread.
    running: Option<(Id, ThreadId)>,
}

/// The end of a source with callbacks that are not called any more: a destructor that panics keeps none from being dropped.
impl Drop for Registered {
    fn drop(&mut self) {
        while let Some((_, entry)) = self.registry.pop() {
            catch_all(|| drop(entry));
        }
    }
}

/// The timed cancel.
#[derive(Default)]
struct Timed {
    timer: Option<Timer>,
    /// A finite `cancel_after` is in force.
    armed: bool,
    /// A callback of the timer has begun, and has cancelled or is going to.
    begun: bool,
}

impl Inner {
    fn new(source: RuntimeHandle, links: Vec<Link>) -> Self {
        Self {
            status: AtomicU64::new(0),
            handles: AtomicU64::new(1),
            registered: Mutex::new(Registered { registry: Registry::new(), running: None }),
            callback_ended: Condvar::new(),
            timed: Mutex::new(Timed::default()),
            source,
            children: Shards::new(),
            links,
        }
    }

    fn reason(&self) -> Option<CancelReason> {
        CancelReason::from_code(self.status.load(Ordering::Acquire))
    }

    /// The step from not cancelled to cancelled.
    fn mark(&self, reason: CancelReason) -> bool {
        self.status.compare_exchange(0, reason.code(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Cancels this source and all that are linked to it. False: it was cancelled before. The payload of the first panic
    /// comes back after everything has been called.
    fn cancel(&self, reason: CancelReason) -> (bool, Option<Box<dyn Any + Send>>) {
        if !self.mark(reason) {
            return (false, None);
        }
        // Pairs with the fences in `linked` and `poll_cancelled`: either `children` is seen here, or the cancellation there.
        fence(Ordering::SeqCst);
        // All marks before the first call: a callback that blocks leaves no linked source uncancelled.
        let marked = if self.children.are_there() { self.mark_tree() } else { Vec::new() };
        let mut panic = None;
        self.tell(&mut panic);
        marked.into_iter().for_each(|source| source.tell(&mut panic));
        (true, panic)
    }

    /// Marks what is linked to this source, directly or not. Returns the sources that this call has marked, each after the
    /// one that it was found with. Loops and not a recursion: chains of sources may be long.
    #[inline(never)]
    fn mark_tree(&self) -> Vec<Arc<Self>> {
        let mut marked = Vec::new();
        // Sources that another canceller has marked, and whose trees it may not have marked to the end.
        let (mut others, mut seen) = (Vec::new(), BTreeSet::new());
        self.mark_children(&mut marked, &mut others, &mut seen);
        let (mut looked_at, mut parents) = (0, Vec::new());
        loop {
            while let Some(source) = marked.get(looked_at) {
                // Looked at after the fence that follows its mark.
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
        // Release: seeing the bit is seeing the marks. Sources without shards go without: there is nothing to look through.
        for parent in parents.iter().map(|parent| &**parent).chain([self]) {
            parent.status.fetch_or(TREE_MARKED, Ordering::Release);
        }
        marked
    }

    /// Marks the sources that are linked to this one.
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
                fence(Ordering::SeqCst); // as in `cancel`: between the mark that was seen and the look at the children
                if child.children.are_there() && seen.insert(Arc::as_ptr(&child)) {
                    others.push(child);
                }
            }
        });
        fence(Ordering::SeqCst); // as in `cancel`, for each of them
    }

    /// The timed cancel, in its callback. False: it was withdrawn. A runtime that has ended cannot tell whether such a callback
    /// was still under way, so it is asked here.
    fn begin_timed(&self) -> bool {
        let mut timed = self.timed.lock();
        timed.begun |= timed.armed;
        timed.begun
    }

    /// Calls and wakes all that is registered.
    fn tell(&self, panic: &mut Option<Box<dyn Any + Send>>) {
        // The timed cancel has no purpose any more. (Inside its own callback this does not wait.)
        let timer = self.timed.lock().timer.take();
        drop(timer);
        let me = thread_id();
        loop {
            let entry = {
                let mut registered = self.registered.lock();
                let next = registered.registry.pop();
                registered.running = next.as_ref().map(|(id, _)| (*id, me));
                next
            };
            // The one before has ended.
            self.callback_ended.notify_all();
            match entry {
                Some((_, Entry::Callback(callback))) => catch_first(panic, callback),
                Some((_, Entry::Waker(waker))) => catch_first(panic, || waker.wake()),
                None => break,
            }
        }
        // A future that comes here later sees that the token is cancelled: see the fence in `cancel`.
        if self.children.is_spread() {
            self.children.take_wakers(|waker| catch_first(panic, || waker.wake()));
        }
    }

    /// Registers, unless cancelled.
    fn register(&self, callback: Callback) -> Result<Id, Callback> {
        let mut registered = self.registered.lock();
        if self.reason().is_some() {
            return Err(callback);
        }
        Ok(registered.registry.push(Entry::Callback(callback)))
    }

    fn unregister(&self, id: Id) -> bool {
        let mut registered = self.registered.lock();
        let entry = registered.registry.remove(id);
        let leftover = registered.registry.leftover();
        drop(registered);
        drop(leftover);
        entry.is_some() // dropped here, outside the lock
    }

    /// Drops callbacks that a reset took out, a bounded number in a lock section, and outside of it. One that panics keeps
    /// none of the others from being dropped.
    fn drop_orphans(&self, mut orphans: Orphans) {
        let mut batch = Vec::new();
        while orphans.are_left() {
            batch.reserve(PAGE);
            let mut registered = self.registered.lock();
            batch.extend(std::iter::from_fn(|| registered.registry.next_orphan(&mut orphans)).take(PAGE));
            let leftover = registered.registry.leftover();
            drop(registered);
            drop(leftover);
            batch.drain(..).for_each(|entry| catch_all(|| drop(entry)));
        }
    }
}

/// A counted handle of an [`Inner`], for sources and tokens alike.
///
/// Handles are counted in `Inner::handles` besides, so that the last one can see to it that an inner with linked children stays alive
/// for them.
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

#[cfg(all(test, unix, not(timerqueue_loom)))]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    const CHILD: &str = "TIMERQUEUE_TEST_ABORTS";

    /// Runs `code` in a process of its own, as the test of that name, and sees that it ends the process.
    pub(super) fn aborts(test: &str, code: impl FnOnce()) {
        if std::env::var_os(CHILD).is_some() {
            code();
            std::process::exit(0);
        }
        let own = std::env::current_exe().expect("a test knows its own binary");
        let status = Command::new(own)
            .args([&format!("cancellation::{test}"), "--exact"])
            .env(CHILD, "1")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("the test binary starts again");
        assert_eq!(status.signal(), Some(libc::SIGABRT), "{status}");
    }

    /// Safe code can forget handles. Their count ends the process long before it wraps, as that of an `Arc` does.
    #[test]
    fn handles_that_are_forgotten_do_not_wrap_their_count() {
        let source = CancellationTokenSource::new();
        source.handle.handles.store(MOST_HANDLES - 1, Ordering::Relaxed);
        let tokens = [source.token(), source.token()];
        assert_eq!(source.handle.handles.load(Ordering::Relaxed), MOST_HANDLES + 1, "as many as may be");
        aborts("tests::handles_that_are_forgotten_do_not_wrap_their_count", || std::mem::forget(source.clone()));
        // The forgotten handles are counted out: the last three are here.
        source.handle.handles.store(3, Ordering::Relaxed);
        drop(tokens);
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/cancellation_harness.rs"]
mod loom_models;
