//! A delay queue as its handles, receivers and core timers share it: the lock, and its sections.
//!
//! Ground rules. A [`Section`] is a lock section. The wakers that its state has put into the outbox
//! are woken or dropped when the section ends, with the lock released; the end of a section does
//! not unwind. A thread that has changed what is due, or has taken a wake-up, ends its section by
//! [`Section::settle`]. So this holds whenever the lock is free, and keeps receivers from sleeping
//! too long:
//!
//! - for each entry that is due, a receiver has been notified, as long as receivers sleep; and
//! - while a receiver sleeps, each core timer is armed for the next due point of its clock, or
//!   earlier.
//!
//! The `Eq` of a key runs in a section, as do the closures of walks, and arming may ring on the
//! same thread. In all cases the thread is marked as inside of the queue ([`inside`]). A marked
//! thread that wants the lock would wait for itself: an operation of the queue panics then (S79),
//! and a ring leaves a note, for the end of the section.
//!
//! A notified receiver that is dropped settles too, and so passes its wake-up on. An inserter that
//! sleeps has a core timer queued as well, which finds the inserter at the end of the runtime.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use super::alarms::Alarms;
use super::state::{Outbox, QueueEntry, QueueState};
use super::types::{AXES, Axis};
use crate::alarm::Clock;
use crate::engine::{Looked, inside, is_inside};
use crate::queue::tick_policy::TickPolicy;
use crate::runtime::RuntimeHandle;
use crate::sync::unmodelled::AtomicU8;
use crate::sync::{Mutex, MutexGuard, Ordering};
use crate::time::END;
use crate::unwind::{catch_first, contain, contain_drop, resume};

/// The hash of a key for the table. Mixed, since the table uses the low and the high bits, and a
/// hasher may be weak. Called without the lock.
#[inline]
pub(super) fn hash_of<Q: Hash + ?Sized>(hasher: &impl BuildHasher, key: &Q) -> u64 {
    let hash = hasher.hash_one(key);
    let hash = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}

/// See the module's ground rules.
pub(super) struct SharedQueue<K, V> {
    state: Mutex<QueueState<K, V>>,
    /// The core timers that have rung on a thread with the lock, a bit for each axis. Used with the
    /// lock held.
    notes: AtomicU8,
    pub(super) runtime: RuntimeHandle,
    pub(super) clock: Clock,
    pub(super) policy: TickPolicy,
    pub(super) refuses_overdue: bool,
}

impl<K: Send + Sync + 'static, V: Send + 'static> SharedQueue<K, V> {
    pub(super) fn new(
        runtime: RuntimeHandle,
        clock: Clock,
        policy: TickPolicy,
        refuses_overdue: bool,
        capacity: usize,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me: &Weak<Self>| {
            let bell = |axis| Waker::from(Arc::new(Bell { queue: Weak::clone(me), axis }));
            let state = Mutex::new(QueueState::new(capacity, policy, Alarms::new(AXES.map(bell))));
            Self { state, notes: AtomicU8::new(0), runtime, clock, policy, refuses_overdue }
        })
    }
}

impl<K, V> SharedQueue<K, V> {
    /// # Panics
    /// On a thread that compares a key of this queue, or runs a closure that looks at its entries:
    /// it has the lock.
    #[inline]
    pub(super) fn lock(&self) -> Section<'_, K, V> {
        let guard = self.state.try_lock().unwrap_or_else(|| self.lock_when_free());
        Section { shared: self, guard: Some(guard), must_settle: false }
    }

    #[cold]
    fn lock_when_free(&self) -> MutexGuard<'_, QueueState<K, V>> {
        assert!(!self.is_own(), "`Eq` of a key, or a closure, has called the delay queue that runs it under its lock");
        self.state.lock()
    }

    /// The address under which a thread with the lock is marked.
    pub(super) fn address(&self) -> *const () {
        std::ptr::from_ref(self).cast()
    }

    /// Whether this thread has the lock, and compares, arms, or runs a closure.
    fn is_own(&self) -> bool {
        is_inside(self.address())
    }

    pub(super) fn has_ended(&self) -> bool {
        self.runtime.engine().is_err()
    }

    /// Ends the deliveries, or goes on until the queue is empty.
    pub(super) fn close(&self) {
        let mut section = self.lock();
        section.closed = true;
        section.admit(0);
        section.settle();
    }
}

/// The waker of the timer of an axis.
struct Bell<K, V> {
    queue: Weak<SharedQueue<K, V>>,
    axis: Axis,
}

impl<K: Send + Sync + 'static, V: Send + 'static> Wake for Bell<K, V> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let Some(queue) = self.queue.upgrade() else { return };
        if queue.is_own() {
            queue.notes.fetch_or(1 << self.axis as u8, Ordering::Relaxed);
            return;
        }
        let mut section = queue.lock();
        section.alarms.fired(self.axis);
        section.settle();
    }
}

