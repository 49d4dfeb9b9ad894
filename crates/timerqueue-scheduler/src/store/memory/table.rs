//! Rows and their indexes.
//!
//! Ground rules. The methods of [`Rows`] are the only ways to change a row: each takes the row out
//! of the indexes and puts it back, so an index never disagrees with its rows. Rows that leave go
//! to [`Effects`], and are dropped after unlocking, since a schedule may have a rule of the user's.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::links::Links;
use super::members::{Groups, Members};
use super::past::Past;
use crate::store::minutes::{Activity, Ends, KEPT, minute_of, minutes_of};
use crate::store::rules::{Effects, Lane, MOST_DEAD, Row, Rows, StoreFacts, Tie, WRONG_BY, end_of_leaving, span_of};
use crate::store::{Finished, JobId, JobInfo, LastRun, Micros, NodeId, PredecessorEnd, State};

/// The rows of a handler that have a wake instant, in its order.
#[derive(Debug, Default)]
pub(super) struct Kind {
    pub(super) name: Arc<str>,
    pub(super) paused: bool,
    pub(super) jobs: BTreeSet<(Micros, JobId)>,
    /// The jobs with priorities other than zero; none of these sets is empty.
    pub(super) others: BTreeMap<i8, BTreeSet<(Micros, JobId)>>,
    pub(super) schedules: BTreeSet<(Micros, JobId)>,
    pub(super) states: [u64; State::ALL.len()],
    /// Jobs that wait after a failed attempt.
    pub(super) failing: u64,
    /// The schedulers that have runs, with how many.
    pub(super) running: Vec<(u64, u64)>,
    /// The runs that have a place among those of all members.
    counted: u64,
    /// When the rate allows a full burst again.
    full_at: Option<Micros>,
}

impl Kind {
    fn runs(&mut self, owner: u64, begins: bool) {
        let at = self.running.iter().position(|&(other, _)| other == owner);
        match (at, begins) {
            (Some(at), true) => self.running[at].1 += 1,
            (None, true) => self.running.push((owner, 1)),
            (Some(at), false) if self.running[at].1 == 1 => _ = self.running.swap_remove(at),
            (Some(at), false) => self.running[at].1 -= 1,
            (None, false) => debug_assert!(false, "a run that ends has begun"),
        }
    }

    fn of(&self, priority: i8) -> Option<&BTreeSet<(Micros, JobId)>> {
        if priority == 0 { Some(&self.jobs) } else { self.others.get(&priority) }
    }

    /// The first wake instant of a job.
    pub(super) fn first_wake(&self) -> Option<Micros> {
        self.others.values().chain([&self.jobs]).filter_map(|jobs| Some(jobs.first()?.0)).min()
    }

    /// The runs of a scheduler.
    pub(super) fn runs_of(&self, owner: u64) -> u64 {
        self.running.iter().find(|&&(other, _)| other == owner).map_or(0, |&(_, runs)| runs)
    }
}

/// All rows.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) rows: BTreeMap<JobId, Box<Row>>,
    /// Waiting, running and recurring jobs.
    pub(super) keys: HashMap<Arc<str>, JobId>,
    pub(super) kinds: Vec<Kind>,
    by_name: HashMap<Arc<str>, usize>,
    /// Rows with a span, by the last reading of the clock that they allow.
    pub(super) spans: BTreeSet<(i64, JobId)>,
    /// By the order of dying.
    dead: BTreeMap<u64, JobId>,
    /// Dead jobs by key, in the order of dying.
    dead_keys: BTreeSet<(Arc<str>, u64, JobId)>,
    deaths: u64,
    last_id: u64,
    /// The ends of runs, by minute and handler.
    minutes: BTreeMap<(i64, usize), Ends>,
    pub(super) history: Past,
    pub(super) links: Links,
    pub(super) members: Members,
    pub(super) groups: Groups,
    /// How long a look at a recurring job may take before another scheduler looks.
    pub(super) facts: StoreFacts,
    /// The clock of this lock section, rounded up: times from now are added to this reading, and so
    /// are not shortened (J1).
    pub(super) up: Micros,
    pub(super) effects: Effects,
}

