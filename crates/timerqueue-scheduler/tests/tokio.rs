//! Async handlers on the caller's runtime of tokio: contexts, and what its end means (J29).

use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use timerqueue::Runtime;
use timerqueue_scheduler::store::MemoryStore;
use timerqueue_scheduler::{Builder, Error, Handler, Run, Scheduler, StartError, State};
use tokio::runtime::Handle;

const LONG: Duration = Duration::from_secs(30);

fn runtime(threads: usize) -> tokio::runtime::Runtime {
    let mut builder = match threads {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads.max(1)).enable_all().build().unwrap()
}

/// An async handler that needs tokio, and sends what it has seen.
fn mail(seen: Sender<(u32, u32)>) -> Builder {
    Scheduler::builder().async_handler("mail", move |n: u32, run: Run| {
        let seen = seen.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let n = tokio::spawn(async move { n + 1 }).await.unwrap();
            seen.send((n, run.attempt())).unwrap();
        }
    })
}

fn next<T>(seen: &Receiver<T>) -> T {
    seen.recv_timeout(LONG).unwrap()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn j29_handlers_run_on_the_runtime_in_which_the_scheduler_starts() {
    for threads in [0, 2] {
        let (send, seen) = mpsc::channel();
        runtime(threads).block_on(async {
            let scheduler = mail(send).start().unwrap();
            for n in 0..10 {
                let _ = scheduler.put_to("mail", &n).due(Duration::from_millis(5)).send().await.unwrap();
            }
            while scheduler.stats().await.unwrap().done < 10 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(scheduler.close(LONG).await.unwrap().is_drained());
        });
        let mut all: Vec<u32> = seen.iter().map(|(n, _)| n).collect();
        all.sort_unstable();
        assert_eq!(all, (1..=10).collect::<Vec<_>>());
    }
}

#[test]
fn j29_outside_of_a_runtime_one_is_named() {
    let (send, seen) = mpsc::channel();
    assert!(matches!(mail(send.clone()).start(), Err(StartError::NoSpawner { .. })));
    let tokio = runtime(1);
    let scheduler = mail(send.clone()).tokio(tokio.handle()).start().unwrap();
    let _ = scheduler.put_to("mail", &1).send().wait().unwrap();
    assert_eq!(next(&seen), (2, 1));
    // A spawner of the user's own goes before the runtime of this context.
    let _entered = tokio.enter();
    let (spawned, spawns) = mpsc::channel();
    let own = mail(send).spawner(move |future| {
        spawned.send(()).unwrap();
        smol::spawn(future).detach();
    });
    let _ = own.start().unwrap().put_to("mail", &1).send().wait().unwrap();
    drop(spawns);
}

#[test]
fn j29_a_blocking_handler_is_in_the_context_of_the_runtime() {
    let tokio = runtime(1);
    let (send, seen) = mpsc::channel();
    let blocking = move |n: u32, _: &Run| {
        let n = Handle::current().block_on(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tokio::spawn(async move { n + 1 }).await.unwrap()
        });
        send.send(n).unwrap();
    };
    let scheduler = Scheduler::builder().handler("blocking", blocking).tokio(tokio.handle()).start().unwrap();
    let _ = scheduler.put_to("blocking", &1).send().wait().unwrap();
    assert_eq!(next(&seen), 2);
}

/// The end of the runtime drops the runs: these wait again, and the next scheduler runs them.
#[test]
fn j29_the_end_of_the_runtime_closes_the_scheduler() {
    for round in 0..20 {
        let store = MemoryStore::new(Runtime::global());
        let tokio = runtime(2);
        let (send, began) = mpsc::channel();
        let stuck = Handler::new_async("mail", move |_: u32, _: Run| {
            send.send(()).unwrap();
            std::future::pending::<()>()
        });
        let scheduler = Scheduler::builder().store(store.clone()).register(stuck.parallel(8)).tokio(tokio.handle());
        let scheduler = scheduler.start().unwrap();
        for n in 0..20 {
            let _ = scheduler.put_to("mail", &n).send().wait().unwrap();
        }
        for _ in 0..8 {
            next(&began);
        }
        match round % 2 {
            0 => tokio.shutdown_background(),
            _ => drop(tokio),
        }
        until("closed", || scheduler.is_closed());
        assert_eq!(scheduler.put_to("mail", &99).send().wait(), Err(Error::Closed));
        assert!(scheduler.close(LONG).wait().unwrap().is_drained());
        assert!(began.try_recv().is_err(), "no run begins");
        let stats = scheduler.stats().wait().unwrap();
        assert_eq!((stats.jobs.of(State::Waiting), stats.died), (20, 0));
        let tokio = runtime(1);
        let (send, seen) = mpsc::channel();
        let _next = mail(send).store(store).tokio(tokio.handle()).start().unwrap();
        let mut attempts: Vec<u32> = (0..20).map(|_| next(&seen).1).collect();
        attempts.sort_unstable();
        assert_eq!(attempts, [[1; 12].as_slice(), &[2; 8]].concat(), "the runs that had begun count");
    }
}

#[test]
fn j29_a_runtime_that_ends_while_nothing_runs_closes_the_scheduler() {
    let (send, _seen) = mpsc::channel();
    let tokio = runtime(1);
    let handle = tokio.handle().clone();
    let store = MemoryStore::new(Runtime::global());
    let idle = mail(send.clone()).store(store.clone()).tokio(&handle).start().unwrap();
    let _ = idle.put_to("mail", &1).key("a").due(Duration::from_secs(3_600)).send().wait().unwrap();
    drop(tokio);
    until("closed", || idle.is_closed());
    // On a runtime that has ended, none begins.
    let late = mail(send).store(store).tokio(&handle).start().unwrap();
    assert!(late.is_closed());
    assert_eq!(late.get("a").wait().unwrap().unwrap().state, State::Waiting);
}

#[test]
fn j29_a_scheduler_that_ends_leaves_no_task_behind() {
    let (send, _seen) = mpsc::channel();
    let tokio = runtime(1);
    let scheduler = mail(send).tokio(tokio.handle()).start().unwrap();
    until("the task", || tokio.metrics().num_alive_tasks() == 1);
    drop(scheduler);
    until("no task", || tokio.metrics().num_alive_tasks() == 0);
}
