//! Delay queues: values with a key and a due time, delivered to receivers when they are due.
//!
//! Ground rules. A queue is a lock around its entries ([`state`]). Those of the runtime's clock
//! wait in a timing wheel of their own ([`item_wheel`]), those of the wall clock in a map. Core
//! timers wake receivers ([`alarms`]); no thread polls. `Hash` and `Drop` of the user's types, and
//! wakers, run outside of the lock; `Eq` of a key runs under it ([`shared`]). The handles are here;
//! [`insert`] and [`receive`] have the futures.

mod alarms;
mod builder;
mod insert;
mod item_wheel;
mod key_table;
mod receive;
mod shared;
mod state;
mod types;
mod wait_list;

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::Duration;

pub use self::builder::DelayQueueBuilder;
use self::insert::IfOccupied;
pub use self::insert::InsertWait;
pub use self::receive::{DelayReceiver, Recv};
use self::shared::{Section, SharedQueue, hash_of};
use self::state::{New, QueueEntry, SECTION, parts};
use self::types::{Axis, due_at, wall_instant};
pub use self::types::{Due, Expired, Pending, RecvTimeoutError, Refusal, Refused, TryRecvError};
use crate::engine::inside;
use crate::runtime::wait::NO_LIMIT;
use crate::runtime::{Runtime, RuntimeError};
use crate::sync::Arc;

/// A queue of values with a key and a due time, each delivered once when it is due.
///
/// The replacement for "spawn a task, sleep, act": one queue has any number of pending entries,
/// without a task or timer for each. An entry can be replaced, moved and removed by its key. A
/// `DelayQueue` is a handle: clones share the same queue. Any number of threads and tasks may
/// insert and receive; none needs an async runtime.
///
/// **Due times** ([`Due`]): a `Duration` or a [`Timestamp`](crate::Timestamp) counts on the
/// runtime's clock. A `SystemTime` is a time of the wall clock. It follows steps of that clock in
/// both directions, and time in suspend counts. An entry that has been delivered is not delivered
/// again after a step back. Any horizon will do.
///
/// **Delivery.** No entry is delivered early. Entries are delivered in order of their due times,
/// and ties in order of insertion (of both clocks: the later entry first). An entry overdue at
/// insertion is delivered at once. Waiting receivers are woken in the order in which they began to
/// wait. A receiver that calls while an entry is due takes the entry, even if another receiver was
/// woken for it and has not run yet; the latter then waits again, as the first. An entry goes to
/// one receiver. (A receiver that waits and is [forgotten](std::mem::forget) keeps its place, and
/// uses up one wake-up. The entry is there for the next call.)
///
/// **At rest** a queue costs nothing. While a receiver waits, the queue has one timer per clock in
/// use, set to the next due time. Without a receiver it has none.
///
/// **Costs.** Inserting, removing and moving take one lock section. Its time is constant for
/// entries of the runtime's clock, and grows with the logarithm of their number for those of the
/// wall clock. An entry of the runtime's clock that is due within some 11 minutes, and is moved
/// later, stays in its list. A step of the wall clock costs nothing. An entry takes some 90 bytes
/// beside key and value, one of the wall clock some 50 more.
///
/// **Keys.** `Eq` and `Borrow` of a key run with the queue locked, and only if the queue has a key
/// with the same hash. All other users of the queue wait meanwhile: a slow `Eq` blocks them. `Hash`
/// runs before, without the lock. Each of them may panic: the queue is as it was before the call.
/// Keys and values are dropped outside of the lock.
///
/// **Dropping** the last handle closes the queue, as [`close`](Self::close) does. A
/// [receiver](Self::receiver), which is no handle, delivers what is there, and then ends. Without
/// one, the entries are dropped.
///
/// **When its runtime ends**, receivers end with `None` at once, and insertions are refused.
/// [`drain`](Self::drain) hands back what is there.
///
/// # Panics
///
/// A call inside of the `Eq` of a key panics if it uses the queue that compares the key: it would
/// wait for itself. An `Eq` that waits for another thread's call of the queue waits for ever. The
/// same is true of the closures of [`for_each`](Self::for_each), [`retain`](Self::retain) and
/// [`peek`](Self::peek).
///
/// # Examples
///
/// Fire-and-forget tasks with a payload, on any executor:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::DelayQueue;
///
/// # smol::block_on(async {
/// let queue = DelayQueue::new();
/// queue.insert("mail", "welcome", Duration::from_millis(2)).unwrap();
/// queue.insert("call", "follow up", Duration::from_millis(1)).unwrap();
/// queue.close(); // deliver what is there, then end
/// while let Some(expired) = queue.recv().await {
///     println!("{}: {}, {:?} late", expired.key, expired.value, expired.lateness);
/// }
/// # Ok::<(), timerqueue::error::StartError>(())
/// # }).unwrap();
/// ```
///
/// A thread that receives, and an entry that is moved and then removed:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::DelayQueue;
///
/// let queue = DelayQueue::new();
/// let receiver = std::thread::spawn({
///     let queue = queue.clone();
///     move || queue.recv_blocking()
/// });
/// queue.insert(17, "close the order", Duration::from_secs(1800)).unwrap();
/// assert!(queue.reset(&17, Duration::from_secs(3600)));
/// assert_eq!(queue.remove(&17), Some("close the order")); // paid
/// queue.close();
/// assert_eq!(receiver.join().unwrap(), None);
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
pub struct DelayQueue<K, V, S = RandomState> {
    owner: Arc<Owner<K, V>>,
    hasher: S,
}

