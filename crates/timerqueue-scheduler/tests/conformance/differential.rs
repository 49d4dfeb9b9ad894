//! Random programs on two stores: every answer, list and count must be the same.

use std::collections::HashMap;
use std::fmt::Debug;

use timerqueue_scheduler::store::{After, Claimed, ClaimedSchedule, Edit, Expiry, Keep, LastRun, Term};
use timerqueue_scheduler::{Catchup, History, HistoryQuery, RunEnd, Until};

use super::*;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % end
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Stores number their jobs as they like: the numbers of a store in the order in which they were
/// first seen.
#[derive(Default)]
struct Numbers(HashMap<u64, usize>);

impl Numbers {
    /// The value as text, with the numbers of jobs replaced.
    fn text(&mut self, value: &impl Debug) -> String {
        let text = format!("{value:?}");
        let mut parts = text.split("JobId(");
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (number, rest) = part.split_once(')').expect("a number in brackets");
            let next = self.0.len();
            let number = *self.0.entry(number.parse().expect("a number")).or_insert(next);
            out.push_str(&format!("job {number}{rest}"));
        }
        out
    }
}

/// Jobs and recurring jobs that were claimed, as each store gave them.
type Both<T> = Vec<[T; 2]>;

struct Twins<A: Rig, B: Rig> {
    a: Bench<A>,
    b: Bench<B>,
    numbers: [Numbers; 2],
    random: Random,
    second: i64,
    jobs: Both<ClaimedJob>,
    schedules: Both<ClaimedSchedule>,
    dead: Both<JobId>,
    program: Vec<String>,
    /// No schedules, and no instants of the next claim: a server ends looks by leases.
    jobs_alone: bool,
}

impl<A: Rig, B: Rig> Twins<A, B> {
    fn new(seed: u64, jobs_alone: bool) -> Self {
        Self {
            a: Bench::on(A::still()),
            b: Bench::on(B::still()),
            numbers: [Numbers::default(), Numbers::default()],
            random: Random(seed),
            second: 0,
            jobs: Vec::new(),
            schedules: Vec::new(),
            dead: Vec::new(),
            program: Vec::new(),
            jobs_alone,
        }
    }

    fn same(&mut self, what: &str, a: &impl Debug, b: &impl Debug) {
        let (a, b) = (self.numbers[0].text(a), self.numbers[1].text(b));
        self.program.push(what.to_owned());
        assert_eq!(a, b, "after\n{}", self.program.join("\n"));
    }

    fn apply(&mut self, what: &str, a: Op, b: Op) {
        let (a, b) = (self.a.one(a), self.b.one(b));
        self.same(what, &a, &b);
    }

    fn apply_to_both(&mut self, op: Op) {
        self.apply(&format!("{op:?}"), op.clone(), op);
    }

    fn key(&mut self) -> Arc<str> {
        format!("key {}", self.random.below(6)).into()
    }

    fn when(&mut self) -> When {
        let by = self.random.below(20);
        if self.random.chance(50) { When::After(secs(by)) } else { When::At(at((self.second + by as i64 - 5).max(0))) }
    }

    fn put(&mut self) {
        let (key, when) = (self.key(), self.when());
        let clash = [Clash::Refuse, Clash::Keep, Clash::Replace][self.random.below(3) as usize];
        let mut new = NewJob { clash, refuse_overdue: self.random.chance(10), ..new_job(&key, when) };
        if self.random.chance(30) {
            new.name = "other".into();
        }
        if self.random.chance(40) {
            new.priority = [-9, -1, 1, 5][self.random.below(4) as usize];
        }
        if self.random.chance(20) {
            new.expires = Some(Expiry::AfterDue(secs(self.random.below(15))));
        }
        new.terms.at_most_once = self.random.chance(15);
        new.terms.attempts = self.random.chance(15).then_some(2);
        new.terms.unique_for = if self.random.chance(15) { Some(secs(self.random.below(9))) } else { None };
        if self.random.chance(30) {
            let keys = (0..1 + self.random.below(2)).map(|_| self.key()).collect();
            let until = [Until::AllDone, Until::AllDoneOrDead, Until::AllEnded, Until::AnyDead];
            new.after = Some(Box::new(After { keys, until: until[self.random.below(4) as usize] }));
        }
        if !self.jobs_alone && self.random.chance(25) {
            let overlap = [Overlap::Skip, Overlap::QueueOne, Overlap::Allow][self.random.below(3) as usize];
            let schedule = Schedule::every(secs(10)).build().unwrap();
            new.recurrence = Some(Box::new(Recurrence { schedule, catchup: Catchup::default(), grace: None, overlap }));
            let first = self.second + self.random.below(15) as i64;
            (new.when, new.first) = (When::At(at(first)), Some(occurrence(first)));
        }
        self.apply_to_both(Op::Put(Box::new(new)));
    }

