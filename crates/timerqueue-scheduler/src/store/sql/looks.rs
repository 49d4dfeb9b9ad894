//! Looks that change nothing.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::links::with_predecessors;
use super::{Answer, Texts, Value, history, values};
use crate::store::minutes::{self, Activity, minute_of, minutes_of};
use crate::store::questions::{Asked, Listing, SECTION};
use crate::store::rules::{WRONG_BY, span_of};
use crate::store::{
    Bound, Counts, Entry, GroupId, Hold, JobId, JobInfo, KindCounts, Micros, Node, NodeId, Query, Scan, Scanned, State,
    text,
};

/// A connection that looks.
pub(in crate::store) trait Look {
    type Failure;
    type Answer: Answer;

    const TEXTS: Texts;
    /// A file, where the rows of handlers have their counts by state.
    const KEEPS_COUNTS: bool;

    fn look(&self, sql: &'static str, values: &[Value<'_>]) -> Result<Vec<Self::Answer>, Self::Failure>;
    /// The jobs of a statement that begins with the columns of a job for people.
    fn jobs(&self, sql: &'static str, values: &[Value<'_>]) -> Result<Vec<JobInfo>, Self::Failure>;
    /// The jobs that run, and some of those that are due within this time, without recurring ones.
    fn near(&self, within: Duration, limit: usize) -> Result<Vec<JobInfo>, Self::Failure>;
    fn clock(&self) -> Result<Micros, Self::Failure>;

    /// Whether a table can have this text.
    fn can_have(_text: &str) -> bool {
        true
    }

    /// The places of all jobs of a list in the order of due times, if it asks for the begin of a
    /// key and an index tells that few jobs have it.
    fn keyed(&self, _query: &Query) -> Result<Option<Vec<(i64, i64)>>, Self::Failure> {
        Ok(None)
    }

    /// Several looks at the same rows, where one statement does not see to it.
    fn at_once<T>(&self, look: impl FnOnce(&Self) -> Result<T, Self::Failure>) -> Result<T, Self::Failure> {
        look(self)
    }
}

/// The answer to a question; of a list, its next part. `now`: unless it is the clock of the store.
pub(in crate::store) fn answer<L: Look>(db: &L, asked: &Asked, now: Option<Micros>) -> Result<Scanned, L::Failure> {
    let scan = match asked {
        Asked::List(listing) => {
            let (query, most) = listing.rest();
            return section(db, query, most).map(Scanned::Jobs);
        }
        Asked::Scan(scan) => scan,
    };
    let jobs = |job: Option<JobInfo>| Scanned::Jobs(job.into_iter().collect());
    match scan {
        Scan::Get(key) => get(db, key).map(jobs),
        Scan::Job(id) => get_by_id(db, *id).map(jobs),
        Scan::Ended(ids) => ended(db, ids).map(Scanned::Ended),
        Scan::Finished(id) => history::one(db, *id).map(|job| Scanned::Finished(job.map(Box::new))),
        Scan::History(query) => history::list(db, query).map(Scanned::History),
        Scan::List(query) => list(db, query).map(Scanned::Jobs),
        Scan::Zoned { name, after, limit } => zoned(db, name, *after, *limit).map(Scanned::Jobs),
        Scan::Counts => counts(db, now, u64::MAX).map(Scanned::Counts),
        Scan::SomeCounts { most } => counts(db, now, *most).map(Scanned::Counts),
        Scan::Activity { since, window } => activity(db, *since, *window).map(Scanned::Activity),
        Scan::Groups { after, limit } => groups(db, *after, *limit).map(Scanned::Groups),
        Scan::Nodes { owner } => nodes(db, *owner).map(Scanned::Nodes),
    }
}

/// The job that holds the key, or the last dead one.
pub(in crate::store) fn get<L: Look>(db: &L, key: &str) -> Result<Option<JobInfo>, L::Failure> {
    if !L::can_have(key) {
        return Ok(None);
    }
    for sql in [L::TEXTS.job_with, L::TEXTS.dead_with] {
        if let Some(job) = db.jobs(sql, values![key])?.pop() {
            return with_predecessors(db, job).map(Some);
        }
    }
    Ok(None)
}

