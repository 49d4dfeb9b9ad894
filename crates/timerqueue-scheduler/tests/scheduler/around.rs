//! Hooks around all runs (J28).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use timerqueue::Delay;
use timerqueue_scheduler::{Builder, Ended, Handler, Next, Outcome, Retry, Run, RunEnd, Scheduler, State};

use crate::bench::{Bench, HOUR, secs};

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn add(&self, note: impl Into<String>) {
        self.0.lock().unwrap().push(note.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// A hook that notes the begin and the end.
    fn around(&self, builder: Builder, name: &'static str) -> Builder {
        let notes = self.clone();
        builder.around(move |run: Run, next: Next| {
            let notes = notes.clone();
            async move {
                notes.add(format!("{name} {} {} {} {}", run.name(), run.key(), run.attempt(), run.payload()));
                let ended = next.await;
                notes.add(format!("{name} {ended:?}"));
                ended
            }
        })
    }
}

/// The same handler, blocking and async: the async one on the thread that has its future.
fn both(
    builder: Builder,
    handler: impl Fn(&Run) -> Result<Outcome, &'static str> + Clone + Send + Sync + 'static,
) -> Builder {
    let (blocking, later) = (handler.clone(), handler);
    let retry = || Retry::waits([secs(60)]);
    builder
        .register(Handler::new("blocking", move |(): (), run: &Run| blocking(run)).retry(retry()))
        .register(
            Handler::new_async("async", move |(): (), run: Run| {
                let later = later.clone();
                async move { later(&run) }
            })
            .retry(retry()),
        )
        .spawner(smol::block_on)
}

#[test]
fn j28_hooks_see_job_attempt_and_end_in_their_order() {
    let notes = Notes::default();
    let bench = Bench::with(|builder, _, _| {
        let notes = notes.clone();
        let builder = notes.around(notes.around(builder, "outer"), "inner");
        both(builder, move |run| {
            notes.add("handler");
            match run.attempt() {
                1 => Err("no"),
                2 => Ok(Outcome::Done),
                _ => unreachable!("two attempts"),
            }
        })
    });
    for name in ["blocking", "async"] {
        let _ = bench.to(name, "a").send().wait().unwrap();
        bench.go();
        let begins = |attempt| [format!("outer {name} a {attempt} null"), format!("inner {name} a {attempt} null")];
        let failed = r#"Failed { error: "no", wait: Some(60s), is_panic: false }"#;
        let expect = |attempt, end: &str| {
            let [outer, inner] = begins(attempt);
            vec![outer, inner, "handler".to_owned(), format!("inner {end}"), format!("outer {end}")]
        };
        assert_eq!(notes.take(), expect(1, failed));
        bench.advance(60);
        assert_eq!(notes.take(), expect(2, "Outcome(Done)"));
    }
    assert_eq!((bench.stats().done, bench.stats().retried), (2, 2));
}

#[test]
fn j28_a_panic_of_the_handler_or_of_a_hook_is_a_failed_attempt() {
    let notes = Notes::default();
    let bench = Bench::with(|builder, _, _| {
        let builder = notes.around(builder, "outer").around(|run: Run, next: Next| {
            assert_ne!(run.key(), "call", "the call");
            async move {
                assert_ne!(run.key(), "before", "before");
                let ended = next.await;
                assert_ne!(run.key(), "after", "after");
                ended
            }
        });
        both(builder, |run| if run.key() == "handler" { panic!("the handler") } else { Ok(Outcome::Done) })
    });
    for name in ["blocking", "async"] {
        for key in ["call", "before", "handler", "after"] {
            let _ = bench.to(name, key).send().wait().unwrap();
            bench.go();
            let seen = notes.take().pop().unwrap();
            assert!(seen.contains("panic: ") && seen.ends_with("wait: Some(60s), is_panic: true }"), "{seen}");
            let job = bench.get(key).unwrap();
            assert!(job.error.is_some_and(|error| error.contains("panic: ")));
            bench.advance(60);
            assert_eq!(bench.get(key).unwrap().state, State::Dead);
            assert!(bench.scheduler.discard(bench.get(key).unwrap().id).wait().unwrap());
            let _ = notes.take();
        }
    }
    assert_eq!((bench.stats().panics, bench.stats().died), (16, 8));
}

#[test]
fn j28_a_hook_may_change_the_end_and_leave_the_handler_out() {
    let calls = Arc::new(AtomicUsize::new(0));
    let bench = Bench::with(|builder, _, _| {
        let calls = Arc::clone(&calls);
        let builder = builder.around(|run: Run, next: Next| async move {
            Ok(match (run.key(), run.attempt()) {
                ("left out", _) => Ended::Outcome(Outcome::again(HOUR)),
                ("own error", _) => return Err("the hook's own"),
                ("longer", 1) => match next.await {
                    Ended::Failed { error, is_panic, .. } => Ended::Failed { error, wait: Some(HOUR), is_panic },
                    ended => ended,
                },
                ("dead", _) => match next.await {
                    Ended::Failed { error, is_panic, .. } => Ended::Failed { error, wait: None, is_panic },
                    ended => ended,
                },
                ("saved", _) => {
                    assert_eq!(next.await.error(), Some("no"));
                    Ended::Outcome(Outcome::Done)
                }
                _ => next.await,
            })
        });
        both(builder, move |_| {
            calls.fetch_add(1, Ordering::SeqCst);
            Err("no")
        })
    });
    for name in ["blocking", "async"] {
        let put = |key: &str| {
            let _ = bench.to(name, key).send().wait().unwrap();
            bench.go();
            let job = bench.get(key);
            (calls.swap(0, Ordering::SeqCst), job.as_ref().map(|job| job.state), job.and_then(|job| job.error))
        };
        let error = |text: &str| Some(text.into());
        assert_eq!(put("left out"), (0, Some(State::Waiting), None));
        assert_eq!(put("own error"), (0, Some(State::Waiting), error("the hook's own")));
        assert_eq!(put("longer"), (1, Some(State::Waiting), error("no")));
        assert_eq!(put("dead"), (1, Some(State::Dead), error("no")));
        assert_eq!(put("saved"), (1, None, None));
        let wait = |key| bench.get(key).unwrap().due.unwrap().duration_since(bench.runtime.wall_now()).unwrap();
        assert_eq!((wait("left out"), wait("own error"), wait("longer")), (HOUR, secs(60), HOUR));
        for key in ["left out", "own error", "longer"] {
            let _ = bench.scheduler.cancel(key).wait().unwrap();
        }
    }
}

#[derive(Debug)]
struct Busy;

impl std::fmt::Display for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("busy")
    }
}

