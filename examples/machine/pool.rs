//! The pool of a group: jobs and their queues, which thread is woken (`src/pool/sleep.rs`), and the
//! stall check (`src/pool/stall_check.rs`).
//!
//! Ground rules. Functions of the crate are modelled one by one, under their names. Three parts are
//! no model: the stall detector, the pace and the coalescing delay are compiled from the files that
//! ship.

use std::collections::{BTreeMap, VecDeque};

use crate::coalesce::Coalescer;
use crate::costs::Costs;
use crate::load::DuePoints;
use crate::pace::Pace;
use crate::stall::{Moment, Sample, StallDetector, StallRules};
use crate::worker::At;
use crate::world::{EpollSet, Plan, Report, WokenBy, World};
use crate::{STALL_CHECK, WORTH_WAKING_NS};

const STALL_CHECK_NS: u64 = STALL_CHECK.as_nanos() as u64;
// Constants of `src/pool/mod.rs`, `src/engine/shard.rs` and `src/alarm/timerfd.rs`.
const ROOM: usize = 64;
const MAX_THREADS: usize = 512;
/// A word of `searching` has the bit that is set while a thread searches, the number of the token,
/// and the searches before.
const TOKENS: u64 = 64;
pub(crate) const BATCH: usize = 40;
pub(crate) const EVENTS_AT_ONCE: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// A timer, or a job from outside, due at this instant.
    One(u64),
    Batch(usize),
    Sweep(usize),
}

/// A shared batch: the due points of its ticks.
pub(crate) struct Batch {
    pub(crate) ticks: Vec<u64>,
    pub(crate) next: usize,
    pub(crate) line: usize,
    /// Queues and threads that have the batch.
    pub(crate) holders: usize,
}

/// A queue of timers with its lock and its alarm.
pub(crate) struct Shard {
    pub(crate) group: usize,
    pub(crate) due: DuePoints,
    pub(crate) coalescer: Coalescer,
    pub(crate) line: usize,
    pub(crate) epoch: u64,
    /// The core that set the alarm: its interrupt comes there.
    pub(crate) armed_on: usize,
}

/// The threads that have demanded the stall check since it was armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Demanded {
    No,
    By(usize),
    ByMany,
}

/// What the threads of a group share.
pub(crate) struct Group {
    pub(crate) epoll: EpollSet,
    pub(crate) pollers: usize,
    pub(crate) pollers_line: usize,
    /// For each search token: odd while a thread searches, see [`TOKENS`]; and its line.
    pub(crate) searching: Vec<(u64, usize)>,
    pub(crate) parked: Vec<usize>,
    pub(crate) parked_line: usize,
    /// One inbox, or one for some cores each.
    pub(crate) inboxes: Vec<(VecDeque<Job>, usize)>,
    pub(crate) token_sent: Option<u64>,
    pub(crate) demanded: Demanded,
    pub(crate) demanded_line: usize,
    pub(crate) stall_epoch: u64,
    stall: StallDetector,
    searchers: Vec<u64>,
    pub(crate) growth: usize,
    pub(crate) workers: Vec<usize>,
    /// Asks other groups for help.
    pub(crate) asks: bool,
    /// Shared alarms: the points of the shards that have entered one.
    pub(crate) points: BTreeMap<usize, u64>,
    pub(crate) shared_line: usize,
    /// By neighbours, as [`Self::stall_epoch`].
    pub(crate) shared_epochs: BTreeMap<usize, u64>,
}

