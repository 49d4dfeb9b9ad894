//! Servers that go away, standbys, and commits whose answers are lost.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use timerqueue::Runtime;
use timerqueue_scheduler::store::{Applied, Fault, Placed, PostgresOptions};
use timerqueue_scheduler::{Error, Scheduler, State};

use crate::server::{Server, new_schema, until};
use crate::{HOUR, LONG, Log, connect, logging, options, put_raw};

/// A primary and a synchronous standby. The clock of the standby differs by some microseconds once
/// it is promoted.
struct Pair {
    primary: Server,
    standby: Server,
}

impl Pair {
    fn new(schema: &str, skew: i64) -> Option<(Self, [Scheduler; 2], Log)> {
        let primary = Server::new()?;
        let standby = primary.standby(&format!("test.skew = {skew}"));
        primary.psql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        primary.psql("SELECT pg_reload_conf()");
        until("the standby is synchronous", || {
            primary.psql("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == "1"
        });
        let pair = Self { primary, standby };
        let log = Log::default();
        let nodes =
            [(); 2].map(|()| logging(pair.options(schema).connect(Runtime::global(), &pair.address()).unwrap(), &log));
        pair.primary.psql(&format!(
            "CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS bigint LANGUAGE sql VOLATILE AS \
             $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000 + coalesce(current_setting('test.skew', true), '0')::numeric)::bigint $$"
        ));
        Some((pair, nodes, log))
    }

    fn address(&self) -> String {
        let [one, two] = [&self.primary, &self.standby].map(|server| server.folder().display().to_string());
        format!("host={one},{two} user=test dbname=postgres")
    }

    fn options(&self, schema: &str) -> PostgresOptions {
        options(schema).lease(Duration::from_secs(1)).safety_look(Duration::from_millis(500)).patience(LONG)
    }

    /// Puts jobs that are due within a second, and loses the primary in the middle. Returns when
    /// all puts were answered.
    fn fail_over(&self, nodes: &[Scheduler; 2]) {
        let put = |n: usize| {
            nodes[n % 2].put_to("log", &n).key(&format!("{n:03}")).due(Duration::from_millis(n as u64 * 5)).send()
        };
        let mut pending: Vec<_> = (0..100).map(put).collect();
        self.primary.stop("immediate");
        pending.extend((100..200).map(put));
        self.standby.promote();
        for pending in pending {
            assert!(pending.wait().unwrap().added().is_some(), "a put is not repeated once it was committed");
        }
    }
}

fn all_ran(nodes: &[Scheduler; 2], log: &Log, numbers: std::ops::Range<usize>) {
    let wanted: Vec<String> = numbers.map(|n| format!("{n:03}")).collect();
    let is_one = |run: &String| run.len() >= 4 && run.as_bytes()[3] == b'#';
    let ran = || {
        let mut ran: Vec<String> =
            log.lock().unwrap().iter().filter(|run| is_one(run)).map(|run| run[..3].to_owned()).collect();
        ran.sort();
        ran.dedup();
        ran
    };
    until("all have run", || ran().len() >= wanted.len());
    assert_eq!(ran(), wanted);
    until("all have ended", || nodes[0].stats().wait().is_ok_and(|stats| stats.jobs.of(State::Running) == 0));
}

#[test]
fn l15_a_standby_takes_over_and_nothing_accepted_is_lost() {
    let schema = new_schema();
    let Some((pair, nodes, log)) = Pair::new(&schema, 300_000_000) else { return };
    // A standby alone is an error with a kind, and a store does not start on it.
    let alone = pair.options(&schema).connect(Runtime::global(), &pair.standby.address()).unwrap_err();
    assert!(matches!(alone, Error::Store { fault: Fault::ReadOnly, .. }), "{alone:?}");
    // By the new primary, whose clock is five minutes ahead, one of these is due.
    let due = |key: &str, seconds| {
        let put = nodes[0].put_to("log", &0).key(key).due(Duration::from_secs(seconds));
        assert!(put.send().wait().unwrap().added().is_some());
    };
    due("within five minutes", 200);
    due("later", 500);
    pair.fail_over(&nodes);
    all_ran(&nodes, &log, 0..200);
    until("what is due by the new clock has run", || log.lock().unwrap().contains(&"within five minutes#1".to_owned()));
    assert_eq!(nodes[1].get("later").wait().unwrap().unwrap().state, State::Waiting);
}

#[test]
fn l15_nothing_is_early_by_the_clock_of_a_new_primary() {
    let schema = new_schema();
    let Some((pair, nodes, log)) = Pair::new(&schema, -300_000_000) else { return };
    let soon = nodes[0].put_to("log", &0).key("soon").due(Duration::from_secs(4)).send().wait().unwrap();
    assert!(soon.added().is_some());
    pair.fail_over(&nodes);
    let ran_before = log.lock().unwrap().len();
    std::thread::sleep(Duration::from_secs(4));
    assert!(!log.lock().unwrap().iter().any(|run| run.starts_with("soon")), "its time is five minutes away");
    println!("{ran_before} of 200 jobs ran before the primary was lost");
    // The clock is set right, and the looks of the nodes see it.
    pair.standby.configure("test.skew = 0");
    pair.standby.psql("SELECT pg_reload_conf()");
    all_ran(&nodes, &log, 0..200);
    until("the other one has run", || log.lock().unwrap().iter().any(|run| run.starts_with("soon")));
}

/// Accepts connections and never answers.
fn silent() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, count) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for connection in listener.incoming() {
            counted.fetch_add(1, Ordering::Relaxed);
            kept.push(connection);
        }
    });
    (port, count)
}

