//! At most one run in each period.
//!
//! Ground rules. `state` is changed and the timer set in one section of the helper's lock. No user
//! code runs in it: the notice of a change may have the last reference to the runtime, with its
//! hooks, and is dropped after the section.

use std::time::Duration;

use crate::sync::{Arc, Mutex};
use crate::time::Timestamp;
use crate::timer::{Changed, Tick, Timer, TimerBuilder};

/// The last run, and whether a run was asked for since.
#[derive(Default)]
struct Asked {
    /// When the last run began.
    last_run: Option<Timestamp>,
    is_pending: bool,
}

/// Runs a callback at most once in a period, however often it is asked for: the first call at once,
/// and one run at the end of the period for all calls in between. For what is asked for too often
/// and must be up to date: redrawing, progress reports.
///
/// **Precision.** A run starts [as precisely as a timer fires](crate::Timer). Between the
/// beginnings of two runs lies a period or more. Each call is followed by the beginning of a run
/// within a period, unless [`trailing`](Self::trailing) is off.
///
/// **Threads, dropping.** See the [module](crate::util). A dropped throttle does not run what is
/// pending.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::util::Throttle;
/// use timerqueue::{ManualClock, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let report = Throttle::on(&runtime, Duration::from_secs(1), || println!("progress"));
/// let mut runs = 0;
/// for _ in 0..35 {
///     report.call(); // for each file
///     runs += clock.advance(Duration::from_millis(100));
/// }
/// assert_eq!(runs, 4); // at 0, 1, 2 and 3 s
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[must_use = "dropping it disposes its timer: keep it (`let _throttle = ..`; `let _ = ..` drops it at once)"]
pub struct Throttle {
    timer: Timer,
    state: SharedAsked,
    period: Duration,
    trailing: bool,
}

type SharedAsked = Arc<Mutex<Asked>>;

constructors! {
    /// Runs `callback` at most once in `period`.
    Throttle, period
}

impl Throttle {
    #[track_caller]
    fn start(builder: TimerBuilder<'_>, period: Duration, callback: impl FnMut() + Send + 'static) -> Self {
        let (state, fire) = parts(callback);
        Self { timer: builder.start_exclusive(fire), state, period, trailing: true }
    }

    /// Whether calls that come too early are followed by a run at the end of the period. Default:
    /// they are. If not, such calls have no effect.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::util::Throttle;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let warn =
    ///     Throttle::on(&runtime, Duration::from_secs(60), || println!("the disk is nearly full"))
    ///         .trailing(false);
    /// assert!(warn.call());
    /// assert_eq!(clock.advance(Duration::from_secs(30)), 1);
    /// assert!(!warn.call());
    /// assert_eq!(clock.advance(Duration::from_secs(60)), 0);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn trailing(mut self, trailing: bool) -> Self {
        self.trailing = trailing;
        self
    }

    /// Asks for a run. Returns whether a run follows; false if the call came too early and
    /// [`trailing`](Self::trailing) is off, or the runtime was shut down.
    pub fn call(&self) -> bool {
        let mut state = self.state.lock();
        if state.is_pending {
            return !self.timer.has_ended();
        }
        let wait = match state.last_run {
            None => Duration::ZERO,
            Some(last) => self.period.saturating_sub(self.timer.now().saturating_duration_since(last)),
        };
        if !wait.is_zero() && !self.trailing {
            return false;
        }
        let (changed, notice) = self.timer.restart_under_lock(wait);
        state.is_pending = changed != Changed::Ended;
        drop(state);
        drop(notice);
        changed != Changed::Ended
    }

    /// Forgets the calls since the last run. Returns whether a run was pending.
    pub fn cancel(&self) -> bool {
        let mut state = self.state.lock();
        self.timer.stop();
        std::mem::take(&mut state.is_pending) && !self.timer.has_ended()
    }

    /// Whether a run is pending: there was a call that is not answered yet. False after the end of
    /// the runtime.
    pub fn is_pending(&self) -> bool {
        self.state.lock().is_pending && !self.timer.has_ended()
    }
}

fn parts(mut callback: impl FnMut() + Send + 'static) -> (SharedAsked, impl FnMut(&Tick<'_>) + Send + 'static) {
    let state = SharedAsked::default();
    let calls = Arc::clone(&state);
    let fire = move |tick: &Tick<'_>| {
        let is_wanted = {
            let mut calls = calls.lock();
            if calls.is_pending {
                calls.last_run = Some(tick.now());
            }
            std::mem::take(&mut calls.is_pending)
        };
        if is_wanted {
            callback();
        }
    };
    (state, fire)
}

shown!([] Throttle, |this|
    "period" => this.period, "trailing" => this.trailing, "is_pending" => this.is_pending(), "timer" => this.timer
);
