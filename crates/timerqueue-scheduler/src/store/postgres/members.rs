//! The schedulers on a server, and the groups bound to them.
//!
//! Ground rules. A member has a lease, which the keeper renews. A member is dead once another node
//! has marked it so, under a lock that no claim of the member has. In the same commit its runs wait
//! again: a trigger sees to it, whichever version the other node has. From then on the member never
//! lives again: its scheduler becomes a new member by its next claim. A member that closes during
//! runs is *leaving*: it has no handlers and no groups any more, and ends with the last run.
//!
//! One statement of a claim tells whether there is anything here at all ([`OUTLOOK`]). If not, a
//! claim asks no more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::error::{Failure, Remedy};
use super::rows::{self, with_columns};
use super::work::{LOCKED_AGAIN, Work};
use crate::store::columns::Read;
use crate::store::rules::{Rows, Runs};
use crate::store::sql::{Answer, Claimable, group_of, values};
use crate::store::{Entry, Fault, Held, Micros, Op, Settle, Verdict, limits, text};

/// What there is beside the rows of handlers: the member with the end of its lease, whether a
/// member is dead or leaving, whether there is a group, and whether a member that has ended has
/// left a run that is done.
pub(super) const OUTLOOK: &str = "SELECT mine.id, mine.until, EXISTS (SELECT FROM members WHERE dead OR leaving), \
     EXISTS (SELECT FROM affinities), EXISTS (SELECT FROM jobs WHERE ended IS NOT NULL AND owner = 0) FROM (SELECT) AS one \
     LEFT JOIN (SELECT id, until FROM members WHERE owner = $1 AND NOT dead) AS mine ON true";

/// The same for places of these handlers, with a lock on the member: whether one of their
/// groups is due, or a job with a priority, by the walks for these. What is due later, and what is
/// of other handlers, does not matter.
pub(super) const OUTLOOK_OF: &str = "SELECT mine.id, mine.until, EXISTS (SELECT FROM members WHERE dead OR leaving), \
     EXISTS (SELECT FROM handlers h WHERE name = ANY($2::text[]) AND EXISTS (SELECT FROM affinities WHERE handler = h.id \
     AND head <= current_setting('timerqueue.now')::bigint)) \
     OR EXISTS (SELECT FROM unnest($3::bigint[], $4::bigint[], $5::bigint[]) AS walk (handler, priority, low) \
     JOIN handlers h ON h.id = walk.handler WHERE h.name = ANY($2) \
     AND (EXISTS (SELECT FROM jobs AS j WHERE j.handler = walk.handler AND j.priority = walk.priority AND j.priority <> 0 \
     AND j.state = 0 AND j.affinity_id IS NULL AND j.apart BETWEEN walk.low AND current_setting('timerqueue.now')::bigint) \
     OR EXISTS (SELECT FROM jobs AS j WHERE j.early AND j.handler = walk.handler AND j.priority = walk.priority AND j.priority <> 0 \
     AND j.state = 0 AND j.affinity_id IS NULL AND j.apart < least(walk.low, current_setting('timerqueue.now')::bigint)))), \
     false FROM (SELECT) AS one \
     LEFT JOIN (SELECT id, until FROM members WHERE owner = $1 AND NOT dead FOR KEY SHARE) AS mine ON true";

/// The answer to [`OUTLOOK`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outlook {
    pub(super) member: Option<i64>,
    pub(super) until: Option<i64>,
    pub(super) any_dead: bool,
    /// Or a job with a priority, for places.
    pub(super) any_group: bool,
    pub(super) any_ended: bool,
}

impl Outlook {
    pub(super) fn of(rows: &[tokio_postgres::Row]) -> Self {
        let of = |row: &tokio_postgres::Row| Self {
            member: row.get(0),
            until: row.get(1),
            any_dead: row.get(2),
            any_group: row.get(3),
            any_ended: row.get(4),
        };
        rows.first().map(of).unwrap_or_default()
    }
}

fn micros(lease: Duration) -> i64 {
    i64::try_from(lease.as_micros()).unwrap_or(i64::MAX / 4)
}

