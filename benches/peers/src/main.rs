//! Benchmark of the crate and its peers: the same workloads, side by side.
//!
//! ```text
//! cargo run --release -p timerqueue-peers -- [--rounds N] [--only W1,A]... [--json FILE] [--plots DIR]
//!     [--rust-only] [--contender TEXT] [--seed N]
//! cargo run --release -p timerqueue-peers -- --from FILE --plots DIR
//! ```
//!
//! A: futures and tokens. Q: delay queues. W: timers.
//!
//! | | workload | contenders beside ours | how often |
//! |---|---|---|---|
//! | A1 to A5 | sleeps, timeouts, intervals as futures, polled without an executor | tokio, async-io, futures-timer | every round |
//! | A6 to A10 | cancellation tokens | tokio-util | every round |
//! | Q1 to Q3 | delay queues: insert and remove, move, deliver | tokio-util's under a mutex, a sorted map, a heap | every round |
//! | Q4 | touch one of a million sessions, at random: delay queues, timers, futures | tokio-util's queue, tokio's sleep | every round |
//! | W1 | create and dispose, with 0 to 1,000,000 pending | all, and a bare list as the baseline | every round |
//! | W2 | change | all contenders with a change, and a bare list as the baseline | every round |
//! | W3 | storms: 10,000 to 1,000,000 due within a second, or at once | all, a thread with a heap, and a timerfd in an epoll set as the baseline | every round |
//! | W4 | lateness of a timer that fires alone | all, and a timerfd in an epoll set as the baseline | every round |
//! | W4 | the same beside 100,000 pending or 10,000 periodic timers | the same | every round |
//! | W5 | resident memory per pending timer | all but threads | once in five rounds |
//! | W6 | 10 s of rest with 100,000 pending | all but threads | once in five rounds |
//! | W7 | 64 callbacks block for 2 s: effect on periodic timers | all, and a thread with a heap | every round |
//! | W8 | drift and jitter of a periodic timer of 10 ms | all, and a timerfd in an epoll set as the baseline | once in five rounds |
//!
//! The contenders: tokio (`multi_thread`, `current_thread`), tokio-util's `DelayQueue`, async-io,
//! futures-timer, pingora-timeout, hierarchical_hash_wheel_timer (its thread; in W1 and W2 also its
//! wheel), std threads in workloads of few timers, and a hand-written thread with a heap. The head
//! of each workload's file, `contenders` and `place` say how each contender is run.
//!
//! Java's ScheduledThreadPoolExecutor, Netty's HashedWheelTimer, and the timers of Node and Go take
//! part in W1 to W4 and W6 to W8 if they are installed (`drivers`; the README of `benches/drivers`
//! lists the packages). They take about four minutes of a round. `--rust-only` leaves them out.
//!
//! `--only` takes workloads (`W1`) or letters (`A`). `--contender` measures only contenders with
//! this text in their names, for use with a profiler. In each round the workloads come in random
//! order, and in each workload the contenders, so load of the machine hits all of them alike. The
//! ratios matter most. Output is Markdown; `--json` writes lines of rows, distributions and curves,
//! which `report` describes. `--plots` draws them as SVG: lateness as quantile curves, cost against
//! the number of pending timers. `--from` measures nothing and draws the lines of an earlier
//! `--json`.
//!
//! Ground rules. Every contender does the same work, written as its users would write it, and every
//! workload checks that the work was done. A contender that fires early or loses ticks is not left
//! out: the share is counted and shown.

mod bare;
mod baseline;
mod blocked;
mod child;
mod contenders;
mod drivers;
mod futures;
mod idle;
mod json;
mod machine;
mod many_timers;
mod measure;
mod memory;
mod place;
mod plot;
mod queues;
mod report;
mod sessions;
mod sparse;
mod steady;
mod storm;
mod timers;
mod tokens;

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use self::drivers::Drivers;
use self::machine::Others;
use self::measure::Session;
use self::place::{GlobalHeartbeats, HEARTBEAT};
use self::sparse::Sparse;

const DEFAULT_ROUNDS: usize = 3;
/// Workloads that take minutes, or hardly vary from run to run, are measured once in this many
/// rounds.
const RARELY: usize = 5;

struct Options {
    rounds: usize,
    only: Vec<String>,
    json: Option<String>,
    plots: Option<String>,
    from: Option<String>,
    rust_only: bool,
    seed: u64,
    contender: String,
}

