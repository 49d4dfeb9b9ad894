//! The origin of the figures: machine, kernel, load, and the versions of all contenders.

use std::fs;
use std::time::{Duration, Instant};

use crate::measure;

/// The lock file, with the versions of this build.
const LOCK: &str = include_str!("../../../Cargo.lock");
const CONTENDERS: [&str; 8] = [
    "timerqueue",
    "tokio",
    "tokio-util",
    "async-io",
    "async-executor",
    "futures-timer",
    "pingora-timeout",
    "hierarchical_hash_wheel_timer",
];

fn line(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| String::from("unknown"), |text| text.trim().to_owned())
}

/// The value of the first `key: value` line of a file.
fn field(path: &str, key: &str) -> String {
    let text = line(path);
    let value = text.lines().find(|line| line.starts_with(key)).and_then(|line| line.split_once(':'));
    value.map_or_else(|| String::from("unknown"), |(_, value)| value.trim().to_owned())
}

fn version(package: &str) -> &str {
    let name = format!("name = \"{package}\"\nversion = \"");
    LOCK.split_once(&name).and_then(|(_, rest)| rest.split_once('"')).map_or("unknown", |(version, _)| version)
}

/// The share of the machine's processor time that others take: other programs, and the host.
pub(crate) struct Others {
    since: Instant,
    busy: Duration,
    own: Duration,
}

impl Others {
    pub(crate) fn watch() -> Self {
        Self { since: Instant::now(), busy: busy(), own: measure::cpu_with_children() }
    }

    /// In percent, since the watch began.
    pub(crate) fn percent(&self) -> f64 {
        let now = Self::watch();
        let others = (now.busy - self.busy).saturating_sub(now.own - self.own);
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        100.0 * others.as_secs_f64() / (now.since - self.since).as_secs_f64() / cores
    }
}

/// The time for which the machine's processors were not idle.
fn busy() -> Duration {
    let stat = line("/proc/stat");
    let ticks: Vec<u64> =
        stat.lines().next().unwrap_or_default().split_whitespace().skip(1).map_while(|n| n.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; then what user has already
    let busy: u64 = ticks.iter().take(8).enumerate().filter(|&(i, _)| i != 3 && i != 4).map(|(_, ticks)| ticks).sum();
    Duration::from_millis(busy * 10)
}

/// The current load averages.
pub(crate) fn load() -> String {
    line("/proc/loadavg")
}

/// The machine and its kernel.
pub(crate) fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{}, {cores} core(s) for this process, {} of memory; {} {}, clock source {}",
        field("/proc/cpuinfo", "model name"),
        field("/proc/meminfo", "MemTotal"),
        line("/proc/sys/kernel/ostype"),
        line("/proc/sys/kernel/osrelease"),
        line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    )
}

/// The versions of all contenders that are Rust crates.
pub(crate) fn versions() -> Vec<String> {
    CONTENDERS.iter().map(|contender| format!("{contender} {}", version(contender))).collect()
}
