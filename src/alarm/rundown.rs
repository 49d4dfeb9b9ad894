//! Rundown protection: descriptors that threads use without a lock are closed when none of these
//! threads uses them any more.
//!
//! Ground rules. A use counts itself in and out, in a word with a bit that says *closing*. A use
//! that finds the bit does nothing. The last to count itself out of a closing word, or the closer
//! itself if no use is under way, closes: exactly one of them. No thread waits for another, which
//! might have no processor. `loom-tests/use_vs_close.rs` models this.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicUsize, Ordering};

/// See the module's ground rules. Written by each use, hence on its own cache line.
#[derive(Debug)]
pub(crate) struct Rundown(CachePadded<AtomicUsize>);

const CLOSING: usize = 1 << (usize::BITS - 1);
/// With `CLOSING`: a thread has been told to close. (Both are far from any number of uses, which is
/// at most that of threads.)
const CLOSED: usize = CLOSING >> 1;

impl Rundown {
    pub(crate) fn new() -> Self {
        Self(CachePadded::new(AtomicUsize::new(0)))
    }

    /// Runs `call`, unless the descriptors are being closed; runs `close` if this was the last use
    /// of descriptors that are to be closed.
    #[inline]
    pub(crate) fn during(&self, call: impl FnOnce(), close: impl FnOnce()) {
        // All are steps of one word, so each thread sees the latest: the bit, or the uses. Acquire
        // and release order the calls before the close.
        if self.0.fetch_add(1, Ordering::Acquire) & CLOSING == 0 {
            call();
        }
        if self.0.fetch_sub(1, Ordering::Release) == CLOSING + 1 && self.is_last() {
            close();
        }
    }

    /// No use begins any more. True: the caller closes. False: the last use does, or the
    /// descriptors are closed.
    #[must_use]
    pub(crate) fn close(&self) -> bool {
        self.0.fetch_or(CLOSING, Ordering::AcqRel);
        self.is_last()
    }

    fn is_last(&self) -> bool {
        self.0.compare_exchange(CLOSING, CLOSING | CLOSED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/use_vs_close.rs"]
mod loom_models;
