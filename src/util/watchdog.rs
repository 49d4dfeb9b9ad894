//! An alarm for silence.

use std::time::Duration;

use crate::timer::{Changed, Timer, TimerBuilder};

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

constructors! {
    /// Runs `callback` when no [`feed`](Self::feed) has come for `limit`. The first limit counts
    /// from now.
    Watchdog, limit
}

impl Watchdog {
    #[track_caller]
    fn start(builder: TimerBuilder<'_>, limit: Duration, mut callback: impl FnMut() + Send + 'static) -> Self {
        Self { timer: builder.due(limit).start_exclusive(move |_| callback()), limit }
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

    /// The longest time between two feedings.
    pub fn limit(&self) -> Duration {
        self.limit
    }
}

shown!([] Watchdog, |this| "limit" => this.limit, "timer" => this.timer);
