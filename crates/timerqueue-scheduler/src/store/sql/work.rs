//! The rows of a transaction.
//!
//! Ground rules. Rows that were read stay here, and changes stay here until all of them are written
//! at once: at the end, or by [`Work::flush`] before a query for an index. The first failure is
//! kept: from then on the store looks empty, each loop over it ends, and the transaction is undone.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::take;
use std::sync::Arc;

use super::groups::Groups;
use super::links::Links;
use super::{Answer, Counted, Dialect, Value, values};
use crate::store::columns::Read;
use crate::store::rules::{Effects, Lane, MOST_DEAD, Row, Rows, Runs, StoreFacts, Tie};
use crate::store::{Finished, JobId, LastRun, Micros, NewJob, Predecessor, State};

/// What became of a row in this transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change<B> {
    New,
    Changed(B),
    Gone,
}

/// A row of this transaction.
struct Cached<B> {
    /// `None`: there is no such row.
    row: Option<Box<Row>>,
    /// What is to be written.
    change: Option<Change<B>>,
}

/// An index of rows with a wake instant: the handler, and the priority of its jobs; none: of its
/// recurring jobs.
pub(in crate::store) type Index = (usize, Option<i8>);

/// Rows with a wake instant of an index that a claim has read.
#[derive(Debug, Default)]
pub(in crate::store) struct Heads {
    pub(in crate::store) rows: BTreeSet<(Micros, JobId)>,
    /// They are all that are due by this instant.
    pub(in crate::store) all_by: Option<Micros>,
}

/// The changes that are to be written.
pub(in crate::store) struct Changed<'w, B> {
    /// By follower. Written first.
    pub(in crate::store) links: &'w [(JobId, Predecessor)],
    pub(in crate::store) gone: Vec<JobId>,
    /// Without their keys, and then with them: a key is given up before it is taken.
    pub(in crate::store) free: Vec<(&'w Row, &'w B)>,
    pub(in crate::store) holding: Vec<(&'w Row, &'w B)>,
    pub(in crate::store) new: Vec<&'w Row>,
}

/// The rows during a transaction.
pub(in crate::store) struct Work<D: Dialect> {
    pub(in crate::store) dialect: D,
    /// The clock, rounded up.
    pub(in crate::store) up: Micros,
    pub(in crate::store) facts: StoreFacts,
    pub(in crate::store) effects: Effects,
    cache: HashMap<JobId, Cached<D::Before>>,
    changed: Vec<JobId>,
    /// Keys, with their holders as of this transaction.
    pub(in crate::store) keys: HashMap<Arc<str>, Option<JobId>>,
    /// During a claim.
    pub(in crate::store) heads: HashMap<Index, Heads>,
    /// The ends of runs, by minute and handler.
    pub(in crate::store) minutes: Counted,
    /// The done jobs that are kept.
    pub(in crate::store) done: Vec<Finished>,
    pub(in crate::store) groups: Groups,
    pub(super) links: Links,
    /// A row that others follow has ended, or is dead no more.
    pub(in crate::store) has_new_ends: bool,
    failure: Option<D::Failure>,
}

/// The index that has a row, and the wake instant there. None: there is none, or it is that of a
/// group.
pub(in crate::store) fn index_of(row: &Row) -> Option<(Index, Micros)> {
    match row.lane() {
        Lane::Priority(priority) => Some(((row.kind, row.recurring.is_none().then_some(priority)), row.wake()?)),
        Lane::Group(_) => None,
    }
}

impl<D: Dialect> Work<D> {
    pub(in crate::store) fn new(dialect: D, up: Micros, facts: StoreFacts) -> Self {
        Self {
            dialect,
            up,
            facts,
            effects: Effects::default(),
            cache: HashMap::new(),
            changed: Vec::new(),
            keys: HashMap::new(),
            heads: HashMap::new(),
            minutes: BTreeMap::new(),
            done: Vec::new(),
            groups: Groups::default(),
            links: Links::default(),
            has_new_ends: false,
            failure: None,
        }
    }

    /// Undoes the transaction.
    pub(in crate::store) fn fail(&mut self, failure: D::Failure) {
        self.failure.get_or_insert(failure);
    }

