//! The schedulers on a server, and the affinities bound to them.
//!
//! Ground rules. A member has a lease, which the keeper renews. A member is dead once another node
//! has marked it so, under a lock that no claim of the member has. In the same commit its runs wait
//! again: a trigger sees to it, whichever version the other node has. From then on the member never
//! lives again: its scheduler becomes a new member by its next claim. A member that closes during
//! runs is *leaving*: it has no handlers and no affinities any more, and ends with the last run.
//!
//! Each transaction that changes jobs of an affinity locks the affinity before its commit, and
//! reads the head of the affinity afterwards ([`Work::settle_affinities`]). So the last one to
//! commit has seen all jobs. Affinities are locked in the order of their numbers, after the rows of
//! jobs.
//!
//! One statement of a claim tells whether there is anything here at all ([`OUTLOOK`]). If not, a
//! claim asks no more.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use super::error::{Failure, Remedy};
use super::link::Link;
use super::rows::{self, with_columns};
use super::work::{LOCKED_AGAIN, Work};
use crate::store::columns::Read;
use crate::store::rules::{Affinity, Lane, Member, Row, Rows};
use crate::store::{AffinityId, Bound, Entry, Fault, JobId, Micros, Node, NodeId, Op, State, limits, text};

/// The most affinities of dead members that a claim settles.
const UNBOUND_AT_ONCE: i64 = 256;

/// What there is beside the rows of handlers: the member with the end of its lease, whether a
/// member is dead or leaving, and whether there is an affinity.
pub(super) const OUTLOOK: &str = "SELECT mine.id, mine.until, EXISTS (SELECT FROM members WHERE dead OR leaving), \
     EXISTS (SELECT FROM affinities) FROM (SELECT) AS one \
     LEFT JOIN (SELECT id, until FROM members WHERE owner = $1 AND NOT dead) AS mine ON true";

/// The same for places of these handlers, with a lock on the member: whether one of their
/// affinities is due. Affinities whose jobs are due later, and those of other handlers, do not
/// matter.
pub(super) const OUTLOOK_OF: &str = "SELECT mine.id, mine.until, EXISTS (SELECT FROM members WHERE dead OR leaving), \
     EXISTS (SELECT FROM handlers h WHERE name = ANY($2::text[]) AND EXISTS (SELECT FROM affinities WHERE handler = h.id \
     AND head <= current_setting('timerqueue.now')::bigint)) FROM (SELECT) AS one \
     LEFT JOIN (SELECT id, until FROM members WHERE owner = $1 AND NOT dead FOR KEY SHARE) AS mine ON true";

/// The answer to [`OUTLOOK`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outlook {
    pub(super) member: Option<i64>,
    pub(super) until: Option<i64>,
    pub(super) any_dead: bool,
    pub(super) any_affinity: bool,
}

impl Outlook {
    pub(super) fn of(rows: &[tokio_postgres::Row]) -> Self {
        let of = |row: &tokio_postgres::Row| Self {
            member: row.get(0),
            until: row.get(1),
            any_dead: row.get(2),
            any_affinity: row.get(3),
        };
        rows.first().map(of).unwrap_or_default()
    }
}

/// An affinity that this claim has locked.
#[derive(Debug)]
struct Claimable {
    affinity: Affinity,
    running: u64,
    /// Its due jobs, locked here.
    waiting: VecDeque<(Micros, JobId)>,
}

/// The affinities of a transaction.
#[derive(Debug, Default)]
pub(super) struct Affinities {
    pub(super) outlook: Outlook,
    /// By handler and text, as this transaction has found them.
    found: HashMap<(usize, Arc<str>), u64>,
    /// Those whose jobs have changed.
    pub(super) unsettled: BTreeSet<u64>,
    claimable: HashMap<u64, Claimable>,
    /// A due job or affinity is locked elsewhere: that transaction may leave it as it is.
    locked: bool,
    /// The next instant of an affinity of the member, as the claim has found it.
    pub(super) next: Option<Micros>,
}

