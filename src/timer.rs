//! Timers as users see them: handles, what a callback learns, changing, disposing, waiting.
//!
//! Ground rules. A handle is one counted reference to a node; everything it does is in [`crate::engine`]. This room knows
//! the types of callbacks: it makes the nodes that carry them and the three ways of calling them.

#![allow(unsafe_code)] // the callback behind the node

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::carrier::{carry, dropper, layout, payload};
use crate::engine::{self, Engine, NodeRef, Rescheduled, TimerNode, VTable};
use crate::queue::leeway::Manner;
use crate::queue::{Kind, MissedTicks};
use crate::runtime::{Runtime, StartError};
use crate::sync::{Thread, current, park};
use crate::time::Timestamp;
use crate::user_code::is_inside;

/// The three ways of calling `F`.
struct Calls<F>(PhantomData<F>);

impl<F: Fn(&Tick<'_>)> Calls<F> {
    const OVERLAPPING: &'static VTable =
        &VTable { call: Self::call, drop_payload: dropper::<F>(), layout: layout::<F>() };

    unsafe fn call(node: NonNull<TimerNode>, tick: &Tick<'_>) {
        // SAFETY: alive between `begin` and `end`; shared among overlapping calls only, and `F` is `Sync`.
        unsafe { (*payload::<F>(node))(tick) }
    }
}

impl<F: FnMut(&Tick<'_>)> Calls<F> {
    const EXCLUSIVE: &'static VTable =
        &VTable { call: Self::call_mut, drop_payload: dropper::<F>(), layout: layout::<F>() };

    unsafe fn call_mut(node: NonNull<TimerNode>, tick: &Tick<'_>) {
        // SAFETY: alive between `begin` and `end`, and an exclusive timer has one callback at a time.
        unsafe { (*payload::<F>(node))(tick) }
    }
}

impl<F: FnOnce(&Tick<'_>)> Calls<F> {
    const ONCE: &'static VTable =
        &VTable { call: Self::call_once, drop_payload: dropper::<F>(), layout: layout::<F>() };

    unsafe fn call_once(node: NonNull<TimerNode>, tick: &Tick<'_>) {
        // SAFETY: `begin` marks the callback as spent in the step that allows this call, so it is taken once, and
        // nobody drops it in place.
        unsafe { ManuallyDrop::take(&mut *payload::<F>(node))(tick) }
    }
}

/// Makes a timer and puts it under its first schedule.
#[inline]
fn make<F>(
    engine: &Engine,
    kind: Kind,
    manner: impl Into<Manner>,
    vtable: &'static VTable,
    (due, period): (Duration, Duration),
    f: F,
) -> NodeRef {
    let node = carry(engine.header(kind, manner, vtable), f);
    // SAFETY: just made; of its two references one is placed by `start`, the other is the handle's.
    unsafe {
        engine::start(node, due, period);
        NodeRef::from_raw(node)
    }
}

