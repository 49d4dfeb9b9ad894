//! Due time and period: independent, exact, of any size (S1 to S3).

use super::*;

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
        let timer = Timer::on(&runtime, NEVER, period, fired.callback());
        assert_eq!(runtime.metrics().active, 0, "idle: waits for nothing");
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
            assert_eq!(runtime.metrics().active, 0);
            drop(timer);
        }
    }
}

#[test]
fn s01_the_builder_starts_with_one_period() {
    let (clock, runtime) = manual();
    let fired = Count::new();
    let every = TimerBuilder::on(&runtime).period(ms(400)).start(fired.callback());
    assert_eq!(runtime.next_due(), Some(clock.now() + ms(400)));
    assert_eq!(clock.advance(ms(1_200)), 3);
    drop(every);
    let neither = TimerBuilder::on(&runtime).start(fired.callback());
    let zero = TimerBuilder::on(&runtime).period(Duration::ZERO).start(fired.callback());
    assert_eq!((clock.advance(secs(3600)), runtime.metrics().active), (0, 0));
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
                drop(Timer::on(&runtime, due, period, |_| {}));
                let timer = TimerBuilder::on(&runtime).due(due).period(period).start_exclusive(|_| {});
                assert_eq!(timer.change(due, period), Changed::WasIdle, "{due:?} is never");
            }
            drop(OnceTimer::on(&runtime, due, |_| {}));
        }
        let (timer, journal) = journal_of(&runtime, ns(end - 1), ns(1));
        assert_eq!(runtime.metrics().active, 1, "the last instant of the clock fits");
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
        assert_eq!(runtime.metrics().active, 0);
        drop(timer);
    }
}

#[test]
fn s03_a_late_tick_near_the_end_of_the_clock_saturates() {
    for policy in [MissedTicks::Rebase, MissedTicks::Skip, MissedTicks::Burst, MissedTicks::Delay] {
        let (clock, runtime) = manual();
        let fired = Count::new();
        let timer =
            TimerBuilder::on(&runtime).due(ns(5)).period(ns(u64::MAX / 4)).missed_ticks(policy).start(fired.callback());
        clock.stall(NEVER);
        clock.advance(Duration::ZERO);
        let want = if policy == MissedTicks::Burst { 4 } else { 1 };
        assert_eq!((fired.get(), runtime.metrics().active), (want, 0), "{policy:?}");
        drop(timer);
    }
}
