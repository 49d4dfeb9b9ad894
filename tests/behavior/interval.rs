//! Intervals: S39, and the end of the runtime (S33).
//!
//! Ground rules. Most tests poll on virtual time and compare with a schedule computed tick by tick;
//! only tests of several threads run on real time. A test makes its interval once, and polls as a
//! task would.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::support::poll::{CountingWaker, PanickingWaker, panics, poll_pinned, waker_that};
use crate::support::{NEVER, PATIENCE, Random, block_on, manual, ms, native, ns, secs, us, within};
use timerqueue::{Interval, IntervalTick, ManualClock, MissedTicks, Runtime, StopHandle, error::RuntimeError};

const ALL: [MissedTicks; 4] = [MissedTicks::Rebase, MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay];

fn poll_tick(interval: &mut Interval, counter: &CountingWaker) -> Poll<Option<IntervalTick>> {
    interval.poll_tick(&mut Context::from_waker(&counter.waker()))
}

/// The tick that is ready now, as (due at, missed) in milliseconds of the clock; `None` if no tick
/// is ready.
fn take(interval: &mut Interval) -> Option<(u128, u64)> {
    match interval.poll_tick(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(tick)) => Some((tick.scheduled().as_duration().as_millis(), tick.missed())),
        Poll::Ready(None) => panic!("the interval has ended"),
        Poll::Pending => None,
    }
}

/// All ticks that a task which always waits sees while the clock goes on to `until_ms`.
fn take_until(clock: &ManualClock, interval: &mut Interval, until_ms: u64) -> Vec<(u128, u64)> {
    let mut ticks = Vec::new();
    loop {
        while let Some(tick) = take(interval) {
            ticks.push(tick);
        }
        let left = ms(until_ms).saturating_sub(clock.now().as_duration());
        if left.is_zero() {
            return ticks;
        }
        clock.advance(left.min(ms(1)));
    }
}

// ------------------------------------------------------------------------------------------------------------- ticks

#[test]
fn s39_an_interval_can_be_sent_shared_and_moved() {
    fn any_executor_will_do<T: Send + Sync + Unpin + 'static>() {}
    any_executor_will_do::<Interval>();
    any_executor_will_do::<StopHandle>();
    any_executor_will_do::<IntervalTick>();
}

#[test]
fn s39_the_first_tick_comes_after_one_period_and_then_one_each_period() {
    for origin in [0, 1, 332_999_999, 333_000_000] {
        for period in [ns(1), us(200), ms(333), secs(7), secs(3600)] {
            let (clock, runtime) = manual();
            clock.advance(ns(origin));
            let counter = CountingWaker::new();
            let mut interval = Interval::on(&runtime, period);
            for k in 1..=20 {
                let due = ns(origin) + period * k;
                assert_eq!(interval.next_due().map(|at| at.as_duration()), Some(due));
                assert!(poll_tick(&mut interval, &counter).is_pending());
                clock.advance(period - ns(1));
                assert!(poll_tick(&mut interval, &counter).is_pending(), "a nanosecond before");
                clock.advance(ns(1));
                assert_eq!(counter.wakes(), k as usize, "woken on the nanosecond");
                let Poll::Ready(Some(tick)) = poll_tick(&mut interval, &counter) else { panic!("due") };
                assert_eq!((tick.scheduled().as_duration(), tick.missed()), (due, 0));
            }
        }
    }
}

#[test]
fn s39_ticks_by_await() {
    let (clock, runtime) = manual();
    let mut interval = Interval::on(&runtime, secs(1));
    let counter = CountingWaker::new();
    let mut task = pin!(async {
        let mut seen = Vec::new();
        while seen.len() < 3 {
            seen.push(interval.tick().await.expect("goes on").scheduled().as_duration());
        }
        seen
    });
    for _ in 0..2 {
        assert!(poll_pinned(task.as_mut(), &counter).is_pending());
        clock.advance(secs(1));
    }
    assert!(poll_pinned(task.as_mut(), &counter).is_pending());
    clock.advance(secs(1));
    assert_eq!(poll_pinned(task.as_mut(), &counter), Poll::Ready(vec![secs(1), secs(2), secs(3)]));
    assert_eq!(counter.wakes(), 3);
}