impl Affinities {
    /// A row has changed, or is about to leave.
    pub(super) fn note(&mut self, row: &Row) {
        let Some(tie) = &row.tie else { return };
        self.unsettled.insert(tie.affinity);
        if let Some(claimable) = self.claimable.get_mut(&tie.affinity) {
            let waited = claimable.waiting.iter().position(|&(_, id)| id == row.id);
            if let (Some(at), false) = (waited, matches!(row.lane(), Lane::Affinity(_))) {
                claimable.waiting.remove(at);
                claimable.running += u64::from(row.state == State::Running);
            }
        }
    }
}

fn micros(lease: Duration) -> i64 {
    i64::try_from(lease.as_micros()).unwrap_or(i64::MAX / 4)
}

/// The columns `id, handler, affinity, member, next, version, most`.
fn affinity_of(row: &tokio_postgres::Row) -> Affinity {
    let number = |column: usize| row.get::<_, i64>(column) as u64;
    Affinity {
        id: number(0),
        kind: number(1) as usize,
        text: row.get::<_, &str>(2).into(),
        member: number(3),
        next: number(4),
        version: number(5),
        most: number(6),
    }
}

/// Members.
impl Work<'_> {
    /// Makes a scheduler a member, if it is none.
    pub(super) fn enter(&mut self, entry: &Entry, lease: Duration) {
        let (owner, now) = (entry.owner as i64, self.now.as_i64());
        let sql = "SELECT id FROM members WHERE owner = $1 AND NOT dead";
        let mut found = self.query(sql, &[&owner]);
        if found.is_empty() {
            let sql =
                "INSERT INTO members (owner, name, since, until, handlers) VALUES ($1, $2, $3, $4, $5) RETURNING id";
            let (name, handlers) = (entry.name.replace('\0', "\u{FFFD}"), text::write_handlers(&entry.handlers));
            found = self.query(sql, &[&owner, &name, &now, &now.saturating_add(micros(lease)), &handlers]);
        }
        self.affinities.outlook.member = found.first().map(|row| row.get(0));
    }

    /// `has_runs`: the member lives until these have ended. Without handlers it gets no affinity.
    pub(super) fn leave_member(&mut self, owner: u64, has_runs: bool) {
        let sql = match has_runs {
            true => "UPDATE members SET leaving = true, handlers = '[]' WHERE owner = $1 AND NOT dead",
            false => "UPDATE members SET dead = true WHERE owner = $1 AND NOT dead",
        };
        self.query(sql, &[&(owner as i64)]);
        let now = self.now;
        self.effects().wake_all(now); // its affinities are bound again
    }

    pub(super) fn all_members(&mut self) -> Vec<Member> {
        let found = self.query("SELECT id, dead OR leaving, name, handlers FROM members ORDER BY id", &[]);
        let member = |row: &tokio_postgres::Row| Member {
            id: row.get::<_, i64>(0) as u64,
            dead: row.get(1),
            name: row.get::<_, &str>(2).into(),
            handlers: text::read_handlers(row.get(3)),
        };
        found.iter().map(member).collect()
    }
}

