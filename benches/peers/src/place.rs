//! The place where a contender's operations run: a bare thread, or a runtime of tokio.
//!
//! Ground rules, for fairness. Operations inside tokio run within `block_on`, in a single poll of
//! the outer future (`unconstrained`, so no budget runs out), and poll their futures with a waker
//! that does nothing. So no contender pays for an executor, only for its timers. With
//! `current_thread` each measuring thread has a runtime of its own, as in a thread-per-core
//! program; with `multi_thread` all threads share a runtime. All runtimes have every driver
//! enabled, as with `#[tokio::main]`.
//!
//! A runtime without timers wakes its driver (a system call) for each new timer, which is then the
//! earliest. A program nearly always has an earlier timer. So each runtime of each contender has a
//! *heartbeat*, a timer due every 100 ms, unless the title names a different one or none.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use timerqueue::Timer;
use tokio::runtime::{Builder, Runtime};

use crate::measure::on_cores;

/// Measurements are made on one thread, and on this number of threads.
pub(crate) const THREADS: usize = 2;
/// The period of the heartbeat.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(100);

/// tokio's runtimes.
pub(crate) struct Tokio {
    pub(crate) current: Vec<Runtime>,
    pub(crate) multi: Runtime,
}

impl Tokio {
    /// Starts the runtimes, each with a heartbeat, or without any timer.
    pub(crate) fn new(heartbeat: Option<Duration>) -> Self {
        let current = || Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        let tokio = Self {
            current: (0..THREADS).map(|_| current()).collect(),
            multi: Builder::new_multi_thread().enable_all().build().expect("a runtime starts"),
        };
        if let Some(period) = heartbeat {
            for runtime in tokio.current.iter().chain([&tokio.multi]) {
                runtime.spawn(async move {
                    loop {
                        tokio::time::sleep(period).await;
                    }
                });
            }
        }
        tokio
    }
}

/// The heartbeats of this crate, one in the queue of each measured core.
pub(crate) fn our_heartbeats(runtime: &timerqueue::Runtime, period: Duration) -> Vec<Timer> {
    on_cores(THREADS, |_, _| Timer::on(runtime, period, period, |_| {}))
}

/// The heartbeats of peers with a single reactor for the whole process. They tick until this value
/// is dropped.
pub(crate) struct GlobalHeartbeats(Arc<AtomicBool>);

impl GlobalHeartbeats {
    pub(crate) fn start(period: Duration) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let beat = |wait: fn(Duration)| {
            let end = Arc::clone(&end);
            std::thread::spawn(move || {
                while !end.load(Ordering::Relaxed) {
                    wait(period);
                }
            });
        };
        beat(|period| {
            async_io::block_on(async_io::Timer::after(period));
        });
        beat(|period| wait_for(futures_timer::Delay::new(period)));
        Self(end)
    }
}

impl Drop for GlobalHeartbeats {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Blocks the thread until `future` is ready, with the waker of a parked thread.
pub(crate) fn wait_for<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

/// See the module's ground rules.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    Thread,
    Current(&'a [Runtime]),
    Multi(&'a Runtime),
}

/// The context of an operation on one of several measuring threads.
pub(crate) struct Lane<'a> {
    /// The index of the thread.
    pub(crate) index: usize,
    /// All threads wait at this barrier before they start.
    start: &'a Barrier,
}

impl Lane<'_> {
    /// Ends the set-up; the measurement starts when all threads have called this.
    pub(crate) fn ready(&self) {
        self.start.wait();
    }
}

impl Place<'_> {
    /// Runs `work` in this place.
    pub(crate) fn enter<T>(self, index: usize, work: impl FnOnce() -> T) -> T {
        let (runtime, turns) = match self {
            Place::Thread => return work(),
            // A `current_thread` driver must run, to see due timers and to compute its next wait.
            Place::Current(runtimes) => (&runtimes[index], 4),
            Place::Multi(runtime) => (runtime, 0),
        };
        runtime.block_on(tokio::task::unconstrained(async {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            work()
        }))
    }

    /// Runs `work` on `threads` threads at once, each in its place. Returns the mean of the times
    /// that `work` returns.
    pub(crate) fn time(self, threads: usize, work: impl Fn(&Lane<'_>) -> Duration + Sync) -> Duration {
        let took = on_cores(threads, |index, start| self.enter(index, || work(&Lane { index, start })));
        took.iter().sum::<Duration>() / threads as u32
    }
}

/// The context of a waker that does nothing.
pub(crate) fn idle_context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Boxes a future and polls it once. Asserts that the future is pending.
pub(crate) fn polled<F: Future>(future: F) -> Pin<Box<F>> {
    let mut future = Box::pin(future);
    assert!(future.as_mut().poll(&mut idle_context()).is_pending());
    future
}

/// Polls a future once, without a box. Asserts that the future is pending.
pub(crate) fn polled_in_place<F: Future + Unpin>(mut future: F) -> F {
    assert!(Pin::new(&mut future).poll(&mut idle_context()).is_pending());
    future
}