#[test]
fn s39_no_drift_however_late_the_task_is_within_a_period() {
    let (clock, runtime) = manual();
    let mut random = Random(39);
    let mut interval = Interval::on(&runtime, ms(10));
    for k in 1..=1_000_u64 {
        assert_eq!(take(&mut interval), None);
        // The task is late by up to a nanosecond less than a period.
        let late = random.below(10_000_000);
        let at = ns(k * 10_000_000 + late);
        clock.advance(at - clock.now().as_duration());
        assert_eq!(take(&mut interval), Some((u128::from(k) * 10, 0)), "late by {late} ns");
    }
}

#[test]
fn s39_without_a_waiting_task_no_timer_fires() {
    let (clock, runtime) = manual();
    let interval = Interval::on(&runtime, ms(1));
    assert_eq!((clock.advance(secs(10)), runtime.metrics().active), (0, 0));
    assert_eq!(interval.next_due().map(|at| at.as_duration()), Some(ms(1)), "in the past: there to be taken");
}

#[test]
fn s39_ticks_without_a_waiting_task_coalesce_into_one() {
    let (clock, runtime) = manual();
    let mut interval = Interval::on(&runtime, ms(10));
    clock.advance(ms(57));
    assert_eq!(take(&mut interval), Some((10, 4)), "at once when it is asked for");
    assert_eq!(take(&mut interval), None, "one, and not five");
    clock.advance(ms(3));
    assert_eq!(take(&mut interval), Some((60, 0)), "the next at its place on the grid");
    clock.advance(ms(10));
    assert_eq!(take(&mut interval), Some((70, 0)));
}

#[test]
fn s39_each_policy_for_ticks_that_were_missed() {
    // Due at 50, 100, 150, ...; no task asks before 220, then a task that always waits.
    let seen = |policy| {
        let (clock, runtime) = manual();
        let mut interval = Interval::on(&runtime, ms(50)).missed_ticks(policy);
        clock.advance(ms(220));
        take_until(&clock, &mut interval, 350)
    };
    assert_eq!(seen(MissedTicks::Skip), [(50, 3), (250, 0), (300, 0), (350, 0)]);
    assert_eq!(seen(MissedTicks::Burst), [50, 100, 150, 200, 250, 300, 350].map(|at| (at, 0)));
    assert_eq!(seen(MissedTicks::Delay), [(50, 3), (270, 0), (320, 0)]);
    assert_eq!(seen(MissedTicks::Rebase), [(50, 2), (221, 0), (271, 0), (321, 0)]);
}

#[test]
fn s39_exactly_a_period_late_is_a_tick_missed() {
    let seen = |policy, at| {
        let (clock, runtime) = manual();
        let mut interval = Interval::on(&runtime, ms(50)).missed_ticks(policy);
        clock.advance(at);
        let tick = take(&mut interval);
        (tick, interval.next_due().map(|at| at.as_duration().as_millis()))
    };
    for policy in ALL {
        assert_eq!(seen(policy, ms(100) - ns(1)), (Some((50, 0)), Some(100)), "{policy:?}");
    }
    assert_eq!(seen(MissedTicks::Skip, ms(100)), (Some((50, 1)), Some(150)));
    assert_eq!(seen(MissedTicks::Burst, ms(100)), (Some((50, 0)), Some(100)));
    assert_eq!(seen(MissedTicks::Delay, ms(100)), (Some((50, 1)), Some(150)));
    assert_eq!(seen(MissedTicks::Rebase, ms(100)), (Some((50, 0)), Some(101)));
}

#[test]
fn s39_no_tick_of_the_grid_is_unaccounted_for() {
    let mut random = Random(391);
    for policy in [MissedTicks::Skip, MissedTicks::Burst] {
        let (clock, runtime) = manual();
        let period = 1 + random.below(20_000_000);
        let mut interval = Interval::on(&runtime, ns(period)).missed_ticks(policy);
        let (mut taken, mut missed) = (0, 0);
        for _ in 0..500 {
            clock.advance(ns(random.below(4 * period)));
            while let Poll::Ready(tick) = interval.poll_tick(&mut Context::from_waker(Waker::noop())) {
                let tick = tick.expect("goes on");
                // The ticks before this one have all been taken or counted as missed.
                assert_eq!(tick.scheduled().as_duration(), ns((taken + missed + 1) * period));
                assert!(tick.scheduled() <= clock.now(), "early");
                (taken, missed) = (taken + 1, missed + tick.missed());
            }
            let passed = clock.now().as_duration().as_nanos() as u64 / period;
            assert_eq!(taken + missed, passed, "{policy:?}, period {period} ns");
        }
        assert!(policy == MissedTicks::Burst || missed > 100);
    }
}

