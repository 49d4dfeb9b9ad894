//! Counts of the threads and descriptors of this process, from `/proc`.

/// Open descriptors of this process.
pub(crate) fn open_descriptors() -> usize {
    // Without the descriptor of the directory itself.
    std::fs::read_dir("/proc/self/fd").expect("a /proc to look into").count() - 1
}

/// Threads of this process whose name begins with `prefix` (at most 15 bytes are visible).
pub(crate) fn threads_named(prefix: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a /proc to look into");
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.starts_with(prefix))
        .count()
}

/// For each thread with `name` in its name: the voluntary and involuntary context switches.
#[allow(dead_code)] // for tests/process alone
pub(crate) fn switches(name: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").expect("a /proc to look into").flatten() {
        let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
        if status.lines().next().is_some_and(|line| line.contains(name)) {
            let counts: String = status.lines().filter(|line| line.contains("ctxt_switches")).collect();
            all.push((task.file_name().to_string_lossy().into_owned(), counts));
        }
    }
    all.sort();
    all
}

/// Sets the number of descriptors that this process may have open; no more than the system grants.
#[cfg(unix)]
#[allow(unsafe_code)] // a limit of the process
#[allow(dead_code)] // for tests/behavior alone
pub(crate) fn limit_descriptors(soft: u64) {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives through both calls.
    let set = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits);
        limits.rlim_cur = soft.min(limits.rlim_max);
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits)
    };
    assert_eq!(set, 0, "a lower soft limit is never refused");
}
