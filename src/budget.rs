//! The cooperative budget: the number of results in a row that a task gets without waiting.
//!
//! Ground rules. A task that awaits only ready futures never returns to its executor, and starves
//! the further tasks of its thread. So each future of this crate calls [`spend`] before a result
//! for which its task did not wait. A row ends when a future of another task calls, or when the
//! budget is spent: the future then wakes its own task and is pending once. A waker without data
//! belongs to no task, but to a poll by hand, and no executor waits for the thread.

use std::cell::Cell;
use std::task::{Context, Poll};

/// The budget: the number of results in a row, without a wait.
const AT_ONCE: u32 = 128;

/// The task that got the latest unawaited result on this thread, identified by its waker, with the
/// number of its results in a row. The pointers are compared, never dereferenced.
#[derive(Clone, Copy)]
struct Row {
    task: (*const (), *const ()),
    results: u32,
}

crate::sync::thread_local! {
    static ROW: Cell<Row> = const { Cell::new(Row { task: (std::ptr::null(), std::ptr::null()), results: 0 }) };
}

/// Called by a future before a result for which its task did not wait. Pending: the future must
/// return pending now; its task has been woken.
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
    // On an ending thread the thread-local value is gone: no limit applies.
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
