//! The manual alarm: a clock whose hands somebody moves. It has nothing to arm; whoever moves the hands asks the queues
//! for their deadlines.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::time::LAST;

/// The hands of a manual clock, shared by all queues on it.
#[derive(Debug)]
pub(crate) struct VirtualTime {
    /// Nanoseconds since the clock was made, without suspends. Written only by the thread that drives the clock; a reader
    /// that needs to see what was done at that instant synchronises through a queue lock, so relaxed is enough.
    now: AtomicU64,
    /// The time spent in suspend. As `now`.
    suspended: AtomicU64,
    /// What the wall clock was set to, and what the boot clock showed then. A lock of std's, so that reading is one step in a model, as
    /// with the numbers.
    wall: Mutex<(SystemTime, u64)>,
    /// Arming numbers, one sequence for all queues: the order of timers that are due at one instant.
    numbers: AtomicU64,
}

impl Default for VirtualTime {
    fn default() -> Self {
        Self {
            now: AtomicU64::new(0),
            suspended: AtomicU64::new(0),
            wall: Mutex::new((SystemTime::UNIX_EPOCH, 0)),
            numbers: AtomicU64::new(0),
        }
    }
}

impl VirtualTime {
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// The clock that goes on in suspend.
    pub(crate) fn boot(&self) -> u64 {
        self.now().saturating_add(self.suspended()).min(LAST)
    }

    /// By how much the boot clock is ahead.
    pub(crate) fn suspended(&self) -> u64 {
        self.suspended.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, now: u64) {
        debug_assert!(now >= self.now(), "a clock does not run backwards");
        self.now.store(now, Ordering::Relaxed);
    }

    /// Caller: drives the clock.
    pub(crate) fn suspend(&self, ns: u64) {
        let suspended = self.suspended.load(Ordering::Relaxed).saturating_add(ns);
        self.suspended.store(suspended, Ordering::Relaxed);
    }

    pub(crate) fn wall(&self) -> SystemTime {
        let (set_to, then) = *self.wall.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed_ns = self.boot().saturating_sub(then);
        let at = |ns| set_to.checked_add(Duration::from_nanos(ns));
        at(elapsed_ns).unwrap_or_else(|| {
            // The wall clock stands still at the last time that fits: there are 64 bits of it to be found.
            let fits = (0..u64::BITS).rev().fold(0, |fits, bit| {
                let more = fits | 1 << bit;
                if more <= elapsed_ns && at(more).is_some() { more } else { fits }
            });
            at(fits).unwrap_or(set_to)
        })
    }

    pub(crate) fn set_wall(&self, wall: SystemTime) {
        *self.wall.lock().unwrap_or_else(PoisonError::into_inner) = (wall, self.boot());
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}
