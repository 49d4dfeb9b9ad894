//! Driver of River's client for Rust, on a file and on a server: `river` as shipped, `river-bench`
//! with the fetches of its own benchmark.

#[path = "../../common.rs"]
mod common;

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use common::{Arguments, Count, FAR, Late, MANY, PLACES};
use riverqueue::event::SubscribeConfig;
use riverqueue::jiff::Timestamp;
use riverqueue::migrate::{PostgresMigrator, SqliteMigrator};
use riverqueue::sqlx::postgres::PgPoolOptions;
use riverqueue::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use riverqueue::{
    Client, EventKind, InsertOpts, Job, JobArgs, QUEUE_DEFAULT, QueueConfig, WorkContext, WorkOutcome, Workers,
};
use serde::{Deserialize, Serialize};

#[derive(Clone, Deserialize, JobArgs, Serialize)]
#[river(kind = "handle")]
struct Text {
    text: String,
}

/// What a worker does with a payload.
type Handle = Arc<dyn Fn(&str) + Send + Sync>;

/// A client on the file or the server. The pools are those of the guide, and on a server with a
/// connection for each caller.
async fn open(arguments: &Arguments, work: Option<(usize, Handle)>) -> Client {
    let builder = if arguments.place.starts_with("postgres") {
        let pool = PgPoolOptions::new().max_connections(20).connect(&arguments.place).await.expect("a server");
        PostgresMigrator::new(pool.clone()).migrate_up().await.expect("tables");
        Client::builder(pool)
    } else {
        let options = SqliteConnectOptions::new()
            .filename(&arguments.place)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(5));
        let pool = SqlitePoolOptions::new().max_connections(5).connect_with(options).await.expect("a file");
        SqliteMigrator::new(pool.clone()).migrate_up().await.expect("tables");
        Client::builder(pool)
    };
    let Some((places, handle)) = work else {
        return builder.build().expect("a client");
    };
    let mut queue = QueueConfig::new(places);
    if arguments.contender == "river-bench" {
        queue = queue.with_fetch_cooldown(Duration::from_millis(2)).with_fetch_poll_interval(Duration::from_millis(20));
    }
    let mut workers = Workers::new();
    let run = move |_: WorkContext, job: Job<Text>| {
        handle(&job.args.text);
        async { Ok::<_, Infallible>(WorkOutcome::Complete) }
    };
    workers.add_fn(run).expect("a worker");
    builder.workers(workers).queue(QUEUE_DEFAULT, queue).build().expect("a client")
}

fn start(client: &Client) {
    client.start().expect("a start").detach();
}

fn at(due: i64) -> InsertOpts {
    InsertOpts::default().with_scheduled_at(Timestamp::from_microsecond(due).expect("a time"))
}

fn far() -> InsertOpts {
    at(common::micros_now() + FAR.as_micros() as i64)
}

async fn put(client: &Client, text: String, opts: InsertOpts) {
    client.insert(Text { text }).opts(opts).await.expect("a put");
}

async fn put_many(client: &Client, opts: InsertOpts) {
    let jobs = (0..MANY).map(|_| (Text { text: common::payload() }, opts.clone()));
    assert_eq!(client.insert_many(jobs).await.expect("puts").len(), MANY);
}

async fn fill(client: &Client, jobs: usize, opts: fn() -> InsertOpts) {
    for _ in 0..jobs / MANY {
        put_many(client, opts()).await;
    }
}

/// Runs jobs, and counts those whose end is stored: handlers run ahead of that.
async fn counting(arguments: &Arguments, count: &Count) {
    let client = open(arguments, Some((arguments.number, Arc::new(|_| {})))).await;
    let capacity = NonZeroUsize::new(1 << 20).expect("above zero");
    let config = SubscribeConfig::new([EventKind::JobCompleted]).expect("a kind").with_buffer_capacity(capacity);
    let (mut ends, ran) = (client.subscribe_config(config).expect("a subscription"), count.clone());
    tokio::spawn(async move {
        while ends.recv().await.is_ok() {
            ran.add(1);
        }
    });
    start(&client);
}

async fn drive(arguments: &Arguments) {
    let (number, time) = (arguments.number, arguments.time());
    match &*arguments.work {
        "put" => {
            let (client, count) = (open(arguments, None).await, Count::new());
            for _ in 0..number.max(1) {
                let (client, count) = (client.clone(), count.clone());
                tokio::spawn(async move {
                    while count.goes_on() {
                        match number {
                            0 => put_many(&client, far()).await,
                            _ => put(&client, common::payload(), far()).await,
                        }
                        count.add(if number == 0 { MANY as u64 } else { 1 });
                    }
                });
            }
            tokio::time::sleep(time).await;
            common::answer("rate", count.rate());
        }
        "run" => {
            let (jobs, count) = (common::jobs(arguments), Count::new());
            fill(&open(arguments, None).await, jobs, InsertOpts::default).await;
            counting(arguments, &count).await;
            tokio::task::spawn_blocking(move || common::drained(&count, jobs as u64, time)).await.expect("an end");
        }
        "fill" => fill(&open(arguments, None).await, number, far).await,
        "due" => fill(&open(arguments, None).await, number, InsertOpts::default).await,
        "node" => {
            let count = Count::new();
            counting(arguments, &count).await;
            tokio::task::spawn_blocking(move || common::node(&count, time)).await.expect("an end");
        }
        "late" => {
            let late = Late::default();
            let (ran, first) = (late.clone(), Count::new());
            let started = first.clone();
            let handle = move |text: &str| match text.parse() {
                Ok(due) => ran.ran(due),
                Err(_) => started.add(1),
            };
            let client = open(arguments, Some((PLACES, Arc::new(handle)))).await;
            start(&client);
            // The leader, which makes waiting jobs available, is elected meanwhile.
            put(&client, "first".to_owned(), at(common::micros_now() + 100_000)).await;
            while first.get() == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            for delay in common::delays() {
                let due = common::micros_now() + delay;
                put(&client, due.to_string(), at(due)).await;
            }
            tokio::task::spawn_blocking(move || late.report()).await.expect("an end");
        }
        "idle" => {
            let client = open(arguments, Some((PLACES, Arc::new(|_| {})))).await;
            start(&client);
            put(&client, common::payload(), far()).await;
            tokio::task::spawn_blocking(move || common::idle(time)).await.expect("an end");
        }
        _ => println!("none"),
    }
}

fn main() {
    let arguments = Arguments::read();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(drive(&arguments));
    common::end();
}
