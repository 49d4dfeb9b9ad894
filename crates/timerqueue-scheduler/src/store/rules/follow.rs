//! Jobs that wait for the ends of others.
//!
//! Ground rules. A follower is queued until its predecessors have ended: it has no wake instant, so
//! it costs a claim nothing. A storage notes the end of a followed row where the row is changed or
//! taken out; what that means for the followers is decided here, once at the end of the commit
//! ([`Follows::follow_up`]). So no end is seen without its followers. On a server triggers do
//! both, for statements of users and nodes of older versions as well.

use super::{Row, Rows};
use crate::store::{
    After, Fate, JobId, MAX_LINKS, Micros, Placed, Predecessor, PredecessorEnd, State, Unfollowed, Until,
};

/// How a row ends that leaves the store now.
pub(crate) fn end_of_leaving(row: &Row) -> PredecessorEnd {
    let is_done = row.state == State::Running && !row.cancelled;
    if is_done { PredecessorEnd::Done } else { PredecessorEnd::Cancelled }
}

impl Row {
    /// A follower waits for its due time from now on. If what it was to wait for cannot come, it
    /// dies with its claim; its last instant has passed then, for nodes of older versions.
    fn go_on(&mut self, fate: Fate, now: Micros) {
        self.state = State::Waiting;
        if self.due <= now {
            // It is due, and stays so if the clock is set back.
            (self.due, self.span) = (now, Some(0));
        }
        if fate == Fate::Dies {
            (self.blocked, self.expires) = (true, Some(0));
        }
    }
}

/// Followers and their predecessors.
pub(crate) trait Follows: Rows + Sized {
    /// The jobs that a new one is put after, in the order of their numbers, without those that are
    /// done. The error: one of them cannot be followed.
    fn predecessors(&mut self, after: &After) -> Result<(Vec<Predecessor>, Until), Placed> {
        let mut links: Vec<Predecessor> = Vec::with_capacity(after.keys.len());
        for (nth, key) in after.keys.iter().enumerate() {
            let unfollowed = |why| Placed::Unfollowed { nth, why };
            let Some(id) = self.holder(key) else {
                self.last_done(key).ok_or(unfollowed(Unfollowed::Absent))?;
                continue;
            };
            let row = self.row(id).map(|row| (row.recurring.is_some(), row.followed));
            let (recurs, followed) = row.unwrap_or_default();
            if recurs {
                return Err(unfollowed(Unfollowed::Recurring));
            }
            if followed && self.followers_of(id) >= MAX_LINKS as u64 {
                return Err(unfollowed(Unfollowed::Full));
            }
            links.push(Predecessor { id, key: key.clone(), end: None });
        }
        links.sort_by_key(|link| link.id);
        links.dedup_by_key(|link| link.id);
        Ok((links, after.until))
    }

    /// Puts a new row behind these.
    fn insert_after(&mut self, mut row: Box<Row>, links: &[Predecessor], until: Until) {
        let id = row.id;
        row.until = Some(until);
        if links.is_empty() {
            // All were done before.
            self.insert(row);
            if until.fate(Default::default()) == Fate::Leaves {
                self.remove(id);
            }
            return;
        }
        row.state = State::Queued;
        self.insert(row);
        for link in links {
            if self.row(link.id).is_some_and(|row| !row.followed) {
                self.edit(link.id, |row| row.followed = true);
            }
        }
        self.link(id, links);
    }

    /// Lets the followers go on whose predecessors have ended in this commit.
    fn follow_up(&mut self) {
        loop {
            let followers = self.with_new_ends();
            if followers.is_empty() {
                return;
            }
            followers.into_iter().for_each(|id| self.go_on(id));
        }
    }

    /// Decides on a follower.
    fn go_on(&mut self, id: JobId) {
        let queued = self.row(id).filter(|row| row.state == State::Queued);
        let Some(until) = queued.and_then(|row| row.until) else { return };
        let fate = until.fate(self.ends_of(id));
        let now = self.up();
        match fate {
            Fate::Waits => {}
            Fate::Leaves => self.remove(id),
            Fate::Begins | Fate::Dies => _ = self.edit(id, |row| row.go_on(fate, now)),
        }
    }
}

impl<T: Rows> Follows for T {}
