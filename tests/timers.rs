//! What a timer promises while nobody changes or disposes it: S1 to S13 of the list of promises.
//!
//! Ground rules. One test or more for each promise, named after it. Virtual time wherever the promise is not about
//! threads; on real time "never early" is asserted of every sample and "near" of the best one only.

mod common;

use std::panic::panic_any;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use common::{
    Canary, Count, Gate, Journal, NEVER, OnDrop, PATIENCE, Random, eventually, lock, manual, ms, native, ns, secs, us,
    within,
};
use timerqueue::{Changed, ManualClock, MissedTicks, Runtime, Tick, Timer};

/// Where the clock may stand when a timer is made: on both sides of the edges of windows (333 ms) and of groups of
/// 1,024.
const ORIGINS_NS: [u64; 8] =
    [0, 1, 332_999_999, 333_000_000, 333_000_001, 1_000_000_000, 1024 * 333_000_000 - 1, 1024 * 333_000_000];

fn at_origin(origin_ns: u64) -> (ManualClock, Runtime) {
    let (clock, runtime) = manual();
    clock.advance(ns(origin_ns));
    (clock, runtime)
}

/// When, in nanoseconds since the clock was made, each callback ran. Checks on the way that none ran off its instant.
fn journal_of(runtime: &Runtime, due: Duration, period: Duration) -> (Timer, Journal<u64>) {
    let journal = Journal::new();
    let timer = runtime.timer(due, period, {
        let journal = journal.clone();
        move |tick: &Tick<'_>| {
            let on_time = tick.lateness().is_zero() && tick.missed() == 0 && tick.scheduled() == tick.now();
            // An instant that cannot be mistaken for a right one, since panics do not leave a callback.
            journal.push(if on_time { nanos(tick.now().as_duration()) } else { u64::MAX });
        }
    });
    (timer, journal)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("fits the clock")
}

// --------------------------------------------------------------------------------------------- S1: due time and period

#[test]
fn s01_due_and_period_are_independent() {
    let pairs = [
        (1, 1),
        (50, 50),
        (250, 50),
        (50, 250),
        (50, 400),
        (400, 50),
        (400, 400),
        (332, 332),
        (332, 334),
        (333, 333),
        (334, 332),
        (334, 334),
        (1, 333),
        (333, 1),
        (0, 50),
        (700, 1),
    ];
    for origin in ORIGINS_NS {
        for (due, period) in pairs {
            let (clock, runtime) = at_origin(origin);
            let (timer, journal) = journal_of(&runtime, ms(due), ms(period));
            let run = clock.advance(ms(2_000));
            let want: Vec<u64> = (0..)
                .map(|k| due + k * period)
                .take_while(|&at| at <= 2_000)
                .map(|at| origin + at * 1_000_000)
                .collect();
            assert_eq!(run as usize, want.len(), "origin {origin} ns, due {due} ms, period {period} ms");
            assert_eq!(journal.take(), want, "origin {origin} ns, due {due} ms, period {period} ms");
            drop(timer);
        }
    }
}

#[test]
fn s01_an_infinite_due_time_is_idle_whatever_the_period() {
    let (clock, runtime) = manual();
    for period in [ns(0), ns(1), ms(50), ms(400), NEVER] {
        let fired = Count::new();
        let timer = runtime.timer(NEVER, period, fired.callback());
        assert_eq!(runtime.active_timers(), 0, "idle: waits for nothing");
        assert_eq!(clock.advance(secs(3600)), 0);
        assert_eq!(timer.change(ms(1), NEVER), Changed::WasIdle);
        assert_eq!(clock.advance(ms(1)), 1);
        assert_eq!(fired.get(), 1);
    }
}

#[test]
fn s01_period_zero_or_infinite_is_one_shot() {
    for period in [Duration::ZERO, NEVER] {
        for due in [0, 1, 332, 333, 334, 5_000] {
            let (clock, runtime) = manual();
            let (timer, journal) = journal_of(&runtime, ms(due), period);
            clock.advance(secs(3600));
            assert_eq!(journal.take(), [due * 1_000_000]);
            assert_eq!(runtime.active_timers(), 0);
            drop(timer);
        }
    }
}

