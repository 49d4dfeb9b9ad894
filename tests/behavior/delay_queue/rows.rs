//! The rows of the hand-made systems: features that a user must have, and defects that the queue
//! must not have.

use std::time::Duration;

use super::{delivered, due, poll_once, queue};
use crate::support::{manual, ms, ns, secs};
use timerqueue::{
    DelayQueue, DelayQueueBuilder, Due,
    error::{Refusal, TryRecvError},
};

const HOUR: Duration = Duration::from_secs(3600);

// ---------------------------------------------------------------- A: a wheel for delayed tasks

#[test]
fn a1_a2_a6_a_delayed_task_with_a_typed_payload_runs_from_memory() {
    struct Mail {
        to: &'static str,
    }
    let (clock, runtime) = manual();
    let queue = DelayQueue::on(&runtime);
    queue.insert(1, Mail { to: "a@example.org" }, secs(160)).unwrap();
    queue.close();
    clock.block_on(async {
        while let Some(task) = queue.recv().await {
            assert_eq!((task.value.to, clock.now().as_duration()), ("a@example.org", secs(160)));
        }
    });
}

#[test]
fn a3_a5_delays_of_seconds_minutes_hours_and_days() {
    let (clock, _runtime, queue) = queue();
    let delays = [secs(3), secs(60) + secs(5), HOUR, 26 * HOUR, 400 * 24 * HOUR];
    for (key, delay) in (0..).zip(delays) {
        queue.insert(key, "", delay).unwrap();
    }
    for (key, delay) in (0..).zip(delays) {
        let expired = clock.block_on(queue.recv()).unwrap();
        assert_eq!((expired.key, clock.now().as_duration()), (key, delay));
    }
}

#[test]
fn a4_a14_a_delay_of_zero_is_delivered_now_and_to_a_receiver() {
    let (_clock, _runtime, queue) = queue();
    queue.insert(1, "", Duration::ZERO).unwrap();
    assert_eq!(queue.len(), 1, "nothing ran inside of the insertion");
    assert_eq!(due(&queue), [1]);
}

#[test]
fn a17_tasks_of_one_instant_come_in_the_order_of_insertion() {
    let (clock, _runtime, queue) = queue();
    let at = clock.now() + secs(1);
    (0..100).for_each(|key| queue.insert(key, "", at).unwrap());
    clock.advance(secs(1));
    assert!(due(&queue).into_iter().eq(0..100));
}

#[test]
fn a7_a_queue_goes_on_while_any_handle_is_kept() {
    let (clock, runtime, queue) = queue();
    let second = queue.clone();
    drop(runtime.clone());
    drop(queue);
    second.insert(1, "", secs(1)).unwrap();
    assert_eq!(clock.block_on(second.recv()).unwrap().key, 1);
}

#[test]
fn a9_a10_no_delay_loses_a_revolution_and_none_is_early() {
    for delay in [59, 60, 61, 119, 120, 3_599, 3_600, 3_601, 7_200, 86_400] {
        // The hand of the wheel may stand anywhere.
        for start in [0, 1, 30, 59, 3_599] {
            let (clock, _runtime, queue) = queue();
            clock.advance(secs(start));
            queue.insert(1, "", secs(delay)).unwrap();
            clock.advance(secs(delay) - ns(1));
            assert!(due(&queue).is_empty(), "{delay} s from {start} s");
            clock.advance(ns(1));
            assert_eq!(due(&queue), [1], "{delay} s from {start} s");
        }
    }
}

#[test]
fn a11_c14_an_entry_inserted_during_delivery_for_the_same_instant_is_delivered_once_and_now() {
    let (clock, _runtime, queue) = queue();
    queue.insert(0, "", secs(1)).unwrap();
    clock.advance(secs(1));
    let mut seen = Vec::new();
    while let Ok(expired) = queue.try_recv() {
        seen.push(expired.key);
        if expired.key < 5 {
            queue.insert(expired.key + 1, "", Duration::ZERO).unwrap();
            queue.insert(expired.key + 100, "", clock.now()).unwrap();
        }
    }
    assert_eq!(seen, [0, 1, 100, 2, 101, 3, 102, 4, 103, 5, 104]);
}

