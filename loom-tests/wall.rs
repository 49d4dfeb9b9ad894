//! Models of wall timers: steps of the wall clock, changes, ticks and ends, each against the others.
//!
//! They run what ships, on a manual clock. To wait is to be in `Walls`, so who came first is settled under its lock: the tick that
//! takes a timer out of it runs the callback, and what `change` says follows from whether it was still in.
//!
//! The bad interleavings:
//!
//! ```text
//!   changes                               the wall clock is set
//!     reads the wall clock, aims
//!                                           sets it, aims all that wait
//!     waits from now on: aimed by the
//!     clock of the past, for ever
//!
//!   a worker                              changes
//!     the time has come
//!                                           waits for another: returns
//!     calls back for the old time: too late
//!
//!   changes                               disposes
//!                                           waits no more
//!     aims, waits
//!                                           is disposed: waits for ever
//! ```
//!
//! Seen to fail with: `change` that aims before it takes the lock, or keeps a disposed timer; `follow` that aims nobody, or after it
//! has given the lock back; `has_come` that leaves the timer in, or looks at the wall clock before it takes the lock, or not at all;
//! a disposal that forgets before it disposes; a handle that is dropped without forgetting; `forget` that does nothing; an end of the
//! runtime that closes `Walls` before its homes. What they cannot show: that `has_come` aims again when it is too early, since a
//! manual clock's own step does that for it (`tests/wall.rs`, where the system does not tell of steps).

use std::sync::Mutex as Record;
use std::sync::atomic::{AtomicBool, AtomicUsize as Tally, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use loom::thread::{self, JoinHandle};

use super::{WallTick, WallTimer};
use crate::engine::Fire;
use crate::loom_models::explore::{explore_all, explore_bounded};
use crate::loom_models::manual::Manual;
use crate::queue::NEVER;
use crate::sync::Arc;
use crate::timer::Changed;

/// What the timers here wait for at first; the clocks begin at zero.
const TIME: u64 = 10;

fn wall(ns: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(ns)
}

#[derive(Default)]
struct Traces {
    /// The times that it was called for.
    called: Record<Vec<u64>>,
    dropped: Tally,
    /// The clock may be set back between the timer's look at it and the callback's.
    lenient: AtomicBool,
}

struct Payload(Arc<Traces>);

impl Payload {
    fn call(&self, tick: &WallTick<'_>) {
        assert!(self.0.lenient.load(Relaxed) || tick.now() >= tick.scheduled(), "early");
        let at = tick.scheduled().duration_since(wall(0)).unwrap().as_nanos() as u64;
        self.0.called.lock().unwrap().push(at);
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Relaxed);
    }
}

struct Stage {
    manual: Manual,
    timer: WallTimer,
    traces: Arc<Traces>,
}

impl Stage {
    fn new() -> Arc<Self> {
        let (manual, traces) = (Manual::new(), Arc::<Traces>::default());
        let payload = Payload(Arc::clone(&traces));
        let timer = WallTimer::start(&manual.engine, wall(TIME), move |tick| payload.call(tick));
        Arc::new(Self { manual, timer, traces })
    }

    /// One that is due: it has been swept, or is filed.
    fn due(in_pool: bool) -> (Arc<Self>, Option<Vec<Fire>>) {
        let stage = Self::new();
        let jobs = in_pool.then(|| stage.manual.sweep_at(TIME));
        stage.manual.hands.set(TIME);
        (stage, jobs)
    }

    fn set_wall(&self, to: u64) {
        self.manual.step();
        self.manual.hands.set_wall(wall(to));
        self.manual.engine.walls().follow(&self.manual.engine);
    }

    fn change(&self, to: u64) -> Changed {
        self.timer.change(wall(to))
    }

    /// Sweeps and runs.
    fn run_at(&self, now: u64) {
        self.manual.run(self.manual.sweep_at(now));
    }

    fn called(&self, time: u64) -> usize {
        self.traces.called.lock().unwrap().iter().filter(|&&at| at == time).count()
    }

    fn waiting(&self) -> usize {
        self.manual.engine.walls().inner.lock().waiting.len()
    }

    /// Nothing waits, nothing is filed, and what the callback owned has been dropped.
    fn is_over(&self) {
        assert_eq!((self.waiting(), self.manual.engine.active()), (0, 0), "waiting, filed");
        assert_eq!(self.traces.dropped.load(Relaxed), 1);
        assert_eq!(self.manual.engine.panics(), 0, "an assertion in a callback");
    }

    /// After all threads have been joined.
    fn end(&self) {
        assert_eq!(self.manual.engine.panics(), 0, "an assertion in a callback");
        self.timer.dispose();
        self.is_over();
        self.manual.end();
    }
}

fn spawn(stage: &Arc<Stage>, action: impl FnOnce(&Stage) + 'static) -> JoinHandle<()> {
    let stage = Arc::clone(stage);
    thread::spawn(move || action(&stage))
}

/// A worker: runs what has been swept, or sweeps first.
fn worker(stage: &Arc<Stage>, jobs: Option<Vec<Fire>>) -> JoinHandle<()> {
    spawn(stage, |stage| match jobs {
        Some(jobs) => stage.manual.run(jobs),
        None => stage.run_at(TIME),
    })
}