/// The rule of a retry is asked once, with the error of the handler; the payload that the handler
/// does not read is an error without another attempt.
#[test]
fn j28_the_rule_of_a_retry_sees_the_error_behind_hooks() {
    let asked = Arc::new(AtomicUsize::new(0));
    let bench = Bench::with(|builder, _, _| {
        let asked = Arc::clone(&asked);
        let retry = Retry::new(9).adjust(move |failed| {
            asked.fetch_add(1, Ordering::SeqCst);
            failed.downcast_ref::<Busy>().map(|_| secs(7))
        });
        let hook = |_: Run, next: Next| next;
        let call = |(): (), _: &Run| Err::<(), _>(std::rc::Rc::new(Busy)).map_err(|_| Busy);
        builder.around(hook).around(hook).register(Handler::new("call", call).retry(retry))
    });
    let _ = bench.to("call", "a").send().wait().unwrap();
    bench.go();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert_eq!(bench.get("a").unwrap().due.unwrap(), bench.runtime.wall_now() + secs(7));
    let _ = bench.scheduler.put_to("call", &7).key("unreadable").send().wait().unwrap();
    bench.go();
    assert_eq!((bench.get("unreadable").unwrap().state, asked.load(Ordering::SeqCst)), (State::Dead, 1));
}

