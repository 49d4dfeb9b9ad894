//! The store on a server: several nodes, and what can go wrong between them. The numbers are those
//! of the promises in `DESIGN.md`.
#![cfg(unix)]

mod bound;
mod cursor;
mod dump;
mod failover;
mod follow;
mod herd;
mod joint;
mod locks;
mod looks;
#[path = "../support/members.rs"]
mod members;
mod notices;
mod owned;
mod plans;
mod pooled;
mod pooler;
mod rows;
mod server;
mod settings;
mod shop;
mod silence;
mod tls;
mod trips;
mod versions;

use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::store::{
    Applied, Claim, Claimed, Entry, EntryHandler, Limits, NewJob, Op, PostgresOptions, PostgresStore, Reply, Room,
    Settle, Store, Verdict, When,
};
use timerqueue_scheduler::{Cancel, Clash, Error, Handler, Retry, Run, Schedule, Scheduler, State, Terms};

use server::{Server, new_schema, until};

const LONG: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_secs(3_600);

/// Nodes whose safety look comes too late to help a test.
fn options(schema: &str) -> PostgresOptions {
    PostgresOptions::new().schema(schema).safety_look(HOUR)
}

fn connect(server: &Server, options: &PostgresOptions) -> PostgresStore {
    options.connect(Runtime::global(), &server.address()).unwrap()
}

type Log = Arc<Mutex<Vec<String>>>;

/// A node whose handler `log` writes down the key and the attempt.
fn logging(store: PostgresStore, log: &Log) -> Scheduler {
    let log = Arc::clone(log);
    let handler = move |_: serde_json::Value, run: &Run| {
        log.lock().unwrap().push(format!("{}#{}", run.key(), run.attempt()));
    };
    Scheduler::builder().store(store).handler("log", handler).start().unwrap()
}

fn apply(store: &PostgresStore, op: Op) -> Result<Applied, Error> {
    let (send, receive) = mpsc::channel();
    store.apply(vec![op], Reply::new(move |applied| send.send(applied).unwrap()));
    receive.recv().unwrap().map(|applied| applied[0])
}

fn claim(store: &PostgresStore, owner: u64) -> Claimed {
    try_claim(store, owner).unwrap()
}

fn try_claim(store: &PostgresStore, owner: u64) -> Result<Claimed, Error> {
    let (send, receive) = mpsc::channel();
    let rooms = vec![Room { name: "h".into(), places: 9 }];
    let reply = Reply::new(move |claimed| send.send(claimed).unwrap());
    store.claim(Claim { owner, rooms, at_most: 9 }, reply);
    receive.recv().unwrap()
}

fn put_raw(store: &PostgresStore, key: &str) -> Applied {
    try_put(store, key).unwrap()
}

fn try_put(store: &PostgresStore, key: &str) -> Result<Applied, Error> {
    let new = NewJob {
        key: key.into(),
        name: "h".into(),
        payload: "null".into(),
        group: None,
        priority: 0,
        trace: None,
        after: None,
        expires: None,
        terms: Default::default(),
        when: When::After(Duration::ZERO),
        recurrence: None,
        first: None,
        span: None,
        clash: Clash::Refuse,
        refuse_overdue: false,
    };
    apply(store, Op::Put(Box::new(new)))
}

#[test]
fn l1_a_job_of_two_nodes_runs_once() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let nodes = [(); 2].map(|()| logging(connect(server, &options(&schema)), &log));
    let put = |n: u64| {
        let due = Duration::from_millis(n / 2);
        nodes[n as usize % 2].put_to("log", &n).key(&format!("{n:03}")).due(due).send()
    };
    let pending: Vec<_> = (0..300).map(put).collect();
    for pending in pending {
        assert!(pending.wait().unwrap().added().is_some());
    }
    until("all have run", || nodes[0].stats().wait().unwrap().jobs.of(State::Waiting) == 0);
    until("all have ended", || nodes[0].stats().wait().unwrap().jobs.of(State::Running) == 0);
    let mut ran = log.lock().unwrap().clone();
    ran.sort();
    assert_eq!(ran, (0..300).map(|n| format!("{n:03}#1")).collect::<Vec<_>>());
}

