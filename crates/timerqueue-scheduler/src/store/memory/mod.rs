//! The memory store: jobs live as long as the process.
//!
//! Ground rules. One lock around a [`Table`](table::Table). Each call holds the lock for a bounded
//! time: a commit for its operations, a claim for its batch, a scan for [`SECTION`] rows at a time.
//! Replies and watchers are called, and rows dropped, after unlocking.

mod faulty;
mod links;
mod members;
mod past;
mod table;
#[cfg(test)]
#[path = "../../../tests/unit/memory.rs"]
mod tests;

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;
use timerqueue::Runtime;

pub use self::faulty::{FaultyStore, StoreCall, Trouble};
use self::table::Table;
use super::gate::Gate;
#[cfg(test)]
use super::rules::Bindings;
use super::rules::{Changes, Claims, Effects, Follows, GroupRows as _, Row};
use super::{
    Applied, Claim, Claimed, Counts, Entry, JobInfo, KindCounts, Micros, Op, Query, Reply, Scan, Scanned, Settled,
    Store, Watcher, Watchers, sealed,
};
use crate::Error;
use crate::debug::debug_of;

/// The rows of a scan in a lock section.
const SECTION: usize = 256;

/// A store in memory. Its clock is the wall clock of a runtime.
///
/// A scheduler makes its own, unless it is [given](crate::Builder::store) one. A `MemoryStore` is a
/// handle: clones share the same jobs. Several schedulers may use one store; a job is run by a
/// single scheduler.
///
/// **Memory** is bounded by the jobs put, and by 100,000 dead jobs: beyond, the first to have died
/// makes way. Done jobs are kept if their [`History`](super::History) says so. The counts of
/// [`activity`](crate::Scheduler::activity) take at most some 1.5 MB for each handler.
///
/// # Examples
///
/// Two schedulers on a store:
///
/// ```
/// use timerqueue::{ManualClock, Runtime};
/// use timerqueue_scheduler::{Scheduler, store::MemoryStore};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let store = MemoryStore::new(&runtime);
/// let front = Scheduler::builder().runtime(&runtime).store(store.clone()).start()?;
/// let back = Scheduler::builder().runtime(&runtime).store(store).handler("mail", |to: String, _| println!("{to}")).start()?;
/// let _ = front.put_to("mail", &"ann").send().wait()?;
/// clock.advance(std::time::Duration::ZERO);
/// assert_eq!(back.stats().wait()?.done, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Runtime,
    table: Mutex<Table>,
    watchers: Watchers,
    /// Distinguishes the runs of this store from the runs of all stores before.
    seed: u64,
    shared: bool,
    gate: Arc<Gate>,
}

impl MemoryStore {
    /// A store without jobs, for any number of schedulers. Each of these must use the same wall
    /// clock: a runtime on the same manual clock, or any runtime on the system's clocks.
    #[must_use]
    pub fn new(runtime: &Runtime) -> Self {
        Self::made(runtime, true)
    }

    /// A store for a single scheduler.
    pub(crate) fn own(runtime: &Runtime) -> Self {
        Self::made(runtime, false)
    }

