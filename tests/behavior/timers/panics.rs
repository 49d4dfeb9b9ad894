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
    let neighbour = Timer::on(&runtime, ms(10), ms(10), calm.callback());
    let periodic = Timer::on(&runtime, ms(10), ms(10), |tick| panic_any(tick.now().as_duration().as_millis() as u64));
    let mut n = 100;
    let exclusive = TimerBuilder::on(&runtime).period(ms(20)).start_exclusive(move |_| {
        n += 1;
        panic_any(n as u64);
    });
    let once = OnceTimer::on(&runtime, ms(25), |_| panic_any(0u64));
    assert_eq!(clock.advance(ms(40)), 4 + 4 + 2 + 1, "neither the timer nor the queue stops");
    assert_eq!(handed.take(), [10, 20, 101, 0, 30, 40, 102]);
    assert_eq!((runtime.metrics().panics, calm.get()), (7, 4));
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
        let timer = Timer::on(&runtime, us(100), us(100), {
            let seen = seen.clone();
            move |_| {
                seen.bump();
                panic!("again");
            }
        });
        eventually("100 panics", || seen.get() >= 100);
        assert_eq!(timer.dispose_and_wait(), timerqueue::Waited::Ended);
        assert_eq!(runtime.metrics().panics, seen.get() as u64);
        assert_eq!(handled.get(), seen.get());
        assert_eq!(runtime.metrics().threads.alive, 2);
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
    let timer = Timer::on(&runtime, ms(1), ms(1), |_| panic!("the callback"));
    assert_eq!(clock.advance(ms(5)), 5);
    assert_eq!(runtime.metrics().panics, 5);
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
    let timer = OnceTimer::on(&runtime, ms(1), move |_| drop(last));
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
    let timer = Timer::on(&runtime, ms(1), ms(1), |_| panic_any(OnDrop(|| panic!("the payload, too"))));
    assert_eq!(clock.advance(ms(5)), 5);
    assert_eq!(runtime.metrics().panics, 5);
    drop(timer);
}

/// A runtime on virtual time, and the panics that its handler is told of: names of timers and
/// messages.
fn with_handler() -> (ManualClock, Runtime, Journal<[Option<String>; 2]>) {
    let (clock, told) = (ManualClock::new(), Journal::new());
    let builder = Runtime::builder().manual_clock(&clock).on_panic({
        let told = told.clone();
        move |panic| told.push([panic.timer_name(), panic.message()].map(|text| text.map(str::to_owned)))
    });
    (clock, builder.start().expect("nothing to refuse"), told)
}

#[test]
fn s12_a_panicking_destructor_of_the_callback_is_told_and_counted() {
    let (clock, runtime, told) = with_handler();
    let dropped = Count::new();
    let bomb = || {
        let dropped = dropped.clone();
        OnDrop(move || {
            dropped.bump();
            panic!("dropped");
        })
    };
    let timer = |due| {
        let bomb = bomb();
        Timer::on(&runtime, due, NEVER, move |_| bomb.hold())
    };
    let mut expected = 0;
    let mut check = |what: &str| {
        expected += 1;
        let seen = (dropped.get(), told.len(), runtime.metrics().panics, runtime.metrics().panics);
        assert_eq!(seen, (expected, expected, expected as u64, expected as u64), "{what}");
    };
    drop(timer(ms(1)));
    check("the drop of a waiting timer");
    drop(timer(NEVER));
    check("the drop of an idle timer");
    let disposed = timer(ms(1));
    disposed.dispose();
    check("dispose");
    assert_eq!(disposed.dispose_and_wait(), timerqueue::Waited::Ended);
    timer(NEVER).detach();
    check("an idle timer that was detached");
    timer(ms(1)).detach();
    assert_eq!(clock.advance(ms(1)), 1);
    check("freed after its only firing");
    // Consumed by the call: a panic of the callback like any other.
    let consumed = bomb();
    OnceTimer::on(&runtime, ms(1), move |_| drop(consumed)).detach();
    assert_eq!(clock.advance(ms(1)), 1);
    check("a callback that is consumed");
    let own = bomb();
    let ends_itself = Timer::on(&runtime, ms(1), ms(1), move |tick| {
        own.hold();
        tick.dispose();
    });
    assert_eq!(clock.advance(ms(1)), 1);
    check("disposed by its own callback");
    let bombed = bomb();
    let wall = WallTimer::on(&runtime, clock.wall() + secs(1), move |_| bombed.hold());
    drop(wall);
    check("a wall timer");
    let left_behind = timer(ms(1));
    let idle = timer(NEVER);
    runtime.shutdown(Duration::ZERO).expect("no threads");
    check("a shutdown");
    drop(timer(ms(1)));
    check("born disposed after the shutdown");
    drop(idle);
    check("an idle timer after the shutdown");
    drop((left_behind, ends_itself, disposed));
    assert!(told.take().iter().all(|[name, message]| name.is_none() && message.as_deref() == Some("dropped")));
}

