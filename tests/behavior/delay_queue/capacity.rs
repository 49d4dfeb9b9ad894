//! A limit on entries: refused or waited for.

use std::time::Duration;

use super::{due, poll_once};
use crate::support::{manual, native, secs};
use timerqueue::{DelayQueue, DelayQueueBuilder, ManualClock, Runtime, error::Refusal};

fn limited(capacity: usize) -> (ManualClock, Runtime, DelayQueue<u32, u32>) {
    let (clock, runtime) = manual();
    let queue = DelayQueueBuilder::on(&runtime).capacity(capacity).build();
    (clock, runtime, queue)
}

#[test]
fn a_full_queue_refuses_new_keys_alone() {
    let (clock, _runtime, queue) = limited(2);
    assert!(queue.insert_many((0..4).map(|key| (key, key, secs(1)))).iter().all(|back| back.reason == Refusal::Full));
    assert_eq!((queue.len(), queue.capacity()), (2, Some(2)));
    assert_eq!(queue.replace(1, 7, secs(2)).unwrap(), Some(1), "no new key");
    assert_eq!(queue.replace(2, 7, secs(2)).unwrap_err().reason, Refusal::Full);
    assert_eq!(queue.insert(1, 7, secs(2)).unwrap_err().reason, Refusal::Occupied);
    assert_eq!(queue.remove(&0), Some(0));
    queue.insert(2, 2, secs(1)).unwrap();
    clock.advance(secs(1));
    assert_eq!(due(&queue), [2]);
}

#[test]
fn inserters_wait_for_room_in_order_and_are_refused_when_the_queue_closes() {
    let (clock, _runtime, queue) = limited(1);
    queue.insert(0, 0, secs(1)).unwrap();
    let executor = smol::LocalExecutor::new();
    let inserts: Vec<_> = (1..=3).map(|key| executor.spawn(queue.insert_wait(key, key, secs(0)))).collect();
    clock.block_on(executor.run(async {
        let mut inserts = inserts.into_iter();
        for key in 0..2 {
            assert_eq!(queue.recv().await.unwrap().key, key);
        }
        assert!(inserts.next().unwrap().await.is_ok());
        drop(inserts.next()); // waits, and is dropped: the key is not inserted
        assert_eq!(queue.recv().await.map(|expired| expired.key), Some(3));
        assert!(inserts.next().unwrap().await.is_ok());
        queue.insert(9, 9, secs(1)).unwrap();
        let waiting = executor.spawn(queue.insert_wait(10, 10, secs(1)));
        smol::future::yield_now().await;
        queue.close();
        assert_eq!(waiting.await.unwrap_err().reason, Refusal::Closed);
    }));
}

/// A task that inserts without a wait lets its executor go on now and then (S35).
#[test]
fn inserts_in_a_row_keep_no_other_task_from_running() {
    let (_clock, _runtime, queue) = limited(1_000);
    let executor = smol::LocalExecutor::new();
    let greedy = executor.spawn(async {
        for key in 0..1_000 {
            queue.insert_wait(key, key, secs(1)).await.unwrap();
        }
    });
    let other = executor.spawn(async { queue.len() });
    let seen = smol::future::block_on(executor.run(async {
        let seen = other.await;
        greedy.await;
        seen
    }));
    assert!((100..200).contains(&seen), "{seen} in a row");
    assert_eq!(queue.len(), 1_000);
}

#[test]
fn the_end_of_the_runtime_refuses_waiting_inserters() {
    let (clock, runtime, queue) = limited(1);
    queue.insert(0, 0, secs(1)).unwrap();
    let executor = smol::LocalExecutor::new();
    let waiting = executor.spawn(queue.insert_wait(1, 1, Duration::ZERO));
    clock.set_auto_advance(false);
    clock.block_on(executor.run(async {
        smol::future::yield_now().await;
        runtime.shutdown(Duration::ZERO).unwrap();
        assert_eq!(waiting.await.unwrap_err().reason, Refusal::Closed);
    }));
}

#[test]
fn a_thread_waits_for_room() {
    let (_clock, _runtime, queue) = limited(1);
    queue.insert(0, 0, Duration::ZERO).unwrap();
    let thread = std::thread::spawn({
        let queue = queue.clone();
        move || queue.insert_blocking(1, 1, Duration::ZERO)
    });
    assert_eq!(queue.recv_blocking().unwrap().key, 0);
    assert_eq!(queue.recv_blocking().unwrap().key, 1);
    assert!(thread.join().unwrap().is_ok());
}

/// Judged by the clock at the call: a wait for room makes no entry overdue.
#[test]
fn an_inserter_that_waits_past_the_due_time_inserts_its_entry() {
    let (clock, runtime) = manual();
    let queue: DelayQueue<u32, ()> = DelayQueueBuilder::on(&runtime).capacity(1).refuse_overdue().build();
    queue.insert(1, (), secs(5)).unwrap();
    let mut waits = queue.insert_wait(2, (), secs(1));
    assert!(poll_once(&mut waits).is_none());
    clock.advance(secs(5));
    assert_eq!(queue.try_recv().map(|expired| expired.key), Ok(1));
    assert!(poll_once(&mut waits).is_some_and(|inserted| inserted.is_ok()));
    assert_eq!(queue.try_recv().map(|expired| (expired.key, expired.lateness)), Ok((2, secs(4))));
    let past = clock.now() - secs(1);
    let refused = poll_once(&mut queue.insert_wait(3, (), past)).expect("refused at once").unwrap_err();
    assert_eq!(refused.reason, Refusal::Overdue);
    // In real time the clock goes on between call and look.
    let runtime = native();
    let queue: DelayQueue<u32, ()> = DelayQueueBuilder::on(&runtime).refuse_overdue().build();
    for key in 0..200 {
        queue.insert_blocking(key, (), Duration::ZERO).unwrap();
    }
}
