//! Public timers: handles, ticks, changing, disposing, waiting.
//!
//! Ground rules. A handle owns an entry of the engine ([`OwnedEntry`]); [`crate::engine`] does the
//! work. A closure around the user's callback turns the engine's [`Firing`] into a [`Tick`].

/// What the handles of other kinds of timers have in common with a [`Timer`], which they own.
macro_rules! handle_of_timer {
    ($handle:ident) => {
        impl $handle {
            /// The identity of the timer, which its callback can ask for; see
            /// [`Timer::id`](crate::Timer::id).
            pub fn id(&self) -> $crate::TimerId {
                self.timer.id()
            }

            /// The state of the timer now, with its due point; see
            /// [`Timer::snapshot`](crate::Timer::snapshot).
            #[must_use]
            pub fn snapshot(&self) -> $crate::observe::TimerSnapshot {
                self.timer.snapshot()
            }

            /// Disposes the timer: stops the timer for good, without waiting; see
            /// [`Timer::dispose`](crate::Timer::dispose).
            #[doc(alias("stop", "cancel", "clearTimeout"))]
            pub fn dispose(&self) {
                self.timer.dispose();
            }

            /// Disposes the timer, and blocks the thread until its callback does not run; see
            /// [`Timer::dispose_and_wait`](crate::Timer::dispose_and_wait).
            pub fn dispose_and_wait(&self) -> $crate::Waited {
                self.timer.dispose_and_wait()
            }

            /// Disposes the timer now. The future is ready when the callback does not run; see
            /// [`Timer::dispose_async`](crate::Timer::dispose_async).
            pub fn dispose_async(&self) -> $crate::futures::Disposal {
                self.timer.dispose_async()
            }

            /// Lets the timer fire without a handle; see [`Timer::detach`](crate::Timer::detach).
            pub fn detach(self) {
                self.timer.detach();
            }
        }

        impl std::fmt::Debug for $handle {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.snapshot().show(f, stringify!($handle), self.id())
            }
        }
    };
}

mod builder;
mod disposal;
mod once;
mod tick;
mod wall;

use std::fmt;
use std::time::Duration;

pub use self::builder::TimerBuilder;
pub use self::disposal::{Disposal, Waited};
pub use self::once::OnceTimer;
pub use self::tick::{Changed, Tick, TimerId};
pub(crate) use self::tick::{exclusive, overlapping};
pub use self::wall::{WallTick, WallTimer};
use crate::engine::{self, Engine, EntryPayload, Notice, OwnedEntry, Settings};
pub use crate::engine::{TimerSnapshot, TimerState};
use crate::queue::MissedTicks;
use crate::runtime::{Runtime, RuntimeError, RuntimeHandle};
use crate::time::Timestamp;

/// A timer: runs its callback after its *due time*, then once every *period*.
///
/// Made by [`Timer::new`], [`Timer::every`] and [`Timer::builder`] on the current runtime, or on a
/// chosen runtime by [`Timer::on`] and [`TimerBuilder::on`]. [`change`](Self::change) gives the
/// timer a new schedule, also after the timer has fired. For a callback that can run only once, see
/// [`OnceTimer`].
///
/// **Threads.** Callbacks run on a thread of the runtime's pool, never on the thread that makes or
/// changes the timer. (On a manual clock, callbacks run on the thread that advances the clock.)
/// Callbacks may block, panic, and use this and further timers. The runtime catches and counts the
/// panics.
///
/// **Precision.** A timer never fires early, not by a nanosecond. It fires late by the time that
/// the system needs to wake a thread: usually well under 100 us. A queue that fires more than a
/// thousand timers a second delays its wake-ups, so that timers share a wake-up: by 15 us for each
/// thousand timers a second. This delay is at most 200 us, and at most a quarter of the shortest
/// period among the timers that fired lately.
///
/// **Dropping** the handle disposes the timer without waiting; [`detach`](Self::detach) lets the
/// timer go on. To share a handle, put the handle into an `Arc`: all operations take `&self`.
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
/// });
/// for lateness in receive.iter().take(3) {
///     println!("late by {lateness:?}");
/// }
/// timer.dispose();
/// ```
#[doc(alias("setInterval", "setTimeout", "Ticker"))]
#[must_use = "dropping the handle disposes the timer: keep it (`let _timer = ..`; `let _ = ..` drops it at once), or `detach` it"]
pub struct Timer {
    entry: OwnedEntry,
}