/// Members.
impl Work<'_> {
    /// Ends runs that transactions of the user's have ended, and whose members have ended since.
    pub(super) fn end_left(&mut self) {
        if !self.dialect.outlook.any_ended {
            return;
        }
        // With the recurring jobs of the runs, in the order of all transactions.
        let sql = with_columns!(
            "WITH ended AS (SELECT id, parent FROM jobs WHERE ended IS NOT NULL AND owner = 0 ORDER BY id LIMIT 256) SELECT ",
            " FROM jobs WHERE id = ANY(ARRAY(SELECT id FROM ended UNION ALL SELECT parent FROM ended)) ORDER BY id FOR UPDATE SKIP LOCKED"
        );
        let read: Vec<Read> = self.query(sql, &[]).iter().map(rows::read).collect();
        let ended = read.iter().filter(|read| read.row.ended.is_some() && read.row.owner == 0);
        let ended: Vec<Held> = ended.map(|Read { row, .. }| Held { id: row.id, owner: 0, claim: row.claims }).collect();
        self.take_in(read);
        let now = self.up;
        for held in ended {
            self.settle(Settle { held, verdict: Verdict::Done, record: None }, now);
        }
    }

    /// Makes a scheduler a member, if it is none.
    pub(super) fn enter(&mut self, entry: &Entry, lease: Duration) {
        let (owner, now) = (entry.owner as i64, self.up.as_i64());
        let sql = "SELECT id FROM members WHERE owner = $1 AND NOT dead";
        let mut found = self.query(sql, &[&owner]);
        if found.is_empty() {
            let sql =
                "INSERT INTO members (owner, name, since, until, handlers) VALUES ($1, $2, $3, $4, $5) RETURNING id";
            let (name, handlers) = (entry.name.replace('\0', "\u{FFFD}"), text::write_handlers(&entry.handlers));
            found = self.query(sql, &[&owner, &name, &now, &now.saturating_add(micros(lease)), &handlers]);
        }
        self.dialect.outlook.member = found.first().map(|row| row.get(0));
    }

    /// `has_runs`: the member lives until these have ended. Without handlers it gets no group.
    pub(super) fn leave_member(&mut self, owner: u64, has_runs: bool) {
        let sql = match has_runs {
            true => "UPDATE members SET leaving = true, handlers = '[]' WHERE owner = $1 AND NOT dead",
            false => "UPDATE members SET dead = true WHERE owner = $1 AND NOT dead",
        };
        self.query(sql, &[&(owner as i64)]);
        let now = self.up;
        self.effects().wake_all(now); // its groups are bound again
    }
}

