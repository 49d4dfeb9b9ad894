//! The current CPU of the calling thread, and the number of CPUs.
//!
//! Ground rules. [`current`] is a hint that spreads work: the system may move the thread to another
//! CPU right after the call. The result may be any number; the caller maps the number to an
//! existing queue, and never indexes with the number.

#[cfg(all(not(all(test, timerqueue_loom)), any(target_os = "linux", target_os = "freebsd", target_os = "dragonfly")))]
#[inline]
pub(crate) fn current() -> usize {
    super::os::current_cpu()
}

/// For systems without such a call: each thread has a number of its own, so threads spread over the
/// queues all the same.
#[cfg(all(
    not(all(test, timerqueue_loom)),
    not(any(target_os = "linux", target_os = "freebsd", target_os = "dragonfly"))
))]
#[inline]
pub(crate) fn current() -> usize {
    use crate::sync::Ordering;
    use crate::sync::unmodelled::AtomicUsize;

    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    OWN.try_with(|own| *own).unwrap_or(0)
}

/// For a model: all its threads run on a single thread of the system, and each execution must be
/// repeatable.
#[cfg(all(test, timerqueue_loom))]
pub(crate) fn current() -> usize {
    0
}

/// The number of CPUs of the machine that were up at the first call. The number is read once, since
/// the system reads files for it. The affinity mask of the calling thread is no substitute: this
/// thread may be pinned, and further threads are not.
#[cfg(not(all(test, timerqueue_loom)))]
pub(crate) fn count() -> usize {
    #[cfg(test)]
    if let Some(cores) = AS_IF.get() {
        return cores;
    }
    static CORES: crate::sync::unmodelled::OnceLock<usize> = crate::sync::unmodelled::OnceLock::new();
    *CORES.get_or_init(count_all)
}

#[cfg(all(test, not(timerqueue_loom)))]
thread_local! {
    static AS_IF: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

/// Runs `code` on this thread as if the machine had `cores` CPUs.
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
    return super::os::online_cpus().max(1);
    #[cfg(not(unix))]
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A single CPU keeps the models small.
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
