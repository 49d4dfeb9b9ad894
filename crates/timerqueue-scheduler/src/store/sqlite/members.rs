//! The schedulers on a file, and the affinities bound to them.
//!
//! Ground rules. A member is of a process, which holds its lock for as long as it lives, so a
//! member has no lease. The commit that takes the runs of a process back ends its members. An
//! affinity whose jobs have changed is settled before it is read, and at the end of the commit
//! ([`Work::settle_affinities`]): its head is read from the index of its jobs.

use std::collections::HashMap;
use std::mem::take;
use std::sync::Arc;

use rusqlite::Connection;

use super::error::Failure;
use super::work::Work;
use super::{rows, text};
use crate::store::rules::{Affinity, KEPT_MICROS, Member, Rows};
use crate::store::{AffinityId, Bound, Entry, JobId, Micros, Node, NodeId};

/// The most affinities of dead members that a claim settles.
const UNBOUND_AT_ONCE: usize = 256;

/// Members.
impl Work<'_> {
    /// Makes a scheduler a member, if it is none.
    pub(super) fn enter(&mut self, entry: &Entry, now: Micros) {
        if self.find_member(entry.owner).is_none() {
            let sql =
                "INSERT INTO timerqueue_members (owner, process, name, since, handlers) VALUES (?1, ?2, ?3, ?4, ?5)";
            let handlers = text::write_handlers(&entry.handlers);
            self.execute(sql, (entry.owner as i64, self.process(), &*entry.name, now.as_i64(), handlers));
        }
    }

    pub(super) fn leave_member(&mut self, owner: u64, now: Micros) {
        self.memory.all_live = false;
        self.execute("UPDATE timerqueue_members SET dead = 1 WHERE owner = ?1 AND dead = 0", [owner as i64]);
        self.effects().wake(Some(now)); // its affinities are bound again
    }

    pub(super) fn end_process(&mut self, process: i64, now: Micros) {
        if !self.numbers("SELECT id FROM timerqueue_members WHERE process = ?1 AND dead = 0", [process]).is_empty() {
            self.memory.all_live = false;
            self.execute("UPDATE timerqueue_members SET dead = 1 WHERE process = ?1", [process]);
            self.effects().wake(Some(now));
        }
    }

    pub(super) fn find_member(&mut self, owner: u64) -> Option<u64> {
        let sql = "SELECT id, 0 FROM timerqueue_members WHERE owner = ?1 AND dead = 0";
        self.pair(sql, [owner as i64]).map(|(id, _)| id as u64)
    }

    pub(super) fn all_members(&mut self) -> Vec<Member> {
        let sql = "SELECT id, dead, name, handlers FROM timerqueue_members ORDER BY id";
        self.rows(sql, [], |row| {
            Ok(Member {
                id: row.get::<_, i64>(0)? as u64,
                dead: row.get(1)?,
                name: rows::text(row, 2)?,
                handlers: text::read_handlers(&rows::text(row, 3)?),
            })
        })
    }
}

