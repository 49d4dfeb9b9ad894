//! Models of a disposal, and of the drop of a handle: the timer fires meanwhile (S19, S20, S23,
//! I10, I12).

use super::*;

/// S20, and a single thread gets the right to drop the payload.
///
/// ```text
///   a worker                             dispose
///     takes the job
///                                          marks, sees no callback: drops the payload
///     begins: calls a dropped callback
///
///     ends the last callback               marks, sees a callback, which is to drop the payload
///     sees no mark: the disposal is to drop the payload
/// ```
///
/// Seen to fail with: `begin` that does not read DISPOSED; `end` that does not read DISPOSED;
/// `dispose` that gives the right to drop the payload while a callback runs; `transition` with
/// relaxed orderings.
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

/// The same, with two threads that dispose at the same time.
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

/// S20. A disposal races with a sweep that inserts the next tick, and with a settlement that claims
/// this tick.
///
/// Seen to fail with: `settle` that does not read DISPOSED.
#[test]
fn a_disposed_timer_is_not_inserted_again() {
    for kind in [Kind::Overlapping, Kind::Exclusive] {
        explore_bounded(move || {
            let (stage, jobs) = Stage::with_job(kind, MissedTicks::Burst);
            stage.virtual_time.set(DUE + PERIOD);
            let worker = spawn(&stage, |stage| stage.run(jobs));
            let sweeper = spawn(&stage, |stage| stage.run(stage.sweep_at(DUE + PERIOD)));
            stage.dispose();
            assert_eq!(stage.engine.active(), 0, "unlinked, and inserted no more");
            sweeper.join().unwrap();
            worker.join().unwrap();
            assert_eq!(stage.engine.active(), 0, "unlinked, and inserted no more");
            stage.end();
        });
    }
}

/// S20. A disposal races with a change.
///
/// Seen to fail with: `rearm` that does not read DISPOSED; `dispose` that unlinks before it marks.
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
            assert_eq!(stage.engine.active(), 0, "unlinked, and inserted no more");
            assert_eq!(stage.change(Duration::ZERO), None, "ended");
            stage.end();
        });
    }
}

/// S23. The last handle is dropped, with no disposal before, while the tick is swept, begins or
/// ends.
///
/// Seen to fail with: `release` or `has_only` relaxed; `dispose_last` that does not call
/// `has_only`; `dispose` that gives the right to drop the payload while a callback runs.
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

/// S11, S22. A callback may dispose its timer, or drop the last handle: the payload lives until the
/// callback ends, and the callback does not wait for itself. A waiter on a second thread is woken
/// at the end of the callback.
///
/// Seen to fail with: a wait for the own callback (a deadlock); `dispose` that gives the right to
/// drop the payload while a callback runs.
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
