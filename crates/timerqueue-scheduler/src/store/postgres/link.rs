//! A connection for one thread, which waits for each answer.
//!
//! Ground rules. The runtime of tokio is that of the connection, and runs while the thread waits:
//! on this thread, or on another one if this thread runs a task of tokio ([`Own`]). An answer that
//! does not come within the time limit ends the connection. [`Link::query`] and [`Link::steps`] are
//! for transactions, [`Link::ask`] is for a statement by itself.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};
use tokio_postgres::Row;

use super::Settings;
use super::cursor::{Cursors, Due, Walk};
use super::error::Failure;
use super::params::Param;
use super::wire::{self, Answers, Step, Wire, limited};
use crate::store::reply::Awaited;
use crate::store::sql::priorities_in;

/// How long an answer may take that the end of a store waits for.
pub(super) const HURRY: Duration = Duration::from_secs(1);
const SLICE: Duration = Duration::from_millis(100);

pub(super) fn new_runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// A runtime of tokio that blocks wherever it is used. A thread that runs a task of tokio may not
/// block on another runtime, nor wait for the end of one.
struct Own(Option<Runtime>);

impl Own {
    fn block_on<F: Future<Output: Send> + Send>(&self, future: F) -> F::Output {
        let runtime = self.0.as_ref().expect("the drop alone takes it");
        if Handle::try_current().is_err() {
            return runtime.block_on(future);
        }
        let answer = std::thread::scope(|scope| scope.spawn(|| runtime.block_on(future)).join());
        answer.unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

pub(super) struct Link {
    runtime: Own,
    wire: Wire,
    /// How long an answer may take.
    pub(super) limit: Cell<Duration>,
    /// Set when the store is about to end: then an answer may take [`HURRY`].
    pub(super) hurry: Option<Arc<AtomicBool>>,
    /// Whether a caller waits for the answer: if not, the statement is cancelled.
    pub(super) awaited: RefCell<Option<Awaited>>,
    pub(super) is_pooled: bool,
    /// Of a member.
    pub(super) lease: Duration,
    /// How long each statement of a transaction waits for a lock of another session.
    pub(super) lock_wait: Cell<Duration>,
    /// The handlers that have a row.
    pub(super) handlers: RefCell<HashSet<Arc<str>>>,
    /// A transaction that does without what another one may have locked, beyond what it was asked
    /// for.
    pub(super) is_careful: Cell<bool>,
    /// Some handler keeps the keys of its done jobs, as of the last transaction.
    pub(super) keeps_keys: Cell<bool>,
    /// The last minute for which the old ones were removed.
    pub(super) pruned: Cell<i64>,
    /// Where walks begin.
    pub(super) cursors: RefCell<Cursors>,
    /// The priorities other than zero that the jobs of handlers have had, as of the last
    /// transaction.
    pub(super) priorities: RefCell<BTreeMap<i64, i64>>,
}

impl Link {
    pub(super) fn open(settings: &Settings) -> Result<Self, Failure> {
        Self::open_with(settings, settings.patience, &[])
    }

    /// Within this time, with further settings by their names.
    pub(super) fn open_with(settings: &Settings, within: Duration, more: &[(&str, String)]) -> Result<Self, Failure> {
        let runtime = Own(Some(new_runtime().map_err(|error| Failure::lost(error.to_string()))?));
        let wire = runtime.block_on(async {
            let (client, traffic) = wire::connect(settings, within).await?;
            tokio::spawn(async move {
                let _ = traffic.await;
            });
            limited(within, Wire::new(client, settings, more)).await
        })?;
        Ok(Self {
            runtime,
            wire,
            limit: Cell::new(settings.patience),
            hurry: None,
            awaited: RefCell::default(),
            is_pooled: settings.is_pooled,
            lease: settings.lease,
            lock_wait: Cell::new(wire::lock_wait(settings.patience)),
            handlers: RefCell::default(),
            is_careful: Cell::new(false),
            keeps_keys: Cell::new(false),
            pruned: Cell::new(i64::MIN),
            cursors: RefCell::default(),
            priorities: RefCell::default(),
        })
    }

    /// The priorities other than zero that the jobs of a handler have had.
    pub(super) fn priorities_of(&self, kind: usize) -> Vec<i8> {
        priorities_in(self.priorities.borrow().get(&(kind as i64)).copied().unwrap_or_default())
    }

    /// The handlers, the priorities and the begins of all walks for jobs with priorities.
    pub(super) fn walks_of_priorities(&self) -> (Vec<i64>, Vec<i64>, Vec<i64>) {
        let (mut kinds, mut priorities, mut lows) = (Vec::new(), Vec::new(), Vec::new());
        for (&kind, &bits) in &*self.priorities.borrow() {
            for priority in priorities_in(bits) {
                kinds.push(kind);
                priorities.push(i64::from(priority));
                lows.push(self.cursors.borrow().low(&Walk::Due(Due::Priority(kind, priority))).unwrap_or(i64::MIN));
            }
        }
        (kinds, priorities, lows)
    }

    /// Waits for an answer.
    fn wait<T: Send>(
        &self,
        answer: impl Future<Output = Result<T, tokio_postgres::Error>> + Send,
    ) -> Result<T, Failure> {
        let (wire, hurry, awaited, limit) = (&self.wire, &self.hurry, self.awaited.borrow().clone(), self.limit.get());
        self.runtime.block_on(async {
            let mut answer = pin!(limited(limit, answer));
            let is_hurried = || hurry.as_ref().is_some_and(|hurry| hurry.load(Ordering::Acquire));
            let mut left = HURRY;
            loop {
                match tokio::time::timeout(SLICE, &mut answer).await {
                    Ok(answer) => return answer,
                    Err(_) if is_hurried() => left = left.saturating_sub(SLICE),
                    Err(_) => {}
                }
                if left.is_zero() {
                    return Err(Failure::lost("the server does not answer"));
                }
                let is_abandoned = awaited.as_ref().is_some_and(|is_awaited| !is_awaited());
                if is_abandoned {
                    // The server would go on for as long as the patience.
                    let _ = tokio::time::timeout(HURRY, wire.cancel()).await;
                    return Err(Failure::lost("the answer is awaited no longer"));
                }
            }
        })
    }

    pub(super) fn query(&self, sql: &'static str, params: &[Param<'_>]) -> Result<Vec<Row>, Failure> {
        let statement = self.wait(self.wire.prepare(sql))?;
        self.wait(self.wire.run(&statement, params))
    }

    /// Sends all steps at once: one round trip.
    pub(super) fn steps<'s>(&self, steps: impl IntoIterator<Item = &'s Step<'s>>) -> Answers<Failure> {
        let steps: Vec<&Step<'_>> = steps.into_iter().collect();
        let wire = &self.wire;
        match self.wait(async { Ok(wire.steps(&steps).await) }) {
            Ok((answers, failed)) => (answers, failed.map(Failure::from)),
            Err(failure) => (Vec::new(), Some(failure)),
        }
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
