//! The sleep and wake protocol of the pool: the idle threads, and the thread to wake for a job
//! (I13, I14).
//!
//! Ground rules. This module knows neither jobs nor queues nor alarms; the callers look for jobs
//! and block in the kernel. There are two kinds of idle threads: *pollers* block in the alarm set,
//! *parked* threads block on a [`Parker`]. A thread woken to look for jobs is the *searcher*; there
//! is at most one searcher, which holds the search token.
//!
//! **A thread always polls (I13).** `pollers` falls only by [`Sleep::leave_poll`], which refuses
//! the last poller (and by [`Sleep::quit_poll`] when the pool stops). So a poller leaves to run
//! callbacks only while another thread polls; the last poller stays.
//!
//! **No lost wake-up (I14).** The two sides are [`Sleep::notify`], and `join_poll` or `park`:
//!
//! ```text
//!   publishes a job                          becomes idle
//!     P1  pushes the job                       T1  registers: as a poller, or among the parked
//!     P2  SeqCst fence                         T2  SeqCst fence
//!     P3  reads searching, parked, pollers     T3  looks into all queues, and blocks if all are empty
//! ```
//!
//! The bad interleaving: P3 sees no idle thread and T3 sees no job. The fences are totally ordered.
//! If P2 comes first, T3 sees the push; if T2 comes first, P3 sees the registration.
//!
//! If P3 finds a searcher, no thread is woken. The searcher returns its token (a read-modify-write
//! of `searching`, then a fence) before its last look into the queues; a searcher that has found a
//! job, before it notifies the next thread. If P2 comes before this fence, the last look sees the
//! push. Else the token was returned before P3, which then reads no token, or that of a later
//! search. `loom-tests/sleep_vs_wake.rs` explores all of this.
//!
//! T3 looks into a deque only if the word of its worker says that it may have jobs: see `has_jobs`
//! in [`super::worker`].

use std::time::{Duration, Instant};

use crate::sync::{Arc, AtomicUsize, Mutex, Ordering, Thread, current, fence, park_until};

/// The place at which a thread parks.
pub(crate) struct Parker {
    /// Zero until the thread is woken: then its search token, or [`STOPPED`].
    woken: AtomicUsize,
    thread: Thread,
}

/// Woken without a search token. (Tokens are odd.)
const STOPPED: usize = 2;

impl Parker {
    fn unpark(&self, woken: usize) {
        // Release pairs with the acquire in `look`: the woken thread sees the writes of the waking
        // thread.
        self.woken.store(woken, Ordering::Release);
        self.thread.unpark();
    }

    /// Parks the calling thread until it is woken; until an instant at most.
    fn wait(&self, until: Option<Instant>) -> Unparked {
        loop {
            // Acquire pairs with the release in `unpark`.
            match self.woken.load(Ordering::Acquire) {
                0 if park_until(until) => {}
                0 => return Unparked::TimedOut,
                STOPPED => return Unparked::Stopped,
                token => return Unparked::Searcher(SearchToken(token)),
            }
        }
    }
}

/// The search token. At most one token is valid at a time; a revoked token has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SearchToken(usize);

impl SearchToken {
    /// For a word that holds a token or zero.
    pub(crate) fn to_word(self) -> usize {
        self.0
    }

    pub(crate) fn from_word(word: usize) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }
}

/// Outcome of [`Sleep::notify`].
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Notified {
    /// The thread with this token searches, or has just been unparked to search.
    Covered(SearchToken),
    /// The caller makes a poller return, and sends it the search token.
    WakePoller(SearchToken),
    /// All threads are busy, except the poller that must stay.
    AllBusy,
}

/// Outcome of [`Sleep::park`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unparked {
    /// Woken to look for jobs, with the search token.
    Searcher(SearchToken),
    /// The pool stops.
    Stopped,
    /// Not parked, since there was a job or the pool stops; no token.
    Withdrawn,
    /// The thread was not needed for the given time.
    TimedOut,
}

pub(crate) struct Sleep {
    pollers: AtomicUsize,
    /// Odd while a thread searches, and then the token; else even.
    searching: AtomicUsize,
    /// The length of `parked`, readable without the lock.
    parked_count: AtomicUsize,
    /// Last in, first out: the thread with the warmest caches is woken first.
    parked: Mutex<Vec<Arc<Parker>>>,
    max_pollers: usize,
}

impl Sleep {
    pub(crate) fn new(max_pollers: usize) -> Self {
        assert!(max_pollers > 0, "a thread must poll");
        Self {
            pollers: AtomicUsize::new(0),
            searching: AtomicUsize::new(0),
            parked_count: AtomicUsize::new(0),
            parked: Mutex::new(Vec::new()),
            max_pollers,
        }
    }

