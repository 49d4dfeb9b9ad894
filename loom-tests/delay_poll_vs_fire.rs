//! Models of `Delay`, `Interval` and `CancellableDelay`: a poll against a thread that fires, resets
//! or shuts down (S33, S35 to S37, S39, S50, I20).
//!
//! The models run the shipped code, on a manual clock, or on a clock of the system as well, where a
//! reset to later takes no lock. A model polls its task once or twice; a lost wake-up shows as a
//! task not woken although all due timers have fired. In models that block on the future, a lost
//! wake-up is a deadlock. The due point of an entry is an atomic of std: a reset without the lock
//! is a single step together with the operation before.
//!
//! ```text
//!   polls with a new waker               fires
//!     not due yet
//!                                          takes and wakes the old waker: too early for the new poll
//!     stores the new waker,
//!     does not insert the entry: waits for ever
//!
//!   resets to later                      fires
//!                                          due by the old deadline: takes and wakes the waker
//!     has seen a waker: the entry is queued
//!     the entry is not queued: waits for ever
//!
//!   polls                                shuts down
//!     the shard is open
//!                                          closes, disposes all queued entries
//!     inserts its entry: waits for ever
//!
//!   resets to later, without the lock    fires, then shuts down
//!                                          due by the old deadline: takes the waker
//!                                          closes before the new deadline
//!   polls after the new deadline
//!     has fired: ready, though the runtime
//!     ended before the deadline
//! ```

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use loom::thread;

use crate::cancellation::CancellationTokenSource;
use crate::future::Delay;
use crate::future::{Interval, StopHandle};
use crate::loom_models::explore::{explore_all, explore_bounded};
use crate::loom_models::harness::{Manual, Task};
use crate::runtime::RuntimeError;
use crate::runtime::wait::park_on as block_on;

const DUE: u64 = 10;
const LATER: u64 = 20;

fn spawn(manual: &Arc<Manual>, action: impl FnOnce(&Manual) + 'static) -> thread::JoinHandle<()> {
    let manual = Arc::clone(manual);
    thread::spawn(move || action(&manual))
}

/// Both kinds of clock.
const CLOCKS: [fn() -> Manual; 2] = [Manual::new, Manual::on_system_clock];

/// A delay with a waiting task.
fn waited_for(manual: &Manual, task: &Task) -> Delay {
    let mut delay = Delay::at(manual.source(), DUE);
    assert!(task.poll(&mut delay).is_pending());
    delay
}

// ---------------------------------------------------------------- poll against fire

/// S35, S37. The waker of the latest poll is woken.
///
/// Seen to fail with: `look` that keeps the old waker, or does not insert the entry; `fire` that
/// leaves the waker.
#[test]
fn the_latest_waker_is_woken() {
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let (before, after) = (Task::new(), Task::new());
        let mut delay = waited_for(&manual, &before);
        let worker = spawn(&manual, |manual| manual.run(manual.sweep_at(DUE)));
        manual.step();
        let polled = after.poll(&mut delay);
        worker.join().unwrap();
        // A poll that has read the clock before it was set may have inserted the entry after the
        // sweep.
        manual.run(manual.sweep_at(DUE));
        match polled {
            Poll::Ready(()) => {}
            Poll::Pending => assert_eq!(after.woken(), 1, "the latest waker is woken, once"),
        }
        assert_eq!(after.poll(&mut delay), Poll::Ready(()));
        drop(delay);
        assert_eq!((before.wakers_kept(), after.wakers_kept()), (0, 0));
        manual.end_counted();
    });
}

/// S36. A delay dropped while it fires is unlinked, or fires; its waker is dropped either way.
///
/// Seen to fail with: `dispose_last` that does not unlink.
#[test]
fn a_delay_dropped_while_it_fires_leaves_nothing_behind() {
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let task = Task::new();
        let delay = waited_for(&manual, &task);
        let worker = spawn(&manual, |manual| manual.run(manual.sweep_at(DUE)));
        drop(delay);
        assert_eq!(manual.engine.active(), 0, "unlinked at once");
        worker.join().unwrap();
        assert_eq!(task.wakers_kept(), 0);
        assert!(task.woken() <= 1);
        manual.end_counted();
    });
}

