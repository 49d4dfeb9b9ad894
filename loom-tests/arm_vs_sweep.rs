//! Models of a queue and its alarm: arming, expiry and sweeping against each other.
//!
//! Promise (S27): whenever a queue holds a timer that can fire, its alarm is set no later than the earliest due point, or
//! the alarm has gone off and nobody has taken that up yet, or a sweep is pending or running.
//!
//! The bad interleavings:
//!
//! ```text
//!   files a timer due at 5                files one due at 3
//!     lock, file, note 5, unlock
//!                                           lock, file, note 3, unlock, arm at 3
//!     arm at 5: the later one stands
//!
//!   files a timer due at 5                sweeps
//!                                           lock, take what is due, nothing is left
//!                                           unlock
//!     lock, file: noted is the alarm
//!     that has gone off, earlier: unlock
//!                                           note that no alarm is set: too late
//! ```
//!
//! The alarm is a toy of a timerfd in an edge-triggered epoll set: arming takes back an expiry that nobody has taken up yet,
//! as the kernel does. The queue is a toy too: `file` and `sweep` keep the steps of `Inner::schedule`, `arm_earlier` and
//! `ShardState::arm_after_sweep` and `Shard::sweep_step` (`src/engine/shard.rs`), with batches of one. A change of those
//! needs the same change here.
//!
//! Seen to fail with: an alarm that is set after the lock is released; a sweep that gives the lock back before it sets the
//! alarm; a sweep that says "not armed" or ends when its batch was full; one that ends without arming for what is left; one
//! that leaves `armed` at "sweeping" when nothing is left; `arm_after_sweep` that does not start from "not armed";
//! `arm_earlier` that compares the wrong way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use loom::thread;

use crate::engine::SWEEPING;
use crate::loom_models::explore::{explore_all, explore_bounded};
use crate::sync::{Mutex, MutexGuard};
use crate::time::NEVER;

/// What the kernel keeps.
#[derive(Default)]
struct TimerFd {
    armed: Option<u64>,
    /// An expiry that no watcher has taken up.
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

/// What the lock guards.
struct Inner {
    filed: Vec<u64>,
    armed: u64,
}

struct Toy {
    inner: Mutex<Inner>,
    kernel: Mutex<TimerFd>,
    now: AtomicU64,
}

impl Toy {
    /// A queue that holds timers with these due points, the alarm set to the first.
    fn with(filed: &[u64]) -> Arc<Self> {
        let toy = Self {
            inner: Mutex::new(Inner { filed: Vec::new(), armed: NEVER }),
            kernel: Mutex::default(),
            now: AtomicU64::new(0),
        };
        for &due in filed {
            toy.file(due);
        }
        Arc::new(toy)
    }

    /// A timer that is due after the caller has looked at the clock.
    fn file(&self, due: u64) {
        let mut inner = self.inner.lock();
        inner.filed.push(due);
        self.arm_earlier(&mut inner, due);
        self.check(&inner);
    }

    fn arm_earlier(&self, inner: &mut Inner, at: u64) {
        if at < inner.armed {
            inner.armed = at;
            self.kernel.lock().arm(at, self.now.load(Relaxed));
        }
    }

    fn arm_after_sweep(&self, inner: &mut Inner, at: u64) {
        inner.armed = NEVER;
        if at != NEVER {
            self.arm_earlier(inner, at);
        }
    }

    /// Takes one due timer at most. True: there may be more, and the caller sweeps again.
    fn sweep_batch(&self) -> bool {
        let mut inner = self.inner.lock();
        let now = self.now.load(Relaxed);
        inner.armed = SWEEPING;
        if let Some(at) = inner.filed.iter().position(|&due| due <= now) {
            inner.filed.swap_remove(at);
            return true;
        }
        let next = inner.filed.iter().copied().min().unwrap_or(NEVER);
        self.arm_after_sweep(&mut inner, next);
        self.check(&inner);
        false
    }

    /// A watcher looks for an expiry, once. Between taking it up and its end a sweep is pending.
    fn wait(&self) {
        if std::mem::take(&mut self.kernel.lock().edge) {
            while self.sweep_batch() {}
        }
    }

    /// Time passes, and the kernel looks at its alarm.
    fn pass(&self, now: u64) {
        let mut kernel = self.kernel.lock();
        self.now.store(now, Relaxed);
        kernel.pass(now);
    }

    /// What `armed` says of the alarm is on the safe side of what is filed.
    fn check(&self, inner: &MutexGuard<'_, Inner>) {
        let earliest = inner.filed.iter().copied().min().unwrap_or(NEVER);
        assert!(inner.armed <= earliest, "due at {earliest}, armed at {}", inner.armed);
    }

    /// The promise, when no sweep is pending: then all that is due is fired at last.
    fn end(&self, last: u64) {
        {
            let (inner, kernel) = (self.inner.lock(), self.kernel.lock());
            let earliest = inner.filed.iter().copied().min().unwrap_or(NEVER);
            let armed = kernel.armed.unwrap_or(NEVER);
            assert!(kernel.edge || armed <= earliest, "due at {earliest}, but the alarm is set to {armed}");
        }
        for now in self.now.load(Relaxed)..=last {
            self.pass(now);
            self.wait();
        }
        assert!(self.inner.lock().filed.is_empty(), "nothing is left behind");
    }
}

fn spawn(toy: &Arc<Toy>, action: impl FnOnce(&Toy) + 'static) -> thread::JoinHandle<()> {
    let toy = Arc::clone(toy);
    thread::spawn(move || action(&toy))
}

#[test]
fn the_alarm_stands_at_the_earliest_of_two_filed_at_once() {
    explore_all(|| {
        let toy = Toy::with(&[9]);
        let other = spawn(&toy, |toy| toy.file(3));
        toy.file(5);
        other.join().unwrap();
        toy.end(9);
    });
}

#[test]
fn a_timer_filed_during_a_sweep_has_an_alarm() {
    // Others are due as well, and one is left; or none is left.
    for filed in [&[1, 1, 5][..], &[1]] {
        for due in [2, 4, 6] {
            explore_all(move || {
                let toy = Toy::with(filed);
                toy.pass(1);
                let poller = spawn(&toy, Toy::wait);
                toy.file(due);
                poller.join().unwrap();
                toy.end(6);
            });
        }
    }
}

#[test]
fn a_timer_filed_while_the_alarm_goes_off_has_an_alarm() {
    for due in [1, 2, 3, 4] {
        explore_bounded(move || {
            let toy = Toy::with(&[2, 4]);
            let clock = spawn(&toy, |toy| (1..=3).for_each(|now| toy.pass(now)));
            let poller = spawn(&toy, |toy| {
                toy.wait();
                toy.wait();
            });
            toy.file(due);
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
        // The first has taken up the expiry of 1; filed late, an earlier one goes off at once, for the second.
        let first = spawn(&toy, Toy::wait);
        let second = spawn(&toy, |toy| {
            toy.pass(2);
            toy.wait();
        });
        toy.file(0);
        first.join().unwrap();
        second.join().unwrap();
        toy.end(3);
    });
}