#[test]
fn s39_a_tick_is_not_lost_with_the_future_that_waited_for_it() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut interval = Interval::on(&runtime, secs(1));
    assert!(poll_pinned(pin!(interval.tick()), &counter).is_pending());
    clock.advance(secs(1));
    assert_eq!(counter.wakes(), 1);
    {
        // Woken, and dropped before it is polled.
        let _waiting = pin!(interval.tick());
    }
    let Poll::Ready(Some(tick)) = poll_pinned(pin!(interval.tick()), &counter) else { panic!("still there") };
    assert_eq!(tick.scheduled().as_duration(), secs(1));
    drop(interval);
    assert_eq!((runtime.metrics().active, counter.kept()), (0, 0));
}

#[test]
fn s39_never_early_on_real_time_and_on_the_grid() {
    let runtime = native();
    let made = runtime.now();
    let mut interval = Interval::on(&runtime, us(700));
    let first = interval.next_due().expect("it ticks");
    assert!(first >= made + us(700));
    let mut count = 0;
    for _ in 0..40 {
        let tick = block_on(interval.tick()).expect("the runtime is there");
        assert!(runtime.now() >= tick.scheduled(), "early");
        assert_eq!(tick.scheduled(), first + us(700) * count, "off the grid");
        count += 1 + u32::try_from(tick.missed()).expect("a few");
    }
}

// ------------------------------------------------------------------------------------------------------------ periods

#[test]
fn s39_the_period_can_be_changed_on_the_fly() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut interval = Interval::on(&runtime, secs(10));
    assert_eq!(interval.period(), secs(10));
    clock.advance(secs(4));
    // Shorter, while a task waits.
    assert!(poll_tick(&mut interval, &counter).is_pending());
    interval.set_period(secs(1));
    assert_eq!((interval.period(), interval.next_due()), (secs(1), Some(clock.now() + secs(1))));
    clock.advance(secs(1));
    assert_eq!((counter.wakes(), take(&mut interval)), (1, Some((5_000, 0))), "the task that waits is woken");
    // Longer, while a task waits: the task is not woken for the old one.
    assert!(poll_tick(&mut interval, &counter).is_pending());
    interval.set_period(secs(3));
    clock.advance(secs(3) - ns(1));
    assert_eq!((counter.wakes(), take(&mut interval)), (1, None));
    assert!(poll_tick(&mut interval, &counter).is_pending());
    clock.advance(ns(1));
    assert_eq!((counter.wakes(), take(&mut interval)), (2, Some((8_000, 0))));
    // While a tick is ready and not taken: the tick is given up.
    clock.advance(secs(3));
    interval.set_period(secs(2));
    assert_eq!(take(&mut interval), None);
    clock.advance(secs(2));
    assert_eq!(take(&mut interval), Some((13_000, 0)));
}

#[test]
fn s39_an_infinite_period_never_ticks_until_it_is_changed() {
    for never in [NEVER, ns(u64::MAX), secs(u64::MAX / 2)] {
        let (clock, runtime) = manual();
        let counter = CountingWaker::new();
        let mut interval = Interval::on(&runtime, never);
        assert_eq!((interval.period(), interval.next_due()), (NEVER, None));
        assert!(poll_tick(&mut interval, &counter).is_pending());
        clock.advance(secs(300 * 365 * 24 * 3600));
        assert!(poll_tick(&mut interval, &counter).is_pending());
        interval.set_period(secs(1));
        clock.advance(secs(1));
        assert_eq!(counter.wakes(), 1);
        assert!(take(&mut interval).is_some());
        interval.set_period(never);
        assert_eq!((clock.advance(secs(100)), take(&mut interval)), (0, None));
    }
}

