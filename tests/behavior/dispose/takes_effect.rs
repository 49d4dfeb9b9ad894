//! Effect of disposing: final, and at once (S19, S20).

use super::*;

/// A timer of any kind, with the operations common to all kinds.
struct Any {
    kind: &'static str,
    dispose: Box<dyn Fn() + Send + Sync>,
    wait: Box<dyn Fn() -> Waited + Send + Sync>,
    change: Box<dyn Fn() -> Changed + Send + Sync>,
}

fn any_of(timer: Timer, kind: &'static str) -> Any {
    let timer = Arc::new(timer);
    let (a, b, c) = (Arc::clone(&timer), Arc::clone(&timer), timer);
    Any {
        kind,
        dispose: Box::new(move || a.dispose()),
        wait: Box::new(move || b.dispose_and_wait()),
        change: Box::new(move || c.change(ms(1), ms(1))),
    }
}

fn any_of_once(timer: OnceTimer) -> Any {
    let timer = Arc::new(timer);
    let (a, b, c) = (Arc::clone(&timer), Arc::clone(&timer), timer);
    Any {
        kind: "once",
        dispose: Box::new(move || a.dispose()),
        wait: Box::new(move || b.dispose_and_wait()),
        change: Box::new(move || c.reset(ms(1))),
    }
}

/// A timer of each kind with this schedule (once: without the period), and the fate of each
/// payload.
fn one_of_each(
    runtime: &Runtime,
    due: Duration,
    period: Duration,
    run: impl Fn() + Clone + Send + Sync + 'static,
) -> Vec<(Any, Fate)> {
    let (a, a_fate) = Canary::new();
    let (b, b_fate) = Canary::new();
    let (c, c_fate) = Canary::new();
    let (run_a, run_b, run_c) = (run.clone(), run.clone(), run);
    vec![
        (
            any_of(
                Timer::on(runtime, due, period, move |_| {
                    a.sing();
                    run_a();
                }),
                "overlapping",
            ),
            a_fate,
        ),
        (
            any_of(
                TimerBuilder::on(runtime).due(due).period(period).start_exclusive(move |_| {
                    b.sing();
                    run_b();
                }),
                "exclusive",
            ),
            b_fate,
        ),
        (
            any_of_once(OnceTimer::on(runtime, due, move |_| {
                c.sing();
                run_c();
            })),
            c_fate,
        ),
    ]
}

#[test]
fn s19_dispose_is_idempotent_and_takes_effect_at_once() {
    let (clock, runtime) = manual();
    for due in [ms(0), ms(1), ms(333), ms(400), secs(1_000), secs(1_000_000), NEVER] {
        for (timer, fate) in one_of_each(&runtime, due, ms(7), || unreachable!("disposed in time")) {
            let others = runtime.metrics().active;
            (timer.dispose)();
            assert_eq!(runtime.metrics().active, others - usize::from(due != NEVER), "{}: out of its list", timer.kind);
            assert!(fate.is_dropped(), "{}: nothing runs, so what it owned is gone", timer.kind);
            (timer.dispose)();
            assert_eq!((timer.change)(), Changed::Ended);
            assert_eq!((timer.wait)(), Waited::Ended);
            (timer.dispose)();
        }
        assert_eq!((runtime.metrics().active, runtime.next_due()), (0, None));
    }
    assert_eq!(clock.advance(secs(10_000_000)), 0);
}

#[test]
fn s19_dispose_after_firing_and_from_many_threads() {
    let (clock, runtime) = manual();
    let fired = Count::new();
    let run = {
        let fired = fired.clone();
        move || {
            fired.bump();
        }
    };
    let timers = one_of_each(&runtime, ms(10), NEVER, run);
    assert_eq!(clock.advance(ms(10)), 3);
    for (timer, fate) in &timers {
        assert_eq!(
            fate.is_dropped(),
            timer.kind == "once",
            "{}: only a once-callback is consumed by its firing",
            timer.kind
        );
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (timer.dispose)());
            }
        });
        assert!(fate.is_dropped());
        assert_eq!((timer.change)(), Changed::Ended);
    }
    assert_eq!((clock.advance(secs(1)), fired.get()), (0, 3));
}

#[test]
fn s20_after_dispose_no_callback_starts() {
    for kind in ["overlapping", "exclusive"] {
        for period in [NEVER, ms(50)] {
            let (_, runs) = claimed(kind, period, Timer::dispose);
            assert!(runs.is_empty(), "{kind}, {period:?}: {runs:?}");
            let (waited, runs) = claimed(kind, period, Timer::dispose_and_wait);
            assert_eq!((waited, runs), (vec![Waited::Ended], vec![]), "{kind}, {period:?}: claimed is not running");
        }
    }
    // A once-timer, too.
    let (clock, runtime) = manual();
    let victim: Own<OnceTimer> = Arc::default();
    let first = OnceTimer::on(&runtime, ms(10), {
        let victim = Arc::downgrade(&victim);
        move |_| own(&victim).get().expect("set").dispose()
    });
    let (canary, fate) = Canary::new();
    let timer = OnceTimer::on(&runtime, ms(10), move |_| canary.sing());
    victim.set(timer).expect("once");
    assert_eq!(clock.advance(ms(10)), 1);
    assert!(fate.is_dropped());
    drop(first);
}

#[test]
fn s20_a_running_callback_finishes() {
    within(PATIENCE, "dispose during a callback", || {
        let runtime = native();
        let (entered, gate) = (Count::new(), Gate::new());
        let finished = Count::new();
        let run = {
            let (entered, gate, finished) = (entered.clone(), gate.clone(), finished.clone());
            move || {
                entered.bump();
                gate.wait();
                finished.bump();
            }
        };
        let timers = one_of_each(&runtime, Duration::ZERO, NEVER, run);
        eventually("all three run", || entered.get() == 3);
        for (timer, fate) in &timers {
            (timer.dispose)();
            assert!(!fate.is_dropped(), "{}: what runs keeps what it owns", timer.kind);
            assert_eq!((timer.change)(), Changed::Ended);
        }
        assert_eq!(finished.get(), 0, "dispose does not wait");
        gate.open();
        eventually("they finish", || finished.get() == 3);
        eventually("and let go", || timers.iter().all(|(_, fate)| fate.is_dropped()));
        assert_eq!(entered.get(), 3);
    });
}

#[test]
fn s20_nothing_starts_after_dispose_and_wait_on_real_time() {
    within(2 * PATIENCE, "disposing what fires", || {
        let runtime = native();
        let late = Count::new();
        for round in 0..400 {
            let closed = Arc::new(AtomicBool::new(false));
            let timer = Timer::on(&runtime, us(round % 90), us(3 + round % 7), {
                let (closed, late) = (Arc::clone(&closed), late.clone());
                move |_| {
                    if closed.load(Ordering::SeqCst) {
                        late.bump();
                    }
                }
            });
            // Dispose at every possible moment of the first firings.
            let until = runtime.now() + us(round % 97);
            while runtime.now() < until {
                std::hint::spin_loop();
            }
            assert_eq!(timer.dispose_and_wait(), Waited::Ended);
            closed.store(true, Ordering::SeqCst);
            drop(timer);
        }
        runtime.shutdown(PATIENCE).expect("nothing runs");
        assert_eq!(late.get(), 0);
    });
}
