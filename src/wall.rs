//! Wall timers: a callback at a time of the wall clock, wherever that clock is set.
//!
//! Ground rules. A wall timer is an exclusive timer that is aimed at the instant at which the wall clock will show its time if that
//! clock is not set. When it fires it looks: if the wall clock does not show the time yet, it is aimed again. When the wall clock has
//! been set, all that wait are aimed again. Where the system does not tell of that, one timer of the runtime's own compares the
//! clocks every [`RECHECK`] while wall timers wait.
//!
//! The timers of a queue that wait are in a list ([`list`]) under the lock of that queue, and each operation is one section of that
//! lock. To be in the list is to wait: the callback runs only if its timer was in it and has been taken out by the very tick that runs
//! it; `change` puts it in, disposing takes it out. What cores share is read there, and written only when the wall clock was set.
//!
//! Steps of the wall clock are counted. A timer is aimed by the count and the clocks as they are read with the lock held, in this
//! order, and a step is counted after the clock was set. So a timer that carries the count of a step was aimed by the clock as that
//! step left it, and to follow a step is to aim those that carry a lower count: [`SECTION`] of them in a lock section, and
//! [`SECTIONS_AT_ONCE`] in a job of the pool. A step during that makes the count higher, and all are aimed again.
//! `loom-tests/wall_step_vs_change.rs` runs it.

#![allow(unsafe_code)] // the callback behind the node; entries under the lock of their queue

pub(crate) mod list;

use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::{Duration, SystemTime};

use self::list::{Entry, EntryRef, Reading};
use crate::alarm::Alarms;
use crate::carrier::{carry, layout, payload};
use crate::engine::{self, Engine, NodeRef, TimerNode, VTable};
use crate::home::{Home, Inner};
use crate::queue::{Kind, MissedTicks, NEVER};
use crate::sync::{Arc, AtomicBool, AtomicU64, OnceLock, Ordering};
use crate::timer::{self, Changed, Disposal, Tick, Timer, Waited};

/// Where the system does not tell that the wall clock was set, the runtime compares the clocks this often.
const RECHECK: Duration = Duration::from_secs(5);
/// By so much the wall clock may gain on the runtime's clock before all wall timers are aimed again, where the system does not tell.
const DRIFT: Duration = Duration::from_millis(1);
/// Timers that are aimed in one lock section, when a step is followed.
const SECTION: usize = if cfg!(all(test, timerqueue_loom)) { 1 } else { 48 };
/// Sections that one job of the pool carries out, when a step is followed: some 100 us.
const SECTIONS_AT_ONCE: usize = 20;

/// What the wall timers of a runtime have in common.
pub(crate) struct Walls {
    /// The number of times that the wall clock was set. Begins with one: an entry that has not been aimed carries zero.
    steps: AtomicU64,
    /// The alarms tell when the wall clock is set. (A manual clock does so itself.)
    told: AtomicBool,
    /// [`Own::look`] is set, or is about to be.
    looks: AtomicBool,
    /// Made with the first wall timer of a runtime that is not on a manual clock.
    own: OnceLock<Own>,
}

/// The runtime's own timers.
struct Own {
    /// Follows a step of the wall clock. Only ever due at once.
    follow: Timer,
    /// Compares the clocks, where the system does not tell of steps.
    look: Timer,
}

impl Own {
    fn new(engine: &Engine) -> Self {
        let idle = |job: fn(&Engine)| {
            timer::exclusive(engine, MissedTicks::default(), (Duration::MAX, Duration::MAX), move |tick| {
                let engine = tick.node().home().inner.lock().engine().map(Arc::clone);
                if let Some(engine) = engine {
                    job(&engine);
                }
            })
        };
        Self {
            follow: idle(|engine| engine.walls().follow_some(engine)),
            look: idle(|engine| engine.walls().look(engine)),
        }
    }
}

impl Walls {
    pub(crate) fn new(manual: bool) -> Self {
        Self {
            steps: AtomicU64::new(1),
            told: AtomicBool::new(manual),
            looks: AtomicBool::new(false),
            own: OnceLock::new(),
        }
    }

    /// Before a wall timer is made. A system that could not tell of steps is asked again with each timer.
    fn prepare(&self, engine: &Engine) {
        if let Some(native) = engine.native() {
            self.own.get_or_init(|| Own::new(engine));
            if !self.told.load(Ordering::Acquire) && native.alarms.follow_wall() {
                self.told.store(true, Ordering::Release);
            }
        }
    }

