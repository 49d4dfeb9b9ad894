//! A server that is away or does not answer, and what waits for it.

use std::process::Command;
use std::time::{Duration, Instant};

use timerqueue::Runtime;
use timerqueue_scheduler::store::{Fault, PostgresOptions};
use timerqueue_scheduler::{Cancel, Change, Error, Scheduler};

use crate::server::{Server, new_schema, until};
use crate::{HOUR, LONG, Log, logging, options};

/// The sessions of a store, which do not answer as long as this lives.
struct Stopped(Vec<String>);

impl Stopped {
    fn new(server: &Server, name: &str) -> Self {
        let pids = server.psql(&format!("SELECT pid FROM pg_stat_activity WHERE application_name = '{name}'"));
        let stopped = Self(pids.lines().map(str::to_owned).collect());
        stopped.signal("-STOP");
        stopped
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").arg(signal).args(&self.0).status().unwrap().success());
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.signal("-CONT");
    }
}

#[test]
fn j14_a_close_and_a_drop_do_not_wait_for_a_server_that_does_not_answer() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let address = format!("{} application_name={schema}", server.address());
    let patient = options(&schema).patience(LONG * 3).lease(HOUR);
    let store = patient.connect(Runtime::global(), &address).unwrap();
    let node = logging(store.clone(), &Log::default());
    let _ = node.put_to("log", &1).key("a").due(HOUR).send().wait().unwrap();
    let _ = node.get("a").wait().unwrap();
    until("the node sleeps", || server.psql(&format!("SELECT count(*) FROM {schema}.nodes")) == "1");
    let stopped = Stopped::new(server, &schema);
    let begun = Instant::now();
    let lists = [(); 2].map(|()| node.list(Default::default())); // one is under way, and one waits
    let report = node.close(Duration::from_millis(200)).wait().unwrap();
    println!("closed after {:?}", begun.elapsed());
    assert!(report.is_drained());
    drop((node, store, lists));
    println!("dropped after {:?}", begun.elapsed());
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    drop(stopped);
}

/// The batches of a writer once had a patience each, one after another.
#[test]
fn l16_each_put_of_a_long_queue_has_its_own_patience() {
    const PATIENCE: Duration = Duration::from_secs(3);
    let Some(server) = Server::new() else { return };
    let options = PostgresOptions::new().patience(PATIENCE);
    let front = Scheduler::builder().store(options.connect(Runtime::global(), &server.address()).unwrap()).start();
    let front = front.unwrap();
    let _ = front.put_to("log", &1).due(HOUR).send().wait().unwrap();
    server.stop("immediate");
    let begun = Instant::now();
    let puts: Vec<_> = (0..6_000).map(|n| front.put_to("log", &n).due(HOUR).send()).collect();
    let sent = begun.elapsed();
    for put in puts {
        assert!(put.wait().is_err());
    }
    let took = begun.elapsed() - sent;
    println!("sent within {sent:?}, answered within {took:?}");
    assert!(took < PATIENCE * 3, "{took:?}");
}

/// Each scheduler on the store asks for jobs, and each of these requests once had a patience of its
/// own from when it was begun: a put behind them waited for all of them.
#[test]
fn l16_a_put_does_not_wait_for_the_patience_of_each_scheduler() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let Some(server) = Server::new() else { return };
    let options = PostgresOptions::new().patience(PATIENCE);
    let store = options.connect(Runtime::global(), &server.address()).unwrap();
    let node = || logging(store.clone(), &Log::default());
    let first = node();
    let _ = first.put_to("log", &1).due(HOUR).send().wait().unwrap();
    server.stop("immediate");
    let others: Vec<_> = (0..8).map(|_| node()).collect(); // each joins, and asks
    let begun = Instant::now();
    assert!(first.put_to("log", &2).due(HOUR).send().wait().is_err());
    let took = begun.elapsed();
    println!("answered within {took:?}");
    assert!(took < PATIENCE * 4, "{took:?}");
    drop(others);
}

#[test]
fn j27_what_waits_for_room_goes_on_when_the_server_answers_again() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let address = format!("{} application_name={schema}", server.address());
    let store = options(&schema).patience(LONG * 3).lease(HOUR).connect(Runtime::global(), &address).unwrap();
    let node = Scheduler::builder().store(store).backlog(10).start().unwrap();
    let put = |n: u32| node.put_to("log", &n).key(&n.to_string()).due(HOUR);
    let _ = put(1_000).send().wait().unwrap();
    let stopped = Stopped::new(server, &schema);
    let first: Vec<_> = (0..10).map(|n| put(n).send()).collect();
    assert!(matches!(put(10).send().wait(), Err(Error::Store { fault: Fault::Busy, .. })));
    let waiting: Vec<_> = (10..500).map(|n| put(n).wait_for_room().send()).collect();
    let patient = node.waiting_for_room();
    let changes = [patient.move_to("0", HOUR * 2), patient.edit("1").priority(3).send(), patient.pause("2")];
    let cancelled = patient.cancel("499");
    drop(stopped);
    assert!(first.into_iter().chain(waiting).all(|put| put.wait().is_ok_and(|placed| placed.added().is_some())));
    assert!(changes.into_iter().all(|change| change.wait() == Ok(Change::Changed)));
    assert_eq!(cancelled.wait(), Ok(Cancel::Cancelled));
}
