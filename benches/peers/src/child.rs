//! Workloads that need a process of their own: where processor time, wake-ups or memory must be nobody else's, and where
//! contenders would be in each other's way for seconds.
//!
//! Ground rules. The child is this very program with `--child` and what to do; it prints one figure a line, name and
//! number, and nothing else; a name that is a place in [`SHARES`] is a quantile of its distribution. A child that ends with
//! [`TOO_LATE`] was disturbed while it set up, and is run again with more time; one that ends with [`UNABLE`] has said why
//! the system does not let its contender do this, and is left out. One that fails in any other way is left out as well, so that
//! the rest of a long run is not lost, and makes the whole run fail in the end.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::drivers::{Drivers, Problem, Task};
use crate::measure::Session;
use crate::report::{Quantiles, Row, SHARES};
use crate::{blocked, idle, many_timers, memory, steady, storm};

/// Exit code: the set-up took longer than it was given.
pub(crate) const TOO_LATE: i32 = 42;
/// Exit code: the system has not enough of something for this contender.
pub(crate) const UNABLE: i32 = 43;
const TRIES: u32 = 4;

static FAILURES: AtomicUsize = AtomicUsize::new(0);

/// One more child, or driver, has failed.
pub(crate) fn failed() {
    FAILURES.fetch_add(1, Ordering::Relaxed);
}

/// How many have failed.
pub(crate) fn failures() -> usize {
    FAILURES.load(Ordering::Relaxed)
}

/// What a child has found out.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Named as the metrics of the job.
    pub(crate) figures: Vec<(&'static str, f64)>,
    pub(crate) quantiles: Option<Quantiles>,
}

/// What one child after the other does, each for its contender.
pub(crate) struct Job {
    pub(crate) id: &'static str,
    pub(crate) title: String,
    pub(crate) note: &'static str,
    /// What the child is told to do.
    pub(crate) what: &'static str,
    pub(crate) n: usize,
    pub(crate) span_us: u64,
    pub(crate) metrics: &'static [&'static str],
    /// Of the distribution.
    pub(crate) unit: &'static str,
    /// All at once instead of one after the other: for those that hardly do anything.
    pub(crate) together: bool,
}

impl Job {
    /// A child for each of the contenders, in random order.
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

    /// Runs a child, with twice the patience each time that it comes too late. `None`: this contender is left out.
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

/// The child's side: what a job has asked for.
pub(crate) fn be(args: &[String]) {
    let [what, contender, n, span_us, patience] = args else { panic!("five words after --child") };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let n = number(n) as usize;
    let outcome = match what.as_str() {
        storm::WHAT => storm::child(contender, n, number(span_us), number(patience)),
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
    // Whatever the contender still has running ends here.
    std::process::exit(0);
}