    /// The runtime's own timer that may be filed in a queue.
    pub(crate) fn own_timer(&self) -> Option<&NodeRef> {
        self.own.get().map(|own| own.look.node())
    }

    /// The wall clock has been set: has the pool aim all that wait.
    pub(crate) fn step(&self) {
        self.steps.fetch_add(1, Ordering::AcqRel);
        if let Some(own) = self.own.get() {
            let _ = own.follow.change(Duration::ZERO, Duration::MAX);
        }
    }

    /// As [`step`](Self::step), on the calling thread. When this returns, all are aimed by the wall clock as it was, or later.
    pub(crate) fn follow(&self, engine: &Engine) {
        self.steps.fetch_add(1, Ordering::AcqRel);
        for home in engine.homes() {
            while self.follow_section(engine, home) {}
        }
    }

    /// A job of the pool: goes on with following the last step, and has a further job carry on if there is more.
    fn follow_some(&self, engine: &Engine) {
        let mut sections = 0;
        for home in engine.homes() {
            while self.follow_section(engine, home) {
                sections += 1;
                if sections == SECTIONS_AT_ONCE {
                    if let Some(own) = self.own.get() {
                        let _ = own.follow.change(Duration::ZERO, Duration::MAX);
                    }
                    return;
                }
            }
        }
    }

    /// Aims some timers of one queue that the last step has not reached. Whether there are more.
    fn follow_section(&self, engine: &Engine, home: &Home) -> bool {
        let mut due = Vec::new();
        let more = {
            let mut inner = home.inner.lock();
            if !inner.is_open() {
                return false;
            }
            inner.touch(home);
            let aim = Aim::new(self, home);
            let mut left = SECTION;
            loop {
                let Some((entry, node, at)) = inner.walls.before(aim.step) else { break false };
                if left == 0 {
                    break true;
                }
                left -= 1;
                let node = node.as_ptr();
                // SAFETY: linked here, so at home here and alive. A disposed timer is refused; it stays linked until the thread that
                // has disposed it comes by.
                unsafe {
                    let (_, job) = inner.aim_again(home, node, aim.by.due(at), aim.by.now).unwrap_or_default();
                    due.extend(job);
                    inner.walls.aimed_again(entry, aim.step, aim.by);
                }
            }
        };
        due.into_iter().for_each(|fire| engine.submit(fire));
        more
    }

    /// Compares the clocks. If the wall clock has gained on the other one since some timer was aimed, all are aimed again. The other
    /// way round timers fire too early, and are aimed again then.
    fn look(&self, engine: &Engine) {
        // Before the queues are looked at: a timer that begins to wait in one after that finds it so.
        self.looks.store(false, Ordering::Relaxed);
        // Before the clocks are read: a step after this reading is told of, and one before it is seen.
        let told = self.told.load(Ordering::Acquire);
        let offset = Reading::of(engine.clock()).offset();
        let (mut waiting, mut behind) = (false, false);
        for home in engine.homes() {
            let inner = home.inner.lock();
            waiting |= !inner.walls.is_empty();
            behind |= inner.walls.is_behind(offset, DRIFT);
        }
        if behind {
            self.step();
        }
        if waiting && !told {
            self.look_later();
        }
    }

    fn look_later(&self) {
        if !self.looks.swap(true, Ordering::Relaxed) {
            if let Some(own) = self.own.get() {
                let _ = own.look.change(RECHECK, Duration::MAX);
            }
        }
    }

    /// The runtime ends, and its homes are closed: nothing waits any more.
    pub(crate) fn close(&self, engine: &Engine) {
        if let Some(own) = self.own.get() {
            own.follow.dispose();
            own.look.dispose();
        }
        let mut batch = Vec::with_capacity(SECTION);
        for home in engine.homes() {
            loop {
                {
                    let mut inner = home.inner.lock();
                    batch.extend(std::iter::from_fn(|| inner.walls.pop()).take(SECTION));
                }
                if batch.is_empty() {
                    break;
                }
                batch.drain(..).for_each(|node| engine::dispose(&node));
            }
        }
    }
}

/// What a timer is aimed by. Made with the lock of its queue held.
struct Aim {
    /// A look at the clocks is needed, unless one is set.
    told: bool,
    step: u64,
    by: Reading,
}

impl Aim {
    fn new(walls: &Walls, home: &Home) -> Self {
        // The clocks last: what is set after they were read is counted later, and told of, if that is promised here.
        let told = walls.told.load(Ordering::Acquire);
        let step = walls.steps.load(Ordering::Acquire);
        Self { told, step, by: Reading::of(&home.clock) }
    }
}

