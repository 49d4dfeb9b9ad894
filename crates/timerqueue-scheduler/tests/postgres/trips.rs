//! What a store asks a server: how often it waits for an answer, and what the statements cost.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use timerqueue::Runtime;
use timerqueue_scheduler::{Handler, Run, Scheduler};

use crate::server::{Server, new_schema, until};
use crate::{HOUR, Log, logging, options};

/// Stands between stores and a server. A round trip begins with a question of a store that has all
/// answers. An answer may come in any number of parts.
struct Counter {
    trips: Arc<AtomicUsize>,
    address: String,
}

impl Counter {
    fn new(server: &Server) -> Self {
        static PORT: AtomicUsize = AtomicUsize::new(7_000);
        let (trips, port) = (Arc::new(AtomicUsize::new(0)), PORT.fetch_add(1, Ordering::SeqCst));
        let listener = UnixListener::bind(server.folder().join(format!(".s.PGSQL.{port}"))).unwrap();
        let (count, real) = (Arc::clone(&trips), server.folder().join(".s.PGSQL.5432"));
        std::thread::spawn(move || listener.incoming().flatten().for_each(|store| between(store, &real, &count)));
        Self { trips, address: format!("{} port={port}", server.address()) }
    }

    /// The round trips of an action: the fewest of several attempts, to the first that takes no
    /// more than this. What else a node asks meanwhile is no part of them, nor is a question that
    /// the server answers before the next one is sent, though the store does not wait for it.
    fn fewest(&self, most: usize, mut act: impl FnMut(usize)) -> usize {
        let mut fewest = usize::MAX;
        for attempt in 0..100 {
            let before = self.trips.load(Ordering::SeqCst);
            act(attempt);
            fewest = fewest.min(self.trips.load(Ordering::SeqCst) - before);
            if fewest <= most {
                break;
            }
        }
        fewest
    }

    fn node(&self, schema: &str, log: Option<&Log>) -> Scheduler {
        let options = options(schema).lease(HOUR);
        let store = options.connect(Runtime::global(), &self.address).unwrap();
        match log {
            Some(log) => logging(store, log),
            None => Scheduler::builder().store(store).start().unwrap(),
        }
    }
}

/// Carries the bytes of a connection.
fn between(store: UnixStream, server: &Path, trips: &Arc<AtomicUsize>) {
    let server = UnixStream::connect(server).unwrap();
    let (back, answers) = (store.try_clone().unwrap(), server.try_clone().unwrap());
    // The first message opens the session, and has its answer as well.
    let (trips, open) = (Arc::clone(trips), Arc::new(AtomicUsize::new(1)));
    let asked = Arc::clone(&open);
    std::thread::spawn(move || {
        carry(store, server, true, |kind| {
            // `Sync`, a simple query.
            if matches!(kind, b'S' | b'Q') {
                trips.fetch_add(usize::from(asked.fetch_add(1, Ordering::SeqCst) == 0), Ordering::SeqCst);
            }
        })
    });
    std::thread::spawn(move || {
        carry(answers, back, false, |kind| {
            // The server is ready for the next question.
            if kind == b'Z' {
                open.fetch_sub(1, Ordering::SeqCst);
            }
        })
    });
}

/// Tells the kind of each message once it is whole, and sends it on.
fn carry(mut from: UnixStream, mut to: UnixStream, is_store: bool, note: impl Fn(u8)) {
    let (mut bytes, mut whole) = (vec![0; 1 << 20], Vec::new());
    // The first message of a store has no kind.
    let mut head = usize::from(!is_store);
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        whole.extend_from_slice(&bytes[..count]);
        let mut end = 0;
        while let Some(length) = whole[end..].get(head..head + 4) {
            let next = end + head + u32::from_be_bytes(length.try_into().unwrap()) as usize;
            if next > whole.len() {
                break;
            }
            note(if head == 0 { 0 } else { whole[end] });
            (end, head) = (next, 1);
        }
        if to.write_all(&whole[..end]).is_err() {
            break;
        }
        whole.drain(..end);
    }
    let _ = to.shutdown(Shutdown::Both);
}

const JOBS: usize = 20;

#[test]
fn a_put_and_a_settle_take_two_round_trips_and_a_claim_three() {
    let Some(server) = Server::shared() else { return };
    let (counter, schema) = (Counter::new(server), new_schema());
    let front = counter.node(&schema, None);
    let put =
        |key: &str| assert!(front.put_to("log", &0).key(key).due(HOUR * 2).send().wait().unwrap().added().is_some());
    (0..3).for_each(|n| put(&format!("first{n}"))); // statements are prepared
    let one = counter.fewest(2, |n| put(&n.to_string()));
    let many = counter.fewest(2, |round| {
        let jobs = (0..300).map(|n| front.put_to("log", &n).key(&format!("{round}/{n}")).due(HOUR * 2));
        drop(front.put_many(jobs.collect::<Vec<_>>()).wait().unwrap());
    });
    assert_eq!((one, many), (2, 2), "of a put, and of 300 in a commit");
    drop(front);
    let log = Log::default();
    let node = counter.node(&schema, Some(&log));
    let run = |n: usize| {
        let _ = node.put_to("log", &0).key(&format!("run{n}")).send().wait().unwrap();
        until("it has run and left", || {
            server.psql(&format!("SELECT count(*) FROM {schema}.jobs WHERE key = 'run{n}'")) == "0"
        });
    };
    let run = counter.fewest(2 + 3 + 2, run);
    assert!(run <= 2 + 3 + 2, "{run}");
}