/// The job with a number.
pub(in crate::store) fn get_by_id<L: Look>(db: &L, id: JobId) -> Result<Option<JobInfo>, L::Failure> {
    db.jobs(L::TEXTS.job, values![id])?.pop().map(|job| with_predecessors(db, job)).transpose()
}

/// The jobs among these that are dead or have left.
fn ended<L: Look>(db: &L, ids: &[JobId]) -> Result<Vec<JobId>, L::Failure> {
    let ids: Vec<i64> = ids.iter().filter_map(|id| i64::try_from(id.0).ok()).collect();
    Ok(db.look(L::TEXTS.ended, values![&*ids])?.iter().map(|row| JobId(row.count(0))).collect())
}

pub(in crate::store) fn list<L: Look>(db: &L, query: &Query) -> Result<Vec<JobInfo>, L::Failure> {
    Listing::new(query.clone()).read(|rest, most| section(db, rest, most))
}

/// The next jobs of a list, at most this number.
fn section<L: Look>(db: &L, query: &Query, most: usize) -> Result<Vec<JobInfo>, L::Failure> {
    let (name, prefix) = (query.name.as_deref(), query.prefix.as_deref());
    if most == 0 || ![name, prefix].into_iter().flatten().all(L::can_have) {
        return Ok(Vec::new());
    }
    if let Some(places) = db.keyed(query)? {
        return at_places(db, &first_of(query, most, places));
    }
    if query.soonest_first {
        return soonest(db, query, most);
    }
    let texts = L::TEXTS;
    // No index has the running jobs in the order of their numbers, since each begin of a run would
    // write into it. In a file a short list of them sorts those that run, and a long one, which
    // would sort them for each section, reads all rows.
    let reads_all = L::KEEPS_COUNTS && query.limit.is_none_or(|limit| limit > SECTION);
    let (up, down) = match query.state {
        _ if query.failing => (texts.list_failing, texts.list_failing_back),
        Some(State::Queued) => (texts.list_queued, texts.list_queued_back),
        Some(State::Running) if !reads_all => (texts.list_running, texts.list_running_back),
        Some(State::Dead) => (texts.list_dead, texts.list_dead_back),
        Some(State::Recurring) => (texts.list_recurring, texts.list_recurring_back),
        Some(State::Running | State::Waiting) | None => (texts.list, texts.list_back),
    };
    let (first, sql) = if query.newest_first { (i64::MAX, down) } else { (-1, up) };
    let after = query.after.map_or(first, |JobId(id)| i64::try_from(id).unwrap_or(i64::MAX));
    db.jobs(sql, values![after, query.state.map(|state| state as i64), name, prefix, most])
}

/// The numbers of the first jobs of a list, of all its places.
fn first_of(query: &Query, most: usize, mut places: Vec<(i64, i64)>) -> Vec<i64> {
    let after = query.after.map(|JobId(id)| i64::try_from(id).unwrap_or(i64::MAX));
    if query.soonest_first {
        let cursor = query.cursor();
        places.retain(|&place| place > cursor);
        places.sort_unstable();
    } else if query.newest_first {
        places.retain(|&(_, id)| after.is_none_or(|after| id < after));
        places.sort_unstable_by_key(|&(_, id)| Reverse(id));
    } else {
        places.retain(|&(_, id)| after.is_none_or(|after| id > after));
        places.sort_unstable_by_key(|&(_, id)| id);
    }
    places.iter().take(most).map(|&(_, id)| id).collect()
}

