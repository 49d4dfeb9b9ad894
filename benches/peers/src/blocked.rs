//! W7: callbacks that block, and their effect on periodic timers.
//!
//! Ground rules. Each contender has its own process. Periodic timers of 10 ms tick all the time. At
//! a single instant, blocking callbacks come due. They sleep until two seconds after this instant,
//! as a callback does that calls a slow function. A callback that starts after the two seconds does
//! not sleep, so a contender with one thread stands still for two seconds, not for 64 times as
//! long. In the end all blocking callbacks must have run.
//!
//! The excess is the gap between two ticks minus the period; a gap still open at the end counts
//! with its length so far. Quantiles are over time, not over gaps: each gap is weighted by its
//! length. Otherwise the burst of ticks after a long gap would hide the gap.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::child::{Job, Outcome};
use crate::contenders::{self, ALL_BUT_THREADS};
use crate::measure::{Session, clock_ns};

pub(crate) const ID: &str = "W7";
pub(crate) const WHAT: &str = "blocked";
const N: usize = 64;
const OTHERS: usize = 16;
const PERIOD: Duration = Duration::from_millis(10);
/// The periodic timers tick alone for this time.
const ALONE: Duration = Duration::from_millis(500);
const BLOCK: Duration = Duration::from_secs(2);
/// After this time the periodic timers have caught up, or never do.
const AFTER: Duration = Duration::from_millis(300);
const METRICS: [&str; 5] =
    ["excess gap p50, ms", "excess gap p99, ms", "excess gap worst, ms", "ticks lost, %", "blocked at once"];

/// A periodic timer.
struct Other {
    last: AtomicU64,
    /// Between ticks, in nanoseconds.
    gaps: Mutex<Vec<u64>>,
}

impl Other {
    fn tick(&self) {
        let now = clock_ns();
        let last = self.last.swap(now, Ordering::Relaxed);
        self.gaps.lock().push(now.saturating_sub(last));
    }
}

/// The quantile `q` of the excess, weighted by time. `sorted`: excess and length of each gap, by
/// excess.
fn at_instant(sorted: &[(u64, u64)], q: f64) -> u64 {
    let total: u64 = sorted.iter().map(|&(_, gap)| gap).sum();
    let mut before = 0;
    let there = sorted.iter().find(|&&(_, gap)| {
        before += gap;
        before as f64 >= q * total as f64
    });
    there.or(sorted.last()).expect("there are gaps").0
}

/// The run of a contender, in the child process.
pub(crate) fn child(contender: &str, n: usize) -> Outcome {
    let timers = contenders::start(contender);
    let begin = clock_ns();
    let others: Vec<Arc<Other>> = (0..OTHERS)
        .map(|_| Arc::new(Other { last: AtomicU64::new(begin), gaps: Mutex::new(Vec::with_capacity(1 << 12)) }))
        .collect();
    for (i, other) in others.iter().enumerate() {
        let other = Arc::clone(other);
        timers.every(PERIOD + PERIOD * i as u32 / OTHERS as u32, PERIOD, Box::new(move || other.tick()));
    }
    std::thread::sleep(ALONE);
    for other in &others {
        assert!(other.gaps.lock().len() > 10, "{contender}: the periodic timers tick");
        other.gaps.lock().clear();
    }

    let (due, end) = (Instant::now() + ALONE, Instant::now() + ALONE + BLOCK);
    let (now, most, done) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let start = Instant::now();
    for _ in 0..n {
        let (now, most, done) = (Arc::clone(&now), Arc::clone(&most), Arc::clone(&done));
        let block = move || {
            let blocked = now.fetch_add(1, Ordering::Relaxed) + 1;
            most.fetch_max(blocked, Ordering::Relaxed);
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
            now.fetch_sub(1, Ordering::Relaxed);
            done.fetch_add(1, Ordering::Relaxed);
        };
        timers.once(due.saturating_duration_since(Instant::now()), Box::new(block));
    }
    std::thread::sleep((end + AFTER).saturating_duration_since(Instant::now()));
    let stop = clock_ns();
    let mut excess = Vec::new();
    let mut ticks = 0;
    for other in &others {
        let mut gaps = other.gaps.lock();
        ticks += gaps.len();
        gaps.push(stop.saturating_sub(other.last.load(Ordering::Relaxed)));
        excess.extend(gaps.drain(..).map(|gap| (gap.saturating_sub(PERIOD.as_nanos() as u64), gap)));
    }
    let due = start.elapsed().as_secs_f64() / PERIOD.as_secs_f64() * OTHERS as f64;
    while done.load(Ordering::Relaxed) < n {
        assert!(start.elapsed() < 10 * BLOCK, "{contender}: all blocked callbacks run");
        std::thread::sleep(PERIOD);
    }
    excess.sort_unstable();
    let ms = |q| at_instant(&excess, q) as f64 / 1e6;
    let lost = (1.0 - ticks as f64 / due) * 1e2;
    let values = [ms(0.5), ms(0.99), ms(1.0), lost, most.load(Ordering::Relaxed) as f64];
    Outcome { figures: METRICS.into_iter().zip(values).collect(), quantiles: None }
}

/// A round: every contender.
pub(crate) fn round(session: &mut Session) {
    let job = Job {
        id: ID,
        title: format!("{N} callbacks block for 2 s; {OTHERS} periodic timers of 10 ms beside them"),
        note: "Tasks block as callbacks do. Executors advise against this: blocking work belongs on threads of its own. Our \
               `Interval` skips missed ticks; the intervals of tokio and async-io catch up.",
        what: WHAT,
        n: N,
        span_us: 0,
        metrics: &METRICS,
        unit: "",
        together: false,
    };
    job.run(session, &[&ALL_BUT_THREADS[..], &[contenders::THREADS]].concat());
}
