//! The cost of creating and disposing a timer. Claim: creating, arming and disposing a timer that
//! does not fire costs one allocation, two short lock sections and one reading of the clock, for
//! any number of pending timers. Threads on different cores do not slow each other down.
//!
//! Measured against the baseline of exactly these steps ([`baseline`]), in the same run, with 0,
//! 10,000 and 1,000,000 timers pending, on one thread and on two. The pending timers lie in the
//! same windows as the measured timers, half of them in the queue of each used core. They are
//! changed to later before each measurement, and never fire.

#[path = "common/baseline.rs"]
mod baseline;
#[path = "common/mod.rs"]
mod common;
// the baseline needs the list and the node only
#[allow(dead_code, unused_imports, unreachable_pub)]
#[path = "../src/queue/mod.rs"]
mod queue;
#[allow(dead_code, unused_imports)]
#[path = "../src/sync.rs"]
mod sync;
#[allow(dead_code, unused_imports, unreachable_pub)]
#[path = "../src/sys/mod.rs"]
mod sys;
#[allow(dead_code, unused_imports, unreachable_pub)]
#[path = "../src/time.rs"]
mod time;

use std::hint::black_box;
use std::time::{Duration, Instant};

use timerqueue::{Runtime, Timer};

use self::baseline::Baseline;
use self::common::{Case, Random, measure, on_cores};

const DUE: Duration = Duration::from_secs(30);
/// The number of younger timers when a timer is disposed.
const LAG: usize = 10_000;
const CORES: usize = 2;

/// A runtime with timers pending.
struct Stage {
    runtime: Runtime,
    pending: Vec<Timer>,
}

impl Stage {
    fn new(pending: usize) -> Self {
        let runtime = Runtime::builder().start().expect("the runtime starts");
        let made = parking_lot::Mutex::new(Vec::with_capacity(pending));
        on_cores(CORES, |_| {
            let timers: Vec<_> = (0..pending / CORES).map(|_| timer(&runtime, DUE)).collect();
            made.lock().extend(timers);
            Duration::ZERO
        });
        let stage = Self { runtime, pending: made.into_inner() };
        assert_eq!(stage.pending.len(), pending);
        stage
    }

    /// Changes the pending timers to later, into the window of a timer due in 30 s.
    fn refresh(&self) {
        let mut random = Random::new(7);
        for timer in &self.pending {
            timer.change(random.between(Duration::from_secs(28), Duration::from_secs(50)), Duration::ZERO);
        }
        assert_eq!(self.runtime.metrics().active, self.pending.len(), "exactly these are pending");
    }
}

/// A timer with a callback of one word, the common size.
fn timer(runtime: &Runtime, due: Duration) -> Timer {
    let word = black_box(1u64);
    Timer::on(runtime, due, Duration::ZERO, move |_| {
        black_box(word);
    })
}

fn pairs(runtime: &Runtime, times: u64) -> Duration {
    let start = Instant::now();
    for _ in 0..times {
        drop(black_box(timer(runtime, DUE)));
    }
    start.elapsed()
}

fn pairs_disposed_first(runtime: &Runtime, times: u64) -> Duration {
    let start = Instant::now();
    for _ in 0..times {
        let timer = black_box(timer(runtime, DUE));
        timer.dispose();
        drop(black_box(timer));
    }
    start.elapsed()
}

fn with_lag(runtime: &Runtime, times: u64) -> Duration {
    let mut kept: Vec<_> = (0..LAG).map(|_| timer(runtime, DUE)).collect();
    let (start, mut next) = (Instant::now(), 0);
    for _ in 0..times {
        drop(std::mem::replace(&mut kept[next], timer(runtime, DUE)));
        next = if next + 1 == LAG { 0 } else { next + 1 };
    }
    start.elapsed()
}

fn main() {
    let mut criterion = common::criterion();
    let baseline = &Baseline::new();
    let levels: &[usize] = if common::is_bench_run() { &[0, 10_000, 1_000_000] } else { &[0, 1_000] };
    for &pending in levels {
        let stage = &Stage::new(pending);
        let mut cases = Vec::new();
        for threads in [1, CORES] {
            let mut add = |name: &str, run: fn(&Baseline, &Runtime, u64) -> Duration| {
                let name = format!("{name}, {threads} thread(s)");
                cases.push(Case::new(name, move |times| on_cores(threads, |_| run(baseline, &stage.runtime, times))));
            };
            add("baseline", |baseline, _, times| baseline.without_allocation(times));
            add("baseline with malloc", |baseline, _, times| baseline.with_allocation(times));
            add("create, drop", |_, runtime, times| pairs(runtime, times));
            add("create, dispose, drop", |_, runtime, times| pairs_disposed_first(runtime, times));
            add("baseline with malloc, lag 10,000", |baseline, _, times| baseline.with_lag(LAG, times));
            add("create, drop the one 10,000 before", |_, runtime, times| with_lag(runtime, times));
        }
        measure(&mut criterion, &format!("{pending} pending"), &mut cases, || stage.refresh());
        stage.refresh();
        assert_eq!(stage.runtime.metrics().fired(), 0, "nothing came due");
    }
    criterion.final_summary();
}
