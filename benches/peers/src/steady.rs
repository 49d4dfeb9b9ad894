//! W8: how steadily one periodic timer ticks.
//!
//! Ground rules. A process for each contender, and nothing else in it. Jitter is how far the gap between two ticks is from the
//! period, either way. Drift is how much later the last tenth of the ticks is than the first, measured against a schedule
//! of whole periods from the first tick; a lost tick shifts everything after it and is counted as well. The baseline is a
//! periodic timerfd in an epoll set.

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

/// One contender.
pub(crate) fn child(contender: &str) -> Outcome {
    let stamps = Arc::new(Mutex::new(Vec::with_capacity(2 * TICKS)));
    let own = Arc::clone(&stamps);
    let tick = Box::new(move || own.lock().push(clock_ns()));
    let (begin, begin_ns) = (Instant::now(), clock_ns());
    if contender == bare::NAME {
        bare::every(FIRST, PERIOD, tick);
    } else {
        // What was started has to last.
        std::mem::forget({
            let timers = contenders::start(contender);
            timers.every(FIRST.saturating_sub(begin.elapsed()), PERIOD, tick);
            timers
        });
    }
    // Half a period after the last one is due.
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

/// One round: every contender.
pub(crate) fn round(session: &mut Session) {
    let job = Job {
        id: ID,
        title: format!("a periodic timer of 10 ms for {TICKS} ticks"),
        note: "A process for each. Who counts in milliseconds but from its own beginning ticks a constant bit late, which is \
               neither drift nor jitter. Who sleeps for what is left until the next due point does not drift either. Our \
               `Timer` takes up its schedule anew when it has missed a whole period, as .NET's does (`MissedTicks::Rebase`): \
               on a busy machine that is drift.",
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
