//! Hooks at the begin and at the end of each thread of the pool (S82).

use std::thread;
use std::time::Duration;

use timerqueue::{OnceTimer, Runtime, Timer};

use crate::support::{Count, Journal, PATIENCE, blocked, eventually};

#[test]
fn s82_each_thread_calls_the_hooks_before_its_first_callback_and_after_its_last() {
    let (begun, ended) = (Journal::new(), Journal::new());
    let (begins, ends) = (begun.clone(), ended.clone());
    let name = || thread::current().name().map(str::to_owned);
    let runtime = Runtime::builder()
        .queues(1)
        .workers(2)
        .thread_name("tq-hook")
        .on_thread_start(move || begins.push(name()))
        .on_thread_stop(move || ends.push(name()))
        .start()
        .expect("the system has threads");
    // Callbacks block the workers, so threads are added.
    let (timers, gate) = blocked(&runtime, 4);
    let inside = Journal::new();
    let begun_then = begun.len();
    assert!(begun_then >= 5, "{begun_then} threads, for four callbacks and a poller");
    let timer = OnceTimer::on(&runtime, Duration::ZERO, {
        let inside = inside.clone();
        move |_| inside.push(name())
    });
    eventually("the callback has run", || inside.len() == 1);
    gate.open();
    drop((timers, timer));
    runtime.shutdown(PATIENCE).expect("no callback blocks");
    let (mut begun, mut ended) = (begun.take(), ended.take());
    assert!(begun.contains(&inside.take()[0]));
    begun.sort();
    ended.sort();
    assert_eq!(begun, ended, "after the shutdown each has ended");
}

#[test]
fn s82_a_hook_has_its_runtime_and_its_panic_is_told() {
    let (told, fired) = (Journal::new(), Count::new());
    let (panics, count) = (told.clone(), fired.clone());
    let runtime = Runtime::builder()
        .queues(1)
        .workers(2)
        .on_panic(move |panic| panics.push(panic.message().map(str::to_owned)))
        .on_thread_start(move || {
            let count = count.clone();
            Timer::once(Duration::ZERO, move |_| _ = count.bump()).detach();
            panic!("no priority");
        })
        .on_thread_stop(|| panic!("none to give back"))
        .start()
        .expect("a hook that panics is no error of the start");
    eventually("the threads go on, and the timers made in the hooks fire", || fired.get() == 2);
    runtime.shutdown(PATIENCE).expect("no callback blocks");
    let mut told = told.take();
    told.sort();
    let expected = ["no priority", "no priority", "none to give back", "none to give back"];
    assert_eq!(told, expected.map(|message| Some(message.to_owned())));
    assert_eq!((runtime.metrics().panics, runtime.metrics().created), (4, 2), "made in this runtime");
}

/// A destructor may panic, and the thread that drops the last reference is any.
#[test]
fn s82_destructors_of_hooks_and_observers_that_panic_are_contained() {
    struct Panics(Count);
    impl Drop for Panics {
        fn drop(&mut self) {
            self.0.bump();
            panic!("in the destructor");
        }
    }
    impl timerqueue::observe::Observer for Panics {}
    let dropped = Count::new();
    let [one, other] = [dropped.clone(), dropped.clone()].map(Panics);
    let runtime = Runtime::builder()
        .observer(Panics(dropped.clone()))
        .on_thread_start(move || _ = &one)
        .on_thread_stop(move || _ = &other)
        .manual_clock(&timerqueue::ManualClock::new())
        .start()
        .expect("nothing to refuse");
    drop(runtime);
    assert_eq!(dropped.get(), 3);
}
