//! The rows of the hand-made systems that concern many nodes, on a server: system C (a cron
//! scheduler with a sketch of a coordinator), and B10.
//!
//! Ground rules. Two or more nodes in one process, on a schema of their own. The clock is that of
//! the server; a test that needs hours sets it forward by the function `clock` of the schema. What
//! does not depend on nodes is tested on virtual time in `tests/rows`.

mod c21;
mod defects;
mod features;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::store::{
    Advance, Applied, Invalid, Micros, Occurrence, Op, PostgresOptions, PostgresStore, Settle, Step, Verdict,
};
use timerqueue_scheduler::{
    Builder, Cancel, Catchup, Clash, Error, Handler, Overlap, Query, Retry, Run, RunEnd, Schedule, Scheduler, State,
};

use crate::server::{Server, new_schema, until};
use crate::{LONG, apply, claim, put_raw};

const TICK: Duration = Duration::from_millis(100);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn every(period: Duration) -> Schedule {
    Schedule::every(period).build().unwrap()
}

fn micros(at: SystemTime) -> i64 {
    i64::try_from(at.duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

/// A run that has begun.
#[derive(Clone, Debug)]
struct Seen {
    node: usize,
    key: String,
    nominal: Option<i64>,
    run: String,
}

type Log = Arc<Mutex<Vec<Seen>>>;

/// Nodes on a schema of their own.
struct Nodes {
    server: &'static Server,
    schema: String,
    log: Log,
    nodes: Vec<Scheduler>,
}

fn options(schema: &str) -> PostgresOptions {
    PostgresOptions::new().schema(schema).safety_look(millis(300)).lease(Duration::from_secs(5)).patience(LONG)
}

fn note(log: &Log, node: usize, run: &Run) {
    let nominal = run.nominal().map(micros);
    log.lock().unwrap().push(Seen { node, key: run.key().to_owned(), nominal, run: run.run_id().to_owned() });
}

/// A node with the handler `log`, and more.
fn node(server: &Server, schema: &str, log: &Log, number: usize, more: impl Fn(Builder) -> Builder) -> Scheduler {
    let store = options(schema).connect(Runtime::global(), &server.address()).unwrap();
    let log = Arc::clone(log);
    let handler = move |_: serde_json::Value, run: &Run| note(&log, number, run);
    more(Scheduler::builder().store(store).handler("log", handler)).start().unwrap()
}

impl Nodes {
    fn new(count: usize) -> Option<Self> {
        Self::with(count, |builder| builder)
    }

    fn with(count: usize, more: impl Fn(Builder) -> Builder) -> Option<Self> {
        let (server, schema, log) = (Server::shared()?, new_schema(), Log::default());
        let nodes = (0..count).map(|number| node(server, &schema, &log, number, &more)).collect();
        Some(Self { server, schema, log, nodes })
    }

    fn keys(&self) -> Vec<String> {
        self.log.lock().unwrap().iter().map(|seen| seen.key.clone()).collect()
    }

    /// The nominal instants of a recurring job that have begun, in order.
    fn nominal(&self, key: &str) -> Vec<i64> {
        let log = self.log.lock().unwrap();
        let mut found: Vec<i64> = log.iter().filter(|seen| seen.key == key).filter_map(|seen| seen.nominal).collect();
        found.sort_unstable();
        found
    }

    /// The same, each once: a clock that is set forward takes the leases of what runs, and another
    /// node runs it again.
    fn occurrences(&self, key: &str) -> Vec<i64> {
        let mut found = self.nominal(key);
        found.dedup();
        found
    }

    /// Each occurrence has run once, and none between was left out.
    fn each_once(&self, key: &str, period: Duration) {
        let nominal = self.nominal(key);
        let gaps: BTreeSet<i64> = nominal.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(gaps, BTreeSet::from([i64::try_from(period.as_micros()).unwrap()]), "{nominal:?}");
        // Nodes may still run, so the log is read once.
        let log = self.log.lock().unwrap();
        let runs: BTreeSet<&str> = log.iter().map(|seen| &*seen.run).collect();
        assert_eq!(runs.len(), log.len(), "each with a token of its own");
    }

    fn state(&self, key: &str) -> Option<State> {
        self.nodes[0].get(key).wait().unwrap().map(|job| job.state)
    }

    /// Sets the server's clock forward or back, from the clock of the machine.
    fn set_clock(&self, by: Duration) {
        let body = format!("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {}", by.as_micros());
        let sql = format!("CREATE OR REPLACE FUNCTION {}.clock() RETURNS bigint LANGUAGE sql AS '{body}'", self.schema);
        self.server.psql(&sql);
    }

    fn rows(&self) -> String {
        self.server.psql(&format!("SELECT count(*) FROM {}.jobs", self.schema))
    }
}
