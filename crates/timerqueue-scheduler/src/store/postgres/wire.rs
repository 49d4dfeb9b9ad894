//! A connection: how it is made, and how statements go over it.
//!
//! Ground rules. Statements are prepared once for each connection. Behind a pooler in transaction
//! mode ([`PostgresOptions::pooled`]) each transaction may have another connection of the server.
//! So nothing there outlives a transaction: settings are made in each of them, and statements have
//! no names. A statement of its own ([`Wire::ask`]) is sent with its `BEGIN` and `COMMIT` at once,
//! which is one round trip.
//!
//! What a transaction needs no answers for in between is sent at once, too ([`Wire::steps`]): the
//! server takes one statement after another, and after a failure none of those that follow, so a
//! `COMMIT` behind them undoes the transaction.
//!
//! [`PostgresOptions::pooled`]: super::PostgresOptions::pooled

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join3, maybe_done};
use parking_lot::Mutex;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Connection, Row, Socket, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::Settings;
use super::error::Failure;
use super::params::{Owned, Param};
use crate::store::Fault;

/// What a connection to a server sends and receives, apart from the [`Client`].
pub(super) type Traffic = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// A statement, ready to be sent.
#[derive(Clone)]
pub(super) enum Ready {
    Named(Statement),
    Text(&'static str),
}

/// A message among several that are sent at once.
pub(super) enum Step<'a> {
    Begin,
    Commit,
    Run(&'static str, Vec<Owned<'a>>),
}

/// The answers to steps up to the first failure, and that failure.
pub(super) type Answers<E> = (Vec<Vec<Row>>, Option<E>);