/// The lock is held, and a timer has been put into the list. The runtime, if a look at the clocks is to be set for that.
fn wants_look(inner: &Inner, aim: &Aim) -> Option<Arc<Engine>> {
    let engine = inner.engine()?;
    let set = aim.told || engine.walls().looks.load(Ordering::Relaxed);
    (!set).then(|| Arc::clone(engine))
}

/// Waits for `at`, whatever the timer waited for before.
fn change(node: &NodeRef, entry: EntryRef, at: SystemTime) -> Changed {
    let home = node.home();
    let mut inner = home.inner.lock();
    inner.touch(home);
    let Some(engine) = inner.engine() else { return Changed::Ended };
    let aim = Aim::new(engine.walls(), home);
    // SAFETY: alive and at home here; the caller has a reference.
    let done = unsafe { inner.reschedule(home, node.as_ptr(), aim.by.due(at), NEVER, aim.by.now) };
    let Some((_, job)) = done else { return Changed::Ended };
    // SAFETY: the entry of this timer, which is alive and at home here.
    let waited = unsafe { inner.walls.aimed(entry, node, at, aim.step, aim.by) };
    let look = wants_look(&inner, &aim);
    engine::hand_over(inner, job);
    if let Some(engine) = look {
        engine.walls().look_later();
    }
    if waited { Changed::WasWaiting } else { Changed::WasIdle }
}

/// A disposed timer does not wait any more.
fn forget(node: &NodeRef, entry: EntryRef) {
    // SAFETY: the entry of this timer, which is alive and at home here.
    let held = unsafe { node.home().inner.lock().walls.unlink(entry) };
    drop(held);
}

/// The timer has fired. Its time, if that has come by the wall clock; then the timer does not wait any more.
fn has_come(node: &NodeRef, entry: EntryRef) -> Option<SystemTime> {
    let home = node.home();
    let mut inner = home.inner.lock();
    // SAFETY: here and below, the entry of this timer, which is alive and at home here; its job has a reference.
    let at = unsafe { inner.walls.time(entry) }?;
    if home.clock.wall() >= at {
        // SAFETY: as said.
        let held = unsafe { inner.walls.unlink(entry) };
        drop(inner);
        drop(held);
        return Some(at);
    }
    inner.touch(home);
    let aim = Aim::new(inner.engine()?.walls(), home);
    // SAFETY: as said.
    let (_, job) = unsafe { inner.aim_again(home, node.as_ptr(), aim.by.due(at), aim.by.now) }?;
    // SAFETY: as said.
    unsafe { inner.walls.aimed_again(entry, aim.step, aim.by) };
    engine::hand_over(inner, job);
    None
}

/// What stands behind the header of a wall timer.
struct Carried<F> {
    /// Belongs to the lock of the timer's queue.
    entry: Entry,
    callback: F,
}

/// The two parts of the payload, by pointers that do not overlap.
///
/// # Safety
/// `node` is alive, and was made with `Carried<F>`.
unsafe fn parts<F>(node: NonNull<TimerNode>) -> (EntryRef, *mut F) {
    // SAFETY: the contract; a `ManuallyDrop` is its content, and no reference to the whole is ever made.
    unsafe {
        let carried = payload::<Carried<F>>(node).cast::<Carried<F>>();
        (EntryRef::new(NonNull::new_unchecked(&raw mut (*carried).entry)), &raw mut (*carried).callback)
    }
}

