//! Async handlers on several executors, and executors that misbehave (J16).

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use timerqueue::{Delay, Runtime};
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
            let (send, pause) = (send.clone(), Delay::on(&own, Duration::from_millis(2)));
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
            let (pause, runtime, log) = (Delay::on(&runtime, secs(90)), runtime.clone(), log.clone());
            async move {
                pause.await;
                log.add(&runtime, &run);
            }
        };
        builder.async_handler("slow", handler).spawner(move |future| tasks.spawn(future).detach())
    });
    let daily = timerqueue_scheduler::Schedule::cron("0 6 * * *").build().unwrap();
    let _ = bench.to("slow", "daily").schedule(daily).send().wait().unwrap();
    let month = Delay::on(&bench.runtime, 30 * crate::bench::DAY);
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
fn an_executor_that_drops_a_run_fails_the_attempt_if_it_has_begun() {
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
    let dead = bench.get("later").unwrap();
    assert_eq!((dead.state, dead.attempt), (State::Dead, 2));
    assert_eq!(dead.error.as_deref(), Some("the executor dropped the run"));
    // What has not begun waits, however often it is tried, and says why.
    bench.advance(3_600);
    for name in ["drops", "panics"] {
        let waits = bench.get(name).unwrap();
        assert_eq!((waits.state, waits.attempt), (State::Waiting, 0), "{name}");
        assert!(waits.due.unwrap() > bench.runtime.wall_now(), "and not at once");
        assert!(waits.error.unwrap().starts_with("the run did not begin"));
    }
}

/// On tokio, a spawner that needs the context of a runtime has none; and a runtime that has ended
/// drops what it is given.
#[test]
fn a_job_that_tokio_does_not_begin_waits() {
    let ended = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let handle = ended.handle().clone();
    drop(ended);
    let bench = Bench::with(|builder, _, _| {
        let never = |name: &str| Handler::new_async(name, |_: (), _: Run| async {}).retry(Retry::never());
        builder
            .register(never("context").spawner(|future| drop(tokio::spawn(future))))
            .register(never("ended").spawner(move |future| drop(handle.spawn(future))))
    });
    for name in ["context", "ended"] {
        let _ = bench.to(name, name).send().wait().unwrap();
    }
    bench.advance(60);
    for name in ["context", "ended"] {
        let waits = bench.get(name).unwrap();
        assert_eq!((waits.state, waits.attempt), (State::Waiting, 0), "{name}");
        assert!(waits.error.unwrap().contains("`Handle::spawn` is for that"));
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

/// An async run that does not end when it is asked to: after its grace the future is dropped, and
/// the place is free.
#[test]
fn a_future_that_ignores_its_token_is_dropped_after_its_grace() {
    struct Drops(Arc<Mutex<usize>>);
    impl Drop for Drops {
        fn drop(&mut self) {
            *self.0.lock().unwrap() += 1;
        }
    }
    let executor = Arc::new(smol::Executor::new());
    let (tasks, drops) = (Arc::clone(&executor), Arc::new(Mutex::new(0)));
    let dropped = Arc::clone(&drops);
    let bench = Bench::with(|builder, _, _| {
        let hangs = move |hangs: bool, _: Run| {
            let value = Drops(Arc::clone(&dropped));
            async move {
                if hangs {
                    std::future::pending::<()>().await;
                }
                drop(value);
            }
        };
        let hangs = Handler::new_async("h", hangs).parallel(4).limit(secs(5)).retry(Retry::never());
        builder.register(hangs).spawner(move |future| tasks.spawn(future).detach())
    });
    let advance = |seconds: u64| bench.clock.block_on(executor.run(Delay::on(&bench.runtime, secs(seconds))));
    for n in 0..4 {
        let _ = bench.scheduler.put_to("h", &true).key(&format!("{n}")).send().wait().unwrap();
    }
    let _ = bench.scheduler.put_to("h", &false).key("behind").send().wait().unwrap();
    advance(4);
    // A cancel asks earlier than the limit does.
    let _ = bench.scheduler.cancel("3").wait().unwrap();
    advance(9);
    assert_eq!((*drops.lock().unwrap(), bench.stats().jobs.of(State::Running)), (0, 4), "within its grace");
    advance(2);
    assert_eq!((bench.get("3"), bench.stats().done), (None, 1), "its place is another's");
    advance(2);
    assert_eq!((*drops.lock().unwrap(), bench.stats().jobs.of(State::Running)), (5, 0));
    let dead = bench.get("0").unwrap();
    assert_eq!(dead.state, State::Dead);
    assert!(dead.error.unwrap().contains("10s after"));
}

/// The program ends: a close, and then the executor. As after a kill the jobs wait, also without
/// further attempts.
#[test]
fn a_run_whose_executor_ends_after_the_close_waits_again() {
    let kept: Arc<Mutex<Vec<Task>>> = Arc::default();
    let waits = Arc::clone(&kept);
    let bench = Bench::with(|builder, _, _| {
        let never = Handler::new_async("h", |_: (), _: Run| std::future::pending::<()>()).retry(Retry::never());
        builder.register(never.spawner(move |mut task| {
            use std::task::{Context, Waker};
            let _ = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            waits.lock().unwrap().push(task);
        }))
    });
    let _ = bench.to("h", "a").send().wait().unwrap();
    bench.go();
    let close = bench.scheduler.close(secs(1));
    kept.lock().unwrap().clear();
    assert!(close.wait().unwrap().is_drained());
    let job = bench.get("a").unwrap();
    assert_eq!((job.state, job.attempt), (State::Waiting, 1), "{job:?}");
    // Another scheduler on the store takes it: the attempt counts, as after a kill.
    let (send, attempts) = mpsc::channel();
    let again = Scheduler::builder().runtime(&bench.runtime).store(bench.store.clone());
    let handler = Handler::new("h", move |_: (), run: &Run| send.send(run.attempt()).unwrap()).retry(Retry::never());
    let _again = again.register(handler).start().unwrap();
    bench.go();
    assert_eq!(attempts.try_recv(), Ok(2));
}

/// An error with causes, as `anyhow` has them: its plain form is the outermost text alone.
#[test]
fn an_error_is_kept_with_its_causes() {
    struct Chain;
    impl std::fmt::Display for Chain {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(if f.alternate() { "no report: no disk" } else { "no report" })
        }
    }
    let bench = Bench::with(|builder, _, _| {
        let fails = Handler::new("h", |_: (), _: &Run| Err::<(), _>(Chain)).retry(Retry::never());
        let panics = Handler::new_async("p", |_: (), _: Run| async {}).retry(Retry::never());
        builder.register(fails).register(panics.spawner(|_| panic!("no reactor")))
    });
    for name in ["h", "p"] {
        let _ = bench.to(name, name).send().wait().unwrap();
    }
    bench.go();
    assert_eq!(bench.get("h").unwrap().error.as_deref(), Some("no report: no disk"));
    assert!(bench.get("p").unwrap().error.unwrap().starts_with("the run did not begin"));
}
