//! The engine on a store that answers late, or fails: what stores on files and servers will do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use timerqueue::{CancellationToken, ManualClock, Runtime};

use crate::store::{
    Applied, Cancel, Claim, Claimed, Fault, MemoryStore, Micros, Notice, Op, Reply, Scan, Scanned, Settled, State,
    Store, Watcher, sealed,
};
use crate::{Error, Handler, Run, Scheduler};

mod backlog;
mod failures;
mod suspects;

type HeldClaim = (Result<Claimed, Error>, Reply<Claimed>);
type HeldSettle = (Result<Vec<Applied>, Error>, Reply<Vec<Applied>>);
type HeldScan = (Result<Scanned, Error>, Reply<Scanned>);
type HeldEnd = (Result<Settled, Error>, Reply<Settled>);

/// A memory store whose answers can be held back, and whose calls can fail.
#[derive(Clone, Debug)]
struct Gate {
    store: MemoryStore,
    holds: Arc<AtomicBool>,
    fails: Arc<AtomicBool>,
    failures: Arc<AtomicUsize>,
    held: Arc<Mutex<Vec<HeldClaim>>>,
    scans: Arc<AtomicUsize>,
    holds_scans: Arc<AtomicBool>,
    held_scans: Arc<Mutex<Vec<HeldScan>>>,
    holds_settles: Arc<AtomicBool>,
    /// All operations are held, in the place of settles.
    holds_all: Arc<AtomicBool>,
    held_settles: Arc<Mutex<Vec<HeldSettle>>>,
    /// The store gives the places of runs on, and has done so this many times.
    hands_over: Arc<AtomicBool>,
    handed: Arc<AtomicUsize>,
    held_ends: Arc<Mutex<Vec<HeldEnd>>>,
    /// Members have leases.
    leases: Arc<AtomicBool>,
    /// A clock to set back by an hour after the next commit of a later row, before its notice.
    steps: Arc<Mutex<Option<ManualClock>>>,
}

impl Gate {
    fn new(runtime: &Runtime) -> Self {
        Self {
            store: MemoryStore::new(runtime),
            holds: Arc::default(),
            fails: Arc::default(),
            failures: Arc::default(),
            held: Arc::default(),
            scans: Arc::default(),
            holds_scans: Arc::default(),
            held_scans: Arc::default(),
            holds_settles: Arc::default(),
            holds_all: Arc::default(),
            held_settles: Arc::default(),
            hands_over: Arc::default(),
            handed: Arc::default(),
            held_ends: Arc::default(),
            leases: Arc::default(),
            steps: Arc::default(),
        }
    }

    fn failure(&self) -> Option<Error> {
        let fails = self.fails.load(Ordering::SeqCst);
        self.failures.fetch_add(usize::from(fails), Ordering::SeqCst);
        fails.then(|| Error::Store { fault: Fault::Full, reason: "the disk is full".into() })
    }

    fn holds(&self, ops: &[Op]) -> bool {
        let is_settle = matches!(ops, [Op::Settle(_)]);
        self.holds_all.load(Ordering::SeqCst) || (is_settle && self.holds_settles.load(Ordering::SeqCst))
    }

    /// Gives the first answer that is held.
    fn release_one(&self) {
        let (applied, reply) = self.held_settles.lock().remove(0);
        reply.send(applied);
    }

    /// Gives the held answers.
    fn release(&self) {
        self.holds.store(false, Ordering::SeqCst);
        for (claimed, reply) in std::mem::take(&mut *self.held.lock()) {
            reply.send(claimed);
        }
        self.holds_settles.store(false, Ordering::SeqCst);
        for (applied, reply) in std::mem::take(&mut *self.held_settles.lock()) {
            reply.send(applied);
        }
        for (settled, reply) in std::mem::take(&mut *self.held_ends.lock()) {
            reply.send(settled);
        }
    }
}

