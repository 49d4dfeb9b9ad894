//! An alarm for silence.

use std::time::Duration;

use crate::runtime::{Runtime, RuntimeError};
use crate::timer::{Changed, Tick, Timer, TimerBuilder, TimerSnapshot};

/// Runs a callback when it has not been fed for a while. For connections that fall silent, and
/// loops that must come round.
///
/// [`feed`](Self::feed) costs as little as [changing a timer](Timer::change): some 40 ns. After the
/// callback has run, the watchdog waits to be fed again.
///
/// **Precision.** The callback starts [as precisely as a timer fires](crate::Timer), never before
/// the limit has passed since the last feeding. When `feed` returns, no callback for the time
/// before starts any more; one that runs goes on.
///
/// **Threads, dropping.** See the [module](crate::util).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::util::Watchdog;
/// use timerqueue::{ManualClock, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let watchdog =
///     Watchdog::on(&runtime, Duration::from_secs(30), || println!("the connection is silent"));
/// for _ in 0..10 {
///     watchdog.feed(); // for each message
///     assert_eq!(clock.advance(Duration::from_secs(20)), 0);
/// }
/// assert_eq!(clock.advance(Duration::from_secs(10)), 1);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[doc(alias("idle timeout", "deadman"))]
#[must_use = "dropping it disposes its timer: keep it (`let _watchdog = ..`; `let _ = ..` drops it at once)"]
pub struct Watchdog {
    timer: Timer,
    limit: Duration,
}

impl Watchdog {
    /// Runs `callback` when no [`feed`](Self::feed) has come for `limit`. The first limit counts
    /// from now.
    ///
    /// # Panics
    /// When the default runtime cannot be started; [`try_new`](Self::try_new) returns the reason.
    #[track_caller]
    pub fn new(limit: Duration, callback: impl FnMut() + Send + 'static) -> Self {
        Self { timer: Timer::builder().due(limit).start_exclusive(ignoring_the_tick(callback)), limit }
    }

    /// As [`new`](Self::new), with an error instead of a panic.
    ///
    /// # Errors
    /// As for [`Timer::try_new`].
    pub fn try_new(limit: Duration, callback: impl FnMut() + Send + 'static) -> Result<Self, RuntimeError> {
        let timer = Timer::builder().due(limit).try_start_exclusive(ignoring_the_tick(callback))?;
        Ok(Self { timer, limit })
    }

    /// As [`new`](Self::new), on this runtime.
    pub fn on(runtime: &Runtime, limit: Duration, callback: impl FnMut() + Send + 'static) -> Self {
        Self { timer: TimerBuilder::on(runtime).due(limit).start_exclusive(ignoring_the_tick(callback)), limit }
    }

    /// A sign of life: the limit counts from now. Returns whether the watchdog was waiting, so
    /// false after its callback has begun, after [`pause`](Self::pause), and after the end of the
    /// runtime.
    #[inline]
    pub fn feed(&self) -> bool {
        self.timer.change(self.limit, Duration::MAX) == Changed::WasWaiting
    }

    /// Stops the wait until the next [`feed`](Self::feed). Returns whether the watchdog was
    /// waiting.
    pub fn pause(&self) -> bool {
        self.timer.stop() == Changed::WasWaiting
    }

    /// The state of its timer now, with the next due point; see [`Timer::snapshot`].
    #[must_use]
    pub fn snapshot(&self) -> TimerSnapshot {
        self.timer.snapshot()
    }

    /// The longest time between two feedings.
    pub fn limit(&self) -> Duration {
        self.limit
    }
}

fn ignoring_the_tick(mut callback: impl FnMut() + Send + 'static) -> impl FnMut(&Tick<'_>) + Send + 'static {
    move |_| callback()
}

shown!([] Watchdog, |this| "limit" => this.limit, "timer" => this.timer);
