//! The world: virtual time, the network and the faults.
//!
//! Ground rules. One thread. Events have an instant and a number, and are handled in this order; a
//! node's timers fire at their own instants. All random numbers come from the seed, so a seed is a
//! history. A safety look comes between once and twice its setting after the one before.

use std::collections::BTreeMap;

use super::ledger::Ledger;
use super::node::{Asked, Node, Said, Slot};
use super::plan::{CALM, Fault, PATIENCE, PROGRAM, Plan, Random, SAFETY, millis, secs};
use super::port::{Answer, Back, Wire};
use super::server::Server;
use super::{Break, Origin};
use crate::Error;
use crate::store::{Fault as StoreFault, Micros, Notice, Op, Settle, Verdict};

/// More events than any history has, unless something asks again and again.
const MOST_EVENTS: u64 = 400_000;
/// How long the runs of a job may take: four turns of four attempts, each up to 95 s long, and late
/// by two safety looks after a wait of up to 20 s.
const MOST_RUNS: u64 = secs(16 * (95 + 2 * SAFETY.as_secs() + 20));

pub(super) enum Event {
    Fault(Fault),
    User,
    Restart(usize),
    Continue(usize),
    Arrive {
        from: Origin,
        id: u64,
        wire: Wire,
    },
    Answer {
        to: Origin,
        id: u64,
        answer: Result<Answer, Error>,
        notices: Vec<Notice>,
    },
    TimeOut {
        of: Origin,
        id: u64,
    },
    Notice {
        to: Origin,
        notice: Notice,
    },
    Renew(Origin),
    Look(Origin),
    EndRun {
        of: Origin,
        slot: Slot,
    },
    Probe(u64),
    CancelAll,
    /// A job ends its process.
    Dies(Origin),
}

/// Until when a node is in trouble.
#[derive(Clone, Copy, Default)]
pub(super) struct Trouble {
    up: u64,
    down: u64,
    flaky: u64,
    slow: u64,
}

pub(super) struct World {
    pub(super) now: u64,
    pub(super) random: Random,
    pub(super) plan: Plan,
    pub(super) server: Server,
    pub(super) ledger: Ledger,
    pub(super) nodes: Vec<Node>,
    trouble: Vec<Trouble>,
    events: BTreeMap<(u64, u64), Event>,
    number: u64,
    handled: u64,
    down_until: u64,
    deaf_until: u64,
    /// Until when each node sleeps, as the server knows.
    sleeps: BTreeMap<Origin, Micros>,
    /// Answers that were lost on the way, which the server tells on demand.
    lost: BTreeMap<(Origin, u64), (Answer, Vec<Notice>)>,
    pub(super) broken: Option<Break>,
    pub(super) jobs: u64,
    pub(super) probes: Vec<(u64, u64)>,
}

impl World {
    pub(super) fn new(seed: u64, broken: Option<Break>) -> Self {
        let plan = Plan::new(seed);
        let mut ledger = Ledger::default();
        ledger.steps = plan.steps();
        let mut world = Self {
            now: 0,
            random: Random::new(!seed),
            server: Server::new(broken),
            ledger,
            nodes: Vec::new(),
            trouble: vec![Trouble::default(); plan.nodes],
            events: BTreeMap::new(),
            number: 0,
            handled: 0,
            down_until: 0,
            deaf_until: 0,
            sleeps: BTreeMap::new(),
            lost: BTreeMap::new(),
            broken,
            jobs: 0,
            probes: Vec::new(),
            plan,
        };
        for at in 0..world.plan.nodes {
            let node = world.new_node((at, 0));
            world.nodes.push(node);
        }
        for (at, fault) in world.plan.faults.clone() {
            world.at(at, Event::Fault(fault));
        }
        world.at(0, Event::User);
        for n in 0..3 {
            world.at(CALM + secs(n * 7), Event::Probe(n));
        }
        world.at(CALM + secs(60), Event::CancelAll);
        world
    }

