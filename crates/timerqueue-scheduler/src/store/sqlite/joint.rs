//! Operations inside of a transaction of the user's, on the same file.
//!
//! Ground rules. The rows of the store and the rows of the user are one commit. No notice can be
//! given before that commit, and the user's connection says nothing after it; so the writer of the
//! store waits for the lock of writers, which the transaction has, and looks then.

use rusqlite::Transaction;

use super::work::{Memory, Work};
use super::writer::Message;
use super::{Failure, SqliteStore, schema};
use crate::Error;
use crate::store::rules::Changes;
use crate::store::sql::{Checked, checked};
use crate::store::{Applied, Fault, Op};

impl SqliteStore {
    /// Applies operations in the transaction. Answers at once; the operations are done when the
    /// transaction commits.
    pub(super) fn joined(&self, transaction: &Transaction<'_>, ops: Vec<Op>) -> Result<Vec<Applied>, Error> {
        let ops: Vec<Checked> = ops.into_iter().map(checked).collect();
        self.applied_in(transaction, &ops).map_err(|failure| failure.error())
    }

    fn applied_in(&self, db: &Transaction<'_>, ops: &[Checked]) -> Result<Vec<Applied>, Failure> {
        if let Some(reason) = self.inner.origin.reason() {
            // there is no writer here to tell the others
            return Err(Failure::new(Fault::Forked, reason));
        }
        let path = db.path().map(std::path::Path::new).and_then(|path| path.canonicalize().ok());
        if path.as_deref() != Some(&*self.inner.shared.path) {
            return Err(Failure::new(Fault::Other, "the transaction is on another file than the store"));
        }
        let synchronous: i64 = db.query_row("PRAGMA synchronous", [], |row| row.get(0))?;
        if synchronous < 2 {
            return Err(Failure::new(Fault::Other, "the connection of the transaction has `synchronous` below FULL"));
        }
        schema::version(db)?; // not too new
        db.execute_batch("SAVEPOINT timerqueue")?;
        let applied = self.work_in(db, ops);
        let end = if applied.is_ok() { "RELEASE timerqueue" } else { "ROLLBACK TO timerqueue; RELEASE timerqueue" };
        let ended = db.execute_batch(end);
        let applied = applied?;
        ended?;
        let _ = self.inner.messages.send(Message::Joined);
        Ok(applied)
    }

    fn work_in(&self, db: &Transaction<'_>, ops: &[Checked]) -> Result<Vec<Applied>, Failure> {
        // A write first: what is read from then on cannot have been changed by another connection.
        db.execute("UPDATE timerqueue_store SET version = version", [])?;
        let mut memory = Memory::load(db)?;
        let mut work = Work::on(db, &mut memory, 0, self.inner.shared.history);
        let now = work.read_clock(&self.inner.shared.runtime);
        let apply = |op: &Checked| match op {
            Ok(op) => work.apply(op.clone(), now),
            Err(invalid) => Applied::Invalid(*invalid),
        };
        let applied = ops.iter().map(apply).collect();
        work.finish()?;
        Ok(applied)
    }
}
