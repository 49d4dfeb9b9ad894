//! The living threads of a pool, and the announcement of their ends.
//!
//! Ground rules. A thread is counted from before its start until none of its code runs any more: a
//! thread signs off after the destructors of its thread-local values. [`Threads`] is shared, since
//! a thread signs off after it has dropped the pool. A single leaf lock, held while a thread is
//! started: so no refused thread is ever counted, and no thread signs off before it is counted.

use std::io;
use std::time::{Duration, Instant};

use crate::sync::{Arc, Body, JoinHandle, Mutex, Thread, current, park_until};

#[derive(Default)]
pub(super) struct Threads(Mutex<Present>);

#[derive(Default)]
struct Present {
    alive: usize,
    /// The threads of the pool that wait for the end of the other threads.
    waiting: usize,
    /// Threads that wait for the next change.
    parked: Vec<Thread>,
    handles: Vec<(usize, JoinHandle)>,
    /// The last thread that has signed off, with a few instructions left to run.
    signed_off: Option<JoinHandle>,
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
        let mut present = self.0.lock();
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
            let present = &mut *self.0.lock();
            present.alive -= 1;
            let at = present.handles.iter().position(|(thread, _)| *thread == serial);
            at.and_then(|at| present.signed_off.replace(present.handles.swap_remove(at).1))
        };
        self.unpark();
        join(before);
    }

    /// Something has changed for which threads wait.
    #[inline(never)] // one copy
    fn unpark(&self) {
        let parked = std::mem::take(&mut self.0.lock().parked);
        parked.iter().for_each(Thread::unpark);
    }

    pub(super) fn alive(&self) -> usize {
        self.0.lock().alive
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
        let own = usize::from(caller_is_one);
        self.0.lock().waiting += own;
        self.unpark();
        let mut in_time = true;
        let mut present = self.0.lock();
        let left = loop {
            // A caller outside the pool waits for all threads: their own waits end first.
            let left = present.alive.saturating_sub(own * present.waiting + stranded());
            if left == 0 || !in_time {
                break left;
            }
            present.parked.push(current());
            drop(present);
            in_time = park_until(until);
            present = self.0.lock();
        };
        present.waiting -= own;
        let signed_off = present.signed_off.take();
        drop(present);
        join(signed_off);
        left
    }
}

/// This thread has run all its code, and ends within microseconds. After this call none of its
/// instructions runs.
#[inline(never)] // one copy
fn join(thread: Option<JoinHandle>) {
    // A thread that panicked has ended as well.
    let _ = thread.map(JoinHandle::join);
}
