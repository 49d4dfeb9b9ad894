//! `Delay`: a deadline as a future.
//!
//! Ground rules. Until its first pending poll a delay is a number; then it has a node of its own at home in a queue, with
//! the waker behind the header. Waker and deadline in the node belong to the home's lock; wakers are cloned, called and
//! dropped outside of it. A delay that is moved later leaves its node where it is filed: when that fires, it is filed
//! again, and nobody is woken. Whether the deadline has come is decided by the clock, which stands still when the runtime ends.

#![allow(unsafe_code)] // the payload behind the node

use std::cell::UnsafeCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use crate::alarm::Clock;
use crate::budget;
use crate::cancellation::CancellationToken;
use crate::carrier::{carry, drop_payload, layout, payload};
use crate::engine::{self, NodeRef, TimerNode, VTable};
use crate::home::Inner;
use crate::queue::{END, Kind, MissedTicks, NEVER};
use crate::runtime::RuntimeError;
use crate::sync::{AtomicBool, Ordering};
use crate::time::Timestamp;
use crate::timer::Tick;

mod cancellable;
mod source;

pub use cancellable::CancellableDelay;
pub(crate) use source::{CoreRefs, Source};

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

/// The node is disposed: by the delay itself, or because its runtime ends. Then the waiting task is woken, since it may be one that
/// is told of the end, and its waker is let go of.
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
/// **When its runtime has ended**, time stands still for a delay: one that has not come by then stays pending for ever (S33). A task
/// that must learn of the end awaits [`try_wait`](Self::try_wait) instead.
///
/// # Panics
/// At the first pending poll, if the default runtime cannot be started; [`try_wait`](Self::try_wait) gives the reason as an
/// error.
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
/// Delay::new(Duration::from_micros(250)).await;
/// # });
/// ```
///
/// # Testing with virtual time
///
/// Code that waits is tested in no time when it is given its [`Runtime`](crate::Runtime) instead of using the default one: in a test the
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
///     runtime.delay(takes).await;
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
/// # Ok::<(), timerqueue::RuntimeError>(())
/// ```
#[must_use = "a delay does nothing until it is awaited or polled"]
pub struct Delay {
    source: Source,
    /// [`END`] for a delay that never ends: it is filed all the same, and learns when its runtime ends.
    deadline: u64,
    node: Option<NodeRef>,
    stage: Stage,
}

/// How far a delay has come since it was made or reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    New,
    /// A poll was pending.
    Waited,
    Ready,
}

