//! Looks at the entries: all of them, the next, removal by a condition; all that is due in one
//! call; receivers that end with the last producer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{due, poll_once, queue};
use crate::support::poll::{CountingWaker, panics, poll};
use crate::support::{manual, ms, secs};
use timerqueue::{
    DelayQueue, DelayQueueBuilder, Due,
    error::{RecvTimeoutError, Refusal, TryRecvError},
};

/// The keys that a walk meets, sorted, and their due times.
fn all<V: Send>(queue: &DelayQueue<u32, V>) -> Vec<(u32, Due)> {
    let mut all = Vec::new();
    queue.for_each(|key, _, due| all.push((*key, due)));
    all.sort_by_key(|&(key, _)| key);
    all
}

#[test]
fn a_walk_meets_entries_of_both_clocks_waiting_or_due() {
    let (clock, _runtime, queue) = queue();
    let (soon, wall) = (clock.now() + secs(1), clock.wall() + secs(2));
    queue.insert(1, "", soon).unwrap();
    queue.insert(2, "", wall).unwrap();
    queue.insert(3, "", secs(u64::MAX)).unwrap();
    let never = queue.due(&3).unwrap();
    for _ in 0..4 {
        assert_eq!(all(&queue), [(1, Due::At(soon)), (2, Due::Wall(wall)), (3, never)]);
        clock.advance(secs(1));
        assert!(queue.peek(|key, _, _| *key).is_some(), "which makes due entries ready");
    }
}

#[test]
fn s84_many_entries_are_met_once_each() {
    let (_clock, _runtime, queue) = queue();
    for key in 0..5_000 {
        queue.insert(key, "", secs(u64::from(key))).unwrap();
    }
    assert!(all(&queue).into_iter().map(|(key, _)| key).eq(0..5_000));
    queue.retain(|key, _, _| key % 10 == 0);
    assert!(all(&queue).into_iter().map(|(key, _)| key).eq((0..5_000).step_by(10)));
    assert_eq!(queue.len(), 500);
}

/// Like Java's `removeIf`: no tombstones, and what stays is delivered as before.
#[test]
fn retained_entries_keep_due_time_and_order_and_may_get_a_new_value() {
    let (clock, _runtime, queue) = queue();
    for key in [4, 1, 3, 2] {
        queue.insert(key, "old", ms(10)).unwrap();
    }
    queue.retain(|key, value, _| {
        *value = "new";
        *key != 3
    });
    clock.advance(ms(10));
    let received = queue.try_recv_all();
    assert!(received.iter().map(|expired| (expired.key, expired.value)).eq([(4, "new"), (1, "new"), (2, "new")]));
}

#[test]
fn what_retain_removes_makes_room_and_ends_receivers_of_a_closed_queue() {
    let (_clock, runtime) = manual();
    let queue: DelayQueue<u32, ()> = DelayQueueBuilder::on(&runtime).capacity(1).build();
    queue.insert(1, (), secs(1)).unwrap();
    let mut waits = queue.insert_wait(2, (), secs(1));
    assert!(poll_once(&mut waits).is_none());
    queue.retain(|_, (), _| false);
    assert!(poll_once(&mut waits).unwrap().is_ok());
    queue.close();
    let (mut receiver, counter) = (queue.recv(), CountingWaker::new());
    assert!(poll(&mut receiver, &counter).is_pending());
    assert!(panics(|| queue.retain(|key, (), _| {
        assert_ne!(*key, 2, "on purpose");
        false
    })));
    assert_eq!((queue.len(), counter.wakes()), (1, 0), "the entry at which it panicked stays");
    queue.retain(|_, (), _| false);
    assert!(counter.wakes() > 0 && poll_once(&mut receiver) == Some(None));
}

