//! The current runtime: scopes of threads and futures, and callbacks.

use super::*;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};

/// Code that names no runtime: the instant on virtual time after a minute of waiting in five ways.
async fn waits_for_five_minutes() -> Duration {
    const MINUTE: Duration = Duration::from_secs(60);
    let begun = Runtime::current().now();
    Delay::new(MINUTE).await;
    assert!(timeout(MINUTE, pending::<()>()).await.is_err());
    Interval::new(MINUTE).tick().await;
    let source = CancellationTokenSource::after(MINUTE);
    assert_eq!(source.token().cancelled().await.reason(), CancelReason::Timeout);
    let child = CancellationToken::none().child_source();
    child.cancel_after(MINUTE);
    child.token().cancelled().await;
    Runtime::current().now() - begun
}

#[test]
fn s64_code_that_names_no_runtime_runs_on_virtual_time_in_parallel() {
    within(PATIENCE, "parallel tests", || {
        thread::scope(|scope| {
            for i in 0..4 {
                scope.spawn(move || {
                    let (clock, runtime) = manual();
                    clock.advance(secs(i));
                    assert_eq!(clock.block_on(runtime.scope(waits_for_five_minutes())), secs(300));
                    let fired = Count::new();
                    let timers = runtime.enter(|| {
                        let once = (OnceTimer::new(secs(1), |_| {}), Timer::once(secs(1), |_| {}));
                        let wall = WallTimer::new(clock.wall() + secs(1), |_| {});
                        let built = Timer::builder().due(secs(1)).start(fired.callback());
                        (once, wall, built, Timer::every(secs(1), |_| {}), Timer::new(secs(1), NEVER, fired.callback()))
                    });
                    assert_eq!((clock.advance(secs(1)), fired.get()), (6, 2));
                    drop(timers);
                    assert_eq!(clock.block_on(runtime.scope(async { Delay::until(clock.now() + secs(1)).await })), ());
                    assert_eq!(runtime.metrics().active, 0);
                });
            }
        });
    });
}

#[test]
fn s64_scopes_nest_and_end_with_their_code_also_by_a_panic() {
    let ((_, one), (_, other)) = (manual(), manual());
    let is = |runtime: &Runtime| {
        let timer = Timer::once(secs(3600), |_| {});
        let here = runtime.metrics().active == 1;
        drop(timer);
        here
    };
    one.enter(|| {
        assert!(is(&one));
        other.enter(|| assert!(is(&other) && !is(&one)));
        let panicked = catch_unwind(AssertUnwindSafe(|| other.enter(|| panic!("on purpose"))));
        assert!(panicked.is_err() && is(&one));
        // A thread of its own has a current runtime of its own.
        thread::scope(|scope| {
            scope.spawn(|| assert!(!is(&one) && Runtime::current().is_global())).join().expect("no panic")
        });
    });
    assert!(!is(&one) && !is(&other) && Runtime::current().is_global());
}

#[test]
fn s64_a_future_has_its_runtime_at_each_poll_on_any_thread() {
    let ((clock, runtime), (_, other)) = (manual(), manual());
    let mut future = pin!(runtime.scope(async {
        Delay::new(secs(1)).await;
        Delay::new(secs(1)).await;
    }));
    let counter = crate::support::poll::CountingWaker::new();
    assert!(crate::support::poll::poll(&mut future, &counter).is_pending());
    clock.advance(secs(1));
    thread::scope(|scope| {
        let polled = scope.spawn(|| other.enter(|| crate::support::poll::poll(&mut future, &counter).is_pending()));
        assert!(polled.join().expect("no panic"));
    });
    assert_eq!((runtime.metrics().active, other.metrics().active), (1, 0));
    clock.advance(secs(1));
    assert!(crate::support::poll::poll(&mut future, &counter).is_ready());
}

#[test]
fn s64_a_delay_keeps_the_runtime_on_which_it_was_made() {
    let ((clock, runtime), (other_clock, other)) = (manual(), manual());
    other_clock.advance(secs(1000));
    let mut delay = runtime.enter(|| Delay::new(secs(5)));
    other.enter(|| delay.reset(secs(7)));
    assert_eq!(delay.deadline(), clock.now() + secs(7));
    clock.advance(secs(7));
    assert!(delay.is_elapsed());
}

