//! Child processes, for workloads that measure the processor time, wake-ups or memory of a process,
//! or disturb each other for seconds.
//!
//! Ground rules. The child is this program with `--child` and a job. It prints a figure per line,
//! name and number, and no more; a name that is an index of [`SHARES`] is a quantile of its
//! distribution. Exit codes:
//!
//! - [`TOO_LATE`]: the child was disturbed during set-up; it is run again with more time.
//! - [`UNABLE`]: the system refuses a resource, and the child has printed which; the contender is
//!   left out.
//! - any other failure: the contender is left out, so the rest of a long run is not lost; the whole
//!   run fails in the end.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::drivers::{Drivers, Problem, Task};
use crate::measure::Session;
use crate::report::{Quantiles, Row, SHARES};
use crate::{blocked, idle, many_timers, memory, steady, storm};

/// Exit code: the set-up took longer than its time.
pub(crate) const TOO_LATE: i32 = 42;
/// Exit code: the system refuses a resource that this contender needs.
pub(crate) const UNABLE: i32 = 43;
const TRIES: u32 = 4;

static FAILURES: AtomicUsize = AtomicUsize::new(0);

/// Counts a child, or driver, that has failed.
pub(crate) fn failed() {
    FAILURES.fetch_add(1, Ordering::Relaxed);
}

/// The number of failed children and drivers.
pub(crate) fn failures() -> usize {
    FAILURES.load(Ordering::Relaxed)
}

/// The result of a child.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Named as the metrics of the job.
    pub(crate) figures: Vec<(&'static str, f64)>,
    pub(crate) quantiles: Option<Quantiles>,
}

/// A job: the work of a series of children, one for each contender.
pub(crate) struct Job {
    pub(crate) id: &'static str,
    pub(crate) title: String,
    pub(crate) note: &'static str,
    /// The workload, as the child's first argument.
    pub(crate) what: &'static str,
    pub(crate) n: usize,
    pub(crate) span_us: u64,
    pub(crate) metrics: &'static [&'static str],
    /// The unit of the distribution.
    pub(crate) unit: &'static str,
    /// Whether all children run at once; only for workloads that use hardly any processor time.
    pub(crate) together: bool,
}

impl Job {
    /// Runs a child for each of the contenders, in random order.
    pub(crate) fn run(&self, session: &mut Session, contenders: &[&'static str]) {
        let task = Task::of(self.what, self.n, self.span_us);
        let others = task.map_or_else(Vec::new, |task| session.drivers.contenders(&task));
        let contenders = &[contenders, &others].concat();
        let row = |contender, metric| Row { contender, threads: 1, metric };
        for &contender in contenders {
            for &metric in self.metrics {
                session.report.declare(self.id, &self.title, row(contender, metric));
            }
        }
        session.report.note(&self.title, self.note);
        let drivers = Arc::clone(&session.drivers);
        let mut order: Vec<&'static str> =
            contenders.iter().copied().filter(|contender| session.wants(contender)).collect();
        session.random.shuffle(&mut order);
        let outcomes: Vec<Option<Outcome>> = if self.together {
            std::thread::scope(|scope| {
                let children: Vec<_> =
                    order.iter().map(|contender| scope.spawn(|| self.child(&drivers, contender))).collect();
                children.into_iter().map(|child| child.join().expect("its thread only waits")).collect()
            })
        } else {
            order.iter().map(|contender| self.child(&drivers, contender)).collect()
        };
        for (contender, outcome) in order.into_iter().zip(outcomes) {
            let Some(Outcome { figures, quantiles }) = outcome else { continue };
            for (metric, value) in figures {
                session.report.add(&self.title, row(contender, metric), value);
            }
            if let Some(quantiles) = quantiles.filter(|_| !self.unit.is_empty()) {
                session.report.add_distribution(self.id, &self.title, contender, self.unit, quantiles);
            }
        }
    }

    /// Runs a child, with twice the set-up time after each [`TOO_LATE`]. `None`: the contender is
    /// left out.
    fn child(&self, drivers: &Drivers, contender: &str) -> Option<Outcome> {
        let Self { what, title, n, span_us, .. } = self;
        let left_out = |why: &str| {
            eprintln!("!!! left out: {contender} in \"{title}\": {why}");
            None
        };
        for attempt in 0..TRIES {
            let task = Task::of(what, *n, *span_us).map(|task| task.with("patience", 1 << attempt));
            match task.and_then(|task| drivers.run(contender, &task)) {
                Some(Err(Problem::TooLate)) if attempt + 1 == TRIES => return left_out("it is never set up in time"),
                Some(Err(Problem::TooLate)) => continue,
                Some(Err(Problem::Failed)) => return left_out("it failed"),
                Some(Ok(printed)) => {
                    let figures = printed.figures(self.metrics);
                    return Some(Outcome { figures, quantiles: printed.quantiles() });
                }
                None => {}
            }
            let program = std::env::current_exe().expect("the path of this program");
            let output = Command::new(program)
                .args([
                    "--child",
                    what,
                    contender,
                    &n.to_string(),
                    &span_us.to_string(),
                    &(1u64 << attempt).to_string(),
                ])
                .stderr(Stdio::inherit())
                .output()
                .expect("a child starts");
            match output.status.code() {
                Some(0) => return Some(self.read(&String::from_utf8(output.stdout).expect("text"))),
                Some(TOO_LATE) if attempt + 1 == TRIES => return left_out("it is never set up in time"),
                Some(TOO_LATE) => {}
                Some(UNABLE) => return left_out("it cannot do this here"),
                _ => {
                    failed();
                    return left_out("it failed");
                }
            }
        }
        None
    }

    fn read(&self, text: &str) -> Outcome {
        let mut outcome = Outcome::default();
        for line in text.lines() {
            let (name, number) = line.split_once('=').expect("a name and a number");
            let value = number.parse().expect("a number");
            match (self.metrics.iter().find(|&&metric| metric == name), name.parse::<usize>()) {
                (Some(&metric), _) => outcome.figures.push((metric, value)),
                (None, Ok(place)) => outcome.quantiles.get_or_insert([0.0; SHARES.len()])[place] = value,
                (None, Err(_)) => panic!("{name} is no metric of \"{}\"", self.title),
            }
        }
        outcome
    }
}

/// The child's side: does the job of the command line.
pub(crate) fn be(args: &[String]) {
    let [what, contender, n, span_us, patience] = args else { panic!("five words after --child") };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let n = number(n) as usize;
    let outcome = match what.as_str() {
        storm::WHAT | storm::SHARING => storm::child(contender, what, n, number(span_us), number(patience)),
        memory::WHAT => memory::child(contender, n),
        many_timers::TICKING | many_timers::PENDING => many_timers::child(contender, what, n),
        idle::WHAT => idle::child(contender, n),
        blocked::WHAT => blocked::child(contender, n),
        steady::WHAT => steady::child(contender),
        other => panic!("no such child: {other}"),
    };
    for (name, value) in outcome.figures {
        println!("{name}={value}");
    }
    for (place, value) in outcome.quantiles.into_iter().flatten().enumerate() {
        println!("{place}={value}");
    }
    // Ends all threads that the contender still runs.
    std::process::exit(0);
}
