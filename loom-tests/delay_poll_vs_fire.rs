//! Models of `Delay`, `Interval` and what a token adds to them, against the thread that fires, resets or shuts down.
//!
//! They run what ships, on a manual clock. A task is polled by hand, once or twice, so that a lost wake-up shows as a task
//! that was not woken when everything due has fired; where it must go on by itself it blocks, and a lost wake-up is a
//! deadlock.
//!
//! ```text
//!   polls with a new waker               fires
//!     not due yet
//!                                          takes the old waker out, wakes: the task is polled
//!     stores the new waker                   already, and sleeps
//!     files nothing: for ever
//!
//!   resets to later                      fires
//!                                          due when it was filed: wakes, takes the waker out
//!     a waker is there: it is filed
//!     nothing is filed: for ever
//!
//!   polls                                shuts down
//!     the home is open
//!                                          closes, disposes what is filed
//!     files its node: for ever
//! ```

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use loom::thread;

use crate::cancellation::CancellationTokenSource;
use crate::engine::Fire;
use crate::future::Delay;
use crate::future::{Interval, StopHandle};
use crate::loom_models::explore::{explore_all, explore_bounded};
use crate::loom_models::harness::{Manual, Task};
use crate::runtime::RuntimeError;
use crate::timer::block_on;

const DUE: u64 = 10;
const LATER: u64 = 20;

fn spawn(manual: &Arc<Manual>, action: impl FnOnce(&Manual) + 'static) -> thread::JoinHandle<()> {
    let manual = Arc::clone(manual);
    thread::spawn(move || action(&manual))
}

/// A delay that a task waits for. `in_pool`: its node has been taken out of the queue, and the job is in the pool.
fn waited_for(manual: &Manual, task: &Task, in_pool: bool) -> (Delay, Option<Vec<Fire>>) {
    let mut delay = Delay::on_until(manual.source(), DUE);
    assert!(task.poll(&mut delay).is_pending());
    (delay, in_pool.then(|| manual.sweep_at(DUE)))
}

// ---------------------------------------------------------------- poll against fire

/// S35, S37. The waker of the latest poll is the one that is woken.
///
/// Seen to fail with: `wait_on` that keeps the old waker, or does not file; `ring` that leaves the waker.
#[test]
fn the_latest_waker_is_woken() {
    for in_pool in [false, true] {
        explore_all(move || {
            let manual = Arc::new(Manual::new());
            let (before, after) = (Task::new(), Task::new());
            let (mut delay, jobs) = waited_for(&manual, &before, in_pool);
            let worker = spawn(&manual, |manual| manual.run(jobs.unwrap_or_else(|| manual.sweep_at(DUE))));
            manual.step();
            let polled = after.poll(&mut delay);
            worker.join().unwrap();
            // A poll that has looked at the clock before it was moved may have filed the node after the sweep.
            manual.run(manual.sweep_at(DUE));
            match polled {
                Poll::Ready(()) => {}
                Poll::Pending => assert_eq!(after.woken(), 1, "the latest waker is woken, once"),
            }
            assert_eq!(after.poll(&mut delay), Poll::Ready(()));
            drop(delay);
            assert_eq!((before.wakers_kept(), after.wakers_kept()), (0, 0));
            manual.end();
        });
    }
}

/// S36. A delay that is dropped while it fires is unlinked, or fires; its waker is gone either way.
///
/// Seen to fail with: `dispose_last` that does not unlink.
#[test]
fn a_delay_dropped_while_it_fires_leaves_nothing_behind() {
    for in_pool in [false, true] {
        explore_all(move || {
            let manual = Arc::new(Manual::new());
            let task = Task::new();
            let (delay, jobs) = waited_for(&manual, &task, in_pool);
            let worker = spawn(&manual, |manual| manual.run(jobs.unwrap_or_else(|| manual.sweep_at(DUE))));
            drop(delay);
            assert_eq!(manual.engine.active(), 0, "unlinked at once");
            worker.join().unwrap();
            assert_eq!(task.wakers_kept(), 0);
            assert!(task.woken() <= 1);
            manual.end();
        });
    }
}

