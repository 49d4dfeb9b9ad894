//! A user's own connection to the server, by tokio-postgres.

use timerqueue_scheduler::tokio_postgres::{Client, Error, NoTls, Transaction};
use tokio::runtime::{Builder, Runtime};

pub(crate) struct Shop {
    pub(crate) client: Client,
    pub(crate) runtime: Runtime,
}

impl Shop {
    pub(crate) fn connect(address: &str) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (client, connection) =
            runtime.block_on(timerqueue_scheduler::tokio_postgres::connect(address, NoTls)).unwrap();
        runtime.spawn(connection);
        Self { client, runtime }
    }

    /// In a transaction, which commits unless `inside` fails.
    pub(crate) fn transaction<T, E: std::fmt::Debug + From<Failed>>(
        &mut self,
        inside: impl AsyncFnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        self.runtime.block_on(async {
            let transaction = self.client.transaction().await.map_err(Failed)?;
            let done = inside(&transaction).await?;
            transaction.commit().await.map_err(Failed)?;
            Ok(done)
        })
    }
}

/// A begin or a commit has failed.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) Error);

impl From<Failed> for timerqueue_scheduler::Error {
    fn from(Failed(error): Failed) -> Self {
        match error.code() {
            Some(code) if code.code() == "TQ001" => Self::NotHeld,
            _ => panic!("{error:?}"),
        }
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Failed {}
