//! Models of a batch that several threads run: each tick is run or discarded, by one thread, also
//! beside a callback that blocks (S31, I19).
//!
//! Promise (S31, S33): while ticks of a batch are left, the batch is in a queue of the pool, before
//! any of its callbacks runs.
//!
//! The bad interleavings:
//!
//! ```text
//!   a worker                             another worker, or the thread that stops the pool
//!     takes tick 0
//!                                          finds no job in any queue
//!     runs tick 0, which blocks
//!     (the batch was not put back)         ticks 1 and 2 are lost
//!
//!     sees place 1                         sees place 1
//!     takes tick 1                         takes tick 1: two callbacks
//! ```
//!
//! The pool runs its own code; its alarms are a toy. Loom knows neither crossbeam's deques nor the
//! inbox, so a push or a look there is a single step together with the preceding operation.
//!
//! A callback that blocks is one that unwinds: its worker does nothing any more, and a batch that
//! no queue has is dropped with the ticks that are left.
//!
//! Seen to fail with: `take` by a load and a store; a `run_batch` that puts the batch back not at
//! all, or not where a single tick is left; one that does not look at `stopping` after putting the
//! batch back.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as Tally, Ordering::Relaxed};
use std::time::Duration;

use loom::thread;

use crate::alarm::clock::MODEL_CLOCK;
use crate::alarm::{Backend, Event, SystemClock};
use crate::loom_models::explore::{explore_all, explore_fewest};
use crate::one_drop::OneDrop;
use crate::pool::jobs::{Batch, run_jobs};
use crate::pool::{Driver, Pool, PoolConfig, Ran, Swept, Tick, Timing, WorkerLocal};

const TICKS: usize = 3;

crate::sync::thread_local! {
    /// The number of callbacks that return before one blocks.
    static RETURN: Cell<usize> = const { Cell::new(usize::MAX) };
}

struct Toy {
    pool: Pool<Self>,
    /// How often each tick was run or discarded.
    taken: [Tally; TICKS],
}

struct NoAlarms;

impl Backend for NoAlarms {
    fn arm(&self, _: usize, _: u64) {}

    fn arm_stall_check(&self, _: Duration) {}

    fn wait(&self, _: &mut dyn FnMut(Event)) {}

    fn wake(&self) {}
}

impl Driver for Toy {
    type Tick = usize;
    type Alarms = Box<NoAlarms>;

    fn pool(&self) -> &Pool<Self> {
        &self.pool
    }

    fn sweep(&self, _: usize, _: &mut Batch<usize>) -> Swept {
        unreachable!("no alarm goes off")
    }
}

impl Tick<Toy> for usize {
    fn run(self, toy: &Toy) -> Ran {
        self.discard(toy);
        let blocks = RETURN.with(|left| left.replace(left.get().wrapping_sub(1)) == 0);
        if blocks {
            resume_unwind(Box::new(()));
        }
        Ran::Callback
    }

    fn discard(self, toy: &Toy) {
        toy.taken[self].fetch_add(1, Relaxed);
    }
}

impl Toy {
    /// A pool with a batch among its jobs.
    fn new() -> Arc<Self> {
        MODEL_CLOCK.set(Some(0));
        let config = PoolConfig {
            workers: 2,
            max_threads: 2,
            keep_alive: Duration::ZERO,
            name: String::new(),
            pin_to: Vec::new(),
            mask: None,
            may_open_files: false,
            timing: Timing::MODEL,
        };
        let pool = Pool::new(config, Box::new(NoAlarms), SystemClock::MONOTONIC);
        let mut batch = Batch::new();
        (0..TICKS).for_each(|tick| batch.push(tick, 0));
        pool.inbox.push(batch.take_job(&mut Vec::new()).expect("ticks"));
        Arc::new(Self { pool, taken: [const { Tally::new(0) }; TICKS] })
    }

    /// A worker runs all jobs that it finds, or up to the callback that blocks, after so many.
    /// Returns what others may steal from.
    fn work(&self, local: OneDrop<WorkerLocal<usize>>, returns: usize) -> OneDrop<WorkerLocal<usize>> {
        RETURN.with(|left| left.set(returns));
        let ran = catch_unwind(AssertUnwindSafe(|| run_jobs(self, &local, None)));
        if ran.is_ok() && self.pool.is_stopping() {
            self.pool.discard_all(self); // as a worker that ends
        }
        local
    }

    /// Each tick has been run or discarded, or a further worker finds it.
    fn check(&self, further_worker: bool) {
        if further_worker {
            drop(self.work(self.pool.join(), usize::MAX));
        }
        let taken: Vec<u32> = self.taken.iter().map(|tick| tick.load(Relaxed)).collect();
        assert_eq!(taken, [1; TICKS], "each tick is taken once");
        MODEL_CLOCK.set(None);
    }
}

fn spawn(toy: &Arc<Toy>, returns: usize) -> thread::JoinHandle<OneDrop<WorkerLocal<usize>>> {
    let (toy, local) = (Arc::clone(toy), toy.pool.join());
    thread::spawn(move || toy.work(local, returns))
}

#[test]
fn the_rest_of_a_batch_is_found_beside_a_callback_that_blocks() {
    for returns in [0, 1] {
        explore_all(move || {
            let toy = Toy::new();
            let local = toy.pool.join();
            let worker = spawn(&toy, returns);
            let locals = (toy.work(local, 0), worker.join().unwrap());
            toy.check(true);
            drop(locals);
        });
    }
}

#[test]
fn three_threads_take_each_tick_of_a_batch_once() {
    explore_fewest(|| {
        let toy = Toy::new();
        let local = toy.pool.join();
        let (one, other) = (spawn(&toy, usize::MAX), spawn(&toy, usize::MAX));
        let locals = (toy.work(local, usize::MAX), one.join().unwrap(), other.join().unwrap());
        toy.check(true);
        drop(locals);
    });
}

/// The pool stops while a worker takes up a batch; the callback of the first tick blocks.
#[test]
fn no_tick_of_a_batch_is_left_when_the_pool_stops() {
    explore_all(|| {
        let toy = Toy::new();
        let worker = spawn(&toy, 0);
        Pool::stop(&*toy);
        let local = worker.join().unwrap();
        toy.check(false);
        drop(local);
    });
}
