//! The server: a memory store on a clock of its own, with the ledger at its door.
//!
//! Ground rules. The world applies requests one at a time, each at an instant. The ledger sees each
//! request and its answer in the order of the commits. A [`Break`] falsifies requests or answers,
//! so that tests of the simulation find a server that is wrong.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use parking_lot::Mutex;
use timerqueue::{ManualClock, Runtime};

use super::ledger::Ledger;
use super::plan::LEASE;
use super::port::{Answer, Wire};
use super::{Break, Origin};
use crate::store::{Applied, Cancel, Entry, MemoryStore, Micros, Notice, Op, Reply, Scan, Settled, Store};

pub(super) struct Server {
    pub(super) clock: ManualClock,
    pub(super) store: MemoryStore,
    runtime: Runtime,
    notices: Arc<Mutex<Vec<Notice>>>,
    /// Number and end of the lease of each member, by scheduler.
    members: HashMap<u64, (u64, Micros)>,
    last_member: u64,
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
        store.set_look_time(LEASE);
        let notices: Arc<Mutex<Vec<Notice>>> = Arc::default();
        let sink = Arc::clone(&notices);
        store.watch(Arc::new(move |notice| {
            sink.lock().push(notice);
            true
        }));
        Self { clock, store, runtime, notices, members: HashMap::new(), last_member: 0, broken }
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
    pub(super) fn serve(
        &mut self,
        ledger: &mut Ledger,
        from: (Origin, u64),
        entry: &Arc<Entry>,
        wire: Wire,
    ) -> (Answer, Vec<Notice>) {
        let now = self.now();
        let answer = match wire {
            Wire::Apply(ops) => Answer::Applied(self.apply(ledger, from, ops, now)),
            Wire::Claim(claim) => {
                let member = self.member_of(ledger, from.0, entry, now);
                let asked = claim.clone();
                let claimed = call(|reply| self.store.claim(asked, reply));
                ledger.claimed(from.0, &claim, &claimed);
                Answer::Claimed(claimed, member)
            }
            Wire::Settle(end, place) => {
                let asked = self.falsified(ledger, end.clone());
                // Without half a lease left no place is given on.
                let member =
                    self.members.get(&entry.owner).filter(|(_, until)| *until >= now.saturating_add(LEASE / 2));
                let member = member.map(|&(number, _)| number);
                let settled = match member {
                    Some(_) => call(|reply| self.store.settle(asked, place.clone(), reply)),
                    None => Settled { applied: call(|reply| self.store.apply(vec![asked], reply)), next: None },
                };
                ledger.applied(from.0, &end, settled.applied[0], now);
                ledger.committed(from, settled.applied.first().copied());
                ledger.taken(from.0, &place, settled.next.as_slice(), now);
                Answer::Settled(settled, member)
            }
            Wire::Scan(scan) => Answer::Scanned(self.scan(scan)),
            Wire::Renew(owner, _) => self.renew(ledger, from.0, owner, now),
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

    /// The member that claims: a new one, if the scheduler has none. It lives for half a lease at
    /// least.
    fn member_of(&mut self, ledger: &mut Ledger, by: Origin, entry: &Arc<Entry>, now: Micros) -> u64 {
        let until = now.saturating_add(LEASE);
        if let Some((number, before)) = self.members.get_mut(&entry.owner) {
            if *before < now.saturating_add(LEASE / 2) {
                *before = until;
                ledger.renewed((entry.owner, *number), until);
            }
            return *number;
        }
        self.last_member += 1;
        self.members.insert(entry.owner, (self.last_member, until));
        self.store.enter(Arc::clone(entry));
        ledger.entered(by, (entry.owner, self.last_member), until);
        self.last_member
    }

    /// Renews the lease of a member, and ends the others whose lease is over.
    fn renew(&mut self, ledger: &mut Ledger, by: Origin, owner: u64, now: Micros) -> Answer {
        let until = now.saturating_add(LEASE);
        if self.broken == Some(Break::Late) && !self.members.contains_key(&owner) {
            if let Some(number) = ledger.last_member_of(by) {
                self.members.insert(owner, (number, until));
            }
        }
        let live = self.members.get(&owner).map(|&(number, _)| number);
        if let Some(number) = live.filter(|_| self.broken != Some(Break::Renewal)) {
            self.members.insert(owner, (number, until));
            ledger.renewed((owner, number), until);
        }
        let early = if self.broken == Some(Break::Early) { LEASE / 2 } else { Duration::ZERO };
        let is_over = |until: Micros| until < now.saturating_add(early);
        let mut over: Vec<u64> =
            self.members.iter().filter(|(_, (_, until))| is_over(*until)).map(|(&owner, _)| owner).collect();
        over.sort_unstable();
        for owner in over {
            self.members.remove(&owner);
            ledger.member_ended(owner, now);
            self.store.end_member(owner);
        }
        Answer::Renewed(live, ledger.cancelled_of(owner))
    }
}
