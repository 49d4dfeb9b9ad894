//! Wall timers: a callback at a time of the wall clock, also after the clock is set.
//!
//! Ground rules. A handle owns an entry of the registry (`engine::wall_registry`), which does the
//! work.

use std::time::SystemTime;

use super::{Changed, Timer, TimerId, TimerSnapshot};
use crate::engine::{self, Engine, EntryRef, Settings};
use crate::queue::MissedTicks;
use crate::runtime::{Runtime, RuntimeError, RuntimeHandle};
use crate::sync::Arc;

/// A timer that fires once when the wall clock shows its time. [`reset_at`](Self::reset_at) gives
/// the timer a new time, also after the timer has fired. Made by [`WallTimer::new`], or on a chosen
/// runtime by [`WallTimer::on`].
///
/// **Precision.** Never early by the wall clock: when the callback starts, the wall clock shows the
/// time of the timer or a later time. Otherwise a wall timer is as precise as a
/// [`Timer`](crate::Timer).
///
/// **Steps.** When the wall clock is set (by hand, by a time service, by a suspend), the timer
/// follows in both directions. After a step past its time, the timer fires at once; after a step
/// back, the timer keeps waiting. With the timers of the Linux kernel, the kernel reports each step
/// at once. On further systems, on [`Alarm::Portable`](crate::Alarm::Portable), and if the process
/// cannot open a further descriptor, a step is noticed within 5 s. In these cases the process wakes
/// up once in 5 s while wall timers wait, however many. Where the system slews the wall clock but
/// not the clock of the runtime (macOS, Windows), a timer may be late by the gain of the wall clock
/// in 5 s, plus 1 ms.
///
/// **Cost.** Making and dropping a wall timer costs some 100 ns more than with an ordinary timer,
/// much of this for reading two clocks; it writes no memory shared by cores. The first wall timer
/// of a runtime opens a further descriptor. After a step of the wall clock the pool aims each
/// waiting wall timer again: some 100 ns for each, in batches between which other callbacks run.
///
/// **Leeway, jitter, name.** [`TimerBuilder::start_wall`](crate::TimerBuilder::start_wall) gives
/// them.
///
/// **Threads.** Callbacks run on a thread of the runtime's pool (on a manual clock: on the thread
/// that advances the clock), and never overlap. All operations take `&self`, from any thread.
///
/// **Dropping** the handle disposes the timer without waiting; [`detach`](Self::detach) lets the
/// timer go on. A timer due while the system is suspended does not wake the system.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use timerqueue::WallTimer;
///
/// let (send, receive) = std::sync::mpsc::channel();
/// let at = SystemTime::now() + Duration::from_millis(5);
/// let timer = WallTimer::new(at, move |tick| send.send(tick.scheduled()).unwrap());
/// assert_eq!(receive.recv().unwrap(), at);
/// # drop(timer);
/// ```
///
/// The time that a timer waits for is part of its [snapshot](Self::snapshot):
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, WallTimer, observe::TimerState};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let at = clock.wall() + Duration::from_secs(3600);
/// let timer = WallTimer::on(&runtime, at, |_| {});
/// assert_eq!(timer.snapshot().wall, Some(at));
/// clock.advance(Duration::from_secs(3600));
/// assert_eq!(timer.snapshot().state, TimerState::Idle);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
///
/// A [detached](Self::detach) timer goes on without a handle, until it has fired:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, WallTimer};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// WallTimer::on(&runtime, clock.wall() + Duration::from_secs(60), |_| {}).detach();
/// assert_eq!(clock.advance(Duration::from_secs(60)), 1);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[doc(alias = "cron")]
#[must_use = "dropping the handle disposes the timer: keep it (`let _timer = ..`; `let _ = ..` drops it at once), or `detach` it"]
pub struct WallTimer {
    /// Of the kind that follows the wall clock.
    timer: Timer,
}

