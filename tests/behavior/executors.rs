//! Executors: the same tasks under tokio with many threads, tokio with one thread, smol, and a
//! hand-written `block_on`.
//!
//! Ground rules. Real time, since executors have no virtual time. The tests assert that no timer is
//! early, no wake-up is lost, and no entry is left in a queue when a task is dropped. A task that
//! fails its check panics, and each executor passes the panic on to the test.

use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use crate::support::{Count, PATIENCE, Random, block_on, eventually, manual, ms, native, secs, us, within};
use timerqueue::{
    CancelReason, CancellationTokenSource, Delay, Interval, ManualClock, Runtime, Timeout, TimerFutureExt,
    error::{RuntimeError, TimeoutError},
    timeout,
};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs all these tasks side by side and waits until they have ended.
struct Executor {
    name: &'static str,
    run: fn(Vec<Task>),
}

const EXECUTORS: [Executor; 4] = [
    Executor { name: "tokio, many threads", run: |tasks| on_tokio(&many_threads(), tasks) },
    Executor { name: "tokio, one thread", run: |tasks| on_tokio(&one_thread(), tasks) },
    Executor { name: "smol", run: on_smol },
    Executor { name: "block_on by hand", run: by_hand },
];

fn many_threads() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("no drivers are needed")
}

fn one_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("no drivers are needed")
}

fn on_tokio(runtime: &tokio::runtime::Runtime, tasks: Vec<Task>) {
    runtime.block_on(async {
        let handles: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
        for handle in handles {
            handle.await.expect("no panic");
        }
    });
}

fn on_smol(tasks: Vec<Task>) {
    smol::block_on(async {
        let handles: Vec<_> = tasks.into_iter().map(smol::spawn).collect();
        for handle in handles {
            handle.await;
        }
    });
}

fn by_hand(tasks: Vec<Task>) {
    thread::scope(|scope| {
        for task in tasks {
            scope.spawn(|| block_on(task));
        }
    });
}

/// Runs the tasks that `make` makes under each executor in turn.
fn under_each(what: &str, make: impl Fn() -> Vec<Task>) {
    for executor in EXECUTORS {
        let tasks = make();
        within(PATIENCE, &format!("{what}: {}", executor.name), move || (executor.run)(tasks));
    }
}

fn task(future: impl Future<Output = ()> + Send + 'static) -> Task {
    Box::pin(future)
}

#[test]
fn s35_delays_are_never_early_and_never_lost() {
    let runtime = native();
    under_each("delays", || {
        let mut random = Random(35);
        let waiting = |after: Duration| {
            let runtime = runtime.clone();
            task(async move {
                let mut delay = Delay::on(&runtime, after);
                for _ in 0..3 {
                    (&mut delay).await;
                    assert!(runtime.now() >= delay.deadline(), "early");
                    delay.reset(after / 2);
                }
            })
        };
        (0..100).map(|_| waiting(us(random.below(8_000)))).collect()
    });
    assert_eq!((runtime.metrics().active, runtime.metrics().panics), (0, 0));
}

#[test]
fn s35_a_delay_that_is_kept_across_other_waits() {
    // The usual loop: a single delay, awaited together with a second future, and reset now and
    // then.
    let runtime = native();
    under_each("a kept delay", || {
        let runtime = runtime.clone();
        vec![task(async move {
            let mut idle = Delay::on(&runtime, ms(3));
            let mut interval = Interval::on(&runtime, us(400));
            let mut moved = 0;
            loop {
                let mut tick = pin!(interval.tick());
                let ended = poll_fn(|context| match tick.as_mut().poll(context) {
                    Poll::Ready(_) => Poll::Ready(false),
                    Poll::Pending => Pin::new(&mut idle).poll(context).map(|_| true),
                });
                if ended.await {
                    break;
                }
                if moved < 5 {
                    moved += 1;
                    idle.reset(ms(3));
                }
            }
            assert!(runtime.now() >= idle.deadline(), "early");
        })]
    });
    assert_eq!(runtime.metrics().active, 0);
}

#[test]
fn s36_tasks_that_are_thrown_away_leave_nothing_behind() {
    let runtime = native();
    let waiting = |runtime: &Runtime| {
        let runtime = runtime.clone();
        task(async move {
            let source = CancellationTokenSource::on(&runtime);
            let limited =
                Timeout::on(&runtime, secs(3600), Delay::on(&runtime, secs(7200)).with_token(&source.token()));
            let _ = limited.await;
            unreachable!("it is thrown away");
        })
    };
    for tokio in [many_threads(), one_thread()] {
        tokio.block_on(async {
            let handles: Vec<_> = (0..50).map(|_| tokio::spawn(waiting(&runtime))).collect();
            while runtime.metrics().active < 100 {
                tokio::task::yield_now().await;
            }
            handles.iter().for_each(|handle| handle.abort());
            for handle in handles {
                assert!(handle.await.expect_err("aborted").is_cancelled());
            }
            assert_eq!(runtime.metrics().active, 0, "aborted");
            drop(tokio::spawn(waiting(&runtime)));
        });
        // A task that is still alive when its executor ends.
        drop(tokio);
        assert_eq!(runtime.metrics().active, 0, "dropped with the executor");
    }
    smol::block_on(async {
        let handles: Vec<_> = (0..50).map(|_| smol::spawn(waiting(&runtime))).collect();
        while runtime.metrics().active < 100 {
            smol::future::yield_now().await;
        }
        for handle in handles {
            handle.cancel().await;
        }
    });
    assert_eq!(runtime.metrics().active, 0, "cancelled");
}

