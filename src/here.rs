//! Which core the calling thread runs on.
//!
//! Ground rules. The answer is a hint that spreads work: the thread may be moved to another core the moment after. It may be
//! any number; whoever uses it maps it to what there is, and never indexes with it.

#[cfg(all(not(all(test, timerqueue_loom)), any(target_os = "linux", target_os = "freebsd", target_os = "dragonfly")))]
#[allow(unsafe_code)] // a system call
#[inline]
pub(crate) fn core_id() -> usize {
    // SAFETY: no arguments. -1 where unknown, which becomes some large number.
    unsafe { libc::sched_getcpu() as usize }
}

/// Systems that do not tell: each thread has a number of its own, so that threads spread over the queues all the same.
#[cfg(all(
    not(all(test, timerqueue_loom)),
    not(any(target_os = "linux", target_os = "freebsd", target_os = "dragonfly"))
))]
#[inline]
pub(crate) fn core_id() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};

    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    OWN.try_with(|own| *own).unwrap_or(0)
}

/// All threads of a model are one, and each execution is to be repeatable.
#[cfg(all(test, timerqueue_loom))]
pub(crate) fn core_id() -> usize {
    0
}
