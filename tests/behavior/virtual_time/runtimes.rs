//! Several runtimes and clocks side by side (S52).

use super::*;

#[test]
fn s52_runtimes_with_different_clocks_live_side_by_side() {
    let (fast, fast_runtime) = manual();
    let (slow, slow_runtime) = manual();
    let native = crate::support::native();
    let (fast_fired, slow_fired) = (Count::new(), Count::new());
    let (send, receive) = mpsc::channel();
    let a = Timer::on(&fast_runtime, secs(1), secs(1), fast_fired.callback());
    let b = Timer::on(&slow_runtime, secs(1), secs(1), slow_fired.callback());
    let c = OnceTimer::on(&native, ms(1), move |tick| {
        let _ = send.send(tick.now() >= tick.scheduled());
    });
    assert_eq!((fast.advance(secs(3600)), slow.advance(ms(999))), (3600, 0));
    assert_eq!((fast_fired.get(), slow_fired.get()), (3600, 0));
    assert_eq!(receive.recv_timeout(PATIENCE), Ok(true));
    assert_eq!((fast.now().as_duration(), slow.now().as_duration()), (secs(3600), ms(999)));
    assert_eq!((fast_runtime.now(), slow_runtime.now()), (fast.now(), slow.now()));
    native.shutdown(PATIENCE).expect("nothing runs");
    assert_eq!((slow.advance(ms(1)), fast.advance(secs(1))), (1, 1), "one runtime's end is not another's");
    drop((a, b, c));
}

#[test]
fn s52_two_runtimes_on_one_clock_run_in_one_order() {
    let clock = ManualClock::new();
    let (one, two) = (on(&clock, 1), on(&clock, 3));
    let journal = Journal::new();
    let mut timers = Vec::new();
    for i in 0..12 {
        let runtime = if i % 2 == 0 { &one } else { &two };
        timers.push(Timer::on(runtime, ms(400 - 100 * (i / 6)), ms(400), named(&journal, i)));
    }
    assert_eq!(clock.next_due(), Some(clock.now() + ms(300)));
    assert_eq!(clock.advance(ms(800)), 24);
    let at = |instant: u64, who: std::ops::Range<u64>| who.map(move |i| (i, instant));
    let want: Vec<(u64, u64)> =
        at(300, 6..12).chain(at(400, 0..6)).chain(at(700, 6..12)).chain(at(800, 0..6)).collect();
    assert_eq!(journal.take(), want, "by due point, then by arming order, whatever the runtime");
    one.shutdown(Duration::ZERO).expect("no threads");
    assert_eq!(clock.advance(ms(400)), 6, "the other one goes on");
    drop(two);
    assert_eq!((clock.advance(secs(10)), clock.next_due()), (0, None));
}

#[test]
fn s52_a_runtime_may_be_made_late_and_by_a_callback() {
    let clock = ManualClock::new();
    clock.advance(secs(1_000_000));
    let runtime = on(&clock, 2);
    let late = Arc::new(Mutex::new(None));
    let journal = Journal::new();
    let timer = OnceTimer::on(&runtime, ms(333), {
        let (clock, late, journal) = (clock.clone(), Arc::clone(&late), journal.clone());
        move |_| {
            let runtime = on(&clock, 1);
            Timer::on(&runtime, ms(1), NEVER, named(&journal, "late")).detach();
            *lock(&late) = Some(runtime);
        }
    });
    assert_eq!(clock.advance(secs(1)), 2);
    assert_eq!(journal.take(), [("late", 1_000_000_334)]);
    drop(timer);
}
