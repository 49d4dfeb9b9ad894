//! Holds: a restored past does not run again unasked.
//!
//! Ground rules. The table of a hold is no part of the versioned tables: it exists while the store
//! is held.

use super::Settings;
use super::error::Failure;
use super::link::Link;
use crate::store::sql::looks;
use crate::store::{Fault, Hold};

/// The row of handler 0, which is none, has the instant of the hold; the row of -1 the last number
/// of a job at that time. With it, all numbers that the lost tables may have given go on by a step
/// at random (K14). What a job waits for that is not there has left undone. A group has its head
/// twice if a trigger has made one, beside that of the dump. One statement pauses handlers and
/// keeps which.
const HOLD: &str = "CREATE TABLE IF NOT EXISTS hold (handler bigint PRIMARY KEY, since bigint NOT NULL); \
                    INSERT INTO hold VALUES (0, clock()) ON CONFLICT DO NOTHING; \
                    WITH begun AS (INSERT INTO hold SELECT -1, last_value FROM ids ON CONFLICT DO NOTHING RETURNING since), \
                    step AS MATERIALIZED (SELECT 4294967296 + (random() * 1099511627776)::bigint AS step FROM begun), \
                    versions AS (UPDATE jobs SET recurring = regexp_replace(recurring, '\"version\": ?[0-9]+', '\"version\":' || step \
                    + substring(recurring FROM '\"version\": ?([0-9]+)')::bigint) FROM step \
                    WHERE state = 4 AND recurring ~ '\"version\": ?[0-9]{1,17}[,}]') \
                    SELECT setval('ids', (SELECT last_value FROM ids) + step), \
                    setval('members_id_seq', (SELECT last_value FROM members_id_seq) + step), \
                    setval('affinities_id_seq', (SELECT last_value FROM affinities_id_seq) + step) FROM step; \
                    DELETE FROM heads AS h USING heads AS n WHERE n.id = h.id AND n.stamp > h.stamp; \
                    INSERT INTO new_ends (tx, job, ended) SELECT DISTINCT txid_current(), predecessor, 3 FROM links AS l \
                    WHERE ended IS NULL AND NOT EXISTS (SELECT FROM jobs WHERE id = l.predecessor); \
                    WITH held AS (UPDATE handlers SET paused = true WHERE NOT paused RETURNING id) \
                    INSERT INTO hold SELECT id, clock() FROM held ON CONFLICT DO NOTHING; COMMIT";

pub(super) fn hold(settings: &Settings) -> Result<Hold, Failure> {
    let link = Link::open(settings)?;
    super::schema::migrate(&link, settings)?;
    link.begin()?;
    link.batch(HOLD)?;
    looks::held(&link)?.ok_or_else(|| Failure::new(Fault::Other, "the hold was ended by another process"))
}

pub(super) fn forget(settings: &Settings) -> Result<(), Failure> {
    let link = Link::open(settings)?;
    link.begin()?;
    link.batch("DROP TABLE IF EXISTS hold; COMMIT")
}
