//! Plans that statistics lead to, and what they read of rows that have left while a snapshot keeps
//! these.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use timerqueue_scheduler::{Handler, History, Put, Run, Scheduler};

use crate::locks::Open;
use crate::server::{Server, new_schema, until};
use crate::{HOUR, Log, connect, options};

/// A server that writes down the plan of each statement, with the pages that it has read. Its
/// statistics change when a test says so.
const EXPLAINS: &str = "-c autovacuum=off -c session_preload_libraries=auto_explain -c auto_explain.log_min_duration=0 \
     -c auto_explain.log_analyze=on -c auto_explain.log_buffers=on -c auto_explain.log_timing=off \
     -c auto_explain.log_nested_statements=on -c auto_explain.log_format=json";
/// The most pages that a statement reads for one job.
const MOST: u64 = 60;

/// The key of a job whose run goes on until it is told to end.
const LONG_RUN: &str = "long";

/// What the jobs have that leave, and the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Priority,
    /// One of 25 groups.
    Group,
    /// A group that runs one job at a time.
    OneByOne,
    /// A group that runs two jobs at a time.
    Two,
    /// With a limit over all nodes.
    Everywhere,
    /// One of 25 groups, with a rate over all nodes.
    Rate,
    /// Once done, kept for a moment.
    Brief,
    /// Once done, kept as long as it is among the last ones.
    Last,
}

/// A node beside rows that have left, and what keeps these.
struct Left {
    kind: Kind,
    server: Server,
    schema: String,
    node: Scheduler,
    log: Log,
    report: Open,
    /// Each ends the long run, or one of the handler `held`, which writes its fence into the log.
    ends: mpsc::Sender<()>,
}

impl Left {
    fn new(kind: Kind) -> Option<Self> {
        let server = Server::with(EXPLAINS, |_| {})?;
        let (schema, log) = (new_schema(), Log::default());
        let (ends, ended) = mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        let (noted, ends_later) = (Log::clone(&log), Arc::clone(&ended));
        let logs = move |_: serde_json::Value, run: &Run| {
            noted.lock().unwrap().push(run.key().to_owned());
            if run.key() == LONG_RUN {
                ends_later.lock().unwrap().recv().unwrap();
            }
        };
        let noted = Log::clone(&log);
        let held = move |_: serde_json::Value, run: &Run| {
            noted.lock().unwrap().push(run.fence());
            ended.lock().unwrap().recv().unwrap();
        };
        let (store, logs) = (connect(&server, &options(&schema)), Handler::new("log", logs));
        let logs = match kind {
            Kind::Plain | Kind::Priority | Kind::Group => logs,
            Kind::OneByOne => logs.parallel_per_group(1),
            Kind::Two => logs.parallel_per_group(2),
            Kind::Everywhere => logs.parallel_everywhere(8),
            Kind::Rate => logs.rate(1, Duration::from_millis(1)),
            Kind::Brief => logs.history(History::new(Duration::from_millis(1))),
            Kind::Last => logs.history(History::new(HOUR).rows(16)),
        };
        let node = Scheduler::builder().store(store).register(logs).handler("held", held).start().unwrap();
        let mut report = Open::new(&server, &schema);
        report.run("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM jobs");
        Some(Self { kind, server, schema, node, log, report, ends })
    }

