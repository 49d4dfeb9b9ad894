//! The thread that writes: group commits, and looks at what other processes wrote.
//!
//! Ground rules. One connection, on one thread. A batch is all that has queued up while the commit
//! before was on its way to the disk, and is one transaction. If it fails, each of its messages
//! gets a transaction of its own, so that one of them cannot take the others along. A batch of
//! claims alone is not flushed: what a cut of the power takes with it is that these runs have
//! begun. Replies and notices are given after the commit, here, and run no code of users but
//! wakers: the engine hands its work to the pool ([`Store::has_thread`](super::Store::has_thread)).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::Shared;
use super::alive::Alive;
use super::error::Failure;
use super::work::{Memory, NEW_ENDS, Work, Wrote};
use super::{log, place, schema};
use crate::store::rules::{Changes, Claims, Dealer, Effects, Rows, merged};
use crate::store::sql::Checked;
use crate::store::{Applied, Claim, Claimed, Entry, Fault, Micros, Notice, Reply, Settled};
use crate::unwind::quietly;

/// How often schedulers ask whether there is new zone data.
const DAY: Duration = Duration::from_secs(86_400);
/// How soon to try again what has failed.
const SOON: Duration = Duration::from_secs(1);
/// The shortest wait for the end of a transaction of the user's.
const SHORT: Duration = Duration::from_millis(1);
/// How long the begin of a run may wait for a flush.
const LAZY: Duration = Duration::from_secs(1);
/// The pages of the log from which on a commit is followed by a checkpoint: SQLite's own number.
const CHECKPOINT: u32 = 1_000;
/// The most messages of a commit.
const BATCH: usize = 1_024;

/// When a commit is on the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flush {
    /// Before its answers are given.
    Now,
    /// With a later commit.
    Later,
}

type Entries = HashMap<u64, Arc<Entry>>;

pub(super) enum Message {
    /// With the instant at which its patience began.
    Write(Write, Instant),
    /// Another connection has written, or may have.
    Look,
    /// Another process may have ended.
    Census,
    /// A transaction of the user's has operations, and has not ended yet.
    Joined,
    /// The file was found to be damaged.
    Damaged(Failure),
    Close,
}

pub(super) enum Write {
    Apply(Vec<Checked>, Reply<Vec<Applied>>),
    Claim(Claim, Reply<Claimed>),
    /// The end of a run, and a claim for its place.
    Settle(Box<Checked>, Option<Claim>, Reply<Settled>),
    /// A scheduler starts.
    Enter(Arc<Entry>),
    /// A scheduler begins no more runs.
    Leave(u64),
}

enum Answer {
    Applied(Vec<Applied>),
    Claimed(Claimed),
    Settled(Settled),
    Nothing,
}

pub(super) struct Writer {
    pub(super) db: Connection,
    pub(super) shared: Arc<Shared>,
    pub(super) alive: Alive,
    /// How long an operation waits for the lock of writers.
    busy: Duration,
    /// The file that was opened, by device and number.
    file: (u64, u64),
    memory: Option<Memory>,
    /// The schedulers of this store.
    entries: Entries,
    version: i64,
    /// Another connection has written since the last look.
    foreign: bool,
    /// Another process may have ended since the last census.
    census: bool,
    /// Operations of a transaction of the user's are under way.
    joined: bool,
    /// When the day is over.
    day_ends: Instant,
    /// How the connection commits.
    flush: Flush,
    /// Some commits have not been flushed, and are to be by this instant.
    unflushed: Option<Instant>,
    /// A flush has failed, or may have failed before this process had the log open, or in a process
    /// that is gone: the log may not be on the disk as it is in memory.
    is_in_doubt: bool,
    damaged: Option<Failure>,
}

impl Writer {
    pub(super) fn new(db: Connection, shared: Arc<Shared>, alive: Alive, busy: Duration) -> Result<Self, Failure> {
        db.busy_timeout(Duration::ZERO)?;
        let file = place::identity(&shared.path)?;
        let mut writer = Self {
            db,
            file,
            shared,
            alive,
            busy,
            memory: None,
            entries: HashMap::new(),
            version: 0,
            foreign: false,
            census: false,
            joined: false,
            day_ends: Instant::now() + DAY,
            flush: Flush::Now,
            unflushed: None,
            is_in_doubt: false,
            damaged: None,
        };
        writer.register()?;
        Ok(writer)
    }

