//! Dropped delays: they leave their queue at once (S36).

use super::*;

#[test]
fn s36_dropping_unlinks_at_once() {
    let (clock, runtime) = manual();
    let mut random = Random(36);
    let counter = CountingWaker::new();
    let mut delays: Vec<Delay> =
        (0..1_000).map(|_| Delay::on(&runtime, ns(1 + random.below(10_000_000_000_000)))).collect();
    assert!(delays.iter_mut().all(|delay| poll(delay, &counter).is_pending()));
    assert_eq!((runtime.metrics().active, counter.kept()), (1_000, 1_000));
    while !delays.is_empty() {
        let at = random.below(delays.len() as u64) as usize;
        drop(delays.swap_remove(at));
        assert_eq!((runtime.metrics().active, counter.kept()), (delays.len(), delays.len()), "the waker is gone, too");
        assert_eq!(runtime.next_due(), delays.iter().map(Delay::deadline).min());
    }
    assert_eq!((clock.advance(secs(100_000)), counter.wakes()), (0, 0));
}

#[test]
fn s36_a_delay_dropped_by_its_own_waker() {
    let (clock, runtime) = manual();
    let slot: Arc<Mutex<Option<Delay>>> = Arc::default();
    let waker = waker_that({
        let slot = Arc::clone(&slot);
        move || drop(lock(&slot).take())
    });
    let mut delay = Delay::on(&runtime, secs(1));
    assert!(poll_with(&mut delay, &waker).is_pending());
    *lock(&slot) = Some(delay);
    clock.advance(secs(1));
    assert!(lock(&slot).is_none());
    assert_eq!((runtime.metrics().active, runtime.metrics().panics), (0, 0));
}

#[test]
fn s36_a_delay_dropped_after_its_waker_was_taken_for_firing() {
    // Two delays due at the same instant: the first woken task drops the second delay. The sweep
    // has taken both wakers.
    let (clock, runtime) = manual();
    let other: Arc<Mutex<Option<Delay>>> = Arc::default();
    let dropping = waker_that({
        let other = Arc::clone(&other);
        move || drop(lock(&other).take())
    });
    let counter = CountingWaker::new();
    let (mut first, mut second) = (Delay::on(&runtime, secs(1)), Delay::on(&runtime, secs(1)));
    assert!(poll_with(&mut first, &dropping).is_pending());
    assert!(poll(&mut second, &counter).is_pending());
    *lock(&other) = Some(second);
    clock.advance(secs(1));
    assert_eq!((counter.wakes(), counter.kept()), (1, 0), "woken in vain once, and the waker is not kept");
    assert_eq!((runtime.metrics().active, runtime.metrics().panics), (0, 0));
    assert_eq!(poll(&mut first, &counter), READY);
}

#[test]
fn s36_delays_dropped_while_they_fire_leave_nothing_behind() {
    within(PATIENCE, "dropping delays that are about to fire", || {
        let runtime = native();
        let mut random = Random(361);
        for _ in 0..400 {
            let counters: Vec<CountingWaker> = (0..32).map(|_| CountingWaker::new()).collect();
            let mut delays: Vec<Delay> =
                counters.iter().map(|_| Delay::on(&runtime, us(60 + random.below(60)))).collect();
            for (delay, counter) in delays.iter_mut().zip(&counters) {
                let _ = poll(delay, counter);
            }
            for delay in delays {
                while !delay.is_elapsed() {
                    std::hint::spin_loop();
                }
                drop(delay);
            }
            eventually("all wakers are gone", || counters.iter().all(|counter| counter.kept() == 0));
            assert!(counters.iter().all(|counter| counter.wakes() <= 1));
        }
        assert_eq!((runtime.metrics().active, runtime.metrics().panics), (0, 0));
    });
}
