//! Models of a cancel against registering, unregistering and awaiting (S41 to S43, S49).
//!
//! ```text
//!   registers                            cancels
//!     not cancelled
//!                                          cancelled; takes out all registered callbacks
//!     inserts its callback: never called
//!
//!   unregisters, to free data            cancels
//!                                          takes the callback out
//!     not registered: so it has run
//!     frees the data
//!                                          calls the callback: too late
//! ```

use super::*;

/// S40, S41, S42. A callback registered while the source is cancelled is called once, and sees the
/// canceller's earlier writes.
///
/// Seen to fail with: `register` that does not read the status under the lock; a relaxed read of
/// the status; `cancel` that calls back before it marks.
#[test]
fn a_callback_registered_during_a_cancel_is_called_once() {
    explore_all(|| {
        let source = CancellationTokenSource::new();
        let traces = Traces::new();
        let canceller = {
            let (source, traces) = (source.clone(), traces.clone());
            thread::spawn(move || {
                traces.0.data.write();
                assert!(source.cancel());
            })
        };
        let registration = traces.register(&source.token());
        canceller.join().unwrap();
        assert_eq!((traces.called(), traces.dropped()), (1, 1));
        assert!(!registration.unregister(), "too late");
    });
}

/// S40. One of two concurrent cancels wins; each callback is called once, and both cancels find the
/// source cancelled.
///
/// Seen to fail with: `mark` in two steps; `cancel` that calls back before it marks.
#[test]
fn one_of_two_cancels_calls() {
    explore_bounded(|| {
        let source = CancellationTokenSource::new();
        let (one, other) = (Traces::new(), Traces::new());
        let standing = one.register(&source.token());
        let canceller = cancel(&source);
        let registrar = {
            let (token, other) = (source.token(), other.clone());
            thread::spawn(move || drop(other.register(&token)))
        };
        let first = source.cancel();
        assert!(source.is_cancelled());
        assert_ne!(canceller.join().unwrap(), first);
        registrar.join().unwrap();
        assert_eq!((one.called(), one.dropped(), other.dropped()), (1, 1, 1));
        assert!(other.called() <= 1);
        drop(standing);
    });
}

/// S43, S44. A callback is either called or unregistered, never both.
///
/// Seen to fail with: `unregister` that always returns true.
#[test]
fn a_callback_is_called_or_unregistered() {
    explore_all(|| {
        let source = CancellationTokenSource::new();
        let traces = Traces::new();
        let below = Traces::new();
        let catch_first = below.register(&source.token());
        let registration = traces.register(&source.token());
        let canceller = cancel(&source);
        let in_time = registration.unregister();
        assert!(canceller.join().unwrap());
        assert_eq!((traces.called(), traces.dropped()), (usize::from(!in_time), 1));
        assert_eq!(below.called(), 1, "the callback registered below is called too");
        drop(catch_first);
    });
}

/// S43. After `unregister_and_wait` the callback neither runs nor will run, also if it panics.
///
/// Seen to fail with: `unregister_and_wait` that does not wait; `tell` that does not publish which
/// callback runs, or that it has ended; `tell` that ends at a callback that panics.
#[test]
fn unregister_and_wait_excludes_the_callback() {
    for panics in [false, true] {
        explore_all(move || {
            let source = CancellationTokenSource::new();
            let traces = Traces::new();
            let callback = traces.callback();
            let registration = source.token().register(move || {
                callback();
                if panics {
                    resume_unwind(Box::new(()));
                }
            });
            let canceller = {
                let source = source.clone();
                thread::spawn(move || catch_unwind(AssertUnwindSafe(|| source.cancel())))
            };
            let in_time = registration.unregister_and_wait();
            traces.0.data.write();
            assert_eq!((traces.called(), traces.dropped()), (usize::from(!in_time), 1));
            assert_eq!(canceller.join().unwrap().is_err(), panics && !in_time, "the panic surfaces");
        });
    }
}

/// S43. The callback itself may call `unregister_and_wait`, which then does not wait. A second
/// thread that called it first waits.
///
/// Seen to fail with: `tell` that does not publish the end of a callback; a wait for the own
/// thread.
#[test]
fn unregistering_inside_a_callback_does_not_wait_for_itself() {
    explore_all(|| {
        let source = CancellationTokenSource::new();
        let traces = Traces::new();
        let own: Arc<Mutex<Option<Registration>>> = Arc::default();
        let (callback, its_own) = (traces.callback(), Arc::clone(&own));
        let registration = source.token().register(move || {
            let registration = its_own.lock().take();
            assert!(!registration.is_some_and(Registration::unregister_and_wait), "it has begun");
            callback();
        });
        *own.lock() = Some(registration);
        let canceller = cancel(&source);
        let registration = own.lock().take();
        let in_time = registration.is_some_and(Registration::unregister_and_wait);
        assert!(canceller.join().unwrap());
        assert_eq!((traces.called(), traces.dropped()), (usize::from(!in_time), 1));
    });
}

/// S43, S22. Two callbacks, each on a thread of its own, unregister each other: one of them does
/// not wait.
///
/// ```text
///   is inside of the first callback      is inside of the second callback
///     waits for the end of the second
///                                          waits for the end of the first
/// ```
///
/// Seen to fail with: `Waits::begin` that refuses no wait, or does not look at the waits of other
/// threads.
#[test]
fn callbacks_that_unregister_each_other_do_not_hang() {
    explore_all(|| {
        let sources = [CancellationTokenSource::new(), CancellationTokenSource::new()];
        let registrations: Arc<[Mutex<Option<Registration>>; 2]> = Arc::default();
        for (i, source) in sources.iter().enumerate() {
            let others = Arc::clone(&registrations);
            let registration = source.token().register(move || {
                let other = others[1 - i].lock().take();
                other.map(Registration::unregister_and_wait);
            });
            *registrations[i].lock() = Some(registration);
        }
        let canceller = cancel(&sources[0]);
        assert!(sources[1].cancel());
        assert!(canceller.join().unwrap());
    });
}

