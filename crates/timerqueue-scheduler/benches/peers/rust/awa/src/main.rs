//! Driver of awa, on a server.

#[path = "../../common.rs"]
mod common;

use std::sync::Arc;
use std::time::Duration;

use awa::{Client, InsertOpts, JobArgs, JobContext, JobResult, QueueConfig, QueueStorage, QueueStorageConfig};
use chrono::{DateTime, Utc};
use common::{Arguments, Count, FAR, Late, MANY, PLACES};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

#[derive(Deserialize, JobArgs, Serialize)]
struct Text {
    text: String,
}

/// Runs jobs until the process ends.
async fn work(pool: &PgPool, places: usize, handle: impl Fn(&str) + Send + Sync + 'static) {
    let handle = Arc::new(handle);
    let run = move |args: Text, _: &JobContext| {
        handle(&args.text);
        async { Ok(JobResult::Completed) }
    };
    let queue = QueueConfig { max_workers: places as u32, ..QueueConfig::default() };
    let client =
        Client::builder(pool.clone()).queue("default", queue).register::<Text, _, _>(run).build().expect("a client");
    client.start().await.expect("a start");
    std::mem::forget(client);
}

fn at(due: i64) -> InsertOpts {
    InsertOpts { run_at: Some(DateTime::<Utc>::from_timestamp_micros(due).expect("a time")), ..InsertOpts::default() }
}

fn far() -> InsertOpts {
    at(common::micros_now() + FAR.as_micros() as i64)
}

async fn put(pool: &PgPool, text: String, opts: InsertOpts) {
    awa::insert_with(pool, &Text { text }, opts).await.expect("a put");
}

/// The call which the guide names for many jobs. It takes the settings of the workers.
async fn put_many(pool: &PgPool, storage: &QueueStorage, opts: InsertOpts) {
    let text = Text { text: common::payload() };
    let job = awa::model::insert::params_with(&text, opts).expect("a job");
    assert_eq!(storage.enqueue_params_copy(pool, &vec![job; MANY]).await.expect("puts"), MANY);
}

async fn fill(pool: &PgPool, storage: &QueueStorage, jobs: usize, opts: fn() -> InsertOpts) {
    for _ in 0..jobs / MANY {
        put_many(pool, storage, opts()).await;
    }
}

async fn drive(arguments: &Arguments) {
    let pool = PgPoolOptions::new().max_connections(20).connect(&arguments.place).await.expect("a server");
    awa::migrations::run(&pool).await.expect("tables");
    // What the first worker does on a new database: from then on jobs are put into queue storage.
    sqlx::raw_sql("SELECT awa.storage_auto_finalize_if_fresh('awa')").execute(&pool).await.expect("a setting");
    let storage = Arc::new(QueueStorage::new(QueueStorageConfig::default()).expect("settings"));
    let (number, time) = (arguments.number, arguments.time());
    match &*arguments.work {
        "put" => {
            let count = Count::new();
            for _ in 0..number.max(1) {
                let (pool, storage, count) = (pool.clone(), storage.clone(), count.clone());
                tokio::spawn(async move {
                    while count.goes_on() {
                        match number {
                            0 => put_many(&pool, &storage, far()).await,
                            _ => put(&pool, common::payload(), far()).await,
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
            fill(&pool, &storage, jobs, InsertOpts::default).await;
            let ran = count.clone();
            work(&pool, number, move |_| ran.add(1)).await;
            tokio::task::spawn_blocking(move || common::drained(&count, jobs as u64, time)).await.expect("an end");
        }
        "fill" => fill(&pool, &storage, number, far).await,
        "due" => fill(&pool, &storage, number, InsertOpts::default).await,
        "node" => {
            let count = Count::new();
            let ran = count.clone();
            work(&pool, number, move |_| ran.add(1)).await;
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
            work(&pool, PLACES, handle).await;
            // The leader, which makes waiting jobs ready, is elected meanwhile.
            put(&pool, "first".to_owned(), at(common::micros_now() + 100_000)).await;
            while first.get() == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            for delay in common::delays() {
                let due = common::micros_now() + delay;
                put(&pool, due.to_string(), at(due)).await;
            }
            tokio::task::spawn_blocking(move || late.report()).await.expect("an end");
        }
        "idle" => {
            work(&pool, PLACES, |_| {}).await;
            put(&pool, common::payload(), far()).await;
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
