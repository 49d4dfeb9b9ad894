//! What a transaction on a server is beside [`Work`](sql::Work).
//!
//! Ground rules. A [`Work`] lives as long as a transaction of the link that it borrows. The rows
//! that a batch names come at its begin, locked, in the order of their numbers
//! ([`Work::begin_apply`]); further rows come one by one. Changes are written at once with the
//! commit ([`Work::commit`]).
//!
//! Begin and commit, and what the server is asked with them, are in [`trips`].

mod trips;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};

pub(super) use self::trips::{Asked, Committed};
use super::cursor::Walk;
use super::error::{Failure, Remedy};
use super::link::Link;
use super::members::{Outlook, runs};
use super::params::{Param, Typed};
use super::reader;
use super::rows::{self, with_columns};
use super::sleepers::Woken;
use crate::store::columns::Read;
use crate::store::rules::{Claims, Row};
use crate::store::sql::looks::Look;
use crate::store::sql::{self, Answer, Changed, Dialect, Handlers, Heads, Index, SERVER, Texts, Value, values};
use crate::store::{Claim, ClaimedJob, Entry, Fault, Finished, JobId, JobInfo, Micros, Query, State};

/// How soon to look again for a due row that another transaction has locked.
pub(super) const LOCKED_AGAIN: i64 = 20_000;

/// A transaction on a server.
pub(super) struct Server<'a> {
    pub(super) link: &'a Link,
    handlers: Handlers,
    ids: VecDeque<u64>,
    /// During a claim: some row waits longer than its span.
    any_behind: bool,
    /// During a claim, by index: the first wake instant of the rows that were not read. It is later
    /// than now.
    rests: Option<HashMap<Index, Option<Micros>>>,
    /// By scheduler, the due rows that were locked for its places.
    due: HashMap<u64, (Outlook, Vec<JobId>)>,
    /// Keys that done jobs still have, among those of the puts.
    remembered: HashMap<Arc<str>, JobId>,
    /// The handlers whose done jobs may have keys, as the server knows.
    keeps_keys: HashSet<usize>,
    /// Others whose done jobs have keys.
    newly_keeps_keys: BTreeSet<i64>,
    pub(super) outlook: Outlook,
    /// A due job or group is locked elsewhere: that transaction may leave it as it is.
    pub(super) is_locked: bool,
    /// The next instant of a group of the member, as the claim has found it.
    pub(super) next_bound: Option<Micros>,
    woken: Woken,
    /// The row of the writer has the number of this commit.
    is_marked: bool,
    /// By further statements, which may have written.
    has_asked: bool,
    /// A run begins.
    begins: bool,
}

/// The rows during a transaction.
pub(super) type Work<'a> = sql::Work<Server<'a>>;

impl Typed for Value<'_> {
    fn kind(&self) -> Type {
        match self {
            Self::Number(_) => Type::INT8,
            Self::Flag(_) => Type::BOOL,
            Self::Text(_) => Type::TEXT,
            Self::Numbers(_) => Type::INT8_ARRAY,
        }
    }

    fn value(&self) -> &(dyn ToSql + Sync) {
        match self {
            Self::Number(number) => number,
            Self::Flag(flag) => flag,
            Self::Text(text) => text,
            Self::Numbers(numbers) => numbers,
        }
    }
}

impl Answer for tokio_postgres::Row {
    fn number(&self, column: usize) -> Option<i64> {
        self.try_get(column).unwrap_or_default()
    }

    fn text(&self, column: usize) -> Option<Arc<str>> {
        self.try_get::<_, Option<&str>>(column).unwrap_or_default().map(Into::into)
    }

    fn flag(&self, column: usize) -> bool {
        self.try_get::<_, Option<bool>>(column).unwrap_or_default().unwrap_or_default()
    }
}

