//! Drivers: the timers of other languages as contenders, by the programs in `benches/drivers`.
//!
//! Ground rules. A driver is a process for a single workload. It checks its work, and prints JSON
//! lines: figures and quantiles under the names of the report. The README of the drivers lists the
//! parameters. The needs of a language (a compiler, a jar) are looked up once, and drivers are
//! compiled into the folder of this program. A language not installed is skipped, with a message on
//! standard error and in the report. Nothing is downloaded. A driver that fails is left out of this
//! row only.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::json::Value;
use crate::measure::Session;
use crate::report::{Axes, Quantiles, Row, SHARES};
use crate::{blocked, child, idle, many_timers, steady, storm};

/// The workloads of the drivers.
pub(crate) const IDS: [&str; 10] = ["W1", "W2", "W3", "W4", "W6", "W7", "W8", "Q1", "Q2", "Q3"];
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../drivers");
/// The jars of HashedWheelTimer in Debian's libnetty-java; [`NETTY_VARIABLE`] sets a different
/// class path.
const NETTY: &str = "/usr/share/java/netty-common.jar:/usr/share/java/jctools-core.jar";
const NETTY_VARIABLE: &str = "NETTY_CLASSPATH";
/// Samples per round, as for the contenders of this process.
const SAMPLES: usize = crate::measure::SAMPLES_PER_ROUND;
const EACH: &str = "ns per operation";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Java,
    Netty,
    Node,
    Go,
}

const LANGUAGES: [Language; 4] = [Language::Java, Language::Netty, Language::Node, Language::Go];

struct Contender {
    name: &'static str,
    language: Language,
    /// The name of the contender on the driver's command line.
    word: &'static str,
}

const CONTENDERS: [Contender; 6] = [
    Contender { name: "Java ScheduledThreadPoolExecutor", language: Language::Java, word: "scheduled" },
    Contender { name: "Java DelayQueue, unkeyed", language: Language::Java, word: "delay-queue" },
    Contender { name: "Netty HashedWheelTimer, 1 ms ticks", language: Language::Netty, word: "netty-1ms" },
    Contender { name: "Netty HashedWheelTimer, 100 ms ticks", language: Language::Netty, word: "netty-100ms" },
    Contender { name: "Node setTimeout", language: Language::Node, word: "setTimeout" },
    Contender { name: "Go time.AfterFunc", language: Language::Go, word: "AfterFunc" },
];

/// A task for a driver: a workload and its parameters.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) workload: &'static str,
    pub(crate) parameters: Vec<(&'static str, u64)>,
}

impl Task {
    pub(crate) fn new(workload: &'static str, parameters: &[(&'static str, u64)]) -> Self {
        Self { workload, parameters: parameters.to_vec() }
    }

    pub(crate) fn with(&self, name: &'static str, value: u64) -> Self {
        let mut task = self.clone();
        task.parameters.push((name, value));
        task
    }

    /// The task for the workload of a Rust child. `None`: no driver has this workload.
    pub(crate) fn of(what: &str, n: usize, span_us: u64) -> Option<Self> {
        let (n, span) = (n as u64, many_timers::SPAN.as_millis() as u64);
        match what {
            storm::WHAT => Some(Self::new("W3", &[("n", n), ("span_us", span_us)])),
            storm::SHARING => Some(Self::new("W3", &[("n", n), ("span_us", span_us), ("sharing", 1)])),
            many_timers::PENDING => Some(Self::new("W4", &[("pending", n), ("span_ms", span)])),
            many_timers::TICKING => Some(Self::new("W4", &[("periodic", n), ("span_ms", span)])),
            idle::WHAT => Some(Self::new("W6", &[("pending", n)])),
            blocked::WHAT => Some(Self::new("W7", &[("blockers", n)])),
            steady::WHAT => Some(Self::new("W8", &[])),
            _ => None,
        }
    }

    fn is(&self, name: &str) -> u64 {
        self.parameters.iter().find(|(known, _)| *known == name).map_or(0, |&(_, value)| value)
    }
}

