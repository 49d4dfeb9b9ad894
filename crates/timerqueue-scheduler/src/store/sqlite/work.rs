//! What a transaction on a file is beside [`Work`](sql::Work).
//!
//! Ground rules. The writers of a file come one after another, so nothing is locked, and what a
//! connection remembers from one commit to the next ([`Memory`]) holds as long as no other
//! connection writes. The handlers have counts, which are written at the end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rusqlite::types::{ToSql, ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Statement, params, params_from_iter};
use timerqueue::Runtime;

use super::error::Failure;
use super::statements::Statements;
use super::{reader, rows};
use crate::store::columns::Read;
use crate::store::minutes::minute_of;
use crate::store::rules::{Effects, Follows as _, KEPT_MICROS, Row, Rows as _, StoreFacts};
use crate::store::sql::history::{self, Texted};
use crate::store::sql::looks::Look;
use crate::store::sql::{self, Answer, Changed, Dialect, Handlers, Heads, Texts, bit, priorities_in, values};
use crate::store::{Claim, Finished, History, JobId, JobInfo, LinkEnds, Micros, NewJob, State, Terms};

/// What a connection remembers from one commit to the next, as long as no other connection writes.
#[derive(Debug, Default)]
pub(super) struct Memory {
    last_id: u64,
    deaths: u64,
    pub(super) seed: u64,
    pub(super) handlers: Handlers,
    /// By handler, as in the file.
    priorities: HashMap<usize, i64>,
    /// The minute up to which old minutes were removed.
    pruned: i64,
    /// The minute in which no done job was left whose time was over.
    swept: i64,
    /// The file has done jobs, of this process or of another one, whose keys may be taken.
    has_done_keys: bool,
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

impl Memory {
    pub(super) fn load(db: &Connection) -> Result<Self, Failure> {
        let mut memory = Self::default();
        let mut statement = db.prepare_cached("SELECT last_id, deaths, seed FROM timerqueue_store")?;
        let numbers: (i64, i64, i64) = statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        (memory.last_id, memory.deaths, memory.seed) = (numbers.0 as u64, numbers.1 as u64, numbers.2 as u64);
        let mut statement =
            db.prepare_cached("SELECT EXISTS (SELECT 1 FROM timerqueue_finished WHERE key_until > ended)")?;
        memory.has_done_keys = statement.query_row([], |row| row.get(0))?;
        let mut statement = db.prepare_cached("SELECT id, name, paused, priorities FROM timerqueue_handlers")?;
        let mut kinds = statement.query([])?;
        while let Some(kind) = kinds.next()? {
            let id = kind.get::<_, i64>(0)? as usize;
            memory.handlers.add(id, rows::text(kind, 1)?, kind.get(2)?);
            memory.priorities.insert(id, kind.get(3)?);
        }
        Ok(memory)
    }
}

/// Whether a commit writes. SQLite writes no page that stays as it is: what sets what is set
/// already flushes nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrote {
    Nothing,
    Perhaps,
    Surely,
}

/// A transaction on a file.
pub(super) struct File<'a> {
    statements: Statements<'a>,
    pub(super) memory: &'a mut Memory,
    /// Changes of the counts of each handler.
    counts: HashMap<usize, [i64; State::ALL.len()]>,
    /// The numbers as they stand in the file.
    stored: (u64, u64),
    /// Some row was written.
    wrote: bool,
    /// The commit changes a page for sure.
    surely: bool,
}

/// The rows during a commit.
pub(super) type Work<'a> = sql::Work<File<'a>>;

impl ToSql for sql::Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match *self {
            Self::Number(number) => ToSqlOutput::Owned(number.map_or(Value::Null, Value::Integer)),
            Self::Flag(flag) => i64::from(flag).into(),
            Self::Text(text) => {
                ToSqlOutput::Borrowed(text.map_or(ValueRef::Null, |text| ValueRef::Text(text.as_bytes())))
            }
            Self::Numbers(numbers) => format!("{numbers:?}").into(),
        })
    }
}

/// A row of an answer.
pub(in crate::store) struct Found(Vec<Value>);

impl Answer for Found {
    fn number(&self, column: usize) -> Option<i64> {
        if let Value::Integer(number) = self.0[column] { Some(number) } else { None }
    }

    fn text(&self, column: usize) -> Option<Arc<str>> {
        match &self.0[column] {
            Value::Text(text) => Some(text.as_str().into()),
            _ => None,
        }
    }

    fn flag(&self, column: usize) -> bool {
        self.number(column).unwrap_or_default() != 0
    }
}