/// S49. A task that awaits a token, and a thread that blocks on a token, is woken, learns the
/// reason, and sees the canceller's earlier writes.
///
/// ```text
///   awaits                               cancels
///     not cancelled
///                                          cancelled; wakes all registered wakers
///     stores its waker: waits for ever
/// ```
///
/// In a spread source the waker lies in a shard of its own; only the fences of both sides order
/// them.
///
/// Seen to fail with: a relaxed read of the status; `wait_timeout` that reads the status only once;
/// a poll that keeps the old waker; in a spread source: no read of the status after the waker was
/// stored, no fence before this read.
#[test]
fn a_waiter_for_a_token_is_woken() {
    for (blocks, spread) in [(false, false), (false, true), (true, false)] {
        explore_all(move || {
            let source = CancellationTokenSource::new();
            let data = Arc::new(Plain::new());
            let token = source.token();
            if spread {
                token.spread();
            }
            let canceller = {
                let data = Arc::clone(&data);
                thread::spawn(move || {
                    data.write();
                    source.cancel();
                })
            };
            let cancelled =
                if blocks { token.wait_timeout(Duration::MAX).unwrap_err() } else { block_on(&mut token.cancelled()) };
            assert_eq!(cancelled.reason(), CancelReason::Cancelled);
            data.read();
            canceller.join().unwrap();
        });
    }
}

/// S49, S37. A cancel between two polls wakes the waker of the latest poll.
///
/// Seen to fail with: a poll that keeps the old waker, or does not read the status under the lock;
/// in a spread source: `renew_waker` that keeps the old waker, or no read of the status after it.
#[test]
fn the_latest_waker_of_a_token_is_woken() {
    for spread in [false, true] {
        latest_waker(spread);
    }
}

fn latest_waker(spread: bool) {
    explore_all(move || {
        let source = CancellationTokenSource::new();
        let token = source.token();
        if spread {
            token.spread();
        }
        let (before, after) = (Task::new(), Task::new());
        let mut cancelled = token.cancelled_owned();
        assert!(before.poll(&mut cancelled).is_pending());
        let canceller = cancel(&source);
        let polled = after.poll(&mut cancelled);
        canceller.join().unwrap();
        assert!(polled.is_ready() || after.woken() == 1);
        assert!(after.poll(&mut cancelled).is_ready());
        assert_eq!((before.wakers_kept(), after.wakers_kept()), (0, 0));
    });
}

/// S43, S46. A registration that a reset has removed, and that is dropped later, removes no newer
/// registration.
///
/// Seen to fail with: `Registry::remove` that does not compare the serial number.
#[test]
fn a_registration_of_the_past_takes_nothing_along() {
    explore_all(|| {
        let source = CancellationTokenSource::new();
        let (old, new) = (Traces::new(), Traces::new());
        let registration = old.register(&source.token());
        let other = {
            let (source, new) = (source.clone(), new.clone());
            thread::spawn(move || {
                assert!(source.try_reset());
                new.register(&source.token())
            })
        };
        drop(registration);
        let catch_first = other.join().unwrap();
        assert!(source.cancel());
        assert_eq!((old.called(), old.dropped(), new.called()), (0, 1, 1));
        drop(catch_first);
    });
}

/// S49. A future that is dropped removes its waker in every interleaving.
///
/// Seen to fail with: a poll that does not read the status under the lock; a future dropped without
/// `withdraw`.
#[test]
fn a_task_that_gives_up_is_not_kept() {
    explore_bounded(|| {
        let source = CancellationTokenSource::new();
        let (task, other) = (Task::new(), Task::new());
        let token = source.token();
        let mut waiting = token.cancelled_owned();
        assert!(task.poll(&mut waiting).is_pending());
        let canceller = cancel(&source);
        let beside = {
            let token = source.token();
            thread::spawn(move || {
                let mut waiting = token.cancelled_owned();
                let polled = other.poll(&mut waiting);
                (other, waiting, polled)
            })
        };
        drop(waiting);
        let (other, waiting, polled) = beside.join().unwrap();
        canceller.join().unwrap();
        assert_eq!(task.wakers_kept(), 0);
        assert!(polled.is_ready() || other.woken() == 1, "the second task's waker stays");
        drop(waiting);
        assert_eq!(other.wakers_kept(), 0);
    });
    // Without a cancel.
    explore_all(|| {
        let source = CancellationTokenSource::new();
        let (task, other) = (Task::new(), Task::new());
        let token = source.token();
        let mut waiting = token.cancelled_owned();
        assert!(task.poll(&mut waiting).is_pending());
        let beside = {
            let mut waiting = source.token().cancelled_owned();
            thread::spawn(move || {
                assert!(other.poll(&mut waiting).is_pending());
                (other, waiting)
            })
        };
        drop(waiting);
        assert_eq!(task.wakers_kept(), 0);
        let (other, waiting) = beside.join().unwrap();
        source.cancel();
        assert_eq!((other.woken(), other.wakers_kept()), (1, 0));
        drop(waiting);
    });
}
