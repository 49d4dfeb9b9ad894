//! The life of a thread of the pool, step by step: `src/pool/worker.rs`, `src/pool/jobs.rs`, and
//! `Pool::next_job`.
//!
//! Ground rules. [`World::go`] is one step: it acts at once, pays for the action, and leaves in
//! `at` what the thread does next.

use crate::coalesce::Coalescer;
use crate::pool::{BATCH, Demanded, EVENTS_AT_ONCE, Job, Worker};
use crate::world::{Go, Report, World};

/// A deadline closer than this has the sweep read the clock again (`NEAR_NS`).
const NEAR_NS: u64 = 20_000;

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Start,
    /// Polls or parks.
    Rest,
    /// A poller looks for jobs once more.
    Wait,
    /// Calls `epoll_wait`.
    Epoll,
    /// Has been woken in `epoll_wait`.
    Woken,
    /// Has been unparked.
    Unparked,
    /// Sweeps the shard of its next event.
    Sweep,
    /// Leaves the pollers, or stays.
    Decide,
    NextJob,
    Run(Job),
    /// Takes a tick of its batch.
    Tick,
    /// A callback has returned.
    Returned,
    /// A thread outside of the pool submits a job.
    Submit,
}

impl World {
    pub(crate) fn go(&mut self, thread: usize) -> Go {
        let Worker { group, core, at, .. } = self.workers[thread];
        match at {
            At::Start => {
                self.start_one_more(group, core);
                self.then(thread, At::Rest)
            }
            At::Rest => self.rest(thread),
            At::Wait => self.look_again(thread),
            At::Epoll => {
                self.pay(self.costs.epoll_wait);
                self.take_events(thread)
            }
            At::Woken => {
                self.pay_for_wake_up(thread);
                self.take_events(thread)
            }
            At::Unparked => {
                self.pay_for_wake_up(thread);
                self.begin(thread, None)
            }
            At::Sweep => self.handle_event(thread),
            At::Decide => self.decide(thread),
            At::NextJob => self.next(thread),
            At::Run(job) => self.run_job(thread, job),
            At::Tick => self.tick(thread),
            At::Returned => self.returned(thread),
            At::Submit => self.submit(thread),
        }
    }

    fn then(&mut self, thread: usize, at: At) -> Go {
        self.workers[thread].at = at;
        Go::On
    }

    fn pay_for_wake_up(&mut self, thread: usize) {
        let long = self.workers[thread].after_long_rest;
        self.pay(self.costs.wake_cpu[usize::from(long)]);
    }

    fn rest(&mut self, thread: usize) -> Go {
        let Worker { group, core, .. } = self.workers[thread];
        if self.join_poll(group, core) {
            return self.then(thread, At::Wait);
        }
        self.write(self.groups[group].parked_line, core);
        self.groups[group].parked.push(thread);
        if self.has_work(group, core) {
            self.groups[group].parked.retain(|&parked| parked != thread);
            return self.begin(thread, None);
        }
        self.workers[thread].at = At::Unparked;
        Go::Blocks
    }

    /// The first part of `wait`.
    fn look_again(&mut self, thread: usize) -> Go {
        let Worker { group, core, .. } = self.workers[thread];
        if self.has_work(group, core) {
            if self.leave_poll(group, core) {
                return self.begin(thread, None);
            }
            self.notify(group, core);
        }
        self.then(thread, At::Epoll)
    }

    /// Takes up to four events of the set, or blocks.
    fn take_events(&mut self, thread: usize) -> Go {
        let Worker { group, core, .. } = self.workers[thread];
        self.write(self.groups[group].epoll.line, core);
        let epoll = &mut self.groups[group].epoll;
        let taken = epoll.ready.len().min(EVENTS_AT_ONCE);
        self.workers[thread].reports.extend(epoll.ready.drain(..taken));
        if taken == 0 {
            epoll.waiting.push(thread);
            self.workers[thread].at = At::Woken;
            return Go::Blocks;
        }
        if !epoll.ready.is_empty() {
            if let Some(next) = epoll.waiting.pop() {
                self.wake(next, crate::world::WokenBy::Alarm);
            }
        }
        self.then(thread, At::Sweep)
    }

