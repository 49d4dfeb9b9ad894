//! Rest: core timers exist only while a receiver waits, one per clock, and fire only when needed.

use std::time::Duration;

use super::{poll_once, queue};
use crate::support::{ms, secs};

#[test]
fn no_timer_without_a_receiver_and_one_per_clock_with_receivers() {
    let (clock, runtime, queue) = queue();
    queue.insert_many((0..1_000).map(|key| (key, "", secs(u64::from(key) + 10))));
    queue.insert_many((1_000..2_000).map(|key| (key, "", clock.wall() + secs(u64::from(key) + 10))));
    assert_eq!(runtime.metrics().active, 0);
    let mut receivers: Vec<_> = (0..10).map(|_| queue.recv()).collect();
    assert!(receivers.iter_mut().all(|receiver| poll_once(receiver).is_none()));
    assert_eq!(runtime.metrics().active, 2);
    receivers.truncate(1);
    assert_eq!(runtime.metrics().active, 2);
    drop(receivers);
    assert_eq!(runtime.metrics().active, 0);
    assert_eq!(clock.advance(secs(5_000)), 0, "nothing fires");
}

#[test]
fn a_waiting_receiver_of_far_entries_costs_no_wake_ups() {
    let (clock, runtime, queue) = queue();
    queue.insert(1, "", Duration::from_secs(86_400)).unwrap();
    let mut receiver = queue.recv();
    assert!(poll_once(&mut receiver).is_none());
    let before = runtime.metrics().fired();
    clock.advance(Duration::from_secs(86_399));
    assert_eq!(runtime.metrics().fired(), before);
    clock.advance(secs(1));
    assert_eq!(runtime.metrics().fired(), before + 1);
    assert!(poll_once(&mut receiver).is_some());
}

/// Entries inserted, moved and removed behind the first change nothing about the core timer.
#[test]
fn the_core_timer_stays_where_it_is_while_the_first_entry_stays() {
    let (clock, runtime, queue) = queue();
    queue.insert(0, "", secs(10)).unwrap();
    let mut receiver = queue.recv();
    assert!(poll_once(&mut receiver).is_none());
    for key in 1..100 {
        queue.insert(key, "", secs(20)).unwrap();
        assert!(queue.reset(&key, secs(30)));
        if key % 2 == 0 {
            assert!(queue.remove(&key).is_some());
        }
    }
    assert_eq!(runtime.next_due(), Some(clock.now() + secs(10)));
    assert_eq!(clock.advance(secs(10)), 1);
}

#[test]
fn a_receiver_of_an_empty_queue_wakes_never() {
    let (clock, runtime, queue) = queue();
    let mut receiver = queue.recv();
    assert!(poll_once(&mut receiver).is_none());
    assert_eq!((runtime.next_due(), clock.next_due()), (None, None));
    assert_eq!(clock.advance(Duration::from_secs(86_400 * 365)), 0);
    queue.insert(1, "", ms(1)).unwrap();
    assert_eq!(clock.advance(ms(1)), 1);
    assert_eq!(poll_once(&mut receiver).flatten().map(|expired| expired.key), Some(1));
}
