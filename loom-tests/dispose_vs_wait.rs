//! Models of a disposal against threads and tasks that wait for the end of the timer (S21, S22).

use super::*;

/// S21. Whoever waits is told, after what the callback owned has been dropped. `dispose_and_wait` asserts it.
///
/// ```text
///   who waits                            the last callback
///                                          ends: says "gone", sees nobody who waits
///     not gone yet? registers, sleeps: for ever
///
///                                          ends: says "gone"
///     gone: returns
///                                          drops what the callback owned: too late
/// ```
///
/// Seen to fail with: `wait_for_gone` that does not look at GONE, or does not leave WAITED; `gone` that does not look at
/// WAITED; a disposal that says gone before it drops; `end` that does not look at DISPOSED.
#[test]
fn whoever_waits_is_told_after_the_last_callback() {
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
struct Bell(Tally);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// S21. The first poll of a waiter meets the end of the timer: either the poll finds the end, or the end finds the waker. A waiter
/// that is dropped meanwhile, and one that is polled again, leave nothing listed.
///
/// ```text
///   the first poll                       the last callback
///     sets WAITED
///                                          ends: sets GONE, sees WAITED
///                                          takes the list: it is empty
///     is listed, and never woken
/// ```
///
/// Seen to fail with: `Waiters::wait` that looks at the state word before it locks, or does not look at it.
#[test]
fn a_first_poll_finds_the_end_or_is_woken_by_it() {
    for kind in [Kind::Overlapping, Kind::Once] {
        for given_up in [false, true] {
            explore_bounded(move || {
                let (stage, jobs) = Stage::with_job(kind, MissedTicks::Rebase);
                let worker = spawn(&stage, |stage| stage.run(jobs));
                let bells: [Arc<Bell>; 2] = Default::default();
                let poll = |waiting: &mut Disposal, bell: usize| {
                    let waker = Arc::clone(&bells[bell]).into();
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
                    let rings = bells.each_ref().map(|bell| bell.0.load(Relaxed));
                    assert!(rings[1] == u64::from(second) && rings[0] == u64::from(first && !second), "{rings:?}");
                    assert!(!poll(&mut waiting, 0), "ended");
                }
                assert_eq!(stage.engine.shards().next().unwrap().waiters.count(), (0, 0));
                assert!(bells.iter().all(|bell| Arc::strong_count(bell) == 1), "no waker is left");
                drop(handle);
                stage.end();
            });
        }
    }
}

/// As above, with two who wait.
#[test]
fn all_who_wait_are_told() {
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

/// As above, when the callback panics (S12).
#[test]
fn whoever_waits_for_a_callback_that_panics_is_told() {
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