    fn handle_event(&mut self, thread: usize) -> Go {
        let Worker { group, core, .. } = self.workers[thread];
        match self.workers[thread].reports.pop() {
            Some(Report::Shard(shard)) => {
                if let Some(job) = self.sweep(thread, shard) {
                    if self.workers[thread].first.is_none() {
                        self.workers[thread].first = Some(job);
                    } else {
                        self.hold(job, 1);
                        self.push_local(thread, job);
                    }
                }
            }
            Some(Report::Shared(neighbours)) => self.take_shared(thread, neighbours),
            Some(Report::Wake) => {
                if let Some(token) = self.groups[group].token_sent.take() {
                    if let Some(before) = self.workers[thread].token.replace(token) {
                        self.stop_searching(group, core, before);
                    }
                }
            }
            Some(Report::StallCheck) => self.workers[thread].checks = true,
            None => return self.then(thread, At::Decide),
        }
        Go::On
    }

    /// The second part of `wait`.
    fn decide(&mut self, thread: usize) -> Go {
        let Worker { group, core, token, .. } = self.workers[thread];
        self.pay(self.costs.round);
        let first = self.workers[thread].first.take();
        let checks = std::mem::take(&mut self.workers[thread].checks);
        if checks {
            self.stall_check_has_come(group, core);
        }
        let has_work = first.is_some() || ((token.is_some() || checks) && self.has_work(group, core));
        if checks && !has_work {
            self.nothing_waits(group);
        }
        if has_work && self.leave_poll(group, core) {
            match token {
                Some(_) if checks => self.demand_stall_check(group, core, Demanded::ByMany),
                Some(_) => {}
                None if checks => self.notify(group, core),
                None => self.share(thread),
            }
            return self.begin(thread, first);
        }
        if has_work {
            self.stay(thread, first, checks);
        } else if let Some(token) = self.workers[thread].token.take() {
            self.stop_searching(group, core, token);
            if self.has_work(group, core) {
                self.notify(group, core);
            }
        }
        self.then(thread, At::Epoll)
    }

    /// The last poller: its jobs go to an inbox.
    fn stay(&mut self, thread: usize, first: Option<Job>, checks: bool) {
        let Worker { group, core, .. } = self.workers[thread];
        if let Some(job) = first {
            self.hold(job, 1);
            self.inject(group, core, job);
        }
        while let Some(job) = self.workers[thread].deque.pop_front() {
            self.inject(group, core, job);
        }
        self.tell(thread, false);
        if let Some(token) = self.workers[thread].token.take() {
            self.stop_searching(group, core, token);
        }
        if checks { self.look_for_stall(thread) } else { self.notify(group, core) }
    }

    /// The beginning of `run_jobs`.
    fn begin(&mut self, thread: usize, first: Option<Job>) -> Go {
        let now = self.now();
        let worker = &mut self.workers[thread];
        worker.pace.begin(now);
        worker.rested = now.saturating_sub(worker.rests_since);
        match first {
            Some(job) => {
                self.hold(job, 1); // as if it had come from a queue
                self.found(thread, job)
            }
            None => self.then(thread, At::NextJob),
        }
    }

    fn next(&mut self, thread: usize) -> Go {
        if let Some(job) = self.next_job(thread) {
            return self.found(thread, job);
        }
        let now = self.now();
        self.workers[thread].pace.measure(now);
        self.workers[thread].rests_since = now;
        self.cancel_stall_check(thread);
        let Worker { group, core, .. } = self.workers[thread];
        if let Some(token) = self.workers[thread].token.take() {
            self.stop_searching(group, core, token);
        }
        self.then(thread, At::Rest)
    }

    /// A job is found: the next thread may search.
    fn found(&mut self, thread: usize, job: Job) -> Go {
        let Worker { group, core, .. } = self.workers[thread];
        let token = self.workers[thread].token.take();
        self.workers[thread].searched = token.is_some();
        if let Some(token) = token {
            self.stop_searching(group, core, token);
            if self.has_work(group, core) || self.help_wanted(group, core).is_some() {
                self.notify(group, core);
            }
        }
        self.workers[thread].jobs += 1;
        self.then(thread, At::Run(job))
    }

