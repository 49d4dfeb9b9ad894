//! `Delay`: a deadline as a future.
//!
//! Ground rules. Until its first pending poll a delay is a number; then it has a node of its own at home in a queue, with
//! the waker behind the header. Waker and deadline in the node belong to the home's lock; wakers are cloned, called and
//! dropped outside of it. A delay that is moved later leaves its node where it is filed: when that fires, it is filed
//! again, and nobody is woken. Whether the deadline has come is decided by the clock alone.

#![allow(unsafe_code)] // the payload behind the node

use std::cell::UnsafeCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::alarm::{Clock, SystemClock};
use crate::cancellation::{CancellationToken, Cancelled};
use crate::carrier::{carry, drop_payload, layout, payload};
use crate::engine::{self, Engine, NodeRef, TimerNode, VTable};
use crate::queue::{Kind, LAST, MissedTicks, NEVER};
use crate::runtime::{Runtime, StartError};
use crate::sync::{Arc, AtomicBool, Ordering};
use crate::time::Timestamp;
use crate::timer::Tick;

/// What stands behind the node of a delay.
struct Alarm {
    /// Under the home's lock.
    waiting: UnsafeCell<Waiting>,
    /// The delay itself lets go of the node: nobody is to be woken when the payload is dropped.
    abandoned: AtomicBool,
}

struct Waiting {
    waker: Option<Waker>,
    deadline: u64,
}

/// The alarm behind a delay's node.
///
/// # Safety
/// `node` was made by [`Delay::file`]; the reference is used while it is alive.
unsafe fn alarm<'a>(node: NonNull<TimerNode>) -> &'a Alarm {
    // SAFETY: the contract; a `ManuallyDrop` is its content, and only its cell is ever written through.
    unsafe { &*payload::<Alarm>(node).cast::<Alarm>() }
}

/// What the lock guards.
///
/// # Safety
/// As [`alarm`]; the lock of the node's home is held for `'a`, and the payload has not been dropped.
#[allow(clippy::mut_from_ref)] // the lock makes it exclusive
unsafe fn waiting<'a>(node: NonNull<TimerNode>) -> &'a mut Waiting {
    // SAFETY: the contract.
    unsafe { &mut *alarm(node).waiting.get() }
}

/// Some ticks of any kernel.
const FAR_NS: u64 = 100_000_000;

const VTABLE: &VTable = &VTable { call: ring, drop_payload: Some(end), layout: layout::<Alarm>() };

/// The node has fired: wakes, or files it again if the deadline has moved on.
///
/// # Safety
/// As [`VTable::call`].
unsafe fn ring(_: NonNull<TimerNode>, tick: &Tick<'_>) {
    let node = tick.node();
    let home = node.home();
    let waker = {
        let mut inner = home.inner.lock();
        // SAFETY: the payload is there between `begin` and `end`, and the lock is held.
        let waiting = unsafe { waiting(node.as_ptr()) };
        let now = home.clock.now();
        if waiting.deadline > now && inner.is_open() {
            // Without a waker no task waits, and the next poll files the node.
            let waits = waiting.waker.is_some();
            if waits && !node.get().is_filed(inner.queue.key()) && !node.get().state.is_disposed() {
                node.get().retain();
                // SAFETY: filed nowhere; the reference is for the list.
                let job = unsafe { inner.schedule(home, node.as_ptr(), waiting.deadline, NEVER, now) };
                debug_assert!(job.is_none(), "not due yet");
            }
            None
        } else {
            waiting.waker.take()
        }
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The node is disposed: by the delay itself, or because its runtime ends, and then the waiting task must learn of it.
///
/// # Safety
/// As [`VTable::drop_payload`].
unsafe fn end(node: NonNull<TimerNode>) {
    // SAFETY: nobody else uses the payload any more.
    let (waker, abandoned) = unsafe {
        let alarm = alarm(node);
        ((*alarm.waiting.get()).waker.take(), alarm.abandoned.load(Ordering::Relaxed))
    };
    // SAFETY: the contract.
    unsafe { drop_payload::<Alarm>(node) };
    match waker {
        Some(waker) if !abandoned => waker.wake(),
        other => drop(other),
    }
}

/// Where a delay counts.
#[derive(Clone)]
pub(crate) enum Source {
    /// The default runtime, looked up when it is needed.
    Global,
    /// A runtime of the user's.
    Engine(Arc<Engine>),
}

impl Source {
    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::Global => SystemClock::MONOTONIC.now(),
            Self::Engine(engine) => engine.clock().now(),
        }
    }

    /// An instant that is not after now, for little money.
    fn floor(&self) -> u64 {
        match self {
            Self::Global => SystemClock::MONOTONIC.floor(),
            Self::Engine(engine) => engine.clock().floor(),
        }
    }

    /// The engine; the default runtime is started if need be.
    pub(crate) fn engine(&self) -> Result<&Arc<Engine>, StartError> {
        match self {
            Self::Global => Runtime::global().map(Runtime::engine),
            Self::Engine(engine) => Ok(engine),
        }
    }
}