/// A thread, as `LocalQueue` has it.
pub(crate) struct Worker {
    pub(crate) group: usize,
    pub(crate) core: usize,
    pub(crate) at: At,
    pub(crate) deque: VecDeque<Job>,
    pub(crate) deque_line: usize,
    /// What the thread tells: its deque may have jobs.
    has_jobs: bool,
    has_jobs_line: usize,
    pub(crate) token: Option<u64>,
    pub(crate) searched: bool,
    pub(crate) pace: Pace,
    pub(crate) turn: bool,
    pub(crate) others_first: bool,
    pub(crate) scan: usize,
    /// Parts left of the batch that the thread runs.
    pub(crate) batched: usize,
    /// Twice the jobs; odd while a job runs.
    pub(crate) jobs: u64,
    pub(crate) first: Option<Job>,
    pub(crate) checks: bool,
    pub(crate) reports: Vec<Report>,
    pub(crate) rests_since: u64,
    pub(crate) rested: u64,
    /// The batch that the thread runs, and whether it has put the batch back.
    pub(crate) batch: Option<(usize, bool)>,
    /// The callback that runs, by its due point.
    pub(crate) callback: Option<u64>,
    /// The thread sleeps in a callback.
    pub(crate) sleeps: bool,
    pub(crate) after_long_rest: bool,
    pub(crate) submits: bool,
}

/// Outcome of `Sleep::notify`.
enum Notified {
    Covered,
    WakePoller(u64),
    AllBusy,
}

fn group_of(world: &mut World, plan: Plan) -> Group {
    let shares = |cores: usize| if cores > 0 { plan.group.div_ceil(cores) } else { 1 };
    let (inboxes, tokens) = (shares(plan.inbox), shares(plan.token));
    Group {
        epoll: EpollSet { line: world.line(), ..EpollSet::default() },
        pollers: 0,
        pollers_line: world.line(),
        searching: (0..tokens).map(|token| (2 * token as u64, world.line())).collect(),
        parked: Vec::new(),
        parked_line: world.line(),
        inboxes: (0..inboxes).map(|_| (VecDeque::new(), world.line())).collect(),
        token_sent: None,
        demanded: Demanded::No,
        demanded_line: world.line(),
        stall_epoch: 0,
        stall: StallDetector::new(StallRules::REAL),
        searchers: vec![0; tokens],
        growth: 0,
        workers: Vec::new(),
        asks: false,
        points: BTreeMap::new(),
        shared_line: world.line(),
        shared_epochs: BTreeMap::new(),
    }
}

impl World {
    /// Groups, shards and threads, before the first event.
    pub(crate) fn set_up(&mut self) {
        let plan = self.plan;
        for _ in 0..plan.cores.div_ceil(plan.group) {
            let group = group_of(self, plan);
            self.groups.push(group);
        }
        for core in 0..plan.cores {
            let due = DuePoints::new(&self.load, core, plan.cores);
            let (group, line) = (core / plan.group, self.line());
            self.shards.push(Shard { group, due, coalescer: Coalescer::new(), line, epoch: 0, armed_on: core });
            let first = self.shards[core].due.next;
            if first < u64::MAX {
                self.set_alarm(core, first);
            }
        }
        self.spent = 0;
        let submitters = self.load.submitters.0;
        for group in 0..self.groups.len() {
            let cores = plan.group.min(plan.cores - group * plan.group);
            for place in 0..=cores {
                self.add_worker(group, group * plan.group + place % cores, false);
            }
        }
        for core in 0..submitters {
            let core = core * plan.cores / submitters;
            self.add_worker(core / plan.group, core, true);
        }
    }

    /// A thread that begins to run at once.
    fn add_worker(&mut self, group: usize, core: usize, submits: bool) -> usize {
        let at = if submits { At::Submit } else { At::Start };
        let (deque_line, has_jobs_line) = (self.line(), self.line());
        let now = self.now();
        self.workers.push(Worker {
            group,
            core,
            at,
            deque: VecDeque::new(),
            deque_line,
            has_jobs: false,
            has_jobs_line,
            token: None,
            searched: false,
            pace: Pace::new(now, 2),
            turn: false,
            others_first: false,
            scan: 0,
            batched: 0,
            jobs: 0,
            first: None,
            checks: false,
            reports: Vec::new(),
            rests_since: now,
            rested: 0,
            batch: None,
            callback: None,
            sleeps: false,
            after_long_rest: false,
            submits,
        });
        let thread = self.workers.len() - 1;
        if !submits {
            self.groups[group].workers.push(thread);
        }
        self.ready_at(now, thread);
        thread
    }

