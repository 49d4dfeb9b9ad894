//! The rows of a server, inside of a transaction.
//!
//! Ground rules. A [`Work`] lives as long as a transaction of the link that it borrows. The rows
//! that a batch names come at its begin, locked, in the order of their numbers
//! ([`Work::begin_apply`]); further rows come one by one. Changes stay here until all of them are
//! written at once: by [`Work::commit`], or by [`Work::flush`] before a query for an index. The
//! first failure is kept: from then on the store looks empty, each loop over it ends, and the
//! transaction is undone.
//!
//! Begin and commit, and what the server is asked with them, are in [`trips`].

#[path = "trips.rs"]
mod trips;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub(super) use self::trips::{Asked, Committed};
use super::error::Failure;
use super::link::Link;
use super::members::{Affinities, Outlook};
use super::minutes::Counted;
use super::params::Param;
use super::rows::{self, with_columns};
use super::sleepers::Woken;
use crate::store::columns::Read;
use crate::store::rules::{Affinity, Claims, Effects, Lane, MOST_DEAD, Member, Row, Rows, Runs, Tie};
use crate::store::{Claim, ClaimedJob, Entry, JobId, LastRun, Micros, State};

/// How soon to look again for a due row that another transaction has locked.
pub(super) const LOCKED_AGAIN: i64 = 20_000;

#[derive(Debug)]
struct Kind {
    name: Arc<str>,
    paused: bool,
}

/// What became of a row in this transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    New,
    Changed,
    Gone,
}

/// The rows with a wake instant of a handler, as far as a claim needs them.
#[derive(Debug, Default)]
struct Heads {
    /// Locked here.
    rows: BTreeSet<(Micros, JobId)>,
    /// The first of all others: later than now.
    rest: Option<Micros>,
}

/// The rows during a transaction.
pub(super) struct Work<'a> {
    link: &'a Link,
    pub(super) now: Micros,
    kinds: HashMap<usize, Kind>,
    by_name: HashMap<Arc<str>, usize>,
    effects: Effects,
    /// `None`: there is no such row.
    cache: HashMap<JobId, Option<Box<Row>>>,
    changes: HashMap<JobId, Change>,
    keys: HashMap<Arc<str>, Option<JobId>>,
    ids: VecDeque<u64>,
    /// During a claim: some row waits longer than its span.
    any_behind: bool,
    /// During a claim, by handler, jobs apart from recurring ones.
    heads: Option<HashMap<(usize, bool), Heads>>,
    /// By scheduler, the due rows that were locked for its places.
    due: HashMap<u64, (Outlook, Vec<JobId>)>,
    minutes: Counted,
    pub(super) affinities: Affinities,
    woken: Woken,
    /// The row of the writer has the number of this commit.
    is_marked: bool,
    /// By further statements, which may have written.
    has_asked: bool,
    /// A run begins.
    begins: bool,
    failure: Option<Failure>,
}

