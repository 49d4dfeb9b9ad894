//! Delays on a runtime that ends, or did not start (S33, S34).

use super::*;
use crate::support::child::in_child;

#[test]
fn s33_a_pending_delay_learns_that_its_runtime_was_shut_down() {
    let (clock, runtime) = manual();
    let counters = [CountingWaker::new(), CountingWaker::new(), CountingWaker::new(), CountingWaker::new()];
    let mut polled = Delay::on(&runtime, secs(1));
    let mut endless = Delay::on(&runtime, NEVER);
    let mut moved = Delay::on(&runtime, secs(1));
    let mut unpolled = Delay::on(&runtime, secs(1));
    let mut passed = Delay::on(&runtime, ms(1));
    assert!(poll(&mut polled, &counters[0]).is_pending());
    assert!(poll(&mut endless, &counters[1]).is_pending());
    assert!(poll(&mut moved, &counters[2]).is_pending());
    moved.reset(secs(2));
    clock.advance(ms(1));
    runtime.shutdown(PATIENCE).expect("no callback runs");
    assert_eq!(counters.each_ref().map(CountingWaker::wakes), [1, 1, 1, 0], "all waiting tasks are told");
    assert!(has_ended(&mut polled, &counters[0]));
    assert!(has_ended(&mut endless, &counters[1]));
    assert!(has_ended(&mut moved, &counters[2]));
    assert!(has_ended(&mut unpolled, &counters[3]), "and so is a task that polls for the first time");
    assert_eq!(poll(&mut passed, &counters[3]), READY, "what had passed has passed");
    clock.advance(secs(5));
    assert!(has_ended(&mut polled, &counters[0]) && !polled.is_elapsed(), "the time after the end does not count");
    polled.reset(secs(1));
    assert!(has_ended(&mut polled, &counters[0]));
    clock.advance(secs(5));
    assert!(has_ended(&mut polled, &counters[0]));
    polled.reset(Duration::ZERO);
    assert!(has_ended(&mut polled, &counters[0]), "not even no time at all");
    assert!(has_ended(&mut Delay::on(&runtime, Duration::ZERO), &counters[0]));
    drop((polled, endless, moved, unpolled));
    assert!(counters.iter().all(|counter| counter.kept() == 0));
}

#[test]
fn s33_a_pending_delay_learns_that_the_last_handle_of_its_runtime_was_dropped() {
    for mut runtime in [Some(manual().1), Some(native())] {
        let counter = CountingWaker::new();
        let mut delay = Delay::on(runtime.as_ref().expect("just made"), secs(3600));
        let mut unpolled = Delay::on(runtime.as_ref().expect("just made"), secs(3600));
        assert!(poll(&mut delay, &counter).is_pending());
        let clone = runtime.clone();
        runtime = None;
        assert_eq!((counter.wakes(), poll(&mut delay, &counter)), (0, Poll::Pending), "there is another one");
        drop((clone, runtime));
        assert_eq!(counter.wakes(), 1);
        assert!(has_ended(&mut delay, &counter) && has_ended(&mut unpolled, &counter));
        assert_eq!(counter.kept(), 0, "and no waker is kept");
        drop(delay);
        assert_eq!(counter.kept(), 0);
    }
}

#[test]
fn s33_a_shutdown_with_many_delays_and_wakers_that_panic() {
    let (_clock, runtime) = manual();
    let (counter, panicking) = (CountingWaker::new(), PanickingWaker::on_wake());
    let mut delays: Vec<Delay> = (0..1_000).map(|i| Delay::on(&runtime, secs(1 + i * i))).collect();
    for (i, delay) in delays.iter_mut().enumerate() {
        let waker = if i % 10 == 3 { panicking.waker() } else { counter.waker() };
        assert!(poll_with(delay, &waker).is_pending());
    }
    runtime.shutdown(PATIENCE).expect("no callback runs");
    assert_eq!((counter.wakes(), panicking.panics(), runtime.metrics().panics), (900, 100, 100));
    assert!(delays.iter_mut().all(|delay| has_ended(delay, &counter)));
}

#[test]
fn s33_a_shutdown_against_waiting_tasks_does_not_hang() {
    for round in 0..60 {
        within(PATIENCE, "waiting while the runtime is shut down", move || {
            let runtime = native();
            let ends = Journal::new();
            thread::scope(|scope| {
                for who in 0..3_u64 {
                    let (runtime, ends) = (&runtime, ends.clone());
                    scope.spawn(move || {
                        let mut random = Random(round * 10 + who);
                        let mut delay = Delay::on(runtime, Duration::ZERO);
                        loop {
                            delay.reset(us(random.below(120)));
                            if random.below(4) == 0 {
                                let _ = poll_with(&mut delay, Waker::noop());
                                delay.reset(us(random.below(120)));
                            }
                            match block_on(delay.try_wait()) {
                                Ok(()) => assert!(delay.is_elapsed()),
                                Err(error) => break ends.push(error.to_string()),
                            }
                        }
                    });
                }
                block_on(Delay::on(&runtime, us(500 + round * 31)));
                runtime.shutdown(PATIENCE).expect("no callback blocks");
            });
            assert_eq!(ends.take(), [const { "the timer runtime was shut down" }; 3]);
        });
    }
}

