//! Models of the rundown of descriptors: uses against the close (S33).
//!
//! Promise (`src/alarm/rundown.rs`): no use runs after the close, and the descriptors are closed
//! once, at the latest when the last use has ended.
//!
//! The bad interleavings:
//!
//! ```text
//!   uses                                 closes
//!     not closing
//!                                          closing; no use is under way: closes the number
//!     makes its call with the number, which another file may have by now
//!
//!   uses                                 closes
//!                                          closing; a use is under way
//!     counts itself out
//!                                          leaves it to the use: none closes
//! ```
//!
//! Seen to fail with: `during` that looks at the bit before it counts itself in; `close` that
//! leaves it to the uses in any case; `is_last` that marks nothing (closed twice); the subtraction
//! relaxed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as Tally, Ordering::Relaxed};

use loom::thread;

use super::Rundown;
use crate::loom_models::explore::{Plain, explore_all, explore_bounded};

struct Toy {
    rundown: Rundown,
    /// Written by the close, read by the uses.
    number: Plain,
    closed: Tally,
}

impl Toy {
    fn new() -> Arc<Self> {
        Arc::new(Self { rundown: Rundown::new(), number: Plain::new(), closed: Tally::new(0) })
    }

    fn close(&self) {
        self.number.write();
        self.closed.fetch_add(1, Relaxed);
    }

    fn during(&self) {
        let call = || {
            assert_eq!(self.closed.load(Relaxed), 0, "used after the close");
            self.number.read();
        };
        self.rundown.during(call, || self.close());
    }

    fn release(&self) {
        if self.rundown.close() {
            self.close();
        }
    }
}

#[test]
fn descriptors_are_closed_once_and_not_in_use() {
    explore_all(|| {
        let toy = Toy::new();
        let user = thread::spawn({
            let toy = Arc::clone(&toy);
            move || (0..2).for_each(|_| toy.during())
        });
        toy.release();
        user.join().unwrap();
        toy.during();
        toy.release();
        assert_eq!(toy.closed.load(Relaxed), 1);
    });
}

#[test]
fn the_last_of_two_uses_closes() {
    explore_bounded(|| {
        let toy = Toy::new();
        let users = [0; 2].map(|_| {
            let toy = Arc::clone(&toy);
            thread::spawn(move || toy.during())
        });
        toy.release();
        users.into_iter().for_each(|user| user.join().unwrap());
        assert_eq!(toy.closed.load(Relaxed), 1);
    });
}