/// S35. Moved later while it fires for its old deadline, a delay wakes at the new one, if not also before.
///
/// Seen to fail with: `ring` that does not file it again; `wait_on` that does not file.
#[test]
fn a_delay_moved_later_while_it_fires_fires_again() {
    for in_pool in [false, true] {
        explore_all(move || {
            let manual = Arc::new(Manual::new());
            let task = Task::new();
            let (mut delay, jobs) = waited_for(&manual, &task, in_pool);
            let worker = spawn(&manual, |manual| manual.run(jobs.unwrap_or_else(|| manual.sweep_at(DUE))));
            delay.reset_to(LATER);
            worker.join().unwrap();
            let woken = task.woken();
            if woken > 0 {
                assert!(task.poll(&mut delay).is_pending(), "for nothing");
            }
            manual.run(manual.sweep_at(LATER));
            assert_eq!(task.woken(), woken + 1);
            assert_eq!(task.poll(&mut delay), Poll::Ready(()));
            drop(delay);
            manual.end();
        });
    }
}

/// S35. Moved earlier while a sweep passes its queue, a delay wakes at the new deadline.
///
/// Seen to fail with: `reset` that leaves the node where it is; `reset` that does not move the deadline in the node.
#[test]
fn a_delay_moved_earlier_during_a_sweep_fires() {
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let task = Task::new();
        let (mut delay, _) = waited_for(&manual, &task, false);
        let sweeper = spawn(&manual, |manual| manual.run(manual.sweep_at(DUE - 2)));
        delay.reset_to(DUE - 1);
        sweeper.join().unwrap();
        assert_eq!(task.woken(), 0, "not due yet");
        manual.run(manual.sweep_at(DUE - 1));
        assert_eq!(task.woken(), 1);
        assert_eq!(task.poll(&mut delay), Poll::Ready(()));
        drop(delay);
        manual.end();
    });
}

/// S35, S37. A delay is ready by the clock while the callback of its firing has begun, and is then used again. The callback files
/// nothing for a task that does not wait, and the next poll relies on no node that is filed for a later instant.
///
/// ```text
///   polls                                fires
///                                          begun; waits for the lock
///     ready by the clock: takes the waker
///   resets to later, nothing is filed
///                                          the deadline is later: files the node there
///   resets to earlier: no task waits
///   polls: stores a waker; the node is
///     filed: too late
/// ```
///
/// Seen to fail with: `ring` that files without a waker, beside a `wait_on` that does not look at the due point.
#[test]
fn a_delay_that_is_used_again_while_it_fires_wakes_at_its_new_deadline() {
    for polls_again in [true, false] {
        explore_all(move || {
            let manual = Arc::new(Manual::new());
            let task = Task::new();
            let (mut delay, jobs) = waited_for(&manual, &task, true);
            let worker = spawn(&manual, |manual| manual.run(jobs.expect("in the pool")));
            assert!(task.poll(&mut delay).is_ready());
            delay.reset_to(2 * LATER);
            delay.reset_to(LATER);
            let waits = polls_again && task.poll(&mut delay).is_pending();
            worker.join().unwrap();
            assert_eq!(
                (waits, manual.engine.active()),
                (polls_again, usize::from(polls_again)),
                "filed while a task waits"
            );
            let woken = task.woken();
            manual.run(manual.sweep_at(LATER));
            assert_eq!(task.woken() - woken, usize::from(polls_again), "at the new deadline");
            assert!(task.poll(&mut delay).is_ready());
            drop(delay);
            manual.end();
        });
    }
}

/// S39. The same of an interval whose period is made longer and then shorter.
///
/// Seen to fail with: as the model before.
#[test]
fn an_interval_whose_period_is_shortened_while_it_fires_ticks_in_time() {
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let task = Task::new();
        let (mut interval, _) = interval(&manual);
        assert!(poll(&mut interval, &task).is_pending());
        let jobs = manual.sweep_at(DUE);
        let worker = spawn(&manual, |manual| manual.run(jobs));
        assert_eq!(poll(&mut interval, &task), Poll::Ready(Some(1)));
        interval.set_period(Duration::from_nanos(3 * DUE));
        interval.set_period(Duration::from_nanos(DUE));
        assert!(poll(&mut interval, &task).is_pending());
        worker.join().unwrap();
        let woken = task.woken();
        manual.run(manual.sweep_at(2 * DUE));
        assert_eq!(task.woken(), woken + 1);
        assert_eq!(poll(&mut interval, &task), Poll::Ready(Some(1)));
        drop(interval);
        manual.end();
    });
}

