//! Rows and their indexes.
//!
//! Ground rules. [`Table::edit`], [`Table::insert`] and [`Table::remove`] are the only ways to change a row: each takes the row out of
//! the indexes and puts it back, so an index never disagrees with its rows. Rows that leave go to [`Effects`], and are dropped after
//! unlocking, since a schedule may have a rule of the user's.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::store::{JobId, JobInfo, LastRun, Micros, Notice, Occurrence, Op, Recurrence, State, Tally};

/// The most dead jobs kept; the first to have died makes way.
pub(super) const MOST_DEAD: usize = 100_000;

/// A job, or a recurring job.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) id: JobId,
    pub(super) key: Arc<str>,
    pub(super) kind: usize,
    pub(super) payload: Arc<str>,
    pub(super) state: State,
    pub(super) paused: bool,
    /// Of a running job: no attempt follows.
    pub(super) cancelled: bool,
    pub(super) due: Micros,
    /// The longest time to wait for `due`, in microseconds: more means that the clock was set back.
    pub(super) span: Option<i64>,
    pub(super) nominal: Option<Micros>,
    pub(super) parent: Option<JobId>,
    pub(super) attempt: u32,
    /// Counts claims, for [`Held`](crate::store::Held).
    pub(super) claims: u64,
    /// Counts the further runs at a handler's request.
    pub(super) turn: u64,
    pub(super) owner: u64,
    /// Of a running job, or of a recurring job during a look.
    pub(super) lease: Option<Micros>,
    pub(super) died: u64,
    pub(super) error: Option<Arc<str>>,
    pub(super) last: Option<Box<LastRun>>,
    pub(super) recurring: Option<Box<Recurring>>,
}

/// What a recurring job has beside.
#[derive(Debug)]
pub(super) struct Recurring {
    pub(super) recurrence: Box<Recurrence>,
    /// Counts the changes of `next`.
    pub(super) version: u64,
    /// The awaited occurrence.
    pub(super) next: Option<Occurrence>,
    /// Without an occurrence: when to look.
    pub(super) look: Option<Micros>,
    /// A scheduler looks: not again until the lease ends.
    pub(super) looked: bool,
    pub(super) last_nominal: Option<Micros>,
    /// The end of the last run of a fixed delay.
    pub(super) ended: Option<Micros>,
    /// Runs waiting or running.
    pub(super) live: Vec<JobId>,
    /// Runs waiting for the end of the live run.
    pub(super) queued: VecDeque<JobId>,
    /// No occurrence follows: the row leaves with the last run.
    pub(super) ending: bool,
    pub(super) tally: Tally,
}

/// A span in microseconds, rounded up.
pub(super) fn span_of(longest: Duration) -> i64 {
    i64::try_from(longest.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

impl Row {
    /// When to look at the row.
    pub(super) fn wake(&self) -> Option<Micros> {
        match (self.state, &self.recurring) {
            (State::Running, _) => self.lease,
            (State::Recurring, Some(recurring)) if recurring.looked => self.lease,
            (State::Recurring, Some(recurring)) if !self.paused => {
                recurring.next.map(|next| next.due).or(recurring.look)
            }
            (State::Waiting, _) if !self.paused => Some(self.due),
            _ => None,
        }
    }

    /// The last reading of the clock before which the clock must have been set back.
    fn earliest(&self) -> Option<i64> {
        let looked = self.recurring.as_ref().is_some_and(|recurring| recurring.looked);
        let waits = matches!(self.state, State::Waiting | State::Recurring) && !looked;
        Some(self.wake()?.as_i64().saturating_sub(self.span.filter(|_| waits)?))
    }

    /// The row as users see it.
    pub(super) fn info(&self, name: &Arc<str>) -> JobInfo {
        let recurring = self.recurring.as_deref();
        let (due, nominal) = match recurring {
            Some(recurring) => (recurring.next.map(|next| next.due), recurring.next.map(|next| next.nominal)),
            None => (Some(self.due), self.nominal),
        };
        JobInfo {
            id: self.id,
            key: Arc::clone(&self.key),
            name: Arc::clone(name),
            payload: Arc::clone(&self.payload),
            state: self.state,
            paused: self.paused,
            due: due.filter(|_| self.state != State::Dead).map(Micros::to_system),
            nominal: nominal.map(Micros::to_system),
            parent: self.parent,
            attempt: self.attempt,
            error: self.error.clone(),
            last: self.last.clone(),
            recurrence: recurring.map(|recurring| recurring.recurrence.clone()),
            tally: recurring.map(|recurring| recurring.tally).unwrap_or_default(),
        }
    }
}

/// The rows of a handler that have a wake instant, in its order.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) name: Arc<str>,
    pub(super) paused: bool,
    pub(super) jobs: BTreeSet<(Micros, JobId)>,
    pub(super) schedules: BTreeSet<(Micros, JobId)>,
    pub(super) states: [u64; State::ALL.len()],
}

/// A value with a possible rule of a user, whose destructor is the user's code.
#[derive(Debug)]
#[expect(dead_code, reason = "held to be dropped")]
pub(super) enum Garbage {
    Row(Box<Row>),
    Recurrence(Box<Recurrence>),
    Op(Op),
}

/// Work for the time after unlocking.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// The first wake instant given to a row.
    wake: Option<Micros>,
    /// A row with a wake instant has a span.
    span: bool,
    pub(super) cancelled: Vec<JobId>,
    /// Dropped after unlocking.
    garbage: Vec<Garbage>,
}

