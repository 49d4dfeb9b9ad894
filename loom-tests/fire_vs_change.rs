//! Models of a change: the timer fires meanwhile (S15, S16, I10, I11).

use super::*;

/// S16. After the return of a change, no callback of the old schedule starts.
///
/// ```text
///   a worker                             change
///     takes the job
///                                          voids the schedule, inserts anew, returns
///     begins the old tick: too late
/// ```
///
/// Seen to fail with: `rearm` that keeps CURRENT; `rearm` that reports `withdrawn` from DEFERRED
/// alone.
#[test]
fn a_changed_tick_never_starts() {
    for kind in KINDS {
        explore_all(move || {
            let (stage, jobs) = Stage::with_job(kind, MissedTicks::Rebase);
            stage.virtual_time.set(DUE + 1);
            let worker = spawn(&stage, |stage| stage.run(jobs));
            let waited = stage.change(Duration::MAX);
            worker.join().unwrap();
            // A periodic timer also waits for its next tick.
            match (kind, waited) {
                (Kind::Once, Some(waited)) => assert_eq!(waited, stage.begun().is_empty()),
                (Kind::Once, None) => assert_eq!(stage.begun(), [DUE], "consumed"),
                (_, waited) => assert_eq!(waited, Some(true)),
            }
            stage.run(stage.sweep_at(10 * PERIOD));
            assert!(stage.begun().len() <= 1, "stopped");
            stage.end();
        });
    }
}

/// S15, S16. The tick of the new schedule runs once, also if the void job of the old schedule is
/// still in the pool, and the new tick needs this job.
///
/// ```text
///   a worker                             change to now               a sweep
///     takes the job
///                                          voids the job
///     begins: void, no tick is deferred
///                                                                      claims: a job is queued,
///                                                                      so the tick is deferred
///     drops the job: no thread settles
/// ```
///
/// Seen to fail with: `begin` that refuses a void job although a tick is deferred; `claim` that
/// does not see a void job.
#[test]
fn a_new_tick_uses_the_void_job() {
    for kind in KINDS {
        explore_all(move || {
            let (stage, jobs) = Stage::with_job(kind, MissedTicks::Rebase);
            stage.virtual_time.set(DUE + 1);
            let worker = spawn(&stage, |stage| stage.run(jobs));
            let changed = stage.change(Duration::ZERO);
            stage.run(stage.sweep_at(DUE + 1));
            worker.join().unwrap();
            assert_eq!(stage.times_begun(DUE + 1), usize::from(changed.is_some()));
            assert!(changed.is_some() || stage.times_begun(DUE) == 1, "consumed by the tick that ran");
            stage.end();
        });
    }
}

/// S15, S16. A change races with a settlement: a tick is deferred when the change comes.
///
/// Seen to fail with: `rearm` that keeps DEFERRED; `settle` that does not read DEFERRED; `settle`
/// that does not clear QUEUED.
#[test]
fn a_deferred_tick_is_withdrawn_by_a_change() {
    for kind in [Kind::Overlapping, Kind::Exclusive] {
        for due in [Duration::ZERO, Duration::MAX] {
            explore_all(move || {
                let (stage, jobs) = Stage::with_job(kind, MissedTicks::Burst);
                let more = stage.sweep_at(DUE + PERIOD);
                assert!(more.is_empty(), "the second tick is deferred");
                stage.virtual_time.set(DUE + PERIOD + 1);
                let worker = spawn(&stage, |stage| stage.run(jobs));
                assert!(stage.change(due).is_some());
                stage.run(stage.sweep_at(DUE + PERIOD + 1));
                worker.join().unwrap();
                // The job of the worker may have kept the new tick from a job of its own.
                stage.run(stage.sweep_at(DUE + 5 * PERIOD));
                let new = stage.times_begun(DUE + PERIOD + 1);
                assert_eq!(new, usize::from(due.is_zero()), "the tick of the new schedule runs once");
                assert!(stage.times_begun(DUE) <= 1 && stage.times_begun(DUE + PERIOD) <= 1);
                assert!(stage.times_begun(DUE + PERIOD) <= stage.times_begun(DUE), "deferred because of the first");
                assert_eq!(stage.engine.active(), 0, "idle after the last tick");
                stage.end();
            });
        }
    }
}

/// S11, S15. A callback that restarts its timer runs once more, for any step of a sweep of the old
/// schedule meanwhile.
///
/// Only this model was seen to fail with: a change refused inside the own callback; a change inside
/// the own callback that does not insert a timer which is in no list (its tick is deferred).
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
            // The second tick of the old schedule may have run before.
            assert!((2..=3).contains(&begun.len()), "ticks begun: {begun:?}");
            assert_eq!(stage.engine.active(), 0, "one tick more, and then idle");
            stage.end();
        });
    }
}

/// S89. The runtime ends while a worker has the void job of a changed timer, whose new tick has
/// come due: the callback runs, or is handed back.
///
/// ```text
///   a worker                             shutdown
///     begins: void, a tick is deferred
///                                          closes the shard, discards all jobs
///     the shard is closed: disposes the timer
/// ```
///
/// Seen to fail with: `settle` that disposes the timer if the shard is closed.
#[test]
fn a_tick_that_a_void_job_settles_runs_or_is_handed_back() {
    for kind in KINDS {
        explore_all(move || {
            let (stage, jobs) = Stage::with_job(kind, MissedTicks::Rebase);
            assert!(stage.change(Duration::ZERO).is_some());
            assert!(stage.sweep_at(DUE + 1).is_empty(), "the job is queued still");
            stage.engine.keep_unfired();
            let worker = spawn(&stage, |stage| stage.run(jobs));
            stage.engine.close();
            worker.join().unwrap();
            let unfired = stage.engine.take_unfired();
            assert_eq!(stage.begun().len() + unfired.len(), 1);
            drop(unfired);
            stage.end();
        });
    }
}