pub(crate) fn overlapping<F>(engine: &Engine, manner: impl Into<Manner>, when: (Duration, Duration), f: F) -> Timer
where
    F: Fn(&Tick<'_>) + Send + Sync + 'static,
{
    Timer { handle: Handle::new(make(engine, Kind::Overlapping, manner, Calls::<F>::OVERLAPPING, when, f)) }
}

pub(crate) fn exclusive<F>(engine: &Engine, manner: impl Into<Manner>, when: (Duration, Duration), f: F) -> Timer
where
    F: FnMut(&Tick<'_>) + Send + 'static,
{
    Timer { handle: Handle::new(make(engine, Kind::Exclusive, manner, Calls::<F>::EXCLUSIVE, when, f)) }
}

pub(crate) fn once<F>(engine: &Engine, due: Duration, f: F) -> OnceTimer
where
    F: FnOnce(&Tick<'_>) + Send + 'static,
{
    let when = (due, Duration::ZERO);
    OnceTimer { handle: Handle::new(make(engine, Kind::Once, MissedTicks::default(), Calls::<F>::ONCE, when, f)) }
}

/// What a callback learns about the tick that it runs for, and its hold on its own timer (S11, S13).
///
/// # Examples
///
/// A timer that stops itself:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let mut left = 3;
/// let timer = runtime.exclusive_timer(Duration::from_secs(1), Duration::from_secs(1), move |tick| {
///     assert_eq!(tick.lateness(), Duration::ZERO);
///     left -= 1;
///     if left == 0 {
///         tick.dispose();
///     }
/// });
/// assert_eq!(clock.advance(Duration::from_secs(60)), 3);
/// # drop(timer);
/// # Ok::<(), timerqueue::StartError>(())
/// ```
pub struct Tick<'a> {
    node: &'a NodeRef,
    scheduled: u64,
    missed: u64,
}

impl<'a> Tick<'a> {
    pub(crate) fn new(node: &'a NodeRef, scheduled: u64, missed: u64) -> Self {
        Self { node, scheduled, missed }
    }

    pub(crate) fn node(&self) -> &'a NodeRef {
        self.node
    }

    /// The instant this tick was due. The callback never starts before it (S5).
    pub fn scheduled(&self) -> Timestamp {
        Timestamp::from_ns(self.scheduled)
    }

    /// The clock of the timer's runtime, read now.
    pub fn now(&self) -> Timestamp {
        Timestamp::from_ns(self.node.home().clock.now())
    }

    /// How long ago the tick was due. Reads the clock; at the top of a callback it is how late the callback started.
    pub fn lateness(&self) -> Duration {
        self.now() - self.scheduled()
    }

    /// How many later ticks of the schedule had passed already when this one was taken up, and will never run.
    /// What happens to those is the timer's [`MissedTicks`] policy (S8).
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Changes the timer this callback belongs to; see [`Timer::change`]. For a [`OnceTimer`] it is too late: `Ended`.
    pub fn change(&self, due: Duration, period: Duration) -> Changed {
        engine::change(self.node, due, period).into()
    }

    /// Disposes the timer this callback belongs to; see [`Timer::dispose`]. What the callback owns is dropped when it
    /// has returned.
    pub fn dispose(&self) {
        engine::dispose(self.node);
    }
}

impl fmt::Debug for Tick<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tick").field("scheduled", &self.scheduled()).field("missed", &self.missed).finish()
    }
}

/// What a change found (S15).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{Changed, ManualClock, Runtime};
///
/// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
/// let timer = runtime.timer(Duration::MAX, Duration::ZERO, |_| {});
/// assert_eq!(timer.change(Duration::from_secs(1), Duration::ZERO), Changed::WasIdle);
/// assert_eq!(timer.change(Duration::from_secs(2), Duration::ZERO), Changed::WasWaiting);
/// timer.dispose();
/// assert_eq!(timer.change(Duration::from_secs(3), Duration::ZERO), Changed::Ended);
/// # Ok::<(), timerqueue::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Changed {
    /// The timer was waiting to fire; that firing will not take place.
    WasWaiting,
    /// The timer was idle: never started, stopped, or a one-shot that has fired (its callback may still run).
    WasIdle,
    /// Nothing was changed: the timer is disposed, its runtime is shut down, or its callback is spent.
    Ended,
}

impl Changed {
    /// Whether the timer was waiting to fire.
    pub fn was_waiting(self) -> bool {
        self == Self::WasWaiting
    }
}

impl From<Rescheduled> for Changed {
    fn from(outcome: Rescheduled) -> Self {
        match outcome {
            Rescheduled::WasWaiting => Self::WasWaiting,
            Rescheduled::WasIdle => Self::WasIdle,
            Rescheduled::Refused => Self::Ended,
        }
    }
}

