//! A node: a process on a host, which puts jobs, runs jobs, and says so in a file.
//!
//! Ground rules. The process is this test program again ([`node`]). It obeys lines on its input,
//! and ends when the input ends. Each line of its file is one write at the end of the file: what a
//! killed process has said stays said. Instants are read by a system call, so a false clock of the
//! process (`libfaketime`) does not reach them; the clock of the server is that of the machine.

use std::fs::OpenOptions;
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use timerqueue::Runtime;
use timerqueue_scheduler::store::PostgresOptions;
use timerqueue_scheduler::{Clash, Handler, Retry, Run, Schedule, Scheduler};

use super::network::Network;

/// Longer than the pauses of a loaded machine, so that no lease ends without a fault.
pub(crate) const LEASE: Duration = Duration::from_secs(4);
const SAFETY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(3);

/// The clock of the machine, in microseconds, without the C library.
pub(crate) fn machine_now() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1_000
}

fn micros(at: SystemTime) -> i64 {
    i64::try_from(at.duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

pub(crate) struct Node {
    pub(crate) host: &'static str,
    child: Child,
}

impl Node {
    /// Starts a process on a host. `clock`: by how many seconds its clock is to be wrong.
    pub(crate) fn start(network: &Network, host: &'static str, address: &str, folder: &Path, clock: &str) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = network.command(host, program.to_str().unwrap());
        command.args(["process::node", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        let file = folder.join(format!("{host}-{}", machine_now()));
        command.env("TIMERQUEUE_NODE_FILE", file).env("TIMERQUEUE_NODE_ADDRESS", address);
        if !clock.is_empty() {
            let library = faketime().unwrap();
            command.env("LD_PRELOAD", library).env("FAKETIME", clock).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        Self { host, child }
    }

    pub(crate) fn say(&mut self, line: &str) {
        let _ = writeln!(self.child.stdin.as_mut().unwrap(), "{line}");
    }

    pub(crate) fn signal(&self, signal: &str) {
        super::guard::run("kill", &[signal, &self.child.id().to_string()]);
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Closes the scheduler, and waits for the end of the process.
    pub(crate) fn quit(mut self) {
        self.say("quit");
        let _ = self.child.wait();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The library that gives a process a false clock.
pub(crate) fn faketime() -> Option<PathBuf> {
    let machines = std::fs::read_dir("/usr/lib").ok()?;
    let paths = machines.flatten().map(|machine| machine.path().join("faketime/libfaketimeMT.so.1"));
    paths.into_iter().find(|path| path.exists())
}

/// Lines at the end of the file of this process.
#[derive(Clone)]
struct File(Arc<std::fs::File>);

impl File {
    fn say(&self, line: String) {
        (&*self.0).write_all((line + "\n").as_bytes()).unwrap();
    }

    fn begin(&self, run: &Run) {
        let nominal = run.nominal().map_or(0, micros);
        let (key, attempt, due) = (run.key(), run.attempt(), micros(run.due()));
        self.say(format!("begin {key} {attempt} {nominal} {due} {}", machine_now()));
    }

    fn end(&self, run: &Run, is_done: bool) {
        let nominal = run.nominal().map_or(0, micros);
        self.say(format!("end {} {} {nominal} {is_done} {}", run.key(), run.attempt(), machine_now()));
    }
}

/// A brief job. One in eight fails at first.
fn work(file: &File) -> Handler {
    let file = file.clone();
    let handler = move |n: u64, run: &Run| {
        file.begin(run);
        std::thread::sleep(Duration::from_millis(if n % 16 == 3 { 300 } else { n % 8 }));
        let fails = n % 8 == 0 && run.attempt() == 1;
        file.end(run, !fails);
        if fails { Err("the first attempt") } else { Ok(()) }
    };
    Handler::new("work", handler).parallel(4).retry(Retry::new(9).first(Duration::from_millis(200)))
}

/// A job of this number of milliseconds, which does not listen to its token.
fn hold(file: &File) -> Handler {
    let file = file.clone();
    let handler = move |millis: u64, run: &Run| {
        file.begin(run);
        std::thread::sleep(Duration::from_millis(millis));
        file.end(run, true);
    };
    Handler::new("hold", handler).parallel(1)
}

/// A brief job of a group. Its key ends with the group.
fn bound(file: &File) -> Handler {
    let file = file.clone();
    let handler = move |_: u64, run: &Run| {
        file.begin(run);
        std::thread::sleep(Duration::from_millis(20));
        file.end(run, true);
    };
    Handler::new("bound", handler).parallel_per_group(1)
}

fn tick(file: &File) -> Handler {
    let file = file.clone();
    let handler = move |_: u64, run: &Run| {
        file.begin(run);
        file.end(run, true);
    };
    Handler::new("tick", handler)
}

fn scheduler(file: &File) -> Scheduler {
    let address = std::env::var("TIMERQUEUE_NODE_ADDRESS").unwrap();
    let options = PostgresOptions::new().lease(LEASE).safety_look(SAFETY).patience(PATIENCE);
    // A node may start while it is cut off.
    let store = loop {
        match options.connect(Runtime::global(), &address) {
            Ok(store) => break store,
            Err(error) => file.say(format!("no connection {error}")),
        }
    };
    let builder = Scheduler::builder().store(store).register(work(file)).register(hold(file)).register(tick(file));
    builder.register(bound(file)).start().unwrap()
}

/// Puts jobs, one after another, until it is told to stop.
fn put_jobs(scheduler: &Scheduler, file: &File, stops: &AtomicBool) {
    let me = std::process::id();
    let tick = Schedule::every(Duration::from_millis(200)).build().unwrap();
    let _ = scheduler.put_to("tick", &0_u64).key("tick").schedule(tick).clash(Clash::Keep).send().wait();
    for n in 0_u64.. {
        if stops.load(Ordering::Relaxed) {
            return;
        }
        let key = format!("{me}-{n}");
        let due = Duration::from_millis(n * 7_919 % 1_500);
        match scheduler.put_to("work", &n).key(&key).due(due).send().wait() {
            Ok(placed) if placed.added().is_some() => file.say(format!("accepted {key}")),
            Ok(placed) => file.say(format!("wrong {key} {placed:?}")),
            // Whether it was put is not known.
            Err(error) => file.say(format!("unknown {key} {error}")),
        }
        std::thread::sleep(Duration::from_millis(15));
    }
}

/// Not a test: the process of a node.
#[test]
#[ignore = "a part of other tests"]
fn node() {
    let Ok(path) = std::env::var("TIMERQUEUE_NODE_FILE") else { return };
    let file = File(Arc::new(OpenOptions::new().create(true).append(true).open(path).unwrap()));
    let (said, stops) = (std::io::stdin().lock(), Arc::new(AtomicBool::new(false)));
    let scheduler = scheduler(&file);
    file.say(format!("started {}", machine_now()));
    let putting = std::thread::spawn({
        let (scheduler, file, stops) = (scheduler.clone(), file.clone(), Arc::clone(&stops));
        move || put_jobs(&scheduler, &file, &stops)
    });
    for line in said.lines().map_while(Result::ok) {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["hold", key, millis] => {
                let millis: u64 = millis.parse().unwrap();
                let placed = scheduler.put_to("hold", &millis).key(key).send().wait();
                file.say(format!("accepted {key} {placed:?}"));
            }
            ["bound", group, count] => {
                for n in 0..count.parse::<u64>().unwrap() {
                    let key = format!("bound-{}-{n}/{group}", machine_now());
                    let placed = scheduler.put_to("bound", &n).key(&key).group(group).send().wait();
                    file.say(format!("accepted {key} {placed:?}"));
                }
            }
            ["stop"] => stops.store(true, Ordering::Relaxed),
            ["quit"] => {
                putting.join().unwrap();
                let report = scheduler.close(Duration::from_secs(10)).wait().unwrap();
                let lost = scheduler.stats().wait().map_or(0, |stats| stats.lost);
                file.say(format!("closed {} {lost}", report.is_drained()));
                return;
            }
            _ => panic!("{line}"),
        }
    }
    // The test program is gone.
    std::process::exit(1);
}
