//! Random operations on a memory store: after each, the indexes agree with the rows.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use timerqueue::{ManualClock, Runtime};

use super::MemoryStore;
use crate::Schedule;
use crate::engine::mixed;
use crate::store::{
    Advance, Applied, Bind, Catchup, Claim, Claimed, ClaimedJob, ClaimedSchedule, Clash, Entry, EntryHandler, Limits,
    Micros, Mutation, NewJob, Occurrence, Op, Overlap, Rate, Recurrence, Reply, Room, Settle, Step, Store, Verdict,
    When,
};

struct Program {
    store: MemoryStore,
    clock: ManualClock,
    seed: u64,
    count: u32,
    jobs: Vec<ClaimedJob>,
    schedules: Vec<ClaimedSchedule>,
    ids: Vec<crate::JobId>,
}

impl Program {
    fn below(&mut self, end: u64) -> u64 {
        self.count += 1;
        mixed(self.seed, u64::from(self.count), 7) % end
    }

    fn now(&self) -> Micros {
        Micros::floor(self.clock.wall())
    }

    fn recurrence(&mut self) -> Box<Recurrence> {
        let schedule = match self.below(2) {
            0 => Schedule::every(Duration::from_secs(3)).build().unwrap(),
            _ => Schedule::fixed_delay(Duration::from_secs(3)).build().unwrap(),
        };
        let overlap = [Overlap::Skip, Overlap::QueueOne, Overlap::Allow][self.below(3) as usize];
        Box::new(Recurrence { schedule, catchup: Catchup::RunLast, grace: None, overlap })
    }

    fn occurrence(&mut self) -> Occurrence {
        let due = self.now().saturating_add(Duration::from_secs(self.below(5)));
        Occurrence { nominal: due, due }
    }

    fn op(&mut self) -> Op {
        let key = format!("k{}", self.below(6)).into();
        let name = ["a", "b"][self.below(2) as usize].into();
        let after = When::After(Duration::from_secs(self.below(6)));
        let span = [None, Some(Duration::from_secs(3))][self.below(2) as usize];
        match self.below(20) {
            0..=3 => {
                let clash = [Clash::Refuse, Clash::Keep, Clash::Replace, Clash::Update][self.below(4) as usize];
                let recurs = self.below(2) == 0;
                let (recurrence, first) = (recurs.then(|| self.recurrence()), recurs.then(|| self.occurrence()));
                let span = span.filter(|_| recurs);
                let payload = "1".into();
                Op::Put(Box::new(NewJob {
                    key,
                    name,
                    payload,
                    group: (self.below(3) == 0).then(|| format!("x{}", self.below(3)).into()),
                    priority: [0, 0, -2, 1][self.below(4) as usize],
                    trace: None,
                    after: None,
                    expires: None,
                    terms: Default::default(),
                    when: after,
                    recurrence,
                    first,
                    span,
                    clash,
                    refuse_overdue: false,
                }))
            }
            4..=9 => {
                let recurrence = self.recurrence();
                let mutations = [
                    Mutation::Cancel,
                    Mutation::Move(after),
                    Mutation::RunNow,
                    Mutation::Pause,
                    Mutation::Resume,
                    Mutation::Reschedule(recurrence),
                    Mutation::Look,
                    Mutation::Realign,
                ];
                let mutation = mutations[self.below(8) as usize].clone();
                Op::Key { key, mutation }
            }
            10 => Op::PauseHandler { name, paused: self.below(3) == 0 },
            11..=14 if !self.jobs.is_empty() => {
                let at = self.below(self.jobs.len() as u64) as usize;
                let job = self.jobs.swap_remove(at);
                self.ids.push(job.held.id);
                let wait = Duration::from_nanos(self.below(4_000_000_000));
                let verdicts = [
                    Verdict::Done,
                    Verdict::Again(after),
                    Verdict::Retry(wait),
                    Verdict::Unbegun(wait),
                    Verdict::Dead,
                    Verdict::Unrun,
                ];
                let verdict = verdicts[self.below(6) as usize].clone();
                Op::Settle(Box::new(Settle { held: job.held, verdict, record: None }))
            }
            15..=17 if !self.schedules.is_empty() => {
                let at = self.below(self.schedules.len() as u64) as usize;
                let row = self.schedules.swap_remove(at);
                self.ids.push(row.id);
                let runs: Vec<Occurrence> = (0..self.below(4)).map(|_| self.occurrence()).collect();
                let steps = [
                    Step::At { next: self.occurrence(), span },
                    Step::AfterRun,
                    Step::Ended,
                    Step::Failed("no".into()),
                ];
                let step = steps[self.below(4) as usize].clone();
                Op::Advance(Box::new(Advance {
                    id: row.id,
                    version: row.version,
                    step,
                    last: row.last,
                    runs,
                    missed: 0,
                }))
            }
            _ => {
                let ids = self.ids.len() as u64;
                let at = self.below(ids.max(1)) as usize;
                let id = self.ids.get(at).copied().unwrap_or(crate::JobId(1));
                if self.below(2) == 0 { Op::Revive(id) } else { Op::Discard(id) }
            }
        }
    }

    /// A scheduler comes, or comes back.
    fn enter(&mut self, owner: u64) {
        let some = |number: u64| (number > 0).then_some(number);
        let limits = Limits {
            everywhere: some(self.below(3)),
            group: some(self.below(3)),
            rate: some(self.below(2)).map(|_| Rate { runs: 3, per: Duration::from_secs(2) }),
        };
        let handler = |name: &str| EntryHandler { name: name.into(), parallel: 3, limits };
        let handlers = vec![handler("a"), handler("b")];
        self.store.enter(Arc::new(Entry { owner, name: "node".into(), handlers }));
    }

