//! Hostile user code: `Hash`, `Eq`, `Drop` and wakers that panic or call the queue; forgotten
//! futures.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use super::{due, poll_once};
use crate::support::poll::{CountingWaker, PanickingWaker, panics, poll, poll_with};
use crate::support::{PATIENCE, lock, manual, ms, secs, within};
use timerqueue::{DelayQueue, DelayQueueBuilder, ManualClock, Runtime, error::Refusal};

thread_local! {
    /// The action of the next comparison on this thread.
    static NEXT: Cell<Option<fn()>> = const { Cell::new(None) };
    static HASHING: Cell<Option<fn()>> = const { Cell::new(None) };
}

static QUEUE: Mutex<Option<DelayQueue<Key, u32>>> = Mutex::new(None);
/// The tests of this file share the queue above.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[derive(Debug)]
struct Key(u32);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        if let Some(action) = HASHING.take() {
            action();
        }
        // Keys of the same decade have the same hash.
        (self.0 / 10).hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        if let Some(action) = NEXT.take() {
            action();
        }
        self.0 == other.0
    }
}

impl Eq for Key {}

fn shared() -> DelayQueue<Key, u32> {
    lock(&QUEUE).clone().expect("a test has set it")
}

fn with_queue(body: impl FnOnce(&ManualClock, &Runtime, &DelayQueue<Key, u32>) + Send + 'static) {
    within(PATIENCE, "no deadlock", || {
        let _one = lock(&ONE_AT_A_TIME);
        let (clock, runtime) = manual();
        let queue = DelayQueue::on(&runtime);
        *lock(&QUEUE) = Some(queue.clone());
        for key in 0..20 {
            queue.insert(Key(key), key, secs(1)).unwrap();
        }
        body(&clock, &runtime, &queue);
        *lock(&QUEUE) = None;
    });
}

fn acting<T>(action: fn(), body: impl FnOnce() -> T) -> T {
    NEXT.set(Some(action));
    let result = body();
    NEXT.set(None);
    result
}

#[test]
fn s79_a_comparison_that_panics_leaves_the_queue_as_it_was() {
    with_queue(|clock, _, queue| {
        let panic = || panic!("on purpose");
        assert!(panics(|| acting(panic, || queue.insert(Key(3), 0, secs(1)).is_ok())));
        assert!(panics(|| acting(panic, || queue.replace(Key(3), 0, secs(1)).is_ok())));
        assert!(panics(|| acting(panic, || queue.remove(&Key(3)))));
        assert!(panics(|| acting(panic, || queue.reset(&Key(3), secs(9)))));
        HASHING.set(Some(panic));
        assert!(panics(|| queue.contains_key(&Key(3))));
        assert_eq!(std::thread::scope(|scope| scope.spawn(|| queue.len()).join().unwrap()), 20, "the lock is free");
        clock.advance(secs(1));
        assert_eq!(due(queue).len(), 20, "no entry is held back");
    });
}

/// The calls that an `Eq` may make by mistake. Each uses the queue that compares the key.
const CALLS: &[fn()] = &[
    || _ = shared().insert(Key(3), 33, secs(1)),
    || _ = shared().replace(Key(4), 44, secs(3)),
    || _ = shared().insert_many([(Key(99), 99, secs(1))]),
    || _ = poll_once(&mut shared().insert_wait(Key(3), 33, secs(1))),
    || _ = shared().remove(&Key(3)),
    || _ = shared().reset(&Key(4), secs(2)),
    || _ = shared().due(&Key(5)),
    || _ = shared().len(),
    || _ = shared().next_due(),
    || _ = shared().try_recv(),
    || _ = shared().try_recv_all(),
    || _ = shared().receiver().try_recv(),
    || shared().for_each(|_, _, _| {}),
    || shared().retain(|_, _, _| true),
    || _ = shared().peek(|_, _, _| ()),
    || _ = poll_once(&mut shared().recv()),
    || _ = shared().drain(),
    || shared().close(),
];

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied()).unwrap_or("")
}

