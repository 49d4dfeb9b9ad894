//! Tests of the queue: against the two-list reference, and at its edges.

use std::ops::ControlFlow;
use std::ptr::NonNull;
use std::time::Duration;

use proptest::prelude::*;

use super::level::{GROUP, SHORT, SLOT_SHIFT, WINDOW_NS, level_of};
use super::reference::TwoLists;
use super::tick_policy::TickPolicy;
use super::{Kind, MissedTicks, Next, Node, TimerWheel, next_tick};
use crate::time::{END, LAST, NEVER, later};

const MS: u64 = 1_000_000;

/// Two sets of nodes, queued in the wheel and in the reference, with a simulated clock.
struct Pair {
    now: u64,
    queue: TimerWheel<usize>,
    reference: TwoLists<usize>,
    ours: Vec<Node<usize>>,
    theirs: Vec<Node<usize>>,
    /// The work of a batch of the wheel.
    batch: usize,
    /// A node was postponed, so bounds may be too early without a flag.
    postponed: bool,
}

#[allow(unsafe_code)] // inserts nodes
impl Pair {
    fn new(now: u64, nodes: usize, batch: usize, policy: MissedTicks) -> Self {
        Self::with_leeway(now, nodes, batch, policy, |_| 0)
    }

    /// Each third node is that of a future, which can be postponed.
    fn with_leeway(now: u64, nodes: usize, batch: usize, policy: MissedTicks, leeway_ns: fn(usize) -> u64) -> Self {
        let tick_policy = |i| TickPolicy::new(policy, Duration::from_nanos(leeway_ns(i)));
        let kind = |i| if i % 3 == 2 { Kind::Waker } else { Kind::Overlapping };
        let make = || (0..nodes).map(|i| Node::with(1, kind(i), tick_policy(i), i)).collect();
        let (queue, reference) = (TimerWheel::new(now), TwoLists::new(now));
        Self { now, queue, reference, ours: make(), theirs: make(), batch, postponed: false }
    }

    /// Postpones a queued node of a future, as its owner does without the lock. False: it is no
    /// such node, or due later already.
    fn postpone(&mut self, i: usize, due: u64) -> bool {
        let at = later(self.now, due);
        let (ours, theirs) = (&self.ours[i], NonNull::from(&self.theirs[i]));
        let can = ours.kind() == Kind::Waker && ours.is_queued(self.queue.key()) && at != NEVER;
        if !(can && ours.postpone(at)) {
            return false;
        }
        // SAFETY: the nodes live as long as the queues; each is in at most one queue.
        unsafe {
            assert!(self.reference.unlink(theirs));
            theirs.as_ref().set_due(at, self.queue.key());
            self.reference.insert(theirs);
        }
        self.postponed = true;
        self.queue.check();
        true
    }

    /// Whether the node stayed where it was.
    fn arm(&mut self, i: usize, due: u64, period: u64) -> bool {
        let due = later(self.now, due);
        let (ours, theirs) = (NonNull::from(&self.ours[i]), NonNull::from(&self.theirs[i]));
        // SAFETY: the nodes live as long as the queues; each is in at most one queue.
        let stayed = unsafe {
            let stayed = self.queue.reschedule_lazily(ours, due).is_some();
            let unlinked = stayed || self.queue.unlink(ours);
            assert_eq!(unlinked, self.reference.unlink(theirs));
            for node in [ours, theirs] {
                node.as_ref().set_due(due, self.queue.key());
                node.as_ref().set_period(super::Period::from_ns(period), self.queue.key());
            }
            if due != NEVER {
                if !stayed {
                    self.queue.advance(self.now);
                    self.queue.insert(ours);
                }
                self.reference.insert(theirs);
            }
            stayed
        };
        self.queue.check();
        stayed
    }

    /// Inserts a node into both queues, without checks.
    #[allow(unsafe_code)] // inserts nodes
    fn arm_unchecked(&mut self, i: usize, due: u64) {
        for node in [&self.ours[i], &self.theirs[i]] {
            node.set_due(later(self.now, due), self.queue.key());
        }
        // SAFETY: the nodes live as long as the queues; each is in at most one queue.
        unsafe {
            self.queue.insert(NonNull::from(&self.ours[i]));
            self.reference.insert(NonNull::from(&self.theirs[i]));
        }
    }

    /// Moves a node, or inserts an idle one, without checks.
    #[allow(unsafe_code)] // inserts nodes
    fn arm_unchecked_later(&mut self, i: usize, due: u64) {
        let at = later(self.now, due);
        let (ours, theirs) = (NonNull::from(&self.ours[i]), NonNull::from(&self.theirs[i]));
        // SAFETY: the nodes live as long as the queues; each is in at most one queue.
        unsafe {
            if !self.reference.unlink(theirs) {
                return self.arm_unchecked(i, due);
            }
            assert!(self.queue.reschedule_lazily(ours, at).is_some(), "it stays");
            theirs.as_ref().set_due(at, self.queue.key());
            self.reference.insert(theirs);
        }
    }

