//! The rows of a file, inside of a commit.
//!
//! Ground rules. A [`Work`] lives as long as a transaction of the connection that it borrows. It
//! keeps the rows that it has read, and writes each change at once, so that the indexes answer for
//! it. The first failure is kept ([`Work::finish`] returns it): from then on the file looks empty,
//! each loop over it ends, and the transaction is undone.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Params};
use timerqueue::Runtime;

use super::error::Failure;
use super::minutes::Counted;
use super::statements::Statements;
use super::{minutes, rows, text};
use crate::store::minutes::minute_of;
use crate::store::rules::{Affinity, Bindings, Effects, Lane, MOST_DEAD, Member, Row, Rows, Runs, Tie};
use crate::store::{JobId, LastRun, Micros, NewJob, State};

/// What a connection remembers from one commit to the next, as long as no other connection writes.
#[derive(Debug, Default)]
pub(super) struct Memory {
    last_id: u64,
    deaths: u64,
    pub(super) seed: u64,
    kinds: HashMap<usize, Kind>,
    by_name: HashMap<Arc<str>, usize>,
    /// The minute up to which old minutes were removed.
    pruned: i64,
    /// The minute in which no done job was left whose time was over.
    swept: i64,
    /// The file has done jobs, of this process or of another one: their keys may be taken.
    has_done_jobs: bool,
    /// No member is dead, as of the last look of this connection at the members.
    pub(super) all_live: bool,
    /// Runs of this process, as they stand in the file, so that their ends need not read them
    /// again.
    runs: HashMap<JobId, Box<Row>>,
}

/// The most runs that are remembered, and their longest payload.
const RUNS: usize = 4_096;
const SHORT_PAYLOAD: usize = 1_024;

/// The most done jobs that a commit removes because their time is over, beside those that come.
const SWEPT_AT_ONCE: usize = 16;

#[derive(Debug)]
struct Kind {
    name: Arc<str>,
    paused: bool,
}

impl Memory {
    pub(super) fn load(db: &Connection) -> Result<Self, Failure> {
        let mut memory = Self::default();
        let mut statement = db.prepare_cached("SELECT last_id, deaths, seed FROM timerqueue_store")?;
        let numbers: (i64, i64, i64) = statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        (memory.last_id, memory.deaths, memory.seed) = (numbers.0 as u64, numbers.1 as u64, numbers.2 as u64);
        let mut statement = db.prepare_cached("SELECT EXISTS (SELECT 1 FROM timerqueue_finished)")?;
        memory.has_done_jobs = statement.query_row([], |row| row.get(0))?;
        let mut statement = db.prepare_cached("SELECT id, name, paused FROM timerqueue_handlers")?;
        let mut kinds = statement.query([])?;
        while let Some(kind) = kinds.next()? {
            memory.add(kind.get::<_, i64>(0)? as usize, rows::text(kind, 1)?, kind.get(2)?);
        }
        Ok(memory)
    }

    fn add(&mut self, id: usize, name: Arc<str>, paused: bool) {
        self.by_name.insert(Arc::clone(&name), id);
        self.kinds.insert(id, Kind { name, paused });
    }

    /// The handlers that are not paused.
    pub(super) fn active(&self) -> impl Iterator<Item = usize> {
        self.kinds.iter().filter(|(_, kind)| !kind.paused).map(|(&id, _)| id)
    }
}

/// How long done jobs are kept, and how long their keys are taken.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Keep {
    pub(super) finished: Duration,
    pub(super) keys: Duration,
}

/// Whether a commit writes. SQLite writes no page that stays as it is: what sets what is set
/// already flushes nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrote {
    Nothing,
    Perhaps,
    Surely,
}

/// The rows during a commit.
pub(super) struct Work<'a> {
    statements: Statements<'a>,
    pub(super) memory: &'a mut Memory,
    process: i64,
    keep: Keep,
    up: Micros,
    effects: Effects,
    cache: HashMap<JobId, Box<Row>>,
    /// Changes of the counts of each handler.
    counts: HashMap<usize, [i64; State::ALL.len()]>,
    /// The ends of runs.
    minutes: Counted,
    /// The numbers as they stand in the file.
    stored: (u64, u64),
    /// The affinities whose jobs have changed.
    pub(super) unsettled: BTreeSet<u64>,
    /// Some row was written.
    wrote: bool,
    /// The commit changes a page for sure.
    surely: bool,
    failure: Option<Failure>,
}

