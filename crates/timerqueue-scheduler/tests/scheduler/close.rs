//! The end of a scheduler (J14).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use timerqueue::Delay;
use timerqueue_scheduler::{Error, Outcome, Pending, Report, Run, State};

use crate::bench::{Bench, HOUR, secs};

type Closes = Arc<Mutex<Vec<Pending<Report>>>>;

#[test]
fn a_close_reports_a_run_that_goes_on_and_cancels_its_token() {
    let executor = Arc::new(smol::Executor::new());
    let (tasks, tokens) = (Arc::clone(&executor), Arc::new(Mutex::new(Vec::new())));
    let seen = Arc::clone(&tokens);
    let bench = Bench::with(|builder, runtime, _| {
        let runtime = runtime.clone();
        let stubborn = move |_: (), run: Run| {
            seen.lock().unwrap().push((run.token().clone(), run.closing()));
            Delay::on(&runtime, HOUR)
        };
        builder.async_handler("stubborn", stubborn).spawner(move |future| tasks.spawn(future).detach())
    });
    let _ = bench.to("stubborn", "a").send().wait().unwrap();
    let _ = bench.put("waits", HOUR);
    bench.go();
    while executor.try_tick() {}
    bench.advance(10);
    let (token, closing) = tokens.lock().unwrap()[0].clone();
    let pending = bench.scheduler.close(secs(5));
    assert!(closing.is_cancelled() && !token.is_cancelled(), "it may finish within the limit");
    let report = pending.wait().unwrap(); // moves the clock
    assert_eq!(bench.clock.now().as_duration(), secs(15));
    assert!(token.is_cancelled() && !report.is_drained());
    assert_eq!((&*report.running[0].key, &*report.running[0].name), ("a", "stubborn"));
    assert_eq!(report.running[0].since, secs(15));
    assert_eq!((report.jobs.of(State::Running), report.jobs.of(State::Waiting)), (1, 1));
    // It ends later, and its end is in the store.
    bench.clock.advance(HOUR);
    while executor.try_tick() {}
    assert_eq!(bench.stats().jobs.of(State::Running), 0);
    assert!(bench.scheduler.close(secs(5)).wait().unwrap().is_drained());
}

#[test]
fn handlers_that_close_their_scheduler_do_not_wait_for_themselves() {
    for limit in [Duration::ZERO, secs(10), Duration::MAX] {
        let bench = Bench::with(|builder, _, _| {
            builder.handler("last", move |_: (), run: &Run| {
                let report = run.scheduler().close(limit).wait().unwrap();
                assert!(report.running.iter().any(|still| &*still.key == run.key()));
                assert_eq!(run.scheduler().put_to("log", &()).send().wait(), Err(Error::Closed));
            })
        });
        for key in ["a", "b"] {
            let _ = bench.to("last", key).send().wait().unwrap();
        }
        bench.clock.advance(HOUR);
        let report = bench.scheduler.close(secs(1)).wait().unwrap();
        assert!(report.is_drained(), "{limit:?}: {report:?}");
        assert_eq!(bench.stats().done + bench.stats().jobs.of(State::Waiting), 2);
    }
}

#[test]
fn an_async_handler_closes_its_scheduler() {
    let executor = Arc::new(smol::Executor::new());
    let tasks = Arc::clone(&executor);
    let bench = Bench::with(|builder, _, _| {
        let last = |_: (), run: Run| async move {
            let report = run.scheduler().close(Duration::MAX).await.unwrap();
            assert_eq!(report.running.len(), 1);
        };
        builder.async_handler("last", last).spawner(move |future| tasks.spawn(future).detach())
    });
    let _ = bench.to("last", "a").send().wait().unwrap();
    bench.go();
    while executor.try_tick() {}
    assert_eq!(bench.stats().done, 1);
    assert!(bench.scheduler.is_closed());
}