#[test]
fn s33_a_delay_whose_firing_was_queued_when_the_runtime_ended_is_told() {
    // One thread is blocked and the second must poll: jobs of due timers are queued, and discarded
    // by the shutdown.
    let runtime = Runtime::builder().queues(1).workers(2).max_threads(2).start().expect("the system has threads");
    let (begun, gate) = (Gate::new(), Gate::new());
    let blocking = OnceTimer::on(&runtime, Duration::ZERO, {
        let (begun, gate) = (begun.clone(), gate.clone());
        move |_| {
            begun.open();
            gate.wait();
        }
    });
    begun.wait();
    let counter = CountingWaker::new();
    let pending = || {
        let mut delay = Delay::on(&runtime, secs(3600));
        assert!(poll(&mut delay, &counter).is_pending());
        delay
    };
    // Few enough for a single lock section of a sweep, also with the cascade of a window; otherwise
    // the rest waits for a thread.
    let (mut delays, mut moved): (Vec<Delay>, _) = ((0..5).map(|_| pending()).collect(), pending());
    delays.iter_mut().for_each(|delay| delay.reset(ms(2)));
    moved.reset(ms(2));
    moved.reset(secs(3600));
    // A delay moved to later stays in its slot: the sweep of the slot inserts the delay again.
    eventually("all that are due are taken up for firing", || runtime.metrics().active <= 1);
    assert_eq!(counter.wakes(), 0, "and no thread is there to wake their tasks");
    assert!(runtime.shutdown(Duration::ZERO).is_err(), "a callback blocks");
    eventually("all tasks are told", || counter.wakes() == 6);
    assert!(delays.iter_mut().all(|delay| poll(delay, &counter) == READY));
    assert!(has_ended(&mut moved, &counter));
    gate.open();
    drop(blocking);
}

#[test]
fn s33_a_delay_that_was_moved_later_is_told_when_the_runtime_ends_as_its_old_deadline_comes() {
    let (clock, runtime) = manual();
    let ending = OnceTimer::on(&runtime, secs(1), {
        let runtime = runtime.clone();
        move |_| runtime.shutdown(PATIENCE).expect("on a manual clock there is nothing to wait for")
    });
    let counter = CountingWaker::new();
    let mut delay = Delay::on(&runtime, secs(1));
    assert!(poll(&mut delay, &counter).is_pending());
    delay.reset(secs(5));
    clock.advance(secs(1));
    assert!(counter.wakes() == 1 && has_ended(&mut delay, &counter));
    drop(ending);
}

#[test]
fn s33_a_shutdown_against_firings_that_are_handed_over_loses_no_task() {
    // A reset to "now" submits a job after it has released the queue's lock: the runtime may end in
    // between.
    within(PATIENCE, "resetting to now while the runtime is shut down", || {
        for round in 0..300 {
            let runtime = native();
            let counter = CountingWaker::new();
            let mut delays: Vec<Delay> = (0..8).map(|_| Delay::on(&runtime, secs(3600))).collect();
            assert!(delays.iter_mut().all(|delay| poll(delay, &counter).is_pending()));
            let gate = Gate::new();
            thread::scope(|scope| {
                scope.spawn(|| {
                    gate.wait();
                    for delay in &mut delays {
                        delay.reset(Duration::ZERO);
                    }
                });
                gate.open();
                let until = Instant::now() + us(round % 60);
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                runtime.shutdown(PATIENCE).expect("no callback blocks");
            });
            eventually("all tasks are told", || counter.wakes() == 8);
            drop(delays);
            assert_eq!(counter.kept(), 0);
        }
    });
}

