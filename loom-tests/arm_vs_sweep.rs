//! Models of a queue and its alarm: arming, expiry and sweeping against each other (S27, I7, I8).
//!
//! Promise (S27): whenever a queue holds a timer that can fire, at least one of these holds. The
//! alarm is set no later than the earliest due point; or the alarm has gone off and no poller has
//! taken the event yet; or a sweep is pending or running.
//!
//! The bad interleavings:
//!
//! ```text
//!   inserts a timer due at 5              inserts a timer due at 3
//!     lock, insert, armed = 5, unlock
//!                                           lock, insert, armed = 3, unlock, arm at 3
//!     arm at 5: the later alarm stays
//!
//!   inserts a timer due at 5              sweeps
//!                                           lock, take due timers, none is left
//!                                           unlock
//!     lock, insert: `armed` is the expired
//!     alarm, so earlier: unlock
//!                                           armed = NEVER: too late
//!
//!   inserts a timer due at 5              comes at 3, by an early alarm for 4
//!     lock, insert: `armed` is 4,
//!     so earlier: unlock
//!                                           rests again without an alarm: both timers are lost
//! ```
//!
//! An early alarm ([`Lead`], which is real) is as one that is late to be taken: until the thread
//! has swept, a sweep is pending.
//!
//! The alarm is a toy of a timerfd in an edge-triggered epoll set: like the kernel, arming
//! withdraws an expiry that no poller has taken. The queue is a toy too: `insert` and `sweep_batch`
//! keep the steps of `ShardState::insert_or_claim`, `arm_earlier`, `arm_after_sweep` and
//! `Shard::sweep_batch` (`src/engine/sweep.rs`), with batches of a single timer. A change of these
//! functions needs the same change here.
//!
//! Seen to fail with: an alarm set after the release of the lock; a sweep that releases the lock
//! before setting the alarm; a sweep that sets `armed` to `NEVER`, or ends, although its batch was
//! full; a sweep that ends without arming for the timers left; a sweep that leaves `armed` at
//! `SWEEPING` when no timer is left; `arm_after_sweep` that does not start from `NEVER`;
//! `arm_earlier` with the comparison reversed; a thread that comes early and rests again, or does
//! not wait until the timer is due.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use loom::thread;

use crate::engine::SWEEPING;
use crate::engine::lead::Lead;
use crate::loom_models::explore::{explore_all, explore_bounded};
use crate::sync::{Mutex, MutexGuard};
use crate::time::NEVER;

/// A step of the toy's clock, in nanoseconds: a thread waits awake for one step at most.
const STEP_NS: u64 = Lead::MOST_NS;

/// The kernel's state.
#[derive(Default)]
struct TimerFd {
    armed: Option<u64>,
    /// An expiry that no poller has taken.
    edge: bool,
}

impl TimerFd {
    fn arm(&mut self, at: u64, now: u64) {
        *self = Self { armed: Some(at), edge: false };
        self.pass(now);
    }

    fn pass(&mut self, now: u64) {
        if self.armed.is_some_and(|at| at <= now) {
            *self = Self { armed: None, edge: true };
        }
    }
}

/// The state guarded by the lock.
struct Inner {
    queued: Vec<u64>,
    armed: u64,
    lead: Lead,
}

struct Toy {
    inner: Mutex<Inner>,
    kernel: Mutex<TimerFd>,
    now: AtomicU64,
}

impl Toy {
    /// A queue with timers of these due points, and the alarm set to the earliest.
    fn with(queued: &[u64]) -> Arc<Self> {
        Self::with_lead(queued, Lead::default())
    }

    fn with_lead(queued: &[u64], lead: Lead) -> Arc<Self> {
        let toy = Self {
            inner: Mutex::new(Inner { queued: Vec::new(), armed: NEVER, lead }),
            kernel: Mutex::default(),
            now: AtomicU64::new(0),
        };
        for &due in queued {
            toy.insert(due);
        }
        Arc::new(toy)
    }

    /// Inserts a timer that is due after the caller's reading of the clock.
    fn insert(&self, due: u64) {
        let mut inner = self.inner.lock();
        inner.queued.push(due);
        self.arm_earlier(&mut inner, due);
        self.check(&inner);
    }

    fn arm_earlier(&self, inner: &mut Inner, at: u64) {
        if at < inner.armed {
            inner.armed = at;
            let now = self.now.load(Relaxed);
            let alarm_ns = inner.lead.aim(at * STEP_NS, now * STEP_NS, false);
            self.kernel.lock().arm(alarm_ns.div_ceil(STEP_NS), now);
        }
    }

    fn arm_after_sweep(&self, inner: &mut Inner, at: u64) {
        inner.armed = NEVER;
        if at != NEVER {
            self.arm_earlier(inner, at);
        }
    }

    /// Takes at most one due timer. True: more timers may be due, and the caller sweeps again.
    fn sweep_batch(&self) -> bool {
        let mut inner = self.inner.lock();
        let (now, deadline) = (self.now.load(Relaxed), inner.armed);
        if inner.lead.is_early(deadline.saturating_mul(STEP_NS), now * STEP_NS) {
            drop(inner);
            self.pass(deadline); // the thread waits
            return true;
        }
        inner.armed = SWEEPING;
        if let Some(at) = inner.queued.iter().position(|&due| due <= now) {
            inner.queued.swap_remove(at);
            return true;
        }
        let next = inner.queued.iter().copied().min().unwrap_or(NEVER);
        self.arm_after_sweep(&mut inner, next);
        self.check(&inner);
        false
    }