/// Affinities.
impl Work<'_> {
    /// Finds or makes the affinities of puts, in the order of their names, so that transactions
    /// meet in the same order.
    pub(super) fn find_affinities<'o>(&mut self, ops: impl Iterator<Item = &'o Op>) {
        let mut wanted: Vec<(Arc<str>, Arc<str>)> = Vec::new();
        // What the rules refuse is asked of no server.
        for op in ops.filter(|op| limits::check(op).is_ok()) {
            if let Op::Put(new) = op {
                wanted.extend(new.affinity.as_ref().map(|text| (Arc::clone(&new.name), Arc::clone(text))));
            }
        }
        wanted.sort();
        wanted.dedup();
        for (name, text) in wanted {
            let kind = self.kind(&name);
            self.find_affinity(kind, &text);
        }
    }

    pub(super) fn find_affinity(&mut self, kind: usize, text: &Arc<str>) -> u64 {
        if let Some(&id) = self.affinities.found.get(&(kind, Arc::clone(text))) {
            return id;
        }
        let (handler, name, now) = (kind as i64, &**text, self.now.as_i64());
        let select = "SELECT id FROM affinities WHERE handler = $1 AND affinity = $2";
        let mut found = self.query(select, &[&handler, &name]);
        if found.is_empty() {
            let sql = "INSERT INTO affinities (handler, affinity, idle) VALUES ($1, $2, $3) \
                       ON CONFLICT (handler, affinity) DO NOTHING RETURNING id";
            found = self.query(sql, &[&handler, &name, &now]);
        }
        if found.is_empty() {
            found = self.query(select, &[&handler, &name]);
        }
        let id = found.first().map_or(0, |row| row.get::<_, i64>(0) as u64);
        self.affinities.found.insert((kind, Arc::clone(text)), id);
        id
    }

    pub(super) fn read_affinity(&mut self, id: u64) -> Option<Affinity> {
        if let Some(claimable) = self.affinities.claimable.get(&id) {
            return Some(claimable.affinity.clone());
        }
        let sql = "SELECT id, handler, affinity, member, next, version, most FROM affinities WHERE id = $1 FOR UPDATE";
        self.query(sql, &[&(id as i64)]).first().map(affinity_of)
    }

    pub(super) fn change_affinity(&mut self, id: u64, change: impl FnOnce(&mut Affinity)) {
        let Some(mut affinity) = self.read_affinity(id) else { return };
        change(&mut affinity);
        let sql = "UPDATE affinities SET member = $2, next = $3, version = $4, most = $5 WHERE id = $1";
        let numbers = [affinity.id, affinity.member, affinity.next, affinity.version].map(|number| number as i64);
        let most = i64::try_from(affinity.most).unwrap_or(i64::MAX);
        self.query(sql, &[&numbers[0], &numbers[1], &numbers[2], &numbers[3], &most]);
        self.affinities.unsettled.insert(id);
        if let Some(claimable) = self.affinities.claimable.get_mut(&id) {
            claimable.affinity = affinity;
        }
    }

    pub(super) fn running_of(&mut self, id: u64) -> u64 {
        if let Some(claimable) = self.affinities.claimable.get(&id) {
            return claimable.running;
        }
        self.flush();
        let found = self.query("SELECT count(*) FROM jobs WHERE affinity_id = $1 AND state = 2", &[&(id as i64)]);
        found.first().map_or(0, |row| row.get::<_, i64>(0) as u64)
    }

    pub(super) fn first_waiting(&self, id: u64) -> Option<(Micros, JobId)> {
        if self.has_failed() { None } else { self.affinities.claimable.get(&id)?.waiting.front().copied() }
    }

    pub(super) fn has_unsettled(&self) -> bool {
        !self.affinities.unsettled.is_empty()
    }

    /// Keeps the heads of the affinities right whose jobs have changed. All rows have been written.
    pub(super) fn settle_affinities(&mut self) {
        let ids: Vec<i64> = take(&mut self.affinities.unsettled).into_iter().map(|id| id as i64).collect();
        if ids.is_empty() || self.has_failed() {
            return;
        }
        let locked =
            self.query("SELECT id FROM affinities WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE", &[&ids]);
        let is_there = |id: u64| locked.iter().any(|row| row.get::<_, i64>(0) as u64 == id);
        if !self.has_failed() && self.affinities.found.values().any(|&id| ids.contains(&(id as i64)) && !is_there(id)) {
            // Idle for long, and forgotten since this transaction has found it.
            self.fail(Failure { fault: Fault::Locked, reason: "an affinity has gone".into(), remedy: Remedy::Again });
            return;
        }
        // A statement of its own, after the locks: it sees all that was committed before.
        let facts = "SELECT a.id, handler, affinity, member, next, version, most, head, \
                     (SELECT count(*) FROM jobs j WHERE j.affinity_id = a.id AND j.state = 2), \
                     (SELECT min(j.apart) FROM jobs j WHERE j.affinity_id = a.id AND j.state = 0 AND j.apart IS NOT NULL), \
                     EXISTS (SELECT FROM jobs j WHERE j.affinity_id = a.id), \
                     EXISTS (SELECT FROM members m WHERE m.id = a.member AND NOT (m.dead OR m.leaving)), \
                     EXISTS (SELECT FROM members m WHERE m.id = a.next AND NOT (m.dead OR m.leaving)) \
                     FROM affinities a WHERE a.id = ANY($1::bigint[])";
        let update = "UPDATE affinities SET member = $2, next = $3, version = $4, head = $5, \
                      idle = CASE WHEN $6 THEN NULL ELSE coalesce(idle, $7) END WHERE id = $1";
        for row in self.query(facts, &[&ids]) {
            let mut affinity = affinity_of(&row);
            let (before, member, next) = (row.get::<_, Option<i64>>(7), affinity.member, affinity.next);
            let running = row.get::<_, i64>(8) as u64;
            let live = [(member, row.get::<_, bool>(11)), (next, row.get::<_, bool>(12))];
            affinity.settle(running, |wanted| live.iter().any(|&(member, live)| live && member == wanted));
            let first: Option<i64> = if affinity.is_open(running) { row.get(9) } else { None };
            let numbers = [affinity.id, affinity.member, affinity.next, affinity.version].map(|number| number as i64);
            let (any, now): (bool, i64) = (row.get(10), self.now.as_i64());
            self.query(update, &[&numbers[0], &numbers[1], &numbers[2], &numbers[3], &first, &any, &now]);
            let is_earlier = first.is_some_and(|first| before.is_none_or(|before| first < before));
            if (is_earlier || member != affinity.member) && !self.is_paused(affinity.kind) {
                if let Some(first) = first {
                    self.effects().wake_all(Micros::new(first));
                }
            }
        }
    }

    /// Settles some of the affinities of members that are dead or leaving, and forgets the dead
    /// ones that have none. Those with runs under way settle when the runs have ended.
    pub(super) fn settle_dead(&mut self) -> bool {
        if !self.affinities.outlook.any_dead {
            return false;
        }
        let sql = "SELECT id FROM affinities AS one WHERE member IN (SELECT id FROM members WHERE dead OR leaving) AND NOT EXISTS \
                   (SELECT FROM jobs AS job WHERE job.affinity_id = one.id AND job.state = 2) ORDER BY id LIMIT $1 \
                   FOR UPDATE SKIP LOCKED";
        let found = self.query(sql, &[&UNBOUND_AT_ONCE]);
        self.affinities.unsettled.extend(found.iter().map(|row| row.get::<_, i64>(0) as u64));
        self.flush();
        let is_more = found.len() as i64 >= UNBOUND_AT_ONCE;
        if !is_more {
            let sql = "DELETE FROM members WHERE id IN (SELECT id FROM members AS m WHERE dead AND NOT EXISTS \
                       (SELECT FROM affinities AS one WHERE one.member = m.id) FOR UPDATE SKIP LOCKED)";
            self.query(sql, &[]);
        }
        is_more
    }

    /// Due affinities. Those of a member are locked, with their due jobs.
    pub(super) fn find_due(
        &mut self,
        kinds: &[usize],
        member: u64,
        now: Micros,
        at_most: usize,
    ) -> Vec<(Micros, u64, usize)> {
        if !self.affinities.outlook.any_affinity {
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
                self.affinities.locked = true;
                return Vec::new();
            }
            let locked = "SELECT head, id, handler FROM affinities WHERE handler = ANY($1::bigint[]) AND member = $2 \
                          AND head <= $3 ORDER BY head, id LIMIT $4 FOR UPDATE SKIP LOCKED";
            let found = self.query(locked, &[&kinds, &of, &now, &limit]);
            self.affinities.locked |= found.len() < due.len();
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
            let (affinity, running) = (affinity_of(&row), row.get::<_, i64>(7) as u64);
            if !row.get::<_, bool>(8) {
                // Its due jobs were taken away by another way than this one, such as a statement of
                // a user's.
                self.affinities.unsettled.insert(affinity.id);
            }
            let claimable = Claimable { running, waiting: VecDeque::new(), affinity };
            self.affinities.claimable.insert(claimable.affinity.id, claimable);
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
            if let Some(claimable) = self.affinities.claimable.get_mut(&tie.affinity) {
                claimable.waiting.push_back((wake, row.row.id));
            }
        }
        let claimable = self.affinities.claimable.values();
        let is_locked = |one: &Claimable| one.waiting.is_empty() && one.affinity.is_open(one.running);
        self.affinities.locked |= claimable.into_iter().any(is_locked);
        self.take_in(read);
    }

    pub(super) fn find_next(&mut self, kinds: &[usize], of: Option<(u64, Micros)>) -> Option<Micros> {
        let again = self.affinities.locked.then(|| Micros::new(self.now.as_i64() + LOCKED_AGAIN));
        if of.is_some() && !self.affinities.outlook.any_affinity {
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
                let sql = "SELECT min((SELECT min(head) FROM affinities WHERE handler = k AND member = m AND head > $3)) \
                           FROM unnest($1::bigint[]) AS kinds (k), unnest(ARRAY[0, $2::bigint]) AS members (m)";
                self.query(sql, &[&kinds, &(member as i64), &now.as_i64()])
            }
        };
        let first = found.first().and_then(|row| row.get::<_, Option<i64>>(0)).map(Micros::new);
        let next = [first, again.filter(|_| of.is_some())].into_iter().flatten().min();
        if of.is_some() {
            self.affinities.next = next;
        }
        next
    }

    /// Locks the row of a handler: claims of a limited handler come one after another.
    pub(super) fn lock_handler(&mut self, kind: usize) -> Option<Micros> {
        let sql = "SELECT full_at FROM handlers WHERE id = $1 FOR NO KEY UPDATE";
        self.query(sql, &[&(kind as i64)]).first().and_then(|row| row.get::<_, Option<i64>>(0)).map(Micros::new)
    }
}

