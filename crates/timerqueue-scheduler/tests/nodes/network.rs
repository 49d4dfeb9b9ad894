//! Hosts with addresses of their own: network namespaces, joined by a bridge in a further one.
//!
//! Ground rules. Each network has namespaces of its own, so networks may use the same addresses at
//! a time, and none is part of the machine's. A link is cut in one direction by a wrong hardware
//! address for the other host: its packets vanish, as in a network that fails.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use super::guard::{Guard, run};

/// Ends all processes of the namespaces of a network, and removes the namespaces.
const CLEAN: &str = r#"
for space in $(ip netns list | cut -d' ' -f1 | grep "^$1-"); do
    for process in $(ip netns pids "$space"); do kill -9 "$process"; done
    ip netns del "$space"
done"#;

const NOWHERE: &str = "02:00:00:00:00:99";

pub(crate) struct Network {
    name: String,
    _guard: Guard,
}

/// Why there can be no network here.
fn missing() -> Option<&'static str> {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0);
    let has_ip = Command::new("ip").arg("-V").output().is_ok();
    match (is_root, has_ip) {
        (false, _) => Some("network namespaces need root"),
        (_, false) => Some("there is no `ip` (Debian: apt-get install iproute2)"),
        _ => None,
    }
}

/// The address of a host.
pub(crate) fn address(host: &str) -> &'static str {
    match host {
        "db1" => "10.77.0.1",
        "db2" => "10.77.0.2",
        "n1" => "10.77.0.11",
        "n2" => "10.77.0.12",
        "n3" => "10.77.0.13",
        other => panic!("no host {other}"),
    }
}

impl Network {
    /// `None`, with a line that says why: networks are not possible here.
    pub(crate) fn new(hosts: &[&str]) -> Option<Self> {
        if let Some(missing) = missing() {
            eprintln!("NOT RUN: {missing}. Nothing was tested.");
            return None;
        }
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = format!("timerqueue{}x{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let network = Self { _guard: Guard::new(CLEAN, &[&name]), name };
        let hub = network.space("hub");
        let made = Command::new("ip").args(["netns", "add", &hub]).output().unwrap();
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr).into_owned();
            eprintln!("NOT RUN: no network namespace can be made here: {why}. Nothing was tested.");
            return None;
        }
        run("ip", &["-n", &hub, "link", "add", "bridge", "type", "bridge"]);
        run("ip", &["-n", &hub, "link", "set", "bridge", "up"]);
        for host in hosts {
            network.add(&hub, host);
        }
        Some(network)
    }

    fn add(&self, hub: &str, host: &str) {
        let space = self.space(host);
        run("ip", &["netns", "add", &space]);
        run("ip", &["link", "add", "eth0", "netns", &space, "type", "veth", "peer", "name", host, "netns", hub]);
        run("ip", &["-n", hub, "link", "set", host, "master", "bridge", "up"]);
        run("ip", &["-n", &space, "link", "set", "lo", "up"]);
        run("ip", &["-n", &space, "addr", "add", &format!("{}/24", address(host)), "dev", "eth0"]);
        run("ip", &["-n", &space, "link", "set", "eth0", "up"]);
    }

    /// The namespace of a host.
    pub(crate) fn space(&self, host: &str) -> String {
        format!("{}-{host}", self.name)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A program on a host.
    pub(crate) fn command(&self, host: &str, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(host), program]).current_dir("/");
        command
    }

    /// No packet of `from` reaches `to` any more.
    pub(crate) fn cut(&self, from: &str, to: &str) {
        let space = self.space(from);
        let wrong = ["neigh", "replace", address(to), "lladdr", NOWHERE, "nud", "permanent", "dev", "eth0"];
        run("ip", &[&["-n", &*space], &wrong[..]].concat());
    }

    pub(crate) fn heal(&self, from: &str, to: &str) {
        run("ip", &["-n", &self.space(from), "neigh", "del", address(to), "dev", "eth0"]);
    }
}
