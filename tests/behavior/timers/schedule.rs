//! Restarting, phase, and missed ticks (S6 to S8).

use super::*;

#[test]
fn s06_a_one_shot_that_fired_is_idle_and_can_be_started_again() {
    for due in [0, 1, 333, 400, 700_000] {
        let (clock, runtime) = manual();
        let (timer, journal) = journal_of(&runtime, ms(due), Duration::ZERO);
        for round in 1..=5 {
            assert_eq!(clock.advance(ms(due)), 1, "round {round}");
            assert_eq!((clock.advance(ms(due)), runtime.metrics().active), (0, 0), "idle after round {round}");
            assert_eq!(timer.change(ms(due), Duration::ZERO), Changed::WasIdle);
        }
        assert_eq!(journal.take(), (0..5).map(|k| (2 * k + 1) * due * 1_000_000).collect::<Vec<_>>());
    }
}

#[test]
fn s07_ticks_are_counted_from_the_scheduled_instant() {
    for period in [1, 10, 50, 332, 333, 334, 400] {
        let (clock, runtime) = manual();
        let scheduled = Journal::new();
        let timer = Timer::on(&runtime, ms(period), ms(period), {
            let scheduled = scheduled.clone();
            move |tick| scheduled.push((tick.scheduled().as_duration(), tick.missed()))
        });
        let mut random = Random(period);
        for _ in 0..100 {
            // Late by less than a period: the phase stays.
            clock.stall(ns(random.below(period * 1_000_000)));
            clock.advance(Duration::ZERO);
        }
        let seen = scheduled.take();
        assert!(seen.len() > 20);
        for (k, tick) in seen.into_iter().enumerate() {
            assert_eq!(tick, (ms(period) * (k as u32 + 1), 0), "period {period} ms: no drift");
        }
        drop(timer);
    }
}

#[test]
fn s07_no_drift_on_real_time() {
    let runtime = native();
    let scheduled = Journal::new();
    let timer = TimerBuilder::on(&runtime).due(ms(3)).period(ms(2)).missed_ticks(MissedTicks::Skip).start({
        let scheduled = scheduled.clone();
        move |tick| scheduled.push((tick.scheduled().as_duration(), tick.missed()))
    });
    // Callbacks may overlap, so they may reach the journal late and in a different order.
    let mut ticks: Vec<(Duration, u64)> = Vec::new();
    eventually("50 ticks are on the grid, whatever the callback's lateness", || {
        ticks.extend(scheduled.take());
        ticks.sort();
        ticks.windows(2).take_while(|pair| pair[1].0 - pair[0].0 == ms(2) * (1 + pair[0].1 as u32)).count() >= 50
    });
    assert_eq!(timer.dispose_and_wait(), timerqueue::Waited::Ended);
}

/// Runs a timer with a period of 50 ms, first due at 100 ms; the tick of 100 ms runs only at
/// `taken_ms`. Returns the ticks until 400 ms, as (at, scheduled, missed), all in ms.
fn late_tick(policy: Option<MissedTicks>, exclusive: bool, taken_ms: u64) -> Vec<(u64, u64, u64)> {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let builder = TimerBuilder::on(&runtime).due(ms(100)).period(ms(50));
    let builder = if let Some(policy) = policy { builder.missed_ticks(policy) } else { builder };
    let callback = {
        let journal = journal.clone();
        move |tick: &Tick<'_>| {
            let (at, scheduled) = (tick.now().as_duration(), tick.scheduled().as_duration());
            journal.push((at.as_millis() as u64, scheduled.as_millis() as u64, tick.missed()));
        }
    };
    let timer = if exclusive { builder.start_exclusive(callback) } else { builder.start(callback) };
    clock.stall(ms(taken_ms));
    clock.advance(ms(400 - taken_ms));
    drop(timer);
    journal.take()
}

#[test]
fn s08_late_by_less_than_a_period_keeps_the_phase_under_every_policy() {
    for policy in [MissedTicks::Rebase, MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay] {
        for exclusive in [false, true] {
            let mut want = vec![(149, 100, 0)];
            want.extend((3..=8).map(|k| (k * 50, k * 50, 0)));
            assert_eq!(late_tick(Some(policy), exclusive, 149), want, "{policy:?}");
        }
    }
}

