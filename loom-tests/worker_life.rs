//! Models of the life of a worker: the shipped worker, with a toy of the alarm set (S31, S33, I14,
//! I18).
//!
//! Promise: a job that is submitted, or due when an alarm goes off, is run without the help of a
//! later wake-up; when the pool stops, the job is run or discarded, once; and every thread ends
//! (S31, S33). A forgotten job shows as a deadlock, since the threads of a model end when all jobs
//! have been run.
//!
//! `sleep_vs_wake.rs` shows the bad interleavings. These models show that the pool keeps its part
//! of the protocol: a thread registers, looks again, gives the token back, wakes the next thread.
//! Loom knows neither crossbeam's deques nor the inbox, so pushing and looking are single steps
//! in a total order here. Only the models of `sleep_vs_wake.rs` show that the fences are needed.
//!
//! No model depends on the duration of a job. In all models but
//! `a_thread_is_started_beside_a_job_that_blocks` the stall check is never armed, so it adds no
//! thread; in that model the stall check goes off at once.
//!
//! Seen to fail without each of: the last look of `wait`, and of `park`; the return of the token by
//! the last poller, by a poller that finds no work, by `run_jobs` that finds no job; the wake-up of
//! a second thread by the last poller; the wake-up of the next poller when the pool stops; putting
//! a job into the pool under the lock of its shard (without it, and with a `yield_now` there, since
//! loom does not know the inbox); the discarding of a job that a poller has swept when the pool
//! stops; the mark of the sent token.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Tally, Ordering::Relaxed};
use std::time::Duration;

use loom::thread;

use crate::alarm::clock::MODEL_CLOCK;
use crate::alarm::{Backend, Event, OFF, SystemClock};
use crate::loom_models::explore::{explore_bounded, explore_few, explore_fewest};
use crate::pool::sleep::Sleep;
use crate::pool::worker::worker;
use crate::pool::{Batch, Driver, Pool, PoolConfig, Ran, Swept, Tick, Timing};
use crate::sync::{Condvar, Mutex, Ordering};

/// Events that no poller has taken; each event is taken once.
#[derive(Default)]
struct Events {
    wake: bool,
    alarm: bool,
    stall_check: bool,
}

struct Toy {
    pool: Pool<Self>,
    /// Jobs still to run; the pool stops after the last.
    left: Tally,
    ran: Tally,
    discarded: Tally,
    /// The job [`BLOCKS`] waits until this is true.
    gate: Mutex<bool>,
    opened: Condvar,
    /// A shard of the runtime: a job comes in only under this lock, while the shard is open.
    shard_is_closed: Mutex<bool>,
}

#[derive(Default)]
struct Alarms {
    events: Mutex<Events>,
    some: Condvar,
    /// The pool may have more threads than those of its start.
    grows: bool,
}

/// A job that ends only after [`FREES`] has run.
const BLOCKS: &str = "blocks";
const FREES: &str = "frees";

impl Toy {
    fn new(max_pollers: usize, jobs: usize) -> Arc<Self> {
        Self::with_threads(2, max_pollers, jobs)
    }

    /// A pool of two threads, with a limit of `max_threads`.
    fn with_threads(max_threads: usize, max_pollers: usize, jobs: usize) -> Arc<Self> {
        MODEL_CLOCK.set(Some(0));
        let workers = 2;
        let config = PoolConfig {
            workers,
            max_threads,
            keep_alive: Duration::ZERO,
            name: String::new(),
            pin_to: Vec::new(),
            mask: None,
            may_open_files: true,
            timing: Timing::MODEL,
        };
        let alarms = Alarms { grows: max_threads > workers, ..Alarms::default() };
        let mut pool = Pool::new(config, Box::new(alarms), SystemClock::MONOTONIC);
        pool.idle = Sleep::new(max_pollers);
        pool.threads.store(workers, Ordering::Relaxed);
        Arc::new(Self {
            pool,
            left: Tally::new(jobs),
            ran: Tally::new(0),
            discarded: Tally::new(0),
            gate: Mutex::default(),
            opened: Condvar::default(),
            shard_is_closed: Mutex::default(),
        })
    }

    fn alarm(&self) {
        self.pool.alarms.events.lock().alarm = true;
        self.pool.alarms.some.notify_one();
    }

    fn check(&self, ran: usize, discarded: usize) {
        assert_eq!((self.ran.load(Relaxed), self.discarded.load(Relaxed)), (ran, discarded), "run and discarded");
    }
}

impl Backend for Alarms {
    fn arm(&self, _: usize, _: u64) {}

