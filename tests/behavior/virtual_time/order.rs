//! The order in which timers run (S14).

use std::future::Future;
use std::task::{Context, Wake, Waker};

use super::*;

/// Records its number when it is woken.
struct Woken(Journal<usize>, usize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.push(self.1);
    }
}

#[test]
fn s14_order_is_by_due_point_then_by_arming() {
    for queues in [1, 2, 7] {
        let clock = ManualClock::new();
        let runtime = on(&clock, queues);
        let journal = Journal::new();
        // Armed in this order; many share an instant, in one queue and across queues, short and
        // long.
        let dues = [400, 20, 400, 10, 20, 1_000_000, 20, 10, 400, 333, 1_000_000, 332, 20];
        let timers: Vec<Timer> =
            dues.iter().enumerate().map(|(i, &due)| Timer::on(&runtime, ms(due), NEVER, named(&journal, i))).collect();
        assert_eq!(clock.advance(ms(1_000_000)), dues.len() as u64);
        let mut want: Vec<(usize, u64)> = dues.into_iter().enumerate().collect();
        want.sort_by_key(|&(i, due)| (due, i));
        assert_eq!(journal.take(), want, "{queues} queues");
        drop(timers);
    }
}

#[test]
fn s14_tasks_take_their_place_among_the_callbacks() {
    for queues in [1, 2] {
        let clock = ManualClock::new();
        let runtime = on(&clock, queues);
        let journal = Journal::new();
        let (mut timers, mut delays) = (Vec::new(), Vec::new());
        for i in 0..12 {
            if i % 3 == 1 {
                let mut delay = Box::pin(Delay::on(&runtime, ms(10)));
                let waker = Waker::from(Arc::new(Woken(journal.clone(), i)));
                assert!(delay.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                delays.push(delay);
            } else {
                let journal = journal.clone();
                timers.push(Timer::on(&runtime, ms(10), NEVER, move |_| journal.push(i)));
            }
        }
        assert_eq!(clock.advance(ms(10)), 12);
        assert_eq!(journal.take(), (0..12).collect::<Vec<_>>(), "{queues} queues");
    }
}

#[test]
fn s14_a_late_sweep_keeps_the_order() {
    let clock = ManualClock::new();
    let runtime = on(&clock, 3);
    let journal = Journal::new();
    let mut random = Random(14);
    let dues: Vec<u64> = (0..2_000).map(|_| random.below(700)).collect();
    let timers: Vec<Timer> =
        dues.iter().enumerate().map(|(i, &due)| Timer::on(&runtime, ms(due), NEVER, named(&journal, i))).collect();
    clock.stall(secs(1));
    assert_eq!(clock.advance(Duration::ZERO), 2_000);
    let mut want: Vec<(u64, usize)> = dues.into_iter().enumerate().map(|(i, due)| (due, i)).collect();
    want.sort();
    let want: Vec<(usize, u64)> = want.into_iter().map(|(_, i)| (i, 1_000)).collect();
    assert_eq!(journal.take(), want);
    drop(timers);
}

#[test]
fn s14_a_change_arms_anew() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let timers: Vec<Timer> = (0..5).map(|i| Timer::on(&runtime, ms(10), NEVER, named(&journal, i))).collect();
    for i in [3, 0, 3] {
        assert_eq!(timers[i].change(ms(10), NEVER), Changed::WasWaiting);
    }
    clock.advance(ms(10));
    assert_eq!(journal.take(), [1, 2, 4, 0, 3].map(|i| (i, 10)));
}

#[test]
fn s14_periodic_timers_keep_their_order() {
    let clock = ManualClock::new();
    let runtime = on(&clock, 2);
    let journal = Journal::new();
    let timers: Vec<Timer> = (0..5).map(|i| Timer::on(&runtime, ms(50), ms(50), named(&journal, i))).collect();
    clock.advance(ms(500));
    let want: Vec<(usize, u64)> = (1..=10).flat_map(|k| (0..5).map(move |i| (i, 50 * k))).collect();
    assert_eq!(journal.take(), want);
    drop(timers);
}

#[test]
fn s14_a_burst_takes_its_place_among_the_others() {
    let (clock, runtime) = manual();
    let journal = Journal::new();
    let record = |name: &'static str| {
        let journal = journal.clone();
        move |tick: &timerqueue::Tick<'_>| journal.push((name, tick.scheduled().as_duration().as_millis() as u64))
    };
    let burst =
        TimerBuilder::on(&runtime).due(ms(10)).period(ms(10)).missed_ticks(MissedTicks::Burst).start(record("burst"));
    let other = Timer::on(&runtime, ms(25), NEVER, record("other"));
    clock.stall(ms(40));
    clock.advance(Duration::ZERO);
    assert_eq!(journal.take(), [("burst", 10), ("burst", 20), ("other", 25), ("burst", 30), ("burst", 40)]);
    drop((burst, other));
}
