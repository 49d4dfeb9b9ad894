//! Cancellation: sources that cancel, tokens that tell, registrations that are called.
//!
//! Ground rules. A source and its tokens share one [`Inner`]. `status` goes from zero to a reason once, by one atomic step;
//! whoever takes that step tells everybody, outside all locks: first what is registered, last in first out, then linked
//! sources. `registry` has a leaf lock. A registration checks `status` with that lock held, and the canceller empties the
//! registry with it held after the step, so either the registration sees the cancellation or the canceller finds it.
//!
//! [`registry`] is the stack of callbacks and wakers; [`children`] knows the linked sources.

mod children;
mod registry;

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use self::children::{Link, Shards};
use self::registry::{Entry, Id, Registry};
use crate::delay::Source;
use crate::runtime::{Runtime, StartError};
use crate::sync::{
    AtomicU64, Condvar, Mutex, OnceLock, Ordering, ThreadId, current, fence, park, park_timeout, thread_id,
};
use crate::timer::Timer;

pin_project_lite::pin_project! {
    /// Runs a future until a token is cancelled. Made by [`CancellationToken::run_until_cancelled`].
    ///
    /// # Examples
    ///
    /// A future that ends in time, and one that does not:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::CancellationTokenSource;
    ///
    /// # smol::block_on(async {
    /// let source = CancellationTokenSource::after(Duration::from_millis(2))?;
    /// let token = source.token();
    /// assert_eq!(token.run_until_cancelled(async { 7 }).await, Some(7));
    /// assert_eq!(token.run_until_cancelled(std::future::pending::<()>()).await, None);
    /// # Ok::<(), timerqueue::StartError>(())
    /// # }).unwrap();
    /// ```
    #[must_use = "futures do nothing until they are awaited or polled"]
    pub struct RunUntilCancelled<F> {
        #[pin]
        future: F,
        cancelled: CancelledOwned,
    }
}

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
        match code {
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

/// What a source and its tokens share.
struct Inner {
    /// Zero, or the code of the reason. The step is a release; reading it non-zero an acquire: who sees a token cancelled
    /// sees what its canceller did before.
    status: AtomicU64,
    /// Sources and tokens. The `Arc` that they stand for is counted once for all of them.
    handles: AtomicU64,
    registered: Mutex<Registered>,
    callback_ended: Condvar,
    timed: Mutex<Timed>,
    source: Source,
    children: OnceLock<Shards>,
    /// Places with the parents. Dropped, and so unlinked, with this.
    _links: Vec<Link>,
}

struct Registered {
    registry: Registry,
    /// The callback that runs now, and on which thread.
    running: Option<(Id, ThreadId)>,
}

/// The timed cancel.
#[derive(Default)]
struct Timed {
    timer: Option<Timer>,
    /// A finite `cancel_after` is in force.
    armed: bool,
    /// One was moved or withdrawn too late: its callback had begun, and has cancelled or is going to.
    begun: bool,
}

impl Inner {
    fn new(source: Source, links: Vec<Link>) -> Self {
        Self {
            status: AtomicU64::new(0),
            handles: AtomicU64::new(1),
            registered: Mutex::new(Registered { registry: Registry::new(), running: None }),
            callback_ended: Condvar::new(),
            timed: Mutex::new(Timed::default()),
            source,
            children: OnceLock::new(),
            _links: links,
        }
    }

    fn reason(&self) -> Option<CancelReason> {
        CancelReason::from_code(self.status.load(Ordering::Acquire))
    }

    /// The step from not cancelled to cancelled.
    fn mark(&self, reason: CancelReason) -> bool {
        self.status.compare_exchange(0, reason.code(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Cancels this source and all that are linked to it. False: somebody else did. The payload of the first panic comes
    /// back after everybody has been told.
    fn cancel(self: &Arc<Self>, reason: CancelReason) -> (bool, Option<Box<dyn Any + Send>>) {
        if !self.mark(reason) {
            return (false, None);
        }
        // Pairs with the fence in `linked`: either `children` is seen here, or the cancellation there.
        fence(Ordering::SeqCst);
        let mut panic = None;
        self.tell(&mut panic);
        // A loop and not a recursion: chains of sources may be long.
        let mut marked = self.mark_children();
        while let Some(child) = marked.pop() {
            child.tell(&mut panic);
            marked.extend(child.mark_children());
        }
        (true, panic)
    }

    /// Marks the linked sources that are not cancelled yet.
    fn mark_children(&self) -> Vec<Arc<Self>> {
        let mut children = self.children.get().map(Shards::all).unwrap_or_default();
        children.retain(|child| child.mark(CancelReason::Parent));
        fence(Ordering::SeqCst); // as above, for each of them
        children
    }

    /// Calls and wakes whoever is registered.
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
            let Some((_, entry)) = entry else { return };
            let outcome = catch_unwind(AssertUnwindSafe(|| match entry {
                Entry::Callback(callback) => callback(),
                Entry::Waker(waker) => waker.wake(),
            }));
            if let Err(payload) = outcome {
                if panic.is_none() {
                    *panic = Some(payload);
                } else {
                    crate::user_code::contained(|| drop(payload));
                }
            }
        }
    }

    /// Registers, unless cancelled.
    fn register(&self, entry: Entry) -> Result<Id, Entry> {
        let mut registered = self.registered.lock();
        if self.reason().is_some() {
            return Err(entry);
        }
        Ok(registered.registry.push(entry))
    }

    fn unregister(&self, id: Id) -> bool {
        let entry = self.registered.lock().registry.remove(id);
        entry.is_some() // dropped here, outside the lock
    }
}

/// A counted handle of an [`Inner`], for sources and tokens alike.
///
/// Handles are counted in `Inner::handles` and stand together for one count of the `Arc`, so that the last one can see to it
/// that an inner with linked children stays alive for them.
struct Handle(ManuallyDrop<Arc<Inner>>);

impl Handle {
    fn new(inner: Arc<Inner>) -> Self {
        Self(ManuallyDrop::new(inner))
    }
}

impl std::ops::Deref for Handle {
    type Target = Arc<Inner>;

    fn deref(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Clone for Handle {
    #[allow(unsafe_code)] // a second handle on one count of the `Arc`
    fn clone(&self) -> Self {
        self.handles.fetch_add(1, Ordering::Relaxed);
        // SAFETY: a bitwise copy of the `Arc`; both copies are `ManuallyDrop`, and `drop` below drops one of them, when
        // the count of handles says that it is the last.
        Self(ManuallyDrop::new(unsafe { std::ptr::read(&*self.0) }))
    }
}

impl Drop for Handle {
    #[allow(unsafe_code)] // see `clone`
    fn drop(&mut self) {
        // Release and acquire as in any reference count.
        if self.handles.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        if let Some(children) = self.children.get() {
            children.keep(&self.0);
        }
        // SAFETY: the last handle; nobody uses the `Arc` through a handle any more.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// Cancels its tokens: by hand, after a time, or with another source.
///
/// A `CancellationTokenSource` is a handle; clones are the same source. **Dropping** it cancels nothing: tokens that are
/// left are then never cancelled, but by a `cancel_after` in force or a source it is linked to. For a cancel on drop
/// there is [`drop_guard`](Self::drop_guard).
///
/// # Examples
///
/// A thread that works until it is told to stop:
///
/// ```
/// use timerqueue::CancellationTokenSource;
///
/// let source = CancellationTokenSource::new();
/// let token = source.token();
/// let worker = std::thread::spawn(move || {
///     let mut rounds = 0u64;
///     while !token.is_cancelled() {
///         rounds += 1; // ... work ...
///     }
///     rounds
/// });
/// assert!(source.cancel());
/// println!("{} rounds", worker.join().unwrap());
/// ```
#[derive(Clone)]
pub struct CancellationTokenSource {
    handle: Handle,
}

impl CancellationTokenSource {
    /// A source that is not cancelled. Timed cancels count on the default runtime, which this does not start.
    pub fn new() -> Self {
        Self::on(Source::Global)
    }

    pub(crate) fn on(source: Source) -> Self {
        Self { handle: Handle::new(Arc::new(Inner::new(source, Vec::new()))) }
    }

    /// A source that is cancelled after `after`, unless it is moved, withdrawn or cancelled before.
    ///
    /// # Errors
    /// When the default runtime cannot be started.
    ///
    /// # Examples
    ///
    /// A thread that waits for a millisecond to pass:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancelReason, CancellationTokenSource};
    ///
    /// let source = CancellationTokenSource::after(Duration::from_millis(1))?;
    /// let cancelled = source.token().wait_timeout(Duration::from_secs(10)).unwrap_err();
    /// assert_eq!(cancelled.reason(), CancelReason::Timeout);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn after(after: Duration) -> Result<Self, StartError> {
        let source = Self::new();
        source.cancel_after(after)?;
        Ok(source)
    }

    /// A source that is cancelled when any of these tokens is, and not the other way round; born cancelled if one of them
    /// already is (S47). Timed cancels count on the default runtime.
    ///
    /// Dropping the last handle of the linked source takes it out of its parents at once.
    ///
    /// # Examples
    ///
    /// A request that ends with its connection or with the server:
    ///
    /// ```
    /// use timerqueue::{CancelReason, CancellationTokenSource};
    ///
    /// let (shutdown, request) = (CancellationTokenSource::new(), CancellationTokenSource::new());
    /// let linked = CancellationTokenSource::linked([&shutdown.token(), &request.token()]);
    /// request.cancel();
    /// assert_eq!(linked.token().reason(), Some(CancelReason::Parent));
    /// assert!(!shutdown.is_cancelled());
    /// ```
    pub fn linked<'a>(parents: impl IntoIterator<Item = &'a CancellationToken>) -> Self {
        let parents: Vec<&Handle> = parents.into_iter().filter_map(|token| token.handle.as_ref()).collect();
        let source = parents.first().map_or(Source::Global, |parent| parent.source.clone());
        let inner = Arc::new_cyclic(|child: &Weak<Inner>| {
            let links = parents
                .iter()
                .map(|parent| parent.children.get_or_init(Shards::new).link(Weak::clone(child)))
                .collect();
            Inner::new(source, links)
        });
        // A parent that was cancelled before the child was linked, or that could not see it before it was complete. The fence
        // pairs with those of the canceller, which marks, and then looks for children.
        fence(Ordering::SeqCst);
        if parents.iter().any(|parent| parent.reason().is_some()) {
            inner.mark(CancelReason::Parent);
        }
        Self { handle: Handle::new(inner) }
    }

    /// A token of this source.
    pub fn token(&self) -> CancellationToken {
        CancellationToken { handle: Some(self.handle.clone()) }
    }

    /// Whether it has been cancelled. True before the first registered callback runs (S40).
    pub fn is_cancelled(&self) -> bool {
        self.handle.reason().is_some()
    }

    /// Cancels: marks the source, then calls what is registered on this thread, last registered first, outside all locks,
    /// then does the same for linked sources. Returns whether this call was the one that cancelled (S40, S41).
    ///
    /// # Panics
    /// With the first panic of a registered callback, or of a waker, after all of them have run.
    ///
    /// # Examples
    ///
    /// The first call cancels, a further one does nothing:
    ///
    /// ```
    /// use timerqueue::CancellationTokenSource;
    ///
    /// let source = CancellationTokenSource::new();
    /// let _registration = source.token().register(|| println!("cleaning up"));
    /// assert!(source.cancel());
    /// assert!(!source.cancel());
    /// ```
    pub fn cancel(&self) -> bool {
        self.cancel_for(CancelReason::Cancelled)
    }

    fn cancel_for(&self, reason: CancelReason) -> bool {
        let (first, panic) = self.handle.cancel(reason);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
        first
    }

    /// Cancels after `after` from now (S45). There is one timed cancel: a further call moves it, `Duration::MAX` withdraws
    /// it, zero cancels here and now. On a cancelled source it does nothing. Registered callbacks run on the runtime's pool;
    /// a panic of one goes to the runtime's panic handler.
    ///
    /// When the runtime is shut down, its timed cancels never come: what must end with the runtime, too, is to be cancelled
    /// by hand.
    ///
    /// # Errors
    /// When the default runtime cannot be started.
    ///
    /// # Examples
    ///
    /// Moved, and then withdrawn:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let source = runtime.cancellation_source();
    /// source.cancel_after(Duration::from_secs(5))?;
    /// source.cancel_after(Duration::from_secs(60))?; // moved
    /// clock.advance(Duration::from_secs(59));
    /// assert!(!source.is_cancelled());
    /// source.cancel_after(Duration::MAX)?; // withdrawn
    /// clock.advance(Duration::from_secs(3600));
    /// assert!(!source.is_cancelled());
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn cancel_after(&self, after: Duration) -> Result<(), StartError> {
        if self.is_cancelled() {
            return Ok(());
        }
        if after.is_zero() {
            self.cancel_for(CancelReason::Timeout);
            return Ok(());
        }
        let mut timed = self.handle.timed.lock();
        let never = after == Duration::MAX;
        match &timed.timer {
            Some(timer) => {
                let was_waiting = timer.change(after, Duration::ZERO).was_waiting();
                timed.begun |= timed.armed && !was_waiting;
            }
            None if never => return Ok(()),
            None => timed.timer = Some(self.timer(after)?),
        }
        timed.armed = !never;
        // A canceller that came between has taken no timer, or an older one: this one would fire for nothing.
        let leftover = if self.is_cancelled() { timed.timer.take() } else { None };
        drop(timed);
        drop(leftover);
        Ok(())
    }

    fn timer(&self, after: Duration) -> Result<Timer, StartError> {
        let inner = Arc::downgrade(&self.handle.0);
        let fire = move |_: &crate::timer::Tick<'_>| {
            if let Some(inner) = inner.upgrade() {
                if let (_, Some(payload)) = inner.cancel(CancelReason::Timeout) {
                    resume_unwind(payload); // caught by the pool, which tells the panic handler
                }
            }
        };
        let when = (after, Duration::ZERO);
        let policy = crate::queue::MissedTicks::Skip;
        Ok(match &self.handle.source {
            Source::Global => crate::timer::overlapping(Runtime::global()?.engine(), policy, when, fire),
            Source::Engine(engine) => crate::timer::overlapping(engine, policy, when, fire),
        })
    }

    /// Makes an un-cancelled source ready for another use: withdraws the timed cancel and drops all registered callbacks
    /// without calling them (S46). Tasks that await a token go on waiting.
    ///
    /// True only if no cancellation has happened, nor can still happen from an earlier `cancel_after`. False: take a new
    /// source.
    ///
    /// # Examples
    ///
    /// One source for one request after the other:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let source = runtime.cancellation_source();
    /// for _request in 0..3 {
    ///     source.cancel_after(Duration::from_secs(10))?;
    ///     // ... the request, well within its time ...
    ///     assert!(source.try_reset());
    /// }
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn try_reset(&self) -> bool {
        let mut timed = self.handle.timed.lock();
        if timed.begun {
            return false;
        }
        if let Some(timer) = timed.timer.as_ref().filter(|_| timed.armed) {
            if !timer.change(Duration::MAX, Duration::ZERO).was_waiting() {
                return false; // its callback has begun
            }
            timed.armed = false;
        }
        drop(timed);
        let dropped = {
            let mut registered = self.handle.registered.lock();
            if self.is_cancelled() {
                return false;
            }
            registered.registry.take_callbacks()
        };
        drop(dropped);
        true
    }

    /// A guard that cancels this source when it is dropped.
    ///
    /// # Examples
    ///
    /// Whatever was started in a scope ends with it:
    ///
    /// ```
    /// use timerqueue::CancellationTokenSource;
    ///
    /// let source = CancellationTokenSource::new();
    /// let token = source.token();
    /// {
    ///     let _guard = source.drop_guard();
    /// }
    /// assert!(token.is_cancelled());
    /// ```
    pub fn drop_guard(self) -> DropGuard {
        DropGuard { source: Some(self) }
    }
}

impl Default for CancellationTokenSource {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for CancellationTokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancellationTokenSource").field("reason", &self.handle.reason()).finish_non_exhaustive()
    }
}

/// Cancels a source when it is dropped. Made by [`CancellationTokenSource::drop_guard`].
///
/// Dropped while its thread panics, it cancels all the same; a panic of a registered callback is swallowed then, since a
/// second one would end the process.
///
/// # Examples
///
/// The work has gone well, and nothing is cancelled:
///
/// ```
/// use timerqueue::CancellationTokenSource;
///
/// let guard = CancellationTokenSource::new().drop_guard();
/// let source = guard.disarm();
/// assert!(!source.is_cancelled());
/// ```
#[derive(Debug)]
#[must_use = "dropped at once, it cancels at once"]
pub struct DropGuard {
    source: Option<CancellationTokenSource>,
}

impl DropGuard {
    /// Gives the source back; nothing is cancelled.
    pub fn disarm(mut self) -> CancellationTokenSource {
        self.source.take().expect("taken only here and by drop")
    }
}

impl Drop for DropGuard {
    fn drop(&mut self) {
        if let Some(source) = &self.source {
            let (_, panic) = source.handle.cancel(CancelReason::Cancelled);
            match panic {
                // A second panic while unwinding would end the process.
                Some(payload) if !std::thread::panicking() => resume_unwind(payload),
                _ => {}
            }
        }
    }
}

/// Tells whether its source has been cancelled; can be polled, waited for, awaited, and called back by.
///
/// Clones are cheap and equal. [`CancellationToken::none`] is never cancelled and costs nothing.
///
/// # Examples
///
/// A computation that looks at its token now and then:
///
/// ```
/// use timerqueue::{CancellationToken, CancellationTokenSource, Cancelled};
///
/// fn sum(numbers: &[u64], token: &CancellationToken) -> Result<u64, Cancelled> {
///     let mut sum = 0;
///     for n in numbers {
///         token.check()?;
///         sum += n;
///     }
///     Ok(sum)
/// }
///
/// let source = CancellationTokenSource::new();
/// assert_eq!(sum(&[1, 2, 3], &source.token()), Ok(6));
/// source.cancel();
/// assert!(sum(&[1, 2, 3], &source.token()).is_err());
/// assert_eq!(sum(&[1, 2, 3], &CancellationToken::none()), Ok(6));
/// ```
#[derive(Clone)]
pub struct CancellationToken {
    handle: Option<Handle>,
}

impl CancellationToken {
    /// A token that is never cancelled (S49).
    pub const fn none() -> Self {
        Self { handle: None }
    }

    /// Whether its source has been cancelled. One atomic load.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.reason().is_some()
    }

    /// Why its source was cancelled; `None` if it was not.
    #[inline]
    pub fn reason(&self) -> Option<CancelReason> {
        self.handle.as_ref()?.reason()
    }

    /// An error if its source has been cancelled, to be used with `?`.
    ///
    /// # Errors
    /// [`Cancelled`], if it was.
    #[inline]
    pub fn check(&self) -> Result<(), Cancelled> {
        self.reason().map_or(Ok(()), |reason| Err(Cancelled { reason }))
    }

    /// Has `callback` called once when the source is cancelled: on the cancelling thread, last registered first (S41). On a
    /// cancelled token it is called at once, here (S42). Dropping the registration unregisters it, without waiting.
    ///
    /// A callback that owns a source or a token of its own keeps that alive until it is called or unregistered.
    ///
    /// # Examples
    ///
    /// A message to whoever must know:
    ///
    /// ```
    /// use timerqueue::CancellationTokenSource;
    ///
    /// let source = CancellationTokenSource::new();
    /// let (send, receive) = std::sync::mpsc::channel();
    /// let registration = source.token().register(move || send.send("stop").unwrap());
    /// source.cancel();
    /// assert_eq!(receive.recv().unwrap(), "stop");
    /// assert!(!registration.unregister()); // too late
    /// ```
    pub fn register(&self, callback: impl FnOnce() + Send + 'static) -> Registration {
        let Some(handle) = &self.handle else { return Registration { at: None } };
        // Cancelled already: no need to box it.
        if self.is_cancelled() {
            callback();
            return Registration { at: None };
        }
        match handle.register(Entry::Callback(Box::new(callback))) {
            Ok(id) => Registration { at: Some((handle.clone(), id)) },
            Err(entry) => {
                if let Entry::Callback(callback) = entry {
                    callback();
                }
                Registration { at: None }
            }
        }
    }

    /// A source that is cancelled with this token: [`CancellationTokenSource::linked`] with one parent. Its timed cancels
    /// count on the runtime of this token's source.
    ///
    /// # Examples
    ///
    /// A child that ends before its parent:
    ///
    /// ```
    /// use timerqueue::CancellationTokenSource;
    ///
    /// let parent = CancellationTokenSource::new();
    /// let child = parent.token().child_source();
    /// child.cancel();
    /// assert!(!parent.is_cancelled());
    /// ```
    #[doc(alias = "child_token")]
    pub fn child_source(&self) -> CancellationTokenSource {
        CancellationTokenSource::linked([self])
    }

    /// Waits for the cancellation (S49). Never ready for [`none`](Self::none).
    ///
    /// # Examples
    ///
    /// A task that waits to be told:
    ///
    /// ```
    /// use timerqueue::{CancelReason, CancellationTokenSource};
    ///
    /// # smol::block_on(async {
    /// let source = CancellationTokenSource::new();
    /// let token = source.token();
    /// std::thread::spawn(move || source.cancel());
    /// assert_eq!(token.cancelled().await.reason(), CancelReason::Cancelled);
    /// # });
    /// ```
    pub fn cancelled(&self) -> CancelledFuture<'_> {
        CancelledFuture { token: self, id: None }
    }

    /// As [`cancelled`](Self::cancelled), without borrowing the token.
    pub fn cancelled_owned(&self) -> CancelledOwned {
        CancelledOwned { token: self.clone(), id: None }
    }

    /// Runs `future` until it is ready, or until the source is cancelled: `None` then, and the future is dropped with the
    /// returned one. A result that is there together with the cancellation is not lost.
    ///
    /// # Examples
    ///
    /// A server that takes requests until it is shut down:
    ///
    /// ```
    /// use timerqueue::CancellationTokenSource;
    ///
    /// # async fn next_request() -> u32 { 1 }
    /// # smol::block_on(async {
    /// let shutdown = CancellationTokenSource::new();
    /// let token = shutdown.token();
    /// let mut served = 0;
    /// while let Some(request) = token.run_until_cancelled(next_request()).await {
    ///     served += request;
    ///     if served == 3 {
    ///         shutdown.cancel();
    /// #       break;
    ///     }
    /// }
    /// assert_eq!(served, 3);
    /// # });
    /// ```
    pub fn run_until_cancelled<F: IntoFuture>(&self, future: F) -> RunUntilCancelled<F::IntoFuture> {
        RunUntilCancelled { future: future.into_future(), cancelled: self.cancelled_owned() }
    }

    /// Blocks the thread until the source is cancelled, or for `limit` (S49). For [`none`](Self::none) that is always
    /// the limit. Real time, whatever clock the source's runtime is on.
    ///
    /// # Errors
    /// [`Cancelled`], if it was cancelled in time. (An error, so that `?` leaves the function.)
    ///
    /// # Examples
    ///
    /// A pause that can be cut short:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::CancellationTokenSource;
    ///
    /// let source = CancellationTokenSource::new();
    /// assert!(source.token().wait_timeout(Duration::from_millis(1)).is_ok());
    /// source.cancel();
    /// assert!(source.token().wait_timeout(Duration::from_secs(60)).is_err());
    /// ```
    pub fn wait_timeout(&self, limit: Duration) -> Result<(), Cancelled> {
        let until = Instant::now().checked_add(limit);
        let thread = current();
        let registration = self.register(move || thread.unpark());
        loop {
            self.check()?;
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => break,
                Some(left) => park_timeout(left),
                None => park(),
            }
        }
        drop(registration);
        Ok(())
    }
}

