//! Timed cancels, and sources that are reset (S45, S46, S33).

use super::*;

// ------------------------------------------------------------------------------------------------------ S45: timed cancels

#[test]
fn s45_a_timed_cancel_comes_at_its_instant() {
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    let seen = Journal::new();
    source
        .token()
        .register({
            let (clock, seen) = (clock.clone(), seen.clone());
            move || seen.push(clock.now().as_duration())
        })
        .detach();
    source.try_cancel_after(secs(5)).expect("a runtime of its own");
    assert_eq!((runtime.metrics().active, runtime.next_due()), (1, Some(clock.now() + secs(5))));
    clock.advance(secs(5) - Duration::from_nanos(1));
    assert!(!source.is_cancelled(), "a nanosecond before");
    clock.advance(Duration::from_nanos(1));
    assert_eq!((reason(&source), seen.take()), (Some(CancelReason::Timeout), vec![secs(5)]));
    assert_eq!(runtime.metrics().active, 0);
}

#[test]
fn s45_there_is_one_timed_cancel_and_a_further_call_moves_it() {
    let (clock, runtime) = manual();
    for (first, then) in [(10, 3), (3, 10), (5, 5)] {
        let source = CancellationTokenSource::on(&runtime);
        source.try_cancel_after(secs(first)).expect("a runtime of its own");
        clock.advance(secs(1));
        source.try_cancel_after(secs(then)).expect("a runtime of its own");
        assert_eq!((runtime.metrics().active, runtime.next_due()), (1, Some(clock.now() + secs(then))), "from now");
        clock.advance(secs(then) - Duration::from_nanos(1));
        assert!(!source.is_cancelled());
        clock.advance(Duration::from_nanos(1));
        assert_eq!(reason(&source), Some(CancelReason::Timeout));
    }
}

#[test]
fn s45_an_infinite_time_withdraws_the_timed_cancel() {
    let (clock, runtime) = manual();
    for never in [NEVER, Duration::from_nanos(u64::MAX), secs(u64::MAX / 2)] {
        let source = CancellationTokenSource::on(&runtime);
        source.try_cancel_after(never).expect("nothing to do");
        source.try_cancel_after(secs(1)).expect("a runtime of its own");
        source.try_cancel_after(never).expect("a runtime of its own");
        assert_eq!(runtime.metrics().active, 0);
        clock.advance(secs(1000));
        assert!(!source.is_cancelled());
        source.try_cancel_after(secs(1)).expect("a runtime of its own");
        clock.advance(secs(1));
        assert!(source.is_cancelled(), "and can be set again");
    }
}

#[test]
fn s45_a_time_beyond_the_clock_withdraws_as_well() {
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    source.try_cancel_after(secs(u64::MAX)).expect("it runs");
    assert_eq!(runtime.metrics().active, 0);
    source.try_cancel_after(secs(5)).expect("it runs");
    source.try_cancel_after(secs(u64::MAX)).expect("it runs");
    clock.advance(secs(10));
    assert!(!source.is_cancelled());
    // A cancel withdrawn in time cannot come any more (S46).
    source.try_cancel_after(secs(5)).expect("it runs");
    assert!(source.try_reset());
}

