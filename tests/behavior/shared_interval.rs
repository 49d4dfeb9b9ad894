//! Shared intervals (S91): several receivers, and a period that changes while tasks wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::support::poll::{CountingWaker, PanickingWaker, panics};
use crate::support::{PATIENCE, block_on, manual, ms, native, secs, within};
use timerqueue::error::RuntimeError;
use timerqueue::{Interval, IntervalTick, MissedTicks, SharedInterval};

fn poll(ticks: &mut SharedInterval, counter: &CountingWaker) -> Poll<Option<IntervalTick>> {
    ticks.poll_tick(&mut Context::from_waker(&counter.waker()))
}

/// The due point in seconds, and the number of missed ticks, of the tick that is ready now.
fn take(ticks: &mut SharedInterval) -> Option<(u64, u64)> {
    match ticks.poll_tick(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(tick)) => Some((tick.scheduled().as_duration().as_secs(), tick.missed())),
        Poll::Ready(None) => panic!("the interval has ended"),
        Poll::Pending => None,
    }
}

#[test]
fn s91_each_receiver_gets_each_tick_once() {
    let (clock, runtime) = manual();
    let mut first = Interval::on(&runtime, secs(10)).shared();
    let mut second = first.clone();
    clock.advance(secs(10));
    assert_eq!((take(&mut first), take(&mut first)), (Some((10, 0)), None));
    clock.advance(secs(25));
    let mut third = second.clone();
    assert_eq!((take(&mut second), take(&mut second)), (Some((10, 2)), None), "late, so coalesced");
    assert_eq!((take(&mut first), take(&mut first)), (Some((20, 1)), None));
    assert_eq!(take(&mut third), None, "begins with the next tick");
    clock.advance(secs(5));
    for receiver in [&mut first, &mut second, &mut third] {
        assert_eq!((take(receiver), take(receiver)), (Some((40, 0)), None));
    }
}

/// As .NET's `PeriodicTimer.Period`, which may be set while a task waits.
#[test]
fn s91_a_period_that_changes_while_tasks_wait_counts_from_the_change() {
    let (clock, runtime) = manual();
    let mut receivers = vec![Interval::on(&runtime, secs(3_600)).shared(); 3];
    let counters: Vec<_> = (0..3).map(|_| CountingWaker::new()).collect();
    for (receiver, counter) in receivers.iter_mut().zip(&counters) {
        assert!(poll(receiver, counter).is_pending());
    }
    clock.advance(secs(100));
    let control = receivers[0].clone();
    control.set_period(secs(2));
    assert_eq!((control.period(), control.next_due()), (secs(2), Some(clock.now() + secs(2))));
    assert!(counters.iter().all(|counter| counter.wakes() == 1));
    for (receiver, counter) in receivers.iter_mut().zip(&counters) {
        assert!(poll(receiver, counter).is_pending());
    }
    clock.advance(secs(2));
    assert!(counters.iter().all(|counter| counter.wakes() == 2));
    assert!(receivers.iter_mut().all(|receiver| take(receiver) == Some((102, 0))));
    control.set_period(Duration::MAX);
    clock.advance(secs(1_000_000));
    assert!(receivers.iter_mut().all(|receiver| take(receiver).is_none() && receiver.next_due().is_none()));
    control.reset_at(clock.now());
    assert!(receivers.iter_mut().all(|receiver| take(receiver) == Some((1_000_102, 0))));
    control.set_period(secs(5));
    clock.advance(secs(4));
    control.reset();
    clock.advance(secs(4));
    assert!(receivers.iter_mut().all(|receiver| take(receiver).is_none()));
    clock.advance(secs(1));
    assert!(receivers.iter_mut().all(|receiver| take(receiver) == Some((1_000_111, 0))));
}

/// Without the new registration after a change, the second change would wake no task.
#[test]
fn s91_a_task_that_waits_on_is_woken_by_each_change() {
    let (_clock, runtime) = manual();
    let mut ticks = Interval::on(&runtime, secs(1)).shared();
    let (control, counter) = (ticks.clone(), CountingWaker::new());
    for changes in 1..=5 {
        assert!(poll(&mut ticks, &counter).is_pending());
        control.set_period(secs(changes));
        control.set_period(secs(changes));
        assert_eq!(counter.wakes() as u64, changes, "once for each wait");
    }
    let other = CountingWaker::new();
    assert!(poll(&mut ticks, &counter).is_pending() && poll(&mut ticks, &other).is_pending());
    control.reset();
    assert_eq!((counter.wakes(), other.wakes()), (5, 1), "the latest waker");
}

#[test]
fn s91_a_stop_ends_all_receivers_and_those_to_come() {
    let (clock, runtime) = manual();
    let mut interval = Interval::on(&runtime, secs(1));
    let handle = interval.stop_handle();
    let mut first = interval.shared();
    let (mut second, counter) = (first.clone(), CountingWaker::new());
    assert!(poll(&mut first, &counter).is_pending());
    clock.advance(secs(1));
    handle.stop();
    assert_eq!(poll(&mut first, &counter), Poll::Ready(None));
    assert_eq!(block_on(second.tick()), None);
    assert_eq!(block_on(first.clone().tick()), None);
    let mut third = Interval::on(&runtime, secs(1)).shared();
    assert!(poll(&mut third, &counter).is_pending());
    let wakes = counter.wakes();
    third.clone().stop();
    assert!(counter.wakes() > wakes && poll(&mut third, &counter) == Poll::Ready(None));
}