/// Tokens are equal when they belong to the same source, or are both never cancelled.
impl PartialEq for CancellationToken {
    fn eq(&self, other: &Self) -> bool {
        match (&self.handle, &other.handle) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Eq for CancellationToken {}

/// Never cancelled.
impl Default for CancellationToken {
    fn default() -> Self {
        Self::none()
    }
}

impl fmt::Debug for CancellationToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancellationToken").field("reason", &self.reason()).finish_non_exhaustive()
    }
}

/// A callback's place with a token. Made by [`CancellationToken::register`]. Dropping it unregisters, without waiting.
///
/// # Examples
///
/// A callback that is taken out in time:
///
/// ```
/// use timerqueue::CancellationTokenSource;
///
/// let source = CancellationTokenSource::new();
/// let registration = source.token().register(|| unreachable!());
/// assert!(registration.unregister());
/// source.cancel();
/// ```
#[must_use = "dropping a registration unregisters the callback"]
pub struct Registration {
    at: Option<(Handle, Id)>,
}

impl Registration {
    /// Takes the callback out. True: it had not begun, and never will (S43, S44). Does not wait.
    pub fn unregister(mut self) -> bool {
        self.at.take().is_some_and(|(handle, id)| handle.unregister(id))
    }

    /// As [`unregister`](Self::unregister), and if the callback runs now on another thread, blocks until it has ended. Called
    /// by the callback itself, or by one that runs on the same thread, it does not wait.
    ///
    /// # Examples
    ///
    /// After this nobody uses what the callback uses:
    ///
    /// ```
    /// use std::sync::atomic::{AtomicBool, Ordering};
    /// use timerqueue::CancellationTokenSource;
    ///
    /// static IN_USE: AtomicBool = AtomicBool::new(false);
    ///
    /// let source = CancellationTokenSource::new();
    /// let registration = source.token().register(|| {
    ///     IN_USE.store(true, Ordering::Relaxed);
    ///     IN_USE.store(false, Ordering::Relaxed);
    /// });
    /// let canceller = std::thread::spawn(move || source.cancel());
    /// registration.unregister_and_wait();
    /// assert!(!IN_USE.load(Ordering::Relaxed));
    /// # canceller.join().unwrap();
    /// ```
    pub fn unregister_and_wait(mut self) -> bool {
        let Some((handle, id)) = self.at.take() else { return false };
        if handle.unregister(id) {
            return true;
        }
        let me = thread_id();
        let mut registered = handle.registered.lock();
        while registered.running.is_some_and(|(running, thread)| running == id && thread != me) {
            handle.callback_ended.wait(&mut registered);
        }
        false
    }

