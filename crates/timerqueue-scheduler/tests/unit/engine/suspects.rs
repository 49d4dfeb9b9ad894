//! Suspects: jobs whose process has ended during their last runs (J22).

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use timerqueue::{ManualClock, Runtime};

use super::answered;
use crate::store::{Claim, MemoryStore, Room, Store};
use crate::{Handler, Run, Scheduler, State};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs that go on until they are told to end, and an executor that is driven by hand.
#[derive(Clone, Default)]
struct Runs {
    begun: Arc<Mutex<Vec<String>>>,
    ends: Arc<Mutex<HashMap<String, bool>>>,
    tasks: Arc<Mutex<Vec<Task>>>,
}

impl Runs {
    fn handler(&self, name: &str) -> Handler {
        let (runs, tasks) = (self.clone(), Arc::clone(&self.tasks));
        let handler = move |_: (), run: Run| {
            let (ends, key) = (Arc::clone(&runs.ends), run.key().to_owned());
            runs.begun.lock().push(key.clone());
            poll_fn(move |_| if ends.lock().contains_key(&key) { Poll::Ready(()) } else { Poll::Pending })
        };
        Handler::new_async(name, handler).spawner(move |task| tasks.lock().push(task))
    }
}

struct Bench {
    clock: ManualClock,
    runs: Runs,
    scheduler: Scheduler,
    _runtime: Runtime,
}

impl Bench {
    /// `ordinary` is due first, then `suspects`, during whose runs two processes have ended.
    fn new(ordinary: &[&str], suspects: &[&str], crashes: usize) -> Self {
        let clock = ManualClock::new();
        let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
        let store = MemoryStore::new(&runtime);
        let front = Scheduler::builder().runtime(&runtime).store(store.clone()).start().unwrap();
        for (name, keys) in [("ordinary", ordinary), ("suspect", suspects)] {
            for key in keys {
                let _ = front.put_to(name, &()).key(key).send().wait().unwrap();
            }
        }
        for owner in 0..crashes as u64 {
            let rooms = vec![Room { name: "suspect".into(), places: 100 }];
            let claimed = answered(|reply| store.claim(Claim { owner, rooms, at_most: 100 }, reply));
            // From the third time on one by one.
            assert_eq!(claimed.jobs.len(), if owner < 2 { suspects.len() } else { 1 });
            store.end_member(owner);
        }
        let runs = Runs::default();
        let builder = Scheduler::builder().runtime(&runtime).store(store);
        let builder = builder.register(runs.handler("ordinary")).register(runs.handler("suspect"));
        let bench = Self { clock, scheduler: builder.start().unwrap(), runs, _runtime: runtime };
        bench.advance(Duration::ZERO);
        bench
    }

    fn advance(&self, time: Duration) {
        self.clock.advance(time);
        for _ in 0..10 {
            let tasks = std::mem::take(&mut *self.runs.tasks.lock());
            let context = &mut Context::from_waker(Waker::noop());
            let left =
                tasks.into_iter().filter_map(|mut task| task.as_mut().poll(context).is_pending().then_some(task));
            let left: Vec<_> = left.collect();
            self.runs.tasks.lock().extend(left);
            self.clock.advance(Duration::ZERO);
        }
    }

    fn put(&self, key: &str) {
        let _ = self.scheduler.put_to("ordinary", &()).key(key).send().wait().unwrap();
        self.advance(Duration::ZERO);
    }

    fn end(&self, key: &str) {
        self.runs.ends.lock().insert(key.to_owned(), true);
        self.advance(Duration::ZERO);
    }

