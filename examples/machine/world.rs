//! The machine: time, cores, the scheduler of the system, shared lines, alarms and the epoll sets.
//!
//! Ground rules. One event at a time, in order of time, then of making; so a run depends on its
//! seed alone. A thread on a core takes *steps*: a step has its effect at once, and then its cost
//! passes before the thread's next step. A step that touches a line which another core is writing
//! waits for that core. Functions that act for a thread add to `spent`; `now()` includes it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::costs::{Costs, Line};
use crate::load::{Histogram, Load, Random};
use crate::pool::{Batch, Group, Shard, Worker};

/// The design that is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) cores: usize,
    /// Cores of a group: a group has its own epoll set, pollers, pool and tokens. The design that
    /// ships has one group.
    pub(crate) group: usize,
    /// `PoolConfig::max_pollers` of `src/pool`.
    pub(crate) pollers: usize,
    /// Jobs from outside go to a queue that so many cores share, the *inbox*; zero: to one inbox
    /// for each group.
    pub(crate) inbox: usize,
    /// So many cores have a search token of their own; zero: one token for each group.
    pub(crate) token: usize,
    /// A thread tells in a word of its own whether its deque has jobs; a look reads these words
    /// without fences. Else it looks into all deques.
    pub(crate) tells: bool,
    /// A group whose threads are all busy while jobs wait has a thread of another group help.
    pub(crate) help: bool,
    /// So many neighbouring shards may share an alarm: busy shards set their alarms to points of a
    /// grid, and one poller sweeps those of a point. 1: none do. In the design that ships, eight
    /// do.
    pub(crate) shared: usize,
    /// Cores that share a last-level cache.
    pub(crate) cache: usize,
}

impl Plan {
    /// The design that ships.
    pub(crate) fn ships(cores: usize) -> Self {
        Self { pollers: (1 + (cores + 1) / 32).max(3), tells: true, ..Self::before(cores) }
    }

    /// The design before: three pollers, a look into each deque.
    pub(crate) fn before(cores: usize) -> Self {
        let shared = cores.min(8);
        Self { cores, group: cores, pollers: 3, inbox: 0, token: 0, tells: false, help: false, shared, cache: 8 }
    }

    /// Groups of so many cores.
    pub(crate) fn groups(cores: usize, group: usize) -> Self {
        Self { cores, help: group < cores, ..Self::ships(group.min(cores)) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The alarm of a shard, of neighbours of a group, or of a group's stall check, if it was not
    /// set anew since.
    Alarm(usize, u64),
    SharedAlarm(usize, usize, u64),
    StallCheck(usize, u64),
    /// The thread on this core takes its next step.
    Step(usize),
    /// A thread that slept in a callback, or that is new, is ready.
    Ready(usize),
}

/// An event of an epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    Shard(usize),
    /// The alarm that some neighbours share.
    Shared(usize),
    Wake,
    StallCheck,
}

/// The kernel's part of a group: `src/alarm/timerfd.rs`.
#[derive(Debug, Default)]
pub(crate) struct EpollSet {
    pub(crate) ready: VecDeque<Report>,
    /// Threads that block in `epoll_wait`; the kernel wakes the one that came last.
    pub(crate) waiting: Vec<usize>,
    pub(crate) line: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WokenBy {
    Alarm,
    Thread,
}

/// What a thread does after a step.
pub(crate) enum Go {
    On,
    Blocks,
    /// Sleeps in a callback.
    Sleeps(u64),
}

#[derive(Clone, Debug)]
struct Core {
    runs: Option<usize>,
    rests_since: u64,
    /// When the running thread got the core.
    since: u64,
}

/// What a run has shown.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) late: Histogram,
    /// Lateness of timers whose callback does not sleep, and of jobs from outside.
    pub(crate) fired: u64,
    /// Time in which `fired` were counted.
    pub(crate) counted_ns: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) wakes: u64,
    pub(crate) sweeps: u64,
    pub(crate) threads: usize,
    pub(crate) last: u64,
}

impl Outcome {
    pub(crate) fn per_second(&self) -> f64 {
        self.fired as f64 * 1e9 / self.counted_ns as f64
    }

    pub(crate) fn cpu_each(&self) -> f64 {
        self.cpu_ns as f64 / self.fired.max(1) as f64
    }
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) load: Load,
    pub(crate) costs: Costs,
    pub(crate) random: Random,
    pub(crate) groups: Vec<Group>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) lines: Vec<Line>,
    pub(crate) batches: Vec<Batch>,
    pub(crate) free_batches: Vec<usize>,
    /// Groups that ask for help, and the line that all threads look at.
    pub(crate) help_line: usize,
    pub(crate) asking: usize,
    pub(crate) outcome: Outcome,
    pub(crate) spent: u64,
    time: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    made: u64,
    cores: Vec<Core>,
    ready: Vec<VecDeque<usize>>,
}