fn params<'v>(values: &'v [Value<'v>]) -> Vec<Param<'v>> {
    values.iter().map(|value| value as Param<'_>).collect()
}

impl Look for Link {
    type Failure = Failure;
    type Answer = tokio_postgres::Row;

    const TEXTS: Texts = sql::SERVER;
    const KEEPS_COUNTS: bool = false;

    fn look(&self, sql: &'static str, values: &[Value<'_>]) -> Result<Vec<tokio_postgres::Row>, Failure> {
        self.ask(sql, &params(values))
    }

    fn jobs(&self, sql: &'static str, values: &[Value<'_>]) -> Result<Vec<JobInfo>, Failure> {
        Ok(self.look(sql, values)?.iter().map(reader::info).collect())
    }

    fn near(&self, within: Duration, limit: usize) -> Result<Vec<JobInfo>, Failure> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.jobs(reader::NEAR, values![Micros::new(0).saturating_add(within), limit])
    }

    fn keyed(&self, query: &Query) -> Result<Option<Vec<(i64, i64)>>, Failure> {
        let Some(prefix) = query.prefix.as_deref() else { return Ok(None) };
        let (name, state) = (query.name.as_deref(), query.state.map(|state| state as i64));
        let rows = self.look(reader::KEYED, values![prefix, name, reader::KEYED_MOST, state, query.failing])?;
        let place = |row: &tokio_postgres::Row| Some((row.number(0)?, row.number(1)?));
        let are_few = rows.first().and_then(|row| row.number(2)) < Some(reader::KEYED_MOST);
        Ok(are_few.then(|| rows.iter().filter_map(place).collect()))
    }

    fn clock(&self) -> Result<Micros, Failure> {
        Ok(Micros::new(self.look("SELECT clock()", &[])?.first().map_or(0, |row| row.get(0))))
    }

    /// No text of the server has a NUL.
    fn can_have(text: &str) -> bool {
        !text.contains('\0')
    }
}