/// The nodes, as this scheduler sees them.
pub(super) fn nodes(link: &Link, owner: u64) -> Result<Vec<Node>, Failure> {
    let sql = "SELECT job.owner, handler.name, job.runs FROM \
               (SELECT owner, handler, count(*) AS runs FROM jobs WHERE state = 2 GROUP BY owner, handler) AS job \
               JOIN handlers AS handler ON handler.id = job.handler";
    let running: HashMap<(i64, String), i64> =
        link.ask(sql, &[])?.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect();
    let sql = "SELECT id, owner, name, since, until, handlers FROM members WHERE NOT (dead OR leaving) ORDER BY id";
    let members = link.ask(sql, &[])?;
    let node = |row: &tokio_postgres::Row| {
        let own: i64 = row.get(1);
        let handlers = text::read_handlers(row.get(5));
        let entry = Entry { owner: own as u64, name: row.get::<_, &str>(2).into(), handlers };
        let (since, until) = (Micros::new(row.get(3)).to_system(), Micros::new(row.get(4)).to_system());
        let runs = |name: &str| running.get(&(own, name.to_owned())).copied().unwrap_or_default() as u64;
        let node = Node::of(row.get::<_, i64>(0) as u64, &entry, since, Some(until), runs);
        Node { is_this: entry.owner == owner, ..node }
    };
    Ok(members.iter().map(node).collect())
}

/// The affinities behind one, in the order of their numbers.
pub(super) fn affinities(link: &Link, after: AffinityId, limit: usize) -> Result<Vec<Bound>, Failure> {
    let sql = "SELECT one.id, version, affinity, handler.name, member FROM affinities AS one \
               JOIN handlers AS handler ON handler.id = one.handler WHERE one.id > $1 ORDER BY one.id LIMIT $2";
    let (after, limit) = (i64::try_from(after.0).unwrap_or(i64::MAX), i64::try_from(limit).unwrap_or(i64::MAX));
    let bound = |row: &tokio_postgres::Row| {
        let member = row.get::<_, i64>(4) as u64;
        Bound {
            id: AffinityId(row.get::<_, i64>(0) as u64),
            version: row.get::<_, i64>(1) as u64,
            affinity: row.get::<_, &str>(2).into(),
            name: row.get::<_, &str>(3).into(),
            node: (member != 0).then_some(NodeId(member)),
        }
    };
    Ok(link.ask(sql, &[&after, &limit])?.iter().map(bound).collect())
}
