//! W8: drift and jitter of a single periodic timer.
//!
//! Ground rules. Each contender has its own process, with no further timer. Jitter is the absolute
//! difference of the period and the gap between two ticks. Drift is the lateness of the last tenth
//! of the ticks minus the lateness of the first tenth, against a schedule of whole periods from the
//! first tick. A lost tick shifts all later ticks, and is also counted. The baseline is a periodic
//! timerfd in an epoll set.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::bare;
use crate::child::{Job, Outcome};
use crate::contenders::{self, ALL_BUT_THREADS, DELAY_QUEUE, OURS_LEEWAY};
use crate::measure::{Session, clock_ns, median, quantile};
use crate::report::quantiles;

pub(crate) const ID: &str = "W8";
pub(crate) const WHAT: &str = "steady";
const PERIOD: Duration = Duration::from_millis(10);
const FIRST: Duration = Duration::from_millis(100);
const TICKS: usize = 1_000;
const METRICS: [&str; 5] = ["drift, us", "jitter p50, us", "jitter p99, us", "jitter max, us", "ticks lost"];

/// The run of a contender, in the child process.
pub(crate) fn child(contender: &str) -> Outcome {
    let stamps = Arc::new(Mutex::new(Vec::with_capacity(2 * TICKS)));
    let own = Arc::clone(&stamps);
    let tick = Box::new(move || own.lock().push(clock_ns()));
    let (begin, begin_ns) = (Instant::now(), clock_ns());
    if contender == bare::NAME {
        bare::every(FIRST, PERIOD, tick);
    } else {
        // The contender must last until the process ends.
        std::mem::forget({
            let timers = contenders::start(contender);
            timers.every(FIRST.saturating_sub(begin.elapsed()), PERIOD, tick);
            timers
        });
    }
    // Ends half a period after the last tick is due.
    let span = FIRST + PERIOD * TICKS as u32 - PERIOD / 2;
    std::thread::sleep((begin + span).saturating_duration_since(Instant::now()));
    let mut stamps = std::mem::take(&mut *stamps.lock());
    stamps.retain(|&stamp| stamp - begin_ns <= span.as_nanos() as u64);
    assert!(stamps.len() > TICKS / 2, "{contender}: it ticks");

    let period = PERIOD.as_nanos() as i64;
    let mut jitter: Vec<i64> = stamps.windows(2).map(|pair| (pair[1] as i64 - pair[0] as i64 - period).abs()).collect();
    jitter.sort_unstable();
    let late: Vec<f64> =
        (0..).zip(&stamps).map(|(i, &stamp)| (stamp as i64 - stamps[0] as i64 - i * period) as f64).collect();
    let middle = |part: &[f64]| {
        let mut sorted = part.to_vec();
        sorted.sort_by(f64::total_cmp);
        median(&sorted)
    };
    let tenth = late.len() / 10;
    let drift = (middle(&late[late.len() - tenth..]) - middle(&late[..tenth])) / 1e3;
    let us = |q| quantile(&jitter, q) as f64 / 1e3;
    let values = [drift, us(0.5), us(0.99), us(1.0), TICKS as f64 - stamps.len() as f64];
    Outcome { figures: METRICS.into_iter().zip(values).collect(), quantiles: Some(quantiles(&jitter, 1e3)) }
}

/// A round: every contender.
pub(crate) fn round(session: &mut Session) {
    let job = Job {
        id: ID,
        title: format!("a periodic timer of 10 ms for {TICKS} ticks"),
        note: "A process for each. A contender that counts in milliseconds from its own start ticks late by a constant, which \
               is neither drift nor jitter. A contender that sleeps for the rest of the time until the next due point does \
               not drift either. Our `Timer` begins a new schedule after a missed period, as .NET's does \
               (`MissedTicks::Rebase`): on a busy machine this shows as drift.",
        what: WHAT,
        n: 1,
        span_us: 0,
        metrics: &METRICS,
        unit: "us of jitter",
        together: false,
    };
    let mut contenders = ALL_BUT_THREADS.to_vec();
    contenders.retain(|contender| ![OURS_LEEWAY, DELAY_QUEUE].contains(contender));
    contenders.extend([contenders::THREADS, bare::NAME]);
    job.run(session, &contenders);
}
