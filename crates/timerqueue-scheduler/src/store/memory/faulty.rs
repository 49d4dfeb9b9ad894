//! A memory store that fails, loses answers and is slow as a test wants it.
//!
//! Ground rules. What happens to a call is decided by the plan of the test before the call, with no
//! lock held. Calls have numbers, and delays are on the clock of the runtime: on a manual clock a
//! test with troubles is as deterministic as one without.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use timerqueue::{OnceTimer, Runtime};

use super::MemoryStore;
use crate::debug::debug_of;
use crate::store::gate::Gate;
use crate::store::{
    Applied, Claim, Claimed, Entry, Error, Fault, Held, Micros, Op, Reply, Scan, Scanned, Settle, Settled, Store,
    StoreCallKind, Verdict, Watcher, kind_of, sealed,
};
use crate::unwind::caught;

/// A call of a [`FaultyStore`], as its plan sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCall {
    /// Counts the calls of this kind, from 1.
    pub number: u64,
    /// What is asked for.
    pub kind: StoreCallKind,
}

/// What happens to a call of a [`FaultyStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// Nothing: it is done and answered.
    None,
    /// It fails with this fault, and nothing is done.
    Fail(Fault),
    /// It is done, and the answer is [`Fault::Io`], as after a connection that was lost during a
    /// commit. Jobs that a claim has taken wait again.
    LoseAnswer,
    /// It is done, and the answer comes after this time on the runtime's clock.
    Late(Duration),
}

type Plan = dyn Fn(StoreCall) -> Trouble + Send + Sync;

/// A [`MemoryStore`] with troubles, for tests of programs that use a scheduler: a store that is
/// away, one that has done what it says it has not, a slow one. With
/// [`ManualClock`](timerqueue::ManualClock) each test runs in no time, and each time alike.
///
/// A handle: clones share the same jobs and numbers of calls. A panic of the plan is no trouble.
///
/// # Examples
///
/// The answer to the first put is lost, the put is repeated, and the job runs once:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime};
/// use timerqueue_scheduler::store::{Fault, FaultyStore, StoreCallKind, Trouble};
/// use timerqueue_scheduler::{Error, Scheduler};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let store = FaultyStore::new(&runtime, |call| match call.kind {
///     StoreCallKind::Change if call.number == 1 => Trouble::LoseAnswer,
///     StoreCallKind::Claim => Trouble::Late(Duration::from_secs(2)), // a slow server
///     _ => Trouble::None,
/// });
/// let scheduler = Scheduler::builder().runtime(&runtime).store(store).handler("mail", |_: u32, _| {}).start()?;
/// let put = || scheduler.put_to("mail", &17).key("mail/17").send().wait();
/// assert!(matches!(put(), Err(Error::Store { fault: Fault::Io, .. })));
/// assert!(put()?.is_refused()); // its key is taken: the job is there
/// clock.advance(Duration::from_secs(10));
/// assert_eq!(scheduler.stats().wait()?.done, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct FaultyStore {
    store: MemoryStore,
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Runtime,
    plan: Box<Plan>,
    /// By kind.
    calls: [AtomicU64; 4],
}

impl FaultyStore {
    /// A store without jobs, for any number of schedulers, as [`MemoryStore::new`]. The plan says
    /// what happens to each call, before it. It runs on the thread of the call.
    #[must_use]
    pub fn new(runtime: &Runtime, plan: impl Fn(StoreCall) -> Trouble + Send + Sync + 'static) -> Self {
        let inner = Inner { runtime: runtime.clone(), plan: Box::new(plan), calls: Default::default() };
        Self { store: MemoryStore::new(runtime), inner: Arc::new(inner) }
    }

    /// How many calls of this kind there were.
    #[must_use]
    pub fn calls(&self, kind: StoreCallKind) -> u64 {
        self.inner.calls[kind as usize].load(Ordering::Acquire)
    }

    /// Makes a call. `undo`: what the caller of a lost answer does not know of.
    fn call<T: Send + 'static>(
        &self,
        kind: StoreCallKind,
        reply: Reply<T>,
        ask: impl FnOnce(&MemoryStore, Reply<T>),
        undo: impl FnOnce(&MemoryStore, T) + Send + 'static,
    ) {
        let number = self.inner.calls[kind as usize].fetch_add(1, Ordering::AcqRel) + 1;
        match caught(|| (self.inner.plan)(StoreCall { number, kind })).unwrap_or(Trouble::None) {
            Trouble::None => ask(&self.store, reply),
            Trouble::Fail(fault) => reply.send(Err(Error::Store { fault, reason: fault.to_string().into() })),
            Trouble::LoseAnswer => {
                let store = self.store.clone();
                let lost = Reply::new(move |answer| {
                    if let Ok(answer) = answer {
                        undo(&store, answer);
                    }
                    reply.send(Err(Error::Store { fault: Fault::Io, reason: "the answer was lost".into() }));
                });
                ask(&self.store, lost);
            }
            Trouble::Late(time) => {
                let runtime = self.inner.runtime.clone();
                let late = Reply::new(move |answer| {
                    // A runtime that ends drops the reply, which answers.
                    OnceTimer::on(&runtime, time, move |_| reply.send(answer)).detach();
                });
                ask(&self.store, late);
            }
        }
    }
}

/// Runs of which no scheduler knows.
fn put_back(store: &MemoryStore, runs: impl Iterator<Item = Held>) {
    let unrun = |held| Op::Settle(Box::new(Settle { held, verdict: Verdict::Unrun, record: None }));
    store.apply(runs.map(unrun).collect(), Reply::new(|_| {}));
}

impl sealed::Sealed for FaultyStore {}

impl Store for FaultyStore {
    fn apply(&self, ops: Vec<Op>, reply: Reply<Vec<Applied>>) {
        let kind = kind_of(&ops);
        self.call(kind, reply, |store, reply| store.apply(ops, reply), |_, _| {});
    }

    fn claim(&self, claim: Claim, reply: Reply<Claimed>) {
        let undo = |store: &MemoryStore, claimed: Claimed| put_back(store, claimed.jobs.iter().map(|job| job.held));
        self.call(StoreCallKind::Claim, reply, |store, reply| store.claim(claim, reply), undo);
    }

    fn settle(&self, end: Op, place: Claim, reply: Reply<Settled>) {
        let undo = |store: &MemoryStore, settled: Settled| put_back(store, settled.next.iter().map(|job| job.held));
        self.call(StoreCallKind::End, reply, |store, reply| store.settle(end, place, reply), undo);
    }

    fn scan(&self, scan: Scan, reply: Reply<Scanned>) {
        self.call(StoreCallKind::Look, reply, |store, reply| store.scan(scan, reply), |_, _| {});
    }

    fn enter(&self, entry: Arc<Entry>) {
        self.store.enter(entry);
    }

    fn leave(&self, owner: u64) {
        self.store.leave(owner);
    }

    fn watch(&self, watcher: Watcher) {
        self.store.watch(watcher);
    }

    fn now(&self) -> Option<Micros> {
        self.store.now()
    }

    fn gate(&self) -> Option<&Arc<Gate>> {
        self.store.gate()
    }
}

debug_of!(FaultyStore, |store| store: store.store);
