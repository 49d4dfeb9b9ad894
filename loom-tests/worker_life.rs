//! Models of the life of a worker: the real one, with a toy of the alarm set.
//!
//! Promise: a job that is submitted, or due when an alarm goes off, is run without another wake-up having to come; when
//! the pool stops it is run or discarded, once; and every thread ends (S31, S33). A job that is forgotten shows as a
//! deadlock, since the threads here end when all jobs have been run.
//!
//! The bad interleavings are those of `sleep_vs_wake.rs`. These models show that the pool keeps its part of the protocol: it
//! registers, looks again, gives the token back, tells the next one. The deques of crossbeam are not loom's, so pushing and
//! looking are single steps here, in one order for all: whether the fences are needed is shown by the models of `sleep_vs_wake.rs` alone.
//!
//! Nothing depends on how long a job takes. But for one model no thread is added to those that are there, and the probe is
//! never armed; in that one it goes off at once.
//!
//! Seen to fail with, each left out by itself: the last look of `wait`, and of `rest`; the token given back by the last
//! watcher, by a watcher that finds nothing, by `run_jobs` that finds nothing; the last watcher's word to somebody else;
//! the watcher that wakes the next one when the pool stops; `submit`'s look at `stopping`; a job swept by a watcher when the
//! pool stops that is not discarded; the token sent without its mark.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Tally, Ordering::Relaxed};
use std::time::Duration;

use loom::thread;

use crate::alarm::{Event, OFF};
use crate::loom_models::explore::{explore_bounded, explore_few};
use crate::pool::sleep::Sleep;
use crate::pool::{Driver, LocalQueue, Pool, PoolConfig, worker};
use crate::sync::{Condvar, Mutex, Ordering};

/// Events that no watcher has taken; each is taken by one.
#[derive(Default)]
struct Events {
    wake: bool,
    alarm: bool,
    stall_check: bool,
}

struct Toy {
    pool: Pool<&'static str>,
    events: Mutex<Events>,
    some: Condvar,
    /// Jobs that are still to be run, and then the pool is stopped.
    left: Tally,
    ran: Tally,
    discarded: Tally,
    /// What the job [`BLOCKS`] waits for.
    gate: Mutex<bool>,
    opened: Condvar,
}

/// A job that does not end before [`FREES`] has been run.
const BLOCKS: &str = "blocks";
const FREES: &str = "frees";

impl Toy {
    fn new(max_pollers: usize, jobs: usize) -> Arc<Self> {
        Self::with_threads(2, max_pollers, jobs)
    }

    /// Two threads are there, and there may be `max_threads`.
    fn with_threads(max_threads: usize, max_pollers: usize, jobs: usize) -> Arc<Self> {
        let workers = 2;
        let mut pool = Pool::new(PoolConfig {
            workers,
            max_threads,
            keep_alive: Duration::ZERO,
            name: String::new(),
            pin_to: Vec::new(),
            mask: None,
        });
        pool.idle = Sleep::new(max_pollers);
        pool.threads.store(workers, Ordering::Relaxed);
        Arc::new(Self {
            pool,
            events: Mutex::default(),
            some: Condvar::default(),
            left: Tally::new(jobs),
            ran: Tally::new(0),
            discarded: Tally::new(0),
            gate: Mutex::default(),
            opened: Condvar::default(),
        })
    }

    fn alarm(&self) {
        self.events.lock().alarm = true;
        self.some.notify_one();
    }

    fn check(&self, ran: usize, discarded: usize) {
        assert_eq!((self.ran.load(Relaxed), self.discarded.load(Relaxed)), (ran, discarded), "run and discarded");
    }
}

impl Driver for Toy {
    type Job = &'static str;

    fn pool(&self) -> &Pool<&'static str> {
        &self.pool
    }

    fn wait(&self, mut report: impl FnMut(Event)) {
        let event = {
            let mut events = self.events.lock();
            loop {
                if std::mem::take(&mut events.alarm) {
                    break Event::Queue(0);
                }
                if std::mem::take(&mut events.wake) {
                    break Event::Wake;
                }
                if std::mem::take(&mut events.stall_check) {
                    break Event::StallCheck;
                }
                self.some.wait(&mut events);
            }
        };
        if event == Event::StallCheck {
            // It comes again and again: others go on meanwhile, as they do in half a millisecond.
            thread::yield_now();
        }
        report(event);
    }

    fn wake(&self) {
        self.events.lock().wake = true;
        self.some.notify_one();
    }

    fn arm_stall_check(&self, after: Duration) {
        // Where all threads that may be there are there, no promise relies on it.
        if self.pool.config.max_threads > 2 {
            self.events.lock().stall_check = after != OFF;
            self.some.notify_one();
        }
    }

    fn sweep(&self, _: usize, _: &LocalQueue<&'static str>) -> Option<&'static str> {
        Some("due")
    }

    fn discard(&self, _: &'static str) {
        self.discarded.fetch_add(1, Relaxed);
    }

    fn run(&self, job: &'static str, _: &LocalQueue<&'static str>) -> bool {
        if job == FREES {
            *self.gate.lock() = true;
            self.opened.notify_all();
        } else if job == BLOCKS {
            let mut open = self.gate.lock();
            while !*open {
                self.opened.wait(&mut open);
            }
        }
        self.ran.fetch_add(1, Relaxed);
        if self.left.fetch_sub(1, Relaxed) == 1 {
            // How a pool stops is explored by models of its own.
            loom::stop_exploring();
            Pool::stop(self);
        }
        true
    }
}

