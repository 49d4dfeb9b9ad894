//! Delay queues, on virtual time.
//!
//! Ground rules. Tests named after a row (`a9_...`, `d13_...`) show that a delay queue has the
//! feature, or not the defect, of that row of the hand-made systems that it replaces: A and B are
//! time wheels for delayed tasks, C a scheduler with a heap, D a ring for delay messages.

mod capacity;
mod close;
mod hostile;
mod inspect;
mod keys;
mod model;
mod receive;
mod rest;
mod rows;
mod threads;
mod wall;

use std::future::Future;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::support::manual;
use crate::support::poll::poll_with;
use timerqueue::{DelayQueue, ManualClock, Runtime};

type Queue = DelayQueue<u32, &'static str>;

/// A queue on a runtime with a clock that stands at zero.
fn queue() -> (ManualClock, Runtime, Queue) {
    let (clock, runtime) = manual();
    let queue = DelayQueue::on(&runtime);
    (clock, runtime, queue)
}

/// The keys that are due now.
fn due<K: Send + Sync, V: Send, S>(queue: &DelayQueue<K, V, S>) -> Vec<K> {
    std::iter::from_fn(|| queue.try_recv().ok()).map(|expired| expired.key).collect()
}

/// Advances step by step. Returns the keys delivered, each with the time of its delivery.
fn delivered<K: Send + Sync, V: Send, S>(
    clock: &ManualClock,
    queue: &DelayQueue<K, V, S>,
    step: Duration,
    steps: u32,
) -> Vec<(K, Duration)> {
    let mut found = Vec::new();
    for _ in 0..steps {
        clock.advance(step);
        found.extend(due(queue).into_iter().map(|key| (key, clock.now().as_duration())));
    }
    found
}

/// Polls a receiver once. `None`: pending.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match poll_with(future, Waker::noop()) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
