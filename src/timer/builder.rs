//! The settings of a timer.

use std::borrow::Cow;
use std::cell::Cell;
use std::panic::Location;
use std::time::{Duration, SystemTime};

use super::tick::{exclusive, overlapping};
use super::{OnceTimer, Tick, Timer, WallTick, WallTimer};
use crate::engine::{Engine, Label, Settings};
use crate::queue::MissedTicks;
use crate::queue::tick_policy::TickPolicy;
use crate::runtime::{Runtime, RuntimeError, RuntimeHandle};
use crate::sync::Arc;

/// The settings of a timer. Made by [`Timer::builder`] for the current runtime, and by
/// [`TimerBuilder::on`] for a chosen one.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, MissedTicks, Runtime, TimerBuilder};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let mut samples = Vec::new();
/// let timer = TimerBuilder::on(&runtime)
///     .due(Duration::from_millis(5))
///     .period(Duration::from_millis(20))
///     .missed_ticks(MissedTicks::Skip)
///     .start_exclusive(move |tick| samples.push(tick.scheduled()));
/// assert_eq!(clock.advance(Duration::from_millis(45)), 3);
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[must_use = "a builder does nothing until `start`"]
#[derive(Clone, Debug)]
pub struct TimerBuilder<'a> {
    /// `None`: the runtime that is current when the timer is started.
    runtime: Option<&'a Runtime>,
    due: Option<Duration>,
    period: Duration,
    policy: MissedTicks,
    shift: Shift,
    jitter_seed: Option<u64>,
    label: Option<Arc<Label>>,
}

/// How much later than its due point a timer may fire, and why.
#[derive(Clone, Copy, Debug)]
enum Shift {
    Leeway(Duration),
    Jitter(Duration),
}

impl<'a> TimerBuilder<'a> {
    pub(super) fn new(runtime: Option<&'a Runtime>) -> Self {
        Self {
            runtime,
            due: None,
            period: Duration::MAX,
            policy: MissedTicks::default(),
            shift: Shift::Leeway(Duration::ZERO),
            jitter_seed: None,
            label: None,
        }
    }

    /// The settings of a timer on a runtime of the caller's choice.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, MissedTicks, Runtime, TimerBuilder};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timer = TimerBuilder::on(&runtime)
    ///     .period(Duration::from_secs(1))
    ///     .missed_ticks(MissedTicks::Burst)
    ///     .start(|tick| println!("{tick:?}"));
    /// clock.stall(Duration::from_secs(5));
    /// assert_eq!(clock.advance(Duration::ZERO), 5);
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn on(runtime: &'a Runtime) -> Self {
        Self::new(Some(runtime))
    }
}

