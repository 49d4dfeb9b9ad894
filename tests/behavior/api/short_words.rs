//! Short words of timers, delays and intervals; identities; leeway; what `Debug` shows.

use super::*;

#[test]
fn s61_a_stopped_timer_keeps_its_period_and_restarts_with_it() {
    let (clock, runtime) = manual();
    let count = Count::new();
    let timer = Timer::on(&runtime, secs(1), secs(2), count.callback());
    assert_eq!((clock.advance(secs(3)), timer.stop()), (2, Changed::WasWaiting));
    assert_eq!((timer.stop(), clock.advance(secs(60))), (Changed::WasIdle, 0));
    assert_eq!((timer.reset(secs(5)), clock.advance(secs(7))), (Changed::WasIdle, 2), "at 5 and 7 s");
    // In the middle of a period: the next tick is due a period later.
    clock.advance(secs(1));
    assert_eq!((timer.fire_now(), clock.advance(Duration::ZERO)), (Changed::WasWaiting, 1));
    assert_eq!((clock.advance(secs(2) - ns(1)), clock.advance(ns(1))), (0, 1));
    timer.dispose();
    assert_eq!([timer.stop(), timer.reset(secs(1)), timer.fire_now()], [Changed::Ended; 3]);
    assert_eq!(count.get(), 6);
}

#[test]
fn s61_one_shots_restart_and_once_timers_fire_now_once() {
    let (clock, runtime) = manual();
    let timer = Timer::on(&runtime, secs(1), Duration::ZERO, |_| {});
    assert_eq!((clock.advance(secs(1)), timer.reset(secs(1)), clock.advance(secs(9))), (1, Changed::WasIdle, 1));
    let once = OnceTimer::on(&runtime, secs(5), |_| {});
    assert_eq!((once.stop(), clock.advance(secs(9))), (Changed::WasWaiting, 0));
    assert_eq!((once.reset(secs(5)), once.fire_now()), (Changed::WasIdle, Changed::WasWaiting));
    assert_eq!((clock.advance(Duration::ZERO), once.reset(secs(1))), (1, Changed::Ended));
}

#[test]
fn s61_a_callback_stops_and_restarts_its_own_timer() {
    let (clock, runtime) = manual();
    let mut ticks = 0;
    let timer = TimerBuilder::on(&runtime).period(secs(1)).start_exclusive(move |tick| {
        ticks += 1;
        match ticks {
            2 => _ = tick.reset(secs(10)),
            4 => _ = tick.stop(),
            _ => {}
        }
    });
    assert_eq!(clock.advance(secs(60)), 4, "at 1, 2, 12 and 13 s");
    assert_eq!((timer.reset(secs(1)), clock.advance(secs(5))), (Changed::WasIdle, 5));
}

#[test]
fn s61_callbacks_tell_timers_apart() {
    let (clock, runtime) = manual();
    let seen = Journal::new();
    let note = |seen: &Journal<_>| {
        let seen = seen.clone();
        move |tick: &timerqueue::Tick<'_>| seen.push(tick.timer_id())
    };
    let (one, other) = (
        TimerBuilder::on(&runtime).period(secs(2)).start_exclusive(note(&seen)),
        OnceTimer::on(&runtime, secs(1), note(&seen)),
    );
    let wall = WallTimer::on(&runtime, clock.wall() + secs(3), {
        let seen = seen.clone();
        move |tick| seen.push(tick.timer_id())
    });
    clock.advance(secs(3));
    assert_eq!(seen.take(), [other.id(), one.id(), wall.id()]);
    assert_eq!(HashSet::from([one.id(), other.id(), wall.id(), one.id()]).len(), 3);
}

#[test]
fn s61_the_builder_makes_each_kind_with_leeway() {
    let (clock, runtime) = manual();
    let builder = || TimerBuilder::on(&runtime).due(ns(3_100_000)).leeway(ms(1));
    let (tick, seen) = (|at: u64| ns(at), Journal::new());
    let note = |seen: &Journal<_>| {
        let seen = seen.clone();
        move |tick: &timerqueue::Tick<'_>| seen.push(tick.now().as_duration())
    };
    let timers =
        (builder().start(note(&seen)), builder().start_exclusive(note(&seen)), builder().start_once(note(&seen)));
    assert_eq!((clock.advance(tick(3_999_999)), clock.advance(tick(1))), (0, 3));
    assert_eq!(seen.take(), [ms(4); 3]);
    assert_eq!(TimerBuilder::on(&runtime).period(secs(1)).try_start_once(|_| {}).map(|_| ()).ok(), Some(()));
    drop(timers);
    runtime.shutdown(Duration::ZERO).expect("no threads");
    for refused in [builder().try_start(|_| {}).err(), builder().try_start_exclusive(|_| {}).err()] {
        assert!(matches!(refused, Some(RuntimeError::Ended)));
    }
    assert!(builder().try_start_once(|_| {}).is_err());
}

