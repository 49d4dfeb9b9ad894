//! The statements of a commit.
//!
//! Ground rules. A commit of many operations runs the same few statements again and again. To find
//! one in the cache of the connection costs as much as a small query, so a commit looks for each of
//! them once, and gives them back at its end.

use rusqlite::{CachedStatement, Connection};

pub(super) struct Statements<'a> {
    db: &'a Connection,
    ready: Vec<(&'static str, CachedStatement<'a>)>,
}

impl<'a> Statements<'a> {
    pub(super) fn new(db: &'a Connection) -> Self {
        Self { db, ready: Vec::new() }
    }

    pub(super) fn db(&self) -> &'a Connection {
        self.db
    }

    /// The statement with this text, compiled.
    pub(super) fn get(&mut self, sql: &'static str) -> rusqlite::Result<&mut CachedStatement<'a>> {
        let at = match self.ready.iter().position(|(text, _)| *text == sql) {
            Some(at) => at,
            None => {
                self.ready.push((sql, self.db.prepare_cached(sql)?));
                self.ready.len() - 1
            }
        };
        Ok(&mut self.ready[at].1)
    }
}