impl Dialect for Server<'_> {
    type Failure = Failure;
    type Answer = tokio_postgres::Row;
    type Before = ();

    const TEXTS: Texts = sql::SERVER;
    const BY_ID: &'static str = with_columns!("SELECT ", " FROM jobs WHERE id = $1 FOR UPDATE");
    const BY_KEY: &'static str = with_columns!("SELECT ", " FROM jobs WHERE key = $1 AND holds_key FOR UPDATE");
    const LOCKS: bool = true;

    fn ask(&mut self, sql: &'static str, values: &[Value<'_>]) -> Result<Vec<tokio_postgres::Row>, Failure> {
        self.has_asked = true;
        self.link.query(sql, &params(values))
    }

    fn read(&mut self, sql: &'static str, of: Value<'_>) -> Result<Vec<Read>, Failure> {
        Ok(self.ask(sql, &[of])?.iter().map(rows::read).collect())
    }

    fn write(&mut self, changed: &Changed<'_, ()>) -> Result<(), Failure> {
        self.has_asked = true;
        let written = trips::Written::of(changed);
        let (_, failed) = self.link.steps(&written.steps());
        failed.map_or(Ok(()), Err)
    }

    fn before(_row: &Row) {}

    fn handlers(&mut self) -> &mut Handlers {
        &mut self.handlers
    }

    /// PostgreSQL takes no NUL in a text.
    fn clean(text: &str) -> String {
        text.replace('\0', "\u{FFFD}")
    }

    fn noted(&mut self, row: &Row, at: Option<Micros>) {
        at.into_iter().for_each(|at| self.wakes(row.kind as i64, at));
        self.begins |= row.state == State::Running;
    }

    fn rest(&self, index: Index) -> Option<Option<Micros>> {
        self.rests.as_ref().map(|rests| rests.get(&index).copied().flatten())
    }

    fn priorities(work: &mut Work<'_>, kind: usize) -> Vec<i8> {
        work.dialect.link.priorities_of(kind)
    }

    fn next_id(work: &mut Work<'_>) -> JobId {
        let id = work.dialect.ids.pop_front();
        JobId(id.or_else(|| work.number("SELECT nextval('ids')", &[]).map(|id| id as u64)).unwrap_or_default())
    }

    fn next_death(work: &mut Work<'_>) -> u64 {
        work.number("SELECT nextval('deaths')", &[]).unwrap_or_default() as u64
    }

    fn may_be_behind(&self) -> bool {
        self.any_behind && !self.link.is_careful.get()
    }

    fn kept(&mut self, done: &Finished) {
        if done.holds_key() && !self.keeps_keys.contains(&done.kind) {
            self.newly_keeps_keys.insert(done.kind as i64);
        }
    }

    /// Asked for with the rows of the transaction.
    fn remembered(work: &mut Work<'_>, key: &str, _now: Micros) -> Option<JobId> {
        work.dialect.remembered.get(key).copied()
    }

    fn member_of(work: &mut Work<'_>, _owner: u64) -> Option<u64> {
        work.dialect.outlook.member.map(|member| member as u64)
    }

    /// Locks groups whose jobs have changed.
    fn lock_groups(work: &mut Work<'_>, ids: &[i64]) {
        let sql = "SELECT id FROM affinities WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE";
        let locked = work.ask(sql, values![ids]);
        let is_there = |id: u64| locked.iter().any(|row| row.count(0) == id);
        if !work.has_failed() && work.groups.found.values().any(|&id| ids.contains(&(id as i64)) && !is_there(id)) {
            // Idle for long, and forgotten since this transaction has found it.
            work.fail(Failure { fault: Fault::Locked, reason: "a group has gone".into(), remedy: Remedy::Again });
        }
    }

    /// The runs of a handler among those of all members.
    fn counted(work: &mut Work<'_>, kind: usize) -> u64 {
        let kind = kind as i64;
        let (walk, sql) = (Walk::Counted(kind), SERVER.counted);
        let long = work.dialect.link.cursors.borrow().long(&walk).to_vec();
        let found = work.query(sql, &[&kind, &work.low(&walk), &long]);
        let Some(row) = found.first() else { return 0 };
        work.dialect.link.cursors.borrow_mut().found_runs(walk, runs(row, 1), row.get(3));
        row.get::<_, i64>(0) as u64
    }

    /// What groups are settled by.
    fn facts(work: &mut Work<'_>, ids: &[i64]) -> Vec<tokio_postgres::Row> {
        let lows: Vec<i64> = ids.iter().map(|&id| work.low(&Walk::Group(id))).collect();
        let ran: Vec<i64> = ids.iter().map(|&id| work.low(&Walk::Runs(id))).collect();
        let (ties, long) = work.dialect.link.cursors.borrow().long_of(ids);
        let rows = work.query(SERVER.facts, &[&ids, &lows, &ran, &ties, &long]);
        let mut cursors = work.dialect.link.cursors.borrow_mut();
        for row in &rows {
            let (id, under_way) = (row.get(0), row.get(17));
            cursors.found_runs(Walk::Runs(id), runs(row, 14), under_way);
            cursors.found(&Walk::Group(id), row.get::<_, Option<i64>>(16).unwrap_or(i64::MAX), under_way);
        }
        drop(cursors);
        rows
    }

    /// Due groups. Those of a member are locked, with their due jobs.
    fn due_groups(
        work: &mut Work<'_>,
        kinds: &[usize],
        member: u64,
        now: Micros,
        at_most: usize,
    ) -> Vec<(Micros, u64, usize)> {
        if !work.dialect.outlook.any_group {
            return Vec::new();
        }
        work.flush();
        let (kinds, of, now) = (kinds.iter().map(|&kind| kind as i64).collect::<Vec<_>>(), member as i64, now.as_i64());
        let limit = i64::try_from(at_most).unwrap_or(i64::MAX);
        let lows: Vec<i64> = kinds.iter().map(|&kind| work.low(&Walk::Heads(kind, of))).collect();
        let seen = "SELECT due.head, due.id, walk.handler FROM unnest($1::bigint[], $5::bigint[]) AS walk (handler, low) CROSS JOIN LATERAL \
                    ((SELECT head, id FROM heads WHERE handler = walk.handler AND member = $2 AND head BETWEEN walk.low AND $3 \
                    ORDER BY head, id LIMIT $4) UNION ALL (SELECT head, id FROM heads WHERE early AND handler = walk.handler \
                    AND member = $2 AND head + 0 < least(walk.low, $3 + 1) ORDER BY head + 0, id LIMIT $4)) AS due ORDER BY 1, 2 LIMIT $4";
        let due = work.query(seen, &[&kinds, &of, &now, &limit, &lows]);
        let mut due: Vec<(i64, i64, i64)> = due.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
        if member != 0 && !due.is_empty() {
            // While this transaction lasts, no other node marks the member dead.
            if work.query("SELECT id FROM members WHERE id = $1 AND NOT dead FOR KEY SHARE", &[&of]).is_empty() {
                work.dialect.is_locked = true;
                return Vec::new();
            }
            let ids: Vec<i64> = due.iter().map(|&(_, id, _)| id).collect();
            let locked = "SELECT id FROM affinities WHERE id = ANY($1::bigint[]) AND member = $2 ORDER BY id FOR UPDATE SKIP LOCKED";
            let locked: Vec<i64> = work.query(locked, &[&ids, &of]).iter().map(|row| row.get(0)).collect();
            let seen = due.len();
            due.retain(|(_, id, _)| locked.contains(id));
            work.lock_jobs(&mut due, now, limit);
            work.dialect.is_locked |= due.len() < seen;
        }
        due.into_iter().map(|(head, id, kind)| (Micros::new(head), id as u64, kind as usize)).collect()
    }

    fn next_group(work: &mut Work<'_>, kinds: &[usize], of: Option<(u64, Micros)>) -> Option<Micros> {
        let again = work.dialect.is_locked.then(|| Micros::new(work.up.as_i64() + LOCKED_AGAIN));
        if of.is_some() && !work.dialect.outlook.any_group {
            return again;
        }
        work.flush();
        let kinds: Vec<i64> = kinds.iter().map(|&kind| kind as i64).collect();
        let Some((member, now)) = of else { return work.find_first(&kinds) };
        let walks = kinds.iter().flat_map(|&kind| [0, member as i64].map(|member| (kind, member)));
        let (kinds, members): (Vec<i64>, Vec<i64>) = walks.unzip();
        let walks: Vec<Walk> = kinds.iter().zip(&members).map(|(&kind, &member)| Walk::Heads(kind, member)).collect();
        let lows: Vec<i64> = walks.iter().map(|walk| work.low(walk)).collect();
        let sql = "SELECT (SELECT head FROM heads WHERE handler = walk.handler AND member = walk.member AND head >= walk.low ORDER BY head LIMIT 1), \
                   (SELECT head FROM heads WHERE handler = walk.handler AND member = walk.member AND head > $4 ORDER BY head LIMIT 1), \
                   pg_snapshot_xmin(pg_current_snapshot())::text::bigint \
                   FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS walk (handler, member, low, place) ORDER BY place";
        let found = work.query(sql, &[&kinds, &members, &lows, &now.as_i64()]);
        let mut cursors = work.dialect.link.cursors.borrow_mut();
        for (walk, row) in walks.iter().zip(&found) {
            cursors.found(walk, row.get::<_, Option<i64>>(0).unwrap_or(i64::MAX), row.get(2));
        }
        drop(cursors);
        let first = found.iter().filter_map(|row| row.get::<_, Option<i64>>(1)).min().map(Micros::new);
        work.dialect.next_bound = [first, again].into_iter().flatten().min();
        work.dialect.next_bound
    }

    fn any_gone(work: &mut Work<'_>) -> bool {
        work.dialect.outlook.any_dead
    }
}

