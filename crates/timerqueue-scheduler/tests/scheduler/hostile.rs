//! Code of users that panics, or calls the scheduler from where it hurts most (J10, J11).

use std::future::Future;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use timerqueue::{Delay, OnceTimer};
use timerqueue_scheduler::{
    Cancel, Change, Clash, Handler, Placed, Query, Retry, Rule, Run, Schedule, Scheduler, State,
};

use crate::bench::{Bench, HOUR, secs};

type Slot = Arc<OnceLock<Scheduler>>;

/// Calls many methods of the scheduler.
fn call(slot: &Slot) {
    if let Some(scheduler) = slot.get() {
        let _ = scheduler.put_to("log", &()).key("called").due(HOUR).clash(Clash::Replace).send().wait();
        let _ = scheduler.cancel("called").wait();
        let _ = scheduler.list(Query::new()).wait();
        let _ = scheduler.stats().wait();
    }
}

/// A rule whose methods and destructor call the scheduler.
struct Calling(Slot);

impl Rule for Calling {
    fn next_after(&self, t: SystemTime) -> Option<SystemTime> {
        call(&self.0);
        t.checked_add(secs(10))
    }

    fn previous_before(&self, t: SystemTime) -> Option<SystemTime> {
        call(&self.0);
        t.checked_sub(secs(10))
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        call(&self.0);
    }
}

#[test]
fn rules_may_call_the_scheduler_also_in_their_destructor() {
    let slot: Slot = Arc::default();
    let bench = Bench::new();
    let _ = slot.set(bench.scheduler.clone());
    let rule = |name: &str| Schedule::rule(name, Calling(Arc::clone(&slot))).build().unwrap();
    let _ = bench.job("r").schedule(rule("one")).send().wait().unwrap();
    bench.advance(60);
    assert!(bench.log.len() >= 5);
    // The schedule is dropped by each of these.
    let _ = bench.scheduler.reschedule("r", rule("two")).wait().unwrap();
    assert_eq!(bench.scheduler.reschedule("none", rule("three")).wait(), Ok(Change::Absent));
    let refused = bench.job("r").schedule(rule("four")).send().wait().unwrap();
    assert!(matches!(refused, Placed::Refused(_)));
    let _ = bench.job("r").schedule(rule("five")).clash(Clash::Replace).send().wait().unwrap();
    bench.advance(60);
    assert_eq!(bench.scheduler.cancel("r").wait(), Ok(Cancel::Cancelled));
    assert!(bench.job("").schedule(rule("six")).send().wait().is_err());
}

#[test]
fn a_rule_that_panics_makes_a_dead_job_and_harms_no_other() {
    let bench = Bench::new();
    let fragile = |t: SystemTime| match t < crate::bench::wall(25) {
        true => t.checked_add(secs(10)),
        false => panic!("no calendar"),
    };
    let _ = bench.job("r").schedule(Schedule::rule("fragile", fragile).build().unwrap()).send().wait().unwrap();
    let _ = bench.job("good").schedule(Schedule::every(secs(10)).build().unwrap()).send().wait().unwrap();
    bench.advance(100);
    let dead = bench.get("r").unwrap();
    assert_eq!((dead.state, dead.error.as_deref()), (State::Dead, Some("the rule failed: panic: no calendar")));
    assert_eq!(bench.log.keys().iter().filter(|key| *key == "good").count(), 11);
}

/// A payload that calls the scheduler while it is written, and while it is read.
struct Reentrant(Slot);

impl Serialize for Reentrant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        call(&self.0);
        serializer.serialize_unit()
    }
}

static READER: OnceLock<Scheduler> = OnceLock::new();

struct Reading;

impl<'de> Deserialize<'de> for Reading {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if let Some(scheduler) = READER.get() {
            let _ = scheduler.cancel("reading").wait();
        }
        <()>::deserialize(deserializer)?;
        Ok(Self)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(scheduler) = READER.get() {
            let _ = scheduler.stats().wait();
        }
    }
}

#[test]
fn payloads_may_call_the_scheduler() {
    let slot: Slot = Arc::default();
    let bench = Bench::with(|builder, _, _| builder.handler("reads", |_: Reading, _: &Run| {}));
    let _ = slot.set(bench.scheduler.clone());
    let _ = READER.set(bench.scheduler.clone());
    let _ = bench.scheduler.put_to("reads", &Reentrant(slot)).key("reading").send().wait().unwrap();
    bench.go();
    assert_eq!(bench.stats().done, 1);
}

#[test]
fn hooks_tokens_and_wakers_may_call_the_scheduler_and_panic() {
    let slot: Slot = Arc::default();
    let (in_hook, in_token) = (Arc::clone(&slot), Arc::clone(&slot));
    let bench = Bench::with(|builder, runtime, _| {
        let runtime = runtime.clone();
        builder
            .handler("long", move |_: (), run: &Run| {
                let slot = Arc::clone(&in_token);
                run.token().register(move || call(&slot)).detach();
                let _ = runtime.enter(|| run.token().wait_timeout(secs(60)));
            })
            .on_run_end(move |_| {
                call(&in_hook);
                panic!("in the hook");
            })
    });
    let _ = slot.set(bench.scheduler.clone());
    let _ = bench.to("long", "a").send().wait().unwrap();
    let scheduler = bench.scheduler.clone();
    let cancels = OnceTimer::on(&bench.runtime, secs(1), move |_| _ = scheduler.cancel("a").wait());
    bench.advance(100);
    drop(cancels);
    assert_eq!(bench.stats().done, 1);

    struct Waking(Slot);
    impl Wake for Waking {
        fn wake(self: Arc<Self>) {
            call(&self.0);
        }
    }
    let waker = Waker::from(Arc::new(Waking(slot)));
    let mut close = Box::pin(bench.scheduler.close(secs(1)));
    let _ = close.as_mut().poll(&mut Context::from_waker(&waker));
    bench.advance(10);
    drop(close);
}