    fn new_node(&mut self, origin: Origin) -> Node {
        let wall = self.server_wall(self.plan.skews[origin.0]);
        let node = Node::start(origin, self.now, wall, self.plan.seed, origin.0 > 0);
        self.at(self.now, Event::Renew(origin));
        let look = self.spread(SAFETY);
        self.at(self.now + look, Event::Look(origin));
        node
    }

    fn server_wall(&self, ahead: i64) -> Micros {
        self.server.advance(self.now);
        Micros::new(self.server.now().as_i64() + ahead * 1_000_000)
    }

    fn spread(&mut self, time: std::time::Duration) -> u64 {
        let time = u64::try_from(time.as_nanos()).unwrap();
        self.random.between(time, 2 * time)
    }

    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.number += 1;
        self.events.insert((at.max(self.now), self.number), event);
    }

    /// Runs the history up to its end: as soon as no job is left, or when each has had all its
    /// runs.
    pub(super) fn run(&mut self) {
        let end = CALM + secs(260) + self.plan.back();
        loop {
            let event = self.events.first_key_value().map_or(u64::MAX, |((at, _), _)| *at);
            let timer = self.nodes.iter().filter_map(Node::next_due).min().unwrap_or(u64::MAX);
            let next = event.min(timer).max(self.now);
            if next > end + MOST_RUNS || (next > end && self.ledger.left().next().is_none()) {
                break;
            }
            self.handled += 1;
            if self.handled > MOST_EVENTS {
                return self.ledger.fault("the history does not come to rest".to_owned());
            }
            (self.now, self.ledger.now) = (next, next);
            if event <= next {
                let Some((_, event)) = self.events.pop_first() else { break };
                self.handle(event);
            } else {
                for n in 0..self.nodes.len() {
                    if self.nodes[n].next_due().is_some_and(|due| due <= next) {
                        self.serve(n);
                    }
                }
            }
        }
        self.judge();
    }

    fn handle(&mut self, event: Event) {
        let to = match &event {
            Event::Dies(of) => Some(*of),
            Event::Answer { to, .. } | Event::Notice { to, .. } => Some(*to),
            Event::TimeOut { of, .. } | Event::EndRun { of, .. } => Some(*of),
            Event::Renew(of) | Event::Look(of) => Some(*of),
            _ => None,
        };
        if let Some((n, epoch)) = to {
            let node = &mut self.nodes[n];
            if node.origin != (n, epoch) || node.scheduler.is_none() {
                return; // of a process that is gone
            }
            if node.stopped {
                return node.frozen.push(event);
            }
            // A timer that was due before fires before.
            node.advance(self.now);
        }
        match event {
            Event::Dies((node, _)) => {
                let lasts = self.random.between(0, secs(30));
                self.strike(Fault::Kill { node, lasts });
            }
            Event::Fault(fault) => self.strike(fault),
            Event::User => self.user(),
            Event::Probe(n) => self.probe(n),
            Event::CancelAll => self.cancel_all(),
            Event::Restart(n) => {
                let origin = (n, self.nodes[n].origin.1 + 1);
                self.nodes[n] = self.new_node(origin);
                self.serve(n);
            }
            Event::Continue(n) => self.go_on(n),
            Event::Arrive { from, id, wire } => self.arrive(from, id, wire),
            Event::Answer { to, id, answer, notices } => self.answer(to, id, answer, notices),
            Event::TimeOut { of, id } => self.time_out(of, id),
            Event::Notice { to, notice } => {
                if self.trouble[to.0].down <= self.now && self.deaf_until <= self.now && self.down_until <= self.now {
                    self.nodes[to.0].port.tell(notice);
                    self.serve(to.0);
                }
            }
            Event::Renew(of) => self.renew(of),
            Event::Look(of) => {
                if self.broken != Some(Break::Look) {
                    self.nodes[of.0].port.tell(Notice::Wake { at: Micros::FIRST });
                }
                self.serve(of.0);
                let look = self.spread(SAFETY);
                self.at(self.now + look, Event::Look(of));
            }
            Event::EndRun { of, slot } => {
                *slot.lock() = true;
                self.serve(of.0);
            }
        }
    }

    fn strike(&mut self, fault: Fault) {
        if let Some((node, lasts)) = fault.disturbs() {
            self.ledger.disturbed.push((node, self.now, self.now.saturating_add(lasts)));
        }
        match fault {
            Fault::Cut { node, up, down, lasts } => {
                let trouble = &mut self.trouble[node];
                trouble.up = trouble.up.max(if up { self.now + lasts } else { 0 });
                trouble.down = trouble.down.max(if down { self.now + lasts } else { 0 });
            }
            Fault::Flaky { node, lasts } => self.trouble[node].flaky = self.now + lasts,
            Fault::Slow { node, lasts } => self.trouble[node].slow = self.now + lasts,
            Fault::Stop { node, lasts } => {
                if !self.nodes[node].stopped && self.nodes[node].scheduler.is_some() {
                    self.nodes[node].stopped = true;
                    self.at(self.now + lasts, Event::Continue(node));
                }
            }
            Fault::Kill { node, lasts } => {
                if self.nodes[node].scheduler.is_some() {
                    self.nodes[node].kill();
                    self.at(self.now + lasts, Event::Restart(node));
                }
            }
            Fault::NodeClock { node, by } => {
                self.serve(node);
                let clock = &self.nodes[node].clock;
                let step = std::time::Duration::from_secs(by.unsigned_abs());
                let wall = if by < 0 { clock.wall() - step } else { clock.wall() + step };
                clock.set_wall(wall);
                self.serve(node);
            }
            Fault::Down { lasts } => {
                self.down_until = self.down_until.max(self.now + lasts);
                self.sleeps.clear(); // a table that a crash empties
            }
            Fault::ServerClock { by } => {
                self.server.advance(self.now);
                self.server.set_clock(by);
            }
            Fault::Deaf { lasts } => self.deaf_until = self.deaf_until.max(self.now + lasts),
        }
    }

    fn go_on(&mut self, n: usize) {
        if !self.nodes[n].stopped {
            return; // killed meanwhile
        }
        self.nodes[n].resume(self.now);
        if self.random.percent(50) {
            self.serve(n); // timers first, or what has come from outside
        }
        for event in std::mem::take(&mut self.nodes[n].frozen) {
            self.handle(event);
        }
        self.serve(n);
    }

    /// A node acts, and its requests go out.
    pub(super) fn serve(&mut self, n: usize) {
        if self.nodes[n].scheduler.is_none() || self.nodes[n].stopped {
            return;
        }
        loop {
            self.nodes[n].advance(self.now);
            let (said, asked) = (std::mem::take(&mut *self.nodes[n].diary.lock()), self.nodes[n].port.take());
            let rests = said.is_empty() && asked.is_empty();
            said.into_iter().for_each(|said| self.note(n, said));
            for (id, wire, back) in asked {
                if matches!(wire, Wire::Apply(_) | Wire::Claim(_) | Wire::Settle(..)) {
                    self.nodes[n].queue.push_back((id, wire, back));
                } else {
                    self.ask(n, id, Asked { wire, back, is_write: false, waited: 0 });
                }
            }
            self.write(n);
            if rests && self.nodes[n].next_due().is_none_or(|due| due > self.now) {
                break;
            }
            self.handled += 1;
            if self.handled > MOST_EVENTS {
                return;
            }
        }
        let (origin, mut watches) = (self.nodes[n].origin, std::mem::take(&mut self.nodes[n].watches));
        watches.retain_mut(|(id, watch)| match watch() {
            Some(Ok(answer)) => {
                self.ledger.answered((origin, *id), answer);
                false
            }
            Some(Err(_)) => false,
            None => true,
        });
        self.nodes[n].watches.extend(watches);
    }

    fn note(&mut self, n: usize, said: Said) {
        let origin = self.nodes[n].origin;
        self.server.advance(self.now);
        match said {
            Said::Began { run, attempt, due } => self.ledger.began(origin, &run, attempt, due, self.server.now()),
            Said::Ended { run, attempt, said } => self.ledger.ended(origin, &run, attempt, said),
            Said::Dies { lasts } => self.at(self.now + lasts, Event::Dies(origin)),
            Said::Holds { slot, lasts } => self.at(self.now + lasts, Event::EndRun { of: origin, slot }),
        }
    }

    /// The next write of a node goes out, if none is under way.
    fn write(&mut self, n: usize) {
        if self.nodes[n].writing {
            return;
        }
        if let Some((id, wire, back)) = self.nodes[n].queue.pop_front() {
            self.nodes[n].writing = true;
            self.ask(n, id, Asked { wire, back, is_write: true, waited: 0 });
        }
    }

    fn delay(&mut self, n: usize) -> u64 {
        if self.trouble[n].slow > self.now {
            return self.random.between(millis(1), secs(8));
        }
        self.random.between(100_000, millis(5))
    }

    fn ask(&mut self, n: usize, id: u64, asked: Asked) {
        let (from, delay) = (self.nodes[n].origin, self.delay(n));
        if self.trouble[n].up <= self.now {
            self.at(self.now + delay, Event::Arrive { from, id, wire: asked.wire.clone() });
        }
        let patience = u64::try_from(PATIENCE.as_nanos()).unwrap();
        self.at(self.now + patience, Event::TimeOut { of: from, id });
        self.nodes[n].asked.insert(id, asked);
    }

    fn arrive(&mut self, from: Origin, id: u64, wire: Wire) {
        if self.trouble[from.0].up > self.now || self.down_until > self.now {
            return;
        }
        let flaky = self.trouble[from.0].flaky > self.now;
        let delay = self.delay(from.0);
        if flaky && self.random.percent(20) {
            let answer = Err(refused());
            return self.at(self.now + delay, Event::Answer { to: from, id, answer, notices: Vec::new() });
        }
        self.server.advance(self.now);
        let owner = if let Wire::Claim(claim) = &wire { Some((from, claim.rooms.is_empty())) } else { None };
        let Some(entry) = self.nodes[from.0].port.entry().filter(|_| self.nodes[from.0].origin == from) else { return };
        let (answer, notices) = self.server.serve(&mut self.ledger, (from, id), &entry, wire);
        if let (Answer::Claimed(claimed, _), Some((from, false))) = (&answer, owner) {
            let next = [claimed.next_job, claimed.next_schedule].into_iter().flatten().min();
            self.sleeps.insert(from, next.unwrap_or(Micros::LAST));
        }
        self.tell_others(from, &notices);
        if flaky && self.random.percent(20) {
            self.lost.insert((from, id), (answer, notices));
        } else {
            self.at(self.now + delay, Event::Answer { to: from, id, answer: Ok(answer), notices });
        }
    }

    /// Notices go to nodes that sleep longer, and some are lost.
    fn tell_others(&mut self, from: Origin, notices: &[Notice]) {
        for &notice in notices {
            for n in 0..self.nodes.len() {
                let to = self.nodes[n].origin;
                let sleeps = self.sleeps.get(&to).copied();
                let wants = match notice {
                    Notice::Wake { at } => sleeps.is_some_and(|sleeps| sleeps > at),
                    _ => true,
                };
                if to != from && wants && !self.random.percent(self.plan.loss) {
                    let delay = self.delay(n);
                    self.at(self.now + delay, Event::Notice { to, notice });
                }
            }
        }
    }

    fn answer(&mut self, to: Origin, id: u64, answer: Result<Answer, Error>, notices: Vec<Notice>) {
        if self.trouble[to.0].down > self.now || self.down_until > self.now {
            if let Ok(answer) = answer {
                self.lost.insert((to, id), (answer, notices));
            }
            return;
        }
        self.give(to.0, id, answer, notices);
    }

    /// An answer has come, or none will.
    fn give(&mut self, n: usize, id: u64, answer: Result<Answer, Error>, notices: Vec<Notice>) {
        let Some(Asked { wire, back, is_write, .. }) = self.nodes[n].asked.remove(&id) else { return };
        let node = &mut self.nodes[n];
        match (&wire, &answer) {
            (Wire::Renew(_, held), answer) => self.renewed(n, held, answer),
            (_, Ok(Answer::Claimed(claimed, member))) => {
                node.held.extend(claimed.jobs.iter().map(|job| (job.held, *member)));
                node.see_clock(claimed.now);
            }
            (Wire::Settle(end, _), Ok(Answer::Settled(settled, member))) => {
                node.forget_settled(std::slice::from_ref(end));
                node.held.extend(settled.next.iter().filter_map(|job| Some((job.held, (*member)?))));
            }
            (Wire::Apply(ops), Ok(_)) => node.forget_settled(ops),
            (Wire::Apply(ops), Err(_)) if matches!(back, Back::Strays) => node.put_back(ops.clone()),
            // What a transaction has found is known before its commit is sent.
            (Wire::Claim(_) | Wire::Settle(..), Err(_)) => {
                let jobs = match self.lost.remove(&(node.origin, id)) {
                    Some((Answer::Claimed(claimed, _), _)) => claimed.jobs,
                    Some((Answer::Settled(settled, _), _)) => settled.next.into_iter().collect(),
                    _ => Vec::new(),
                };
                let unrun = |held| Op::Settle(Box::new(Settle { held, verdict: Verdict::Unrun, record: None }));
                node.put_back(jobs.into_iter().map(|job| unrun(job.held)).collect());
            }
            _ => {}
        }
        let node = &mut self.nodes[n];
        notices.into_iter().for_each(|notice| node.port.tell(notice));
        back.give(answer);
        if is_write {
            node.writing = false;
        }
        self.serve(n);
    }

    /// A node has waited for an answer. It asks the server whether the request was done; if the
    /// server does not answer, this is all that is known.
    fn time_out(&mut self, of: Origin, id: u64) {
        let (n, patience) = (of.0, u64::try_from(PATIENCE.as_nanos()).unwrap());
        let Some(asked) = self.nodes[n].asked.get_mut(&id) else { return };
        asked.waited += 1;
        let (waited, is_write) = (asked.waited, asked.is_write);
        let trouble = self.trouble[n];
        let is_cut = trouble.up.max(trouble.down).max(self.down_until) > self.now;
        if is_write && !is_cut && (trouble.flaky <= self.now || self.random.percent(50)) {
            if let Some((answer, notices)) = self.lost.remove(&(of, id)) {
                return self.give(n, id, Ok(answer), notices);
            }
        }
        if is_write && waited == 1 {
            return self.at(self.now + patience, Event::TimeOut { of, id });
        }
        self.give(n, id, Err(silence()), Vec::new());
    }

    /// No fault is left, but for lost notices.
    pub(super) fn calm(&mut self) {
        self.trouble.fill(Trouble::default());
        (self.down_until, self.deaf_until) = (0, u64::MAX);
    }

    /// The end: nothing is lost.
    fn judge(&mut self) {
        let left: Vec<String> = self.ledger.left().map(|(id, job)| format!("lost: {id:?} {job:?}")).collect();
        left.into_iter().for_each(|left| self.ledger.fault(left));
        self.server.store.check();
    }
}

fn refused() -> Error {
    Error::Store { fault: StoreFault::Locked, reason: "refused".into() }
}

fn silence() -> Error {
    Error::Store { fault: StoreFault::Io, reason: "the server does not answer".into() }
}

const _: () = assert!(PROGRAM < CALM);
