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

use super::STALL_CHECK;
use crate::alarm::clock::MODEL_CLOCK;
use crate::alarm::{Backend, Event, OFF, SystemClock};
use crate::loom_models::explore::{explore_all, explore_bounded};
use crate::pool::jobs::Job;
use crate::pool::worker::WorkerLocal;
use crate::pool::{Batch, Driver, Pool, PoolConfig, Ran, Swept, Tick, Timing};
use crate::sync::{AtomicBool, Mutex, Ordering, fence};

struct Toy {
    pool: Pool<Self>,
    mark: Mutex<bool>,
}

/// Whether the stall check is armed.
#[derive(Default)]
struct Alarms(AtomicBool);

impl Toy {
    fn new() -> Arc<Self> {
        MODEL_CLOCK.set(Some(0));
        let config = PoolConfig {
            workers: 2,
            max_threads: 2,
            keep_alive: Duration::ZERO,
            name: String::new(),
            pin_to: Vec::new(),
            mask: None,
            may_open_files: true,
            timing: Timing::MODEL,
        };
        let pool = Pool::new(config, Box::default(), SystemClock::MONOTONIC);
        Arc::new(Self { pool, mark: Mutex::new(false) })
    }

    /// A sweep by this worker; the new alarm comes soon, or late.
    fn sweeps(&self, local: &WorkerLocal<&'static str>, soon: bool) {
        let mut mark = self.mark.lock();
        let taken = std::mem::replace(&mut *mark, soon);
        drop(mark);
        local.note(0, Swept { more: false, took_cover: taken, gives_cover: soon });
    }

    /// A worker with a job in its deque, whose callback blocks from now on.
    fn demands(&self, local: &WorkerLocal<&'static str>) {
        self.pool.push_local(local, Job::One { tick: "waits", due: 0 });
        fence(Ordering::SeqCst);
        self.pool.stall_check.demand(self, Some(local), STALL_CHECK);
    }

    /// As `poll` and `wait` of a worker do. Returns whether the poller has looked and found a job.
    fn polls(&self) -> bool {
        let local = self.pool.join();
        self.sweeps(&local, false);
        if !self.pool.stall_check.took_cover(&local) {
            return false;
        }
        self.pool.stall_check.has_come();
        self.pool.has_work(&local)
    }

    fn check(&self, seen: bool) {
        let armed = &self.pool.alarms.0;
        let comes = self.pool.stall_check.is_demanded() && (armed.load(Ordering::Relaxed) || *self.mark.lock());
        assert!(seen || comes, "no look is to come");
    }
}

impl Backend for Alarms {
    fn arm(&self, _: usize, _: u64) {}

    fn arm_stall_check(&self, after: Duration) {
        self.0.store(after != OFF, Ordering::Relaxed);
    }

    fn wait(&self, _: &mut dyn FnMut(Event)) {}

    fn wake(&self) {}
}

impl Driver for Toy {
    type Tick = &'static str;
    type Alarms = Box<Alarms>;

    fn pool(&self) -> &Pool<Self> {
        &self.pool
    }

    fn sweep(&self, _: usize, _: &mut Batch<&'static str>) -> Swept {
        Swept::default()
    }

    fn is_covered(&self, _: usize) -> bool {
        *self.mark.lock()
    }
}

impl Tick<Toy> for &'static str {
    fn run(self, _: &Toy) -> Ran {
        Ran::Callback
    }

    fn discard(self, _: &Toy) {}
}

#[test]
fn a_poller_that_takes_the_alarm_sees_the_job_or_the_demand_arms_the_stall_check() {
    explore_all(|| {
        let toy = Toy::new();
        let poller = {
            let toy = Arc::clone(&toy);
            thread::spawn(move || toy.polls())
        };
        let local = toy.pool.join();
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
                let local = toy.pool.join();
                toy.sweeps(&local, false);
                toy.pool.stall_check.replace_cover(toy.as_ref(), &local);
            })
        };
        let local = toy.pool.join();
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
                let local = toy.pool.join();
                toy.demands(&local);
                local.deque.len()
            })
        };
        let local = toy.pool.join();
        toy.sweeps(&local, true);
        toy.demands(&local);
        let seen = poller.join().unwrap();
        assert_eq!(other.join().unwrap(), 1);
        toy.check(seen);
    });
}