/// The answer of a memory store, which comes before the call returns.
fn answered<T: Send + 'static>(ask: impl FnOnce(Reply<T>)) -> T {
    let answer = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&answer);
    ask(Reply::new(move |answer| *slot.lock() = Some(answer.unwrap())));
    answer.lock().take().unwrap()
}

impl sealed::Sealed for Gate {}

impl Store for Gate {
    fn apply(&self, ops: Vec<Op>, reply: Reply<Vec<Applied>>) {
        match self.failure() {
            Some(error) => reply.send(Err(error)),
            None if self.holds(&ops) => {
                let gate = self.clone();
                self.store.apply(ops, Reply::new(move |applied| gate.held_settles.lock().push((applied, reply))));
            }
            None => self.store.apply(ops, reply),
        }
    }

    fn claim(&self, claim: Claim, reply: Reply<Claimed>) {
        if let Some(error) = self.failure() {
            return reply.send(Err(error));
        }
        let gate = self.clone();
        self.store.claim(
            claim,
            Reply::new(move |claimed| match gate.holds.load(Ordering::SeqCst) {
                true => gate.held.lock().push((claimed, reply)),
                false => reply.send(claimed),
            }),
        );
    }

    fn settle(&self, end: Op, place: Claim, reply: Reply<Settled>) {
        if let Some(error) = self.failure() {
            return reply.send(Err(error));
        }
        let applied = answered(|reply| self.store.apply(vec![end], reply));
        let next = match self.hands_over.load(Ordering::SeqCst) {
            true => answered(|reply| self.store.claim(place, reply)).jobs.pop(),
            false => None,
        };
        self.handed.fetch_add(usize::from(next.is_some()), Ordering::SeqCst);
        let settled = Ok(Settled { applied, next });
        match self.holds_settles.load(Ordering::SeqCst) {
            true => self.held_ends.lock().push((settled, reply)),
            false => reply.send(settled),
        }
    }

    fn scan(&self, scan: Scan, reply: Reply<Scanned>) {
        self.scans.fetch_add(1, Ordering::SeqCst);
        if self.holds_scans.load(Ordering::SeqCst) {
            let held = Arc::clone(&self.held_scans);
            return self.store.scan(scan, Reply::new(move |scanned| held.lock().push((scanned, reply))));
        }
        self.store.scan(scan, reply);
    }

    fn watch(&self, watcher: Watcher) {
        let steps = Arc::clone(&self.steps);
        self.store.watch(Arc::new(move |notice| {
            let is_later =
                |clock: &mut ManualClock| matches!(notice, Notice::Wake { at } if at > Micros::floor(clock.wall()));
            if let Some(clock) = steps.lock().take_if(is_later) {
                clock.set_wall(clock.wall() - Duration::from_secs(3_600));
            }
            watcher(notice)
        }));
    }

