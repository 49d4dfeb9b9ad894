//! The clock of a runtime as `std::time::Instant`s, for libraries that read the time through their
//! timer.

use std::time::Instant;

use timerqueue::Runtime;

/// Now, on the clock of the runtime. On a manual clock: its virtual time.
pub(crate) fn now(runtime: &Runtime) -> Instant {
    // No `Instant` expresses the time of the clock: only after a manual clock was advanced by
    // centuries.
    runtime.instant(runtime.now()).unwrap_or_else(Instant::now)
}