impl<K, V> Drop for SharedQueue<K, V> {
    fn drop(&mut self) {
        let Self { state, runtime, .. } = self;
        let (state, mut first) = (state.get_mut(), None);
        while let Some((entry, ..)) = state.pop_any() {
            catch_first(&mut first, runtime, || drop(entry));
        }
        // Of futures that were forgotten.
        state.wake_all();
        contain_drop(runtime, std::mem::take(&mut state.outbox.wake));
        resume(first, runtime);
    }
}

/// A lock section.
pub(super) struct Section<'a, K, V> {
    shared: &'a SharedQueue<K, V>,
    guard: Option<MutexGuard<'a, QueueState<K, V>>>,
    /// The end of the section settles.
    must_settle: bool,
}

impl<K, V> Section<'_, K, V> {
    /// Releases the lock, acts on the outbox, and takes the lock again.
    pub(super) fn breathe(&mut self) {
        self.unlock();
        self.guard = Some(self.shared.state.lock());
    }

    fn unlock(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        if guard.outbox.wake.is_empty() && guard.outbox.wakers.is_empty() {
            return;
        }
        let Outbox { wake, wakers } = std::mem::take(&mut guard.outbox);
        drop(guard);
        let runtime = &self.shared.runtime;
        match runtime.engine_if_started() {
            Some(engine) => engine.wake_each(wake),
            None => wake.into_iter().for_each(|waker| contain(runtime, || waker.wake())),
        }
        contain_drop(runtime, wakers);
    }

    /// The entry with this key. Runs `Eq` and `Borrow` of the user, with the thread marked.
    #[inline]
    pub(super) fn find<Q: Eq + ?Sized>(&self, hash: u64, key: &Q) -> Option<QueueEntry<K, V>>
    where
        K: Borrow<Q>,
    {
        let mut with_hash = self.with_hash(hash).peekable();
        with_hash.peek()?;
        let found = inside(self.shared.address(), || with_hash.find(|entry| entry.shared().key.borrow() == key));
        found.cloned()
    }

    fn has_notes(&self) -> bool {
        self.shared.notes.load(Ordering::Relaxed) != 0
    }

    /// The core timers that have rung meanwhile have fired.
    fn take_notes(&mut self) {
        let notes = self.shared.notes.swap(0, Ordering::Relaxed);
        for axis in AXES.into_iter().filter(|&axis| notes & 1 << axis as u8 != 0) {
            self.alarms.fired(axis);
        }
    }

    /// Ends the section by settling.
    #[inline]
    pub(super) fn settle(mut self) {
        self.must_settle = true;
    }

    /// As [`Self::settle`], after entries have left: the receivers of a closed queue end with the
    /// last one, else there is nothing to do.
    pub(super) fn settle_if_over(mut self) {
        self.must_settle = self.is_over();
    }

    /// As [`Self::settle`], after an entry was inserted or moved to `due`: if that is no earlier
    /// than the core timer, there is nothing to do.
    #[inline]
    pub(super) fn settle_for(mut self, (axis, due): (Axis, u64)) {
        let is_earlier = || self.shared.policy.fires_at(due) < self.alarms.armed[axis as usize];
        self.must_settle |= self.receivers.asleep() > 0 && is_earlier();
    }

    /// Wakes the receivers of due entries, and arms or disarms the core timers.
    fn serve(&mut self) {
        self.take_notes();
        if self.receivers.is_empty() && self.inserters.is_empty() {
            return self.alarms.disarm();
        }
        let shared = self.shared;
        while self.receivers.asleep() > 0 || self.inserters.asleep() > 0 {
            if shared.has_ended() {
                return self.wake_all();
            }
            let now = shared.clock.now();
            let mut next = [END; 2];
            if self.receivers.asleep() > 0 {
                let Some(at) = self.wake_receivers(&shared.clock, now) else {
                    self.breathe();
                    continue;
                };
                if self.receivers.asleep() > 0 {
                    next = at;
                } else if self.inserters.asleep() == 0 {
                    return;
                }
            }
            match inside(shared.address(), || self.alarms.arm(&shared.runtime, next, now)) {
                Looked::Waits if !self.has_notes() => return,
                Looked::Waits | Looked::HasCome => self.take_notes(),
                Looked::Closed => return self.wake_all(),
            }
        }
    }
}

impl<K, V> Deref for Section<'_, K, V> {
    type Target = QueueState<K, V>;

    fn deref(&self) -> &QueueState<K, V> {
        self.guard.as_ref().expect("a section holds the lock until it ends")
    }
}

impl<K, V> DerefMut for Section<'_, K, V> {
    fn deref_mut(&mut self) -> &mut QueueState<K, V> {
        self.guard.as_mut().expect("a section holds the lock until it ends")
    }
}

impl<K, V> Drop for Section<'_, K, V> {
    fn drop(&mut self) {
        if self.must_settle || self.has_notes() {
            self.serve();
        }
        self.unlock();
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/receive_vs_insert.rs"]
mod loom_models;
