//! The schedulers on a file, and the groups bound to them.
//!
//! Ground rules. A member is of a process, which holds its lock for as long as it lives, so a
//! member has no lease. The commit that takes the runs of a process back ends its members.

use super::text;
use super::work::{File, Work};
use crate::store::rules::{KEPT_MICROS, Rows};
use crate::store::sql::{Answer, Dialect, values};
use crate::store::{Entry, Micros};

/// Members.
impl Work<'_> {
    /// Makes a scheduler a member, if it is none.
    pub(super) fn enter(&mut self, entry: &Entry, now: Micros) {
        if self.find_member(entry.owner).is_none() {
            let sql =
                "INSERT INTO timerqueue_members (owner, process, name, since, handlers) VALUES ($1, $2, $3, $4, $5)";
            let (process, handlers) = (self.process(), text::write_handlers(&entry.handlers));
            self.ask(sql, values![entry.owner, process, &*entry.name, now, &*handlers]);
        }
    }

    pub(super) fn leave_member(&mut self, owner: u64, now: Micros) {
        self.dialect.memory.all_live = false;
        self.ask("UPDATE timerqueue_members SET dead = 1 WHERE owner = $1 AND dead = 0", values![owner]);
        self.effects.wake(Some(now)); // its groups are bound again
    }

    pub(super) fn end_process(&mut self, process: i64, now: Micros) {
        let sql = "UPDATE timerqueue_members SET dead = 1 WHERE process = $1 AND dead = 0 RETURNING id";
        if !self.ask(sql, values![process]).is_empty() {
            self.dialect.memory.all_live = false;
            self.effects.wake(Some(now));
        }
    }

    pub(super) fn find_member(&mut self, owner: u64) -> Option<u64> {
        self.number(File::TEXTS.member, values![owner]).map(|id| id as u64)
    }
}

/// Groups.
impl Work<'_> {
    /// More go than come, until none is left whose time is over.
    pub(super) fn delete_idle(&mut self, now: Micros) {
        self.flush(); // one that is idle no more stays
        let sql = "DELETE FROM timerqueue_affinities WHERE id IN \
                   (SELECT id FROM timerqueue_affinities WHERE idle <= $1 ORDER BY idle LIMIT 4)";
        self.ask(sql, values![now.as_i64().saturating_sub(KEPT_MICROS)]);
        self.groups.found.clear();
    }

    pub(super) fn find_due(
        &mut self,
        kinds: &[usize],
        member: u64,
        now: Micros,
        at_most: usize,
    ) -> Vec<(Micros, u64, usize)> {
        self.flush();
        let sql = "SELECT head, id FROM timerqueue_affinities WHERE handler = $1 AND member = $2 AND head <= $3 \
                   ORDER BY head LIMIT $4";
        let limit = i64::try_from(at_most).unwrap_or(i64::MAX);
        let mut found = Vec::new();
        for &kind in kinds {
            let due = self.ask(sql, values![kind, member, now, limit]);
            found.extend(due.iter().filter_map(|row| Some((row.instant(0)?, row.count(1), kind))));
        }
        found.sort_unstable();
        found.truncate(at_most);
        found
    }

    pub(super) fn find_next(&mut self, kinds: &[usize], of: Option<(u64, Micros)>) -> Option<Micros> {
        self.flush();
        let all = "SELECT min(head) FROM timerqueue_affinities WHERE handler = $1 AND head IS NOT NULL";
        let own = "SELECT min(head) FROM timerqueue_affinities WHERE handler = $1 AND member IN (0, $2) AND head > $3";
        let first = kinds.iter().filter_map(|&kind| match of {
            None => self.number(all, values![kind]),
            Some((member, now)) => self.number(own, values![kind, member, now]),
        });
        first.min().map(Micros::new)
    }

    /// The first instant at which a group of this process, or of none, has a due job.
    pub(super) fn first_group(&mut self) -> Option<Micros> {
        let sql = "SELECT min(head) FROM timerqueue_affinities AS one JOIN timerqueue_handlers AS handler \
                   ON handler.id = one.handler WHERE NOT handler.paused AND head IS NOT NULL AND member IN \
                   (SELECT 0 UNION ALL SELECT id FROM timerqueue_members WHERE process = $1)";
        let process = self.process();
        self.number(sql, values![process]).map(Micros::new)
    }
}
