//! The ends of runs by minute and handler, on the server.
//!
//! Ground rules. Each writer adds to rows under its name, so no node waits for the commit of
//! another. They are written last in a transaction. The keeper makes one row of those of an hour
//! ago.

use std::collections::BTreeMap;
use std::time::Duration;

use super::link::Link;
use super::params::Owned;
use super::wire::{Step, Wire, run};
use crate::store::minutes::{Ends, KEPT};

const ADD: &str = "INSERT INTO minutes (minute, handler, connection, done, again, failed, died, expired, longest, \
     late0, late1, late2, late3, late4, late5, late6, late7, late8, late9, late10, late11) VALUES \
     ($1, $2, $21, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20) \
     ON CONFLICT (minute, handler, connection) DO UPDATE SET done = minutes.done + excluded.done, \
     again = minutes.again + excluded.again, failed = minutes.failed + excluded.failed, \
     died = minutes.died + excluded.died, expired = minutes.expired + excluded.expired, longest = greatest(minutes.longest, excluded.longest), \
     late0 = minutes.late0 + excluded.late0, late1 = minutes.late1 + excluded.late1, \
     late2 = minutes.late2 + excluded.late2, late3 = minutes.late3 + excluded.late3, \
     late4 = minutes.late4 + excluded.late4, late5 = minutes.late5 + excluded.late5, \
     late6 = minutes.late6 + excluded.late6, late7 = minutes.late7 + excluded.late7, \
     late8 = minutes.late8 + excluded.late8, late9 = minutes.late9 + excluded.late9, \
     late10 = minutes.late10 + excluded.late10, late11 = minutes.late11 + excluded.late11";

const PRUNE: &str =
    "DELETE FROM minutes WHERE ctid IN (SELECT ctid FROM minutes WHERE minute <= $1 FOR UPDATE SKIP LOCKED)";

/// The rows of minutes of more than an hour ago become one for each handler: a week of minutes of
/// many connections would be millions.
const FOLD: &str = "WITH old AS (SELECT clock() / 60000000 - 60 AS minute), \
     gone AS (DELETE FROM minutes WHERE ctid = ANY(ARRAY(SELECT ctid FROM minutes WHERE connection <> 0 \
     AND minute BETWEEN (SELECT minute - 180 FROM old) AND (SELECT minute FROM old) LIMIT 20000 FOR UPDATE SKIP LOCKED)) RETURNING *) \
     INSERT INTO minutes AS one (minute, handler, connection, done, again, failed, died, expired, longest, \
     late0, late1, late2, late3, late4, late5, late6, late7, late8, late9, late10, late11) \
     SELECT minute, handler, 0, sum(done), sum(again), sum(failed), sum(died), sum(expired), max(longest), sum(late0), sum(late1), sum(late2), \
     sum(late3), sum(late4), sum(late5), sum(late6), sum(late7), sum(late8), sum(late9), sum(late10), sum(late11) \
     FROM gone GROUP BY minute, handler \
     ON CONFLICT (minute, handler, connection) DO UPDATE SET done = one.done + excluded.done, \
     again = one.again + excluded.again, failed = one.failed + excluded.failed, died = one.died + excluded.died, expired = one.expired + excluded.expired, \
     longest = greatest(one.longest, excluded.longest), late0 = one.late0 + excluded.late0, \
     late1 = one.late1 + excluded.late1, late2 = one.late2 + excluded.late2, late3 = one.late3 + excluded.late3, \
     late4 = one.late4 + excluded.late4, late5 = one.late5 + excluded.late5, late6 = one.late6 + excluded.late6, \
     late7 = one.late7 + excluded.late7, late8 = one.late8 + excluded.late8, late9 = one.late9 + excluded.late9, \
     late10 = one.late10 + excluded.late10, late11 = one.late11 + excluded.late11";

/// How often a node folds.
pub(super) const FOLDS: Duration = Duration::from_secs(60);

pub(super) async fn fold(wire: &Wire) -> Result<(), tokio_postgres::Error> {
    wire.ask(FOLD, &[]).await.map(drop)
}

/// What a transaction has counted, by minute and handler.
pub(super) type Counted = BTreeMap<(i64, usize), Ends>;

/// What adds the counts of a transaction. The first one of a minute removes what is older than a
/// week. A transaction that fails may have removed nothing: the next minute does.
pub(super) fn steps(link: &Link, writer: i64, counted: &Counted) -> Vec<Step<'static>> {
    let mut steps = Vec::new();
    for (&(minute, handler), ends) in counted {
        let counts = [ends.done, ends.again, ends.failed, ends.died, ends.expired].map(i64::from);
        let mut params: Vec<Owned<'static>> = vec![Box::new(minute), Box::new(handler as i64)];
        params.extend(counts.into_iter().chain([ends.longest]).map(|count| Box::new(count) as Owned<'static>));
        params.extend(ends.late.map(|count| Box::new(i64::from(count)) as Owned<'static>));
        params.push(Box::new(writer));
        steps.push(Step::Run(ADD, params));
    }
    if let Some((&(minute, _), _)) = counted.last_key_value() {
        if link.pruned.replace(minute) < minute {
            steps.push(run!(PRUNE, minute - KEPT));
        }
    }
    steps
}