#[test]
fn l2_an_earlier_put_and_a_cancel_reach_another_node_by_notice() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let (send, begun) = mpsc::channel();
    let handler = move |_: (), run: &Run| {
        send.send(Instant::now()).unwrap();
        run.token().wait();
    };
    let worker = connect(server, &options(&schema));
    let worker = Scheduler::builder().store(worker).handler("h", handler).start().unwrap();
    let front = Scheduler::builder().store(connect(server, &options(&schema))).start().unwrap();
    // Something to wait for, far ahead.
    let _ = front.put_to("h", &()).key("far").due(HOUR * 24).send().wait().unwrap();
    let mut waits = Vec::new();
    for n in 0..10 {
        let key = n.to_string();
        let _ = front.put_to("h", &()).key(&key).send().wait().unwrap();
        let put = Instant::now();
        waits.push(begun.recv_timeout(LONG).unwrap().saturating_duration_since(put));
        assert_eq!(front.cancel(&key).wait().unwrap(), Cancel::Running);
        until("the run has ended", || front.get(&key).wait().unwrap().is_none());
    }
    waits.sort();
    println!("from put to run on another node: {waits:?}");
    assert!(waits[0] < Duration::from_secs(1), "{waits:?}");
    drop(worker);
}

/// A scheduler with the handler `h` starts, without an engine.
fn enter(store: &PostgresStore, owner: u64) {
    enter_with(store, owner, Limits::default());
}

fn enter_with(store: &PostgresStore, owner: u64, limits: Limits) {
    let handlers = vec![EntryHandler { name: "h".into(), parallel: 9, limits }];
    store.enter(Arc::new(Entry { owner, name: format!("node {owner}").into(), handlers }));
}

/// The lease of a member is over, and another node notices it.
fn end_member(server: &Server, schema: &str, owner: u64) {
    let sql =
        format!("UPDATE {schema}.members SET dead = true, until = 0 WHERE owner = {owner} AND NOT dead RETURNING id");
    assert!(!server.psql(&sql).is_empty(), "a member");
}

#[test]
fn l3_a_lost_notice_costs_no_more_than_the_safety_look() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let node = logging(connect(server, &options(&schema).safety_look(Duration::from_millis(300))), &log);
    until("the node sleeps", || server.psql(&format!("SELECT count(*) FROM {schema}.nodes")) == "1");
    // No node is known, so nothing is told.
    server.psql(&format!("BEGIN; DELETE FROM {schema}.nodes; SELECT {schema}.put('log', 'a'); COMMIT"));
    until("the job has run", || log.lock().unwrap().len() == 1);
    drop(node);
}

#[test]
fn l4_a_killed_node_loses_its_runs_to_others() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let front = Scheduler::builder().store(connect(server, &options(&schema))).start().unwrap();
    let _ = front.put_to("log", &1).key("a").send().wait().unwrap();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "node_for_l4", "--ignored", "--nocapture"])
        .envs([("NODE_ADDRESS", server.address()), ("NODE_SCHEMA", schema.clone())])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("the child runs the job", || front.get("a").wait().unwrap().is_some_and(|job| job.state == State::Running));
    child.kill().unwrap();
    child.wait().unwrap();
    let other = logging(connect(server, &options(&schema)), &log);
    until("the other node has run the job", || !log.lock().unwrap().is_empty());
    assert_eq!(*log.lock().unwrap(), ["a#2"], "the attempt counts");
    drop(other);
}

#[test]
#[ignore = "a process of l4"]
fn node_for_l4() {
    let (Ok(address), Ok(schema)) = (std::env::var("NODE_ADDRESS"), std::env::var("NODE_SCHEMA")) else { return };
    let options = options(&schema).lease(Duration::from_millis(800));
    let store = options.connect(Runtime::global(), &address).unwrap();
    let handler = |_: u32, _: &Run| std::thread::sleep(HOUR);
    let _node = Scheduler::builder().store(store).handler("log", handler).start().unwrap();
    std::thread::sleep(HOUR);
}