/// What a look at the runtime found.
type Found = Poll<Result<(), RuntimeError>>;

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
    /// delay.await; // waits for the other 8 ms
    /// assert!(begun.elapsed() >= Duration::from_millis(10));
    /// # });
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
        Self { source, deadline: deadline.min(END), node: None, stage: Stage::New }
    }

    /// When it ends. Of a delay that never ends: an instant that no clock shows.
    pub fn deadline(&self) -> Timestamp {
        Timestamp::from_ns(self.deadline)
    }

    /// Whether the deadline has come. Reads the clock, which for a delay stands still when the runtime has ended.
    pub fn is_elapsed(&self) -> bool {
        self.is_done() || self.source.now() >= self.deadline && self.source.was_there(self.deadline)
    }

    /// Whether a poll was ready since the last reset.
    pub(crate) fn is_done(&self) -> bool {
        self.stage == Stage::Ready
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// Waits for the deadline, and also for the end of the runtime, which is an error.
    ///
    /// Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`RuntimeError::Ended`] when the runtime ends before the deadline, or has ended; [`RuntimeError::NotStarted`] when the
    /// default runtime cannot be started, and a later call tries again.
    ///
    /// # Examples
    ///
    /// A task that waits learns that its runtime has ended:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Runtime, RuntimeError};
    ///
    /// # smol::block_on(async {
    /// let runtime = Runtime::builder().workers(2).start()?;
    /// let mut delay = runtime.delay(Duration::from_secs(3600));
    /// runtime.shutdown(Duration::from_secs(5)).unwrap();
    /// match delay.try_wait().await {
    ///     Ok(()) => println!("an hour has passed"),
    ///     Err(error) => assert!(matches!(error, RuntimeError::Ended)),
    /// }
    /// # Ok::<(), RuntimeError>(())
    /// # }).unwrap();
    /// ```
    pub async fn try_wait(&mut self) -> Result<(), RuntimeError> {
        poll_fn(|context| self.poll_try_wait(context)).await
    }

    /// [`try_wait`](Self::try_wait), polled.
    ///
    /// # Errors
    /// As there.
    pub fn poll_try_wait(&mut self, context: &mut Context<'_>) -> Poll<Result<(), RuntimeError>> {
        let mut now = self.source.floor();
        // A deadline that is far off has not come, whatever the exact time is. (Should the cheap clock ever lag by more than
        // that, the delay is filed as due, and fires at once.)
        if self.deadline.saturating_sub(now) < FAR_NS {
            now = self.source.now();
        }
        let has_come = self.is_done() || now >= self.deadline;
        if has_come && self.stage != Stage::Waited {
            ready!(budget::spend(context));
        }
        let found = match &self.node {
            _ if self.is_done() => Poll::Ready(Ok(())),
            Some(node) => self.look(node, context.waker(), now),
            None if has_come => Poll::Ready(self.by_the_end()),
            None => self.file(context.waker(), now),
        };
        match found {
            Poll::Pending => self.stage = Stage::Waited,
            Poll::Ready(Ok(())) => self.stage = Stage::Ready,
            Poll::Ready(Err(_)) => self.withdraw(), // for good: nothing needs the node any more
        }
        found
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
        self.deadline = deadline(None).min(END);
        self.stage = Stage::New;
        let Some(node) = &self.node else { return };
        let home = node.home();
        let mut inner = home.inner.lock();
        inner.touch(home);
        self.deadline = deadline(Some(&home.clock)).min(END);
        if !inner.is_open() {
            return; // the next poll finds out; the end of the runtime wakes a task that waits
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
    /// use timerqueue::{CancellationTokenSource, Delay};
    ///
    /// # smol::block_on(async {
    /// let source = CancellationTokenSource::new();
    /// let delay = Delay::new(Duration::from_secs(3600)).with_token(&source.token());
    /// std::thread::spawn(move || source.cancel());
    /// assert!(delay.await.is_err());
    /// # });
    /// ```
    pub fn with_token(self, token: &CancellationToken) -> CancellableDelay {
        CancellableDelay { cancelled: token.cancelled_owned(), delay: self }
    }

    /// What a runtime that may have ended made of the deadline.
    fn by_the_end(&self) -> Result<(), RuntimeError> {
        if self.source.was_there(self.deadline) { Ok(()) } else { Err(RuntimeError::Ended) }
    }

    /// The first poll that is not ready: makes a node and files it.
    fn file(&mut self, waker: &Waker, now: u64) -> Found {
        let deadline = self.deadline;
        let engine = match self.source.engine() {
            Ok(engine) => engine,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let header = engine.header(Kind::Overlapping, MissedTicks::Skip, VTABLE);
        let waiting = UnsafeCell::new(Waiting { waker: Some(waker.clone()), deadline });
        let alarm = Alarm { waiting, abandoned: AtomicBool::new(false) };
        let node = carry(header, alarm);
        let mut has_come = false;
        let due = |now| {
            has_come = now >= deadline; // nobody might come any more: see `Clock::with_lock`
            deadline
        };
        // SAFETY: just made; one of its references is placed by `start_at`, the other is ours.
        let (open, node) = unsafe { (engine::start_at(node, due, NEVER, now), NodeRef::from_raw(node)) };
        let found = if open && !has_come { Poll::Pending } else { self.look(&node, waker, now) };
        self.node = Some(node);
        found
    }

    /// A poll of a delay that has a node. Under the lock: if it has come, nothing is to be woken any more; else it stores the latest
    /// waker, and files the node if it is not filed by its deadline.
    fn look(&self, node: &NodeRef, waker: &Waker, now: u64) -> Found {
        let home = node.home();
        let mut fresh = None;
        loop {
            let mut inner = home.inner.lock();
            if !inner.is_open() {
                return Poll::Ready(self.by_the_end());
            }
            if inner.now(home, now) >= self.deadline {
                let waker = unfile(&mut inner, node);
                drop(inner);
                drop((waker, fresh)); // outside the lock
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

    /// Has the task that waits, if there is one, poll again.
    pub(crate) fn rouse(&self) {
        let Some(node) = &self.node else { return };
        let waker = {
            let mut inner = node.home().inner.lock();
            if !inner.is_open() {
                return;
            }
            unfile(&mut inner, node)
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// No task waits any more: leaves the queue, and lets go of node and waker. A further poll begins anew.
    #[inline]
    pub(crate) fn withdraw(&mut self) {
        if let Some(node) = self.node.take() {
            // SAFETY: alive; this field needs no lock, and stays readable until the node is freed.
            unsafe { alarm(node.as_ptr()) }.abandoned.store(true, Ordering::Relaxed);
            engine::dispose_last(node);
        }
    }
}

/// Takes the waker out; the node leaves its list. It may stay on its way to be fired, which is void then.
fn unfile(inner: &mut Inner, node: &NodeRef) -> Option<Waker> {
    debug_assert!(inner.is_open());
    // SAFETY: on an open home nobody disposes the node but its delay, which calls this; the lock is held.
    let waker = unsafe { waiting(node.as_ptr()).waker.take() };
    if waker.is_some() {
        // Still filed, or on its way to be fired: the task was polled for another reason than being woken.
        // SAFETY: alive and at home here.
        if unsafe { inner.withdraw(node.home(), node.as_ptr()) } {
            // SAFETY: the list's reference, which came with unlinking.
            let last = unsafe { TimerNode::release(node.as_ptr()) };
            debug_assert!(!last, "the delay has a reference");
        }
    }
    waker
}

impl Future for Delay {
    type Output = ();

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        match ready!(self.poll_try_wait(context)) {
            Ok(()) => Poll::Ready(()),
            Err(error) => error.stands_still(),
        }
    }
}

impl Drop for Delay {
    #[inline]
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl fmt::Debug for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delay")
            .field("deadline", &self.deadline())
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../loom-tests/delay_poll_vs_fire.rs"]
mod loom_models;
