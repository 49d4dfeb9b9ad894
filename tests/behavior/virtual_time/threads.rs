//! A manual clock used by several threads: shutdown, and clocks that wait for each other.

use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use timerqueue::{CancellationToken, CancellationTokenSource, Delay, ManualClock, OnceTimer, Runtime, Tick};

use crate::support::{Count, Gate, NEVER, PATIENCE, eventually, lock, manual, ms, secs, within};

#[test]
fn s33_shutdown_awaits_a_callback_that_another_thread_runs() {
    within(PATIENCE, "a shutdown beside an advance", || {
        let (clock, runtime) = manual();
        let (entered, gate, ended) = (Gate::new(), Gate::new(), Count::new());
        let timer = OnceTimer::on(&runtime, ms(1), {
            let (entered, gate, ended) = (entered.clone(), gate.clone(), ended.clone());
            move |_| {
                entered.open();
                gate.wait();
                thread::sleep(ms(50));
                ended.bump();
            }
        });
        let driver = thread::spawn(move || clock.advance(secs(1)));
        entered.wait();
        let error = runtime.shutdown(ms(5)).expect_err("it runs");
        assert!(error.to_string().contains('1') && ended.get() == 0, "{error}");
        gate.open();
        runtime.shutdown(PATIENCE).expect("it returns in time");
        assert_eq!(ended.get(), 1, "and has been awaited");
        assert_eq!(driver.join().expect("no panic"), 1);
        drop(timer);
    });
}

#[test]
fn s33_shutdown_inside_of_a_callback_does_not_wait_for_it() {
    let (clock, runtime) = manual();
    let (send, receive) = mpsc::channel();
    let inner = runtime.clone();
    let timer = OnceTimer::on(&runtime, ms(1), move |_| {
        let begun = Instant::now();
        let ended = inner.shutdown(secs(3600));
        send.send((ended.is_ok(), begun.elapsed())).expect("the test listens");
    });
    assert_eq!(within(PATIENCE, "a shutdown in a callback", move || clock.advance(ms(1))), 1);
    assert!(receive.recv().is_ok_and(|(ended, took)| ended && took < secs(60)));
    drop(timer);
}

/// A circle of threads: each drives a clock, and a callback of this clock moves the next thread's
/// clock.
fn circle(clocks: usize, moves: fn(&ManualClock, &Runtime)) {
    let clocks: Vec<(ManualClock, Runtime)> = (0..clocks).map(|_| manual()).collect();
    let inside: Vec<Gate> = clocks.iter().map(|_| Gate::new()).collect();
    let begun = Arc::new(Mutex::new(0));
    let mut threads = Vec::new();
    for (i, (clock, runtime)) in clocks.iter().enumerate() {
        let (next, of_next) = clocks[(i + 1) % clocks.len()].clone();
        let (inside, begun) = (inside.clone(), Arc::clone(&begun));
        OnceTimer::on(runtime, ms(1), move |_| {
            *lock(&begun) += 1;
            inside[i].open();
            inside.iter().for_each(Gate::wait);
            moves(&next, &of_next);
        })
        .detach();
        let clock = clock.clone();
        threads.push(thread::spawn(move || clock.advance(ms(1))));
    }
    let ran: u64 = threads.into_iter().map(|thread| thread.join().expect("callbacks are contained")).sum();
    assert_eq!((ran, *lock(&begun)), (clocks.len() as u64, clocks.len()));
    let panics: u64 = clocks.iter().map(|(_, runtime)| runtime.metrics().panics).sum();
    assert_eq!(panics, 1, "the one that would have closed the circle");
    // All of them go on.
    for (clock, runtime) in &clocks {
        let timer = OnceTimer::on(runtime, ms(1), |_| {});
        assert_eq!(clock.advance(ms(1)), 1);
        drop(timer);
    }
}

#[test]
fn s12_clocks_whose_callbacks_advance_each_other_panic_and_do_not_hang() {
    for clocks in [2, 3] {
        within(PATIENCE, "clocks that advance each other", move || circle(clocks, |next, _| _ = next.advance(ms(1))));
    }
}

#[test]
fn s57_clocks_whose_callbacks_run_futures_on_each_other_panic_and_do_not_hang() {
    type Moves = fn(&ManualClock, &Runtime);
    let blocks: Moves = |next, of_next| next.block_on(Delay::on(of_next, ms(1)));
    let waits: Moves = |_, of_next| of_next.enter(|| CancellationToken::none().wait_timeout(ms(1)).expect("no source"));
    let runs: Moves = |next, of_next| smol::block_on(next.run(Delay::on(of_next, ms(1))));
    for moves in [blocks, waits, runs] {
        for clocks in [2, 3] {
            within(PATIENCE, "clocks that wait for each other", move || circle(clocks, moves));
        }
    }
}

/// A future that does not wait for time does not wait for the driver of the clock either.
#[test]
fn s57_a_future_that_another_thread_wakes_may_wait_in_a_circle_of_clocks() {
    within(PATIENCE, "clocks without timers", || {
        let sides = [manual(), manual()];
        let source = CancellationTokenSource::on(&sides[0].1);
        let (entered, both) = (Count::new(), Arc::new(Barrier::new(2)));
        let drivers: Vec<_> = (0..2)
            .map(|side| {
                let (other, token) = (sides[1 - side].0.clone(), source.token());
                let (entered, both) = (entered.clone(), Arc::clone(&both));
                let callback = move |_: &Tick<'_>| {
                    both.wait();
                    entered.bump();
                    other.block_on(token.cancelled());
                };
                OnceTimer::on(&sides[side].1, ms(1), callback).detach();
                let clock = sides[side].0.clone();
                thread::spawn(move || clock.advance(ms(1)))
            })
            .collect();
        eventually("both wait", || entered.get() == 2);
        thread::sleep(ms(10));
        source.cancel();
        assert!(drivers.into_iter().all(|driver| driver.join().expect("no panic") == 1));
        assert!(sides.iter().all(|(_, runtime)| runtime.metrics().panics == 0));
    });
}

#[test]
fn s51_a_callback_that_waits_for_another_clock_that_does_not_wait_for_it_goes_on() {
    within(PATIENCE, "a clock that waits for another one", || {
        let ((one, first), (other, second)) = (manual(), manual());
        let (entered, gate) = (Gate::new(), Gate::new());
        let (enters, opens) = (entered.clone(), gate.clone());
        let long = OnceTimer::on(&second, ms(1), move |_| {
            enters.open();
            opens.wait();
        });
        let driver = thread::spawn({
            let other = other.clone();
            move || other.advance(ms(1))
        });
        entered.wait();
        let waits = OnceTimer::on(&first, ms(1), move |_| {
            gate.open();
            assert_eq!(other.advance(Duration::ZERO), 0);
        });
        assert_eq!((one.advance(ms(1)), driver.join().expect("no panic")), (1, 1));
        assert_eq!((first.metrics().panics, second.metrics().panics, one.advance(NEVER)), (0, 0, 0));
        drop((long, waits));
    });
}