    fn now(&self) -> Option<Micros> {
        self.store.now()
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn lease(&self) -> Option<Duration> {
        self.leases.load(Ordering::SeqCst).then_some(LEASE)
    }
}

/// From the claim of a run.
const LEASE: Duration = Duration::from_secs(30);

struct Rig {
    clock: ManualClock,
    gate: Gate,
    scheduler: Scheduler,
    tokens: Arc<Mutex<Vec<CancellationToken>>>,
    /// The futures of runs under way.
    futures: Arc<Mutex<Vec<super::job::BoxFuture<()>>>>,
}

/// A handler `hold` with this number of places, whose runs end when their futures are polled again.
fn rig(parallel: usize) -> Rig {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let gate = Gate::new(&runtime);
    let (tokens, futures): (Arc<Mutex<Vec<CancellationToken>>>, Arc<Mutex<Vec<_>>>) = Default::default();
    let (seen, started) = (Arc::clone(&tokens), Arc::clone(&futures));
    let hold = Handler::new_async("hold", move |_: (), run: Run| {
        seen.lock().push(run.token().clone());
        let mut polls = 0;
        std::future::poll_fn(move |_| {
            polls += 1;
            if polls == 1 { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
        })
    });
    let spawn = move |mut future: super::job::BoxFuture<()>| {
        poll(&mut future);
        started.lock().push(future);
    };
    let builder = Scheduler::builder().runtime(&runtime).store(gate.clone());
    let scheduler = builder.register(hold.parallel(parallel)).spawner(spawn).start().unwrap();
    clock.advance(Duration::ZERO);
    Rig { clock, gate, scheduler, tokens, futures }
}

fn poll(future: &mut super::job::BoxFuture<()>) {
    let _ = future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
}

impl Rig {
    fn put(&self, key: &str) {
        assert!(self.scheduler.put_to("hold", &()).key(key).send().wait().unwrap().added().is_some());
    }

    fn go(&self) {
        self.clock.advance(Duration::ZERO);
    }

    /// Ends the runs under way.
    fn end_runs(&self) {
        let futures = std::mem::take(&mut *self.futures.lock());
        futures.into_iter().for_each(|mut future| poll(&mut future));
    }

    fn running(&self) -> u64 {
        self.scheduler.stats().wait().unwrap().jobs.of(State::Running)
    }
}

#[test]
fn a_place_that_becomes_free_during_a_claim_is_used() {
    let rig = rig(2);
    rig.put("a");
    rig.go();
    // A claim for the second place is under way. Two jobs are due, and the first place becomes free
    // meanwhile.
    rig.gate.holds.store(true, Ordering::SeqCst);
    rig.put("b");
    rig.put("c");
    rig.go();
    rig.end_runs();
    rig.go();
    rig.gate.release();
    rig.go();
    assert_eq!((rig.tokens.lock().len(), rig.running()), (3, 2), "both jobs run");
}

/// A handler with one place, whose run is under way, and two further jobs; the store gives places
/// on.
fn rig_that_hands_over() -> Rig {
    let rig = rig(1);
    rig.gate.hands_over.store(true, Ordering::SeqCst);
    for key in ["a", "b", "c"] {
        rig.put(key);
    }
    rig.go();
    assert_eq!(rig.tokens.lock().len(), 1);
    rig
}

#[test]
fn a_run_gives_its_place_to_the_next_job_until_none_is_left() {
    let rig = rig_that_hands_over();
    for run in 2..=3 {
        rig.end_runs();
        rig.go();
        assert_eq!((rig.tokens.lock().len(), rig.running()), (run, 1));
    }
    assert_eq!(rig.gate.handed.load(Ordering::SeqCst), 2);
    rig.end_runs();
    rig.go();
    rig.put("d");
    rig.go();
    assert_eq!((rig.tokens.lock().len(), rig.running()), (4, 1), "the last place is free again");
    let state = rig.scheduler.core.state.lock();
    assert_eq!((state.runs.len(), state.handshake.total()), (1, 1));
}

#[test]
fn a_cancel_reaches_a_run_that_was_given_its_place() {
    let rig = rig_that_hands_over();
    rig.end_runs();
    rig.go();
    assert_eq!(rig.scheduler.cancel("b").wait(), Ok(Cancel::Running));
    assert!(rig.tokens.lock()[1].is_cancelled());
}

#[test]
fn a_cancel_before_the_answer_reaches_the_run_that_is_given_the_place() {
    let rig = rig_that_hands_over();
    rig.gate.holds_settles.store(true, Ordering::SeqCst);
    rig.end_runs();
    assert_eq!(rig.scheduler.cancel("b").wait(), Ok(Cancel::Running), "the store has claimed it");
    rig.gate.release();
    rig.go();
    assert!(rig.tokens.lock()[1].is_cancelled());
    assert!(rig.scheduler.core.state.lock().cancels.jobs.is_empty(), "cancels are kept as long as the request");
}

#[test]
fn a_place_whose_lease_has_ended_before_the_answer_is_free() {
    let rig = rig_that_hands_over();
    rig.gate.leases.store(true, Ordering::SeqCst);
    rig.gate.holds_settles.store(true, Ordering::SeqCst);
    rig.end_runs();
    rig.clock.stall(LEASE);
    rig.gate.release();
    assert_eq!(rig.tokens.lock().len(), 1, "nothing begins");
    rig.go();
    assert_eq!((rig.tokens.lock().len(), rig.running()), (2, 1), "the job is put back, and claimed again");
}

#[test]
fn a_close_before_the_answer_puts_the_next_job_back() {
    let rig = rig_that_hands_over();
    rig.gate.holds_settles.store(true, Ordering::SeqCst);
    rig.end_runs();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut close = std::pin::pin!(rig.scheduler.close(Duration::from_secs(60)));
    assert!(close.as_mut().poll(&mut context).is_pending(), "the end of the run is not answered");
    rig.gate.release();
    rig.go();
    let std::task::Poll::Ready(Ok(report)) = close.poll(&mut context) else { panic!("the run has ended") };
    assert_eq!((report.jobs.of(State::Waiting), report.jobs.of(State::Running)), (2, 0));
    assert_eq!(rig.tokens.lock().len(), 1, "no further run begins");
    let next = rig.scheduler.get("b").wait().unwrap().unwrap();
    assert_eq!(next.attempt, 0, "the attempt does not count");
}

#[test]
fn an_end_that_fails_is_repeated_and_frees_its_place() {
    let rig = rig_that_hands_over();
    rig.gate.fails.store(true, Ordering::SeqCst);
    rig.end_runs();
    rig.go();
    assert_eq!(rig.tokens.lock().len(), 1, "the place is not free before");
    rig.gate.fails.store(false, Ordering::SeqCst);
    rig.clock.advance(Duration::from_secs(1));
    assert_eq!((rig.tokens.lock().len(), rig.running()), (2, 1));
    assert_eq!(rig.scheduler.get("a").wait().unwrap(), None);
}

/// A handler must not keep the places of all handlers to itself.
#[test]
fn a_job_of_another_handler_comes_first_where_all_places_are_taken() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let gate = Gate::new(&runtime);
    gate.hands_over.store(true, Ordering::SeqCst);
    let order = Arc::new(Mutex::new(Vec::new()));
    let handler = |name: &str| {
        let order = Arc::clone(&order);
        Handler::new(name, move |_: (), run: &Run| order.lock().push(run.key().to_owned()))
    };
    let builder = Scheduler::builder().runtime(&runtime).store(gate.clone()).parallel(1);
    let scheduler = builder.register(handler("many")).register(handler("one")).start().unwrap();
    for (name, key, due) in [("many", "1", 1), ("many", "2", 2), ("one", "3", 3), ("many", "4", 4), ("many", "5", 5)] {
        let _ = scheduler.put_to(name, &()).key(key).due(Duration::from_millis(due)).send().wait().unwrap();
    }
    clock.stall(Duration::from_secs(1));
    clock.advance(Duration::ZERO);
    assert_eq!(*order.lock(), ["1", "2", "3", "4", "5"]);
}

/// Of the two places that become free, the second one before the claim for the first one.
#[test]
fn no_place_of_all_handlers_is_given_on_while_a_claim_is_to_come() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let gate = Gate::new(&runtime);
    gate.hands_over.store(true, Ordering::SeqCst);
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let futures: Arc<Mutex<Vec<super::job::BoxFuture<()>>>> = Arc::default();
    let handler = |name: &str| {
        let order = Arc::clone(&order);
        let hold = move |_: (), run: Run| {
            order.lock().push(run.key().to_owned());
            let mut polls = 0;
            std::future::poll_fn(move |_| {
                polls += 1;
                if polls == 1 { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
            })
        };
        Handler::new_async(name, hold).parallel(2)
    };
    let started = Arc::clone(&futures);
    let spawn = move |mut future: super::job::BoxFuture<()>| {
        poll(&mut future);
        started.lock().push(future);
    };
    let builder = Scheduler::builder().runtime(&runtime).store(gate.clone()).parallel(2).spawner(spawn);
    let scheduler = builder.register(handler("many")).register(handler("one")).start().unwrap();
    for (name, key, due) in [("many", "1", 1), ("many", "2", 2), ("one", "3", 3), ("one", "4", 4), ("many", "5", 5)] {
        let _ = scheduler.put_to(name, &()).key(key).due(Duration::from_millis(due)).send().wait().unwrap();
    }
    clock.stall(Duration::from_secs(1));
    clock.advance(Duration::ZERO);
    let first = std::mem::take(&mut *futures.lock());
    first.into_iter().for_each(|mut future| poll(&mut future));
    clock.advance(Duration::ZERO);
    assert_eq!(*order.lock(), ["1", "2", "3", "4"]);
    assert_eq!(gate.handed.load(Ordering::SeqCst), 0);
}

#[test]
fn a_run_that_was_lost_is_counted_where_its_place_is_given_on() {
    let rig = rig_that_hands_over();
    rig.gate.leases.store(true, Ordering::SeqCst);
    let id = rig.scheduler.get("a").wait().unwrap().unwrap().id;
    // Its lease was none of the store's, so a change of the row stands for the claim of another
    // scheduler.
    let held = rig.scheduler.core.state.lock().runs.keys().next().map(|&(_, claim)| claim).unwrap();
    let held = crate::store::Held { id, owner: rig.scheduler.core.settings.owner, claim: held };
    let end = crate::store::Settle { held, verdict: crate::store::Verdict::Dead, record: None };
    let applied = answered(|reply| rig.gate.store.apply(vec![Op::Settle(Box::new(end))], reply));
    assert_eq!(applied, [Applied::Held(true)]);
    rig.end_runs();
    rig.go();
    assert_eq!((rig.tokens.lock().len(), rig.gate.handed.load(Ordering::SeqCst)), (2, 1));
    assert_eq!(rig.scheduler.stats().wait().unwrap().lost, 1);
}

#[test]
fn a_cancel_during_a_claim_reaches_the_token_of_the_run() {
    let rig = rig(2);
    rig.gate.holds.store(true, Ordering::SeqCst);
    rig.put("a");
    rig.go();
    assert_eq!(rig.scheduler.cancel("a").wait(), Ok(Cancel::Running), "the store has claimed it");
    rig.gate.release();
    rig.go();
    assert!(rig.tokens.lock()[0].is_cancelled());
    assert!(rig.scheduler.core.state.lock().cancels.jobs.is_empty(), "cancels are kept as long as the claim");
}

/// The answer was long under way, or the process was stopped meanwhile.
#[test]
fn a_claim_whose_lease_has_ended_before_its_answer_starts_nothing() {
    for late in [false, true] {
        let rig = rig(2);
        rig.gate.leases.store(true, Ordering::SeqCst);
        rig.gate.holds.store(true, Ordering::SeqCst);
        rig.put("a");
        rig.go();
        rig.clock.stall(if late { LEASE } else { LEASE - Duration::from_micros(1) });
        if late {
            rig.gate.store.end_member(rig.scheduler.core.settings.owner);
        }
        let room = crate::store::Room { name: "hold".into(), places: 1 };
        let claim = Claim { owner: 99, rooms: vec![room], at_most: 1 };
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let reply = Reply::new(move |claimed: Result<Claimed, Error>| {
            count.store(claimed.unwrap().jobs.len(), Ordering::SeqCst);
        });
        rig.gate.store.claim(claim, reply);
        rig.gate.release();
        rig.go();
        let began = rig.tokens.lock().len();
        assert_eq!((taken.load(Ordering::SeqCst), began), if late { (1, 0) } else { (0, 1) });
    }
}

#[test]
fn a_close_during_a_claim_waits_for_it_and_starts_nothing() {
    let rig = rig(2);
    rig.gate.holds.store(true, Ordering::SeqCst);
    rig.put("a");
    rig.go();
    let mut close = Box::pin(rig.scheduler.close(Duration::from_secs(60)));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(close.as_mut().poll(&mut context).is_pending());
    rig.gate.release();
    rig.go();
    let report = std::pin::pin!(close).poll(&mut context);
    let std::task::Poll::Ready(Ok(report)) = report else { panic!("the claim has ended") };
    assert_eq!((report.jobs.of(State::Waiting), report.jobs.of(State::Running)), (1, 0));
    assert!(rig.tokens.lock().is_empty() && report.is_drained());
}

#[test]
fn a_close_ends_with_the_last_run_or_with_a_claim_that_fails() {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for fails in [false, true] {
        let rig = rig(2);
        rig.gate.holds.store(fails, Ordering::SeqCst);
        rig.put("a");
        rig.go();
        let mut close = std::pin::pin!(rig.scheduler.close(Duration::from_secs(60)));
        assert!(close.as_mut().poll(&mut context).is_pending());
        if let Some((claimed, _)) = rig.gate.held.lock().first_mut() {
            *claimed = Err(Error::Store { fault: Fault::Full, reason: "the disk is full".into() });
        }
        rig.gate.release();
        rig.end_runs();
        let std::task::Poll::Ready(Ok(report)) = close.poll(&mut context) else { panic!("all runs have ended") };
        assert!(report.is_drained());
    }
}

#[test]
fn a_run_of_a_closed_scheduler_learns_of_a_cancel_elsewhere() {
    let rig = rig(2);
    rig.put("a");
    rig.go();
    let runtime = Runtime::builder().manual_clock(&rig.clock).start().unwrap();
    let other = Scheduler::builder().runtime(&runtime).store(rig.gate.clone()).start().unwrap();
    let _close = rig.scheduler.close(Duration::from_secs(60));
    let _ = other.put_to("none", &()).key("b").send().wait().unwrap();
    assert_eq!(other.cancel("a").wait(), Ok(Cancel::Running));
    assert!(rig.tokens.lock()[0].is_cancelled());
}

#[test]
fn a_store_that_fails_and_heals_loses_nothing() {
    let rig = rig(1);
    rig.put("a");
    rig.put("b");
    rig.go();
    rig.gate.fails.store(true, Ordering::SeqCst);
    let error = rig.scheduler.put_to("hold", &()).key("c").send().wait().unwrap_err();
    assert!(matches!(error, Error::Store { .. }));
    // The settle fails, and is repeated with growing waits; the place is not free before.
    rig.end_runs();
    rig.clock.advance(Duration::from_secs(1_200));
    let failures = rig.gate.failures.load(Ordering::SeqCst);
    // The put, the settle, and waits of 0.1 s, 0.2 s, up to 25.6 s, then of 30 s.
    assert_eq!(failures, 1 + 1 + 9 + 38);
    assert_eq!(rig.tokens.lock().len(), 1);
    rig.gate.fails.store(false, Ordering::SeqCst);
    rig.clock.advance(Duration::from_secs(60));
    assert_eq!(rig.tokens.lock().len(), 2, "the other job runs");
    rig.end_runs();
    // Claims fail as well.
    rig.gate.fails.store(true, Ordering::SeqCst);
    rig.clock.advance(Duration::from_secs(1));
    rig.gate.fails.store(false, Ordering::SeqCst);
    rig.clock.advance(Duration::from_secs(60));
    let placed = rig.scheduler.put_to("hold", &()).key("d").due(Duration::from_secs(5)).send().wait();
    assert!(placed.is_ok());
    rig.gate.fails.store(true, Ordering::SeqCst);
    rig.clock.advance(Duration::from_secs(100));
    assert_eq!(rig.tokens.lock().len(), 2);
    rig.gate.fails.store(false, Ordering::SeqCst);
    rig.clock.advance(Duration::from_secs(60));
    assert_eq!(rig.tokens.lock().len(), 3);
    // The waits begin anew.
    rig.end_runs();
    let placed = rig.scheduler.put_to("hold", &()).key("e").due(Duration::from_secs(1)).send().wait();
    assert!(placed.is_ok());
    rig.go();
    rig.gate.fails.store(true, Ordering::SeqCst);
    rig.clock.advance(Duration::from_secs(1));
    rig.gate.fails.store(false, Ordering::SeqCst);
    rig.clock.advance(Duration::from_millis(100));
    assert_eq!(rig.tokens.lock().len(), 4);
    assert_eq!(rig.scheduler.stats().wait().unwrap().lost, 0);
}

#[test]
fn a_job_that_runs_again_before_its_settle_is_answered_keeps_its_place() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let gate = Gate::new(&runtime);
    let reports = Arc::new(Mutex::new(Vec::new()));
    let (held, seen, turns) = (gate.clone(), Arc::clone(&reports), AtomicUsize::new(0));
    let again = move |_: (), run: &Run| {
        if turns.fetch_add(1, Ordering::SeqCst) == 0 {
            return super::Outcome::again(Duration::ZERO);
        }
        assert_eq!(run.scheduler().cancel(run.key()).wait(), Ok(Cancel::Running));
        assert!(run.token().is_cancelled(), "of the run under way");
        // The settle of the first run was committed, and is answered now.
        held.release();
        seen.lock().push(run.scheduler().close(Duration::ZERO).wait().unwrap());
        super::Outcome::Done
    };
    let builder = Scheduler::builder().runtime(&runtime).store(gate.clone());
    let scheduler = builder.register(Handler::new("again", again).parallel(2)).start().unwrap();
    gate.holds_settles.store(true, Ordering::SeqCst);
    let _ = scheduler.put_to("again", &()).key("a").send().wait().unwrap();
    clock.advance(Duration::ZERO);
    assert_eq!(reports.lock()[0].running.len(), 1, "the second run goes on: {reports:?}");
    let state = scheduler.core.state.lock();
    assert_eq!((state.runs.len(), state.handshake.total()), (0, 0), "no place is lost");
}