/// Affinities.
impl Work<'_> {
    /// More go than come, until none is left whose time is over.
    pub(super) fn delete_idle(&mut self, now: Micros) {
        let sql = "DELETE FROM timerqueue_affinities WHERE id IN \
                   (SELECT id FROM timerqueue_affinities WHERE idle <= ?1 ORDER BY idle LIMIT 4)";
        self.execute(sql, [now.as_i64().saturating_sub(KEPT_MICROS)]);
    }

    pub(super) fn find_affinity(&mut self, kind: usize, text: &Arc<str>, now: Micros) -> u64 {
        let sql = "SELECT id, 0 FROM timerqueue_affinities WHERE handler = ?1 AND affinity = ?2";
        if let Some((id, _)) = self.pair(sql, (kind as i64, text)) {
            return id as u64;
        }
        self.delete_idle(now);
        let sql = "INSERT INTO timerqueue_affinities (handler, affinity) VALUES (?1, ?2) RETURNING id, 0";
        self.pair(sql, (kind as i64, text)).map_or(0, |(id, _)| id as u64)
    }

    pub(super) fn read_affinity(&mut self, id: u64) -> Option<Affinity> {
        let sql = "SELECT handler, affinity, member, next, version, most FROM timerqueue_affinities WHERE id = ?1";
        let found = self.rows(sql, [id as i64], |row| {
            let number = |column: usize| Ok::<_, rusqlite::Error>(row.get::<_, i64>(column)? as u64);
            Ok(Affinity {
                id,
                kind: number(0)? as usize,
                text: rows::text(row, 1)?,
                member: number(2)?,
                next: number(3)?,
                version: number(4)?,
                most: number(5)?,
            })
        });
        found.into_iter().next()
    }

    pub(super) fn write_affinity(&mut self, affinity: &Affinity) {
        let sql = "UPDATE timerqueue_affinities SET member = ?2, next = ?3, version = ?4, most = ?5 WHERE id = ?1";
        let &Affinity { id, member, next, version, most, .. } = affinity;
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        self.execute(sql, (id as i64, member as i64, next as i64, version as i64, most));
    }

    pub(super) fn running_of(&mut self, affinity: u64) -> u64 {
        let sql = "SELECT count(*), 0 FROM timerqueue_jobs WHERE affinity_id = ?1 AND state = 2";
        self.pair(sql, [affinity as i64]).map_or(0, |(count, _)| count as u64)
    }

    /// Keeps the heads of the affinities right whose jobs have changed.
    pub(super) fn settle_affinities(&mut self) {
        for id in take(&mut self.unsettled) {
            if !self.has_failed() {
                self.settle_affinity(id);
            }
        }
    }

    fn settle_affinity(&mut self, id: u64) {
        let Some(mut affinity) = self.read_affinity(id) else { return };
        let (running, member) = (self.running_of(id), affinity.member);
        let wants = [affinity.member, affinity.next];
        let live = wants.map(|member| {
            member != 0
                && self
                    .pair("SELECT id, 0 FROM timerqueue_members WHERE id = ?1 AND dead = 0", [member as i64])
                    .is_some()
        });
        affinity.settle(running, |member| wants.iter().zip(live).any(|(&wanted, live)| wanted == member && live));
        self.write_affinity(&affinity);
        let first = if affinity.is_open(running) { self.first_of(id).map(|(wake, _)| wake) } else { None };
        let before =
            self.pair("SELECT head, 0 FROM timerqueue_affinities WHERE id = ?1 AND head IS NOT NULL", [id as i64]);
        let before = before.map(|(head, _)| Micros::new(head));
        let any = self.pair("SELECT 1, 0 FROM timerqueue_jobs WHERE affinity_id = ?1 LIMIT 1", [id as i64]);
        let idle = if any.is_none() { Some(self.up().as_i64()) } else { None };
        let sql = "UPDATE timerqueue_affinities SET head = ?2, idle = CASE WHEN ?3 IS NULL THEN NULL \
                   ELSE coalesce(idle, ?3) END WHERE id = ?1";
        self.execute(sql, (id as i64, first.map(Micros::as_i64), idle));
        let is_earlier = first.is_some_and(|first| before.is_none_or(|before| first < before));
        if (is_earlier || member != affinity.member) && !self.is_paused(affinity.kind) {
            self.effects().wake(first);
        }
    }

    /// Settles some of the affinities of dead members, and forgets the members that have none.
    /// Those with runs under way settle when the runs have ended.
    pub(super) fn settle_dead(&mut self) -> bool {
        // A walk over all members, which a claim of each of them at the same time would make as
        // often as there are members.
        let all_live = self.memory.all_live
            || self.pair("SELECT id, 0 FROM timerqueue_members WHERE dead = 1 LIMIT 1", []).is_none();
        self.memory.all_live = all_live && !self.has_failed();
        if all_live {
            return false;
        }
        let sql = "SELECT id FROM timerqueue_affinities AS one WHERE member IN \
                   (SELECT id FROM timerqueue_members WHERE dead = 1) AND NOT EXISTS \
                   (SELECT 1 FROM timerqueue_jobs AS job WHERE job.affinity_id = one.id AND job.state = 2) LIMIT ?1";
        let found = self.numbers(sql, [UNBOUND_AT_ONCE as i64]);
        self.unsettled.extend(found.iter().map(|&JobId(id)| id));
        self.settle_affinities();
        let sql = "DELETE FROM timerqueue_members WHERE dead = 1 AND id NOT IN \
                   (SELECT member FROM timerqueue_affinities) ";
        if found.len() < UNBOUND_AT_ONCE {
            self.execute(sql, []);
        }
        found.len() >= UNBOUND_AT_ONCE
    }

    pub(super) fn find_due(
        &mut self,
        kinds: &[usize],
        member: u64,
        now: Micros,
        at_most: usize,
    ) -> Vec<(Micros, u64, usize)> {
        let sql = "SELECT head, id FROM timerqueue_affinities WHERE handler = ?1 AND member = ?2 AND head <= ?3 \
                   ORDER BY head LIMIT ?4";
        let limit = i64::try_from(at_most).unwrap_or(i64::MAX);
        let mut found = Vec::new();
        for &kind in kinds {
            found.extend(self.rows(sql, (kind as i64, member as i64, now.as_i64(), limit), |row| {
                Ok((Micros::new(row.get(0)?), row.get::<_, i64>(1)? as u64, kind))
            }));
        }
        found.sort_unstable();
        found.truncate(at_most);
        found
    }

    pub(super) fn find_next(&mut self, kinds: &[usize], of: Option<(u64, Micros)>) -> Option<Micros> {
        let mut first = None;
        for &kind in kinds {
            let found = match of {
                None => self.pair(
                    "SELECT min(head), 0 FROM timerqueue_affinities WHERE handler = ?1 AND head IS NOT NULL \
                     HAVING min(head) IS NOT NULL",
                    [kind as i64],
                ),
                Some((member, now)) => self.pair(
                    "SELECT min(head), 0 FROM timerqueue_affinities WHERE handler = ?1 AND member IN (0, ?2) \
                     AND head > ?3 HAVING min(head) IS NOT NULL",
                    (kind as i64, member as i64, now.as_i64()),
                ),
            };
            first = [first, found.map(|(head, _)| Micros::new(head))].into_iter().flatten().min();
        }
        first
    }

    /// The first instant at which an affinity of this process, or of none, has a due job.
    pub(super) fn first_affinity(&mut self) -> Option<Micros> {
        let sql = "SELECT min(head), 0 FROM timerqueue_affinities AS one JOIN timerqueue_handlers AS handler \
                   ON handler.id = one.handler WHERE NOT handler.paused AND head IS NOT NULL AND member IN \
                   (SELECT 0 UNION ALL SELECT id FROM timerqueue_members WHERE process = ?1) \
                   HAVING min(head) IS NOT NULL";
        self.pair(sql, [self.process()]).map(|(head, _)| Micros::new(head))
    }
}

