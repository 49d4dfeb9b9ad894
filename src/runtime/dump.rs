//! The timers that are due next.

use std::fmt;

use super::Runtime;
pub use crate::engine::PendingTimer;
use crate::engine::soonest;
use crate::time::Timestamp;

/// The timers that are due next: see [`Runtime::dump`].
///
/// # Examples
///
/// See [`Runtime::dump`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TimerDump {
    /// Earliest first.
    pub timers: Vec<PendingTimer>,
    /// No earlier timer is missing. False if a queue has thousands of timers due close together.
    pub complete: bool,
    /// The instant of the dump.
    pub now: Timestamp,
}

/// A line for each timer.
impl fmt::Display for TimerDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for timer in &self.timers {
            let left = timer.due - self.now;
            write!(f, "in {left:>10.1?}  queue {:>3}  ", timer.queue)?;
            match (&timer.name, timer.site) {
                (Some(name), Some(site)) => writeln!(f, "{name} ({site})")?,
                _ if timer.is_future => writeln!(f, "a future")?,
                _ => writeln!(f, "a callback")?,
            }
        }
        if self.complete { Ok(()) } else { writeln!(f, "earlier timers may be missing") }
    }
}

impl Runtime {
    /// The next `n` timers to fire, with their names: to see what a program waits for.
    ///
    /// The queues are looked at one after the other, so the result is no snapshot of a single
    /// instant. Each queue is locked for as long as it takes to look at a few thousand timers, some
    /// hundred microseconds at most. Wall timers appear with the instant at which the runtime looks
    /// at the wall clock for them.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, Timer, TimerBuilder};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let heartbeat = TimerBuilder::on(&runtime)
    ///     .name("heartbeat")
    ///     .period(Duration::from_secs(5))
    ///     .start(|_| {});
    /// let other = Timer::on(&runtime, Duration::from_secs(1), Duration::ZERO, |_| {});
    /// let dump = runtime.dump(10);
    /// assert_eq!(dump.timers.len(), 2);
    /// assert_eq!(dump.timers[1].name.as_deref(), Some("heartbeat"));
    /// assert_eq!(dump.timers[1].due, runtime.now() + Duration::from_secs(5));
    /// println!("{dump}");
    /// # drop((heartbeat, other));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[must_use]
    pub fn dump(&self, n: usize) -> TimerDump {
        let (timers, complete) = soonest(self.engine(), n);
        TimerDump { timers, complete, now: self.now() }
    }
}