    fn claim(&mut self) {
        let rooms = ["a", "b"].map(|name| Room { name: name.into(), places: self.below(3) as usize });
        let (send, receive) = mpsc::channel();
        let reply = Reply::new(move |claimed| send.send(claimed).unwrap());
        let owner = 1 + self.below(2);
        match self.below(12) {
            0 => self.store.leave(owner),
            11 => self.store.end_member(owner),
            1..4 => self.enter(owner),
            _ => {}
        }
        self.store.claim(Claim { owner, rooms: rooms.to_vec(), at_most: 4 }, reply);
        let Claimed { jobs, schedules, now, unbound, .. } = receive.recv().unwrap().unwrap();
        for one in unbound {
            let (version, at) = (one.version, self.below(one.candidates.len() as u64) as usize);
            let bind = Bind { group: one.id, version, node: one.candidates[at].id };
            self.store.apply(vec![Op::Bind(bind)], Reply::new(|_| {}));
        }
        assert!(jobs.iter().all(|job| job.due <= now));
        self.jobs.extend(jobs);
        self.schedules.extend(schedules);
    }
}

#[test]
fn indexes_agree_with_the_rows_after_any_operations() {
    for seed in 0..60 {
        let clock = ManualClock::new();
        clock.set_wall(Micros::new(1_767_225_600_000_000).to_system());
        let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
        let store = MemoryStore::new(&runtime);
        let (jobs, schedules, ids) = (Vec::new(), Vec::new(), Vec::new());
        let mut program = Program { store, clock, seed, count: 0, jobs, schedules, ids };
        for _ in 0..250 {
            match program.below(8) {
                0 => program.clock.stall(Duration::from_millis(program.count.into())),
                1 => {
                    let by = Duration::from_millis(u64::from(program.count % 7_000));
                    program.clock.set_wall(program.clock.wall() - by);
                }
                2 => program.claim(),
                _ => {
                    let op = program.op();
                    program.store.apply(
                        vec![op],
                        Reply::new(|applied: Result<Vec<Applied>, _>| assert_eq!(applied.unwrap().len(), 1)),
                    );
                }
            }
            program.store.check();
        }
    }
}

#[test]
fn a_claim_looks_at_a_bounded_number_of_recurring_jobs_and_asks_for_another() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    clock.set_wall(Micros::new(1_767_225_600_000_000).to_system());
    let store = MemoryStore::new(&runtime);
    let now = Micros::floor(clock.wall());
    let second = Duration::from_secs(1);
    let op = |n: usize| {
        let recurrence = Recurrence {
            schedule: Schedule::every(second).build().unwrap(),
            catchup: Catchup::RunLast,
            grace: None,
            overlap: Overlap::Skip,
        };
        Op::Put(Box::new(NewJob {
            key: format!("k{n}").into(),
            name: ["a", "b"][usize::from(n >= 500)].into(),
            payload: "null".into(),
            group: None,
            priority: 0,
            trace: None,
            after: None,
            expires: None,
            terms: Default::default(),
            when: When::At(now),
            recurrence: Some(Box::new(recurrence)),
            // The jobs of the second handler have waited longer.
            first: Some(Occurrence { nominal: now, due: Micros::new(now.as_i64() - i64::from(n >= 500)) }),
            span: Some(second),
            clash: Clash::Refuse,
            refuse_overdue: false,
        }))
    };
    store.apply((0..1_000).map(op).collect(), Reply::new(|_| {}));
    let claim = || {
        let (send, receive) = mpsc::channel();
        let rooms = ["a", "b"].map(|name| Room { name: name.into(), places: 1 }).to_vec();
        let claim = Claim { owner: 1, rooms, at_most: 10 };
        store.claim(claim, Reply::new(move |claimed| send.send(claimed).unwrap()));
        store.check();
        receive.recv().unwrap().unwrap()
    };
    let looks: Vec<Claimed> = (0..4).map(|_| claim()).collect();
    assert_eq!(looks.iter().map(|claimed| claimed.schedules.len()).collect::<Vec<_>>(), [256, 256, 256, 232]);
    assert!(looks[0].next_schedule <= Some(now) && looks[3].next_schedule.is_none());
    // In a step back too.
    let later = Occurrence { nominal: now.saturating_add(second), due: now.saturating_add(second) };
    let rows = looks.into_iter().flat_map(|claimed| claimed.schedules);
    let step = || Step::At { next: later, span: Some(second) };
    let advance = |row: ClaimedSchedule| Advance {
        id: row.id,
        version: row.version,
        step: step(),
        last: None,
        runs: vec![],
        missed: 0,
    };
    store.apply(rows.map(|row| Op::Advance(Box::new(advance(row)))).collect(), Reply::new(|_| {}));
    clock.set_wall(clock.wall() - Duration::from_secs(100));
    let earlier = Micros::floor(clock.wall());
    let looks: Vec<Claimed> = (0..4).map(|_| claim()).collect();
    assert_eq!(looks.iter().map(|claimed| claimed.schedules.len()).collect::<Vec<_>>(), [256, 256, 256, 232]);
    assert!(looks[0].next_schedule <= Some(earlier) && looks[3].next_schedule.is_none());
}