/// Closes the queue with the last handle.
struct Owner<K, V> {
    receiver: DelayReceiver<K, V>,
}

impl<K, V> Drop for Owner<K, V> {
    fn drop(&mut self) {
        self.receiver.shared().close();
    }
}

impl<K: Send + Sync + 'static, V: Send + 'static> DelayQueue<K, V> {
    /// A queue on the [current runtime](Runtime::current).
    ///
    /// # Panics
    /// When the default runtime is needed and cannot be started; [`try_new`](Self::try_new) returns
    /// the reason.
    #[expect(clippy::new_without_default, reason = "a runtime may have to be started")]
    #[track_caller]
    pub fn new() -> Self {
        Self::on(&Runtime::current())
    }

    /// As [`new`](Self::new), on a runtime of the caller's choice.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let queue = DelayQueue::on(&runtime);
    /// queue.insert(17, "close the order", Duration::from_secs(1_800)).unwrap();
    /// clock.block_on(async { assert_eq!(queue.recv().await.unwrap().key, 17) });
    /// assert_eq!(clock.now().as_duration(), Duration::from_secs(1_800));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn on(runtime: &Runtime) -> Self {
        DelayQueueBuilder::on(runtime).build()
    }

    /// As [`new`](Self::new), with an error instead of a panic.
    ///
    /// # Errors
    /// When the default runtime is needed and cannot be started, or the current runtime has ended.
    pub fn try_new() -> Result<Self, RuntimeError> {
        Ok(Self::on(&Runtime::try_current()?))
    }
}

impl<K, V, S> DelayQueue<K, V, S> {
    fn shared(&self) -> &Arc<SharedQueue<K, V>> {
        self.owner.receiver.shared()
    }

