//! Delays as futures: for any executor, with an exact deadline (S35).

use super::*;

#[test]
fn s35_a_delay_can_be_sent_shared_and_moved() {
    fn any_executor_will_do<T: Send + Sync + Unpin + 'static>() {}
    any_executor_will_do::<Delay>();
    any_executor_will_do::<CancellableDelay>();
    any_executor_will_do::<RuntimeError>();
}

#[test]
fn s35_the_deadline_counts_from_the_making_not_from_the_first_poll() {
    let (clock, runtime) = manual();
    let mut delay = Delay::on(&runtime, secs(10));
    assert_eq!(delay.deadline(), clock.now() + secs(10));
    clock.advance(secs(4));
    let counter = CountingWaker::new();
    assert!(poll(&mut delay, &counter).is_pending());
    clock.advance(secs(6) - ns(1));
    assert_eq!((counter.wakes(), delay.is_elapsed()), (0, false), "a nanosecond before");
    assert!(poll(&mut delay, &counter).is_pending());
    clock.advance(ns(1));
    assert_eq!((counter.wakes(), delay.is_elapsed()), (1, true), "on the nanosecond");
    assert_eq!(poll(&mut delay, &counter), READY);
}

#[test]
fn s35_exact_whatever_the_length() {
    let lengths =
        [1, 999, 262_143, 262_145, 332_999_999, 333_000_001, 1_234_567_891, 341_000_000_001, 1 << 50, 1 << 60];
    for origin in [0, 1, 332_999_999, 333_000_001, 1024 * 333_000_000] {
        let (clock, runtime) = manual();
        clock.advance(ns(origin));
        let counters = lengths.map(|_| CountingWaker::new());
        let mut delays = lengths.map(|length| Delay::on(&runtime, ns(length)));
        for (delay, counter) in delays.iter_mut().zip(&counters) {
            assert!(poll(delay, counter).is_pending());
        }
        for (i, length) in lengths.into_iter().enumerate() {
            let at = ns(origin + length);
            clock.advance(at - ns(1) - clock.now().as_duration());
            assert_eq!(counters[i].wakes(), 0, "{length} ns from {origin}: early");
            clock.advance(ns(1));
            assert_eq!(counters[i].wakes(), 1, "{length} ns from {origin}: late");
            assert_eq!(poll(&mut delays[i], &counters[i]), READY);
        }
        assert!(counters.iter().all(|counter| counter.wakes() == 1 && counter.kept() == 0));
    }
}

#[test]
fn s35_it_takes_its_place_in_a_queue_at_the_first_pending_poll() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut delay = Delay::on(&runtime, secs(5));
    let never_polled = Delay::on(&runtime, secs(3));
    clock.advance(secs(1));
    assert_eq!((runtime.metrics().active, runtime.next_due()), (0, None));
    assert!(poll(&mut delay, &counter).is_pending());
    assert_eq!((runtime.metrics().active, runtime.next_due()), (1, Some(delay.deadline())));
    assert!(poll(&mut delay, &counter).is_pending());
    assert_eq!(runtime.metrics().active, 1, "once, however often it is polled");
    clock.advance(secs(10));
    assert_eq!((runtime.metrics().active, runtime.metrics().fired()), (0, 1));
    drop(never_polled);
}

#[test]
fn s35_ready_at_the_first_poll_touches_no_queue() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut at_once = Delay::on(&runtime, Duration::ZERO);
    let mut passed = Delay::on(&runtime, secs(1));
    clock.advance(secs(1));
    assert_eq!(poll(&mut at_once, &counter), READY);
    assert_eq!(poll(&mut passed, &counter), READY);
    assert_eq!((runtime.metrics().active, clock.advance(secs(10)), counter.wakes(), counter.kept()), (0, 0, 0, 0));
}

#[test]
fn s35_ready_stays_ready() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut delay = Delay::on(&runtime, secs(1));
    assert!(poll(&mut delay, &counter).is_pending());
    clock.advance(secs(1));
    for _ in 0..3 {
        assert_eq!(poll(&mut delay, &counter), READY);
        clock.advance(secs(1));
    }
    assert_eq!((counter.wakes(), counter.kept(), runtime.metrics().active), (1, 0, 0));
    delay.reset(secs(1));
    assert!(poll(&mut delay, &counter).is_pending(), "until it is reset");
}

#[test]
fn s35_until_an_instant_of_the_clock() {
    let (clock, runtime) = manual();
    clock.advance(secs(7));
    let counter = CountingWaker::new();
    let mut delay = runtime.enter(|| Delay::until(clock.now() + secs(2)));
    let mut passed = runtime.enter(|| Delay::until(clock.now()));
    assert_eq!(poll(&mut passed, &counter), READY);
    assert!(poll(&mut delay, &counter).is_pending());
    clock.advance(secs(2));
    assert_eq!((counter.wakes(), poll(&mut delay, &counter)), (1, READY));
}

#[test]
fn s35_a_delay_without_end_never_ends() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let endless = [NEVER, ns(u64::MAX), ns(u64::MAX) + ns(1), secs(u64::MAX / 2)];
    let mut delays = endless.map(|after| Delay::on(&runtime, after));
    assert!(delays.iter_mut().all(|delay| poll(delay, &counter).is_pending()));
    clock.advance(secs(500 * 365 * 24 * 3600));
    assert!(delays.iter_mut().all(|delay| poll(delay, &counter).is_pending()));
    assert_eq!(counter.wakes(), 0);
    delays[0].reset(secs(1));
    clock.advance(secs(1));
    assert_eq!((counter.wakes(), poll(&mut delays[0], &counter)), (1, READY), "unless it is given one");
}

#[test]
fn s35_never_early_and_near_at_best_on_real_time() {
    let runtime = native();
    let mut best = Duration::MAX;
    for i in 0..60 {
        let (started, before) = (Instant::now(), runtime.now());
        let after = us(i * 50);
        let mut delay = Delay::on(&runtime, after);
        block_on(&mut delay);
        let (now, late) = (runtime.now(), started.elapsed().checked_sub(after));
        assert!(now >= before + after && now >= delay.deadline(), "early by the clock of the runtime");
        best = best.min(late.expect("not early by the clock of the standard library"));
    }
    assert!(best < ms(20), "near, at least once: {best:?}");
}

#[test]
fn s35_the_default_runtime_is_used_without_being_asked_for() {
    let before = Runtime::global().now();
    let mut delay = Delay::new(ms(1));
    assert!(delay.deadline() >= before + ms(1));
    block_on(&mut delay);
    assert!(Runtime::global().now() >= delay.deadline() && delay.is_elapsed());
    let deadline = delay.deadline() + ms(1);
    block_on(Delay::until(deadline));
    assert!(Runtime::global().now() >= deadline);
}

#[test]
fn s35_a_delay_implements_debug() {
    let (_clock, runtime) = manual();
    let mut delay = Delay::on(&runtime, secs(1));
    assert!(poll_with(&mut delay, Waker::noop()).is_pending());
    let shown = format!("{delay:?} {:?}", Delay::on(&runtime, NEVER).with_token(&CancellationToken::none()));
    assert!(shown.contains("Delay") && shown.contains("deadline") && shown.contains("Token"), "{shown}");
}
