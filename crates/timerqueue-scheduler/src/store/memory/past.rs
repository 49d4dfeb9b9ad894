//! Done jobs in memory, and their keys.
//!
//! Ground rules. A list holds the lock of the table for one page: it visits no more rows than the
//! handler, or the key, has, and clones [`HistoryQuery::MOST`] at most.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::table::Kind;
use crate::store::history::OVER_AT_ONCE;
use crate::store::{Finished, FinishedJob, HistoryQuery, JobId, Micros};

/// The done jobs that are kept, by their numbers in the order of their ends.
#[derive(Debug, Default)]
pub(super) struct Past {
    jobs: BTreeMap<u64, Box<Finished>>,
    by_id: HashMap<JobId, u64>,
    by_key: BTreeSet<(Arc<str>, u64)>,
    by_kind: BTreeSet<(usize, u64)>,
    by_time: BTreeSet<(Micros, u64)>,
    /// The numbers of each handler, as many as there are.
    counts: HashMap<usize, u64>,
    last: u64,
}

impl Past {
    pub(super) fn add(&mut self, done: Finished, now: Micros) {
        self.last += 1;
        let (seq, kind, most) = (self.last, done.kind, done.most);
        self.by_id.insert(done.id, seq);
        self.by_key.insert((Arc::clone(&done.key), seq));
        self.by_kind.insert((kind, seq));
        self.by_time.insert((done.keep_until, seq));
        self.jobs.insert(seq, Box::new(done));
        *self.counts.entry(kind).or_default() += 1;
        for _ in 0..OVER_AT_ONCE {
            let over = self.by_time.first().filter(|&&(until, _)| until <= now).map(|&(_, seq)| seq);
            let surplus = || {
                let is_more = self.counts.get(&kind).is_some_and(|&count| count > most);
                let (_, first) = *self.by_kind.range((kind, 0)..).next().filter(|_| is_more)?;
                self.jobs.get(&first).filter(|first| first.key_until <= now).map(|_| first)
            };
            let Some(seq) = over.or_else(surplus) else { break };
            self.remove(seq);
        }
    }

    fn remove(&mut self, seq: u64) {
        let Some(done) = self.jobs.remove(&seq) else { return };
        if self.by_id.get(&done.id) == Some(&seq) {
            self.by_id.remove(&done.id);
        }
        self.by_kind.remove(&(done.kind, seq));
        self.by_time.remove(&(done.keep_until, seq));
        if let Some(count) = self.counts.get_mut(&done.kind) {
            *count -= 1;
        }
        self.by_key.remove(&(done.key, seq));
    }

    /// The done job whose key is still taken.
    pub(super) fn taken(&self, key: &str, now: Micros) -> Option<JobId> {
        if self.jobs.is_empty() {
            return None;
        }
        let of_key = self.with_key(key).rev().filter_map(|seq| self.jobs.get(&seq));
        let mut taken = of_key.filter(|done| done.key_until > now && done.holds_key());
        taken.next().map(|done| done.id)
    }

    /// The last one with this key.
    pub(super) fn last(&self, key: &str) -> Option<JobId> {
        if self.jobs.is_empty() {
            return None;
        }
        Some(self.jobs.get(&self.with_key(key).next_back()?)?.id)
    }

    fn with_key(&self, key: &str) -> impl DoubleEndedIterator<Item = u64> + use<'_> {
        let key: Arc<str> = key.into();
        self.by_key.range((Arc::clone(&key), 0)..=(key, u64::MAX)).map(|&(_, seq)| seq)
    }

    fn info(&self, seq: u64, kinds: &[Kind]) -> Option<FinishedJob> {
        let done = self.jobs.get(&seq)?;
        Some(FinishedJob {
            id: done.id,
            key: Arc::clone(&done.key),
            name: Arc::clone(&kinds[done.kind].name),
            payload: Arc::clone(&done.payload),
            ended: done.ended.to_system(),
            last: done.last.clone(),
            node: done.node.clone(),
            result: done.result.clone(),
            seq,
        })
    }

    pub(super) fn one(&self, id: JobId, kinds: &[Kind]) -> Option<FinishedJob> {
        self.info(*self.by_id.get(&id)?, kinds)
    }

    pub(super) fn list(&self, query: &HistoryQuery, kinds: &[Kind]) -> Vec<FinishedJob> {
        let HistoryQuery { key, name, prefix, after, oldest_first, .. } = query;
        let kind = name.as_ref().map(|name| kinds.iter().position(|kind| kind.name == *name));
        let all: Box<dyn DoubleEndedIterator<Item = u64>> = match (key, kind) {
            (_, Some(None)) => return Vec::new(),
            (Some(key), _) => Box::new(self.with_key(key)),
            (None, Some(Some(kind))) => Box::new(self.by_kind.range((kind, 0)..=(kind, u64::MAX)).map(|&(_, seq)| seq)),
            (None, None) => Box::new(self.jobs.keys().copied()),
        };
        let ordered: Box<dyn Iterator<Item = u64>> = if *oldest_first { Box::new(all) } else { Box::new(all.rev()) };
        let behind = |&seq: &u64| after.is_none_or(|after| if *oldest_first { seq > after } else { seq < after });
        let fits = |seq: &u64| {
            let Some(done) = self.jobs.get(seq) else { return false };
            prefix.as_ref().is_none_or(|prefix| done.key.starts_with(&**prefix))
                && kind.flatten().is_none_or(|kind| done.kind == kind)
        };
        let found = ordered.filter(behind).filter(fits).take(query.most());
        found.filter_map(|seq| self.info(seq, kinds)).collect()
    }
}
