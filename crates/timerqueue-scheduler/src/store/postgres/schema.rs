//! Tables, and their versions.
//!
//! Ground rules. All that the store has stands in a schema of its own. Migrations run in one commit, under a lock of the server, so nodes that
//! start together migrate once.

use super::Settings;
use super::error::Failure;
use super::link::Link;
use crate::store::Fault;

/// Each step leads from its index to the next version.
const STEPS: &[&str] = &[include_str!("schema1.sql")];

const VERSION: u32 = STEPS.len() as u32;

/// Brings the tables to this crate's version. Returns the seed of the runs.
pub(super) fn migrate(link: &Link, settings: &Settings) -> Result<u64, Failure> {
    let encoding = link.wait(link.client().query_one("SHOW server_encoding", &[]))?;
    if encoding.get::<_, &str>(0) != "UTF8" {
        return Err(Failure::new(Fault::Other, "the database must have the encoding UTF8"));
    }
    if version(link, settings)? < VERSION {
        let done = upgrade(link, settings);
        if done.is_err() {
            let _ = link.batch("ROLLBACK");
        }
        done?;
    }
    let found = version(link, settings)?;
    if found > VERSION {
        let fault = Fault::TooNew { found, known: VERSION };
        return Err(Failure::new(fault, fault.to_string()));
    }
    let seed = link.query("SELECT seed FROM store", &[])?;
    Ok(seed.first().map_or(0, |row| row.get::<_, i64>(0)) as u64)
}

fn upgrade(link: &Link, settings: &Settings) -> Result<(), Failure> {
    link.batch("BEGIN; SELECT pg_advisory_xact_lock(7310582930451)")?;
    // Another node may have been first.
    let found = version(link, settings)?;
    if found == 0 {
        link.batch(&format!("CREATE SCHEMA IF NOT EXISTS {}", settings.schema_name()))?;
    }
    for step in STEPS.iter().skip(found as usize) {
        let channel = format!("'{}'", settings.channel().replace('\'', "''"));
        link.batch(&step.replace("$SCHEMA$", &settings.schema_name()).replace("$CHANNEL$", &channel))?;
    }
    let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0u8) as i64;
    link.batch(&match found {
        0 => format!("INSERT INTO store (one, version, seed) VALUES (true, {VERSION}, {seed})"),
        _ => format!("UPDATE store SET version = {VERSION}"),
    })?;
    link.batch("COMMIT")
}

/// The version of the tables; zero without tables.
fn version(link: &Link, settings: &Settings) -> Result<u32, Failure> {
    let table = "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE n.nspname = $1 AND c.relname = 'store'";
    if link.wait(link.client().query_opt(table, &[&settings.schema]))?.is_none() {
        return Ok(0);
    }
    let row = link.wait(link.client().query_one("SELECT version FROM store", &[]))?;
    Ok(u32::try_from(row.get::<_, i64>(0)).unwrap_or(u32::MAX))
}
