//! Snapshots of timers: each state, of each kind of timer (S81).

use super::*;
use timerqueue::observe::TimerState::{self, Disposed, Idle, Queued, Running, Waiting};
use timerqueue::{OnceTimer, WallTimer, observe::TimerSnapshot};

/// State, milliseconds until the due point, and callbacks that run.
fn short(clock: &ManualClock, seen: TimerSnapshot) -> (TimerState, Option<u128>, usize) {
    (seen.state, seen.due.map(|due| (due - clock.now()).as_millis()), seen.running)
}

#[test]
fn s81_a_snapshot_tells_state_due_point_and_period() {
    let (clock, runtime) = manual();
    let seen = Journal::new();
    let timer = Timer::on(&runtime, ms(10), ms(100), {
        let (seen, clock) = (seen.clone(), clock.clone());
        move |tick| seen.push(short(&clock, tick.snapshot()))
    });
    assert_eq!(short(&clock, timer.snapshot()), (Waiting, Some(10), 0));
    assert_eq!(timer.snapshot().period, Some(ms(100)));
    clock.advance(ms(10));
    assert_eq!(seen.take(), [(Running, Some(100), 1)], "its next tick is in the queue");
    timer.stop();
    assert_eq!(short(&clock, timer.snapshot()), (Idle, None, 0));
    timer.change(ms(5), NEVER);
    assert_eq!((timer.snapshot().period, timer.snapshot().wall), (None, None));
    clock.advance(ms(5));
    assert_eq!(seen.take(), [(Running, None, 1)]);
    assert_eq!(short(&clock, timer.snapshot()), (Idle, None, 0), "a one-shot that can be started again");
    timer.dispose();
    assert_eq!(short(&clock, timer.snapshot()), (Disposed, None, 0));
    // Beyond the range of the clock: never.
    assert_eq!(
        short(&clock, Timer::on(&runtime, Duration::from_nanos(u64::MAX - 1), NEVER, |_| {}).snapshot()).1,
        None
    );
}

#[test]
fn s81_a_tick_that_waits_for_its_thread_is_queued() {
    let (clock, runtime) = manual();
    let seen = Journal::new();
    let second: Arc<std::sync::OnceLock<Timer>> = Arc::default();
    let first = OnceTimer::on(&runtime, ms(10), {
        let (seen, second) = (seen.clone(), Arc::clone(&second));
        move |_| {
            let second = second.get().expect("set below");
            seen.push(second.snapshot().state);
            second.change(ms(1), NEVER);
            seen.push(second.snapshot().state);
        }
    });
    second.set(Timer::on(&runtime, ms(10), NEVER, |_| {})).expect("once");
    clock.advance(ms(10));
    assert_eq!(seen.take(), [Queued, Waiting], "the change withdraws the tick");
    drop(first);
}

#[test]
fn s81_of_a_once_timer_a_wall_timer_and_a_runtime_that_has_ended() {
    let (clock, runtime) = manual();
    let seen = Journal::new();
    let once = OnceTimer::on(&runtime, ms(10), {
        let seen = seen.clone();
        move |tick| seen.push(tick.snapshot().state)
    });
    let at = clock.wall() + ms(20);
    let wall = WallTimer::on(&runtime, at, {
        let seen = seen.clone();
        move |tick| seen.push(tick.snapshot().state)
    });
    assert_eq!((once.snapshot().state, wall.snapshot().state), (Waiting, Waiting));
    assert_eq!((once.snapshot().wall, wall.snapshot().wall), (None, Some(at)));
    clock.advance(ms(20));
    assert_eq!(seen.take(), [Running, Running]);
    assert_eq!(once.snapshot().state, Disposed, "its callback is gone");
    assert_eq!((wall.snapshot().state, wall.snapshot().wall), (Idle, None));
    let [waiting, idle] = [ms(10), NEVER].map(|due| Timer::on(&runtime, due, NEVER, |_| {}));
    assert_eq!(wall.reset_at(clock.wall() + ms(10)), Changed::WasIdle);
    runtime.shutdown(secs(1)).expect("nothing runs");
    for seen in [waiting.snapshot(), idle.snapshot(), wall.snapshot()] {
        assert_eq!((seen.state, seen.due, seen.wall), (Disposed, None, None));
    }
}

#[test]
fn s81_a_disposed_timer_whose_callbacks_run_tells_their_number() {
    let runtime = native();
    let gate = Gate::new();
    let entered = Count::new();
    let timer = Timer::on(&runtime, Duration::ZERO, ms(1), {
        let (gate, entered) = (gate.clone(), entered.clone());
        move |_| {
            entered.bump();
            gate.wait();
        }
    });
    eventually("two run", || entered.get() >= 2);
    let seen = timer.snapshot();
    assert!(seen.state == Running && seen.running >= 2, "{seen:?}");
    timer.dispose();
    let seen = timer.snapshot();
    assert!(seen.state == Disposed && seen.running >= 2, "{seen:?}");
    gate.open();
    let _ = timer.dispose_and_wait();
    assert_eq!(timer.snapshot().running, 0);
}
