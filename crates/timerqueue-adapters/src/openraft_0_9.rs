//! Timers for openraft 0.9.
//!
//! openraft runs on an [`AsyncRuntime`]: tasks, channels, random numbers, timers and the time.
//! [`OpenraftRuntime`] leaves tasks, channels and random numbers to openraft's own
//! [`TokioRuntime`], and replaces timers and time.

use std::cmp::Reverse;
use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::Duration;

use openraft::{AsyncRuntime, Instant, OptionalSend, TokioRuntime};
use timerqueue::{Delay, Runtime, Timeout, Timestamp, error::Elapsed, futures::Scoped};

type Rng = <TokioRuntime as AsyncRuntime>::ThreadLocalRng;
type Sender<T> = <TokioRuntime as AsyncRuntime>::OneshotSender<T>;
type Receiver<T> = <TokioRuntime as AsyncRuntime>::OneshotReceiver<T>;
type JoinHandle<T> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;

/// An [`AsyncRuntime`] with the tasks of tokio, and with timers and clock of the [current
/// runtime](Runtime::current).
///
/// Election timeouts, heartbeats and the limits of requests never end early, and are late by tens
/// of microseconds. tokio's timers, which count in milliseconds, are late by about one millisecond.
///
/// **Which runtime.** openraft's trait has no value that could keep a runtime: all its functions
/// are static. So each of them takes the current runtime, and a task keeps the current runtime of
/// the task that spawned it. A node that is started inside of [`Runtime::scope`] has all its timers
/// on that runtime, for instance on virtual time; else they are on the default runtime.
///
/// **Dropping** a node drops its tasks, and with them their timers, which leave the queues at once.
///
/// **When the runtime ends**, time stands still for its nodes: no election begins, no heartbeat is
/// sent, and no request ends by its limit.
///
/// # Panics
/// The functions panic when the current runtime is the default runtime, and cannot be started.
///
/// # Examples
///
/// The types of a cluster:
///
/// ```
/// use std::io::Cursor;
///
/// use timerqueue_adapters::openraft_0_9::OpenraftRuntime;
///
/// openraft::declare_raft_types!(
///     pub Cluster:
///         D = u64,
///         R = u64,
///         NodeId = u64,
///         Node = (),
///         SnapshotData = Cursor<Vec<u8>>,
///         AsyncRuntime = OpenraftRuntime,
/// );
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenraftRuntime;

/// A point in time on the clock of a runtime, as openraft's trait for instants.
///
/// Only instants of the same runtime can be compared. An instant may lie before the origin of the
/// clock; a sleep until then ends at once. At the end of the clock, arithmetic saturates.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use openraft::Instant;
/// use timerqueue::{ManualClock, Runtime};
/// use timerqueue_adapters::openraft_0_9::OpenraftInstant;
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// runtime.enter(|| {
///     let begun = OpenraftInstant::now();
///     clock.advance(Duration::from_secs(3));
///     assert_eq!(begun.elapsed(), Duration::from_secs(3));
/// });
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpenraftInstant {
    /// How long before `at`. Not zero at the origin of the clock alone: openraft subtracts an
    /// election timeout from the present time, which gives an instant before the origin on a clock
    /// that was made just now.
    before: Reverse<Duration>,
    at: Timestamp,
}

impl Instant for OpenraftInstant {
    fn now() -> Self {
        Self { before: Reverse(Duration::ZERO), at: Runtime::current().now() }
    }
}

impl Add<Duration> for OpenraftInstant {
    type Output = Self;

    fn add(self, after: Duration) -> Self {
        let Reverse(before) = self.before;
        Self { before: Reverse(before.saturating_sub(after)), at: self.at + after.saturating_sub(before) }
    }
}

impl AddAssign<Duration> for OpenraftInstant {
    fn add_assign(&mut self, after: Duration) {
        *self = *self + after;
    }
}

impl Sub<Duration> for OpenraftInstant {
    type Output = Self;

    fn sub(self, before: Duration) -> Self {
        let beyond = before.saturating_sub(self.at.as_duration());
        Self { before: Reverse(self.before.0.saturating_add(beyond)), at: self.at - before }
    }
}

impl SubAssign<Duration> for OpenraftInstant {
    fn sub_assign(&mut self, before: Duration) {
        *self = *self - before;
    }
}

impl Sub for OpenraftInstant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        let later = self.at.as_duration().saturating_add(earlier.before.0);
        later.saturating_sub(earlier.at.as_duration().saturating_add(self.before.0))
    }
}

impl AsyncRuntime for OpenraftRuntime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Delay;
    type Instant = OpenraftInstant;
    type TimeoutError = Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = Rng;
    type OneshotSender<T: OptionalSend> = Sender<T>;
    type OneshotReceiver<T: OptionalSend> = Receiver<T>;
    type OneshotReceiverError = <TokioRuntime as AsyncRuntime>::OneshotReceiverError;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        let scoped: Scoped<T> = Runtime::current().scope(future);
        TokioRuntime::spawn(scoped)
    }

    fn sleep(duration: Duration) -> Delay {
        Delay::new(duration)
    }

    fn sleep_until(deadline: OpenraftInstant) -> Delay {
        Delay::until(deadline.at)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Timeout<F> {
        timerqueue::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: OpenraftInstant, future: F) -> Timeout<F> {
        timerqueue::timeout_at(deadline.at, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> Rng {
        TokioRuntime::thread_rng()
    }

    fn oneshot<T: OptionalSend>() -> (Sender<T>, Receiver<T>) {
        TokioRuntime::oneshot()
    }
}
