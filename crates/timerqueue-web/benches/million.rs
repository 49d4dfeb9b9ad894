//! Each page beside a million jobs on a server: how long the answer takes, end to end, and what
//! the server reads for it.
//!
//! A plain program: `cargo bench -p timerqueue-web --all-features --bench million`. Arguments: the
//! jobs, and the requests for each page. It starts a PostgreSQL of its own.

#[cfg(unix)]
#[allow(dead_code, reason = "the tests use the rest of it")]
#[path = "../../timerqueue-scheduler/tests/postgres/server.rs"]
mod postgres;
#[allow(dead_code, reason = "the tests use the rest of it")]
#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use timerqueue::Runtime;
use timerqueue_scheduler::store::PostgresOptions;
use timerqueue_scheduler::{Handler, History, Put, Retry, Run, Schedule, Scheduler, State};
use timerqueue_web::Page;

use support::{Served, ask};

const HOUR: Duration = Duration::from_secs(3_600);
const HANDLERS: usize = 20;

/// A million jobs: each twentieth one is dead, each tenth one is done and kept, each hundredth one
/// has failed, and each two hundredth one recurs.
fn fill(scheduler: &Scheduler, jobs: usize) {
    let every = Schedule::every(HOUR * 24).build().expect("a schedule");
    let text = "x".repeat(150);
    let put = |n: usize| -> Put<'_> {
        let payload = (format!("order {n}"), &*text);
        let key = format!("user/{}/{n}", n % 1_000);
        match n {
            _ if n % 200 == 0 => scheduler.put_to("report", &payload).schedule(every.clone()),
            _ if n % 20 == 1 => scheduler.put_to("dies", &payload),
            _ if n % 10 == 2 => scheduler.put_to("kept", &payload),
            _ if n % 100 == 3 => scheduler.put_to("fails", &payload),
            _ => {
                let due = HOUR + Duration::from_millis((n as u64 * 7_919) % 100_000_000);
                scheduler.put_to(&format!("mail{}", n % HANDLERS), &payload).due(due)
            }
        }
        .key(&key)
    };
    for part in (0..jobs).collect::<Vec<_>>().chunks(2_000) {
        let placed = scheduler.put_many(part.iter().map(|&n| put(n))).wait().expect("puts");
        assert!(placed.iter().all(Result::is_ok), "each is put");
    }
    let (dead, kept) = (jobs as u64 / 20, jobs as u64 / 10);
    loop {
        let stats = scheduler.stats().wait().expect("counts");
        if stats.done >= kept && stats.jobs.of(State::Dead) >= dead {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[cfg(unix)]
fn main() {
    let mut arguments = std::env::args().skip(1).filter_map(|argument| argument.parse().ok());
    let jobs: usize = arguments.next().unwrap_or(1_000_000);
    let requests: usize = arguments.next().unwrap_or(5);
    let settings = "-c shared_buffers=128MB -c shared_preload_libraries=pg_stat_statements";
    let Some(server) = postgres::Server::with(settings, |_| {}) else { return };
    server.psql("CREATE EXTENSION pg_stat_statements");
    let store = PostgresOptions::new().schema("jobs").connect(Runtime::global(), &server.address()).expect("a store");
    let fails = |_: serde_json::Value, _: &Run| Err::<(), _>("the other side has not answered");
    let history = History::new(HOUR * 24).rows(1_000_000);
    let mut builder = Scheduler::builder()
        .store(store)
        .handler("report", |_: serde_json::Value, _: &Run| {})
        .register(Handler::new("dies", fails).retry(Retry::never()).parallel(256))
        .register(Handler::new("fails", fails).retry(Retry::waits([HOUR])).parallel(256))
        .register(Handler::new("kept", |_: serde_json::Value, _: &Run| {}).history(history).parallel(256));
    for n in 0..HANDLERS {
        builder = builder.handler(&format!("mail{n}"), |_: serde_json::Value, _: &Run| {});
    }
    let scheduler = builder.start().expect("a scheduler");
    let begun = Instant::now();
    fill(&scheduler, jobs);
    server.psql("VACUUM ANALYZE");
    eprintln!("{jobs} jobs after {:?}", begun.elapsed());
    let served = Served::new(&Page::builder(&scheduler).build().expect("a page"));
    let host = served.address;
    let get = |path: &str| ask(host, &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
    let id = scheduler.get(&format!("user/{}/{}", 5, 1_005)).wait().expect("a look").expect("a job").id.0;
    let deep = jobs / 2;
    let pages = [
        ("overview", "/".to_owned()),
        ("overview, a week", "/?span=week".to_owned()),
        ("waiting", "/jobs?state=waiting".to_owned()),
        ("running", "/jobs?state=running".to_owned()),
        ("failing", "/jobs?state=failing".to_owned()),
        ("dead", "/jobs?state=dead".to_owned()),
        ("queued", "/jobs?state=queued".to_owned()),
        ("all", "/jobs?state=all".to_owned()),
        ("all, put first", "/jobs?state=all&sort=oldest".to_owned()),
        ("all, due first", "/jobs?state=all&sort=due".to_owned()),
        ("dead, due first", "/jobs?state=dead&sort=due".to_owned()),
        ("waiting, put last", "/jobs?state=waiting&sort=newest".to_owned()),
        ("waiting, in the middle", format!("/jobs?state=waiting&sort=oldest&after={deep}")),
        ("dead, in the middle", format!("/jobs?state=dead&after={deep}")),
        ("waiting of a handler", "/jobs?state=waiting&handler=mail7".to_owned()),
        ("dead of a handler without", "/jobs?state=dead&handler=mail7".to_owned()),
        ("all of a handler", "/jobs?state=all&handler=mail7".to_owned()),
        ("all of a handler with few", "/jobs?state=all&handler=fails".to_owned()),
        ("key: one job", "/jobs?state=all&key=user/5/1005".to_owned()),
        ("key: one in a thousand", "/jobs?state=all&key=user/5/".to_owned()),
        ("key: all", "/jobs?state=all&key=user/".to_owned()),
        ("key: none", "/jobs?state=all&key=nothing/".to_owned()),
        ("key: one job, waiting", "/jobs?state=waiting&key=user/5/1005".to_owned()),
        ("key: none, waiting", "/jobs?state=waiting&key=nothing/".to_owned()),
        ("key: all, waiting", "/jobs?state=waiting&key=user/".to_owned()),
        ("key: none, dead", "/jobs?state=dead&key=nothing/".to_owned()),
        ("key: one in a thousand, dead", "/jobs?state=dead&key=user/1/".to_owned()),
        ("key: none, failing", "/jobs?state=failing&key=nothing/".to_owned()),
        ("text: each job", "/jobs?state=all&find=order".to_owned()),
        ("text: none", "/jobs?state=all&find=nothing".to_owned()),
        ("text: none, waiting", "/jobs?state=waiting&find=nothing".to_owned()),
        ("text: none, dead", "/jobs?state=dead&find=nothing".to_owned()),
        ("put before", "/jobs?state=all&until=2020-01-01T00:00".to_owned()),
        ("a job", format!("/job/{id}")),
        ("a form", format!("/job/{id}/edit")),
        ("done", "/done".to_owned()),
        ("done: one key", "/done?key=user/2/2".to_owned()),
        ("done: none", "/done?key=nothing/".to_owned()),
        ("schedules", "/schedules".to_owned()),
        ("nodes", "/nodes".to_owned()),
        ("many: all dead", "/many?state=dead&action=retry".to_owned()),
        ("many: a text", "/many?state=waiting&find=nothing&action=cancel".to_owned()),
        ("figures", "/metrics".to_owned()),
    ];
    println!("| page | best, ms | median, ms | pages of the server |\n|---|--:|--:|--:|");
    for (name, path) in &pages {
        let mut took = Vec::new();
        server.psql("SELECT pg_stat_statements_reset()");
        for _ in 0..requests {
            let begun = Instant::now();
            let (head, _) = get(path);
            took.push(begun.elapsed());
            assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
            // Counts that took long are kept for ten times as long.
            std::thread::sleep(Duration::from_millis(300));
        }
        took.sort();
        let read = server.psql(
            "SELECT coalesce(sum(shared_blks_hit + shared_blks_read), 0) FROM pg_stat_statements \
             WHERE query ~ 'job|handlers|minutes|nodes' AND query !~ 'pg_stat_statements'",
        );
        let read = read.parse::<u64>().unwrap_or_default() / requests as u64;
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        println!("| {name} | {:.1} | {:.1} | {read} |", ms(took[0]), ms(took[requests / 2]));
    }
}

#[cfg(not(unix))]
fn main() {}
