//! Harness for models of a single timer on a manual clock: firing, changing, disposing and waiting,
//! in pairs.
//!
//! The models run the shipped engine: handles, state word, queue, locks, settlements, the drop of
//! callbacks. A thread of the model stands for the worker of the pool that takes a job, and a
//! second thread sweeps.
//!
//! `loom-tests/last_reference.rs` models the reference count alone, small enough for more
//! interleavings.

mod dispose_vs_wait;
mod fire_vs_change;
mod fire_vs_dispose;
mod missed_vs_counted;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64 as Tally, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake};
use std::time::Duration;

use loom::thread;

use crate::alarm::virtual_time::VirtualTime;
use crate::engine::{Engine, InOrder};
use crate::loom_models::explore::{Plain, explore_all, explore_bounded, explore_few};
use crate::loom_models::harness::Manual;
use crate::queue::state::StateWord;
use crate::queue::{Kind, MissedTicks};
use crate::timer::{self, Changed, Disposal, OnceTimer, Tick, Timer, Waited};

const KINDS: [Kind; 3] = [Kind::Overlapping, Kind::Exclusive, Kind::Once];
/// Due point and period of the timers here.
const DUE: u64 = 1;
const PERIOD: u64 = 10;

/// Records of the calls and the drop of a callback; outlive the callback.
struct Traces {
    /// The data of the callback: read by overlapping callbacks, written by exclusive callbacks and
    /// by the destructor.
    data: Plain,
    begun: Mutex<Vec<u64>>,
    missed: Tally,
    /// Calls begun but not ended: a racing access panics, and the engine catches this panic.
    unfinished: Tally,
    dropped: Tally,
}

/// The payload of the callback.
struct Payload(Arc<Traces>, Arc<Mutex<Option<Arc<Handle>>>>, Act);

impl Payload {
    fn call(&self, tick: &Tick<'_>, access: fn(&Plain)) {
        let traces = &self.0;
        traces.begun.lock().unwrap().push(tick.scheduled().as_duration().as_nanos() as u64);
        traces.missed.fetch_add(tick.missed(), Relaxed);
        traces.unfinished.fetch_add(1, Relaxed);
        if self.2 != Act::Panic && traces.begun.lock().unwrap().len() == 1 {
            self.2.on(&self.1, traces);
        }
        access(&traces.data);
        traces.unfinished.fetch_sub(1, Relaxed);
        if self.2 == Act::Panic {
            self.2.on(&self.1, traces);
        }
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        self.0.unfinished.fetch_add(1, Relaxed);
        self.0.data.write();
        self.0.dropped.fetch_add(1, Relaxed);
        self.0.unfinished.fetch_sub(1, Relaxed);
    }
}

/// A handle of either type.
enum Handle {
    Timer(Timer),
    Once(OnceTimer),
}

impl Handle {
    /// Changes to a single tick after `due`, or to none.
    fn change(&self, due: Duration) -> Changed {
        match self {
            Self::Timer(timer) => timer.change(due, Duration::MAX),
            Self::Once(timer) => timer.reset(due),
        }
    }

    fn dispose(&self) {
        match self {
            Self::Timer(timer) => timer.dispose(),
            Self::Once(timer) => timer.dispose(),
        }
    }

    fn dispose_async(&self) -> Disposal {
        match self {
            Self::Timer(timer) => timer.dispose_async(),
            Self::Once(timer) => timer.dispose_async(),
        }
    }

    fn dispose_and_wait(&self) -> Waited {
        match self {
            Self::Timer(timer) => timer.dispose_and_wait(),
            Self::Once(timer) => timer.dispose_and_wait(),
        }
    }
}

/// The action of a callback on its own timer, at its first call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Nothing,
    Panic,
    Dispose,
    DisposeAndWait,
    /// Drops the handle, which may be the last reference.
    DropHandle,
    /// Restarts the timer, due now.
    Restart,
}

impl Act {
    fn on(self, slot: &Mutex<Option<Arc<Handle>>>, traces: &Traces) {
        let handle = || slot.lock().unwrap().as_ref().map(Arc::clone);
        match self {
            Self::Nothing => {}
            Self::Panic => std::panic::resume_unwind(Box::new(())),
            Self::Dispose => drop(handle().map(|handle| handle.dispose())),
            Self::DisposeAndWait => {
                if let Some(handle) = handle() {
                    assert_eq!(handle.dispose_and_wait(), Waited::InsideCallback);
                }
            }
            Self::DropHandle => {
                let taken = slot.lock().unwrap().take();
                drop(taken);
            }
            Self::Restart => {
                if let Some(handle) = handle() {
                    // Inserted for its next tick before the callback began (S10), or the next tick
                    // is deferred.
                    assert_eq!(handle.change(Duration::ZERO), Changed::WasWaiting);
                }
            }
        }
        assert_eq!(traces.dropped.load(Relaxed), 0, "the payload lives until the callback ends");
    }
}

/// A runtime on a manual clock with one timer.
struct Stage {
    engine: Arc<Engine>,
    virtual_time: Arc<VirtualTime>,
    traces: Arc<Traces>,
    /// `None` after the handle has been dropped. Users clone the handle out of the lock, since loom
    /// does not know this lock.
    handle: Arc<Mutex<Option<Arc<Handle>>>>,
    /// No tick due at or before this instant may start any more: a change or a disposal has
    /// returned.
    void: Tally,
}