    fn put(&self, n: usize, key: &str) -> Put<'_> {
        let put = self.node.put_to("log", &n).key(key);
        match self.kind {
            Kind::Plain | Kind::Everywhere | Kind::Brief | Kind::Last => put,
            Kind::Priority => put.priority([-3, 0, 5][n % 3]),
            Kind::Group | Kind::Rate => put.group(&format!("g{}", n % 25)),
            Kind::OneByOne | Kind::Two => put.group("g"),
        }
    }

    fn run(&self, name: &str, jobs: usize) {
        let put = |n: usize| self.put(n, &format!("{name}/{n}"));
        self.ran(jobs, || {
            assert!(self.node.put_many((0..jobs).map(put)).wait().unwrap().iter().all(Result::is_ok));
        });
    }

    /// Jobs that run and leave. A node's transaction that takes long writes rows that are early.
    fn leave(&self, name: &str, jobs: usize) {
        (0..jobs / 50).for_each(|n| self.run(&format!("{name}, {n}"), 50));
    }

    fn ran(&self, jobs: usize, puts: impl FnOnce()) {
        let before = self.log.lock().unwrap().len();
        puts();
        until("all have run", || self.log.lock().unwrap().len() == before + jobs);
    }

    /// The statement that reads the most pages while `act` goes on, at the best of some times: a
    /// stall of the machine costs the cursor, which follows half a second behind.
    fn reads(&self, mut act: impl FnMut(usize)) -> (u64, String) {
        let mut least = (u64::MAX, String::new());
        for time in 0..5 {
            std::thread::sleep(Duration::from_millis(600));
            let before = self.written().len();
            act(time);
            least = most_read(&self.written()[before..]).min(least);
            if least.0 < MOST {
                break;
            }
        }
        least
    }

    fn written(&self) -> String {
        std::fs::read_to_string(self.server.folder().join("log")).unwrap()
    }

    /// Runs one by one. A node keeps its plans, until the statistics change.
    #[track_caller]
    fn check(&self, is_analyzed: bool, run: &mut dyn FnMut(&str)) {
        if is_analyzed {
            self.server.psql("ANALYZE");
        }
        let begun = self.written().len();
        (0..6).for_each(|n| run(&format!("{begun}/{n}")));
        let (pages, statement) = self.reads(|time| (0..3).for_each(|n| run(&format!("{begun}/{time}/{n}"))));
        println!("{pages} pages");
        assert!(pages < MOST, "{pages} pages: {statement}");
    }
}

/// The pages and the text of the statement that has read the most, of those that the server has
/// written down.
fn most_read(log: &str) -> (u64, String) {
    let statements = log.split("\"Query Text\": ").skip(1);
    let number = |statement: &str, name: &str| {
        let rest = statement.split_once(name)?.1;
        rest.split(',').next()?.trim().parse::<u64>().ok()
    };
    // The first node of a plan has the pages of all.
    let read = |statement: &str| {
        let pages = ["\"Shared Hit Blocks\":", "\"Shared Read Blocks\":"].map(|name| number(statement, name));
        pages.into_iter().flatten().sum::<u64>()
    };
    let text = |statement: &str| statement.lines().next().unwrap_or_default().to_owned();
    statements.map(|statement| (read(statement), text(statement))).max().unwrap_or_default()
}

#[test]
fn l23_no_statistics_lead_a_statement_to_rows_that_have_left() {
    let Some(left) = Left::new(Kind::Plain) else { return };
    let mut run = |name: &str| left.run(name, 1);
    left.leave("left", 1_000);
    left.check(true, &mut run);
    // The statistics are those of an empty table.
    let schema = &left.schema;
    left.server.psql(&format!(
        "INSERT INTO {schema}.jobs (id, key, handler, payload, due, wake) SELECT nextval('{schema}.ids'), n, h.id, \
         'null', 9000000000000000 + n, 9000000000000000 + n FROM generate_series(1, 20000) AS n, {schema}.handlers AS h"
    ));
    left.check(false, &mut run);
    left.check(true, &mut run);
    left.report.end("COMMIT");
}

#[test]
fn l23_a_run_with_a_priority_reads_no_rows_that_have_left() {
    let Some(left) = Left::new(Kind::Priority) else { return };
    let mut run = |name: &str| left.run(name, 1);
    left.leave("left", 2_000);
    left.check(true, &mut run);
    left.report.end("COMMIT");
}

#[test]
fn l23_a_run_with_a_group_reads_no_rows_that_have_left() {
    let Some(left) = Left::new(Kind::Group) else { return };
    let mut run = |name: &str| left.run(name, 1);
    left.leave("left", 1_500);
    left.check(true, &mut run);
    left.report.end("COMMIT");
}

