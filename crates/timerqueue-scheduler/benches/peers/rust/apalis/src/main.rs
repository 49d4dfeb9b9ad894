//! Driver of apalis: `apalis` on a file with the settings that its set-up makes, `apalis-full` with
//! `synchronous = FULL`; and on a server.

#[path = "../../common.rs"]
mod common;

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use apalis::prelude::*;
use apalis_postgres::PostgresStorage;
use apalis_sqlite::SqliteStorage;
use common::{Arguments, Count, FAR, Late, MANY, PLACES};
use sqlx::PgPool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};

/// What a worker does with a payload.
type Handle = Arc<dyn Fn(&str) + Send + Sync>;

async fn file(arguments: &Arguments) -> SqliteStorage<String> {
    let options = SqliteConnectOptions::new().filename(&arguments.place).create_if_missing(true);
    if arguments.contender == "apalis" {
        let pool = SqlitePool::connect_with(options).await.expect("a file");
        SqliteStorage::setup(&pool).await.expect("tables");
        return SqliteStorage::new(&pool);
    }
    let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
    let pool = SqlitePoolOptions::new().connect_with(options).await.expect("a file");
    SqliteStorage::migrations().run(&pool).await.expect("tables");
    SqliteStorage::new(&pool)
}

async fn server(arguments: &Arguments) -> PostgresStorage<String> {
    let pool = PgPool::connect(&arguments.place).await.expect("a server");
    PostgresStorage::setup(&pool).await.expect("tables");
    PostgresStorage::new(&pool)
}

/// Times are whole seconds here: rounded up, so that no job is early.
fn task(payload: String, due: i64) -> Task<String> {
    let at = UNIX_EPOCH + Duration::from_secs(u64::try_from(due).expect("after 1970").div_ceil(1_000_000));
    TaskBuilder::new(payload).run_at_time(at).build()
}

fn far() -> Task<String> {
    task(common::payload(), common::micros_now() + FAR.as_micros() as i64)
}

macro_rules! works {
    ($name:ident, $open:ident) => {
        async fn $name(arguments: &Arguments) {
            let backend = $open(arguments).await;
            // A worker's future cannot go to another thread, so each has one.
            let work = |places: usize, handle: Handle| {
                let (backend, runtime) = (backend.clone(), tokio::runtime::Handle::current());
                std::thread::spawn(move || {
                    let run = move |payload: String| {
                        let handle = Arc::clone(&handle);
                        async move { handle(&payload) }
                    };
                    let worker =
                        WorkerBuilder::new("worker").backend(backend).concurrency(places).parallelize(tokio::spawn);
                    runtime.block_on(worker.build(run).run()).expect("a worker");
                })
            };
            let number = arguments.number;
            match &*arguments.work {
                "put" => {
                    let (count, many) = (Count::new(), number == 0);
                    for _ in 0..number.max(1) {
                        let (mut backend, count) = (backend.clone(), count.clone());
                        tokio::spawn(async move {
                            while count.goes_on() {
                                if many {
                                    backend.push_bulk(vec![common::payload(); MANY]).await.expect("puts");
                                } else {
                                    backend.push_task(far()).await.expect("a put");
                                }
                                count.add(if many { MANY as u64 } else { 1 });
                            }
                        });
                    }
                    tokio::time::sleep(arguments.time()).await;
                    common::answer("rate", count.rate());
                }
                "run" => {
                    let (jobs, mut sink) = (common::jobs(arguments), backend.clone());
                    for _ in 0..jobs / MANY {
                        sink.push_bulk(vec![common::payload(); MANY]).await.expect("puts");
                    }
                    let count = Count::new();
                    let ran = count.clone();
                    work(number, Arc::new(move |_| ran.add(1)));
                    let time = arguments.time();
                    tokio::task::spawn_blocking(move || common::drained(&count, jobs as u64, time))
                        .await
                        .expect("an end");
                }
                "late" => {
                    let late = Late::default();
                    let ran = late.clone();
                    work(PLACES, Arc::new(move |due| due.parse().into_iter().for_each(|due| ran.ran(due))));
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    let mut sink = backend.clone();
                    for delay in common::delays() {
                        let due = common::micros_now() + delay;
                        sink.push_task(task(due.to_string(), due)).await.expect("a put");
                    }
                    tokio::task::spawn_blocking(move || late.report()).await.expect("an end");
                }
                "idle" => {
                    work(PLACES, Arc::new(|_| {}));
                    backend.clone().push_task(far()).await.expect("a put");
                    let time = arguments.time();
                    tokio::task::spawn_blocking(move || common::idle(time)).await.expect("an end");
                }
                "fill" => {
                    backend.clone().push_task(far()).await.expect("a put");
                    multiply(arguments).await;
                }
                _ => println!("none"),
            }
        }
    };
}

works!(on_file, file);
works!(on_server, server);

/// Copies of a waiting job.
async fn multiply(arguments: &Arguments) {
    let copies = arguments.number.saturating_sub(1) as i64;
    if arguments.place.starts_with("postgres") {
        let pool = PgPool::connect(&arguments.place).await.expect("a server");
        let columns = "job, job_type, status, attempts, max_attempts, run_at, priority, metadata";
        let sql = format!(
            "INSERT INTO apalis.jobs (id, {columns}) SELECT j.id || n, {columns} FROM apalis.jobs j, generate_series(1, {copies}) n"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.expect("copies");
        return;
    }
    let pool = SqlitePool::connect(&format!("sqlite:{}", arguments.place)).await.expect("a file");
    let columns = "job, job_type, status, attempts, max_attempts, run_at, priority, metadata";
    let sql = format!(
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {copies}) \
         INSERT INTO Jobs (id, {columns}) SELECT id || n, {columns} FROM c, (SELECT * FROM Jobs LIMIT 1)"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&pool).await.expect("copies");
}

fn main() {
    let arguments = Arguments::read();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    match arguments.place.starts_with("postgres") {
        true => runtime.block_on(on_server(&arguments)),
        false => runtime.block_on(on_file(&arguments)),
    }
    common::end();
}
