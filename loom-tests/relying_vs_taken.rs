//! Models of a shard that relies on the alarm of another shard, against the poller that takes that
//! alarm (S27).
//!
//! Promise (S27): a shard that relies on an alarm has set its own alarm later, so nothing is lost
//! whatever a poller sees. The models say what the words do on top: after all sweeps the shard is
//! entered with the point of its last sweep, one poller gets the shard, and a shard that relies on
//! none is given to no poller.
//!
//! The bad interleavings:
//!
//! ```text
//!   poller that takes the alarm           the shard is swept by another thread
//!     reads the bit, and point 1
//!                                           lock, enter point 2, unlock
//!     takes point 2 out, and sweeps:
//!     too early, a sweep for nothing
//!
//!     reads point 1                         (a second poller) reads point 1
//!     takes it                              takes it: two sweeps
//! ```
//!
//! [`SharedAlarms`] and [`Share`] are real; the lock of the shard is a toy's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use loom::thread;

use super::{FALLBACK_NS, POINT_NS, Share, SharedAlarms};
use crate::loom_models::explore::explore_all;
use crate::sync::Mutex;

const FIRST: u64 = 10 * POINT_NS;
const SECOND: u64 = 15 * POINT_NS;
const OTHER: usize = 1;

struct Toy {
    alarms: SharedAlarms,
    /// The part of [`OTHER`].
    share: Mutex<Share>,
    /// Sweeps of the shard by pollers.
    taken: AtomicU32,
}

impl Toy {
    /// A shard that relies on the alarm of the first point; the second point has a holder too.
    fn new() -> Arc<Self> {
        let toy = Self { alarms: SharedAlarms::new(3), share: Mutex::new(Share::new()), taken: AtomicU32::new(0) };
        assert_eq!(Share::new().aim(&toy.alarms, 0, FIRST, 1), FIRST);
        assert_eq!(Share::new().aim(&toy.alarms, 2, SECOND, 1), SECOND);
        toy.sweep(FIRST, 1);
        Arc::new(toy)
    }

    /// The shard is swept; its next deadline is `next`.
    fn sweep(&self, next: u64, now: u64) -> u64 {
        self.share.lock().aim(&self.alarms, OTHER, next, now)
    }

    /// A poller takes an alarm at `now`; the next deadline of a shard that it sweeps is `next`.
    fn poll(&self, now: u64, next: u64) {
        self.alarms.take_due(
            || now,
            |shard| {
                assert_eq!(shard, OTHER);
                self.taken.fetch_add(1, Relaxed);
                self.sweep(next, now);
            },
        );
    }

    fn take(&self, now: u64) -> Vec<usize> {
        let mut taken = Vec::new();
        self.alarms.take_due(|| now, |shard| taken.push(shard));
        taken
    }
}

fn spawn(toy: &Arc<Toy>, action: impl FnOnce(&Toy) + 'static) -> thread::JoinHandle<()> {
    let toy = Arc::clone(toy);
    thread::spawn(move || action(&toy))
}

#[test]
fn a_shard_swept_beside_the_poller_is_entered_with_its_last_point() {
    explore_all(|| {
        let toy = Toy::new();
        let poller = spawn(&toy, |toy| toy.poll(FIRST, SECOND));
        assert_eq!(toy.sweep(SECOND, FIRST), SECOND + FALLBACK_NS);
        poller.join().unwrap();
        assert!(toy.share.lock().relies_on(SECOND));
        assert!(toy.taken.load(Relaxed) <= 1);
        assert_eq!(toy.take(FIRST), [], "not before its point");
        assert_eq!(toy.take(SECOND), [OTHER]);
    });
}

#[test]
fn one_of_two_pollers_gets_the_shard() {
    explore_all(|| {
        let toy = Toy::new();
        let poller = spawn(&toy, |toy| toy.poll(FIRST, SECOND));
        toy.poll(FIRST, SECOND);
        poller.join().unwrap();
        assert_eq!(toy.taken.load(Relaxed), 1);
        assert_eq!(toy.take(SECOND), [OTHER]);
    });
}

#[test]
fn a_shard_that_relies_on_none_any_more_is_given_to_no_poller() {
    explore_all(|| {
        let toy = Toy::new();
        let off = FIRST + 1;
        let poller = spawn(&toy, move |toy| toy.poll(FIRST, off));
        assert_eq!(toy.sweep(off, FIRST), off);
        poller.join().unwrap();
        assert_eq!(toy.take(SECOND), []);
        assert_eq!(toy.sweep(SECOND, FIRST), SECOND + FALLBACK_NS);
        assert_eq!(toy.take(SECOND), [OTHER], "entered anew");
    });
}
