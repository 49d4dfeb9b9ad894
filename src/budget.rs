//! The cooperative budget: how many results in a row one task gets without having waited for any of them.
//!
//! Ground rules. A task that only awaits what is ready at once never returns to its executor, and no other task of that
//! thread runs. So each future of this crate asks here before it hands out a result that its task did not wait for. A row ends
//! when a future of another task asks, or when the budget is spent: the future then wakes its own task and is pending once. A waker
//! without data belongs to no task: it is the one of a poll by hand, which has no executor to go back to.

use std::cell::Cell;
use std::task::{Context, Poll};

/// Results in a row that are handed out at once.
const AT_ONCE: u32 = 128;

/// The task that got the latest such result on this thread, told by its waker, and how many it got in a row. The pointers are
/// compared, never followed.
#[derive(Clone, Copy)]
struct Row {
    task: (*const (), *const ()),
    results: u32,
}

crate::sync::thread_local! {
    static ROW: Cell<Row> = const { Cell::new(Row { task: (std::ptr::null(), std::ptr::null()), results: 0 }) };
}

/// A future is about to hand out a result that its task did not wait for. Pending: it must not do so now, and the task is woken.
pub(crate) fn spend(context: &Context<'_>) -> Poll<()> {
    let waker = context.waker();
    if waker.data().is_null() {
        return Poll::Ready(());
    }
    let task = (waker.data(), std::ptr::from_ref(waker.vtable()).cast());
    let spent = ROW.try_with(|row| {
        let last = row.get();
        let results = if last.task == task { last.results } else { 0 };
        let spent = results == AT_ONCE;
        row.set(Row { task, results: if spent { 0 } else { results + 1 } });
        spent
    });
    // A thread that is about to end has no budget.
    if !spent.unwrap_or(false) {
        return Poll::Ready(());
    }
    waker.wake_by_ref();
    Poll::Pending
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_task_yields_once_in_so_many_results_and_another_task_has_a_budget_of_its_own() {
        let tasks: [Arc<Woken>; 2] = std::array::from_fn(|_| Arc::default());
        let wakers = tasks.each_ref().map(|task| Waker::from(Arc::clone(task)));
        let spend = |at: usize| super::spend(&Context::from_waker(&wakers[at])).is_ready();
        for round in 0..3 {
            assert!((0..AT_ONCE).all(|_| spend(0)), "in a row");
            assert_eq!(tasks[0].0.load(Ordering::Relaxed), round);
            assert!(!spend(0), "and then not");
            assert_eq!(tasks[0].0.load(Ordering::Relaxed), round + 1, "but the task is woken");
        }
        assert!((0..10 * AT_ONCE).all(|i| spend((i % 2) as usize)), "no row");
        assert_eq!(tasks[1].0.load(Ordering::Relaxed), 0);
        assert!((0..10 * AT_ONCE).all(|_| super::spend(&Context::from_waker(Waker::noop())).is_ready()), "no task");
    }
}