impl Timer {
    /// Makes and starts a timer of the kind of its callback. `when`: due time and period.
    #[inline]
    pub(crate) fn start(
        engine: &Engine,
        settings: impl Into<Settings>,
        when: (Duration, Duration),
        callback: impl EntryPayload,
    ) -> Self {
        Self { entry: OwnedEntry::start(engine, settings, when, callback) }
    }

    /// A timer on the current runtime, usually the default runtime: see [`Runtime::current`].
    ///
    /// The timer fires after `due`, then every `period`. With a `due` of zero the timer fires as
    /// soon as possible, on another thread. A `due` of `Duration::MAX`, or beyond the range of the
    /// clock, means never: the timer is idle. A `period` of zero or `Duration::MAX` makes a
    /// one-shot.
    ///
    /// Callbacks may overlap: when a callback runs longer than the period, the next callback starts
    /// meanwhile. So the callback is a `Fn`. At most 4,095 callbacks of a timer run at once: a tick
    /// that comes due then waits until one of them has ended, as that of an exclusive timer does.
    /// For a callback that changes its own values (`FnMut`; the compiler says "cannot assign to
    /// ..., as it is a captured variable in a `Fn` closure"), see [`Timer::every`] and
    /// [`TimerBuilder::start_exclusive`]; for a callback that gives its values away (`FnOnce`;
    /// "cannot move out of"), see [`Timer::once`].
    ///
    /// After a [shutdown](Runtime::shutdown_global) of the runtime the new timer is disposed
    /// already, and never fires.
    ///
    /// # Panics
    /// When the default runtime cannot be started, as `std::thread::spawn` does;
    /// [`try_new`](Self::try_new) returns the reason.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Timer;
    ///
    /// let heartbeat =
    ///     Timer::new(Duration::from_secs(5), Duration::from_secs(5), |_| println!("alive"));
    /// # drop(heartbeat);
    /// ```
    #[doc(alias("setInterval", "NewTicker"))]
    #[inline]
    #[track_caller]
    pub fn new(due: Duration, period: Duration, callback: impl Fn(&Tick<'_>) + Send + Sync + 'static) -> Self {
        Self::start(RuntimeHandle::current().started(), MissedTicks::default(), (due, period), overlapping(callback))
    }

    /// As [`new`](Self::new), on a runtime of the caller's choice. After
    /// [`shutdown`](Runtime::shutdown) the new timer is disposed already: it never fires, and
    /// changing it returns [`Changed::Ended`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timer =
    ///     Timer::on(&runtime, Duration::from_millis(250), Duration::from_micros(200), |tick| {
    ///         println!("due at {:?}", tick.scheduled());
    ///     });
    /// assert_eq!(clock.advance(Duration::from_millis(251)), 6);
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias = "setInterval")]
    #[inline]
    pub fn on(
        runtime: &Runtime,
        due: Duration,
        period: Duration,
        callback: impl Fn(&Tick<'_>) + Send + Sync + 'static,
    ) -> Self {
        Self::start(runtime.engine(), MissedTicks::default(), (due, period), overlapping(callback))
    }

    /// As [`new`](Self::new), with an error instead of a panic, and instead of a timer that never
    /// fires.
    ///
    /// # Errors
    /// [`RuntimeError::NotStarted`] when the default runtime cannot be started; a later try may
    /// work. [`RuntimeError::Ended`] when the runtime was shut down.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Timer;
    ///
    /// let heartbeat =
    ///     Timer::try_new(Duration::from_secs(5), Duration::from_secs(5), |_| println!("alive"))?;
    /// # drop(heartbeat);
    /// # Ok::<(), timerqueue::error::RuntimeError>(())
    /// ```
    pub fn try_new(
        due: Duration,
        period: Duration,
        callback: impl Fn(&Tick<'_>) + Send + Sync + 'static,
    ) -> Result<Self, RuntimeError> {
        Self::builder().due(due).period(period).try_start(callback)
    }

    /// A timer on the current runtime that fires once, after `due`, and consumes its callback; see
    /// [`OnceTimer`].
    ///
    /// # Panics
    /// When the default runtime cannot be started; [`OnceTimer::try_new`] returns the reason.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Timer;
    ///
    /// Timer::once(Duration::from_secs(1), |_| println!("a second has passed")).detach();
    /// ```
    #[doc(alias("setTimeout", "AfterFunc"))]
    #[inline]
    #[track_caller]
    pub fn once(due: Duration, callback: impl FnOnce(&Tick<'_>) + Send + 'static) -> OnceTimer {
        OnceTimer::new(due, callback)
    }

    /// A timer on the current runtime that fires every `period`, for the first time after a period.
    /// Its callbacks never overlap, so the callback is an `FnMut`; see
    /// [`TimerBuilder::start_exclusive`], which also makes such a timer on a chosen runtime. (A
    /// period of zero makes a one-shot, as for [`Timer::new`].)
    ///
    /// **Phase.** Ticks are counted from the due point of the tick before: a tick that begins late,
    /// or a callback that runs for less than a period, moves no later tick. After a tick that is
    /// late by a period or more, since callbacks take longer or the machine was stopped, the phase
    /// is lost: the ticks count from that moment ([`MissedTicks::Rebase`]). To return to the grid
    /// of the beginning, set [`MissedTicks::Skip`] by [`TimerBuilder::missed_ticks`].
    ///
    /// # Panics
    /// When the default runtime cannot be started; [`TimerBuilder::try_start_exclusive`] returns
    /// the reason.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Timer;
    ///
    /// let mut minutes = 0;
    /// let timer = Timer::every(Duration::from_secs(60), move |_| {
    ///     minutes += 1;
    ///     println!("{minutes} minutes");
    /// });
    /// # drop(timer);
    /// ```
    #[doc(alias("setInterval", "NewTicker"))]
    #[inline]
    #[track_caller]
    pub fn every(period: Duration, callback: impl FnMut(&Tick<'_>) + Send + 'static) -> Self {
        Self::start(RuntimeHandle::current().started(), MissedTicks::default(), (period, period), exclusive(callback))
    }

    /// A builder for a timer on the current runtime: due time, period, policy for missed ticks,
    /// leeway, kind of callback.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Timer;
    ///
    /// let timer = Timer::builder()
    ///     .period(Duration::from_secs(1))
    ///     .leeway(Duration::from_millis(100))
    ///     .start(|tick| println!("{tick:?}"));
    /// # drop(timer);
    /// ```
    pub fn builder() -> TimerBuilder<'static> {
        TimerBuilder::new(None)
    }

    /// Stops the timer, which can be started again by [`reset`](Self::reset) with the same
    /// period, or by [`change`](Self::change). As `change` with a due time of `Duration::MAX` and
    /// the same period.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Changed, ManualClock, Runtime, TimerBuilder};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let second = Duration::from_secs(1);
    /// let timer = TimerBuilder::on(&runtime).period(second).start_exclusive(|_| println!("tick"));
    /// assert_eq!(timer.stop(), Changed::WasWaiting);
    /// assert_eq!(clock.advance(10 * second), 0);
    /// assert_eq!(timer.reset(second), Changed::WasIdle);
    /// assert_eq!(clock.advance(10 * second), 10);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias = "pause")]
    pub fn stop(&self) -> Changed {
        engine::restart(&self.entry, Duration::MAX)
    }

    /// Starts the timer again: the next tick is due after `due` from now, and later ticks follow by
    /// the timer's period. As [`change`](Self::change) with the same period. A one-shot fires once
    /// more.
    ///
    /// # Examples
    ///
    /// An idle timeout, moved later by each activity:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let idle = Duration::from_secs(30);
    /// let timer = Timer::on(&runtime, idle, Duration::ZERO, |_| println!("connection is idle"));
    /// for _ in 0..10 {
    ///     assert_eq!(clock.advance(Duration::from_secs(20)), 0);
    ///     timer.reset(idle);
    /// }
    /// assert_eq!(clock.advance(idle), 1);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias = "restart")]
    pub fn reset(&self, due: Duration) -> Changed {
        engine::restart(&self.entry, due)
    }

    /// Fires as soon as possible, on another thread; later ticks follow by the timer's period from
    /// now. As [`reset`](Self::reset) with zero.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, TimerBuilder};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let flush = TimerBuilder::on(&runtime)
    ///     .period(Duration::from_secs(60))
    ///     .start_exclusive(|_| println!("flushed"));
    /// flush.fire_now();
    /// assert_eq!(clock.advance(Duration::ZERO), 1);
    /// assert_eq!(clock.advance(Duration::from_secs(60)), 1);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn fire_now(&self) -> Changed {
        self.reset(Duration::ZERO)
    }

    /// Whether the timer never fires again: disposed by its runtime's end, or by an executor that
    /// has dropped its job.
    pub(crate) fn has_ended(&self) -> bool {
        self.entry.get().state.is_disposed()
    }

    /// As [`reset`](Self::reset), for a caller with a lock of its own, which drops the notice
    /// after that lock.
    pub(crate) fn restart_under_lock(&self, due: Duration) -> (Changed, Notice) {
        engine::restart_under_lock(&self.entry, due)
    }

    /// The identity of the timer, which its callback can ask for: [`Tick::timer_id`].
    pub fn id(&self) -> TimerId {
        TimerId::of(&self.entry)
    }

    /// The state of the timer now, with its next due point and its period: for logs, displays and
    /// tests. Takes the lock of the timer's queue for a moment; the timer may go on right after.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timer, observe::TimerState};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timer = runtime.enter(|| Timer::every(Duration::from_secs(60), |_| {}));
    /// clock.advance(Duration::from_secs(90));
    /// let seen = timer.snapshot();
    /// assert_eq!(seen.state, TimerState::Waiting);
    /// assert_eq!(seen.due.unwrap() - clock.now(), Duration::from_secs(30));
    /// assert_eq!(seen.period, Some(Duration::from_secs(60)));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("scheduledExecutionTime", "isActive"))]
    #[must_use]
    pub fn snapshot(&self) -> TimerSnapshot {
        TimerSnapshot::of(&self.entry)
    }

    /// Replaces due time and period, counting from now. Starts an idle timer; a `due` of
    /// `Duration::MAX` stops the timer.
    ///
    /// When the call returns, no callback of the old schedule starts any more; a running callback
    /// goes on. Moving a timer later makes no system call; moving a timer earlier makes at most a
    /// single system call. Any thread may call this, also the timer's own callback.
    ///
    /// # Examples
    ///
    /// An idle timeout, moved later by each activity:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Changed, ManualClock, Runtime, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let idle = Duration::from_secs(30);
    /// let timer = Timer::on(&runtime, idle, Duration::ZERO, |_| println!("connection is idle"));
    /// for _ in 0..10 {
    ///     assert_eq!(clock.advance(Duration::from_secs(20)), 0);
    ///     assert_eq!(timer.change(idle, Duration::ZERO), Changed::WasWaiting);
    /// }
    /// assert_eq!(clock.advance(idle), 1);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("reset", "stop", "pause"))]
    pub fn change(&self, due: Duration, period: Duration) -> Changed {
        engine::change(&self.entry, due, period)
    }

    /// Disposes the timer: stops the timer for good, without waiting.
    ///
    /// When the call returns, no callback starts any more; running callbacks go on. This call drops
    /// the values owned by the callback, or, if callbacks run, the end of the last running callback
    /// does. Disposing again does nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timer = Timer::on(&runtime, Duration::from_secs(1), Duration::ZERO, |_| unreachable!());
    /// timer.dispose();
    /// assert_eq!(clock.advance(Duration::from_secs(10)), 0);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("stop", "cancel", "clearInterval", "clearTimeout"))]
    pub fn dispose(&self) {
        engine::dispose(&self.entry);
    }

    /// A reading of the clock of the timer's runtime.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_ns(self.entry.shard().clock.now())
    }

    /// Disposes the timer. Blocks the thread until no callback of the timer runs, and all values
    /// owned by the callback are dropped.
    ///
    /// A call inside a callback of this timer does not wait, and returns
    /// [`Waited::InsideCallback`]. So does a call in a callback for whose end a callback of this
    /// timer waits, itself or through further callbacks: of callbacks that wait for each other, the
    /// last to call is told so. This holds for calls that block until a callback has ended, or
    /// until a manual clock is free. Other waits are not known: those of tasks, for a cancellation
    /// or a lock, and of a [shutdown](crate::Runtime::shutdown).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Timer, Waited};
    ///
    /// let timer = Timer::new(Duration::ZERO, Duration::from_millis(1), |_| {});
    /// assert_eq!(timer.dispose_and_wait(), Waited::Ended);
    /// ```
    pub fn dispose_and_wait(&self) -> Waited {
        self.dispose_async().wait()
    }

    /// Disposes the timer now. The future is ready when no callback of the timer runs, and all
    /// values owned by the callback are dropped. The timer stays disposed if the future is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Timer, Waited};
    ///
    /// # async fn example() {
    /// let timer = Timer::new(Duration::ZERO, Duration::from_millis(1), |_| {});
    /// assert_eq!(timer.dispose_async().await, Waited::Ended);
    /// # }
    /// ```
    #[doc(alias = "DisposeAsync")]
    pub fn dispose_async(&self) -> Disposal {
        self.dispose();
        Disposal::of(&self.entry)
    }

    /// Lets the timer go on without a handle: until the callback disposes the timer, the runtime is
    /// shut down, or a one-shot has fired. Detaching an idle timer frees the timer.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timer};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// Timer::on(&runtime, Duration::from_secs(1), Duration::from_secs(1), |_| {}).detach();
    /// assert_eq!(clock.advance(Duration::from_secs(5)), 5);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn detach(self) {
        drop(self.entry.into_entry());
    }
}

