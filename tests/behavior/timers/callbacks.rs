//! Callbacks: their freedom to use the crate, and their tick (S11, S13).

use super::*;

// ------------------------------------------------------------------------------------- S11, S12: what callbacks may do

#[test]
fn s11_a_callback_may_change_and_dispose_its_own_timer() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timer = Timer::on(&runtime, ms(10), ms(10), {
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
    let timer = OnceTimer::on(&runtime, ms(5), {
        let (journal, runtime) = (journal.clone(), runtime.clone());
        move |_| {
            for due in [0, 1, 400] {
                let (a, b, c) = (journal.clone(), journal.clone(), journal.clone());
                Timer::on(&runtime, ms(due), NEVER, move |tick| a.push(tick.now().as_duration())).detach();
                TimerBuilder::on(&runtime)
                    .due(ms(due))
                    .period(NEVER)
                    .start_exclusive(move |tick| b.push(tick.now().as_duration()))
                    .detach();
                OnceTimer::on(&runtime, ms(due), move |tick| c.push(tick.now().as_duration())).detach();
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
            Timer::on(runtime, us(50), us(10), move |tick| {
                tick.dispose();
                if count.bump() < 500 {
                    link(&next, &count);
                }
            })
            .detach();
        }
        link(&runtime, &chain);
        eventually("500 links", || chain.get() >= 500);
        eventually("all gone", || runtime.metrics().active == 0);
        runtime.shutdown(PATIENCE).expect("ends");
    });
}

// ----------------------------------------------------------------------------------------- S13: what a callback learns

#[test]
fn s13_the_callback_learns_instant_lateness_and_missed_ticks() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timer = TimerBuilder::on(&runtime).due(ms(10)).period(ms(10)).missed_ticks(MissedTicks::Skip).start({
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
    // Runs at 47: the ticks of 20, 30 and 40 have passed. The next tick is on time.
    let want = [((ms(10), ms(37), 3), (ms(10), ms(38), 3)), ((ms(50), ms(0), 0), (ms(50), ms(1), 0))];
    assert_eq!(journal.take(), want, "lateness grows while the callback runs, nothing else does");
    drop(timer);
}

#[test]
fn s13_a_tick_implements_debug() {
    let (clock, runtime) = manual();
    let shown = Journal::new();
    let (canary, fate) = Canary::new();
    let timer = OnceTimer::on(&runtime, ms(1), {
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
