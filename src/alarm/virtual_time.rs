//! Virtual time: the state of a manual clock.
//!
//! Ground rules. Only the clock's driver, a thread, writes `now` and `suspended`; any thread may
//! read. There is no alarm to arm: the driving thread asks the shards for their deadlines.

use std::time::{Duration, Instant, SystemTime};

use crate::sync::Ordering;
use crate::sync::unmodelled::{AtomicU64, Mutex};
use crate::time::{LAST, Moment};

/// The readings of a manual clock, shared by all shards on this clock.
#[derive(Debug)]
pub(crate) struct VirtualTime {
    /// Nanoseconds since the clock was made, without suspends. Written only by the clock's driver.
    /// A reader that must see the effects of an instant synchronises through a shard's lock, so
    /// relaxed is enough.
    now: AtomicU64,
    /// The time spent in suspend. Written and read as `now`.
    suspended: AtomicU64,
    /// The last setting of the wall clock, and the boot clock's reading then. Lock and atomics are
    /// not modelled: a model must count each read as a single step.
    wall: Mutex<(SystemTime, u64)>,
    /// Arming numbers, a single sequence for all shards: the order of timers due at the same
    /// instant.
    numbers: AtomicU64,
    /// The clock of `std::time::Instant` when this clock was made: the zero of this clock, for
    /// conversions.
    origin: Instant,
}

impl Default for VirtualTime {
    fn default() -> Self {
        Self {
            now: AtomicU64::new(0),
            suspended: AtomicU64::new(0),
            wall: Mutex::new((SystemTime::UNIX_EPOCH, 0)),
            numbers: AtomicU64::new(0),
            origin: Instant::now(),
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

    /// The lead of the boot clock.
    pub(crate) fn suspended(&self) -> u64 {
        self.suspended.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, now: u64) {
        debug_assert!(now >= self.now(), "a clock does not run backwards");
        self.now.store(now, Ordering::Relaxed);
    }

    /// The caller drives the clock.
    pub(crate) fn suspend(&self, ns: u64) {
        let suspended = self.suspended.load(Ordering::Relaxed).saturating_add(ns);
        self.suspended.store(suspended, Ordering::Relaxed);
    }

    pub(crate) fn wall(&self) -> SystemTime {
        let (set_to, then) = *self.wall.lock();
        let elapsed_ns = self.boot().saturating_sub(then);
        let at = |ns| set_to.checked_add(Duration::from_nanos(ns));
        at(elapsed_ns).unwrap_or_else(|| {
            // The wall clock stands still at the last time that fits: a search over 64 bits finds
            // it.
            let fits = (0..u64::BITS).rev().fold(0, |fits, bit| {
                let more = fits | 1 << bit;
                if more <= elapsed_ns && at(more).is_some() { more } else { fits }
            });
            at(fits).unwrap_or(set_to)
        })
    }

    pub(crate) fn set_wall(&self, wall: SystemTime) {
        *self.wall.lock() = (wall, self.boot());
    }

    /// The zero of this clock, which stands still in suspend, as an `Instant`. An `Instant` stands
    /// for the same reading of the clock, however much real time passes.
    pub(crate) fn origin(&self) -> Moment {
        Moment { instant: self.origin, ns: 0 }
    }

    /// The number of armings so far.
    pub(crate) fn armed(&self) -> u64 {
        self.numbers.load(Ordering::Relaxed)
    }

    /// As if so many timers more had been armed.
    #[cfg(all(test, not(timerqueue_loom)))]
    pub(crate) fn pretend_armed(&self, more: u64) {
        self.numbers.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}