/// Puts a row into the indexes. Returns its wake instant, if its handler is not paused.
fn add(kinds: &mut [Kind], groups: &mut Groups, spans: &mut BTreeSet<(i64, JobId)>, row: &Row) -> Option<Micros> {
    let kind = &mut kinds[row.kind];
    groups.add(row);
    kind.states[row.state.index()] += 1;
    kind.failing += u64::from(row.is_failing());
    if row.state == State::Running {
        kind.runs(row.owner, true);
        kind.counted += u64::from(row.counted);
    }
    spans.extend(row.earliest().map(|earliest| (earliest, row.id)));
    let wake = row.wake()?;
    match row.lane() {
        Lane::Priority(_) if row.state == State::Recurring => kind.schedules.insert((wake, row.id)),
        Lane::Priority(0) => kind.jobs.insert((wake, row.id)),
        Lane::Priority(priority) => kind.others.entry(priority).or_default().insert((wake, row.id)),
        Lane::Group(_) => return None, // told when the group is settled
    };
    (!kind.paused).then_some(wake)
}

/// Takes a row out of the indexes.
fn take(kinds: &mut [Kind], groups: &mut Groups, spans: &mut BTreeSet<(i64, JobId)>, row: &Row) {
    let kind = &mut kinds[row.kind];
    groups.take(row);
    kind.states[row.state.index()] -= 1;
    kind.failing -= u64::from(row.is_failing());
    if row.state == State::Running {
        kind.runs(row.owner, false);
        kind.counted -= u64::from(row.counted);
    }
    if let Some(earliest) = row.earliest() {
        spans.remove(&(earliest, row.id));
    }
    if let Some(wake) = row.wake() {
        let place = (wake, row.id);
        let was_there = match row.lane() {
            Lane::Priority(_) if row.state == State::Recurring => kind.schedules.remove(&place),
            Lane::Priority(0) => kind.jobs.remove(&place),
            Lane::Priority(priority) => {
                let was_there = kind.others.get_mut(&priority).is_some_and(|others| others.remove(&place));
                kind.others.retain(|_, others| !others.is_empty());
                was_there
            }
            Lane::Group(_) => return,
        };
        assert!(was_there, "a row with a wake instant is in the index");
    }
}

impl Table {
    /// A row as users see it.
    pub(super) fn info(&self, row: &Row) -> JobInfo {
        let node = (row.state == State::Running).then(|| self.members.of(row.owner)).flatten();
        JobInfo { node: node.map(|(id, _)| NodeId(id)), ..row.info(&self.kinds[row.kind].name) }
    }

    /// A job by itself, with its predecessors.
    pub(super) fn one(&self, id: JobId) -> Option<JobInfo> {
        let row = self.rows.get(&id)?;
        Some(JobInfo { predecessors: self.links.of(id).collect(), ..self.info(row) })
    }

    pub(super) fn settle_tied(&mut self, group: Option<u64>) {
        if let Some(group) = group {
            let now = self.up;
            self.settle_group(group, now);
        }
    }

    fn free_key(&mut self, key: &Arc<str>, id: JobId) {
        if self.keys.get(key) == Some(&id) {
            self.keys.remove(key);
        }
    }

    fn unbury(&mut self, died: u64, key: &Arc<str>, id: JobId) {
        self.dead.remove(&died);
        self.dead_keys.remove(&(Arc::clone(key), died, id));
    }

