//! Leeway: a timer is delayed to a grid, and no further than allowed (S58). Jitter: timers are kept
//! apart (S72). Both on the wall clock (S73).

use super::*;

#[test]
fn s58_leeway_delays_to_the_grid_and_the_schedule_stays_exact() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let seen = journal.clone();
    let timer = TimerBuilder::on(&runtime).due(us(1_300)).period(us(2_500)).leeway(ms(1)).start(move |tick| {
        seen.push((tick.scheduled().as_duration(), tick.now().as_duration(), tick.missed()));
    });
    assert_eq!(runtime.next_due().map(|at| at.as_duration()), Some(ms(2)), "when it will fire");
    clock.advance(ms(10));
    let want = [(1_300, 2), (3_800, 4), (6_300, 7), (8_800, 9)];
    assert_eq!(journal.take(), want.map(|(due, at)| (us(due), ms(at), 0)));
    // A change keeps the leeway, and counts from now.
    assert_eq!(timer.change(us(100), Duration::ZERO), Changed::WasWaiting);
    clock.advance(ms(5));
    assert_eq!(journal.take(), [(us(10_100), ms(11), 0)]);
}

#[test]
fn s58_timers_with_leeway_share_instants_with_others_and_none_is_early_or_later_than_allowed() {
    let (clock, runtime) = manual();
    let (fired, instants) = (Count::new(), Journal::new());
    let mut random = Random(58);
    let timers: Vec<Timer> = (0..10_000)
        .map(|_| {
            let (due, leeway) = (us(random.below(1_000_000)), [ms(10), ms(50)][random.below(2) as usize]);
            let (fired, instants) = (fired.callback(), instants.clone());
            TimerBuilder::on(&runtime).due(due).leeway(leeway).start(move |tick| {
                assert!(tick.lateness() <= leeway, "late by {:?}", tick.lateness());
                instants.push(tick.now());
                fired(tick);
            })
        })
        .collect();
    clock.advance(secs(2));
    let mut instants = instants.take();
    instants.dedup();
    assert_eq!((fired.get(), runtime.metrics().panics), (10_000, 0));
    assert!(instants.len() <= 101, "a hundred instants a second, not 10,000: {}", instants.len());
    drop(timers);
}

fn jittered(
    runtime: &Runtime,
    period: Duration,
    width: Duration,
    seed: u64,
) -> (Journal<(Duration, Duration, u64)>, Timer) {
    let journal = Journal::new();
    let seen = journal.clone();
    let timer = TimerBuilder::on(runtime).period(period).jitter(width).jitter_seed(seed).start(move |tick| {
        seen.push((tick.scheduled().as_duration(), tick.lateness(), tick.missed()));
    });
    (journal, timer)
}

#[test]
fn s72_jitter_moves_each_tick_and_not_the_schedule() {
    let (clock, runtime) = manual();
    let (journal, timer) = jittered(&runtime, secs(60), secs(10), 1);
    let (same, _same) = jittered(&runtime, secs(60), secs(10), 1);
    let (other, _other) = jittered(&runtime, secs(60), secs(10), 2);
    // A thousand hours, in steps that do not meet the grid.
    (0..100_000).for_each(|_| _ = clock.advance(secs(36)));
    let (ticks, same, other) = (journal.take(), same.take(), other.take());
    assert_eq!(ticks, same);
    assert!((59_999..=60_000).contains(&ticks.len()), "as many as without jitter: {}", ticks.len());
    let late: Vec<Duration> = ticks.iter().map(|&(_, late, _)| late).collect();
    for (i, &(scheduled, late, missed)) in ticks.iter().enumerate() {
        assert_eq!((scheduled, missed), (secs(60) * (i as u32 + 1), 0));
        assert!(late < secs(10), "{late:?}");
    }
    let mean = late.iter().sum::<Duration>() / late.len() as u32;
    assert!(mean > ms(4_900) && mean < ms(5_100), "{mean:?}");
    let both = ticks.iter().zip(&other).filter(|(a, b)| a.1 == b.1).count();
    assert_eq!(both, 0, "another seed, other instants");
    drop(timer);
}

#[test]
fn s72_jitter_of_a_period_or_more_misses_ticks_and_zero_is_none() {
    let (clock, runtime) = manual();
    let (none, _none) = jittered(&runtime, ms(10), ns(999), 1);
    let (wide, _wide) = jittered(&runtime, ms(10), secs(1), 1);
    let (endless, _endless) = jittered(&runtime, NEVER, NEVER, 1);
    (0..1_000).for_each(|_| _ = clock.advance(ms(10)));
    assert!(none.take().iter().all(|&(_, late, missed)| (late, missed) == (Duration::ZERO, 0)));
    let ticks = wide.take();
    assert!(ticks.len() > 10, "{}", ticks.len());
    assert!(ticks.iter().all(|&(_, late, _)| late < secs(1)));
    assert!(ticks.iter().map(|&(_, _, missed)| missed).sum::<u64>() > 10, "the others were missed");
    assert!(endless.take().is_empty());
}

#[test]
fn s72_timers_of_a_thread_have_different_seeds() {
    let (clock, runtime) = manual();
    let instants = Journal::new();
    let _timers: Vec<Timer> = (0..64)
        .map(|_| {
            let seen = instants.clone();
            TimerBuilder::on(&runtime).due(secs(1)).jitter(secs(1)).start(move |tick| seen.push(tick.now()))
        })
        .collect();
    clock.advance(secs(3));
    let mut instants = instants.take();
    assert_eq!(instants.len(), 64);
    assert!(instants.is_sorted());
    instants.dedup();
    assert!(instants.len() > 30, "{}", instants.len());
}

#[test]
fn s73_a_wall_timer_may_have_leeway_jitter_and_a_name() {
    let (clock, runtime) = manual();
    let start = clock.wall();
    let journal = Journal::new();
    let at = |builder: timerqueue::TimerBuilder<'_>, at: Duration| {
        let (seen, builder) = (journal.clone(), builder.name("of the wall"));
        builder.start_wall(start + at, move |tick| {
            seen.push((tick.scheduled().duration_since(start).unwrap(), tick.now().duration_since(start).unwrap()));
        })
    };
    let leeway = at(TimerBuilder::on(&runtime).leeway(secs(1)), ms(4_300));
    let exact = at(TimerBuilder::on(&runtime), ms(4_400));
    let jitter = at(TimerBuilder::on(&runtime).jitter(secs(1)).jitter_seed(5), secs(20));
    assert_eq!(runtime.dump(3).timers[0].name.as_deref(), Some("of the wall"));
    clock.advance(secs(10));
    assert_eq!(journal.take(), [(ms(4_400), ms(4_400)), (ms(4_300), secs(5))]);
    // After a step past its time it fires within its jitter.
    clock.set_wall(start + secs(25));
    clock.advance(secs(1));
    let ticks = journal.take();
    assert_eq!(ticks.len(), 1);
    assert!(ticks[0].0 == secs(20) && ticks[0].1 >= secs(25) && ticks[0].1 < secs(26), "{ticks:?}");
    // A new time keeps the settings.
    assert_eq!(leeway.reset_at(start + ms(30_200)), Changed::WasIdle);
    clock.advance(secs(10));
    assert_eq!(journal.take(), [(ms(30_200), secs(31))]);
    drop((exact, jitter));
    clock.set_wall(start);
    assert!(TimerBuilder::on(&runtime).try_start_wall(start, |_| {}).is_ok());
    runtime.shutdown(secs(1)).unwrap();
    assert!(TimerBuilder::on(&runtime).try_start_wall(start, |_| {}).is_err());
}
