//! Per-core timer queues, armed by native OS timers, fired on a work-stealing pool.
//!
//! A timer calls back after its *due time* and then once every *period*; it can be changed or disposed at any time, from
//! any thread. Creating and disposing one costs some tens of nanoseconds and no system call, whatever is pending; a due
//! one fires some tens of microseconds after its instant, never before it; and a callback that blocks delays no other
//! timer. The crate needs no async runtime and works beside any.
//!
//! ```
//! use std::time::Duration;
//! use timerqueue::Timer;
//!
//! // First after 5 s, then every second. The callback runs on a thread of the pool.
//! let timer = Timer::new(Duration::from_secs(5), Duration::from_secs(1), |tick| {
//!     println!("{:?} late, {} missed", tick.lateness(), tick.missed());
//! })?;
//!
//! timer.change(Duration::from_secs(10), Duration::MAX); // once, in 10 s
//! timer.dispose(); // no callback starts after this
//! # Ok::<(), timerqueue::StartError>(())
//! ```
//!
//! - [`Timer`]: due time and period; [`OnceTimer`]: a callback that is consumed by its one run.
//! - [`Runtime`]: queues, threads, shutdown; [`Runtime::global`] is the default one.
//! - [`ManualClock`]: virtual time. Everything that is built on a runtime can be tested in no time at all; see
//!   [a complete example](Delay#testing-with-virtual-time).
//! - [`WallTimer`]: calls back at a time of the wall clock, and follows that clock wherever it is set.
//! - [`MissedTicks`]: what a periodic timer does when whole periods were missed.
//! - [`Delay`], [`timeout()`], [`Interval`]: futures for any executor.
//! - [`CancellationTokenSource`] and [`CancellationToken`]: cancel by hand, after a time, or with another source.
//!
//! # Which thread runs what
//!
//! Callbacks run on the threads of the runtime's pool: by default one more than there are queues, and further ones while
//! callbacks block. On a manual clock they run on the thread that advances it. No lock of this crate is held while code of yours
//! runs: callbacks, wakers, destructors of what callbacks own, panic handlers.
//!
//! # Time
//!
//! Due times and periods are exact to the nanosecond, and count on a clock that wall-clock changes do not touch. Any
//! [`Duration`](std::time::Duration) is accepted: what does not fit the clock is *never*, and `Duration::MAX` is the way to
//! say so. A [`WallTimer`] waits for a time of the wall clock instead.
//!
//! What a clock shows after the system was suspended is a choice:
//!
//! | | [`RuntimeClock::Monotonic`], the default | [`RuntimeClock::Boot`] |
//! |---|---|---|
//! | Linux | `CLOCK_MONOTONIC`: the time in suspend does not count | `CLOCK_BOOTTIME`: it counts |
//! | macOS | `CLOCK_UPTIME_RAW`: the same | `CLOCK_MONOTONIC_RAW`: the same |
//! | OpenBSD | `CLOCK_UPTIME`: the same | on [`Alarm::Portable`] only |
//! | FreeBSD, NetBSD, DragonFly | `CLOCK_MONOTONIC`: the same | none |
//! | Windows | unbiased interrupt time: the same | interrupt time: the same |
//! | [`ManualClock`] | [`suspend`](ManualClock::suspend) does not count | it counts |
//!
//! What wakes a runtime is a choice, too: timers of the kernel's, or, where a sandbox refuses them, timed waits ([`Alarm`]).
//!
//! # How it works
//!
//! Each core has a queue of intrusive doubly-linked lists: *short* timers, due within a window of 333 ms, in slots; *long*
//! ones in a list per later window. Filing and unlinking are a few instructions under the queue's own lock; the window rolls
//! on as time passes. Each queue has one OS timer (a timerfd on Linux, a kqueue timer on BSD and macOS), which is set only
//! when a timer becomes the earliest of its queue. The thread that the kernel wakes sweeps the queue, hands all due timers
//! but the first to the work-stealing pool, and runs the first itself. DESIGN.md in the repository has the whole story, the
//! numbered promises (S1, S2, ...) that these docs cite, and the proofs.

#![cfg_attr(all(test, timerqueue_loom), allow(dead_code))] // a model build runs the models alone

// The layers, bottom up. A module uses lower layers alone; `tests/layers.rs` holds that.
mod budget;
mod sync;
mod sys;
mod time;
mod unwind;

mod queue;

mod alarm;

mod pool;

mod engine;

mod runtime;

mod timer;

mod cancellation;

mod future;

#[cfg(all(test, timerqueue_loom))]
#[path = "../loom-tests/mod.rs"]
mod loom_models;

pub use cancellation::{
    CancelReason, CancellationToken, CancellationTokenSource, Cancelled, CancelledFuture, CancelledOwned, DropGuard,
    Registration, RunUntilCancelled,
};
pub use future::{
    CancellableDelay, CancellableTimeout, Delay, Elapsed, FutureExt, Interval, IntervalTick, StopHandle, Timeout,
    TimeoutError, timeout, timeout_at,
};
pub use queue::MissedTicks;
pub use runtime::{
    Alarm, ManualClock, Runtime, RuntimeBuilder, RuntimeClock, RuntimeError, ShutdownTimedOut, StartError,
};
pub use time::Timestamp;
pub use timer::{Changed, Disposal, OnceTimer, Tick, Timer, TimerBuilder, Waited, WallTick, WallTimer};

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