impl<'a> Work<'a> {
    pub(super) fn new(db: &'a Connection, memory: &'a mut Memory, process: i64, keep: Keep) -> Self {
        let stored = (memory.last_id, memory.deaths);
        Self {
            statements: Statements::new(db),
            memory,
            process,
            keep,
            up: Micros::FIRST,
            effects: Effects::default(),
            cache: HashMap::new(),
            counts: HashMap::new(),
            minutes: Counted::new(),
            stored,
            unsettled: BTreeSet::new(),
            wrote: false,
            surely: false,
            failure: None,
        }
    }

    pub(super) fn db(&self) -> &'a Connection {
        self.statements.db()
    }

    pub(super) fn seed(&self) -> u64 {
        self.memory.seed
    }

    pub(super) fn set_process(&mut self, process: i64) {
        self.process = process;
    }

    /// The clock of the operations that follow.
    pub(super) fn read_clock(&mut self, runtime: &Runtime) -> Micros {
        let wall = runtime.wall_now();
        let now = Micros::floor(wall);
        self.up = Micros::ceil(wall).unwrap_or(now);
        now
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Writes counts, numbers and minutes. The caller commits, or undoes the transaction after a
    /// failure.
    pub(super) fn finish(mut self) -> Result<(Effects, Wrote), Failure> {
        self.settle_affinities();
        let mut surely = self.surely || !self.minutes.is_empty();
        for (kind, counts) in std::mem::take(&mut self.counts) {
            if counts != [0; State::ALL.len()] {
                surely = true;
                let [waiting, queued, running, dead, recurring] = counts;
                let update = "UPDATE timerqueue_handlers SET waiting = waiting + ?2, queued = queued + ?3, \
                              running = running + ?4, dead = dead + ?5, recurring = recurring + ?6 WHERE id = ?1";
                self.execute(update, (kind as i64, waiting, queued, running, dead, recurring));
            }
        }
        let numbers = (self.memory.last_id, self.memory.deaths);
        if numbers != self.stored {
            surely = true;
            let update = "UPDATE timerqueue_store SET last_id = ?1, deaths = ?2";
            self.execute(update, (numbers.0 as i64, numbers.1 as i64));
        }
        if self.failure.is_none() && !self.minutes.is_empty() {
            let written = minutes::write(&mut self.statements, &self.minutes, &mut self.memory.pruned);
            self.kept(written);
            self.sweep();
        }
        self.remember_runs();
        let wrote = match (surely, self.wrote) {
            (true, _) => Wrote::Surely,
            (false, true) => Wrote::Perhaps,
            (false, false) => Wrote::Nothing,
        };
        self.failure.map_or(Ok((self.effects, wrote)), Err)
    }

    /// Changes a number that nothing else has, so that the commit is flushed.
    pub(super) fn count_flush(&mut self) {
        self.surely = true;
        self.execute("UPDATE timerqueue_store SET flushes = flushes + 1", []);
    }

    /// If the commit fails, the memory is forgotten.
    fn remember_runs(&mut self) {
        for (id, row) in self.cache.drain() {
            let is_plain_run = row.state == State::Running && row.process == self.process && row.recurring.is_none();
            if is_plain_run && row.payload.len() <= SHORT_PAYLOAD && self.memory.runs.len() < RUNS {
                self.memory.runs.insert(id, row);
            }
        }
    }

    /// Removes done jobs whose time is over, also where this store keeps none: another one has kept
    /// them, or the file was opened with other options.
    pub(super) fn sweep(&mut self) {
        let now = self.up.as_i64();
        let minute = minute_of(self.up);
        if self.failure.is_none() && self.memory.swept != minute {
            let sql = "DELETE FROM timerqueue_finished WHERE id IN \
                       (SELECT id FROM timerqueue_finished WHERE keep_until < ?1 ORDER BY keep_until LIMIT ?2)";
            let swept = self.statements.get(sql).and_then(|sweep| sweep.execute((now, SWEPT_AT_ONCE as i64)));
            if self.kept(swept).is_some_and(|swept| swept < SWEPT_AT_ONCE) {
                self.memory.swept = minute;
            }
        }
    }

    fn kept<T>(&mut self, result: rusqlite::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.failure.get_or_insert_with(|| error.into());
                None
            }
        }
    }

    pub(super) fn execute(&mut self, sql: &'static str, params: impl Params) {
        if self.failure.is_none() {
            self.wrote = true;
            let done = self.statements.get(sql).and_then(|statement| statement.execute(params));
            self.kept(done);
        }
    }

    /// The first row of a query for two integers.
    pub(super) fn pair(&mut self, sql: &'static str, params: impl Params) -> Option<(i64, i64)> {
        if self.failure.is_some() {
            return None;
        }
        let found = self
            .statements
            .get(sql)
            .and_then(|statement| statement.query_row(params, |row| Ok((row.get(0)?, row.get(1)?))).optional());
        self.kept(found).flatten()
    }

    fn first(&mut self, kind: usize, recurs: bool) -> Option<(Micros, JobId)> {
        let sql = "SELECT wake, id FROM timerqueue_jobs WHERE handler = ?1 AND recurs = ?2 AND wake IS NOT NULL \
                   ORDER BY wake, id LIMIT 1";
        self.pair(sql, (kind as i64, recurs)).map(|(wake, id)| (Micros::new(wake), JobId(id as u64)))
    }

    fn count(&mut self, kind: usize, state: State, by: i64) {
        self.counts.entry(kind).or_default()[state.index()] += by;
    }

    /// Brings a row into the cache.
    fn fetch(&mut self, id: JobId) -> bool {
        if self.cache.contains_key(&id) {
            return true;
        }
        if self.failure.is_some() {
            return false;
        }
        if let Some(row) = self.memory.runs.remove(&id) {
            self.cache.insert(id, row);
            return true;
        }
        let loaded = rows::load(&mut self.statements, id);
        let Some(Some(read)) = self.kept(loaded) else { return false };
        if let Some(reason) = read.unreadable {
            self.bury_unreadable(*read.row, &reason);
            return false;
        }
        self.cache.insert(id, read.row);
        true
    }

    /// A recurring job whose schedule cannot be read (written by hand, or with a zone that this
    /// system does not know) is dead, and in no other job's way. Its text stays as it is.
    fn bury_unreadable(&mut self, row: Row, reason: &str) {
        if row.state == State::Dead {
            return;
        }
        let died = self.next_death();
        let sql = "UPDATE timerqueue_jobs SET state = 3, wake = NULL, earliest = NULL, holds_key = 0, process = NULL, \
                   lease = NULL, died = ?2, error = ?3 WHERE id = ?1";
        self.execute(sql, (row.id.0 as i64, died as i64, format!("the schedule cannot be read: {reason}")));
        self.count(row.kind, row.state, -1);
        self.count(row.kind, State::Dead, 1);
    }

    /// The rows of a query; none after a failure.
    pub(super) fn rows<T>(
        &mut self,
        sql: &'static str,
        params: impl Params,
        read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Vec<T> {
        if self.failure.is_some() {
            return Vec::new();
        }
        let found = self.statements.get(sql).and_then(|rows| rows.query_map(params, read)?.collect());
        self.kept(found).unwrap_or_default()
    }

    pub(super) fn numbers(&mut self, sql: &'static str, params: impl Params) -> Vec<JobId> {
        self.rows(sql, params, |row| Ok(JobId(row.get::<_, i64>(0)? as u64)))
    }

    /// The runs of this process that were cancelled.
    pub(super) fn cancelled_runs(&mut self) -> Vec<JobId> {
        let sql = "SELECT id FROM timerqueue_jobs WHERE process = ?1 AND cancelled = 1 AND state = 2";
        self.numbers(sql, [self.process])
    }

    fn note_row(&mut self, row: &Row) {
        self.unsettled.extend(row.tie.as_ref().map(|tie| tie.affinity));
        // Of a job with an affinity the first wake instant is told when the affinity is settled.
        if !matches!(row.lane(), Lane::Affinity(_)) && !self.is_paused(row.kind) {
            self.effects.wake(row.wake());
        }
        self.effects.notice_step(row, self.up);
    }

    /// The rows that a process holds which is gone wait again. Their attempts count.
    pub(super) fn take_back(&mut self, process: i64, now: Micros) {
        for id in self.numbers("SELECT id FROM timerqueue_jobs WHERE process = ?1", [process]) {
            self.take_back_run(id, now);
        }
    }
}

