//! Keys: insert, replace, remove, move, look up; keys with equal hashes.

use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::time::Duration;

use super::{due, queue};
use crate::support::{manual, ms, ns, secs};
use timerqueue::{DelayQueue, DelayQueueBuilder, Due, Runtime, error::Refusal};

#[test]
fn an_entry_is_delivered_once_with_its_key_value_instant_and_lateness() {
    let (clock, _runtime, queue) = queue();
    clock.advance(secs(5));
    let at = clock.now() + secs(10);
    queue.insert(1, "one", secs(10)).unwrap();
    clock.advance(secs(10) - ns(1));
    assert!(queue.try_recv().is_err(), "never early");
    clock.advance(ns(4));
    let expired = queue.try_recv().unwrap();
    assert_eq!((expired.key, expired.value, expired.lateness), (1, "one", ns(3)));
    assert_eq!(expired.due, Due::At(at));
    assert!(queue.try_recv().is_err() && queue.is_empty());
}

#[test]
fn a_key_that_the_queue_has_is_refused_with_the_value_given_back() {
    let (clock, _runtime, queue) = queue();
    queue.insert(1, "first", secs(1)).unwrap();
    let refused = queue.insert(1, "second", secs(2)).unwrap_err();
    assert_eq!((refused.key, refused.value, refused.reason), (1, "second", Refusal::Occupied));
    assert_eq!(refused.due, Due::At(clock.now() + secs(2)));
    assert_eq!(refused.to_string(), "the delay queue has an entry with this key");
    clock.advance(secs(1));
    assert_eq!(queue.try_recv().unwrap().value, "first");
    queue.insert(1, "third", secs(1)).unwrap();
}

#[test]
fn a_replaced_entry_has_the_new_value_and_the_new_due_time_alone() {
    let (clock, _runtime, queue) = queue();
    assert_eq!(queue.replace(1, "first", secs(1)).unwrap(), None);
    assert_eq!(queue.replace(1, "second", secs(3)).unwrap(), Some("first"));
    assert_eq!(queue.len(), 1);
    clock.advance(secs(3) - ns(1));
    assert!(due(&queue).is_empty());
    clock.advance(ns(1));
    assert_eq!(queue.try_recv().unwrap().value, "second");
    assert!(due(&queue).is_empty());
}

#[test]
fn an_entry_moves_both_ways_and_between_the_clocks() {
    let (clock, _runtime, queue) = queue();
    queue.insert(1, "one", secs(10)).unwrap();
    assert!(queue.reset(&1, secs(20)) && !queue.reset(&2, secs(20)));
    clock.advance(secs(15));
    assert!(due(&queue).is_empty());
    assert!(queue.reset(&1, secs(1)));
    clock.advance(secs(1));
    assert_eq!(due(&queue), [1]);

    queue.insert(2, "two", secs(10)).unwrap();
    let at = clock.wall() + secs(5);
    assert!(queue.reset(&2, at));
    assert_eq!(queue.due(&2), Some(Due::Wall(at)));
    clock.set_wall(at);
    assert!(queue.reset(&2, secs(3)), "due by the wall clock, and not delivered: it can be moved");
    assert!(due(&queue).is_empty());
    clock.advance(secs(3));
    assert_eq!(due(&queue), [2]);
    assert!(!queue.reset(&2, secs(3)), "delivered");
}

#[test]
fn a_due_entry_that_was_not_delivered_can_be_removed_moved_and_replaced() {
    let (clock, _runtime, queue) = queue();
    for key in 0..5 {
        queue.insert(key, "", secs(1)).unwrap();
    }
    clock.advance(secs(2));
    assert_eq!(queue.try_recv().unwrap().key, 0, "the rest is due too");
    assert_eq!(queue.remove(&1), Some(""));
    assert!(queue.reset(&2, secs(5)));
    assert_eq!(queue.replace(3, "new", Duration::ZERO).unwrap(), Some(""));
    assert_eq!(queue.len(), 3);
    assert_eq!(due(&queue), [4, 3]);
    clock.advance(secs(5));
    assert_eq!(due(&queue), [2]);
}

#[test]
fn keys_are_found_by_what_they_borrow() {
    let (_clock, runtime) = manual();
    let queue = DelayQueue::on(&runtime);
    queue.insert(String::from("a"), 1, secs(1)).unwrap();
    assert!(queue.contains_key("a") && !queue.contains_key("b"));
    assert!(queue.reset("a", ms(1)));
    assert_eq!((queue.remove("a"), queue.remove("a")), (Some(1), None));
}

/// All keys have the same hash.
#[derive(Clone, Default)]
struct Constant;

impl Hasher for Constant {
    fn finish(&self) -> u64 {
        7
    }

    fn write(&mut self, _: &[u8]) {}
}

fn colliding<S: BuildHasher>(runtime: &Runtime, hasher: S) -> DelayQueue<u32, u32, S> {
    DelayQueueBuilder::on(runtime).hasher(hasher).build()
}

#[test]
fn keys_with_equal_hashes_are_told_apart() {
    let (clock, runtime) = manual();
    let queue = colliding(&runtime, BuildHasherDefault::<Constant>::default());
    for key in 0..20 {
        queue.insert(key, key * 10, secs(u64::from(key) + 1)).unwrap();
    }
    assert_eq!(queue.insert(7, 0, secs(1)).unwrap_err().reason, Refusal::Occupied);
    // From the ends and the middle of the chain.
    for key in [0, 19, 10, 11] {
        assert_eq!((queue.remove(&key), queue.remove(&key)), (Some(key * 10), None));
    }
    assert!(queue.reset(&5, secs(100)) && !queue.contains_key(&10));
    clock.advance(secs(50));
    assert_eq!(due(&queue), [1, 2, 3, 4, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 18]);
    assert_eq!((queue.len(), queue.remove(&5)), (1, Some(50)));
}

#[test]
fn many_entries_go_in_at_once_and_the_refused_come_back() {
    let (clock, _runtime, queue) = queue();
    queue.insert(500, "before", secs(1)).unwrap();
    let rows = (0..1_000).map(|key| (key, "row", secs(u64::from(key % 10))));
    let refused = queue.insert_many(rows.chain([(3, "again", secs(1))]));
    assert_eq!(
        refused.iter().map(|refused| (refused.key, refused.value)).collect::<Vec<_>>(),
        [(500, "row"), (3, "again")]
    );
    assert_eq!(queue.len(), 1_000);
    clock.advance(secs(10));
    assert_eq!(due(&queue).len(), 1_000);
}

#[test]
fn next_due_is_exact_after_removals() {
    let (clock, _runtime, queue) = queue();
    assert_eq!(queue.next_due(), None);
    queue.insert(1, "", secs(100)).unwrap();
    queue.insert(2, "", secs(101)).unwrap();
    queue.insert(3, "", Duration::MAX).unwrap();
    queue.remove(&1);
    assert_eq!(queue.next_due(), Some(Due::At(clock.now() + secs(101))));
    queue.insert(4, "", clock.wall() - secs(5)).unwrap();
    assert_eq!(queue.next_due(), Some(Due::Wall(clock.wall() - secs(5))));
    assert_eq!(due(&queue), [4]);
    queue.remove(&2);
    assert_eq!((queue.next_due(), queue.len()), (None, 1));
}
