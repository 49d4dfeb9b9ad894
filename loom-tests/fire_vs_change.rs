//! Models of a timer that is changed while it fires (S15, S16).

use super::*;

/// S16. After a change has returned, no callback of the old schedule starts.
///
/// ```text
///   a worker                             change
///     takes the job
///                                          voids the schedule, unlinks, files anew: returns
///     begins the old tick: too late
/// ```
///
/// Seen to fail with: `rearm` that keeps LIVE; `rearm` that reports `withdrawn` from OWED alone.
#[test]
fn a_changed_tick_never_starts() {
    for kind in KINDS {
        explore_all(move || {
            let (stage, jobs) = Stage::with_job(kind, MissedTicks::Rebase);
            stage.virtual_time.set(DUE + 1);
            let worker = spawn(&stage, |stage| stage.run(jobs));
            let waited = stage.change(Duration::MAX);
            worker.join().unwrap();
            // A periodic timer waits for its next tick besides.
            match (kind, waited) {
                (Kind::Once, Some(waited)) => assert_eq!(waited, stage.begun().is_empty()),
                (Kind::Once, None) => assert_eq!(stage.begun(), [DUE], "spent"),
                (_, waited) => assert_eq!(waited, Some(true)),
            }
            stage.run(stage.sweep_at(10 * PERIOD));
            assert!(stage.begun().len() <= 1, "stopped");
            stage.end();
        });
    }
}

/// S15, S16. The tick of the new schedule is run, once, also when the void job of the old one is still in the pool and the
/// new tick has to ride on it.
///
/// ```text
///   a worker                             change to now               a sweep
///     takes the job
///                                          voids the job
///     begins: void, nothing is owed
///                                                                      claims: a job is queued,
///                                                                      so the tick is owed
///     drops the job: nobody settles
/// ```
///
/// Seen to fail with: `begin` that refuses a void job although a tick is owed; `claim` that does not see a void job.
#[test]
fn a_new_tick_rides_on_the_void_job() {
    for kind in KINDS {
        explore_all(move || {
            let (stage, jobs) = Stage::with_job(kind, MissedTicks::Rebase);
            stage.virtual_time.set(DUE + 1);
            let worker = spawn(&stage, |stage| stage.run(jobs));
            let changed = stage.change(Duration::ZERO);
            stage.run(stage.sweep_at(DUE + 1));
            worker.join().unwrap();
            assert_eq!(stage.times_begun(DUE + 1), usize::from(changed.is_some()));
            assert!(changed.is_some() || stage.times_begun(DUE) == 1, "spent by the tick that ran");
            stage.end();
        });
    }
}

/// S15, S16, against a settlement: a tick is owed when the change comes.
///
/// Seen to fail with: `rearm` that keeps OWED; `settle` that does not look at OWED; `settle` that forgets to give QUEUED
/// back.
#[test]
fn an_owed_tick_is_withdrawn_by_a_change() {
    for kind in [Kind::Overlapping, Kind::Exclusive] {
        for due in [Duration::ZERO, Duration::MAX] {
            explore_all(move || {
                let (stage, jobs) = Stage::with_job(kind, MissedTicks::Burst);
                let more = stage.sweep_at(DUE + PERIOD);
                assert!(more.is_empty(), "the second tick is owed");
                stage.virtual_time.set(DUE + PERIOD + 1);
                let worker = spawn(&stage, |stage| stage.run(jobs));
                assert!(stage.change(due).is_some());
                stage.run(stage.sweep_at(DUE + PERIOD + 1));
                worker.join().unwrap();
                // The worker may have been the one whose job is in the way.
                stage.run(stage.sweep_at(DUE + 5 * PERIOD));
                let new = stage.times_begun(DUE + PERIOD + 1);
                assert_eq!(new, usize::from(due.is_zero()), "the tick of the new schedule runs once");
                assert!(stage.times_begun(DUE) <= 1 && stage.times_begun(DUE + PERIOD) <= 1);
                assert!(stage.times_begun(DUE + PERIOD) <= stage.times_begun(DUE), "owed on behalf of the first");
                assert_eq!(stage.engine.active(), 0, "idle after the last tick");
                stage.end();
            });
        }
    }
}

/// S11, S15. A callback that starts its timer anew runs again, once, whatever the sweep of the old schedule does meanwhile.
///
/// Seen to fail, and this model alone, with: a change that is refused inside the own callback; one that does not file there what is
/// filed nowhere (a tick is owed).
#[test]
fn a_callback_may_restart_its_own_timer() {
    for kind in [Kind::Overlapping, Kind::Exclusive] {
        explore_all(move || {
            let stage = Stage::with(kind, MissedTicks::Rebase, Act::Restart);
            let jobs = stage.sweep_at(DUE);
            let worker = spawn(&stage, |stage| stage.run(jobs));
            stage.run(stage.sweep_at(DUE + PERIOD));
            worker.join().unwrap();
            stage.run(stage.sweep_at(DUE + PERIOD));
            let begun = stage.begun();
            assert_eq!(begun[0], DUE);
            // The second tick of the old schedule may have come before.
            assert!((2..=3).contains(&begun.len()), "ticks begun: {begun:?}");
            assert_eq!(stage.engine.active(), 0, "one tick more, and then idle");
            stage.end();
        });
    }
}
