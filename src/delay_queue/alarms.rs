//! The core timers of a delay queue: one on the runtime's clock, one on the wall clock, armed while
//! a receiver sleeps.
//!
//! Ground rules. Under the lock of the queue, which comes before the lock of a shard. A core timer
//! fires on a thread of the pool and *rings*: it locks the queue and wakes receivers. While a
//! receiver sleeps, the timer of the runtime's clock is queued even if no entry comes due, in the
//! endless list, where it costs nothing: so the end of the runtime finds the receiver.
//!
//! A timer may be armed too early, after its entry was removed or moved. Then it fires once for
//! nothing, and is armed anew.
//!
//! Arming can ring on the same thread: if the runtime has just ended, the engine disposes the entry
//! at once and wakes its task. The caller of [`Alarms::arm`] sees to it that such a ring does not
//! wait for the lock.

use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use super::types::{Axis, wall_time};
use crate::engine::{Engine, Looked, WakerEntry, WallEntry};
use crate::queue::MissedTicks;
use crate::runtime::RuntimeHandle;
use crate::time::{END, NEVER};

/// The receiver of rings.
pub(super) trait Ring: Send + Sync + 'static {
    /// A core timer has fired, or the runtime has ended. No lock is held but, on a thread that arms
    /// or compares keys, the queue's own.
    fn ring(&self, axis: Axis);
}

/// The waker of the timer on the runtime's clock.
struct Bell<R>(Weak<R>);

impl<R: Ring> Wake for Bell<R> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(queue) = self.0.upgrade() {
            queue.ring(Axis::Running);
        }
    }
}

/// Outcome of arming.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Armed {
    /// The timers fire in time.
    InTime,
    /// An instant has come meanwhile: the caller looks again.
    HasCome,
    /// The runtime has ended.
    Ended,
}

/// See the module's ground rules.
pub(super) struct Alarms {
    waker: Waker,
    running: Option<WakerEntry>,
    /// [`NEVER`]: not armed.
    running_at: u64,
    wall: Option<WallEntry>,
    wall_at: u64,
    make_wall: Box<MakeWall>,
}

/// Makes the timer on the wall clock, armed.
type MakeWall = dyn Fn(&Arc<Engine>, u64) -> WallEntry + Send + Sync;

impl Alarms {
    pub(super) fn new<R: Ring>(queue: &Weak<R>) -> Self {
        let waker = Waker::from(Arc::new(Bell(Weak::clone(queue))));
        let queue = Weak::clone(queue);
        let make_wall = move |engine: &Arc<Engine>, at: u64| {
            let queue = Weak::clone(&queue);
            WallEntry::start_own(engine, wall_time(at), move |_| {
                if let Some(queue) = queue.upgrade() {
                    queue.ring(Axis::Wall);
                }
            })
        };
        Self { waker, running: None, running_at: NEVER, wall: None, wall_at: NEVER, make_wall: Box::new(make_wall) }
    }

    /// The instant for which the timer of an axis is armed; [`NEVER`]: not armed.
    pub(super) fn armed_for(&self, axis: Axis) -> u64 {
        match axis {
            Axis::Running => self.running_at,
            Axis::Wall => self.wall_at,
        }
    }

    /// The timer of an axis has fired.
    pub(super) fn fired(&mut self, axis: Axis) {
        match axis {
            Axis::Running => self.running_at = NEVER,
            Axis::Wall => self.wall_at = NEVER,
        }
    }

    /// Has the timers fire at these instants or before; [`END`]: never.
    pub(super) fn arm(&mut self, runtime: &RuntimeHandle, [running, wall]: [u64; 2], now: u64) -> Armed {
        if running >= self.running_at && (wall == END || wall >= self.wall_at) {
            return Armed::InTime;
        }
        let Ok(engine) = runtime.engine() else { return Armed::Ended };
        let looked = if running < self.running_at { self.arm_running(engine, running, now) } else { Looked::Waits };
        if wall != END && wall < self.wall_at {
            match &self.wall {
                Some(timer) => _ = timer.change(wall_time(wall)),
                None => self.wall = Some((self.make_wall)(engine, wall)),
            }
            self.wall_at = wall;
        }
        match looked {
            Looked::Closed => Armed::Ended,
            Looked::Waits => Armed::InTime,
            Looked::HasCome => {
                self.running_at = NEVER;
                Armed::HasCome
            }
        }
    }

    fn arm_running(&mut self, engine: &Engine, at: u64, now: u64) -> Looked {
        let looked = match &self.running {
            None => {
                let policy = MissedTicks::Skip.into();
                WakerEntry::start(&mut self.running, engine, policy, &self.waker, at, now)
            }
            Some(entry) => {
                // The timer may be queued, or have fired while a thread is about to ring: `reset`
                // serves the first, `look` the second.
                entry.reset(Some(now), |_| at);
                entry.look(&self.waker, at, now)
            }
        };
        self.running_at = at;
        looked
    }

    /// No receiver sleeps: the timers leave their queues.
    pub(super) fn disarm(&mut self) {
        if self.running_at != NEVER {
            self.running_at = NEVER;
            drop(self.running.as_ref().and_then(WakerEntry::take_waker));
        }
        if self.wall_at != NEVER {
            self.wall_at = NEVER;
            drop(self.wall.take());
        }
    }
}