#[test]
fn a_close_ends_with_its_runtime() {
    let executor = Arc::new(smol::Executor::new());
    let tasks = Arc::clone(&executor);
    let bench = Bench::with(|builder, _, _| {
        let never = |_: (), _: Run| std::future::pending::<()>();
        builder.async_handler("never", never).spawner(move |future| tasks.spawn(future).detach())
    });
    let _ = bench.to("never", "a").send().wait().unwrap();
    bench.go();
    while executor.try_tick() {}
    let pending = bench.scheduler.close(Duration::MAX);
    bench.runtime.shutdown(Duration::ZERO).unwrap();
    assert_eq!(pending.wait().unwrap().running.len(), 1);
    let bench = Bench::new();
    bench.runtime.shutdown(Duration::ZERO).unwrap();
    assert_eq!(bench.job("a").send().wait(), Err(Error::RuntimeEnded));
    assert!(bench.scheduler.close(Duration::MAX).wait().unwrap().is_drained());
}

#[test]
fn several_closes_with_several_limits() {
    let executor = Arc::new(smol::Executor::new());
    let tasks = Arc::clone(&executor);
    let bench = Bench::with(|builder, runtime, _| {
        let runtime = runtime.clone();
        let slow = move |_: (), _: Run| Delay::on(&runtime, secs(20));
        builder.async_handler("slow", slow).spawner(move |future| tasks.spawn(future).detach())
    });
    let _ = bench.to("slow", "a").send().wait().unwrap();
    bench.go();
    while executor.try_tick() {}
    let (short, long) = (bench.scheduler.close(secs(5)), bench.scheduler.close(secs(60)));
    assert!(!short.wait().unwrap().is_drained());
    bench.advance(15);
    while executor.try_tick() {}
    assert!(long.wait().unwrap().is_drained());
    let closes: Closes = Arc::default();
    closes.lock().unwrap().push(bench.scheduler.close(secs(1)));
    drop(bench);
    let last = closes.lock().unwrap().pop().unwrap();
    assert!(last.wait().unwrap().is_drained(), "an answer outlives its scheduler");
}

#[test]
fn dropping_the_last_handle_stops_without_waiting() {
    let bench = Bench::new();
    let _ = bench.put("a", secs(5));
    let Bench { clock, scheduler, log, .. } = bench;
    drop(scheduler);
    clock.advance(secs(60));
    assert_eq!(log.len(), 0);
}

#[test]
fn a_run_is_put_back_by_a_close_and_by_nothing_else() {
    let executor = Arc::new(smol::Executor::new());
    let tasks = Arc::clone(&executor);
    let bench = Bench::with(|builder, _, _| {
        let stops = |_: (), run: Run| async move {
            run.token().cancelled().await;
            Outcome::PutBack
        };
        let at_once = |_: (), _: &Run| Outcome::PutBack;
        builder
            .async_handler("stops", stops)
            .register(
                timerqueue_scheduler::Handler::new("at once", at_once).retry(timerqueue_scheduler::Retry::never()),
            )
            .spawner(move |future| tasks.spawn(future).detach())
    });
    let _ = bench.to("stops", "a").send().wait().unwrap();
    let _ = bench.to("at once", "b").send().wait().unwrap();
    bench.go();
    while executor.try_tick() {}
    let open = bench.scheduler.get("b").wait().unwrap().unwrap();
    assert_eq!(
        (open.state, open.error.as_deref()),
        (State::Dead, Some("the run was put back while the scheduler is open"))
    );
    assert_eq!(bench.scheduler.close(secs(5)).wait().unwrap().running.len(), 1); // moves the clock
    while executor.try_tick() {}
    assert!(bench.scheduler.close(secs(5)).wait().unwrap().is_drained());
    let back = bench.scheduler.get("a").wait().unwrap().unwrap();
    assert_eq!((back.state, back.attempt, back.last), (State::Waiting, 0, None), "the attempt does not count");
    assert_eq!((bench.stats().done, bench.stats().retried, bench.stats().died), (0, 0, 1));
}
