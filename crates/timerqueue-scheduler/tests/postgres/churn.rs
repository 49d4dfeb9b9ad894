//! Table and indexes under churn: a million puts and settles, with the server's settings and with those of `docs/OPERATIONS.md`. Run by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use timerqueue::Runtime;
use timerqueue_scheduler::store::PostgresOptions;
use timerqueue_scheduler::{Handler, Run, Scheduler};

use crate::server::{Server, new_schema};

const STANDING: u64 = 100_000;
const DAY: Duration = Duration::from_secs(86_400);

/// The number of jobs: a million, or `TIMERQUEUE_CHURN_JOBS`.
fn number() -> u64 {
    std::env::var("TIMERQUEUE_CHURN_JOBS").ok().and_then(|number| number.parse().ok()).unwrap_or(1_000_000)
}

/// The block of settings of the document, for this schema: for the table, and for the server.
fn recommended(schema: &str) -> String {
    let operations = include_str!("../../../../docs/OPERATIONS.md");
    let block = operations.split("<!-- vacuum -->").nth(1).unwrap();
    block.split("```sql").nth(1).unwrap().split("```").next().unwrap().replace("timerqueue.", &format!("{schema}."))
}

fn bytes(server: &Server, schema: &str) -> (u64, u64) {
    let sql = format!("SELECT pg_table_size('{schema}.jobs') || ' ' || pg_indexes_size('{schema}.jobs')");
    let sizes = server.psql(&sql);
    let (table, indexes) = sizes.split_once(' ').unwrap();
    (table.parse().unwrap(), indexes.parse().unwrap())
}

fn shown((table, indexes): (u64, u64)) -> String {
    format!("table {:.1} MB, indexes {:.1} MB", table as f64 / 1e6, indexes as f64 / 1e6)
}

fn churn(server: &Server, name: &str, settings: impl Fn(&str) -> String) {
    let schema = new_schema();
    let store = PostgresOptions::new().schema(&schema).connect(Runtime::global(), &server.address()).unwrap();
    for statement in settings(&schema).split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
        server.psql(statement);
    }
    let done = Arc::new(AtomicU64::new(0));
    let ends = Arc::clone(&done);
    let call = move |_: u64, _: &Run| _ = ends.fetch_add(1, Ordering::Relaxed);
    let handler = Handler::new("h", call).parallel(256);
    let node = Scheduler::builder().store(store).parallel(256).register(handler).start().unwrap();
    let put = |n: u64, due: Duration| node.put_to("h", &n).key(&format!("order/{n:012}")).due(due).send();
    let standing: Vec<_> = (0..STANDING).map(|n| put(n, DAY)).collect();
    standing.into_iter().for_each(|pending| drop(pending.wait().unwrap()));
    server.psql(&format!("VACUUM ANALYZE {schema}.jobs"));
    let before = bytes(server, &schema);
    let (begun, mut most, mut looked) = (Instant::now(), before, Instant::now());
    for chunk in 0..number() / 1_000 {
        let pending: Vec<_> =
            (0..1_000).map(|n| put(STANDING + chunk * 1_000 + n, Duration::from_millis(n % 500))).collect();
        pending.into_iter().for_each(|pending| drop(pending.wait().unwrap()));
        // At most 20,000 jobs wait, so that the table has no reason to grow.
        while (chunk + 1) * 1_000 > done.load(Ordering::Relaxed) + 20_000 {
            std::thread::sleep(Duration::from_millis(10));
        }
        if looked.elapsed() > Duration::from_secs(1) {
            looked = Instant::now();
            let now = bytes(server, &schema);
            most = (most.0.max(now.0), most.1.max(now.1));
        }
    }
    while done.load(Ordering::Relaxed) < number() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let took = begun.elapsed();
    let after = bytes(server, &schema);
    most = (most.0.max(after.0), most.1.max(after.1));
    drop(node);
    std::thread::sleep(Duration::from_secs(2)); // statistics come late
    let sql = format!(
        "SELECT autovacuum_count || ' ' || n_dead_tup FROM pg_stat_user_tables WHERE relid = '{schema}.jobs'::regclass"
    );
    let vacuums = server.psql(&sql);
    let count = format!("SELECT count(*) FROM {schema}.jobs");
    let begun = Instant::now();
    server.psql(&count);
    println!("{name}: {} jobs in {:.0} s beside {STANDING} that wait", number(), took.as_secs_f64());
    println!("  before: {}\n  most:   {}\n  after:  {}", shown(before), shown(most), shown(after));
    println!(
        "  vacuums, dead rows: {vacuums}; a count of all rows takes {:.0} ms",
        begun.elapsed().as_secs_f64() * 1e3
    );
    server.psql(&format!("VACUUM {schema}.jobs"));
    println!("  after a vacuum: {}", shown(bytes(server, &schema)));
    server.psql(&format!("REINDEX TABLE {schema}.jobs"));
    println!("  after a reindex: {}", shown(bytes(server, &schema)));
}

#[test]
#[ignore = "minutes; run by hand"]
fn a_million_puts_and_settles() {
    let Some(server) = Server::new() else { return };
    println!("PostgreSQL {}", server.psql("SHOW server_version"));
    churn(&server, "the server's settings", |_| String::new());
    churn(&server, "recommended settings", recommended);
}