/// Why waiting ended before its time.
///
/// # Examples
///
/// A task that waits learns that its runtime has ended:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{DelayError, Runtime};
///
/// # smol::block_on(async {
/// let runtime = Runtime::builder().workers(2).start().unwrap();
/// let delay = runtime.delay(Duration::from_secs(3600));
/// runtime.shutdown(Duration::from_secs(5)).unwrap();
/// match delay.await {
///     Ok(()) => println!("an hour has passed"),
///     Err(error) => assert_eq!(error, DelayError::RuntimeEnded),
/// }
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DelayError {
    /// The token that it was given was cancelled first (S50).
    Cancelled(Cancelled),
    /// The runtime was shut down (S33).
    RuntimeEnded,
    /// The default runtime could not be started; [`Runtime::global`] says why.
    RuntimeNotStarted,
}

impl fmt::Display for DelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled(cancelled) => cancelled.fmt(f),
            Self::RuntimeEnded => f.write_str("the timer runtime was shut down"),
            Self::RuntimeNotStarted => f.write_str("the timer runtime could not be started"),
        }
    }
}

impl std::error::Error for DelayError {}

impl From<DelayError> for std::io::Error {
    fn from(error: DelayError) -> Self {
        Self::other(error)
    }
}

/// A future that is ready when its deadline has come.
///
/// Works under any executor, or polled by hand: `Send`, `Sync`, `Unpin`. The time counts from the making of the delay, not
/// from the first poll (S35). A delay that is never polled, or ready when first polled, takes no lock and no memory; a
/// pending one takes one allocation.
///
/// **Ready** never before the deadline. Fused: once ready it stays ready, until it is [reset](Self::reset).
/// The waker of the latest poll is called on a thread of the runtime's pool (on a manual clock: on the thread that advances
/// it), outside of all locks (S37).
///
/// **Dropping** unlinks it at once (S36).
///
/// The output is `Ok` when the time has passed; an error says that the runtime ended first.
///
/// # Examples
///
/// A quarter of a millisecond, on the default runtime:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::Delay;
///
/// # smol::block_on(async {
/// Delay::new(Duration::from_micros(250)).await?;
/// # Ok::<(), timerqueue::DelayError>(())
/// # }).unwrap();
/// ```
///
/// # Testing with virtual time
///
/// Code that waits is tested in no time when it is given its [`Runtime`] instead of using the default one: in a test the
/// runtime is on a [`ManualClock`](crate::ManualClock), whose [`block_on`](crate::ManualClock::block_on) moves the clock on to
/// what comes due next whenever the code waits. Every run is the same, to the nanosecond.
///
/// ```
/// use std::future::{Future, pending};
/// use std::io;
/// use std::time::Duration;
/// use timerqueue::{CancelReason, CancellationToken, ManualClock, Runtime, TimeoutError};
///
/// /// The code under test: asks, each time for up to 2 s, and waits 1, 2, 4, ... s before it asks again.
/// async fn ask_until_answered<F: Future<Output = u32>>(
///     runtime: &Runtime,
///     token: &CancellationToken,
///     mut ask: impl FnMut(u32) -> F,
/// ) -> io::Result<u32> {
///     let mut pause = Duration::from_secs(1);
///     for attempt in 1.. {
///         match runtime.timeout(Duration::from_secs(2), ask(attempt)).with_token(token).await {
///             Ok(answer) => return Ok(answer),
///             Err(TimeoutError::Elapsed(_)) => runtime.delay(pause).with_token(token).await?,
///             Err(cancelled) => return Err(cancelled.into()),
///         }
///         pause *= 2;
///     }
///     unreachable!("asks for ever")
/// }
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
///
/// // Two questions get no answer in time, the third does: 2 + 1 + 2 + 2 + 0.5 s.
/// let begun = clock.now();
/// let answer = clock.block_on(ask_until_answered(&runtime, &CancellationToken::none(), async |attempt| {
///     let takes = if attempt < 3 { Duration::from_secs(10) } else { Duration::from_millis(500) };
///     runtime.delay(takes).await.expect("the runtime is there");
///     42
/// }));
/// assert_eq!(answer.unwrap(), 42);
/// assert_eq!(clock.now() - begun, Duration::from_millis(7_500));
///
/// // Nobody answers, and after a minute the whole thing is given up.
/// let source = runtime.cancellation_source();
/// source.cancel_after(Duration::from_secs(60))?;
/// let begun = clock.now();
/// let error = clock.block_on(ask_until_answered(&runtime, &source.token(), |_| pending())).unwrap_err();
/// assert_eq!(source.token().reason(), Some(CancelReason::Timeout));
/// assert_eq!(clock.now() - begun, Duration::from_secs(60));
/// assert_eq!(runtime.active_timers(), 0); // nothing is left behind
/// # drop(error);
/// # Ok::<(), timerqueue::StartError>(())
/// ```
#[must_use = "a delay does nothing until it is awaited or polled"]
pub struct Delay {
    source: Source,
    /// At most the last instant of the clock, so that a delay that never ends is filed all the same and learns when its runtime ends.
    deadline: u64,
    node: Option<NodeRef>,
    done: Option<Result<(), DelayError>>,
}