#[test]
fn s64_callbacks_jobs_and_wakers_use_the_runtime_that_runs_them() {
    // On a manual clock.
    let (clock, runtime) = manual();
    let ticks = Count::new();
    OnceTimer::on(&runtime, secs(1), {
        let ticks = ticks.clone();
        move |_| {
            Timer::once(secs(1), |_| {}).detach();
            Timer::new(secs(1), NEVER, ticks.callback()).detach();
            assert!(!Runtime::current().is_global());
        }
    })
    .detach();
    assert_eq!((clock.advance(secs(2)), ticks.get(), runtime.metrics().panics), (3, 1, 0));
    // On threads of a pool.
    let runtime = native();
    let seen = Journal::new();
    runtime.execute({
        let seen = seen.clone();
        move || {
            let timer = Timer::once(secs(3600), |_| {});
            let delay = Delay::new(secs(3600));
            seen.push((Runtime::current().metrics().active, Runtime::current().is_global()));
            drop((timer, delay));
        }
    });
    eventually("the job has run", || seen.len() == 1);
    assert_eq!(seen.take(), [(1, false)]);
    // In a callback on the default runtime.
    Timer::once(Duration::ZERO, {
        let seen = seen.clone();
        move |_| seen.push((0, Runtime::current().is_global()))
    })
    .detach();
    eventually("the callback has run", || seen.len() == 1);
    assert_eq!(seen.take(), [(0, true)]);
}

#[test]
fn s64_a_manual_clock_driven_by_a_callback_has_its_own_runtime_as_the_current_one() {
    let runtime = native();
    let done = Journal::new();
    runtime.execute({
        let done = done.clone();
        move || {
            let (clock, manual) = manual();
            OnceTimer::on(&manual, secs(1), |_| Timer::once(secs(1), |_| {}).detach()).detach();
            let fired = clock.advance(secs(2));
            let timer = Timer::once(secs(3600), |_| {});
            done.push((fired, Runtime::current().metrics().active));
            drop(timer);
        }
    });
    eventually("the job has run", || done.len() == 1);
    assert_eq!(done.take(), [(2, 1)], "two on the manual clock, and then the pool's own runtime again");
}

#[test]
fn s64_a_scope_of_an_ended_runtime_answers_as_the_runtime_does() {
    let (_clock, runtime) = manual();
    runtime.shutdown(Duration::ZERO).expect("no threads");
    runtime.enter(|| {
        assert_eq!(Timer::new(secs(1), NEVER, |_| {}).reset(secs(1)), Changed::Ended);
        assert!(matches!(Timer::try_new(secs(1), NEVER, |_| {}), Err(RuntimeError::Ended)));
        assert!(OnceTimer::try_new(secs(1), |_| {}).is_err());
        assert!(WallTimer::try_new(std::time::SystemTime::now(), |_| {}).is_err());
        assert!(matches!(CancellationTokenSource::try_after(secs(1)), Err(RuntimeError::Ended)));
        assert!(!CancellationTokenSource::after(secs(1)).is_cancelled());
        assert!(matches!(block_on(Delay::new(secs(1)).try_wait()), Err(RuntimeError::Ended)));
        assert_eq!(CancellationToken::none().wait_timeout(secs(3600)), Ok(()), "a wait that blocks is released");
    });
}

#[test]
fn s64_the_last_handle_dropped_in_a_scope_ends_the_runtime() {
    let (clock, runtime) = manual();
    let (canary, fate) = Canary::new();
    let handle = runtime.clone();
    OnceTimer::on(&runtime, secs(1), move |_| canary.sing()).detach();
    let ended = handle.enter(|| {
        drop(runtime);
        Runtime::current().is_shut_down()
    });
    assert!(!ended && !fate.is_dropped());
    let mut scoped = Box::pin(handle.scope(pending::<()>()));
    drop(handle);
    assert!(!fate.is_dropped(), "the scoped future keeps the runtime");
    assert!(crate::support::poll::poll(&mut scoped, &crate::support::poll::CountingWaker::new()).is_pending());
    drop(scoped);
    assert!(fate.is_dropped());
    assert_eq!(clock.advance(secs(1)), 0);
}

