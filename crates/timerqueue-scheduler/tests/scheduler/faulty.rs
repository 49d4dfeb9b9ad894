//! A store with faults, for tests of users.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::store::{Fault, FaultyStore, StoreCall, StoreCallKind, Trouble};
use timerqueue_scheduler::{Error, Figures, Handler, Query, Run, Scheduler, State, Stats};

use crate::bench::{HOUR, clock, secs};

/// A scheduler whose handler counts its runs.
fn scheduler(
    plan: impl Fn(StoreCall) -> Trouble + Send + Sync + 'static,
) -> (ManualClock, Runtime, FaultyStore, Scheduler, Arc<AtomicU32>) {
    let (clock, runtime) = clock();
    let store = FaultyStore::new(&runtime, plan);
    let runs = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&runs);
    let count = move |(): (), _: &Run| _ = counts.fetch_add(1, Ordering::SeqCst);
    let builder = Scheduler::builder().runtime(&runtime).store(store.clone()).seed(1);
    let scheduler = builder.register(Handler::new("count", count).parallel(2)).start().unwrap();
    (clock, runtime, store, scheduler, runs)
}

fn left(stats: &Stats) -> u64 {
    State::ALL.iter().map(|&state| stats.jobs.of(state)).sum()
}

fn fault<T: std::fmt::Debug>(answer: Result<T, Error>) -> Fault {
    match answer {
        Err(Error::Store { fault, .. }) => fault,
        other => panic!("a fault: {other:?}"),
    }
}

#[test]
fn the_nth_call_of_a_kind_fails_and_nothing_is_done() {
    let (_clock, _runtime, store, scheduler, _) = scheduler(|call| match (call.kind, call.number) {
        (StoreCallKind::Change, 2) => Trouble::Fail(Fault::Full),
        (StoreCallKind::Look, 1) => Trouble::Fail(Fault::Busy),
        _ => Trouble::None,
    });
    let put = |key: &str| scheduler.put_to("count", &()).key(key).due(HOUR).send().wait();
    assert!(put("a").is_ok());
    assert_eq!(fault(put("b")), Fault::Full);
    assert!(put("c").is_ok());
    assert_eq!(fault(scheduler.list(Query::new()).wait()), Fault::Busy);
    let jobs = scheduler.list(Query::new()).wait().unwrap();
    assert_eq!(jobs.iter().map(|job| &*job.key).collect::<Vec<_>>(), ["a", "c"]);
    assert_eq!((store.calls(StoreCallKind::Change), store.calls(StoreCallKind::Look)), (3, 2));
}

#[test]
fn answers_are_timed_by_the_kind_of_the_call() {
    let (clock, _runtime, store, scheduler, _) = scheduler(|call| match call.kind {
        StoreCallKind::Change if call.number > 1 => Trouble::Fail(Fault::Busy),
        StoreCallKind::Change => Trouble::Late(secs(1)),
        StoreCallKind::Claim => Trouble::Late(secs(2)),
        StoreCallKind::End => Trouble::Late(secs(4)),
        _ => Trouble::None,
    });
    let put = scheduler.put_to("count", &()).send();
    clock.advance(secs(60));
    assert!(put.wait().is_ok());
    assert_eq!(fault(scheduler.put_to("count", &()).send().wait()), Fault::Busy);
    let times = scheduler.stats().wait().unwrap().store;
    let counted = [&times.changes, &times.claims, &times.ends, &times.looks].map(|times| times.count());
    let kinds = [StoreCallKind::Change, StoreCallKind::Claim, StoreCallKind::End, StoreCallKind::Look];
    assert_eq!(counted, kinds.map(|kind| store.calls(kind)), "also the answer that it has failed");
    let longest = [&times.changes, &times.claims, &times.ends, &times.looks].map(|times| times.longest());
    assert_eq!(longest, [secs(1), secs(2), secs(4), secs(0)]);
    let figures = Figures::new(&scheduler).wait().unwrap();
    let of = |call: &str, le: &str| {
        let line = format!("timerqueue_scheduler_store_seconds_bucket{{call=\"{call}\",le=\"{le}\"}} ");
        figures.iter().map(ToString::to_string).find_map(|text| Some(text.strip_prefix(&line)?.to_owned())).unwrap()
    };
    assert_eq!((&*of("end", "1.048576"), &*of("end", "4.194304")), ("0", "1"));
    assert_eq!((&*of("change", "0.000256"), &*of("change", "+Inf")), ("1", "2"));
}