    fn made(runtime: &Runtime, shared: bool) -> Self {
        let inner = Inner {
            runtime: runtime.clone(),
            table: Mutex::default(),
            watchers: Watchers::default(),
            seed: RandomState::new().hash_one(0),
            shared,
            gate: Arc::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    fn clock(&self) -> Micros {
        Micros::floor(self.inner.runtime.wall_now())
    }

    /// A lock section. Returns the work to do after unlocking.
    fn section<R>(&self, work: impl FnOnce(&mut Table, Micros) -> R) -> (R, Effects) {
        let mut table = self.inner.table.lock();
        let wall = self.inner.runtime.wall_now();
        let now = Micros::floor(wall);
        table.up = Micros::ceil(wall).unwrap_or(now);
        let result = work(&mut table, now);
        table.follow_up();
        (result, std::mem::take(&mut table.effects))
    }

    /// Tells the schedulers.
    fn tell(&self, effects: &Effects) {
        effects.notices().for_each(|notice| self.inner.watchers.tell(notice));
    }

    /// In the order of due times. Keeps the places of the first ones alone while it walks.
    fn list_soonest(&self, query: &Query) -> Vec<JobInfo> {
        let behind = query.after_due.zip(query.after);
        let all = Query { limit: None, after: None, soonest_first: false, ..query.clone() };
        let limit = query.limit.unwrap_or(usize::MAX);
        let mut first = BTreeSet::new();
        self.walk(&all, |row, _| {
            let place = (row.due_key(), row.id);
            if behind.is_none_or(|behind| place > behind) {
                first.insert(place);
                if first.len() > limit {
                    first.pop_last();
                }
            }
        });
        let mut found = Vec::with_capacity(first.len());
        let mut first = first.into_iter().peekable();
        while first.peek().is_some() {
            let table = self.inner.table.lock();
            let rows = first.by_ref().take(SECTION).filter_map(|(_, id)| table.rows.get(&id));
            found.extend(rows.map(|row| table.info(row)));
        }
        found
    }

    fn list(&self, query: &Query) -> Vec<JobInfo> {
        if query.soonest_first {
            return self.list_soonest(query);
        }
        let mut found = Vec::new();
        self.walk(query, |row, table| found.push(table.info(row)));
        found
    }

    /// Calls `each` for the rows of a query, in the order of their numbers. The lock is held during
    /// each call.
    fn walk(&self, query: &Query, mut each: impl FnMut(&Row, &Table)) {
        let mut found = 0;
        let limit = query.limit.unwrap_or(usize::MAX);
        let newest = query.newest_first;
        let mut after = query.after.map_or(Bound::Unbounded, Bound::Excluded);
        while found < limit {
            let table = self.inner.table.lock();
            let mut last = None;
            let range = if newest { (Bound::Unbounded, after) } else { (after, Bound::Unbounded) };
            let mut rows = table.rows.range(range);
            let next = || if newest { rows.next_back() } else { rows.next() };
            for (&id, row) in std::iter::from_fn(next).take(SECTION) {
                last = Some(id);
                let name = &table.kinds[row.kind].name;
                let fits = query.takes(row) && query.name.as_ref().is_none_or(|wanted| wanted == name);
                if fits && found < limit {
                    found += 1;
                    each(row, &table);
                }
            }
            match last {
                Some(id) => after = Bound::Excluded(id),
                None => break,
            }
        }
    }

    fn get(&self, key: &str) -> Option<JobInfo> {
        let table = self.inner.table.lock();
        let id = table.keys.get(key).copied().or_else(|| table.dead_with(key).next_back())?;
        table.one(id)
    }

    fn counts(&self) -> Counts {
        let mut table = self.inner.table.lock();
        let now = self.clock();
        let active: Vec<usize> = (0..table.kinds.len()).filter(|&kind| !table.kinds[kind].paused).collect();
        let bound = table.next_group(&active, None);
        let counts =
            |kind: &table::Kind| KindCounts::new(Arc::clone(&kind.name), kind.paused, kind.states, kind.failing);
        let mut kinds: Vec<KindCounts> = table.kinds.iter().map(counts).collect();
        kinds.sort_by(|a, b| a.name.cmp(&b.name));
        let waiting = table.kinds.iter().filter(|kind| !kind.paused).filter_map(table::Kind::first_wake);
        let oldest_overdue = waiting.chain(bound).min().filter(|&wake| wake < now).map(Micros::to_system);
        Counts { kinds, oldest_overdue, ahead: table.ahead(now), now: Some(now.to_system()) }
    }

    /// Walks all rows: the indexes agree with them.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.inner.table.lock().check();
    }

    /// Of members that may end without a word, as those of a server: a look takes this long at
    /// most.
    #[cfg(test)]
    pub(crate) fn set_look_time(&self, time: std::time::Duration) {
        self.inner.table.lock().facts.look_time = Some(time);
    }

    /// The end of a member: its runs wait again, in the same commit.
    #[cfg(test)]
    pub(crate) fn end_member(&self, owner: u64) {
        let ((), effects) = self.section(|table, now| {
            let is_run = |row: &Row| row.state == super::State::Running && row.owner == owner;
            let runs: Vec<_> = table.rows.values().filter(|row| is_run(row)).map(|row| row.id).collect();
            table.take_back_runs(&runs, true, now);
            table.members.leave(owner);
            table.effects.wake(Some(now));
        });
        self.tell(&effects);
    }
}

impl sealed::Sealed for MemoryStore {}

impl Store for MemoryStore {
    fn apply(&self, ops: Vec<Op>, reply: Reply<Vec<Applied>>) {
        let (applied, effects) =
            self.section(|table, now| ops.into_iter().map(|op| table.apply(op, now)).collect::<Vec<_>>());
        self.tell(&effects);
        reply.send(Ok(applied));
        drop(effects); // rules of users, whose destructors may panic
    }