    /// Takes part: this process gets a number, and runs of processes that are gone wait again.
    fn register(&mut self) -> Result<(), Failure> {
        self.is_in_doubt = true;
        match self.try_register() {
            Err(failure) if failure.fault == Fault::Full => self.try_register()?, // as in `attempt`
            done => done?,
        }
        self.is_in_doubt = false; // the row of this process was written and flushed
        self.alive.ring();
        Ok(())
    }

    fn try_register(&mut self) -> Result<(), Failure> {
        self.in_commit(|work, alive, _, now| {
            alive.register(work.db(), now)?;
            work.facts.process = alive.number();
            for gone in alive.gone(work.db())? {
                work.end_process(gone, true, now);
                alive.forget(work.db(), gone)?;
            }
            work.has_new_ends = true; // those that older versions have noted
            work.sweep();
            Ok(())
        })?;
        Ok(())
    }

    pub(super) fn run(mut self, messages: &Receiver<Message>) {
        let mut batch = Vec::new();
        let mut open = true;
        while open {
            // While a transaction of the user's has operations, this thread waits for its end.
            let first = if self.joined { messages.try_recv() } else { self.next_message(messages) };
            let mut next = match first {
                Err(TryRecvError::Disconnected) => break,
                first => first,
            };
            if self.day_ends <= Instant::now() {
                self.end_day();
            }
            let mut looks = false;
            while let Ok(message) = next {
                match message {
                    Message::Write(write, asked) => batch.push((write, asked)),
                    Message::Look => looks = true,
                    Message::Census => self.census = true,
                    Message::Joined => self.joined = true,
                    Message::Damaged(failure) => self.note_damage(&failure),
                    Message::Close => open = false,
                }
                next = if batch.len() < BATCH { messages.try_recv() } else { Err(TryRecvError::Empty) };
            }
            if !batch.is_empty() {
                self.write(std::mem::take(&mut batch));
            }
            // After the batch, which may have been a flush, and does not wait for this one.
            if self.unflushed.is_some_and(|by| by <= Instant::now()) {
                self.flush();
            }
            if self.joined {
                self.await_joined();
            }
            if self.census {
                self.census();
            }
            if looks || self.foreign {
                self.look();
            }
        }
        self.leave();
    }

    /// Waits for a message, for the day to end, for the time to flush, or for the time to try again
    /// what has failed.
    fn next_message(&self, messages: &Receiver<Message>) -> Result<Message, TryRecvError> {
        let until = self.unflushed.map_or(self.day_ends, |by| by.min(self.day_ends));
        let wait = until.saturating_duration_since(Instant::now());
        let failed = (self.census || self.foreign) && self.damaged.is_none();
        let wait = if failed { wait.min(SOON) } else { wait };
        messages.recv_timeout(wait).map_err(|error| match error {
            RecvTimeoutError::Timeout => TryRecvError::Empty,
            RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
        })
    }

    fn end_day(&mut self) {
        self.day_ends = Instant::now() + DAY;
        if self.damaged.is_none() {
            let swept = self.in_commit(|work, _, _, _| {
                work.sweep();
                Ok(())
            });
            if let Err(failure) = swept {
                self.day_ends = Instant::now() + SOON;
                return self.note_damage(&failure);
            }
            self.shared.watchers.tell(Notice::Day);
        }
    }

    /// Flushes the commits before. A commit that changes nothing would not be flushed, so this one
    /// counts itself.
    fn flush(&mut self) {
        self.unflushed = None;
        if self.damaged.is_some() {
            return;
        }
        let flushed = self.in_commit(|work, _, _, _| {
            work.count_flush();
            Ok(())
        });
        if let Err(failure) = flushed {
            self.flush_soon();
            self.note_damage(&failure);
        }
    }