#[test]
fn a12_a13_a_slow_handler_strands_no_neighbour() {
    let (clock, _runtime, queue) = queue();
    for key in 0..5 {
        queue.insert(key, "", secs(1)).unwrap();
    }
    clock.advance(secs(1));
    for key in 0..5 {
        let expired = queue.try_recv().unwrap();
        assert_eq!((expired.key, expired.lateness), (key, secs(u64::from(key) * 10)));
        clock.advance(secs(10)); // the handler
    }
}

#[test]
fn a15_c20_d15_a_pause_makes_no_later_entry_late() {
    let (clock, _runtime, queue) = queue();
    for key in 1..=100 {
        queue.insert(key, "", secs(u64::from(key))).unwrap();
    }
    clock.stall(secs(50) + ms(500));
    assert!(due(&queue).into_iter().eq(1..=50));
    for key in 51..=100 {
        let expired = clock.block_on(queue.recv()).unwrap();
        assert_eq!((expired.key, expired.lateness), (key, Duration::ZERO));
    }
}

#[test]
fn a16_entries_have_keys_and_can_be_removed_counted_and_stopped() {
    let (_clock, _runtime, queue) = queue();
    queue.insert(1, "a", secs(1)).unwrap();
    queue.insert(2, "b", secs(1)).unwrap();
    assert_eq!((queue.len(), queue.remove(&1), queue.len()), (2, Some("a"), 1));
    assert_eq!(queue.close_and_drain().len(), 1);
}

// ---------------------------------------------------------------- B: a ring with a cycle count

#[test]
fn b1_b2_b3_b4_a_campaign_with_dates_is_inserted_moved_and_removed() {
    #[derive(Debug, PartialEq)]
    struct Batch {
        campaign: u32,
        already_sent: u32,
    }
    let (clock, runtime) = manual();
    let queue = DelayQueue::on(&runtime);
    let date = clock.wall() + 100 * 24 * HOUR;
    for campaign in 0..3 {
        queue.insert(campaign, Batch { campaign, already_sent: 0 }, date).unwrap();
    }
    assert!(queue.remove(&0).is_some() && queue.reset(&1, date + HOUR));
    clock.advance(100 * 24 * HOUR);
    assert_eq!(queue.try_recv().unwrap().value, Batch { campaign: 2, already_sent: 0 });
    clock.advance(HOUR);
    assert_eq!(queue.try_recv().unwrap().value.campaign, 1);
}

#[test]
fn b6_d6_precision_is_an_option() {
    let (clock, runtime) = manual();
    let queue: DelayQueue<u32, ()> = DelayQueueBuilder::on(&runtime).leeway(secs(1)).build();
    queue.insert_many((0..10).map(|key| (key, (), ms(u64::from(key) * 100 + 1))));
    let mut receiver = queue.recv();
    assert!(poll_once(&mut receiver).is_none());
    assert_eq!(clock.advance(secs(1)), 1, "one wake-up for all of a second");
    drop(receiver);
    assert_eq!(due(&queue).len(), 10);
}

#[test]
fn b7_queued_rows_are_put_back_after_a_restart() {
    let (clock, _runtime, queue) = queue();
    let now = clock.wall() + HOUR;
    clock.set_wall(now);
    let rows = [(1, "overdue", now - secs(100)), (2, "next", now + secs(5)), (3, "later", now + 48 * HOUR)];
    assert!(queue.insert_many(rows).is_empty());
    assert_eq!(due(&queue), [1]);
    assert_eq!(delivered(&clock, &queue, secs(1), 10), [(2, secs(5))]);
}

#[test]
fn b11_59_and_119_seconds_are_right_and_so_are_all_others() {
    let (clock, _runtime, queue) = queue();
    for key in 1..=240 {
        queue.insert(key, "", secs(u64::from(key))).unwrap();
    }
    let expected: Vec<_> = (1..=240).map(|key| (key, secs(u64::from(key)))).collect();
    assert_eq!(delivered(&clock, &queue, secs(1), 240), expected);
}