#[test]
fn s39_a_period_of_zero_counts_as_a_nanosecond() {
    let (clock, runtime) = manual();
    let mut interval = Interval::on(&runtime, Duration::ZERO);
    assert_eq!((interval.period(), take(&mut interval)), (ns(1), None));
    clock.advance(ns(5));
    assert_eq!(take(&mut interval), Some((0, 4)));
    interval.set_period(Duration::ZERO);
    assert_eq!(interval.next_due(), Some(clock.now() + ns(1)));
}

#[test]
fn s39_a_period_that_leaves_the_clock_has_one_tick_or_none() {
    let (clock, runtime) = manual();
    clock.advance(secs(1));
    let mut interval = Interval::on(&runtime, ns(u64::MAX / 2 + 1));
    clock.advance(ns(u64::MAX / 2 + 1));
    assert!(take(&mut interval).is_some());
    assert_eq!((interval.next_due(), take(&mut interval)), (None, None));
}

// ------------------------------------------------------------------------------------------------------ stop and the end

#[test]
fn s39_a_stop_handle_ends_the_pending_tick_and_all_later_ones() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut interval = Interval::on(&runtime, secs(1));
    let handle = interval.stop_handle();
    assert!(poll_tick(&mut interval, &counter).is_pending());
    handle.stop();
    assert_eq!(counter.wakes(), 1, "at once");
    for _ in 0..3 {
        assert_eq!(poll_tick(&mut interval, &counter), Poll::Ready(None));
        clock.advance(secs(1));
    }
    assert_eq!((runtime.metrics().active, counter.kept(), counter.wakes()), (0, 0, 1), "nothing is left behind");
    interval.set_period(secs(5));
    assert_eq!(poll_tick(&mut interval, &counter), Poll::Ready(None), "for good");
    handle.stop();
}

#[test]
fn s39_stopped_while_a_tick_is_ready_or_no_task_waits() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut interval = Interval::on(&runtime, secs(1));
    let (first, second) = (interval.stop_handle(), interval.stop_handle());
    assert!(poll_tick(&mut interval, &counter).is_pending());
    clock.advance(secs(1));
    first.clone().stop();
    assert_eq!(poll_tick(&mut interval, &counter), Poll::Ready(None), "the end comes before a tick that waits");
    second.stop();

    let mut interval = Interval::on(&runtime, secs(1));
    drop(interval.stop_handle());
    clock.advance(secs(1));
    assert!(take(&mut interval).is_some(), "a handle that is dropped stops nothing");
    let handle = interval.stop_handle();
    drop(interval);
    handle.stop();
}

/// A task whose budget is spent is told of the stop later, and of no tick meanwhile.
#[test]
fn s39_a_spent_budget_lets_no_tick_go_before_a_stop() {
    let (clock, runtime) = manual();
    let [mut stopped, mut ticks] = [1, 1].map(|period| Interval::on(&runtime, secs(period)));
    let handles = [stopped.stop_handle(), ticks.stop_handle()];
    clock.advance(secs(1));
    handles.iter().for_each(StopHandle::stop);
    let counter = CountingWaker::new();
    while poll_tick(&mut stopped, &counter).is_ready() {}
    assert!((0..128).all(|_| poll_tick(&mut stopped, &counter).is_ready()));
    assert!(poll_tick(&mut ticks, &counter).is_pending(), "the budget is spent");
    assert_eq!(poll_tick(&mut ticks, &counter), Poll::Ready(None));
}

#[test]
fn s39_the_latest_task_that_waits_is_told_of_the_stop() {
    let (_clock, runtime) = manual();
    let counters = [CountingWaker::new(), CountingWaker::new()];
    let mut interval = Interval::on(&runtime, secs(1));
    let handle = interval.stop_handle();
    for counter in &counters {
        assert!(poll_tick(&mut interval, counter).is_pending());
    }
    assert_eq!(counters[0].kept(), 0);
    handle.stop();
    assert_eq!(counters.each_ref().map(CountingWaker::wakes), [0, 1]);
}

