//! The settings of a delay queue.

use std::hash::RandomState;
use std::time::Duration;

use super::shared::SharedQueue;
use super::{DelayQueue, Owner};
use crate::queue::MissedTicks;
use crate::queue::tick_policy::TickPolicy;
use crate::runtime::Runtime;
use crate::sync::Arc;

impl Runtime {
    /// A [`DelayQueue`] on this runtime.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{ManualClock, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let queue = runtime.delay_queue();
    /// queue.insert(17, "close the order", Duration::from_secs(1_800)).unwrap();
    /// clock.block_on(async { assert_eq!(queue.recv().await.unwrap().key, 17) });
    /// assert_eq!(clock.now().as_duration(), Duration::from_secs(1_800));
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn delay_queue<K, V>(&self) -> DelayQueue<K, V>
    where
        K: Send + Sync + 'static,
        V: Send + 'static,
    {
        self.delay_queue_builder().build()
    }

    /// A [`DelayQueue`] with a capacity, a leeway, or a hasher of its own.
    ///
    /// # Examples
    ///
    /// ```
    /// use timerqueue::{DelayQueue, ManualClock, Runtime};
    ///
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let queue: DelayQueue<u64, String> = runtime.delay_queue_builder().capacity(10_000).build();
    /// assert_eq!(queue.capacity(), Some(10_000));
    /// # Ok::<(), timerqueue::StartError>(())
    /// ```
    pub fn delay_queue_builder(&self) -> DelayQueueBuilder<'_> {
        DelayQueueBuilder {
            runtime: self,
            capacity: usize::MAX,
            leeway: Duration::ZERO,
            refuses_overdue: false,
            hasher: RandomState::new(),
        }
    }
}

/// The settings of a [`DelayQueue`]. Made by [`Runtime::delay_queue_builder`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{DelayQueue, ManualClock, Refusal, Runtime};
///
/// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
/// let queue: DelayQueue<&str, u32> =
///     runtime.delay_queue_builder().capacity(1).leeway(Duration::from_millis(10)).build();
/// queue.insert("first", 1, Duration::from_secs(1)).unwrap();
/// assert_eq!(queue.insert("second", 2, Duration::from_secs(1)).unwrap_err().reason, Refusal::Full);
/// # Ok::<(), timerqueue::StartError>(())
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

impl<'a, S> DelayQueueBuilder<'a, S> {
    /// The greatest number of entries. Default: no limit. Zero counts as one.
    ///
    /// A full queue refuses new keys ([`Refusal::Full`](crate::Refusal::Full));
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
    #[doc(alias = "slack")]
    #[doc(alias = "tolerance")]
    pub fn leeway(mut self, leeway: Duration) -> Self {
        self.leeway = leeway;
        self
    }

    /// Refuses entries whose due time has passed when they are inserted
    /// ([`Refusal::Overdue`](crate::Refusal::Overdue)). Default: such entries are delivered at
    /// once. A delay of zero is never refused, and a moved entry neither.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue::{DelayQueue, ManualClock, Refusal, Runtime};
    ///
    /// let clock = ManualClock::new();
    /// let runtime = Runtime::builder().manual_clock(&clock).start()?;
    /// let queue: DelayQueue<&str, ()> = runtime.delay_queue_builder().refuse_overdue().build();
    /// let yesterday = clock.wall() - Duration::from_secs(86_400);
    /// assert_eq!(queue.insert("report", (), yesterday).unwrap_err().reason, Refusal::Overdue);
    /// # Ok::<(), timerqueue::StartError>(())
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
    /// use timerqueue::{DelayQueue, ManualClock, Runtime};
    ///
    /// type Hasher = BuildHasherDefault<DefaultHasher>; // without a seed
    /// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
    /// let queue: DelayQueue<u64, (), Hasher> = runtime.delay_queue_builder().hasher(Hasher::default()).build();
    /// assert!(queue.is_empty());
    /// # Ok::<(), timerqueue::StartError>(())
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
        let clock = self.runtime.engine().clock().clone();
        let shared = SharedQueue::new(self.runtime.handle(), clock, policy, self.refuses_overdue, self.capacity);
        DelayQueue { owner: Arc::new(Owner { shared }), hasher: self.hasher }
    }
}
