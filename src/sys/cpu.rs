//! Which core the calling thread runs on, and among how many.
//!
//! Ground rules. The answer is a hint that spreads work: the thread may be moved to another core the moment after. It may be
//! any number; code that uses it maps it to the queues that there are, and never indexes with it.

#[cfg(all(not(all(test, timerqueue_loom)), any(target_os = "linux", target_os = "freebsd", target_os = "dragonfly")))]
#[inline]
pub(crate) fn current() -> usize {
    super::os::current_cpu()
}

/// Systems that do not tell: each thread has a number of its own, so that threads spread over the queues all the same.
#[cfg(all(
    not(all(test, timerqueue_loom)),
    not(any(target_os = "linux", target_os = "freebsd", target_os = "dragonfly"))
))]
#[inline]
pub(crate) fn current() -> usize {
    use std::sync::atomic::{AtomicUsize, Ordering};

    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    OWN.try_with(|own| *own).unwrap_or(0)
}

/// All threads of a model are one, and each execution is to be repeatable.
#[cfg(all(test, timerqueue_loom))]
pub(crate) fn current() -> usize {
    0
}

/// How many cores are worth telling apart: those of the machine that were up when this was first asked. (What the calling
/// thread may use is no answer: it may be pinned to one of them, and others not.) Found out once: the system reads files for it.
#[cfg(not(all(test, timerqueue_loom)))]
pub(crate) fn count() -> usize {
    #[cfg(test)]
    if let Some(cores) = AS_IF.get() {
        return cores;
    }
    static CORES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *CORES.get_or_init(count_all)
}

#[cfg(all(test, not(timerqueue_loom)))]
thread_local! {
    static AS_IF: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

/// Runs `code` on this thread as if the machine had so many cores.
#[cfg(all(test, not(timerqueue_loom)))]
pub(crate) fn as_if<R>(cores: usize, code: impl FnOnce() -> R) -> R {
    let before = AS_IF.replace(Some(cores));
    let result = code();
    AS_IF.set(before);
    result
}

#[cfg(not(all(test, timerqueue_loom)))]
fn count_all() -> usize {
    #[cfg(unix)]
    let online = online();
    #[cfg(not(unix))]
    let online = 0;
    online.max(std::thread::available_parallelism().map_or(1, usize::from))
}

/// The cores of the machine that are up; zero where unknown.
#[cfg(all(unix, not(all(test, timerqueue_loom))))]
pub(crate) fn online() -> usize {
    super::os::online_cpus()
}

/// The fewer, the smaller the models.
#[cfg(all(test, timerqueue_loom))]
pub(crate) fn count() -> usize {
    1
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    #[test]
    fn a_pinned_thread_counts_all_cores() {
        let all = super::count_all();
        let pinned = std::thread::spawn(|| {
            let core = core_affinity::get_core_ids().and_then(|cores| cores.first().copied());
            core.map(core_affinity::set_for_current);
            super::count_all()
        });
        assert_eq!(pinned.join().unwrap(), all);
    }
}
