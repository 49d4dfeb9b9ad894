//! Driver of durare, on a file and on a server: a job is a workflow of one step. `durare` on a file
//! as shipped, `durare-full` with `synchronous = FULL`.

#[path = "../../common.rs"]
mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Arguments, Count, FAR, Late, PLACES};
use durare::{
    Client, DurableContext, DurableEngine, PostgresProvider, SqliteProvider, StateProvider, WorkflowOptions,
    WorkflowQueue,
};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};

type Provider = Arc<dyn StateProvider>;

/// The settings which the library makes, with `synchronous = FULL`.
async fn full(file: &str) -> SqlitePool {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .foreign_keys(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(5));
    SqlitePoolOptions::new().max_connections(5).connect_with(options).await.expect("a file")
}

async fn open(arguments: &Arguments) -> Provider {
    let place = &arguments.place;
    let provider: Provider = match &*arguments.contender {
        _ if place.starts_with("postgres") => Arc::new(PostgresProvider::connect(place).await.expect("a server")),
        "durare-full" => Arc::new(SqliteProvider::from_pool(full(place).await)),
        _ => Arc::new(SqliteProvider::connect(&format!("sqlite:{place}")).await.expect("a file")),
    };
    provider.init().await.expect("tables");
    provider
}

/// Runs jobs until the process ends. The queue polls as often as the one in the library's guide.
async fn work(provider: Provider, places: usize, handle: impl Fn(&str) + Send + Sync + 'static) {
    let handle = Arc::new(handle);
    let run = move |context: DurableContext, text: String| {
        let handle = Arc::clone(&handle);
        async move {
            let step = || async move {
                handle(&text);
                Ok::<_, durare::Error>(())
            };
            context.step("handle", step).await
        }
    };
    let mut engine = DurableEngine::new(provider).await.expect("an engine");
    engine.register("handle", run);
    let queue = WorkflowQueue::new("jobs").worker_concurrency(places);
    engine.register_queue(queue.base_polling_interval(Duration::from_millis(20)));
    engine.launch().await.expect("a start");
    std::mem::forget(engine);
}

/// Delays are whole milliseconds here: rounded up, so that no job is early.
async fn put(client: &Client, text: String, due: Option<i64>) {
    let delay = due.map(|due| Duration::from_millis(((due + 999) / 1_000 - common::micros_now() / 1_000) as u64));
    let options = WorkflowOptions { delay, ..WorkflowOptions::default() };
    client.enqueue::<_, ()>("jobs", "handle", text, options).await.expect("a put");
}

fn far() -> Option<i64> {
    Some(common::micros_now() + FAR.as_micros() as i64)
}

/// Callers that put jobs, one after another, until the count stops or there are enough.
async fn call(client: &Arc<Client>, callers: usize, jobs: u64, due: fn() -> Option<i64>, count: &Count) {
    let calls: Vec<_> = (0..callers)
        .map(|_| {
            let (client, count) = (client.clone(), count.clone());
            tokio::spawn(async move {
                while count.goes_on() && count.get() < jobs {
                    put(&client, common::payload(), due()).await;
                    count.add(1);
                }
            })
        })
        .collect();
    for call in calls {
        call.await.expect("a caller");
    }
}

async fn drive(arguments: &Arguments) {
    let provider = open(arguments).await;
    let client = Arc::new(Client::new(provider.clone()));
    let (number, time) = (arguments.number, arguments.time());
    match &*arguments.work {
        // There is no call that puts many.
        "put" if number > 0 => {
            let count = Count::new();
            let calls = tokio::spawn({
                let (client, count) = (client.clone(), count.clone());
                async move { call(&client, number, u64::MAX, far, &count).await }
            });
            tokio::time::sleep(time).await;
            common::answer("rate", count.rate());
            calls.abort();
        }
        "run" => {
            let (jobs, count) = (common::jobs(arguments) as u64, Count::new());
            call(&client, PLACES, jobs, || None, &Count::new()).await;
            let ran = count.clone();
            work(provider, number, move |_| ran.add(1)).await;
            tokio::task::spawn_blocking(move || common::drained(&count, jobs, time)).await.expect("an end");
        }
        "fill" => {
            put(&client, common::payload(), far()).await;
            multiply(arguments).await;
        }
        "due" => call(&client, PLACES, number as u64, || None, &Count::new()).await,
        "node" => {
            let count = Count::new();
            let ran = count.clone();
            work(provider, number, move |_| ran.add(1)).await;
            tokio::task::spawn_blocking(move || common::node(&count, time)).await.expect("an end");
        }
        "late" => {
            let late = Late::default();
            let ran = late.clone();
            work(provider, PLACES, move |due| due.parse().into_iter().for_each(|due| ran.ran(due))).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            for delay in common::delays() {
                let due = common::micros_now() + delay;
                put(&client, due.to_string(), Some(due)).await;
            }
            tokio::task::spawn_blocking(move || late.report()).await.expect("an end");
        }
        "idle" => {
            work(provider, PLACES, |_| {}).await;
            put(&client, common::payload(), far()).await;
            tokio::task::spawn_blocking(move || common::idle(time)).await.expect("an end");
        }
        _ => println!("none"),
    }
}

/// Copies of a waiting job.
async fn multiply(arguments: &Arguments) {
    let copies = arguments.number.saturating_sub(1);
    let columns = "status, name, executor_id, application_version, queue_name, inputs, priority, serialization, \
                   delay_until_epoch_ms, created_at, updated_at";
    if arguments.place.starts_with("postgres") {
        let pool = sqlx::PgPool::connect(&arguments.place).await.expect("a server");
        let sql = format!(
            "INSERT INTO dbos.workflow_status (workflow_uuid, {columns}) SELECT gen_random_uuid()::text, {columns} \
             FROM dbos.workflow_status, generate_series(1, {copies})"
        );
        sqlx::raw_sql(&sql).execute(&pool).await.expect("copies");
        return;
    }
    let sql = format!(
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {copies}) \
         INSERT INTO workflow_status (workflow_uuid, {columns}) \
         SELECT workflow_uuid || n, {columns} FROM c, (SELECT * FROM workflow_status LIMIT 1)"
    );
    sqlx::raw_sql(&sql).execute(&full(&arguments.place).await).await.expect("copies");
}

fn main() {
    let arguments = Arguments::read();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(drive(&arguments));
    common::end();
}
