//! The users of a history: puts, cancels, moves and schedules at any node, and the probes at its
//! end.

use std::time::Duration;

use super::ledger::Phase;
use super::node::{Watch, watch};
use super::plan::{CALM, PROGRAM, SAFETY, millis, secs};
use super::world::{Event, World};
use crate::Schedule;
use crate::scheduler::Scheduler;
use crate::store::{Applied, Catchup, Clash, Overlap};

/// How late a job may begin whose notice was lost: twice the safety look, and the way to the
/// server.
const LATEST: u64 = 2 * SAFETY.as_secs() * 1_000_000_000 + 1_000_000_000;

impl World {
    /// A node at which a user can act.
    fn some_node(&mut self) -> Option<usize> {
        let n = self.random.below(self.nodes.len() as u64) as usize;
        (self.nodes[n].scheduler.is_some() && !self.nodes[n].stopped).then_some(n)
    }

    pub(super) fn user(&mut self) {
        if self.now > PROGRAM {
            return;
        }
        let wait = self.random.between(millis(5), secs(5));
        self.at(self.now + wait, Event::User);
        let Some(n) = self.some_node() else { return };
        let key = format!("k{}", self.random.below(6));
        let recurring = format!("r{}", self.random.below(2));
        match self.random.below(100) {
            0..=54 => self.put(n, &key),
            55..=66 => self.with(n, |scheduler| watch(scheduler.cancel(&key), Applied::Cancel)),
            67..=76 => {
                let due = Duration::from_millis(self.random.below(60_000));
                self.with(n, |scheduler| watch(scheduler.move_to(&key, due), Applied::Change));
            }
            77..=80 => self.with(n, |scheduler| watch(scheduler.run_now(&key), Applied::Change)),
            81..=94 => self.put_schedule(n, &recurring),
            _ => self.with(n, |scheduler| watch(scheduler.cancel(&recurring), Applied::Cancel)),
        }
    }

    /// A user acts at a node, and waits for the answer.
    fn with(&mut self, n: usize, act: impl FnOnce(&Scheduler) -> Watch) {
        self.serve(n);
        let Some(scheduler) = &self.nodes[n].scheduler else { return };
        let watch = act(scheduler);
        let id = self.nodes[n].port.last();
        self.nodes[n].watches.push((id, watch));
        self.serve(n);
    }

    fn put(&mut self, n: usize, key: &str) {
        self.jobs += 1;
        let number = self.jobs;
        let due = match self.random.below(3) {
            0 => Duration::ZERO,
            1 => Duration::from_micros(self.random.below(5_000_000)),
            _ => Duration::from_micros(self.random.below(90_000_000)),
        };
        let (name, clash) = (self.random.pick(&["brief", "slow"]), self.clash());
        // Few, since each of them ends five processes.
        let is_poison = self.plan.poison && self.random.percent(3);
        let name = if is_poison { "poison" } else { name };
        let own = format!("u{number}");
        let key = if self.random.percent(50) { &own } else { key };
        // Few have to wait for a place, so many have a priority.
        let priority = [0, 2, -1, 0][number as usize % 4];
        self.with(n, |scheduler| {
            let put = scheduler.put_to(name, &number).key(key).due(due).clash(clash).priority(priority);
            let put = if number % 5 == 0 { put.at_most_once() } else { put };
            watch(put.send(), Applied::Placed)
        });
    }

    fn clash(&mut self) -> Clash {
        self.random.pick(&[Clash::Refuse, Clash::Keep, Clash::Replace])
    }

    fn put_schedule(&mut self, n: usize, key: &str) {
        self.jobs += 1;
        let number = self.jobs;
        let period = Duration::from_millis(self.random.between(3_000, 40_000));
        let schedule = if self.random.percent(80) { Schedule::every(period) } else { Schedule::fixed_delay(period) };
        let schedule = schedule.build().unwrap();
        let all = Catchup::RunAll { at_most: Catchup::MOST };
        let (catchup, overlap) = self.random.pick(&[
            (all, Overlap::Allow),
            (all, Overlap::Allow),
            (Catchup::RunLast, Overlap::Skip),
            (Catchup::RunAll { at_most: 3 }, Overlap::QueueOne),
            (Catchup::Skip, Overlap::Skip),
        ]);
        let (name, clash) = (self.random.pick(&["brief", "slow"]), self.clash());
        self.with(n, |scheduler| {
            let put = scheduler.put_to(name, &number).key(key).schedule(schedule).clash(clash);
            let put = if number % 3 == 0 { put.at_most_once() } else { put };
            watch(put.catchup(catchup).overlap(overlap).send(), Applied::Placed)
        });
    }

    /// A job that only a safety look finds: no notice arrives from now on.
    pub(super) fn probe(&mut self, n: u64) {
        self.calm();
        self.jobs += 1;
        let (number, key) = (self.jobs, format!("probe{n}"));
        let due = self.random.below(3_000);
        self.probes.push((number, self.now + millis(due)));
        self.with(0, |scheduler| {
            let put = scheduler.put_to("brief", &number).key(&key).due(Duration::from_millis(due));
            watch(put.send(), Applied::Placed)
        });
    }

    /// Recurring jobs have no end of their own. Before their cancel: the probes have run, and no
    /// interval stands still. Where jobs end their processes, nothing begins beside a suspect for
    /// a minute and more, and the end of the history alone tells that each job has run.
    pub(super) fn cancel_all(&mut self) {
        let probes = std::mem::take(&mut self.probes);
        if !self.plan.poison {
            self.look_at_probes(&probes);
            self.look_at_intervals();
        }
        for key in ["r0", "r1"] {
            self.with(0, |scheduler| watch(scheduler.cancel(key), Applied::Cancel));
        }
        assert!(self.now >= CALM);
    }

    fn look_at_probes(&mut self, probes: &[(u64, u64)]) {
        for &(number, due) in probes.iter().filter(|&(_, due)| due + LATEST <= self.now) {
            let waits = |job: &super::ledger::Job| job.number == number && job.never_ran();
            if self.ledger.jobs.values().any(waits) && self.plan.back() == 0 {
                self.ledger.fault(format!("probe {number} has not run, and was due at {due}"));
            }
        }
    }

    fn look_at_intervals(&mut self) {
        let now = self.server_now();
        let stands = |job: &&super::ledger::Job| {
            let period = job.complete.filter(|_| job.phase == Phase::Recurring && job.is_brief);
            let late = period.map(|period| period + 2 * i64::try_from(LATEST / 1_000).unwrap());
            late.is_some_and(|late| job.last_nominal.is_none_or(|last| last.as_i64() + late < now))
        };
        let standing: Vec<String> = self.ledger.jobs.values().filter(stands).map(|job| format!("{job:?}")).collect();
        standing.into_iter().for_each(|job| self.ledger.fault(format!("an interval stands still at {now}: {job}")));
    }

    fn server_now(&self) -> i64 {
        self.server.advance(self.now);
        self.server.now().as_i64()
    }
}
