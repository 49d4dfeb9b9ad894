//! The ledger: what must be true of a history, from what users, handlers and the server's door have
//! seen.
//!
//! Ground rules. The ledger knows neither rows nor engine. It sees the requests and answers in the
//! order of the commits, the begin and the end of each handler, and the faults. A fault of the code
//! under test is a text in [`Ledger::faults`]. The rules:
//!
//! 1. *Nothing is lost*: each put that was committed is done, dead, cancelled or replaced at the
//!    end, and "done" means that a handler said so.
//! 2. *Nothing is early*: a claim takes a job at its due time or later by the server's clock, and
//!    its handler begins after.
//! 3. *One run per occurrence*: a nominal instant of a recurring job has one row; an interval that
//!    runs all leaves none out.
//! 4. *Doubles*: a job that runs is claimed again only once its member has ended. A member ends
//!    only if its lease is over, and only if its node was disturbed since the last renewal; and it
//!    renews no lease afterwards. No handler begins that a member of the past has claimed.
//! 5. *Fence*: the settle of a former holder is refused, that of the present one is not.
//! 6. *Order*: no job of a handler is claimed while one waits there that is due and comes before
//!    it, by its due time less an hour for each step of priority.
//! 7. *Exact answers*: of puts, cancels and moves; after "cancelled" no handler begins, after
//!    "running" no further attempt does.
//! 8. *At most once*: a job that asks for it begins once, but for further runs at its own request;
//!    and it is dead as cut off only if a claim before came to no end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::Origin;
use crate::store::{
    Applied, Cancel, Catchup, Change, Claim, Claimed, ClaimedJob, Clash, Held, JobId, Micros, Mutation, NewJob, Op,
    Overlap, Placed, RunEnd, Settle, Verdict, When,
};

/// What a job does, as far as the door of the server shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Running {
        held: Held,
        by: Origin,
    },
    /// A recurring job that puts runs.
    Recurring,
    /// A recurring job that was cancelled during a run.
    Ending,
    Done,
    Dead,
    /// Cancelled or replaced.
    Gone,
}

/// A member that lives or has lived.
#[derive(Clone, Copy, Debug)]
struct Member {
    number: u64,
    by: Origin,
    until: Micros,
    /// The instant of the history at which the lease was given.
    since: u64,
    has_ended: bool,
}

/// The place in the order of claims.
fn place(priority: i8, due: Micros) -> i64 {
    due.as_i64() - i64::from(priority) * 3_600_000_000
}

#[derive(Debug)]
pub(super) struct Job {
    /// The number in the payload.
    pub(super) number: u64,
    pub(super) key: Arc<str>,
    pub(super) phase: Phase,
    pub(super) cancelled: bool,
    priority: i8,
    once: bool,
    due: Option<Micros>,
    attempt: u32,
    /// The handlers that have begun since the put or since the last further run.
    begins: u32,
    /// A handler has begun. The attempts do not tell: a run that asks for another one sets them to
    /// zero.
    has_begun: bool,
    /// The text of the last run.
    run: Arc<str>,
    pub(super) parent: Option<JobId>,
    /// Of a recurring job: whether no occurrence may be left out, and its period.
    pub(super) complete: Option<i64>,
    /// Of a recurring job: its runs go side by side.
    overlaps: bool,
    /// Of a fixed delay.
    delay: Option<Duration>,
    pub(super) last_nominal: Option<Micros>,
    /// The runs end at once, so they never wait for a place.
    pub(super) is_brief: bool,
    /// The handler ends its process.
    is_poison: bool,
}

/// The end of a handler: run, attempt, node.
type EndOf = (Arc<str>, u32, Origin);

#[derive(Default)]
pub(super) struct Ledger {
    /// The instant of the history.
    pub(super) now: u64,
    pub(super) faults: Vec<String>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    keys: HashMap<Arc<str>, JobId>,
    by_number: HashMap<u64, JobId>,
    occurrences: BTreeSet<(u64, Micros)>,
    owners: HashMap<u64, Origin>,
    /// By scheduler.
    members: HashMap<u64, Member>,
    /// Claims whose handler has not begun.
    claims: Vec<(Arc<str>, u32, Origin, Held)>,
    ended: HashMap<EndOf, &'static str>,
    /// The answers of requests with an operation of a user.
    committed: HashMap<(Origin, u64), Applied>,
    /// The node (`None`: all), and the begin and end of the disturbance.
    pub(super) disturbed: Vec<(Option<usize>, u64, u64)>,
    /// Whether the server's clock is set in this history.
    pub(super) steps: bool,
    pub(super) counts: Counts,
}

