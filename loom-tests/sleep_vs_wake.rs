//! Models of the sleep and wake protocol of the pool (S33, I13, I14).
//!
//! Promises (`src/pool/sleep.rs`): *no lost wake-up* (published work is run without the help of a
//! later wake-up) and *one thread always polls*. A lost wake-up shows as a deadlock: all threads
//! sleep, and a job is left.
//!
//! The bad interleavings:
//!
//! ```text
//!   a publisher                          a thread that goes idle
//!     push                                 look for work: none
//!     no thread is registered: wake none
//!                                          register, sleep
//!
//!   a publisher                          a searcher
//!     push                                 look for work: none
//!     a thread searches: wake none
//!                                          give the token back, sleep
//!
//!   a publisher                          a parked thread with its time limit over
//!     pop its parker, pass the token
//!                                          leave with the token: no thread searches ever after
//! ```
//!
//! The queue of the models is a relaxed counter: it orders no memory, so the protocol must do
//! without the help of the queue. The alarm set is a signal: setting the signal wakes a single
//! poller, now or later.
//!
//! Seen to fail with each of: no fence in `notify`, in `join_poll`, in `park`, in `stop_searching`;
//! no last look (`stay_awake`) in `park`; `withdraw` that returns `otherwise` in both cases;
//! `leave_poll` that lets the last poller leave, or reads and writes in two steps; `unpark_all`
//! that does not unpark; `notify` that keeps the token although it found no idle thread; `woken`
//! set after the unpark.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Tally, Ordering::Relaxed};
use std::time::Duration;

use loom::thread;

use super::{Notified, SearchToken, Sleep, Unparked};
use crate::loom_models::explore::{Plain, explore_all, explore_bounded};
use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, Ordering, fence};

/// Setting the signal wakes a single waiting thread, or the next thread that begins to wait.
struct Signal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    fn new() -> Self {
        Self { is_set: Mutex::new(false), changed: Condvar::default() }
    }

    fn set(&self) {
        *self.is_set.lock() = true;
        self.changed.notify_one();
    }

    fn wait(&self) {
        let mut is_set = self.is_set.lock();
        while !*is_set {
            self.changed.wait(&mut is_set);
        }
        *is_set = false;
    }
}

/// A pool that stops as soon as it has run a given number of jobs.
struct Toy {
    idle: Sleep,
    jobs: AtomicUsize,
    signal: Signal,
    /// The token passed with the signal.
    sent: AtomicUsize,
    stopping: AtomicBool,
    /// Jobs still to run.
    left: Tally,
}

impl Toy {
    fn new(max_pollers: usize, jobs: usize) -> Arc<Self> {
        Arc::new(Self {
            idle: Sleep::new(max_pollers),
            jobs: AtomicUsize::new(0),
            signal: Signal::new(),
            sent: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            left: Tally::new(jobs),
        })
    }

    fn publish(&self) {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        self.tell();
    }

    /// As `Pool::notify`. Where `Pool::notify` arms the stall check, this toy relies on busy
    /// threads to come back.
    fn tell(&self) {
        if let Notified::WakePoller(token) = self.idle.notify() {
            self.sent.store(token.to_word(), Ordering::Release);
            self.signal.set();
        }
    }

    fn has_work(&self) -> bool {
        self.jobs.load(Ordering::Relaxed) > 0
    }

    fn take(&self) -> bool {
        self.jobs.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
    }

    /// As `Pool::stop`.
    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.idle.unpark_all();
        self.signal.set();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// The loop of a worker: run jobs, rest, and again.
    fn live(&self, mut token: Option<SearchToken>) {
        loop {
            self.run_jobs(token);
            let woken = if self.idle.join_poll() { self.wait() } else { self.rest() };
            match woken {
                Some(searcher) => token = searcher,
                None => return,
            }
        }
    }

    fn run_jobs(&self, mut token: Option<SearchToken>) {
        while !self.is_stopping() && self.take() {
            if let Some(token) = token.take() {
                self.idle.stop_searching(token);
                if self.has_work() {
                    self.tell();
                }
            }
            if self.left.fetch_sub(1, Relaxed) == 1 {
                // Models of their own explore the stop.
                loom::stop_exploring();
                self.stop();
            }
        }
        if let Some(token) = token {
            self.idle.stop_searching(token);
        }
    }

