//! A manual clock that advances while a future waits (S57).

use super::*;

#[test]
fn s57_the_clock_advances_when_every_task_waits_and_only_then() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let executor = smol::LocalExecutor::new();
    for (name, every) in [("slow", 7), ("fast", 2)] {
        let (clock, runtime, journal) = (clock.clone(), &runtime, journal.clone());
        let task = executor.spawn(async move {
            for _ in 0..3 {
                Delay::on(runtime, secs(every)).await;
                journal.push((name, clock.now().as_duration()));
                // As long as a task can go on, no time passes.
                let before = clock.now();
                for _ in 0..10 {
                    smol::future::yield_now().await;
                }
                assert_eq!(clock.now(), before);
            }
        });
        task.detach();
    }
    clock.block_on(async {
        while !executor.is_empty() {
            executor.tick().await;
        }
    });
    let want = [("fast", 2), ("fast", 4), ("fast", 6), ("slow", 7), ("slow", 14), ("slow", 21)];
    assert_eq!(journal.take(), want.map(|(name, at)| (name, secs(at))));
    assert_eq!(clock.now().as_duration(), secs(21), "and stands still afterwards");
}

#[test]
fn s57_a_future_that_wakes_itself_does_not_wait() {
    let (clock, runtime) = manual();
    let timer = OnceTimer::on(&runtime, secs(1), |_| {});
    clock.block_on(async {
        for _ in 0..10 {
            smol::future::yield_now().await;
            assert_eq!(clock.now().as_duration(), ns(0));
        }
    });
    drop(timer);
}

#[test]
fn s57_without_auto_advance_the_clock_waits_for_a_thread_that_advances_it() {
    let (clock, runtime) = manual();
    clock.set_auto_advance(false);
    let mut delay = Delay::on(&runtime, secs(5));
    let (hands, gate) = (clock.clone(), Gate::new());
    let opened = gate.clone();
    let other = thread::spawn(move || {
        opened.wait();
        // The second thread waits already or is about to; in both cases it must be woken.
        (0..5).map(|_| hands.advance(secs(1))).sum::<u64>()
    });
    let filed = std::future::poll_fn(|cx| {
        let polled = Pin::new(&mut delay).poll(cx);
        gate.open();
        polled
    });
    clock.block_on(filed);
    assert_eq!(clock.now().as_duration(), secs(5));
    assert_eq!(other.join().unwrap(), 1);
    clock.set_auto_advance(true);
    clock.block_on(Delay::on(&runtime, secs(5)));
    assert_eq!(clock.now().as_duration(), secs(10));
}

#[test]
fn s57_without_timers_it_waits_for_another_thread_and_the_clock_stands() {
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    let never = Delay::on(&runtime, NEVER);
    let token = source.token();
    let other = thread::spawn(move || {
        thread::sleep(ms(20));
        source.cancel();
    });
    // A delay without an end is no reason to go to the end of the clock.
    clock.block_on(never.with_token(&token)).expect_err("cancelled");
    assert_eq!(clock.now().as_duration(), ns(0));
    other.join().unwrap();
}

#[test]
fn s57_a_callback_may_run_a_future_on_its_own_clock() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let (hands, seen, inner) = (clock.clone(), journal.clone(), runtime.clone());
    let timer = OnceTimer::on(&runtime, secs(1), move |_| {
        hands.block_on(Delay::on(&inner, secs(10)));
        seen.push(hands.now().as_duration());
    });
    assert_eq!(clock.advance(secs(2)), 2, "the timer, and the waker of the delay");
    assert_eq!((journal.take(), clock.now().as_duration()), (vec![secs(11)], secs(11)));
    assert_eq!(runtime.metrics().fired(), 2);
    drop(timer);
}

#[test]
fn s57_callbacks_that_wait_inside_one_another_are_bounded_and_end_last_in_first_out() {
    let (clock, runtime) = manual();
    let (begun, ended) = (Journal::new(), Journal::new());
    let (hands, inner, begins, ends) = (clock.clone(), runtime.clone(), begun.clone(), ended.clone());
    // The next callback begins before the previous callback has waited long enough.
    let timer = Timer::on(&runtime, secs(1), secs(1), move |tick| {
        let at = tick.scheduled();
        begins.push(at);
        hands.block_on(Delay::on(&inner, ms(1_500)));
        ends.push(at);
    });
    clock.advance(secs(1));
    let (begun, mut ended) = (begun.take(), ended.take());
    assert_eq!((begun.len(), ended.len()), (101, 100), "one has found the stack too deep");
    assert_eq!(runtime.metrics().panics, 1);
    ended.reverse();
    assert_eq!(ended, begun[..100]);
    // And the clock goes on.
    timer.dispose();
    let later = OnceTimer::on(&runtime, secs(1), |_| {});
    assert_eq!(clock.advance(secs(1)), 1);
    drop(later);
}