/// The first jobs of a list in the order of due times. Each source has its rows in that order or is
/// small, and is asked for no more than the list may still have.
fn soonest<L: Look>(db: &L, query: &Query, most: usize) -> Result<Vec<JobInfo>, L::Failure> {
    let (texts, (due, id)) = (L::TEXTS, query.cursor());
    let (name, prefix) = (query.name.as_deref(), query.prefix.as_deref());
    let waits = [texts.soonest, texts.soonest_apart, texts.soonest_rest];
    let others = [texts.soonest_queued, texts.soonest_running, texts.soonest_recurring, texts.soonest_dead];
    let sources = match query.state {
        _ if query.failing => vec![texts.soonest_failing],
        Some(State::Waiting) => waits.to_vec(),
        Some(State::Queued) => vec![texts.soonest_queued],
        Some(State::Running) => vec![texts.soonest_running],
        Some(State::Dead) => vec![texts.soonest_dead],
        Some(State::Recurring) => vec![texts.soonest_recurring],
        None => [&waits[..], &others].concat(),
    };
    // A server finds the handlers by itself.
    let mut one = Value::from(name);
    let mut each = vec![one];
    if L::KEEPS_COUNTS {
        let handlers = db.look(texts.some_handlers, values![name])?;
        if name.is_some() {
            let Some(handler) = handlers.first() else { return Ok(Vec::new()) };
            one = handler.count(0).into();
        }
        let waiting = handlers.iter().filter(|handler| handler.count(1) > 0);
        each = waiting.map(|handler| handler.count(0).into()).collect();
    }
    let mut first: BTreeSet<(i64, i64)> = BTreeSet::new();
    for sql in sources {
        for &handler in if sql == texts.soonest { &*each } else { std::slice::from_ref(&one) } {
            let last = first.last().filter(|_| first.len() >= most).map_or(i64::MAX, |&(due, _)| due);
            if sql == texts.soonest_dead && last < i64::MAX {
                break; // they are the last ones
            }
            let values = values![handler, prefix, due, id, most, last];
            let rows = db.look(sql, if L::KEEPS_COUNTS { values } else { &values[..5] })?;
            first.extend(rows.iter().map(|row| (row.number(0).unwrap_or(i64::MAX), row.number(1).unwrap_or_default())));
            while first.len() > most {
                first.pop_last();
            }
        }
    }
    let ids: Vec<i64> = first.iter().map(|&(_, id)| id).collect();
    at_places(db, &ids)
}

/// The jobs with these numbers, in their order. Between two statements a job may leave.
fn at_places<L: Look>(db: &L, ids: &[i64]) -> Result<Vec<JobInfo>, L::Failure> {
    let jobs = db.jobs(L::TEXTS.jobs, values![ids])?;
    let mut jobs: HashMap<i64, JobInfo> = jobs.into_iter().map(|job| (job.id.0 as i64, job)).collect();
    Ok(ids.iter().filter_map(|id| jobs.remove(id)).collect())
}

/// The recurring jobs of a handler that wait for an occurrence in a time zone.
fn zoned<L: Look>(db: &L, name: &str, JobId(after): JobId, limit: usize) -> Result<Vec<JobInfo>, L::Failure> {
    if !L::can_have(name) {
        return Ok(Vec::new());
    }
    let (after, limit) = (i64::try_from(after).unwrap_or(i64::MAX), i64::try_from(limit).unwrap_or(i64::MAX));
    db.jobs(L::TEXTS.zoned, values![name, after, limit])
}

/// The greatest number of a job that was given.
pub(in crate::store) fn last_id<L: Look>(db: &L) -> Result<JobId, L::Failure> {
    Ok(JobId(db.look(L::TEXTS.last_id, &[])?.first().map_or(0, |row| row.count(0))))
}

/// The hold, if there is one.
pub(in crate::store) fn held<L: Look>(db: &L) -> Result<Option<Hold>, L::Failure> {
    if db.look(L::TEXTS.is_held, &[])?.is_empty() {
        return Ok(None);
    }
    let rows = db.look(L::TEXTS.hold, &[])?;
    let of = |handler: i64| rows.iter().find(|row| row.number(0) == Some(handler)).and_then(|row| row.number(1));
    let (since, last) = (Micros::new(of(0).unwrap_or_default()).to_system(), JobId(of(-1).unwrap_or(i64::MAX) as u64));
    let handlers = db.look(L::TEXTS.held, &[])?.iter().map(|row| named(row, 0)).collect();
    Ok(Some(Hold { since, last, handlers }))
}

