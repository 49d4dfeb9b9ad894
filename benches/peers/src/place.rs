//! Where a contender's operations run: on a bare thread, or inside one of tokio's runtimes.
//!
//! Ground rules, for the sake of fairness. Operations inside tokio run within `block_on`, in one single poll of the outer
//! future (`unconstrained`, so that no budget runs out), and poll what they make with a waker that does nothing: neither
//! side pays for an executor, only for its timers. With `current_thread` each measuring thread has a runtime of its own,
//! as in a thread-per-core program; with `multi_thread` all share one. All runtimes have every driver enabled, as
//! `#[tokio::main]` has.
//!
//! A runtime without any timer wakes its driver (a system call) whenever a timer is added, since it has no earlier one to
//! wait for. Programs have such an earlier one nearly always; so there is a *heartbeat*, a timer due every 100 ms, in each
//! runtime of each contender, except where a title says that there is none or that there is another one.

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

/// Measurements are made on one thread, and on so many.
pub(crate) const THREADS: usize = 2;
/// How often a heart beats.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(100);

/// tokio's runtimes.
pub(crate) struct Tokio {
    pub(crate) current: Vec<Runtime>,
    pub(crate) multi: Runtime,
}

impl Tokio {
    /// With a heartbeat in each, or with nothing at all.
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

/// Our heartbeats, one in the queue of each core that is measured on.
pub(crate) fn our_heartbeats(runtime: &timerqueue::Runtime, period: Duration) -> Vec<Timer> {
    on_cores(THREADS, |_, _| runtime.timer(period, period, |_| {}))
}

/// The heartbeats of the peers that have one reactor for the whole process. They beat until this is dropped.
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

/// What an operation that is measured on one of several threads is told.
pub(crate) struct Lane<'a> {
    /// Which of the threads.
    pub(crate) index: usize,
    /// All threads wait here before they start.
    start: &'a Barrier,
}

impl Lane<'_> {
    /// Set-up is over; the clock starts when all threads have got here.
    pub(crate) fn ready(&self) {
        self.start.wait();
    }
}

impl Place<'_> {
    /// Runs `work` here.
    pub(crate) fn enter<T>(self, index: usize, work: impl FnOnce() -> T) -> T {
        let (runtime, turns) = match self {
            Place::Thread => return work(),
            // A driver that is its own thread's has to be let in, to see what has come due and how long it may wait.
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

    /// Runs `work` on that many threads at once, each in its place; the mean of the times that it returns.
    pub(crate) fn time(self, threads: usize, work: impl Fn(&Lane<'_>) -> Duration + Sync) -> Duration {
        let took = on_cores(threads, |index, start| self.enter(index, || work(&Lane { index, start })));
        took.iter().sum::<Duration>() / threads as u32
    }
}

/// The context of a waker that does nothing.
pub(crate) fn idle_context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Boxed, and polled once. It is pending.
pub(crate) fn polled<F: Future>(future: F) -> Pin<Box<F>> {
    let mut future = Box::pin(future);
    assert!(future.as_mut().poll(&mut idle_context()).is_pending());
    future
}

/// The same for one that may be moved.
pub(crate) fn polled_in_place<F: Future + Unpin>(mut future: F) -> F {
    assert!(Pin::new(&mut future).poll(&mut idle_context()).is_pending());
    future
}