    /// Threads of a group that has this many cores, if one is added while others are blocked.
    pub(crate) fn start_one_more(&mut self, group: usize, core: usize) {
        let full = self.groups[group].workers.len() >= MAX_THREADS / self.groups.len();
        if self.groups[group].growth == 0 || full {
            return;
        }
        self.groups[group].growth -= 1;
        let Costs { spawn: [cost, late], .. } = self.costs;
        self.pay(cost);
        let now = self.spent;
        self.spent += late;
        self.add_worker(group, core, false);
        self.spent = now;
    }

    pub(crate) fn inbox_of(&self, group: usize, core: usize) -> usize {
        (core / self.plan.inbox.max(1)) % self.groups[group].inboxes.len()
    }

    fn token_of(&self, group: usize, core: usize) -> usize {
        (core / self.plan.token.max(1)) % self.groups[group].searching.len()
    }

    pub(crate) fn inject(&mut self, group: usize, core: usize, job: Job) {
        let inbox = self.inbox_of(group, core);
        self.write(self.groups[group].inboxes[inbox].1, core);
        self.groups[group].inboxes[inbox].0.push_back(job);
    }

    fn has_injected(&mut self, group: usize, core: usize) -> bool {
        (0..self.groups[group].inboxes.len()).any(|inbox| {
            self.read(self.groups[group].inboxes[inbox].1, core);
            !self.groups[group].inboxes[inbox].0.is_empty()
        })
    }

    /// `Pool::has_work`: a look at the inboxes and at each deque.
    pub(crate) fn has_work(&mut self, group: usize, core: usize) -> bool {
        if self.has_injected(group, core) {
            return true;
        }
        for place in 0..self.groups[group].workers.len() {
            if self.has_jobs(self.groups[group].workers[place], core) {
                return true;
            }
        }
        false
    }

    /// `WorkerShared::has_jobs`: a look at a deque.
    pub(crate) fn has_jobs(&mut self, worker: usize, core: usize) -> bool {
        if self.plan.tells {
            let before = self.spent;
            self.read(self.workers[worker].has_jobs_line, core);
            self.spent = before + (self.spent - before).div_ceil(self.costs.at_a_time.max(1));
            if !self.workers[worker].has_jobs {
                return false;
            }
        }
        self.pay(self.costs.look);
        self.read(self.workers[worker].deque_line, core);
        !self.workers[worker].deque.is_empty()
    }

    /// The thread has put jobs into its deque, or has found it empty.
    pub(crate) fn tell(&mut self, thread: usize, has_jobs: bool) {
        let Worker { core, has_jobs: before, has_jobs_line, .. } = self.workers[thread];
        if self.plan.tells && before != has_jobs {
            self.write(has_jobs_line, core);
            self.workers[thread].has_jobs = has_jobs;
        }
    }

    /// Another group that asks for help.
    pub(crate) fn help_wanted(&mut self, group: usize, core: usize) -> Option<usize> {
        if !self.plan.help {
            return None;
        }
        self.read(self.help_line, core);
        if self.asking == 0 {
            return None;
        }
        let groups = self.groups.len();
        (1..groups).map(|step| (group + step) % groups).find(|&other| self.groups[other].asks)
    }

    /// All threads of a group are busy while jobs wait: a thread of the next group with a parked
    /// thread is woken. That thread wakes the next in its own group, as long as the group asks.
    fn ask_for_help(&mut self, group: usize, core: usize) {
        if !self.plan.help {
            return;
        }
        let groups = self.groups.len();
        for other in (1..groups).map(|step| (group + step) % groups) {
            self.read(self.groups[other].parked_line, core);
            if !self.groups[other].parked.is_empty() && self.groups[other].searching[0].0 % 2 == 0 {
                if !std::mem::replace(&mut self.groups[group].asks, true) {
                    self.asking += 1;
                    self.write(self.help_line, core);
                }
                let _ = self.notify_idle(other, core);
                return;
            }
        }
    }