#[test]
fn s38_timeouts_on_the_default_runtime() {
    under_each("timeouts", || {
        let in_time = async {
            assert_eq!(timeout(secs(60), async { 1 }).await, Ok(1));
            let slow = async {
                timerqueue::Delay::new(ms(1)).await;
                2
            };
            assert_eq!(slow.timeout(secs(60)).await, Ok(2));
        };
        let too_late = async {
            let before = Runtime::global().now();
            assert!(timeout(ms(2), pending::<()>()).await.is_err());
            assert!(Runtime::global().now() >= before + ms(2), "early");
        };
        vec![task(in_time), task(too_late)]
    });
}

#[test]
fn s39_intervals_tick_and_stop() {
    under_each("intervals", || {
        let ticking = async {
            let mut interval = Interval::new(us(500));
            let mut last = None;
            for _ in 0..10 {
                let tick = interval.tick().await.expect("goes on");
                assert!(Runtime::global().now() >= tick.scheduled(), "early");
                assert!(last < Some(tick.scheduled()), "twice");
                last = Some(tick.scheduled());
            }
        };
        let mut stopped = Interval::new(secs(3600));
        let handle = stopped.stop_handle();
        let waits_for_the_stop = async move { assert_eq!(stopped.tick().await, None) };
        let stops = async move {
            timerqueue::Delay::new(ms(1)).await;
            handle.stop();
        };
        vec![task(ticking), task(waits_for_the_stop), task(stops)]
    });
}

#[test]
fn s45_s49_s50_tokens_end_what_they_are_given_to() {
    let runtime = native();
    under_each("tokens", || {
        let source = CancellationTokenSource::on(&runtime);
        source.try_cancel_after(ms(2)).expect("a runtime of its own");
        let child = source.token().child_source();
        let (token, linked, clock) = (source.token(), child.token(), runtime.clone());
        let awaits = async move { assert_eq!(token.cancelled().await.reason(), CancelReason::Timeout) };
        let awaits_a_child = async move {
            let _source = child;
            assert_eq!(linked.cancelled_owned().await.reason(), CancelReason::Parent);
        };
        let token = source.token();
        let runs_until = async move { assert_eq!(token.run_until_cancelled(pending::<()>()).await, None) };
        let (token, timers) = (source.token(), clock.clone());
        let delays = async move {
            let cancelled = Delay::on(&timers, secs(3600)).with_token(&token).await.expect_err("an hour is too long");
            assert_eq!(cancelled.reason(), CancelReason::Timeout);
        };
        let token = source.token();
        let limits = async move {
            let error = Timeout::on(&clock, secs(3600), pending::<()>()).with_token(&token).await;
            assert!(matches!(error, Err(TimeoutError::Cancelled(_))));
        };
        vec![task(awaits), task(awaits_a_child), task(runs_until), task(delays), task(limits)]
    });
    eventually("nothing is left", || runtime.metrics().active == 0);
}

#[test]
fn s49_one_cancel_wakes_tasks_of_all_executors() {
    for _ in 0..20 {
        let source = CancellationTokenSource::new();
        let woken = Count::new();
        let waits = || {
            let (token, woken) = (source.token(), woken.clone());
            move || {
                task(async move {
                    assert_eq!(token.cancelled().await.reason(), CancelReason::Cancelled);
                    woken.bump();
                })
            }
        };
        thread::scope(|scope| {
            for executor in EXECUTORS {
                let make = [waits(), waits()];
                scope.spawn(move || (executor.run)(make.map(|make| make()).into()));
            }
            source.cancel();
        });
        assert_eq!(woken.get(), 8);
    }
}