impl WallTimer {
    /// A timer on the current runtime, usually the default runtime, which fires once when the wall
    /// clock shows `at`, never before; at once if the clock shows a later time already. The
    /// callback can change its own timer to a later time.
    ///
    /// # Panics
    /// When the default runtime cannot be started; [`try_new`](Self::try_new) returns the reason.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use timerqueue::WallTimer;
    ///
    /// let timer = WallTimer::new(SystemTime::now() + Duration::from_secs(3600), |_| {
    ///     println!("an hour later")
    /// });
    /// # drop(timer);
    /// ```
    #[track_caller]
    pub fn new(at: SystemTime, callback: impl FnMut(&WallTick<'_>) + Send + 'static) -> Self {
        Self::start(RuntimeHandle::current().started(), at, MissedTicks::default().into(), callback)
    }

    /// As [`new`](Self::new), on a runtime of the caller's choice. After
    /// [`shutdown`](Runtime::shutdown) the new timer is disposed already.
    ///
    /// # Examples
    ///
    /// Every day at the same hour:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, WallTimer};
    ///
    /// const DAY: Duration = Duration::from_secs(24 * 3600);
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let daily = WallTimer::on(&runtime, clock.wall() + DAY, |tick| {
    ///     let _ = tick.reset_at(tick.scheduled() + DAY);
    /// });
    /// assert_eq!(clock.advance(7 * DAY), 7);
    /// # drop(daily);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("cron", "alarm"))]
    pub fn on(runtime: &Runtime, at: SystemTime, callback: impl FnMut(&WallTick<'_>) + Send + 'static) -> Self {
        Self::start(runtime.engine(), at, MissedTicks::default().into(), callback)
    }

    /// As [`new`](Self::new), with an error instead of a panic, and instead of a timer that never
    /// fires.
    ///
    /// # Errors
    /// As for [`Timer::try_new`](crate::Timer::try_new).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use timerqueue::WallTimer;
    ///
    /// let timer = WallTimer::try_new(SystemTime::now() + Duration::from_secs(3600), |_| {
    ///     println!("an hour later")
    /// })?;
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::RuntimeError>(())
    /// ```
    pub fn try_new(at: SystemTime, callback: impl FnMut(&WallTick<'_>) + Send + 'static) -> Result<Self, RuntimeError> {
        Timer::builder().try_start_wall(at, callback)
    }

    pub(crate) fn start(
        engine: &Arc<Engine>,
        at: SystemTime,
        settings: Settings,
        mut callback: impl FnMut(&WallTick<'_>) + Send + 'static,
    ) -> Self {
        let callback = move |entry: &EntryRef, at: SystemTime| callback(&WallTick { entry, at });
        Self { timer: Timer { entry: engine::start_wall::<_, false>(engine, at, settings, callback) } }
    }

    /// Replaces the time of the timer, also after the timer has fired. If the wall clock shows the
    /// new time already, the timer fires at once. Any thread may call this, also the timer's own
    /// callback.
    ///
    /// When the call returns, no callback for the old time starts any more; a running callback goes
    /// on.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Changed, ManualClock, Runtime, WallTimer};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let hour = Duration::from_secs(3600);
    /// let timer = WallTimer::on(&runtime, clock.wall() + hour, |_| {});
    /// assert_eq!(timer.reset_at(clock.wall() + 2 * hour), Changed::WasWaiting);
    /// assert_eq!(clock.advance(hour), 0);
    /// assert_eq!(clock.advance(hour), 1);
    /// assert_eq!(timer.reset_at(clock.wall() + hour), Changed::WasIdle);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias = "change")]
    pub fn reset_at(&self, at: SystemTime) -> Changed {
        engine::change_wall(&self.timer.entry, at)
    }
}

handle_of_timer!(WallTimer);

/// The tick passed to the callback of a [`WallTimer`]. Also lets the callback change or dispose its
/// own timer.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, WallTimer};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let at = clock.wall() + Duration::from_secs(60);
/// let timer = WallTimer::on(&runtime, at, move |tick| {
///     assert_eq!((tick.scheduled(), tick.now()), (at, at));
/// });
/// assert_eq!(clock.advance(Duration::from_secs(60)), 1);
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
pub struct WallTick<'a> {
    entry: &'a EntryRef,
    at: SystemTime,
}

impl WallTick<'_> {
    /// The time of the timer. When the callback started, the wall clock showed this time or a later
    /// time.
    pub fn scheduled(&self) -> SystemTime {
        self.at
    }

    /// Reads the wall clock.
    pub fn now(&self) -> SystemTime {
        self.entry.shard().clock.wall()
    }

    /// The identity of the timer: the same as [`WallTimer::id`].
    pub fn timer_id(&self) -> TimerId {
        TimerId::of(self.entry)
    }

    /// The state of the callback's own timer now; see [`WallTimer::snapshot`].
    #[must_use]
    pub fn snapshot(&self) -> TimerSnapshot {
        TimerSnapshot::of(self.entry)
    }

    /// Changes the callback's own timer; see [`WallTimer::reset_at`].
    #[doc(alias = "change")]
    pub fn reset_at(&self, at: SystemTime) -> Changed {
        engine::change_wall(self.entry, at)
    }

    /// Disposes the callback's own timer. The values owned by the callback are dropped after the
    /// callback has returned.
    #[doc(alias("stop", "cancel"))]
    pub fn dispose(&self) {
        engine::dispose(self.entry);
    }
}

shown!([] WallTick [<'_>], |this| "scheduled" => this.scheduled());
