//! Models of the sleep and wake protocol of the pool.
//!
//! Promises (`src/pool/idle.rs`): *no lost wake-up* (published work is run without another wake-up having to come) and
//! *somebody always watches*. A lost wake-up shows as a deadlock: every thread is asleep, and the work is there.
//!
//! The bad interleavings:
//!
//! ```text
//!   who publishes                        who goes idle
//!     push                                 look for work: none
//!     nobody is registered: tell nobody
//!                                          register, sleep
//!
//!   who publishes                        who searches
//!     push                                 look for work: none
//!     somebody searches: tell nobody
//!                                          give the token back, sleep
//!
//!   who publishes                        who was parked, and has waited long enough
//!     pop its parker, pass the token
//!                                          leave, and take the token along: nobody searches ever after
//! ```
//!
//! The queue of the models is a relaxed counter: it orders nothing, as little as a queue possibly could, so that the
//! protocol has to do without its help. The alarm set is a doorbell: one ring rouses one watcher, now or later.
//!
//! Seen to fail with, each left out or changed by itself: the fence of `notify`, of `join_poll`, of `park`, of
//! `stop_searching`; the last look (`stay_awake`) of `park`; `withdraw` that answers `otherwise` in both cases;
//! `leave_poll` that lets the last one go, or reads and writes in two steps; `unpark_all` that forgets to unpark;
//! `notify` that keeps the token when nobody was there after all; `woken` set after the unpark.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Tally, Ordering::Relaxed};
use std::time::Duration;

use loom::thread;

use super::{Notified, SearchToken, Sleep, Unparked};
use crate::loom_models::explore::{Plain, explore_all, explore_bounded};
use crate::sync::{AtomicBool, AtomicUsize, Condvar, Mutex, Ordering, fence};

/// One ring rouses one who waits, or the next who would.
struct Doorbell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Doorbell {
    fn new() -> Self {
        Self { rung: Mutex::new(false), heard: Condvar::default() }
    }

    fn ring(&self) {
        *self.rung.lock() = true;
        self.heard.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock();
        while !*rung {
            self.heard.wait(&mut rung);
        }
        *rung = false;
    }
}

/// A pool that is told to stop as soon as it has run so many jobs.
struct Toy {
    idle: Sleep,
    jobs: AtomicUsize,
    bell: Doorbell,
    /// The token that goes with a ring.
    sent: AtomicUsize,
    stopping: AtomicBool,
    /// Jobs that are still to be run.
    left: Tally,
}

impl Toy {
    fn new(max_pollers: usize, jobs: usize) -> Arc<Self> {
        Arc::new(Self {
            idle: Sleep::new(max_pollers),
            jobs: AtomicUsize::new(0),
            bell: Doorbell::new(),
            sent: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
            left: Tally::new(jobs),
        })
    }

    fn publish(&self) {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        self.tell();
    }

    /// As `Pool::notify`. Where that would arm the probe, this relies on the busy ones to come back.
    fn tell(&self) {
        if let Notified::WakePoller(token) = self.idle.notify() {
            self.sent.store(token.to_word(), Ordering::Release);
            self.bell.ring();
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
        self.bell.ring();
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// As the life of a worker: run, rest, and again.
    fn live(&self, mut token: Option<SearchToken>) {
        loop {
            self.run_jobs(token);
            let roused = if self.idle.join_poll() { self.wait() } else { self.rest() };
            match roused {
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
                // How a pool stops is explored by models of its own.
                loom::stop_exploring();
                self.stop();
            }
        }
        if let Some(token) = token {
            self.idle.stop_searching(token);
        }
    }

    /// Parks. `None`: the thread ends; otherwise, the search token if it has that.
    fn rest(&self) -> Option<Option<SearchToken>> {
        let unparked = self.idle.park(None, || self.is_stopping() || self.has_work());
        let token = match unparked {
            Unparked::Searcher(token) => Some(token),
            _ => None,
        };
        (!self.is_stopping()).then_some(token)
    }

    /// Watches; the answer is that of `rest`.
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
                self.bell.ring(); // the next one
                return None;
            }
            self.bell.wait();
            if self.is_stopping() {
                continue;
            }
            // Rung by `tell`: the token came along.
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

    /// Somebody who watches and never leaves, for models of two threads.
    fn with_watcher(self: Arc<Self>) -> Arc<Self> {
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
        let toy = Toy::new(1, 1).with_watcher();
        let idle = spawn(&toy, |toy| toy.live(None));
        toy.publish();
        idle.join().unwrap();
    });
}