    pub(in crate::store) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    pub(in crate::store) fn failure(&mut self) -> Option<D::Failure> {
        self.failure.take()
    }

    /// Nothing after a failure.
    pub(in crate::store) fn kept<T: Default>(&mut self, ask: impl FnOnce(&mut D) -> Result<T, D::Failure>) -> T {
        if self.failure.is_some() {
            return T::default();
        }
        ask(&mut self.dialect).unwrap_or_else(|failure| {
            self.failure = Some(failure);
            T::default()
        })
    }

    /// The rows of an answer.
    pub(in crate::store) fn ask(&mut self, sql: &'static str, values: &[Value<'_>]) -> Vec<D::Answer> {
        self.kept(|dialect| dialect.ask(sql, values))
    }

    /// The first number of the first row of an answer.
    pub(in crate::store) fn number(&mut self, sql: &'static str, values: &[Value<'_>]) -> Option<i64> {
        self.ask(sql, values).first()?.number(0)
    }

    /// Brings rows into the cache, with the runs of recurring jobs: these change under the lock of
    /// the recurring job alone.
    pub(in crate::store) fn take_in(&mut self, read: Vec<Read>) {
        let is_new = |read: &Read| !self.cache.contains_key(&read.row.id);
        let read: Vec<Read> = read.into_iter().filter(is_new).collect();
        let parents: Vec<i64> =
            read.iter().filter(|read| read.row.recurring.is_some()).map(|read| read.row.id.0 as i64).collect();
        let mut runs: HashMap<JobId, Vec<(JobId, bool)>> = HashMap::new();
        if !parents.is_empty() {
            for row in self.ask(D::TEXTS.runs, values![&*parents]) {
                let run = (JobId(row.count(1)), row.number(2) == Some(State::Queued as i64));
                runs.entry(JobId(row.count(0))).or_default().push(run);
            }
        }
        for Read { mut row, unreadable } in read {
            let id = row.id;
            if let Some(reason) = unreadable {
                self.bury_unreadable(&row, &reason);
                self.cache.insert(id, Cached { row: None, change: None });
                continue;
            }
            if let Some(recurring) = &mut row.recurring {
                for (run, queued) in runs.remove(&id).unwrap_or_default() {
                    if queued {
                        recurring.queued.push_back(run);
                    } else {
                        recurring.live.push(run);
                    }
                }
            }
            if row.holds_key {
                self.keys.insert(Arc::clone(&row.key), Some(id));
            }
            self.cache.insert(id, Cached { row: Some(row), change: None });
        }
    }

    /// There is no row with this number, unless it was read.
    pub(in crate::store) fn is_absent(&mut self, id: JobId) {
        self.cache.entry(id).or_insert(Cached { row: None, change: None });
    }

    /// The key is free, unless a row with it was read.
    pub(in crate::store) fn is_free(&mut self, key: &Arc<str>) {
        self.keys.entry(Arc::clone(key)).or_insert(None);
    }

    /// A row that was read.
    pub(in crate::store) fn cached(&self, id: JobId) -> Option<&Row> {
        self.cache.get(&id)?.row.as_deref()
    }

    /// The rows that were read, at the end.
    pub(in crate::store) fn drain(&mut self) -> impl Iterator<Item = Box<Row>> {
        self.cache.drain().filter_map(|(_, cached)| cached.row)
    }

    /// A recurring job whose schedule cannot be read (written by hand, or with a zone that this
    /// system does not know) is dead, and in no other job's way. Its text stays as it is.
    fn bury_unreadable(&mut self, row: &Row, reason: &str) {
        if let Some(heads) = self.heads.get_mut(&(row.kind, None)) {
            heads.rows.retain(|&(_, id)| id != row.id);
        }
        if row.state != State::Dead {
            let died = self.next_death();
            let error = D::clean(&format!("the schedule cannot be read: {reason}"));
            self.ask(D::TEXTS.bury, values![died, &*error, row.id]);
            self.dialect.count(row.kind, row.state, -1);
            self.dialect.count(row.kind, State::Dead, 1);
        }
    }

    /// Brings a row into the cache.
    fn fetch(&mut self, id: JobId) -> bool {
        if let Some(cached) = self.cache.get(&id) {
            return self.failure.is_none() && cached.row.is_some();
        }
        match self.dialect.remembered_run(id) {
            Some(row) => _ = self.cache.insert(id, Cached { row: Some(row), change: None }),
            None => {
                let read = self.kept(|dialect| dialect.read(D::BY_ID, id.into()));
                self.take_in(read);
            }
        }
        self.failure.is_none() && self.cached(id).is_some()
    }

    /// Writes all changes.
    pub(in crate::store) fn flush(&mut self) {
        self.write_rows();
        self.settle_groups();
    }

    pub(in crate::store) fn write_rows(&mut self) {
        if self.changed.is_empty() || self.failure.is_some() {
            return;
        }
        let Self { dialect, cache, changed, links, failure, .. } = self;
        let written = dialect.write(&Self::to_write(cache, changed, &links.new));
        *failure = written.err();
        links.new.clear();
        for id in take(changed) {
            if let Some(cached) = cache.get_mut(&id) {
                cached.change = None;
            }
        }
    }

    /// The changes, which the caller writes as the last ones.
    pub(in crate::store) fn changes(&self) -> Changed<'_, D::Before> {
        Self::to_write(&self.cache, &self.changed, &self.links.new)
    }

    fn to_write<'w>(
        cache: &'w HashMap<JobId, Cached<D::Before>>,
        changed: &[JobId],
        links: &'w [(JobId, Predecessor)],
    ) -> Changed<'w, D::Before> {
        let (mut gone, mut free, mut holding, mut new) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for &id in changed {
            let Some(cached) = cache.get(&id) else { continue };
            match (&cached.change, cached.row.as_deref()) {
                (Some(Change::Changed(before)), Some(row)) if row.holds_key => holding.push((row, before)),
                (Some(Change::Changed(before)), Some(row)) => free.push((row, before)),
                (Some(Change::New), Some(row)) => new.push(row),
                (Some(Change::Gone), _) => gone.push(id),
                _ => {}
            }
        }
        Changed { links, gone, free, holding, new }
    }

    fn first(&mut self, index: Index) -> Option<(Micros, JobId)> {
        if self.failure.is_some() {
            return None;
        }
        let head = self.heads.get(&index).and_then(|heads| heads.rows.first().copied());
        if let Some(rest) = self.dialect.rest(index) {
            return head.into_iter().chain(rest.map(|rest| (rest, JobId(u64::MAX)))).min();
        }
        head.or_else(|| {
            self.write_rows();
            let found = match index {
                (kind, Some(priority)) if priority != 0 => {
                    self.ask(D::TEXTS.first_of_priority, values![kind, i64::from(priority)])
                }
                (kind, priority) => self.ask(D::TEXTS.first, values![kind, priority.is_none()]),
            };
            found.first().and_then(|row| Some((row.instant(0)?, JobId(row.count(1)))))
        })
    }

    /// A row stands at another place of an index.
    fn moves(&mut self, id: JobId, from: Option<(Index, Micros)>, to: Option<(Index, Micros)>) {
        if let Some((heads, wake)) = from.and_then(|(index, wake)| Some((self.heads.get_mut(&index)?, wake))) {
            heads.rows.remove(&(wake, id));
        }
        let Some((index, wake)) = to else { return };
        let Some(heads) = self.heads.get_mut(&index) else { return };
        match heads.all_by {
            Some(all_by) if wake <= all_by => _ = heads.rows.insert((wake, id)),
            Some(_) => {}
            // Among others that were not read.
            None => _ = self.heads.remove(&index),
        }
    }

    fn free_key(&mut self, row: &Row) {
        if self.keys.get(&row.key).is_none_or(|holder| *holder == Some(row.id)) {
            self.keys.insert(Arc::clone(&row.key), None);
        }
    }

    fn note(&mut self, row: &Row) {
        self.groups.note(row);
        // Of a job with a group the first wake instant is told when the group is settled.
        let is_told = !matches!(row.lane(), Lane::Group(_)) && !self.is_paused(row.kind);
        let at = row.wake().filter(|_| is_told);
        self.effects.wake(at);
        self.effects.notice_step(row, self.up);
        self.dialect.noted(row, at);
    }
}

