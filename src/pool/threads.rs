//! The living threads of a pool, and the announcement of their ends.
//!
//! Ground rules. A thread is counted from before its start until none of its code runs any more: a
//! thread signs off after the destructors of its thread-local values. [`Threads`] is shared, since
//! a thread signs off after it has dropped the pool. A single leaf lock, held while a thread is
//! started: so no refused thread is ever counted, and no thread signs off before it is counted.

use std::io;
use std::time::{Duration, Instant};

use crate::sync::{Arc, Body, Condvar, JoinHandle, Mutex};

#[derive(Default)]
pub(super) struct Threads {
    present: Mutex<Present>,
    ended: Condvar,
}

#[derive(Default)]
struct Present {
    alive: usize,
    /// The threads of the pool that wait for the end of the other threads.
    waiting: usize,
    handles: Vec<(usize, JoinHandle)>,
    /// Threads that have signed off, with a few instructions left to run.
    signed_off: Vec<JoinHandle>,
}

impl Threads {
    /// Starts a thread, numbered `serial`, unless `limit` threads are alive. A thread that runs the
    /// destructors of its thread-local values is still alive.
    pub(super) fn start(
        self: &Arc<Self>,
        name: String,
        serial: usize,
        limit: usize,
        body: Body,
        leave: fn(),
    ) -> io::Result<()> {
        let threads_alive = Arc::clone(self);
        let mut present = self.present.lock();
        if present.alive >= limit {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let last = Box::new(move || {
            leave();
            threads_alive.sign_off(serial);
        });
        let handle = crate::sync::spawn(name, body, last)?;
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

    /// Waits until all threads have ended, except the stranded threads. A caller that is a thread
    /// of the pool does not wait for threads of the pool that wait here, itself included, since
    /// these would wait for each other. Returns the number of threads left.
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
        // A caller outside the pool waits for all threads: their own waits end first.
        let discounted = |present: &Present| if caller_is_one { present.waiting } else { 0 };
        while present.alive > discounted(&present) + stranded() {
            match until {
                Some(until) if self.ended.wait_until(&mut present, until).timed_out() => break,
                Some(_) => {}
                None => self.ended.wait(&mut present),
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

/// These threads have run all their code, and end within microseconds. After this call none of
/// their instructions runs.
fn join(threads: Vec<JoinHandle>) {
    for thread in threads {
        // A thread that panicked has ended as well.
        let _ = thread.join();
    }
}
