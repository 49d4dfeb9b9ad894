//! Transactions of users that stay open, and what goes on meanwhile.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use timerqueue::Runtime;
use timerqueue_scheduler::store::PostgresOptions;
use timerqueue_scheduler::{Error, Handler, Pending, Run, Scheduler, State};

use crate::pooler::Pooler;
use crate::server::{Server, new_schema, until};
use crate::{HOUR, LONG, options};

/// Of the node whose operations are not to be answered before the transaction ends, and of the one
/// whose operations are.
const PATIENT: Duration = Duration::from_secs(60);
const HASTY: Duration = Duration::from_secs(2);

/// A transaction that stays open until it is told to end.
pub(crate) struct Open {
    psql: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Open {
    pub(crate) fn new(server: &Server, schema: &str) -> Self {
        let mut psql = server.command("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "test", "-d", "postgres", "-h"]);
        psql.arg(server.folder()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut psql = psql.spawn().unwrap();
        let (input, output) = (psql.stdin.take().unwrap(), BufReader::new(psql.stdout.take().unwrap()));
        let mut open = Self { psql, input, output };
        open.run(&format!("SET search_path = {schema}; BEGIN"));
        open
    }

    pub(crate) fn run(&mut self, sql: &str) {
        writeln!(self.input, "{sql};\n\\echo done").unwrap();
        let mut line = String::new();
        while line.trim() != "done" {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "{sql}");
        }
    }

    pub(crate) fn end(mut self, how: &str) {
        self.run(how);
        drop(self.input);
        self.psql.wait().unwrap();
    }
}

/// What one node does, and another one, while what each of these operations needs is locked.
fn blocked(node: &Scheduler) -> Vec<(&'static str, Answer)> {
    let put = |handler: &str, key: &str| node.put_to(handler, &0).key(key).due(HOUR);
    let many = (0..50).map(|n| put("other", &if n == 20 { "taken".to_owned() } else { format!("many{n}") }));
    vec![
        ("a put", answer(put("other", "taken").send())),
        ("a put among others", answer(node.put_many(many))),
        ("the first put of a handler", answer(put("fresh", "second").send())),
        ("a put with a group", answer(put("slow", "ours").group("a").send())),
        ("a cancel", answer(node.cancel("cancelled"))),
        ("a move", answer(node.move_to("moved", HOUR * 2))),
        ("a run by hand", answer(node.run_now("hurried"))),
        ("a pause", answer(node.pause("paused"))),
    ]
}

type Answer = Box<dyn FnOnce() -> Result<String, Error>>;

fn answer<T: std::fmt::Debug + Send + 'static>(pending: Pending<T>) -> Answer {
    Box::new(move || pending.wait().map(|answer| format!("{answer:?}")))
}

fn others_go_on(server: &Server, schema: &str, options: PostgresOptions, address: &str) {
    let address = format!("{address} application_name={schema}");
    let connect = |patience| options.clone().patience(patience).connect(Runtime::global(), &address).unwrap();
    let (send, ends) = mpsc::channel::<()>();
    let ends = std::sync::Mutex::new(ends);
    let (ran, other) = mpsc::channel();
    let slow = move |_: u32, _: &Run| ends.lock().unwrap().recv().unwrap();
    let quick = move |_: u32, run: &Run| ran.send(run.key().to_owned()).unwrap();
    let node = Scheduler::builder()
        .store(connect(PATIENT))
        .register(Handler::new("slow", slow).parallel(8))
        .handler("other", quick.clone())
        .register(Handler::new("limited", quick).parallel_everywhere(1))
        .start()
        .unwrap();
    let hasty = Scheduler::builder().store(connect(HASTY)).start().unwrap();
    let put = |handler: &str, key: &str, due| node.put_to(handler, &0).key(key).due(due);
    for key in ["cancelled", "moved", "hurried", "paused"] {
        let _ = put("other", key, HOUR).send().wait().unwrap();
    }
    let _ = put("slow", "row", Duration::ZERO).send().wait().unwrap();
    let _ = put("slow", "bound", Duration::ZERO).group("a").send().wait().unwrap();
    let state = |key: &str| node.get(key).wait().unwrap().map(|job| job.state);
    until("both run", || ["row", "bound"].iter().all(|key| state(key) == Some(State::Running)));
    assert!(put("limited", "known", Duration::ZERO).send().wait().unwrap().added().is_some());
    assert_eq!(other.recv_timeout(LONG).unwrap(), "known");
    let mut user = Open::new(server, schema);
    user.run("SELECT put('other', 'taken', '1', now() + interval '1 day')");
    user.run("SELECT put('fresh', 'first', '1', now() + interval '1 day')");
    user.run("SELECT put('slow', 'theirs', '1', now() + interval '1 day', in_group => 'a')");
    user.run("SELECT FROM jobs WHERE key IN ('cancelled', 'moved', 'hurried', 'paused', 'row') FOR UPDATE");
    user.run("SELECT FROM handlers WHERE name = 'limited' FOR UPDATE");
    assert!(put("limited", "unclaimed", Duration::ZERO).send().wait().unwrap().added().is_some());
    let waits = blocked(&node);
    (0..2).for_each(|_| send.send(()).unwrap()); // the ends of both runs wait
    // Another node's are answered by its patience, again and again. Put, claim and end of other
    // jobs go on, with the locks still held.
    for round in 0..3 {
        let failed = blocked(&hasty);
        for number in 0..2 {
            let key = format!("other{round}/{number}");
            assert!(put("other", &key, Duration::ZERO).send().wait().unwrap().added().is_some());
            assert_eq!(other.recv_timeout(LONG).unwrap(), key);
            until("it has left", || state(&key).is_none());
        }
        for (what, answer) in failed {
            let failed = answer();
            assert!(matches!(failed, Err(Error::Store { fault, .. }) if fault.heals()), "{what}: {failed:?}");
        }
    }
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}'");
    until("no more sessions are left than connections", || server.psql(&count).parse::<usize>().unwrap() <= 8);
    assert_eq!(["row", "bound"].map(state), [Some(State::Running); 2], "their ends wait");
    drop(connect(HASTY)); // another store is held up by nothing
    user.end("COMMIT");
    for (what, answer) in waits {
        assert!(answer().is_ok(), "{what}");
    }
    until("both runs have ended", || ["row", "bound"].map(state) == [None; 2]);
    let last = [other.recv_timeout(LONG).unwrap(), other.recv_timeout(LONG).unwrap()];
    assert!(last.contains(&"unclaimed".to_owned()) && last.contains(&"hurried".to_owned()), "{last:?}");
}