impl World {
    pub(crate) fn new(plan: Plan, load: Load, costs: Costs) -> Self {
        let late = Histogram::new();
        let outcome = Outcome { late, fired: 0, counted_ns: 1, cpu_ns: 0, wakes: 0, sweeps: 0, threads: 0, last: 0 };
        let core = Core { runs: None, rests_since: 0, since: 0 };
        let mut world = Self {
            plan,
            load,
            costs,
            random: Random::new(load.seed),
            groups: Vec::new(),
            shards: Vec::new(),
            workers: Vec::new(),
            lines: Vec::new(),
            batches: Vec::new(),
            free_batches: Vec::new(),
            help_line: 0,
            asking: 0,
            outcome,
            spent: 0,
            time: 0,
            events: BinaryHeap::new(),
            made: 0,
            cores: vec![core; plan.cores],
            ready: vec![VecDeque::new(); plan.cores.div_ceil(plan.group)],
        };
        world.help_line = world.line();
        world.set_up();
        world
    }

    /// A new shared line.
    pub(crate) fn line(&mut self) -> usize {
        self.lines.push(Line::default());
        self.lines.len() - 1
    }

    pub(crate) fn now(&self) -> u64 {
        self.time + self.spent
    }

    pub(crate) fn pay(&mut self, ns: u64) {
        self.spent += ns;
    }

    pub(crate) fn write(&mut self, line: usize, core: usize) {
        self.spent += self.lines[line].write(core, self.time + self.spent, self.plan.cache, &self.costs);
    }

    pub(crate) fn read(&mut self, line: usize, core: usize) {
        self.spent += self.lines[line].read(core, self.plan.cache, &self.costs);
    }

    /// The end of a lock section that began with `write`.
    pub(crate) fn unlock(&mut self, line: usize) {
        self.lines[line].free_at = self.now();
    }

    fn at(&mut self, time: u64, event: Event) {
        self.made += 1;
        self.events.push(Reverse((time, self.made, event)));
    }

    pub(crate) fn set_alarm(&mut self, shard: usize, at: u64) {
        self.pay(self.costs.set_alarm);
        let at = at.max(self.now());
        self.shards[shard].epoch += 1;
        self.at(at, Event::Alarm(shard, self.shards[shard].epoch));
    }

    /// Sets the alarm that some neighbours share.
    pub(crate) fn set_shared_alarm(&mut self, group: usize, neighbours: usize, at: u64) {
        self.pay(self.costs.set_alarm);
        let epoch = self.groups[group].shared_epochs.entry(neighbours).or_default();
        *epoch += 1;
        let event = Event::SharedAlarm(group, neighbours, *epoch);
        self.at(at.max(self.now()), event);
    }

    pub(crate) fn set_stall_check(&mut self, group: usize, after: Option<u64>) {
        self.pay(self.costs.set_alarm);
        self.groups[group].stall_epoch += 1;
        if let Some(after) = after {
            self.at(self.now() + after, Event::StallCheck(group, self.groups[group].stall_epoch));
        }
    }

    /// A thread is ready at this time.
    pub(crate) fn ready_at(&mut self, time: u64, thread: usize) {
        self.at(time, Event::Ready(thread));
    }

    /// An event for an epoll set, made by a thread or an interrupt on this core.
    pub(crate) fn report(&mut self, group: usize, report: Report, core: usize) {
        self.write(self.groups[group].epoll.line, core);
        let epoll = &mut self.groups[group].epoll;
        if !epoll.ready.contains(&report) {
            epoll.ready.push_back(report);
        }
        if let Some(thread) = epoll.waiting.pop() {
            self.wake(thread, if report == Report::Wake { WokenBy::Thread } else { WokenBy::Alarm });
        }
    }

    /// A core for a thread that becomes ready: its last, or one near it, or any.
    fn idle_core(&self, thread: usize) -> Option<usize> {
        let last = self.workers[thread].core;
        let domain = (last / self.plan.group) * self.plan.group;
        let end = (domain + self.plan.group).min(self.plan.cores);
        let near = (last / self.plan.cache) * self.plan.cache;
        let is_idle = |core: &usize| self.cores[*core].runs.is_none();
        if is_idle(&last) {
            return Some(last);
        }
        (near.max(domain)..(near + self.plan.cache).min(end)).find(is_idle).or_else(|| (domain..end).find(is_idle))
    }