    /// `Pool::next_job`.
    fn next_job(&mut self, thread: usize) -> Option<Job> {
        let Worker { group, core, deque_line, .. } = self.workers[thread];
        let now = self.now();
        let worker = &mut self.workers[thread];
        let turn = std::mem::take(&mut worker.turn) || worker.pace.is_fair_turn(|| now);
        if turn {
            worker.others_first = !worker.others_first;
            let others_first = worker.others_first;
            let stolen = if others_first { self.steal(thread, group, 1) } else { None };
            if let Some(job) = stolen.or_else(|| self.take_injected(thread, group, 1)) {
                return Some(job);
            }
            if let Some(job) = if others_first { None } else { self.steal(thread, group, 1) } {
                return Some(job);
            }
        }
        if !self.workers[thread].deque.is_empty() {
            self.write(deque_line, core);
            return self.workers[thread].deque.pop_front();
        }
        self.tell(thread, false);
        if turn && self.groups.len() == 1 {
            return None; // all other queues have just been looked into
        }
        let mut brought = self.take_injected(thread, group, usize::MAX);
        if brought.is_none() {
            brought = self.steal(thread, group, usize::MAX);
        }
        if brought.is_none() && self.groups.len() > 1 {
            brought = self.steal_across(thread);
        }
        if brought.is_some() && self.workers[thread].token.is_none() {
            self.share(thread);
        }
        brought
    }

    /// Takes half of the jobs of the first inbox with jobs, up to a limit; all but the first go to
    /// the own deque.
    fn take_injected(&mut self, thread: usize, group: usize, most: usize) -> Option<Job> {
        let core = self.workers[thread].core;
        let inboxes = self.groups[group].inboxes.len();
        let first = self.inbox_of(group, core);
        for inbox in (0..inboxes).map(|step| (first + step) % inboxes) {
            let line = self.groups[group].inboxes[inbox].1;
            self.read(line, core);
            let jobs = self.groups[group].inboxes[inbox].0.len();
            if jobs > 0 {
                self.write(line, core);
                let taken = jobs.div_ceil(2).min(32).min(most);
                let mut taken = self.groups[group].inboxes[inbox].0.drain(..taken);
                let first = taken.next();
                self.workers[thread].deque.extend(taken);
                if !self.workers[thread].deque.is_empty() {
                    self.tell(thread, true);
                }
                return first;
            }
        }
        None
    }

    /// `Pool::steal_elsewhere`: takes half of the jobs of the first other deque with jobs.
    fn steal(&mut self, thread: usize, group: usize, most: usize) -> Option<Job> {
        let core = self.workers[thread].core;
        let (start, workers) = (self.workers[thread].scan, self.groups[group].workers.len());
        self.workers[thread].scan += 1;
        for place in 0..workers {
            let other = self.groups[group].workers[(start + place) % workers];
            if other == thread {
                continue;
            }
            if self.has_jobs(other, core) {
                self.write(self.workers[other].deque_line, core);
                let jobs = self.workers[other].deque.len();
                let taken: Vec<Job> = self.workers[other].deque.drain(..jobs.div_ceil(2).min(most)).collect();
                self.workers[thread].deque.extend(&taken[1..]);
                if taken.len() > 1 {
                    self.tell(thread, true);
                }
                return taken.first().copied();
            }
        }
        None
    }

    /// Jobs of a group that asks for help.
    fn steal_across(&mut self, thread: usize) -> Option<Job> {
        let Worker { group, core, .. } = self.workers[thread];
        self.end_help(group, core);
        let other = self.help_wanted(group, core)?;
        self.take_injected(thread, other, usize::MAX).or_else(|| self.steal(thread, other, usize::MAX))
    }

    /// A queue or a thread has a batch (1), or gives it back (-1).
    fn hold(&mut self, job: Job, more: isize) {
        if let Job::Batch(batch) = job {
            let held = &mut self.batches[batch];
            held.holders = held.holders.saturating_add_signed(more);
            if held.holders == 0 && held.next >= held.ticks.len() {
                self.free_batches.push(batch);
            }
        }
    }