#[test]
fn l20_an_open_transaction_of_a_users_holds_up_what_names_its_rows_alone() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    others_go_on(server, &schema, options(&schema), &server.address());
}

#[test]
fn l20_an_open_transaction_of_a_users_holds_up_no_node_behind_a_pooler() {
    let Some(server) = Server::shared() else { return };
    let Some(pooler) = Pooler::with(server, 8) else { return };
    let schema = new_schema();
    let pooled = options(&schema).pooled().safety_look(Duration::from_millis(300));
    others_go_on(server, &schema, pooled, &pooler.address());
}

/// As a vacuum or a change of the table by hand does.
#[test]
fn l20_a_locked_table_costs_each_operation_its_patience_and_leaves_no_session_behind() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let address = format!("{} application_name={schema}", server.address());
    let short = options(&schema).patience(HASTY).lease(Duration::from_secs(2));
    let node = crate::logging(short.connect(Runtime::global(), &address).unwrap(), &crate::Log::default());
    let _ = node.put_to("log", &0).key("known").due(HOUR).send().wait().unwrap();
    let mut user = Open::new(server, &schema);
    user.run("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE");
    for round in 0..3 {
        let put = node.put_to("log", &0).key(&round.to_string()).send().wait();
        let found = node.get("known").wait();
        for failed in [put.map(drop), found.map(drop)] {
            assert!(matches!(&failed, Err(Error::Store { fault, .. }) if fault.heals()), "{failed:?}");
        }
    }
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}'");
    until("no more sessions are left than connections", || server.psql(&count).parse::<usize>().unwrap() <= 4);
    user.end("COMMIT");
    until("it works again", || node.put_to("log", &0).key("after").send().wait().is_ok());
    until("the job has run", || node.get("after").wait().is_ok_and(|job| job.is_none()));
}

/// As long as the patience of its node is longer than a lease.
#[test]
fn l6_a_locked_table_delays_no_renewal() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let patient = options(&schema).patience(HOUR).lease(Duration::from_secs(3));
    let store = patient.connect(Runtime::global(), &server.address()).unwrap();
    let handler = |_: (), run: &Run| _ = run.token().wait();
    let node = Scheduler::builder().store(store).handler("h", handler).start().unwrap();
    let _ = node.put_to("h", &()).key("long").send().wait().unwrap();
    until("it runs", || node.get("long").wait().unwrap().is_some_and(|job| job.state == State::Running));
    let mut user = Open::new(server, &schema);
    user.run("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE");
    for renewal in 0..4 {
        let lease = || server.psql(&format!("SELECT max(until) FROM {schema}.members"));
        let before = lease();
        until(&format!("renewal {renewal}"), || lease() != before);
    }
    user.end("ROLLBACK");
}

/// A commit that waits for a standby is ended by no limit of the server's, and holds its locks.
#[test]
fn l20_commits_that_wait_for_a_standby_leave_few_sessions_behind() {
    let Some(server) = Server::new() else { return };
    let schema = new_schema();
    let address = format!("{} application_name={schema}", server.address());
    let short = options(&schema).patience(HASTY).lease(Duration::from_secs(1));
    let node = crate::logging(short.connect(Runtime::global(), &address).unwrap(), &crate::Log::default());
    let _ = node.put_to("log", &0).key("known").due(HOUR).send().wait().unwrap();
    let follow = |names: &str| {
        server.psql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
        server.psql("SET synchronous_commit = local; SELECT pg_reload_conf()");
    };
    follow("none");
    until("the standby is asked for", || server.psql("SHOW synchronous_standby_names") == "none");
    let failed = (0..6).filter(|n| node.put_to("log", &0).key(&n.to_string()).send().wait().is_err()).count();
    let count = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}'");
    let open: usize = server.psql(&count).parse().unwrap();
    println!("{failed} puts failed, {open} sessions");
    assert!(failed >= 5 && open <= 10, "{failed} puts failed, {open} sessions");
    follow("");
    until("it works again", || node.put_to("log", &0).key("after").send().wait().is_ok());
    until("the job has run", || node.get("after").wait().is_ok_and(|job| job.is_none()));
}
