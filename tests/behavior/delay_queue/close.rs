//! Closing, draining, dropping.

use std::sync::Arc;
use std::time::Duration;

use super::{due, queue};
use crate::support::{manual, ms, secs};
use timerqueue::{
    DelayQueue, Due,
    error::{Refusal, TryRecvError},
};

#[test]
fn a_closed_queue_delivers_what_is_there_and_ends() {
    let (clock, _runtime, queue) = queue();
    queue.insert(1, "", secs(1)).unwrap();
    queue.insert(2, "", secs(2)).unwrap();
    queue.close();
    queue.close();
    assert!(queue.is_closed());
    assert_eq!(queue.insert(3, "back", secs(1)).unwrap_err().value, "back");
    assert_eq!(queue.replace(1, "back", secs(1)).unwrap_err().reason, Refusal::Closed);
    assert_eq!(queue.insert_many([(4, "", secs(1))])[0].reason, Refusal::Closed);
    clock.block_on(async {
        assert_eq!(queue.recv().await.unwrap().key, 1);
        assert!(queue.reset(&2, secs(5)), "still there");
        assert_eq!(queue.recv().await.unwrap().key, 2);
        assert!(queue.recv().await.is_none() && queue.recv().await.is_none());
    });
    assert_eq!(queue.try_recv(), Err(TryRecvError::Closed));
    assert_eq!(clock.now().as_duration(), secs(6));
}

#[test]
fn removing_the_last_entry_of_a_closed_queue_ends_waiting_receivers() {
    let (clock, _runtime, queue) = queue();
    queue.insert(1, "", secs(3600)).unwrap();
    queue.close();
    let executor = smol::LocalExecutor::new();
    let receivers = [executor.spawn(queue.recv()), executor.spawn(queue.recv())];
    clock.set_auto_advance(false);
    clock.block_on(executor.run(async {
        smol::future::yield_now().await;
        smol::future::yield_now().await;
        assert!(queue.remove(&1).is_some());
        for receiver in receivers {
            assert!(receiver.await.is_none());
        }
    }));
}

#[test]
fn the_other_way_to_close_hands_back_everything_in_order() {
    let (clock, _runtime, queue) = queue();
    queue.insert(1, "c", secs(3)).unwrap();
    queue.insert(2, "a", clock.wall() - secs(1)).unwrap();
    queue.insert(3, "d", Duration::MAX).unwrap();
    queue.insert(4, "b", secs(2)).unwrap();
    clock.advance(ms(10));
    let executor = smol::LocalExecutor::new();
    let left = queue.close_and_drain();
    assert_eq!(left.iter().map(|entry| entry.value).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
    assert_eq!(left[0].due, Due::Wall(clock.wall() - secs(1) - ms(10)));
    clock.block_on(executor.run(async { assert!(queue.recv().await.is_none()) }));
    assert!(queue.close_and_drain().is_empty());
}

#[test]
fn a_drained_queue_goes_on_and_what_was_drained_can_be_put_back() {
    let (clock, _runtime, queue) = queue();
    queue.insert_many((0..1_000).map(|key| (key, "", ms(u64::from(key)))));
    clock.advance(ms(10));
    assert_eq!(queue.try_recv().unwrap().key, 0, "some are in the heap of due entries");
    let left = queue.drain();
    assert_eq!((left.len(), queue.len()), (999, 0));
    assert!(left.iter().map(|entry| entry.key).eq(1..1_000));
    assert!(queue.insert_many(left.into_iter().map(|entry| (entry.key, entry.value, entry.due))).is_empty());
    clock.advance(secs(1));
    assert!(due(&queue).into_iter().eq(1..1_000));
}

#[test]
fn dropping_the_last_handle_drops_the_entries() {
    let (_clock, runtime) = manual();
    let queue = DelayQueue::on(&runtime);
    let value = Arc::new(());
    for key in 0..500 {
        queue.insert(key, Arc::clone(&value), secs(key)).unwrap();
    }
    assert!(queue.try_recv().is_ok());
    let second = queue.clone();
    drop(queue);
    assert_eq!((second.len(), Arc::strong_count(&value)), (499, 500));
    drop(second);
    assert_eq!(Arc::strong_count(&value), 1);
    assert_eq!(runtime.metrics().active, 0);
}
