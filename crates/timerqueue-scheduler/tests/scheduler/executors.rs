//! Async handlers on several executors, and executors that misbehave (J16).

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use timerqueue::Runtime;
use timerqueue_scheduler::{Handler, Retry, Run, Scheduler, StartError, State};

use crate::bench::{Bench, secs};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs a job on real time with this spawner.
fn runs_on(spawner: impl Fn(Task) + Send + Sync + 'static) {
    let runtime = Runtime::builder().start().unwrap();
    let (send, receive) = mpsc::channel();
    let own = runtime.clone();
    let scheduler = Scheduler::builder()
        .runtime(&runtime)
        .async_handler("h", move |n: u32, run: Run| {
            let (send, pause) = (send.clone(), own.delay(Duration::from_millis(2)));
            async move {
                pause.await;
                assert!(std::time::SystemTime::now() >= run.due());
                send.send(n).unwrap();
            }
        })
        .spawner(spawner)
        .start()
        .unwrap();
    for n in 0..20_u32 {
        let _ = scheduler.put_to("h", &n).due(Duration::from_millis(u64::from(n % 4))).send().wait().unwrap();
    }
    let mut seen: Vec<u32> = (0..20).map(|_| receive.recv_timeout(secs(30)).unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..20).collect::<Vec<_>>());
    assert!(scheduler.close(secs(30)).wait().unwrap().is_drained());
    assert_eq!(scheduler.stats().wait().unwrap().done, 20);
}

#[test]
fn on_tokio() {
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let handle = executor.handle().clone();
    runs_on(move |future| drop(handle.spawn(future)));
}

#[test]
fn on_smol() {
    runs_on(|future| smol::spawn(future).detach());
}

#[test]
fn on_a_thread_for_each_run() {
    runs_on(|future| drop(std::thread::spawn(|| smol::block_on(future))));
}

#[test]
fn a_month_on_virtual_time_under_an_executor() {
    let executor = Arc::new(smol::Executor::new());
    let tasks = Arc::clone(&executor);
    let bench = Bench::with(|builder, runtime, log| {
        let (runtime, log) = (runtime.clone(), log.clone());
        let handler = move |_: (), run: Run| {
            let (pause, runtime, log) = (runtime.delay(secs(90)), runtime.clone(), log.clone());
            async move {
                pause.await;
                log.add(&runtime, &run);
            }
        };
        builder.async_handler("slow", handler).spawner(move |future| tasks.spawn(future).detach())
    });
    let daily = timerqueue_scheduler::Schedule::cron("0 6 * * *").build().unwrap();
    let _ = bench.to("slow", "daily").schedule(daily).send().wait().unwrap();
    let month = bench.runtime.delay(30 * crate::bench::DAY);
    bench.clock.block_on(executor.run(month));
    assert_eq!(bench.log.seconds(), (0..30).map(|day| day * 86_400 + 6 * 3_600 + 90).collect::<Vec<u64>>());
}

#[test]
fn operations_are_awaited_on_tokio() {
    let executor = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let bench = Bench::new();
    executor.block_on(async {
        let _ = bench.job("a").due(secs(5)).send().await.unwrap();
        assert_eq!(bench.scheduler.get("a").await.unwrap().unwrap().state, State::Waiting);
        let report = bench.scheduler.close(secs(1)).await.unwrap();
        assert_eq!(report.jobs.of(State::Waiting), 1);
    });
}

#[test]
fn an_executor_that_drops_or_panics_fails_the_attempt() {
    let kept: Arc<Mutex<Vec<Task>>> = Arc::default();
    let waits = Arc::clone(&kept);
    let bench = Bench::with(|builder, _, _| {
        let never = |name: &str| {
            Handler::new_async(name, |_: (), _: Run| std::future::pending::<()>()).retry(Retry::new(2).jitter(0.0))
        };
        builder
            .register(never("drops").spawner(drop))
            .register(never("panics").spawner(|_| panic!("no executor")))
            .register(never("later").spawner(move |mut task| {
                use std::task::{Context, Waker};
                let _ = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                waits.lock().unwrap().push(task);
            }))
    });
    for name in ["drops", "panics", "later"] {
        let _ = bench.to(name, name).send().wait().unwrap();
    }
    bench.go();
    kept.lock().unwrap().clear();
    bench.advance(10);
    kept.lock().unwrap().clear();
    bench.go();
    for name in ["drops", "panics", "later"] {
        let dead = bench.get(name).unwrap();
        assert_eq!((dead.state, dead.attempt), (State::Dead, 2), "{name}");
        assert_eq!(dead.error.as_deref(), Some("the executor dropped the run"));
    }
}

#[test]
fn a_future_that_panics_or_whose_drop_panics_is_a_failed_attempt() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    let executor = Arc::new(smol::Executor::new());
    let tasks = Arc::clone(&executor);
    let bench = Bench::with(|builder, _, _| {
        let panics = |_: (), _: Run| async { panic!("in poll") };
        let bomb = |_: (), _: Run| {
            let bomb = Bomb;
            async move {
                std::future::ready(()).await;
                std::mem::forget(bomb);
            }
        };
        let drops = |_: (), _: Run| {
            let mut bomb = Some(Bomb);
            // Ready while it still owns a value.
            std::future::poll_fn(move |_| {
                let _ = &mut bomb;
                std::task::Poll::Ready(())
            })
        };
        builder
            .register(Handler::new_async::<(), (), _>("panics", panics).retry(Retry::never()))
            .register(Handler::new_async("good", bomb).retry(Retry::never()))
            .register(Handler::new_async("drops", drops).retry(Retry::never()))
            .spawner(move |future| tasks.spawn(future).detach())
    });
    for name in ["panics", "good", "drops"] {
        let _ = bench.to(name, name).send().wait().unwrap();
    }
    bench.go();
    while executor.try_tick() {}
    assert_eq!(bench.get("panics").unwrap().error.as_deref(), Some("panic: in poll"));
    assert_eq!(bench.get("drops").unwrap().error.as_deref(), Some("panic: in drop"));
    assert_eq!(bench.get("good"), None);
}

#[test]
fn an_async_handler_needs_a_spawner() {
    let builder = Scheduler::builder().async_handler("h", |_: (), _: Run| async {});
    assert!(matches!(builder.start(), Err(StartError::NoSpawner { name }) if name == "h"));
    let builder = Scheduler::builder().handler("", |_: (), _: &Run| {});
    assert!(matches!(builder.start(), Err(StartError::InvalidName { .. })));
}