    fn write(&mut self, batch: Vec<(Write, Instant)>) {
        for (write, _) in &batch {
            match write {
                Write::Enter(entry) => _ = self.entries.insert(entry.owner, Arc::clone(entry)),
                Write::Leave(owner) => _ = self.entries.remove(owner),
                _ => {}
            }
        }
        if let Some(damaged) = &self.damaged {
            let error = damaged.error();
            batch.into_iter().for_each(|(write, _)| write.fail(&error));
            return;
        }
        match self.attempt(&batch) {
            Ok((answers, effects)) => {
                self.tell(effects);
                batch.into_iter().zip(answers).for_each(|((write, _), answer)| write.answer(answer));
            }
            // What needs no room, such as the end of a run, goes on.
            Err(failure) if matches!(failure.fault, Fault::Full | Fault::Other) && batch.len() > 1 => {
                batch.into_iter().for_each(|write| self.write(vec![write]));
            }
            Err(failure) if matches!(failure.fault, Fault::Full | Fault::Other) && batch[0].0.place().is_some() => {
                self.write(batch.into_iter().map(|(write, asked)| (write.without_place(), asked)).collect());
            }
            // Each has a patience of its own.
            Err(failure) if failure.fault == Fault::Locked => {
                let (now, busy) = (Instant::now(), self.busy);
                let (over, rest): (Vec<_>, Vec<_>) =
                    batch.into_iter().partition(|(_, asked)| now.saturating_duration_since(*asked) >= busy);
                over.into_iter().for_each(|(write, _)| write.fail(&failure.error()));
                if !rest.is_empty() {
                    std::thread::sleep(SHORT);
                    self.write(rest);
                }
            }
            Err(failure) => {
                self.note_damage(&failure);
                batch.into_iter().for_each(|(write, _)| write.fail(&failure.error()));
            }
        }
    }

    /// The transaction has ended once this thread gets the lock of writers.
    fn await_joined(&mut self) {
        let begun = Instant::now();
        match self.in_commit(|_, _, _, _| Ok(())) {
            Ok(_) => {
                self.joined = false;
                self.alive.ring();
            }
            // With a short limit for locks, this thread must not spin.
            Err(failure) if failure.fault == Fault::Locked => std::thread::sleep(SHORT.saturating_sub(begun.elapsed())),
            Err(failure) => {
                self.note_damage(&failure);
                (self.joined, self.foreign) = (false, true); // a look, until one succeeds
                self.alive.ring();
            }
        }
    }

    fn note_damage(&mut self, failure: &Failure) {
        if failure.fault == Fault::Damaged {
            self.damaged = Some(failure.clone());
            self.shared.damaged.store(true, Ordering::Release);
        }
    }

    /// Tries a second time if the disk was full: the log may need no further space by now.
    fn attempt(&mut self, batch: &[(Write, Instant)]) -> Result<(Vec<Answer>, Effects), Failure> {
        match self.attempt_once(batch) {
            Err(failure) if failure.fault == Fault::Full => self.attempt_once(batch),
            done => done,
        }
    }

    /// Waits for the lock of writers until the patience of the first one is over.
    fn attempt_once(&mut self, batch: &[(Write, Instant)]) -> Result<(Vec<Answer>, Effects), Failure> {
        let entries = self.entries.clone();
        let is_lazy = batch.iter().all(|(write, _)| write.is_lazy(&entries));
        if is_lazy {
            // A job that is begun at most once has begun before its run does: this is known when
            // the rows are read, and the flush of a commit is settled before.
            let mut begins_once = false;
            let done = self.attempt_with(batch, &entries, Flush::Later, |effects| {
                begins_once = effects.begins_once;
                !begins_once
            });
            if !begins_once {
                return done;
            }
        }
        self.attempt_with(batch, &entries, Flush::Now, |_| true)
    }

    /// `suits`: whether the commit is to be made.
    fn attempt_with(
        &mut self,
        batch: &[(Write, Instant)],
        entries: &Entries,
        flush: Flush,
        suits: impl FnOnce(&Effects) -> bool,
    ) -> Result<(Vec<Answer>, Effects), Failure> {
        let waited = batch.iter().map(|(_, asked)| asked.elapsed()).max().unwrap_or_default();
        self.in_commit_within(self.busy.saturating_sub(waited), flush, |work, _, shared, _| {
            let mut answers = Vec::with_capacity(batch.len());
            let mut applied_at = None;
            for (write, _) in batch {
                let now = work.read_clock(&shared.runtime);
                if matches!(write, Write::Apply(..) | Write::Settle(..)) {
                    applied_at = Some(now);
                }
                answers.push(write.perform(work, entries, now));
                if work.has_failed() {
                    return Ok(answers);
                }
            }
            if let Some(now) = applied_at {
                fill_places(work, batch, &mut answers, entries, now);
            }
            if suits(work.effects()) {
                Ok(answers)
            } else {
                Err(Failure::new(Fault::Other, "the commit is to be flushed"))
            }
        })
    }

