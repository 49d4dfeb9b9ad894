//! Driver of effectum, on a file.

#[path = "../../common.rs"]
mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{Arguments, Count, FAR, Late, MANY, PLACES};
use effectum::{Error, Job, JobRunner, Queue, RunningJob, Worker};
use time::OffsetDateTime;

/// What the worker does with a payload.
#[derive(Clone)]
struct Handle(Arc<dyn Fn(&str) + Send + Sync>);

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}

async fn run(job: RunningJob, handle: Handle) -> Result<(), Error> {
    (handle.0)(&job.json_payload::<String>()?);
    Ok(())
}

async fn work(queue: &Queue, places: usize, handle: impl Fn(&str) + Send + Sync + 'static) -> Worker {
    let runner = JobRunner::builder("h", run).build();
    let worker = Worker::builder(queue, Handle(Arc::new(handle))).max_concurrency(places as u16);
    worker.jobs([runner]).build().await.expect("a worker")
}

/// Without a due time the job is due now.
fn job(payload: &str, due: Option<OffsetDateTime>) -> Job {
    let job = Job::builder("h").json_payload(payload).expect("a payload");
    due.into_iter().fold(job, |job, due| job.run_at(due)).build()
}

fn far() -> Option<OffsetDateTime> {
    Some(OffsetDateTime::now_utc() + FAR)
}

fn many(due: Option<OffsetDateTime>) -> Vec<Job> {
    (0..MANY).map(|_| job(&common::payload(), due)).collect()
}

async fn drive(arguments: &Arguments) {
    let queue = Arc::new(Queue::new(Path::new(&arguments.place)).await.expect("a file"));
    let number = arguments.number;
    match &*arguments.work {
        "put" => {
            let count = Count::new();
            for _ in 0..number.max(1) {
                let (queue, count) = (Arc::clone(&queue), count.clone());
                tokio::spawn(async move {
                    while count.goes_on() {
                        let jobs = if number == 0 { many(far()) } else { vec![job(&common::payload(), far())] };
                        let put = jobs.len() as u64;
                        queue.add_jobs(jobs).await.expect("a put");
                        count.add(put);
                    }
                });
            }
            tokio::time::sleep(arguments.time()).await;
            common::answer("rate", count.rate());
        }
        "run" => {
            let jobs = common::jobs(arguments);
            for _ in 0..jobs / MANY {
                queue.add_jobs(many(None)).await.expect("puts");
            }
            let count = Count::new();
            let ran = count.clone();
            let _worker = work(&queue, number, move |_| ran.add(1)).await;
            let time = arguments.time();
            tokio::task::spawn_blocking(move || common::drained(&count, jobs as u64, time)).await.expect("an end");
            common::end();
        }
        "fill" => {
            for _ in 0..number / MANY {
                queue.add_jobs(many(far())).await.expect("puts");
            }
        }
        "late" => {
            let late = Late::default();
            let ran = late.clone();
            let _worker = work(&queue, PLACES, move |due| due.parse().into_iter().for_each(|due| ran.ran(due))).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            for delay in common::delays() {
                let due = common::micros_now() + delay;
                let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(due) * 1_000).expect("a time");
                queue.add_job(job(&due.to_string(), Some(at))).await.expect("a put");
            }
            tokio::task::spawn_blocking(move || late.report()).await.expect("an end");
            common::end();
        }
        "idle" => {
            let _worker = work(&queue, PLACES, |_| {}).await;
            queue.add_job(job(&common::payload(), far())).await.expect("a put");
            let time = arguments.time();
            tokio::task::spawn_blocking(move || common::idle(time)).await.expect("an end");
            common::end();
        }
        _ => println!("none"),
    }
    common::end();
}

fn main() {
    let arguments = Arguments::read();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(drive(&arguments));
}
