//! Public timers: handles, ticks, changing, disposing, waiting.
//!
//! Ground rules. A handle owns an entry of the engine ([`OwnedEntry`]); [`crate::engine`] does the work. A closure around the
//! user's callback turns the engine's [`Firing`] into a [`Tick`].

mod builder;
mod disposal;
mod once;
mod tick;
mod wall;

use std::fmt;
use std::time::Duration;

pub use self::builder::TimerBuilder;
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

/// Makes and starts a timer whose callbacks never overlap.
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
    /// A timer whose callbacks may overlap: when a callback runs longer than the period, the next callback starts meanwhile.
    ///
    /// For `due` and `period`, see [`Timer::new`]. After [`shutdown`](Self::shutdown) the new timer is disposed already: the
    /// timer never fires, and changing the timer returns [`Changed::Ended`](crate::Changed::Ended).
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
    #[doc(alias = "setInterval")]
    #[inline]
    pub fn timer(
        &self,
        due: Duration,
        period: Duration,
        callback: impl Fn(&Tick<'_>) + Send + Sync + 'static,
    ) -> Timer {
        overlapping(self.engine(), MissedTicks::default(), (due, period), callback)
    }

    /// A timer whose callbacks never overlap. Ticks that come due while a callback runs coalesce into a single tick, which runs
    /// next. After [`shutdown`](Self::shutdown) the new timer is disposed already.
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

/// A timer: runs its callback after its *due time*, then once every *period*.
///
/// Made by [`Runtime::timer`], [`Runtime::exclusive_timer`], [`Runtime::timer_builder`], or on the default runtime by
/// [`Timer::new`]. [`change`](Self::change) gives the timer a new schedule, also after the timer has fired. For a callback that
/// can run only once, see [`OnceTimer`].
///
/// **Threads.** Callbacks run on a thread of the runtime's pool, never on the thread that makes or changes the timer. (On a
/// manual clock, callbacks run on the thread that advances the clock.) Callbacks may block, panic, and use this and further
/// timers. The runtime catches and counts the panics.
///
/// **Precision.** A timer never fires early, not by a nanosecond. It fires late by the time that the system needs to wake a
/// thread: usually well under 100 us. A queue that fires more than a thousand timers a second delays its wake-ups, so that
/// timers share a wake-up: by 15 us for each thousand timers a second. This delay is at most 200 us, and at most a quarter of the
/// shortest period among the timers that fired lately.
///
/// **Dropping** the handle disposes the timer without waiting; [`detach`](Self::detach) lets the timer go on. To share a
/// handle, put the handle into an `Arc`: all operations take `&self`.
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
#[doc(alias = "setInterval")]
#[doc(alias = "setTimeout")]
#[doc(alias = "Ticker")]
#[must_use = "dropping the handle disposes the timer; see `detach`"]
pub struct Timer {
    entry: OwnedEntry,
}

impl Timer {
    /// A timer on the default runtime, [`Runtime::global`].
    ///
    /// The timer fires after `due`, then every `period`. With a `due` of zero the timer fires as soon as possible, on another
    /// thread. A `due` of `Duration::MAX`, or beyond the range of the clock, means never: the timer is idle. A `period` of zero
    /// or `Duration::MAX` makes a one-shot.
    ///
    /// # Errors
    /// When the default runtime cannot be started (a later try may work), or was shut down.
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
    #[doc(alias = "setInterval")]
    #[doc(alias = "NewTicker")]
    pub fn new(
        due: Duration,
        period: Duration,
        callback: impl Fn(&Tick<'_>) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        Ok(Runtime::global()?.timer(due, period, callback))
    }

    /// Replaces due time and period, counting from now. Starts an idle timer; a `due` of `Duration::MAX` stops the timer.
    ///
    /// When the call returns, no callback of the old schedule starts any more; a running callback goes on. Moving a timer later
    /// makes no system call; moving a timer earlier makes at most a single system call. Any thread may call this, also the
    /// timer's own callback.
    ///
    /// # Examples
    ///
    /// An idle timeout, moved later by each activity:
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
    #[doc(alias = "reset")]
    #[doc(alias = "stop")]
    #[doc(alias = "pause")]
    pub fn change(&self, due: Duration, period: Duration) -> Changed {
        engine::change(&self.entry, due, period).into()
    }

    /// Disposes the timer: stops the timer for good, without waiting.
    ///
    /// When the call returns, no callback starts any more; running callbacks go on. This call drops the values owned by the
    /// callback, or, if callbacks run, the end of the last running callback does. Disposing again does nothing.
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
    #[doc(alias = "stop")]
    #[doc(alias = "cancel")]
    #[doc(alias = "clearInterval")]
    #[doc(alias = "clearTimeout")]
    pub fn dispose(&self) {
        engine::dispose(&self.entry);
    }

    /// Disposes the timer. Blocks the thread until no callback of the timer runs, and all values owned by the callback are
    /// dropped.
    ///
    /// A call inside a callback of this timer does not wait, and returns [`Waited::InsideCallback`].
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

    /// Disposes the timer now. The future is ready when no callback of the timer runs, and all values owned by the callback are
    /// dropped. The timer stays disposed if the future is dropped.
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
    #[doc(alias = "DisposeAsync")]
    pub fn dispose_async(&self) -> Disposal {
        self.dispose();
        Disposal::of(&self.entry)
    }

    /// Lets the timer go on without a handle: until the callback disposes the timer, the runtime is shut down, or a one-shot has
    /// fired. Detaching an idle timer frees the timer.
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
