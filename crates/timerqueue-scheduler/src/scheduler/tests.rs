//! The engine on a store that answers late, or fails: what stores on files and servers will do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use timerqueue::{CancellationToken, ManualClock, Runtime};

use super::{Error, Handler, Run, Scheduler};
use crate::store::{
    Applied, Cancel, Claim, Claimed, Fault, MemoryStore, Micros, Op, Reply, Scan, Scanned, State, Store, Watcher,
    sealed,
};

type HeldClaim = (Result<Claimed, Error>, Reply<Claimed>);

/// A memory store whose answers can be held back, and whose calls can fail.
#[derive(Clone, Debug)]
struct Gate {
    store: MemoryStore,
    holds: Arc<AtomicBool>,
    fails: Arc<AtomicBool>,
    failures: Arc<AtomicUsize>,
    held: Arc<Mutex<Vec<HeldClaim>>>,
}

impl Gate {
    fn new(runtime: &Runtime) -> Self {
        Self {
            store: MemoryStore::new(runtime),
            holds: Arc::default(),
            fails: Arc::default(),
            failures: Arc::default(),
            held: Arc::default(),
        }
    }

    fn failure(&self) -> Option<Error> {
        let fails = self.fails.load(Ordering::SeqCst);
        self.failures.fetch_add(usize::from(fails), Ordering::SeqCst);
        fails.then(|| Error::Store { fault: Fault::Full, reason: "the disk is full".into() })
    }

    /// Gives the held answers.
    fn release(&self) {
        self.holds.store(false, Ordering::SeqCst);
        for (claimed, reply) in std::mem::take(&mut *self.held.lock()) {
            reply.send(claimed);
        }
    }
}

impl sealed::Sealed for Gate {}

impl Store for Gate {
    fn apply(&self, ops: Vec<Op>, reply: Reply<Vec<Applied>>) {
        match self.failure() {
            Some(error) => reply.send(Err(error)),
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

    fn scan(&self, scan: Scan, reply: Reply<Scanned>) {
        self.store.scan(scan, reply);
    }

    fn watch(&self, watcher: Watcher) {
        self.store.watch(watcher);
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
}

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
    // A claim for the second place is under way. Two jobs are due, and the first place becomes free meanwhile.
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
    rig.clock.advance(Duration::from_secs(600));
    let failures = rig.gate.failures.load(Ordering::SeqCst);
    assert!((10..40).contains(&failures), "{failures}");
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
    assert_eq!(rig.scheduler.stats().wait().unwrap().lost, 0);
}
