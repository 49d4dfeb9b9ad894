//! What models of the upper floors share: a runtime on a manual clock that the threads of a model drive, and tasks.
//!
//! Ground rules. The worker of the pool that takes up a job is a thread of the model, and so is whoever sweeps. The hands
//! of the clock are an atomic of std: moving them, or reading them, is one step with what comes before.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Tally, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::{future::Future, pin::Pin};

use crate::alarm::Clock;
use crate::alarm::virtual_time::VirtualTime;
use crate::engine::{Engine, Fire};
use crate::runtime::RuntimeHandle;
use crate::sync::Mutex;

/// One queue, no threads, and a clock that stands at zero.
pub(crate) struct Manual {
    pub(crate) engine: Arc<Engine>,
    pub(crate) virtual_time: Arc<VirtualTime>,
    /// Loom switches threads only before an operation that it knows: this is one.
    step: Mutex<()>,
}

impl Manual {
    pub(crate) fn new() -> Self {
        let virtual_time = Arc::new(VirtualTime::default());
        let core = core_affinity::CoreId { id: 0 };
        let engine =
            Engine::new(1, &[core], Clock::Manual { virtual_time: Arc::clone(&virtual_time), boot: false }, None, None);
        Self { engine, virtual_time, step: Mutex::default() }
    }

    pub(crate) fn source(&self) -> RuntimeHandle {
        RuntimeHandle::from(&self.engine)
    }

    /// Anything that another thread does may come before this.
    pub(crate) fn step(&self) {
        drop(self.step.lock());
    }

    /// Moves the hands, if they are not there yet, and takes what is due out of the queue.
    pub(crate) fn sweep_at(&self, now: u64) -> Vec<Fire> {
        self.step();
        self.virtual_time.set(now.max(self.virtual_time.now()));
        let mut jobs = Vec::new();
        self.engine.sweep_by_hand(0, &mut jobs);
        jobs
    }

    /// Runs jobs as a worker of the pool does, and the jobs that arise from them.
    pub(crate) fn run(&self, mut jobs: Vec<Fire>) {
        while let Some(job) = jobs.pop() {
            self.engine.run_by_hand(job, &mut jobs);
        }
    }

    /// After all threads have been joined, and all timers are gone.
    pub(crate) fn end(&self) {
        assert_eq!(self.engine.active(), 0, "nothing is left in the queue");
        self.engine.close();
    }
}

/// A task that is polled by hand. Counts how often it is woken, and the wakers of it that somebody keeps.
#[derive(Default)]
pub(crate) struct Task(Arc<Rung>);

#[derive(Default)]
struct Rung(Tally);

impl Wake for Rung {
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