#[test]
fn s01_the_builder_starts_with_one_period() {
    let (clock, runtime) = manual();
    let fired = Count::new();
    let every = runtime.timer_builder().period(ms(400)).start(fired.callback());
    assert_eq!(runtime.next_due(), Some(clock.now() + ms(400)));
    assert_eq!(clock.advance(ms(1_200)), 3);
    drop(every);
    let neither = runtime.timer_builder().start(fired.callback());
    let zero = runtime.timer_builder().period(Duration::ZERO).start(fired.callback());
    assert_eq!((clock.advance(secs(3600)), runtime.active_timers()), (0, 0));
    assert_eq!(fired.get(), 3);
    drop((neither, zero));
}

// ----------------------------------------------------------------------------- S2, S3: durations exact and of any size

#[test]
fn s02_a_period_below_a_millisecond_is_periodic() {
    let (clock, runtime) = manual();
    let (timer, journal) = journal_of(&runtime, us(200), us(200));
    assert_eq!(clock.advance(ms(1)), 5);
    assert_eq!(journal.take(), [200_000, 400_000, 600_000, 800_000, 1_000_000]);
    drop(timer);
}

#[test]
fn s02_nothing_is_rounded() {
    for origin in ORIGINS_NS {
        for due in [1, 2, 999, 999_999, 1_000_001, 262_143, 262_145, 332_999_999, 333_000_001, 1_234_567_891] {
            let (clock, runtime) = at_origin(origin);
            let (timer, journal) = journal_of(&runtime, ns(due), NEVER);
            assert_eq!(clock.advance(ns(due - 1)), 0, "a nanosecond before");
            assert_eq!(clock.advance(ns(1)), 1, "on the nanosecond");
            assert_eq!(journal.take(), [origin + due]);
            drop(timer);
        }
    }
    let (clock, runtime) = at_origin(332_999_500);
    let (timer, journal) = journal_of(&runtime, ns(1), ns(1));
    assert_eq!(clock.advance(us(1)), 1_000, "a period of a nanosecond, across the edge of a window");
    assert_eq!(journal.take(), (332_999_501..=333_000_500).collect::<Vec<_>>());
    drop(timer);
}

/// The last instant that a clock shows.
const LAST_NS: u64 = u64::MAX - 2;

#[test]
fn s03_any_duration_is_accepted_and_what_does_not_fit_is_never() {
    for origin in ORIGINS_NS {
        let (clock, runtime) = at_origin(origin);
        let end = LAST_NS + 1 - origin;
        let never = [ns(end), ns(end) + ns(1), ns(u64::MAX), ns(u64::MAX) + ns(1), secs(u64::MAX / 2), NEVER];
        for due in never {
            for period in [Duration::ZERO, ns(1), secs(1 << 40), NEVER] {
                drop(runtime.timer(due, period, |_| {}));
                let timer = runtime.exclusive_timer(due, period, |_| {});
                assert_eq!(timer.change(due, period), Changed::WasIdle, "{due:?} is never");
            }
            drop(runtime.once(due, |_| {}));
        }
        let (timer, journal) = journal_of(&runtime, ns(end - 1), ns(1));
        assert_eq!(runtime.active_timers(), 1, "the last instant of the clock fits");
        assert_eq!(clock.advance(NEVER), 1, "and the clock gets there");
        assert_eq!(journal.take(), [LAST_NS]);
        assert_eq!(clock.advance(NEVER), 0, "where it stands");
        drop(timer);
    }
}

