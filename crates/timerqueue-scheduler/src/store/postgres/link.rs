//! A connection for one thread, which waits for each answer.
//!
//! Ground rules. The runtime of tokio is that of the thread, and runs while the thread waits. An answer that does not come within the time
//! limit ends the connection. [`Link::query`] is for transactions, [`Link::ask`] for a statement by itself.

use std::future::Future;
use std::time::Duration;

use tokio_postgres::Row;

use super::Settings;
use super::error::Failure;
use super::params::Param;
use super::wire::{self, Ready, Wire, limited};

pub(super) fn new_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

pub(super) struct Link {
    runtime: tokio::runtime::Runtime,
    wire: Wire,
    limit: Duration,
}

impl Link {
    pub(super) fn open(settings: &Settings) -> Result<Self, Failure> {
        let runtime = new_runtime().map_err(|error| Failure::lost(error.to_string()))?;
        let wire = runtime.block_on(async {
            let (client, traffic) = wire::connect(settings).await?;
            tokio::spawn(async move {
                let _ = traffic.await;
            });
            limited(settings.patience, Wire::new(client, settings)).await
        })?;
        Ok(Self { runtime, wire, limit: settings.patience })
    }

    /// Waits for an answer.
    pub(super) fn wait<T>(&self, answer: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Failure> {
        self.runtime.block_on(async { limited(self.limit, answer).await })
    }

    pub(super) fn wire(&self) -> &Wire {
        &self.wire
    }

    pub(super) fn statement(&self, sql: &'static str) -> Result<Ready, Failure> {
        self.wait(self.wire.prepare(sql))
    }

    pub(super) fn query(&self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<Row>, Failure> {
        let statement = self.statement(sql)?;
        self.wait(self.wire.run(&statement, params))
    }

    pub(super) fn ask(&self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<Row>, Failure> {
        self.wait(self.wire.ask(sql, params))
    }

    pub(super) fn begin(&self) -> Result<(), Failure> {
        self.wait(self.wire.begin())
    }

    pub(super) fn batch(&self, sql: &str) -> Result<(), Failure> {
        self.wait(self.wire.batch(sql))
    }
}
