//! The manual alarm: a clock whose hands somebody moves. It has nothing to arm; whoever moves the hands asks the queues
//! for their deadlines.

use std::sync::atomic::{AtomicU64, Ordering};

/// The hands of a manual clock, shared by all queues on it.
#[derive(Debug, Default)]
pub(crate) struct Hands {
    /// Nanoseconds since the clock was made. Written only by the thread that drives the clock; a reader that needs to see
    /// what was done at that instant synchronises through a queue lock, so relaxed is enough.
    now: AtomicU64,
    /// Arming numbers, one sequence for all queues: the order of timers that are due at one instant.
    numbers: AtomicU64,
}

impl Hands {
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, now: u64) {
        debug_assert!(now >= self.now(), "a clock does not run backwards");
        self.now.store(now, Ordering::Relaxed);
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}