/// S35. A delay moved to later while it fires for its old deadline wakes at the new deadline, and
/// perhaps also before.
///
/// Seen to fail with: `take_waker` that forgets an entry whose deadline has moved; `look` that does
/// not insert the entry; `postpone` that changes nothing.
#[test]
fn a_delay_moved_later_while_it_fires_fires_again() {
    for clock in CLOCKS {
        explore_all(move || {
            let manual = Arc::new(clock());
            let task = Task::new();
            let mut delay = waited_for(&manual, &task);
            let worker = spawn(&manual, |manual| manual.run(manual.sweep_at(DUE)));
            manual.step();
            delay.reset_to(LATER);
            worker.join().unwrap();
            let woken = task.woken();
            if woken > 0 {
                assert!(task.poll(&mut delay).is_pending(), "a spurious wake-up");
            }
            manual.run(manual.sweep_at(LATER));
            assert_eq!(task.woken(), woken + 1);
            assert_eq!(task.poll(&mut delay), Poll::Ready(()));
            drop(delay);
            manual.end_counted();
        });
    }
}

/// S35. A delay moved to earlier during a sweep of its queue wakes at the new deadline.
///
/// Seen to fail with: `reset` that leaves the entry in its slot; `reset` that does not change the
/// deadline in the entry, or takes any entry in the queue for queued in time.
#[test]
fn a_delay_moved_earlier_during_a_sweep_fires() {
    for (clock, later_before) in [(CLOCKS[0], false), (CLOCKS[1], false), (CLOCKS[1], true)] {
        explore_all(move || {
            let manual = Arc::new(clock());
            let task = Task::new();
            let mut delay = waited_for(&manual, &task);
            let (sweeps, earlier) = if later_before { (DUE, LATER - 1) } else { (DUE - 2, DUE - 1) };
            if later_before {
                delay.reset_to(LATER);
            }
            let sweeper = spawn(&manual, move |manual| manual.run(manual.sweep_at(sweeps)));
            delay.reset_to(earlier);
            sweeper.join().unwrap();
            assert_eq!(task.woken(), 0, "not due yet");
            manual.run(manual.sweep_at(earlier));
            assert_eq!(task.woken(), 1);
            assert_eq!(task.poll(&mut delay), Poll::Ready(()));
            drop(delay);
            manual.end_counted();
        });
    }
}

/// S35, S37. A delay is ready by the clock while a sweep waits for the lock, and is then used
/// again. The sweep inserts no entry without a waiting task, and the next poll does not rely on an
/// entry queued for a later instant.
///
/// ```text
///   polls                                sweeps
///                                          waits for the lock
///     ready by the clock: takes the waker
///   resets to later, inserts nothing
///                                          takes the waker, or finds none; gives its reference back
///   resets to earlier: no task waits
///   polls: stores a waker; the entry is
///     queued, but for too late, or is taken for one that has fired
/// ```
///
/// Seen to fail with: `look` that does not insert the entry; `take_waker` that forgets an entry
/// whose deadline has moved.
#[test]
fn a_delay_that_is_used_again_while_it_fires_wakes_at_its_new_deadline() {
    for (clock, polls_again) in CLOCKS.into_iter().flat_map(|clock| [(clock, true), (clock, false)]) {
        explore_all(move || {
            let manual = Arc::new(clock());
            let task = Task::new();
            let mut delay = waited_for(&manual, &task);
            manual.set(DUE);
            let worker = spawn(&manual, |manual| manual.run(manual.sweep_at(DUE)));
            assert!(task.poll(&mut delay).is_ready());
            manual.step();
            delay.reset_to(2 * LATER);
            manual.step();
            delay.reset_to(LATER);
            let waits = polls_again && task.poll(&mut delay).is_pending();
            worker.join().unwrap();
            assert_eq!(
                (waits, manual.engine.active()),
                (polls_again, usize::from(polls_again)),
                "queued exactly if a task waits"
            );
            let woken = task.woken();
            manual.run(manual.sweep_at(LATER));
            assert_eq!(task.woken() - woken, usize::from(polls_again), "at the new deadline");
            assert!(task.poll(&mut delay).is_ready());
            drop(delay);
            manual.end_counted();
        });
    }
}

