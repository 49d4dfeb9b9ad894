//! The store as a scheduler of a simulated node has it: each call becomes a request to the server.
//!
//! Ground rules. A call only puts a request into the outbox, under a lock that no other code is
//! called with. The world takes the outbox, decides the fate of each request, and gives the answer
//! in a call of its own, as the threads of a `PostgresStore` do ([`Store::has_thread`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::plan::LEASE;
use crate::Error;
use crate::store::{
    Applied, Claim, Claimed, Entry, Held, JobId, Micros, Notice, Op, Reply, Scan, Scanned, Settled, Store, Watcher,
    sealed,
};

/// What a node asks the server for.
#[derive(Clone, Debug)]
pub(super) enum Wire {
    Apply(Vec<Op>),
    Claim(Claim),
    Settle(Op, Claim),
    Scan(Scan),
    /// The lease of the member of this scheduler. With the runs of the node, which the server does
    /// not see.
    Renew(u64, Vec<(Held, u64)>),
}

/// What the server answers.
#[derive(Debug)]
pub(super) enum Answer {
    Applied(Vec<Applied>),
    /// With the member that claims.
    Claimed(Claimed, u64),
    Settled(Settled, Option<u64>),
    Scanned(Scanned),
    /// The member whose lease was renewed, and which of its runs were cancelled.
    Renewed(Option<u64>, Vec<JobId>),
}

/// Where an answer goes.
pub(super) enum Back {
    Applied(Reply<Vec<Applied>>),
    Claimed(Reply<Claimed>),
    Settled(Reply<Settled>),
    Scanned(Reply<Scanned>),
    Keeper,
    /// Runs are put back of which no scheduler knows.
    Strays,
}

/// What the world and the scheduler of a node share.
pub(super) struct Port {
    outbox: Mutex<Vec<(u64, Wire, Back)>>,
    watchers: Mutex<Vec<Watcher>>,
    last: AtomicU64,
    entry: Mutex<Option<Arc<Entry>>>,
    pub(super) skew: AtomicI64,
    /// The process is gone: what its destructors ask for reaches no server.
    pub(super) gone: AtomicBool,
}

impl Port {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            outbox: Mutex::default(),
            watchers: Mutex::default(),
            last: AtomicU64::new(0),
            entry: Mutex::default(),
            skew: AtomicI64::new(0),
            gone: AtomicBool::new(false),
        })
    }

    pub(super) fn send(&self, wire: Wire, back: Back) {
        if self.gone.load(Ordering::Relaxed) {
            return;
        }
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.outbox.lock().push((id, wire, back));
    }

    pub(super) fn take(&self) -> Vec<(u64, Wire, Back)> {
        std::mem::take(&mut *self.outbox.lock())
    }

    /// The scheduler, once it has started.
    pub(super) fn entry(&self) -> Option<Arc<Entry>> {
        self.entry.lock().clone()
    }

    /// The number of the last request.
    pub(super) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    pub(super) fn tell(&self, notice: Notice) {
        let watchers = self.watchers.lock().clone();
        watchers.iter().for_each(|watcher| _ = watcher(notice));
    }
}

impl Back {
    /// Gives the answer to the scheduler.
    pub(super) fn give(self, answer: Result<Answer, Error>) {
        match (self, answer) {
            (Self::Applied(reply), Ok(Answer::Applied(applied))) => reply.send(Ok(applied)),
            (Self::Claimed(reply), Ok(Answer::Claimed(claimed, _))) => reply.send(Ok(claimed)),
            (Self::Settled(reply), Ok(Answer::Settled(settled, _))) => reply.send(Ok(settled)),
            (Self::Scanned(reply), Ok(Answer::Scanned(scanned))) => reply.send(Ok(scanned)),
            (Self::Applied(reply), Err(error)) => reply.send(Err(error)),
            (Self::Claimed(reply), Err(error)) => reply.send(Err(error)),
            (Self::Settled(reply), Err(error)) => reply.send(Err(error)),
            (Self::Scanned(reply), Err(error)) => reply.send(Err(error)),
            (Self::Keeper | Self::Strays, _) => {}
            (_, Ok(answer)) => panic!("an answer of another kind: {answer:?}"),
        }
    }
}

/// The store of a node.
pub(super) struct NodeStore(pub(super) Arc<Port>);

impl sealed::Sealed for NodeStore {}

impl std::fmt::Debug for NodeStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeStore")
    }
}

impl Store for NodeStore {
    fn apply(&self, ops: Vec<Op>, reply: Reply<Vec<Applied>>) {
        self.0.send(Wire::Apply(ops), Back::Applied(reply));
    }

    fn claim(&self, claim: Claim, reply: Reply<Claimed>) {
        self.0.send(Wire::Claim(claim), Back::Claimed(reply));
    }

    fn settle(&self, end: Op, place: Claim, reply: Reply<Settled>) {
        self.0.send(Wire::Settle(end, place), Back::Settled(reply));
    }

    fn scan(&self, scan: Scan, reply: Reply<Scanned>) {
        self.0.send(Wire::Scan(scan), Back::Scanned(reply));
    }

    fn enter(&self, entry: Arc<Entry>) {
        *self.0.entry.lock() = Some(entry);
    }

    fn watch(&self, watcher: Watcher) {
        self.0.watchers.lock().push(watcher);
    }

    fn now(&self) -> Option<Micros> {
        None
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn can_fail(&self) -> bool {
        true
    }

    fn has_thread(&self) -> bool {
        true
    }

    fn lease(&self) -> Option<Duration> {
        Some(LEASE / 2)
    }

    fn skew(&self) -> i64 {
        self.0.skew.load(Ordering::Relaxed)
    }
}