#[test]
fn s03_a_period_that_leaves_the_clock_ends_the_timer() {
    const DAY: u64 = 24 * 60 * 60;
    let last = LAST_NS;
    let cases: [(Duration, Duration, &[Duration]); 4] = [
        (ns(7), ns(last), &[ns(7)]),
        (ns(7), ns(last - 7), &[ns(7), ns(last)]),
        (ns(0), ns(1 << 63), &[ns(0), ns(1 << 63)]),
        (secs(50 * DAY), secs(300 * 365 * DAY), &[secs(50 * DAY), secs((50 + 300 * 365) * DAY)]),
    ];
    for (due, period, want) in cases {
        let (clock, runtime) = manual();
        let (timer, journal) = journal_of(&runtime, due, period);
        clock.advance(NEVER);
        assert_eq!(journal.take(), want.iter().copied().map(nanos).collect::<Vec<_>>(), "{due:?}, {period:?}");
        assert_eq!(runtime.active_timers(), 0);
        drop(timer);
    }
}

#[test]
fn s03_a_late_tick_near_the_end_of_the_clock_saturates() {
    for policy in [MissedTicks::Rebase, MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay] {
        let (clock, runtime) = manual();
        let fired = Count::new();
        let timer =
            runtime.timer_builder().due(ns(5)).period(ns(u64::MAX / 4)).missed_ticks(policy).start(fired.callback());
        clock.stall(NEVER);
        clock.advance(Duration::ZERO);
        let want = if policy == MissedTicks::Burst { 4 } else { 1 };
        assert_eq!((fired.get(), runtime.active_timers()), (want, 0), "{policy:?}");
        drop(timer);
    }
}

// ---------------------------------------------------------------------------------------------- S4, S5: where and when

#[test]
fn s04_due_time_zero_never_fires_inside_the_constructor() {
    let (clock, runtime) = manual();
    let fired = Count::new();
    let timer = runtime.timer(Duration::ZERO, NEVER, fired.callback());
    assert_eq!(fired.get(), 0);
    assert_eq!(timer.change(Duration::ZERO, NEVER), Changed::WasWaiting);
    assert_eq!(fired.get(), 0, "nor inside change");
    assert_eq!(clock.advance(Duration::ZERO), 1);

    let runtime = native();
    let (send, receive) = mpsc::channel::<ThreadId>();
    for _ in 0..100 {
        // Held while the timer is made: a callback on this thread would never get it.
        let held = Arc::new(Mutex::new(()));
        let guard = lock(&held);
        let timer = runtime.once(Duration::ZERO, {
            let (held, send) = (Arc::clone(&held), send.clone());
            move |_| {
                drop(lock(&held));
                let _ = send.send(thread::current().id());
            }
        });
        drop(guard);
        assert_ne!(receive.recv_timeout(PATIENCE).expect("fires"), thread::current().id());
        drop(timer);
    }
}

#[test]
fn s05_never_early_on_virtual_time() {
    let mut random = Random(5);
    let (clock, runtime) = manual();
    let early = Count::new();
    let mut timers = Vec::new();
    for _ in 0..2_000 {
        let due = random.below(3_000_000_000);
        let period = 1 + random.below(700_000_000);
        let earliest = clock.now() + ns(due);
        let early = early.clone();
        timers.push(runtime.timer(ns(due), ns(period), move |tick| {
            let right = tick.now() >= tick.scheduled() && tick.scheduled() >= earliest;
            if !right {
                early.bump();
            }
        }));
        if random.below(8) == 0 {
            clock.stall(ns(random.below(500_000_000)));
        } else {
            clock.advance(ns(random.below(3_000_000)));
        }
    }
    assert!(clock.advance(secs(5)) > 10_000);
    assert_eq!((early.get(), runtime.panics()), (0, 0));
}

#[test]
fn s05_never_early_on_real_time_and_near_at_best() {
    let runtime = native();
    let samples = Journal::new();
    let mut random = Random(55);
    let mut timers = Vec::new();
    for _ in 0..300 {
        let due = us(random.below(150_000));
        let before = (Instant::now(), runtime.now());
        let samples = samples.clone();
        timers.push(runtime.timer(due, NEVER, move |tick| {
            let (instant, now) = (Instant::now(), tick.now());
            let late = instant.checked_duration_since(before.0 + due);
            // None is early, by the clock of the runtime or by that of the standard library.
            let early = tick.scheduled() < before.1 + due || now < tick.scheduled();
            samples.push(if early { None } else { late });
        }));
    }
    eventually("all have fired", || samples.len() == 300);
    let late: Option<Vec<Duration>> = samples.take().into_iter().collect();
    let best = late.expect("none is early").into_iter().min();
    assert!(best < Some(ms(20)), "near, at least once: {best:?}");
}