    fn lock(&self) -> Section<'_, K, V> {
        self.shared().lock()
    }

    /// The number of entries, due or not.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The greatest number of entries. `None`: no limit.
    pub fn capacity(&self) -> Option<usize> {
        Some(self.lock().capacity).filter(|&capacity| capacity < usize::MAX)
    }

    /// Whether [`close`](Self::close) or [`close_and_drain`](Self::close_and_drain) was called.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// The instant at which the next entry is delivered: its due time, or the point of the grid
    /// with leeway. `None`: no entry comes due. Visits the entries due about the same time, in
    /// short lock sections: for tests and displays.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, Due, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let queue = DelayQueue::on(&runtime);
    /// queue.insert("a", (), Duration::from_secs(5)).unwrap();
    /// queue.insert("b", (), clock.wall() + Duration::from_secs(3)).unwrap();
    /// assert_eq!(queue.next_due(), Some(Due::Wall(clock.wall() + Duration::from_secs(3))));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn next_due(&self) -> Option<Due> {
        let shared = self.shared();
        loop {
            let now = shared.clock.now();
            if let Ok(due) = self.lock().next_due(&shared.clock, now) {
                return due.map(due_at);
            }
        }
    }

    /// Waits for the next entry. `None`: the queue is closed and empty, or its runtime has ended.
    ///
    /// Cancel-safe: dropping the future loses no entry. If a receiver was woken and is dropped
    /// before it runs, the next waiting receiver is woken.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let queue = DelayQueue::on(&runtime);
    /// queue.insert("key", "value", Duration::from_secs(5)).unwrap();
    /// let expired = clock.block_on(queue.recv()).unwrap();
    /// assert_eq!((expired.value, expired.lateness), ("value", Duration::ZERO));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn recv(&self) -> Recv<'_, K, V> {
        self.owner.receiver.recv()
    }

    /// Blocks the thread until an entry is due. `None`: the queue is closed and empty, or its
    /// runtime has ended.
    ///
    /// If the [current runtime](Runtime::current) is on a manual clock, the call moves the clock,
    /// as [`ManualClock::block_on`](crate::ManualClock::block_on) does.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::DelayQueue;
    ///
    /// let queue = DelayQueue::new();
    /// queue.insert("key", "value", Duration::from_millis(1)).unwrap();
    /// assert_eq!(queue.recv_blocking().unwrap().value, "value");
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn recv_blocking(&self) -> Option<Expired<K, V>> {
        self.owner.receiver.recv_blocking()
    }

    /// Blocks the thread until an entry is due, or `limit` has elapsed on the runtime's clock. The
    /// limit is kept also while no thread of the runtime is free.
    ///
    /// If the [current runtime](Runtime::current) is on a manual clock, the limit counts on this
    /// clock, and the call moves it, as [`ManualClock::block_on`](crate::ManualClock::block_on)
    /// does.
    ///
    /// # Errors
    /// [`RecvTimeoutError::Timeout`] when no entry came due within the limit.
    /// [`RecvTimeoutError::Closed`] when the queue is closed and empty, or its runtime has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, error::RecvTimeoutError};
    ///
    /// let queue = DelayQueue::<u32, u32>::new();
    /// assert_eq!(queue.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn recv_timeout(&self, limit: Duration) -> Result<Expired<K, V>, RecvTimeoutError> {
        self.owner.receiver.recv_timeout(limit)
    }

    /// Takes an entry that is due, without waiting.
    ///
    /// # Errors
    /// [`TryRecvError::Empty`] when no entry is due. [`TryRecvError::Closed`] when the queue is
    /// closed and empty, or its runtime has ended.
    pub fn try_recv(&self) -> Result<Expired<K, V>, TryRecvError> {
        self.owner.receiver.try_recv()
    }

    /// Takes all entries that are due at the call, in order of delivery, without waiting. Empty: no
    /// entry is due, or the runtime has ended. The call is done in short lock sections.
    ///
    /// # Examples
    ///
    /// Wait for the first, then take the others with it:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let queue = DelayQueue::on(&runtime);
    /// for (key, seconds) in [("a", 1), ("b", 1), ("c", 2)] {
    ///     queue.insert(key, (), Duration::from_secs(seconds)).unwrap();
    /// }
    /// let mut batch = vec![clock.block_on(queue.recv()).unwrap()];
    /// batch.extend(queue.try_recv_all());
    /// assert!(batch.iter().map(|expired| expired.key).eq(["a", "b"]));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("drainTo", "recv_many"))]
    pub fn try_recv_all(&self) -> Vec<Expired<K, V>> {
        self.owner.receiver.try_recv_all()
    }

    /// A receiver that does not keep the queue open: it ends when all handles of the queue are
    /// dropped and no entry is left. See [`DelayReceiver`]. A queue may have any number of
    /// receivers.
    ///
    /// # Examples
    ///
    /// With the feature `stream`, as a stream:
    ///
    /// ```
    /// # #[cfg(feature = "stream")] {
    /// use smol::stream::StreamExt;
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    /// let queue = DelayQueue::on(&runtime);
    /// for n in 0..3 {
    ///     queue.insert(n, (), Duration::from_secs(n)).unwrap();
    /// }
    /// let keys = queue.receiver().map(|expired| expired.key);
    /// drop(queue); // closes it: the stream delivers what is there
    /// assert_eq!(clock.block_on(keys.collect::<Vec<_>>()), [0, 1, 2]);
    /// # }
    /// ```
    #[doc(alias = "stream")]
    pub fn receiver(&self) -> DelayReceiver<K, V> {
        self.owner.receiver.clone()
    }

    /// Closes the queue: it takes no more entries, and delivers those that are there, each when it
    /// is due. Receivers end with `None` when the queue is empty. Inserters that wait are refused.
    /// Closing again does nothing.
    pub fn close(&self) {
        self.shared().close();
    }

    /// Closes the queue and hands back all entries, in order of delivery. Receivers end with
    /// `None`. Works on a closed queue too.
    ///
    /// The call is done in short lock sections.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, ManualClock, Runtime, error::{Refusal, TryRecvError}};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let queue = DelayQueue::on(&runtime);
    /// queue.insert("key", 5, Duration::from_secs(5)).unwrap();
    /// let left = queue.close_and_drain();
    /// assert_eq!((left[0].key, left[0].value), ("key", 5));
    /// assert_eq!(queue.insert("key", 6, Duration::ZERO).unwrap_err().reason, Refusal::Closed);
    /// assert_eq!(queue.try_recv(), Err(TryRecvError::Closed));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn close_and_drain(&self) -> Vec<Pending<K, V>> {
        self.close();
        self.drain()
    }

    /// Takes all entries out of the queue, undelivered, in order of delivery. The queue goes on.
    /// Entries inserted during the call may stay.
    pub fn drain(&self) -> Vec<Pending<K, V>> {
        let shared = self.shared();
        let (now, wall) = (shared.clock.now(), wall_instant(shared.clock.wall()));
        let mut found = Vec::with_capacity(self.len());
        let mut section = self.lock();
        for taken in 0..section.len() {
            if taken % SECTION == SECTION - 1 {
                section.breathe();
            }
            let Some(entry) = section.pop_any() else { break };
            found.push(entry);
        }
        section.settle();
        let left = |(axis, due): (Axis, u64)| i128::from(due) - i128::from(if axis == Axis::Wall { wall } else { now });
        found.sort_by_key(|&(_, due, number)| (left(due), number));
        let pending = |(entry, due, _)| {
            let (key, value) = parts(entry);
            Pending { key, value, due: due_at(due) }
        };
        found.into_iter().map(pending).collect()
    }

    // ---------------------------------------------------------------- looks at the entries

    // The closures run in lock sections, inside of the queue (S79). A snapshot would have to copy
    // the keys, under the lock all the same, or to keep references to entries beyond it, which no
    // part of a queue does. Entries that leave are dropped after the section.

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
            let mut visit =
                |entry: &QueueEntry<K, V>| visit(&entry.shared().key, section.value(entry), due_at(section.due(entry)));
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
            section.settle_if_over();
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
                let (value, due) = (section.value(&entry), due_at(section.due(&entry)));
                let seen = inside(shared.address(), || see(&entry.shared().key, value, due));
                drop(entry); // with the lock held
                return Some(seen);
            }
        }
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> DelayQueue<K, V, S> {
    /// Inserts a value with a key.
    ///
    /// # Errors
    /// [`Refused`], with key and value given back: the queue has the key, is full, or is closed. Or
    /// the due time has passed, and the queue [refuses](DelayQueueBuilder::refuse_overdue) such
    /// entries.
    pub fn insert(&self, key: K, value: V, due: impl Into<Due>) -> Result<(), Refused<K, V>> {
        self.put(key, value, due, IfOccupied::Refuse).map(drop)
    }

    /// Inserts a value, or replaces value and due time of the key's entry; it then counts as
    /// inserted now. Returns the former value. The entry keeps its former key.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert), but not for a key that the queue has.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let queue = DelayQueue::on(&runtime);
    /// assert_eq!(queue.replace("key", 1, Duration::from_secs(1)).unwrap(), None);
    /// assert_eq!(queue.replace("key", 2, Duration::from_secs(5)).unwrap(), Some(1));
    /// assert_eq!(clock.block_on(queue.recv()).unwrap().value, 2);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn replace(&self, key: K, value: V, due: impl Into<Due>) -> Result<Option<V>, Refused<K, V>> {
        self.put(key, value, due, IfOccupied::Replace)
    }

    fn put(&self, key: K, value: V, due: impl Into<Due>, occupied: IfOccupied) -> Result<Option<V>, Refused<K, V>> {
        let now = self.shared().clock.now();
        self.shared().put(self.entry(key, value, due, now), now, occupied)
    }

    /// An entry to insert. Hashes the key, so without the lock.
    fn entry(&self, key: K, value: V, due: impl Into<Due>, now: u64) -> New<K, V> {
        New { hash: hash_of(&self.hasher, &key), key, value, due: self.shared().instant_of(due.into(), now) }
    }

    /// Inserts a value, and waits while the queue is [full](DelayQueueBuilder::capacity). A
    /// duration counts from this call.
    ///
    /// # Errors
    /// As for [`insert`](Self::insert), but not for a full queue.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, DelayQueueBuilder, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let queue: DelayQueue<u32, ()> = DelayQueueBuilder::on(&runtime).capacity(1).build();
    /// queue.insert(1, (), Duration::from_secs(1)).unwrap();
    /// let executor = smol::LocalExecutor::new();
    /// let insert = executor.spawn(queue.insert_wait(2, (), Duration::from_secs(5)));
    /// clock.block_on(executor.run(async {
    ///     assert_eq!(queue.recv().await.unwrap().key, 1);
    ///     insert.await.unwrap();
    ///     assert_eq!(queue.recv().await.unwrap().key, 2);
    /// }));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn insert_wait(&self, key: K, value: V, due: impl Into<Due>) -> InsertWait<'_, K, V> {
        let now = self.shared().clock.now();
        InsertWait::new(self.shared(), self.entry(key, value, due, now), now)
    }

    /// As [`insert_wait`](Self::insert_wait); blocks the thread. If the [current
    /// runtime](Runtime::current) is on a manual clock, the call moves the clock.
    ///
    /// # Errors
    /// As for [`insert_wait`](Self::insert_wait).
    pub fn insert_blocking(&self, key: K, value: V, due: impl Into<Due>) -> Result<(), Refused<K, V>> {
        self.shared().block(None, self.insert_wait(key, value, due)).expect(NO_LIMIT)
    }

    /// Inserts many entries with few lock sections, such as after a restart. Durations count from
    /// the call. Returns the refused entries; an empty result means that all are in.
    ///
    /// The iterator runs to its end first, outside of the lock.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, ManualClock, Runtime};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let queue = DelayQueue::on(&runtime);
    /// let rows = [("a", 1, 10), ("b", 2, 20), ("a", 3, 30)];
    /// let refused =
    ///     queue.insert_many(rows.map(|(key, value, s)| (key, value, Duration::from_secs(s))));
    /// assert_eq!((queue.len(), refused.len(), refused[0].value), (2, 1, 3));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn insert_many<D: Into<Due>>(&self, entries: impl IntoIterator<Item = (K, V, D)>) -> Vec<Refused<K, V>> {
        let now = self.shared().clock.now();
        let new = |(key, value, due)| self.entry(key, value, due, now);
        self.shared().put_many(entries.into_iter().map(new).collect(), now)
    }

    /// Removes an entry, which will never be delivered, and returns its value. `None`: the queue
    /// does not have the key, or the entry was delivered.
    #[doc(alias = "cancel")]
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let hash = hash_of(&self.hasher, key);
        let mut section = self.lock();
        let found = section.find(hash, key)?;
        section.remove(&found);
        section.settle_if_over();
        Some(parts(found).1)
    }

    /// Gives an entry a new due time, in one step; it then counts as inserted now. False: the queue
    /// does not have the key, or the entry was delivered. Works on a closed queue too.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let queue = DelayQueue::on(&runtime);
    /// queue.insert(String::from("idle"), (), Duration::from_secs(30)).unwrap();
    /// clock.advance(Duration::from_secs(20));
    /// assert!(queue.reset("idle", Duration::from_secs(30)));
    /// clock.advance(Duration::from_secs(20));
    /// assert!(queue.try_recv().is_err());
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    #[doc(alias("move_to", "change"))]
    pub fn reset<Q: Hash + Eq + ?Sized>(&self, key: &Q, due: impl Into<Due>) -> bool
    where
        K: Borrow<Q>,
    {
        let shared = self.shared();
        let now = shared.clock.now();
        let due = shared.instant_of(due.into(), now);
        let hash = hash_of(&self.hasher, key);
        let mut section = self.lock();
        let Some(found) = section.find(hash, key) else { return false };
        section.reschedule(&found, due, now);
        drop(found);
        section.settle_for(due);
        true
    }

    /// The due time of an entry: [`Due::At`] or [`Due::Wall`]. `None`: the queue does not have the
    /// key.
    pub fn due<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Due>
    where
        K: Borrow<Q>,
    {
        let hash = hash_of(&self.hasher, key);
        let section = self.lock();
        let found = section.find(hash, key)?;
        Some(due_at(section.due(&found)))
    }

    /// Whether the queue has the key.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, ManualClock, Runtime};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let queue = DelayQueue::on(&runtime);
    /// queue.insert("key", (), Duration::from_secs(1)).unwrap();
    /// assert!(queue.contains_key("key") && !queue.contains_key("other"));
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn contains_key<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.due(key).is_some()
    }
}

impl<K, V, S: Clone> Clone for DelayQueue<K, V, S> {
    fn clone(&self) -> Self {
        Self { owner: Arc::clone(&self.owner), hasher: self.hasher.clone() }
    }
}

shown!([K, V, S] DelayQueue [<K, V, S>], |this| "len" => this.len(), "closed" => this.is_closed());
