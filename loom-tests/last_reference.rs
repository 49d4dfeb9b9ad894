//! Models of the reference count of a timer: the handle is dropped while the tick is swept, queued
//! and run (S23, I15).
//!
//! Promise (S23): the thread with the last reference frees the timer, once; the payload of the
//! callback is dropped once, after the last callback; and no thread touches the timer afterwards.
//!
//! The bad interleavings:
//!
//! ```text
//!   a worker                             drops the handle
//!     runs the callback
//!     gives its reference back
//!                                          has the last reference: frees the timer, without
//!                                          having seen the writes of the callback
//!
//!     begins, runs the callback            counts the handle and the list, not the job: frees the timer
//! ```
//!
//! The count is a copy of the count in `src/queue/node.rs`, small enough for all interleavings;
//! `fire` and `drop_handle` keep the steps of `Firing::run`, `dispose_last`, `dispose`, `release`
//! and `free` (`src/engine`). The state word is the shipped one.
//!
//! Seen to fail with: `release` relaxed, or without its acquire load; `has_only` relaxed;
//! `drop_handle` that does not call `has_only`; `free` that does not call `has_payload`; `begin` or
//! `end` of a thread that takes itself for alone with the state word while a handle is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as Tally, Ordering::Relaxed};

use loom::sync::atomic::AtomicU32;
use loom::thread;

use crate::loom_models::explore::{Plain, explore_all};
use crate::queue::Kind;
use crate::queue::state::{Begin, Claim, Dispose, End, StateWord};
use crate::sync::{Mutex, Ordering};

struct Toy {
    kind: Kind,
    state: StateWord,
    refs: AtomicU32,
    /// Whether the timer is in the list. In the engine the lock of the shard guards the list.
    queued: Mutex<bool>,
    memory: Plain,
    callback: Plain,
    dropped: Tally,
    freed: Tally,
}

impl Toy {
    /// A timer with two references: of the handle and of the list.
    fn new(kind: Kind) -> Arc<Self> {
        Arc::new(Self {
            kind,
            state: StateWord::new(),
            refs: AtomicU32::new(2),
            queued: Mutex::new(true),
            memory: Plain::new(),
            callback: Plain::new(),
            dropped: Tally::new(0),
            freed: Tally::new(0),
        })
    }

    fn touch(&self) {
        assert_eq!(self.freed.load(Relaxed), 0, "touched after it was freed");
        self.memory.read();
    }

    fn release(&self, fewer: u32) -> bool {
        self.touch();
        if self.has_only(fewer) {
            return true;
        }
        if self.refs.fetch_sub(fewer, Ordering::Release) == fewer {
            self.refs.load(Ordering::Acquire);
            return true;
        }
        false
    }

    fn has_only(&self, refs: u32) -> bool {
        self.refs.load(Ordering::Acquire) == refs
    }

    fn drop_payload(&self) {
        self.callback.write();
        self.dropped.fetch_add(1, Relaxed);
    }

    fn free(&self) {
        if self.state.has_payload() {
            self.drop_payload();
        }
        self.memory.write();
        self.freed.fetch_add(1, Relaxed);
    }

    fn finish_disposal(&self) {
        if self.state.has_payload() {
            self.drop_payload();
        }
        assert!(!self.state.mark_dropped(), "no thread waits");
    }

    /// Sweeps the due timer: the job gets the reference of the list. True: there is a job.
    fn sweep(&self) -> bool {
        let mut queued = self.queued.lock();
        let due = std::mem::take(&mut *queued);
        if due {
            self.touch();
            assert_eq!(self.state.claim(self.kind, self.has_only(1)), Claim::Queue);
        }
        due
    }

    /// A worker runs the job, and gives the job's reference back.
    fn fire(&self) {
        self.touch();
        if self.state.begin(self.kind, self.has_only(1)) == Begin::Run {
            match self.kind {
                Kind::Overlapping => self.callback.read(),
                Kind::Exclusive => self.callback.write(),
                Kind::Once | Kind::Waker => self.drop_payload(),
            }
            match self.state.end(self.has_only(1)) {
                End::Done => {}
                End::DropPayload => self.finish_disposal(),
                End::Settle => unreachable!("a single tick is never deferred"),
            }
        }
        if self.release(1) {
            self.free();
        }
    }

    /// Detaches the handle; the timer goes on.
    fn detach(&self) {
        if self.release(1) {
            self.free();
        }
    }

    fn drop_handle(&self) {
        {
            let mut queued = self.queued.lock();
            self.touch();
            if self.has_only(1 + u32::from(*queued)) {
                *queued = false;
                drop(queued);
                self.free();
                return;
            }
        }
        let outcome = self.state.dispose();
        assert_ne!(outcome, Dispose::Already, "there is one handle");
        let queued = std::mem::take(&mut *self.queued.lock());
        if outcome == Dispose::DropPayload {
            self.finish_disposal();
        }
        if self.release(1 + u32::from(queued)) {
            self.free();
        }
    }

    fn check(&self) {
        assert_eq!((self.freed.load(Relaxed), self.dropped.load(Relaxed)), (1, 1), "freed and dropped exactly once");
    }
}

const KINDS: [Kind; 3] = [Kind::Overlapping, Kind::Exclusive, Kind::Once];

#[test]
fn the_last_reference_frees_the_timer() {
    for kind in KINDS {
        explore_all(move || {
            let toy = Toy::new(kind);
            assert!(toy.sweep());
            let worker = Arc::clone(&toy);
            let worker = thread::spawn(move || worker.fire());
            toy.drop_handle();
            worker.join().unwrap();
            toy.check();
        });
    }
}

/// A second thread sweeps the timer and runs its tick, while this thread calls `lets_go` for the
/// handle.
fn swept_while(lets_go: fn(&Toy)) {
    for kind in KINDS {
        explore_all(move || {
            let toy = Toy::new(kind);
            let sweeper = Arc::clone(&toy);
            let sweeper = thread::spawn(move || {
                if sweeper.sweep() {
                    sweeper.fire();
                }
            });
            lets_go(&toy);
            sweeper.join().unwrap();
            toy.check();
        });
    }
}

#[test]
fn a_handle_dropped_during_a_sweep_frees_the_timer_once() {
    swept_while(Toy::drop_handle);
}

/// From some point on, the thread that sweeps, begins and ends the tick is alone with the state
/// word.
#[test]
fn a_timer_is_detached_while_its_tick_is_swept_and_run() {
    swept_while(Toy::detach);
}
