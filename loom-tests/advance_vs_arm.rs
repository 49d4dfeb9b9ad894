//! Models of the manual clock: threads arm timers, wait for delays, or end their runtime while the
//! clock advances (S35, S51).
//!
//! ```text
//!   arms a timer                         advances to 1
//!     reads the clock: 0
//!                                          sets the clock to 1, sweeps: nothing is due
//!     inserts the timer at 1: no sweep follows
//!
//!   ends its runtime                     advances
//!                                          takes a due tick
//!     finds no due tick, and no callback that runs: returns
//!                                          the runtime has ended: gives up the tick
//!
//!   drops its runtime                    advances
//!                                          takes a reference, to look for the next deadline
//!     closes the runtime, drops its reference
//!                                          drops the last reference with a lock held: the user's
//!                                            panic handler is dropped, and takes the same lock
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Tally, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use loom::thread;

use crate::loom_models::explore::{explore_all, explore_bounded};
use crate::loom_models::harness::Task;
use crate::runtime::{ManualClock, Runtime};
use crate::{Delay, OnceTimer, Timer};

const DUE: Duration = Duration::from_nanos(10);

fn start(clock: &ManualClock) -> Runtime {
    Runtime::builder().manual_clock(clock).start().expect("nothing to refuse")
}

fn advances(clock: &ManualClock, by: Duration) -> thread::JoinHandle<()> {
    let clock = clock.clone();
    thread::spawn(move || {
        clock.advance(by);
    })
}

/// S51. A timer armed while the clock is advanced fires within the advance, or is due after the
/// advance.
///
/// Seen to fail with: `start_at` and `change` that use a reading of the clock from before the lock;
/// `drive` that reaches its target and does not wait for threads about to arm a timer;
/// `ShardState::now` that reads the clock before the queue is on the agenda.
#[test]
fn an_advance_leaves_nothing_behind_that_is_due() {
    for by in [DUE, 2 * DUE] {
        for is_new in [true, false] {
            explore_all(move || {
                let clock = ManualClock::new();
                let runtime = start(&clock);
                let fired = Arc::new(Tally::new(0));
                let seen = Arc::clone(&fired);
                let idle = Duration::MAX;
                let arm = |due| {
                    Timer::on(&runtime, due, idle, move |_| {
                        seen.fetch_add(1, Relaxed);
                    })
                };
                let (driver, timer);
                if is_new {
                    driver = advances(&clock, by);
                    timer = arm(DUE);
                } else {
                    timer = arm(idle);
                    driver = advances(&clock, by);
                    let _ = timer.change(DUE, idle);
                }
                driver.join().unwrap();
                let due = clock.next_due();
                assert_eq!(due.is_none(), fired.load(Relaxed) == 1, "it fires or waits");
                assert!(due.is_none_or(|due| due > clock.now()), "due at {due:?}, and no sweep follows");
                drop(timer);
            });
        }
    }
}

/// S35. A delay polled while the clock is advanced is ready, or its task is woken.
///
/// Seen to fail with: `WakerEntry::start` and `look` that use a reading of the clock from before
/// the lock.
#[test]
fn a_delay_polled_during_an_advance_is_ready_or_woken() {
    for polled_before in [false, true] {
        explore_all(move || {
            let clock = ManualClock::new();
            let runtime = start(&clock);
            let (before, task) = (Task::new(), Task::new());
            let mut delay = Delay::on(&runtime, DUE);
            if polled_before {
                assert!(before.poll(&mut delay).is_pending());
            }
            let driver = advances(&clock, DUE);
            let polled = task.poll(&mut delay);
            driver.join().unwrap();
            match polled {
                Poll::Ready(()) => {}
                Poll::Pending => assert_eq!(task.woken(), 1, "its time has come"),
            }
            assert_eq!(task.poll(&mut delay), Poll::Ready(()));
            drop(delay);
            assert_eq!((before.wakers_kept(), task.wakers_kept()), (0, 0));
        });
    }
}

/// S35, S51. A delay reset while the clock is advanced wakes its task within the advance, or
/// elapses after the advance.
///
/// Seen to fail with: `reset` that uses a reading of the clock from before the lock.
#[test]
fn a_delay_reset_during_an_advance_is_not_left_behind() {
    for by in [DUE, 2 * DUE] {
        explore_all(move || {
            let clock = ManualClock::new();
            let runtime = start(&clock);
            let task = Task::new();
            let mut delay = Delay::on(&runtime, Duration::MAX);
            assert!(task.poll(&mut delay).is_pending());
            let driver = advances(&clock, by);
            delay.reset(DUE);
            driver.join().unwrap();
            let due = clock.next_due();
            assert_eq!(due.is_none(), task.woken() == 1, "its task is woken or it waits");
            assert!(due.is_none_or(|due| due > clock.now()), "due at {due:?}, and no sweep follows");
        });
    }
}

/// S89. A runtime that ends while its clock is advanced: its callback has run or is handed back,
/// unless the shutdown says that it has not waited.
///
/// Seen to fail with: `run_due` that takes a tick, or sweeps, and does not `enter_by_hand`; `put`
/// that does not look whether the runtime has ended.
#[test]
fn a_shutdown_beside_an_advance_hands_back_what_does_not_run() {
    explore_all(|| {
        let clock = ManualClock::new();
        let runtime = start(&clock);
        let fired = Arc::new(Tally::new(0));
        let seen = Arc::clone(&fired);
        let timer = OnceTimer::on(&runtime, DUE, move |_| {
            seen.fetch_add(1, Relaxed);
        });
        let driver = advances(&clock, DUE);
        let (unfired, ended) = runtime.shutdown_now(Duration::ZERO);
        if ended.is_ok() {
            assert_eq!(fired.load(Relaxed) + unfired.len(), 1);
        }
        driver.join().unwrap();
        drop((unfired, timer));
    });
}

/// S24. The data of a panic handler is dropped with no lock held, and its destructor may use the
/// clock. This holds also when the runtime ends while its clock is advanced.
///
/// Seen to fail with: `Agenda::wait_for_arming` that drops its reference to the engine with the
/// agenda locked.
#[test]
fn a_runtime_that_ends_during_an_advance_is_dropped_outside_of_locks() {
    struct UsesTheClock(ManualClock);

    impl Drop for UsesTheClock {
        fn drop(&mut self) {
            self.0.stall(Duration::ZERO);
        }
    }

    explore_bounded(|| {
        let clock = ManualClock::new();
        let owned = UsesTheClock(clock.clone());
        let handler = move |_| _ = owned.0.now();
        let runtime = Runtime::builder().manual_clock(&clock).on_panic(handler).start().expect("nothing to refuse");
        OnceTimer::on(&runtime, DUE, |_| {}).detach(); // so that the advance looks at this runtime
        let driver = advances(&clock, DUE);
        // Loom does not see reference counts. It tries this step at each point between the driver's
        // looks for runtimes.
        let _ = clock.next_due();
        drop(runtime);
        driver.join().unwrap();
    });
}