fn spawn(toy: &Arc<Toy>) -> thread::JoinHandle<()> {
    let toy = Arc::clone(toy);
    thread::spawn(move || worker(&toy))
}

#[test]
fn a_submitted_job_is_run() {
    for max_pollers in [1, 2] {
        explore_bounded(move || {
            let toy = Toy::new(max_pollers, 1);
            let (one, other) = (spawn(&toy), spawn(&toy));
            Pool::submit(toy.as_ref(), "submitted");
            one.join().unwrap();
            other.join().unwrap();
            toy.check(1, 0);
        });
    }
}

#[test]
fn a_due_job_is_run() {
    for max_pollers in [1, 2] {
        explore_bounded(move || {
            let toy = Toy::new(max_pollers, 1);
            let (one, other) = (spawn(&toy), spawn(&toy));
            toy.alarm();
            one.join().unwrap();
            other.join().unwrap();
            toy.check(1, 0);
        });
    }
}

#[test]
fn a_due_job_and_a_submitted_one_are_run() {
    for max_pollers in [1, 2] {
        explore_bounded(move || {
            let toy = Toy::new(max_pollers, 2);
            let (one, other) = (spawn(&toy), spawn(&toy));
            toy.alarm();
            Pool::submit(toy.as_ref(), "submitted");
            one.join().unwrap();
            other.join().unwrap();
            toy.check(2, 0);
        });
    }
}

#[test]
fn two_jobs_submitted_at_once_are_run() {
    explore_bounded(|| {
        let toy = Toy::new(1, 2);
        assert!(toy.pool.idle.join_poll(), "somebody watches, and never leaves");
        let worker = spawn(&toy);
        let submitter = {
            let toy = Arc::clone(&toy);
            thread::spawn(move || Pool::submit(toy.as_ref(), "submitted there"))
        };
        Pool::submit(toy.as_ref(), "submitted here");
        worker.join().unwrap();
        submitter.join().unwrap();
        toy.check(2, 0);
    });
}

/// A spare thread retires, with the wake-up that was meant for the one that stays.
#[test]
fn a_job_is_run_while_a_spare_thread_retires() {
    explore_bounded(|| {
        let toy = Toy::new(1, 1);
        assert!(toy.pool.idle.join_poll(), "somebody watches, and never leaves");
        toy.pool.threads.store(3, Ordering::Relaxed);
        let (one, other) = (spawn(&toy), spawn(&toy));
        Pool::submit(toy.as_ref(), "submitted");
        one.join().unwrap();
        other.join().unwrap();
        toy.check(1, 0);
    });
}

/// S31. A job waits for another one, which is run by a third thread that the last watcher brings in, or by the second if
/// that has not taken up the first.
///
/// Seen to fail with: a probe that nobody arms, that is never cleared, or that starts nobody; a thread that retires without
/// a last look.
#[test]
fn a_thread_is_brought_in_beside_a_job_that_blocks() {
    explore_few(|| {
        let toy = Toy::with_threads(3, 1, 2);
        let (one, other) = (spawn(&toy), spawn(&toy));
        Pool::submit(toy.as_ref(), BLOCKS);
        Pool::submit(toy.as_ref(), FREES);
        one.join().unwrap();
        other.join().unwrap();
        toy.pool.wait_until_ended(None);
        toy.check(2, 0);
    });
}

/// Two threads are to be started at once, and there is room for one.
///
/// Seen to fail with: a look at the number of threads before it is raised.
#[test]
fn threads_that_start_others_at_once_stay_below_the_limit() {
    explore_bounded(|| {
        let toy = Toy::with_threads(3, 1, usize::MAX);
        toy.pool.growth.store(2, Ordering::Relaxed);
        let other = {
            let toy = Arc::clone(&toy);
            thread::spawn(move || toy.pool.start_one_more(&toy))
        };
        let here = toy.pool.start_one_more(&toy);
        let there = other.join().unwrap();
        assert!(here != there, "one of them has started a thread: {here} {there}");
        loom::stop_exploring();
        Pool::stop(toy.as_ref());
        toy.pool.wait_until_ended(None);
    });
}

#[test]
fn a_job_submitted_while_the_pool_stops_is_run_or_discarded() {
    for max_pollers in [1, 2] {
        explore_bounded(move || {
            let toy = Toy::new(max_pollers, usize::MAX);
            let worker = spawn(&toy);
            let stopper = {
                let toy = Arc::clone(&toy);
                thread::spawn(move || Pool::stop(toy.as_ref()))
            };
            Pool::submit(toy.as_ref(), "submitted");
            worker.join().unwrap();
            stopper.join().unwrap();
            let ran = toy.ran.load(Relaxed);
            toy.check(ran, 1 - ran);
        });
    }
}

#[test]
fn a_job_due_while_the_pool_stops_is_run_or_discarded_and_all_threads_end() {
    explore_bounded(|| {
        let toy = Toy::new(2, usize::MAX);
        let (one, other) = (spawn(&toy), spawn(&toy));
        toy.alarm();
        Pool::stop(toy.as_ref());
        one.join().unwrap();
        other.join().unwrap();
        // An alarm that nobody has taken any more is nobody's job.
        let swept = usize::from(!toy.events.lock().alarm);
        let ran = toy.ran.load(Relaxed);
        toy.check(ran, swept - ran);
    });
}