#[test]
fn s05_periodic_ticks_are_never_early_on_real_time() {
    let runtime = native();
    let early = Count::new();
    let ticks = Count::new();
    let timers: Vec<Timer> = (1..=20)
        .map(|n| {
            let (early, ticks) = (early.clone(), ticks.clone());
            runtime.timer(us(170 * n), us(330 * n), move |tick| {
                let now = tick.now();
                if now < tick.scheduled() {
                    early.bump();
                }
                ticks.bump();
            })
        })
        .collect();
    eventually("2,000 ticks", || ticks.get() >= 2_000);
    drop(timers);
    assert_eq!(early.get(), 0);
}

// -------------------------------------------------------------------------------- S6 to S8: again, phase, missed ticks

#[test]
fn s06_a_one_shot_that_fired_is_idle_and_can_be_started_again() {
    for due in [0, 1, 333, 400, 700_000] {
        let (clock, runtime) = manual();
        let (timer, journal) = journal_of(&runtime, ms(due), Duration::ZERO);
        for round in 1..=5 {
            assert_eq!(clock.advance(ms(due)), 1, "round {round}");
            assert_eq!((clock.advance(ms(due)), runtime.active_timers()), (0, 0), "idle after round {round}");
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
        let timer = runtime.timer(ms(period), ms(period), {
            let scheduled = scheduled.clone();
            move |tick| scheduled.push((tick.scheduled().as_duration(), tick.missed()))
        });
        let mut random = Random(period);
        for _ in 0..100 {
            // Late by anything short of a period: the phase stays.
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
    let timer = runtime.timer_builder().due(ms(3)).period(ms(2)).missed_ticks(MissedTicks::Skip).start({
        let scheduled = scheduled.clone();
        move |tick| scheduled.push((tick.scheduled().as_duration(), tick.missed()))
    });
    // Callbacks may overlap, and so reach the journal in another order, any of them late.
    let mut ticks: Vec<(Duration, u64)> = Vec::new();
    eventually("50 ticks are on the grid, whatever the callback's lateness", || {
        ticks.extend(scheduled.take());
        ticks.sort();
        ticks.windows(2).take_while(|pair| pair[1].0 - pair[0].0 == ms(2) * (1 + pair[0].1 as u32)).count() >= 50
    });
    assert_eq!(timer.dispose_and_wait(), timerqueue::Waited::Ended);
}

/// Runs a timer with a period of 50 ms, first due at 100 ms, whose tick of 100 ms is only taken up at `taken_ms`; what
/// ran until 400 ms, as (at, scheduled, missed), all in ms.
fn late_tick(policy: Option<MissedTicks>, exclusive: bool, taken_ms: u64) -> Vec<(u64, u64, u64)> {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let builder = runtime.timer_builder().due(ms(100)).period(ms(50));
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
        // Two were passed over (150 and 200); one of them is the catch-up tick.
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
        let timer = runtime.timer_builder().due(ns(PERIOD)).period(ns(PERIOD)).missed_ticks(policy).start({
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
                MissedTicks::Delay => (now + PERIOD, passed),
            };
            assert_eq!((next, missed), (want_next, want_missed), "{policy:?} after {due}, taken up at {now}");
        }
    }
}

#[test]
fn s08_the_catch_up_tick_of_a_fast_timer_is_a_period_away() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timer = runtime.timer(us(200), us(200), {
        let journal = journal.clone();
        move |tick| journal.push((tick.now().as_duration().as_micros(), tick.missed()))
    });
    clock.stall(us(1_000));
    clock.advance(us(400));
    assert_eq!(journal.take(), [(1_000, 3), (1_200, 0), (1_400, 0)]);
    drop(timer);
}

// ----------------------------------------------------------------------------------------- S9, S10: overlap, re-filing

#[test]
fn s09_callbacks_of_one_timer_overlap() {
    within(PATIENCE, "overlapping callbacks", || {
        let runtime = native();
        let together = Arc::new(Barrier::new(4));
        let met = Count::new();
        let timer = runtime.timer(ms(1), ms(1), {
            let (together, met, entered) = (Arc::clone(&together), met.clone(), Count::new());
            move |_| {
                // The first four meet, or nobody leaves.
                if entered.bump() <= 4 {
                    together.wait();
                    met.bump();
                }
            }
        });
        eventually("four ran at the same time", || met.get() == 4);
        drop(timer);
    });
}

#[test]
fn s09_an_exclusive_timer_never_overlaps_and_coalesces() {
    let runtime = native();
    let inside = Arc::new(AtomicBool::new(false));
    let overlaps = Count::new();
    let journal = Journal::new();
    // What is captured is not `Sync`, and the callback is `FnMut`: only exclusiveness makes this sound.
    let mut calls = std::cell::Cell::new(0u64);
    let timer = runtime.timer_builder().due(us(300)).period(us(300)).missed_ticks(MissedTicks::Skip).start_exclusive({
        let (inside, overlaps, journal) = (Arc::clone(&inside), overlaps.clone(), journal.clone());
        move |tick| {
            if inside.swap(true, Ordering::SeqCst) {
                overlaps.bump();
            }
            *calls.get_mut() += 1;
            journal.push((nanos(tick.scheduled().as_duration()), tick.missed(), calls.get()));
            // Longer than two periods, so that ticks come due meanwhile.
            while tick.lateness() < us(800) {
                thread::yield_now();
            }
            inside.store(false, Ordering::SeqCst);
        }
    });
    eventually("40 calls", || journal.len() >= 40);
    assert_eq!(timer.dispose_and_wait(), timerqueue::Waited::Ended);
    let ticks = journal.take();
    assert_eq!(overlaps.get(), 0);
    assert!(ticks.iter().any(|tick| tick.1 > 0), "ticks came due while a callback ran");
    for (k, pair) in ticks.windows(2).enumerate() {
        let ((due, missed, call), (next, ..)) = (pair[0], pair[1]);
        assert_eq!(call, k as u64 + 1);
        assert_eq!(next - due, 300_000 * (1 + missed), "coalesced into one, and none unaccounted for");
    }
}

#[test]
fn s09_ticks_that_come_due_while_an_exclusive_callback_is_blocked_become_one() {
    within(PATIENCE, "a blocked exclusive callback", || {
        let runtime = native();
        let (entered, gate) = (Count::new(), Gate::new());
        let journal = Journal::new();
        let timer = runtime.timer_builder().due(ms(2)).period(ms(2)).missed_ticks(MissedTicks::Skip).start_exclusive({
            let (entered, gate, journal) = (entered.clone(), gate.clone(), journal.clone());
            move |tick| {
                journal.push((tick.scheduled().as_duration(), tick.lateness(), tick.missed()));
                if entered.bump() == 1 {
                    gate.wait();
                }
            }
        });
        eventually("the first call", || entered.get() == 1);
        let probe = runtime.timer(ms(60), NEVER, {
            let gate = gate.clone();
            move |_| gate.open()
        });
        eventually("it goes on", || entered.get() >= 3);
        drop((timer, probe));
        let ticks = journal.take();
        // The second call is the one tick that all those of about 58 ms have become.
        assert!(ticks[1].1 >= ms(40), "taken up when the first call had ended: {ticks:?}");
        assert!(ticks[1].2 >= 20, "and knows what it stands for: {ticks:?}");
    });
}

#[test]
fn s09_an_exclusive_callback_that_takes_long_on_virtual_time() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timer = runtime.exclusive_timer(ms(100), ms(100), {
        let (journal, clock, mut calls) = (journal.clone(), clock.clone(), 0);
        move |tick| {
            calls += 1;
            journal.push((
                tick.now().as_duration().as_millis(),
                tick.scheduled().as_duration().as_millis(),
                tick.missed(),
            ));
            if calls == 1 {
                clock.stall(ms(350)); // ticks of 200, 300 and 400 come due while this runs
            }
        }
    });
    clock.advance(ms(700));
    assert_eq!(
        journal.take(),
        [(100, 100, 0), (450, 200, 1), (451, 451, 0), (551, 551, 0), (651, 651, 0), (751, 751, 0)][..5]
    );
    drop(timer);
}

