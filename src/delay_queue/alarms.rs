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

use std::task::Waker;
use std::time::SystemTime;

use super::types::{Axis, wall_time};
use crate::engine::{EntryRef, Looked, OwnedEntry, WakerEntry, change_wall, start_wall};
use crate::queue::MissedTicks;
use crate::runtime::RuntimeHandle;
use crate::time::{END, NEVER};

/// See the module's ground rules.
pub(super) struct Alarms {
    bells: [Waker; 2],
    running: Option<WakerEntry>,
    wall: Option<OwnedEntry>,
    /// The instants for which the timers are armed; [`NEVER`]: not armed.
    pub(super) armed: [u64; 2],
}

impl Alarms {
    /// Each bell is called, by axis, when its timer has fired or the runtime has ended. No lock is
    /// held but, on a thread that arms or compares keys, the queue's own.
    pub(super) fn new(bells: [Waker; 2]) -> Self {
        Self { bells, running: None, wall: None, armed: [NEVER; 2] }
    }

    /// The timer of an axis has fired.
    pub(super) fn fired(&mut self, axis: Axis) {
        self.armed[axis as usize] = NEVER;
    }

    /// Has the timers fire at these instants or before; [`END`]: never. [`Looked::HasCome`]: an
    /// instant has come meanwhile, and the caller looks again.
    #[must_use]
    pub(super) fn arm(&mut self, runtime: &RuntimeHandle, [running, wall]: [u64; 2], now: u64) -> Looked {
        let [running_before, wall_before] = self.armed;
        if running >= running_before && (wall == END || wall >= wall_before) {
            return Looked::Waits;
        }
        let Ok(engine) = runtime.engine() else { return Looked::Closed };
        let [bell, wall_bell] = &self.bells;
        let mut looked = Looked::Waits;
        if running < running_before {
            // The timer may be queued, or have fired while a thread is about to ring: `reset`
            // serves the first, `poll` the second.
            self.running.iter().for_each(|entry| _ = entry.reset(Some(now), |_| running));
            looked = WakerEntry::poll(&mut self.running, engine, bell, running, now);
            self.armed[0] = if looked == Looked::HasCome { NEVER } else { running };
        }
        if wall != END && wall < wall_before {
            self.armed[1] = wall;
            let at = wall_time(wall);
            match &self.wall {
                Some(timer) => _ = change_wall(timer, at),
                None => {
                    let bell = wall_bell.clone();
                    let ring = move |_: &EntryRef, _: SystemTime| bell.wake_by_ref();
                    self.wall = Some(start_wall::<_, true>(engine, at, MissedTicks::default().into(), ring));
                }
            }
        }
        looked
    }

    /// No receiver sleeps: the timers leave their queues.
    pub(super) fn disarm(&mut self) {
        let [running, wall] = std::mem::replace(&mut self.armed, [NEVER; 2]);
        if running != NEVER {
            drop(self.running.as_ref().and_then(WakerEntry::take_waker));
        }
        if wall != NEVER {
            drop(self.wall.take());
        }
    }
}
