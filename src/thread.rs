//! Sleeping threads, on the clock of a runtime: as `std::thread::sleep`, and on virtual time too.
//!
//! A program of plain threads that reads its time from a runtime ([`Runtime::now`]) and sleeps here
//! is tested on a [`ManualClock`] as it stands. In real time a sleep costs no other thread
//! anything, and does not start the default runtime. A task awaits a [`Delay`] instead, since a
//! sleep blocks its thread.
//!
//! [`Runtime::now`]: crate::Runtime::now
//! [`ManualClock`]: crate::ManualClock
//! [`Delay`]: crate::Delay

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use crate::runtime::wait::wait_until;
use crate::runtime::{RuntimeError, RuntimeHandle};
use crate::time::{Deadline, instant};

/// Blocks the thread for `duration` on the clock of the [current
/// runtime](crate::Runtime::current); see [`sleep_until`].
///
/// # Errors
/// As for [`sleep_until`].
///
/// # Panics
/// As for [`sleep_until`].
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, error::RuntimeError, thread};
///
/// fn code_under_test() -> Result<(), RuntimeError> {
///     thread::sleep(Duration::from_secs(3600))
/// }
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// runtime.enter(code_under_test).unwrap();
/// assert_eq!(clock.now().as_duration(), Duration::from_secs(3600));
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[track_caller]
pub fn sleep(duration: Duration) -> Result<(), RuntimeError> {
    let own = RuntimeHandle::current();
    let deadline = instant(own.now(), duration);
    sleep_on(&own, deadline)
}

/// Blocks the thread until `deadline`, a [`Timestamp`](crate::Timestamp) of the [current
/// runtime](crate::Runtime::current)'s clock or a `std::time::Instant`; returns at once if that has
/// passed. A deadline that no clock shows never comes.
///
/// In real time the thread keeps the time itself: the sleep ends as late as a timed wait of this
/// thread, usually by less than 100 us, and never early. On a manual clock the call moves the clock
/// to the next due points until the deadline, as
/// [`ManualClock::block_on`](crate::ManualClock::block_on) does.
///
/// # Errors
/// [`RuntimeError::Ended`], at once, when the runtime has ended or ends before the deadline.
///
/// # Panics
/// On a manual clock as [`ManualClock::block_on`](crate::ManualClock::block_on).
///
/// # Examples
///
/// A loop without drift, each step at its instant:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime, Timestamp, error::RuntimeError, thread};
///
/// fn control(steps: u32, period: Duration) -> Result<(), RuntimeError> {
///     let mut next = Timestamp::now();
///     for _ in 0..steps {
///         next += period;
///         thread::sleep_until(next)?;
///         // ... a step ...
///     }
///     Ok(())
/// }
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// runtime.enter(|| control(200, Duration::from_millis(5))).unwrap();
/// assert_eq!(clock.now().as_duration(), Duration::from_secs(1));
/// # Ok::<(), timerqueue::error::StartError>(())
/// ```
#[track_caller]
pub fn sleep_until(deadline: impl Into<Deadline>) -> Result<(), RuntimeError> {
    let own = RuntimeHandle::current();
    let deadline = own.deadline(deadline.into());
    sleep_on(&own, deadline)
}

fn sleep_on(own: &RuntimeHandle, deadline: u64) -> Result<(), RuntimeError> {
    wait_until(own, deadline, poll_fn(|_| if own.has_come(deadline) { Poll::Ready(()) } else { Poll::Pending }))
}
