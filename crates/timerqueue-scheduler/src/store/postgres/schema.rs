//! Tables, and their versions.
//!
//! Ground rules. All that the store has stands in a schema of its own. Migrations run in one
//! commit, under a lock of the server, so nodes that start together migrate once.
//!
//! Old and new nodes run on one schema while they are exchanged. So a step keeps what the nodes
//! before it need: it adds tables, columns with a default or without a value, indexes and
//! functions, and it takes none away. A function stands in the last step that writes it, since all
//! steps run in one commit. Statements name their columns. `store.least` is the first
//! version of a crate whose nodes may use the tables: a step that no node before it can live with
//! raises it, and the nodes before are refused from then on, with [`Fault::TooNew`]. Such a step
//! takes two releases: the first one stops to use what the second one removes.

use std::time::Duration;

use super::Settings;
use super::error::{Failure, Remedy, TRIES};
use super::link::Link;
use super::params::Param;
use super::wire;
use crate::store::Fault;

/// A step from one version of the tables to the next.
struct Step {
    sql: &'static str,
    /// The first version whose nodes can live with the step.
    least: u32,
}

/// Each step leads from its index to the next version.
const STEPS: &[Step] = &[
    Step { sql: include_str!("schema1.sql"), least: 1 },
    Step { sql: include_str!("schema2.sql"), least: 1 },
    Step { sql: include_str!("schema3.sql"), least: 1 },
    Step { sql: include_str!("schema4.sql"), least: 1 },
    Step { sql: include_str!("schema5.sql"), least: 1 },
    Step { sql: include_str!("schema6.sql"), least: 1 },
    Step { sql: include_str!("schema7.sql"), least: 1 },
    Step { sql: include_str!("schema8.sql"), least: 1 },
];

/// How long a node waits for a step: as long as an index of a large table takes.
const LONGEST_STEP: Duration = Duration::from_secs(3_600);

pub(super) const VERSION: u32 = STEPS.len() as u32;

/// The version of the tables, and the first version whose nodes may use them. Both are zero without
/// tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) version: u32,
    pub(super) least: u32,
}

/// Brings the tables to this crate's version. Returns the seed of the runs.
pub(super) fn migrate(link: &Link, settings: &Settings) -> Result<u64, Failure> {
    let encoding = link.ask("SHOW server_encoding", &[])?;
    if encoding.first().is_none_or(|row| row.get::<_, &str>(0) != "UTF8") {
        return Err(Failure::new(Fault::Other, "the database must have the encoding UTF8"));
    }
    if find(settings, |sql, params| link.ask(sql, params))?.version < VERSION {
        let limit = link.limit.replace(LONGEST_STEP);
        let done = upgrade_at_last(link, settings);
        link.limit.set(limit);
        done?;
    }
    let seed = link.ask("SELECT seed FROM store", &[])?;
    Ok(seed.first().map_or(0, |row| row.get::<_, i64>(0)) as u64)
}

/// The nodes of an older version go on meanwhile, and lock tables in an order of their own.
fn upgrade_at_last(link: &Link, settings: &Settings) -> Result<(), Failure> {
    let mut tries = 0;
    loop {
        let Err(failure) = upgrade(link, settings) else { return Ok(()) };
        let undone = link.batch("ROLLBACK");
        tries += 1;
        if failure.remedy != Remedy::Again || tries > TRIES || undone.is_err() {
            return Err(failure);
        }
    }
}

fn upgrade(link: &Link, settings: &Settings) -> Result<(), Failure> {
    link.begin()?;
    let wait = wire::lock_wait(settings.patience).as_millis();
    // A step may take long, and so may that of another node. While the step waits for a lock, all
    // users of the tables wait behind it.
    link.batch(&format!(
        "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock(7310582930451); \
         SET LOCAL lock_timeout = {wait}"
    ))?;
    // Another node may have been first.
    let found = find(settings, |sql, params| link.query(sql, params))?;
    if found.version == 0 {
        link.batch(&format!("CREATE SCHEMA IF NOT EXISTS {}", settings.schema_name()))?;
    }
    let missing = STEPS.iter().skip(found.version as usize);
    let least = missing.clone().map(|step| step.least).fold(found.least, u32::max);
    for step in missing {
        let channel = format!("'{}'", settings.channel().replace('\'', "''"));
        link.batch(&step.sql.replace("$SCHEMA$", &settings.schema_name()).replace("$CHANNEL$", &channel))?;
    }
    let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0u8) as i64;
    link.batch(&match found.version {
        0 => format!("INSERT INTO store (one, version, least, seed) VALUES (true, {VERSION}, {least}, {seed})"),
        version if version < VERSION => format!("UPDATE store SET version = {VERSION}, least = {least}"),
        _ => String::new(),
    })?;
    link.batch("COMMIT")
}

/// The version of the tables. Fails if this crate's nodes may not use them.
pub(super) fn find(
    settings: &Settings,
    ask: impl Fn(&'static str, &[Param<'_>]) -> Result<Vec<tokio_postgres::Row>, Failure>,
) -> Result<Found, Failure> {
    let table = "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE n.nspname = $1::text AND c.relname = 'store'";
    let rows = match ask(table, &[&settings.schema])?.is_empty() {
        true => return Ok(Found { version: 0, least: 0 }),
        false => ask("SELECT version::bigint, least::bigint FROM store", &[])?,
    };
    let number = |column: usize| {
        let number = rows.first().and_then(|row| row.try_get::<_, i64>(column).ok());
        number.ok_or_else(|| Failure::new(Fault::Other, "the schema has a table `store` that is not of a scheduler"))
    };
    let version = |column: usize| number(column).map(|number| u32::try_from(number).unwrap_or(u32::MAX));
    let found = Found { version: version(0)?, least: version(1)? };
    if found.least > VERSION {
        let fault = Fault::TooNew { found: found.version, known: VERSION };
        return Err(Failure::new(fault, fault.to_string()));
    }
    Ok(found)
}