    fn disarm(&mut self, i: usize) {
        // SAFETY: the nodes live as long as the queues; each is in at most one queue.
        unsafe {
            let ours = self.queue.unlink(NonNull::from(&self.ours[i]));
            assert_eq!(ours, self.reference.unlink(NonNull::from(&self.theirs[i])));
        }
        self.queue.check();
    }

    /// An emitted node: inserts it for its next tick. Returns its number and due point.
    fn fire(&mut self, node: NonNull<Node<usize>>) -> (usize, u64) {
        // SAFETY: the nodes are alive; this node was emitted and is inserted again at most once.
        unsafe {
            let (shared, key) = (node.as_ref(), self.queue.key());
            let schedule = shared.schedule(key);
            assert!(shared.fires_at(key) <= self.now, "never early");
            let next = next_tick(shared.tick_policy().policy(), schedule, self.now).next;
            if next != NEVER {
                shared.set_due(next, key);
                self.queue.insert(node);
            }
            (*shared.extra(), schedule.due)
        }
    }

    /// A lock section of a sweep, which perhaps stops in the middle.
    fn section(&mut self, mut work: usize) {
        loop {
            match self.queue.next_due(self.now, &mut work) {
                Next::Due(node) => {
                    let (i, due) = self.fire(node);
                    let theirs = NonNull::from(&self.theirs[i]);
                    // SAFETY: the nodes live as long as the queues; each is in at most one queue.
                    unsafe {
                        assert!(self.reference.unlink(theirs));
                        assert_eq!(theirs.as_ref().due(self.queue.key()), due);
                        if node.as_ref().is_queued(self.queue.key()) {
                            theirs.as_ref().set_due(node.as_ref().due(self.queue.key()), self.queue.key());
                            self.reference.insert(theirs);
                        }
                    }
                }
                Next::Nothing => {
                    assert!(self.earliest() > self.now, "nothing due is left");
                    let _ = self.queue.look_ahead(&mut work);
                    assert!(self.queue.next_deadline() <= self.earliest());
                    break;
                }
                Next::Exhausted => {
                    self.queue.cascade_ahead(self.now, self.batch);
                    break;
                }
            }
            self.queue.check();
        }
        self.queue.check();
    }

    /// Sweeps both at `now`; the firings as (node, due point), sorted.
    fn sweep(&mut self) -> Vec<(usize, u64)> {
        let mut fired = Vec::new();
        loop {
            let mut work = self.batch;
            loop {
                match self.queue.next_due(self.now, &mut work) {
                    Next::Due(node) => {
                        fired.push(self.fire(node));
                    }
                    Next::Nothing if fired.is_empty() && !self.queue.look_ahead(&mut work) => break,
                    Next::Nothing => {
                        self.queue.check();
                        fired.sort_unstable();
                        self.check_reference(&fired);
                        return fired;
                    }
                    Next::Exhausted => {
                        self.queue.cascade_ahead(self.now, self.batch);
                        break;
                    }
                }
            }
            self.queue.check();
        }
    }

    fn check_reference(&mut self, fired: &[(usize, u64)]) {
        let mut theirs = Vec::new();
        let mut due = Vec::new();
        let mut next;
        loop {
            next = self.reference.sweep(self.now, &mut due);
            if due.is_empty() {
                break;
            }
            for node in due.drain(..) {
                // SAFETY: the nodes live as long as the queues; each is in at most one queue.
                unsafe {
                    let shared = node.as_ref();
                    let key = self.queue.key();
                    let schedule = shared.schedule(key);
                    theirs.push((*shared.extra(), schedule.due));
                    let again = next_tick(shared.tick_policy().policy(), schedule, self.now).next;
                    if again != NEVER {
                        shared.set_due(again, key);
                        self.reference.insert(node);
                    }
                }
            }
        }
        theirs.sort_unstable();
        assert_eq!(fired, theirs, "same timers at the same due points");
        assert_eq!(self.queue.len(), self.reference.len());
        let earliest = self.earliest();
        let ours = self.queue.next_deadline();
        assert!(ours <= earliest, "the deadline {ours} is not after the earliest due point {earliest}");
        assert!(next <= earliest);
        assert_eq!(ours == NEVER, earliest == NEVER, "nothing pending, nothing to wake up for");
    }

    fn earliest(&self) -> u64 {
        let key = self.queue.key();
        self.theirs.iter().filter(|n| n.is_queued(key)).map(|n| n.fires_at(key)).min().unwrap_or(NEVER)
    }

    /// Goes from deadline to deadline up to `until`, as an alarm would.
    fn run_until(&mut self, until: u64) -> Vec<(usize, u64, u64)> {
        let mut all = Vec::new();
        let mut sweeps = 0;
        loop {
            let fired = self.sweep();
            all.extend(fired.into_iter().map(|(i, due)| (i, due, self.now)));
            let next = self.queue.next_deadline();
            assert!(next > self.now, "a swept queue asks for a later instant");
            if next > until {
                self.now = until;
                let last = self.sweep();
                assert!(last.is_empty());
                return all;
            }
            self.now = next;
            sweeps += 1;
            assert!(sweeps < 1_000_000, "deadlines make progress");
        }
    }
}

mod cases;
mod random;
