//! What a runtime tells about itself: exact on virtual time, and against a known state on real
//! time.

use std::num::NonZero;
use std::thread;
use std::time::Duration;

use timerqueue::{Delay, Interval, ManualClock, MissedTicks, Runtime, Timeout, Timer, TimerBuilder};

use crate::support::{Count, Gate, block_on, blocking, eventually, manual, native};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn s70_operations_are_counted_by_kind() {
    let (clock, runtime) = manual();
    let timers: Vec<_> = (1..=5).map(|i| Timer::on(&runtime, SECOND * i, Duration::ZERO, |_| {})).collect();
    assert!(timers[4].change(SECOND * 9, Duration::ZERO).was_waiting());
    timers[3].dispose();
    clock.block_on(Delay::on(&runtime, SECOND * 2));
    drop(timers);
    let metrics = runtime.metrics();
    // Two have fired; the third and the fifth were dropped while they waited.
    assert_eq!((metrics.created, metrics.changed, metrics.disposed), (6, 1, 3));
    assert_eq!((metrics.callbacks, metrics.wakers, metrics.panics), (2, 1, 0));
    assert_eq!((metrics.active, metrics.waiting, runtime.metrics().fired()), (0, 0, 3));
    assert_eq!(metrics.lateness.count(), 3);
    assert_eq!(metrics.threads, Default::default(), "a manual clock has no threads");
}

#[test]
fn s70_an_interval_of_a_future_counts_each_waker_and_a_settled_timeout_is_disposed() {
    let (clock, runtime) = manual();
    clock.block_on(async {
        let mut interval = Interval::on(&runtime, SECOND);
        for _ in 0..4 {
            interval.tick().await;
        }
        let quick = Timeout::on(&runtime, SECOND * 9, Delay::on(&runtime, SECOND)).await;
        assert!(quick.is_ok());
    });
    let metrics = runtime.metrics();
    assert!(metrics.wakers >= 4 && metrics.callbacks == 0, "{metrics:?}");
    assert_eq!((metrics.disposed, metrics.active), (1, 0), "{metrics:?}");
}

#[test]
fn s70_lateness_counts_from_the_due_point_to_the_callback() {
    let (clock, runtime) = manual();
    let _timer = Timer::on(&runtime, SECOND, Duration::ZERO, |_| {});
    let _other = Timer::on(&runtime, SECOND * 2, Duration::ZERO, |_| {});
    clock.stall(SECOND + Duration::from_millis(30));
    clock.advance(Duration::ZERO);
    let before = runtime.metrics();
    assert_eq!((before.lateness.count(), before.lateness.max()), (1, Duration::from_millis(30)));
    clock.advance(SECOND);
    let between = runtime.metrics().lateness.since(&before.lateness);
    assert_eq!((between.count(), between.quantile(1.0) < Duration::from_micros(1)), (1, true));
}

#[test]
fn s70_ticks_that_a_policy_leaves_out_are_counted() {
    let (clock, runtime) = manual();
    let _timer = TimerBuilder::on(&runtime).period(SECOND).due(SECOND).missed_ticks(MissedTicks::Skip).start(|_| {});
    clock.stall(SECOND * 10);
    clock.advance(Duration::ZERO);
    let metrics = runtime.metrics();
    assert_eq!((metrics.callbacks, metrics.missed_ticks), (1, 9));
}

/// At the end of the clock, in two queues: each timer has missed nearly as many ticks as can be
/// counted.
#[test]
fn s70_missed_ticks_are_counted_up_to_the_end_of_the_count() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).queues(2).start().expect("nothing to refuse");
    let tick = Duration::from_nanos(1);
    let _timers =
        [(); 6].map(|()| TimerBuilder::on(&runtime).period(tick).missed_ticks(MissedTicks::Skip).start(|_| {}));
    clock.stall(Duration::MAX);
    assert_eq!(clock.advance(Duration::ZERO), 6);
    assert_eq!((runtime.metrics().missed_ticks, runtime.metrics().panics), (u64::MAX, 0));
}

