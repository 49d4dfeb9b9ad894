//! Wakers of a delay: the waker of the latest poll is called; wakers that panic or call back (S37).

use super::*;

#[test]
fn s37_the_waker_of_the_latest_poll_is_called() {
    let (clock, runtime) = manual();
    let counters = [CountingWaker::new(), CountingWaker::new(), CountingWaker::new()];
    let mut delay = Delay::on(&runtime, secs(1));
    for counter in &counters {
        assert!(poll(&mut delay, counter).is_pending());
        let kept: usize = counters.iter().map(CountingWaker::kept).sum();
        assert_eq!((counter.kept(), kept), (1, 1), "the one before is dropped at once");
    }
    for _ in 0..3 {
        assert!(poll(&mut delay, &counters[2]).is_pending());
        assert_eq!(counters[2].kept(), 1, "the same one is not kept twice");
    }
    clock.advance(secs(1));
    assert_eq!(counters.each_ref().map(CountingWaker::wakes), [0, 0, 1]);
    assert_eq!(counters.each_ref().map(CountingWaker::kept), [0, 0, 0]);
}

#[test]
fn s37_wakers_that_change_while_the_delay_fires_lose_no_wake_up() {
    within(PATIENCE, "changing wakers", || {
        let runtime = native();
        let mut random = Random(37);
        for _ in 0..3_000 {
            let mut delay = Delay::on(&runtime, us(20 + random.below(50)));
            let changes = random.below(200);
            for change in 0.. {
                // A waker of its own for each poll; no other object keeps it.
                let (woken, wait) = mpsc::channel();
                let waker = waker_that(move || {
                    let _ = woken.send(());
                });
                if poll_with(&mut delay, &waker).is_ready() {
                    break;
                }
                drop(waker);
                if change >= changes {
                    // Disconnected: it is gone without having been called.
                    assert_eq!(wait.recv_timeout(PATIENCE), Ok(()), "the latest waker was not woken");
                }
            }
            assert!(runtime.now() >= delay.deadline());
        }
        assert_eq!(runtime.metrics().panics, 0);
    });
}

#[test]
fn s37_no_lock_is_held_while_a_waker_is_called() {
    within(PATIENCE, "a waker that uses its own queue", || {
        let (clock, runtime) = manual();
        let done = Count::new();
        let make = |after: Duration| {
            let (runtime, clock, done) = (runtime.clone(), clock.clone(), done.clone());
            let kept: Mutex<Vec<Delay>> = Mutex::default();
            let mut delay = Delay::on(&runtime, after);
            let waker = waker_that(move || {
                let mut other = Delay::on(&runtime, secs(1));
                assert!(poll_with(&mut other, Waker::noop()).is_pending());
                other.reset(secs(2));
                assert!(runtime.metrics().active > 0 && runtime.next_due().is_some());
                drop(Timer::on(&runtime, ms(1), ms(1), |_| ()));
                lock(&kept).push(other);
                lock(&kept).truncate(1);
                let _ = (clock.next_due(), clock.advance(Duration::ZERO));
                done.bump();
            });
            assert!(poll_with(&mut delay, &waker).is_pending());
            delay
        };
        let delays = [make(secs(1)), make(secs(1)), make(secs(2))];
        clock.advance(secs(2));
        assert_eq!((done.get(), runtime.metrics().panics), (3, 0));
        drop(delays);
    });
}

#[test]
fn s37_no_lock_is_held_while_a_waker_is_cloned_or_dropped() {
    within(PATIENCE, "wakers that use the queue when they are cloned and dropped", || {
        let (clock, runtime) = manual();
        let uses = Count::new();
        let task = || {
            let (runtime, uses) = (runtime.clone(), uses.clone());
            PanickingWaker::that(move || {
                let mut other = Delay::on(&runtime, secs(5));
                let _ = poll_with(&mut other, Waker::noop());
                other.reset(secs(1));
                let _ = runtime.metrics().active;
                uses.bump();
            })
        };
        let wakers = [task().waker(), task().waker()];
        let mut woken = Delay::on(&runtime, secs(1));
        let mut dropped = Delay::on(&runtime, secs(2));
        let mut late = Delay::on(&runtime, secs(1)).with_token(&CancellationToken::none());
        for waker in &wakers {
            assert!(poll_with(&mut woken, waker).is_pending());
            assert!(poll_with(&mut dropped, waker).is_pending() && poll_with(&mut late, waker).is_pending());
        }
        clock.stall(secs(1));
        assert_eq!(poll_with(&mut late, &wakers[0]), Poll::Ready(Ok(())));
        clock.advance(Duration::ZERO);
        drop(dropped);
        let mut ended = Delay::on(&runtime, secs(1));
        assert!(poll_with(&mut ended, &wakers[0]).is_pending());
        runtime.shutdown(PATIENCE).expect("no callback runs");
        // Cloned 7 times, replaced 3 times, given back, woken, dropped with its delay, woken by the
        // end.
        assert!(uses.get() >= 14, "{}", uses.get());
    });
}

