//! Models of wall timers: steps of the wall clock, changes, ticks and disposals, in pairs (S30,
//! S56).
//!
//! The models run the shipped code on a manual clock. A waiting timer is in the wall list of its
//! shard, so the lock of the shard orders all events: the tick that takes a timer out of the list
//! runs the callback, and the result of `change` tells whether the timer was still in the list. The
//! page of a slab is a single timer in a model, so a step of two timers has two sections.
//!
//! The bad interleavings:
//!
//! ```text
//!   changes                               the wall clock is set
//!     reads the wall clock, aims
//!                                           sets it, aims all waiting timers
//!     enters the list: aimed by the
//!     old wall clock, for ever
//!
//!   a worker                              changes
//!     the time has come
//!                                           waits for a new time: returns
//!     calls back for the old time: too late
//!
//!   changes                               disposes
//!                                           leaves the list
//!     aims, enters the list
//!                                           is disposed: stays in the list for ever
//!
//!   a step                                a second step
//!     aims the first of two timers
//!                                           sets the clock
//!                                           begins no walk, since one is under way
//!     aims the second: done
//!     the first timer is aimed by the
//!     clock before the second step, for ever
//!
//!   a look at the clocks                  begins to wait
//!     no timer waits
//!                                           waits, and finds a look scheduled
//!     no look is scheduled any more: a step is never seen
//!
//!   begins to wait                        a step, then the system is asked to report steps
//!     reads the clocks
//!                                           sets the clock, asks
//!     steps are reported: no look is
//!     scheduled, but this step was not reported
//! ```
//!
//! Seen to fail with: `change` that reads the clocks before the lock, or puts a disposed timer into
//! the list; a step that begins no walk while one is under way; a walk that leaves a timer out; a
//! section of a step that reads the clocks before the lock; `has_come` that leaves the timer in the
//! list, or reads the wall clock before the lock, or does not read it; a disposal that leaves the
//! list before it disposes; a disposal that does not leave the list; an end of the runtime that
//! empties the lists before the shards are closed; a look that reports "no look scheduled" after it
//! has read the lists; a timer that checks for a scheduled look before it waits; a timer that
//! checks whether steps are reported after it has read the clocks.
//!
//! The models cannot show two facts. First, `has_come` aims again when it is too early: on a manual
//! clock the step itself does so (`tests/process/wall_clock.rs` tests systems that do not report
//! steps). Second, jobs of the pool continue a step (`src/engine/wall_tests.rs`).

use std::sync::Mutex as Record;
use std::sync::atomic::{AtomicBool, AtomicUsize as Tally, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, SystemTime};

use loom::thread::{self, JoinHandle};

use super::Own;
use crate::engine::InOrder;
use crate::loom_models::explore::{explore_all, explore_bounded};
use crate::loom_models::harness::Manual;
use crate::queue::MissedTicks;
use crate::sync::Arc;
use crate::time::NEVER;
use crate::timer::Changed;
use crate::timer::{WallTick, WallTimer};

/// The first wall time of the timers; the clocks begin at zero.
const TIME: u64 = 10;

fn wall(ns: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(ns)
}

/// The number of timers in the wall lists.
fn waiting(manual: &Manual) -> usize {
    manual.engine.shards().map(|shard| shard.inner.lock().walls.len()).sum()
}