/// The looks that both readers have for their users, by their own `ask`.
macro_rules! public_looks {
    ($reader:ident) => {
        impl $reader {
            /// The job with this key: the one that waits, runs or recurs, or else the one that died
            /// last.
            ///
            /// # Errors
            ///
            /// [`Error::Store`].
            pub fn get(&self, key: &str) -> Result<Option<JobInfo>, Error> {
                self.ask(|db| looks::get(db, key))
            }

            /// The job with this number.
            ///
            /// # Errors
            ///
            /// [`Error::Store`].
            pub fn get_by_id(&self, id: JobId) -> Result<Option<JobInfo>, Error> {
                self.ask(|db| looks::get_by_id(db, id))
            }

            /// The jobs of a query, in the order of their numbers. The list is no snapshot: jobs
            /// may come and go while it is made.
            ///
            /// # Errors
            ///
            /// [`Error::Store`].
            pub fn list(&self, query: &Query) -> Result<Vec<JobInfo>, Error> {
                self.ask(|db| looks::list(db, query))
            }

            /// The jobs that run, and up to a number of those that are due within this time,
            /// without recurring ones. It does not read the rest.
            ///
            /// # Errors
            ///
            /// [`Error::Store`].
            pub fn near(&self, within: Duration, limit: usize) -> Result<Vec<JobInfo>, Error> {
                self.ask(|db| db.near(within, limit))
            }

            /// The counts of the jobs. On a server it reads all rows.
            ///
            /// # Errors
            ///
            /// [`Error::Store`].
            pub fn counts(&self) -> Result<Counts, Error> {
                self.ask(|db| looks::counts(db, None, u64::MAX))
            }

            /// The greatest number that was given: numbers grow, are not used again, and some are
            /// never used. On a server jobs may appear in another order than that of their numbers.
            ///
            /// # Errors
            ///
            /// [`Error::Store`].
            pub fn last_id(&self) -> Result<JobId, Error> {
                self.ask(|db| looks::last_id(db))
            }

            /// The nodes, as [`Scheduler::nodes`](crate::Scheduler::nodes) has them. Of a file, a
            /// process that was killed is among them until another one has noticed its end.
            ///
            /// # Errors
            ///
            /// [`Error::Store`].
            pub fn nodes(&self) -> Result<Vec<Node>, Error> {
                self.ask(|db| looks::nodes(db, 0))
            }

            /// The done jobs of a query.
            ///
            /// # Errors
            ///
            /// [`Error::Store`].
            pub fn history(&self, query: &HistoryQuery) -> Result<Vec<FinishedJob>, Error> {
                self.ask(|db| history::list(db, query))
            }

            /// The done job with this number, if it is kept.
            ///
            /// # Errors
            ///
            /// [`Error::Store`].
            pub fn finished_by_id(&self, id: JobId) -> Result<Option<FinishedJob>, Error> {
                self.ask(|db| history::one(db, id))
            }

            /// The hold: all handlers are paused, since their past may have run already. None if
            /// there is none.
            ///
            /// # Errors
            ///
            /// [`Error::Store`].
            pub fn held(&self) -> Result<Option<Hold>, Error> {
                self.ask(|db| looks::held(db))
            }
        }
    };
}
pub(in crate::store) use public_looks;

fn named(row: &impl Answer, column: usize) -> Arc<str> {
    row.text(column).unwrap_or_default()
}

/// What a person has written may be anything.
fn counted(row: &impl Answer, column: usize) -> u64 {
    row.number(column).and_then(|count| u64::try_from(count).ok()).unwrap_or_default()
}

/// The nodes, as this scheduler sees them.
pub(in crate::store) fn nodes<L: Look>(db: &L, owner: u64) -> Result<Vec<Node>, L::Failure> {
    let running = db.look(L::TEXTS.running, &[])?;
    let running: HashMap<(u64, Arc<str>), u64> =
        running.iter().map(|row| ((row.count(0), named(row, 1)), row.count(2))).collect();
    let node = |row: &L::Answer| {
        let entry = Entry { owner: row.count(1), name: named(row, 2), handlers: text::read_handlers(&named(row, 5)) };
        let (since, until) = (Micros::new(row.count(3) as i64).to_system(), row.instant(4).map(Micros::to_system));
        let runs = |name: &str| running.get(&(entry.owner, name.into())).copied().unwrap_or_default();
        let node = Node::of(row.count(0), &entry, since, until, runs);
        Node { is_this: entry.owner == owner && owner != 0, ..node }
    };
    Ok(db.look(L::TEXTS.nodes, &[])?.iter().map(node).collect())
}

