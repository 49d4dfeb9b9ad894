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

/// S90. tokio's `EnterGuard` panics when guards are dropped out of order.
#[test]
fn s90_guards_and_scopes_may_end_in_any_order() {
    let ((_one_clock, one), (_other_clock, other)) = (manual(), manual());
    let current = || {
        let timer = Timer::new(secs(1), NEVER, |_| {});
        let on = [&one, &other].map(|runtime| runtime.metrics().active);
        drop(timer);
        on
    };
    const ONE: [usize; 2] = [1, 0];
    const OTHER: [usize; 2] = [0, 1];
    const NONE: [usize; 2] = [0, 0];
    // In order, and out of order.
    let (first, second) = (one.enter_guard(), other.enter_guard());
    assert_eq!(current(), OTHER);
    drop(second);
    assert_eq!(current(), ONE);
    let second = other.enter_guard();
    drop(first);
    assert_eq!(current(), OTHER, "what came later stays");
    drop(second);
    assert_eq!(current(), NONE, "the guard that has gone does not come back");
    // A chain of guards that go from below.
    let guards: Vec<_> = (0..100).map(|i| if i % 2 == 0 { one.enter_guard() } else { other.enter_guard() }).collect();
    drop(guards); // the first of them first
    assert_eq!(current(), NONE);
    // A guard that is dropped within a scope, and one that leaves the scope in which it was made.
    let guard = one.enter_guard();
    other.enter(|| {
        drop(guard);
        assert_eq!(current(), OTHER);
    });
    assert_eq!(current(), NONE);
    let guard = one.enter(|| other.enter_guard());
    assert_eq!(current(), NONE, "the end of the scope ends it");
    let inner = one.enter_guard();
    drop(guard);
    assert_eq!(current(), ONE);
    drop(inner);
    assert_eq!(current(), NONE);
    // In a callback, and forgotten, on a thread of its own.
    thread::scope(|scope| {
        scope.spawn(|| {
            std::mem::forget(one.enter_guard());
            assert_eq!(one.metrics().active, 0);
            let _timer = Timer::new(secs(1), NEVER, |_| {});
            assert_eq!(one.metrics().active, 1);
        });
    });
}

#[test]
fn s90_a_guard_stays_on_its_thread_and_tells_its_runtime() {
    let (clock, runtime) = manual();
    let guard = runtime.enter_guard();
    clock.advance(secs(5));
    assert_eq!((Timestamp::now(), Delay::new(secs(1)).deadline()), (clock.now(), clock.now() + secs(1)));
    assert!(format!("{guard:?}").starts_with("EnterGuard"));
    thread::scope(|scope| {
        scope.spawn(|| assert_ne!(Timestamp::now(), clock.now()));
    });
}

/// S90. A task that code under test spawns counted in real time, and no one was told.
#[test]
fn s90_a_spawned_task_keeps_the_runtime_it_is_spawned_in() {
    let (clock, runtime) = manual();
    let ask = || async { Timestamp::now() };
    let task = runtime.enter(|| ask().in_current_runtime());
    clock.advance(secs(7));
    let elsewhere = thread::spawn(move || block_on(task)).join().expect("no panic");
    assert_eq!(elsewhere, clock.now());
    // Where the default runtime is current, it stays so, wherever the future is polled.
    let plain = ask().in_current_runtime();
    assert_eq!(runtime.enter(|| block_on(plain)), clock.now());
    assert_ne!(block_on(ask().in_current_runtime()), clock.now());
}

#[test]
fn s90_the_default_runtime_can_be_forbidden() {
    in_child(module_path!(), "s90_the_default_runtime_can_be_forbidden", || {
        assert_eq!((Runtime::forbid_global().is_ok(), Runtime::forbid_global().is_ok()), (true, true));
        // The plain forms panic at the place that called them.
        let places = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&places);
        std::panic::set_hook(Box::new(move |info| {
            lock(&seen).push((info.location().map(|at| at.file().to_owned()), info.to_string()));
        }));
        let asks: [fn(); 14] = [
            || drop(Delay::new(secs(1))),
            || drop(Delay::until(Instant::now())),
            || drop(Interval::new(secs(1))),
            || drop(Interval::at(Instant::now(), secs(1))),
            || drop(Timer::new(secs(1), NEVER, |_| {})),
            || drop(Timer::once(secs(1), |_| {})),
            || drop(Timer::every(secs(1), |_| {})),
            || drop(Timer::builder().start(|_| {})),
            || drop(timeout(secs(1), pending::<()>())),
            || drop(pending::<()>().timeout(secs(1))),
            || drop(CancellationTokenSource::new()),
            || drop(DelayQueue::<u32, ()>::new()),
            || drop(Runtime::current()),
            || _ = Runtime::global(),
        ];
        for (i, ask) in asks.into_iter().enumerate() {
            assert!(catch_unwind(ask).is_err(), "{i}");
            let (file, text) = lock(&places).pop().expect("the hook was called");
            assert_eq!(file.as_deref(), Some(file!()), "{i}: {text}");
            assert!(text.contains("forbid_global"), "{text}");
        }
        // The other forms say so.
        assert!(matches!(Runtime::try_global(), Err(StartError::Forbidden)));
        assert!(matches!(Runtime::builder().start_global(), Err(StartError::Forbidden)));
        let refused = |error| matches!(error, Some(RuntimeError::NotStarted(StartError::Forbidden)));
        assert!(refused(Runtime::try_current().err()));
        assert!(refused(Timer::try_new(secs(1), NEVER, |_| {}).err()));
        assert!(refused(CancellationTokenSource::try_after(secs(1)).err()));
        assert!(refused(DelayQueue::<u32, ()>::try_new().err()));
        // What names its runtime, or is in a scope, goes on; so does a wait on a plain thread.
        let (clock, runtime) = manual();
        clock.block_on(runtime.scope(async { Delay::new(secs(5)).await }));
        let source = CancellationTokenSource::on(&runtime);
        let token = source.token();
        let waits = thread::spawn(move || token.wait().reason());
        source.cancel();
        assert_eq!(waits.join().expect("no panic"), CancelReason::Cancelled);
        let mut interval = Interval::on(&runtime, secs(1));
        let ticks = thread::spawn(move || interval.blocking_tick().expect("it goes on").scheduled());
        eventually("the thread waits", || runtime.metrics().active == 1);
        clock.advance(secs(1));
        assert_eq!(ticks.join().expect("no panic"), runtime.now());
    });
}

#[test]
fn s90_what_is_used_cannot_be_forbidden() {
    in_child(module_path!(), "s90_what_is_used_cannot_be_forbidden", || {
        drop(Delay::new(secs(1))); // starts nothing
        assert!(matches!(Runtime::forbid_global(), Err(StartError::AlreadyStarted)));
        assert!(Runtime::try_global().is_ok());
    });
}
