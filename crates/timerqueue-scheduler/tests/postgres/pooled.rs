//! A pooler in transaction mode between nodes and server.

use std::time::Duration;

use timerqueue::Runtime;
use timerqueue_scheduler::store::PostgresOptions;
use timerqueue_scheduler::{Cancel, Clash, Run, Schedule, Scheduler, State};

use crate::pooler::Pooler;
use crate::server::{Server, new_schema, until};
use crate::{Log, connect, logging, options};

#[test]
fn l14_nodes_behind_a_pooler_in_transaction_mode_share_jobs() {
    let Some(server) = Server::shared() else { return };
    let Some(pooler) = Pooler::new(server) else { return };
    let (schema, log) = (new_schema(), Log::default());
    let on_it = |sql: &str| {
        let output = std::process::Command::new("psql").args(["-XqAt", &pooler.address(), "-c", sql]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    // What another program has left there.
    on_it("CREATE TEMP TABLE jobs (); CREATE TEMP TABLE members (); CREATE TEMP TABLE store ()");
    let pooled = PostgresOptions::new().schema(&schema).pooled().safety_look(Duration::from_millis(300));
    let node = || logging(pooled.connect(Runtime::global(), &pooler.address()).unwrap(), &log);
    let nodes = [node(), node()];
    let put =
        |n: usize| nodes[n % 2].put_to("log", &n).key(&format!("{n:03}")).due(Duration::from_millis(n as u64)).send();
    let pending: Vec<_> = (0..100).map(put).collect();
    for pending in pending {
        assert!(pending.wait().unwrap().added().is_some());
    }
    let tick = Schedule::every(Duration::from_millis(100)).build().unwrap();
    let _ = nodes[0].put_to("log", &0).key("tick").schedule(tick).clash(Clash::Keep).send().wait().unwrap();
    // By a client without a store.
    server.psql(&format!("SELECT {schema}.put('log', 'sql')"));
    let ran = |what: &str| log.lock().unwrap().iter().filter(|run| run.starts_with(what)).count();
    until("all have run", || ran("") - ran("tick") == 101 && ran("tick") >= 3);
    let _ = nodes[1].cancel("tick").wait().unwrap();
    until("all have ended", || nodes[0].list(Default::default()).wait().unwrap().is_empty());
    assert!(log.lock().unwrap().iter().all(|run| run.ends_with("#1")), "none ran twice");
    // The one connection of the server has nothing of a session.
    let left = "SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels()), \
                current_setting('search_path'), current_setting('enable_seqscan')";
    assert_eq!(on_it(left), "0|0|\"$user\", public|on");
}

#[test]
fn l14_a_node_behind_a_pooler_hears_of_others_at_its_looks_and_tells_them_at_once() {
    let Some(server) = Server::shared() else { return };
    let Some(pooler) = Pooler::new(server) else { return };
    let (schema, log) = (new_schema(), Log::default());
    let look = Duration::from_millis(400);
    let pooled = PostgresOptions::new().schema(&schema).pooled().lease(Duration::from_secs(3));
    let behind = pooled.safety_look(look).connect(Runtime::global(), &pooler.address()).unwrap();
    let (send, begun) = std::sync::mpsc::channel();
    let handler = move |_: serde_json::Value, run: &Run| {
        send.send(run.due()).unwrap();
        run.token().wait();
    };
    let behind = Scheduler::builder().store(behind).handler("behind", handler).start().unwrap();
    let direct = logging(connect(server, &options(&schema)), &log);
    // To the pooled node without a notice, and a cancel by its renewal.
    let _ = direct.put_to("behind", &1).key("a").send().wait().unwrap();
    begun.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(direct.cancel("a").wait().unwrap(), Cancel::Running);
    until("the run has ended", || direct.get("a").wait().unwrap().is_none());
    // From it by a notice: the look of the other one comes in an hour.
    until("the direct node sleeps", || server.psql(&format!("SELECT count(*) FROM {schema}.nodes")) == "1");
    let _ = behind.put_to("log", &1).key("b").send().wait().unwrap();
    until("the job has run", || log.lock().unwrap().len() == 1);
    until("and ended", || behind.stats().wait().unwrap().jobs.of(State::Running) == 0);
}