#[derive(Default)]
struct Traces {
    /// The scheduled times of the calls.
    called: Record<Vec<u64>>,
    dropped: Tally,
    /// The clock may be set back between its readings by the timer and by the callback.
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
        let timer =
            WallTimer::start(&manual.engine, wall(TIME), MissedTicks::default().into(), move |tick| payload.call(tick));
        Arc::new(Self { manual, timer, traces })
    }

    /// A stage with a due timer: swept already, or still in the queue.
    fn due(in_pool: bool) -> (Arc<Self>, Option<Vec<InOrder>>) {
        let stage = Self::new();
        let jobs = in_pool.then(|| stage.manual.sweep_at(TIME));
        stage.manual.virtual_time.set(TIME);
        (stage, jobs)
    }

    fn set_wall(&self, to: u64) {
        self.manual.step();
        self.manual.virtual_time.set_wall(wall(to));
        self.manual.engine.walls.follow(&self.manual.engine);
    }

    fn change(&self, to: u64) -> Changed {
        self.timer.reset_at(wall(to))
    }

    /// Sweeps and runs.
    fn run_at(&self, now: u64) {
        self.manual.run(self.manual.sweep_at(now));
    }

    fn called(&self, time: u64) -> usize {
        self.traces.called.lock().unwrap().iter().filter(|&&at| at == time).count()
    }

    fn waiting(&self) -> usize {
        waiting(&self.manual)
    }

    /// Checks that no timer waits, no timer is queued, and the payload has been dropped.
    fn is_over(&self) {
        assert_eq!((self.waiting(), self.manual.engine.active()), (0, 0), "waiting, queued");
        assert_eq!(self.traces.dropped.load(Relaxed), 1);
        assert_eq!(self.manual.engine.panics(), 0, "an assertion in a callback");
    }

    /// Called after all threads have been joined.
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

/// A worker: runs the swept jobs, or sweeps first.
fn worker(stage: &Arc<Stage>, jobs: Option<Vec<InOrder>>) -> JoinHandle<()> {
    spawn(stage, |stage| match jobs {
        Some(jobs) => stage.manual.run(jobs),
        None => stage.run_at(TIME),
    })
}

/// Two timers; the calls of the second timer are recorded apart.
struct Pair {
    stage: Arc<Stage>,
    second: WallTimer,
    called: Arc<Traces>,
}

impl Pair {
    /// The second timer waits for `at`.
    fn new(at: u64) -> Arc<Self> {
        let (stage, called) = (Stage::new(), Arc::<Traces>::default());
        let payload = Payload(Arc::clone(&called));
        let second = WallTimer::start(&stage.manual.engine, wall(at), MissedTicks::default().into(), move |tick| {
            payload.call(tick)
        });
        Arc::new(Self { stage, second, called })
    }

    fn spawn(self: &Arc<Self>, action: impl FnOnce(&Self) + 'static) -> JoinHandle<()> {
        let pair = Arc::clone(self);
        thread::spawn(move || action(&pair))
    }

    /// Checks that each timer fires exactly at its wall time. The wall clock shows `shown` when the
    /// runtime's clock is at zero.
    fn fire(&self, shown: u64, times: [u64; 2]) {
        for now in 0..=40 {
            self.stage.run_at(now);
            let called = [&self.stage.traces, &self.called].map(|traces| traces.called.lock().unwrap().len());
            assert_eq!(called, times.map(|time| usize::from(time <= shown + now)), "at {now}");
        }
    }

    fn end(&self) {
        self.second.dispose();
        assert_eq!(self.called.dropped.load(Relaxed), 1);
        self.stage.end();
    }
}

#[test]
fn a_timer_changed_between_two_sections_of_a_step_follows_the_step() {
    for first in [true, false] {
        explore_all(move || {
            let pair = Pair::new(70);
            assert_eq!(pair.stage.change(60), Changed::WasWaiting);
            let clock = pair.spawn(|pair| pair.stage.set_wall(50));
            let changed = if first { pair.stage.change(80) } else { pair.second.reset_at(wall(80)) };
            assert_eq!(changed, Changed::WasWaiting);
            clock.join().unwrap();
            pair.fire(50, if first { [80, 70] } else { [60, 80] });
            pair.end();
        });
    }
}

#[test]
fn a_timer_made_during_a_step_follows_the_step() {
    explore_all(|| {
        let stage = Stage::new();
        let clock = spawn(&stage, |stage| stage.set_wall(5));
        let second = WallTimer::start(&stage.manual.engine, wall(8), MissedTicks::default().into(), |tick| {
            assert_eq!(tick.now(), wall(8))
        });
        clock.join().unwrap();
        assert_eq!(stage.manual.engine.earliest_due(), 3, "the second");
        stage.run_at(3);
        assert_eq!(stage.waiting(), 1);
        assert_eq!(stage.manual.engine.earliest_due(), 5, "the first");
        drop(second);
        stage.end();
    });
}

