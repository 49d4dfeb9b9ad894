//! Per-core timer queues, armed by native OS timers, fired on a work-stealing pool.
//!
//! A timer runs a callback after its *due time*, then once every *period*. Any thread can change or
//! dispose the timer at any time. Creating and disposing a timer costs a tenth of a microsecond and
//! no system call, however many timers are pending. A timer fires some tens of microseconds after
//! its due point, never before. A blocking callback delays no further timer. The crate needs no
//! async runtime and works with any.
//!
//! ```
//! use std::{thread, time::Duration};
//! use timerqueue::Timer;
//!
//! // Fires after 5 ms, then every 20 ms. The callback runs on a thread of the pool.
//! let timer = Timer::new(Duration::from_millis(5), Duration::from_millis(20), |tick| {
//!     println!("{:?} late, {} missed", tick.lateness(), tick.missed());
//! });
//!
//! thread::sleep(Duration::from_millis(100)); // prints five lines
//! timer.change(Duration::from_secs(10), Duration::MAX); // once, in 10 s
//! timer.dispose(); // no callback starts after this
//! ```
//!
//! - [`Timer`]: a callback with due time and period; [`OnceTimer`]: a callback that runs once and
//!   is consumed.
//! - [`Runtime`]: queues, threads, shutdown. Functions that name no runtime use the [current
//!   runtime](Runtime::current): usually the default runtime, [`Runtime::global`]; in a callback,
//!   the callback's own.
//! - [`ManualClock`]: virtual time, for tests that take no time; see
//!   [a complete example](Delay#testing-with-virtual-time).
//! - [`WallTimer`]: fires at a time of the wall clock, and follows the wall clock when the clock is
//!   set.
//! - [`MissedTicks`]: the policy of a periodic timer for missed periods.
//! - [`Delay`], [`timeout()`], [`Interval`]: futures for any executor.
//! - [`thread::sleep_until`], [`Interval::blocking_tick`]: for loops on plain threads.
//! - [`DelayQueue`]: values with a key and a due time, delivered to tasks and threads.
//! - [`CancellationTokenSource`] and [`CancellationToken`]: cancel by hand, after a time, or with a
//!   linked source.
//! - [`error`], [`futures`], [`observe`], [`util`]: what programs name less often.
//!
//! For a million sessions with a time-out each, [a
//! list](https://github.com/timerqueue/timerqueue/blob/main/docs/BENCHMARKS.md#delay-queues-q1-to-q4)
//! says which type to take, and what it costs.
//!
//! # Which thread runs what
//!
//! Callbacks run on the threads of the runtime's pool: by default a thread more than there are
//! queues, and further threads while callbacks block. The first use starts them (on 64 cores 65
//! threads and 83 descriptors, in some 4 ms), and not the first firing, where no caller could be
//! told of a refusal; [`RuntimeBuilder::workers`] takes fewer. On a manual clock, callbacks run on
//! the thread that advances the clock. Callbacks, wakers, destructors of values owned by callbacks
//! and panic handlers run with no lock of this crate held.
//!
//! # Time
//!
//! Due times and periods are exact to the nanosecond. They count on a clock that setting the wall
//! clock does not change. Any [`Duration`](std::time::Duration) is accepted: a time beyond the
//! range of the clock means *never*, as does `Duration::MAX`. A [`WallTimer`] waits for a time of
//! the wall clock instead.
//!
//! The program chooses whether the time in suspend counts:
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
//! The program also chooses what wakes a runtime: kernel timers or, where a sandbox refuses kernel
//! timers, timed waits ([`Alarm`]).
//!
//! # Which runtime is used
//!
//! Functions that name no runtime use the [current runtime](Runtime::current): in a callback, the
//! runtime that runs it; in [`Runtime::enter`] and [`Runtime::scope`], the runtime named there;
//! else the default runtime, which starts on first use, or before with settings of the program
//! ([`RuntimeBuilder::start_global`]). Plain forms panic if the default runtime cannot be started;
//! `try_` forms return the reason.
//!
//! # Features
//!
//! - `affinity`: `RuntimeBuilder::pin_workers`; outside of Linux also the set of cores of the
//!   calling thread.
//! - `stream`: [`Interval`] and [`DelayReceiver`] as a `futures_core::Stream`; limits, throttling
//!   and chunks for any stream (`stream::TimerStreamExt`);
//!   `FusedFuture` and `FusedStream` for the futures and streams of this crate, so that
//!   `futures::select!` takes them as they are.
//!
//! # Observers
//!
//! An [`Observer`](observe::Observer) of a runtime is told of panics, slow callbacks, growth of the
//! pool and refused threads. It may also give new timers a context for their callbacks, such as the
//! span in which a timer is made. The crate `timerqueue-adapters` has one for the crate tracing,
//! behind the feature `tracing-0_1`.
//!
//! # How it works
//!
//! Each core has a queue of intrusive doubly-linked lists: *short* timers, due within a window of
//! 333 ms, in slots; *long* timers in a list per later window. Inserting and unlinking are a few
//! instructions under the queue's own lock; the window advances as time passes. Each queue has an
//! OS timer (a timerfd on Linux, a kqueue timer on BSD and macOS), set when a timer becomes the
//! earliest of its queue, and at the end of each sweep. The thread woken by the kernel sweeps the
//! queue, offers the due timers to the work-stealing pool, and runs the first itself.
//! [DESIGN.md](https://github.com/timerqueue/timerqueue/blob/main/DESIGN.md) has the whole design,
//! the promises S1, S2, ..., and the proofs.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(all(test, timerqueue_loom), allow(dead_code))] // a model build runs the models alone