#[test]
fn s45_zero_cancels_here_and_now() {
    let (_clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    let seen = Journal::new();
    let noting = seen.clone();
    source.token().register(move || noting.push(thread::current().id())).detach();
    source.try_cancel_after(secs(9)).expect("a runtime of its own");
    source.try_cancel_after(Duration::ZERO).expect("no timer is needed");
    assert_eq!((reason(&source), seen.take()), (Some(CancelReason::Timeout), vec![thread::current().id()]));
    assert_eq!(runtime.metrics().active, 0, "the one before has no purpose any more");
}

#[test]
fn s45_on_a_cancelled_source_it_does_nothing() {
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    source.try_cancel_after(secs(5)).expect("a runtime of its own");
    source.cancel();
    assert_eq!(runtime.metrics().active, 0, "a cancel by hand takes the timed one out");
    for after in [secs(1), Duration::ZERO, NEVER] {
        source.try_cancel_after(after).expect("does nothing");
    }
    assert_eq!(
        (runtime.metrics().active, clock.advance(secs(10)), reason(&source)),
        (0, 0, Some(CancelReason::Cancelled))
    );
}

#[test]
fn s45_a_timed_cancel_reaches_tokens_of_a_dropped_source_and_ends_with_the_last_token() {
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    source.try_cancel_after(secs(1)).expect("a runtime of its own");
    let token = source.token();
    drop(source);
    clock.advance(secs(1));
    assert_eq!(token.reason(), Some(CancelReason::Timeout));

    let source = CancellationTokenSource::on(&runtime);
    source.try_cancel_after(secs(1)).expect("a runtime of its own");
    let token = source.token();
    drop((source, token));
    assert_eq!(runtime.metrics().active, 0);
}

#[test]
fn s45_on_the_default_runtime() {
    let source = CancellationTokenSource::try_after(ms(2)).expect("starts");
    let made = Instant::now();
    let cancelled = source.token().wait_timeout(PATIENCE).expect_err("in time");
    assert_eq!(cancelled.reason(), CancelReason::Timeout);
    assert!(made.elapsed() < PATIENCE);
    let source = CancellationTokenSource::default();
    let before = Instant::now();
    source.try_cancel_after(ms(2)).expect("started");
    assert!(source.token().wait_timeout(PATIENCE).is_err());
    assert!(before.elapsed() >= ms(2), "never early");
    assert!(CancellationTokenSource::try_after(Duration::ZERO).expect("needs none").is_cancelled());
}

#[test]
fn s45_moving_a_timed_cancel_against_its_firing_and_a_cancel() {
    within(PATIENCE, "moving timed cancels", || {
        let runtime = native();
        for round in 0..1_000_u64 {
            let source = CancellationTokenSource::on(&runtime);
            source.try_cancel_after(us(30 + round % 60)).expect("a runtime of its own");
            race(
                us(round % 70),
                || {
                    for _ in 0..20 {
                        source.try_cancel_after(us(round % 90)).expect("a runtime of its own");
                    }
                },
                || round % 2 == 0 && source.cancel() || source.try_cancel_after(ms(1)).is_ok(),
            );
            let cancelled = source.token().wait_timeout(PATIENCE).expect_err("one of them comes");
            assert!(round % 2 == 0 || cancelled.reason() == CancelReason::Timeout);
        }
        eventually("no timer is left", || runtime.metrics().active == 0);
        assert_eq!(runtime.metrics().panics, 0);
    });
}

// ---------------------------------------------------------------------------------------------------------- S46: try_reset

#[test]
fn s46_an_uncancelled_source_can_be_used_again() {
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    let token = source.token();
    let counter = CountingWaker::new();
    let mut task = token.cancelled();
    for _request in 0..3 {
        source.try_cancel_after(secs(10)).expect("a runtime of its own");
        let (canary, fate) = Canary::new();
        let registration = token.register(move || canary.sing());
        assert!(poll(&mut task, &counter).is_pending());
        clock.advance(secs(9));
        assert!(source.try_reset());
        assert!(fate.is_dropped(), "callbacks are dropped uncalled");
        assert!(!registration.unregister());
        clock.advance(secs(100));
        assert!(!source.is_cancelled(), "the timed cancel is withdrawn");
    }
    assert!(source.try_reset(), "also when there is nothing to reset");
    assert_eq!(counter.wakes(), 0);
    source.cancel();
    assert_eq!(counter.wakes(), 1, "a task that waits goes on waiting");
    assert!(!source.try_reset(), "a cancelled one never");
}

#[test]
fn s46_false_from_the_moment_the_timed_cancel_has_begun() {
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    let answers = Journal::new();
    source
        .token()
        .register({
            let (source, answers) = (source.clone(), answers.clone());
            move || answers.push(source.try_reset())
        })
        .detach();
    source.try_cancel_after(secs(1)).expect("a runtime of its own");
    clock.advance(secs(1));
    assert_eq!((answers.take(), source.try_reset()), (vec![false], false));
}

#[test]
fn s46_a_timed_cancel_that_is_due_but_has_not_begun_is_withdrawn() {
    // Two timers due at the same instant: the first resets the source that the second would cancel.
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    let answers = Journal::new();
    let resetting = OnceTimer::on(&runtime, secs(1), {
        let (source, answers) = (source.clone(), answers.clone());
        move |_| answers.push(source.try_reset())
    });
    source.try_cancel_after(secs(1)).expect("a runtime of its own");
    clock.advance(secs(1));
    assert_eq!((answers.take(), source.is_cancelled()), (vec![true], false));
    // Late, with the clock past the instant, but no thread has swept.
    source.try_cancel_after(secs(1)).expect("a runtime of its own");
    clock.stall(secs(2));
    assert!(source.try_reset());
    assert_eq!((clock.advance(secs(5)), source.is_cancelled()), (0, false));
    drop(resetting);
}

#[test]
fn s46_true_when_the_runtime_of_the_timed_cancel_has_ended() {
    let (clock, runtime) = manual();
    let [source, moved, withdrawn] = std::array::from_fn(|_| CancellationTokenSource::on(&runtime));
    for source in [&source, &moved, &withdrawn] {
        source.try_cancel_after(secs(1)).expect("a runtime of its own");
    }
    runtime.shutdown(PATIENCE).expect("no callback runs");
    let _ = moved.try_cancel_after(secs(2));
    let _ = withdrawn.try_cancel_after(NEVER);
    for source in [source, moved, withdrawn] {
        for _ in 0..2 {
            assert!(source.try_reset(), "nothing can come any more");
            let _ = source.try_cancel_after(secs(1));
        }
        assert_eq!((clock.advance(secs(9)), source.is_cancelled()), (0, false));
        assert!(source.cancel() && !source.try_reset());
    }
}

#[test]
fn s46_true_means_that_no_earlier_timed_cancel_comes_any_more() {
    within(PATIENCE, "resetting sources whose time is up", || {
        let runtime = native();
        let (mut reset, mut too_late) = (Vec::new(), Vec::new());
        for round in 0..1_500 {
            let source = CancellationTokenSource::on(&runtime);
            source.try_cancel_after(us(40)).expect("a runtime of its own");
            let until = runtime.now() + us(round % 90);
            while runtime.now() < until {
                std::hint::spin_loop();
            }
            if source.try_reset() { reset.push(source) } else { too_late.push(source) }
        }
        for source in &too_late {
            let cancelled = source.token().wait_timeout(PATIENCE).expect_err("it was on its way");
            assert_eq!(cancelled.reason(), CancelReason::Timeout);
        }
        // All running callbacks have ended when the runtime has.
        runtime.shutdown(PATIENCE).expect("no callback blocks");
        assert!(reset.iter().all(|source| !source.is_cancelled()));
        assert!(reset.len() + too_late.len() == 1_500 && !reset.is_empty());
    });
}

#[test]
fn s46_try_reset_against_cancel_and_register() {
    for round in 0..1_000 {
        let source = CancellationTokenSource::new();
        let token = source.token();
        let (called, dropped) = (Count::new(), Count::new());
        let ((), reset) = race(
            Duration::from_nanos(round),
            || {
                for _ in 0..3 {
                    let (called, dropped) = (called.clone(), dropped.clone());
                    let owned = OnDrop(counting(&dropped));
                    token
                        .register(move || {
                            owned.hold();
                            called.bump();
                        })
                        .detach();
                }
                source.cancel();
            },
            || source.try_reset(),
        );
        assert_eq!(dropped.get(), 3, "called or dropped, each of them");
        assert!(reset || called.get() == 3, "only a reset drops one uncalled");
        assert!(source.is_cancelled());
    }
}

// --------------------------------------------------------------------------------------------- S33: the end of the runtime

#[test]
fn s33_a_timed_cancel_ends_with_its_runtime_and_the_source_goes_on() {
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    let token = source.token();
    let counter = CountingWaker::new();
    source.try_cancel_after(secs(1)).expect("a runtime of its own");
    let mut waiting = token.cancelled();
    assert!(poll(&mut waiting, &counter).is_pending());
    runtime.shutdown(PATIENCE).expect("no callback runs");
    clock.advance(secs(5));
    assert!(source.try_cancel_after(secs(1)).is_err(), "which would never come");
    clock.advance(secs(5));
    assert_eq!((reason(&source), counter.wakes()), (None, 0));
    assert!(source.cancel());
    assert_eq!((reason(&source), counter.wakes()), (Some(CancelReason::Cancelled), 1));
    let after = CancellationTokenSource::on(&runtime);
    after.try_cancel_after(Duration::ZERO).expect("no timer is needed");
    assert!(after.is_cancelled());
}