    /// A poller checks for an expiry, once. A sweep is pending from taking the expiry until the
    /// sweep ends.
    fn wait(&self) {
        if std::mem::take(&mut self.kernel.lock().edge) {
            while self.sweep_batch() {}
        }
    }

    /// Time passes, and the kernel checks its alarm.
    fn pass(&self, now: u64) {
        let mut kernel = self.kernel.lock();
        let now = now.max(self.now.load(Relaxed));
        self.now.store(now, Relaxed);
        kernel.pass(now);
    }

    /// `armed` is no later than the earliest timer in the queue.
    fn check(&self, inner: &MutexGuard<'_, Inner>) {
        let earliest = inner.queued.iter().copied().min().unwrap_or(NEVER);
        assert!(inner.armed <= earliest, "due at {earliest}, armed at {}", inner.armed);
    }

    /// Checks the promise when no sweep is pending; afterwards all timers fire.
    fn end(&self, last: u64) {
        {
            let (inner, kernel) = (self.inner.lock(), self.kernel.lock());
            let earliest = inner.queued.iter().copied().min().unwrap_or(NEVER);
            let armed = kernel.armed.unwrap_or(NEVER);
            assert!(kernel.edge || armed <= earliest, "due at {earliest}, but the alarm is set to {armed}");
        }
        for now in self.now.load(Relaxed)..=last {
            self.pass(now);
            self.wait();
        }
        assert!(self.inner.lock().queued.is_empty(), "no timer is left");
    }
}

fn spawn(toy: &Arc<Toy>, action: impl FnOnce(&Toy) + 'static) -> thread::JoinHandle<()> {
    let toy = Arc::clone(toy);
    thread::spawn(move || action(&toy))
}

#[test]
fn the_alarm_is_set_to_the_earliest_of_two_inserted_at_once() {
    explore_all(|| {
        let toy = Toy::with(&[9]);
        let other = spawn(&toy, |toy| toy.insert(3));
        toy.insert(5);
        other.join().unwrap();
        toy.end(9);
    });
}

#[test]
fn a_timer_inserted_during_a_sweep_has_an_alarm() {
    // Two timers are due and a third is left; or a single timer is due and none is left.
    for queued in [&[1, 1, 5][..], &[1]] {
        for due in [2, 4, 6] {
            explore_all(move || {
                let toy = Toy::with(queued);
                toy.pass(1);
                let poller = spawn(&toy, Toy::wait);
                toy.insert(due);
                poller.join().unwrap();
                toy.end(6);
            });
        }
    }
}

#[test]
fn a_timer_inserted_while_the_alarm_goes_off_has_an_alarm() {
    for due in [1, 2, 3, 4] {
        explore_bounded(move || {
            let toy = Toy::with(&[2, 4]);
            let clock = spawn(&toy, |toy| (1..=3).for_each(|now| toy.pass(now)));
            let poller = spawn(&toy, |toy| {
                toy.wait();
                toy.wait();
            });
            toy.insert(due);
            clock.join().unwrap();
            poller.join().unwrap();
            toy.end(4);
        });
    }
}

#[test]
fn two_sweeps_of_one_queue_leave_an_alarm() {
    explore_bounded(|| {
        let toy = Toy::with(&[1, 3]);
        toy.pass(1);
        // The first sweep has taken the expiry of 1. A timer inserted late, due earlier, expires at
        // once, for the second sweep.
        let first = spawn(&toy, Toy::wait);
        let second = spawn(&toy, |toy| {
            toy.pass(2);
            toy.wait();
        });
        toy.insert(0);
        first.join().unwrap();
        second.join().unwrap();
        toy.end(3);
    });
}

/// Time stands at 3, and a thread takes the early alarm of a timer due at 4.
#[test]
fn a_timer_inserted_while_a_thread_waits_for_the_deadline_has_an_alarm() {
    for due in [3, 5, 6] {
        explore_all(move || {
            let toy = Toy::with_lead(&[4], Lead::learnt(STEP_NS));
            toy.pass(3);
            assert!(toy.kernel.lock().edge, "the alarm is early");
            let poller = spawn(&toy, Toy::wait);
            toy.insert(due);
            poller.join().unwrap();
            // The thread fires the timer for which it has come, unless it has come for the other.
            assert!(due < 4 || !toy.inner.lock().queued.contains(&4));
            toy.end(6);
        });
    }
}

#[test]
fn a_thread_that_waits_for_the_deadline_leaves_an_alarm_beside_another_sweep() {
    explore_bounded(|| {
        let toy = Toy::with_lead(&[4, 9], Lead::learnt(STEP_NS));
        toy.pass(3);
        let first = spawn(&toy, Toy::wait);
        let second = spawn(&toy, Toy::wait);
        toy.insert(0);
        first.join().unwrap();
        second.join().unwrap();
        toy.end(9);
    });
}
