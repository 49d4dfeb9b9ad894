//! Panics of callbacks, of panic handlers and of destructors (S12).

use super::*;

#[test]
fn s12_a_panic_is_caught_counted_and_handed_over() {
    let clock = ManualClock::new();
    let handed = Journal::new();
    let runtime = Runtime::builder()
        .manual_clock(&clock)
        .on_panic({
            let handed = handed.clone();
            move |panic| handed.push(*panic.into_payload().downcast::<u64>().expect("as thrown"))
        })
        .start()
        .expect("nothing to refuse");
    let calm = Count::new();
    let neighbour = runtime.timer(ms(10), ms(10), calm.callback());
    let periodic = runtime.timer(ms(10), ms(10), |tick| panic_any(tick.now().as_duration().as_millis() as u64));
    let mut n = 100;
    let exclusive = runtime.exclusive_timer(ms(20), ms(20), move |_| {
        n += 1;
        panic_any(n as u64);
    });
    let once = runtime.once(ms(25), |_| panic_any(0u64));
    assert_eq!(clock.advance(ms(40)), 4 + 4 + 2 + 1, "neither the timer nor the queue stops");
    assert_eq!(handed.take(), [10, 20, 101, 0, 30, 40, 102]);
    assert_eq!((runtime.panics(), calm.get()), (7, 4));
    drop((neighbour, periodic, exclusive, once));
}

#[test]
fn s12_a_panic_stops_no_worker() {
    within(PATIENCE, "panicking callbacks on the pool", || {
        let (seen, handled) = (Count::new(), Count::new());
        let runtime = Runtime::builder()
            .queues(1)
            .workers(2)
            .max_threads(2)
            .on_panic({
                let handled = handled.clone();
                move |_| {
                    handled.bump();
                }
            })
            .start()
            .expect("the system has threads");
        let timer = runtime.timer(us(100), us(100), {
            let seen = seen.clone();
            move |_| {
                seen.bump();
                panic!("again");
            }
        });
        eventually("100 panics", || seen.get() >= 100);
        assert_eq!(timer.dispose_and_wait(), timerqueue::Waited::Ended);
        assert_eq!(runtime.panics(), seen.get() as u64);
        assert_eq!(handled.get(), seen.get());
        assert_eq!(runtime.threads(), 2);
    });
}

#[test]
fn s12_a_panicking_handler_does_no_harm() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder()
        .manual_clock(&clock)
        .on_panic(|_| panic!("the handler, too"))
        .start()
        .expect("nothing to refuse");
    let timer = runtime.timer(ms(1), ms(1), |_| panic!("the callback"));
    assert_eq!(clock.advance(ms(5)), 5);
    assert_eq!(runtime.panics(), 5);
    drop(timer);
}

#[test]
fn s12_a_panicking_destructor_of_the_panic_handler_does_no_harm() {
    let clock = ManualClock::new();
    let owned = OnDrop(|| panic!("dropped"));
    let runtime =
        Runtime::builder().manual_clock(&clock).on_panic(move |_| owned.hold()).start().expect("nothing to refuse");
    // The clock has the last reference to the runtime when the callback has ended.
    let last = runtime.clone();
    let timer = runtime.once(ms(1), move |_| drop(last));
    drop(runtime);
    assert_eq!(clock.advance(ms(5)), 1);
    drop(timer);
    assert_eq!(clock.now().as_duration(), ms(5), "the advance has come to its end");
    let other = clock.clone();
    within(PATIENCE, "no other thread advances the clock", move || other.advance(ms(1)));
}

#[test]
fn s12_a_panic_payload_whose_destructor_panics_does_no_harm() {
    let (clock, runtime) = manual();
    let timer = runtime.timer(ms(1), ms(1), |_| panic_any(OnDrop(|| panic!("the payload, too"))));
    assert_eq!(clock.advance(ms(5)), 5);
    assert_eq!(runtime.panics(), 5);
    drop(timer);
}

#[test]
fn s12_a_panicking_destructor_of_the_callback_does_no_harm() {
    let bomb = |dropped: &Count| {
        let dropped = dropped.clone();
        OnDrop(move || {
            dropped.bump();
            panic!("dropped");
        })
    };
    let (clock, runtime) = manual();
    let dropped = Count::new();
    let timer = |due| {
        let bomb = bomb(&dropped);
        runtime.timer(due, NEVER, move |_| bomb.hold())
    };
    drop(timer(ms(1)));
    assert_eq!(dropped.get(), 1);
    let disposed = timer(ms(1));
    disposed.dispose();
    assert_eq!((dropped.get(), disposed.dispose_and_wait()), (2, timerqueue::Waited::Ended));
    timer(NEVER).detach();
    assert_eq!(dropped.get(), 3);
    timer(ms(1)).detach();
    assert_eq!((clock.advance(ms(1)), dropped.get()), (1, 4), "freed after its only firing");
    // Consumed by the call: a panic of the callback like any other.
    let bomb = bomb(&dropped);
    runtime.once(ms(1), move |_| drop(bomb)).detach();
    assert_eq!((clock.advance(ms(1)), dropped.get(), runtime.panics()), (1, 5, 1));
    let left_behind = timer(ms(1));
    runtime.shutdown(Duration::ZERO).expect("no threads");
    assert_eq!(dropped.get(), 6);
    drop(left_behind);
    drop(timer(ms(1)));
    assert_eq!(dropped.get(), 7, "born disposed after the shutdown");
}