    /// Parks. `None`: the thread ends; otherwise the search token, if the thread got the token.
    fn rest(&self) -> Option<Option<SearchToken>> {
        let unparked = self.idle.park(None, || self.is_stopping() || self.has_work());
        let token = match unparked {
            Unparked::Searcher(token) => Some(token),
            _ => None,
        };
        (!self.is_stopping()).then_some(token)
    }

    /// Polls. The result is as for `rest`.
    fn wait(&self) -> Option<Option<SearchToken>> {
        if self.has_work() && !self.is_stopping() {
            if self.idle.leave_poll() {
                return Some(None);
            }
            self.tell();
        }
        loop {
            if self.is_stopping() {
                self.idle.quit_poll();
                self.signal.set(); // the next poller
                return None;
            }
            self.signal.wait();
            if self.is_stopping() {
                continue;
            }
            // `tell` set the signal, and passed the token.
            let token = SearchToken::from_word(self.sent.swap(0, Ordering::AcqRel));
            if self.has_work() && self.idle.leave_poll() {
                return Some(token);
            }
            if let Some(token) = token {
                self.idle.stop_searching(token);
            }
            if self.has_work() {
                self.tell();
            }
        }
    }

    /// Adds a poller that never leaves, for models of two threads.
    fn with_poller(self: Arc<Self>) -> Arc<Self> {
        assert!(self.idle.join_poll());
        self
    }
}

fn spawn(toy: &Arc<Toy>, action: impl FnOnce(&Toy) + 'static) -> thread::JoinHandle<()> {
    let toy = Arc::clone(toy);
    thread::spawn(move || action(&toy))
}

// ---------------------------------------------------------------- no lost wake-up

#[test]
fn work_is_seen_by_a_thread_that_goes_to_park() {
    explore_all(|| {
        let toy = Toy::new(1, 1).with_poller();
        let idle = spawn(&toy, |toy| toy.live(None));
        toy.publish();
        idle.join().unwrap();
    });
}

#[test]
fn work_is_seen_by_a_thread_that_goes_to_poll() {
    explore_all(|| {
        let toy = Toy::new(2, 1).with_poller();
        let idle = spawn(&toy, |toy| toy.live(None));
        toy.publish();
        idle.join().unwrap();
    });
}

#[test]
fn work_is_seen_by_a_searcher_that_gives_up() {
    for max_pollers in [1, 2] {
        explore_all(move || {
            let toy = Toy::new(max_pollers, 1).with_poller();
            toy.idle.searching.store(1, Ordering::Relaxed);
            let searcher = spawn(&toy, |toy| toy.live(SearchToken::from_word(1)));
            toy.publish();
            searcher.join().unwrap();
        });
    }
}

#[test]
fn one_of_two_idle_threads_runs_the_work() {
    for max_pollers in [1, 2] {
        explore_bounded(move || {
            let toy = Toy::new(max_pollers, 1);
            let one = spawn(&toy, |toy| toy.live(None));
            let other = spawn(&toy, |toy| toy.live(None));
            toy.publish();
            one.join().unwrap();
            other.join().unwrap();
        });
    }
}

#[test]
fn two_publishers_share_one_searcher() {
    for max_pollers in [1, 2] {
        explore_bounded(move || {
            let toy = Toy::new(max_pollers, 2).with_poller();
            let idle = spawn(&toy, |toy| toy.live(None));
            let publisher = spawn(&toy, |toy| toy.publish());
            toy.publish();
            idle.join().unwrap();
            publisher.join().unwrap();
        });
    }
}