/// The nodes, as this scheduler sees them.
pub(super) fn nodes(db: &Connection, owner: u64) -> Result<Vec<Node>, Failure> {
    let sql = "SELECT job.owner, handler.name, count(*) FROM timerqueue_jobs AS job INDEXED BY timerqueue_held \
               JOIN timerqueue_handlers AS handler ON handler.id = job.handler \
               WHERE job.process IS NOT NULL AND job.state = 2 GROUP BY job.owner, handler.id";
    let mut running: HashMap<(i64, Arc<str>), i64> = HashMap::new();
    let mut statement = db.prepare_cached(sql)?;
    let mut runs = statement.query([])?;
    while let Some(run) = runs.next()? {
        running.insert((run.get(0)?, rows::text(run, 1)?), run.get(2)?);
    }
    let sql = "SELECT id, owner, name, since, handlers FROM timerqueue_members WHERE dead = 0 ORDER BY id";
    let mut statement = db.prepare_cached(sql)?;
    let members = statement.query_map([], |row| {
        let (id, own): (i64, i64) = (row.get(0)?, row.get(1)?);
        let handlers = text::read_handlers(&rows::text(row, 4)?);
        let entry = Entry { owner: own as u64, name: rows::text(row, 2)?, handlers };
        let runs = |name: &str| running.get(&(own, name.into())).copied().unwrap_or_default() as u64;
        let node = Node::of(id as u64, &entry, Micros::new(row.get(3)?).to_system(), None, runs);
        Ok(Node { is_this: entry.owner == owner && owner != 0, ..node })
    })?;
    Ok(members.collect::<Result<_, _>>()?)
}

/// The affinities behind one, in the order of their numbers.
pub(super) fn affinities(db: &Connection, after: AffinityId, limit: usize) -> Result<Vec<Bound>, Failure> {
    let sql = "SELECT one.id, version, affinity, handler.name, member FROM timerqueue_affinities AS one \
               JOIN timerqueue_handlers AS handler ON handler.id = one.handler WHERE one.id > ?1 ORDER BY one.id LIMIT ?2";
    let mut statement = db.prepare_cached(sql)?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let found = statement.query_map((i64::try_from(after.0).unwrap_or(i64::MAX), limit), |row| {
        let member = row.get::<_, i64>(4)? as u64;
        Ok(Bound {
            id: AffinityId(row.get::<_, i64>(0)? as u64),
            version: row.get::<_, i64>(1)? as u64,
            affinity: rows::text(row, 2)?,
            name: rows::text(row, 3)?,
            node: (member != 0).then_some(NodeId(member)),
        })
    })?;
    Ok(found.collect::<Result<_, _>>()?)
}