    fn claim(&self, claim: Claim, reply: Reply<Claimed>) {
        let (claimed, effects) = self.section(|table, now| {
            let entry = table.members.of(claim.owner).map(|(_, entry)| entry);
            table.claim(&claim, entry.as_deref(), now, self.inner.seed)
        });
        self.tell(&effects); // a step back of the clock changes wake instants
        drop(effects);
        reply.send(Ok(claimed));
    }

    fn settle(&self, end: Op, place: Claim, reply: Reply<Settled>) {
        let (settled, effects) = self.section(|table, now| {
            let applied = vec![table.apply(end, now)];
            let entry = table.members.of(place.owner).map(|(_, entry)| entry);
            let next = table.fill(&place, entry.as_deref(), now, self.inner.seed).pop();
            Settled { applied, next }
        });
        self.tell(&effects);
        reply.send(Ok(settled));
        drop(effects);
    }

    fn scan(&self, scan: Scan, reply: Reply<Scanned>) {
        reply.send(Ok::<_, Error>(match scan {
            Scan::Get(key) => Scanned::Jobs(self.get(&key).into_iter().collect()),
            Scan::Job(id) => Scanned::Jobs(self.inner.table.lock().one(id).into_iter().collect()),
            Scan::Ended(ids) => {
                let table = self.inner.table.lock();
                let lives = |id: &super::JobId| table.rows.get(id).is_some_and(|row| row.state != super::State::Dead);
                Scanned::Ended(ids.into_iter().filter(|id| !lives(id)).collect())
            }
            Scan::Finished(id) => {
                let table = self.inner.table.lock();
                Scanned::Finished(table.history.one(id, &table.kinds).map(Box::new))
            }
            Scan::History(query) => {
                let table = self.inner.table.lock();
                Scanned::History(table.history.list(&query, &table.kinds))
            }
            Scan::List(query) => Scanned::Jobs(self.list(&query)),
            // A schedule in memory has its zone data with it.
            Scan::Zoned { .. } => Scanned::Jobs(Vec::new()),
            Scan::Counts | Scan::SomeCounts { .. } => Scanned::Counts(self.counts()),
            Scan::Activity { since, window } => Scanned::Activity(self.inner.table.lock().activity(since, window)),
            Scan::Groups { after, limit } => Scanned::Groups(self.inner.table.lock().groups(after, limit)),
            Scan::Nodes { owner } => Scanned::Nodes(self.inner.table.lock().nodes(owner)),
        }));
    }

    fn enter(&self, entry: Arc<Entry>) {
        let ((), effects) = self.section(|table, now| table.members.enter(entry, now));
        self.tell(&effects);
    }

    fn leave(&self, owner: u64) {
        let ((), effects) = self.section(|table, now| {
            if table.members.leave(owner) {
                table.effects.wake(Some(now)); // its groups are bound again
            }
        });
        self.tell(&effects);
    }

    fn watch(&self, watcher: Watcher) {
        self.inner.watchers.add(watcher);
    }

    fn now(&self) -> Option<Micros> {
        Some(self.clock())
    }

    fn is_shared(&self) -> bool {
        self.inner.shared
    }

    fn can_fail(&self) -> bool {
        false
    }

    fn gate(&self) -> Option<&Arc<Gate>> {
        Some(&self.inner.gate)
    }
}

debug_of!(MemoryStore, |store| jobs: store.inner.table.lock().rows.len());
