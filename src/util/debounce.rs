//! One run after a burst of calls.
//!
//! Ground rules. `burst` is changed and the timer set in one section of the helper's lock. No user
//! code runs in it: the notice of a change may have the last reference to the runtime, with its
//! hooks, and is dropped after the section.

use std::time::Duration;

use crate::sync::{Arc, Mutex};
use crate::time::Timestamp;
use crate::timer::{Changed, Tick, Timer, TimerBuilder};

/// The calls since the last run.
#[derive(Clone, Copy)]
struct Burst {
    first: Timestamp,
    last: Timestamp,
    /// The run is due now. Further calls do not move it.
    is_due: bool,
}

/// Runs a callback once after a burst of calls: when no call has come for a while. For what is dear
/// and wanted once: saving a document that is being edited, reloading after many file changes.
///
/// **Precision.** A run starts [as precisely as a timer fires](crate::Timer), never before the
/// quiet time has passed since a call. With [`max_wait`](Self::max_wait) a call is answered after
/// that time at the latest, also while further calls come.
///
/// **Threads, dropping.** See the [module](crate::util). A dropped debounce does not run what is
/// pending; see [`flush`](Self::flush).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::util::Debounce;
/// use timerqueue::{ManualClock, Runtime};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let save = Debounce::on(&runtime, Duration::from_millis(300), || println!("saved"));
/// for _ in 0..10 {
///     save.call(); // at each key
///     assert_eq!(clock.advance(Duration::from_millis(100)), 0);
/// }
/// assert_eq!(clock.advance(Duration::from_millis(200)), 1);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[must_use = "dropping it disposes its timer: keep it (`let _debounce = ..`; `let _ = ..` drops it at once)"]
pub struct Debounce {
    timer: Timer,
    burst: SharedBurst,
    quiet: Duration,
    max_wait: Duration,
}

constructors! {
    /// Runs `callback` when no [`call`](Self::call) has come for `quiet`.
    Debounce, quiet
}

impl Debounce {
    #[track_caller]
    fn start(builder: TimerBuilder<'_>, quiet: Duration, callback: impl FnMut() + Send + 'static) -> Self {
        let (burst, fire) = parts(callback);
        Self { timer: builder.start_exclusive(fire), burst, quiet, max_wait: Duration::MAX }
    }

    /// The longest time from a call to the run that follows it. Default: no limit, so a burst
    /// without end is never followed by a run.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::util::Debounce;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let save = Debounce::on(&runtime, Duration::from_millis(300), || {})
    ///     .max_wait(Duration::from_secs(1));
    /// let mut runs = 0;
    /// for _ in 0..25 {
    ///     save.call();
    ///     runs += clock.advance(Duration::from_millis(100));
    /// }
    /// assert_eq!(runs, 2);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    /// Asks for a run. A call while the callback runs asks for a further run.
    pub fn call(&self) {
        let mut burst = self.burst.lock();
        let now = self.timer.now();
        let (first, is_due) = burst.map_or((now, false), |burst| (burst.first, burst.is_due));
        if is_due {
            *burst = Some(Burst { first, last: now, is_due });
            return;
        }
        let limit = self.max_wait.saturating_sub(now.saturating_duration_since(first));
        let due = self.quiet.min(limit);
        // A run that is due is not moved again: calls without a pause would keep it from beginning.
        *burst = Some(Burst { first, last: now, is_due: due.is_zero() });
        let (_, notice) = self.timer.restart_under_lock(due);
        drop(burst);
        drop(notice);
    }

    /// Runs what is pending at once, on the pool; calls until this run begins are answered by it.
    /// Returns whether a run was pending.
    pub fn flush(&self) -> bool {
        let mut calls = self.burst.lock();
        let Some(burst) = calls.as_mut() else { return false };
        let (changed, notice) = self.timer.restart_under_lock(Duration::ZERO);
        burst.is_due = changed != Changed::Ended;
        drop(calls);
        drop(notice);
        changed != Changed::Ended
    }

    /// Forgets the calls since the last run. Returns whether a run was pending.
    pub fn cancel(&self) -> bool {
        let mut burst = self.burst.lock();
        self.timer.stop();
        burst.take().is_some() && !self.timer.has_ended()
    }

    /// Whether a run is pending: there was a call since the last run began. False after the end of
    /// the runtime.
    pub fn is_pending(&self) -> bool {
        self.burst.lock().is_some() && !self.timer.has_ended()
    }
}

type SharedBurst = Arc<Mutex<Option<Burst>>>;

fn parts(mut callback: impl FnMut() + Send + 'static) -> (SharedBurst, impl FnMut(&Tick<'_>) + Send + 'static) {
    let burst = SharedBurst::default();
    let calls = Arc::clone(&burst);
    let fire = move |tick: &Tick<'_>| {
        let is_wanted = {
            let mut calls = calls.lock();
            // A call since the tick came due has set the timer again, and gets a run of its own;
            // after a flush this run is for it too.
            let is_later = |calls: &Burst| calls.last > tick.scheduled() && !calls.is_due;
            let later = calls.filter(is_later).map(|calls| calls.last);
            let is_wanted = calls.is_some();
            *calls = later.map(|last| Burst { first: last, last, is_due: false });
            is_wanted
        };
        if is_wanted {
            callback();
        }
    };
    (burst, fire)
}

shown!([] Debounce, |this|
    "quiet" => this.quiet, "max_wait" => this.max_wait, "is_pending" => this.is_pending(), "timer" => this.timer
);