#[test]
fn work_is_seen_by_a_thread_that_goes_to_watch() {
    explore_all(|| {
        let toy = Toy::new(2, 1).with_watcher();
        let idle = spawn(&toy, |toy| toy.live(None));
        toy.publish();
        idle.join().unwrap();
    });
}

#[test]
fn work_is_seen_by_a_searcher_that_gives_up() {
    for max_pollers in [1, 2] {
        explore_all(move || {
            let toy = Toy::new(max_pollers, 1).with_watcher();
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
            let toy = Toy::new(max_pollers, 2).with_watcher();
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
        let toy = Toy::new(1, 2).with_watcher();
        let tired = spawn(&toy, |toy| {
            // A limit of nothing is over at once, and the notifier comes before or after.
            match toy.idle.park(Some(Duration::ZERO), || toy.has_work()) {
                Unparked::Searcher(token) => toy.run_jobs(Some(token)),
                Unparked::Withdrawn => toy.run_jobs(None),
                Unparked::TimedOut | Unparked::Stopped => {}
            }
        });
        toy.publish();
        tired.join().unwrap();
        // Whoever comes later is told of work: no token is held by nobody.
        assert_eq!(toy.idle.searching.load(Ordering::Relaxed) % 2, 0, "the search token was taken away");
        assert_eq!(toy.idle.parked.lock().len(), 0, "nobody is parked");
        assert_eq!(toy.idle.parked_count.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_thread_that_times_out_does_not_take_away_the_wake_up_of_another() {
    explore_bounded(|| {
        let toy = Toy::new(1, 1).with_watcher();
        let tired = spawn(&toy, |toy| {
            // The token has come to a thread that was about to end: it searches instead.
            let unparked = toy.idle.park(Some(Duration::ZERO), || false);
            if let (Unparked::Searcher(token), false) = (unparked, toy.is_stopping()) {
                toy.run_jobs(Some(token));
            }
        });
        let idle = spawn(&toy, |toy| toy.live(None));
        toy.publish();
        tired.join().unwrap();
        idle.join().unwrap();
    });
}

#[test]
fn the_woken_sees_what_the_waker_did() {
    explore_all(|| {
        let toy = Toy::new(1, 0).with_watcher();
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

/// The stall check takes the token from a thread that does not come to search, and gives a new one to another: whatever the
/// first thread does then, the new token stays valid until its holder gives it back.
///
/// Seen to fail with a `stop_searching` that gives back any token, not just its own.
#[test]
fn a_token_that_was_revoked_has_no_effect_on_the_next() {
    explore_all(|| {
        let toy = Toy::new(2, 0).with_watcher().with_watcher();
        toy.idle.searching.store(1, Ordering::Relaxed);
        let late = SearchToken::from_word(1).unwrap();
        let kept_from_it = spawn(&toy, move |toy| toy.idle.stop_searching(late));
        // As `Pool::look`.
        toy.idle.stop_searching(late);
        let Notified::WakePoller(token) = toy.idle.notify() else { panic!("no thread searches") };
        kept_from_it.join().unwrap();
        assert_eq!(toy.idle.notify(), Notified::Covered(token));
    });
}

// ---------------------------------------------------------------- somebody always watches

#[test]
fn somebody_always_watches_when_two_take_an_alarm() {
    explore_all(|| {
        let toy = Toy::new(2, 0);
        assert!(toy.idle.join_poll() && toy.idle.join_poll());
        let alarmed = |toy: &Toy| {
            if toy.idle.leave_poll() {
                assert_ne!(toy.idle.pollers(), 0, "nobody watches");
                assert!(toy.idle.join_poll(), "there is room again for the one who left");
            }
        };
        let other = spawn(&toy, alarmed);
        alarmed(&toy);
        other.join().unwrap();
        assert_eq!(toy.idle.pollers(), 2);
    });
}

#[test]
fn there_are_never_more_watchers_than_allowed() {
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
        let toy = Toy::new(1, 0).with_watcher();
        let idle = spawn(&toy, |toy| toy.live(None));
        toy.stop();
        idle.join().unwrap();
    });
}

#[test]
fn all_watchers_see_the_stop() {
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
fn a_stop_in_the_middle_of_a_wake_up_ends_everybody() {
    explore_bounded(|| {
        let toy = Toy::new(1, usize::MAX).with_watcher();
        let idle = spawn(&toy, |toy| toy.live(None));
        let publisher = spawn(&toy, |toy| toy.publish());
        toy.stop();
        idle.join().unwrap();
        publisher.join().unwrap();
    });
}
