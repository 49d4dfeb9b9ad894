//! Runs are their member's: what keeps them, what ends them, and nodes of an older version beside.

use std::sync::atomic::{AtomicUsize, Ordering};

use timerqueue_scheduler::store::{Bind, GroupId, Scan, Scanned};

use super::*;

/// A node with a lease of this length, and a handler `hold` whose runs end with their tokens.
fn holding(server: &Server, schema: &str, lease: Duration, begun: &Arc<AtomicUsize>) -> Scheduler {
    let store = options(schema).lease(lease).connect(Runtime::global(), &server.address()).unwrap();
    let count = Arc::clone(begun);
    let hold = move |_: u32, run: &Run| {
        count.fetch_add(1, Ordering::SeqCst);
        run.token().wait();
    };
    Scheduler::builder().store(store).register(Handler::new("hold", hold).parallel(100)).start().unwrap()
}

#[test]
fn l1_long_runs_write_nothing_to_their_rows() {
    const RUNS: usize = 50;
    let Some(server) = Server::new() else { return };
    let (schema, begun) = (new_schema(), Arc::default());
    // Longer than this machine may be busy with other tests: a node that is late loses its runs.
    let node = holding(&server, &schema, Duration::from_secs(6), &begun);
    let jobs: Vec<_> = (0..RUNS as u32).map(|n| node.put_to("hold", &n).key(&n.to_string())).collect();
    drop(node.put_many(jobs).wait().unwrap());
    until("all run", || begun.load(Ordering::SeqCst) == RUNS);
    let updates = |table: &str| {
        let sql =
            format!("SELECT n_tup_upd FROM pg_stat_user_tables WHERE schemaname = '{schema}' AND relname = '{table}'");
        server.psql(&sql).parse::<usize>().unwrap()
    };
    until("the begins are counted", || updates("jobs") >= RUNS);
    let before = updates("members");
    until("some renewals", || updates("members") >= before + 3);
    assert_eq!(updates("jobs"), RUNS);
    (0..RUNS).for_each(|n| _ = node.cancel(&n.to_string()).wait().unwrap());
}

#[test]
fn l4_the_runs_of_a_member_that_has_ended_wait_again_and_their_tokens_fire() {
    let Some(server) = Server::shared() else { return };
    let (schema, begun) = (new_schema(), Arc::default());
    // Longer than a busy machine stops a node: a member that ends again ends the second run, too.
    let node = holding(server, &schema, Duration::from_secs(30), &begun);
    let put = node.put_to("hold", &1).key("a").group("x");
    assert!(put.send().wait().unwrap().added().is_some());
    until("it runs", || begun.load(Ordering::SeqCst) == 1);
    // Another node takes this one for dead: the job runs anew here, since the node comes back.
    server.psql(&format!("UPDATE {schema}.members SET dead = true, until = 0"));
    until("it runs again", || begun.load(Ordering::SeqCst) == 2);
    until("the late settle was refused", || node.stats().wait().unwrap().lost == 1);
    assert_eq!(node.get("a").wait().unwrap().map(|job| job.attempt), Some(2));
    assert_eq!(node.nodes().wait().unwrap().len(), 1);
    let _ = node.cancel("a").wait().unwrap();
}