impl Contender {
    /// Whether this contender can do the task. Java's library and Netty cannot change a timer, and
    /// ticks of 100 ms do not suit periods of 10 ms. Node has one thread, and can restart a timer
    /// only with its previous delay. Sharing storms are written for Java alone.
    fn can(&self, task: &Task) -> bool {
        if task.workload.starts_with('Q') || self.word == "delay-queue" {
            return task.workload.starts_with('Q') && self.word == "delay-queue";
        }
        let beyond_ticks = self.word == "netty-100ms" && ["W7", "W8"].contains(&task.workload);
        match self.language {
            Language::Go | Language::Node if task.is("sharing") == 1 => false,
            Language::Java | Language::Netty => task.workload != "W2" && !beyond_ticks,
            Language::Node => task.is("threads") <= 1 && task.is("to_and_fro") == 0,
            Language::Go => true,
        }
    }
}

impl Language {
    /// The command of its driver, as words. `Err`: the missing part, for the user.
    fn prepare(self, target: &Path) -> Result<Vec<String>, String> {
        let (folder, source) = (target.display(), |name: &str| format!("{SOURCES}/{name}"));
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        match self {
            Self::Java => {
                let sources = [source("Timers.java"), source("DelayQueues.java")];
                done("javac", &["-d", &folder.to_string(), &sources[0], &sources[1]])?;
                Ok(words(&["java", "-cp", &folder.to_string(), "Timers"]))
            }
            Self::Netty => {
                let jars = env::var(NETTY_VARIABLE).unwrap_or_else(|_| NETTY.to_owned());
                if let Some(missing) = env::split_paths(&jars).find(|jar| !jar.exists()) {
                    return Err(format!("no {} on this machine (see {NETTY_VARIABLE})", missing.display()));
                }
                let path = format!("{folder}:{jars}");
                let sources = ["Timers.java", "DelayQueues.java", "NettyContender.java"].map(source);
                done("javac", &["-d", &folder.to_string(), "-cp", &path, &sources[0], &sources[1], &sources[2]])?;
                Ok(words(&["java", "-cp", &path, "Timers"]))
            }
            Self::Node => Ok(words(&["node", &source("timers.js")])),
            Self::Go => {
                let program = target.join("timers-go").display().to_string();
                done("go", &["build", "-o", &program, &source("timers.go")])?;
                Ok(vec![program])
            }
        }
    }
}