    /// A thread of the group has no job: the group asks no more.
    pub(crate) fn end_help(&mut self, group: usize, core: usize) {
        if std::mem::take(&mut self.groups[group].asks) {
            self.asking -= 1;
            self.write(self.help_line, core);
        }
    }

    pub(crate) fn join_poll(&mut self, group: usize, core: usize) -> bool {
        self.write(self.groups[group].pollers_line, core);
        let most = self.plan.pollers.min(self.groups[group].workers.len());
        let joins = self.groups[group].pollers < most;
        self.groups[group].pollers += usize::from(joins);
        joins
    }

    pub(crate) fn leave_poll(&mut self, group: usize, core: usize) -> bool {
        self.write(self.groups[group].pollers_line, core);
        let leaves = self.groups[group].pollers > 1;
        self.groups[group].pollers -= usize::from(leaves);
        leaves
    }

    pub(crate) fn stop_searching(&mut self, group: usize, core: usize, token: u64) {
        let at = (token % TOKENS / 2) as usize;
        self.write(self.groups[group].searching[at].1, core);
        if self.groups[group].searching[at].0 == token {
            self.groups[group].searching[at].0 += TOKENS - 1;
        }
    }

    /// `Sleep::notify`.
    fn notify_idle(&mut self, group: usize, core: usize) -> Notified {
        self.read(self.groups[group].parked_line, core);
        // Only the first token is sent to pollers.
        let at = if self.groups[group].parked.is_empty() { 0 } else { self.token_of(group, core) };
        let (searching, line) = self.groups[group].searching[at];
        self.read(line, core);
        if searching % 2 == 1 {
            return Notified::Covered;
        }
        self.read(self.groups[group].pollers_line, core);
        if self.groups[group].parked.is_empty() && self.groups[group].pollers < 2 {
            return Notified::AllBusy;
        }
        self.write(line, core);
        let token = searching + 1;
        self.groups[group].searching[at].0 = token;
        self.write(self.groups[group].parked_line, core);
        if let Some(thread) = self.groups[group].parked.pop() {
            self.pay(self.costs.unpark);
            self.workers[thread].token = Some(token);
            self.wake(thread, WokenBy::Thread);
            return Notified::Covered;
        }
        Notified::WakePoller(token)
    }

    fn send_token(&mut self, group: usize, core: usize, token: u64) {
        self.groups[group].token_sent = Some(token);
        self.pay(self.costs.epoll_ctl);
        self.report(group, Report::Wake, core);
    }

    /// `Pool::notify`.
    pub(crate) fn notify(&mut self, group: usize, core: usize) {
        match self.notify_idle(group, core) {
            Notified::Covered => {}
            Notified::WakePoller(token) => self.send_token(group, core, token),
            Notified::AllBusy => self.ask_for_help(group, core),
        }
        self.demand_stall_check(group, core, Demanded::ByMany);
    }

    /// `Pool::share`: the jobs of a deque are about to run.
    pub(crate) fn share(&mut self, thread: usize) {
        let Worker { group, core, batched, .. } = self.workers[thread];
        let own = self.workers[thread].deque.len();
        let jobs = if own == 0 { 0 } else { own + batched } as u64;
        if jobs == 0 && !self.has_injected(group, core) {
            return;
        }
        if self.workers[thread].pace.job_ns().saturating_mul(jobs) > WORTH_WAKING_NS {
            self.notify(group, core);
        } else {
            self.demand_stall_check(group, core, Demanded::By(thread));
        }
    }

