//! Wall timers: a callback at a time of the wall clock, wherever that clock is set.
//!
//! Ground rules. A wall timer is an ordinary exclusive timer that is aimed at the instant at which the wall clock will show
//! its time if nobody sets it. When it fires it looks: if the wall clock does not show the time yet, it is aimed again. When
//! the wall clock has been set, all that wait are aimed again ([`Walls::follow`]). Where nobody tells of that, none is
//! aimed further than [`RECHECK`] ahead.
//!
//! [`Walls`] has what waits, behind one lock. To be in it is to wait: the callback runs only if its timer was in it and has
//! been taken out by the very tick that runs it; `change` puts it in, disposing takes it out. The lock is held while timers
//! are aimed (a home's lock inside it), never while a job is handed over, a callback runs or a reference is given back.
//! `loom-tests/wall.rs` runs it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Weak;
use std::time::{Duration, SystemTime};

use crate::alarm::Alarms;
use crate::engine::{self, DueAlready, Engine, NodeRef, instant};
use crate::queue::MissedTicks;
use crate::sync::{Arc, Mutex};
use crate::timer::{self, Changed, Disposal, Tick, Timer, Waited};

/// Where the system does not tell that the wall clock was set, somebody looks this often.
const RECHECK: Duration = Duration::from_secs(5);

/// The wall timers of one runtime that wait.
#[derive(Default)]
pub(crate) struct Walls {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    waiting: BTreeMap<u64, Waiting>,
    next_id: u64,
    /// The alarms tell when the wall clock is set.
    told: bool,
}

struct Waiting {
    at: SystemTime,
    node: NodeRef,
}

impl Waiting {
    /// Aims the timer at its time as the clocks are now. `None`: it is disposed.
    fn aim(&self, engine: &Engine, told: bool) -> Option<Option<DueAlready>> {
        // In this order: if the thread is held up in between, the timer is aimed too early, which is put right.
        let now = engine.clock().now();
        let left = self.at.duration_since(engine.clock().wall()).unwrap_or(Duration::ZERO);
        let left = if told { left } else { left.min(RECHECK) };
        engine::change_to(&self.node, instant(now, left), now)
    }
}

impl Walls {
    fn name(&self) -> u64 {
        let mut inner = self.inner.lock();
        inner.next_id += 1;
        inner.next_id
    }

    /// Waits for `at`, whatever it waited for before.
    fn change(&self, engine: &Engine, id: u64, node: &NodeRef, at: SystemTime) -> Changed {
        let mut inner = self.inner.lock();
        // A manual clock's hands tell by themselves. A system that could not tell is asked again with each timer.
        inner.told = inner.told || engine.native().is_none_or(|native| native.alarms.follow_wall());
        let waiting = Waiting { at, node: node.clone() };
        let aimed = waiting.aim(engine, inner.told);
        let before = match aimed {
            Some(_) => inner.waiting.insert(id, waiting),
            None => inner.waiting.remove(&id),
        };
        drop(inner);
        let Some(due) = aimed else { return Changed::Ended };
        if let Some(due) = due {
            due.submit();
        }
        if before.is_some() { Changed::WasWaiting } else { Changed::WasIdle }
    }

    /// Does not wait any more.
    fn forget(&self, id: u64) {
        let forgotten = self.inner.lock().waiting.remove(&id);
        drop(forgotten);
    }

    /// The timer has fired: whether its time has come, by the wall clock. If so, it does not wait any more.
    fn has_come(&self, engine: &Engine, id: u64) -> Option<SystemTime> {
        let mut inner = self.inner.lock();
        let waiting = inner.waiting.get(&id)?;
        if engine.clock().wall() < waiting.at {
            let aimed = waiting.aim(engine, inner.told);
            drop(inner);
            if let Some(Some(due)) = aimed {
                due.submit();
            }
            return None;
        }
        let came = inner.waiting.remove(&id);
        drop(inner);
        came.map(|came| came.at)
    }

    /// The wall clock has been set: aims all that wait.
    pub(crate) fn follow(&self, engine: &Engine) {
        let due: Vec<DueAlready> = {
            let inner = self.inner.lock();
            inner.waiting.values().filter_map(|waiting| waiting.aim(engine, inner.told)?).collect()
        };
        due.into_iter().for_each(DueAlready::submit);
    }

    /// The runtime ends, and its homes are closed: nothing waits any more.
    pub(crate) fn close(&self) {
        let waiting = std::mem::take(&mut self.inner.lock().waiting);
        for waiting in waiting.into_values() {
            engine::dispose(&waiting.node);
        }
    }
}

