//! The schedulers on a server.
//!
//! Ground rules. A member has a lease, which the keeper renews with those of the runs. A member is dead once another node has marked it so, under a lock that
//! no claim of the member has. From then on the member never lives again: its scheduler becomes a new member by its next claim.

use std::collections::HashMap;
use std::time::Duration;

use super::Shared;
use super::error::Failure;
use super::link::Link;
use super::wire::Wire;
use super::work::Work;
use crate::store::{Entry, Micros, Node, Notice, text};

fn micros(lease: Duration) -> i64 {
    i64::try_from(lease.as_micros()).unwrap_or(i64::MAX / 4)
}

impl Work<'_> {
    /// Makes a scheduler a member, if it is none. While this transaction lasts, no other node marks it dead.
    pub(super) fn enter(&mut self, entry: &Entry, lease: Duration) {
        let (owner, now) = (entry.owner as i64, self.now.as_i64());
        let sql = "SELECT id FROM members WHERE owner = $1 AND NOT dead FOR KEY SHARE";
        if self.query(sql, &[&owner]).is_empty() {
            let sql = "INSERT INTO members (owner, name, since, until, handlers) VALUES ($1, $2, $3, $4, $5)";
            let (name, handlers) = (entry.name.replace('\0', "\u{FFFD}"), text::write_handlers(&entry.handlers));
            self.query(sql, &[&owner, &name, &now, &now.saturating_add(micros(lease)), &handlers]);
        }
    }

    pub(super) fn leave_member(&mut self, owner: u64) {
        self.query("DELETE FROM members WHERE owner = $1", &[&(owner as i64)]);
    }
}

/// Renews the leases of the members of this store, and marks those dead whose lease is over.
pub(super) async fn renew(shared: &Shared, wire: &Wire) -> Result<(), tokio_postgres::Error> {
    let owners: Vec<i64> = shared.entries.lock().keys().map(|&owner| owner as i64).collect();
    let sql = "UPDATE members SET until = clock() + $2 WHERE owner = ANY($1::bigint[]) AND NOT dead RETURNING id";
    let renewed = wire.ask(sql, &[&owners, &micros(shared.settings.lease)]).await?.len();
    let sql = "DELETE FROM members WHERE id IN \
               (SELECT id FROM members WHERE until < clock() AND NOT dead FOR UPDATE SKIP LOCKED)";
    wire.ask(sql, &[]).await?;
    if renewed < owners.len() {
        // Taken for dead: the next claim makes the scheduler a new member.
        shared.tell(Notice::Wake { at: Micros::FIRST, span: false });
    }
    Ok(())
}

/// The nodes, as this scheduler sees them.
pub(super) fn nodes(link: &Link, owner: u64) -> Result<Vec<Node>, Failure> {
    let sql = "SELECT job.owner, handler.name, job.runs FROM \
               (SELECT owner, handler, count(*) AS runs FROM jobs WHERE state = 2 GROUP BY owner, handler) AS job \
               JOIN handlers AS handler ON handler.id = job.handler";
    let running: HashMap<(i64, String), i64> =
        link.ask(sql, &[])?.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect();
    let sql = "SELECT id, owner, name, since, until, handlers FROM members WHERE NOT dead ORDER BY id";
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