/// How often what a history is about has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) puts: u64,
    pub(super) runs: u64,
    pub(super) occurrences: u64,
    /// Runs of members that have ended.
    pub(super) taken_over: u64,
    pub(super) late_settles: u64,
    pub(super) cancels: u64,
    /// Jobs that are dead since they end their processes.
    pub(super) poisoned: u64,
    /// Jobs that are dead since their one run was cut off.
    pub(super) cut_off: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.puts += other.puts;
        self.runs += other.runs;
        self.occurrences += other.occurrences;
        self.taken_over += other.taken_over;
        self.late_settles += other.late_settles;
        self.cancels += other.cancels;
        self.poisoned += other.poisoned;
        self.cut_off += other.cut_off;
    }
}

impl Job {
    pub(super) fn never_ran(&self) -> bool {
        !self.has_begun && self.phase == Phase::Waiting
    }
}

impl Ledger {
    pub(super) fn fault(&mut self, text: String) {
        if self.faults.len() < 20 {
            self.faults.push(format!("at {:.6} s: {text}", self.now as f64 / 1e9));
        }
    }

    /// The jobs that have not come to an end.
    pub(super) fn left(&self) -> impl Iterator<Item = (JobId, &Job)> {
        let has_ended = |phase| matches!(phase, Phase::Done | Phase::Dead | Phase::Gone);
        self.jobs.iter().filter(move |(_, job)| !has_ended(job.phase)).map(|(&id, job)| (id, job))
    }

    /// The present holder of a run.
    pub(super) fn holder_of(&self, id: JobId) -> Option<Held> {
        match self.jobs.get(&id)?.phase {
            Phase::Running { held, .. } => Some(held),
            _ => None,
        }
    }

    /// The server has applied an operation.
    pub(super) fn applied(&mut self, by: Origin, op: &Op, answer: Applied, now: Micros) {
        match op {
            Op::Put(new) => self.put(new, answer, now),
            Op::Key { key, mutation } => self.changed(key, mutation, answer, now),
            Op::Settle(settle) => self.settled(by, settle, answer, now),
            Op::Advance(advance) if answer == Applied::Held(true) && !advance.runs.is_empty() => {
                self.hasten(advance.id, now);
            }
            _ => {}
        }
    }

    /// The answer that the server has given to the first operation of a request.
    pub(super) fn committed(&mut self, request: (Origin, u64), answer: Option<Applied>) {
        self.committed.extend(answer.map(|answer| (request, answer)));
    }

    /// A user has got an answer.
    pub(super) fn answered(&mut self, request: (Origin, u64), answer: Applied) {
        let committed = self.committed.get(&request).copied();
        if committed != Some(answer) {
            self.fault(format!("a user was told {answer:?}, but the server has committed {committed:?}"));
        }
    }

    fn expect(&mut self, what: &dyn std::fmt::Debug, expected: Applied, answer: Applied) {
        if expected != answer {
            self.fault(format!("{what:?} was answered with {answer:?} instead of {expected:?}"));
        }
    }