/// A statement among steps, with its parameters.
macro_rules! run {
    ($sql:expr $(, $param:expr)* $(,)?) => {
        $crate::store::postgres::wire::Step::Run($sql, vec![$(Box::new($param) as $crate::store::postgres::params::Owned<'_>),*])
    };
}
pub(super) use run;

pub(super) struct Wire {
    client: Client,
    tls: MakeRustlsConnect,
    /// None of them behind a pooler.
    statements: Mutex<HashMap<&'static str, Statement>>,
    /// Begins a transaction.
    begin: String,
    is_pooled: bool,
}

/// Tries the servers of the address: first the one that was used last. Each has its share of the
/// time limit.
pub(super) async fn connect(settings: &Settings, limit: Duration) -> Result<(Client, Traffic), Failure> {
    let count = settings.places.len();
    let share = limit / u32::try_from(count).unwrap_or(u32::MAX);
    let first = settings.used.load(Ordering::Relaxed);
    let mut failed: Option<Failure> = None;
    for at in (0..count).map(|n| (first + n) % count) {
        let (place, tls) = &settings.places[at];
        match limited(share, place.config.connect(tls.clone())).await {
            Ok(connected) => {
                settings.used.store(at, Ordering::Relaxed);
                return Ok(connected);
            }
            Err(failure) => {
                let failure = failure.at(&place.name);
                failed = Some(failed.map_or(failure.clone(), |before| before.and(failure)));
            }
        }
    }
    Err(failed.unwrap_or_else(|| Failure::new(Fault::Other, "no server")))
}

impl Wire {
    /// Sets a connection up, whose traffic is served by the caller. Each statement of this store
    /// has an index, so no plan reads a whole table. `more`: further settings, by their names.
    pub(super) async fn new(
        client: Client,
        settings: &Settings,
        more: &[(&str, String)],
    ) -> Result<Self, tokio_postgres::Error> {
        // A node that is stopped within a transaction, or whose connection is cut there, keeps no
        // rows locked for long.
        let idle = (settings.patience / 2).max(Duration::from_secs(1)).as_millis();
        // The server gives up before this side does, so no session is left behind that waits.
        let (lock, statement) = (lock_wait(settings.patience).as_millis(), settings.patience.as_millis());
        // What rests on a setting does not rest on that of a role, a database or the server.
        let set = |scope: &str| {
            let more: String = more.iter().map(|(name, value)| format!("; SET {scope} {name} = {value}")).collect();
            format!(
                "SET {scope} search_path TO {}, pg_temp; SET {scope} enable_seqscan = off; SET {scope} jit = off; \
                 SET {scope} client_min_messages = warning; SET {scope} idle_in_transaction_session_timeout = {idle}; \
                 SET {scope} lock_timeout = {lock}; SET {scope} statement_timeout = {statement}{more}; \
                 SELECT set_config(name, value, {}) FROM (VALUES ('synchronous_commit', 'off', 'on'), \
                 ('session_replication_role', 'replica', 'origin')) AS wrong (name, found, value) \
                 WHERE current_setting(name) = found",
                settings.schema_name(),
                scope == "LOCAL"
            )
        };
        let mut begin = "BEGIN ISOLATION LEVEL READ COMMITTED".to_owned();
        if settings.is_pooled {
            begin = format!("{begin}; {}", set("LOCAL"));
        } else {
            let isolation = "SET SESSION default_transaction_isolation = 'read committed'";
            client.batch_execute(&format!("{isolation}; {}", set("SESSION"))).await?;
        }
        let used = settings.used.load(Ordering::Relaxed);
        let tls = settings.places[used].1.clone();
        Ok(Self { client, tls, statements: Mutex::default(), begin, is_pooled: settings.is_pooled })
    }

    pub(super) async fn prepare(&self, sql: &'static str) -> Result<Ready, tokio_postgres::Error> {
        if self.is_pooled {
            return Ok(Ready::Text(sql));
        }
        let known = self.statements.lock().get(sql).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => self.client.prepare(sql).await?,
        };
        self.statements.lock().insert(sql, statement.clone());
        Ok(Ready::Named(statement))
    }

    /// Runs a statement inside of a transaction.
    pub(super) async fn run(&self, ready: &Ready, params: &[Param<'_>]) -> Result<Vec<Row>, tokio_postgres::Error> {
        match ready {
            Ready::Named(statement) => {
                let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|param| param.value()).collect();
                self.client.query(statement, &values).await
            }
            Ready::Text(sql) => {
                let values: Vec<(&(dyn ToSql + Sync), Type)> =
                    params.iter().map(|param| (param.value(), param.kind())).collect();
                self.client.query_typed(sql, &values).await
            }
        }
    }

    /// Runs a statement by itself.
    pub(super) async fn ask(&self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let ready = self.prepare(sql).await?;
        if !self.is_pooled {
            return self.run(&ready, params).await;
        }
        let (begun, rows, ended) = join3(self.begin(), self.run(&ready, params), self.batch("COMMIT")).await;
        begun?;
        let rows = rows?;
        ended?;
        Ok(rows)
    }

    /// Sends all steps at once, and waits for the answers.
    pub(super) async fn steps(&self, steps: &[&Step<'_>]) -> Answers<tokio_postgres::Error> {
        let mut ready = Vec::with_capacity(steps.len());
        for step in steps {
            // Known ones cost nothing.
            match step {
                Step::Run(sql, _) => match self.prepare(sql).await {
                    Ok(statement) => ready.push(Some(statement)),
                    Err(error) => return (Vec::new(), Some(error)),
                },
                Step::Begin | Step::Commit => ready.push(None),
            }
        }
        let sent = steps.iter().zip(&ready).map(|(step, ready)| Box::pin(maybe_done(self.step(step, ready.as_ref()))));
        let mut sent: Vec<_> = sent.collect();
        // The first poll sends a step, so this sends all, in their order. Their answers come in the
        // same order.
        poll_fn(|context| {
            sent.iter_mut().for_each(|step| _ = step.as_mut().poll(context));
            Poll::Ready(())
        })
        .await;
        let mut answers = Vec::with_capacity(steps.len());
        for step in &mut sent {
            step.as_mut().await;
            match step.as_mut().take_output() {
                Some(Ok(rows)) => answers.push(rows),
                Some(Err(error)) => return (answers, Some(error)),
                None => break,
            }
        }
        (answers, None)
    }

    async fn step(&self, step: &Step<'_>, ready: Option<&Ready>) -> Result<Vec<Row>, tokio_postgres::Error> {
        match (step, ready) {
            (Step::Begin, _) => self.begin().await.map(|()| Vec::new()),
            (Step::Run(_, params), Some(ready)) => {
                let params: Vec<Param<'_>> = params.iter().map(|param| &**param).collect();
                self.run(ready, &params).await
            }
            (Step::Commit | Step::Run(..), _) => self.batch("COMMIT").await.map(|()| Vec::new()),
        }
    }

    pub(super) async fn begin(&self) -> Result<(), tokio_postgres::Error> {
        self.batch(&self.begin).await
    }

    /// Asks the server to end the statement under way, on a connection of its own.
    pub(super) async fn cancel(&self) -> Result<(), tokio_postgres::Error> {
        self.client.cancel_token().cancel_query(self.tls.clone()).await
    }

    pub(super) async fn batch(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(sql).await
    }
}

/// How long a statement waits for a lock of another session.
pub(super) fn lock_wait(patience: Duration) -> Duration {
    patience / 2
}

/// Waits for an answer for as long as the limit.
pub(super) async fn limited<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(Failure::lost("the server does not answer")),
    }
}