/// A job whose first attempt failed at second 0, and whose next one comes after 10 s. Another job
/// is due at second 5. At this second the clock is set back by an hour.
fn retry_and_step_back(second: u64) -> (ManualClock, Scheduler, Arc<AtomicUsize>) {
    let clock = ManualClock::new();
    clock.set_wall(Micros::new(1_767_225_600_000_000).to_system());
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let attempts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&attempts);
    let fails = move |_: (), _: &Run| match count.fetch_add(1, Ordering::SeqCst) {
        0 => Err("the first attempt"),
        _ => Ok(()),
    };
    let retry = super::Retry::new(2).first(Duration::from_secs(10)).jitter(0.0);
    let builder = Scheduler::builder().runtime(&runtime).register(Handler::new("fails", fails).retry(retry));
    let scheduler = builder.handler("other", |_: (), _: &Run| {}).start().unwrap();
    clock.advance(Duration::ZERO);
    let _ = scheduler.put_to("other", &()).due(Duration::from_secs(5)).send().wait().unwrap();
    let _ = scheduler.put_to("fails", &()).key("a").send().wait().unwrap();
    clock.advance(Duration::ZERO);
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
    clock.advance(Duration::from_secs(second));
    clock.set_wall(clock.wall() - Duration::from_secs(3_600));
    (clock, scheduler, attempts)
}