impl<D: Dialect> Rows for Work<D> {
    fn up(&self) -> Micros {
        self.up
    }

    fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    fn facts(&self) -> StoreFacts {
        self.facts
    }

    fn row(&mut self, id: JobId) -> Option<&Row> {
        if self.fetch(id) { self.cached(id) } else { None }
    }

    fn holder(&mut self, key: &str) -> Option<JobId> {
        // Its former holder may just have left with a transaction that gave the key to another row:
        // the second look sees it.
        for _ in 0..if D::LOCKS { 2 } else { 1 } {
            if let Some(holder) = self.keys.get(key) {
                return *holder;
            }
            let read = self.kept(|dialect| dialect.read(D::BY_KEY, key.into()));
            let found = read.first().map(|read| read.row.id);
            self.take_in(read);
            let holder = found.and_then(|id| self.cached(id)).filter(|row| row.holds_key && *row.key == *key);
            if let Some((key, id)) = holder.map(|row| (Arc::clone(&row.key), row.id)) {
                self.keys.insert(key, Some(id));
            }
        }
        *self.keys.entry(key.into()).or_insert(None)
    }

    fn insert_plain(&mut self, new: &NewJob, due: Micros) -> Option<JobId> {
        D::insert_plain(self, new, due)
    }

    fn insert(&mut self, row: Box<Row>) {
        self.dialect.count(row.kind, row.state, 1);
        self.note(&row);
        self.moves(row.id, None, index_of(&row));
        if row.holds_key {
            self.keys.insert(Arc::clone(&row.key), Some(row.id));
        }
        self.changed.push(row.id);
        self.cache.insert(row.id, Cached { row: Some(row), change: Some(Change::New) });
    }

