//! The scheduler and its peers on the same work: lateness of one-shot jobs, processor time, and
//! wake-ups at rest.
//!
//! `cargo run --release` in this folder. Arguments: the seconds of each part (default 10), and the
//! names of contenders (default all). Each contender runs in a process of its own. The parts:
//!
//! 1. **rest**: one job is due in an hour; counted from the sixth second on. Wake-ups are the
//!    voluntary context switches of all threads but the main one.
//! 2. **sparse**: 100 jobs a second, due at random instants.
//! 3. **dense**: 10,000 jobs a second, due at random instants, put at least a second ahead.
//!
//! Lateness counts from the due time to the first line of the handler. `apalis` has no due times in
//! memory, so a task of tokio per job sleeps and then pushes the job, as its users must do.

use std::future::Future;
use std::pin::Pin;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use apalis_core::backend::memory::{MemorySink, MemoryStorage, MemoryStorageError};
use apalis_core::task::Task;
use apalis_core::task::task_id::{RandomId, TaskId};
use apalis_core::worker::builder::WorkerBuilder;
use futures_channel::mpsc::{UnboundedSender, unbounded};
use futures_util::lock::Mutex as AsyncMutex;
use futures_util::{Sink, SinkExt, StreamExt};
use timerqueue_scheduler::{Handler, Run, Scheduler};
use tokio_cron_scheduler::{Job, JobScheduler};

/// What a job writes down: how late it ran, in nanoseconds. Below zero: it ran early.
#[derive(Clone, Default)]
struct Late(Arc<Mutex<Vec<i64>>>);

impl Late {
    fn ran(&self, due: Instant) {
        let now = Instant::now();
        let late = now.duration_since(due).as_nanos() as i64 - due.duration_since(now).as_nanos() as i64;
        self.0.lock().expect("no panic").push(late);
    }
}

type Done = Pin<Box<dyn Future<Output = ()>>>;

/// A scheduler under test.
trait Contender {
    /// Puts a job.
    fn put(&mut self, due: Instant) -> Done;
}

struct Ours {
    scheduler: Scheduler,
    begin: Instant,
}

impl Ours {
    fn new(late: Late) -> Self {
        let begin = Instant::now();
        let ran = move |nanos: u64, _: &Run| late.ran(begin + Duration::from_nanos(nanos));
        let scheduler = Scheduler::builder().register(Handler::new("h", ran)).start().expect("a scheduler");
        Self { scheduler, begin }
    }
}

impl Contender for Ours {
    fn put(&mut self, due: Instant) -> Done {
        let nanos = due.duration_since(self.begin).as_nanos() as u64;
        let after = due.saturating_duration_since(Instant::now());
        let put = self.scheduler.put_to("h", &nanos).due(after).send();
        Box::pin(async move { assert!(put.await.expect("a put").added().is_some()) })
    }
}

struct TokioCron {
    scheduler: JobScheduler,
    late: Late,
}

impl TokioCron {
    async fn new(late: Late) -> Self {
        let scheduler = JobScheduler::new().await.expect("a scheduler");
        scheduler.start().await.expect("a start");
        Self { scheduler, late }
    }
}

impl Contender for TokioCron {
    fn put(&mut self, due: Instant) -> Done {
        let (scheduler, late) = (self.scheduler.clone(), self.late.clone());
        let ran = move |_, _| {
            let late = late.clone();
            Box::pin(async move { late.ran(due) }) as Pin<Box<dyn Future<Output = ()> + Send>>
        };
        let job = Job::new_one_shot_at_instant_async(due, ran).expect("a job");
        Box::pin(async move { _ = scheduler.add(job).await.expect("a put") })
    }
}

struct Apalis {
    sender: UnboundedSender<Task<Instant>>,
}

impl Apalis {
    fn new(late: Late) -> Self {
        let (sender, receiver) = unbounded();
        let own: Box<dyn Sink<Task<Instant>, Error = MemoryStorageError> + Send + Sync + Unpin> =
            Box::new(sender.clone().sink_map_err(MemoryStorageError::from));
        let storage = MemoryStorage::new_with(MemorySink::new(Arc::new(AsyncMutex::new(own))), receiver.boxed());
        let ran = move |due: Instant| {
            let late = late.clone();
            async move { late.ran(due) }
        };
        let worker = WorkerBuilder::new("worker").backend(storage).build(ran);
        tokio::spawn(async move { worker.run().await });
        Self { sender }
    }
}

impl Contender for Apalis {
    fn put(&mut self, due: Instant) -> Done {
        let sender = self.sender.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until(due.into()).await;
            let id = TaskId::from_string(RandomId::default());
            let _ = sender.unbounded_send(Task::new(due).into_builder().task_id(id).build());
        });
        Box::pin(async {})
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % end
    }
}