#[test]
fn a_step_during_a_step_starts_again() {
    explore_all(|| {
        let pair = Pair::new(70);
        assert_eq!(pair.stage.change(60), Changed::WasWaiting);
        let clock = pair.spawn(|pair| pair.stage.set_wall(50));
        pair.stage.set_wall(40);
        clock.join().unwrap();
        let shown = pair.stage.manual.virtual_time.wall().duration_since(wall(0)).unwrap().as_nanos() as u64;
        pair.fire(shown, [60, 70]);
        pair.end();
    });
}

#[test]
fn a_timer_disposed_between_two_sections_of_a_step_waits_no_more() {
    for (first, dropped) in [(true, false), (false, false), (false, true)] {
        explore_all(move || {
            let pair = Pair::new(70);
            let clock = pair.spawn(|pair| pair.stage.set_wall(5));
            let third = WallTimer::start(&pair.stage.manual.engine, wall(7), MissedTicks::default().into(), |_| {
                unreachable!("disposed")
            });
            match (first, dropped) {
                (true, _) => pair.stage.timer.dispose(),
                (_, false) => pair.second.dispose(),
                (_, true) => {}
            }
            drop(third);
            clock.join().unwrap();
            let left = if dropped { 2 } else { 1 };
            assert_eq!(pair.stage.waiting(), left);
            assert_eq!(pair.stage.manual.engine.earliest_due(), if first { 65 } else { 5 }, "the others follow");
            pair.end();
        });
    }
}

/// Both timers are due when the step begins, and a worker sweeps them or has swept them. The timers
/// are in two slots: the order within a slot depends on addresses, and an execution must be
/// repeatable.
#[test]
fn timers_that_are_due_between_two_sections_of_a_step_call_back_once() {
    const SECOND: u64 = 1_000_000;
    for in_pool in [false, true] {
        explore_bounded(move || {
            let pair = Pair::new(SECOND);
            let jobs = in_pool.then(|| pair.stage.manual.sweep_at(SECOND));
            pair.stage.manual.virtual_time.set(SECOND);
            let worker = pair.spawn(|pair| match jobs {
                Some(jobs) => pair.stage.manual.run(jobs),
                None => pair.stage.run_at(SECOND),
            });
            pair.stage.set_wall(4);
            worker.join().unwrap();
            for now in [SECOND + 6, 2 * SECOND] {
                pair.stage.run_at(now);
            }
            let called = (pair.stage.called(TIME), pair.called.called.lock().unwrap().len());
            assert_eq!((called, pair.stage.waiting()), ((1, 1), 0));
            pair.end();
        });
    }
}

/// A system that does not report steps. The runtime's own look was scheduled and has fired, and no
/// timer waits.
fn untold() -> Arc<Manual> {
    let manual = Arc::new(Manual::new());
    let walls = &manual.engine.walls;
    walls.told.store(false, Relaxed);
    walls.looks.store(true, Relaxed);
    walls.own.get_or_init(|| Own::new(&manual.engine));
    manual
}

fn look_is_set(manual: &Manual) -> bool {
    let look = manual.engine.walls.own_timer().expect("made");
    look.get().is_queued(look.shard().inner.lock().queue.key())
}

#[test]
fn a_timer_made_while_a_look_finds_none_that_waits_is_looked_after() {
    explore_all(|| {
        let manual = untold();
        let looking = {
            let manual = Arc::clone(&manual);
            thread::spawn(move || manual.engine.walls.look(&manual.engine))
        };
        let timer = WallTimer::start(&manual.engine, wall(TIME), MissedTicks::default().into(), |_| {});
        looking.join().unwrap();
        assert!(look_is_set(&manual));
        drop(timer);
        manual.engine.walls.look(&manual.engine);
        manual.engine.close();
    });
}