#[test]
fn l23_a_run_within_a_limit_over_all_nodes_reads_no_rows_that_have_left() {
    let Some(left) = Left::new(Kind::Everywhere) else { return };
    let mut run = |name: &str| left.run(name, 1);
    left.leave("left", 3_000);
    left.check(true, &mut run);
    left.report.end("COMMIT");
}

#[test]
fn l23_a_run_beside_one_that_goes_on_counts_no_rows_that_have_left() {
    for (kind, jobs) in [(Kind::Everywhere, 2_000), (Kind::Two, 1_200)] {
        let Some(left) = Left::new(kind) else { return };
        left.ran(1, || assert!(left.put(0, LONG_RUN).send().wait().unwrap().added().is_some()));
        left.leave("left", jobs);
        left.check(true, &mut |name: &str| left.run(name, 1));
        left.ends.send(()).unwrap();
        left.report.end("COMMIT");
    }
}

/// A claim without a token asks for the first head of all members.
#[test]
fn l23_a_claim_within_a_rate_reads_no_heads_that_have_left() {
    let Some(left) = Left::new(Kind::Rate) else { return };
    left.leave("left", 100);
    // As of jobs that have left.
    let schema = &left.schema;
    left.server.psql(&format!(
        "INSERT INTO {schema}.heads SELECT -1, n, h.handler, h.member, {schema}.clock(), NULL, false \
         FROM generate_series(1, 20000) AS n, (SELECT handler, member FROM {schema}.heads LIMIT 1) AS h"
    ));
    left.server.psql(&format!("DELETE FROM {schema}.heads WHERE id = -1"));
    left.check(true, &mut |name: &str| left.run(name, 2));
    left.report.end("COMMIT");
}

#[test]
fn l23_a_run_that_is_kept_reads_no_done_jobs_that_have_left() {
    for kind in [Kind::Brief, Kind::Last] {
        let Some(left) = Left::new(kind) else { return };
        left.leave("left", 4_000);
        left.check(true, &mut |name: &str| left.run(name, 1));
        left.report.end("COMMIT");
    }
}

/// Each run is a commit of its own, and changes its group three times.
#[test]
fn l23_a_run_of_a_group_with_a_limit_reads_no_versions_of_the_group() {
    let Some(left) = Left::new(Kind::OneByOne) else { return };
    let mut run = |name: &str| left.run(name, 1);
    left.leave("left", 300);
    left.check(true, &mut run);
    left.report.end("COMMIT");
}

/// A session keeps the plans of the function, made when the table had few pages.
#[test]
fn l23_a_put_by_sql_reads_no_rows_that_have_left() {
    let Some(left) = Left::new(Kind::Plain) else { return };
    let mut user = Open::new(&left.server, &left.schema);
    user.run("ROLLBACK; ANALYZE");
    let mut put = |name: &str| left.ran(1, || user.run(&format!("SELECT put('log', '{name}')")));
    (0..10).for_each(|n| put(&format!("few/{n}")));
    left.leave("left", 3_000);
    let (pages, statement) = left.reads(|time| (0..3).for_each(|n| put(&format!("many/{time}/{n}"))));
    println!("{pages} pages");
    assert!(pages < MOST, "{pages} pages: {statement}");
    user.end("SELECT 1");
    left.report.end("COMMIT");
}

/// The handler `log`, for which no job comes any more, is in no claim's way.
#[test]
fn l23_a_run_that_a_transaction_ends_reads_no_rows_that_have_left() {
    let Some(left) = Left::new(Kind::Plain) else { return };
    let mut user = Open::new(&left.server, &left.schema);
    user.run("ROLLBACK");
    left.leave("left", 3_000);
    let mut run = |key: &str| {
        left.ran(1, || assert!(left.node.put_to("held", &0).key(key).send().wait().unwrap().added().is_some()));
        let fence = left.log.lock().unwrap().last().unwrap().clone();
        user.run(&format!("SELECT done('{fence}')"));
        left.ends.send(()).unwrap();
    };
    left.check(true, &mut run);
    user.end("SELECT 1");
    left.report.end("COMMIT");
}
