//! Nodes as processes on hosts of their own, with one server, and what can go wrong between them.
//!
//! Ground rules. Each history has a network of its own (namespaces), a server of its own and three
//! processes. One kind of fault comes while the processes put and run jobs. Then the processes stop
//! putting, and all accepted jobs must be done. The ledger is outside of the database: the files of
//! the processes. `TIMERQUEUE_NODES=20` runs each history twenty times (`.ci/nodes 20`). Where
//! something is missing (root, `ip`, PostgreSQL, `libfaketime`), a history says NOT RUN, and why.
#![cfg(target_os = "linux")]

mod database;
mod failover;
mod guard;
mod ledger;
mod network;
mod process;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use database::Database;
use guard::Guard;
use ledger::{Ledger, Trouble};
use network::{Network, address};
use process::{LEASE, Node, faketime, machine_now};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// How long a history may take to finish its jobs after the fault.
const DRAIN: Duration = Duration::from_secs(60);

/// Three processes and a server.
struct History<'a> {
    name: &'static str,
    network: &'a Network,
    database: &'a Database<'a>,
    address: String,
    nodes: Vec<Node>,
    troubles: Vec<Trouble>,
    folder: PathBuf,
    _guard: Guard,
}

fn pause(time: Duration) {
    std::thread::sleep(time);
}

impl<'a> History<'a> {
    fn start(name: &'static str, network: &'a Network, database: &'a Database<'a>, clocks: [&str; 3]) -> Self {
        let address = format!("host={} user=test dbname=postgres sslmode=disable", address("db1"));
        Self::start_at(name, network, database, address, clocks)
    }

