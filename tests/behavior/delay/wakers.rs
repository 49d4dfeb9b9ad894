//! Which waker is called, and wakers that panic or call back (S37).

use super::*;

#[test]
fn s37_the_waker_of_the_latest_poll_is_called() {
    let (clock, runtime) = manual();
    let bells = [Bell::new(), Bell::new(), Bell::new()];
    let mut delay = runtime.delay(secs(1));
    for bell in &bells {
        assert!(poll(&mut delay, bell).is_pending());
        let kept: usize = bells.iter().map(Bell::kept).sum();
        assert_eq!((bell.kept(), kept), (1, 1), "the one before is dropped at once");
    }
    for _ in 0..3 {
        assert!(poll(&mut delay, &bells[2]).is_pending());
        assert_eq!(bells[2].kept(), 1, "the same one is not kept twice");
    }
    clock.advance(secs(1));
    assert_eq!(bells.each_ref().map(Bell::rings), [0, 0, 1]);
    assert_eq!(bells.each_ref().map(Bell::kept), [0, 0, 0]);
}

#[test]
fn s37_wakers_that_change_while_the_delay_fires_lose_no_wake_up() {
    within(PATIENCE, "changing wakers", || {
        let runtime = native();
        let mut random = Random(37);
        for _ in 0..3_000 {
            let mut delay = runtime.delay(us(20 + random.below(50)));
            let changes = random.below(200);
            for change in 0.. {
                // A waker of its own for each poll; nobody else keeps it.
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
        assert_eq!(runtime.panics(), 0);
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
            let mut delay = runtime.delay(after);
            let waker = waker_that(move || {
                let mut other = runtime.delay(secs(1));
                assert!(poll_with(&mut other, Waker::noop()).is_pending());
                other.reset(secs(2));
                assert!(runtime.active_timers() > 0 && runtime.next_due().is_some());
                drop(runtime.timer(ms(1), ms(1), |_| ()));
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
        assert_eq!((done.get(), runtime.panics()), (3, 0));
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
            Grumpy::that(move || {
                let mut other = runtime.delay(secs(5));
                let _ = poll_with(&mut other, Waker::noop());
                other.reset(secs(1));
                let _ = runtime.active_timers();
                uses.bump();
            })
        };
        let wakers = [task().waker(), task().waker()];
        let mut woken = runtime.delay(secs(1));
        let mut dropped = runtime.delay(secs(2));
        let mut late = runtime.delay(secs(1)).with_token(&CancellationToken::none());
        for waker in &wakers {
            assert!(poll_with(&mut woken, waker).is_pending());
            assert!(poll_with(&mut dropped, waker).is_pending() && poll_with(&mut late, waker).is_pending());
        }
        clock.stall(secs(1));
        assert_eq!(poll_with(&mut late, &wakers[0]), Poll::Ready(Ok(())));
        clock.advance(Duration::ZERO);
        drop(dropped);
        let mut ended = runtime.delay(secs(1));
        assert!(poll_with(&mut ended, &wakers[0]).is_pending());
        runtime.shutdown(PATIENCE).expect("no callback runs");
        // Cloned 7 times, replaced 3 times, given back, woken, dropped with its delay, woken by the end.
        assert!(uses.get() >= 14, "{}", uses.get());
    });
}

#[test]
fn s37_a_waker_that_panics_when_woken_hurts_nobody_else() {
    let (clock, runtime) = manual();
    let grumpy = Grumpy::on_wake();
    let bell = Bell::new();
    let mut delays: Vec<Delay> = (0..9).map(|_| runtime.delay(secs(1))).collect();
    for (i, delay) in delays.iter_mut().enumerate() {
        let waker = if i % 3 == 1 { grumpy.waker() } else { bell.waker() };
        assert!(poll_with(delay, &waker).is_pending());
    }
    clock.advance(secs(1));
    assert_eq!((bell.rings(), grumpy.outbursts(), runtime.panics()), (6, 3, 3));
    assert!(delays.iter_mut().all(|delay| poll(delay, &bell) == READY), "theirs are ready as well");
    assert_eq!((bell.kept(), grumpy.kept()), (0, 0));
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
    let (grumpy, bell) = (Grumpy::on_wake(), Bell::new());
    let mut delays: Vec<Delay> = (0..200).map(|i| runtime.delay(us(100 + 10 * i))).collect();
    for (i, delay) in delays.iter_mut().enumerate() {
        let waker = if i % 2 == 0 { grumpy.waker() } else { bell.waker() };
        let _ = poll_with(delay, &waker);
    }
    eventually("all are woken", || grumpy.kept() == 0 && bell.kept() == 0);
    assert!(bell.rings() <= 100);
    eventually("all are told", || told.get() == grumpy.outbursts() && runtime.panics() == told.get() as u64);
    delays.iter_mut().for_each(block_on);
    block_on(runtime.delay(ms(1)));
}

#[test]
fn s37_a_waker_that_panics_when_cloned_leaves_the_delay_usable() {
    let (clock, runtime) = manual();
    let grumpy = Grumpy::new();
    let bell = Bell::new();
    let waker = grumpy.waker();
    let mut delay = runtime.delay(secs(1));
    Grumpy::set(&grumpy.on_clone, true);
    assert!(panics(|| poll_with(&mut delay, &waker)), "at the first poll");
    assert_eq!(runtime.active_timers(), 0);
    assert!(poll(&mut delay, &bell).is_pending());
    assert!(panics(|| poll_with(&mut delay, &waker)), "at a later poll");
    assert_eq!((runtime.active_timers(), bell.kept()), (1, 1), "it waits for the one before");
    clock.advance(secs(1));
    assert_eq!((bell.rings(), runtime.panics()), (1, 0));
    assert_eq!(poll_with(&mut delay, &waker), READY, "no clone is needed any more");
    drop(waker);
    assert_eq!(grumpy.kept(), 0);
}

#[test]
fn s37_a_waker_that_panics_when_dropped_leaves_the_delay_usable() {
    let (clock, runtime) = manual();
    let bell = Bell::new();
    let grumpy = Grumpy::new();
    let waiting = || {
        let mut delay = runtime.delay(secs(1));
        assert!(poll_with(&mut delay, &grumpy.waker()).is_pending());
        assert_eq!(grumpy.kept(), 1);
        delay
    };
    // Replaced by a later poll.
    let mut replaced = waiting();
    Grumpy::set(&grumpy.on_drop, true);
    let _ = catch_unwind(AssertUnwindSafe(|| poll(&mut replaced, &bell)));
    Grumpy::set(&grumpy.on_drop, false);
    assert_eq!((grumpy.outbursts(), grumpy.kept(), bell.kept()), (1, 0, 1), "the new one has taken its place");
    // Given back because the delay is ready.
    let mut ready = waiting();
    clock.stall(secs(1));
    Grumpy::set(&grumpy.on_drop, true);
    let _ = catch_unwind(AssertUnwindSafe(|| poll(&mut ready, &bell)));
    Grumpy::set(&grumpy.on_drop, false);
    assert_eq!((grumpy.outbursts(), grumpy.kept(), poll(&mut ready, &bell)), (2, 0, READY));
    // Dropped with the delay.
    let dropped = waiting();
    Grumpy::set(&grumpy.on_drop, true);
    let _ = catch_unwind(AssertUnwindSafe(|| drop(dropped)));
    Grumpy::set(&grumpy.on_drop, false);
    assert_eq!((grumpy.outbursts(), grumpy.kept()), (3, 0));
    clock.advance(Duration::ZERO);
    assert_eq!((bell.rings(), runtime.active_timers(), poll(&mut replaced, &bell)), (1, 0, READY));
}