#[test]
fn the_token_is_never_lost_when_a_parked_thread_has_waited_long_enough() {
    explore_all(|| {
        let toy = Toy::new(1, 2).with_poller();
        let timed_out = spawn(&toy, |toy| {
            // A limit of zero is over at once; the notification comes before or after.
            match toy.idle.park(Some(Duration::ZERO), || toy.has_work()) {
                Unparked::Searcher(token) => toy.run_jobs(Some(token)),
                Unparked::Withdrawn => toy.run_jobs(None),
                Unparked::TimedOut | Unparked::Stopped => {}
            }
        });
        toy.publish();
        timed_out.join().unwrap();
        // A thread that goes idle later can be woken for work: no token is left without a holder.
        assert_eq!(toy.idle.searching.load(Ordering::Relaxed) % 2, 0, "the search token was lost");
        assert_eq!(toy.idle.parked.lock().len(), 0, "no thread is parked");
        assert_eq!(toy.idle.parked_count.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_thread_that_times_out_does_not_take_away_the_wake_up_of_another() {
    explore_bounded(|| {
        let toy = Toy::new(1, 1).with_poller();
        let timed_out = spawn(&toy, |toy| {
            // A thread about to end that receives the token searches instead.
            let unparked = toy.idle.park(Some(Duration::ZERO), || false);
            if let (Unparked::Searcher(token), false) = (unparked, toy.is_stopping()) {
                toy.run_jobs(Some(token));
            }
        });
        let idle = spawn(&toy, |toy| toy.live(None));
        toy.publish();
        timed_out.join().unwrap();
        idle.join().unwrap();
    });
}

#[test]
fn the_woken_sees_what_the_waker_did() {
    explore_all(|| {
        let toy = Toy::new(1, 0).with_poller();
        let done = Arc::new(Plain::new());
        let seen = Arc::clone(&done);
        let sleeper = spawn(&toy, move |toy| {
            if let Unparked::Searcher(_) = toy.idle.park(Some(Duration::ZERO), || false) {
                seen.read();
            }
        });
        done.write();
        toy.tell();
        sleeper.join().unwrap();
    });
}

/// The stall check revokes the token of a thread that does not come to search, and gives a new
/// token to a second thread. No action of the first thread invalidates the new token; only its
/// holder does.
///
/// Seen to fail with `stop_searching` that gives back any token, not only its own.
#[test]
fn a_token_that_was_revoked_has_no_effect_on_the_next() {
    explore_all(|| {
        let toy = Toy::new(2, 0).with_poller().with_poller();
        toy.idle.searching.store(1, Ordering::Relaxed);
        let late = SearchToken::from_word(1).unwrap();
        let late_thread = spawn(&toy, move |toy| toy.idle.stop_searching(late));
        // As `Pool::look`.
        toy.idle.stop_searching(late);
        let Notified::WakePoller(token) = toy.idle.notify() else { panic!("no thread searches") };
        late_thread.join().unwrap();
        assert_eq!(toy.idle.notify(), Notified::Covered(token));
    });
}

// ---------------------------------------------------------------- one thread always polls

#[test]
fn a_poller_is_left_when_two_take_an_alarm() {
    explore_all(|| {
        let toy = Toy::new(2, 0);
        assert!(toy.idle.join_poll() && toy.idle.join_poll());
        let alarmed = |toy: &Toy| {
            if toy.idle.leave_poll() {
                assert_ne!(toy.idle.pollers(), 0, "no thread polls");
                assert!(toy.idle.join_poll(), "the poller that left may poll again");
            }
        };
        let other = spawn(&toy, alarmed);
        alarmed(&toy);
        other.join().unwrap();
        assert_eq!(toy.idle.pollers(), 2);
    });
}

#[test]
fn there_are_never_more_pollers_than_allowed() {
    explore_all(|| {
        let toy = Toy::new(1, 0);
        let other = spawn(&toy, |toy| {
            let _ = toy.idle.join_poll();
        });
        let joined = toy.idle.join_poll();
        other.join().unwrap();
        assert_eq!(toy.idle.pollers(), 1, "joined here: {joined}");
    });
}

// ---------------------------------------------------------------- the end

#[test]
fn a_thread_that_goes_to_park_sees_the_stop() {
    explore_all(|| {
        let toy = Toy::new(1, 0).with_poller();
        let idle = spawn(&toy, |toy| toy.live(None));
        toy.stop();
        idle.join().unwrap();
    });
}

#[test]
fn all_pollers_see_the_stop() {
    explore_bounded(|| {
        let toy = Toy::new(2, 0);
        let one = spawn(&toy, |toy| toy.live(None));
        let other = spawn(&toy, |toy| toy.live(None));
        toy.stop();
        one.join().unwrap();
        other.join().unwrap();
        assert_eq!(toy.idle.pollers(), 0);
    });
}

#[test]
fn a_stop_in_the_middle_of_a_wake_up_ends_all_threads() {
    explore_bounded(|| {
        let toy = Toy::new(1, usize::MAX).with_poller();
        let idle = spawn(&toy, |toy| toy.live(None));
        let publisher = spawn(&toy, |toy| toy.publish());
        toy.stop();
        idle.join().unwrap();
        publisher.join().unwrap();
    });
}
