//! Looks at the entries of a delay queue: at each, at the next, and removal by a condition.
//!
//! Ground rules. The closures run in lock sections, with the thread marked as inside of the queue
//! (S79). A snapshot would have to copy the keys, under the lock all the same, or to keep
//! references to entries beyond it, which no part of a queue does. Entries that leave are dropped
//! after the section.

use super::state::parts;
use super::types::due_at;
use super::{DelayQueue, Due};
use crate::engine::inside;

impl<K, V, S> DelayQueue<K, V, S> {
    /// Calls `visit` with key, value and due time ([`Due::At`] or [`Due::Wall`]) of each entry, in
    /// no order.
    ///
    /// The queue is locked for about a hundred entries at a time. An entry that is in the queue
    /// throughout the call is visited once. One that is inserted, removed or moved meanwhile may
    /// be visited or not; one removed and inserted again, twice.
    ///
    /// # Panics
    /// If `visit` uses this queue, which is locked meanwhile. A panic of `visit` surfaces here.
    ///
    /// # Examples
    ///
    /// The keys by due time:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, Due, ManualClock, Runtime};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let queue = DelayQueue::on(&runtime);
    /// queue.insert("b", (), Duration::from_secs(2)).unwrap();
    /// queue.insert("a", (), Duration::from_secs(1)).unwrap();
    /// let mut keys = Vec::new();
    /// queue.for_each(|key, _, due| {
    ///     if let Due::At(at) = due {
    ///         keys.push((at, *key));
    ///     }
    /// });
    /// keys.sort();
    /// assert!(keys.iter().map(|(_, key)| *key).eq(["a", "b"]));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("iter", "keys"))]
    pub fn for_each(&self, mut visit: impl FnMut(&K, &V, Due)) {
        let mut next = Some(0);
        while let Some(cursor) = next {
            let section = self.lock();
            let mut visit = |entry: &_| visit(section.key(entry), section.value(entry), due_at(section.due(entry)));
            next = inside(self.shared().address(), || section.walk(cursor, &mut visit));
        }
    }

    /// Removes each entry for which `keep` returns false; it will never be delivered. `keep` may
    /// change values. Entries are visited as by [`for_each`](Self::for_each), and dropped outside
    /// of the lock.
    ///
    /// # Panics
    /// If `keep` uses this queue, which is locked meanwhile. A panic of `keep` surfaces here; the
    /// queue is without the entries that were refused before.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, ManualClock, Runtime};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let queue = DelayQueue::on(&runtime);
    /// for (session, user) in [(1, "ann"), (2, "bob"), (3, "ann")] {
    ///     queue.insert(session, user, Duration::from_secs(1_800)).unwrap();
    /// }
    /// queue.retain(|_, user, _| *user != "ann"); // signed out everywhere
    /// assert!(queue.len() == 1 && queue.contains_key(&2));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias = "removeIf")]
    pub fn retain(&self, mut keep: impl FnMut(&K, &mut V, Due) -> bool) {
        let (mut met, mut gone, mut next) = (Vec::new(), Vec::new(), Some(0));
        while let Some(cursor) = next {
            let mut section = self.lock();
            next = section.walk(cursor, |entry| met.push(entry.clone()));
            for entry in met.drain(..) {
                let due = due_at(section.due(&entry));
                let value = section.value_mut(&entry);
                if !inside(self.shared().address(), || keep(&entry.shared().key, value, due)) {
                    section.remove(&entry);
                    gone.push(entry);
                }
            }
            if section.is_over() {
                section.settle(); // receivers end
            } else {
                drop(section);
            }
            gone.drain(..).for_each(|entry| drop(parts(entry)));
        }
    }

    /// Calls `see` with key, value and due time of the entry that is delivered next, as things are
    /// now. `None`: no entry comes due.
    ///
    /// For tests and displays: the call looks at the entries due about the same time, with the
    /// queue locked. ([`next_due`](Self::next_due) does so in short lock sections.)
    ///
    /// # Panics
    /// If `see` uses this queue, which is locked meanwhile. A panic of `see` surfaces here.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, ManualClock, Runtime};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let queue = DelayQueue::on(&runtime);
    /// queue.insert("later", 2, Duration::from_secs(2)).unwrap();
    /// queue.insert("next", 1, Duration::from_secs(1)).unwrap();
    /// assert_eq!(queue.peek(|key, value, _| (*key, *value)), Some(("next", 1)));
    /// assert_eq!(queue.len(), 2);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn peek<R>(&self, see: impl FnOnce(&K, &V, Due) -> R) -> Option<R> {
        let shared = self.shared();
        loop {
            let now = shared.clock.now();
            let mut section = self.lock();
            if let Ok(entry) = section.next_entry(&shared.clock, now) {
                let entry = entry?;
                let (key, value, due) = (section.key(&entry), section.value(&entry), due_at(section.due(&entry)));
                let seen = inside(shared.address(), || see(key, value, due));
                drop(entry); // with the lock held
                return Some(seen);
            }
        }
    }
}