#[test]
fn s08_rebase_runs_one_tick_at_once_and_starts_again_from_there() {
    for exclusive in [false, true] {
        // Two ticks were missed (150 and 200); one of them runs as the catch-up tick.
        let want = [(220, 100, 1), (221, 221, 0), (271, 271, 0), (321, 321, 0), (371, 371, 0)];
        assert_eq!(late_tick(Some(MissedTicks::Rebase), exclusive, 220), want);
        assert_eq!(late_tick(None, exclusive, 220), want, "the default");
        assert_eq!(late_tick(None, exclusive, 150)[..2], [(150, 100, 0), (151, 151, 0)], "a whole period late");
    }
}

#[test]
fn s08_skip_returns_to_the_grid() {
    for exclusive in [false, true] {
        let want = [(220, 100, 2), (250, 250, 0), (300, 300, 0), (350, 350, 0), (400, 400, 0)];
        assert_eq!(late_tick(Some(MissedTicks::Skip), exclusive, 220), want);
        assert_eq!(late_tick(Some(MissedTicks::Skip), exclusive, 150)[..2], [(150, 100, 1), (200, 200, 0)]);
    }
}

#[test]
fn s08_burst_runs_every_missed_tick() {
    for exclusive in [false, true] {
        let mut want = vec![(220, 100, 0), (220, 150, 0), (220, 200, 0)];
        want.extend([250, 300, 350, 400].map(|at| (at, at, 0)));
        assert_eq!(late_tick(Some(MissedTicks::Burst), exclusive, 220), want);
        assert_eq!(late_tick(Some(MissedTicks::Burst), exclusive, 150)[..2], [(150, 100, 0), (150, 150, 0)]);
    }
}

#[test]
fn s08_delay_waits_a_full_period() {
    for exclusive in [false, true] {
        let want = [(220, 100, 2), (270, 270, 0), (320, 320, 0), (370, 370, 0)];
        assert_eq!(late_tick(Some(MissedTicks::Delay), exclusive, 220), want);
        assert_eq!(late_tick(Some(MissedTicks::Delay), exclusive, 150)[..2], [(150, 100, 1), (200, 200, 0)]);
    }
}

#[test]
fn s08_no_tick_is_unaccounted_for() {
    const PERIOD: u64 = 10_000_019;
    let mut random = Random(8);
    for policy in [MissedTicks::Rebase, MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay] {
        let (clock, runtime) = manual();
        let journal = Journal::new();
        let timer = TimerBuilder::on(&runtime).due(ns(PERIOD)).period(ns(PERIOD)).missed_ticks(policy).start({
            let journal = journal.clone();
            move |tick| {
                journal.push((nanos(tick.scheduled().as_duration()), nanos(tick.now().as_duration()), tick.missed()));
            }
        });
        for _ in 0..500 {
            clock.stall(ns(random.below(PERIOD / 2)));
            if random.below(5) == 0 {
                clock.stall(ns(random.below(8 * PERIOD)));
            }
            clock.advance(ns(random.below(PERIOD)));
        }
        drop(timer);
        let seen = journal.take();
        assert!(seen.iter().any(|&(due, now, _)| now - due >= 2 * PERIOD), "whole periods were missed");
        for pair in seen.windows(2) {
            let ((due, now, missed), (next, ..)) = (pair[0], pair[1]);
            let passed = (now - due) / PERIOD;
            let (want_next, want_missed) = match policy {
                _ if passed == 0 => (due + PERIOD, 0),
                MissedTicks::Rebase => (now + 1_000_000, passed - 1),
                MissedTicks::Skip => (due + (passed + 1) * PERIOD, passed),
                MissedTicks::Burst => (due + PERIOD, 0),
                _ => (now + PERIOD, passed),
            };
            assert_eq!((next, missed), (want_next, want_missed), "{policy:?} after {due}, taken up at {now}");
        }
    }
}

#[test]
fn s08_the_catch_up_tick_of_a_fast_timer_is_a_period_away() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timer = Timer::on(&runtime, us(200), us(200), {
        let journal = journal.clone();
        move |tick| journal.push((tick.now().as_duration().as_micros(), tick.missed()))
    });
    clock.stall(us(1_000));
    clock.advance(us(400));
    assert_eq!(journal.take(), [(1_000, 3), (1_200, 0), (1_400, 0)]);
    drop(timer);
}
