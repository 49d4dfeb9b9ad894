//! A timer that fires once and consumes its callback.

use std::fmt;
use std::time::Duration;

use super::{Changed, Disposal, Tick, Waited};
use crate::engine::{self, Engine, Firing, OwnedEntry, entry};
use crate::runtime::{Runtime, StartError};

/// Makes and starts a timer that fires once.
#[inline]
pub(crate) fn start_once<F>(engine: &Engine, due: Duration, callback: F) -> OnceTimer
where
    F: FnOnce(&Tick<'_>) + Send + 'static,
{
    OnceTimer { entry: entry::once(engine, due, move |firing: &Firing<'_>| callback(&Tick { firing })) }
}

impl Runtime {
    /// A timer that fires once and consumes its callback. `Duration::MAX` makes it idle until it is changed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let resource = Box::new(5);
    /// runtime.once(Duration::from_secs(2), move |_| drop(resource)).detach();
    /// assert_eq!(clock.advance(Duration::from_secs(2)), 1);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    #[inline]
    pub fn once(&self, due: Duration, callback: impl FnOnce(&Tick<'_>) + Send + 'static) -> OnceTimer {
        start_once(self.engine(), due, callback)
    }
}

/// A timer whose callback runs once and is consumed by it.
///
/// Made by [`Runtime::once`]. Everything said of [`Timer`](crate::Timer) about threads, precision and dropping holds here too.
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
    entry: OwnedEntry,
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
        engine::change(&self.entry, due, Duration::ZERO).into()
    }

    /// Stops the timer for good, without waiting; see [`Timer::dispose`](crate::Timer::dispose).
    pub fn dispose(&self) {
        engine::dispose(&self.entry);
    }

    /// Disposes and blocks until the callback does not run; see [`Timer::dispose_and_wait`](crate::Timer::dispose_and_wait).
    pub fn dispose_and_wait(&self) -> Waited {
        self.dispose_async().wait()
    }

    /// Disposes now; the future is ready when the callback does not run; see [`Timer::dispose_async`](crate::Timer::dispose_async).
    pub fn dispose_async(&self) -> Disposal {
        self.dispose();
        Disposal::of(&self.entry)
    }

    /// Lets the timer fire without a handle; see [`Timer::detach`](crate::Timer::detach).
    pub fn detach(self) {
        drop(self.entry.into_entry());
    }
}

impl fmt::Debug for OnceTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceTimer").finish_non_exhaustive()
    }
}
