//! Plain threads that take their time from a runtime: blocking ticks and sleeps (S83).

use std::thread;
use std::time::{Duration, Instant};

use timerqueue::{
    Interval, ManualClock, MissedTicks, OnceTimer, Runtime, RuntimeClock, TimerBuilder, Timestamp, error::RuntimeError,
    thread as own_thread,
};

use crate::support::{Count, Journal, PATIENCE, eventually, manual, ms, native, ns, secs, us, within};

fn zero() -> Timestamp {
    ManualClock::new().now()
}

#[test]
fn s83_a_thread_takes_the_ticks_of_an_interval_on_virtual_time() {
    let (clock, runtime) = manual();
    let other = Count::new();
    let timer = TimerBuilder::on(&runtime).period(ms(2)).start_exclusive({
        let other = other.clone();
        move |_| _ = other.bump()
    });
    let mut seen = Vec::new();
    runtime.enter(|| {
        let mut interval = Interval::new(ms(5));
        while seen.len() < 3 {
            let tick = interval.blocking_tick().expect("goes on");
            seen.push((tick.scheduled().as_duration(), tick.missed()));
            if seen.len() == 2 {
                clock.stall(ms(12)); // the step takes long
            }
        }
        assert_eq!(interval.next_due(), Some(clock.now() + ms(3)), "on the grid");
    });
    assert_eq!(seen, [(ms(5), 0), (ms(10), 0), (ms(15), 1)]);
    // The other timers of the clock fire meanwhile.
    assert!(other.get() >= 5, "{}", other.get());
    drop(timer);
}

#[test]
fn s83_a_blocking_tick_ends_with_a_stop_and_with_its_runtime() {
    let (clock, runtime) = manual();
    let mut interval = Interval::on(&runtime, secs(1)).missed_ticks(MissedTicks::Burst);
    let handle = interval.stop_handle();
    let timer = OnceTimer::on(&runtime, ms(2_500), move |_| handle.stop());
    let ticks = runtime.enter(|| std::iter::from_fn(|| interval.blocking_tick()).count());
    assert_eq!((ticks, clock.now().as_duration()), (2, ms(2_500)));
    assert_eq!(interval.blocking_tick(), None, "for good");
    drop(timer);
    // In real time, by another thread, within an hour's wait.
    for ends in [false, true] {
        let runtime = native();
        let mut interval = Interval::on(&runtime, secs(3600));
        let handle = interval.stop_handle();
        let waits = thread::spawn(move || interval.blocking_tick());
        thread::sleep(ms(2)); // whether it waits already or not, it ends
        if ends {
            runtime.shutdown(PATIENCE).expect("nothing runs");
        } else {
            handle.stop();
        }
        assert_eq!(within(PATIENCE, "the wait ends", move || waits.join().expect("no panic")), None);
    }
    // A runtime that has ended has no further tick, but those due before.
    let mut interval = Interval::on(&runtime, ms(10));
    clock.advance(ms(15));
    runtime.shutdown(secs(1)).expect("nothing runs");
    clock.advance(ms(100));
    assert!(interval.blocking_tick().is_some());
    assert_eq!(interval.blocking_tick(), None);
}

#[test]
fn s83_a_blocking_tick_waits_for_the_thread_that_moves_the_clock() {
    let (clock, runtime) = manual();
    let mut interval = Interval::on(&runtime, secs(1));
    let waits = thread::spawn(move || [(); 3].map(|()| interval.blocking_tick().expect("goes on").scheduled()));
    let begun = Instant::now();
    while !waits.is_finished() {
        clock.advance(ms(100));
        assert!(begun.elapsed() < PATIENCE);
    }
    let ticks = waits.join().expect("no panic");
    assert!(ticks.is_sorted() && ticks[0] == zero() + secs(1), "{ticks:?}");
}

