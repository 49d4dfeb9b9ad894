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

use super::RuntimeHandle;
use crate::engine::{Looked, WakerEntry};
use crate::queue::MissedTicks;
use crate::sync::{Arc, AtomicBool, Ordering, Thread, current, park_until};
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

/// Polls a future on the calling thread until the future is ready. While the future has not been
/// woken, calls `rest`, which may return early. `None`: `rest` has returned false, and the future
/// was not ready at a last poll.
pub(super) fn poll_on<T>(future: impl Future<Output = T>, mut rest: impl FnMut() -> bool) -> Option<T> {
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
        goes_on = rest();
    }
}

/// Blocks the calling thread until the future is ready.
pub(crate) fn park_on<T>(future: impl Future<Output = T>) -> T {
    poll_on(future, || park_until(None)).expect(NO_LIMIT)
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
    let here = RuntimeHandle::current();
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
    let result = poll_on(limited, || match &clock {
        Some(clock) => clock.go_on_or_rest(),
        None => park_until(until),
    });
    result.flatten()
}

/// Whether the limit has come, on a clock other than that of a parked thread, or never will, since
/// the runtime has ended. If not, the waker is called then.
fn has_come(limiting: &mut Option<WakerEntry>, counts: &RuntimeHandle, deadline: u64, waker: &Waker) -> bool {
    let (Ok(engine), now) = (counts.engine(), counts.now()) else { return true };
    let looked = match &limiting {
        _ if now >= deadline => Looked::HasCome,
        Some(entry) => entry.look(waker, deadline, now),
        None => WakerEntry::start(limiting, engine, MissedTicks::Skip.into(), waker, deadline, now),
    };
    looked != Looked::Waits
}