#[test]
fn b12_c13_d11_entries_overdue_by_1_2_and_100_seconds_are_delivered_at_once_in_every_position() {
    for position in 0..60 {
        let (clock, _runtime, queue) = queue();
        clock.advance(secs(1_000 + position));
        for (key, overdue) in [(1, 1), (2, 2), (3, 100)] {
            queue.insert(key, "", clock.now() + Duration::ZERO).unwrap();
            assert!(queue.reset(&key, clock.wall() - secs(overdue)));
        }
        let lateness: Vec<_> = std::iter::from_fn(|| queue.try_recv().ok()).map(|late| late.lateness).collect();
        assert_eq!(lateness, [secs(100), secs(2), secs(1)]);
    }
}

#[test]
fn b13_b14_wall_times_are_instants_that_follow_the_clock() {
    let (clock, _runtime, queue) = queue();
    let at = clock.wall() + 2 * HOUR;
    queue.insert(1, "", at).unwrap();
    clock.set_wall(clock.wall() + HOUR); // an hour off
    clock.advance(HOUR - ns(1));
    assert!(due(&queue).is_empty());
    clock.advance(ns(1));
    assert_eq!(queue.try_recv().unwrap().due, Due::Wall(at));
}

#[test]
fn b16_the_same_entry_twice_is_refused_and_removal_needs_the_key_alone() {
    let (_clock, _runtime, queue) = queue();
    queue.insert(1, "item", secs(1)).unwrap();
    assert!(queue.insert(1, "item", secs(1)).is_err());
    assert_eq!((queue.len(), queue.remove(&1), queue.len()), (1, Some("item"), 0));
}

// ---------------------------------------------------------------- C: a heap and a wheel

#[test]
fn c1_c6_named_entries_and_an_earlier_one_rearms_the_sleeper() {
    let (clock, runtime) = manual();
    let queue = DelayQueue::on(&runtime);
    queue.insert("slow", (), HOUR).unwrap();
    let mut receiver = queue.recv();
    assert!(poll_once(&mut receiver).is_none());
    assert_eq!(clock.next_due(), Some(clock.now() + HOUR));
    queue.insert("fast", (), secs(1)).unwrap();
    assert_eq!(clock.next_due(), Some(clock.now() + secs(1)));
    clock.advance(secs(1));
    assert_eq!(poll_once(&mut receiver).flatten().map(|expired| expired.key), Some("fast"));
    assert_eq!(queue.len(), 1);
}

#[test]
fn c9_each_entry_is_delivered_once() {
    let (clock, _runtime, queue) = queue();
    queue.insert(1, "", secs(1)).unwrap();
    assert_eq!(delivered(&clock, &queue, secs(1), 1_000), [(1, secs(1))]);
}

#[test]
fn c10_c12_an_entry_removed_while_it_is_the_sleeping_head_is_never_delivered() {
    let (clock, _runtime, queue) = queue();
    queue.insert(1, "head", secs(10)).unwrap();
    let mut receiver = queue.recv();
    assert!(poll_once(&mut receiver).is_none());
    assert_eq!(queue.remove(&1), Some("head"));
    // The same key again: the old entry does not come back.
    queue.insert(1, "again", secs(20)).unwrap();
    clock.advance(secs(15));
    assert!(poll_once(&mut receiver).is_none());
    clock.advance(secs(5));
    assert_eq!(poll_once(&mut receiver).flatten().map(|expired| expired.value), Some("again"));
    assert!(queue.is_empty());
}

#[test]
fn c11_a_removed_far_entry_leaves_at_once_with_its_value() {
    let (_clock, runtime) = manual();
    let queue = DelayQueue::on(&runtime);
    let value = std::sync::Arc::new(());
    for key in 0..1_000 {
        queue.insert(key, value.clone(), 1_000 * HOUR).unwrap();
        drop(queue.remove(&key));
    }
    assert_eq!((queue.len(), std::sync::Arc::strong_count(&value)), (0, 1));
}

#[test]
fn c15_a_delay_of_exactly_one_turn_of_a_level_is_right() {
    // The widths and lengths of the levels, and a nanosecond to either side.
    for turn in [262_144, 333_000_000, 4_096 * 262_144, 1_024 * 333_000_000, 2_048 * 333_000_000] {
        for delay in [turn - 1, turn, turn + 1] {
            let (clock, _runtime, queue) = queue();
            clock.advance(ms(777));
            queue.insert(1, "", ns(delay)).unwrap();
            let begun = clock.now();
            assert_eq!(clock.block_on(queue.recv()).unwrap().lateness, Duration::ZERO);
            assert_eq!(clock.now() - begun, ns(delay));
        }
    }
}