/// The processor time of this process.
fn processor() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let own: u64 = stat.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0);
    let threads = threads("schedstat", |text| text.split(' ').next()?.parse().ok());
    Duration::from_nanos(threads.max(own))
}

/// The wake-ups of all threads but the main one.
fn wake_ups() -> u64 {
    let voluntary = |text: &str| {
        let line = text.lines().find(|line| line.starts_with("voluntary_ctxt_switches"))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let main = std::fs::read_to_string(format!("/proc/self/task/{}/status", std::process::id())).unwrap_or_default();
    threads("status", voluntary) - voluntary(&main).unwrap_or(0)
}

/// The sum over the threads, of a value in a file of each.
fn threads(file: &str, value: impl Fn(&str) -> Option<u64>) -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let of = |path: std::path::PathBuf| std::fs::read_to_string(path.join(file)).ok();
    tasks.filter_map(|task| value(&of(task.ok()?.path())?)).sum()
}

/// The quantile of sorted samples, in milliseconds.
fn quantile(sorted: &[i64], part: f64) -> f64 {
    let at = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(f64::NAN, |late| *late as f64 / 1e6)
}

/// Jobs at random instants, a second or more ahead of the puts. Returns when they have run, or some
/// seconds after the last is due.
async fn spread(contender: &mut dyn Contender, late: &Late, rate: u64, seconds: u64, name: &str) {
    late.0.lock().expect("no panic").clear();
    let (count, mut random) = (rate * seconds, Random(17));
    let (begun, used) = (Instant::now(), processor());
    let second = Duration::from_secs(1);
    for n in 0..count {
        // The puts keep pace with the due times.
        let slot = begun + Duration::from_nanos(n * 1_000_000_000 / rate);
        if n % 100 == 0 {
            tokio::time::sleep_until(slot.into()).await;
        }
        contender.put(slot + second + Duration::from_nanos(random.below(1_000_000_000))).await;
    }
    let put = begun.elapsed();
    let last = begun + second * (seconds as u32 + 2);
    let ran = || late.0.lock().expect("no panic").len() as u64;
    while ran() < count && Instant::now() < last + second * 5 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let used = (processor() - used).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
    let mut samples = late.0.lock().expect("no panic").clone();
    samples.sort_unstable();
    let early = samples.iter().filter(|&&late| late < 0).count();
    let (p50, p99) = (quantile(&samples, 0.5), quantile(&samples, 0.99));
    println!(
        "| {name} | {rate} a second | {} of {count}, {early} early | {p50:.3} | {p99:.3} | {used:.1} % | put in {:.1} s |",
        samples.len(),
        put.as_secs_f64()
    );
}

async fn rest(contender: &mut dyn Contender, seconds: u64, name: &str) {
    contender.put(Instant::now() + Duration::from_secs(3_600)).await;
    // The first seconds of a pool are not counted.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let (used, woken) = (processor(), wake_ups());
    std::thread::sleep(Duration::from_secs(seconds)); // the main thread, which is not counted
    let (used, woken) = (processor() - used, wake_ups() - woken);
    println!("| {name} | rest | | | | {} us | {woken} wake-ups in {seconds} s |", used.as_micros());
}

fn contend(name: &str, seconds: u64) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let late = Late::default();
        let mut contender: Box<dyn Contender> = match name {
            "ours" => Box::new(Ours::new(late.clone())),
            "tokio-cron-scheduler" => Box::new(TokioCron::new(late.clone()).await),
            "apalis" => Box::new(Apalis::new(late.clone())),
            _ => panic!("no contender is called {name}"),
        };
        rest(&mut *contender, seconds, name).await;
        spread(&mut *contender, &late, 100, seconds, name).await;
        spread(&mut *contender, &late, 10_000, seconds, name).await;
    });
    std::process::exit(0);
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name, seconds] = &arguments[..]
        && flag == "--one"
    {
        contend(name, seconds.parse().expect("seconds"));
    }
    let seconds = arguments.first().map_or(Ok(10), |text| text.parse::<u64>()).expect("a number of seconds");
    let all = ["ours", "tokio-cron-scheduler", "apalis"].map(str::to_owned);
    let names = if arguments.len() > 1 { &arguments[1..] } else { &all[..] };
    println!("| contender | work | ran | p50, ms late | p99, ms late | processor | |");
    println!("|---|---|---|---|---|---|---|");
    let program = std::env::current_exe().expect("this program");
    for name in names {
        let status = Command::new(&program).args(["--one", name, &seconds.to_string()]).status();
        assert!(status.expect("a process").success(), "{name} failed");
    }
}
