//! Receiving: order, several receivers, dropped receivers, the runtime's end.

use std::mem::forget;
use std::task::Poll;
use std::time::Duration;

use super::{due, queue};
use crate::support::poll::{CountingWaker, poll};
use crate::support::{manual, ms, ns, secs};
use timerqueue::{
    Delay, DelayQueue,
    error::{RecvTimeoutError, Refusal, TryRecvError},
    futures::Recv,
};

/// A receiver polled by hand.
struct Hand<'a, K, V> {
    recv: Recv<'a, K, V>,
    waker: CountingWaker,
    seen: usize,
}

impl<'a, K, V> Hand<'a, K, V> {
    fn new<S>(queue: &'a DelayQueue<K, V, S>) -> Self {
        Self { recv: queue.recv(), waker: CountingWaker::new(), seen: 0 }
    }

    /// The key received; `None`: pending.
    fn poll(&mut self) -> Option<Option<K>> {
        match poll(&mut self.recv, &self.waker) {
            Poll::Ready(expired) => Some(expired.map(|expired| expired.key)),
            Poll::Pending => None,
        }
    }

    /// Wake-ups since the last call.
    fn woken(&mut self) -> usize {
        let before = std::mem::replace(&mut self.seen, self.waker.wakes());
        self.seen - before
    }
}

#[test]
fn entries_come_in_order_of_their_due_times_and_ties_in_order_of_insertion() {
    let (clock, _runtime, queue) = queue();
    // In and beyond the open window, and scattered within a microsecond.
    let due_times: Vec<Duration> = (0..400).map(|i: u64| ns(i * 7919 % 1000) + ms(i % 5 * 300)).collect();
    for (key, &due) in (0..).zip(&due_times) {
        queue.insert(key, "", due).unwrap();
    }
    let mut expected: Vec<u32> = (0..400).collect();
    expected.sort_by_key(|&key| (due_times[key as usize], key));
    clock.advance(secs(2));
    assert_eq!(due(&queue), expected);
}

#[test]
fn a_moved_entry_counts_as_inserted_at_the_move() {
    let (clock, _runtime, queue) = queue();
    let at = clock.now() + secs(1);
    for key in 0..4 {
        queue.insert(key, "", at).unwrap();
    }
    assert!(queue.reset(&1, at));
    queue.replace(0, "", at).unwrap();
    clock.advance(secs(1));
    assert_eq!(due(&queue), [2, 3, 1, 0]);
}

#[test]
fn an_await_ends_at_the_due_time_and_an_earlier_entry_rearms() {
    let (clock, runtime, queue) = queue();
    queue.insert(1, "late", secs(100)).unwrap();
    let executor = smol::LocalExecutor::new();
    let receiver = executor.spawn(async {
        let first = queue.recv().await.unwrap();
        (first.key, clock.now().as_duration())
    });
    clock.block_on(executor.run(async {
        Delay::on(&runtime, secs(10)).await;
        queue.insert(2, "early", secs(5)).unwrap();
        assert_eq!(receiver.await, (2, secs(15)));
    }));
}

#[test]
fn receivers_are_woken_in_the_order_in_which_they_wait() {
    let (clock, _runtime, queue) = queue();
    let mut receivers: Vec<_> = (0..4).map(|_| Hand::new(&queue)).collect();
    assert!(receivers.iter_mut().all(|receiver| receiver.poll().is_none()));
    queue.insert(0, "", secs(1)).unwrap();
    queue.insert(1, "", secs(1)).unwrap();
    queue.insert(2, "", secs(2)).unwrap();
    clock.advance(secs(1));
    assert_eq!(receivers.iter_mut().map(Hand::woken).collect::<Vec<_>>(), [1, 1, 0, 0], "a receiver for each entry");
    // The first has not run yet: the third is woken all the same.
    clock.advance(secs(1));
    assert_eq!(receivers.iter_mut().map(Hand::woken).collect::<Vec<_>>(), [0, 0, 1, 0]);
    for (receiver, key) in receivers.iter_mut().zip([0, 1, 2]) {
        assert_eq!(receiver.poll(), Some(Some(key)));
    }
    assert_eq!((receivers[3].poll(), receivers[3].woken()), (None, 0));
}

#[test]
fn a_receiver_whose_entry_was_taken_waits_again_as_the_first() {
    let (clock, _runtime, queue) = queue();
    let (mut first, mut second) = (Hand::new(&queue), Hand::new(&queue));
    assert!(first.poll().is_none() && second.poll().is_none());
    queue.insert(0, "", secs(1)).unwrap();
    clock.advance(secs(1));
    assert_eq!(due(&queue), [0]);
    assert_eq!((first.woken(), first.poll()), (1, None));
    queue.insert(1, "", secs(1)).unwrap();
    clock.advance(secs(1));
    assert_eq!((first.woken(), second.woken()), (1, 0));
    assert_eq!(first.poll(), Some(Some(1)));
}

#[test]
fn a_woken_receiver_that_is_dropped_passes_the_wake_up_on() {
    let (clock, _runtime, queue) = queue();
    let (mut first, mut second) = (Hand::new(&queue), Hand::new(&queue));
    assert!(first.poll().is_none() && second.poll().is_none());
    queue.insert(0, "", secs(1)).unwrap();
    clock.advance(secs(1));
    assert_eq!((first.woken(), second.woken()), (1, 0));
    drop(first);
    assert_eq!(second.woken(), 1);
    assert_eq!(second.poll(), Some(Some(0)), "and the entry is not lost");
}