// ---------------------------------------------------------------- the end of the runtime

/// The thread waits for the delay, or for the end of its runtime.
fn tried(delay: &mut Delay) -> Result<(), RuntimeError> {
    block_on(&mut poll_fn(|context| delay.poll_try_wait(context)))
}

/// S33. Whoever waits for a delay, or begins to, when the runtime ends is told, also when the delay was moved with a job
/// still in the pool, which is discarded meanwhile.
///
/// Seen to fail with: `end` that does not wake; `wait_on` that does not look whether the home is open; homes that are closed after the flag that has jobs discarded.
#[test]
fn whoever_waits_when_the_runtime_ends_is_told() {
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let mut delay = Delay::on_until(manual.source(), DUE);
        let closer = spawn(&manual, |manual| manual.engine.close());
        assert!(matches!(tried(&mut delay), Err(RuntimeError::Ended)));
        closer.join().unwrap();
        drop(delay);
        manual.end();
    });
    explore_bounded(|| {
        let manual = Arc::new(Manual::new());
        let (mut delay, jobs) = waited_for(&manual, &Task::new(), true);
        delay.reset_to(LATER);
        let closer = spawn(&manual, |manual| manual.engine.close());
        let worker = spawn(&manual, |manual| manual.run(jobs.expect("in the pool")));
        assert!(matches!(tried(&mut delay), Err(RuntimeError::Ended)));
        closer.join().unwrap();
        worker.join().unwrap();
        drop(delay);
        manual.end();
    });
}

// ---------------------------------------------------------------- with a token

/// S50. The first of the two to come wakes the task, its answer stays, and nothing of the other is left.
///
/// Seen to fail with: `CancellableDelay` that asks the token although it is done, does not settle the delay, or leaves its
/// waker with the token; `settle` that leaves the delay filed.
#[test]
fn token_or_time_whichever_is_first() {
    explore_bounded(|| {
        let manual = Arc::new(Manual::new());
        let task = Task::new();
        let source = CancellationTokenSource::on(manual.source());
        let mut delay = Delay::on_until(manual.source(), DUE).with_token(&source.token());
        assert!(task.poll(&mut delay).is_pending());
        let canceller = {
            let source = source.clone();
            thread::spawn(move || source.cancel())
        };
        let worker = spawn(&manual, |manual| manual.run(manual.sweep_at(DUE)));
        manual.step();
        let polled = task.poll(&mut delay);
        canceller.join().unwrap();
        worker.join().unwrap();
        manual.run(manual.sweep_at(DUE));
        let result = match polled {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => {
                assert!(task.woken() > 0);
                task.poll(&mut delay)
            }
        };
        assert!(matches!(result, Poll::Ready(_)), "{result:?}");
        assert_eq!(task.poll(&mut delay), result, "it stays");
        assert_eq!((task.wakers_kept(), manual.engine.active()), (0, 0), "both are cleaned up at once");
        drop(delay);
        manual.end();
    });
    // One of them comes alone: nothing else would take the other's traces away.
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let task = Task::new();
        let source = CancellationTokenSource::on(manual.source());
        let mut delay = Delay::on_until(manual.source(), DUE).with_token(&source.token());
        assert!(task.poll(&mut delay).is_pending());
        let sweeper = spawn(&manual, |manual| manual.run(manual.sweep_at(DUE - 1)));
        source.cancel();
        assert!(matches!(task.poll(&mut delay), Poll::Ready(Err(_))));
        assert_eq!((task.wakers_kept(), manual.engine.active()), (0, 0));
        sweeper.join().unwrap();
        drop(delay);
        manual.end();
    });
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let task = Task::new();
        let source = CancellationTokenSource::on(manual.source());
        let mut delay = Delay::on_until(manual.source(), DUE).with_token(&source.token());
        assert!(task.poll(&mut delay).is_pending());
        let worker = spawn(&manual, |manual| manual.run(manual.sweep_at(DUE)));
        manual.step();
        let ready = task.poll(&mut delay).is_ready();
        assert!(!ready || task.wakers_kept() == 0);
        worker.join().unwrap();
        assert_eq!(task.poll(&mut delay), Poll::Ready(Ok(())));
        assert_eq!(task.wakers_kept(), 0);
        drop(delay);
        manual.end();
    });
}

// ---------------------------------------------------------------- interval

