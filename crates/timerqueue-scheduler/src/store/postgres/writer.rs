//! The thread that writes: group commits, claims, and what other nodes are told.
//!
//! Ground rules. One connection, on one thread. All operations that have queued up during the
//! commit before, or come soon after it, are one transaction; a claim is one of its own. A
//! transaction that met another one is run again. One that waits for a lock of another session
//! gives up soon, and its operations are put [aside](super::aside). If the connection is lost, a
//! new one is made, and the server is asked whether the commit was done, so no operation is applied
//! twice. Replies and notices are given after the commit, here, and run no code of users but
//! wakers: the engine hands its work to the pool ([`Store::has_thread`](super::Store::has_thread)).

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use super::aside::Aside;
use super::cursor::{Due, Walk};
use super::error::{Failure, Remedy, TRIES};
use super::link::Link;
use super::sleepers::{self, Told};
use super::wire::{Step, run};
use super::work::{Asked, Committed, LOCKED_AGAIN, Work};
use super::{SHORTEST, Settings, Shared, schema};
use crate::store::rules::{Changes, Claims, Dealer, Effects, first_occurrence, merged};
use crate::store::sql::Checked;
use crate::store::{
    Applied, Claim, Claimed, Entry, Fault, Held, Invalid, Micros, NewJob, Notice, Op, Reply, Settle, Settled, Verdict,
};
use crate::unwind::quietly;

/// The most operations of a commit.
const BATCH: usize = 1_024;
/// The longest wait for the callers of the last commit.
const GATHER: Duration = Duration::from_millis(1);
/// The waits before another connection: doubled each time, between these two.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The commits with a name. Each leaves a version of the row behind, which may stay for long, and
/// so it does in the rows of minutes.
pub(super) const OF_A_NAME: i64 = 512;
/// When a claim looks again that has met a lock.
const LOOK_AGAIN_WITHIN: Duration = Duration::from_millis(250);

/// Operations, and a claim for the place of the run that they end.
pub(super) struct Write {
    pub(super) ops: Vec<Checked>,
    pub(super) place: Option<Claim>,
    /// When its patience began.
    pub(super) asked: Instant,
    pub(super) reply: Back,
}

impl Write {
    pub(super) fn new(ops: Vec<Checked>, place: Option<Claim>, reply: Back) -> Self {
        Self { ops, place, asked: Instant::now(), reply }
    }
}

/// Where an answer goes.
pub(super) enum Back {
    Applied(Reply<Vec<Applied>>),
    Settled(Reply<Settled>),
}

impl Back {
    fn send(self, answer: Result<Settled, crate::Error>) {
        quietly(|| match self {
            Self::Applied(reply) => reply.send(answer.map(|settled| settled.applied)),
            Self::Settled(reply) => reply.send(answer),
        });
    }
}

pub(super) enum Message {
    Apply(Write),
    /// With the instant at which its patience began, as all that follow.
    Claim(Claim, Instant, Reply<Claimed>),
    /// A scheduler starts.
    Enter(Arc<Entry>, Instant),
    /// A scheduler begins no more runs.
    Leave(u64, Instant),
    Close,
}

/// What the last commit has answered. Callers that put one job after another, and runs that take no
/// time, come back at once. Those that come first would be a commit of their own, and the others
/// the next: so there would be two commits where one does. So a commit waits for as many writes as
/// the last one has answered, but only for an eighth of the time that the last one took, and for
/// [`GATHER`] at most.
struct Answered {
    writes: usize,
    until: Instant,
}

impl Answered {
    fn new(writes: usize, begun: Instant, now: Instant) -> Self {
        Self { writes, until: now + (now.duration_since(begun) / 8).min(GATHER) }
    }

    /// How long the next commit, with this many writes, waits for more.
    fn wait(&self, writes: usize) -> Duration {
        match writes < self.writes {
            true => self.until.saturating_duration_since(Instant::now()),
            false => Duration::ZERO,
        }
    }
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    link: Option<Link>,
    seed: u64,
    /// The name of this writer among those of all nodes.
    name: i64,
    /// The number of the last transaction.
    number: i64,
    /// A commit was sent whose answer was lost: the row of this writer may be locked until it has
    /// ended.
    is_open: bool,
    /// Why the connection was lost.
    lost: Option<Failure>,
    /// What waits for locks.
    aside: Aside,
    /// Runs of a commit whose answer was lost for good: nothing has begun.
    strays: Vec<Held>,
    /// The handlers at which a claim has met a lock: until when claims leave them out.
    locked_rooms: HashMap<Arc<str>, Instant>,
    answered: Answered,
    /// To the thread that tells other nodes.
    told: Sender<Vec<Told>>,
}

