//! The end of a runtime with threads that are blocked, or that run destructors of thread-local
//! values (S33).

use std::cell::RefCell;
use std::sync::mpsc;
use std::time::Duration;

use timerqueue::{OnceTimer, Runtime, Timer};

use crate::support::{Canary, Count, Gate, NEVER, OnDrop, PATIENCE, blocked, eventually, ms, within};

type Action = OnDrop<Box<dyn FnMut()>>;

thread_local! {
    /// Run when the thread ends.
    static AT_THE_END: RefCell<Vec<Action>> = const { RefCell::new(Vec::new()) };
}

/// Makes a thread of this runtime's pool run `action` when the thread ends.
fn at_the_end_of_a_thread(runtime: &Runtime, action: impl FnMut() + Send + 'static) {
    let (send, receive) = mpsc::channel();
    let timer = OnceTimer::on(runtime, Duration::ZERO, move |_| {
        AT_THE_END.with_borrow_mut(|actions| actions.push(OnDrop(Box::new(action))));
        send.send(()).expect("the test listens");
    });
    receive.recv_timeout(PATIENCE).expect("it runs");
    drop(timer);
}

fn runtime(max_threads: usize) -> Runtime {
    Runtime::builder().queues(1).workers(2).max_threads(max_threads).start().expect("the system has threads")
}

#[test]
fn s33_jobs_that_wait_behind_a_blocked_callback_are_discarded() {
    within(2 * PATIENCE, "jobs of a blocked thread", || {
        for _ in 0..20 {
            let runtime = runtime(2);
            let (entered, gate) = (Count::new(), Gate::new());
            let (timers, fates): (Vec<Timer>, Vec<_>) = (0..31)
                .map(|_| {
                    let (canary, fate) = Canary::new();
                    let (entered, gate) = (entered.clone(), gate.clone());
                    let timer = Timer::on(&runtime, ms(5), NEVER, move |_| {
                        canary.sing();
                        entered.bump();
                        gate.wait();
                    });
                    (timer, fate)
                })
                .unzip();
            eventually("one is blocked", || entered.get() == 1);
            let late = runtime.shutdown(Duration::ZERO).expect_err("it is blocked");
            assert!(late.threads() >= 1);
            let dropped = || fates.iter().filter(|fate| fate.is_dropped()).count();
            eventually("the others are dropped", || dropped() == 30);
            assert_eq!(entered.get(), 1);
            gate.open();
            runtime.shutdown(PATIENCE).expect("it returns");
            drop(timers);
        }
    });
}

#[test]
fn s33_destructors_of_thread_local_values_are_awaited() {
    within(2 * PATIENCE, "thread-local destructors", || {
        let runtime = runtime(4);
        let (begun, gate, ended) = (Count::new(), Gate::new(), Count::new());
        at_the_end_of_a_thread(&runtime, {
            let (begun, gate, ended) = (begun.clone(), gate.clone(), ended.clone());
            move || {
                begun.bump();
                gate.wait();
                ended.bump();
            }
        });
        let late = runtime.shutdown(ms(20)).expect_err("a destructor runs");
        eventually("it has begun", || begun.get() == 1);
        assert!(late.threads() >= 1);
        eventually("the others end", || runtime.shutdown(ms(20)).map_err(|late| late.threads()) == Err(1));
        gate.open();
        runtime.shutdown(PATIENCE).expect("it returns");
        assert_eq!((ended.get(), runtime.metrics().threads.alive), (1, 0));
    });
}

#[test]
fn s33_shutdown_from_the_destructor_of_a_thread_local_value_on_a_thread_of_the_pool() {
    within(2 * PATIENCE, "a shutdown from a thread-local destructor", || {
        let runtime = runtime(8);
        let (send, receive) = mpsc::channel();
        for _ in 0..2 {
            let (theirs, send) = (runtime.clone(), send.clone());
            at_the_end_of_a_thread(&runtime, move || _ = send.send(theirs.shutdown(ms(20))));
        }
        let (callbacks, gate) = blocked(&runtime, 1);
        eventually("the blocked one is left", || runtime.shutdown(ms(100)).map_err(|late| late.threads()) == Err(1));
        gate.open();
        runtime.shutdown(PATIENCE).expect("it returns");
        // The two threads may be the same, and the blocked thread may be one of them.
        for _ in 0..2 {
            let left = receive.recv_timeout(PATIENCE).expect("it runs").map_or_else(|late| late.threads(), |()| 0);
            assert!(left <= 2, "{left} threads besides the one that waits");
        }
        drop(callbacks);
    });
}

/// A thread that ends may belong to one runtime and shut down another.
#[test]
fn s33_shutdown_of_another_runtime_from_the_destructor_of_a_thread_local_value() {
    within(2 * PATIENCE, "another runtime", || {
        let (ending, other) = (runtime(4), runtime(4));
        let (send, receive) = mpsc::channel();
        let theirs = other.clone();
        at_the_end_of_a_thread(&ending, move || _ = send.send(theirs.shutdown(PATIENCE)));
        ending.shutdown(PATIENCE).expect("all return");
        assert_eq!(receive.recv().expect("it ran"), Ok(()));
        assert_eq!(other.metrics().threads.alive, 0);
    });
}
