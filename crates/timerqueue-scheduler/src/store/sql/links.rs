//! Followers and their predecessors in tables.

use std::collections::HashMap;

use super::looks::Look;
use super::{Answer, Dialect, Work, values};
use crate::store::rules::LinkRows;
use crate::store::{JobId, JobInfo, LinkEnds, Predecessor, PredecessorEnd};

fn predecessor(row: &impl Answer) -> Predecessor {
    let end = row.number(2).and_then(|number| PredecessorEnd::ALL.into_iter().find(|&end| end as i64 + 1 == number));
    Predecessor { id: JobId(row.count(0)), key: row.text(1).unwrap_or_default(), end }
}

/// The job with its predecessors.
pub(in crate::store) fn with_predecessors<L: Look>(db: &L, mut job: JobInfo) -> Result<JobInfo, L::Failure> {
    if job.until.is_some() {
        job.predecessors = db.look(L::TEXTS.predecessors, values![job.id])?.iter().map(predecessor).collect();
    }
    Ok(job)
}

/// The links of a transaction.
#[derive(Default)]
pub(super) struct Links {
    /// New ones, by follower. They are written before the rows, since a trigger notes an end.
    pub(super) new: Vec<(JobId, Predecessor)>,
    /// How many followers a predecessor has.
    followers: HashMap<JobId, u64>,
}

impl Links {
    /// A follower leaves.
    pub(super) fn forget(&mut self, follower: JobId) {
        self.new.retain(|(of, _)| *of != follower);
        self.followers.clear(); // asked again
    }
}

impl<D: Dialect> Work<D> {
    pub(super) fn find_done(&mut self, key: &str) -> Option<JobId> {
        let own = self.done.iter().rev().find(|done| *done.key == *key).map(|done| done.id);
        let done = own.or_else(|| self.number(D::TEXTS.done_with, values![key]).map(|id| JobId(id as u64)))?;
        self.write_rows();
        self.number(D::TEXTS.died_after, values![key, done]).is_none().then_some(done)
    }
}

impl<D: Dialect> LinkRows for Work<D> {
    fn link(&mut self, follower: JobId, links: &[Predecessor]) {
        for link in links {
            self.links.followers.entry(link.id).and_modify(|count| *count += 1);
            self.links.new.push((follower, link.clone()));
        }
    }

    fn followers_of(&mut self, id: JobId) -> u64 {
        if let Some(&count) = self.links.followers.get(&id) {
            return count;
        }
        let new = self.links.new.iter().filter(|(_, link)| link.id == id).count();
        let count = self.number(D::TEXTS.followers, values![id]).unwrap_or_default() as u64 + new as u64;
        self.links.followers.insert(id, count);
        count
    }

    fn with_new_ends(&mut self) -> Vec<JobId> {
        let has_ended = std::mem::take(&mut self.has_new_ends);
        if has_ended { D::with_new_ends(self) } else { Vec::new() }
    }

    fn ends_of(&mut self, follower: JobId) -> LinkEnds {
        D::ends_of(self, follower)
    }
}