#[test]
fn an_entry_whose_destructor_panics_in_retain_ends_receivers_all_the_same() {
    struct PanicsOnDrop;
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    let (_clock, runtime) = manual();
    let queue = DelayQueue::on(&runtime);
    queue.insert(1, PanicsOnDrop, secs(1)).unwrap();
    queue.close();
    let (mut receiver, counter) = (queue.recv(), CountingWaker::new());
    assert!(poll(&mut receiver, &counter).is_pending());
    assert!(panics(|| queue.retain(|_, _, _| false)));
    assert!(counter.wakes() > 0 && poll_once(&mut receiver).is_some_and(|end| end.is_none()));
}

/// Dropped outside of the lock: the destructor calls the queue.
#[test]
fn what_retain_removes_may_call_the_queue_when_dropped() {
    struct Counts(DelayQueue<u32, Counts>, Arc<AtomicUsize>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.1.fetch_add(1 + self.0.len(), Ordering::Relaxed);
        }
    }
    let (_clock, runtime) = manual();
    let (queue, seen) = (DelayQueue::on(&runtime), Arc::new(AtomicUsize::new(0)));
    (0..300).for_each(|key| assert!(queue.insert(key, Counts(queue.clone(), Arc::clone(&seen)), secs(1)).is_ok()));
    queue.retain(|_, _, _| false);
    assert!(seen.load(Ordering::Relaxed) >= 300 && queue.is_empty());
}

/// As tokio-util's `peek` is asked to; but exact, also after removals and moves.
#[test]
fn s84_the_next_entry_is_exact_after_removals_moves_and_steps_of_the_wall_clock() {
    let (clock, _runtime, queue) = queue();
    let next = || queue.peek(|key, _, _| *key);
    assert_eq!(next(), None);
    queue.insert(0, "", secs(u64::MAX)).unwrap();
    assert_eq!(next(), None, "never due");
    for key in 1..=300 {
        queue.insert(key, "", secs(1_000) + ms(u64::from(key))).unwrap();
    }
    assert_eq!(next(), Some(1));
    queue.remove(&1);
    queue.reset(&2, secs(2_000));
    assert_eq!(next(), Some(3));
    queue.reset(&300, secs(1_000) + ms(3));
    assert_eq!(next(), Some(3), "the tie goes to the entry inserted first");
    queue.insert(500, "", clock.wall() + secs(5)).unwrap();
    assert_eq!(next(), Some(500));
    clock.advance(secs(6));
    assert_eq!(next(), Some(500), "due, and not taken");
    clock.set_wall(clock.wall() - secs(7_200));
    assert_eq!(next(), Some(3), "due on the wall clock later again");
    clock.advance(secs(3_000));
    assert_eq!(next(), Some(3));
    assert_eq!(due(&queue)[..2], [3, 300]);
    assert_eq!(next(), Some(500), "the first of those left");
}

/// With leeway entries are due at points of a grid, and delivered there by their due times.
#[test]
fn the_next_entry_with_leeway_is_the_first_of_its_point_of_the_grid() {
    let (clock, runtime) = manual();
    let queue: DelayQueue<u32, ()> = DelayQueueBuilder::on(&runtime).leeway(secs(1)).build();
    for (key, at) in [(1, 5_700), (2, 5_300), (3, 5_500), (4, 9_100)] {
        queue.insert(key, (), ms(at)).unwrap();
    }
    assert_eq!(queue.peek(|key, (), _| *key), Some(2));
    clock.advance(secs(6));
    assert!(queue.try_recv_all().iter().map(|expired| expired.key).eq([2, 3, 1]));
    assert_eq!(queue.peek(|key, (), _| *key), Some(4));
}