    fn start_at(
        name: &'static str,
        network: &'a Network,
        database: &'a Database<'a>,
        address: String,
        clocks: [&str; 3],
    ) -> Self {
        let folder = PathBuf::from(format!("/tmp/timerqueue-nodes-{}-ledger", network.name()));
        std::fs::create_dir_all(&folder).unwrap();
        let guard = Guard::new(r#"rm -rf "$1""#, &[folder.to_str().unwrap()]);
        let start = |(host, clock): (&'static str, &str)| Node::start(network, host, &address, &folder, clock);
        let nodes = NODES.into_iter().zip(clocks).map(start).collect();
        let history = Self { name, network, database, address, nodes, troubles: Vec::new(), folder, _guard: guard };
        history.until("all processes have started", || history.count("started") >= NODES.len());
        // Jobs are under way.
        pause(Duration::from_millis(1_500));
        history
    }

    /// How often the processes have said a word.
    fn count(&self, word: &str) -> usize {
        let files = std::fs::read_dir(&self.folder).unwrap().flatten();
        let texts = files.map(|file| std::fs::read_to_string(file.path()).unwrap());
        texts.map(|text| text.lines().filter(|line| line.starts_with(word)).count()).sum()
    }

    #[track_caller]
    fn until(&self, what: &str, mut is_true: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_true() {
            assert!(begun.elapsed() < DRAIN, "{}: not within {DRAIN:?}: {what}", self.name);
            pause(Duration::from_millis(50));
        }
    }

    /// Something is wrong with a host (`""`: with all) while `act` goes on.
    fn trouble(&mut self, host: &'static str, act: impl FnOnce(&mut Self)) {
        let begun = machine_now();
        act(self);
        // What was asked for before may still fail for the time of the patience.
        let ended = machine_now() + LEASE.as_micros() as i64;
        let hosts = NODES.into_iter().filter(|node| host.is_empty() || host == *node);
        self.troubles.extend(hosts.map(|host| Trouble { host, begun, ended }));
    }

    fn restart(&mut self, host: &'static str) {
        self.nodes.push(Node::start(self.network, host, &self.address, &self.folder, ""));
    }

    fn take(&mut self, host: &str) -> Node {
        let at = self.nodes.iter().position(|node| node.host == host).unwrap();
        self.nodes.remove(at)
    }

    /// The processes put no more jobs, and finish.
    fn finish(mut self) -> Ledger {
        pause(Duration::from_millis(500));
        self.nodes.iter_mut().for_each(|node| node.say("stop"));
        // Each process has put its last job.
        pause(Duration::from_millis(500));
        let left = "SELECT count(*) FROM timerqueue.jobs WHERE state IN (0, 1, 2) AND NOT recurs AND handler IN \
                    (SELECT id FROM timerqueue.handlers WHERE name <> 'tick')";
        let begun = Instant::now();
        while self.database.psql(left) != "0" || !Ledger::read(&self.folder).lost().is_empty() {
            if begun.elapsed() > DRAIN {
                let rows = self.database.psql("SELECT * FROM timerqueue.jobs ORDER BY id LIMIT 20");
                println!("{}: left in the store: {rows}", self.name);
                break;
            }
            pause(Duration::from_millis(100));
        }
        std::mem::take(&mut self.nodes).into_iter().for_each(Node::quit);
        let ledger = Ledger::read(&self.folder);
        ledger.judge(self.name, &self.troubles);
        ledger
    }
}

/// Runs a history once, or as often as asked.
fn history(name: &'static str, clocks: [&str; 3], act: impl Fn(&mut History<'_>)) -> Vec<Ledger> {
    let times = std::env::var("TIMERQUEUE_NODES").map_or(1, |times| times.parse().unwrap());
    let mut ledgers = Vec::new();
    for _ in 0..times {
        let Some(network) = Network::new(&["db1", "n1", "n2", "n3"]) else { return ledgers };
        let Some(database) = Database::start(&network, "db1") else { return ledgers };
        let mut history = History::start(name, &network, &database, clocks);
        act(&mut history);
        ledgers.push(history.finish());
    }
    ledgers
}

/// Longer than a lease.
fn long() -> Duration {
    LEASE + Duration::from_millis(2_500)
}

#[test]
fn l4_processes_are_killed() {
    history("kill", [""; 3], |history| {
        for host in ["n1", "n2"] {
            history.trouble(host, |history| history.take(host).kill());
            pause(Duration::from_millis(700));
            history.restart(host);
            pause(Duration::from_millis(700));
        }
    });
}

#[test]
fn l5_a_process_is_stopped_for_longer_than_its_lease_and_its_late_settle_is_refused() {
    let ledgers = history("stop", [""; 3], |history| {
        // A run that is under way when its process is stopped.
        history.nodes[0].say("hold held 1000");
        history.until("it runs", || Ledger::read(&history.folder).hosts("held").len() == 1);
        let host = NODES.into_iter().find(|host| Ledger::read(&history.folder).hosts("held") == [*host]).unwrap();
        history.trouble(host, |history| {
            let stopped = history.nodes.iter().position(|node| node.host == host).unwrap();
            history.nodes[stopped].signal("-STOP");
            pause(long());
            history.until("another process runs it", || Ledger::read(&history.folder).hosts("held").len() == 2);
            history.nodes[stopped].signal("-CONT");
        });
        pause(Duration::from_millis(1_500));
    });
    for ledger in ledgers {
        assert_eq!(ledger.hosts("held").len(), 2, "the job of the stopped process ran once more");
        assert!(ledger.refused >= 1, "the late settle is refused");
    }
}

/// The groups of the stopped process are bound elsewhere. When it goes on, it is a member
/// again, takes a share, and its runs are those of jobs that it claims then: no group has two
/// processes at a time.
#[test]
fn m4_a_process_with_bound_jobs_is_stopped_for_longer_than_its_lease_and_goes_on() {
    let groups: Vec<String> = (0..12).map(|n| format!("x{n}")).collect();
    let put = |history: &mut History<'_>, by: &str| {
        let by = history.nodes.iter().position(|node| node.host == by).unwrap();
        groups.iter().for_each(|group| history.nodes[by].say(&format!("bound {group} 3")));
    };
    let ledgers = history("stop of a node with bound jobs", [""; 3], |history| {
        put(history, "n2");
        let ran = |history: &History<'_>, runs: usize| {
            history.until("the bound jobs have run", || history.count("end bound-") >= runs);
        };
        ran(history, 36);
        let held = Ledger::read(&history.folder);
        let share: Vec<&String> = groups.iter().filter(|group| held.hosts_of(group) == ["n1"]).collect();
        println!("the share of the process that is stopped: {share:?}");
        history.trouble("n1", |history| {
            history.nodes[0].signal("-STOP");
            put(history, "n2"); // jobs of the stopped process, too
            pause(long());
            ran(history, 72);
            history.nodes[0].signal("-CONT");
        });
        let members = "SELECT count(*) FROM timerqueue.members WHERE NOT dead";
        history.until("it is a member again", || history.database.psql(members) == "3");
        let shares = "SELECT count(DISTINCT member) FROM timerqueue.affinities WHERE member > 0";
        history.until("it has a share again", || history.database.psql(shares) == "3");
        put(history, "n1");
        ran(history, 108);
    });
    for ledger in ledgers {
        let moved = groups.iter().filter(|group| ledger.hosts_of(group).len() > 1).count();
        assert!(moved > 0, "no group has moved");
        assert_eq!(ledger.overlaps(&groups), Vec::<String>::new());
    }
}