impl Work<'_> {
    /// Takes the due rows that were locked for these places. While affinities of their handlers are
    /// due nothing is taken: a claim looks at them.
    pub(super) fn fill_places(&mut self, place: &Claim, entry: Option<&Entry>, seed: u64) -> Vec<ClaimedJob> {
        let Some((outlook, due)) = self.due.remove(&place.owner) else { return Vec::new() };
        let is_kept = outlook.until.is_some_and(|until| until >= self.kept_until(self.link.lease / 2));
        if !is_kept || outlook.any_affinity {
            return Vec::new();
        }
        let mut heads: HashMap<(usize, bool), Heads> = HashMap::new();
        for id in due {
            // The operations of this transaction may have moved it, or taken it away.
            let Some(row) = self.cache.get(&id).and_then(Option::as_deref) else { continue };
            let wake = plain_wake(row).filter(|&wake| row.state == State::Waiting && wake <= self.now);
            heads.entry((row.kind, false)).or_default().rows.extend(wake.map(|wake| (wake, id)));
        }
        let before = std::mem::replace(&mut self.affinities.outlook, outlook);
        self.heads = Some(heads);
        let jobs = self.fill(place, entry, self.now, seed);
        (self.heads, self.affinities.outlook) = (None, before);
        jobs
    }

    /// The member of a scheduler that takes the places of its runs.
    pub(super) fn member_for(&self, owner: u64) -> Option<i64> {
        self.due.get(&owner)?.0.member
    }

    fn kept_until(&self, time: Duration) -> i64 {
        self.now.saturating_add(time).as_i64()
    }

    fn add_kind(&mut self, id: usize, name: Arc<str>, paused: bool) {
        self.by_name.insert(Arc::clone(&name), id);
        self.kinds.insert(id, Kind { name, paused });
    }

    /// Undoes the transaction.
    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    fn kept<T>(&mut self, result: Result<T, Failure>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(failure) => {
                self.failure.get_or_insert(failure);
                None
            }
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// A row of this handler is to be looked at.
    fn wakes(&mut self, kind: i64, at: Micros) {
        let first = self.woken.entry(kind).or_insert(i64::MAX);
        *first = at.as_i64().min(*first);
    }

    pub(super) fn number(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub(super) fn query(&mut self, sql: &'static str, params: &[Param<'_>]) -> Vec<tokio_postgres::Row> {
        if self.failure.is_some() {
            return Vec::new();
        }
        self.has_asked = true;
        let rows = self.link.query(sql, params);
        self.kept(rows).unwrap_or_default()
    }

    /// A query for an index: changes are written first.
    fn indexed(&mut self, sql: &'static str, params: &[Param<'_>]) -> Option<(i64, JobId)> {
        self.flush();
        self.query(sql, params).first().map(|row| (row.get(0), JobId(row.get::<_, i64>(1) as u64)))
    }

    /// Reads rows, whole.
    fn load(&mut self, sql: &'static str, params: &[Param<'_>]) {
        let read = self.query(sql, params).iter().map(rows::read).collect();
        self.take_in(read);
    }

    /// Brings rows into the cache, with the runs of recurring jobs: these change under the lock of
    /// the recurring job alone.
    pub(super) fn take_in(&mut self, mut read: Vec<Read>) {
        read.retain(|read| !self.cache.contains_key(&read.row.id));
        let parents: Vec<i64> =
            read.iter().filter(|read| read.row.recurring.is_some()).map(|read| read.row.id.0 as i64).collect();
        let mut runs: HashMap<i64, Vec<(JobId, bool)>> = HashMap::new();
        if !parents.is_empty() {
            let sql = "SELECT parent, id, state FROM jobs WHERE parent = ANY($1::bigint[]) AND state <> 3 ORDER BY id";
            for row in self.query(sql, &[&parents]) {
                let run = (JobId(row.get::<_, i64>(1) as u64), row.get::<_, i64>(2) == State::Queued as i64);
                runs.entry(row.get(0)).or_default().push(run);
            }
        }
        for Read { mut row, unreadable } in read {
            if let Some(reason) = unreadable {
                self.bury_unreadable(&row, &reason);
                self.cache.insert(row.id, None);
                continue;
            }
            if let Some(recurring) = &mut row.recurring {
                for (run, queued) in runs.remove(&(row.id.0 as i64)).unwrap_or_default() {
                    if queued {
                        recurring.queued.push_back(run);
                    } else {
                        recurring.live.push(run);
                    }
                }
            }
            if row.holds_key {
                self.keys.insert(Arc::clone(&row.key), Some(row.id));
            }
            self.cache.insert(row.id, Some(row));
        }
    }

    /// A recurring job whose schedule cannot be read (written by hand, or with a zone that this
    /// system does not know) is dead, and in no other job's way. Its text stays as it is.
    fn bury_unreadable(&mut self, row: &Row, reason: &str) {
        if let Some(heads) = self.heads.as_mut().and_then(|heads| heads.get_mut(&(row.kind, true))) {
            heads.rows.retain(|&(_, id)| id != row.id);
        }
        if row.state != State::Dead {
            let (died, id) = (self.next_death() as i64, row.id.0 as i64);
            let error = format!("the schedule cannot be read: {reason}").replace('\0', "\u{FFFD}");
            let sql = "UPDATE jobs SET state = 3, wake = NULL, earliest = NULL, holds_key = false, lease = NULL, \
                       died = $2, error = $3 WHERE id = $1";
            self.query(sql, &[&id, &died, &error]);
        }
    }

    /// Brings a row into the cache.
    fn fetch(&mut self, id: JobId) -> bool {
        if !self.cache.contains_key(&id) {
            let number = id.0 as i64;
            self.load(with_columns!("SELECT ", " FROM jobs WHERE id = $1 FOR UPDATE"), &[&number]);
        }
        self.failure.is_none() && matches!(self.cache.get(&id), Some(Some(_)))
    }

    /// Writes all changes.
    pub(super) fn flush(&mut self) {
        self.write_rows();
        self.settle_affinities();
    }

    fn first(&mut self, kind: usize, recurs: bool) -> Option<(Micros, JobId)> {
        if let Some(heads) = self.heads.as_ref().filter(|_| self.failure.is_none()) {
            let heads = heads.get(&(kind, recurs))?;
            let rest = heads.rest.map(|rest| (rest, JobId(u64::MAX)));
            return heads.rows.first().copied().into_iter().chain(rest).min();
        }
        let sql = "SELECT wake, id FROM jobs WHERE handler = $1 AND recurs = $2 AND wake IS NOT NULL \
                   ORDER BY wake, id LIMIT 1";
        let kind = kind as i64;
        self.indexed(sql, &[&kind, &recurs]).map(|(wake, id)| (Micros::new(wake), id))
    }

    fn note(&mut self, row: &Row) {
        self.affinities.note(row);
        // Of a job with an affinity the first wake instant is told when the affinity is settled.
        if !matches!(row.lane(), Lane::Affinity(_)) && !self.is_paused(row.kind) {
            self.effects.wake(row.wake());
            if let Some(at) = row.wake() {
                self.wakes(row.kind as i64, at);
            }
        }
        self.effects.notice_step(row, self.now);
    }
}