fn found(statement: &mut Statement<'_>, values: &[sql::Value<'_>]) -> Result<Vec<Found>, Failure> {
    let columns = statement.column_count();
    let found = statement.query_map(params_from_iter(values), |row| {
        let value = |column| {
            Ok(match row.get_ref(column)? {
                ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
                other => other.try_into().unwrap_or(Value::Null),
            })
        };
        (0..columns).map(value).collect::<rusqlite::Result<_>>().map(Found)
    })?;
    Ok(found.collect::<Result<_, _>>()?)
}

impl Look for Connection {
    type Failure = Failure;
    type Answer = Found;

    const TEXTS: Texts = sql::FILE;
    const KEEPS_COUNTS: bool = true;

    fn look(&self, sql: &'static str, values: &[sql::Value<'_>]) -> Result<Vec<Found>, Failure> {
        found(&mut *self.prepare_cached(sql)?, values)
    }

    fn jobs(&self, sql: &'static str, values: &[sql::Value<'_>]) -> Result<Vec<JobInfo>, Failure> {
        let mut statement = self.prepare_cached(sql)?;
        let jobs = statement.query_map(params_from_iter(values), reader::info)?.collect::<Result<_, _>>()?;
        Ok(jobs)
    }

    fn near(&self, within: Duration, limit: usize) -> Result<Vec<JobInfo>, Failure> {
        reader::near(self, self.clock()?.saturating_add(within), limit)
    }

    fn clock(&self) -> Result<Micros, Failure> {
        Ok(Micros::floor(SystemTime::now()))
    }

    /// One snapshot.
    fn at_once<T>(&self, look: impl FnOnce(&Self) -> Result<T, Failure>) -> Result<T, Failure> {
        look(&*self.unchecked_transaction()?)
    }
}