/// The end of a run takes the next job in its own two round trips. With an end and a claim apart
/// these were five.
#[test]
fn a_run_after_another_one_takes_two_round_trips() {
    let Some(server) = Server::shared() else { return };
    let (counter, schema) = (Counter::new(server), new_schema());
    let store = options(&schema).lease(HOUR).connect(Runtime::global(), &counter.address).unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let one = Handler::new("one", move |_: (), _: &Run| _ = count.fetch_add(1, Ordering::SeqCst)).parallel(1);
    let node = Scheduler::builder().store(store).register(one).start().unwrap();
    let round = || {
        let before = ran.load(Ordering::SeqCst);
        let jobs: Vec<_> = (0..JOBS).map(|_| node.put_to("one", &())).collect();
        drop(node.put_many(jobs).wait().unwrap());
        until("all have run and left", || {
            ran.load(Ordering::SeqCst) == before + JOBS
                && server.psql(&format!("SELECT count(*) FROM {schema}.jobs WHERE key <> 'later'")) == "0"
        });
    };
    round();
    // Beside the put, and the claims at the begin and the end.
    let fewest = counter.fewest(2 * JOBS + 10, |_| round());
    assert!(fewest <= 2 * JOBS + 10, "{fewest}");
    // A group whose job is due later costs the claims some.
    let _ = node.put_to("one", &()).key("later").group("a").due(HOUR).send().wait().unwrap();
    let fewest = counter.fewest(2 * JOBS + 40, |_| round());
    assert!(fewest <= 2 * JOBS + 40, "{fewest}");
}

/// To plan a statement takes longer than to run it, and each column costs.
#[test]
fn a_node_makes_each_plan_once_and_puts_few_columns() {
    let counts = "-c shared_preload_libraries=pg_stat_statements -c pg_stat_statements.track_planning=on -c autovacuum=off \
         -c plan_cache_mode=force_custom_plan";
    let Some(server) = Server::with(counts, |_| {}) else { return };
    server.psql("CREATE EXTENSION pg_stat_statements");
    let (schema, log) = (new_schema(), Log::default());
    let node = logging(crate::connect(&server, &options(&schema)), &log);
    let mut jobs = 0;
    let mut run = |more: usize| {
        for _ in 0..more {
            jobs += 1;
            assert!(node.put_to("log", &0).key(&jobs.to_string()).send().wait().unwrap().added().is_some());
            until("it has run", || log.lock().unwrap().len() == jobs);
        }
    };
    let plans = || {
        let of_jobs =
            "SELECT sum(plans) FROM pg_stat_statements WHERE query LIKE '%jobs%' AND query NOT LIKE '%pg_stat%'";
        server.psql(of_jobs).parse::<usize>().unwrap()
    };
    run(10);
    let before = plans();
    run(JOBS);
    let more = plans() - before;
    println!("{more} plans for {JOBS} jobs, of {before} before");
    assert!(before > 0 && more < JOBS, "{more} plans for {JOBS} jobs");
    // These were plain jobs, and put as such.
    let columns = "SELECT query FROM pg_stat_statements WHERE query LIKE 'INSERT INTO jobs%'";
    assert!(server.psql(columns).starts_with("INSERT INTO jobs (id, key, handler, payload, due, wake, "));
}

/// The columns that the statement for plain jobs leaves out have their values by default.
#[test]
fn a_plain_job_has_the_same_row_beside_others_and_alone() {
    let Some(server) = Server::shared() else { return };
    let schema = new_schema();
    let store = options(&schema).connect(Runtime::global(), &server.address()).unwrap();
    let front = Scheduler::builder().store(store).start().unwrap();
    let due = std::time::SystemTime::now() + HOUR;
    let job = |key: &str| front.put_to("log", &0).key(key).due(due);
    front.put_many([job("alone")]).wait().unwrap();
    front.put_many([job("beside"), job("other").priority(3).at_most_once()]).wait().unwrap();
    let row = |key: &str| {
        let own = "ARRAY['id', 'key', 'added']";
        server.psql(&format!("SELECT to_jsonb(job) - {own} FROM {schema}.jobs AS job WHERE key = '{key}'"))
    };
    assert!(row("alone").contains("\"holds_key\": true"), "{}", row("alone"));
    assert_eq!(row("alone"), row("beside"));
    assert_ne!(row("alone"), row("other"));
}
