//! Models of a timer that is disposed, or whose handle is dropped, while it fires (S19, S20, S23).

use super::*;

/// S20, and the right to clean up is given to one.
///
/// ```text
///   a worker                             dispose
///     takes the job
///                                          marks, sees no callback: cleans up
///     begins: calls what is dropped
///
///     ends the last callback               marks, sees a callback: leaves it to that
///     sees no mark: leaves it to dispose
/// ```
///
/// Seen to fail with: `begin` without its look at DISPOSED; `end` that does not look at DISPOSED; `dispose` that gives the
/// right to clean up whatever runs; `transition` with relaxed orderings.
#[test]
fn a_disposed_timer_never_starts_and_is_cleaned_up_once() {
    for kind in KINDS {
        explore_all(move || {
            let (stage, jobs) = Stage::with_job(kind, MissedTicks::Rebase);
            let worker = spawn(&stage, |stage| stage.run(jobs));
            stage.dispose();
            assert_eq!(stage.engine.active(), 0, "unlinked at once (S19)");
            worker.join().unwrap();
            assert_eq!(stage.traces.dropped.load(Relaxed), 1);
            stage.run(stage.sweep_at(5 * PERIOD));
            stage.end();
        });
    }
}

/// As above, when somebody else disposes at the same time.
#[test]
fn two_disposals_clean_up_once() {
    for kind in KINDS {
        explore_bounded(move || {
            let (stage, jobs) = Stage::with_job(kind, MissedTicks::Rebase);
            let worker = spawn(&stage, |stage| stage.run(jobs));
            let other = spawn(&stage, |stage| stage.dispose());
            stage.dispose();
            other.join().unwrap();
            worker.join().unwrap();
            stage.end();
        });
    }
}

/// S20 against a sweep that files the next tick and a settlement that claims it.
///
/// Seen to fail with: `settle` without its look at DISPOSED.
#[test]
fn a_disposed_timer_is_not_filed_again() {
    for kind in [Kind::Overlapping, Kind::Exclusive] {
        explore_bounded(move || {
            let (stage, jobs) = Stage::with_job(kind, MissedTicks::Burst);
            stage.virtual_time.set(DUE + PERIOD);
            let worker = spawn(&stage, |stage| stage.run(jobs));
            let sweeper = spawn(&stage, |stage| stage.run(stage.sweep_at(DUE + PERIOD)));
            stage.dispose();
            assert_eq!(stage.engine.active(), 0, "unlinked, and filed no more");
            sweeper.join().unwrap();
            worker.join().unwrap();
            assert_eq!(stage.engine.active(), 0, "unlinked, and filed no more");
            stage.end();
        });
    }
}

/// S20 against a change at the same time.
///
/// Seen to fail with: `rearm` without its look at DISPOSED; `dispose` that unlinks before it marks.
#[test]
fn a_change_does_not_revive_a_disposed_timer() {
    for kind in KINDS {
        explore_all(move || {
            let stage = Stage::new(kind, MissedTicks::Rebase);
            stage.virtual_time.set(DUE);
            let changer = spawn(&stage, |stage| {
                stage.change(Duration::from_nanos(PERIOD));
            });
            stage.dispose();
            changer.join().unwrap();
            assert_eq!(stage.engine.active(), 0, "unlinked, and filed no more");
            assert_eq!(stage.change(Duration::ZERO), None, "ended");
            stage.end();
        });
    }
}

/// S23. The last handle is dropped while the tick is swept, begins or ends, without a word of disposal before.
///
/// Seen to fail with: `release` or `has_only` relaxed; `dispose_last` that does not ask `has_only`; `dispose` that gives the
/// right to clean up whatever runs.
#[test]
fn a_timer_dropped_while_it_fires_is_cleaned_up_once() {
    for kind in KINDS {
        explore_all(move || {
            let stage = Stage::new(kind, MissedTicks::Burst);
            let handle = stage.handle.lock().unwrap().take();
            let worker = spawn(&stage, |stage| {
                let jobs = stage.sweep_at(DUE);
                stage.run(jobs);
            });
            drop(handle);
            stage.void.store(u64::MAX, Relaxed);
            assert_eq!(stage.engine.active(), 0, "unlinked at once");
            worker.join().unwrap();
            stage.run(stage.sweep_at(5 * PERIOD));
            stage.end();
        });
    }
}

/// S11, S22. A callback that disposes its timer, or lets go of the last handle, ends with what it owns still there, and does
/// not wait for itself; whoever waits outside is told at its end.
///
/// Seen to fail with: a wait for the own callback (a deadlock); `dispose` that gives the right to clean up whatever runs.
#[test]
fn a_callback_may_end_its_own_timer() {
    for kind in KINDS {
        for act in [Act::Dispose, Act::DisposeAndWait, Act::DropHandle] {
            explore_bounded(move || {
                let stage = Stage::with(kind, MissedTicks::Rebase, act);
                let jobs = stage.sweep_at(DUE);
                let worker = spawn(&stage, |stage| stage.run(jobs));
                let handle = stage.handle.lock().unwrap().as_ref().map(Arc::clone);
                if let Some(handle) = handle {
                    assert_eq!(handle.dispose_and_wait(), Waited::Ended);
                    assert_eq!(stage.traces.dropped.load(Relaxed), 1);
                    stage.traces.data.read();
                }
                worker.join().unwrap();
                assert_eq!(stage.engine.active(), 0);
                stage.end();
            });
        }
    }
}
