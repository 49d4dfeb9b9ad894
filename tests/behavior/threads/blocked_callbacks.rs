//! Blocked callbacks: they delay no further timer; threads are added and retire (S31).

use std::sync::mpsc;
use std::time::Duration;

use crate::support::process::threads_named;
use crate::support::{Count, Gate, NEVER, PATIENCE, eventually, ms, us, within};
use timerqueue::{OnceTimer, Runtime, Timer, Waited};

#[test]
fn s31_callbacks_that_block_delay_no_other_timer() {
    within(2 * PATIENCE, "timers beside blocked callbacks", || {
        let runtime =
            Runtime::builder().queues(2).workers(2).thread_name("tq-s31").start().expect("the system has threads");
        let (entered, gate) = (Count::new(), Gate::new());
        let block = || {
            let (entered, gate) = (entered.clone(), gate.clone());
            move |_: &timerqueue::Tick<'_>| {
                entered.bump();
                gate.wait();
            }
        };
        let mut blocked = Vec::new();
        // In turn, all at once from a sweep, and all at once from outside.
        for k in 0..8 {
            blocked.push(OnceTimer::on(&runtime, ms(1), block()));
            eventually("one by one", || entered.get() > k);
        }
        blocked.extend((0..30).map(|_| OnceTimer::on(&runtime, ms(5), block())));
        eventually("from a sweep", || entered.get() == 38);
        blocked.extend((0..30).map(|_| OnceTimer::on(&runtime, Duration::ZERO, block())));
        eventually("from outside", || entered.get() == 68);
        let ticks = Count::new();
        let free = Timer::on(&runtime, ms(1), ms(1), ticks.callback());
        let (send, receive) = mpsc::channel();
        for due in [0, 1, 10, 340] {
            let send = send.clone();
            OnceTimer::on(&runtime, ms(due), move |_| send.send(due).expect("the test listens")).detach();
        }
        // In no order that is promised.
        let mut seen: Vec<u64> = (0..4).map(|_| receive.recv_timeout(PATIENCE).expect("fires")).collect();
        seen.sort();
        assert_eq!(seen, [0, 1, 10, 340]);
        eventually("100 ticks", || ticks.get() >= 100);
        gate.open();
        drop((blocked, free));
        runtime.shutdown(PATIENCE).expect("all return");
    });
}

#[test]
fn s31_threads_are_added_up_to_a_limit() {
    within(2 * PATIENCE, "the limit of threads", || {
        let runtime = Runtime::builder()
            .queues(1)
            .workers(2)
            .max_threads(5)
            .keep_alive(ms(50))
            .thread_name("tq-limit")
            .start()
            .expect("the system has threads");
        let (entered, gate) = (Count::new(), Gate::new());
        let blocked: Vec<_> = (0..20)
            .map(|_| {
                let (entered, gate) = (entered.clone(), gate.clone());
                OnceTimer::on(&runtime, ms(1), move |_| {
                    entered.bump();
                    gate.wait();
                })
            })
            .collect();
        // One of the five threads polls; the rest may be blocked.
        eventually("as many as there may be", || entered.get() == 4);
        assert_eq!((runtime.metrics().threads.alive, threads_named("tq-limit")), (5, 5));
        let (send, receive) = mpsc::channel();
        let waiting = OnceTimer::on(&runtime, Duration::ZERO, move |_| send.send(()).expect("the test listens"));
        assert!(receive.recv_timeout(ms(100)).is_err(), "all threads there may be are blocked: due timers wait");
        assert_eq!((entered.get(), runtime.metrics().threads.alive), (4, 5));
        gate.open();
        receive.recv_timeout(PATIENCE).expect("and run when one comes back");
        eventually("all have run", || entered.get() == 20);
        eventually("threads beyond the workers end when they are idle", || threads_named("tq-limit") == 2);
        assert_eq!(runtime.metrics().threads.alive, 2);
        drop((blocked, waiting));
    });
}

