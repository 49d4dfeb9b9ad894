//! The thread that reads: lists and counts, beside the writer.
//!
//! Ground rules. A connection of its own, so that no settle waits for a list. A list is read in
//! sections, between which other questions are answered. A statement whose caller waits no longer
//! is cancelled. Once all schedulers of the store have left, each answer may take no longer than
//! [`HURRY`]: their ends wait for counts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::error::{Failure, Remedy};
use super::link::{HURRY, Link};
use super::rows;
use super::{Settings, Shared};
use crate::store::columns::joined;
use crate::store::questions::{Question, Questions};
use crate::store::sql::{SERVER, looks};
use crate::store::{JobInfo, NodeId, Scanned};

pub(super) struct Reader {
    pub(super) shared: Arc<Shared>,
    /// Opened again after a failure.
    pub(super) link: Option<Link>,
}

/// A connection for lists. The first rows of a list stand in the order of an index. By its
/// statistics the server takes a condition such as `wake = due` for a rare one, and would fetch all
/// rows of a handler, by a bitmap, to sort them.
pub(super) fn open(settings: &Settings, within: Duration) -> Result<Link, Failure> {
    Link::open_with(settings, within, &[("enable_bitmapscan", "off".to_owned())])
}

impl Reader {
    pub(super) fn run(mut self, questions: &Questions) {
        while let Some(question) = questions.next() {
            let mut scanned = self.scan(&question);
            // A connection may have been lost long ago.
            let is_hurried = self.shared.leaving.load(Ordering::Acquire) || !question.reply.is_awaited();
            if scanned.as_ref().is_err_and(|failure| failure.remedy == Remedy::Reconnect) && !is_hurried {
                self.link = None;
                scanned = self.scan(&question);
            }
            if scanned.is_err() {
                self.link = None;
            }
            questions.answer(question, scanned.map_err(|failure| failure.error()));
        }
    }

    fn scan(&mut self, question: &Question) -> Result<Scanned, Failure> {
        let link = match self.link.take() {
            Some(link) => link,
            None => {
                let (settings, leaving) = (&self.shared.settings, &self.shared.leaving);
                let is_hurried = leaving.load(Ordering::Acquire);
                let within = if is_hurried { HURRY.min(settings.patience) } else { settings.patience };
                let mut link = open(settings, within).map_err(Failure::while_open)?;
                link.hurry = Some(Arc::clone(leaving));
                link
            }
        };
        let link = self.link.insert(link);
        *link.awaited.borrow_mut() = question.reply.awaited();
        looks::answer(link, &question.asked, None)
    }
}

/// A job for people.
pub(super) fn info(row: &tokio_postgres::Row) -> JobInfo {
    let node = row.get::<_, Option<i64>>(row.len() - 2).map(|id| NodeId(id as u64));
    JobInfo { node, ..rows::read(row).row.info(&row.get::<_, &str>(row.len() - 1).into()) }
}

/// The jobs that run, and up to a number of those that are due within this time, without recurring
/// ones. The clock is read once, so that indexes are used.
pub(super) const NEAR: &str = joined!([
    SERVER.infos,
    " JOIN handlers AS handler ON handler.id = job.handler WHERE \
         job.id IN (SELECT near.id FROM handlers h CROSS JOIN LATERAL (SELECT j.id FROM jobs j WHERE j.handler = h.id \
         AND NOT j.recurs AND j.wake <= (SELECT clock() + $1) AND j.state = 0 ORDER BY j.wake LIMIT $2) AS near) \
         OR job.id IN (SELECT bound.id FROM heads a CROSS JOIN LATERAL (SELECT j.id FROM jobs j WHERE j.affinity_id = a.id \
         AND j.state = 0 AND j.apart <= (SELECT clock() + $1) ORDER BY j.apart LIMIT $2) AS bound \
         WHERE a.head <= (SELECT clock() + $1)) \
         OR job.id IN (SELECT other.id FROM handlers h CROSS JOIN LATERAL priorities_of(h.id) AS p (priority) \
         CROSS JOIN LATERAL (SELECT j.id FROM jobs j WHERE j.handler = h.id AND j.priority = p.priority AND j.priority <> 0 \
         AND j.state = 0 AND j.affinity_id IS NULL AND j.apart <= (SELECT clock() + $1) ORDER BY j.apart LIMIT $2) AS other) \
         OR job.id IN (SELECT held.id FROM jobs held WHERE held.state = 2)"
]);
