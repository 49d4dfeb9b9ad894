//! S31: no timer waits for long behind callbacks of others, whether these block, compute, or go on
//! by themselves.
//!
//! Ground rules. The busy timers go on, and the blocked callback stays blocked, until the other
//! timers have fired. A test that needs a limit counts callbacks and not time, since a loaded
//! machine slows both sides alike.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use timerqueue::{MissedTicks, Runtime, Timer, TimerBuilder};

use crate::support::{Count, Gate, NEVER, PATIENCE, blocking, eventually, ms, us, within};

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().queues(1).workers(workers).thread_name("tq-fair").start().expect("the system has threads")
}

/// A pool that never grows. Any other pool may add a thread when one of its threads has lost its
/// processor for long. The added thread runs the jobs that wait, and would hide that the busy
/// threads never take any.
fn fixed(workers: usize) -> Runtime {
    let builder = Runtime::builder().queues(1).workers(workers).max_threads(workers).thread_name("tq-fixed");
    builder.start().expect("the system has threads")
}

/// Computes for this long.
fn work(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Timers that start themselves again with due time zero, after some work.
fn restart_themselves(runtime: &Runtime, n: usize, time: Duration) -> (Vec<Timer>, Count) {
    let ticks = Count::new();
    let start = |_| {
        let ticks = ticks.clone();
        Timer::on(runtime, Duration::ZERO, NEVER, move |tick| {
            work(time);
            ticks.bump();
            let _ = tick.change(Duration::ZERO, NEVER);
        })
    };
    let timers = (0..n).map(start).collect();
    eventually("they go on", || ticks.get() >= 20 * n);
    (timers, ticks)
}

/// Timers that never catch up with their schedules: each owes its next tick when a callback
/// returns. They begin one after the other, so a thread that runs one has no other to run.
fn never_catch_up(runtime: &Runtime, n: usize, act: fn(Duration), time: Duration) -> (Vec<Timer>, Count) {
    let ticks = Count::new();
    let start = |_| {
        let (ticks, own) = (ticks.clone(), Count::new());
        let builder = TimerBuilder::on(runtime).due(time / 2).period(time / 2).missed_ticks(MissedTicks::Burst);
        let timer = builder.start_exclusive({
            let own = own.clone();
            move |_| {
                act(time);
                own.bump();
                ticks.bump();
            }
        });
        eventually("it goes on", || own.get() >= 20);
        timer
    };
    ((0..n).map(start).collect(), ticks)
}

/// A hundred timers fire while busy timers go on.
fn others_fire_beside(workers: usize, busy: impl FnOnce(&Runtime) -> (Vec<Timer>, Count) + Send + 'static) {
    within(2 * PATIENCE, "others beside a busy timer", move || {
        let runtime = fixed(workers);
        let (busy, ticks) = busy(&runtime);
        let fired = Count::new();
        let others: Vec<Timer> = (1..=100).map(|i| Timer::on(&runtime, us(100 * i), NEVER, fired.callback())).collect();
        eventually("the others fire", || fired.get() == 100);
        let before = ticks.get();
        eventually("the busy timers still go on", || ticks.get() >= before + 20);
        busy.iter().for_each(Timer::dispose);
        drop(others);
        runtime.shutdown(PATIENCE).expect("all return");
    });
}

#[test]
fn s31_timers_fire_beside_a_timer_that_restarts_itself_at_once() {
    others_fire_beside(2, |runtime| restart_themselves(runtime, 1, us(20)));
}

/// There are more of these timers than threads, so the inbox is never empty: a thread that prefers
/// it never steals.
#[test]
fn s31_timers_fire_beside_timers_that_restart_themselves_on_all_threads() {
    others_fire_beside(3, |runtime| restart_themselves(runtime, 64, us(20)));
}

#[test]
fn s31_timers_fire_beside_timers_that_never_catch_up() {
    others_fire_beside(3, |runtime| never_catch_up(runtime, 2, work, us(150)));
}

/// A hundred timers that are due at one instant. The first callback to run waits at the gate; the
/// count is of the other 99.
fn behind_a_blocked_one(runtime: &Runtime) -> (Vec<Timer>, Count, Gate) {
    let (entered, fired, gate) = (Count::new(), Count::new(), Gate::new());
    let due = runtime.now() + ms(10);
    let timers = (0..100)
        .map(|_| {
            let (entered, fired, gate) = (entered.clone(), fired.clone(), gate.clone());
            Timer::on(runtime, due - runtime.now(), NEVER, move |_| {
                if entered.bump() == 1 {
                    gate.wait();
                } else {
                    fired.bump();
                }
            })
        })
        .collect();
    eventually("one is blocked", || entered.get() >= 1);
    (timers, fired, gate)
}

/// The pool may add threads. Six busy timers sleep for a short time in each callback, so some job
/// returns all the time: a pool that looks only for jobs that return sees no reason to add one.
#[test]
fn s31_jobs_left_behind_a_blocked_callback_are_taken_by_others_though_these_are_busy() {
    const BUSY: usize = 6;
    /// Callbacks of busy timers until the others must have fired. A busy thread takes a job from
    /// elsewhere after every few of its own.
    const SOON: usize = 600 * BUSY;
    within(2 * PATIENCE, "jobs behind a blocked callback", || {
        for round in 0..10 {
            let runtime = runtime(BUSY + 2);
            let (busy, ticks) = never_catch_up(&runtime, BUSY, std::thread::sleep, us(100));
            let (timers, fired, gate) = behind_a_blocked_one(&runtime);
            let (begun, later) = (ticks.get(), Count::new());
            let unrelated = Timer::on(&runtime, ms(1), NEVER, later.callback());
            eventually("the busy timers go on", || fired.get() + later.get() == 100 || ticks.get() > begun + SOON);
            let (fired, later) = (fired.get(), later.get());
            gate.open();
            assert_eq!((fired, later), (99, 1), "of 99 behind it and of one due later, round {round}");
            drop((timers, unrelated, busy));
            runtime.shutdown(PATIENCE).expect("all return");
        }
    });
}

/// The same at the limit of threads, where none can be added: the busy thread must take them.
#[test]
fn s31_jobs_left_behind_a_blocked_callback_are_taken_at_the_limit_of_threads_too() {
    within(2 * PATIENCE, "jobs behind a blocked callback", || {
        let runtime = fixed(3);
        let (busy, _) = never_catch_up(&runtime, 1, work, us(150));
        let (timers, fired, gate) = behind_a_blocked_one(&runtime);
        eventually("the 99 behind it", || fired.get() == 99);
        gate.open();
        drop((timers, busy));
        runtime.shutdown(PATIENCE).expect("all return");
    });
}

/// Forty timers whose callbacks sleep for a short time. Returns how many callbacks ran at the same
/// time, at most. Ends when that is `enough`, or after so many callbacks.
fn flood(runtime: &Runtime, enough: usize, callbacks: usize) -> usize {
    let (ended, now, most) = (Count::new(), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let start = |_| {
        let (ended, now, most) = (ended.clone(), Arc::clone(&now), Arc::clone(&most));
        TimerBuilder::on(runtime).period(ms(1)).missed_ticks(MissedTicks::Burst).start(move |_| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(us(300));
            now.fetch_sub(1, Ordering::SeqCst);
            ended.bump();
        })
    };
    let timers: Vec<Timer> = (0..40).map(start).collect();
    let most = || most.load(Ordering::SeqCst);
    eventually("it goes on", || most() >= enough || ended.get() >= callbacks);
    timers.iter().for_each(Timer::dispose);
    most()
}

/// More callbacks are due than the workers can run. Some callback returns all the time, and yet the
/// pool adds threads.
#[test]
fn s31_a_flood_of_callbacks_that_sleep_for_a_short_time() {
    const WORKERS: usize = 5;
    // One of the workers watches.
    const TWICE: usize = 2 * (WORKERS - 1);
    within(2 * PATIENCE, "a flood", || {
        // Several rounds, since chance helps and hurts. A machine that stands still for a moment
        // makes all threads look blocked, and then any pool adds some. On a machine with much else
        // to do, threads seldom all sleep, and the pool adds few.
        let mut short = Vec::new();
        for _ in 0..10 {
            let runtime = runtime(WORKERS);
            let most = flood(&runtime, TWICE, 12_000);
            let threads = runtime.metrics().threads.alive;
            short.extend((most < TWICE).then_some(most));
            assert!(short.len() <= 2, "so many at the same time, of {TWICE}: {short:?}");
            assert!(threads <= 80, "{threads} threads");
            runtime.shutdown(PATIENCE).expect("all return");
        }
    });
}

/// Callbacks that block are given a thread each, and hardly more. 34 callbacks need 32 added
/// threads; a pool that doubles the number of threads it adds, and does not count the jobs that
/// wait, has added 31 and then adds 16.
#[test]
fn s31_threads_for_callbacks_that_block_are_not_many_more_than_these() {
    const BLOCKED: usize = 34;
    within(2 * PATIENCE, "blocked callbacks", || {
        let runtime = runtime(3);
        let (timers, entered, gate) = blocking(&runtime, BLOCKED);
        eventually("all are blocked", || entered.get() == BLOCKED);
        let threads = runtime.metrics().threads.alive;
        assert!(threads <= BLOCKED + 3, "{threads} threads");
        gate.open();
        drop(timers);
        runtime.shutdown(PATIENCE).expect("all return");
    });
}

/// Callbacks that compute for longer than the pool waits before it looks: these threads are not
/// blocked, and are not replaced.
#[test]
fn s31_overload_does_not_add_threads() {
    const CALLBACKS: usize = 200;
    const WORKERS: usize = 3;
    within(2 * PATIENCE, "overload", || {
        let runtime = runtime(WORKERS);
        let ended = Count::new();
        let start = |_| {
            let ended = ended.clone();
            Timer::on(&runtime, ms(1), NEVER, move |_| {
                work(ms(2));
                ended.bump();
            })
        };
        let timers: Vec<Timer> = (0..CALLBACKS).map(start).collect();
        let mut most = 0;
        eventually("all return", || {
            most = most.max(runtime.metrics().threads.alive);
            ended.get() == CALLBACKS
        });
        // On a machine with much else to do, a callback that has lost its processor is taken for
        // one that computes for long.
        assert!(most <= WORKERS + 16, "{most} threads");
        drop(timers);
        runtime.shutdown(PATIENCE).expect("all return");
    });
}