    /// Runs `inside` in a transaction, under the lock of writers, and flushes it.
    fn in_commit<R>(
        &mut self,
        inside: impl FnOnce(&mut Work<'_>, &mut Alive, &Shared, Micros) -> Result<R, Failure>,
    ) -> Result<(R, Effects), Failure> {
        self.in_commit_within(self.busy, Flush::Now, inside)
    }

    /// As [`in_commit`](Self::in_commit), with this patience for the lock, and flushed as said.
    fn in_commit_within<R>(
        &mut self,
        patience: Duration,
        flush: Flush,
        inside: impl FnOnce(&mut Work<'_>, &mut Alive, &Shared, Micros) -> Result<R, Failure>,
    ) -> Result<(R, Effects), Failure> {
        self.set_flush(flush)?;
        self.begin(patience)?;
        let mended = self.mend_log(flush);
        let is_sound = mended.is_ok() && (flush == Flush::Now || !self.is_in_doubt);
        let done = mended.and_then(|()| self.in_transaction(inside)).and_then(|(done, effects, wrote)| {
            self.db.prepare_cached("COMMIT")?.execute([])?;
            self.note_flush(flush, wrote);
            Ok((done, effects))
        });
        if let Err(failure) = &done {
            self.memory = None;
            if !self.db.is_autocommit() {
                let _ = self.db.execute_batch("ROLLBACK");
            }
            match failure.fault {
                Fault::Io => self.doubt(),
                Fault::Full if is_sound => self.empty_log(),
                _ => {}
            }
        }
        done
    }

    fn doubt(&mut self) {
        self.is_in_doubt = true;
        self.flush_soon();
    }

    /// Makes a checkpoint. The log may have filled the disk, and SQLite makes checkpoints only
    /// after commits, which fail. Afterwards the next commit writes to the log from its start. The
    /// checkpoint flushes the log first, so a log in doubt was written again before.
    fn empty_log(&mut self) {
        let emptied = self.db.query_row("PRAGMA wal_checkpoint", [], |_| Ok(()));
        if emptied.is_err_and(|error| Failure::from(error).fault == Fault::Io) {
            self.doubt();
        }
    }

    fn mend_log(&self, flush: Flush) -> Result<(), Failure> {
        if self.is_in_doubt && flush == Flush::Now { log::write_again(&self.shared.path) } else { Ok(()) }
    }

    /// The log has the commits in their order, so a flush of one is a flush of all before.
    fn note_flush(&mut self, flush: Flush, wrote: Wrote) {
        match (flush, wrote) {
            (Flush::Now, Wrote::Surely) => (self.unflushed, self.is_in_doubt) = (None, false),
            (Flush::Later, Wrote::Perhaps | Wrote::Surely) => self.flush_soon(),
            _ => {}
        }
    }

    fn flush_soon(&mut self) {
        let _ = self.unflushed.get_or_insert_with(|| Instant::now() + LAZY);
    }

    /// No checkpoint follows a commit that is not flushed: it would flush the log, and keep it to
    /// itself if that fails.
    fn set_flush(&mut self, flush: Flush) -> Result<(), Failure> {
        if self.flush != flush {
            let (level, checkpoint) = match flush {
                Flush::Now => ("FULL", CHECKPOINT),
                Flush::Later => ("NORMAL", 0),
            };
            self.db
                .execute_batch(&format!("PRAGMA synchronous = {level}; PRAGMA wal_autocheckpoint = {checkpoint}"))?;
            self.flush = flush;
        }
        Ok(())
    }

    /// Gets the lock of writers.
    fn begin(&self, patience: Duration) -> Result<(), Failure> {
        schema::when_free(patience, || Ok(self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop)?))
    }

    fn in_transaction<R>(
        &mut self,
        inside: impl FnOnce(&mut Work<'_>, &mut Alive, &Shared, Micros) -> Result<R, Failure>,
    ) -> Result<(R, Effects, Wrote), Failure> {
        self.refresh()?;
        let mut memory = self.memory.take().map_or_else(|| Memory::load(&self.db), Ok)?;
        let Self { db, alive, shared, .. } = self;
        let mut work = Work::on(db, &mut memory, alive.number(), shared.history);
        let now = work.read_clock(&shared.runtime);
        let result = inside(&mut work, alive, shared, now)?;
        let (effects, wrote) = work.finish()?;
        self.memory = Some(memory);
        Ok((result, effects, wrote))
    }

    /// Forgets what another connection may have changed. In a file that has been deleted, moved or
    /// replaced nothing is found or written any more: what it takes would be lost with the
    /// connection.
    fn refresh(&mut self) -> Result<(), Failure> {
        place::is_still(&self.shared.path, self.file)?;
        let version = self.db.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if self.version != version {
            self.foreign |= self.version != 0;
            (self.version, self.memory) = (version, None);
            self.alive.count(&self.db)?;
        }
        Ok(())
    }

    /// Tells the schedulers of this store, and other processes.
    fn tell(&mut self, effects: Effects) {
        if effects.notices().next().is_some() {
            self.alive.ring();
            for notice in effects.notices() {
                self.shared.watchers.tell(notice);
            }
        }
    }

    /// What other connections wrote: earlier wake instants, and cancelled runs of this process.
    fn look(&mut self) {
        if self.damaged.is_none() {
            match self.foreign_notices() {
                Ok(notices) => notices.into_iter().for_each(|notice| self.shared.watchers.tell(notice)),
                // The schedulers look for themselves, and this thread looks again.
                Err(failure) => {
                    self.foreign = true;
                    self.note_damage(&failure);
                    self.shared.watchers.tell(Notice::Wake { at: Micros::FIRST });
                }
            }
        }
    }

    fn foreign_notices(&mut self) -> Result<Vec<Notice>, Failure> {
        self.refresh()?;
        if !self.foreign {
            return Ok(Vec::new());
        }
        if self.db.prepare_cached(NEW_ENDS)?.exists([])? {
            // By a process with an older version of this library.
            let ((), effects) = self.in_commit(|work, _, _, _| {
                work.has_new_ends = true;
                Ok(())
            })?;
            self.tell(effects);
        }
        let mut memory = self.memory.take().map_or_else(|| Memory::load(&self.db), Ok)?;
        let kinds: Vec<usize> = memory.handlers.active().collect();
        let mut work = Work::on(&self.db, &mut memory, self.alive.number(), self.shared.history);
        let first = |&kind: &usize| [work.first_wake(kind), work.first_schedule(kind).map(|(wake, _)| wake)];
        let heads: Vec<_> = kinds.iter().flat_map(first).collect();
        let process = Some(work.facts.process);
        let groups = kinds.iter().map(|&kind| work.first_group(kind, process));
        let wake = heads.into_iter().chain(groups).flatten().min();
        let cancelled = work.cancelled_runs();
        work.finish()?;
        (self.memory, self.foreign) = (Some(memory), false);
        let wake = wake.map(|at| Notice::Wake { at });
        let cancelled = cancelled.into_iter().map(Notice::Cancelled);
        Ok(wake.into_iter().chain(cancelled).chain([Notice::Ended(None)]).collect())
    }

    /// Takes the runs of processes back that are gone. If this fails, it is tried again.
    fn census(&mut self) {
        if self.damaged.is_some() {
            return;
        }
        match self.try_census() {
            Ok(effects) => {
                self.census = false;
                self.tell(effects);
            }
            Err(failure) => self.note_damage(&failure),
        }
    }

    fn try_census(&mut self) -> Result<Effects, Failure> {
        if self.alive.gone(&self.db)?.is_empty() {
            return Ok(Effects::default());
        }
        self.is_in_doubt = true;
        let taken = self.in_commit(|work, alive, _, now| {
            work.count_flush(); // as in `flush`
            for gone in alive.gone(work.db())? {
                work.end_process(gone, true, now);
                alive.forget(work.db(), gone)?;
            }
            Ok(())
        })?;
        Ok(taken.1)
    }

    /// This process takes part no more.
    fn leave(mut self) {
        if self.damaged.is_none() {
            // If this fails, another process finds that the lock is free.
            let left = self.in_commit(|work, alive, _, now| {
                work.end_process(alive.number(), false, now);
                alive.forget(work.db(), alive.number())
            });
            if left.is_ok() {
                self.alive.ring();
            }
        }
        self.alive.leave();
    }
}

impl Write {
    /// A claim: if it is lost, its jobs wait, as they do after the end of its process. Only an
    /// attempt is not counted. A rate counts begins of runs, and must know of each (M8). So must a
    /// job that is begun at most once, which is found in the commit.
    fn is_lazy(&self, entries: &Entries) -> bool {
        match self {
            Self::Claim(claim, _) => entries
                .get(&claim.owner)
                .is_none_or(|entry| entry.handlers.iter().all(|handler| handler.limits.rate.is_none())),
            _ => false,
        }
    }

    /// In a commit.
    fn perform(&self, work: &mut Work<'_>, entries: &Entries, now: Micros) -> Answer {
        let mut apply = |op: &Checked| match op {
            Ok(op) => work.apply(op.clone(), now),
            Err(invalid) => Applied::Invalid(*invalid),
        };
        match self {
            Self::Apply(ops, _) => Answer::Applied(ops.iter().map(apply).collect()),
            Self::Settle(end, ..) => Answer::Settled(Settled { applied: vec![apply(end)], next: None }),
            Self::Claim(claim, _) => {
                let seed = work.seed();
                let entry = entries.get(&claim.owner);
                if let Some(entry) = entry {
                    work.enter(entry, now); // if the commit of its start has failed
                }
                work.read_due(claim, now);
                let claimed = work.claim(claim, entry.map(|entry| &**entry), now, seed);
                work.end_claim();
                Answer::Claimed(claimed)
            }
            Self::Enter(entry) => {
                work.enter(entry, now);
                Answer::Nothing
            }
            Self::Leave(owner) => {
                work.leave_member(*owner, now);
                Answer::Nothing
            }
        }
    }

    fn place(&self) -> Option<&Claim> {
        if let Self::Settle(_, place, _) = self { place.as_ref() } else { None }
    }

    fn without_place(self) -> Self {
        match self {
            Self::Settle(end, _, reply) => Self::Settle(end, None, reply),
            write => write,
        }
    }

    fn answer(self, answer: Answer) {
        quietly(|| match (self, answer) {
            (Self::Apply(_, reply), Answer::Applied(applied)) => reply.send(Ok(applied)),
            (Self::Claim(_, reply), Answer::Claimed(claimed)) => reply.send(Ok(claimed)),
            (Self::Settle(_, _, reply), Answer::Settled(settled)) => reply.send(Ok(settled)),
            (write, _) => drop(write),
        });
    }

    fn fail(self, error: &crate::Error) {
        quietly(|| match self {
            Self::Apply(_, reply) => reply.send(Err(error.clone())),
            Self::Claim(_, reply) => reply.send(Err(error.clone())),
            Self::Settle(_, _, reply) => reply.send(Err(error.clone())),
            // The next claim makes the scheduler a member. One that has left is none once the store
            // is closed.
            Self::Enter(_) | Self::Leave(_) => {}
        });
    }
}

/// Takes jobs for the places of all runs that end in this commit.
fn fill_places(
    work: &mut Work<'_>,
    batch: &[(Write, Instant)],
    answers: &mut [Answer],
    entries: &Entries,
    now: Micros,
) {
    let (seed, mut dealer) = (work.seed(), Dealer::default());
    for claim in merged(batch.iter().filter_map(|(write, _)| write.place())) {
        work.read_due(&claim, now);
        dealer.add(work.fill(&claim, entries.get(&claim.owner).map(|entry| &**entry), now, seed));
        work.end_claim();
    }
    for ((write, _), answer) in batch.iter().zip(answers) {
        if let (Some(place), Answer::Settled(settled)) = (write.place(), answer) {
            settled.next = dealer.next(place);
        }
    }
}
