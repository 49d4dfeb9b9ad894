//! Models of a delay queue: a receiver against a thread that inserts, removes, fires, closes
//! or shuts down.
//!
//! The models run the shipped code on a manual clock. A lost wake-up shows as a task that was not
//! woken although its entry is due.
//!
//! ```text
//!   receives                             inserts an earlier entry
//!     finds the first entry due at 20
//!                                          links the entry due at 10
//!                                          no receiver sleeps: does not arm
//!     sleeps, arms for 20: 10 late
//!
//!   receives, or drops its future        fires
//!                                          notifies the first receiver
//!     the first receiver is dropped
//!     without passing the wake-up on: the second sleeps for ever
//!
//!   receives                             drops the last handle
//!     finds no entry, the queue is open
//!                                          closes: no receiver sleeps
//!     sleeps for ever
//! ```
//!
//! Seen to fail with: a sleeping receiver that does not settle; `settle_for` that never arms; a
//! dropped receiver that does not settle; `close` that does not settle; arming that does not tell
//! of the runtime's end. The two models of the last handle, with: a handle whose drop does not
//! close; a closed queue that ends while it has entries. The second of them also with: the last
//! entry wakes no other receiver.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use loom::thread;

use crate::delay_queue::{DelayQueue, DelayReceiver, Owner};
use crate::loom_models::explore::{explore_all, explore_bounded};
use crate::loom_models::harness::{Manual, Task};
use crate::queue::MissedTicks;
use crate::sync::Arc as Shareable;

use super::SharedQueue;

const DUE: u64 = 10;
const LATER: u64 = 20;

type Queue = DelayQueue<u32, (), BuildHasherDefault<DefaultHasher>>;

struct Stage {
    manual: Manual,
    queue: Queue,
}

impl Stage {
    fn new() -> Arc<Self> {
        let manual = Manual::new();
        let clock = manual.engine.clock.clone();
        let shared = SharedQueue::new(manual.source(), clock, MissedTicks::default().into(), false, usize::MAX);
        let owner = Shareable::new(Owner { receiver: DelayReceiver::new(shared) });
        let queue = DelayQueue { owner, hasher: BuildHasherDefault::default() };
        Arc::new(Self { manual, queue })
    }

    fn insert(&self, key: u32, due: u64) {
        self.queue.insert(key, (), Duration::from_nanos(due)).unwrap();
    }

    fn fire_at(&self, now: u64) {
        let jobs = self.manual.sweep_at(now);
        self.manual.run(jobs);
    }

    /// Called after all threads have been joined, without receivers.
    fn end(self: Arc<Self>) {
        let Self { manual, queue } = Arc::into_inner(self).expect("all threads have been joined");
        drop(queue);
        manual.end_counted();
    }
}

fn spawn(stage: &Arc<Stage>, action: impl FnOnce(&Stage) + 'static) -> thread::JoinHandle<()> {
    let stage = Arc::clone(stage);
    thread::spawn(move || action(&stage))
}

/// The key of a poll that is ready.
fn key(polled: Poll<Option<crate::delay_queue::Expired<u32, ()>>>) -> Option<u32> {
    match polled {
        Poll::Ready(expired) => Some(expired.expect("not closed").key),
        Poll::Pending => None,
    }
}

#[test]
fn an_earlier_entry_wakes_a_receiver_that_falls_asleep() {
    for waits_already in [false, true] {
        explore_all(move || {
            let stage = Stage::new();
            stage.insert(2, LATER);
            let task = Task::new();
            let mut recv = stage.queue.recv();
            if waits_already {
                assert!(task.poll(&mut recv).is_pending());
            }
            let inserter = spawn(&stage, |stage| stage.insert(1, DUE));
            assert!(task.poll(&mut recv).is_pending());
            inserter.join().unwrap();
            stage.fire_at(DUE);
            assert!(task.woken() > 0, "woken for the earlier entry");
            assert_eq!(key(task.poll(&mut recv)), Some(1));
            drop(recv);
            stage.end();
        });
    }
}

#[test]
fn an_entry_that_is_due_at_insertion_wakes_a_receiver() {
    explore_all(|| {
        let stage = Stage::new();
        let task = Task::new();
        let mut recv = stage.queue.recv();
        let inserter = spawn(&stage, |stage| stage.insert(1, 0));
        let polled = task.poll(&mut recv);
        inserter.join().unwrap();
        if polled.is_pending() {
            stage.fire_at(0);
            assert!(task.woken() > 0);
            assert_eq!(key(task.poll(&mut recv)), Some(1));
        }
        drop(recv);
        stage.end();
    });
}

#[test]
fn an_entry_that_fires_while_it_is_removed_is_removed_or_delivered() {
    explore_all(|| {
        let stage = Stage::new();
        stage.insert(1, DUE);
        let task = Task::new();
        let mut recv = stage.queue.recv();
        assert!(task.poll(&mut recv).is_pending());
        let worker = spawn(&stage, |stage| {
            stage.fire_at(DUE);
        });
        let removed = stage.queue.remove(&1).is_some();
        worker.join().unwrap();
        assert!(removed, "no receiver has looked");
        assert!(task.poll(&mut recv).is_pending(), "removed, so never delivered");
        drop(recv);
        stage.end();
    });
}

