//! How many nodes look at a row that becomes due.

use std::sync::atomic::Ordering;
use std::time::Duration;

use timerqueue::Runtime;
use timerqueue_scheduler::{Handler, Scheduler, State};

use crate::server::{Server, new_schema, until};
use crate::{HOUR, Log, connect, logging, options};

const NODES: usize = 8;

/// A server that writes down each reading of its clock, and by which statement. Each transaction of
/// a node begins with one.
struct Watched {
    server: Server,
    schema: String,
    log: Log,
    nodes: Vec<Scheduler>,
    front: Scheduler,
}

impl Watched {
    fn new() -> Option<Self> {
        let server = Server::with("-c log_line_prefix=%n_%p_", |_| {})?;
        let (schema, log) = (new_schema(), Log::default());
        let front = Scheduler::builder().store(connect(&server, &options(&schema))).start().unwrap();
        // A job for which the server learns the handler.
        let _ = front.put_to("log", &0).key("first").send().wait().unwrap();
        server.psql(&format!(
            "CREATE OR REPLACE FUNCTION {schema}.clock() RETURNS bigint LANGUAGE plpgsql VOLATILE AS \
             $$ BEGIN RAISE LOG 'a look: %', left(current_query(), 60); RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint; END $$"
        ));
        let mut watched = Self { server, schema, log, nodes: Vec::new(), front };
        watched.nodes = (0..NODES).map(|_| watched.node()).collect();
        watched.rest("first");
        Some(watched)
    }

    fn node(&self) -> Scheduler {
        let store = options(&self.schema).lease(HOUR).connect(Runtime::global(), &self.server.address()).unwrap();
        logging(store, &self.log)
    }

    /// All nodes sleep, and the job has been run.
    fn rest(&self, key: &str) {
        until("the job has run", || self.front.get(key).wait().unwrap().is_none());
        let asleep = format!("SELECT count(*) FROM {}.nodes WHERE handlers <> '{{}}'", self.schema);
        until("all nodes sleep", || self.server.psql(&asleep) == NODES.to_string());
        std::thread::sleep(Duration::from_millis(600));
    }

    /// The looks from one instant to another, both in seconds by the clock of the server.
    fn looks(&self, from: f64, to: f64) -> usize {
        let log = std::fs::read_to_string(self.server.folder().join("log")).unwrap();
        let looks = log.lines().filter(|line| line.contains("a look: SELECT set_config"));
        let instants = looks.filter_map(|line| line.split('_').next()?.parse::<f64>().ok());
        instants.filter(|at| (from..to).contains(at)).count()
    }

    fn now(&self) -> f64 {
        self.server.psql("SELECT extract(epoch FROM clock_timestamp())").parse().unwrap()
    }

    /// Looks until 40 ms after `at`, and until all is over.
    fn after(&self, at: f64, key: &str) -> (usize, usize) {
        self.rest(key);
        (self.looks(at, at + 0.040), self.looks(at, self.now()))
    }
}

/// No try has more looks than `few` at once, and one of several has two of each node besides: where
/// a busy machine leaves a row unclaimed for long, all nodes look at it again and again.
fn at_best(what: &str, few: usize, mut looks: impl FnMut(usize) -> (usize, usize)) {
    let ok = |n| {
        let (at_once, in_all) = looks(n);
        println!("{what}: {at_once} looks within 40 ms, {in_all} in all");
        assert!(at_once <= few, "{what}, and not {NODES} claims");
        in_all <= few + 2 * NODES
    };
    assert!((0..15).any(ok), "{what}, and two looks of each node");
}

#[test]
fn l18_one_node_looks_at_a_due_row_at_once_and_the_others_a_step_apart() {
    let Some(mut watched) = Watched::new() else { return };
    // Put by SQL, so that only nodes look. Due at once: one is told, and the others hear it. The
    // put itself reads the clock, up to twice.
    at_best("due at once: the put, the claim and the settle", 2 + 2, |n| {
        let (key, schema) = (format!("now{n}"), watched.schema.clone());
        let begun = watched.now();
        watched.server.psql(&format!("SELECT {schema}.put('log', '{key}')"));
        watched.after(begun, &key)
    });
    // Due later: the nodes hear of it, and sleep until then; or they come, and find it.
    for by_claim in [false, true] {
        at_best("due later: a claim and a settle", 2, |n| {
            let (key, schema) = (format!("later{by_claim}{n}"), watched.schema.clone());
            if by_claim {
                watched.nodes.clear();
            }
            let put = format!("SELECT {schema}.put('log', '{key}', due => clock_timestamp() + interval '3 s')");
            watched.server.psql(&put);
            if by_claim {
                watched.nodes = (0..NODES).map(|_| watched.node()).collect();
            }
            let due = watched.server.psql(&format!("SELECT due / 1000000.0 FROM {schema}.jobs WHERE key = '{key}'"));
            watched.after(due.parse().unwrap(), &key)
        });
    }
    assert_eq!(watched.front.stats().wait().unwrap().jobs.of(State::Waiting), 0);
}

#[test]
fn l18_looks_do_not_grow_with_rows_and_nodes() {
    let Some(watched) = Watched::new() else { return };
    let (schema, rows) = (&watched.schema, 300);
    let begun = watched.now();
    // Each 10 ms one, for three seconds.
    watched.server.psql(&format!(
        "SELECT count({schema}.put('log', 'n' || n, due => clock_timestamp() + interval '10 ms' * n + interval '0.5 s')) \
         FROM generate_series(1, {rows}) AS n"
    ));
    let puts = watched.looks(begun, watched.now());
    until("all have run", || watched.log.lock().unwrap().len() > rows);
    watched.rest("n300");
    let end = watched.now();
    let (looks, time) = (watched.looks(begun, end) - puts, end - begun);
    println!("{looks} transactions for {rows} rows in {time} s with {NODES} nodes");
    // A claim and a settle for each row. Besides, each node looks once in a step at most, with the
    // settle of what it may find.
    let others = NODES * (time / 0.050) as usize;
    assert!(looks <= 2 * rows + others, "{looks}; if all nodes looked: {}", (NODES + 1) * rows);
}

#[test]
fn l18_a_node_without_places_leaves_the_rest_to_the_next_one_at_once() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let front = Scheduler::builder().store(connect(server, &options(&schema))).start().unwrap();
    let running = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let node = || {
        let running = std::sync::Arc::clone(&running);
        // Each run waits for the runs of the other nodes.
        let handler = move |n: u32, _: &timerqueue_scheduler::Run| {
            running.fetch_add(usize::from(n > 0), Ordering::SeqCst);
            until("all four run at a time", || n == 0 || running.load(Ordering::SeqCst) == 4);
        };
        let store = connect(server, &options(&schema));
        Scheduler::builder().store(store).register(Handler::new("one", handler).parallel(1)).start().unwrap()
    };
    let nodes: Vec<Scheduler> = (0..4).map(|_| node()).collect();
    let _ = front.put_to("one", &0).key("first").send().wait().unwrap();
    until("it has ended", || front.get("first").wait().unwrap().is_none());
    let due = Duration::from_millis(600);
    let pending: Vec<_> = (1..=4u32).map(|n| front.put_to("one", &n).key(&n.to_string()).due(due).send()).collect();
    pending.into_iter().for_each(|put| assert!(put.wait().unwrap().added().is_some()));
    until("all have ended", || front.stats().wait().unwrap().jobs.of(State::Waiting) == 0);
    until("all have ended", || front.stats().wait().unwrap().jobs.of(State::Running) == 0);
    assert_eq!(running.load(Ordering::SeqCst), 4);
    drop(nodes);
}