    /// The dead jobs with a key, in the order of dying.
    pub(super) fn dead_with(&self, key: &str) -> impl DoubleEndedIterator<Item = JobId> + use<'_> {
        let key: Arc<str> = key.into();
        let all = (Arc::clone(&key), 0, JobId(0))..=(key, u64::MAX, JobId(u64::MAX));
        self.dead_keys.range(all).map(|&(.., id)| id)
    }

    /// How many recurring jobs wait behind a clock that was ahead. No other row is read than those
    /// with a span that ends near now or later.
    pub(super) fn ahead(&self, now: Micros) -> u64 {
        let first = now.as_i64().saturating_sub(span_of(WRONG_BY));
        let rows = self.spans.range((first, JobId(0))..).filter_map(|(_, id)| self.rows.get(id));
        rows.filter(|row| row.is_ahead(now)).count() as u64
    }

    /// The ends of runs from an instant on, by window and handler.
    pub(super) fn activity(&self, since: Micros, window: Duration) -> Vec<Activity> {
        let window = minutes_of(window);
        let begin = |minute: i64| minute - minute % window;
        let mut windows: BTreeMap<(i64, &Arc<str>), Activity> = BTreeMap::new();
        for (&(minute, kind), ends) in self.minutes.range((begin(minute_of(since)), 0)..) {
            let (begin, name) = (begin(minute), &self.kinds[kind].name);
            let found = ends.activity(begin, name);
            windows.entry((begin, name)).and_modify(|sum| sum.merge(&found)).or_insert(found);
        }
        windows.into_values().collect()
    }

    /// Walks all rows: indexes, keys and counts agree with the rows.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let (mut kinds, mut spans, mut groups) = (Vec::new(), BTreeSet::new(), self.groups.emptied());
        for kind in &self.kinds {
            kinds.push(Kind { name: Arc::clone(&kind.name), paused: kind.paused, ..Kind::default() });
        }
        for row in self.rows.values() {
            add(&mut kinds, &mut groups, &mut spans, row);
            if let Some(recurring) = &row.recurring {
                for run in recurring.live.iter().chain(&recurring.queued) {
                    let run = &self.rows[run];
                    assert!(run.parent == Some(row.id) && run.state != State::Dead, "{run:?} of {row:?}");
                }
                assert!(recurring.queued.is_empty() || !recurring.live.is_empty(), "queued behind nothing: {row:?}");
            }
        }
        assert_eq!(spans, self.spans);
        self.groups.check(&groups);
        for (kind, own) in kinds.iter().zip(&self.kinds) {
            assert_eq!((&kind.jobs, &kind.schedules, kind.states), (&own.jobs, &own.schedules, own.states));
            assert_eq!((kind.failing, kind.counted, &kind.others), (own.failing, own.counted, &own.others));
            let sorted = |kind: &Kind| kind.running.iter().copied().collect::<BTreeSet<_>>();
            assert_eq!(sorted(kind), sorted(own));
        }
        for (key, id) in &self.keys {
            assert_eq!(self.rows[id].key, *key);
        }
        assert!(self.dead.values().all(|id| self.rows[id].state == State::Dead));
    }
}

impl Rows for Table {
    fn up(&self) -> Micros {
        self.up
    }

    fn facts(&self) -> StoreFacts {
        self.facts
    }

    fn effects(&mut self) -> &mut Effects {
        &mut self.effects
    }

    fn row(&mut self, id: JobId) -> Option<&Row> {
        self.rows.get(&id).map(|row| &**row)
    }

    fn holder(&mut self, key: &str) -> Option<JobId> {
        self.keys.get(key).copied()
    }

    fn insert(&mut self, row: Box<Row>) {
        let wake = add(&mut self.kinds, &mut self.groups, &mut self.spans, &row);
        self.effects.wake(wake);
        self.effects.notice_step(&row, self.up);
        if row.holds_key {
            self.keys.insert(Arc::clone(&row.key), row.id);
        }
        let group = row.tie.as_ref().map(|tie| tie.group);
        self.rows.insert(row.id, row);
        self.settle_tied(group);
    }

    fn edit<R>(&mut self, id: JobId, change: impl FnOnce(&mut Row) -> R) -> Option<R> {
        let row = self.rows.get_mut(&id)?;
        take(&mut self.kinds, &mut self.groups, &mut self.spans, row);
        let (held, dead, died) = (row.holds_key, row.state == State::Dead, row.died);
        let result = change(row);
        let wake = add(&mut self.kinds, &mut self.groups, &mut self.spans, row);
        self.effects.wake(wake);
        self.effects.notice_step(row, self.up);
        let (holds, dies, death) = (row.holds_key, row.state == State::Dead, row.died);
        let group = row.tie.as_ref().map(|tie| tie.group);
        if row.followed && dead != dies {
            self.links.ends(id, dies.then_some(PredecessorEnd::Dead));
        }
        if (held, dead) != (holds, dies) {
            let key = Arc::clone(&row.key);
            match (held, holds) {
                (true, false) => self.free_key(&key, id),
                (false, true) => _ = self.keys.insert(Arc::clone(&key), id),
                _ => {}
            }
            match (dead, dies) {
                (true, false) => self.unbury(died, &key, id),
                (false, true) => {
                    self.dead_keys.insert((key, death, id));
                    self.dead.insert(death, id);
                }
                _ => {}
            }
        }
        self.settle_tied(group);
        Some(result)
    }

