//! The ends of runs by minute and handler, on the server.
//!
//! Ground rules. Each writer adds to rows under its name, so no node waits for the commit of
//! another. They are written last in a transaction. The keeper makes one row of those of an hour
//! ago.

use std::time::Duration;

use super::wire::Wire;
use crate::store::columns::joined;
use crate::store::sql::SERVER;

/// The rows of minutes of more than an hour ago become one for each handler: a week of minutes of
/// many connections would be millions.
const FOLD: &str = joined!([
    "WITH old AS (SELECT clock() / 60000000 - 60 AS minute), \
     gone AS (DELETE FROM minutes WHERE ctid = ANY(ARRAY(SELECT ctid FROM minutes WHERE connection <> 0 \
     AND minute BETWEEN (SELECT minute - 180 FROM old) AND (SELECT minute FROM old) LIMIT 20000 FOR UPDATE SKIP LOCKED)) RETURNING *) \
     INSERT INTO minutes AS one (minute, handler, connection, done, again, failed, died, expired, longest, \
     late0, late1, late2, late3, late4, late5, late6, late7, late8, late9, late10, late11) \
     SELECT minute, handler, 0, sum(done), sum(again), sum(failed), sum(died), sum(expired), max(longest), sum(late0), sum(late1), sum(late2), \
     sum(late3), sum(late4), sum(late5), sum(late6), sum(late7), sum(late8), sum(late9), sum(late10), sum(late11) \
     FROM gone GROUP BY minute, handler ON CONFLICT (minute, handler, connection)",
    SERVER.add_up
]);

/// How often a node folds.
pub(super) const FOLDS: Duration = Duration::from_secs(60);

pub(super) async fn fold(wire: &Wire) -> Result<(), tokio_postgres::Error> {
    wire.ask(FOLD, &[]).await.map(drop)
}