    /// `Shard::sweep_batch`, and the job of its ticks. If the batch was full, the rest is a job of
    /// the own deque.
    fn sweep(&mut self, thread: usize, shard: usize) -> Option<Job> {
        let core = self.workers[thread].core;
        let line = self.shards[shard].line;
        self.outcome.sweeps += u64::from(self.counts());
        self.write(line, core);
        self.pay(self.costs.section);
        let mut now = self.now();
        let mut ticks = Vec::with_capacity(BATCH);
        let full = loop {
            while ticks.len() < BATCH {
                let Some(due) = self.shards[shard].due.take(now) else { break };
                ticks.push(due);
                self.pay(self.costs.node[self.load.memory]);
            }
            let (full, next) = (ticks.len() == BATCH, self.shards[shard].due.next);
            let busy = !ticks.is_empty() && self.shards[shard].coalescer.wait_ns() > 0;
            if !full && !busy && next <= now + NEAR_NS && next <= self.now() {
                now = self.now();
                continue;
            }
            break full;
        };
        let (next, coalescer) = (self.shards[shard].due.next, &mut self.shards[shard].coalescer);
        coalescer.fired(now, ticks.len() as u64, u64::MAX);
        if !full {
            let grid = self.plan.shared > 1;
            let at = match (coalescer.end(now), grid) {
                (true, true) => coalescer.aim(next, now),
                (true, false) => next.max(now + coalescer.wait_ns()),
                (false, _) => next,
            };
            self.shards[shard].armed_on = core;
            let on_point = grid && next < u64::MAX && at > now && at % Coalescer::LONGEST_NS == 0;
            self.enter(shard, core, on_point.then_some(at));
            if next < u64::MAX && !on_point {
                self.set_alarm(shard, at);
            }
        }
        self.unlock(line);
        let job = match ticks.len() {
            0 => None,
            1 => Some(Job::One(ticks[0])),
            _ => Some(Job::Batch(self.new_batch(ticks))),
        };
        match (full, job) {
            (true, Some(_)) => self.go_on_sweeping(thread, shard),
            (true, None) => return Some(Job::Sweep(shard)),
            (false, _) => {}
        }
        job
    }

    /// The rest of a sweep. A thread that helps another group gives the rest back: else the threads
    /// of that group would run out of jobs.
    fn go_on_sweeping(&mut self, thread: usize, shard: usize) {
        let (home, core) = (self.shards[shard].group, self.workers[thread].core);
        if home == self.workers[thread].group {
            return self.push_local(thread, Job::Sweep(shard));
        }
        self.inject(home, core, Job::Sweep(shard));
        self.notify(home, core);
    }

    /// `SharedAlarm::arm`: the shard enters its point, or leaves.
    fn enter(&mut self, shard: usize, core: usize, point: Option<u64>) {
        let group = self.shards[shard].group;
        if point.is_none() && !self.groups[group].points.contains_key(&shard) {
            return;
        }
        let neighbours = shard / self.plan.shared;
        let line = self.groups[group].shared_line;
        self.write(line, core);
        let before = self.earliest_point(group, neighbours);
        let points = &mut self.groups[group].points;
        match point {
            Some(at) => _ = points.insert(shard, at),
            None => _ = points.remove(&shard),
        }
        let earliest = self.earliest_point(group, neighbours);
        if let Some(at) = earliest.filter(|_| earliest != before) {
            self.set_shared_alarm(group, neighbours, at);
        }
        self.unlock(line);
    }

    fn earliest_point(&self, group: usize, neighbours: usize) -> Option<u64> {
        let shared = self.plan.shared;
        self.groups[group].points.range(neighbours * shared..(neighbours + 1) * shared).map(|(_, &at)| at).min()
    }

    /// `SharedAlarm::take`: the poller sweeps the shards whose point has come.
    fn take_shared(&mut self, thread: usize, neighbours: usize) {
        let Worker { group, core, .. } = self.workers[thread];
        let line = self.groups[group].shared_line;
        self.write(line, core);
        let (now, shared) = (self.now(), self.plan.shared);
        let of = neighbours * shared..(neighbours + 1) * shared;
        let points = &mut self.groups[group].points;
        let due: Vec<usize> = points.range(of).filter(|&(_, &at)| at <= now).map(|(&shard, _)| shard).collect();
        due.iter().for_each(|shard| _ = points.remove(shard));
        if let Some(at) = self.earliest_point(group, neighbours) {
            self.set_shared_alarm(group, neighbours, at);
        }
        self.unlock(line);
        // The worker takes reports from the end.
        self.workers[thread].reports.extend(due.into_iter().rev().map(Report::Shard));
    }