    /// Registers a poller, unless there are `max_pollers`. Afterwards the caller looks for jobs
    /// once more before it blocks.
    #[must_use]
    pub(crate) fn join_poll(&self) -> bool {
        let joined = self
            .pollers
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < self.max_pollers).then_some(n + 1))
            .is_ok();
        fence(Ordering::SeqCst);
        joined
    }

    /// Unregisters a poller that is about to run callbacks; refuses the last poller.
    #[must_use]
    pub(crate) fn leave_poll(&self) -> bool {
        self.pollers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n > 1).then(|| n - 1)).is_ok()
    }

    /// Unregisters a poller for good: the pool stops.
    pub(crate) fn quit_poll(&self) {
        self.pollers.fetch_sub(1, Ordering::Relaxed);
    }

    /// A job has been published: decides which thread is woken.
    pub(crate) fn notify(&self) -> Notified {
        fence(Ordering::SeqCst);
        loop {
            let searching = self.searching.load(Ordering::Relaxed);
            if searching % 2 == 1 {
                return Notified::Covered(SearchToken(searching));
            }
            let parked = self.parked_count.load(Ordering::Relaxed) > 0;
            if !parked && self.pollers.load(Ordering::Relaxed) < 2 {
                return Notified::AllBusy;
            }
            let token = SearchToken(searching.wrapping_add(1));
            if self.searching.compare_exchange(searching, token.0, Ordering::SeqCst, Ordering::Relaxed).is_err() {
                continue; // another search has begun, and perhaps ended, meanwhile
            }
            if let Some(parker) = self.with_parked(Vec::pop) {
                parker.unpark(token.0);
                return Notified::Covered(token);
            }
            if self.pollers.load(Ordering::Relaxed) >= 2 {
                return Notified::WakePoller(token);
            }
            // The idle threads became busy meanwhile. Other publishers may have relied on the
            // token: look again.
            self.stop_searching(token);
        }
    }

    /// The searcher returns the token, then looks for jobs once more (or has a job and wakes the
    /// next thread). The stall check revokes the token of a thread that does not come to search in
    /// the same way, and then wakes another thread.
    pub(crate) fn stop_searching(&self, token: SearchToken) {
        // Fails if the token was revoked before.
        let _ = self.searching.compare_exchange(token.0, token.0.wrapping_add(1), Ordering::SeqCst, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn with_parked<T>(&self, change: impl FnOnce(&mut Vec<Arc<Parker>>) -> T) -> T {
        let mut parked = self.parked.lock();
        let changed = change(&mut parked);
        self.parked_count.store(parked.len(), Ordering::Relaxed);
        changed
    }

    /// Parks the calling thread until it is woken or `limit` has passed; does not park if
    /// `stay_awake` returns true.
    pub(crate) fn park(&self, limit: Option<Duration>, stay_awake: impl FnOnce() -> bool) -> Unparked {
        let parker = Arc::new(Parker { woken: AtomicUsize::new(0), thread: current() });
        self.with_parked(|parked| parked.push(Arc::clone(&parker)));
        fence(Ordering::SeqCst);
        if stay_awake() {
            return self.withdraw(&parker, Unparked::Withdrawn);
        }
        match parker.wait(limit.and_then(|limit| Instant::now().checked_add(limit))) {
            Unparked::TimedOut => self.withdraw(&parker, Unparked::TimedOut),
            woken => woken,
        }
    }

    /// Unregisters the caller's parker. If another thread has popped the parker already, that
    /// thread is about to wake the caller.
    fn withdraw(&self, parker: &Arc<Parker>, otherwise: Unparked) -> Unparked {
        let own = |parked: &mut Vec<_>| parked.iter().position(|p| Arc::ptr_eq(p, parker)).map(|at| parked.remove(at));
        if self.with_parked(own).is_some() { otherwise } else { parker.wait(None) }
    }

    /// Wakes all parked threads without a token: the pool stops.
    pub(crate) fn unpark_all(&self) {
        self.with_parked(std::mem::take).iter().for_each(|parker| parker.unpark(STOPPED));
    }

    /// The number of parked threads.
    pub(super) fn parked(&self) -> usize {
        self.parked_count.load(Ordering::Relaxed)
    }

    /// The number of pollers.
    pub(crate) fn pollers(&self) -> usize {
        self.pollers.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/sleep_vs_wake.rs"]
mod loom_models;