#[test]
fn s10_a_timer_is_filed_for_its_next_tick_before_the_callback_starts() {
    let (clock, runtime) = manual();
    let runtime = Arc::new(runtime);
    for exclusive in [false, true] {
        let journal = Journal::new();
        let callback = {
            let (journal, runtime) = (journal.clone(), Arc::clone(&runtime));
            move |tick: &Tick<'_>| {
                let next = runtime.next_due().map(|next| next - tick.scheduled());
                journal.push((next, runtime.active_timers()));
                panic!("the next tick does not mind");
            }
        };
        let timer = if exclusive {
            runtime.exclusive_timer(ms(50), ms(400), callback)
        } else {
            runtime.timer(ms(50), ms(400), callback)
        };
        assert_eq!(clock.advance(ms(50 + 4 * 400)), 5);
        assert_eq!(journal.take(), [(Some(ms(400)), 1); 5]);
        drop(timer);
    }
}

#[test]
fn s10_a_callback_that_blocks_does_not_stop_the_next_tick() {
    within(PATIENCE, "a blocked periodic callback", || {
        let runtime = native();
        let (ticks, gate) = (Count::new(), Gate::new());
        let timer = runtime.timer(ms(1), ms(1), {
            let (ticks, gate) = (ticks.clone(), gate.clone());
            move |_| {
                if ticks.bump() == 1 {
                    gate.wait();
                }
            }
        });
        eventually("20 ticks while the first still runs", || ticks.get() >= 20);
        gate.open();
        assert_eq!(timer.dispose_and_wait(), timerqueue::Waited::Ended);
    });
}