#[test]
fn a_sleeping_receiver_that_is_dropped_leaves_nothing_behind() {
    let (clock, runtime, queue) = queue();
    queue.insert(0, "", secs(1)).unwrap();
    let mut receiver = Hand::new(&queue);
    assert!(receiver.poll().is_none());
    assert_eq!(runtime.metrics().active, 1);
    drop(receiver);
    assert_eq!(runtime.metrics().active, 0);
    assert_eq!(clock.advance(secs(1)), 0);
    assert_eq!(due(&queue), [0]);
}

/// Each forgotten receiver uses up one wake-up, and no more. The entry is there for the next call.
#[test]
fn forgotten_receivers_use_up_a_wake_up_each() {
    let (clock, _runtime, queue) = queue();
    for _ in 0..3 {
        let mut receiver = Hand::new(&queue);
        assert!(receiver.poll().is_none());
        forget(receiver.recv);
    }
    let mut waiting = Hand::new(&queue);
    assert!(waiting.poll().is_none());
    for key in 0..3 {
        queue.insert(key, "", secs(1)).unwrap();
        clock.advance(secs(1));
        assert_eq!((waiting.woken(), Hand::new(&queue).poll()), (0, Some(Some(key))));
    }
    for key in 3..6 {
        queue.insert(key, "", secs(1)).unwrap();
        clock.advance(secs(1));
        assert_eq!((waiting.woken(), waiting.poll()), (1, Some(Some(key))));
        waiting = Hand::new(&queue);
        assert!(waiting.poll().is_none());
    }
}

#[test]
fn the_latest_waker_is_woken() {
    let (clock, _runtime, queue) = queue();
    let mut receiver = Hand::new(&queue);
    assert!(receiver.poll().is_none());
    let before = std::mem::take(&mut receiver.waker);
    assert!(receiver.poll().is_none());
    assert_eq!(before.kept(), 0, "the old waker was dropped");
    queue.insert(0, "", Duration::ZERO).unwrap();
    clock.advance(Duration::ZERO);
    assert_eq!((before.wakes(), receiver.woken()), (0, 1));
}

#[test]
fn the_end_of_the_runtime_ends_receivers() {
    let (clock, runtime, queue) = queue();
    queue.insert(1, "", secs(1)).unwrap();
    let mut receivers = [Hand::new(&queue), Hand::new(&queue)];
    assert!(receivers.iter_mut().all(|receiver| receiver.poll().is_none()));
    runtime.shutdown(Duration::ZERO).unwrap();
    assert!(receivers.iter_mut().all(|receiver| receiver.woken() == 1));
    assert!(receivers.iter_mut().all(|receiver| receiver.poll() == Some(None)));
    clock.advance(secs(5));
    assert_eq!(queue.try_recv(), Err(TryRecvError::Closed), "time stands still");
    assert_eq!(queue.insert(2, "", secs(1)).unwrap_err().reason, Refusal::Closed);
    let left = queue.drain();
    assert_eq!((left.len(), left[0].key), (1, 1));
}

#[test]
fn the_end_of_the_runtime_ends_a_receiver_of_an_empty_queue() {
    let (_clock, runtime, queue) = queue();
    let mut receiver = Hand::new(&queue);
    assert!(receiver.poll().is_none());
    runtime.shutdown(Duration::ZERO).unwrap();
    assert_eq!((receiver.woken(), receiver.poll()), (1, Some(None)));
}

#[test]
fn a_limit_counts_on_the_clock_of_the_runtime() {
    let (clock, _runtime, queue) = queue();
    let waiting = std::thread::spawn({
        let queue = queue.clone();
        move || (queue.recv_timeout(secs(3600)), queue.recv_timeout(secs(3600)))
    });
    queue.insert(1, "", secs(1800)).unwrap();
    while !waiting.is_finished() {
        clock.advance(secs(60));
        std::thread::sleep(ms(1));
    }
    let (first, second) = waiting.join().unwrap();
    assert_eq!((first.unwrap().key, second), (1, Err(RecvTimeoutError::Timeout)));
}

#[cfg(feature = "stream")]
#[test]
fn a_stream_delivers_and_ends_with_the_queue() {
    use smol::stream::StreamExt;
    let (clock, _runtime, queue) = queue();
    for key in [3, 1, 2] {
        queue.insert(key, "", secs(u64::from(key))).unwrap();
    }
    let keys = queue.receiver().map(|expired| expired.key);
    queue.close();
    assert_eq!(clock.block_on(keys.collect::<Vec<_>>()), [1, 2, 3]);
}

#[test]
fn ready_entries_leave_a_task_its_turns() {
    let (clock, runtime) = manual();
    let queue = DelayQueue::on(&runtime);
    queue.insert_many((0..10_000).map(|key| (key, (), Duration::ZERO)));
    let executor = smol::LocalExecutor::new();
    let greedy = executor.spawn(async {
        for _ in 0..10_000 {
            queue.recv().await.unwrap();
        }
    });
    let polite = executor.spawn(async { queue.len() });
    clock.block_on(executor.run(async {
        assert!(polite.await > 5_000, "runs long before the end of the first task");
        greedy.await;
    }));
}
