//! The wait of a thread: for a future, up to a limit, in real time or on virtual time.
//!
//! Ground rules. A thread waits parked, and its waker unparks it. A limit in real time is the limit
//! of the parked thread itself: no timer of a pool, whose threads may all be blocked, has a part in
//! it. What time can bring (a cancellation, an entry, room) is waited for in [`wait`], which moves
//! the manual clock of the thread's current runtime. The end of code that another thread runs is
//! waited for in [`park_on`], which moves no clock: no time need pass.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::{ManualClock, RuntimeError, RuntimeHandle};
use crate::engine::{Looked, WakerEntry};
use crate::sync::{Arc, AtomicBool, Ordering, Thread, current, park_timeout, park_until};
use crate::time::{END, instant};

/// Why the result of a wait without a limit is there.
pub(crate) const NO_LIMIT: &str = "a wait without a limit ends with its future";

/// A flag that is set by a waker, of a future that a thread or another future polls.
pub(crate) struct Woken {
    flag: AtomicBool,
    /// The thread to unpark.
    thread: Option<Thread>,
}

impl Woken {
    /// A set flag: the future is polled once in any case.
    pub(crate) fn new(thread: Option<Thread>) -> Arc<Self> {
        Arc::new(Self { flag: AtomicBool::new(true), thread })
    }

    /// Whether the future was woken since the last call.
    pub(crate) fn take(&self) -> bool {
        self.flag.swap(false, Ordering::Acquire)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A swap, since loom may order a store before a swap of the waiting thread which has not
        // read it.
        self.flag.swap(true, Ordering::Release);
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }
}

/// The period at which a thread on virtual time looks again while it has nothing to run: another
/// thread may have armed a timer, stopped driving, or switched on automatic advance.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Polls a future on the calling thread until the future is ready. While the future has not been
/// woken, the thread moves `clock`, or without a clock is parked. `None`: the thread was parked
/// until `until`, and the future was not ready at a last poll.
pub(super) fn poll_on<T>(
    clock: Option<&ManualClock>,
    until: Option<Instant>,
    future: impl Future<Output = T>,
) -> Option<T> {
    let woken = Woken::new(Some(current()));
    let waker = Waker::from(Arc::clone(&woken));
    let mut future = pin!(future);
    let mut goes_on = true;
    loop {
        if woken.take() || !goes_on {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(value) => return Some(value),
                Poll::Pending if !goes_on => return None,
                Poll::Pending => continue, // the future may have called its own waker
            }
        }
        match clock {
            Some(clock) => _ = clock.go_on(|| park_timeout(LOOK_AGAIN)),
            None => goes_on = park_until(until),
        }
    }
}

/// Blocks the calling thread until the future is ready.
pub(crate) fn park_on<T>(future: impl Future<Output = T>) -> T {
    poll_on(None, None, future).expect(NO_LIMIT)
}

/// Blocks the calling thread until the future is ready, or `limit` has elapsed: `None`.
///
/// If the current runtime of the thread is on a manual clock, the call moves this clock, and the
/// limit counts on it. Otherwise the limit counts on the clock of `own`. A manual clock is then
/// moved by other threads. On a clock of the system the parked thread keeps the limit; a queue is
/// asked only to tell of the time in suspend.
pub(crate) fn wait<T>(own: &RuntimeHandle, limit: Option<Duration>, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    // Usually a thread need not wait, and then needs no waker.
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => return Some(value),
        Poll::Pending if limit == Some(Duration::ZERO) => return None,
        Poll::Pending => {}
    }
    // A wait for what other threads do needs no runtime, so it may be on a thread without one.
    let here = RuntimeHandle::try_current().unwrap_or(RuntimeHandle::Global);
    let clock = here.manual_clock();
    let counts = if clock.is_some() { &here } else { own };
    let deadline = limit.filter(|_| !counts.is_monotonic()).map(|limit| instant(counts.now(), limit).min(END));
    let until = limit.filter(|_| !counts.is_manual()).and_then(|limit| Instant::now().checked_add(limit));
    // Dropped also when a callback that the wait runs, or the wait itself, panics.
    let mut limiting = None;
    let limited = poll_fn(|context| match (future.as_mut().poll(context), deadline) {
        (Poll::Ready(value), _) => Poll::Ready(Some(value)),
        (Poll::Pending, Some(deadline)) if has_come(&mut limiting, counts, deadline, context.waker()) => {
            Poll::Ready(None)
        }
        (Poll::Pending, _) => Poll::Pending,
    });
    poll_on(clock.as_ref(), until, limited).flatten()
}

/// Blocks the calling thread until the future is ready, which looks at the clock of `own`: it is
/// polled at `deadline`, and when it is woken. `Err`: the runtime has ended before.
///
/// On a clock of the system the parked thread keeps the time itself, and the queue has an entry
/// without a due point, which the end of the runtime finds; the default runtime is not started for
/// it. A manual clock is moved if it is that of the thread's current runtime, else by other
/// threads.
pub(crate) fn wait_until<T>(
    own: &RuntimeHandle,
    deadline: u64,
    future: impl Future<Output = T>,
) -> Result<T, RuntimeError> {
    let mut future = pin!(future);
    let is_own = |here: &ManualClock| own.manual_clock().is_some_and(|own| Arc::ptr_eq(&own.inner, &here.inner));
    // As in `wait`: the thread may be one without a runtime.
    let clock = RuntimeHandle::try_current().ok().and_then(|here| here.manual_clock()).filter(is_own);
    let entry_at = if own.is_monotonic() { END } else { deadline.min(END) };
    let mut ending = None;
    let mut limited = pin!(poll_fn(|context| {
        if let Poll::Ready(value) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(value));
        }
        let Some(engine) = own.engine_if_started() else { return Poll::Pending };
        let (waker, now) = (context.waker(), own.now());
        match WakerEntry::poll(&mut ending, engine, waker, entry_at, now) {
            Looked::Waits => {}
            // The future did not see the deadline come.
            Looked::HasCome => context.waker().wake_by_ref(),
            Looked::Closed if own.has_come(deadline) => context.waker().wake_by_ref(),
            Looked::Closed => return Poll::Ready(Err(RuntimeError::Ended)),
        }
        Poll::Pending
    }));
    loop {
        let left = Duration::from_nanos(deadline.saturating_sub(own.now()));
        let until = if own.is_manual() || deadline >= END { None } else { Instant::now().checked_add(left) };
        // `None`: the clock of the thread was ahead of the runtime's.
        if let Some(result) = poll_on(clock.as_ref(), until, limited.as_mut()) {
            return result;
        }
    }
}

/// Whether the limit has come, on a clock other than that of a parked thread, or never will, since
/// the runtime has ended. If not, the waker is called then.
fn has_come(limiting: &mut Option<WakerEntry>, counts: &RuntimeHandle, deadline: u64, waker: &Waker) -> bool {
    let (Ok(engine), now) = (counts.engine(), counts.now()) else { return true };
    now >= deadline || WakerEntry::poll(limiting, engine, waker, deadline, now) != Looked::Waits
}