#[test]
fn l5_a_late_settle_is_refused() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let (one, two) = (connect(server, &options(&schema)), connect(server, &options(&schema)));
    let _ = put_raw(&one, "a");
    enter(&one, 1);
    let first = claim(&one, 1).jobs.remove(0).held;
    assert!(claim(&two, 2).jobs.is_empty(), "the lease holds");
    end_member(server, &schema, 1);
    let settle = |held| Op::Settle(Box::new(Settle { held, verdict: Verdict::Done, record: None }));
    assert_eq!(apply(&one, settle(first)), Ok(Applied::Held(false)), "before the job is claimed again, too");
    let second = claim(&two, 2).jobs.remove(0).held;
    assert_eq!(apply(&one, settle(first)), Ok(Applied::Held(false)));
    assert_eq!(apply(&two, settle(second)), Ok(Applied::Held(true)));
}

#[test]
fn l6_a_lease_is_renewed_also_while_a_transaction_waits() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let short = options(&schema).lease(Duration::from_secs(3));
    let handler = |_: u32, _: &Run| std::thread::sleep(Duration::from_secs(7));
    let slow = Scheduler::builder().store(connect(server, &short)).handler("log", handler).start().unwrap();
    let _ = slow.put_to("log", &1).key("a").send().wait().unwrap();
    until("it runs", || slow.get("a").wait().unwrap().is_some_and(|job| job.state == State::Running));
    let other = logging(connect(server, &short), &log);
    // The writer of the slow node waits for a row.
    let _ = other.put_to("none", &1).key("b").send().wait().unwrap();
    let lock = format!("BEGIN; SELECT FROM {schema}.jobs WHERE key = 'b' FOR UPDATE; SELECT pg_sleep(5); COMMIT");
    std::thread::scope(|scope| {
        scope.spawn(|| server.psql(&lock));
        std::thread::sleep(Duration::from_millis(200));
        let _ = slow.cancel("b").wait().unwrap();
    });
    until("it has ended", || slow.get("a").wait().unwrap().is_none());
    assert!(log.lock().unwrap().is_empty(), "the other node has never had the job");
}

#[test]
fn l7_a_crash_of_the_server_loses_nothing() {
    let Some(server) = Server::new() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let short = options(&schema).lease(Duration::from_secs(1)).safety_look(Duration::from_secs(1)).patience(LONG);
    let nodes = [(); 2].map(|()| logging(connect(&server, &short), &log));
    let pending: Vec<_> = (0..200)
        .map(|n| {
            if n == 100 {
                server.stop("immediate");
                server.start();
            }
            nodes[n % 2].put_to("log", &n).key(&format!("{n:03}")).due(Duration::from_millis(n as u64 * 5)).send()
        })
        .collect();
    for pending in pending {
        assert!(pending.wait().unwrap().added().is_some(), "a put is not repeated once it was committed");
    }
    until("all have run", || nodes[0].stats().wait().is_ok_and(|stats| stats.jobs.of(State::Waiting) == 0));
    until("all have ended", || nodes[0].stats().wait().is_ok_and(|stats| stats.jobs.of(State::Running) == 0));
    let mut ran: Vec<String> = log.lock().unwrap().iter().map(|run| run[..3].to_owned()).collect();
    ran.sort();
    ran.dedup();
    assert_eq!(ran, (0..200).map(|n| format!("{n:03}")).collect::<Vec<_>>());
}

/// Once, the rows that a claim had read went on to be found after a failure, and the writer took
/// the same row for ever.
#[test]
fn a_failure_in_the_middle_of_a_claim_ends_it() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema));
    let (_, _) = (put_raw(&store, "a"), put_raw(&store, "b"));
    // A schedule that cannot be read dies in the claim, and there its number fails, after the rows
    // were read.
    server.psql(&format!("UPDATE {schema}.jobs SET state = 4, recurs = true, recurring = 'none' WHERE key = 'b'"));
    let rename = |from: &str, to: &str| server.psql(&format!("ALTER SEQUENCE {schema}.{from} RENAME TO {to}"));
    rename("deaths", "renamed");
    let (send, receive) = mpsc::channel();
    let rooms = vec![Room { name: "h".into(), places: 9 }];
    let reply = Reply::new(move |claimed: Result<Claimed, Error>| send.send(claimed.is_err()).unwrap());
    store.claim(Claim { owner: 1, rooms, at_most: 9 }, reply);
    let failed = receive.recv_timeout(LONG);
    if failed.is_err() {
        std::process::abort(); // the writer never ends, so neither would this test
    }
    assert_eq!(failed, Ok(true));
    rename("renamed", "deaths");
    assert_eq!(claim(&store, 1).jobs.len(), 1);
}

