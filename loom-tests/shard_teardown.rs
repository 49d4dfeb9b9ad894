//! Models of the end of a shard: the reference count finds the last thread to leave (I15).
//!
//! Promise: the last thread to leave frees the shard, exactly once, and no thread touches the shard
//! afterwards (`src/engine/shard.rs`).
//!
//! The bad interleavings:
//!
//! ```text
//!   a timer is freed                      the runtime closes
//!     lock, count out, unlock
//!                                           lock, move the count, unlock
//!     depart as well: freed too early       depart
//!
//!   a timer is freed without the lock     the runtime closes
//!     depart: the last, frees the shard
//!                                           lock: the shard is gone
//! ```
//!
//! Seen to fail with: `LocalRefs::close` without the runtime's own reference; `leave` that counts
//! out of a closed shard too; `arrive` that does not count in the shared count; `depart` relaxed
//! instead of release, or without its acquire load; a thread of the pool that drops its reference
//! to the runtime before its callback has ended.

#![allow(unsafe_code)] // the contract of `SharedRefs::depart`

use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as Tally, Ordering::Relaxed};

use loom::thread;

use super::{LocalRefs, SharedRefs};
use crate::loom_models::explore::{Plain, explore_all, explore_bounded};
use crate::sync::Mutex;

/// A shard that is marked as freed instead of freed, so a model can detect a later access.
struct Shard {
    local_refs: Mutex<LocalRefs>,
    shared_refs: SharedRefs,
    memory: Plain,
    freed: Tally,
}

impl Shard {
    /// An open shard with this many timers.
    fn with(timers: u32) -> Arc<Self> {
        let shard = Self {
            local_refs: Mutex::new(LocalRefs::new()),
            shared_refs: SharedRefs::new(),
            memory: Plain::new(),
            freed: Tally::new(0),
        };
        for _ in 0..timers {
            shard.local_refs.lock().arrive(&shard.shared_refs);
        }
        Arc::new(shard)
    }

    fn touch(&self) {
        assert_eq!(self.freed.load(Relaxed), 0, "touched after it was freed");
        self.memory.read();
    }

    fn depart(&self) {
        self.touch();
        // SAFETY: a model's shard is marked as freed, and its memory stays.
        if unsafe { SharedRefs::depart(&raw const self.shared_refs) } {
            self.memory.write();
            self.freed.fetch_add(1, Relaxed);
        }
    }

    /// Frees a timer with the lock held, as the drop of a handle does.
    fn leave(&self) {
        let counted_out = {
            let mut local_refs = self.local_refs.lock();
            self.touch();
            local_refs.leave()
        };
        if !counted_out {
            self.depart();
        }
    }

    /// The runtime closes the shard and drops its reference.
    fn close(&self) {
        self.close_only();
        self.depart();
    }

    fn close_only(&self) {
        let mut local_refs = self.local_refs.lock();
        self.touch();
        local_refs.close(&self.shared_refs);
    }

    /// Called after all references are gone.
    fn check(&self) {
        assert_eq!(self.freed.load(Relaxed), 1, "freed exactly once");
    }
}

#[test]
fn the_last_to_leave_frees_the_shard_once() {
    explore_bounded(|| {
        let shard = Shard::with(2);
        let (one, other) = (Arc::clone(&shard), Arc::clone(&shard));
        let one = thread::spawn(move || one.leave());
        let other = thread::spawn(move || other.depart());
        shard.close();
        one.join().unwrap();
        other.join().unwrap();
        shard.check();
    });
}

#[test]
fn an_open_shard_is_never_freed() {
    explore_all(|| {
        let shard = Shard::with(1);
        let timer = Arc::clone(&shard);
        // The shared count is negative for a while, or goes straight to the final value.
        let timer = thread::spawn(move || timer.depart());
        shard.local_refs.lock().arrive(&shard.shared_refs);
        shard.leave();
        shard.close();
        timer.join().unwrap();
        shard.check();
    });
}

#[test]
fn closing_twice_counts_once() {
    explore_all(|| {
        let shard = Shard::with(1);
        let again = Arc::clone(&shard);
        let again = thread::spawn(move || again.close_only());
        shard.close_only();
        again.join().unwrap();
        shard.leave();
        shard.depart();
        shard.check();
    });
}

#[test]
fn a_timer_made_while_the_runtime_closes_is_counted() {
    explore_bounded(|| {
        let shard = Shard::with(1);
        let (old, new) = (Arc::clone(&shard), Arc::clone(&shard));
        let old = thread::spawn(move || old.depart());
        // A thread that makes a timer holds the runtime. So the runtime's reference is dropped only
        // after the join of this thread.
        let new = thread::spawn(move || {
            {
                let mut local_refs = new.local_refs.lock();
                new.touch();
                local_refs.arrive(&new.shared_refs);
            }
            new
        });
        shard.close_only();
        let new = new.join().unwrap();
        let last = thread::spawn(move || new.leave());
        shard.depart();
        old.join().unwrap();
        last.join().unwrap();
        shard.check();
    });
}

/// Holds a reference to the shard until its drop.
struct Runtime(Arc<Shard>);

impl Drop for Runtime {
    fn drop(&mut self) {
        self.0.depart();
    }
}

/// The last tick of a detached timer is claimed: the timer is counted out under the lock, which is
/// held anyway. But its callback still needs the shard, since the callback may insert the timer
/// again. The thread of the pool that runs the callback holds the runtime.
#[test]
fn a_timer_counted_out_before_its_callback_has_a_shard_until_the_callback_ends() {
    explore_all(|| {
        let shard = Shard::with(1);
        let runtime = loom::sync::Arc::new(Runtime(Arc::clone(&shard)));
        let pool = loom::sync::Arc::clone(&runtime);
        let worker = thread::spawn(move || {
            let shard = &pool.0;
            let counted_out = shard.local_refs.lock().leave();
            if counted_out {
                let mut local_refs = shard.local_refs.lock();
                shard.touch();
                local_refs.arrive(&shard.shared_refs);
            }
            shard.depart();
            drop(pool);
        });
        shard.close_only();
        drop(runtime);
        worker.join().unwrap();
        shard.check();
    });
}