/// S39. A stop handle that is made while a task waits: the task is woken, by the firing, for the handle, or by the stop.
///
/// Seen to fail with: `wake_task` that takes the waker and does not wake.
#[test]
fn a_task_that_waits_when_a_stop_handle_is_made_is_told_of_the_stop() {
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let task = Task::new();
        let mut interval = Interval::on(manual.source(), Duration::from_nanos(DUE));
        assert!(poll(&mut interval, &task).is_pending());
        let worker = spawn(&manual, |manual| manual.run(manual.sweep_at(DUE)));
        let handle = interval.stop_handle();
        handle.stop();
        worker.join().unwrap();
        assert_eq!(task.woken(), 1);
        assert_eq!(poll(&mut interval, &task), Poll::Ready(None));
        drop(interval);
        assert_eq!(task.wakers_kept(), 0);
        drop(handle);
        manual.end();
    });
}

fn interval(manual: &Manual) -> (Interval, StopHandle) {
    let mut interval = Interval::on(manual.source(), Duration::from_nanos(DUE));
    let handle = interval.stop_handle();
    (interval, handle)
}

/// What a poll says of an interval: ticks taken and counted as missed; `None` at the end.
fn poll(interval: &mut Interval, task: &Task) -> Poll<Option<u64>> {
    task.poll(&mut poll_fn(|context| interval.poll_tick(context))).map(|tick| tick.map(|tick| 1 + tick.missed()))
}

/// S39. Each tick is taken, or counted as missed by the one that is; whoever waits is woken.
///
/// Seen to fail with: `wait_on` that does not file; an interval that does not move its delay on, or forgets what it
/// missed.
#[test]
fn no_tick_of_an_interval_is_lost() {
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let task = Task::new();
        let (mut interval, _) = interval(&manual);
        assert!(poll(&mut interval, &task).is_pending());
        let worker = spawn(&manual, |manual| {
            manual.run(manual.sweep_at(DUE));
            manual.run(manual.sweep_at(2 * DUE));
        });
        let (mut ticks, mut waits) = (0, true);
        for _ in 0..2 {
            manual.step();
            match poll(&mut interval, &task) {
                Poll::Ready(taken) => {
                    ticks += taken.expect("goes on");
                    waits = false;
                }
                Poll::Pending => waits = true,
            }
        }
        worker.join().unwrap();
        manual.run(manual.sweep_at(2 * DUE));
        assert!(ticks == 2 || !waits || task.woken() > 0, "whoever waits for a tick that is there is woken");
        while let Poll::Ready(taken) = poll(&mut interval, &task) {
            ticks += taken.expect("goes on");
        }
        assert_eq!(ticks, 2);
        drop(interval);
        assert_eq!(task.wakers_kept(), 0);
        manual.end();
    });
}

/// S39. Whoever waits for a tick, or begins to, when the interval is stopped is told, also when a tick comes due.
///
/// ```text
///   waits                                stops
///     not stopped
///                                          stopped; nobody waits
///     leaves its waker: for ever
/// ```
///
/// Seen to fail with: `stopped` that leaves no waker, or leaves it in a second section; `stop` that does not wake; a delay
/// that is kept; `ring` that files a disposed node.
#[test]
fn whoever_waits_when_the_interval_is_stopped_is_told() {
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let (mut interval, handle) = interval(&manual);
        let stopper = thread::spawn(move || handle.stop());
        assert_eq!(block_on(&mut poll_fn(|context| interval.poll_tick(context))), None);
        assert_eq!(manual.engine.active(), 0, "the delay is unlinked");
        stopper.join().unwrap();
        manual.end();
    });
    explore_bounded(|| {
        let manual = Arc::new(Manual::new());
        let (mut interval, handle) = interval(&manual);
        let stopper = thread::spawn(move || handle.stop());
        let worker = spawn(&manual, |manual| manual.run(manual.sweep_at(DUE)));
        manual.step();
        let mut next = || block_on(&mut poll_fn(|context| interval.poll_tick(context)));
        if let Some(tick) = next() {
            assert_eq!((tick.scheduled().as_ns(), tick.missed()), (DUE, 0));
            assert_eq!(next(), None);
        }
        stopper.join().unwrap();
        worker.join().unwrap();
        assert_eq!(manual.engine.active(), 0, "the delay is unlinked");
        manual.end();
    });
}