    fn begun(&self) -> String {
        self.runs.begun.lock().join(" ")
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn j22_a_suspect_runs_alone_and_others_have_a_turn_between_two() {
    let bench = Bench::new(&[], &["s1", "s2"], 2);
    assert_eq!(bench.begun(), "s1");
    bench.put("a");
    bench.put("b");
    bench.advance(50 * SECOND);
    assert_eq!(bench.begun(), "s1", "nothing begins beside a suspect");
    bench.end("s1");
    assert_eq!(bench.begun(), "s1 a b", "what was due has its turn");
    // The other suspect waits for the end of both, and then begins at once.
    bench.end("a");
    bench.put("c");
    assert_eq!(bench.begun(), "s1 a b");
    bench.end("b");
    assert_eq!(bench.begun(), "s1 a b s2");
    bench.end("s2");
    assert_eq!(bench.begun(), "s1 a b s2 c");
    bench.end("c");
    assert_eq!(bench.scheduler.stats().wait().unwrap().done, 5);
}

#[test]
fn j22_others_wait_for_a_long_run_for_a_minute_twice_as_long_after_each_end() {
    for (crashes, minutes) in [(2, 1), (3, 2), (4, 4)] {
        let bench = Bench::new(&[], &["s"], crashes);
        bench.put("a");
        bench.advance(minutes * 60 * SECOND - Duration::from_nanos(1));
        assert_eq!(bench.begun(), "s");
        bench.advance(Duration::from_nanos(1));
        assert_eq!(bench.begun(), "s a", "after {crashes} ends");
        bench.put("b");
        bench.end("s");
        assert_eq!(bench.begun(), "s a b");
        bench.end("a");
        bench.end("b");
        assert_eq!(bench.scheduler.stats().wait().unwrap().done, 3);
    }
    // The same where it has waited for the end of another run.
    let bench = Bench::new(&["a"], &["s"], 2);
    bench.put("b");
    bench.end("a");
    assert_eq!(bench.begun(), "a s");
    bench.advance(60 * SECOND);
    assert_eq!(bench.begun(), "a s b");
}

#[test]
fn j22_a_suspect_waits_for_others_within_its_patience() {
    let bench = Bench::new(&["a"], &["s"], 2);
    bench.put("b");
    assert_eq!(bench.begun(), "a");
    bench.advance(SECOND);
    assert_eq!(bench.begun(), "a b", "the patience is over");
    bench.advance(SECOND); // it comes again, with a patience of two seconds
    bench.put("c");
    bench.advance(SECOND);
    assert_eq!(bench.begun(), "a b");
    bench.end("a");
    bench.end("b");
    assert_eq!(bench.begun(), "a b s");
    bench.end("s");
    assert_eq!(bench.begun(), "a b s c");
    bench.end("c");
    assert_eq!(bench.scheduler.stats().wait().unwrap().done, 4);
}

#[test]
fn j22_a_suspect_that_waits_holds_up_no_close_and_no_cancel() {
    let bench = Bench::new(&["a"], &["s"], 2);
    assert_eq!(bench.scheduler.get("s").wait().unwrap().unwrap().state, State::Running);
    let mut close = Box::pin(bench.scheduler.close(1_000 * SECOND));
    bench.end("a");
    let context = &mut Context::from_waker(Waker::noop());
    let Poll::Ready(Ok(report)) = close.as_mut().poll(context) else { panic!("the close has ended") };
    assert!(report.running.is_empty() && bench.begun() == "a");
    assert_eq!(bench.scheduler.get("s").wait().unwrap().unwrap().state, State::Waiting);

    let bench = Bench::new(&["a"], &["s"], 2);
    let _ = bench.scheduler.cancel("s").wait().unwrap();
    bench.end("a");
    assert_eq!((bench.begun().as_str(), bench.scheduler.get("s").wait().unwrap()), ("a", None));
    bench.put("b");
    assert_eq!(bench.begun(), "a b");
}

#[test]
fn j22_the_job_that_was_alone_is_dead_after_five_ends() {
    let bench = Bench::new(&["a"], &["s"], 4);
    bench.end("a");
    assert_eq!(bench.begun(), "a s");
    let bench = Bench::new(&["a"], &["s", "t"], 5);
    let dead = bench.scheduler.get("s").wait().unwrap().unwrap();
    assert_eq!((dead.state, dead.crashes, dead.attempt), (State::Dead, 5, 6));
    bench.end("a");
    assert_eq!(bench.begun(), "a t");
    bench.end("t");
    assert_eq!(bench.scheduler.stats().wait().unwrap().done, 2);
}