/// S39. The same as the previous model, for an interval with its period made longer and then
/// shorter.
///
/// Seen to fail with the same mutations.
#[test]
fn an_interval_whose_period_is_shortened_while_it_fires_ticks_in_time() {
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let task = Task::new();
        let (mut interval, _) = interval(&manual);
        assert!(poll(&mut interval, &task).is_pending());
        manual.virtual_time.set(DUE);
        let worker = spawn(&manual, |manual| manual.run(manual.sweep_at(DUE)));
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
        manual.end_counted();
    });
}

// ---------------------------------------------------------------- the end of the runtime

/// Blocks the thread until the delay elapses or its runtime ends.
fn tried(delay: &mut Delay) -> Result<(), RuntimeError> {
    block_on(&mut poll_fn(|context| delay.poll_try_wait(context)))
}

/// S33. A thread that waits for a delay, or begins to wait, while the runtime ends gets the error.
/// This holds also if the delay was moved after a sweep had taken its waker, and the pool discards
/// the waker.
///
/// Seen to fail with: `end` that does not wake; `look` that does not check that the shard is open;
/// shards closed after the flag that makes the pool discard jobs.
#[test]
fn a_waiting_delay_fails_when_the_runtime_ends() {
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let mut delay = Delay::at(manual.source(), DUE);
        let closer = spawn(&manual, |manual| manual.engine.close());
        assert!(matches!(tried(&mut delay), Err(RuntimeError::Ended)));
        closer.join().unwrap();
        drop(delay);
        manual.end_counted();
    });
    explore_bounded(|| {
        let manual = Arc::new(Manual::new());
        let mut delay = waited_for(&manual, &Task::new());
        let jobs = manual.sweep_at(DUE);
        delay.reset_to(LATER);
        let closer = spawn(&manual, |manual| manual.engine.close());
        let worker = spawn(&manual, |manual| manual.run(jobs));
        assert!(matches!(tried(&mut delay), Err(RuntimeError::Ended)));
        closer.join().unwrap();
        worker.join().unwrap();
        drop(delay);
        manual.end_counted();
    });
}

/// S33, S35. A delay that fires for its old deadline while it is reset is not ready for the new one
/// by that: the runtime ends before.
///
/// Seen to fail with: `poll_again` that trusts `has_fired` after a reset.
#[test]
fn a_delay_that_has_fired_before_a_reset_is_not_ready_by_it() {
    for clock in CLOCKS {
        explore_all(move || {
            let manual = Arc::new(clock());
            let task = Task::new();
            let mut delay = waited_for(&manual, &task);
            let closer = spawn(&manual, |manual| {
                manual.run(manual.sweep_at(DUE));
                manual.engine.close();
            });
            manual.step();
            delay.reset_to(LATER);
            closer.join().unwrap();
            assert!(task.woken() > 0, "by the firing, or by the end");
            manual.set(LATER);
            assert!(matches!(tried(&mut delay), Err(RuntimeError::Ended)));
            drop(delay);
            manual.end_counted();
        });
    }
}

// ---------------------------------------------------------------- with a token