    fn change(&mut self) {
        let key = self.key();
        let mutation = match self.random.below(7) {
            5 | 6 => {
                let payload = self.random.chance(50).then(|| format!("{}", self.random.below(9)).into());
                let priority = self.random.chance(50).then(|| [-9, 0, 0, 4][self.random.below(4) as usize]);
                let when = self.random.chance(30).then(|| self.when());
                let expires = self.random.chance(20).then(|| Some(Expiry::AfterDue(secs(self.random.below(15)))));
                let expires = if self.random.chance(10) { Some(None) } else { expires };
                let terms = match self.random.below(6) {
                    0 => vec![Term::AtMostOnce(self.random.chance(50)), Term::Attempts(None)],
                    1 => vec![Term::UniqueFor(Some(secs(self.random.below(9)))), Term::Attempts(Some(2))],
                    _ => Vec::new(),
                };
                Mutation::Edit(Box::new(Edit { payload, priority, when, expires, terms }))
            }
            0 => Mutation::Cancel,
            1 => Mutation::Move(self.when()),
            2 => Mutation::RunNow,
            3 => Mutation::Pause,
            _ => Mutation::Resume,
        };
        self.apply_to_both(Op::Key { key, mutation });
    }

    fn claim(&mut self) {
        let owner = 1 + self.random.below(2);
        let places = self.random.below(4) as usize;
        let rooms: &[(&str, usize)] =
            if self.random.chance(30) { &[("h", places)] } else { &[("h", places), ("other", 2)] };
        let at_most = 1 + self.random.below(4) as usize;
        let (mut a, mut b) = (self.a.claim_as(owner, rooms, at_most), self.b.claim_as(owner, rooms, at_most));
        // The identity of a run has a random part.
        let without_runs = |claimed: &mut Claimed| claimed.jobs.iter_mut().for_each(|job| job.run = "".into());
        without_runs(&mut a);
        without_runs(&mut b);
        // A store may tell one of several claimers to look a little later.
        let apart = |at: Option<Micros>, than: Option<Micros>| {
            let late = at.zip(than).map(|(at, than)| at.since(than).max(than.since(at)));
            if late.is_some_and(|late| late <= B::APART) { than } else { at }
        };
        (b.next_job, b.next_schedule) = (apart(b.next_job, a.next_job), apart(b.next_schedule, a.next_schedule));
        if self.jobs_alone {
            (a.next_job, a.next_schedule, b.next_job, b.next_schedule) = (None, None, None, None);
        }
        self.same(&format!("claim {owner} {rooms:?} {at_most}"), &a, &b);
        self.jobs.extend(a.jobs.into_iter().zip(b.jobs).map(|(a, b)| [a, b]));
        self.schedules.extend(a.schedules.into_iter().zip(b.schedules).map(|(a, b)| [a, b]));
    }

    /// The end of a run; now and then of one that has ended.
    fn settle(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let index = self.random.below(self.jobs.len() as u64) as usize;
        let [a, b] = if self.random.chance(85) { self.jobs.swap_remove(index) } else { self.jobs[index].clone() };
        let keys = secs(10 * self.random.below(2));
        let history = History::new(secs(100_000)).rows(3).keys(keys);
        let keep = Keep { history, node: Some("n".into()), result: None };
        let verdict = match self.random.below(8) {
            0 => Verdict::Done,
            1 | 7 => Verdict::Kept(Box::new(keep)),
            2 => Verdict::Again(self.when()),
            3 => Verdict::Retry(secs(self.random.below(10))),
            4 => Verdict::Dead,
            5 => Verdict::Unbegun(secs(self.random.below(10))),
            _ => Verdict::Unrun,
        };
        // A run that is done by a transaction of the user's has a record.
        let is_done = B::JOINS && matches!(verdict, Verdict::Done | Verdict::Kept(_));
        let now = at(self.second).to_system();
        let op = |job: &ClaimedJob| {
            let mut record = LastRun::new(job.due.to_system(), now, RunEnd::Done);
            record.nominal = job.nominal.map(|at| at.to_system());
            record.attempt = job.attempt + u32::from(job.expired || job.cut_off || job.blocked); // its claim counts one
            let record = is_done.then(|| Box::new(record));
            Op::Settle(Box::new(Settle { held: job.held, verdict: verdict.clone(), record }))
        };
        let (a_op, b_op) = (op(&a), op(&b));
        if matches!(verdict, Verdict::Dead) {
            self.dead.push([a.held.id, b.held.id]);
        }
        self.apply(&format!("settle {:?} {verdict:?}", a.held), a_op, b_op);
    }