/// What a transaction has found, and what is left to do after its commit.
type Done<R> = (R, Committed);

/// What a transaction has found, its rows, and what is asked along with its commit.
type Found<'l, R> = (R, Work<'l>, Asked);

/// Rows come as arrays, and each is found by an index. The first ones of many stand in the order of
/// an index. The statistics may be out of date: with those of an empty table the server would join
/// with a whole table, or fetch and sort all rows of a handler, by a bitmap, for the first one. So
/// no plan depends on the parameters, and each is made once: to make them again takes longer than
/// to run the statements.
fn open(settings: &Settings) -> Result<Link, Failure> {
    open_within(settings, settings.patience)
}

/// The same with the tables of this version, and the seed of their runs. Steps whose session has
/// ended are made again: the server ends one that does not come to its next statement in time.
pub(super) fn open_tables(settings: &Settings) -> Result<(Link, u64), Failure> {
    let begun = Instant::now();
    loop {
        let link = open(settings)?;
        match schema::migrate(&link, settings) {
            Err(failure) if failure.remedy == Remedy::Reconnect && begun.elapsed() < settings.patience => {}
            seed => return Ok((link, seed?)),
        }
    }
}

fn open_within(settings: &Settings, within: Duration) -> Result<Link, Failure> {
    let off = ["enable_hashjoin", "enable_mergejoin", "enable_bitmapscan"].map(|name| (name, "off".to_owned()));
    let plans = [("plan_cache_mode", "force_generic_plan".to_owned())];
    Link::open_with(settings, within, &[&off[..], &plans].concat())
}