#[test]
fn s37_a_waker_that_panics_when_woken_does_not_affect_other_delays() {
    let (clock, runtime) = manual();
    let panicking = PanickingWaker::on_wake();
    let counter = CountingWaker::new();
    let mut delays: Vec<Delay> = (0..9).map(|_| Delay::on(&runtime, secs(1))).collect();
    for (i, delay) in delays.iter_mut().enumerate() {
        let waker = if i % 3 == 1 { panicking.waker() } else { counter.waker() };
        assert!(poll_with(delay, &waker).is_pending());
    }
    clock.advance(secs(1));
    assert_eq!((counter.wakes(), panicking.panics(), runtime.metrics().panics), (6, 3, 3));
    assert!(delays.iter_mut().all(|delay| poll(delay, &counter) == READY), "theirs are ready as well");
    assert_eq!((counter.kept(), panicking.kept()), (0, 0));
}

#[test]
fn s37_a_panicking_waker_goes_to_the_panic_handler_and_stops_no_worker() {
    let told = Count::new();
    let runtime = Runtime::builder().queues(1).workers(2).on_panic({
        let told = told.clone();
        move |_| {
            told.bump();
        }
    });
    let runtime = runtime.start().expect("the system has threads and alarms");
    let (panicking, counter) = (PanickingWaker::on_wake(), CountingWaker::new());
    let mut delays: Vec<Delay> = (0..200).map(|i| Delay::on(&runtime, us(100 + 10 * i))).collect();
    for (i, delay) in delays.iter_mut().enumerate() {
        let waker = if i % 2 == 0 { panicking.waker() } else { counter.waker() };
        let _ = poll_with(delay, &waker);
    }
    eventually("all are woken", || panicking.kept() == 0 && counter.kept() == 0);
    assert!(counter.wakes() <= 100);
    eventually("all are told", || told.get() == panicking.panics() && runtime.metrics().panics == told.get() as u64);
    delays.iter_mut().for_each(block_on);
    block_on(Delay::on(&runtime, ms(1)));
}

#[test]
fn s37_a_waker_that_panics_when_cloned_leaves_the_delay_usable() {
    let (clock, runtime) = manual();
    let panicking = PanickingWaker::new();
    let counter = CountingWaker::new();
    let waker = panicking.waker();
    let mut delay = Delay::on(&runtime, secs(1));
    PanickingWaker::set(&panicking.on_clone, true);
    assert!(panics(|| poll_with(&mut delay, &waker)), "at the first poll");
    assert_eq!(runtime.metrics().active, 0);
    assert!(poll(&mut delay, &counter).is_pending());
    assert!(panics(|| poll_with(&mut delay, &waker)), "at a later poll");
    assert_eq!((runtime.metrics().active, counter.kept()), (1, 1), "it waits for the one before");
    clock.advance(secs(1));
    assert_eq!((counter.wakes(), runtime.metrics().panics), (1, 0));
    assert_eq!(poll_with(&mut delay, &waker), READY, "no clone is needed any more");
    drop(waker);
    assert_eq!(panicking.kept(), 0);
}

#[test]
fn s37_a_waker_that_panics_when_dropped_leaves_the_delay_usable() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let panicking = PanickingWaker::new();
    let waiting = || {
        let mut delay = Delay::on(&runtime, secs(1));
        assert!(poll_with(&mut delay, &panicking.waker()).is_pending());
        assert_eq!(panicking.kept(), 1);
        delay
    };
    // Replaced by a later poll.
    let mut replaced = waiting();
    PanickingWaker::set(&panicking.on_drop, true);
    assert!(poll(&mut replaced, &counter).is_pending());
    PanickingWaker::set(&panicking.on_drop, false);
    let seen = (panicking.panics(), panicking.kept(), counter.kept(), runtime.metrics().panics);
    assert_eq!(seen, (1, 0, 1, 1), "the new one has taken its place");
    // Given back because the delay is ready.
    let mut ready = waiting();
    clock.stall(secs(1));
    PanickingWaker::set(&panicking.on_drop, true);
    assert_eq!(poll(&mut ready, &counter), READY);
    PanickingWaker::set(&panicking.on_drop, false);
    assert_eq!((panicking.panics(), panicking.kept(), runtime.metrics().panics), (2, 0, 2));
    // Dropped with the delay.
    let dropped = waiting();
    PanickingWaker::set(&panicking.on_drop, true);
    drop(dropped);
    PanickingWaker::set(&panicking.on_drop, false);
    assert_eq!((panicking.panics(), panicking.kept(), runtime.metrics().panics), (3, 0, 3));
    clock.advance(Duration::ZERO);
    assert_eq!((counter.wakes(), runtime.metrics().active, poll(&mut replaced, &counter)), (1, 0, READY));
}