/// A new wall timer, not started yet, with its handle's reference.
fn make<F>(engine: &Engine, at: SystemTime, callback: F) -> (NodeRef, EntryRef)
where
    F: FnMut(&WallTick<'_>) + Send + 'static,
{
    let header = engine.header(Kind::Exclusive, MissedTicks::default(), Calls::<F>::VTABLE);
    let node = carry(header, Carried { entry: Entry::new(at), callback });
    // SAFETY: just made, with two references; the other one is placed when the timer is started.
    unsafe { (NodeRef::from_raw(node), parts::<F>(node).0) }
}

/// What can be done with a wall timer whose callback is an `F`.
struct Calls<F>(std::marker::PhantomData<F>);

impl<F: FnMut(&WallTick<'_>)> Calls<F> {
    const VTABLE: &'static VTable =
        &VTable { call: Self::call, drop_payload: Self::DROP, layout: layout::<Carried<F>>() };
    const DROP: Option<unsafe fn(NonNull<TimerNode>)> =
        if std::mem::needs_drop::<F>() { Some(Self::drop_callback) } else { None };

    /// # Safety
    /// Between `begin` and `end` of an exclusive node that was made with `Carried<F>`.
    unsafe fn call(node: NonNull<TimerNode>, tick: &Tick<'_>) {
        let node_ref = tick.node();
        // SAFETY: alive between `begin` and `end`.
        let (entry, callback) = unsafe { parts::<F>(node) };
        if let Some(at) = has_come(node_ref, entry) {
            // SAFETY: an exclusive timer has one callback at a time, and it is not dropped between `begin` and `end`.
            unsafe { (*callback)(&WallTick { node: node_ref, entry, at }) };
        }
    }

    /// # Safety
    /// Called once, for a node that was made with `Carried<F>`, when the callback does not run and will not run.
    unsafe fn drop_callback(node: NonNull<TimerNode>) {
        // SAFETY: the contract. The entry is left alone: the list may still have it, and it owns nothing when it is not linked.
        unsafe { std::ptr::drop_in_place(parts::<F>(node).1) }
    }
}

/// A timer that calls back when the wall clock shows a time, once, and again whenever [`change`](Self::change) gives it a new
/// one (S56). Made by [`Runtime::wall_timer`](crate::Runtime::wall_timer).
///
/// **Precision.** Never early by the wall clock: it shows the time, or a later one, when the callback starts. Otherwise as
/// precise as any [`Timer`]. When the wall clock is set (by hand, by a time service that steps it, by a suspend), the timer
/// follows in both directions: it fires at once after a step past its time, and waits on after a step back. On Linux's own
/// timers the kernel tells of a step when it happens; on other systems, on [`Alarm::Portable`](crate::Alarm::Portable), and where no
/// further descriptor is to be had, it is noticed within 5 s. There the process wakes up once in 5 s while wall timers wait,
/// however many. Where the system slews the wall clock but not the clock of the runtime (macOS, Windows), a timer may be late by
/// what the wall clock gains in 5 s, and 1 ms more.
///
/// **Cost.** Making and dropping one costs some 100 ns more than with an ordinary timer, much of that for reading two
/// clocks, and cores share nothing that it writes. One more descriptor is opened with the first wall timer of a runtime.
/// When the clock is set, each that waits is aimed anew: some 100 ns each, on the pool, in steps between which other callbacks run.
///
/// **Threads.** Callbacks run on a thread of the runtime's pool (on a manual clock: on the thread that advances it), and never
/// overlap. All operations take `&self`, from any thread.
///
/// **Dropping** the handle disposes the timer without waiting; [`detach`](Self::detach) lets it go on. A timer that is
/// due while the system is suspended does not wake the system up.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use timerqueue::Runtime;
///
/// let (send, receive) = std::sync::mpsc::channel();
/// let at = SystemTime::now() + Duration::from_millis(5);
/// let timer = Runtime::global()?.wall_timer(at, move |tick| send.send(tick.scheduled()).unwrap());
/// assert_eq!(receive.recv().unwrap(), at);
/// # drop(timer);
/// # Ok::<(), timerqueue::StartError>(())
/// ```
#[must_use = "dropping the handle disposes the timer; see `detach`"]
pub struct WallTimer {
    timer: ManuallyDrop<Timer>,
    entry: EntryRef,
}

impl Drop for WallTimer {
    fn drop(&mut self) {
        let entry = self.entry;
        // SAFETY: taken once, here.
        let node = unsafe { ManuallyDrop::take(&mut self.timer) }.into_node();
        // SAFETY: here and below, the entry of this timer, which is alive, and the list is that of its home, whose lock is held.
        let held = |inner: &Inner| u32::from(unsafe { inner.walls.waits(entry) });
        // SAFETY: as said. The reference is given back with all others.
        let unlink = |inner: &mut Inner| _ = unsafe { inner.walls.unlink(entry) }.map(NodeRef::into_raw);
        if let Err(node) = engine::free_last(node, held, unlink) {
            // In this order: a disposed timer cannot be put into the list again.
            engine::dispose(&node);
            forget(&node, entry);
        }
    }
}

impl WallTimer {
    pub(crate) fn start(
        engine: &Arc<Engine>,
        at: SystemTime,
        callback: impl FnMut(&WallTick<'_>) + Send + 'static,
    ) -> Self {
        engine.walls().prepare(engine);
        let (node, entry) = make(engine, at, callback);
        let mut look = None;
        let schedule = |inner: &mut Inner, home: &Home| {
            inner.touch(home);
            let aim = Aim::new(engine.walls(), home);
            // SAFETY: just made; one of its references is for this, and the entry is its own.
            let job = unsafe {
                inner.walls.aimed(entry, &node, at, aim.step, aim.by);
                inner.schedule(home, node.as_ptr(), aim.by.due(at), NEVER, aim.by.now)
            };
            look = wants_look(inner, &aim);
            job
        };
        // SAFETY: just made; of its two references one is placed by `schedule`, the other is the handle's.
        unsafe { engine::start_with(node.as_ptr(), schedule) };
        if let Some(engine) = look {
            engine.walls().look_later();
        }
        Self { timer: ManuallyDrop::new(Timer::from_node(node)), entry }
    }

    /// Waits for another time, instead of the one before or after having fired. If the wall clock shows it already, the timer
    /// fires at once. Any thread may do this, the timer's own callback included.
    ///
    /// When this returns, no callback for the time before will start; one that has been started goes on.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Changed, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let hour = Duration::from_secs(3600);
    /// let timer = runtime.wall_timer(clock.wall() + hour, |_| {});
    /// assert_eq!(timer.change(clock.wall() + 2 * hour), Changed::WasWaiting);
    /// assert_eq!(clock.advance(hour), 0);
    /// assert_eq!(clock.advance(hour), 1);
    /// assert_eq!(timer.change(clock.wall() + hour), Changed::WasIdle);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn change(&self, at: SystemTime) -> Changed {
        change(self.timer.node(), self.entry, at)
    }

    /// Stops the timer for good, without waiting; see [`Timer::dispose`].
    pub fn dispose(&self) {
        // In this order: a disposed timer cannot be put into the list again.
        self.timer.dispose();
        forget(self.timer.node(), self.entry);
    }

    /// Disposes the timer and blocks until no callback of it runs; see [`Timer::dispose_and_wait`].
    pub fn dispose_and_wait(&self) -> Waited {
        self.dispose();
        self.timer.dispose_and_wait()
    }

    /// Disposes the timer now; the future is ready when no callback of it runs; see [`Timer::dispose_async`].
    pub fn dispose_async(&self) -> Disposal {
        self.dispose();
        self.timer.dispose_async()
    }

    /// Lets the timer go on without a handle, until it has fired, or has disposed itself, or its runtime is shut down.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// runtime.wall_timer(clock.wall() + Duration::from_secs(60), |_| {}).detach();
    /// assert_eq!(clock.advance(Duration::from_secs(60)), 1);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn detach(self) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once; the handle's own drop does not run.
        unsafe { ManuallyDrop::take(&mut this.timer) }.detach();
    }
}