/// The first dead jobs make way by hundreds, also one that cannot be read.
#[test]
fn k9_a_dead_row_that_cannot_be_read_makes_way() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema));
    let fails = Handler::new("fail", |_: (), _: &Run| Err::<(), _>("no")).retry(Retry::never());
    let node = Scheduler::builder().store(store).register(fails).start().unwrap();
    let schedule = Schedule::every(HOUR).build().unwrap();
    let _ = node.put_to("fail", &()).key("spoilt").schedule(schedule).send().wait().unwrap();
    server.psql(&format!(
        "UPDATE {schema}.jobs SET recurring = '{{}}', state = 3, died = 1, wake = NULL, earliest = NULL, holds_key = false; \
         INSERT INTO {schema}.jobs (id, key, handler, payload, state, due, holds_key, died) \
         SELECT n + 1000, 'd' || n, (SELECT id FROM {schema}.handlers), 'null', 3, 1, false, n \
         FROM generate_series(2, 100001) AS n; SELECT setval('{schema}.deaths', 100351); SELECT setval('{schema}.ids', 200000)"
    ));
    let _ = node.put_to("fail", &()).key("fails").send().wait().unwrap();
    until("it has failed", || node.get("fails").wait().unwrap().is_some_and(|job| job.state == State::Dead));
    let dead: u64 = server.psql(&format!("SELECT count(*) FROM {schema}.jobs WHERE state = 3")).parse().unwrap();
    assert!(dead < 100_000, "{dead}");
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.jobs WHERE key = 'spoilt'")), "0");
}

#[test]
fn l8_a_put_in_a_transaction_of_the_users() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let node = logging(connect(server, &options(&schema)), &log);
    until("the node sleeps", || server.psql(&format!("SELECT count(*) FROM {schema}.nodes")) == "1");
    server.psql(&format!("BEGIN; SELECT {schema}.put('log', 'undone'); ROLLBACK"));
    server.psql(&format!("BEGIN; SELECT {schema}.put('log', 'a', '{{\"n\": 1}}'); COMMIT"));
    until("the job has run", || log.lock().unwrap().len() == 1);
    let asks = "due => now() + interval '1 day', at_most_once => true, attempts => 3, time_limit => interval '1.5 s', unique_for => '1 h'";
    server.psql(&format!("SELECT {schema}.put('log', 'terms', {asks}, trace => '00-1-2-01')"));
    assert_eq!(node.get("terms").wait().unwrap().unwrap().trace.as_deref(), Some("00-1-2-01"));
    let mut terms = Terms::default();
    (terms.at_most_once, terms.attempts, terms.limit) = (true, Some(3), Some(Duration::from_millis(1_500)));
    terms.unique_for = Some(HOUR);
    assert_eq!(node.get("terms").wait().unwrap().unwrap().terms, terms);
    server.psql(&format!("SELECT {schema}.put('log', 'far', due => now() + interval '1 day')"));
    assert_eq!(server.psql(&format!("SELECT {schema}.put('log', 'far') IS NULL")), "t", "the key is taken");
    let far = || node.get("far").wait().unwrap().unwrap().id;
    let before = far();
    let put = format!("PERFORM {schema}.put('log', 'far', clash => NULL)");
    server.psql(&format!("DO $$ BEGIN {put}; EXCEPTION WHEN raise_exception THEN RETURN; END $$"));
    assert_eq!(far(), before, "a clash without a value replaces no job");
    server.psql(&format!("SELECT {schema}.put('log', 'far', clash => 'replace')"));
    until("the new job has run", || log.lock().unwrap().len() == 2);
    assert_eq!(*log.lock().unwrap(), ["a#1", "far#1"]);
    for nul in [r#""\u0000""#, r#"["\\\u0000"]"#] {
        let put = format!("PERFORM {schema}.put('log', 'nul', '{nul}')");
        let refused = "EXCEPTION WHEN untranslatable_character THEN RETURN";
        server.psql(&format!("DO $$ BEGIN {put}; RAISE 'put'; {refused}; END $$"));
    }
    // The former name of `in_group`.
    let put = format!("PERFORM {schema}.put('log', 'former', affinity => 'x')");
    server.psql(&format!("DO $$ BEGIN {put}; RAISE 'put'; EXCEPTION WHEN undefined_function THEN RETURN; END $$"));
    server.psql(&format!("SELECT {schema}.put('log', 'none', '\"\\\\u0000\"', now() + interval '1 day')"));
    drop(node);
}

