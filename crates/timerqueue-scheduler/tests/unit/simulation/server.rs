//! The server: a memory store on a clock of its own, with the ledger at its door.
//!
//! Ground rules. The world applies requests one at a time, each at an instant. The ledger sees each
//! request and its answer in the order of the commits. A [`Break`] falsifies requests or answers,
//! so that tests of the simulation find a server that is wrong.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use parking_lot::Mutex;
use timerqueue::{ManualClock, Runtime};

use super::ledger::Ledger;
use super::plan::LEASE;
use super::port::{Answer, Wire};
use super::{Break, Origin};
use crate::store::{Applied, Cancel, Held, JobId, MemoryStore, Micros, Notice, Op, Reply, Scan, Store};

pub(super) struct Server {
    pub(super) clock: ManualClock,
    pub(super) store: MemoryStore,
    runtime: Runtime,
    notices: Arc<Mutex<Vec<Notice>>>,
    broken: Option<Break>,
}

/// Calls a store that answers at once.
fn call<T: Send + 'static>(ask: impl FnOnce(Reply<T>)) -> T {
    let (send, receive) = channel();
    ask(Reply::new(move |answer| _ = send.send(answer)));
    receive.recv().unwrap().unwrap()
}

impl Server {
    pub(super) fn new(broken: Option<Break>) -> Self {
        let clock = ManualClock::new();
        clock.set_wall(Micros::new(1_767_225_600_000_000).to_system());
        let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
        let store = MemoryStore::new(&runtime);
        let notices: Arc<Mutex<Vec<Notice>>> = Arc::default();
        let sink = Arc::clone(&notices);
        store.watch(Arc::new(move |notice| {
            sink.lock().push(notice);
            true
        }));
        Self { clock, store, runtime, notices, broken }
    }

    pub(super) fn now(&self) -> Micros {
        Micros::floor(self.runtime.wall_now())
    }

    /// Moves the clock up to an instant of the history.
    pub(super) fn advance(&self, at: u64) {
        let past = u64::try_from(self.clock.now().as_duration().as_nanos()).unwrap();
        self.clock.advance(Duration::from_nanos(at - past));
    }

    pub(super) fn set_clock(&self, by: i64) {
        let (wall, step) = (self.clock.wall(), Duration::from_secs(by.unsigned_abs()));
        self.clock.set_wall(if by < 0 { wall - step } else { wall + step });
    }

    /// Applies a request. Second: what schedulers are to be told.
    pub(super) fn serve(&self, ledger: &mut Ledger, from: (Origin, u64), wire: Wire) -> (Answer, Vec<Notice>) {
        let now = self.now();
        let answer = match wire {
            Wire::Apply(ops) => Answer::Applied(self.apply(ledger, from, ops, now)),
            Wire::Claim(claim) => {
                let asked = claim.clone();
                let claimed = call(|reply| self.store.claim(asked, reply));
                ledger.claimed(from.0, &claim, &claimed);
                ledger.forget_ended(now, |id| self.store.has(id));
                Answer::Claimed(claimed)
            }
            Wire::Settle(end, place) => {
                let asked = self.falsified(ledger, end.clone());
                let settled = call(|reply| self.store.settle(asked, place.clone(), reply));
                ledger.applied(from.0, &end, settled.applied[0], now);
                ledger.committed(from, settled.applied.first().copied());
                ledger.taken(from.0, &place, settled.next.as_slice(), now);
                ledger.forget_ended(now, |id| self.store.has(id));
                Answer::Settled(settled)
            }
            Wire::Scan(scan) => Answer::Scanned(self.scan(scan)),
            Wire::Renew(held) => self.renew(ledger, held, now),
        };
        (answer, std::mem::take(&mut *self.notices.lock()))
    }

    pub(super) fn scan(&self, scan: Scan) -> crate::store::Scanned {
        call(|reply| self.store.scan(scan, reply))
    }

    fn apply(&self, ledger: &mut Ledger, from: (Origin, u64), ops: Vec<Op>, now: Micros) -> Vec<Applied> {
        let mut applied = Vec::with_capacity(ops.len());
        for op in ops {
            let asked = self.falsified(ledger, op.clone());
            let mut answer = call(|reply| self.store.apply(vec![asked], reply))[0];
            if let (Some(Break::Cursor), Op::Advance(advance)) = (self.broken, &op) {
                let mut advance = advance.clone();
                for _ in 0..50 {
                    if answer == Applied::Held(true) {
                        break;
                    }
                    advance.version += 1;
                    answer = call(|reply| self.store.apply(vec![Op::Advance(advance.clone())], reply))[0];
                }
            }
            if let (Some(Break::Cancel), Applied::Cancel(Cancel::Running)) = (self.broken, answer) {
                answer = Applied::Cancel(Cancel::Cancelled);
            }
            ledger.applied(from.0, &op, answer, now);
            applied.push(answer);
        }
        ledger.committed(from, applied.first().copied());
        applied
    }

    /// Without the fence, the settle of an earlier holder is taken for one of the present holder.
    fn falsified(&self, ledger: &Ledger, op: Op) -> Op {
        match (self.broken, op) {
            (Some(Break::Fence), Op::Settle(mut settle)) => {
                settle.held = ledger.holder_of(settle.held.id).unwrap_or(settle.held);
                Op::Settle(settle)
            }
            (_, op) => op,
        }
    }

    fn renew(&self, ledger: &mut Ledger, held: Vec<Held>, now: Micros) -> Answer {
        let renew = |&held: &Held| Op::Renew { held, lease: LEASE };
        let ops: Vec<Op> = held.iter().map(renew).collect();
        let applied = call(|reply| self.store.apply(ops, reply));
        let renewed: Vec<bool> = applied.iter().map(|applied| *applied == Applied::Held(true)).collect();
        let mut cancelled: Vec<JobId> = Vec::new();
        for (&held, &renewed) in held.iter().zip(&renewed) {
            if ledger.renewed(held, renewed, now) {
                cancelled.push(held.id);
            }
        }
        Answer::Renewed(renewed, cancelled)
    }
}
