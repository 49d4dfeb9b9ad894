//! The origin of the figures: machine, kernel, load, and the versions of all contenders.

use std::fs;

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