/// The output of a command. `Err`: the reason of the failure.
fn output(command: &mut Command) -> Result<String, String> {
    let program = Path::new(command.get_program()).display().to_string();
    let output = command.stdin(Stdio::null()).output().map_err(|problem| match problem.kind() {
        ErrorKind::NotFound => format!("no {program} on this machine"),
        _ => format!("{program}: {problem}"),
    })?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr).lines().take(3).collect::<Vec<_>>().join("; ");
        return Err(format!("{program} failed: {complaint}"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn done(program: &str, words: &[&str]) -> Result<(), String> {
    output(Command::new(program).args(words)).map(drop)
}

/// The output of a driver.
#[derive(Default)]
pub(crate) struct Printed {
    /// In the order of the lines; a name may occur more than once.
    values: Vec<(String, f64)>,
    quantiles: Option<Quantiles>,
}

impl Printed {
    fn read(text: &str) -> Result<Self, String> {
        let mut printed = Self::default();
        for line in text.lines() {
            let value = Value::parse(line)?;
            let wrong = || format!("neither a figure nor quantiles: {line}");
            let metric = value.text("metric").ok_or_else(wrong)?;
            if let Some(number) = value.number("value") {
                printed.values.push((metric.to_owned(), number));
                continue;
            }
            let pairs = value.tuples("quantiles").ok_or_else(wrong)?;
            let quantiles: Vec<f64> = pairs.iter().filter_map(|pair| pair.get(1).copied()).collect();
            printed.quantiles = Some(quantiles.try_into().map_err(|_| wrong())?);
        }
        Ok(printed)
    }

    /// The value printed under this name, or the quantile that the name contains.
    fn value(&self, metric: &str) -> Option<f64> {
        let printed = self.values.iter().find(|(known, _)| known == metric).map(|&(_, value)| value);
        printed.or_else(|| {
            let names = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0), ("worst", 1.0), ("best", 0.0)];
            let is = |name: &str| metric.split([' ', ',']).any(|word| word == name);
            let &(_, share) = names.iter().find(|(name, _)| is(name))?;
            let place = SHARES.iter().position(|&known| known == share)?;
            Some(self.quantiles.as_ref()?[place])
        })
    }

    /// The values of `metrics`.
    pub(crate) fn figures(&self, metrics: &[&'static str]) -> Vec<(&'static str, f64)> {
        metrics.iter().filter_map(|&metric| Some((metric, self.value(metric)?))).collect()
    }

    pub(crate) fn quantiles(&self) -> Option<Quantiles> {
        self.quantiles
    }
}

/// The reason of a driver's failure.
pub(crate) enum Problem {
    /// The driver was not set up in time.
    TooLate,
    /// Any other reason; the driver has printed it on standard error.
    Failed,
}

struct Driver {
    contender: &'static Contender,
    command: Vec<String>,
}

/// The drivers that run on this machine.
#[derive(Default)]
pub(crate) struct Drivers {
    all: Vec<Driver>,
    versions: Vec<String>,
    skipped: Vec<String>,
}

impl Drivers {
    /// Looks up the needs of the wanted contenders, and compiles their drivers.
    pub(crate) fn find(wanted: impl Fn(&str) -> bool) -> Self {
        let mut drivers = Self::default();
        let target = env::current_exe().ok().and_then(|program| Some(program.parent()?.join("drivers")));
        let target: PathBuf = target.expect("this program is in a folder");
        let made = fs::create_dir_all(&target).map_err(|problem| format!("{}: {problem}", target.display()));
        for language in LANGUAGES {
            let contenders: Vec<&Contender> = CONTENDERS
                .iter()
                .filter(|contender| contender.language == language && wanted(contender.name))
                .collect();
            let Some(first) = contenders.first() else { continue };
            let ready = made.clone().and_then(|()| language.prepare(&target)).and_then(|command| {
                let text = output(Command::new(&command[0]).args(&command[1..]).args([first.word, "version"]))?;
                let version = Value::parse(&text)?.text("version").map(str::to_owned);
                Ok((command, version.ok_or_else(|| format!("no version: {text}"))?))
            });
            match ready {
                Ok((command, version)) => {
                    drivers.versions.push(version);
                    drivers
                        .all
                        .extend(contenders.iter().map(|&contender| Driver { contender, command: command.clone() }));
                }
                Err(why) => {
                    let names: Vec<&str> = contenders.iter().map(|contender| contender.name).collect();
                    eprintln!("!!! skipped: {}: {why}", names.join("; "));
                    drivers.skipped.push(format!("{}: {why}", names.join("; ")));
                }
            }
        }
        drivers
    }

    pub(crate) fn versions(&self) -> &[String] {
        &self.versions
    }

    /// The contenders not installed on this machine, with the reasons.
    pub(crate) fn skipped(&self) -> &[String] {
        &self.skipped
    }

    /// The contenders that can do the task.
    pub(crate) fn contenders(&self, task: &Task) -> Vec<&'static str> {
        self.all.iter().filter(|driver| driver.contender.can(task)).map(|driver| driver.contender.name).collect()
    }

    /// Runs the task with a contender. `None`: no driver has this contender.
    pub(crate) fn run(&self, contender: &str, task: &Task) -> Option<Result<Printed, Problem>> {
        const TOO_LATE: Option<i32> = Some(child::TOO_LATE);
        let Driver { contender, command } = self.all.iter().find(|driver| driver.contender.name == contender)?;
        let mut words = vec![contender.word.to_owned(), task.workload.to_owned()];
        words.extend(task.parameters.iter().map(|(name, value)| format!("{name}={value}")));
        words.push(format!("shares={}", SHARES.map(|share| share.to_string()).join(",")));
        let mut command_line = Command::new(&command[0]);
        command_line.args(&command[1..]).args(&words).stdin(Stdio::null()).stderr(Stdio::inherit());
        let problem = match command_line.output() {
            Ok(output) if output.status.code() == TOO_LATE => return Some(Err(Problem::TooLate)),
            Ok(output) if output.status.success() => match Printed::read(&String::from_utf8_lossy(&output.stdout)) {
                Ok(printed) => return Some(Ok(printed)),
                Err(problem) => problem,
            },
            Ok(output) => output.status.to_string(),
            Err(problem) => problem.to_string(),
        };
        eprintln!("!!! {}: {words:?}: {problem}", contender.name);
        child::failed();
        Some(Err(Problem::Failed))
    }
}

