//! Delays: S35 to S37, the part of S50 for delays, and the end of the runtime (S33).
//!
//! Ground rules. Most tests poll delays on virtual time, where every wake-up can be counted. The
//! tests on real time cover races between a delay and the thread that fires it. They assert that no
//! delay is early, no wake-up is lost, and no waker or entry is left.

mod dropped;
mod future;
mod reset;
mod shutdown;
mod token;
mod wakers;

use std::error::Error as _;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::poll::{CountingWaker, PanickingWaker, panics, poll, poll_with, waker_that};
use crate::support::{
    Count, Gate, Journal, NEVER, PATIENCE, Random, block_on, eventually, lock, manual, ms, native, ns, secs,
};
use crate::support::{us, within};
use timerqueue::{
    CancelReason, CancellationToken, CancellationTokenSource, Delay, OnceTimer, Runtime, Timer, Timestamp,
    error::{Cancelled, RuntimeError, StartError},
    futures::CancellableDelay,
};

const READY: Poll<()> = Poll::Ready(());

/// Whether `poll_try_wait` returns the error that the runtime has ended, while the plain poll stays
/// pending.
fn has_ended(delay: &mut Delay, counter: &CountingWaker) -> bool {
    let tried = delay.poll_try_wait(&mut Context::from_waker(&counter.waker()));
    poll(delay, counter).is_pending() && matches!(tried, Poll::Ready(Err(RuntimeError::Ended)))
}
