//! The scheduler in memory, on real time: a million pending jobs, and the lateness of 10,000 jobs a
//! second.
//!
//! A plain program, since the figures are those of single long runs: `cargo bench -p
//! timerqueue-scheduler --bench scheduler`. Arguments: the number of pending jobs, and the seconds
//! of the second part.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use timerqueue::Runtime;
use timerqueue_scheduler::{Handler, Run, Scheduler, State};

/// Jobs of a second.
const RATE: u64 = 10_000;

/// The resident memory of the process, in bytes.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4_096
}

/// Nanoseconds for each of `count` calls.
fn each(what: &str, count: u64, mut call: impl FnMut(u64)) {
    let begun = Instant::now();
    (0..count).for_each(&mut call);
    println!("{what}: {} ns", begun.elapsed().as_nanos() / u128::from(count.max(1)));
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let is_test = std::env::args().any(|argument| argument == "--test");
    let pending =
        arguments.next().and_then(|text| text.parse().ok()).unwrap_or(if is_test { 1_000 } else { 1_000_000 });
    let seconds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(if is_test { 1 } else { 10 });
    let runtime = Runtime::builder().start().expect("a runtime");
    let (late, done): (Arc<Mutex<Vec<Duration>>>, _) = (Arc::default(), Arc::new(AtomicU64::new(0)));
    let (samples, count) = (Arc::clone(&late), Arc::clone(&done));
    let handler = Handler::new("h", move |_: u64, run: &Run| {
        let lateness = SystemTime::now().duration_since(run.due()).expect("never early");
        samples.lock().unwrap().push(lateness);
        count.fetch_add(1, Ordering::Relaxed);
    });
    let scheduler = Scheduler::builder().runtime(&runtime).register(handler).start().expect("a scheduler");

    let hour = Duration::from_secs(3_600);
    let before = memory();
    each(&format!("put, {pending} jobs due in hours"), pending, |n| {
        let due = hour + Duration::from_micros(n * 7_919 % 3_600_000_000);
        let _ = scheduler.put_to("h", &n).key(&format!("far/{n}")).due(due).send().wait().expect("put");
    });
    println!("memory: {} bytes a job", (memory() - before) / pending.max(1));
    let some = pending.min(100_000);
    each("move", some, |n| _ = scheduler.move_to(&format!("far/{n}"), 2 * hour).wait().expect("move"));
    each("look up", some, |n| _ = scheduler.get(&format!("far/{n}")).wait().expect("get"));

    // Jobs at a steady rate, put a second ahead by this thread, beside those that wait.
    let total = RATE * seconds;
    let begin = SystemTime::now() + Duration::from_millis(500);
    for n in 0..total {
        let due = begin + Duration::from_micros(n * 1_000_000 / RATE);
        let ahead = due.duration_since(SystemTime::now()).unwrap_or_default();
        if ahead > Duration::from_secs(1) {
            std::thread::sleep(ahead - Duration::from_secs(1));
        }
        let _ = scheduler.put_to("h", &n).key(&format!("near/{n}")).due(due).send().wait().expect("put");
    }
    while done.load(Ordering::Relaxed) < total {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut late = late.lock().unwrap();
    late.sort_unstable();
    let at = |part: f64| late[((late.len() - 1) as f64 * part) as usize];
    println!(
        "{RATE} jobs a second for {seconds} s, with {pending} pending: late by {:?} (p50), {:?} (p99), {:?} (max)",
        at(0.5),
        at(0.99),
        at(1.0)
    );

    each("cancel", pending, |n| _ = scheduler.cancel(&format!("far/{n}")).wait().expect("cancel"));
    assert_eq!(scheduler.stats().wait().expect("stats").jobs.of(State::Waiting), 0);
}
