//! Models of the timed cancel against a reset of its source, and against a cancel by hand (S45, S46).
//!
//! ```text
//!   reuses a source                      the timed cancel
//!     nothing is armed, not cancelled      has begun
//!     ready for another use
//!                                          cancels the new use
//! ```

use super::*;

/// A source with a timed cancel on a manual clock, due at 1, and a callback.
fn timed() -> (Arc<Manual>, CancellationTokenSource, Traces) {
    let manual = Arc::new(Manual::new());
    let source = CancellationTokenSource::on(manual.source());
    source.cancel_after(Duration::from_nanos(1)).unwrap();
    let traces = Traces::new();
    traces.register(&source.token()).detach();
    (manual, source, traces)
}

/// The timed cancel fires: due now, or already in the pool.
fn fire(manual: &Arc<Manual>, in_pool: bool) -> JoinHandle<()> {
    let jobs = in_pool.then(|| manual.sweep_at(1));
    let manual = Arc::clone(manual);
    thread::spawn(move || manual.run(jobs.unwrap_or_else(|| manual.sweep_at(1))))
}

/// S46. A source that could be reset is not cancelled by what was armed before; its old callbacks are gone.
///
/// Seen to fail with: `try_reset` that does not withdraw, ignores a callback that has begun, or does not look at the status.
#[test]
fn a_reset_source_is_not_cancelled_by_its_past() {
    for in_pool in [false, true] {
        explore_all(move || {
            let (manual, source, traces) = timed();
            let worker = fire(&manual, in_pool);
            let reset = source.try_reset();
            worker.join().unwrap();
            manual.run(manual.sweep_at(5));
            assert_eq!(source.is_cancelled(), !reset);
            assert_eq!((traces.called(), traces.dropped()), (usize::from(!reset), 1));
            drop(source);
            manual.end();
        });
    }
}

/// S46, S33. As above, when the runtime ends meanwhile: a reset succeeds unless the timed cancel has cancelled or is going to.
///
/// Seen to fail with: a timed cancel that does not ask whether it was withdrawn, or does not say that it has begun.
#[test]
fn a_source_that_is_reset_at_the_end_of_its_runtime_is_not_cancelled_by_its_past() {
    for again in [false, true] {
        explore_all(move || {
            let (manual, source, traces) = timed();
            let worker = fire(&manual, true);
            manual.engine.close();
            if again {
                let _ = source.cancel_after(Duration::from_nanos(9));
            }
            let reset = source.try_reset();
            worker.join().unwrap();
            assert_eq!(source.is_cancelled(), !reset);
            assert_eq!((traces.called(), traces.dropped()), (usize::from(!reset), 1));
            drop(source);
            manual.end();
        });
    }
}

/// S45, S46. As above, when the timed cancel was withdrawn or moved before, with its callback begun: too late.
///
/// Seen to fail with: `cancel_after` that forgets that the callback had begun.
#[test]
fn a_timed_cancel_that_was_moved_too_late_prevents_a_reset() {
    for moved_to in [Duration::MAX, Duration::from_nanos(9)] {
        for in_pool in [false, true] {
            explore_all(move || {
                let (manual, source, _) = timed();
                let worker = fire(&manual, in_pool);
                source.cancel_after(moved_to).unwrap();
                let reset = source.try_reset();
                worker.join().unwrap();
                manual.run(manual.sweep_at(20));
                assert_eq!(source.is_cancelled(), !reset);
                drop(source);
                manual.end();
            });
        }
    }
}

/// S45. A timed cancel that is set while the source is cancelled leaves no timer behind.
///
/// Seen to fail with: `cancel_after` that does not look at the status again; `tell` that leaves the timer.
#[test]
fn a_timed_cancel_set_during_a_cancel_is_withdrawn() {
    for set_before in [false, true] {
        explore_all(move || {
            let manual = Arc::new(Manual::new());
            let source = CancellationTokenSource::on(manual.source());
            if set_before {
                source.cancel_after(Duration::from_nanos(7)).unwrap();
            }
            let canceller = cancel(&source);
            source.cancel_after(Duration::from_nanos(5)).unwrap();
            canceller.join().unwrap();
            assert_eq!(source.token().reason(), Some(CancelReason::Cancelled));
            assert_eq!(manual.engine.active(), 0, "no timer is left");
            drop(source);
            manual.end();
        });
    }
}

/// S40, S45, S48. By hand or by time: one of them, and everything registered is called once.
///
/// Seen to fail with: `mark` in two steps; a poll that does not look at the status under the lock.
#[test]
fn by_hand_or_by_time_once() {
    explore_bounded(|| {
        let (manual, source, traces) = timed();
        let worker = fire(&manual, false);
        let canceller = cancel(&source);
        let task = Task::new();
        let token = source.token();
        let mut waiting = token.cancelled();
        let polled = task.poll(&mut waiting);
        let by_hand = canceller.join().unwrap();
        worker.join().unwrap();
        let reason = if by_hand { CancelReason::Cancelled } else { CancelReason::Timeout };
        assert_eq!(token.reason(), Some(reason));
        assert_eq!((traces.called(), traces.dropped()), (1, 1));
        assert!(polled.is_ready() || task.woken() == 1);
        assert!(matches!(task.poll(&mut waiting), Poll::Ready(cancelled) if cancelled.reason() == reason));
        drop(waiting);
        drop((token, source));
        manual.end();
    });
}

/// S45. The last handle is dropped while the timed cancel fires: everything is freed.
///
/// Seen to fail, and this model alone, with: a timed cancel whose callback owns its source.
#[test]
fn a_source_dropped_while_its_timed_cancel_fires_is_freed() {
    for in_pool in [false, true] {
        explore_all(move || {
            let (manual, source, traces) = timed();
            let worker = fire(&manual, in_pool);
            drop(source);
            worker.join().unwrap();
            assert_eq!(traces.dropped(), 1);
            manual.run(manual.sweep_at(5));
            manual.end();
        });
    }
}