#[test]
fn s39_a_stop_from_another_thread_against_ticks() {
    within(PATIENCE, "stopping intervals", || {
        let runtime = native();
        for round in 0..300 {
            let mut interval = Interval::on(&runtime, us(30));
            let handle = interval.stop_handle();
            thread::scope(|scope| {
                let ticking = scope.spawn(move || {
                    let mut ticks = 0;
                    while block_on(interval.tick()).is_some() {
                        ticks += 1;
                    }
                    ticks
                });
                let until = runtime.now() + us(round);
                while runtime.now() < until {
                    std::hint::spin_loop();
                }
                handle.stop();
                assert!(ticking.join().expect("no panic") <= 1_000_000);
            });
        }
        assert_eq!(runtime.metrics().active, 0);
    });
}

#[test]
fn s39_a_waker_that_panics_leaves_interval_and_handle_usable() {
    let (clock, runtime) = manual();
    let panicking = PanickingWaker::on_wake();
    let mut interval = Interval::on(&runtime, secs(1));
    let handle = interval.stop_handle();
    let waker = panicking.waker();
    assert!(interval.poll_tick(&mut Context::from_waker(&waker)).is_pending());
    clock.advance(secs(1));
    assert_eq!(runtime.metrics().panics, 1);
    assert_eq!(take(&mut interval), Some((1_000, 0)));
    assert!(interval.poll_tick(&mut Context::from_waker(&waker)).is_pending());
    assert!(panics(|| handle.stop()), "on the thread that stops");
    assert_eq!(interval.poll_tick(&mut Context::from_waker(&waker)), Poll::Ready(None), "and it is stopped");
    PanickingWaker::set(&panicking.on_clone, true);
    let mut interval = Interval::on(&runtime, secs(1));
    let handle = interval.stop_handle();
    assert!(panics(|| interval.poll_tick(&mut Context::from_waker(&waker))));
    assert_eq!(take(&mut interval), None);
    handle.stop();
    drop(waker);
    assert_eq!(poll_tick(&mut interval, &CountingWaker::new()), Poll::Ready(None));
    assert_eq!(panicking.kept(), 0);
}

#[test]
fn s39_a_waker_may_stop_and_drop_its_interval() {
    let (clock, runtime) = manual();
    let mut interval = Interval::on(&runtime, secs(1));
    let handle = interval.stop_handle();
    let waker = waker_that({
        let handle = handle.clone();
        move || handle.stop()
    });
    assert!(interval.poll_tick(&mut Context::from_waker(&waker)).is_pending());
    clock.advance(secs(1));
    assert_eq!(interval.poll_tick(&mut Context::from_waker(&waker)), Poll::Ready(None));
    assert_eq!(runtime.metrics().panics, 0);
}

#[test]
fn s39_a_stop_handle_made_while_a_task_waits_wakes_it() {
    for period in [secs(1), NEVER] {
        let (_clock, runtime) = manual();
        let counter = CountingWaker::new();
        let mut interval = Interval::on(&runtime, period);
        assert!(poll_tick(&mut interval, &counter).is_pending());
        let handle = interval.stop_handle();
        // The task is woken by now, or by the stop; an executor polls it again then.
        if counter.wakes() > 0 {
            assert!(poll_tick(&mut interval, &counter).is_pending());
        }
        let woken = counter.wakes();
        let other = interval.stop_handle();
        assert_eq!(counter.wakes(), woken, "once, however many handles there are");
        thread::scope(|scope| scope.spawn(move || handle.stop()).join().expect("no panic"));
        assert_eq!(counter.wakes(), woken + 1);
        assert_eq!(poll_tick(&mut interval, &counter), Poll::Ready(None));
        drop(other);
        assert_eq!((counter.kept(), runtime.metrics().active), (0, 0));
    }
    // Stopped before the task that was woken polls again.
    let (_clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut interval = Interval::on(&runtime, NEVER);
    assert!(poll_tick(&mut interval, &counter).is_pending());
    interval.stop_handle().stop();
    assert!(counter.wakes() > 0);
    assert_eq!(poll_tick(&mut interval, &counter), Poll::Ready(None));
}

#[test]
fn s39_a_task_that_is_woken_for_a_stop_handle_does_not_lose_its_tick() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut interval = Interval::on(&runtime, secs(2));
    assert!(poll_tick(&mut interval, &counter).is_pending());
    let _handle = interval.stop_handle();
    interval.set_period(secs(1));
    assert!(poll_tick(&mut interval, &counter).is_pending());
    let woken = counter.wakes();
    clock.advance(secs(1));
    assert_eq!(counter.wakes(), woken + 1);
    assert!(matches!(poll_tick(&mut interval, &counter), Poll::Ready(Some(_))));
}