impl Stage {
    fn new(kind: Kind, policy: MissedTicks) -> Arc<Self> {
        Self::with(kind, policy, Act::Nothing)
    }

    fn with(kind: Kind, policy: MissedTicks, act: Act) -> Arc<Self> {
        let Manual { engine, virtual_time, .. } = Manual::new();
        let slot: Arc<Mutex<Option<Arc<Handle>>>> = Arc::default();
        let traces = Arc::new(Traces {
            data: Plain::new(),
            begun: Mutex::default(),
            missed: Tally::new(0),
            unfinished: Tally::new(0),
            dropped: Tally::new(0),
        });
        let payload = Payload(Arc::clone(&traces), Arc::clone(&slot), act);
        let when = (Duration::from_nanos(DUE), Duration::from_nanos(PERIOD));
        let handle = match kind {
            Kind::Overlapping => Handle::Timer(Timer::start(
                &engine,
                policy,
                when,
                timer::overlapping(move |tick| payload.call(tick, Plain::read)),
            )),
            Kind::Exclusive => Handle::Timer(Timer::start(
                &engine,
                policy,
                when,
                timer::exclusive(move |tick| payload.call(tick, Plain::write)),
            )),
            Kind::Once => {
                let payload = payload;
                Handle::Once(OnceTimer::start(&engine, crate::queue::MissedTicks::default(), when.0, move |tick| {
                    payload.call(tick, Plain::write)
                }))
            }
            Kind::Waker => unreachable!("a future has no handle and no callback"),
        };
        *slot.lock().unwrap() = Some(Arc::new(handle));
        Arc::new(Self { engine, virtual_time, traces, handle: slot, void: Tally::new(0) })
    }

    /// A stage with the first tick claimed: the job is in the pool.
    fn with_job(kind: Kind, policy: MissedTicks) -> (Arc<Self>, Vec<InOrder>) {
        let stage = Self::new(kind, policy);
        let jobs = stage.sweep_at(DUE);
        assert_eq!(jobs.len(), 1, "the first tick is due");
        (stage, jobs)
    }

    /// The state word of an overlapping or exclusive timer.
    fn state<R>(&self, see: impl FnOnce(&StateWord) -> R) -> R {
        match &*self.handle() {
            Handle::Timer(timer) => see(timer.state()),
            Handle::Once(_) => unreachable!("its callback runs once"),
        }
    }

    fn handle(&self) -> Arc<Handle> {
        Arc::clone(self.handle.lock().unwrap().as_ref().expect("not dropped yet"))
    }

    /// Sets the clock and takes due timers out of the queue.
    fn sweep_at(&self, now: u64) -> Vec<InOrder> {
        self.virtual_time.set(now);
        let mut jobs = Vec::new();
        self.engine.sweep_by_hand(0, &mut jobs);
        jobs
    }

    /// Runs jobs as a worker of the pool does, and also the jobs that they give rise to.
    fn run(&self, mut jobs: Vec<InOrder>) {
        while let Some(job) = jobs.pop() {
            let (void, scheduled) = (self.void.load(Relaxed), job.scheduled);
            let ran = self.engine.run_by_hand(job, |deferred| jobs.push(deferred));
            assert!(!ran || scheduled > void, "the tick of {scheduled} started when all up to {void} were void");
        }
    }

    /// Replaces the schedule by a single tick after `due`, or by none. Returns whether the timer
    /// was waiting; `None`: the timer has ended.
    fn change(&self, due: Duration) -> Option<bool> {
        let now = self.virtual_time.now();
        let changed = self.handle().change(due);
        if changed == Changed::Ended {
            return None;
        }
        self.void.fetch_max(now - 1, Relaxed);
        Some(changed.was_waiting())
    }

    fn dispose(&self) {
        self.handle().dispose();
        self.void.store(u64::MAX, Relaxed);
    }

    fn dispose_and_wait(&self) {
        let handle = self.handle();
        assert_eq!(handle.dispose_and_wait(), Waited::Ended);
        self.void.store(u64::MAX, Relaxed);
        assert_eq!(self.traces.dropped.load(Relaxed), 1, "the payload has been dropped");
        // Loom reports this read unless it is ordered after the destructor.
        self.traces.data.read();
    }

    fn begun(&self) -> Vec<u64> {
        let mut begun = self.traces.begun.lock().unwrap().clone();
        begun.sort_unstable();
        begun
    }

    fn times_begun(&self, scheduled: u64) -> usize {
        self.begun().iter().filter(|&&at| at == scheduled).count()
    }

    /// Called after all threads have been joined.
    fn end(self: Arc<Self>) {
        let stage = Arc::into_inner(self).expect("all threads have been joined");
        let handle = stage.handle.lock().unwrap().take();
        drop(handle);
        stage.engine.close();
        assert_eq!(stage.traces.dropped.load(Relaxed), 1, "the payload is dropped exactly once");
        assert_eq!(stage.traces.unfinished.load(Relaxed), 0, "an access raced, and the engine caught the panic");
    }
}

fn spawn(stage: &Arc<Stage>, action: impl FnOnce(&Stage) + 'static) -> thread::JoinHandle<()> {
    let stage = Arc::clone(stage);
    thread::spawn(move || action(&stage))
}