#[test]
fn s70_callbacks_that_block_show_as_busy_threads_and_waiting_ticks() {
    let runtime = Runtime::builder().workers(2).max_threads(3).start().expect("three threads");
    let (timers, running, gate) = blocking(&runtime, 20);
    // At the limit of three threads: one waits for alarms, two run callbacks.
    eventually("two run", || running.get() == 2);
    eventually("the rest waits", || runtime.metrics().waiting == 18);
    let metrics = runtime.metrics();
    assert_eq!((metrics.threads.alive, metrics.threads.limit, metrics.threads.busy), (3, 3, 2), "{metrics:?}");
    thread::sleep(Duration::from_millis(20));
    assert!(runtime.metrics().longest_running >= Duration::from_millis(20));
    gate.open();
    eventually("all have run", || runtime.metrics().callbacks == 20);
    drop(timers);
    eventually("none runs", || runtime.metrics().threads.busy == 0);
    let metrics = runtime.metrics();
    assert_eq!((metrics.waiting, metrics.longest_running, metrics.threads.refused), (0, Duration::ZERO, 0));
    assert_eq!(metrics.lateness.count(), 20);
    assert!(metrics.alarms_set > 0 && metrics.wake_ups > 0 && metrics.threads.started >= 3, "{metrics}");
}

/// Also of threads that have ended meanwhile.
#[test]
fn s70_nothing_is_lost_between_threads_that_come_and_go() {
    const ROUNDS: u64 = 40;
    let runtime =
        Runtime::builder().workers(2).max_threads(64).keep_alive(Duration::from_millis(1)).start().expect("threads");
    for round in 1..=ROUNDS {
        let gate = Gate::new();
        for _ in 0..8 {
            let gate = gate.clone();
            runtime.execute(move || gate.wait());
        }
        gate.open();
        block_on(Delay::on(&runtime, Duration::from_micros(200)));
        eventually("all have run", || runtime.metrics().callbacks == 8 * round);
    }
    let metrics = runtime.metrics();
    assert_eq!(
        (metrics.callbacks, 8 * ROUNDS + metrics.wakers),
        (8 * ROUNDS, runtime.metrics().fired()),
        "{metrics:?}"
    );
    assert_eq!(metrics.lateness.count(), runtime.metrics().fired());
    eventually("nothing waits", || runtime.metrics().waiting == 0);
}

/// A tick that is withdrawn after its sweep neither waits nor has run.
#[test]
fn s70_a_tick_that_is_withdrawn_does_not_wait_for_ever() {
    let runtime = Runtime::builder().workers(2).max_threads(2).start().expect("two threads");
    let (blocked, running, gate) = blocking(&runtime, 1);
    eventually("it runs", || running.get() == 1);
    let ran = Count::new();
    let timers: Vec<_> = (0..10).map(|_| Timer::on(&runtime, Duration::ZERO, Duration::ZERO, ran.callback())).collect();
    eventually("they wait", || runtime.metrics().waiting == 10);
    timers.iter().for_each(Timer::dispose);
    gate.open();
    eventually("none waits", || runtime.metrics().waiting == 0);
    assert_eq!(ran.get(), 0);
    drop(blocked);
}

#[test]
fn s70_callbacks_on_an_executor_of_the_program_are_counted() {
    let runtime =
        Runtime::builder().callback_executor(|job| _ = thread::spawn(move || job.run())).start().expect("threads");
    let ran = Count::new();
    let _timers: Vec<_> =
        (0..5).map(|_| Timer::on(&runtime, Duration::from_millis(1), Duration::ZERO, ran.callback())).collect();
    eventually("all have run", || runtime.metrics().callbacks == 5);
    let metrics = runtime.metrics();
    assert_eq!((metrics.waiting, metrics.lateness.count()), (0, 5), "{metrics:?}");
}

#[test]
fn s70_a_runtime_that_has_ended_keeps_its_numbers() {
    let runtime = native();
    let _late = Timer::on(&runtime, SECOND * 3600, Duration::ZERO, |_| {});
    runtime.execute(|| {});
    eventually("it has run", || runtime.metrics().callbacks == 1);
    runtime.shutdown(SECOND * 10).expect("nothing blocks");
    let metrics = runtime.metrics();
    assert_eq!((metrics.created, metrics.callbacks, metrics.active, metrics.waiting), (2, 1, 0, 0));
    assert_eq!(metrics.threads.alive, 0);
    assert!(metrics.threads.started >= thread::available_parallelism().map_or(1, NonZero::get) as u64);
}
