//! The state of a timer, and the timers that are due next with their names: for displays.
//!
//! Ground rules. A walk changes nothing. It holds the lock of one shard at a time, and looks at
//! [`LOOKED_AT`] timers there at most.

use std::cell::RefCell;
use std::fmt;
use std::ops::ControlFlow;
use std::panic::Location;
use std::time::{Duration, SystemTime};

use super::entry::label_of;
use super::{Engine, EntryRef, Label};
use crate::ordered_map::{OrderedMap, in_order};
use crate::queue::{Kind, Period};
use crate::sync::Arc;
use crate::time::{END, Timestamp};

/// The timers of a shard that a walk looks at: some hundred microseconds.
const LOOKED_AT: usize = 4096;

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
    /// Reads all of it in a section of the lock of the timer's shard.
    pub(crate) fn of(node: &EntryRef) -> Self {
        let mut inner = node.shard().lock();
        let word = node.get().state.look();
        let is_over = word.disposed || !inner.is_open() || (word.consumed && word.running == 0);
        let wall = inner.walls.time(node).filter(|_| !is_over);
        let (entry, key) = (node.get(), inner.queue.key());
        let due = (entry.is_queued(key) && !is_over).then(|| entry.due(key));
        let period = Some(entry.period(key)).filter(|&period| period != Period::NONE);
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
            period: period.map(|period| Duration::from_nanos(period.as_ns())),
            running: word.running as usize,
        }
    }

    /// What `Debug` of a timer shows.
    pub(crate) fn show(&self, f: &mut fmt::Formatter<'_>, name: &str, id: impl fmt::Debug) -> fmt::Result {
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

/// The timers that are due next: see [`Runtime::dump`](crate::Runtime::dump).
///
/// # Examples
///
/// See [`Runtime::dump`](crate::Runtime::dump).
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

/// A timer that waits: a part of a [`TimerDump`](crate::observe::TimerDump).
///
/// # Examples
///
/// See [`Runtime::dump`](crate::Runtime::dump).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PendingTimer {
    /// The due point, without leeway.
    pub due: Timestamp,
    /// The number of its queue.
    pub queue: usize,
    /// The entry of a future ([`Delay`](crate::Delay), timeout, interval), and not a timer with a
    /// callback.
    pub is_future: bool,
    /// The [name](crate::TimerBuilder::name) of the timer.
    pub name: Option<String>,
    /// The place in the source at which the timer was named.
    pub site: Option<&'static Location<'static>>,
}

/// The `n` timers that are due first, in order. False: some queue has too many timers to look
/// at, and an earlier one may be missing.
pub(crate) fn soonest(engine: &Engine, n: usize) -> (Vec<PendingTimer>, bool) {
    let (mut all, mut complete) = (Vec::new(), true);
    for (queue, shard) in engine.shards().enumerate() {
        let state = shard.lock();
        // By due point, and by the order in which they were found.
        let (soonest, mut found) = (RefCell::new(OrderedMap::new()), Vec::new());
        let ends = |instant: u64| {
            let soonest = soonest.borrow();
            soonest.len() >= n && soonest.last().is_none_or(|(last, _)| last <= instant)
        };
        complete &= state.queue.walk(ends, |linked| {
            let due = linked.due(state.queue.key());
            if due < END {
                let mut soonest = soonest.borrow_mut();
                soonest.insert_key((due, found.len() as u64));
                if soonest.len() > n {
                    soonest.pop_last();
                }
            }
            found.push(linked);
            if found.len() < LOOKED_AT { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let mut soonest = soonest.into_inner();
        all.extend(soonest.drain().map(|((due, at), _)| {
            let linked = found[at as usize];
            (due, queue, linked.kind(), label_of(linked, &state))
        }));
    }
    let timer = |(due, queue, kind, label): (u64, usize, Kind, Option<Arc<Label>>)| PendingTimer {
        due: Timestamp::from_ns(due),
        queue,
        is_future: kind == Kind::Waker,
        name: label.as_ref().map(|label| label.name.to_string()),
        site: label.map(|label| label.site),
    };
    let order = in_order(all.iter().map(|&(due, ..)| due)).into_iter().take(n);
    (order.map(|at| timer(all[at].clone())).collect(), complete)
}