#[test]
fn a_step_before_the_system_tells_of_steps_is_seen_by_the_timer_or_by_a_look() {
    explore_all(|| {
        let manual = untold();
        manual.engine.walls.look(&manual.engine);
        assert!(!look_is_set(&manual));
        let clock = {
            let manual = Arc::clone(&manual);
            thread::spawn(move || {
                manual.step();
                manual.virtual_time.set_wall(wall(TIME - 4));
                manual.engine.walls.told.store(true, Release);
            })
        };
        let timer = WallTimer::start(&manual.engine, wall(TIME), MissedTicks::default().into(), |_| {});
        clock.join().unwrap();
        assert!(manual.engine.earliest_due() == 4 || look_is_set(&manual));
        drop(timer);
        manual.engine.close();
    });
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

/// The handle is dropped while the callback changes its timer.
#[test]
fn a_handle_dropped_during_a_change_by_the_callback_leaves_nothing_behind() {
    for in_pool in [false, true] {
        explore_bounded(move || {
            let (manual, traces) = (Arc::new(Manual::new()), Arc::<Traces>::default());
            let payload = Payload(Arc::clone(&traces));
            let timer = WallTimer::start(&manual.engine, wall(TIME), MissedTicks::default().into(), move |tick| {
                payload.call(tick);
                let _ = tick.reset_at(wall(2 * TIME));
            });
            let jobs = in_pool.then(|| manual.sweep_at(TIME));
            let worker = {
                let manual = Arc::clone(&manual);
                thread::spawn(move || manual.run(jobs.unwrap_or_else(|| manual.sweep_at(TIME))))
            };
            drop(timer);
            worker.join().unwrap();
            assert_eq!((waiting(&manual), manual.engine.active()), (0, 0), "waiting, queued");
            assert_eq!((traces.dropped.load(Relaxed), manual.engine.panics()), (1, 0));
            manual.end();
        });
    }
}

#[test]
fn a_timer_changed_while_its_runtime_ends_waits_no_more() {
    for has_fired in [false, true] {
        explore_all(move || {
            let stage = Stage::new();
            if has_fired {
                stage.run_at(TIME);
            }
            let closer = spawn(&stage, |stage| stage.manual.engine.close());
            let _ = stage.change(20);
            closer.join().unwrap();
            assert_eq!((stage.waiting(), stage.manual.engine.active()), (0, 0), "waiting, queued");
            assert_eq!(stage.change(30), Changed::Ended);
            assert_eq!(stage.waiting(), 0);
            stage.timer.dispose();
            stage.is_over();
        });
    }
}

/// S89. A timer that has fired too early is handed back where its runtime ends meanwhile.
///
/// Seen to fail with: `has_come` that disposes the timer if the shard is closed.
#[test]
fn a_timer_that_fires_early_while_its_runtime_ends_is_handed_back() {
    explore_all(|| {
        let (stage, jobs) = Stage::due(true);
        stage.manual.virtual_time.set_wall(wall(TIME - 5));
        stage.manual.engine.keep_unfired();
        let worker = worker(&stage, jobs);
        stage.manual.engine.close();
        worker.join().unwrap();
        let unfired = stage.manual.engine.take_unfired();
        assert_eq!((unfired.len(), stage.called(TIME)), (1, 0));
        drop(unfired);
        stage.timer.dispose();
        stage.is_over();
    });
}

#[test]
fn a_change_a_step_and_a_tick_happen_in_one_order() {
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
            // By the wall clock seven are left, in any order of the aims.
            assert_eq!(stage.manual.engine.earliest_due(), TIME + 7);
            stage.run_at(TIME + 7);
            assert_eq!((stage.called(TIME + 2), stage.waiting()), (1, 0));
            assert_eq!(stage.manual.engine.earliest_due(), NEVER);
            stage.end();
        });
    }
}