#[test]
fn l16_a_server_that_does_not_answer_takes_its_share_of_the_time_and_is_not_asked_again() {
    let Some(server) = Server::shared() else { return };
    let (port, asked) = silent();
    let folder = server.folder().display();
    let address = format!("host=127.0.0.1,{folder} port={port},5432 user=test dbname=postgres");
    let (schema, log) = (new_schema(), Log::default());
    let patient = options(&schema).patience(Duration::from_secs(2));
    let store = patient.connect(Runtime::global(), &address).unwrap();
    let node = logging(store, &log);
    let _ = node.put_to("log", &1).key("a").send().wait().unwrap();
    until("the job has run and ended", || node.get("a").wait().unwrap().is_none());
    assert_eq!(asked.load(Ordering::Relaxed), 1, "three connections, and one question");
}

#[test]
fn l16_a_server_that_is_set_to_read_only_is_a_fault_until_it_takes_writes_again() {
    let Some(server) = Server::new() else { return };
    let schema = new_schema();
    let impatient = options(&schema).patience(Duration::from_secs(3));
    let store = connect(&server, &impatient);
    let _ = put_raw(&store, "a");
    let read_only = |on: &str| {
        server.configure(&format!("default_transaction_read_only = {on}"));
        server.psql("SELECT pg_reload_conf()");
        until("it is set", || server.psql("SHOW default_transaction_read_only") == on);
    };
    read_only("on");
    until("a put is refused", || {
        matches!(crate::try_put(&store, &new_schema()), Err(Error::Store { fault: Fault::ReadOnly, .. }))
    });
    read_only("off");
    until("a put is taken", || crate::try_put(&store, "b").is_ok());
}

/// Carries bytes between stores and a server, and cuts a connection at its next commit.
struct Cutter {
    port: u16,
    /// Before the commit reaches the server.
    before: Arc<AtomicBool>,
    /// After the server has committed, and before its answer.
    after: Arc<AtomicBool>,
    /// No further connection is made.
    refuses: Arc<AtomicBool>,
}

