//! Virtual time under executors of others.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

const HOUR: Duration = Duration::from_secs(3600);

/// A chain of tasks, each of which waits and then wakes the next, without naming a runtime.
async fn relay(stations: u32, receive: smol::channel::Receiver<u32>, send: smol::channel::Sender<u32>) {
    while let Ok(station) = receive.recv().await {
        if station == stations {
            return;
        }
        Delay::new(HOUR).await;
        let _ = send.send(station + 1).await;
    }
}

#[test]
fn s68_tokio_on_one_thread_with_spawned_tasks() {
    let (clock, runtime) = manual();
    let executor = tokio::runtime::Builder::new_current_thread().build().expect("nothing to refuse");
    // The tasks are polled on this thread, so the scope of the thread is theirs.
    runtime.enter(|| {
        executor.block_on(clock.run(async {
            let sum = Arc::new(AtomicU64::new(0));
            let tasks: Vec<_> = (1..=200u64)
                .map(|i| {
                    let sum = Arc::clone(&sum);
                    tokio::spawn(async move {
                        Delay::new(Duration::from_secs(i)).await;
                        tokio::task::yield_now().await;
                        Delay::new(HOUR).await;
                        sum.fetch_add(Runtime::current().now().as_duration().as_secs(), Ordering::SeqCst);
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("no panic");
            }
            assert_eq!(sum.load(Ordering::SeqCst), 200 * 3600 + 200 * 201 / 2, "each at its own instant");
        }));
    });
    assert_eq!(clock.now().as_duration(), HOUR + secs(200));
}

#[test]
fn s68_smol_with_tasks_that_wake_each_other() {
    let (clock, runtime) = manual();
    let executor = smol::LocalExecutor::new();
    let (send, receive) = smol::channel::unbounded();
    let task = executor.spawn(runtime.scope(relay(10, receive, send.clone())));
    send.try_send(0).expect("open");
    smol::block_on(executor.run(clock.run(task)));
    assert_eq!(clock.now().as_duration(), 10 * HOUR);
}

#[test]
fn s68_tokio_on_several_threads_settles() {
    let (clock, runtime) = manual();
    let executor =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("the system has threads");
    let finished = executor.block_on(async {
        let tasks: Vec<_> =
            (1..=3u32).map(|i| tokio::spawn(runtime.scope(async move { Delay::new(i * HOUR).await }))).collect();
        clock
            .run(async {
                for task in tasks {
                    task.await.expect("no panic");
                }
            })
            .settle(ms(20))
            .await;
        clock.now().as_duration()
    });
    assert!(finished >= 3 * HOUR, "{finished:?}");
}

#[test]
fn s68_the_clock_stands_while_nothing_waits_or_automatic_advance_is_off() {
    let (clock, runtime) = manual();
    let (send, receive) = smol::channel::bounded::<()>(1);
    let other = thread::spawn(move || {
        thread::sleep(ms(5));
        send.try_send(()).expect("open");
    });
    assert!(smol::block_on(clock.run(receive.recv())).is_ok(), "another thread wakes it");
    other.join().expect("no panic");
    clock.set_auto_advance(false);
    let mut delay = Delay::on(&runtime, secs(5));
    let moved = thread::spawn({
        let clock = clock.clone();
        move || {
            thread::sleep(ms(5));
            clock.advance(secs(5))
        }
    });
    smol::block_on(clock.run(&mut delay));
    moved.join().expect("no panic");
    assert_eq!(clock.now().as_duration(), secs(5));
}

#[test]
fn s51_steps_and_targets() {
    let (clock, runtime) = manual();
    let timers = [5, 2, 5, 9].map(|due| OnceTimer::on(&runtime, secs(due), |_| {}));
    let zero = clock.now();
    assert_eq!([(); 2].map(|()| clock.step()), [Some(zero + secs(2)), Some(zero + secs(5))]);
    assert_eq!((clock.advance_to(zero + secs(8)), clock.now()), (0, zero + secs(8)));
    assert_eq!((clock.advance_to(zero), clock.now()), (0, zero + secs(8)), "no clock runs backwards");
    let ninth = runtime.instant(zero + secs(9)).expect("an instant");
    assert_eq!((clock.advance_to(ninth), clock.step()), (1, None));
    // In a callback: the running advance goes on up to there.
    let own = clock.clone();
    let inside = OnceTimer::on(&runtime, secs(1), move |tick| assert_eq!(own.advance_to(tick.now() + secs(5)), 0));
    let later = OnceTimer::on(&runtime, secs(3), |_| {});
    assert_eq!((clock.advance(secs(1)), clock.now(), runtime.metrics().panics), (2, zero + secs(15), 0));
    drop((timers, inside, later));
}

/// A step of one run wakes tasks, which are polled before the other run steps.
#[test]
fn s68_two_runs_of_a_clock_leave_no_task_behind() {
    let (clock, runtime) = manual();
    let executor = tokio::runtime::Builder::new_current_thread().build().expect("threads");
    executor.block_on(async {
        let tasks: Vec<_> = (1..=3)
            .map(|seconds| {
                let (clock, runtime) = (clock.clone(), runtime.clone());
                tokio::spawn(async move {
                    for round in 1..=5 {
                        Delay::on(&runtime, secs(seconds)).await;
                        assert_eq!(clock.now().as_duration(), secs(seconds * round), "not behind");
                    }
                })
            })
            .collect();
        tokio::join!(clock.run(Delay::on(&runtime, secs(100))), clock.run(Delay::on(&runtime, secs(50))));
        for task in tasks {
            task.await.expect("in time");
        }
    });
}