#[test]
fn s12_a_panicking_destructor_is_told_with_the_name_of_its_timer() {
    let (_clock, runtime, told) = with_handler();
    for disposes in [false, true] {
        let owned = OnDrop(|| panic!("dropped"));
        let timer = TimerBuilder::on(&runtime).name("mine").due(secs(1)).start(move |_| owned.hold());
        if disposes {
            timer.dispose();
        }
        drop(timer);
        assert_eq!(told.take(), [["mine", "dropped"].map(|text| Some(text.to_owned()))]);
    }
}

/// The last handle of the runtime has gone, and its handler with it.
#[test]
fn s12_a_panicking_destructor_after_the_runtime_has_gone_does_no_harm() {
    let (_clock, runtime, told) = with_handler();
    let owned = OnDrop(|| panic!("dropped"));
    let idle = Timer::on(&runtime, NEVER, NEVER, move |_| owned.hold());
    drop(runtime);
    drop(idle);
    assert_eq!(told.len(), 0);
}

/// The handler is told before the timer counts as ended, and waits for that end: as inside of the
/// callback.
#[test]
fn s12_a_handler_may_wait_for_the_timer_whose_destructor_has_panicked() {
    within(PATIENCE, "a handler that waits for its timer", || {
        let own: Arc<Mutex<Option<Timer>>> = Arc::default();
        let (clock, waited) = (ManualClock::new(), Journal::new());
        let builder = Runtime::builder().manual_clock(&clock).on_panic({
            let (own, waited) = (Arc::clone(&own), waited.clone());
            move |_| waited.push(lock(&own).as_ref().map(Timer::dispose_and_wait))
        });
        let runtime = builder.start().expect("nothing to refuse");
        let owned = OnDrop(|| panic!("dropped"));
        *lock(&own) = Some(Timer::on(&runtime, ms(1), NEVER, move |tick| {
            owned.hold();
            tick.dispose();
        }));
        assert_eq!(clock.advance(ms(1)), 1);
        assert_eq!(waited.take(), [Some(timerqueue::Waited::InsideCallback)]);
    });
}

/// A handler that is told of what panics inside of itself would not come to an end.
#[test]
fn s12_what_panics_inside_of_the_handler_is_counted_and_not_told() {
    let own: Arc<Mutex<Option<Runtime>>> = Arc::default();
    let (clock, told) = (ManualClock::new(), Count::new());
    let builder = Runtime::builder().manual_clock(&clock).on_panic({
        let (own, told) = (Arc::clone(&own), told.clone());
        move |_| {
            let owned = OnDrop(|| panic!("inside of the handler"));
            let runtime = lock(&own).clone().expect("set below");
            drop(Timer::on(&runtime, NEVER, NEVER, move |_| owned.hold()));
            assert!(told.bump() < 10, "for ever");
        }
    });
    let runtime = builder.start().expect("nothing to refuse");
    *lock(&own) = Some(runtime.clone());
    for round in 1..=2 {
        let owned = OnDrop(|| panic!("dropped"));
        drop(Timer::on(&runtime, NEVER, NEVER, move |_| owned.hold()));
        assert_eq!((told.get(), runtime.metrics().panics), (round, 2 * round as u64));
    }
    *lock(&own) = None;
}
