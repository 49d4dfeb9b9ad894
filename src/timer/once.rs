//! Once timers: a timer fires once and consumes its callback.

use std::time::Duration;

use super::tick::once;
use super::{Changed, Tick, Timer};
use crate::engine::{Engine, Settings};
use crate::queue::MissedTicks;
use crate::runtime::{Runtime, RuntimeError, RuntimeHandle};

/// A timer that fires once and consumes its callback.
///
/// Made by [`Timer::once`] or [`OnceTimer::new`] on the current runtime, by [`OnceTimer::on`] on a
/// chosen runtime, and with leeway by
/// [`TimerBuilder::start_once`](crate::TimerBuilder::start_once). Threads, precision and dropping
/// are as for a [`Timer`](crate::Timer).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, OnceTimer, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let (send, receive) = std::sync::mpsc::channel();
/// let message = String::from("gone for good");
/// let timer =
///     OnceTimer::on(&runtime, Duration::from_secs(1), move |_| send.send(message).unwrap());
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(receive.recv().unwrap(), "gone for good");
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[doc(alias("setTimeout", "AfterFunc"))]
#[must_use = "dropping the handle disposes the timer: keep it (`let _timer = ..`; `let _ = ..` drops it at once), or `detach` it"]
pub struct OnceTimer {
    /// Of the kind that fires once; all else is the same.
    timer: Timer,
}

impl OnceTimer {
    #[inline]
    pub(crate) fn start(
        engine: &Engine,
        settings: impl Into<Settings>,
        due: Duration,
        callback: impl FnOnce(&Tick<'_>) + Send + 'static,
    ) -> Self {
        Self { timer: Timer::start(engine, settings, (due, Duration::ZERO), once(callback)) }
    }

    /// A timer on the current runtime, usually the default runtime, which fires once, after `due`;
    /// the same as [`Timer::once`]. See [`Timer::new`] for the due time, and for a runtime that has
    /// ended.
    ///
    /// # Panics
    /// When the default runtime cannot be started; [`try_new`](Self::try_new) returns the reason.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::OnceTimer;
    ///
    /// OnceTimer::new(Duration::from_secs(1), |_| println!("a second has passed")).detach();
    /// ```
    #[doc(alias("setTimeout", "AfterFunc"))]
    #[inline]
    #[track_caller]
    pub fn new(due: Duration, callback: impl FnOnce(&Tick<'_>) + Send + 'static) -> Self {
        Self::start(RuntimeHandle::current().started(), MissedTicks::default(), due, callback)
    }

    /// As [`new`](Self::new), on a runtime of the caller's choice. After
    /// [`shutdown`](Runtime::shutdown) the new timer is disposed already.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, OnceTimer, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let resource = Box::new(5);
    /// OnceTimer::on(&runtime, Duration::from_secs(2), move |_| drop(resource)).detach();
    /// assert_eq!(clock.advance(Duration::from_secs(2)), 1);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("setTimeout", "AfterFunc"))]
    #[inline]
    pub fn on(runtime: &Runtime, due: Duration, callback: impl FnOnce(&Tick<'_>) + Send + 'static) -> Self {
        Self::start(runtime.engine(), MissedTicks::default(), due, callback)
    }

    /// As [`new`](Self::new), with an error instead of a panic, and instead of a timer that never
    /// fires.
    ///
    /// # Errors
    /// As for [`Timer::try_new`].
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::OnceTimer;
    ///
    /// OnceTimer::try_new(Duration::from_secs(1), |_| println!("a second has passed"))?.detach();
    /// # Ok::<(), timerqueue::error::RuntimeError>(())
    /// ```
    pub fn try_new(due: Duration, callback: impl FnOnce(&Tick<'_>) + Send + 'static) -> Result<Self, RuntimeError> {
        Timer::builder().due(due).try_start_once(callback)
    }

    /// Stops the timer, which [`reset`](Self::reset) can start again; see [`Timer::stop`].
    #[doc(alias = "pause")]
    pub fn stop(&self) -> Changed {
        self.timer.stop()
    }

    /// Fires as soon as possible, on another thread, if the callback has not begun.
    pub fn fire_now(&self) -> Changed {
        self.timer.fire_now()
    }

    /// Moves the firing to `due` from now, if the callback has not begun. A `due` of
    /// `Duration::MAX` stops the timer.
    ///
    /// [`Changed::Ended`] means that the call came too late: the callback has run or runs now, or
    /// the timer is disposed. Otherwise, when the call returns, the callback does not start before
    /// its new due point.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{Changed, ManualClock, OnceTimer, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timer = OnceTimer::on(&runtime, Duration::from_secs(1), |_| {});
    /// assert_eq!(timer.reset(Duration::from_secs(5)), Changed::WasWaiting);
    /// assert_eq!(clock.advance(Duration::from_secs(5)), 1);
    /// assert_eq!(timer.reset(Duration::from_secs(5)), Changed::Ended);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias = "change")]
    pub fn reset(&self, due: Duration) -> Changed {
        self.timer.reset(due)
    }
}

handle_of_timer!(OnceTimer);