impl Server<'_> {
    /// A row of this handler is to be looked at.
    fn wakes(&mut self, kind: i64, at: Micros) {
        let first = self.woken.entry(kind).or_insert(i64::MAX);
        *first = at.as_i64().min(*first);
    }

    pub(super) fn number_of(&self, name: &str) -> Option<usize> {
        self.handlers.number(name)
    }
}

impl Work<'_> {
    /// Takes the due rows that were locked for these places. While groups of their handlers are
    /// due nothing is taken: a claim looks at them.
    pub(super) fn fill_places(&mut self, place: &Claim, entry: Option<&Entry>, seed: u64) -> Vec<ClaimedJob> {
        let Some((outlook, due)) = self.dialect.due.remove(&place.owner) else { return Vec::new() };
        let is_kept = outlook.until.is_some_and(|until| until >= self.kept_until(self.dialect.link.lease / 2));
        if !is_kept || outlook.any_group {
            return Vec::new();
        }
        let now = self.up;
        for id in due {
            // The operations of this transaction may have moved it, or taken it away.
            let Some(row) = self.cached(id) else { continue };
            let place = sql::index_of(row).filter(|&(_, wake)| row.state == State::Waiting && wake <= now);
            if let Some((index, wake)) = place {
                self.heads.entry(index).or_insert_with(whole).rows.insert((wake, id));
            }
        }
        let before = std::mem::replace(&mut self.dialect.outlook, outlook);
        self.dialect.rests = Some(HashMap::new());
        let jobs = self.fill(place, entry, now, seed);
        self.heads.clear();
        (self.dialect.rests, self.dialect.outlook) = (None, before);
        jobs
    }

    /// The member of a scheduler that takes the places of its runs.
    pub(super) fn member_for(&self, owner: u64) -> Option<i64> {
        self.dialect.due.get(&owner)?.0.member
    }

    fn kept_until(&self, time: Duration) -> i64 {
        self.up.saturating_add(time).as_i64()
    }

    pub(super) fn query(&mut self, sql: &'static str, params: &[Param<'_>]) -> Vec<tokio_postgres::Row> {
        self.kept(|server| {
            server.has_asked = true;
            server.link.query(sql, params)
        })
    }
}

/// Heads among which each row has its place that has changed: those of others are not asked for.
fn whole() -> Heads {
    Heads { all_by: Some(Micros::LAST), ..Heads::default() }
}