#[test]
fn a_timer_changed_during_a_step_follows_the_step() {
    // The clock goes from 0 to `to`, and the timer waits for `at` then.
    for (to, at) in [(50, 80), (90, 80), (3, 5)] {
        explore_all(move || {
            let stage = Stage::new();
            let clock = spawn(&stage, move |stage| stage.set_wall(to));
            assert_eq!(stage.change(at), Changed::WasWaiting);
            clock.join().unwrap();
            let due = at.saturating_sub(to);
            assert_eq!(stage.manual.engine.earliest_due(), due, "aimed by the clock as it is now");
            stage.run_at(due);
            assert_eq!((stage.called(at), stage.called(TIME)), (1, 0));
            stage.end();
        });
    }
}

#[test]
fn a_changed_timer_calls_back_for_one_time_or_says_so() {
    for in_pool in [false, true] {
        explore_all(move || {
            let (stage, jobs) = Stage::due(in_pool);
            let worker = worker(&stage, jobs);
            let changed = stage.change(TIME + 5);
            worker.join().unwrap();
            assert_eq!(stage.called(TIME), usize::from(changed == Changed::WasIdle), "{changed:?}");
            stage.run_at(TIME + 5);
            assert_eq!((stage.called(TIME + 5), stage.waiting()), (1, 0));
            stage.end();
        });
    }
}

#[test]
fn a_timer_that_is_due_during_a_step_calls_back_once() {
    for in_pool in [false, true] {
        for to in [TIME - 4, TIME + 100] {
            explore_all(move || {
                let (stage, jobs) = Stage::due(in_pool);
                let worker = worker(&stage, jobs);
                stage.set_wall(to);
                worker.join().unwrap();
                assert!(stage.called(TIME) <= 1);
                stage.run_at(TIME + 4);
                assert_eq!((stage.called(TIME), stage.waiting()), (1, 0));
                stage.run_at(TIME + 200);
                assert_eq!(stage.called(TIME), 1);
                stage.end();
            });
        }
    }
}

#[test]
fn a_disposed_timer_waits_no_more() {
    let others: [fn(&Stage); 3] =
        [|stage| stage.set_wall(3), |stage| _ = stage.change(20), |stage| stage.timer.dispose()];
    for other in others {
        explore_all(move || {
            let stage = Stage::new();
            let other = spawn(&stage, other);
            stage.timer.dispose();
            other.join().unwrap();
            stage.is_over();
            assert_eq!(stage.change(5), Changed::Ended);
            stage.run_at(50);
            assert_eq!(stage.traces.called.lock().unwrap().len(), 0);
            stage.end();
        });
    }
}

#[test]
fn a_timer_disposed_while_it_is_due_calls_back_before_or_never() {
    for in_pool in [false, true] {
        explore_bounded(move || {
            let (stage, jobs) = Stage::due(in_pool);
            let worker = worker(&stage, jobs);
            let _ = stage.timer.dispose_and_wait();
            let called = stage.called(TIME);
            stage.is_over();
            worker.join().unwrap();
            assert_eq!(stage.called(TIME), called);
            stage.end();
        });
    }
}

/// The handle goes while the callback gives its timer another time.
#[test]
fn a_handle_dropped_during_a_change_by_the_callback_leaves_nothing_behind() {
    for in_pool in [false, true] {
        explore_bounded(move || {
            let (manual, traces) = (Arc::new(Manual::new()), Arc::<Traces>::default());
            let payload = Payload(Arc::clone(&traces));
            let timer = WallTimer::start(&manual.engine, wall(TIME), move |tick| {
                payload.call(tick);
                let _ = tick.change(wall(2 * TIME));
            });
            let jobs = in_pool.then(|| manual.sweep_at(TIME));
            let worker = {
                let manual = Arc::clone(&manual);
                thread::spawn(move || manual.run(jobs.unwrap_or_else(|| manual.sweep_at(TIME))))
            };
            drop(timer);
            worker.join().unwrap();
            let waiting = manual.engine.walls().inner.lock().waiting.len();
            assert_eq!((waiting, manual.engine.active()), (0, 0), "waiting, filed");
            assert_eq!((traces.dropped.load(Relaxed), manual.engine.panics()), (1, 0));
            manual.end();
        });
    }
}

#[test]
fn a_timer_changed_while_its_runtime_ends_waits_no_more() {
    explore_all(|| {
        let stage = Stage::new();
        let closer = spawn(&stage, |stage| stage.manual.engine.close());
        let _ = stage.change(20);
        closer.join().unwrap();
        assert_eq!((stage.waiting(), stage.manual.engine.active()), (0, 0), "waiting, filed");
        assert_eq!(stage.change(30), Changed::Ended);
        assert_eq!(stage.waiting(), 0);
        stage.timer.dispose();
        stage.is_over();
    });
}

#[test]
fn a_change_a_step_and_a_tick_settle_who_came_first() {
    for in_pool in [false, true] {
        explore_bounded(move || {
            let (stage, jobs) = Stage::due(in_pool);
            stage.traces.lenient.store(true, Relaxed);
            let worker = worker(&stage, jobs);
            let clock = spawn(&stage, |stage| stage.set_wall(TIME - 5));
            let changed = stage.change(TIME + 2);
            clock.join().unwrap();
            worker.join().unwrap();
            assert_eq!(stage.called(TIME), usize::from(changed == Changed::WasIdle), "{changed:?}");
            // Seven are left by the wall clock, whoever was the last to aim.
            assert_eq!(stage.manual.engine.earliest_due(), TIME + 7);
            stage.run_at(TIME + 7);
            assert_eq!((stage.called(TIME + 2), stage.waiting()), (1, 0));
            assert_eq!(stage.manual.engine.earliest_due(), NEVER);
            stage.end();
        });
    }
}