/// Adds the drivers' samples to a title with contenders of this process. Runs the drivers in turn,
/// in random order, on each number of threads. `point` maps a number of threads to a curve and an
/// x; the samples are added to this point as well.
pub(crate) fn measure(
    session: &mut Session,
    id: &'static str,
    title: &str,
    task: &Task,
    point: impl Fn(usize) -> Option<(String, Axes, f64)>,
) {
    let drivers = Arc::clone(&session.drivers);
    let mut order: Vec<(&'static str, usize, Task)> = Vec::new();
    for threads in 1..=crate::place::THREADS {
        let task = task.with("threads", threads as u64).with("samples", SAMPLES as u64);
        for contender in drivers.contenders(&task) {
            session.report.declare(id, title, Row { contender, threads, metric: EACH });
            order.push((contender, threads, task.clone()));
        }
    }
    session.random.shuffle(&mut order);
    for (contender, threads, task) in order {
        let Some(Ok(printed)) = drivers.run(contender, &task) else { continue };
        for &(_, sample) in printed.values.iter().filter(|(metric, _)| metric == EACH) {
            session.report.add(title, Row { contender, threads, metric: EACH }, sample);
            if let Some((curve, axes, x)) = point(threads) {
                session.report.add_curve(id, &curve, contender, axes, (x, sample));
            }
        }
    }
}

/// Adds to a title, for each driver, a sample of each of `metrics` and a distribution.
pub(crate) fn once(
    session: &mut Session,
    id: &'static str,
    title: &str,
    metrics: &[&'static str],
    unit: &'static str,
    task: &Task,
) {
    let drivers = Arc::clone(&session.drivers);
    let mut order = drivers.contenders(task);
    for &contender in &order {
        for &metric in metrics {
            session.report.declare(id, title, Row { contender, threads: 1, metric });
        }
    }
    session.random.shuffle(&mut order);
    for contender in order {
        let Some(Ok(printed)) = drivers.run(contender, task) else { continue };
        for (metric, value) in printed.figures(metrics) {
            session.report.add(title, Row { contender, threads: 1, metric }, value);
        }
        if let Some(quantiles) = printed.quantiles() {
            session.report.add_distribution(id, title, contender, unit, quantiles);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CONTENDERS, Printed, Task};
    use crate::report::SHARES;

    #[test]
    fn figures_and_quantiles_have_their_names() {
        let pairs: Vec<String> = SHARES.iter().map(|share| format!("[{share},{}]", share * 1e3)).collect();
        let text = format!(
            "{{\"metric\":\"early, %\",\"value\":0.5}}\n{{\"metric\":\"us late\",\"quantiles\":[{}]}}\n",
            pairs.join(",")
        );
        let printed = Printed::read(&text).expect("as drivers print it");
        let metrics =
            ["late p50, us", "early, %", "late p99, us", "best, us", "excess gap worst, ms", "thread wake-ups"];
        let figures = printed.figures(&metrics);
        let expected = [
            ("late p50, us", 500.0),
            ("early, %", 0.5),
            ("late p99, us", 990.0),
            ("best, us", 0.0),
            ("excess gap worst, ms", 1e3),
        ];
        assert_eq!(figures, expected);
    }

    #[test]
    fn any_other_output_is_no_result() {
        for text in ["hello", "{\"metric\":\"a\"}", "{\"value\":1}", "{\"metric\":\"a\",\"quantiles\":[[0.5,1]]}"] {
            assert!(Printed::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn contenders_get_only_tasks_that_they_can_do() {
        let can = |word, task: &Task| {
            CONTENDERS.iter().find(|contender| contender.word == word).expect("a contender").can(task)
        };
        let (two, steady) = (Task::new("W1", &[("threads", 2)]), Task::new("W8", &[]));
        let to_and_fro = Task::new("W2", &[("to_and_fro", 1), ("threads", 1)]);
        assert!(can("AfterFunc", &two) && can("scheduled", &two) && !can("setTimeout", &two));
        assert!(can("AfterFunc", &to_and_fro) && !can("netty-1ms", &to_and_fro) && !can("setTimeout", &to_and_fro));
        assert!(can("netty-1ms", &steady) && !can("netty-100ms", &steady));
    }
}
