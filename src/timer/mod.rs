//! Timers as users see them: handles, what a callback learns, changing, disposing, waiting.
//!
//! Ground rules. A handle owns an entry of the engine ([`OwnedEntry`]); whatever it is asked for is done in [`crate::engine`]. A callback of
//! the user's is wrapped in a closure that turns the engine's [`Firing`] into a [`Tick`].

mod builder;
mod disposal;
mod once;
mod tick;
mod wall;

use std::fmt;
use std::time::Duration;

pub use self::builder::TimerBuilder;
#[cfg(all(test, timerqueue_loom))]
pub(crate) use self::disposal::block_on;
pub use self::disposal::{Disposal, Waited};
pub use self::once::OnceTimer;
#[cfg(all(test, timerqueue_loom))]
pub(crate) use self::once::start_once;
pub use self::tick::{Changed, Tick};
pub use self::wall::{WallTick, WallTimer};
use crate::engine::{self, Engine, Firing, OwnedEntry, entry};
use crate::queue::MissedTicks;
use crate::queue::tick_policy::TickPolicy;
use crate::runtime::{Runtime, StartError};

/// Makes and starts a timer whose callbacks may overlap.
#[inline]
pub(crate) fn overlapping<F>(
    engine: &Engine,
    tick_policy: impl Into<TickPolicy>,
    when: (Duration, Duration),
    callback: F,
) -> Timer
where
    F: Fn(&Tick<'_>) + Send + Sync + 'static,
{
    Timer {
        entry: entry::overlapping(engine, tick_policy, when, move |firing: &Firing<'_>| callback(&Tick { firing })),
    }
}

/// Makes and starts a timer with one callback at a time.
#[inline]
pub(crate) fn exclusive<F>(
    engine: &Engine,
    tick_policy: impl Into<TickPolicy>,
    when: (Duration, Duration),
    mut callback: F,
) -> Timer
where
    F: FnMut(&Tick<'_>) + Send + 'static,
{
    Timer { entry: entry::exclusive(engine, tick_policy, when, move |firing: &Firing<'_>| callback(&Tick { firing })) }
}

impl Runtime {
    /// A timer whose callbacks may overlap when one runs longer than the period (S9).
    ///
    /// The meaning of `due` and `period` is that of [`Timer::new`]. After [`shutdown`](Self::shutdown) the timer is born
    /// disposed: it never fires, and changing it answers [`Changed::Ended`](crate::Changed::Ended).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timer = runtime.timer(Duration::from_millis(250), Duration::from_micros(200), |tick| {
    ///     println!("due at {:?}", tick.scheduled());
    /// });
    /// assert_eq!(clock.advance(Duration::from_millis(251)), 6);
    /// # drop(timer);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    #[inline]
    pub fn timer(
        &self,
        due: Duration,
        period: Duration,
        callback: impl Fn(&Tick<'_>) + Send + Sync + 'static,
    ) -> Timer {
        overlapping(self.engine(), MissedTicks::default(), (due, period), callback)
    }

    /// A timer whose callbacks never overlap; ticks that come due while one runs are coalesced into one (S9).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let mut ticks = 0;
    /// let timer = runtime.exclusive_timer(Duration::ZERO, Duration::from_secs(1), move |_| ticks += 1);
    /// clock.advance(Duration::from_secs(3));
    /// # drop(timer);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    #[inline]
    pub fn exclusive_timer(
        &self,
        due: Duration,
        period: Duration,
        callback: impl FnMut(&Tick<'_>) + Send + 'static,
    ) -> Timer {
        exclusive(self.engine(), MissedTicks::default(), (due, period), callback)
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
    entry: OwnedEntry,
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
        engine::change(&self.entry, due, period).into()
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
        engine::dispose(&self.entry);
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
        self.dispose_async().wait()
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
        self.dispose();
        Disposal::of(&self.entry)
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
        drop(self.entry.into_entry());
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timer").finish_non_exhaustive()
    }
}