#[test]
fn s34_without_a_default_runtime_a_delay_reports_the_reason() {
    in_child(module_path!(), "s34_without_a_default_runtime_a_delay_reports_the_reason", || {
        use crate::support::process::{limit_descriptors, open_descriptors};
        limit_descriptors(open_descriptors() as u64);
        let counter = CountingWaker::new();
        let mut delay = Delay::new(secs(3600));
        let mut passed = Delay::new(Duration::ZERO);
        let tried = delay.poll_try_wait(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(tried, Poll::Ready(Err(RuntimeError::NotStarted(StartError::Alarm(_))))), "{tried:?}");
        let said = catch_unwind(AssertUnwindSafe(|| poll(&mut delay, &counter))).expect_err("no error to give");
        let said = said.downcast::<String>().expect("a message");
        assert!(said.contains("failed to start") && said.contains("Alarm"), "with the reason: {said}");
        assert!(panics(|| poll(&mut delay.with_token(&CancellationToken::none()), &counter)));
        assert!(panics(|| poll(&mut timerqueue::timeout(secs(1), std::future::pending::<()>()), &counter)));
        assert!(panics(|| block_on(timerqueue::Interval::new(secs(1)).tick())));
        let tried = block_on(timerqueue::Interval::new(secs(1)).try_tick());
        assert!(matches!(tried, Err(RuntimeError::NotStarted(_))), "{tried:?}");
        let mut delay = Delay::new(secs(3600));
        assert_eq!(poll(&mut passed, &counter), READY, "which needs no runtime");
        let source = CancellationTokenSource::new();
        assert!(source.try_cancel_after(secs(1)).is_err() && CancellationTokenSource::try_after(secs(1)).is_err());
        assert!(source.try_cancel_after(NEVER).is_ok() && !source.is_cancelled(), "which needs none either");
        // A later try works.
        limit_descriptors(u64::MAX);
        delay.reset(ms(1));
        block_on(&mut delay);
        source.try_cancel_after(ms(1)).expect("starts");
        assert!(source.token().wait_timeout(PATIENCE).is_err());
        // After the shutdown waiting delays end with the error, and no new delay starts.
        let mut waiting = Delay::new(secs(3600));
        assert!(poll(&mut waiting, &counter).is_pending());
        Runtime::shutdown_global(PATIENCE).expect("no callback runs");
        assert!(counter.wakes() == 1 && has_ended(&mut waiting, &counter));
        assert!(has_ended(&mut Delay::new(secs(1)), &counter) && has_ended(&mut Delay::new(Duration::ZERO), &counter));
        assert!(matches!(source.try_cancel_after(secs(1)), Ok(())), "cancelled before");
        let refused = CancellationTokenSource::try_after(secs(1)).expect_err("no runtime");
        assert!(matches!(refused, RuntimeError::Ended));
    });
}

#[test]
fn s33_errors_tell_what_happened_and_are_no_timeouts() {
    fn not_started() -> RuntimeError {
        RuntimeError::NotStarted(StartError::Thread(io::ErrorKind::TimedOut.into()))
    }
    for make in [|| RuntimeError::Ended, || RuntimeError::from(StartError::ShutDown)] {
        assert!(matches!(make(), RuntimeError::Ended) && make().source().is_none());
    }
    assert!(not_started().source().is_some_and(|source| source.to_string().contains("thread")));
    for make in [(|| RuntimeError::Ended) as fn() -> RuntimeError, not_started] {
        let io = io::Error::from(make());
        assert_eq!((io.kind(), io.to_string()), (io::ErrorKind::Other, make().to_string()));
        assert!(io.get_ref().is_some_and(|inner| inner.is::<RuntimeError>()));
    }
}

#[test]
fn s33_a_loop_of_delays_on_an_ended_runtime_does_not_spin() {
    for runtime in [manual().1, native()] {
        let (counter, rounds) = (CountingWaker::new(), Count::new());
        assert!(!runtime.is_shut_down());
        runtime.shutdown(PATIENCE).expect("no callback runs");
        assert!(runtime.is_shut_down() && runtime.clone().is_shut_down());
        let mut spinning = Box::pin(async {
            loop {
                Delay::on(&runtime, ns(1)).await;
                rounds.bump();
            }
        });
        thread::sleep(ms(2));
        for _ in 0..10 {
            let polled: Poll<()> = poll(&mut spinning, &counter);
            assert!(polled.is_pending());
        }
        assert_eq!((rounds.get(), counter.wakes(), counter.kept()), (0, 0, 0));
        // The methods with a `Result` return the error at once.
        assert!(matches!(block_on(Delay::on(&runtime, secs(1)).try_wait()), Err(RuntimeError::Ended)));
        let source = CancellationTokenSource::on(&runtime);
        assert!(matches!(source.try_cancel_after(ms(1)), Err(RuntimeError::Ended)));
        assert!(source.try_cancel_after(NEVER).is_ok() && !source.is_cancelled(), "nothing to withdraw");
        assert!(source.try_cancel_after(Duration::ZERO).is_ok() && source.is_cancelled(), "needs no clock");
    }
}

#[test]
fn s33_s45_a_timed_cancel_in_force_when_its_runtime_ends_cannot_be_moved() {
    let (_clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    source.try_cancel_after(secs(1)).expect("there is time");
    runtime.shutdown(PATIENCE).expect("no callback runs");
    assert!(matches!(source.try_cancel_after(secs(2)), Err(RuntimeError::Ended)));
    assert!(source.try_cancel_after(NEVER).is_ok());
    assert!(!source.is_cancelled());
}

/// The entry of the delay has fired for an earlier deadline, which says nothing of the next one.
#[test]
fn s33_a_delay_that_fired_and_was_reset_does_not_elapse_after_the_end() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut delay = Delay::on(&runtime, secs(1));
    assert!(poll(&mut delay, &counter).is_pending());
    clock.advance(secs(1));
    assert_eq!(counter.wakes(), 1);
    delay.reset(secs(5));
    runtime.shutdown(PATIENCE).expect("on a manual clock there is nothing to wait for");
    clock.advance(secs(10));
    assert!(has_ended(&mut delay, &counter));
}