#[test]
fn a_panic_in_a_callback_a_waker_or_a_destructor_leaks_no_place_and_stops_no_close() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    struct Exploding;
    impl Wake for Exploding {
        fn wake(self: Arc<Self>) {
            panic!("in the waker");
        }
    }
    let executor = Arc::new(smol::Executor::new());
    let tasks = Arc::clone(&executor);
    let bench = Bench::with(|builder, runtime, _| {
        let own = runtime.clone();
        let stubborn = move |_: (), run: Run| {
            run.token().register(|| panic!("in the callback")).detach();
            run.closing().register(|| panic!("in the callback")).detach();
            Delay::on(&own, secs(100))
        };
        let leaves = |_: (), run: &Run| {
            let bomb = Bomb;
            // Dropped with the token of the run.
            run.token().register(move || std::mem::forget(bomb)).detach();
        };
        builder
            .register(Handler::new("leaves", leaves).parallel(1))
            .async_handler("stubborn", stubborn)
            .spawner(move |future| tasks.spawn(future).detach())
    });
    for n in 0..3 {
        let _ = bench.to("leaves", &n.to_string()).send().wait().unwrap();
    }
    for key in ["a", "b"] {
        let _ = bench.to("stubborn", key).send().wait().unwrap();
    }
    bench.advance(1);
    while executor.try_tick() {}
    assert_eq!(bench.stats().done, 3, "each place was freed");
    assert_eq!(bench.scheduler.cancel("a").wait(), Ok(Cancel::Running));
    let waker = Waker::from(Arc::new(Exploding));
    let mut exploding = bench.scheduler.close(secs(5));
    let _ = std::pin::Pin::new(&mut exploding).poll(&mut Context::from_waker(&waker));
    let report = bench.scheduler.close(secs(5)).wait().unwrap();
    assert_eq!(report.running.len(), 2);
    assert!(exploding.wait().is_ok());
}

#[test]
fn a_rule_whose_destructor_panics_harms_only_the_caller() {
    struct Fragile;
    impl Rule for Fragile {
        fn next_after(&self, t: SystemTime) -> Option<SystemTime> {
            t.checked_add(secs(10))
        }
    }
    impl Drop for Fragile {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    let bench = Bench::new();
    // The job has the last reference.
    let _ = bench.job("r").schedule(Schedule::rule("fragile", Fragile).build().unwrap()).send().wait().unwrap();
    let cancelled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bench.scheduler.cancel("r").wait()));
    assert!(cancelled.is_err());
    assert_eq!(bench.get("r"), None);
    let _ = bench.put("after", Duration::ZERO);
    bench.go();
    assert_eq!(bench.log.keys(), ["after"]);
}

#[test]
fn handlers_call_each_method_on_their_own_key() {
    let answers = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&answers);
    let bench = Bench::with(|builder, _, _| {
        let busy = move |_: (), run: &Run| {
            let (scheduler, key) = (run.scheduler(), run.key());
            let mut changes = vec![
                scheduler.move_to(key, secs(1)).wait(),
                scheduler.run_now(key).wait(),
                scheduler.pause(key).wait(),
                scheduler.resume(key).wait(),
            ];
            let _ = scheduler.pause_handler("busy").wait();
            let _ = scheduler.resume_handler("busy").wait();
            assert!(scheduler.put_to("busy", &()).key(key).send().wait().unwrap().is_refused());
            assert_eq!(scheduler.get(key).wait().unwrap().unwrap().state, State::Running);
            assert_eq!(scheduler.cancel(key).wait(), Ok(Cancel::Running));
            seen.lock().unwrap().append(&mut changes);
        };
        builder.handler("busy", busy)
    });
    let _ = bench.to("busy", "b").send().wait().unwrap();
    bench.advance(10);
    let changes: Vec<Change> = answers.lock().unwrap().drain(..).map(Result::unwrap).collect();
    assert_eq!(changes, [Change::Running, Change::Running, Change::Changed, Change::Changed]);
    assert_eq!((bench.get("b"), bench.stats().done), (None, 1));
}

#[test]
fn a_panic_with_a_payload_that_panics_is_contained() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in the payload of the panic");
        }
    }
    let bench = Bench::with(|builder, _, _| {
        fn bomb(_: (), _: &Run) {
            std::panic::panic_any(Bomb);
        }
        builder.register(Handler::new("bomb", bomb).retry(Retry::never()))
    });
    let _ = bench.to("bomb", "b").send().wait().unwrap();
    bench.go();
    assert_eq!(bench.get("b").unwrap().error.as_deref(), Some("panic: a value that is no text"));
    assert_eq!(bench.runtime.metrics().panics, 0, "none reaches the runtime");
    let _ = bench.put("after", Duration::ZERO);
    bench.go();
    assert_eq!(bench.log.len(), 1);
}
