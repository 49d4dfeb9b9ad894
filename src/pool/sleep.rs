//! The sleep and wake protocol of the pool: which threads are idle, and which one is told of work (I13, I14).
//!
//! Ground rules. This module knows neither jobs nor queues nor alarms; the callers look for work and block in the kernel. Two kinds
//! of idle thread: *pollers* block in the alarm set, *parked* threads block on a token of their own. A thread that has
//! been woken to look for work is a *searcher*; there is at most one, and it carries a token that says so.
//!
//! Two promises.
//!
//! **One thread always polls (I13).** `pollers` falls only by [`Sleep::leave_poll`], which refuses the last one (and by
//! [`Sleep::quit_poll`] when the pool stops). So a poller that takes an alarm goes on to run callbacks only while another
//! thread keeps watching; the last one stays where it is.
//!
//! **No lost wake-up.** A thread that publishes work: (1) push, (2) `SeqCst` fence, (3) read `searching`, `parked`, `pollers`
//! ([`Sleep::notify`]). A thread that goes idle: (a) register as poller or parked, (b) `SeqCst` fence, (c) look for work once
//! more. The bad interleaving would be: (3) sees no idle thread and (c) sees no work. The two fences are ordered; if (2) comes
//! first, (c) sees the push; if (b) comes first, (3) sees the registration. And when (3) finds a searcher and leaves it at
//! that: a searcher gives its token back (a read-modify-write of `searching`) before it looks a last time, so either
//! its last look sees the push, or (3) reads `searching` after the token was returned. DESIGN.md draws the interleavings;
//! `loom-tests/sleep_vs_wake.rs` runs them.

use std::time::{Duration, Instant};

use crate::sync::{Arc, AtomicUsize, Mutex, Ordering, Thread, current, fence, park};

/// The token on which one thread parks.
pub(crate) struct Parker {
    /// Zero until the thread is woken: then its search token, or [`STOPPED`].
    woken: AtomicUsize,
    thread: Thread,
}

/// Woken without a search token. (Tokens are odd.)
const STOPPED: usize = 2;

impl Parker {
    fn unpark(&self, woken: usize) {
        // Release pairs with the acquire in `Sleep::park`: what the waker did is seen by the woken.
        self.woken.store(woken, Ordering::Release);
        self.thread.unpark();
    }

    /// What the thread was woken with.
    fn look(&self) -> Option<Unparked> {
        // Acquire pairs with the release in `unpark`.
        match self.woken.load(Ordering::Acquire) {
            0 => None,
            STOPPED => Some(Unparked::Stopped),
            token => Some(Unparked::Searcher(SearchToken(token))),
        }
    }
}

/// The search token. At most one is valid at a time; one that was revoked has no effect any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SearchToken(usize);

impl SearchToken {
    /// For a place that holds a token or zero.
    pub(crate) fn to_word(self) -> usize {
        self.0
    }

    pub(crate) fn from_word(word: usize) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }
}

/// How [`Sleep::notify`] was settled.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Notified {
    /// The thread with this token is looking, or has just been unparked to look.
    Covered(SearchToken),
    /// The caller makes one poller return; the search token goes with the event.
    WakePoller(SearchToken),
    /// All threads are busy, but for the poller that must stay.
    Nobody,
}

/// How parking ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unparked {
    /// Woken to look for work, with the search token.
    Searcher(SearchToken),
    /// The pool stops.
    Stopped,
    /// There was work before it came to sleep, or the pool stops; no token.
    Withdrawn,
    /// This thread was not needed for the time given.
    TimedOut,
}

pub(crate) struct Sleep {
    pollers: AtomicUsize,
    /// Odd while a thread searches, and then its token; even while none does.
    searching: AtomicUsize,
    /// Length of `parked`, readable without its lock.
    parked_count: AtomicUsize,
    /// Last in, first out: the warmest thread is woken first.
    parked: Mutex<Vec<Arc<Parker>>>,
    max_pollers: usize,
}

impl Sleep {
    pub(crate) fn new(max_pollers: usize) -> Self {
        assert!(max_pollers > 0, "somebody must watch");
        Self {
            pollers: AtomicUsize::new(0),
            searching: AtomicUsize::new(0),
            parked_count: AtomicUsize::new(0),
            parked: Mutex::new(Vec::new()),
            max_pollers,
        }
    }