#[test]
fn s61_delays_timeouts_and_intervals_with_leeway_are_woken_at_the_grid_and_ready_at_their_deadline() {
    let (clock, runtime) = manual();
    let delay = Delay::on(&runtime, ns(3_100_000)).leeway(ms(1));
    assert_eq!(delay.deadline().as_duration(), ns(3_100_000));
    clock.block_on(delay);
    assert_eq!(clock.now().as_duration(), ms(4));
    assert!(clock.block_on(Timeout::on(&runtime, ns(1_100_000), pending::<()>()).leeway(ms(1))).is_err());
    assert_eq!(clock.now().as_duration(), ms(6));
    let mut interval = Interval::on(&runtime, ns(700_000)).leeway(ms(1));
    let ticks: Vec<_> = (0..3).map(|_| clock.block_on(interval.tick()).expect("a tick").scheduled()).collect();
    assert_eq!(ticks.iter().map(|at| at.as_duration()).collect::<Vec<_>>(), [6_700_000, 7_400_000, 8_100_000].map(ns));
    assert_eq!(clock.now().as_duration(), ms(9));
    // Ready at a poll between deadline and grid.
    let mut delay = Delay::on(&runtime, ns(100_000)).leeway(ms(1));
    assert!(crate::support::poll::poll(&mut delay, &crate::support::poll::CountingWaker::new()).is_pending());
    clock.advance(ns(100_000));
    assert!(
        delay.is_elapsed()
            && crate::support::poll::poll(&mut delay, &crate::support::poll::CountingWaker::new()).is_ready()
    );
}

#[test]
fn s61_an_interval_begins_where_it_is_told_and_starts_again() {
    let (clock, runtime) = manual();
    let mut interval = runtime.enter(|| Interval::at(clock.now() + secs(1), secs(10)));
    let take = |interval: &mut Interval| clock.block_on(interval.tick()).map(|tick| tick.scheduled().as_duration());
    assert_eq!([take(&mut interval), take(&mut interval)], [Some(secs(1)), Some(secs(11))]);
    clock.advance(secs(5));
    interval.reset();
    assert_eq!(take(&mut interval), Some(secs(26)));
    interval.reset_at(clock.now());
    assert_eq!([take(&mut interval), take(&mut interval)], [Some(secs(26)), Some(secs(36))]);
    let never = clock.now() + Duration::MAX;
    interval.reset_at(never);
    assert_eq!((interval.next_due(), runtime.enter(|| Interval::at(never, secs(1))).next_due()), (None, None));
}

#[test]
fn s61_debug_shows_due_point_and_state() {
    let (clock, runtime) = manual();
    clock.advance(ms(500));
    let timer = TimerBuilder::on(&runtime).period(secs(2)).start_exclusive(|_| {});
    let shows = |what: &dyn std::fmt::Debug, parts: &[&str]| {
        let shown = format!("{what:?}");
        assert!(parts.iter().all(|part| shown.contains(part)), "{shown}: {parts:?}");
    };
    shows(&timer, &["Timer {", "Waiting", "due: 2.500000000s", "period: 2s"]);
    timer.stop();
    shows(&timer, &["Idle", "period: 2s"]);
    timer.dispose();
    shows(&timer, &["Disposed"]);
    shows(&OnceTimer::on(&runtime, secs(1), |_| {}), &["OnceTimer {", "due: 1.500000000s"]);
    shows(&WallTimer::on(&runtime, clock.wall() + secs(1), |_| {}), &["WallTimer {", "Waiting", "wall: "]);
    shows(&Delay::on(&runtime, secs(1)), &["deadline: 1.500000000s", "elapsed: false"]);
    shows(&Interval::on(&runtime, Duration::MAX), &["next_due: never"]);
    let inside = Journal::new();
    let own: Arc<OnceLock<Timer>> = Arc::default();
    let timer = Timer::on(&runtime, secs(1), NEVER, {
        let (own, inside) = (Arc::downgrade(&own), inside.clone());
        move |tick| inside.push((format!("{:?}", own.upgrade().expect("kept").get()), format!("{tick:?}")))
    });
    own.set(timer).expect("once");
    clock.advance(secs(1));
    let shown = inside.take();
    assert!(shown[0].0.contains("running: 1") && shown[0].1.contains("scheduled: 1.500000000s"), "{shown:?}");
}