impl Effects {
    pub(super) fn wake(&mut self, at: Option<Micros>) {
        self.wake = [self.wake, at].into_iter().flatten().min();
    }

    pub(super) fn drop_later(&mut self, schedule: Box<Recurrence>) {
        self.garbage.push(Garbage::Recurrence(schedule));
    }

    pub(super) fn drop_op_later(&mut self, op: Op) {
        self.garbage.push(Garbage::Op(op));
    }

    pub(super) fn notices(&self) -> impl Iterator<Item = Notice> + '_ {
        self.wake
            .map(|at| Notice::Wake { at, span: self.span })
            .into_iter()
            .chain(self.cancelled.iter().copied().map(Notice::Cancelled))
    }
}

/// All rows.
#[derive(Debug)]
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
    /// The last dead job of each key.
    pub(super) dead_keys: HashMap<Arc<str>, JobId>,
    deaths: u64,
    last_id: u64,
    /// The clock of this lock section, rounded up: times from now are added to this reading, and so are not shortened (J1).
    pub(super) up: Micros,
    pub(super) effects: Effects,
}

/// Puts a row into the indexes. Returns its wake instant, if its handler is not paused.
fn add(kinds: &mut [Kind], spans: &mut BTreeSet<(i64, JobId)>, row: &Row) -> Option<Micros> {
    let kind = &mut kinds[row.kind];
    kind.states[row.state.index()] += 1;
    spans.extend(row.earliest().map(|earliest| (earliest, row.id)));
    let wake = row.wake()?;
    let index = if row.state == State::Recurring { &mut kind.schedules } else { &mut kind.jobs };
    index.insert((wake, row.id));
    (!kind.paused).then_some(wake)
}

