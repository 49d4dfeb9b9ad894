//! What the system knows of one thread of this process: whether it sleeps.
//!
//! Ground rules. An answer is true for the moment before. Linux tells; elsewhere, and where `/proc` is not mounted or no
//! descriptor is to be had, there is no answer.

/// Names a thread to the system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OsThread(
    #[cfg_attr(any(not(target_os = "linux"), all(test, timerqueue_loom)), allow(dead_code))] i32,
);

#[cfg(all(target_os = "linux", not(all(test, timerqueue_loom))))]
impl OsThread {
    pub(crate) fn current() -> Self {
        Self(super::os::thread_id())
    }

    /// Whether it waits for something other than a processor.
    pub(crate) fn sleeps(self) -> Option<bool> {
        use std::io::Read;

        // `number (name) state ...`; a name has 15 bytes at most, and may contain any of them.
        let mut stat = [0; 64];
        let read = std::fs::File::open(format!("/proc/self/task/{}/stat", self.0)).ok()?.read(&mut stat).ok()?;
        let name_ends = stat[..read].iter().rposition(|&byte| byte == b')')?;
        stat[..read].get(name_ends + 2).map(|&state| state != b'R')
    }
}

/// (The threads of a model are one to the system.)
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
        assert_eq!(OsThread(i32::MAX).sleeps(), None, "there is none of that number");
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
