//! The settings of a delay queue.

use std::hash::RandomState;
use std::time::Duration;

use super::shared::SharedQueue;
use super::{DelayQueue, DelayReceiver, Owner};
use crate::queue::MissedTicks;
use crate::queue::tick_policy::TickPolicy;
use crate::runtime::Runtime;
use crate::sync::Arc;

/// The settings of a [`DelayQueue`]. Made by [`DelayQueueBuilder::on`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{DelayQueue, DelayQueueBuilder, ManualClock, Runtime, error::Refusal};
///
/// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
/// let queue: DelayQueue<&str, u32> =
///     DelayQueueBuilder::on(&runtime).capacity(1).leeway(Duration::from_millis(10)).build();
/// queue.insert("first", 1, Duration::from_secs(1)).unwrap();
/// assert_eq!(
///     queue.insert("second", 2, Duration::from_secs(1)).unwrap_err().reason,
///     Refusal::Full
/// );
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
#[derive(Clone, Debug)]
pub struct DelayQueueBuilder<'a, S = RandomState> {
    runtime: &'a Runtime,
    capacity: usize,
    leeway: Duration,
    refuses_overdue: bool,
    hasher: S,
}

impl<'a> DelayQueueBuilder<'a> {
    /// The settings of a queue on a runtime: a capacity, a leeway, a hasher.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::{DelayQueue, DelayQueueBuilder, Runtime};
    ///
    /// let runtime = Runtime::current();
    /// let queue: DelayQueue<u64, String> =
    ///     DelayQueueBuilder::on(&runtime).capacity(10_000).build();
    /// assert_eq!(queue.capacity(), Some(10_000));
    /// ```
    pub fn on(runtime: &'a Runtime) -> Self {
        Self {
            runtime,
            capacity: usize::MAX,
            leeway: Duration::ZERO,
            refuses_overdue: false,
            hasher: RandomState::new(),
        }
    }
}

impl<'a, S> DelayQueueBuilder<'a, S> {
    /// The greatest number of entries. Default: no limit. Zero counts as one.
    ///
    /// A full queue refuses new keys ([`Refusal::Full`](crate::error::Refusal::Full));
    /// [`insert_wait`](DelayQueue::insert_wait) and
    /// [`insert_blocking`](DelayQueue::insert_blocking) wait for room.
    pub fn capacity(mut self, entries: usize) -> Self {
        self.capacity = entries.max(1);
        self
    }

    /// How much later than its due time an entry may be delivered, so that entries share wake-ups.
    /// Default: zero. Entries are delivered at points of a grid, as timers with
    /// [leeway](crate::TimerBuilder::leeway) fire; in order of their due times all the same. An
    /// entry that is overdue at insertion by more than the leeway is delivered at once.
    #[doc(alias("slack", "tolerance"))]
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.leeway = leeway;
        self
    }

    /// Refuses entries whose due time has passed when they are inserted
    /// ([`Refusal::Overdue`](crate::error::Refusal::Overdue)). Default: such entries are delivered
    /// at once. A delay of zero is never refused, and a moved entry neither.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, DelayQueueBuilder, ManualClock, Runtime, error::Refusal};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let queue: DelayQueue<&str, ()> = DelayQueueBuilder::on(&runtime).refuse_overdue().build();
    /// let yesterday = clock.wall() - Duration::from_secs(86_400);
    /// assert_eq!(queue.insert("report", (), yesterday).unwrap_err().reason, Refusal::Overdue);
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn refuse_overdue(mut self) -> Self {
        self.refuses_overdue = true;
        self
    }

    /// The hasher of the keys. Default: std's, with a random seed.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::hash::{BuildHasherDefault, DefaultHasher};
    /// use timerqueue::{DelayQueue, DelayQueueBuilder, ManualClock, Runtime};
    ///
    /// type Hasher = BuildHasherDefault<DefaultHasher>; // without a seed
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let queue: DelayQueue<u64, (), Hasher> =
    ///     DelayQueueBuilder::on(&runtime).hasher(Hasher::default()).build();
    /// assert!(queue.is_empty());
    /// # Ok::<(), timerqueue::error::StartError>(())
    /// ```
    pub fn hasher<T>(self, hasher: T) -> DelayQueueBuilder<'a, T> {
        let Self { runtime, capacity, leeway, refuses_overdue, hasher: _ } = self;
        DelayQueueBuilder { runtime, capacity, leeway, refuses_overdue, hasher }
    }

    /// Makes the queue.
    pub fn build<K, V>(self) -> DelayQueue<K, V, S>
    where
        K: Send + Sync + 'static,
        V: Send + 'static,
    {
        let policy = TickPolicy::new(MissedTicks::default(), self.leeway);
        let clock = self.runtime.engine().clock.clone();
        let shared = SharedQueue::new(self.runtime.handle(), clock, policy, self.refuses_overdue, self.capacity);
        DelayQueue { owner: Arc::new(Owner { receiver: DelayReceiver::new(shared) }), hasher: self.hasher }
    }
}
