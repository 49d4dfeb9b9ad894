//! The schedulers on a file, and the groups bound to them.
//!
//! Ground rules. A member is of a process, which holds its lock for as long as it lives, so a
//! member has no lease. The commit that takes the runs of a process back ends its members.

use super::text;
use super::work::Work;
use crate::store::rules::{Bindings as _, GroupRows as _};
use crate::store::sql::{Answer, values};
use crate::store::{Entry, JobId, Micros};

/// Members.
impl Work<'_> {
    /// Makes a scheduler a member, if it is none.
    pub(super) fn enter(&mut self, entry: &Entry, now: Micros) {
        if self.member_of(entry.owner).is_none() {
            let sql =
                "INSERT INTO timerqueue_members (owner, process, name, since, handlers) VALUES ($1, $2, $3, $4, $5)";
            let (process, handlers) = (self.facts.process, text::write_handlers(&entry.handlers));
            self.ask(sql, values![entry.owner, process, &*entry.name, now, &*handlers]);
        }
    }

    pub(super) fn leave_member(&mut self, owner: u64, now: Micros) {
        self.dialect.memory.all_live = false;
        self.ask("UPDATE timerqueue_members SET dead = 1 WHERE owner = $1 AND dead = 0", values![owner]);
        self.effects.wake(Some(now)); // its groups are bound again
    }

    /// A process is gone, or takes part no more. The rows that it holds wait again.
    pub(super) fn end_process(&mut self, process: i64, crashed: bool, now: Micros) {
        let held = self.ask("SELECT id FROM timerqueue_jobs WHERE process = $1", values![process]);
        let held: Vec<JobId> = held.iter().map(|row| JobId(row.count(0))).collect();
        self.take_back_runs(&held, crashed, now);
        let sql = "UPDATE timerqueue_members SET dead = 1 WHERE process = $1 AND dead = 0 RETURNING id";
        if !self.ask(sql, values![process]).is_empty() {
            self.dialect.memory.all_live = false;
            self.effects.wake(Some(now));
        }
    }
}

/// The first instant at which a group of a handler has a due job: of a process and of none, or of
/// all. By member: a walk over all groups would cost more with each of them.
pub(super) const FIRST_GROUP: &str = "SELECT min(head) FROM timerqueue_affinities WHERE handler = $1 AND head IS NOT NULL \
     AND member IN (SELECT 0 UNION ALL SELECT id FROM timerqueue_members WHERE $2 IS NULL OR process = $2)";

/// Groups.
impl Work<'_> {
    /// See [`FIRST_GROUP`].
    pub(super) fn first_group(&mut self, kind: usize, process: Option<i64>) -> Option<Micros> {
        self.number(FIRST_GROUP, values![kind, process]).map(Micros::new)
    }
}
