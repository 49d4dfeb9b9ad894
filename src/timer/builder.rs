//! The settings of a timer.

use std::time::Duration;

use super::{Tick, Timer, exclusive, overlapping};
use crate::queue::MissedTicks;
use crate::queue::tick_policy::TickPolicy;
use crate::runtime::Runtime;

impl Runtime {
    /// A timer with a missed-tick policy or a leeway of its own.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, MissedTicks, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timer = runtime
    ///     .timer_builder()
    ///     .period(Duration::from_secs(1))
    ///     .missed_ticks(MissedTicks::Burst)
    ///     .start(|tick| println!("{tick:?}"));
    /// clock.stall(Duration::from_secs(5));
    /// assert_eq!(clock.advance(Duration::ZERO), 5);
    /// # drop(timer);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn timer_builder(&self) -> TimerBuilder<'_> {
        TimerBuilder::new(self)
    }
}

/// The settings of a timer. Made by [`Runtime::timer_builder`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, MissedTicks, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let mut samples = Vec::new();
/// let timer = runtime
///     .timer_builder()
///     .due(Duration::from_millis(5))
///     .period(Duration::from_millis(20))
///     .missed_ticks(MissedTicks::Skip)
///     .start_exclusive(move |tick| samples.push(tick.scheduled()));
/// assert_eq!(clock.advance(Duration::from_millis(45)), 3);
/// # drop(timer);
/// # Ok::<(), timerqueue::StartError>(())
/// ```
#[must_use = "a builder does nothing until `start`"]
#[derive(Clone, Debug)]
pub struct TimerBuilder<'a> {
    runtime: &'a Runtime,
    due: Option<Duration>,
    period: Duration,
    policy: MissedTicks,
    leeway: Duration,
}

impl<'a> TimerBuilder<'a> {
    fn new(runtime: &'a Runtime) -> Self {
        Self { runtime, due: None, period: Duration::MAX, policy: MissedTicks::default(), leeway: Duration::ZERO }
    }
}

impl TimerBuilder<'_> {
    /// The time from the start of the timer to its first firing. Default: a period, so a timer without both is idle.
    pub fn due(mut self, due: Duration) -> Self {
        self.due = Some(due);
        self
    }

    /// The time between later firings; zero or `Duration::MAX` for a one-shot. Default: one-shot.
    pub fn period(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// The policy for missed ticks: whole periods that pass before a tick can run. Default: [`MissedTicks::Rebase`], as in .NET.
    #[doc(alias = "MissedTickBehavior")]
    pub fn missed_ticks(mut self, policy: MissedTicks) -> Self {
        self.policy = policy;
        self
    }

    /// How much later than its due point the timer may fire, so that timers share wake-ups. Default: zero. The timer never fires
    /// early, and the usual lateness of a wake-up comes on top.
    ///
    /// The timer fires at the next point of a grid. The widths of the grids are 1, 2, 5, 10, ... us; the timer uses the widest
    /// grid up to its leeway. (A leeway below 1 us counts as zero.) So a queue with thousands of timers with a leeway of a
    /// millisecond causes at most a thousand wake-ups a second. The schedule counts from the exact due point, which
    /// [`Tick::scheduled`] gives, so a periodic timer does not drift. A leeway of a period or more makes the timer miss ticks;
    /// see [`MissedTicks`].
    ///
    /// # Examples
    ///
    /// Two timers with different due points, which fire at the same instant:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timers = [3_100, 3_900].map(|due| {
    ///     runtime
    ///         .timer_builder()
    ///         .due(Duration::from_micros(due))
    ///         .leeway(Duration::from_millis(1))
    ///         .start(|tick| assert_eq!(tick.now().as_duration(), Duration::from_millis(4)))
    /// });
    /// assert_eq!(clock.advance(Duration::from_micros(3_999)), 0);
    /// assert_eq!(clock.advance(Duration::from_micros(1)), 2);
    /// # drop(timers);
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    #[doc(alias = "slack")]
    #[doc(alias = "tolerance")]
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.leeway = leeway;
        self
    }

    fn tick_policy(&self) -> TickPolicy {
        TickPolicy::new(self.policy, self.leeway)
    }

    fn when(&self) -> (Duration, Duration) {
        let due = self.due.unwrap_or(if self.period.is_zero() { Duration::MAX } else { self.period });
        (due, self.period)
    }

    /// Makes and starts a timer whose callbacks may overlap; see [`Runtime::timer`].
    pub fn start(self, callback: impl Fn(&Tick<'_>) + Send + Sync + 'static) -> Timer {
        overlapping(self.runtime.engine(), self.tick_policy(), self.when(), callback)
    }

    /// Makes and starts a timer whose callbacks never overlap; see [`Runtime::exclusive_timer`].
    pub fn start_exclusive(self, callback: impl FnMut(&Tick<'_>) + Send + 'static) -> Timer {
        exclusive(self.runtime.engine(), self.tick_policy(), self.when(), callback)
    }
}