#[test]
fn the_notice_of_a_span_alone_sets_the_timer_that_finds_a_step_back() {
    for second in [0, 6] {
        let (clock, _scheduler, attempts) = retry_and_step_back(second);
        clock.advance(Duration::from_secs(21));
        assert_eq!(attempts.load(Ordering::SeqCst), 2, "at second {second}");
    }
}

#[test]
fn a_notice_after_a_step_back_does_not_move_the_timer_that_finds_the_step() {
    let (clock, scheduler, attempts) = retry_and_step_back(0);
    // Of a commit before the step.
    let at = Micros::floor(clock.wall()).saturating_add(Duration::from_secs(7_200));
    assert!(scheduler.core.notice(Notice::Wake { at }));
    clock.advance(Duration::from_secs(21));
    assert_eq!(attempts.load(Ordering::SeqCst), 2);
}

#[test]
fn an_interval_that_no_claim_has_seen_goes_on_after_a_step_back() {
    let clock = ManualClock::new();
    clock.set_wall(Micros::new(1_767_225_600_000_000).to_system());
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let scheduler = Scheduler::builder().runtime(&runtime).handler("h", |_: (), _: &Run| {}).start().unwrap();
    clock.advance(Duration::from_secs(1));
    let hourly = crate::Schedule::every(Duration::from_secs(3_600)).build().unwrap();
    let _ = scheduler.put_to("h", &()).schedule(hourly).send().wait().unwrap();
    clock.set_wall(clock.wall() - Duration::from_secs(36_000));
    clock.advance(Duration::from_secs(7_200));
    assert!(scheduler.stats().wait().unwrap().done >= 1);
}

