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
use crate::store::sql::{SERVER, looks, next_due};
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

/// Below this number, the jobs with a begin of their keys are found by the keys. Beyond, a walk in
/// the order of the list comes across the first ones soon.
pub(super) const KEYED_MOST: i64 = 20_000;

/// Keys with a begin: no key is longer than 512 bytes.
macro_rules! key_begins {
    () => {
        " AND job.key >= $1 AND job.key <= $1 || repeat(chr(1114111), 128)"
    };
}

/// As many index entries as there may be.
macro_rules! keys_of {
    ($condition:literal) => {
        concat!(
            "(SELECT count(*) FROM (SELECT FROM jobs AS job WHERE ",
            $condition,
            key_begins!(),
            " LIMIT $3) AS part)"
        )
    };
}

macro_rules! keyed {
    ($condition:literal) => {
        concat!(
            "SELECT CASE job.state WHEN 3 THEN 9223372036854775807 WHEN 4 THEN ",
            next_due!(),
            " ELSE job.due END AS place, job.id FROM jobs AS job WHERE n.n < $3 AND ",
            $condition,
            key_begins!(),
            " AND ($2::text IS NULL OR job.handler = (SELECT id FROM handlers WHERE name = $2)) \
             AND ($4::bigint IS NULL OR job.state = $4) AND (NOT $5::boolean OR (job.state = 0 AND job.error IS NOT NULL))"
        )
    };
}

/// The places of the jobs with a begin of their keys, unless there are many, and how many keys
/// begin so.
pub(super) const KEYED: &str = concat!(
    "WITH n AS MATERIALIZED (SELECT ",
    keys_of!("holds_key"),
    " + ",
    keys_of!("state = 3"),
    " + ",
    keys_of!("NOT holds_key AND state <> 3"),
    " AS n) SELECT few.place, few.id, n.n FROM n LEFT JOIN LATERAL (",
    keyed!("holds_key"),
    " UNION ALL ",
    keyed!("state = 3"),
    " UNION ALL ",
    keyed!("NOT holds_key AND state <> 3"),
    ") AS few ON true"
);

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