    fn wait(&self, report: &mut dyn FnMut(Event)) {
        let event = {
            let mut events = self.events.lock();
            loop {
                if std::mem::take(&mut events.alarm) {
                    break Event::Alarm(0);
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
            // The stall check repeats: let the rest of the threads go on, as they do in its half a
            // millisecond.
            thread::yield_now();
        }
        report(event);
    }

    fn wake(&self) {
        self.events.lock().wake = true;
        self.some.notify_one();
    }

    fn arm_stall_check(&self, after: Duration) {
        // No promise relies on the stall check once the pool has all its threads.
        if self.grows {
            self.events.lock().stall_check = after != OFF;
            self.some.notify_one();
        }
    }
}

impl Driver for Toy {
    type Tick = &'static str;
    type Alarms = Box<Alarms>;

    fn pool(&self) -> &Pool<Self> {
        &self.pool
    }

    fn sweep(&self, _: usize, batch: &mut Batch<&'static str>) -> Swept {
        batch.push("due", 0);
        Swept::default()
    }
}

impl Tick<Toy> for &'static str {
    fn run(self, toy: &Toy) -> Ran {
        if self == FREES {
            *toy.gate.lock() = true;
            toy.opened.notify_all();
        } else if self == BLOCKS {
            let mut open = toy.gate.lock();
            while !*open {
                toy.opened.wait(&mut open);
            }
        }
        toy.ran.fetch_add(1, Relaxed);
        if toy.left.fetch_sub(1, Relaxed) == 1 {
            // Models of their own explore the stop.
            loom::stop_exploring();
            Pool::stop(toy);
        }
        Ran::Callback
    }

    fn discard(self, toy: &Toy) {
        toy.discarded.fetch_add(1, Relaxed);
    }
}

/// As `Engine::put` and `Engine::notify`. False: the shard is closed, and the caller keeps the job.
fn submit(toy: &Toy, job: &'static str) -> bool {
    let is_closed = toy.shard_is_closed.lock();
    if *is_closed {
        return false;
    }
    toy.pool.submit(job, 0);
    drop(is_closed);
    toy.pool.notify(toy);
    true
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
            submit(&toy, "submitted");
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
            submit(&toy, "submitted");
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
        assert!(toy.pool.idle.join_poll(), "a poller that never leaves");
        let worker = spawn(&toy);
        let submitter = {
            let toy = Arc::clone(&toy);
            thread::spawn(move || _ = submit(&toy, "submitted there"))
        };
        submit(&toy, "submitted here");
        worker.join().unwrap();
        submitter.join().unwrap();
        toy.check(2, 0);
    });
}

/// A spare thread retires, with a wake-up meant for the thread that stays.
#[test]
fn a_job_is_run_while_a_spare_thread_retires() {
    explore_bounded(|| {
        let toy = Toy::new(1, 1);
        assert!(toy.pool.idle.join_poll(), "a poller that never leaves");
        toy.pool.threads.store(3, Ordering::Relaxed);
        let (one, other) = (spawn(&toy), spawn(&toy));
        submit(&toy, "submitted");
        one.join().unwrap();
        other.join().unwrap();
        toy.check(1, 0);
    });
}

/// S31. The job [`BLOCKS`] waits for the job [`FREES`]. A third thread, started by the last poller,
/// runs [`FREES`]; or the second thread does, if it has not taken [`BLOCKS`].
///
/// Seen to fail with: a stall check that is never armed, never cleared, or starts no thread; a
/// thread that retires without a last look.
#[test]
fn a_thread_is_started_beside_a_job_that_blocks() {
    explore_few(|| {
        let toy = Toy::with_threads(3, 1, 2);
        let (one, other) = (spawn(&toy), spawn(&toy));
        submit(&toy, BLOCKS);
        submit(&toy, FREES);
        one.join().unwrap();
        other.join().unwrap();
        toy.pool.wait_until_ended(None);
        toy.check(2, 0);
    });
}

/// S31. The same, with both jobs in the inbox at first, and a third, since a worker brings half of
/// the inbox: it brings two in its deque, and tells so. The stall check finds that, and the thread
/// which it starts finds [`FREES`].
///
/// Seen to fail with: a batch that is brought and not told, or told after the decision to wake a
/// thread; a worker that tells of an empty deque after it has brought a batch.
#[test]
fn a_job_that_was_brought_behind_one_that_blocks_is_found() {
    explore_fewest(|| {
        let toy = Toy::with_threads(3, 1, 3);
        [BLOCKS, FREES, "third"].into_iter().for_each(|job| toy.pool.submit(job, 0));
        let (one, other) = (spawn(&toy), spawn(&toy));
        one.join().unwrap();
        other.join().unwrap();
        toy.pool.wait_until_ended(None);
        toy.check(3, 0);
    });
}

/// Two threads are to be started at once, and the limit allows one more.
///
/// Seen to fail with: a check of the number of threads before the number is raised.
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
                thread::spawn(move || {
                    *toy.shard_is_closed.lock() = true; // as `Engine::close`
                    Pool::stop(toy.as_ref());
                })
            };
            let submitted = usize::from(submit(&toy, "submitted"));
            worker.join().unwrap();
            stopper.join().unwrap();
            let ran = toy.ran.load(Relaxed);
            toy.check(ran, submitted - ran);
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
        // An alarm that no poller has taken gives no job.
        let swept = usize::from(!toy.pool.alarms.events.lock().alarm);
        let ran = toy.ran.load(Relaxed);
        toy.check(ran, swept - ran);
    });
}
