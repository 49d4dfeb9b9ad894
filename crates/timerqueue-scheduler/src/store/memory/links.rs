//! Followers and their predecessors in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::table::Table;
use crate::store::rules::LinkRows;
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

    /// The predecessors of a job.
    pub(super) fn of(&self, follower: JobId) -> impl Iterator<Item = Predecessor> + use<'_> {
        let of = self.predecessors.range((follower, JobId(0))..=(follower, JobId(u64::MAX)));
        of.map(|(&(_, id), (key, end))| Predecessor { id, key: Arc::clone(key), end: *end })
    }
}

impl LinkRows for Table {
    fn link(&mut self, follower: JobId, links: &[Predecessor]) {
        for Predecessor { id, key, end } in links {
            self.links.predecessors.insert((follower, *id), (Arc::clone(key), *end));
            self.links.followers.insert((*id, follower));
        }
    }

    fn followers_of(&mut self, id: JobId) -> u64 {
        self.links.followers_of(id).count() as u64
    }

    fn with_new_ends(&mut self) -> Vec<JobId> {
        std::mem::take(&mut self.links.new_ends).into_iter().collect()
    }

    fn ends_of(&mut self, follower: JobId) -> LinkEnds {
        let mut ends = LinkEnds::default();
        for link in self.links.of(follower) {
            ends.open |= link.end.is_none();
            ends.dead |= link.end == Some(PredecessorEnd::Dead);
            ends.gone |= link.end == Some(PredecessorEnd::Cancelled);
        }
        ends
    }
}
