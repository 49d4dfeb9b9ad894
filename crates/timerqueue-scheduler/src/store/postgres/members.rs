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

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::cursor::Walk;
use super::micros;
use super::rows::{self, with_columns};
use super::schema::VERSION;
use super::work::{Server, Work};
use crate::store::columns::Read;
use crate::store::rules::{GroupRows, Rows, Runs};
use crate::store::sql::{Claimable, Dialect, group_of};
use crate::store::{Entry, Held, Micros, Op, Settle, Verdict, limits, text};

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
     EXISTS (SELECT FROM handlers h CROSS JOIN (SELECT 0 AS id UNION ALL SELECT id FROM members WHERE owner = $1 AND NOT dead) AS m \
     LEFT JOIN unnest($6::bigint[], $7::bigint[], $8::bigint[]) AS walk (handler, member, low) ON walk.handler = h.id AND walk.member = m.id \
     WHERE h.name = ANY($2::text[]) AND (EXISTS (SELECT FROM heads WHERE handler = h.id AND member = m.id \
     AND head BETWEEN coalesce(walk.low, 0) AND current_setting('timerqueue.now')::bigint) \
     OR EXISTS (SELECT FROM heads WHERE early AND handler = h.id AND member = m.id \
     AND head + 0 < least(walk.low, current_setting('timerqueue.now')::bigint)))) \
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

/// The numbers and the begins of the first runs that were counted.
pub(super) fn runs(row: &tokio_postgres::Row, column: usize) -> (Vec<i64>, Vec<i64>) {
    let list = |column| row.get::<_, Option<Vec<i64>>>(column).unwrap_or_default();
    (list(column), list(column + 1))
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
            let sql = "INSERT INTO members (owner, name, since, until, handlers, tables) VALUES ($1, $2, $3, $4, $5, $6) RETURNING id";
            let (name, handlers) = (entry.name.replace('\0', "\u{FFFD}"), text::write_handlers(&entry.handlers));
            let (until, version) = (now.saturating_add(micros(lease)), i64::from(VERSION));
            found = self.query(sql, &[&owner, &name, &now, &until, &handlers, &version]);
        }
        self.dialect.outlook.member = found.first().map(|row| row.get(0));
    }

    /// `has_runs`: the member lives until these have ended. Without handlers it gets no group.
    pub(super) fn leave_member(&mut self, owner: u64, has_runs: bool) {
        // While it has runs, it is told of their cancels. It has no places.
        let statements = match has_runs {
            true => [
                "UPDATE members SET leaving = true, handlers = '[]' WHERE owner = $1 AND NOT dead",
                "UPDATE nodes SET handlers = '{}' WHERE owner = $1",
            ],
            false => {
                ["UPDATE members SET dead = true WHERE owner = $1 AND NOT dead", "DELETE FROM nodes WHERE owner = $1"]
            }
        };
        for sql in statements {
            self.query(sql, &[&(owner as i64)]);
        }
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
            self.group_of(kind, &text, now);
        }
    }

    /// Where a walk begins.
    pub(super) fn low(&self, walk: &Walk) -> i64 {
        self.dialect.link.cursors.borrow().low(walk).unwrap_or(i64::MIN)
    }

    /// The due jobs of these groups, which are locked: those that are not due any more are left
    /// out.
    pub(super) fn lock_jobs(&mut self, due: &mut Vec<(i64, i64, i64)>, now: i64, limit: i64) {
        let ids: Vec<i64> = due.iter().map(|&(_, id, _)| id).collect();
        let facts = Server::facts(self, &ids);
        let head = |row: &tokio_postgres::Row| row.get::<_, Option<i64>>(7).filter(|&head| head <= now);
        let heads: HashMap<i64, i64> = facts.iter().filter_map(|row| Some((row.get(0), head(row)?))).collect();
        *due = due.iter().filter_map(|&(_, id, kind)| Some((*heads.get(&id)?, id, kind))).collect();
        due.sort_unstable();
        for row in facts.iter().filter(|row| heads.contains_key(&row.get(0))) {
            let (group, running) = (group_of(row), row.get::<_, i64>(8) as u64);
            if row.get::<_, Option<i64>>(9).is_none_or(|first| first > now) {
                // Its due jobs were taken away by another way than this one, such as a statement of
                // a user's.
                self.groups.unsettled.insert(group.id);
            }
            let claimable = Claimable { running, waiting: VecDeque::new(), group };
            self.groups.claimable.insert(claimable.group.id, claimable);
        }
        let ids: Vec<i64> = due.iter().map(|&(_, id, _)| id).collect();
        let lows: Vec<i64> = ids.iter().map(|&id| self.low(&Walk::Group(id))).collect();
        let sql = with_columns!(
            "SELECT ",
            " FROM jobs WHERE id = ANY(ARRAY(SELECT job.id FROM unnest($1::bigint[], $4::bigint[]) AS a (id, low) CROSS JOIN LATERAL \
             ((SELECT id FROM jobs AS j WHERE j.affinity_id = a.id AND j.state = 0 AND j.apart BETWEEN a.low AND $2 \
             ORDER BY j.apart, j.id LIMIT $3) UNION ALL (SELECT id FROM jobs AS j WHERE j.early AND j.affinity_id = a.id \
             AND j.apart < a.low AND j.apart <= $2 ORDER BY j.apart, j.id LIMIT $3)) AS job)) \
             AND state + 0 = 0 AND apart <= $2 FOR UPDATE SKIP LOCKED"
        );
        let mut read: Vec<Read> = self.query(sql, &[&ids, &now, &limit, &lows]).iter().map(rows::read).collect();
        // Here: for their order, or by their state, the server would read an index of all rows.
        read.sort_unstable_by_key(|read| (read.row.wake(), read.row.id));
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

    /// The first head of all members, those that are gone included.
    pub(super) fn find_first(&mut self, kinds: &[i64]) -> Option<Micros> {
        let (of, members, lows) = self.dialect.link.cursors.borrow().heads();
        let sql = "SELECT kind, m.id, (SELECT head FROM heads WHERE handler = kind AND member = m.id AND head >= coalesce(low, 0) \
                   ORDER BY head LIMIT 1), (SELECT head FROM heads WHERE early AND handler = kind AND member = m.id AND head + 0 < low \
                   ORDER BY head + 0 LIMIT 1), pg_snapshot_xmin(pg_current_snapshot())::text::bigint \
                   FROM unnest($1::bigint[]) AS kind CROSS JOIN (SELECT 0 AS id UNION ALL SELECT id FROM members) AS m \
                   LEFT JOIN unnest($2::bigint[], $3::bigint[], $4::bigint[]) AS walk (handler, member, low) \
                   ON walk.handler = kind AND walk.member = m.id";
        let found = self.query(sql, &[&kinds, &of, &members, &lows]);
        let mut cursors = self.dialect.link.cursors.borrow_mut();
        for row in &found {
            let first = row.get::<_, Option<i64>>(2).unwrap_or(i64::MAX);
            cursors.found(&Walk::Heads(row.get(0), row.get(1)), first, row.get(4));
        }
        let head = |row: &tokio_postgres::Row| [row.get::<_, Option<i64>>(2), row.get(3)].into_iter().flatten().min();
        found.iter().filter_map(head).min().map(Micros::new)
    }
}