#[test]
fn s79_a_comparison_that_calls_its_queue_panics_and_leaves_the_queue_as_it_was() {
    with_queue(|clock, _, queue| {
        let searches: [fn(&DelayQueue<Key, u32>); 4] = [
            |queue| _ = queue.insert(Key(3), 0, secs(1)),
            |queue| _ = queue.replace(Key(5), 0, secs(1)),
            |queue| _ = queue.remove(&Key(3)),
            |queue| _ = queue.reset(&Key(5), secs(5)),
        ];
        for (i, &call) in CALLS.iter().enumerate() {
            for search in searches {
                let panic = catch_unwind(AssertUnwindSafe(|| acting(call, || search(queue)))).unwrap_err();
                assert!(message(&*panic).contains("has called the delay queue"), "call {i}: {}", message(&*panic));
            }
        }
        assert!(!queue.is_closed() && queue.len() == 20);
        clock.advance(secs(1));
        assert_eq!(due(queue).iter().map(|key| key.0).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
    });
}

#[test]
fn s79_a_closure_that_calls_its_queue_panics_and_leaves_the_queue_as_it_was() {
    with_queue(|clock, _, queue| {
        for (i, &call) in CALLS.iter().enumerate() {
            let looks: [&dyn Fn(); 3] = [
                &|| queue.for_each(|_, _, _| call()),
                &|| {
                    queue.retain(|_, _, _| {
                        call();
                        true
                    })
                },
                &|| queue.peek(|_, _, _| call()).unwrap(),
            ];
            for look in looks {
                let panic = catch_unwind(AssertUnwindSafe(look)).unwrap_err();
                assert!(message(&*panic).contains("has called the delay queue"), "call {i}: {}", message(&*panic));
            }
        }
        // Entries refused before the panic have left, and no other.
        let mut visited = 0;
        assert!(panics(|| queue.retain(|_, _, _| {
            visited += 1;
            assert!(visited < 6, "on purpose");
            visited % 2 == 0
        })));
        assert!(!queue.is_closed() && queue.len() == 17);
        clock.advance(secs(1));
        assert_eq!(due(queue).len(), 17);
    });
}

/// The panic of the call is caught inside of `Eq`: the search goes on.
#[test]
fn a_comparison_may_catch_the_panic_of_its_call_and_may_call_other_queues() {
    static OTHER: Mutex<Option<DelayQueue<Key, u32>>> = Mutex::new(None);
    with_queue(|_, runtime, queue| {
        *lock(&OTHER) = Some(DelayQueue::on(runtime));
        let call = || {
            assert!(panics(|| shared().len()));
            let other = lock(&OTHER).clone().unwrap();
            other.insert(Key(3), 3, secs(1)).unwrap();
            // Inside of the comparison of a second queue the first is still refused.
            assert!(!acting(|| assert!(panics(|| shared().len())), || other.contains_key(&Key(4))));
            assert_eq!(other.len(), 1);
        };
        assert_eq!(acting(call, || queue.remove(&Key(3))), Some(3));
        assert_eq!(queue.len(), 19);
        *lock(&OTHER) = None;
    });
}

/// The core timers ring on the thread that compares, which has the lock.
#[test]
fn entries_that_come_due_by_an_advance_inside_of_a_comparison_wake_receivers() {
    static CLOCK: Mutex<Option<ManualClock>> = Mutex::new(None);
    for panics_then in [false, true] {
        with_queue(move |clock, runtime, queue| {
            *lock(&CLOCK) = Some(clock.clone());
            queue.insert(Key(20), 20, clock.wall() + secs(1)).unwrap();
            let counters: Vec<_> = (0..21).map(|_| CountingWaker::new()).collect();
            let mut receivers: Vec<_> = (0..21).map(|_| queue.recv()).collect();
            for (receiver, counter) in receivers.iter_mut().zip(&counters) {
                assert!(poll(receiver, counter).is_pending());
            }
            let advance = || _ = lock(&CLOCK).clone().unwrap().advance(secs(1));
            let advance_and_panic = || {
                lock(&CLOCK).clone().unwrap().advance(secs(1));
                panic!("on purpose");
            };
            if panics_then {
                assert!(panics(|| acting(advance_and_panic, || queue.contains_key(&Key(5)))));
            } else {
                assert!(acting(advance, || queue.contains_key(&Key(5))));
            }
            assert!(counters.iter().all(|counter| counter.wakes() == 1), "one for each entry");
            assert_eq!(receivers.iter_mut().filter_map(poll_once).count(), 21);
            assert_eq!((queue.len(), runtime.metrics().panics), (0, 0));
            *lock(&CLOCK) = None;
        });
    }
}

/// Another thread waits until the comparison ends.
#[test]
fn a_drain_on_another_thread_waits_for_a_comparison() {
    static DRAINED: Mutex<Option<std::thread::JoinHandle<usize>>> = Mutex::new(None);
    with_queue(|_, _, queue| {
        let drain = || {
            *lock(&DRAINED) = Some(std::thread::spawn(|| shared().drain().len()));
            std::thread::sleep(ms(2));
        };
        assert!(acting(drain, || queue.contains_key(&Key(5))));
        assert_eq!(lock(&DRAINED).take().unwrap().join().unwrap(), 20);
    });
}

/// The cost of an insertion grows with the entries that have its hash, and not with their square.
#[test]
fn equal_hashes_cost_no_more_than_a_comparison_each() {
    struct Equal(u32);
    impl Hash for Equal {
        fn hash<H: Hasher>(&self, _: &mut H) {}
    }
    impl PartialEq for Equal {
        fn eq(&self, other: &Self) -> bool {
            self.0 == other.0
        }
    }
    impl Eq for Equal {}
    within(PATIENCE, "no work that grows with the square", || {
        let (_clock, runtime) = manual();
        let queue = DelayQueue::on(&runtime);
        for key in 0..3_000 {
            queue.insert(Equal(key), (), secs(1)).unwrap();
        }
        assert!(!queue.contains_key(&Equal(3_000)));
    });
}

/// Calls the queue when dropped.
struct CallsOnDrop(DelayQueue<u32, CallsOnDrop>);

impl Drop for CallsOnDrop {
    fn drop(&mut self) {
        let _ = self.0.len();
        self.0.remove(&9_999);
        let _ = self.0.due(&0);
    }
}

#[test]
fn values_that_call_the_queue_when_dropped_are_dropped_outside_of_the_lock() {
    within(PATIENCE, "no deadlock", || {
        let (clock, runtime) = manual();
        let queue: DelayQueue<u32, CallsOnDrop> = DelayQueue::on(&runtime);
        let value = || CallsOnDrop(queue.clone());
        for key in 0..10 {
            queue.insert(key, value(), secs(1)).unwrap();
        }
        drop(queue.insert(0, value(), secs(1)));
        drop(queue.remove(&1));
        drop(queue.replace(2, value(), secs(1)));
        clock.advance(secs(1));
        drop(queue.try_recv());
        drop(queue.insert_wait(77, value(), secs(1)));
        queue.close();
        drop(queue.insert(20, value(), secs(1)));
        assert_eq!(queue.drain().len(), 8);
    });
}

/// Panics when dropped.
struct PanicsOnDrop(Arc<()>);

impl Drop for PanicsOnDrop {
    fn drop(&mut self) {
        assert!(Arc::strong_count(&self.0) == 0, "on purpose");
    }
}

#[test]
fn values_that_panic_when_dropped_are_all_dropped_with_the_queue() {
    let (_clock, runtime) = manual();
    let queue = DelayQueue::on(&runtime);
    let count = Arc::new(());
    for key in 0..10 {
        queue.insert(key, PanicsOnDrop(Arc::clone(&count)), secs(1)).unwrap();
    }
    assert!(panics(|| drop(queue)));
    assert_eq!(Arc::strong_count(&count), 1);
}

#[test]
fn a_waker_that_panics_disturbs_neither_queue_nor_the_next_receiver() {
    let (clock, runtime) = manual();
    let queue = DelayQueue::on(&runtime);
    let hostile = PanickingWaker::on_wake();
    let (mut first, mut second) = (queue.recv(), queue.recv());
    assert!(poll_with(&mut first, &hostile.waker()).is_pending());
    assert!(poll_once(&mut second).is_none());
    queue.insert_many([(1, (), secs(1)), (2, (), secs(1))]);
    clock.advance(secs(1));
    assert_eq!(runtime.metrics().panics, 1, "as for the waker of a delay");
    assert!(poll_once(&mut second).is_some());
    PanickingWaker::set(&hostile.on_wake, false);
    assert!(matches!(poll_with(&mut first, &hostile.waker()), Poll::Ready(Some(_))));
}

#[test]
fn an_entry_is_not_lost_with_the_destructor_of_a_waker() {
    let (clock, runtime) = manual();
    let queue = DelayQueue::on(&runtime);
    let hostile = PanickingWaker::on_wake();
    PanickingWaker::set(&hostile.on_wake, false);
    let (mut first, mut second) = (queue.recv(), queue.recv());
    assert!(poll_once(&mut first).is_none());
    assert!(poll_with(&mut second, &hostile.waker()).is_pending());
    queue.insert(1, "kept", secs(1)).unwrap();
    clock.advance(secs(1));
    // The first was woken. The second takes the entry, and its waker, never called, is dropped.
    PanickingWaker::set(&hostile.on_drop, true);
    assert_eq!(poll_once(&mut second).flatten().map(|expired| expired.value), Some("kept"));
    PanickingWaker::set(&hostile.on_drop, false);
    assert_eq!((hostile.panics(), runtime.metrics().panics), (1, 1));
}

#[test]
fn wakers_that_panic_after_the_end_of_the_runtime_are_told() {
    for shuts_down in [true, false] {
        let (_clock, runtime) = manual();
        let queue: DelayQueue<u32, ()> = DelayQueueBuilder::on(&runtime).capacity(1).build();
        queue.insert(0, (), secs(1)).unwrap();
        let (hostile, counter) = (PanickingWaker::on_wake(), CountingWaker::new());
        let (mut first, mut second) = (queue.recv(), queue.recv());
        let mut insert = queue.insert_wait(1, (), secs(1));
        assert!(poll_with(&mut first, &hostile.waker()).is_pending());
        assert!(poll_with(&mut insert, &hostile.waker()).is_pending());
        assert!(poll(&mut second, &counter).is_pending());
        if !shuts_down {
            queue.close();
            assert_eq!(runtime.metrics().panics, 1, "the inserter");
            assert!(poll(&mut insert, &counter).is_ready());
            assert!(queue.remove(&0).is_some());
        }
        runtime.shutdown(Duration::ZERO).unwrap();
        assert_eq!((hostile.panics(), counter.wakes(), runtime.metrics().panics), (2, 1, 2));
        assert!(matches!(poll(&mut first, &counter), Poll::Ready(None)));
        assert!(matches!(poll(&mut second, &counter), Poll::Ready(None)));
    }
}

/// The key and the value of an insertion that waits outlive any panic in a poll.
#[test]
fn an_insertion_that_waits_outlives_wakers_and_comparisons_that_panic() {
    let (_clock, runtime) = manual();
    let queue: DelayQueue<u32, &str> = DelayQueueBuilder::on(&runtime).capacity(1).build();
    queue.insert(0, "first", secs(1)).unwrap();
    let (hostile, counter) = (PanickingWaker::new(), CountingWaker::new());
    let mut insert = queue.insert_wait(1, "kept", secs(1));
    PanickingWaker::set(&hostile.on_clone, true);
    assert!(panics(|| poll_with(&mut insert, &hostile.waker())), "at the first poll");
    assert!(poll(&mut insert, &counter).is_pending());
    assert!(panics(|| poll_with(&mut insert, &hostile.waker())), "at a later poll");
    PanickingWaker::set(&hostile.on_clone, false);
    assert_eq!(queue.remove(&0), Some("first"));
    assert_eq!((counter.wakes(), poll(&mut insert, &counter)), (1, Poll::Ready(Ok(()))));
    // The destructor of its own waker, when the insertion has succeeded or was refused.
    for refused in [false, true] {
        let (mut before, mut insert) = (queue.insert_wait(2, "", secs(1)), queue.insert_wait(3, "3", secs(1)));
        assert!(poll(&mut before, &counter).is_pending());
        assert!(poll_with(&mut insert, &hostile.waker()).is_pending());
        let panics = runtime.metrics().panics;
        PanickingWaker::set(&hostile.on_drop, true);
        if refused {
            runtime.shutdown(Duration::ZERO).unwrap();
            PanickingWaker::set(&hostile.on_drop, false);
            let refused = poll(&mut insert, &counter);
            let Poll::Ready(Err(refused)) = refused else { panic!("{refused:?}") };
            assert_eq!((refused.reason, refused.key, refused.value), (Refusal::Closed, 3, "3"));
        } else {
            // The one before is woken, and has not looked yet.
            assert_eq!(queue.remove(&1), Some("kept"));
            assert_eq!(poll(&mut insert, &counter), Poll::Ready(Ok(())));
            PanickingWaker::set(&hostile.on_drop, false);
            assert_eq!((runtime.metrics().panics, queue.remove(&3)), (panics + 1, Some("3")));
            queue.insert(1, "kept", secs(1)).unwrap();
        }
    }
}

#[test]
fn a_comparison_that_panics_in_a_poll_leaves_the_insertion_whole() {
    with_queue(|_, _, queue| {
        let mut insert = queue.insert_wait(Key(3), 33, secs(1));
        assert!(panics(|| acting(|| panic!("on purpose"), || poll_once(&mut insert))));
        let refused = poll_once(&mut insert).unwrap().unwrap_err();
        assert_eq!((refused.reason, refused.key.0, refused.value), (Refusal::Occupied, 3, 33));
    });
}

#[test]
fn a_receiver_outlives_wakers_that_panic_when_cloned() {
    let (clock, _runtime, queue) = super::queue();
    let (hostile, counter) = (PanickingWaker::new(), CountingWaker::new());
    let mut receiver = queue.recv();
    PanickingWaker::set(&hostile.on_clone, true);
    assert!(panics(|| poll_with(&mut receiver, &hostile.waker())), "at the first poll");
    assert!(poll(&mut receiver, &counter).is_pending());
    assert!(panics(|| poll_with(&mut receiver, &hostile.waker())), "at a later poll");
    queue.insert(1, "kept", secs(1)).unwrap();
    clock.advance(secs(1));
    assert_eq!(counter.wakes(), 1);
    let received = poll(&mut receiver, &counter);
    assert!(matches!(received, Poll::Ready(Some(expired)) if expired.value == "kept"));
}

/// A forgotten receiver leaves its waker with the queue, whose end does not wake it while entries
/// are left.
#[test]
fn wakers_of_forgotten_futures_are_dropped_with_the_queue_one_by_one() {
    let (_clock, runtime) = manual();
    let queue: DelayQueue<u32, ()> = DelayQueue::on(&runtime);
    queue.insert(1, (), secs(1)).unwrap();
    let hostile = PanickingWaker::new();
    for _ in 0..3 {
        let mut receiver = queue.recv();
        assert!(poll_with(&mut receiver, &hostile.waker()).is_pending());
        forget(receiver);
    }
    PanickingWaker::set(&hostile.on_drop, true);
    drop(queue);
    PanickingWaker::set(&hostile.on_drop, false);
    assert_eq!((hostile.panics(), hostile.kept(), runtime.metrics().panics), (3, 0, 3));
}

#[test]
fn wakers_that_call_the_queue_are_called_outside_of_the_lock() {
    within(PATIENCE, "no deadlock", || {
        let (clock, runtime) = manual();
        let queue: DelayQueue<u32, ()> = DelayQueue::on(&runtime);
        let calls = PanickingWaker::that({
            let queue = queue.clone();
            move || _ = queue.len()
        });
        let mut receiver = queue.recv();
        assert!(poll_with(&mut receiver, &calls.waker()).is_pending());
        assert!(poll_with(&mut receiver, &calls.waker()).is_pending());
        queue.insert(1, (), Duration::ZERO).unwrap();
        clock.advance(Duration::ZERO);
        assert!(poll_with(&mut receiver, &calls.waker()).is_ready());
        let mut receiver = queue.recv();
        assert!(poll_with(&mut receiver, &calls.waker()).is_pending());
        drop(receiver);
    });
}

#[test]
fn forgotten_futures_keep_the_queue_working() {
    let (clock, runtime) = manual();
    let queue: DelayQueue<u32, u32> = DelayQueueBuilder::on(&runtime).capacity(1).build();
    let mut receiver = queue.recv();
    assert!(poll_once(&mut receiver).is_none());
    forget(receiver);
    queue.insert(1, 1, secs(1)).unwrap();
    let mut insert = queue.insert_wait(2, 2, secs(1));
    assert!(poll_once(&mut insert).is_none());
    forget(insert);
    clock.advance(secs(1));
    assert_eq!(due(&queue), [1]);
    queue.insert(3, 3, secs(1)).unwrap();
    assert_eq!(clock.block_on(queue.recv()).unwrap().key, 3);
}