// ------------------------------------------------------------------------------------- S11, S12: what callbacks may do

#[test]
fn s11_a_callback_may_change_and_dispose_its_own_timer() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timer = runtime.timer(ms(10), ms(10), {
        let (journal, calls) = (journal.clone(), AtomicUsize::new(0));
        move |tick| {
            let at = tick.now().as_duration().as_millis();
            journal.push((
                at,
                match calls.fetch_add(1, Ordering::Relaxed) {
                    1 => tick.change(ms(400), ms(5)),
                    3 => {
                        tick.dispose();
                        tick.dispose();
                        tick.change(ms(1), ms(1))
                    }
                    _ => Changed::WasIdle,
                },
            ));
        }
    });
    clock.advance(secs(10));
    use Changed::{Ended, WasIdle, WasWaiting};
    assert_eq!(journal.take(), [(10, WasIdle), (20, WasWaiting), (420, WasIdle), (425, Ended)]);
    drop(timer);
}

#[test]
fn s11_a_callback_may_create_timers_of_every_kind() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timer = runtime.once(ms(5), {
        let (journal, runtime) = (journal.clone(), runtime.clone());
        move |_| {
            for due in [0, 1, 400] {
                let (a, b, c) = (journal.clone(), journal.clone(), journal.clone());
                runtime.timer(ms(due), NEVER, move |tick| a.push(tick.now().as_duration())).detach();
                runtime.exclusive_timer(ms(due), NEVER, move |tick| b.push(tick.now().as_duration())).detach();
                runtime.once(ms(due), move |tick| c.push(tick.now().as_duration())).detach();
            }
        }
    });
    assert_eq!(clock.advance(ms(405)), 10);
    assert_eq!(journal.take(), [5, 5, 5, 6, 6, 6, 405, 405, 405].map(ms));
    drop(timer);
}

