//! Signs of life.
//!
//! Ground rules. `is_due` is set before the timer, and cleared when a run begins, or after the
//! timer was set to later. So a set flag means that a run is due, or that a thread is about to make
//! it due. A flag that is cleared too early costs no beat.

use std::time::Duration;

use crate::queue::MissedTicks;
use crate::sync::{Arc, AtomicBool, Ordering};
use crate::timer::{Changed, Tick, Timer, TimerBuilder};

/// Runs a callback once in a period, to show that this side is alive: pings on a connection,
/// renewal of a lease. What was sent anyway counts as a beat: see [`beaten`](Self::beaten).
///
/// **Precision.** A beat starts [as precisely as a timer fires](crate::Timer). Beats that are
/// missed, since the callback took longer than a period or the process was stopped, are left out.
///
/// **Threads, dropping.** See the [module](crate::util).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::util::Heartbeat;
/// use timerqueue::{ManualClock, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let pings = Heartbeat::on(&runtime, Duration::from_secs(15), || println!("ping"));
/// assert_eq!(clock.advance(Duration::from_secs(40)), 2);
/// pings.beaten(); // a message was sent: no ping is needed for 15 s
/// assert_eq!(clock.advance(Duration::from_secs(14)), 0);
/// assert_eq!(clock.advance(Duration::from_secs(1)), 1);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[doc(alias("keepalive", "ping"))]
#[must_use = "dropping it disposes its timer: keep it (`let _heartbeat = ..`; `let _ = ..` drops it at once)"]
pub struct Heartbeat {
    timer: Timer,
    is_due: Flag,
    period: Duration,
}

/// A beat was asked for and has not begun.
type Flag = Arc<AtomicBool>;

constructors! {
    /// Runs `callback` every `period`, for the first time after a period. A period of zero or
    /// `Duration::MAX`: never.
    Heartbeat, period
}

impl Heartbeat {
    #[track_caller]
    fn start(builder: TimerBuilder<'_>, period: Duration, mut callback: impl FnMut() + Send + 'static) -> Self {
        let is_due = Flag::default();
        let begins = Arc::clone(&is_due);
        let fire = move |_: &Tick<'_>| {
            // Acquire: see `beat`.
            begins.swap(false, Ordering::AcqRel);
            callback();
        };
        let timer = builder.period(period).missed_ticks(MissedTicks::Skip).start_exclusive(fire);
        Self { timer, is_due, period }
    }

    /// A beat was given in another way: the next one is due a period from now. Also goes on after a
    /// [`pause`](Self::pause). Returns whether a beat was waiting; false after a pause, and after
    /// the end of the runtime.
    #[inline]
    pub fn beaten(&self) -> bool {
        let due = if self.period.is_zero() { Duration::MAX } else { self.period };
        let was_waiting = self.timer.change(due, self.period) == Changed::WasWaiting;
        self.is_due.swap(false, Ordering::AcqRel);
        was_waiting
    }

    /// A beat now, on the pool, and the next one a period later. Also goes on after a
    /// [`pause`](Self::pause). Calls until this beat begins are answered by it, and do not put it
    /// off.
    pub fn beat(&self) {
        // Release: the run sees the writes before each call that it answers, since all steps at the
        // flag are read-modify-writes.
        if !self.is_due.swap(true, Ordering::AcqRel) {
            self.timer.change(Duration::ZERO, self.period);
        }
    }

    /// No more beats until [`beat`](Self::beat) or [`beaten`](Self::beaten). A callback that runs
    /// goes on. Returns whether a beat was waiting.
    pub fn pause(&self) -> bool {
        let was_waiting = self.timer.stop() == Changed::WasWaiting;
        self.is_due.swap(false, Ordering::AcqRel);
        was_waiting
    }

    /// The time between two beats.
    pub fn period(&self) -> Duration {
        self.period
    }
}

shown!([] Heartbeat, |this| "period" => this.period, "timer" => this.timer);