    fn edit<R>(&mut self, id: JobId, change: impl FnOnce(&mut Row) -> R) -> Option<R> {
        if !self.fetch(id) {
            return None;
        }
        let cached = self.cache.get_mut(&id)?;
        let mut row = cached.row.take()?;
        if cached.change.is_none() {
            cached.change = Some(Change::Changed(D::before(&row)));
            self.changed.push(id);
        }
        self.dialect.count(row.kind, row.state, -1);
        let (held, before, dead) = (row.holds_key, index_of(&row), row.state == State::Dead);
        let result = change(&mut row);
        self.has_new_ends |= row.followed && dead != (row.state == State::Dead);
        self.dialect.count(row.kind, row.state, 1);
        self.moves(id, before, index_of(&row));
        match (held, row.holds_key) {
            (true, false) => self.free_key(&row),
            (false, true) => _ = self.keys.insert(Arc::clone(&row.key), Some(id)),
            _ => {}
        }
        self.note(&row);
        if let Some(cached) = self.cache.get_mut(&id) {
            cached.row = Some(row);
        }
        Some(result)
    }

    fn rewrite(&mut self, id: JobId, kind: usize, payload: &Arc<str>, tie: Option<Box<Tie>>) {
        let group = tie.as_ref().map(|tie| (tie.group as i64, Arc::clone(&tie.text)));
        let before = self.edit(id, |row| {
            (row.kind, row.payload) = (kind, Arc::clone(payload));
            std::mem::replace(&mut row.tie, tie)
        });
        self.groups.unsettled.extend(before.flatten().map(|tie| tie.group));
        self.write_rows(); // the row may be new
        let (number, text) = group.unzip();
        self.ask(D::TEXTS.rewrite, values![kind, &**payload, number, text.as_deref(), id]);
    }

    fn take_out(&mut self, id: JobId) {
        if !self.fetch(id) {
            return;
        }
        let Some(Cached { row: Some(row), change }) = self.cache.get(&id) else { return };
        let (follows, is_unwritten) = (row.until.is_some(), row.followed && change.is_some());
        if is_unwritten {
            // What notes the end is a trigger, which must see how the row is by now.
            self.write_rows();
        }
        if follows {
            self.links.forget(id);
        }
        let Some(cached) = self.cache.get_mut(&id) else { return };
        let Some(row) = cached.row.take() else { return };
        match cached.change.replace(Change::Gone) {
            Some(Change::New) => cached.change = None,
            Some(_) => {}
            None => self.changed.push(id),
        }
        self.has_new_ends |= row.followed;
        self.dialect.count(row.kind, row.state, -1);
        self.moves(id, index_of(&row), None);
        self.groups.unsettled.extend(row.tie.as_ref().map(|tie| tie.group));
        if row.holds_key {
            self.free_key(&row);
        }
        self.effects.drop_later(row);
    }