#[test]
fn s11_callbacks_may_do_all_of_it_on_the_pool() {
    within(PATIENCE, "callbacks that use their own runtime", || {
        let runtime = native();
        let chain = Count::new();
        fn link(runtime: &Runtime, chain: &Count) {
            let (next, count) = (runtime.clone(), chain.clone());
            runtime
                .timer(us(50), us(10), move |tick| {
                    tick.dispose();
                    if count.bump() < 500 {
                        link(&next, &count);
                    }
                })
                .detach();
        }
        link(&runtime, &chain);
        eventually("500 links", || chain.get() >= 500);
        eventually("all gone", || runtime.active_timers() == 0);
        runtime.shutdown(PATIENCE).expect("ends");
    });
}

#[test]
fn s12_a_panic_is_caught_counted_and_handed_over() {
    let clock = ManualClock::new();
    let handed = Journal::new();
    let runtime = Runtime::builder()
        .manual_clock(&clock)
        .on_panic({
            let handed = handed.clone();
            move |payload| handed.push(*payload.downcast::<u64>().expect("as thrown"))
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
fn s12_a_panicking_handler_hurts_nobody() {
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
fn s12_a_panicking_destructor_of_what_the_handler_owns_hurts_nobody() {
    let clock = ManualClock::new();
    let owned = OnDrop(|| panic!("dropped"));
    let runtime =
        Runtime::builder().manual_clock(&clock).on_panic(move |_| owned.hold()).start().expect("nothing to refuse");
    // The clock has the last hold on the runtime when the callback is over.
    let last = runtime.clone();
    let timer = runtime.once(ms(1), move |_| drop(last));
    drop(runtime);
    assert_eq!(clock.advance(ms(5)), 1);
    drop(timer);
    assert_eq!(clock.now().as_duration(), ms(5), "the advance has come to its end");
    let other = clock.clone();
    within(PATIENCE, "nobody has the clock", move || other.advance(ms(1)));
}

#[test]
fn s12_a_payload_whose_destructor_panics_hurts_nobody() {
    let (clock, runtime) = manual();
    let timer = runtime.timer(ms(1), ms(1), |_| panic_any(OnDrop(|| panic!("the payload, too"))));
    assert_eq!(clock.advance(ms(5)), 5);
    assert_eq!(runtime.panics(), 5);
    drop(timer);
}

#[test]
fn s12_a_panicking_destructor_of_what_the_callback_owns_hurts_nobody() {
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

// ----------------------------------------------------------------------------------------- S13: what a callback learns

#[test]
fn s13_the_callback_learns_instant_lateness_and_missed_ticks() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timer = runtime.timer_builder().due(ms(10)).period(ms(10)).missed_ticks(MissedTicks::Skip).start({
        let (journal, clock) = (journal.clone(), clock.clone());
        move |tick| {
            let before = (tick.scheduled().as_duration(), tick.lateness(), tick.missed());
            clock.stall(ms(1));
            let after = (tick.scheduled().as_duration(), tick.lateness(), tick.missed());
            journal.push((before, after));
        }
    });
    clock.stall(ms(47));
    clock.advance(ms(5));
    // Taken up at 47: the ticks of 20, 30 and 40 have passed. The next one is on time.
    let want = [((ms(10), ms(37), 3), (ms(10), ms(38), 3)), ((ms(50), ms(0), 0), (ms(50), ms(1), 0))];
    assert_eq!(journal.take(), want, "lateness grows while the callback runs, nothing else does");
    drop(timer);
}

#[test]
fn s13_a_tick_can_be_shown() {
    let (clock, runtime) = manual();
    let shown = Journal::new();
    let (canary, fate) = Canary::new();
    let timer = runtime.once(ms(1), {
        let shown = shown.clone();
        move |tick| {
            canary.sing();
            shown.push(format!("{tick:?}"));
        }
    });
    clock.advance(ms(1));
    let shown = shown.take();
    assert!(shown[0].starts_with("Tick {") && shown[0].contains("missed: 0"), "{shown:?}");
    assert!(fate.is_dropped());
    drop(timer);
}
