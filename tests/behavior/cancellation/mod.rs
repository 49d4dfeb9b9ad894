//! Cancellation: S40 to S49, S85 to S88, and cancellation after the end of a runtime (S33).
//!
//! Ground rules. Most tests need no clock; timed cancels run on virtual time. Races are run many
//! times, with both sides started together. Such a test asserts that exactly one of the possible
//! outcomes holds.

mod callbacks;
mod cancel_async;
mod deadlines;
mod linked;
mod root;
mod source;
mod timed;
mod tokens;

use std::error::Error as _;
use std::future::{Future, pending, poll_fn, ready};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::Poll;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::support::poll::{CountingWaker, PanickingWaker, panics, poll, poll_pinned, poll_with, waker_that};
use crate::support::{
    Canary, Count, Gate, Journal, NEVER, OnDrop, PATIENCE, Random, block_on, eventually, lock, manual, ms,
};
use crate::support::{native, secs, us, within};
use timerqueue::{
    CancelReason, CancellationToken, CancellationTokenSource, Delay, DropGuard, OnceTimer, Registration, Runtime,
    Timeout, TimerFutureExt,
    error::{Cancelled, TimeoutError},
    futures::{Cancellation, CancelledFuture, CancelledOwned, RunUntilCancelled},
};

/// Runs both closures at nearly the same time on two threads, the second a little later.
fn race<A: Send, B: Send>(
    skew: Duration,
    first: impl FnOnce() -> A + Send,
    second: impl FnOnce() -> B + Send,
) -> (A, B) {
    let here = AtomicUsize::new(0);
    let meet = || {
        here.fetch_add(1, Ordering::SeqCst);
        while here.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            meet();
            first()
        });
        meet();
        let until = Instant::now() + skew;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        let second = second();
        (other.join().expect("no panic"), second)
    })
}

/// A callback that counts its calls.
fn counting(count: &Count) -> impl FnMut() + Send + use<> {
    let count = count.clone();
    move || {
        count.bump();
    }
}

/// A source on a runtime, with a timed cancel.
fn timed(runtime: &Runtime, after: Duration) -> CancellationTokenSource {
    let source = CancellationTokenSource::on(runtime);
    source.try_cancel_after(after).expect("a runtime of its own");
    source
}

fn reason(source: &CancellationTokenSource) -> Option<CancelReason> {
    source.token().reason()
}
