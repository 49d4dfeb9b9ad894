//! The use of the interface: instants (S60), short words (S61), jobs (S62), the default runtime and
//! scopes (S63 to S65), plain and `try_` forms and their errors (S66), tokens in every wait (S67).
//!
//! Ground rules. Tests run on virtual time; the default runtime of the process is used where it is
//! the subject. Tests that set the default runtime, or end it, run in a process of their own.

mod default;
mod errors;
mod execute;
mod hand_over;
mod instants;
mod scopes;
mod short_words;
mod tokens;
mod virtual_executors;

use std::collections::HashSet;
use std::error::Error;
use std::future::pending;
use std::io;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::child::in_child;
use crate::support::{
    Canary, Count, Gate, Journal, NEVER, OnDrop, PATIENCE, block_on, eventually, lock, manual, ms, native, ns, secs,
    within,
};
use timerqueue::{
    CancelReason, CancellationToken, CancellationTokenSource, Changed, Delay, DelayQueue, DelayQueueBuilder, Interval,
    ManualClock, OnceTimer, Runtime, RuntimeClock, Timeout, Timer, TimerBuilder, TimerFutureExt, Timestamp, WallTimer,
    error::{Cancelled, Elapsed, RecvTimeoutError, RuntimeError, ShutdownError, StartError, TimeoutError},
    timeout, timeout_at,
};
