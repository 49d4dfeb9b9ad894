//! A cancel whose callbacks run on the pool (S87).

use super::*;

/// Registers a callback that notes what it is called and its thread.
fn noting<T: Send + 'static>(source: &CancellationTokenSource, seen: &Journal<(T, ThreadId)>, what: T) {
    let seen = seen.clone();
    source.token().register(move || seen.push((what, thread::current().id()))).detach();
}

#[test]
fn s87_marks_at_once_and_calls_on_the_pool_in_order() {
    within(PATIENCE, "callbacks on the pool", || {
        let runtime = native();
        let parent = CancellationTokenSource::on(&runtime);
        let child = parent.token().child_source();
        let seen = Journal::new();
        let (begun, gate) = (Gate::new(), Gate::new());
        for (source, what) in [(&child, "child"), (&parent, "first registered"), (&parent, "last registered")] {
            noting(source, &seen, what);
        }
        parent
            .token()
            .register({
                let (begun, gate) = (begun.clone(), gate.clone());
                move || {
                    begun.open();
                    gate.wait();
                }
            })
            .detach();
        let mut ended = parent.cancel_async();
        assert!(parent.is_cancelled() && child.is_cancelled(), "while no callback has run");
        assert_eq!((reason(&parent), reason(&child)), (Some(CancelReason::Cancelled), Some(CancelReason::Parent)));
        begun.wait();
        let counter = CountingWaker::new();
        assert!(poll(&mut ended, &counter).is_pending() && seen.len() == 0, "a callback blocks");
        assert!(!block_on(parent.cancel_async()) && !parent.cancel(), "cancelled before");
        gate.open();
        assert!(block_on(ended));
        let calls = seen.take();
        assert_eq!(
            calls.iter().map(|call| call.0).collect::<Vec<_>>(),
            ["last registered", "first registered", "child"]
        );
        assert!(calls.iter().all(|call| call.1 != thread::current().id() && call.1 == calls[0].1));
        assert_eq!(counter.kept(), 0);
    });
}

#[test]
fn s87_on_virtual_time_the_thread_that_advances_does_it() {
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    let (seen, counter) = (Journal::new(), CountingWaker::new());
    noting(&source, &seen, ());
    let (token, mut ended) = (source.token(), source.cancel_async());
    let mut waiting = token.cancelled();
    assert!(poll(&mut ended, &counter).is_pending() && seen.len() == 0);
    assert!(poll(&mut waiting, &counter).is_ready(), "who asks is told at once");
    clock.advance(Duration::ZERO);
    assert_eq!((seen.take(), counter.wakes()), (vec![((), thread::current().id())], 1));
    assert_eq!(poll(&mut ended, &counter), Poll::Ready(true));
    assert!(clock.block_on(CancellationTokenSource::on(&runtime).cancel_async()));
    assert_eq!((clock.now().as_duration(), runtime.metrics().active), (Duration::ZERO, 0));
}

#[test]
fn s87_until_a_callback_begins_it_can_be_unregistered() {
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    let called = Count::new();
    let [gone, kept] = [(); 2].map(|()| source.token().register(counting(&called)));
    let ended = source.cancel_async();
    assert!(gone.unregister(), "in time");
    drop(source.token().register(counting(&called)));
    assert_eq!(called.get(), 1, "one that is registered now is called at once");
    assert!(clock.block_on(ended));
    assert_eq!((called.get(), kept.unregister()), (2, false));
    assert!(!source.try_reset());
}

#[test]
fn s87_neither_the_future_nor_a_handle_is_needed() {
    let (clock, runtime) = manual();
    let source = timed(&runtime, secs(9));
    let child = source.token().child_source();
    let called = Count::new();
    source.token().register(counting(&called)).detach();
    child.token().register(counting(&called)).detach();
    drop(source.cancel_async());
    drop((source, child));
    assert_eq!(called.get(), 0);
    clock.advance(Duration::ZERO);
    assert_eq!((called.get(), runtime.metrics().active), (2, 0), "the timed cancel is gone too");
}

