//! Code of users where an engine forgets that there is some: hooks, executors and rules that close,
//! block or panic (J10, J11, J14).

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use timerqueue::{CancellationTokenSource, Delay, Runtime};
use timerqueue_scheduler::{Handler, Overlap, Query, Report, Retry, Revive, Rule, Run, Schedule, Scheduler, State};

use crate::bench::{Bench, HOUR, secs, wall};

type Slot = Arc<OnceLock<Scheduler>>;
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A value whose destructor panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("in drop");
    }
}

/// Closes without a limit, and waits.
fn close(slot: &Slot) -> Option<Report> {
    slot.get().map(|scheduler| scheduler.close(Duration::MAX).wait().unwrap())
}

#[test]
fn a_hook_that_closes_does_not_wait_for_its_own_run() {
    let (slot, reports): (Slot, Arc<Mutex<Vec<Report>>>) = Default::default();
    let (own, seen) = (Arc::clone(&slot), Arc::clone(&reports));
    let bench = Bench::with(|builder, _, _| builder.on_run_end(move |_| seen.lock().unwrap().extend(close(&own))));
    let _ = slot.set(bench.scheduler.clone());
    let _ = bench.put("a", Duration::ZERO);
    bench.go();
    assert_eq!(bench.clock.now().as_duration(), Duration::ZERO, "no limit was waited for");
    assert_eq!(reports.lock().unwrap()[0].running.len(), 1);
}

#[test]
fn an_executor_that_closes_does_not_wait_for_its_own_run() {
    let slot: Slot = Arc::default();
    let own = Arc::clone(&slot);
    let bench = Bench::with(|builder, _, _| {
        builder.async_handler("async", |_: (), _: Run| async {}).spawner(move |mut future| {
            assert_eq!(close(&own).map(|report| report.running.len()), Some(1));
            let _ = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        })
    });
    let _ = slot.set(bench.scheduler.clone());
    let _ = bench.to("async", "a").send().wait().unwrap();
    bench.go();
    assert_eq!((bench.clock.now().as_duration(), bench.stats().done), (Duration::ZERO, 1));
}

/// A rule that does something when asked for an instant after the first ones.
struct Acts<F>(F);

impl<F: Fn() + Send + Sync> Rule for Acts<F> {
    fn next_after(&self, t: SystemTime) -> Option<SystemTime> {
        if t >= wall(10) {
            (self.0)();
        }
        t.checked_add(secs(10))
    }

    fn previous_before(&self, t: SystemTime) -> Option<SystemTime> {
        t.checked_sub(secs(10))
    }
}

#[test]
fn a_rule_that_closes_does_not_wait_for_its_own_look() {
    let slot: Slot = Arc::default();
    let own = Arc::clone(&slot);
    let bench = Bench::new();
    let rule = Schedule::rule("closes", Acts(move || _ = close(&own))).build().unwrap();
    let _ = bench.job("r").schedule(rule).send().wait().unwrap();
    let _ = slot.set(bench.scheduler.clone());
    bench.advance(30);
    assert!(bench.scheduler.is_closed());
    assert_eq!(bench.clock.now().as_duration(), secs(30), "no limit was waited for");
}

#[test]
fn a_rule_that_blocks_delays_no_other_job() {
    let bench = Bench::new();
    let (runtime, waits) = (bench.runtime.clone(), AtomicUsize::new(0));
    let source = CancellationTokenSource::on(&bench.runtime);
    let rule = Acts(move || {
        if waits.fetch_add(1, Ordering::Relaxed) == 0 {
            let _ = runtime.enter(|| source.token().wait_timeout(HOUR));
        }
    });
    let _ = bench.job("slow").schedule(Schedule::rule("slow", rule).build().unwrap()).send().wait().unwrap();
    let _ = bench.job("other").schedule(Schedule::every(secs(20)).build().unwrap()).send().wait().unwrap();
    let _ = bench.put("once", secs(15));
    bench.advance(7200);
    let seen = bench.log.all();
    let of = |key: &str| seen.iter().filter(|seen| seen.key == key).map(|seen| seen.at.as_secs()).collect::<Vec<_>>();
    assert_eq!(of("once"), [15]);
    assert_eq!(of("other"), (0..=360).map(|n| 20 * n).collect::<Vec<_>>());
    assert!(of("slow").contains(&3620), "{:?}", of("slow"));
}

/// A rule whose destructor panics.
struct Fragile {
    until: SystemTime,
    cancels: Slot,
    _bomb: Bomb,
}

impl Rule for Fragile {
    fn next_after(&self, t: SystemTime) -> Option<SystemTime> {
        if let Some(scheduler) = self.cancels.get().filter(|_| t >= wall(10)) {
            let _ = scheduler.cancel("r").wait();
        }
        t.checked_add(secs(10)).filter(|&next| next <= self.until)
    }

    fn previous_before(&self, t: SystemTime) -> Option<SystemTime> {
        t.checked_sub(secs(10))
    }
}

#[test]
fn a_rule_whose_destructor_panics_in_the_engine_stops_nothing() {
    for cancels in [false, true] {
        let bench = Bench::new();
        let slot: Slot = Arc::default();
        let rule = Fragile { until: wall(30), cancels: Arc::clone(&slot), _bomb: Bomb };
        let rule = Schedule::rule("fragile", rule).build().unwrap();
        let _ = bench.job("r").schedule(rule).grace(Duration::ZERO).send().wait().unwrap();
        if cancels {
            let _ = slot.set(bench.scheduler.clone());
            bench.advance(60);
        } else {
            // The last occurrence is later than the grace: the look ends the job.
            bench.clock.set_wall(wall(100));
            bench.go();
        }
        assert_eq!(bench.get("r"), None);
        let _ = bench.put("after", secs(1));
        bench.advance(1);
        assert!(bench.log.keys().contains(&"after".to_owned()), "claims go on");
        assert_eq!(bench.runtime.metrics().panics, 0, "the panic reaches no thread of the runtime");
    }
}