/// Groups.
impl Work<'_> {
    /// Finds or makes the groups of puts, in the order of their names, so that transactions
    /// meet in the same order.
    pub(super) fn find_groups<'o>(&mut self, ops: impl Iterator<Item = &'o Op>) {
        let mut wanted: Vec<(Arc<str>, Arc<str>)> = Vec::new();
        // What the rules refuse is asked of no server.
        for op in ops.filter(|op| limits::check(op).is_ok()) {
            if let Op::Put(new) = op {
                wanted.extend(new.group.as_ref().map(|text| (Arc::clone(&new.name), Arc::clone(text))));
            }
        }
        wanted.sort();
        wanted.dedup();
        for (name, text) in wanted {
            let kind = self.kind(&name);
            let now = self.up;
            self.find_group(kind, &text, now);
        }
    }

    /// Locks groups whose jobs have changed.
    pub(super) fn lock(&mut self, ids: &[i64]) {
        let sql = "SELECT id FROM affinities WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE";
        let locked = self.ask(sql, values![ids]);
        let is_there = |id: u64| locked.iter().any(|row| row.count(0) == id);
        if !self.has_failed() && self.groups.found.values().any(|&id| ids.contains(&(id as i64)) && !is_there(id)) {
            // Idle for long, and forgotten since this transaction has found it.
            self.fail(Failure { fault: Fault::Locked, reason: "a group has gone".into(), remedy: Remedy::Again });
        }
    }

    /// Due groups. Those of a member are locked, with their due jobs.
    pub(super) fn find_due(
        &mut self,
        kinds: &[usize],
        member: u64,
        now: Micros,
        at_most: usize,
    ) -> Vec<(Micros, u64, usize)> {
        if !self.dialect.outlook.any_group {
            return Vec::new();
        }
        self.flush();
        let (kinds, of, now) = (kinds.iter().map(|&kind| kind as i64).collect::<Vec<_>>(), member as i64, now.as_i64());
        let limit = i64::try_from(at_most).unwrap_or(i64::MAX);
        let seen = "SELECT head, id, handler FROM affinities WHERE handler = ANY($1::bigint[]) AND member = $2 \
                    AND head <= $3 ORDER BY head, id LIMIT $4";
        let mut due = self.query(seen, &[&kinds, &of, &now, &limit]);
        if member != 0 && !due.is_empty() {
            // While this transaction lasts, no other node marks the member dead.
            if self.query("SELECT id FROM members WHERE id = $1 AND NOT dead FOR KEY SHARE", &[&of]).is_empty() {
                self.dialect.is_locked = true;
                return Vec::new();
            }
            let locked = "SELECT head, id, handler FROM affinities WHERE handler = ANY($1::bigint[]) AND member = $2 \
                          AND head <= $3 ORDER BY head, id LIMIT $4 FOR UPDATE SKIP LOCKED";
            let found = self.query(locked, &[&kinds, &of, &now, &limit]);
            self.dialect.is_locked |= found.len() < due.len();
            due = found;
            let ids: Vec<i64> = due.iter().map(|row| row.get(1)).collect();
            self.lock_jobs(&ids, now, limit);
        }
        due.iter()
            .map(|row| (Micros::new(row.get(0)), row.get::<_, i64>(1) as u64, row.get::<_, i64>(2) as usize))
            .collect()
    }

    fn lock_jobs(&mut self, ids: &[i64], now: i64, limit: i64) {
        let facts = "SELECT id, handler, affinity, member, next, version, most, \
                     (SELECT count(*) FROM jobs j WHERE j.affinity_id = a.id AND j.state = 2), \
                     EXISTS (SELECT FROM jobs j WHERE j.affinity_id = a.id AND j.state = 0 AND j.apart <= $2) \
                     FROM affinities a WHERE id = ANY($1::bigint[])";
        for row in self.query(facts, &[&ids, &now]) {
            let (group, running) = (group_of(&row), row.get::<_, i64>(7) as u64);
            if !row.get::<_, bool>(8) {
                // Its due jobs were taken away by another way than this one, such as a statement of
                // a user's.
                self.groups.unsettled.insert(group.id);
            }
            let claimable = Claimable { running, waiting: VecDeque::new(), group };
            self.groups.claimable.insert(claimable.group.id, claimable);
        }
        let sql = with_columns!(
            "SELECT ",
            " FROM jobs WHERE id IN (SELECT job.id FROM unnest($1::bigint[]) AS a (id), LATERAL \
             (SELECT id FROM jobs AS j WHERE j.affinity_id = a.id AND j.state = 0 AND j.apart <= $2 \
             ORDER BY j.apart, j.id LIMIT $3) AS job) AND state = 0 AND apart <= $2 ORDER BY apart, id FOR UPDATE SKIP LOCKED"
        );
        let read: Vec<Read> = self.query(sql, &[&ids, &now, &limit]).iter().map(rows::read).collect();
        for row in &read {
            let (Some(tie), Some(wake)) = (&row.row.tie, row.row.wake()) else { continue };
            if let Some(claimable) = self.groups.claimable.get_mut(&tie.group) {
                claimable.waiting.push_back((wake, row.row.id));
            }
        }
        let claimable = self.groups.claimable.values();
        let is_locked = |one: &Claimable| one.waiting.is_empty() && one.group.is_open(one.running);
        self.dialect.is_locked |= claimable.into_iter().any(is_locked);
        self.take_in(read);
    }

    pub(super) fn find_next(&mut self, kinds: &[usize], of: Option<(u64, Micros)>) -> Option<Micros> {
        let again = self.dialect.is_locked.then(|| Micros::new(self.up.as_i64() + LOCKED_AGAIN));
        if of.is_some() && !self.dialect.outlook.any_group {
            return again;
        }
        self.flush();
        let kinds: Vec<i64> = kinds.iter().map(|&kind| kind as i64).collect();
        let found = match of {
            None => {
                let sql = "SELECT min(head) FROM affinities WHERE handler = ANY($1::bigint[]) AND head IS NOT NULL";
                self.query(sql, &[&kinds])
            }
            Some((member, now)) => {
                let sql = "SELECT min((SELECT head FROM affinities WHERE handler = k AND member = m AND head > $3 ORDER BY head LIMIT 1)) \
                           FROM unnest($1::bigint[]) AS kinds (k), unnest(ARRAY[0, $2::bigint]) AS members (m)";
                self.query(sql, &[&kinds, &(member as i64), &now.as_i64()])
            }
        };
        let first = found.first().and_then(|row| row.get::<_, Option<i64>>(0)).map(Micros::new);
        let next = [first, again.filter(|_| of.is_some())].into_iter().flatten().min();
        if of.is_some() {
            self.dialect.next_bound = next;
        }
        next
    }
}