/// S50. The first of deadline and cancellation wakes the task and decides the result; the waker and
/// the queue entry are removed.
///
/// Seen to fail with: `CancellableDelay` that asks the token although it is done, does not withdraw
/// the delay, or leaves its waker with the token; `withdraw` that leaves the delay queued.
#[test]
fn the_first_of_token_and_time_wins() {
    explore_bounded(|| {
        let manual = Arc::new(Manual::new());
        let task = Task::new();
        let source = CancellationTokenSource::of(manual.source());
        let mut delay = Delay::at(manual.source(), DUE).with_token(&source.token());
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
        assert_eq!(task.poll(&mut delay), result, "the result stays");
        assert_eq!((task.wakers_kept(), manual.engine.active()), (0, 0), "waker and entry are removed at once");
        drop(delay);
        manual.end_counted();
    });
    // Only the cancellation comes, or only the deadline: a second event cannot hide what the first
    // has left.
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let task = Task::new();
        let source = CancellationTokenSource::of(manual.source());
        let mut delay = Delay::at(manual.source(), DUE).with_token(&source.token());
        assert!(task.poll(&mut delay).is_pending());
        let sweeper = spawn(&manual, |manual| manual.run(manual.sweep_at(DUE - 1)));
        source.cancel();
        assert!(matches!(task.poll(&mut delay), Poll::Ready(Err(_))));
        assert_eq!((task.wakers_kept(), manual.engine.active()), (0, 0));
        sweeper.join().unwrap();
        drop(delay);
        manual.end_counted();
    });
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let task = Task::new();
        let source = CancellationTokenSource::of(manual.source());
        let mut delay = Delay::at(manual.source(), DUE).with_token(&source.token());
        assert!(task.poll(&mut delay).is_pending());
        let worker = spawn(&manual, |manual| manual.run(manual.sweep_at(DUE)));
        manual.step();
        let ready = task.poll(&mut delay).is_ready();
        assert!(!ready || task.wakers_kept() == 0);
        worker.join().unwrap();
        assert_eq!(task.poll(&mut delay), Poll::Ready(Ok(())));
        assert_eq!(task.wakers_kept(), 0);
        drop(delay);
        manual.end_counted();
    });
}

// ---------------------------------------------------------------- interval

/// S39. A stop handle is made while a task waits: the firing, the new handle or the stop wakes the
/// task.
///
/// Seen to fail with: `wake_task` that takes the waker and does not wake.
#[test]
fn a_task_that_waits_when_a_stop_handle_is_made_is_told_of_the_stop() {
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let task = Task::new();
        let mut interval = Interval::every(manual.source(), Duration::from_nanos(DUE));
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
        manual.end_counted();
    });
}

fn interval(manual: &Manual) -> (Interval, StopHandle) {
    let mut interval = Interval::every(manual.source(), Duration::from_nanos(DUE));
    let handle = interval.stop_handle();
    (interval, handle)
}

/// Polls an interval. Returns the number of ticks taken or counted as missed; `None` at the end.
fn poll(interval: &mut Interval, task: &Task) -> Poll<Option<u64>> {
    task.poll(&mut poll_fn(|context| interval.poll_tick(context))).map(|tick| tick.map(|tick| 1 + tick.missed()))
}

/// S39. Each tick is taken, or a later tick counts it as missed; a waiting task is woken.
///
/// Seen to fail with: `look` that does not insert the entry; an interval that does not move its
/// delay on, or forgets missed ticks.
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
        assert!(ticks == 2 || !waits || task.woken() > 0, "a task that waits for a due tick is woken");
        while let Poll::Ready(taken) = poll(&mut interval, &task) {
            ticks += taken.expect("goes on");
        }
        assert_eq!(ticks, 2);
        drop(interval);
        assert_eq!(task.wakers_kept(), 0);
        manual.end_counted();
    });
}

/// S39. A thread that waits for a tick, or begins to wait, while the interval is stopped is woken,
/// also if a tick comes due.
///
/// ```text
///   waits                                stops
///     not stopped
///                                          stopped; no task waits
///     stores its waker: waits for ever
/// ```
///
/// Seen to fail with: `stopped` that stores no waker, or stores the waker in a second lock section;
/// `stop` that does not wake; a delay that is kept; `fire` that inserts a disposed entry.
#[test]
fn a_task_waiting_when_the_interval_is_stopped_is_woken() {
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let (mut interval, handle) = interval(&manual);
        let stopper = thread::spawn(move || handle.stop());
        assert_eq!(block_on(&mut poll_fn(|context| interval.poll_tick(context))), None);
        assert_eq!(manual.engine.active(), 0, "the delay is unlinked");
        stopper.join().unwrap();
        manual.end_counted();
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
        manual.end_counted();
    });
}