    /// Makes a blocked thread ready.
    pub(crate) fn wake(&mut self, thread: usize, by: WokenBy) {
        self.outcome.wakes += 1;
        let Some(core) = self.idle_core(thread) else {
            let domain = self.workers[thread].core / self.plan.group;
            self.ready[domain].push_back(thread);
            return;
        };
        let rested = self.now().saturating_sub(self.cores[core].rests_since);
        let long = usize::from(rested > self.costs.long_rest);
        let late = if by == WokenBy::Alarm { self.costs.alarm_late } else { self.costs.unpark_late };
        self.workers[thread].after_long_rest = long == 1;
        let after = late[long];
        self.dispatch(core, thread, self.now() + after);
    }

    fn dispatch(&mut self, core: usize, thread: usize, at: u64) {
        self.cores[core].runs = Some(thread);
        self.cores[core].since = at;
        self.workers[thread].core = core;
        self.at(at, Event::Step(core));
    }

    /// The thread leaves its core to the next ready thread.
    fn release(&mut self, core: usize, at: u64) {
        if let Some(next) = self.ready[core / self.plan.group].pop_front() {
            self.workers[next].after_long_rest = false;
            self.dispatch(core, next, at + self.costs.switch);
        } else {
            self.cores[core].runs = None;
            self.cores[core].rests_since = at;
        }
    }

    /// Steps of the thread on a core, until another event comes first.
    fn step(&mut self, core: usize) {
        let Some(thread) = self.cores[core].runs else { return };
        loop {
            self.spent = 0;
            let go = self.go(thread);
            let spent = std::mem::take(&mut self.spent);
            self.outcome.cpu_ns += if self.counts() { spent } else { 0 };
            let then = self.time + spent;
            match go {
                Go::Blocks => return self.release(core, then),
                Go::Sleeps(ns) => {
                    self.at(then + ns, Event::Ready(thread));
                    return self.release(core, then);
                }
                Go::On => {}
            }
            if then > self.cores[core].since + self.costs.slice && !self.ready[core / self.plan.group].is_empty() {
                self.ready[core / self.plan.group].push_back(thread);
                return self.release(core, then);
            }
            if self.events.peek().is_some_and(|Reverse((at, ..))| *at <= then) {
                return self.at(then, Event::Step(core));
            }
            self.time = then;
        }
    }

    /// Whether the run is past its first fifth, in which the coalescing delays settle.
    pub(crate) fn counts(&self) -> bool {
        self.load.drain || self.time >= self.load.until / 5
    }

    fn happen(&mut self, event: Event) {
        self.spent = 0;
        match event {
            Event::Alarm(shard, epoch) if epoch == self.shards[shard].epoch => {
                self.report(self.shards[shard].group, Report::Shard(shard), self.shards[shard].armed_on);
            }
            Event::StallCheck(group, epoch) if epoch == self.groups[group].stall_epoch => {
                self.report(group, Report::StallCheck, group * self.plan.group);
            }
            Event::SharedAlarm(group, neighbours, epoch)
                if self.groups[group].shared_epochs.get(&neighbours) == Some(&epoch) =>
            {
                self.report(group, Report::Shared(neighbours), neighbours * self.plan.shared);
            }
            Event::Alarm(..) | Event::SharedAlarm(..) | Event::StallCheck(..) => {}
            Event::Step(core) => self.step(core),
            Event::Ready(thread) => self.wake(thread, WokenBy::Alarm),
        }
    }

    /// Runs the load to its end.
    pub(crate) fn run(mut self) -> Outcome {
        let from = if self.load.drain { 0 } else { self.load.until / 5 };
        let longest = if self.load.drain { self.load.until.saturating_add(30_000_000_000) } else { self.load.until };
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            let done =
                self.load.drain && self.shards.iter().all(|shard| shard.due.next == u64::MAX) && self.is_at_rest();
            if time > longest || done {
                break;
            }
            self.time = self.time.max(time);
            self.happen(event);
        }
        self.outcome.counted_ns = if self.load.drain { self.outcome.last } else { longest - from }.max(1);
        self.outcome.threads = self.workers.iter().filter(|worker| !worker.submits).count();
        self.outcome
    }

    fn is_at_rest(&self) -> bool {
        self.cores.iter().all(|core| core.runs.is_none())
            && self.workers.iter().all(|worker| worker.deque.is_empty() && worker.callback.is_none())
            && self.groups.iter().all(|group| group.inboxes.iter().all(|(jobs, _)| jobs.is_empty()))
    }

    /// A line for a new batch, and its place.
    pub(crate) fn new_batch(&mut self, ticks: Vec<u64>) -> usize {
        if let Some(at) = self.free_batches.pop() {
            let line = self.batches[at].line;
            self.batches[at] = Batch { ticks, next: 0, line, holders: 0 };
            return at;
        }
        let line = self.line();
        self.batches.push(Batch { ticks, next: 0, line, holders: 0 });
        self.batches.len() - 1
    }
}
