//! Models of the end of a home: how the last one to leave it is found.
//!
//! Promise: a home is freed exactly once, by the last who leaves, and nobody touches it afterwards (`src/home.rs`).
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
//!     depart: last one? frees the home
//!                                           lock: the home is gone
//! ```
//!
//! Seen to fail with: the runtime's own one left out of `Residents::close`; `leave` that counts out of a closed home too;
//! `arrive` that forgets strays; `depart` relaxed instead of release; its acquire load left out; a thread of the pool that
//! lets go of the runtime before the callback that it runs has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as Tally, Ordering::Relaxed};

use loom::thread;

use super::{Residents, Strays};
use crate::loom_models::explore::{Plain, explore_all, explore_bounded};
use crate::sync::Mutex;

/// A home that is marked as freed instead of freed, so that a model can tell who touches it then.
struct Home {
    residents: Mutex<Residents>,
    strays: Strays,
    memory: Plain,
    freed: Tally,
}

impl Home {
    /// An open home with this many timers.
    fn with(timers: u32) -> Arc<Self> {
        let home = Self {
            residents: Mutex::new(Residents::new()),
            strays: Strays::new(),
            memory: Plain::new(),
            freed: Tally::new(0),
        };
        for _ in 0..timers {
            home.residents.lock().arrive(&home.strays);
        }
        Arc::new(home)
    }

    fn touch(&self) {
        assert_eq!(self.freed.load(Relaxed), 0, "touched after it was freed");
        self.memory.read();
    }

    fn depart(&self) {
        self.touch();
        // SAFETY: a model's home is marked as freed, and its memory stays.
        if unsafe { Strays::depart(&raw const self.strays) } {
            self.memory.write();
            self.freed.fetch_add(1, Relaxed);
        }
    }

    /// A timer is freed by someone who takes the lock, as when its handle is dropped.
    fn leave(&self) {
        let counted_out = {
            let mut residents = self.residents.lock();
            self.touch();
            residents.leave()
        };
        if !counted_out {
            self.depart();
        }
    }

    /// The runtime closes and lets go.
    fn close(&self) {
        self.close_only();
        self.depart();
    }

    fn close_only(&self) {
        let mut residents = self.residents.lock();
        self.touch();
        residents.close(&self.strays);
    }

    /// After all have left.
    fn check(&self) {
        assert_eq!(self.freed.load(Relaxed), 1, "freed exactly once");
    }
}

#[test]
fn the_last_to_leave_frees_the_home_once() {
    explore_bounded(|| {
        let home = Home::with(2);
        let (one, other) = (Arc::clone(&home), Arc::clone(&home));
        let one = thread::spawn(move || one.leave());
        let other = thread::spawn(move || other.depart());
        home.close();
        one.join().unwrap();
        other.join().unwrap();
        home.check();
    });
}

#[test]
fn an_open_home_is_never_freed() {
    explore_all(|| {
        let home = Home::with(1);
        let timer = Arc::clone(&home);
        // The count of strays is negative for a while, or goes straight to what is left.
        let timer = thread::spawn(move || timer.depart());
        home.residents.lock().arrive(&home.strays);
        home.leave();
        home.close();
        timer.join().unwrap();
        home.check();
    });
}

#[test]
fn closing_twice_counts_once() {
    explore_all(|| {
        let home = Home::with(1);
        let again = Arc::clone(&home);
        let again = thread::spawn(move || again.close_only());
        home.close_only();
        again.join().unwrap();
        home.leave();
        home.depart();
        home.check();
    });
}

#[test]
fn a_timer_made_while_the_runtime_closes_is_counted() {
    explore_bounded(|| {
        let home = Home::with(1);
        let (old, new) = (Arc::clone(&home), Arc::clone(&home));
        let old = thread::spawn(move || old.depart());
        // Whoever makes a timer holds the runtime, so the home is let go only after this is joined.
        let new = thread::spawn(move || {
            {
                let mut residents = new.residents.lock();
                new.touch();
                residents.arrive(&new.strays);
            }
            new
        });
        home.close_only();
        let new = new.join().unwrap();
        let last = thread::spawn(move || new.leave());
        home.depart();
        old.join().unwrap();
        last.join().unwrap();
        home.check();
    });
}

/// Lets go of the home in the end.
struct Runtime(Arc<Home>);

impl Drop for Runtime {
    fn drop(&mut self) {
        self.0.depart();
    }
}

/// The last tick of a detached timer is claimed: it is counted out with the lock that is held anyway, and needs the home all the same
/// until its callback has ended, which may file it again. The thread of the pool that runs it holds the runtime.
#[test]
fn a_timer_that_was_counted_out_before_its_callback_has_a_home_until_that_ends() {
    explore_all(|| {
        let home = Home::with(1);
        let runtime = loom::sync::Arc::new(Runtime(Arc::clone(&home)));
        let pool = loom::sync::Arc::clone(&runtime);
        let worker = thread::spawn(move || {
            let home = &pool.0;
            let counted_out = home.residents.lock().leave();
            if counted_out {
                let mut residents = home.residents.lock();
                home.touch();
                residents.arrive(&home.strays);
            }
            home.depart();
            drop(pool);
        });
        home.close_only();
        drop(runtime);
        worker.join().unwrap();
        home.check();
    });
}