impl TimerBuilder<'_> {
    /// The time from the start of the timer to its first firing. Default: a period, so a timer
    /// without both is idle.
    pub fn due(mut self, due: Duration) -> Self {
        self.due = Some(due);
        self
    }

    /// The time between later firings; zero or `Duration::MAX` for a one-shot. Default: one-shot.
    pub fn period(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// The policy for missed ticks: whole periods that pass before a tick can run. Default:
    /// [`MissedTicks::Rebase`], as in .NET.
    ///
    /// An [`Interval`](crate::Interval) has a different default, `Skip`: a task that takes ticks
    /// late wants to be back on its grid, while a callback that was kept waiting catches up once,
    /// and then keeps its distance.
    #[doc(alias = "MissedTickBehavior")]
    pub fn missed_ticks(mut self, policy: MissedTicks) -> Self {
        self.policy = policy;
        self
    }

    /// How much later than its due point the timer may fire, so that timers share wake-ups.
    /// Default: zero. The timer never fires early, and the usual lateness of a wake-up comes on
    /// top.
    ///
    /// The timer fires at the next point of a grid. The widths of the grids are 1, 2, 5, 10, ...
    /// us; the timer uses the widest grid up to its leeway. (A leeway below 1 us counts as zero.)
    /// So a queue with thousands of timers with a leeway of a millisecond causes at most a thousand
    /// wake-ups a second. The schedule counts from the exact due point, which [`Tick::scheduled`]
    /// gives, so a periodic timer does not drift. A leeway of a period or more makes the timer miss
    /// ticks; see [`MissedTicks`].
    ///
    /// # Examples
    ///
    /// Two timers with different due points, which fire at the same instant:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, TimerBuilder};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timers = [3_100, 3_900].map(|due| {
    ///     TimerBuilder::on(&runtime)
    ///         .due(Duration::from_micros(due))
    ///         .leeway(Duration::from_millis(1))
    ///         .start(|tick| assert_eq!(tick.now().as_duration(), Duration::from_millis(4)))
    /// });
    /// assert_eq!(clock.advance(Duration::from_micros(3_999)), 0);
    /// assert_eq!(clock.advance(Duration::from_micros(1)), 2);
    /// # drop(timers);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("slack", "tolerance"))]
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.shift = Shift::Leeway(leeway);
        self
    }

    /// Lets each tick fire at some instant in the `width` after its due point, so that many timers
    /// with the same period do not fire at once. Takes the place of a [leeway](Self::leeway).
    /// Default: zero. The timer never fires early.
    ///
    /// The instant looks random, and depends on due point and [seed](Self::jitter_seed) alone. The
    /// width is rounded down to 1, 2, 5, 10, ... us; below 1 us there is no jitter. The schedule
    /// counts from the exact due point, which [`Tick::scheduled`] gives, so a periodic timer does
    /// not drift: in a year it ticks as often as without jitter. A width of a period or more makes
    /// the timer miss ticks; see [`MissedTicks`].
    ///
    /// # Examples
    ///
    /// Caches that all refresh each minute, spread over ten seconds:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, TimerBuilder};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let (minute, width) = (Duration::from_secs(60), Duration::from_secs(10));
    /// let caches: Vec<_> = (0..100)
    ///     .map(|_| {
    ///         TimerBuilder::on(&runtime)
    ///             .period(minute)
    ///             .jitter(width)
    ///             .start(|tick| println!("{:?}", tick.lateness()))
    ///     })
    ///     .collect();
    /// assert_eq!(clock.advance(minute), 0);
    /// let in_the_first_second = clock.advance(Duration::from_secs(1));
    /// assert!((1..50).contains(&in_the_first_second));
    /// assert_eq!(in_the_first_second + clock.advance(Duration::from_secs(9)), 100);
    /// # drop(caches);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("spread", "random"))]
    pub fn jitter(mut self, width: Duration) -> Self {
        self.shift = Shift::Jitter(width);
        self
    }

    /// The seed of the [jitter](Self::jitter): timers with the same due points and the same seed
    /// fire at the same instants. There are 64 different seeds; a number is mapped to one of them.
    /// Default: another seed for each further timer that a thread makes.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, TimerBuilder};
    ///
    /// let fires_at = |seed| {
    ///     let clock = ManualClock::new();
    ///     let runtime =
    ///         Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
    ///     let second = Duration::from_secs(1);
    ///     let timer = TimerBuilder::on(&runtime)
    ///         .due(second)
    ///         .jitter(second)
    ///         .jitter_seed(seed)
    ///         .start(|_| {});
    ///     runtime.next_due()
    /// };
    /// assert_eq!(fires_at(1), fires_at(1));
    /// assert_ne!(fires_at(1), fires_at(2));
    /// ```
    pub fn jitter_seed(mut self, seed: u64) -> Self {
        self.jitter_seed = Some(seed);
        self
    }

    /// A name for the timer, which the hooks of the runtime and [`Runtime::dump`] tell, with the
    /// place of this call in the source. Default: no name. A timer with a name has a second
    /// allocation; a timer without one pays nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, TimerBuilder};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let tenant = 7;
    /// let timer = TimerBuilder::on(&runtime)
    ///     .name(format!("refresh {tenant}"))
    ///     .due(Duration::from_secs(5))
    ///     .start(|_| {});
    /// assert_eq!(runtime.dump(1).timers[0].name.as_deref(), Some("refresh 7"));
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[track_caller]
    pub fn name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.label = Some(Arc::new(Label { name: name.into(), site: Location::caller() }));
        self
    }

    #[inline]
    fn settings(&self) -> Settings {
        let tick_policy = match self.shift {
            Shift::Leeway(leeway) => TickPolicy::new(self.policy, leeway),
            Shift::Jitter(width) => self.with_jitter(width),
        };
        Settings { tick_policy, label: self.label.clone() }
    }

    #[cold]
    fn with_jitter(&self, width: Duration) -> TickPolicy {
        thread_local! {
            static NEXT_SEED: Cell<u64> = const { Cell::new(0) };
        }
        let next = || NEXT_SEED.replace(NEXT_SEED.get().wrapping_add(1));
        TickPolicy::with_jitter(self.policy, width, self.jitter_seed.unwrap_or_else(next))
    }

    fn when(&self) -> (Duration, Duration) {
        let due = self.due.unwrap_or(if self.period.is_zero() { Duration::MAX } else { self.period });
        (due, self.period)
    }

    #[track_caller]
    fn with_engine<T>(&self, make: impl FnOnce(&Arc<Engine>) -> T) -> T {
        match self.runtime {
            Some(runtime) => make(runtime.engine()),
            None => make(RuntimeHandle::current().started()),
        }
    }

    /// Starts the default runtime, if there is need.
    pub(crate) fn usable(&self) -> Result<(), RuntimeError> {
        match self.runtime {
            Some(runtime) => runtime.usable(),
            None => RuntimeHandle::try_current()?.engine().map(|_| ()),
        }
    }

    /// Makes and starts a timer whose callbacks may overlap; see [`Timer::new`].
    ///
    /// # Panics
    /// On the default runtime, when it cannot be started; [`try_start`](Self::try_start) returns
    /// the reason.
    #[track_caller]
    pub fn start(self, callback: impl Fn(&Tick<'_>) + Send + Sync + 'static) -> Timer {
        self.with_engine(|engine| Timer::start(engine, self.settings(), self.when(), overlapping(callback)))
    }

    /// Makes and starts a timer whose callbacks never overlap. Ticks that come due while a callback
    /// runs coalesce into a single tick, which runs next.
    ///
    /// # Panics
    /// As for [`start`](Self::start).
    #[track_caller]
    pub fn start_exclusive(self, callback: impl FnMut(&Tick<'_>) + Send + 'static) -> Timer {
        self.with_engine(|engine| Timer::start(engine, self.settings(), self.when(), exclusive(callback)))
    }

    /// Makes and starts a timer that fires once and consumes its callback; see [`OnceTimer`].
    /// Period and policy have no meaning for such a timer, except that a period alone is the due
    /// time.
    ///
    /// # Panics
    /// As for [`start`](Self::start).
    ///
    /// # Examples
    ///
    /// A timeout that may come up to 100 ms late, so that it shares a wake-up with others:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, TimerBuilder};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let timeout = TimerBuilder::on(&runtime)
    ///     .due(Duration::from_millis(4_950))
    ///     .leeway(Duration::from_millis(100))
    ///     .start_once(|tick| assert_eq!(tick.now().as_duration(), Duration::from_secs(5)));
    /// assert_eq!(clock.advance(Duration::from_millis(4_999)), 0);
    /// assert_eq!(clock.advance(Duration::from_millis(1)), 1);
    /// # drop(timeout);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[track_caller]
    pub fn start_once(self, callback: impl FnOnce(&Tick<'_>) + Send + 'static) -> OnceTimer {
        self.with_engine(|engine| OnceTimer::start(engine, self.settings(), self.when().0, callback))
    }

    /// Makes and starts a timer that fires once when the wall clock shows `at`; see
    /// [`WallTimer::on`]. Due time, period and policy have no meaning for such a timer. With
    /// leeway or jitter it fires up to that much later.
    ///
    /// # Panics
    /// As for [`start`](Self::start).
    ///
    /// # Examples
    ///
    /// A thousand clean-ups at midnight, spread over an hour:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime, TimerBuilder};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let hour = Duration::from_secs(3600);
    /// let midnight = clock.wall() + 24 * hour;
    /// let timers: Vec<_> = (0..1000)
    ///     .map(|_| {
    ///         let builder = TimerBuilder::on(&runtime).name("clean up").jitter(hour);
    ///         builder.start_wall(midnight, move |tick| assert!(tick.now() >= midnight))
    ///     })
    ///     .collect();
    /// assert_eq!(clock.advance(24 * hour - Duration::from_secs(1)), 0);
    /// assert_eq!(clock.advance(hour + Duration::from_secs(1)), 1000);
    /// # drop(timers);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[track_caller]
    pub fn start_wall(self, at: SystemTime, callback: impl FnMut(&WallTick<'_>) + Send + 'static) -> WallTimer {
        self.with_engine(|engine| WallTimer::start(engine, at, self.settings(), callback))
    }

    /// As [`start`](Self::start), with an error instead of a panic, and instead of a timer that
    /// never fires.
    ///
    /// # Errors
    /// [`RuntimeError::Ended`] when the runtime was shut down. [`RuntimeError::NotStarted`] when
    /// the default runtime cannot be started; a later try may work.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::Timer;
    ///
    /// let timer = Timer::builder()
    ///     .period(Duration::from_secs(1))
    ///     .try_start(|tick| println!("{tick:?}"))?;
    /// # drop(timer);
    /// # Ok::<(), timerqueue::error::RuntimeError>(())
    /// ```
    pub fn try_start(self, callback: impl Fn(&Tick<'_>) + Send + Sync + 'static) -> Result<Timer, RuntimeError> {
        self.usable().map(|()| self.start(callback))
    }

    /// As [`start_exclusive`](Self::start_exclusive), with an error as
    /// [`try_start`](Self::try_start).
    ///
    /// # Errors
    /// As for [`try_start`](Self::try_start).
    pub fn try_start_exclusive(self, callback: impl FnMut(&Tick<'_>) + Send + 'static) -> Result<Timer, RuntimeError> {
        self.usable().map(|()| self.start_exclusive(callback))
    }

    /// As [`start_wall`](Self::start_wall), with an error as [`try_start`](Self::try_start).
    ///
    /// # Errors
    /// As for [`try_start`](Self::try_start).
    pub fn try_start_wall(
        self,
        at: SystemTime,
        callback: impl FnMut(&WallTick<'_>) + Send + 'static,
    ) -> Result<WallTimer, RuntimeError> {
        self.usable().map(|()| self.start_wall(at, callback))
    }

    /// As [`start_once`](Self::start_once), with an error as [`try_start`](Self::try_start).
    ///
    /// # Errors
    /// As for [`try_start`](Self::try_start).
    pub fn try_start_once(self, callback: impl FnOnce(&Tick<'_>) + Send + 'static) -> Result<OnceTimer, RuntimeError> {
        self.usable().map(|()| self.start_once(callback))
    }
}