#[test]
fn s87_panics_go_to_the_panic_handler_and_all_callbacks_run() {
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    let called = Count::new();
    for round in 0..4 {
        let called = called.clone();
        source
            .token()
            .register(move || {
                called.bump();
                assert!(round % 2 == 0, "a callback that panics");
            })
            .detach();
    }
    let panicking = PanickingWaker::on_wake();
    let token = source.token();
    let mut waiting = token.cancelled();
    assert!(poll_with(&mut waiting, &panicking.waker()).is_pending());
    // The waker of the future itself panics too.
    let mut ended = source.cancel_async();
    assert!(poll_with(&mut ended, &panicking.waker()).is_pending());
    clock.advance(Duration::ZERO);
    assert_eq!((called.get(), runtime.metrics().panics), (4, 4));
    assert_eq!(poll(&mut ended, &CountingWaker::new()), Poll::Ready(true));
}

#[test]
fn s87_the_end_of_the_runtime_loses_no_callback() {
    let (_clock, runtime) = manual();
    let (before, after) = (CancellationTokenSource::on(&runtime), CancellationTokenSource::on(&runtime));
    let seen = Journal::new();
    noting(&before, &seen, "before");
    noting(&after, &seen, "after");
    let queued = before.cancel_async();
    runtime.shutdown(PATIENCE).expect("no callback runs");
    assert_eq!(seen.take(), [("before", thread::current().id())], "by the thread that ends the runtime");
    assert!(block_on(queued));
    let ended = after.cancel_async();
    assert_eq!(seen.take(), [("after", thread::current().id())], "in the call");
    assert!(block_on(ended));
    // A native runtime, whose only thread for callbacks is blocked when it ends.
    within(PATIENCE, "the end of a runtime that is blocked", || {
        let runtime = Runtime::builder().workers(2).max_threads(2).start().expect("the system has threads");
        let (_timers, gate) = crate::support::blocked(&runtime, 1);
        let source = CancellationTokenSource::on(&runtime);
        let called = Count::new();
        source.token().register(counting(&called)).detach();
        let ended = source.cancel_async();
        let _ = runtime.shutdown(Duration::ZERO);
        gate.open();
        assert!(block_on(ended));
        assert_eq!(called.get(), 1);
    });
}

#[test]
fn s87_a_callback_does_not_wait_for_its_own_end() {
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::on(&runtime);
    let child = source.token().child_source();
    let slot: Arc<Mutex<Option<Cancellation>>> = Arc::default();
    let seen = Journal::new();
    child
        .token()
        .register({
            let (slot, seen) = (Arc::clone(&slot), seen.clone());
            move || {
                let ended = lock(&slot).take().expect("put there before");
                seen.push(block_on(ended));
            }
        })
        .detach();
    *lock(&slot) = Some(source.cancel_async());
    within(PATIENCE, "a callback that awaits its own end", move || clock.advance(Duration::ZERO));
    assert_eq!(seen.take(), [true]);
}

#[test]
fn s87_each_callback_runs_once_against_unregistering_and_the_end_of_the_runtime() {
    within(2 * PATIENCE, "cancels against the end of their runtime", || {
        for round in 0..200 {
            let runtime = native();
            let source = CancellationTokenSource::on(&runtime);
            let called = Count::new();
            let registrations: Vec<_> = (0..3).map(|_| source.token().register(counting(&called))).collect();
            let (ended, in_time) = race(
                us(round % 40),
                || {
                    let ended = source.cancel_async();
                    drop(runtime);
                    ended
                },
                || registrations.into_iter().fold(0, |sum, registration| sum + usize::from(registration.unregister())),
            );
            assert!(block_on(ended));
            assert_eq!(called.get() + in_time, 3);
        }
    });
}

#[test]
fn s87_a_task_that_asks_again_and_again_yields() {
    let source = CancellationTokenSource::new();
    source.cancel();
    let counter = CountingWaker::new();
    let pending = (0..300).filter(|_| poll(&mut source.cancel_async(), &counter).is_pending()).count();
    assert_eq!((pending, counter.wakes()), (2, 2));
}
