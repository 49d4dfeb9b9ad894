//! Notices to other nodes, while another session holds their lock.

use std::process::Stdio;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::store::{Micros, Notice, Store};
use timerqueue_scheduler::{JobEnd, Returned, Run, Scheduler};

use crate::server::{Server, new_schema, until};
use crate::{HOUR, Log, connect, enter, logging, options};

const PATIENCE: Duration = Duration::from_secs(15);

/// A transaction with a notice that waits for a standby, which does not exist, holds the lock of
/// notices. Others do not wait for a standby.
#[test]
fn l2_a_notice_that_waits_holds_up_neither_puts_nor_claims_nor_settles() {
    let settings = "-c synchronous_commit=local -c synchronous_standby_names=nobody";
    let Some(server) = Server::with(settings, |_| {}) else { return };
    let (schema, log, own) = (new_schema(), Log::default(), Log::default());
    let patient = options(&schema).patience(PATIENCE).lease(HOUR);
    let worker = logging(connect(&server, &patient), &log);
    let handler = {
        let own = Log::clone(&own);
        move |_: u32, run: &timerqueue_scheduler::Run| own.lock().unwrap().push(run.key().to_owned())
    };
    let front = Scheduler::builder().store(connect(&server, &patient)).handler("own", handler).start().unwrap();
    let put = |name: &str, key: &str| assert!(front.put_to(name, &0).key(key).send().wait().unwrap().added().is_some());
    put("log", "first");
    until("the other node is told", || log.lock().unwrap().len() == 1);
    let mut holds = server.command("psql");
    let sql = "SET synchronous_commit = on; BEGIN; CREATE TABLE blocks (n int); NOTIFY blocks; COMMIT";
    holds.args(["-X", "-q", "-U", "test", "-d", "postgres", "-c", sql, "-h"]).arg(server.folder());
    let mut holds = holds.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the lock is held", || {
        server.psql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == "1"
    });
    let begun = Instant::now();
    for n in 0..20 {
        put("log", &format!("told{n}")); // the other node is to be told
        put("own", &format!("own{n}"));
    }
    until("the own jobs have run", || own.lock().unwrap().len() == 20);
    let past = begun.elapsed();
    println!("40 puts and 20 runs while notices wait: {past:?}");
    assert!(past < PATIENCE / 2, "{past:?}");
    until("a notice waits", || {
        server.psql("SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'object' AND NOT granted") == "t"
    });
    assert_eq!(log.lock().unwrap().len(), 1, "no notice has come");
    server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
    let _ = holds.wait();
    until("the notices are sent", || log.lock().unwrap().len() == 21);
    drop(worker);
}

/// A safety look may come later than the job is due.
#[test]
fn l2_a_put_by_sql_is_told_however_late_it_is_due() {
    let Some(server) = Server::shared() else { return };
    for more in ["", ", in_group => 'x'"] {
        let (schema, log) = (new_schema(), Log::default());
        let clock = ManualClock::new();
        clock.set_wall(std::time::SystemTime::now());
        let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
        let store = options(&schema).connect(&runtime, &server.address()).unwrap();
        let ran = Log::clone(&log);
        let handler = move |_: (), run: &Run| ran.lock().unwrap().push(run.key().to_owned());
        let node = Scheduler::builder().runtime(&runtime).store(store).handler("log", handler).start().unwrap();
        until("the node sleeps", || {
            clock.advance(Duration::from_millis(1));
            server.psql(&format!("SELECT count(*) FROM {schema}.nodes")) == "1"
        });
        server.psql(&format!("SELECT {schema}.put('log', 'a', due => now() + interval '5 minutes'{more})"));
        let later = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 301000000";
        server.psql(&format!("CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS bigint LANGUAGE sql AS '{later}'"));
        until("the job has run", || {
            clock.advance(Duration::from_secs(1));
            !log.lock().unwrap().is_empty()
        });
        drop(node);
    }
}

/// Each node is told of jobs that its own safety look would find too late. The safety look of the
/// node that puts a job may be set otherwise.
#[test]
fn l2_nodes_with_other_safety_looks_are_told() {
    let Some(server) = Server::shared() else { return };
    for group in [None, Some("x")] {
        let (schema, log) = (new_schema(), Log::default());
        let worker = logging(connect(server, &options(&schema)), &log);
        until("the node sleeps", || server.psql(&format!("SELECT count(*) FROM {schema}.nodes")) == "1");
        let hasty = connect(server, &options(&schema).safety_look(Duration::from_millis(100)));
        let front = Scheduler::builder().store(hasty).start().unwrap();
        let put = front.put_to("log", &0).key("a").due(Duration::from_secs(2));
        let put = match group {
            Some(group) => put.group(group),
            None => put,
        };
        let _ = put.send().wait().unwrap();
        until("the job has run", || log.lock().unwrap().len() == 1);
        drop((worker, front));
    }
}

/// Others know that a node sleeps before it has the answer to its commit.
#[test]
fn l2_a_node_hears_what_it_is_told_before_it_knows_that_it_sleeps() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema));
    let (send, told) = mpsc::channel();
    store.watch(Arc::new(move |notice| send.send(notice).is_ok()));
    enter(&store, 7);
    until("it is told", || {
        server.psql(&format!("SELECT pg_notify('timerqueue {schema}', 'w1234567 1 7')"));
        told.try_iter().any(|notice| matches!(notice, Notice::Wake { at } if at == Micros::new(1_234_567)))
    });
}

/// Its store stays open for another one.
#[test]
fn l2_a_scheduler_that_has_closed_has_no_place() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let store = connect(server, &options(&schema));
    let front = Scheduler::builder().store(store.clone()).start().unwrap();
    let put = |key: &str| assert!(front.put_to("log", &0).key(key).send().wait().unwrap().added().is_some());
    put("first");
    let has_place = "handlers && ARRAY(SELECT id FROM handlers)";
    let sleeps = |which: &str| {
        let count = format!("SET search_path = {schema}; SELECT count(*) FROM nodes WHERE {has_place} AND {which}");
        until("it sleeps", || server.psql(&count) == "1");
    };
    let closed = logging(store, &log);
    sleeps("true");
    let owner = server.psql(&format!("SET search_path = {schema}; SELECT owner FROM nodes WHERE {has_place}"));
    assert!(closed.close(HOUR).wait().unwrap().is_drained());
    let _other = logging(connect(server, &options(&schema)), &log);
    sleeps(&format!("owner <> {owner}"));
    put("second");
    until("the other one is told", || log.lock().unwrap().len() == 2);
}

/// Without the notice it would be at the safety look, in an hour.
#[test]
fn j32_the_end_of_a_run_of_another_node_is_awaited() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let front = Scheduler::builder().store(connect(server, &options(&schema))).start().unwrap();
    let back = Scheduler::builder().store(connect(server, &options(&schema)));
    let _back = back.handler("h", |n: u32, _: &Run| Returned(n + 1)).start().unwrap();
    for n in 0..20 {
        let put = front.put_to("h", &n).due(Duration::from_millis(n.into())).kept_for(HOUR).send().wait().unwrap();
        match front.wait_for(put.added().unwrap(), Duration::from_secs(60)).wait().unwrap() {
            JobEnd::Done(job) => assert_eq!(job.value::<u32>().unwrap().unwrap(), n + 1),
            other => panic!("{other:?}"),
        }
    }
}