#[test]
fn s31_idle_threads_take_over_at_the_limit_too() {
    within(2 * PATIENCE, "callbacks behind a blocked one", || {
        // No thread can be added; three of the four are idle.
        let runtime = Runtime::builder().queues(1).workers(4).max_threads(4).start().expect("the system has threads");
        for round in 0..20 {
            // The pool has learnt that callbacks here are quick, and may want to run a few on one
            // thread.
            let quick = Count::new();
            let timers: Vec<Timer> =
                (0..50).map(|i| Timer::on(&runtime, us(20 * i), NEVER, quick.callback())).collect();
            eventually("quick ones", || quick.get() == 50);
            drop(timers);
            let (met, gate) = (Count::new(), Gate::new());
            let at = runtime.now() + ms(3);
            let timers: Vec<Timer> = (0..3)
                .map(|_| {
                    let (met, gate) = (met.clone(), gate.clone());
                    Timer::on(&runtime, at - runtime.now(), NEVER, move |_| {
                        // None returns before all have begun.
                        if met.bump() == 3 {
                            gate.open();
                        }
                        gate.wait();
                    })
                })
                .collect();
            eventually("three at the same time", || met.get() == 3);
            for timer in &timers {
                assert_eq!(timer.dispose_and_wait(), Waited::Ended, "round {round}");
            }
        }
    });
}

/// Waves of blocked callbacks, so that threads come and go.
fn waves(keep_alive: Duration) {
    within(2 * PATIENCE, "waves of blocked callbacks", move || {
        let runtime =
            Runtime::builder().queues(1).workers(2).keep_alive(keep_alive).start().expect("the system has threads");
        for wave in 0..5 {
            let (entered, gate) = (Count::new(), Gate::new());
            let timers: Vec<_> = (0..10)
                .map(|_| {
                    let (entered, gate) = (entered.clone(), gate.clone());
                    OnceTimer::on(&runtime, Duration::ZERO, move |_| {
                        entered.bump();
                        gate.wait();
                    })
                })
                .collect();
            eventually("the wave", || entered.get() == 10);
            gate.open();
            for timer in &timers {
                assert_eq!(timer.dispose_and_wait(), Waited::Ended, "wave {wave}");
            }
        }
        runtime.shutdown(PATIENCE).expect("all threads end");
    });
}

#[test]
fn s31_threads_come_and_go_again_and_again() {
    waves(Duration::ZERO);
    waves(ms(1));
}

#[test]
fn s31_threads_may_stay_for_ever() {
    waves(NEVER);
}

/// A retired thread counts as a thread until the destructors of its thread-local values have run.
#[test]
fn s31_the_limit_counts_threads_whose_destructors_run() {
    struct Slow;
    impl Drop for Slow {
        fn drop(&mut self) {
            std::thread::sleep(ms(1_000));
        }
    }
    thread_local!(static SLOW: std::cell::RefCell<Option<Slow>> = const { std::cell::RefCell::new(None) });
    const LIMIT: usize = 6;
    const ROUNDS: u64 = 40;
    within(2 * PATIENCE, "threads that take long to end", || {
        let builder = Runtime::builder().queues(1).workers(2).max_threads(LIMIT).keep_alive(Duration::ZERO);
        let runtime = builder.start().expect("the system has threads");
        let (ran, mut most) = (Count::new(), 0);
        for _ in 0..ROUNDS {
            for _ in 0..12 {
                let ran = ran.clone();
                let callback = move |_: &timerqueue::Tick<'_>| {
                    SLOW.with(|slow| _ = slow.borrow_mut().get_or_insert_with(|| Slow));
                    std::thread::sleep(ms(8));
                    ran.bump();
                };
                OnceTimer::on(&runtime, Duration::ZERO, callback).detach();
            }
            std::thread::sleep(ms(25));
            most = most.max(runtime.metrics().threads.alive);
        }
        eventually("all have run", || ran.get() as u64 == 12 * ROUNDS);
        assert!(most <= LIMIT, "{most} threads");
    });
}
