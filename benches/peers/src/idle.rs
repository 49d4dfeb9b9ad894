//! W6: the cost of many pending timers while none is due.
//!
//! Ground rules. Each contender has its own process; all run at the same time, since they use
//! hardly any processor time. Timers are due in one to ten minutes. The measurement begins when the
//! process is quiet. Afterwards no callback may have run or been dropped, and a new timer must
//! fire.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::child::{Job, Outcome};
use crate::contenders::{self, ALL_BUT_THREADS, Contender};
use crate::measure::{Random, Session, cpu_of_others_ns, sleeps_of_others, until_quiet};

pub(crate) const ID: &str = "W6";
pub(crate) const WHAT: &str = "idle";
const N: usize = 100_000;
const SPAN: Duration = Duration::from_secs(10);
const NEAREST: Duration = Duration::from_secs(60);
const FURTHEST: Duration = Duration::from_secs(600);
const METRICS: [&str; 2] = ["thread wake-ups in 10 s", "CPU ms in 10 s"];

/// Lowers the count when dropped.
struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Starts timers that are due in minutes. Returns the number of callbacks not yet dropped.
pub(crate) fn sleepers(timers: &dyn Contender, n: usize, random: &mut Random) -> Arc<AtomicUsize> {
    let held = Arc::new(AtomicUsize::new(n));
    for _ in 0..n {
        let mine = Held(Arc::clone(&held));
        timers.once(random.between(NEAREST, FURTHEST), Box::new(move || drop(mine)));
    }
    until_quiet();
    held
}

/// The run of a contender, in the child process.
pub(crate) fn child(contender: &str, n: usize) -> Outcome {
    let timers = contenders::start(contender);
    let held = sleepers(&*timers, n, &mut Random::new(17));
    let (cpu, asleep) = (cpu_of_others_ns(), sleeps_of_others());
    std::thread::sleep(SPAN);
    // The two clocks are not read at the same instant, so the difference may come out negative.
    let spent = cpu_of_others_ns().saturating_sub(cpu);
    let values = [(sleeps_of_others() - asleep) as f64, spent as f64 / 1e6];
    assert_eq!(held.load(Ordering::Relaxed), n, "{contender}: all are pending still");
    let (send, receive) = channel();
    timers.once(Duration::from_millis(1), Box::new(move || send.send(()).expect("the receiver waits")));
    receive.recv_timeout(SPAN).expect("timers fire");
    Outcome { figures: METRICS.into_iter().zip(values).collect(), quantiles: None }
}

/// A round: every contender.
pub(crate) fn round(session: &mut Session) {
    let job = Job {
        id: ID,
        title: format!("idle for 10 s with {N} pending"),
        note: "A process for each, all at the same time. Counted: how often threads went to sleep, and processor time, both \
               without the measuring thread.",
        what: WHAT,
        n: N,
        span_us: 0,
        metrics: &METRICS,
        unit: "",
        together: true,
    };
    job.run(session, &ALL_BUT_THREADS);
}
