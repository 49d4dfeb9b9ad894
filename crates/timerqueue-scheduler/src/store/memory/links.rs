//! Followers and their predecessors in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::store::{JobId, LinkEnds, Predecessor, PredecessorEnd};

#[derive(Debug, Default)]
pub(super) struct Links {
    /// By follower and predecessor: the key and the end of the predecessor.
    predecessors: BTreeMap<(JobId, JobId), (Arc<str>, Option<PredecessorEnd>)>,
    /// Predecessors that are in the store, with their followers.
    followers: BTreeSet<(JobId, JobId)>,
    /// Followers whose predecessors have ended, and that were not decided on.
    new_ends: BTreeSet<JobId>,
}

impl Links {
    pub(super) fn add(&mut self, follower: JobId, links: &[Predecessor]) {
        for Predecessor { id, key, end } in links {
            self.predecessors.insert((follower, *id), (Arc::clone(key), *end));
            self.followers.insert((*id, follower));
        }
    }

    pub(super) fn followers_of(&self, id: JobId) -> impl Iterator<Item = JobId> + use<'_> {
        self.followers.range((id, JobId(0))..=(id, JobId(u64::MAX))).map(|&(_, follower)| follower)
    }

    /// A job is dead, or is so no more.
    pub(super) fn ends(&mut self, id: JobId, end: Option<PredecessorEnd>) {
        let followers: Vec<JobId> = self.followers_of(id).collect();
        for follower in followers {
            if let Some(link) = self.predecessors.get_mut(&(follower, id)) {
                link.1 = end;
            }
            if end.is_some() {
                self.new_ends.insert(follower);
            }
        }
    }

    /// A job leaves the store.
    pub(super) fn leaves(&mut self, id: JobId, end: PredecessorEnd) {
        self.ends(id, Some(end));
        let followers: Vec<JobId> = self.followers_of(id).collect();
        followers.into_iter().for_each(|follower| _ = self.followers.remove(&(id, follower)));
    }

    /// A follower leaves the store.
    pub(super) fn forget(&mut self, follower: JobId) {
        let ids: Vec<JobId> = self.of(follower).map(|link| link.id).collect();
        for id in ids {
            self.predecessors.remove(&(follower, id));
            self.followers.remove(&(id, follower));
        }
        self.new_ends.remove(&follower);
    }

    pub(super) fn with_new_ends(&mut self) -> Vec<JobId> {
        std::mem::take(&mut self.new_ends).into_iter().collect()
    }

    /// The predecessors of a job.
    pub(super) fn of(&self, follower: JobId) -> impl Iterator<Item = Predecessor> + use<'_> {
        let of = self.predecessors.range((follower, JobId(0))..=(follower, JobId(u64::MAX)));
        of.map(|(&(_, id), (key, end))| Predecessor { id, key: Arc::clone(key), end: *end })
    }

    pub(super) fn ends_of(&self, follower: JobId) -> LinkEnds {
        let mut ends = LinkEnds::default();
        for (_, (_, end)) in self.predecessors.range((follower, JobId(0))..=(follower, JobId(u64::MAX))) {
            ends.open |= end.is_none();
            ends.dead |= *end == Some(PredecessorEnd::Dead);
            ends.gone |= *end == Some(PredecessorEnd::Cancelled);
        }
        ends
    }
}
