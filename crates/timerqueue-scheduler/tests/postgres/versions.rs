//! Nodes of several versions on one schema.

use std::time::Duration;

use timerqueue::Runtime;
use timerqueue_scheduler::store::Fault;
use timerqueue_scheduler::{Error, State};

use crate::locks::Open;
use crate::server::{Server, new_schema, until};
use crate::{Log, connect, logging, options};

#[test]
fn l17_a_node_uses_tables_of_a_newer_version_that_allow_it() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let before = logging(connect(server, &options(&schema)), &log);
    assert_eq!(server.psql(&format!("SELECT least <= version FROM {schema}.store")), "t");
    // What a later step may do while nodes of this version run: new columns in each place, of each
    // table that nodes write to.
    for table in ["jobs", "handlers", "nodes", "writers", "minutes", "store"] {
        server.psql(&format!(
            "ALTER TABLE {schema}.{table} ADD COLUMN later text, ADD COLUMN more bigint NOT NULL DEFAULT 7"
        ));
    }
    server.psql(&format!("CREATE TABLE {schema}.later (a bigint); UPDATE {schema}.store SET version = 99"));
    let after = logging(connect(server, &options(&schema)), &log);
    for (n, node) in [&before, &after].into_iter().enumerate() {
        let _ = node.put_to("log", &n).key(&n.to_string()).due(Duration::from_millis(20)).send().wait().unwrap();
    }
    server.psql(&format!("SELECT {schema}.put('log', '2')"));
    until("all have run", || log.lock().unwrap().len() == 3);
    until("all have ended", || before.stats().wait().unwrap().jobs.of(State::Running) == 0);
    assert_eq!(server.psql(&format!("SELECT version FROM {schema}.store")), "99", "nobody migrates backwards");
    // And a step that this version cannot live with.
    server.psql(&format!("UPDATE {schema}.store SET least = 98"));
    let error = options(&schema).connect(Runtime::global(), &server.address()).unwrap_err();
    assert!(matches!(error, Error::Store { fault: Fault::TooNew { found: 99, .. }, .. }), "{error:?}");
}

#[test]
fn l17_tables_of_the_version_before_are_brought_up_to_date() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let before = logging(connect(server, &options(&schema)), &Log::default());
    server.psql(&format!("UPDATE {schema}.store SET version = 2; DROP FUNCTION {schema}.put"));
    drop(connect(server, &options(&schema)));
    assert_eq!(server.psql(&format!("SELECT version FROM {schema}.store")), "8");
    server.psql(&format!("SELECT {schema}.put('log', 'a')"));
    until("the job has left", || server.psql(&format!("SELECT count(*) FROM {schema}.jobs")) == "0");
    drop(before);
}

/// A transaction, such as one of an older node's, holds what the last step needs, and asks for what
/// the first one has locked. The server undoes the steps, since their session looks for deadlocks.
#[test]
fn l17_steps_that_the_server_undoes_are_made_again() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    drop(connect(server, &options(&schema)));
    server.psql(&format!("UPDATE {schema}.store SET version = 2"));
    let mut older = Open::new(server, &schema);
    older.run("SET deadlock_timeout = '1h'; LOCK TABLE store IN SHARE MODE");
    let upgrade = std::thread::spawn({
        let (options, address) = (options(&schema), server.address());
        move || options.connect(Runtime::global(), &*format!("{address} options='-c deadlock_timeout=3s'"))
    });
    until("the steps wait", || {
        let waits =
            format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{schema}.store'::regclass");
        server.psql(&waits) == "1"
    });
    older.run("SELECT count(*) FROM jobs");
    older.end("COMMIT");
    upgrade.join().unwrap().unwrap();
    assert_eq!(server.psql(&format!("SELECT version FROM {schema}.store")), "8");
}

/// As that of a node which did not come to its next statement in time.
#[test]
fn l17_steps_whose_session_has_ended_are_made_again() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    drop(connect(server, &options(&schema)));
    server.psql(&format!("UPDATE {schema}.store SET version = 2"));
    let mut older = Open::new(server, &schema);
    older.run("LOCK TABLE store IN SHARE MODE");
    let upgrade = std::thread::spawn({
        let (options, address) = (options(&schema), server.address());
        move || options.connect(Runtime::global(), &*address)
    });
    let waiting = format!("FROM pg_locks WHERE NOT granted AND relation = '{schema}.store'::regclass");
    until("the steps wait", || server.psql(&format!("SELECT count(*) {waiting}")) == "1");
    server.psql(&format!("SELECT pg_terminate_backend(pid) {waiting}"));
    older.end("COMMIT");
    upgrade.join().unwrap().unwrap();
    assert_eq!(server.psql(&format!("SELECT version FROM {schema}.store")), "8");
}

