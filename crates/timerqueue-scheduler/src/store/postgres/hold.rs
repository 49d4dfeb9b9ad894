//! Holds: a restored past does not run again unasked.
//!
//! Ground rules. The table of a hold is no part of the versioned tables: it exists while the store is held.

use super::Settings;
use super::error::Failure;
use super::link::Link;
use crate::store::{Fault, Hold, Micros};

/// The row of handler 0, which is none, has the instant of the hold. One statement pauses and keeps what it has paused.
const HOLD: &str = "CREATE TABLE IF NOT EXISTS hold (handler bigint PRIMARY KEY, since bigint NOT NULL); \
                    INSERT INTO hold VALUES (0, clock()) ON CONFLICT DO NOTHING; \
                    WITH held AS (UPDATE handlers SET paused = true WHERE NOT paused RETURNING id) \
                    INSERT INTO hold SELECT id, clock() FROM held ON CONFLICT DO NOTHING; COMMIT";

/// The hold of the tables, if they are held.
pub(super) fn read(link: &Link, schema: &str) -> Result<Option<Hold>, Failure> {
    let exists = "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                  WHERE n.nspname = $1 AND c.relname = 'hold'";
    if link.ask(exists, &[&schema])?.is_empty() {
        return Ok(None);
    }
    let since = link.ask("SELECT coalesce(since::bigint, 0) FROM hold ORDER BY handler LIMIT 1", &[])?;
    let since = Micros::new(since.first().map_or(0, |row| row.get(0))).to_system();
    let sql = "SELECT handlers.name FROM hold JOIN handlers ON handlers.id = hold.handler ORDER BY handlers.name";
    let handlers = link.ask(sql, &[])?.iter().map(|row| row.get::<_, &str>(0).into()).collect();
    Ok(Some(Hold { since, handlers }))
}

pub(super) fn hold(settings: &Settings) -> Result<Hold, Failure> {
    let link = Link::open(settings)?;
    super::schema::migrate(&link, settings)?;
    link.begin()?;
    link.batch(HOLD)?;
    read(&link, &settings.schema)?.ok_or_else(|| Failure::new(Fault::Other, "the hold was ended by another process"))
}

pub(super) fn forget(settings: &Settings) -> Result<(), Failure> {
    let link = Link::open(settings)?;
    link.begin()?;
    link.batch("DROP TABLE IF EXISTS hold; COMMIT")
}
