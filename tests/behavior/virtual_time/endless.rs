//! Callbacks that move the end of the running advance: as many as like while it comes nearer, and a
//! limit where it does not.

use super::*;

/// The limit.
const IN_A_ROW: u64 = 100_000;

#[test]
fn s80_a_timer_that_advances_its_clock_by_its_period_is_refused_in_the_end() {
    for by in [secs(1), secs(2)] {
        let (clock, runtime) = manual();
        let hands = clock.clone();
        let timer = TimerBuilder::on(&runtime).period(secs(1)).start_exclusive(move |_| _ = hands.advance(by));
        // The end of this advance is nine seconds away, and never comes nearer.
        assert_eq!(clock.advance(secs(10)), IN_A_ROW + 1);
        assert_eq!(runtime.metrics().panics, 1);
        assert_eq!(clock.now().as_duration(), secs(IN_A_ROW + 1), "and so the advance ends");
        // The next advance is a new one.
        assert_eq!(clock.advance(ms(500)), 0);
        drop(timer);
    }
}

#[test]
fn s80_an_exclusive_timer_that_waits_for_its_period_is_refused_in_the_end() {
    let (clock, runtime) = manual();
    let (hands, inner) = (clock.clone(), runtime.clone());
    let timer =
        TimerBuilder::on(&runtime).period(secs(1)).start_exclusive(move |_| hands.block_on(Delay::on(&inner, secs(1))));
    clock.advance(secs(1));
    assert_eq!(runtime.metrics().panics, 1);
    assert!(clock.now().as_duration() <= secs(IN_A_ROW + 2));
    drop(timer);
}

#[test]
fn s80_callbacks_that_move_the_end_by_less_than_passes_are_not_counted() {
    let (clock, runtime) = manual();
    let hands = clock.clone();
    let timer = TimerBuilder::on(&runtime).period(ms(1)).start_exclusive(move |_| _ = hands.advance(us(900)));
    let run = clock.advance(secs(11));
    assert!(run > IN_A_ROW, "{run}");
    assert_eq!(runtime.metrics().panics, 0);
    drop(timer);
    // One callback may move the end as often as it likes, and wait for as long.
    let (hands, inner) = (clock.clone(), runtime.clone());
    let timer = OnceTimer::on(&runtime, secs(1), move |_| {
        (0..2 * IN_A_ROW).for_each(|_| _ = hands.advance(ns(1)));
        let ticks = TimerBuilder::on(&inner).period(us(1)).start_exclusive({
            let hands = hands.clone();
            move |_| _ = hands.advance(ns(1))
        });
        hands.block_on(Delay::on(&inner, ms(101)));
        drop(ticks);
    });
    clock.advance(secs(1));
    assert_eq!(runtime.metrics().panics, 0);
    drop(timer);
}
