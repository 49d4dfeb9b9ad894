//! Members on a server: schedulers of several nodes.

use std::process::{Command, Stdio};

use super::*;

/// The lease must be longer than this machine may be busy with other tests.
fn short(schema: &str) -> PostgresOptions {
    PostgresOptions::new().schema(schema).lease(Duration::from_secs(4)).safety_look(Duration::from_secs(2))
}

#[test]
fn c8_the_share_of_a_killed_node_moves() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let folder = std::env::temp_dir().join(format!("timerqueue-c8-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let ledger = folder.join("ledger");
    let nodes = ["one", "two"].map(|name| {
        let builder = Scheduler::builder().store(connect(server, &short(&schema)));
        crate::members::node(builder, name, &ledger, false)
    });
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "bound::node_for_c8", "--ignored", "--nocapture"])
        .env("NODE_ADDRESS", server.address())
        .env("NODE_SCHEMA", &schema)
        .env("NODE_LEDGER", &ledger)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    crate::members::the_share_of_a_killed_node_moves(&nodes, child, &ledger);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
#[ignore = "a process of c8"]
fn node_for_c8() {
    let var = |name| std::env::var(name).ok();
    let (Some(address), Some(schema), Some(ledger)) = (var("NODE_ADDRESS"), var("NODE_SCHEMA"), var("NODE_LEDGER"))
    else {
        return;
    };
    let store = short(&schema).connect(Runtime::global(), &address).unwrap();
    let _node = crate::members::node(Scheduler::builder().store(store), "child", ledger.as_ref(), true);
    std::thread::sleep(HOUR);
}

#[test]
fn m6_m7_limits_hold_with_eight_threads() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    crate::members::limits_hold_with_eight_threads(
        || Scheduler::builder().store(connect(server, &options(&schema))),
        40,
    );
}

/// A put by SQL, and a statement of a node of an older version, which knows no other column than
/// `wake`.
#[test]
fn m2_sql_and_older_nodes_keep_the_group() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema));
    server.psql(&format!("SELECT {schema}.put('h', 'a', in_group => 'x')"));
    let row = || server.psql(&format!("SELECT wake IS NULL, apart = due, affinity FROM {schema}.jobs"));
    assert_eq!(row(), "t|t|x");
    let head = |of: &str| server.psql(&format!("SELECT {of} FROM {schema}.heads"));
    assert_eq!(head("head IS NOT NULL AND idle IS NULL"), "t");
    server.psql(&format!("UPDATE {schema}.jobs SET due = 7, wake = 7"));
    assert_eq!(row(), "t|t|x");
    assert!(claim(&store, 1).jobs.is_empty(), "no member");
    let log = Log::default();
    let handler = {
        let log = Arc::clone(&log);
        move |_: serde_json::Value, run: &Run| log.lock().unwrap().push(run.key().to_owned())
    };
    let node = Scheduler::builder().store(store).handler("h", handler).start().unwrap();
    until("the job has run", || log.lock().unwrap().len() == 1);
    server.psql(&format!("SELECT {schema}.put('h', 'b', in_group => 'x')"));
    until("the second job has run", || log.lock().unwrap().len() == 2);
    until("the group is idle", || head("idle IS NOT NULL AND head IS NULL AND member > 0") == "t");
    drop(node);
}

/// The job of the group is not the first of its commit, and the node of the group has no
/// place for the first one.
#[test]
fn l18_m2_the_node_of_a_group_is_told_beside_an_earlier_job() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let options = options(&schema).safety_look(HOUR);
    let log = Log::default();
    let handler = |log: &Log| {
        let log = Arc::clone(log);
        move |_: u32, run: &Run| log.lock().unwrap().push(run.key().to_owned())
    };
    let bound = Scheduler::builder().store(connect(server, &options)).handler("bound", handler(&log)).start().unwrap();
    let other = Scheduler::builder().store(connect(server, &options)).handler("other", |_: u32, _: &Run| {});
    let other = other.start().unwrap();
    let put = |key: &str| {
        let first = other.put_to("other", &0).key(&format!("{key}-other"));
        let second = other.put_to("bound", &0).group("x").key(key).due(Duration::from_millis(1));
        other.put_many([first, second]).wait().unwrap();
    };
    for (n, key) in ["a", "b", "c"].into_iter().enumerate() {
        put(key);
        until("the job of the group has run", || log.lock().unwrap().len() == n + 1);
        std::thread::sleep(Duration::from_millis(300)); // both nodes sleep again
    }
    drop(bound);
}

/// All groups are on the other node. The one that comes back looks for its share at once, and
/// not at its safety look.
#[test]
fn m5_a_node_that_was_taken_for_dead_takes_its_share_when_it_is_back() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let options = options(&schema).lease(Duration::from_secs(3));
    let node = |name: &str| {
        let builder = Scheduler::builder().store(connect(server, &options)).node_name(name);
        builder.handler("h", |_: u32, _: &Run| {}).start().unwrap()
    };
    let nodes = [node("one"), node("two")];
    until("two members", || nodes[0].nodes().wait().unwrap().len() == 2);
    for n in 0..32u32 {
        let group = format!("x{n}");
        let _ = nodes[0].put_to("h", &n).key(&group).group(&group).send().wait().unwrap();
    }
    let held = |name: &str| {
        let sql = format!(
            "SELECT count(*) FROM {schema}.affinities a JOIN {schema}.members m ON m.id = a.member \
             WHERE m.name = '{name}' AND NOT m.dead"
        );
        server.psql(&sql).parse::<usize>().unwrap()
    };
    until("all are bound, and idle", || {
        held("one") + held("two") == 32 && server.psql(&format!("SELECT count(*) FROM {schema}.jobs")) == "0"
    });
    server.psql(&format!(
        "BEGIN; UPDATE {schema}.members SET dead = true WHERE name = 'two'; \
         UPDATE {schema}.affinities SET next = 0, version = version + 1, member = m.id FROM {schema}.members m WHERE m.name = 'one'; COMMIT"
    ));
    until("the node is a member again, with a share", || held("two") > 0);
    drop(nodes);
}

/// Once, a member claimed without end for a job that a statement of a user's had taken away, and
/// real jobs had no place.
#[test]
fn m4_jobs_taken_away_by_statements_are_in_no_other_jobs_way() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let ran = Arc::clone(&log);
    let handler = move |_: u32, run: &Run| ran.lock().unwrap().push(run.key().to_owned());
    let builder = Scheduler::builder().store(connect(server, &options(&schema))).parallel(1);
    let node = builder.handler("h", handler).start().unwrap();
    let groups = ["a", "b", "c"];
    for group in groups {
        // binds it
        let _ = node.put_to("h", &1).key(group).group(group).send().wait().unwrap();
    }
    until("all are bound", || log.lock().unwrap().len() == 3);
    for (n, group) in groups.into_iter().enumerate() {
        // Due after the statements below, also on a busy machine.
        let due = Duration::from_millis(3_000 + 50 * n as u64);
        let _ = node.put_to("h", &2).key(group).group(group).due(due).send().wait().unwrap();
    }
    server.psql(&format!("SELECT {schema}.put('h', 'a', due => now() + interval '1 day', clash => 'replace')"));
    server.psql(&format!("DELETE FROM {schema}.jobs WHERE key = 'b'"));
    until("the third one has run", || log.lock().unwrap().len() == 4);
    let heads = format!("SELECT count(*) FROM {schema}.heads WHERE head IS NOT NULL");
    until("no group is looked at again", || server.psql(&heads) == "0");
}