/// Whether a row is due earlier than the one that a scheduler waits for.
const LOOK_AGAIN: &str = "SELECT least((SELECT min(least((SELECT apart FROM jobs WHERE handler = walk.handler AND priority = walk.priority \
     AND priority <> 0 AND state = 0 AND affinity_id IS NULL AND apart >= walk.low AND apart < $2 ORDER BY apart LIMIT 1), \
     (SELECT apart FROM jobs WHERE early AND handler = walk.handler AND priority = walk.priority AND priority <> 0 AND state = 0 \
     AND affinity_id IS NULL AND apart < least(walk.low, $2) ORDER BY apart LIMIT 1))) \
     FROM unnest($6::bigint[], $7::bigint[], $8::bigint[]) AS walk (handler, priority, low) JOIN handlers h ON h.id = walk.handler \
     WHERE h.name = ANY($1) AND NOT h.paused), (SELECT min(least((SELECT wake FROM jobs WHERE handler = h.id AND recurs = walk.recurs \
     AND wake >= walk.low AND wake < $2 ORDER BY wake LIMIT 1), \
     (SELECT wake FROM jobs WHERE early AND handler = h.id AND recurs = walk.recurs AND wake < least(walk.low, $2) ORDER BY wake LIMIT 1))) \
     FROM unnest($1::text[], $4::boolean[], $5::bigint[]) AS walk (name, recurs, low) JOIN handlers h ON h.name = walk.name WHERE NOT h.paused), \
     (SELECT min(least((SELECT head FROM heads WHERE handler = h.id AND member = m.id AND head >= coalesce(walk.low, 0) AND head < $2 \
     ORDER BY head LIMIT 1), (SELECT head FROM heads WHERE early AND handler = h.id AND member = m.id AND head + 0 < least(walk.low, $2) \
     ORDER BY head + 0 LIMIT 1))) \
     FROM handlers h CROSS JOIN (SELECT 0 AS id UNION ALL SELECT id FROM members WHERE owner = $3 AND NOT dead) AS m \
     LEFT JOIN unnest($9::bigint[], $10::bigint[], $11::bigint[]) AS walk (handler, member, low) ON walk.handler = h.id AND walk.member = m.id \
     WHERE h.name = ANY($1) AND NOT h.paused))";

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, link: Link, seed: u64, told: Sender<Vec<Told>>) -> Self {
        Self {
            shared,
            link: Some(link),
            seed,
            name: new_name(),
            number: 0,
            is_open: false,
            lost: None,
            aside: Aside::default(),
            strays: Vec::new(),
            locked_rooms: HashMap::new(),
            answered: Answered { writes: 0, until: Instant::now() },
            told,
        }
    }

    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        let mut left = None;
        loop {
            let message = match left.take() {
                Some(message) => Some(message),
                None => self.next(messages),
            };
            match message {
                Some(Message::Close) => break,
                Some(Message::Claim(claim, asked, reply)) => self.claim(claim, asked, reply),
                Some(Message::Enter(entry, asked)) => self.enter(&entry, asked),
                Some(Message::Leave(owner, asked)) => self.leave(owner, asked),
                Some(Message::Apply(write)) => {
                    let batch;
                    (batch, left) = self.gather(write, messages);
                    self.apply(batch);
                }
                None => {}
            }
            self.try_aside(Instant::now());
            self.put_back_strays();
        }
        // Each has one more try.
        while !self.aside.is_empty() {
            self.try_aside(Instant::now() + self.shared.settings.patience);
        }
        self.hurry(true);
        let _ = self.link.as_ref().map(|link| self.say_goodbye(link));
    }

    /// The writes of the next commit, and a message of another kind that came after them.
    fn gather(&mut self, first: Write, messages: &Receiver<Message>) -> (Vec<Write>, Option<Message>) {
        let mut size = first.ops.len();
        let mut batch = Vec::from_iter(self.aside.behind(first));
        while size < BATCH {
            match messages.recv_timeout(self.answered.wait(batch.len())) {
                Ok(Message::Apply(write)) => {
                    size += write.ops.len();
                    batch.extend(self.aside.behind(write));
                }
                Ok(other) => return (batch, Some(other)),
                Err(_) => break,
            }
        }
        (batch, None)
    }

    /// From now on the drop of the store waits a little for an answer, and not for the patience.
    fn hurry(&mut self, is_hurried: bool) {
        if let Some(link) = &mut self.link {
            link.hurry = is_hurried.then(|| Arc::clone(&self.shared.closing));
        }
    }

    /// Else the others learn of it by the end of the lease.
    fn say_goodbye(&self, link: &Link) -> Result<(), Failure> {
        link.ask("DELETE FROM writers WHERE writer = $1", &[&self.name])?;
        let owners = self.shared.owners();
        if !owners.is_empty() {
            link.ask("DELETE FROM nodes WHERE owner = ANY($1::bigint[])", &[&owners])?;
            link.ask("UPDATE members SET dead = true WHERE owner = ANY($1::bigint[])", &[&owners])?;
        }
        Ok(())
    }

    /// The next message, or none once something is to be tried that was put aside.
    fn next(&self, messages: &Receiver<Message>) -> Option<Message> {
        let Some(due) = self.aside.due(Instant::now()) else { return Some(messages.recv().unwrap_or(Message::Close)) };
        match messages.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Message::Close),
        }
    }

    /// Until when the first of these writes waits.
    fn deadline(&self, batch: &[Write]) -> Instant {
        let asked = batch.iter().map(|write| write.asked).min();
        asked.unwrap_or_else(Instant::now) + self.shared.settings.patience
    }

    /// Answers the writes, or gives them back.
    fn write(&mut self, batch: Vec<Write>, lock_wait: Duration, is_careful: bool) -> Result<(), (Failure, Vec<Write>)> {
        let (seed, deadline, begun) = (self.seed, self.deadline(&batch), Instant::now());
        let done = self.commit(deadline, (lock_wait, is_careful), |link, shared, commit| {
            apply_all(link, shared, commit, seed, &batch)
        });
        let (Answers { settled, members }, done) = match done {
            Ok(done) => done,
            Err((failure, unknown)) => {
                let next = unknown.into_iter().flat_map(|answers| answers.settled).filter_map(|settled| settled.next);
                self.strays.extend(next.map(|job| job.held));
                return Err((failure, batch));
            }
        };
        self.is_open = false; // its row could be written
        let next = settled.iter().filter_map(|settled| settled.next.as_ref()).map(|job| job.held);
        let next = next.filter_map(|held| Some((held, *members.get(&held.owner)?)));
        self.shared.held.lock().extend(next);
        let left = self.forget_settled(&batch);
        self.tell_here(&done.effects);
        self.answered = Answered::new(batch.len(), begun, Instant::now());
        for (write, answer) in batch.into_iter().zip(settled) {
            write.reply.send(Ok(answer));
        }
        self.tell_others(done);
        left.into_iter().for_each(|owner| self.leave(owner, Instant::now()));
        Ok(())
    }

    fn apply(&mut self, mut batch: Vec<Write>) {
        let patience = self.shared.settings.patience;
        while !batch.is_empty() {
            let wait = self.aside.first_wait(patience, Instant::now());
            let Err((failure, back)) = self.write(std::mem::take(&mut batch), wait, false) else { return };
            match failure.remedy {
                Remedy::Later => {
                    self.aside.beware(patience, Instant::now());
                    let known = self.link.as_ref().map(|link| link.handlers.borrow());
                    let has_row = |name: &Arc<str>| known.as_ref().is_some_and(|known| known.contains(name));
                    self.aside.put(back, has_row, Instant::now());
                }
                // Each has a patience of its own.
                Remedy::Reconnect if !self.shared.closing.load(Ordering::Acquire) => {
                    let now = Instant::now();
                    let (over, rest) = back.into_iter().partition(|write| now >= write.asked + patience);
                    (over as Vec<Write>).into_iter().for_each(|write| write.reply.send(Err(failure.error())));
                    batch = rest;
                }
                // Each for itself, so that none takes the others along.
                Remedy::None | Remedy::Again if back.len() > 1 => {
                    return back.into_iter().for_each(|write| {
                        let write = self.aside.behind(write);
                        self.apply(Vec::from_iter(write));
                    });
                }
                _ => back.into_iter().for_each(|write| write.reply.send(Err(failure.error()))),
            }
        }
    }

    /// Tries what was put aside, as far as it may be tried at this instant.
    fn try_aside(&mut self, now: Instant) {
        let patience = self.shared.settings.patience;
        for write in self.aside.expired(patience, Instant::now()) {
            let lost = self.lost.as_ref().filter(|_| self.link.is_none());
            write.reply.send(Err(lost.cloned().unwrap_or_else(locked).error()));
        }
        let Some((batch, tried)) = self.aside.next(now) else { return };
        let failed = self.write(batch, tried.wait.min(patience / 4), true).err();
        let Some((failure, batch)) = failed else { return self.aside.passed(tried) };
        let is_closing = self.shared.closing.load(Ordering::Acquire);
        let is_last = match failure.remedy {
            Remedy::Later => batch.len() == 1 && is_closing,
            Remedy::Reconnect => is_closing,
            Remedy::None | Remedy::Again => batch.len() == 1,
            Remedy::Unknown => true,
        };
        if is_last {
            batch.into_iter().for_each(|write| write.reply.send(Err(failure.error())));
            return self.aside.passed(tried);
        }
        self.aside.beware(patience, Instant::now());
        self.aside.failed(batch, tried, Instant::now());
    }

    /// If this fails, the next claim makes the scheduler a member.
    fn enter(&mut self, entry: &Entry, asked: Instant) {
        let _ = self.commit_soon(asked, |link, shared, _| {
            let mut work = Work::begin(link)?;
            work.enter(entry, shared.settings.lease);
            Ok(((), work, Asked::default()))
        });
    }

    /// If this fails, the lease of the member ends. The member of a scheduler with runs lives until
    /// these have ended.
    fn leave(&mut self, owner: u64, asked: Instant) {
        self.hurry(true);
        let has_runs = self.shared.held.lock().keys().any(|held| held.owner == owner);
        let left = self.commit_soon(asked, |link, _, _| {
            let mut work = Work::begin(link)?;
            work.leave_member(owner, has_runs);
            Ok(((), work, Asked::default()))
        });
        self.hurry(false);
        if let Ok(((), done)) = left {
            if !has_runs {
                self.shared.sleeps.lock().remove(&owner);
            }
            self.tell_here(&done.effects);
            self.tell_others(done);
        }
    }

    /// Puts the runs back of which no scheduler knows, once there is a connection. The commit that
    /// has begun them may never have been done: then this one finds no run.
    fn put_back_strays(&mut self) {
        if self.strays.is_empty() || self.link.is_none() {
            return;
        }
        let unrun = |&held: &Held| Ok(Op::Settle(Box::new(Settle { held, verdict: Verdict::Unrun, record: None })));
        let write = Write::new(self.strays.iter().map(unrun).collect(), None, Back::Applied(Reply::new(|_| {})));
        let wait = self.aside.first_wait(self.shared.settings.patience, Instant::now());
        if self.write(vec![write], wait, false).is_ok() {
            self.strays.clear();
        }
    }

    /// Returns the schedulers that have left, and whose last runs these were.
    fn forget_settled(&self, batch: &[Write]) -> Vec<u64> {
        let settled = batch.iter().flat_map(|write| &write.ops).filter_map(|op| match op {
            Ok(Op::Settle(settle)) => Some(settle.held),
            _ => None,
        });
        let mut held = self.shared.held.lock();
        let ended: HashSet<u64> =
            settled.filter(|settled| held.remove(settled).is_some()).map(|held| held.owner).collect();
        let entries = self.shared.entries.lock();
        let has_left = |owner: &u64| !entries.contains_key(owner) && !held.keys().any(|held| held.owner == *owner);
        ended.into_iter().filter(has_left).collect()
    }

    fn claim(&mut self, mut claim: Claim, asked: Instant, reply: Reply<Claimed>) {
        let now = Instant::now();
        self.locked_rooms.retain(|_, until| now < *until);
        claim.rooms.retain(|room| !self.locked_rooms.contains_key(&room.name));
        let mut claimed = self.try_claim(&claim, asked, false);
        if claimed.as_ref().is_err_and(|failure| failure.remedy == Remedy::Later) {
            self.aside.beware(self.shared.settings.patience, Instant::now());
            claimed = self.claim_apart(claim, asked);
        }
        match claimed {
            Ok((mut claimed, done)) => {
                let again = (!self.locked_rooms.is_empty()).then(|| claimed.now.saturating_add(LOOK_AGAIN_WITHIN));
                claimed.next_schedule = claimed.next_schedule.into_iter().chain(again).min();
                quietly(|| reply.send(Ok(claimed)));
                done.into_iter().for_each(|done| self.tell_others(done));
            }
            Err(failure) => quietly(|| reply.send(Err(failure.error()))),
        }
    }

    /// A claim has met a lock, such as that of the row of a handler with a limit: the handlers one
    /// by one.
    fn claim_apart(&mut self, claim: Claim, asked: Instant) -> Result<(Claimed, Vec<Committed>), Failure> {
        let now = self.shared.server_now();
        let (jobs, unbound, schedules) = (Vec::new(), Vec::new(), Vec::new());
        let mut all = Claimed { now, jobs, unbound, schedules, next_job: None, next_schedule: None };
        let mut committed = Vec::new();
        for room in claim.rooms {
            let name = Arc::clone(&room.name);
            let claim = Claim { rooms: vec![room], at_most: claim.at_most - all.jobs.len(), ..claim };
            match self.try_claim(&claim, asked, true) {
                Ok((claimed, done)) => {
                    all.now = claimed.now;
                    all.jobs.extend(claimed.jobs);
                    all.schedules.extend(claimed.schedules);
                    all.unbound.extend(claimed.unbound);
                    all.next_job = [all.next_job, claimed.next_job].into_iter().flatten().min();
                    all.next_schedule = [all.next_schedule, claimed.next_schedule].into_iter().flatten().min();
                    committed.extend(done);
                }
                Err(failure) if failure.remedy == Remedy::Later => {
                    self.locked_rooms.insert(name, Instant::now() + LOOK_AGAIN_WITHIN);
                }
                // What was claimed before is claimed.
                Err(failure) if committed.is_empty() => return Err(failure),
                Err(_) => break,
            }
        }
        Ok((all, committed))
    }

    fn try_claim(
        &mut self,
        claim: &Claim,
        since: Instant,
        is_careful: bool,
    ) -> Result<(Claimed, Vec<Committed>), Failure> {
        let (seed, patience) = (self.seed, self.shared.settings.patience);
        // Nodes are told by others of earlier jobs, unless they hear no notices.
        let has_entered = self.shared.entries.lock().contains_key(&claim.owner);
        let is_told = has_entered && !self.shared.settings.is_pooled && !is_careful;
        let slept = self.shared.sleeps.lock().get(&claim.owner).cloned().flatten();
        let wait = self.aside.first_wait(patience, Instant::now());
        let done = self.commit(since + patience, (wait, is_careful), |link, shared, _| {
            let asked = shared.local_now();
            let mut work = Work::begin_claim(link, claim)?;
            shared.see_clock(work.up, asked);
            let entry = shared.entries.lock().get(&claim.owner).cloned();
            let joins = entry.is_some() && work.dialect.outlook.member.is_none();
            if let Some(entry) = entry.as_ref().filter(|_| joins) {
                // its lease was over, or its start has failed
                work.enter(entry, shared.settings.lease);
            }
            work.end_left();
            let (now, member) = (work.up, work.dialect.outlook.member);
            let claimed = work.claim(claim, entry.as_deref(), now, seed);
            let sleep = is_told.then(|| sleepers::bedtime(&work, claim, &claimed, slept.as_ref())).flatten();
            let before = sleep.as_ref().and_then(|sleep| sleep.step(claim, now, shared));
            let after =
                sleep.as_ref().filter(|_| before.is_some()).and_then(|sleep| look_again(link, claim, sleep.next()));
            Ok(((claimed, sleep, member, joins), work, Asked { before, after }))
        });
        let ((mut claimed, sleep, member, joins), done) = done.map_err(|(failure, unknown)| {
            self.strays.extend(unknown.into_iter().flat_map(|(claimed, ..)| claimed.jobs).map(|job| job.held));
            failure
        })?;
        if let Some(member) = member {
            self.shared.held.lock().extend(claimed.jobs.iter().map(|job| (job.held, member)));
        }
        if let Some(sleep) = sleep.and_then(|sleep| sleep.sleep(&done.before, &mut claimed)) {
            self.shared.sleeps.lock().insert(claim.owner, Some(sleep));
        }
        self.tell_here(&done.effects);
        if joins {
            self.shared.watchers.tell(Notice::Joined(claim.owner));
        }
        Ok((claimed, vec![done]))
    }

    /// As [`commit`](Self::commit), with a patience from this instant.
    fn commit_soon<R>(
        &mut self,
        asked: Instant,
        inside: impl for<'l> Fn(&'l Link, &Shared, (i64, i64)) -> Result<Found<'l, R>, Failure>,
    ) -> Result<Done<R>, Failure> {
        let patience = self.shared.settings.patience;
        let wait = self.aside.first_wait(patience, Instant::now());
        self.commit(asked + patience, (wait, false), inside).map_err(|(failure, _)| failure)
    }

    /// Runs `inside` in a transaction, and again until it is committed, fails for good, meets a
    /// lock, or the deadline has passed. A failure has what `inside` has found, if this may have
    /// been committed.
    fn commit<R>(
        &mut self,
        deadline: Instant,
        (lock_wait, is_careful): (Duration, bool),
        inside: impl for<'l> Fn(&'l Link, &Shared, (i64, i64)) -> Result<Found<'l, R>, Failure>,
    ) -> Result<Done<R>, (Failure, Option<R>)> {
        let (mut tries, mut wait) = (0, FIRST_WAIT);
        // The connection was lost meanwhile, and another one was tried for long enough.
        if let Some(lost) = self.lost.clone().filter(|_| self.link.is_none() && Instant::now() >= deadline) {
            return Err((lost, None));
        }
        loop {
            let shared = Arc::clone(&self.shared);
            let attempt = match self.connected(deadline) {
                Ok((link, commit)) => {
                    link.lock_wait.set(lock_wait);
                    link.is_careful.set(is_careful);
                    attempt(link, &shared, commit, &inside)
                }
                Err(failure) => Err((failure, None)),
            };
            let (failure, pending) = match attempt {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            match failure.remedy {
                Remedy::Again if tries < TRIES => {
                    tries += 1;
                    self.undo();
                    // A little time apart, so that two transactions do not meet again and again.
                    std::thread::sleep(shared.spread(Duration::from_millis(2)));
                }
                Remedy::Reconnect => {
                    (self.link, self.lost) = (None, Some(failure.clone()));
                    if let Some(done) = pending.map(|pending| *pending) {
                        self.is_open = true;
                        match self.was_committed(deadline + shared.settings.patience) {
                            Ok(true) => return Ok(done),
                            Ok(false) => {}
                            Err(failure) => {
                                let failure = Failure { fault: Fault::Io, remedy: Remedy::Unknown, ..failure };
                                return Err((failure, Some(done.0)));
                            }
                        }
                    }
                    if Instant::now() >= deadline || shared.closing.load(Ordering::Acquire) {
                        return Err((failure, None));
                    }
                    std::thread::sleep(shared.spread(wait));
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
                _ => {
                    self.undo();
                    return Err((failure, None));
                }
            }
        }
    }

    /// Whether the last transaction was committed, whose answer was lost. The question writes the
    /// row of this writer. So it waits until a former connection of this writer has ended its
    /// transaction, and its own commit is as safe as that one, on a standby too.
    fn was_committed(&mut self, deadline: Instant) -> Result<bool, Failure> {
        let (mut wait, name, number) = (FIRST_WAIT, self.name, self.number);
        loop {
            let sql = "INSERT INTO writers (writer, number, at) VALUES ($1, 0, clock()) \
                       ON CONFLICT (writer) DO UPDATE SET at = excluded.at RETURNING number";
            let found = self.connected(deadline).and_then(|(link, _)| link.ask(sql, &[&name]));
            let failure = match found {
                Ok(rows) => {
                    self.is_open = false;
                    return Ok(rows.first().is_some_and(|row| row.get::<_, i64>(0) == number));
                }
                Err(failure) => {
                    self.link = None;
                    failure
                }
            };
            if Instant::now() >= deadline || self.shared.closing.load(Ordering::Acquire) {
                return Err(failure);
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    /// The connection, and the name and number of the next commit. A new connection has a new name:
    /// a session that the former one has left behind may still have the row of the old name. After
    /// a commit without an answer it keeps the name, so that no further commit is sent after it.
    fn connected(&mut self, deadline: Instant) -> Result<(&Link, (i64, i64)), Failure> {
        if self.link.is_none() {
            let within =
                deadline.saturating_duration_since(Instant::now()).clamp(SHORTEST, self.shared.settings.patience);
            let link = open_within(&self.shared.settings, within).map_err(Failure::while_open)?;
            self.seed = schema::migrate(&link, &self.shared.settings)?;
            self.link = Some(link);
            if !self.is_open {
                self.name = new_name();
            }
            // What was missed meanwhile.
            self.shared.sleeps.lock().values_mut().for_each(|sleeps| *sleeps = None);
        }
        let link = self.link.as_ref().ok_or_else(|| Failure::new(Fault::Other, "no connection"))?;
        self.number += 1;
        if self.number % OF_A_NAME == 0 && !self.is_open {
            let _ = link.ask("DELETE FROM writers WHERE writer = $1", &[&self.name]);
            self.name = new_name();
        }
        Ok((link, (self.name, self.number)))
    }

    fn undo(&mut self) {
        if self.link.as_ref().is_some_and(|link| link.batch("ROLLBACK").is_err()) {
            self.link = None;
        }
    }

    fn tell_here(&self, effects: &Effects) {
        for notice in effects.notices() {
            self.shared.watchers.tell(notice);
        }
    }

    /// What was asked along with the commit, or is asked now: which nodes it concerns, and what a
    /// scheduler that goes to sleep has not seen.
    fn tell_others(&mut self, done: Committed) {
        let Committed { now, questions, looks, answers, .. } = done;
        if questions.is_empty() {
            return;
        }
        let answers = answers.or_else(|| {
            let steps: Vec<Step<'static>> = [Step::Begin].into_iter().chain(questions).chain([Step::Commit]).collect();
            let (mut answers, failed) = self.link.as_ref()?.steps(&steps);
            if failed.is_some() {
                // The safety look of the others finds the row.
                self.link = None;
                return None;
            }
            answers.pop();
            Some(answers.split_off(1))
        });
        let Some(mut answers) = answers else { return };
        let seen = if looks && !answers.is_empty() { answers.remove(0) } else { Vec::new() };
        // A put by another node reads until when this node sleeps after its commit. A put that has
        // read an older instant is found here: the rows are read after the commit of the new
        // instant.
        if let Some(at) = seen.first().and_then(|row| row.get::<_, Option<i64>>(0)) {
            // If it was due at the claim, and the claim has not got it, another transaction had
            // locked it, and may have it still.
            let at = if at <= now.as_i64() { now.as_i64() + LOCKED_AGAIN } else { at };
            self.shared.watchers.tell(Notice::Wake { at: Micros::new(at) });
        }
        let told = sleepers::told(&answers);
        if !told.is_empty() {
            let _ = self.told.send(told);
        }
    }
}

/// The question for rows that a scheduler which goes to sleep has not seen.
fn look_again(link: &Link, claim: &Claim, next: Micros) -> Option<Step<'static>> {
    if claim.rooms.iter().any(|room| room.places == 0) {
        return None; // full handlers: the end of a run looks
    }
    let cursors = link.cursors.borrow();
    let walks = claim.rooms.iter().flat_map(|room| [true, false].map(|recurs| (&room.name, recurs)));
    let low = |(name, recurs)| cursors.low(&Walk::Due(Due::Handler(Arc::clone(name), recurs))).unwrap_or(i64::MIN);
    let (recurs, lows): (Vec<bool>, Vec<i64>) = walks.clone().map(|walk| (walk.1, low(walk))).unzip();
    let names: Vec<String> = walks.map(|(name, _)| name.to_string()).collect();
    let ((kinds, priorities, begins), (of, members, heads)) = (link.walks_of_priorities(), cursors.heads());
    let (next, owner) = (next.as_i64(), claim.owner as i64);
    Some(run!(LOOK_AGAIN, names, next, owner, recurs, lows, kinds, priorities, begins, of, members, heads))
}

/// A name among the writers of all nodes.
fn new_name() -> i64 {
    RandomState::new().hash_one(1u8) as i64
}

fn locked() -> Failure {
    Failure::new(Fault::Locked, "a transaction has locked a row or a key that this one needs")
}

/// The answers to writes, and the members that have taken the places of runs, by scheduler.
struct Answers {
    settled: Vec<Settled>,
    members: HashMap<u64, i64>,
}

/// A failure, and a commit whose answer was lost.
type Failed<R> = (Failure, Option<Box<Done<R>>>);

fn attempt<R>(
    link: &Link,
    shared: &Shared,
    commit: (i64, i64),
    inside: impl for<'l> Fn(&'l Link, &Shared, (i64, i64)) -> Result<Found<'l, R>, Failure>,
) -> Result<Done<R>, Failed<R>> {
    let (result, work, asked) = inside(link, shared, commit).map_err(|failure| (failure, None))?;
    match work.commit(shared, commit, asked) {
        Ok(done) => Ok((result, done)),
        Err((failure, pending)) => Err((failure, pending.map(|done| Box::new((result, *done))))),
    }
}

/// Whether a schedule has no occurrence from now on. The scheduler does not know the clock of the
/// server.
fn is_over(new: &NewJob, now: Micros) -> bool {
    let schedule = new.recurrence.as_ref().filter(|_| new.first.is_none());
    schedule.is_some_and(|recurrence| first_occurrence(&recurrence.schedule, now).is_none())
}

fn apply_all<'l>(
    link: &'l Link,
    shared: &Shared,
    commit: (i64, i64),
    seed: u64,
    batch: &[Write],
) -> Result<Found<'l, Answers>, Failure> {
    let ops = || batch.iter().flat_map(|write| &write.ops).filter_map(|op| op.as_ref().ok());
    let places = merged(batch.iter().filter_map(|write| write.place.as_ref()));
    let asked = shared.local_now();
    let mut work = Work::begin_apply(link, commit, ops(), &places)?;
    if !places.is_empty() {
        shared.see_clock(work.up, asked);
    }
    work.find_groups(ops());
    let now = work.up;
    let mut answers = Vec::with_capacity(batch.len());
    for write in batch {
        let apply = |op: &Checked| match op {
            Ok(Op::Put(new)) if is_over(new, now) => Applied::Invalid(Invalid::NoOccurrence),
            Ok(op) => work.apply(op.clone(), now),
            Err(invalid) => Applied::Invalid(*invalid),
        };
        answers.push(Settled { applied: write.ops.iter().map(apply).collect(), next: None });
        if work.has_failed() {
            return Ok((Answers { settled: answers, members: HashMap::new() }, work, Asked::default()));
        }
    }
    let (mut dealer, mut members) = (Dealer::default(), HashMap::new());
    for place in &places {
        members.extend(work.member_for(place.owner).map(|member| (place.owner, member)));
        let entry = shared.entries.lock().get(&place.owner).cloned();
        dealer.add(work.fill_places(place, entry.as_deref(), seed));
    }
    for (write, settled) in batch.iter().zip(&mut answers) {
        settled.next = write.place.as_ref().and_then(|place| dealer.next(place));
    }
    Ok((Answers { settled: answers, members }, work, Asked::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_waits_for_the_callers_of_the_last_one_and_not_for_long() {
        let now = Instant::now();
        let until = |took: Duration| Answered::new(4, now, now + took).until - (now + took);
        assert_eq!(until(Duration::from_micros(800)), Duration::from_micros(100));
        assert_eq!(until(Duration::from_secs(800)), GATHER);
        let soon = Answered { writes: 4, until: now + Duration::from_secs(100) };
        assert!([0, 1, 3].iter().all(|&writes| soon.wait(writes) > Duration::ZERO));
        assert_eq!([4, 5].map(|writes| soon.wait(writes)), [Duration::ZERO; 2]);
        let passed = Answered { writes: 4, until: now };
        assert_eq!(passed.wait(1), Duration::ZERO);
    }
}