    fn put(&mut self, new: &NewJob, answer: Applied, now: Micros) {
        let old = self.keys.get(&new.key).copied();
        let Applied::Placed(placed) = answer else { return self.fault(format!("a put was answered with {answer:?}")) };
        let id = placed.added().unwrap_or(JobId(u64::MAX));
        let expected = match (old, new.clash) {
            (None, _) => Placed::Added(id),
            (Some(old), Clash::Refuse) => Placed::Refused(old),
            (Some(old), Clash::Keep) => Placed::Kept(old),
            (Some(old), Clash::Replace | Clash::Update) => {
                let was_running = self.cancel(old) == Cancel::Running;
                self.keys.remove(&new.key);
                Placed::Replaced { id, was_running }
            }
        };
        self.expect(new, Applied::Placed(expected), answer);
        let Some(id) = placed.added() else { return };
        let number = new.payload.parse().unwrap();
        let complete = new.recurrence.as_ref().and_then(|recurrence| {
            let all = matches!(recurrence.catchup, Catchup::RunAll { at_most: Catchup::MOST });
            let period = recurrence.schedule.period().filter(|_| !recurrence.schedule.is_fixed_delay())?;
            let period = i64::try_from(period.as_micros()).unwrap();
            (all && recurrence.overlap == Overlap::Allow && !self.steps).then_some(period)
        });
        let due = self.due(new.when, now);
        let phase = if new.recurrence.is_some() { Phase::Recurring } else { Phase::Waiting };
        let key = Arc::clone(&new.key);
        self.keys.insert(Arc::clone(&key), id);
        self.by_number.insert(number, id);
        self.counts.puts += 1;
        let job = Job {
            number,
            key,
            phase,
            cancelled: false,
            priority: new.priority,
            once: new.terms.at_most_once,
            due: Some(due),
            attempt: 0,
            begins: 0,
            has_begun: false,
            run: "".into(),
            parent: None,
            complete,
            overlaps: new.recurrence.as_ref().is_some_and(|recurrence| recurrence.overlap == Overlap::Allow),
            delay: new
                .recurrence
                .as_ref()
                .and_then(|recurrence| recurrence.schedule.period().filter(|_| recurrence.schedule.is_fixed_delay())),
            last_nominal: None,
            is_brief: &*new.name == "brief",
            is_poison: &*new.name == "poison",
        };
        if self.jobs.insert(id, job).is_some() {
            self.fault(format!("{id:?} was used twice"));
        }
    }

    /// The reading of the clock from which waits count: rounded up (J1).
    fn up(&self, now: Micros) -> Micros {
        now.saturating_add(Duration::from_micros(u64::from(self.now % 1_000 != 0)))
    }

    fn due(&self, when: When, now: Micros) -> Micros {
        match when {
            When::At(at) => at.max(now),
            When::After(Duration::ZERO) => now,
            When::After(after) => self.up(now).saturating_add(after),
        }
    }

    /// An occurrence ends the wait of a failed run (J19).
    fn hasten(&mut self, parent: JobId, now: Micros) {
        if self.jobs.get(&parent).is_none_or(|job| job.overlaps) {
            return;
        }
        for id in self.runs_of(parent) {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            if job.phase == Phase::Waiting && job.attempt > 0 {
                job.due = job.due.map(|due| due.min(now));
            }
        }
    }

    fn runs_of(&self, parent: JobId) -> Vec<JobId> {
        let runs = self.jobs.iter().filter(|(_, job)| job.parent == Some(parent));
        runs.map(|(&id, _)| id).collect()
    }

    /// What a cancel does.
    fn cancel(&mut self, id: JobId) -> Cancel {
        let runs = self.runs_of(id);
        let Some(job) = self.jobs.get_mut(&id) else { return Cancel::Absent };
        match job.phase {
            Phase::Running { .. } => {
                job.cancelled = true;
                return Cancel::Running;
            }
            Phase::Recurring | Phase::Ending => {
                job.cancelled = true;
                job.phase = Phase::Ending;
                let running = runs.into_iter().filter(|&run| self.cancel(run) == Cancel::Running).count();
                if running > 0 {
                    return Cancel::Running;
                }
            }
            Phase::Done | Phase::Dead => return Cancel::Absent,
            Phase::Waiting | Phase::Gone => {}
        }
        self.leaves(id, Phase::Gone);
        Cancel::Cancelled
    }

