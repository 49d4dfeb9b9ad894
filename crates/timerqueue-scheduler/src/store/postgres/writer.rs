//! The thread that writes: group commits, claims, and what other nodes are told.
//!
//! Ground rules. One connection, on one thread. All operations that have queued up during the commit before are one transaction; a claim is one of
//! its own. A transaction that met another one is run again. If the connection is lost, a new one is made, and the server is asked whether the
//! commit was done, so no operation is applied twice. Replies and notices are given after the commit, here, and run no code of users but
//! wakers: the engine hands its work to the pool ([`Store::has_thread`](super::Store::has_thread)).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use super::error::{Failure, Remedy};
use super::link::Link;
use super::sleepers::{self, Told};
use super::wire::{Step, run};
use super::work::{Asked, Committed, LOCKED_AGAIN, Work};
use super::{Checked, Settings, Shared, schema};
use crate::scheduler::quietly;
use crate::store::rules::{Changes, Claims, Dealer, Effects, Runs, merged};
use crate::store::{Applied, Claim, Claimed, Entry, Fault, Micros, Notice, Op, Reply, Settled};

/// The most operations of a commit.
const BATCH: usize = 1_024;
/// The waits before another connection: doubled each time, between these two.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// How often a transaction is run again because of others.
const TRIES: u32 = 50;

/// Operations, and a claim for the place of the run that they end.
pub(super) struct Write {
    pub(super) ops: Vec<Checked>,
    pub(super) place: Option<Claim>,
    pub(super) reply: Back,
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
    Claim(Claim, Reply<Claimed>),
    /// A scheduler starts.
    Enter(Arc<Entry>),
    /// A scheduler begins no more runs.
    Leave(u64),
    Close,
}

pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) link: Option<Link>,
    pub(super) seed: u64,
    /// The name of this writer among those of all nodes.
    pub(super) name: i64,
    /// The number of the last transaction.
    pub(super) number: i64,
    /// To the thread that tells other nodes.
    pub(super) told: Sender<Vec<Told>>,
}

/// What a transaction has found, and what is left to do after its commit.
type Done<R> = (R, Committed);

/// What a transaction has found, its rows, and what is asked along with its commit.
type Found<'l, R> = (R, Work<'l>, Asked);

/// Rows come as arrays, and each is found by an index: with numbers of rows that are out of date, another join could read a whole table.
pub(super) fn open(settings: &Settings) -> Result<Link, Failure> {
    Link::open_with(settings, &[("enable_hashjoin", "off".to_owned()), ("enable_mergejoin", "off".to_owned())])
}

/// Whether a row is due earlier than the one that a scheduler waits for.
const LOOK_AGAIN: &str = "SELECT least((SELECT min((SELECT min(wake) FROM jobs WHERE handler = h.id AND recurs = r AND wake < $2)) \
     FROM handlers h, (VALUES (true), (false)) AS kinds (r) WHERE h.name = ANY($1) AND NOT h.paused), \
     (SELECT min((SELECT min(head) FROM affinities WHERE handler = h.id AND member = m.id AND head < $2)) \
     FROM handlers h, (SELECT 0 AS id UNION ALL SELECT id FROM members WHERE owner = $3 AND NOT dead) AS m \
     WHERE h.name = ANY($1) AND NOT h.paused))";