    /// Keeps the callback registered for as long as the source lives.
    pub fn detach(mut self) {
        self.at = None;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some((handle, id)) = self.at.take() {
            handle.unregister(id);
        }
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").finish_non_exhaustive()
    }
}

/// Waits for a token to be cancelled. Made by [`CancellationToken::cancelled`].
///
/// **Dropping** it takes the waker out at once. Once ready, it stays ready.
///
/// # Examples
///
/// A task that says why it ends:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::CancellationTokenSource;
///
/// # smol::block_on(async {
/// let source = CancellationTokenSource::after(Duration::from_millis(1))?;
/// let token = source.token();
/// let cancelled = token.cancelled().await;
/// assert_eq!(cancelled.to_string(), "cancelled by a timeout");
/// # Ok::<(), timerqueue::StartError>(())
/// # }).unwrap();
/// ```
#[must_use = "futures do nothing until they are awaited or polled"]
pub struct CancelledFuture<'a> {
    token: &'a CancellationToken,
    id: Option<Id>,
}

/// Waits for a token to be cancelled, without borrowing it. Made by [`CancellationToken::cancelled_owned`].
///
/// **Dropping** it takes the waker out at once. Once ready, it stays ready.
///
/// # Examples
///
/// A future that can be sent to a task of its own:
///
/// ```
/// use timerqueue::{CancelReason, CancellationTokenSource};
///
/// # smol::block_on(async {
/// let source = CancellationTokenSource::new();
/// let task = smol::spawn(source.token().cancelled_owned());
/// source.cancel();
/// assert_eq!(task.await.reason(), CancelReason::Cancelled);
/// # });
/// ```
#[must_use = "futures do nothing until they are awaited or polled"]
pub struct CancelledOwned {
    token: CancellationToken,
    id: Option<Id>,
}

