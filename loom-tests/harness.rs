//! Harness of the models of timers, futures and tokens: a runtime without threads, driven by the
//! model's threads, and tasks. Its clock is a manual clock, or a clock of the system that the model
//! moves.
//!
//! Ground rules. Threads of the model stand for the worker of the pool that runs a job, and for the
//! thread that sweeps. The time of the clock is an atomic of std: reading or setting the clock is a
//! single step together with the preceding operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Tally, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::{future::Future, pin::Pin};

use crate::alarm::clock::MODEL_CLOCK;
use crate::alarm::virtual_time::VirtualTime;
use crate::alarm::{Clock, SystemClock};
use crate::engine::{Engine, InOrder};
use crate::runtime::RuntimeHandle;
use crate::sync::Mutex;

/// An engine with a single queue, no threads, and a clock that stands at zero.
pub(crate) struct Manual {
    pub(crate) engine: Arc<Engine>,
    pub(crate) virtual_time: Arc<VirtualTime>,
    /// Loom switches threads only before its own operations; locking this mutex is such an
    /// operation.
    step: Mutex<()>,
    _clock: ModelClock,
}

impl Manual {
    pub(crate) fn new() -> Self {
        let virtual_time = Arc::new(VirtualTime::default());
        Self::on(Clock::Manual { virtual_time: Arc::clone(&virtual_time), boot: false }, virtual_time)
    }

    /// The same on a clock of the system.
    pub(crate) fn on_system_clock() -> Self {
        MODEL_CLOCK.set(Some(0));
        Self::on(Clock::System(SystemClock::MONOTONIC), Arc::default())
    }

    fn on(clock: Clock, virtual_time: Arc<VirtualTime>) -> Self {
        let core = crate::sys::topology::CoreId { id: 0 };
        let engine = Engine::new(1, &[core], clock, None, Default::default());
        Self { engine, virtual_time, step: Mutex::default(), _clock: ModelClock }
    }

    /// Sets the clock to `now`, unless the clock is later already.
    pub(crate) fn set(&self, now: u64) {
        match MODEL_CLOCK.get() {
            Some(before) => MODEL_CLOCK.set(Some(now.max(before))),
            None => self.virtual_time.set(now.max(self.virtual_time.now())),
        }
    }

    pub(crate) fn source(&self) -> RuntimeHandle {
        RuntimeHandle::from(&self.engine)
    }

    /// A point at which loom may run the rest of the threads first.
    pub(crate) fn step(&self) {
        drop(self.step.lock());
    }

    /// Sets the clock to `now`, unless the clock is later already, and takes due timers out of the
    /// queue.
    pub(crate) fn sweep_at(&self, now: u64) -> Vec<InOrder> {
        self.step();
        self.set(now);
        let mut jobs = Vec::new();
        self.engine.sweep_by_hand(0, &mut jobs);
        jobs
    }

    /// Runs jobs as a worker of the pool does, and also the jobs that they give rise to.
    pub(crate) fn run(&self, mut jobs: Vec<InOrder>) {
        while let Some(job) = jobs.pop() {
            self.engine.run_by_hand(job, |deferred| jobs.push(deferred));
        }
    }

    /// Called after all threads have been joined and all timers are gone.
    pub(crate) fn end(&self) {
        assert_eq!(self.engine.active(), 0, "nothing is left in the queue");
        self.engine.close();
    }

    /// As [`Self::end`], where no reference to a timer is left. A shard whose count is wrong is
    /// freed too early, or never.
    pub(crate) fn end_counted(&self) {
        for shard in self.engine.shards() {
            assert_eq!(shard.counted_in().unwrap_or(0), 0, "each timer was counted in once, and out once");
        }
        self.end();
    }
}

/// Gives the system's clocks back at its end.
struct ModelClock;

impl Drop for ModelClock {
    fn drop(&mut self) {
        MODEL_CLOCK.set(None);
    }
}

/// A task polled by the model. Counts its wake-ups, and how many of its wakers are kept.
#[derive(Default)]
pub(crate) struct Task(Arc<Wakes>);

#[derive(Default)]
struct Wakes(Tally);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Task {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn poll<F: Future + Unpin>(&self, future: &mut F) -> Poll<F::Output> {
        let waker = Waker::from(Arc::clone(&self.0));
        Pin::new(future).poll(&mut Context::from_waker(&waker))
    }

    pub(crate) fn woken(&self) -> usize {
        self.0.0.load(Relaxed)
    }

    pub(crate) fn wakers_kept(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}
