//! Jobs that wait for others, with several nodes, nodes of older versions and statements of users.

use timerqueue_scheduler::store::{ClaimedJob, Held, PostgresReader};
use timerqueue_scheduler::{JobId, Until};

use super::*;

fn put_after(store: &Scheduler, key: &str, keys: &[&str], until: Until) -> JobId {
    store.put_to("h", &()).key(key).after(keys, until).send().wait().unwrap().added().unwrap()
}

/// What a follower that was freed is told by: no safety look comes in time.
#[test]
fn j36_l2_a_follower_begins_on_another_node_by_notice() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let other = logging(connect(server, &options(&schema)), &log);
    let (end, ends) = mpsc::channel::<()>();
    let ends = Mutex::new(ends);
    let hold = move |_: (), _: &Run| _ = ends.lock().unwrap().recv();
    let node = Scheduler::builder().store(connect(server, &options(&schema))).handler("h", hold).start().unwrap();
    assert!(node.put_to("h", &()).key("a").send().wait().unwrap().added().is_some());
    let puts = [node.put_to("log", &()).key("end").after(["a"], Until::AllDone)];
    assert!(node.put_many(puts).wait().unwrap()[0].as_ref().unwrap().added().is_some());
    until("the other node sleeps", || {
        server.psql(&format!("SELECT count(*) FROM {schema}.nodes WHERE wakes > 0")) == "2"
    });
    end.send(()).unwrap();
    until("the follower has run", || *log.lock().unwrap() == ["end#1"]);
    drop((node, other));
}

/// Of transactions that end the last predecessors at the same time each sees the other's as open,
/// unless they meet at the follower.
#[test]
fn j36_predecessors_that_end_at_the_same_time_free_their_follower() {
    const PAIRS: usize = 60;
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let stores = [(); 2].map(|()| connect(server, &options(&schema)));
    let front = Scheduler::builder().store(connect(server, &options(&schema))).start().unwrap();
    let runs = [1, 2].map(|owner| owner as u64);
    for n in 0..PAIRS {
        let keys = ["a", "b"].map(|one| format!("{one}{n}"));
        let held: Vec<Held> = (0..2)
            .map(|i| {
                assert!(front.put_to("h", &()).key(&keys[i]).send().wait().unwrap().added().is_some());
                claim(&stores[i], runs[i]).jobs[0].held
            })
            .collect();
        let until = if n % 3 == 2 { Until::AnyDead } else { Until::AllDone };
        put_after(&front, &format!("end{n}"), &[&keys[0], &keys[1]], until);
        std::thread::scope(|scope| {
            for (store, held) in stores.iter().zip(held) {
                let verdict = if n % 3 == 0 { Verdict::Dead } else { Verdict::Done };
                let settle = Settle { held, verdict, record: None };
                scope.spawn(move || {
                    assert_eq!(apply(store, Op::Settle(Box::new(settle))).unwrap(), Applied::Held(true))
                });
            }
        });
        if n % 3 == 0 {
            assert_eq!(front.get(&format!("end{n}")).wait().unwrap().unwrap().state, State::Queued);
            assert_eq!(front.cancel(&format!("end{n}")).wait().unwrap(), Cancel::Cancelled);
        } else if n % 3 == 2 {
            assert_eq!(front.get(&format!("end{n}")).wait().unwrap(), None);
        } else {
            let jobs = claim(&stores[0], 1).jobs;
            assert_eq!(jobs.iter().map(|job| job.key.to_string()).collect::<Vec<_>>(), [format!("end{n}")]);
            let settle = Settle { held: jobs[0].held, verdict: Verdict::Done, record: None };
            assert_eq!(apply(&stores[0], Op::Settle(Box::new(settle))).unwrap(), Applied::Held(true));
        }
    }
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.links")), "0");
}