#[test]
fn s39_a_stop_handle_that_outlives_its_interval_keeps_and_wakes_no_task() {
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut interval = Interval::on(&runtime, secs(1));
    let handle = interval.stop_handle();
    assert!(poll_tick(&mut interval, &counter).is_pending());
    clock.advance(secs(1));
    assert!(matches!(poll_tick(&mut interval, &counter), Poll::Ready(Some(_))));
    assert_eq!(counter.kept(), 0, "a task that has its tick does not wait");
    assert!(poll_tick(&mut interval, &counter).is_pending());
    assert_eq!(counter.kept(), 2);
    drop(interval);
    assert_eq!(counter.kept(), 0);
    handle.stop();
    assert_eq!(counter.wakes(), 1, "for the tick");
}

#[test]
fn s33_an_interval_whose_runtime_has_ended_never_ticks() {
    for (what, runtime) in [("manual", manual().1), ("native", native())] {
        let counter = CountingWaker::new();
        let mut polled = Interval::on(&runtime, secs(3600));
        let mut never = Interval::on(&runtime, NEVER);
        let mut unpolled = Interval::on(&runtime, ms(1));
        unpolled.set_period(secs(3600));
        let handle = polled.stop_handle();
        assert!(poll_tick(&mut polled, &counter).is_pending());
        assert!(poll_tick(&mut never, &counter).is_pending());
        runtime.shutdown(PATIENCE).expect("no callback runs");
        for interval in [&mut polled, &mut never, &mut unpolled] {
            assert!(poll_tick(interval, &counter).is_pending(), "{what}");
            interval.set_period(ns(1));
            thread::sleep(ms(1));
            assert!(poll_tick(interval, &counter).is_pending(), "{what}: for good");
            assert!(matches!(block_on(interval.try_tick()), Err(RuntimeError::Ended)), "{what}");
        }
        assert_eq!(counter.kept(), 0, "{what}: an error leaves no waker behind");
        assert!(poll_tick(&mut polled, &counter).is_pending());
        let rings = counter.wakes();
        handle.stop();
        assert_eq!(counter.wakes(), rings + 1, "{what}: a stop still wakes");
        assert_eq!(poll_tick(&mut polled, &counter), Poll::Ready(None));
        assert!(matches!(block_on(polled.try_tick()), Ok(None)));
    }
}

// ------------------------------------------------------------------------------------------------------------- the rest

#[cfg(feature = "stream")]
#[test]
fn s39_as_a_stream() {
    use smol::stream::StreamExt;
    let (clock, runtime) = manual();
    let counter = CountingWaker::new();
    let mut interval = Interval::on(&runtime, secs(1));
    let handle = interval.stop_handle();
    assert!(poll_pinned(pin!(interval.next()), &counter).is_pending());
    clock.advance(secs(3));
    assert_eq!(counter.wakes(), 1);
    let Poll::Ready(Some(tick)) = poll_pinned(pin!(interval.next()), &counter) else { panic!("due") };
    assert_eq!((tick.scheduled().as_duration(), tick.missed()), (secs(1), 2));
    handle.stop();
    assert_eq!(block_on(interval.map(|tick| tick.missed()).collect::<Vec<_>>()), [0; 0], "ends with the stop");

    let runtime = native();
    let ticks = block_on(Interval::on(&runtime, ms(1)).take(3).collect::<Vec<_>>());
    assert!(ticks.windows(2).all(|pair| pair[0].scheduled() < pair[1].scheduled()) && ticks.len() == 3);
}

#[test]
fn s39_on_the_default_runtime() {
    let mut interval = Interval::new(ms(1));
    let first = interval.next_due().expect("it ticks");
    let tick = block_on(interval.tick()).expect("it is never shut down");
    assert_eq!(tick.scheduled(), first);
    assert!(Runtime::global().now() >= first);
    let shown = format!("{interval:?} {:?} {tick:?}", interval.stop_handle());
    assert!(shown.contains("period: 1ms") && shown.contains("StopHandle") && shown.contains("missed"), "{shown}");
}
