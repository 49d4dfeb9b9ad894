//! Wall timers: a callback at a time of the wall clock, wherever that clock is set.
//!
//! Ground rules. A handle owns an entry of the registry ([`crate::engine::WallEntry`]), which does everything.

use std::fmt;
use std::time::SystemTime;

use super::{Changed, Disposal, Waited};
use crate::engine::{Engine, WallEntry, WallFiring};
use crate::runtime::Runtime;
use crate::sync::Arc;

impl Runtime {
    /// A timer that calls back when the wall clock shows `at` (S56): never before, once, and at once if that has passed. It
    /// follows the wall clock wherever it is set. The callback can change its own timer to a later time.
    ///
    /// How soon a step of the wall clock is noticed: see [`WallTimer`]. After [`shutdown`](Self::shutdown) the timer is born
    /// disposed.
    ///
    /// # Examples
    ///
    /// Every day at the same hour:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// const DAY: Duration = Duration::from_secs(24 * 3600);
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let daily = runtime.wall_timer(clock.wall() + DAY, |tick| {
    ///     let _ = tick.change(tick.scheduled() + DAY);
    /// });
    /// assert_eq!(clock.advance(7 * DAY), 7);
    /// # drop(daily);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn wall_timer(&self, at: SystemTime, callback: impl FnMut(&WallTick<'_>) + Send + 'static) -> WallTimer {
        WallTimer::start(self.engine(), at, callback)
    }
}

/// A timer that calls back when the wall clock shows a time, once, and again whenever [`change`](Self::change) gives it a new
/// one (S56). Made by [`Runtime::wall_timer`](crate::Runtime::wall_timer).
///
/// **Precision.** Never early by the wall clock: it shows the time, or a later one, when the callback starts. Otherwise as
/// precise as any [`Timer`](crate::Timer). When the wall clock is set (by hand, by a time service that steps it, by a suspend), the timer
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
    entry: WallEntry,
}

impl WallTimer {
    pub(crate) fn start(
        engine: &Arc<Engine>,
        at: SystemTime,
        callback: impl FnMut(&WallTick<'_>) + Send + 'static,
    ) -> Self {
        let mut callback = callback;
        Self { entry: WallEntry::start(engine, at, move |firing| callback(&WallTick { firing })) }
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
        self.entry.change(at).into()
    }

    /// Stops the timer for good, without waiting; see [`Timer::dispose`](crate::Timer::dispose).
    pub fn dispose(&self) {
        self.entry.dispose();
    }

    /// Disposes the timer and blocks until no callback of it runs; see [`Timer::dispose_and_wait`](crate::Timer::dispose_and_wait).
    pub fn dispose_and_wait(&self) -> Waited {
        self.dispose();
        Disposal::of(self.entry.entry()).wait()
    }

    /// Disposes the timer now; the future is ready when no callback of it runs; see [`Timer::dispose_async`](crate::Timer::dispose_async).
    pub fn dispose_async(&self) -> Disposal {
        self.dispose();
        Disposal::of(self.entry.entry())
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
        self.entry.detach();
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
    firing: &'a WallFiring<'a>,
}

impl WallTick<'_> {
    /// The time that the timer waited for. The wall clock showed it, or a later one, when the callback started.
    pub fn scheduled(&self) -> SystemTime {
        self.firing.at
    }

    /// The wall clock, read now.
    pub fn now(&self) -> SystemTime {
        self.firing.now()
    }

    /// Changes the timer this callback belongs to; see [`WallTimer::change`].
    pub fn change(&self, at: SystemTime) -> Changed {
        self.firing.change(at).into()
    }

    /// Disposes the timer this callback belongs to. What the callback owns is dropped when it has returned.
    pub fn dispose(&self) {
        self.firing.dispose();
    }
}

impl fmt::Debug for WallTick<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WallTick").field("scheduled", &self.scheduled()).finish_non_exhaustive()
    }
}