impl Writer {
    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        let mut left = None;
        loop {
            let Some(message) = left.take().or_else(|| messages.recv().ok()) else { break };
            match message {
                Message::Close => break,
                Message::Claim(claim, reply) => self.claim(claim, reply),
                Message::Enter(entry) => self.enter(&entry),
                Message::Leave(owner) => self.leave(owner),
                Message::Apply(write) => {
                    let mut size = write.ops.len();
                    let mut batch = vec![write];
                    while size < BATCH {
                        match messages.try_recv() {
                            Ok(Message::Apply(write)) => {
                                size += write.ops.len();
                                batch.push(write);
                            }
                            Ok(other) => {
                                left = Some(other);
                                break;
                            }
                            Err(_) => break,
                        }
                    }
                    self.apply(batch);
                }
            }
        }
        let owners = self.shared.owners();
        if let Some(link) = &self.link {
            let _ = link.ask("DELETE FROM writers WHERE writer = $1", &[&self.name]);
        }
        if let (Some(link), false) = (&self.link, owners.is_empty()) {
            let _ = link.ask("DELETE FROM nodes WHERE owner = ANY($1::bigint[])", &[&owners]);
            let _ = link.ask("UPDATE members SET dead = true WHERE owner = ANY($1::bigint[])", &[&owners]);
        }
    }

    fn apply(&mut self, batch: Vec<Write>) {
        let seed = self.seed;
        match self.commit(|link, shared, commit| apply_all(link, shared, commit, seed, &batch)) {
            Ok((answers, done)) => {
                self.forget_settled(&batch);
                let next = answers.iter().filter_map(|settled| settled.next.as_ref());
                self.shared.held.lock().extend(next.map(|job| job.held));
                self.tell_here(&done.effects);
                for (write, answer) in batch.into_iter().zip(answers) {
                    write.reply.send(Ok(answer));
                }
                self.tell_others(done);
            }
            // Each for itself, so that none takes the others along.
            Err(failure) if batch.len() > 1 && failure.remedy == Remedy::None => {
                batch.into_iter().for_each(|write| self.apply(vec![write]));
            }
            Err(failure) => {
                for write in batch {
                    write.reply.send(Err(failure.error()));
                }
            }
        }
    }

    /// If this fails, the next claim makes the scheduler a member.
    fn enter(&mut self, entry: &Entry) {
        let _ = self.commit(|link, shared, _| {
            let mut work = Work::begin(link)?;
            work.enter(entry, shared.settings.lease);
            Ok(((), work, Asked::default()))
        });
    }

    /// If this fails, the lease of the member ends.
    fn leave(&mut self, owner: u64) {
        let left = self.commit(|link, _, _| {
            let mut work = Work::begin(link)?;
            work.leave_member(owner);
            Ok(((), work, Asked::default()))
        });
        if let Ok(((), done)) = left {
            self.tell_here(&done.effects);
            self.tell_others(done);
        }
    }

    fn forget_settled(&self, batch: &[Write]) {
        let settled = batch.iter().flat_map(|write| &write.ops).filter_map(|op| match op {
            Ok(Op::Settle(settle)) => Some(settle.held),
            _ => None,
        });
        let mut held = self.shared.held.lock();
        for settled in settled {
            held.remove(&settled);
        }
    }

    fn claim(&mut self, claim: Claim, reply: Reply<Claimed>) {
        let seed = self.seed;
        let has_lease = claim.lease.is_some();
        // Schedulers with leases are nodes that others tell of earlier jobs, unless they hear no notices.
        let is_told = has_lease && !self.shared.settings.is_pooled;
        let slept = self.shared.sleeps.lock().get(&claim.owner).cloned().flatten();
        let done = self.commit(|link, shared, _| {
            let asked = shared.local_now();
            let mut work = Work::begin_claim(link, &claim)?;
            shared.see_clock(work.now, asked);
            let entry = shared.entries.lock().get(&claim.owner).cloned();
            let joins = entry.is_some() && work.affinities.outlook.member.is_none();
            if let Some(entry) = entry.as_ref().filter(|_| joins) {
                work.enter(entry, shared.settings.lease); // its lease was over, or its start has failed
            }
            let now = work.now;
            let claimed = work.claim(&claim, entry.as_deref(), now, seed);
            let sleep = is_told.then(|| sleepers::bedtime(&work, &claim, &claimed, slept.as_ref())).flatten();
            let before = sleep.as_ref().and_then(|sleep| sleep.step(&claim, now, shared));
            let after = sleep.as_ref().filter(|_| before.is_some()).and_then(|sleep| look_again(&claim, sleep.next()));
            Ok(((claimed, sleep, joins), work, Asked { before, after }))
        });
        match done {
            Ok(((mut claimed, sleep, joins), done)) => {
                if has_lease {
                    self.shared.held.lock().extend(claimed.jobs.iter().map(|job| job.held));
                }
                if let Some(sleep) = sleep.and_then(|sleep| sleep.sleep(&done.before, &mut claimed)) {
                    self.shared.sleeps.lock().insert(claim.owner, Some(sleep));
                }
                self.tell_here(&done.effects);
                if joins {
                    self.shared.tell(Notice::Joined(claim.owner));
                }
                quietly(|| reply.send(Ok(claimed)));
                self.tell_others(done);
            }
            Err(failure) => quietly(|| reply.send(Err(failure.error()))),
        }
    }

    /// Runs `inside` in a transaction, and again until it is committed, fails for good, or the time limit is over.
    fn commit<R>(
        &mut self,
        inside: impl for<'l> Fn(&'l Link, &Shared, (i64, i64)) -> Result<Found<'l, R>, Failure>,
    ) -> Result<Done<R>, Failure> {
        let begun = Instant::now();
        let (mut tries, mut wait) = (0, FIRST_WAIT);
        loop {
            let shared = Arc::clone(&self.shared);
            self.number += 1;
            let commit = (self.name, self.number);
            let attempt = match self.connected() {
                Ok(link) => attempt(link, &shared, commit, &inside),
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
                    self.link = None;
                    if let Some(done) = pending.map(|pending| *pending) {
                        match self.was_committed(begun) {
                            Ok(true) => return Ok(done),
                            Ok(false) => {}
                            Err(failure) => return Err(failure),
                        }
                    }
                    if begun.elapsed() >= shared.settings.patience || shared.closing.load(Ordering::Acquire) {
                        return Err(failure);
                    }
                    std::thread::sleep(shared.spread(wait));
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
                _ => {
                    self.undo();
                    return Err(failure);
                }
            }
        }
    }

    /// Whether the last transaction was committed, whose answer was lost. The question writes the row of this writer. So it waits until a former
    /// connection of this writer has ended its transaction, and its own commit is as safe as that one, on a standby too.
    fn was_committed(&mut self, begun: Instant) -> Result<bool, Failure> {
        let (mut wait, name, number) = (FIRST_WAIT, self.name, self.number);
        loop {
            let sql = "INSERT INTO writers (writer, number, at) VALUES ($1, 0, clock()) \
                       ON CONFLICT (writer) DO UPDATE SET at = excluded.at RETURNING number";
            let found = self.connected().and_then(|link| link.ask(sql, &[&name]));
            let failure = match found {
                Ok(rows) => return Ok(rows.first().is_some_and(|row| row.get::<_, i64>(0) == number)),
                Err(failure) => {
                    self.link = None;
                    failure
                }
            };
            if begun.elapsed() >= self.shared.settings.patience * 2 || self.shared.closing.load(Ordering::Acquire) {
                return Err(failure);
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    fn connected(&mut self) -> Result<&Link, Failure> {
        if self.link.is_none() {
            let link = open(&self.shared.settings).map_err(Failure::while_open)?;
            self.seed = schema::migrate(&link, &self.shared.settings)?;
            self.link = Some(link);
            // What was missed meanwhile.
            self.shared.sleeps.lock().values_mut().for_each(|sleeps| *sleeps = None);
        }
        self.link.as_ref().ok_or_else(|| Failure::new(Fault::Other, "no connection"))
    }

    fn undo(&mut self) {
        if self.link.as_ref().is_some_and(|link| link.batch("ROLLBACK").is_err()) {
            self.link = None;
        }
    }

    fn tell_here(&self, effects: &Effects) {
        for notice in effects.notices() {
            self.shared.tell(notice);
        }
    }

    /// What was asked along with the commit, or is asked now: which nodes it concerns, and what a scheduler that goes to sleep has not seen.
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
        // A put by another node reads until when this node sleeps after its commit. A put that has read an older instant is found here: the rows are
        // read after the commit of the new instant.
        if let Some(at) = seen.first().and_then(|row| row.get::<_, Option<i64>>(0)) {
            // If it was due at the claim, and the claim has not got it, another transaction had locked it, and may have it still.
            let at = if at <= now.as_i64() { now.as_i64() + LOCKED_AGAIN } else { at };
            self.shared.tell(Notice::Wake { at: Micros::new(at), span: false });
        }
        let told = sleepers::told(&answers);
        if !told.is_empty() {
            let _ = self.told.send(told);
        }
    }
}

/// The question for rows that a scheduler which goes to sleep has not seen.
fn look_again(claim: &Claim, next: Micros) -> Option<Step<'static>> {
    if claim.rooms.iter().any(|room| room.places == 0) {
        return None; // full handlers: the end of a run looks
    }
    let names: Vec<String> = claim.rooms.iter().map(|room| room.name.to_string()).collect();
    Some(run!(LOOK_AGAIN, names, next.as_i64(), claim.owner as i64))
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

fn apply_all<'l>(
    link: &'l Link,
    shared: &Shared,
    commit: (i64, i64),
    seed: u64,
    batch: &[Write],
) -> Result<Found<'l, Vec<Settled>>, Failure> {
    let ops = || batch.iter().flat_map(|write| &write.ops).filter_map(|op| op.as_ref().ok());
    let places = merged(batch.iter().filter_map(|write| write.place.as_ref()));
    let asked = shared.local_now();
    let mut work = Work::begin_apply(link, commit, ops(), &places)?;
    if !places.is_empty() {
        shared.see_clock(work.now, asked);
    }
    work.find_affinities(ops());
    let now = work.now;
    let mut answers = Vec::with_capacity(batch.len());
    for write in batch {
        let apply = |op: &Checked| match op {
            Ok(op) => work.apply(op.clone(), now),
            Err(invalid) => Applied::Invalid(*invalid),
        };
        answers.push(Settled { applied: write.ops.iter().map(apply).collect(), next: None });
        if work.has_failed() {
            return Ok((answers, work, Asked::default()));
        }
    }
    let mut dealer = Dealer::default();
    for place in &places {
        let entry = shared.entries.lock().get(&place.owner).cloned();
        dealer.add(work.fill_places(place, entry.as_deref(), seed));
    }
    for (write, settled) in batch.iter().zip(&mut answers) {
        settled.next = write.place.as_ref().and_then(|place| dealer.next(place));
    }
    work.notice_step(now);
    Ok((answers, work, Asked::default()))
}