    /// The job leaves the store, or is dead there. Its key is free.
    fn leaves(&mut self, id: JobId, phase: Phase) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.phase = phase;
        let (key, parent) = (Arc::clone(&job.key), job.parent);
        if self.keys.get(&key) == Some(&id) {
            self.keys.remove(&key);
        }
        let Some(parent) = parent.filter(|parent| self.jobs[parent].phase == Phase::Ending) else { return };
        let is_running = |run: &JobId| matches!(self.jobs[run].phase, Phase::Running { .. });
        if !self.runs_of(parent).iter().any(is_running) {
            self.leaves(parent, Phase::Gone);
        }
    }

    fn changed(&mut self, key: &Arc<str>, mutation: &Mutation, answer: Applied, now: Micros) {
        let id = self.keys.get(key).copied();
        let phase = id.map(|id| self.jobs[&id].phase);
        let expected = match (mutation, id, phase) {
            (Mutation::Cancel, id, _) => {
                self.counts.cancels += 1;
                Applied::Cancel(id.map_or(Cancel::Absent, |id| self.cancel(id)))
            }
            (_, None, _) => Applied::Change(Change::Absent),
            (Mutation::Move(_) | Mutation::RunNow, _, Some(Phase::Running { .. })) => Applied::Change(Change::Running),
            (Mutation::Move(_), _, Some(Phase::Recurring | Phase::Ending)) => Applied::Change(Change::WrongKind),
            (Mutation::Move(_) | Mutation::RunNow, Some(id), _) => {
                let due = if let Mutation::Move(when) = *mutation { self.due(when, now) } else { now };
                self.jobs.get_mut(&id).unwrap().due = Some(due);
                Applied::Change(Change::Changed)
            }
            _ => answer,
        };
        self.expect(&(key, mutation), expected, answer);
    }

    /// A claim was committed.
    pub(super) fn claimed(&mut self, by: Origin, claim: &Claim, claimed: &Claimed) {
        self.taken(by, claim, &claimed.jobs, claimed.now);
    }

    /// Jobs were claimed, by a claim or by the end of a run.
    pub(super) fn taken(&mut self, by: Origin, claim: &Claim, jobs: &[ClaimedJob], now: Micros) {
        for job in jobs {
            let owner = *self.owners.entry(job.held.owner).or_insert(by);
            if owner != by || job.held.owner != claim.owner {
                self.fault(format!("{job:?} was claimed by another node"));
            }
            self.begins(by, job, now);
        }
        for job in jobs {
            let Some(claimed) = self.jobs.get(&job.held.id) else { continue };
            let (at, handler) = (place(claimed.priority, job.due), (claimed.is_brief, claimed.is_poison));
            // Of the others the due time is not known here, or they have not waited all the time.
            let waits = |other: &&Job| {
                let is_untouched = other.phase == Phase::Waiting && other.attempt == 0 && !other.has_begun;
                is_untouched && !other.cancelled && (other.is_brief, other.is_poison) == handler
            };
            let before = |other: &&Job| other.due.is_some_and(|due| due <= now && place(other.priority, due) < at);
            if let Some(other) = self.jobs.values().filter(waits).find(before) {
                self.fault(format!("{job:?} was claimed at {now:?} before {other:?}"));
            }
        }
    }

    fn begins(&mut self, by: Origin, job: &ClaimedJob, now: Micros) {
        if job.due > now {
            self.fault(format!("early: {job:?} at {now:?}"));
        }
        let number: u64 = job.payload.parse().unwrap();
        if !self.jobs.contains_key(&job.held.id) {
            self.first_claim_of_a_run(job, number);
        }
        let Some(row) = self.jobs.get(&job.held.id) else { return };
        let (phase, cancelled, attempt, due, once) = (row.phase, row.cancelled, row.attempt, row.due, row.once);
        match phase {
            Phase::Waiting if due.is_some_and(|due| due > now) => {
                self.fault(format!("early: {job:?} at {now:?}, due at {due:?}"));
            }
            Phase::Waiting => {}
            _ => self.fault(format!("{job:?} was claimed, but is {phase:?}")),
        }
        if cancelled {
            self.fault(format!("an attempt after a cancel: {job:?}"));
        }
        if job.cut_off != (once && attempt > 0) || attempt + 1 != job.attempt + u32::from(job.cut_off) {
            self.fault(format!("{job:?} after {attempt} attempts"));
        }
        let row = self.jobs.get_mut(&job.held.id).unwrap();
        (row.attempt, row.run) = (attempt + 1, Arc::clone(&job.run));
        row.phase = Phase::Running { held: job.held, by };
        self.claims.push((Arc::clone(&job.run), job.attempt, by, job.held));
    }

    /// A row of a recurring job is seen for the first time.
    fn first_claim_of_a_run(&mut self, job: &ClaimedJob, number: u64) {
        let parent = self.by_number.get(&number).copied().filter(|parent| {
            let parent = &self.jobs[parent];
            parent.phase == Phase::Recurring && !parent.cancelled
        });
        let Some(parent) = parent else {
            return self.fault(format!("{job:?} was claimed, but was not put, or was cancelled"));
        };
        if let Some(nominal) = job.nominal {
            self.counts.occurrences += 1;
            if !self.occurrences.insert((number, nominal)) {
                self.fault(format!("an occurrence has two runs: {job:?}"));
            }
            let row = self.jobs.get_mut(&parent).unwrap();
            let last = row.last_nominal.replace(nominal);
            let leaves_out = match (row.complete, last) {
                (Some(period), Some(last)) => nominal.as_i64() - last.as_i64() != period,
                _ => false,
            };
            if leaves_out || (!self.steps && last.is_some_and(|last| last >= nominal)) {
                self.fault(format!("an occurrence was left out: {job:?} after {last:?}"));
            }
        }
        let run = Job {
            number,
            key: Arc::clone(&job.key),
            phase: Phase::Waiting,
            cancelled: false,
            priority: self.jobs[&parent].priority,
            once: self.jobs[&parent].once,
            due: None,
            attempt: 0,
            begins: 0,
            has_begun: false,
            run: "".into(),
            parent: Some(parent),
            complete: None,
            overlaps: false,
            delay: None,
            last_nominal: None,
            is_brief: &*job.name == "brief",
            is_poison: &*job.name == "poison",
        };
        self.jobs.insert(job.held.id, run);
    }

    /// Whether something may have kept a node from renewing, since this instant.
    fn was_disturbed(&self, node: usize, since: u64) -> bool {
        let overlaps = |&(whom, begin, end): &(Option<usize>, u64, u64)| {
            whom.is_none_or(|whom| whom == node) && begin <= self.now && since <= end
        };
        self.disturbed.iter().any(overlaps)
    }

    fn settled(&mut self, by: Origin, settle: &Settle, answer: Applied, now: Micros) {
        let id = settle.held.id;
        let holds = self.holder_of(id) == Some(settle.held);
        self.counts.late_settles += u64::from(!holds);
        self.expect(settle, Applied::Held(holds), answer);
        if !holds || answer != Applied::Held(true) {
            return;
        }
        let parent = self.jobs.get(&id).and_then(|job| self.jobs.get(&job.parent?));
        let delay = parent.and_then(|parent| parent.delay).unwrap_or(Duration::MAX);
        let due = match settle.verdict {
            Verdict::Again(when) => Some(self.due(when, now)),
            // A wait follows the clock when it is set.
            Verdict::Retry(after) | Verdict::Unbegun(after) if !self.steps => {
                Some(self.up(now).saturating_add(after.min(delay)))
            }
            _ => None,
        };
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let end = (Arc::clone(&job.run), job.attempt, by);
        job.phase = Phase::Waiting;
        match settle.verdict {
            Verdict::Again(_) => (job.due, job.attempt, job.begins) = (due, 0, 0),
            Verdict::Retry(_) => job.due = due,
            Verdict::Unbegun(_) => (job.due, job.attempt) = (due, job.attempt - 1),
            Verdict::Unrun => job.attempt -= 1,
            Verdict::Done | Verdict::Kept(_) | Verdict::Dead => {}
        }
        let phase = match settle.verdict {
            _ if job.cancelled => Some(Phase::Gone),
            Verdict::Done | Verdict::Kept(_) => Some(Phase::Done),
            Verdict::Dead => Some(Phase::Dead),
            _ => None,
        };
        let said = match settle.verdict {
            Verdict::Done | Verdict::Kept(_) => "done",
            Verdict::Again(_) => "again",
            Verdict::Retry(_) | Verdict::Unbegun(_) | Verdict::Dead => "failed",
            Verdict::Unrun => "",
        };
        // Of a job that is put back, no handler knows.
        let said = if settle.record.is_some() { said } else { "" };
        // A job that ends its process is dead without another attempt, and no other one is (J22).
        let unsaid = |error: &Arc<str>| error.starts_with("the process ended during the run") && end.1 > 5;
        let is_poison = settle.record.as_ref().and_then(|record| record.error.as_ref()).is_some_and(unsaid);
        if is_poison && !self.jobs[&id].is_poison {
            self.fault(format!("dead in the place of another one: {settle:?}"));
        }
        self.counts.poisoned += u64::from(is_poison);
        // No handler was called.
        let is_cut_off = settle.record.as_ref().is_some_and(|record| record.end == RunEnd::CutOff);
        self.counts.cut_off += u64::from(is_cut_off);
        if !said.is_empty() && !is_poison && !is_cut_off && self.ended.get(&end) != Some(&said) {
            self.fault(format!("no handler of {by:?} has said {said}: {settle:?}"));
        }
        if let Some(phase) = phase {
            self.leaves(id, phase);
        }
    }

    /// A scheduler is a member from now on.
    pub(super) fn entered(&mut self, by: Origin, (owner, number): (u64, u64), until: Micros) {
        let member = Member { number, by, until, since: self.now, has_ended: false };
        if self.members.insert(owner, member).is_some_and(|before| !before.has_ended || before.number >= number) {
            self.fault(format!("{owner} is a member twice"));
        }
    }

    /// A renewal was committed.
    pub(super) fn renewed(&mut self, (owner, number): (u64, u64), until: Micros) {
        let since = self.now;
        let Some(member) = self.members.get_mut(&owner) else { return };
        (member.until, member.since) = (until, since);
        if member.has_ended || member.number != number {
            let member = *member;
            self.fault(format!("{member:?}, which has ended, renews its lease"));
        }
    }

    /// The last member of a node.
    pub(super) fn last_member_of(&self, by: Origin) -> Option<u64> {
        self.members.values().filter(|member| member.by == by).map(|member| member.number).max()
    }

    /// The cancelled runs of a scheduler.
    pub(super) fn cancelled_of(&self, owner: u64) -> Vec<JobId> {
        let is_one =
            |job: &Job| job.cancelled && matches!(job.phase, Phase::Running { held, .. } if held.owner == owner);
        self.jobs.iter().filter(|(_, job)| is_one(job)).map(|(&id, _)| id).collect()
    }

    /// A member has ended, and its runs wait again.
    pub(super) fn member_ended(&mut self, owner: u64, now: Micros) {
        let Some(member) = self.members.get_mut(&owner) else { return };
        member.has_ended = true;
        let member = *member;
        if member.until >= now {
            self.fault(format!("{member:?} has ended, whose lease ends at {:?}, at {now:?}", member.until));
        }
        if !self.was_disturbed(member.by.0, member.since) {
            self.fault(format!("{member:?} has ended without a reason"));
        }
        let is_run = |job: &Job| matches!(job.phase, Phase::Running { held, .. } if held.owner == owner);
        let runs: Vec<JobId> = self.jobs.iter().filter(|(_, job)| is_run(job)).map(|(&id, _)| id).collect();
        for run in runs {
            self.counts.taken_over += 1;
            let Some(job) = self.jobs.get_mut(&run) else { continue };
            job.phase = Phase::Waiting;
            if job.cancelled {
                self.leaves(run, Phase::Gone);
            }
        }
    }

    /// A handler begins.
    pub(super) fn began(&mut self, by: Origin, run: &Arc<str>, attempt: u32, due: Micros, server: Micros) {
        self.counts.runs += 1;
        let claim = self.claims.iter().rposition(|claim| (&claim.0, claim.1, claim.2) == (run, attempt, by));
        let Some(claim) = claim else {
            return self.fault(format!("a handler of {by:?} began without a claim: {run}, attempt {attempt}"));
        };
        // In their order: the entry of a claim that was put back stays.
        let (_, _, _, held) = self.claims.remove(claim);
        if let Some(job) = self.jobs.get_mut(&held.id) {
            job.has_begun = true;
            job.begins += 1;
            if job.once && job.begins > 1 {
                self.fault(format!("begun again by {by:?}, and was to begin at most once: {run}, {held:?}"));
            }
        }
        if due > server && !self.steps {
            self.fault(format!("early: a handler of {by:?} began {run} at {server:?}, due at {due:?}"));
        }
        // A step of the server's clock ends leases at once, and no node knows of it.
        if self.holder_of(held.id) != Some(held) && !self.steps {
            self.fault(format!(
                "a handler of {by:?} began {run} of {held:?}, which is {:?}",
                self.jobs[&held.id].phase
            ));
        }
    }

    /// A handler has ended.
    pub(super) fn ended(&mut self, by: Origin, run: &Arc<str>, attempt: u32, said: &'static str) {
        self.ended.insert((Arc::clone(run), attempt, by), said);
    }
}
