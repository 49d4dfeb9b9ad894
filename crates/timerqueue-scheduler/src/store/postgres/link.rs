//! A connection for one thread, which waits for each answer.
//!
//! Ground rules. The runtime of tokio is that of the thread, and runs while the thread waits. Statements are prepared once for each
//! connection. An answer that does not come within the time limit ends the connection.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Row, Statement};

use super::Settings;
use super::error::Failure;

pub(super) type Param<'a> = &'a (dyn ToSql + Sync);

pub(super) fn new_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

pub(super) struct Link {
    runtime: tokio::runtime::Runtime,
    client: Client,
    statements: RefCell<HashMap<&'static str, Statement>>,
    limit: Duration,
}

impl Link {
    /// Connects, and sets the connection up. Each statement of this store has an index, so no plan reads a whole table.
    pub(super) fn open(settings: &Settings) -> Result<Self, Failure> {
        let runtime = new_runtime().map_err(|error| Failure::lost(error.to_string()))?;
        let connecting = async {
            let (client, connection) = settings.config.connect(NoTls).await?;
            tokio::spawn(async move {
                let _ = connection.await;
            });
            let setup = format!(
                "SET search_path TO {}; SET enable_seqscan = off; SET jit = off; SET client_min_messages = warning; \
                 SET default_transaction_isolation = 'read committed'",
                settings.schema_name()
            );
            client.batch_execute(&setup).await?;
            Ok(client)
        };
        let client = runtime.block_on(async { limited(settings.patience, connecting).await })?;
        Ok(Self { runtime, client, statements: RefCell::default(), limit: settings.patience })
    }

    /// Waits for an answer.
    pub(super) fn wait<T>(&self, answer: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Failure> {
        self.runtime.block_on(async { limited(self.limit, answer).await })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn statement(&self, sql: &'static str) -> Result<Statement, Failure> {
        if let Some(statement) = self.statements.borrow().get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.wait(self.client.prepare(sql))?;
        self.statements.borrow_mut().insert(sql, statement.clone());
        Ok(statement)
    }

    pub(super) fn query(&self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<Row>, Failure> {
        let statement = self.statement(sql)?;
        self.wait(self.client.query(&statement, params))
    }

    pub(super) fn batch(&self, sql: &str) -> Result<(), Failure> {
        self.wait(self.client.batch_execute(sql))
    }
}

async fn limited<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Failure::lost("the server does not answer")),
    }
}