impl Rows for Work<'_> {
    fn up(&self) -> Micros {
        self.up
    }

    fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    fn process(&self) -> i64 {
        self.process
    }

    fn row(&mut self, id: JobId) -> Option<&Row> {
        if self.fetch(id) { self.cache.get(&id).map(|row| &**row) } else { None }
    }

    fn holder(&mut self, key: &str) -> Option<JobId> {
        let sql = "SELECT id, 0 FROM timerqueue_jobs WHERE key = ?1 AND holds_key = 1";
        self.pair(sql, [key]).map(|(id, _)| JobId(id as u64))
    }

    /// The index of keys tells on the way whether the key is free: a look before would search it
    /// twice.
    fn insert_plain(&mut self, new: &NewJob, due: Micros) -> Option<JobId> {
        let is_plain = new.affinity.is_none() && new.recurrence.is_none() && new.span.is_none();
        if !is_plain || self.memory.has_done_jobs || self.failure.is_some() {
            return None;
        }
        let kind = *self.memory.by_name.get(&new.name)?;
        let id = JobId(self.memory.last_id + 1);
        let inserted = rows::insert_plain(&mut self.statements, id, kind, new, due);
        if !self.kept(inserted)? {
            return None;
        }
        (self.wrote, self.memory.last_id) = (true, id.0);
        self.count(kind, State::Waiting, 1);
        if !self.is_paused(kind) {
            self.effects.wake(Some(due));
        }
        Some(id)
    }

    fn insert(&mut self, row: Box<Row>) {
        if self.failure.is_some() {
            return;
        }
        self.wrote = true;
        let inserted = rows::insert(&mut self.statements, &row);
        self.kept(inserted);
        self.count(row.kind, row.state, 1);
        self.note_row(&row);
        self.cache.insert(row.id, row);
    }

    fn edit<R>(&mut self, id: JobId, change: impl FnOnce(&mut Row) -> R) -> Option<R> {
        if !self.fetch(id) {
            return None;
        }
        let mut row = self.cache.remove(&id)?;
        self.count(row.kind, row.state, -1);
        let before = rows::Settled::of(&row);
        let result = change(&mut row);
        self.count(row.kind, row.state, 1);
        if self.failure.is_none() {
            self.wrote = true;
            let updated = rows::update(&mut self.statements, &row, before);
            self.kept(updated);
        }
        self.note_row(&row);
        self.cache.insert(id, row);
        Some(result)
    }

    fn rewrite(&mut self, id: JobId, kind: usize, payload: &Arc<str>, tie: Option<Box<Tie>>) {
        let affinity = tie.as_ref().map(|tie| (tie.affinity as i64, Arc::clone(&tie.text)));
        let before = self.edit(id, |row| {
            (row.kind, row.payload) = (kind, Arc::clone(payload));
            std::mem::replace(&mut row.tie, tie)
        });
        self.unsettled.extend(before.flatten().map(|tie| tie.affinity));
        let (number, text) = affinity.unzip();
        let sql =
            "UPDATE timerqueue_jobs SET handler = ?2, payload = ?3, affinity_id = ?4, affinity = ?5 WHERE id = ?1";
        self.execute(sql, (id.0 as i64, kind as i64, payload, number, text));
    }

    fn take_out(&mut self, id: JobId) {
        let Some((kind, state)) = self.row(id).map(|row| (row.kind, row.state)) else { return };
        let gone = self.cache.remove(&id);
        self.unsettled.extend(gone.and_then(|row| Some(row.tie.as_ref()?.affinity)));
        self.count(kind, state, -1);
        self.execute("DELETE FROM timerqueue_jobs WHERE id = ?1", [id.0 as i64]);
    }

    fn next_id(&mut self) -> JobId {
        self.memory.last_id += 1;
        JobId(self.memory.last_id)
    }

    fn kind(&mut self, name: &Arc<str>) -> usize {
        if let Some(&kind) = self.memory.by_name.get(name) {
            return kind;
        }
        let sql = "INSERT INTO timerqueue_handlers (name) VALUES (?1) ON CONFLICT (name) DO UPDATE SET name = name \
                   RETURNING id, paused";
        let Some((id, paused)) = self.pair(sql, [&**name]) else { return 0 };
        self.memory.add(id as usize, Arc::clone(name), paused != 0);
        id as usize
    }

    fn known(&mut self, name: &str) -> Option<usize> {
        self.memory.by_name.get(name).copied()
    }

    fn name_of(&mut self, kind: usize) -> Arc<str> {
        self.memory.kinds.get(&kind).map_or_else(|| "".into(), |kind| Arc::clone(&kind.name))
    }

    fn is_paused(&mut self, kind: usize) -> bool {
        self.memory.kinds.get(&kind).is_some_and(|kind| kind.paused)
    }

    fn set_paused(&mut self, kind: usize, paused: bool) {
        self.execute("UPDATE timerqueue_handlers SET paused = ?2 WHERE id = ?1", (kind as i64, paused));
        if let Some(kind) = self.memory.kinds.get_mut(&kind) {
            kind.paused = paused;
        }
    }

    fn first_job(&mut self, kind: usize) -> Option<(Micros, JobId)> {
        self.first(kind, false)
    }

    fn first_schedule(&mut self, kind: usize) -> Option<(Micros, JobId)> {
        self.first(kind, true)
    }

    fn behind(&mut self, now: Micros, at_most: usize) -> Vec<JobId> {
        let sql = "SELECT id FROM timerqueue_jobs WHERE earliest > ?1 ORDER BY earliest DESC LIMIT ?2";
        self.numbers(sql, (now.as_i64(), at_most as i64))
    }

    fn forget_idle(&mut self, now: Micros) {
        self.delete_idle(now);
    }

    fn discard_unreadable(&mut self, id: JobId) -> bool {
        let sql = "DELETE FROM timerqueue_jobs WHERE id = ?1 AND state = 3 RETURNING handler, 0";
        let Some((kind, _)) = self.pair(sql, [id.0 as i64]) else { return false };
        self.count(kind as usize, State::Dead, -1);
        true
    }

    fn finished(&mut self, id: JobId, record: Option<&LastRun>, now: Micros) {
        let Keep { finished, keys } = self.keep;
        let holds_key = self.row(id).is_some_and(|row| row.holds_key);
        let keys = if holds_key { keys } else { Duration::ZERO };
        let (keep, key) = (now.saturating_add(finished.max(keys)), now.saturating_add(keys));
        if keep > now {
            self.memory.has_done_jobs = true;
            let sql = "INSERT OR REPLACE INTO timerqueue_finished (id, key, handler, payload, ended, last, keep_until, \
                       key_until) SELECT id, key, handler, payload, ?2, ?3, ?4, ?5 FROM timerqueue_jobs WHERE id = ?1";
            let last = record.and_then(text::write_last);
            self.execute(sql, (id.0 as i64, now.as_i64(), last, keep.as_i64(), key.as_i64()));
            // More go than come, until none is left whose time is over.
            let sql = "DELETE FROM timerqueue_finished WHERE id IN \
                       (SELECT id FROM timerqueue_finished WHERE keep_until <= ?1 ORDER BY keep_until LIMIT 4)";
            self.execute(sql, [now.as_i64()]);
        }
    }

    fn ended(&mut self, kind: usize, minute: i64, record: &LastRun) {
        self.minutes.entry((minute, kind)).or_default().add(record);
    }

    fn remembered(&mut self, key: &str, now: Micros) -> Option<JobId> {
        if !self.memory.has_done_jobs {
            return None;
        }
        let sql =
            "SELECT id, 0 FROM timerqueue_finished WHERE key = ?1 AND key_until > ?2 ORDER BY key_until DESC LIMIT 1";
        self.pair(sql, (key, now.as_i64())).map(|(id, _)| JobId(id as u64))
    }

    fn next_death(&mut self) -> u64 {
        self.memory.deaths += 1;
        // The rows of a file may be many, so the first to have died make way by hundreds.
        if self.memory.deaths % 256 == 0 {
            let sql = "SELECT died, id FROM timerqueue_jobs WHERE state = 3 ORDER BY died DESC LIMIT 1 OFFSET ?1";
            let last = self.pair(sql, [MOST_DEAD as i64 - 256]).map_or(0, |(died, _)| died);
            let sql = "SELECT died, id FROM timerqueue_jobs WHERE state = 3 AND died <= ?1 ORDER BY died LIMIT 1";
            while let Some((_, id)) = self.pair(sql, [last]) {
                if !self.discard(JobId(id as u64)) {
                    break;
                }
            }
        }
        self.memory.deaths
    }

    fn member_of(&mut self, owner: u64) -> Option<u64> {
        self.find_member(owner)
    }

    fn members(&mut self) -> Vec<Member> {
        self.all_members()
    }

    fn affinity_of(&mut self, kind: usize, text: &Arc<str>, now: Micros) -> u64 {
        self.find_affinity(kind, text, now)
    }

    fn affinity(&mut self, id: u64) -> Option<Affinity> {
        self.settle_affinities();
        self.read_affinity(id)
    }

    fn edit_affinity(&mut self, id: u64, change: impl FnOnce(&mut Affinity)) {
        if let Some(mut affinity) = self.affinity(id) {
            change(&mut affinity);
            self.write_affinity(&affinity);
            self.unsettled.insert(id);
            self.settle_affinities();
        }
    }

    fn runs_of(&mut self, affinity: u64) -> u64 {
        self.running_of(affinity)
    }

    fn first_of(&mut self, affinity: u64) -> Option<(Micros, JobId)> {
        let sql = "SELECT apart, id FROM timerqueue_jobs WHERE affinity_id = ?1 AND state = 0 AND apart IS NOT NULL \
                   ORDER BY apart, id LIMIT 1";
        self.pair(sql, [affinity as i64]).map(|(wake, id)| (Micros::new(wake), JobId(id as u64)))
    }

    fn due_affinities(
        &mut self,
        kinds: &[usize],
        member: u64,
        now: Micros,
        at_most: usize,
    ) -> Vec<(Micros, u64, usize)> {
        self.settle_affinities();
        self.find_due(kinds, member, now, at_most)
    }

    fn next_affinity(&mut self, kinds: &[usize], of: Option<(u64, Micros)>) -> Option<Micros> {
        self.settle_affinities();
        self.find_next(kinds, of)
    }

    fn bound_to(&mut self, member: u64) -> u64 {
        let sql = "SELECT count(*), 0 FROM timerqueue_affinities WHERE member = ?1";
        self.pair(sql, [member as i64]).map_or(0, |(count, _)| count as u64)
    }

    fn unbind_some(&mut self) -> bool {
        self.settle_dead()
    }

    fn counted(&mut self, kind: usize) -> u64 {
        let sql = "SELECT count(*), 0 FROM timerqueue_jobs WHERE handler = ?1 AND state = 2 AND counted = 1";
        self.pair(sql, [kind as i64]).map_or(0, |(count, _)| count as u64)
    }

    fn full_at(&mut self, kind: usize) -> Option<Micros> {
        let sql = "SELECT full_at, 0 FROM timerqueue_handlers WHERE id = ?1 AND full_at IS NOT NULL";
        self.pair(sql, [kind as i64]).map(|(at, _)| Micros::new(at))
    }

    fn set_full_at(&mut self, kind: usize, at: Micros) {
        self.execute("UPDATE timerqueue_handlers SET full_at = ?2 WHERE id = ?1", (kind as i64, at.as_i64()));
    }
}