    /// A look at a recurring job; now and then at one that has been looked at.
    fn advance(&mut self) {
        if self.schedules.is_empty() {
            return;
        }
        let index = self.random.below(self.schedules.len() as u64) as usize;
        let rows =
            if self.random.chance(85) { self.schedules.swap_remove(index) } else { self.schedules[index].clone() };
        let Some(next) = rows[0].next else { return };
        let ends = self.random.chance(10);
        let then = Micros::ceil(next.nominal.to_system() + secs(10)).unwrap();
        let then = Occurrence { nominal: then, due: then };
        let [a, b] = rows.map(|row| {
            let step = if ends { Step::Ended } else { Step::At { next: then, span: None } };
            let (last, runs) = (Some(next.nominal), vec![next]);
            Op::Advance(Box::new(Advance { id: row.id, version: row.version, step, last, runs, missed: 0 }))
        });
        self.apply(&format!("advance to {next:?}, ends: {ends}"), a, b);
    }

    fn dead(&mut self) {
        if self.dead.is_empty() {
            return;
        }
        let index = self.random.below(self.dead.len() as u64) as usize;
        let [a, b] = self.dead.swap_remove(index);
        let (what, [a, b]) = if self.random.chance(60) {
            ("revive", [Op::Revive(a), Op::Revive(b)])
        } else if self.random.chance(20) {
            ("doubt", [Op::Doubt(a), Op::Doubt(b)])
        } else {
            ("discard", [Op::Discard(a), Op::Discard(b)])
        };
        self.apply(what, a, b);
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..6 => self.put(),
            6..8 => self.change(),
            8..12 => self.claim(),
            12..15 => self.settle(),
            15..18 => self.advance(),
            18 => self.dead(),
            _ => {
                let paused = self.random.chance(40);
                self.apply_to_both(Op::PauseHandler { name: "other".into(), paused });
            }
        }
        if self.random.chance(25) {
            // Now and then back.
            let by = self.random.below(9) as i64 - if self.random.chance(10) { 12 } else { 0 };
            self.second = (self.second + by).max(0);
            self.a.clock(self.second);
            self.b.clock(self.second);
            self.program.push(format!("clock {}", self.second));
        }
        let lists = (self.a.list(Query::new()), self.b.list(Query::new()));
        self.same("list", &lists.0, &lists.1);
        let key = self.key();
        let jobs = (self.a.get(&key), self.b.get(&key));
        self.same("get", &jobs.0, &jobs.1);
        let past = (self.a.past(HistoryQuery::new()), self.b.past(HistoryQuery::new()));
        self.same("history", &past.0, &past.1);
        let counts = (self.a.counts(), self.b.counts());
        self.same("counts", &counts.0, &counts.1);
    }
}

pub(crate) fn random_programs<A: Rig, B: Rig>(seeds: std::ops::Range<u64>, steps: usize) {
    run::<A, B>(seeds, steps, false);
}

/// Without schedules.
#[cfg(all(feature = "postgres", unix))]
pub(crate) fn random_jobs<A: Rig, B: Rig>(seeds: std::ops::Range<u64>, steps: usize) {
    run::<A, B>(seeds, steps, true);
}

fn run<A: Rig, B: Rig>(seeds: std::ops::Range<u64>, steps: usize, jobs_alone: bool) {
    for seed in seeds {
        let mut twins = Twins::<A, B>::new(seed, jobs_alone);
        twins.program.push(format!("seed {seed}"));
        for _ in 0..steps {
            twins.step();
        }
    }
}
