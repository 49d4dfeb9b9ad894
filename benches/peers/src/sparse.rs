//! W4: lateness of a lone timer.
//!
//! Ground rules. Each sample gives every contender the same wait, 1 to 10 ms, in turn and in random
//! order, since the lateness of a wake-up varies from day to day. The baseline is a bare timerfd in
//! an epoll set with a thread of its own. Lateness is taken where the contender's user code begins:
//! in the callback, in the task, or after `block_on`. Early samples are counted.

use std::sync::mpsc::channel;
use std::time::Duration;

use timerqueue::Delay;
use tokio::runtime;

use crate::bare::{self, Bare};
use crate::contenders::{self, Contender};
use crate::drivers::{self, Task};
use crate::measure::{Session, clock_ns, late_by, quantile};
use crate::place::wait_for;
use crate::report::{Row, quantiles};

pub(crate) const ID: &str = "W4";
const SAMPLES: usize = 80;
pub(crate) const NEAREST: Duration = Duration::from_millis(1);
pub(crate) const FURTHEST: Duration = Duration::from_millis(10);
const METRICS: [&str; 5] = ["late p50, us", "late p90, us", "late p99, us", "best, us", "early, %"];
const TITLE: &str = "lateness of a timer, 1 to 10 ms ahead, when no other one fires";

/// Starts a timer of this contender. Returns its lateness in nanoseconds, taken in the callback or
/// task.
pub(crate) fn sample(timers: &dyn Contender, wait: Duration) -> i64 {
    let (send, receive) = channel();
    let due = clock_ns() + wait.as_nanos() as u64;
    timers.once(wait, Box::new(move || send.send(late_by(due)).expect("the receiver waits")));
    receive.recv().expect("the timer fires")
}

/// The share of early samples in `sorted`. Panics for an early sample of a contender that promises
/// never to fire early.
pub(crate) fn early(contender: &str, sorted: &[i64]) -> f64 {
    let early = sorted.partition_point(|&late| late < 0);
    assert!(early == 0 || !contenders::never_early(contender), "{contender} is early");
    early as f64 / sorted.len() as f64
}

type Blocking = fn(&runtime::Runtime, Duration);

/// Contenders whose users block a thread. The deadline is computed before the call.
const BLOCKING: [(&str, Blocking); 5] = [
    ("timerqueue Delay, thread parked in block_on", |_, wait| {
        wait_for(Delay::new(wait));
    }),
    ("tokio sleep, current_thread, block_on", |runtime, wait| {
        runtime.block_on(async { tokio::time::sleep(wait).await });
    }),
    ("async-io Timer, block_on", |_, wait| {
        async_io::block_on(async_io::Timer::after(wait));
    }),
    ("futures-timer Delay, thread parked in block_on", |_, wait| wait_for(futures_timer::Delay::new(wait))),
    ("std::thread::sleep", |_, wait| std::thread::sleep(wait)),
];

/// Contenders that call back, or wake a task.
const CALLING: [&str; 9] = [
    contenders::OURS,
    contenders::OURS_BOOT,
    contenders::OURS_PORTABLE,
    contenders::OURS_PORTABLE_BOOT,
    contenders::TOKIO_MULTI,
    contenders::DELAY_QUEUE,
    contenders::PINGORA,
    contenders::WHEEL,
    contenders::HEAP,
];

enum Kind {
    Calling(Box<dyn Contender>),
    Blocking(Blocking),
    Baseline(Bare),
}

/// The contenders, started once.
pub(crate) struct Sparse {
    contenders: Vec<(&'static str, Kind)>,
    current: runtime::Runtime,
}

impl Sparse {
    pub(crate) fn start() -> Self {
        let mut contenders: Vec<_> =
            CALLING.into_iter().map(|name| (name, Kind::Calling(contenders::start(name)))).collect();
        contenders.push((bare::NAME, Kind::Baseline(Bare::start())));
        contenders.extend(BLOCKING.into_iter().map(|(name, block)| (name, Kind::Blocking(block))));
        let current = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
        Self { contenders, current }
    }

    fn sample(&self, kind: &Kind, wait: Duration) -> i64 {
        match kind {
            Kind::Calling(timers) => sample(&**timers, wait),
            Kind::Baseline(bare) => bare.sample(wait),
            Kind::Blocking(block) => {
                let due = clock_ns() + wait.as_nanos() as u64;
                block(&self.current, wait);
                late_by(due)
            }
        }
    }

    /// A round of samples.
    pub(crate) fn round(&self, session: &mut Session) {
        let row = |contender, metric| Row { contender, threads: 1, metric };
        for &(contender, _) in &self.contenders {
            for metric in METRICS {
                session.report.declare(ID, TITLE, row(contender, metric));
            }
        }
        session.report.note(
            TITLE,
            "Quantiles of each round; median of the rounds. tokio counts in whole milliseconds; pingora-timeout counts in \
             steps of ten, so it may be early.",
        );
        let mut lates = vec![Vec::with_capacity(SAMPLES); self.contenders.len()];
        let mut order: Vec<usize> =
            (0..self.contenders.len()).filter(|&i| session.wants(self.contenders[i].0)).collect();
        for _ in 0..SAMPLES {
            let wait = session.random.between(NEAREST, FURTHEST);
            session.random.shuffle(&mut order);
            for &i in &order {
                lates[i].push(self.sample(&self.contenders[i].1, wait));
            }
        }
        for (&(contender, _), lates) in self.contenders.iter().zip(&mut lates).filter(|(_, lates)| !lates.is_empty()) {
            lates.sort_unstable();
            let us = |q| quantile(lates, q) as f64 / 1e3;
            let values = [us(0.5), us(0.9), us(0.99), us(0.0), early(contender, lates) * 1e2];
            for (metric, value) in METRICS.into_iter().zip(values) {
                session.report.add(TITLE, row(contender, metric), value);
            }
            session.report.add_distribution(ID, TITLE, contender, "us late", quantiles(lates, 1e3));
        }
        let task = Task::new("W4", &[("samples", SAMPLES as u64)]);
        drivers::once(session, ID, TITLE, &METRICS, "us late", &task);
    }
}
