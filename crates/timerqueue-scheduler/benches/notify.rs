//! Whether notices make the inserts of a server wait for each other: puts a second from 1, 4 and 16
//! connections, while eight nodes listen.
//!
//! A plain program: `cargo bench -p timerqueue-scheduler --features postgres --bench notify`.
//! Argument: the seconds of each part. It starts a server of its own, with flushes to the disk of
//! `/tmp`. Side by side: the rule of the store, and a trigger that adds a `NOTIFY` to the
//! transaction of each put, as a store without the rule would.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use timerqueue::Runtime;
use timerqueue_scheduler::store::PostgresOptions;
use timerqueue_scheduler::{Run, Scheduler};

#[cfg(unix)]
#[allow(dead_code, reason = "the tests use the rest of it")]
#[path = "../tests/postgres/server.rs"]
mod server;

#[cfg(unix)]
use server::Server;

const LISTENERS: usize = 8;
const CONNECTIONS: [usize; 3] = [1, 4, 16];
const ROUNDS: usize = 3;

/// A schema, and the nodes that listen to it: those that put, and those that could run.
#[cfg(unix)]
struct Side {
    name: &'static str,
    putting: Vec<Scheduler>,
    _listening: Vec<Scheduler>,
}

#[cfg(unix)]
impl Side {
    fn new(server: &Server, name: &'static str, each: bool) -> Self {
        let options = PostgresOptions::new().schema(name).safety_look(Duration::from_secs(3_600));
        let store = || options.connect(Runtime::global(), &server.address()).expect("a connection");
        let listener =
            || Scheduler::builder().store(store()).handler("h", |_: String, _: &Run| {}).start().expect("a node");
        let putter = || Scheduler::builder().store(store()).start().expect("a node");
        let side = Self {
            name,
            putting: (0..CONNECTIONS[2]).map(|_| putter()).collect(),
            _listening: (0..LISTENERS).map(|_| listener()).collect(),
        };
        if each {
            server.psql(&format!(
                "CREATE FUNCTION {name}.told() RETURNS trigger LANGUAGE plpgsql AS \
                 $$ BEGIN PERFORM pg_notify('timerqueue {name}', 'x' || NEW.id); RETURN NULL; END $$; \
                 CREATE TRIGGER told AFTER INSERT ON {name}.jobs FOR EACH ROW EXECUTE FUNCTION {name}.told()"
            ));
        }
        side
    }

    /// Puts a second, each in a transaction of its own, due in an hour.
    fn puts(&self, round: usize, connections: usize, time: Duration) -> f64 {
        let (stop, puts) = (AtomicBool::new(false), AtomicU64::new(0));
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for (caller, node) in self.putting.iter().take(connections).enumerate() {
                let (stop, puts) = (&stop, &puts);
                scope.spawn(move || {
                    for n in 0.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let put = node.put_to("h", &"payload").key(&format!("{round}/{connections}/{caller}/{n}"));
                        let _ = put.due(Duration::from_secs(3_600)).send().wait().expect("a put");
                        puts.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            std::thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
        });
        puts.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64()
    }
}

#[cfg(unix)]
fn main() {
    let seconds = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(4);
    let Some(server) = Server::with("-c fsync=on", |_| {}) else { return };
    let sides = [Side::new(&server, "rule", false), Side::new(&server, "each", true)];
    println!("puts a second, best of {ROUNDS} rounds of {seconds} s, {LISTENERS} nodes listen");
    let mut alone = None;
    for connections in CONNECTIONS {
        let mut best = [0.0_f64; 2];
        for round in 0..ROUNDS {
            for (side, best) in sides.iter().zip(&mut best) {
                *best = best.max(side.puts(round, connections, Duration::from_secs(seconds)));
            }
        }
        let first = alone.get_or_insert(best);
        for ((side, best), first) in sides.iter().zip(best).zip(first.iter()) {
            println!(
                "{connections:>3} connections, {:<5} {best:>8.0}, {:>5.2} times as many as one",
                side.name,
                best / first
            );
        }
        println!(
            "{connections:>3} connections, a NOTIFY for each put costs {:.0} %",
            100.0 - 100.0 * best[1] / best[0]
        );
    }
}

#[cfg(not(unix))]
fn main() {}