impl Dialect for File<'_> {
    type Failure = Failure;
    type Answer = Found;
    type Before = Option<rows::Settled>;

    const TEXTS: Texts = sql::FILE;
    const BY_ID: &'static str = rows::LOAD;
    const BY_KEY: &'static str = rows::HELD;
    const LOCKS: bool = false;

    fn ask(&mut self, sql: &'static str, values: &[sql::Value<'_>]) -> Result<Vec<Found>, Failure> {
        let statement = self.statements.get(sql)?;
        self.wrote |= !statement.readonly();
        found(statement, values)
    }

    fn read(&mut self, sql: &'static str, of: sql::Value<'_>) -> Result<Vec<Read>, Failure> {
        let read = rows::load(&mut self.statements, sql, [of])?;
        // The row is changed now, perhaps, and not remembered again where there are too many.
        read.iter().for_each(|read| _ = self.memory.runs.remove(&read.row.id));
        Ok(read)
    }

    fn write(&mut self, changed: &Changed<'_, Self::Before>) -> Result<(), Failure> {
        self.wrote = true;
        let statements = &mut self.statements;
        for trigger in NOTE_ENDS.iter().filter(|_| !changed.links.is_empty()) {
            statements.get(trigger)?.execute([])?;
        }
        for (follower, link) in changed.links {
            statements.get(LINK)?.execute(params![follower.0 as i64, link.id.0 as i64, link.key])?;
        }
        for id in &changed.gone {
            statements.get("DELETE FROM timerqueue_jobs WHERE id = ?1")?.execute([id.0 as i64])?;
        }
        for &(row, before) in changed.free.iter().chain(&changed.holding) {
            rows::update(statements, row, before.as_ref())?;
        }
        for row in &changed.new {
            rows::insert(statements, row)?;
        }
        Ok(())
    }

    fn before(row: &Row) -> Self::Before {
        rows::Settled::of(row)
    }

    fn handlers(&mut self) -> &mut Handlers {
        &mut self.memory.handlers
    }

    fn count(&mut self, kind: usize, state: State, by: i64) {
        self.counts.entry(kind).or_default()[state.index()] += by;
    }

    /// The index of keys tells on the way whether the key is free: a look before would search it
    /// twice.
    fn insert_plain(work: &mut Work<'_>, new: &NewJob, due: Micros) -> Option<JobId> {
        // What the row of a plain job has not.
        let NewJob {
            group: None,
            recurrence: None,
            span: None,
            priority: 0,
            expires: None,
            terms,
            trace: None,
            after: None,
            key: _,
            name: _,
            payload: _,
            when: _,
            first: _,
            clash: _,
            refuse_overdue: _,
        } = new
        else {
            return None;
        };
        let is_taken = matches!(work.keys.get(&new.key), Some(Some(_)));
        if *terms != Terms::default() || is_taken || work.dialect.memory.has_done_keys {
            return None;
        }
        let kind = work.dialect.memory.handlers.number(&new.name)?;
        let id = JobId(work.dialect.memory.last_id + 1);
        let up = work.up;
        let inserted = work.kept(|file| Ok(rows::insert_plain(&mut file.statements, id, kind, new, due, up)?));
        if !inserted {
            return None;
        }
        (work.dialect.wrote, work.dialect.memory.last_id) = (true, id.0);
        if let Some(holder) = work.keys.get_mut(&new.key) {
            *holder = Some(id);
        }
        work.dialect.count(kind, State::Waiting, 1);
        if !work.is_paused(kind) {
            work.effects.wake(Some(due));
        }
        Some(id)
    }

    fn priorities(work: &mut Work<'_>, kind: usize) -> Vec<i8> {
        priorities_in(work.dialect.memory.priorities.get(&kind).copied().unwrap_or_default())
    }

    fn note_priority(work: &mut Work<'_>, kind: usize, priority: i8) {
        let known = work.dialect.memory.priorities.entry(kind).or_default();
        if *known & bit(priority) == 0 {
            *known |= bit(priority);
            let sql = "UPDATE timerqueue_handlers SET priorities = priorities | $1 WHERE id = $2";
            work.ask(sql, values![bit(priority), kind]);
        }
    }

    fn next_id(work: &mut Work<'_>) -> JobId {
        work.dialect.memory.last_id += 1;
        JobId(work.dialect.memory.last_id)
    }

    fn next_death(work: &mut Work<'_>) -> u64 {
        work.dialect.memory.deaths += 1;
        work.dialect.memory.deaths
    }

    fn kept(&mut self, done: &Finished) {
        self.memory.has_done_keys |= done.holds_key();
    }

    /// A trigger has noted the ends.
    fn with_new_ends(work: &mut Work<'_>) -> Vec<JobId> {
        work.write_rows();
        let found = work.ask(NEW_ENDS, &[]);
        if !found.is_empty() {
            work.ask("UPDATE timerqueue_links SET seen = 1 WHERE ended IS NOT NULL AND seen = 0", &[]);
            work.dialect.surely = true;
        }
        found.iter().map(|row| JobId(row.count(0))).collect()
    }

    fn ends_of(work: &mut Work<'_>, follower: JobId) -> LinkEnds {
        let sql = "SELECT EXISTS (SELECT 1 FROM timerqueue_links WHERE follower = $1 AND ended IS NULL), \
                   EXISTS (SELECT 1 FROM timerqueue_links WHERE follower = $1 AND ended = 2), \
                   EXISTS (SELECT 1 FROM timerqueue_links WHERE follower = $1 AND ended = 3)";
        let found = work.ask(sql, values![follower]);
        found.first().map_or_else(LinkEnds::default, |row| LinkEnds {
            open: row.flag(0),
            dead: row.flag(1),
            gone: row.flag(2),
        })
    }

    fn remembered(work: &mut Work<'_>, key: &str, now: Micros) -> Option<JobId> {
        if !work.dialect.memory.has_done_keys {
            return None;
        }
        let sql = "SELECT id FROM timerqueue_finished WHERE key = $1 AND key_until > $2 AND key_until > ended \
                   ORDER BY key_until DESC LIMIT 1";
        work.number(sql, values![key, now]).map(|id| JobId(id as u64))
    }

    fn remembered_run(&mut self, id: JobId) -> Option<Box<Row>> {
        self.memory.runs.remove(&id)
    }

    fn member_of(work: &mut Work<'_>, owner: u64) -> Option<u64> {
        work.number(File::TEXTS.member, values![owner]).map(|id| id as u64)
    }

    /// More go than come, until none is left whose time is over.
    fn forget_idle(work: &mut Work<'_>, now: Micros) {
        work.flush(); // one that is idle no more stays
        let sql = "DELETE FROM timerqueue_affinities WHERE id IN \
                   (SELECT id FROM timerqueue_affinities WHERE idle <= $1 ORDER BY idle LIMIT 4)";
        work.ask(sql, values![now.as_i64().saturating_sub(KEPT_MICROS)]);
        work.groups.found.clear();
    }

    fn due_groups(
        work: &mut Work<'_>,
        kinds: &[usize],
        member: u64,
        now: Micros,
        at_most: usize,
    ) -> Vec<(Micros, u64, usize)> {
        work.flush();
        let sql = "SELECT head, id FROM timerqueue_affinities WHERE handler = $1 AND member = $2 AND head <= $3 \
                   ORDER BY head LIMIT $4";
        let limit = i64::try_from(at_most).unwrap_or(i64::MAX);
        let mut found = Vec::new();
        for &kind in kinds {
            let due = work.ask(sql, values![kind, member, now, limit]);
            found.extend(due.iter().filter_map(|row| Some((row.instant(0)?, row.count(1), kind))));
        }
        found.sort_unstable();
        found.truncate(at_most);
        found
    }

    fn next_group(work: &mut Work<'_>, kinds: &[usize], of: Option<(u64, Micros)>) -> Option<Micros> {
        work.flush();
        let own = "SELECT min(head) FROM timerqueue_affinities WHERE handler = $1 AND member IN (0, $2) AND head > $3";
        let first = kinds.iter().filter_map(|&kind| match of {
            None => work.first_group(kind, None),
            Some((member, now)) => work.number(own, values![kind, member, now]).map(Micros::new),
        });
        first.min()
    }

    /// A walk over all members, which a claim of each of them at the same time would make as often
    /// as there are members.
    fn any_gone(work: &mut Work<'_>) -> bool {
        let all_live = work.dialect.memory.all_live
            || work.number("SELECT id FROM timerqueue_members WHERE dead = 1 LIMIT 1", &[]).is_none();
        work.dialect.memory.all_live = all_live && !work.has_failed();
        !all_live
    }
}

