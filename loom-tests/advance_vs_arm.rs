//! Models of the manual clock against threads that arm timers, wait for delays, or end their runtime while it moves.
//!
//! ```text
//!   arms a timer                         advances to 1
//!     reads the clock: 0
//!                                          moves the hands, sweeps: nothing
//!     files it at 1: nobody comes
//!
//!   drops its runtime                    advances
//!                                          holds the runtime, to look for what comes next
//!     closes it, lets go of it
//!                                          lets go of it, the last one, with a lock held: the user's
//!                                            panic handler is dropped, and asks for the lock
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Tally, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use loom::thread;

use crate::loom_models::explore::{explore_all, explore_bounded};
use crate::loom_models::harness::Task;
use crate::runtime::{ManualClock, Runtime};

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

/// S51. A timer that is armed while the clock is advanced fires within that advance, or is due after it.
///
/// Seen to fail with: `start_at` and `change` that go by what the clock showed before the lock; `drive` that does not wait for threads
/// that are about to arm a timer when it has come to its target; `Inner::now` that reads the clock before it puts the queue on the list.
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
                    runtime.timer(due, idle, move |_| {
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
                assert!(due.is_none_or(|due| due > clock.now()), "due at {due:?}, and nobody comes");
                drop(timer);
            });
        }
    }
}

/// S35. A delay that is polled while the clock is advanced is ready, or its task is woken.
///
/// Seen to fail with: `file` and `wait_on` that go by what the clock showed before the lock.
#[test]
fn a_delay_polled_during_an_advance_is_ready_or_woken() {
    for polled_before in [false, true] {
        explore_all(move || {
            let clock = ManualClock::new();
            let runtime = start(&clock);
            let (before, task) = (Task::new(), Task::new());
            let mut delay = runtime.delay(DUE);
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

/// S35, S51. A delay that is reset while the clock is advanced wakes its task within that advance, or ends after it.
///
/// Seen to fail with: `reset` that goes by what the clock showed before the lock.
#[test]
fn a_delay_reset_during_an_advance_is_not_left_behind() {
    for by in [DUE, 2 * DUE] {
        explore_all(move || {
            let clock = ManualClock::new();
            let runtime = start(&clock);
            let task = Task::new();
            let mut delay = runtime.delay(Duration::MAX);
            assert!(task.poll(&mut delay).is_pending());
            let driver = advances(&clock, by);
            delay.reset(DUE);
            driver.join().unwrap();
            let due = clock.next_due();
            assert_eq!(due.is_none(), task.woken() == 1, "its task is woken or it waits");
            assert!(due.is_none_or(|due| due > clock.now()), "due at {due:?}, and nobody comes");
        });
    }
}

/// S24. What a panic handler owns is dropped with no lock held, and may use the clock, also when the runtime ends while its
/// clock is advanced.
///
/// Seen to fail with: `Agenda::wait_for_arming` that lets go of the engine with the entries locked.
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
        runtime.once(DUE, |_| {}).detach(); // there is a reason to come by
        let driver = advances(&clock, DUE);
        // Loom does not see references counted. This is a step of which it tries all places among the driver's looks for runtimes.
        let _ = clock.next_due();
        drop(runtime);
        driver.join().unwrap();
    });
}
