//! The cost of firing many timers together. Claim: the more timers fire together, the less each
//! timer costs. The lateness in a storm is no more than the time to run the callbacks.
//!
//! One-shots are due at random within a second, or all at the same instant. The processor time is
//! the time of all threads of the pool, from the first due point to the last callback: sweeping,
//! handing over, running, freeing. It includes the callback, which reads the clock and stores its
//! lateness; the last row prints this cost alone. Criterion cannot measure such a run, so this
//! bench prints its own table.

#[path = "common/mod.rs"]
mod common;

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use timerqueue::{OnceTimer, Runtime};

use self::common::{Random, cpu_of_others_ns, is_bench_run, quantile};

const NOT_FIRED: u64 = u64::MAX;
const EARLY: u64 = u64::MAX - 1;

/// The result of a storm.
struct Outcome {
    create_ns: f64,
    cpu_ns: f64,
    /// Sorted.
    late_ns: Vec<u64>,
    threads: usize,
}

/// Makes `n` one-shots, which are due within `span` after all have been made.
fn storm(runtime: &Runtime, n: usize, span: Duration) -> Outcome {
    let late: &'static [AtomicU64] = (0..n).map(|_| AtomicU64::new(NOT_FIRED)).collect::<Vec<_>>().leak();
    let mut random = Random::new(11);
    let offsets: Vec<_> = (0..n).map(|_| random.between(Duration::ZERO, span + Duration::from_nanos(1))).collect();
    let fired_before = runtime.metrics().fired();

    // Leaves enough time to make all timers.
    let first_due = runtime.now() + Duration::from_millis(100) + Duration::from_micros(1) * n as u32;
    let start = Instant::now();
    for (late, offset) in late.iter().zip(offsets) {
        let due = (first_due + offset) - runtime.now();
        OnceTimer::on(runtime, due, move |tick| {
            let (now, scheduled) = (tick.now(), tick.scheduled());
            let ns = if now < scheduled { EARLY } else { (now - scheduled).as_nanos() as u64 };
            late.store(ns, Ordering::Relaxed);
        })
        .detach();
    }
    let create = start.elapsed();
    assert!(runtime.now() < first_due, "all were made before the first was due");
    assert_eq!(runtime.metrics().active, n, "all are pending");

    let cpu_before = cpu_of_others_ns();
    let mut threads = runtime.metrics().threads.alive;
    while runtime.metrics().fired() - fired_before < n as u64 || runtime.metrics().active > 0 {
        std::thread::sleep(Duration::from_millis(1));
        threads = threads.max(runtime.metrics().threads.alive);
    }
    let cpu = cpu_of_others_ns() - cpu_before;

    // `fired` counts callbacks begun; the last callback may still run.
    let mut late_ns = Vec::with_capacity(n);
    for late in late {
        while late.load(Ordering::Relaxed) == NOT_FIRED {
            std::hint::spin_loop();
        }
        assert_ne!(late.load(Ordering::Relaxed), EARLY, "no timer fires early");
        late_ns.push(late.load(Ordering::Relaxed));
    }
    late_ns.sort_unstable();
    Outcome { create_ns: per(create, n), cpu_ns: cpu as f64 / n as f64, late_ns, threads }
}

fn per(time: Duration, n: usize) -> f64 {
    time.as_nanos() as f64 / n as f64
}

/// The cost of the callback alone: two readings of the clock and a store.
fn callback_alone(runtime: &Runtime, n: usize) -> f64 {
    let late = AtomicU64::new(0);
    let start = Instant::now();
    for _ in 0..n {
        let scheduled = black_box(runtime.now());
        late.store((runtime.now() - scheduled).as_nanos() as u64, Ordering::Relaxed);
    }
    per(start.elapsed(), 2 * n)
}

fn main() {
    let runtime = Runtime::builder().start().expect("the runtime starts");
    let (sizes, times): (&[usize], _) =
        if is_bench_run() { (&[1_000, 10_000, 100_000, 1_000_000], 3) } else { (&[100], 1) };
    println!("Best of {times} by processor time; lateness of that run.\n");
    println!("| timers | due within | create, ns | CPU per timer, ns | late p50, us | p99, us | max, us | threads |");
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|");
    for span in [Duration::from_secs(1), Duration::ZERO] {
        for &n in sizes {
            let runs = (0..times).map(|_| storm(&runtime, n, span));
            let best = runs.min_by(|a, b| a.cpu_ns.total_cmp(&b.cpu_ns)).expect("at least one");
            let late = |q| quantile(&best.late_ns, q) as f64 / 1e3;
            println!(
                "| {n} | {span:?} | {:.0} | {:.0} | {:.1} | {:.1} | {:.1} | {} |",
                best.create_ns,
                best.cpu_ns,
                late(0.5),
                late(0.99),
                late(1.0),
                best.threads
            );
        }
    }
    println!("\nThe clock read that each callback makes costs {:.0} ns by itself.", callback_alone(&runtime, 100_000));
}
