//! Models of a demand for the stall check that the alarm of a queue covers, beside a thread that
//! takes or replaces this alarm (S31, I14).
//!
//! Promise (S31): a job that waits in the deque of a thread whose callback blocks is seen by a look
//! that comes without the help of that thread. So a thread that has taken the mark looks and sees
//! the job, or the stall check is armed, or the mark is still there.
//!
//! The bad interleaving:
//!
//! ```text
//!   the worker with the job              the poller that takes the alarm
//!     sets the mark
//!     publishes the job
//!                                          takes the mark
//!                                          sees no demand: rests
//!     demands, relying on the mark
//!     its callback blocks                  the job waits for ever
//! ```
//!
//! The pool is real. The queue is a toy: a mark under a lock. Loom does not know crossbeam's
//! deques, so pushing and looking are single steps in a total order here.
//!
//! Seen to fail with: a demand that does not read the mark again; a demand that reads the mark
//! before it is written; a thread that replaces the alarm and arms nothing; a poller that does not
//! look.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;

use super::{Cover, Demanded, STALL_CHECK};
use crate::alarm::{Event, OFF};
use crate::loom_models::explore::{explore_all, explore_bounded};
use crate::pool::{Driver, LocalQueue, Pool, PoolConfig};
use crate::sync::{AtomicBool, Mutex, Ordering, fence};

struct Toy {
    pool: Pool<&'static str>,
    mark: Mutex<bool>,
    armed: AtomicBool,
}

impl Toy {
    fn new() -> Arc<Self> {
        let pool = Pool::new(PoolConfig {
            workers: 2,
            max_threads: 2,
            keep_alive: Duration::ZERO,
            name: String::new(),
            pin_to: Vec::new(),
            mask: None,
        });
        Arc::new(Self { pool, mark: Mutex::new(false), armed: AtomicBool::new(false) })
    }

    /// A sweep by this worker; the new alarm comes soon, or late.
    fn sweeps(&self, local: &LocalQueue<&'static str>, soon: bool) {
        let mut mark = self.mark.lock();
        let taken = std::mem::replace(&mut *mark, soon);
        drop(mark);
        local.cover(0, Cover { taken, given: soon });
    }

    /// A worker with a job in its deque, whose callback blocks from now on.
    fn demands(&self, local: &LocalQueue<&'static str>) {
        self.pool.push_local(local, "waits");
        fence(Ordering::SeqCst);
        self.pool.demand_stall_check(self, Some(local), STALL_CHECK);
    }

    /// As `poll` and `wait` of a worker do. Returns whether the poller has looked and found a job.
    fn polls(&self) -> bool {
        let local = self.pool.join(0);
        self.sweeps(&local, false);
        if !self.pool.took_cover(&local) {
            return false;
        }
        self.pool.stall_check_has_come();
        self.pool.has_work(&local)
    }

    fn check(&self, seen: bool) {
        let demanded = self.pool.demanded.get() != Demanded::NO;
        let comes = demanded && (self.armed.load(Ordering::Relaxed) || *self.mark.lock());
        assert!(seen || comes, "no look is to come");
    }
}

impl Driver for Toy {
    type Job = &'static str;

    fn pool(&self) -> &Pool<&'static str> {
        &self.pool
    }

    fn wait(&self, _: impl FnMut(Event)) {}

    fn now(&self) -> u64 {
        0
    }

    fn wake(&self) {}

    fn arm_stall_check(&self, after: Duration) {
        self.armed.store(after != OFF, Ordering::Relaxed);
    }

    fn sweep(&self, _: usize, _: &LocalQueue<&'static str>) -> Option<&'static str> {
        None
    }

    fn is_covered(&self, _: usize) -> bool {
        *self.mark.lock()
    }

    fn discard(&self, _: &'static str) {}

    fn run(&self, _: &'static str, _: &LocalQueue<&'static str>) -> bool {
        true
    }
}

#[test]
fn a_poller_that_takes_the_alarm_sees_the_job_or_the_demand_arms_the_stall_check() {
    explore_all(|| {
        let toy = Toy::new();
        let poller = {
            let toy = Arc::clone(&toy);
            thread::spawn(move || toy.polls())
        };
        let local = toy.pool.join(0);
        toy.sweeps(&local, true);
        toy.demands(&local);
        let seen = poller.join().unwrap();
        toy.check(seen);
    });
}

/// A third thread has replaced the alarm without a look: it goes on with a sweep.
#[test]
fn a_thread_that_replaces_the_alarm_arms_the_stall_check() {
    explore_all(|| {
        let toy = Toy::new();
        let other = {
            let toy = Arc::clone(&toy);
            thread::spawn(move || {
                let local = toy.pool.join(0);
                toy.sweeps(&local, false);
                toy.pool.replace_cover(toy.as_ref(), &local);
            })
        };
        let local = toy.pool.join(0);
        toy.sweeps(&local, true);
        toy.demands(&local);
        other.join().unwrap();
        toy.check(false);
    });
}

/// The demands of two workers rely on one alarm.
#[test]
fn a_second_demand_relies_on_the_same_alarm() {
    explore_bounded(|| {
        let toy = Toy::new();
        let poller = {
            let toy = Arc::clone(&toy);
            thread::spawn(move || toy.polls())
        };
        let other = {
            let toy = Arc::clone(&toy);
            thread::spawn(move || {
                let local = toy.pool.join(0);
                toy.demands(&local);
                local.deque.len()
            })
        };
        let local = toy.pool.join(0);
        toy.sweeps(&local, true);
        toy.demands(&local);
        let seen = poller.join().unwrap();
        assert_eq!(other.join().unwrap(), 1);
        toy.check(seen);
    });
}
