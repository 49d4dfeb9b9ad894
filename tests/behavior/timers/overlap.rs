//! Overlapping callbacks of a timer, and the queueing of the next tick (S9, S10).

use super::*;

#[test]
fn s09_callbacks_of_one_timer_overlap() {
    within(PATIENCE, "overlapping callbacks", || {
        let runtime = native();
        let together = Arc::new(Barrier::new(4));
        let met = Count::new();
        let timer = Timer::on(&runtime, ms(1), ms(1), {
            let (together, met, entered) = (Arc::clone(&together), met.clone(), Count::new());
            move |_| {
                // The first four callbacks meet at the barrier, or no callback leaves.
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
    // The captured value is not `Sync`, and the callback is `FnMut`: only exclusiveness makes this
    // sound.
    let mut calls = std::cell::Cell::new(0u64);
    let timer =
        TimerBuilder::on(&runtime).due(us(300)).period(us(300)).missed_ticks(MissedTicks::Skip).start_exclusive({
            let (inside, overlaps, journal) = (Arc::clone(&inside), overlaps.clone(), journal.clone());
            move |tick| {
                if inside.swap(true, Ordering::SeqCst) {
                    overlaps.bump();
                }
                *calls.get_mut() += 1;
                journal.push((nanos(tick.scheduled().as_duration()), tick.missed(), calls.get()));
                // Longer than two periods, so ticks come due meanwhile.
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
        let timer =
            TimerBuilder::on(&runtime).due(ms(2)).period(ms(2)).missed_ticks(MissedTicks::Skip).start_exclusive({
                let (entered, gate, journal) = (entered.clone(), gate.clone(), journal.clone());
                move |tick| {
                    journal.push((tick.scheduled().as_duration(), tick.lateness(), tick.missed()));
                    if entered.bump() == 1 {
                        gate.wait();
                    }
                }
            });
        eventually("the first call", || entered.get() == 1);
        let probe = Timer::on(&runtime, ms(60), NEVER, {
            let gate = gate.clone();
            move |_| gate.open()
        });
        eventually("it goes on", || entered.get() >= 3);
        drop((timer, probe));
        let ticks = journal.take();
        // The second call is the single tick for all ticks of about 58 ms.
        assert!(ticks[1].1 >= ms(40), "taken up when the first call had ended: {ticks:?}");
        assert!(ticks[1].2 >= 20, "and knows what it stands for: {ticks:?}");
    });
}

#[test]
fn s09_an_exclusive_callback_that_takes_long_on_virtual_time() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timer = TimerBuilder::on(&runtime).period(ms(100)).start_exclusive({
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
fn s10_a_timer_is_queued_for_its_next_tick_before_the_callback_starts() {
    let (clock, runtime) = manual();
    let runtime = Arc::new(runtime);
    for exclusive in [false, true] {
        let journal = Journal::new();
        let callback = {
            let (journal, runtime) = (journal.clone(), Arc::clone(&runtime));
            move |tick: &Tick<'_>| {
                let next = runtime.next_due().map(|next| next - tick.scheduled());
                journal.push((next, runtime.metrics().active));
                panic!("the next tick does not mind");
            }
        };
        let timer = if exclusive {
            TimerBuilder::on(&runtime).due(ms(50)).period(ms(400)).start_exclusive(callback)
        } else {
            Timer::on(&runtime, ms(50), ms(400), callback)
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
        let timer = Timer::on(&runtime, ms(1), ms(1), {
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