#[test]
fn l9_an_occurrence_runs_once_on_any_number_of_nodes() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let nominal = Arc::new(Mutex::new(Vec::new()));
    let nodes = [(); 3].map(|()| {
        let nominal = Arc::clone(&nominal);
        let handler = move |_: u32, run: &Run| nominal.lock().unwrap().push(run.nominal().unwrap());
        let store = connect(server, &options(&schema));
        Scheduler::builder().store(store).handler("tick", handler).start().unwrap()
    });
    for node in &nodes {
        let schedule = Schedule::every(Duration::from_millis(100)).build().unwrap();
        let _ = node.put_to("tick", &1).key("tick").schedule(schedule).clash(Clash::Keep).send().wait().unwrap();
    }
    until("twenty runs", || nominal.lock().unwrap().len() >= 20);
    let ran = nominal.lock().unwrap().clone();
    let mut once = ran.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), ran.len(), "{ran:?}");
}

#[test]
fn l9_occurrences_are_computed_again_when_a_node_starts() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let due = |right: Option<std::time::SystemTime>| {
        let node = logging(connect(server, &options(&schema)), &Log::default());
        let daily = Schedule::cron("0 12 * * *").zone("Etc/GMT").build().unwrap();
        let _ = node.put_to("log", &()).key("daily").schedule(daily).clash(Clash::Keep).send().wait().unwrap();
        let due = || node.get("daily").wait().unwrap().unwrap().due;
        until("the next occurrence is known", || due().is_some() && (right.is_none() || due() == right));
        due()
    };
    let right = due(None);
    // As with the zone data of another day.
    server.psql(&format!(
        "UPDATE {schema}.jobs SET wake = wake + 5000000, recurring = jsonb_set(recurring::jsonb, '{{next}}', \
         jsonb_build_array(wake + 5000000, wake + 5000000))::text WHERE key = 'daily'"
    ));
    assert_eq!(due(right), right);
}

#[test]
fn l9_a_schedule_without_an_occurrence_is_refused() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let front = Scheduler::builder().store(connect(server, &options(&schema))).start().unwrap();
    let now = std::time::SystemTime::now();
    let every = || Schedule::every(HOUR).from(now - HOUR * 10);
    let put = |key: &str, schedule| front.put_to("log", &1).key(key).schedule(schedule).send().wait();
    assert_eq!(put("over", every().until(now - HOUR * 5).build().unwrap()), Err(Error::NoOccurrence));
    assert!(put("last", every().until(now + HOUR * 2).build().unwrap()).unwrap().added().is_some());
    assert_eq!(server.psql(&format!("SELECT string_agg(key, ' ') FROM {schema}.jobs")), "last");
}

#[test]
fn l10_a_server_that_is_away_is_an_error_with_a_kind() {
    let away = PostgresOptions::new().patience(Duration::from_millis(200));
    let error = away.connect(Runtime::global(), "host=/nonexistent user=x").unwrap_err();
    assert!(matches!(error, Error::Store { fault, .. } if fault.heals()), "{error:?}");
    assert!(PostgresStore::connect(Runtime::global(), "no address").is_err());
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    drop(connect(server, &options(&schema)));
    server.psql(&format!("UPDATE {schema}.store SET version = 99, least = 99"));
    let error = options(&schema).connect(Runtime::global(), &server.address()).unwrap_err();
    let too_new = timerqueue_scheduler::store::Fault::TooNew { found: 99, known: 8 };
    assert!(matches!(error, Error::Store { fault, .. } if fault == too_new), "{error:?}");
}

