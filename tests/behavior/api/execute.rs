//! Jobs run on the pool.

use super::*;

#[test]
fn s62_a_job_runs_on_the_pool_contained_and_counted() {
    let runtime = native();
    let (ran, thread) = (Count::new(), thread::current().id());
    runtime.execute({
        let ran = ran.clone();
        move || {
            assert_ne!(thread::current().id(), thread);
            ran.bump();
        }
    });
    runtime.execute(|| panic!("on purpose"));
    eventually("both have run", || ran.get() == 1 && runtime.metrics().panics == 1 && runtime.metrics().fired() == 2);
    // A job that blocks delays no other.
    let gate = Gate::new();
    for _ in 0..8 {
        let gate = gate.clone();
        runtime.execute(move || gate.wait());
    }
    runtime.execute({
        let gate = gate.clone();
        move || gate.open()
    });
    eventually("none waits", || runtime.metrics().fired() == 11);
}

#[test]
fn s62_on_a_manual_clock_a_job_runs_as_a_timer_due_now() {
    let (clock, runtime) = manual();
    let order = Journal::new();
    let push = |name: &'static str| {
        let order = order.clone();
        move || order.push(name)
    };
    let (before, after) = (push("timer before"), push("timer after"));
    let first = OnceTimer::on(&runtime, Duration::ZERO, move |_| before());
    runtime.execute(push("job"));
    let last = OnceTimer::on(&runtime, Duration::ZERO, move |_| after());
    assert_eq!((order.len(), runtime.metrics().active), (0, 3));
    assert_eq!(clock.advance(Duration::ZERO), 3);
    assert_eq!(order.take(), ["timer before", "job", "timer after"]);
    drop((first, last));
}

#[test]
fn s62_a_job_of_a_runtime_that_has_ended_is_dropped_unrun() {
    let (_clock, runtime) = manual();
    let (canary, fate) = Canary::new();
    runtime.execute(move || canary.sing());
    runtime.shutdown(Duration::ZERO).expect("no threads");
    assert!(fate.is_dropped());
    let (canary, fate) = Canary::new();
    runtime.execute(move || canary.sing());
    assert!(fate.is_dropped());
    let (canary, fate) = Canary::new();
    assert!(matches!(runtime.try_execute(move || canary.sing()), Err(RuntimeError::Ended)) && fate.is_dropped());
    assert_eq!(runtime.metrics().fired(), 0);
}