    /// Registers a poller, unless there are enough. The caller then looks for work once more before it blocks.
    #[must_use]
    pub(crate) fn join_poll(&self) -> bool {
        let joined = self
            .pollers
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < self.max_pollers).then_some(n + 1))
            .is_ok();
        fence(Ordering::SeqCst);
        joined
    }

    /// Unregisters a poller that goes to run callbacks; refuses the last one.
    #[must_use]
    pub(crate) fn leave_poll(&self) -> bool {
        self.pollers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n > 1).then(|| n - 1)).is_ok()
    }

    /// Unregisters a poller for good: the pool stops.
    pub(crate) fn quit_poll(&self) {
        self.pollers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Work has been published: decides which thread is told.
    pub(crate) fn notify(&self) -> Notified {
        fence(Ordering::SeqCst);
        loop {
            let searching = self.searching.load(Ordering::Relaxed);
            if searching % 2 == 1 {
                return Notified::Covered(SearchToken(searching));
            }
            let parked = self.parked_count.load(Ordering::Relaxed) > 0;
            if !parked && self.pollers.load(Ordering::Relaxed) < 2 {
                return Notified::Nobody;
            }
            let token = SearchToken(searching.wrapping_add(1));
            if let Err(now) = self.searching.compare_exchange(searching, token.0, Ordering::SeqCst, Ordering::Relaxed) {
                if now % 2 == 1 {
                    return Notified::Covered(SearchToken(now));
                }
                continue; // another search has come and gone meanwhile
            }
            if let Some(parker) = self.pop_parked() {
                parker.unpark(token.0);
                return Notified::Covered(token);
            }
            if self.pollers.load(Ordering::Relaxed) >= 2 {
                return Notified::WakePoller(token);
            }
            // They became busy meanwhile. Others may have relied on the token: look again.
            self.stop_searching(token);
        }
    }

    /// The holder of the search token gives it back, then looks for work once more (or has some and tells the next). The stall
    /// check revokes a token in the same way, whose holder has not come to search, and then tells another thread.
    pub(crate) fn stop_searching(&self, token: SearchToken) {
        // It fails if the token was revoked before.
        let _ = self.searching.compare_exchange(token.0, token.0.wrapping_add(1), Ordering::SeqCst, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn pop_parked(&self) -> Option<Arc<Parker>> {
        let mut parked = self.parked.lock();
        let parker = parked.pop();
        self.parked_count.store(parked.len(), Ordering::Relaxed);
        parker
    }

    /// Parks the calling thread until it is told of work, `stay_awake` says otherwise, or `limit` has passed.
    pub(crate) fn park(&self, limit: Option<Duration>, stay_awake: impl FnOnce() -> bool) -> Unparked {
        let parker = Arc::new(Parker { woken: AtomicUsize::new(0), thread: current() });
        {
            let mut parked = self.parked.lock();
            parked.push(Arc::clone(&parker));
            self.parked_count.store(parked.len(), Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        if stay_awake() {
            return self.withdraw(&parker, Unparked::Withdrawn);
        }
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            if let Some(woken) = parker.look() {
                return woken;
            }
            match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => park(),
                Some(Duration::ZERO) => return self.withdraw(&parker, Unparked::TimedOut),
                Some(left) => park_for(left),
            }
        }
    }

    /// Takes the own parker back. If another thread has popped it already, that thread is about to wake this one.
    fn withdraw(&self, parker: &Arc<Parker>, otherwise: Unparked) -> Unparked {
        {
            let mut parked = self.parked.lock();
            if let Some(at) = parked.iter().position(|p| Arc::ptr_eq(p, parker)) {
                parked.remove(at);
                self.parked_count.store(parked.len(), Ordering::Relaxed);
                return otherwise;
            }
        }
        loop {
            if let Some(woken) = parker.look() {
                return woken;
            }
            park();
        }
    }

    /// Wakes all parked threads without giving them a token: the pool stops.
    pub(crate) fn unpark_all(&self) {
        let parked = {
            let mut parked = self.parked.lock();
            self.parked_count.store(0, Ordering::Relaxed);
            std::mem::take(&mut *parked)
        };
        for parker in parked {
            parker.unpark(STOPPED);
        }
    }

    /// Threads that watch now.
    #[cfg(all(test, timerqueue_loom))]
    pub(crate) fn pollers(&self) -> usize {
        self.pollers.load(Ordering::Relaxed)
    }
}

#[cfg(not(all(test, timerqueue_loom)))]
fn park_for(limit: Duration) {
    crate::sync::park_timeout(limit);
}

#[cfg(all(test, timerqueue_loom))]
fn park_for(_: Duration) {
    park(); // time does not pass in a model
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/sleep_vs_wake.rs"]
mod loom_models;
