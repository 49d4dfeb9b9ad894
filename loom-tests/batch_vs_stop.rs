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
//! The batch is real. The deque is a toy, and `run_batch` keeps the steps of the function of the
//! same name (`src/pool/jobs.rs`).
//!
//! Seen to fail with: `take` by a load and a store; a batch that is put back after the callback, or
//! not at all by the second thread; a worker that does not look at `stopping` after putting the
//! batch back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as Tally, Ordering::Relaxed};

use loom::thread;

use crate::loom_models::explore::{explore_all, explore_bounded};
use crate::pool::jobs::{Batch, SharedBatch};
use crate::sync::{AtomicBool, Mutex, Ordering, fence};

const TICKS: usize = 3;

struct Toy {
    stopping: AtomicBool,
    deque: Mutex<Vec<Arc<SharedBatch<usize>>>>,
    /// How often each tick was taken.
    taken: [Tally; TICKS],
}

impl Toy {
    fn new() -> Arc<Self> {
        let mut batch = Batch::new();
        (0..TICKS).for_each(|tick| batch.push(tick, 0));
        let mut shared = SharedBatch::new();
        shared.fill(&mut batch);
        let taken = [const { Tally::new(0) }; TICKS];
        let stopping = AtomicBool::new(false);
        Arc::new(Self { stopping, deque: Mutex::new(vec![Arc::new(shared)]), taken })
    }

    /// A worker takes up the batch, if it is in the deque; its callback number `blocks` does not
    /// return.
    fn run_batch(&self, blocks: usize) {
        let popped = self.deque.lock().pop();
        let Some(batch) = popped else { return };
        let (mut shared, mut run) = (false, 0);
        while let Some((tick, left)) = batch.take() {
            if left > 0 && !shared {
                self.deque.lock().push(Arc::clone(&batch));
                fence(Ordering::SeqCst);
                shared = true;
                if self.stopping.load(Ordering::Acquire) {
                    self.taken[tick].fetch_add(1, Relaxed); // discarded
                    self.discard_all(); // the worker ends
                    return;
                }
            }
            self.taken[tick].fetch_add(1, Relaxed);
            if run == blocks {
                return;
            }
            run += 1;
        }
    }

    /// As `Pool::stop`: discards all ticks that are in a queue.
    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.discard_all();
    }

    fn discard_all(&self) {
        let popped = self.deque.lock().pop();
        while let Some((tick, _)) = popped.as_ref().and_then(|batch| batch.take()) {
            self.taken[tick].fetch_add(1, Relaxed);
        }
    }

    /// The last thread finds all ticks that are left.
    fn check(&self) {
        while !self.deque.lock().is_empty() {
            self.run_batch(usize::MAX);
        }
        let taken: Vec<u32> = self.taken.iter().map(|tick| tick.load(Relaxed)).collect();
        assert_eq!(taken, [1; TICKS], "each tick is taken once");
    }
}

fn spawn(toy: &Arc<Toy>, blocks: usize) -> thread::JoinHandle<()> {
    let toy = Arc::clone(toy);
    thread::spawn(move || toy.run_batch(blocks))
}

#[test]
fn the_rest_of_a_batch_is_found_beside_a_callback_that_blocks() {
    for blocks in [0, 1] {
        explore_all(move || {
            let toy = Toy::new();
            let worker = spawn(&toy, blocks);
            toy.run_batch(0);
            worker.join().unwrap();
            toy.check();
        });
    }
}

#[test]
fn three_threads_take_each_tick_of_a_batch_once() {
    explore_bounded(|| {
        let toy = Toy::new();
        let (one, other) = (spawn(&toy, usize::MAX), spawn(&toy, usize::MAX));
        toy.run_batch(usize::MAX);
        one.join().unwrap();
        other.join().unwrap();
        toy.check();
    });
}

/// The pool stops while a worker takes up a batch; the callback of the first tick blocks.
#[test]
fn no_tick_of_a_batch_is_left_when_the_pool_stops() {
    explore_all(|| {
        let toy = Toy::new();
        let worker = spawn(&toy, 0);
        toy.stop();
        worker.join().unwrap();
        let taken: Vec<u32> = toy.taken.iter().map(|tick| tick.load(Relaxed)).collect();
        assert_eq!(taken, [1; TICKS], "each tick is run or discarded once");
    });
}