/// A timer that calls back when the wall clock shows a time, once, and again whenever [`change`](Self::change) gives it a new
/// one (S56). Made by [`Runtime::wall_timer`](crate::Runtime::wall_timer).
///
/// **Precision.** Never early by the wall clock: it shows the time, or a later one, when the callback starts. Otherwise as
/// precise as any [`Timer`]. When the wall clock is set (by hand, by a time service that steps it, by a suspend), the timer
/// follows in both directions: it fires at once after a step past its time, and waits on after a step back. On Linux's own
/// timers the kernel tells of a step when it happens; on other systems, on [`Alarm::Portable`](crate::Alarm::Portable), and where no
/// further descriptor is to be had, it is noticed within 5 s, and the process wakes up that often while wall timers wait.
///
/// **Cost.** One more descriptor, opened with the first wall timer of a runtime. All that wait are looked at
/// when the clock is set, and share a lock: meant for dozens or thousands, not for millions.
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
    timer: Timer,
    place: Place,
}

/// Where a wall timer waits. Its end is the end of the waiting, unless the timer goes on without a handle.
struct Place {
    engine: Weak<Engine>,
    id: u64,
    detached: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.detached {
            self.forget();
        }
    }
}

impl Place {
    fn forget(&self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.walls().forget(self.id);
        }
    }
}

impl WallTimer {
    pub(crate) fn start(
        engine: &Arc<Engine>,
        at: SystemTime,
        mut callback: impl FnMut(&WallTick<'_>) + Send + 'static,
    ) -> Self {
        let (id, weak) = (engine.walls().name(), Arc::downgrade(engine));
        let place = Place { engine: weak.clone(), id, detached: false };
        let fire = move |tick: &Tick<'_>| {
            // A runtime that is gone has nothing that fires.
            let Some(engine) = weak.upgrade() else { return };
            if let Some(at) = engine.walls().has_come(&engine, id) {
                callback(&WallTick { engine: &engine, node: tick.node(), id, at });
            }
        };
        let timer = timer::exclusive(engine, MissedTicks::default(), (Duration::MAX, Duration::MAX), fire);
        let timer = Self { timer, place };
        let _ = timer.change(at);
        timer
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
        match self.place.engine.upgrade() {
            Some(engine) => engine.walls().change(&engine, self.place.id, self.timer.node(), at),
            None => Changed::Ended,
        }
    }

    /// Stops the timer for good, without waiting; see [`Timer::dispose`].
    pub fn dispose(&self) {
        self.timer.dispose();
        self.place.forget();
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
        let Self { timer, mut place } = self;
        place.detached = true;
        timer.detach();
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
    engine: &'a Engine,
    node: &'a NodeRef,
    id: u64,
    at: SystemTime,
}

impl WallTick<'_> {
    /// The time that the timer waited for. The wall clock showed it, or a later one, when the callback started.
    pub fn scheduled(&self) -> SystemTime {
        self.at
    }

    /// The wall clock, read now.
    pub fn now(&self) -> SystemTime {
        self.engine.clock().wall()
    }

    /// Changes the timer this callback belongs to; see [`WallTimer::change`].
    pub fn change(&self, at: SystemTime) -> Changed {
        self.engine.walls().change(self.engine, self.id, self.node, at)
    }

    /// Disposes the timer this callback belongs to. What the callback owns is dropped when it has returned.
    pub fn dispose(&self) {
        engine::dispose(self.node);
        self.engine.walls().forget(self.id);
    }
}

impl fmt::Debug for WallTick<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WallTick").field("scheduled", &self.at).finish_non_exhaustive()
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../loom-tests/wall.rs"]
mod loom_models;

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;
    use crate::runtime::{ManualClock, Runtime};

    /// To be in `Walls` is to wait, and nothing else is.
    #[test]
    fn who_does_not_wait_is_not_in_the_list() {
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
        let engine = Arc::clone(runtime.engine());
        let waiting = || engine.walls().inner.lock().waiting.len();
        let soon = clock.wall() + Duration::from_secs(1);
        let timer = || runtime.wall_timer(soon, |tick| tick.dispose());
        let (dropped, disposed, waited, fired) = (timer(), timer(), timer(), timer());
        timer().detach();
        assert_eq!(waiting(), 5);
        drop(dropped);
        assert_eq!(waiting(), 4);
        disposed.dispose();
        assert_eq!(waiting(), 3);
        assert_eq!(waited.dispose_and_wait(), Waited::Ended);
        assert_eq!(waiting(), 2);
        assert_eq!(disposed.change(soon), Changed::Ended);
        assert_eq!(waiting(), 2);
        assert_eq!(clock.advance(Duration::from_secs(1)), 2);
        assert_eq!(waiting(), 0);
        // A callback that takes its new time back.
        let undecided = runtime.wall_timer(soon, move |tick| {
            let _ = tick.change(soon + Duration::from_secs(1));
            tick.dispose();
        });
        assert_eq!(clock.advance(Duration::ZERO), 1);
        assert_eq!((waiting(), fired.change(soon)), (0, Changed::Ended));
        let closed = runtime.wall_timer(soon + Duration::from_secs(9), |_| {});
        assert_eq!(waiting(), 1);
        runtime.shutdown(Duration::ZERO).expect("no threads");
        assert_eq!((waiting(), closed.change(soon)), (0, Changed::Ended));
        assert_eq!(waiting(), 0);
        drop((undecided, closed));
    }
}
