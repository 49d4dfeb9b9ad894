//! The calls of a scheduler to its store.
//!
//! Ground rules. All calls of an engine go through [`Calls`], which times the answers. No lock is
//! held while a store is called. There is no span for a call: its end would run the code of a
//! subscriber on the thread of the store, which runs no user code (J11).

use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use timerqueue::Runtime;

use crate::store::{
    Applied, Claim, Claimed, Op, Reply, Scan, Scanned, Settled, Store, StoreCallKind, StoreTimes, Timing, kind_of,
};

/// The store of an engine.
pub(crate) struct Calls {
    store: Arc<dyn Store>,
    runtime: Runtime,
    times: Arc<Mutex<StoreTimes>>,
}

impl Calls {
    pub(crate) fn new(store: Arc<dyn Store>, runtime: &Runtime) -> Self {
        Self { store, runtime: runtime.clone(), times: Arc::default() }
    }

    pub(crate) fn times(&self) -> StoreTimes {
        self.times.lock().clone()
    }

    fn timed<T>(&self, kind: StoreCallKind, reply: Reply<T>) -> Reply<T> {
        reply.timed(Timing {
            times: Arc::clone(&self.times),
            runtime: self.runtime.clone(),
            kind,
            asked: self.runtime.now(),
        })
    }

    pub(crate) fn apply(&self, ops: Vec<Op>, reply: Reply<Vec<Applied>>) {
        let reply = self.timed(kind_of(&ops), reply);
        self.store.apply(ops, reply);
    }

    pub(crate) fn claim(&self, claim: Claim, reply: Reply<Claimed>) {
        self.store.claim(claim, self.timed(StoreCallKind::Claim, reply));
    }

    pub(crate) fn settle(&self, end: Op, place: Claim, reply: Reply<Settled>) {
        self.store.settle(end, place, self.timed(StoreCallKind::End, reply));
    }

    pub(crate) fn scan(&self, scan: Scan, reply: Reply<Scanned>) {
        self.store.scan(scan, self.timed(StoreCallKind::Look, reply));
    }
}

impl Deref for Calls {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}