// No callback, waker or destructor of the user's runs while the state of a timer is half changed.
unwind_safe!(Timer);

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().show(f, "Timer", self.id())
    }
}

#[cfg(test)]
impl Timer {
    pub(crate) fn state(&self) -> &crate::queue::state::StateWord {
        &self.entry.get().state
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::queue::state::StateWord;
    use crate::runtime::ManualClock;
    use crate::sync::{Arc, AtomicUsize, Mutex, OnceLock, Ordering};
    use crate::{Delay, Timer};

    const SECOND: Duration = Duration::from_secs(1);

    /// From now on a single callback of the timer may run at once.
    fn go_to_the_end_of_the_count(timer: &Timer) {
        timer.state().pretend_running(StateWord::MOST - 1);
    }

    fn come_back(timer: &Timer) {
        timer.state().pretend_running(1 - StateWord::MOST);
    }

    /// By a tick of its period, by ticks of a backlog, and by a call.
    #[test]
    fn s09_on_a_manual_clock_a_tick_at_the_end_of_the_count_waits_for_a_callback_to_end() {
        let of = |period, policy, call| {
            let clock = ManualClock::new();
            let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
            let seen = Arc::new(Mutex::new(Vec::new()));
            let own = Arc::new(OnceLock::<Timer>::new());
            let timer = TimerBuilder::on(&runtime).due(SECOND).period(period).missed_ticks(policy).start({
                let (clock, runtime, seen, own) = (clock.clone(), runtime.clone(), Arc::clone(&seen), Arc::clone(&own));
                let inside = AtomicUsize::new(0);
                move |tick| {
                    assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "a single one may run");
                    seen.lock().push((tick.scheduled().as_duration().as_secs(), tick.missed()));
                    if seen.lock().len() == 1 {
                        if call {
                            own.get().expect("set below").fire_now();
                        }
                        clock.block_on(Delay::on(&runtime, 3 * SECOND));
                    }
                    inside.fetch_sub(1, Ordering::Relaxed);
                }
            });
            go_to_the_end_of_the_count(&timer);
            assert!(own.set(timer).is_ok());
            clock.advance(SECOND);
            let timer = own.get().expect("set above");
            come_back(timer);
            timer.dispose();
            assert_eq!((runtime.metrics().panics, timer.dispose_and_wait()), (0, Waited::Ended));
            seen.lock().clone()
        };
        assert_eq!(of(SECOND, MissedTicks::Skip, false), [(1, 0), (2, 2)]);
        assert_eq!(of(SECOND, MissedTicks::Burst, false), [(1, 0), (2, 0), (3, 0), (4, 0)]);
        assert_eq!(of(Duration::MAX, MissedTicks::Rebase, true), [(1, 0), (1, 0)]);
    }