/// How waiting for the end of a timer ended (S21, S22).
///
/// # Examples
///
/// A callback that tries to wait for itself is told, instead of hanging:
///
/// ```
/// use std::sync::{Arc, OnceLock};
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, Timer, Waited};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let own = Arc::new(OnceLock::<Timer>::new());
/// let timer = runtime.timer(Duration::from_secs(1), Duration::ZERO, {
///     let own = Arc::downgrade(&own);
///     move |_| {
///         let own = own.upgrade().unwrap();
///         assert_eq!(own.get().unwrap().dispose_and_wait(), Waited::InsideCallback);
///     }
/// });
/// own.set(timer).unwrap();
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(own.get().unwrap().dispose_and_wait(), Waited::Ended);
/// # Ok::<(), timerqueue::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub enum Waited {
    /// No callback runs, none will start, and everything the callback owned has been dropped.
    Ended,
    /// The caller is inside a callback of this very timer and did not wait. The timer is disposed all the same.
    InsideCallback,
}

/// What both kinds of handle do alike.
struct Handle {
    node: ManuallyDrop<NodeRef>,
}

impl Handle {
    fn new(node: NodeRef) -> Self {
        Self { node: ManuallyDrop::new(node) }
    }

    fn dispose_and_wait(&self) -> Waited {
        block_on(self.dispose_async())
    }

    fn dispose_async(&self) -> Disposal {
        engine::dispose(&self.node);
        Disposal { node: NodeRef::clone(&self.node), place: None }
    }

    fn detach(self) {
        drop(self.into_node());
    }

    /// The handle's reference.
    fn into_node(mut self) -> NodeRef {
        // SAFETY: taken once; the handle's own drop does not run.
        let node = unsafe { ManuallyDrop::take(&mut self.node) };
        std::mem::forget(self);
        node
    }
}

impl Drop for Handle {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        engine::dispose_last(unsafe { ManuallyDrop::take(&mut self.node) });
    }
}

/// A timer: calls back after its *due time*, and then once every *period* (S1).
///
/// Made by [`Runtime::timer`], [`Runtime::exclusive_timer`], [`Runtime::timer_builder`], or on the default runtime by
/// [`Timer::new`]. It fires again whenever [`change`](Self::change) gives it a new schedule. For a callback that can
/// run only once, see [`OnceTimer`].
///
/// **Threads.** Callbacks run on a thread of the runtime's pool, never on the thread that makes or changes the timer
/// (on a manual clock: on the thread that advances it). They may block, panic (S12), and use this or other timers.
///
/// **Precision.** Never early, not by a nanosecond (S5). Late by what the system needs to wake a thread: usually well
/// under 100 us. A queue that fires more than a thousand timers a second shares wake-ups, which adds 15 us for each thousand
/// a second, up to a quarter of a millisecond, and to a quarter of the shortest period among those that fired lately.
///
/// **Dropping** the handle disposes the timer without waiting (S23); use [`detach`](Self::detach) to let it go on.
/// To share a handle, put it into an `Arc`: all operations take `&self`.
///
/// # Examples
///
/// ```
/// use std::sync::mpsc;
/// use std::time::Duration;
/// use timerqueue::Timer;
///
/// let (send, receive) = mpsc::channel();
/// let timer = Timer::new(Duration::from_millis(2), Duration::from_millis(1), move |tick| {
///     let _ = send.send(tick.lateness());
/// })?;
/// for lateness in receive.iter().take(3) {
///     println!("late by {lateness:?}");
/// }
/// timer.dispose();
/// # Ok::<(), timerqueue::StartError>(())
/// ```
#[must_use = "dropping the handle disposes the timer; see `detach`"]
pub struct Timer {
    handle: Handle,
}

impl Timer {
    /// A timer on the default runtime, [`Runtime::global`].
    ///
    /// The first firing comes after `due`, later ones every `period`. A `due` of zero fires as soon as possible, on
    /// another thread (S4); `Duration::MAX` (or any that does not fit the clock) means never, which makes an idle timer. A
    /// `period` of zero or `Duration::MAX` makes a one-shot.
    ///
    /// # Errors
    /// When the default runtime cannot be started. A later try may work.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Timer;
    ///
    /// let heartbeat = Timer::new(Duration::from_secs(5), Duration::from_secs(5), |_| println!("alive"))?;
    /// # drop(heartbeat);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn new(
        due: Duration,
        period: Duration,
        callback: impl Fn(&Tick<'_>) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        Ok(Runtime::global()?.timer(due, period, callback))
    }