    fn rewrite(&mut self, id: JobId, kind: usize, payload: &Arc<str>, tie: Option<Box<Tie>>) {
        let before = self.edit(id, |row| {
            (row.kind, row.payload) = (kind, Arc::clone(payload));
            std::mem::replace(&mut row.tie, tie)
        });
        self.settle_tied(before.flatten().map(|tie| tie.group));
    }

    fn take_out(&mut self, id: JobId) {
        let Some(row) = self.rows.remove(&id) else { return };
        take(&mut self.kinds, &mut self.groups, &mut self.spans, &row);
        if row.holds_key {
            self.free_key(&row.key, id);
        }
        if row.state == State::Dead {
            self.unbury(row.died, &row.key, id);
        }
        if row.followed {
            self.links.leaves(id, end_of_leaving(&row));
        }
        if row.until.is_some() {
            self.links.forget(id);
        }
        self.settle_tied(row.tie.as_ref().map(|tie| tie.group));
        self.effects.drop_later(row);
    }

    fn next_id(&mut self) -> JobId {
        self.last_id += 1;
        JobId(self.last_id)
    }

    fn kind(&mut self, name: &Arc<str>) -> usize {
        if let Some(&kind) = self.by_name.get(name) {
            return kind;
        }
        let kind = self.kinds.len();
        self.kinds.push(Kind { name: Arc::clone(name), ..Kind::default() });
        self.by_name.insert(Arc::clone(name), kind);
        kind
    }

    fn known(&mut self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    fn name_of(&mut self, kind: usize) -> Arc<str> {
        Arc::clone(&self.kinds[kind].name)
    }

    fn is_paused(&mut self, kind: usize) -> bool {
        self.kinds[kind].paused
    }

    fn set_paused(&mut self, kind: usize, paused: bool) {
        self.kinds[kind].paused = paused;
    }

    fn first_job(&mut self, kind: usize, priority: i8) -> Option<(Micros, JobId)> {
        self.kinds[kind].of(priority)?.first().copied()
    }

    fn priorities(&mut self, kind: usize) -> Vec<i8> {
        self.kinds[kind].others.keys().copied().collect()
    }

    fn first_schedule(&mut self, kind: usize) -> Option<(Micros, JobId)> {
        self.kinds[kind].schedules.first().copied()
    }

    fn behind(&mut self, now: Micros, at_most: usize) -> Vec<JobId> {
        let behind = self.spans.range((now.as_i64() + 1, JobId(0))..).rev();
        behind.take(at_most).map(|&(_, id)| id).collect()
    }

    fn ended(&mut self, kind: usize, minute: i64, record: &LastRun) {
        if let Some(ends) = self.minutes.get_mut(&(minute, kind)) {
            return ends.add(record);
        }
        while self.minutes.first_key_value().is_some_and(|(&(first, _), _)| first <= minute - KEPT) {
            self.minutes.pop_first();
        }
        self.minutes.entry((minute, kind)).or_default().add(record);
    }

    fn keep(&mut self, done: Finished) {
        self.history.add(done, self.up);
    }

    fn last_done(&mut self, key: &str) -> Option<JobId> {
        self.history.last(key).filter(|&done| self.dead_with(key).all(|dead| dead < done))
    }

    fn remembered(&mut self, key: &str, now: Micros) -> Option<JobId> {
        self.history.taken(key, now)
    }

    fn next_death(&mut self) -> u64 {
        if self.dead.len() as u64 >= MOST_DEAD {
            if let Some((_, first)) = self.dead.pop_first() {
                self.remove(first);
            }
        }
        self.deaths += 1;
        self.deaths
    }

    fn counted(&mut self, kind: usize) -> u64 {
        self.kinds[kind].counted
    }

    fn full_at(&mut self, kind: usize) -> Option<Micros> {
        self.kinds[kind].full_at
    }

    fn set_full_at(&mut self, kind: usize, at: Micros) {
        self.kinds[kind].full_at = Some(at);
    }
}