#[test]
fn a_store_that_fails_a_claim_or_an_end_is_told_of_once() {
    let (clock, runtime) = clock();
    let store = FaultyStore::new(&runtime, |call| match call.kind {
        StoreCallKind::Claim | StoreCallKind::End if call.number <= 3 => Trouble::Fail(Fault::Full),
        _ => Trouble::None,
    });
    let told: Arc<Mutex<Vec<Error>>> = Arc::default();
    let keep = Arc::clone(&told);
    let builder = Scheduler::builder().runtime(&runtime).store(store).handler("mail", |_: (), _: &Run| {});
    let builder = builder.on_store_error(move |error| {
        keep.lock().unwrap().push(error.clone());
        panic!("a hook may");
    });
    let scheduler = builder.start().unwrap();
    assert!(scheduler.put_to("mail", &()).key("m").send().wait().is_ok());
    clock.advance(HOUR);
    assert_eq!(scheduler.get("m").wait(), Ok(None));
    let told = told.lock().unwrap().iter().map(|error| fault::<()>(Err(error.clone()))).collect::<Vec<_>>();
    assert_eq!(told, [Fault::Full, Fault::Full]);
}

/// An outage of an hour, in the middle of runs: each job runs once, and its end is written when the
/// store answers again.
#[test]
fn a_scheduler_goes_on_after_an_outage() {
    let down = Arc::new(AtomicBool::new(false));
    let is_down = Arc::clone(&down);
    let (clock, _runtime, _, scheduler, runs) = scheduler(move |_| match is_down.load(Ordering::SeqCst) {
        true => Trouble::Fail(Fault::Io),
        false => Trouble::None,
    });
    for n in 0..20 {
        let _ = scheduler.put_to("count", &()).due(secs(n)).send().wait().unwrap();
    }
    clock.advance(secs(5));
    down.store(true, Ordering::SeqCst);
    clock.advance(HOUR);
    assert_eq!(fault(scheduler.put_to("count", &()).send().wait()), Fault::Io);
    let before = runs.load(Ordering::SeqCst);
    assert!(before < 20);
    down.store(false, Ordering::SeqCst);
    clock.advance(secs(60));
    let stats = scheduler.stats().wait().unwrap();
    assert_eq!((runs.load(Ordering::SeqCst), stats.done, stats.lost), (20, 20, 0));
}

/// Each answer of a kind is lost once: no job is lost, and each runs once.
#[test]
fn lost_answers_lose_no_job() {
    for kind in [StoreCallKind::Claim, StoreCallKind::End] {
        let (clock, _runtime, store, scheduler, runs) = scheduler(move |call| match call.kind == kind {
            true if call.number % 2 == 1 => Trouble::LoseAnswer,
            _ => Trouble::None,
        });
        for _ in 0..20 {
            let _ = scheduler.put_to("count", &()).send().wait().unwrap();
        }
        clock.advance(HOUR);
        let stats = scheduler.stats().wait().unwrap();
        assert_eq!((runs.load(Ordering::SeqCst), stats.done, left(&stats)), (20, 20, 0), "{kind:?}");
        assert!(store.calls(kind) > 1);
    }
}

#[test]
fn a_slow_store_answers_on_virtual_time() {
    let (clock, runtime, _, scheduler, runs) = scheduler(|_| Trouble::Late(secs(3)));
    let begun = runtime.now();
    let put = scheduler.put_to("count", &()).key("a").send();
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    assert!(put.wait().unwrap().added().is_some()); // moves the clock
    assert_eq!(runtime.now() - begun, secs(3));
    clock.advance(secs(60));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    let late = scheduler.put_to("count", &()).key("b").due(HOUR).send();
    runtime.shutdown(Duration::ZERO).unwrap();
    assert!(late.wait().is_err(), "the end of the runtime answers");
}

#[test]
fn a_plan_that_panics_is_no_trouble() {
    let (clock, _runtime, _, scheduler, runs) = scheduler(|_| panic!("the plan"));
    let _ = scheduler.put_to("count", &()).send().wait().unwrap();
    clock.advance(secs(1));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(scheduler.stats().wait().unwrap().jobs.of(State::Waiting), 0);
}
