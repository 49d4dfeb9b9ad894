//! Tests of item wheels: references, adoption, restarts.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::*;
use crate::queue::MissedTicks;

struct Counted(Rc<Cell<usize>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

fn policy() -> TickPolicy {
    MissedTicks::default().into()
}

fn due(wheel: &mut ItemWheel<u32, u32>, axis: Axis, now: u64) -> Vec<u32> {
    let mut found = Vec::new();
    loop {
        match wheel.next_due(axis, now, &mut 4) {
            NextItem::Due(item) => found.push(*item.shared()),
            NextItem::Nothing => return found,
            NextItem::Exhausted => {}
        }
    }
}

fn filled(dues: &[(u32, Axis, u64)]) -> (ItemWheel<u32, u32>, Vec<ItemRef<u32, u32>>) {
    let mut wheel = ItemWheel::new();
    let items = dues
        .iter()
        .map(|&(name, axis, due)| {
            let item = ItemRef::new(name, 0, policy());
            wheel.adopt(&item);
            wheel.insert(item.clone(), axis, due, 0);
            item
        })
        .collect();
    (wheel, items)
}

#[test]
fn slots_come_due_by_the_clock_of_their_axis() {
    use Axis::{Running, Wall};
    let (mut wheel, items) = filled(&[(1, Running, 10), (2, Wall, 5), (3, Running, 20), (4, Running, u64::MAX)]);
    assert_eq!(due(&mut wheel, Running, 15), [1]);
    assert_eq!(due(&mut wheel, Wall, 4), [0; 0]);
    assert_eq!(due(&mut wheel, Wall, 5), [2]);
    assert_eq!(wheel.earliest_due(Running, 15, &mut 100), Some(20));
    assert_eq!((wheel.due(&items[2]), wheel.due(&items[3]).1), ((Running, 20), END));
    assert!(wheel.unlink(&items[2]).is_some() && wheel.unlink(&items[2]).is_none());
    assert_eq!(due(&mut wheel, Running, u64::MAX - 3), [0; 0], "the end does not come");
    assert_eq!((wheel.len(Running), wheel.len(Wall)), (1, 0));
}

#[test]
fn both_parts_leave_with_the_last_reference_alone() {
    let (mut wheel, items) = filled(&[(7, Axis::Running, 10)]);
    let item = items.into_iter().next().expect("one");
    *wheel.body(&item) += 9;
    let item = item.into_parts().expect_err("adopted");
    drop(wheel.unlink(&item));
    wheel.disown(&item);
    let second = item.clone();
    let item = item.into_parts().expect_err("a second reference");
    drop(second);
    assert_eq!(item.into_parts().ok(), Some((7, 9)));
}

#[test]
fn a_dropped_wheel_drops_its_slots_once() {
    let drops = Rc::new(Cell::new(0));
    let mut wheel = ItemWheel::new();
    for i in 0..100 {
        let item = ItemRef::new((), Counted(Rc::clone(&drops)), policy());
        wheel.adopt(&item);
        wheel.insert(item, AXES[i % 2], i as u64 * 1_000_000_000_000, 0);
    }
    wheel.restart(Axis::Wall, 5);
    assert!(matches!(wheel.next_due(Axis::Wall, 5, &mut 3), NextItem::Exhausted), "in the middle of the move");
    drop(wheel);
    assert_eq!(drops.get(), 100);
}

#[test]
fn after_a_step_back_slots_move_over_some_at_a_time_and_can_be_unlinked_meanwhile() {
    let hours = |n: u64| n * 3_600_000_000_000;
    let dues: Vec<(u32, Axis, u64)> = (1..=100).map(|n| (n, Axis::Wall, hours(100 + u64::from(n)))).collect();
    let (mut wheel, items) = filled(&dues);
    assert_eq!(due(&mut wheel, Axis::Wall, hours(110)).len(), 10);
    wheel.restart(Axis::Wall, hours(1));
    assert!(matches!(wheel.next_due(Axis::Wall, hours(1), &mut 20), NextItem::Exhausted));
    for item in &items[10..30] {
        assert!(wheel.unlink(item).is_some(), "in either wheel");
    }
    wheel.insert(items[10].clone(), Axis::Wall, hours(2), hours(1));
    assert_eq!(due(&mut wheel, Axis::Wall, hours(3)), [11]);
    assert_eq!(wheel.earliest_due(Axis::Wall, hours(3), &mut 1_000), Some(hours(131)));
    assert_eq!(due(&mut wheel, Axis::Wall, hours(1_000)).len(), 70);
}

#[test]
fn a_slot_of_another_wheel_is_refused() {
    let (mut wheel, _) = filled(&[]);
    let (_other, items) = filled(&[(1, Axis::Running, 1)]);
    assert!(catch_unwind(AssertUnwindSafe(|| _ = wheel.unlink(&items[0]))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| wheel.adopt(&items[0]))).is_err());
}