    /// The thread has taken the job out of a queue.
    fn run_job(&mut self, thread: usize, job: Job) -> Go {
        match job {
            Job::Sweep(shard) => match self.sweep(thread, shard) {
                Some(job) => {
                    self.share(thread);
                    self.hold(job, 1);
                    self.then(thread, At::Run(job))
                }
                None => self.end_job(thread),
            },
            Job::One(due) => self.call_back(thread, due),
            Job::Batch(batch) => {
                self.workers[thread].batch = Some((batch, false));
                self.then(thread, At::Tick)
            }
        }
    }

    /// `run_batch`: takes the next tick.
    fn tick(&mut self, thread: usize) -> Go {
        let Worker { group, core, batch, searched, .. } = self.workers[thread];
        let Some((batch, shared)) = batch else { return self.end_job(thread) };
        self.write(self.batches[batch].line, core);
        let taken = &mut self.batches[batch];
        let Some(&due) = taken.ticks.get(taken.next) else { return self.end_job(thread) };
        taken.next += 1;
        let left = taken.ticks.len() - taken.next;
        self.workers[thread].batched = left;
        if left > 0 && !shared {
            self.hold(Job::Batch(batch), 1);
            self.push_local(thread, Job::Batch(batch));
            if searched {
                self.notify(group, core)
            } else {
                self.share(thread)
            }
            self.workers[thread].batch = Some((batch, true));
        } else if left == 0 && shared && self.workers[thread].deque.len() == 1 {
            self.write(self.workers[thread].deque_line, core);
            if self.workers[thread].deque[0] == Job::Batch(batch) {
                self.workers[thread].deque.clear();
                self.hold(Job::Batch(batch), -1);
            }
        }
        self.call_back(thread, due)
    }

    fn call_back(&mut self, thread: usize, due: u64) -> Go {
        self.pay(self.costs.tick);
        if self.load.drain || due >= self.load.until / 5 {
            let now = self.now();
            self.outcome.late.add(now - due);
        }
        self.outcome.fired += u64::from(self.counts());
        self.workers[thread].at = At::Returned;
        self.pay(self.costs.callback[self.load.memory] + self.load.work);
        let (share, ns) = self.load.sleeps;
        self.outcome.last = self.outcome.last.max(self.now());
        if share > 0.0 && self.random.part() < share {
            self.workers[thread].sleeps = true;
            self.workers[thread].callback = Some(due);
            return Go::Sleeps(ns);
        }
        Go::On
    }

    /// A callback has returned: `Pool::continues_batch`, or the end of the job.
    fn returned(&mut self, thread: usize) -> Go {
        if std::mem::take(&mut self.workers[thread].sleeps) {
            self.workers[thread].callback = None;
            self.pay_for_wake_up(thread);
        }
        let now = self.now();
        let Some((batch, _)) = self.workers[thread].batch else { return self.end_job(thread) };
        let worker = &mut self.workers[thread];
        worker.turn = worker.pace.is_fair_turn(|| now);
        if worker.turn || self.batches[batch].next >= self.batches[batch].ticks.len() {
            return self.end_job(thread);
        }
        worker.jobs += 2;
        worker.pace.count();
        self.then(thread, At::Tick)
    }

    fn end_job(&mut self, thread: usize) -> Go {
        if let Some((batch, _)) = self.workers[thread].batch.take() {
            self.hold(Job::Batch(batch), -1);
        }
        let worker = &mut self.workers[thread];
        worker.batched = 0;
        worker.jobs += 1;
        worker.pace.count();
        self.then(thread, At::NextJob)
    }

    /// A job that is due at once, from a thread outside.
    fn submit(&mut self, thread: usize) -> Go {
        let Worker { group, core, .. } = self.workers[thread];
        let due = self.now();
        self.inject(group, core, Job::One(due));
        self.notify(group, core);
        let pause = -(self.load.submitters.1 as f64) * self.random.part().ln();
        self.pay(pause as u64);
        Go::On
    }
}