/// Once, a step that took longer than the patience was undone, at each start again.
#[test]
fn l17_a_step_may_take_longer_than_the_patience() {
    let Some(server) = Server::new() else { return };
    let schema = new_schema();
    drop(connect(&server, &options(&schema)));
    server.psql(&format!(
        "UPDATE {schema}.store SET version = 2; DROP FUNCTION {schema}.put; \
         CREATE FUNCTION slow() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.4); END'; \
         CREATE EVENT TRIGGER slow ON ddl_command_end WHEN TAG IN ('CREATE FUNCTION') EXECUTE FUNCTION slow()"
    ));
    let hasty = options(&schema).patience(Duration::from_secs(5)); // the last step takes twice as long
    // Two that start together: one makes the step, and the other waits for it.
    let stores = [(); 2].map(|()| {
        std::thread::spawn({
            let (hasty, address) = (hasty.clone(), server.address());
            move || hasty.connect(Runtime::global(), &address)
        })
    });
    for store in stores {
        store.join().unwrap().unwrap();
    }
    assert_eq!(server.psql(&format!("SELECT version FROM {schema}.store")), "8");
}

/// Statements of nodes of version 7 and before: they write and read heads in `affinities`.
#[test]
fn l17_an_older_node_finds_the_heads_of_groups_and_they_are_found() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema));
    let put = |key: &str| {
        server.psql(&format!("SELECT {schema}.put('h', '{key}', due => now() + interval '1 day', in_group => 'g')"))
    };
    let head = |of: &str| server.psql(&format!("SELECT count(head), count(idle) FROM {schema}.{of}"));
    put("a");
    assert_eq!((head("heads"), head("affinities")), ("1|0".to_owned(), "0|1".to_owned()));
    server.psql(&format!(
        "INSERT INTO {schema}.members (owner, name, since, until, handlers) VALUES (77, 'older', 1, {schema}.clock() + 60000000, '[]')"
    ));
    assert_eq!(head("affinities"), "1|0");
    let same = format!("SELECT bool_and(a.head = h.head) FROM {schema}.affinities a JOIN {schema}.heads h USING (id)");
    server.psql(&format!("SELECT {schema}.move('a', now() + interval '1 hour')"));
    assert_eq!(server.psql(&same), "t");
    // It ends the group's only job.
    server.psql(&format!(
        "DELETE FROM {schema}.jobs; UPDATE {schema}.affinities SET head = NULL, idle = coalesce(idle, {schema}.clock())"
    ));
    assert_eq!(head("heads"), "0|1");
    put("b");
    assert_eq!((head("heads"), head("affinities")), ("1|0".to_owned(), "1|0".to_owned()));
    // It has gone, so no head is written for it; then it forgets groups.
    server.psql(&format!("UPDATE {schema}.members SET dead = true; UPDATE {schema}.affinities SET idle = 1"));
    assert_eq!(
        server.psql(&format!(
            "WITH gone AS (DELETE FROM {schema}.affinities WHERE idle < 2 RETURNING id) SELECT count(*) FROM gone"
        )),
        "0"
    );
    server.psql(&format!("DELETE FROM {schema}.jobs; DELETE FROM {schema}.affinities WHERE idle < 2"));
    assert_eq!(head("heads"), "0|0");
    drop(store);
}

/// It does not see the node, and the node's look at the heads does not see it.
#[test]
fn l17_an_older_node_finds_the_heads_of_a_transaction_that_was_under_way_as_it_came() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema).lease(Duration::from_secs(3)));
    let put = |key: &str| format!("{schema}.put('h', '{key}', due => now() + interval '1 day', in_group => '{key}')");
    server.psql(&format!("SELECT {}", put("a")));
    let mut open = Open::new(server, &schema);
    open.run(&format!("SELECT move('a', now() + interval '1 hour'), {}", put("b")));
    server.psql(&format!(
        "INSERT INTO {schema}.members (owner, name, since, until, handlers) VALUES (77, 'older', 1, {schema}.clock() + 600000000, '[]')"
    ));
    open.end("COMMIT");
    until("the heads are copied", || {
        let same = "bool_and((a.head, a.idle) IS NOT DISTINCT FROM (h.head, h.idle))";
        server.psql(&format!("SELECT {same} FROM {schema}.affinities a JOIN {schema}.heads h USING (id)")) == "t"
    });
    drop(store);
}
