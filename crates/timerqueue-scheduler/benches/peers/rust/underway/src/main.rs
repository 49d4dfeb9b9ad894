//! Driver of underway, on a server.

#[path = "../../common.rs"]
mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Arguments, Count, FAR, Late, MANY, PLACES};
use jiff::{Span, ToSpan};
use sqlx::{PgPool, Postgres, Transaction};
use underway::task::Result as TaskResult;
use underway::{Queue, Task, Worker};

/// What the worker does with a payload.
#[derive(Clone)]
struct Handle(Arc<dyn Fn(&str) + Send + Sync>);

impl Task for Handle {
    type Input = String;
    type Output = ();

    async fn execute(&self, _: Transaction<'_, Postgres>, input: String) -> TaskResult<()> {
        (self.0)(&input);
        Ok(())
    }
}

async fn work(queue: &Queue<Handle>, places: usize, handle: impl Fn(&str) + Send + Sync + 'static) {
    let queue = Arc::new(queue.clone());
    let handle = Handle(Arc::new(handle));
    let mut worker = Worker::new(queue, handle);
    worker.set_concurrency_limit(places);
    tokio::spawn(async move { worker.run().await.expect("a worker") });
}

fn far() -> Span {
    (FAR.as_secs() as i64).seconds()
}

async fn drive(arguments: &Arguments) {
    let pool = PgPool::connect(&arguments.place).await.expect("a server");
    underway::run_migrations(&pool).await.expect("tables");
    let queue = Queue::<Handle>::builder().name("h").pool(pool.clone()).build().await.expect("a queue");
    let nothing = Handle(Arc::new(|_| {}));
    let (number, payload) = (arguments.number, common::payload());
    match &*arguments.work {
        "put" => {
            let count = Count::new();
            for _ in 0..number.max(1) {
                let (queue, pool, count) = (queue.clone(), pool.clone(), count.clone());
                let (nothing, payload) = (nothing.clone(), payload.clone());
                tokio::spawn(async move {
                    while count.goes_on() {
                        if number == 0 {
                            queue.enqueue_multi(&pool, &nothing, &vec![payload.clone(); MANY]).await.expect("puts");
                        } else {
                            queue.enqueue_after(&pool, &nothing, &payload, far()).await.expect("a put");
                        }
                        count.add(if number == 0 { MANY as u64 } else { 1 });
                    }
                });
            }
            tokio::time::sleep(arguments.time()).await;
            common::answer("rate", count.rate());
        }
        "run" => {
            let jobs = common::jobs(arguments);
            for _ in 0..jobs / MANY {
                queue.enqueue_multi(&pool, &nothing, &vec![payload.clone(); MANY]).await.expect("puts");
            }
            let count = Count::new();
            let ran = count.clone();
            work(&queue, number, move |_| ran.add(1)).await;
            // A worker takes one more task at a time with each notice; so it gets as many as it has
            // places.
            tokio::time::sleep(Duration::from_millis(100)).await;
            for _ in 1..number {
                queue.enqueue(&pool, &nothing, &payload).await.expect("a put");
            }
            let time = arguments.time();
            tokio::task::spawn_blocking(move || common::drained(&count, jobs as u64, time)).await.expect("an end");
        }
        "fill" => {
            queue.enqueue_after(&pool, &nothing, &payload, far()).await.expect("a put");
            let columns = "task_queue_name, input, state, timeout, heartbeat, ttl, delay, retry_policy, concurrency_key, priority, \
                           created_at, updated_at";
            // The trigger that notifies is off meanwhile: a notice for each row would take minutes.
            let sql = format!(
                "SET session_replication_role = replica; INSERT INTO underway.task (id, {columns}) \
                 SELECT gen_random_uuid(), {columns} FROM (SELECT * FROM underway.task LIMIT 1) t, generate_series(2, {number})"
            );
            sqlx::raw_sql(&sql).execute(&pool).await.expect("copies");
        }
        "late" => {
            let late = Late::default();
            let ran = late.clone();
            work(&queue, PLACES, move |due| due.parse().into_iter().for_each(|due| ran.ran(due))).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            for delay in common::delays() {
                let due = common::micros_now() + delay;
                queue.enqueue_after(&pool, &nothing, &due.to_string(), delay.microseconds()).await.expect("a put");
            }
            tokio::task::spawn_blocking(move || late.report()).await.expect("an end");
        }
        "idle" => {
            work(&queue, PLACES, |_| {}).await;
            queue.enqueue_after(&pool, &nothing, &payload, far()).await.expect("a put");
            let time = arguments.time();
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