    pub(crate) fn demand_stall_check(&mut self, group: usize, core: usize, by: Demanded) {
        self.read(self.groups[group].demanded_line, core);
        let word = self.groups[group].demanded;
        if word == by || word == Demanded::ByMany {
            return;
        }
        self.write(self.groups[group].demanded_line, core);
        if word == Demanded::No {
            self.groups[group].demanded = by;
            self.set_stall_check(group, Some(STALL_CHECK_NS));
        } else {
            self.groups[group].demanded = Demanded::ByMany;
        }
    }

    pub(crate) fn cancel_stall_check(&mut self, thread: usize) {
        let Worker { group, core, rested, .. } = self.workers[thread];
        self.read(self.groups[group].demanded_line, core);
        if rested <= STALL_CHECK_NS || self.groups[group].demanded != Demanded::By(thread) {
            return;
        }
        self.write(self.groups[group].demanded_line, core);
        self.groups[group].demanded = Demanded::No;
        self.groups[group].stall.nothing_waits();
        self.set_stall_check(group, None);
    }

    pub(crate) fn stall_check_has_come(&mut self, group: usize, core: usize) {
        self.write(self.groups[group].demanded_line, core);
        self.groups[group].demanded = Demanded::No;
    }

    pub(crate) fn nothing_waits(&mut self, group: usize) {
        self.groups[group].stall.nothing_waits();
    }

    /// `Pool::look`: of the last poller, while jobs wait.
    pub(crate) fn look_for_stall(&mut self, thread: usize) {
        let Worker { group, core, .. } = self.workers[thread];
        for at in 0..self.groups[group].searching.len() {
            let (searching, line) = self.groups[group].searching[at];
            self.read(line, core);
            if std::mem::replace(&mut self.groups[group].searchers[at], searching) == searching && searching % 2 == 1 {
                self.stop_searching(group, core, searching);
            }
        }
        match self.notify_idle(group, core) {
            Notified::WakePoller(token) => self.send_token(group, core, token),
            Notified::Covered => {}
            Notified::AllBusy => {
                self.ask_for_help(group, core);
                let threads = self.threads_to_add(thread);
                if threads > 0 {
                    self.groups[group].growth = threads;
                    self.start_one_more(group, core);
                }
            }
        }
        self.demand_stall_check(group, core, Demanded::ByMany);
    }

    fn threads_to_add(&mut self, thread: usize) -> usize {
        let Worker { group, core, .. } = self.workers[thread];
        let cores = self.plan.group;
        for place in 0..self.groups[group].workers.len() {
            let other = self.groups[group].workers[place];
            self.pay(self.costs.look); // the number of its job, by an exchange
            self.write(self.workers[other].deque_line, core);
        }
        let now_ns = self.now();
        let (workers, theirs) = (&self.workers, &mut self.groups[group]);
        let samples: Vec<Sample> = theirs
            .workers
            .iter()
            .filter(|&&other| other != thread)
            .enumerate()
            .map(|(place, &other)| (place, other))
            .map(|(_, other)| Sample { thread: other, job: workers[other].jobs })
            .collect();
        let busy = samples.iter().filter(|sample| sample.job % 2 == 1).count();
        let in_deques = |&other: &usize| match workers[other].deque.len() {
            0 => 0,
            jobs => jobs + workers[other].batched,
        };
        let injected: usize = theirs.inboxes.iter().map(|(jobs, _)| jobs.len()).sum();
        let moment = Moment {
            now_ns,
            waiting: injected + theirs.workers.iter().map(in_deques).sum::<usize>(),
            coming: theirs.workers.len().saturating_sub(busy + 1),
            target: cores,
        };
        theirs.stall.look(&samples, moment, |sample| Some(workers[sample.thread].sleeps))
    }

    /// Puts a job into the thread's own deque, or, if that is full, into an inbox.
    pub(crate) fn push_local(&mut self, thread: usize, job: Job) {
        let Worker { group, core, deque_line, .. } = self.workers[thread];
        if self.workers[thread].deque.len() < ROOM {
            self.write(deque_line, core);
            self.workers[thread].deque.push_back(job);
            self.tell(thread, true);
        } else {
            self.inject(group, core, job);
        }
    }
}
