//! After the end of a runtime: no callback runs, no timer is accepted, no resource is kept (S33).

use super::*;
use crate::support::child::in_child;

#[test]
fn s33_pending_timers_never_fire_again() {
    let (clock, runtime) = manual();
    let fired = Count::new();
    let (canary, fate) = Canary::new();
    let timers: Vec<Timer> = [0, 1, 333, 400, 1_000_000_000]
        .into_iter()
        .flat_map(|due| {
            [
                Timer::on(&runtime, ms(due), ms(7), fired.callback()),
                TimerBuilder::on(&runtime).due(ms(due)).period(NEVER).start_exclusive({
                    let fired = fired.clone();
                    move |_| {
                        fired.bump();
                    }
                }),
            ]
        })
        .collect();
    let once = OnceTimer::on(&runtime, secs(5), move |_| canary.sing());
    Timer::on(&runtime, ms(1), ms(1), fired.callback()).detach();
    let idle = Timer::on(&runtime, NEVER, NEVER, |_| {});
    assert_eq!(runtime.shutdown(Duration::ZERO), Ok(()));
    assert_eq!((runtime.metrics().active, clock.next_due()), (0, None));
    assert_eq!(clock.advance(NEVER), 0);
    assert!(fate.is_dropped(), "dropped with what they own");
    // Handles stay valid.
    for timer in &timers {
        assert_eq!(timer.change(ms(1), ms(1)), Changed::Ended);
        timer.dispose();
        assert_eq!(timer.dispose_and_wait(), Waited::Ended);
        assert_eq!(block_on(timer.dispose_async()), Waited::Ended);
    }
    assert_eq!((idle.change(ms(1), NEVER), once.reset(ms(1))), (Changed::Ended, Changed::Ended));
    assert_eq!((idle.dispose_and_wait(), fired.get()), (Waited::Ended, 0));
}

#[test]
fn s33_timers_made_after_the_end_are_disposed_from_the_start() {
    for runtime in [manual().1, native()] {
        let maker = runtime.clone();
        runtime.shutdown(PATIENCE).expect("nothing runs");
        let (canary, fate) = Canary::new();
        let timer = Timer::on(&maker, Duration::ZERO, ms(1), move |_| canary.sing());
        assert!(fate.is_dropped());
        assert_eq!((timer.change(ms(1), ms(1)), timer.dispose_and_wait()), (Changed::Ended, Waited::Ended));
        let (canary, fate) = Canary::new();
        let once = OnceTimer::on(&maker, Duration::ZERO, move |_| canary.sing());
        assert!(fate.is_dropped());
        assert_eq!(once.reset(ms(1)), Changed::Ended);
        TimerBuilder::on(&maker).period(ms(1)).start_exclusive(|_| {}).detach();
        assert_eq!((maker.metrics().active, maker.next_due(), maker.metrics().fired()), (0, None, 0));
    }
}

#[test]
fn s33_queued_callbacks_are_discarded_and_their_waits_end() {
    within(PATIENCE, "a shutdown with queued callbacks", || {
        // Two threads, one of which polls: the second callback cannot start while the first runs.
        let runtime = Runtime::builder().queues(1).workers(2).max_threads(2).start().expect("the system has threads");
        let (entered, gate) = (Gate::new(), Gate::new());
        let first = OnceTimer::on(&runtime, Duration::ZERO, {
            let (entered, gate) = (entered.clone(), gate.clone());
            move |_| {
                entered.open();
                gate.wait();
            }
        });
        entered.wait();
        let started = Count::new();
        let (canary, fate) = Canary::new();
        let queued = Timer::on(&runtime, Duration::ZERO, NEVER, {
            let started = started.clone();
            move |_| {
                canary.sing();
                started.bump();
            }
        });
        let periodic = Timer::on(&runtime, us(1), us(1), started.callback());
        let (forgotten, forgotten_fate) = Canary::new();
        let forgotten = OnceTimer::on(&runtime, Duration::ZERO, move |_| forgotten.sing());
        assert_eq!(runtime.shutdown(ms(1)).map_err(|late| late.threads() > 0), Err(true));
        // The wait begins while the first callback still runs, and ends with this callback.
        let mut running = Box::pin(first.dispose_async());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(running.as_mut().poll(&mut context).is_pending());
        assert_eq!(queued.dispose_and_wait(), Waited::Ended);
        assert!(fate.is_dropped());
        assert_eq!(periodic.dispose_and_wait(), Waited::Ended);
        gate.open();
        assert_eq!(block_on(running), Waited::Ended);
        assert_eq!(runtime.shutdown(PATIENCE), Ok(()));
        assert_eq!(started.get(), 0);
        assert!(
            forgotten_fate.is_dropped(),
            "what was queued is dropped with what it owned, though its handle is there"
        );
        drop(forgotten);
    });
}

#[test]
fn s33_nothing_of_a_runtime_is_left() {
    // In a process where no other test opens descriptors. The files of its harness may come and go,
    // so compare over many rounds.
    in_child(module_path!(), "s33_nothing_of_a_runtime_is_left", || {
        let leaked_by = |rounds: usize| {
            let before = open_descriptors();
            for _ in 0..rounds {
                let runtime = Runtime::builder().queues(4).workers(2).start().expect("the system has threads");
                let timers: Vec<Timer> = (0..50).map(|i| Timer::on(&runtime, us(i * 100), ms(1), |_| {})).collect();
                if rounds % 2 == 0 {
                    runtime.shutdown(PATIENCE).expect("nothing blocks");
                }
                drop(runtime);
                drop(timers);
            }
            open_descriptors().saturating_sub(before)
        };
        leaked_by(1);
        eventually("forty runtimes of seven descriptors leave none", || leaked_by(40) < 7 * 40 / 4);
    });
}
