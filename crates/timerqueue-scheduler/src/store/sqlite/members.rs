//! The schedulers on a file.
//!
//! Ground rules. A member is of a process, which holds its lock for as long as it lives, so a member has no lease. The commit that takes the
//! runs of a process back ends its members.

use std::collections::HashMap;

use rusqlite::Connection;

use super::error::Failure;
use super::text;
use super::work::Work;
use crate::store::rules::Rows;
use crate::store::{Entry, Micros, Node};

impl Work<'_> {
    /// Makes a scheduler a member, if it is none.
    pub(super) fn enter(&mut self, entry: &Entry, now: Micros) {
        let owner = entry.owner as i64;
        if self.pair("SELECT id, 0 FROM timerqueue_members WHERE owner = ?1 AND dead = 0", [owner]).is_none() {
            let sql =
                "INSERT INTO timerqueue_members (owner, process, name, since, handlers) VALUES (?1, ?2, ?3, ?4, ?5)";
            let handlers = text::write_handlers(&entry.handlers);
            self.execute(sql, (owner, self.process(), &*entry.name, now.as_i64(), handlers));
        }
    }

    pub(super) fn leave_member(&mut self, owner: u64) {
        self.execute("DELETE FROM timerqueue_members WHERE owner = ?1", [owner as i64]);
    }

    pub(super) fn end_process(&mut self, process: i64) {
        self.execute("DELETE FROM timerqueue_members WHERE process = ?1", [process]);
    }
}

/// The nodes, as this scheduler sees them.
pub(super) fn nodes(db: &Connection, owner: u64) -> Result<Vec<Node>, Failure> {
    let sql = "SELECT job.owner, handler.name, count(*) FROM timerqueue_jobs AS job INDEXED BY timerqueue_held \
               JOIN timerqueue_handlers AS handler ON handler.id = job.handler \
               WHERE job.process IS NOT NULL AND job.state = 2 GROUP BY job.owner, handler.id";
    let mut running: HashMap<(i64, String), i64> = HashMap::new();
    let mut statement = db.prepare_cached(sql)?;
    let mut runs = statement.query([])?;
    while let Some(run) = runs.next()? {
        running.insert((run.get(0)?, run.get(1)?), run.get(2)?);
    }
    let sql = "SELECT id, owner, name, since, handlers FROM timerqueue_members WHERE dead = 0 ORDER BY id";
    let mut statement = db.prepare_cached(sql)?;
    let members = statement.query_map([], |row| {
        let (id, own): (i64, i64) = (row.get(0)?, row.get(1)?);
        let handlers = text::read_handlers(&row.get::<_, String>(4)?);
        let entry = Entry { owner: own as u64, name: row.get::<_, String>(2)?.into(), handlers };
        let runs = |name: &str| running.get(&(own, name.to_owned())).copied().unwrap_or_default() as u64;
        let node = Node::of(id as u64, &entry, Micros::new(row.get(3)?).to_system(), None, runs);
        Ok(Node { is_this: entry.owner == owner && owner != 0, ..node })
    })?;
    Ok(members.collect::<Result<_, _>>()?)
}