#[test]
fn m1_a_node_that_closes_keeps_its_runs_for_longer_than_a_lease() {
    let Some(server) = Server::shared() else { return };
    let (schema, log, ends) = (new_schema(), Log::default(), Arc::new(AtomicUsize::new(0)));
    let short = options(&schema).lease(Duration::from_secs(3));
    let (may_end, begun) = (Arc::clone(&ends), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&begun);
    let ignores = move |_: u32, _: &Run| {
        count.fetch_add(1, Ordering::SeqCst);
        while may_end.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let builder = Scheduler::builder().store(connect(server, &short)).node_name("closes");
    let closing = builder.handler("log", ignores).start().unwrap();
    let _ = closing.put_to("log", &1).key("a").group("x").send().wait().unwrap();
    until("it runs", || begun.load(Ordering::SeqCst) == 1);
    let other = logging(connect(server, &short), &log);
    let state = |of: &str| server.psql(&format!("SELECT {of} FROM {schema}.members WHERE name = 'closes'"));
    let pending = closing.close(LONG);
    until("it leaves", || state("leaving AND NOT dead AND handlers = '[]'") == "t");
    let nodes: Vec<_> = other.nodes().wait().unwrap().iter().map(|node| node.name.to_string()).collect();
    assert!(!nodes.contains(&"closes".to_owned()), "{nodes:?}");
    let _ = other.put_to("log", &1).key("b").group("x").send().wait().unwrap();
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!((state("leaving AND NOT dead"), log.lock().unwrap().len()), ("t".to_owned(), 0));
    assert_eq!(other.get("a").wait().unwrap().map(|job| (job.state, job.attempt)), Some((State::Running, 1)));
    ends.store(1, Ordering::SeqCst);
    pending.wait().unwrap();
    until("its share is another one's", || *log.lock().unwrap() == ["b#1"]);
    until("its member has ended", || ["t", ""].contains(&&*state("dead")));
    assert_eq!(other.get("a").wait().unwrap(), None);
}

#[test]
fn m4_a_run_keeps_its_group_until_its_member_has_ended_and_a_late_holder_is_refused() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let [one, two] = [(); 2].map(|()| connect(server, &options(&schema).lease(HOUR)));
    let limits = Limits { group: Some(1), ..Limits::default() };
    let members = |owner| {
        let (send, receive) = mpsc::channel();
        two.scan(Scan::Nodes { owner }, Reply::new(move |scanned| send.send(scanned).unwrap()));
        match receive.recv().unwrap().unwrap() {
            Scanned::Nodes(nodes) => nodes.into_iter().find(|node| *node.name == *format!("node {owner}")),
            other => panic!("nodes: {other:?}"),
        }
    };
    let bind = |store: &PostgresStore, owner| {
        let unbound = claim(store, owner).unbound;
        assert_eq!(unbound.len(), 1);
        let node = members(owner).unwrap().id;
        let bind = Bind { group: GroupId(1), version: unbound[0].version, node };
        assert_eq!(apply(store, Op::Bind(bind)), Ok(Applied::Held(true)));
    };
    enter_with(&one, 1, limits);
    enter_with(&two, 2, limits);
    for key in ["a0", "a1"] {
        server.psql(&format!("SELECT {schema}.put('h', '{key}', in_group => 'a')"));
    }
    bind(&one, 1);
    let late = claim(&one, 1).jobs.remove(0);
    assert_eq!((claim(&two, 2).jobs.len(), claim(&two, 2).unbound.len()), (0, 0));
    end_member(server, &schema, 1);
    let settle = |held| Op::Settle(Box::new(Settle { held, verdict: Verdict::Done, record: None }));
    assert_eq!(apply(&one, settle(late.held)), Ok(Applied::Held(false)), "before the job is claimed again");
    bind(&two, 2);
    let again = claim(&two, 2).jobs.remove(0);
    assert_eq!((&*again.key, again.attempt), ("a0", 2), "the attempt counts");
    assert_eq!(apply(&one, settle(late.held)), Ok(Applied::Held(false)));
    // Back as a new member, it claims nothing of its old share.
    assert!(claim(&one, 1).jobs.is_empty());
    assert_eq!(apply(&two, settle(again.held)), Ok(Applied::Held(true)));
    assert!(claim(&one, 1).jobs.is_empty());
    assert_eq!(claim(&two, 2).jobs.remove(0).key, "a1".into());
}

#[test]
fn m6_the_places_of_a_member_that_has_ended_are_free() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let [one, two] = [(); 2].map(|()| connect(server, &options(&schema).lease(HOUR)));
    let limits = Limits { everywhere: Some(2), ..Limits::default() };
    enter_with(&one, 1, limits);
    enter_with(&two, 2, limits);
    ["a", "b", "c"].iter().for_each(|key| _ = put_raw(&one, key));
    assert_eq!((claim(&one, 1).jobs.len(), claim(&two, 2).jobs.len()), (2, 0));
    end_member(server, &schema, 1);
    let again = claim(&two, 2).jobs;
    assert_eq!(again.iter().map(|job| (&*job.key, job.attempt)).collect::<Vec<_>>(), [("a", 2), ("b", 2)]);
}

