//! Transactions of users that stay open, and what goes on meanwhile.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use timerqueue::Runtime;
use timerqueue_scheduler::store::{Fault, PostgresOptions};
use timerqueue_scheduler::{Error, Handler, Pending, Run, Scheduler, State};

use crate::pooler::Pooler;
use crate::server::{Server, new_schema, until};
use crate::{HOUR, LONG, options};

const PATIENCE: Duration = Duration::from_secs(2);

/// A transaction that stays open until it is told to end.
struct Open {
    psql: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Open {
    fn new(server: &Server, schema: &str) -> Self {
        let mut psql = server.command("psql");
        psql.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "test", "-d", "postgres", "-h"]);
        psql.arg(server.folder()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut psql = psql.spawn().unwrap();
        let (input, output) = (psql.stdin.take().unwrap(), BufReader::new(psql.stdout.take().unwrap()));
        let mut open = Self { psql, input, output };
        open.run(&format!("SET search_path = {schema}; BEGIN"));
        open
    }

    fn run(&mut self, sql: &str) {
        writeln!(self.input, "{sql};\n\\echo done").unwrap();
        let mut line = String::new();
        while line.trim() != "done" {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "{sql}");
        }
    }

    fn end(mut self, how: &str) {
        self.run(how);
        drop(self.input);
        self.psql.wait().unwrap();
    }
}

type Answers = BTreeMap<&'static str, Box<dyn FnOnce() -> Result<String, Error>>>;

fn answer<T: std::fmt::Debug + Send + 'static>(pending: Pending<T>) -> Box<dyn FnOnce() -> Result<String, Error>> {
    Box::new(move || pending.wait().map(|answer| format!("{answer:?}")))
}

/// `held`: what each operation of the node would wait for is locked, until all else is done.
fn others_go_on(server: &Server, schema: &str, node: impl Fn() -> PostgresOptions, address: &str, sessions: usize) {
    let connect = || node().connect(Runtime::global(), address).unwrap();
    let (send, ends) = mpsc::channel::<()>();
    let ends = std::sync::Mutex::new(ends);
    let (ran, other) = mpsc::channel();
    let slow = move |_: u32, _: &Run| ends.lock().unwrap().recv_timeout(LONG).unwrap();
    let quick = move |_: u32, run: &Run| ran.send(run.key().to_owned()).unwrap();
    let node = Scheduler::builder()
        .store(connect())
        .register(Handler::new("slow", slow).parallel(8))
        .handler("other", quick.clone())
        .register(Handler::new("limited", quick).parallel_everywhere(1))
        .start()
        .unwrap();
    let put = |handler: &str, key: &str, due| node.put_to(handler, &0).key(key).due(due);
    for key in ["cancelled", "moved", "hurried", "paused"] {
        let _ = put("other", key, HOUR).send().wait().unwrap();
    }
    let _ = put("slow", "row", Duration::ZERO).send().wait().unwrap();
    let _ = put("slow", "bound", Duration::ZERO).affinity("a").send().wait().unwrap();
    let state = |key: &str| node.get(key).wait().unwrap().map(|job| job.state);
    until("both run", || ["row", "bound"].iter().all(|key| state(key) == Some(State::Running)));
    assert!(put("limited", "known", Duration::ZERO).send().wait().unwrap().added().is_some());
    assert_eq!(other.recv_timeout(LONG).unwrap(), "known");
    let mut user = Open::new(server, schema);
    user.run("SELECT put('other', 'taken', '1', now() + interval '1 day')");
    user.run("SELECT put('fresh', 'first', '1', now() + interval '1 day')");
    user.run("SELECT put('slow', 'theirs', '1', now() + interval '1 day', affinity => 'a')");
    user.run("SELECT FROM jobs WHERE key IN ('cancelled', 'moved', 'hurried', 'paused', 'row') FOR UPDATE");
    user.run("SELECT FROM handlers WHERE name = 'limited' FOR UPDATE");
    assert!(put("limited", "unclaimed", Duration::ZERO).send().wait().unwrap().added().is_some());
    let mut waits: Answers = Answers::new();
    waits.insert("a put", answer(put("other", "taken", HOUR).send()));
    waits.insert(
        "a put among others",
        answer(node.put_many((0..50).map(|n| {
            let key = if n == 20 { "taken".to_owned() } else { format!("many{n}") };
            node.put_to("other", &0).key(&key).due(HOUR)
        }))),
    );
    waits.insert("the first put of a handler", answer(put("fresh", "second", HOUR).send()));
    waits.insert("a put with an affinity", answer(put("slow", "ours", HOUR).affinity("a").send()));
    waits.insert("a cancel", answer(node.cancel("cancelled")));
    waits.insert("a move", answer(node.move_to("moved", HOUR * 2)));
    waits.insert("a run by hand", answer(node.run_now("hurried")));
    waits.insert("a pause", answer(node.pause("paused")));
    (0..2).for_each(|_| send.send(()).unwrap()); // the ends of both runs wait
    // Put, claim and end of others, for longer than the patience, with the locks still held.
    let begun = std::time::Instant::now();
    let mut number = 0;
    while begun.elapsed() < PATIENCE * 5 / 4 || number < 5 {
        let key = format!("other{number}");
        assert!(put("other", &key, Duration::ZERO).send().wait().unwrap().added().is_some());
        assert_eq!(other.recv_timeout(LONG).unwrap(), key);
        until("it has left", || node.get(&key).wait().unwrap().is_none());
        number += 1;
    }
    println!("{number} jobs were put, run and ended in {:?}", begun.elapsed());
    for (what, answer) in waits {
        let failed = answer();
        assert!(matches!(failed, Err(Error::Store { fault: Fault::Locked, .. })), "{what}: {failed:?}");
    }
    let count = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}' AND backend_type = 'client backend'"
    );
    let open: usize = server.psql(&count).parse().unwrap();
    assert!(open <= sessions, "{open} sessions");
    assert_eq!(state("row"), Some(State::Running), "its end waits");
    drop(connect()); // another store is in no one's way
    user.end("COMMIT");
    until("both runs have ended", || ["row", "bound"].iter().all(|key| state(key).is_none()));
    assert_eq!(other.recv_timeout(LONG).unwrap(), "unclaimed", "its handler was locked");
    assert!(put("other", "taken", HOUR).send().wait().unwrap().added().is_none());
    assert!(put("fresh", "second", HOUR).send().wait().unwrap().added().is_some());
    assert!(put("slow", "ours", HOUR).affinity("a").send().wait().unwrap().added().is_some());
}

#[test]
fn l20_an_open_transaction_of_a_users_holds_up_what_names_its_rows_alone() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let address = format!("{} application_name={schema}", server.address());
    others_go_on(server, &schema, || options(&schema).patience(PATIENCE), &address, 4);
}

#[test]
fn l20_an_open_transaction_of_a_users_holds_up_no_node_behind_a_pooler() {
    let Some(server) = Server::shared() else { return };
    let Some(pooler) = Pooler::with(server, 4) else { return };
    let schema = new_schema();
    let pooled = || options(&schema).pooled().safety_look(Duration::from_millis(300)).patience(PATIENCE);
    others_go_on(server, &schema, pooled, &pooler.address(), 4);
}
