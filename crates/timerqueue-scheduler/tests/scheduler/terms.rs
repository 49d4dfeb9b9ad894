//! What a single job asks for its runs (J24, J25).

use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use timerqueue_scheduler::{Handler, JobInfo, Outcome, Retry, Run, RunEnd, State};

use crate::bench::{Bench, DAY, HOUR, secs};

fn end_of(job: &JobInfo) -> (State, u32, RunEnd) {
    (job.state, job.attempt, job.last.as_ref().unwrap().end)
}

#[test]
fn j24_no_attempt_follows_a_failure_a_panic_or_an_error_with_a_rule() {
    let bench = Bench::with(|builder, _, _| {
        let fails = |_: (), _: &Run| Err::<(), _>("no");
        let rule = Retry::new(9).adjust(|_| Some(secs(1)));
        builder
            .register(Handler::new("fails", fails))
            .register(Handler::new("by rule", fails).retry(rule))
            .handler("panics", crate::bench::panics)
    });
    for name in ["fails", "by rule", "panics"] {
        let _ = bench.to(name, name).at_most_once().attempts(5).send().wait().unwrap();
    }
    bench.clock.advance(DAY);
    for name in ["fails", "by rule", "panics"] {
        assert_eq!(end_of(&bench.get(name).unwrap()), (State::Dead, 1, RunEnd::Dead), "{name}");
    }
}

#[test]
fn j24_a_further_run_at_its_own_request_begins() {
    let bench = Bench::with(|builder, _, _| {
        let turns = std::sync::atomic::AtomicU32::new(0);
        builder.handler("again", move |_: (), _: &Run| match turns.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 => Outcome::again(secs(5)),
            _ => Outcome::Done,
        })
    });
    let _ = bench.to("again", "a").at_most_once().send().wait().unwrap();
    bench.advance(10);
    let stats = bench.stats();
    assert_eq!((stats.again, stats.done, stats.cut_off), (1, 1, 0));
}

/// Its future is dropped, and nothing is known of how far it came.
#[test]
fn j24_a_run_whose_executor_ends_is_cut_off() {
    let kept: Arc<Mutex<Vec<_>>> = Arc::default();
    let tasks = Arc::clone(&kept);
    let bench = Bench::with(|builder, _, _| {
        let forever = |_: (), _: Run| std::future::pending::<()>();
        builder.async_handler("forever", forever).spawner(move |mut task| {
            let mut tasks = tasks.lock().unwrap();
            if tasks.is_empty() {
                let _ = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            }
            tasks.push(task);
        })
    });
    for key in ["begun", "not begun"] {
        let _ = bench.to("forever", key).at_most_once().send().wait().unwrap();
        bench.go();
    }
    let close = bench.scheduler.close(secs(1));
    kept.lock().unwrap().clear();
    assert!(close.wait().unwrap().is_drained());
    assert_eq!(end_of(&bench.get("begun").unwrap()), (State::Dead, 1, RunEnd::CutOff));
    let unbegun = bench.get("not begun").unwrap();
    assert_eq!((unbegun.state, unbegun.attempt), (State::Waiting, 0));
}

#[test]
fn j24_a_run_that_is_put_back_by_a_close_does_not_begin_again() {
    let bench = Bench::with(|builder, _, _| {
        builder.handler("closes", |_: (), run: &Run| {
            drop(run.scheduler().close(secs(1)));
            Outcome::PutBack
        })
    });
    let _ = bench.to("closes", "a").at_most_once().send().wait().unwrap();
    bench.go();
    assert_eq!(end_of(&bench.get("a").unwrap()), (State::Dead, 1, RunEnd::Dead));
}

#[test]
fn j25_a_job_has_its_own_number_of_attempts() {
    let bench = Bench::with(|builder, _, _| {
        let fails = |_: (), _: &Run| Err::<(), _>("no");
        let listed = Retry::waits([secs(1), secs(2)]);
        let never = Handler::new("never", fails).retry(Retry::never());
        builder.register(Handler::new("h", fails)).register(Handler::new("listed", fails).retry(listed)).register(never)
    });
    let _ = bench.to("h", "two").attempts(2).send().wait().unwrap();
    let _ = bench.to("h", "zero").attempts(0).send().wait().unwrap();
    let _ = bench.to("listed", "five").attempts(5).send().wait().unwrap();
    let _ = bench.to("never", "three").attempts(3).send().wait().unwrap();
    bench.advance(7); // 1, 2, 2, 2
    assert_eq!(end_of(&bench.get("five").unwrap()), (State::Dead, 5, RunEnd::Dead));
    assert_eq!(end_of(&bench.get("two").unwrap()), (State::Dead, 2, RunEnd::Dead));
    assert_eq!(end_of(&bench.get("zero").unwrap()), (State::Dead, 1, RunEnd::Dead));
    assert_eq!(end_of(&bench.get("three").unwrap()), (State::Dead, 3, RunEnd::Dead));
}

#[test]
fn j25_a_job_has_its_own_limit_of_time() {
    let executor = Arc::new(smol::Executor::new());
    let tasks = Arc::clone(&executor);
    let bench = Bench::with(|builder, _, _| {
        let call = |_: (), run: Run| async move {
            assert_eq!(run.limit(), Some(if run.key() == "short" { secs(5) } else { HOUR }));
            run.token().cancelled().await;
        };
        let handler = Handler::new_async("call", call).limit(HOUR);
        builder.register(handler).spawner(move |future| tasks.spawn(future).detach())
    });
    let _ = bench.to("call", "short").limit(secs(5)).send().wait().unwrap();
    let _ = bench.to("call", "as its handler").send().wait().unwrap();
    bench.go();
    let advance = |by| {
        while executor.try_tick() {}
        bench.advance(by);
        while executor.try_tick() {}
        bench.go();
        bench.stats().done
    };
    assert_eq!([advance(4), advance(1), advance(3_590), advance(5)], [0, 1, 1, 2]);
}
