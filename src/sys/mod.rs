//! The interface to the operating system, except for the alarms: CPUs, threads, forks, memory.
//!
//! Ground rules. The rest of the crate sees safe functions and types. No function here takes a lock
//! of the crate.

pub(crate) mod cpu;
pub(crate) mod fork;
pub(crate) mod os;
pub(crate) mod thread;
pub(crate) mod topology;

/// For tests of counts that end the process before they wrap: runs `code` in a process of its own,
/// and checks that the code aborts it. `test`: the path of the calling test.
#[cfg(all(test, not(timerqueue_loom)))]
pub(crate) fn assert_aborts(test: &str, code: impl FnOnce()) {
    const CHILD: &str = "TIMERQUEUE_TEST_ABORTS";
    if std::env::var_os(CHILD).is_some() {
        code();
        std::process::exit(0);
    }
    let own = std::env::current_exe().expect("a test knows its own binary");
    let mut child = std::process::Command::new(own);
    child.args([test, "--exact"]).env(CHILD, "1").stdin(std::process::Stdio::null());
    let status = child.output().expect("the test binary starts again").status;
    assert!(!status.success(), "{status}");
    #[cfg(unix)]
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGABRT), "{status}");
}