/// The commit has read the clock before the step, and the engine hears of it after the step.
#[test]
fn an_interval_goes_on_after_a_step_back_between_a_commit_and_its_notice() {
    let clock = ManualClock::new();
    clock.set_wall(Micros::new(1_767_225_600_000_000).to_system());
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let gate = Gate::new(&runtime);
    let builder = Scheduler::builder().runtime(&runtime).store(gate.clone());
    let scheduler = builder.handler("h", |_: (), _: &Run| {}).start().unwrap();
    let each_second = crate::Schedule::every(Duration::from_secs(1)).build().unwrap();
    let _ = scheduler.put_to("h", &()).schedule(each_second).send().wait().unwrap();
    clock.advance(Duration::from_secs(5));
    *gate.steps.lock() = Some(clock.clone());
    clock.advance(Duration::from_secs(2));
    let before = scheduler.stats().wait().unwrap().done;
    assert!(gate.steps.lock().is_none(), "the clock was set back");
    clock.advance(Duration::from_secs(60));
    assert!(scheduler.stats().wait().unwrap().done >= before + 30);
}

/// A file and a lost connection tell of no particular job.
#[test]
fn j32_a_notice_of_no_particular_job_is_one_question_for_all_waits() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let gate = Gate::new(&runtime);
    let scheduler = Scheduler::builder().runtime(&runtime).store(gate.clone()).start().unwrap();
    let put = |n: u32| scheduler.put_to("log", &n).key(&n.to_string()).due(HOUR).send().wait().unwrap();
    let waits: Vec<_> = (0..100).map(|n| scheduler.wait_for(put(n).added().unwrap(), HOUR)).collect();
    drop(scheduler.wait_for(crate::JobId(1), HOUR));
    let asked = || gate.scans.swap(0, Ordering::SeqCst);
    asked();
    scheduler.core.notice(Notice::Ended(None));
    assert_eq!((asked(), scheduler.core.waits.lock().count()), (1, 100), "one was given up");
    // Not told of, since they are not kept.
    assert_eq!(scheduler.cancel("7").wait(), Ok(Cancel::Cancelled));
    assert_eq!(scheduler.cancel("8").wait(), Ok(Cancel::Cancelled));
    asked();
    scheduler.core.notice(Notice::Wake { at: Micros::FIRST });
    assert_eq!(asked(), 1 + 2 * 2, "a question, and two looks for each job that has left");
    scheduler.core.notice(Notice::Ended(None));
    assert_eq!(asked(), 1, "98 wait");
    // One that ends while the question is under way.
    gate.holds_scans.store(true, Ordering::SeqCst);
    scheduler.core.notice(Notice::Ended(None));
    gate.holds_scans.store(false, Ordering::SeqCst);
    assert_eq!(scheduler.cancel("9").wait(), Ok(Cancel::Cancelled));
    scheduler.core.notice(Notice::Ended(None));
    assert_eq!(asked(), 1);
    let (none, reply) = gate.held_scans.lock().remove(0);
    reply.send(none);
    assert_eq!(asked(), 1 + 2);
    let _ = scheduler.close(Duration::ZERO).wait().unwrap();
    let ends = waits.into_iter().map(|wait| wait.wait().unwrap());
    assert_eq!(ends.filter(|end| *end == crate::JobEnd::Gone).count(), 3);
}
