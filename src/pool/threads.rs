//! The roster: the threads of a pool that have not ended, and where the end of each is announced.
//!
//! Ground rules. A thread is counted from before it is started until nothing of its own code runs any more: it signs off
//! after the destructors of its thread-local values. The roster is shared, since a thread signs off after it has let go of
//! the pool. One lock, a leaf; it is held while a thread is started, so that a thread which the system has refused is never
//! seen, and no thread signs off before it is counted.

use std::io;
use std::time::{Duration, Instant};

use crate::sync::{Arc, Condvar, JoinHandle, Mutex};

#[derive(Default)]
pub(super) struct Threads {
    present: Mutex<Present>,
    ended: Condvar,
}

#[derive(Default)]
struct Present {
    alive: usize,
    /// Those of them that wait for the others to end.
    waiting: usize,
    handles: Vec<(usize, JoinHandle)>,
    /// Threads that have signed off, and have a few instructions left to run.
    signed_off: Vec<JoinHandle>,
}

impl Threads {
    /// Starts a thread, named by its serial number, unless so many are alive: a thread that is retired runs the destructors of its
    /// thread-local values, which may take long, and is a thread till then.
    pub(super) fn start(
        self: &Arc<Self>,
        name: String,
        serial: usize,
        limit: usize,
        body: impl FnOnce() + Send + 'static,
        leave: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let threads_alive = Arc::clone(self);
        let mut present = self.present.lock();
        if present.alive >= limit {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let handle = crate::sync::spawn(name, body, move || {
            leave();
            threads_alive.sign_off(serial);
        })?;
        present.alive += 1;
        present.handles.push((serial, handle));
        Ok(())
    }

    fn sign_off(&self, serial: usize) {
        let before = {
            let mut present = self.present.lock();
            present.alive -= 1;
            let before = std::mem::take(&mut present.signed_off);
            if let Some(at) = present.handles.iter().position(|(thread, _)| *thread == serial) {
                let (_, handle) = present.handles.swap_remove(at);
                present.signed_off.push(handle);
            }
            before
        };
        self.ended.notify_all();
        join(before);
    }

    pub(super) fn alive(&self) -> usize {
        self.present.lock().alive
    }

    /// Waits until all threads have ended, but for so many that are stranded. A caller that is a thread of the pool waits neither for
    /// itself nor for other threads of the pool that wait here: they would wait for each other. The number of threads left.
    pub(super) fn wait_until_ended(
        &self,
        caller_is_one: bool,
        limit: Option<Duration>,
        stranded: impl Fn() -> usize,
    ) -> usize {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut present = self.present.lock();
        present.waiting += usize::from(caller_is_one);
        self.ended.notify_all();
        // Another caller waits for all of them: their own waits end without it.
        let discounted = |present: &Present| if caller_is_one { present.waiting } else { 0 };
        while present.alive > discounted(&present) + stranded() {
            match (limit, until) {
                (Some(_), Some(until)) if self.ended.wait_until(&mut present, until).timed_out() => break,
                (Some(_), Some(_)) => {}
                _ => self.ended.wait(&mut present),
            }
        }
        let left = present.alive.saturating_sub(discounted(&present) + stranded());
        present.waiting -= usize::from(caller_is_one);
        let signed_off = std::mem::take(&mut present.signed_off);
        drop(present);
        join(signed_off);
        left
    }
}

/// These threads have run all their code: what is left takes microseconds. After this, none of their instructions runs.
fn join(threads: Vec<JoinHandle>) {
    for thread in threads {
        // A thread that panicked has ended, too.
        let _ = thread.join();
    }
}