const LINK: &str = "INSERT INTO timerqueue_links (follower, predecessor, key) VALUES (?1, ?2, ?3)";

/// Ends are noted for each process, also for one with an older version of this library. One of this
/// version decides on the followers. A file has these triggers from its first link on: they cost
/// each run a tenth of its instructions.
const NOTE_ENDS: [&str; 2] = [
    "CREATE TRIGGER IF NOT EXISTS timerqueue_leaves AFTER DELETE ON timerqueue_jobs \
     WHEN OLD.links IS NOT NULL BEGIN \
     UPDATE timerqueue_links SET ended = CASE WHEN OLD.state = 2 AND OLD.cancelled = 0 THEN 1 ELSE 3 END, seen = 0 \
     WHERE predecessor = OLD.id; \
     DELETE FROM timerqueue_links WHERE follower = OLD.id; END",
    // Each death, and each revival, writes this column.
    "CREATE TRIGGER IF NOT EXISTS timerqueue_dies AFTER UPDATE OF died ON timerqueue_jobs \
     WHEN NEW.links & 8 AND (NEW.state = 3) <> (OLD.state = 3) BEGIN \
     UPDATE timerqueue_links SET ended = CASE WHEN NEW.state = 3 THEN 2 END, seen = 0 WHERE predecessor = NEW.id; END",
];

/// The followers whose predecessors have ended, as far as nothing was decided yet.
pub(super) const NEW_ENDS: &str =
    "SELECT DISTINCT follower FROM timerqueue_links WHERE ended IS NOT NULL AND seen = 0 ORDER BY follower";

impl<'a> Work<'a> {
    pub(super) fn on(db: &'a Connection, memory: &'a mut Memory, process: i64, history: Option<History>) -> Self {
        let stored = (memory.last_id, memory.deaths);
        let (statements, counts) = (Statements::new(db), HashMap::new());
        let file = File { statements, memory, counts, stored, wrote: false, surely: false };
        // `history`: of all handlers, as the store was opened.
        Self::new(file, Micros::FIRST, StoreFacts { process, history, look_time: None })
    }