/// `Debug` for a type of this crate: generics, type and its arguments, fields.
macro_rules! shown {
    ([$($generics:tt)*] $shown:ident $([$($args:tt)*])?, |$this:ident| $($field:literal => $value:expr),*) => {
        impl<$($generics)*> std::fmt::Debug for $shown $($($args)*)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $this = self;
                f.debug_struct(stringify!($shown))$(.field($field, &$value))*.finish_non_exhaustive()
            }
        }
    };
}

/// An unwinding leaves no value of these types half-changed.
macro_rules! unwind_safe {
    ($($safe:ty),*) => {
        $(impl std::panic::UnwindSafe for $safe {}
        impl std::panic::RefUnwindSafe for $safe {})*
    };
}

/// `Display` and `Error` for a type of this crate, and if given, its source, and its kind as an
/// error of I/O.
macro_rules! error {
    (
        [$($generics:tt)*] $error:ty, |$this:ident, $f:ident| $written:expr
        $(, source $source:expr)? $(, $(#[$io:meta])* io $kind:expr)?
    ) => {
        impl<$($generics)*> std::fmt::Display for $error {
            fn fmt(&self, $f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                #[allow(unused_variables)] // a text without fields
                let $this = self;
                $written
            }
        }

        impl<$($generics)*> std::error::Error for $error {
            $(fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                let $this = self;
                $source
            })?
        }

        $($(#[$io])*
        impl From<$error> for std::io::Error {
            fn from($this: $error) -> Self {
                Self::new($kind, $this)
            }
        })?
    };
}

/// `From` for a type of this crate: for each source, how the value is made of it.
macro_rules! from {
    ($made:ty: $($part:ty => $make:expr),*) => {
        $(impl From<$part> for $made {
            fn from(part: $part) -> Self {
                ($make)(part)
            }
        })*
    };
}

/// `FusedFuture` or `FusedStream` for a type of this crate (S78): generics, trait, type, condition.
macro_rules! fused {
    ([$($generics:tt)*] $fused:ident for $fused_type:ty, |$this:ident| $is_terminated:expr) => {
        /// Terminated when a poll has been ready (of a stream: has ended it), and not before.
        #[cfg(feature = "stream")]
        impl<$($generics)*> futures_core::$fused for $fused_type {
            fn is_terminated(&self) -> bool {
                let $this = self;
                $is_terminated
            }
        }
    };
}

// The layers, bottom up. A module uses lower layers only; `tests/tidy.rs` checks this.
mod budget;
mod histogram;
mod one_drop;
mod ordered_map;
mod slab;
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

mod delay_queue;

pub mod thread;
pub mod util;

#[cfg(feature = "stream")]
#[cfg_attr(docsrs, doc(cfg(feature = "stream")))]
pub use future::stream;

/// Counts of accesses of shared words, in a build for `tests/process/audit.rs`.
#[cfg(timerqueue_audit)]
pub mod audit {
    pub use crate::sync::audit::{Accesses, Place, counts};
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../loom-tests/mod.rs"]
mod loom_models;

pub use cancellation::{CancelReason, CancellationToken, CancellationTokenSource, DropGuard, Registration};
pub use delay_queue::{DelayQueue, DelayQueueBuilder, DelayReceiver, Due, Expired, Pending};
pub use future::{
    Delay, Interval, IntervalTick, SharedInterval, StopHandle, Timeout, TimerFutureExt, timeout, timeout_at,
};
pub use queue::MissedTicks;
pub use runtime::{Alarm, EnterGuard, ManualClock, Runtime, RuntimeBuilder, RuntimeClock};
pub use time::{Deadline, Timestamp};
pub use timer::{Changed, OnceTimer, Tick, Timer, TimerBuilder, TimerId, Waited, WallTick, WallTimer};

/// The errors of this crate.
pub mod error {
    pub use crate::cancellation::Cancelled;
    pub use crate::delay_queue::{RecvTimeoutError, Refusal, Refused, TryRecvError};
    pub use crate::future::{Elapsed, TimeoutError};
    pub use crate::runtime::{RuntimeError, ShutdownError, StartError};
}

/// The futures that methods of this crate give: for programs that name them, in a struct as a rule.
pub mod futures {
    pub use crate::cancellation::{Cancellation, CancelledFuture, CancelledOwned, RunUntilCancelled, WithToken};
    pub use crate::delay_queue::{InsertWait, Recv};
    pub use crate::future::{CancellableDelay, CancellableInterval, CancellableTimeout, Running};
    pub use crate::runtime::Scoped;
    pub use crate::timer::Disposal;
}

/// What a program sees of a runtime at work: metrics, dumps, snapshots, observers, and hooks.
pub mod observe {
    pub use crate::histogram::Histogram;
    pub use crate::runtime::{
        CallbackContext, CallbackJob, CallbackPanic, Metrics, ObservedCallback, Observer, PendingTimer, SlowCallback,
        ThreadMetrics, ThreadsChanged, TimerDump,
    };
    pub use crate::timer::{TimerSnapshot, TimerState};
}

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

/// The examples of the pages for users of other libraries are tests.
#[cfg(doctest)]
pub mod migrate {
    #[doc = include_str!("../docs/migrate/from-delay-queues.md")]
    pub struct FromDelayQueues;
    #[doc = include_str!("../docs/migrate/from-dotnet.md")]
    pub struct FromDotnet;
    #[doc = include_str!("../docs/migrate/from-go.md")]
    pub struct FromGo;
    #[doc = include_str!("../docs/migrate/from-tokio-time.md")]
    pub struct FromTokioTime;
    #[doc = include_str!("../docs/migrate/from-tokio-util-tokens.md")]
    pub struct FromTokioUtilTokens;
}