fn poll_cancelled(token: &CancellationToken, id: &mut Option<Id>, context: &mut Context<'_>) -> Poll<Cancelled> {
    let Some(handle) = &token.handle else { return Poll::Pending };
    if let Some(reason) = handle.reason() {
        return Poll::Ready(Cancelled { reason });
    }
    // Cloned and dropped outside the lock: it is the executor's code.
    let mut waker = context.waker().clone();
    let mut registered = handle.registered.lock();
    if let Some(reason) = handle.reason() {
        drop(registered);
        return Poll::Ready(Cancelled { reason });
    }
    match id.and_then(|id| registered.registry.get_mut(id)) {
        Some(Entry::Waker(stored)) => std::mem::swap(stored, &mut waker),
        _ => {
            *id = Some(registered.registry.push(Entry::Waker(waker)));
            return Poll::Pending;
        }
    }
    drop(registered);
    drop(waker);
    Poll::Pending
}

fn withdraw(token: &CancellationToken, id: &mut Option<Id>) {
    if let (Some(handle), Some(id)) = (&token.handle, id.take()) {
        handle.unregister(id);
    }
}

impl CancelledOwned {
    /// Nobody waits any more.
    pub(crate) fn withdraw(&mut self) {
        withdraw(&self.token, &mut self.id);
    }
}

impl Future for CancelledFuture<'_> {
    type Output = Cancelled;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Cancelled> {
        let this = &mut *self;
        poll_cancelled(this.token, &mut this.id, context)
    }
}

impl Future for CancelledOwned {
    type Output = Cancelled;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Cancelled> {
        let this = &mut *self;
        poll_cancelled(&this.token, &mut this.id, context)
    }
}

impl Drop for CancelledFuture<'_> {
    fn drop(&mut self) {
        withdraw(self.token, &mut self.id);
    }
}

impl Drop for CancelledOwned {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl fmt::Debug for CancelledFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelledFuture").field("token", self.token).finish_non_exhaustive()
    }
}

impl fmt::Debug for CancelledOwned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelledOwned").field("token", &self.token).finish_non_exhaustive()
    }
}

impl<F: Future> Future for RunUntilCancelled<F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(value) = this.future.poll(context) {
            return Poll::Ready(Some(value));
        }
        Pin::new(this.cancelled).poll(context).map(|_| None)
    }
}

impl<F> fmt::Debug for RunUntilCancelled<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunUntilCancelled").field("cancelled", &self.cancelled).finish_non_exhaustive()
    }
}