fn cut(name: &'static str, ways: &[(&str, &str)]) {
    history(name, [""; 3], |history| {
        history.trouble("n1", |history| {
            ways.iter().for_each(|(from, to)| history.network.cut(from, to));
            pause(long());
            ways.iter().for_each(|(from, to)| history.network.heal(from, to));
        });
        pause(Duration::from_millis(2_000));
    });
}

#[test]
fn l1_the_link_from_a_process_to_the_server_is_cut() {
    cut("cut to the server", &[("n1", "db1")]);
}

#[test]
fn l1_the_link_from_the_server_to_a_process_is_cut() {
    cut("cut from the server", &[("db1", "n1")]);
}

#[test]
fn l1_the_link_between_a_process_and_the_server_is_cut() {
    cut("cut both ways", &[("n1", "db1"), ("db1", "n1")]);
}

#[test]
fn l7_the_server_is_restarted_and_crashes() {
    history("restart and crash", [""; 3], |history| {
        for mode in ["fast", "immediate"] {
            history.trouble("", |history| {
                history.database.down(mode);
                pause(Duration::from_millis(700));
                history.database.up();
            });
            pause(Duration::from_millis(1_500));
        }
    });
}

/// A transaction with a notice that waits for a standby, which does not exist, holds the lock of
/// notices. Others do not wait for a standby.
#[test]
fn l3_notices_are_blocked() {
    history("blocked notices", [""; 3], |history| {
        let database = history.database;
        database.psql("ALTER SYSTEM SET synchronous_commit = local");
        database.psql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
        database.psql("SELECT pg_reload_conf()");
        pause(Duration::from_millis(500));
        history.trouble("", |history| {
            let sql = "SET synchronous_commit = on; BEGIN; CREATE TABLE blocks (n int); NOTIFY blocks; COMMIT";
            let mut blocks = database.ask(sql).stdout(std::process::Stdio::null()).spawn().unwrap();
            history.until("notices wait", || {
                database.psql("SELECT count(*) FROM pg_locks WHERE locktype = 'object' AND NOT granted") != "0"
            });
            pause(long());
            assert_eq!(blocks.try_wait().unwrap(), None, "the lock was held all the time");
            database.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%NOTIFY blocks%' AND pid <> pg_backend_pid()");
            let _ = blocks.wait();
        });
    });
}

#[test]
fn l12_the_clocks_of_processes_are_wrong() {
    if faketime().is_none() {
        eprintln!("NOT RUN: there is no libfaketime (Debian: apt-get install libfaketime). Nothing was tested.");
        return;
    }
    history("wrong clocks", ["", "+90s", "-3600s"], |_| pause(Duration::from_secs(5)));
}