impl Delay {
    /// A delay on the default runtime. `Duration::MAX`, or what does not fit the clock, never ends.
    ///
    /// # Examples
    ///
    /// The time runs from here, not from the `await`:
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use timerqueue::Delay;
    ///
    /// # smol::block_on(async {
    /// let begun = Instant::now();
    /// let delay = Delay::new(Duration::from_millis(10));
    /// std::thread::sleep(Duration::from_millis(2)); // some work
    /// delay.await?; // waits for the other 8 ms
    /// assert!(begun.elapsed() >= Duration::from_millis(10));
    /// # Ok::<(), timerqueue::DelayError>(())
    /// # }).unwrap();
    /// ```
    #[inline]
    pub fn new(after: Duration) -> Self {
        Self::on(Source::Global, after)
    }

    /// A delay on the default runtime that ends at an instant of its clock.
    ///
    /// # Examples
    ///
    /// Five seconds from now, as an instant:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Delay, Runtime};
    ///
    /// let deadline = Runtime::global()?.now() + Duration::from_secs(5);
    /// let delay = Delay::until(deadline);
    /// assert_eq!(delay.deadline(), deadline);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn until(deadline: Timestamp) -> Self {
        Self::on_until(Source::Global, deadline.as_ns())
    }

    #[inline]
    pub(crate) fn on(source: Source, after: Duration) -> Self {
        let now = source.now();
        Self::on_until(source, engine::instant(now, after))
    }

    #[inline]
    pub(crate) fn on_until(source: Source, deadline: u64) -> Self {
        Self { source, deadline: deadline.min(LAST), node: None, done: None }
    }

    /// When it ends.
    pub fn deadline(&self) -> Timestamp {
        Timestamp::from_ns(self.deadline)
    }

    /// Whether the deadline has come. Reads the clock.
    pub fn is_elapsed(&self) -> bool {
        self.source.now() >= self.deadline
    }

    /// Starts again: ends `after` from now, whether it was pending or ready.
    ///
    /// Moving a pending delay later costs one short lock section and no system call; earlier, at most one system call.
    ///
    /// # Examples
    ///
    /// An idle timeout that each message pushes back:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut idle = runtime.delay(Duration::from_secs(30));
    /// clock.advance(Duration::from_secs(20));
    /// idle.reset(Duration::from_secs(30));
    /// clock.advance(Duration::from_secs(20));
    /// assert!(!idle.is_elapsed());
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn reset(&mut self, after: Duration) {
        let now = self.source.now();
        self.restart(|clock| engine::instant(clock.map_or(now, |clock| clock.with_lock(now)), after));
    }

    /// Starts again, to end at `deadline`; see [`reset`](Self::reset).
    ///
    /// # Examples
    ///
    /// Two delays that end at the same instant:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let first = runtime.delay(Duration::from_secs(30));
    /// let mut second = runtime.delay(Duration::ZERO);
    /// second.reset_at(first.deadline());
    /// clock.advance(Duration::from_secs(30));
    /// assert!(first.is_elapsed() && second.is_elapsed());
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn reset_at(&mut self, deadline: Timestamp) {
        self.reset_to(deadline.as_ns());
    }

    pub(crate) fn reset_to(&mut self, deadline: u64) {
        self.restart(|_| deadline);
    }

    /// Starts again, to end when `deadline` says, which is asked once more under the lock of the home and then gets its clock.
    fn restart(&mut self, deadline: impl Fn(Option<&Clock>) -> u64) {
        self.deadline = deadline(None).min(LAST);
        self.done = None;
        let Some(node) = &self.node else { return };
        let home = node.home();
        let mut inner = home.inner.lock();
        self.deadline = deadline(Some(&home.clock)).min(LAST);
        if !inner.is_open() {
            return; // the next poll finds out
        }
        // SAFETY: on an open home nobody disposes the node but this delay; the lock is held.
        let waiting = unsafe { waiting(node.as_ptr()) };
        waiting.deadline = self.deadline;
        if waiting.waker.is_none() {
            return; // nobody waits; the next poll files it
        }
        let key = inner.queue.key();
        let filed = node.get().is_filed(key);
        if filed && node.get().due(key) <= self.deadline {
            return; // filed again when it fires
        }
        let now = home.clock.now();
        // SAFETY: alive and at home here; this delay has a reference.
        let done = unsafe { inner.reschedule(home, node.as_ptr(), self.deadline, NEVER, now) };
        engine::hand_over(inner, done.and_then(|(_, job)| job));
    }

    /// Waits for this delay or for the cancellation of `token`, whichever comes first (S50).
    ///
    /// # Examples
    ///
    /// An hour that somebody cuts short:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{CancellationTokenSource, Delay, DelayError};
    ///
    /// # smol::block_on(async {
    /// let source = CancellationTokenSource::new();
    /// let delay = Delay::new(Duration::from_secs(3600)).with_token(&source.token());
    /// std::thread::spawn(move || source.cancel());
    /// assert!(matches!(delay.await, Err(DelayError::Cancelled(_))));
    /// # });
    /// ```
    pub fn with_token(self, token: &CancellationToken) -> CancellableDelay {
        CancellableDelay { cancelled: token.cancelled_owned(), delay: self }
    }

    /// The first poll that is not ready: makes a node and files it. Ready: the runtime has ended, or there is none, or the time
    /// has come meanwhile.
    fn file(&mut self, waker: Waker, now: u64) -> Poll<Result<(), DelayError>> {
        let deadline = self.deadline;
        let Ok(engine) = self.source.engine() else { return Poll::Ready(Err(DelayError::RuntimeNotStarted)) };
        let header = engine.header(Kind::Overlapping, MissedTicks::Skip, VTABLE);
        let waiting = UnsafeCell::new(Waiting { waker: Some(waker), deadline });
        let alarm = Alarm { waiting, abandoned: AtomicBool::new(false) };
        let node = carry(header, alarm);
        let mut has_come = false;
        let due = |now| {
            has_come = now >= deadline; // nobody might come any more: see `Clock::with_lock`
            deadline
        };
        // SAFETY: just made; one of its references is placed by `start_at`, the other is ours.
        let open = unsafe {
            let open = engine::start_at(node, due, NEVER, now);
            self.node = Some(NodeRef::from_raw(node));
            open
        };
        match (open, has_come) {
            (false, _) => Poll::Ready(Err(DelayError::RuntimeEnded)),
            (true, true) => Poll::Ready(Ok(())),
            (true, false) => Poll::Pending,
        }
    }

    /// A later poll that is not ready: stores the latest waker, files the node if it is not. Ready: as with [`Self::file`].
    fn wait_on(&self, node: &NodeRef, waker: &Waker, now: u64) -> Poll<Result<(), DelayError>> {
        let home = node.home();
        let mut fresh = None;
        loop {
            let mut inner = home.inner.lock();
            if !inner.is_open() {
                return Poll::Ready(Err(DelayError::RuntimeEnded));
            }
            if home.clock.with_lock(now) >= self.deadline {
                return Poll::Ready(Ok(()));
            }
            // SAFETY: on an open home nobody disposes the node but this delay; the lock is held.
            let waiting = unsafe { waiting(node.as_ptr()) };
            let job = if waiting.waker.as_ref().is_some_and(|stored| stored.will_wake(waker)) {
                None
            } else {
                // Cloning runs code of the executor's: not under the lock.
                let Some(clone) = fresh.take() else {
                    drop(inner);
                    fresh = Some(waker.clone());
                    continue;
                };
                fresh = waiting.waker.replace(clone);
                let key = inner.queue.key();
                if node.get().is_filed(key) && node.get().due(key) <= self.deadline {
                    None
                } else {
                    // A stale job is voided by this.
                    // SAFETY: alive and at home here; this delay has a reference.
                    let done = unsafe { inner.reschedule(home, node.as_ptr(), self.deadline, NEVER, now) };
                    done.and_then(|(_, job)| job)
                }
            };
            engine::hand_over(inner, job);
            drop(fresh); // the old one, outside the lock
            return Poll::Pending;
        }
    }

    /// A token came first.
    pub(crate) fn cancel(&mut self, cancelled: Cancelled) {
        let _ = self.settle(Err(DelayError::Cancelled(cancelled)));
    }

    /// It is over: nothing is to be woken any more.
    fn settle(&mut self, result: Result<(), DelayError>) -> Poll<Result<(), DelayError>> {
        self.done = Some(result);
        if let Some(node) = &self.node {
            let mut inner = node.home().inner.lock();
            if inner.is_open() {
                let home = node.home();
                // SAFETY: as in `wait_on`.
                let waker = unsafe { waiting(node.as_ptr()).waker.take() };
                if waker.is_some() {
                    // Still filed, or on its way to be fired: it was polled for another reason than being woken.
                    // SAFETY: alive and at home here.
                    if unsafe { inner.withdraw(home, node.as_ptr()) } {
                        // SAFETY: the list's reference, which came with unlinking.
                        let last = unsafe { TimerNode::release(node.as_ptr()) };
                        debug_assert!(!last, "this delay has a reference");
                    }
                }
                drop(inner);
                drop(waker);
            }
        }
        Poll::Ready(result)
    }
}