#[test]
fn j22_ends_of_nodes_speak_against_the_job_that_was_alone() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let node = connect(server, &options(&schema).lease(HOUR));
    ["a", "b"].iter().for_each(|key| _ = put_raw(&node, key));
    let counts = || {
        let each = "key || ' ' || crashes || ' ' || suspicion";
        server.psql(&format!("SELECT string_agg({each}, ', ' ORDER BY key) FROM {schema}.jobs"))
    };
    let keys = |owner| claim(&node, owner).jobs.iter().map(|job| job.key.to_string()).collect::<Vec<_>>();
    for owner in 1..=2 {
        enter_with(&node, owner, Limits::default());
        assert_eq!(keys(owner), ["a", "b"]);
        end_member(server, &schema, owner);
    }
    assert_eq!(counts(), "a 2 2, b 2 2", "the first two speak against both");
    enter_with(&node, 3, Limits::default());
    assert_eq!((keys(3), keys(3)), (vec!["a".to_owned()], vec!["b".to_owned()]), "a suspect comes by itself");
    end_member(server, &schema, 3);
    assert_eq!(counts(), "a 3 2, b 3 2", "none was alone");
    enter_with(&node, 4, Limits::default());
    assert_eq!(keys(4), ["a"]);
    end_member(server, &schema, 4);
    assert_eq!(counts(), "a 4 3, b 3 2", "one was alone");
    enter_with(&node, 5, Limits::default());
    let job = claim(&node, 5).jobs.remove(0);
    let settle = |held| Op::Settle(Box::new(Settle { held, verdict: Verdict::Done, record: None }));
    assert_eq!((&*job.key, job.attempt, job.crashes, job.suspicion), ("a", 5, 4, 3));
    assert_eq!(apply(&node, settle(job.held)), Ok(Applied::Held(true)));
    assert_eq!(counts(), "b 3 2");
}

/// What a node of version 5 writes: a lease for each run, in `wake` as well.
#[test]
fn l17_runs_of_older_nodes_come_back_after_their_own_leases() {
    let Some(server) = Server::shared() else { return };
    let (schema, log) = (new_schema(), Log::default());
    let node = logging(connect(server, &options(&schema).lease(Duration::from_millis(900))), &log);
    let older = |key: &str, lease: &str| {
        server.psql(&format!(
            "SELECT {schema}.put('none', '{key}', in_group => '{key}'); \
             UPDATE {schema}.jobs SET state = 2, owner = 77, claims = 1, attempt = 1, counted = true, \
             lease = {schema}.clock() + {lease}, wake = {schema}.clock() + {lease} WHERE key = '{key}'"
        ));
    };
    older("short", "300000");
    older("long", "3600000000");
    let row = |key: &str, of: &str| server.psql(&format!("SELECT {of} FROM {schema}.jobs WHERE key = '{key}'"));
    assert_eq!(row("long", "wake IS NULL AND apart IS NULL"), "t", "no claim looks at it");
    until("one waits again", || row("short", "state = 0 AND lease IS NULL AND apart = due") == "t");
    let head = format!(
        "SELECT count(*) FROM {schema}.heads JOIN {schema}.affinities USING (id) WHERE heads.head IS NOT NULL AND affinity = 'short'"
    );
    assert_eq!(server.psql(&head), "1");
    assert_eq!(row("long", "state"), "2");
    // The older node closes, and its run goes on. Then it is gone.
    server.psql(&format!(
        "INSERT INTO {schema}.members (owner, name, since, until, handlers) VALUES (77, 'older', 1, {schema}.clock() + 60000000, '[]'); \
         UPDATE {schema}.members SET dead = true WHERE owner = 77"
    ));
    assert_eq!(row("long", "state"), "2");
    server.psql(&format!("UPDATE {schema}.jobs SET lease = {schema}.clock() - 1, wake = 7 WHERE key = 'long'"));
    until("the other waits again, too", || row("long", "state") == "0");
    drop(node);
}

/// Tables of version 5, dumped while a node had two runs, of which one has a group.
#[test]
fn l17_tables_of_version_5_are_brought_up_to_date_with_their_runs() {
    let Some(server) = Server::new() else { return };
    server.psql(include_str!("version5.sql"));
    let log = Log::default();
    let store = options("dumped").lease(Duration::from_millis(900)).connect(Runtime::global(), &server.address());
    let node = logging(store.unwrap(), &log);
    until("both have run again", || log.lock().unwrap().len() == 2);
    let mut ran = log.lock().unwrap().clone();
    ran.sort();
    assert_eq!(ran, ["a#2", "b#2"], "the attempts count");
    until("two are left", || server.psql("SELECT count(*), max(state) FROM dumped.jobs") == "2|0");
    assert_eq!(node.get("bound later").wait().unwrap().unwrap().group.as_deref(), Some("x"));
}

/// A run of version 5 has the end of its lease as a wake instant, too, and by that it would be
/// among the waiting jobs.
#[test]
fn l17_runs_of_version_5_are_no_waiting_jobs() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    server.psql(&include_str!("version5.sql").replace("dumped", &schema));
    let end = format!("{schema}.clock() + 3600000000");
    server.psql(&format!(
        "UPDATE {schema}.members SET until = {end}; UPDATE {schema}.jobs SET lease = {end}, wake = {end} WHERE state = 2"
    ));
    let node = logging(connect(server, &options(&schema)), &Log::default());
    let jobs = node.stats().wait().unwrap().jobs;
    assert_eq!((jobs.of(State::Waiting), jobs.of(State::Running)), (2, 2));
}
