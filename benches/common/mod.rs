//! Tools of the benches: random numbers, quantiles, pinned threads, and side-by-side measurement.
//!
//! Ground rules. A [`Case`] runs its operation a given number of times and returns the time taken,
//! without the set-up. The same case serves criterion (absolute figures, history) and
//! [`side_by_side`] (ratios). The ratios matter most: each ratio is taken within a round, between
//! cases that run right after each other, and the median of the rounds is printed. So load of the
//! machine changes both sides of a ratio alike.
//!
//! Without `--bench` (as in `cargo test --benches`) each case runs once, with a small size, as a
//! test that it works.

#![allow(dead_code)] // each bench uses only a part

use std::sync::Barrier;
use std::time::{Duration, Instant};

use criterion::Criterion;

/// Rounds of [`side_by_side`]; odd, so the median is a value of a round.
const ROUNDS: usize = 41;
/// Duration of a case in a round: short, so few rounds are disturbed and the median is undisturbed.
const ROUND: Duration = Duration::from_millis(4);

/// Whether to measure, rather than only to test that the benches work.
pub(crate) fn is_bench_run() -> bool {
    let mut bench = false;
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--bench" => bench = true,
            "--test" | "--list" => return false,
            _ => {}
        }
    }
    bench
}

/// Criterion with settings under which a whole file of benches takes less than a minute.
pub(crate) fn criterion() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(300))
        .configure_from_args()
}

/// `CLOCK_MONOTONIC`, read as the crate reads it.
#[allow(unsafe_code)] // a system call
pub(crate) fn clock_ns() -> u64 {
    clock_of(libc::CLOCK_MONOTONIC)
}

/// Processor time of the process so far.
pub(crate) fn cpu_ns() -> u64 {
    clock_of(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Measures the processor time of the calling thread, so without the load of the machine. For work
/// that never waits.
pub(crate) struct Stopwatch(u64);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(clock_of(libc::CLOCK_THREAD_CPUTIME_ID))
    }

    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(clock_of(libc::CLOCK_THREAD_CPUTIME_ID) - self.0)
    }
}

/// Processor time of the process without the calling thread.
pub(crate) fn cpu_of_others_ns() -> u64 {
    clock_of(libc::CLOCK_PROCESS_CPUTIME_ID) - clock_of(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[allow(unsafe_code)] // a system call
fn clock_of(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure lives through the call.
    let result = unsafe { libc::clock_gettime(clock, &mut time) };
    assert_eq!(result, 0, "clock {clock} can be read");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// xorshift64*: good enough to spread due points, and the same in every run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((u128::from(self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)) * u128::from(end)) >> 64) as u64
    }

    pub(crate) fn between(&mut self, from: Duration, to: Duration) -> Duration {
        from + Duration::from_nanos(self.below((to - from).as_nanos() as u64))
    }
}

/// The quantile `q` (0 to 1) of `sorted`.
pub(crate) fn quantile<T: Copy>(sorted: &[T], q: f64) -> T {
    sorted[((sorted.len() - 1) as f64 * q) as usize]
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(values, 0.5)
}

/// Runs `work` on `threads` threads at once, each pinned to a core of its own. Returns the mean of
/// the times that `work` returns.
pub(crate) fn on_cores(threads: usize, work: impl Fn(usize) -> Duration + Sync) -> Duration {
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    let start = Barrier::new(threads);
    let total: Duration = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|i| {
                let (core, start, work) = (cores.get(i % cores.len().max(1)), &start, &work);
                scope.spawn(move || {
                    if let Some(&core) = core {
                        core_affinity::set_for_current(core);
                    }
                    start.wait();
                    work(i)
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("a bench thread does not panic")).sum()
    });
    total / threads as u32
}

/// An operation to measure.
pub(crate) struct Case<'a> {
    name: String,
    run: Box<dyn FnMut(u64) -> Duration + 'a>,
}

impl<'a> Case<'a> {
    /// `run` does the operation the given number of times and returns the time taken.
    pub(crate) fn new(name: impl Into<String>, run: impl FnMut(u64) -> Duration + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    /// An operation without set-up.
    pub(crate) fn of(name: impl Into<String>, mut operation: impl FnMut() + 'a) -> Self {
        Self::new(name, move |times| {
            let start = Instant::now();
            for _ in 0..times {
                operation();
            }
            start.elapsed()
        })
    }
}

/// Measures the cases with criterion, then side by side. Calls `prepare` before each measurement.
pub(crate) fn measure(criterion: &mut Criterion, title: &str, cases: &mut [Case<'_>], mut prepare: impl FnMut()) {
    let mut group = criterion.benchmark_group(title);
    for case in &mut *cases {
        prepare();
        group.bench_function(&case.name, |bencher| bencher.iter_custom(|times| (case.run)(times)));
    }
    group.finish();
    if is_bench_run() {
        prepare();
        side_by_side(title, cases);
    }
}

/// Runs all cases in turn, round after round, and prints a table: time per operation, and ratio to
/// the first case. Both are given for the median round and for the best round.
pub(crate) fn side_by_side(title: &str, cases: &mut [Case<'_>]) {
    let times: Vec<u64> = cases.iter_mut().map(|case| times_per_round(&mut case.run)).collect();
    let mut ns = vec![Vec::with_capacity(ROUNDS); cases.len()];
    let mut ratios = ns.clone();
    for round in 0..ROUNDS {
        for turn in 0..cases.len() {
            let i = (round + turn) % cases.len();
            ns[i].push((cases[i].run)(times[i]).as_nanos() as f64 / times[i] as f64);
        }
        for i in 0..cases.len() {
            ratios[i].push(ns[i][round] / ns[0][round]);
        }
    }
    println!("\n| {title}, side by side | ns, median | ns, best | times the first, median | best |");
    println!("|---|---:|---:|---:|---:|");
    let best_of_first = ns[0].iter().copied().fold(f64::INFINITY, f64::min);
    for ((case, ns), ratios) in cases.iter().zip(&mut ns).zip(&mut ratios) {
        let (typical, ratio) = (median(ns), median(ratios));
        let best = ns[0]; // `median` has sorted them
        println!("| {} | {typical:.1} | {best:.1} | {ratio:.2} | {:.2} |", case.name, best / best_of_first);
    }
    println!();
}

/// The number of operations that fill a round.
fn times_per_round(run: &mut dyn FnMut(u64) -> Duration) -> u64 {
    let mut times = 1;
    loop {
        let took = run(times);
        if took >= ROUND / 4 {
            return ((times as f64 * ROUND.as_secs_f64() / took.as_secs_f64()) as u64).max(1);
        }
        times *= 4;
    }
}