#[test]
fn s33_tasks_end_with_their_timer_runtime() {
    for executor in EXECUTORS {
        within(PATIENCE, executor.name, move || {
            let runtime = native();
            let started = Arc::new(AtomicUsize::new(0));
            let waiting = |i: u64| {
                let (runtime, started) = (runtime.clone(), Arc::clone(&started));
                task(async move {
                    let mut interval = Interval::on(&runtime, secs(3600));
                    started.fetch_add(1, Ordering::SeqCst);
                    match i % 3 {
                        0 => assert!(matches!(
                            Delay::on(&runtime, secs(3600)).try_wait().await,
                            Err(RuntimeError::Ended)
                        )),
                        1 => assert!(matches!(interval.try_tick().await, Err(RuntimeError::Ended))),
                        _ => {
                            // The limit never comes, and the future goes on.
                            let mut hour = Delay::on(&runtime, secs(3600));
                            let limited = Timeout::on(&runtime, secs(1800), hour.try_wait()).await;
                            assert!(matches!(limited, Ok(Err(RuntimeError::Ended))));
                        }
                    }
                })
            };
            let tasks: Vec<Task> = (0..9).map(waiting).collect();
            let ending = thread::spawn({
                let (runtime, started) = (runtime.clone(), Arc::clone(&started));
                move || {
                    eventually("all have begun", || started.load(Ordering::SeqCst) == 9);
                    runtime.shutdown(PATIENCE).expect("no callback blocks");
                }
            });
            (executor.run)(tasks);
            ending.join().expect("no panic");
        });
    }
}

#[test]
fn s51_virtual_time_moved_by_a_task_of_the_same_executor() {
    // An hour of asynchronous code in no time, without a thread of the runtime.
    async fn retries(runtime: &Runtime) -> u32 {
        let mut attempts = 0;
        while attempts < 7 {
            attempts += 1;
            Delay::on(runtime, secs(60) * 2_u32.pow(attempts)).await;
        }
        attempts
    }
    async fn drive(clock: &ManualClock, until: Duration) {
        while clock.now().as_duration() < until {
            clock.advance(secs(1));
            tokio::task::yield_now().await;
        }
    }
    let (clock, runtime) = manual();
    one_thread().block_on(async {
        let (attempts, ()) = tokio::join!(retries(&runtime), drive(&clock, secs(60 * 254)));
        assert_eq!((attempts, clock.now().as_duration()), (7, secs(60 * 254)));
    });
    // And with `select!`, which drops what came second.
    one_thread().block_on(async {
        tokio::select! {
            () = Delay::on(&runtime, secs(5)) => {}
            _ = Delay::on(&runtime, secs(6)) => panic!("the later one"),
            () = async { drive(&clock, secs(100_000)).await } => panic!("neither"),
        }
        assert_eq!(runtime.metrics().active, 0);
    });
}

/// A task that awaits only futures that are ready at once lets its executor go on all the same.
#[test]
fn s35_s39_s49_a_task_that_never_has_to_wait_yields() {
    /// Rounds after which the other task must have run, by far.
    const MANY: u32 = 100_000;
    let (clock, runtime) = manual();
    let source = CancellationTokenSource::new();
    source.cancel();
    let token = source.token();
    let mut behind = Interval::on(&runtime, ms(1)).missed_ticks(timerqueue::MissedTicks::Burst);
    clock.advance(secs(1_000));
    let mut done = Delay::on(&runtime, secs(0));
    let mut stopped = Interval::on(&runtime, secs(1));
    stopped.stop_handle().stop();
    let mut reset = Delay::on(&runtime, secs(0));
    let mut round = async |kind| match kind {
        0 => Delay::on(&runtime, Duration::ZERO).await,
        1 => assert!(token.cancelled().await.reason() == CancelReason::Cancelled),
        2 => assert!(token.cancelled_owned().await.reason() == CancelReason::Cancelled),
        3 => assert!(behind.tick().await.is_some()),
        4 => (&mut done).await,
        5 => assert!(stopped.tick().await.is_none()),
        6 => assert!(Timeout::on(&runtime, Duration::ZERO, pending::<()>()).await.is_err()),
        7 => assert!(Delay::on(&runtime, secs(1)).with_token(&token).await.is_err()),
        8 => assert!(token.run_until_cancelled(pending::<()>()).await.is_none()),
        9 => {
            let limited = Timeout::on(&runtime, Duration::ZERO, pending::<()>()).with_token(&token).await;
            assert!(matches!(limited, Err(TimeoutError::Cancelled(_))), "the token first, also after a yield");
        }
        _ => {
            reset.reset(Duration::ZERO);
            (&mut reset).await;
        }
    };
    for kind in 0..=10 {
        let other = std::cell::Cell::new(false);
        one_thread().block_on(async {
            let greedy = pin!(async {
                let mut rounds = 0;
                while !other.get() {
                    round(kind).await;
                    rounds += 1;
                    assert!(rounds < MANY, "what awaits {kind} keeps its executor");
                }
                rounds
            });
            let waiting = async {
                tokio::task::yield_now().await;
                other.set(true);
            };
            let (rounds, ()) = tokio::join!(greedy, waiting);
            assert!(rounds >= 100, "{kind}: the first results in a row are there at once, not {rounds}");
        });
    }
}