#[test]
fn s83_a_sleep_moves_the_clock_to_its_deadline() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timer = TimerBuilder::on(&runtime).period(secs(1)).start_exclusive({
        let (journal, clock) = (journal.clone(), clock.clone());
        move |_| journal.push(clock.now().as_duration())
    });
    runtime.enter(|| {
        own_thread::sleep(ms(2_500)).expect("goes on");
        assert_eq!((clock.now().as_duration(), journal.take()), (ms(2_500), vec![secs(1), secs(2)]));
        own_thread::sleep_until(zero()).expect("has passed");
        own_thread::sleep(Duration::ZERO).expect("has passed");
        assert_eq!(clock.now().as_duration(), ms(2_500));
        let at = runtime.instant(clock.now() + secs(1)).expect("can be expressed");
        own_thread::sleep_until(at).expect("goes on");
        assert_eq!(clock.now().as_duration(), ms(3_500));
    });
    drop(timer);
    // In a callback, and to the end of the runtime.
    let timer = OnceTimer::on(&runtime, secs(1), {
        let journal = journal.clone();
        move |tick| {
            own_thread::sleep(secs(5)).expect("goes on");
            journal.push(tick.now().as_duration());
        }
    });
    journal.take();
    clock.advance(secs(1));
    assert_eq!(journal.take(), [ms(9_500)]);
    drop(timer);
    let ends = runtime.clone();
    let timer = OnceTimer::on(&runtime, secs(1), move |_| _ = ends.shutdown(Duration::ZERO));
    let slept = runtime.enter(|| own_thread::sleep(secs(10)));
    assert!(matches!(slept, Err(RuntimeError::Ended)), "{slept:?}");
    assert_eq!(clock.now().as_duration(), ms(10_500));
    drop(timer);
}

#[test]
fn s83_in_real_time_a_sleep_is_never_early_and_ends_with_its_runtime() {
    for builder in [Runtime::builder(), Runtime::builder().clock(RuntimeClock::Boot)] {
        let runtime = match builder.queues(1).workers(2).start() {
            Err(timerqueue::error::StartError::NoBootClock) => continue,
            started => started.expect("the system has threads"),
        };
        runtime.enter(|| {
            for length in [Duration::ZERO, ns(1), us(100), ms(1)] {
                let (begun, deadline) = (Instant::now(), runtime.now() + length);
                own_thread::sleep_until(deadline).expect("goes on");
                assert!(runtime.now() >= deadline && begun.elapsed() >= length);
            }
            let mut interval = Interval::new(ms(1));
            for _ in 0..5 {
                let tick = interval.blocking_tick().expect("goes on");
                assert!(runtime.now() >= tick.scheduled());
            }
        });
        let sleeps = thread::spawn({
            let runtime = runtime.clone();
            move || runtime.enter(|| own_thread::sleep(Duration::MAX))
        });
        eventually("it sleeps", || runtime.metrics().created >= 1 || sleeps.is_finished());
        runtime.shutdown(PATIENCE).expect("nothing runs");
        let slept = within(PATIENCE, "the sleep ends", move || sleeps.join().expect("no panic"));
        assert!(matches!(slept, Err(RuntimeError::Ended)), "{slept:?}");
    }
}

/// Neither a manual clock that is not the interval's, nor any for a tick of real time.
#[test]
fn s83_a_sleep_on_one_clock_moves_no_other() {
    let [(one, runtime), (other, beside)] = [manual(), manual()];
    runtime.enter(|| own_thread::sleep(secs(1))).expect("goes on");
    assert_eq!((one.now().as_duration(), other.now()), (secs(1), zero()));
    let mut interval = Interval::on(&runtime, secs(1));
    let elsewhere = beside.clone();
    let waits = thread::spawn(move || elsewhere.enter(|| interval.blocking_tick()));
    let ticks = TimerBuilder::on(&beside).period(secs(1)).start_exclusive(|_| {});
    thread::sleep(ms(5));
    assert_eq!(other.now(), zero(), "the clock of the current runtime stands");
    one.advance(secs(1));
    assert!(within(PATIENCE, "the tick comes", move || waits.join().expect("no panic")).is_some());
    drop(ticks);
    let real = native();
    let mut interval = Interval::on(&real, ms(1));
    assert!(runtime.enter(|| interval.blocking_tick()).is_some());
    assert_eq!(one.now().as_duration(), secs(2), "a tick of real time moves no clock");
}