impl Cutter {
    fn new(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cutter = Self {
            port: listener.local_addr().unwrap().port(),
            before: Arc::default(),
            after: Arc::default(),
            refuses: Arc::default(),
        };
        let refuses = Arc::clone(&cutter.refuses);
        let socket = server.folder().join(".s.PGSQL.5432");
        let (before, after) = (Arc::clone(&cutter.before), Arc::clone(&cutter.after));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if refuses.load(Ordering::SeqCst) {
                    continue;
                }
                let (client, server) = (client.unwrap(), UnixStream::connect(&socket).unwrap());
                let (before, after) = (Arc::clone(&before), Arc::clone(&after));
                std::thread::spawn(move || carry(client, server, &before, &after));
            }
        });
        cutter
    }
}

fn carry(mut client: TcpStream, mut server: UnixStream, before: &AtomicBool, after: &AtomicBool) {
    let (mut back, mut to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let is_cut = Arc::new(AtomicBool::new(false));
    let cut = Arc::clone(&is_cut);
    let answers = std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok(count @ 1..) = back.read(&mut buffer) {
            if cut.load(Ordering::SeqCst) || to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
    let mut buffer = [0; 65_536];
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        if buffer[..count].windows(7).any(|text| text == b"COMMIT\0") {
            if before.swap(false, Ordering::SeqCst) {
                break;
            }
            if after.swap(false, Ordering::SeqCst) {
                is_cut.store(true, Ordering::SeqCst);
            }
        }
        if server.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    if !is_cut.load(Ordering::SeqCst) {
        let _ = server.shutdown(std::net::Shutdown::Both);
    }
    let _ = client.shutdown(std::net::Shutdown::Both);
    let _ = answers.join();
}

#[test]
fn l7_a_commit_whose_answer_is_lost_is_done_once() {
    let Some(server) = Server::shared() else { return };
    let cutter = Cutter::new(server);
    let schema = new_schema();
    let address = format!("host=127.0.0.1 port={} user=test dbname=postgres", cutter.port);
    let store = options(&schema).connect(Runtime::global(), &address).unwrap();
    let rows = || server.psql(&format!("SELECT count(*) FROM {schema}.jobs"));
    for (n, cut) in [&cutter.before, &cutter.after, &cutter.after, &cutter.before].into_iter().enumerate() {
        cut.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        let put = put_raw(&store, &n.to_string());
        assert!(!cut.load(Ordering::SeqCst), "the connection was cut");
        assert!(matches!(put, Applied::Placed(Placed::Added(_))), "{put:?} after {:?}", begun.elapsed());
        assert_eq!(rows(), (n + 1).to_string());
    }
}

/// The server began the run, and its answer was lost: without the put-back the job would wait for
/// the end of its member.
#[test]
fn l4_a_run_of_which_no_scheduler_has_heard_waits_again() {
    let Some(server) = Server::shared() else { return };
    let (cutter, schema) = (Cutter::new(server), new_schema());
    let address = format!("host=127.0.0.1 port={} user=test dbname=postgres", cutter.port);
    let hasty = options(&schema).lease(HOUR).patience(Duration::from_secs(2));
    let store = hasty.connect(Runtime::global(), &address).unwrap();
    put_raw(&store, "a");
    crate::enter(&store, 1);
    assert!(matches!(put_raw(&store, "b"), Applied::Placed(_)), "it is a member");
    cutter.refuses.store(true, Ordering::SeqCst);
    cutter.after.store(true, Ordering::SeqCst);
    assert!(crate::try_claim(&store, 1).is_err(), "whether it was committed is not known");
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.jobs WHERE state = 2")), "2");
    cutter.refuses.store(false, Ordering::SeqCst);
    let mut jobs = Vec::new();
    until("both are claimed", || {
        jobs.extend(crate::try_claim(&store, 1).into_iter().flat_map(|claimed| claimed.jobs));
        jobs.len() == 2
    });
    assert!(jobs.iter().all(|job| job.attempt == 1), "the attempts do not count: {jobs:?}");
}