#[test]
fn a_rule_whose_destructor_panics_after_the_last_run_reaches_no_executor() {
    let tasks: Arc<Mutex<Vec<Task>>> = Arc::default();
    let spawned = Arc::clone(&tasks);
    let bench = Bench::with(|builder, _, _| {
        builder
            .async_handler("async", |_: (), _: Run| async {})
            .spawner(move |future| spawned.lock().unwrap().push(future))
    });
    let rule = Fragile { until: wall(10), cancels: Slot::default(), _bomb: Bomb };
    let rule = Schedule::rule("fragile", rule).build().unwrap();
    let _ = bench.to("async", "r").schedule(rule).send().wait().unwrap();
    bench.advance(60);
    for mut task in std::mem::take(&mut *tasks.lock().unwrap()) {
        let polled = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, Poll::Ready(()));
    }
    assert_eq!(bench.get("r"), None);
}

#[test]
fn a_destructor_of_a_callback_that_panics_is_told_and_harms_neither_the_pool_nor_an_executor() {
    let tasks: Arc<Mutex<Vec<Task>>> = Arc::default();
    let spawned = Arc::clone(&tasks);
    fn leaves(run: &Run) {
        let bomb = Bomb;
        // Dropped with the token of the run.
        run.token().register(move || std::mem::forget(bomb)).detach();
    }
    let bench = Bench::with(|builder, _, _| {
        builder
            .handler("blocking", |_: (), run: &Run| leaves(run))
            .async_handler("async", |_: (), run: Run| async move { leaves(&run) })
            .spawner(move |future| spawned.lock().unwrap().push(future))
    });
    let _ = bench.to("blocking", "b").send().wait().unwrap();
    let _ = bench.to("async", "a").send().wait().unwrap();
    bench.go();
    for mut task in std::mem::take(&mut *tasks.lock().unwrap()) {
        assert_eq!(task.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(()));
        drop(task); // some executors end the process when this panics
    }
    assert_eq!((bench.stats().done, bench.runtime.metrics().panics), (2, 2));
}

#[test]
fn the_last_reference_to_an_engine_drops_its_handlers_without_a_panic() {
    let tasks: Arc<Mutex<Vec<Task>>> = Arc::default();
    let spawned = Arc::clone(&tasks);
    let (clock, runtime): (_, Runtime) = crate::bench::clock();
    let (in_handler, in_hook) = (Bomb, Bomb);
    let scheduler = Scheduler::builder()
        .runtime(&runtime)
        .async_handler("async", |_: (), _: Run| std::future::pending::<()>())
        .handler("bomb", move |_: (), _: &Run| _ = &in_handler)
        .on_run_end(move |_| _ = &in_hook)
        .spawner(move |future| spawned.lock().unwrap().push(future))
        .start()
        .unwrap();
    let _ = scheduler.put_to("async", &()).send().wait().unwrap();
    clock.advance(Duration::ZERO);
    drop(scheduler);
    let tasks = std::mem::take(&mut *tasks.lock().unwrap());
    assert_eq!(tasks.len(), 1);
    drop(tasks); // with the run, the engine goes
}

#[test]
fn runs_of_a_discarded_recurring_job_leave_with_it() {
    let executor = Arc::new(smol::Executor::new());
    let tasks = Arc::clone(&executor);
    let bench = Bench::with(|builder, runtime, _| {
        let runtime = runtime.clone();
        let slow = move |_: (), _: Run| Delay::on(&runtime, secs(1000));
        let slow = Handler::new_async("slow", slow).retry(Retry::never());
        builder.register(slow).spawner(move |future| tasks.spawn(future).detach())
    });
    let rule = |t: SystemTime| match t < wall(25) {
        true => t.checked_add(secs(10)),
        false => panic!("no calendar"),
    };
    let rule = Schedule::rule("fragile", rule).build().unwrap();
    let _ = bench.to("slow", "r").schedule(rule).overlap(Overlap::QueueOne).send().wait().unwrap();
    for _ in 0..100 {
        bench.advance(1);
        while executor.try_tick() {}
    }
    let states = || -> Vec<State> {
        bench.scheduler.list(Query::new()).wait().unwrap().into_iter().map(|job| job.state).collect()
    };
    assert_eq!(states(), [State::Dead, State::Running, State::Queued]);
    let dead = bench.scheduler.list(Query::new().state(State::Dead)).wait().unwrap()[0].id;
    assert_eq!(bench.scheduler.discard(dead).wait(), Ok(true));
    assert_eq!(states(), [State::Running], "the run goes on, and none is left that nothing would wake");
    bench.advance(1000);
    while executor.try_tick() {}
    assert_eq!(states(), []);
    assert_eq!(bench.scheduler.revive(dead).wait(), Ok(Revive::Absent));
}

#[test]
fn a_wait_of_zero_stays_zero() {
    let retry = Retry::new(u32::MAX).first(Duration::ZERO);
    for attempt in [1, 2, 1024, 1025, 1026, 1_000_000, u32::MAX - 1] {
        assert_eq!(retry.wait_after(attempt, u64::MAX), Some(Duration::ZERO), "after attempt {attempt}");
        assert_eq!(retry.clone().factor(f64::INFINITY).wait_after(attempt, 0), Some(Duration::ZERO));
        let grown = Retry::new(u32::MAX).longest(Duration::MAX).wait_after(attempt, u64::MAX);
        assert!(grown >= Some(secs(1)));
    }
}