/// The groups behind one, in the order of their numbers.
pub(in crate::store) fn groups<L: Look>(db: &L, after: GroupId, limit: usize) -> Result<Vec<Bound>, L::Failure> {
    let (after, limit) = (i64::try_from(after.0).unwrap_or(i64::MAX), i64::try_from(limit).unwrap_or(i64::MAX));
    let bound = |row: &L::Answer| Bound {
        id: GroupId(row.count(0)),
        version: row.count(1),
        group: named(row, 2),
        name: named(row, 3),
        node: Some(NodeId(row.count(4))).filter(|&NodeId(member)| member != 0),
    };
    Ok(db.look(L::TEXTS.groups, values![after, limit])?.iter().map(bound).collect())
}

/// The ends of runs from an instant on, by window and handler.
pub(in crate::store) fn activity<L: Look>(
    db: &L,
    since: Micros,
    window: Duration,
) -> Result<Vec<Activity>, L::Failure> {
    let (window, first) = (minutes_of(window), minute_of(since));
    let activity = |row: &L::Answer| {
        let count = |column: usize| counted(row, column);
        let number = |column: usize| row.number(column).unwrap_or_default();
        let (counts, late) = (std::array::from_fn(|n| count(3 + n)), std::array::from_fn(|class| count(8 + class)));
        minutes::activity(number(0), named(row, 1), counts, late, number(2))
    };
    let values = values![window, first - first % window];
    Ok(db.look(L::TEXTS.windows, values)?.iter().map(activity).collect())
}

/// The counts of all jobs. `now`: unless it is the clock of the store. `most`: of each index, how
/// many rows are walked.
pub(in crate::store) fn counts<L: Look>(db: &L, now: Option<Micros>, most: u64) -> Result<Counts, L::Failure> {
    let now = now.map_or_else(|| db.clock(), Ok)?;
    db.at_once(|db| counts_at(db, now, most))
}

fn counts_at<L: Look>(db: &L, mut now: Micros, most: u64) -> Result<Counts, L::Failure> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let (mut kinds, mut oldest): (Vec<KindCounts>, Option<Micros>) = (Vec::new(), None);
    let mut apart = 0;
    for row in db.look(L::TEXTS.counts, values![most])? {
        let count = |column: usize| counted(&row, column);
        let (paused, states) = (row.flag(1), std::array::from_fn(|state| count(3 + state)));
        oldest = oldest.into_iter().chain(row.instant(2).filter(|_| !paused)).min();
        now = row.instant(9).unwrap_or(now);
        let mut kind = KindCounts::new(named(&row, 0), paused, states, count(8));
        apart += count(11);
        kind.bounded[State::Waiting.index()] = count(10) >= count(12);
        kind.estimate = row.number(13).map(|about| kind.of(State::Waiting).max(about as u64));
        // A file keeps its other counts.
        kind.failing_bounded = L::KEEPS_COUNTS && count(8) >= count(12);
        kinds.push(kind);
    }
    if !L::KEEPS_COUNTS {
        // Of the indexes of all handlers, each handler has some part.
        let is_whole = |sum: u64| sum < most as u64;
        let of = |state: State| kinds.iter().map(|kind| kind.of(state)).sum::<u64>();
        let walked = [State::Queued, State::Running, State::Dead, State::Recurring].map(|state| (state, of(state)));
        let failing = kinds.iter().map(|kind| kind.failing).sum();
        for kind in &mut kinds {
            for (state, sum) in walked {
                kind.bounded[state.index()] = !is_whole(sum);
            }
            kind.bounded[State::Waiting.index()] |= !is_whole(apart);
            kind.failing_bounded = !is_whole(failing);
        }
    }
    let oldest_overdue = oldest.filter(|&wake| wake < now).map(Micros::to_system);
    let ahead = db.look(L::TEXTS.ahead, values![now.as_i64() - span_of(WRONG_BY), now])?;
    let ahead = ahead.first().map_or(0, |row| row.count(0));
    Ok(Counts { kinds, oldest_overdue, ahead, now: Some(now.to_system()) })
}