impl Rows for Work<'_> {
    fn up(&self) -> Micros {
        self.now
    }

    fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    fn row(&mut self, id: JobId) -> Option<&Row> {
        if self.fetch(id) { self.cache.get(&id)?.as_deref() } else { None }
    }

    fn holder(&mut self, key: &str) -> Option<JobId> {
        if let Some(holder) = self.keys.get(key) {
            return *holder;
        }
        // Its former holder may just have left with a transaction that gave the key to another row:
        // the second look sees it.
        let sql = with_columns!("SELECT ", " FROM jobs WHERE key = $1 AND holds_key FOR UPDATE");
        for _ in 0..2 {
            self.load(sql, &[&key]);
            if let Some(holder) = self.keys.get(key) {
                return *holder;
            }
        }
        self.keys.insert(key.into(), None);
        None
    }

    fn insert(&mut self, row: Box<Row>) {
        self.note(&row);
        if row.holds_key {
            self.keys.insert(Arc::clone(&row.key), Some(row.id));
        }
        self.changes.insert(row.id, Change::New);
        self.cache.insert(row.id, Some(row));
    }

    fn edit<R>(&mut self, id: JobId, change: impl FnOnce(&mut Row) -> R) -> Option<R> {
        if !self.fetch(id) {
            return None;
        }
        let mut row = self.cache.remove(&id)??;
        let (held, wake) = (row.holds_key, plain_wake(&row));
        let result = change(&mut row);
        if let Some(heads) = self.heads.as_mut().and_then(|all| all.get_mut(&(row.kind, row.recurring.is_some()))) {
            wake.map(|wake| heads.rows.remove(&(wake, id)));
            heads.rows.extend(plain_wake(&row).map(|wake| (wake, id)));
        }
        match (held, row.holds_key) {
            (true, false) if self.keys.get(&row.key) == Some(&Some(id)) => {
                self.keys.insert(Arc::clone(&row.key), None);
            }
            (false, true) => _ = self.keys.insert(Arc::clone(&row.key), Some(id)),
            _ => {}
        }
        self.note(&row);
        self.begins |= row.state == State::Running;
        self.changes.entry(id).or_insert(Change::Changed);
        self.cache.insert(id, Some(row));
        Some(result)
    }

    fn rewrite(&mut self, id: JobId, kind: usize, payload: &Arc<str>, tie: Option<Box<Tie>>) {
        let affinity = tie.as_ref().map(|tie| (tie.affinity as i64, Arc::clone(&tie.text)));
        let before = self.edit(id, |row| {
            (row.kind, row.payload) = (kind, Arc::clone(payload));
            std::mem::replace(&mut row.tie, tie)
        });
        self.affinities.unsettled.extend(before.flatten().map(|tie| tie.affinity));
        self.write_rows(); // the row may be new
        let (id, kind, (number, text)) = (id.0 as i64, kind as i64, affinity.unzip());
        let sql = "UPDATE jobs SET handler = $2, payload = $3, affinity_id = $4, affinity = $5 WHERE id = $1";
        self.query(sql, &[&id, &kind, &&**payload, &number, &text.as_deref()]);
    }

    fn take_out(&mut self, id: JobId) {
        if !self.fetch(id) {
            return;
        }
        let Some(Some(row)) = self.cache.insert(id, None) else { return };
        if let (Some(heads), Some(wake)) =
            (self.heads.as_mut().and_then(|all| all.get_mut(&(row.kind, row.recurring.is_some()))), plain_wake(&row))
        {
            heads.rows.remove(&(wake, id));
        }
        self.affinities.unsettled.extend(row.tie.as_ref().map(|tie| tie.affinity));
        if row.holds_key && self.keys.get(&row.key) == Some(&Some(id)) {
            self.keys.insert(Arc::clone(&row.key), None);
        }
        if self.changes.insert(id, Change::Gone) == Some(Change::New) {
            self.changes.remove(&id);
        }
        self.effects.drop_row_later(row);
    }

    fn next_id(&mut self) -> JobId {
        let id = self.ids.pop_front().or_else(|| {
            let row = self.query("SELECT nextval('ids')", &[]);
            row.first().map(|row| row.get::<_, i64>(0) as u64)
        });
        JobId(id.unwrap_or_default())
    }

    fn kind(&mut self, name: &Arc<str>) -> usize {
        if let Some(&kind) = self.by_name.get(name) {
            return kind;
        }
        let sql = "INSERT INTO handlers (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = excluded.name \
                   RETURNING id, paused";
        let found = self.query(sql, &[&&**name]);
        let Some(row) = found.first() else { return 0 };
        let id = row.get::<_, i64>(0) as usize;
        self.add_kind(id, Arc::clone(name), row.get(1));
        id
    }

    fn known(&mut self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    fn name_of(&mut self, kind: usize) -> Arc<str> {
        self.kinds.get(&kind).map_or_else(|| "".into(), |kind| Arc::clone(&kind.name))
    }

    fn is_paused(&mut self, kind: usize) -> bool {
        self.kinds.get(&kind).is_some_and(|kind| kind.paused)
    }

    fn set_paused(&mut self, kind: usize, paused: bool) {
        let number = kind as i64;
        self.query("UPDATE handlers SET paused = $2 WHERE id = $1", &[&number, &paused]);
        if let Some(kind) = self.kinds.get_mut(&kind) {
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
        if !self.any_behind || self.link.is_careful.get() {
            return Vec::new();
        }
        let sql = "SELECT id FROM jobs WHERE earliest > $1 ORDER BY earliest DESC LIMIT $2";
        let found = self.query(sql, &[&now.as_i64(), &(at_most as i64)]);
        found.iter().map(|row| JobId(row.get::<_, i64>(0) as u64)).collect()
    }

    fn look_ends(&self, now: Micros) -> Option<Micros> {
        Some(now.saturating_add(self.link.lease))
    }

    fn discard_unreadable(&mut self, id: JobId) -> bool {
        self.flush();
        let number = id.0 as i64;
        !self.query("DELETE FROM jobs WHERE id = $1 AND state = 3 RETURNING id", &[&number]).is_empty()
    }

    fn ended(&mut self, kind: usize, minute: i64, record: &LastRun) {
        self.minutes.entry((minute, kind)).or_default().add(record);
    }

    fn next_death(&mut self) -> u64 {
        let number = self.query("SELECT nextval('deaths')", &[]);
        let death = number.first().map_or(0, |row| row.get::<_, i64>(0));
        // The first to have died make way by hundreds.
        if death % 256 == 0 && death > 0 {
            let sql = "SELECT died, id FROM jobs WHERE state = 3 ORDER BY died DESC LIMIT 1 OFFSET $1";
            let last = self.indexed(sql, &[&(MOST_DEAD as i64 - 256)]).map_or(0, |(died, _)| died);
            let sql = "SELECT died, id FROM jobs WHERE state = 3 AND died <= $1 ORDER BY died LIMIT 1";
            while let Some((_, id)) = self.indexed(sql, &[&last]) {
                if !self.discard(id) {
                    break;
                }
            }
        }
        death as u64
    }

    fn member_of(&mut self, _owner: u64) -> Option<u64> {
        self.affinities.outlook.member.map(|member| member as u64)
    }

    fn members(&mut self) -> Vec<Member> {
        self.all_members()
    }

    fn affinity_of(&mut self, kind: usize, text: &Arc<str>, _now: Micros) -> u64 {
        self.find_affinity(kind, text)
    }

    fn affinity(&mut self, id: u64) -> Option<Affinity> {
        self.read_affinity(id)
    }

    fn edit_affinity(&mut self, id: u64, change: impl FnOnce(&mut Affinity)) {
        self.change_affinity(id, change);
    }

    fn runs_of(&mut self, affinity: u64) -> u64 {
        self.running_of(affinity)
    }

    fn first_of(&mut self, affinity: u64) -> Option<(Micros, JobId)> {
        self.first_waiting(affinity)
    }

    fn due_affinities(
        &mut self,
        kinds: &[usize],
        member: u64,
        now: Micros,
        at_most: usize,
    ) -> Vec<(Micros, u64, usize)> {
        self.find_due(kinds, member, now, at_most)
    }

    fn next_affinity(&mut self, kinds: &[usize], of: Option<(u64, Micros)>) -> Option<Micros> {
        self.find_next(kinds, of)
    }

    fn bound_to(&mut self, member: u64) -> u64 {
        let found = self.query("SELECT count(*) FROM affinities WHERE member = $1", &[&(member as i64)]);
        found.first().map_or(0, |row| row.get::<_, i64>(0) as u64)
    }

    fn unbind_some(&mut self) -> bool {
        self.settle_dead()
    }

    fn counted(&mut self, kind: usize) -> u64 {
        self.lock_handler(kind);
        self.flush();
        // A statement of its own, after the lock: it sees all claims before.
        let found =
            self.query("SELECT count(*) FROM jobs WHERE handler = $1 AND state = 2 AND counted", &[&(kind as i64)]);
        found.first().map_or(0, |row| row.get::<_, i64>(0) as u64)
    }

    fn full_at(&mut self, kind: usize) -> Option<Micros> {
        self.lock_handler(kind)
    }

    fn set_full_at(&mut self, kind: usize, at: Micros) {
        self.query("UPDATE handlers SET full_at = $2 WHERE id = $1", &[&(kind as i64), &at.as_i64()]);
    }
}

/// When to look at a row by the index of its handler.
fn plain_wake(row: &Row) -> Option<Micros> {
    if row.lane() == Lane::Handler { row.wake() } else { None }
}