    fn next_id(&mut self) -> JobId {
        D::next_id(self)
    }

    fn kind(&mut self, name: &Arc<str>) -> usize {
        if let Some(kind) = self.dialect.handlers().number(name) {
            return kind;
        }
        let found = self.ask(D::TEXTS.handler, values![&**name]);
        let Some((id, paused)) = found.first().map(|row| (row.count(0) as usize, row.flag(1))) else { return 0 };
        self.dialect.handlers().add(id, Arc::clone(name), paused);
        id
    }

    fn known(&mut self, name: &str) -> Option<usize> {
        self.dialect.handlers().number(name)
    }

    fn name_of(&mut self, kind: usize) -> Arc<str> {
        self.dialect.handlers().name(kind)
    }

    fn is_paused(&mut self, kind: usize) -> bool {
        self.dialect.handlers().is_paused(kind)
    }

    fn set_paused(&mut self, kind: usize, paused: bool) {
        self.ask(D::TEXTS.pause, values![paused, kind]);
        self.dialect.handlers().set_paused(kind, paused);
    }

    fn first_job(&mut self, kind: usize, priority: i8) -> Option<(Micros, JobId)> {
        self.first((kind, Some(priority)))
    }

    fn priorities(&mut self, kind: usize) -> Vec<i8> {
        D::priorities(self, kind)
    }

    fn note_priority(&mut self, kind: usize, priority: i8) {
        D::note_priority(self, kind, priority);
    }

    fn first_schedule(&mut self, kind: usize) -> Option<(Micros, JobId)> {
        self.first((kind, None))
    }

    fn behind(&mut self, now: Micros, at_most: usize) -> Vec<JobId> {
        if !self.dialect.may_be_behind() {
            return Vec::new();
        }
        self.write_rows();
        self.ask(D::TEXTS.behind, values![now, at_most]).iter().map(|row| JobId(row.count(0))).collect()
    }

    fn discard_unreadable(&mut self, id: JobId) -> bool {
        self.flush();
        let found = self.ask(D::TEXTS.discard, values![id]);
        let kind = found.first().map(|row| row.count(0) as usize);
        kind.into_iter().for_each(|kind| self.dialect.count(kind, State::Dead, -1));
        kind.is_some()
    }

    fn keep(&mut self, done: Finished) {
        self.dialect.kept(&done);
        self.done.push(done);
    }

    fn last_done(&mut self, key: &str) -> Option<JobId> {
        self.find_done(key)
    }

    fn remembered(&mut self, key: &str, now: Micros) -> Option<JobId> {
        let own = self.done.iter().rev().find(|done| *done.key == *key && done.key_until > now);
        own.map(|done| done.id).or_else(|| D::remembered(self, key, now))
    }

    fn ended(&mut self, kind: usize, minute: i64, record: &LastRun) {
        self.minutes.entry((minute, kind)).or_default().add(record);
    }

    fn next_death(&mut self) -> u64 {
        let death = D::next_death(self);
        // The rows may be many, so the first to have died make way by hundreds.
        if death % 256 == 0 && death > 0 {
            self.flush();
            let last = self.number(D::TEXTS.death, values![MOST_DEAD - 256]).unwrap_or_default();
            while let Some(id) = self.number(D::TEXTS.dead, values![last]) {
                let is_gone = self.discard(JobId(id as u64));
                self.flush();
                if !is_gone {
                    break;
                }
            }
        }
        death
    }

    fn counted(&mut self, kind: usize) -> u64 {
        if D::LOCKS {
            self.full_at(kind);
        }
        self.flush();
        // A statement of its own, after the lock: it sees all claims before.
        D::counted(self, kind)
    }

    fn full_at(&mut self, kind: usize) -> Option<Micros> {
        self.ask(D::TEXTS.full_at, values![kind]).first()?.instant(0)
    }

    fn set_full_at(&mut self, kind: usize, at: Micros) {
        self.ask(D::TEXTS.set_full_at, values![at, kind]);
    }
}
