//! Fairness: no timer waits for long behind callbacks that block, compute, or restart themselves (S31).

use std::time::{Duration, Instant};

use timerqueue::{MissedTicks, Runtime, Timer};

use crate::support::{Count, Gate, NEVER, PATIENCE, eventually, ms, us, within};

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().queues(1).workers(workers).thread_name("tq-fair").start().expect("the system has threads")
}

/// Computes for a given time.
fn work(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A timer that restarts itself with due time zero, after some work.
fn restarts_itself(runtime: &Runtime, time: Duration) -> Timer {
    runtime.timer(Duration::ZERO, NEVER, move |tick| {
        work(time);
        let _ = tick.change(Duration::ZERO, NEVER);
    })
}

/// A timer that never catches up with its schedule.
fn overloads(runtime: &Runtime, period: Duration, time: Duration) -> Timer {
    let builder = runtime.timer_builder().due(period).period(period).missed_ticks(MissedTicks::Burst);
    builder.start_exclusive(move |_| work(time))
}

/// Checks that a hundred timers fire beside the given timers.
fn others_fire_beside(workers: usize, busy: impl FnOnce(&Runtime) -> Vec<Timer> + Send + 'static) {
    within(2 * PATIENCE, "others beside a busy timer", move || {
        let runtime = runtime(workers);
        let busy = busy(&runtime);
        eventually("it goes on", || runtime.fired() > 20);
        let fired = Count::new();
        let others: Vec<Timer> = (1..=100).map(|i| runtime.timer(us(100 * i), NEVER, fired.callback())).collect();
        eventually("the others fire", || fired.get() == 100);
        busy.iter().for_each(Timer::dispose);
        drop(others);
        runtime.shutdown(PATIENCE).expect("all return");
    });
}

#[test]
fn s31_timers_fire_beside_a_timer_that_restarts_itself_at_once() {
    others_fire_beside(2, |runtime| vec![restarts_itself(runtime, us(20))]);
}

#[test]
fn s31_timers_fire_beside_timers_that_restart_themselves_on_all_threads() {
    others_fire_beside(3, |runtime| (0..2).map(|_| restarts_itself(runtime, us(20))).collect());
}

#[test]
fn s31_timers_fire_beside_timers_that_never_catch_up() {
    others_fire_beside(3, |runtime| (0..2).map(|_| overloads(runtime, us(100), us(150))).collect());
}

#[test]
fn s31_jobs_left_behind_a_blocked_callback_are_taken_by_others_though_these_are_busy() {
    within(2 * PATIENCE, "jobs behind a blocked callback", || {
        for _ in 0..3 {
            let runtime = runtime(3);
            let busy = overloads(&runtime, us(100), us(150));
            eventually("it goes on", || runtime.fired() > 20);
            let (entered, fired, gate) = (Count::new(), Count::new(), Gate::new());
            let due = runtime.now() + ms(5);
            // All are due at the same instant; the first callback waits at the gate.
            let timers: Vec<Timer> = (0..100)
                .map(|_| {
                    let (entered, fired, gate) = (entered.clone(), fired.clone(), gate.clone());
                    runtime.timer(due - runtime.now(), NEVER, move |_| {
                        if entered.bump() == 1 {
                            gate.wait();
                        }
                        fired.bump();
                    })
                })
                .collect();
            eventually("the 99 behind it", || fired.get() == 99);
            let later = Count::new();
            let unrelated = runtime.timer(ms(1), NEVER, later.callback());
            eventually("and a later one", || later.get() == 1);
            gate.open();
            drop((timers, unrelated, busy));
            runtime.shutdown(PATIENCE).expect("all return");
        }
    });
}

/// The same at the limit of threads, where no thread can be added.
#[test]
fn s31_jobs_left_behind_a_blocked_callback_are_taken_at_the_limit_of_threads_too() {
    within(2 * PATIENCE, "jobs behind a blocked callback", || {
        let runtime = Runtime::builder().queues(1).workers(3).max_threads(3).start().expect("the system has threads");
        let busy = overloads(&runtime, us(100), us(150));
        eventually("it goes on", || runtime.fired() > 20);
        let (entered, fired, gate) = (Count::new(), Count::new(), Gate::new());
        let timers: Vec<Timer> = (0..100)
            .map(|_| {
                let (entered, fired, gate) = (entered.clone(), fired.clone(), gate.clone());
                runtime.timer(ms(5), NEVER, move |_| {
                    if entered.bump() == 1 {
                        gate.wait();
                    }
                    fired.bump();
                })
            })
            .collect();
        eventually("the 99 behind it", || fired.get() == 99);
        gate.open();
        drop((timers, busy));
        runtime.shutdown(PATIENCE).expect("all return");
    });
}

/// Many callbacks that sleep for a short time each: the backlog is worked off while they keep coming.
#[test]
fn s31_a_flood_of_callbacks_that_sleep_for_a_short_time() {
    within(2 * PATIENCE, "a flood", || {
        let runtime = runtime(3);
        let begun = Count::new();
        // Twenty timers of 4 ms that sleep for 0.6 ms each: three threads' worth of sleep.
        let flood: Vec<Timer> = (0..20)
            .map(|_| {
                let begun = begun.clone();
                let builder = runtime.timer_builder().period(ms(4)).missed_ticks(MissedTicks::Burst);
                builder.start(move |_| {
                    begun.bump();
                    std::thread::sleep(us(600));
                })
            })
            .collect();
        // Every tick is run (`Burst`), so a pool that keeps up has begun what is due.
        let from = Instant::now();
        eventually("the pool keeps up", || {
            let due = 20 * (from.elapsed().as_millis() as usize / 4);
            from.elapsed() > ms(500) && begun.get() + 100 > due
        });
        flood.iter().for_each(Timer::dispose);
        assert!(runtime.threads() <= 80, "{} threads", runtime.threads());
        runtime.shutdown(PATIENCE).expect("all return");
    });
}

/// Callbacks that block are given a thread each, and few more.
#[test]
fn s31_threads_for_callbacks_that_block_are_not_many_more_than_these() {
    within(2 * PATIENCE, "blocked callbacks", || {
        const BLOCKED: usize = 40;
        let runtime = runtime(3);
        let (timers, entered, gate) = crate::support::blocking(&runtime, BLOCKED);
        eventually("all are blocked", || entered.get() == BLOCKED);
        assert!(runtime.threads() <= BLOCKED + 3 + BLOCKED / 4, "{} threads", runtime.threads());
        gate.open();
        drop(timers);
        runtime.shutdown(PATIENCE).expect("all return");
    });
}

/// Callbacks that compute more than the processors can: more threads would not help.
#[test]
fn s31_overload_does_not_add_threads() {
    within(2 * PATIENCE, "overload", || {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = runtime(cores + 1);
        let timers: Vec<Timer> = (0..2 * cores).map(|_| overloads(&runtime, us(100), us(200))).collect();
        eventually("it goes on", || runtime.fired() > 2_000);
        // On a busy machine, a callback that has lost its CPU looks like a callback that computes for long.
        assert!(runtime.threads() <= cores + 1 + 16, "{} threads", runtime.threads());
        drop(timers);
        runtime.shutdown(PATIENCE).expect("all return");
    });
}