/// Takes a row out of the indexes.
fn take(kinds: &mut [Kind], spans: &mut BTreeSet<(i64, JobId)>, row: &Row) {
    let kind = &mut kinds[row.kind];
    kind.states[row.state.index()] -= 1;
    if let Some(earliest) = row.earliest() {
        spans.remove(&(earliest, row.id));
    }
    if let Some(wake) = row.wake() {
        let index = if row.state == State::Recurring { &mut kind.schedules } else { &mut kind.jobs };
        assert!(index.remove(&(wake, row.id)), "a row with a wake instant is in the index");
    }
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            rows: BTreeMap::new(),
            keys: HashMap::new(),
            kinds: Vec::new(),
            by_name: HashMap::new(),
            spans: BTreeSet::new(),
            dead: BTreeMap::new(),
            dead_keys: HashMap::new(),
            deaths: 0,
            last_id: 0,
            up: Micros::FIRST,
            effects: Effects::default(),
        }
    }

    /// The handler's rows, made at the first call.
    pub(super) fn kind(&mut self, name: &Arc<str>) -> usize {
        if let Some(&kind) = self.by_name.get(name) {
            return kind;
        }
        let kind = self.kinds.len();
        self.kinds.push(Kind {
            name: Arc::clone(name),
            paused: false,
            jobs: BTreeSet::new(),
            schedules: BTreeSet::new(),
            states: Default::default(),
        });
        self.by_name.insert(Arc::clone(name), kind);
        kind
    }

    pub(super) fn known(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    pub(super) fn next_id(&mut self) -> JobId {
        self.last_id += 1;
        JobId(self.last_id)
    }

    pub(super) fn insert(&mut self, row: Box<Row>) {
        let wake = add(&mut self.kinds, &mut self.spans, &row);
        self.effects.wake(wake);
        self.effects.span |= row.span.is_some();
        self.rows.insert(row.id, row);
    }

    /// Changes a row. `None`: there is no such row.
    pub(super) fn edit<R>(&mut self, id: JobId, change: impl FnOnce(&mut Row) -> R) -> Option<R> {
        let row = self.rows.get_mut(&id)?;
        take(&mut self.kinds, &mut self.spans, row);
        let result = change(row);
        let wake = add(&mut self.kinds, &mut self.spans, row);
        self.effects.wake(wake);
        self.effects.span |= row.span.is_some();
        Some(result)
    }

    /// Takes a row out. It is dropped after unlocking.
    pub(super) fn remove(&mut self, id: JobId) {
        let Some(mut row) = self.rows.remove(&id) else { return };
        take(&mut self.kinds, &mut self.spans, &row);
        // Only a dead recurring job has runs still.
        if let Some(recurring) = &mut row.recurring {
            for run in recurring.queued.drain(..).chain(recurring.live.drain(..)) {
                self.remove_run(run);
            }
        }
        self.free_key(&row.key, id);
        if row.state == State::Dead {
            self.dead.remove(&row.died);
            if self.dead_keys.get(&row.key) == Some(&id) {
                self.dead_keys.remove(&row.key);
            }
        }
        self.effects.garbage.push(Garbage::Row(row));
    }

    /// A run whose recurring job leaves: it leaves too, unless it has begun. Then no attempt follows.
    fn remove_run(&mut self, run: JobId) {
        match self.rows.get_mut(&run) {
            Some(row) if row.state == State::Running => row.cancelled = true,
            _ => self.remove(run),
        }
    }

    fn free_key(&mut self, key: &Arc<str>, id: JobId) {
        if self.keys.get(key) == Some(&id) {
            self.keys.remove(key);
        }
    }

    /// The job is dead from now on, and its key is free.
    pub(super) fn bury(&mut self, id: JobId, error: Option<Arc<str>>) {
        self.deaths += 1;
        let died = self.deaths;
        let Some(key) = self.edit(id, |row| {
            (row.state, row.died, row.error, row.lease) = (State::Dead, died, error, None);
            Arc::clone(&row.key)
        }) else {
            return;
        };
        self.free_key(&key, id);
        self.dead_keys.insert(key, id);
        self.dead.insert(died, id);
        if self.dead.len() > MOST_DEAD {
            if let Some((_, first)) = self.dead.pop_first() {
                self.remove(first);
            }
        }
    }

    /// The job is dead no more. Its key is the caller's matter.
    pub(super) fn unbury(&mut self, id: JobId) {
        let Some(row) = self.rows.get(&id) else { return };
        self.dead.remove(&row.died);
        if self.dead_keys.get(&row.key) == Some(&id) {
            self.dead_keys.remove(&row.key);
        }
    }

    /// Walks all rows: indexes, keys and counts agree with the rows.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let (mut kinds, mut spans) = (Vec::new(), BTreeSet::new());
        for kind in &self.kinds {
            kinds.push(Kind {
                name: Arc::clone(&kind.name),
                paused: kind.paused,
                jobs: BTreeSet::new(),
                schedules: BTreeSet::new(),
                states: Default::default(),
            });
        }
        for row in self.rows.values() {
            add(&mut kinds, &mut spans, row);
            if let Some(recurring) = &row.recurring {
                for run in recurring.live.iter().chain(&recurring.queued) {
                    let run = &self.rows[run];
                    assert!(run.parent == Some(row.id) && run.state != State::Dead, "{run:?} of {row:?}");
                }
                assert!(recurring.queued.is_empty() || !recurring.live.is_empty(), "queued behind nothing: {row:?}");
            }
        }
        assert_eq!(spans, self.spans);
        for (kind, own) in kinds.iter().zip(&self.kinds) {
            assert_eq!((&kind.jobs, &kind.schedules, kind.states), (&own.jobs, &own.schedules, own.states));
        }
        for (key, id) in &self.keys {
            assert_eq!(self.rows[id].key, *key);
        }
        assert!(self.dead.values().all(|id| self.rows[id].state == State::Dead));
    }
}
