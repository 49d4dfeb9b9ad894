//! Models of ticks due while a callback runs: each tick runs, or is counted as missed, once (S7 to
//! S9, I9, I11).

use super::*;

/// S9. Callbacks of an exclusive timer do not overlap, each callback sees the writes of the
/// previous callback, and a tick due meanwhile runs afterwards.
///
/// ```text
///   a worker                             a sweep
///     ends the callback, no tick is deferred
///                                          a callback runs: the tick is deferred
///     done: no thread settles
///
///     begins                               no job is queued: queues one
///     runs                                 its job begins: two at once
/// ```
///
/// Seen to fail with: `claim` that does not read RUNNING; `end` that does not read DEFERRED;
/// `transition` with relaxed orderings (the next callback may not see the writes of the previous
/// callback); `settle` that does not claim.
#[test]
fn exclusive_callbacks_never_overlap_and_no_tick_is_lost() {
    explore_all(|| {
        let (stage, jobs) = Stage::with_job(Kind::Exclusive, MissedTicks::Burst);
        stage.virtual_time.set(DUE + PERIOD);
        let worker = spawn(&stage, |stage| stage.run(jobs));
        stage.run(stage.sweep_at(DUE + PERIOD));
        worker.join().unwrap();
        stage.run(stage.sweep_at(DUE + PERIOD));
        assert_eq!(stage.begun(), [DUE, DUE + PERIOD]);
        stage.end();
    });
}

/// S9. The same at the end of the count of running callbacks, where the callback is the last that
/// may run: a tick due meanwhile waits for the end of a callback, and is not lost.
///
/// Seen to fail with: `claim` that does not read RUNNING; `end` that does not read DEFERRED.
#[test]
fn a_tick_at_the_end_of_the_count_waits_and_is_not_lost() {
    for two_are_due in [false, true] {
        explore_all(move || {
            let (stage, jobs) = Stage::with_job(Kind::Overlapping, MissedTicks::Burst);
            stage.state(|state| state.pretend_running(StateWord::MOST - 1));
            let mut due = DUE + PERIOD;
            stage.virtual_time.set(due);
            if two_are_due {
                assert!(stage.sweep_at(due).is_empty(), "deferred, before the first has begun");
                due += PERIOD;
            }
            let worker = spawn(&stage, |stage| stage.run(jobs));
            stage.run(stage.sweep_at(due));
            worker.join().unwrap();
            stage.run(stage.sweep_at(due));
            assert_eq!(stage.begun().len() as u64, due / PERIOD + 1);
            stage.state(|state| state.pretend_running(1 - StateWord::MOST));
            stage.end();
        });
    }
}

/// S9. Two callbacks end, of as many as may run, and a tick is deferred: one of them settles it.
///
/// Seen to fail with: `end` that settles a tick which the other callback settles.
#[test]
fn of_two_callbacks_at_the_end_of_the_count_one_settles_the_tick() {
    explore_bounded(|| {
        let (stage, jobs) = Stage::with_job(Kind::Overlapping, MissedTicks::Burst);
        let third = DUE + 2 * PERIOD;
        stage.virtual_time.set(third);
        let worker = spawn(&stage, |stage| stage.run(jobs));
        stage.run(stage.sweep_at(third));
        worker.join().unwrap();
        stage.run(stage.sweep_at(third));
        assert_eq!(stage.begun(), [DUE, DUE + PERIOD, third]);
        stage.end();
    });
}

/// S9. Overlapping callbacks: a tick due before the job of the previous tick has begun runs as
/// well.
///
/// Seen to fail with: `begin` that does not read DEFERRED; `begin` that clears QUEUED before the
/// settlement.
#[test]
fn overlapping_ticks_are_never_lost() {
    explore_all(|| {
        let (stage, jobs) = Stage::with_job(Kind::Overlapping, MissedTicks::Burst);
        stage.virtual_time.set(DUE + PERIOD);
        let worker = spawn(&stage, |stage| stage.run(jobs));
        stage.run(stage.sweep_at(DUE + PERIOD));
        worker.join().unwrap();
        stage.run(stage.sweep_at(DUE + PERIOD));
        assert_eq!(stage.begun(), [DUE, DUE + PERIOD]);
        stage.end();
    });
}

/// As the two models before, with two sweeps in between, and with each policy that counts all ticks
/// (S8, S13).
#[test]
fn every_tick_is_run_or_counted_as_missed() {
    for kind in [Kind::Overlapping, Kind::Exclusive] {
        for policy in [MissedTicks::Burst, MissedTicks::Skip] {
            explore_bounded(move || {
                let (stage, jobs) = Stage::with_job(kind, policy);
                let worker = spawn(&stage, |stage| stage.run(jobs));
                let sweeper = spawn(&stage, |stage| stage.run(stage.sweep_at(DUE + PERIOD)));
                sweeper.join().unwrap();
                stage.run(stage.sweep_at(DUE + 2 * PERIOD));
                worker.join().unwrap();
                stage.run(stage.sweep_at(DUE + 2 * PERIOD));
                let begun = stage.begun();
                assert_eq!(begun.len() as u64 + stage.traces.missed.load(Relaxed), 3, "ticks begun: {begun:?}");
                stage.end();
            });
        }
    }
}

/// The payload of a one-shot is consumed by its single run or dropped, in any order of begin,
/// change and dispose; never both, never neither.
///
/// Seen to fail with: `begin` that does not set CONSUMED; `finish_disposal` that does not read
/// CONSUMED; `rearm` that does not read CONSUMED.
#[test]
fn once_is_consumed_or_dropped() {
    explore_bounded(|| {
        let (stage, jobs) = Stage::with_job(Kind::Once, MissedTicks::Rebase);
        stage.virtual_time.set(DUE + 1);
        let worker = spawn(&stage, |stage| stage.run(jobs));
        let changer = spawn(&stage, |stage| {
            let _ = stage.change(Duration::ZERO);
            stage.run(stage.sweep_at(DUE + 1));
        });
        stage.dispose();
        changer.join().unwrap();
        worker.join().unwrap();
        assert!(stage.begun().len() <= 1, "begun: {:?}", stage.begun());
        assert_eq!(stage.traces.dropped.load(Relaxed), 1);
        stage.end();
    });
}
