//! Leeway: a timer is delayed to a grid, and no further than allowed (S58).

use super::*;

#[test]
fn s58_leeway_delays_to_the_grid_and_the_schedule_stays_exact() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let seen = journal.clone();
    let timer = runtime.timer_builder().due(us(1_300)).period(us(2_500)).leeway(ms(1)).start(move |tick| {
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
            runtime.timer_builder().due(due).leeway(leeway).start(move |tick| {
                assert!(tick.lateness() <= leeway, "late by {:?}", tick.lateness());
                instants.push(tick.now());
                fired(tick);
            })
        })
        .collect();
    clock.advance(secs(2));
    let mut instants = instants.take();
    instants.dedup();
    assert_eq!((fired.get(), runtime.panics()), (10_000, 0));
    assert!(instants.len() <= 101, "a hundred instants a second, not 10,000: {}", instants.len());
    drop(timers);
}