/// A node of an older version ends runs by these statements, and knows nothing of followers.
#[test]
fn j36_l17_ends_by_nodes_of_older_versions_and_by_statements_count() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema));
    let front = Scheduler::builder().store(connect(server, &options(&schema))).start().unwrap();
    for key in ["done", "dead", "cancelled", "called off"] {
        let _ = front.put_to("h", &()).key(key).send().wait().unwrap().added().unwrap();
    }
    let jobs = claim(&store, 1).jobs;
    let id = |n: usize| jobs[n].held.id.0;
    for key in ["done", "dead", "cancelled", "called off"] {
        put_after(&front, &format!("after {key}"), &[key], Until::AllEnded);
    }
    put_after(&front, "all", &["done", "dead"], Until::AllDoneOrDead);
    put_after(&front, "any", &["done", "called off"], Until::AnyDead);
    let sql = |statement: String| server.psql(&format!("SET search_path = {schema}; {statement}"));
    sql(format!("DELETE FROM jobs WHERE id = ANY(ARRAY[{}]::bigint[])", id(0)));
    sql(format!(
        "UPDATE jobs SET state = 3, died = nextval('deaths'), wake = NULL, holds_key = false WHERE id = {}",
        id(1)
    ));
    sql(format!("UPDATE jobs SET state = 0, wake = due WHERE id IN ({}, {})", id(2), id(3)));
    sql("SELECT cancel('cancelled')".to_owned());
    sql("SELECT put('h', 'called off', clash => 'replace')".to_owned());
    let claimed = claim(&store, 1).jobs;
    let found: Vec<(&str, bool)> = claimed.iter().map(|job| (&*job.key, job.blocked)).collect();
    let freed = [("after done", false), ("after dead", false), ("all", true), ("after cancelled", false)];
    let freed: Vec<_> =
        freed.into_iter().chain([("after called off", false), ("any", false), ("called off", false)]).collect();
    let sorted = |mut found: Vec<(&str, bool)>| {
        found.sort_unstable();
        found.into_iter().map(|(key, blocked)| (key.to_owned(), blocked)).collect::<Vec<_>>()
    };
    assert_eq!(sorted(found), sorted(freed));
}

/// A transaction decides once, at its commit, with all that it has written.
#[test]
fn j36_a_follower_that_is_written_after_an_end_goes_on() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema));
    let front = Scheduler::builder().store(connect(server, &options(&schema))).start().unwrap();
    assert!(front.put_to("h", &()).key("a").send().wait().unwrap().added().is_some());
    let end = put_after(&front, "end", &["a"], Until::AllEnded);
    let mut users = locks::Open::new(server, &schema);
    users.run("SELECT cancel('a')");
    users.run(&format!("UPDATE jobs SET state = 1, wake = NULL WHERE id = {}", end.0));
    users.end("COMMIT");
    assert_eq!(claim(&store, 1).jobs.len(), 1);
}

/// Once, each end wrote each follower.
#[test]
fn j36_a_commit_writes_a_follower_once_however_many_predecessors_end() {
    const ENDS: usize = 9;
    const FOLLOWERS: usize = 30;
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema));
    let front = Scheduler::builder().store(connect(server, &options(&schema))).start().unwrap();
    server.psql(&format!(
        "SET search_path = {schema}; CREATE TABLE written (id bigint); \
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO {schema}.written VALUES (NEW.id); RETURN NULL; END'; \
         CREATE TRIGGER note AFTER UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION note()"
    ));
    let writes = |of: &str| {
        let each = format!("SELECT count(*) AS n FROM {schema}.written GROUP BY id");
        assert_eq!(server.psql(&format!("SELECT max(n) || ' ' || count(*) FROM ({each}) AS w")), of);
        server.psql(&format!("DELETE FROM {schema}.written"));
    };
    let keys: Vec<String> = (0..=ENDS).map(|n| format!("m{n}")).collect();
    let put = |key: &str| front.put_to("h", &()).key(key);
    let all = |puts: Vec<timerqueue_scheduler::Put<'_>>| {
        assert!(front.put_many(puts).wait().unwrap().into_iter().all(|placed| placed.unwrap().added().is_some()));
    };
    all(keys.iter().map(|key| put(key)).collect());
    let jobs = claim(&store, 1).jobs;
    assert_eq!(jobs.len(), ENDS);
    let last = claim(&store, 2).jobs;
    server.psql(&format!("DELETE FROM {schema}.written"));
    let ends: Vec<String> = (0..FOLLOWERS).map(|n| format!("end{n}")).collect();
    all(ends.iter().map(|key| put(key).after(&keys, Until::AllDone)).collect());
    writes(&format!("2 {}", keys.len()));
    let settle = |jobs: Vec<ClaimedJob>| {
        let settle =
            |job: ClaimedJob| Op::Settle(Box::new(Settle { held: job.held, verdict: Verdict::Done, record: None }));
        let (send, receive) = mpsc::channel();
        store.apply(jobs.into_iter().map(settle).collect(), Reply::new(move |applied| send.send(applied).unwrap()));
        assert!(receive.recv().unwrap().unwrap().into_iter().all(|applied| applied == Applied::Held(true)));
    };
    settle(jobs);
    writes(&format!("1 {FOLLOWERS}"));
    settle(last);
    writes(&format!("1 {FOLLOWERS}"));
    assert_eq!(front.stats().wait().unwrap().jobs.of(State::Waiting), FOLLOWERS as u64);
    assert_eq!(server.psql(&format!("SELECT count(*) FROM {schema}.new_ends")), "0");
}