    /// The handle of a node, whose first reference it takes over.
    pub(crate) fn from_node(node: NodeRef) -> Self {
        Self { handle: Handle::new(node) }
    }

    pub(crate) fn node(&self) -> &NodeRef {
        &self.handle.node
    }

    /// The handle's reference; the timer goes on.
    pub(crate) fn into_node(self) -> NodeRef {
        self.handle.into_node()
    }

    /// Replaces due time and period, counting from now; starts the timer if it was idle, stops it if `due` is
    /// `Duration::MAX` (S15, S17).
    ///
    /// When this returns, no callback of the old schedule will start any more (S16); one that has been started goes on. Moving a timer
    /// later makes no system call; earlier, at most one (S18). Any thread may do this, the timer's own callback included.
    ///
    /// # Examples
    ///
    /// An idle timeout, pushed back by each activity:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Changed, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let idle = Duration::from_secs(30);
    /// let timer = runtime.timer(idle, Duration::ZERO, |_| println!("connection is idle"));
    /// for _ in 0..10 {
    ///     assert_eq!(clock.advance(Duration::from_secs(20)), 0);
    ///     assert_eq!(timer.change(idle, Duration::ZERO), Changed::WasWaiting);
    /// }
    /// assert_eq!(clock.advance(idle), 1);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn change(&self, due: Duration, period: Duration) -> Changed {
        engine::change(&self.handle.node, due, period).into()
    }

    /// Stops the timer for good, without waiting (S19).
    ///
    /// When this returns, no callback will start (S20); those that have been started go on. What the callback owns is dropped at once,
    /// by this call, or by the last running callback when it ends. Disposing again does nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timer = runtime.timer(Duration::from_secs(1), Duration::ZERO, |_| unreachable!());
    /// timer.dispose();
    /// assert_eq!(clock.advance(Duration::from_secs(10)), 0);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn dispose(&self) {
        engine::dispose(&self.handle.node);
    }

    /// Disposes the timer and blocks until no callback of it runs and all that the callback owned is dropped (S21).
    ///
    /// Called from inside a callback of this timer it does not wait, and says so (S22).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Timer, Waited};
    ///
    /// let timer = Timer::new(Duration::ZERO, Duration::from_millis(1), |_| {})?;
    /// assert_eq!(timer.dispose_and_wait(), Waited::Ended);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn dispose_and_wait(&self) -> Waited {
        self.handle.dispose_and_wait()
    }

    /// Disposes the timer now; the future is ready when no callback of it runs and all that the callback owned is
    /// dropped (S21). Dropping the future does not revive the timer.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Timer, Waited};
    ///
    /// # async fn example() -> Result<(), timerqueue::StartError> {
    /// let timer = Timer::new(Duration::ZERO, Duration::from_millis(1), |_| {})?;
    /// assert_eq!(timer.dispose_async().await, Waited::Ended);
    /// # Ok(())
    /// # }
    /// ```
    pub fn dispose_async(&self) -> Disposal {
        self.handle.dispose_async()
    }

    /// Lets the timer go on without a handle: until it disposes itself, its runtime is shut down, or, for a one-shot, it
    /// has fired. An idle timer that is detached is freed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// runtime.timer(Duration::from_secs(1), Duration::from_secs(1), |_| {}).detach();
    /// assert_eq!(clock.advance(Duration::from_secs(5)), 5);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn detach(self) {
        self.handle.detach();
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").finish_non_exhaustive()
    }
}

/// A timer whose callback runs once and is consumed by it.
///
/// Made by [`Runtime::once`]. Everything said of [`Timer`] about threads, precision and dropping holds here too.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let (send, receive) = std::sync::mpsc::channel();
/// let message = String::from("gone for good");
/// let timer = runtime.once(Duration::from_secs(1), move |_| send.send(message).unwrap());
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(receive.recv().unwrap(), "gone for good");
/// # drop(timer);
/// # Ok::<(), timerqueue::StartError>(())
/// ```
#[must_use = "dropping the handle disposes the timer; see `detach`"]
pub struct OnceTimer {
    handle: Handle,
}

