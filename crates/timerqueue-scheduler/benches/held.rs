//! A node under a steady load, for `.ci/churn held`: what puts and runs cost by the minute.
//!
//! A plain program. Arguments: the address of a server, jobs a second, seconds. A line each minute
//! has the jobs that were run, and the median time of a put, from its call to its answer, and of a
//! job, from its due time to the first line of its handler.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use timerqueue::Runtime;
use timerqueue_scheduler::store::PostgresOptions;
use timerqueue_scheduler::{Handler, Run, Scheduler};

/// Calls a second.
const CALLS: u32 = 50;
const MINUTE: Duration = Duration::from_secs(60);

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let [address, rate, seconds] = &arguments[..] else { return println!("run by .ci/churn held") };
    let (rate, seconds): (u32, u64) = (rate.parse().expect("a rate"), seconds.parse().expect("seconds"));
    let store = PostgresOptions::new().connect(Runtime::global(), &**address).expect("a server");
    let late = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&late);
    let handler = Handler::new("h", move |_: String, run: &Run| {
        let late = std::time::SystemTime::now().duration_since(run.due()).unwrap_or_default();
        noted.lock().expect("a list").push(late);
    });
    let node = Scheduler::builder().store(store).register(handler.parallel(64)).start().expect("a node");
    let (begun, mut minute, mut puts) = (Instant::now(), 1, Vec::new());
    for call in 0.. {
        let at = Duration::from_secs(1) * call / CALLS;
        std::thread::sleep((begun + at).saturating_duration_since(Instant::now()));
        let passed = begun.elapsed();
        if passed >= MINUTE * minute || passed.as_secs() >= seconds {
            let mut late = std::mem::take(&mut *late.lock().expect("a list"));
            let ran = late.len();
            println!("{ran} runs, put {:.1} ms, lateness {:.1} ms", median(&mut puts), median(&mut late));
            (minute, puts) = (minute + 1, Vec::new());
        }
        if passed.as_secs() >= seconds {
            return;
        }
        let jobs = (0..rate.div_ceil(CALLS)).map(|n| node.put_to("h", &"ann").key(&format!("order/{call}/{n}")));
        let asked = Instant::now();
        let placed = node.put_many(jobs).wait().expect("puts");
        assert!(placed.iter().all(|placed| placed.as_ref().is_ok_and(|placed| placed.added().is_some())));
        puts.push(asked.elapsed());
    }
}
