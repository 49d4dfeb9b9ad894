//! Tests of item wheels: references and owners.

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

fn due(wheel: &mut ItemWheel<u32, u32>, now: u64) -> Vec<u32> {
    let mut found = Vec::new();
    loop {
        match wheel.next_due(now, &mut 4) {
            Next::Due(item) => found.push(*item.shared()),
            Next::Nothing => return found,
            Next::Exhausted => {}
        }
    }
}

fn filled(dues: &[(u32, u64)]) -> (ItemWheel<u32, u32>, Vec<ItemRef<u32, u32>>) {
    let mut wheel = ItemWheel::new();
    let items = dues
        .iter()
        .map(|&(name, due)| {
            let item = wheel.item(name, 0, policy(), 0);
            wheel.insert(item.clone(), due, 0);
            item
        })
        .collect();
    (wheel, items)
}

#[test]
fn items_come_due_and_leave_the_wheel() {
    let (mut wheel, items) = filled(&[(1, 10), (2, 20), (3, 30), (4, u64::MAX)]);
    assert_eq!(due(&mut wheel, 15), [1]);
    assert_eq!(wheel.earliest_due(&mut 100), Some(20));
    assert!(wheel.unlink(&items[1]).is_some() && wheel.unlink(&items[1]).is_none());
    assert_eq!((wheel.earliest_due(&mut 100), wheel.len()), (Some(30), 2));
    assert_eq!(due(&mut wheel, u64::MAX - 3), [3], "the end does not come");
    assert_eq!((wheel.next_deadline(), wheel.len()), (END, 1));
}

#[test]
fn both_parts_leave_with_the_last_reference_alone() {
    let (mut wheel, items) = filled(&[(7, 10)]);
    let item = items.into_iter().next().expect("one");
    *wheel.body(&item) += 9;
    let item = item.into_parts().expect_err("in the wheel");
    let second = wheel.unlink(&item);
    let item = item.into_parts().expect_err("a second reference");
    drop(second);
    assert_eq!(item.into_parts().ok(), Some((7, 9)));
}

#[test]
fn a_dropped_wheel_drops_its_items_once() {
    let drops = Rc::new(Cell::new(0));
    let mut wheel = ItemWheel::new();
    for i in 0..100 {
        let item = wheel.item((), Counted(Rc::clone(&drops)), policy(), 0);
        wheel.insert(item, i * 1_000_000_000_000, 0);
    }
    drop(wheel);
    assert_eq!(drops.get(), 100);
}

#[test]
fn an_item_of_another_wheel_is_refused() {
    let (mut wheel, _) = filled(&[]);
    let (_other, items) = filled(&[(1, 1)]);
    assert!(catch_unwind(AssertUnwindSafe(|| _ = wheel.unlink(&items[0]))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| wheel.insert(items[0].clone(), 1, 0))).is_err());
}