    /// On the pool, by a tick of its period, and by a call.
    #[test]
    #[cfg_attr(miri, ignore = "real time")]
    fn s09_on_the_pool_a_tick_at_the_end_of_the_count_waits_for_a_callback_to_end() {
        fn wait_for(what: impl Fn() -> bool) {
            let begun = Instant::now();
            while !what() {
                assert!(begun.elapsed() < Duration::from_secs(60), "a tick is lost");
                std::thread::yield_now();
            }
        }
        let runtime = Runtime::builder().workers(3).start().expect("a runtime starts");
        for period in [Duration::from_millis(1), Duration::MAX] {
            let [begun, ended, may_end] = [0; 3].map(|_| Arc::new(AtomicUsize::new(0)));
            let timer = Timer::on(&runtime, Duration::MAX, period, {
                let (begun, ended, may_end) = (Arc::clone(&begun), Arc::clone(&ended), Arc::clone(&may_end));
                move |_| {
                    begun.fetch_add(1, Ordering::SeqCst);
                    wait_for(|| may_end.load(Ordering::SeqCst) > 0);
                    ended.fetch_add(1, Ordering::SeqCst);
                }
            });
            go_to_the_end_of_the_count(&timer);
            timer.fire_now();
            wait_for(|| begun.load(Ordering::SeqCst) == 1);
            if period == Duration::MAX {
                (0..3).for_each(|_| assert!(timer.fire_now() != Changed::Ended));
            }
            std::thread::sleep(Duration::from_millis(10));
            assert_eq!(begun.load(Ordering::SeqCst), 1, "as many run as are counted");
            may_end.store(1, Ordering::SeqCst);
            wait_for(|| ended.load(Ordering::SeqCst) >= 2);
            come_back(&timer);
            assert_eq!(timer.dispose_and_wait(), Waited::Ended);
            assert_eq!(begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst));
        }
    }

    /// The state word keeps 45 bits of an arming number.
    #[test]
    fn s14_the_order_of_arming_outlasts_the_number_that_a_timer_keeps() {
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
        clock.agenda().virtual_time.pretend_armed((1 << 45) - 5);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let timers: Vec<Timer> = (0..10)
            .map(|i| {
                let seen = Arc::clone(&seen);
                Timer::on(&runtime, SECOND, Duration::MAX, move |_| seen.lock().push(i))
            })
            .collect();
        clock.advance(SECOND);
        assert_eq!(*seen.lock(), (0..10).collect::<Vec<_>>());
        drop(timers);
    }
}