/// As Java's `drainTo`, which takes expired elements alone.
#[test]
fn s84_all_that_is_due_comes_in_one_call_in_order() {
    let (clock, runtime, queue) = queue();
    assert!(queue.try_recv_all().is_empty());
    for key in 0..1_000 {
        queue.insert(key, "", ms(u64::from(999 - key))).unwrap();
    }
    queue.insert(5_000, "", clock.wall() + ms(300)).unwrap();
    clock.advance(ms(499));
    let keys: Vec<u32> = queue.try_recv_all().into_iter().map(|expired| expired.key).collect();
    let expected: Vec<u32> =
        (500..1_000).rev().flat_map(|key| [Some(key), (key == 699).then_some(5_000)]).flatten().collect();
    assert_eq!(keys, expected);
    assert!(queue.try_recv_all().is_empty() && queue.len() == 500);
    clock.advance(secs(1));
    runtime.shutdown(secs(1)).unwrap();
    assert!(queue.try_recv_all().is_empty());
    assert_eq!(queue.drain().len(), 500);
}

#[test]
fn all_that_is_due_leaves_room_and_a_later_entry_wakes_the_receiver_that_waits() {
    let (clock, runtime) = manual();
    let queue: DelayQueue<u32, ()> = DelayQueueBuilder::on(&runtime).capacity(2).build();
    let (mut receiver, counter) = (queue.recv(), CountingWaker::new());
    assert!(poll(&mut receiver, &counter).is_pending());
    queue.insert(1, (), ms(1)).unwrap();
    queue.insert(2, (), ms(1)).unwrap();
    let mut waits = queue.insert_wait(3, (), ms(5));
    assert!(poll_once(&mut waits).is_none());
    clock.advance(ms(1));
    assert_eq!(queue.try_recv_all().len(), 2);
    assert!(poll_once(&mut waits).unwrap().is_ok());
    assert!(poll(&mut receiver, &counter).is_pending());
    clock.advance(ms(4));
    assert!(poll_once(&mut receiver).flatten().is_some_and(|expired| expired.key == 3));
}

/// A loop brought over from tokio-util ends when no entry is left and no producer.
#[test]
fn s84_a_receiver_ends_with_the_last_entry_after_the_last_handle() {
    let (clock, _runtime, queue) = queue();
    let (receiver, second) = (queue.receiver(), queue.clone());
    let other = receiver.clone();
    queue.insert(1, "one", secs(1)).unwrap();
    queue.insert(2, "two", secs(2)).unwrap();
    drop(queue);
    assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
    second.insert(3, "three", secs(3)).unwrap();
    drop(second);
    let keys = clock.block_on(async {
        let mut keys = Vec::new();
        while let Some(expired) = receiver.recv().await {
            keys.push(expired.key);
        }
        keys
    });
    assert_eq!(keys, [1, 2, 3]);
    assert_eq!((other.try_recv(), other.recv_blocking()), (Err(TryRecvError::Closed), None));
    assert_eq!(other.recv_timeout(secs(1)), Err(RecvTimeoutError::Closed));
    assert!(other.try_recv_all().is_empty());
}

#[test]
fn a_receiver_that_waits_is_woken_by_the_drop_of_the_last_handle() {
    let (_clock, _runtime, queue) = queue();
    let receiver = queue.receiver();
    let (mut waits, counter) = (receiver.recv(), CountingWaker::new());
    assert!(poll(&mut waits, &counter).is_pending());
    drop(queue.clone());
    assert_eq!(counter.wakes(), 0);
    drop(queue);
    assert!(counter.wakes() == 1 && poll_once(&mut waits) == Some(None));
}

#[test]
fn receivers_without_a_handle_do_not_keep_entries_that_no_receiver_is_left_for() {
    let (_clock, runtime) = manual();
    let (value, queue) = (Arc::new(()), DelayQueue::<u32, Arc<()>>::on(&runtime));
    queue.insert(1, Arc::clone(&value), secs(1)).unwrap();
    let receiver = queue.receiver();
    let handle = queue.clone();
    drop(queue);
    assert_eq!(handle.insert(1, Arc::clone(&value), secs(1)).unwrap_err().reason, Refusal::Occupied);
    drop(handle);
    assert_eq!(Arc::strong_count(&value), 2);
    drop(receiver);
    assert_eq!(Arc::strong_count(&value), 1);
}