/// A hook that waits: on virtual time the driver goes on to the end of the wait.
#[test]
fn j28_a_hook_may_wait_around_a_blocking_handler() {
    let bench = Bench::with(|builder, runtime, log| {
        let (runtime, own, log) = (runtime.clone(), runtime.clone(), log.clone());
        let builder = builder.around(move |_: Run, next: Next| {
            let (before, after) = (Delay::on(&runtime, secs(5)), runtime.clone());
            async move {
                before.await;
                let ended = next.await;
                Delay::on(&after, secs(5)).await;
                ended
            }
        });
        builder.handler("slow", move |(): (), run: &Run| log.add(&own, run))
    });
    let _ = bench.to("slow", "a").send().wait().unwrap();
    bench.advance(60);
    assert_eq!(bench.log.seconds(), [5]);
    assert!(bench.get("a").is_none());
    let stats = bench.stats();
    assert_eq!((stats.done, stats.durations.longest()), (1, secs(10)));
}

/// A limit of time holds for hook and handler together; a close from a hook does not wait for it.
#[test]
fn j28_a_hook_is_a_part_of_its_run() {
    let dropped = Arc::new(AtomicUsize::new(0));
    struct Counts(Arc<AtomicUsize>);
    impl Drop for Counts {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let closes = Arc::new(Mutex::new(None::<Scheduler>));
    let executor = Arc::new(smol::Executor::new());
    let bench = Bench::with(|builder, _, _| {
        let (dropped, closes, tasks) = (Arc::clone(&dropped), Arc::clone(&closes), Arc::clone(&executor));
        let hook = move |run: Run, next: Next| {
            let (counts, scheduler) = (Counts(Arc::clone(&dropped)), closes.lock().unwrap().take());
            async move {
                let _counts = counts;
                if run.key() == "stuck" {
                    std::future::pending::<()>().await;
                }
                let ended = next.await;
                if let Some(scheduler) = scheduler {
                    assert!(!scheduler.close(HOUR).await.unwrap().is_drained());
                }
                ended
            }
        };
        let h = Handler::new_async("h", |(): (), _: Run| async {}).limit(secs(10)).grace(secs(2)).retry(Retry::never());
        builder.around(hook).register(h).spawner(move |future| tasks.spawn(future).detach())
    });
    let _ = bench.to("h", "stuck").send().wait().unwrap();
    let drive = |seconds| bench.clock.block_on(executor.run(Delay::on(&bench.runtime, secs(seconds))));
    drive(11);
    assert_eq!((bench.get("stuck").unwrap().state, dropped.load(Ordering::SeqCst)), (State::Running, 0));
    drive(2);
    let job = bench.get("stuck").unwrap();
    assert_eq!((job.state, job.last.unwrap().end, dropped.load(Ordering::SeqCst)), (State::Dead, RunEnd::Dead, 1));
    *closes.lock().unwrap() = Some(bench.scheduler.clone());
    let _ = bench.to("h", "closes").send().wait().unwrap();
    drive(1);
    assert!(bench.scheduler.is_closed() && bench.get("closes").is_none());
}

/// A hook with a limit of its own drops the rest of the run when it is over.
#[test]
fn j28_a_hook_may_drop_the_rest_of_a_run() {
    let executor = Arc::new(smol::Executor::new());
    let bench = Bench::with(|builder, runtime, _| {
        let (runtime, own, tasks) = (runtime.clone(), runtime.clone(), Arc::clone(&executor));
        let hook = move |_: Run, next: Next| {
            let limit = Delay::on(&runtime, secs(3));
            smol::future::or(async { Ok(next.await) }, async {
                limit.await;
                Err("too slow")
            })
        };
        let slow = move |(): (), run: Run| Delay::on(&own, secs(if run.attempt() == 1 { 5 } else { 1 }));
        let slow = Handler::new_async("slow", slow).retry(Retry::waits([secs(60)]));
        builder.around(hook).register(slow).spawner(move |future| tasks.spawn(future).detach())
    });
    let _ = bench.to("slow", "a").send().wait().unwrap();
    let drive = |seconds| bench.clock.block_on(executor.run(Delay::on(&bench.runtime, secs(seconds))));
    drive(4);
    assert_eq!(bench.get("a").unwrap().error.as_deref(), Some("too slow"));
    drive(70);
    assert_eq!((bench.stats().retried, bench.stats().done), (1, 1));
}