impl fmt::Debug for WallTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WallTimer").finish_non_exhaustive()
    }
}

/// What the callback of a [`WallTimer`] learns, and its hold on its own timer.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let at = clock.wall() + Duration::from_secs(60);
/// let timer = runtime.wall_timer(at, move |tick| {
///     assert_eq!((tick.scheduled(), tick.now()), (at, at));
/// });
/// assert_eq!(clock.advance(Duration::from_secs(60)), 1);
/// # drop(timer);
/// # Ok::<(), timerqueue::StartError>(())
/// ```
pub struct WallTick<'a> {
    node: &'a NodeRef,
    entry: EntryRef,
    at: SystemTime,
}

impl WallTick<'_> {
    /// The time that the timer waited for. The wall clock showed it, or a later one, when the callback started.
    pub fn scheduled(&self) -> SystemTime {
        self.at
    }

    /// The wall clock, read now.
    pub fn now(&self) -> SystemTime {
        self.node.home().clock.wall()
    }

    /// Changes the timer this callback belongs to; see [`WallTimer::change`].
    pub fn change(&self, at: SystemTime) -> Changed {
        change(self.node, self.entry, at)
    }

    /// Disposes the timer this callback belongs to. What the callback owns is dropped when it has returned.
    pub fn dispose(&self) {
        engine::dispose(self.node);
        forget(self.node, self.entry);
    }
}

impl fmt::Debug for WallTick<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WallTick").field("scheduled", &self.at).finish_non_exhaustive()
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../loom-tests/wall_step_vs_change.rs"]
mod loom_models;

#[cfg(all(test, not(timerqueue_loom)))]
mod tests;