impl Future for Delay {
    type Output = Result<(), DelayError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(result) = this.done {
            return Poll::Ready(result);
        }
        // A deadline that is far off has not come, whatever the exact time is. (Should the cheap clock ever lag by more than
        // that, the delay is filed as due, and fires at once.)
        let mut now = this.source.floor();
        if this.deadline.saturating_sub(now) < FAR_NS {
            now = this.source.now();
            if now >= this.deadline {
                return this.settle(Ok(()));
            }
        }
        let waiting = match &this.node {
            Some(node) => this.wait_on(node, context.waker(), now),
            None => this.file(context.waker().clone(), now),
        };
        match waiting {
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => this.settle(result),
        }
    }
}

impl Drop for Delay {
    #[inline]
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            // SAFETY: alive; this field needs no lock, and stays readable until the node is freed.
            unsafe { alarm(node.as_ptr()) }.abandoned.store(true, Ordering::Relaxed);
            engine::dispose_last(node);
        }
    }
}

impl fmt::Debug for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delay").field("deadline", &self.deadline()).field("done", &self.done).finish_non_exhaustive()
    }
}

/// A delay that a token can end. Made by [`Delay::with_token`].
///
/// Ready with [`DelayError::Cancelled`] when the token is cancelled first; when both have come by the time it is polled,
/// the cancellation counts. Whichever it is, the other is cleaned up at once, and what it says does not change any more.
///
/// # Examples
///
/// A pause in a loop that can be cancelled:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{CancellationToken, CancellationTokenSource, Delay, DelayError};
///
/// async fn heartbeat(token: &CancellationToken) -> DelayError {
///     loop {
///         // ... a heartbeat ...
///         if let Err(error) = Delay::new(Duration::from_millis(1)).with_token(token).await {
///             return error;
///         }
///     }
/// }
///
/// # smol::block_on(async {
/// let source = CancellationTokenSource::after(Duration::from_millis(5)).unwrap();
/// let error = heartbeat(&source.token()).await;
/// assert_eq!(error.to_string(), "cancelled by a timeout");
/// # });
/// ```
#[derive(Debug)]
#[must_use = "a delay does nothing until it is awaited or polled"]
pub struct CancellableDelay {
    cancelled: crate::cancellation::CancelledOwned,
    delay: Delay,
}

impl Future for CancellableDelay {
    type Output = Result<(), DelayError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.delay.done.is_none() {
            if let Poll::Ready(cancelled) = Pin::new(&mut this.cancelled).poll(context) {
                return this.delay.settle(Err(DelayError::Cancelled(cancelled)));
            }
        }
        let result = Pin::new(&mut this.delay).poll(context);
        if result.is_ready() {
            this.cancelled.withdraw();
        }
        result
    }
}