    pub(super) fn db(&self) -> &'a Connection {
        self.dialect.statements.db()
    }

    pub(super) fn seed(&self) -> u64 {
        self.dialect.memory.seed
    }

    /// The clock of the operations that follow.
    pub(super) fn read_clock(&mut self, runtime: &Runtime) -> Micros {
        let wall = runtime.wall_now();
        let now = Micros::floor(wall);
        self.up = Micros::ceil(wall).unwrap_or(now);
        now
    }

    /// Reads the due rows that a claim takes, or that places take whose runs end: whole, and at
    /// once. Recurring jobs are few.
    pub(super) fn read_due(&mut self, claim: &Claim, now: Micros) {
        self.flush();
        for room in claim.rooms.iter().filter(|room| room.places > 0) {
            let Some(kind) = self.known(&room.name).filter(|&kind| !self.is_paused(kind)) else { continue };
            let most = room.places.min(claim.at_most);
            let due = (kind as i64, false, now.as_i64(), i64::try_from(most).unwrap_or(i64::MAX));
            let read = self.kept(|file| Ok(rows::load(&mut file.statements, rows::DUE, due)?));
            let all_by = (read.len() < most).then_some(now);
            let ids: Vec<JobId> = read.iter().map(|read| read.row.id).collect();
            self.take_in(read);
            // A row that was written by hand may stand at a wrong place of the index.
            let place = |row: &Row| sql::index_of(row).filter(|&(index, wake)| index == (kind, Some(0)) && wake <= now);
            let rows = ids.into_iter().filter_map(|id| self.cached(id));
            let rows = rows.filter_map(|row| Some((place(row)?.1, row.id))).collect();
            self.heads.insert((kind, Some(0)), Heads { rows, all_by });
        }
    }

    /// Other operations may follow.
    pub(super) fn end_claim(&mut self) {
        self.heads.clear();
    }

    /// Writes counts, numbers and minutes. The caller commits, or undoes the transaction after a
    /// failure.
    pub(super) fn finish(mut self) -> Result<(Effects, Wrote), Failure> {
        self.follow_up();
        self.flush();
        self.dialect.surely |= !self.minutes.is_empty();
        for (kind, counts) in std::mem::take(&mut self.dialect.counts) {
            if counts != [0; State::ALL.len()] {
                self.dialect.surely = true;
                let [waiting, queued, running, dead, recurring] = counts;
                let update = "UPDATE timerqueue_handlers SET waiting = waiting + $1, queued = queued + $2, \
                              running = running + $3, dead = dead + $4, recurring = recurring + $5 WHERE id = $6";
                self.ask(update, values![waiting, queued, running, dead, recurring, kind]);
            }
        }
        let numbers = (self.dialect.memory.last_id, self.dialect.memory.deaths);
        if numbers != self.dialect.stored {
            self.dialect.surely = true;
            self.ask("UPDATE timerqueue_store SET last_id = $1, deaths = $2", values![numbers.0, numbers.1]);
        }
        self.write_done();
        if !self.has_failed() && !self.minutes.is_empty() {
            let counted = std::mem::take(&mut self.minutes);
            for (sql, values) in sql::minutes(&File::TEXTS, &counted, None, &mut self.dialect.memory.pruned) {
                self.ask(sql, &values);
            }
            self.sweep();
        }
        self.remember_runs();
        let wrote = match (self.dialect.surely, self.dialect.wrote) {
            (true, _) => Wrote::Surely,
            (false, true) => Wrote::Perhaps,
            (false, false) => Wrote::Nothing,
        };
        self.failure().map_or(Ok((self.effects, wrote)), Err)
    }

    fn write_done(&mut self) {
        let (done, now) = (std::mem::take(&mut self.done), self.up);
        let texted = Texted::of(&done, str::to_owned);
        for (sql, values) in history::kept(&File::TEXTS, &done, &texted) {
            self.ask(sql, &values);
        }
        for (_, sql, values) in history::removals(&File::TEXTS, &done, now) {
            self.ask(sql, &values);
        }
        self.dialect.surely |= !done.is_empty();
    }

    /// Changes a number that nothing else has, so that the commit is flushed.
    pub(super) fn count_flush(&mut self) {
        self.dialect.surely = true;
        self.ask("UPDATE timerqueue_store SET flushes = flushes + 1", &[]);
    }

    /// If the commit fails, the memory is forgotten.
    fn remember_runs(&mut self) {
        let rows: Vec<_> = self.drain().collect();
        let (process, memory) = (self.facts.process, &mut *self.dialect.memory);
        for row in rows {
            let is_plain_run = row.state == State::Running && row.process == process && row.recurring.is_none();
            if is_plain_run && row.progress.is_none() && row.payload.len() <= SHORT_PAYLOAD && memory.runs.len() < RUNS
            {
                memory.runs.insert(row.id, row);
            }
        }
    }

    /// Removes done jobs whose time is over, also where this store keeps none: another one has kept
    /// them, or the file was opened with other options.
    pub(super) fn sweep(&mut self) {
        let (now, minute) = (self.up, minute_of(self.up));
        if !self.has_failed() && self.dialect.memory.swept != minute {
            let sql = "DELETE FROM timerqueue_finished WHERE id IN \
                       (SELECT id FROM timerqueue_finished WHERE keep_until < $1 ORDER BY keep_until LIMIT $2) RETURNING id";
            let swept = self.ask(sql, values![now, SWEPT_AT_ONCE]).len();
            if !self.has_failed() && swept < SWEPT_AT_ONCE {
                self.dialect.memory.swept = minute;
            }
        }
    }

    /// The runs of this process that were cancelled.
    pub(super) fn cancelled_runs(&mut self) -> Vec<JobId> {
        let sql = "SELECT id FROM timerqueue_jobs WHERE process = $1 AND cancelled = 1 AND state = 2";
        let process = self.facts.process;
        self.ask(sql, values![process]).iter().map(|row| JobId(row.count(0))).collect()
    }
}