/// S8, S9. The backlog of a timer, and the ticks that come due during the wait.
#[test]
fn s57_a_callback_that_waits_does_not_keep_the_ticks_of_its_timer() {
    let (clock, runtime) = manual();
    let begun = Journal::new();
    let timer = TimerBuilder::on(&runtime).due(secs(1)).period(secs(1)).missed_ticks(MissedTicks::Burst).start({
        let (clock, runtime, begun) = (clock.clone(), runtime.clone(), begun.clone());
        move |tick| {
            begun.push((tick.scheduled().as_duration(), clock.now().as_duration()));
            if tick.scheduled().as_duration() == secs(1) {
                clock.block_on(Delay::on(&runtime, secs(10)));
                begun.push((secs(0), clock.now().as_duration()));
            }
        }
    });
    clock.stall(secs(3));
    clock.advance(ns(0));
    let ticks = (1..=13).map(|at| (secs(at), secs(at.max(3))));
    let want: Vec<_> = ticks.chain([(secs(0), secs(13))]).collect();
    assert_eq!((begun.take(), runtime.metrics().panics), (want, 0));
    drop(timer);
}

/// The bound holds for each clock, also where callbacks of two clocks wait inside each other in
/// turn.
#[test]
fn s57_callbacks_of_two_clocks_that_drive_each_other_are_bounded() {
    let sides = [manual(), manual()];
    let running: [Arc<(AtomicUsize, AtomicUsize)>; 2] = Default::default();
    let timers: Vec<Timer> = (0..2)
        .map(|side| {
            let ((other, there), running) = (sides[1 - side].clone(), Arc::clone(&running[side]));
            Timer::on(&sides[side].1, secs(1), secs(1), move |_| {
                let now = running.0.fetch_add(1, Ordering::Relaxed) + 1;
                running.1.fetch_max(now, Ordering::Relaxed);
                let panicked = catch_unwind(AssertUnwindSafe(|| other.block_on(Delay::on(&there, ms(1_500)))));
                running.0.fetch_sub(1, Ordering::Relaxed);
                panicked.map_or_else(|panic| resume_unwind(panic), drop);
            })
        })
        .collect();
    // The stack is deep, so the thread has a large stack.
    let deep = thread::Builder::new().stack_size(64 << 20);
    let clock = sides[0].0.clone();
    let driver = deep.spawn(move || clock.advance(secs(1))).expect("a thread");
    within(2 * PATIENCE, "the clocks", move || driver.join()).expect("no panic but those of callbacks");
    for (side, running) in running.iter().enumerate() {
        let (now, most) = (running.0.load(Ordering::Relaxed), running.1.load(Ordering::Relaxed));
        assert_eq!(now, 0, "all have ended");
        assert!((50..=102).contains(&most), "clock {side}: {most} at once");
    }
    drop(timers);
}

#[test]
fn s57_in_a_callback_the_clock_goes_as_far_as_it_has_been_told_to() {
    let (clock, runtime) = manual();
    clock.set_auto_advance(false);
    let journal = Journal::new();
    let (hands, seen, inner) = (clock.clone(), journal.clone(), runtime.clone());
    let timer = OnceTimer::on(&runtime, secs(1), move |_| {
        // Within the advance that runs this callback.
        hands.block_on(Delay::on(&inner, secs(1)));
        seen.push(hands.now().as_duration());
        // Beyond this advance.
        hands.block_on(async {
            let delay = Delay::on(&inner, secs(5));
            assert_eq!(hands.advance(secs(5)), 0);
            delay.await;
        });
        seen.push(hands.now().as_duration());
    });
    let hands = clock.clone();
    assert_eq!(within(PATIENCE, "no other thread moves the clock", move || hands.advance(secs(3))), 3);
    assert_eq!((journal.take(), clock.now().as_duration()), (vec![secs(2), secs(7)], secs(8)));
    drop(timer);
}

#[test]
fn s57_a_future_in_a_callback_waits_for_timers_due_at_the_same_instant() {
    let (clock, runtime) = manual();
    let (send, receive) = mpsc::channel();
    let told = CancellationTokenSource::on(&runtime);
    let (hands, token) = (clock.clone(), told.token());
    let first = OnceTimer::on(&runtime, secs(1), move |tick| {
        hands.block_on(token.cancelled());
        send.send(tick.now()).expect("the test listens");
    });
    // A timer swept together with the first.
    let second = OnceTimer::on(&runtime, secs(1), move |_| {
        told.cancel();
    });
    let heartbeat = Timer::on(&runtime, secs(60), secs(60), |_| {});
    clock.advance(secs(2));
    assert_eq!(receive.try_recv().map(|at| at.as_duration()), Ok(secs(1)), "no time has passed");
    drop((first, second, heartbeat));
}

#[test]
fn s57_a_delay_without_end_has_none_after_a_suspend_either() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).clock(RuntimeClock::Boot).start().expect("nothing to refuse");
    clock.suspend(secs(1));
    let source = CancellationTokenSource::on(&runtime);
    source.try_cancel_after(secs(5)).expect("it runs");
    clock.block_on(Delay::on(&runtime, NEVER).with_token(&source.token())).expect_err("cancelled");
    assert_eq!(clock.now().as_duration(), secs(5));
}

#[test]
fn s57_a_clock_that_is_told_to_go_while_a_future_waits_goes() {
    let (clock, runtime) = manual();
    clock.set_auto_advance(false);
    let hands = clock.clone();
    let other = thread::spawn(move || {
        thread::sleep(ms(20));
        hands.set_auto_advance(true);
    });
    clock.block_on(Delay::on(&runtime, secs(5)));
    other.join().unwrap();
}
