//! Models of a shared alarm: shards that set it, against each other and against the poller that
//! takes it (I7, S27).
//!
//! Promise (I7): a shard whose next instant is in the shared alarm is swept when the instant has
//! come. So with the lock free, an alarm is at or before each instant, or a poller has taken the
//! instant and sweeps the shard. And one poller gets the shard.
//!
//! The bad interleavings:
//!
//! ```text
//!   one shard                             another shard, or the poller
//!     enters the later instant
//!                                           enters the earlier instant
//!                                           sets the alarm to it
//!     sets the alarm to the later
//!
//!                                           takes what has come, sees the earliest of the rest
//!     enters an earlier instant
//!     sets the alarm to it
//!                                           sets the alarm to the rest
//! ```
//!
//! [`SharedAlarm`] is real; the two alarms of the system are toys.
//!
//! Seen to fail with: the alarm set after the lock is released, in `arm` and in `take`; a `take`
//! that reads the instants in one section and takes them back in another; an `arm` that disarms the
//! alarms of a shard that leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use loom::thread;

use crate::alarm::SharedAlarm;
use crate::loom_models::explore::explore_all;
use crate::sync::AtomicU64;
use crate::time::NEVER;

const FIRST: u64 = 10;
const SECOND: u64 = 20;
/// The alarm that is set first.
const EXPIRED: usize = 1;

struct Toy {
    shared: SharedAlarm,
    /// The instants to which the system's alarms are set; [`NEVER`]: expired.
    alarms: [AtomicU64; 2],
    /// By shard: how often a poller got it.
    taken: [AtomicU32; 3],
}

impl Toy {
    /// The first shard's instant has come, and its alarm has expired.
    fn new() -> Arc<Self> {
        let taken = [const { AtomicU32::new(0) }; 3];
        let alarms = [const { NEVER }; 2].map(AtomicU64::new);
        let toy = Self { shared: SharedAlarm::new(3, 2), alarms, taken };
        toy.arm(0, FIRST);
        assert_eq!(toy.alarms[EXPIRED].load(Relaxed), FIRST);
        toy.alarms[EXPIRED].store(NEVER, Relaxed);
        Arc::new(toy)
    }

    fn arm(&self, shard: usize, at: u64) {
        self.shared.arm(shard, at, &|alarm, at| self.alarms[alarm].store(at, Relaxed));
    }

    /// A poller was told of the expiry.
    fn take(&self, now: u64) {
        let set = |alarm: usize, at| self.alarms[alarm].store(at, Relaxed);
        let mut due = |shard: usize| _ = self.taken[shard].fetch_add(1, Relaxed);
        assert!(!self.shared.take(EXPIRED, &|| now, &mut due, &set));
    }

    /// The shard is swept by a poller, or an alarm is at or before its instant.
    fn is_safe(&self, shard: usize, at: u64) -> bool {
        self.taken[shard].load(Relaxed) == 1 || self.alarms.iter().any(|alarm| alarm.load(Relaxed) <= at)
    }
}

fn spawn(toy: &Arc<Toy>, action: impl FnOnce(&Toy) + 'static) -> thread::JoinHandle<()> {
    let toy = Arc::clone(toy);
    thread::spawn(move || action(&toy))
}

#[test]
fn of_two_shards_that_set_the_alarm_at_once_the_earlier_stands() {
    explore_all(|| {
        let toy = Toy::new();
        toy.take(FIRST);
        let other = spawn(&toy, |toy| toy.arm(1, SECOND));
        toy.arm(2, FIRST);
        other.join().unwrap();
        assert!(toy.is_safe(1, SECOND) && toy.is_safe(2, FIRST));
    });
}

#[test]
fn an_instant_entered_beside_the_poller_is_taken_or_has_the_alarm() {
    explore_all(|| {
        let toy = Toy::new();
        toy.arm(1, SECOND);
        let poller = spawn(&toy, |toy| toy.take(FIRST));
        toy.arm(2, FIRST + 1);
        poller.join().unwrap();
        assert_eq!(toy.taken[0].load(Relaxed), 1);
        assert!(toy.is_safe(1, SECOND) && toy.is_safe(2, FIRST + 1));
    });
}

#[test]
fn one_of_two_pollers_gets_the_shard_and_the_rest_keeps_the_alarm() {
    explore_all(|| {
        let toy = Toy::new();
        toy.arm(1, SECOND);
        let poller = spawn(&toy, |toy| toy.take(FIRST));
        toy.take(FIRST);
        poller.join().unwrap();
        assert_eq!([0, 1, 2].map(|shard| toy.taken[shard].load(Relaxed)), [1, 0, 0]);
        assert!(toy.is_safe(1, SECOND));
    });
}

#[test]
fn a_shard_that_leaves_takes_no_other_with_it() {
    explore_all(|| {
        let toy = Toy::new();
        toy.take(FIRST);
        toy.arm(1, SECOND);
        let leaving = spawn(&toy, |toy| toy.arm(1, NEVER));
        toy.arm(2, SECOND);
        leaving.join().unwrap();
        assert!(toy.is_safe(2, SECOND));
    });
}
