//! Entries due by the wall clock: steps both ways, suspend, horizons.

use std::time::{Duration, SystemTime};

use super::{due, queue};
use crate::support::{ms, ns, secs};
use timerqueue::{DelayQueueBuilder, Due};

const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

#[test]
fn a_step_forward_makes_entries_due_and_wakes_the_receiver() {
    let (clock, _runtime, queue) = queue();
    let at = clock.wall() + 10 * HOUR;
    queue.insert(1, "wall", at).unwrap();
    queue.insert(2, "running", 10 * HOUR).unwrap();
    let executor = smol::LocalExecutor::new();
    let receiver = executor.spawn(queue.recv());
    clock.set_auto_advance(false);
    clock.block_on(executor.run(async {
        smol::future::yield_now().await;
        clock.set_wall(at + secs(2));
        clock.advance(Duration::ZERO);
        let expired = receiver.await.unwrap();
        assert_eq!((expired.key, expired.due, expired.lateness), (1, Due::Wall(at), secs(2)));
    }));
    assert!(due(&queue).is_empty());
}

#[test]
fn after_a_step_back_entries_wait_for_their_time_and_delivered_ones_do_not_come_again() {
    let (clock, _runtime, queue) = queue();
    let start = clock.wall() + YEAR;
    clock.set_wall(start);
    for key in 0..1_000 {
        queue.insert(key, "", start + u32::from(key as u16) * HOUR).unwrap();
    }
    clock.set_wall(start + 500 * HOUR);
    assert_eq!(queue.try_recv().unwrap().key, 0);
    clock.set_wall(start + 100 * HOUR);
    assert!(due(&queue).into_iter().eq(1..=100), "ready before the step; those due later are not delivered");
    clock.set_wall(start - 1_000 * HOUR);
    assert!(due(&queue).is_empty());
    queue.insert(5_000, "", start - 999 * HOUR).unwrap();
    assert_eq!(queue.next_due(), Some(Due::Wall(start - 999 * HOUR)));
    clock.advance(HOUR);
    assert_eq!(due(&queue), [5_000]);
    // The receiver's timer follows the steps.
    let expired = clock.block_on(queue.recv()).unwrap();
    assert_eq!((expired.key, clock.wall()), (101, start + 101 * HOUR));
    clock.set_wall(start + 2_000 * HOUR);
    assert!(due(&queue).into_iter().eq(102..1_000));
}

#[test]
fn entries_leave_in_the_middle_of_the_move_after_a_step_back() {
    let (clock, _runtime, queue) = queue();
    let start = clock.wall() + YEAR;
    clock.set_wall(start);
    queue.insert_many((0..500).map(|key| (key, "", start + HOUR)));
    clock.set_wall(start - YEAR);
    assert!(queue.try_recv().is_err());
    for key in 0..250 {
        assert!(queue.remove(&key).is_some());
    }
    assert!(queue.reset(&250, start - YEAR + secs(1)));
    clock.advance(secs(1));
    assert_eq!(due(&queue), [250]);
    clock.set_wall(start + HOUR);
    assert!(due(&queue).into_iter().eq(251..500));
}

#[test]
fn time_in_suspend_counts_for_the_wall_clock_alone() {
    let (clock, _runtime, queue) = queue();
    queue.insert(1, "wall", clock.wall() + HOUR).unwrap();
    queue.insert(2, "running", HOUR).unwrap();
    clock.suspend(HOUR);
    clock.advance(Duration::ZERO);
    assert_eq!(due(&queue), [1]);
    clock.advance(HOUR);
    assert_eq!(due(&queue), [2]);
}

#[test]
fn the_later_of_both_clocks_comes_first() {
    let (clock, _runtime, queue) = queue();
    queue.insert(1, "", secs(5)).unwrap();
    queue.insert(2, "", clock.wall() + secs(4)).unwrap();
    queue.insert(3, "", clock.wall() + secs(5)).unwrap();
    queue.insert(4, "", secs(6)).unwrap();
    clock.advance(secs(10));
    assert_eq!(due(&queue), [2, 1, 3, 4], "ties in order of insertion");
}

#[test]
fn any_horizon_will_do() {
    let (clock, _runtime, queue) = queue();
    let far = [3 * YEAR, 100 * YEAR, 500 * YEAR];
    for (key, after) in (0..).zip(far) {
        queue.insert(key, "", after).unwrap();
        queue.insert(key + 10, "", clock.wall() + after).unwrap();
    }
    for (key, never) in (20..).zip([Duration::MAX, 2_000 * YEAR]) {
        queue.insert(key, "", never).unwrap();
    }
    queue.insert(30, "", SystemTime::UNIX_EPOCH - 1_000 * YEAR).unwrap();
    queue.insert(31, "", SystemTime::UNIX_EPOCH + 5_000 * YEAR).unwrap();
    assert_eq!(due(&queue), [30]);
    for (key, after) in (0..).zip(far) {
        clock.advance(after - clock.now().as_duration() - ns(1));
        assert!(due(&queue).is_empty());
        clock.advance(ns(1));
        assert_eq!(due(&queue), [key, key + 10]);
    }
    clock.advance(1_000 * YEAR);
    assert!(due(&queue).is_empty());
    assert_eq!((queue.len(), queue.next_due()), (3, None));
}

#[test]
fn leeway_lets_entries_share_a_wake_up_in_order_and_never_early() {
    let (clock, runtime, _) = queue();
    let queue = DelayQueueBuilder::on(&runtime).leeway(ms(10)).build();
    for (key, due) in [(1, 18), (2, 12), (3, 15), (4, 20), (5, 21)] {
        queue.insert(key, (), ms(due)).unwrap();
    }
    clock.advance(ms(19));
    assert!(due(&queue).is_empty());
    clock.advance(ms(1));
    assert_eq!(due(&queue), [2, 3, 1, 4]);
    assert_eq!(queue.next_due(), Some(Due::At(clock.now() + ms(10))));
}

#[test]
fn leeway_counts_on_the_wall_clock_too() {
    let (clock, runtime, _) = queue();
    let queue = DelayQueueBuilder::on(&runtime).leeway(ms(10)).build();
    let start = SystemTime::UNIX_EPOCH + 50 * YEAR;
    clock.set_wall(start);
    queue.insert(1, (), start + ms(18)).unwrap();
    queue.insert(2, (), start + ms(12)).unwrap();
    let Some(Due::Wall(grid)) = queue.next_due() else { panic!("the second is first") };
    assert!(grid >= start + ms(12) && grid < start + ms(22), "{grid:?}");
    let executor = smol::LocalExecutor::new();
    let receiver = executor.spawn(queue.recv());
    let expired = clock.block_on(executor.run(receiver)).unwrap();
    assert_eq!((expired.key, clock.wall()), (2, grid));
    clock.set_wall(grid + ms(10) - ns(1));
    assert_eq!(due(&queue).len(), usize::from(grid >= start + ms(18)));
    clock.set_wall(grid + ms(10));
    let _ = due(&queue);
    // Both become ready at a point of the grid. After a step back the second is due again at its
    // own time.
    queue.insert(3, (), grid + ms(14)).unwrap();
    queue.insert(4, (), grid + ms(15)).unwrap();
    clock.set_wall(grid + ms(20) - ns(1));
    assert!(queue.try_recv().is_err());
    clock.set_wall(grid + ms(20));
    assert_eq!(queue.try_recv().unwrap().key, 3);
    clock.set_wall(grid + ms(15) - ns(1));
    assert!(due(&queue).is_empty());
    clock.set_wall(grid + ms(15));
    assert_eq!(due(&queue), [4]);
}
