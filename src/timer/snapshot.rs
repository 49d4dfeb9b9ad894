//! The state of a timer at a moment, for users and for `Debug`.
//!
//! Ground rules. A snapshot is read in a single section of the lock of the timer's queue
//! ([`Outline`]); it refers to nothing.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::TimerId;
use crate::engine::{EntryRef, Outline};
use crate::time::{END, NEVER, Timestamp};

/// What a timer does: see [`TimerSnapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimerState {
    /// Waits for no instant: never started, stopped, or a one-shot that has fired. A change starts
    /// it.
    Idle,
    /// Waits in its queue for its due point.
    Waiting,
    /// Due: a tick waits for a thread. (Of a wall timer perhaps only a look at the wall clock.)
    Queued,
    /// A callback runs. A periodic timer waits for its next tick meanwhile.
    Running,
    /// No callback starts any more: the timer is disposed, its runtime has ended, or it is a
    /// [`OnceTimer`](crate::OnceTimer) whose callback has run.
    Disposed,
}

/// A timer at a moment: see [`Timer::snapshot`](crate::Timer::snapshot).
///
/// # Examples
///
/// A callback that tells when it runs next:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, TimerBuilder, observe::{TimerSnapshot, TimerState}};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let timer = TimerBuilder::on(&runtime).period(Duration::from_secs(60)).start_exclusive(|tick| {
///     let TimerSnapshot { state, due, .. } = tick.snapshot();
///     assert_eq!(
///         (state, due),
///         (TimerState::Running, Some(tick.scheduled() + Duration::from_secs(60)))
///     );
/// });
/// assert_eq!(clock.advance(Duration::from_secs(60)), 1);
/// # assert_eq!(runtime.metrics().panics, 0);
/// # drop(timer);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimerSnapshot {
    /// What the timer does. A timer that is disposed while callbacks run is
    /// [`Disposed`](TimerState::Disposed).
    pub state: TimerState,
    /// The next due point, without leeway, if the timer waits for one in its queue. Of a wall timer
    /// the instant at which the runtime looks at the wall clock next.
    pub due: Option<Timestamp>,
    /// The time that a [`WallTimer`](crate::WallTimer) waits for.
    pub wall: Option<SystemTime>,
    /// `None`: a one-shot.
    pub period: Option<Duration>,
    /// The number of callbacks that run now.
    pub running: usize,
}

impl TimerSnapshot {
    pub(super) fn of(entry: &EntryRef) -> Self {
        let Outline { due, wall, period, word, is_over } = Outline::of(entry);
        let state = match () {
            () if is_over => TimerState::Disposed,
            () if word.running > 0 => TimerState::Running,
            () if word.queued => TimerState::Queued,
            () if due.is_some() || wall.is_some() => TimerState::Waiting,
            () => TimerState::Idle,
        };
        Self {
            state,
            due: due.filter(|&due| due < END).map(Timestamp::from_ns),
            wall,
            period: (period != NEVER).then(|| Duration::from_nanos(period)),
            running: word.running as usize,
        }
    }

    /// What `Debug` of a timer shows.
    pub(super) fn show(&self, f: &mut fmt::Formatter<'_>, name: &str, id: TimerId) -> fmt::Result {
        let mut shown = f.debug_struct(name);
        shown.field("id", &id).field("state", &self.state);
        if let Some(due) = self.due {
            shown.field("due", &format_args!("{due}"));
        }
        if let Some(wall) = self.wall {
            shown.field("wall", &wall);
        }
        if let Some(period) = self.period {
            shown.field("period", &period);
        }
        if self.running > 0 {
            shown.field("running", &self.running);
        }
        shown.finish_non_exhaustive()
    }
}