#[test]
fn an_entry_that_is_received_while_it_is_removed_goes_one_way() {
    explore_all(|| {
        let stage = Stage::new();
        stage.insert(1, 0);
        let other = Arc::clone(&stage);
        let worker = thread::spawn(move || other.queue.try_recv().is_ok());
        let removed = stage.queue.remove(&1).is_some();
        let received = worker.join().unwrap();
        assert!(removed != received, "{removed} {received}");
        assert!(stage.queue.is_empty());
        stage.end();
    });
}

#[test]
fn a_woken_receiver_that_is_dropped_passes_the_wake_up_on() {
    explore_all(|| {
        let stage = Stage::new();
        stage.insert(1, DUE);
        let (first, second) = (Task::new(), Task::new());
        let (mut dropped, mut kept) = (stage.queue.recv(), stage.queue.recv());
        assert!(first.poll(&mut dropped).is_pending() && second.poll(&mut kept).is_pending());
        let worker = spawn(&stage, |stage| stage.fire_at(DUE));
        drop(dropped);
        worker.join().unwrap();
        assert!(second.woken() > 0, "the only receiver that is left");
        assert_eq!(key(second.poll(&mut kept)), Some(1));
        assert_eq!(first.wakers_kept(), 0);
        drop(kept);
        stage.end();
    });
}

#[test]
fn a_closed_queue_ends_a_receiver_that_falls_asleep() {
    explore_all(|| {
        let stage = Stage::new();
        let task = Task::new();
        let mut recv = stage.queue.recv();
        let closer = spawn(&stage, |stage| stage.queue.close());
        let polled = task.poll(&mut recv);
        closer.join().unwrap();
        if polled.is_pending() {
            assert!(task.woken() > 0);
            assert_eq!(task.poll(&mut recv), Poll::Ready(None));
        }
        drop(recv);
        stage.end();
    });
}

#[test]
fn the_end_of_the_runtime_ends_a_receiver_that_falls_asleep() {
    explore_all(|| {
        let stage = Stage::new();
        stage.insert(1, LATER);
        let task = Task::new();
        let mut recv = stage.queue.recv();
        let ender = spawn(&stage, |stage| stage.manual.engine.close());
        let polled = task.poll(&mut recv);
        ender.join().unwrap();
        if polled.is_pending() {
            assert!(task.woken() > 0);
            assert_eq!(task.poll(&mut recv), Poll::Ready(None));
        }
        drop(recv);
        stage.end();
    });
}

/// S84.
#[test]
fn a_receiver_ends_after_the_last_producer_and_the_last_entry() {
    explore_bounded(|| {
        let Stage { manual, queue } = Arc::into_inner(Stage::new()).unwrap();
        let receiver = queue.receiver();
        let other = queue.clone();
        let leaver = thread::spawn(move || drop(other));
        let inserter = thread::spawn(move || queue.insert(1, (), Duration::from_nanos(DUE)).unwrap());
        let task = Task::new();
        let mut recv = receiver.recv();
        assert!(task.poll(&mut recv).is_pending(), "not ended before the last entry");
        leaver.join().unwrap();
        inserter.join().unwrap();
        let before = task.woken();
        let jobs = manual.sweep_at(DUE);
        manual.run(jobs);
        assert!(task.woken() > before);
        assert_eq!(key(task.poll(&mut recv)), Some(1));
        assert_eq!(task.poll(&mut receiver.recv()), Poll::Ready(None));
        drop(recv);
        drop(receiver);
        manual.end_counted();
    });
}

/// S84.
#[test]
fn the_last_entry_of_a_closed_queue_ends_all_receivers() {
    explore_all(|| {
        let Stage { manual, queue } = Arc::into_inner(Stage::new()).unwrap();
        queue.insert(1, (), Duration::from_nanos(DUE)).unwrap();
        let receiver = queue.receiver();
        drop(queue);
        let (first, second) = (Task::new(), Task::new());
        let (mut notified, mut sleeps) = (receiver.recv(), receiver.recv());
        assert!(first.poll(&mut notified).is_pending());
        let other = receiver.clone();
        let taker = thread::spawn(move || {
            let jobs = manual.sweep_at(DUE);
            manual.run(jobs); // wakes the first alone, which does not look
            (manual, other.try_recv().is_ok())
        });
        let polled = second.poll(&mut sleeps);
        let (manual, taken) = taker.join().unwrap();
        match polled {
            Poll::Ready(Some(expired)) => assert!(expired.key == 1 && !taken, "delivered once"),
            Poll::Ready(None) => assert!(taken, "not ended before the last entry"),
            Poll::Pending => {
                assert!(taken && second.woken() > 0, "woken by the end");
                assert_eq!(second.poll(&mut sleeps), Poll::Ready(None));
            }
        }
        drop((notified, sleeps));
        drop(receiver);
        manual.end_counted();
    });
}
