//! Models of the timed cancel: a reset, a change or a cancel of its source meanwhile (S45, S46).
//!
//! ```text
//!   reuses a source                      the timed cancel
//!     not armed, not cancelled             has begun
//!     ready for another use
//!                                          cancels the new use
//! ```

use super::*;

/// A source on a manual clock, with a callback and a timed cancel due at 1.
fn timed() -> (Arc<Manual>, CancellationTokenSource, Traces) {
    let manual = Arc::new(Manual::new());
    let source = CancellationTokenSource::of(manual.source());
    source.try_cancel_after(Duration::from_nanos(1)).unwrap();
    let traces = Traces::new();
    traces.register(&source.token()).detach();
    (manual, source, traces)
}

/// A thread fires the timed cancel, which is due in the queue, or a job in the pool.
fn fire(manual: &Arc<Manual>, in_pool: bool) -> JoinHandle<()> {
    let jobs = in_pool.then(|| manual.sweep_at(1));
    let manual = Arc::clone(manual);
    thread::spawn(move || manual.run(jobs.unwrap_or_else(|| manual.sweep_at(1))))
}

/// S46. After a successful reset, the timed cancel from before does not cancel the source; its old
/// callbacks are dropped.
///
/// Seen to fail with: `try_reset` that does not withdraw, ignores a callback that has begun, or
/// does not read the status.
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

/// S46, S33. The runtime ends meanwhile: a reset succeeds unless the timed cancel has cancelled the
/// source or is going to.
///
/// Seen to fail with: a timed cancel that does not check whether it was withdrawn, or does not
/// publish that it has begun.
#[test]
fn a_source_that_is_reset_at_the_end_of_its_runtime_is_not_cancelled_by_its_past() {
    for again in [false, true] {
        explore_all(move || {
            let (manual, source, traces) = timed();
            let worker = fire(&manual, true);
            manual.engine.close();
            if again {
                let _ = source.try_cancel_after(Duration::from_nanos(9));
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

/// S45, S46. The timed cancel is withdrawn or moved after its callback has begun, so too late: a
/// reset fails.
///
/// Seen to fail with: `cancel_after` that forgets that the callback had begun.
#[test]
fn a_timed_cancel_that_was_moved_too_late_prevents_a_reset() {
    for moved_to in [Duration::MAX, Duration::from_nanos(9)] {
        for in_pool in [false, true] {
            explore_all(move || {
                let (manual, source, _) = timed();
                let worker = fire(&manual, in_pool);
                source.try_cancel_after(moved_to).unwrap();
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

/// S45. A timed cancel set while the source is cancelled leaves no timer.
///
/// Seen to fail with: `cancel_after` that does not read the status again; `tell` that leaves the
/// timer.
#[test]
fn a_timed_cancel_set_during_a_cancel_is_withdrawn() {
    for set_before in [false, true] {
        explore_all(move || {
            let manual = Arc::new(Manual::new());
            let source = CancellationTokenSource::of(manual.source());
            if set_before {
                source.try_cancel_after(Duration::from_nanos(7)).unwrap();
            }
            let canceller = cancel(&source);
            source.try_cancel_after(Duration::from_nanos(5)).unwrap();
            canceller.join().unwrap();
            assert_eq!(source.token().reason(), Some(CancelReason::Cancelled));
            assert_eq!(manual.engine.active(), 0, "no timer is left");
            drop(source);
            manual.end();
        });
    }
}

/// S40, S45, S48. `cancel` races with the timed cancel: one of them wins, and each callback is
/// called once.
///
/// Seen to fail with: `mark` in two steps; a poll that does not read the status under the lock.
#[test]
fn cancel_and_timed_cancel_cancel_once() {
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

/// S45. The last handle is dropped while the timed cancel fires: source and timer are freed.
///
/// Only this model was seen to fail with: a timed cancel that owns its source.
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
