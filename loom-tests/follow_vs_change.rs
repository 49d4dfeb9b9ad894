//! Models of a shared interval: receivers that poll, or are dropped, against a thread that changes
//! the period, and one that fires (S91).
//!
//! The models run the shipped code on a manual clock. A lost wake-up shows as a task that was not
//! woken although its tick is due by the new schedule.
//!
//! ```text
//!   is cloned and polls                  changes the period
//!                                          replaces the source of the old schedule
//!     takes the old schedule, and the
//!     token of the new source
//!                                          writes the new schedule, cancels the old source
//!     waits by the old schedule
//! ```
//!
//! Seen to fail with: a source that is replaced in an earlier section than the schedule; a change
//! that cancels no source; a receiver that does not wait for its token.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use loom::thread;

use super::SharedInterval;
use crate::future::Interval;
use crate::loom_models::explore::{explore_all, explore_bounded};
use crate::loom_models::harness::{Manual, Task};

const EARLY: u64 = 5;
const DUE: u64 = 10;
const LATER: u64 = 20;

fn every(manual: &Manual, period: u64) -> SharedInterval {
    Interval::every(manual.source(), Duration::from_nanos(period)).shared()
}

/// The due point of the tick of a poll that is ready.
fn poll(task: &Task, receiver: &mut SharedInterval) -> Option<u64> {
    match task.poll(&mut poll_fn(|context| receiver.poll_tick(context))) {
        Poll::Ready(tick) => {
            let tick = tick.expect("not stopped");
            assert_eq!(tick.missed(), 0);
            Some(tick.scheduled().as_duration().as_nanos() as u64)
        }
        Poll::Pending => None,
    }
}

fn fire_at(manual: &Manual, now: u64) {
    let jobs = manual.sweep_at(now);
    manual.run(jobs);
}

#[test]
fn a_change_wakes_a_receiver_that_falls_asleep() {
    explore_all(|| {
        let manual = Arc::new(Manual::new());
        let first = every(&manual, LATER);
        let control = first.clone();
        let changer = thread::spawn(move || control.set_period(Duration::from_nanos(DUE)));
        let task = Task::new();
        let mut receiver = first.clone();
        assert_eq!(poll(&task, &mut receiver), None);
        changer.join().unwrap();
        if task.woken() > 0 {
            assert_eq!(poll(&task, &mut receiver), None, "nothing is due yet");
        }
        let before = task.woken();
        fire_at(&manual, DUE);
        assert!(task.woken() > before, "woken by the new schedule");
        assert_eq!(poll(&task, &mut receiver), Some(DUE));
        drop((first, receiver));
        assert_eq!(task.wakers_kept(), 0);
        manual.end_counted();
    });
}

#[test]
fn each_receiver_sees_a_tick_once() {
    explore_bounded(|| {
        let manual = Arc::new(Manual::new());
        let mut first = every(&manual, DUE);
        let mut second = first.clone();
        let other = thread::spawn(move || {
            let task = Task::new();
            let tick = poll(&task, &mut second);
            (task, second, tick)
        });
        let worker = thread::spawn({
            let manual = Arc::clone(&manual);
            move || fire_at(&manual, DUE)
        });
        let task = Task::new();
        let tick = poll(&task, &mut first);
        worker.join().unwrap();
        for (task, mut receiver, tick) in [(task, first, tick), other.join().unwrap()] {
            assert!(tick.is_some() || task.woken() > 0, "woken for the tick");
            assert_eq!(tick.or_else(|| poll(&task, &mut receiver)), Some(DUE));
            assert_eq!(task.wakers_kept(), 0, "no task waits");
            assert_eq!(poll(&task, &mut receiver), None, "once");
        }
        manual.end_counted();
    });
}

#[test]
fn a_dropped_receiver_leaves_the_wakers_of_others() {
    explore_bounded(|| {
        let manual = Arc::new(Manual::new());
        let mut leaver = every(&manual, LATER);
        let (mut stays, control) = (leaver.clone(), leaver.clone());
        let tasks = [Task::new(), Task::new()];
        assert_eq!(poll(&tasks[0], &mut leaver), None);
        let dropper = thread::spawn(move || drop(leaver));
        let changer = thread::spawn(move || {
            control.set_period(Duration::from_nanos(DUE));
            control
        });
        assert_eq!(poll(&tasks[1], &mut stays), None);
        dropper.join().unwrap();
        let control = changer.join().unwrap();
        let mut seen = 0;
        while tasks[1].woken() > seen {
            seen = tasks[1].woken();
            assert_eq!(poll(&tasks[1], &mut stays), None);
        }
        let before = tasks[1].woken();
        control.set_period(Duration::from_nanos(EARLY));
        assert!(tasks[1].woken() > before, "woken by the second change");
        drop((stays, control));
        assert_eq!(tasks.each_ref().map(Task::wakers_kept), [0, 0]);
        manual.end_counted();
    });
}
