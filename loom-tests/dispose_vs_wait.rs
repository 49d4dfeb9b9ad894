//! Models of a disposal: threads and tasks wait for the end of the timer (S21, S22).

use super::*;

/// S21. A waiter is woken after the payload of the callback has been dropped. `dispose_and_wait`
/// asserts this.
///
/// ```text
///   a waiter                             the last callback
///                                          ends: sets DROPPED, sees no waiter
///     has read no DROPPED: is listed, sleeps for ever
///
///                                          ends: sets DROPPED
///     sees DROPPED: returns
///                                          drops the payload: too late
/// ```
///
/// Seen to fail with: `wait_for_dropped` that does not read DROPPED, or does not set WAITED; `gone`
/// that does not read WAITED; a disposal that sets DROPPED before the drop; `end` that does not
/// read DISPOSED.
#[test]
fn waiters_are_woken_after_the_last_callback() {
    for kind in KINDS {
        explore_bounded(move || {
            let (stage, jobs) = Stage::with_job(kind, MissedTicks::Rebase);
            let worker = spawn(&stage, |stage| stage.run(jobs));
            stage.dispose_and_wait();
            worker.join().unwrap();
            stage.end();
        });
    }
}

/// Counts the calls of its waker.
#[derive(Default)]
struct CountingWaker(Tally);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// S21. The first poll of a waiter races with the end of the timer: either the poll finds the end,
/// or the end finds the waker. A waiter dropped meanwhile, and a waiter polled again, leave no
/// waker in the list.
///
/// ```text
///   the first poll                       the last callback
///     sets WAITED
///                                          ends: sets DROPPED, sees WAITED
///                                          takes the list: it is empty
///     is listed, and never woken
/// ```
///
/// Seen to fail with: `Waiters::wait` that reads the state word before it locks, or does not read
/// the word.
#[test]
fn a_first_poll_finds_the_end_or_is_woken_by_it() {
    for kind in [Kind::Overlapping, Kind::Once] {
        for given_up in [false, true] {
            explore_bounded(move || {
                let (stage, jobs) = Stage::with_job(kind, MissedTicks::Rebase);
                let worker = spawn(&stage, |stage| stage.run(jobs));
                let wakers: [Arc<CountingWaker>; 2] = Default::default();
                let poll = |waiting: &mut Disposal, waker: usize| {
                    let waker = Arc::clone(&wakers[waker]).into();
                    Pin::new(waiting).poll(&mut Context::from_waker(&waker)).is_pending()
                };
                let handle = stage.handle();
                let mut waiting = handle.dispose_async();
                stage.void.store(u64::MAX, Relaxed);
                let first = poll(&mut waiting, 0);
                if given_up {
                    drop(waiting);
                    worker.join().unwrap();
                } else {
                    let second = first && poll(&mut waiting, 1);
                    worker.join().unwrap();
                    let wakes = wakers.each_ref().map(|waker| waker.0.load(Relaxed));
                    assert!(wakes[1] == u64::from(second) && wakes[0] == u64::from(first && !second), "{wakes:?}");
                    assert!(!poll(&mut waiting, 0), "ended");
                }
                assert_eq!(stage.engine.shards().next().unwrap().waiters.count(), (0, 0));
                assert!(wakers.iter().all(|waker| Arc::strong_count(waker) == 1), "no waker is left");
                drop(handle);
                stage.end();
            });
        }
    }
}

/// S21, with two waiters.
#[test]
fn all_waiters_are_woken() {
    for kind in [Kind::Overlapping, Kind::Once] {
        explore_few(move || {
            let (stage, jobs) = Stage::with_job(kind, MissedTicks::Rebase);
            let worker = spawn(&stage, |stage| stage.run(jobs));
            let other = spawn(&stage, |stage| stage.dispose_and_wait());
            stage.dispose_and_wait();
            other.join().unwrap();
            worker.join().unwrap();
            stage.end();
        });
    }
}

/// S12, S21: the callback panics.
#[test]
fn waiters_for_a_callback_that_panics_are_woken() {
    explore_bounded(|| {
        let stage = Stage::with(Kind::Overlapping, MissedTicks::Rebase, Act::Panic);
        let jobs = stage.sweep_at(DUE);
        let worker = spawn(&stage, |stage| stage.run(jobs));
        stage.dispose_and_wait();
        worker.join().unwrap();
        assert_eq!(stage.engine.panics(), stage.begun().len() as u64);
        stage.end();
    });
}
