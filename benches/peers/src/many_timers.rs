//! W4 beside many timers: lateness of sparse timers, and its cost, while thousands of timers are
//! pending or tick.
//!
//! Ground rules. Each contender has its own process. A thread makes the sparse timer, 1 to 10 ms
//! ahead, and makes it again when it has fired; lateness is taken in the contender's callback or
//! task. Processor time and wake-ups are of the whole process. Periodic timers begin at random
//! points of the first period, and their ticks are counted; too few ticks are shown as lost.
//! Pending timers are due minutes later, and all must still be pending in the end. The baseline is
//! a bare timerfd without further timers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::bare::{self, Bare};
use crate::child::{Job, Outcome};
use crate::contenders::{self, ALL_BUT_THREADS, Contender};
use crate::idle;
use crate::measure::{Random, Session, cpu_ns, quantile, sleeps};
use crate::report::quantiles;
use crate::sparse::{self, FURTHEST, ID, NEAREST};

pub(crate) const TICKING: &str = "ticking";
pub(crate) const PENDING: &str = "pending";
const TICKERS: usize = 10_000;
const PERIOD: Duration = Duration::from_millis(100);
/// Time until the first tick, so all timers are made by then.
const SET_UP: Duration = Duration::from_secs(1);
const SLEEPERS: usize = 100_000;
pub(crate) const SPAN: Duration = Duration::from_secs(2);
const METRICS: [&str; 6] =
    ["late p50, us", "late p99, us", "early, %", "CPU ms per second", "thread wake-ups per second", "ticks lost, %"];

/// Starts periodic timers, and counts the ticks of each.
fn tickers(timers: &dyn Contender, n: usize, random: &mut Random) -> Arc<Vec<AtomicU32>> {
    let ticks: Arc<Vec<AtomicU32>> = Arc::new((0..n).map(|_| AtomicU32::new(0)).collect());
    let begin = Instant::now() + SET_UP;
    for i in 0..n {
        let ticks = Arc::clone(&ticks);
        let first = begin + random.between(Duration::ZERO, PERIOD);
        let tick = move || {
            ticks[i].fetch_add(1, Ordering::Relaxed);
        };
        timers.every(first.saturating_duration_since(Instant::now()), PERIOD, Box::new(tick));
    }
    // Waits a period more, so all timers have begun.
    std::thread::sleep((begin + 2 * PERIOD).saturating_duration_since(Instant::now()));
    ticks
}

/// The run of a contender, in the child process.
pub(crate) fn child(contender: &str, what: &str, n: usize) -> Outcome {
    let mut random = Random::new(13);
    if contender == bare::NAME {
        let bare = Bare::start();
        return observe(contender, &mut random, &[], &|wait| bare.sample(wait));
    }
    let timers = contenders::start(contender);
    let ticks = if what == TICKING { tickers(&*timers, n, &mut random) } else { Arc::default() };
    let held = (what == PENDING).then(|| idle::sleepers(&*timers, n, &mut random));
    let outcome = observe(contender, &mut random, &ticks, &|wait| sparse::sample(&*timers, wait));
    assert!(held.is_none_or(|held| held.load(Ordering::Relaxed) == n), "{contender}: all are pending still");
    // The timers must last until here; the process ends without dropping them.
    std::mem::forget(timers);
    outcome
}

fn observe(contender: &str, random: &mut Random, ticks: &[AtomicU32], sample: &dyn Fn(Duration) -> i64) -> Outcome {
    let ticked = || ticks.iter().map(|ticks| u64::from(ticks.load(Ordering::Relaxed))).sum::<u64>();
    let (before, cpu, asleep, start) = (ticked(), cpu_ns(), sleeps(), Instant::now());
    let mut late = Vec::new();
    while start.elapsed() < SPAN {
        late.push(sample(random.between(NEAREST, FURTHEST)));
    }
    let (cpu, asleep) = (cpu_ns() - cpu, sleeps() - asleep);
    let span = start.elapsed().as_secs_f64();
    let due = ticks.len() as f64 * span / PERIOD.as_secs_f64();
    let lost = if ticks.is_empty() { 0.0 } else { 1.0 - (ticked() - before) as f64 / due };
    assert!(ticks.iter().all(|ticks| ticks.load(Ordering::Relaxed) > 0), "{contender}: each of them ticks");

    late.sort_unstable();
    let us = |q| quantile(&late, q) as f64 / 1e3;
    let early = sparse::early(contender, &late);
    let values = [us(0.5), us(0.99), early * 1e2, cpu as f64 / 1e6 / span, asleep as f64 / span, lost * 1e2];
    let values = values.into_iter().take(if ticks.is_empty() { 5 } else { 6 });
    Outcome { figures: METRICS.into_iter().zip(values).collect(), quantiles: Some(quantiles(&late, 1e3)) }
}

/// A round: every contender, beside pending and beside periodic timers.
pub(crate) fn round(session: &mut Session) {
    let contenders = [&ALL_BUT_THREADS[..], &[bare::NAME]].concat();
    let job = |what, n, title, metrics, note| Job {
        id: ID,
        title,
        note,
        what,
        n,
        span_us: 0,
        metrics,
        unit: "us late",
        together: false,
    };
    let title = format!("lateness of a timer, 1 to 10 ms ahead, beside {SLEEPERS} pending");
    let note =
        "A process for each. With leeway, the sparse timer has leeway as well. The baseline has no further timers.";
    job(PENDING, SLEEPERS, title, &METRICS[..5], note).run(session, &contenders);
    let title = format!("lateness of a timer, 1 to 10 ms ahead, beside {TICKERS} periodic ones of 100 ms");
    let note = "A process for each. With leeway, all timers have leeway, also the sparse timer. tokio counts in whole \
                milliseconds; pingora-timeout counts in steps of ten, so it may be early. The baseline has no further timers.";
    job(TICKING, TICKERS, title, &METRICS, note).run(session, &[&contenders[..], &[contenders::THREADS]].concat());
}
