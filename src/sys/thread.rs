//! The state of a thread of this process in the kernel: whether the thread sleeps.
//!
//! Ground rules. The state may have changed by the time it is used. Only Linux gives an answer,
//! from a file. Without `/proc`, or without a free descriptor, Linux gives none either.

#[cfg(all(target_os = "linux", not(all(test, timerqueue_loom))))]
use std::ffi::CStr;

/// A thread id of the system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OsThread(
    #[cfg_attr(any(not(target_os = "linux"), all(test, timerqueue_loom)), allow(dead_code))] i32,
);

#[cfg(all(target_os = "linux", not(all(test, timerqueue_loom))))]
impl OsThread {
    pub(crate) fn current() -> Self {
        Self(super::os::thread_id())
    }

    /// Whether the thread sleeps, so waits for more than a CPU. `None`: unknown.
    pub(crate) fn sleeps(self) -> Option<bool> {
        let path = format!("/proc/self/task/{}/stat\0", self.0);
        // `id (name) state ...`; the name has at most 15 bytes, of any value.
        let room = &mut [0; 64];
        let stat = super::os::read(CStr::from_bytes_with_nul(path.as_bytes()).ok()?, room)?;
        let name_ends = stat.iter().rposition(|&byte| byte == b')')?;
        stat.get(name_ends + 2).map(|&state| state != b'R')
    }
}

/// (All threads of a model are a single thread of the system.)
#[cfg(any(not(target_os = "linux"), all(test, timerqueue_loom)))]
impl OsThread {
    pub(crate) fn current() -> Self {
        Self(0)
    }

    pub(crate) fn sleeps(self) -> Option<bool> {
        None
    }
}

#[cfg(all(test, target_os = "linux", not(timerqueue_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_is_told_from_one_that_computes() {
        assert_eq!(OsThread::current().sleeps(), Some(false));
        assert_eq!(OsThread(i32::MAX).sleeps(), None, "no thread has this id");
        let (send, receive) = std::sync::mpsc::channel();
        let (_keep, blocked) = std::sync::mpsc::channel::<()>();
        let sleeper = std::thread::Builder::new().name(String::from("a ) R (b) S"));
        let sleeper = sleeper.spawn(move || {
            send.send(OsThread::current()).unwrap();
            let _ = blocked.recv();
        });
        let thread = receive.recv().unwrap();
        while thread.sleeps() != Some(true) {
            std::thread::yield_now();
        }
        drop(_keep);
        sleeper.unwrap().join().unwrap();
    }
}