impl OnceTimer {
    /// A timer on the default runtime, [`Runtime::global`], that fires once after `due`.
    ///
    /// # Errors
    /// When the default runtime cannot be started, or was shut down.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::OnceTimer;
    ///
    /// OnceTimer::new(Duration::from_secs(1), |_| println!("a second has passed"))?.detach();
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn new(due: Duration, callback: impl FnOnce(&Tick<'_>) + Send + 'static) -> Result<Self, StartError> {
        Ok(Runtime::global()?.once(due, callback))
    }

    /// Moves the firing to `due` from now (`Duration::MAX`: stops it), if it has not begun.
    ///
    /// [`Changed::Ended`] says that it was too late: the callback has run, or runs now, or the timer is disposed. Else,
    /// when this returns, no callback that was due before will start (S16).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Changed, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timer = runtime.once(Duration::from_secs(1), |_| {});
    /// assert_eq!(timer.change(Duration::from_secs(5)), Changed::WasWaiting);
    /// assert_eq!(clock.advance(Duration::from_secs(5)), 1);
    /// assert_eq!(timer.change(Duration::from_secs(5)), Changed::Ended);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn change(&self, due: Duration) -> Changed {
        engine::change(&self.handle.node, due, Duration::ZERO).into()
    }

    /// Stops the timer for good, without waiting; see [`Timer::dispose`].
    pub fn dispose(&self) {
        engine::dispose(&self.handle.node);
    }

    /// Disposes and blocks until the callback does not run; see [`Timer::dispose_and_wait`].
    pub fn dispose_and_wait(&self) -> Waited {
        self.handle.dispose_and_wait()
    }

    /// Disposes now; the future is ready when the callback does not run; see [`Timer::dispose_async`].
    pub fn dispose_async(&self) -> Disposal {
        self.handle.dispose_async()
    }

    /// Lets the timer fire without a handle; see [`Timer::detach`].
    pub fn detach(self) {
        self.handle.detach();
    }
}

impl fmt::Debug for OnceTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceTimer").finish_non_exhaustive()
    }
}

/// Waits, under any executor, until a disposed timer has ended. Made by [`Timer::dispose_async`].
///
/// Any number of them may wait for one timer. Polled from inside a callback of the timer it is ready at once with
/// [`Waited::InsideCallback`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{Runtime, Waited};
///
/// # async fn example(runtime: &Runtime) {
/// let timer = runtime.once(Duration::from_secs(1), |_| {});
/// let waiting = timer.dispose_async();
/// assert_eq!(waiting.await, Waited::Ended);
/// # }
/// ```
#[must_use = "the timer is disposed already; waiting for its end happens when this is awaited"]
pub struct Disposal {
    node: NodeRef,
    /// Names this waiter in the timer's list, from the first pending poll on.
    place: Option<usize>,
}

impl Future for Disposal {
    type Output = Waited;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Waited> {
        let this = &mut *self;
        let state = &this.node.get().state;
        if state.is_gone() {
            return Poll::Ready(Waited::Ended);
        }
        if is_inside(this.node.address()) {
            return Poll::Ready(Waited::InsideCallback);
        }
        let waker = context.waker().clone();
        if this.node.home().waiters.wait(&this.node, &mut this.place, waker) {
            Poll::Pending
        } else {
            Poll::Ready(Waited::Ended)
        }
    }
}

impl Drop for Disposal {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.node.home().waiters.leave(&self.node, place);
        }
    }
}

impl fmt::Debug for Disposal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disposal").finish_non_exhaustive()
    }
}

/// Blocks the thread until the future is ready.
pub(crate) fn block_on<T>(future: impl Future<Output = T> + Unpin) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = future;
    let mut first = Context::from_waker(Waker::noop());
    // Nothing runs, usually: no waker is needed then.
    if let Poll::Ready(value) = Pin::new(&mut future).poll(&mut first) {
        return value;
    }
    let waker = Waker::from(Arc::new(Unpark(current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = Pin::new(&mut future).poll(&mut context) {
            return value;
        }
        park();
    }
}