#[test]
fn s64_blocking_waits_count_on_the_manual_clock_of_the_current_runtime() {
    let (clock, runtime) = manual();
    runtime.enter(|| {
        assert_eq!(CancellationToken::none().wait_timeout(secs(3600)), Ok(()));
        assert_eq!(clock.now().as_duration(), secs(3600));
        let source = CancellationTokenSource::after(secs(60));
        assert!(source.token().wait_timeout(secs(3600)).is_err());
        assert_eq!(clock.now().as_duration(), secs(3660));
        let source = CancellationTokenSource::after(secs(60));
        assert_eq!(source.token().wait().reason(), CancelReason::Timeout);
    });
    assert_eq!((clock.now().as_duration(), runtime.metrics().active), (secs(3720), 0));
    // Without a scope the limit counts in real time.
    let source = runtime.enter(|| CancellationTokenSource::after(secs(60)));
    assert_eq!(source.token().wait_timeout(ms(1)), Ok(()));
    assert_eq!(clock.now().as_duration(), secs(3720));
}

/// The calls that block at a delay queue follow the same rule, in a scope and in a callback.
#[test]
fn s64_blocking_waits_at_a_delay_queue_move_the_manual_clock_of_the_current_runtime() {
    fn on_virtual_time(clock: &ManualClock, runtime: &Runtime) {
        let begun = clock.now();
        let at = |seconds| assert_eq!(clock.now(), begun + secs(seconds));
        let queue: DelayQueue<u32, ()> = DelayQueueBuilder::on(runtime).capacity(1).build();
        assert_eq!(queue.recv_timeout(secs(3600)), Err(RecvTimeoutError::Timeout));
        at(3600);
        queue.insert(1, (), secs(60)).expect("room");
        assert_eq!(queue.recv_timeout(secs(60)).map(|expired| expired.key), Ok(1), "due with the limit");
        queue.insert(2, (), secs(40)).expect("room");
        assert_eq!(queue.recv_blocking().map(|expired| expired.key), Some(2));
        at(3700);
        queue.insert(3, (), Duration::ZERO).expect("room");
        let taker = queue.clone();
        let takes = OnceTimer::on(runtime, secs(300), move |_| drop(taker.try_recv()));
        queue.insert_blocking(4, (), secs(1)).expect("room, when an entry was taken");
        at(4000);
        queue.close();
        assert_eq!(queue.recv_blocking().map(|expired| expired.key), Some(4));
        assert_eq!(queue.recv_timeout(secs(1)), Err(RecvTimeoutError::Closed));
        drop(takes);
    }
    within(PATIENCE, "waits on virtual time", || {
        let (clock, runtime) = manual();
        runtime.enter(|| on_virtual_time(&clock, &runtime));
        // A queue of real time, in the scope of virtual time: the limit counts on the clock that
        // the wait moves.
        let queue: DelayQueue<u32, ()> = DelayQueue::on(&native());
        let before = clock.now();
        assert_eq!(runtime.enter(|| queue.recv_timeout(secs(3600))), Err(RecvTimeoutError::Closed), "it has ended");
        assert_eq!(clock.now(), before);
        let real = native();
        let queue: DelayQueue<u32, ()> = DelayQueue::on(&real);
        assert_eq!(runtime.enter(|| queue.recv_timeout(secs(3600))), Err(RecvTimeoutError::Timeout));
        assert_eq!(clock.now(), before + secs(3600));
        let (clock_inside, inside) = (clock.clone(), runtime.clone());
        let timer = OnceTimer::on(&runtime, secs(1), move |_| on_virtual_time(&clock_inside, &inside));
        clock.advance(secs(1));
        assert_eq!(runtime.metrics().panics, 0);
        drop(timer);
    });
}

/// The destructors of thread-local values run when the scope's own value may be gone.
#[test]
fn s64_destructors_of_thread_local_values_use_the_default_runtime() {
    static RAN: AtomicBool = AtomicBool::new(false);
    struct Last;
    impl Drop for Last {
        fn drop(&mut self) {
            RAN.store(Runtime::current().is_global(), Ordering::SeqCst);
            drop((Timer::once(secs(3600), |_| {}), Delay::new(secs(1))));
        }
    }
    thread_local!(static LAST: Last = const { Last });
    for first in [true, false] {
        let (_clock, runtime) = manual();
        let thread = thread::spawn(move || {
            if first {
                LAST.with(|_| ());
            }
            runtime.enter(|| drop(Delay::new(secs(1))));
            LAST.with(|_| ());
        });
        thread.join().expect("no panic");
        assert!(RAN.swap(false, Ordering::SeqCst));
    }
    drop(lock(&Mutex::new(())));
}