/// Each of two transactions sees the predecessor of the other one as open, by its snapshot. So the
/// second one is undone: the first one has written the follower, which goes on waiting.
#[test]
fn j36_ends_in_transactions_with_snapshots_miss_no_follower() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema));
    let front = Scheduler::builder().store(connect(server, &options(&schema))).start().unwrap();
    for key in ["a", "b"] {
        assert!(front.put_to("h", &()).key(key).due(HOUR).send().wait().unwrap().added().is_some());
    }
    put_after(&front, "end", &["a", "b"], Until::AllEnded);
    let mut users = locks::Open::new(server, &schema);
    users.run("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT cancel('a')");
    assert_eq!(front.cancel("b").wait().unwrap(), Cancel::Cancelled);
    users.run(
        "DO 'BEGIN SET CONSTRAINTS ALL IMMEDIATE; RAISE ''it has decided''; EXCEPTION WHEN serialization_failure THEN NULL; END'",
    );
    users.end("ROLLBACK");
    assert_eq!(front.cancel("a").wait().unwrap(), Cancel::Cancelled);
    assert_eq!(claim(&store, 1).jobs.len(), 1);
}

/// A store that was restored is held before its jobs run.
#[test]
fn j36_what_a_restored_store_has_lost_leaves_no_follower_waiting() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema));
    let front = Scheduler::builder().store(connect(server, &options(&schema))).start().unwrap();
    for key in ["there", "lost"] {
        assert!(front.put_to("h", &()).key(key).due(HOUR).send().wait().unwrap().added().is_some());
    }
    put_after(&front, "end", &["lost"], Until::AllEnded);
    put_after(&front, "strict", &["there", "lost"], Until::AllDone);
    put_after(&front, "after there", &["there"], Until::AllDone);
    server.psql(&format!(
        "SET search_path = {schema}; SET session_replication_role = replica; DELETE FROM jobs WHERE key = 'lost'"
    ));
    let reader = PostgresReader::connect(&options(&schema), &*server.address()).unwrap();
    assert!(reader.check(|_| ()).is_err());
    let _ = options(&schema).hold(&*server.address()).unwrap();
    reader.check(|_| ()).unwrap();
    assert_eq!(front.get("after there").wait().unwrap().unwrap().state, State::Queued);
    assert!(claim(&store, 1).jobs.is_empty());
    let _ = front.resume_handler("h").wait().unwrap();
    let found = claim(&store, 1).jobs;
    assert_eq!(
        found.iter().map(|job| (&*job.key, job.blocked)).collect::<Vec<_>>(),
        [("end", false), ("strict", true)]
    );
}

/// A transaction with an older snapshot does not see the links that have come since.
#[test]
fn j36_a_transaction_with_an_older_snapshot_ends_no_predecessor() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = connect(server, &options(&schema));
    let front = Scheduler::builder().store(connect(server, &options(&schema))).start().unwrap();
    assert!(front.put_to("h", &()).key("a").due(HOUR).send().wait().unwrap().added().is_some());
    put_after(&front, "first", &["a"], Until::AllEnded);
    let mut users = locks::Open::new(server, &schema);
    users.run("ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM jobs");
    put_after(&front, "second", &["a"], Until::AllEnded);
    users.run(
        "DO 'BEGIN PERFORM cancel(''a''); RAISE ''it has ended''; EXCEPTION WHEN serialization_failure THEN NULL; END'",
    );
    users.end("COMMIT");
    assert_eq!(front.cancel("a").wait().unwrap(), Cancel::Cancelled);
    assert_eq!(claim(&store, 1).jobs.len(), 2);
}
