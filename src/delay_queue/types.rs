//! The values that go into a delay queue and come out of it: due times, delivered entries,
//! refusals.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::time::{END, Timestamp, later, whole_ns};

/// When an entry of a [`DelayQueue`](crate::DelayQueue) is due.
///
/// Made from a [`Duration`], a [`Timestamp`] or a [`SystemTime`] by `into()`; the methods of a
/// queue take any of them.
///
/// # Examples
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use timerqueue::Due;
///
/// assert_eq!(Due::from(Duration::from_secs(5)), Due::After(Duration::from_secs(5)));
/// assert_eq!(Due::from(SystemTime::UNIX_EPOCH), Due::Wall(SystemTime::UNIX_EPOCH));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Due {
    /// A time from the call, on the runtime's clock. Steps of the wall clock change nothing.
    After(Duration),
    /// An instant of the runtime's clock.
    At(Timestamp),
    /// A time of the wall clock. It follows steps of that clock, and time in suspend counts. Kept
    /// exactly from the year 1897 to 2481: an earlier time counts as 1897, and a later time never
    /// comes. (On a wall clock beyond these years an entry is delivered at once.)
    Wall(SystemTime),
}

from!(Due: Duration => Due::After, Timestamp => Due::At, SystemTime => Due::Wall);

/// A clock by which entries are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Axis {
    /// The runtime's clock.
    Running,
    /// The wall clock.
    Wall,
}

/// Both axes.
pub(super) const AXES: [Axis; 2] = [Axis::Running, Axis::Wall];

/// The instant of the wall axis that stands for 1970: 73 years of nanoseconds, so earlier times
/// have instants too.
const EPOCH: u64 = 1 << 61;

/// A time of the wall clock as an instant of the wall axis, saturated at its ends.
pub(super) fn wall_instant(at: SystemTime) -> u64 {
    match at.duration_since(UNIX_EPOCH) {
        Ok(after) => later(EPOCH, whole_ns(after)).min(END),
        Err(before) => EPOCH.saturating_sub(whole_ns(before.duration())),
    }
}

/// The time of the wall clock for an instant of the wall axis.
pub(super) fn wall_time(at: u64) -> SystemTime {
    match at.checked_sub(EPOCH) {
        Some(after) => UNIX_EPOCH + Duration::from_nanos(after),
        None => UNIX_EPOCH - Duration::from_nanos(EPOCH - at),
    }
}

/// The due time that users see for an instant of an axis.
pub(super) fn due_at((axis, at): (Axis, u64)) -> Due {
    match axis {
        Axis::Running => Due::At(Timestamp::from_ns(at)),
        Axis::Wall => Due::Wall(wall_time(at)),
    }
}

/// An entry that a [`DelayQueue`](crate::DelayQueue) has delivered.
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
/// let due = clock.now() + Duration::from_secs(2);
/// queue.insert("order 17", 5, due).unwrap();
/// clock.advance(Duration::from_secs(3));
/// let expired = queue.try_recv().unwrap();
/// assert_eq!((expired.key, expired.value, expired.due), ("order 17", 5, Due::At(due)));
/// assert_eq!(expired.lateness, Duration::from_secs(1));
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Expired<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
    /// The scheduled instant: [`Due::At`] or [`Due::Wall`].
    pub due: Due,
    /// The time from the scheduled instant to the delivery, on the clock of the scheduled instant.
    pub lateness: Duration,
}

/// An entry handed back before it was delivered, by [`DelayQueue::drain`](crate::DelayQueue::drain)
/// or [`DelayQueue::close_and_drain`](crate::DelayQueue::close_and_drain).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pending<K, V> {
    /// The key.
    pub key: K,
    /// The value.
    pub value: V,
    /// The scheduled instant: [`Due::At`] or [`Due::Wall`].
    pub due: Due,
}

/// Why a [`DelayQueue`](crate::DelayQueue) has refused an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The queue has an entry with this key.
    Occupied,
    /// The due time has passed, and the queue was built to
    /// [refuse such entries](crate::DelayQueueBuilder::refuse_overdue).
    Overdue,
    /// The queue is [full](crate::DelayQueueBuilder::capacity).
    Full,
    /// The queue is closed.
    Closed,
}

/// An entry that a [`DelayQueue`](crate::DelayQueue) has refused, with its key and value given
/// back.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{DelayQueue, ManualClock, Runtime, error::Refusal};
///
/// let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
/// let queue = DelayQueue::on(&runtime);
/// queue.insert("order 17", 5, Duration::from_secs(1)).unwrap();
/// let refused = queue.insert("order 17", 4, Duration::from_secs(9)).unwrap_err();
/// assert_eq!((refused.reason, refused.value), (Refusal::Occupied, 4));
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refused<K, V> {
    /// The key of the refused entry.
    pub key: K,
    /// The value of the refused entry.
    pub value: V,
    /// The due time of the refused entry: [`Due::At`] or [`Due::Wall`].
    pub due: Due,
    /// Why the entry was refused.
    pub reason: Refusal,
}

shown!([K, V] Refused [<K, V>], |this| "reason" => this.reason, "due" => this.due);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Occupied => "the delay queue has an entry with this key",
            Self::Overdue => "the due time has passed",
            Self::Full => "the delay queue is full",
            Self::Closed => "the delay queue is closed",
        })
    }
}

error!([K, V] Refused<K, V>, |this, f| fmt::Display::fmt(&this.reason, f));

/// Why [`DelayQueue::try_recv`](crate::DelayQueue::try_recv) has no entry to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TryRecvError {
    /// No entry is due.
    Empty,
    /// The queue is closed and has no entries left, or its runtime has ended.
    Closed,
}

error!([] TryRecvError, |this, f| f.write_str(match this {
    Self::Empty => "no entry of the delay queue is due",
    Self::Closed => "the delay queue is closed and empty, or its runtime has ended",
}));

/// Why [`DelayQueue::recv_timeout`](crate::DelayQueue::recv_timeout) has no entry to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecvTimeoutError {
    /// No entry came due within the limit.
    Timeout,
    /// The queue is closed and has no entries left, or its runtime has ended.
    Closed,
}

error!([] RecvTimeoutError, |this, f| match this {
    Self::Timeout => f.write_str("no entry of the delay queue came due in time"),
    Self::Closed => fmt::Display::fmt(&TryRecvError::Closed, f),
});

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    #[test]
    fn instants_of_the_wall_axis_are_exact_and_saturate() {
        let year = Duration::from_secs(365 * 24 * 60 * 60);
        for time in [UNIX_EPOCH, UNIX_EPOCH + 500 * year, UNIX_EPOCH - 70 * year, UNIX_EPOCH + Duration::from_nanos(1)]
        {
            assert_eq!(wall_time(wall_instant(time)), time);
        }
        assert_eq!(wall_instant(UNIX_EPOCH - 80 * year), 0);
        assert_eq!(wall_instant(UNIX_EPOCH + 512 * year), END);
        assert_eq!(wall_instant(UNIX_EPOCH + 60_000 * year), END);
        assert_eq!(wall_instant(UNIX_EPOCH - 60_000 * year.min(Duration::from_secs(1))), EPOCH - 60_000_000_000_000);
    }
}