impl Options {
    /// `Err`: the error of the command line, for the user.
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let seed = measure::clock_ns();
        let mut options = Self {
            rounds: DEFAULT_ROUNDS,
            only: Vec::new(),
            json: None,
            plots: None,
            from: None,
            rust_only: false,
            seed,
            contender: String::new(),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text} is not a number"));
            match arg.as_str() {
                "--rounds" => options.rounds = number(value()?)?.max(1) as usize,
                "--seed" => options.seed = number(value()?)?,
                "--only" => options.only.extend(value()?.split(',').map(str::to_ascii_uppercase)),
                "--contender" => options.contender = value()?,
                "--json" => options.json = Some(value()?),
                "--plots" => options.plots = Some(value()?),
                "--rust-only" => options.rust_only = true,
                "--from" => options.from = Some(value()?),
                other => return Err(format!("unknown option {other}; see the head of src/main.rs")),
            }
        }
        match options {
            Self { from: Some(_), plots: None, .. } => Err("--from needs --plots".to_owned()),
            options => Ok(options),
        }
    }

    /// The drivers of other languages, if a wanted workload has any: futures and tokens have none.
    fn drivers(&self) -> Drivers {
        let wanted = !self.rust_only && drivers::IDS.into_iter().any(|id| self.wants(id));
        if wanted { Drivers::find(|contender| contender.contains(&self.contender)) } else { Drivers::default() }
    }

    /// Writes JSON lines, and draws them, as the options say.
    fn keep(&self, lines: &str) -> io::Result<()> {
        if let Some(path) = &self.json {
            fs::write(path, lines)?;
        }
        if let Some(folder) = &self.plots {
            for name in plot::draw(lines, Path::new(folder))? {
                eprintln!("drawn: {folder}/{name}");
            }
        }
        Ok(())
    }

    fn wants(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| id == only || (only.len() == 1 && id.starts_with(only)))
    }
}

/// Workloads that are run together.
#[derive(Clone, Copy, Debug)]
enum Group {
    Futures,
    Tokens,
    Queues,
    Sessions,
    Timers,
    Storms,
    Sparse,
    ManyTimers,
    Memory,
    Idle,
    Blocked,
    Steady,
}

/// Returns the greatest share of the machine's processor time, in percent, that others took in one
/// group of workloads.
fn run(options: &Options, session: &mut Session) -> f64 {
    let mut most = 0.0_f64;
    let sparse = options.wants(sparse::ID).then(Sparse::start);
    let _heartbeats = GlobalHeartbeats::start(HEARTBEAT);
    let mut order = [
        Group::Futures,
        Group::Tokens,
        Group::Queues,
        Group::Sessions,
        Group::Timers,
        Group::Storms,
        Group::Sparse,
        Group::ManyTimers,
        Group::Memory,
        Group::Idle,
        Group::Blocked,
        Group::Steady,
    ];
    for round in 0..options.rounds {
        let start = Instant::now();
        session.random.shuffle(&mut order);
        for group in order {
            let wants = |id: &str| options.wants(id);
            let (others, begun) = (Others::watch(), Instant::now());
            match group {
                Group::Futures if futures::IDS.into_iter().any(wants) => futures::round(session, wants),
                Group::Tokens if tokens::IDS.into_iter().any(wants) => tokens::round(session, wants),
                Group::Queues if queues::IDS.into_iter().any(wants) => queues::round(session, wants),
                Group::Sessions if wants(sessions::ID) => sessions::round(session),
                Group::Timers if timers::IDS.into_iter().any(wants) => timers::round(session, wants),
                Group::Storms if wants(storm::ID) => storm::round(session),
                Group::ManyTimers if wants(sparse::ID) => many_timers::round(session),
                Group::Memory if wants(memory::ID) && round % RARELY == 0 => memory::round(session),
                Group::Idle if wants(idle::ID) && round % RARELY == 0 => idle::round(session),
                Group::Blocked if wants(blocked::ID) => blocked::round(session),
                Group::Steady if wants(steady::ID) && round % RARELY == 0 => steady::round(session),
                Group::Sparse => {
                    if let Some(sparse) = &sparse {
                        sparse.round(session);
                    }
                }
                _ => {}
            }
            // Of a shorter time the ticks of the system's count tell nothing.
            if begun.elapsed() > Duration::from_secs(2) {
                let percent = others.percent();
                most = most.max(percent);
                eprintln!("{group:?}: {:.0} s, others {percent:.1} %", begun.elapsed().as_secs_f64());
            }
        }
        eprintln!("round {} of {}: {:.1} s", round + 1, options.rounds, start.elapsed().as_secs_f64());
    }
    most
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "--child") {
        return child::be(&args[1..]);
    }
    let options = Options::parse(args.into_iter()).unwrap_or_else(|problem| {
        eprintln!("{problem}");
        std::process::exit(2);
    });
    if let Some(file) = &options.from {
        return or_exit(file, fs::read_to_string(file).and_then(|lines| options.keep(&lines)));
    }
    let drivers = options.drivers();
    let (machine, versions) = (machine::describe(), [&machine::versions(), drivers.versions()].concat().join(", "));
    println!("## timerqueue and its peers\n");
    println!("- machine: {machine}\n- load average at the start: {}\n- contenders: {versions}", machine::load());
    for skipped in drivers.skipped() {
        println!("- **skipped**: {skipped}");
    }
    println!("- rounds: {}, seed {}", options.rounds, options.seed);
    let mut session = Session::new(options.seed, options.contender.clone(), drivers);
    let others = run(&options, &mut session);
    println!("- load average at the end: {}", machine::load());
    println!("- others took {others:.1} % of the processors at most\n{}", session.report.markdown());
    let lines = session.report.json(&machine, &versions, options.rounds, others);
    or_exit("the results", options.keep(&lines));
}

/// Ends the program after a problem with a file, or if a child has failed.
fn or_exit(what: &str, result: io::Result<()>) {
    if let Err(problem) = result {
        eprintln!("{what}: {problem}");
        std::process::exit(1);
    }
    let failures = child::failures();
    if failures > 0 {
        eprintln!("!!! {failures} failed");
        std::process::exit(1);
    }
}