#[test]
fn s91_policy_and_leeway_are_those_of_the_interval() {
    let (clock, runtime) = manual();
    let interval = Interval::on(&runtime, secs(1)).missed_ticks(MissedTicks::Burst).leeway(secs(10));
    let mut first = interval.shared();
    let mut second = first.clone();
    let counter = CountingWaker::new();
    assert!(poll(&mut second, &counter).is_pending());
    clock.advance(secs(9));
    assert_eq!(counter.wakes(), 0, "at the next point of the grid");
    clock.advance(secs(1));
    assert_eq!(counter.wakes(), 1);
    for receiver in [&mut first, &mut second] {
        assert!((1..=10).all(|second| take(receiver) == Some((second, 0))), "one by one");
    }
}

#[test]
fn receivers_that_are_dropped_or_have_their_tick_keep_and_wake_no_task() {
    let (clock, runtime) = manual();
    let mut ticks = Interval::on(&runtime, secs(1)).shared();
    let (mut second, counter) = (ticks.clone(), CountingWaker::new());
    assert!(poll(&mut ticks, &counter).is_pending() && poll(&mut second, &counter).is_pending());
    drop(second);
    clock.advance(secs(1));
    let wakes = counter.wakes();
    assert!(poll(&mut ticks, &counter).is_ready());
    ticks.set_period(secs(5));
    assert_eq!(counter.wakes(), wakes);
    assert_eq!(runtime.metrics().active, 0);
}

#[test]
fn a_waker_that_panics_surfaces_at_the_change_after_all_were_woken() {
    let (_clock, runtime) = manual();
    let mut receivers = vec![Interval::on(&runtime, secs(1)).shared(); 3];
    let counter = CountingWaker::new();
    assert!(poll(&mut receivers[0], &counter).is_pending());
    let panicking = PanickingWaker::on_wake();
    let waker = panicking.waker();
    assert!(receivers[1].poll_tick(&mut Context::from_waker(&waker)).is_pending());
    assert!(poll(&mut receivers[2], &counter).is_pending());
    let control = receivers[0].clone();
    assert!(panics(|| control.set_period(secs(2))));
    assert_eq!((counter.wakes(), control.period()), (2, secs(2)));
}

/// A waker is called without the lock: it may change the interval, and drop a receiver.
#[test]
fn a_waker_may_change_its_interval() {
    within(PATIENCE, "no deadlock", || {
        let (_clock, runtime) = manual();
        let mut ticks = Interval::on(&runtime, secs(1)).shared();
        let (control, once) = (ticks.clone(), AtomicBool::new(false));
        let waker = crate::support::poll::waker_that(move || {
            if !once.swap(true, Ordering::Relaxed) {
                control.set_period(secs(3));
                drop(control.clone());
            }
        });
        assert!(ticks.poll_tick(&mut Context::from_waker(&waker)).is_pending());
        ticks.set_period(secs(2));
        assert_eq!(ticks.period(), secs(3));
    });
}

#[test]
fn the_end_of_the_runtime_is_an_error_for_each_receiver() {
    let (_clock, runtime) = manual();
    let mut first = Interval::on(&runtime, secs(1)).shared();
    let mut second = first.clone();
    runtime.shutdown(secs(1)).unwrap();
    assert!(matches!(block_on(first.try_tick()), Err(RuntimeError::Ended)));
    assert!(matches!(block_on(second.try_tick()), Err(RuntimeError::Ended)));
    assert!(poll(&mut first, &CountingWaker::new()).is_pending());
    first.stop();
    assert_eq!(block_on(second.tick()), None);
}

/// Real threads: a change meets receivers that begin to wait. A change that is lost would leave a
/// receiver waiting for an hour.
#[test]
fn s91_changes_against_receivers_on_other_threads() {
    within(PATIENCE, "no change is lost", || {
        let runtime = native();
        let ticks = Interval::on(&runtime, secs(3_600)).shared();
        let taken = Arc::new(AtomicU64::new(0));
        let receivers: Vec<_> = (0..2)
            .map(|_| {
                let (mut ticks, taken) = (ticks.clone(), Arc::clone(&taken));
                thread::spawn(move || {
                    while block_on(ticks.tick()).is_some() {
                        taken.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for round in 1..=200 {
            ticks.set_period(Duration::from_micros(50));
            while taken.load(Ordering::Relaxed) < round {
                thread::yield_now();
            }
            ticks.set_period(secs(3_600));
        }
        ticks.set_period(ms(1));
        ticks.stop();
        receivers.into_iter().for_each(|receiver| receiver.join().unwrap());
    });
}