// ---------------------------------------------------------------- D: a ring for delay messages

#[test]
fn d1_d2_d7_the_review_of_48_hours_comes_after_48_hours() {
    let (clock, runtime) = manual();
    let queue = DelayQueue::on(&runtime);
    queue.insert("ride 17", "five stars", clock.wall() + 48 * HOUR).unwrap();
    queue.insert("ride 18", "five stars", clock.wall() + 48 * HOUR).unwrap();
    clock.advance(47 * HOUR);
    assert!(due(&queue).is_empty());
    assert_eq!(queue.remove("ride 18"), Some("five stars"), "the user has rated");
    clock.advance(HOUR);
    assert_eq!(due(&queue), ["ride 17"]);
}

#[test]
fn d3_d13_a_key_is_unique_in_the_whole_queue() {
    let (_clock, _runtime, queue) = queue();
    queue.insert(1, "", secs(5)).unwrap();
    for other in [secs(4), secs(5), secs(6), HOUR, 48 * HOUR] {
        assert_eq!(queue.insert(1, "", other).unwrap_err().reason, Refusal::Occupied);
    }
    assert!(queue.remove(&1).is_some());
}

#[test]
fn d4_d11_a_due_time_in_the_past_is_refused_on_request_by_the_time_of_the_call() {
    let (clock, runtime) = manual();
    let queue: DelayQueue<u32, &str> = DelayQueueBuilder::on(&runtime).refuse_overdue().build();
    let start = clock.now();
    clock.advance(5 * HOUR);
    for past in [Due::At(start + HOUR), Due::Wall(clock.wall() - ns(1))] {
        let refused = queue.insert(1, "back", past).unwrap_err();
        assert_eq!((refused.reason, refused.value, refused.due), (Refusal::Overdue, "back", past));
    }
    queue.insert(1, "", Duration::ZERO).unwrap();
    queue.insert(2, "", clock.wall()).unwrap();
    assert_eq!(due(&queue), [1, 2]);
}

#[test]
fn d5_d14_close_ends_receivers_any_number_of_times_and_hands_back() {
    let (clock, _runtime, queue) = queue();
    queue.insert(1, "pending", HOUR).unwrap();
    let mut receivers = [queue.recv(), queue.recv()];
    assert!(receivers.iter_mut().all(|receiver| poll_once(receiver).is_none()));
    queue.close();
    queue.close();
    assert_eq!(queue.close_and_drain()[0].value, "pending");
    assert!(queue.close_and_drain().is_empty());
    assert!(receivers.iter_mut().all(|receiver| poll_once(receiver) == Some(None)));
    assert_eq!(clock.advance(2 * HOUR), 0);
}

#[test]
fn d8_an_entry_beyond_an_hour_causes_no_work_before_its_time() {
    let (clock, runtime, queue) = queue();
    queue.insert(1, "", 48 * HOUR).unwrap();
    let mut receiver = queue.recv();
    assert!(poll_once(&mut receiver).is_none());
    clock.advance(48 * HOUR - ns(1));
    assert_eq!(runtime.metrics().fired(), 0);
}

#[test]
fn d10_d12_ten_seconds_added_5_hours_after_the_start_are_ten_seconds() {
    let (clock, _runtime, queue) = queue();
    clock.advance(5 * HOUR);
    queue.insert(1, "", secs(10)).unwrap();
    let expired = clock.block_on(queue.recv()).unwrap();
    assert_eq!((expired.lateness, clock.now().as_duration()), (Duration::ZERO, 5 * HOUR + secs(10)));
}

#[test]
fn d16_an_insertion_after_close_is_refused_and_gives_the_value_back() {
    let (_clock, _runtime, queue) = queue();
    queue.close();
    let refused = queue.insert(1, "back", secs(1)).unwrap_err();
    assert_eq!((refused.value, refused.reason), ("back", Refusal::Closed));
    assert_eq!(queue.try_recv(), Err(TryRecvError::Closed));
}
