//! Dropping and detaching a handle (S23).

use super::*;

#[test]
fn s23_dropping_the_handle_disposes() {
    let (clock, runtime) = manual();
    for due in [ms(0), ms(333), secs(1_000_000), NEVER] {
        let (canary, fate) = Canary::new();
        drop(Timer::on(&runtime, due, ms(1), move |_| canary.sing()));
        assert!(fate.is_dropped());
        let (canary, fate) = Canary::new();
        drop(OnceTimer::on(&runtime, due, move |_| canary.sing()));
        assert!(fate.is_dropped());
    }
    assert_eq!((runtime.metrics().active, clock.advance(secs(2_000_000))), (0, 0));
}

#[test]
fn s23_dropping_the_handle_of_a_running_timer_does_not_wait() {
    within(PATIENCE, "dropping a running timer", || {
        let runtime = native();
        let (entered, gate) = (Gate::new(), Gate::new());
        let (canary, fate) = Canary::new();
        let calls = Count::new();
        let timer = Timer::on(&runtime, Duration::ZERO, secs(1_000), {
            let (entered, gate, calls) = (entered.clone(), gate.clone(), calls.clone());
            move |_| {
                canary.sing();
                calls.bump();
                entered.open();
                gate.wait();
            }
        });
        entered.wait();
        drop(timer);
        assert!(!fate.is_dropped(), "still in use");
        assert_eq!(runtime.metrics().active, 0, "but out of its list");
        gate.open();
        eventually("let go by its last callback", || fate.is_dropped());
        assert_eq!(calls.get(), 1);
    });
}

#[test]
fn s23_a_callback_may_drop_the_last_handle_of_its_timer() {
    let (clock, runtime) = manual();
    let slot: Arc<Mutex<Option<Timer>>> = Arc::default();
    let (canary, fate) = Canary::new();
    let used_after = Count::new();
    let timer = Timer::on(&runtime, ms(1), ms(1), {
        let (slot, fate, used_after) = (Arc::clone(&slot), fate.clone(), used_after.clone());
        move |_| {
            drop(lock(&slot).take());
            if !fate.is_dropped() {
                used_after.bump(); // the payload is still alive
            }
            canary.sing();
        }
    });
    *lock(&slot) = Some(timer);
    assert_eq!(clock.advance(secs(1)), 1);
    assert_eq!(used_after.get(), 1);
    assert!(fate.is_dropped());
}

#[test]
fn s23_a_detached_timer_goes_on() {
    let (clock, runtime) = manual();
    let fired = Count::new();
    Timer::on(&runtime, ms(5), ms(5), fired.callback()).detach();
    let (canary, fate) = Canary::new();
    Timer::on(&runtime, ms(10), ms(5), {
        let calls = Count::new();
        move |tick| {
            canary.sing();
            if calls.bump() == 2 {
                tick.dispose();
            }
        }
    })
    .detach();
    let (once, once_fate) = Canary::new();
    OnceTimer::on(&runtime, ms(400), move |_| once.sing()).detach();
    let (one_shot, one_shot_fate) = Canary::new();
    Timer::on(&runtime, ms(400), Duration::ZERO, move |_| one_shot.sing()).detach();
    assert_eq!(clock.advance(ms(14)), 2 + 1);
    assert!(!fate.is_dropped());
    assert_eq!(clock.advance(ms(1)), 2);
    assert!(fate.is_dropped(), "until it disposes itself");
    assert!(!once_fate.is_dropped() && !one_shot_fate.is_dropped());
    clock.advance(ms(385));
    assert!(once_fate.is_dropped() && one_shot_fate.is_dropped(), "a one-shot until it has fired");
    assert_eq!(runtime.metrics().active, 1);
    runtime.shutdown(Duration::ZERO).expect("no threads");
    assert_eq!((clock.advance(secs(1)), fired.get()), (0, 80), "the rest until the runtime ends");
}

#[test]
fn s23_a_detached_one_shot_that_restarts_itself_lives_on() {
    let (clock, runtime) = manual();
    let (canary, fate) = Canary::new();
    Timer::on(&runtime, ms(5), NEVER, {
        let calls = Count::new();
        move |tick| {
            canary.sing();
            if calls.bump() < 3 {
                let _ = tick.change(ms(400), NEVER);
            }
        }
    })
    .detach();
    assert_eq!(clock.advance(ms(804)), 2);
    assert!(!fate.is_dropped());
    assert_eq!(clock.advance(ms(1)), 1);
    assert!(fate.is_dropped());
}

#[test]
fn s23_an_idle_timer_that_is_detached_is_freed() {
    let (_clock, runtime) = manual();
    let (canary, fate) = Canary::new();
    Timer::on(&runtime, NEVER, ms(1), move |_| canary.sing()).detach();
    assert!(fate.is_dropped());
    let (canary, fate) = Canary::new();
    let timer = Timer::on(&runtime, ms(1), ms(1), move |_| canary.sing());
    timer.dispose();
    timer.detach();
    assert!(fate.is_dropped());
}