#[test]
fn l11_an_idle_node_asks_nothing() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let address = format!("{} application_name={schema}", server.address());
    let store = options(&schema).lease(HOUR).connect(Runtime::global(), &address).unwrap();
    let node = logging(store, &Log::default());
    let _ = node.put_to("log", &1).key("far").due(HOUR).send().wait().unwrap();
    let asked = format!(
        "SELECT string_agg(query_start::text, ' ' ORDER BY pid) FROM pg_stat_activity WHERE application_name = '{schema}'"
    );
    // The node comes to rest, on a busy machine later. What asks does so in each of the windows.
    let is_at_rest = (0..5).any(|_| {
        std::thread::sleep(Duration::from_secs(1));
        let before = server.psql(&asked);
        assert!(!before.is_empty());
        std::thread::sleep(Duration::from_secs(2));
        server.psql(&asked) == before
    });
    assert!(is_at_rest, "the node asks in each window of two seconds");
}

#[test]
fn l12_the_clock_of_a_node_does_not_matter() {
    let Some(server) = Server::shared() else { return };
    for wrong_by in [-3_600, 90] {
        let (schema, log) = (new_schema(), Log::default());
        let clock = ManualClock::new();
        let now = std::time::SystemTime::now();
        let wrong = Duration::from_secs(i64::unsigned_abs(wrong_by));
        clock.set_wall(if wrong_by < 0 { now - wrong } else { now + wrong });
        let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
        let store = options(&schema).connect(&runtime, &server.address()).unwrap();
        let ran = Arc::clone(&log);
        let handler = move |_: u32, run: &Run| ran.lock().unwrap().push(run.key().to_owned());
        let node = Scheduler::builder().runtime(&runtime).store(store).handler("log", handler).start().unwrap();
        // The put is told of before a claim has read the server's clock.
        std::thread::sleep(Duration::from_millis(300));
        let put = Instant::now();
        let mut passed = put;
        let pending = node.put_to("log", &1).key("a").due(Duration::from_millis(500)).send();
        until("the job has run", || {
            let now = Instant::now();
            clock.advance(now - passed);
            passed = now;
            !log.lock().unwrap().is_empty()
        });
        let took = put.elapsed();
        assert!(took >= Duration::from_millis(500), "early: {took:?}");
        println!("with a clock that is wrong by {wrong_by} s: after {took:?}");
        assert!(pending.wait().unwrap().added().is_some());
    }
}

/// A clock beyond the year 9999 shows the last instant to the scheduler. No wall timer is set by
/// it, since it would fire at once, again and again.
#[test]
fn l12_a_node_whose_clock_is_beyond_all_instants_is_at_rest_and_runs_its_jobs() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let clock = ManualClock::new();
    clock.set_wall(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(300_000_000_000));
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let store = options(&schema).connect(&runtime, &server.address()).unwrap();
    let ran = Arc::clone(&log);
    let handler = move |_: u32, run: &Run| ran.lock().unwrap().push(run.key().to_owned());
    let node = Scheduler::builder().runtime(&runtime).store(store).handler("log", handler).start().unwrap();
    // To wait for an answer would move the clock.
    let put = |key: &str, due| node.put_to("log", &1).key(key).due(due).send();
    let far = put("far", HOUR);
    let mut passed = Instant::now();
    let mut go = |time: Duration, so: &dyn Fn() -> bool| {
        let begun = Instant::now();
        let mut fired = 0;
        while begun.elapsed() < time && !so() {
            let now = Instant::now();
            fired += clock.advance(now - passed);
            passed = now;
            std::thread::sleep(Duration::from_millis(1));
        }
        fired
    };
    go(Duration::from_secs(1), &|| false);
    let at_rest = go(Duration::from_secs(2), &|| false);
    assert!(at_rest < 50, "{at_rest} callbacks at rest");
    let near = put("near", Duration::from_millis(300));
    go(Duration::from_secs(60), &|| !log.lock().unwrap().is_empty());
    assert_eq!(*log.lock().unwrap(), ["near"]);
    assert!([far, near].into_iter().all(|put| put.wait().unwrap().added().is_some()));
}
